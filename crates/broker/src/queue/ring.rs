//! The consumers of a queue that take messages, in the order of their turns.
//!
//! Invariant: higher priorities come first, equals in the order in which they came in. Coming in and
//! going cost the logarithm of how many there are, wherever they stand. The last one to go leaves the
//! room for it: consumers that run out of credit and get it back with each message allocate nothing.

use crate::ids::ConsumerKey;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A place in the order: the priority, and the ticket.
type Turn = (Reverse<i32>, u64);

/// The end of the order, behind every ticket. While it is there the map keeps its memory.
const END: Turn = (Reverse(i32::MIN), u64::MAX);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Empty, or with `END`, whose value means nothing.
    turns: BTreeMap<Turn, ConsumerKey>,
    /// The first of them: it is asked for with every message.
    front: Option<ConsumerKey>,
    last_ticket: u64,
}

impl Ring {
    /// Whose turn it is.
    #[inline]
    pub(super) fn front(&self) -> Option<ConsumerKey> {
        self.front
    }

    fn look(&mut self) {
        self.front = self.turns.first_key_value().filter(|(turn, _)| **turn != END).map(|(_, key)| *key);
    }

    /// Whether nobody else is there than the one at the front.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.turns.len() == 2
    }

    /// Puts a consumer behind its equals; returns the ticket under which it goes.
    pub(super) fn push(&mut self, priority: i32, key: ConsumerKey) -> u64 {
        self.last_ticket += 1;
        if self.turns.is_empty() {
            self.turns.insert(END, key);
        }
        self.turns.insert((Reverse(priority), self.last_ticket), key);
        self.look();
        self.last_ticket
    }

    /// Takes the consumer with this ticket out.
    pub(super) fn remove(&mut self, priority: i32, ticket: u64) {
        let was_there = self.turns.remove(&(Reverse(priority), ticket));
        assert!(was_there.is_some(), "a ticket stands for a place");
        self.look();
    }

    /// The queue has no consumer any more: memory goes back.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
        self.front = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ChannelKey;

    #[test]
    fn higher_priorities_come_first_and_equals_as_they_came() {
        let key = |number| ConsumerKey { channel: ChannelKey(7), number };
        let mut ring = Ring::default();
        let tickets = [(1, 0), (2, 5), (3, 0), (4, -1), (5, 5)].map(|(number, p)| (p, ring.push(p, key(number))));
        let mut order = Vec::new();
        for at in [1, 4, 0, 2, 3] {
            assert_eq!(ring.is_alone(), at == 3);
            order.extend(ring.front());
            ring.remove(tickets[at].0, tickets[at].1);
        }
        assert_eq!(order, [2, 5, 1, 3, 4].map(key));
        assert_eq!((ring.front(), ring.turns.len()), (None, 1), "there is room for the next one");
        ring.push(i32::MIN, key(6));
        assert_eq!((ring.front(), ring.is_alone()), (Some(key(6)), true));
        ring.clear();
        assert_eq!((ring.front(), ring.turns.len()), (None, 0));
    }
}
