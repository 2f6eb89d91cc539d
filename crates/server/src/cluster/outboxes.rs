//! The way to each other node of the cluster, by its number. Nodes come while this one runs.
//!
//! Invariant: a number belongs to one node for ever, so what was made for it stays; it is found
//! without a lock, on the road of every message to another node.

use super::links::Outbox;
use broker::topology::NODES_EVER_MAX;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// See the module.
pub(super) struct Outboxes {
    /// By number.
    slots: Box<[OnceLock<Arc<Outbox>>]>,
    /// The highest number that has one.
    highest: AtomicU32,
}

impl Outboxes {
    /// For these nodes, and for others once they are known.
    pub(super) fn new(numbers: impl Iterator<Item = u32>) -> Outboxes {
        let slots = (0..=NODES_EVER_MAX).map(|_| OnceLock::new()).collect();
        let outboxes = Outboxes { slots, highest: AtomicU32::new(0) };
        for number in numbers {
            let _ = outboxes.make(number);
        }
        outboxes
    }

    /// The way to a node; `None` if nobody knows of it.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Arc<Outbox>> {
        self.slots.get(number as usize)?.get()
    }

    /// The same, made if it is not there; `None` for a number that no node can have.
    pub(super) fn make(&self, number: u32) -> Option<&Arc<Outbox>> {
        let outbox = self.slots.get(number as usize)?.get_or_init(Arc::default);
        self.highest.fetch_max(number, Ordering::AcqRel);
        Some(outbox)
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<Outbox>)> {
        (0..=self.highest.load(Ordering::Acquire)).filter_map(|number| Some((number, self.get(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_made_once_and_found_by_its_number() {
        let outboxes = Outboxes::new([2, 3].into_iter());
        assert!(outboxes.get(4).is_none());
        let made = outboxes.make(7).expect("it may be there").clone();
        assert!(Arc::ptr_eq(&made, outboxes.make(7).expect("it is there")));
        assert_eq!(outboxes.iter().map(|(number, _)| number).collect::<Vec<_>>(), [2, 3, 7]);
        assert!(outboxes.make(NODES_EVER_MAX as u32 + 1).is_none() && outboxes.get(u32::MAX).is_none());
    }
}
