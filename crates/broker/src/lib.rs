//! The rules of a broker, pure: who exists and where a message goes (`topology`), and what happens in a queue.
//!
//! Invariant: nothing here reads a clock, a random number, a file or a socket; the same input gives the same state.

pub mod ids;
pub mod topology;
