//! The way of a message: from an exchange over its bindings to queues.
//!
//! Invariant: each queue comes once however many bindings lead to it, in the order of ids, which is the order of
//! creation; an exchange is visited once however bindings between exchanges run in circles.

use amqp::Table;
use smallvec::SmallVec;

use super::Topology;
use super::destination::{Destination, Place};
use super::exchange::Router;
use super::queue::RouteTarget;
use crate::ids::VhostId;

/// There is no such exchange. `Topology::check_publish` has the refusal for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such exchange")]
pub struct NotFound;

impl Topology {
    /// Adds to `out` the queues that a message published to `exchange` with `routing_key` goes to.
    ///
    /// - `headers` is called at most once, and only if a headers exchange is on the way.
    /// - `out` is not cleared: what several calls for one message add together comes once each, in order of queue id.
    /// - Errors: `NotFound`, and `out` is as it was.
    /// - Cost: no allocation but growth of `out`, unless more than 16 exchanges are bound to each other.
    pub fn route(
        &self,
        vhost: VhostId,
        exchange: &[u8],
        routing_key: &[u8],
        headers: &dyn Fn() -> Option<Table>,
        out: &mut Vec<RouteTarget>,
    ) -> Result<(), NotFound> {
        if exchange.is_empty() {
            if (vhost.0 as usize) >= self.vhosts.len() {
                return Err(NotFound);
            }
            out.extend(self.queues.find(vhost, routing_key).map(|at| self.queues.target(at)));
        } else {
            let first = self.exchanges.find(vhost, exchange).ok_or(NotFound)?;
            self.follow(first, routing_key, headers, out);
        }
        if out.len() > 1 {
            out.sort_unstable_by_key(|target| target.queue);
            out.dedup_by_key(|target| target.queue);
        }
        Ok(())
    }

    fn follow(
        &self,
        first: usize,
        routing_key: &[u8],
        headers: &dyn Fn() -> Option<Table>,
        out: &mut Vec<RouteTarget>,
    ) {
        let mut visited: SmallVec<[usize; 16]> = SmallVec::new();
        visited.push(first);
        let mut next = 0;
        let mut loaded: Option<Option<Table>> = None;
        while let Some(&at) = visited.get(next) {
            next += 1;
            let mut visit = |destination: Destination| match destination.place() {
                Place::Queue(at) => out.push(self.queues.target(at)),
                Place::Exchange(at) if visited.contains(&at) => {}
                Place::Exchange(at) => visited.push(at),
            };
            match &self.exchanges[at].router {
                Router::Direct(table) => {
                    if let Some(destinations) = table.get(routing_key) {
                        destinations.each(&mut visit);
                    }
                }
                Router::Fanout(all) => all.each(&mut visit),
                Router::Topic(trie) => trie.each(routing_key, &mut visit),
                Router::Headers(table) => table.each(loaded.get_or_insert_with(headers).as_ref(), &mut visit),
            }
        }
    }
}
