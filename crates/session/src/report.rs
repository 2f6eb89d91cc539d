//! What a node tells of its connections, as data, and what a session tells of itself.
//!
//! Invariant: a report is a copy of one moment of one shard; reports of two shards are of two
//! moments, and nothing follows from comparing them.

use super::channel::{Channel, Consumer, State};
use super::counts::ChannelTraffic;
use super::ledger::QueueTraffic;
use super::{Client, Host, Session};
use amqp::{Table, Value};
use broker::topology::Name;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use core::net::SocketAddr;
use std::sync::Arc;

/// A connection of this node, as long as the process lives; a number is not given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionNumber(pub u64);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// It may be used.
    Running,
    /// It publishes, and an alarm holds it back.
    Blocked,
    /// It is about to end.
    Closing,
}

/// What a client's certificate says, in RabbitMQ's form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerCertificate {
    /// Whose it is, as `CN=client,O=Example`.
    pub subject: Box<str>,
    /// Whose authority made it.
    pub issuer: Box<str>,
    /// From when to when it counts.
    pub validity: Box<str>,
}

/// What a connection is encrypted with, in RabbitMQ's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSeen {
    /// As `tlsv1.3`.
    pub protocol: &'static str,
    /// As `ecdhe_rsa`; `any` in TLS 1.3, whose suites do not say it.
    pub key_exchange: &'static str,
    /// As `aes_256_gcm`.
    pub cipher: &'static str,
    /// `aead`: the cipher authenticates too.
    pub hash: &'static str,
    /// The certificate that the client showed; one for all connections that show the same.
    pub certificate: Option<Arc<PeerCertificate>>,
}

/// What the socket's side of a connection knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Our end of the socket; `None` if it broke.
    pub local_address: Option<SocketAddr>,
    /// Its TLS; `None`: it speaks without.
    pub tls: Option<TlsSeen>,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
    /// When it came, milliseconds since the epoch.
    pub connected_ms: u64,
}

/// A connection whose virtual host is open.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionReport {
    /// Which one it is.
    pub number: ConnectionNumber,
    /// The client's address; behind a proxy the one that the proxy names.
    pub peer: SocketAddr,
    /// Who logged in.
    pub user: Bytes,
    /// The name of its virtual host.
    pub vhost: Bytes,
    /// What the client says about itself, as it came; decoding it is no work for a shard.
    pub client_properties: Bytes,
    /// How it logged in.
    pub mechanism: &'static str,
    /// What it is doing.
    pub state: ConnectionState,
    /// The negotiated limit; 0 is none.
    pub frame_max: u32,
    /// The negotiated limit; 0 is none.
    pub channel_max: u16,
    /// The negotiated heartbeat interval; 0 is none.
    pub heartbeat_s: u64,
    /// Its channels, by number.
    pub channels: Vec<ChannelReport>,
    /// What its socket saw.
    pub seen: Seen,
}

impl ConnectionReport {
    /// What the client says about itself.
    pub fn client_properties(&self) -> Table {
        Table::decode(&self.client_properties).unwrap_or_default()
    }
}

/// How much went over a connection, and over its channels by their numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionFigures {
    /// Which one it is.
    pub number: ConnectionNumber,
    /// Its virtual host.
    pub vhost: VhostId,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
    /// By channel, in the order of their numbers.
    pub channels: Vec<ChannelFigures>,
}

/// How much went over a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelFigures {
    /// Its number on the connection.
    pub number: u16,
    /// What went over it.
    pub traffic: ChannelTraffic,
    /// Messages published, by exchange: the first few.
    pub publishes: Vec<(Name, u64)>,
    /// What came out of queues: the first few.
    pub deliveries: Vec<(QueueId, QueueTraffic)>,
}

/// A channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelReport {
    /// Its number on the connection.
    pub number: u16,
    /// It is in confirm mode.
    pub confirms: bool,
    /// It is transactional.
    pub transactional: bool,
    /// Deliveries that are not settled.
    pub unacked: u64,
    /// Publishes that are not confirmed.
    pub unconfirmed: u64,
    /// The prefetch of consumers to come; 0 is no limit.
    pub prefetch: u16,
    /// The prefetch of the channel as a whole; 0 is no limit.
    pub global_prefetch: u64,
    /// Its consumers, in the order in which they came.
    pub consumers: Vec<ConsumerReport>,
    /// What the client waits for on it.
    pub waiting: Vec<WaitingReport>,
}

/// Something that a client waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingReport {
    /// AMQP's name of what it sent.
    pub method: &'static str,
    /// The queue that it is about, if it is about one.
    pub queue: Option<Bytes>,
    /// The partitions that have to answer; empty where none is asked.
    pub partitions: Vec<PartitionId>,
    /// What has to happen: an answer of the partition, a decision about the topology, confirms.
    pub waits_for: &'static str,
    /// For how long it has waited. A publish without a confirm: since it was seen first, which is
    /// at most 30 s later.
    pub waited_ms: u64,
}

/// A consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerReport {
    /// By what its queue's leader knows it.
    pub key: ConsumerKey,
    /// Its tag.
    pub tag: Bytes,
    /// Its queue.
    pub queue: QueueId,
    /// Its deliveries need no ack.
    pub no_ack: bool,
    /// It is the only one of its queue.
    pub exclusive: bool,
    /// Its own prefetch; 0 is no limit.
    pub prefetch: u16,
    /// Higher goes first.
    pub priority: i32,
    /// What the client gave at `basic.consume`, as it came; empty where that is nothing, or too much to be kept.
    pub arguments: Bytes,
}

impl ConsumerReport {
    /// What the client gave at `basic.consume`: of more than 512 B only a priority that is not 0.
    pub fn arguments(&self) -> Table {
        let mut table = Table::decode(&self.arguments).unwrap_or_default();
        if table.is_empty() && self.priority != 0 {
            table.push("x-priority", Value::I32(self.priority));
        }
        table
    }
}

impl Session {
    /// How much went over the connection, `received_bytes` and `sent_bytes` of it by its socket, and
    /// over its channels; nothing before the virtual host is open. To be asked after
    /// [`Session::take_counts`].
    pub fn figures(&self, received_bytes: u64, sent_bytes: u64) -> Option<ConnectionFigures> {
        self.occupied.as_ref()?;
        let channels = self.channels.iter().map(|channel| channel.figures()).collect();
        Some(ConnectionFigures { number: self.number(), vhost: self.vhost, received_bytes, sent_bytes, channels })
    }

    /// The connection, its channels and consumers; nothing before its virtual host is open.
    pub fn report(&self, client: &impl Client, seen: Seen, host: &impl Host) -> Option<ConnectionReport> {
        self.occupied.as_ref()?;
        let state = match (client.is_closing(), client.is_blocked()) {
            (true, _) => ConnectionState::Closing,
            (false, true) => ConnectionState::Blocked,
            (false, false) => ConnectionState::Running,
        };
        Some(ConnectionReport {
            number: self.number(),
            peer: self.peer,
            user: self.user.clone(),
            vhost: self.vhost_name.clone(),
            client_properties: Bytes::copy_from_slice(&self.client_properties),
            mechanism: client.mechanism().map_or("", |mechanism| mechanism.name()),
            state,
            frame_max: client.frame_max(),
            channel_max: client.channel_max(),
            heartbeat_s: client.heartbeat_ms() / 1000,
            channels: self
                .channels
                .iter()
                .map(|channel| channel.report(client, self.waiting(channel, client, host)))
                .collect(),
            seen,
        })
    }
}

impl Channel {
    fn figures(&self) -> ChannelFigures {
        ChannelFigures {
            number: self.id.number(),
            traffic: self.counts.traffic,
            publishes: self.counts.exchanges().to_vec(),
            deliveries: self.counts.queues().to_vec(),
        }
    }

    fn report(&self, client: &impl Client, waiting: Vec<WaitingReport>) -> ChannelReport {
        let is_told = |consumer: &&Consumer| matches!(consumer.state, State::Active | State::Starting);
        ChannelReport {
            number: self.id.number(),
            confirms: client.is_confirming(self.id),
            transactional: self.transaction.is_some(),
            unacked: client.unsettled_count(self.id),
            unconfirmed: client.unconfirmed(self.id),
            prefetch: self.prefetch,
            global_prefetch: self.credit.as_ref().and_then(|credit| credit.limit()).unwrap_or(0),
            consumers: self.consumers.iter().filter(is_told).map(|consumer| consumer.report(self.key)).collect(),
            waiting,
        }
    }
}

impl Consumer {
    fn report(&self, channel: ChannelKey) -> ConsumerReport {
        ConsumerReport {
            key: ConsumerKey { channel, number: self.number },
            tag: Bytes::copy_from_slice(self.tag.as_bytes()),
            queue: self.queue,
            no_ack: self.no_ack,
            exclusive: self.exclusive,
            prefetch: self.prefetch,
            priority: self.priority,
            arguments: self.arguments.as_deref().map(Bytes::copy_from_slice).unwrap_or_default(),
        }
    }
}
