//! Which nodes can be reached, and how much of the topology's log each has carried out.
//!
//! Invariant: an answer about the topology goes out once every node that can be reached has carried
//! out what it is about, so that its asker finds it over any of them; or [`SLOW_MS`] after this node has. A node that
//! takes longer routes nothing meanwhile, see [`crate::lease`]. A node that cannot be reached for [`AWAY_MS`] is away.

use crate::Millis;
use broker::NodeNumber;
use consensus::LogIndex;
use std::collections::VecDeque;

/// No answer waits longer than that for other nodes.
pub(crate) const SLOW_MS: Millis = 500;
/// A link that breaks and is up again so soon has changed nothing for anybody.
pub(crate) const AWAY_MS: Millis = 1_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Few: a cluster has some nodes.
    linked: Vec<Linked>,
    /// Nodes whose link went, and when.
    lost: Vec<(NodeNumber, Millis)>,
    /// When the first look was taken: nodes without any link are missed since then.
    began: Option<Millis>,
    /// Up to where this node had carried out the log at a time, for the last [`SLOW_MS`].
    recent: VecDeque<(LogIndex, Millis)>,
    /// Up to where it had before that: nobody waits for it any more.
    long_ago: LogIndex,
}

#[derive(Debug)]
struct Linked {
    node: NodeNumber,
    applied: LogIndex,
}

impl Heard {
    /// A link is up. What the other node has carried out it says by itself.
    pub(crate) fn up(&mut self, node: NodeNumber) {
        self.lost.retain(|(lost, _)| *lost != node);
        self.linked.retain(|linked| linked.node != node);
        self.linked.push(Linked { node, applied: LogIndex(0) });
    }

    /// A link is gone.
    pub(crate) fn down(&mut self, node: NodeNumber, now: Millis) {
        self.linked.retain(|linked| linked.node != node);
        self.lost.retain(|(lost, _)| *lost != node);
        self.lost.push((node, now));
    }

    /// Who can be reached.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeNumber> {
        self.linked.iter().map(|linked| linked.node)
    }

    /// A node says how much it has carried out.
    pub(crate) fn said(&mut self, node: NodeNumber, applied: LogIndex) {
        if let Some(linked) = self.linked.iter_mut().find(|linked| linked.node == node) {
            linked.applied = linked.applied.max(applied);
        }
    }

    /// Up to where all that are waited for have carried out the log, of which `own` was here.
    pub(crate) fn everywhere(&mut self, own: LogIndex, now: Millis) -> LogIndex {
        match self.recent.back_mut() {
            Some((last, _)) if *last >= own => {}
            Some((last, at)) if *at == now => *last = own,
            _ if own > self.long_ago => self.recent.push_back((own, now)),
            _ => {}
        }
        while let Some((index, at)) = self.recent.front().copied()
            && at + SLOW_MS <= now
        {
            self.long_ago = index;
            self.recent.pop_front();
        }
        self.linked.iter().map(|linked| linked.applied).fold(own, LogIndex::min).max(self.long_ago.min(own))
    }

    /// When something is not waited for any more that is not carried out everywhere.
    pub(crate) fn next(&self) -> Option<Millis> {
        let behind = self.linked.iter().map(|linked| linked.applied).min()?;
        self.recent.iter().find(|(index, _)| *index > behind).map(|(_, at)| at + SLOW_MS)
    }

    /// Whether a node is away.
    pub(crate) fn is_away(&mut self, node: NodeNumber, now: Millis) -> bool {
        let began = *self.began.get_or_insert(now);
        let lost = self.lost.iter().find(|(lost, _)| *lost == node).map_or(began, |(_, at)| *at);
        self.nodes().all(|linked| linked != node) && lost + AWAY_MS <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeNumber = NodeNumber(1);
    const B: NodeNumber = NodeNumber(2);

    #[test]
    fn an_answer_waits_for_all_that_can_be_reached_and_for_no_one_slow() {
        let mut heard = Heard::default();
        assert_eq!(heard.everywhere(LogIndex(7), 0), LogIndex(7), "nobody else is there");
        heard.up(A);
        heard.up(B);
        heard.said(A, LogIndex(7));
        heard.said(B, LogIndex(5));
        heard.said(B, LogIndex(4));
        assert_eq!((heard.everywhere(LogIndex(7), 10), heard.next()), (LogIndex(5), Some(SLOW_MS)));
        heard.said(B, LogIndex(6));
        assert_eq!(heard.everywhere(LogIndex(7), SLOW_MS - 1), LogIndex(6));
        assert_eq!(heard.everywhere(LogIndex(7), SLOW_MS), LogIndex(7), "that took too long");
        assert_eq!(
            (heard.everywhere(LogIndex(8), 11 + SLOW_MS), heard.next()),
            (LogIndex(7), Some(11 + 2 * SLOW_MS)),
            "each waits as long, also where somebody is late for good"
        );
        heard.said(B, LogIndex(8));
        heard.down(A, 600);
        assert_eq!((heard.everywhere(LogIndex(8), 600), heard.next()), (LogIndex(8), None));
        assert_eq!(heard.everywhere(LogIndex(9), 601), LogIndex(8), "it has caught up, and is waited for again");
    }

    #[test]
    fn a_node_is_away_after_a_while_without_a_link() {
        let mut heard = Heard::default();
        assert!(!heard.is_away(A, 50));
        assert!(heard.is_away(A, 50 + AWAY_MS), "it was never there");
        heard.up(A);
        assert!(!heard.is_away(A, 60 + AWAY_MS));
        heard.down(A, 5_000);
        assert!(!heard.is_away(A, 4_999 + AWAY_MS));
        assert!(heard.is_away(A, 5_000 + AWAY_MS));
    }
}
