//! What `x-recent-history` exchanges remember, and how a new binding gets it.
//!
//! Invariant: a queue has the history before its client hears that it is bound. A binding that was there already brings
//! nothing, as in RabbitMQ.

use super::channel::Pending;
use super::facts::PublishedFacts;
use super::publish::{fill_route, send};
use super::routes::Route;
use super::traits;
use super::{Cx, Host, Session};
use crate::histories::Remembered;
use amqp::Publish;
use broker::ChannelKey;
use broker::topology::{Binding, HistoryId, Kind, RouteRequest};
use bytes::Bytes;

/// The header that keeps a message out of every history.
const NO_STORE_HEADER: &[u8] = b"x-recent-history-no-store";

/// A binding that waits for its decision and brings a history with it.
#[derive(Debug)]
pub(super) struct NewBinding {
    history: HistoryId,
    destination_kind: Kind,
    destination: Bytes,
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

    /// What the channel waits for while a binding is decided.
    pub(super) fn pending_binding(&self, binding: &Binding, cx: &Cx<'_, impl Host>) -> Pending {
        let topology = cx.host.topology();
        match topology.find_exchange(self.vhost, &binding.source).and_then(|source| source.history()) {
            None => Pending::Change,
            Some(history) => Pending::Bound(NewBinding {
                history,
                destination_kind: binding.destination_kind,
                destination: Bytes::copy_from_slice(&binding.destination),
            }),
        }
    }

    /// Sends a history to where a new binding leads.
    pub(super) fn replay(&mut self, at: usize, binding: &NewBinding, cx: &mut Cx<'_, impl Host>) {
        for message in cx.host.common().histories.of(binding.history) {
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
            };
            if let Err(error) = send(&route, ChannelKey::NOBODY, &publish, cx) {
                // Its publisher was told the same if any queue was bound then; this client did nothing wrong.
                tracing::debug!(error = %error.text, "a remembered message does not suit the queue");
            }
        }
    }

    fn replay_route(&mut self, binding: &NewBinding, message: &Remembered, cx: &Cx<'_, impl Host>) -> Route {
        let facts = PublishedFacts::new(&message.properties, || cx.host.dice());
        // To a queue it goes by the default exchange, whatever its own key; to an exchange with that key.
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
