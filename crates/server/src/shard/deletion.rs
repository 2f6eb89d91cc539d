//! How a shard carries out the deletions of its queues: the way to the shard that has the queue,
//! and the way back.
//!
//! Invariant: nothing is decided here; what a deletion goes through stands in
//! [`session::Deletions`].

use super::Parcel;
use super::thread::Local;
use crate::topology_log::Answer;
use broker::topology::{Applied, Command as Change, Refusal, Topology};
use broker::{ChannelKey, PartitionId};
use partition::{Command, Effect, Reply, RequestId};
use session::{Asker, Deleter};
use std::ops::Deref;
use tokio::sync::oneshot;

/// Somebody who is no channel and waits for a deletion.
pub(crate) type Outsider = oneshot::Sender<Result<Reply, Refusal>>;

/// A queue that is to go.
pub(crate) type Deletion = session::Deletion<Outsider>;

impl Local {
    /// Has the shard of a queue's partition delete it, behind everything that was handed to that
    /// partition before.
    pub(crate) fn delete_queue(&self, deletion: Deletion) {
        match self.shared.directory.find(deletion.partition) {
            Some((shard, _)) if shard == self.index => self.deletions.begin(deletion, self),
            Some((shard, _)) => {
                self.inbox.borrow_mut().push_parcel(shard, Parcel::Delete(Box::new(deletion)));
            }
            // Whoever has the partition knows of the queue; here is nobody to ask.
            None => self.answer(deletion.asker, Ok(Reply::NotLeader)),
        }
    }
}

impl Deleter<Outsider> for Local {
    fn own_channel(&self) -> ChannelKey {
        self.keys.borrow().own()
    }

    fn next_request(&self) -> RequestId {
        Local::next_request(self)
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.shared.topology()
    }

    fn push(&self, partition: PartitionId, command: Command) {
        Local::push(self, partition, command);
    }

    fn change(&self, change: &Change) -> Applied {
        self.change_locally(change)
    }

    fn propose(&self, change: Change, request: RequestId) {
        let mailbox = self.shared.mailboxes[self.index].clone();
        let answer = Answer::new(mailbox, self.keys.borrow().own(), request);
        self.shared.log().propose(change, answer);
    }

    fn answer(&self, asker: Asker<Outsider>, answer: Result<Reply, Refusal>) {
        match asker {
            Asker::Nobody => {}
            // Who does not wait any more does not need it.
            Asker::Outsider(outsider) => drop(outsider.send(answer)),
            Asker::Channel { channel, request } => {
                let Some(shard) = self.keys.borrow().shard_of(channel) else { return };
                let parcel = match answer {
                    Ok(reply) => Parcel::Effect(Effect::Reply { channel, request, reply }),
                    Err(refusal) => Parcel::Decided { channel, request, outcome: Err(refusal) },
                };
                // Its own shard too hears of it by mail: this may be called while the channel asks.
                self.shared.mailboxes[shard].send(parcel);
            }
        }
    }
}
