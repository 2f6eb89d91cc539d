//! Who belongs to a group, and one change of it.
//!
//! ```text
//! change entry   version u8 = 1, count varint, then per change: what u8 (1 voter, 2 learner, 3 remove), node varint
//!                no bytes at all: leave the joint configuration; the leader appends it by itself
//! membership     version u8 = 1, flags u8 (1 = leave the joint configuration by itself),
//!                then voters, learners, outgoing voters, coming learners: count varint, node varint each, ascending
//! ```
//!
//! A change of more than one member is joint: between its two entries both the old and the new
//! majority must agree. The second entry follows by itself. A change takes effect on a member when
//! that member applies it.
//!
//! Invariant: lists are ascending and without repeats, so equal memberships have equal bytes.

use bytes::Bytes;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState};

use crate::position::NodeId;
use crate::wire::{Cursor, DecodeError, Segments};

const FORMAT_VERSION: u8 = 1;
const FLAG_AUTO_LEAVE: u8 = 1;

/// The members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Members whose majority decides.
    pub voters: Vec<NodeId>,
    /// Members that follow without a vote.
    pub learners: Vec<NodeId>,
    /// During a joint change, the voters before it, whose majority is needed as well. Otherwise
    /// empty.
    pub voters_outgoing: Vec<NodeId>,
    /// During a joint change, outgoing voters that will be learners after it. Otherwise empty.
    pub learners_next: Vec<NodeId>,
    /// Whether the leader ends a joint change by itself. Always so for changes made here.
    pub auto_leave: bool,
}

/// One step of a change of members. A change is a list of these, made as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a voter, or gives a learner a vote. A new member should be a learner first, until it
    /// has caught up.
    Voter(NodeId),
    /// Adds a learner, or takes the vote from a voter.
    Learner(NodeId),
    /// Removes a member. A leader that removes itself hands over when the change is applied.
    Remove(NodeId),
}

impl Membership {
    /// A membership of these voters.
    pub fn of_voters(voters: impl IntoIterator<Item = NodeId>) -> Self {
        Self { voters: sorted(voters.into_iter().collect()), ..Self::default() }
    }

    /// Whether `node` has a vote, in the old or the new configuration.
    pub fn is_voter(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.voters_outgoing.contains(&node)
    }

    /// Whether `node` belongs to the group in any way.
    pub fn contains(&self, node: NodeId) -> bool {
        self.is_voter(node) || self.learners.contains(&node) || self.learners_next.contains(&node)
    }

    /// Whether a joint change is under way.
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty()
    }

    /// Whether a group can have it: somebody decides, nobody is two things at once, and what
    /// belongs to a joint change is there only during one.
    pub fn is_lawful(&self) -> bool {
        let Self { voters, learners, voters_outgoing, learners_next, auto_leave } = self;
        let is_also_learner = |node: &NodeId| learners.contains(node);
        !voters.is_empty()
            && !voters.iter().chain(voters_outgoing).any(is_also_learner)
            && learners_next.iter().all(|node| voters_outgoing.contains(node) && !voters.contains(node))
            && (self.is_joint() || !auto_leave)
    }

    /// Writes the form drawn above.
    pub fn encode(&self, out: &mut Segments) {
        out.put_u8(FORMAT_VERSION);
        out.put_u8(if self.auto_leave { FLAG_AUTO_LEAVE } else { 0 });
        for list in [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next] {
            out.put_varint(list.len() as u64);
            for node in list {
                out.put_varint(node.0);
            }
        }
    }

    /// Reads the form drawn above. All of `bytes` must be the membership.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let membership = Self::read(&mut cursor)?;
        if cursor.at() != bytes.len() {
            return Err(cursor.invalid("what follows the membership"));
        }
        Ok(membership)
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let version = cursor.u8()?;
        if version != FORMAT_VERSION {
            return Err(DecodeError::Version { found: version, known: FORMAT_VERSION });
        }
        let flags = cursor.u8()?;
        if flags & !FLAG_AUTO_LEAVE != 0 {
            return Err(cursor.invalid("a flag of a membership"));
        }
        Ok(Self {
            voters: read_nodes(cursor)?,
            learners: read_nodes(cursor)?,
            voters_outgoing: read_nodes(cursor)?,
            learners_next: read_nodes(cursor)?,
            auto_leave: flags & FLAG_AUTO_LEAVE != 0,
        })
    }

    pub(crate) fn from_raft(state: &ConfState) -> Self {
        let list = |nodes: &[u64]| sorted(nodes.iter().map(|&node| NodeId(node)).collect());
        Self {
            voters: list(&state.voters),
            learners: list(&state.learners),
            voters_outgoing: list(&state.voters_outgoing),
            learners_next: list(&state.learners_next),
            auto_leave: state.auto_leave,
        }
    }

    pub(crate) fn to_raft(&self) -> ConfState {
        let list = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect();
        ConfState {
            voters: list(&self.voters),
            learners: list(&self.learners),
            voters_outgoing: list(&self.voters_outgoing),
            learners_next: list(&self.learners_next),
            auto_leave: self.auto_leave,
            ..ConfState::default()
        }
    }
}

/// The body of a membership entry that makes `changes`.
pub(crate) fn encode_changes(changes: &[Change]) -> Bytes {
    assert!(!changes.is_empty(), "an empty change would read as leaving a joint one");
    let mut out = Segments::new();
    out.put_u8(FORMAT_VERSION);
    out.put_varint(changes.len() as u64);
    for change in changes {
        let (what, node) = match change {
            Change::Voter(node) => (1, node),
            Change::Learner(node) => (2, node),
            Change::Remove(node) => (3, node),
        };
        out.put_u8(what);
        out.put_varint(node.0);
    }
    out.to_bytes()
}

/// What the membership entry with this body makes of `node`, where it says something of it; of several things the
/// last one. Errors: it cannot be read.
pub fn change_of(node: NodeId, data: &Bytes) -> Result<Option<Change>, DecodeError> {
    let changes = decode_changes(data)?;
    let of_it = changes.changes.iter().rev().find(|change| change.node_id == node.0);
    Ok(of_it.map(|change| match change.change_type {
        ConfChangeType::AddNode => Change::Voter(node),
        ConfChangeType::AddLearnerNode => Change::Learner(node),
        ConfChangeType::RemoveNode => Change::Remove(node),
    }))
}

/// What a membership entry says, in the library's words. No bytes mean: leave the joint
/// configuration.
pub(crate) fn decode_changes(data: &Bytes) -> Result<ConfChangeV2, DecodeError> {
    let mut changes = Vec::new();
    if !data.is_empty() {
        let mut cursor = Cursor::new(data);
        let version = cursor.u8()?;
        if version != FORMAT_VERSION {
            return Err(DecodeError::Version { found: version, known: FORMAT_VERSION });
        }
        let count = cursor.count(2)?;
        for _ in 0..count {
            let change_type = match cursor.u8()? {
                1 => ConfChangeType::AddNode,
                2 => ConfChangeType::AddLearnerNode,
                3 => ConfChangeType::RemoveNode,
                _ => return Err(cursor.invalid("a change of members")),
            };
            changes.push(ConfChangeSingle {
                change_type,
                node_id: read_node(&mut cursor)?.0,
                ..ConfChangeSingle::default()
            });
        }
        if cursor.at() != data.len() || changes.is_empty() {
            return Err(cursor.invalid("the end of a change of members"));
        }
    }
    // The transition is left at its default: simple for one change, joint with automatic leave for
    // more.
    Ok(ConfChangeV2 { changes: changes.into(), ..ConfChangeV2::default() })
}

fn read_nodes(cursor: &mut Cursor<'_>) -> Result<Vec<NodeId>, DecodeError> {
    let count = cursor.count(1)?;
    let mut nodes: Vec<NodeId> = Vec::with_capacity(count);
    for _ in 0..count {
        let node = read_node(cursor)?;
        if nodes.last().is_some_and(|last| *last >= node) {
            return Err(cursor.invalid("the order of a list of members"));
        }
        nodes.push(node);
    }
    Ok(nodes)
}

fn read_node(cursor: &mut Cursor<'_>) -> Result<NodeId, DecodeError> {
    match cursor.varint()? {
        0 => Err(cursor.invalid("node zero")),
        node => Ok(NodeId(node)),
    }
}

fn sorted(mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u64]) -> Vec<NodeId> {
        ids.iter().map(|&id| NodeId(id)).collect()
    }

    fn bytes_of(membership: &Membership) -> Bytes {
        let mut out = Segments::new();
        membership.encode(&mut out);
        out.to_bytes()
    }

    #[test]
    fn a_joint_membership_comes_back() {
        let membership = Membership {
            voters: nodes(&[1, 2, 300]),
            learners: nodes(&[9]),
            voters_outgoing: nodes(&[1, 4]),
            learners_next: nodes(&[4]),
            auto_leave: true,
        };
        assert_eq!(Membership::decode(&bytes_of(&membership)), Ok(membership));
    }

    #[test]
    fn a_membership_in_another_order_is_refused() {
        let mut bytes = bytes_of(&Membership::of_voters(nodes(&[1, 2]))).to_vec();
        bytes.swap(3, 4);
        assert!(Membership::decode(&Bytes::from(bytes)).is_err());
    }

    #[test]
    fn a_membership_with_bytes_behind_it_or_cut_short_is_refused() {
        let whole = bytes_of(&Membership::of_voters(nodes(&[1, 2])));
        let mut longer = whole.to_vec();
        longer.push(0);
        assert!(Membership::decode(&Bytes::from(longer)).is_err());
        for length in 0..whole.len() {
            assert!(Membership::decode(&whole.slice(..length)).is_err(), "{length}");
        }
    }

    #[test]
    fn changes_come_back_in_the_words_of_the_library() {
        let data = encode_changes(&[Change::Voter(NodeId(4)), Change::Remove(NodeId(1))]);
        let change = decode_changes(&data).expect("just encoded");
        assert_eq!(change.changes.len(), 2);
        assert_eq!(change.changes[0].change_type, ConfChangeType::AddNode);
        assert_eq!((change.changes[0].node_id, change.changes[1].node_id), (4, 1));
        assert_eq!(change.enter_joint(), Some(true), "more than one change is joint, and leaves by itself");
    }

    #[test]
    fn who_looks_for_one_member_in_a_change_finds_what_becomes_of_it() {
        let data = encode_changes(&[Change::Voter(NodeId(4)), Change::Remove(NodeId(1)), Change::Learner(NodeId(2))]);
        let found = |number| change_of(NodeId(number), &data).expect("just encoded");
        assert_eq!([found(4), found(1)], [Some(Change::Voter(NodeId(4))), Some(Change::Remove(NodeId(1)))]);
        assert_eq!([found(2), found(3)], [Some(Change::Learner(NodeId(2))), None]);
        assert_eq!(change_of(NodeId(4), &Bytes::new()), Ok(None), "the end of a joint change names nobody");
    }

    #[test]
    fn an_empty_change_leaves_the_joint_configuration() {
        let change = decode_changes(&Bytes::new()).expect("what the leader appends");
        assert!(change.leave_joint());
    }
}
