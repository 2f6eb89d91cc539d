//! What publishers publish: which way a message takes, and what it asks for.

use super::{DELAY_FIELD, HEADERS, KEY_FIELD, KEYS, Keeping, Now, QueueSettings, Sender};
use crate::checks::{Asked, Checks, Published, body_of};
use crate::random::Random;
use bytes::Bytes;
use partition::command::{Durability, Level, Target};
use partition::{Command, Message, Publish};

/// What a wrong shell makes of a message with a key.
pub fn mix_up_key(publish: &mut Publish) {
    let properties = &publish.message.properties;
    let has_headers = u16::from_be_bytes([properties[0], properties[1]]) & HEADERS != 0;
    if has_headers && properties[2 + 4..].starts_with(KEY_FIELD) {
        let mut changed = properties.to_vec();
        changed[2 + 4 + KEY_FIELD.len()] = 0;
        publish.message.properties = changed.into();
    }
}

/// The properties of a message: its delivery mode, the delay that it asks its exchange for, and
/// with `varied` at times a key, a priority and a time limit.
pub(super) fn properties(varied: bool, asked_ms: Option<u32>, random: &mut Random) -> Bytes {
    const DELIVERY_MODE: u16 = 1 << 12;
    const PRIORITY: u16 = 1 << 11;
    const EXPIRATION: u16 = 1 << 8;
    let (mut flags, mut list) = (DELIVERY_MODE, Vec::new());
    let mut fields = Vec::new();
    if varied && random.chance(25) {
        fields.extend_from_slice(KEY_FIELD);
        fields.push(random.below(KEYS) as u8);
    }
    if let Some(ms) = asked_ms {
        fields.extend_from_slice(DELAY_FIELD);
        fields.extend_from_slice(&ms.to_be_bytes());
    }
    if !fields.is_empty() {
        flags |= HEADERS;
        list.extend_from_slice(&(fields.len() as u32).to_be_bytes());
        list.append(&mut fields);
    }
    list.push(2);
    if !varied {
        return [&flags.to_be_bytes()[..], &list].concat().into();
    }
    if random.chance(50) {
        flags |= PRIORITY;
        list.push(random.below(8) as u8);
    }
    if random.chance(10) {
        flags |= EXPIRATION;
        let text = random.below(2_000).to_string();
        list.push(text.len() as u8);
        list.extend_from_slice(text.as_bytes());
    }
    [&flags.to_be_bytes()[..], &list].concat().into()
}

/// Of a hundred messages so many go through the exchange that lets them wait, where there is one.
pub(super) const DELAYED_PERCENT: u64 = 30;

/// Where a message goes, and how.
pub(super) struct Way {
    exchange: Bytes,
    routing_key: Bytes,
    /// The delay in its header.
    asked_ms: Option<u32>,
    pub(super) chosen: Vec<QueueSettings>,
}

impl Way {
    /// To one queue, or to two at times.
    pub(super) fn straight(queues: &[QueueSettings], random: &mut Random) -> Way {
        let mut chosen = vec![*random.pick(queues)];
        if random.chance(20) {
            let second = *random.pick(queues);
            if second.id != chosen[0].id {
                chosen.push(second);
            }
        }
        let (exchange, routing_key) = (Bytes::from_static(b"amq.direct"), Bytes::from_static(b"q"));
        Way { exchange, routing_key, asked_ms: None, chosen }
    }

    /// Through the `x-delayed-message` exchange of the partition, to the queues that it leads to.
    pub(super) fn delayed(group: usize, n: &mut Now<'_>, random: &mut Random) -> Way {
        let key = random.pick(&n.registry.keys(group)).clone();
        let ids = n.registry.route(group, &key);
        n.checks.routed(&key, &ids, &n.registry.leads_to(group, &key));
        let asked_ms = Some(if random.chance(80) { random.between(1, 1_500) as u32 } else { 0 });
        let chosen = ids.into_iter().map(|id| n.registry.settings(id)).collect();
        Way { exchange: Bytes::from_static(b"later"), routing_key: Bytes::copy_from_slice(&key), asked_ms, chosen }
    }
}

/// A publish to the queues that were chosen.
pub(super) fn compose(
    Sender { group, channel, habits }: Sender,
    seq: u64,
    number: u64,
    way: Way,
    bytes: usize,
    random: &mut Random,
    checks: &mut Checks,
) -> (Command, u64) {
    let Way { exchange, routing_key, asked_ms, chosen } = way;
    let value = random.between(1, 40);
    let (mut level, mut is_selective) = (Level::LeaderWritten, false);
    let targets = chosen.iter().map(|queue| {
        let (durability, selective) = match queue.keeping {
            Keeping::LeaderWritten => (Durability::Level(Level::LeaderWritten), None),
            Keeping::LeaderSynced => (Durability::Level(Level::LeaderSynced), None),
            Keeping::Written => (Durability::Level(Level::Written), None),
            Keeping::Synced => (Durability::Level(Level::Synced), None),
            Keeping::Selective(rule) => (Durability::Selective { value }, Some(rule)),
        };
        level = level.with(match durability {
            Durability::Level(level) => level,
            Durability::Selective { .. } => Level::Written,
        });
        is_selective |= selective.is_some();
        Target { queue: queue.id, durability, selective }
    });
    let targets = targets.collect();
    let asked = match level {
        _ if seq == 0 => Asked::Nothing,
        Level::LeaderWritten => Asked::LeaderWritten,
        Level::LeaderSynced => Asked::LeaderSynced,
        Level::Written if is_selective => Asked::Selective { value },
        Level::Written => Asked::Written,
        Level::Synced => Asked::Synced,
    };
    let id = checks.next_id();
    let body = body_of(id, bytes);
    let mut varied = (Bytes::from_static(&[0x10, 0, 2]), 0);
    if habits.varied {
        let delay_ms = if asked_ms.is_none() && random.chance(10) { random.between(1, 1_500) } else { 0 };
        varied = (properties(true, asked_ms, random), delay_ms);
    } else if asked_ms.is_some() {
        varied.0 = properties(false, asked_ms, random);
    }
    let (properties, mut delay_ms) = varied;
    if asked_ms.is_some() {
        // As the server reads it.
        delay_ms = broker::properties::delay_ms(&properties);
    }
    let published = Published {
        group,
        channel,
        seq,
        number,
        targets: chosen.iter().map(|q| q.id).collect(),
        delay_ms,
        key: broker::properties::dedup_key(&properties),
        since: 0,
        asked,
        body: body.clone(),
        confirmed: false,
        committed: false,
        forgotten_by: 0,
        majority: None,
        confirmed_by: None,
        is_superseded: false,
        repeats: false,
        originals: Vec::new(),
        waited_ms: asked_ms.filter(|ms| *ms > 0),
        is_nowhere: false,
    };
    assert_eq!(checks.publish(published), id, "a message gets the number that stands in it");
    let message = Message { exchange, routing_key, properties, body };
    (Command::Publish(Publish { channel, publish_seq: seq, term: 0, targets, delay_ms, message, more: None }), id)
}
