//! A shard: one thread that owns a fixed set of partitions and a share of the client connections,
//! with no lock inside.
//!
//! One turn of its loop:
//!
//! ```text
//!   epoll ──▶ every ready socket: read once, parse, route, push commands     (connection tasks, in the order of epoll)
//!         ──▶ the shard's task, once: each partition with commands steps, its effects are encoded at their connections
//!         ──▶ every connection with something to say: one vectored write
//! ```
//!
//! The task is woken by the first command and runs after the tasks that were ready before it, so a
//! batch is whatever the sockets held: one message when it is quiet, thousands under load. Nothing
//! lingers for more.
//!
//! # Cost of one message, published and delivered on one shard, batches of B messages
//!
//! | what | a message | a batch |
//! |---|---|---|
//! | system calls | 0 | epoll_wait 1; read 1 and write 1 a connection (the publisher's confirms, the consumer's messages) |
//! | wake-ups of threads | 0 (transient); the WAL thread, once a batch (durable) | 1, from epoll |
//! | copies of the body | 2: read buffer to batch, batch to output; from 8 KiB on the second is a slice | - |
//! | allocations | 0 | 3 in the transient store; vectors of commands, effects and output are kept |
//! | locks | 0 | 0 here; 1 a target shard for what leaves it |
//! | hashes | queue 1 in, 1 out; consumer 4; channel 1 or none | - |
//! | atomics | 4 references to the read buffer, 2 to the batch | topology's version 1 a publish, relaxed |
//!
//! Batching is what keeps the fixed costs (epoll, read, write, task switches: about 5 us together)
//! off the message.

mod here;
mod in_queues;
mod local;
mod mailbox;
mod paused;
pub(crate) mod thread;
mod turns;
mod watch;
mod wheel;

pub(crate) use here::Here;
pub use in_queues::InQueues;
pub(crate) use local::Local;
pub use mailbox::ShardStatistics;
pub(crate) use mailbox::{Arrival, Look, Mailbox, Outsider, Parcel};
pub(crate) use turns::{Place, Turns};
pub(crate) use watch::Watch;
pub(crate) use wheel::{Seat, Wheel};
