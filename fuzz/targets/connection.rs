//! The connection machine, from an open channel on, cut at any byte.
//!
//! Invariant: whatever comes, it ends with one Closed, its channels before it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    amqp::fuzz::drive_connection(data);
});
