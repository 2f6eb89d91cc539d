//! The map in commands and snapshots; `docs/formats/topology.md`.

use super::super::Topology;
use super::super::command::Command;
use super::super::encoding::{Malformed, Reader, Writer};
use super::{Cluster, ClusterNode, MachineVersions, NodeStanding, PartitionPool, PartitionStage, PoolPartition};
use crate::ids::{NodeNumber, PartitionId, PoolId};

impl Cluster {
    /// All of it, as a snapshot holds it.
    pub(in crate::topology) fn write(&self, writer: &mut Writer) {
        writer.length(self.nodes.len());
        self.nodes.iter().for_each(|(number, node)| write_node(writer, *number, node));
        writer.length(self.pools.len());
        self.pools.iter().for_each(|(id, pool)| write_pool(writer, *id, pool));
        writer.length(self.partitions.len());
        self.partitions.iter().for_each(|(id, partition)| write_partition(writer, *id, partition));
    }
}

impl Topology {
    /// See `Cluster::write`. What the rules refuse is malformed, and so is a number that does not
    /// rise.
    pub(in crate::topology) fn read_cluster(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let replay = |topology: &mut Self, command: Command, last: &mut u32, number: u32| {
            let rises = std::mem::replace(last, number) < number;
            let refused = "node, pool or partition that the rules refuse";
            let applied = topology.change_cluster(&command, &mut Vec::new()).is_ok();
            if rises && applied { Ok(()) } else { Err(refused) }
        };
        let mut last = 0;
        for _ in 0..reader.count("nodes")? {
            let (number, node) = read_node(reader)?;
            replay(self, Command::PutNode { number, node }, &mut last, number.0).map_err(|w| reader.malformed(w))?;
        }
        last = 0;
        for _ in 0..reader.count("pools")? {
            let (id, pool) = read_pool(reader)?;
            replay(self, Command::PutPool { id, pool }, &mut last, id.0).map_err(|w| reader.malformed(w))?;
        }
        last = 0;
        for _ in 0..reader.count("partitions")? {
            let (id, partition) = read_partition(reader)?;
            replay(self, Command::PutPartition { id, partition }, &mut last, id.0).map_err(|w| reader.malformed(w))?;
        }
        Ok(())
    }
}

pub(in crate::topology) fn write_node(writer: &mut Writer, number: NodeNumber, node: &ClusterNode) {
    writer.number(number.0.into());
    writer.bytes(&node.name);
    writer.bytes(&node.address);
    writer.byte(node.standing as u8);
    writer.number(node.can.topology.into());
    writer.number(node.can.queues.into());
}

pub(in crate::topology) fn read_node(reader: &mut Reader<'_>) -> Result<(NodeNumber, ClusterNode), Malformed> {
    let number = NodeNumber(reader.number_u32("node")?);
    let (name, address) = (reader.name("node name")?, reader.name("address")?);
    let standing = match reader.byte("standing of a node")? {
        0 => NodeStanding::Joining,
        1 => NodeStanding::Member,
        2 => NodeStanding::Leaving,
        3 => NodeStanding::Gone,
        _ => return Err(reader.malformed("standing of a node")),
    };
    let what = "machine version";
    let can = MachineVersions { topology: reader.number_u32(what)?, queues: reader.number_u32(what)? };
    Ok((number, ClusterNode { name, address, standing, can }))
}

pub(in crate::topology) fn write_pool(writer: &mut Writer, id: PoolId, pool: &PartitionPool) {
    writer.number(id.0.into());
    writer.bytes(&pool.name);
    writer.number(pool.replication_factor.into());
    writer.number(pool.target.into());
    writer.byte(u8::from(pool.serves_classic) | u8::from(pool.serves_quorum) << 1);
}

pub(in crate::topology) fn read_pool(reader: &mut Reader<'_>) -> Result<(PoolId, PartitionPool), Malformed> {
    let id = PoolId(reader.number_u32("pool")?);
    let name = reader.name("pool name")?;
    let replication_factor = reader.number_u32("replication factor")?;
    let target = reader.number_u32("target")?;
    let [serves_classic, serves_quorum] = reader.flags("types of queues")?;
    Ok((id, PartitionPool { name, replication_factor, target, serves_classic, serves_quorum }))
}

pub(in crate::topology) fn write_partition(writer: &mut Writer, id: PartitionId, partition: &PoolPartition) {
    writer.number(id.0.into());
    writer.number(partition.pool.0.into());
    writer.byte(partition.stage as u8);
    writer.length(partition.members.len());
    partition.members.iter().for_each(|member| writer.number(member.0.into()));
}

pub(in crate::topology) fn read_partition(reader: &mut Reader<'_>) -> Result<(PartitionId, PoolPartition), Malformed> {
    let id = PartitionId(reader.number_u32("partition")?);
    let pool = PoolId(reader.number_u32("pool")?);
    let stage = match reader.byte("stage of a partition")? {
        0 => PartitionStage::Creating,
        1 => PartitionStage::Serving,
        2 => PartitionStage::Retired,
        _ => return Err(reader.malformed("stage of a partition")),
    };
    let mut members = Vec::new();
    for _ in 0..reader.count("members")? {
        members.push(NodeNumber(reader.number_u32("member")?));
    }
    Ok((id, PoolPartition { pool, members, stage }))
}
