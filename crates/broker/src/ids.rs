//! The numbers by which the rooms of the broker name things to each other.
//!
//! Invariant: an id is given out once and never again, so that a late command about a deleted queue
//! cannot hit the next queue of the same name.

/// A queue, for as long as it exists and for ever after.
///
/// Ids below `2^63` come from the replicated topology and are the same on every node. Ids from
/// `2^63` on are queues that only one node knows; they are unique on that node, until it restarts,
/// which ends those queues too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

impl QueueId {
    /// The bit that tells a queue of this node only from one that every node knows.
    pub const LOCAL_BIT: u64 = 1 << 63;

    /// Whether only this node knows this queue: transient or exclusive on a node that is alone, in
    /// no log and in no snapshot.
    pub fn is_local(self) -> bool {
        self.0 & Self::LOCAL_BIT != 0
    }
}

/// A partition: one Raft group with the queues that live in it; or the queues in the memory of one
/// shard of one node.
///
/// ```text
///   31         30            6 5      0
///   in memory  node            shard          a node that is alone says node 0
///   0          number of the group
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

impl PartitionId {
    const IN_MEMORY_BIT: u32 = 1 << 31;
    const SHARD_BITS: u32 = 6;
    /// Shards that one node may have.
    pub const SHARDS_MAX: usize = 1 << PartitionId::SHARD_BITS;

    /// The queues in the memory of a shard. Panics: if a number is larger than any node's or
    /// shard's.
    pub const fn in_memory(node: NodeNumber, shard: usize) -> PartitionId {
        assert!(shard < PartitionId::SHARDS_MAX, "a node has at most SHARDS_MAX shards");
        assert!(node.0 < 1 << (31 - PartitionId::SHARD_BITS), "numbers of nodes are small");
        PartitionId(PartitionId::IN_MEMORY_BIT | node.0 << PartitionId::SHARD_BITS | shard as u32)
    }

    /// Whether its queues are in the memory of one node, and on no disk.
    pub const fn is_in_memory(self) -> bool {
        self.0 & PartitionId::IN_MEMORY_BIT != 0
    }

    /// The node in whose memory it is; `None` for a group. Node 0 is the one that asks, which is
    /// alone.
    pub const fn home(self) -> Option<NodeNumber> {
        match self.is_in_memory() {
            true => Some(NodeNumber((self.0 & !PartitionId::IN_MEMORY_BIT) >> PartitionId::SHARD_BITS)),
            false => None,
        }
    }

    /// The shard in whose memory it is; `None` for a group.
    pub const fn memory_shard(self) -> Option<usize> {
        match self.is_in_memory() {
            true => Some((self.0 & ((1 << PartitionId::SHARD_BITS) - 1)) as usize),
            false => None,
        }
    }
}

/// A node of the cluster, counted from 1. Groups count their members by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(pub u32);

/// A pool of partitions that are alike, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u32);

/// A virtual host. Ids are given out in the order of creation; `/` is always 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VhostId(pub u32);

/// One life of one node: which node of the cluster, and which of its starts. Node 0 is none: it
/// stands for the nodes of builds whose channels did not say where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLife {
    /// The node's number in its cluster, which no other node ever has.
    pub node: u32,
    /// The number of the start, which no other start of the node ever has.
    pub start: u32,
}

impl NodeLife {
    /// It as one word, as in the keys of its channels.
    pub const fn word(self) -> u64 {
        (self.node as u64) << 32 | self.start as u64
    }
}

/// One life of one channel, unique over nodes and restarts: channel numbers are reused, this is
/// not. It names the publisher in the log (0 is nobody) and the holder of unacked messages at the
/// leader.
///
/// ```text
///   127    96 95     64 63               0
///   node      start     number in that life
/// ```
// Aligned as the words that it consists of: the alignment of 128 bits would only make what holds a
// key larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(8))]
pub struct ChannelKey(pub u128);

impl ChannelKey {
    /// Nobody: a publisher that asked for no confirms, so that nothing has to be remembered of it.
    pub const NOBODY: ChannelKey = ChannelKey(0);

    /// The key of a channel with this number in this life of its node.
    pub const fn of(life: NodeLife, number: u64) -> ChannelKey {
        ChannelKey::from_words(life.word(), number)
    }

    /// The life of the node that the channel belongs to.
    pub const fn life(self) -> NodeLife {
        NodeLife { node: (self.0 >> 96) as u32, start: (self.0 >> 64) as u32 }
    }

    /// The channel's number in that life.
    pub const fn number(self) -> u64 {
        self.0 as u64
    }

    /// The key whose life and number logs and checkpoints hold in these two words.
    pub const fn from_words(life: u64, number: u64) -> ChannelKey {
        ChannelKey((life as u128) << 64 | number as u128)
    }

    /// The word of its life, 0 if it says nothing of one, and that of its number.
    pub const fn words(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }
}

/// One consumer of one channel. Number 0 is never a consumer: it holds what `basic.get` took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerKey {
    /// The channel that it belongs to.
    pub channel: ChannelKey,
    /// Its number on that channel, from 1; 0 is `basic.get`.
    pub number: u32,
}

impl ConsumerKey {
    /// The holder of what `basic.get` without no-ack took on this channel.
    pub fn get(channel: ChannelKey) -> Self {
        ConsumerKey { channel, number: 0 }
    }
}
