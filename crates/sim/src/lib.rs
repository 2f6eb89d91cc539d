//! A whole cluster of [`partition`] members on one thread, from a seed: virtual clock, disks,
//! network, clients, checkers.
//!
//! The engine's own code runs: partitions, consensus, log, extents, checkpoints, recovery. Only the
//! shell around it is this crate's, and it does in virtual time what the server's threads do.
//! Invariant: a run is a function of its seed.
//!
//! In reading order:
//! - [`plan`]: what a run is like; [`random`], [`schedule`], [`trace`]: what everything here stands
//!   on.
//! - [`registry`]: which queues there are, under which names, and how an exchange leads to them.
//! - [`node`]: partitions over a faulty disk; [`network`]: what happens to frames; [`client`]: who
//!   publishes and reads.
//! - [`cluster`]: all of it under one clock, with its weather.
//! - [`sessions`]: the same nodes behind real sessions, with clients that speak AMQP.
//! - [`checks`]: what must hold; [`bug`]: what is done wrong on purpose, to see that a checker
//!   bites.

pub mod bug;
pub mod checks;
pub mod client;
pub mod cluster;
pub mod network;
pub mod node;
pub mod plan;
pub mod random;
pub mod registry;
pub mod schedule;
pub mod sessions;
pub mod trace;

pub use bug::Bug;
pub use checks::Figures;
pub use cluster::Cluster;
pub use plan::{Faults, Options};
pub use sessions::Sessions;
