//! Virtual hosts: their names, limits and policies.
//!
//! Invariant: a virtual host keeps its id; the ids are given out in the order of creation, none is
//! left out, and none is given out again: a request that is on its way when its virtual host is
//! deleted meets nobody.

use std::collections::BTreeMap;

use super::name::Name;
use super::policy::Policy;
use super::settings::QueueType;
use crate::ids::VhostId;

/// The longest description of a virtual host.
pub const VHOST_DESCRIPTION_BYTES_MAX: usize = 4096;
/// Tags of one virtual host.
pub const VHOST_TAGS_MAX: usize = 64;

/// A number of bytes for each virtual host.
#[derive(Debug, Default)]
pub(super) struct BytesByVhost(Vec<u64>);

impl BytesByVhost {
    pub(super) fn of(&self, vhost: VhostId) -> u64 {
        self.0.get(vhost.0 as usize).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, vhost: VhostId, bytes: usize) {
        let at = vhost.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += bytes as u64;
    }

    /// Takes away what was added.
    pub(super) fn take(&mut self, vhost: VhostId, bytes: usize) {
        self.0[vhost.0 as usize] -= bytes as u64;
    }
}

/// How much may be in a virtual host at a time; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostLimits {
    /// Connections.
    pub connections_max: Option<u32>,
    /// Queues of every kind.
    pub queues_max: Option<u32>,
}

/// What people say about a virtual host, and what queues in it are unless they say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostDescription {
    /// For people; at most `VHOST_DESCRIPTION_BYTES_MAX` bytes.
    pub text: String,
    /// For people and tools; at most `VHOST_TAGS_MAX`.
    pub tags: Vec<Name>,
    /// The type of a queue whose declare names none, where its flags go with it; `None` is classic.
    pub default_queue_type: Option<QueueType>,
}

/// One virtual host.
#[derive(Clone, Debug, PartialEq)]
pub struct Vhost {
    /// Its name.
    pub name: Name,
    /// How much may be in it.
    pub limits: VhostLimits,
    /// What is said about it.
    pub description: VhostDescription,
    /// By name; see `policy.rs`.
    pub policies: BTreeMap<Name, Policy>,
    /// The operator's, which hold over the others where both speak of one thing.
    pub operator_policies: BTreeMap<Name, Policy>,
}

impl Vhost {
    pub(super) fn new(name: Name) -> Self {
        Self {
            name,
            limits: VhostLimits::default(),
            description: VhostDescription::default(),
            policies: BTreeMap::new(),
            operator_policies: BTreeMap::new(),
        }
    }

    /// The type of a queue with these flags whose declare names none. One that quorum queues cannot
    /// have is classic, as in RabbitMQ 4.
    pub(super) fn default_queue_type(&self, durable: bool, exclusive: bool, auto_delete: bool) -> QueueType {
        match self.description.default_queue_type {
            Some(QueueType::Quorum) if durable && !exclusive && !auto_delete => QueueType::Quorum,
            _ => QueueType::Classic,
        }
    }
}
