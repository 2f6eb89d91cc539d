//! What a connection may do in one turn before others are served: a read may bring thousands of
//! publishes, and one of them may go to thousands of queues.
//!
//! Invariant: a turn ends with the event that passes the limit; what it has done is counted in
//! queues that a message was handed to, not in time, so that it is the same on every machine.
//! Connections that have more to do than one turn share what one alone may do: who has little waits
//! behind a turn of each of them. A
//! publish costs one comparison and one addition. A request counts for what it carries: one may
//! bring thousands of arguments, each of which is read, checked, encoded and kept.

use amqp::{Request, Table, Value};
use broker::topology::RouteTarget;
use std::hash::BuildHasher;

/// About ten milliseconds. A full read of the smallest messages that each go to one queue is less.
pub const TURN_MAX: usize = 16_384;

/// However many connections have much to do, the turn of each is worth that it begins.
const TURN_MIN: usize = 256;

/// A turn that cost so many times what it might was overdrawn.
const OVERDRAWN: usize = 2;

/// A message that goes to the same queues as the one before it stands in one batch with it, which
/// costs its queues about so much less: each has to take it in all the same.
const SAME_QUEUES: usize = 2;
/// The same where nobody else has much to do: the larger the batches, the less each message costs.
const SAME_QUEUES_ALONE: usize = 16;

/// A request without arguments costs as much as to hand a message to so many queues.
const REQUEST: usize = 4;
/// A channel that comes or goes costs as much: what knows it is told in several places.
const CHANNEL: usize = 16;
/// So many pointers that are moved, or entries that are looked at, cost as much.
const MOVED: usize = 256;
/// So many bytes of arguments cost as much as an argument.
const BYTES_AN_ARGUMENT: usize = 64;

/// What a publish costs by where it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    queues: usize,
    /// Stands for all of them.
    hash: u64,
}

impl Load {
    pub(super) fn of(targets: &[RouteTarget]) -> Self {
        let hasher = foldhash::fast::FixedState::default();
        let queues = targets.iter().map(|target| target.queue);
        let hash = queues.fold(0, |hash: u64, queue| hasher.hash_one((hash, queue)));
        Load { queues: targets.len(), hash }
    }
}

/// The work of a turn so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    sum: usize,
    /// How much it may be.
    max: usize,
    /// How much less a message costs that goes where the last one went.
    same_queues: usize,
    /// Where the last publish went.
    last: u64,
}

impl Default for Work {
    fn default() -> Work {
        Work::among(1)
    }
}

impl Work {
    /// Nothing was done in a turn of which so many connections are to have one each, before anybody else is served.
    pub(super) fn among(connections: usize) -> Self {
        let same_queues = if connections <= 1 { SAME_QUEUES_ALONE } else { SAME_QUEUES };
        Work { sum: 0, max: (TURN_MAX / connections.max(1)).max(TURN_MIN), same_queues, last: 0 }
    }

    /// A search for a route; see [`broker::topology::STEPS_OF_A_TARGET`].
    pub(super) fn add(&mut self, work: usize) {
        self.sum += work;
    }

    /// Enough was done, however little it came to.
    pub(super) fn end(&mut self) {
        self.sum = self.max;
    }

    /// A channel came or went: as many behind it had to move, and it had as many consumers and partitions to tell.
    pub(super) fn channel(&mut self, behind: usize, told: usize) {
        self.sum += CHANNEL + behind / MOVED + told * REQUEST;
    }

    /// A list of so many was looked through.
    pub(super) fn look(&mut self, entries: usize) {
        self.sum += entries / MOVED;
    }

    /// A request, with the arguments that it carries.
    pub(super) fn request(&mut self, request: &Request) {
        self.sum += REQUEST
            + match request {
                Request::ExchangeDeclare { arguments, .. }
                | Request::ExchangeBind { arguments, .. }
                | Request::ExchangeUnbind { arguments, .. }
                | Request::QueueDeclare { arguments, .. }
                | Request::QueueBind { arguments, .. }
                | Request::QueueUnbind { arguments, .. }
                | Request::Consume { arguments, .. } => table_work(arguments),
                _ => 0,
            };
    }

    #[inline]
    pub(super) fn publish(&mut self, Load { queues, hash }: Load, messages: u64) {
        let again = 1 + queues / self.same_queues;
        let first = if hash == self.last { again } else { 1 + queues };
        self.sum += first + (messages - 1) as usize * again;
        self.last = hash;
    }

    /// What the turn cost where that is many times what it might: one event of it was far more than a turn.
    pub(super) fn overdraft(self) -> Option<usize> {
        (self.sum >= OVERDRAWN * self.max).then_some(self.sum)
    }

    /// Whether the turn is to end.
    #[inline]
    pub(super) fn is_enough(self) -> bool {
        self.sum >= self.max
    }
}

/// An argument costs about as much as to hand a message to a queue.
fn table_work(table: &Table) -> usize {
    table.iter().map(|(name, value)| name.len() / BYTES_AN_ARGUMENT + value_work(value)).sum()
}

fn value_work(value: &Value) -> usize {
    1 + match value {
        Value::LongString(bytes) | Value::ByteArray(bytes) => bytes.len() / BYTES_AN_ARGUMENT,
        Value::Array(items) => items.iter().map(value_work).sum(),
        Value::Table(table) => table_work(table),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::ConsumerTag;
    use bytes::Bytes;

    /// How many publishes are a turn, that go to these in turn.
    fn turn(loads: &[Load]) -> usize {
        let mut work = Work::default();
        let taken = loads.iter().cycle().take_while(|load| {
            let is_enough = work.is_enough();
            work.publish(**load, 1);
            !is_enough
        });
        taken.count()
    }

    #[test]
    fn a_few_requests_with_thousands_of_arguments_are_a_turn_and_thousands_without_are_not() {
        let turn = |request: Request| {
            let mut work = Work::default();
            let requests = std::iter::from_fn(|| {
                let is_enough = work.is_enough();
                work.request(&request);
                (!is_enough).then_some(())
            });
            requests.count()
        };
        let mut arguments = Table::new();
        (0..8000).for_each(|n| arguments.push(format!("{n:x}"), Value::Bool(true)));
        let mut nested = Table::new();
        nested.push("t", Value::Array(vec![Value::Table(arguments.clone())]));
        let mut long = Table::new();
        long.push("s", Value::LongString(vec![b'a'; 512 << 10].into()));
        let name = || Bytes::from_static(b"n");
        for arguments in [arguments, nested, long] {
            let (no_ack, exclusive, no_local, consumer_tag) = (false, false, false, ConsumerTag::new(name()));
            let [queue, exchange, routing_key] = [name(), name(), name()];
            let bind = Request::QueueBind { queue, exchange, routing_key, arguments: arguments.clone() };
            let [queue, exchange, routing_key] = [name(), name(), name()];
            let unbind = Request::QueueUnbind { queue, exchange, routing_key, arguments: arguments.clone() };
            let [destination, source, routing_key] = [name(), name(), name()];
            let between = Request::ExchangeBind { destination, source, routing_key, arguments: arguments.clone() };
            let [destination, source, routing_key] = [name(), name(), name()];
            let apart = Request::ExchangeUnbind { destination, source, routing_key, arguments: arguments.clone() };
            let [queue, exchange, kind] = [name(), name(), name()];
            let (passive, durable, auto_delete, internal) = (false, false, false, false);
            let args = arguments.clone();
            let declare = Request::QueueDeclare { queue, passive, durable, exclusive, auto_delete, arguments: args };
            let args = arguments.clone();
            let of_exchange =
                Request::ExchangeDeclare { exchange, kind, passive, durable, auto_delete, internal, arguments: args };
            let consume = Request::Consume { queue: name(), consumer_tag, no_local, no_ack, exclusive, arguments };
            for request in [bind, unbind, between, apart, declare, of_exchange, consume] {
                assert!(turn(request.clone()) <= 3, "{}", turn(request));
            }
        }
        let [queue, exchange, routing_key] = [name(), name(), name()];
        assert_eq!(turn(Request::QueueBind { queue, exchange, routing_key, arguments: Table::new() }), 4096);
    }

    #[test]
    fn a_turn_is_overdrawn_by_one_message_that_costs_far_more_than_it_and_not_by_many() {
        let overdraft = |connections: usize, queues: usize| {
            let mut work = Work::among(connections);
            for hash in 1.. {
                if work.is_enough() {
                    break;
                }
                work.publish(Load { queues, hash }, 1);
            }
            work.overdraft()
        };
        assert_eq!(overdraft(1, 1), None);
        assert_eq!(overdraft(1, 10_000), None);
        assert_eq!(overdraft(8, 1_000), None);
        assert_eq!(overdraft(8, 10_000), Some(10_001));
        assert_eq!(overdraft(1, 40_000), Some(40_001));
    }

    #[test]
    fn connections_that_have_much_share_what_one_may_do_and_each_of_them_does_something() {
        let done = |connections: usize| {
            let mut work = Work::among(connections);
            let turn = std::iter::from_fn(|| {
                let is_enough = work.is_enough();
                work.publish(Load { queues: 1, hash: 0 }, 1);
                (!is_enough).then_some(())
            });
            turn.count()
        };
        assert_eq!((done(0), done(1)), (TURN_MAX, TURN_MAX));
        assert_eq!(done(8) * 8, TURN_MAX);
        assert_eq!(done(10_000), TURN_MIN);
    }

    #[test]
    fn a_thousand_channels_that_come_or_go_are_a_turn_and_fewer_where_many_have_to_move_or_are_to_be_told() {
        let turn = |behind: usize, told: usize| {
            let mut work = Work::default();
            (0..)
                .take_while(|_| {
                    let is_enough = work.is_enough();
                    work.channel(behind, told);
                    !is_enough
                })
                .count()
        };
        assert_eq!(turn(0, 0), 1024);
        assert!(turn(60_000, 0) < 100);
        assert_eq!(turn(0, 200), 21);
    }

    #[test]
    fn a_full_read_of_small_messages_is_one_turn_and_a_few_to_thousands_of_queues_are_not() {
        // Method, header and body of an empty message with the shortest names: 7 + 1 bytes of each
        // frame, and what is in them.
        let frames = (8 + 4 + 2 + 1 + 2 + 1) + (8 + 14) + (8 + 1);
        let to = |queues: usize, hash: u64| Load { queues, hash };
        assert!(turn(&[to(1, 1), to(1, 2)]) > (256 << 10) / frames);
        assert_eq!(turn(&[to(3_000, 1), to(3_000, 2)]), 6);
        assert_eq!(turn(&[to(3_000, 1)]), 73, "in batches");
        let (mut work, mut count) = (Work::among(8), 0);
        while !work.is_enough() {
            work.publish(to(3_000, 1), 1);
            count += 1;
        }
        assert_eq!(count, 1, "where others have much, too");
    }
}
