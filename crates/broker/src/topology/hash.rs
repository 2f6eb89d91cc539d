//! The one hash of the topology's tables, with a fixed seed.
//!
//! Invariant: tables hashed with it are looked up and never iterated, so the seed can be seen in no
//! result.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;

const SEED: FixedState = FixedState::with_seed(0x6c65_7665_7265_7421);

/// Of a name within a space of names (a virtual host, a trie node).
pub(super) fn of_name(space: u32, name: &[u8]) -> u64 {
    let mut hasher = SEED.build_hasher();
    hasher.write_u32(space);
    hasher.write(name);
    hasher.finish()
}

/// Of a number.
pub(super) fn of_number(number: u64) -> u64 {
    let mut hasher = SEED.build_hasher();
    hasher.write_u64(number);
    hasher.finish()
}
