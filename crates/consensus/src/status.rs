//! What a member thinks of itself and, if it leads, of the others.

use std::fmt;

use crate::position::{LogIndex, NodeId, Position, Term};

/// The part a member plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Follows, with or without a vote.
    Follower,
    /// Asks whether it could win before it disturbs anyone with a new term.
    PreCandidate,
    /// Stands for election in a new term.
    Candidate,
    /// Leads.
    Leader,
}

/// A member's view of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its part.
    pub role: Role,
    /// The leader it knows of in `term`, itself included.
    pub leader: Option<NodeId>,
    /// Its term.
    pub term: Term,
    /// What it knows to be committed.
    pub commit: LogIndex,
    /// The end of its log, written or not.
    pub last: Position,
    /// The part of the log that is synced here.
    pub persisted: LogIndex,
    /// The part that is applied here.
    pub applied: LogIndex,
    /// The last entry no longer in the log.
    pub compacted: Position,
    /// The first entry whose body is in memory.
    pub cached_from: LogIndex,
    /// Memory held by entry bodies and their heads.
    pub cache_bytes: usize,
}

/// How a leader sends to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgressState {
    /// Looking for the place where the logs part, one message at a time.
    Probe,
    /// Sending ahead of the answers.
    Replicate,
    /// Waiting for a snapshot to be installed.
    Snapshot,
}

/// A leader's view of one follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The follower.
    pub node: NodeId,
    /// Up to here its log is synced and equal to the leader's.
    pub matched: LogIndex,
    /// What it is sent next.
    pub next: LogIndex,
    /// How it is sent to.
    pub state: ProgressState,
    /// Whether nothing more goes out until it answers.
    pub is_paused: bool,
    /// Whether it was heard of since the leader last checked, within an election timeout.
    pub is_recently_active: bool,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// Bytes of entries that it was sent and has not acknowledged.
    pub in_flight_bytes: usize,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Follower => "follower",
            Self::PreCandidate => "pre-candidate",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
        })
    }
}
