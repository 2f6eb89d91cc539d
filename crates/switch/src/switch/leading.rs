//! What members of this shard say of who leads, and what of that this node and others are told.
//!
//! Invariant: the other shards hear of a leader at the end of a step, behind what the member said before:
//! whoever hears of a new leader turns to it.

use super::Switch;
use crate::surroundings::{Outsider, Surroundings};
use broker::{NodeNumber, PartitionId, QueueId};
use partition::{Command, QueuePartition};

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Notes whom a member follows, in which term, as of what it has said so far.
    pub fn note_leader(&self, partition: PartitionId, leader: Option<NodeNumber>, term: u64) {
        let mut noted = self.noted.borrow_mut();
        let waiting = noted.iter().rev().find(|(known, ..)| *known == partition);
        let known = match waiting {
            Some((_, leader, term)) => leader.map(|leader| (leader, *term as u32)),
            None => self.leaders.in_term(partition),
        };
        if known != leader.map(|leader| (leader, term as u32)) {
            noted.push((partition, leader, term));
            self.inbox.borrow_mut().wake();
        }
    }

    /// Notes the term that a member is in: what a leader of an earlier one gave out is passed on no
    /// more, on any shard.
    pub fn note_term(&self, partition: PartitionId, term: u64) {
        self.leaders.note_term(partition, term);
    }

    /// Whether a leader of this term leads a partition no more, as far as this node knows.
    #[inline]
    pub fn is_outdated(&self, partition: PartitionId, term: u64) -> bool {
        self.leaders.is_outdated(partition, term)
    }

    /// Lets all shards know whom members follow now. To be called at the end of a step, once what the
    /// members said before is on its way to the others: whoever hears of a new leader turns to it.
    pub fn tell_leaders(&self) {
        for (partition, leader, term) in self.noted.borrow_mut().drain(..) {
            self.leaders.note(partition, leader, term);
        }
        // Somebody may have said meanwhile that he leads: that is newer than what the member said.
        self.turned.borrow_mut().drain(..).for_each(|partition| self.leaders.follow_announced(partition));
    }

    /// Whether this node believes what a member says of its leader, of a member after a step. One that is to leave
    /// its group hears of its leaders no more, and one that joins hears of none yet: then this node hears who leads as
    /// those do that have no member.
    pub fn believes(&self, queues: &QueuePartition, env: &impl Surroundings<Connection = C, Outsider = O>) -> bool {
        if queues.replica().is_leaving() && !queues.replica().is_leader() {
            self.turn_from_member(queues, env);
            return false;
        }
        self.hears(queues)
    }

    /// Whether a member hears who leads its group. One that joins does not before anybody of the group has
    /// spoken to it.
    fn hears(&self, queues: &QueuePartition) -> bool {
        if self.leaders.is_heard(queues.id()) {
            return true;
        }
        let is_known = !queues.replica().group().membership().voters.is_empty();
        if is_known {
            self.leaders.note_heard(queues.id());
        }
        is_known
    }

    fn turn_from_member(&self, queues: &QueuePartition, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let id = queues.id();
        if !self.leaders.is_heard(id) {
            return;
        }
        // It may have led, and those who heard so are to hear that it does no more.
        self.note_member(queues, env);
        self.leaders.forget_heard(id);
        self.turned.borrow_mut().push(id);
        self.inbox.borrow_mut().wake();
    }

    /// Looks at a member after a step. One that begins to lead is told which of the queues it has
    /// something of are gone: the delete may have come while it did not lead.
    pub fn note_member(&self, queues: &QueuePartition, env: &impl Surroundings<Connection = C, Outsider = O>) {
        if !self.leaders.has_peers() || !self.hears(queues) {
            return;
        }
        let (id, term) = (queues.id(), queues.term().0);
        let mut leading = self.leading.borrow_mut();
        let before = leading.iter().find(|(known, _)| *known == id).map(|(_, term)| *term);
        if before == queues.is_leading().then_some(term) {
            return;
        }
        leading.retain(|(known, _)| *known != id);
        let topology = env.topology();
        // Who has no member of it hears this from nobody else, nor who has just joined and waits for its copy.
        self.inbox.borrow_mut().roads.tell_leads(id, term, queues.is_leading());
        self.inbox.borrow_mut().wake();
        if !queues.is_leading() {
            return;
        }
        leading.push((id, term));
        // One that this node has not heard of yet is no orphan.
        let is_gone = |queue: &QueueId| topology.queue(*queue).is_none() && *queue < topology.next_queue();
        for queue in queues.queue_ids().into_iter().filter(is_gone) {
            self.inbox.borrow_mut().push_here(queues.id(), Command::Delete { queue });
        }
    }
}
