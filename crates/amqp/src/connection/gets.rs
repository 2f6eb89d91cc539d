//! Messages that a client fetches: how many of them may be under way.
//!
//! Invariant: a `basic.get` has its turn only while there is room for a message as large as the last ones were, beside
//! what the client has not read and what it fetches already; one is always let through where nothing is unread. A few
//! bytes ask for a message of megabytes, so what was read of the client's frames says nothing of what their answers take.

use crate::channel::ChannelId;
use std::collections::VecDeque;

/// What messages that were fetched and not read may take together, about.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// How large the first message is taken to be.
const EXPECTED_BYTES: usize = 256 << 10;
/// At most so many are fetched at a time by all channels of a connection, however small the last ones were.
const UNDER_WAY_MAX: usize = 16;

/// What a connection fetches.
#[derive(Debug)]
pub(crate) struct Gets {
    under_way: usize,
    /// How large the next message may be, as the last ones were.
    expected: usize,
    /// Channels that wait until there is room, in the order in which they came: one that asks without end waits behind
    /// the others each time. Some may be gone, or go on already.
    held: VecDeque<ChannelId>,
}

impl Default for Gets {
    fn default() -> Self {
        Gets { under_way: 0, expected: EXPECTED_BYTES, held: VecDeque::new() }
    }
}

impl Gets {
    /// Whether another may be fetched, while the client has left so many bytes of answers unread.
    #[inline]
    pub(crate) fn has_room(&self, unread: usize) -> bool {
        (self.under_way == 0 && unread == 0)
            || (self.under_way < UNDER_WAY_MAX
                && unread.saturating_add(self.expected.saturating_mul(self.under_way + 1)) <= UNREAD_BYTES_MAX)
    }

    /// A channel waits for room.
    pub(crate) fn hold(&mut self, channel: ChannelId) {
        self.held.push_back(channel);
    }

    /// Whether those that wait for room may try again.
    #[inline]
    pub(crate) fn may_go_on(&self, unread: usize) -> bool {
        !self.held.is_empty() && self.has_room(unread)
    }

    /// The one that does so next, if there is room for it.
    pub(crate) fn next(&mut self, unread: usize) -> Option<ChannelId> {
        if self.has_room(unread) { self.held.pop_front() } else { None }
    }

    /// All that wait are looked at anew.
    pub(crate) fn forget_held(&mut self) {
        self.held = VecDeque::new();
    }

    /// One is fetched.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.under_way += 1;
    }

    /// It was answered, or its channel is gone.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.under_way -= 1;
    }

    /// It was answered with so many bytes.
    #[inline]
    pub(crate) fn note_size(&mut self, bytes: usize) {
        self.expected = bytes.max(self.expected / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_under_way_as_messages_like_the_last_have_room() {
        let mut gets = Gets::default();
        let begin = |gets: &mut Gets, unread: usize| {
            let mut count = 0;
            while gets.has_room(unread) {
                gets.begin();
                count += 1;
            }
            (0..count).for_each(|_| gets.end());
            count
        };
        assert_eq!(begin(&mut gets, 0), 4);
        gets.note_size(16 << 20);
        assert_eq!((begin(&mut gets, 0), begin(&mut gets, 1)), (1, 0), "one that nothing is in the way of");
        (0..30).for_each(|_| gets.note_size(10));
        assert_eq!((begin(&mut gets, 0), begin(&mut gets, 2 << 20)), (UNDER_WAY_MAX, 0));
    }

    #[test]
    fn who_waits_goes_on_when_the_client_has_read() {
        let mut gets = Gets::default();
        let [first, second] = [1, 2].map(|number| ChannelId::new(number, 1));
        assert!(!gets.may_go_on(0));
        gets.hold(second);
        gets.hold(first);
        assert!(!gets.may_go_on(UNREAD_BYTES_MAX) && gets.may_go_on(0));
        assert_eq!((gets.next(UNREAD_BYTES_MAX), gets.next(0), gets.next(0)), (None, Some(second), Some(first)));
        assert!(!gets.may_go_on(0));
    }
}
