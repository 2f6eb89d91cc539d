//! Memory that clients make the broker hold with what they have begun and not ended: bodies that
//! are not there as a whole, transactions that were not committed, frames that stop in the middle;
//! and channels and consumers, which stand until they are closed.
//!
//! Invariant: what one connection holds is counted once, in its user's sum and in the node's, from
//! the end of the read that brought it until it is gone. A message that is whole at the end of its
//! read is never counted and costs nothing here.
//!
//! What was begun cannot wait for room: only its end gives the memory back. So a connection that
//! goes on growing beyond a limit is closed, where publishers of whole messages are only held back.

use partition::ReplyRooms;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Less than this is not counted: nearly every read ends within a message, and should neither touch
/// what other threads look at nor be refused because others hold much.
const COUNTED_FROM: usize = 32 << 10;

/// What is told of so many bytes. What comes and goes with each read is asked for apart from what
/// stands, so that a connection with many channels does not tell of every message that a read ends
/// in.
#[inline]
pub(crate) fn counted(bytes: usize) -> usize {
    if bytes < COUNTED_FROM { 0 } else { bytes }
}

/// Which limit was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Connection,
    User,
    Node,
}

impl Limit {
    /// What the client is told.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Limit::Connection => {
                "too many bytes in unfinished messages, transactions, channels and consumers of this connection (connection_bytes_max)"
            }
            Limit::User => {
                "too many bytes in unfinished messages, transactions, channels and consumers of this user (user_bytes_max)"
            }
            Limit::Node => {
                "too many bytes in unfinished messages, transactions, channels and consumers of this node (transient_bytes_max)"
            }
        }
    }
}

/// The most that may be held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    pub(crate) connection: u64,
    pub(crate) user: u64,
    pub(crate) node: u64,
}

/// What all clients of a node hold, and the most of it.
#[derive(Debug, Default)]
pub struct Sums {
    /// What they have begun and not ended.
    pub unfinished: AtomicU64,
    /// How much that may be.
    pub limits: Limits,
    /// Frames that wait for their channel's turn.
    pub waiting: AtomicU64,
    /// Beyond so many of them, each connection keeps few.
    pub waiting_max: u64,
    /// Direct replies that wait for who asked: they are dropped where there are too many, and no connection is
    /// closed for them.
    pub replies: Arc<ReplyRooms>,
}

impl Limits {
    /// One connection may always hold what it may hold, however small the rest is.
    pub fn new(connection: u64, user: u64, transient_bytes_max: u64) -> Self {
        let node = (transient_bytes_max / 2).max(connection);
        Limits { connection, user: user.clamp(connection, node), node }
    }
}

/// What one connection holds, as the others know it.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    bytes: u64,
    of_user: Option<Arc<AtomicU64>>,
}

impl Unfinished {
    /// The connection has logged in: its bytes count in this user's sum too.
    pub(crate) fn belongs_to(&mut self, user: Arc<AtomicU64>) {
        user.fetch_add(self.bytes, Ordering::Relaxed);
        if let Some(before) = self.of_user.replace(user) {
            before.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }

    /// Whether the others know a different number.
    #[inline]
    pub(crate) fn differs(&self, bytes: usize) -> bool {
        self.bytes != bytes as u64
    }

    /// Tells the others. Returns the limit that this connection passes by growing, the narrowest
    /// first.
    #[cold]
    pub(crate) fn tell(&mut self, bytes: usize, of_node: &AtomicU64, limits: &Limits) -> Option<Limit> {
        let (before, now) = (self.bytes, bytes as u64);
        self.bytes = now;
        let move_sum = |sum: &AtomicU64| match now >= before {
            true => sum.fetch_add(now - before, Ordering::Relaxed) + (now - before),
            false => sum.fetch_sub(before - now, Ordering::Relaxed) - (before - now),
        };
        let user = self.of_user.as_deref().map_or(0, &move_sum);
        let node = move_sum(of_node);
        if now <= before {
            return None;
        }
        let passed = [
            (now > limits.connection, Limit::Connection),
            (user > limits.user, Limit::User),
            (node > limits.node, Limit::Node),
        ];
        passed.into_iter().find(|(is_passed, _)| *is_passed).map(|(_, limit)| limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { connection: 100, user: 150, node: 200 };

    #[test]
    fn who_grows_beyond_the_narrowest_limit_is_told_which_and_who_shrinks_is_not() {
        let node = AtomicU64::new(0);
        let (ann, bob) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let [mut first, mut second, mut third] = [const { Unfinished { bytes: 0, of_user: None } }; 3];
        first.tell(10, &node, &LIMITS);
        first.belongs_to(ann.clone());
        second.belongs_to(ann.clone());
        third.belongs_to(bob.clone());
        assert_eq!(first.tell(101, &node, &LIMITS), Some(Limit::Connection));
        assert_eq!(first.tell(100, &node, &LIMITS), None);
        assert_eq!(second.tell(51, &node, &LIMITS), Some(Limit::User));
        assert_eq!(second.tell(50, &node, &LIMITS), None);
        assert_eq!(third.tell(50, &node, &LIMITS), None);
        assert_eq!(third.tell(51, &node, &LIMITS), Some(Limit::Node));
        assert_eq!([&ann, &bob].map(|sum| sum.load(Ordering::Relaxed)), [150, 51]);
        for connection in [&mut first, &mut second, &mut third] {
            assert_eq!(connection.tell(0, &node, &LIMITS), None);
        }
        let left = [&*ann, &*bob, &node].map(|sum| sum.load(Ordering::Relaxed));
        assert_eq!(left, [0, 0, 0], "all is given back");
    }

    /// Telling touches what other threads look at, so a read that ends within a message must not
    /// make it differ.
    #[test]
    fn what_stands_does_not_make_the_end_of_a_small_message_count() {
        let standing = 100 << 10;
        let held = |unfinished: usize| counted(unfinished) + counted(standing);
        assert_eq!([0, 1000, COUNTED_FROM - 1].map(held), [standing; 3]);
        assert_eq!(held(COUNTED_FROM), standing + COUNTED_FROM);
    }

    #[test]
    fn small_settings_leave_room_for_one_connection() {
        let limits = Limits::new(64, 10, 20);
        assert_eq!((limits.connection, limits.user, limits.node), (64, 64, 64));
        let limits = Limits::new(64, 1 << 20, 1000);
        assert_eq!((limits.connection, limits.user, limits.node), (64, 500, 500));
    }
}
