//! One member of one queue partition: consensus, the queue machines and the leader's dispatch, as
//! one sans-io machine.
//!
//! Inputs: commands, frames of other members, writes done, reads done, jobs done, ticks. Outputs:
//! see [`crate::outputs::Outputs`]. The caller hands in all commands of a loop, then calls
//! [`QueuePartition::flush`] once: whatever arrived becomes one log entry (per MiB), without
//! waiting for more.

use crate::command::{Effect, Level, Outlets, Reply};
use crate::commands::refuse;
use crate::deleted::Deleted;
use crate::early::Early;
use crate::entry::{Batch, ENTRY_BYTES_TARGET, LogCommand, Reason};
use crate::given_up::GivenUp;
use crate::known::KnownQueues;
use crate::leader::{ConfirmRange, InFlight, Leader, PendingBatch};
use crate::life::Life;
use crate::log_life::LogLife;
use crate::machine::{FixedMap, Observer, Queues, ROOM_KEPT, Trim, schedule_of, scheduled_for};
use crate::maintenance::Maintenance;
use crate::outputs::{ClockAhead, Outputs, Ticket};
use crate::peer::PeerFrame;
use crate::predecessor::Predecessor;
use crate::queue::Answer;
use crate::repair::Repairs;
use crate::replica::Replica;
use crate::snapshot::Snapshots;
use crate::tail::Tail;
use crate::traffic::Traffic;
use broker::queue::Rules;
use broker::{ChannelKey, NodeNumber, PartitionId, QueueId};
use consensus::{EntryKind, LogIndex, NodeId, Term};
use smallvec::SmallVec;
use std::sync::Arc;
use storage::Location;

/// From here on the operator hears that a clock was ahead: clocks that are set by the network are
/// nearer to each other than this.
const CLOCK_AHEAD_TOLD_MS: u64 = 5_000;

/// Without a consumer this many messages of a queue are kept in memory for whoever fetches them one
/// by one.
const READY_KEPT_MAX: u64 = 1024;

/// What all partitions of a shard share in a step.
pub struct Context<'a> {
    /// The wall clock, milliseconds since the epoch: stamped into entries, never compared across
    /// nodes.
    pub now_ms: u64,
    /// The newest entries in memory.
    pub tail: &'a mut Tail,
    /// How much consumers' connections still take.
    pub outlets: &'a mut dyn Outlets,
    /// Where everything that comes out goes.
    pub out: &'a mut Outputs,
}

/// One member of one queue partition.
pub struct QueuePartition {
    pub(crate) replica: Replica,
    pub(crate) queues: Queues,
    pub(crate) leader: Option<Box<Leader>>,
    pub(crate) applied: LogIndex,
    pub(crate) applied_term: Term,
    pub(crate) maintenance: Maintenance,
    pub(crate) snapshots: Snapshots,
    pub(crate) repairs: Repairs,
    /// Messages that other members had, since the start.
    pub(crate) repaired_messages: u64,
    /// Rules of the queues that are not plain.
    pub(crate) rules: FixedMap<QueueId, Arc<Rules>>,
    /// Whether any queue here ever had a limit of bytes beyond which it refuses.
    pub(crate) limits_bytes: bool,
    /// Queues whose rules are known here.
    pub(crate) known: KnownQueues,
    /// Queues that ended lately: what was routed to them before comes too late.
    pub(crate) deleted: Deleted,
    /// What waits until this member takes the office to which it was elected.
    pub(crate) early: Early,
    /// Who led before, or leads.
    pub(crate) predecessor: Predecessor,
    /// What ended by rules, or by consumers, and became no dead letter.
    pub(crate) given_up: GivenUp,
    /// What was published into queues, and written for them.
    pub(crate) traffic: Traffic,
    /// An entry of this length is proposed before more is added to it.
    pub(crate) entry_bytes_target: usize,
}

/// Who hears of what a partition applies.
struct Applied<'a> {
    deleted: &'a mut Deleted,
    /// Nobody counts what was written before the start.
    traffic: Option<&'a mut Traffic>,
}

impl Observer for Applied<'_> {
    #[inline]
    fn published(&mut self, batch: &Batch<'_>) {
        if let Some(traffic) = &mut self.traffic {
            traffic.published(batch);
        }
    }

    #[inline]
    fn noted(&mut self, command: &LogCommand<'_>, bytes: usize) {
        if let Some(traffic) = &mut self.traffic {
            traffic.noted(command, bytes);
        }
    }

    fn deleted(&mut self, queue: QueueId) {
        self.deleted.deleted(queue);
        if let Some(traffic) = &mut self.traffic {
            traffic.deleted(queue);
        }
    }
}

/// Whether what a queue with these rules gives up becomes dead letters.
fn buries(rules: Option<&Rules>) -> bool {
    rules.is_some_and(|rules| rules.dead_letter.is_some())
}

impl QueuePartition {
    /// A member over a replica and the state that its checkpoint holds, as of `applied`.
    pub fn new(replica: Replica, queues: Queues, applied: LogIndex, applied_term: Term) -> Self {
        // One more command fits behind the target, and what belongs to it.
        let entry_bytes_target = ENTRY_BYTES_TARGET.min(replica.group().entry_bytes_max() / 4);
        let traffic = Traffic::new(replica.table().last());
        QueuePartition {
            replica,
            queues,
            leader: None,
            applied,
            applied_term,
            maintenance: Maintenance::default(),
            snapshots: Snapshots::default(),
            repairs: Repairs::default(),
            repaired_messages: 0,
            rules: FixedMap::default(),
            limits_bytes: false,
            known: KnownQueues::default(),
            deleted: Deleted::default(),
            early: Early::default(),
            predecessor: Predecessor::default(),
            given_up: GivenUp::default(),
            traffic,
            entry_bytes_target,
        }
    }

    /// Its id.
    pub fn id(&self) -> PartitionId {
        self.replica.id()
    }

    /// From now on it does nothing as a leader with a queue of which [`QueuePartition::queue_is_known`]
    /// has not been told. For a member whose node may lead before it has read all of the topology.
    pub fn ask_for_queues(&mut self) {
        self.known.ask();
    }

    /// The node's topology has this queue, and its rules come before the next turn.
    pub fn queue_is_known(&mut self, queue: QueueId) {
        if self.known.tell(queue) && self.leader.is_some() && !self.is_at_rest(queue) {
            self.touched(queue);
            let schedule = crate::machine::scheduled_for(queue);
            if !self.is_at_rest(schedule) {
                self.touched(schedule);
            }
        }
    }

    /// Whether this member leads and takes commands.
    pub fn is_leading(&self) -> bool {
        self.leader.is_some()
    }

    /// Messages that ended and became no dead letters, by queue and reason, since this was asked before.
    pub fn take_given_up(&mut self) -> impl Iterator<Item = (QueueId, Reason, u64)> + use<> {
        self.given_up.take()
    }

    /// The node whose member leads, as far as this one knows.
    pub fn leader(&self) -> Option<NodeNumber> {
        self.replica.group().leader().map(|leader| NodeNumber(leader.number()))
    }

    /// The term that this member is in: whoever leads in an earlier one leads no more.
    pub fn term(&self) -> Term {
        self.replica.group().term()
    }

    /// The index of the last entry that was made here, which may wait for the log to take it.
    pub fn last_index(&self) -> LogIndex {
        let held = self.leader.as_ref().map_or(0, |leader| leader.held.len() as u64);
        LogIndex(self.replica.group().status().last.index.0 + held)
    }

    /// The replicated state.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The replica, for questions.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The replica, for changes of members and leaders.
    pub fn replica_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// The last applied entry.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// When it wants a flush though nothing came: a message expires, a queue lapses, a scheduled
    /// message is due. On the clock of [`Context::now_ms`].
    pub fn due_ms(&self) -> Option<u64> {
        let leader = self.leader.as_ref()?;
        leader.timers.first().map(|(at, _)| *at).into_iter().chain(leader.look_ahead_ms).min()
    }

    /// Bytes that were taken in and are not committed: what back-pressure looks at.
    pub fn in_flight_bytes(&self) -> usize {
        self.leader.as_ref().map_or(0, |l| l.in_flight_bytes)
    }

    /// The value at risk of a selective queue now: the sum over what was, or is about to be,
    /// confirmed without a sync.
    pub fn value_at_risk(&self, queue: QueueId) -> u64 {
        self.leader.as_ref().and_then(|l| l.queues.get(&queue)).map_or(0, |q| q.sink.at_risk)
    }

    /// Value at risk over all queues that this member leads. Cheap: it is kept, not summed.
    pub fn values_at_risk(&self) -> u64 {
        self.leader.as_ref().map_or(0, |l| u64::try_from(l.at_risk).unwrap_or(u64::MAX))
    }

    /// Gives back the room that many queues took while they were in use; for when nothing is going
    /// on.
    pub fn trim(&mut self) {
        self.replica.trim();
        self.rules.trim();
        self.queues.trim();
        if let Some(leader) = &mut self.leader {
            leader.queues.trim();
            leader.channels.trim();
            leader.publishers.trim();
            leader.builder.trim();
            leader.dirty.shrink_to(ROOM_KEPT);
            leader.settling.shrink_to(ROOM_KEPT);
            leader.published.shrink_to(ROOM_KEPT);
            leader.taken.shrink_to(ROOM_KEPT);
        }
    }

    /// How many queues the leader has room for at hand, whether they are in use or were.
    pub fn room_for_queues(&self) -> usize {
        self.leader.as_ref().map_or(0, |leader| leader.queues.capacity())
    }

    /// A tick went by (150 ms, or less while a leader is looked for): heartbeats, elections.
    pub fn tick(&mut self, cx: &mut Context<'_>) {
        self.replica.tick();
        // A handing over of leadership that came to nothing is given up here, and with it the
        // reason to hold entries back.
        self.propose_held(false);
        self.snapshot_tick(cx.out);
        self.repair_tick();
        self.drive(cx);
    }

    /// It stood still for so long that others may have elected somebody else: if it led, it leads no more,
    /// and gives nothing out that a later leader may have given to others.
    pub fn stood_still(&mut self, cx: &mut Context<'_>) {
        if self.replica.is_leader() {
            self.replica.resign();
            self.drive(cx);
        }
    }

    /// The link to another member broke: who was attached to it hears of that.
    pub fn link_lost(&mut self, node: NodeId) {
        self.predecessor.link_lost(self.replica.member_of(node));
    }

    /// A frame came from another node.
    pub fn step(&mut self, from: NodeId, frame: PeerFrame, cx: &mut Context<'_>) {
        let from = self.replica.member_of(from);
        match frame {
            PeerFrame::PullImage { snapshot, offset } => self.image_pulled(from, snapshot, offset, cx.out),
            PeerFrame::ImagePart { snapshot, offset, bytes } => self.take_image(snapshot, offset, &bytes),
            PeerFrame::PullMessages { snapshot, queue, from: seq } => {
                self.serve_messages(from, snapshot, queue, seq, cx.out);
            }
            PeerFrame::MessagesPart { snapshot, queue, from: seq, past, messages } => {
                self.take_messages(snapshot, (queue, seq, past), messages);
            }
            PeerFrame::AskMissing(missing) => self.serve_mending(from, missing, cx),
            PeerFrame::HaveMissing(missing, messages) => self.take_mending(from, missing, messages),
            _ => {
                self.predecessor.heard(from);
                self.replica.step(from, frame);
                self.drive(cx);
            }
        }
    }

    /// A write was handed to the operating system; `bodies` are the places of its entries, in
    /// order.
    pub fn wal_written(&mut self, ticket: Ticket, bodies: &[Location], cx: &mut Context<'_>) {
        self.replica.wal_written(ticket, bodies, cx.out);
    }

    /// Every write up to this one is on the disk.
    pub fn wal_synced(&mut self, ticket: Ticket, cx: &mut Context<'_>) {
        self.replica.wal_synced(ticket, cx.out);
        let Some(leader) = &mut self.leader else { return };
        while leader.barriers.front().is_some_and(|b| b.0 <= ticket) {
            let (_, channel, request) = leader.barriers.pop_front().expect("there is a first");
            let answer = Answer { channel, request, reply: Reply::Done };
            // It is on this disk, and a confirm may have waited for less than those of a majority.
            match self.replica.is_alone() {
                true => cx.out.effects.push(answer.into()),
                false => leader.mark(answer, &mut cx.out.effects),
            }
        }
    }

    /// Ends a loop: proposes what commands left, takes out what the group has to say, applies what
    /// is committed and hands out messages.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        if let Some(leader) = self.leader.as_deref_mut().filter(|l| !l.timers.is_empty()) {
            leader.wake_due(cx.now_ms);
        }
        if let Some(leader) = self.leader.as_deref_mut() {
            leader.lower_watermarks(&self.queues, cx.now_ms);
        }
        self.finish_entry(cx.now_ms);
        self.drive(cx);
        self.snapshot_turn(cx);
        self.repair_turn(cx);
        self.note_written(cx);
        if self.leader.as_ref().is_some_and(|leader| leader.confirms_alone) {
            self.note_own(cx);
        }
        self.dispatch(cx);
        while self.carry_out_postponed(cx) || self.carry_out_early(cx) {
            self.dispatch(cx);
        }
        // Watermarks and no-ack settles that dispatching made belong to the log too.
        if self.finish_entry(cx.now_ms) {
            self.drive(cx);
        }
    }

    /// Closes the entry being built, if there is something to say, and proposes it.
    pub(crate) fn finish_entry(&mut self, now_ms: u64) -> bool {
        let Some(leader) = self.leader.as_deref_mut() else { return false };
        if leader.settling.is_empty() && leader.published.is_empty() && leader.builder.is_empty() {
            leader.note_ahead(now_ms);
            return false;
        }
        let mut settled = std::mem::take(&mut leader.settling);
        settled.retain(|id| {
            let (id, Some(queue)) = (*id, leader.queues.get_mut(id)) else { return false };
            queue.sink.settling = false;
            for (ranges, reason) in
                [(&mut queue.sink.acked, Reason::Acked), (&mut queue.sink.discarded, Reason::Discarded)]
            {
                if !ranges.is_empty() {
                    let ranges: SmallVec<[(u64, u64); 4]> = ranges.drain().collect();
                    if reason == Reason::Discarded && !buries(queue.rules.as_deref()) {
                        self.given_up.note(id, reason, ranges.iter().map(|(_, count)| count).sum());
                    }
                    leader.builder.settle(id, reason, &ranges);
                }
            }
            if let Some(life) = &mut queue.life {
                for (reason, mut ranges) in std::mem::take(&mut life.sink.ended) {
                    let ranges: Vec<(u64, u64)> = ranges.drain().collect();
                    if !buries(queue.rules.as_deref()) {
                        self.given_up.note(id, reason, ranges.iter().map(|(_, count)| count).sum());
                    }
                    leader.builder.settle(id, reason, &ranges);
                }
            }
            if let Some(spoilt) = queue.sink.spoilt.as_deref_mut().filter(|s| !s.ended.is_empty()) {
                let ranges: Vec<(u64, u64)> = spoilt.ended.drain().collect();
                leader.builder.settle(id, Reason::Damaged, &ranges);
                leader.builder.want_sync();
            }
            queue.sink.settles_in_flight += 1;
            true
        });
        for id in leader.published.drain(..) {
            let Some(queue) = leader.queues.get_mut(&id) else { continue };
            queue.sink.published = false;
            // Its consumers will be given these at once: the entry says so itself, which spares one
            // of its own.
            if let Some(below) = queue.sent_below() {
                queue.sink.sent_proposed = below;
                leader.builder.sent(id, below);
                Leader::note_raised(&mut leader.ahead, id, queue);
            }
        }
        leader.note_ahead(now_ms);
        if leader.builder.is_empty() {
            return false;
        }
        let (data, batches) = leader.builder.finish(now_ms.max(self.queues.time_ms()));
        let entry = InFlight {
            index: LogIndex(0),
            confirms: std::mem::take(&mut leader.confirms),
            values: std::mem::take(&mut leader.values),
            batches,
            settled,
            raised: std::mem::take(&mut leader.raised),
            lowered: std::mem::take(&mut leader.lowered),
            bytes: data.len(),
            letters: std::mem::take(&mut leader.letters),
            answers: std::mem::take(&mut leader.answers),
        };
        leader.in_flight_bytes += entry.bytes;
        leader.held.push_back((data, entry));
        self.propose_held(true);
        true
    }

    /// Proposes finished entries, as far as the log takes them. `just_finished`: the last one was
    /// finished now.
    fn propose_held(&mut self, just_finished: bool) {
        let Some(leader) = &mut self.leader else { return };
        while let Some((data, _)) = leader.held.front() {
            let Some(index) = self.replica.propose(data.clone()) else { return };
            let (data, mut entry) = leader.held.pop_front().expect("there is a first");
            // What was raised since an entry was finished stands in a later one, which may be lost
            // where this one is kept.
            let knows_sent = just_finished && leader.held.is_empty();
            entry.index = index;
            for batch in &entry.batches {
                for id in &batch.targets {
                    let Some(queue) = leader.queues.get_mut(id) else { continue };
                    queue.sink.pending.push_back(PendingBatch {
                        index,
                        first: queue.sink.proposed_seq,
                        count: batch.messages,
                        level: batch.level,
                        sent_below: if knows_sent { queue.sink.sent_proposed } else { 0 },
                        has_priorities: batch.has_priorities,
                        bytes: data.slice(batch.offset as usize..(batch.offset + batch.bytes) as usize),
                    });
                    queue.sink.proposed_seq += u64::from(batch.messages);
                }
            }
            leader.in_flight.push_back(entry);
        }
    }

    /// Takes out what the group has to say and applies what is committed.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        loop {
            self.replica.drive(cx.out);
            let (mut applied, mut change) = (false, None);
            while let Some(committed) = self.replica.next_committed() {
                applied = true;
                if committed.entry.kind == EntryKind::Membership {
                    change = Some(committed.entry.position());
                }
                self.apply(&committed.entry, committed.body, cx);
            }
            self.note_role(cx);
            if !applied {
                break;
            }
            if change.is_some() {
                self.maintenance.note_members();
            }
            self.replica.applied(self.applied, change, cx.out);
            self.propose_held(false);
        }
    }

    fn apply(&mut self, entry: &consensus::Entry, body: Location, cx: &mut Context<'_>) {
        assert_eq!(entry.index, self.applied.next(), "entries are applied in order, each once");
        self.applied = entry.index;
        self.applied_term = entry.term;
        if entry.kind != EntryKind::Command {
            return;
        }
        let traffic = Some(&mut self.traffic).filter(|traffic| traffic.counts(entry.index));
        let mut observer = Applied { deleted: &mut self.deleted, traffic };
        if let Err(damage) = self.queues.apply(&entry.data, body, &mut observer) {
            // Not skipped: members would part. The node stops; its log is kept for whoever finds
            // out why.
            panic!("partition {}: {damage} (entry {}); the log is kept as it is", self.id().0, entry.index);
        }
        self.maintenance.note_applied(cx.now_ms);
        let Some(leader) = &mut self.leader else { return };
        if leader.in_flight.front().is_none_or(|f| f.index != entry.index) {
            return;
        }
        let done = leader.in_flight.pop_front().expect("there is a first");
        leader.in_flight_bytes -= done.bytes;
        // Committed is as much as any level asks for.
        cx.out.effects.extend(done.confirms.into_all().map(Effect::from));
        cx.out.effects.extend(done.letters.into_iter().map(|letter| Effect::DeadLetter(Box::new(letter))));
        cx.out.effects.extend(done.answers.into_iter().map(Effect::from));
        for (id, value) in done.values {
            if let Some(queue) = leader.queues.get_mut(&id) {
                queue.sink.at_risk -= value;
                leader.at_risk -= u128::from(value);
            }
        }
        for id in done.settled {
            if let Some(queue) = leader.queues.get_mut(&id) {
                queue.sink.settles_in_flight -= 1;
                queue.forget_spoilt();
                queue.touch(id, &mut leader.dirty);
            }
        }
        for id in done.lowered {
            if let Some(queue) = leader.queues.get_mut(&id) {
                queue.sink.lowered_to = None;
                queue.touch(id, &mut leader.dirty);
            }
        }
        for id in done.raised {
            if let Some(queue) = leader.queues.get_mut(&id) {
                queue.touch(id, &mut leader.dirty);
            }
        }
        let (mut waiting, mut soon_wanted) = (0, false);
        for batch in &done.batches {
            for id in &batch.targets {
                let Some(queue) = leader.queues.get_mut(id) else { continue };
                let Some(pending) = queue.sink.pending.pop_front() else { continue };
                assert_eq!(pending.index, entry.index, "batches are applied in the order in which they were proposed");
                let state = self.queues.queue(*id).expect("a queue that was published to has state");
                if queue.sink.counted > 0 {
                    queue.sink.counted -= 1;
                } else {
                    queue.make_applied_ready(pending.count, state);
                }
                let past = pending.first + u64::from(pending.count);
                if let Some(life) = &mut queue.life {
                    life.sink.keys_applied(past);
                }
                assert!(
                    state.next_seq() == past || !queue.sink.pending.is_empty(),
                    "leader and log number messages alike"
                );
                waiting += past.saturating_sub(queue.dispatch.cursor().max(pending.first));
                // A backlog that nobody consumes is not kept at hand: it would only drive out what
                // is about to be read.
                soon_wanted |= queue.dispatch.consumers() > 0 || queue.dispatch.ready() <= READY_KEPT_MAX;
                queue.touch(*id, &mut leader.dirty);
            }
        }
        if soon_wanted {
            cx.tail.put(body, entry.data.clone(), waiting);
        }
    }

    /// Entries that the leader has: confirms that wait for nobody else.
    #[cold]
    fn note_own(&mut self, cx: &mut Context<'_>) {
        let Some(leader) = &mut self.leader else { return };
        let synced = self.replica.group().status().persisted;
        // Nobody reports a write that nobody waits for.
        let now = [self.replica.own_written().max(synced), synced];
        for (at, level) in [Level::LeaderWritten, Level::LeaderSynced].into_iter().enumerate() {
            let before = leader.own[at];
            leader.own[at] = before.max(now[at]);
            let from = leader.in_flight.partition_point(|entry| entry.index <= before);
            for entry in leader.in_flight.range_mut(from..).take_while(|entry| entry.index <= now[at]) {
                cx.out.effects.extend(entry.confirms.at(level).drain(..).map(Effect::from));
            }
        }
    }

    /// Written entries: confirms and deliveries that wait for no sync.
    fn note_written(&mut self, cx: &mut Context<'_>) {
        let Some(leader) = &mut self.leader else { return };
        let written = self.replica.written_index();
        if written <= leader.written {
            return;
        }
        let from = leader.in_flight.partition_point(|entry| entry.index <= leader.written);
        leader.written = written;
        for entry in leader.in_flight.range_mut(from..).take_while(|e| e.index <= written) {
            cx.out.effects.extend(entry.confirms.at(Level::Written).drain(..).map(Effect::from));
            for batch in entry.batches.iter().filter(|b| !b.level.is_on_disk()) {
                for id in &batch.targets {
                    if let Some(queue) = leader.queues.get_mut(id)
                        && queue.make_ready(written)
                    {
                        queue.touch(*id, &mut leader.dirty);
                    }
                }
            }
        }
    }

    /// Becomes a leader once an entry of its own term is applied; stops being one at once.
    fn note_role(&mut self, cx: &mut Context<'_>) {
        let (leads, term) = (self.replica.is_leader(), self.replica.group().term());
        if let Some(leader) = &self.leader
            && leads
            && leader.term == term
        {
            return;
        }
        if let Some(leader) = self.replica.group().leader().filter(|_| !leads) {
            self.predecessor.follow(leader);
        }
        if leads || self.leader.is_some() || !self.early.is_empty() {
            self.change_role(leads, term, cx);
        }
    }

    /// An office ends, or one begins once its first entry is applied.
    #[cold]
    fn change_role(&mut self, leads: bool, in_term: Term, cx: &mut Context<'_>) {
        if let Some(leader) = &mut self.leader {
            leader.leave_unanswered(&mut cx.out.effects);
            // Publishes may yet be committed by the next leader: it is told them again.
            let term = leader.term.0 as u32;
            let in_log = leader.in_flight.drain(..).chain(leader.held.drain(..).map(|held| held.1));
            let in_log = in_log.flat_map(|entry| entry.confirms.into_all());
            let gone = std::mem::take(&mut leader.confirms).into_all().chain(in_log);
            for ConfirmRange { channel, first, count } in gone {
                cx.out.effects.push(Effect::Returned { channel, first, count, term });
            }
            let postponed = std::mem::take(&mut leader.postponed);
            self.leader = None;
            postponed.into_iter().for_each(|command| refuse(command, Reply::NotLeader, &mut cx.out.effects));
        }
        if !leads {
            // It was elected and took no office.
            self.early.take().into_iter().for_each(|command| refuse(command, Reply::NotLeader, &mut cx.out.effects));
        }
        if leads && self.applied_term == in_term && self.applied > LogIndex(0) {
            let mut leader = Leader::new(in_term);
            leader.awaits_holders = self.replica.group().membership().voters.len() > 1;
            self.leader = Some(Box::new(leader));
            self.look_at_rules();
            let ahead_ms = self.queues.time_ms().saturating_sub(cx.now_ms);
            if ahead_ms >= CLOCK_AHEAD_TOLD_MS {
                cx.out.clocks_ahead.push(ClockAhead { partition: self.id(), ahead_ms });
            }
        }
    }

    /// A new leader looks at every queue that may have something to do though nobody asks.
    fn look_at_rules(&mut self) {
        let stated = self.queues.queues.iter().filter(|(_, state)| state.extras().is_some()).map(|(id, _)| *id);
        let ruled = self.rules.iter().filter(|(_, rules)| Life::<LogLife>::is_wanted_by(rules)).map(|(id, _)| *id);
        let mut ids: Vec<QueueId> = stated.chain(ruled).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            if !self.is_at_rest(id) {
                self.touched(id);
            }
        }
    }

    /// Queues that have state here: the shell compares them with the topology and deletes orphans.
    pub fn queue_ids(&self) -> Vec<QueueId> {
        let mut ids: Vec<QueueId> =
            self.queues.queue_ids().into_iter().map(|id| schedule_of(id).unwrap_or(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Whether anything of a queue is in memory here: messages, scheduled ones, consumers, timers,
    /// rules. For whoever looks whether a deleted queue left something behind.
    pub fn remembers(&self, queue: QueueId) -> bool {
        let ids = [queue, scheduled_for(queue)];
        let leads_it = |leader: &Leader| {
            let is_timed = leader.timers.iter().any(|(_, id)| ids.contains(id));
            is_timed || ids.iter().any(|id| leader.queues.contains_key(id))
        };
        ids.iter().any(|id| self.queues.queue(*id).is_some())
            || self.rules.contains_key(&queue)
            || self.leader.as_deref().is_some_and(leads_it)
    }

    /// Publishers that are remembered.
    pub fn publishers(&self) -> usize {
        self.queues.publishers.len()
    }

    /// Whether a channel's publishes are remembered here.
    pub fn knows_publisher(&self, channel: ChannelKey) -> bool {
        self.queues.publishers.contains_key(&channel)
    }
}
