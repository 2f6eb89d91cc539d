//! An extent file of any bytes.
//!
//! Invariant: it is refused, or what it gives back is no larger than it is.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    storage::fuzz::extent_file(data);
});
