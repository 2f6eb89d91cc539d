//! RabbitMQ's definitions: users, virtual hosts, permissions, policies, limits, exchanges, queues and bindings from a file.
//!
//! Invariant: a file is understood as a whole before anything changes, against a copy of the topology; what the copy
//! refuses is named by line and field, and then nothing has changed. What is there already as the file has it needs no
//! command, so a file that was taken in before is taken in again without a change.
//!
//! As in RabbitMQ a file adds and replaces and never deletes: what it does not speak of stays.

mod document;
mod import;
mod plan;

pub use document::WrongDefinitions;
pub use import::ImportError;
pub(crate) use plan::plan;

/// The largest definitions file; a hundred thousand queues with their bindings take a quarter of it.
pub const DEFINITIONS_BYTES_MAX: u64 = 256 << 20;

/// What a definitions file changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Changes that were made.
    pub changes: usize,
    /// Queues and exchanges that are there and differ from the file: they stay as they are, as in RabbitMQ.
    pub different: usize,
}
