//! The load itself: threads with sockets, each an event loop of its own.
//!
//! Invariant: a thread shares nothing but a few counters that others read. Producers and consumers
//! are on different threads, so that the CPU time of either side is measured and not guessed; all
//! consumers of a queue are on one thread, so that the books of a queue have one writer.

mod connection;
mod consumer;
mod content;
mod producer;
mod tally;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::client::{Limits, Stream};
use crate::plan::ConnectionPlan;

pub use consumer::{ConsumerSettings, rates_told_apart, sizes_told_apart};
pub use producer::{ProducerSettings, PublishForm};
pub use tally::{Books, Counts, Final, PublisherFinal, Sample, Side};
pub use worker::{Worker, WorkerSettings};

/// What the threads are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Publish and consume.
    Running,
    /// Publish no more, consume what is there.
    Draining,
    /// Close everything and end.
    Ending,
}

/// What the run tells its threads.
#[derive(Debug, Default)]
pub struct Control {
    phase: AtomicU8,
    failure: Mutex<Option<String>>,
    has_failed: AtomicBool,
}

impl Control {
    /// The phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Ending,
        }
    }

    /// Goes to a later phase.
    pub fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Something happened that ends the run; the first one counts.
    pub fn fail(&self, why: String) {
        let mut failure = self.failure.lock().expect("nobody panics with this lock");
        failure.get_or_insert(why);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Why the run has to end, if it has to.
    pub fn failure(&self) -> Option<String> {
        if !self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        self.failure.lock().expect("nobody panics with this lock").clone()
    }
}

/// A thread's counters, for whoever watches. Written once a loop.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Messages sent.
    pub published: AtomicU64,
    /// Messages confirmed.
    pub confirmed: AtomicU64,
    /// Messages sent and not yet answered.
    pub outstanding: AtomicU64,
    /// Messages received.
    pub received: AtomicU64,
    /// Messages received and not yet acked.
    pub unacked: AtomicU64,
    /// Channels that have done all they were asked to.
    pub done_channels: AtomicU64,
    /// Connections that are down now.
    pub lost_connections: AtomicU64,
    /// When something was last received or confirmed, nanoseconds.
    pub last_event_ns: AtomicU64,
}

/// A connection that is set up and ready for the load.
#[derive(Debug)]
pub struct Ready {
    /// The socket, still blocking.
    pub stream: Stream,
    /// What was read beyond the set-up.
    pub leftover: Vec<u8>,
    /// What was negotiated.
    pub limits: Limits,
    /// Names of queues that the broker chose, by place in the plan's list.
    pub names: Vec<(u32, String)>,
    /// The reason that connection.blocked gave during the set-up, unless it was taken back.
    pub blocked: Option<Bytes>,
}

/// Makes connections, at the start and again when one is lost.
pub trait Connect: Send + Sync + 'static {
    /// Connects and sets up the `at`-th connection of the plan; `attempt` counts from 0.
    fn connect(&self, at: usize, plan: &ConnectionPlan, attempt: u32) -> Result<Ready, crate::Error>;
}

/// A connector that threads share.
pub type Connector = Arc<dyn Connect>;
