//! What exists: queues under names, and the exchanges that lead to them, in the machine in which
//! the server keeps them.
//!
//! A queue's name is the id that the plan gave it; each of its lives has an id of its own. Every
//! partition has an `x-delayed-message` exchange that leads to its queues. The topology's own log
//! is not simulated: everybody sees the same at once, but for nodes that hear of a deletion late.
//! Invariant: an id is given out once.

use crate::bug::Bug;
use crate::client::QueueSettings;
use crate::plan::Plan;
use amqp::{Table, Value};
use broker::topology::{
    Binding, Command, CommandReply, DeclareExchange, DeclareQueue, DeleteQueue, ExchangeType, Kind, Name, NoFacts,
    RouteRequest, Topology,
};
use broker::{PartitionId, QueueId, VhostId};
use bytes::Bytes;
use partition::machine::schedule_of;
use std::collections::BTreeMap;

/// Ids of one life of all queues: names are below.
const LIFE: u64 = 1 << 12;
const VHOST: VhostId = VhostId(0);
/// The routing key that leads to every queue of a partition.
const TO_ALL: &str = "all.of.them";

/// The name of a queue, that is, the id that it had in its first life. Scheduled messages have
/// queues without a name.
pub fn name_of(id: QueueId) -> QueueId {
    if schedule_of(id).is_some() { id } else { QueueId(id.0 % LIFE) }
}

/// See the module.
pub struct Registry {
    topology: Topology,
    /// By name: its partition, and what it is like.
    queues: BTreeMap<QueueId, (usize, QueueSettings)>,
    /// Queues that lie behind no exchange.
    graves: Vec<QueueId>,
    /// What the exchange of each partition chooses by.
    routes_as: Vec<ExchangeType>,
    lives: u64,
    bug: Option<Bug>,
}

impl Registry {
    /// The queues of a plan, in their first lives.
    pub fn new(plan: &Plan, bug: Option<Bug>) -> Registry {
        let mut registry = Registry {
            topology: Topology::new(),
            queues: BTreeMap::new(),
            graves: plan.graves.iter().map(|grave| grave.id).collect(),
            routes_as: plan.routes_as.clone(),
            lives: 0,
            bug,
        };
        for (group, kind) in plan.routes_as.iter().enumerate() {
            let mut arguments = Table::new();
            arguments.push("x-delayed-type", Value::LongString(Bytes::from_static(kind.word().as_bytes())));
            let (name, kind) = (exchange(group), ExchangeType::DelayedMessage);
            let declare = DeclareExchange {
                vhost: VHOST,
                name,
                kind,
                durable: true,
                auto_delete: false,
                internal: false,
                arguments,
                is_shared: false,
            };
            registry.apply(&Command::DeclareExchange(declare));
        }
        let of_groups = plan.groups.iter().map(Vec::as_slice).chain([&plan.graves[..]]);
        for (group, queue) in of_groups.enumerate().flat_map(|(group, queues)| queues.iter().map(move |q| (group, q))) {
            let group = plan.graves.iter().position(|grave| grave.id == queue.id).unwrap_or(group);
            registry.queues.insert(queue.id, (group, *queue));
            assert_eq!(registry.declare(queue.id, queue.id), queue.id, "the plan numbers queues upwards");
            registry.bind(queue.id);
        }
        registry
    }

    /// What a queue is called now, if it exists.
    pub fn current(&self, name: QueueId) -> Option<QueueId> {
        self.topology.find_queue(VHOST, &queue_name(name)).map(|queue| queue.id)
    }

    /// Whether a queue exists.
    pub fn exists(&self, id: QueueId) -> bool {
        self.topology.queue(id).is_some()
    }

    /// Whether every queue exists.
    pub fn is_complete(&self) -> bool {
        self.queues.keys().all(|name| self.current(*name).is_some())
    }

    /// The names of a partition's queues.
    pub fn names(&self, group: usize) -> Vec<QueueId> {
        self.queues.iter().filter(|(_, of)| of.0 == group).map(|(name, _)| *name).collect()
    }

    /// The queues of a partition that exist.
    pub fn of_group(&self, group: usize) -> Vec<QueueId> {
        self.names(group).into_iter().filter_map(|name| self.current(name)).collect()
    }

    /// What a queue is like.
    pub fn settings(&self, id: QueueId) -> QueueSettings {
        QueueSettings { id, ..self.queues[&name_of(id)].1 }
    }

    /// Whether a queue is for dead letters only.
    pub fn is_grave(&self, id: QueueId) -> bool {
        self.graves.contains(&name_of(id))
    }

    /// A queue ends, and its bindings with it.
    pub fn delete(&mut self, id: QueueId) {
        self.apply(&Command::DeleteQueue(DeleteQueue { queue: id, keep: Vec::new() }));
    }

    /// A queue of this name is declared and bound again.
    pub fn create(&mut self, name: QueueId) -> QueueId {
        self.lives += 1;
        let id = self.declare(name, QueueId(self.lives * LIFE + name.0));
        if self.bug != Some(Bug::BindingIsForgotten) {
            self.bind(name);
        }
        id
    }

    /// The routing keys with which somebody may publish to a partition's exchange.
    pub fn keys(&self, group: usize) -> Vec<Name> {
        let bound = self.names(group).into_iter().filter(|name| !self.graves.contains(name));
        bound.map(queue_name).chain([Name::from(TO_ALL)]).collect()
    }

    /// Where a message goes that is published to a partition's exchange, as the topology says.
    pub fn route(&self, group: usize, key: &Name) -> Vec<QueueId> {
        let (exchange, keys) = (exchange(group), [&key[..]]);
        let request = RouteRequest { vhost: VHOST, exchange: &exchange, keys: &keys, facts: &NoFacts };
        let mut targets = Vec::new();
        self.topology.route(&request, &mut targets).expect("the exchange is there");
        let mut ids: Vec<QueueId> = targets.iter().map(|target| target.queue).collect();
        ids.sort_unstable();
        ids
    }

    /// Where it has to go: what a direct, a topic and a fanout exchange make of these keys, said
    /// plainly.
    pub fn leads_to(&self, group: usize, key: &Name) -> Vec<QueueId> {
        let is_meant = |name: &QueueId| {
            let is_for_all = **key == *TO_ALL.as_bytes() || self.routes_as[group] == ExchangeType::Fanout;
            !self.graves.contains(name) && (is_for_all || **key == *queue_name(*name))
        };
        let mut ids: Vec<QueueId> =
            self.names(group).iter().filter(|name| is_meant(name)).filter_map(|name| self.current(*name)).collect();
        ids.sort_unstable();
        ids
    }

    fn declare(&mut self, name: QueueId, id: QueueId) -> QueueId {
        self.topology.pass_over_queue_ids(QueueId(id.0 - 1));
        let mut arguments = Table::new();
        arguments.push("x-queue-type", Value::LongString(Bytes::from_static(b"quorum")));
        let declare = DeclareQueue {
            vhost: VHOST,
            name: queue_name(name),
            durable: true,
            exclusive: None,
            auto_delete: false,
            arguments,
            partition: PartitionId(self.queues[&name].0 as u32 + 1),
            home: None,
        };
        match self.apply(&Command::DeclareQueue(declare)) {
            CommandReply::Queue { id: given, created: true } => given,
            other => panic!("a queue that is not there was declared: {other:?}"),
        }
    }

    fn bind(&mut self, name: QueueId) {
        if self.graves.contains(&name) {
            return;
        }
        let group = self.queues[&name].0;
        let Some(kind) = self.routes_as.get(group) else { return };
        let to_all = if *kind == ExchangeType::Topic { "all.#" } else { TO_ALL };
        for key in [queue_name(name), Name::from(to_all)] {
            let binding = Binding {
                vhost: VHOST,
                source: exchange(group),
                destination_kind: Kind::Queue,
                destination: queue_name(name),
                key,
                arguments: Table::new(),
            };
            self.apply(&Command::Bind(binding));
        }
    }

    fn apply(&mut self, command: &Command) -> CommandReply {
        self.topology.apply(command).outcome.unwrap_or_else(|refusal| panic!("{command:?}: {refusal:?}"))
    }
}

fn queue_name(name: QueueId) -> Name {
    Name::new(format!("q.{}", name.0).as_bytes())
}

fn exchange(group: usize) -> Name {
    Name::new(format!("later.{group}").as_bytes())
}
