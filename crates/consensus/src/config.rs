//! How a member is set up, and what it finds when it starts.
//!
//! Invariant: a [`Config`] that validates never makes the library refuse to start, and [`Restored`]
//! is what a member can prove from its disk: everything in it is synced, because peers are answered
//! on the strength of it.

use thiserror::Error;

use crate::entry::Entry;
use crate::membership::Membership;
use crate::position::{LogIndex, NodeId, Position, Term};
use crate::ready::HardState;
use crate::terms::TermRun;

/// The settings of one member. Times are ticks; the caller decides how long a tick is (150 ms in
/// the server).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// The group; a message for another group is refused.
    pub group: u32,
    /// Election timeouts are drawn from this, the group and the node, and from nothing else.
    pub seed: u64,
    /// A follower stands for election after `election_ticks..2 * election_ticks` without a leader.
    /// A leader that does not hear from a majority for `election_ticks` steps down.
    pub election_ticks: usize,
    /// A leader sends a heartbeat every so many ticks. Less than `election_ticks`.
    pub heartbeat_ticks: usize,
    /// The largest entry [`Group::propose`](crate::Group::propose) takes.
    pub entry_bytes_max: usize,
    /// An append message carries entries up to this sum, and at least one.
    pub message_bytes_max: usize,
    /// Append messages under way to one follower.
    pub inflight_messages_max: usize,
    /// Bytes of entries under way to one follower: no more than this, and one message whatever its
    /// size.
    pub inflight_bytes_max: usize,
    /// Proposals are refused while this much is appended and not committed; one entry is always
    /// taken. It bounds what every member must keep in memory before it is applied.
    pub uncommitted_bytes_max: usize,
    /// One [`Ready`](crate::Ready) hands out committed entries up to this sum, and at least one.
    pub committed_bytes_max: usize,
    /// Whether a leader tells its followers at once that an entry is committed, with a message of
    /// its own. Otherwise they learn it from the next append or heartbeat: nobody waits for a
    /// follower to apply, and at a low rate the messages that carry nothing else are half of all.
    /// Changes of members are always told at once.
    pub announce_commits: bool,
    /// Bodies of applied entries are kept up to this sum, to serve followers without reading the
    /// disk.
    pub cache_bytes_max: usize,
}

/// What is wrong with a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Zero stands for "no node".
    #[error("a node id must not be zero")]
    NodeZero,
    /// A setting that must be at least one.
    #[error("{setting} must not be zero")]
    Zero {
        /// Which.
        setting: &'static str,
    },
    /// Followers would stand for election between two heartbeats.
    #[error("heartbeat_ticks ({heartbeat_ticks}) must be less than election_ticks ({election_ticks})")]
    HeartbeatTooSlow {
        /// As configured.
        heartbeat_ticks: usize,
        /// As configured.
        election_ticks: usize,
    },
    /// An append message could never be proposed as a whole.
    #[error("uncommitted_bytes_max ({uncommitted}) must be at least message_bytes_max ({message})")]
    UncommittedTooSmall {
        /// As configured.
        uncommitted: usize,
        /// As configured.
        message: usize,
    },
}

impl Config {
    /// The defaults: election after 10 to 20 ticks, a heartbeat every tick, entries of at most 16
    /// MiB, and per group 1 MiB a message, 64 of them and 16 MiB in flight, 64 MiB uncommitted, 16
    /// MiB of applied bodies.
    pub fn new(node: NodeId, group: u32, seed: u64) -> Self {
        Self {
            node,
            group,
            seed,
            election_ticks: 10,
            heartbeat_ticks: 1,
            entry_bytes_max: 16 << 20,
            message_bytes_max: 1 << 20,
            inflight_messages_max: 64,
            inflight_bytes_max: 16 << 20,
            uncommitted_bytes_max: 64 << 20,
            committed_bytes_max: 4 << 20,
            announce_commits: false,
            cache_bytes_max: 16 << 20,
        }
    }

    /// Checks each setting and their relations.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.node.0 == 0 {
            return Err(ConfigError::NodeZero);
        }
        for (setting, value) in [
            ("election_ticks", self.election_ticks),
            ("heartbeat_ticks", self.heartbeat_ticks),
            ("entry_bytes_max", self.entry_bytes_max),
            ("message_bytes_max", self.message_bytes_max),
            ("inflight_messages_max", self.inflight_messages_max),
            ("inflight_bytes_max", self.inflight_bytes_max),
            ("committed_bytes_max", self.committed_bytes_max),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { setting });
            }
        }
        if self.heartbeat_ticks >= self.election_ticks {
            return Err(ConfigError::HeartbeatTooSlow {
                heartbeat_ticks: self.heartbeat_ticks,
                election_ticks: self.election_ticks,
            });
        }
        if self.uncommitted_bytes_max < self.message_bytes_max {
            return Err(ConfigError::UncommittedTooSmall {
                uncommitted: self.uncommitted_bytes_max,
                message: self.message_bytes_max,
            });
        }
        Ok(())
    }
}

/// What a member finds on its disk when it starts.
///
/// - Durability: all of it is synced before the member starts. After a crash of the process alone
///   the newest writes may be in the page cache only: sync the log before reading it.
/// - Memory: `entries` holds every entry that is not applied. To keep it short the caller replays
///   the committed part of the log, as far as the hard state's commit index proves it, into its
///   state machine first, and passes the membership entries it met as `changes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last term, vote and commit index written.
    pub hard_state: HardState,
    /// The members as of the checkpoint.
    pub membership: Membership,
    /// Membership entries between the checkpoint and `applied`, in order.
    pub changes: Vec<Entry>,
    /// The last entry that is no longer in the log.
    pub compacted: Position,
    /// The last entry the state machine contains. At least `compacted`, at most the commit index.
    pub applied: LogIndex,
    /// The terms of entries after `compacted` that stay on disk: they are applied, and are fetched
    /// when a follower needs them. They end where `entries` begins, or at `applied`.
    pub evicted: Vec<TermRun>,
    /// The rest of the log, to its end.
    pub entries: Vec<Entry>,
    /// Entries may be missing at the end that this member had before, unsynced: it lost power
    /// since, and has not caught up.
    pub forgot: bool,
}

impl Restored {
    /// Where the log of a new group begins: not at zero, so that a member that joins later, with
    /// nothing, always needs a snapshot and learns from it who the first members were, which no
    /// entry says.
    pub const BOOTSTRAP: Position = Position::new(1, 1);

    /// A new group of `voters`. Each of them starts with this, and with nothing written before.
    pub fn bootstrap(voters: impl IntoIterator<Item = NodeId>) -> Self {
        Self {
            hard_state: HardState { term: Self::BOOTSTRAP.term, vote: None, commit: Self::BOOTSTRAP.index },
            membership: Membership::of_voters(voters),
            changes: Vec::new(),
            compacted: Self::BOOTSTRAP,
            applied: Self::BOOTSTRAP.index,
            evicted: Vec::new(),
            entries: Vec::new(),
            forgot: false,
        }
    }

    /// A member that joins an existing group and knows nothing. It has no vote and waits for a
    /// snapshot.
    pub fn joining() -> Self {
        Self {
            hard_state: HardState { term: Term(0), vote: None, commit: LogIndex(0) },
            membership: Membership::default(),
            changes: Vec::new(),
            compacted: Position::default(),
            applied: LogIndex(0),
            evicted: Vec::new(),
            entries: Vec::new(),
            forgot: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Config::new(NodeId(1), 0, 0).validate(), Ok(()));
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let valid = Config::new(NodeId(1), 0, 0);
        let zero = Config { inflight_messages_max: 0, ..valid.clone() };
        assert_eq!(zero.validate(), Err(ConfigError::Zero { setting: "inflight_messages_max" }));
        let slow = Config { heartbeat_ticks: 10, ..valid.clone() };
        assert!(matches!(slow.validate(), Err(ConfigError::HeartbeatTooSlow { .. })));
        let small = Config { uncommitted_bytes_max: 1, ..valid.clone() };
        assert!(matches!(small.validate(), Err(ConfigError::UncommittedTooSmall { .. })));
        let nobody = Config { node: NodeId(0), ..valid };
        assert_eq!(nobody.validate(), Err(ConfigError::NodeZero));
    }
}
