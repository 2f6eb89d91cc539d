//! The bytes of AMQP 0-9-1.
//!
//! Reading never allocates for what a peer only claims: every length is checked against the bytes
//! that are there first.

pub mod bodies;
pub mod content;
pub mod frame;
pub mod headers;
pub mod method;
pub mod output;
pub mod primitives;
pub mod table;

pub use primitives::DecodeError;
