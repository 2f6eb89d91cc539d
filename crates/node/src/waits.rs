//! What waits for the partitions of a shard until its next turn.
//!
//! Invariant: commands of one sender to one partition keep their order, and a queue is declared
//! before commands for it arrive.

use broker::QueueId;
use consensus::NodeId;
use partition::{Command, PeerFrame};
use std::cell::RefCell;

/// What waits for one partition.
#[derive(Default)]
pub struct Waiting {
    /// Queues in memory that exist from now on.
    pub declared: Vec<QueueId>,
    /// Frames of other members of its group.
    pub frames: Vec<(NodeId, PeerFrame)>,
    /// Commands.
    pub commands: Vec<Command>,
    is_due: bool,
}

impl Waiting {
    /// Gives the memory of a burst back.
    pub fn trim(&mut self) {
        self.declared.shrink_to(0);
        self.frames.shrink_to(0);
        self.commands.shrink_to(0);
    }

    fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.frames.is_empty() && self.commands.is_empty()
    }
}

/// The same for all partitions of a shard, by their places.
#[derive(Default)]
pub struct Waits {
    waiting: Vec<Waiting>,
    /// Places of partitions that have something waiting.
    due: Vec<usize>,
}

impl Waits {
    /// Nothing waits for any of `members` partitions.
    pub fn new(members: usize) -> Waits {
        Waits { waiting: (0..members).map(|_| Waiting::default()).collect(), due: Vec::new() }
    }

    /// Queues a command.
    #[inline]
    pub fn push(&mut self, place: usize, command: Command) {
        self.waiting[place].commands.push(command);
        self.wake(place);
    }

    /// Tells a partition that a queue exists.
    pub fn declare(&mut self, place: usize, queue: QueueId) {
        self.waiting[place].declared.push(queue);
        self.wake(place);
    }

    /// Queues a frame of another member.
    pub fn receive(&mut self, place: usize, from: NodeId, frame: PeerFrame) {
        self.waiting[place].frames.push((from, frame));
        self.wake(place);
    }

    /// Has a partition stepped in the turn that is about to begin, even if nothing waits for it.
    #[inline]
    pub fn wake(&mut self, place: usize) {
        let waiting = &mut self.waiting[place];
        if !waiting.is_due {
            waiting.is_due = true;
            self.due.push(place);
        }
    }

    /// Takes the places of all partitions that are to be stepped into `due`, which is empty.
    pub fn take_due(&mut self, due: &mut Vec<usize>) {
        assert!(due.is_empty(), "one turn at a time");
        std::mem::swap(&mut self.due, due);
        due.iter().for_each(|place| self.waiting[*place].is_due = false);
    }

    /// Swaps what waits for the partition at `place` with `empty`, whose memory is used for what
    /// comes next.
    pub fn swap(&mut self, place: usize, empty: &mut Waiting) {
        assert!(empty.is_empty(), "a step takes all that it was given");
        let waiting = &mut self.waiting[place];
        std::mem::swap(&mut waiting.commands, &mut empty.commands);
        std::mem::swap(&mut waiting.frames, &mut empty.frames);
        std::mem::swap(&mut waiting.declared, &mut empty.declared);
    }

    /// Gives the memory of a burst back.
    pub fn trim(&mut self) {
        self.waiting.iter_mut().for_each(Waiting::trim);
    }
}

/// Where a turn finds what waits, though more may be added while it goes on.
pub trait Intake {
    /// Calls `f` with what waits.
    fn with<R>(&self, f: impl FnOnce(&mut Waits) -> R) -> R;
}

impl Intake for RefCell<Waits> {
    fn with<R>(&self, f: impl FnOnce(&mut Waits) -> R) -> R {
        f(&mut self.borrow_mut())
    }
}
