//! The entries of a partition on their way: finished, proposed, written, committed, applied, and what becomes of their
//! confirms and messages at each of these steps.
//!
//! Invariant: entries are applied in order, each once; a leader's own come back in the order in which they were
//! proposed, and with the numbers that it gave to their messages (asserted).

use super::{Context, QueuePartition};
use crate::command::{DeadLetter, Effect, Level};
use crate::deleted::Deleted;
use crate::entry::{Batch, LogCommand, Reason};
use crate::leader::{InFlight, Leader, PendingBatch};
use crate::machine::{Observer, TOO_NEW, WrittenByNewer};
use crate::peer::packet::checksum_of;
use crate::traffic::Traffic;
use broker::QueueId;
use broker::queue::Rules;
use consensus::{EntryKind, LogIndex};
use smallvec::SmallVec;
use storage::Location;

/// Without a consumer this many messages of a queue are kept in memory for whoever fetches them one
/// by one.
const READY_KEPT_MAX: u64 = 1024;

impl QueuePartition {
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
                    leader.builder.settle_apart(id, reason, &ranges);
                }
            }
            if let Some(life) = &mut queue.life {
                for (reason, mut ranges) in std::mem::take(&mut life.sink.ended) {
                    let ranges: Vec<(u64, u64)> = ranges.drain().collect();
                    if !buries(queue.rules.as_deref()) {
                        self.given_up.note(id, reason, ranges.iter().map(|(_, count)| count).sum());
                    }
                    leader.builder.settle_apart(id, reason, &ranges);
                }
            }
            if let Some(spoilt) = queue.sink.spoilt.as_deref_mut().filter(|s| !s.ended.is_empty()) {
                let ranges: Vec<(u64, u64)> = spoilt.ended.drain().collect();
                leader.builder.settle_apart(id, Reason::Damaged, &ranges);
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
        let time_ms = now_ms.max(self.queues.time_ms());
        // What is to happen once all of it is applied happens with the last.
        for (data, batches) in leader.builder.take_full(time_ms) {
            let entry = InFlight { batches, bytes: data.len(), crc: checksum_of(&data), ..InFlight::default() };
            leader.in_flight_bytes += entry.bytes;
            leader.held.push_back((data, entry));
        }
        let (data, batches) = leader.builder.finish(time_ms);
        let entry = InFlight {
            index: LogIndex(0),
            confirms: std::mem::take(&mut leader.confirms),
            values: std::mem::take(&mut leader.values),
            batches,
            settled,
            raised: std::mem::take(&mut leader.raised),
            lowered: std::mem::take(&mut leader.lowered),
            bytes: data.len(),
            crc: checksum_of(&data),
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
    pub(super) fn propose_held(&mut self, just_finished: bool) {
        let Some(leader) = &mut self.leader else { return };
        while let Some((data, entry)) = leader.held.front() {
            let Some(index) = self.replica.propose(data.clone(), entry.crc) else { return };
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
            if damage.what == TOO_NEW {
                let id = self.id().0;
                WrittenByNewer::end(
                    &format!("partition {id}"),
                    &format_args!("entry {}: {}", entry.index, damage.what),
                );
            }
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
        leader.letters_bytes -= done.letters.iter().map(DeadLetter::bytes).sum::<usize>();
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
    pub(super) fn note_own(&mut self, cx: &mut Context<'_>) {
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
    pub(super) fn note_written(&mut self, cx: &mut Context<'_>) {
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
}

/// Whether what a queue with these rules gives up becomes dead letters.
fn buries(rules: Option<&Rules>) -> bool {
    rules.is_some_and(|rules| rules.dead_letter.is_some())
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
