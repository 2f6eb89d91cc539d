//! What a command does to a topology.
//!
//! Invariant: `apply` reads and changes the replicated part only as a function of the command and
//! that part, so every member of the metadata group ends with the same bytes. What lives on this
//! node only may be swept away by it (with an exchange goes every binding), but never decides
//! anything.

use std::sync::Arc;

use amqp::Table;

use super::binding::{self, BINDINGS_MAX, counted_bytes};
use super::command::{Binding, Command, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind};
use super::destination::{Destination, Place};
use super::encoding;
use super::exchange::{self, EXCHANGES_MAX, Exchange};
use super::message_facts::stable_hash;
use super::name::Name;
use super::queue::{self, QUEUES_MAX, Queue, QueueShape};
use super::refusal::{Kind, Refusal};
use super::settings::{QueueType, effective};
use super::{Topology, arguments, exchange_type};
use crate::ids::{PartitionId, QueueId, VhostId};

/// What became of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The answer to whoever asked.
    pub outcome: Result<CommandReply, Refusal>,
    /// What the node has to do now; also after a refusal, though then it is empty today.
    pub effects: Vec<Effect>,
}

/// The answer to a command that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandReply {
    /// The queue of a `DeclareQueue`, and whether it is new.
    Queue {
        /// Its id.
        id: QueueId,
        /// False if an equal one was there.
        created: bool,
    },
    /// The virtual host of a `CreateVhost`.
    Vhost(VhostId),
    /// Anything else.
    Done,
}

/// What follows from a command, for the node to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A queue exists now; `Topology::queue` tells the rest.
    QueueCreated {
        /// Its id.
        id: QueueId,
        /// Where it lives.
        partition: PartitionId,
    },
    /// Other rules hold for a queue from now on: `Topology::queue` tells which.
    QueueRulesChanged {
        /// Its id.
        id: QueueId,
        /// Where it lives.
        partition: PartitionId,
    },
    /// A queue is gone with its messages; its consumers get `basic.cancel`.
    QueueDeleted {
        /// Its id.
        id: QueueId,
        /// Where it lived.
        partition: PartitionId,
    },
    /// A partition has other members, or is new: who is to have it
    /// begins as its member. Comes before what lives in it.
    MembersChanged {
        /// The partition.
        partition: PartitionId,
    },
    /// A virtual host is gone: its connections are closed. Comes after the ends of its queues.
    VhostDeleted {
        /// Its id.
        vhost: VhostId,
        /// Its name.
        name: Name,
    },
    /// A user is gone: its connections are closed.
    UserDeleted {
        /// Its name.
        name: Name,
    },
    /// A durable auto-delete exchange has lost the last of its bindings through something that only
    /// this node saw. Propose what `Topology::deletion_of_unused` gives.
    ExchangeUnused {
        /// Its virtual host.
        vhost: VhostId,
        /// Its name.
        name: Name,
    },
}

/// Which part of the topology a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Replicated,
    Local,
}

impl Scope {
    /// What a declare under a taken name meets: a thing of this node only that has to give way,
    /// because the log knows nothing of it and so the log's wins; or a thing that it has to be
    /// equal to.
    fn split(self, found: Option<usize>, is_local: impl Fn(usize) -> bool) -> (Option<usize>, Option<usize>) {
        match found {
            Some(at) if self == Scope::Replicated && is_local(at) => (Some(at), None),
            other => (None, other),
        }
    }
}

/// An exchange that lost a binding, and whether a replicated one.
pub(super) struct Loss {
    pub(super) exchange: usize,
    pub(super) replicated: bool,
}

impl Topology {
    /// Carries out a replicated command. The same commands in the same order give the same answers,
    /// effects about replicated things and snapshots on every node.
    pub fn apply(&mut self, command: &Command) -> Applied {
        self.run(command, Scope::Replicated)
    }

    /// Carries out a command about something that lives on this node only: a queue that is
    /// transient or exclusive, an exchange that is transient, a binding from or to one of these. A
    /// command about anything else is refused with 404, for it was checked against something that
    /// has since become replicated.
    pub fn apply_local(&mut self, command: &Command) -> Applied {
        self.run(command, Scope::Local)
    }

    fn run(&mut self, command: &Command, scope: Scope) -> Applied {
        let mut effects = Vec::new();
        let outcome = match command {
            Command::DeclareExchange(declare) => self.declare_exchange(declare, scope, &mut effects),
            Command::DeleteExchange(delete) => self.delete_exchange(delete, scope, &mut effects),
            Command::DeclareQueue(declare) => self.declare_queue(declare, scope, &mut effects),
            Command::DeleteQueue(delete) => {
                self.delete_queue(delete, scope, &mut effects);
                Ok(CommandReply::Done)
            }
            Command::Bind(binding) => self.bind(binding, scope),
            Command::Unbind(unbind) => {
                self.unbind(unbind, scope, &mut effects);
                Ok(CommandReply::Done)
            }
            Command::EndHome(home) => {
                assert_eq!(scope, Scope::Replicated, "every node knows what lives in the memory of which");
                self.end_home(*home, &mut effects);
                Ok(CommandReply::Done)
            }
            Command::PutNode { .. }
            | Command::PutPool { .. }
            | Command::PutPartition { .. }
            | Command::ChangeNodes(_)
            | Command::ChangeCopies(_)
            | Command::RaiseVersion { .. } => {
                assert_eq!(scope, Scope::Replicated, "the map of the cluster is the same on every node");
                self.change_cluster(command, &mut effects)
            }
            other => {
                assert_eq!(scope, Scope::Replicated, "users, virtual hosts and policies are the same on every node");
                self.administer(other, &mut effects)
            }
        };
        Applied { outcome, effects }
    }

    fn declare_exchange(
        &mut self,
        declare: &DeclareExchange,
        scope: Scope,
        effects: &mut Vec<Effect>,
    ) -> Result<CommandReply, Refusal> {
        let vhost = self.vhost_name(declare.vhost)?.clone();
        let resource = exchange::resource(&declare.name, &vhost);
        let found = self.exchanges.find(declare.vhost, &declare.name);
        let (displaced, equal) = scope.split(found, |at| self.exchanges[at].is_local());
        if let Some(at) = equal {
            let flags = [declare.durable, declare.auto_delete, declare.internal];
            exchange::check_equivalent(&self.exchanges[at], resource, declare.kind, flags, &declare.arguments)?;
            return Ok(CommandReply::Done);
        }
        let meaning = exchange::meaning(declare.kind, resource, &declare.arguments)?;
        let is_local = declare.is_local();
        assert_eq!(is_local, scope == Scope::Local, "what every node knows goes through the log, the rest does not");
        if self.exchanges.count(scope == Scope::Local) >= EXCHANGES_MAX {
            return Err(Refusal::precondition_failed(&format!(
                "cannot declare {resource}: exchange limit of {EXCHANGES_MAX} is reached"
            )));
        }
        if let Some(at) = displaced {
            self.remove_exchange(at, &[], effects);
        }
        self.version += 1;
        let policy = self.policy_matching_exchange(declare.vhost, &declare.name);
        let policy_alternate = self.alternate_under(declare.vhost, policy.as_ref());
        let declared = Exchange::declared(declare, meaning, self.version);
        self.exchanges.insert(Exchange { policy, policy_alternate, ..declared });
        Ok(CommandReply::Done)
    }

    fn delete_exchange(
        &mut self,
        delete: &DeleteExchange,
        scope: Scope,
        effects: &mut Vec<Effect>,
    ) -> Result<CommandReply, Refusal> {
        let vhost = self.vhost_name(delete.vhost)?.clone();
        let found = self.exchanges.find(delete.vhost, &delete.name);
        let Some(at) = found.filter(|&at| self.exchanges[at].is_local() == (scope == Scope::Local)) else {
            return Ok(CommandReply::Done);
        };
        let exchange = &self.exchanges[at];
        assert!(!exchange.is_predeclared(), "the check refuses to delete what came with the virtual host");
        let used = if scope == Scope::Local { exchange.outgoing.len() } else { exchange.outgoing_replicated };
        if delete.if_unused && used > 0 {
            let resource = exchange::resource(&delete.name, &vhost);
            return Err(Refusal::precondition_failed(&format!("{resource} in use")));
        }
        self.remove_exchange(at, &delete.keep, effects);
        Ok(CommandReply::Done)
    }

    fn declare_queue(
        &mut self,
        declare: &DeclareQueue,
        scope: Scope,
        effects: &mut Vec<Effect>,
    ) -> Result<CommandReply, Refusal> {
        let found = self.queues.find(declare.vhost, &declare.name);
        let (displaced, equal) = scope.split(found, |at| self.queues[at].id.is_local());
        if let Some(at) = equal {
            self.check_queue_equivalent(&self.queues[at], declare)?;
            return Ok(CommandReply::Queue { id: self.queues[at].id, created: false });
        }
        self.check_queue_limit(declare, scope)?;
        let shape = self.queue_shape(declare)?;
        let is_local = declare.is_local();
        assert_eq!(is_local, scope == Scope::Local, "what every node knows goes through the log, the rest does not");
        if let Some(home) = declare.home
            && self.era(home.node) != home.era
        {
            // Its node went away and came back meanwhile: what asked for it may be gone.
            return Err(Refusal::of_an_earlier_era());
        }
        let held = self.policies_matching(declare.vhost, &declare.name, shape.queue_type);
        let rules = self.rules_under(declare.vhost, &held, &shape);
        let partition = match is_local || declare.home.is_some() {
            true => declare.partition,
            false => self.settle_place(declare.partition, (&declare.name, &shape, &rules), effects)?,
        };
        if let Some(at) = displaced {
            self.remove_queue(at, &[], effects);
        }
        let id = if is_local {
            self.local_queue_next += 1;
            QueueId(QueueId::LOCAL_BIT | (self.local_queue_next - 1))
        } else {
            self.queue_next += 1;
            QueueId(self.queue_next - 1)
        };
        assert_eq!(id.is_local(), is_local, "2^63 queues are more than a log can hold");
        let shape = self.queues.share(shape);
        // A queue without policies shares the rules of its shape.
        let rules = if rules == shape.rules { shape.rules.clone() } else { rules };
        self.queues.insert(Queue {
            id,
            vhost: declare.vhost,
            name: declare.name.clone(),
            partition,
            exclusive: declare.exclusive,
            home: declare.home,
            rules,
            held,
            shape,
            incoming: Vec::new(),
        });
        self.version += 1;
        effects.push(Effect::QueueCreated { id, partition });
        Ok(CommandReply::Queue { id, created: true })
    }

    /// What the declare asks for, validated. Errors: 406 as `arguments::settings`, or that there
    /// are too many queues.
    pub(super) fn queue_shape(&self, declare: &DeclareQueue) -> Result<QueueShape, Refusal> {
        let vhost = self.vhost_name(declare.vhost)?;
        let resource = queue::resource(&declare.name, vhost);
        let queue_type = arguments::queue_type(resource, &declare.arguments)?;
        let flags = arguments::Flags {
            durable: declare.durable && declare.exclusive.is_none(),
            exclusive: declare.exclusive.is_some(),
            auto_delete: declare.auto_delete,
        };
        let settings = arguments::settings(resource, queue_type, flags, &declare.arguments)?;
        if self.queues.count(declare.is_local()) >= QUEUES_MAX {
            return Err(Refusal::precondition_failed(&format!(
                "cannot declare queue '{}': queue limit in cluster ({QUEUES_MAX}) is reached",
                declare.name
            )));
        }
        let encoded = encoding::table_bytes(&declare.arguments);
        Ok(QueueShape {
            durable: flags.durable,
            auto_delete: flags.auto_delete,
            queue_type,
            arguments: encoding::table_from(&encoded),
            rules: Arc::new(effective(queue_type, &settings.wishes, None, None)),
            settings,
            encoded,
        })
    }

    fn delete_queue(&mut self, delete: &DeleteQueue, scope: Scope, effects: &mut Vec<Effect>) {
        assert_eq!(
            delete.queue.is_local(),
            scope == Scope::Local,
            "queues of this node go by `apply_local`, all others by the log"
        );
        if let Some(at) = self.queues.find_id(delete.queue) {
            self.remove_queue(at, &delete.keep, effects);
        }
    }

    pub(super) fn bind(&mut self, spec: &Binding, scope: Scope) -> Result<CommandReply, Refusal> {
        let (source, destination, local) = self.resolve(spec, scope)?;
        let queue = self.queue_type_of(destination);
        exchange_type::check_binding(self.exchanges[source].routes_as(), &spec.key, &spec.arguments, queue)?;
        let arguments = binding_arguments(&spec.arguments);
        if self.bindings.find(source, destination, &spec.key, &arguments).is_some() {
            return Ok(CommandReply::Done);
        }
        if self.bindings.count(local) >= BINDINGS_MAX {
            let vhost = self.vhost_name(spec.vhost)?;
            let resource = exchange::resource(&spec.source, vhost);
            return Err(Refusal::precondition_failed(&format!(
                "cannot bind to {resource}: binding limit of {BINDINGS_MAX} is reached"
            )));
        }
        let counted = counted_bytes(self.exchanges[source].routes_as(), &spec.key, &spec.arguments, &arguments);
        let counted_bytes = u32::try_from(counted).expect("the size of arguments is limited");
        self.add_binding(binding::Binding {
            source: u32::try_from(source).expect("the number of exchanges is limited"),
            destination,
            key: spec.key.clone(),
            arguments,
            counted_bytes,
            local,
            at_source: 0,
            at_destination: 0,
        });
        Ok(CommandReply::Done)
    }

    fn unbind(&mut self, unbind: &Unbind, scope: Scope, effects: &mut Vec<Effect>) {
        let spec = &unbind.binding;
        // An end that is not there means that the binding is not there either, which is what was
        // asked for.
        let Ok((source, destination, _)) = self.resolve(spec, scope) else { return };
        let arguments = binding_arguments(&spec.arguments);
        if let Some(at) = self.bindings.find(source, destination, &spec.key, &arguments) {
            let mut losses = Vec::new();
            self.remove_binding(at, &mut losses);
            self.settle_losses(losses, &unbind.keep, effects);
        }
    }

    /// Finds the ends of a binding and says whether it lives on this node only. Errors: 404 for an
    /// end that is not there in this scope, the source first.
    fn resolve(&self, spec: &Binding, scope: Scope) -> Result<(usize, Destination, bool), Refusal> {
        let ends = self.find_ends(spec, scope == Scope::Local)?;
        if scope == Scope::Local && !ends.2 {
            // Both ends were replaced by replicated ones since the check; those that were meant are
            // gone.
            let vhost = self.vhost_name(spec.vhost)?;
            return Err(Refusal::not_found(exchange::resource(&spec.source, vhost)));
        }
        Ok(ends)
    }

    /// Finds the ends of a binding, and whether one of them lives on this node only; without
    /// `local_too`, these count as missing. Errors: 404, the source first.
    pub(super) fn find_ends(&self, spec: &Binding, local_too: bool) -> Result<(usize, Destination, bool), Refusal> {
        let vhost = self.vhost_name(spec.vhost)?;
        let missing = |kind, name| Refusal::not_found(super::refusal::Resource { kind, name, vhost });
        let source = self.exchanges.find(spec.vhost, &spec.source);
        let source = source
            .filter(|&at| local_too || !self.exchanges[at].is_local())
            .ok_or_else(|| missing(Kind::Exchange, &spec.source))?;
        let (destination, is_local) = match spec.destination_kind {
            Kind::Queue => self
                .queues
                .find(spec.vhost, &spec.destination)
                .map(|at| (Destination::queue(at), self.queues[at].id.is_local())),
            Kind::Exchange => self
                .exchanges
                .find(spec.vhost, &spec.destination)
                .map(|at| (Destination::exchange(at), self.exchanges[at].is_local())),
        }
        .filter(|(_, is_local)| local_too || !is_local)
        .ok_or_else(|| missing(spec.destination_kind, &spec.destination))?;
        Ok((source, destination, is_local || self.exchanges[source].is_local()))
    }

    fn add_binding(&mut self, mut binding: binding::Binding) {
        let (source, destination) = (binding.source as usize, binding.destination);
        let identity = self.identity_for(source, destination);
        let exchange = self.exchanges.get_mut(source);
        self.binding_bytes.add(exchange.vhost, binding.counted_bytes as usize);
        exchange.router.add(&binding.key, &binding.arguments, destination, identity);
        exchange.outgoing_replicated += usize::from(!binding.local);
        binding.at_source = u32::try_from(exchange.outgoing.len()).expect("the number of bindings is limited");
        let at_destination = self.incoming(destination).len();
        binding.at_destination = u32::try_from(at_destination).expect("the number of bindings is limited");
        let at = self.bindings.insert(binding);
        let at = u32::try_from(at).expect("the number of bindings is limited");
        self.exchanges.get_mut(source).outgoing.push(at);
        self.incoming(destination).push(at);
        self.version += 1;
    }

    /// The hash of a destination's kind and name, where the source's routing table asks for it.
    fn identity_for(&self, source: usize, destination: Destination) -> u64 {
        if !self.exchanges[source].router.asks_for_identity() {
            return 0;
        }
        match destination.place() {
            Place::Queue(at) => stable_hash(&self.queues[at].name),
            // Another number for an exchange of the same name, whatever it is.
            Place::Exchange(at) => !stable_hash(&self.exchanges[at].name),
        }
    }

    /// The type of the queue at this end of a binding; `None` for an exchange.
    pub(super) fn queue_type_of(&self, destination: Destination) -> Option<QueueType> {
        match destination.place() {
            Place::Queue(at) => Some(self.queues[at].shape.queue_type),
            Place::Exchange(_) => None,
        }
    }

    fn incoming(&mut self, destination: Destination) -> &mut Vec<u32> {
        match destination.place() {
            Place::Queue(at) => &mut self.queues.get_mut(at).incoming,
            Place::Exchange(at) => &mut self.exchanges.get_mut(at).incoming,
        }
    }

    /// Takes a binding out of its source's table and of both lists.
    fn remove_binding(&mut self, at: usize, losses: &mut Vec<Loss>) {
        let binding = self.bindings.remove(at);
        let source = binding.source as usize;
        let identity = self.identity_for(source, binding.destination);
        let exchange = self.exchanges.get_mut(source);
        self.binding_bytes.take(exchange.vhost, binding.counted_bytes as usize);
        exchange.router.remove(&binding.key, &binding.arguments, binding.destination, identity);
        exchange.outgoing_replicated -= usize::from(!binding.local);
        exchange.outgoing.swap_remove(binding.at_source as usize);
        if let Some(&moved) = exchange.outgoing.get(binding.at_source as usize) {
            self.bindings.get_mut(moved as usize).at_source = binding.at_source;
        }
        let incoming = self.incoming(binding.destination);
        incoming.swap_remove(binding.at_destination as usize);
        if let Some(&moved) = incoming.get(binding.at_destination as usize) {
            self.bindings.get_mut(moved as usize).at_destination = binding.at_destination;
        }
        losses.push(Loss { exchange: source, replicated: !binding.local });
        self.version += 1;
    }

    pub(super) fn remove_queue(&mut self, at: usize, keep: &[Name], effects: &mut Vec<Effect>) {
        let mut losses = Vec::new();
        while let Some(&binding) = self.queues[at].incoming.last() {
            self.remove_binding(binding as usize, &mut losses);
        }
        let queue = self.queues.remove(at);
        self.version += 1;
        effects.push(Effect::QueueDeleted { id: queue.id, partition: queue.partition });
        self.settle_losses(losses, keep, effects);
    }

    fn remove_exchange(&mut self, at: usize, keep: &[Name], effects: &mut Vec<Effect>) {
        let mut losses = Vec::new();
        self.take_exchange(at, &mut losses);
        self.settle_losses(losses, keep, effects);
    }

    pub(super) fn take_exchange(&mut self, at: usize, losses: &mut Vec<Loss>) {
        let mut own = Vec::new();
        while let Some(&binding) = self.exchanges[at].outgoing.last() {
            self.remove_binding(binding as usize, &mut own);
        }
        while let Some(&binding) = self.exchanges[at].incoming.last() {
            self.remove_binding(binding as usize, losses);
        }
        self.exchanges.remove(at);
        self.version += 1;
    }

    /// Deletes the auto-delete exchanges whose last binding went, and those that this leaves unused
    /// in turn.
    ///
    /// A replicated exchange goes when its last replicated binding went by a replicated command
    /// that does not keep it; every member sees the same. If its last binding of any kind went
    /// otherwise, the node is told to propose it.
    pub(super) fn settle_losses(&mut self, mut losses: Vec<Loss>, keep: &[Name], effects: &mut Vec<Effect>) {
        while let Some(loss) = losses.pop() {
            let Some(exchange) = self.exchanges.get(loss.exchange).filter(|e| e.auto_delete) else { continue };
            if exchange.is_local() {
                if exchange.outgoing.is_empty() {
                    self.take_exchange(loss.exchange, &mut losses);
                }
            } else if loss.replicated && exchange.outgoing_replicated == 0 && !keep.contains(&exchange.name) {
                self.take_exchange(loss.exchange, &mut losses);
            } else if exchange.outgoing.is_empty() {
                let unused = Effect::ExchangeUnused { vhost: exchange.vhost, name: exchange.name.clone() };
                if !effects.contains(&unused) {
                    effects.push(unused);
                }
            }
        }
    }
}

impl DeclareQueue {
    /// Whether the queue would live in the memory of one node: transient or exclusive. A durable
    /// auto-delete queue promises to survive a restart with its messages, so it is none of these.
    pub fn is_in_memory(&self) -> bool {
        !self.durable || self.exclusive.is_some()
    }

    /// Whether only one node would know of it.
    pub fn is_local(&self) -> bool {
        self.is_in_memory() && self.home.is_none()
    }
}

impl DeclareExchange {
    /// Whether only one node would know of it.
    pub fn is_local(&self) -> bool {
        !self.durable && !self.is_shared
    }
}

/// The arguments of a binding as its identity: encoded in the order of the fields' names.
pub(super) fn binding_arguments(table: &Table) -> Box<[u8]> {
    if table.is_empty() {
        return Box::default();
    }
    encoding::sorted_table_bytes(table)
}
