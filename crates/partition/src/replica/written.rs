//! The weaker index: up to where members have written the log of a leader, synced or not, who is told of that, and
//! whether it may be relied on.
//!
//! Invariant: it is volatile, belongs to one term and never moves Raft's own index. Of several members it is what is
//! committed while nobody beyond a majority is alive.

use super::Replica;
use crate::outputs::{Outputs, Ticket};
use crate::peer::PeerFrame;
use consensus::{LogIndex, NodeId, Term};
use storage::Location;

/// See [`Replica::is_unspared`].
const UNSPARED_TICKS: u32 = 2;

impl Replica {
    /// A write was handed to the operating system; `bodies` are the places of its entries.
    pub fn wal_written(&mut self, ticket: Ticket, bodies: &[Location], out: &mut Outputs) {
        let node = self.node;
        let Some(write) = self.writes.iter_mut().find(|w| w.ticket == ticket) else { return };
        if write.located {
            return;
        }
        write.located = true;
        assert_eq!(write.entries.len(), bodies.len(), "every entry was written somewhere");
        let last = write.entries.last().copied();
        for ((index, term), body) in write.entries.iter().zip(bodies) {
            self.table.written(*index, *term, *body);
        }
        let Some((index, term)) = last else { return };
        // Only an entry of the current term says anything: it came from this term's leader, or is
        // its own, so the log up to it matches the leader's. One of an older term may yet be
        // overwritten (Raft paper, figure 8).
        if term != self.group.term() || self.table.term(index) != Some(term) {
            return;
        }
        if self.group.is_leader() {
            self.note_written(node, term, index);
        } else if let Some(leader) = self.group.leader() {
            // An entry of the leader's own term: logs that share it share all before. One of an
            // older term proves nothing, as the leader may have another entry there, and would
            // count this member for that one.
            if term != self.synced_term {
                // Said before, it could be forgotten together with the term: an old leader could
                // then make this member catch up with a log that lacks the entry.
                self.unsaid = Some((term, index));
            } else if self.doubt.is_none() {
                self.say_written(leader, term, index, out);
            }
        }
    }

    /// The index up to which this leader has written its own log; 0 where nobody waited for that.
    pub fn own_written(&self) -> LogIndex {
        let is_of_now = self.written_term == self.group.term();
        self.written.get(&self.node).copied().filter(|_| is_of_now).unwrap_or_default()
    }

    /// The index up to which enough members have written this leader's log for a majority.
    /// Volatile.
    ///
    /// While no member beyond a majority is alive, written is not enough: the loss of one more
    /// would lose what was confirmed. Then this is what is committed. A group of one has no spare
    /// by intent, and written means written.
    pub fn written_index(&self) -> LogIndex {
        if self.written_term != self.group.term() || !self.group.is_leader() {
            return LogIndex(0);
        }
        if self.lacks_spare(self.group.term()) {
            return self.group.commit();
        }
        let voters = &self.voters;
        let majority = voters.len() / 2 + 1;
        if let [_] = voters.as_slice() {
            return self.written.get(&self.node).copied().unwrap_or_default();
        }
        let mut indexes: Vec<LogIndex> =
            voters.iter().map(|v| self.written.get(v).copied().unwrap_or_default()).collect();
        indexes.sort_unstable_by(|a, b| b.cmp(a));
        indexes.get(majority - 1).copied().unwrap_or_default()
    }

    /// Whether what waits for *written* waits for the disks of a majority, as this leader has had no member to
    /// spare for two ticks. Right after it looked who is there it counts those who answered since, so the
    /// moment alone says little.
    pub fn is_unspared(&self) -> bool {
        self.unspared_ticks >= UNSPARED_TICKS
    }

    /// Whether a leader of several members has none beyond a majority.
    pub(super) fn lacks_spare(&self, term: Term) -> bool {
        // In the middle of a change a majority of those before is needed as well: members who do not
        // know of it yet elect without the others.
        if self.is_joint {
            return true;
        }
        let (voters, majority) = (self.voters.len(), self.voters.len() / 2 + 1);
        // Who may have forgotten something is no spare: it would be missing at an election.
        voters > 1 && self.group.active_voters().saturating_sub(self.doubtful.count(term)) <= majority
    }

    pub(super) fn note_written(&mut self, member: NodeId, term: Term, index: LogIndex) {
        if term != self.group.term() {
            return;
        }
        if term != self.written_term {
            self.written.clear();
            self.written_term = term;
        }
        let entry = self.written.entry(member).or_default();
        *entry = (*entry).max(index);
    }

    pub(super) fn say_written(&self, leader: NodeId, term: Term, index: LogIndex, out: &mut Outputs) {
        out.frames.push((leader, self.id, PeerFrame::Written { term, index }));
    }

    /// The term is synced: what was written meanwhile may be said.
    pub(super) fn say_unsaid(&mut self, out: &mut Outputs) {
        let Some((term, index)) = self.unsaid.filter(|(term, _)| *term <= self.synced_term) else { return };
        self.unsaid = None;
        let leader = self.group.leader().filter(|leader| *leader != self.node && self.doubt.is_none());
        if let Some(leader) = leader.filter(|_| term == self.group.term() && self.table.term(index) == Some(term)) {
            self.say_written(leader, term, index, out);
        }
    }
}
