//! RabbitMQ's definitions: users, virtual hosts, permissions, policies, limits, exchanges, queues
//! and bindings from a file.
//!
//! Invariant: a file is understood as a whole before anything changes, against a copy of the
//! topology; what the copy refuses is named by line and field, and then nothing has changed. What
//! is there already as the file has it needs no command, so a file that was taken in before is
//! taken in again without a change.
//!
//! As in RabbitMQ a file adds and replaces and never deletes: what it does not speak of stays.
//!
//! What a real export has for other programs (shovels, federation links, settings of plugins and of
//! tools) is left out and told, line by line; so are policy keys of features that this broker has
//! not. What decides where messages go or how long they stay is never left out: a file that asks
//! there for what is not had is refused.

mod document;
mod hashes;
mod import;
mod plan;

pub use document::WrongDefinitions;
pub use hashes::{named_by, read_hash, text_of};
pub(crate) use import::Moment;
pub use import::{FromFiles, ImportError};
pub(crate) use plan::Fresh;
pub use plan::meaningless_global;

/// The largest definitions file; a hundred thousand queues with their bindings take a quarter of
/// it.
pub const DEFINITIONS_BYTES_MAX: u64 = 256 << 20;

/// What a definitions file changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Changes that were made.
    pub changes: usize,
    /// Queues and exchanges that are there and differ from the file, a sentence each: they stay as
    /// they are, as in RabbitMQ.
    pub different: Vec<String>,
    /// What this broker does not do and the file has for others, a sentence each.
    pub left_out: Vec<String>,
}
