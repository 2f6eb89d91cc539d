//! What every member of a partition knows of one queue: the replicated part, changed by log entries
//! alone.
//!
//! Invariants: sequence numbers start at 1, grow by one a message and are never given out twice; a
//! settled number never becomes live again; counts are kept only for live numbers. Absent on
//! purpose: who holds what. Deliveries are not logged; the leader's [`super::Dispatch`] knows them,
//! and the watermark here bounds what it may have sent.

use super::counts::{CountMap, Counts};
use super::dedup::{DedupKey, DedupRule, KeyMeter, Keys, Seen};
use super::levels::{LevelRule, Levels, Stretch};
use super::runs::{Run, Runs};
use std::collections::{BTreeMap, BTreeSet};

/// Why a live message is out of its queue's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aside {
    /// It is given up, for this reason, and stays until every queue that its dead letter goes to
    /// has it.
    Dead(u8),
    /// It came back and waits until this time, milliseconds since the epoch.
    Until(u64),
}

/// What a queue has that plain ones have not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// Messages below may have a time in them: one published with a time limit, or to a queue with
    /// one.
    pub timed_below: u64,
    /// Messages out of turn.
    pub aside: BTreeMap<u64, Aside>,
    /// When scheduled messages are due, with their numbers; may hold settled ones at its start for
    /// a while.
    pub due: BTreeSet<(u64, u64)>,
    /// Keys of messages that come in once.
    pub keys: Keys,
}

/// The replicated state of one queue. `P` is where a run's bytes lie on this member.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueState<P> {
    next_seq: u64,
    runs: Runs<P>,
    counts: CountMap,
    dispatched_below: u64,
    /// Absent while all live messages have the default level.
    levels: Option<Box<Levels>>,
    extras: Option<Box<Extras>>,
}

impl<P> Default for QueueState<P> {
    fn default() -> Self {
        QueueState {
            next_seq: 1,
            runs: Runs::default(),
            counts: CountMap::default(),
            dispatched_below: 1,
            levels: None,
            extras: None,
        }
    }
}

impl<P> QueueState<P> {
    /// A queue as a checkpoint or a snapshot has it.
    pub fn restore(next_seq: u64, dispatched_below: u64, runs: Vec<Run<P>>, counts: CountMap) -> Self {
        let mut state =
            QueueState { next_seq, runs: Runs::default(), counts, dispatched_below, levels: None, extras: None };
        for run in runs {
            assert!(run.past() <= next_seq, "a run ends before the next sequence number");
            state.runs.push(run);
        }
        state
    }

    /// Puts back what [`Levels::stretches`] told, after the runs.
    pub fn restore_levels(&mut self, default: u8, stretches: &[Stretch]) {
        self.levels = Levels::restore(default, stretches, |seq| self.runs.is_live(seq)).map(Box::new);
    }

    /// The levels of the messages; `None` while all have the default level.
    pub fn levels(&self) -> Option<&Levels> {
        self.levels.as_deref()
    }

    /// Notes the priorities of the messages from `first` on, which were published last. Those that
    /// make no difference leave nothing behind.
    pub fn note_priorities(&mut self, first: u64, rule: LevelRule, priorities: impl Iterator<Item = Option<u8>>) {
        let levels: Vec<u8> = priorities.map(|priority| rule.level(priority)).collect();
        let default = rule.default_level();
        if rule != LevelRule::None && levels.iter().any(|level| *level != default) {
            self.levels.get_or_insert_with(|| Box::new(Levels::new(default))).note(first, &levels);
        }
    }

    /// Puts back what only some queues have.
    pub fn restore_extras(&mut self, extras: Extras) {
        self.extras = (extras != Extras::default()).then(|| Box::new(extras));
    }

    /// What only some queues have; `None` is a plain queue.
    pub fn extras(&self) -> Option<&Extras> {
        self.extras.as_deref()
    }

    /// Messages below may have a time in them.
    pub fn timed_below(&self) -> u64 {
        self.extras.as_ref().map_or(0, |e| e.timed_below)
    }

    /// The number that the next message gets.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Messages below may have been sent to a consumer by this leader or one before it.
    pub fn dispatched_below(&self) -> u64 {
        self.dispatched_below
    }

    /// The live messages.
    pub fn runs(&self) -> &Runs<P> {
        &self.runs
    }

    /// The live messages, for moving their bytes; which are live must not change.
    pub fn runs_mut(&mut self) -> &mut Runs<P> {
        &mut self.runs
    }

    /// Counts of the messages that came back.
    pub fn counts(&self) -> &CountMap {
        &self.counts
    }

    /// How often `seq` came back.
    pub fn counts_of(&self, seq: u64) -> Counts {
        self.counts.get(seq).unwrap_or_default()
    }

    /// Takes in a batch whose bytes lie at `place`; returns the number of its first message.
    pub fn publish(&mut self, count: u32, place: P) -> u64 {
        let first = self.next_seq;
        self.runs.push(Run::new(first, count, place));
        self.next_seq += u64::from(count);
        first
    }

    /// The messages of the batch that was published last have a time in them.
    pub fn note_timed(&mut self) {
        self.extras.get_or_insert_default().timed_below = self.next_seq;
    }

    /// Message `seq` is due at `due_ms`: it stands here until then.
    pub fn schedule(&mut self, seq: u64, due_ms: u64) {
        self.extras.get_or_insert_default().due.insert((due_ms, seq));
    }

    /// Message `seq` came in with this key at `now_ms`. The queue's keys are counted by `meter`.
    pub fn note_key(&mut self, seq: u64, key: DedupKey, rule: DedupRule, now_ms: u64, meter: &KeyMeter) {
        let keys = &mut self.extras.get_or_insert_default().keys;
        keys.note(seq, key, rule, now_ms);
        keys.count_in(meter);
    }

    /// Has the keys counted that it came back with.
    pub fn count_keys(&mut self, meter: &KeyMeter) {
        if let Some(extras) = self.extras.as_mut().filter(|extras| !extras.keys.is_empty()) {
            extras.keys.count_in(meter);
        }
    }

    /// What is known of the last message with this key.
    pub fn seen(&self, key: DedupKey) -> Option<Seen> {
        self.extras.as_ref().and_then(|extras| extras.keys.find(key))
    }

    /// Whether a message with this key may come in: where the keys of this node have no room left,
    /// those of this queue may not become more.
    pub fn has_room_for_key(&self, key: DedupKey, now_ms: u64, meter: &KeyMeter) -> bool {
        !meter.is_full() || self.extras.as_ref().is_some_and(|extras| extras.keys.has_room_for(key, now_ms))
    }

    /// Takes a live message out of its turn, or says another reason why it is.
    pub fn set_aside(&mut self, seq: u64, aside: Aside) {
        if self.runs.is_live(seq) {
            self.extras.get_or_insert_default().aside.insert(seq, aside);
        }
    }

    /// The first live number at or after `from` that is not out of turn, with its run.
    #[inline]
    pub fn next_in_turn(&self, from: u64) -> Option<(u64, &Run<P>)> {
        let mut next = self.runs.next_live(from);
        if let Some(extras) = self.extras.as_deref().filter(|e| !e.aside.is_empty()) {
            while let Some((seq, _)) = next.filter(|n| extras.aside.contains_key(&n.0)) {
                next = self.runs.next_live(seq + 1);
            }
        }
        next
    }

    /// The first live message at or after `from`, and one past the last behind it that is known to be in turn too. `None`
    /// where some messages are not, which are to be looked for one by one.
    #[inline]
    pub fn stretch_in_turn(&self, from: u64) -> Option<(u64, u64)> {
        let are_all = self.extras.as_deref().is_none_or(|extras| extras.aside.is_empty());
        if are_all { self.runs.live_stretch(from) } else { None }
    }

    /// How many live messages are in turn.
    pub fn in_turn(&self) -> u64 {
        self.runs.live() - self.extras.as_ref().map_or(0, |e| e.aside.len() as u64)
    }

    /// Ends `count` messages from `first` for good: acked, dropped, purged. What is settled already
    /// is passed over, so the same outcome may be logged twice. Returns how many were live.
    pub fn settle(&mut self, first: u64, count: u64, gone: &mut impl FnMut(&Run<P>)) -> u64 {
        self.counts.remove(first, first + count);
        if let Some(levels) = &mut self.levels {
            levels.settle(first, count, |seq| self.runs.is_live(seq));
            if levels.is_empty() {
                self.levels = None;
            }
        }
        let settled = self.runs.settle(first, count, gone);
        if self.extras.is_some() {
            self.settle_extras(first, count);
        }
        settled
    }

    fn settle_extras(&mut self, first: u64, count: u64) {
        let extras = self.extras.as_mut().expect("asked before");
        if !extras.aside.is_empty() {
            let settled: Vec<u64> = extras.aside.range(first..first + count).map(|(s, _)| *s).collect();
            settled.iter().for_each(|seq| _ = extras.aside.remove(seq));
        }
        while extras.due.first().is_some_and(|(_, seq)| !self.runs.is_live(*seq)) {
            extras.due.pop_first();
        }
        if !extras.keys.is_empty() {
            extras.keys.settle(first, count);
        }
        // A queue that is empty is plain again, but for keys that it still knows.
        if self.runs.is_empty() {
            let keys = std::mem::take(&mut extras.keys);
            self.extras = (!keys.is_empty()).then(|| Box::new(Extras { keys, ..Extras::default() }));
        }
    }

    /// Notes that `count` messages from `first` came back; settled ones are passed over.
    pub fn requeue(&mut self, first: u64, count: u64, counts_against_them: bool) {
        let past = first + count;
        for run in self.runs.iter_from(first).take_while(|run| run.first < past) {
            for (live, count) in run.live_ranges_within(first, past) {
                self.counts.raise(live, live + count, counts_against_them, None);
            }
        }
        if let Some(extras) = self.extras.as_mut().filter(|extras| !extras.aside.is_empty()) {
            let back: Vec<u64> = extras.aside.range(first..past).map(|(seq, _)| *seq).collect();
            back.iter().for_each(|seq| _ = extras.aside.remove(seq));
        }
    }

    /// Raises the dispatch watermark; it never falls.
    pub fn raise_dispatched_below(&mut self, below: u64) {
        self.dispatched_below = self.dispatched_below.max(below);
    }

    /// Lowers the dispatch watermark: messages from `below` on were never sent, and will not be
    /// before it is raised again.
    pub fn lower_dispatched_below(&mut self, below: u64) {
        self.dispatched_below = self.dispatched_below.min(below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_counted_where_it_lives_and_nowhere_else() {
        let mut state: QueueState<()> = QueueState::default();
        [4, 4, 4].into_iter().for_each(|count| _ = state.publish(count, ()));
        state.settle(1, 2, &mut |_| {});
        state.settle(6, 2, &mut |_| {});
        state.requeue(2, 9, true);
        state.requeue(8, 1, false);
        state.requeue(7, 1, true);
        let counted: Vec<_> = state.counts().iter().map(|(seq, c)| (seq, c.acquired, c.delivery)).collect();
        assert_eq!(counted, [(3, 1, 1), (4, 1, 1), (5, 1, 1), (8, 2, 1), (9, 1, 1), (10, 1, 1)]);
    }

    #[test]
    fn what_ends_out_of_its_turn_is_forgotten_and_what_lives_is_not() {
        let mut state: QueueState<()> = QueueState::default();
        state.publish(4, ());
        state.set_aside(2, Aside::Until(5));
        state.set_aside(3, Aside::Dead(1));
        let aside = |state: &QueueState<()>| state.extras().map_or(Vec::new(), |e| e.aside.keys().copied().collect());
        assert_eq!(aside(&state), [2, 3]);
        state.settle(1, 2, &mut |_| {});
        assert_eq!(aside(&state), [3]);
        state.set_aside(2, Aside::Until(5));
        assert_eq!(aside(&state), [3], "it has ended");
        state.settle(3, 2, &mut |_| {});
        assert_eq!(state.extras(), None, "as in a plain queue");
    }
}
