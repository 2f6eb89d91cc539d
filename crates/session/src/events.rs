//! What a session tells the event exchange: of logins, its connection, its channels and consumers.
//!
//! Invariant: what was told to begin is told to end, once; a consumer that never began has no end.
//! Source: RabbitMQ's guide on the event exchange; names of the headers are RabbitMQ's.

use super::channel::{Consumer, State};
use super::{Host, Session};
use amqp::{ChannelId, Mechanism, Value};
use broker::topology::{BrokerEvent, Name};
use bytes::Bytes;

/// Who did it: the user of the connection.
const ACTOR: &str = "user_who_performed_action";

/// What a consumer that was told of is told by in the end, when its queue may be gone.
#[derive(Clone, Debug)]
pub(super) struct Told {
    queue: Name,
    vhost: Name,
    user: Bytes,
}

impl Session {
    /// The connection as RabbitMQ names it: both ends of its socket.
    pub(super) fn connection_name(&self) -> String {
        match self.local_address {
            Some(local) => format!("{} -> {local}", self.peer),
            None => format!("{} -> ?", self.peer),
        }
    }

    fn with_peer(&self, event: BrokerEvent) -> BrokerEvent {
        event
            .text("peer_host", self.peer.ip().to_string().as_bytes())
            .value("peer_port", Value::I32(self.peer.port().into()))
            .text("protocol", b"AMQP 0-9-1")
    }

    /// Somebody logged in, or was refused for a reason.
    #[cold]
    pub(super) fn tell_login(
        &self,
        key: &'static str,
        user: &[u8],
        mechanism: Mechanism,
        reason: Option<&str>,
        host: &impl Host,
    ) {
        let event = BrokerEvent::new(key).text("name", user).text("auth_mechanism", mechanism.name().as_bytes());
        let event = self.with_peer(event.text("connection_name", self.connection_name().as_bytes()));
        host.tell(match reason {
            Some(reason) => event.text("error", reason.as_bytes()),
            None => event,
        });
    }

    /// The connection was opened, or closed for a reason.
    #[cold]
    pub(super) fn tell_connection(&self, key: &'static str, reason: Option<&str>, host: &impl Host) {
        let event = BrokerEvent::new(key).text("name", self.connection_name().as_bytes());
        let event = self.with_peer(event.text("user", &self.user).text("vhost", &self.vhost_name));
        let event = event.text(ACTOR, &self.user);
        host.tell(match reason {
            Some(reason) => event.text("reason", reason.as_bytes()),
            None => event,
        });
    }

    /// A channel was opened or closed.
    #[cold]
    pub(super) fn tell_channel(&self, key: &'static str, channel: ChannelId, host: &impl Host) {
        let event =
            BrokerEvent::new(key).text("name", format!("{} ({})", self.connection_name(), channel.number()).as_bytes());
        let event = event.text("connection", self.connection_name().as_bytes());
        let event = event.value("number", Value::I32(channel.number().into()));
        let event = event.text("user", &self.user).text("vhost", &self.vhost_name);
        host.tell(event.text(ACTOR, &self.user));
    }
}

impl Consumer {
    fn event(&self, key: &'static str, told: &Told) -> BrokerEvent {
        let Told { queue, vhost, user } = told;
        BrokerEvent::new(key)
            .text("consumer_tag", self.tag.as_bytes())
            .text("queue", queue)
            .text("vhost", vhost)
            .text(ACTOR, user)
    }

    /// It gets messages from now on.
    #[cold]
    pub(super) fn tell_begin(&mut self, user: &Bytes, host: &impl Host) {
        let topology = host.topology();
        let Some(queue) = topology.queue(self.queue) else { return };
        let Some(vhost) = topology.vhost_of(queue.vhost) else { return };
        let told = Told { queue: queue.name.clone(), vhost: vhost.name.clone(), user: user.clone() };
        drop(topology);
        let event = self.event("consumer.created", &told);
        self.told = Some(Box::new(told));
        host.tell(
            event
                .flag("ack_required", !self.no_ack)
                .flag("exclusive", self.exclusive)
                .value("prefetch_count", Value::I32(self.prefetch.into())),
        );
    }

    /// It gets nothing more.
    #[cold]
    pub(super) fn tell_end(&self, host: &impl Host) {
        if let (Some(told), State::Active | State::Stopping) = (&self.told, self.state) {
            host.tell(self.event("consumer.deleted", told));
        }
    }
}
