//! Deletions of queues on their way to whoever leads the queue's partition: here, on another shard, or on
//! another node.
//!
//! Invariant: what another node answers comes to the shard of who asked, so that shard is the one that asks.

use super::{At, Switch};
use crate::parcel::Parcel;
use crate::surroundings::{Outsider, Surroundings};
use broker::QueueId;
use partition::Reply;
use session::{Asker, Deleter, Deletion};

/// What became of a deletion that may be another node's.
enum Sent<O> {
    /// It is this node's, or nobody's.
    Not(Deletion<O>),
    /// It is on its way.
    Away,
    /// It is another node's, but that cannot answer who asks over this shard's road.
    NotFromHere(Asker<O>),
}

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Has the shard of a queue's partition delete it, behind everything that was handed to that
    /// partition before.
    pub fn delete_queue(&self, deletion: Deletion<O>, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let deletion = match self.delete_away(deletion) {
            Sent::Not(deletion) => deletion,
            Sent::Away => return,
            Sent::NotFromHere(asker) => return At { switch: self, env }.answer(asker, Ok(Reply::NotLeader)),
        };
        match self.directory.find(deletion.partition) {
            Some((shard, _)) if shard == self.index => self.deletions.begin(deletion, &At { switch: self, env }),
            Some((shard, _)) => {
                self.inbox.borrow_mut().push_parcel(shard, Parcel::Delete(Box::new(deletion)));
            }
            // Whoever has the partition knows of the queue; here is nobody to ask.
            None => At { switch: self, env }.answer(deletion.asker, Ok(Reply::NotLeader)),
        }
    }

    /// Has the node that leads a queue's partition delete it: what is decided about the queue is tied
    /// to who leads it.
    fn delete_away(&self, deletion: Deletion<O>) -> Sent<O> {
        let Some(node) = self.leaders.away(deletion.partition) else { return Sent::Not(deletion) };
        let mut inbox = self.inbox.borrow_mut();
        if inbox.roads.road(node).is_none() {
            return Sent::Not(deletion);
        }
        if let Asker::Channel { channel, .. } = deletion.asker
            && self.keys.borrow().shard_of(channel) != Some(self.index)
        {
            // The leader changed while it came here. The answer would come to the channel's own shard, over a
            // road by which nothing was asked.
            return Sent::NotFromHere(deletion.asker);
        }
        let Deletion { queue, partition, if_unused, if_empty, asker, insists: _ } = deletion;
        let asks = match asker {
            Asker::Channel { channel, request } => (channel, request),
            Asker::Nobody => (self.own_key(), self.next_request()),
            Asker::Outsider(outsider) => {
                let request = self.next_request();
                self.asked.borrow_mut().insert(request, outsider);
                (self.own_key(), request)
            }
        };
        inbox.roads.delete(node, partition, queue, (if_unused, if_empty), asks);
        inbox.wake();
        Sent::Away
    }

    /// A queue was declared by a connection that is gone since: if it is that connection's alone, it
    /// goes too.
    pub(super) fn delete_abandoned(&self, queue: QueueId, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let found = env.topology().queue(queue).filter(|found| found.exclusive.is_some()).map(|found| found.partition);
        if let Some(partition) = found {
            let (if_unused, if_empty, asker, insists) = (false, false, Asker::Nobody, true);
            let deletion = Deletion { queue, partition, if_unused, if_empty, asker, insists };
            self.delete_queue(deletion, env);
        }
    }
}
