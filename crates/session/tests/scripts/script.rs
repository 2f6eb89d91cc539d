//! A session on a stage: a test says what its client and its partitions do, and reads what the
//! session says, line by line.
//!
//! ```text
//!   p1 <- get                  a command to partition 1
//!   topology <- DeclareQueue   a proposal
//!   1: basic.get-empty         an answer to the client, on channel 1
//! ```
//!
//! Invariant: nothing happens that the script does not say: partitions, the topology's log and the
//! clock wait for it.

mod logins;
mod rows;
mod topology;

use amqp::{
    AuthRefused, ChannelError, ChannelId, Confirm, ConnectionError, ConsumerTag, Delivered, Deliveries, Delivery,
    Event, GetDelivery, Mechanism, Millis, Properties, Publish, Reply as Answer, Request, ReturnedMessage, Settle,
    Table, Value,
};
use broker::topology::{Applied, BrokerEvent, Command as Change, Placement, Topology};
use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use partition::message::{Stamp, store};
use partition::{Command, Effect, Message, Reply, RequestId};
use session::report::ConnectionNumber;
use session::{
    Admitted, Client, Common, Count, Cx, DeleteQueue, Histories, Host, Ledger, Limits, LoginLimits, Logins,
    PasswordCheck, Peer, Sampler, Session, Settings, Span, Sums, TopologyKnown, Verdict,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// Where durable queues are placed.
pub(crate) const DURABLE: PartitionId = PartitionId(1);
/// Where the queues of this node's memory are.
pub(crate) const TRANSIENT: PartitionId = PartitionId(9);

/// What was said, in order.
type Log = Rc<RefCell<Vec<String>>>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Something that a partition was asked and answers when the script says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    channel: ChannelKey,
    request: RequestId,
}

/// The node's part.
pub(crate) struct Node {
    log: Log,
    topology: RefCell<Topology>,
    pub(crate) common: Common,
    now: Cell<Millis>,
    last_key: Cell<u64>,
    keys: RefCell<BTreeMap<ChannelKey, u16>>,
    questions: RefCell<Vec<Question>>,
    proposals: RefCell<Vec<(Change, Question)>>,
    /// Who waits until the node knows all, where others decide too.
    catch_ups: RefCell<Vec<Question>>,
    has_peers: bool,
    /// Whether it knows all of the topology.
    pub(crate) known: Cell<TopologyKnown>,
    /// Nodes that cannot be reached.
    pub(crate) unreached: RefCell<BTreeSet<NodeNumber>>,
    pub(crate) reach_changes: Cell<u64>,
    /// Partitions that are not on this node.
    pub(crate) away: RefCell<BTreeSet<PartitionId>>,
    /// The term that the node has heard of.
    pub(crate) term: Cell<u64>,
    pub(crate) ledger: Ledger,
    /// Whether there is room for one more token to look at.
    pub(crate) takes_tokens: Cell<bool>,
    /// Of which messages spans are made.
    pub(crate) sampler: Cell<Option<Sampler>>,
    pub(crate) spans: RefCell<Vec<Span>>,
    /// Spans of what partitions were given, which nothing ends here.
    pub(crate) watched: RefCell<Vec<(PartitionId, Span)>>,
    pub(crate) dropped_spans: Cell<u32>,
    /// Messages that were published, and the bytes of their bodies.
    pub(crate) messages: Cell<u64>,
    pub(crate) sizes: Cell<usize>,
    /// What partitions were given.
    pub(crate) published: RefCell<Vec<partition::Publish>>,
    dice: Cell<u64>,
}

impl Node {
    fn say(&self, line: String) {
        self.log.borrow_mut().push(line);
    }

    fn asked(&self, channel: ChannelKey, request: RequestId) {
        self.questions.borrow_mut().push(Question { channel, request });
    }
}

impl Host for Node {
    type Client = Machine;

    fn common(&self) -> &Common {
        &self.common
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.topology.borrow()
    }

    fn routes_version(&self) -> u64 {
        self.topology.borrow().version() + self.reach_changes.get()
    }

    fn reaches(&self, node: NodeNumber) -> bool {
        !self.unreached.borrow().contains(&node)
    }

    fn now(&self) -> Millis {
        self.now.get()
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.now.get()
    }

    fn random(&self) -> u128 {
        0
    }

    fn check_password(&self, check: PasswordCheck, admit: &mut dyn FnMut() -> Admitted) -> Verdict {
        if admit() == Admitted::No {
            return Verdict::NotAdmitted;
        }
        if check.hash.is_slow() {
            return Verdict::Later;
        }
        if check.hash.matches(&check.password) { Verdict::Right } else { Verdict::Wrong }
    }

    fn check_token(&self, _: Bytes) -> bool {
        self.say("look at token".to_owned());
        self.takes_tokens.get()
    }

    fn dice(&self) -> u64 {
        self.dice.set(self.dice.get() + 1);
        self.dice.get()
    }

    fn shard(&self) -> usize {
        0
    }

    fn shard_of(&self, partition: PartitionId) -> Option<usize> {
        (!self.away.borrow().contains(&partition)).then_some(0)
    }

    fn transient_partition(&self) -> PartitionId {
        TRANSIENT
    }

    fn place_queue(&self, _: &Placement) -> Option<PartitionId> {
        Some(DURABLE)
    }

    fn sync_partition(&self) -> PartitionId {
        DURABLE
    }

    fn is_tracing(&self) -> bool {
        self.sampler.get().is_some()
    }

    fn traces(&self, _: VhostId) -> bool {
        false
    }

    fn sampler(&self) -> Option<Sampler> {
        self.sampler.get()
    }

    fn end_span(&self, span: Box<Span>) {
        self.spans.borrow_mut().push(*span);
    }

    fn drop_span(&self) {
        self.dropped_spans.set(self.dropped_spans.get() + 1);
    }

    fn watch(&self, partition: PartitionId, span: Box<Span>) {
        self.watched.borrow_mut().push((partition, *span));
    }

    fn check_memory(&self) {}

    fn push(&self, partition: PartitionId, command: Command) {
        let what = match &command {
            Command::Publish(publish) => {
                self.published.borrow_mut().push(publish.clone());
                let Message { properties, body, .. } = &publish.message;
                let reply_to = Properties::parse(properties).ok().and_then(|parsed| parsed.reply_to).map(text);
                let reply_to = reply_to.map(|name| format!(" reply to {name}")).unwrap_or_default();
                let more = publish.more.iter().flat_map(|more| more.iter_bytes());
                let bodies: Vec<_> = std::iter::once(body.clone()).chain(more).map(|body| text(&body)).collect();
                format!("publish {} #{}{reply_to}", bodies.join(" "), publish.publish_seq)
            }
            Command::Consume { consumer, request, .. } => {
                self.asked(consumer.key.channel, *request);
                format!("consume {}", consumer.key.number)
            }
            Command::LimitReplies { .. } => "limit replies".to_owned(),
            Command::Cancel { consumer, request, .. } => {
                self.asked(consumer.channel, *request);
                format!("cancel {}", consumer.number)
            }
            Command::Get { channel, request, .. } => {
                self.asked(*channel, *request);
                "get".to_owned()
            }
            Command::Purge { channel, request, .. } => {
                self.asked(*channel, *request);
                "purge".to_owned()
            }
            Command::Stat { channel, request, .. } => {
                self.asked(*channel, *request);
                "stat".to_owned()
            }
            Command::Sync { channel, request } => {
                self.asked(*channel, *request);
                "sync".to_owned()
            }
            Command::Settle { holder, first, count, outcome, .. } => {
                let count = if *count == u64::MAX >> 1 { "all".to_owned() } else { count.to_string() };
                format!("{outcome:?} {count} from {first} of {}", holder.number).to_lowercase()
            }
            Command::Hold { consumer, first, count, .. } => format!("hold {count} from {first} of {}", consumer.number),
            Command::Stall { consumer, stalled, .. } => format!("stall {} {stalled}", consumer.number),
            Command::Grant { consumer, count, .. } => format!("grant {} {count}", consumer.number),
            Command::Detach { .. } => "detach".to_owned(),
            Command::Part { .. } => "part".to_owned(),
            other => format!("{other:?}"),
        };
        self.say(format!("p{} <- {what}", partition.0));
    }

    fn change(&self, change: &Change) -> Applied {
        self.topology.borrow_mut().apply_local(change)
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        let name = format!("{change:?}");
        let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
        self.say(format!("topology <- {}", &name[..end]));
        self.proposals.borrow_mut().push((change, Question { channel, request }));
    }

    fn topology_known(&self, _: Millis) -> TopologyKnown {
        self.known.get()
    }

    fn has_peers(&self) -> bool {
        self.has_peers
    }

    fn catch_up(&self, channel: ChannelKey, request: RequestId) {
        self.say("topology <- catch up".to_owned());
        self.catch_ups.borrow_mut().push(Question { channel, request });
    }

    fn delete_queue(&self, delete: DeleteQueue) {
        let DeleteQueue { partition, if_unused, if_empty, channel, request, .. } = delete;
        self.asked(channel, request);
        self.say(format!("p{} <- delete if unused {if_unused} if empty {if_empty}", partition.0));
    }

    fn open_channel(&self, number: u16) -> ChannelKey {
        self.last_key.set(self.last_key.get() + 1);
        let key = ChannelKey(self.last_key.get().into());
        self.keys.borrow_mut().insert(key, number);
        key
    }

    fn close_channel(&self, channel: ChannelKey) {
        self.keys.borrow_mut().remove(&channel);
    }

    fn note_holder(&self, _: PartitionId) {}

    fn drained(&self, _: PartitionId, _: ChannelKey, _: usize) {}

    fn is_outdated(&self, partition: PartitionId, term: u64) -> bool {
        partition == DURABLE && term < self.term.get()
    }

    fn is_remote(&self, _: PartitionId) -> bool {
        false
    }

    fn count(&self, what: Count, count: u64) {
        if matches!(what, Count::Published) {
            self.messages.set(self.messages.get() + count);
        }
    }

    fn elapsed_us(&self) -> u64 {
        self.now.get() * 1000
    }

    fn note_routed(&self, _: u64) {}

    fn note_confirmed(&self, _: u64) {}

    fn count_size(&self, bytes: usize) {
        self.sizes.set(self.sizes.get() + bytes);
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn tell(&self, news: BrokerEvent) {
        self.say(format!("event {}", news.key));
    }

    fn emit(&self, _: VhostId, exchange: &'static str, key: &[u8], _: &Table, _: Bytes) {
        self.say(format!("{exchange} <- {}", text(key)));
    }
}

/// The protocol machine's part: it remembers who waits and what is not acked, and writes down what
/// it is told.
#[derive(Default)]
pub(crate) struct Machine {
    log: Log,
    waiting: BTreeSet<ChannelId>,
    unacked: BTreeMap<(ChannelId, u32), BTreeSet<u64>>,
    last_tag: u64,
    inputs: u64,
    /// Messages that it wrote for the client, which count as a byte each.
    written: u64,
    pub(crate) knows_cancel: bool,
    pub(crate) is_closing: bool,
    pub(crate) is_finished: bool,
    /// What is left of several messages that came as one, and how often something was.
    left: Option<Publish>,
    pub(crate) times_left: u32,
}

impl Machine {
    fn say(&self, line: String) {
        self.log.borrow_mut().push(line);
    }

    fn tag(&mut self, channel: ChannelId, consumer: u32, no_ack: bool) -> Option<u64> {
        self.last_tag += 1;
        self.written += 1;
        if !no_ack {
            self.unacked.entry((channel, consumer)).or_default().insert(self.last_tag);
        }
        Some(self.last_tag)
    }
}

impl Client for Machine {
    fn authenticated(&mut self, result: Result<(), AuthRefused>) {
        self.say(if result.is_ok() { "connection.tune" } else { "login refused" }.to_owned());
    }

    fn opened(&mut self, result: Result<(), ConnectionError>) {
        self.say(result.map_or_else(|error| format!("error {error}"), |()| "connection.open-ok".to_owned()));
    }

    fn secret_updated(&mut self, result: Result<(), ConnectionError>) {
        match result {
            Ok(()) => self.say("update-secret-ok".to_owned()),
            Err(error) => self.connection_error(error),
        }
    }

    fn reply(&mut self, channel: ChannelId, reply: Answer) {
        assert!(self.waiting.remove(&channel), "{reply:?} answers nobody on channel {channel}");
        let what = match reply {
            Answer::Done => "ok".to_owned(),
            Answer::QueueDeclared { queue, message_count, consumer_count } => {
                format!("queue.declare-ok {} {message_count} {consumer_count}", text(&queue))
            }
            Answer::QueuePurged { message_count } => format!("queue.purge-ok {message_count}"),
            Answer::QueueDeleted { message_count } => format!("queue.delete-ok {message_count}"),
            Answer::Consuming { consumer_tag } => format!("basic.consume-ok {}", text(consumer_tag.as_bytes())),
        };
        self.say(format!("{channel}: {what}"));
    }

    fn channel_error(&mut self, channel: ChannelId, error: ChannelError) {
        self.waiting.remove(&channel);
        self.say(format!("{channel}: error {} {}", error.code.number(), error.text));
    }

    fn left(&mut self) {
        self.say("connection.close-ok".to_owned());
    }

    fn connection_error(&mut self, error: ConnectionError) {
        self.is_closing = true;
        self.say(format!("error {} {}", error.code.number(), error.text));
    }

    fn deliver(&mut self, channel: ChannelId, delivery: &Delivery<'_>) -> Option<u64> {
        let tag = text(delivery.consumer_tag.as_bytes());
        self.say(format!("{channel}: basic.deliver {tag} {}", text(&delivery.message.body)));
        self.tag(channel, delivery.consumer, delivery.no_ack)
    }

    fn get_ok(&mut self, channel: ChannelId, delivery: &GetDelivery<'_>) -> Option<u64> {
        assert!(self.waiting.remove(&channel), "a message that nobody asked for");
        self.say(format!("{channel}: basic.get-ok {} {}", text(&delivery.message.body), delivery.message_count));
        self.tag(channel, delivery.consumer, delivery.no_ack)
    }

    fn get_empty(&mut self, channel: ChannelId) {
        assert!(self.waiting.remove(&channel), "nobody asked for a message");
        self.say(format!("{channel}: basic.get-empty"));
    }

    fn return_message(&mut self, channel: ChannelId, returned: &ReturnedMessage<'_>) {
        self.say(format!("{channel}: basic.return {}", text(&returned.message.body)));
    }

    fn cancel_notify(&mut self, channel: ChannelId, consumer_tag: &ConsumerTag) {
        self.say(format!("{channel}: basic.cancel {}", text(consumer_tag.as_bytes())));
    }

    fn confirm(&mut self, channel: ChannelId, publish_seq: u64, confirm: Confirm) {
        let what = if confirm == Confirm::Ack { "ack" } else { "nack" };
        self.say(format!("{channel}: basic.{what} {publish_seq}"));
    }

    fn put_back(&mut self, publish: Publish) {
        assert!(self.left.replace(publish).is_none(), "one event at a time");
    }

    fn confirm_run(&mut self, channel: ChannelId, first: u64, count: u64, confirm: Confirm) {
        (first..first + count).for_each(|publish_seq| self.confirm(channel, publish_seq, confirm));
    }

    fn abandon_deliveries(&mut self, _: usize) {}

    fn set_short(&mut self, _: bool) {}

    fn knows_cancel(&self) -> bool {
        self.knows_cancel
    }

    fn oldest_unacked(&self, channel: ChannelId, consumer: u32) -> Option<u64> {
        self.unacked.get(&(channel, consumer))?.first().copied()
    }

    fn oldest_unacked_of_each(&self, channel: ChannelId) -> HashMap<u32, u64> {
        let of_channel = self.unacked.iter().filter(|((of, _), _)| *of == channel);
        of_channel.filter_map(|((_, consumer), tags)| Some((*consumer, *tags.first()?))).collect()
    }

    fn unacked_of(&self, channel: ChannelId, consumer: u32) -> Vec<(u64, u64)> {
        self.unacked_of_each(channel).remove(&consumer).unwrap_or_default()
    }

    fn unacked_of_each(&self, channel: ChannelId) -> HashMap<u32, Vec<(u64, u64)>> {
        let of_channel = self.unacked.iter().filter(|((of, _), _)| *of == channel);
        of_channel.map(|((_, consumer), tags)| (*consumer, tags.iter().map(|tag| (*tag, 1)).collect())).collect()
    }

    fn last_delivery_tag(&self, _: ChannelId) -> u64 {
        self.last_tag
    }

    fn unsettled_count(&self, _: ChannelId) -> u64 {
        self.unacked.values().map(|tags| tags.len() as u64).sum()
    }

    fn output_end(&self) -> u64 {
        self.written
    }

    fn input_count(&self) -> u64 {
        self.inputs
    }

    fn is_waiting(&self, channel: ChannelId) -> bool {
        self.waiting.contains(&channel)
    }

    fn is_confirming(&self, _: ChannelId) -> bool {
        false
    }

    fn unconfirmed(&self, _: ChannelId) -> u64 {
        0
    }

    fn oldest_unconfirmed(&self, _: ChannelId) -> Option<u64> {
        None
    }

    fn standing_bytes(&self) -> usize {
        0
    }

    fn waiting_bytes(&self) -> usize {
        0
    }

    fn is_finished(&self) -> bool {
        self.is_finished
    }

    fn is_closing(&self) -> bool {
        self.is_closing
    }

    fn is_blocked(&self) -> bool {
        false
    }

    fn mechanism(&self) -> Option<Mechanism> {
        None
    }

    fn frame_max(&self) -> u32 {
        0
    }

    fn channel_max(&self) -> u16 {
        0
    }

    fn heartbeat_ms(&self) -> u64 {
        0
    }
}

/// A session, and all that it speaks with.
pub(crate) struct Script {
    pub(crate) session: Session,
    pub(crate) machine: Machine,
    pub(crate) node: Node,
    /// How often each channel number was opened.
    openings: BTreeMap<u16, u32>,
}

impl Script {
    /// A client that has just connected from this machine.
    pub(crate) fn connected() -> Script {
        let log = Log::default();
        let address = "127.0.0.1:5000".parse().expect("an address");
        let peer = Peer {
            address,
            local_address: None,
            is_loopback: true,
            certificate_user: None,
            is_own: false,
            token: None,
        };
        let settings = Settings {
            node_name: "leveret@test".to_owned(),
            loopback_users: Vec::new(),
            anonymous_user: "guest".to_owned(),
            consumer_timeout_ms: 8_000,
            stamps: None,
            tells_events: false,
            takes_passwords: true,
            takes_tokens: true,
        };
        let sums = Sums { limits: Limits::new(200_000, 400_000, 1 << 30), waiting_max: 1 << 20, ..Sums::default() };
        let (logins, histories) = (Logins::new(LoginLimits::default()), Histories::new(1 << 20));
        let common = Common { settings, logins, occupancy: Arc::default(), histories, sums };
        let node = Node {
            log: log.clone(),
            topology: RefCell::new(Topology::new()),
            common,
            now: Cell::new(1),
            last_key: Cell::new(0),
            keys: RefCell::default(),
            questions: RefCell::default(),
            proposals: RefCell::default(),
            catch_ups: RefCell::default(),
            has_peers: false,
            known: Cell::new(TopologyKnown::All),
            unreached: RefCell::default(),
            reach_changes: Cell::new(0),
            away: RefCell::default(),
            term: Cell::new(1),
            ledger: Ledger::default(),
            takes_tokens: Cell::new(true),
            sampler: Cell::default(),
            spans: RefCell::default(),
            watched: RefCell::default(),
            dropped_spans: Cell::default(),
            messages: Cell::default(),
            sizes: Cell::default(),
            published: RefCell::default(),
            dice: Cell::new(3),
        };
        let machine = Machine { log, knows_cancel: true, ..Machine::default() };
        Script { session: Session::new(peer, ConnectionNumber(1_000)), machine, node, openings: BTreeMap::new() }
    }

    /// A client that is logged in, with channel 1 open and queue `q` there.
    pub(crate) fn begun() -> Script {
        let mut script = Script::connected();
        script.login("guest");
        script.event(Event::Open { vhost: Bytes::from_static(b"/") });
        script.open(1);
        script.ask(1, declare("q"));
        script.decide();
        script.said();
        script
    }

    /// The lines since they were read last.
    pub(crate) fn said(&mut self) -> Vec<String> {
        self.node.log.take()
    }

    pub(crate) fn event(&mut self, event: Event) {
        let Script { session, machine, node, .. } = self;
        let now = node.now();
        let cx = &mut Cx { client: machine, host: node };
        session.begin_turn(cx);
        session.handle_event(event, cx, now);
        self.go_on();
    }

    /// What is left of several messages that came as one comes next, and what waits until the node knows where it goes.
    fn go_on(&mut self) {
        let Script { session, machine, node, .. } = self;
        let now = node.now();
        let cx = &mut Cx { client: machine, host: node };
        while !session.waits_to_know()
            && let Some(publish) = cx.client.left.take()
        {
            cx.client.times_left += 1;
            session.handle_event(Event::Publish(publish), cx, now);
        }
        session.count_unfinished(0, cx);
    }

    /// A turn in which no event comes.
    pub(crate) fn turn(&mut self) {
        let Script { session, machine, node, .. } = self;
        session.begin_turn(&mut Cx { client: machine, host: node });
        self.go_on();
    }

    /// How many exclusive queues the client has.
    pub(crate) fn owned_queues(&self) -> usize {
        self.node.topology.borrow().exclusive_queues(1_000).count()
    }

    /// The client opens a channel, and hears that it may, which is not noted, or whatever it hears instead.
    pub(crate) fn open(&mut self, number: u16) {
        *self.openings.entry(number).or_default() += 1;
        let channel = self.id(number);
        self.machine.waiting.insert(channel);
        self.event(Event::ChannelOpened { channel });
        let mut said = self.said();
        said.pop_if(|last| *last == format!("{number}: ok"));
        self.node.log.replace(said);
    }

    /// A channel is closed, by whichever side.
    pub(crate) fn close(&mut self, number: u16) {
        let channel = self.id(number);
        self.machine.waiting.remove(&channel);
        self.event(Event::ChannelClosed { channel, unsettled: Deliveries::new(), error: None });
    }

    /// Channels are closed, as many of them as one turn may; says how many those were.
    pub(crate) fn close_in_one_turn(&mut self, numbers: &[u16]) -> usize {
        self.turn();
        let ends = numbers.iter().take_while(|number| {
            let channel = self.id(**number);
            let event = Event::ChannelClosed { channel, unsettled: Deliveries::new(), error: None };
            let is_in_turn = !self.session.ends_turn();
            if is_in_turn {
                let Script { session, machine, node, .. } = self;
                let now = node.now();
                session.handle_event(event, &mut Cx { client: machine, host: node }, now);
            }
            is_in_turn
        });
        ends.count()
    }

    pub(crate) fn channel(&self, number: u16) -> ChannelId {
        self.id(number)
    }

    fn id(&self, number: u16) -> ChannelId {
        ChannelId::new(number, self.openings.get(&number).copied().unwrap_or(0))
    }

    /// The client asks for something.
    pub(crate) fn ask(&mut self, number: u16, request: Request) {
        self.machine.inputs += 1;
        self.ask_too(number, request);
    }

    /// The client had asked for this too by the time of its last words.
    pub(crate) fn ask_too(&mut self, number: u16, request: Request) {
        let channel = self.id(number);
        self.machine.waiting.insert(channel);
        self.event(Event::Request { channel, request });
    }

    /// The client publishes over the default exchange, as the publish of this number.
    pub(crate) fn publish(&mut self, number: u16, queue: &str, body: &str, publish_seq: u64) {
        self.publish_with(number, queue, body, publish_seq, &[0, 0]);
    }

    pub(crate) fn publish_with(&mut self, number: u16, queue: &str, body: &str, publish_seq: u64, properties: &[u8]) {
        self.event(Event::Publish(Publish {
            channel: self.id(number),
            exchange: Bytes::new(),
            routing_key: Bytes::copy_from_slice(queue.as_bytes()),
            mandatory: false,
            properties: Bytes::copy_from_slice(properties),
            body: Bytes::copy_from_slice(body.as_bytes()),
            publish_seq,
            more: None,
        }));
    }

    /// The client publishes an empty message to an exchange.
    pub(crate) fn publish_to(&mut self, number: u16, exchange: &'static [u8], publish_seq: u64) {
        let exchange = Bytes::from_static(exchange);
        let (routing_key, properties, body) = (Bytes::new(), Bytes::from_static(&[0, 0]), Bytes::new());
        let channel = self.id(number);
        self.event(Event::Publish(Publish {
            channel,
            exchange,
            routing_key,
            mandatory: false,
            properties,
            body,
            publish_seq,
            more: None,
        }));
    }

    /// The operator changes something.
    pub(crate) fn decree(&mut self, change: Change) {
        self.node.topology.borrow_mut().apply(&change).outcome.expect("it is lawful");
    }

    /// The client acks one message of a consumer.
    pub(crate) fn ack(&mut self, number: u16, consumer: u32, seq: u64) {
        let channel = self.id(number);
        if let Some(tags) = self.machine.unacked.get_mut(&(channel, consumer)) {
            tags.pop_first();
        }
        let deliveries = deliveries(consumer, seq);
        self.event(Event::Settle(Settle { channel, outcome: amqp::Settlement::Ack, deliveries }));
    }

    /// What was asked last.
    pub(crate) fn question(&self) -> Question {
        *self.node.questions.borrow().last().expect("something was asked")
    }

    /// A partition answers what was asked last.
    pub(crate) fn answer(&mut self, reply: Reply) {
        self.answer_to(self.question(), reply);
    }

    pub(crate) fn answer_to(&mut self, question: Question, reply: Reply) {
        let Question { channel, request } = question;
        self.effect(channel, Effect::Reply { channel, request, reply });
    }

    /// The key of an open channel.
    pub(crate) fn key(&self, number: u16) -> ChannelKey {
        let keys = self.node.keys.borrow();
        let found = keys.iter().filter(|(_, known)| **known == number).map(|(key, _)| *key).next_back();
        found.expect("the channel is open")
    }

    /// An effect for the channel that had this key when a partition learnt it: number 1, whoever
    /// has that number now.
    pub(crate) fn effect(&mut self, key: ChannelKey, effect: Effect) {
        let number = self.node.keys.borrow().get(&key).copied().unwrap_or(1);
        let Script { session, machine, node, .. } = self;
        session.handle_effect((key, number), effect, &mut Cx { client: machine, host: node });
    }

    /// Somebody else leads a partition.
    pub(crate) fn hold_again(&mut self, partition: PartitionId) {
        let Script { session, machine, node, .. } = self;
        session.hold_again(&[partition], &mut Cx { client: machine, host: node });
    }

    /// A partition gives a consumer of channel 1 a message.
    pub(crate) fn deliver(&mut self, consumer: u32, seq: u64, body: &str) {
        let channel = self.key(1);
        let delivery = delivery(ConsumerKey { channel, number: consumer }, seq, body);
        self.effect(channel, Effect::Deliver(delivery));
    }

    /// The socket takes what was written for the client up to its `messages`-th message.
    pub(crate) fn write(&mut self, messages: u64) {
        self.session.spans_written(messages, &self.node);
    }

    /// The socket is gone.
    pub(crate) fn lose_socket(&mut self) {
        self.session.spans_of_connection_end(&self.node);
    }

    /// Time goes by, and the session is called when it asked for that.
    pub(crate) fn pass(&mut self, ms: Millis) {
        let until = self.node.now.get() + ms;
        loop {
            let next = self.session.poll_timeout().min(until);
            self.node.now.set(next.max(self.node.now.get()));
            let Script { session, machine, node, .. } = self;
            let now = node.now.get();
            if session.poll_timeout() > now {
                return;
            }
            session.handle_timeout(&mut Cx { client: machine, host: node }, now);
            assert!(session.poll_timeout() > now, "it asks for a time that has come");
        }
    }
}

/// A message on its way to a consumer.
pub(crate) fn delivery(consumer: ConsumerKey, seq: u64, body: &str) -> partition::Delivery {
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::copy_from_slice(body.as_bytes()),
    };
    let mut stored = Vec::new();
    store(&message, 0, Stamp::None, &mut stored);
    let (queue, needs_ack, redelivered) = (QueueId(1), true, false);
    partition::Delivery {
        consumer,
        queue,
        seq,
        needs_ack,
        redelivered,
        counts: Default::default(),
        term: 1,
        message: stored.into(),
    }
}

/// One message of one consumer.
pub(crate) fn deliveries(consumer: u32, seq: u64) -> Deliveries {
    Deliveries::from_iter([Delivered { consumer, first_seq: seq, count: 1 }])
}

/// A durable queue.
pub(crate) fn declare(name: &'static str) -> Request {
    let queue = Bytes::from_static(name.as_bytes());
    let (durable, exclusive, auto_delete, arguments) = (true, false, false, Table::new());
    Request::QueueDeclare { queue, durable, exclusive, auto_delete, arguments, passive: false }
}

pub(crate) fn get() -> Request {
    Request::Get { queue: Bytes::from_static(b"q"), no_ack: false }
}

pub(crate) fn consume(queue: &'static str, no_ack: bool) -> Request {
    let (queue, consumer_tag) = (Bytes::from_static(queue.as_bytes()), ConsumerTag::new(Bytes::from_static(b"c")));
    Request::Consume { queue, consumer_tag, no_ack, exclusive: false, arguments: Table::new(), no_local: false }
}

pub(crate) fn delete(if_unused: bool) -> Request {
    Request::QueueDelete { queue: Bytes::from_static(b"q"), if_unused, if_empty: false }
}

/// The properties of a message with a header CC.
pub(crate) fn copied_to(queue: &str) -> Vec<u8> {
    let mut table = Table::new();
    table.push("CC", Value::Array(vec![Value::LongString(Bytes::copy_from_slice(queue.as_bytes()))]));
    let (fields, mut encoded) = (table.encode(), Vec::new());
    Properties { headers: Some(&fields[4..]), ..Properties::default() }.encode_to(&mut encoded);
    encoded
}
