//! One member of one queue partition: consensus, the queue machines and the leader's dispatch, as
//! one sans-io machine.
//!
//! Inputs: commands, frames of other members, writes done, reads done, jobs done, ticks. Outputs:
//! see [`crate::outputs::Outputs`]. The caller hands in all commands of a loop, then calls
//! [`QueuePartition::flush`] once: whatever arrived becomes one log entry (per MiB), without
//! waiting for more.
//!
//! What happens to entries is in `partition/entries.rs`, how a member comes to lead and ceases to in
//! `partition/role.rs`.

mod entries;
mod role;

use crate::command::{Outlets, Reply};
use crate::deleted::Deleted;
use crate::early::Early;
use crate::entry::{ENTRY_BYTES_TARGET, Reason};
use crate::given_up::GivenUp;
use crate::known::KnownQueues;
use crate::leader::Leader;
use crate::machine::{FixedMap, Queues, ROOM_KEPT, Trim, schedule_of, scheduled_for};
use crate::maintenance::Maintenance;
use crate::outputs::{Outputs, Ticket};
use crate::peer::PeerFrame;
use crate::predecessor::Predecessor;
use crate::queue::Answer;
use crate::repair::Repairs;
use crate::replica::Replica;
use crate::snapshot::Snapshots;
use crate::tail::Tail;
use crate::traffic::Traffic;
use broker::queue::Rules;
use broker::{ChannelKey, PartitionId, QueueId};
use consensus::{LogIndex, NodeId, Term};
use std::sync::Arc;
use storage::Location;

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
    /// Consumers may be on other nodes, where they outlive this one's end.
    pub(crate) has_guests: bool,
    /// What ended by rules, or by consumers, and became no dead letter.
    pub(crate) given_up: GivenUp,
    /// What was published into queues, and written for them.
    pub(crate) traffic: Traffic,
    /// An entry of this length is proposed before more is added to it.
    pub(crate) entry_bytes_target: usize,
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
            has_guests: false,
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

    /// Messages that ended and became no dead letters, by queue and reason, since this was asked before.
    pub fn take_given_up(&mut self) -> impl Iterator<Item = (QueueId, Reason, u64)> + use<> {
        self.given_up.take()
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

    /// A leader says nothing with the next tick.
    pub fn hold_heartbeat(&mut self) {
        self.replica.hold_heartbeat();
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

    /// Consumers of other nodes may come, and have come in a life of this node before: also the leader of a group
    /// of one waits for those who hold something.
    pub fn may_have_guests(&mut self) {
        self.has_guests = true;
        let has_queues = !self.queues.queues.is_empty();
        if let Some(leader) = self.leader.as_deref_mut().filter(|leader| leader.ticks == 0 && has_queues) {
            leader.awaits_holders = true;
        }
    }

    /// There is a link to another node: those of its consumers that hold something of a group of one come now.
    pub fn link_came(&mut self) {
        let is_alone = self.replica.group().membership().voters.len() == 1;
        if let Some(leader) = self.leader.as_deref_mut().filter(|leader| leader.awaits_holders && is_alone) {
            leader.holders_know_at = Some(leader.ticks);
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
