//! The session of a connection: turns what the AMQP machine says into checks, routes and commands,
//! and what partitions answer into calls on the machine. Sans-io: events of the protocol, effects
//! of partitions and time go in; commands and answers come out, by the [`Host`] that comes along
//! with every call.
//!
//! Invariant: it decides nothing. Whether a request is lawful the topology says, what becomes of a
//! message its partition says, and what goes on the wire the machine says; the session knows who
//! asked whom. A channel has at most one request under way, because the machine holds back what
//! follows it.
//!
//! In reading order: what a session is given and hands out (`host`), what it says to its client
//! (`client`), the session itself (`session`), a channel and its consumers (`channel`), the road of
//! a publish (`publish`, with what a message's properties ask for in `traits`), requests
//! (`declare`, `consume`, and how partitions are asked for them in `asking`), a channel-wide
//! prefetch (`credit`), direct reply-to (`reply_to`), transactions (`transaction`), consumers that
//! hold a message for too long (`timeouts`), what the broker writes into messages (`stamps`) and
//! tells of them (`firehose`), which of them are traced (`trace_context`) and what is told of those
//! (`span`, `spans`), what is told of all this (`report`), of what waits for too long
//! (`waiting`), and of who changed what or was refused (`audit`).
//!
//! What the sessions of a node have in common stands beside them: who is let in (`logins`, by a
//! token `token`, `occupancy`), what they hold together (`unfinished`, `histories`), and what they counted
//! (`tally`; by channel in `counts`, by exchange and queue in `ledger`). Queues go by one road, whoever asks (`deletion`).

mod asking;
mod audit;
mod channel;
mod client;
mod consume;
mod consumers;
mod continuation;
mod counts;
mod credit;
mod declare;
mod deletion;
mod events;
mod facts;
mod farewell;
mod firehose;
mod histories;
mod history;
mod host;
mod ledger;
mod logins;
mod names;
mod occupancy;
mod probe;
mod publish;
mod reattach;
mod refusal;
mod reply_to;
pub mod report;
mod routes;
mod session;
mod span;
mod spans;
mod stamps;
mod tally;
mod timeouts;
mod token;
mod trace_context;
mod traits;
mod transaction;
mod unfinished;
mod waiting;
mod work;

pub use client::Client;
pub use counts::ChannelTraffic;
pub use deletion::{Asker, Deleter, Deletion, Deletions};
pub use facts::PublishedFacts;
pub use histories::Histories;
pub use host::{Admitted, Common, DeleteQueue, Host, PasswordCheck, Settings, TopologyKnown, Verdict};
pub use ledger::{Counted, ExchangeCounted, Ledger, QueueTraffic, VhostCounted};
pub use logins::{LoginLimits, LoginOver, Logins, Try, network};
pub use occupancy::{Occupancy, Taken};
pub use publish::SYNC_EXCHANGE;
pub use session::{Cx, Peer, Session};
pub use span::{MessageFacts, Moment, Operation, Span};
pub use stamps::{Stamp, Stamps};
pub use tally::{Count, MessageSizes, Published, Tally, Traffic};
pub use token::is_token;
pub use trace_context::{Sampler, TraceContext, publish_span_id};
pub use unfinished::{Limits, Sums};
pub use work::TURN_MAX;

pub(crate) use session::NEVER;
