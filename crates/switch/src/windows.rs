//! How much may be on its way to a connection: the window in front of every socket.
//!
//! Invariant: what is encoded for a socket and not yet written is at most its window, one message
//! beyond it, and what the client itself asked for; what is on its way to a channel of another
//! shard is at most [`REMOTE_BYTES_MAX`] and one message, and to all channels of one connection
//! together [`CONNECTION_BYTES_MAX`] and one message. So a client that stops reading holds that
//! much from each shard, and its consumers are passed over.

use crate::channel_key;
use broker::ChannelKey;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// All windows of a shard together.
const WINDOWS_BYTES: usize = 64 << 20;
/// A window smaller than this would make a system call for a handful of messages.
pub(crate) const WINDOW_BYTES_MIN: usize = 32 << 10;
/// A window larger than this only adds latency: it is more than a socket buffer takes.
pub(crate) const WINDOW_BYTES_MAX: usize = 512 << 10;
/// What one consumer is given at a time, so that one of many on a connection does not get its whole
/// window.
pub(crate) const PORTION_BYTES: usize = 64 << 10;
/// What may be on its way from one shard to one channel of another.
pub(crate) const REMOTE_BYTES_MAX: usize = 256 << 10;
/// What may be on its way from one shard to all channels of one connection of another.
pub(crate) const CONNECTION_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(WINDOW_BYTES_MIN <= WINDOW_BYTES_MAX);

/// The window of each of `connections` connections of one shard.
pub fn window_bytes(connections: usize) -> usize {
    (WINDOWS_BYTES / connections.max(1)).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
}

/// What one connection's output may still take.
#[derive(Debug, Default)]
pub struct Window {
    /// Handed out in this step and not yet used or given back.
    reserved: usize,
}

impl Window {
    /// Hands out a portion of what is free; 0 when nothing is.
    pub fn reserve(&mut self, window: usize, queued: usize) -> usize {
        let portion = window.saturating_sub(queued + self.reserved).min(PORTION_BYTES);
        self.reserved += portion;
        portion
    }

    /// The step is over: what was used is queued now.
    pub fn settle(&mut self) {
        self.reserved = 0;
    }
}

/// What this shard's partitions have sent to channels of other shards and have not heard back of.
#[derive(Debug)]
pub(crate) struct RemoteWindows {
    sent: HashMap<ChannelKey, Remote, FixedState>,
    /// The sums of connections, by what the keys of their channels have in common.
    of_connections: HashMap<u128, Remote, FixedState>,
    /// What may be on its way to one channel.
    pub(crate) bytes_max: usize,
    /// What may be on its way to one connection.
    connection_bytes_max: usize,
}

impl Default for RemoteWindows {
    fn default() -> Self {
        RemoteWindows {
            sent: HashMap::default(),
            of_connections: HashMap::default(),
            bytes_max: REMOTE_BYTES_MAX,
            connection_bytes_max: CONNECTION_BYTES_MAX,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Remote {
    outstanding: usize,
    reserved: usize,
}

impl Remote {
    fn bytes(self) -> usize {
        self.outstanding + self.reserved
    }
}

impl RemoteWindows {
    /// Hands out a portion; 0 when nothing is free.
    pub(crate) fn reserve(&mut self, channel: ChannelKey) -> usize {
        let of_channel = self.sent.get(&channel).copied().unwrap_or_default().bytes();
        let mut free = self.bytes_max.saturating_sub(of_channel);
        if let Some(connection) = channel_key::connection_of(channel) {
            let of_connection = self.of_connections.get(&connection).copied().unwrap_or_default().bytes();
            free = free.min(self.connection_bytes_max.saturating_sub(of_connection));
        }
        let portion = free.min(PORTION_BYTES);
        if portion > 0 {
            self.each(channel, |remote| remote.reserved += portion);
        }
        portion
    }

    /// Counts messages that leave for `channel`.
    pub(crate) fn send(&mut self, channel: ChannelKey, bytes: usize) {
        self.each(channel, |remote| remote.outstanding += bytes);
    }

    /// The step is over: what was reserved and not sent is free again.
    pub(crate) fn settle(&mut self, channel: ChannelKey) {
        let reserved = self.sent.get(&channel).map_or(0, |remote| remote.reserved);
        self.each(channel, |remote| remote.reserved = remote.reserved.saturating_sub(reserved));
    }

    /// The channel's connection wrote so many bytes; [`usize::MAX`] if nothing at all is on its way to it.
    pub(crate) fn drained(&mut self, channel: ChannelKey, bytes: usize) {
        if bytes == usize::MAX {
            self.forget(channel);
            if let Some(connection) = channel_key::connection_of(channel) {
                change_in(&mut self.of_connections, connection, |remote| remote.outstanding = 0);
            }
            return;
        }
        // No more than it was sent: the rest was another node's, which led before.
        let bytes = bytes.min(self.sent.get(&channel).map_or(0, |remote| remote.outstanding));
        self.each(channel, |remote| remote.outstanding = remote.outstanding.saturating_sub(bytes));
    }

    /// The channel is gone, and with it what was on its way.
    pub(crate) fn forget(&mut self, channel: ChannelKey) {
        let Remote { outstanding, reserved } = self.sent.get(&channel).copied().unwrap_or_default();
        self.each(channel, |remote| {
            remote.outstanding = remote.outstanding.saturating_sub(outstanding);
            remote.reserved = remote.reserved.saturating_sub(reserved);
        });
    }

    /// Changes what is known of a channel and of its connection alike; who has nothing on its way is not kept.
    fn each(&mut self, channel: ChannelKey, change: impl Fn(&mut Remote)) {
        change_in(&mut self.sent, channel, &change);
        if let Some(connection) = channel_key::connection_of(channel) {
            change_in(&mut self.of_connections, connection, &change);
        }
    }
}

fn change_in<K: Eq + std::hash::Hash>(all: &mut HashMap<K, Remote, FixedState>, key: K, change: impl Fn(&mut Remote)) {
    match all.entry(key) {
        Entry::Occupied(mut known) => {
            change(known.get_mut());
            if known.get().bytes() == 0 {
                known.remove();
            }
        }
        Entry::Vacant(free) => {
            let mut remote = Remote::default();
            change(&mut remote);
            if remote.bytes() > 0 {
                free.insert(remote);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel_key::{ChannelKeys, ConnectionKeys};
    use broker::NodeLife;

    #[test]
    fn windows_shrink_with_the_number_of_connections_and_stay_in_their_bounds() {
        assert_eq!(window_bytes(0), WINDOW_BYTES_MAX);
        assert_eq!(window_bytes(256), 256 << 10);
        assert_eq!(window_bytes(100_000), WINDOW_BYTES_MIN);
    }

    #[test]
    fn portions_never_add_up_to_more_than_the_window() {
        let mut window = Window::default();
        let given: Vec<usize> = (0..4).map(|_| window.reserve(150 << 10, 10 << 10)).collect();
        assert_eq!(given, [64 << 10, 64 << 10, 12 << 10, 0]);
        window.settle();
        assert_eq!(window.reserve(150 << 10, 149 << 10), 1 << 10);
    }

    #[test]
    fn a_remote_channel_gets_room_again_only_when_it_was_drained() {
        let (mut windows, channel) = (RemoteWindows::default(), ChannelKey(7));
        let mut sent = 0;
        loop {
            let portion = windows.reserve(channel);
            if portion == 0 {
                break;
            }
            sent += portion;
            windows.send(channel, portion);
            windows.settle(channel);
        }
        assert_eq!(sent, REMOTE_BYTES_MAX);
        windows.drained(channel, 1000);
        assert_eq!(windows.reserve(channel), 1000);
        windows.settle(channel);
        windows.drained(channel, sent - 1000);
        assert!(windows.sent.is_empty());
    }

    #[test]
    fn the_channels_of_a_connection_share_its_window_and_give_back_what_they_took() {
        let mut keys = ChannelKeys::new(NodeLife { node: 1, start: 1 }, 0);
        let [mut first, mut second] = [ConnectionKeys::default(); 2];
        let (mut windows, message) = (RemoteWindows::default(), 10 << 20);
        let take = |windows: &mut RemoteWindows, channel| {
            let portion = windows.reserve(channel);
            windows.settle(channel);
            windows.send(channel, if portion > 0 { message } else { 0 });
            portion > 0
        };
        let of_first: Vec<ChannelKey> = (0..100).map(|_| keys.next_of(&mut first)).collect();
        let given: Vec<bool> = of_first.iter().map(|channel| take(&mut windows, *channel)).collect();
        assert_eq!(given.iter().filter(|is_given| **is_given).count(), 1, "one large message for all of them");
        let other = keys.next_of(&mut second);
        assert!(take(&mut windows, other), "another connection has its own");
        // What a node that led before had sent is drained too, and counts for nothing here.
        windows.drained(of_first[7], message);
        assert!(!take(&mut windows, of_first[7]));
        windows.drained(of_first[0], message);
        assert!(take(&mut windows, of_first[7]));
        windows.forget(of_first[7]);
        windows.drained(other, message);
        assert!(windows.sent.is_empty() && windows.of_connections.is_empty());
        // What nobody tells of any more holds up the others only until one of them finds that it is not on its way.
        assert!(take(&mut windows, of_first[3]) && !take(&mut windows, of_first[4]));
        windows.drained(of_first[4], usize::MAX);
        assert!(take(&mut windows, of_first[4]));
        windows.drained(of_first[3], message);
        windows.drained(of_first[4], message);
        assert!(windows.sent.is_empty() && windows.of_connections.is_empty());
        // Keys that tell of no connection are channels by themselves, as those of earlier builds are.
        assert!((0..100).all(|number| take(&mut windows, ChannelKey(7 + number))));
    }
}
