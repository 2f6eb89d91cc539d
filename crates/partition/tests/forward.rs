//! What nodes say to each other beside their groups: the very bytes, and that nothing else is taken
//! for them.

#![allow(clippy::unwrap_used)]

use broker::queue::{Consumer, Counts, Rules};
use broker::{ChannelKey, ConsumerKey, NodeLife, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use consensus::{DecodeError, LogIndex, Segments, Term};
use partition::command::{Durability, EVERYTHING, Level, Selective};
use partition::message::{MESSAGE_BYTES_MAX, Stamp, store, stored_bytes};
use partition::peer::news_form::News;
use partition::peer::packet::{self, Frame, HEAD_BYTES, Head};
use partition::{
    Command, Delivery, Disposition, Effect, Forward, Message, PeerFrame, Publish, Reply, RequestId, Target,
};
use proptest::prelude::*;
use smallvec::smallvec;
use std::sync::Arc;

const QUEUE: QueueId = QueueId(5);
const REQUEST: RequestId = RequestId(9);
/// Written as 2, 200 and 300, the latter two in two bytes each.
const CHANNEL: ChannelKey = ChannelKey::of(NodeLife { node: 2, start: 200 }, 300);
const CONSUMER: ConsumerKey = ConsumerKey { channel: CHANNEL, number: 3 };

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn publish(message: Message) -> Publish {
    let target = Target { queue: QUEUE, durability: Durability::Level(Level::Synced), selective: None };
    Publish {
        channel: CHANNEL,
        publish_seq: 1000,
        term: 9,
        targets: smallvec![target],
        delay_ms: 0,
        message,
        more: None,
    }
}

fn message(body: Bytes) -> Message {
    Message { exchange: text(""), routing_key: text("key"), properties: Bytes::from_static(&[0, 0]), body }
}

fn stored(message: &Message) -> Bytes {
    let mut bytes = Vec::new();
    store(message, 0, Stamp::None, &mut bytes);
    bytes.into()
}

fn delivery(message: Bytes) -> Delivery {
    let counts = Counts { acquired: 2, delivery: 1 };
    Delivery {
        consumer: CONSUMER,
        queue: QUEUE,
        seq: 300,
        needs_ack: true,
        redelivered: false,
        counts,
        term: 7,
        message,
    }
}

/// Each kind, with the bytes that it is written as.
fn frames() -> Vec<(Forward, Vec<u8>)> {
    let (queue, channel, consumer, request) = (QUEUE, CHANNEL, CONSUMER, REQUEST);
    let selective = Some(Selective { cap: 6, interval_ms: 7 });
    let targets = smallvec![
        Target { queue, durability: Durability::Level(Level::Written), selective },
        Target { queue: QueueId(6), durability: Durability::Selective { value: 300 }, selective },
        Target { queue: QueueId(7), durability: Durability::Selective { value: 1 }, selective: None },
    ];
    let scheduled = Publish { delay_ms: 300, term: 0, targets, ..publish(message(text(""))) };
    let attached =
        Consumer { key: consumer, prefetch: 300, no_ack: true, exclusive: false, priority: -2, granted_only: true };
    let reply = |reply| Effect::Reply { channel, request, reply };
    let commands = [
        (
            Command::Publish(publish(message(text("body")))),
            "32 2,200.1,172.2, 232.7 9 0 1 5 1 0 3 2 4 k e y 0 0 b o d y",
        ),
        (
            Command::Publish(scheduled),
            "32 2,200.1,172.2, 232.7 0 172.2 3 5 4 6 7 6 6 172.2 6 7 7 2 1 0 3 2 0 k e y 0 0",
        ),
        (Command::Consume { queue, consumer: attached, again: true, request }, "33 9 5 2,200.1,172.2,3 172.2 3 13"),
        (Command::Cancel { queue, consumer, request }, "34 9 5 2,200.1,172.2,3"),
        (Command::Get { queue, channel, no_ack: true, request }, "35 9 5 2,200.1,172.2 1"),
        (
            Command::Settle { queue, holder: consumer, first: 300, count: 4, outcome: Disposition::Ack },
            "36 5 2,200.1,172.2,3 172.2 4 0",
        ),
        (
            Command::Settle { queue, holder: consumer, first: 1, count: 1, outcome: Disposition::Nack },
            "36 5 2,200.1,172.2,3 1 1 1",
        ),
        (
            // All that a consumer holds that held something for too long.
            Command::Settle { queue, holder: consumer, first: 0, count: EVERYTHING, outcome: Disposition::Nack },
            "36 5 2,200.1,172.2,3 0 255.255.255.255.255.255.255.255.127 1",
        ),
        (
            Command::Settle { queue, holder: consumer, first: 1, count: 1, outcome: Disposition::Reject },
            "36 5 2,200.1,172.2,3 1 1 2",
        ),
        (
            Command::Settle { queue, holder: consumer, first: 1, count: 1, outcome: Disposition::Discard },
            "36 5 2,200.1,172.2,3 1 1 3",
        ),
        (Command::Detach { channel }, "37 2,200.1,172.2"),
        (Command::Purge { queue, channel, request }, "38 9 5 2,200.1,172.2"),
        (Command::Stat { queue, channel, request }, "39 9 5 2,200.1,172.2"),
        (Command::Close { queue, if_unused: false, if_empty: true, channel, request }, "40 9 5 2,200.1,172.2 2"),
        (Command::Reopen { queue }, "41 5"),
        (Command::DeadLetterAnswered { queue, seq: 300, is_safe: true }, "42 5 172.2 1"),
        (Command::Stall { queue, consumer, stalled: false }, "43 5 2,200.1,172.2,3 0"),
        (Command::Grant { queue, consumer, count: 4 }, "44 5 2,200.1,172.2,3 4"),
        (Command::Sync { channel, request }, "45 9 2,200.1,172.2"),
        (Command::Mark { channel, request }, "47 9 2,200.1,172.2"),
        (Command::Hold { queue, consumer, first: 1, count: 4 }, "46 5 2,200.1,172.2,3 1 4"),
    ];
    let effects = [
        (Effect::Confirm { channel, first: 300, count: 4 }, "64 2,200.1,172.2 172.2 4"),
        (Effect::Refuse { channel, first: 300, count: 4 }, "65 2,200.1,172.2 172.2 4"),
        (
            Effect::Deliver(delivery(stored(&message(text("body"))))),
            "66 5 172.2 2,200.1,172.2,3 1 2 1 7 25 4 0 0 0 2 0 0 0 0 0 0 0 0 3 0 0 k e y 0 0 b o d y",
        ),
        (reply(Reply::Done), "67 9 2,200.1,172.2 0"),
        (reply(Reply::Consuming), "67 9 2,200.1,172.2 1"),
        (reply(Reply::ConsumeRefused), "67 9 2,200.1,172.2 2"),
        (
            reply(Reply::Got {
                delivery: Delivery { redelivered: true, ..delivery(stored(&message(text("b")))) },
                ready: 8,
            }),
            "67 9 2,200.1,172.2 3 8 5 172.2 2,200.1,172.2,3 3 2 1 7 22 1 0 0 0 2 0 0 0 0 0 0 0 0 3 0 0 k e y 0 0 b",
        ),
        (reply(Reply::Empty), "67 9 2,200.1,172.2 4"),
        (reply(Reply::Counted(300)), "67 9 2,200.1,172.2 5 172.2"),
        (reply(Reply::Stat { ready: 1, unacked: 2, consumers: 3 }), "67 9 2,200.1,172.2 6 1 2 3"),
        (reply(Reply::DeleteRefused { in_use: true }), "67 9 2,200.1,172.2 7 1"),
        (reply(Reply::NotLeader), "67 9 2,200.1,172.2 8"),
        (reply(Reply::Gone), "67 9 2,200.1,172.2 9"),
        (reply(Reply::Unavailable), "67 9 2,200.1,172.2 10"),
        (Effect::Cancelled { consumer, queue }, "68 5 2,200.1,172.2,3"),
        (Effect::GrantWanted { consumer, queue, ready: 300 }, "69 5 2,200.1,172.2,3 172.2"),
        (Effect::GrantReturned { consumer, count: 4 }, "70 2,200.1,172.2,3 4"),
        (Effect::Returned { channel, first: 300, count: 4, term: 7 }, "71 2,200.1,172.2 172.2 4 7"),
    ];
    let others = [
        (Forward::Starved { consumer }, "80 2,200.1,172.2,3"),
        (Forward::Drained { channel, bytes: 300 }, "81 2,200.1,172.2 172.2"),
        (Forward::Propose { token: 300, term: Term(9), change: text("new") }, "82 172.2 9 3 n e w"),
        (Forward::NotProposed { token: 300 }, "83 172.2"),
        (Forward::Ping { number: 300 }, "84 172.2"),
        (Forward::Pong { number: 1 }, "85 1"),
        (Forward::Delete { queue, if_unused: true, if_empty: false, channel, request }, "86 9 5 2,200.1,172.2 1"),
        (Forward::Applied { index: LogIndex(300) }, "87 172.2"),
        (Forward::Leads { term: 300, leads: true }, "90 172.2 1"),
        (Forward::Leads { term: 1, leads: false }, "90 1 0"),
        (Forward::Ask { number: 300, question: text("who") }, "88 172.2 3 w h o"),
        (Forward::Answer { number: 300, part: text("me"), is_last: false, is_refused: false }, "89 172.2 0 2 m e"),
        (Forward::Answer { number: 300, part: text("me"), is_last: true, is_refused: false }, "89 172.2 1 2 m e"),
        (Forward::Answer { number: 1, part: text(""), is_last: true, is_refused: true }, "89 1 3 0"),
        (Forward::News(News::Alarms { disk: true, memory: false }), "92 1"),
        (Forward::News(News::User { name: text("ann"), connections: 300, channels: 4 }), "93 3 a n n 172.2 4"),
        (Forward::News(News::Vhost { vhost: VhostId(300), connections: 4 }), "94 172.2 4"),
        (Forward::News(News::Traced { vhost: VhostId(1), on: true, stamp: 300 }), "95 1 1 172.2"),
        (Forward::News(News::Rests { on: true }), "96 1"),
        (Forward::AskLease { number: 300 }, "97 172.2"),
        (Forward::Lease { number: 300, end: LogIndex(4) }, "98 172.2 4"),
    ];
    let commands = commands.map(|(command, bytes)| (Forward::Command(command), bytes));
    let effects = effects.map(|(effect, bytes)| (Forward::Effect(effect), bytes));
    commands.into_iter().chain(effects).chain(others).map(|(frame, bytes)| (frame, drawn(bytes))).collect()
}

/// The bytes of a drawing: numbers and letters, between any of ` ,.`.
fn drawn(drawing: &str) -> Vec<u8> {
    let words = drawing.split([' ', ',', '.']).filter(|word| !word.is_empty());
    words.map(|word| word.parse().unwrap_or_else(|_| word.as_bytes()[0])).collect()
}

fn encoded(frame: &Forward) -> Bytes {
    let mut out = Segments::new();
    frame.encode(&mut out);
    out.to_bytes()
}

/// It is refused, or it is the one form of what it means.
fn assert_one_form(bytes: &[u8]) {
    let whole = Bytes::copy_from_slice(bytes);
    let mut left = whole.clone();
    if let Ok(frame) = Forward::decode(&mut left) {
        assert_eq!(encoded(&frame), whole.slice(..whole.len() - left.len()), "{frame:?}");
    }
}

/// The bytes of each kind, as `docs/formats/peer.md` draws them. A build that writes others needs
/// another version.
#[test]
fn frames_are_written_as_ever() {
    for (frame, bytes) in frames() {
        assert_eq!(encoded(&frame), bytes, "{frame:?}");
        assert_eq!(frame.kind(), bytes[0]);
    }
}

#[test]
fn what_was_written_is_read_again_and_nothing_is_left() {
    for (frame, bytes) in frames() {
        let mut bytes = Bytes::from(bytes);
        assert_eq!(Forward::decode(&mut bytes), Ok(frame));
        assert!(bytes.is_empty());
    }
}

#[test]
fn a_packet_carries_what_groups_say_and_what_nodes_say_in_order() {
    let mut all: Vec<(PartitionId, Frame)> = Vec::new();
    for (number, (frame, _)) in frames().into_iter().enumerate() {
        all.push((PartitionId(number as u32), Frame::from(frame)));
        all.push((PartitionId(number as u32), Frame::from(PeerFrame::AskEnd { term: Term(9), life: 1 })));
    }
    let pieces = packet::encode(all.iter().map(|(partition, frame)| (*partition, frame)));
    let head = Head::parse(pieces[0][..].try_into().unwrap()).unwrap();
    assert_eq!(packet::decode(&head, pieces[1..].concat().into()), Ok(all));
    let ping = Forward::Ping { number: 7 };
    let alone = packet::encode([(PartitionId(0), &ping)]);
    assert_eq!(alone[1..].concat(), [0, 84, 7]);
    assert_eq!(packet::encode([(PartitionId(0), &Frame::from(ping))]), alone, "as a frame or by itself");
}

#[test]
fn a_publish_adds_about_twenty_bytes_to_its_message() {
    let message = message(Bytes::from(vec![7; 400]));
    let own = message.routing_key.len() + message.properties.len() + message.body.len();
    let queue = QueueId(20_000);
    let target = Target { queue, durability: Durability::Level(Level::Synced), selective: None };
    let channel = ChannelKey::of(NodeLife { node: 3, start: 40 }, 50_000);
    let publish = Publish { channel, publish_seq: 1_000_000, term: 0, targets: smallvec![target], ..publish(message) };
    let packet = packet::encode([(PartitionId(1_000), &Forward::Command(Command::Publish(publish)))]).concat();
    assert_eq!(packet.len() - HEAD_BYTES - own, 23);
}

#[test]
fn bodies_are_shared_and_not_copied() {
    let body = Bytes::from(vec![7; 4096]);
    let stored = stored(&message(body.clone()));
    let is = |piece: &Bytes, whole: &Bytes| piece.as_ptr() == whole.as_ptr() && piece.len() == whole.len();
    let is_body = |piece: &Bytes| is(piece, &body) || is(piece, &stored);
    let frames = [
        Forward::Command(Command::Publish(publish(message(body.clone())))),
        Forward::Effect(Effect::Deliver(delivery(stored.clone()))),
        Forward::Propose { token: 1, term: Term(1), change: body.clone() },
    ];
    for frame in frames {
        let pieces = packet::encode([(PartitionId(1), &frame)]);
        assert!(pieces.iter().any(is_body), "out: {frame:?}");
        let head = Head::parse(pieces[0][..].try_into().unwrap()).unwrap();
        let received: Bytes = pieces[1..].concat().into();
        let mut found = packet::decode(&head, received.clone()).unwrap();
        let parts = match found.pop().unwrap().1 {
            Frame::Forward(Forward::Command(Command::Publish(Publish { message, .. }))) => {
                vec![message.routing_key, message.properties, message.body]
            }
            Frame::Forward(Forward::Effect(Effect::Deliver(delivery))) => vec![delivery.message],
            Frame::Forward(Forward::Propose { change, .. }) => vec![change],
            other => panic!("{other:?}"),
        };
        for part in parts {
            assert!(received.as_ptr_range().contains(&part.as_ptr()), "in: a slice of what came");
        }
    }
}

/// What a leader would end for is no frame.
#[test]
fn a_publish_to_no_queue_or_above_the_largest_message_is_refused() {
    let nowhere = drawn("32 2,200.1,172.2, 1 0 0 0 0 0 0 0");
    assert!(Forward::decode(&mut nowhere.into()).is_err());
    let size = |bytes| {
        let message = message(Bytes::from(vec![0; bytes]));
        let beside = stored_bytes(&message) - bytes;
        (Forward::Command(Command::Publish(publish(message))), beside)
    };
    let room = MESSAGE_BYTES_MAX - size(0).1;
    let mut largest = encoded(&size(room).0);
    assert!(Forward::decode(&mut largest).is_ok() && largest.is_empty());
    assert!(Forward::decode(&mut encoded(&size(room + 1).0)).is_err());
}

/// Each number has one field that it fits in, and each flag somebody who asks for it.
#[test]
fn numbers_flags_and_kinds_that_mean_nothing_are_refused() {
    let refused = [
        "70 128.128.128.128.16 1 1 1",                         // A node of more than 32 bits.
        "70 1 1 1 128.128.128.128.16 1",                       // A consumer.
        "70 1 1 1 1 128.128.128.128.16",                       // A count of grants.
        "71 1 1 1 1 1 128.128.128.128.16",                     // A term of more than 32 bits.
        "84 129.0",                                            // A number with an idle byte.
        "36 5 2 2 2 2 128.128.128.128.128.128.128.128.64 1 0", // A sequence number whose sums have no room.
        "46 5 2 2 2 2 1 128.128.128.128.128.128.128.128.64",   // As many messages.
        "64 2 2 2 128.128.128.128.128.128.128.128.64 1",
        "32 2 2 2 1 0 0 2 5 0 5 1 0 0 2 0 0 0", // The same queue twice.
        "32 2 2 2 1 0 0 1 5 0 0 0 2 0 1 0",     // Properties that end early.
        "66 5 1 2 2 2 3 0 0 0 1 4 b o d y",     // A delivery of what is no message.
        "35 9 5 2 2 2 2",                       // A second flag of a get.
        "36 5 2 2 2 2 1 1 4",                   // A fifth outcome.
        "32 2 2 2 1 0 0 1 5 11 0 0 0 0",        // A sixth rule.
        "32 2 2 2 1 0 0 1 5 9 0 0 0 0",         // A bit beside the rules.
        "67 9 2 2 2 11",                        // An eleventh answer.
        "11",
        "31",
        "48",
        "63",
        "72",
        "79",
        "89 1 2 0",                // A refusal that goes on.
        "89 1 4 0",                // A third flag of an answer.
        "92 4",                    // A third alarm.
        "94 128.128.128.128.16 1", // A virtual host of more than 32 bits.
        "95 1 2 1",                // A second flag of a trace.
        "96 2",                    // A second flag of a rest.
        "99",
        "255",
    ];
    for bytes in refused {
        let found = Forward::decode(&mut drawn(bytes).into());
        assert!(matches!(found, Err(DecodeError::Invalid { .. })), "{bytes}: {found:?}");
    }
}

/// A count that the bytes do not bear out takes no memory.
#[test]
fn a_count_of_targets_above_what_came_is_refused() {
    let many = drawn("32 2 2 2 1 0 0 255.255.255.255.15 5 0 5 0");
    assert_eq!(Forward::decode(&mut many.into()), Err(DecodeError::Truncated { at: 12 }), "at the count itself");
}

#[test]
fn nothing_that_ends_early_or_has_another_bit_is_taken_for_more_than_it_is() {
    for (_, bytes) in frames() {
        for end in 0..bytes.len() {
            assert!(Forward::decode(&mut Bytes::copy_from_slice(&bytes[..end])).is_err(), "{bytes:?} up to {end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_one_form(&other);
        }
    }
}

#[test]
#[should_panic(expected = "come to every node from the topology")]
fn rules_are_not_sent_to_another_node() {
    encoded(&Forward::Command(Command::Configure { queue: QUEUE, rules: Arc::new(Rules::default()) }));
}

#[test]
#[should_panic(expected = "come to every node from the topology")]
fn a_delete_is_not_sent_to_another_node() {
    encoded(&Forward::Command(Command::Delete { queue: QUEUE }));
}

#[test]
#[should_panic(expected = "for the node of the leader alone")]
fn an_effect_without_a_channel_is_not_sent_to_another_node() {
    encoded(&Forward::Effect(Effect::Unused { queue: QUEUE }));
}

/// Small numbers and those at the ends.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, any::<u64>(), Just(u64::MAX)]
}

/// The number of a message or a publish, or how many of them.
fn seq() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, 0..1_u64 << 62, Just((1_u64 << 62) - 1)]
}

fn number_u32() -> impl Strategy<Value = u32> {
    prop_oneof![0..300_u32, any::<u32>(), Just(u32::MAX)]
}

fn queue() -> impl Strategy<Value = QueueId> {
    number().prop_map(QueueId)
}

fn request() -> impl Strategy<Value = RequestId> {
    number().prop_map(RequestId)
}

fn channel() -> impl Strategy<Value = ChannelKey> {
    prop_oneof![
        any::<u128>().prop_map(ChannelKey),
        (number_u32(), number_u32(), number())
            .prop_map(|(node, start, number)| ChannelKey::of(NodeLife { node, start }, number)),
    ]
}

fn consumer() -> impl Strategy<Value = ConsumerKey> {
    (channel(), number_u32()).prop_map(|(channel, number)| ConsumerKey { channel, number })
}

/// Short ones, and those that are shared when they are written.
fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from),
        (any::<u8>(), 500..600_usize).prop_map(|(byte, length)| Bytes::from(vec![byte; length])),
    ]
}

fn short() -> impl Strategy<Value = Bytes> {
    (any::<u8>(), 0..=255_usize).prop_map(|(byte, length)| Bytes::from(vec![byte; length]))
}

fn target() -> impl Strategy<Value = Target> {
    let durability = prop_oneof![
        (0..Level::ALL.len()).prop_map(|at| Durability::Level(Level::ALL[at])),
        number().prop_map(|value| Durability::Selective { value }),
    ];
    let selective = (number(), number()).prop_map(|(cap, interval_ms)| Selective { cap, interval_ms });
    (queue(), durability, prop::option::of(selective)).prop_map(|(queue, durability, selective)| Target {
        queue,
        durability,
        selective,
    })
}

fn properties() -> impl Strategy<Value = Bytes> {
    // None, and a priority.
    prop::sample::select(vec![Bytes::from_static(&[0, 0]), Bytes::from_static(&[8, 0, 7])])
}

fn any_publish() -> impl Strategy<Value = Command> {
    let once = |targets: &Vec<Target>| {
        let queues: std::collections::BTreeSet<QueueId> = targets.iter().map(|target| target.queue).collect();
        queues.len() == targets.len()
    };
    let targets = prop::collection::vec(target(), 1..5).prop_filter("each queue once", once);
    let message = (short(), short(), properties(), bytes());
    (channel(), seq(), number_u32(), targets, number(), message).prop_map(
        |(channel, publish_seq, term, targets, delay_ms, message)| {
            let (exchange, routing_key, properties, body) = message;
            let message = Message { exchange, routing_key, properties, body };
            Command::Publish(Publish {
                channel,
                publish_seq,
                term,
                targets: targets.into(),
                delay_ms,
                message,
                more: None,
            })
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    let attached = (consumer(), number_u32(), any::<[bool; 3]>(), any::<i32>()).prop_map(
        |(key, prefetch, [no_ack, exclusive, granted_only], priority)| Consumer {
            key,
            prefetch,
            no_ack,
            exclusive,
            priority,
            granted_only,
        },
    );
    let outcome =
        prop::sample::select(vec![Disposition::Ack, Disposition::Nack, Disposition::Reject, Disposition::Discard]);
    prop_oneof![
        any_publish(),
        (queue(), attached, any::<bool>(), request()).prop_map(|(queue, consumer, again, request)| Command::Consume {
            queue,
            consumer,
            again,
            request
        }),
        (queue(), consumer(), request()).prop_map(|(queue, consumer, request)| Command::Cancel {
            queue,
            consumer,
            request
        }),
        (queue(), channel(), any::<bool>(), request()).prop_map(|(queue, channel, no_ack, request)| Command::Get {
            queue,
            channel,
            no_ack,
            request
        }),
        (queue(), consumer(), seq(), prop_oneof![4 => seq(), 1 => Just(EVERYTHING)], outcome).prop_map(
            |(queue, holder, first, count, outcome)| Command::Settle { queue, holder, first, count, outcome }
        ),
        channel().prop_map(|channel| Command::Detach { channel }),
        (queue(), channel(), request()).prop_map(|(queue, channel, request)| Command::Purge {
            queue,
            channel,
            request
        }),
        (queue(), channel(), request()).prop_map(|(queue, channel, request)| Command::Stat { queue, channel, request }),
        (queue(), any::<[bool; 2]>(), channel(), request()).prop_map(
            |(queue, [if_unused, if_empty], channel, request)| Command::Close {
                queue,
                if_unused,
                if_empty,
                channel,
                request,
            }
        ),
        queue().prop_map(|queue| Command::Reopen { queue }),
        (queue(), seq(), any::<bool>()).prop_map(|(queue, seq, is_safe)| Command::DeadLetterAnswered {
            queue,
            seq,
            is_safe
        }),
        (queue(), consumer(), any::<bool>()).prop_map(|(queue, consumer, stalled)| Command::Stall {
            queue,
            consumer,
            stalled
        }),
        (queue(), consumer(), number_u32()).prop_map(|(queue, consumer, count)| Command::Grant {
            queue,
            consumer,
            count
        }),
        (channel(), request()).prop_map(|(channel, request)| Command::Sync { channel, request }),
        (channel(), request()).prop_map(|(channel, request)| Command::Mark { channel, request }),
        (queue(), consumer(), seq(), seq()).prop_map(|(queue, consumer, first, count)| Command::Hold {
            queue,
            consumer,
            first,
            count
        }),
    ]
}

fn any_delivery() -> impl Strategy<Value = Delivery> {
    (consumer(), queue(), (seq(), number()), any::<[bool; 2]>(), (number_u32(), number_u32()), bytes()).prop_map(
        |(consumer, queue, (seq, term), [needs_ack, redelivered], (acquired, delivery), body)| {
            let message = stored(&message(body));
            let counts = Counts { acquired, delivery };
            Delivery { consumer, queue, seq, needs_ack, redelivered, counts, term, message }
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let plain = vec![
        Reply::Done,
        Reply::Consuming,
        Reply::ConsumeRefused,
        Reply::Empty,
        Reply::NotLeader,
        Reply::Gone,
        Reply::Unavailable,
    ];
    prop_oneof![
        prop::sample::select(plain),
        (any_delivery(), number()).prop_map(|(delivery, ready)| Reply::Got { delivery, ready }),
        number().prop_map(Reply::Counted),
        (number(), number(), number()).prop_map(|(ready, unacked, consumers)| Reply::Stat {
            ready,
            unacked,
            consumers
        }),
        any::<bool>().prop_map(|in_use| Reply::DeleteRefused { in_use }),
    ]
}

fn effect() -> impl Strategy<Value = Effect> {
    prop_oneof![
        (channel(), seq(), seq()).prop_map(|(channel, first, count)| Effect::Confirm { channel, first, count }),
        (channel(), seq(), seq()).prop_map(|(channel, first, count)| Effect::Refuse { channel, first, count }),
        (channel(), seq(), seq(), number_u32()).prop_map(|(channel, first, count, term)| Effect::Returned {
            channel,
            first,
            count,
            term
        }),
        any_delivery().prop_map(Effect::Deliver),
        (channel(), request(), reply()).prop_map(|(channel, request, reply)| Effect::Reply { channel, request, reply }),
        (consumer(), queue()).prop_map(|(consumer, queue)| Effect::Cancelled { consumer, queue }),
        (consumer(), queue(), number()).prop_map(|(consumer, queue, ready)| Effect::GrantWanted {
            consumer,
            queue,
            ready
        }),
        (consumer(), number_u32()).prop_map(|(consumer, count)| Effect::GrantReturned { consumer, count }),
    ]
}

fn news() -> impl Strategy<Value = News> {
    let vhost = || number_u32().prop_map(VhostId);
    prop_oneof![
        any::<[bool; 2]>().prop_map(|[disk, memory]| News::Alarms { disk, memory }),
        (bytes(), number(), number()).prop_map(|(name, connections, channels)| News::User {
            name,
            connections,
            channels
        }),
        (vhost(), number()).prop_map(|(vhost, connections)| News::Vhost { vhost, connections }),
        (vhost(), any::<bool>(), number()).prop_map(|(vhost, on, stamp)| News::Traced { vhost, on, stamp }),
        any::<bool>().prop_map(|on| News::Rests { on }),
    ]
}

fn forward() -> impl Strategy<Value = Forward> {
    prop_oneof![
        8 => command().prop_map(Forward::Command),
        8 => effect().prop_map(Forward::Effect),
        1 => consumer().prop_map(|consumer| Forward::Starved { consumer }),
        1 => (channel(), number()).prop_map(|(channel, bytes)| Forward::Drained { channel, bytes }),
        1 => (number(), number(), bytes())
            .prop_map(|(token, term, change)| Forward::Propose { token, term: Term(term), change }),
        1 => number().prop_map(|token| Forward::NotProposed { token }),
        1 => number().prop_map(|number| Forward::Ping { number }),
        1 => number().prop_map(|index| Forward::Applied { index: LogIndex(index) }),
        1 => (number(), any::<bool>()).prop_map(|(term, leads)| Forward::Leads { term, leads }),
        1 => number().prop_map(|number| Forward::AskLease { number }),
        1 => (number(), number()).prop_map(|(number, end)| Forward::Lease { number, end: LogIndex(end) }),
        1 => number().prop_map(|number| Forward::Pong { number }),
        1 => (number(), bytes()).prop_map(|(number, question)| Forward::Ask { number, question }),
        1 => (number(), bytes(), any::<[bool; 2]>()).prop_map(|(number, part, [last, is_refused])| {
            Forward::Answer { number, part, is_last: last || is_refused, is_refused }
        }),
        2 => news().prop_map(Forward::News),
        1 => (queue(), any::<[bool; 2]>(), channel(), request()).prop_map(
            |(queue, [if_unused, if_empty], channel, request)| Forward::Delete {
                queue,
                if_unused,
                if_empty,
                channel,
                request,
            },
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_node_says_is_what_the_other_hears(said in prop::collection::vec((any::<u32>(), forward()), 0..8)) {
        let said: Vec<_> = said.into_iter().map(|(partition, frame)| (PartitionId(partition), frame)).collect();
        let pieces = packet::encode(said.iter().map(|(partition, frame)| (*partition, frame)));
        let head = Head::parse(pieces[0][..].try_into().unwrap()).unwrap();
        let heard = packet::decode(&head, pieces[1..].concat().into());
        prop_assert_eq!(heard, Ok(said.into_iter().map(|(partition, frame)| (partition, Frame::from(frame))).collect()));
    }

    #[test]
    fn a_frame_that_ends_early_or_has_another_byte_is_refused_or_means_what_it_says(
        frame in forward(), at in any::<prop::sample::Index>(), flip in 1..=255_u8,
    ) {
        let mut bytes = encoded(&frame).to_vec();
        let at = at.index(bytes.len());
        prop_assert!(Forward::decode(&mut Bytes::copy_from_slice(&bytes[..at])).is_err());
        bytes[at] ^= flip;
        assert_one_form(&bytes);
    }

    /// Whatever comes is refused, or is the one form of what it means.
    #[test]
    fn garbage_is_refused_or_means_what_it_says(kind in 30..90_u8, rest in prop::collection::vec(prop_oneof![any::<u8>(), 0..8_u8], 0..100)) {
        assert_one_form(&[&[kind][..], &rest].concat());
    }
}
