//! Who published: a channel in one life of one node. What a member remembers of it meets no other
//! life and no other node.
#![allow(clippy::unwrap_used)]

mod member;

use broker::{ChannelKey, NodeLife, QueueId};
use bytes::Bytes;
use member::{QUEUE, Rig};
use partition::checkpoint::{decode_queues, encode_queues};
use partition::command::{Durability, Level, Message, Target};
use partition::entry::{Commands, EntryBuilder, LogCommand};
use partition::machine::{Queues, Unobserved};
use partition::message::Stamp;
use partition::{Command, Publish};
use smallvec::smallvec;
use storage::crc32c;
use storage::{FileNo, Location};

const LIFE: NodeLife = NodeLife { node: 3, start: 7 };
const NUMBER: u64 = 5 << 58 | 41;

fn message() -> Message {
    Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from_static(b"body"),
    }
}

fn entry_of(publisher: ChannelKey) -> Bytes {
    let mut builder = EntryBuilder::default();
    let targets = [QueueId(1), QueueId(2)];
    builder.publish(publisher, 9, &targets, &[], &[], Level::Synced, &message(), Stamp::None);
    builder.publish(publisher, 10, &targets, &[], &[], Level::Synced, &message(), Stamp::None);
    builder.closed(publisher);
    builder.finish(1000).0
}

fn said(entry: &[u8]) -> Vec<String> {
    let mut commands = Commands::parse(entry).unwrap();
    let mut said = Vec::new();
    while let Some(command) = commands.next().unwrap() {
        said.push(match command {
            LogCommand::Publish(batch) => {
                assert!(batch.is_intact());
                let queues: Vec<u64> = batch.targets().map(|queue| queue.0).collect();
                let bodies: Vec<_> = batch.iter().map(|message| message.body().len()).collect();
                let (life, number) = batch.publisher().words();
                format!("{life:x} {number:x} from {} to {queues:?}: {bodies:?}", batch.first_publish_seq())
            }
            LogCommand::Closed { publisher } => format!("{:?} closed", publisher.words()),
            other => panic!("{other:?} was not said"),
        });
    }
    said
}

#[test]
fn an_entry_says_which_life_of_which_node_a_publisher_is_of() {
    let entry = entry_of(ChannelKey::of(LIFE, NUMBER));
    assert_eq!(
        said(&entry),
        [format!("300000007 {NUMBER:x} from 9 to [1, 2]: [4, 4]"), format!("({}, {NUMBER}) closed", 3_u64 << 32 | 7),]
    );
    for cut in 0..entry.len() {
        let read = Commands::parse(&entry[..cut]).and_then(|mut commands| {
            while commands.next()?.is_some() {}
            Ok(())
        });
        assert!(read.is_err(), "an entry that is cut at {cut}");
    }
}

#[test]
fn an_entry_of_version_1_is_read_and_one_of_a_later_version_is_not() {
    // As a build wrote it that knew no lives: a batch of one message for queue 7, and the end of
    // its publisher.
    let message = b"\x02\0\0\0\x02\0\0\0\0\0\0\0\0\x01\0\0q\0\0hi";
    let batch = [
        &[1, 0, 1, 0, 1, 0, 0, 0][..],
        &(message.len() as u32).to_le_bytes(),
        &crc32c::crc32c(message).to_le_bytes(),
        &(2_u64 << 44 | 8).to_le_bytes(),
        &3_u64.to_le_bytes(),
        &7_u64.to_le_bytes(),
        message,
    ];
    let closed = [&[6, 0, 0, 0, 0, 0, 0, 0][..], &(2_u64 << 44 | 8).to_le_bytes()];
    let mut entry =
        [&[1, 1, 0, 0, 2, 0, 0, 0][..], &1000_u64.to_le_bytes(), &batch.concat(), &closed.concat()].concat();
    let number = 2_u64 << 44 | 8;
    assert_eq!(said(&entry), [format!("0 {number:x} from 3 to [7]: [2]"), format!("(0, {number}) closed")]);
    for version in [0, 3] {
        entry[0] = version;
        assert!(Commands::parse(&entry).is_err(), "version {version}");
    }
    entry[0] = 2;
    entry[17] |= 64;
    assert!(Commands::parse(&entry).unwrap().next().is_err(), "a flag that this build does not know");
}

#[test]
fn a_checkpoint_keeps_lives_and_one_of_a_build_without_them_is_read() {
    let mut queues = Queues::default();
    let at = Location { file: FileNo(1), offset: 4096, bytes: 100 };
    let keys =
        [ChannelKey::from_words(0, 44), ChannelKey::of(LIFE, 44), ChannelKey::of(NodeLife { start: 8, ..LIFE }, 44)];
    for (publisher, last) in keys.into_iter().zip(1..) {
        let mut builder = EntryBuilder::default();
        let targets = [QueueId(1)];
        builder.publish(publisher, last, &targets, &[], &[], Level::Synced, &message(), Stamp::None);
        queues.apply(&builder.finish(1000).0, at, &mut Unobserved).unwrap();
    }
    let mut payload = Vec::new();
    encode_queues(&queues, &mut payload);
    let back = decode_queues(&Bytes::copy_from_slice(&payload)).unwrap();
    assert_eq!(keys.map(|key| back.last_publish_seq(key)), [1, 2, 3]);
    // Such a build ended with the highest number of an extent.
    payload.truncate(payload.len() - 4 - 2 * 24);
    let old = decode_queues(&Bytes::from(payload)).unwrap();
    assert_eq!(keys.map(|key| old.last_publish_seq(key)), [1, 0, 0]);
}

#[test]
fn the_same_channel_number_of_another_life_or_node_publishes_nothing_twice_and_loses_nothing() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let publish = |rig: &mut Rig, channel: ChannelKey, publish_seq: u64| {
        let durability = Durability::Level(Level::Synced);
        let targets = smallvec![Target { queue: QUEUE, durability, selective: None }];
        rig.command(Command::Publish(Publish {
            channel,
            publish_seq,
            term: 0,
            targets,
            delay_ms: 0,
            message: message(),
            more: None,
        }));
        rig.run();
        assert_eq!(rig.confirmed(), [publish_seq]);
        rig.stat().0
    };
    let first = ChannelKey::of(LIFE, NUMBER);
    assert_eq!(publish(&mut rig, first, 5), 1);
    assert_eq!(publish(&mut rig, first, 5), 1, "the same publish again");
    let mut rig = rig.restarted();
    assert_eq!(publish(&mut rig, first, 5), 1, "also after a restart of the member");
    let next_start = ChannelKey::of(NodeLife { start: 8, ..LIFE }, NUMBER);
    assert_eq!(publish(&mut rig, next_start, 5), 2, "another life of the publisher's node");
    let other_node = ChannelKey::of(NodeLife { node: 4, ..LIFE }, NUMBER);
    assert_eq!(publish(&mut rig, other_node, 5), 3);
    assert_eq!(publish(&mut rig, ChannelKey::from_words(0, NUMBER), 5), 4, "a build that knew no lives");
}
