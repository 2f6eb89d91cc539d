//! Deletions of queues: whatever the reason, whoever runs the queue's partition begins and finishes
//! them.
//!
//! A deletion is asked of the partition, which says whether its conditions hold, then decided by
//! the topology, then carried out. Invariant: none of these steps needs whoever asked. A channel, a
//! connection or an HTTP caller that goes away misses the answer and changes nothing else: what was
//! begun is decided, or called off.

use broker::topology::{Applied, Checked, Command as Change, CommandReply, Refusal, Topology};
use broker::{ChannelKey, PartitionId, QueueId};
use partition::{Command, Reply, RequestId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;

/// Who hears what became of a deletion. It may be gone by then. `O` is somebody who is no channel.
#[derive(Debug)]
pub enum Asker<O> {
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
    Outsider(O),
}

/// A queue that is to go.
#[derive(Debug)]
pub struct Deletion<O> {
    /// The queue.
    pub queue: QueueId,
    /// Where it lives.
    pub partition: PartitionId,
    /// Only without consumers.
    pub if_unused: bool,
    /// Only without ready messages.
    pub if_empty: bool,
    /// Who hears of it.
    pub asker: Asker<O>,
    /// Whether it is asked again until it is decided.
    pub insists: bool,
}

impl<O> Deletion<O> {
    /// The deletion of a queue that has to be unused, for a reason of its own.
    pub fn of_unused(queue: QueueId, partition: PartitionId) -> Self {
        Deletion { queue, partition, if_unused: true, if_empty: false, asker: Asker::Nobody, insists: false }
    }

    fn has_conditions(&self) -> bool {
        self.if_unused || self.if_empty
    }
}

/// Who runs the partitions of the queues that go: a shard, or a simulated one.
pub trait Deleter<O> {
    /// The key under which it asks its partitions; their replies to it come to
    /// [`Deletions::may_be_deleted`].
    fn own_channel(&self) -> ChannelKey;

    /// A number that none of its requests has had.
    fn next_request(&self) -> RequestId;

    /// The topology, to look at.
    fn topology(&self) -> impl Deref<Target = Topology>;

    /// Hands a command to one of its partitions.
    fn push(&self, partition: PartitionId, command: Command);

    /// Makes a change that concerns this node only, and has partitions do what follows.
    fn change(&self, change: &Change) -> Applied;

    /// Proposes a replicated change; the answer comes to [`Deletions::decided`].
    fn propose(&self, change: Change, request: RequestId);

    /// Tells who asked. May be called while it asks, so a channel must not hear of it before that
    /// is over.
    fn answer(&self, asker: Asker<O>, answer: Result<Reply, Refusal>);
}

/// A deletion that was begun.
#[derive(Debug)]
struct Begun<O> {
    deletion: Deletion<O>,
    /// How many messages were ready when the partition let the queue go.
    ready: u64,
}

/// The deletions that are under way in one place.
#[derive(Debug)]
pub struct Deletions<O> {
    begun: RefCell<BTreeMap<RequestId, Begun<O>>>,
}

impl<O> Default for Deletions<O> {
    fn default() -> Self {
        Deletions { begun: RefCell::default() }
    }
}

impl<O> Deletions<O> {
    /// Begins a deletion, behind everything that was handed to the queue's partition before.
    pub fn begin(&self, deletion: Deletion<O>, by: &impl Deleter<O>) {
        let request = by.next_request();
        let Deletion { queue, partition, if_unused, if_empty, .. } = deletion;
        self.begun.borrow_mut().insert(request, Begun { deletion, ready: 0 });
        by.push(partition, Command::Close { queue, if_unused, if_empty, channel: by.own_channel(), request });
    }

    /// The partition says whether a queue may go. False if the request is none of a deletion.
    pub fn may_be_deleted(&self, request: RequestId, reply: &Reply, by: &impl Deleter<O>) -> bool {
        let Some(Begun { deletion, .. }) = self.begun.borrow_mut().remove(&request) else { return false };
        let ready = match reply {
            Reply::Counted(ready) => *ready,
            // Who leads the partition now does not matter where there is nothing to ask it.
            Reply::NotLeader if !deletion.has_conditions() => 0,
            refused => {
                by.answer(deletion.asker, Ok(refused.clone()));
                return true;
            }
        };
        let change = by.topology().deletion(deletion.queue);
        match change {
            // Somebody else deleted it meanwhile, with the messages that were counted here.
            Checked::Done => by.answer(deletion.asker, Ok(Reply::Counted(ready))),
            Checked::Local(change) => {
                let outcome = by.change(&change).outcome;
                finish(deletion, ready, outcome, by);
            }
            Checked::Propose(change) => {
                self.begun.borrow_mut().insert(request, Begun { deletion, ready });
                by.propose(change, request);
            }
        }
        true
    }

    /// The topology decided about a deletion that was begun here.
    pub fn decided(&self, request: RequestId, outcome: Result<CommandReply, Refusal>, by: &impl Deleter<O>) {
        let Some(Begun { deletion, ready }) = self.begun.borrow_mut().remove(&request) else { return };
        if outcome.is_err() && deletion.insists {
            // Its connection is gone, and the queue is to go whatever stands in the way now: nobody
            // else would ask again.
            return self.begin(deletion, by);
        }
        finish(deletion, ready, outcome, by);
    }
}

fn finish<O>(deletion: Deletion<O>, ready: u64, outcome: Result<CommandReply, Refusal>, by: &impl Deleter<O>) {
    let Deletion { queue, partition, asker, .. } = deletion;
    if outcome.is_err() {
        by.push(partition, Command::Reopen { queue });
    }
    by.answer(asker, outcome.map(|_| Reply::Counted(ready)));
}
