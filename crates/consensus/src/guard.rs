//! What a peer may not say: messages that would end the library, and with it the process, instead
//! of being refused.
//!
//! The library trusts its peers and its disk. It stops the process where a leader knows this member
//! to hold more than it does, where committed entries would be replaced, and at several numbers
//! that make no sense. One group is a small part of a node, so each of these is looked for before
//! the library sees the message.
//!
//! Two kinds of trouble are told apart. A message that no sound member sends is dropped: nothing
//! happened. A leader whose word and this member's log cannot both be true is a [`Contradiction`]:
//! acknowledged entries are gone here or there, so this member takes no further part in its group
//! until an operator has looked.
//!
//! Invariant: what passes here does not make the library panic, whatever a peer says and whatever
//! this member has lost.

use raft::StateRole;
use raft::eraftpb::{self, EntryType};
use thiserror::Error;

use crate::log::SnapshotOffer;
use crate::membership::decode_changes;
use crate::message::Kind;
use crate::position::{LogIndex, NodeId, Term};
use crate::ready::decode_read_context;

/// No index or term gets there; sums of a few of them stay within 64 bits.
const NUMBER_MAX: u64 = 1 << 62;

/// A leader's word and this member's log cannot both be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Contradiction {
    /// This member acknowledged entries that it does not have.
    #[error(
        "{leader} leads in term {term} and knows this member to have the log up to {commit}, but it ends at {last} here: \
         the data folder was put back from a copy, or its disk lost what was synced. Nothing was changed. \
         Stop this node, have the others forget it (leveret ctl forget_cluster_node), and start it with an empty folder: \
         it joins again as a new one and is sent all that the others have"
    )]
    LogBehind {
        /// Who leads.
        leader: NodeId,
        /// In which term.
        term: Term,
        /// What the leader knows to be here.
        commit: LogIndex,
        /// What is here.
        last: LogIndex,
    },
    /// The leader's log differs from this one in what is committed here.
    #[error(
        "{leader} leads in term {term} with an entry of term {theirs} at {index}, where one of term {ours} is committed here: \
         one of the two data folders was put back from a copy, or its disk lost what was synced. Nothing was changed. \
         Find the node that lost entries, stop it, have the others forget it (leveret ctl forget_cluster_node), and start it with \
         an empty folder"
    )]
    CommittedDiffers {
        /// Who leads.
        leader: NodeId,
        /// In which term.
        term: Term,
        /// Where the logs differ.
        index: LogIndex,
        /// The term of the entry here.
        ours: Term,
        /// The term of the leader's.
        theirs: Term,
    },
    /// A committed change of members that no leader can have tried leads to no lawful membership.
    #[error(
        "the change of members at {index}, of term {term}, cannot be applied to the members that this node knows: \
         the leader that appended it is not sound, or this log is not the group's. Nothing behind it was applied. \
         Compare the members that the nodes show, remove the one that differs from its group and let it join with an empty \
         folder and a new id"
    )]
    ChangeOfNothing {
        /// Where it stands.
        index: LogIndex,
        /// Whose leader appended it.
        term: Term,
    },
}

/// Why a message must not reach the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No sound member sends it.
    Senseless(&'static str),
    /// It and the log cannot both be true.
    Contradicts(Contradiction),
}

/// Looks at a message before the library does.
pub(crate) fn look<S: raft::Storage>(raft: &raft::Raft<S>, kind: Kind, m: &eraftpb::Message) -> Result<(), Verdict> {
    if m.from == raft.id {
        return Err(Verdict::Senseless("it claims to come from this node"));
    }
    let numbers = [m.term, m.log_term, m.index, m.commit, m.commit_term, m.reject_hint];
    if numbers.into_iter().any(|number| number > NUMBER_MAX) {
        return Err(Verdict::Senseless("a number in it is too large"));
    }
    if m.priority != 0 || m.request_snapshot != 0 {
        return Err(Verdict::Senseless("it asks for what nobody here asks for"));
    }
    // A message of an older term is answered or ignored without a look at what it says.
    let counts = m.term >= raft.term;
    // A leader ignores another one of its own term.
    let obeys = counts && (m.term > raft.term || raft.state != StateRole::Leader);
    match kind {
        Kind::Append if obeys => look_at_append(raft, m),
        Kind::Heartbeat if obeys => {
            let last = raft.raft_log.last_index();
            if m.commit > last {
                return Err(Verdict::Contradicts(Contradiction::LogBehind {
                    leader: NodeId(m.from),
                    term: Term(m.term),
                    commit: LogIndex(m.commit),
                    last: LogIndex(last),
                }));
            }
            Ok(())
        }
        Kind::Snapshot if obeys => look_at_snapshot(raft, m),
        Kind::AppendReply if raft.state == StateRole::Leader && m.term == raft.term => {
            // A log does not shrink while its member leads, so nobody can have more of it.
            let last = raft.raft_log.last_index();
            if m.index > last || m.reject_hint > last {
                return Err(Verdict::Senseless("it acknowledges what this leader never had"));
            }
            Ok(())
        }
        Kind::VoteReply | Kind::PreVoteReply if m.commit != 0 && m.commit_term == 0 => {
            Err(Verdict::Senseless("it names a committed entry without a term"))
        }
        Kind::ReadIndexReply => match m.entries.first().and_then(|entry| decode_read_context(&entry.data)) {
            Some((asker, _)) if asker.0 == raft.id => Ok(()),
            _ => Err(Verdict::Senseless("it answers a question of another member")),
        },
        _ => Ok(()),
    }
}

fn look_at_append<S: raft::Storage>(raft: &raft::Raft<S>, m: &eraftpb::Message) -> Result<(), Verdict> {
    // The library would take an entry behind its end for one that matches.
    if m.log_term == 0 || m.index == 0 {
        return Err(Verdict::Senseless("it follows no entry"));
    }
    let mut term = m.log_term;
    for entry in m.entries.iter() {
        if entry.term < term || entry.term > m.term {
            return Err(Verdict::Senseless("terms in it do not grow"));
        }
        term = entry.term;
        if entry.entry_type == EntryType::EntryConfChangeV2 && decode_changes(&entry.data).is_err() {
            return Err(Verdict::Senseless("a change of members in it cannot be read"));
        }
    }
    let log = &raft.raft_log;
    // Below what is committed the library looks at nothing: it answers how far this member is, and the leader would take
    // that for a copy of its own log. What is compacted has no term here.
    let here = |index: u64| log.term(index).ok().filter(|term| *term != 0);
    let base = std::iter::once((m.index, m.log_term));
    let entries = m.entries.iter().map(|entry| (entry.index, entry.term));
    let mut committed = base.chain(entries).take_while(|(index, _)| *index <= log.committed);
    match committed.find_map(|(index, theirs)| Some((index, here(index).filter(|ours| *ours != theirs)?, theirs))) {
        Some((index, ours, theirs)) => Err(committed_differs(m, index, ours, theirs)),
        None => Ok(()),
    }
}

fn look_at_snapshot<S: raft::Storage>(raft: &raft::Raft<S>, m: &eraftpb::Message) -> Result<(), Verdict> {
    let SnapshotOffer { position, membership, .. } = SnapshotOffer::from_raft(m.get_snapshot().clone());
    if position.term.0 > m.term || position.index.0 > NUMBER_MAX {
        return Err(Verdict::Senseless("its snapshot is newer than its leader"));
    }
    if !membership.is_lawful() {
        return Err(Verdict::Senseless("its snapshot names no lawful membership"));
    }
    let log = &raft.raft_log;
    if position.index.0 == log.committed {
        let here = log.term(position.index.0).unwrap_or(0);
        // A member that joins has nothing, and no term there.
        if here != position.term.0 && here != 0 {
            return Err(committed_differs(m, position.index.0, here, position.term.0));
        }
    }
    Ok(())
}

fn committed_differs(m: &eraftpb::Message, index: u64, ours: u64, theirs: u64) -> Verdict {
    Verdict::Contradicts(Contradiction::CommittedDiffers {
        leader: NodeId(m.from),
        term: Term(m.term),
        index: LogIndex(index),
        ours: Term(ours),
        theirs: Term(theirs),
    })
}
