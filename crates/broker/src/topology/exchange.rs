//! Exchanges and their routing tables.
//!
//! Invariant: an exchange's table holds exactly the bindings of which it is the source.

use amqp::Table;
use hashbrown::HashTable;

use super::command::DeclareExchange;
use super::destination::{Destination, Destinations};
use super::exchange_type::{self, ExchangeType, TypeSettings};
use super::hash;
use super::headers::HeadersTable;
use super::name::{NAME_BYTES_MAX, Name};
use super::refusal::{Kind, Refusal, Resource};
use super::selector::SelectorTable;
use super::spread::SpreadTable;
use super::topic::TopicTrie;
use super::vhost::BytesByVhost;
use super::{arguments, encoding};
use crate::ids::VhostId;

/// Replicated exchanges, all virtual hosts together; and as many again that live on one node only.
pub const EXCHANGES_MAX: usize = 1 << 20;

/// The exchanges that every virtual host has from its first moment: name, type, internal.
pub(super) const PREDECLARED: [(&str, ExchangeType, bool); 7] = [
    ("", ExchangeType::Direct, false),
    ("amq.direct", ExchangeType::Direct, false),
    ("amq.fanout", ExchangeType::Fanout, false),
    ("amq.headers", ExchangeType::Headers, false),
    ("amq.match", ExchangeType::Headers, false),
    ("amq.rabbitmq.trace", ExchangeType::Topic, true),
    ("amq.topic", ExchangeType::Topic, false),
];

/// The routing table of an exchange, by type.
#[derive(Debug)]
pub(super) enum Router {
    Direct(DirectTable),
    Fanout(Destinations),
    Topic(Box<TopicTrie>),
    Headers(HeadersTable),
    /// By expressions over the message's headers.
    Selectors(SelectorTable),
    /// One by the hash of the message, weighted.
    Hash(SpreadTable),
    /// One by the hash of the routing key.
    Modulus(SpreadTable),
    /// Any one.
    Random(SpreadTable),
}

/// Destinations by routing key.
#[derive(Debug, Default)]
pub(super) struct DirectTable(HashTable<(Name, Destinations)>);

impl Router {
    fn new(kind: ExchangeType) -> Self {
        match kind {
            ExchangeType::Direct => Router::Direct(DirectTable::default()),
            // One that only delays is made anew as the type that it names.
            ExchangeType::Fanout | ExchangeType::RecentHistory | ExchangeType::DelayedMessage => {
                Router::Fanout(Destinations::default())
            }
            ExchangeType::Topic => Router::Topic(Box::default()),
            ExchangeType::Headers => Router::Headers(HeadersTable::default()),
            ExchangeType::JmsTopic => Router::Selectors(SelectorTable::default()),
            ExchangeType::ConsistentHash => Router::Hash(SpreadTable::default()),
            ExchangeType::ModulusHash => Router::Modulus(SpreadTable::default()),
            // Every queue that a local one may be bound to is on this node as long as there is one
            // node.
            ExchangeType::Random | ExchangeType::LocalRandom => Router::Random(SpreadTable::default()),
        }
    }

    /// Whether its choice depends on what destinations are called.
    pub(super) fn asks_for_identity(&self) -> bool {
        matches!(self, Router::Hash(_) | Router::Modulus(_) | Router::Random(_))
    }

    /// Adds a binding; `identity` is the hash of the destination's kind and name where the router
    /// asks for it.
    pub(super) fn add(&mut self, key: &Name, arguments: &[u8], destination: Destination, identity: u64) {
        match self {
            Router::Direct(table) => table.add(key, destination),
            Router::Fanout(all) => all.add(destination),
            Router::Topic(trie) => trie.add(key, destination),
            Router::Headers(table) => table.add(arguments, destination),
            Router::Selectors(table) => table.add(arguments, destination),
            Router::Hash(table) => table.add(destination, identity, binding_weight(key)),
            Router::Modulus(table) | Router::Random(table) => table.add(destination, identity, 1),
        }
    }

    /// Takes away what `add` added.
    pub(super) fn remove(&mut self, key: &Name, arguments: &[u8], destination: Destination, identity: u64) {
        match self {
            Router::Direct(table) => table.remove(key, destination),
            Router::Fanout(all) => all.remove(destination),
            Router::Topic(trie) => trie.remove(key, destination),
            Router::Headers(table) => table.remove(arguments, destination),
            Router::Selectors(table) => table.remove(arguments, destination),
            Router::Hash(table) => table.remove(destination, identity, binding_weight(key)),
            Router::Modulus(table) | Router::Random(table) => table.remove(destination, identity, 1),
        }
    }
}

fn binding_weight(key: &[u8]) -> u32 {
    exchange_type::weight(key).expect("the check of the binding refuses a key that is no weight")
}

impl DirectTable {
    fn add(&mut self, key: &Name, destination: Destination) {
        let hash = hash::of_name(0, key);
        if let Some((_, destinations)) = self.0.find_mut(hash, |(k, _)| k == key) {
            destinations.add(destination);
            return;
        }
        let mut destinations = Destinations::default();
        destinations.add(destination);
        self.0.insert_unique(hash, (key.clone(), destinations), |(k, _)| hash::of_name(0, k));
    }

    fn remove(&mut self, key: &Name, destination: Destination) {
        let found = self.0.find_entry(hash::of_name(0, key), |(k, _)| k == key);
        let mut entry = found.map_err(|_| ()).expect("only what was added is removed");
        entry.get_mut().1.remove(destination);
        if entry.get().1.is_empty() {
            entry.remove();
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Destinations> {
        self.0.find(hash::of_name(0, key), |(k, _)| **k == *key).map(|(_, destinations)| destinations)
    }
}

/// One exchange.
#[derive(Debug)]
pub struct Exchange {
    /// Its virtual host.
    pub vhost: VhostId,
    /// Its name; empty for the default exchange.
    pub name: Name,
    /// How it routes.
    pub kind: ExchangeType,
    /// Whether it survives a restart; an exchange that is not durable lives on this node only.
    pub durable: bool,
    /// Whether it goes when its last binding goes.
    pub auto_delete: bool,
    /// Whether clients may not publish to it, only bindings lead to it.
    pub internal: bool,
    /// Whether every node knows it though it is not durable.
    pub is_shared: bool,
    /// The arguments of its declare.
    pub arguments: Table,
    /// Where messages go that match none of its bindings: `alternate-exchange`.
    pub(super) alternate: Option<Name>,
    /// The policy that holds for it, kept so that nobody matches its name again.
    pub(super) policy: Option<Name>,
    /// The same by policy, which holds where the declare said nothing.
    pub(super) policy_alternate: Option<Name>,
    pub(super) settings: TypeSettings,
    /// The topology's version when it came: tells it from another of its name.
    pub(super) created: u64,
    pub(super) router: Router,
    /// Places of the bindings that leave here and that arrive here.
    pub(super) outgoing: Vec<u32>,
    pub(super) incoming: Vec<u32>,
    /// How many of `outgoing` are replicated.
    pub(super) outgoing_replicated: usize,
}

impl Exchange {
    pub(super) fn new(vhost: VhostId, name: Name, kind: ExchangeType) -> Self {
        Self {
            vhost,
            name,
            kind,
            durable: true,
            auto_delete: false,
            internal: false,
            is_shared: false,
            arguments: Table::new(),
            alternate: None,
            policy: None,
            policy_alternate: None,
            settings: TypeSettings::default(),
            created: 0,
            router: Router::new(kind),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            outgoing_replicated: 0,
        }
    }

    /// The exchange of a declare whose arguments meant `meaning`.
    pub(super) fn declared(declare: &DeclareExchange, meaning: Meaning, created: u64) -> Self {
        Self {
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            is_shared: declare.is_shared,
            arguments: encoding::owned(&declare.arguments),
            alternate: meaning.alternate,
            router: Router::new(meaning.settings.routes_as.unwrap_or(declare.kind)),
            settings: meaning.settings,
            created,
            ..Self::new(declare.vhost, declare.name.clone(), declare.kind)
        }
    }

    /// How it chooses among its bindings: its type, or the one that a delayed exchange names.
    pub(super) fn routes_as(&self) -> ExchangeType {
        self.settings.routes_as.unwrap_or(self.kind)
    }

    /// Whether only this node knows it: it is in no log and no snapshot.
    pub fn is_local(&self) -> bool {
        !self.durable && !self.is_shared
    }

    /// How many bindings leave here, those of this node only included.
    pub fn binding_count(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether it came with its virtual host and is in no snapshot.
    pub(super) fn is_predeclared(&self) -> bool {
        PREDECLARED.iter().any(|(name, _, _)| name.as_bytes() == &*self.name)
    }
}

/// What the arguments of a declare mean.
#[derive(Debug)]
pub(super) struct Meaning {
    pub(super) alternate: Option<Name>,
    pub(super) settings: TypeSettings,
}

/// Reads the arguments of a declare; those that mean nothing to its type are stored as RabbitMQ
/// stores them, and stay outside equivalence. Errors: 406 with RabbitMQ's texts.
pub(super) fn meaning(kind: ExchangeType, resource: Resource<'_>, table: &Table) -> Result<Meaning, Refusal> {
    let alternate = match table.get(ALTERNATE_EXCHANGE) {
        None => None,
        Some(amqp::Value::LongString(name)) if name.len() <= NAME_BYTES_MAX => Some(Name::new(name)),
        // No exchange has such a name, so RabbitMQ too finds none when a message gets there.
        Some(amqp::Value::LongString(_)) => None,
        Some(other) => return Err(arguments::wrong_name_type(resource, ALTERNATE_EXCHANGE, other)),
    };
    Ok(Meaning { alternate, settings: exchange_type::settings(kind, resource, table)? })
}

const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

/// A redeclare against what exists. Errors: 406 that names the first difference, in RabbitMQ's
/// order.
pub(super) fn check_equivalent(
    exchange: &Exchange,
    resource: Resource<'_>,
    kind: ExchangeType,
    [durable, auto_delete, internal]: [bool; 3],
    table: &Table,
) -> Result<(), Refusal> {
    let differs = |key: &str, received: &str, current: &str| {
        Err(Refusal::inequivalent(resource, key, &format!("'{received}'"), &format!("'{current}'")))
    };
    if kind != exchange.kind {
        return differs("type", kind.word(), exchange.kind.word());
    }
    let flags = [
        ("durable", durable, exchange.durable),
        ("auto_delete", auto_delete, exchange.auto_delete),
        ("internal", internal, exchange.internal),
    ];
    if let Some((key, received, current)) = flags.into_iter().find(|(_, received, current)| received != current) {
        return differs(key, &received.to_string(), &current.to_string());
    }
    arguments::check_same(
        resource,
        ALTERNATE_EXCHANGE,
        exchange.arguments.get(ALTERNATE_EXCHANGE),
        table.get(ALTERNATE_EXCHANGE),
    )
}

/// All exchanges, found by virtual host and name.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    slots: slab::Slab<Exchange>,
    by_name: HashTable<u32>,
    local_count: usize,
    /// What their arguments take.
    pub(super) argument_bytes: BytesByVhost,
}

impl Exchanges {
    pub(super) fn find(&self, vhost: VhostId, name: &[u8]) -> Option<usize> {
        let is_it = |&at: &u32| {
            let exchange = &self.slots[at as usize];
            exchange.vhost == vhost && *exchange.name == *name
        };
        self.by_name.find(hash::of_name(vhost.0, name), is_it).map(|&at| at as usize)
    }

    pub(super) fn insert(&mut self, exchange: Exchange) -> usize {
        let hash = hash::of_name(exchange.vhost.0, &exchange.name);
        self.local_count += usize::from(exchange.is_local());
        self.argument_bytes.add(exchange.vhost, encoding::counted_bytes(&exchange.arguments));
        let at = self.slots.insert(exchange);
        let slots = &self.slots;
        let place = u32::try_from(at).expect("the number of exchanges is limited");
        self.by_name.insert_unique(hash, place, |&at| {
            let exchange = &slots[at as usize];
            hash::of_name(exchange.vhost.0, &exchange.name)
        });
        at
    }

    pub(super) fn remove(&mut self, at: usize) -> Exchange {
        let exchange = self.slots.remove(at);
        self.local_count -= usize::from(exchange.is_local());
        self.argument_bytes.take(exchange.vhost, encoding::counted_bytes(&exchange.arguments));
        let hash = hash::of_name(exchange.vhost.0, &exchange.name);
        let entry = self.by_name.find_entry(hash, |&place| place as usize == at);
        entry.map_err(|_| ()).expect("every exchange is in the index").remove();
        exchange
    }

    /// Adds a number to what tells exchanges from others of their name, and returns the highest.
    pub(super) fn renumber(&mut self, above: u64) -> u64 {
        self.slots.iter_mut().for_each(|(_, exchange)| exchange.created += above);
        self.slots.iter().map(|(_, exchange)| exchange.created).max().unwrap_or(above)
    }

    pub(super) fn get(&self, at: usize) -> Option<&Exchange> {
        self.slots.get(at)
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Exchange {
        &mut self.slots[at]
    }

    /// How many live on this node only, or how many do not.
    pub(super) fn count(&self, local: bool) -> usize {
        if local { self.local_count } else { self.slots.len() - self.local_count }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Exchange)> {
        self.slots.iter()
    }

    /// The exchanges at these places.
    pub(super) fn between(&self, places: std::ops::Range<usize>) -> impl Iterator<Item = &Exchange> {
        places.filter_map(|at| self.slots.get(at))
    }

    /// No exchange has a place from here on.
    pub(super) fn places(&self) -> usize {
        self.slots.capacity()
    }
}

impl std::ops::Index<usize> for Exchanges {
    type Output = Exchange;

    fn index(&self, at: usize) -> &Exchange {
        &self.slots[at]
    }
}

/// The exchange in RabbitMQ's texts.
pub(super) fn resource<'a>(name: &'a [u8], vhost: &'a Name) -> Resource<'a> {
    Resource { kind: Kind::Exchange, name, vhost }
}
