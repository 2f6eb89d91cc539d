//! `leveret bench`: a load generator for any AMQP 0-9-1 broker that tells what it measured and
//! whether anything was lost.
//!
//! Invariant: a client and nothing more. It knows the broker by its address, its processes and its
//! answers.
//!
//! In reading order: [`options`] (PerfTest's words), [`plan`] (who publishes and consumes what),
//! [`message`] and [`ledger`] (what each message carries, and the books kept of it), [`client`]
//! (setting up), [`load`] (the threads that do the work), [`run`] (from start to verdict),
//! [`record`] (what is written down), [`screen`] and [`report`] (what a person sees).

pub mod clock;
pub mod error;
pub mod latency;
pub mod ledger;
pub mod message;
pub mod options;
pub mod pace;
pub mod uri;

pub use error::Error;
pub mod broker;
pub mod campaign;
pub mod client;
pub mod command;
pub mod disk;
pub mod durability;
pub mod fault;
mod fill;
pub mod load;
pub mod outputs;
pub mod plan;
pub mod process;
pub mod record;
pub mod report;
pub mod run;
pub mod scenario;
pub mod screen;
pub mod series;
pub mod setup;
pub mod verdict;
pub mod words;
