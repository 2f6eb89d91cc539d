//! The bindings of an exchange that sends each message to one of its destinations.
//!
//! Invariant: which destination a hash gives depends on the destinations' names and weights alone,
//! not on the order in which they were bound, so a restart or another node changes nothing. A
//! destination that comes takes its share from all others and one that goes leaves its share to
//! them: no message changes places between two that stay.

use smallvec::SmallVec;

use super::destination::Destination;
use super::message_facts::mix;

/// One destination and the weights of the bindings that lead to it.
#[derive(Debug)]
struct Share {
    destination: Destination,
    /// The hash of its kind and name.
    identity: u64,
    /// Highest first. The highest counts: RabbitMQ takes the first that was bound, which a restart
    /// would forget.
    weights: SmallVec<[u32; 1]>,
}

/// The destinations of one exchange, sorted by identity.
#[derive(Debug, Default)]
pub(super) struct SpreadTable {
    shares: Vec<Share>,
    /// Whether the highest weights differ, which costs a logarithm a destination and route.
    weighted: bool,
}

impl SpreadTable {
    /// Adds one binding.
    pub(super) fn add(&mut self, destination: Destination, identity: u64, weight: u32) {
        assert!(weight > 0, "a share of nothing is refused before");
        let at = match self.position(destination, identity) {
            Ok(at) => at,
            Err(at) => {
                self.shares.insert(at, Share { destination, identity, weights: Default::default() });
                at
            }
        };
        let weights = &mut self.shares[at].weights;
        weights.push(weight);
        weights.sort_unstable_by(|a, b| b.cmp(a));
        self.weigh();
    }

    /// Takes one binding away; it must be there.
    pub(super) fn remove(&mut self, destination: Destination, identity: u64, weight: u32) {
        let at = self.position(destination, identity).expect("only what was added is removed");
        let weights = &mut self.shares[at].weights;
        let found = weights.iter().position(|w| *w == weight).expect("only what was added is removed");
        weights.remove(found);
        if weights.is_empty() {
            self.shares.remove(at);
        }
        self.weigh();
    }

    /// The destination that a hash leads to, in proportion to the weights. Cost: one pass over the
    /// destinations.
    pub(super) fn weighted(&self, hash: u64) -> Option<Destination> {
        if !self.weighted {
            return self.shares.iter().max_by_key(|share| mix(share.identity ^ hash)).map(|share| share.destination);
        }
        // Each draws a number between 0 and 1 and takes its weight-th root; the highest wins. The
        // logarithm of that is what is compared, so that no weight makes it 1.
        let score = |share: &Share| {
            let drawn = ((mix(share.identity ^ hash) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            drawn.ln() / f64::from(share.weights[0])
        };
        self.shares.iter().max_by(|a, b| score(a).total_cmp(&score(b))).map(|share| share.destination)
    }

    /// The destination that a number leads to, all counting alike.
    pub(super) fn modulus(&self, number: u64) -> Option<Destination> {
        let count = self.shares.len() as u64;
        (count > 0).then(|| self.shares[(number % count) as usize].destination)
    }

    fn weigh(&mut self) {
        self.weighted = self.shares.iter().any(|share| share.weights[0] != self.shares[0].weights[0]);
    }

    fn position(&self, destination: Destination, identity: u64) -> Result<usize, usize> {
        self.shares.binary_search_by_key(&(identity, destination), |share| (share.identity, share.destination))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::message_facts::stable_hash;

    const MESSAGES: u64 = 20_000;

    fn table(weights: &[(usize, u32)]) -> SpreadTable {
        let mut table = SpreadTable::default();
        for (place, weight) in weights {
            table.add(Destination::queue(*place), stable_hash(&place.to_le_bytes()), *weight);
        }
        table
    }

    fn routes(table: &SpreadTable) -> Vec<Destination> {
        (0..MESSAGES).filter_map(|message| table.weighted(stable_hash(&message.to_le_bytes()))).collect()
    }

    fn count(routes: &[Destination], place: usize) -> usize {
        routes.iter().filter(|d| **d == Destination::queue(place)).count()
    }

    #[test]
    fn each_gets_its_share_of_the_messages() {
        for weights in [&[(0, 1), (1, 1), (2, 1), (3, 1)][..], &[(0, 1), (1, 2), (2, 5)], &[(0, 20), (1, 20)]] {
            let routes = routes(&table(weights));
            let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
            for (place, weight) in weights {
                let wanted = MESSAGES as f64 * f64::from(*weight) / f64::from(sum);
                let got = count(&routes, *place) as f64;
                assert!((got - wanted).abs() < wanted * 0.06, "{weights:?}: {place} has {got} instead of {wanted}");
            }
        }
    }

    #[test]
    fn who_comes_or_goes_moves_only_its_own_share() {
        let (before, after) =
            (routes(&table(&[(0, 3), (1, 1), (2, 2)])), routes(&table(&[(0, 3), (2, 2), (7, 4), (1, 1)])));
        for (old, new) in before.iter().zip(&after) {
            assert!(old == new || *new == Destination::queue(7), "a message went from {old:?} to {new:?}");
        }
        assert!(count(&after, 7) > 0);
    }

    #[test]
    fn the_highest_weight_of_several_bindings_counts_and_what_is_removed_is_gone() {
        let mut both = table(&[(0, 1), (1, 2), (0, 9), (0, 1)]);
        assert_eq!(routes(&both), routes(&table(&[(0, 9), (1, 2)])));
        let zero = stable_hash(&0usize.to_le_bytes());
        both.remove(Destination::queue(0), zero, 9);
        assert_eq!(routes(&both), routes(&table(&[(1, 2), (0, 1)])));
        both.remove(Destination::queue(0), zero, 1);
        both.remove(Destination::queue(0), zero, 1);
        assert_eq!(count(&routes(&both), 1), MESSAGES as usize);
        both.remove(Destination::queue(1), stable_hash(&1usize.to_le_bytes()), 2);
        assert_eq!((both.weighted(5), both.modulus(5)), (None, None));
    }

    #[test]
    fn a_modulus_gives_all_the_same_share() {
        let table = table(&[(4, 1), (9, 1), (2, 1)]);
        let found: Vec<_> = (0..6).filter_map(|n| table.modulus(n)).collect();
        assert_eq!(found[..3], found[3..]);
        for place in [4, 9, 2] {
            assert_eq!(count(&found, place), 2);
        }
    }
}
