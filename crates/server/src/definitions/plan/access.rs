//! Virtual hosts, users, and what users may do there.
//!
//! Invariant: what is there already as the file has it needs no command.

use super::values::{limit, name, pattern, tags};
use super::{Done, Planner};
use crate::definitions::document::{Fields, Node, WrongDefinitions};
use crate::definitions::hashes::read_hash;
use broker::VhostId;
use broker::topology::{
    Command, HashAlgorithm, Name, OPERATOR, OPERATORS_NAME, PasswordHash, Permission, QueueType, TopicPermission,
    UserLimits, VhostDescription, VhostLimits,
};

impl Planner<'_> {
    pub(super) fn vhost(&mut self, node: &Node<'_>) -> Done {
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

    pub(super) fn vhost_limits(&mut self, at: &Node<'_>, vhost: VhostId, node: &Node<'_>) -> Done {
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

    pub(super) fn user(&mut self, node: &Node<'_>) -> Result<String, WrongDefinitions> {
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

    pub(super) fn permission(&mut self, node: &Node<'_>) -> Done {
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

    pub(super) fn topic_permission(&mut self, node: &Node<'_>) -> Done {
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
}
