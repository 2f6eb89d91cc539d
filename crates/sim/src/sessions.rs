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
mod connections;
mod front;
mod holdings;
mod leases;
mod ledger;
mod links;
mod members;
mod moves;
mod nodes;
mod shards;
mod sockets;
mod wire;

use crate::checks::violated;
use crate::network::{self, Network};
use crate::node::{Happening, Node, Settings, StepOutput};
use crate::plan::Options;
use crate::random::Random;
use crate::schedule::{MS, Micros, SECOND, Schedule};
use crate::trace::Trace;
use amqp::{Connection, ConnectionConfig};
use audit::{Audit, Task};
use broker::topology::Topology;
use broker::{ChannelKey, ConsumerKey, NodeLife, NodeNumber, PartitionId};
use bytes::{Bytes, BytesMut};
use client::{Client, DEAD, FLEETING, SHORT_LIVED, declare, exclusive, fleeting};
use consensus::NodeId;
use front::{ConnectionId, Front, PARTITIONS, Sent};
use holdings::Holdings;
use leases::Owed;
pub use ledger::Figures;
use ledger::{Ledger, TO_ALL};
use links::Links;
use members::{Comings, founding_record};
use partition::message::MessageView;
use partition::peer::forward::Forward;
use partition::{Command, Delivery, Effect};
use session::Session;
use sockets::{Sizes, Socket, Windows};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Queues that are kept.
const KEPT: u64 = 4;
/// So long after its start a node may not know what was decided before, if it is cut off meanwhile.
const NEW_FOR: Micros = 10 * SECOND;
/// How long a run may take to set up, or to heal and be looked at.
const PATIENCE: Micros = 120 * SECOND;
/// Once the faults are over, every queue that has messages and consumers gives them some within this
/// time: some clients take seconds for what they hold.
const FED_WITHIN: Micros = 40 * SECOND;
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
    /// Who says on a node what is late by now leads no more.
    Outvoted {
        node: usize,
    },
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
    /// Nodes come and go.
    Members,
    /// Somebody gives and takes copies.
    Moves,
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
    socket: Socket,
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
    holdings: Holdings,
    owed: Owed,
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
    /// Nodes that come and go, if any do.
    comings: Option<Comings>,
    seed: u64,
    sizes: Sizes,
    /// When each node was started last.
    started: BTreeMap<usize, Micros>,
    /// How many snapshots the member of a partition has installed on a node, and when the last of them.
    installed: BTreeMap<(usize, PartitionId), (u64, Micros)>,
    /// How often copies of a partition had been taken when that was asked for last.
    taken: BTreeMap<PartitionId, u32>,
    /// Publishes that came to a member, to count those that come again.
    handed: BTreeSet<(PartitionId, ChannelKey, u64)>,
}

impl Sessions {
    /// Nodes and clients that are about to start.
    pub fn new(seed: u64, options: Options) -> Sessions {
        let mut random = Random::new(seed ^ 0x5e55);
        let members: Vec<NodeId> = (1..=options.nodes).map(NodeId).collect();
        assert!(!options.members || options.nodes > 1, "nobody joins a node that is alone here");
        // Quorum queues want three copies, and of more nodes not all have one.
        assert!(options.pools || options.nodes <= 3, "more than three nodes have pools");
        // Nodes whose map is there from the start, as one that grew would have it.
        let pools = options.pools && options.nodes > 3;
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
            by_record: options.nodes > 1 && !pools,
            turnover: false,
            forwards: options.nodes > 1,
            declares: true,
            upgrades: false,
            gives_up: vec![true; PARTITIONS as usize],
            pools,
            classic: options.classic,
            returns: options.returns,
        };
        let spares = if options.members { members::SPARES } else { 0 };
        let all = (1..=options.nodes + spares).map(NodeId);
        let mut nodes: Vec<_> = all.map(|id| Node::new(id, settings.clone(), random.fork())).collect();
        if settings.by_record {
            let record = founding_record(&nodes[..members.len()]);
            nodes[..members.len()].iter_mut().for_each(|node| node.record = Some(record.clone()));
        }
        let comings = options.members.then(|| Comings::new(&members, random.fork()));
        let clients = (0..random.between(2, 5)).map(|number| Client::new(number, random.fork())).collect();
        let config = ConnectionConfig { heartbeat_s: 0, ..ConnectionConfig::default() };
        let kept: Vec<String> = (0..KEPT).map(|number| format!("k.{number}")).collect();
        let mut ledger = Ledger::new(kept.clone());
        ledger.has_full_sockets = random.chance(40);
        ledger.has_levels = options.levels;
        ledger.has_rows = options.rows;
        ledger.has_classic = options.classic;
        let sizes = if ledger.has_full_sockets { Sizes::small(&mut random) } else { Sizes::ample() };
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
            audit: Audit::new(founding(&kept, options.classic)),
            ledger,
            holdings: Holdings::default(),
            owed: Owed::default(),
            trace: Trace::new(options.trace),
            options,
            config: Arc::new(config),
            phase: Phase::Begins,
            until: PATIENCE,
            settled: BTreeSet::new(),
            comings,
            seed,
            sizes,
            handed: BTreeSet::new(),
            started: BTreeMap::new(),
            installed: BTreeMap::new(),
            taken: BTreeMap::new(),
            lives: 0,
        }
    }

    /// Runs to the end: a time of work and faults, then a time to heal, then a look at what is
    /// there. Panics if something is not as it must be.
    pub fn run(&mut self) -> Figures {
        for node in 0..self.options.nodes as usize {
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
                let longer = if self.comings.is_some() || self.options.returns { 10 } else { 0 };
                self.until = now + (longer + self.random.between(4, 12)) * SECOND;
                self.leave(AUDITOR, 0);
                if self.comings.is_some() {
                    self.schedule.after(SECOND, Event::Members);
                }
                if self.options.returns {
                    self.schedule.after(SECOND, Event::Moves);
                }
                self.schedule.after(300 * MS, Event::Weather);
            }
            Phase::Works if now > self.until => {
                self.phase = Phase::Settles;
                self.until = now + FED_WITHIN;
                self.heal();
            }
            Phase::Settles if now > self.until && self.starved().is_some() => {
                let queue = self.starved().expect("it was looked at");
                violated("starved", &format!("{queue} has messages and consumers, and they get none"));
            }
            Phase::Settles if self.clients.iter().all(Client::is_quiet) && self.starved().is_none() => {
                self.phase = Phase::Waits;
                (0..self.clients.len()).for_each(|client| self.leave(client, 0));
                self.until = now + 5 * SECOND;
            }
            Phase::Waits if now > self.until => {
                self.phase = Phase::Audits;
                self.audit = Audit::new(self.audits());
                self.until = now + PATIENCE;
            }
            Phase::Audits if self.audit.is_done() && self.unsettled().is_none() => {
                self.ledger.finish();
                let is_pooled = |topology: &Topology, id| topology.founders_of(id).is_some();
                let pooled = |topology: &Topology| {
                    topology.queues().filter(|queue| is_pooled(topology, queue.partition)).count()
                };
                self.ledger.figures.pooled += self.nodes[0].topology().map_or(0, pooled) as u64;
                return true;
            }
            Phase::Begins | Phase::Audits if now > self.until => {
                if let Some(what) = self.unsettled().filter(|_| self.audit.is_done()) {
                    violated("members", &what);
                }
                violated("liveness", &self.describe());
            }
            _ => {}
        }
        false
    }

    /// Whether all nodes have all that was decided: what is declared over one of them may be unknown
    /// at another for a while.
    fn all_know_the_same(&self) -> bool {
        let applied = |node: &Node| node.topology_view().map(|view| view.applied);
        let mut there = self.nodes.iter().enumerate().filter(|(node, _)| self.is_there(*node));
        there.all(|(_, node)| applied(node).is_some() && applied(node) == applied(&self.nodes[0]))
    }

    /// A queue that is kept, has messages and consumers, and has given them none since the faults are
    /// over.
    fn starved(&self) -> Option<String> {
        let since = self.until - FED_WITHIN;
        let mut figures = Vec::new();
        for node in &self.nodes {
            (0..PARTITIONS as usize).filter_map(|at| node.partition(at)).for_each(|member| member.survey(&mut figures));
        }
        let waits = figures.iter().filter(|of| of.ready > 0 && of.consumers > 0);
        let topology = self.nodes.iter().find_map(Node::topology)?;
        let mut names = waits.filter_map(|of| Some(topology.queue(of.queue)?.name.to_string()));
        let is_fed = |name: &String| self.ledger.fed_at.get(name).is_some_and(|at| *at > since);
        names.find(|name| self.ledger.kept.contains(name) && !is_fed(name))
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
                if matches!(happening, Happening::Turn(_)) {
                    self.tell_map(node);
                }
                let mut out = StepOutput::default();
                let Sessions { nodes, fronts, served, .. } = self;
                let mut sockets = Windows { front: fronts[node].as_ref(), served, reserved: Vec::new() };
                nodes[node].happen(now, happening, &mut sockets, &mut out);
                self.settle(node, out);
            }
            // There is no link to who was forgotten.
            Event::Packet { from, to, .. } if self.refuses(to, from.0 as usize - 1) => {}
            Event::Packet { from, to, packet, waited: false } if self.mail_until(to, &packet) > now => {
                let at = self.mail_until(to, &packet);
                self.schedule.at(at, Event::Packet { from, to, packet, waited: true });
            }
            Event::Packet { from, to, packet, .. } => {
                let mut out = StepOutput::default();
                for (partition, frame) in network::arrived(packet, (from, self.nodes[to].id)) {
                    self.nodes[to].receive(from, partition, frame, &mut out);
                }
                self.settle(to, out);
            }
            Event::Forwards { from, to, epoch, packet } => self.arrive(from, to, epoch, &packet),
            Event::Links => self.look_at_links(),
            Event::Outvoted { node } => self.outvote(node),
            Event::LinkDown { node, life, peer } => self.link_down(node, life, peer),
            Event::Handed { node, life, partition, handed } if self.nodes[node].life == life => {
                handed.into_iter().for_each(|handed| self.hand(node, partition, handed));
            }
            Event::Effect { node, life, partition, effect } if self.nodes[node].life == life => {
                self.hear(node, partition, effect);
            }
            Event::Leader { node, life, partition, leader, term } if self.nodes[node].life == life => {
                // Who is to leave its group has turned to what others say.
                let member = self.nodes[node].partition(partition.0 as usize - 1);
                let is_heard = member.is_some_and(|of| of.replica().is_leader() || !of.replica().is_leaving());
                if let Some(front) = self.fronts[node].as_ref().filter(|_| is_heard || !self.options.returns) {
                    front.switch_of(partition).note_leader(partition, leader, term);
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
            Event::ToClient { connection, bytes } => self.read(connection, &bytes),
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
            Event::Members => self.change_nodes(),
            Event::Moves => self.move_copies(),
            Event::Restart { node, life }
                if self.nodes[node].life == life && !self.nodes[node].is_up() && self.comes_back(node) =>
            {
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
}

/// What there is before clients come.
fn founding(kept: &[String], classic: bool) -> Vec<Task> {
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
    tasks.extend((0..FLEETING).map(|number| Task::Ask(client::declare_fleeting(number, classic))));
    tasks.push(Task::Ask(declare(DEAD, true, false, false, amqp::Table::new())));
    tasks.push(Task::Ask(client::declare_short_lived()));
    tasks
}

fn brief(command: &Command) -> String {
    match command {
        Command::Publish(publish) => {
            let queues: Vec<_> = publish.targets.iter().map(|target| target.queue.0).collect();
            let id = id_in(&publish.message.body);
            let (first, count, channel) = (publish.publish_seq, publish.count(), publish.channel.0);
            format!("publish {first} and {} more of {channel}, message {id}, to {queues:?}", count - 1)
        }
        other => format!("{other:?}"),
    }
}

/// The number of a message, which its body begins with.
fn id_in(body: &[u8]) -> u64 {
    body.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes))
}

/// The same of one that is given out.
fn id_of(delivery: &Delivery) -> u64 {
    MessageView::parse(&delivery.message).map_or(u64::MAX, |view| id_in(view.body()))
}

fn brief_effect(effect: &Effect) -> String {
    match effect {
        Effect::Deliver(d) => {
            format!(
                "deliver q{} {}, message {}, to {:?} redelivered {}",
                d.queue.0,
                d.seq,
                id_of(d),
                d.consumer,
                d.redelivered
            )
        }
        Effect::Reply { channel, request, reply: partition::Reply::Got { delivery, .. } } => {
            let (queue, seq, id) = (delivery.queue.0, delivery.seq, id_of(delivery));
            format!("got q{queue} {seq}, message {id}, for {channel:?} {request:?}")
        }
        other => format!("{other:?}"),
    }
}
