//! When a member without a leader stands for election: a seeded draw, not the library's
//! thread-local random numbers.
//!
//! The library draws a timeout from a global generator whenever it resets. It is configured so that
//! its own timeout never comes ([`NEVER_TICKS`]), and this timer decides instead, from the seed,
//! the group and the node alone.
//!
//! Invariant: a timeout lies in `[election_ticks, 2 * election_ticks)`, and a member draws a new
//! one whenever it stands, so that two members that stand together once part soon.

use crate::position::NodeId;

/// The library's own election timeout: more ticks than any process lives.
pub(crate) const NEVER_TICKS: usize = usize::MAX / 2;

/// The election timeout of one member.
#[derive(Debug)]
pub(crate) struct ElectionTimer {
    state: u64,
    election_ticks: usize,
    timeout_ticks: usize,
}

impl ElectionTimer {
    /// A timer whose draws depend on these four alone.
    pub(crate) fn new(seed: u64, group: u32, node: NodeId, election_ticks: usize) -> Self {
        let mut timer = Self { state: seed, election_ticks, timeout_ticks: 0 };
        // Members of one group, and groups of one node, must not draw the same numbers from one
        // seed.
        timer.state = timer.next() ^ u64::from(group);
        timer.state = timer.next() ^ node.0;
        timer.draw();
        timer
    }

    /// Draws the next timeout.
    pub(crate) fn draw(&mut self) {
        let spread = self.election_ticks as u64;
        self.timeout_ticks = self.election_ticks + (self.next() % spread) as usize;
    }

    /// Whether a member that heard of no leader for `elapsed_ticks` should stand.
    pub(crate) fn is_over(&self, elapsed_ticks: usize) -> bool {
        elapsed_ticks >= self.timeout_ticks
    }

    /// SplitMix64: an additive counter through a finalizer; every seed is a good one.
    /// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, group: u32, node: u64) -> Vec<usize> {
        let mut timer = ElectionTimer::new(seed, group, NodeId(node), 10);
        (0..100)
            .map(|_| {
                timer.draw();
                timer.timeout_ticks
            })
            .collect()
    }

    #[test]
    fn timeouts_repeat_from_the_same_seed_and_differ_between_members() {
        assert_eq!(draws(7, 1, 1), draws(7, 1, 1));
        assert_ne!(draws(7, 1, 1), draws(7, 1, 2));
        assert_ne!(draws(7, 1, 1), draws(7, 2, 1));
        assert_ne!(draws(7, 1, 1), draws(8, 1, 1));
    }

    #[test]
    fn timeouts_fill_their_range_and_stay_in_it() {
        let draws = draws(1, 1, 1);
        assert!(draws.iter().all(|ticks| (10..20).contains(ticks)));
        assert!((10..20).all(|ticks| draws.contains(&ticks)));
    }
}
