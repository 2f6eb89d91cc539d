//! The broker's rules, pure: what a topology allows and where a message goes, what a queue holds and who gets it next.
//!
//! Invariant: nothing here reads a clock, a random number, a file or a socket; the same input gives the same state.

pub mod ids;
pub mod queue;
pub mod topology;

pub use ids::{ChannelKey, ConsumerKey, PartitionId, QueueId, VhostId};
