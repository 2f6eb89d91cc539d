//! Partitions whose leader changed while something of this shard was on its way to the one before, in
//! which something is to be sent again, or of which nobody is known to lead them.
//!
//! What was sent to one leader must not come into the log behind what is sent to the next, and is
//! confirmed before it. So a shard waits before it turns to another leader: until the one before has
//! handled all that came to it, and has answered every publish, or its link is gone. Nothing waits
//! where nothing was on its way. What finds no leader that can be reached waits for one, for
//! [`LEADERLESS_US`] at most: it would be refused by whoever is asked, though an election takes tenths
//! of a second. So does what is published to queues in the memory of a node that cannot be reached: the link comes back,
//! or they are declared gone with their node, and then there is nobody who could miss it.

use broker::queue::SeqRanges;
use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::{Command, Publish};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turning {
    /// Whom this shard sent something last, by partition.
    last: HashMap<PartitionId, NodeNumber, FixedState>,
    waiting: HashMap<PartitionId, Waiting, FixedState>,
    held_bytes: u64,
}

/// After so long without a leader that can be reached, what waits is given up.
pub(crate) const LEADERLESS_US: u64 = 10_000_000;

#[derive(Debug)]
struct Waiting {
    on: On,
    held: Vec<Command>,
}

/// What is waited for.
#[derive(Debug)]
pub(crate) enum On {
    /// The leader before: what it has to have handled, which is nothing where its link is gone, and its
    /// answer to every publish.
    Before { from: NodeNumber, mark: Option<u64> },
    /// A leader that can be reached, since this time.
    Leader { since_us: u64 },
}

/// What becomes of what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It waits on.
    Waits,
    /// It goes on its way.
    Goes,
    /// Nobody is asked any more.
    GivenUp,
}

/// What a command weighs while it waits.
fn bytes_of(command: &Command) -> u64 {
    match command {
        Command::Publish(publish) => publish.body_bytes() as u64 + publish.count() * size_of::<Command>() as u64,
        _ => size_of::<Command>() as u64,
    }
}

impl Turning {
    /// Whom this shard sent something for the partition last, if that is not `leader`.
    #[inline]
    pub(crate) fn before(&self, partition: PartitionId, leader: Option<NodeNumber>) -> Option<NodeNumber> {
        self.last.get(&partition).copied().filter(|last| Some(*last) != leader)
    }

    /// Something goes to this node now.
    #[inline]
    pub(crate) fn sent(&mut self, partition: PartitionId, to: NodeNumber) {
        self.last.insert(partition, to);
    }

    /// Has what comes for a partition wait until `from` has handled so much.
    pub(crate) fn begin(&mut self, partition: PartitionId, from: NodeNumber, mark: u64) {
        self.waiting.insert(partition, Waiting { on: On::Before { from, mark: Some(mark) }, held: Vec::new() });
    }

    /// Has what comes for a partition wait until `from` has answered every publish.
    pub(crate) fn begin_answers(&mut self, partition: PartitionId, from: NodeNumber) {
        let on = On::Before { from, mark: None };
        self.waiting.entry(partition).or_insert(Waiting { on, held: Vec::new() });
    }

    /// Has what comes for a partition wait until somebody leads it who can be reached.
    pub(crate) fn begin_leaderless(&mut self, partition: PartitionId, now_us: u64) {
        self.waiting.insert(partition, Waiting { on: On::Leader { since_us: now_us }, held: Vec::new() });
    }

    /// Whether something of a partition waits.
    pub(crate) fn is_waiting(&self, partition: PartitionId) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(&partition)
    }

    /// Whether something waits for a leader, so that time alone may bring it on.
    pub(crate) fn is_leaderless(&self) -> bool {
        self.waiting.values().any(|waiting| matches!(waiting.on, On::Leader { .. }))
    }

    /// Holds a command of a partition that waits; gives it back if it does not.
    #[inline]
    pub(crate) fn hold(&mut self, partition: PartitionId, command: Command) -> Option<Command> {
        if self.waiting.is_empty() {
            return Some(command);
        }
        let Some(waiting) = self.waiting.get_mut(&partition) else { return Some(command) };
        self.held_bytes += bytes_of(&command);
        waiting.held.push(command);
        None
    }

    /// A consumer has settled messages for good, of which the next leader hears before all that waits: it
    /// must not be told behind that that the consumer holds them. Who has a message twice has it once then.
    pub(crate) fn settled(&mut self, partition: PartitionId, of: (QueueId, ConsumerKey), first: u64, count: u64) {
        let Some(waiting) = self.waiting.get_mut(&partition) else { return };
        let mut settled = SeqRanges::new();
        settled.insert_range(first, count);
        let mut at = 0;
        while at < waiting.held.len() {
            let (queue, consumer, left) = match waiting.held[at] {
                // One of nothing says who was the active one, which no ack changes.
                Command::Hold { queue, consumer, first, count } if (queue, consumer) == of && count > 0 => {
                    (queue, consumer, settled.take_from(first, count))
                }
                _ => {
                    at += 1;
                    continue;
                }
            };
            let left: Vec<Command> =
                left.into_iter().map(|(first, count)| Command::Hold { queue, consumer, first, count }).collect();
            self.held_bytes = self.held_bytes + left.iter().map(bytes_of).sum::<u64>() - bytes_of(&waiting.held[at]);
            let parts = left.len();
            waiting.held.splice(at..=at, left);
            at += parts;
        }
    }

    /// A channel has ended, and who leads may have forgotten it: what waits to be sent again would be taken for
    /// new, and with it goes what the channel published behind it. What was never sent goes on its way where
    /// nothing before it may be lost; `is_owed`: something that was sent had no answer.
    pub(crate) fn detach(&mut self, partition: PartitionId, channel: ChannelKey, is_owed: bool) {
        let Some(waiting) = self.waiting.get_mut(&partition) else { return };
        let (held_bytes, mut is_lost) = (&mut self.held_bytes, is_owed);
        waiting.held.retain(|command| {
            let Command::Publish(publish) = command else { return true };
            if publish.channel != channel || publish.publish_seq == 0 {
                return true;
            }
            is_lost |= publish.term != 0;
            *held_bytes -= if is_lost { bytes_of(command) } else { 0 };
            !is_lost
        });
    }

    /// The link to a node is gone, and what was on its way there.
    pub(crate) fn lost(&mut self, node: NodeNumber) {
        self.last.retain(|_, last| *last != node);
        for waiting in self.waiting.values_mut() {
            if let On::Before { from, mark } = &mut waiting.on
                && *from == node
            {
                *mark = None;
            }
        }
    }

    /// Takes the publishes that wait for the node whose memory their queues are in, where those are gone, as `is_gone` says of one.
    pub(crate) fn take_gone(&mut self, mut is_gone: impl FnMut(&Publish) -> bool) -> Vec<(PartitionId, Publish)> {
        let mut gone = Vec::new();
        let held_bytes = &mut self.held_bytes;
        self.waiting.retain(|partition, waiting| {
            if !partition.is_in_memory() || !matches!(waiting.on, On::Leader { .. }) {
                return true;
            }
            let is_unwanted = |command: &mut Command| matches!(command, Command::Publish(publish) if is_gone(publish));
            gone.extend(waiting.held.extract_if(.., is_unwanted).filter_map(|command| {
                *held_bytes -= bytes_of(&command);
                match command {
                    Command::Publish(publish) => Some((*partition, publish)),
                    _ => None,
                }
            }));
            !waiting.held.is_empty()
        });
        // In the order of their channels' numbers, whatever order the partitions come in.
        gone.sort_by_key(|(partition, _)| *partition);
        gone
    }

    /// Bytes that wait.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives out what need not wait any more, as `fate` says of a partition and what it waits for;
    /// true with what is given up.
    pub(crate) fn take_done(
        &mut self,
        mut fate: impl FnMut(PartitionId, &On) -> Fate,
    ) -> Vec<(PartitionId, Vec<Command>, bool)> {
        let mut fates: Vec<(PartitionId, Fate)> = self
            .waiting
            .iter()
            .map(|(partition, waiting)| (*partition, fate(*partition, &waiting.on)))
            .filter(|(_, fate)| *fate != Fate::Waits)
            .collect();
        fates.sort_unstable_by_key(|(partition, _)| *partition);
        let mut done = Vec::new();
        for (partition, fate) in fates {
            let waiting = self.waiting.remove(&partition).expect("it was listed");
            // Who waited for a leader, or for answers alone, may still have to wait for the one before that.
            if matches!(waiting.on, On::Before { mark: Some(_), .. }) {
                self.last.remove(&partition);
            }
            self.held_bytes -= waiting.held.iter().map(bytes_of).sum::<u64>();
            done.push((partition, waiting.held, fate == Fate::GivenUp));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(3);

    fn command(queue: u64) -> Command {
        Command::Delete { queue: QueueId(queue) }
    }

    #[test]
    fn what_finds_no_leader_waits_and_then_for_the_one_before_too() {
        let (first, second) = (NodeNumber(1), NodeNumber(2));
        let mut turning = Turning::default();
        assert!(turning.hold(P, command(1)).is_some(), "nothing waits");
        turning.sent(P, first);
        turning.begin_leaderless(P, 5);
        assert!(turning.is_leaderless());
        assert!(turning.hold(P, command(1)).is_none() && turning.hold(P, command(2)).is_none());
        assert!(turning.take_done(|_, _| Fate::Waits).is_empty());
        let done = turning.take_done(|_, on| match on {
            On::Leader { since_us: 5 } => Fate::Goes,
            other => panic!("{other:?}"),
        });
        assert_eq!(done, [(P, vec![command(1), command(2)], false)]);
        assert_eq!((turning.is_leaderless(), turning.held_bytes()), (false, 0));
        assert_eq!(turning.before(P, Some(second)), Some(first), "that one may not have answered for all it was sent");
        turning.begin(P, first, 7);
        assert!(turning.hold(P, command(3)).is_none());
        turning.lost(first);
        let done = turning.take_done(|_, on| match on {
            On::Before { mark: None, .. } => Fate::Goes,
            other => panic!("{other:?}"),
        });
        assert_eq!((done.len(), turning.before(P, Some(second))), (1, None));
    }

    #[test]
    fn what_is_settled_while_it_waits_is_held_no_more() {
        let consumer = |number| ConsumerKey { channel: broker::ChannelKey(7), number };
        let hold = |number, first, count| {
            let (queue, consumer) = (QueueId(1), consumer(number));
            Command::Hold { queue, consumer, first, count }
        };
        let mut turning = Turning::default();
        turning.begin_leaderless(P, 0);
        turning.hold(P, hold(1, 5, 4));
        turning.hold(P, command(1));
        turning.hold(P, hold(2, 5, 4));
        // It was the active one, whatever it settles.
        turning.hold(P, hold(1, 9, 0));
        let before = turning.held_bytes();
        turning.settled(P, (QueueId(2), consumer(1)), 5, 4);
        turning.settled(PartitionId(4), (QueueId(1), consumer(1)), 5, 4);
        assert_eq!(turning.held_bytes(), before, "it is of another queue, or partition");
        turning.settled(P, (QueueId(1), consumer(1)), 6, 1);
        turning.settled(P, (QueueId(1), consumer(1)), 8, 9);
        turning.settled(P, (QueueId(1), consumer(2)), 1, 9);
        let left: Vec<_> =
            turning.take_done(|_, _| Fate::Goes).into_iter().flat_map(|(_, commands, _)| commands).collect();
        assert_eq!(left, [hold(1, 5, 1), hold(1, 7, 1), command(1), hold(1, 9, 0)]);
        assert_eq!(turning.held_bytes(), 0);
    }

    #[test]
    fn what_a_client_has_twice_and_settles_once_while_it_waits_it_has_once() {
        let (queue, consumer) = (QueueId(1), ConsumerKey { channel: ChannelKey(7), number: 1 });
        let hold = |first, count| Command::Hold { queue, consumer, first, count };
        let mut turning = Turning::default();
        turning.begin_leaderless(P, 0);
        [hold(5, 1), hold(4, 3)].into_iter().for_each(|hold| _ = turning.hold(P, hold));
        turning.settled(P, (queue, consumer), 5, 1);
        let left: Vec<_> = turning.take_done(|_, _| Fate::Goes).into_iter().flat_map(|(_, held, _)| held).collect();
        assert_eq!((left, turning.held_bytes()), (vec![hold(4, 3)], 0));
    }

    #[test]
    fn what_waits_for_a_node_s_memory_is_told_apart_once_that_is_gone() {
        let memory = PartitionId::in_memory(NodeNumber(2), 0);
        let publish = |seq| {
            let empty = bytes::Bytes::new();
            let (exchange, routing_key, properties) = (empty.clone(), empty.clone(), empty.clone());
            let message = partition::Message { exchange, routing_key, properties, body: empty };
            let channel = ChannelKey(7);
            Publish {
                channel,
                publish_seq: seq,
                term: 0,
                targets: Default::default(),
                delay_ms: 0,
                message,
                more: None,
            }
        };
        let mut turning = Turning::default();
        for (partition, seq) in [(memory, 1), (memory, 2), (P, 3)] {
            if !turning.is_waiting(partition) {
                turning.begin_leaderless(partition, 0);
            }
            assert!(turning.hold(partition, Command::Publish(publish(seq))).is_none());
        }
        assert_eq!(turning.take_gone(|publish| publish.publish_seq == 2), [(memory, publish(2))]);
        assert!(turning.is_waiting(memory) && turning.is_waiting(P), "what is in a log is not gone with a node");
        assert_eq!(turning.take_gone(|_| true), [(memory, publish(1))]);
        assert!(!turning.is_waiting(memory) && turning.is_waiting(P));
        assert_eq!(turning.held_bytes(), bytes_of(&Command::Publish(publish(3))));
    }

    #[test]
    fn what_waited_too_long_is_given_up() {
        let mut turning = Turning::default();
        turning.begin_leaderless(P, 0);
        turning.hold(P, command(1));
        assert_eq!(turning.take_done(|_, _| Fate::GivenUp), [(P, vec![command(1)], true)]);
    }
}
