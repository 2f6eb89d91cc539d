//! The queue machines: what every member of a partition knows of a queue, and what only its leader
//! knows.
//!
//! - [`state::QueueState`]: replicated. Which sequence numbers are live, how often each came back.
//! - [`rules::Rules`]: what arguments and policies ask for; looked at by leaders alone.
//! - [`dispatch::Dispatch`]: leader-local, never logged. Consumers, credit, who holds what, what
//!   goes out next; with
//!   [`active`]: one consumer at a time; `attached`: one consumer and the sum of all; `foreign`: what
//!   its client has of an earlier leader; `ring`: whose turn it is.
//! - [`dedup::Keys`]: replicated. The keys of messages, where a queue takes each in once.
//! - [`levels::Levels`]: replicated. The priorities of messages, where a queue has any; `lanes`:
//!   the dispatcher's side of it.

pub mod active;
mod attached;
pub mod counts;
pub mod dedup;
pub mod dispatch;
mod foreign;
mod lanes;
pub mod levels;
pub mod ranges;
mod ring;
pub mod rules;
pub mod runs;
pub mod state;

pub use active::SingleActive;
pub use counts::{CountMap, Counts};
pub use dedup::{DedupKey, DedupRule, KeyMeter, Keys};
pub use dispatch::{Consumer, Dispatch};
pub use levels::{LevelRule, Levels};
pub use ranges::SeqRanges;
pub use rules::{DeadLetterRule, Overflow, Retried, RetryRule, Rules};
pub use runs::{Run, Runs};
pub use state::{Aside, Extras, QueueState};
