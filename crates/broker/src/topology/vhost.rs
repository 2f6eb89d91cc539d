//! Virtual hosts: their names, limits and policies.
//!
//! Invariant: a virtual host keeps its id; the ids are given out in the order of creation and none is left out.

use std::collections::BTreeMap;

use super::name::Name;
use super::policy::Policy;

/// How much may be in a virtual host at a time; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostLimits {
    /// Connections.
    pub connections_max: Option<u32>,
    /// Queues of every kind.
    pub queues_max: Option<u32>,
}

/// One virtual host.
#[derive(Clone, Debug, PartialEq)]
pub struct Vhost {
    /// Its name.
    pub name: Name,
    /// How much may be in it.
    pub limits: VhostLimits,
    /// By name; see `policy.rs`.
    pub policies: BTreeMap<Name, Policy>,
    /// The operator's, which hold over the others where both speak of one thing.
    pub operator_policies: BTreeMap<Name, Policy>,
}

impl Vhost {
    pub(super) fn new(name: Name) -> Self {
        Self { name, limits: VhostLimits::default(), policies: BTreeMap::new(), operator_policies: BTreeMap::new() }
    }
}
