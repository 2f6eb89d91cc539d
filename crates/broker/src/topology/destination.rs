//! Where a binding leads: a queue or an exchange, by its place in this node's tables.
//!
//! Invariant: places are this node's own; they are in no command, no snapshot and no answer.

use smallvec::SmallVec;

/// A place in the table of queues or of exchanges, told apart by the highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Destination(u32);

const EXCHANGE_BIT: u32 = 1 << 31;

/// A destination taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Queue(usize),
    Exchange(usize),
}

impl Destination {
    pub(super) fn queue(place: usize) -> Self {
        let place = u32::try_from(place).expect("the number of queues is limited");
        assert!(place < EXCHANGE_BIT, "the number of queues is limited");
        Self(place)
    }

    pub(super) fn exchange(place: usize) -> Self {
        let place = u32::try_from(place).expect("the number of exchanges is limited");
        assert!(place < EXCHANGE_BIT, "the number of exchanges is limited");
        Self(place | EXCHANGE_BIT)
    }

    pub(super) fn place(self) -> Place {
        if self.0 & EXCHANGE_BIT == 0 {
            Place::Queue(self.0 as usize)
        } else {
            Place::Exchange((self.0 & !EXCHANGE_BIT) as usize)
        }
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// Destinations, each once, with the number of bindings that lead there; sorted, so that one is
/// found in a fanout of many by halving.
#[derive(Debug, Default)]
pub(super) struct Destinations(SmallVec<[(Destination, u32); 1]>);

impl Destinations {
    pub(super) fn add(&mut self, destination: Destination) {
        match self.0.binary_search_by_key(&destination, |(d, _)| *d) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (destination, 1)),
        }
    }

    /// Takes one binding away; it must be there.
    pub(super) fn remove(&mut self, destination: Destination) {
        let at = self.0.binary_search_by_key(&destination, |(d, _)| *d).expect("only what was added is removed");
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
            if self.0.len() * 4 < self.0.capacity() {
                self.0.shrink_to_fit();
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn each(&self, visit: &mut impl FnMut(Destination)) {
        for (destination, _) in &self.0 {
            visit(*destination);
        }
    }
}
