//! A topology of several nodes, to begin with.
#![allow(clippy::unwrap_used, dead_code)] // Each test binary uses its part.

use broker::topology::{
    ClusterNode, Command, FIRST_POOL, MACHINE_VERSION, MachineVersions, Name, NodeStanding, PartitionPool,
    PartitionStage, PoolPartition, Topology,
};
use broker::{NodeNumber, PartitionId};

/// What a node of this build can.
pub(crate) const CAN: MachineVersions = MachineVersions { topology: MACHINE_VERSION, queues: 1 };

/// A cluster of so many nodes with two partitions on all of them, at this version.
pub(crate) fn cluster(nodes: u32, version: u32) -> Topology {
    let mut topology = Topology::new();
    let put = |number: u32| {
        let (name, address) = (format!("leveret@{number}"), format!("host{number}:1"));
        let (name, address) = (Name::from(name.as_str()), Name::from(address.as_str()));
        let node = ClusterNode { name, address, standing: NodeStanding::Member, can: CAN };
        Command::PutNode { number: NodeNumber(number), node }
    };
    let pool = PartitionPool {
        name: Name::from("default"),
        replication_factor: nodes,
        target: 2,
        serves_classic: true,
        serves_quorum: true,
    };
    let members: Vec<NodeNumber> = (1..=nodes).map(NodeNumber).collect();
    let partition = |id| Command::PutPartition {
        id: PartitionId(id),
        partition: PoolPartition { pool: FIRST_POOL, members: members.clone(), stage: PartitionStage::Serving },
    };
    let put_pool = Command::PutPool { id: FIRST_POOL, pool };
    let all = (1..=nodes).map(put).chain([put_pool, partition(1), partition(2)]);
    for command in all.chain([Command::RaiseVersion { version }]) {
        topology.apply(&command).outcome.unwrap();
    }
    topology
}
