//! The publishes of a transactional channel, held until their commit.
//!
//! Invariant: what is held was checked when it came, so that an unknown exchange costs the channel
//! then and not at the commit; it keeps no read buffer alive, and has at most [`TX_BYTES_MAX`].
//! Routes are found at the commit.

use super::{Client, Cx, Host, Session};
use amqp::{ChannelError, Deliveries, MethodId, Publish, Reply, ReplyCode};
use bytes::Bytes;

/// Bytes of messages that one transaction may hold: two of the largest.
pub(super) const TX_BYTES_MAX: usize = 32 << 20;

/// What the fields of a held publish cost beside its bytes.
const PUBLISH_OVERHEAD_BYTES: usize = 256;

/// The publishes of the transaction under way.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    held: Vec<Publish>,
    bytes: usize,
}

impl Transaction {
    /// Keeps a publish; how many bytes that is. Errors: 406 when the transaction has more bytes
    /// than a broker keeps for one.
    fn hold(&mut self, publish: Publish) -> Result<usize, ChannelError> {
        let Publish { exchange, routing_key, properties, body, .. } = &publish;
        let bytes = exchange.len() + routing_key.len() + properties.len() + body.len() + PUBLISH_OVERHEAD_BYTES;
        if self.bytes + bytes > TX_BYTES_MAX {
            let text = format!("a transaction holds at most {TX_BYTES_MAX} bytes");
            return Err(ChannelError { code: ReplyCode::PreconditionFailed, text, method: MethodId::BASIC_PUBLISH });
        }
        self.bytes += bytes;
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        self.held.push(Publish {
            exchange: copy(exchange),
            routing_key: copy(routing_key),
            properties: copy(properties),
            body: copy(body),
            ..publish
        });
        Ok(bytes)
    }

    /// What it holds.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Session {
    /// From here on publishes of the channel wait for a commit.
    pub(super) fn tx_select(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        channel.transaction.get_or_insert_default();
        cx.client.reply(channel.id, Reply::Done);
    }

    /// Holds a publish that has passed every check but its route.
    pub(super) fn hold_publish(&mut self, at: usize, publish: Publish, cx: &mut Cx<'_, impl Host>) {
        let transaction = self.channels[at].transaction.as_mut().expect("the caller found one");
        match transaction.hold(publish) {
            Ok(bytes) => self.transaction_bytes += bytes,
            Err(error) => self.fail(at, error, cx),
        }
    }

    /// Hands on the publishes, then the acks.
    pub(super) fn tx_commit(
        &mut self,
        at: usize,
        settles: Vec<(amqp::Settlement, Deliveries)>,
        cx: &mut Cx<'_, impl Host>,
    ) {
        let channel = &mut self.channels[at];
        let transaction = std::mem::take(channel.transaction.as_mut().expect("tx.select came before"));
        self.transaction_bytes -= transaction.bytes;
        let settles = settles
            .into_iter()
            .map(|(outcome, deliveries)| (super::publish::outcome_of(outcome), deliveries))
            .collect();
        self.begin(at, transaction.held, settles, cx);
    }

    /// Drops the publishes.
    pub(super) fn tx_rollback(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let dropped = std::mem::take(channel.transaction.as_mut().expect("tx.select came before"));
        self.transaction_bytes -= dropped.bytes;
        cx.client.reply(self.channels[at].id, Reply::Done);
    }
}
