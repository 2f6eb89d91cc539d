//! A member that may have forgotten the end of its log: how it learns what it must have before it
//! counts as whole again.
//!
//! ```text
//! member                                   leader of its term
//!   ── ask end: term, life ──▶               repeated until it is answered
//!   ◀── end of log: term, life, index ──     the end of the leader's log now
//!   has synced that entry of that term: it has all that it may have forgotten
//! ```
//!
//! What it forgot it had acknowledged as written, in a term that it had synced by then. So whoever
//! leads a term that it accepts has all of it: it is the leader who was told, or one that was
//! elected by members who remember. `life` differs from start to start, so that an answer to an
//! earlier life, from before the loss, is not taken for one.
//!
//! Invariant: while it is in doubt, a member does not say what it has written, its grants are
//! marked (`consensus`), and a leader that knows of it does not count it as a spare.

use super::Replica;
use crate::outputs::Outputs;
use crate::peer::PeerFrame;
use consensus::{LogIndex, NodeId, Role, Term};
use std::collections::BTreeSet;

/// A question is repeated after so many ticks.
const ASK_TICKS: u32 = 2;

/// What a member in doubt knows.
pub(super) struct Doubt {
    life: u64,
    /// The leader's term, and the end of its log when it was asked.
    wanted: Option<(Term, LogIndex)>,
    ask_in: u32,
}

/// Members in doubt, as their leader knows them.
#[derive(Default)]
pub(super) struct Doubtful {
    term: Term,
    members: BTreeSet<NodeId>,
}

impl Doubtful {
    fn asks(&mut self, member: NodeId, term: Term) {
        if term != self.term {
            self.term = term;
            self.members.clear();
        }
        self.members.insert(member);
    }

    /// A member says what it has written, which one in doubt does not.
    pub(super) fn caught_up(&mut self, member: NodeId, term: Term) {
        if term == self.term {
            self.members.remove(&member);
        }
    }

    pub(super) fn count(&self, term: Term) -> usize {
        if term == self.term { self.members.len() } else { 0 }
    }
}

impl Replica {
    /// A member that may have forgotten something since the life before `life`.
    pub(crate) fn in_doubt_since(mut self, life: Option<u64>) -> Self {
        // The group knows whether anything can have counted on it.
        let life = life.filter(|_| self.group.may_have_forgotten());
        self.doubt = life.map(|life| Doubt { life, wanted: None, ask_in: 0 });
        self
    }

    /// Whether it may have forgotten the end of its log and has not caught up.
    pub fn may_have_forgotten(&self) -> bool {
        self.doubt.is_some()
    }

    /// A tick went by: a member in doubt asks the leader that it follows.
    pub(super) fn ask_for_memory(&mut self) {
        let Some(doubt) = &mut self.doubt else { return };
        let status = self.group.status();
        let Some(leader) = status.leader.filter(|leader| *leader != self.node) else { return };
        doubt.wanted = doubt.wanted.filter(|(term, _)| *term == status.term);
        doubt.ask_in = doubt.ask_in.saturating_sub(1);
        if doubt.wanted.is_some() || doubt.ask_in > 0 {
            return;
        }
        doubt.ask_in = ASK_TICKS;
        self.frames.push((leader, PeerFrame::AskEnd { term: status.term, life: doubt.life }));
    }

    /// Answers a member in doubt, unless it asks somebody who does not lead.
    pub(super) fn say_end(&mut self, from: NodeId, term: Term, life: u64) {
        let status = self.group.status();
        if status.role == Role::Leader && term == status.term {
            self.doubtful.asks(from, term);
            // An entry of its own term: it appends one when it takes office.
            self.frames.push((from, PeerFrame::EndOfLog { term, life, index: status.last.index }));
        }
    }

    /// The answer to this member's question. What is not of this term, or of this life, is dropped.
    pub(super) fn hear_end(&mut self, from: NodeId, term: Term, life: u64, index: LogIndex) {
        let status = self.group.status();
        if term == status.term
            && status.leader == Some(from)
            && let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.life == life)
        {
            doubt.wanted.get_or_insert((term, index));
        }
    }

    /// Ends the doubt of a member that has caught up, that leads, or that waited for too long.
    pub(super) fn end_doubt(&mut self, out: &mut Outputs) {
        let Some(doubt) = &self.doubt else { return };
        if !self.group.may_have_forgotten() {
            self.doubt = None;
            return;
        }
        let status = self.group.status();
        let Some((term, index)) = doubt.wanted.filter(|(term, _)| *term == status.term) else { return };
        // The entry itself, or so much that is committed that it is among it.
        let has = self.group.term_at(index) == Some(term) || status.commit >= index;
        if status.persisted < index || !has {
            return;
        }
        self.group.caught_up();
        self.doubt = None;
        if let Some(leader) = status.leader {
            self.say_written(leader, term, index, out);
        }
    }
}
