//! Which virtual hosts are traced, on all nodes of a cluster.
//!
//! Invariant: of two words about a virtual host the one with the higher stamp counts, so that all nodes
//! come to the same whatever order they hear them in.

use broker::VhostId;
use broker::topology::Topology;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// What was said last about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The highest counts.
    pub(crate) stamp: u64,
    pub(crate) on: bool,
}

/// See the module. That none is traced is known without a lock.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    is_any: AtomicBool,
    vhosts: RwLock<BTreeMap<VhostId, Said>>,
}

impl Traced {
    /// Whether some virtual host is.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Whether this one is.
    pub(crate) fn contains(&self, vhost: VhostId) -> bool {
        let is_on = |said: &Said| said.on;
        self.is_any() && self.vhosts.read().unwrap_or_else(PoisonError::into_inner).get(&vhost).is_some_and(is_on)
    }

    /// Begins or ends to trace one, at this time; gives what is to be told. Those that are gone are
    /// forgotten.
    pub(crate) fn set(&self, vhost: VhostId, on: bool, now: u64, topology: &Topology) -> Said {
        let mut vhosts = self.vhosts.write().unwrap_or_else(PoisonError::into_inner);
        vhosts.retain(|other, _| topology.vhost_of(*other).is_some());
        // Clocks of nodes differ: what is said last has the last word.
        let stamp = vhosts.get(&vhost).map_or(now, |known| now.max(known.stamp + 1));
        let said = Said { stamp, on };
        vhosts.insert(vhost, said);
        self.is_any.store(vhosts.values().any(|said| said.on), Ordering::Relaxed);
        said
    }

    /// Takes what another node says.
    pub(crate) fn note(&self, vhost: VhostId, said: Said) {
        let mut vhosts = self.vhosts.write().unwrap_or_else(PoisonError::into_inner);
        let is_newer = |known: &Said| (said.stamp, said.on) > (known.stamp, known.on);
        if vhosts.get(&vhost).is_none_or(is_newer) {
            vhosts.insert(vhost, said);
        }
        self.is_any.store(vhosts.values().any(|said| said.on), Ordering::Relaxed);
    }

    /// All that was said.
    pub(crate) fn all(&self) -> Vec<(VhostId, Said)> {
        let vhosts = self.vhosts.read().unwrap_or_else(PoisonError::into_inner);
        vhosts.iter().map(|(vhost, said)| (*vhost, *said)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_come_to_the_same_in_whatever_order_they_hear() {
        let (on, off) = (Said { stamp: 5, on: true }, Said { stamp: 6, on: false });
        let vhost = VhostId(1);
        for words in [[on, off], [off, on]] {
            let traced = Traced::default();
            words.into_iter().for_each(|said| traced.note(vhost, said));
            assert!(!traced.contains(vhost) && !traced.is_any());
        }
        let traced = Traced::default();
        traced.note(vhost, on);
        assert!(traced.contains(vhost));
        assert_eq!(traced.all(), [(vhost, on)]);
    }
}
