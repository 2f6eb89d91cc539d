//! What one shard, or another thread of the node, hands to a shard's switch.

use crate::roads::{Frames, LinkUp};
use broker::topology::{BrokerEvent, CommandReply, Refusal};
use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, QueueId};
use node::NodeId;
use partition::{Command, Effect, PeerFrame, RequestId};
use session::Deletion;

/// See the module. `O` is somebody who is no channel and waits for an answer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all are commands and effects.
pub enum Parcel<O> {
    /// For a partition of this shard.
    Command(PartitionId, Command),
    /// A queue now exists on a partition of this shard.
    Declare(PartitionId, QueueId),
    /// For a channel of this shard, from a partition of another, or as that would say it.
    Effect(PartitionId, Effect),
    /// A partition of another shard passed a consumer of this shard over: its channel took all that
    /// it may.
    Starved {
        /// The consumer.
        consumer: ConsumerKey,
    },
    /// The connection of a channel has written so many bytes that a partition of this shard had
    /// sent it.
    Drained {
        /// The channel.
        channel: ChannelKey,
        /// How many bytes.
        bytes: usize,
    },
    /// A proposal of a channel of this shard was decided.
    Decided {
        /// The channel.
        channel: ChannelKey,
        /// Its request.
        request: RequestId,
        /// What became of it.
        outcome: Result<CommandReply, Refusal>,
    },
    /// A partition wants a step although nobody sent it a command: the disk or a peer answered.
    Wake(PartitionId),
    /// A partition of this shard has other members, or is new, as the topology here has it now.
    Look(PartitionId),
    /// Something happened that the event exchange is told.
    Event(Box<BrokerEvent>),
    /// A queue is to go: one of this shard's partitions, or of those that other nodes lead.
    Delete(Box<Deletion<O>>),
    /// Somebody who is no channel wants a queue to lose what is ready: one of this shard's partitions,
    /// or of those that other nodes lead.
    Purge(PartitionId, QueueId, O),
    /// A link to another node is up.
    LinkUp(LinkUp),
    /// The link to another node is gone.
    LinkDown(NodeNumber),
    /// What another node sent for partitions and channels of this shard, in order.
    Forwards(NodeNumber, Frames),
    /// From another member of the group of one of this shard's partitions.
    Frame(PartitionId, NodeId, PeerFrame),
}
