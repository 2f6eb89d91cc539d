//! What a change tells the world: the events of RabbitMQ's event exchange, by their routing keys.
//!
//! Invariant: what changes nothing tells nothing, so that declaring again what is there is no
//! event. Source: RabbitMQ's guide on the event exchange; keys and names of headers are RabbitMQ's.
//! Who made the change is not told: a command does not carry it.

use amqp::{Table, Value};
use bytes::Bytes;

use super::Topology;
use super::apply::Applied;
use super::command::{Binding, Command};
use super::name::Name;
use super::queue::{Queue, is_of_replies};
use super::user::{Permission, UserLimits};
use super::vhost::VhostLimits;
use crate::ids::VhostId;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerEvent {
    /// The routing key, such as `queue.created`.
    pub key: &'static str,
    /// What happened to whom.
    pub headers: Table,
}

impl BrokerEvent {
    /// An event without headers.
    pub fn new(key: &'static str) -> BrokerEvent {
        BrokerEvent { key, headers: Table::new() }
    }

    /// Adds a text.
    pub fn text(mut self, name: &'static str, text: &[u8]) -> BrokerEvent {
        self.headers.push(name, Value::LongString(Bytes::copy_from_slice(text)));
        self
    }

    /// Adds a boolean.
    pub fn flag(self, name: &'static str, flag: bool) -> BrokerEvent {
        self.value(name, Value::Bool(flag))
    }

    /// Adds a value of any type.
    pub fn value(mut self, name: &'static str, value: Value) -> BrokerEvent {
        self.headers.push(name, value);
        self
    }
}

/// What a change will tell if it is made: the state before it is gone afterwards.
#[derive(Debug, Default)]
pub struct Foresight {
    events: Vec<BrokerEvent>,
    /// Bindings before. `Bind` and `Unbind` tell something only if there are more or less of them
    /// afterwards.
    bindings: Option<usize>,
    /// Auto-delete exchanges of a virtual host that loses bindings.
    may_go: Vec<(VhostId, Name)>,
}

impl Foresight {
    /// What there is to tell, now that the change was made.
    pub fn told(self, applied: &Applied, after: &Topology) -> Vec<BrokerEvent> {
        if applied.outcome.is_err() || self.bindings == Some(after.binding_count()) {
            return Vec::new();
        }
        let mut events = self.events;
        let mut may_go = self.may_go;
        may_go.sort_unstable();
        may_go.dedup();
        for (vhost, name) in may_go {
            if after.find_exchange(vhost, &name).is_none() {
                events.push(after.about_vhost("exchange.deleted", vhost).text("name", &name));
            }
        }
        events
    }
}

impl Topology {
    fn about_vhost(&self, key: &'static str, vhost: VhostId) -> BrokerEvent {
        let name = self.vhost_of(vhost).map_or(&b""[..], |vhost| &vhost.name);
        BrokerEvent::new(key).text("vhost", name)
    }

    fn about_binding(&self, key: &'static str, binding: &Binding) -> BrokerEvent {
        self.about_vhost(key, binding.vhost)
            .text("source_name", &binding.source)
            .text("source_kind", b"exchange")
            .text("destination_name", &binding.destination)
            .text("destination_kind", binding.destination_kind.word().as_bytes())
            .text("routing_key", &binding.key)
            .value("arguments", Value::Table(binding.arguments.clone()))
    }

    fn lost_bindings(&self, places: &[u32], foresight: &mut Foresight, vhost: VhostId) {
        for at in places {
            let binding = self.binding_by_names(&self.bindings[*at as usize]);
            foresight.events.push(self.about_binding("binding.deleted", &binding));
        }
        self.may_lose_exchanges(foresight, vhost);
    }

    fn foresee_queue_deleted(&self, queue: &Queue, foresight: &mut Foresight) {
        self.lost_bindings(&queue.incoming, foresight, queue.vhost);
        if !queue.is_of_replies() {
            foresight.events.push(self.about_vhost("queue.deleted", queue.vhost).text("name", &queue.name));
        }
    }

    fn may_lose_exchanges(&self, foresight: &mut Foresight, vhost: VhostId) {
        let loose = self.exchanges().filter(|exchange| exchange.vhost == vhost && exchange.auto_delete);
        foresight.may_go.extend(loose.map(|exchange| (vhost, exchange.name.clone())));
    }

    /// What a command will tell the world if it is applied to this state.
    ///
    /// - Cost: that of the change; where bindings go, a look at every exchange as well.
    pub fn foresee(&self, command: &Command) -> Foresight {
        let mut foresight = Foresight::default();
        match command {
            Command::CreateVhost { name } => {
                if self.vhost(name).is_none() {
                    foresight.events.push(BrokerEvent::new("vhost.created").text("name", name));
                }
            }
            Command::FoundVhost { name, owner, .. } => {
                if self.vhost(name).is_none() {
                    foresight.events.push(BrokerEvent::new("vhost.created").text("name", name));
                    if self.users.contains_key(owner) {
                        let event = BrokerEvent::new("permission.created").text("vhost", name);
                        foresight.events.push(tell_permission(event, owner, &Permission::everything()));
                    }
                }
            }
            Command::DeleteVhost { vhost } => self.foresee_vhost_deleted(*vhost, &mut foresight),
            Command::DescribeVhost { .. }
            | Command::PutGlobalParameter { .. }
            | Command::ClearGlobalParameter { .. }
            | Command::PutNode { .. }
            | Command::PutPool { .. }
            | Command::PutPartition { .. }
            | Command::ChangeNodes(_)
            | Command::ChangeCopies(_)
            | Command::RaiseVersion { .. } => {}
            Command::PutUser { name, password, tags } => {
                let before = self.users.get(name);
                foresight.events.extend(match before {
                    None => Some(BrokerEvent::new("user.created").text("name", name)),
                    Some(user) if user.password != *password => {
                        Some(BrokerEvent::new("user.password.changed").text("name", name))
                    }
                    Some(_) => None,
                });
                if before.map_or(!tags.is_empty(), |user| user.tags != *tags) {
                    let tags = tags.iter().map(|tag| Value::LongString(Bytes::copy_from_slice(tag))).collect();
                    let event = BrokerEvent::new("user.tags.set").text("name", name).value("tags", Value::Array(tags));
                    foresight.events.push(event);
                }
            }
            Command::DeleteUser { name } => {
                if self.users.contains_key(name) {
                    foresight.events.push(BrokerEvent::new("user.deleted").text("name", name));
                }
            }
            Command::PutPermission { user, vhost, permission } => {
                let event = self.about_vhost("permission.created", *vhost);
                foresight.events.push(tell_permission(event, user, permission));
            }
            Command::ClearPermission { user, vhost } => {
                if self.users.get(user).is_some_and(|user| user.permissions.contains_key(vhost)) {
                    foresight.events.push(self.about_vhost("permission.deleted", *vhost).text("user", user));
                }
            }
            Command::PutTopicPermission { user, vhost, exchange, write, read } => {
                let event = self.about_vhost("topic.permission.created", *vhost).text("user", user);
                let event =
                    event.text("exchange", exchange).text("write", write.as_bytes()).text("read", read.as_bytes());
                foresight.events.push(event);
            }
            Command::ClearTopicPermission { user, vhost, exchange } => {
                let place = (*vhost, exchange.clone());
                if self.users.get(user).is_some_and(|user| user.topic_permissions.contains_key(&place)) {
                    let event = self.about_vhost("topic.permission.deleted", *vhost).text("user", user);
                    foresight.events.push(event.text("exchange", exchange));
                }
            }
            Command::SetUserLimits { user, limits } => {
                let key = if *limits == UserLimits::default() { "user.limits.cleared" } else { "user.limits.set" };
                foresight.events.push(BrokerEvent::new(key).text("name", user));
            }
            Command::SetVhostLimits { vhost, limits } => {
                let key = if *limits == VhostLimits::default() { "vhost.limits.cleared" } else { "vhost.limits.set" };
                let name = self.vhost_of(*vhost).map_or(&b""[..], |vhost| &vhost.name);
                foresight.events.push(BrokerEvent::new(key).text("name", name));
            }
            Command::PutPolicy(put) => {
                let event = self
                    .about_vhost("policy.set", put.vhost)
                    .text("name", &put.name)
                    .text("pattern", put.policy.pattern.text().as_bytes())
                    .text("apply-to", put.policy.apply_to.word().as_bytes())
                    .value("priority", Value::I64(put.policy.priority))
                    .value("definition", Value::Table(put.policy.definition.clone()));
                foresight.events.push(event);
            }
            Command::DeletePolicy { vhost, operator, name } => {
                let held = self.vhost_of(*vhost).map(|vhost| match operator {
                    true => &vhost.operator_policies,
                    false => &vhost.policies,
                });
                if held.is_some_and(|policies| policies.contains_key(name)) {
                    foresight.events.push(self.about_vhost("policy.cleared", *vhost).text("name", name));
                }
            }
            Command::DeclareExchange(declare) => {
                if self.find_exchange(declare.vhost, &declare.name).is_none() {
                    let event = self
                        .about_vhost("exchange.created", declare.vhost)
                        .text("name", &declare.name)
                        .text("type", declare.kind.word().as_bytes())
                        .flag("durable", declare.durable)
                        .flag("auto_delete", declare.auto_delete)
                        .flag("internal", declare.internal)
                        .value("arguments", Value::Table(declare.arguments.clone()));
                    foresight.events.push(event);
                }
            }
            Command::DeleteExchange(delete) => {
                if let Some(exchange) = self.find_exchange(delete.vhost, &delete.name) {
                    let places = [&exchange.outgoing[..], &exchange.incoming[..]].concat();
                    self.lost_bindings(&places, &mut foresight, delete.vhost);
                    foresight.may_go.retain(|(_, name)| *name != delete.name);
                    let event = self.about_vhost("exchange.deleted", delete.vhost).text("name", &delete.name);
                    foresight.events.push(event);
                }
            }
            Command::DeclareQueue(declare) => {
                let is_told = !is_of_replies(&declare.name);
                if is_told && self.find_queue(declare.vhost, &declare.name).is_none() {
                    let event = self
                        .about_vhost("queue.created", declare.vhost)
                        .text("name", &declare.name)
                        .flag("durable", declare.durable)
                        .flag("auto_delete", declare.auto_delete)
                        .flag("exclusive", declare.exclusive.is_some())
                        .value("arguments", Value::Table(declare.arguments.clone()));
                    foresight.events.push(event);
                }
            }
            Command::EndHome(home) if self.era(home.node) == home.era => {
                let gone = self.queues.by_home().get(home).into_iter().flatten().filter_map(|id| self.queue(*id));
                gone.for_each(|queue| self.foresee_queue_deleted(queue, &mut foresight));
            }
            Command::EndHome(_) => {}
            Command::DeleteQueue(delete) => {
                if let Some(queue) = self.queue(delete.queue) {
                    self.foresee_queue_deleted(queue, &mut foresight);
                }
            }
            Command::Bind(binding) => {
                foresight.bindings = Some(self.binding_count());
                foresight.events.push(self.about_binding("binding.created", binding));
            }
            Command::Unbind(unbind) => {
                foresight.bindings = Some(self.binding_count());
                foresight.events.push(self.about_binding("binding.deleted", &unbind.binding));
                self.may_lose_exchanges(&mut foresight, unbind.binding.vhost);
            }
        }
        foresight
    }

    fn foresee_vhost_deleted(&self, vhost: VhostId, foresight: &mut Foresight) {
        let Some(gone) = self.vhost_of(vhost) else { return };
        for binding in self.bindings().filter(|binding| binding.vhost == vhost) {
            foresight.events.push(self.about_binding("binding.deleted", &binding));
        }
        for queue in self.queues().filter(|queue| queue.vhost == vhost) {
            foresight.events.push(self.about_vhost("queue.deleted", vhost).text("name", &queue.name));
        }
        for exchange in self.exchanges().filter(|exchange| exchange.vhost == vhost) {
            foresight.events.push(self.about_vhost("exchange.deleted", vhost).text("name", &exchange.name));
        }
        foresight.events.push(BrokerEvent::new("vhost.deleted").text("name", &gone.name));
    }
}

fn tell_permission(event: BrokerEvent, user: &[u8], permission: &Permission) -> BrokerEvent {
    event
        .text("user", user)
        .text("configure", permission.configure.text().as_bytes())
        .text("write", permission.write.text().as_bytes())
        .text("read", permission.read.text().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::password::PasswordHash;
    use super::super::{DeclareExchange, DeclareQueue, DeleteExchange, ExchangeType, Kind, Unbind};
    use super::*;
    use crate::ids::PartitionId;

    const ROOT: VhostId = VhostId(0);

    fn tell(topology: &mut Topology, command: &Command) -> Vec<String> {
        let foresight = topology.foresee(command);
        let applied = topology.apply(command);
        let about =
            |event: BrokerEvent| match event.headers.get("name").or_else(|| event.headers.get("destination_name")) {
                Some(Value::LongString(name)) => format!("{} {}", event.key, String::from_utf8_lossy(name)),
                _ => event.key.to_owned(),
            };
        foresight.told(&applied, topology).into_iter().map(about).collect()
    }

    fn queue(name: &str) -> Command {
        let mut arguments = Table::new();
        arguments.push("x-queue-type", Value::LongString("classic".into()));
        Command::DeclareQueue(DeclareQueue {
            vhost: ROOT,
            name: name.into(),
            durable: true,
            exclusive: None,
            auto_delete: false,
            arguments,
            partition: PartitionId(1),
            home: None,
        })
    }

    fn exchange(name: &str, auto_delete: bool) -> Command {
        Command::DeclareExchange(DeclareExchange {
            vhost: ROOT,
            name: name.into(),
            kind: ExchangeType::Direct,
            durable: true,
            auto_delete,
            internal: false,
            arguments: Table::new(),
            is_shared: false,
        })
    }

    fn binding(source: &str, to: &str) -> Binding {
        Binding {
            vhost: ROOT,
            source: source.into(),
            destination_kind: Kind::Queue,
            destination: to.into(),
            key: "k".into(),
            arguments: Table::new(),
        }
    }

    #[test]
    fn what_changes_is_told_once_and_what_was_so_before_is_not() {
        let mut topology = Topology::new();
        let told = |topology: &mut Topology, command: Command, event: &[&str]| {
            assert_eq!(tell(topology, &command), event, "{command:?}");
            assert_eq!(tell(topology, &command), Vec::<String>::new(), "again: {command:?}");
        };
        told(&mut topology, queue("a"), &["queue.created a"]);
        told(&mut topology, exchange("x", true), &["exchange.created x"]);
        told(&mut topology, Command::Bind(binding("x", "a")), &["binding.created a"]);
        let unbind = Command::Unbind(Unbind { binding: binding("x", "a"), keep: Vec::new() });
        told(&mut topology, unbind, &["binding.deleted a", "exchange.deleted x"]);
        told(&mut topology, Command::CreateVhost { name: "v".into() }, &["vhost.created v"]);
        let put = |password: &[u8]| Command::PutUser {
            name: "u".into(),
            password: PasswordHash::new(password, [1; 4]),
            tags: vec!["monitoring".into()],
        };
        told(&mut topology, put(b"1"), &["user.created u", "user.tags.set u"]);
        told(&mut topology, put(b"2"), &["user.password.changed u"]);
        told(&mut topology, Command::DeleteUser { name: "u".into() }, &["user.deleted u"]);
    }

    #[test]
    fn what_goes_takes_its_bindings_along_and_a_refused_change_tells_nothing() {
        let mut topology = Topology::new();
        for command in [queue("a"), queue("b"), exchange("x", false), exchange("y", true)] {
            topology.apply(&command);
        }
        for bound in [binding("x", "a"), binding("x", "b"), binding("y", "b")] {
            topology.apply(&Command::Bind(bound));
        }
        let delete = |if_unused| {
            Command::DeleteExchange(DeleteExchange { vhost: ROOT, name: "x".into(), if_unused, keep: Vec::new() })
        };
        assert_eq!(tell(&mut topology, &delete(true)), Vec::<String>::new());
        assert_eq!(
            tell(&mut topology, &delete(false)),
            ["binding.deleted a", "binding.deleted b", "exchange.deleted x"]
        );
        let id = topology.find_queue(ROOT, b"b").expect("it was declared").id;
        let gone = Command::DeleteQueue(super::super::DeleteQueue { queue: id, keep: Vec::new() });
        assert_eq!(tell(&mut topology, &gone), ["binding.deleted b", "queue.deleted b", "exchange.deleted y"]);
    }
}
