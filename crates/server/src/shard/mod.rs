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

mod dead_letter;
pub(crate) mod deletion;
mod emit;
mod inbox;
mod mailbox;
pub(crate) mod outlets;
pub(crate) mod thread;
mod wheel;

pub(crate) use emit::EVENT_EXCHANGE;
pub use inbox::transient_partition;
pub(crate) use inbox::{Directory, Inbox, SHARDS_MAX};
pub(crate) use mailbox::{Arrival, Look, Mailbox, Parcel};
pub(crate) use wheel::{Seat, Wheel};

use amqp::Millis;
use broker::{PartitionId, QueueId};
use inbox::Waiting;
use partition::{Command, Effect, Outlets, QueueFigures, TransientQueues};
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

    /// Called after the turn's effects reached their sockets, for those that took part: time to wait for the disk, if
    /// this is the thread to do it.
    fn commit(&mut self) {}

    /// When it wants to be stepped, if nothing comes before.
    fn poll_timeout(&self) -> Option<Millis> {
        None
    }

    /// Bytes that were proposed and are not yet written: the gauge that holds publishers back.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Appends what is in each queue that something is known of; one that is missing is empty and unused.
    fn survey(&self, _figures: &mut Vec<QueueFigures>) {}

    /// Gives the memory of a burst back; called when nothing is going on.
    fn trim(&mut self) {}

    /// Memory that messages pin here, which counts against the node's budget of messages in memory.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

impl Partition for TransientQueues {
    fn declare(&mut self, queue: QueueId) {
        TransientQueues::declare(self, queue);
    }

    fn step(&mut self, now: Millis, commands: &mut Vec<Command>, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        TransientQueues::step(self, now, commands, effects, outlets);
    }

    fn poll_timeout(&self) -> Option<Millis> {
        self.due_ms()
    }

    fn survey(&self, figures: &mut Vec<QueueFigures>) {
        TransientQueues::survey(self, figures);
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

/// A partition and what it said of itself after its last step.
struct Member {
    id: PartitionId,
    partition: Box<dyn Partition>,
    timeout: Millis,
    unwritten_bytes: u64,
    memory_bytes: u64,
}

/// The partitions of one thread.
///
/// Invariant: the sums and the earliest time are those of the members' last words, so that a turn costs what it steps and
/// not what there is: a node may have hundreds of partitions and one busy one.
pub(crate) struct Shard {
    members: Vec<Member>,
    unwritten_bytes: u64,
    memory_bytes: u64,
    earliest: Millis,
    effects: Vec<Effect>,
    due: Vec<usize>,
    waiting: Waiting,
}

const NEVER: Millis = Millis::MAX;

/// The place of a shard's transient queues among its partitions.
const TRANSIENT_PLACE: usize = 0;

impl Shard {
    /// The shard with its transient queues and these durable partitions, in the order of the directory.
    pub(crate) fn new(index: usize, durable: Vec<(PartitionId, Box<dyn Partition>)>) -> Self {
        let transient: Box<dyn Partition> = Box::new(TransientQueues::new());
        let all = std::iter::once((transient_partition(index), transient)).chain(durable);
        let member = |(id, partition)| Member { id, partition, timeout: NEVER, unwritten_bytes: 0, memory_bytes: 0 };
        let mut shard = Shard {
            members: all.map(member).collect(),
            unwritten_bytes: 0,
            memory_bytes: 0,
            earliest: NEVER,
            effects: Vec::new(),
            due: Vec::new(),
            waiting: Waiting::default(),
        };
        (0..shard.members.len()).for_each(|place| shard.note(place));
        shard
    }

    /// How many partitions there are.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// One turn: every partition that something waits for is stepped once, and its effects are handed on before the next
    /// one is asked, so that no two of them count the same room at a connection twice.
    pub(crate) fn step(&mut self, now: Millis, inbox: &RefCell<Inbox>, edge: &mut dyn Edge) {
        if self.earliest <= now {
            let due = self.members.iter().filter(|member| member.timeout <= now);
            due.for_each(|member| inbox.borrow_mut().wake_partition(member.id));
        }
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        inbox.borrow_mut().take_due(&mut due);
        for &place in &due {
            let Member { id, partition, .. } = &mut self.members[place];
            inbox.borrow_mut().swap(place, &mut self.waiting);
            self.waiting.declared.drain(..).for_each(|queue| partition.declare(queue));
            partition.step(now, &mut self.waiting.commands, &mut self.effects, edge);
            assert!(self.waiting.commands.is_empty(), "a step carries out all of its commands");
            edge.take_effects(*id, &mut self.effects);
            assert!(self.effects.is_empty(), "the edge takes all effects");
        }
        for &place in &due {
            self.members[place].partition.end_turn();
            self.note(place);
        }
        self.due = due;
    }

    /// The step's effects are on their way; what it left to be written is written, or is somebody else's to write.
    pub(crate) fn commit(&mut self) {
        for place in self.due.drain(..) {
            self.members[place].partition.commit();
        }
    }

    /// Takes down what a partition says of itself now.
    fn note(&mut self, place: usize) {
        let member = &mut self.members[place];
        let (unwritten, memory) = (member.partition.unwritten_bytes(), member.partition.memory_bytes());
        self.unwritten_bytes = self.unwritten_bytes - member.unwritten_bytes + unwritten;
        self.memory_bytes = self.memory_bytes - member.memory_bytes + memory;
        (member.unwritten_bytes, member.memory_bytes) = (unwritten, memory);
        let before = std::mem::replace(&mut member.timeout, member.partition.poll_timeout().unwrap_or(NEVER));
        if member.timeout <= self.earliest {
            self.earliest = member.timeout;
        } else if before == self.earliest {
            self.earliest = self.members.iter().map(|member| member.timeout).min().unwrap_or(NEVER);
        }
    }

    /// Appends what is in the queues of all partitions.
    pub(crate) fn survey(&self, figures: &mut Vec<QueueFigures>) {
        self.members.iter().for_each(|member| member.partition.survey(figures));
    }

    /// Gives the memory of a burst back; for when nothing is going on.
    pub(crate) fn trim(&mut self) {
        self.waiting.trim();
        self.effects = Vec::new();
        self.members.iter_mut().for_each(|member| member.partition.trim());
    }

    /// When a partition wants its next step.
    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        (self.earliest != NEVER).then_some(self.earliest)
    }

    /// Proposed and not yet written, all partitions together.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes
    }

    /// Memory that messages pin, all partitions together. That of transient queues falls between steps too, when a
    /// socket has taken the last slice of a batch.
    pub(crate) fn memory_bytes(&mut self) -> u64 {
        self.note(TRANSIENT_PLACE);
        self.memory_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::ConsumerKey;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A partition that says what it is told to say, and counts its steps.
    #[derive(Clone, Default)]
    struct Told {
        timeout: Rc<Cell<Option<Millis>>>,
        bytes: Rc<Cell<u64>>,
        steps: Rc<Cell<u32>>,
        turns: Rc<Cell<u32>>,
    }

    impl Partition for Told {
        fn declare(&mut self, _: QueueId) {}

        fn step(&mut self, _: Millis, commands: &mut Vec<Command>, _: &mut Vec<Effect>, _: &mut dyn Outlets) {
            commands.clear();
            self.steps.set(self.steps.get() + 1);
        }

        fn end_turn(&mut self) {
            assert!(self.steps.get() > self.turns.get(), "a turn ends for those that were stepped");
            self.turns.set(self.turns.get() + 1);
        }

        fn poll_timeout(&self) -> Option<Millis> {
            self.timeout.get()
        }

        fn unwritten_bytes(&self) -> u64 {
            self.bytes.get()
        }

        fn memory_bytes(&self) -> u64 {
            self.bytes.get()
        }
    }

    struct Nobody;
    impl Outlets for Nobody {
        fn room(&mut self, _: ConsumerKey) -> usize {
            0
        }
    }
    impl Edge for Nobody {
        fn take_effects(&mut self, _: PartitionId, effects: &mut Vec<Effect>) {
            effects.clear();
        }
    }

    #[test]
    fn partitions_are_stepped_for_commands_and_at_their_time_and_their_sums_follow() {
        let told: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        told[1].timeout.set(Some(50));
        let placement: Vec<_> = (1..4).map(|id| (PartitionId(id), 0)).collect();
        let durable = (1..).map(PartitionId).zip(told.clone()).map(|(id, t)| (id, Box::new(t) as Box<dyn Partition>));
        let mut shard = Shard::new(0, durable.collect());
        let inbox = RefCell::new(Inbox::new(0, Directory::new(1, &placement), shard.len()));
        let steps = || told.iter().map(|t| t.steps.get()).collect::<Vec<_>>();
        assert_eq!(shard.poll_timeout(), Some(50));
        told[0].bytes.set(100);
        inbox.borrow_mut().push(PartitionId(1), Command::Reopen { queue: QueueId(1) });
        shard.step(49, &inbox, &mut Nobody);
        assert_eq!((steps(), shard.unwritten_bytes(), shard.memory_bytes()), (vec![1, 0, 0], 100, 100));
        told[1].timeout.set(Some(70));
        told[1].bytes.set(7);
        shard.step(50, &inbox, &mut Nobody);
        assert_eq!((steps(), shard.unwritten_bytes(), shard.poll_timeout()), (vec![1, 1, 0], 107, Some(70)));
        told[0].bytes.set(0);
        told[0].timeout.set(Some(60));
        inbox.borrow_mut().push(PartitionId(1), Command::Reopen { queue: QueueId(1) });
        shard.step(51, &inbox, &mut Nobody);
        assert_eq!((shard.unwritten_bytes(), shard.poll_timeout()), (7, Some(60)));
        told[0].timeout.set(None);
        told[1].timeout.set(None);
        shard.step(80, &inbox, &mut Nobody);
        assert_eq!((steps(), shard.poll_timeout()), (vec![3, 2, 0], None));
        assert!(told.iter().all(|t| t.turns.get() == t.steps.get()));
    }
}
