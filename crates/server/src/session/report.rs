//! What a session tells of itself to whoever looks after the broker.

use super::Session;
use super::channel::{Channel, Consumer, State};
use crate::report::{ChannelReport, ConnectionReport, ConnectionState, ConsumerReport, Seen, WaitingReport};
use crate::shard::thread::Local;
use amqp::Connection;
use bytes::Bytes;

impl Session {
    /// The connection, its channels and consumers; nothing before its virtual host is open.
    pub(crate) fn report(&self, amqp: &Connection, seen: Seen, local: &Local) -> Option<ConnectionReport> {
        self.occupied.as_ref()?;
        let state = match (amqp.is_closing(), amqp.is_blocked()) {
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
            mechanism: amqp.mechanism().map_or("", |mechanism| mechanism.name()),
            state,
            frame_max: amqp.frame_max(),
            channel_max: amqp.channel_max(),
            heartbeat_s: amqp.heartbeat_ms() / 1000,
            channels: self
                .channels
                .iter()
                .map(|channel| channel.report(amqp, self.waiting(channel, amqp, local)))
                .collect(),
            seen,
        })
    }
}

impl Channel {
    fn report(&self, amqp: &Connection, waiting: Vec<WaitingReport>) -> ChannelReport {
        let is_told = |consumer: &&Consumer| matches!(consumer.state, State::Active | State::Starting);
        ChannelReport {
            number: self.id.number(),
            confirms: amqp.is_confirming(self.id),
            transactional: self.transaction.is_some(),
            unacked: amqp.unsettled_count(self.id),
            unconfirmed: amqp.unconfirmed(self.id),
            prefetch: self.prefetch,
            global_prefetch: self.credit.as_ref().map_or(0, |credit| credit.limit()),
            consumers: self.consumers.iter().filter(is_told).map(Consumer::report).collect(),
            waiting,
        }
    }
}

impl Consumer {
    fn report(&self) -> ConsumerReport {
        ConsumerReport {
            tag: Bytes::copy_from_slice(self.tag.as_bytes()),
            queue: self.queue,
            no_ack: self.no_ack,
            exclusive: self.exclusive,
            prefetch: self.prefetch,
            priority: self.priority,
        }
    }
}
