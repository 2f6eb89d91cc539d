//! Random numbers.
//!
//! Invariant: what is to be guessed by nobody comes from the system's generator.

use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Four random bytes, to salt a password with.
pub(crate) fn salt() -> [u8; 4] {
    let random = secret().to_be_bytes();
    [random[0], random[1], random[2], random[3]]
}

/// Bits that nobody can guess.
pub(crate) fn secret() -> u128 {
    let mut random = [0u8; 16];
    let mut filled = 0;
    while filled < random.len() {
        // Only an ancient kernel fails here, and only while it boots.
        filled += getrandom(&mut random[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    u128::from_be_bytes(random)
}

/// A number that differs each time.
pub(crate) fn dice() -> u64 {
    // The standard library's hash keys are the cheapest random numbers of this process.
    RandomState::new().build_hasher().finish()
}
