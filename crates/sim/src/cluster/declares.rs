//! Somebody declares, binds and deletes all the time, on any node: the topology's group at work.
//!
//! As the server does it: a change is checked against the topology of the node where it is asked
//! for, which may lag, and then proposed; who is not answered may ask again, and the change may
//! then be there twice. Invariant: when the faults are over one more change is asked for until it
//! is decided, so that a group which does nothing any more is found out.

use super::{Cluster, Event};
use crate::checks::violated;
use crate::node::StepOutput;
use crate::random::Random;
use crate::schedule::{MS, Micros, SECOND};
use amqp::{Table, Value};
use broker::topology::{
    Binding, Command as Change, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, ExchangeType, Kind, Name,
    Topology, Unbind,
};
use broker::{PartitionId, QueueId, VhostId};
use bytes::Bytes;
use consensus::{LogIndex, NodeId};
use node::Wish;
use std::collections::BTreeMap;

const VHOST: VhostId = VhostId(0);
/// Names that queues, exchanges and keys are taken from.
const NAMES: u64 = 24;
/// Longest argument of a queue: with them the topology is larger than a part of its snapshot where
/// limits are tight.
const ARGUMENT_BYTES_MAX: u64 = 1_000;
/// Longest time between two changes.
const PAUSE_MAX: Micros = 80 * MS;
/// A change that is not answered is asked for again after this, when the faults are over.
const ANSWER_MAX: Micros = 2 * SECOND;

/// The proposals so far.
pub(super) struct Declares {
    random: Random,
    next_token: u64,
    /// The proposals after the faults: decided is one of them, or none yet.
    last: Vec<u64>,
    is_decided: bool,
    /// Who asked whether a node knows all, and what was certainly decided by then.
    catch_ups: BTreeMap<u64, LogIndex>,
}

impl Declares {
    pub(super) fn new(random: Random) -> Declares {
        Declares { random, next_token: 1, last: Vec::new(), is_decided: false, catch_ups: BTreeMap::new() }
    }
}

impl Cluster {
    /// The next change.
    pub(super) fn declare(&mut self) {
        if self.draining {
            return self.declare_last();
        }
        let Some(declares) = &mut self.declares else { return };
        let pause = declares.random.between(MS, PAUSE_MAX);
        self.schedule.after(pause, Event::Declare);
        let anybody = declares.random.below(self.nodes.len() as u64) as usize;
        let leader = self.nodes[anybody].topology_view().and_then(|view| view.leader);
        let node = match leader {
            Some(leader) if declares.random.chance(90) => (leader.0 - 1) as usize,
            _ => anybody,
        };
        let Some(topology) = self.nodes[node].topology() else { return };
        let change = change(&mut declares.random, topology);
        if declares.random.chance(2)
            && let Some(from) = leader
        {
            let to = NodeId(declares.random.between(1, self.nodes.len() as u64));
            self.nodes[(from.0 - 1) as usize].transfer_topology(to);
        }
        let asks = declares.random.chance(30).then(|| declares.random.below(self.nodes.len() as u64) as usize);
        self.propose(node, &change);
        if let Some(node) = asks {
            self.ask_to_catch_up(node);
        }
    }

    /// Somebody wants to know that a node knows all.
    fn ask_to_catch_up(&mut self, node: usize) {
        let Some(declares) = self.declares.as_mut().filter(|_| self.nodes[node].is_up()) else { return };
        let token = declares.next_token;
        declares.next_token += 1;
        let decided = self.nodes.iter().filter_map(|node| node.topology_view()).map(|view| view.applied).max();
        declares.catch_ups.insert(token, decided.unwrap_or_default());
        let mut out = StepOutput::default();
        self.nodes[node].wish(token, Wish::CatchUp, &mut out);
        self.settle(node, out);
    }

    /// The faults are over: something is decided yet.
    fn declare_last(&mut self) {
        let Some(declares) = &mut self.declares else { return };
        if declares.is_decided {
            return;
        }
        self.schedule.after(ANSWER_MAX, Event::Declare);
        let leads = |at: &usize| self.nodes[*at].topology_view().is_some_and(|view| view.serves);
        let Some(node) = (0..self.nodes.len()).find(leads) else { return };
        let last = declares.next_token;
        declares.last.push(last);
        self.propose(node, &Change::CreateVhost { name: Name::from("last") });
    }

    fn propose(&mut self, node: usize, change: &Change) {
        let Some(declares) = &mut self.declares else { return };
        let token = declares.next_token;
        declares.next_token += 1;
        let now = self.schedule.now();
        self.trace.line(now, || format!("n{} is asked for change {token}: {change:?}", node + 1));
        if !self.nodes[node].is_up() {
            return;
        }
        self.checks.topology.asked(token, change);
        let mut out = StepOutput::default();
        self.nodes[node].propose(token, change, &mut out);
        self.settle(node, out);
    }

    /// What a node says of the topology's group, and how the group stands there.
    pub(super) fn note_topology(&mut self, node: usize, decided: &[(u64, LogIndex)], answered: &[u64], lost: &[u64]) {
        let (now, id) = (self.schedule.now(), self.nodes[node].id);
        if let (Some(view), Some(declares)) = (self.nodes[node].topology_view(), &mut self.declares) {
            let (applied, catch_ups) = (view.applied, &mut declares.catch_ups);
            for (token, by_then) in answered.iter().filter_map(|token| Some((token, catch_ups.remove(token)?))) {
                self.trace.line(now, || format!("{id} says to {token} that it knows all through entry {applied}"));
                if applied < by_then {
                    violated(
                        "knows-all",
                        &format!("{id} says so at entry {applied}, and {by_then} was decided before"),
                    );
                }
                self.checks.figures.knew_all += 1;
            }
        }
        if let (Some(view), Some(topology)) = (self.nodes[node].topology_view(), self.nodes[node].topology()) {
            self.checks.topology.observe(id, &view, topology, &mut self.checks.figures);
        }
        for (token, index) in decided {
            self.trace.line(now, || format!("{id} says that entry {index} decided change {token}"));
            self.checks.topology.decided(*token, *index);
            self.checks.figures.decided += 1;
            if let Some(declares) = &mut self.declares {
                declares.is_decided |= declares.last.contains(token);
            }
        }
        for token in lost {
            if self.declares.as_mut().is_some_and(|declares| declares.catch_ups.remove(token).is_some()) {
                continue;
            }
            self.trace.line(now, || format!("{id} gives up change {token}"));
            self.checks.topology.lost(*token);
            self.checks.figures.undecided += 1;
        }
    }

    /// What is not yet as it should be with the topology's group when the faults are over.
    pub(super) fn topology_lags(&self) -> Option<(&'static str, String)> {
        let declares = self.declares.as_ref()?;
        if !declares.is_decided {
            return Some(("liveness", "no change of the topology is decided any more".to_owned()));
        }
        let committed = self.checks.topology.committed();
        for node in &self.nodes {
            let Some(view) = node.topology_view().filter(|view| view.applied == committed) else {
                let text = format!("{} lags behind entry {committed} of the topology", node.id);
                return Some(("liveness", text));
            };
            if view.term.0 == 0 {
                return Some(("liveness", format!("{} has heard of no leader", node.id)));
            }
            let files = node.topology_keeps_files();
            if self.plan.upkeep && files > 0 {
                return Some(("space", format!("the topology of {} keeps {files} files of the log", node.id)));
            }
        }
        None
    }
}

/// Anything that a client or an operator may ask for, of what a node knows.
fn change(random: &mut Random, topology: &Topology) -> Change {
    let named = |kind: &str, number: u64| Name::new(format!("{kind}.{number}").as_bytes());
    let (queue, exchange) = (named("q", random.below(NAMES)), named("x", random.below(NAMES / 4)));
    let known: Vec<QueueId> = topology.queues().map(|queue| queue.id).collect();
    let key = named("key", random.below(NAMES));
    let binding = Binding {
        vhost: VHOST,
        source: if random.chance(50) { Name::from("amq.topic") } else { exchange.clone() },
        destination_kind: Kind::Queue,
        destination: queue.clone(),
        key,
        arguments: Table::new(),
    };
    match random.below(100) {
        0..40 => {
            let mut arguments = Table::new();
            arguments.push("x-queue-type", Value::LongString(Bytes::from_static(b"quorum")));
            let note = vec![b'a' + random.below(26) as u8; random.below(ARGUMENT_BYTES_MAX) as usize];
            arguments.push("note", Value::LongString(note.into()));
            Change::DeclareQueue(DeclareQueue {
                vhost: VHOST,
                name: queue,
                durable: true,
                exclusive: None,
                auto_delete: false,
                arguments,
                partition: PartitionId(random.between(1, 3) as u32),
                home: None,
            })
        }
        40..55 if !known.is_empty() => {
            Change::DeleteQueue(DeleteQueue { queue: *random.pick(&known), keep: Vec::new() })
        }
        55..63 => Change::DeclareExchange(DeclareExchange {
            vhost: VHOST,
            name: exchange,
            kind: *random.pick(&[ExchangeType::Direct, ExchangeType::Fanout, ExchangeType::Topic]),
            durable: true,
            auto_delete: random.chance(30),
            internal: false,
            arguments: Table::new(),
            is_shared: false,
        }),
        63..66 => {
            let if_unused = random.chance(50);
            Change::DeleteExchange(DeleteExchange { vhost: VHOST, name: exchange, if_unused, keep: Vec::new() })
        }
        66..70 => Change::CreateVhost { name: named("v", random.below(4)) },
        70..72 => Change::DeleteVhost { vhost: VhostId(random.between(1, 4) as u32) },
        72..82 => Change::Unbind(Unbind { binding, keep: Vec::new() }),
        _ => Change::Bind(binding),
    }
}
