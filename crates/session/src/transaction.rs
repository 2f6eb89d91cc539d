//! The publishes of a transactional channel, held until their commit.
//!
//! Invariant: what is held was checked when it came, so that an unknown exchange costs the channel
//! then and not at the commit; it keeps no read buffer alive, and has at most [`TX_BYTES_MAX`].
//! Routes are found at the commit.

use super::{Client, Cx, Host, Session, traits};
use amqp::{ChannelError, ChannelId, Deliveries, MethodId, Publish, Reply, ReplyCode};
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

/// A commit that was begun.
#[derive(Debug)]
pub(super) struct Commit {
    channel: ChannelId,
    held: std::vec::IntoIter<Publish>,
    settles: Vec<(amqp::Settlement, Deliveries)>,
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
        let held = transaction.held.into_iter();
        self.committing = Some(Box::new(Commit { channel: channel.id, held, settles }));
        self.go_on_committing(cx);
    }

    /// Hands on what is left of a commit, or as much of it as a turn may. No event is taken before
    /// its end, so there is one at a time, and its channel is there.
    pub(super) fn go_on_committing(&mut self, cx: &mut Cx<'_, impl Host>) {
        let Some(mut commit) = self.committing.take() else { return };
        let at = self.at(commit.channel);
        while !self.channels[at].failed {
            if self.work.is_enough() {
                self.committing = Some(commit);
                return;
            }
            let Some(publish) = commit.held.next() else {
                for (outcome, deliveries) in &commit.settles {
                    self.settle_all(at, deliveries, super::publish::outcome_of(*outcome), cx);
                }
                return cx.client.reply(commit.channel, Reply::Done);
            };
            let copies = traits::copies(&publish.properties);
            self.send_publish(at, publish, &copies, cx);
        }
    }

    /// Drops the publishes.
    pub(super) fn tx_rollback(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let dropped = std::mem::take(channel.transaction.as_mut().expect("tx.select came before"));
        self.transaction_bytes -= dropped.bytes;
        cx.client.reply(self.channels[at].id, Reply::Done);
    }
}
