//! Deletions of queues: whatever the reason, the shard of the queue's partition begins and finishes them.
//!
//! A deletion is asked of the partition, which says whether its conditions hold, then decided by the topology, then
//! carried out. Invariant: none of these steps needs whoever asked. A channel, a connection or an HTTP caller that goes
//! away misses the answer and changes nothing else: what was begun is decided, or called off, by this shard.

use super::Parcel;
use super::thread::Local;
use crate::topology_log::Answer;
use broker::topology::{Checked, Outcome, Refusal};
use broker::{ChannelKey, PartitionId, QueueId};
use partition::{Command, Effect, Reply, RequestId};
use tokio::sync::oneshot;

/// Who hears what became of a deletion. It may be gone by then.
pub(crate) enum Asker {
    /// The queue's own rules ask: its last consumer went, or nobody used it for too long.
    Nobody,
    /// A channel, on whichever shard.
    Channel {
        /// Its key.
        channel: ChannelKey,
        /// The request that waits.
        request: RequestId,
    },
    /// Somebody who is no channel.
    Outsider(oneshot::Sender<Result<Reply, Refusal>>),
}

/// A queue that is to go.
pub(crate) struct Deletion {
    /// The queue.
    pub(crate) queue: QueueId,
    /// Where it lives.
    pub(crate) partition: PartitionId,
    /// Only without consumers.
    pub(crate) if_unused: bool,
    /// Only without ready messages.
    pub(crate) if_empty: bool,
    /// Who hears of it.
    pub(crate) asker: Asker,
}

/// A deletion that this shard has begun.
pub(crate) struct Begun {
    deletion: Deletion,
    /// How many messages were ready when the partition let the queue go.
    ready: u64,
}

impl Deletion {
    /// The deletion of a queue that has to be unused, for a reason of its own.
    pub(crate) fn of_unused(queue: QueueId, partition: PartitionId) -> Deletion {
        Deletion { queue, partition, if_unused: true, if_empty: false, asker: Asker::Nobody }
    }

    fn has_conditions(&self) -> bool {
        self.if_unused || self.if_empty
    }
}

impl Local {
    /// Has the shard of a queue's partition delete it, behind everything that was handed to that partition before.
    pub(crate) fn delete_queue(&self, deletion: Deletion) {
        match self.shared.directory.find(deletion.partition) {
            Some((shard, _)) if shard == self.index => self.begin_deletion(deletion),
            Some((shard, _)) => {
                self.inbox.borrow_mut().push_parcel(shard, Parcel::Delete(Box::new(deletion)));
            }
            // Whoever has the partition knows of the queue; here is nobody to ask.
            None => self.answer_asker(deletion.asker, Ok(Reply::NotLeader)),
        }
    }

    /// Begins a deletion on the shard of its partition.
    pub(crate) fn begin_deletion(&self, deletion: Deletion) {
        let request = self.next_request();
        let Deletion { queue, partition, if_unused, if_empty, .. } = deletion;
        self.deletions.borrow_mut().insert(request, Begun { deletion, ready: 0 });
        let channel = self.keys.borrow().own();
        self.push(partition, Command::Close { queue, if_unused, if_empty, channel, request });
    }

    /// The partition says whether a queue may go. False if the request is none of a deletion.
    pub(crate) fn may_be_deleted(&self, request: RequestId, reply: &Reply) -> bool {
        let Some(Begun { deletion, .. }) = self.deletions.borrow_mut().remove(&request) else { return false };
        let ready = match reply {
            Reply::Counted(ready) => *ready,
            // Who leads the partition now does not matter where there is nothing to ask it.
            Reply::NotLeader if !deletion.has_conditions() => 0,
            refused => {
                self.answer_asker(deletion.asker, Ok(refused.clone()));
                return true;
            }
        };
        let change = self.shared.topology().deletion(deletion.queue);
        match change {
            // Somebody else deleted it meanwhile, with the messages that were counted here.
            Checked::Done => self.answer_asker(deletion.asker, Ok(Reply::Counted(ready))),
            Checked::Local(change) => {
                let outcome = self.change_locally(&change).outcome;
                self.finish_deletion(deletion, ready, outcome);
            }
            Checked::Propose(change) => {
                self.deletions.borrow_mut().insert(request, Begun { deletion, ready });
                let mailbox = self.shared.mailboxes[self.index].clone();
                let answer = Answer::new(mailbox, self.keys.borrow().own(), request);
                self.shared.log().propose(change, answer);
            }
        }
        true
    }

    /// The topology decided about a deletion of this shard.
    pub(crate) fn deletion_decided(&self, request: RequestId, outcome: Result<Outcome, Refusal>) {
        let Some(Begun { deletion, ready }) = self.deletions.borrow_mut().remove(&request) else { return };
        self.finish_deletion(deletion, ready, outcome);
    }

    fn finish_deletion(&self, deletion: Deletion, ready: u64, outcome: Result<Outcome, Refusal>) {
        let Deletion { queue, partition, asker, .. } = deletion;
        if outcome.is_err() {
            self.push(partition, Command::Reopen { queue });
        }
        self.answer_asker(asker, outcome.map(|_| Reply::Counted(ready)));
    }

    fn answer_asker(&self, asker: Asker, answer: Result<Reply, Refusal>) {
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
