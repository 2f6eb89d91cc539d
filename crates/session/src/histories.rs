//! The last messages of each `x-recent-history` exchange, for queues that are bound to it later.
//!
//! Invariant: a history holds at most the number of messages that its exchange asks for and
//! `HISTORY_BYTES_MAX` bytes, the youngest ones; all histories together hold at most what the node
//! gives them. It lives in this node's memory, as in RabbitMQ 3: a restart empties it.

use amqp::Publish;
use broker::topology::HistoryId;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of one history. Without a bound of its own, an exchange could keep ten thousand messages
/// of 16 MiB.
pub(crate) const HISTORY_BYTES_MAX: usize = 32 << 20;

const _: () = assert!(HISTORY_BYTES_MAX > partition::message::MESSAGE_BYTES_MAX, "one message of any size must fit");

/// A message as it was published.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) exchange: Bytes,
    pub(crate) routing_key: Bytes,
    pub(crate) properties: Bytes,
    pub(crate) body: Bytes,
}

impl Remembered {
    /// A copy: what was read from a socket would keep the whole read buffer alive.
    pub(crate) fn of(publish: &Publish) -> Self {
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        Remembered {
            exchange: copy(&publish.exchange),
            routing_key: copy(&publish.routing_key),
            properties: copy(&publish.properties),
            body: copy(&publish.body),
        }
    }

    fn bytes(&self) -> usize {
        let own = self.exchange.len() + self.routing_key.len() + self.properties.len() + self.body.len();
        own + REMEMBERED_OVERHEAD_BYTES
    }
}

/// What a message costs beside its bytes: itself and the four allocations.
const REMEMBERED_OVERHEAD_BYTES: usize = size_of::<Remembered>() + 4 * 32;

#[derive(Debug, Default)]
struct History {
    messages: VecDeque<Remembered>,
    bytes: usize,
    /// How many it forgot; each message has the number of those before it.
    forgotten: u64,
}

impl History {
    /// Forgets the oldest messages until it has no more than these.
    fn shrink(&mut self, messages_max: usize, bytes_max: usize) {
        while self.messages.len() > messages_max || self.bytes > bytes_max {
            let Some(gone) = self.messages.pop_front() else { return };
            self.bytes -= gone.bytes();
            self.forgotten += 1;
        }
        if self.messages.capacity() > 4 * self.messages.len() + 16 {
            self.messages.shrink_to_fit();
        }
    }
}

/// All histories of a node.
#[derive(Debug)]
pub struct Histories {
    all: Mutex<BTreeMap<HistoryId, History>>,
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Histories {
    /// None yet, and at most so many bytes in all of them.
    pub fn new(bytes_max: u64) -> Self {
        Histories { all: Mutex::default(), bytes: AtomicU64::new(0), bytes_max }
    }

    /// Bytes that all of them hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds a message to a history of at most `length` messages. `is_there` tells the exchanges
    /// that still exist: the histories of others go when a new one comes, so there are never more
    /// than were ever there at a time.
    pub(crate) fn remember(
        &self,
        exchange: HistoryId,
        length: u32,
        message: Remembered,
        is_there: impl FnOnce() -> Vec<HistoryId>,
    ) {
        let mut histories = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if !histories.contains_key(&exchange) {
            let there: std::collections::BTreeSet<HistoryId> = is_there().into_iter().collect();
            histories.retain(|id, _| there.contains(id));
            self.bytes.store(sum(&histories), Ordering::Relaxed);
        }
        let history = histories.entry(exchange).or_default();
        let before = history.bytes as u64;
        history.bytes += message.bytes();
        history.messages.push_back(message);
        history.shrink(length as usize, HISTORY_BYTES_MAX);
        // Under the lock nobody else changes the sum.
        let bytes = self.bytes.load(Ordering::Relaxed) + history.bytes as u64 - before;
        self.bytes.store(bytes, Ordering::Relaxed);
        if bytes > self.bytes_max {
            // Each gives up what it has beyond an equal share; a quarter of room is left, so that
            // not every message does this.
            let room = usize::try_from(self.bytes_max / 4 * 3).unwrap_or(usize::MAX);
            let share = room / histories.len();
            histories.values_mut().for_each(|history| history.shrink(usize::MAX, share));
            self.bytes.store(sum(&histories), Ordering::Relaxed);
        }
    }

    /// The numbers of the messages that an exchange remembers now.
    pub(crate) fn of(&self, exchange: HistoryId) -> Range<u64> {
        let histories = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let history = histories.get(&exchange);
        history.map_or(0..0, |history| history.forgotten..history.forgotten + history.messages.len() as u64)
    }

    /// The oldest of these messages that it still remembers, up to so many and about so many bytes;
    /// `numbers` are those behind them from then on.
    pub(crate) fn take(
        &self,
        exchange: HistoryId,
        numbers: &mut Range<u64>,
        messages_max: usize,
        bytes_max: usize,
    ) -> Vec<Remembered> {
        let histories = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(history) = histories.get(&exchange) else {
            numbers.start = numbers.end;
            return Vec::new();
        };
        numbers.start = numbers.start.max(history.forgotten).min(numbers.end);
        let first = usize::try_from(numbers.start - history.forgotten.min(numbers.start)).unwrap_or(usize::MAX);
        let there = history.messages.iter().skip(first).take((numbers.end - numbers.start) as usize);
        let mut bytes = 0;
        let taken = there.take(messages_max).take_while(|message| {
            let has_room = bytes < bytes_max;
            bytes += message.bytes();
            has_room
        });
        let taken: Vec<Remembered> = taken.cloned().collect();
        numbers.start = if taken.is_empty() { numbers.end } else { numbers.start + taken.len() as u64 };
        taken
    }
}

fn sum(histories: &BTreeMap<HistoryId, History>) -> u64 {
    histories.values().map(|history| history.bytes as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::VhostId;
    use broker::topology::{Command, DeclareExchange, ExchangeType, Name, Topology};

    fn ids(topology: &mut Topology, names: &[&str]) -> Vec<HistoryId> {
        let declare = |name: &&str| {
            let declare = DeclareExchange {
                vhost: VhostId(0),
                name: Name::from(*name),
                kind: ExchangeType::RecentHistory,
                durable: true,
                auto_delete: false,
                internal: false,
                arguments: amqp::Table::new(),
                is_shared: false,
            };
            topology.apply(&Command::DeclareExchange(declare)).outcome.expect("the declare is lawful");
            topology.find_exchange(VhostId(0), name.as_bytes()).and_then(|e| e.history()).expect("it keeps a history")
        };
        names.iter().map(declare).collect()
    }

    fn message(body: &[u8]) -> Remembered {
        Remembered {
            exchange: Bytes::from_static(b"x"),
            routing_key: Bytes::new(),
            properties: Bytes::from_static(&[0, 0]),
            body: Bytes::copy_from_slice(body),
        }
    }

    fn all(histories: &Histories, id: HistoryId) -> Vec<Remembered> {
        histories.take(id, &mut histories.of(id), usize::MAX, usize::MAX)
    }

    fn bodies(histories: &Histories, id: HistoryId) -> Vec<Vec<u8>> {
        all(histories, id).iter().map(|message| message.body[..1].to_vec()).collect()
    }

    #[test]
    fn a_history_is_taken_in_parts_that_bring_nothing_twice_and_nothing_that_came_later() {
        let id = ids(&mut Topology::new(), &["x"])[0];
        let histories = Histories::new(u64::MAX);
        (0..6u8).for_each(|n| histories.remember(id, 6, message(&[n]), Vec::new));
        let mut numbers = histories.of(id);
        let take = |numbers: &mut Range<u64>, count, bytes| -> Vec<u8> {
            histories.take(id, numbers, count, bytes).iter().map(|message| message.body[0]).collect()
        };
        assert_eq!(take(&mut numbers, 2, usize::MAX), [0, 1]);
        assert_eq!(take(&mut numbers, 9, 1), [2], "one at least");
        // Two come, and push the two oldest out.
        (6..10u8).for_each(|n| histories.remember(id, 6, message(&[n]), Vec::new));
        assert_eq!(take(&mut numbers, 9, usize::MAX), [4, 5]);
        assert!(numbers.is_empty() && take(&mut numbers, 9, usize::MAX).is_empty());
        assert_eq!(bodies(&histories, id), [[4], [5], [6], [7], [8], [9]]);
        let mut late = 0..3;
        assert!(take(&mut late, 9, usize::MAX).is_empty() && late.is_empty(), "all of them are forgotten");
    }

    #[test]
    fn the_youngest_messages_stay_by_number_and_by_bytes() {
        let id = ids(&mut Topology::new(), &["x"])[0];
        let histories = Histories::new(u64::MAX);
        for n in 0..5u8 {
            histories.remember(id, 3, message(&[n]), Vec::new);
        }
        assert_eq!(bodies(&histories, id), [[2], [3], [4]]);
        for n in 5..8u8 {
            histories.remember(id, 3, message(&vec![n; HISTORY_BYTES_MAX / 2 - 1000]), Vec::new);
        }
        assert_eq!(bodies(&histories, id), [[6], [7]]);
    }

    #[test]
    fn all_histories_together_stay_within_their_limit_and_share_it() {
        let names: Vec<String> = (0..20).map(|n| format!("x{n}")).collect();
        let ids = ids(&mut Topology::new(), &names.iter().map(String::as_str).collect::<Vec<_>>());
        let histories = Histories::new(100_000);
        for n in 0..50u8 {
            for id in &ids {
                histories.remember(*id, 1000, message(&[n; 1000]), || ids.clone());
                assert!(histories.bytes() <= 100_000, "{}", histories.bytes());
            }
        }
        for id in &ids {
            let kept = bodies(&histories, *id);
            assert!(!kept.is_empty() && kept.last() == Some(&vec![49]), "the youngest stay: {kept:?}");
        }
        histories.remember(ids[0], 1000, message(&[0; 200_000]), || ids.clone());
        assert!(histories.bytes() <= 100_000, "also when one message is larger: {}", histories.bytes());
        let held: usize = ids.iter().flat_map(|id| all(&histories, *id)).map(|m| m.body.len()).sum();
        assert!(histories.bytes() as usize >= held && held > 0);
    }

    #[test]
    fn a_history_goes_when_its_exchange_is_gone_and_another_comes() {
        let ids = ids(&mut Topology::new(), &["x", "y"]);
        let histories = Histories::new(u64::MAX);
        histories.remember(ids[0], 3, message(b"a"), Vec::new);
        histories.remember(ids[1], 3, message(b"b"), || vec![ids[1]]);
        assert_eq!(bodies(&histories, ids[0]), [[0u8; 1]; 0]);
        assert_eq!(bodies(&histories, ids[1]), [b"b"]);
    }
}
