//! A node among others: how nodes know each other (`handshake`), by what (`secret`), how they found their cluster
//! together (`formation`), how one joins later (`joining`), whom a node believes (`known`), what they
//! send each other afterwards (`links`, `link`), what they ask each other (`questions`), what is told
//! when one went (`succession`), and what a node
//! does before it lets clients in (`cluster`).
//!
//! Invariant: nothing is believed of a peer before it has proved that it has the cluster's secret,
//! and nothing is taken from a node whose data folder is none of those that founded the cluster.

#[allow(clippy::module_inception)]
mod cluster;
mod encryption;
mod formation;
mod handshake;
mod joining;
mod known;
mod link;
mod links;
mod outboxes;
mod peers;
mod questions;
mod sealed;
mod secret;
mod strangers;
mod succession;

pub use cluster::with_port;
pub(crate) use cluster::{Cluster, Founded, Member, Stopped};
pub use encryption::LinkFiles;
pub(crate) use link::LinkOut;
pub(crate) use links::{LinkArrival, Links};
pub use questions::{AskError, Asked, Question};
pub(crate) use secret::SecretFiles;
