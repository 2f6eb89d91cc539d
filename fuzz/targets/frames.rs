//! One frame, decoded as a method.
//!
//! Invariant: a method that decodes encodes to something that decodes to the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    amqp::fuzz::decode_frame(data);
});
