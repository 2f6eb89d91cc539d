//! Choices from a seed and nothing else.
//!
//! Invariant: two generators made from the same seed give the same numbers; a fork does not depend
//! on how much its parent is used afterwards.

/// A SplitMix64 generator: small, and good enough to choose what goes wrong next.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for this seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x6c65_7665_7265_7421);
        random.next();
        random
    }

    /// A generator of its own, for a part that must not disturb the others.
    pub fn fork(&mut self) -> Self {
        Random::new(self.next())
    }

    /// Any number.
    #[allow(clippy::should_implement_trait)] // It never ends, so it is no iterator.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "a choice among nothing");
        self.next() % limit
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `from`, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
