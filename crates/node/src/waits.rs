//! What waits for the partitions of a shard until its next turn.
//!
//! Invariant: commands of one sender to one partition keep their order, and a queue is declared,
//! and has its rules, before commands for it arrive.

use broker::{NodeLife, QueueId};
use consensus::NodeId;
use partition::peer::forward::Forward;
use partition::{Command, PeerFrame};
use std::cell::RefCell;

/// What waits for one partition.
#[derive(Default)]
pub struct Waiting {
    /// Queues in memory that exist from now on.
    pub declared: Vec<QueueId>,
    /// Frames of other members of its group.
    pub frames: Vec<(NodeId, PeerFrame)>,
    /// What other nodes want of the group itself.
    pub forwards: Vec<(NodeLife, Forward)>,
    /// Commands.
    pub commands: Vec<Command>,
    /// How many of them, the first, tell the rules of queues.
    rules: usize,
    is_due: bool,
}

impl Waiting {
    /// Gives the memory of a burst back.
    pub fn trim(&mut self) {
        self.declared.shrink_to(0);
        self.frames.shrink_to(0);
        self.forwards.shrink_to(0);
        self.commands.shrink_to(0);
    }

    fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.frames.is_empty() && self.forwards.is_empty() && self.commands.is_empty()
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

    /// Queues a command. What tells a queue its rules goes before all others: what is published to
    /// a new queue may have been pushed before its rules came.
    #[inline]
    pub fn push(&mut self, place: usize, command: Command) {
        let waiting = &mut self.waiting[place];
        if matches!(command, Command::Configure { .. }) {
            waiting.commands.insert(waiting.rules, command);
            waiting.rules += 1;
        } else {
            waiting.commands.push(command);
        }
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

    /// Queues what another node wants of a group itself.
    pub fn receive_forward(&mut self, place: usize, from: NodeLife, forward: Forward) {
        self.waiting[place].forwards.push((from, forward));
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
        waiting.rules = 0;
        std::mem::swap(&mut waiting.commands, &mut empty.commands);
        std::mem::swap(&mut waiting.frames, &mut empty.frames);
        std::mem::swap(&mut waiting.forwards, &mut empty.forwards);
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

#[cfg(test)]
mod tests {
    use super::*;
    use broker::queue::Rules;
    use std::sync::Arc;

    #[test]
    fn the_rules_of_a_queue_go_before_what_was_pushed_for_it_and_keep_their_order() {
        let rules = |queue| Command::Configure { queue: QueueId(queue), rules: Arc::new(Rules::default()) };
        let mut waits = Waits::new(1);
        waits.push(0, Command::Reopen { queue: QueueId(1) });
        waits.push(0, rules(1));
        waits.push(0, Command::Delete { queue: QueueId(1) });
        waits.push(0, rules(2));
        let mut taken = Waiting::default();
        waits.swap(0, &mut taken);
        let names: Vec<(&str, u64)> = taken
            .commands
            .iter()
            .map(|command| match command {
                Command::Configure { queue, .. } => ("rules", queue.0),
                Command::Reopen { queue } => ("reopen", queue.0),
                Command::Delete { queue } => ("delete", queue.0),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, [("rules", 1), ("rules", 2), ("reopen", 1), ("delete", 1)]);
        taken.commands.clear();
        waits.push(0, Command::Reopen { queue: QueueId(3) });
        waits.push(0, rules(3));
        waits.swap(0, &mut taken);
        assert!(matches!(taken.commands[..], [Command::Configure { .. }, Command::Reopen { .. }]));
    }
}
