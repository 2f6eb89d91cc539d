//! What a message costs from the bytes of its publish to those of its confirm, its delivery and its ack:
//! protocol, session and a queue in memory, to count instructions.
//!
//! `session_cost SLICES MESSAGES plain|headers|traced off|on|one`: messages without headers, with five of
//! them, or with five of which one is a trace of their publisher; no spans, spans of what publishers trace,
//! or of each message.
//!
//! ```text
//! cargo build --release -p session --example session_cost
//! valgrind --tool=callgrind target/release/examples/session_cost 200 32 plain off
//! ```
//!
//! Invariant: nothing here depends on time or chance, so two runs with different numbers of slices
//! differ by exactly what the further messages cost, and a change of the code shows however busy
//! the machine is.
#![allow(clippy::unwrap_used, reason = "nothing here can fail")]

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, PROTOCOL_HEADER, write_frame};
use amqp::wire::method::Method;
use amqp::{Connection, ConnectionConfig, Millis, Properties, Table, Value};
use broker::topology::{Applied, BrokerEvent, Command as Change, Placement, Topology};
use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, QueueId, VhostId};
use bytes::{Bytes, BytesMut};
use partition::TransientQueues;
use partition::command::{Command, Effect, Outlets, RequestId};
use session::report::ConnectionNumber;
use session::{
    Admitted, Common, Count, Cx, DeleteQueue, Histories, Host, Ledger, Limits, LoginLimits, Logins, PasswordCheck,
    Peer, Sampler, Session, Settings, Span, Sums, Tally, TopologyKnown, Verdict,
};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::ops::Deref;
use std::sync::Arc;

const QUEUES: PartitionId = PartitionId(1);
const BODY: &[u8] = &[0; 100];

struct Open;

impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

struct Node {
    common: Common,
    topology: RefCell<Topology>,
    pushed: RefCell<Vec<Command>>,
    proposed: RefCell<Vec<(Change, ChannelKey, RequestId)>>,
    tally: Tally,
    ledger: Ledger,
    last_key: Cell<u64>,
    dice: Cell<u64>,
    sampler: Option<Sampler>,
    spans: Cell<u64>,
}

impl Host for Node {
    type Client = Connection;

    fn common(&self) -> &Common {
        &self.common
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.topology.borrow()
    }

    #[inline]
    fn routes_version(&self) -> u64 {
        self.topology.borrow().version()
    }

    fn reaches(&self, _: NodeNumber) -> bool {
        true
    }

    fn now(&self) -> Millis {
        1
    }

    fn wall_ms(&self) -> u64 {
        1
    }

    fn random(&self) -> u128 {
        4
    }

    fn check_password(&self, check: PasswordCheck, admit: &mut dyn FnMut() -> Admitted) -> Verdict {
        admit();
        if check.hash.matches(&check.password) { Verdict::Right } else { Verdict::Wrong }
    }

    fn check_token(&self, _: Bytes) -> bool {
        false
    }

    fn dice(&self) -> u64 {
        self.dice.set(self.dice.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        self.dice.get()
    }

    fn shard(&self) -> usize {
        0
    }

    fn shard_of(&self, _: PartitionId) -> Option<usize> {
        Some(0)
    }

    fn is_remote(&self, _: PartitionId) -> bool {
        false
    }

    fn is_outdated(&self, _: PartitionId, _: u64) -> bool {
        false
    }

    fn transient_partition(&self) -> PartitionId {
        QUEUES
    }

    fn place_queue(&self, _: &Placement) -> Option<PartitionId> {
        Some(QUEUES)
    }

    fn sync_partition(&self) -> PartitionId {
        QUEUES
    }

    #[inline]
    fn is_tracing(&self) -> bool {
        self.sampler.is_some()
    }

    fn traces(&self, _: VhostId) -> bool {
        false
    }

    fn sampler(&self) -> Option<Sampler> {
        self.sampler
    }

    fn end_span(&self, span: Box<Span>) {
        black_box(&span);
        self.spans.set(self.spans.get() + 1);
    }

    fn drop_span(&self) {}

    fn watch(&self, _: PartitionId, span: Box<Span>) {
        self.end_span(span);
    }

    fn check_memory(&self) {}

    #[inline]
    fn push(&self, _: PartitionId, command: Command) {
        self.pushed.borrow_mut().push(command);
    }

    fn change(&self, change: &Change) -> Applied {
        self.topology.borrow_mut().apply_local(change)
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        self.proposed.borrow_mut().push((change, channel, request));
    }

    #[inline]
    fn topology_known(&self, _: Millis) -> TopologyKnown {
        TopologyKnown::All
    }

    fn has_peers(&self) -> bool {
        false
    }

    fn catch_up(&self, _: ChannelKey, _: RequestId) {}

    fn delete_queue(&self, _: DeleteQueue) {}

    fn open_channel(&self, _: u16) -> ChannelKey {
        self.last_key.set(self.last_key.get() + 1);
        ChannelKey(self.last_key.get().into())
    }

    fn close_channel(&self, _: ChannelKey) {}

    fn note_holder(&self, _: PartitionId) {}

    fn drained(&self, _: PartitionId, _: ChannelKey, _: usize) {}

    #[inline]
    fn count(&self, what: Count, count: u64) {
        self.tally.add(what, count);
    }

    fn elapsed_us(&self) -> u64 {
        1
    }

    fn note_routed(&self, _: u64) {}

    fn note_confirmed(&self, _: u64) {}

    #[inline]
    fn count_size(&self, bytes: usize) {
        self.tally.add_size(bytes);
    }

    #[inline]
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn tell(&self, _: BrokerEvent) {}

    fn emit(&self, _: VhostId, _: &'static str, _: &[u8], _: &Table, _: Bytes) {}
}

/// A client's connection and its session.
struct End {
    amqp: Connection,
    session: Session,
    key: ChannelKey,
    input: BytesMut,
}

impl End {
    /// One that is logged in and has channel 1 open.
    fn new(number: u64, node: &Node) -> End {
        let peer = Peer {
            address: "127.0.0.1:5000".parse().unwrap(),
            local_address: None,
            is_loopback: true,
            certificate_user: None,
            is_own: false,
            token: None,
        };
        let amqp = Connection::new(Arc::new(ConnectionConfig::default()), 0);
        let session = Session::new(peer, ConnectionNumber(number));
        let mut end = End { amqp, session, key: ChannelKey(number.into()), input: BytesMut::new() };
        let login = Method::ConnectionStartOk {
            client_properties: Table::new(),
            mechanism: Bytes::from_static(b"PLAIN"),
            response: Bytes::from_static(b"\0guest\0guest"),
            locale: Bytes::from_static(b"en_US"),
        };
        let (virtual_host, capabilities) = (Bytes::from_static(b"/"), Bytes::new());
        end.read(&PROTOCOL_HEADER, node);
        for (channel, method) in [
            (0, login),
            (0, Method::ConnectionTuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 }),
            (0, Method::ConnectionOpen { virtual_host, capabilities, insist: false }),
            (1, Method::ChannelOpen { out_of_band: Bytes::new() }),
        ] {
            end.say(channel, &method, node);
        }
        end
    }

    fn say(&mut self, channel: u16, method: &Method, node: &Node) {
        let mut bytes = Vec::new();
        method.write(&mut bytes, channel);
        self.read(&bytes, node);
    }

    /// As a socket's bytes are taken.
    fn read(&mut self, bytes: &[u8], node: &Node) {
        self.input.extend_from_slice(bytes);
        self.amqp.handle_input(&mut self.input, 1);
        let cx = &mut Cx { client: &mut self.amqp, host: node };
        self.session.begin_turn(cx);
        while let Some(event) = cx.client.poll_event() {
            self.session.handle_event(event, cx, 1);
        }
        self.session.count_unfinished(0, cx);
        for (change, channel, request) in node.proposed.take() {
            let outcome = node.topology.borrow_mut().apply(&change).outcome;
            self.session.handle_decided((channel, 1), request, outcome, cx);
        }
    }

    /// As a socket takes what there is to write; how many bytes.
    fn write(&mut self, node: &Node) -> usize {
        self.amqp.flush_confirms();
        let bytes = self.amqp.output().len();
        self.amqp.wrote(bytes, 1);
        if self.session.has_unwritten_spans() {
            self.session.spans_written(self.amqp.output().written_bytes(), node);
        }
        bytes
    }
}

fn properties(kind: &str) -> Vec<u8> {
    let text = |text: &str| Value::LongString(Bytes::copy_from_slice(text.as_bytes()));
    let mut table = Table::new();
    if kind != "plain" {
        for name in ["x-tenant", "x-region", "x-version", "x-kind"] {
            table.push(name, text("a value of some length"));
        }
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        table.push(if kind == "traced" { "traceparent" } else { "x-no-parent" }, text(parent));
    }
    let (fields, mut encoded) = (table.encode(), Vec::new());
    let headers = (kind != "plain").then_some(&fields[4..]);
    Properties { headers, delivery_mode: Some(2), ..Properties::default() }.encode_to(&mut encoded);
    encoded
}

fn node(spans: &str) -> Node {
    let settings = Settings {
        node_name: "leveret@here".to_owned(),
        loopback_users: Vec::new(),
        anonymous_user: String::new(),
        consumer_timeout_ms: 0,
        stamps: None,
        tells_events: false,
        takes_passwords: true,
        takes_tokens: false,
    };
    let sums = Sums { limits: Limits::new(1 << 30, 1 << 30, 1 << 30), waiting_max: 1 << 20, ..Sums::default() };
    let (logins, histories) = (Logins::new(LoginLimits::default()), Histories::new(1 << 20));
    let sampler = match spans {
        "off" => None,
        "on" => Some(Sampler::default()),
        _ => Some(Sampler::new(Sampler::ONE)),
    };
    Node {
        common: Common { settings, logins, occupancy: Arc::default(), histories, sums },
        topology: RefCell::new(Topology::new()),
        pushed: RefCell::default(),
        proposed: RefCell::default(),
        tally: Tally::default(),
        ledger: Ledger::default(),
        last_key: Cell::new(0),
        dice: Cell::new(1),
        sampler,
        spans: Cell::new(0),
    }
}

/// Has the queues carry out what was pushed, and the ends hear of it.
fn step(queues: &mut TransientQueues, effects: &mut Vec<Effect>, node: &Node, ends: &mut [End; 2]) {
    let mut pushed = node.pushed.take();
    queues.step(1, &mut pushed, effects, &mut Open);
    *node.pushed.borrow_mut() = pushed;
    for effect in effects.drain(..) {
        let Some(channel) = effect.channel() else { continue };
        let end = ends.iter_mut().find(|end| end.key == channel).unwrap();
        end.session.handle_effect((channel, 1), effect, &mut Cx { client: &mut end.amqp, host: node });
    }
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| given.get(at).and_then(|text| text.parse::<usize>().ok());
    let word = |at: usize| given.get(at).map_or("", String::as_str);
    let (Some(slices), Some(messages)) = (number(0), number(1)) else {
        eprintln!("session_cost SLICES MESSAGES plain|headers|traced off|on|one");
        std::process::exit(2);
    };
    let node = node(word(3));
    let mut ends = [End::new(1, &node), End::new(2, &node)];
    let (mut queues, mut effects) = (TransientQueues::new(), Vec::new());
    let q = || Bytes::from_static(b"q");
    let (exclusive, auto_delete, passive, no_wait, no_local, no_ack) = (false, false, false, true, false, false);
    let (ticket, arguments) = (0, Table::new());
    let declare =
        Method::QueueDeclare { ticket, queue: q(), passive, durable: true, exclusive, auto_delete, no_wait, arguments };
    ends[0].say(1, &declare, &node);
    ends[0].say(1, &Method::ConfirmSelect { no_wait }, &node);
    let id: QueueId = node.topology.borrow().find_queue(VhostId(0), b"q").unwrap().id;
    queues.declare(id);
    let (consumer_tag, arguments) = (Bytes::from_static(b"c"), Table::new());
    let consume =
        Method::BasicConsume { ticket, queue: q(), consumer_tag, no_local, no_ack, exclusive, no_wait, arguments };
    ends[1].say(1, &consume, &node);
    step(&mut queues, &mut effects, &node, &mut ends);
    ends.iter_mut().for_each(|end| _ = end.write(&node));
    let mut publish = Vec::new();
    let (exchange, routing_key) = (Bytes::new(), q());
    Method::BasicPublish { ticket, exchange, routing_key, mandatory: false, immediate: false }.write(&mut publish, 1);
    let properties = properties(word(2));
    write_frame(&mut publish, FRAME_HEADER, 1, |w| {
        w.short(60);
        w.short(0);
        w.longlong(BODY.len() as u64);
        w.raw(&properties);
    });
    write_frame(&mut publish, FRAME_BODY, 1, |w| w.raw(BODY));
    let publishes = publish.repeat(messages);
    for slice in 1..=slices {
        ends[0].read(&publishes, &node);
        step(&mut queues, &mut effects, &node, &mut ends);
        assert!(ends[0].write(&node) > 0, "all is confirmed");
        assert!(ends[1].write(&node) > messages * BODY.len(), "and delivered");
        let delivery_tag = (slice * messages) as u64;
        ends[1].say(1, &Method::BasicAck { delivery_tag, multiple: true }, &node);
        step(&mut queues, &mut effects, &node, &mut ends);
    }
    let is_traced = word(3) == "one" || (word(2), word(3)) == ("traced", "on");
    let spans = if is_traced { 4 * slices * messages } else { 0 };
    assert_eq!(node.spans.get(), spans as u64, "a publish, its storing, a delivery and an ack");
}
