//! Direct replies in memory: what an asker leaves unread has a bound, and nothing else has less room for it.
#![allow(clippy::unwrap_used)]

use broker::queue::Consumer;
use broker::{ChannelKey, ConsumerKey, QueueId};
use bytes::Bytes;
use partition::command::{Durability, Target};
use partition::message::MessageView;
use partition::{Command, Effect, Level, Message, Outlets, Publish, ReplyRoom, ReplyRooms, RequestId, TransientQueues};
use std::sync::Arc;

const ASKER: ChannelKey = ChannelKey(11);
const REPLIER: ChannelKey = ChannelKey(12);
const REPLIES: QueueId = QueueId(1);
const OTHER: QueueId = QueueId(2);
const MIB: usize = 1 << 20;

/// A client that takes so many bytes.
struct Takes(usize);
impl Outlets for Takes {
    fn room(&mut self, _: ConsumerKey) -> usize {
        std::mem::take(&mut self.0)
    }
}

struct Shard {
    queues: TransientQueues,
    rooms: Arc<ReplyRooms>,
}

impl Shard {
    /// A shard with a queue of replies, whose asker consumes, and another queue.
    fn new() -> Self {
        let rooms = Arc::new(ReplyRooms::new(8 * MIB as u64, 1 << 40));
        let mut this = Shard { queues: TransientQueues::new(), rooms: rooms.clone() };
        this.queues.declare(REPLIES);
        this.queues.declare(OTHER);
        let key = ConsumerKey { channel: ASKER, number: 1 };
        let consumer = Consumer { key, prefetch: 0, no_ack: true, exclusive: false, priority: 0, granted_only: false };
        let room = Arc::new(ReplyRoom::new(rooms));
        let limit = Command::LimitReplies { queue: REPLIES, channel: ASKER, room };
        this.step(0, vec![limit, Command::Consume { again: false, queue: REPLIES, consumer, request: RequestId(1) }]);
        this
    }

    fn step(&mut self, takes: usize, mut commands: Vec<Command>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.queues.step(1, &mut commands, &mut effects, &mut Takes(takes));
        effects
    }

    /// The asker reads so many bytes.
    fn read(&mut self, takes: usize) -> Vec<u8> {
        let consumer = ConsumerKey { channel: ASKER, number: 1 };
        let effects = self.step(takes, vec![Command::Stall { queue: REPLIES, consumer, stalled: false }]);
        delivered(&effects)
    }
}

/// The first byte of each reply that went out.
fn delivered(effects: &[Effect]) -> Vec<u8> {
    let first = |effect: &Effect| match effect {
        Effect::Deliver(delivery) => Some(MessageView::parse(&delivery.message).unwrap().body()[0]),
        _ => None,
    };
    effects.iter().filter_map(first).collect()
}

fn publish(publish_seq: u64, queue: QueueId, body: Vec<u8>) -> Command {
    let target = Target { queue, durability: Durability::Level(Level::Written), selective: None };
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"key"),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from(body),
    };
    let targets = std::iter::once(target).collect();
    Command::Publish(Publish { channel: REPLIER, publish_seq, term: 0, targets, delay_ms: 0, message, more: None })
}

#[test]
fn replies_beyond_the_room_of_their_connection_are_dropped_and_confirmed_until_it_reads() {
    let mut shard = Shard::new();
    let mut told = 0;
    for n in 1..=40u8 {
        let effects = shard.step(0, vec![publish(n.into(), REPLIES, vec![n; MIB])]);
        let confirm = Effect::Confirm { channel: REPLIER, first: n.into(), count: 1 };
        assert_eq!(effects.last(), Some(&confirm), "reply {n}");
        told += effects.iter().filter(|e| **e == Effect::RepliesDropped { channel: ASKER }).count();
    }
    assert_eq!(told, 1, "the connection is told of once");
    let dropped: Vec<_> = shard.queues.take_given_up().map(|(queue, _, count)| (queue, count)).collect();
    assert_eq!(dropped, [(REPLIES, 32)]);
    assert!(shard.queues.bytes() < 9 * MIB as u64, "{} bytes", shard.queues.bytes());
    assert_eq!(shard.read(2 * MIB), [1, 2], "the oldest are those that wait");
    shard.step(0, (41..=50).map(|n| publish(n.into(), REPLIES, vec![n; 1000])).collect());
    let more: Vec<u8> = (3..=8).chain(41..=50).collect();
    assert_eq!(shard.read(usize::MAX), more, "what came once it had read has room");
    assert_eq!((shard.rooms.waiting(), shard.queues.bytes()), (0, 0), "all is given back");
}

#[test]
fn a_reply_that_finds_its_asker_reading_is_never_dropped() {
    let mut shard = Shard::new();
    for n in 1..=40u8 {
        let effects = shard.step(usize::MAX, vec![publish(0, REPLIES, vec![n; MIB])]);
        assert_eq!(delivered(&effects), [n]);
    }
    assert_eq!((shard.rooms.waiting(), shard.queues.take_given_up().count()), (0, 0));
}

#[test]
fn what_waits_of_a_queue_that_goes_is_given_back() {
    let mut shard = Shard::new();
    shard.step(0, vec![publish(0, REPLIES, vec![1; MIB])]);
    assert!(shard.rooms.waiting() >= MIB as u64);
    shard.step(0, vec![Command::Delete { queue: REPLIES }]);
    assert_eq!((shard.rooms.waiting(), shard.queues.bytes()), (0, 0));
}

#[test]
fn a_small_reply_that_waits_keeps_nothing_of_what_came_with_it_in_memory() {
    let mut shard = Shard::new();
    for n in 0..100 {
        let with = (0..10).map(|_| publish(0, OTHER, vec![0; 20_000]));
        let purge = Command::Purge { queue: OTHER, channel: REPLIER, request: RequestId(1) };
        shard.step(0, with.chain([publish(0, REPLIES, vec![n; 100])]).collect());
        shard.step(0, vec![purge]);
    }
    assert!(shard.queues.bytes() < 100_000, "{} bytes for 100 small replies", shard.queues.bytes());
    assert_eq!(shard.read(usize::MAX), (0..100).collect::<Vec<_>>());
}
