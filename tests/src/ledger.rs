//! The ledger of a crash test: what was published, confirmed, delivered and settled, and whether
//! the broker kept its word.
//!
//! Invariant: the ledger only knows what the clients saw with their own eyes; what the broker may
//! lawfully do in between is left open. The promises, per queue and publisher:
//! - *confirmed is present*: a confirmed message was settled by a consumer or is in the queue;
//! - *settled stays settled*: an ack has no reply, so a crash may lose it; but an ack followed, on
//!   the same channel, by a publish to the same queue that was confirmed is behind that confirm in
//!   the queue's log and never undone;
//! - *no gaps*: a message is there only if all earlier ones of its publisher are there or were
//!   delivered;
//! - *order*: what is left comes in the order of its publisher, and nothing comes twice;
//! - *flags*: what a consumer held before says `redelivered` when it comes again;
//! - *bytes*: a body is what its publisher made.

use std::collections::{BTreeMap, BTreeSet};

/// The shortest body: publisher, sequence number, and four bytes of the pattern that show damage to
/// either.
pub const BODY_BYTES_MIN: usize = 16;

/// A publisher's number within the test.
pub type Publisher = u32;

/// One message: its publisher and its number there, from 0.
pub type MessageId = (Publisher, u64);

/// What the clients of one queue saw.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    publishers: BTreeMap<Publisher, Published>,
    delivered: BTreeSet<MessageId>,
    acked: BTreeSet<MessageId>,
    settled: BTreeSet<MessageId>,
}

#[derive(Clone, Debug, Default)]
struct Published {
    /// Numbers below this were handed to the socket.
    limit: u64,
    confirmed: BTreeSet<u64>,
    refused: BTreeSet<u64>,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A confirmed message is gone.
    Lost(MessageId),
    /// A message came back whose ack a later confirm had made durable.
    Unsettled(MessageId),
    /// The second message is there, the first, which was published before it, never came.
    Gap(MessageId, MessageId),
    /// The second message was found behind the first although it was published before it.
    Disorder(MessageId, MessageId),
    /// A message is in the queue twice.
    Twice(MessageId),
    /// A message that a consumer held before came without `redelivered`.
    Unflagged(MessageId),
    /// A message that nobody published.
    Invented(MessageId),
    /// A body that is not what its publisher made.
    Corrupt(String),
}

/// A message found in the queue.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub id: MessageId,
    /// Its redelivered flag.
    pub redelivered: bool,
}

/// The body of a message: recognisable, and different at each place.
pub fn body(id: MessageId, body_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(body_bytes.max(BODY_BYTES_MIN));
    out.extend(id.0.to_be_bytes());
    out.extend(id.1.to_be_bytes());
    let mut state = id.1.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(id.0);
    while out.len() < body_bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.push((state >> 56) as u8);
    }
    out
}

/// Recognises a body made by `body`.
pub fn identify(bytes: &[u8]) -> Result<MessageId, Broken> {
    if bytes.len() < BODY_BYTES_MIN {
        return Err(Broken::Corrupt(format!("a body of {} bytes", bytes.len())));
    }
    let publisher = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
    let number = u64::from_be_bytes(bytes[4..12].try_into().expect("eight bytes"));
    let id = (publisher, number);
    if body(id, bytes.len()) == bytes { Ok(id) } else { Err(Broken::Corrupt(format!("the body of {id:?}"))) }
}

impl Ledger {
    /// The next message of `publisher` goes to the socket: its number.
    pub fn publish(&mut self, publisher: Publisher) -> u64 {
        let published = self.publishers.entry(publisher).or_default();
        published.limit += 1;
        published.limit - 1
    }

    /// The broker confirmed a message.
    pub fn confirm(&mut self, id: MessageId) {
        self.publishers.entry(id.0).or_default().confirmed.insert(id.1);
    }

    /// The broker refused a message by `basic.nack`: it may be there or not.
    pub fn refuse(&mut self, id: MessageId) {
        self.publishers.entry(id.0).or_default().refused.insert(id.1);
    }

    /// A consumer got a message while the load ran.
    pub fn deliver(&mut self, id: MessageId, redelivered: bool) -> Result<(), Broken> {
        if self.publishers.get(&id.0).is_none_or(|published| id.1 >= published.limit) {
            return Err(Broken::Invented(id));
        }
        if self.settled.contains(&id) {
            return Err(Broken::Unsettled(id));
        }
        if !self.delivered.insert(id) && !redelivered {
            return Err(Broken::Unflagged(id));
        }
        Ok(())
    }

    /// A consumer sent an ack.
    pub fn ack(&mut self, id: MessageId) {
        self.acked.insert(id);
    }

    /// A confirm proves that these acks are durable.
    pub fn settle(&mut self, ids: impl IntoIterator<Item = MessageId>) {
        self.settled.extend(ids);
    }

    /// Looks at everything a queue holds, in its order, after a restart. Returns every promise that
    /// is broken.
    ///
    /// What an ack left open is decided now: an acked message that is still there counts as never
    /// acked, one that is gone as settled; and a message that is there counts as confirmed from now
    /// on.
    pub fn audit(&mut self, found: &[Found]) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut present = BTreeSet::new();
        let mut last: BTreeMap<Publisher, u64> = BTreeMap::new();
        for Found { id, redelivered } in found {
            let known = self.publishers.get(&id.0).is_some_and(|published| id.1 < published.limit);
            if !known {
                broken.push(Broken::Invented(*id));
            }
            if !present.insert(*id) {
                broken.push(Broken::Twice(*id));
            }
            if self.settled.contains(id) {
                broken.push(Broken::Unsettled(*id));
            }
            if self.delivered.contains(id) && !redelivered {
                broken.push(Broken::Unflagged(*id));
            }
            if let Some(before) = last.insert(id.0, id.1)
                && before > id.1
            {
                broken.push(Broken::Disorder((id.0, before), *id));
            }
        }
        for (publisher, published) in &self.publishers {
            let there = |number: u64| {
                let id = (*publisher, number);
                present.contains(&id) || self.acked.contains(&id)
            };
            broken.extend(published.confirmed.iter().filter(|n| !there(**n)).map(|n| Broken::Lost((*publisher, *n))));
            // The last one that is known to have reached the queue, and every hole before it.
            let reached = (0..published.limit).rev().find(|n| there(*n));
            if let Some(reached) = reached {
                let lawful = |n: &u64| published.confirmed.contains(n) || published.refused.contains(n);
                let holes = (0..reached).filter(|n| !there(*n) && !lawful(n));
                broken.extend(holes.map(|n| Broken::Gap((*publisher, n), (*publisher, reached))));
            }
        }
        self.acked.retain(|id| !present.contains(id));
        self.settled.extend(self.acked.iter().copied());
        for id in &present {
            self.publishers.entry(id.0).or_default().confirmed.insert(id.1);
            self.delivered.insert(*id);
        }
        // What never reached the queue will not come any more.
        for (publisher, published) in &mut self.publishers {
            let reached = |n: &u64| present.contains(&(*publisher, *n)) || self.acked.contains(&(*publisher, *n));
            let limit = (0..published.limit).rev().find(reached).map_or(0, |n| n + 1);
            published.limit = limit;
        }
        broken
    }

    /// Messages published, confirmed, delivered, and acked for good.
    pub fn totals(&self) -> [usize; 4] {
        let published = self.publishers.values().map(|published| published.limit as usize).sum();
        let confirmed = self.publishers.values().map(|published| published.confirmed.len()).sum();
        [published, confirmed, self.delivered.len(), self.settled.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ids: &[u64]) -> Vec<Found> {
        ids.iter().map(|n| Found { id: (1, *n), redelivered: true }).collect()
    }

    /// Publisher 1 sent 0..10 and has confirms for 0..7; 0..4 were delivered, 0..3 acked, 0..2
    /// settled for good.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for n in 0..10 {
            assert_eq!(ledger.publish(1), n);
        }
        (0..7).for_each(|n| ledger.confirm((1, n)));
        (0..4).for_each(|n| ledger.deliver((1, n), false).expect("published"));
        (0..3).for_each(|n| ledger.ack((1, n)));
        ledger.settle([(1, 0), (1, 1)]);
        ledger
    }

    #[test]
    fn every_lawful_outcome_passes() {
        for lawful in [&[3, 4, 5, 6][..], &[2, 3, 4, 5, 6], &[2, 3, 4, 5, 6, 7], &[3, 4, 5, 6, 7, 8, 9]] {
            assert_eq!(ledger().audit(&found(lawful)), [], "{lawful:?}");
        }
    }

    #[test]
    fn each_broken_promise_is_named() {
        let audit = |ids: &[u64]| ledger().audit(&found(ids));
        assert_eq!(audit(&[3, 4, 6]), [Broken::Lost((1, 5))]);
        assert_eq!(audit(&[1, 2, 3, 4, 5, 6]), [Broken::Unsettled((1, 1))]);
        assert_eq!(audit(&[3, 4, 5, 6, 8]), [Broken::Gap((1, 7), (1, 8))]);
        assert_eq!(audit(&[3, 5, 4, 6]), [Broken::Disorder((1, 5), (1, 4))]);
        assert_eq!(audit(&[3, 4, 4, 5, 6]), [Broken::Twice((1, 4))]);
        assert_eq!(audit(&[3, 4, 5, 6, 7, 8, 9, 10]), [Broken::Invented((1, 10))]);
        let mut unflagged = found(&[3, 4, 5, 6]);
        unflagged[0].redelivered = false;
        assert_eq!(ledger().audit(&unflagged), [Broken::Unflagged((1, 3))]);
    }

    #[test]
    fn a_refused_message_may_be_there_or_not() {
        let mut ledger = ledger();
        ledger.refuse((1, 7));
        assert_eq!(ledger.clone().audit(&found(&[3, 4, 5, 6, 8])), []);
        assert_eq!(ledger.audit(&found(&[3, 4, 5, 6, 7, 8])), []);
    }

    #[test]
    fn an_audit_settles_what_was_open() {
        let mut ledger = ledger();
        assert_eq!(ledger.audit(&found(&[3, 4, 5, 6, 7])), []);
        // 2 was acked and is gone: it may not come back. 7 was seen: it may not vanish. 8 never
        // came: its number is free.
        assert_eq!(ledger.clone().audit(&found(&[2, 3, 4, 5, 6, 7])), [Broken::Unsettled((1, 2))]);
        assert_eq!(ledger.clone().audit(&found(&[3, 4, 5, 6])), [Broken::Lost((1, 7))]);
        assert_eq!(ledger.publish(1), 8);
    }

    #[test]
    fn bodies_are_recognised_and_damage_is_seen() {
        for body_bytes in [16, 17, 500] {
            let mut bytes = body((3, 77), body_bytes);
            assert_eq!((bytes.len(), identify(&bytes)), (body_bytes, Ok((3, 77))));
            for at in 0..body_bytes {
                bytes[at] ^= 1;
                assert!(identify(&bytes).is_err(), "byte {at} of {body_bytes}");
                bytes[at] ^= 1;
            }
        }
    }
}
