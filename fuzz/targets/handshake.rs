//! The connection machine from its first byte.
//!
//! Invariant: whatever comes, it ends with one Closed.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    amqp::fuzz::drive_handshake(data);
});
