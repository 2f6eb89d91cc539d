//! How much may be on its way to a connection: the window in front of every socket.
//!
//! Invariant: what is encoded for a socket and not yet written is at most its window, one message
//! beyond it, and what the client itself asked for; what is on its way to a channel of another
//! shard is at most [`REMOTE_BYTES_MAX`] and one message. So a client that stops reading holds that
//! much, and its consumers are passed over.

use broker::ChannelKey;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

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
    /// What may be on its way to one channel.
    pub(crate) bytes_max: usize,
}

impl Default for RemoteWindows {
    fn default() -> Self {
        RemoteWindows { sent: HashMap::default(), bytes_max: REMOTE_BYTES_MAX }
    }
}

#[derive(Debug, Default)]
struct Remote {
    outstanding: usize,
    reserved: usize,
}

impl RemoteWindows {
    /// Hands out a portion; 0 when nothing is free.
    pub(crate) fn reserve(&mut self, channel: ChannelKey) -> usize {
        let remote = self.sent.entry(channel).or_default();
        let portion = self.bytes_max.saturating_sub(remote.outstanding + remote.reserved).min(PORTION_BYTES);
        remote.reserved += portion;
        portion
    }

    /// Counts a message that leaves for `channel`.
    pub(crate) fn send(&mut self, channel: ChannelKey, bytes: usize) {
        self.sent.entry(channel).or_default().outstanding += bytes;
    }

    /// The step is over: what was reserved and not sent is free again.
    pub(crate) fn settle(&mut self, channel: ChannelKey) {
        if let Some(remote) = self.sent.get_mut(&channel) {
            remote.reserved = 0;
        }
    }

    /// The channel's connection wrote so many bytes.
    pub(crate) fn drained(&mut self, channel: ChannelKey, bytes: usize) {
        if let Some(remote) = self.sent.get_mut(&channel) {
            remote.outstanding = remote.outstanding.saturating_sub(bytes);
            if remote.outstanding == 0 && remote.reserved == 0 {
                self.sent.remove(&channel);
            }
        }
    }

    /// The channel is gone, and with it what was on its way.
    pub(crate) fn forget(&mut self, channel: ChannelKey) {
        self.sent.remove(&channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
