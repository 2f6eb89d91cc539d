//! From a definitions file to the commands that make the topology what the file says.
//!
//! Invariant: the commands were carried out in their order on a copy of the topology, without a
//! refusal.

use super::document::{Fields, Node, WrongDefinitions};
use super::hashes::{ClearPasswords, read_hash};
use crate::config::nearest;
use crate::patterns::{Meter, check_cost};
use broker::topology::{
    Applied, ApplyTo, Binding, Command, DeclareExchange, ExchangeType, HashAlgorithm, Kind, NAME_BYTES_MAX, Name,
    OPERATOR, OPERATORS_NAME, PasswordHash, Pattern, Permission, Policy, PolicySurvey, PutPolicy, QueueType, Refusal,
    TopicPermission, Topology, Unplanned, UserLimits, VhostDescription, VhostLimits, check_definition, check_keys,
    is_unsupported_key, policy_keys,
};
use broker::{PartitionId, VhostId};
use bytes::Bytes;

/// Global parameters that say something about the cluster they came from and mean nothing in
/// another.
const INFORMATION: &[&str] = &["internal_cluster_id", "imported_definition_hash_value"];

/// Components of RabbitMQ's plugins, which do a work of their own: nothing that is published here
/// goes another way without them.
const PLUGINS: &[&str] = &["shovel", "federation-upstream", "federation-upstream-set"];

/// How names of global parameters begin that a plugin of RabbitMQ reads.
const PLUGINS_GLOBAL: &[u8] = b"mqtt_";

/// Exchanges that exports of RabbitMQ 4 have and that only RabbitMQ publishes to: its log, its
/// events.
const BROKERS_OWN: &[&[u8]] = &[b"amq.rabbitmq.log", b"amq.rabbitmq.event"];

/// What to do.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// In order; replicated ones are for the log, others for this node.
    pub(crate) commands: Vec<Planned>,
    /// What is there and differs, a sentence each.
    pub(crate) different: Vec<String>,
    /// What is meant for others and is not kept, a sentence each.
    pub(crate) left_out: Vec<String>,
    /// Nothing was there before.
    pub(crate) is_fresh: bool,
}

/// One command and how it is carried out.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) command: Command,
    pub(crate) is_local: bool,
}

/// Whether nothing was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// Nothing was there when the file was first looked at, whatever it brought since.
    Yes,
    /// It is to be seen.
    IfUntouched,
    /// Somebody asks who is logged in, and stays so: only at its start RabbitMQ makes no default user
    /// for the sake of a file.
    Never,
}

/// Plans what makes the topology of a snapshot what `text` says.
///
/// - `fresh`: whether the file takes the place of the user that a new broker has.
/// - `place` chooses where a new queue lives; true asks for one of this node only.
/// - `clear` has the hashes of passwords that the file has in the clear.
/// - Errors: the first thing that is wrong with the file; of queues all.
pub(crate) fn plan(
    topology: &Topology,
    text: &str,
    fresh: Fresh,
    place: &mut dyn FnMut(bool) -> PartitionId,
    clear: &ClearPasswords,
) -> Result<Plan, WrongDefinitions> {
    let document = Node::document(text)?;
    let snapshot = topology.encode_snapshot();
    let mut copy = Topology::decode_snapshot(&snapshot).expect("a topology reads what it wrote");
    copy.set_own_home(topology.own_home().map(|home| home.node));
    let is_fresh = match fresh {
        Fresh::Yes => true,
        Fresh::IfUntouched => copy.is_untouched(),
        Fresh::Never => false,
    };
    let mut planner = Planner { copy, plan: Plan::default(), place, clear, meter: Meter::of_change() };
    planner.read(&document, is_fresh)?;
    Ok(Plan { is_fresh, ..planner.plan })
}

struct Planner<'p> {
    copy: Topology,
    plan: Plan,
    place: &'p mut dyn FnMut(bool) -> PartitionId,
    clear: &'p ClearPasswords,
    /// What the patterns of the whole file may take.
    meter: Meter,
}

/// What RabbitMQ's federation declares at the broker that others take messages from: exchanges of this type, and
/// exchanges and queues of these names.
const FEDERATIONS_TYPE: &str = "x-federation-upstream";
const FEDERATIONS_NAMES: &[u8] = b"federation: ";

type Done = Result<(), WrongDefinitions>;

impl Planner<'_> {
    fn read(&mut self, document: &Node<'_>, is_fresh: bool) -> Done {
        let mut top = document.fields()?;
        let mut has_guest = false;
        let users = items(&mut top, "users")?;
        for vhost in items(&mut top, "vhosts")? {
            self.vhost(&vhost)?;
        }
        for user in users {
            has_guest |= self.user(&user)? == "guest";
        }
        // RabbitMQ makes no default user where definitions are to be imported, as they bring their
        // own.
        if is_fresh && !has_guest {
            self.run(document, Command::DeleteUser { name: Name::from("guest") })?;
        }
        for permission in items(&mut top, "permissions")? {
            self.permission(&permission)?;
        }
        for permission in items(&mut top, "topic_permissions")? {
            self.topic_permission(&permission)?;
        }
        for parameter in items(&mut top, "parameters")? {
            self.parameter(&parameter)?;
        }
        for parameter in items(&mut top, "global_parameters")? {
            self.global_parameter(&parameter)?;
        }
        for policy in items(&mut top, "policies")? {
            let mut fields = policy.fields()?;
            let vhost = self.vhost_of(&mut fields)?;
            let name = name(&fields.need("name")?)?;
            self.policy(&policy, fields, vhost, false, name)?;
        }
        for exchange in items(&mut top, "exchanges")? {
            self.exchange(&exchange)?;
        }
        // All that are of a kind that is not there, or not yet, are told at once.
        let wrong: Vec<_> = items(&mut top, "queues")?.iter().filter_map(|queue| self.queue(queue).err()).collect();
        WrongDefinitions::all(wrong)?;
        // So are all whose exchange an export left out.
        let wrong: Vec<_> =
            items(&mut top, "bindings")?.iter().filter_map(|binding| self.binding(binding).err()).collect();
        WrongDefinitions::all(wrong)?;
        // Versions, names and explanations of the exporting broker are texts; anything else that is
        // not known would be lost.
        top.end_of_parts()
    }

    /// Tools keep them in the broker, which looks at few of them.
    fn global_parameter(&mut self, parameter: &Node<'_>) -> Done {
        let mut fields = parameter.fields()?;
        let name = name(&fields.need("name")?)?;
        let value = fields.take("value").map_or_else(|| "null".to_owned(), |node| node.value().to_string());
        if name.starts_with(PLUGINS_GLOBAL) {
            self.leave_out(parameter, format!("the global parameter \"{name}\" means nothing here"));
            return Ok(());
        }
        let is_known = self.copy.global_parameter(&name) == Some(value.as_str());
        if is_known || INFORMATION.iter().any(|other| other.as_bytes() == &*name) {
            return Ok(());
        }
        self.run(parameter, Command::PutGlobalParameter { name, value })
    }

    /// Carries out a command on the copy and adds it to the plan.
    fn run(&mut self, at: &Node<'_>, command: Command) -> Done {
        self.weigh(&command).map_err(|unplanned| at.wrong(unplanned))?;
        let Applied { outcome, .. } = self.copy.apply(&command);
        outcome.map_err(|refusal| at.wrong(sentence(&refusal)))?;
        self.plan.commands.push(Planned { command, is_local: false });
        Ok(())
    }

    /// Refuses patterns that take too long, before anything of the file is done.
    fn weigh(&mut self, command: &Command) -> Result<(), Unplanned> {
        let name_of = |vhost| self.copy.vhost_of(vhost).map(|vhost| vhost.name.clone());
        check_cost(name_of, command, &self.meter)?;
        if let Some(mut survey) = PolicySurvey::begin(&self.copy, command) {
            while survey.collect(&self.copy) {}
            self.copy.expect_policy(survey.judge(&mut || self.meter.goes_on())?);
        }
        Ok(())
    }

    fn leave_out(&mut self, at: &Node<'_>, text: String) {
        self.plan.left_out.push(at.wrong(text).to_string());
    }

    fn vhost_of(&self, fields: &mut Fields<'_>) -> Result<VhostId, WrongDefinitions> {
        let node = fields.need("vhost")?;
        let name = name(&node)?;
        self.copy.vhost(&name).ok_or_else(|| node.wrong(format!("there is no virtual host '{name}'")))
    }

    fn vhost(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let name = name(&fields.need("name")?)?;
        for information in ["tracing", "protected_from_deletion"] {
            fields.flag(information, false)?;
        }
        // RabbitMQ 4.3 says these in here alone, earlier ones beside it too.
        let mut metadata = fields.take("metadata").map(|node| node.fields()).transpose()?;
        let [text, tags_node, default] = ["description", "tags", "default_queue_type"].map(|field| {
            let inside = metadata.as_mut().and_then(|metadata| metadata.take(field));
            fields.take(field).or(inside)
        });
        let known = self.copy.vhost(&name).and_then(|id| self.copy.vhost_of(id));
        let known = known.map(|vhost| vhost.description.clone()).unwrap_or_default();
        let mut description = known.clone();
        if let Some(text) = text {
            description.text = text.text()?;
        }
        if let Some(node) = tags_node {
            description.tags = tags(Some(node))?;
        }
        if let Some(default) = default {
            description.default_queue_type = match default.text()?.as_str() {
                "undefined" | "" => None,
                "classic" | "rabbit_classic_queue" => Some(QueueType::Classic),
                "quorum" | "rabbit_quorum_queue" => Some(QueueType::Quorum),
                _ => {
                    return Err(
                        default.wrong("classic or quorum is expected: no other type is supported by this version")
                    );
                }
            };
        }
        let limits = fields.take("limits");
        fields.end()?;
        if self.copy.vhost(&name).is_none() {
            self.run(node, Command::CreateVhost { name: name.clone() })?;
        }
        let vhost = self.copy.vhost(&name).expect("it was there or it was made");
        // Classic is what queues are without a word about it, and RabbitMQ says it of every virtual
        // host.
        let is_said = |of: &VhostDescription| of.default_queue_type.unwrap_or(QueueType::Classic);
        if (&known.text, &known.tags, is_said(&known)) != (&description.text, &description.tags, is_said(&description))
        {
            self.run(node, Command::DescribeVhost { vhost, description })?;
        }
        // RabbitMQ says of each that there are none.
        match limits {
            Some(limits) if limits.value().as_array().is_none_or(|list| !list.is_empty()) => {
                self.vhost_limits(node, vhost, &limits)
            }
            _ => Ok(()),
        }
    }

    fn vhost_limits(&mut self, at: &Node<'_>, vhost: VhostId, node: &Node<'_>) -> Done {
        let mut fields = node.properties()?;
        let limits = VhostLimits {
            connections_max: limit(&mut fields, "max-connections")?,
            queues_max: limit(&mut fields, "max-queues")?,
        };
        fields.end()?;
        if self.copy.vhost_of(vhost).is_some_and(|known| known.limits == limits) {
            return Ok(());
        }
        self.run(at, Command::SetVhostLimits { vhost, limits })
    }

    fn user(&mut self, node: &Node<'_>) -> Result<String, WrongDefinitions> {
        let mut fields = node.fields()?;
        let name_node = fields.need("name")?;
        let name = name(&name_node)?;
        if *name == *OPERATOR.as_bytes() {
            return Err(name_node.wrong(OPERATORS_NAME));
        }
        let password = self.password(&name, node, &mut fields)?;
        let tags = tags(fields.take("tags"))?;
        let limits = match fields.take("limits") {
            Some(node) => {
                let mut fields = node.properties()?;
                let connections_max = limit(&mut fields, "max-connections")?;
                let limits = UserLimits { connections_max, channels_max: limit(&mut fields, "max-channels")? };
                fields.end()?;
                limits
            }
            None => UserLimits::default(),
        };
        fields.end()?;
        let known = self.copy.user(&name);
        if known.is_none_or(|known| known.password != password || known.tags != tags) {
            self.run(node, Command::PutUser { name: name.clone(), password, tags })?;
        }
        if self.copy.user(&name).is_some_and(|user| user.limits != limits) {
            self.run(node, Command::SetUserLimits { user: name.clone(), limits })?;
        }
        Ok(name.to_string())
    }

    fn password(
        &mut self,
        name: &Name,
        node: &Node<'_>,
        fields: &mut Fields<'_>,
    ) -> Result<PasswordHash, WrongDefinitions> {
        let algorithm = match fields.take("hashing_algorithm") {
            None => None,
            Some(node) => {
                let word = node.text()?;
                let found = HashAlgorithm::of_module(&word);
                let known = HashAlgorithm::ALL.map(HashAlgorithm::module).join(", ");
                Some(found.ok_or_else(|| node.wrong(format!("one of {known} is expected")))?)
            }
        };
        let Some(hash) = fields.take("password_hash") else {
            let Some(password) = fields.take("password") else {
                return Err(fields.lacks(&["password_hash", "password"]));
            };
            let password = password.text()?;
            let hashed = self.clear.get(&(name.to_string(), password.to_owned()));
            return hashed.cloned().ok_or_else(|| node.wrong("the password cannot be hashed"));
        };
        let text = hash.text()?;
        read_hash(algorithm, &text).map_err(|why| hash.wrong(why))
    }

    fn permission(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let user = name(&fields.need("user")?)?;
        let vhost = self.vhost_of(&mut fields)?;
        let permission = Permission {
            configure: pattern(&fields.need("configure")?)?,
            write: pattern(&fields.need("write")?)?,
            read: pattern(&fields.need("read")?)?,
        };
        fields.end()?;
        if self.copy.user(&user).and_then(|user| user.permissions.get(&vhost)) == Some(&permission) {
            return Ok(());
        }
        self.run(node, Command::PutPermission { user, vhost, permission })
    }

    fn topic_permission(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let user = name(&fields.need("user")?)?;
        let vhost = self.vhost_of(&mut fields)?;
        let exchange = name(&fields.need("exchange")?)?;
        let (write_node, read_node) = (fields.need("write")?, fields.need("read")?);
        let (write, read) = (write_node.text()?, read_node.text()?);
        fields.end()?;
        let vhost_name = self.copy.vhost_of(vhost).expect("it was found by name").name.clone();
        for (node, write, read) in [(&write_node, &*write, ""), (&read_node, "", &*read)] {
            TopicPermission::new(&user, &vhost_name, write, read).map_err(|error| node.wrong(error))?;
        }
        let known = self.copy.user(&user).and_then(|user| user.topic_permissions.get(&(vhost, exchange.clone())));
        if known.is_some_and(|known| known.texts() == (&write, &read)) {
            return Ok(());
        }
        self.run(node, Command::PutTopicPermission { user, vhost, exchange, write, read })
    }

    /// A parameter of a component. Those of RabbitMQ's core are limits and operator policies; the
    /// rest are plugins'.
    fn parameter(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let vhost = self.vhost_of(&mut fields)?;
        let (component, parameter) = (fields.need("component")?, name(&fields.need("name")?)?);
        let value = fields.need("value")?;
        fields.end()?;
        match component.text()?.as_str() {
            "vhost-limits" => self.vhost_limits(node, vhost, &value),
            "operator_policy" => self.policy(&value, value.properties()?, vhost, true, parameter),
            other if PLUGINS.contains(&other) => {
                self.leave_out(node, format!("the {other} \"{parameter}\" needs a plugin that this version has not"));
                Ok(())
            }
            other => Err(component.wrong(format!("parameters of \"{other}\" are not supported by this version"))),
        }
    }

    fn policy(&mut self, node: &Node<'_>, mut fields: Fields<'_>, vhost: VhostId, operator: bool, name: Name) -> Done {
        let pattern = pattern(&fields.need("pattern")?)?;
        let apply_to = match fields.take("apply-to") {
            None => ApplyTo::All,
            Some(node) => {
                let word = node.text()?;
                let known = || ApplyTo::ALL.map(ApplyTo::word).join(", ");
                let found = ApplyTo::ALL.into_iter().find(|apply_to| apply_to.word() == word);
                found.ok_or_else(|| node.wrong(format!("one of {} is expected", known())))?
            }
        };
        let priority = fields.take("priority").map_or(Ok(0), |node| node.integer())?;
        let definition_node = fields.need("definition")?;
        fields.end()?;
        let mut definition = amqp::Table::new();
        let told = self.plan.left_out.len();
        for (key, value) in definition_node.properties()?.rest() {
            if is_unsupported_key(key.as_bytes()) {
                // The policy itself stays, and so its place before those of lower priority.
                let why = match key.starts_with("ha-") {
                    true => {
                        "mirrored queues are not there, and nothing is lost by it: in a cluster every durable queue, whatever its type, is \
                         replicated by Raft and has a copy on every node"
                    }
                    false => "this key of the policy needs what this version has not",
                };
                self.leave_out(&value, why.to_owned());
                continue;
            }
            let mut single = amqp::Table::new();
            let value_amqp = amqp_value(&value.value());
            single.push(Bytes::copy_from_slice(key.as_bytes()), value_amqp.clone());
            check_keys(&single, operator).map_err(|error| value.wrong(error.reason + &meant(&key, operator)))?;
            definition.push(Bytes::from(key), value_amqp);
        }
        check_definition(&definition, operator).map_err(|error| definition_node.wrong(error.reason))?;
        if definition.is_empty() && self.plan.left_out.len() > told {
            let export =
                if operator { "" } else { ", and is exported with \"queue-mode\": \"default\", which says nothing" };
            let text = format!(
                "none of the keys of the policy \"{name}\" is left: it stays for its place before those of lower priority, sets \
                 nothing{export}"
            );
            self.leave_out(&definition_node, text);
        }
        let policy = Policy { pattern, apply_to, priority, definition };
        let vhost_now = self.copy.vhost_of(vhost).expect("it was found by name");
        let policies = if operator { &vhost_now.operator_policies } else { &vhost_now.policies };
        if policies.get(&name) == Some(&policy) {
            return Ok(());
        }
        self.run(node, Command::PutPolicy(PutPolicy { vhost, operator, name, policy }))
    }

    fn exchange(&mut self, node: &Node<'_>) -> Done {
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

    fn queue(&mut self, node: &Node<'_>) -> Done {
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
        let command = command.map_err(|refusal| node.wrong(sentence(&refusal)))?;
        let is_local = !durable && self.copy.own_home().is_none();
        self.declare(node, exists, command, is_local)
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

    fn binding(&mut self, node: &Node<'_>) -> Done {
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
}

fn items<'a>(top: &mut Fields<'a>, name: &'static str) -> Result<Vec<Node<'a>>, WrongDefinitions> {
    top.take(name).map_or(Ok(Vec::new()), |node| node.items())
}

fn name(node: &Node<'_>) -> Result<Name, WrongDefinitions> {
    match node.text()? {
        long if long.len() > NAME_BYTES_MAX => Err(node.wrong(format!("a name has at most {NAME_BYTES_MAX} bytes"))),
        text => Ok(Name::stripped(text.as_bytes())),
    }
}

fn pattern(node: &Node<'_>) -> Result<Pattern, WrongDefinitions> {
    Pattern::new(&node.text()?).map_err(|error| node.wrong(error))
}

/// A limit, which RabbitMQ takes away with a number below zero.
fn limit(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<u32>, WrongDefinitions> {
    let Some(node) = fields.take(name) else { return Ok(None) };
    match node.integer()? {
        number if number < 0 => Ok(None),
        number => u32::try_from(number).map(Some).map_err(|_| node.wrong("a limit is at most 4294967295")),
    }
}

/// Which key of a policy was probably meant, where this is none.
fn meant(key: &str, operator: bool) -> String {
    let is_one = policy_keys(operator).any(|known| known == key);
    let near = nearest(key, policy_keys(operator)).filter(|_| !is_one);
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// A list of texts, or the one text with commas of RabbitMQ before 3.8.
fn tags(node: Option<Node<'_>>) -> Result<Vec<Name>, WrongDefinitions> {
    let Some(node) = node else { return Ok(Vec::new()) };
    if node.is_composed() {
        return node.items()?.iter().map(name).collect();
    }
    let text = node.text()?;
    let tags: Vec<&str> = text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).collect();
    if tags.iter().any(|tag| tag.len() > NAME_BYTES_MAX) {
        return Err(node.wrong(format!("a tag has at most {NAME_BYTES_MAX} bytes")));
    }
    Ok(tags.into_iter().map(Name::from).collect())
}

fn arguments(node: Option<Node<'_>>) -> Result<amqp::Table, WrongDefinitions> {
    let Some(node) = node else { return Ok(amqp::Table::new()) };
    // An empty list is how Erlang exports an empty table at times.
    if node.value().as_array().is_some_and(Vec::is_empty) {
        return Ok(amqp::Table::new());
    }
    let mut table = amqp::Table::new();
    for (key, value) in node.fields()?.rest() {
        if key.len() > NAME_BYTES_MAX {
            return Err(value.wrong(format!("a name has at most {NAME_BYTES_MAX} bytes")));
        }
        table.push(Bytes::from(key), amqp_value(&value.value()));
    }
    Ok(table)
}

/// JSON as RabbitMQ turns it into a field table: every whole number is a long, every other one a
/// double.
fn amqp_value(value: &serde_json::Value) -> amqp::Value {
    match value {
        serde_json::Value::Null => amqp::Value::Void,
        serde_json::Value::Bool(flag) => amqp::Value::Bool(*flag),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => amqp::Value::I64(whole),
            None => amqp::Value::F64(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => amqp::Value::LongString(Bytes::copy_from_slice(text.as_bytes())),
        serde_json::Value::Array(items) => amqp::Value::Array(items.iter().map(amqp_value).collect()),
        serde_json::Value::Object(fields) => {
            let mut table = amqp::Table::new();
            for (name, value) in fields {
                let mut end = name.len().min(NAME_BYTES_MAX);
                while !name.is_char_boundary(end) {
                    end -= 1;
                }
                table.push(Bytes::copy_from_slice(&name.as_bytes()[..end]), amqp_value(value));
            }
            amqp::Value::Table(table)
        }
    }
}

/// A refusal without the name of its code, which means nothing in a file.
fn sentence(refusal: &Refusal) -> String {
    let text = refusal.text.as_str();
    text.split_once(" - ").map_or(text, |(_, sentence)| sentence).to_owned()
}
