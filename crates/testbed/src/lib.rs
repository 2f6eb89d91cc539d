//! What `bench` and `sizing` share about brokers under test: starting their nodes, the box that
//! each runs in, and what their processes use.
//!
//! Reading order: `node` (a process, its port and its words), `nodes` (several that are one broker), `folder` (what is left of runs that
//! were killed), `cgroup` (limits), then `process`, `used`, `written` and `watch` (figures). Invariant: what
//! was started here is stopped, with its box and its folder, however the run ends.

pub mod cgroup;
pub mod folder;
pub mod node;
pub mod nodes;
pub mod process;
pub mod used;
pub mod watch;
pub mod written;

pub use cgroup::{Cgroup, DiskLimits, Limits};
pub use folder::Folder;
pub use node::Node;
pub use nodes::Nodes;
pub use watch::{Look, Used, Watch};

/// The machine refused something: a file, a process, a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failed {
    /// What was tried.
    pub what: String,
    /// What the system said.
    pub why: String,
}

impl Failed {
    fn new(what: impl Into<String>, why: impl std::fmt::Display) -> Failed {
        Failed { what: what.into(), why: why.to_string() }
    }
}
