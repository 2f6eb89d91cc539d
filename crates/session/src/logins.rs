//! How many passwords may be tried: by address and by name, over all connections, by AMQP and by
//! HTTP alike.
//!
//! What counts is failures. Each bucket holds the failures of one minute and fills up again evenly;
//! a try takes from its buckets before the password is looked at and puts back if it was right, so
//! many tries at once are no way around. There are three kinds:
//!
//! - the tries of one address, an IPv6 network of 64 bits being one;
//! - a quarter of that for each name that an address tries, and for all names together that nobody
//!   has: one program with a stale password does not use up what its neighbours behind the same
//!   address need;
//! - the tries of one name from everywhere, which stops those who have many addresses. It does not
//!   count where the user logged in from before, nor on this machine: a stranger elsewhere cannot
//!   lock the user out there.
//!
//! Invariant: a login that is not admitted costs no hash and is answered like a wrong password, at
//! the same time. All tables are bounded; an address or a name that is forgotten is one that failed
//! longest ago.

use amqp::Millis;
use broker::topology::Name;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a bucket holds comes back in this time.
const MINUTE: Millis = 60_000;
/// Buckets of one kind, and pairs of user and address that are known to be good: a few MB when all
/// are full.
const ENTRIES_MAX: usize = 16_384;
/// An address may fail with one name this part of what it may fail in all.
const NAMES_PER_ADDRESS: u64 = 4;
/// Where a user logged in before there may be this many times as many failures with that name as an
/// address has in all: somebody else behind the same address should not lock the user out.
const KNOWN_FACTOR: u64 = 4;

/// How many failures a minute there may be; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginLimits {
    /// From one address.
    pub per_address: u32,
    /// With one name.
    pub per_user: u32,
}

impl Default for LoginLimits {
    fn default() -> Self {
        LoginLimits { per_address: 60, per_user: 60 }
    }
}

/// What all logins of a node have in common.
#[derive(Debug)]
pub struct Logins {
    limits: LoginLimits,
    tables: Mutex<Tables>,
    attempts: Attempts,
}

/// What logins are attempted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginOver {
    /// AMQP 0-9-1.
    Amqp,
    /// The HTTP API, where each request is one.
    Http,
}

/// How many logins there were since the start, or since they were last forgotten.
#[derive(Debug, Default)]
struct Attempts {
    /// Right and wrong ones.
    amqp: [AtomicU64; 2],
    http: [AtomicU64; 2],
}

impl Attempts {
    fn over(&self, over: LoginOver) -> &[AtomicU64; 2] {
        match over {
            LoginOver::Amqp => &self.amqp,
            LoginOver::Http => &self.http,
        }
    }
}

#[derive(Debug, Default)]
struct Tables {
    addresses: Buckets<IpAddr>,
    /// With `None` for all names that nobody has.
    pairs: Buckets<(IpAddr, Option<Name>)>,
    users: Buckets<Name>,
    /// When a user last logged in from an address.
    known: HashMap<(IpAddr, Name), Millis>,
}

/// For each key when its bucket is full again; a key without an entry has a full one.
#[derive(Debug)]
struct Buckets<K> {
    full_at: HashMap<K, Millis>,
}

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Buckets { full_at: HashMap::new() }
    }
}

/// A login whose password may be looked at. Unless it is told that it was right, it counts as a
/// failure.
#[derive(Debug)]
#[must_use]
pub struct Try {
    from: IpAddr,
    name: Option<Name>,
    took: Took,
    is_known: bool,
}

impl Try {
    /// Whether the user logged in from there before.
    pub fn is_known(&self) -> bool {
        self.is_known
    }
}

/// What was taken, in milliseconds of filling up, by bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    address: Millis,
    pair: Millis,
    user: Millis,
}

impl Logins {
    /// Nobody has tried anything yet.
    pub fn new(limits: LoginLimits) -> Logins {
        Logins { limits, tables: Mutex::default(), attempts: Attempts::default() }
    }

    /// Counts a login.
    pub fn count(&self, over: LoginOver, was_right: bool) {
        self.attempts.over(over)[usize::from(!was_right)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many logins were right and how many were wrong.
    pub fn counted(&self, over: LoginOver) -> (u64, u64) {
        let [right, wrong] = self.attempts.over(over);
        (right.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed))
    }

    /// Counts from 0 again.
    pub fn forget_counted(&self) {
        for count in self.attempts.amqp.iter().chain(&self.attempts.http) {
            count.store(0, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a password may be tried, of `name`, which some user has or none, from `address`.
    pub fn admit(&self, address: IpAddr, name: &[u8], exists: bool, now: Millis) -> Option<Try> {
        let from = network(address);
        let name = exists.then(|| Name::new(name));
        let LoginLimits { per_address, per_user } = self.limits;
        let cost = |limit: u64| MINUTE / limit.clamp(1, MINUTE);
        let per_address = u64::from(per_address);
        let mut tables = self.lock();
        let tables = &mut *tables;
        let is_known = name.as_ref().is_some_and(|name| tables.known.contains_key(&(from, name.clone())));
        let mut took = Took::default();
        if per_address > 0 {
            took.pair = match is_known {
                true => cost(per_address * KNOWN_FACTOR),
                false => cost(per_address.div_ceil(NAMES_PER_ADDRESS)),
            };
            took.address = if is_known { 0 } else { cost(per_address) };
        }
        if per_user > 0 && name.is_some() && !is_known && !from.is_loopback() {
            took.user = cost(u64::from(per_user));
        }
        let pair = (from, name.clone());
        let has_room = tables.pairs.has(&pair, took.pair, now)
            && tables.addresses.has(&from, took.address, now)
            && name.as_ref().is_none_or(|name| tables.users.has(name, took.user, now));
        if !has_room {
            return None;
        }
        tables.pairs.take(pair, took.pair, now);
        tables.addresses.take(from, took.address, now);
        if let Some(name) = &name {
            tables.users.take(name.clone(), took.user, now);
        }
        Some(Try { from, name, took, is_known })
    }

    /// The password was right: nothing counts, and the user is known there from now on.
    pub fn was_right(&self, admitted: Try, now: Millis) {
        let Try { from, name, took, .. } = admitted;
        let mut tables = self.lock();
        tables.addresses.put_back(&from, took.address);
        tables.pairs.put_back(&(from, name.clone()), took.pair);
        let Some(name) = name else { return };
        tables.users.put_back(&name, took.user);
        let known = &mut tables.known;
        known.insert((from, name), now);
        keep_latest(known, ENTRIES_MAX);
    }
}

impl<K: Clone + Eq + Hash> Buckets<K> {
    fn has(&self, key: &K, cost: Millis, now: Millis) -> bool {
        let full_at = self.full_at.get(key).copied().unwrap_or(0).max(now);
        full_at + cost <= now + MINUTE
    }

    fn take(&mut self, key: K, cost: Millis, now: Millis) {
        if cost == 0 {
            return;
        }
        let full_at = self.full_at.entry(key).or_default();
        *full_at = (*full_at).max(now) + cost;
        if self.full_at.len() > ENTRIES_MAX {
            self.full_at.retain(|_, full_at| *full_at > now);
            // Half of it at least goes, so that a flood of new addresses does not pay for a look
            // through the table each.
            keep_latest(&mut self.full_at, ENTRIES_MAX / 2);
        }
    }

    fn put_back(&mut self, key: &K, cost: Millis) {
        if let Some(full_at) = self.full_at.get_mut(key) {
            *full_at = full_at.saturating_sub(cost);
        }
    }
}

/// Forgets the older half of a table that has more than `limit` entries.
fn keep_latest<K: Eq + Hash>(table: &mut HashMap<K, Millis>, limit: usize) {
    if table.len() <= limit {
        return;
    }
    let mut moments: Vec<Millis> = table.values().copied().collect();
    let middle = moments.len() / 2;
    let (_, middle, _) = moments.select_nth_unstable(middle);
    let middle = *middle;
    table.retain(|_, moment| *moment > middle);
}

/// An IPv4 address is itself, however it is written; of IPv6 one customer has a network of 64 bits.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) if !six.is_loopback() => Ipv6Addr::from(u128::from(six) >> 64 << 64).into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn address(number: u32) -> IpAddr {
        core::net::Ipv4Addr::from(0x0b00_0000 + number).into()
    }

    fn fails(logins: &Logins, from: IpAddr, name: &str, count: usize, now: Millis) -> usize {
        (0..count).filter(|_| logins.admit(from, name.as_bytes(), true, now).is_some()).count()
    }

    #[test]
    fn an_address_fails_with_one_name_a_quarter_of_what_it_fails_with_many() {
        let logins = Logins::new(LoginLimits { per_address: 60, per_user: 0 });
        assert_eq!(fails(&logins, HOME, "ann", 1000, 1), 15);
        let others: usize = (0..10).map(|n| fails(&logins, HOME, &format!("user{n}"), 1000, 1)).sum();
        assert_eq!(others, 45);
        assert_eq!(fails(&logins, address(1), "ann", 1000, 1), 15, "another address has its own");
    }

    #[test]
    fn names_that_nobody_has_are_one_name() {
        let logins = Logins::new(LoginLimits::default());
        let tried = (0..1000).filter(|n| logins.admit(HOME, format!("no{n}").as_bytes(), false, 1).is_some()).count();
        assert_eq!(tried, 15);
        assert!(logins.admit(HOME, b"ann", true, 1).is_some());
    }

    #[test]
    fn what_was_used_up_comes_back_evenly() {
        let logins = Logins::new(LoginLimits { per_address: 60, per_user: 0 });
        fails(&logins, HOME, "ann", 1000, 1);
        assert_eq!(fails(&logins, HOME, "ann", 1000, 1 + MINUTE / 3), 5);
        assert_eq!(fails(&logins, HOME, "ann", 1000, 1 + 3 * MINUTE), 15);
    }

    #[test]
    fn right_passwords_use_up_nothing() {
        let logins = Logins::new(LoginLimits::default());
        for _ in 0..10_000 {
            logins.was_right(logins.admit(HOME, b"ann", true, 1).expect("it was right before"), 1);
        }
    }

    #[test]
    fn a_name_is_guarded_against_many_addresses_and_its_user_is_not_locked_out() {
        let logins = Logins::new(LoginLimits { per_address: 60, per_user: 60 });
        logins.was_right(logins.admit(HOME, b"ann", true, 1).expect("the first"), 1);
        let tried: usize = (0..1000).map(|n| fails(&logins, address(n), "ann", 10, 2)).sum();
        assert_eq!(tried, 60);
        assert!(logins.admit(address(5000), b"ann", true, 2).is_none());
        assert!(logins.admit(address(5000), b"bob", true, 2).is_some(), "another user is another's matter");
        logins.was_right(logins.admit(HOME, b"ann", true, 2).expect("ann came from there before"), 2);
        let here = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
        logins.was_right(logins.admit(here, b"ann", true, 2).expect("nobody elsewhere locks this machine out"), 2);
    }

    #[test]
    fn who_is_known_somewhere_is_guessed_at_there_no_faster_than_the_limit_says() {
        let logins = Logins::new(LoginLimits { per_address: 60, per_user: 60 });
        logins.was_right(logins.admit(HOME, b"ann", true, 1).expect("the first"), 1);
        assert_eq!(fails(&logins, HOME, "ann", 1000, 2), 240);
        assert_eq!(fails(&logins, HOME, "bob", 1000, 2), 15, "others there have what they had");
    }

    #[test]
    fn tables_stay_small_whatever_is_tried() {
        let logins = Logins::new(LoginLimits::default());
        for n in 0..50_000 {
            drop(logins.admit(address(n), format!("{n}").as_bytes(), true, u64::from(n)));
            if let Some(right) = logins.admit(address(n), b"ann", true, u64::from(n)) {
                logins.was_right(right, u64::from(n));
            }
        }
        let tables = logins.lock();
        let sizes = [tables.addresses.full_at.len(), tables.pairs.full_at.len(), tables.users.full_at.len()];
        assert!(sizes.iter().all(|size| *size <= ENTRIES_MAX), "{sizes:?}");
        assert!(tables.known.len() <= ENTRIES_MAX);
        assert!(tables.known.contains_key(&(address(49_999), Name::from("ann"))));
    }

    #[test]
    fn zero_is_no_limit() {
        let logins = Logins::new(LoginLimits { per_address: 0, per_user: 0 });
        assert_eq!(fails(&logins, HOME, "ann", 100_000, 1), 100_000);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), HOME);
        assert!(of("::1").is_loopback());
    }
}
