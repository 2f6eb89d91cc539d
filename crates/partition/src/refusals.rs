//! Which publishes of a channel the queues of a partition refused.
//!
//! The log knows the last number that it took of each channel, and takes whatever has that number or
//! a lower one for a repeat: it is confirmed, as it is there. A number that a full queue refused is
//! not there. Without these ranges it would be confirmed all the same if it came again, which it
//! does if its answer was lost with a leader or a link.
//!
//! Invariants: ranges ascend and do not touch. A range may cover numbers that the channel sent to
//! other partitions: nobody asks this one about them. At most [`RANGES_MAX`] are kept, the same ones
//! on every member; below the oldest that was dropped nothing is known, and what comes again there
//! is refused: whoever sent it hears that nobody promises it.

use crate::checkpoint::{CheckpointDamaged, Cursor, put32, put64};
use crate::leader::{Leader, Refused};
use crate::machine::Queues;
use broker::ChannelKey;
use std::collections::VecDeque;

/// Ranges of one channel, 16 bytes each. Another one begins where a queue that was full takes
/// something and is full again.
pub(crate) const RANGES_MAX: usize = 512;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Refusals {
    /// What was refused below is forgotten.
    known_from: u64,
    /// First and last number of each.
    ranges: VecDeque<(u64, u64)>,
}

impl Refusals {
    /// A queue refused what came under the numbers from `first` to `last`, which are above all
    /// before, or the last of them.
    pub(crate) fn note(&mut self, first: u64, last: u64) {
        match self.ranges.back_mut() {
            Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
            _ => self.ranges.push_back((first, last)),
        }
        if self.ranges.len() > RANGES_MAX
            && let Some((_, last)) = self.ranges.pop_front()
        {
            self.known_from = last + 1;
        }
    }

    /// Whether what came under this number, which is not above the last of its channel, is not to be
    /// taken for what is there.
    pub(crate) fn has(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|(_, last)| *last < number);
        number < self.known_from || self.ranges.get(at).is_some_and(|(first, _)| *first <= number)
    }
}

/// What a publish is by its number.
pub(crate) enum Numbered {
    /// The channel's first under this number; the last one before had that number.
    New { last: u64 },
    /// The log has it already, or is about to.
    Repeat,
    /// It came before, and a queue refused it.
    Refused,
}

/// What a publish is by its number: a channel numbers its publishes upwards.
pub(crate) fn numbered(leader: &mut Leader, queues: &Queues, channel: ChannelKey, seq: u64) -> Numbered {
    if leader.last_publisher.0 != channel {
        let (before, last) = leader.last_publisher;
        if before != ChannelKey::NOBODY {
            leader.publishers.insert(before, last);
        }
        let last = leader.publishers.get(&channel).copied().unwrap_or_else(|| queues.last_publish_seq(channel));
        leader.last_publisher = (channel, last);
    }
    let last = leader.last_publisher.1;
    if seq <= last {
        let refused = leader.refused.get(&channel).map(|refused| &refused.all).or(queues.refusals.get(&channel));
        return if refused.is_some_and(|all| all.has(seq)) { Numbered::Refused } else { Numbered::Repeat };
    }
    leader.last_publisher.1 = seq;
    Numbered::New { last }
}

/// Notes that a queue refused a publish that is not in the log, behind the one with the number
/// `last`. The log hears of it with the next one that is: until then it is new if it comes again.
pub(crate) fn note_refused(leader: &mut Leader, queues: &Queues, channel: ChannelKey, (last, seq): (u64, u64)) {
    let refused = leader.refused.entry(channel).or_insert_with(|| Refused::of(queues, channel));
    let (first, _) = *refused.unlogged.get_or_insert((last + 1, seq));
    refused.unlogged = Some((first, seq));
    refused.all.note(first, seq);
}

/// Has the log hear of what was refused, before anything later of the channel is in it.
pub(crate) fn log_refused(leader: &mut Leader, channel: ChannelKey) {
    if let Some(range) = leader.refused.get_mut(&channel).and_then(|refused| refused.unlogged.take()) {
        leader.builder.refused(channel, range);
    }
}

/// All of a state, in the order of their channels.
pub(crate) fn sorted_refusals(queues: &Queues) -> Vec<(ChannelKey, &Refusals)> {
    let mut all: Vec<_> = queues.refusals.iter().map(|(channel, refusals)| (*channel, refusals)).collect();
    all.sort_unstable_by_key(|(channel, _)| *channel);
    all
}

/// Appends all of a state: u32 * (life u64, channel u64, known from u64, u32 * (first u64, last u64)).
pub(crate) fn put_refusals(queues: &Queues, out: &mut Vec<u8>) {
    put32(out, queues.refusals.len() as u32);
    for (channel, refusals) in sorted_refusals(queues) {
        let (life, number) = channel.words();
        [life, number, refusals.known_from].into_iter().for_each(|word| put64(out, word));
        put32(out, refusals.ranges.len() as u32);
        refusals.ranges.iter().flat_map(|(first, last)| [*first, *last]).for_each(|word| put64(out, word));
    }
}

/// Reads what [`put_refusals`] wrote.
pub(crate) fn read_refusals(cursor: &mut Cursor<'_>) -> Result<Vec<(ChannelKey, Refusals)>, CheckpointDamaged> {
    let mut all = Vec::new();
    for _ in 0..cursor.u32()? {
        let channel = ChannelKey::from_words(cursor.u64()?, cursor.u64()?);
        let mut refusals = Refusals { known_from: cursor.u64()?, ranges: VecDeque::new() };
        let mut past = 0;
        for _ in 0..cursor.u32()? {
            let (first, last) = (cursor.u64()?, cursor.u64()?);
            if first < past || last < first || refusals.ranges.len() == RANGES_MAX {
                return Err(cursor.damaged("refusals out of order"));
            }
            past = last.saturating_add(1);
            refusals.ranges.push_back((first, last));
        }
        all.push((channel, refusals));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_known_by_its_number_and_the_oldest_is_forgotten_as_refused() {
        let mut refusals = Refusals::default();
        assert!(!refusals.has(1));
        refusals.note(3, 5);
        refusals.note(6, 7);
        refusals.note(10, 10);
        let refused: Vec<u64> = (1..12).filter(|number| refusals.has(*number)).collect();
        assert_eq!(refused, [3, 4, 5, 6, 7, 10]);
        assert_eq!(refusals.ranges.len(), 2);
        for number in 0..RANGES_MAX as u64 {
            refusals.note(20 + 2 * number, 20 + 2 * number);
        }
        assert_eq!(refusals.ranges.len(), RANGES_MAX);
        assert!(refusals.has(1) && refusals.has(9), "below what is known everything counts as refused");
        assert!(!refusals.has(11) && refusals.has(20) && !refusals.has(21));
    }
}
