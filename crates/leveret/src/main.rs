//! The `leveret` binary.
fn main() {}
