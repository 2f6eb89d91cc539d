//! What is ready by level, on a queue some of whose messages have a priority: a lane for each
//! level.
//!
//! Invariant: of a level, everything below its lane's cursor was handed out, has ended, or is among
//! the returned ones; a level without a lane has nothing ready. The highest level goes first,
//! always. What came back goes to its old place in its lane on a classic queue; on a quorum queue
//! it goes before everything else, in the order in which it came back.

use super::dispatch::Head;
use super::levels::Levels;
use super::ranges::SeqRanges;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug, Default)]
struct Lane {
    cursor: u64,
    fresh: u64,
    returned: BTreeSet<u64>,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.fresh == 0 && self.returned.is_empty()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lanes {
    default: u8,
    /// By level.
    lanes: BTreeMap<u8, Lane>,
    /// What came back, if it goes before everything else.
    first: Option<VecDeque<u64>>,
}

impl Lanes {
    /// A queue whose messages had all the default level until now.
    pub(super) fn new(default: u8, cursor: u64, fresh: u64, returned: BTreeSet<u64>, returned_first: bool) -> Self {
        let mut lanes = BTreeMap::new();
        let (first, returned) = match returned_first {
            true => (Some(returned.into_iter().collect()), BTreeSet::new()),
            false => (None, returned),
        };
        let lane = Lane { cursor, fresh, returned };
        if !lane.is_empty() {
            lanes.insert(default, lane);
        }
        Lanes { default, lanes, first }
    }

    /// The level of a message; without `levels` all have the default one.
    fn level_of(&self, levels: Option<&Levels>, seq: u64) -> u8 {
        levels.map_or(self.default, |levels| levels.of(seq))
    }

    /// `count` messages from `first` on are ready for the first time; they are above all that were
    /// before.
    pub(super) fn add(&mut self, first: u64, count: u64, levels: Option<&Levels>) {
        (first..first + count).for_each(|seq| self.add_one(seq, self.level_of(levels, seq)));
    }

    /// As [`add`](Self::add), and all have the default level.
    pub(super) fn add_plain(&mut self, first: u64, count: u64) {
        if count > 0 {
            self.add_one(first, self.default);
            self.lanes.get_mut(&self.default).expect("added above").fresh += count - 1;
        }
    }

    fn add_one(&mut self, seq: u64, level: u8) {
        let lane = self.lanes.entry(level).or_insert_with(|| Lane { cursor: seq, ..Lane::default() });
        if lane.fresh == 0 {
            lane.cursor = seq;
        }
        lane.fresh += 1;
    }

    /// A message came back.
    pub(super) fn put_back(&mut self, seq: u64, levels: Option<&Levels>) {
        let level = self.level_of(levels, seq);
        match &mut self.first {
            Some(first) => first.push_back(seq),
            None => _ = self.lanes.entry(level).or_default().returned.insert(seq),
        }
    }

    /// What goes out next, below `end`. `next_live` as in [`super::Dispatch::head`].
    pub(super) fn head(
        &self,
        levels: Option<&Levels>,
        end: u64,
        next_live: impl Fn(u64) -> Option<u64>,
    ) -> Option<Head> {
        if let Some(&seq) = self.first.as_ref().and_then(VecDeque::front) {
            return Some(Head { seq, returned: true });
        }
        self.lanes.iter().rev().find_map(|(level, lane)| {
            if let Some(&seq) = lane.returned.first() {
                return Some(Head { seq, returned: true });
            }
            let fresh = self.next_of(levels, *level, lane.fresh, lane.cursor, &next_live);
            fresh.filter(|seq| *seq < end).map(|seq| Head { seq, returned: false })
        })
    }

    /// `head` is not ready any more.
    pub(super) fn take(&mut self, head: Head, levels: Option<&Levels>) {
        if head.returned {
            self.drop_returned(head.seq, levels);
            return;
        }
        let level = self.level_of(levels, head.seq);
        let lane = self.lanes.get_mut(&level).expect("a fresh message is in its lane");
        lane.cursor = head.seq + 1;
        lane.fresh -= 1;
        if lane.is_empty() {
            self.lanes.remove(&level);
        }
    }

    /// Whether a live message is ready.
    pub(super) fn is_ready(&self, seq: u64, levels: Option<&Levels>) -> bool {
        let lane = self.lanes.get(&self.level_of(levels, seq));
        let in_lane = lane.is_some_and(|lane| (lane.fresh > 0 && seq >= lane.cursor) || lane.returned.contains(&seq));
        in_lane || self.first.as_ref().is_some_and(|first| first.contains(&seq))
    }

    /// A message that came back is not ready any more. False if it was not.
    pub(super) fn drop_returned(&mut self, seq: u64, levels: Option<&Levels>) -> bool {
        if let Some(first) = &mut self.first
            && let Some(at) = first.iter().position(|s| *s == seq)
        {
            first.remove(at);
            return true;
        }
        let level = self.level_of(levels, seq);
        let Some(lane) = self.lanes.get_mut(&level) else { return false };
        let was_there = lane.returned.remove(&seq);
        if lane.is_empty() {
            self.lanes.remove(&level);
        }
        was_there
    }

    /// Takes a live message that is ready, wherever it stands in its lane; what stands before it there stays ready.
    /// False if it is not ready.
    pub(super) fn take_ready(
        &mut self,
        seq: u64,
        levels: Option<&Levels>,
        next_live: impl Fn(u64) -> Option<u64>,
    ) -> bool {
        if self.drop_returned(seq, levels) {
            return true;
        }
        let level = self.level_of(levels, seq);
        let Some(lane) = self.lanes.get(&level).filter(|lane| lane.fresh > 0 && seq >= lane.cursor) else {
            return false;
        };
        if next_live(seq) != Some(seq) {
            return false;
        }
        let (mut from, mut passed) = (lane.cursor, Vec::new());
        while let Some(before) = self.next_of(levels, level, lane.fresh, from, &next_live).filter(|s| *s < seq) {
            passed.push(before);
            from = before + 1;
        }
        let lane = self.lanes.get_mut(&level).expect("it was there above");
        lane.cursor = seq + 1;
        lane.fresh -= 1 + passed.len() as u64;
        lane.returned.extend(passed);
        if lane.is_empty() {
            self.lanes.remove(&level);
        }
        true
    }

    /// A message, returned or fresh, is not ready any more. False if it was not.
    pub(super) fn drop_ready(&mut self, seq: u64, levels: Option<&Levels>) -> bool {
        if self.drop_returned(seq, levels) {
            return true;
        }
        let level = self.level_of(levels, seq);
        let Some(lane) = self.lanes.get_mut(&level).filter(|lane| lane.fresh > 0 && seq >= lane.cursor) else {
            return false;
        };
        lane.fresh -= 1;
        if lane.is_empty() {
            self.lanes.remove(&level);
        }
        true
    }

    /// Everything that is ready below `end`, and nothing is any more.
    ///
    /// What came back is remembered one by one. The others are looked at in their order, whatever
    /// their levels: of a backlog of millions with mixed priorities come a few ranges, and no list.
    pub(super) fn purge(
        &mut self,
        levels: Option<&Levels>,
        end: u64,
        next_live: impl Fn(u64) -> Option<u64>,
    ) -> SeqRanges {
        let mut returned: Vec<u64> = self.first.iter_mut().flat_map(|first| first.drain(..)).collect();
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.values_mut().for_each(|lane| returned.extend(std::mem::take(&mut lane.returned)));
        returned.sort_unstable();
        let mut returned = returned.into_iter().peekable();
        lanes.retain(|_, lane| lane.fresh > 0);
        let mut from = lanes.values().map(|lane| lane.cursor).min().unwrap_or(end);
        let mut all = SeqRanges::new();
        while let Some(seq) = next_live(from).filter(|seq| *seq < end) {
            if lanes.get(&self.level_of(levels, seq)).is_some_and(|lane| seq >= lane.cursor) {
                while let Some(before) = returned.next_if(|before| *before < seq) {
                    all.insert(before);
                }
                all.insert(seq);
            }
            from = seq + 1;
        }
        returned.for_each(|seq| all.insert(seq));
        all
    }

    /// All messages have the default level again: cursor, and what came back. Whatever else was
    /// counted has ended.
    pub(super) fn into_plain(mut self, end: u64) -> (u64, u64, BTreeSet<u64>) {
        let lane = self.lanes.remove(&self.default).unwrap_or(Lane { cursor: end, ..Lane::default() });
        let cursor = if lane.fresh == 0 { end } else { lane.cursor };
        let returned = lane.returned.into_iter().chain(self.first.into_iter().flatten()).collect();
        (cursor, lane.fresh, returned)
    }

    /// The first live number of a level at or after `from`, in a lane with so many fresh messages.
    fn next_of(
        &self,
        levels: Option<&Levels>,
        level: u8,
        fresh: u64,
        mut from: u64,
        next_live: &impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        if fresh == 0 {
            return None;
        }
        loop {
            let seq = match levels {
                Some(levels) => levels.next_of(level, from)?,
                None if level == self.default => from,
                None => return None,
            };
            let live = next_live(seq)?;
            if live == seq || self.level_of(levels, live) == level {
                return Some(live);
            }
            from = live;
        }
    }
}
