//! A checkpoint file of any bytes.
//!
//! Invariant: it is refused or loaded, and nothing panics.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    storage::fuzz::checkpoint_file(data);
});
