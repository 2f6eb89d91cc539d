//! Settles of this shard's channels that may be lost with their leader, kept to be said again to the
//! next one.
//!
//! A settle has no answer. So a leader is asked now and then to say when its log has all that came
//! before ([`Command::Mark`]), one question a partition at a time. Invariants: a settle is kept from
//! the moment in which it leaves until a mark behind it is answered, or so much is kept that the
//! oldest goes; then its message may come again, flagged. Only what ends a message is kept: what was
//! given back comes back with any leader.

use broker::{ConsumerKey, NodeNumber, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::{Command, Disposition};
use std::collections::VecDeque;

/// Settles kept of one partition, 64 bytes each.
const KEPT_MAX: usize = 1 << 15;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    partitions: HashMap<PartitionId, OfPartition, FixedState>,
    /// Partitions that are to be asked.
    due: Vec<PartitionId>,
    last: u64,
}

/// Messages that a consumer is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    queue: QueueId,
    holder: ConsumerKey,
    first: u64,
    count: u64,
    outcome: Disposition,
}

#[derive(Debug)]
struct OfPartition {
    to: NodeNumber,
    ended: VecDeque<Ended>,
    /// The question under way, and how many of `ended` it stands behind.
    mark: Option<(u64, usize)>,
}

impl Unsettled {
    /// A command leaves for the node that leads its partition.
    #[inline]
    pub(crate) fn note(&mut self, partition: PartitionId, to: NodeNumber, command: &Command) {
        let (Command::Settle { queue, holder, first, count, outcome }
        | Command::SettleAgain { queue, holder, first, count, outcome }) = command
        else {
            return;
        };
        if !matches!(outcome, Disposition::Ack | Disposition::Discard) {
            return;
        }
        let new = || OfPartition { to, ended: VecDeque::new(), mark: None };
        let of = self.partitions.entry(partition).or_insert_with(new);
        if of.to != to {
            // What the one before has not said is in its log, or lost with it.
            (of.to, of.mark) = (to, None);
        }
        if of.mark.is_none() && !self.due.contains(&partition) {
            self.due.push(partition);
        }
        let behind = of.mark.map_or(0, |(_, behind)| behind);
        if of.ended.len() > behind
            && let Some(last) = of.ended.back_mut()
            && (last.queue, last.holder, last.outcome, last.first + last.count) == (*queue, *holder, *outcome, *first)
        {
            last.count += count;
            return;
        }
        if of.ended.len() == KEPT_MAX {
            of.ended.pop_front();
            if let Some((_, behind)) = &mut of.mark {
                *behind = behind.saturating_sub(1);
            }
        }
        of.ended.push_back(Ended { queue: *queue, holder: *holder, first: *first, count: *count, outcome: *outcome });
    }

    /// The node that was told what may be lost.
    #[inline]
    pub(crate) fn is_said_to(&self, partition: PartitionId) -> Option<NodeNumber> {
        if self.partitions.is_empty() {
            return None;
        }
        self.partitions.get(&partition).map(|of| of.to)
    }

    /// The questions that are due: whom, about which partition, under which number.
    pub(crate) fn take_due(&mut self) -> Vec<(NodeNumber, PartitionId, u64)> {
        if self.due.is_empty() {
            return Vec::new();
        }
        let mut asked = Vec::new();
        for partition in std::mem::take(&mut self.due) {
            let Some(of) = self.partitions.get_mut(&partition).filter(|of| of.mark.is_none()) else { continue };
            if !of.ended.is_empty() {
                self.last += 1;
                of.mark = Some((self.last, of.ended.len()));
                asked.push((of.to, partition, self.last));
            }
        }
        asked
    }

    /// A node answered: with `is_kept` its log has what stands before the question. True if it has
    /// not, and the next leader is to hear it again.
    pub(crate) fn marked(&mut self, partition: PartitionId, from: NodeNumber, number: u64, is_kept: bool) -> bool {
        let Some(of) = self.partitions.get_mut(&partition).filter(|of| of.to == from) else { return false };
        let Some((_, behind)) = of.mark.filter(|(asked, _)| *asked == number) else { return false };
        of.mark = None;
        if !is_kept {
            return true;
        }
        of.ended.drain(..behind);
        match of.ended.is_empty() {
            true => _ = self.partitions.remove(&partition),
            false => self.due.push(partition),
        }
        false
    }

    /// The link to a node is gone: the partitions of which it may not have heard all.
    pub(crate) fn lose(&mut self, node: NodeNumber) -> Vec<PartitionId> {
        let mut lost = Vec::new();
        for (partition, of) in self.partitions.iter_mut().filter(|(_, of)| of.to == node) {
            of.mark = None;
            lost.push(*partition);
        }
        self.partitions.retain(|partition, of| of.to != node || !partition.is_in_memory());
        lost.retain(|partition| !partition.is_in_memory());
        lost.sort_unstable();
        lost
    }

    /// What a partition's next leader is to hear again, in order. Whoever takes it notes it anew.
    pub(crate) fn take(&mut self, partition: PartitionId) -> impl Iterator<Item = Command> + use<> {
        let ended = self.partitions.remove(&partition).map(|of| of.ended).unwrap_or_default();
        ended.into_iter().map(|Ended { queue, holder, first, count, outcome }| Command::SettleAgain {
            queue,
            holder,
            first,
            count,
            outcome,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::{ChannelKey, NodeLife};

    const P: PartitionId = PartitionId(3);
    const X: NodeNumber = NodeNumber(1);
    const Y: NodeNumber = NodeNumber(2);

    fn settle(first: u64, count: u64, outcome: Disposition) -> Command {
        let channel = ChannelKey::of(NodeLife { node: 1, start: 1 }, 7);
        Command::Settle { queue: QueueId(1), holder: ConsumerKey { channel, number: 1 }, first, count, outcome }
    }

    fn again(unsettled: &mut Unsettled) -> Vec<(u64, u64)> {
        let range = |command| match command {
            Command::SettleAgain { first, count, .. } => (first, count),
            other => panic!("{other:?}"),
        };
        unsettled.take(P).map(range).collect()
    }

    #[test]
    fn what_no_mark_stands_behind_is_said_again() {
        let mut unsettled = Unsettled::default();
        for (first, count) in [(1, 2), (3, 1), (9, 1)] {
            unsettled.note(P, X, &settle(first, count, Disposition::Ack));
        }
        unsettled.note(P, X, &settle(5, 1, Disposition::Nack));
        let asked = unsettled.take_due();
        assert_eq!(asked, [(X, P, 1)]);
        unsettled.note(P, X, &settle(10, 1, Disposition::Ack));
        assert!(unsettled.take_due().is_empty(), "one question at a time");
        assert!(!unsettled.marked(P, Y, 1, true) && !unsettled.marked(P, X, 1, true));
        assert_eq!(unsettled.take_due(), [(X, P, 2)]);
        unsettled.note(P, X, &settle(20, 1, Disposition::Discard));
        assert_eq!(unsettled.lose(Y), []);
        assert_eq!(unsettled.lose(X), [P]);
        assert_eq!(again(&mut unsettled), [(10, 1), (20, 1)]);
        assert!(again(&mut unsettled).is_empty());
    }

    #[test]
    fn a_leader_that_lost_its_office_says_so() {
        let mut unsettled = Unsettled::default();
        unsettled.note(P, X, &settle(1, 1, Disposition::Ack));
        assert_eq!(unsettled.take_due(), [(X, P, 1)]);
        assert!(unsettled.marked(P, X, 1, false), "the next one is to hear it");
        assert_eq!(again(&mut unsettled), [(1, 1)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut unsettled = Unsettled::default();
        for seq in 0..KEPT_MAX as u64 + 2 {
            unsettled.note(P, X, &settle(2 * seq, 1, Disposition::Ack));
        }
        let kept = again(&mut unsettled);
        assert_eq!((kept.len(), kept[0]), (KEPT_MAX, (4, 1)));
    }
}
