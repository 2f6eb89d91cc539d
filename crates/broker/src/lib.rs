//! The broker's rules, pure: what a topology allows and where a message goes, what a queue holds
//! and who gets it next.
//!
//! Nothing here reads a clock, a random number, a file or a socket; the same inputs give the same
//! state on every member.

pub mod death;
pub mod ids;
pub mod properties;
pub mod queue;
pub mod topology;

pub use ids::{ChannelKey, ConsumerKey, NodeLife, NodeNumber, PartitionId, PoolId, QueueId, VhostId};
