//! Consensus: a dozen calls around a Raft library, and nothing else in Leveret imports it.
//!
//! A [`Group`] is one member of one Raft group. It is sans-io: it is told what arrived
//! ([`Group::step`]), what the disk did ([`Group::persisted`]), what was applied
//! ([`Group::applied`]) and that time went by ([`Group::tick`]); it answers with a [`Ready`] that
//! says what to write, what to send and what is committed. It touches no disk, socket, clock,
//! thread or global random source, so two runs from one seed are the same run.
//!
//! Invariant: everything a peer may rely on (a vote, a term, an acknowledged entry) leaves in
//! [`Ready::messages_after_sync`], and the caller holds those back until the named
//! [`Ready::number`] is synced.
//!
//! Absent on purpose: what a command means, who owns which queue, the weaker confirm levels. Those
//! live in `partition`.

mod position;

mod entry;
mod membership;

mod config;
mod doubt;
mod grants;
mod group;
mod guard;
mod ready;
mod refusal;
mod start;
mod status;

mod election;
mod log;
mod terms;
mod window;

mod message;
mod wire;

pub use config::{Config, ConfigError, Restored};
pub use entry::{Entry, EntryKind};
pub use group::Group;
pub use guard::Contradiction;
pub use log::{Fetch, MANIFEST_BYTES_MAX, SnapshotOffer, SnapshotWanted};
pub use membership::{Change, Membership, change_of};
pub use message::{Kind, Message, WIRE_VERSION};
pub use position::{LogIndex, NodeId, Position, Term};
pub use ready::{HardState, ReadState, Ready};
pub use refusal::{Refused, StepError};
pub use start::StartError;
pub use status::{Progress, ProgressState, Role, Status};
pub use terms::TermRun;
pub use wire::{Cursor, DecodeError, INLINE_BYTES_MAX, Segment, Segments};
