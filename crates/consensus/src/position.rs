//! Who and where: node ids, terms, log indexes, and a place in the log.
//!
//! Invariant: zero is never a member, a term in which anything happened, or an entry. It stands for
//! "none yet", as in the Raft paper, and only [`LogIndex`] and [`Term`] may hold it.

use std::fmt;

/// A member of a group, for ever: an id is never given to another process, nor to the same one after
/// it lost its disk, because its old self may have voted. Never zero.
///
/// The low 32 bits are the number of its node. The bits above say how often that node had left the
/// group for good before: who comes back has nothing of what it had, and is another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// Where the lives of an id stand above the number of its node.
const LIFE_SHIFT: u32 = 32;

impl NodeId {
    /// The member that the node of this number is after it has left the group so often.
    pub const fn of(number: u32, life: u32) -> Self {
        Self((life as u64) << LIFE_SHIFT | number as u64)
    }

    /// The number of its node.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// How often its node had left the group before.
    pub const fn life(self) -> u32 {
        (self.0 >> LIFE_SHIFT) as u32
    }
}

/// A Raft term. Zero before the first election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// The index of an entry in the log of one group, from 1. Zero is the place before the first entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u64);

/// An index and the term of the entry there: names one entry in the history of the group, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Index of the entry.
    pub index: LogIndex,
    /// Term in which a leader appended it.
    pub term: Term,
}

impl Position {
    /// The place `index@term`.
    pub const fn new(index: u64, term: u64) -> Self {
        Self { index: LogIndex(index), term: Term(term) }
    }
}

impl LogIndex {
    /// The index after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.life() {
            0 => write!(f, "n{}", self.number()),
            life => write!(f, "n{}.{life}", self.number()),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index, self.term)
    }
}
