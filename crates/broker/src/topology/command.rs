//! The commands that change a topology, and their bytes in the log of the metadata group.
//!
//! Invariant: a command says what was decided, by names and numbers that mean the same on every
//! node. A released version of the format is read for ever; a change gets a new version number.
//!
//! ```text
//! command = 1 byte version (1), 1 byte tag, fields in the order of the struct (see encoding.rs for the items)
//! flags   = 1 byte, one bit each, lowest first in the order of the struct; unused bits are zero
//! ```

use amqp::Table;
use bytes::Bytes;

use super::Topology;
use super::binding::{read_binding, write_binding};
use super::cluster::{self, ClusterNode, PartitionPool, PoolPartition};
use super::copies::CopyChange;
use super::encoding::{Malformed, Reader, Writer};
use super::exchange_type::ExchangeType;
use super::joining::NodeChange;
use super::name::Name;
use super::password::PasswordHash;
use super::policy::Policy;
use super::records::{
    read_credentials, read_credentials_1, read_description, read_exchange, read_home, read_permission,
    read_permission_1, read_policy, read_queue, read_user_limits, read_vhost_limits, write_credentials,
    write_description, write_exchange, write_home, write_permission, write_policy, write_queue,
};
use super::refusal::Kind;
use super::user::{Permission, UserLimits};
use super::vhost::{VhostDescription, VhostLimits};
use crate::ids::{NodeNumber, PartitionId, PoolId, QueueId, VhostId};

/// The version that this build writes, and the highest that it reads.
pub const COMMAND_VERSION: u8 = 1;

/// A change of the topology. Replicated ones go through `encode`, the log and `Topology::apply`;
/// those about things that live on one node only go to `Topology::apply_local` there.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Creates a virtual host with its predeclared exchanges; nothing if it exists.
    CreateVhost {
        /// Its name.
        name: Name,
    },
    /// Creates a virtual host with all that its maker said of it and with every permission in it
    /// for its owner; nothing if it exists. One command, so that nobody finds it half made,
    /// whatever ends in between.
    FoundVhost {
        /// Its name.
        name: Name,
        /// What is said about it.
        description: VhostDescription,
        /// The user that may do everything in it.
        owner: Name,
    },
    /// Deletes a virtual host with everything in it; nothing if it is not there.
    DeleteVhost {
        /// The virtual host.
        vhost: VhostId,
    },
    /// Sets what is said about a virtual host, and what its queues are by default.
    DescribeVhost {
        /// The virtual host.
        vhost: VhostId,
        /// All of it.
        description: VhostDescription,
    },
    /// Sets a global parameter.
    PutGlobalParameter {
        /// Its name.
        name: Name,
        /// Its value: JSON.
        value: String,
    },
    /// Takes a global parameter away; nothing if it is not there.
    ClearGlobalParameter {
        /// Its name.
        name: Name,
    },
    /// Creates a user, or replaces password and tags of an existing one and keeps its permissions.
    PutUser {
        /// Its name.
        name: Name,
        /// The hash of its password.
        password: PasswordHash,
        /// RabbitMQ's tags.
        tags: Vec<Name>,
    },
    /// Deletes a user with its permissions; nothing if it is not there.
    DeleteUser {
        /// Its name.
        name: Name,
    },
    /// Sets what a user may do in a virtual host.
    PutPermission {
        /// The user's name.
        user: Name,
        /// The virtual host.
        vhost: VhostId,
        /// What it may do.
        permission: Permission,
    },
    /// Takes a user's permission in a virtual host away; it may not open it any more.
    ClearPermission {
        /// The user's name.
        user: Name,
        /// The virtual host.
        vhost: VhostId,
    },
    /// Sets what a user may do with the routing keys of a topic exchange.
    PutTopicPermission {
        /// The user's name.
        user: Name,
        /// The virtual host.
        vhost: VhostId,
        /// The exchange's name.
        exchange: Name,
        /// The pattern of keys it may publish with; see `TopicPermission::new`.
        write: String,
        /// The pattern of keys it may bind with.
        read: String,
    },
    /// Takes a user's topic permission away; its rights on the exchange are then all that counts.
    ClearTopicPermission {
        /// The user's name.
        user: Name,
        /// The virtual host.
        vhost: VhostId,
        /// The exchange's name.
        exchange: Name,
    },
    /// Sets how much a user may have.
    SetUserLimits {
        /// The user's name.
        user: Name,
        /// All of its limits.
        limits: UserLimits,
    },
    /// Sets how much may be in a virtual host.
    SetVhostLimits {
        /// The virtual host.
        vhost: VhostId,
        /// All of its limits.
        limits: VhostLimits,
    },
    /// Creates a policy or replaces it.
    PutPolicy(PutPolicy),
    /// Deletes a policy; nothing if it is not there.
    DeletePolicy {
        /// The virtual host.
        vhost: VhostId,
        /// Whether it is an operator policy.
        operator: bool,
        /// Its name.
        name: Name,
    },
    /// Creates an exchange, or finds an equal one.
    DeclareExchange(DeclareExchange),
    /// Deletes an exchange with all its bindings.
    DeleteExchange(DeleteExchange),
    /// Creates a queue, or finds an equal one.
    DeclareQueue(DeclareQueue),
    /// Deletes a queue with all its bindings.
    DeleteQueue(DeleteQueue),
    /// Adds a binding, or finds it.
    Bind(Binding),
    /// Removes a binding, if it is there.
    Unbind(Unbind),
    /// Adds a node to the cluster, or says what it is now.
    PutNode {
        /// Its number, which no other node ever has.
        number: NodeNumber,
        /// All of it.
        node: ClusterNode,
    },
    /// Makes a pool of partitions, or says what it is now.
    PutPool {
        /// Its number.
        id: PoolId,
        /// All of it.
        pool: PartitionPool,
    },
    /// Makes a partition, or says what it is now.
    PutPartition {
        /// Its number, which no other partition ever has.
        id: PartitionId,
        /// All of it.
        partition: PoolPartition,
    },
    /// Carries commands out by this version of the state machine from here on. Proposed once every
    /// member can.
    RaiseVersion {
        /// The version.
        version: u32,
    },
    /// What lives in the memory of a node is gone: it started anew, or cannot be reached. Nothing if
    /// that was said before.
    EndHome(Home),
    /// A node joins a cluster that is there, or is forgotten.
    ChangeNodes(NodeChange),
    /// A node gets a copy of a partition, or has it no more.
    ChangeCopies(CopyChange),
}

/// The node in whose memory a queue lives, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Home {
    /// The node.
    pub node: NodeNumber,
    /// How often all that lived there had ended: it ends the next time.
    pub era: u64,
}

/// See `Command::PutPolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct PutPolicy {
    /// The virtual host.
    pub vhost: VhostId,
    /// Whether it is an operator policy.
    pub operator: bool,
    /// Its name.
    pub name: Name,
    /// What it is.
    pub policy: Policy,
}

/// See `Command::DeclareExchange`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclareExchange {
    /// The virtual host.
    pub vhost: VhostId,
    /// The name, line ends already taken out.
    pub name: Name,
    /// How it routes.
    pub kind: ExchangeType,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it goes with its last binding.
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    pub internal: bool,
    /// The arguments of the declare.
    pub arguments: Table,
    /// Whether every node knows it though it is not durable: it was declared in a cluster.
    pub is_shared: bool,
}

/// See `Command::DeleteExchange`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeleteExchange {
    /// The virtual host.
    pub vhost: VhostId,
    /// The name.
    pub name: Name,
    /// Only if no binding leaves it.
    pub if_unused: bool,
    /// Auto-delete exchanges that still have bindings of the proposer's node only, which the log
    /// cannot see.
    pub keep: Vec<Name>,
}

/// See `Command::DeclareQueue`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclareQueue {
    /// The virtual host.
    pub vhost: VhostId,
    /// The name, line ends already taken out.
    pub name: Name,
    /// Whether the declare said durable; an exclusive queue is transient all the same.
    pub durable: bool,
    /// The connection that declared it exclusive.
    pub exclusive: Option<u64>,
    /// Whether it goes with its last consumer.
    pub auto_delete: bool,
    /// The arguments, the queue type spelled out.
    pub arguments: Table,
    /// Where the declaring node placed it.
    pub partition: PartitionId,
    /// The node in whose memory it lives, if every node knows it all the same.
    pub home: Option<Home>,
}

/// See `Command::DeleteQueue`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeleteQueue {
    /// The queue; by id, so that a queue declared anew under the name is not hit.
    pub queue: QueueId,
    /// As in `DeleteExchange`.
    pub keep: Vec<Name>,
}

/// A binding by its names.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The virtual host of both ends.
    pub vhost: VhostId,
    /// The exchange from which it leads.
    pub source: Name,
    /// What kind of thing it leads to.
    pub destination_kind: Kind,
    /// The queue or exchange it leads to.
    pub destination: Name,
    /// The routing or binding key.
    pub key: Name,
    /// The arguments; the order of their fields does not matter.
    pub arguments: Table,
}

/// See `Command::Unbind`.
#[derive(Clone, Debug, PartialEq)]
pub struct Unbind {
    /// The binding to remove.
    pub binding: Binding,
    /// As in `DeleteExchange`.
    pub keep: Vec<Name>,
}

impl Command {
    /// Whether it brings something that stays, and that others than administrators may ask for as
    /// often as they like: what is refused while the disk is low. Rights and limits are not of
    /// those, which an administrator needs most then; nor is what goes with a connection or a node, though it is in the
    /// log of a cluster.
    pub fn is_growth(&self, topology: &Topology) -> bool {
        match self {
            Command::CreateVhost { .. }
            | Command::FoundVhost { .. }
            | Command::PutPolicy(_)
            | Command::PutGlobalParameter { .. } => true,
            Command::DeclareExchange(declare) => declare.durable,
            Command::DeclareQueue(declare) => declare.home.is_none(),
            Command::Bind(Binding { vhost, destination, destination_kind: Kind::Queue, .. }) => {
                topology.find_queue(*vhost, destination).is_none_or(|queue| queue.home.is_none())
            }
            Command::Bind(Binding { vhost, destination, .. }) => {
                topology.find_exchange(*vhost, destination).is_none_or(|exchange| exchange.durable)
            }
            Command::DeleteVhost { .. }
            | Command::DescribeVhost { .. }
            | Command::ClearGlobalParameter { .. }
            | Command::PutUser { .. }
            | Command::DeleteUser { .. }
            | Command::PutPermission { .. }
            | Command::ClearPermission { .. }
            | Command::PutTopicPermission { .. }
            | Command::ClearTopicPermission { .. }
            | Command::SetUserLimits { .. }
            | Command::SetVhostLimits { .. }
            | Command::DeletePolicy { .. }
            | Command::DeleteExchange(_)
            | Command::DeleteQueue(_)
            | Command::Unbind(_)
            | Command::PutNode { .. }
            | Command::PutPool { .. }
            | Command::PutPartition { .. }
            | Command::RaiseVersion { .. }
            | Command::ChangeNodes(_)
            | Command::ChangeCopies(_)
            | Command::EndHome(_) => false,
        }
    }

    /// The bytes of the command, the same for equal commands.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.byte(COMMAND_VERSION);
        match self {
            Command::CreateVhost { name } => {
                writer.byte(1);
                writer.bytes(name);
            }
            Command::PutUser { name, password, tags } => {
                writer.byte(20);
                writer.bytes(name);
                write_credentials(&mut writer, password, tags);
            }
            Command::DeleteUser { name } => {
                writer.byte(21);
                writer.bytes(name);
            }
            Command::PutPermission { user, vhost, permission } => {
                writer.byte(22);
                writer.bytes(user);
                writer.number(vhost.0.into());
                write_permission(&mut writer, permission);
            }
            Command::ClearPermission { user, vhost } => {
                writer.byte(23);
                writer.bytes(user);
                writer.number(vhost.0.into());
            }
            Command::PutTopicPermission { user, vhost, exchange, write, read } => {
                writer.byte(24);
                writer.bytes(user);
                writer.number(vhost.0.into());
                writer.bytes(exchange);
                writer.bytes(write.as_bytes());
                writer.bytes(read.as_bytes());
            }
            Command::ClearTopicPermission { user, vhost, exchange } => {
                writer.byte(25);
                writer.bytes(user);
                writer.number(vhost.0.into());
                writer.bytes(exchange);
            }
            Command::SetUserLimits { user, limits } => {
                writer.byte(26);
                writer.bytes(user);
                writer.limit(limits.connections_max);
                writer.limit(limits.channels_max);
            }
            Command::SetVhostLimits { vhost, limits } => {
                writer.byte(27);
                writer.number(vhost.0.into());
                writer.limit(limits.connections_max);
                writer.limit(limits.queues_max);
            }
            Command::PutPolicy(put) => {
                writer.byte(28);
                writer.number(put.vhost.0.into());
                writer.flag(put.operator);
                write_policy(&mut writer, &put.name, &put.policy);
            }
            Command::DeletePolicy { vhost, operator, name } => {
                writer.byte(29);
                writer.number(vhost.0.into());
                writer.flag(*operator);
                writer.bytes(name);
            }
            Command::DeleteVhost { vhost } => {
                writer.byte(30);
                writer.number(vhost.0.into());
            }
            Command::DescribeVhost { vhost, description } => {
                writer.byte(31);
                writer.number(vhost.0.into());
                write_description(&mut writer, description);
            }
            Command::FoundVhost { name, description, owner } => {
                writer.byte(32);
                writer.bytes(name);
                write_description(&mut writer, description);
                writer.bytes(owner);
            }
            Command::PutGlobalParameter { name, value } => {
                writer.byte(33);
                writer.bytes(name);
                writer.bytes(value.as_bytes());
            }
            Command::ClearGlobalParameter { name } => {
                writer.byte(34);
                writer.bytes(name);
            }
            Command::DeclareExchange(declare) => {
                writer.byte(4);
                write_exchange(&mut writer, declare);
            }
            Command::DeleteExchange(delete) => {
                writer.byte(5);
                writer.number(delete.vhost.0.into());
                writer.bytes(&delete.name);
                writer.flag(delete.if_unused);
                writer.names(&delete.keep);
            }
            Command::DeclareQueue(declare) => {
                writer.byte(6);
                write_queue(&mut writer, declare);
            }
            Command::DeleteQueue(delete) => {
                writer.byte(7);
                writer.number(delete.queue.0);
                writer.names(&delete.keep);
            }
            Command::Bind(binding) => {
                writer.byte(8);
                write_binding(&mut writer, binding);
            }
            Command::Unbind(unbind) => {
                writer.byte(9);
                write_binding(&mut writer, &unbind.binding);
                writer.names(&unbind.keep);
            }
            Command::PutNode { number, node } => {
                writer.byte(40);
                cluster::write_node(&mut writer, *number, node);
            }
            Command::PutPool { id, pool } => {
                writer.byte(41);
                cluster::write_pool(&mut writer, *id, pool);
            }
            Command::PutPartition { id, partition } => {
                writer.byte(42);
                cluster::write_partition(&mut writer, *id, partition);
            }
            Command::RaiseVersion { version } => {
                writer.byte(43);
                writer.number((*version).into());
            }
            Command::EndHome(home) => {
                writer.byte(44);
                write_home(&mut writer, *home);
            }
            Command::ChangeNodes(change) => change.write(&mut writer),
            Command::ChangeCopies(change) => change.write(&mut writer),
        }
        writer.finish()
    }

    /// The command of these bytes. Errors: anything that `encode` of a version up to this one does
    /// not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let reader = &mut Reader::new(bytes);
        if reader.byte("command version")? != COMMAND_VERSION {
            return Err(reader.malformed("command version"));
        }
        let command = match reader.byte("command tag")? {
            1 => Command::CreateVhost { name: reader.name("virtual host")? },
            2 => {
                let name = reader.name("user")?;
                let (password, tags) = read_credentials_1(reader)?;
                Command::PutUser { name, password, tags }
            }
            3 => Command::PutPermission {
                user: reader.name("user")?,
                vhost: reader.vhost()?,
                permission: read_permission_1(reader)?,
            },
            4 => Command::DeclareExchange(read_exchange(reader)?),
            5 => Command::DeleteExchange(DeleteExchange {
                vhost: reader.vhost()?,
                name: reader.name("exchange")?,
                if_unused: reader.flag("flag")?,
                keep: reader.names("exchanges to keep")?,
            }),
            6 => Command::DeclareQueue(read_queue(reader)?),
            7 => Command::DeleteQueue(DeleteQueue {
                queue: QueueId(reader.number("queue id")?),
                keep: reader.names("exchanges to keep")?,
            }),
            8 => Command::Bind(read_binding(reader)?),
            9 => Command::Unbind(Unbind { binding: read_binding(reader)?, keep: reader.names("exchanges to keep")? }),
            20 => {
                let name = reader.name("user")?;
                let (password, tags) = read_credentials(reader)?;
                Command::PutUser { name, password, tags }
            }
            21 => Command::DeleteUser { name: reader.name("user")? },
            22 => Command::PutPermission {
                user: reader.name("user")?,
                vhost: reader.vhost()?,
                permission: read_permission(reader)?,
            },
            23 => Command::ClearPermission { user: reader.name("user")?, vhost: reader.vhost()? },
            24 => Command::PutTopicPermission {
                user: reader.name("user")?,
                vhost: reader.vhost()?,
                exchange: reader.name("exchange")?,
                write: reader.text("pattern")?.to_owned(),
                read: reader.text("pattern")?.to_owned(),
            },
            25 => Command::ClearTopicPermission {
                user: reader.name("user")?,
                vhost: reader.vhost()?,
                exchange: reader.name("exchange")?,
            },
            26 => Command::SetUserLimits { user: reader.name("user")?, limits: read_user_limits(reader)? },
            27 => Command::SetVhostLimits { vhost: reader.vhost()?, limits: read_vhost_limits(reader)? },
            28 => {
                let (vhost, operator) = (reader.vhost()?, reader.flag("operator policy")?);
                let (name, policy) = read_policy(reader)?;
                Command::PutPolicy(PutPolicy { vhost, operator, name, policy })
            }
            29 => Command::DeletePolicy {
                vhost: reader.vhost()?,
                operator: reader.flag("operator policy")?,
                name: reader.name("policy")?,
            },
            30 => Command::DeleteVhost { vhost: reader.vhost()? },
            31 => Command::DescribeVhost { vhost: reader.vhost()?, description: read_description(reader)? },
            32 => Command::FoundVhost {
                name: reader.name("virtual host")?,
                description: read_description(reader)?,
                owner: reader.name("user")?,
            },
            33 => Command::PutGlobalParameter {
                name: reader.name("global parameter")?,
                value: reader.text("global parameter")?.to_owned(),
            },
            34 => Command::ClearGlobalParameter { name: reader.name("global parameter")? },
            40 => {
                let (number, node) = cluster::read_node(reader)?;
                Command::PutNode { number, node }
            }
            41 => {
                let (id, pool) = cluster::read_pool(reader)?;
                Command::PutPool { id, pool }
            }
            42 => {
                let (id, partition) = cluster::read_partition(reader)?;
                Command::PutPartition { id, partition }
            }
            44 => Command::EndHome(read_home(reader)?),
            tag @ (NodeChange::JOIN_TAG | NodeChange::FORGET_TAG | NodeChange::FORGET_AS_OF_TAG) => {
                Command::ChangeNodes(NodeChange::read(tag, reader)?)
            }
            tag @ (CopyChange::TAKE_TAG | CopyChange::GIVE_TAG) => {
                Command::ChangeCopies(CopyChange::read(tag, reader)?)
            }
            43 => Command::RaiseVersion { version: reader.machine_version()? },
            _ => return Err(reader.malformed("command tag")),
        };
        reader.end()?;
        Ok(command)
    }
}
