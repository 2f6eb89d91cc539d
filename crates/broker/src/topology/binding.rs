//! Bindings as records: what leads from an exchange to a queue or exchange, and under which key and
//! arguments.
//!
//! Invariant: source, destination, key and arguments together are unique. Every binding stands in
//! its source's table and list, and in its destination's list; it knows its place in both lists, so
//! it leaves them in constant time.

use amqp::Table;
use hashbrown::HashTable;

use super::destination::Destination;
use super::encoding::{Malformed, Reader, Writer};
use super::exchange_type::ExchangeType;
use super::name::Name;
use super::refusal::Kind;
use super::{command, encoding, hash, topic};

/// Replicated bindings, all virtual hosts together; and as many again that live on one node only.
pub const BINDINGS_MAX: usize = 1 << 26;

/// One binding.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) source: u32,
    pub(super) destination: Destination,
    pub(super) key: Name,
    /// Encoded, fields in the order of their names: RabbitMQ too takes two orders for one binding.
    pub(super) arguments: Box<[u8]>,
    /// See [`counted_bytes`].
    pub(super) counted_bytes: u32,
    /// Whether source or destination lives on this node only.
    pub(super) local: bool,
    pub(super) at_source: u32,
    pub(super) at_destination: u32,
}

/// A binding's record, and its places in lists and tables.
const BINDING_BYTES: usize = 64;
/// A word's places in the trie of a topic exchange.
const WORD_BYTES: usize = 32;
/// A selector is kept as an expression too.
const SELECTOR_FACTOR: usize = 6;

/// What a binding counts for against the limit on arguments of its virtual host; `encoded` are its
/// arguments as [`Binding::arguments`] has them. In memory it takes up to five times that, whatever
/// its exchange makes of it.
pub(super) fn counted_bytes(routes_as: ExchangeType, key: &[u8], arguments: &Table, encoded: &[u8]) -> usize {
    let arguments = if arguments.is_empty() { 0 } else { encoded.len() + encoding::read_bytes(arguments) };
    let routed = match routes_as {
        ExchangeType::Topic => WORD_BYTES * topic::words(key).count() + arguments,
        ExchangeType::JmsTopic => SELECTOR_FACTOR * arguments,
        _ => arguments,
    };
    BINDING_BYTES + key.len() + routed
}

/// All bindings, found by identity.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    slots: slab::Slab<Binding>,
    by_identity: HashTable<u32>,
    local_count: usize,
}

fn identity_hash(source: u32, destination: Destination, key: &[u8], arguments: &[u8]) -> u64 {
    hash::of_name(source, key) ^ hash::of_name(destination.number(), arguments).rotate_left(1)
}

impl Bindings {
    pub(super) fn find(&self, source: usize, destination: Destination, key: &[u8], arguments: &[u8]) -> Option<usize> {
        let source = u32::try_from(source).expect("the number of exchanges is limited");
        let is_it = |&at: &u32| {
            let b = &self.slots[at as usize];
            b.source == source && b.destination == destination && *b.key == *key && *b.arguments == *arguments
        };
        self.by_identity.find(identity_hash(source, destination, key, arguments), is_it).map(|&at| at as usize)
    }

    pub(super) fn insert(&mut self, binding: Binding) -> usize {
        let hash = identity_hash(binding.source, binding.destination, &binding.key, &binding.arguments);
        self.local_count += usize::from(binding.local);
        let at = self.slots.insert(binding);
        let place = u32::try_from(at).expect("the number of bindings is limited");
        let slots = &self.slots;
        self.by_identity.insert_unique(hash, place, |&at| {
            let b = &slots[at as usize];
            identity_hash(b.source, b.destination, &b.key, &b.arguments)
        });
        at
    }

    pub(super) fn remove(&mut self, at: usize) -> Binding {
        let binding = self.slots.remove(at);
        self.local_count -= usize::from(binding.local);
        let hash = identity_hash(binding.source, binding.destination, &binding.key, &binding.arguments);
        let entry = self.by_identity.find_entry(hash, |&place| place as usize == at);
        entry.map_err(|_| ()).expect("every binding is in the index").remove();
        binding
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Binding {
        &mut self.slots[at]
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many live on this node only, or how many do not.
    pub(super) fn count(&self, local: bool) -> usize {
        if local { self.local_count } else { self.slots.len() - self.local_count }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Binding> {
        self.slots.iter().map(|(_, binding)| binding)
    }
}

impl std::ops::Index<usize> for Bindings {
    type Output = Binding;

    fn index(&self, at: usize) -> &Binding {
        &self.slots[at]
    }
}

/// As a command and a snapshot have it: by names.
pub(super) fn write_binding(writer: &mut Writer, binding: &command::Binding) {
    writer.number(binding.vhost.0.into());
    writer.bytes(&binding.source);
    writer.flag(binding.destination_kind == Kind::Exchange);
    writer.bytes(&binding.destination);
    writer.bytes(&binding.key);
    writer.table(&binding.arguments);
}

pub(super) fn read_binding(reader: &mut Reader<'_>) -> Result<command::Binding, Malformed> {
    Ok(command::Binding {
        vhost: reader.vhost()?,
        source: reader.name("source")?,
        destination_kind: if reader.flag("destination kind")? { Kind::Exchange } else { Kind::Queue },
        destination: reader.name("destination")?,
        key: reader.name("binding key")?,
        arguments: reader.table()?,
    })
}
