//! The replicated part of a topology as bytes.
//!
//! Invariant: equal replicated parts give equal bytes, whatever road led there; what lives on one
//! node only is not in them, nor is what every virtual host has from its first moment.
//!
//! ```text
//! snapshot = "LVTO", 1 byte version (9; 8 where no copy was moved, 7 without founders, 6 without folders, 5 without eras, and 4 without global parameters too), number machine version, number next queue id,
//!            number virtual hosts ever, per host by id: flag (0 gone, 1 there and then) bytes name, 2 limits, number policies,
//!              number operator policies, description
//!            number users, per user by name: as in PutUser, 2 limits, number permissions, per host by id: number, 3 patterns,
//!              number topic permissions, per host and exchange: number, name, 2 patterns
//!            number exchanges, by virtual host and name: as in DeclareExchange
//!            number queues, by id: number id, as in DeclareQueue
//!            number bindings, by their bytes: as in Bind
//!            number nodes, pools, partitions, each by number: as in PutNode, PutPool, PutPartition
//!            number global parameters, by name: as in PutGlobalParameter
//!            number eras, per node by number: number node, number era
//!            number folders, per node by number: number node, 16 bytes folder
//!            number founders, per partition by number: number partition, number founders, numbers of nodes, rising
//!            number lives, by partition and node: number partition, number node, number life
//!            number copies, by partition: number partition, number copies
//! ```

use bytes::Bytes;
use std::collections::BTreeMap;

use super::Topology;
use super::apply::{Effect, Loss, Scope};
use super::binding;
use super::cluster::FIRST_MACHINE_VERSION;
use super::command::{Command, DeclareExchange, DeclareQueue, Home};
use super::encoding::{Malformed, NEWER_SNAPSHOT, Reader, Writer};
use super::exchange::{Exchange, Meaning};
use super::queue::Queue;
use super::records;
use super::vhost::{Vhost, VhostLimits};
use crate::ids::{NodeNumber, QueueId};

/// The version that this build writes, and the highest that it reads.
pub const SNAPSHOT_VERSION: u8 = 9;
/// What is written as long as there is nothing that only later versions can say: earlier builds
/// read it.
const PLAIN_VERSION: u8 = 4;
/// The same where there are global parameters, and no cluster.
const ALONE_VERSION: u8 = 5;
/// The same of a cluster which no node has joined.
const FOUNDERS_VERSION: u8 = 6;
/// The same of a cluster without pools of fewer copies than nodes.
const JOINED_VERSION: u8 = 7;
/// The same of one in which no copy was given or taken.
const POOLS_VERSION: u8 = 8;
const MAGIC: &[u8; 4] = b"LVTO";

impl Topology {
    /// The replicated part, canonically. Cost: a sort of all exchanges, queues and bindings.
    pub fn encode_snapshot(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.raw(MAGIC);
        let version = match (self.eras.is_empty(), self.global_parameters.is_empty()) {
            _ if self.has_moved_copies() => SNAPSHOT_VERSION,
            _ if self.has_founders() => POOLS_VERSION,
            _ if self.has_folders() => JOINED_VERSION,
            (true, true) => PLAIN_VERSION,
            (true, false) => ALONE_VERSION,
            (false, _) => FOUNDERS_VERSION,
        };
        writer.byte(version);
        writer.number(self.machine_version.into());
        writer.number(self.queue_next);
        writer.length(self.vhosts.len());
        for vhost in &self.vhosts {
            writer.flag(vhost.is_some());
            if let Some(vhost) = vhost {
                records::write_vhost(&mut writer, vhost);
            }
        }
        writer.length(self.users.len());
        for (name, user) in &self.users {
            records::write_user(&mut writer, name, user);
        }
        let mut exchanges: Vec<&Exchange> = self.exchanges().filter(|e| !e.is_local() && !e.is_predeclared()).collect();
        exchanges.sort_unstable_by(|a, b| (a.vhost, &a.name).cmp(&(b.vhost, &b.name)));
        writer.length(exchanges.len());
        for exchange in exchanges {
            records::write_exchange(&mut writer, &exchange.as_declare());
        }
        let mut queues = self.queues_by_id();
        queues.retain(|q| !q.id.is_local());
        writer.length(queues.len());
        for queue in queues {
            writer.number(queue.id.0);
            records::write_queue(&mut writer, &queue.as_declare());
        }
        let mut bindings: Vec<Bytes> = Vec::new();
        for binding in self.bindings.iter().filter(|b| !b.local) {
            let mut writer = Writer::default();
            binding::write_binding(&mut writer, &self.binding_by_names(binding));
            bindings.push(writer.finish());
        }
        bindings.sort_unstable();
        writer.length(bindings.len());
        for binding in bindings {
            writer.raw(&binding);
        }
        self.cluster.write(&mut writer);
        if version > PLAIN_VERSION {
            writer.length(self.global_parameters.len());
            for (name, value) in &self.global_parameters {
                writer.bytes(name);
                writer.bytes(value.as_bytes());
            }
        }
        if version > ALONE_VERSION {
            writer.length(self.eras.len());
            for (node, era) in &self.eras {
                records::write_home(&mut writer, Home { node: *node, era: *era });
            }
        }
        if version > FOUNDERS_VERSION {
            self.write_folders(&mut writer);
        }
        if version > JOINED_VERSION {
            self.write_founders(&mut writer);
        }
        if version > POOLS_VERSION {
            self.write_moved_copies(&mut writer);
        }
        writer.finish()
    }

    /// The topology of these bytes, with nothing that lives on this node only, at version 1.
    ///
    /// Errors: anything that `encode_snapshot` of a version up to this one does not write,
    /// contradictions included.
    pub fn decode_snapshot(bytes: &[u8]) -> Result<Self, Malformed> {
        let reader = &mut Reader::new(bytes);
        if reader.take(MAGIC.len(), "magic")? != MAGIC {
            return Err(reader.malformed("magic"));
        }
        let version = reader.byte("snapshot version")?;
        match version {
            1..=SNAPSHOT_VERSION => {}
            0 => return Err(reader.malformed("snapshot version")),
            _ => return Err(reader.malformed(NEWER_SNAPSHOT)),
        }
        let mut topology = Self::empty();
        let machine_version = if version > 3 { reader.machine_version()? } else { FIRST_MACHINE_VERSION };
        let queue_next = reader.number("next queue id")?;
        let mut limits = Vec::new();
        for _ in 0..reader.count("virtual hosts")? {
            if version > 2 && !reader.flag("virtual host")? {
                topology.vhosts.push(None);
                limits.push(VhostLimits::default());
                continue;
            }
            let read = match version {
                1 => Vhost::new(reader.name("virtual host")?),
                _ => records::read_vhost(reader, version)?,
            };
            let at = topology.vhosts.len();
            topology.replay(&Command::CreateVhost { name: read.name.clone() }, reader)?;
            if topology.vhosts.len() != at + 1 {
                return Err(reader.malformed("virtual host"));
            }
            // Limits come last: they may have been set below what is there.
            limits.push(read.limits);
            topology.vhosts[at] = Some(Box::new(Vhost { limits: VhostLimits::default(), ..read }));
        }
        for _ in 0..reader.count("users")? {
            let (name, user) = match version {
                1 => records::read_user_1(reader)?,
                _ => records::read_user(reader, &topology.vhosts)?,
            };
            topology.users.insert(name, user);
        }
        for _ in 0..reader.count("exchanges")? {
            let declare = records::read_exchange(reader)?;
            if declare.is_local() {
                return Err(reader.malformed("exchange"));
            }
            topology.replay(&Command::DeclareExchange(declare), reader)?;
        }
        for _ in 0..reader.count("queues")? {
            let id = reader.number("queue id")?;
            let declare = records::read_queue(reader)?;
            // Ids rise, so a queue that comes twice is refused here or for its name below.
            if id < topology.queue_next || id >= queue_next || declare.is_local() {
                return Err(reader.malformed("queue"));
            }
            topology.queue_next = id;
            if let Some(Home { node, era }) = declare.home.filter(|home| home.era > 0) {
                // Compared with the eras below.
                topology.eras.insert(node, era);
            }
            topology.replay(&Command::DeclareQueue(declare), reader)?;
            if topology.queue_next != id + 1 {
                return Err(reader.malformed("queue"));
            }
        }
        for _ in 0..reader.count("bindings")? {
            let binding = binding::read_binding(reader)?;
            topology.replay(&Command::Bind(binding), reader)?;
        }
        if version > 3 {
            topology.read_cluster(reader)?;
        }
        if version > PLAIN_VERSION {
            let count = reader.count("global parameters")?;
            if count == 0 && version == ALONE_VERSION {
                return Err(reader.malformed("global parameters"));
            }
            for _ in 0..count {
                let name = reader.name("global parameter")?;
                let value = reader.text("global parameter")?.to_owned();
                topology.replay(&Command::PutGlobalParameter { name, value }, reader)?;
            }
        }
        if version > ALONE_VERSION {
            topology.read_eras(reader, version)?;
        }
        if version > FOUNDERS_VERSION {
            topology.read_folders(reader, version > JOINED_VERSION)?;
        }
        if version > JOINED_VERSION {
            topology.read_founders(reader, version > POOLS_VERSION)?;
        }
        if version > POOLS_VERSION {
            topology.read_moved_copies(reader)?;
        }
        // Rules about where a queue may be placed do not ask whether it may stay.
        topology.machine_version = machine_version;
        if QueueId(queue_next).is_local() || queue_next < topology.queue_next {
            return Err(reader.malformed("next queue id"));
        }
        topology.queue_next = queue_next;
        for (vhost, limits) in topology.vhosts.iter_mut().zip(limits) {
            vhost.iter_mut().for_each(|vhost| vhost.limits = limits);
        }
        reader.end()?;
        topology.match_predeclared_exchanges();
        topology.version = 1;
        Ok(topology)
    }

    /// Replaces the replicated part by that of a snapshot, as a member does that has fallen behind
    /// the log, and keeps what lives on this node only as far as the new part leaves it its name
    /// and its ends.
    ///
    /// Returns the queues that are gone and those that are new, in the order of ids; `version`
    /// grows. Errors: as `decode_snapshot`, and nothing has changed.
    pub fn install_snapshot(&mut self, bytes: &[u8]) -> Result<Vec<Effect>, Malformed> {
        let new = Self::decode_snapshot(bytes)?;
        let old = std::mem::replace(self, new);
        // The exchanges came anew, so each is another one to what is kept under its number.
        let highest = self.exchanges.renumber(old.version);
        self.version = old.version.max(highest) + 1;
        self.local_queue_next = old.local_queue_next;
        (self.redeclaration, self.argument_bytes_max) = (old.redeclaration, old.argument_bytes_max);
        self.own_home = old.own_home;
        let mut effects = Vec::new();
        for queue in old.queues_by_id() {
            let has_place = self.vhost_of(queue.vhost).is_some() && self.find_queue(queue.vhost, &queue.name).is_none();
            if queue.id.is_local() && has_place {
                self.queues.adopt(queue);
            } else if self.queue(queue.id).is_none() {
                effects.push(Effect::QueueDeleted { id: queue.id, partition: queue.partition });
            }
        }
        self.members_changed_since(&old, &mut effects);
        self.policies_version = old.policies_version + 1;
        // The other queues came with their rules.
        self.match_local_queues(&mut effects);
        for queue in self.queues_by_id() {
            match old.queue(queue.id) {
                None => effects.push(Effect::QueueCreated { id: queue.id, partition: queue.partition }),
                Some(before) if before.rules != queue.rules && !queue.id.is_local() => {
                    effects.push(Effect::QueueRulesChanged { id: queue.id, partition: queue.partition });
                }
                Some(_) => {}
            }
        }
        let gone = old.vhosts().filter(|(id, _)| self.vhost_of(*id).is_none());
        effects.extend(gone.map(|(vhost, was)| Effect::VhostDeleted { vhost, name: was.name.clone() }));
        let gone = old.users.keys().filter(|name| !self.users.contains_key(*name));
        effects.extend(gone.map(|name| Effect::UserDeleted { name: name.clone() }));
        for exchange in old.exchanges().filter(|e| e.is_local() && self.vhost_of(e.vhost).is_some()).collect::<Vec<_>>()
        {
            if self.find_exchange(exchange.vhost, &exchange.name).is_none() {
                let meaning = Meaning { alternate: exchange.alternate.clone(), settings: exchange.settings.clone() };
                let policy = self.policy_matching_exchange(exchange.vhost, &exchange.name);
                let policy_alternate = self.alternate_under(exchange.vhost, policy.as_ref());
                let adopted = Exchange::declared(&exchange.as_declare(), meaning, exchange.created);
                self.exchanges.insert(Exchange { policy, policy_alternate, ..adopted });
            }
        }
        let mut losses = Vec::new();
        for binding in old.bindings.iter().filter(|b| b.local) {
            let spec = old.binding_by_names(binding);
            if self.bind(&spec, Scope::Local).is_err() {
                let source = self.exchanges.find(spec.vhost, &spec.source);
                losses.extend(source.map(|exchange| Loss { exchange, replicated: false }));
            }
        }
        self.settle_losses(losses, &[], &mut effects);
        Ok(effects)
    }

    /// The eras; every queue in the memory of a node is of the present one.
    fn read_eras(&mut self, reader: &mut Reader<'_>, version: u8) -> Result<(), Malformed> {
        let (mut last, mut eras) = (NodeNumber(0), BTreeMap::new());
        for _ in 0..reader.count("eras")? {
            let Home { node, era } = records::read_home(reader)?;
            if node <= last || era == 0 {
                return Err(reader.malformed("era"));
            }
            eras.insert(node, era);
            last = node;
        }
        self.eras = eras;
        let is_empty = self.eras.is_empty() && version == FOUNDERS_VERSION;
        if is_empty || self.queues.by_home().keys().any(|home| self.era(home.node) != home.era) {
            return Err(reader.malformed("eras"));
        }
        Ok(())
    }

    fn queues_by_id(&self) -> Vec<&Queue> {
        let mut queues: Vec<&Queue> = self.queues().collect();
        queues.sort_unstable_by_key(|q| q.id);
        queues
    }

    fn replay(&mut self, command: &Command, reader: &Reader<'_>) -> Result<(), Malformed> {
        self.apply(command).outcome.map(|_| ()).map_err(|_| reader.malformed("item that the rules refuse"))
    }
}

impl Exchange {
    fn as_declare(&self) -> DeclareExchange {
        DeclareExchange {
            vhost: self.vhost,
            name: self.name.clone(),
            kind: self.kind,
            durable: self.durable,
            auto_delete: self.auto_delete,
            internal: self.internal,
            is_shared: self.is_shared,
            arguments: self.arguments.clone(),
        }
    }
}

impl Queue {
    fn as_declare(&self) -> DeclareQueue {
        DeclareQueue {
            vhost: self.vhost,
            name: self.name.clone(),
            durable: self.shape.durable,
            exclusive: self.exclusive,
            auto_delete: self.shape.auto_delete,
            arguments: self.shape.arguments.clone(),
            partition: self.partition,
            home: self.home,
        }
    }
}
