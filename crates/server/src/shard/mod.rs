//! A shard: one thread that owns a fixed set of partitions and a share of the client connections, with no lock inside.
//!
//! One turn of its loop:
//!
//! ```text
//!   epoll ──▶ every ready socket: read once, parse, route, push commands     (connection tasks, in the order of epoll)
//!         ──▶ the shard's task, once: each partition with commands steps, its effects are encoded at their connections
//!         ──▶ every connection with something to say: one vectored write
//! ```
//!
//! The task is woken by the first command and runs after the tasks that were ready before it, so a batch is whatever
//! the sockets held: one message when it is quiet, thousands under load. Nothing lingers for more.
//!
//! # Cost of one message, published and delivered on one shard, batches of B messages
//!
//! | what | a message | a batch |
//! |---|---|---|
//! | system calls | 0 | epoll_wait 1; read 1 and write 1 a connection (the publisher's confirms, the consumer's messages) |
//! | wake-ups of threads | 0 (transient); the WAL thread, once a batch (durable) | 1, from epoll |
//! | copies of the body | 2: read buffer to batch, batch to output; from 8 KiB on the second is a slice | - |
//! | allocations | 0 | 3 in the transient store; vectors of commands, effects and output are kept |
//! | locks | 0 | 0 here; 1 a target shard for what leaves it |
//! | hashes | queue 1 in, 1 out; consumer 4; channel 1 or none | - |
//! | atomics | 4 references to the read buffer, 2 to the batch | topology's version 1 a publish, relaxed |
//!
//! Batching is what keeps the fixed costs (epoll, read, write, task switches: about 5 us together) off the message.

mod inbox;
mod mailbox;
pub(crate) mod outlets;
pub(crate) mod thread;
mod wheel;

pub use inbox::transient_partition;
pub(crate) use inbox::{Directory, Inbox, SHARDS_MAX};
pub(crate) use mailbox::{Mailbox, Parcel};
pub(crate) use wheel::{Seat, Wheel};

use amqp::Millis;
use broker::{PartitionId, QueueId};
use inbox::Waiting;
use partition::{Command, Effect, Outlets, TransientQueues};
use std::cell::RefCell;

/// A partition, as its shard sees it. It lives on one thread and is never called from another.
pub trait Partition {
    /// The topology says that this queue is here now. Comes before the first command for it, possibly twice.
    fn declare(&mut self, queue: QueueId);

    /// Carries out all of `commands` in order and appends what follows to `effects`. Called without commands when its
    /// time has come or something woke it.
    ///
    /// `outlets.room(consumer)` hands out bytes for this step only, in portions: ask again when a portion is used up, and
    /// pass the consumer over (stalled) when it gives 0. What is left over at the end of the step is taken back.
    fn step(&mut self, now: Millis, commands: &mut Vec<Command>, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets);

    /// The shard has stepped all that had something to do: what they want written leaves together.
    fn end_turn(&mut self) {}

    /// When it wants to be stepped, if nothing comes before.
    fn poll_timeout(&self) -> Option<Millis> {
        None
    }

    /// Bytes that were proposed and are not yet written: the gauge that holds publishers back.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Memory that messages pin here, which counts against the node's budget of messages in memory.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

impl Partition for TransientQueues {
    fn declare(&mut self, queue: QueueId) {
        TransientQueues::declare(self, queue);
    }

    fn step(
        &mut self,
        _now: Millis,
        commands: &mut Vec<Command>,
        effects: &mut Vec<Effect>,
        outlets: &mut dyn Outlets,
    ) {
        TransientQueues::step(self, commands, effects, outlets);
    }

    fn memory_bytes(&self) -> u64 {
        self.bytes()
    }
}

/// Where a shard's effects go: to the connections, or in a test to a list.
pub(crate) trait Edge: Outlets {
    /// Takes all `effects` of one step of `partition`. Commands that follow from them wait for the next step.
    fn take_effects(&mut self, partition: PartitionId, effects: &mut Vec<Effect>);
}

/// The partitions of one thread.
pub(crate) struct Shard {
    partitions: Vec<(PartitionId, Box<dyn Partition>)>,
    effects: Vec<Effect>,
    due: Vec<usize>,
    waiting: Waiting,
}

impl Shard {
    /// The shard with its transient queues and these durable partitions, in the order of the directory.
    pub(crate) fn new(index: usize, durable: Vec<(PartitionId, Box<dyn Partition>)>) -> Self {
        let transient: Box<dyn Partition> = Box::new(TransientQueues::new());
        let mut partitions = vec![(transient_partition(index), transient)];
        partitions.extend(durable);
        Shard { partitions, effects: Vec::new(), due: Vec::new(), waiting: Waiting::default() }
    }

    /// How many partitions there are.
    pub(crate) fn len(&self) -> usize {
        self.partitions.len()
    }

    /// One turn: every partition that something waits for is stepped once, and its effects are handed on before the next
    /// one is asked, so that no two of them count the same room at a connection twice.
    pub(crate) fn step(&mut self, now: Millis, inbox: &RefCell<Inbox>, edge: &mut dyn Edge) {
        self.collect_timeouts(now, inbox);
        let mut due = std::mem::take(&mut self.due);
        inbox.borrow_mut().take_due(&mut due);
        for &place in &due {
            let (id, partition) = &mut self.partitions[place];
            inbox.borrow_mut().swap(place, &mut self.waiting);
            self.waiting.declared.drain(..).for_each(|queue| partition.declare(queue));
            partition.step(now, &mut self.waiting.commands, &mut self.effects, edge);
            assert!(self.waiting.commands.is_empty(), "a step carries out all of its commands");
            edge.take_effects(*id, &mut self.effects);
            assert!(self.effects.is_empty(), "the edge takes all effects");
        }
        for place in due.drain(..) {
            self.partitions[place].1.end_turn();
        }
        self.due = due;
    }

    /// Gives the memory of a burst back; for when nothing is going on.
    pub(crate) fn trim(&mut self) {
        self.waiting.trim();
        self.effects = Vec::new();
    }

    fn collect_timeouts(&mut self, now: Millis, inbox: &RefCell<Inbox>) {
        for (id, partition) in &self.partitions {
            if partition.poll_timeout().is_some_and(|at| at <= now) {
                inbox.borrow_mut().wake_partition(*id);
            }
        }
    }

    /// When a partition wants its next step.
    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        self.partitions.iter().filter_map(|(_, p)| p.poll_timeout()).min()
    }

    /// Proposed and not yet written, all partitions together.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.partitions.iter().map(|(_, p)| p.unwritten_bytes()).sum()
    }

    /// Memory that messages pin, all partitions together.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.partitions.iter().map(|(_, p)| p.memory_bytes()).sum()
    }
}
