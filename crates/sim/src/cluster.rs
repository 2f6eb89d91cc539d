//! A whole cluster in one thread: nodes, links, clients and weather under one clock and one seed.
//!
//! Invariant: a run is a function of its seed and options. Nothing here reads a clock, the system's
//! randomness or an unordered map; a failure is found again from its seed.

use crate::checks::{Checks, Expected, Figures, violated};
use crate::client::{Client, Habits, Keeping, QueueSettings};
use crate::network::{self, Network};
use crate::node::{Happening, NoSockets, Node, SessionId, Settings, StepOutput};
use crate::plan::{Faults, Options, Plan};
use crate::random::Random;
use crate::registry::Registry;
use crate::schedule::{MS, Micros, SECOND, Schedule};
use crate::trace::Trace;
use broker::PartitionId;
use broker::queue::Rules;
use bytes::Bytes;
use consensus::NodeId;
use partition::machine::FIRST_MACHINE_VERSION;
use partition::{Command, Effect};
use std::collections::BTreeMap;
use std::sync::Arc;
use storage::disk::{Crash, SurvivalUnit};

mod clients;
mod dead_letter;
mod declares;
mod leaders;
mod members;
mod turnover;
mod weather;

/// After this long without faults everything must be confirmed, settled, and equal.
const LIVENESS_MAX: Micros = 120 * SECOND;
/// A node is down for so many milliseconds at most,
const SLOW_START_MAX: u64 = 4_000;
/// or, where leaders are hit, so that it is there again before the others have elected one.
const QUICK_START_MAX: u64 = 800;
/// Clocks step by 10 s in either direction.
const CLOCKS_APART_MS: u64 = 20_000;
/// Where nothing goes wrong, a scheduled message comes within this time of its own: a delete that
/// came to nothing may be between.
const LATE_MS_MAX: u64 = 3_000;
/// Every partition has a number that a group of the log can have, 0 being the topology's.
const FIRST_PARTITION: u32 = 1;

/// What happens next, anywhere.
enum Event {
    Node {
        node: usize,
        life: u32,
        happening: Happening,
    },
    /// A packet comes out of a link, as its bytes.
    Packet {
        from: NodeId,
        to: usize,
        packet: Bytes,
    },
    Client {
        client: usize,
    },
    Command {
        session: SessionId,
        command: Command,
    },
    Close {
        session: SessionId,
        ended: bool,
    },
    Effect {
        session: SessionId,
        effect: Effect,
    },
    Reset {
        session: SessionId,
    },
    DeadLetter(dead_letter::Step),
    Turnover(turnover::Step),
    Declare,
    Members,
    Weather,
    Restart {
        node: usize,
        life: u32,
    },
    Look,
}

/// A client's connection, as the world sees it.
struct Link {
    client: usize,
    node: usize,
    /// When the last thing on it arrives, in each direction: a connection keeps its order.
    to_node: Micros,
    to_client: Micros,
}

/// A cluster while it runs.
pub struct Cluster {
    schedule: Schedule<Event>,
    random: Random,
    network: Network,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    links: BTreeMap<SessionId, Link>,
    next_session: u64,
    checks: Checks,
    awaited: dead_letter::AwaitedDeadLetters,
    registry: Registry,
    turnover: turnover::Turnover,
    declares: Option<declares::Declares>,
    members: Option<members::Members>,
    /// Which member of a group a node is, where it had left that before.
    lives: BTreeMap<(usize, usize), u32>,
    trace: Trace,
    plan: Plan,
    options: Options,
    draining: bool,
    /// A leader that is about to lose its power, or did.
    hit: Option<leaders::Hit>,
    /// The node whose disk rots, where there is rot.
    victim: usize,
    /// Bits of its log that flipped before a start: the group whose record it was, the file, the
    /// byte, the bit.
    spoilt: Vec<(PartitionId, String, u64, u8)>,
    /// Down, and not to be started by itself.
    deadline: Micros,
}

impl Cluster {
    /// A cluster that is about to start.
    pub fn new(seed: u64, options: Options) -> Cluster {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random, &options);
        let members: Vec<NodeId> = (1..=options.nodes).map(NodeId).collect();
        let partitions: Vec<PartitionId> =
            (0..plan.groups.len() as u32).map(|i| PartitionId(FIRST_PARTITION + i)).collect();
        let settings = Settings {
            members: members.clone(),
            partitions: partitions.clone(),
            seed,
            file_bytes: plan.file_bytes,
            tail_bytes: plan.tail_bytes,
            tight: plan.tight,
            upkeep: plan.upkeep,
            bug: options.bug,
            alone: false,
            by_record: false,
            forwards: false,
            has_rot: options.faults.rot || options.faults.log_rot || options.faults.start_rot,
            turnover: options.turnover,
            declares: options.declares,
            upgrades: options.upgrades,
            gives_up: plan.groups.iter().map(|queues| gives_up(&plan, queues)).collect(),
            pools: false,
            classic: false,
            returns: options.returns,
        };
        let apart = options.declares || options.faults.leaders || options.faults.log_rot;
        let apart = apart || options.returns && options.turnover;
        assert!(!options.members || !apart, "these do not go together");
        let spares = if options.members { members::SPARES } else { 0 };
        let all = (1..=options.nodes + spares).map(NodeId);
        let nodes = all.map(|id| Node::new(id, settings.clone(), random.fork())).collect();
        let declares = options.declares.then(|| declares::Declares::new(random.fork()));
        let changes = options.members.then(|| members::Members::new(&members, partitions.len(), random.fork()));
        let mut clients = Vec::new();
        let mut expected = Expected {
            caps: plan.groups.iter().flatten().filter_map(cap_of).collect(),
            rules: plan.rules.clone(),
            graves: plan.dead_letters_of.iter().map(|(queue, (_, grave))| (*queue, *grave)).collect(),
            gives_up: settings.gives_up.clone(),
            undelivered_max: BTreeMap::new(),
            slack_ms: if options.faults.pauses { CLOCKS_APART_MS } else { 0 },
            late_ms_max: (options.faults == Faults::NONE).then_some(LATE_MS_MAX),
        };
        for (group, queues) in plan.groups.iter().enumerate() {
            let habits = Habits { varied: options.rules, gives_up: settings.gives_up[group], delays: options.turnover };
            for _ in 0..plan.publishers {
                clients.push(Client::publisher(clients.len() as u64, group, queues, random.fork(), habits));
            }
            let read: Vec<_> = queues.iter().chain(plan.graves.get(group)).copied().collect();
            for _ in 0..plan.readers {
                clients.push(Client::reader(clients.len() as u64, group, &read, random.fork(), plan.unruly));
            }
            let credit: Option<u64> = clients.iter().filter(|c| c.group == group).map(Client::credit).sum();
            let refuses = |rules: &&Arc<Rules>| rules.overflow.is_reject() && rules.length_max.is_some();
            for (queue, rules) in queues.iter().filter_map(|q| Some((q.id, plan.rules.get(&q.id).filter(refuses)?))) {
                // A channel that ends and the one after it may both be there for a moment.
                let most = credit.zip(rules.length_max).map(|(credit, max)| max + 2 * credit);
                expected.undelivered_max.extend(most.map(|most| (queue, most)));
            }
        }
        Cluster {
            schedule: Schedule::default(),
            random,
            network: Network::with_slow(options.returns),
            nodes,
            clients,
            links: BTreeMap::new(),
            next_session: 1,
            checks: Checks::new(&partitions, members.len(), expected),
            awaited: dead_letter::AwaitedDeadLetters::default(),
            registry: Registry::new(&plan, options.bug),
            turnover: turnover::Turnover::default(),
            declares,
            members: changes,
            lives: BTreeMap::new(),
            trace: Trace::new(options.trace),
            deadline: plan.duration + LIVENESS_MAX,
            plan,
            options,
            victim: (seed % options.nodes) as usize,
            spoilt: Vec::new(),
            draining: false,
            hit: None,
        }
    }

    /// Runs to the end: a time of work and faults, then a time to heal and drain. Panics if a
    /// checker, or an assertion of the engine, finds something.
    pub fn run(&mut self) -> Figures {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for client in 0..self.clients.len() {
            self.schedule.after(self.random.below(100) * MS, Event::Client { client });
        }
        self.schedule.after(500 * MS, Event::Weather);
        if self.options.turnover {
            self.schedule.after(500 * MS, Event::Turnover(turnover::Step::Begin));
        }
        if self.options.declares {
            self.schedule.after(500 * MS, Event::Declare);
        }
        if self.options.members {
            self.schedule.after(500 * MS, Event::Members);
        }
        self.schedule.at(self.plan.duration, Event::Look);
        while let Some(event) = self.schedule.next() {
            if matches!(event, Event::Look) {
                if self.look() {
                    self.checks.finish(self.schedule.now());
                    let version = self.nodes.iter().map(|node| node.machine_version()).max();
                    self.checks.figures.raised += u64::from(version > Some(FIRST_MACHINE_VERSION));
                    return self.checks.figures;
                }
                continue;
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
        let mut text = format!("at {:.6} of {:?}\n", self.schedule.now() as f64 / 1e6, self.plan);
        for node in &self.nodes {
            text += &format!("{}\n", node.describe());
        }
        for client in &self.clients {
            text += &format!("{}\n", client.describe());
        }
        for group in 0..self.plan.groups.len() {
            text += &format!("committed {} live {}\n", self.checks.committed(group), self.checks.live());
        }
        text
    }

    /// After the faults: whether everything is as it should be, now.
    fn look(&mut self) -> bool {
        if !self.draining {
            self.draining = true;
            self.heal();
            self.settle_map();
        }
        let now = self.schedule.now();
        let quiet = self.clients.iter().all(Client::is_done) && self.checks.is_drained() && self.checks.is_safe();
        let all_up = self.nodes.iter().all(|node| node.is_up() || self.is_lost(node.id));
        let equal = (0..self.plan.groups.len()).all(|group| {
            let committed = self.checks.committed(group);
            let mut members = self.nodes.iter().filter(|node| self.is_member(group, node.id));
            members.all(|n| n.view(group).is_some_and(|v| v.applied == committed))
        });
        let lag = self.topology_lags();
        let kept = self.kept_by_who_left();
        let unlike = self.unlike_map();
        let is_still = quiet && all_up && equal;
        if is_still && self.is_turnover_over() && lag.is_none() && kept.is_none() && unlike.is_none() {
            return true;
        }
        if now > self.deadline {
            if let Some(what) = unlike.filter(|_| is_still) {
                violated("members", &what);
            }
            if let Some(what) = self.remains() {
                violated("deleted", &what);
            }
            if is_still && let Some(what) = kept.or_else(|| self.waste()) {
                violated("space", &what);
            }
            self.checks.finish(now);
            if let Some((checker, what)) = lag.filter(|_| is_still) {
                violated(checker, &format!("{what}\n{}", self.describe()));
            }
            let at_risk = self.checks.unsafe_ids();
            let what = format!("quiet {quiet} at risk {at_risk:?} all up {all_up} equal {equal}\n{}", self.describe());
            violated("liveness", &what);
        }
        self.schedule.after(200 * MS, Event::Look);
        false
    }

    fn step(&mut self, event: Event) {
        let now = self.schedule.now();
        match event {
            Event::Node { node, life, happening } => {
                if self.nodes[node].life == life {
                    let mut out = StepOutput::default();
                    self.nodes[node].happen(now, happening, &mut NoSockets, &mut out);
                    self.settle(node, out);
                }
            }
            Event::Packet { from, to, packet } => {
                let mut out = StepOutput::default();
                for (partition, frame) in network::arrived(packet, (from, self.nodes[to].id)) {
                    self.nodes[to].receive(from, partition, frame, &mut out);
                }
                self.settle(to, out);
            }
            Event::Command { session, command } => {
                let Some(node) = self.links.get(&session).map(|l| l.node) else { return };
                let mut out = StepOutput::default();
                self.trace.line(now, || format!("n{} <- s{} {}", node + 1, session.0, brief_command(&command)));
                self.nodes[node].command(session, command, &mut out);
                self.settle(node, out);
            }
            Event::Close { session, ended } => {
                let Some(link) = self.links.remove(&session) else { return };
                let mut out = StepOutput::default();
                self.trace.line(now, || format!("n{} <- s{} closes, ended {ended}", link.node + 1, session.0));
                self.nodes[link.node].close(session, ended, &mut out);
                self.settle(link.node, out);
            }
            Event::Effect { session, effect } => {
                let Some(client) = self.links.get(&session).map(|l| l.client) else { return };
                if self.clients[client].session == Some(session) {
                    self.with_client(client, |c, n| c.hear(effect, n));
                }
            }
            Event::Reset { session } => {
                let Some(link) = self.links.remove(&session) else { return };
                if self.clients[link.client].session == Some(session) {
                    self.clients[link.client].lost();
                }
            }
            Event::DeadLetter(step) => self.dead_letter(step),
            Event::Turnover(step) => self.turn_over(step),
            Event::Declare => self.declare(),
            Event::Members => self.change_members(),
            Event::Client { client } => self.with_client(client, Client::wake),
            Event::Weather => self.weather(),
            Event::Restart { node, life } => {
                let is_lost = self.is_lost(self.nodes[node].id);
                if self.nodes[node].life == life && !self.nodes[node].is_up() && !is_lost {
                    self.start(node);
                }
            }
            Event::Look => unreachable!("taken by the loop"),
        }
    }

    fn start(&mut self, node: usize) {
        let now = self.schedule.now();
        let id = self.nodes[node].id;
        let mut out = StepOutput::default();
        let known = self.known_queues();
        self.nodes[node].knows(known);
        if self.options.faults.start_rot && self.nodes.len() > 1 && node == self.victim && !self.draining {
            self.rot_before_start(node);
        }
        if self.options.spread {
            self.nodes[node].shards = self.random.between(1, 3) as usize;
        }
        match self.nodes[node].start(now, &mut out) {
            Ok(restored) => {
                let quarantined = self.nodes[node].quarantined();
                self.spoilt.retain(|(group, ..)| node != self.victim || quarantined.contains(group));
                self.checks.figures.quarantined += quarantined.len() as u64;
                self.trace.line(now, || {
                    let short: Vec<_> = restored
                        .iter()
                        .flatten()
                        .map(|(applied, log)| format!("applied {applied} log to {:?}", log.last().map(|e| (e.0, e.1))))
                        .collect();
                    format!("{id} starts: {short:?}")
                });
                // What a node's record in the topology tells all others.
                let all_can = self.nodes.iter().map(|node| node.said_can).min().expect("there are nodes");
                self.nodes.iter_mut().for_each(|node| node.all_can = all_can);
                self.checks.started(id, restored);
                self.settle(node, out);
            }
            Err(error) => {
                assert!(
                    self.nodes[node].disk.down().is_some() || error.is_full() || self.nodes[node].has_faults,
                    "{id} cannot start: {error}"
                );
                self.trace.line(now, || format!("{id} fails to start: {error}"));
                self.fall(node);
            }
        }
    }

    /// A node is down, by a crash that its disk met, or because it stopped itself. It comes back
    /// after a while.
    fn fall(&mut self, node: usize) {
        let id = self.nodes[node].id;
        for session in self.nodes[node].stop() {
            self.tell_client(session, |session| Event::Reset { session });
        }
        self.checks.stopped(id);
        let crash = self.nodes[node].disk.down();
        if crash.is_none() {
            self.nodes[node].disk.crash(Crash::Process);
        }
        if crash == Some(Crash::Power) {
            self.nodes[node].boot += 1;
            self.checks.power_cut(id);
            self.note_power_loss(node);
        }
        let survival = *self.random.pick(&[
            SurvivalUnit::Nothing,
            SurvivalUnit::Page,
            SurvivalUnit::Sector,
            SurvivalUnit::Sector,
            SurvivalUnit::Everything,
        ]);
        self.nodes[node].disk.set_survival(survival);
        self.nodes[node].disk.clear_faults();
        self.nodes[node].has_faults = false;
        self.nodes[node].disk.restart();
        let down_max = if self.options.faults.leaders { QUICK_START_MAX } else { SLOW_START_MAX };
        let after = if self.draining { 10 * MS } else { self.random.between(50, down_max) * MS };
        if self.options.faults.leaders {
            self.nodes[node].disk_slowness = 1;
        }
        let life = self.nodes[node].life;
        let now = self.schedule.now();
        self.trace.line(now, || format!("{id} is down ({crash:?}, {survival:?})"));
        self.schedule.after(after, Event::Restart { node, life });
    }
}

fn cap_of(queue: &QueueSettings) -> Option<(broker::QueueId, u64)> {
    match queue.keeping {
        Keeping::Selective(rule) => Some((queue.id, rule.cap)),
        _ => None,
    }
}

/// Whether one of these queues refuses what is too much, so that a refusal is an answer.
fn gives_up(plan: &Plan, queues: &[QueueSettings]) -> bool {
    queues.iter().any(|queue| plan.rules.get(&queue.id).is_some_and(|rules| rules.overflow.is_reject()))
}

fn group_of(partition: PartitionId) -> usize {
    (partition.0 - FIRST_PARTITION) as usize
}

fn brief_command(command: &Command) -> String {
    match command {
        Command::Publish(p) => {
            let id = crate::checks::id_of(&p.message.body);
            let targets: Vec<_> = p.targets.iter().map(|t| (t.queue.0, t.durability)).collect();
            format!("publish {} of {} id {id:?} to {targets:?}", p.publish_seq, p.channel.number())
        }
        other => format!("{other:?}"),
    }
}

fn brief_effect(effect: &Effect) -> String {
    match effect {
        Effect::Deliver(d) | Effect::Reply { reply: partition::Reply::Got { delivery: d, .. }, .. } => {
            let id = partition::message::MessageView::parse(&d.message).and_then(|v| crate::checks::id_of(v.body()));
            format!("deliver q{} {} id {id:?} to {:?} redelivered {}", d.queue.0, d.seq, d.consumer, d.redelivered)
        }
        other => format!("{other:?}"),
    }
}

fn brief_entry(body: &Bytes) -> String {
    use partition::entry::{Commands, LogCommand};
    let Ok(mut commands) = Commands::parse(body) else { return format!("{} bytes", body.len()) };
    let mut text = String::new();
    while let Ok(Some(command)) = commands.next() {
        text += &match command {
            LogCommand::Publish(b) => {
                let ids: Vec<_> = b.iter().filter_map(|m| crate::checks::id_of(m.body())).collect();
                let to: Vec<_> = b.targets().map(|q| q.0).collect();
                format!("publish {}:{} ids {ids:?} to {to:?}; ", b.publisher().number(), b.first_publish_seq())
            }
            LogCommand::Settle { queue, reason, ranges } => {
                format!("settle q{} {reason:?} {:?}; ", queue.0, ranges.collect::<Vec<_>>())
            }
            LogCommand::Requeue { queue, ranges, .. } => {
                format!("requeue q{} {:?}; ", queue.0, ranges.collect::<Vec<_>>())
            }
            other => format!("{other:?}; "),
        };
    }
    text
}
