//! Exchanges, queues and bindings.
//!
//! Invariant: what is there and differs stays as it is, and is told; so is what is left out.

use super::values::{arguments, name, sentence};
use super::{Done, Planned, Planner};
use crate::definitions::document::Node;
use broker::PartitionId;
use broker::topology::{Applied, Binding, Command, DeclareExchange, ExchangeType, Kind, Name};

/// Exchanges that exports of RabbitMQ 4 have and that only RabbitMQ publishes to: its log, its
/// events.
const BROKERS_OWN: &[&[u8]] = &[b"amq.rabbitmq.log", b"amq.rabbitmq.event"];

/// What RabbitMQ's federation declares at the broker that others take messages from: exchanges of this type, and
/// exchanges and queues of these names.
const FEDERATIONS_TYPE: &str = "x-federation-upstream";
const FEDERATIONS_NAMES: &[u8] = b"federation: ";

impl Planner<'_> {
    pub(super) fn exchange(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let vhost = self.vhost_of(&mut fields)?;
        let name_node = fields.need("name")?;
        let name = name(&name_node)?;
        let kind_node = fields.need("type")?;
        if kind_node.text()? == FEDERATIONS_TYPE {
            self.leave_out(
                &name_node,
                format!("the exchange '{name}' is there for federation, which this version has not"),
            );
            return Ok(());
        }
        let kind = ExchangeType::parse(kind_node.text()?.as_bytes()).map_err(|r| kind_node.wrong(sentence(&r)))?;
        let durable = fields.flag("durable", true)?;
        let auto_delete = fields.flag("auto_delete", false)?;
        let internal = fields.flag("internal", false)?;
        let arguments = arguments(fields.take("arguments"))?;
        fields.take("policy");
        fields.end()?;
        let exists = self.copy.find_exchange(vhost, &name).is_some();
        let is_shared = !durable && self.copy.own_home().is_some();
        if !exists && BROKERS_OWN.contains(&&*name) {
            let text = format!("the exchange '{name}' is what RabbitMQ itself publishes to; it is left out");
            self.leave_out(&name_node, text);
            return Ok(());
        }
        if (name.is_empty() || name.is_reserved()) && !exists {
            return Err(name_node.wrong("a name of the broker's own, and there is no such exchange"));
        }
        let declare = DeclareExchange { vhost, name, kind, durable, auto_delete, internal, arguments, is_shared };
        let is_local = declare.is_local();
        self.declare(node, exists, Command::DeclareExchange(declare), is_local)
    }

    pub(super) fn queue(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let vhost = self.vhost_of(&mut fields)?;
        let name_node = fields.need("name")?;
        let name = name(&name_node)?;
        let durable = fields.flag("durable", true)?;
        let auto_delete = fields.flag("auto_delete", false)?;
        let mut arguments = arguments(fields.take("arguments"))?;
        if let Some(kind) = fields.take("type")
            && arguments.get("x-queue-type").is_none()
        {
            arguments.push("x-queue-type", amqp::Value::LongString(kind.text()?.into()));
        }
        if let Some(exclusive) = fields.take("exclusive")
            && exclusive.flag()?
        {
            return Err(exclusive.wrong("an exclusive queue belongs to a connection and to no file"));
        }
        fields.take("policy");
        fields.end()?;
        if name.is_empty() {
            return Err(name_node.wrong("a queue needs a name"));
        }
        if name.starts_with(FEDERATIONS_NAMES) && arguments.get("x-internal-purpose").is_some() {
            self.leave_out(
                &name_node,
                format!("the queue '{name}' is there for federation, which this version has not"),
            );
            return Ok(());
        }
        let exists = self.copy.find_queue(vhost, &name).is_some();
        let partition = if exists { PartitionId::default() } else { (self.place)(!durable) };
        let command = self.copy.queue_declaration(vhost, name, [durable, auto_delete], &arguments, partition);
        let mut command = command.map_err(|refusal| node.wrong(sentence(&refusal)))?;
        if let Command::DeclareQueue(declare) = &mut command
            && durable
            && !exists
        {
            declare.partition = self.copy.place_on_one(declare).unwrap_or(partition);
        }
        let is_local = !durable && self.copy.own_home().is_none();
        self.declare(node, exists, command, is_local)
    }

    pub(super) fn binding(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let vhost = self.vhost_of(&mut fields)?;
        let source = name(&fields.need("source")?)?;
        let destination = name(&fields.need("destination")?)?;
        let kind = fields.need("destination_type")?;
        let destination_kind = match kind.text()?.as_str() {
            "queue" => Kind::Queue,
            "exchange" => Kind::Exchange,
            _ => return Err(kind.wrong("queue or exchange is expected")),
        };
        let key = name(&fields.need("routing_key")?)?;
        let arguments = arguments(fields.take("arguments"))?;
        fields.take("properties_key");
        fields.end()?;
        if BROKERS_OWN.contains(&&*source) && self.copy.find_exchange(vhost, &source).is_none() {
            let text = format!("nothing is published to '{source}' here; the binding is left out");
            self.leave_out(node, text);
            return Ok(());
        }
        let is_there = |name: &Name, kind: Kind| match kind {
            Kind::Queue => self.copy.find_queue(vhost, name).is_some(),
            Kind::Exchange => self.copy.find_exchange(vhost, name).is_some(),
        };
        let ends = [(&source, Kind::Exchange), (&destination, destination_kind)];
        let missing = ends.into_iter().find(|(name, kind)| !name.is_empty() && !is_there(name, *kind));
        match missing {
            Some((name, _)) if name.starts_with(FEDERATIONS_NAMES) => {
                let text =
                    format!("'{name}' is there for federation, which this version has not; the binding is left out");
                self.leave_out(node, text);
                return Ok(());
            }
            Some((name, Kind::Exchange)) => {
                let in_vhost = &self.copy.vhost_of(vhost).expect("it was found by name").name;
                let text = format!(
                    "there is no exchange '{name}' in virtual host '{in_vhost}': if it is an internal one, export by HTTP \
                     (GET /api/definitions of RabbitMQ 3.x has them, rabbitmqctl export_definitions and RabbitMQ 4 have \
                     not), or add it to the file"
                );
                return Err(node.wrong(text));
            }
            _ => {}
        }
        // What leads from the default exchange is there by itself.
        if source.is_empty() {
            let is_there = destination_kind == Kind::Queue && self.copy.find_queue(vhost, &destination).is_some();
            if !is_there || key != destination {
                let text = "the default exchange leads to queues alone that are there, by their names; the binding is left out";
                self.leave_out(node, text.to_owned());
            }
            return Ok(());
        }
        let is_local = self.copy.find_queue(vhost, &destination).is_some_and(|queue| queue.id.is_local())
            && destination_kind == Kind::Queue
            || [(&source, true), (&destination, destination_kind == Kind::Exchange)].into_iter().any(|(name, look)| {
                look && self.copy.find_exchange(vhost, name).is_some_and(|exchange| exchange.is_local())
            });
        let command = Command::Bind(Binding { vhost, source, destination_kind, destination, key, arguments });
        let before = self.copy.version();
        let applied = if is_local { self.copy.apply_local(&command) } else { self.copy.apply(&command) };
        applied.outcome.map_err(|refusal| node.wrong(sentence(&refusal)))?;
        if self.copy.version() != before {
            self.plan.commands.push(Planned { command, is_local });
        }
        Ok(())
    }

    /// Declares something that may be there already; then a difference is told and nothing is done.
    fn declare(&mut self, node: &Node<'_>, exists: bool, command: Command, is_local: bool) -> Done {
        let Applied { outcome, .. } = match is_local {
            true => self.copy.apply_local(&command),
            false => self.copy.apply(&command),
        };
        match outcome {
            Ok(_) if exists => {}
            Ok(_) => self.plan.commands.push(Planned { command, is_local }),
            Err(refusal) if exists => self.plan.different.push(node.wrong(sentence(&refusal)).to_string()),
            Err(refusal) => return Err(node.wrong(sentence(&refusal))),
        }
        Ok(())
    }
}
