//! What `x-recent-history` exchanges remember, and how a new binding gets it.
//!
//! Invariant: a queue has the history before its client hears that it is bound, as far as it is not
//! forgotten by then. A binding that was there already brings nothing, as in RabbitMQ. A turn sends
//! a part of a history and goes on with the next turn: whoever binds a thousand times has others
//! wait for none of them.

use super::facts::PublishedFacts;
use super::publish::{fill_route, send};
use super::routes::Route;
use super::traits;
use super::{Client, Cx, Host, Session};
use crate::histories::Remembered;
use amqp::{Publish, Reply};
use broker::ChannelKey;
use broker::topology::{Binding, HistoryId, Kind, RouteRequest};
use bytes::Bytes;
use std::ops::Range;

/// The header that keeps a message out of every history.
const NO_STORE_HEADER: &[u8] = b"x-recent-history-no-store";

/// So many messages, and about so many bytes, a connection sends of histories in a turn: a
/// millisecond or less.
const A_TURN: usize = 256;
const A_TURN_BYTES: usize = 1 << 20;

/// A binding that waits for its decision and brings a history with it.
#[derive(Debug)]
pub(super) struct NewBinding {
    history: HistoryId,
    destination_kind: Kind,
    destination: Bytes,
}

/// A history on its way to where a new binding leads.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Whose request the binding was.
    channel: ChannelKey,
    number: u16,
    binding: NewBinding,
    /// The messages that were not sent yet.
    left: Range<u64>,
}

impl Session {
    /// Remembers a message in the histories on its way.
    pub(super) fn remember(histories: &[(HistoryId, u32)], publish: &Publish, cx: &Cx<'_, impl Host>) {
        if traits::is_true(&publish.properties, NO_STORE_HEADER) {
            return;
        }
        let host = cx.host;
        for (exchange, length) in histories {
            let all = || host.topology().exchanges().filter_map(|exchange| exchange.history()).collect();
            host.common().histories.remember(*exchange, *length, Remembered::of(publish), all);
        }
    }

    /// The history that a new binding brings with it.
    pub(super) fn history_of(&self, binding: &Binding, cx: &Cx<'_, impl Host>) -> Option<NewBinding> {
        let topology = cx.host.topology();
        let history = topology.find_exchange(self.vhost, &binding.source).and_then(|source| source.history())?;
        let destination = Bytes::copy_from_slice(&binding.destination);
        Some(NewBinding { history, destination_kind: binding.destination_kind, destination })
    }

    /// A new binding is there: its client hears of it once the history that there is now was sent
    /// to where it leads.
    pub(super) fn replay(&mut self, at: usize, binding: NewBinding, cx: &mut Cx<'_, impl Host>) {
        let left = cx.host.common().histories.of(binding.history);
        let channel = &self.channels[at];
        if left.is_empty() {
            return cx.client.reply(channel.id, Reply::Done);
        }
        self.replays.push_back(Replay { channel: channel.key, number: channel.id.number(), binding, left });
        self.work.end();
    }

    /// Sends what a turn may of the histories that wait. No event is taken before their end.
    pub(super) fn go_on_replaying(&mut self, cx: &mut Cx<'_, impl Host>) {
        let (mut messages, mut bytes) = (A_TURN, A_TURN_BYTES);
        while let Some(mut replay) = self.replays.pop_front() {
            let is_there = |at: &usize| self.channels[*at].key == replay.channel && !self.channels[*at].failed;
            let Some(at) = self.place(replay.number).ok().filter(is_there) else { continue };
            let taken = cx.host.common().histories.take(replay.binding.history, &mut replay.left, messages, bytes);
            messages -= taken.len();
            bytes = bytes.saturating_sub(taken.iter().map(|message| message.body.len()).sum());
            self.send_history(at, &replay.binding, taken, cx);
            if replay.left.is_empty() {
                cx.client.reply(self.channels[at].id, Reply::Done);
            } else {
                self.replays.push_front(replay);
            }
            if messages == 0 || bytes == 0 {
                break;
            }
        }
        if !self.replays.is_empty() {
            self.work.end();
        }
    }

    fn send_history(&mut self, at: usize, binding: &NewBinding, taken: Vec<Remembered>, cx: &mut Cx<'_, impl Host>) {
        for message in taken {
            let route = self.replay_route(binding, &message, cx);
            self.published |= route.shards;
            let Remembered { exchange, routing_key, properties, body } = message;
            let publish = Publish {
                channel: self.channels[at].id,
                exchange,
                routing_key,
                mandatory: false,
                properties,
                body,
                publish_seq: 0,
                more: None,
            };
            if let Err(error) = send(&route, ChannelKey::NOBODY, &publish, cx) {
                // Its publisher was told the same if any queue was bound then; this client did
                // nothing wrong.
                tracing::debug!(error = %error.text, "a remembered message does not suit the queue");
            }
        }
    }

    fn replay_route(&mut self, binding: &NewBinding, message: &Remembered, cx: &Cx<'_, impl Host>) -> Route {
        let facts = PublishedFacts::new(&message.properties, || cx.host.dice());
        // To a queue it goes by the default exchange, whatever its own key; to an exchange with
        // that key.
        let (exchange, key) = match binding.destination_kind {
            Kind::Queue => (&[][..], &binding.destination[..]),
            Kind::Exchange => (&binding.destination[..], &message.routing_key[..]),
        };
        let request = RouteRequest { vhost: self.vhost, exchange, keys: &[key], facts: &facts };
        let topology = cx.host.topology();
        let mut targets = std::mem::take(&mut self.targets);
        let mut route = Route::default();
        // An end that went since the decision gets nothing.
        if topology.route(&request, &mut targets).is_ok() {
            fill_route(&mut route, &targets, &topology, cx);
        }
        targets.clear();
        self.targets = targets;
        route
    }
}
