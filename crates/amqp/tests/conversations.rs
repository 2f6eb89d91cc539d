//! Properties of whole conversations: a client that mostly keeps the rules, and a broker that
//! answers late and in any order.
//!
//! What must hold at every step: publishes come in order and once; a delivery is exactly one of
//! outstanding, settled, or left behind by its channel; a request is asked once and only while its
//! channel has no other; a channel that closed is not heard of again; what was sent is confirmed to
//! the client as the broker said.

mod client;

use std::collections::{BTreeMap, BTreeSet};

use amqp::wire::method::Method;
use amqp::{
    ChannelError, ChannelId, Confirm, ConnectionConfig, ConsumerTag, Deliveries, Delivery, Event, GetDelivery,
    MessageParts, Reply, ReplyCode, Request,
};
use bytes::Bytes;
use client::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Publish(u16, usize),
    Declare(u16, bool),
    Consume(u16, bool),
    Cancel(u16),
    Get(u16),
    Recover(u16),
    Settle { channel: u16, pick: u64, multiple: bool, requeue: bool },
    CloseChannel(u16),
    OpenChannel(u16),
    BrokerReplies(usize),
    BrokerDelivers(u16, u32, u8),
    BrokerConfirms(usize, bool),
    BrokerFlushes,
    BrokerCancels(u16),
    BrokerFails(u16),
    Block(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let channel = || 1u16..4;
    prop_oneof![
        4 => (channel(), prop_oneof![0usize..50, Just(5000)]).prop_map(|(c, n)| Step::Publish(c, n)),
        2 => (channel(), any::<bool>()).prop_map(|(c, n)| Step::Declare(c, n)),
        1 => (channel(), any::<bool>()).prop_map(|(c, n)| Step::Consume(c, n)),
        1 => channel().prop_map(Step::Cancel),
        1 => channel().prop_map(Step::Get),
        1 => channel().prop_map(Step::Recover),
        5 => (channel(), any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(channel, pick, multiple, requeue)| Step::Settle { channel, pick, multiple, requeue }),
        1 => channel().prop_map(Step::CloseChannel),
        2 => channel().prop_map(Step::OpenChannel),
        6 => any::<usize>().prop_map(Step::BrokerReplies),
        5 => (channel(), 1u32..4, any::<u8>()).prop_map(|(c, n, o)| Step::BrokerDelivers(c, n, o)),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(n, a)| Step::BrokerConfirms(n, a)),
        2 => Just(Step::BrokerFlushes),
        1 => channel().prop_map(Step::BrokerCancels),
        1 => channel().prop_map(Step::BrokerFails),
        1 => any::<bool>().prop_map(Step::Block),
    ]
}

/// What both sides know of a channel that is open.
#[derive(Debug)]
struct Known {
    id: ChannelId,
    /// By tag: consumer and sequence number.
    outstanding: BTreeMap<u64, (u32, u64)>,
    /// Tags that the client settled, in frames that the machine may not have come to yet.
    settling: BTreeSet<u64>,
    published: u64,
    seen: u64,
    /// What the broker said of each publish, and what the client heard.
    said: BTreeMap<u64, Confirm>,
    heard: BTreeMap<u64, Confirm>,
    waits: bool,
}

struct World {
    client: Client,
    channels: BTreeMap<u16, Known>,
    /// Channels for which the broker closed and the client has not answered, or asked to close and
    /// got no answer.
    closing: BTreeSet<u16>,
    /// Channels whose opening the machine has not come to yet.
    opening: BTreeSet<u16>,
    requests: Vec<(ChannelId, Request)>,
    unconfirmed: Vec<(ChannelId, u64)>,
    seq: u64,
}

impl World {
    fn new() -> Self {
        let config = ConnectionConfig { pending_frames_max: 40, pending_bytes_max: 20_000, ..Default::default() };
        let client = Client::open_with(config, capable(), tune_ok(10, 4096, 0));
        Self {
            client,
            channels: BTreeMap::new(),
            closing: BTreeSet::new(),
            opening: BTreeSet::new(),
            requests: vec![],
            unconfirmed: vec![],
            seq: 0,
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::OpenChannel(number) if self.is_free(number) => {
                self.opening.insert(number);
                self.client.send(number, channel_open());
                self.client.send(number, Method::ConfirmSelect { no_wait: true });
                self.look();
            }
            Step::BrokerReplies(pick) if !self.requests.is_empty() => {
                let (channel, request) = self.requests.remove(pick % self.requests.len());
                if let Some(known) = self.known(channel) {
                    known.waits = false;
                }
                self.reply(channel, request);
            }
            Step::BrokerConfirms(pick, ack) if !self.unconfirmed.is_empty() => {
                let (channel, seq) = self.unconfirmed.remove(pick % self.unconfirmed.len());
                let confirm = if ack { Confirm::Ack } else { Confirm::Nack };
                if let Some(known) = self.known(channel) {
                    known.said.insert(seq, confirm);
                }
                self.client.connection.confirm(channel, seq, confirm);
            }
            Step::BrokerFlushes => self.client.connection.flush_confirms(),
            Step::Block(blocked) => self.client.connection.set_blocked(blocked.then_some("low on disk")),
            Step::BrokerDelivers(number, consumer, options) => self.deliver(number, consumer, options),
            Step::BrokerCancels(number) => {
                if let Some(known) = self.channels.get(&number) {
                    let tag = ConsumerTag::new(Bytes::from_static(b"ctag"));
                    self.client.connection.cancel_notify(known.id, &tag);
                }
            }
            Step::BrokerFails(number) => {
                if let Some(known) = self.channels.get(&number) {
                    let id = known.id;
                    self.client.connection.channel_error(id, ChannelError::new(ReplyCode::NotFound, "gone"));
                }
            }
            step => self.client_step(step),
        }
        self.look();
    }

    fn client_step(&mut self, step: Step) {
        let number = match &step {
            Step::Publish(n, _) | Step::Declare(n, _) | Step::Consume(n, _) | Step::Cancel(n) | Step::Get(n) => *n,
            Step::Recover(n) | Step::CloseChannel(n) | Step::Settle { channel: n, .. } => *n,
            _ => return,
        };
        if self.closing.contains(&number) {
            return;
        }
        let Some(known) = self.channels.get_mut(&number) else { return };
        let queue = Bytes::from_static(b"q");
        match step {
            Step::Publish(_, size) => {
                known.published += 1;
                let mut body = known.published.to_be_bytes().to_vec();
                body.resize(8 + size, 7);
                let mut bytes = Vec::new();
                publish_method("q").write(&mut bytes, number);
                amqp::wire::frame::write_frame(&mut bytes, 2, number, |w| w.raw(&header_payload(body.len() as u64)));
                for part in body.chunks(4088) {
                    amqp::wire::frame::write_frame(&mut bytes, 3, number, |w| w.raw(part));
                }
                self.client.raw(&bytes);
            }
            Step::Declare(_, no_wait) => self.client.send(number, declare("q", no_wait)),
            // A tag in use costs the connection: only one consumer, and only when nothing is on its
            // way.
            Step::Consume(_, _) if known.waits => {}
            Step::Consume(_, unique) => {
                let tag = if unique { Bytes::from(format!("t{}", self.seq)) } else { Bytes::new() };
                self.seq += 1;
                self.client.send(number, consume(tag));
            }
            Step::Cancel(_) => {
                self.client
                    .send(number, Method::BasicCancel { consumer_tag: Bytes::from_static(b"ctag"), no_wait: false });
            }
            Step::Get(_) => self.client.send(number, Method::BasicGet { ticket: 0, queue, no_ack: false }),
            Step::Recover(_) if known.settling.is_empty() => {
                self.client.send(number, Method::BasicRecover { requeue: true });
                // From here on the client may not settle what it had.
                known.settling.extend(known.outstanding.keys().copied());
            }
            Step::Recover(_) => {}
            Step::Settle { pick, multiple, requeue, .. } => {
                let open: Vec<u64> =
                    known.outstanding.keys().filter(|t| !known.settling.contains(t)).copied().collect();
                let Some(&tag) = open.get(pick as usize % open.len().max(1)) else { return };
                let covered = open.iter().filter(|t| **t == tag || multiple && **t < tag);
                known.settling.extend(covered);
                self.client.send(number, Method::BasicNack { delivery_tag: tag, multiple, requeue });
            }
            Step::CloseChannel(_) => {
                self.closing.insert(number);
                let close =
                    Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 };
                self.client.send(number, close);
            }
            _ => unreachable!("the broker's steps were taken before"),
        }
    }

    fn is_free(&self, number: u16) -> bool {
        !self.channels.contains_key(&number) && !self.closing.contains(&number) && !self.opening.contains(&number)
    }

    fn known(&mut self, id: ChannelId) -> Option<&mut Known> {
        self.channels.get_mut(&id.number()).filter(|known| known.id == id)
    }

    fn deliver(&mut self, number: u16, consumer: u32, options: u8) {
        let Some(known) = self.channels.get_mut(&number) else { return };
        // Often the next message in order, sometimes a leap.
        self.seq += if options.is_multiple_of(4) { 2 } else { 1 };
        let body = Bytes::from_static(b"body");
        let message = MessageParts { exchange: b"", routing_key: b"q", properties: &[0, 0], body: (&body).into() };
        let consumer_tag = &ConsumerTag::new(Bytes::from_static(b"ctag"));
        let no_ack = options.is_multiple_of(5);
        let delivery = Delivery { consumer_tag, consumer, seq: self.seq, redelivered: false, no_ack, message };
        let tag = self.client.connection.deliver(known.id, &delivery).expect("the channel is open");
        if !no_ack {
            known.outstanding.insert(tag, (consumer, self.seq));
        }
    }

    fn reply(&mut self, channel: ChannelId, request: Request) {
        let queue = Bytes::from_static(b"q");
        let connection = &mut self.client.connection;
        match request {
            Request::QueueDeclare { .. } => {
                connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
            }
            Request::Consume { consumer_tag, .. } if consumer_tag.is_empty() => {
                self.seq += 1;
                let consumer_tag = ConsumerTag::new(Bytes::from(format!("amq.ctag-{}", self.seq)));
                connection.reply(channel, Reply::Consuming { consumer_tag });
            }
            Request::Consume { consumer_tag, .. } => connection.reply(channel, Reply::Consuming { consumer_tag }),
            Request::Get { .. } if self.seq.is_multiple_of(3) => connection.get_empty(channel),
            Request::Get { .. } => {
                self.seq += 1;
                let body = Bytes::from_static(b"got");
                let message =
                    MessageParts { exchange: b"", routing_key: b"q", properties: &[0, 0], body: (&body).into() };
                let (consumer, seq) = (99, self.seq);
                let get = GetDelivery { consumer, seq, redelivered: false, no_ack: false, message_count: 0, message };
                if let Some(tag) = connection.get_ok(channel, &get) {
                    self.known(channel).expect("it is open").outstanding.insert(tag, (consumer, seq));
                }
            }
            _ => connection.reply(channel, Reply::Done),
        }
    }

    /// Takes what the machine says, to the broker and to the client.
    fn look(&mut self) {
        // What could not be taken before may be taken now.
        self.client.raw(&[]);
        for event in self.client.events() {
            self.hear(event);
        }
        for sent in self.client.read() {
            if let Sent::Method(number, method) = sent {
                self.read(number, method);
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::ChannelOpened { channel } => {
                self.opening.remove(&channel.number());
                self.client.connection.reply(channel, Reply::Done);
                let known = Known {
                    id: channel,
                    outstanding: BTreeMap::new(),
                    settling: BTreeSet::new(),
                    published: 0,
                    seen: 0,
                    said: BTreeMap::new(),
                    heard: BTreeMap::new(),
                    waits: false,
                };
                assert!(self.channels.insert(channel.number(), known).is_none(), "a number is open once at a time");
            }
            Event::Publish(publish) => {
                let known = self.known(publish.channel).expect("an open channel publishes");
                known.seen += 1;
                let number: [u8; 8] = publish.body[..8].try_into().expect("eight bytes");
                assert_eq!((u64::from_be_bytes(number), publish.publish_seq), (known.seen, known.seen));
                self.unconfirmed.push((publish.channel, publish.publish_seq));
            }
            Event::Settle(settle) => {
                let known = self.known(settle.channel).expect("an open channel settles");
                known.settled(&settle.deliveries);
            }
            Event::Request { channel, request } => {
                let known = self.known(channel).expect("an open channel asks");
                assert!(!known.waits, "one request at a time");
                known.waits = true;
                if let Request::Recover { unsettled } = &request {
                    let left: Vec<(u32, u64)> = known.outstanding.values().copied().collect();
                    assert_eq!(each(unsettled), left, "recover hands over everything, in order");
                    known.outstanding.clear();
                    known.settling.clear();
                }
                self.requests.push((channel, request));
            }
            Event::ChannelClosed { channel, unsettled, .. } => {
                let known = self.channels.remove(&channel.number()).expect("an open channel closes");
                assert_eq!(known.id, channel);
                let left: Vec<(u32, u64)> = known.outstanding.values().copied().collect();
                assert_eq!(each(&unsettled), left, "what is left is what nobody settled, in order");
                self.requests.retain(|(id, _)| *id != channel || self.seq.is_multiple_of(2));
            }
            other => panic!("this client keeps the rules, but {other:?}"),
        }
    }

    fn read(&mut self, number: u16, method: Method) {
        let (tag, multiple, confirm) = match method {
            Method::BasicAck { delivery_tag, multiple } => (delivery_tag, multiple, Confirm::Ack),
            Method::BasicNack { delivery_tag, multiple, .. } => (delivery_tag, multiple, Confirm::Nack),
            Method::ChannelCloseOk {} => {
                self.closing.remove(&number);
                return;
            }
            Method::ChannelClose { .. } => {
                self.client.send(number, Method::ChannelCloseOk {});
                self.closing.remove(&number);
                return;
            }
            _ => return,
        };
        let Some(known) = self.channels.get_mut(&number) else { return };
        let first = if multiple { 1 } else { tag };
        for seq in first..=tag {
            known.heard.entry(seq).or_insert(confirm);
        }
        for (seq, heard) in &known.heard {
            assert_eq!(known.said.get(seq), Some(heard), "publish {seq}");
        }
    }
}

impl Known {
    fn settled(&mut self, deliveries: &Deliveries) {
        for delivery in each(deliveries) {
            let tag = self.outstanding.iter().find(|(_, d)| **d == delivery).map(|(tag, _)| *tag);
            let tag = tag.expect("a delivery is settled once");
            self.outstanding.remove(&tag);
            assert!(self.settling.remove(&tag), "only what the client settled");
        }
    }
}

fn each(deliveries: &Deliveries) -> Vec<(u32, u64)> {
    let one = |run: &amqp::Delivered| {
        let consumer = run.consumer;
        (run.first_seq..run.first_seq + u64::from(run.count)).map(move |seq| (consumer, seq)).collect::<Vec<_>>()
    };
    deliveries.iter().flat_map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_they_say_the_sums_are_right(steps in proptest::collection::vec(step(), 1..200)) {
        let mut world = World::new();
        (1..4).for_each(|number| world.run(Step::OpenChannel(number)));
        for step in steps {
            world.run(step);
        }
        // In the end everything that waits is answered, and nothing is left over.
        world.run(Step::Block(false));
        while !world.requests.is_empty() {
            world.run(Step::BrokerReplies(0));
        }
        while !world.unconfirmed.is_empty() {
            world.run(Step::BrokerConfirms(0, true));
        }
        world.run(Step::BrokerFlushes);
        prop_assert!(world.client.connection.wants_input());
        prop_assert!(world.client.input.is_empty());
        for known in world.channels.values() {
            prop_assert_eq!(known.seen, known.published);
            prop_assert_eq!(&known.heard, &known.said);
            prop_assert_eq!(known.said.len() as u64, known.published);
            prop_assert!(known.settling.is_empty());
            let left = each(&world.client.connection.unsettled(known.id));
            prop_assert_eq!(left, known.outstanding.values().copied().collect::<Vec<_>>());
        }
        world.client.connection.handle_disconnect();
        let open = world.channels.len();
        let mut events = world.client.events();
        prop_assert!(matches!(events.pop(), Some(Event::Closed(_))));
        prop_assert_eq!(events.len(), open);
    }
}
