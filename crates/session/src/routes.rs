//! Routes that a channel used lately, so that the common publish touches neither the topology's
//! lock nor its hashes.
//!
//! Invariant: a route is used only while the topology has the version that it was computed at. A
//! route that depends on the message's headers is never kept.

use super::work::Load;
use broker::topology::HistoryId;
use broker::{PartitionId, QueueId};
use partition::Target;
use smallvec::SmallVec;

/// How many routes a channel remembers. Publishers use one or a few; one that uses thousands pays
/// the look-up.
const ROUTES_MAX: usize = 8;

/// What a message's own headers have to say on a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// A queue on the way has a level of its own that the header `x-durability` may change.
    pub(super) durability: bool,
    /// Not all nodes know the levels of the leader alone: whoever asks for one gets that of a majority.
    pub(super) majority: bool,
    /// A queue on the way sums up a header's value.
    pub(super) value: bool,
}

/// The queues of one partition that a message goes to.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) partition: broker::PartitionId,
    pub(super) targets: SmallVec<[Target; 1]>,
    /// By target: the header that its queue sums up. Empty when none does.
    pub(super) value_headers: SmallVec<[Option<broker::topology::Name>; 1]>,
}

/// Where messages with one exchange and routing key go.
#[derive(Debug, Default)]
pub(super) struct Route {
    exchange: Vec<u8>,
    routing_key: Vec<u8>,
    version: u64,
    pub(super) groups: SmallVec<[Group; 1]>,
    pub(super) needs: Needs,
    /// How many partitions on the way are not on this node. Nobody there can be asked, so nothing
    /// of it is promised.
    pub(super) away: usize,
    /// It is the sync barrier, which leads nowhere and confirms late.
    pub(super) is_sync: bool,
    /// What a publish costs that takes it.
    pub(super) load: Load,
    /// The shards of its partitions, one bit each.
    pub(super) shards: u64,
    /// The `x-recent-history` exchanges on the way, which remember every message, and how many.
    pub(super) histories: Vec<(HistoryId, u32)>,
    /// Messages that took it since that was taken down.
    pub(super) published: u64,
}

impl Route {
    #[inline]
    fn is(&self, version: u64, exchange: &[u8], routing_key: &[u8]) -> bool {
        self.version == version && self.routing_key == routing_key && self.exchange == exchange
    }

    /// The exchange.
    pub(super) fn exchange(&self) -> &[u8] {
        &self.exchange
    }
}

/// The routes of one channel.
#[derive(Debug, Default)]
pub(super) struct Routes {
    routes: Vec<Route>,
    /// The one used last, which is the one used next, mostly.
    last: usize,
    /// The one to give up next.
    oldest: usize,
}

impl Routes {
    /// The place of a route that is still right.
    #[inline]
    pub(super) fn find(&mut self, version: u64, exchange: &[u8], routing_key: &[u8]) -> Option<usize> {
        if self.routes.get(self.last).is_some_and(|route| route.is(version, exchange, routing_key)) {
            return Some(self.last);
        }
        self.last = self.routes.iter().position(|route| route.is(version, exchange, routing_key))?;
        Some(self.last)
    }

    /// A place for a new route, emptied; the memory of the one that was there is used again, once
    /// `end` has seen it.
    pub(super) fn make(
        &mut self,
        version: u64,
        exchange: &[u8],
        routing_key: &[u8],
        end: impl FnOnce(&mut Route),
    ) -> usize {
        let at = match self.routes.len() {
            ROUTES_MAX => {
                self.oldest = (self.oldest + 1) % ROUTES_MAX;
                self.oldest
            }
            len => {
                self.routes.push(Route::default());
                len
            }
        };
        let route = &mut self.routes[at];
        end(route);
        route.exchange.clear();
        route.exchange.extend_from_slice(exchange);
        route.routing_key.clear();
        route.routing_key.extend_from_slice(routing_key);
        route.version = version;
        route.groups.clear();
        route.histories.clear();
        (route.needs, route.is_sync, route.load) = (Needs::default(), false, Load::default());
        (route.shards, route.away) = (0, 0);
        self.last = at;
        at
    }

    /// The route at a place that was just given out.
    #[inline]
    pub(super) fn get(&mut self, at: usize) -> &mut Route {
        &mut self.routes[at]
    }

    /// Where the messages went that were published lately.
    pub(super) fn queues(&self) -> impl Iterator<Item = (QueueId, PartitionId)> {
        let groups = self.routes.iter().flat_map(|route| &route.groups);
        groups.flat_map(|group| group.targets.iter().map(|target| (target.queue, group.partition)))
    }

    /// How many queues all of them name.
    pub(super) fn targets(&self) -> usize {
        self.routes.iter().flat_map(|route| &route.groups).map(|group| group.targets.len()).sum()
    }

    /// All of them.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Route> {
        self.routes.iter_mut()
    }

    /// Keeps nothing of the route at `at`.
    pub(super) fn give_up(&mut self, at: usize) {
        self.routes[at] = Route::default();
    }

    /// None of them holds any more.
    pub(super) fn forget_all(&mut self) {
        self.routes.iter_mut().for_each(|route| route.version = 0);
    }

    /// The route at `at` holds for one message only.
    pub(super) fn forget(&mut self, at: usize) {
        self.routes[at].version = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_found_until_the_topology_changes_or_others_push_it_out() {
        let mut routes = Routes::default();
        let at = routes.make(5, b"x", b"a", |_| ());
        routes.get(at).shards = 9;
        assert_eq!(routes.find(5, b"x", b"a"), Some(at));
        assert_eq!(routes.find(6, b"x", b"a"), None);
        assert_eq!(routes.find(5, b"xa", b""), None);
        for key in 0..ROUTES_MAX as u8 - 1 {
            routes.make(5, b"x", &[key], |_| ());
        }
        assert_eq!(routes.find(5, b"x", b"a"), Some(at));
        for key in 0..ROUTES_MAX as u8 {
            routes.make(5, b"y", &[key], |_| ());
        }
        assert_eq!(routes.find(5, b"x", b"a"), None);
        assert_eq!(routes.routes.len(), ROUTES_MAX);
        let at = routes.find(5, b"y", &[3]).expect("it was put in last round");
        routes.forget(at);
        assert_eq!(routes.find(5, b"y", &[3]), None);
    }
}
