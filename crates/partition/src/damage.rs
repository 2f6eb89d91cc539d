//! Messages whose bytes cannot be read any more: told, set aside through the log, never given out.
//!
//! A message is believed to be damaged after two reads in vain, the second one past what memory
//! holds of its file. In a group of one nobody else has it, so it ends with a logged settle of its
//! own reason: replays agree, the room comes back, and the messages around it go on in order. In a
//! larger group the others are asked first, see [`crate::repair`] and
//! `docs/decisions/0007-damaged-messages.md`.
//!
//! A file that is not there is no such last word where nobody else has it: a disk may be mounted
//! again, a file put back. Then the queue waits, as for whatever the system refuses just now.
//!
//! Invariant: only what waits in the queue is set aside. What a consumer holds is its own to
//! settle, and its bytes were intact when it got them.

use crate::leader::{Leader, LeaderQueue};
use crate::machine::Queues;
use crate::outputs::{Damage, DamagedRun, Fate, Outputs};
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use broker::QueueId;
use broker::queue::{Levels, QueueState, SeqRanges};

/// A read that the system refused is tried again after this long.
const AGAIN_MS: u64 = 1_000;

/// What a leader knows of messages of one queue that cannot be read. Absent while all is well.
#[derive(Debug, Default)]
pub(crate) struct Spoilt {
    /// Damaged, and perhaps not ended in the log yet: whoever looks for the next message passes
    /// over them.
    skip: SeqRanges,
    /// Outcomes for the entry that is being built.
    pub(crate) ended: SeqRanges,
    /// A read was refused: the next one is from this time on.
    again_ms: Option<u64>,
}

impl Spoilt {
    /// Whether this message is known to be damaged.
    pub(crate) fn has(&self, seq: u64) -> bool {
        self.skip.contains(seq)
    }
}

/// The first live number in turn at or after `from` that is not known to be damaged.
#[inline]
pub(crate) fn next_sound(state: &QueueState<Place>, spoilt: Option<&Spoilt>, mut from: u64) -> Option<u64> {
    loop {
        let (seq, _) = state.next_in_turn(from)?;
        if spoilt.is_none_or(|s| !s.has(seq)) {
            return Some(seq);
        }
        from = seq + 1;
    }
}

impl LeaderQueue {
    /// Whether a message is known to be damaged.
    pub(crate) fn is_spoilt(&self, seq: u64) -> bool {
        self.sink.spoilt.as_ref().is_some_and(|s| s.has(seq))
    }

    /// Everything that was set aside so far has ended in the log.
    pub(crate) fn forget_spoilt(&mut self) {
        if self.sink.settles_in_flight == 0
            && self.sink.spoilt.as_ref().is_some_and(|s| s.ended.is_empty() && s.again_ms.is_none())
        {
            self.sink.spoilt = None;
        }
    }

    /// A read was refused; nothing is read for the queue until the time that is returned.
    pub(crate) fn read_later(&mut self, now_ms: u64) -> u64 {
        let at = now_ms + AGAIN_MS;
        self.sink.reading = true;
        self.sink.spoilt.get_or_insert_default().again_ms = Some(at);
        at
    }

    /// Lets a read that was refused be made again, if its time has come.
    pub(crate) fn look_again(&mut self, now_ms: u64) {
        if let Some(spoilt) = &mut self.sink.spoilt
            && spoilt.again_ms.is_some_and(|at| at <= now_ms)
        {
            spoilt.again_ms = None;
            self.sink.reading = false;
        }
    }

    /// Takes a damaged message out of wherever it waits. False if it does not: a consumer has it,
    /// or its end is on the way.
    fn drop_spoilt(&mut self, seq: u64, is_in_turn: bool, levels: Option<&Levels>) -> bool {
        self.sink.spoilt.get_or_insert_default().skip.insert(seq);
        if self.life.as_ref().is_some_and(|life| life.sink.is_released(seq)) {
            return false;
        }
        // What is out of turn stands among the ready ones only once it came back.
        let was_ready =
            if is_in_turn { self.dispatch.drop_ready(seq, levels) } else { self.dispatch.drop_returned(seq, levels) };
        let waited = was_ready || self.life.as_mut().is_some_and(|life| life.sink.drop_waiting(seq));
        if waited {
            self.sink.counts.remove(seq, seq + 1);
        }
        waited
    }
}

impl QueuePartition {
    /// Whether no other member could have what this one lost.
    pub(crate) fn is_only_copy(&self) -> bool {
        self.others().is_empty()
    }

    /// These messages of a queue, live ones among them, cannot be read by any member: they end in
    /// the log, unless a consumer has them. Only a leader says so.
    pub(crate) fn set_aside(
        &mut self,
        id: QueueId,
        place: Place,
        messages: impl Iterator<Item = u64>,
        why: String,
        out: &mut Outputs,
    ) {
        let Some(state) = self.queues.queue(id) else { return };
        let live: Vec<u64> = messages.filter(|seq| state.runs().is_live(*seq)).collect();
        let next_seq = self.touched(id).next_seq;
        let leader = self.leader.as_deref_mut().expect("asked above");
        let lq = leader.queues.get_mut(&id).expect("touched above");
        let ended = drop_all(lq, &self.queues, id, &live);
        if ended.is_empty() {
            return;
        }
        if let Some(life) = &mut lq.life {
            // How much of the queue's bytes they were, nobody can tell.
            life.recount(lq.rules.as_deref(), next_seq);
        }
        let messages: Vec<(u64, u64)> = ended.iter().collect();
        let spoilt = lq.sink.spoilt.get_or_insert_default();
        messages.iter().for_each(|(first, count)| spoilt.ended.insert_range(*first, *count));
        Leader::settle_later(&mut leader.settling, id, lq);
        out.set_aside += ended.count();
        out.damage.push(Damage { queue: id, place, messages, why, fate: Fate::SetAside });
    }

    /// These runs could not be copied, because some of their messages cannot be read: the same
    /// happens to those as when they are met on their way to a consumer, and the rest of the run is
    /// copied later. Comes before the answer to the job.
    pub fn runs_damaged(&mut self, runs: Vec<DamagedRun>, cx: &mut Context<'_>) {
        for DamagedRun { queue, place, messages, why, is_gone } in runs {
            let first = messages.first().map_or(0, |m| m.0);
            let run = self.queues.queue(queue).and_then(|state| state.runs().covering(first));
            // Settled, or moved, while it was read: what is damaged there has ended with it.
            if run.is_none_or(|run| run.place != place) {
                continue;
            }
            self.maintenance.put_off(place, cx.now_ms);
            if let Place::Wal { file, offset, bytes } = place
                && cx.tail.get(file, offset, bytes).is_some()
            {
                // Memory still has them whole, and gives them out.
                continue;
            }
            match (self.is_only_copy(), self.leader.is_some()) {
                (true, _) if is_gone => {
                    // One line for all that is in the file.
                    match cx.out.damage.last_mut().filter(|last| (last.queue, last.fate) == (queue, Fate::Awaited)) {
                        Some(last) if last.why == why => last.messages.extend(messages),
                        _ => cx.out.damage.push(Damage { queue, place, messages, why, fate: Fate::Awaited }),
                    }
                }
                (true, true) => {
                    let seqs = messages.into_iter().flat_map(|(first, count)| first..first + count);
                    self.set_aside(queue, place, seqs, why, cx.out);
                }
                (true, false) => cx.out.damage.push(Damage { queue, place, messages, why, fate: Fate::Told }),
                (false, _) => self.repair_stretches((queue, place), messages, &why, cx),
            }
        }
    }
}

fn drop_all(lq: &mut LeaderQueue, queues: &Queues, id: QueueId, live: &[u64]) -> SeqRanges {
    let aside = queues.queue(id).and_then(QueueState::extras).map(|extras| &extras.aside);
    let mut ended = SeqRanges::new();
    for &seq in live {
        let is_in_turn = aside.is_none_or(|aside| !aside.contains_key(&seq));
        if lq.drop_spoilt(seq, is_in_turn, queues.levels(id)) {
            ended.insert(seq);
        }
    }
    ended
}
