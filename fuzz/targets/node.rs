//! The file that says which node of its cluster a folder is, of any bytes.
//!
//! Invariant: it is refused or read, and nothing panics.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    storage::fuzz::node_file(data);
});
