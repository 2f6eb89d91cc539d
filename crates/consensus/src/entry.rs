//! One entry of the log, as the rest of Leveret sees it.
//!
//! Invariant: the library's entry and ours hold the same facts; a command is never empty,
//! because an empty normal entry is how a new leader announces its term.

use bytes::Bytes;
use raft::eraftpb;

use crate::position::{LogIndex, Position, Term};

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A command for the state machine.
    Command,
    /// A change of the members, see [`Membership`](crate::Membership). The group itself acts on it
    /// when it is applied; whoever keeps a checkpoint asks
    /// [`Group::membership`](crate::Group::membership) afterwards.
    Membership,
    /// A new leader's first entry. There is nothing to apply, but its index counts.
    Empty,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its index.
    pub index: LogIndex,
    /// The term of the leader that appended it.
    pub term: Term,
    /// What it is for.
    pub kind: EntryKind,
    /// Its body. Cloning shares it.
    pub data: Bytes,
    /// The checksum of `data` where somebody has taken it: a large body is read once for it, by the leader as it makes
    /// the entry, by others as it comes. It is what links and logs make theirs of, and goes nowhere by itself.
    pub crc: Option<u32>,
}

impl Entry {
    /// Where it stands.
    pub fn position(&self) -> Position {
        Position { index: self.index, term: self.term }
    }

    pub(crate) fn from_raft(entry: eraftpb::Entry) -> Self {
        let kind = match entry.entry_type {
            eraftpb::EntryType::EntryNormal if entry.data.is_empty() => EntryKind::Empty,
            eraftpb::EntryType::EntryNormal => EntryKind::Command,
            eraftpb::EntryType::EntryConfChangeV2 => EntryKind::Membership,
            eraftpb::EntryType::EntryConfChange => {
                unreachable!("only the second form of a membership entry is ever proposed")
            }
        };
        let crc = crc_of(&entry);
        Self { index: LogIndex(entry.index), term: Term(entry.term), kind, data: entry.data, crc }
    }

    pub(crate) fn into_raft(self) -> eraftpb::Entry {
        eraftpb::Entry {
            entry_type: match self.kind {
                EntryKind::Command | EntryKind::Empty => eraftpb::EntryType::EntryNormal,
                EntryKind::Membership => eraftpb::EntryType::EntryConfChangeV2,
            },
            term: self.term.0,
            index: self.index.0,
            data: self.data,
            context: context_of(self.crc),
            ..eraftpb::Entry::default()
        }
    }
}

/// The library hands on the context of an entry with it, and makes nothing of it.
pub(crate) fn context_of(crc: Option<u32>) -> Bytes {
    crc.map_or(Bytes::new(), |crc| Bytes::copy_from_slice(&crc.to_le_bytes()))
}

/// What [`context_of`] put there.
pub(crate) fn crc_of(entry: &eraftpb::Entry) -> Option<u32> {
    entry.context.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
