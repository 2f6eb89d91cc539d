//! Listening sockets: bound before anything else starts, accepted on shard 0, served on all shards.
//!
//! Invariant: a full table of descriptors costs a log line and a pause, never the listener; a
//! connection beyond `connections_max` costs its accept and nothing more.

use crate::acceptor;
use crate::node::Shared;
use crate::shard::{Arrival, Parcel};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Connections that the kernel holds until we accept them; a burst of clients after a restart.
const BACKLOG: i32 = 4096;
/// How long nothing is accepted after the descriptors ran out: connections must close first.
const PAUSE: Duration = Duration::from_millis(200);
/// The same complaint at most this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(5);

/// Places are short once fewer than this part of all are free.
const PART_FREE: usize = 4;
/// An address with less than this part of what the one with most has gives no place.
const PART_OF_MOST: usize = 4;
/// Nobody gives way before it had so long: many clients behind one address may all come at once, after a restart.
const TIME_OF_ONE: Duration = Duration::from_millis(500);
/// How often whoever waits for a place looks whether somebody is to give way.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The places of connections that have more to say before AMQP begins.
///
/// Who begins a handshake and does not go on has a place until its time is over, without a login. So that nobody keeps the
/// others out, however many addresses it has: while places are short, the oldest of the address that has most of them gives
/// way. A client that goes on with its handshake is through long before that.
pub(crate) struct Room {
    places: Arc<Semaphore>,
    all: usize,
    taken: Mutex<HashMap<IpAddr, VecDeque<Taken>>>,
    complaint: Mutex<Complaint>,
}

/// A place that is taken: since when, and how its connection learns that it is to go.
struct Taken {
    since: Instant,
    end: Arc<Notify>,
}

/// One place; it is free again when this is dropped.
pub(crate) struct Place {
    room: Arc<Room>,
    of: Cell<IpAddr>,
    since: Instant,
    end: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Room {
    pub(crate) fn new(all: usize) -> Room {
        let complaint = Mutex::new(Complaint { last: None });
        Room { places: Arc::new(Semaphore::new(all)), all, taken: Mutex::default(), complaint }
    }

    /// Waits until a place is free. Nothing else wakes who is to give way.
    async fn free(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = std::pin::pin!(self.places.clone().acquire_owned());
        loop {
            tokio::select! {
                biased;
                permit = &mut free => return permit.ok(),
                () = tokio::time::sleep(LOOK_EVERY) => {
                    for _ in 0..self.all / PART_FREE {
                        self.make_room(Instant::now());
                    }
                }
            }
        }
    }

    /// A place for a connection of this address.
    fn take(self: &Arc<Self>, address: IpAddr, permit: OwnedSemaphorePermit, now: Instant) -> Place {
        if self.places.available_permits() < self.all / PART_FREE {
            self.make_room(now);
        }
        let (of, end) = (session::network(address), Arc::new(Notify::new()));
        let place = Place { room: self.clone(), of: Cell::new(of), since: now, end, _permit: permit };
        self.enter(&place);
        place
    }

    /// The oldest of the address that has most gives way, of those whose oldest had its time. Who has few beside one that has
    /// just come with many does not.
    fn make_room(&self, now: Instant) {
        let mut taken = self.taken();
        let longest = taken.values().map(VecDeque::len).max().unwrap_or(0);
        let had_time =
            |own: &VecDeque<Taken>| own.front().is_some_and(|first| now.duration_since(first.since) >= TIME_OF_ONE);
        let of_many = taken.values_mut().filter(|own| own.len() >= longest.div_ceil(PART_OF_MOST) && had_time(own));
        let most = of_many.max_by_key(|own| (own.len(), Reverse(own.front().map(|first| first.since))));
        if let Some(oldest) = most.and_then(VecDeque::pop_front) {
            oldest.end.notify_one();
            taken.retain(|_, own| !own.is_empty());
        }
    }

    fn enter(&self, place: &Place) {
        let mut taken = self.taken();
        let own = taken.entry(place.of.get()).or_default();
        let at = own.partition_point(|other| other.since <= place.since);
        own.insert(at, Taken { since: place.since, end: place.end.clone() });
    }

    /// False if it is not there any more: it was to give way.
    fn leave(&self, place: &Place) -> bool {
        let mut taken = self.taken();
        let Some(own) = taken.get_mut(&place.of.get()) else { return false };
        let before = own.len();
        own.retain(|other| !Arc::ptr_eq(&other.end, &place.end));
        let was_there = own.len() < before;
        if own.is_empty() {
            taken.remove(&place.of.get());
        }
        was_there
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<IpAddr, VecDeque<Taken>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether that connections give way is to be said now: each of a flood would be a line in the log.
    pub(crate) fn complains(&self) -> bool {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).is_due()
    }
}

impl Place {
    /// Newer connections came, and there is no room for all of them.
    pub(crate) async fn is_wanted(&self) {
        self.end.notified().await;
    }

    /// A proxy said whose connection it is.
    pub(crate) fn is_of(&self, address: IpAddr) {
        if self.room.leave(self) {
            self.of.set(session::network(address));
            self.room.enter(self);
        }
    }

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.leave(self);
    }
}

/// What a connection goes through before AMQP begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Door {
    /// A proxy says first whose connection it is.
    pub(crate) proxy: bool,
    /// Then comes TLS.
    pub(crate) tls: bool,
}

impl Door {
    /// Whether AMQP begins with the first byte.
    pub(crate) fn is_open(self) -> bool {
        !self.proxy && !self.tls
    }
}

/// Binds to `address`. Whoever connects is refused until it is [listened on](listen). An IPv6 address takes no
/// IPv4 connections, so that both can be listened on at one port.
pub fn reserve(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A restarted broker must not wait for the old one's connections to time out.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(TcpListener::from(socket))
}

/// Lets clients connect to an address that was [reserved](reserve); they wait until they are accepted. Errors:
/// somebody else listens there since, as a process may bind to what nobody listens on.
pub fn listen(reserved: &TcpListener) -> io::Result<()> {
    Ok(rustix::net::listen(reserved, BACKLOG)?)
}

/// How many listeners of a node let clients connect, and how many refuse them until it serves again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listeners {
    pub(crate) open: usize,
    pub(crate) resting: usize,
}

impl Listeners {
    fn of(&mut self, is_open: bool) -> &mut usize {
        if is_open { &mut self.open } else { &mut self.resting }
    }
}

/// One listener, counted for as long as it is there.
struct Listening<'a> {
    all: &'a watch::Sender<Listeners>,
    is_open: bool,
}

impl Listening<'_> {
    fn open(all: &watch::Sender<Listeners>) -> Listening<'_> {
        all.send_modify(|all| *all.of(true) += 1);
        Listening { all, is_open: true }
    }

    fn set(&mut self, is_open: bool) {
        self.all.send_modify(|all| {
            *all.of(self.is_open) -= 1;
            *all.of(is_open) += 1;
        });
        self.is_open = is_open;
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.all.send_modify(|all| *all.of(self.is_open) -= 1);
    }
}

/// Complains now and then.
struct Complaint {
    last: Option<Instant>,
}

impl Complaint {
    fn is_due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

/// Accepts until the node drains, and hands each connection to the shard with the fewest, those of
/// a door by way of the acceptor, on whose thread this runs then. `room` bounds how many are at the
/// door.
pub(crate) async fn accept(listener: TcpListener, door: Door, shared: Arc<Shared>, room: Arc<Room>) {
    let address = listener.local_addr();
    let failed = |error: io::Error| tracing::error!(%error, "a listener cannot be watched");
    let Ok(mut listener) = tokio::net::TcpListener::from_std(listener).map_err(failed) else { return };
    let mut rests = shared.rests.subscribe();
    if let Ok(address) = address {
        tracing::debug!(%address, tls = door.tls, proxy = door.proxy, "listening for AMQP");
    }
    let mut complaint = Complaint { last: None };
    let mut next = 0;
    let mut listening = Listening::open(&shared.listeners);
    loop {
        if *rests.borrow_and_update() {
            let awake = rest(listener, &mut rests, || listening.set(false)).await;
            let Ok(awake) = awake.map_err(failed) else { return };
            listening.set(true);
            listener = awake;
            continue;
        }
        let Some(permit) = room.free().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            changed = rests.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        if shared.draining.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((stream, peer)) => {
                if shared.connections() >= shared.config.connections_max {
                    if complaint.is_due() {
                        let limit = shared.config.connections_max;
                        tracing::warn!(%peer, limit, "connection refused: connections_max is reached");
                    }
                    continue;
                }
                let shard = fewest(&shared, next);
                next = shard + 1;
                if door.is_open() {
                    let Ok(stream) = stream.into_std() else { continue };
                    shared.gauges[shard].connections.fetch_add(1, Ordering::Relaxed);
                    shared.mailboxes[shard].send(Parcel::Accepted(Box::new(Arrival::plain(stream, peer))));
                    continue;
                }
                // What a proxy passes on has the proxy's address until it has said whose it is.
                let place = room.take(peer.ip(), permit, Instant::now());
                shared.gauges[shard].connections.fetch_add(1, Ordering::Relaxed);
                let shared = shared.clone();
                tokio::task::spawn_local(async move {
                    acceptor::let_in(stream, peer, door, shard, shared, place).await;
                });
            }
            Err(error) if is_exhaustion(&error) => {
                if complaint.is_due() {
                    tracing::error!(
                        %error,
                        "cannot accept connections: raise the limit of open files (ulimit -n, LimitNOFILE), \
                         or close connections; clients wait meanwhile"
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
            // The connection was gone before it was accepted; the next one may be there.
            Err(error) => tracing::debug!(%error, "accept failed"),
        }
    }
}

/// Refuses whoever connects until the node serves again; `refuses` is called once that is so.
async fn rest(
    listener: tokio::net::TcpListener,
    rests: &mut watch::Receiver<bool>,
    refuses: impl FnOnce(),
) -> io::Result<tokio::net::TcpListener> {
    let address = listener.local_addr()?;
    drop(listener);
    let listener = reserve(address)?;
    refuses();
    if rests.wait_for(|rests| !rests).await.is_err() {
        return Err(io::ErrorKind::NotConnected.into());
    }
    listen(&listener)?;
    tokio::net::TcpListener::from_std(listener)
}

/// The shard with the fewest connections, the next in turn among equals.
pub(crate) fn fewest(shared: &Shared, start: usize) -> usize {
    let count = shared.gauges.len();
    let shards = (0..count).map(|at| (start + at) % count);
    shards.min_by_key(|shard| shared.gauges[*shard].connections.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Whether the process, the system or its memory is out of what a connection needs.
fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let Some(code) = error.raw_os_error() else { return false };
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|known| known.raw_os_error() == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future as _;

    fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let reserved = reserve(address)?;
        listen(&reserved)?;
        Ok(reserved)
    }

    #[test]
    fn who_connects_before_the_node_listens_is_refused_at_once() {
        let reserved = reserve("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = reserved.local_addr().expect("bound");
        let refused = std::net::TcpStream::connect(address).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        listen(&reserved).expect("it is ours");
        let _client = std::net::TcpStream::connect(address).expect("it listens");
        assert_eq!(bind(address).expect_err("it is listened on").kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn while_a_node_rests_who_connects_is_refused_and_afterwards_let_in() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let reserved = bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = reserved.local_addr().expect("bound");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(reserved).expect("it can be watched");
            let (tell, mut rests) = watch::channel(true);
            let mut refuses = false;
            let resting = rest(listener, &mut rests, || refuses = true);
            let looking = async {
                while tokio::net::TcpStream::connect(address).await.is_ok() {
                    tokio::task::yield_now().await;
                }
                tell.send_replace(false);
            };
            let (listener, ()) = tokio::join!(resting, looking);
            let listener = listener.expect("it listens again");
            assert!(refuses, "whoever waits for that is told");
            let (client, accepted) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
            assert!(client.is_ok() && accepted.is_ok(), "{client:?} {accepted:?}");
        });
    }

    #[test]
    fn listeners_are_counted_by_whether_they_let_clients_in_and_not_at_all_once_they_are_gone() {
        let all = watch::Sender::default();
        let counted = |open, resting| assert_eq!(*all.borrow(), Listeners { open, resting });
        let (mut first, second) = (Listening::open(&all), Listening::open(&all));
        counted(2, 0);
        first.set(false);
        counted(1, 1);
        drop(second);
        counted(0, 1);
        first.set(true);
        counted(1, 0);
        first.set(false);
        drop(first);
        counted(0, 0);
    }

    #[test]
    fn both_families_listen_on_one_port() {
        let four = bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let port = four.local_addr().expect("bound").port();
        let six = bind(SocketAddr::new("::".parse().expect("an address"), port));
        // A machine without IPv6 has nothing to show here.
        if let Err(error) = six {
            assert_ne!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }

    /// A room, and what takes a place in it at a time.
    fn room(all: usize) -> (Arc<Room>, impl Fn([u8; 4], Instant) -> Place) {
        let room = Arc::new(Room::new(all));
        let taking = room.clone();
        let take = move |address: [u8; 4], now| {
            let permit = taking.places.clone().try_acquire_owned().expect("there is room");
            taking.take(IpAddr::from(address), permit, now)
        };
        (room, take)
    }

    fn is_to_go(place: &Place) -> bool {
        let mut wanted = std::pin::pin!(place.is_wanted());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        wanted.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn of_the_address_that_begins_most_handshakes_the_oldest_give_way_however_many_addresses_there_are() {
        let (room, take) = room(64);
        let begin = Instant::now();
        // Eight addresses with six each: none of them has much.
        let mut flood: Vec<Place> =
            (0..48).map(|at| take([192, 0, 2, at % 8], begin + Duration::from_millis(at.into()))).collect();
        let other = take([192, 0, 2, 99], begin);
        assert!(!flood.iter().chain([&other]).any(is_to_go), "a quarter was free");
        flood.push(take([192, 0, 2, 1], begin + TIME_OF_ONE - Duration::from_millis(1)));
        assert!(!flood.iter().chain([&other]).any(is_to_go), "each has its time");
        for at in 0..9 {
            flood.push(take([192, 0, 3, at], begin + TIME_OF_ONE + Duration::from_millis(100)));
        }
        let to_go: Vec<usize> = (0..flood.len()).filter(|at| is_to_go(&flood[*at])).collect();
        assert_eq!(to_go, [0, 1, 2, 3, 4, 5, 6, 7, 9], "the oldest of who has most, which is another one each time");
        assert!(!is_to_go(&other), "who has least stays");
        drop((flood, other));
        assert!(room.taken().is_empty(), "nothing is remembered of who is gone");
        assert_eq!(room.places.available_permits(), 64);
    }

    #[test]
    fn who_has_just_come_with_many_neither_keeps_older_ones_in_nor_drives_out_who_has_few() {
        let (_, take) = room(64);
        let (begin, now) = (Instant::now(), Instant::now() + 2 * TIME_OF_ONE);
        let older: Vec<Place> = (0..24).map(|at| take([192, 0, 2, at % 4], begin)).collect();
        let slow = take([192, 0, 2, 99], begin);
        let flood: Vec<Place> = (0..23).map(|_| take([192, 0, 2, 200], now)).collect();
        assert!(!older.iter().chain(&flood).chain([&slow]).any(is_to_go), "a quarter is free");
        let newest: Vec<Place> = (0..2).map(|at| take([192, 0, 3, at], now)).collect();
        assert!(older.iter().any(is_to_go), "they have a quarter of what the flood has, and had their time");
        assert!(!flood.iter().chain(&newest).chain([&slow]).any(is_to_go));
        // Though nobody else had time, the one that is slow is not driven out by who has just come with many.
        drop((older, newest));
        let more: Vec<Place> = (0..32).map(|_| take([192, 0, 2, 200], now)).collect();
        assert!(!flood.iter().chain(&more).chain([&slow]).any(is_to_go));
    }

    #[test]
    fn what_a_proxy_passes_on_counts_for_whom_it_names() {
        let (room, take) = room(64);
        let begin = Instant::now();
        let proxy = [192, 0, 2, 1];
        // The oldest of all that the proxy passes on.
        let other = take(proxy, begin);
        other.is_of([10, 1, 1, 1].into());
        let flood: Vec<Place> = (1..=50).map(|at| take(proxy, begin + Duration::from_millis(at))).collect();
        flood.iter().for_each(|place| place.is_of([10, 9, 8, 7].into()));
        let late = begin + 2 * TIME_OF_ONE;
        let newest = take(proxy, late);
        assert!(is_to_go(&flood[0]) && !is_to_go(&other) && !is_to_go(&newest));
        // Who is to go anyway has no place to take along.
        flood[0].is_of([10, 1, 1, 1].into());
        assert_eq!(room.taken().values().map(VecDeque::len).sum::<usize>(), 51);
        drop((flood, other, newest));
        assert!(room.taken().is_empty());
    }

    #[test]
    fn who_waits_for_a_place_has_one_soon_though_nobody_says_anything_any_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (room, take) = room(8);
            let silent: Vec<Place> = (0..8).map(|_| take([192, 0, 2, 1], Instant::now())).collect();
            let silent = silent.into_iter().map(|place| async move { place.is_wanted().await });
            let gone = tokio::task::LocalSet::new();
            silent.for_each(|place| drop(gone.spawn_local(place)));
            let free = tokio::time::timeout(TIME_OF_ONE * 20, room.free());
            assert!(gone.run_until(free).await.expect("somebody gives way").is_some());
        });
    }

    #[test]
    fn running_out_of_descriptors_is_told_from_a_lost_client() {
        let error = |errno: rustix::io::Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        assert!(is_exhaustion(&error(rustix::io::Errno::MFILE)));
        assert!(!is_exhaustion(&error(rustix::io::Errno::CONNABORTED)));
    }
}
