//! What a member knows of its log, of itself and of the others.
//!
//! Invariant: asking changes nothing.

use raft::StateRole;

use super::{Group, node};
use crate::membership::Membership;
use crate::position::{LogIndex, NodeId, Position, Term};
use crate::status::{Progress, ProgressState, Role, Status};

impl Group {
    /// The term of the entry at `index`, if it lies between the compacted one and the end of the
    /// log, both included.
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        // The library answers zero outside of the log.
        self.raw.raft.raft_log.term(index.0).ok().map(Term).filter(|term| term.0 > 0)
    }

    /// The members, as of the applied index; while a snapshot is being installed, as of that
    /// snapshot.
    pub fn membership(&self) -> Membership {
        Membership::from_raft(&self.raw.raft.prs().conf().to_conf_state())
    }

    /// Whether this member leads.
    #[inline]
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Its term: [`Status::term`] alone, for who asks with every entry.
    #[inline]
    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// The leader that it knows of: [`Status::leader`] alone.
    #[inline]
    pub fn leader(&self) -> Option<NodeId> {
        node(self.raw.raft.leader_id)
    }

    /// What it knows to be committed: [`Status::commit`] alone.
    #[inline]
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// How many voters the leader has heard of lately, itself included; zero on other members. More
    /// than a majority of them means that one can be lost without stopping the group.
    ///
    /// "Lately" is since it last checked, which it does every `election_ticks`: right after a check
    /// the count is low.
    pub fn active_voters(&self) -> usize {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return 0;
        }
        let voters = raft.prs().conf().voters();
        let is_active = |id: u64, progress: &raft::Progress| id == self.config.node.0 || progress.recent_active;
        raft.prs().iter().filter(|(id, progress)| voters.contains(**id) && is_active(**id, progress)).count()
    }

    /// The largest entry that it takes.
    pub fn entry_bytes_max(&self) -> usize {
        self.config.entry_bytes_max
    }

    /// This member's view of itself.
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let log = self.raw.store();
        Status {
            role: match raft.state {
                StateRole::Follower => Role::Follower,
                StateRole::PreCandidate => Role::PreCandidate,
                StateRole::Candidate => Role::Candidate,
                StateRole::Leader => Role::Leader,
            },
            leader: node(raft.leader_id),
            term: Term(raft.term),
            commit: LogIndex(raft.raft_log.committed),
            last: Position::new(raft.raft_log.last_index(), raft.raft_log.last_term()),
            persisted: LogIndex(raft.raft_log.persisted),
            applied: LogIndex(raft.raft_log.applied),
            compacted: log.compacted(),
            cached_from: LogIndex(log.cache_first()),
            cache_bytes: log.cache_bytes(),
        }
    }

    /// A leader's view of the others, in order of their ids. Empty when it does not lead.
    pub fn progress(&self) -> Vec<Progress> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Vec::new();
        }
        let membership = self.membership();
        let mut all: Vec<Progress> = raft
            .prs()
            .iter()
            .filter(|(id, _)| **id != self.config.node.0)
            .map(|(id, progress)| Progress {
                node: NodeId(*id),
                matched: LogIndex(progress.matched),
                next: LogIndex(progress.next_idx),
                state: match progress.state {
                    raft::ProgressState::Probe => ProgressState::Probe,
                    raft::ProgressState::Replicate => ProgressState::Replicate,
                    raft::ProgressState::Snapshot => ProgressState::Snapshot,
                },
                is_paused: progress.is_paused(),
                is_recently_active: progress.recent_active,
                is_learner: !membership.is_voter(NodeId(*id)),
                in_flight_bytes: self.windows.bytes(*id),
            })
            .collect();
        all.sort_unstable_by_key(|progress| progress.node);
        all
    }
}
