//! Which virtual hosts are traced, on all nodes of a cluster.
//!
//! Invariant: of two words about a virtual host the one with the higher stamp counts, so that all nodes
//! come to the same whatever order they hear them in.

use broker::VhostId;
use broker::topology::Topology;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock};

/// What was said last about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The highest counts.
    pub(crate) stamp: u64,
    pub(crate) on: bool,
}

/// The firehose tells of some virtual host.
const FIREHOSE: u8 = 1;
/// Spans are made.
const SPANS: u8 = 2;

/// See the module. That none is traced is known without a lock; and whether spans are made of messages
/// stands beside it, so that a message which nobody looks at costs one look for both.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    flags: AtomicU8,
    vhosts: RwLock<BTreeMap<VhostId, Said>>,
}

impl Traced {
    /// None is, whether spans are made or not.
    pub(crate) fn new(makes_spans: bool) -> Traced {
        Traced { flags: AtomicU8::new(if makes_spans { SPANS } else { 0 }), ..Traced::default() }
    }

    /// Whether some virtual host is, or spans are made.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    fn set_firehose(&self, is_on: bool) {
        match is_on {
            true => self.flags.fetch_or(FIREHOSE, Ordering::Relaxed),
            false => self.flags.fetch_and(!FIREHOSE, Ordering::Relaxed),
        };
    }

    /// Whether this one is.
    pub(crate) fn contains(&self, vhost: VhostId) -> bool {
        let is_on = |said: &Said| said.on;
        let is_some = self.flags.load(Ordering::Relaxed) & FIREHOSE != 0;
        is_some && self.vhosts.read().unwrap_or_else(PoisonError::into_inner).get(&vhost).is_some_and(is_on)
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
        self.set_firehose(vhosts.values().any(|said| said.on));
        said
    }

    /// Takes what another node says.
    pub(crate) fn note(&self, vhost: VhostId, said: Said) {
        let mut vhosts = self.vhosts.write().unwrap_or_else(PoisonError::into_inner);
        let is_newer = |known: &Said| (said.stamp, said.on) > (known.stamp, known.on);
        if vhosts.get(&vhost).is_none_or(is_newer) {
            vhosts.insert(vhost, said);
        }
        self.set_firehose(vhosts.values().any(|said| said.on));
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
        let spans = Traced::new(true);
        assert!(spans.is_any() && !spans.contains(vhost));
        [on, off].into_iter().for_each(|said| spans.note(vhost, said));
        assert!(spans.is_any() && !spans.contains(vhost), "the end of the one is not that of the other");
        assert_eq!(traced.all(), [(vhost, on)]);
    }
}
