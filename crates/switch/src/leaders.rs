//! Which node leads each partition, as far as this node has heard, and in which term.
//!
//! Invariants: who leads is a hint and never a promise. Whoever is asked in vain says so, and is asked
//! again or not. A term only rises, and is a promise: whoever led in an earlier one leads no more, so
//! what it gave out may be somebody else's by now. A node that is alone keeps no such table and pays
//! nothing for it.

use crate::publishes::Office;
use broker::{NodeNumber, PartitionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// See the module. Clones share one table: every thread of the node reads and writes it.
#[derive(Clone, Debug)]
pub struct Leaders {
    own: NodeNumber,
    /// By partition number: in which term, and below it the node; 0 where nobody is known to lead.
    /// Empty for a node that is alone.
    by_partition: Arc<[AtomicU64]>,
    /// By partition number, the highest term that this node has heard of.
    terms: Arc<[AtomicU64]>,
    /// By partition number, whether a member of this node hears who leads: nobody else is believed then.
    heard: Arc<[AtomicBool]>,
    /// By partition number, who said last to all nodes that it leads, as in `by_partition`: for a member that
    /// leaves its group.
    announced: Arc<[AtomicU64]>,
    /// Grows whenever somebody else leads something.
    changes: Arc<AtomicU64>,
    /// Until then leaders move to an even spread at once, in microseconds since the node started.
    balances_until_us: Arc<AtomicU64>,
    /// Whether this node has carried out what was decided about the cluster before it started.
    knows_members: Arc<AtomicBool>,
    /// Nodes that are to lead nothing, as somebody looks after them; 0 is nobody.
    resting: Arc<[AtomicU32; RESTING_MAX]>,
}

/// So many nodes may rest at once: more than a cluster has.
const RESTING_MAX: usize = 16;

/// The low bits of a term stand above the number of the node that leads in it: they tell terms apart
/// that a node may see in its life.
const TERM_SHIFT: u32 = 32;

fn node_of(found: u64) -> Option<NodeNumber> {
    Some(NodeNumber(found as u32)).filter(|node| node.0 != 0)
}

impl Leaders {
    /// For a node that leads whatever it has.
    pub fn alone(own: NodeNumber) -> Leaders {
        Leaders {
            own,
            by_partition: Arc::default(),
            terms: Arc::default(),
            heard: Arc::default(),
            announced: Arc::default(),
            changes: Arc::default(),
            balances_until_us: Arc::default(),
            knows_members: Arc::new(AtomicBool::new(true)),
            resting: Arc::default(),
        }
    }

    /// For a member of a cluster, over partitions up to this one.
    pub fn among_others(own: NodeNumber, last: PartitionId) -> Leaders {
        let by_partition = (0..=last.0).map(|_| AtomicU64::new(0)).collect();
        let terms = (0..=last.0).map(|_| AtomicU64::new(0)).collect();
        let heard = (0..=last.0).map(|_| AtomicBool::new(false)).collect();
        let announced = (0..=last.0).map(|_| AtomicU64::new(0)).collect();
        Leaders {
            own,
            by_partition,
            terms,
            heard,
            announced,
            changes: Arc::default(),
            balances_until_us: Arc::default(),
            knows_members: Arc::default(),
            resting: Arc::default(),
        }
    }

    /// A node is to lead nothing from now on, or may lead again; false if that was so before.
    pub fn rest(&self, node: NodeNumber, on: bool) -> bool {
        let (before, after) = if on { (0, node.0) } else { (node.0, 0) };
        if self.rests(node) == on {
            return false;
        }
        let change = |slot: &AtomicU32| slot.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
        self.resting.iter().any(|slot| change(slot).is_ok())
    }

    /// Whether a node is to lead nothing.
    pub fn rests(&self, node: NodeNumber) -> bool {
        self.resting.iter().any(|slot| slot.load(Ordering::Relaxed) == node.0)
    }

    /// Whether other nodes may lead something.
    #[inline]
    pub fn has_peers(&self) -> bool {
        !self.by_partition.is_empty()
    }

    /// Whether a partition has terms, in each of which another node may lead it.
    #[inline]
    pub(crate) fn is_led_in_terms(&self, partition: PartitionId) -> bool {
        (partition.0 as usize) < self.by_partition.len()
    }

    /// This node.
    pub fn own(&self) -> NodeNumber {
        self.own
    }

    /// Who leads a partition; `None` if nobody is known to.
    pub fn leader(&self, partition: PartitionId) -> Option<NodeNumber> {
        let Some(found) = self.by_partition.get(partition.0 as usize) else {
            // What is in a node's memory is led by nobody else.
            return if self.has_peers() { partition.home() } else { Some(self.own) };
        };
        node_of(found.load(Ordering::Relaxed))
    }

    /// Who leads a durable partition, and in which term, by its low bits.
    #[inline]
    pub(crate) fn in_term(&self, partition: PartitionId) -> Option<(NodeNumber, u32)> {
        let found = self.by_partition.get(partition.0 as usize)?.load(Ordering::Relaxed);
        Some((node_of(found)?, (found >> TERM_SHIFT) as u32))
    }

    /// The same.
    #[inline]
    pub(crate) fn office(&self, partition: PartitionId) -> Option<Office> {
        self.in_term(partition).map(|(leader, term)| Office { leader, term })
    }

    /// Grows whenever somebody else leads something, or in another term.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The other node that leads a partition.
    #[inline]
    pub(crate) fn away(&self, partition: PartitionId) -> Option<NodeNumber> {
        if !self.has_peers() {
            return None;
        }
        let leader = match self.by_partition.get(partition.0 as usize) {
            Some(found) => node_of(found.load(Ordering::Relaxed)),
            None => partition.home(),
        };
        leader.filter(|node| *node != self.own)
    }

    /// This node has carried out all that was decided about the cluster before it started: from now on it
    /// changes the members of what it leads. Before, its map is one of the past, in which who was
    /// forgotten is a member, and who took his place is not.
    pub fn know_members(&self) {
        self.knows_members.store(true, Ordering::Relaxed);
    }

    /// Whether it has.
    pub fn knows_members(&self) -> bool {
        self.knows_members.load(Ordering::Relaxed)
    }

    /// Somebody wants an even spread of leaders at once, and until then.
    pub fn balance_until(&self, us: u64) {
        self.balances_until_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Whether somebody wants that now.
    pub(crate) fn balances_at(&self, us: u64) -> bool {
        us < self.balances_until_us.load(Ordering::Relaxed)
    }

    /// A member says whom it follows, in which term.
    #[inline]
    pub fn note(&self, partition: PartitionId, leader: Option<NodeNumber>, term: u64) {
        if let Some(known) = self.by_partition.get(partition.0 as usize) {
            let now = leader.map_or(0, |node| term << TERM_SHIFT | u64::from(node.0));
            if known.load(Ordering::Relaxed) != now {
                known.store(now, Ordering::Relaxed);
                self.changes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether a member of this node hears who leads a partition.
    #[inline]
    pub(crate) fn is_heard(&self, partition: PartitionId) -> bool {
        self.heard.get(partition.0 as usize).is_some_and(|heard| heard.load(Ordering::Relaxed))
    }

    /// A member of this node hears it from now on.
    pub(crate) fn note_heard(&self, partition: PartitionId) {
        if let Some(heard) = self.heard.get(partition.0 as usize) {
            heard.store(true, Ordering::Relaxed);
        }
    }

    /// Another node says that it leads a partition in this term, or does not any more. A member of this
    /// node knows it better: it may have led itself, and still owe answers.
    pub(crate) fn hear(&self, partition: PartitionId, node: NodeNumber, term: u64, leads: bool) {
        if let Some(announced) = self.announced.get(partition.0 as usize) {
            let known = announced.load(Ordering::Relaxed);
            // Over a slow link an earlier leader may say so last.
            match leads {
                true if term >= known >> TERM_SHIFT => {
                    announced.store(term << TERM_SHIFT | u64::from(node.0), Ordering::Relaxed);
                }
                false if node_of(known) == Some(node) => announced.store(term << TERM_SHIFT, Ordering::Relaxed),
                _ => {}
            }
        }
        if self.is_heard(partition) || self.is_outdated(partition, term) {
            return;
        }
        self.note_term(partition, term);
        match leads {
            true => self.note(partition, Some(node), term),
            false => self.lose(partition, node),
        }
    }

    /// The member of this node has left its group, or hears nothing of it any more: others are believed. Also
    /// those of an earlier term than its own: it may have voted in one that nobody else ever came to, and the
    /// group went on without it.
    pub(crate) fn forget_heard(&self, partition: PartitionId) {
        let at = partition.0 as usize;
        if let (Some(heard), Some(term), Some(announced)) =
            (self.heard.get(at), self.terms.get(at), self.announced.get(at))
        {
            heard.store(false, Ordering::Relaxed);
            term.store(announced.load(Ordering::Relaxed) >> TERM_SHIFT, Ordering::Relaxed);
        }
    }

    /// What that member said last is passed on: who said that he leads does from now on.
    pub(crate) fn follow_announced(&self, partition: PartitionId) {
        let announced = self.announced.get(partition.0 as usize).map_or(0, |said| said.load(Ordering::Relaxed));
        let term = announced >> TERM_SHIFT;
        match node_of(announced).filter(|leader| *leader != self.own && !self.is_outdated(partition, term)) {
            Some(leader) => self.note(partition, Some(leader), term),
            None if self.leader(partition) == Some(self.own) => self.note(partition, None, 0),
            None => {}
        }
    }

    /// A node leads a partition no more, or that cannot be heard.
    pub(crate) fn lose(&self, partition: PartitionId, node: NodeNumber) {
        if let Some(announced) = self.announced.get(partition.0 as usize) {
            let known = announced.load(Ordering::Relaxed);
            if node_of(known) == Some(node) {
                announced.store(known >> TERM_SHIFT << TERM_SHIFT, Ordering::Relaxed);
            }
        }
        if self.leader(partition) == Some(node) {
            self.note(partition, None, 0);
        }
    }

    /// A member is in this term, or a leader of it has said something.
    #[inline]
    pub fn note_term(&self, partition: PartitionId, term: u64) {
        if let Some(known) = self.terms.get(partition.0 as usize)
            && known.load(Ordering::Relaxed) < term
        {
            known.fetch_max(term, Ordering::Relaxed);
        }
    }

    /// Whether a leader of this term leads no more, as this node knows.
    #[inline]
    pub fn is_outdated(&self, partition: PartitionId, term: u64) -> bool {
        self.terms.get(partition.0 as usize).is_some_and(|known| term < known.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_alone_leads_all_and_a_member_what_it_heard() {
        let alone = Leaders::alone(NodeNumber(1));
        assert_eq!((alone.leader(PartitionId(7)), alone.away(PartitionId(7))), (Some(NodeNumber(1)), None));
        let leaders = Leaders::among_others(NodeNumber(2), PartitionId(3));
        assert_eq!((leaders.leader(PartitionId(3)), leaders.away(PartitionId(3))), (None, None));
        leaders.clone().note(PartitionId(3), Some(NodeNumber(1)), 5);
        assert_eq!(leaders.away(PartitionId(3)), Some(NodeNumber(1)));
        assert_eq!((leaders.in_term(PartitionId(3)), leaders.changes()), (Some((NodeNumber(1), 5)), 1));
        leaders.note(PartitionId(3), Some(NodeNumber(1)), 5);
        leaders.note(PartitionId(3), Some(NodeNumber(2)), 6);
        assert_eq!((leaders.in_term(PartitionId(3)), leaders.changes()), (Some((NodeNumber(2), 6)), 2));
        assert_eq!((leaders.leader(PartitionId(3)), leaders.away(PartitionId(3))), (Some(NodeNumber(2)), None));
        assert_eq!(leaders.leader(PartitionId(4)), None);
        let (here, there) = (PartitionId::in_memory(NodeNumber(2), 0), PartitionId::in_memory(NodeNumber(1), 0));
        assert_eq!((leaders.leader(here), leaders.away(here)), (Some(NodeNumber(2)), None));
        assert_eq!(leaders.away(there), Some(NodeNumber(1)));
    }

    #[test]
    fn who_rests_is_known_to_all_threads_until_it_ends() {
        let leaders = Leaders::among_others(NodeNumber(2), PartitionId(3));
        assert!(!leaders.rests(NodeNumber(1)));
        assert!(leaders.clone().rest(NodeNumber(1), true) && !leaders.rest(NodeNumber(1), true));
        assert!(leaders.rest(NodeNumber(3), true));
        assert!(leaders.rests(NodeNumber(1)) && leaders.rests(NodeNumber(3)) && !leaders.rests(NodeNumber(2)));
        assert!(leaders.rest(NodeNumber(1), false) && !leaders.rest(NodeNumber(1), false));
        assert!(!leaders.rests(NodeNumber(1)) && leaders.rests(NodeNumber(3)));
    }

    #[test]
    fn a_member_changes_nothing_by_a_map_of_the_past() {
        assert!(Leaders::alone(NodeNumber(1)).knows_members());
        let leaders = Leaders::among_others(NodeNumber(2), PartitionId(3));
        assert!(!leaders.knows_members());
        leaders.clone().know_members();
        assert!(leaders.knows_members());
    }

    #[test]
    fn who_is_no_member_hears_of_leaders_from_themselves() {
        let leaders = Leaders::among_others(NodeNumber(5), PartitionId(3));
        let (p, one, two) = (PartitionId(3), NodeNumber(1), NodeNumber(2));
        leaders.hear(p, one, 5, true);
        assert_eq!((leaders.in_term(p), leaders.is_outdated(p, 4)), (Some((one, 5)), true));
        leaders.hear(p, two, 4, true);
        assert_eq!(leaders.leader(p), Some(one), "that was before");
        leaders.hear(p, two, 6, true);
        leaders.hear(p, one, 6, false);
        assert_eq!(leaders.in_term(p), Some((two, 6)), "another one's end says nothing of who leads now");
        leaders.hear(p, two, 6, false);
        assert_eq!(leaders.leader(p), None);
        assert!(leaders.is_outdated(p, 5), "what was led is not forgotten");
        leaders.note(p, Some(NodeNumber(5)), 7);
        leaders.note_heard(p);
        leaders.hear(p, one, 8, true);
        assert_eq!(leaders.in_term(p), Some((NodeNumber(5), 7)), "its own member says so first");
    }

    #[test]
    fn a_member_that_leaves_is_not_heard_any_more_and_who_said_that_he_leads_is() {
        let leaders = Leaders::among_others(NodeNumber(5), PartitionId(3));
        let (p, one, four) = (PartitionId(3), NodeNumber(1), NodeNumber(4));
        leaders.note_heard(p);
        leaders.note(p, Some(NodeNumber(5)), 6);
        leaders.note_term(p, 6);
        leaders.hear(p, one, 8, true);
        leaders.hear(p, four, 7, true);
        leaders.hear(p, four, 7, false);
        assert_eq!(leaders.leader(p), Some(NodeNumber(5)), "its own member knows it better");
        leaders.forget_heard(p);
        leaders.follow_announced(p);
        assert_eq!(leaders.in_term(p), Some((one, 8)), "the other one was late");
        leaders.hear(p, four, 9, true);
        assert_eq!(leaders.leader(p), Some(four));
        leaders.lose(p, four);
        leaders.follow_announced(p);
        assert_eq!(leaders.leader(p), None);
    }

    #[test]
    fn a_member_that_voted_in_a_term_that_never_was_does_not_outdate_who_leads_without_it() {
        let leaders = Leaders::among_others(NodeNumber(5), PartitionId(3));
        let (p, one, four) = (PartitionId(3), NodeNumber(1), NodeNumber(4));
        leaders.note_heard(p);
        leaders.note_term(p, 9);
        leaders.hear(p, four, 7, true);
        leaders.hear(p, one, 8, true);
        assert_eq!(leaders.leader(p), None, "its own member knows it better");
        leaders.forget_heard(p);
        leaders.follow_announced(p);
        assert_eq!(leaders.in_term(p), Some((one, 8)));
        leaders.hear(p, four, 7, true);
        assert_eq!((leaders.leader(p), leaders.is_outdated(p, 7)), (Some(one), true), "that was before");
        leaders.hear(p, four, 9, true);
        assert_eq!(leaders.in_term(p), Some((four, 9)));
    }

    #[test]
    fn who_says_that_he_leads_while_the_last_words_of_a_member_are_on_their_way_is_followed() {
        let leaders = Leaders::among_others(NodeNumber(5), PartitionId(3));
        let (p, one) = (PartitionId(3), NodeNumber(1));
        leaders.note_heard(p);
        leaders.note(p, Some(NodeNumber(5)), 6);
        leaders.note_term(p, 7);
        leaders.forget_heard(p);
        leaders.hear(p, one, 8, true);
        leaders.follow_announced(p);
        assert_eq!(leaders.in_term(p), Some((one, 8)));
        // Nobody says so: this node leads no more.
        leaders.lose(p, one);
        leaders.note(p, Some(NodeNumber(5)), 8);
        leaders.follow_announced(p);
        assert_eq!(leaders.leader(p), None);
    }

    #[test]
    fn a_term_rises_only_and_outdates_those_before() {
        let leaders = Leaders::among_others(NodeNumber(2), PartitionId(3));
        assert!(!leaders.is_outdated(PartitionId(3), 1), "nothing was heard yet");
        leaders.note_term(PartitionId(3), 5);
        leaders.clone().note_term(PartitionId(3), 4);
        assert!(leaders.is_outdated(PartitionId(3), 4) && !leaders.is_outdated(PartitionId(3), 5));
        assert!(!leaders.is_outdated(PartitionId(2), 4), "it is another group");
        let in_memory = PartitionId::in_memory(NodeNumber(2), 0);
        leaders.note_term(in_memory, 5);
        assert!(!leaders.is_outdated(in_memory, 0), "what is in a node's memory has no terms");
        let alone = Leaders::alone(NodeNumber(1));
        alone.note_term(PartitionId(3), 5);
        assert!(!alone.is_outdated(PartitionId(3), 1));
    }
}
