//! How many connections and channels each user has, and how many connections each virtual host:
//! what limits go by.
//!
//! Invariant: a connection is counted from before `connection.open-ok` until its session ends, once
//! for its user and once for its virtual host; a limit is looked at and the count raised under one
//! lock, so that two connections of one node never take the last place both. What other nodes of a
//! cluster have counts as they told it last, some milliseconds ago: two nodes that let somebody in at
//! the same moment may each give the last place away, as with RabbitMQ.

use broker::topology::{OpenConnections, Refusal};
use broker::{NodeNumber, VhostId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Debug, Default)]
struct Counts {
    users: HashMap<Bytes, UserCount>,
    vhosts: HashMap<VhostId, usize>,
    /// What other nodes have.
    others: BTreeMap<NodeNumber, Other>,
    /// Of whom the others do not know the latest.
    untold: BTreeSet<Whose>,
}

/// What another node has.
#[derive(Debug, Default)]
struct Other {
    /// Connections and channels.
    users: HashMap<Bytes, (usize, usize)>,
    vhosts: HashMap<VhostId, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    User(Bytes),
    Vhost(VhostId),
}

/// What one node has open of a user or a virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Of a user.
    User {
        /// Who.
        name: Bytes,
        /// Connections.
        connections: usize,
        /// Channels.
        channels: usize,
    },
    /// Of a virtual host.
    Vhost {
        /// Which.
        vhost: VhostId,
        /// Connections.
        connections: usize,
    },
}

impl Counts {
    fn connections_of(&self, user: &Bytes) -> usize {
        let others = self.others.values().filter_map(|other| other.users.get(user)).map(|(connections, _)| connections);
        self.users.get(user).map_or(0, |count| count.connections) + others.sum::<usize>()
    }

    fn channels_of(&self, user: &Bytes) -> usize {
        let others = self.others.values().filter_map(|other| other.users.get(user)).map(|(_, channels)| channels);
        self.users.get(user).map_or(0, |count| count.channels) + others.sum::<usize>()
    }

    fn connections_in(&self, vhost: VhostId) -> usize {
        let others = self.others.values().filter_map(|other| other.vhosts.get(&vhost));
        self.vhosts.get(&vhost).copied().unwrap_or(0) + others.sum::<usize>()
    }

    fn taken(&self, whose: &Whose) -> Taken {
        match whose {
            Whose::User(name) => {
                let (connections, channels) =
                    self.users.get(name).map_or((0, 0), |count| (count.connections, count.channels));
                Taken::User { name: name.clone(), connections, channels }
            }
            Whose::Vhost(vhost) => {
                Taken::Vhost { vhost: *vhost, connections: self.vhosts.get(vhost).copied().unwrap_or(0) }
            }
        }
    }
}

#[derive(Debug, Default)]
struct UserCount {
    connections: usize,
    channels: usize,
    /// What its connections hold that is not finished: see `unfinished.rs`.
    unfinished_bytes: Arc<AtomicU64>,
}

/// The counts of a node.
#[derive(Debug, Default)]
pub struct Occupancy {
    counts: Mutex<Counts>,
    /// Called when there is something to tell others; a node that is alone has none.
    wake: OnceLock<Wake>,
}

struct Wake(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Wake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wake")
    }
}

impl Occupancy {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `wake`, on whatever thread, when there is something to tell other nodes from now on.
    pub fn tell_others(&self, wake: Box<dyn Fn() + Send + Sync>) {
        assert!(self.wake.set(Wake(wake)).is_ok(), "a node becomes one among others once");
    }

    /// What other nodes do not know yet.
    pub fn take_untold(&self) -> Vec<Taken> {
        let mut counts = self.lock();
        let untold = std::mem::take(&mut counts.untold);
        untold.iter().map(|whose| counts.taken(whose)).collect()
    }

    /// All that a node is to hear that knows nothing.
    pub fn all(&self) -> Vec<Taken> {
        let counts = self.lock();
        let users = counts.users.keys().cloned().map(Whose::User);
        users.chain(counts.vhosts.keys().copied().map(Whose::Vhost)).map(|whose| counts.taken(&whose)).collect()
    }

    /// Another node says what it has.
    pub fn note(&self, node: NodeNumber, taken: Taken) {
        let mut counts = self.lock();
        let other = counts.others.entry(node).or_default();
        let _before = match taken {
            Taken::User { name, connections: 0, .. } => other.users.remove(&name).map(|(connections, _)| connections),
            Taken::User { name, connections, channels } => {
                other.users.insert(name, (connections, channels)).map(|(connections, _)| connections)
            }
            Taken::Vhost { vhost, connections: 0 } => other.vhosts.remove(&vhost),
            Taken::Vhost { vhost, connections } => other.vhosts.insert(vhost, connections),
        };
    }

    /// Another node is gone, or a new link to it will tell all again.
    pub fn forget(&self, node: NodeNumber) {
        self.lock().others.remove(&node);
    }

    /// Has others told of what changed.
    fn changed(&self, mut counts: MutexGuard<'_, Counts>, whose: impl IntoIterator<Item = Whose>) {
        let Some(Wake(wake)) = self.wake.get() else { return };
        let is_first = counts.untold.is_empty();
        counts.untold.extend(whose);
        drop(counts);
        if is_first {
            wake();
        }
    }

    /// Counts a connection of `user` in `vhost` if `check` lets it in, which is told how many there
    /// are. Errors: what `check` says.
    pub(crate) fn enter(
        self: &Arc<Self>,
        user: &Bytes,
        vhost: Option<VhostId>,
        check: impl FnOnce(OpenConnections) -> Result<VhostId, Refusal>,
    ) -> Result<Place, Refusal> {
        let mut counts = self.lock();
        let open = OpenConnections {
            of_vhost: vhost.map_or(0, |vhost| counts.connections_in(vhost)),
            of_user: counts.connections_of(user),
        };
        let vhost = check(open)?;
        let count = counts.users.entry(user.clone()).or_default();
        count.connections += 1;
        let unfinished_bytes = count.unfinished_bytes.clone();
        *counts.vhosts.entry(vhost).or_default() += 1;
        self.changed(counts, [Whose::User(user.clone()), Whose::Vhost(vhost)]);
        Ok(Place { occupancy: self.clone(), user: user.clone(), vhost, channels: 0, unfinished_bytes })
    }
}

/// A connection's place; it is given back when this goes.
#[derive(Debug)]
pub(crate) struct Place {
    occupancy: Arc<Occupancy>,
    user: Bytes,
    vhost: VhostId,
    channels: usize,
    /// Its user's sum of what is not finished.
    pub(crate) unfinished_bytes: Arc<AtomicU64>,
}

impl Place {
    /// The virtual host.
    pub(crate) fn vhost(&self) -> VhostId {
        self.vhost
    }

    /// Counts one more channel, if `check` lets it in, which is told how many the user has. Errors:
    /// what `check` says.
    pub(crate) fn open_channel(&mut self, check: impl FnOnce(usize) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let mut counts = self.occupancy.lock();
        check(counts.channels_of(&self.user))?;
        let user = counts.users.get_mut(&self.user).expect("a user with a connection is counted");
        user.channels += 1;
        self.channels += 1;
        self.occupancy.changed(counts, [Whose::User(self.user.clone())]);
        Ok(())
    }

    /// A channel that was counted is closed.
    pub(crate) fn close_channel(&mut self) {
        let mut counts = self.occupancy.lock();
        let user = counts.users.get_mut(&self.user).expect("a user with a connection is counted");
        user.channels -= 1;
        self.channels -= 1;
        self.occupancy.changed(counts, [Whose::User(self.user.clone())]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.occupancy.lock();
        let user = counts.users.get_mut(&self.user).expect("a user with a connection is counted");
        user.connections -= 1;
        user.channels -= self.channels;
        if user.connections == 0 {
            counts.users.remove(&self.user);
        }
        let vhost = counts.vhosts.get_mut(&self.vhost).expect("a virtual host with a connection is counted");
        *vhost -= 1;
        if *vhost == 0 {
            counts.vhosts.remove(&self.vhost);
        }
        self.occupancy.changed(counts, [Whose::User(self.user.clone()), Whose::Vhost(self.vhost)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Refusal {
        Refusal { code: 530, text: "NOT_ALLOWED - full".to_owned(), hard: true }
    }

    #[test]
    fn places_are_counted_while_they_are_held() {
        let occupancy = Arc::new(Occupancy::default());
        let (ann, bob) = (Bytes::from_static(b"ann"), Bytes::from_static(b"bob"));
        let enter = |user: &Bytes, of_vhost: usize, of_user: usize| {
            occupancy.enter(user, Some(VhostId(3)), |open| {
                assert_eq!((open.of_vhost, open.of_user), (of_vhost, of_user));
                Ok(VhostId(3))
            })
        };
        let first = enter(&ann, 0, 0).expect("let in");
        let mut second = enter(&ann, 1, 1).expect("let in");
        let third = enter(&bob, 2, 0).expect("let in");
        second.open_channel(|count| if count == 0 { Ok(()) } else { Err(refused()) }).expect("let in");
        assert_eq!(second.open_channel(|count| if count == 0 { Ok(()) } else { Err(refused()) }), Err(refused()));
        second.close_channel();
        second.open_channel(|count| if count == 0 { Ok(()) } else { Err(refused()) }).expect("let in");
        drop((first, second));
        assert_eq!(occupancy.enter(&ann, None, |_| Err(refused())).map(|_| ()), Err(refused()));
        drop(third);
        let counts = occupancy.lock();
        assert!(counts.users.is_empty() && counts.vhosts.is_empty());
    }

    #[test]
    fn what_other_nodes_have_counts_until_they_are_gone() {
        let occupancy = Arc::new(Occupancy::default());
        let (ann, vhost) = (Bytes::from_static(b"ann"), VhostId(3));
        let taken = |connections, channels| Taken::User { name: ann.clone(), connections, channels };
        occupancy.note(NodeNumber(2), taken(2, 5));
        occupancy.note(NodeNumber(2), Taken::Vhost { vhost, connections: 4 });
        occupancy.note(NodeNumber(3), taken(1, 1));
        let open = |of_vhost, of_user| {
            let entered = occupancy.enter(&ann, Some(vhost), |open| {
                assert_eq!((open.of_vhost, open.of_user), (of_vhost, of_user));
                Ok(vhost)
            });
            entered.expect("let in")
        };
        let mut place = open(4, 3);
        place.open_channel(|channels| if channels == 6 { Ok(()) } else { Err(refused()) }).expect("six elsewhere");
        occupancy.note(NodeNumber(2), taken(0, 0));
        drop(open(5, 2));
        occupancy.forget(NodeNumber(2));
        occupancy.forget(NodeNumber(3));
        drop(open(1, 1));
    }

    #[test]
    fn others_are_told_what_is_and_woken_once_for_much() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (occupancy, woken) = (Arc::new(Occupancy::default()), Arc::new(AtomicUsize::new(0)));
        let count = woken.clone();
        occupancy.tell_others(Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let ann = Bytes::from_static(b"ann");
        let mut place = occupancy.enter(&ann, None, |_| Ok(VhostId(3))).expect("let in");
        place.open_channel(|_| Ok(())).expect("let in");
        let told = [
            Taken::User { name: ann.clone(), connections: 1, channels: 1 },
            Taken::Vhost { vhost: VhostId(3), connections: 1 },
        ];
        assert_eq!((occupancy.take_untold(), woken.load(Ordering::SeqCst)), (told.to_vec(), 1));
        assert_eq!(occupancy.all(), told);
        drop(place);
        let told = [
            Taken::User { name: ann, connections: 0, channels: 0 },
            Taken::Vhost { vhost: VhostId(3), connections: 0 },
        ];
        assert_eq!((occupancy.take_untold(), woken.load(Ordering::SeqCst)), (told.to_vec(), 2));
        assert!(occupancy.take_untold().is_empty() && occupancy.all().is_empty());
    }
}
