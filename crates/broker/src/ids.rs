//! Names by number: queues, partitions, channels, consumers.
//!
//! Invariant: a number is given out once and never again, so that a late answer to something gone meets nobody.

/// A broker queue. Allocated by the topology machine and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

/// A partition: one Raft group that holds many queues. Partition 0 is the topology's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

/// One life of one channel, unique over nodes and restarts: channel numbers are reused, this is not.
/// It names the publisher in the log (0 is nobody) and the holder of unacked messages at the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelKey(pub u64);

impl ChannelKey {
    /// Nobody: a publisher that asked for no confirms, so that nothing has to be remembered of it.
    pub const NOBODY: ChannelKey = ChannelKey(0);
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
