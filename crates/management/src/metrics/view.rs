//! Which metrics are asked for: by path, and at `/metrics/detailed` by family.
//!
//! Invariant: families have RabbitMQ's names. One that nobody knows is passed over, as there.

use crate::answer::Refused;
use crate::call::Call;
use std::collections::BTreeSet;

/// A page of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Added up.
    Total,
    /// One by one.
    Each,
    /// One by one, and only what is asked for.
    Detailed(Wanted),
    /// What the memory holds.
    Memory,
}

/// What `/metrics/detailed` is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    families: BTreeSet<String>,
    /// Without any, all virtual hosts.
    vhosts: BTreeSet<String>,
}

impl View {
    pub(super) fn of(call: &Call<'_>) -> Result<View, Refused> {
        match call.head.uri.path().trim_end_matches('/') {
            "/metrics" => Ok(View::Total),
            "/metrics/per-object" => Ok(View::Each),
            "/metrics/detailed" => Ok(View::Detailed(Wanted {
                families: call.queries("family").collect(),
                vhosts: call.queries("vhost").collect(),
            })),
            "/metrics/memory-breakdown" => Ok(View::Memory),
            _ => Err(Refused::NotFound),
        }
    }

    /// RabbitMQ's word for it.
    pub(super) fn word(&self) -> &'static str {
        match self {
            View::Total => "aggregated",
            View::Each => "per-object",
            View::Detailed(_) => "detailed",
            View::Memory => "memory-breakdown",
        }
    }

    /// What its names begin with.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            View::Detailed(_) => "rabbitmq_detailed_",
            _ => "rabbitmq_",
        }
    }

    /// Whether a family belongs to it.
    pub(super) fn has(&self, family: &str) -> bool {
        match self {
            View::Total | View::Each => true,
            View::Detailed(wanted) => wanted.families.contains(family),
            View::Memory => false,
        }
    }

    /// Whether a family belongs to it that has to be asked for.
    pub(super) fn has_by_name(&self, family: &str) -> bool {
        matches!(self, View::Detailed(wanted) if wanted.families.contains(family))
    }

    /// Whether things are told one by one.
    pub(super) fn is_each(&self) -> bool {
        matches!(self, View::Each | View::Detailed(_))
    }

    /// Whether what is in a virtual host belongs to it.
    pub(super) fn has_vhost(&self, name: &str) -> bool {
        match self {
            View::Detailed(wanted) => wanted.vhosts.is_empty() || wanted.vhosts.contains(name),
            _ => true,
        }
    }
}
