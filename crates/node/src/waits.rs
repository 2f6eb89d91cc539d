//! What waits for the partitions of a shard until its next turn.
//!
//! Invariant: commands of one sender to one partition keep their order, and a queue is declared,
//! and has its rules, before commands for it arrive.
//!
//! A large message to queues of many partitions is one body here, and as many as there are partitions once each has it in an
//! entry of its log. So it waits here while as much is on its way to the log as may be ([`Waits::take_within`]).

use broker::{NodeLife, QueueId};
use consensus::NodeId;
use partition::peer::forward::Forward;
use partition::{Command, PeerFrame};
use std::cell::RefCell;

/// From this length on a body is a large one.
const LARGE_BODY_BYTES_MIN: usize = 64 << 10;

/// The length of the body of a command that publishes a large message.
fn large_bytes(command: &Command) -> Option<u64> {
    match command {
        Command::Publish(publish) if publish.message.body.len() >= LARGE_BODY_BYTES_MIN => {
            Some(publish.message.body.len() as u64)
        }
        _ => None,
    }
}

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
    /// Some of them publish large messages, which have so many bytes.
    large_bytes: u64,
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

    /// How many commands there are, where each message of several that are published as one counts as one.
    pub fn messages(&self) -> usize {
        let of = |command: &Command| if let Command::Publish(publish) = command { publish.count() as usize } else { 1 };
        self.commands.iter().map(of).sum()
    }

    /// How many messages are acked or given back, however they are told.
    pub fn settled(&self) -> u64 {
        let of = |command: &Command| if let Command::Settle { count, .. } = command { *count } else { 0 };
        self.commands.iter().map(of).fold(0, u64::saturating_add)
    }

    pub(crate) fn is_empty(&self) -> bool {
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
            waiting.large_bytes += large_bytes(&command).unwrap_or(0);
            waiting.commands.push(command);
        }
        self.wake(place);
    }

    /// Bytes of the large messages that wait for the partition at a place.
    #[inline]
    pub fn large_bytes(&self, place: usize) -> u64 {
        self.waiting[place].large_bytes
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
        (waiting.rules, waiting.large_bytes) = (0, 0);
        std::mem::swap(&mut waiting.commands, &mut empty.commands);
        std::mem::swap(&mut waiting.frames, &mut empty.frames);
        std::mem::swap(&mut waiting.forwards, &mut empty.forwards);
        std::mem::swap(&mut waiting.declared, &mut empty.declared);
    }

    /// The same with commands only up to where there is no room left for large messages; one of them may be longer than the
    /// room. False if others wait on.
    pub fn take_within(&mut self, place: usize, room: u64, empty: &mut Waiting) -> bool {
        let waiting = &mut self.waiting[place];
        let mut left = room;
        let end = waiting.commands.iter().position(|command| {
            let Some(bytes) = large_bytes(command) else { return false };
            let is_full = left == 0;
            left = left.saturating_sub(bytes);
            is_full
        });
        let mut rest = end.map_or_else(Vec::new, |end| waiting.commands.split_off(end));
        self.swap(place, empty);
        let waiting = &mut self.waiting[place];
        waiting.large_bytes = rest.iter().filter_map(large_bytes).sum();
        waiting.commands.append(&mut rest);
        waiting.commands.is_empty()
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

/// A publish of a body of zeroes, for tests.
#[cfg(test)]
pub(crate) fn publish(publish_seq: u64, body: usize) -> Command {
    let empty = bytes::Bytes::new();
    let message = partition::Message {
        exchange: empty.clone(),
        routing_key: empty.clone(),
        properties: empty,
        body: vec![0; body].into(),
    };
    let channel = broker::ChannelKey(1);
    Command::Publish(partition::Publish {
        channel,
        publish_seq,
        term: 0,
        targets: Default::default(),
        delay_ms: 0,
        message,
        more: None,
    })
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

    #[test]
    fn large_messages_wait_for_room_in_their_order_and_what_is_behind_them_too() {
        let mut waits = Waits::new(1);
        let large = LARGE_BODY_BYTES_MIN;
        for (at, body) in [10, large, large - 1, 3 * large, large, 20].into_iter().enumerate() {
            waits.push(0, publish(at as u64, body));
        }
        assert_eq!(waits.large_bytes(0), 5 * large as u64);
        let take = |room: usize, waits: &mut Waits| {
            let mut taken = Waiting::default();
            let is_all = waits.take_within(0, room as u64, &mut taken);
            (taken.commands.iter().map(number).collect::<Vec<u64>>(), is_all)
        };
        assert_eq!(take(0, &mut waits), (vec![0], false));
        // Longer than the room: one of them goes.
        assert_eq!(take(1, &mut waits), (vec![1, 2], false));
        waits.push(0, Command::Configure { queue: QueueId(1), rules: Arc::new(Rules::default()) });
        assert_eq!(take(large + 1, &mut waits), (vec![99, 3], false));
        assert_eq!(waits.large_bytes(0), large as u64);
        assert_eq!(take(large, &mut waits), (vec![4, 5], true));
        assert_eq!((waits.large_bytes(0), take(0, &mut waits)), (0, (vec![], true)));
    }

    fn number(command: &Command) -> u64 {
        match command {
            Command::Publish(publish) => publish.publish_seq,
            _ => 99,
        }
    }
}
