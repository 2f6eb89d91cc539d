//! How the members of groups stand that a node has, told to whoever looks after the cluster.
//!
//! Invariant: looking changes nothing. Each member tells of itself; what it knows of the others is not
//! told, as they may be asked.

use crate::queue_member::QueueMember;
use crate::topology_member::{Proposer, TopologyMember};
use broker::{NodeNumber, PartitionId};
use consensus::Role;
use partition::replica::Replica;

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStanding {
    /// The group.
    pub partition: PartitionId,
    /// What it is: `leader`, `follower`, `candidate`, `pre_vote`, `damaged`.
    pub role: &'static str,
    /// Whom it follows.
    pub leader: Option<NodeNumber>,
    /// Its term.
    pub term: u64,
    /// The end of its log.
    pub last: u64,
    /// Up to where its log is on the disk.
    pub synced: u64,
    /// Up to where it knows that a majority has the log.
    pub commit: u64,
    /// Up to where it has carried the log out.
    pub applied: u64,
    /// The last entry that it has only as part of a snapshot.
    pub snapshot: u64,
    /// It has a vote; who joins learns first.
    pub is_voter: bool,
    /// How many have one, as far as it knows: one that was forgotten counts until its group has let it
    /// go.
    pub voters: usize,
}

impl MemberStanding {
    fn of(partition: PartitionId, replica: &Replica) -> MemberStanding {
        let (status, membership) = (replica.group().status(), replica.group().membership());
        let leaving = membership.voters_outgoing.iter().filter(|node| !membership.voters.contains(node));
        let role = match status.role {
            Role::Follower => "follower",
            Role::PreCandidate => "pre_vote",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
        };
        MemberStanding {
            partition,
            role,
            leader: status.leader.and_then(|leader| u32::try_from(leader.0).ok()).map(NodeNumber),
            term: status.term.0,
            last: status.last.index.0,
            synced: status.persisted.0,
            commit: status.commit.0,
            applied: status.applied.0,
            snapshot: status.compacted.index.0,
            is_voter: membership.is_voter(replica.node()),
            voters: membership.voters.len() + leaving.count(),
        }
    }

    /// One that is damaged here, and knows nothing.
    pub(crate) fn damaged(partition: PartitionId) -> MemberStanding {
        MemberStanding {
            partition,
            role: "damaged",
            leader: None,
            term: 0,
            last: 0,
            synced: 0,
            commit: 0,
            applied: 0,
            snapshot: 0,
            is_voter: false,
            voters: 0,
        }
    }
}

impl QueueMember {
    pub(crate) fn standing(&self) -> MemberStanding {
        MemberStanding::of(self.partition().id(), self.partition().replica())
    }
}

impl<M: Proposer> TopologyMember<M> {
    pub(crate) fn standing(&self) -> MemberStanding {
        MemberStanding::of(self.log().id(), self.log().replica())
    }
}
