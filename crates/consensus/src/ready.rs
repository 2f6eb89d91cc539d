//! What a member wants done: written, sent, applied.
//!
//! The order of work for one [`Ready`]:
//!
//! 1. send `messages`;
//! 2. write `append` and `hard_state`, behind everything written before; install `snapshot` if
//!    there is one;
//! 3. apply `committed`, in order, then call [`Group::applied`](crate::Group::applied);
//! 4. if `must_sync`: once this write and all before it are synced, call
//!    [`Group::persisted`](crate::Group::persisted) with `number`;
//! 5. send `messages_after_sync` once `number` is persisted.
//!
//! A snapshot is a write like any other, and may be the only one of its `Ready`: `number` is
//! persisted when the snapshot is installed and synced, not when there is nothing to append. Then
//! its index is reported as applied.
//!
//! Steps 1 to 3 need not wait for each other, and the next [`Ready`] may be taken before this one
//! is synced.
//!
//! Invariant: the vectors are refilled, not replaced; a `Ready` that is used again allocates
//! nothing once it has grown.

use bytes::Bytes;

use crate::entry::Entry;
use crate::log::{Fetch, SnapshotOffer, SnapshotWanted};
use crate::message::Message;
use crate::position::{LogIndex, NodeId, Term};

/// What must survive a restart besides the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The highest term this member has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub vote: Option<NodeId>,
    /// What it knows to be committed. Need not be synced by itself; written along with the rest, it
    /// spares the next start most of the unapplied log.
    pub commit: LogIndex,
}

/// The answer to [`Group::read_index`](crate::Group::read_index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// As given with the question.
    pub context: u64,
    /// Once this is applied, a local read is linearizable.
    pub index: LogIndex,
}

/// What a member wants done. See the head of this file for the order.
#[derive(Debug, Default)]
pub struct Ready {
    /// Entries to write, in order. The first may replace an entry of the same index and all that
    /// followed.
    pub append: Vec<Entry>,
    /// The hard state to write, if it changed.
    pub hard_state: Option<HardState>,
    /// A snapshot to install in place of the log and the state machine. `append` continues after
    /// it.
    pub snapshot: Option<SnapshotOffer>,
    /// What `messages_after_sync` waits for, and, if `must_sync`, the name of this write. Grows
    /// from one `Ready` to the next that must be synced; zero when nothing was ever to be synced.
    pub number: u64,
    /// Whether there is a write here that must be synced and then reported: entries, a snapshot, a
    /// new term or a vote. When it is false the write, if any, is a commit index, which may wait
    /// for the next sync.
    pub must_sync: bool,
    /// Messages to send now.
    pub messages: Vec<Message>,
    /// Messages to send once `number` is persisted.
    pub messages_after_sync: Vec<Message>,
    /// Entries to apply, in order. They are persisted here.
    pub committed: Vec<Entry>,
    /// Answers to read-index questions.
    pub read_states: Vec<ReadState>,
    /// Entries to read from disk for a follower.
    pub fetches: Vec<Fetch>,
    /// Snapshots to make for followers.
    pub snapshots_wanted: Vec<SnapshotWanted>,
    /// Whether role, leader or term changed; ask [`Group::status`](crate::Group::status).
    pub role_changed: bool,
}

impl Ready {
    /// Gives the memory of a burst back: of a start above all, where the whole log is to be
    /// applied.
    pub fn trim(&mut self, room: usize) {
        self.append.shrink_to(room);
        self.messages.shrink_to(room);
        self.messages_after_sync.shrink_to(room);
        self.committed.shrink_to(room);
    }

    /// Nothing to do.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets what was to be done and keeps the room for it.
    pub(crate) fn clear(&mut self) {
        self.append.clear();
        self.hard_state = None;
        self.snapshot = None;
        self.number = 0;
        self.must_sync = false;
        self.messages.clear();
        self.messages_after_sync.clear();
        self.committed.clear();
        self.read_states.clear();
        self.fetches.clear();
        self.snapshots_wanted.clear();
        self.role_changed = false;
    }
}

/// A read-index question carries who asked, because two members may choose the same context, and
/// the leader takes equal contexts for one question.
pub(crate) const READ_CONTEXT_BYTES: usize = 16;

pub(crate) fn encode_read_context(node: NodeId, context: u64) -> [u8; READ_CONTEXT_BYTES] {
    let mut bytes = [0; READ_CONTEXT_BYTES];
    bytes[..8].copy_from_slice(&node.0.to_be_bytes());
    bytes[8..].copy_from_slice(&context.to_be_bytes());
    bytes
}

pub(crate) fn decode_read_context(bytes: &Bytes) -> Option<(NodeId, u64)> {
    let node = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
    let context = u64::from_be_bytes(bytes.get(8..)?.try_into().ok()?);
    Some((NodeId(node), context))
}
