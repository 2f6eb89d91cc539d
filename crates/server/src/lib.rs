//! The shell around the rules: sockets, threads and shards.
//!
//! In reading order: what a process starts ([`run`]) from its [`config`], the node ([`node`]), one
//! thread of it ([`shard`], whose head has the cost of a message), one connection (`connection`)
//! and what its session sees of all this (`turn`), how the topology changes ([`topology_log`]), the
//! disk's side ([`engine`]), and what all this tells of itself ([`handle`], [`report`]).
//!
//! It carries rules out and makes none: AMQP's are in `amqp`, the topology's and the queues' in
//! `broker`.

// Helpers of the tests beside this crate name it.
#[cfg(test)]
extern crate self as server;

mod acceptor;
pub mod cluster;
pub mod config;
mod connection;
pub mod definitions;
mod drain;
pub mod engine;
pub mod handle;
mod listener;
pub mod node;
mod passwords;
pub mod patterns;
mod proxy_protocol;
mod random;
pub mod run;
pub mod shard;
mod spans;
mod startup;
mod stream;
pub mod tls;
mod tokens;
pub mod topology_log;
mod turn;

pub use ::node::Partition;
pub use handle::Handle;
pub use listener::{listen, reserve};
pub use node::{Alarm, Alarms, Look, MakePartitions, Node, NodeConfig, PartitionWaker, ShardParts, StartError, Wiring};
pub use session::{LoginLimits, SYNC_EXCHANGE, Stamp, Stamps, report};
pub use spans::{SpanFigures, WrongCollector};
pub use startup::{Attendant, Startup};
pub use tokens::WrongKeyFile;
pub use topology_log::{Answer, Changes, MemoryLog, TopologyLog};
