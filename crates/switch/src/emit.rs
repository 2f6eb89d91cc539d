//! Messages of the broker's own, and to which partitions any message of a shard goes.
//!
//! Invariant: what the broker says of itself it says at most once: nobody waits for it, nothing
//! confirms it, and where no queue takes it it is gone.

use crate::surroundings::{Outsider, Surroundings};
use crate::switch::Switch;
use amqp::{Properties, Table, Value};
use broker::topology::{BrokerEvent, DurabilityLevel, NAME_BYTES_MAX, RouteRequest, RouteTarget};
use broker::{PartitionId, VhostId};
use bytes::Bytes;
use partition::command::Durability;
use partition::{Command, Level, Message, Publish, Target};
use session::PublishedFacts;
use smallvec::SmallVec;

/// Where the broker tells what happens on it, in the virtual host of the setting
/// `event_exchange_vhost`.
pub const EVENT_EXCHANGE: &str = "amq.rabbitmq.event";

/// Queues by partition.
pub(crate) type Groups = SmallVec<[(PartitionId, SmallVec<[Target; 1]>); 2]>;

/// The queues of a route by partition. Where the level is a choice, it is `chosen`.
pub(crate) fn by_partition(targets: &[RouteTarget], chosen: Level) -> Groups {
    let mut groups = Groups::new();
    for target in targets {
        let level = match target.durability {
            // Whoever waits for the confirm gives up its own copy with it, which a change of leaders must not lose.
            DurabilityLevel::Memory | DurabilityLevel::LeaderWritten | DurabilityLevel::Written => Level::Written,
            DurabilityLevel::LeaderSynced | DurabilityLevel::Synced | DurabilityLevel::Selective => chosen,
        };
        let at = Target { queue: target.queue, durability: Durability::Level(level), selective: None };
        match groups.iter_mut().find(|(id, _)| *id == target.partition) {
            Some((_, group)) => group.push(at),
            None => groups.push((target.partition, SmallVec::from_iter([at]))),
        }
    }
    groups
}

/// A message of the broker's own.
pub struct Emission<'a> {
    /// Where it goes.
    pub vhost: VhostId,
    /// Through which exchange.
    pub exchange: &'static str,
    /// With which routing key; one that is too long is cut.
    pub key: &'a [u8],
    /// Its headers.
    pub headers: &'a Table,
    /// Its body.
    pub body: Bytes,
}

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Publishes a message of the broker's own.
    pub fn emit(&self, emission: Emission<'_>, env: &impl Surroundings<Connection = C, Outsider = O>) {
        self.emit_as(emission, Properties::default(), env);
    }

    /// Tells the event exchange of something. Where it is not there, nobody asked.
    pub(crate) fn emit_event(&self, event: &BrokerEvent, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let Some(vhost) = env.event_vhost() else { return };
        let now_ms = env.wall_ms();
        let mut headers = event.headers.clone();
        headers.push("timestamp_in_ms", Value::I64(i64::try_from(now_ms).unwrap_or(i64::MAX)));
        let properties = Properties { timestamp: Some(now_ms / 1000), delivery_mode: Some(2), ..Properties::default() };
        let (key, body) = (event.key.as_bytes(), Bytes::new());
        self.emit_as(Emission { vhost, exchange: EVENT_EXCHANGE, key, headers: &headers, body }, properties, env);
    }

    fn emit_as(
        &self,
        emission: Emission<'_>,
        properties: Properties<'_>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let Emission { vhost, exchange, key, headers, body } = emission;
        let key = Bytes::copy_from_slice(&key[..key.len().min(NAME_BYTES_MAX)]);
        let encoded = headers.encode();
        let mut own = Vec::with_capacity(encoded.len() + 24);
        // A table's length is not part of its fields.
        Properties { headers: Some(&encoded[4..]), ..properties }.encode_to(&mut own);
        let properties = own;
        let mut targets = Vec::new();
        {
            let topology = env.topology();
            let facts = PublishedFacts::new(&properties, || env.dice());
            let request = RouteRequest { vhost, exchange: exchange.as_bytes(), keys: &[&key[..]], facts: &facts };
            if topology.route(&request, &mut targets).is_err() {
                return;
            }
        }
        let exchange = Bytes::from_static(exchange.as_bytes());
        let message = Message { exchange, routing_key: key, properties: properties.into(), body };
        for (partition, targets) in by_partition(&targets, Level::Written) {
            let channel = broker::ChannelKey::NOBODY;
            let publish = Publish {
                channel,
                publish_seq: 0,
                term: 0,
                targets,
                delay_ms: 0,
                message: message.clone(),
                more: None,
            };
            self.push(partition, Command::Publish(publish));
        }
    }
}
