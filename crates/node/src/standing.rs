//! How the members of groups stand that a node has, told to whoever looks after the cluster.
//!
//! Invariant: looking changes nothing. Each member tells of itself, and a leader how far the others of its
//! group are.

use crate::queue_member::QueueMember;
use crate::topology_member::{Proposer, TopologyMember};
use broker::{NodeNumber, PartitionId};
use consensus::{Membership, NodeId, Progress, Role};
use partition::replica::Replica;

/// What a leader knows of another member of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Its node.
    pub node: NodeNumber,
    /// Up to where its log is on its disk and equal to the leader's.
    pub synced: u64,
    /// It has a vote.
    pub is_voter: bool,
}

/// Who has a vote in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Voter {
    /// Its node.
    pub node: NodeNumber,
    /// How often that node had left the group before.
    pub life: u32,
}

/// Who has a vote in a group of these members; while they change, by the old rule or by the new one.
pub(crate) fn voters(membership: &Membership) -> Vec<Voter> {
    let outgoing = membership.voters_outgoing.iter().filter(|node| !membership.voters.contains(node));
    let voter = |node: &NodeId| Voter { node: NodeNumber(node.number()), life: node.life() };
    membership.voters.iter().chain(outgoing).map(voter).collect()
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Who has one, as far as it knows: one that was forgotten, or taken from the group, until the group has let it
    /// go.
    pub voters: Vec<Voter>,
    /// It leads without a member to spare: *written* waits for the disks of a majority.
    pub is_unspared: bool,
    /// The others, in order of their nodes; of a member that does not lead none.
    pub followers: Vec<Follower>,
}

impl MemberStanding {
    fn of(partition: PartitionId, replica: &Replica) -> MemberStanding {
        let (status, membership) = (replica.group().status(), replica.group().membership());
        let followers = replica.group().progress().into_iter();
        let follower = |progress: Progress| {
            let node = NodeNumber(progress.node.number());
            Follower { node, synced: progress.matched.0, is_voter: !progress.is_learner }
        };
        let role = match status.role {
            Role::Follower => "follower",
            Role::PreCandidate => "pre_vote",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
        };
        MemberStanding {
            partition,
            role,
            leader: status.leader.map(|leader| NodeNumber(leader.number())),
            term: status.term.0,
            last: status.last.index.0,
            synced: status.persisted.0,
            commit: status.commit.0,
            applied: status.applied.0,
            snapshot: status.compacted.index.0,
            is_voter: membership.is_voter(replica.node()),
            voters: voters(&membership),
            is_unspared: status.role == Role::Leader && replica.is_unspared(),
            followers: followers.map(follower).collect(),
        }
    }

    /// One that is damaged here, and knows nothing.
    pub fn damaged(partition: PartitionId) -> MemberStanding {
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
            voters: Vec::new(),
            is_unspared: false,
            followers: Vec::new(),
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
