//! Who has a connection to the API, and who loses it when there are too many.
//!
//! Invariant: connections are never kept waiting for one another. A connection begins as a
//! stranger's and becomes its user's with the first request that has a right name and password;
//! strangers and users have permits apart, so no number of strangers takes the permit of somebody
//! who is logged in. When permits run out the one goes that has waited longest of those who hold
//! the most, by address or by user: a client that sends its request at once is known long before
//! its turn to go comes.

use broker::topology::Name;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use tokio::sync::Notify;

/// How many connections there may be, all together and of one address or user.
#[derive(Clone, Copy, Debug)]
struct Limit {
    all: usize,
    of_one: usize,
}

/// Together 256, which is what the broker keeps descriptors for.
const STRANGERS: Limit = Limit { all: 96, of_one: 64 };
const USERS: Limit = Limit { all: 160, of_one: 80 };

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Counts what happens: permits taken and heads read. It orders them.
    moment: u64,
    strangers: HashMap<u64, Held<IpAddr>>,
    users: HashMap<u64, Held<Name>>,
}

#[derive(Debug)]
struct Held<Of> {
    of: Of,
    /// When it was taken, or the last head came.
    since: u64,
    end: Rc<Notify>,
}

/// One connection's; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    number: u64,
    permits: Rc<Permits>,
    /// Tells the connection to end.
    pub(crate) end: Rc<Notify>,
}

impl Permits {
    /// A permit for a connection that has said nothing yet. It is always given.
    pub(crate) fn take(self: &Rc<Self>, peer: SocketAddr) -> Permit {
        let mut inner = self.inner.borrow_mut();
        inner.moment += 1;
        let (number, of) = (inner.moment, network(peer.ip()));
        make_room(&mut inner.strangers, &of, STRANGERS);
        let end = Rc::new(Notify::new());
        inner.strangers.insert(number, Held { of, since: number, end: end.clone() });
        Permit { number, permits: self.clone(), end }
    }
}

impl Permit {
    /// The head of a request came.
    pub(crate) fn asks(&self) {
        let mut inner = self.permits.inner.borrow_mut();
        inner.moment += 1;
        let moment = inner.moment;
        if let Some(held) = inner.strangers.get_mut(&self.number) {
            held.since = moment;
        }
        if let Some(held) = inner.users.get_mut(&self.number) {
            held.since = moment;
        }
    }

    /// Name and password were right.
    pub(crate) fn is_of(&self, user: &Name) {
        let mut inner = self.permits.inner.borrow_mut();
        let Some(held) = inner.strangers.remove(&self.number) else { return };
        make_room(&mut inner.users, user, USERS);
        inner.users.insert(self.number, Held { of: user.clone(), since: held.since, end: held.end });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inner = self.permits.inner.borrow_mut();
        inner.strangers.remove(&self.number);
        inner.users.remove(&self.number);
    }
}

/// Frees a permit where one more for `of` would be too many.
fn make_room<Of: Clone + Eq + Hash>(held: &mut HashMap<u64, Held<Of>>, of: &Of, limit: Limit) {
    let own = held.values().filter(|permit| permit.of == *of).count();
    let from = match () {
        () if own >= limit.of_one => of.clone(),
        () if held.len() >= limit.all => {
            let mut counts: HashMap<&Of, usize> = HashMap::new();
            held.values().for_each(|permit| *counts.entry(&permit.of).or_default() += 1);
            let Some(most) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
            most.0.clone()
        }
        () => return,
    };
    let oldest = held.iter().filter(|(_, permit)| permit.of == from).min_by_key(|(_, permit)| permit.since);
    if let Some(number) = oldest.map(|(number, _)| *number)
        && let Some(permit) = held.remove(&number)
    {
        permit.end.notify_one();
    }
}

/// What one person has many of with IPv6: the network of 64 bits. An IPv4 address is itself,
/// however it is written.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => IpAddr::V6((u128::from(six) >> 64 << 64).into()),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().expect("an address"), 1)
    }

    fn is_asked_to_end(permit: &Permit) -> bool {
        use std::future::Future as _;
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(permit.end.notified()).poll(&mut context).is_ready()
    }

    #[test]
    fn strangers_of_one_address_push_out_their_own() {
        let permits = Rc::new(Permits::default());
        let other = permits.take(peer("10.0.0.1"));
        let many: Vec<Permit> = (0..500).map(|_| permits.take(peer("10.0.0.2"))).collect();
        assert!(!is_asked_to_end(&other));
        let left = many.iter().filter(|permit| !is_asked_to_end(permit)).count();
        assert_eq!(left, STRANGERS.of_one);
        assert!(!is_asked_to_end(many.last().expect("there are some")), "the newest stays");
    }

    #[test]
    fn who_is_logged_in_stays_whatever_strangers_do() {
        let permits = Rc::new(Permits::default());
        let known = permits.take(peer("10.0.0.2"));
        known.is_of(&Name::from("ann"));
        let _many: Vec<Permit> =
            (0..1000u32).map(|at| permits.take(peer(&format!("10.0.{}.{}", at / 200, at % 200)))).collect();
        assert!(!is_asked_to_end(&known));
    }

    #[test]
    fn many_connections_of_one_user_cost_that_user() {
        let permits = Rc::new(Permits::default());
        let take = |user: &str| {
            let permit = permits.take(peer("10.0.0.2"));
            permit.is_of(&Name::from(user));
            permit
        };
        let boss = take("boss");
        let many: Vec<Permit> = (0..300).map(|at| take(if at % 2 == 0 { "ann" } else { "bob" })).collect();
        assert!(!is_asked_to_end(&boss));
        let left = many.iter().filter(|permit| !is_asked_to_end(permit)).count();
        assert_eq!(left, USERS.all - 1);
    }

    #[test]
    fn a_permit_that_is_dropped_is_free() {
        let permits = Rc::new(Permits::default());
        drop(permits.take(peer("10.0.0.2")));
        let permit = permits.take(peer("10.0.0.2"));
        permit.is_of(&Name::from("ann"));
        drop(permit);
        let inner = permits.inner.borrow();
        assert!(inner.strangers.is_empty() && inner.users.is_empty());
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        assert_eq!(network("2001:db8::1".parse().expect("one")), network("2001:db8::2".parse().expect("one")));
        assert_ne!(network("2001:db8:0:1::".parse().expect("one")), network("2001:db8::".parse().expect("one")));
        assert_eq!(network("::ffff:10.0.0.1".parse().expect("one")), network("10.0.0.1".parse().expect("one")));
    }
}
