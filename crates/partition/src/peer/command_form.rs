//! How a command is written between nodes.
//!
//! ```text
//! 32 publish        channel, publish number, term, delay, count, targets, message
//! 33 consume        request, queue, consumer, prefetch, priority, flags { no ack, exclusive, granted only }
//! 34 cancel         request, queue, consumer
//! 35 get            request, queue, channel, flags { no ack }
//! 36 settle         queue, consumer, first, count, outcome u8
//! 37 detach         channel
//! 38 purge          request, queue, channel
//! 39 stat           request, queue, channel
//! 40 close          request, queue, channel, flags { if unused, if empty }
//! 41 reopen         queue
//! 42 answered       queue, sequence number, flags { is safe }
//! 43 stall          queue, consumer, flags { stalled }
//! 44 grant          queue, consumer, count
//! 45 sync           request, channel
//! 46 hold           queue, consumer, first, count
//! 47 mark           request, channel
//!
//! target     queue, rule u8, value if the rule is selective, cap and interval if it has 4 in it
//! message    exchange length u8, routing key length u8, properties length, body length, then these four
//! ```
//!
//! `Configure` and `Delete` have no form: every node has them from the topology. Nor has `Part`, which a
//! node tells itself. A priority is
//! written with its sign as the lowest bit, so that small ones are short.
//!
//! Invariant: a command that is read is one that a leader takes without a panic: it has a target, each queue once,
//! and its message is within the limits and has properties that can be read.

use super::key_form::{
    channel, consumer, flags, number_u32, put_channel, put_consumer, put_flags, queue, seq, settled,
};
use super::{body, put};
use crate::command::{Command, Disposition, Durability, Level, Message, Publish, RequestId, Selective, Target};
use crate::message::{MESSAGE_BYTES_MAX, stored_bytes};
use broker::queue::Consumer;
use consensus::{Cursor, DecodeError, Segments};
use smallvec::SmallVec;

/// So many are compared with each other.
const FEW_TARGETS: usize = 8;
/// Least bytes of a target: its queue and its rule.
const TARGET_BYTES_MIN: usize = 2;

const RULE_WRITTEN: u8 = 0;
const RULE_SYNCED: u8 = 1;
const RULE_SELECTIVE: u8 = 2;
/// This one and the next: only from nodes whose topology works by a version that all know.
const RULE_LEADER_WRITTEN: u8 = 3;
/// With any of the others: the target brings the rule of its queue.
const RULE_BROUGHT: u8 = 4;
const RULE_LEADER_SYNCED: u8 = 8;

const FROM_TOPOLOGY: &str = "rules and deletes come to every node from the topology, never from another node";
const OF_ITS_NODE: &str = "a node finds out itself that a link broke";
const OF_ITS_SHARD: &str = "replies wait on the shard of who asked";

/// The byte that a command begins with.
///
/// # Panics
/// If it comes from the topology, or a node tells it itself.
pub(super) fn kind(command: &Command) -> u8 {
    match command {
        Command::Publish(_) => 32,
        Command::Consume { .. } => 33,
        Command::Cancel { .. } => 34,
        Command::Get { .. } => 35,
        Command::Settle { .. } => 36,
        Command::Detach { .. } => 37,
        Command::Purge { .. } => 38,
        Command::Stat { .. } => 39,
        Command::Close { .. } => 40,
        Command::Reopen { .. } => 41,
        Command::DeadLetterAnswered { .. } => 42,
        Command::Stall { .. } => 43,
        Command::Grant { .. } => 44,
        Command::Sync { .. } => 45,
        Command::Hold { .. } => 46,
        Command::Mark { .. } => 47,
        Command::Configure { .. } | Command::Delete { .. } => panic!("{FROM_TOPOLOGY}"),
        Command::Part { .. } => panic!("{OF_ITS_NODE}"),
        Command::LimitReplies { .. } => panic!("{OF_ITS_SHARD}"),
    }
}

/// Writes what is behind the kind.
pub(super) fn encode(command: &Command, out: &mut Segments) {
    match command {
        Command::Publish(publish) => put_publish(out, publish),
        Command::Consume { queue, consumer, again, request } => {
            put(out, &[request.0, queue.0]);
            put_consumer(out, consumer.key);
            put(out, &[consumer.prefetch.into(), zigzag(consumer.priority).into()]);
            put_flags(out, &[consumer.no_ack, consumer.exclusive, consumer.granted_only, *again]);
        }
        Command::Cancel { queue, consumer, request } => {
            put(out, &[request.0, queue.0]);
            put_consumer(out, *consumer);
        }
        Command::Get { queue, channel, no_ack, request } => {
            put(out, &[request.0, queue.0]);
            put_channel(out, *channel);
            put_flags(out, &[*no_ack]);
        }
        Command::Settle { queue, holder, first, count, outcome } => {
            out.put_varint(queue.0);
            put_consumer(out, *holder);
            put(out, &[*first, *count]);
            out.put_u8(disposition_byte(*outcome));
        }
        Command::Detach { channel } => put_channel(out, *channel),
        Command::Purge { queue, channel, request } | Command::Stat { queue, channel, request } => {
            put(out, &[request.0, queue.0]);
            put_channel(out, *channel);
        }
        Command::Close { queue, if_unused, if_empty, channel, request } => {
            put(out, &[request.0, queue.0]);
            put_channel(out, *channel);
            put_flags(out, &[*if_unused, *if_empty]);
        }
        Command::Reopen { queue } => out.put_varint(queue.0),
        Command::DeadLetterAnswered { queue, seq, is_safe } => {
            put(out, &[queue.0, *seq]);
            put_flags(out, &[*is_safe]);
        }
        Command::Stall { queue, consumer, stalled } => {
            out.put_varint(queue.0);
            put_consumer(out, *consumer);
            put_flags(out, &[*stalled]);
        }
        Command::Grant { queue, consumer, count } => {
            out.put_varint(queue.0);
            put_consumer(out, *consumer);
            out.put_varint(u64::from(*count));
        }
        Command::Sync { channel, request } | Command::Mark { channel, request } => {
            out.put_varint(request.0);
            put_channel(out, *channel);
        }
        Command::Hold { queue, consumer, first, count } => {
            out.put_varint(queue.0);
            put_consumer(out, *consumer);
            put(out, &[*first, *count]);
        }
        Command::Configure { .. } | Command::Delete { .. } => panic!("{FROM_TOPOLOGY}"),
        Command::Part { .. } => panic!("{OF_ITS_NODE}"),
        Command::LimitReplies { .. } => panic!("{OF_ITS_SHARD}"),
    }
}

/// Reads what is behind a kind; `None` is the kind of no command.
pub(super) fn read(kind: u8, cursor: &mut Cursor<'_>) -> Result<Option<Command>, DecodeError> {
    Ok(Some(match kind {
        32 => Command::Publish(publish(cursor)?),
        33 => {
            let (request, queue, key) = (request(cursor)?, queue(cursor)?, consumer(cursor)?);
            let (prefetch, priority) = (number_u32(cursor)?, unzigzag(number_u32(cursor)?));
            let [no_ack, exclusive, granted_only, again] = flags(cursor)?;
            let consumer = Consumer { key, prefetch, no_ack, exclusive, priority, granted_only };
            Command::Consume { queue, consumer, again, request }
        }
        34 => Command::Cancel { request: request(cursor)?, queue: queue(cursor)?, consumer: consumer(cursor)? },
        35 => {
            let (request, queue, channel) = (request(cursor)?, queue(cursor)?, channel(cursor)?);
            let [no_ack] = flags(cursor)?;
            Command::Get { queue, channel, no_ack, request }
        }
        36 => {
            let (queue, holder) = (queue(cursor)?, consumer(cursor)?);
            let (first, count) = (seq(cursor)?, settled(cursor)?);
            Command::Settle { queue, holder, first, count, outcome: disposition(cursor)? }
        }
        37 => Command::Detach { channel: channel(cursor)? },
        38 => Command::Purge { request: request(cursor)?, queue: queue(cursor)?, channel: channel(cursor)? },
        39 => Command::Stat { request: request(cursor)?, queue: queue(cursor)?, channel: channel(cursor)? },
        40 => {
            let (request, queue, channel) = (request(cursor)?, queue(cursor)?, channel(cursor)?);
            let [if_unused, if_empty] = flags(cursor)?;
            Command::Close { queue, if_unused, if_empty, channel, request }
        }
        41 => Command::Reopen { queue: queue(cursor)? },
        42 => {
            let (queue, seq) = (queue(cursor)?, seq(cursor)?);
            let [is_safe] = flags(cursor)?;
            Command::DeadLetterAnswered { queue, seq, is_safe }
        }
        43 => {
            let (queue, consumer) = (queue(cursor)?, consumer(cursor)?);
            let [stalled] = flags(cursor)?;
            Command::Stall { queue, consumer, stalled }
        }
        44 => Command::Grant { queue: queue(cursor)?, consumer: consumer(cursor)?, count: number_u32(cursor)? },
        45 => Command::Sync { request: request(cursor)?, channel: channel(cursor)? },
        46 => {
            let (queue, consumer) = (queue(cursor)?, consumer(cursor)?);
            Command::Hold { queue, consumer, first: seq(cursor)?, count: seq(cursor)? }
        }
        47 => Command::Mark { request: request(cursor)?, channel: channel(cursor)? },
        _ => return Ok(None),
    }))
}

/// The request that comes back in an answer.
pub(super) fn request(cursor: &mut Cursor<'_>) -> Result<RequestId, DecodeError> {
    cursor.varint().map(RequestId)
}

fn put_publish(out: &mut Segments, publish: &Publish) {
    assert!(!publish.targets.is_empty(), "a publish goes to a queue");
    assert!(publish.more.is_none(), "each message goes to another node by itself");
    put_channel(out, publish.channel);
    put(out, &[publish.publish_seq, publish.term.into(), publish.delay_ms, publish.targets.len() as u64]);
    publish.targets.iter().for_each(|target| put_target(out, target));
    let Message { exchange, routing_key, properties, body } = &publish.message;
    for short in [exchange, routing_key] {
        out.put_u8(u8::try_from(short.len()).expect("short strings are at most 255 bytes"));
    }
    put(out, &[properties.len() as u64, body.len() as u64]);
    [exchange, routing_key, properties, body].into_iter().for_each(|part| out.put_bytes(part));
}

fn publish(cursor: &mut Cursor<'_>) -> Result<Publish, DecodeError> {
    let channel = channel(cursor)?;
    let (publish_seq, term, delay_ms) = (seq(cursor)?, number_u32(cursor)?, cursor.varint()?);
    let count = cursor.count(TARGET_BYTES_MIN)?;
    if count == 0 {
        return Err(cursor.invalid("a publish to no queue"));
    }
    let targets: SmallVec<_> = (0..count).map(|_| target(cursor)).collect::<Result<_, _>>()?;
    if is_named_twice(&targets) {
        return Err(cursor.invalid("a queue that is named twice"));
    }
    Ok(Publish { channel, publish_seq, term, targets, delay_ms, message: message(cursor)?, more: None })
}

/// Whether a queue is among the targets twice. Most publishes have one or a few.
fn is_named_twice(targets: &[Target]) -> bool {
    if targets.len() <= FEW_TARGETS {
        return (1..targets.len()).any(|at| targets[..at].iter().any(|before| before.queue == targets[at].queue));
    }
    let mut queues: Vec<_> = targets.iter().map(|target| target.queue).collect();
    queues.sort_unstable();
    queues.windows(2).any(|two| two[0] == two[1])
}

fn message(cursor: &mut Cursor<'_>) -> Result<Message, DecodeError> {
    let (exchange, routing_key) = (u64::from(cursor.u8()?), u64::from(cursor.u8()?));
    let (properties, length) = (cursor.varint()?, cursor.varint()?);
    let message = Message {
        exchange: body(cursor, exchange)?,
        routing_key: body(cursor, routing_key)?,
        properties: body(cursor, properties)?,
        body: body(cursor, length)?,
    };
    if stored_bytes(&message) > MESSAGE_BYTES_MAX {
        return Err(cursor.invalid("a message above the largest"));
    }
    if !broker::properties::is_sound(&message.properties) {
        return Err(cursor.invalid("the properties of a message"));
    }
    Ok(message)
}

fn put_target(out: &mut Segments, target: &Target) {
    let brought = if target.selective.is_some() { RULE_BROUGHT } else { 0 };
    out.put_varint(target.queue.0);
    match target.durability {
        Durability::Level(Level::LeaderWritten) => out.put_u8(RULE_LEADER_WRITTEN | brought),
        Durability::Level(Level::LeaderSynced) => out.put_u8(RULE_LEADER_SYNCED | brought),
        Durability::Level(Level::Written) => out.put_u8(RULE_WRITTEN | brought),
        Durability::Level(Level::Synced) => out.put_u8(RULE_SYNCED | brought),
        Durability::Selective { value } => {
            out.put_u8(RULE_SELECTIVE | brought);
            out.put_varint(value);
        }
    }
    if let Some(Selective { cap, interval_ms }) = target.selective {
        put(out, &[cap, interval_ms]);
    }
}

fn target(cursor: &mut Cursor<'_>) -> Result<Target, DecodeError> {
    let (queue, rule) = (queue(cursor)?, cursor.u8()?);
    let durability = match rule & !RULE_BROUGHT {
        RULE_LEADER_WRITTEN => Durability::Level(Level::LeaderWritten),
        RULE_LEADER_SYNCED => Durability::Level(Level::LeaderSynced),
        RULE_WRITTEN => Durability::Level(Level::Written),
        RULE_SYNCED => Durability::Level(Level::Synced),
        RULE_SELECTIVE => Durability::Selective { value: cursor.varint()? },
        _ => return Err(cursor.invalid("a rule of durability")),
    };
    let selective = match rule & RULE_BROUGHT {
        0 => None,
        _ => Some(Selective { cap: cursor.varint()?, interval_ms: cursor.varint()? }),
    };
    Ok(Target { queue, durability, selective })
}

fn disposition_byte(disposition: Disposition) -> u8 {
    match disposition {
        Disposition::Ack => 0,
        Disposition::Nack => 1,
        Disposition::Reject => 2,
        Disposition::Discard => 3,
    }
}

fn disposition(cursor: &mut Cursor<'_>) -> Result<Disposition, DecodeError> {
    Ok(match cursor.u8()? {
        0 => Disposition::Ack,
        1 => Disposition::Nack,
        2 => Disposition::Reject,
        3 => Disposition::Discard,
        _ => return Err(cursor.invalid("what becomes of a message")),
    })
}

fn zigzag(number: i32) -> u32 {
    (number << 1 ^ number >> 31) as u32
}

fn unzigzag(number: u32) -> i32 {
    (number >> 1) as i32 ^ -((number & 1) as i32)
}
