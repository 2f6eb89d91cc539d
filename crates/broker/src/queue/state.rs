//! What every member of a partition knows of one queue: the replicated part, changed by log entries alone.
//!
//! Invariants: sequence numbers start at 1, grow by one a message and are never given out twice; a settled number never
//! becomes live again; counts are kept only for live numbers. Absent on purpose: who holds what. Deliveries are not
//! logged; the leader's [`super::Dispatch`] knows them, and the watermark here bounds what it may have sent.

use super::levels::{LevelRule, Levels, Stretch};
use super::runs::{Run, Runs};
use std::collections::BTreeMap;

/// How often a message came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it was handed to a consumer and came back, for whatever reason (`x-acquired-count`).
    pub acquired: u32,
    /// How often it came back in a way that counts against it: reject, a lost channel, not nack (`x-delivery-count`).
    pub delivery: u32,
}

/// The replicated state of one queue. `P` is where a run's bytes lie on this member.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueState<P> {
    next_seq: u64,
    runs: Runs<P>,
    counts: BTreeMap<u64, Counts>,
    dispatched_below: u64,
    /// Absent while all live messages have the default level.
    levels: Option<Box<Levels>>,
}

impl<P> Default for QueueState<P> {
    fn default() -> Self {
        QueueState { next_seq: 1, runs: Runs::default(), counts: BTreeMap::new(), dispatched_below: 1, levels: None }
    }
}

impl<P> QueueState<P> {
    /// A queue as a checkpoint or a snapshot has it.
    pub fn restore(next_seq: u64, dispatched_below: u64, runs: Vec<Run<P>>, counts: BTreeMap<u64, Counts>) -> Self {
        let mut state = QueueState { next_seq, runs: Runs::default(), counts, dispatched_below, levels: None };
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

    /// Notes the priorities of the messages from `first` on, which were published last. Those that make no difference
    /// leave nothing behind.
    pub fn note_priorities(&mut self, first: u64, rule: LevelRule, priorities: impl Iterator<Item = Option<u8>>) {
        let levels: Vec<u8> = priorities.map(|priority| rule.level(priority)).collect();
        let default = rule.default_level();
        if rule != LevelRule::None && levels.iter().any(|level| *level != default) {
            self.levels.get_or_insert_with(|| Box::new(Levels::new(default))).note(first, &levels);
        }
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
    pub fn counts(&self) -> &BTreeMap<u64, Counts> {
        &self.counts
    }

    /// How often `seq` came back.
    pub fn counts_of(&self, seq: u64) -> Counts {
        if self.counts.is_empty() { Counts::default() } else { self.counts.get(&seq).copied().unwrap_or_default() }
    }

    /// Takes in a batch whose bytes lie at `place`; returns the number of its first message.
    pub fn publish(&mut self, count: u32, place: P) -> u64 {
        let first = self.next_seq;
        self.runs.push(Run::new(first, count, place));
        self.next_seq += u64::from(count);
        first
    }

    /// Ends `count` messages from `first` for good: acked, dropped, purged. What is settled already is passed over, so
    /// the same outcome may be logged twice. Returns how many were live.
    pub fn settle(&mut self, first: u64, count: u64, gone: &mut impl FnMut(&Run<P>)) -> u64 {
        if !self.counts.is_empty() {
            let settled: Vec<u64> = self.counts.range(first..first + count).map(|(s, _)| *s).collect();
            for seq in settled {
                self.counts.remove(&seq);
            }
        }
        if let Some(levels) = &mut self.levels {
            levels.settle(first, count, |seq| self.runs.is_live(seq));
            if levels.is_empty() {
                self.levels = None;
            }
        }
        self.runs.settle(first, count, gone)
    }

    /// Notes that a message came back; a settled one is passed over.
    pub fn requeue(&mut self, seq: u64, counts_against_it: bool) {
        if self.runs.is_live(seq) {
            let counts = self.counts.entry(seq).or_default();
            counts.acquired += 1;
            counts.delivery += u32::from(counts_against_it);
        }
    }

    /// Raises the dispatch watermark; it never falls.
    pub fn raise_dispatched_below(&mut self, below: u64) {
        self.dispatched_below = self.dispatched_below.max(below);
    }
}
