//! Requests about exchanges and bindings.

use super::super::apply::binding_arguments;
use super::super::binding::counted_bytes;
use super::super::command::{Binding, Command, DeclareExchange, DeleteExchange, Unbind};
use super::super::destination::Destination;
use super::super::exchange_type::ExchangeType;
use super::super::name::Name;
use super::super::refusal::{Kind, Refusal, Resource};
use super::super::user::Access;
use super::super::{Topology, encoding, exchange, exchange_type, queue};
use super::{Actor, Checked, ExchangeDeclare, check_not_default, check_owner, check_size};
use crate::ids::VhostId;

impl Topology {
    /// A passive `exchange.declare`, which asks for no right either. Errors: 403 for the default
    /// exchange, 404.
    pub fn check_exchange_passive(&self, vhost: VhostId, name: &[u8]) -> Result<(), Refusal> {
        let name = Name::stripped(name);
        let resource = exchange::resource(&name, self.vhost_name(vhost)?);
        check_not_default(resource)?;
        self.find_exchange(vhost, &name).map(|_| ()).ok_or_else(|| Refusal::not_found(resource))
    }

    /// An `exchange.declare` that is not passive. Errors: 403 for a reserved name, the default
    /// exchange or no right, 406 for an unknown type, a difference from an existing exchange, or an
    /// argument that this version does not honour.
    pub fn check_exchange_declare(&self, actor: Actor<'_>, declare: &ExchangeDeclare<'_>) -> Result<Checked, Refusal> {
        let kind = ExchangeType::parse(declare.kind)?;
        let name = Name::stripped(declare.name);
        let resource = exchange::resource(&name, self.vhost_name(declare.vhost)?);
        check_not_default(resource)?;
        self.check_access(actor, declare.vhost, resource, Access::Configure)?;
        if let Some(found) = self.find_exchange(declare.vhost, &name) {
            let flags = [declare.durable, declare.auto_delete, declare.internal];
            exchange::check_equivalent(found, resource, kind, flags, declare.arguments)?;
            return Ok(Checked::Done);
        }
        if name.is_reserved() {
            return Err(Refusal::reserved_name(Kind::Exchange, &name));
        }
        check_size(resource, declare.arguments)?;
        self.check_linked_exchange(actor, resource, declare.vhost, declare.arguments, "alternate-exchange")?;
        exchange::meaning(kind, resource, declare.arguments)?;
        self.check_argument_bytes(declare.vhost, encoding::counted_bytes(declare.arguments))?;
        let declare = DeclareExchange {
            vhost: declare.vhost,
            name: name.clone(),
            kind,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            arguments: declare.arguments.clone(),
            is_shared: !declare.durable && self.own_home.is_some(),
        };
        let is_local = declare.is_local();
        let command = Command::DeclareExchange(declare);
        Ok(if is_local { Checked::Local(command) } else { Checked::Propose(command) })
    }

    /// An `exchange.delete`; one that is not there is `Done`. Errors: 403 for the default exchange,
    /// the broker's own or no right, 406 if it is to be unused and is not.
    pub fn check_exchange_delete(
        &self,
        actor: Actor<'_>,
        vhost: VhostId,
        name: &[u8],
        if_unused: bool,
    ) -> Result<Checked, Refusal> {
        let name = Name::stripped(name);
        let resource = exchange::resource(&name, self.vhost_name(vhost)?);
        check_not_default(resource)?;
        if name.is_reserved() {
            return Err(Refusal::access_refused(&format!("deletion of system {resource} not allowed")));
        }
        self.check_access(actor, vhost, resource, Access::Configure)?;
        let Some(at) = self.exchanges.find(vhost, &name) else { return Ok(Checked::Done) };
        let found = &self.exchanges[at];
        if if_unused && !found.outgoing.is_empty() {
            return Err(Refusal::precondition_failed(&format!("{resource} in use")));
        }
        Ok(self.exchange_deletion(at, if_unused))
    }

    pub(super) fn exchange_deletion(&self, at: usize, if_unused: bool) -> Checked {
        let exchange = &self.exchanges[at];
        let keep = if exchange.is_local() { Vec::new() } else { self.to_keep(Destination::exchange(at)) };
        let (vhost, name) = (exchange.vhost, exchange.name.clone());
        let command = Command::DeleteExchange(DeleteExchange { vhost, name, if_unused, keep });
        if exchange.is_local() { Checked::Local(command) } else { Checked::Propose(command) }
    }

    /// A `queue.bind` or `exchange.bind`; one that is there already is `Done`. Errors: 403 for the
    /// default exchange or no right, 404 for an end that is missing (the source first), 405, 406
    /// for a key or `x-match` that is not lawful.
    pub fn check_bind(&self, actor: Actor<'_>, binding: Binding) -> Result<Checked, Refusal> {
        let binding = self.check_binding_request(actor, binding)?;
        let (source, destination, is_local) = self.find_ends(&binding, true)?;
        let queue = self.queue_type_of(destination);
        exchange_type::check_binding(self.exchanges[source].routes_as(), &binding.key, &binding.arguments, queue)?;
        self.check_destination_owner(actor, &binding)?;
        let arguments = binding_arguments(&binding.arguments);
        if self.bindings.find(source, destination, &binding.key, &arguments).is_some() {
            return Ok(Checked::Done);
        }
        let counted = counted_bytes(self.exchanges[source].routes_as(), &binding.key, &binding.arguments, &arguments);
        self.check_argument_bytes(binding.vhost, counted)?;
        let command = Command::Bind(binding);
        Ok(if is_local { Checked::Local(command) } else { Checked::Propose(command) })
    }

    /// A `queue.unbind` or `exchange.unbind`; one that is not there is `Done`, whatever is missing.
    /// Errors: 403, 405.
    pub fn check_unbind(&self, actor: Actor<'_>, binding: Binding) -> Result<Checked, Refusal> {
        let binding = self.check_binding_request(actor, binding)?;
        let Ok((source, destination, is_local)) = self.find_ends(&binding, true) else { return Ok(Checked::Done) };
        let arguments = binding_arguments(&binding.arguments);
        if self.bindings.find(source, destination, &binding.key, &arguments).is_none() {
            return Ok(Checked::Done);
        }
        self.check_destination_owner(actor, &binding)?;
        if is_local {
            return Ok(Checked::Local(Command::Unbind(Unbind { binding, keep: Vec::new() })));
        }
        let exchange = &self.exchanges[source];
        let keep = if !exchange.auto_delete {
            Vec::new()
        } else if exchange.outgoing_replicated < exchange.outgoing.len() {
            vec![exchange.name.clone()]
        } else {
            self.to_keep(Destination::exchange(source))
        };
        Ok(Checked::Propose(Command::Unbind(Unbind { binding, keep })))
    }

    /// What binding and unbinding have in common: names, rights and the default exchange.
    pub(super) fn check_binding_request(&self, actor: Actor<'_>, binding: Binding) -> Result<Binding, Refusal> {
        let binding = Binding {
            source: Name::stripped(&binding.source),
            destination: Name::stripped(&binding.destination),
            ..binding
        };
        let vhost = self.vhost_name(binding.vhost)?;
        let destination = Resource { kind: binding.destination_kind, name: &binding.destination, vhost };
        let source = exchange::resource(&binding.source, vhost);
        self.check_access(actor, binding.vhost, destination, Access::Write)?;
        check_not_default(destination)?;
        check_not_default(source)?;
        self.check_access(actor, binding.vhost, source, Access::Read)?;
        if let Some(found) = self.find_exchange(binding.vhost, &binding.source) {
            self.check_topic_access(actor, found, source, Access::Read, &binding.key)?;
        }
        check_size(destination, &binding.arguments)?;
        Ok(binding)
    }

    pub(super) fn check_destination_owner(&self, actor: Actor<'_>, binding: &Binding) -> Result<(), Refusal> {
        if binding.destination_kind == Kind::Exchange {
            return Ok(());
        }
        let Some(queue) = self.find_queue(binding.vhost, &binding.destination) else { return Ok(()) };
        check_owner(queue, actor, queue::resource(&binding.destination, self.vhost_name(binding.vhost)?))
    }
}
