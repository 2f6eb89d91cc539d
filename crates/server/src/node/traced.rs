//! Which virtual hosts are traced.

use broker::VhostId;
use broker::topology::Topology;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. That none is traced is known without a lock.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    is_any: AtomicBool,
    vhosts: RwLock<Vec<VhostId>>,
}

impl Traced {
    /// Whether some virtual host is.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Whether this one is.
    pub(crate) fn contains(&self, vhost: VhostId) -> bool {
        self.is_any() && self.vhosts.read().expect("nobody panics while it is held").contains(&vhost)
    }

    /// Begins or ends to trace one. Those that are gone are forgotten.
    pub(crate) fn set(&self, vhost: VhostId, on: bool, topology: &Topology) {
        let mut vhosts = self.vhosts.write().expect("nobody panics while it is held");
        vhosts.retain(|other| *other != vhost && topology.vhost_of(*other).is_some());
        if on {
            vhosts.push(vhost);
        }
        self.is_any.store(!vhosts.is_empty(), Ordering::Relaxed);
    }
}
