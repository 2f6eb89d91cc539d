//! Records that commands of the topology and its snapshots have in common, as bytes: virtual hosts,
//! users with their rights, policies, exchanges, queues and their homes.
//!
//! Invariant: a released version of a record is read for ever: what ends in `_1` reads the first one.

use super::cluster::MACHINE_VERSION;
use super::command::{DeclareExchange, DeclareQueue, Home};
use super::encoding::{Malformed, NEWER_MACHINE, Reader, Writer};
use super::exchange_type::ExchangeType;
use super::name::Name;
use super::password::{HashAlgorithm, PasswordHash, SALT_BYTES};
use super::pattern::Pattern;
use super::policy::{ApplyTo, Policy};
use super::settings::QueueType;
use super::user::{Permission, TopicPermission, User, UserLimits};
use super::vhost::{Vhost, VhostDescription, VhostLimits};
use crate::ids::{NodeNumber, PartitionId, VhostId};

/// Flags in one byte, the first one lowest.
pub(super) fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    flags.iter().enumerate().fold(0, |byte, (bit, flag)| byte | u8::from(*flag) << bit)
}

impl Reader<'_> {
    pub(super) fn flags<const N: usize>(&mut self, what: &'static str) -> Result<[bool; N], Malformed> {
        let byte = self.byte(what)?;
        if N < 8 && byte >> N != 0 {
            return Err(self.malformed(what));
        }
        Ok(std::array::from_fn(|bit| byte & 1 << bit != 0))
    }

    pub(super) fn names(&mut self, what: &'static str) -> Result<Vec<Name>, Malformed> {
        let mut names = Vec::new();
        for _ in 0..self.count(what)? {
            names.push(self.name(what)?);
        }
        Ok(names)
    }

    /// A version of the state machine that this build knows: nothing is carried out by another one.
    pub(super) fn machine_version(&mut self) -> Result<u32, Malformed> {
        let version = self.number_u32("machine version")?;
        match version {
            1..=MACHINE_VERSION => Ok(version),
            _ => Err(self.malformed(NEWER_MACHINE)),
        }
    }

    pub(super) fn vhost(&mut self) -> Result<VhostId, Malformed> {
        self.number_u32("virtual host").map(VhostId)
    }
}

impl Writer {
    pub(super) fn names(&mut self, names: &[Name]) {
        self.length(names.len());
        for name in names {
            self.bytes(name);
        }
    }
}

pub(super) fn write_credentials(writer: &mut Writer, password: &PasswordHash, tags: &[Name]) {
    let algorithm = HashAlgorithm::ALL.iter().position(|a| *a == password.algorithm).expect("all are in the list");
    writer.byte(u8::try_from(algorithm).expect("there are four"));
    writer.bytes(&password.bytes);
    writer.names(tags);
}

pub(super) fn read_credentials(reader: &mut Reader<'_>) -> Result<(PasswordHash, Vec<Name>), Malformed> {
    let algorithm = HashAlgorithm::ALL.get(usize::from(reader.byte("hash algorithm")?)).copied();
    let algorithm = algorithm.ok_or_else(|| reader.malformed("hash algorithm"))?;
    let password = PasswordHash::from_bytes(algorithm, reader.bytes("password hash")?);
    let password = password.ok_or_else(|| reader.malformed("password hash"))?;
    Ok((password, reader.names("tags")?))
}

/// As the first commands and snapshots had them: SHA-256 and nothing else.
pub(super) fn read_credentials_1(reader: &mut Reader<'_>) -> Result<(PasswordHash, Vec<Name>), Malformed> {
    let algorithm = HashAlgorithm::Sha256;
    let bytes = reader.take(SALT_BYTES + 32, "password hash")?;
    let password = PasswordHash::from_bytes(algorithm, bytes).expect("as many bytes as it has");
    Ok((password, reader.names("tags")?))
}

pub(super) fn write_permission(writer: &mut Writer, permission: &Permission) {
    for pattern in [&permission.configure, &permission.write, &permission.read] {
        writer.bytes(pattern.text().as_bytes());
    }
}

pub(super) fn read_pattern(reader: &mut Reader<'_>) -> Result<Pattern, Malformed> {
    let text = reader.text("pattern")?;
    Pattern::stored(text).map_err(|_| reader.malformed("pattern"))
}

pub(super) fn read_permission(reader: &mut Reader<'_>) -> Result<Permission, Malformed> {
    Ok(Permission { configure: read_pattern(reader)?, write: read_pattern(reader)?, read: read_pattern(reader)? })
}

/// As the first commands and snapshots had it: all names or none.
pub(super) fn read_permission_1(reader: &mut Reader<'_>) -> Result<Permission, Malformed> {
    let [configure, write, read] = reader.flags("permission")?;
    let of = |granted| if granted { Pattern::everything() } else { Pattern::nothing() };
    Ok(Permission { configure: of(configure), write: of(write), read: of(read) })
}

pub(super) fn read_user_limits(reader: &mut Reader<'_>) -> Result<UserLimits, Malformed> {
    Ok(UserLimits { connections_max: reader.limit("limit")?, channels_max: reader.limit("limit")? })
}

pub(super) fn read_vhost_limits(reader: &mut Reader<'_>) -> Result<VhostLimits, Malformed> {
    Ok(VhostLimits { connections_max: reader.limit("limit")?, queues_max: reader.limit("limit")? })
}

pub(super) fn write_policy(writer: &mut Writer, name: &Name, policy: &Policy) {
    writer.bytes(name);
    writer.bytes(policy.pattern.text().as_bytes());
    let apply_to = ApplyTo::ALL.iter().position(|a| *a == policy.apply_to).expect("all are in the list");
    writer.byte(u8::try_from(apply_to).expect("there are six"));
    writer.signed(policy.priority);
    writer.table(&policy.definition);
}

pub(super) fn read_policy(reader: &mut Reader<'_>) -> Result<(Name, Policy), Malformed> {
    let name = reader.name("policy")?;
    let pattern = read_pattern(reader)?;
    let apply_to = ApplyTo::ALL.get(usize::from(reader.byte("apply-to")?)).copied();
    let apply_to = apply_to.ok_or_else(|| reader.malformed("apply-to"))?;
    let priority = reader.signed("priority")?;
    Ok((name, Policy { pattern, apply_to, priority, definition: reader.table()? }))
}

pub(super) fn write_description(writer: &mut Writer, description: &VhostDescription) {
    writer.bytes(description.text.as_bytes());
    writer.names(&description.tags);
    writer.byte(match description.default_queue_type {
        None => 0,
        Some(QueueType::Classic) => 1,
        Some(QueueType::Quorum) => 2,
    });
}

pub(super) fn read_description(reader: &mut Reader<'_>) -> Result<VhostDescription, Malformed> {
    let text = reader.text("description")?.to_owned();
    let tags = reader.names("tags")?;
    let default_queue_type = match reader.byte("default queue type")? {
        0 => None,
        1 => Some(QueueType::Classic),
        2 => Some(QueueType::Quorum),
        _ => return Err(reader.malformed("default queue type")),
    };
    Ok(VhostDescription { text, tags, default_queue_type })
}

/// A virtual host as a snapshot holds it.
pub(super) fn write_vhost(writer: &mut Writer, vhost: &Vhost) {
    writer.bytes(&vhost.name);
    writer.limit(vhost.limits.connections_max);
    writer.limit(vhost.limits.queues_max);
    for policies in [&vhost.policies, &vhost.operator_policies] {
        writer.length(policies.len());
        policies.iter().for_each(|(name, policy)| write_policy(writer, name, policy));
    }
    write_description(writer, &vhost.description);
}

/// See `write_vhost`; the second version had no description.
pub(super) fn read_vhost(reader: &mut Reader<'_>, version: u8) -> Result<Vhost, Malformed> {
    let mut vhost = Vhost::new(reader.name("virtual host")?);
    vhost.limits = read_vhost_limits(reader)?;
    for policies in [&mut vhost.policies, &mut vhost.operator_policies] {
        for _ in 0..reader.count("policies")? {
            let (name, policy) = read_policy(reader)?;
            policies.insert(name, policy);
        }
    }
    if version > 2 {
        vhost.description = read_description(reader)?;
    }
    Ok(vhost)
}

/// A user as a snapshot holds it.
pub(super) fn write_user(writer: &mut Writer, name: &Name, user: &User) {
    writer.bytes(name);
    write_credentials(writer, &user.password, &user.tags);
    writer.limit(user.limits.connections_max);
    writer.limit(user.limits.channels_max);
    writer.length(user.permissions.len());
    for (vhost, permission) in &user.permissions {
        writer.number(vhost.0.into());
        write_permission(writer, permission);
    }
    writer.length(user.topic_permissions.len());
    for ((vhost, exchange), permission) in &user.topic_permissions {
        writer.number(vhost.0.into());
        writer.bytes(exchange);
        let (write, read) = permission.texts();
        writer.bytes(write.as_bytes());
        writer.bytes(read.as_bytes());
    }
}

/// See `write_user`. `vhosts` are those that were read before.
pub(super) fn read_user(reader: &mut Reader<'_>, vhosts: &[Option<Box<Vhost>>]) -> Result<(Name, User), Malformed> {
    let name = reader.name("user")?;
    let (password, tags) = read_credentials(reader)?;
    let mut user = User::new(password, tags);
    user.limits = read_user_limits(reader)?;
    for _ in 0..reader.count("permissions")? {
        let vhost = reader.vhost()?;
        user.permissions.insert(vhost, read_permission(reader)?);
    }
    for _ in 0..reader.count("topic permissions")? {
        let vhost = reader.vhost()?;
        let exchange = reader.name("exchange")?;
        let (write, read) = (reader.text("pattern")?, reader.text("pattern")?);
        let vhost_name = vhosts.get(vhost.0 as usize).and_then(Option::as_deref).map(|vhost| &vhost.name);
        let vhost_name = vhost_name.ok_or_else(|| reader.malformed("virtual host"))?;
        let permission = TopicPermission::stored(&name, vhost_name, write, read);
        let permission = permission.map_err(|_| reader.malformed("pattern"))?;
        user.topic_permissions.insert((vhost, exchange), permission);
    }
    Ok((name, user))
}

/// A user of the first snapshots.
pub(super) fn read_user_1(reader: &mut Reader<'_>) -> Result<(Name, User), Malformed> {
    let name = reader.name("user")?;
    let (password, tags) = read_credentials_1(reader)?;
    let mut user = User::new(password, tags);
    for _ in 0..reader.count("permissions")? {
        let vhost = reader.vhost()?;
        user.permissions.insert(vhost, read_permission_1(reader)?);
    }
    Ok((name, user))
}

pub(super) fn write_exchange(writer: &mut Writer, declare: &DeclareExchange) {
    writer.number(declare.vhost.0.into());
    writer.bytes(&declare.name);
    writer.byte(declare.kind.number());
    writer.byte(flags([declare.durable, declare.auto_delete, declare.internal, declare.is_shared]));
    writer.table(&declare.arguments);
}

pub(super) fn read_exchange(reader: &mut Reader<'_>) -> Result<DeclareExchange, Malformed> {
    let vhost = reader.vhost()?;
    let name = reader.name("exchange")?;
    let number = reader.byte("exchange type")?;
    let kind = ExchangeType::of_number(number).ok_or_else(|| reader.malformed("exchange type"))?;
    let [durable, auto_delete, internal, is_shared] = reader.flags("exchange flags")?;
    if durable && is_shared {
        return Err(reader.malformed("exchange flags"));
    }
    Ok(DeclareExchange { vhost, name, kind, durable, auto_delete, internal, arguments: reader.table()?, is_shared })
}

pub(super) fn write_queue(writer: &mut Writer, declare: &DeclareQueue) {
    writer.number(declare.vhost.0.into());
    writer.bytes(&declare.name);
    let (is_exclusive, has_home) = (declare.exclusive.is_some(), declare.home.is_some());
    writer.byte(flags([declare.durable, declare.auto_delete, is_exclusive, has_home]));
    if let Some(owner) = declare.exclusive {
        writer.number(owner);
    }
    if let Some(home) = declare.home {
        write_home(writer, home);
    }
    writer.number(declare.partition.0.into());
    writer.table(&declare.arguments);
}

pub(super) fn read_queue(reader: &mut Reader<'_>) -> Result<DeclareQueue, Malformed> {
    let vhost = reader.vhost()?;
    let name = reader.name("queue")?;
    let [durable, auto_delete, is_exclusive, has_home] = reader.flags("queue flags")?;
    let exclusive = if is_exclusive { Some(reader.number("owner")?) } else { None };
    let home = if has_home { Some(read_home(reader)?) } else { None };
    let partition = PartitionId(reader.number_u32("partition")?);
    if home.is_some_and(|home| durable && !is_exclusive || partition.home() != Some(home.node)) {
        return Err(reader.malformed("home"));
    }
    Ok(DeclareQueue { vhost, name, durable, exclusive, auto_delete, arguments: reader.table()?, partition, home })
}

pub(super) fn write_home(writer: &mut Writer, home: Home) {
    writer.number(home.node.0.into());
    writer.number(home.era);
}

pub(super) fn read_home(reader: &mut Reader<'_>) -> Result<Home, Malformed> {
    let node = NodeNumber(reader.number_u32("home")?);
    if node.0 == 0 || node.0 as usize > super::NODES_EVER_MAX {
        return Err(reader.malformed("home"));
    }
    Ok(Home { node, era: reader.number("era")? })
}
