//! The road of a publish from the machine to its partitions, of its confirm back, and of a delivery
//! to its consumer.
//!
//! Invariant: a message is confirmed once, after every partition it went to has confirmed it; a
//! return goes out before the confirm. The common message costs one comparison with the route used
//! last, and no lock, hash or allocation.

use super::channel::{RequestKind, State};
use super::facts::PublishedFacts;
use super::refusal::publish_error;
use super::routes::{Group, Needs, Route};
use super::span::Operation;
use super::spans;
use super::traits::{self, Copies};
use super::waiting::CONFIRMS_LOOK_MS;
use super::{Client, Cx, Host, Session};
use crate::tally::Count;
use amqp::wire::headers;
use amqp::{ChannelError, Confirm, MessageParts, MethodId, ReplyCode, ReturnedMessage, Settlement};
use broker::queue::Counts;
use broker::topology::{DurabilityLevel, NoRoute, RouteRequest, RouteTarget, Topology};
use broker::{ConsumerKey, QueueId};
use bytes::Bytes;
use partition::command::{Durability, Selective};
use partition::message::MessageView;
use partition::{Command, Delivery, Disposition, Level, Message, Publish, Target};
use smallvec::SmallVec;

/// A publish to this exchange on a confirm channel is confirmed once everything written before is
/// synced.
pub const SYNC_EXCHANGE: &[u8] = b"leveret.sync";

/// An interval for a selective queue that has only a cap: ten years.
const INTERVAL_MS_NEVER: u64 = 315_360_000_000;

/// Queues that the kept routes of a connection's channels name together, some megabytes; a route
/// beyond is found anew for each message.
const ROUTE_TARGETS_MAX: usize = 1 << 16;

impl Session {
    /// Routes messages and hands them to their partitions, or holds them until their commit. Several as one where nothing
    /// is to be looked at in each of them; else the first, and the others come next, as far as the turn goes.
    pub(super) fn publish(&mut self, publish: amqp::Publish, cx: &mut Cx<'_, impl Host>) {
        let goes_as_one = || {
            let is_stamped = cx.host.common().settings.stamps.is_some();
            let at = self.at(publish.channel);
            let is_held = self.channels[at].transaction.is_some();
            !is_stamped && !is_held && !traits::may_ask(&publish.properties) && !cx.host.is_tracing()
        };
        if publish.more.is_none() {
            self.publish_one(publish, cx);
        } else if goes_as_one() {
            let at = self.at(publish.channel);
            self.send_publish(at, publish, &Copies::default(), cx);
        } else {
            self.publish_first(publish, cx);
        }
    }

    /// Publishes the first of several messages.
    fn publish_first(&mut self, mut publish: amqp::Publish, cx: &mut Cx<'_, impl Host>) {
        let first = publish.take_first().expect("there are several");
        cx.client.put_back(publish);
        self.publish_one(first, cx);
    }

    fn publish_one(&mut self, mut publish: amqp::Publish, cx: &mut Cx<'_, impl Host>) {
        let at = self.at(publish.channel);
        let settings = &cx.host.common().settings;
        if let Some(stamps) = &settings.stamps {
            publish.properties = stamps.stamped(&publish.properties, &settings.node_name, cx.host.wall_ms());
        }
        let mut copies = Copies::default();
        if traits::may_ask(&publish.properties) {
            let checked = self.check_traits(&publish, cx).and_then(|asked| {
                if asked.asks_for_reply {
                    publish.properties = self.with_reply_name(at, &publish.properties)?;
                }
                Ok(asked.copies)
            });
            match checked {
                Ok(found) => copies = found,
                Err(error) => {
                    // An exchange that is not there is what RabbitMQ looks at first.
                    let unknown = self.check_exchange(&publish.exchange, &publish.routing_key, &[], cx).err();
                    return self.fail(at, unknown.unwrap_or(error), cx);
                }
            }
        }
        if self.channels[at].transaction.is_some() {
            return match self.check_exchange(&publish.exchange, &publish.routing_key, &copies.keys, cx) {
                Ok(()) => self.hold_publish(at, publish, cx),
                Err(error) => self.fail(at, error, cx),
            };
        }
        self.send_publish(at, publish, &copies, cx);
    }

    /// Whether the user may publish with the message's own key and with each of its copies': a right to
    /// some keys of a topic exchange would be none if a header went round it.
    fn check_exchange(
        &self,
        exchange: &[u8],
        routing_key: &[u8],
        copies: &[Bytes],
        cx: &Cx<'_, impl Host>,
    ) -> Result<(), ChannelError> {
        if exchange == SYNC_EXCHANGE {
            return Ok(());
        }
        let topology = cx.host.topology();
        let mut keys = std::iter::once(routing_key).chain(copies.iter().map(|key| &key[..]));
        keys.try_for_each(|key| topology.check_publish(self.actor(), self.vhost, exchange, key)).map_err(publish_error)
    }

    /// Routes a message whose properties were checked, and hands it to its partitions. Several go as one by a route that
    /// is known and leads to one queue.
    pub(super) fn send_publish(
        &mut self,
        at: usize,
        mut publish: amqp::Publish,
        copies: &Copies,
        cx: &mut Cx<'_, impl Host>,
    ) {
        let version = cx.host.routes_version();
        let kept = match copies.keys.is_empty() {
            true => self.channels[at].routes.find(version, &publish.exchange, &publish.routing_key),
            false => None,
        };
        if publish.more.is_some() {
            let goes_as_one = |place| {
                let route = self.channels[at].routes.get(place);
                matches!(&route.groups[..], [group] if group.targets.len() == 1)
                    && route.away == 0
                    && route.histories.is_empty()
            };
            if !kept.is_some_and(goes_as_one) {
                return self.publish_first(publish, cx);
            }
        }
        let begin_us = if std::mem::take(&mut self.probe.is_armed) { cx.host.elapsed_us() } else { 0 };
        let (place, is_new) = (kept, kept.is_none());
        let place = match place {
            Some(place) => place,
            None => match self.find_route(at, version, &publish, &copies.keys, cx) {
                Ok(place) => place,
                Err(error) => return self.fail(at, error, cx),
            },
        };
        if copies.has_blind {
            // From here on nobody sees them, also not whom the message comes back to.
            publish.properties = without_blind_copies(&publish.properties);
        }
        let mut span = None;
        if cx.host.is_tracing() {
            if cx.host.traces(self.vhost) {
                let route = self.channels[at].routes.get(place);
                let targets = route.groups.iter().flat_map(|group| &group.targets);
                let queues: SmallVec<[QueueId; 4]> = targets.map(|target| target.queue).collect();
                self.trace_publish(&publish, copies, &queues, cx);
            }
            if let Some(sampler) = cx.host.sampler() {
                span = self.begin_publish_span(sampler, self.channels[at].key, &mut publish, cx);
            }
        }
        let channel = &mut self.channels[at];
        let route = channel.routes.get(place);
        let count = publish.count();
        self.work.publish(route.load, count);
        if !route.histories.is_empty() {
            Self::remember(&route.histories, &publish, cx);
        }
        route.published += count;
        cx.host.count(Count::Published, count);
        cx.host.count_size(publish.body.len());
        publish.more.iter().flat_map(|more| more.iter()).for_each(|body| cx.host.count_size(body.len()));
        if route.groups.is_empty() {
            // There may be a queue of which this node does not know.
            let is_sync = route.is_sync;
            let is_refused = self.routes_blindly && !is_sync && publish.publish_seq != 0;
            let is_away = route.away > 0 || is_refused;
            if let Some(span) = span {
                let error = if is_away { Some("refused") } else { publish.mandatory.then_some("no_route") };
                spans::end(span, error, cx.host);
            }
            return match is_away {
                true => self.refuse_publish(at, &publish, cx),
                false => self.publish_nowhere(at, &publish, is_sync, cx),
            };
        }
        if self.published & route.shards != route.shards {
            self.slow_at = self.slow_at.min(cx.host.now() + CONFIRMS_LOOK_MS);
        }
        self.published |= route.shards;
        let (partitions, away) = (route.groups.len() + route.away, route.away);
        if let Err(error) = send(route, channel.key, &publish, cx) {
            if let Some(span) = span {
                spans::end(span, Some("precondition_failed"), cx.host);
            }
            return self.fail(at, error, cx);
        }
        if begin_us != 0 {
            cx.host.note_routed(begin_us);
            if away == 0 {
                self.probe.sent(channel.key, publish.publish_seq, begin_us);
            }
        }
        if partitions > 1 && publish.publish_seq != 0 {
            channel.await_confirms(publish.publish_seq, partitions);
            for _ in 0..away {
                channel.confirm(publish.publish_seq, 1, true, cx.client).count(cx.host);
            }
        }
        if let Some(span) = span {
            let to: SmallVec<[_; 4]> = channel.routes.get(place).groups.iter().map(|group| group.partition).collect();
            let publish = (channel.key, publish.publish_seq);
            self.publish_span_routed(span, publish, &to, away > 0, cx.host);
        }
        if is_new && self.route_targets > ROUTE_TARGETS_MAX {
            let channel = &mut self.channels[at];
            self.route_targets -=
                channel.routes.get(place).groups.iter().map(|group| group.targets.len()).sum::<usize>();
            channel.counts.take_route(channel.routes.get(place), self.vhost, cx.host.ledger());
            channel.routes.give_up(place);
        }
    }

    fn check_traits(&self, publish: &amqp::Publish, cx: &Cx<'_, impl Host>) -> Result<traits::Asked, ChannelError> {
        let may_impersonate = || self.has_tag(traits::IMPERSONATOR_TAG, cx);
        traits::check(&publish.properties, &self.user, may_impersonate)
    }

    /// A message without a queue: returned if it is mandatory, and confirmed, as nobody is left to
    /// lose it.
    fn publish_nowhere(&mut self, at: usize, publish: &amqp::Publish, is_sync: bool, cx: &mut Cx<'_, impl Host>) {
        let what = if publish.mandatory { Count::Returned } else { Count::Dropped };
        cx.host.count(what, u64::from(!is_sync));
        let traffic = &mut self.channels[at].counts.traffic;
        let sum = if publish.mandatory { &mut traffic.returned } else { &mut traffic.dropped };
        *sum += u64::from(!is_sync);
        if publish.mandatory {
            let message = MessageParts {
                exchange: &publish.exchange,
                routing_key: &publish.routing_key,
                properties: &publish.properties,
                body: (&publish.body).into(),
            };
            cx.client.return_message(publish.channel, &ReturnedMessage { code: ReplyCode::NoRoute, message });
        }
        if publish.publish_seq == 0 {
            return;
        }
        match is_sync {
            true => self.sync(at, publish.publish_seq, cx),
            false => {
                cx.host.count(Count::Confirmed, 1);
                self.channels[at].counts.traffic.confirmed += 1;
                cx.client.confirm(publish.channel, publish.publish_seq, Confirm::Ack);
            }
        }
    }

    /// A message whose partitions are all elsewhere: nobody promises it.
    #[cold]
    fn refuse_publish(&mut self, at: usize, publish: &amqp::Publish, cx: &mut Cx<'_, impl Host>) {
        if publish.publish_seq != 0 {
            self.channels[at].confirm(publish.publish_seq, 1, true, cx.client).count(cx.host);
        }
    }

    /// Asks for a sync of all that was written, behind everything that this channel sent: each
    /// partition that it used answers in its own order, and one speaks for the rest of the node.
    fn sync(&mut self, at: usize, publish_seq: u64, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        channel.use_partition(cx.host.sync_partition());
        let request = RequestKind::Sync(publish_seq).id();
        channel.await_confirms(publish_seq, channel.partitions.len());
        for at in 0..channel.partitions.len() {
            let partition = channel.partitions[at];
            match cx.host.shard_of(partition) {
                Some(_) => cx.host.push(partition, Command::Sync { channel: channel.key, request }),
                None => channel.confirm(publish_seq, 1, true, cx.client).count(cx.host),
            }
        }
    }

    /// Asks the topology where the message goes, by its own routing key and those of its `copies`,
    /// and remembers the answer unless it was for this message only.
    fn find_route(
        &mut self,
        at: usize,
        version: u64,
        publish: &amqp::Publish,
        copies: &[Bytes],
        cx: &Cx<'_, impl Host>,
    ) -> Result<usize, ChannelError> {
        let (exchange, routing_key) = (&publish.exchange, &publish.routing_key);
        let topology = cx.host.topology();
        if exchange != SYNC_EXCHANGE {
            let keys = std::iter::once(&routing_key[..]).chain(copies.iter().map(|key| &key[..]));
            for key in keys {
                topology.check_publish(self.actor(), self.vhost, exchange, key).map_err(publish_error)?;
            }
        }
        let facts = PublishedFacts::new(&publish.properties, || cx.host.dice());
        let mut keys: SmallVec<[&[u8]; 4]> = SmallVec::from_iter([&routing_key[..]]);
        keys.extend(copies.iter().map(|key| &key[..]));
        let mut targets = std::mem::take(&mut self.targets);
        let is_sync = exchange == SYNC_EXCHANGE;
        if !is_sync {
            let request = RouteRequest { vhost: self.vhost, exchange, keys: &keys, facts: &facts };
            match topology.route(&request, &mut targets) {
                // For the search, once. What it hands out counts with each publish that takes this
                // route.
                Ok(work) => self.work.add(work),
                Err(NoRoute::NotFound) => unreachable!("the exchange was there a line ago, under the same lock"),
                Err(error @ NoRoute::TooMuch) => {
                    self.targets = targets;
                    self.work.end();
                    let error = ChannelError::new(ReplyCode::PreconditionFailed, error.to_string());
                    return Err(ChannelError { method: MethodId::BASIC_PUBLISH, ..error });
                }
            }
        }
        let channel = &mut self.channels[at];
        let before = channel.routes.targets();
        let counts = &mut channel.counts;
        let end = |route: &mut Route| counts.take_route(route, self.vhost, cx.host.ledger());
        let place = channel.routes.make(version, exchange, routing_key, end);
        let route = channel.routes.get(place);
        (route.is_sync, route.load) = (is_sync, super::work::Load::of(&targets));
        fill_route(route, &targets, &topology, cx);
        targets.clear();
        let is_kept = !facts.were_asked() && copies.is_empty() && route.away == 0;
        let partitions: SmallVec<[_; 4]> = route.groups.iter().map(|group| group.partition).collect();
        partitions.into_iter().for_each(|partition| channel.use_partition(partition));
        if !is_kept {
            channel.routes.forget(place);
        }
        channel.routes.get(place).histories = facts.take_histories();
        self.route_targets = self.route_targets + channel.routes.targets() - before;
        self.targets = targets;
        Ok(place)
    }

    /// Settles or gives back deliveries of one channel.
    pub(super) fn settle_all(
        &mut self,
        at: usize,
        deliveries: &[amqp::Delivered],
        outcome: Disposition,
        cx: &mut Cx<'_, impl Host>,
    ) {
        if self.spans.is_some() {
            self.spans_settled(at, deliveries, outcome, cx.host);
        }
        let channel = &mut self.channels[at];
        for run in deliveries {
            let found = channel.consumer_at(run.consumer).expect("a consumer is known while it holds messages");
            let count = u64::from(run.count);
            let consumer = &mut channel.consumers[found];
            assert!(consumer.unacked >= count, "nothing is settled twice");
            consumer.unacked -= count;
            consumer.counts.acked += if outcome == Disposition::Ack { count } else { 0 };
            let (queue, partition, state) = (consumer.queue, consumer.partition, consumer.state);
            let holder = channel.holder(&channel.consumers[found]);
            if !channel.consumers[found].is_timed_out {
                cx.host.push(partition, Command::Settle { queue, holder, first: run.first_seq, count, outcome });
            }
            channel.forget_if_done(found, cx.host.ledger());
            if outcome == Disposition::Ack {
                cx.host.count(Count::Acked, count);
            }
            if let (Some(credit), true) = (&mut channel.credit, state != State::Get) {
                credit.release(count);
            }
        }
        channel.hand_out(cx.host);
    }

    /// Encodes a message for its consumer.
    #[inline]
    pub(super) fn deliver(&mut self, at: usize, delivery: &Delivery, cx: &mut Cx<'_, impl Host>) {
        let mut span = None;
        if cx.host.is_tracing() {
            let queue = self.channels[at].consumer(delivery.consumer.number).map(|consumer| consumer.queue);
            self.trace_delivery(at, queue, delivery, cx);
            span = self.begin_delivery_span(Operation::Deliver, queue, delivery, cx);
        }
        let channel = &mut self.channels[at];
        let ConsumerKey { channel: key, number } = delivery.consumer;
        let Some(found) = channel.consumer_at(number) else { return };
        let consumer = &mut channel.consumers[found];
        let is_let_go = consumer.is_detached || consumer.is_attaching;
        if delivery.needs_ack && (is_let_go || cx.host.is_outdated(consumer.partition, delivery.term)) {
            // Of a leader that has let go of the consumer, or leads no more and is about to: the
            // message is back in its queue, and the next leader may have given it to somebody else.
            return;
        }
        let view = MessageView::parse(&delivery.message).expect("partitions deliver whole messages");
        let body = view.body_in(&delivery.message);
        let counted;
        let mut properties = view.properties();
        if delivery.counts.acquired > 0 && consumer.is_quorum {
            counted = with_counts(properties, delivery.counts);
            properties = &counted;
        }
        let message = MessageParts { exchange: view.exchange(), routing_key: view.routing_key(), properties, body };
        let out = amqp::Delivery {
            consumer_tag: &consumer.tag,
            consumer: number,
            seq: delivery.seq,
            redelivered: delivery.redelivered,
            no_ack: !delivery.needs_ack,
            message,
        };
        let sent = cx.client.deliver(channel.id, &out);
        let what = if delivery.needs_ack { Count::Delivered } else { Count::DeliveredNoAck };
        cx.host.count(what, 1);
        cx.host.count(Count::Redelivered, u64::from(delivery.redelivered));
        consumer.counts.delivered += 1;
        consumer.past = consumer.past.max(delivery.seq + 1);
        consumer.counts.redelivered += u64::from(delivery.redelivered);
        if consumer.is_remote {
            let (partition, bytes) = (consumer.partition, delivery.message.len());
            match self.from_remote.last_mut() {
                Some((last, from, sum)) if *last == key && *from == partition => *sum += bytes,
                _ => self.from_remote.push((key, partition, bytes)),
            }
        }
        if sent.is_some() && delivery.needs_ack {
            consumer.unacked += 1;
            if let Some(credit) = &mut channel.credit {
                if consumer.granted_only {
                    consumer.granted = consumer.granted.saturating_sub(1);
                    credit.spend();
                } else {
                    credit.count();
                }
                channel.note_use(cx.host);
            }
        }
        if let Some(span) = span {
            let holder = delivery.needs_ack.then_some((key, number, delivery.seq));
            self.delivery_span_encoded(span, sent, holder, cx);
        }
    }
}

/// What a partition is told of a client's decision.
pub(super) fn outcome_of(settled: Settlement) -> Disposition {
    match settled {
        Settlement::Ack => Disposition::Ack,
        Settlement::Nack { requeue: true } => Disposition::Nack,
        Settlement::Reject { requeue: true } => Disposition::Reject,
        Settlement::Nack { requeue: false } | Settlement::Reject { requeue: false } => Disposition::Discard,
    }
}

/// The properties with RabbitMQ's counts as further headers: how often the message was given to a
/// consumer, and how often that failed in a way that counts against it. A count of nothing is left
/// out.
pub(super) fn with_counts(properties: &[u8], counts: Counts) -> Vec<u8> {
    let header = |name, count: u32| (name, amqp::Value::I64(count.into()));
    let (acquired, failed) = (header("x-acquired-count", counts.acquired), header("x-delivery-count", counts.delivery));
    let set: SmallVec<[_; 2]> = match counts.delivery {
        0 => SmallVec::from_iter([acquired]),
        _ => SmallVec::from_iter([acquired, failed]),
    };
    headers::rewrite(properties, &set, &[]).expect("the machine checked them when they came")
}

/// Hands a routed message to each of its partitions, with what its headers say about its
/// durability.
#[inline]
pub(super) fn send(
    route: &Route,
    key: broker::ChannelKey,
    publish: &amqp::Publish,
    cx: &Cx<'_, impl Host>,
) -> Result<(), ChannelError> {
    let channel = if publish.publish_seq == 0 { broker::ChannelKey::NOBODY } else { key };
    let asks = route.needs != Needs::default() && traits::may_ask(&publish.properties);
    let level = match asks && route.needs.durability {
        true if route.needs.majority => traits::level(&publish.properties)?.map(Level::of_majority),
        true => traits::level(&publish.properties)?,
        false => None,
    };
    if asks && route.groups.len() > 1 {
        // A message that is wrong for one of its queues goes to none of them: all are asked before
        // the first one has it.
        for group in &route.groups {
            for (target, header) in group.targets.iter().zip(&group.value_headers) {
                durability(target.durability, level, header.as_deref(), &publish.properties)?;
            }
        }
    }
    let delay_ms = traits::delay_ms(&publish.properties);
    for group in &route.groups {
        let mut targets = group.targets.clone();
        if asks {
            for (target, header) in targets.iter_mut().zip(&group.value_headers) {
                target.durability = durability(target.durability, level, header.as_deref(), &publish.properties)?;
            }
        }
        let message = Message {
            exchange: publish.exchange.clone(),
            routing_key: publish.routing_key.clone(),
            properties: publish.properties.clone(),
            body: publish.body.clone(),
        };
        let (publish_seq, more) = (publish.publish_seq, publish.more.clone());
        let publish = Publish { channel, publish_seq, term: 0, targets, delay_ms, message, more };
        cx.host.push(group.partition, Command::Publish(publish));
    }
    Ok(())
}

/// The durability of one message in one queue. A message may ask for more or less than its queue's
/// level; of a selective queue it may only ask for more, as the queue's cap holds for all of its
/// messages.
fn durability(
    queue: Durability,
    level: Option<Level>,
    header: Option<&[u8]>,
    properties: &Bytes,
) -> Result<Durability, ChannelError> {
    Ok(match (queue, level) {
        (_, Some(Level::Synced)) => Durability::Level(Level::Synced),
        (Durability::Level(_), Some(level)) => Durability::Level(level),
        (Durability::Selective { .. }, _) => {
            let value = header.map_or(Ok(0), |header| traits::value(properties, header))?;
            Durability::Selective { value }
        }
        (level, None) => level,
    })
}

/// The properties without the header BCC.
fn without_blind_copies(properties: &Bytes) -> Bytes {
    headers::rewrite(properties, &[], &["BCC"]).expect("the machine checked them when they came").into()
}

/// Makes a route of the queues that a message goes to.
pub(super) fn fill_route(route: &mut Route, targets: &[RouteTarget], topology: &Topology, cx: &Cx<'_, impl Host>) {
    let mut away = 0;
    for target in targets {
        match is_away(target, topology, cx) {
            true => away += 1,
            false => add_target(route, target, topology),
        }
    }
    let (mut shards, known) = (0, route.groups.len());
    route.groups.retain(|group| {
        let shard = cx.host.shard_of(group.partition);
        shards |= shard.map_or(0, |shard| 1 << shard);
        shard.is_some()
    });
    (route.shards, route.away) = (shards, away + known - route.groups.len());
}

/// Whether a queue lives on one node, which is away: nobody promises its messages.
fn is_away(target: &RouteTarget, topology: &Topology, cx: &Cx<'_, impl Host>) -> bool {
    let Some(node) = topology.sole_member(target.partition) else { return false };
    !cx.host.reaches(node) && topology.queue(target.queue).is_some_and(|queue| topology.home_node(queue).is_some())
}

/// Adds a queue to a route, to the group of its partition.
fn add_target(route: &mut Route, target: &RouteTarget, topology: &Topology) {
    let (mut selective, mut header) = (None, None);
    let durability = match target.durability {
        DurabilityLevel::LeaderWritten => Durability::Level(Level::LeaderWritten),
        DurabilityLevel::LeaderSynced => Durability::Level(Level::LeaderSynced),
        DurabilityLevel::Memory | DurabilityLevel::Written => Durability::Level(Level::Written),
        DurabilityLevel::Synced => Durability::Level(Level::Synced),
        DurabilityLevel::Selective => {
            (selective, header) = selective_of(target.queue, topology);
            Durability::Selective { value: 0 }
        }
    };
    route.needs.durability |= target.durability != DurabilityLevel::Memory;
    route.needs.value |= header.is_some();
    route.needs.majority |= route.needs.durability && !topology.chooses_durability();
    let target_of = Target { queue: target.queue, durability, selective };
    match route.groups.iter_mut().find(|group| group.partition == target.partition) {
        Some(group) => {
            group.targets.push(target_of);
            group.value_headers.push(header);
        }
        None => route.groups.push(Group {
            partition: target.partition,
            targets: SmallVec::from_iter([target_of]),
            value_headers: SmallVec::from_iter([header]),
        }),
    }
}

fn selective_of(queue: QueueId, topology: &Topology) -> (Option<Selective>, Option<broker::topology::Name>) {
    let queue = topology.queue(queue).expect("a route leads to queues that exist, under the same lock");
    let broker::topology::Durability::Selective(bounds) = queue.durability() else {
        unreachable!("the level of a route's target is that of its queue");
    };
    let cap = bounds.value.as_ref().map_or(u64::MAX, |value| value.cap);
    let interval_ms = bounds.interval_ms.map_or(INTERVAL_MS_NEVER, u64::from);
    (Some(Selective { cap, interval_ms }), bounds.value.as_ref().map(|value| value.header.clone()))
}
