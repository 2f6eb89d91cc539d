//! Content properties.
//!
//! Invariant: properties that decode encode to the same bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    amqp::fuzz::decode_properties(data);
});
