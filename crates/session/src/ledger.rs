//! What went where on a shard, by exchange and queue: what rates are made of.
//!
//! Invariant: on the road of a message counting is an addition to a field that the road touches
//! anyway, of the route for a publish, of the consumer for a delivery and an ack. It comes here when
//! somebody looks, and before the route or the consumer goes, so nothing is counted twice and
//! nothing is lost. Only the shard's own thread touches it; who looks takes all of it away.

use broker::topology::{Name, Topology};
use broker::{QueueId, VhostId};
use std::cell::RefCell;
use std::collections::HashMap;

type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// Queues and pairs of exchange and queue that are kept before those are forgotten that are gone.
/// Where nobody looks for an hour, a million reply queues may come and go.
const KEPT_MAX: usize = 1 << 16;

/// What went out of a queue, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTraffic {
    /// To consumers that ack.
    pub delivered: u64,
    /// To consumers that do not.
    pub delivered_no_ack: u64,
    /// By `basic.get`, to be acked.
    pub got: u64,
    /// By `basic.get` without acks.
    pub got_no_ack: u64,
    /// Times that `basic.get` found nothing.
    pub got_empty: u64,
    /// Of all these, those that had been delivered before.
    pub redelivered: u64,
    /// What consumers acked.
    pub acked: u64,
}

impl QueueTraffic {
    /// Adds what `other` has.
    pub fn add(&mut self, other: &QueueTraffic) {
        self.delivered += other.delivered;
        self.delivered_no_ack += other.delivered_no_ack;
        self.got += other.got;
        self.got_no_ack += other.got_no_ack;
        self.got_empty += other.got_empty;
        self.redelivered += other.redelivered;
        self.acked += other.acked;
    }

    /// Whether nothing went.
    pub fn is_empty(&self) -> bool {
        *self == QueueTraffic::default()
    }
}

/// What clients published to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeCounted {
    /// Its virtual host.
    pub vhost: VhostId,
    /// Its name.
    pub name: Name,
    /// Messages that came.
    pub published_in: u64,
    /// Copies that went into queues.
    pub published_out: u64,
}

/// What channels of a virtual host counted that is about no queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostCounted {
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages published on channels that confirm.
    pub published_to_confirm: u64,
    /// Messages without a route that went back.
    pub returned: u64,
    /// Messages without a route that were dropped.
    pub dropped: u64,
}

/// What was counted since somebody looked before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// By exchange.
    pub exchanges: Vec<ExchangeCounted>,
    /// Copies by exchange, as its place in `exchanges`, and queue.
    pub routed: Vec<(u32, QueueId, u64)>,
    /// By queue, what went out.
    pub queues: Vec<(QueueId, QueueTraffic)>,
    /// By virtual host.
    pub vhosts: Vec<(VhostId, VhostCounted)>,
    /// By type of queue, those that are gone meanwhile too: classic and quorum.
    pub types: [QueueTraffic; 2],
}

#[derive(Debug, Default)]
struct Kept {
    places: Map<VhostId, Map<Name, u32>>,
    exchanges: Vec<ExchangeCounted>,
    routed: Map<(u32, QueueId), u64>,
    queues: Map<QueueId, QueueTraffic>,
    vhosts: Map<VhostId, VhostCounted>,
    types: [QueueTraffic; 2],
    /// How many there may be before it is looked which of them are gone.
    kept_max: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger(RefCell<Kept>);

impl Ledger {
    /// Takes down `count` messages to this exchange, each of which went to all of `queues`.
    pub(crate) fn publish(&self, vhost: VhostId, exchange: &[u8], queues: impl Iterator<Item = QueueId>, count: u64) {
        let kept = &mut *self.0.borrow_mut();
        let places = kept.places.entry(vhost).or_default();
        let place = match places.get(exchange) {
            Some(place) => *place,
            None => {
                let place = kept.exchanges.len() as u32;
                let name = Name::new(exchange);
                places.insert(name.clone(), place);
                kept.exchanges.push(ExchangeCounted { vhost, name, published_in: 0, published_out: 0 });
                place
            }
        };
        let counted = &mut kept.exchanges[place as usize];
        counted.published_in += count;
        for queue in queues {
            counted.published_out += count;
            *kept.routed.entry((place, queue)).or_insert(0) += count;
        }
    }

    /// Takes down what is about no queue.
    pub(crate) fn note(&self, vhost: VhostId, counted: VhostCounted) {
        let kept = &mut *self.0.borrow_mut();
        let sum = kept.vhosts.entry(vhost).or_default();
        sum.confirmed += counted.confirmed;
        sum.published_to_confirm += counted.published_to_confirm;
        sum.returned += counted.returned;
        sum.dropped += counted.dropped;
    }

    /// Takes down what went out of a queue.
    pub(crate) fn pass(&self, queue: QueueId, is_quorum: bool, traffic: &QueueTraffic) {
        let kept = &mut *self.0.borrow_mut();
        kept.types[usize::from(is_quorum)].add(traffic);
        kept.queues.entry(queue).or_default().add(traffic);
    }

    /// Forgets queues that are gone, if there is much: nobody has looked for long. To be called now
    /// and then, where the topology is not held.
    pub(crate) fn make_room<T: std::ops::Deref<Target = Topology>>(&self, topology: impl FnOnce() -> T) {
        let kept = &mut *self.0.borrow_mut();
        if kept.routed.len().max(kept.queues.len()) <= kept.kept_max.max(KEPT_MAX) {
            return;
        }
        let topology = topology();
        kept.routed.retain(|(_, queue), _| topology.queue(*queue).is_some());
        kept.queues.retain(|queue, _| topology.queue(*queue).is_some());
        kept.kept_max = kept.routed.len().max(kept.queues.len()) * 2;
    }

    /// Takes away all that was counted.
    pub fn take(&self) -> Counted {
        let kept = std::mem::take(&mut *self.0.borrow_mut());
        Counted {
            exchanges: kept.exchanges,
            routed: kept.routed.into_iter().map(|((place, queue), count)| (place, queue, count)).collect(),
            queues: kept.queues.into_iter().collect(),
            vhosts: kept.vhosts.into_iter().collect(),
            types: kept.types,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_taken_away_once() {
        let ledger = Ledger::default();
        let queues = [QueueId(1), QueueId(2)];
        ledger.publish(VhostId(0), b"x", queues.into_iter(), 3);
        ledger.publish(VhostId(0), b"", [QueueId(1)].into_iter(), 2);
        ledger.publish(VhostId(0), b"x", [QueueId(1)].into_iter(), 1);
        ledger.publish(VhostId(7), b"x", [].into_iter(), 5);
        ledger.pass(QueueId(1), true, &QueueTraffic { delivered: 2, acked: 1, ..QueueTraffic::default() });
        ledger.pass(QueueId(1), true, &QueueTraffic { acked: 1, ..QueueTraffic::default() });
        let mut counted = ledger.take();
        counted.routed.sort_unstable();
        let of: Vec<_> =
            counted.exchanges.iter().map(|e| (e.vhost.0, &*e.name, e.published_in, e.published_out)).collect();
        assert_eq!(of, [(0, &b"x"[..], 4, 7), (0, b"", 2, 2), (7, b"x", 5, 0)]);
        assert_eq!(counted.routed, [(0, QueueId(1), 4), (0, QueueId(2), 3), (1, QueueId(1), 2)]);
        let traffic = QueueTraffic { delivered: 2, acked: 2, ..QueueTraffic::default() };
        assert_eq!(counted.queues, [(QueueId(1), traffic)]);
        assert_eq!(counted.types, [QueueTraffic::default(), traffic]);
        assert_eq!(ledger.take(), Counted::default());
    }

    #[test]
    fn queues_that_came_and_went_take_no_memory_where_nobody_looks() {
        let (ledger, topology) = (Ledger::default(), Topology::new());
        for queue in 0..3 * KEPT_MAX as u64 {
            ledger.pass(QueueId(queue), false, &QueueTraffic { acked: 1, ..QueueTraffic::default() });
            ledger.make_room(|| &topology);
        }
        assert!(ledger.take().queues.len() <= KEPT_MAX);
    }
}
