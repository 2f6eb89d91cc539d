//! The doubt of a member that may have forgotten the end of its log: how long it lasts, and what
//! its own votes and those of others are worth meanwhile.
//! `docs/decisions/0009-forgetful-members.md` has the reasons.
//!
//! Invariant: a member in doubt grants no vote without the mark, and counts its own as a marked
//! one.

use bytes::Bytes;
use raft::eraftpb::{self, MessageType};

use crate::config::Restored;
use crate::entry::EntryKind;
use crate::grants::{FORGETFUL, Grants};
use crate::membership::Membership;

/// A member that may have forgotten the end of its log counts as whole again after so many election
/// timeouts without a leader. Each of them is enough for an election among members that can hear
/// each other; so by then too few of those are left that know more, and a group that went on
/// waiting for them could wait for ever.
const FORGETFUL_ELECTIONS_MAX: usize = 8;

/// A voter can be missed from this many on. With fewer every voter is needed for a majority, so
/// nothing counts that one of them lacks.
const SPARED_VOTERS_MIN: usize = 3;

/// What a member thinks of its own memory.
pub(crate) struct Doubt {
    /// The end of the log may be missing that this member had before it started.
    lasts: bool,
    /// Ticks since it heard of a leader.
    leaderless_ticks: usize,
    /// It counted as whole again without having heard of a leader.
    gave_up: bool,
    grants: Grants,
}

impl Doubt {
    pub(crate) fn new(restored: &Restored) -> Self {
        let lasts = restored.forgot && is_missed(restored);
        Self { lasts, leaderless_ticks: 0, gave_up: false, grants: Grants::default() }
    }

    pub(crate) fn lasts(&self) -> bool {
        self.lasts
    }

    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// This member has all that counts again.
    pub(crate) fn end(&mut self) {
        self.lasts = false;
    }

    pub(crate) fn tick(&mut self, election_ticks: usize) {
        self.leaderless_ticks += 1;
        if self.lasts && self.leaderless_ticks >= FORGETFUL_ELECTIONS_MAX * election_ticks {
            self.lasts = false;
            self.gave_up = true;
        }
    }

    pub(crate) fn hears_leader(&mut self) {
        self.leaderless_ticks = 0;
    }

    /// Takes an answer to this member's candidacy and returns what the library may hear of now.
    pub(crate) fn weigh<S: raft::Storage>(
        &mut self,
        reply: eraftpb::Message,
        raft: &raft::Raft<S>,
    ) -> Vec<eraftpb::Message> {
        self.grants.weigh(reply, (raft.state, raft.term, raft.id), raft.prs(), self.lasts)
    }

    /// Marks the votes and pre-votes that this member grants.
    pub(crate) fn mark<'a>(&self, sent: impl Iterator<Item = &'a mut eraftpb::Message>) {
        if self.lasts {
            for message in sent.filter(|message| !message.reject && is_grant(message.msg_type)) {
                message.context = Bytes::from_static(FORGETFUL);
            }
        }
    }
}

/// Whether something can have counted that this member lacks: a voter of a group that can miss one
/// of its voters.
fn is_missed(restored: &Restored) -> bool {
    let Membership { voters, voters_outgoing, .. } = &restored.membership;
    let changes = restored.entries.iter().any(|entry| entry.kind == EntryKind::Membership);
    changes || !restored.changes.is_empty() || voters.len().max(voters_outgoing.len()) >= SPARED_VOTERS_MIN
}

fn is_grant(kind: MessageType) -> bool {
    matches!(kind, MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse)
}
