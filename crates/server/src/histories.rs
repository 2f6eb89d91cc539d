//! The last messages of each `x-recent-history` exchange, for queues that are bound to it later.
//!
//! Invariant: a history holds at most the number of messages that its exchange asks for and `HISTORY_BYTES_MAX` bytes, the
//! youngest ones. It lives in this node's memory, as in RabbitMQ 3: a restart empties it.

use amqp::Publish;
use broker::topology::HistoryId;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Bytes of one history. Without a bound of its own, an exchange could keep ten thousand messages of 16 MiB.
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
        self.exchange.len() + self.routing_key.len() + self.properties.len() + self.body.len()
    }
}

#[derive(Debug, Default)]
struct History {
    messages: VecDeque<Remembered>,
    bytes: usize,
}

/// All histories of a node.
#[derive(Debug, Default)]
pub(crate) struct Histories(Mutex<BTreeMap<HistoryId, History>>);

impl Histories {
    /// Adds a message to a history of at most `length` messages. `is_there` tells the exchanges that still exist: the
    /// histories of others go when a new one comes, so there are never more than were ever there at a time.
    pub(crate) fn remember(
        &self,
        exchange: HistoryId,
        length: u32,
        message: Remembered,
        is_there: impl FnOnce() -> Vec<HistoryId>,
    ) {
        let mut histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !histories.contains_key(&exchange) {
            let there = is_there();
            histories.retain(|id, _| there.contains(id));
        }
        let history = histories.entry(exchange).or_default();
        history.bytes += message.bytes();
        history.messages.push_back(message);
        while history.messages.len() > length as usize || history.bytes > HISTORY_BYTES_MAX {
            let gone = history.messages.pop_front().expect("one message is within both limits");
            history.bytes -= gone.bytes();
        }
    }

    /// What an exchange remembers, oldest first.
    pub(crate) fn of(&self, exchange: HistoryId) -> Vec<Remembered> {
        let histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histories.get(&exchange).map(|history| history.messages.iter().cloned().collect()).unwrap_or_default()
    }
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

    fn bodies(histories: &Histories, id: HistoryId) -> Vec<Vec<u8>> {
        histories.of(id).iter().map(|message| message.body[..1].to_vec()).collect()
    }

    #[test]
    fn the_youngest_messages_stay_by_number_and_by_bytes() {
        let id = ids(&mut Topology::new(), &["x"])[0];
        let histories = Histories::default();
        for n in 0..5u8 {
            histories.remember(id, 3, message(&[n]), Vec::new);
        }
        assert_eq!(bodies(&histories, id), [[2], [3], [4]]);
        for n in 5..8u8 {
            histories.remember(id, 3, message(&vec![n; HISTORY_BYTES_MAX / 2 - 10]), Vec::new);
        }
        assert_eq!(bodies(&histories, id), [[6], [7]]);
    }

    #[test]
    fn a_history_goes_when_its_exchange_is_gone_and_another_comes() {
        let ids = ids(&mut Topology::new(), &["x", "y"]);
        let histories = Histories::default();
        histories.remember(ids[0], 3, message(b"a"), Vec::new);
        histories.remember(ids[1], 3, message(b"b"), || vec![ids[1]]);
        assert_eq!(bodies(&histories, ids[0]), [[0u8; 1]; 0]);
        assert_eq!(bodies(&histories, ids[1]), [b"b"]);
    }
}
