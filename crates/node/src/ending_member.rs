//! A group that ends on this node, on its shard: the node is its member no more.
//!
//! What is on its way to a file is waited for; then comes the tombstone, then both checkpoints;
//! then its files go ([`partition::ending`]). A start goes on where a crash fell.
//!
//! Invariant: nothing is said in the group's name. Who asks for something hears that this node does
//! not lead it.

use crate::Millis;
use crate::completions::{Completion, Completions};
use crate::queue_member::QueueMember;
use crate::share::Share;
use crate::vacant_member::VacantMember;
use crate::waits::Waiting;
use broker::PartitionId;
use consensus::NodeId;
use partition::ending::End;
use partition::outputs::Ticket;
use partition::{Reply, refuse};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

enum Stage {
    /// Something of it is on its way to a file.
    Resting(Box<QueueMember>),
    /// The tombstone is on its way.
    Ending(Ticket, End),
    /// Its checkpoints are being written over.
    Saving(End),
    /// Nothing is left of it.
    Over,
}

/// See the module.
pub struct EndingMember {
    id: PartitionId,
    stage: Stage,
    told_needs: Option<u32>,
    completions: Completions,
    taken: Vec<Completion>,
    /// What a place has that is left behind: the node may come back.
    leaves: Option<(NodeId, Arc<AtomicU64>)>,
    /// The number of its last write.
    last_ticket: Ticket,
}

impl EndingMember {
    /// Ends this member's part in its group. Its shard has to step it once.
    pub(crate) fn new(member: QueueMember) -> EndingMember {
        let (id, completions) = (member.partition().id(), member.completions().clone());
        let (stage, told_needs, leaves) = (Stage::Resting(Box::new(member)), None, None);
        EndingMember { id, stage, told_needs, completions, taken: Vec::new(), leaves, last_ticket: Ticket(0) }
    }

    /// The same of a member that the group has let go, and whose node may come back as another one.
    pub(crate) fn of_one_that_left(member: QueueMember) -> EndingMember {
        let leaves = Some((member.partition().replica().node(), member.at_risk().clone()));
        EndingMember { leaves, ..EndingMember::new(member) }
    }

    /// Whether nothing is left of it and its place is vacant.
    pub(crate) fn makes_room(&self) -> bool {
        self.is_over() && self.told_needs.is_some() && self.leaves.is_some()
    }

    /// The place that it leaves.
    pub(crate) fn into_vacant(self) -> VacantMember {
        let (member, at_risk) = self.leaves.expect("its place is vacant");
        VacantMember::new(self.id, member, self.completions, at_risk).behind(self.last_ticket)
    }

    /// Stands for a group that had ended here when the node was started.
    pub fn over(id: PartitionId, completions: Completions) -> EndingMember {
        let (stage, taken, last_ticket) = (Stage::Over, Vec::new(), Ticket(0));
        EndingMember { id, stage, told_needs: None, completions, taken, leaves: None, last_ticket }
    }

    /// Whether nothing is left of it.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    pub(crate) fn step(&mut self, waiting: &mut Waiting, share: &mut Share) {
        waiting.declared.clear();
        waiting.frames.clear();
        waiting.commands.drain(..).for_each(|command| refuse(command, Reply::NotLeader, &mut share.out.effects));
        let mut taken = std::mem::take(&mut self.taken);
        self.completions.take(&mut taken);
        for completion in taken.drain(..) {
            self.complete(completion, share);
        }
        self.taken = taken;
        if let Stage::Resting(member) = &mut self.stage
            && let Some((ticket, end)) = member.end(share)
        {
            self.last_ticket = ticket;
            self.stage = Stage::Ending(ticket, end);
        }
        if self.is_over() {
            share.note_needs(self.id, &mut self.told_needs, u32::MAX);
        }
    }

    fn complete(&mut self, completion: Completion, share: &mut Share) {
        self.stage = match (std::mem::replace(&mut self.stage, Stage::Over), completion) {
            (Stage::Resting(mut member), completion) => {
                member.come_to_rest(completion, share);
                Stage::Resting(member)
            }
            (Stage::Ending(ticket, mut end), Completion::Synced(synced)) if synced >= ticket => {
                end.next(&mut share.out);
                Stage::Saving(end)
            }
            (Stage::Saving(mut end), Completion::Checkpoint) => match end.next(&mut share.out) {
                true => Stage::Over,
                false => Stage::Saving(end),
            },
            // Writes and reads that were on their way when it ended.
            (stage, _) => stage,
        };
    }

    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        (self.is_over() && self.told_needs.is_none()).then_some(0)
    }
}
