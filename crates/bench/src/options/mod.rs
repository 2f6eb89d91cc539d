//! The command line of a run: PerfTest's words, checked and typed.
//!
//! Invariant: options that exist here are lawful together; what contradicts itself was refused
//! while reading.

mod read;
pub mod table;
pub mod units;

use amqp::{Table, Value};

use crate::client::Tls;
use crate::pace::Steps;
use crate::uri::Uri;

pub use read::{parse, run_of};

/// When a run ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitWhen {
    /// All queues are empty.
    Empty,
    /// No consumer got anything for a second.
    Idle,
}

/// How a message is consumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Consuming {
    /// Consumers, each a connection.
    pub count: u32,
    /// Channels of each.
    pub channels: u16,
    /// Without acknowledgements.
    pub auto_ack: bool,
    /// One ack for so many messages; 0 and 1 ack each.
    pub multi_ack_every: u64,
    /// Prefetch of each consumer; 0 is no limit.
    pub prefetch: u16,
    /// Prefetch of each channel; 0 is no limit.
    pub channel_prefetch: u16,
    /// Microseconds of work on a message.
    pub work_us: Steps,
    /// Messages a second of each channel.
    pub rate: Option<f64>,
    /// Messages of each channel; 0 is no limit.
    pub messages: u64,
    /// Nack and not ack.
    pub nack: bool,
    /// Requeue what is nacked.
    pub requeue: bool,
    /// With basic.get, so many milliseconds apart.
    pub polling_ms: Option<u64>,
    /// Arguments of basic.consume.
    pub arguments: Table,
    /// Start so much later.
    pub start_delay_secs: u64,
    /// Start one a second.
    pub slow_start: bool,
}

/// How messages are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Producing {
    /// Producers, each a connection.
    pub count: u32,
    /// Channels of each.
    pub channels: u16,
    /// Unconfirmed at most; `None` is without confirms.
    pub confirm: Option<u64>,
    /// Seconds that a confirm may take.
    pub confirm_timeout_secs: u64,
    /// Messages of each channel; 0 is no limit.
    pub messages: u64,
    /// Messages a second of each channel; `None` is as fast as it goes.
    pub rate: Option<Steps>,
    /// Bytes of a body.
    pub size: Steps,
    /// Delivery mode 2.
    pub persistent: bool,
    /// Return what is not routed.
    pub mandatory: bool,
    /// Another key each time; with a cache of so many.
    pub random_routing_key: Option<u64>,
    /// Standard properties, name and text.
    pub properties: Vec<(String, String)>,
    /// Headers.
    pub headers: Table,
    /// Start each after up to so long.
    pub random_start_delay_secs: u64,
}

/// What queues and exchange there are.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Exchange to publish to.
    pub exchange: String,
    /// Its type.
    pub exchange_type: String,
    /// Names of queues; empty is one of the broker's for each consumer.
    pub queues: Vec<String>,
    /// The names come from a pattern: producers and consumers are dealt out over them.
    pub is_pattern: bool,
    /// Producers' channels are dealt out over the queues too, and not only their connections.
    pub spreads_channels: bool,
    /// Routing key; `None` is one of this run.
    pub routing_key: Option<String>,
    /// Declare nothing.
    pub predeclared: bool,
    /// Bind nothing.
    pub skip_binding: bool,
    /// Durable queues.
    pub durable: bool,
    /// Exclusive queues.
    pub exclusive: bool,
    /// Auto-delete queues.
    pub auto_delete: bool,
    /// Arguments of queues.
    pub arguments: Table,
}

/// What is written down, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    /// JSON lines.
    pub json: Option<String>,
    /// A report with charts.
    pub html: Option<String>,
    /// The comparing table, of tools that make several runs.
    pub markdown: Option<String>,
    /// HdrHistogram log.
    pub hdr_log: Option<String>,
    /// CSV, a line an interval.
    pub csv: Option<String>,
    /// Where the page of the run is served while it goes on.
    pub live: Option<String>,
    /// No live view.
    pub plain: bool,
    /// Nothing but the verdict.
    pub quiet: bool,
}

/// What the run must show, or it fails.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requirement {
    /// Confirmed and consumed messages a second at least.
    pub rate: Option<f64>,
    /// 99th percentile end to end at most.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile end to end at most.
    pub p999_ms: Option<f64>,
}

/// Nodes of one broker at most.
pub const NODES_MAX: u16 = 9;

/// How the broker under test is started, if this tool does it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BrokerStart {
    /// Its command; `None` with a limit is this binary's server.
    pub command: Option<String>,
    /// Cores.
    pub cpu: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// How many nodes, which are one broker together; each has a box of its own.
    pub nodes: Option<u16>,
}

impl BrokerStart {
    /// Whether there is anything to start.
    pub fn is_wanted(&self) -> bool {
        self.command.is_some() || self.nodes.is_some() || self.cpu.is_some() || self.memory_bytes.is_some()
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Its name in reports.
    pub label: String,
    /// Which workload of the articles it is, if it is one.
    pub scenario: String,
    /// Brokers.
    pub uris: Vec<Uri>,
    /// The words that it came from, for the report.
    pub words: Vec<String>,
    /// Producers.
    pub producing: Producing,
    /// Consumers.
    pub consuming: Consuming,
    /// Queues and exchange.
    pub topology: Topology,
    /// Seconds of load; `None` is until something else ends it.
    pub time_secs: Option<u64>,
    /// Seconds left out of the figures.
    pub warmup_secs: u64,
    /// Seconds of a sample.
    pub interval_secs: u64,
    /// End by itself.
    pub exit_when: Option<ExitWhen>,
    /// Latency from the moment of sending.
    pub closed_loop: bool,
    /// Latencies of messages of other runs count.
    pub use_millis: bool,
    /// Threads a side.
    pub threads: usize,
    /// Seconds to wait for what is queued at the end.
    pub drain_secs: u64,
    /// Heartbeat to ask for.
    pub heartbeat_secs: u16,
    /// Frame size to ask for.
    pub frame_max: u32,
    /// Seconds until a lost connection is made again, a range; `None` is never.
    pub recovery_secs: Option<(f64, f64)>,
    /// Wait so long for the broker.
    pub startup_secs: u64,
    /// Wait so long for connections to close.
    pub shutdown_secs: u64,
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// SO_RCVBUF.
    pub receive_buffer: Option<usize>,
    /// SO_SNDBUF.
    pub send_buffer: Option<usize>,
    /// For brokers whose URI begins with amqps.
    pub tls: Option<Tls>,
    /// Log in by certificate.
    pub sasl_external: bool,
    /// What is written down.
    pub outputs: Outputs,
    /// What it must show.
    pub requirement: Requirement,
    /// The broker to start.
    pub broker: BrokerStart,
    /// The broker's processes, if they were named.
    pub broker_pids: Vec<u32>,
    /// A rate that is asked for and not sent is a backlog that grew.
    pub judges_rate: bool,
    /// Names of what each producer channel waits for, when they wait for different things; then the
    /// time until a message is handed to the socket is measured too.
    pub stages: Vec<String>,
}

/// What the words ask for.
#[derive(Debug)]
pub enum Asked {
    /// A run.
    Run(Box<Options>),
    /// The list of options.
    Help,
    /// The version.
    Version,
}

/// A value of `K=V` as PerfTest reads it: a number when it looks like one, true and false, else
/// text.
pub fn argument_value(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => match text.parse::<i64>() {
            Ok(number) => i32::try_from(number).map_or(Value::I64(number), Value::I32),
            Err(_) => Value::LongString(text.to_owned().into()),
        },
    }
}
