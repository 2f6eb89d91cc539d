//! How many connections and channels each user has, and how many connections each virtual host:
//! what limits go by.
//!
//! Invariant: a connection is counted from before `connection.open-ok` until its session ends, once
//! for its user and once for its virtual host; a limit is looked at and the count raised under one
//! lock, so that two connections never take the last place both.

use broker::VhostId;
use broker::topology::{OpenConnections, Refusal};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Counts {
    users: HashMap<Bytes, UserCount>,
    vhosts: HashMap<VhostId, usize>,
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
}

impl Occupancy {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
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
            of_vhost: vhost.and_then(|vhost| counts.vhosts.get(&vhost).copied()).unwrap_or(0),
            of_user: counts.users.get(user).map_or(0, |count| count.connections),
        };
        let vhost = check(open)?;
        let count = counts.users.entry(user.clone()).or_default();
        count.connections += 1;
        let unfinished_bytes = count.unfinished_bytes.clone();
        *counts.vhosts.entry(vhost).or_default() += 1;
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
        let user = counts.users.get_mut(&self.user).expect("a user with a connection is counted");
        check(user.channels)?;
        user.channels += 1;
        self.channels += 1;
        Ok(())
    }

    /// A channel that was counted is closed.
    pub(crate) fn close_channel(&mut self) {
        let mut counts = self.occupancy.lock();
        let user = counts.users.get_mut(&self.user).expect("a user with a connection is counted");
        user.channels -= 1;
        self.channels -= 1;
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
}
