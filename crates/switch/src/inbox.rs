//! Commands on their way to partitions, gathered while the sockets of a shard are read.
//!
//! Invariant: commands of one shard to one partition keep their order, and a queue is declared
//! before commands for it arrive. Nothing here is locked: what stays on the shard is a push to a
//! vector, what leaves it waits for the end of the step and goes over as one batch.

use crate::directory::Directory;
use crate::leaders::Leaders;
use crate::parcel::Parcel;
use crate::roads::{Frames, LinkUp, Roads};
use crate::unanswered::unanswered;
use broker::{NodeLife, PartitionId, QueueId};
use node::{NodeId, Waits};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Message, PeerFrame};
use std::task::Waker;

/// What waits for partitions, here and on other shards.
pub struct Inbox<O> {
    shard: usize,
    directory: Directory,
    leaders: Leaders,
    /// What is for other nodes.
    pub(crate) roads: Roads,
    /// What is answered here, as the node that has the partition in its memory cannot be reached.
    given_up: Vec<Effect>,
    waits: Waits,
    remote: Vec<Vec<Parcel<O>>>,
    /// Bytes of the messages in `remote`.
    remote_bytes: Vec<u64>,
    has_remote: bool,
    waker: Option<Waker>,
    is_woken: bool,
}

impl<O> Inbox<O> {
    /// Nothing waits; `members` partitions run on this shard.
    pub fn new(shard: usize, directory: Directory, leaders: Leaders, members: usize) -> Self {
        let roads = Roads::new(shard);
        let remote = (0..directory.shards()).map(|_| Vec::new()).collect();
        let remote_bytes = vec![0; directory.shards()];
        let (waits, has_remote, waker, is_woken) = (Waits::new(members), false, None, false);
        Inbox {
            shard,
            directory,
            leaders,
            roads,
            given_up: Vec::new(),
            waits,
            remote,
            remote_bytes,
            has_remote,
            waker,
            is_woken,
        }
    }

    /// Queues a command for whoever leads the partition: another node, as far as is known here and
    /// there is a link, or this node's member.
    #[inline]
    pub fn push(&mut self, partition: PartitionId, command: Command) {
        let command = match self.leaders.has_peers() {
            false => command,
            true => match self.push_away(partition, command) {
                Some(command) => command,
                None => return,
            },
        };
        self.push_here(partition, command);
    }

    /// Sends a command to the node that leads the partition; gives it back if that is this one, or
    /// nobody is known to, or cannot be reached.
    fn push_away(&mut self, partition: PartitionId, command: Command) -> Option<Command> {
        let leader = self.leaders.leader(partition);
        let left = if let Command::Detach { channel } = &command {
            self.roads.detach(partition, *channel);
            self.roads.turning.hold(partition, command.clone());
            Some(command)
        } else {
            match self.roads.hold(partition, leader, self.leaders.own(), command) {
                Some(command) => match leader.filter(|node| *node != self.leaders.own()) {
                    Some(node) => match self.roads.command(node, partition, command) {
                        Some(command) if partition.is_in_memory() => {
                            self.given_up.extend(unanswered(partition, &command));
                            self.wake();
                            None
                        }
                        left => left,
                    },
                    None => Some(command),
                },
                None => None,
            }
        };
        if self.roads.has_frames() {
            self.wake();
        }
        left
    }

    /// Queues a command for this node's member. One for a partition that does not run here is
    /// dropped: its queue cannot be declared here.
    #[inline]
    pub(crate) fn push_here(&mut self, partition: PartitionId, command: Command) {
        match self.directory.find(partition) {
            Some((shard, place)) if shard == self.shard => self.waits.push(place, command),
            Some((shard, _)) => {
                if let Command::Publish(publish) = &command {
                    self.remote_bytes[shard] += bytes_of(&publish.message);
                }
                self.push_parcel(shard, Parcel::Command(partition, command));
            }
            None => {}
        }
        self.wake();
    }

    /// Tells a partition that a queue exists.
    pub fn declare(&mut self, partition: PartitionId, queue: QueueId) {
        match self.directory.find(partition) {
            Some((shard, place)) if shard == self.shard => self.waits.declare(place, queue),
            Some((shard, _)) => self.push_parcel(shard, Parcel::Declare(partition, queue)),
            None => {}
        }
        self.wake();
    }

    /// Has a partition of this shard stepped in the step that is about to begin, even if no command
    /// waits for it.
    pub fn wake_partition(&mut self, partition: PartitionId) {
        if let Some((shard, place)) = self.directory.find(partition) {
            assert!(shard == self.shard, "a partition is woken on its own shard");
            self.waits.wake(place);
        }
    }

    /// Queues a parcel for another shard; it leaves at the end of the step.
    pub fn push_parcel(&mut self, shard: usize, parcel: Parcel<O>) {
        self.remote[shard].push(parcel);
        self.has_remote = true;
        self.wake();
    }

    /// Queues a frame of another member of a partition's group.
    pub fn receive(&mut self, partition: PartitionId, from: NodeId, frame: PeerFrame) {
        if let Some((shard, place)) = self.directory.find(partition) {
            assert!(shard == self.shard, "a frame comes to the shard of its partition");
            self.waits.receive(place, from, frame);
            self.wake();
        }
    }

    /// Queues what another node wants of the group at a partition of this shard.
    pub(crate) fn receive_forward(&mut self, partition: PartitionId, from: NodeLife, forward: Forward) {
        if let Some((_, place)) = self.directory.find(partition).filter(|(shard, _)| *shard == self.shard) {
            self.waits.receive_forward(place, from, forward);
            self.wake();
        }
    }

    /// What channels of this shard hear in the place of nodes that cannot be reached.
    pub(crate) fn take_given_up(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.given_up)
    }

    /// Hands out what is for other nodes: over which link, in order. What `send` leaves in the list
    /// is dropped. To be called before [`Inbox::post`]: what another shard is told must not overtake
    /// it.
    pub fn post_away(&mut self, send: impl FnMut(LinkUp, &mut Frames)) {
        self.roads.post(send);
    }

    /// Whether so much is on its way to other nodes that publishers have to wait.
    pub fn is_full(&self) -> bool {
        self.roads.is_full()
    }

    /// Whether the shard's task is on its way and will look here.
    pub fn is_woken(&self) -> bool {
        self.is_woken
    }

    /// Has the shard's task run once, after the tasks that are ready now.
    #[inline]
    pub fn wake(&mut self) {
        if !self.is_woken {
            self.is_woken = true;
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
    }

    /// The shard's task runs now; `waker` calls it again.
    pub fn start_step(&mut self, waker: &Waker) {
        self.is_woken = false;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    /// Hands out what is for other shards: to which, in order, and the bytes of the messages in it.
    /// What `send` leaves in the list is dropped.
    pub fn post(&mut self, mut send: impl FnMut(usize, &mut Vec<Parcel<O>>, u64)) {
        if !std::mem::take(&mut self.has_remote) {
            return;
        }
        for (shard, (parcels, bytes)) in self.remote.iter_mut().zip(&mut self.remote_bytes).enumerate() {
            if !parcels.is_empty() {
                send(shard, parcels, std::mem::take(bytes));
                parcels.clear();
            }
        }
    }

    /// Gives the memory of a burst back.
    pub fn trim(&mut self) {
        self.waits.trim();
        self.remote.iter_mut().for_each(|parcels| parcels.shrink_to(0));
        self.roads.trim();
    }

    /// What waits for the partitions of this shard.
    #[inline]
    pub fn waits(&mut self) -> &mut Waits {
        &mut self.waits
    }
}

/// What a message weighs while it waits for another shard.
fn bytes_of(message: &Message) -> u64 {
    let Message { exchange, routing_key, properties, body } = message;
    (exchange.len() + routing_key.len() + properties.len() + body.len() + size_of::<Command>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::Waiting;

    #[test]
    fn commands_stay_in_order_and_leave_the_shard_only_at_the_end_of_the_step() {
        let directory = Directory::new(2, &[(PartitionId(1), 1)]);
        let mut inbox = Inbox::<()>::new(0, directory, Leaders::alone(broker::NodeNumber(1)), 1);
        for queue in 1..4 {
            inbox.push(PartitionId::in_memory(broker::NodeNumber(0), 0), Command::Delete { queue: QueueId(queue) });
        }
        inbox.push(PartitionId(1), Command::Delete { queue: QueueId(4) });
        inbox.push(PartitionId(7), Command::Delete { queue: QueueId(5) });
        let (mut due, mut waiting) = (Vec::new(), Waiting::default());
        inbox.waits().take_due(&mut due);
        assert_eq!(due, [0]);
        inbox.waits().swap(0, &mut waiting);
        let queues: Vec<u64> =
            waiting.commands.iter().map(|c| if let Command::Delete { queue } = c { queue.0 } else { 0 }).collect();
        assert_eq!(queues, [1, 2, 3]);
        let mut sent = Vec::new();
        inbox.post(|shard, parcels, _| sent.push((shard, std::mem::take(parcels))));
        assert!(matches!(&sent[..], [(1, parcels)] if matches!(parcels[..], [Parcel::Command(PartitionId(1), _)])));
        inbox.post(|_, _, _| panic!("nothing is sent twice"));
    }
}
