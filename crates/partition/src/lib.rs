//! One member of one partition, sans-io: consensus, the queue machines and their indexes behind inputs and outputs.
//!
//! In reading order: what it is told and answers ([`command`]), how a message is stored ([`message`]), the queues that
//! no log sees ([`transient`]).

pub mod command;
pub mod message;
pub mod transient;

pub use command::{Command, Delivery, Effect, Level, Message, Outcome, Outlets, Publish, Reply, RequestId, Target};
pub use transient::TransientQueues;
