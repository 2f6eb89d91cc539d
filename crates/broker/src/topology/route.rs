//! The way of a message: from an exchange over its bindings to queues.
//!
//! Invariant: each queue comes once however many bindings lead to it, in the order of ids, which is
//! the order of creation; an exchange is visited once however bindings between exchanges run in
//! circles.

use smallvec::SmallVec;

use super::Topology;
use super::destination::{Destination, Place};
use super::exchange::Router;
use super::message_facts::{Headers, RouteRequest, stable_hash};
use super::queue::RouteTarget;
use super::topic::ROUTE_STEPS_MAX;

/// A queue that was found, a node of a trie or a header that was looked up costs about so much less
/// than to hand a message to a queue. What a route says of its work is these by this number, and
/// one.
pub const STEPS_OF_A_TARGET: usize = 8;

/// So many places in `out` are looked through for queues that were found before, at the earliest.
const REPEATS_SOUGHT_FROM: usize = 1 << 16;
/// So many times may the keys of one message lead to queues where another key led already; each
/// costs some tens of nanoseconds.
const REPEATS_MAX: usize = 1 << 20;

/// Why nobody knows where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// There is no such exchange. `Topology::check_publish` has the refusal for it.
    #[error("no such exchange")]
    NotFound,
    /// The bindings on its way take too many steps for this message: their selectors and arguments,
    /// or their wildcards with all its keys. It goes nowhere rather than to some of its queues.
    #[error(
        "the bindings on its way take too long for this message: give it fewer keys in CC and BCC and fewer headers, or bind \
         fewer wildcards, selectors and arguments"
    )]
    TooMuch,
}

impl Topology {
    /// Adds to `out` the queues that a message goes to. An exchange that finds nothing for it
    /// passes it on to its alternate exchange, if it has one and that exists.
    ///
    /// - `out` is not cleared: what several calls for one message add together comes once each, in
    ///   order of queue id.
    /// - Returns how much work it was: see [`STEPS_OF_A_TARGET`].
    /// - Errors: see [`NoRoute`], and nothing of this call is in `out`.
    /// - Cost: no allocation but growth of `out`, unless more than 16 exchanges are on the way.
    pub fn route(&self, request: &RouteRequest<'_>, out: &mut Vec<RouteTarget>) -> Result<usize, NoRoute> {
        let mut steps = 0;
        if request.exchange.is_empty() {
            if self.vhost_of(request.vhost).is_none() {
                return Err(NoRoute::NotFound);
            }
            self.by_name(request, out);
        } else {
            let first = self.exchanges.find(request.vhost, request.exchange).ok_or(NoRoute::NotFound)?;
            let before = out.len();
            steps = self.follow(first, request, out).inspect_err(|_| out.truncate(before))?;
        }
        let work = 1 + (out.len() + steps) / STEPS_OF_A_TARGET;
        if out.len() > 1 {
            out.sort_unstable_by_key(|target| target.queue);
            out.dedup_by_key(|target| target.queue);
        }
        Ok(work)
    }

    /// The default exchange: to the queues that are called like the keys.
    fn by_name(&self, request: &RouteRequest<'_>, out: &mut Vec<RouteTarget>) {
        for key in request.keys {
            out.extend(self.queues.find(request.vhost, key).map(|at| self.queues.target(at)));
        }
    }

    /// Returns how many steps it took, besides what it found.
    fn follow(&self, first: usize, request: &RouteRequest<'_>, out: &mut Vec<RouteTarget>) -> Result<usize, NoRoute> {
        let RouteRequest { keys, facts, .. } = *request;
        let mut visited: SmallVec<[usize; 16]> = SmallVec::new();
        visited.push(first);
        let (mut next, mut steps, mut key_steps) = (0, 0, 0);
        let mut repeats = Repeats::default();
        let mut headers = Headers::new(facts);
        while let Some(&at) = visited.get(next) {
            next += 1;
            steps += 1;
            let mut found = false;
            let mut visit = |out: &mut Vec<RouteTarget>, destination: Destination| {
                found = true;
                match destination.place() {
                    Place::Queue(at) => out.push(self.queues.target(at)),
                    Place::Exchange(at) if visited.contains(&at) => {}
                    Place::Exchange(at) => visited.push(at),
                }
            };
            let exchange = &self.exchanges[at];
            if let Some(history) = exchange.history() {
                facts.remembered_by(history, exchange.settings.history_length);
            }
            match &exchange.router {
                Router::Direct(table) => {
                    key_steps += keys.len() / STEPS_OF_A_TARGET;
                    for found in keys.iter().filter_map(|key| table.get(key)) {
                        found.each(&mut |destination| visit(out, destination));
                        repeats.look(keys, out)?;
                    }
                }
                Router::Fanout(all) => all.each(&mut |destination| visit(out, destination)),
                Router::Topic(trie) => {
                    for key in keys {
                        trie.each(key, &mut key_steps, &mut |destination| visit(out, destination));
                        repeats.look(keys, out)?;
                    }
                }
                Router::Headers(table) => {
                    steps += table.each(headers.get(), &mut |destination| visit(out, destination))
                }
                Router::Selectors(table) => {
                    steps += table.each(headers.get(), &mut |destination| visit(out, destination));
                }
                Router::Hash(table) => {
                    let hash = headers.hash(&exchange.settings.hash_on, own_key(keys));
                    table.weighted(hash).into_iter().for_each(|destination| visit(out, destination));
                }
                Router::Modulus(table) => {
                    let chosen = table.modulus(stable_hash(own_key(keys)));
                    chosen.into_iter().for_each(|destination| visit(out, destination));
                }
                Router::Random(table) => {
                    let chosen = table.modulus(facts.random());
                    chosen.into_iter().for_each(|destination| visit(out, destination));
                }
            }
            if key_steps > ROUTE_STEPS_MAX {
                return Err(NoRoute::TooMuch);
            }
            if let (false, Some(alternate)) =
                (found, exchange.alternate.as_ref().or(exchange.policy_alternate.as_ref()))
            {
                match self.exchanges.find(request.vhost, alternate) {
                    Some(_) if alternate.is_empty() => self.by_name(request, out),
                    Some(at) if !visited.contains(&at) => visited.push(at),
                    _ => {}
                }
            }
        }
        if headers.are_steps_used_up() { Err(NoRoute::TooMuch) } else { Ok(steps + key_steps + headers.count()) }
    }
}

/// Queues that several keys of one message lead to, in exchanges where one key may lead to
/// thousands. They are taken out while the search goes on: with a thousand keys they would fill the
/// memory.
#[derive(Debug, Default)]
struct Repeats {
    taken_out: usize,
    /// From this length on `out` is looked through again.
    sought_from: usize,
}

impl Repeats {
    /// What one more key led to is in `out`. Errors: it was too much.
    #[inline]
    fn look(&mut self, keys: &[&[u8]], out: &mut Vec<RouteTarget>) -> Result<(), NoRoute> {
        if keys.len() == 1 || out.len() < self.sought_from.max(REPEATS_SOUGHT_FROM) {
            return Ok(());
        }
        self.take_out(out)
    }

    #[cold]
    fn take_out(&mut self, out: &mut Vec<RouteTarget>) -> Result<(), NoRoute> {
        let before = out.len();
        out.sort_unstable_by_key(|target| target.queue);
        out.dedup_by_key(|target| target.queue);
        self.taken_out += before - out.len();
        self.sought_from = out.len() * 2;
        if self.taken_out > REPEATS_MAX { Err(NoRoute::TooMuch) } else { Ok(()) }
    }
}

fn own_key<'a>(keys: &[&'a [u8]]) -> &'a [u8] {
    keys.first().expect("a message has a routing key, if an empty one")
}
