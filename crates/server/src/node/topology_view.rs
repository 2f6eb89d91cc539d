//! The topology as the threads of a node see it.
//!
//! Invariant: the version, read without a lock, is never ahead of the topology that a reader of the
//! lock sees afterwards; so a route that was computed under the lock is stored with a version that
//! is not too new.

use broker::PartitionId;
use broker::topology::{Applied, Command as Change, Effect, Foresight, Malformed, Topology};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use switch::Tell;

/// See the module.
#[derive(Debug)]
pub(crate) struct TopologyView {
    topology: RwLock<Topology>,
    version: AtomicU64,
    /// Partitions of this node that are whole.
    whole: Vec<PartitionId>,
    /// Those of them in which a new durable queue may be placed, as the topology's map says.
    open: RwLock<Vec<PartitionId>>,
    next: AtomicUsize,
}

/// A change, and what the event exchange is to hear of it.
pub(super) struct Changed {
    pub(super) applied: Applied,
    pub(super) events: Vec<broker::topology::BrokerEvent>,
}

impl TopologyView {
    /// The view of a node with these whole partitions of queues.
    pub(super) fn new(topology: Topology, whole: Vec<PartitionId>) -> TopologyView {
        let view = TopologyView {
            version: AtomicU64::new(topology.version()),
            topology: RwLock::new(topology),
            whole,
            open: RwLock::default(),
            next: AtomicUsize::new(0),
        };
        view.note_partitions(&view.read());
        view
    }

    /// The topology, to look at. Held for as long as one route or one check takes.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Topology> {
        self.topology.read().unwrap_or_else(PoisonError::into_inner)
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
        if matches!(change, Change::PutPool { .. } | Change::PutPartition { .. } | Change::RaiseVersion { .. }) {
            self.note_partitions(&topology);
        }
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
        self.note_partitions(&topology);
        Ok(effects)
    }

    /// Takes over from the map where queues may be placed from now on.
    fn note_partitions(&self, topology: &Topology) {
        let here = self.whole.iter().copied().filter(|id| topology.may_place_in(*id, None));
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = here.collect();
    }

    /// The partition for a new durable queue, each in its turn; `None` on a node without durable
    /// partitions.
    /// Those that `is_led_here` go before the others.
    pub(crate) fn place_queue(&self, is_led_here: impl Fn(PartitionId) -> bool) -> Option<PartitionId> {
        // The topology is looked at by who asks, and a lock that is waited for must not be taken
        // twice.
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let here: SmallVec<[PartitionId; 16]> = open.iter().copied().filter(|id| is_led_here(*id)).collect();
        let among = if here.is_empty() { &open[..] } else { &here[..] };
        among.get(next.checked_rem(among.len())?).copied()
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
    fn a_cluster_is_called_as_its_first_node_until_it_is_given_a_name() {
        let mut topology = Topology::new();
        let view = |topology: &Topology| {
            let view = TopologyView::new(Topology::new(), Vec::new());
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
