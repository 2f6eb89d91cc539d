//! Commands on their way to partitions, gathered while the sockets of a shard are read.
//!
//! Invariant: commands of one shard to one partition keep their order, and a queue is declared
//! before commands for it arrive. Nothing here is locked: what stays on the shard is a push to a
//! vector, what leaves it waits for the end of the step and goes over as one batch.

use super::mailbox::{Mailbox, Parcel};
use broker::{PartitionId, QueueId};
use node::Waits;
use partition::{Command, Message};
use std::sync::Arc;
use std::task::Waker;

/// Partitions with this bit are the transient queues of one shard, whose index is in the other
/// bits.
const TRANSIENT_BIT: u32 = 1 << 31;

/// Shards of one node at most: their index has this many values in a channel key.
pub(crate) const SHARDS_MAX: usize = 64;

/// The partition of the transient queues of a shard.
pub fn transient_partition(shard: usize) -> PartitionId {
    assert!(shard < SHARDS_MAX, "a node has at most SHARDS_MAX shards");
    PartitionId(TRANSIENT_BIT | shard as u32)
}

/// Where each partition of this node runs: its shard, and its place there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    /// By partition number, which are small and dense; `None` runs elsewhere.
    durable: Arc<[Option<(u8, u16)>]>,
    shards: usize,
}

impl Directory {
    /// The directory of a node with `shards` shards. `placement` gives the shard of each durable
    /// partition; those of one shard take their places in its order, after the shard's transient
    /// queues at place 0.
    pub(crate) fn new(shards: usize, placement: &[(PartitionId, usize)]) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "a node has 1 to SHARDS_MAX shards");
        let len = placement.iter().map(|(id, _)| id.0 as usize + 1).max().unwrap_or(0);
        let mut durable = vec![None; len];
        let mut places = vec![0u16; shards];
        for (id, shard) in placement {
            assert!(id.0 & TRANSIENT_BIT == 0 && *shard < shards, "a durable partition runs on a shard that exists");
            places[*shard] += 1;
            let before = durable[id.0 as usize].replace((*shard as u8, places[*shard]));
            assert!(before.is_none(), "a partition runs on one shard");
        }
        Directory { durable: durable.into(), shards }
    }

    /// The shard of a partition and its place there; `None` if it does not run on this node.
    #[inline]
    pub(crate) fn find(&self, partition: PartitionId) -> Option<(usize, usize)> {
        if partition.0 & TRANSIENT_BIT != 0 {
            let shard = (partition.0 & !TRANSIENT_BIT) as usize;
            return (shard < self.shards).then_some((shard, 0));
        }
        let (shard, place) = (*self.durable.get(partition.0 as usize)?)?;
        Some((shard.into(), place.into()))
    }

    /// Every durable partition of this node, lowest first.
    pub(crate) fn durable(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.durable.iter().enumerate().filter(|(_, at)| at.is_some()).map(|(id, _)| PartitionId(id as u32))
    }
}

/// What waits for partitions, here and on other shards.
pub(crate) struct Inbox {
    shard: usize,
    directory: Directory,
    waits: Waits,
    remote: Vec<Vec<Parcel>>,
    /// Bytes of the messages in `remote`.
    remote_bytes: Vec<u64>,
    has_remote: bool,
    waker: Option<Waker>,
    is_woken: bool,
}

impl Inbox {
    /// Nothing waits; `members` partitions run on this shard.
    pub(crate) fn new(shard: usize, directory: Directory, members: usize) -> Self {
        let remote = (0..directory.shards).map(|_| Vec::new()).collect();
        let remote_bytes = vec![0; directory.shards];
        let (waits, has_remote, waker, is_woken) = (Waits::new(members), false, None, false);
        Inbox { shard, directory, waits, remote, remote_bytes, has_remote, waker, is_woken }
    }

    /// Queues a command. One for a partition that does not run here is dropped: its queue cannot be
    /// declared here.
    #[inline]
    pub(crate) fn push(&mut self, partition: PartitionId, command: Command) {
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
    pub(crate) fn declare(&mut self, partition: PartitionId, queue: QueueId) {
        match self.directory.find(partition) {
            Some((shard, place)) if shard == self.shard => self.waits.declare(place, queue),
            Some((shard, _)) => self.push_parcel(shard, Parcel::Declare(partition, queue)),
            None => {}
        }
        self.wake();
    }

    /// Has a partition of this shard stepped in the step that is about to begin, even if no command
    /// waits for it.
    pub(crate) fn wake_partition(&mut self, partition: PartitionId) {
        if let Some((shard, place)) = self.directory.find(partition) {
            assert!(shard == self.shard, "a partition is woken on its own shard");
            self.waits.wake(place);
        }
    }

    /// Queues a parcel for another shard; it leaves at the end of the step.
    pub(crate) fn push_parcel(&mut self, shard: usize, parcel: Parcel) {
        self.remote[shard].push(parcel);
        self.has_remote = true;
        self.wake();
    }

    /// Whether the shard's task is on its way and will look here.
    pub(crate) fn is_woken(&self) -> bool {
        self.is_woken
    }

    /// Has the shard's task run once, after the tasks that are ready now.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if !self.is_woken {
            self.is_woken = true;
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
    }

    /// The shard's task runs now; `waker` calls it again.
    pub(crate) fn start_step(&mut self, waker: &Waker) {
        self.is_woken = false;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    /// Sends what is for other shards.
    pub(crate) fn post(&mut self, mailboxes: &[Mailbox]) {
        if !std::mem::take(&mut self.has_remote) {
            return;
        }
        for ((mailbox, parcels), bytes) in mailboxes.iter().zip(&mut self.remote).zip(&mut self.remote_bytes) {
            mailbox.send_all(parcels, std::mem::take(bytes));
        }
    }

    /// Gives the memory of a burst back.
    pub(crate) fn trim(&mut self) {
        self.waits.trim();
        self.remote.iter_mut().for_each(|parcels| parcels.shrink_to(0));
    }

    /// What waits for the partitions of this shard.
    #[inline]
    pub(crate) fn waits(&mut self) -> &mut Waits {
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
    fn every_partition_is_found_where_it_was_placed() {
        let placement = [(PartitionId(1), 0), (PartitionId(2), 1), (PartitionId(3), 0)];
        let directory = Directory::new(2, &placement);
        assert_eq!(directory.find(PartitionId(1)), Some((0, 1)));
        assert_eq!(directory.find(PartitionId(2)), Some((1, 1)));
        assert_eq!(directory.find(PartitionId(3)), Some((0, 2)));
        assert_eq!(directory.find(PartitionId(0)), None);
        assert_eq!(directory.find(PartitionId(9)), None);
        assert_eq!(directory.find(transient_partition(1)), Some((1, 0)));
        assert_eq!(directory.find(transient_partition(2)), None);
        assert_eq!(directory.durable().collect::<Vec<_>>(), [PartitionId(1), PartitionId(2), PartitionId(3)]);
    }

    #[test]
    fn commands_stay_in_order_and_leave_the_shard_only_at_the_end_of_the_step() {
        let directory = Directory::new(2, &[(PartitionId(1), 1)]);
        let mut inbox = Inbox::new(0, directory, 1);
        for queue in 1..4 {
            inbox.push(transient_partition(0), Command::Delete { queue: QueueId(queue) });
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
        let (mailboxes, mut taken) = (vec![Mailbox::default(); 1], Vec::new());
        let other = Mailbox::default();
        inbox.post(&[mailboxes[0].clone(), other.clone()]);
        other.take(&mut taken, Waker::noop());
        assert!(matches!(taken[..], [Parcel::Command(PartitionId(1), _)]));
    }
}
