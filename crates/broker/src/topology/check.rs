//! Requests against the topology as it is: what can be answered at once, what is refused, what
//! needs a command.
//!
//! Invariant: a check changes nothing, and asks in RabbitMQ's order, so that a request with several
//! faults gets the refusal that RabbitMQ would give.

mod routing;

use amqp::Table;

use super::apply::Scope;
use super::cluster::NOT_YET_BY_ALL;
use super::command::{Command, DeclareQueue, DeleteQueue};
use super::destination::Destination;
use super::encoding::{self, TABLE_DEPTH_MAX};
use super::exchange::{self, Exchange};
use super::exchange_type::ExchangeType;
use super::name::{NAME_BYTES_MAX, Name};
use super::pools::Placement;
use super::queue::{self, Queue, QueueCounts, QueueShape};
use super::refusal::{Kind, Refusal, Resource};
use super::scopes::Scopes;
use super::settings::{ConsumerSettings, QueueType};
use super::user::Access;
use super::{ARGUMENTS_BYTES_MAX, Redeclaration, Topology, arguments, arguments::TypeAsked};
use crate::ids::{PartitionId, QueueId, VhostId};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// The name of the user that logged in.
    pub user: &'a [u8],
    /// The connection, as the owner of exclusive queues.
    pub connection: u64,
    /// What they may do by a token, instead of what the user may who is so called.
    pub scopes: Option<&'a Scopes>,
}

/// The connection of who runs the broker's machine, and so is at none. Connections are counted from
/// 1, and no count comes so far.
const OF_THE_MACHINE: u64 = u64::MAX;

impl Actor<'_> {
    /// Who runs the broker's machine: no user, and so without permissions, who may do what any user
    /// may. What is exclusive to a connection stays that connection's.
    pub const MACHINE: Actor<'static> = Actor { user: b"", connection: OF_THE_MACHINE, scopes: None };
}

/// How many connections are open already where one more wants to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenConnections {
    /// In the virtual host.
    pub of_vhost: usize,
    /// Of the user.
    pub of_user: usize,
}

/// What a request needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Checked {
    /// Nothing: it is as asked. Answer the client.
    Done,
    /// A replicated command.
    Propose(Command),
    /// A command for `Topology::apply_local` on this node.
    Local(Command),
}

/// What a `queue.declare` needs.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueDeclared {
    /// An equal queue is there. Answer with its counts.
    Existing(QueueId),
    /// A replicated `DeclareQueue`.
    Propose(Command),
    /// A `DeclareQueue` for `Topology::apply_local` on this node.
    Local(Command),
}

/// A `queue.declare` that is not passive.
#[derive(Clone, Copy, Debug)]
pub struct QueueDeclare<'a> {
    /// The virtual host of the connection.
    pub vhost: VhostId,
    /// The name as it came; if the client left it empty (line ends do not count), the name that the
    /// server drew.
    pub name: &'a [u8],
    /// Whether the server drew the name.
    pub server_named: bool,
    /// The flag of the method.
    pub durable: bool,
    /// The flag of the method.
    pub exclusive: bool,
    /// The flag of the method.
    pub auto_delete: bool,
    /// The arguments of the method.
    pub arguments: &'a Table,
}

/// An `exchange.declare` that is not passive.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeDeclare<'a> {
    /// The virtual host of the connection.
    pub vhost: VhostId,
    /// The name as it came.
    pub name: &'a [u8],
    /// The type as it came.
    pub kind: &'a [u8],
    /// The flag of the method.
    pub durable: bool,
    /// The flag of the method.
    pub auto_delete: bool,
    /// The flag of the method.
    pub internal: bool,
    /// The arguments of the method.
    pub arguments: &'a Table,
}

impl Topology {
    /// The virtual host of `connection.open`, which has so many connections `open` already, and so
    /// has the user. Errors: 530 on the connection: unknown, full or not allowed.
    pub fn open_vhost(&self, actor: Actor<'_>, name: &[u8], open: OpenConnections) -> Result<VhostId, Refusal> {
        let user = actor.user;
        let lossy = String::from_utf8_lossy(name);
        let known = if name.len() > NAME_BYTES_MAX { None } else { self.vhost(name) };
        let Some(id) = known else {
            return Err(Refusal::not_allowed(&format!("vhost {lossy} not found")));
        };
        let reached = |limit: Option<u32>, count: usize| limit.filter(|limit| count >= *limit as usize);
        let limits = self.vhost_of(id).map(|vhost| vhost.limits).unwrap_or_default();
        if let Some(limit) = reached(limits.connections_max, open.of_vhost) {
            let user = String::from_utf8_lossy(user);
            return Err(Refusal::not_allowed(&format!(
                "access to vhost '{lossy}' refused for user '{user}': connection limit ({limit}) is reached"
            )));
        }
        if let Some(limit) = self.user(user).and_then(|user| reached(user.limits.connections_max, open.of_user)) {
            let user = String::from_utf8_lossy(user);
            return Err(Refusal::not_allowed(&format!(
                "connection refused for user '{user}': user connection limit ({limit}) is reached"
            )));
        }
        if self.uses(actor, id) {
            return Ok(id);
        }
        let user = String::from_utf8_lossy(user);
        Err(Refusal::not_allowed(&format!("access to vhost '{lossy}' refused for user '{user}'")))
    }

    /// Whether somebody may do anything in a virtual host.
    pub fn uses(&self, actor: Actor<'_>, vhost: VhostId) -> bool {
        match actor.scopes {
            Some(scopes) => self.vhost_of(vhost).is_some_and(|vhost| scopes.opens(&vhost.name)),
            None => self.user(actor.user).is_some_and(|user| user.permissions.contains_key(&vhost)),
        }
    }

    /// Whether a user with so many channels `open` may open one more. Errors: 530 on the
    /// connection.
    pub fn check_channel_open(&self, user: &[u8], open: usize) -> Result<(), Refusal> {
        let limit = self.user(user).and_then(|user| user.limits.channels_max);
        match limit.filter(|limit| open >= *limit as usize) {
            None => Ok(()),
            Some(limit) => Err(Refusal::not_allowed(&format!(
                "number of channels opened for user '{}' has reached the maximum allowed user limit of ({limit})",
                String::from_utf8_lossy(user)
            ))),
        }
    }

    /// Whether the actor may do this to a queue or an exchange of this name, whether it is there or not. Errors: 403.
    pub fn check_right(
        &self,
        actor: Actor<'_>,
        vhost: VhostId,
        (kind, name): (Kind, &[u8]),
        access: Access,
    ) -> Result<(), Refusal> {
        let name = Name::stripped(name);
        self.check_access(actor, vhost, Resource { kind, name: &name, vhost: self.vhost_name(vhost)? }, access)
    }

    /// Whether the actor may publish to the exchange with this key; the exchange has to be there
    /// and not internal. Errors: 403, 404. Holds while `version` stays the same.
    pub fn check_publish(
        &self,
        actor: Actor<'_>,
        vhost: VhostId,
        exchange: &[u8],
        routing_key: &[u8],
    ) -> Result<(), Refusal> {
        let resource = exchange::resource(exchange, self.vhost_name(vhost)?);
        self.check_access(actor, vhost, resource, Access::Write)?;
        match self.find_exchange(vhost, exchange) {
            None => Err(Refusal::not_found(resource)),
            Some(found) if found.internal => {
                Err(Refusal::access_refused(&format!("cannot publish to internal {resource}")))
            }
            Some(found) => self.check_topic_access(actor, found, resource, Access::Write, routing_key),
        }
    }

    /// The queue of a `basic.consume` or `queue.purge`. Errors: 403, 404, 405 if it is another
    /// connection's.
    pub fn check_read(&self, actor: Actor<'_>, vhost: VhostId, queue: &[u8]) -> Result<&Queue, Refusal> {
        let resource = queue::resource(queue, self.vhost_name(vhost)?);
        self.check_access(actor, vhost, resource, Access::Read)?;
        self.usable_queue(actor, vhost, resource)
    }

    /// The queue of a `basic.get`. Errors: as `check_read`, and 405 on a quorum queue with a single
    /// active consumer, whose order a get would break.
    pub fn check_get(&self, actor: Actor<'_>, vhost: VhostId, queue: &[u8]) -> Result<&Queue, Refusal> {
        let found = self.check_read(actor, vhost, queue)?;
        match found.rules.single_active {
            Some(_) if found.shape.queue_type == QueueType::Quorum => {
                let resource = queue::resource(queue, self.vhost_name(vhost)?);
                Err(Refusal::get_beside_single_active(resource))
            }
            _ => Ok(found),
        }
    }

    /// The queue of a passive `queue.declare`. It asks for no right: who may open the virtual host
    /// may look, so that programs which only consume or publish find their queue. Errors: 404, 405.
    pub fn check_queue_passive(&self, actor: Actor<'_>, vhost: VhostId, name: &[u8]) -> Result<&Queue, Refusal> {
        let name = Name::stripped(name);
        let resource = queue::resource(&name, self.vhost_name(vhost)?);
        self.usable_queue(actor, vhost, resource)
    }

    /// What the arguments of a `basic.consume` mean. Errors: 406 that names the argument, also for
    /// those of RabbitMQ that this version has not.
    pub fn check_consume_arguments(&self, queue: &Queue, table: &Table) -> Result<ConsumerSettings, Refusal> {
        let resource = queue::resource(&queue.name, self.vhost_name(queue.vhost)?);
        arguments::check_consume(resource, queue.shape.queue_type, table)
    }

    /// A `queue.declare` that is not passive. `place` chooses where a new queue lives and is asked
    /// only about one.
    ///
    /// Errors: 403 for a reserved name or no right, 405 for another connection's queue, 406 for
    /// anything that differs from an existing queue or is not lawful for a new one.
    pub fn check_queue_declare(
        &self,
        actor: Actor<'_>,
        declare: &QueueDeclare<'_>,
        place: impl FnOnce(Placement) -> PartitionId,
    ) -> Result<QueueDeclared, Refusal> {
        let name = Name::stripped(declare.name);
        let resource = queue::resource(&name, self.vhost_name(declare.vhost)?);
        if name.is_empty() {
            return Err(Refusal::precondition_failed("a queue needs a name"));
        }
        let arguments =
            self.completed(declare.vhost, declare.durable, declare.exclusive, declare.auto_delete, declare.arguments);
        if declare.server_named {
            let queue_type = arguments::queue_type(resource, &arguments)?;
            if queue_type == QueueType::Quorum {
                return Err(Refusal::precondition_failed(&format!(
                    "Cannot declare a server-named queue for type {}",
                    queue_type.module()
                )));
            }
        } else if name.is_reserved() {
            return Err(Refusal::reserved_name(Kind::Queue, &name));
        }
        self.check_access(actor, declare.vhost, resource, Access::Configure)?;
        check_size(resource, declare.arguments)?;
        let mut command = DeclareQueue {
            vhost: declare.vhost,
            name: name.clone(),
            durable: declare.durable && !declare.exclusive,
            exclusive: declare.exclusive.then_some(actor.connection),
            auto_delete: declare.auto_delete,
            arguments,
            partition: PartitionId(0),
            home: None,
        };
        if let Some(at) = self.queues.find(declare.vhost, &name) {
            let queue = &self.queues[at];
            if self.redeclaration == Redeclaration::Relaxed
                && queue.shape.queue_type == QueueType::Quorum
                && arguments::queue_type(resource, &command.arguments)? == QueueType::Classic
            {
                command.arguments = arguments::with_type_of(&command.arguments, QueueType::Quorum);
            }
            self.check_queue_equivalent(queue, &command)?;
            return Ok(QueueDeclared::Existing(queue.id));
        }
        self.check_queue_limit(&command, Scope::Local)?;
        self.check_linked_exchange(actor, resource, declare.vhost, declare.arguments, "x-dead-letter-exchange")?;
        let shape = self.queue_shape(&command)?;
        self.check_level(resource, &shape)?;
        let bytes = if declare.arguments.is_empty() { 0 } else { shape.counted_bytes() };
        self.check_argument_bytes(declare.vhost, bytes)?;
        self.check_dedicated(&command.name, &shape)?;
        let in_memory = command.is_in_memory();
        command.home = self.own_home().filter(|_| in_memory);
        let is_local = command.is_local();
        command.partition = place(self.placement(in_memory, command.vhost, &command.name, &shape));
        let command = Command::DeclareQueue(command);
        Ok(if is_local { QueueDeclared::Local(command) } else { QueueDeclared::Propose(command) })
    }

    /// The command that declares a queue by the operator's word: nobody's rights are asked. Errors:
    /// 406 for arguments that cannot be stored; all else is checked when it is applied.
    pub fn queue_declaration(
        &self,
        vhost: VhostId,
        name: Name,
        [durable, auto_delete]: [bool; 2],
        arguments: &Table,
        partition: PartitionId,
    ) -> Result<Command, Refusal> {
        check_size(queue::resource(&name, self.vhost_name(vhost)?), arguments)?;
        let arguments = self.completed(vhost, durable, false, auto_delete, arguments);
        let home = self.own_home().filter(|_| !durable);
        let declare = DeclareQueue { vhost, name, durable, exclusive: None, auto_delete, arguments, partition, home };
        if declare.arguments.get("x-durability").is_some() && self.queues.find(vhost, &declare.name).is_none() {
            let resource = queue::resource(&declare.name, self.vhost_name(vhost)?);
            // What else is wrong with it is told when it is applied.
            self.queue_shape(&declare).map_or(Ok(()), |shape| self.check_level(resource, &shape))?;
        }
        Ok(Command::DeclareQueue(declare))
    }

    /// Whether every node knows the level that a new queue asks for. Asked before the log has the declare:
    /// whoever applies that later works by the same version, or a later one.
    fn check_level(&self, resource: Resource<'_>, shape: &QueueShape) -> Result<(), Refusal> {
        match shape.settings.durability.level().is_of_leader() && !self.chooses_durability() {
            true => Err(Refusal::invalid_argument(resource, "x-durability", NOT_YET_BY_ALL)),
            false => Ok(()),
        }
    }

    /// The arguments of a declare with the queue type spelled out.
    fn completed(&self, vhost: VhostId, durable: bool, exclusive: bool, auto_delete: bool, arguments: &Table) -> Table {
        let default = self.vhost_of(vhost).and_then(|vhost| match arguments::type_asked(arguments) {
            TypeAsked::Default => vhost.description.default_queue_type,
            _ => Some(vhost.default_queue_type(durable, exclusive, auto_delete)),
        });
        arguments::completed(arguments, default.unwrap_or(QueueType::Classic))
    }

    /// A `queue.delete`, or the end of a queue for another reason. That it is unused or empty is
    /// asked of the queue itself. A queue that is not there is `Done`. Errors: 403, 405.
    pub fn check_queue_delete(&self, actor: Actor<'_>, vhost: VhostId, name: &[u8]) -> Result<Checked, Refusal> {
        let name = Name::stripped(name);
        let resource = queue::resource(&name, self.vhost_name(vhost)?);
        self.check_access(actor, vhost, resource, Access::Configure)?;
        let Some(at) = self.queues.find(vhost, &name) else { return Ok(Checked::Done) };
        check_owner(&self.queues[at], actor, resource)?;
        Ok(self.deletion(self.queues[at].id))
    }

    /// The command that deletes a queue without asking anybody: its owner closed, its last consumer
    /// went. `Done` if it is not there any more.
    pub fn deletion(&self, queue: QueueId) -> Checked {
        let Some(at) = self.queues.find_id(queue) else { return Checked::Done };
        let keep = if queue.is_local() { Vec::new() } else { self.to_keep(Destination::queue(at)) };
        let command = Command::DeleteQueue(DeleteQueue { queue, keep });
        if queue.is_local() { Checked::Local(command) } else { Checked::Propose(command) }
    }

    /// The command that an `Effect::ExchangeUnused` asks for. `Done` if the exchange is gone or
    /// bound again by now.
    pub fn deletion_of_unused(&self, vhost: VhostId, exchange: &Name) -> Checked {
        let found = self.exchanges.find(vhost, exchange);
        let Some(at) = found.filter(|&at| self.exchanges[at].auto_delete && self.exchanges[at].outgoing.is_empty())
        else {
            return Checked::Done;
        };
        self.exchange_deletion(at, true)
    }

    /// A redeclare against what exists. Errors: 405 for exclusiveness, else 406 that names the
    /// first difference.
    pub(super) fn check_queue_equivalent(&self, queue: &Queue, declare: &DeclareQueue) -> Result<(), Refusal> {
        let resource = queue::resource(&declare.name, self.vhost_name(declare.vhost)?);
        if queue.exclusive != declare.exclusive {
            return Err(Refusal::resource_locked(resource));
        }
        let durable = declare.durable && declare.exclusive.is_none();
        let flags =
            [("durable", durable, queue.shape.durable), ("auto_delete", declare.auto_delete, queue.shape.auto_delete)];
        if let Some((key, received, current)) = flags.into_iter().find(|(_, received, current)| received != current) {
            return Err(Refusal::inequivalent(resource, key, &format!("'{received}'"), &format!("'{current}'")));
        }
        arguments::check_equivalent(resource, queue.shape.queue_type, &queue.shape.arguments, &declare.arguments)
    }

    /// The replicated auto-delete exchanges that would lose their last replicated binding if `gone`
    /// went, and that still have a binding of this node only: the log cannot see it, so the command
    /// has to say it.
    fn to_keep(&self, gone: Destination) -> Vec<Name> {
        let mut keep = Vec::new();
        let mut seen = vec![gone];
        let mut next = 0;
        while let Some(&at) = seen.get(next) {
            next += 1;
            for &binding in self.incoming_of(at) {
                let source = self.bindings[binding as usize].source as usize;
                let exchange = &self.exchanges[source];
                if exchange.is_local() || !exchange.auto_delete || seen.contains(&Destination::exchange(source)) {
                    continue;
                }
                seen.push(Destination::exchange(source));
                if exchange.outgoing_replicated < exchange.outgoing.len() {
                    keep.push(exchange.name.clone());
                }
            }
        }
        keep
    }

    fn incoming_of(&self, destination: Destination) -> &[u32] {
        match destination.place() {
            super::destination::Place::Queue(at) => &self.queues[at].incoming,
            super::destination::Place::Exchange(at) => &self.exchanges[at].incoming,
        }
    }

    fn usable_queue(&self, actor: Actor<'_>, vhost: VhostId, resource: Resource<'_>) -> Result<&Queue, Refusal> {
        let queue = self.find_queue(vhost, resource.name).ok_or_else(|| Refusal::not_found(resource))?;
        check_owner(queue, actor, resource)?;
        Ok(queue)
    }

    fn check_access(
        &self,
        actor: Actor<'_>,
        vhost: VhostId,
        resource: Resource<'_>,
        access: Access,
    ) -> Result<(), Refusal> {
        if actor.connection == OF_THE_MACHINE {
            return Ok(());
        }
        let is_default = resource.kind == Kind::Exchange && resource.name.is_empty();
        let named = if is_default { Resource { name: b"amq.default", ..resource } } else { resource };
        let is_granted = match actor.scopes {
            Some(scopes) => scopes.allows(access, named.vhost, named.name),
            None => {
                let permission = self.user(actor.user).and_then(|user| user.permissions.get(&vhost));
                permission.is_some_and(|permission| permission.allows(access, named.name))
            }
        };
        if is_granted {
            return Ok(());
        }
        let user = String::from_utf8_lossy(actor.user);
        Err(Refusal::access_refused(&format!("{} access to {named} refused for user '{user}'", access.word())))
    }

    /// A topic exchange may be restricted further, by routing key.
    fn check_topic_access(
        &self,
        actor: Actor<'_>,
        exchange: &Exchange,
        resource: Resource<'_>,
        access: Access,
        key: &[u8],
    ) -> Result<(), Refusal> {
        if exchange.kind != ExchangeType::Topic {
            return Ok(());
        }
        let is_granted = match actor.scopes {
            Some(scopes) => scopes.allows_key(access, resource.vhost, &exchange.name, key),
            None => {
                let user = self.user(actor.user).filter(|user| !user.topic_permissions.is_empty());
                let held = user.and_then(|user| user.topic_permissions.get(&(exchange.vhost, exchange.name.clone())));
                held.is_none_or(|permission| permission.allows(access, key))
            }
        };
        if is_granted || actor.connection == OF_THE_MACHINE {
            return Ok(());
        }
        Err(Refusal::access_refused(&format!(
            "{} access to topic '{}' in {resource} refused for user '{}'",
            access.word(),
            String::from_utf8_lossy(key),
            String::from_utf8_lossy(actor.user)
        )))
    }

    /// What a new queue or exchange passes on it takes with a right to read, and puts elsewhere
    /// with a right to write.
    fn check_linked_exchange(
        &self,
        actor: Actor<'_>,
        resource: Resource<'_>,
        vhost: VhostId,
        arguments: &Table,
        key: &str,
    ) -> Result<(), Refusal> {
        let Some(amqp::Value::LongString(name)) = arguments.get(key) else { return Ok(()) };
        self.check_access(actor, vhost, resource, Access::Read)?;
        self.check_access(actor, vhost, exchange::resource(name, resource.vhost), Access::Write)
    }

    /// Whether a virtual host takes one queue more. Errors: 406. A replicated decision sees replicated
    /// queues only; the check before it sees all. What carries replies is no queue to whoever set a
    /// limit, also in the log once all nodes agree about that.
    pub(super) fn check_queue_limit(&self, declare: &DeclareQueue, scope: Scope) -> Result<(), Refusal> {
        let Some(vhost) = self.vhost_of(declare.vhost) else { return Ok(()) };
        let are_replies_counted = scope == Scope::Replicated && self.counts_replies();
        if queue::is_of_replies(&declare.name) && !are_replies_counted {
            return Ok(());
        }
        let QueueCounts { local, replicated, replies } = self.queues.count_in(declare.vhost);
        let count = match scope {
            Scope::Local => local + replicated,
            Scope::Replicated => replicated + if are_replies_counted { replies } else { 0 },
        };
        match vhost.limits.queues_max.filter(|limit| count >= *limit as usize) {
            None => Ok(()),
            Some(limit) => Err(Refusal::precondition_failed(&format!(
                "cannot declare queue '{}': queue limit in vhost '{}' ({limit}) is reached",
                declare.name, vhost.name
            ))),
        }
    }
}

fn check_owner(queue: &Queue, actor: Actor<'_>, resource: Resource<'_>) -> Result<(), Refusal> {
    match queue.exclusive {
        Some(owner) if owner != actor.connection => Err(Refusal::resource_locked(resource)),
        _ => Ok(()),
    }
}

impl Topology {
    /// Refuses more arguments than a virtual host may have. RabbitMQ has no such limit; its code
    /// for one that is reached is 406.
    fn check_argument_bytes(&self, vhost: VhostId, bytes: usize) -> Result<(), Refusal> {
        let max = self.argument_bytes_max;
        if bytes == 0 || self.argument_bytes(vhost) + bytes as u64 <= max {
            return Ok(());
        }
        let name = self.vhost_name(vhost)?;
        Err(Refusal::precondition_failed(&format!(
            "bindings, and arguments of queues and exchanges, in vhost '{}' take up the {max} bytes there are for them: delete some, or have \
             vhost_arguments_bytes_max raised",
            String::from_utf8_lossy(name)
        )))
    }
}

fn check_not_default(resource: Resource<'_>) -> Result<(), Refusal> {
    if resource.kind == Kind::Exchange && resource.name.is_empty() {
        return Err(Refusal::default_exchange());
    }
    Ok(())
}

/// What is stored has a bound; RabbitMQ has none but its frame size.
fn check_size(resource: Resource<'_>, arguments: &Table) -> Result<(), Refusal> {
    if encoding::depth(arguments) > TABLE_DEPTH_MAX {
        let reason = format!("arguments for {resource} nest deeper than {TABLE_DEPTH_MAX} levels");
        return Err(Refusal::precondition_failed(&reason));
    }
    if !arguments.is_empty() && encoding::table_bytes(arguments).len() > ARGUMENTS_BYTES_MAX {
        let reason = format!("arguments for {resource} take more than {ARGUMENTS_BYTES_MAX} bytes");
        return Err(Refusal::precondition_failed(&reason));
    }
    Ok(())
}
