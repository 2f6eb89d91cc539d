//! Recovery of a log file of any bytes.
//!
//! Invariant: the first byte chooses whether checksums are repaired first, so that the fuzzer gets
//! behind them; recovery comes back, and a second one finds what the first left.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&repair, contents)) = data.split_first() else { return };
    storage::fuzz::wal_file(contents, repair & 1 == 1);
});
