//! One member of one partition, sans-io: consensus, the queue machines and their indexes behind inputs and outputs.
//!
//! In reading order: what it is told and answers ([`command`]), how a message is stored ([`message`]).

pub mod command;
pub mod message;

pub use command::{Command, Delivery, Effect, Level, Message, Outcome, Outlets, Publish, Reply, RequestId, Target};
