//! What one channel counted: for its own page, and on its way to the ledger of its shard.
//!
//! Invariant: a channel remembers where its messages went for a few exchanges and queues; what it
//! counted for others is kept in one sum, so that a channel that uses thousands of queues costs no
//! more than one that uses some.

use super::channel::{Channel, Consumer, State};
use super::ledger::{Ledger, QueueTraffic, VhostCounted};
use super::routes::Route;
use super::{Host, Session};
use broker::topology::Name;
use broker::{QueueId, VhostId};

/// Exchanges and queues that a channel tells apart.
const TOLD_APART_MAX: usize = 32;

/// What a consumer counted since it was taken down last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsumerCounts {
    pub(super) delivered: u64,
    pub(super) redelivered: u64,
    pub(super) acked: u64,
}

/// What went over a channel, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelTraffic {
    /// Published.
    pub published: u64,
    /// Confirmed.
    pub confirmed: u64,
    /// Without a route, and sent back.
    pub returned: u64,
    /// Without a route, and dropped.
    pub dropped: u64,
    /// What came out of queues.
    pub out: QueueTraffic,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct ChannelCounts {
    pub(super) traffic: ChannelTraffic,
    /// What of it the ledger has.
    told: VhostCounted,
    exchanges: Vec<(Name, u64)>,
    queues: Vec<(QueueId, QueueTraffic)>,
}

impl ChannelCounts {
    /// Takes down what was published by a route since the last time, and starts from 0.
    pub(super) fn take_route(&mut self, route: &mut Route, vhost: VhostId, ledger: &Ledger) {
        let count = std::mem::take(&mut route.published);
        if count == 0 {
            return;
        }
        self.traffic.published += count;
        if route.is_sync {
            return;
        }
        let queues = route.groups.iter().flat_map(|group| &group.targets).map(|target| target.queue);
        ledger.publish(vhost, route.exchange(), queues, count);
        match self.exchanges.iter().position(|(name, _)| name[..] == *route.exchange()) {
            Some(at) => self.exchanges[at].1 += count,
            None if self.exchanges.len() < TOLD_APART_MAX => {
                self.exchanges.push((Name::new(route.exchange()), count));
            }
            None => {}
        }
    }

    /// Takes down what came out of a queue.
    pub(super) fn pass(&mut self, queue: QueueId, is_quorum: bool, traffic: &QueueTraffic, ledger: &Ledger) {
        self.traffic.out.add(traffic);
        ledger.pass(queue, is_quorum, traffic);
        match self.queues.iter().position(|(known, _)| *known == queue) {
            Some(at) => self.queues[at].1.add(traffic),
            None if self.queues.len() < TOLD_APART_MAX => self.queues.push((queue, *traffic)),
            None => {}
        }
    }

    /// Takes down what is about no queue.
    fn tell(&mut self, vhost: VhostId, ledger: &Ledger) {
        let ChannelTraffic { published, confirmed, returned, dropped, .. } = self.traffic;
        // What was confirmed once says that the channel confirms.
        let published_to_confirm = if confirmed > 0 { published } else { 0 };
        let now = VhostCounted { confirmed, published_to_confirm, returned, dropped };
        let told = std::mem::replace(&mut self.told, now);
        if told != now {
            let confirmed = confirmed - told.confirmed;
            let (returned, dropped) = (returned - told.returned, dropped - told.dropped);
            let published_to_confirm = published_to_confirm - told.published_to_confirm;
            ledger.note(vhost, VhostCounted { confirmed, published_to_confirm, returned, dropped });
        }
    }

    /// What was published, by exchange.
    pub(super) fn exchanges(&self) -> &[(Name, u64)] {
        &self.exchanges
    }

    /// What came out, by queue.
    pub(super) fn queues(&self) -> &[(QueueId, QueueTraffic)] {
        &self.queues
    }
}

impl Consumer {
    /// What it counted, starting from 0.
    fn take_counts(&mut self) -> QueueTraffic {
        let ConsumerCounts { delivered, redelivered, acked } = std::mem::take(&mut self.counts);
        let (with_ack, without) = if self.no_ack { (0, delivered) } else { (delivered, 0) };
        QueueTraffic { delivered: with_ack, delivered_no_ack: without, redelivered, acked, ..QueueTraffic::default() }
    }
}

impl Channel {
    /// Takes down what a consumer counted.
    pub(super) fn take_consumer(&mut self, at: usize, ledger: &Ledger) {
        let consumer = &mut self.consumers[at];
        let (queue, is_quorum, traffic) = (consumer.queue, consumer.is_quorum, consumer.take_counts());
        if !traffic.is_empty() {
            self.counts.pass(queue, is_quorum, &traffic, ledger);
        }
    }

    /// Takes down all that was counted on the road of messages.
    pub(super) fn take_counts(&mut self, vhost: VhostId, ledger: &Ledger) {
        for at in 0..self.consumers.places() {
            self.take_consumer(at, ledger);
        }
        let counts = &mut self.counts;
        self.routes.all().for_each(|route| counts.take_route(route, vhost, ledger));
        counts.tell(vhost, ledger);
    }

    /// Who gets single messages is about to do so from another queue: its acks were of the one
    /// before.
    pub(super) fn take_getter(&mut self, queue: QueueId, ledger: &Ledger) {
        let others = |consumer: &Consumer| consumer.state == State::Get && consumer.queue != queue;
        for at in 0..self.consumers.places() {
            if others(&self.consumers[at]) {
                self.take_consumer(at, ledger);
            }
        }
    }
}

impl Session {
    /// Takes down in the shard's ledger what its channels counted.
    pub fn take_counts(&mut self, host: &impl Host) {
        let vhost = self.vhost;
        self.channels.iter_mut().for_each(|channel| channel.take_counts(vhost, host.ledger()));
    }
}
