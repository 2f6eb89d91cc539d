//! The connections of a shard, as the owners of exclusive queues.
//!
//! A queue that a connection declared for itself alone may come to be after its end: whoever leads the
//! topology's group changed meanwhile, and nobody knew what would become of the change. Invariant: such
//! a queue is in the memory of the shard that had its owner, so that one hears of it, whoever asked.

use foldhash::fast::FixedState;
use hashbrown::HashSet;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    open: HashSet<u64, FixedState>,
}

impl Owners {
    /// A connection came, with this number.
    pub(crate) fn came(&mut self, connection: u64) {
        self.open.insert(connection);
    }

    /// It is gone, and has given up what was its own.
    pub(crate) fn left(&mut self, connection: u64) {
        self.open.remove(&connection);
    }

    /// Whether a queue of this owner, if it has one, is nobody's any more.
    pub(crate) fn have_left(&self, owner: Option<u64>) -> bool {
        owner.is_some_and(|owner| !self.open.contains(&owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_abandoned_once_its_owner_has_left() {
        let mut owners = Owners::default();
        owners.came(7);
        assert!(!owners.have_left(Some(7)) && !owners.have_left(None));
        owners.left(7);
        assert!(owners.have_left(Some(7)) && !owners.have_left(None));
    }
}
