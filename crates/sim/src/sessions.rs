//! Clients that speak AMQP with the sessions of simulated nodes: bytes in, bytes out, and
//! everything between is the code of production, from the frames to the log.
//!
//! ```text
//!   client ══bytes══▶ amqp::Connection ▸ session::Session ──commands──▶ partitions of the node, its topology's group
//!          ◀═bytes══                                      ◀──effects───
//! ```
//!
//! Only what the server does with sockets and threads is this file's: pipes that are cut after any
//! byte, partitions that answer at once or late, in their order. Invariant: a run is a function of
//! its seed and options.

mod audit;
mod client;
mod front;
mod ledger;
mod links;
mod nodes;
mod wire;

use crate::bug::Bug;
use crate::checks::violated;
use crate::network::{self, Network};
use crate::node::{Happening, Node, Settings, StepOutput, TOPOLOGY};
use crate::plan::Options;
use crate::random::Random;
use crate::schedule::{MS, Micros, SECOND, Schedule};
use crate::trace::Trace;
use amqp::{Connection, ConnectionConfig};
use audit::{Audit, Task};
use broker::topology::Topology;
use broker::{ConsumerKey, NodeLife, NodeNumber, PartitionId};
use bytes::{Bytes, BytesMut};
use client::{Client, DEAD, FLEETING, SHORT_LIVED, Wish, declare, exclusive, fleeting};
use consensus::NodeId;
use front::{ConnectionId, Crossroads, Desk, Front, PARTITIONS, Sent};
pub use ledger::Figures;
use ledger::{Ledger, TO_ALL};
use links::Links;
use node::Waiting;
use partition::command::Disposition;
use partition::peer::forward::Forward;
use partition::{Command, Effect};
use session::report::ConnectionNumber;
use session::{Cx, Peer, Session};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::Arc;
use std::task::Waker;

/// Queues that are kept.
const KEPT: u64 = 4;
/// How long a run may take to set up, or to heal and be looked at.
const PATIENCE: Micros = 120 * SECOND;
/// What stands for the audit where a client is named.
const AUDITOR: usize = usize::MAX;

/// Something for a partition.
#[allow(clippy::large_enum_variant)] // Nearly all are commands.
enum Handed {
    Command(Command),
    Declare(broker::QueueId),
    Forward(NodeLife, Forward),
}

enum Event {
    Node {
        node: usize,
        life: u32,
        happening: Happening,
    },
    Packet {
        from: NodeId,
        to: usize,
        packet: Bytes,
        /// It waited for what was handed to its partition before.
        waited: bool,
    },
    /// What shards of one node send to those of another.
    Forwards {
        from: usize,
        to: usize,
        epoch: u64,
        packet: Bytes,
    },
    /// Links are looked at.
    Links,
    /// A node hears that its link to another is gone.
    LinkDown {
        node: usize,
        life: u32,
        peer: usize,
    },
    Handed {
        node: usize,
        life: u32,
        partition: PartitionId,
        handed: Vec<Handed>,
    },
    Effect {
        node: usize,
        life: u32,
        partition: PartitionId,
        effect: Effect,
    },
    /// The switches hear who leads a partition, behind what it said before.
    Leader {
        node: usize,
        life: u32,
        partition: PartitionId,
        leader: Option<NodeNumber>,
        term: u64,
    },
    /// A shard's task runs.
    Shard {
        node: usize,
        life: u32,
        shard: usize,
    },
    ToServer {
        connection: ConnectionId,
        bytes: Bytes,
    },
    /// The client's end is closed.
    Left {
        connection: ConnectionId,
    },
    ToClient {
        connection: ConnectionId,
        bytes: Bytes,
    },
    /// The server's end is closed.
    Gone {
        connection: ConnectionId,
    },
    Timer {
        connection: ConnectionId,
    },
    Client {
        client: usize,
    },
    Weather,
    Restart {
        node: usize,
        life: u32,
    },
    Look,
}

/// A connection, as the server has it.
struct Served {
    node: usize,
    shard: usize,
    amqp: Connection,
    session: Session,
    input: BytesMut,
    to_server: Micros,
    to_client: Micros,
    timer_at: Micros,
    /// Consumers that were passed over.
    starved: Vec<ConsumerKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begins,
    Works,
    /// Faults are over; clients hear the last answers.
    Settles,
    /// Clients are gone.
    Waits,
    Audits,
}

/// A cluster and its clients while they run.
pub struct Sessions {
    schedule: Schedule<Event>,
    random: Random,
    network: Network,
    links: Links,
    nodes: Vec<Node>,
    fronts: Vec<Option<Front>>,
    served: BTreeMap<ConnectionId, Served>,
    clients: Vec<Client>,
    audit: Audit,
    ledger: Ledger,
    trace: Trace,
    options: Options,
    config: Arc<ConnectionConfig>,
    phase: Phase,
    until: Micros,
    lives: u32,
    /// Of a hundred commands and answers so many are late.
    late: u64,
    /// What was settled, for a shell that loses what comes again.
    settled: BTreeSet<(u64, u64)>,
}

impl Sessions {
    /// Nodes and clients that are about to start.
    pub fn new(seed: u64, options: Options) -> Sessions {
        let mut random = Random::new(seed ^ 0x5e55);
        let members: Vec<NodeId> = (1..=options.nodes).map(NodeId).collect();
        let settings = Settings {
            members: members.clone(),
            partitions: (1..=PARTITIONS).map(PartitionId).collect(),
            seed,
            file_bytes: 1 << 20,
            tail_bytes: *random.pick(&[1 << 10, 32 << 10, 1 << 20]),
            tight: false,
            upkeep: options.upkeep.unwrap_or(true),
            bug: options.bug,
            has_rot: options.faults.rot,
            alone: options.nodes == 1,
            asks_for_queues: options.nodes > 1 && options.bug != Some(Bug::RulesAreForgotten),
            turnover: false,
            forwards: options.nodes > 1,
            declares: true,
            upgrades: false,
            gives_up: vec![true; PARTITIONS as usize],
            pools: options.pools && options.nodes > 3,
        };
        let nodes: Vec<_> = members.iter().map(|id| Node::new(*id, settings.clone(), random.fork())).collect();
        let clients = (0..random.between(2, 5)).map(|number| Client::new(number, random.fork())).collect();
        let config = ConnectionConfig { heartbeat_s: 0, ..ConnectionConfig::default() };
        let kept: Vec<String> = (0..KEPT).map(|number| format!("k.{number}")).collect();
        let mut ledger = Ledger::new(kept.clone());
        ledger.has_full_sockets = random.chance(40);
        ledger.leaders_move = options.nodes > 1;
        Sessions {
            schedule: Schedule::default(),
            late: *random.pick(&[0, 5, 30]),
            random,
            network: Network::default(),
            links: Links::default(),
            fronts: nodes.iter().map(|_| None).collect(),
            nodes,
            served: BTreeMap::new(),
            clients,
            audit: Audit::new(founding(&kept)),
            ledger,
            trace: Trace::new(options.trace),
            options,
            config: Arc::new(config),
            phase: Phase::Begins,
            until: PATIENCE,
            settled: BTreeSet::new(),
            lives: 0,
        }
    }

    /// Runs to the end: a time of work and faults, then a time to heal, then a look at what is
    /// there. Panics if something is not as it must be.
    pub fn run(&mut self) -> Figures {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for client in (0..self.clients.len()).chain([AUDITOR]) {
            self.schedule.after(self.random.below(100) * MS, Event::Client { client });
        }
        self.schedule.after(SECOND, Event::Look);
        self.schedule.after(MS, Event::Links);
        while let Some(event) = self.schedule.next() {
            if matches!(event, Event::Look) && self.look() {
                return self.ledger.figures;
            }
            self.step(event);
        }
        unreachable!("ticks never end")
    }

    /// The trace so far, its last lines.
    pub fn trace(&self, lines: usize) -> String {
        self.trace.last(lines)
    }

    /// How everything stands.
    pub fn describe(&self) -> String {
        let mut text =
            format!("at {:.6} {:?} {}\n", self.schedule.now() as f64 / 1e6, self.phase, self.audit.describe());
        for node in &self.nodes {
            text += &format!("{}\n", node.describe());
        }
        text
    }

    /// Looks whether anybody waits for too long, and goes on to the next part of the run.
    fn look(&mut self) -> bool {
        let now = self.schedule.now();
        self.schedule.after(200 * MS, Event::Look);
        self.clients.iter().for_each(|client| client.check(now));
        match self.phase {
            Phase::Begins if self.audit.is_done() && self.all_know_the_same() => {
                self.phase = Phase::Works;
                self.until = now + self.random.between(4, 12) * SECOND;
                self.leave(AUDITOR, 0);
                self.schedule.after(300 * MS, Event::Weather);
            }
            Phase::Works if now > self.until => {
                self.phase = Phase::Settles;
                self.heal();
            }
            Phase::Settles if self.clients.iter().all(Client::is_quiet) => {
                self.phase = Phase::Waits;
                (0..self.clients.len()).for_each(|client| self.leave(client, 0));
                self.until = now + 5 * SECOND;
            }
            Phase::Waits if now > self.until => {
                self.phase = Phase::Audits;
                self.audit = Audit::new(self.audits());
                self.until = now + PATIENCE;
            }
            Phase::Audits if self.audit.is_done() => {
                self.ledger.finish();
                let is_pooled = |topology: &Topology, id| topology.founders_of(id).is_some();
                let pooled = |topology: &Topology| {
                    topology.queues().filter(|queue| is_pooled(topology, queue.partition)).count()
                };
                self.ledger.figures.pooled += self.nodes[0].topology().map_or(0, pooled) as u64;
                return true;
            }
            Phase::Begins | Phase::Audits if now > self.until => violated("liveness", &self.describe()),
            _ => {}
        }
        false
    }

    /// Whether all nodes have all that was decided: what is declared over one of them may be unknown
    /// at another for a while.
    fn all_know_the_same(&self) -> bool {
        let applied = |node: &Node| node.topology_view().map(|view| view.applied);
        self.nodes.iter().all(|node| applied(node).is_some() && applied(node) == applied(&self.nodes[0]))
    }

    fn audits(&self) -> Vec<Task> {
        let drains = self.ledger.kept.iter().cloned().map(Task::Drain);
        let probes = (0..FLEETING).map(|number| Task::Probe(number, fleeting(number)));
        let absent = (0..self.clients.len() as u64).map(exclusive).map(Task::Absent);
        let ended = [Task::Empty(SHORT_LIVED.to_owned()), Task::Drain(DEAD.to_owned())];
        drains.chain(probes).chain(absent).chain(ended).collect()
    }

    fn step(&mut self, event: Event) {
        let now = self.schedule.now();
        self.ledger.now = now;
        match event {
            Event::Node { node, life, happening } if self.nodes[node].life == life => {
                let mut out = StepOutput::default();
                self.nodes[node].happen(now, happening, &mut out);
                self.settle(node, out);
            }
            Event::Packet { from, to, packet, waited: false } if self.mail_until(to, &packet) > now => {
                let at = self.mail_until(to, &packet);
                self.schedule.at(at, Event::Packet { from, to, packet, waited: true });
            }
            Event::Packet { from, to, packet, .. } => {
                let mut out = StepOutput::default();
                for (partition, frame) in network::open(packet).expect("it arrived as it was sent") {
                    self.nodes[to].receive(from, partition, frame, &mut out);
                }
                self.settle(to, out);
            }
            Event::Forwards { from, to, epoch, packet } => self.arrive(from, to, epoch, &packet),
            Event::Links => self.look_at_links(),
            Event::LinkDown { node, life, peer } => self.link_down(node, life, peer),
            Event::Handed { node, life, partition, handed } if self.nodes[node].life == life => {
                handed.into_iter().for_each(|handed| self.hand(node, partition, handed));
            }
            Event::Effect { node, life, partition, effect } if self.nodes[node].life == life => {
                self.hear(node, partition, effect);
            }
            Event::Leader { node, life, partition, leader, term } if self.nodes[node].life == life => {
                if let Some(front) = &self.fronts[node] {
                    front.shards[0].switch.note_leader(partition, leader, term);
                }
                self.carry(node);
            }
            Event::Shard { node, life, shard } if self.nodes[node].life == life => self.turn(node, shard),
            Event::ToServer { connection, bytes } => {
                let Some(served) = self.served.get_mut(&connection) else { return };
                served.input.extend_from_slice(&bytes);
                let ms = now / MS;
                served.amqp.handle_input(&mut served.input, ms);
                self.with_session(connection, |_, _| {});
            }
            Event::Left { connection } => self.end(connection),
            Event::ToClient { connection, bytes } => self.tell_client(connection, &bytes),
            Event::Gone { connection } => {
                for client in self.clients.iter_mut().filter(|client| client.connection == Some(connection)) {
                    client.lost();
                }
                if self.audit.connection == Some(connection) {
                    self.audit.connection = None;
                }
            }
            Event::Timer { connection } => {
                let Some(served) = self.served.get_mut(&connection) else { return };
                served.timer_at = Micros::MAX;
                let ms = now / MS;
                self.with_session(connection, |session, cx| session.handle_timeout(cx, ms));
            }
            Event::Client { client } => self.act(client),
            Event::Weather => self.weather(),
            Event::Restart { node, life } if self.nodes[node].life == life && !self.nodes[node].is_up() => {
                self.start(node);
            }
            _ => {}
        }
    }

    /// Until when a frame waits: a shard's mail comes in its order, so what was handed to a partition
    /// before comes before it.
    fn mail_until(&self, to: usize, packet: &Bytes) -> Micros {
        let Some(front) = &self.fronts[to] else { return 0 };
        let partitions = network::open(packet.clone()).into_iter().flatten().map(|(partition, _)| partition);
        partitions.filter_map(|partition| front.to_partition.get(&partition)).max().map_or(0, |at| at + 1)
    }

    /// Lets a client do something, or the audit.
    fn act(&mut self, client: usize) {
        let now = self.schedule.now();
        self.schedule.after(self.random.between(1, 20) * MS, Event::Client { client });
        if client == AUDITOR {
            if matches!(self.phase, Phase::Begins | Phase::Audits) {
                if self.audit.connection.is_none() && !self.audit.is_done() {
                    self.connect(AUDITOR);
                }
                self.audit.act(&mut self.ledger);
            }
            return self.carry_bytes(client);
        }
        if self.phase == Phase::Begins {
            return;
        }
        match self.clients[client].act(now, &mut self.ledger) {
            Wish::Nothing => {}
            Wish::Connect => self.connect(client),
            Wish::Cut => {
                self.carry_bytes(client);
                self.ledger.figures.cuts += 1;
                let after = self.random.below(3) * MS;
                self.leave(client, after);
            }
        }
        self.carry_bytes(client);
    }

    /// Connects a client to a node that lets clients in.
    fn connect(&mut self, client: usize) {
        let is_open = |node: &usize| self.fronts[*node].as_ref().is_some_and(|front| front.is_open);
        let open: Vec<usize> = (0..self.nodes.len()).filter(is_open).collect();
        if open.is_empty() {
            return;
        }
        let node = *self.random.pick(&open);
        let now = self.schedule.now();
        let front = self.fronts[node].as_ref().expect("it is open");
        let connection = front.next();
        let address = "127.0.0.1:5000".parse().expect("an address");
        let (local_address, certificate_user) = (None, None);
        let peer = Peer { address, local_address, is_loopback: true, certificate_user, is_own: false, token: None };
        let mut amqp = Connection::new(self.config.clone(), now / MS);
        amqp.set_blocked(front.is_alarmed.get().then_some("low on memory"));
        let served = Served {
            node,
            shard: self.random.below(front.shards.len() as u64) as usize,
            amqp,
            session: Session::new(peer, ConnectionNumber(connection)),
            input: BytesMut::new(),
            to_server: now,
            to_client: now,
            timer_at: Micros::MAX,
            starved: Vec::new(),
        };
        self.served.insert(connection, served);
        self.trace.line(now, || format!("client {client} connects to n{} as c{connection}", node + 1));
        match client {
            AUDITOR => self.audit.connected(connection),
            _ => self.clients[client].connected(connection),
        }
        self.carry_bytes(client);
    }

    /// Sends what a client wrote, cut anywhere.
    fn carry_bytes(&mut self, client: usize) {
        let (connection, output) = match client {
            AUDITOR => (self.audit.connection, &mut self.audit.output),
            _ => (self.clients[client].connection, &mut self.clients[client].output),
        };
        let Some(connection) = connection else { return };
        let mut bytes = Bytes::from(std::mem::take(output));
        while !bytes.is_empty() {
            let part = match self.random.chance(30) {
                true => bytes.split_to(self.random.between(1, bytes.len() as u64) as usize),
                false => std::mem::take(&mut bytes),
            };
            let after = self.random.between(50, 400);
            let Some(served) = self.served.get_mut(&connection) else { return };
            served.to_server = (self.schedule.now() + after).max(served.to_server + 1);
            self.schedule.at(served.to_server, Event::ToServer { connection, bytes: part });
        }
    }

    fn tell_client(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let now = self.schedule.now();
        if self.audit.connection == Some(connection) {
            self.audit.hear(bytes, &mut self.ledger);
            self.audit.act(&mut self.ledger);
            return self.carry_bytes(AUDITOR);
        }
        let Some(client) = self.clients.iter().position(|client| client.connection == Some(connection)) else { return };
        self.clients[client].hear(bytes, now, &mut self.ledger);
        self.carry_bytes(client);
    }

    /// A client's socket goes. Its server hears of it a little later; of what was on its way there
    /// some may be lost.
    fn leave(&mut self, client: usize, after: Micros) {
        let connection = match client {
            AUDITOR => self.audit.connection.take(),
            _ => self.clients[client].connection,
        };
        if client != AUDITOR {
            self.clients[client].lost();
        }
        let Some(connection) = connection else { return };
        let now = self.schedule.now();
        self.trace.line(now, || format!("client {client} leaves c{connection}"));
        self.schedule.after(after, Event::Left { connection });
    }

    /// Calls a session, then hands on all that its machine has to say, and writes what there is to
    /// write: as the server's connection does it at each turn.
    fn with_session(&mut self, connection: ConnectionId, call: impl FnOnce(&mut Session, &mut Cx<'_, Desk<'_>>)) {
        let now = self.schedule.now();
        let Some(served) = self.served.get_mut(&connection) else { return };
        let (node, shard, ms) = (served.node, served.shard, now / MS);
        let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up()) else { return };
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard, connection };
        call(&mut served.session, &mut Cx { client: &mut served.amqp, host: &desk });
        loop {
            served.session.begin_turn(&mut Cx { client: &mut served.amqp, host: &desk });
            while !served.session.ends_turn()
                && let Some(event) = served.amqp.poll_event()
            {
                served.session.handle_event(event, &mut Cx { client: &mut served.amqp, host: &desk }, ms);
            }
            let bytes = served.input.len() + served.amqp.assembling_bytes();
            served.session.count_unfinished(bytes, &mut Cx { client: &mut served.amqp, host: &desk });
            let before = served.input.len();
            if before > 0 && served.amqp.wants_input() {
                served.amqp.handle_input(&mut served.input, ms);
            }
            if !served.session.is_in_the_middle() && !served.amqp.has_events() && served.input.len() == before {
                break;
            }
        }
        served.amqp.flush_confirms();
        let mut bytes = Vec::new();
        while !served.amqp.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); 16];
            let filled = served.amqp.output().chunks(&mut slices);
            let count = slices[..filled].iter().map(|slice| slice.len()).sum();
            slices[..filled].iter().for_each(|slice| bytes.extend_from_slice(slice));
            served.amqp.wrote(count, ms);
        }
        served.session.drained(&desk);
        for consumer in served.starved.drain(..) {
            if let Some(number) = desk.switch().number_of(consumer.channel) {
                served.session.unstall(consumer, number, &desk);
            }
        }
        let at = served.session.poll_timeout().saturating_mul(MS).max(now);
        if at < served.timer_at {
            served.timer_at = at;
            self.schedule.at(at, Event::Timer { connection });
        }
        if !bytes.is_empty() {
            let after = self.random.between(50, 400);
            served.to_client = (now + after).max(served.to_client + 1);
            self.schedule.at(served.to_client, Event::ToClient { connection, bytes: bytes.into() });
        }
        if served.amqp.is_finished() {
            self.schedule.at(served.to_client + 1, Event::Gone { connection });
            self.served.remove(&connection);
        }
        self.carry(node);
    }

    /// A client is gone: its connection ends as on the server.
    fn end(&mut self, connection: ConnectionId) {
        if let Some(served) = self.served.get_mut(&connection) {
            if self.options.bug == Some(Bug::TeardownIsForgotten) {
                self.served.remove(&connection);
                return;
            }
            if !served.amqp.is_finished() {
                served.amqp.handle_disconnect();
            }
            self.with_session(connection, |_, _| {});
            self.served.remove(&connection);
        }
    }

    /// How long something takes between a session and a partition: little, or much if their shards
    /// are busy.
    fn delay(&mut self) -> Micros {
        if self.random.chance(self.late) { self.random.between(1, 300) * MS } else { self.random.between(0, 40) }
    }

    /// Carries what sessions and switches left to where it goes, in its order.
    fn carry(&mut self, node: usize) {
        let now = self.schedule.now();
        loop {
            let Some(front) = &self.fronts[node] else { return };
            let sent = front.sent.take();
            if sent.is_empty() {
                break;
            }
            for sent in sent {
                match sent {
                    Sent::Propose(token, change) => {
                        self.trace.line(now, || format!("n{} proposes {token} {change:?}", node + 1));
                        let mut out = StepOutput::default();
                        self.nodes[node].propose(token, &change, &mut out);
                        self.settle(node, out);
                    }
                    Sent::CatchUp(token) => {
                        let mut out = StepOutput::default();
                        self.nodes[node].wish(token, node::Wish::CatchUp, &mut out);
                        self.settle(node, out);
                    }
                    Sent::Mail(shard, parcel) => {
                        let Some(front) = &self.fronts[node] else { return };
                        front.shards[shard].mailbox.borrow_mut().push_back(parcel);
                    }
                    Sent::Hear(connection, channel, effect) => {
                        self.ledger.is_key(connection, channel);
                        self.trace.line(now, || {
                            format!("n{} c{connection}.{} <- {}", node + 1, channel.1, brief_effect(&effect))
                        });
                        self.with_session(connection, |session, cx| session.handle_effect(channel, effect, cx));
                    }
                    Sent::HearDecided(connection, channel, request, outcome) => {
                        self.trace
                            .line(now, || format!("n{} c{connection}.{} <- decided {outcome:?}", node + 1, channel.1));
                        self.with_session(connection, |session, cx| {
                            session.handle_decided(channel, request, outcome, cx);
                        });
                    }
                    Sent::Starve(connection, consumer) => {
                        let Some(served) = self.served.get_mut(&connection) else { continue };
                        served.starved.push(consumer);
                        self.with_session(connection, |_, _| {});
                    }
                    Sent::Effect(effect) => self.say(node, TOPOLOGY, effect),
                }
            }
        }
        let shards = self.fronts[node].as_ref().map_or(0, |front| front.shards.len());
        (0..shards).for_each(|shard| self.rouse(node, shard));
    }

    /// Has a shard's task run, if something woke it: soon, or late if its thread is busy.
    fn rouse(&mut self, node: usize, shard: usize) {
        let Some(front) = &self.fronts[node] else { return };
        let Crossroads { switch, mailbox, is_due, .. } = &front.shards[shard];
        let wants = switch.inbox().borrow().is_woken() || !mailbox.borrow().is_empty();
        if wants && !is_due.replace(true) {
            let (after, life) = (self.delay(), self.nodes[node].life);
            self.schedule.after(after, Event::Shard { node, life, shard });
        }
    }

    /// The turn of a shard's task, as on the server: what came by mail, dead letters, what waits for
    /// partitions here, and what is for other shards.
    fn turn(&mut self, node: usize, shard: usize) {
        let (now, life) = (self.schedule.now(), self.nodes[node].life);
        if shard == 0 && self.nodes[node].stands_still() {
            // Its thread is in a sync.
            return self.schedule.after(100, Event::Shard { node, life, shard });
        }
        let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up()) else { return };
        let Crossroads { switch, mailbox, is_due, looks_at } = &front.shards[shard];
        let (mail, mut out) = (mailbox.take(), StepOutput::default());
        if shard == 0 {
            mail.iter().for_each(|parcel| self.nodes[node].note_link(parcel, now, &mut out));
        }
        let in_memory = front.directory.in_memory(0);
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard, connection: 0 };
        is_due.set(false);
        switch.inbox().borrow_mut().start_step(Waker::noop());
        for parcel in mail {
            switch.take(parcel, &desk);
        }
        switch.resume_roads(&desk);
        switch.send_dead_letters(&desk);
        let (mut due, mut waiting, mut batches) = (Vec::new(), Waiting::default(), Vec::new());
        let mut inbox = switch.inbox().borrow_mut();
        inbox.waits().take_due(&mut due);
        for place in due {
            inbox.waits().swap(place, &mut waiting);
            let declared = waiting.declared.drain(..).map(Handed::Declare);
            let forwards = waiting.forwards.drain(..).map(|(from, forward)| Handed::Forward(from, forward));
            let commands = waiting.commands.drain(..).map(Handed::Command);
            let handed: Vec<_> = declared.chain(forwards).chain(commands).collect();
            batches.push((place, handed));
        }
        let (mut posted, mut away) = (Vec::new(), Vec::new());
        inbox.post_away(|link, frames| away.push((link, std::mem::take(frames))));
        inbox.post(|to, parcels, _| posted.push((to, std::mem::take(parcels))));
        drop(inbox);
        for (to, parcels) in posted {
            front.shards[to].mailbox.borrow_mut().extend(parcels);
        }
        switch.tell_leaders();
        // What one turn leaves for a partition comes to it in one step. Who lets gets go ahead takes
        // steps between.
        let looks = switch.is_leaderless() && looks_at.get() <= now;
        if looks {
            looks_at.set(now + switch::LEADERS_LOOK_MS * MS);
        }
        let at_once = if self.options.bug == Some(Bug::GetOvertakes) { 1 } else { usize::MAX };
        for (place, mut left) in batches {
            let partition = match place {
                0 => in_memory,
                place if place > PARTITIONS as usize => TOPOLOGY,
                place => PartitionId(place as u32),
            };
            if shard > 0 {
                assert!(left.is_empty(), "partitions that are handed something run on shard 0");
            }
            while !left.is_empty() {
                let handed = left.drain(..left.len().min(at_once)).collect();
                let delay = self.delay();
                let Some(front) = &mut self.fronts[node] else { return };
                let last = front.to_partition.entry(partition).or_default();
                *last = (now + delay).max(*last + 1);
                self.schedule.at(*last, Event::Handed { node, life, partition, handed });
            }
        }
        away.into_iter().for_each(|(link, frames)| self.send_over(node, link, frames));
        if looks {
            self.schedule.after(switch::LEADERS_LOOK_MS * MS, Event::Shard { node, life, shard });
        }
        self.settle(node, out);
    }

    fn hand(&mut self, node: usize, partition: PartitionId, handed: Handed) {
        let now = self.schedule.now();
        let command = match handed {
            Handed::Command(command) => command,
            Handed::Forward(from, forward) => {
                let mut out = StepOutput::default();
                self.nodes[node].receive_forward(partition, from, forward, &mut out);
                return self.settle(node, out);
            }
            Handed::Declare(queue) => {
                let mut out = StepOutput::default();
                self.nodes[node].declare(partition, queue, &mut out);
                return self.settle(node, out);
            }
        };
        if let (Some(front), Command::Close { queue, request, .. }) = (&self.fronts[node], &command)
            && let Some(asker) = front.askers.borrow().get(queue)
        {
            front.asked_for.borrow_mut().insert(*request, *asker);
        }
        if self.options.bug == Some(Bug::RepeatIsLost) && self.is_repeat(&command) {
            return;
        }
        self.trace.line(now, || format!("n{} p{} <- {}", node + 1, partition.0, brief(&command)));
        let mut out = StepOutput::default();
        match partition {
            in_memory if in_memory.is_in_memory() => self.nodes[node].enqueue_transient(command, &mut out),
            _ => self.nodes[node].enqueue(partition.0 as usize - 1, command, &mut out),
        }
        self.settle(node, out);
    }

    /// Whether some leader was told before what a command settles.
    fn is_repeat(&mut self, command: &Command) -> bool {
        let Command::Settle { queue, first, count, outcome: Disposition::Ack, .. } = *command else { return false };
        // Not in short: all of them have to be noted.
        (first..first.saturating_add(count)).filter(|seq| self.settled.insert((queue.0, *seq))).count() == 0
    }

    /// A partition has another leader than before.
    fn say_leader(&mut self, node: usize, partition: PartitionId, (leader, term): (Option<NodeNumber>, u64)) {
        let (now, life) = (self.schedule.now(), self.nodes[node].life);
        let Some(front) = &mut self.fronts[node] else { return };
        if front.told_leaders.insert(partition, (leader, term)) == Some((leader, term)) {
            return;
        }
        let last = front.from_partition.entry(partition).or_default();
        *last = now.max(*last + 1);
        self.schedule.at(*last, Event::Leader { node, life, partition, leader, term });
    }

    /// A partition says something: it comes to the sessions, in its order.
    fn say(&mut self, node: usize, partition: PartitionId, effect: Effect) {
        let (now, life, delay) = (self.schedule.now(), self.nodes[node].life, self.delay());
        let Some(front) = &mut self.fronts[node] else { return };
        let last = front.from_partition.entry(partition).or_default();
        *last = (now + delay).max(*last + 1);
        self.schedule.at(*last, Event::Effect { node, life, partition, effect });
    }

    /// What a partition said arrives.
    fn hear(&mut self, node: usize, partition: PartitionId, effect: Effect) {
        let now = self.schedule.now();
        self.trace.line(now, || format!("n{} p{} says {}", node + 1, partition.0, brief_effect(&effect)));
        let Some(front) = &self.fronts[node] else { return };
        let switch = &front.shards[0].switch;
        match (&effect, self.options.bug) {
            (Effect::Reply { channel, request, .. }, Some(Bug::DeletionIsAbandoned))
                if *channel == switch.own_key() =>
            {
                // A wrong host forgets what it began when nobody waits for it.
                let asked_for = front.asked_for.borrow().get(request).copied();
                let is_there = |channel| front.shards.iter().any(|shard| shard.switch.number_of(channel).is_some());
                if asked_for.is_some_and(|channel| !is_there(channel)) {
                    return;
                }
            }
            (Effect::Reply { channel, reply: partition::Reply::NotLeader, .. }, Some(Bug::NotLeaderIsSwallowed))
                if *channel != switch.own_key() =>
            {
                return;
            }
            (Effect::DeadLetter(_), Some(Bug::LetterIsLost)) => return,
            _ => {}
        }
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard: 0, connection: 0 };
        switch.deliver(std::iter::once(effect), Some(partition), &desk);
        self.carry(node);
    }
}

/// What there is before clients come.
fn founding(kept: &[String]) -> Vec<Task> {
    let declare_exchange = amqp::wire::method::Method::ExchangeDeclare {
        ticket: 0,
        exchange: Bytes::from_static(TO_ALL.as_bytes()),
        kind: Bytes::from_static(b"fanout"),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: amqp::Table::new(),
    };
    let mut tasks = vec![Task::Ask(declare_exchange)];
    for queue in kept {
        tasks.push(Task::Ask(declare(queue, true, false, false, amqp::Table::new())));
        tasks.push(Task::Ask(amqp::wire::method::Method::QueueBind {
            ticket: 0,
            queue: Bytes::copy_from_slice(queue.as_bytes()),
            exchange: Bytes::from_static(TO_ALL.as_bytes()),
            routing_key: Bytes::new(),
            no_wait: false,
            arguments: amqp::Table::new(),
        }));
    }
    tasks.extend((0..FLEETING).map(|number| Task::Ask(client::declare_fleeting(number))));
    tasks.push(Task::Ask(declare(DEAD, true, false, false, amqp::Table::new())));
    tasks.push(Task::Ask(client::declare_short_lived()));
    tasks
}

fn brief(command: &Command) -> String {
    match command {
        Command::Publish(publish) => {
            let queues: Vec<_> = publish.targets.iter().map(|target| target.queue.0).collect();
            let id = publish.message.body.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
            format!("publish {} of {}, message {id}, to {queues:?}", publish.publish_seq, { publish.channel.0 })
        }
        other => format!("{other:?}"),
    }
}

fn brief_effect(effect: &Effect) -> String {
    match effect {
        Effect::Deliver(d) => {
            format!("deliver q{} {} to {:?} redelivered {}", d.queue.0, d.seq, d.consumer, d.redelivered)
        }
        Effect::Reply { channel, request, reply: partition::Reply::Got { delivery, .. } } => {
            format!("got q{} {} for {channel:?} {request:?}", delivery.queue.0, delivery.seq)
        }
        other => format!("{other:?}"),
    }
}
