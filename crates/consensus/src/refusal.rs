//! Why a member does not do what it is asked, and does not take what it is sent.
//!
//! Invariant: whoever gets one of these may go on as if it had not asked: nothing happened.

use thiserror::Error;

use crate::position::NodeId;

/// A lawful request that is not done now. Nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// Ask the leader, if one is known.
    #[error("this member does not lead")]
    NotLeader {
        /// The leader it knows of.
        leader: Option<NodeId>,
    },
    /// Leadership is being handed over. It is settled within an election timeout, one way or the
    /// other.
    #[error("leadership is being handed to {to}")]
    Transferring {
        /// Who takes over.
        to: NodeId,
    },
    /// `uncommitted_bytes_max` is reached.
    #[error("too much is appended and not committed")]
    Backlogged,
    /// A change of members is under way; a new leader assumes so until it has applied what it found
    /// in its log.
    #[error("a change of members is under way")]
    ChangeUnderWay,
    /// The change of members makes no sense: it leaves no voters, for one.
    #[error("this change of members leads to no lawful membership")]
    BadChange,
    /// The leader has not committed anything in its term yet.
    #[error("the leader does not know yet what is committed")]
    NotReady,
    /// The member has no vote, or is not a member.
    #[error("{node} has no vote")]
    NoVoter {
        /// Who was named.
        node: NodeId,
    },
}

/// Why a message was not taken. Nothing happened; the sender is at fault or out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StepError {
    /// It is for another group or another node.
    #[error("a message for group {group} of {to}")]
    Misrouted {
        /// The group it names.
        group: u32,
        /// The node it names.
        to: NodeId,
    },
    /// An answer from someone who is not a member. Removed members send these for a while.
    #[error("an answer from {from}, which is not a member")]
    NotMember {
        /// The sender.
        from: NodeId,
    },
    /// No sound member sends this.
    #[error("a message from {from} that no member sends: {why}")]
    Senseless {
        /// The sender.
        from: NodeId,
        /// What is wrong with it.
        why: &'static str,
    },
    /// This member takes no part in its group any more; see [`crate::Group::halted`].
    #[error("this member is halted")]
    Halted,
}
