//! How much may wait in memory for the connections that asked for direct replies.
//!
//! A reply that finds its asker reading goes straight through and is counted nowhere. What is left of a turn
//! waits, and waits for as long as the asker leaves it unread: without a bound of its own it would fill what
//! all transient queues share, and every publisher of the node would pay for one client that does not read.
//! So a reply to a connection that has its fill is dropped, as RabbitMQ drops one that its asker has no
//! credit for or is gone for: replies are delivered at most once. Its publisher is confirmed, and it does not
//! come back as unroutable, as the asker is there. The connection stays: it may do other things, which its
//! replies have nothing to do with, and once it reads it gets the next reply.
//!
//! Invariant: what waits is counted once, in its connection's sum and in the node's, and given back when it
//! goes out, ends or its queue goes.

use broker::ChannelKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a message that waits costs besides its bytes.
const MESSAGE_OVERHEAD_BYTES: u64 = 256;

/// So much may wait for each connection, however much waits for others.
const ALWAYS_BYTES: u64 = 64 << 10;

/// One connection has at most one in this many of the bytes that all transient queues share, and all
/// connections together one in half as many.
const CONNECTION_SHARE: u64 = 4;

/// What waits for all connections of a node, and the most of it.
#[derive(Debug)]
pub struct ReplyRooms {
    waiting: AtomicU64,
    connection_max: u64,
    node_max: u64,
}

impl ReplyRooms {
    /// Room for replies where one connection may hold `connection_bytes_max` and all transient queues
    /// `transient_bytes_max`.
    pub fn new(connection_bytes_max: u64, transient_bytes_max: u64) -> Self {
        let connection_max = connection_bytes_max.min(transient_bytes_max / CONNECTION_SHARE);
        let node_max = transient_bytes_max / CONNECTION_SHARE * 2;
        ReplyRooms { waiting: AtomicU64::new(0), connection_max, node_max }
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Default for ReplyRooms {
    /// Room without end.
    fn default() -> Self {
        ReplyRooms::new(u64::MAX, u64::MAX)
    }
}

/// The room of one connection, for all of its channels.
#[derive(Debug)]
pub struct ReplyRoom {
    rooms: Arc<ReplyRooms>,
    waiting: AtomicU64,
    is_told: AtomicBool,
}

impl ReplyRoom {
    /// An empty one.
    pub fn new(rooms: Arc<ReplyRooms>) -> Self {
        ReplyRoom { rooms, waiting: AtomicU64::new(0), is_told: AtomicBool::new(false) }
    }

    /// Whether what comes now is dropped. One reply of any size finds room where none waits.
    fn is_full(&self) -> bool {
        match self.waiting.load(Ordering::Relaxed) {
            0..ALWAYS_BYTES => false,
            waiting => waiting >= self.rooms.connection_max || self.rooms.waiting() >= self.rooms.node_max,
        }
    }
}

impl PartialEq for ReplyRoom {
    /// It is itself alone.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// What waits in one queue of replies.
pub(crate) struct WaitingReplies {
    room: Arc<ReplyRoom>,
    /// Whose they are.
    channel: ChannelKey,
    bytes: u64,
    /// Messages below were looked at when a turn ended, and are counted if they are still there.
    counted_below: u64,
}

impl WaitingReplies {
    pub(crate) fn new(room: Arc<ReplyRoom>, channel: ChannelKey) -> Self {
        WaitingReplies { room, channel, bytes: 0, counted_below: 0 }
    }

    /// Whether a reply that comes now is dropped.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.room.is_full()
    }

    /// The channel that is to hear that a reply was dropped, the first time that one of its connection is.
    pub(crate) fn note_dropped(&self) -> Option<ChannelKey> {
        (!self.room.is_told.swap(true, Ordering::Relaxed)).then_some(self.channel)
    }

    /// The messages of these numbers that no turn has left behind before.
    pub(crate) fn uncounted(&mut self, next_seq: u64) -> std::ops::Range<u64> {
        std::mem::replace(&mut self.counted_below, next_seq)..next_seq
    }

    /// Which of so many messages from `first` were counted, if they were there.
    pub(crate) fn counted(&self, first: u64, count: u64) -> std::ops::Range<u64> {
        first..(first + count).min(self.counted_below)
    }

    /// A message of so many bytes waits.
    pub(crate) fn add(&mut self, message_bytes: usize) {
        let bytes = message_bytes as u64 + MESSAGE_OVERHEAD_BYTES;
        self.bytes += bytes;
        self.room.waiting.fetch_add(bytes, Ordering::Relaxed);
        self.room.rooms.waiting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It waits no more.
    pub(crate) fn take(&mut self, message_bytes: usize) {
        self.give_back(message_bytes as u64 + MESSAGE_OVERHEAD_BYTES);
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.room.waiting.fetch_sub(bytes, Ordering::Relaxed);
        self.room.rooms.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for WaitingReplies {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(room: &Arc<ReplyRoom>) -> WaitingReplies {
        WaitingReplies::new(room.clone(), ChannelKey(7))
    }

    #[test]
    fn the_channels_of_a_connection_share_its_room_and_give_it_back() {
        let rooms = Arc::new(ReplyRooms::new(1 << 20, 1 << 30));
        let (ann, bob) = (Arc::new(ReplyRoom::new(rooms.clone())), Arc::new(ReplyRoom::new(rooms.clone())));
        let (mut first, mut second, mut other) = (waiting(&ann), waiting(&ann), waiting(&bob));
        assert!(!first.is_full(), "the first one has room, whatever its size");
        first.add(1 << 20);
        second.add(1);
        other.add(1);
        assert!(first.is_full() && second.is_full(), "the connection has its fill");
        assert!(!other.is_full(), "another has not");
        assert_eq!(
            [&first, &second, &other].map(WaitingReplies::note_dropped),
            [Some(ChannelKey(7)), None, Some(ChannelKey(7))]
        );
        first.take(1 << 20);
        assert!(!first.is_full() && !second.is_full(), "it was read");
        drop((first, second, other));
        assert_eq!(rooms.waiting(), 0);
    }

    #[test]
    fn where_the_node_has_its_fill_each_connection_keeps_a_little() {
        let rooms = Arc::new(ReplyRooms::new(1 << 20, 4 << 20));
        let mut taken = [(); 3].map(|()| waiting(&Arc::new(ReplyRoom::new(rooms.clone()))));
        taken[0].add(1 << 20);
        taken[1].add(1 << 20);
        taken[2].add(1000);
        assert_eq!(taken.each_ref().map(WaitingReplies::is_full), [true, true, false]);
        taken[2].add(ALWAYS_BYTES as usize);
        assert!(taken[2].is_full(), "two of four MiB are taken");
        taken[0].take(1 << 20);
        assert!(!taken[2].is_full());
    }
}
