//! The topology as the threads of a node see it.
//!
//! Invariants: the version, read without a lock, is never ahead of the topology that a reader of the
//! lock sees afterwards; so a route that was computed under the lock is stored with a version that
//! is not too new. Nobody who looks at the topology asks for another look before that one is over: a change that
//! waits meanwhile lets no new readers in, and both would wait for ever. Builds with assertions for debugging find it at once.

use broker::topology::{Applied, Command as Change, Effect, Foresight, Malformed, Topology};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use switch::Tell;

/// See the module.
#[derive(Debug)]
pub(crate) struct TopologyView {
    topology: RwLock<Topology>,
    version: AtomicU64,
}

/// A look at the topology: nothing of it changes before it is over.
pub struct Look<'a> {
    topology: RwLockReadGuard<'a, Topology>,
    #[cfg(debug_assertions)]
    _only: only_look::OnlyLook,
}

impl Deref for Look<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.topology
    }
}

/// That a thread has one look at a topology at a time.
#[cfg(debug_assertions)]
mod only_look {
    use std::cell::RefCell;

    thread_local! {
        static VIEWS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) struct OnlyLook(usize);

    impl OnlyLook {
        /// Of this thread at the view with this address.
        ///
        /// # Panics
        /// If it has one already.
        pub(super) fn at(view: usize) -> OnlyLook {
            VIEWS.with_borrow_mut(|views| {
                assert!(
                    !views.contains(&view),
                    "one look at the topology within another waits for ever behind a change"
                );
                views.push(view);
            });
            OnlyLook(view)
        }
    }

    impl Drop for OnlyLook {
        fn drop(&mut self) {
            VIEWS.with_borrow_mut(|views| views.retain(|view| *view != self.0));
        }
    }
}

/// A change, and what the event exchange is to hear of it.
pub(super) struct Changed {
    pub(super) applied: Applied,
    pub(super) events: Vec<broker::topology::BrokerEvent>,
}

impl TopologyView {
    /// The view of a node.
    pub(super) fn new(topology: Topology) -> TopologyView {
        TopologyView { version: AtomicU64::new(topology.version()), topology: RwLock::new(topology) }
    }

    /// The topology, to look at. Held for as long as one route or one check takes.
    pub(crate) fn read(&self) -> Look<'_> {
        Look {
            #[cfg(debug_assertions)]
            _only: only_look::OnlyLook::at(std::ptr::from_ref(self).addr()),
            topology: self.topology.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// A number that grows with every change.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Puts something into it that changes nothing for those who look.
    pub(crate) fn put(&self, put: impl FnOnce(&mut Topology)) {
        put(&mut self.topology.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes a change by `apply` or `apply_local` of the topology, and has partitions told before
    /// anybody sees it. What else follows is to be carried out.
    pub(super) fn change(
        &self,
        change: &Change,
        apply: fn(&mut Topology, &Change) -> Applied,
        tells_events: bool,
        tell: &impl Tell,
    ) -> Changed {
        let mut topology = self.topology.write().unwrap_or_else(PoisonError::into_inner);
        let foresight: Option<Foresight> = tells_events.then(|| topology.foresee(change));
        let applied = apply(&mut topology, change);
        switch::tell_partitions(&applied.effects, &topology, tell);
        self.version.store(topology.version(), Ordering::Release);
        let events = foresight.map_or_else(Vec::new, |foresight| foresight.told(&applied, &topology));
        Changed { applied, events }
    }

    /// Puts the replicated part of a snapshot in the place of the topology's; what follows is to be
    /// carried out. Events of what it skips are not told: nobody knows in which order it happened.
    pub(super) fn install(&self, snapshot: &[u8], tell: &impl Tell) -> Result<Vec<Effect>, Malformed> {
        let mut topology = self.topology.write().unwrap_or_else(PoisonError::into_inner);
        let effects = topology.install_snapshot(snapshot)?;
        switch::tell_partitions(&effects, &topology, tell);
        self.version.store(topology.version(), Ordering::Release);
        Ok(effects)
    }

    /// The name that the operator gave the cluster, or else that of its first node; `None` before a
    /// node is known.
    pub(crate) fn cluster_name(&self) -> Option<String> {
        let topology = self.read();
        let given = topology.global_parameter(b"cluster_name").and_then(|json| serde_json::from_str(json).ok());
        given.or_else(|| Some(topology.name_of_first_node()?.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::NodeNumber;
    use broker::topology::{ClusterNode, MACHINE_VERSION, MachineVersions, Name, NodeChange, NodeStanding};

    #[test]
    fn a_look_within_another_is_found_before_a_change_comes_between() {
        let (one, other) = (TopologyView::new(Topology::new()), TopologyView::new(Topology::new()));
        let look = one.read();
        drop(other.read());
        let within = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(one.read())));
        assert_eq!(within.is_err(), cfg!(debug_assertions));
        drop(look);
        drop(one.read());
    }

    #[test]
    fn a_cluster_is_called_as_its_first_node_until_it_is_given_a_name() {
        let mut topology = Topology::new();
        let view = |topology: &Topology| {
            let view = TopologyView::new(Topology::new());
            view.put(|put| drop(put.install_snapshot(&topology.encode_snapshot()).expect("it is one")));
            view.cluster_name()
        };
        assert_eq!(view(&topology), None);
        let can = MachineVersions { topology: MACHINE_VERSION, queues: 1 };
        let put = |number, standing| {
            let (name, address) = (Name::from(&*format!("hare@{number}")), Name::from(&*format!("host{number}:1")));
            Change::PutNode { number: NodeNumber(number), node: ClusterNode { name, address, standing, can } }
        };
        for number in [3, 1, 2] {
            let _ = topology.apply(&put(number, NodeStanding::Member)).outcome.expect("it is put");
        }
        assert_eq!(view(&topology).as_deref(), Some("hare@1"));
        let _ = topology.apply(&Change::RaiseVersion { version: MACHINE_VERSION });
        let forget = Change::ChangeNodes(NodeChange::Forget(NodeNumber(1)));
        let _ = topology.apply(&forget).outcome.expect("it is forgotten");
        assert_eq!(view(&topology).as_deref(), Some("hare@1"), "it does not change its name when a node goes");
    }
}
