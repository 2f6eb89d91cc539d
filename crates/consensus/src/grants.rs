//! The votes that a candidate gathers, weighed before the library counts them: a member that may
//! have forgotten the end of its log cannot stand for what it once had.
//!
//! Raft lets a majority elect because some member of it has every entry that counts, and gives its
//! vote only to a log that has it too. An entry that is confirmed as *written* counts although no
//! disk has it yet. A member that lost power may have had it, and would now vote for a log without
//! it. So its grants are marked, and an election is won in one of two ways:
//!
//! - by a majority whose memory is whole: one of them still has what was confirmed;
//! - by a majority of members that all may have forgotten: more was lost at once than a promise
//!   about a minority covers, and a group that waited for the others could wait for ever. What is
//!   synced is safe in both.
//!
//! A mixed majority elects nobody. The reasons are in `docs/decisions/0009-forgetful-members.md`.
//!
//! Invariant: the library hears of grants only once one of the two is there, and then of all of
//! them; of refusals at once.

use std::collections::HashSet;

use raft::eraftpb::{self, MessageType};
use raft::{ProgressTracker, StateRole};

/// How a grant is marked by a member that may have forgotten the end of its log.
pub(crate) const FORGETFUL: &[u8] = b"forgetful";

/// What one candidacy has gathered.
#[derive(Default)]
pub(crate) struct Grants {
    /// Whose these are: votes or pre-votes, and of which term.
    of: Option<(MessageType, u64)>,
    held: Vec<eraftpb::Message>,
}

impl Grants {
    /// Takes an answer to a candidacy and returns what the library may hear of now.
    pub(crate) fn weigh(
        &mut self,
        reply: eraftpb::Message,
        raft: (StateRole, u64, u64),
        voters: &ProgressTracker,
        is_forgetful: bool,
    ) -> Vec<eraftpb::Message> {
        let (role, term, id) = raft;
        let awaited = match role {
            StateRole::PreCandidate => Some((MessageType::MsgRequestPreVoteResponse, term + 1)),
            StateRole::Candidate => Some((MessageType::MsgRequestVoteResponse, term)),
            StateRole::Follower | StateRole::Leader => None,
        };
        if self.of != awaited {
            self.of = awaited;
            self.held.clear();
        }
        if reply.reject || awaited != Some((reply.msg_type, reply.term)) {
            // A refusal, or of another candidacy, which the library ignores.
            return vec![reply];
        }
        self.held.retain(|held| held.from != reply.from);
        self.held.push(reply);
        let own = |forgetful: bool| (is_forgetful == forgetful).then_some(id);
        let of = |forgetful: bool| {
            let granted = self.held.iter().filter(move |m| (m.context == FORGETFUL) == forgetful).map(|m| m.from);
            granted.chain(own(forgetful)).collect::<HashSet<u64, _>>()
        };
        if !voters.has_quorum(&of(false)) && !voters.has_quorum(&of(true)) {
            return Vec::new();
        }
        std::mem::take(&mut self.held)
    }
}
