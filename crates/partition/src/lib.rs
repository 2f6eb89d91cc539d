//! One member of one partition, sans-io: consensus, the queue machines and their indexes behind
//! inputs and outputs.
//!
//! In reading order:
//! - [`command`]: what a partition is told and what it answers; [`outputs`]: what it wants written,
//!   sent, read, copied.
//! - [`message`] and [`entry`]: how messages and outcomes are stored; [`place`]: where.
//! - [`machine`]: the replicated state, changed by entries alone.
//! - [`replica`] and [`log_index`]: consensus over the node's WAL; [`peer`]: what members say to
//!   each other; [`peer::forward`]: what nodes do.
//! - `queue`, `life`, `closing` and `turn`: one queue as its engine sees it, wherever its messages
//!   are.
//! - [`partition`]: all of it as one machine; `commands`, `deliver`, `log_life` and `damage`: what
//!   its leader does; [`tail`] and [`reader`]: bytes at hand.
//! - [`maintenance`] and [`checkpoint`]: keeping the log short.
//! - [`extent_copy`] and [`cold_read`]: what both shells share of carrying jobs and reads out.
//! - `snapshot`: a follower that needs more than the log still has.
//! - [`log_partition`]: a log for a machine of the caller's, the topology, with snapshots for
//!   followers of its own.
//! - [`transient`]: the same surface for queues that live in one shard's memory; `reply_room`: how much of
//!   direct replies may wait there.
//! - [`recovery`]: a partition from what a data folder holds; [`salvage`]: from what is left of a
//!   damaged one.
//! - [`survey`]: what is in the queues, for whoever looks after the broker.

pub mod checkpoint;
mod closing;
pub mod cold_read;
pub mod command;
mod commands;
mod damage;
mod deleted;
mod deliver;
mod early;
pub mod ending;
pub mod entry;
pub mod extent_copy;
mod given_up;
mod known;
mod latecomers;
mod leader;
mod letters;
mod life;
pub mod log_index;
mod log_life;
pub mod log_partition;
pub mod machine;
pub mod maintenance;
pub mod message;
pub mod outputs;
pub mod partition;
pub mod peer;
pub mod place;
mod predecessor;
mod publishers;
mod queue;
pub mod reader;
pub mod recovery;
mod repair;
mod repeats;
pub mod replica;
mod reply_room;
pub mod salvage;
mod snapshot;
pub mod survey;
pub mod tail;
mod traffic;
pub mod transient;
mod turn;

pub use command::{
    Command, DeadLetter, Delivery, Disposition, Effect, Level, Message, Outlets, Publish, Reply, RequestId, Target,
};
pub use commands::refuse;
pub use log_partition::LogPartition;
pub use maintenance::WalState;
pub use outputs::{Outputs, messages_in_words};
pub use partition::{Context, QueuePartition};
pub use peer::PeerFrame;
pub use peer::forward::Forward;
pub use recovery::{
    Part, Recovery, anew_checkpoint, founding_checkpoint, founding_log_checkpoint, joining_checkpoint,
    joining_log_checkpoint, returning_checkpoint,
};
pub use reply_room::{ReplyRoom, ReplyRooms};
pub use survey::{CopyFigures, DiskFigures, PartitionFigures, QueueFigures};
pub use tail::Tail;
pub use transient::TransientQueues;
