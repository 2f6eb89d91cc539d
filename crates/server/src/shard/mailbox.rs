//! The way into a shard from other threads: a vector behind a lock, swapped whole, and one wake-up
//! for what piled up.
//!
//! Invariant: parcels of one sender arrive in the order in which it sent them. A shard that has
//! parcels waiting has been woken, or stands still here and goes on ([`Mailbox::rest`]); nobody is woken twice for one
//! swap. The bytes of messages count
//! from when they are sent until the shard has shown what became of them: senders look at them
//! before they read more from publishers.

use super::{InQueues, Seat};
use crate::cluster::LinkArrival;
use crate::drain::DrainStep;
use crate::stream::Encrypted;
use ::node::MemberStanding;
use ::node::{Durations, Stage};
use broker::{QueueId, VhostId};
use partition::{DiskFigures, PartitionFigures, QueueFigures, Reply};
use session::Counted;
use session::report::{ConnectionFigures, ConnectionNumber, ConnectionReport};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use switch::DeadLettered;
use tokio::sync::oneshot;

use crate::tokens::Told;
use broker::topology::{Name, Refusal, Token};

/// What one shard, or another thread of the node, hands to a shard.
#[allow(clippy::large_enum_variant)] // Most parcels are for the switch.
pub(crate) enum Parcel {
    /// For its switch.
    Crossing(switch::Parcel<Outsider>),
    /// A new connection.
    Accepted(Box<Arrival>),
    /// A link to another node, which this shard has from now on.
    Linked(Box<LinkArrival>),
    /// Accept what comes here from now on.
    Listen(TcpListener),
    /// The node's alarms changed.
    Alarms,
    /// A user is gone: its connections are closed.
    UserDeleted(Name),
    /// A virtual host is gone: its connections are closed.
    VhostDeleted(VhostId, Name),
    /// Somebody looks at what this shard serves.
    Look(Look),
    /// The operator closes a connection.
    CloseConnection {
        /// Its number; another shard's connection is not found.
        connection: ConnectionNumber,
        /// What the client is told.
        text: String,
    },
    /// The operator closes all of them but the node's own.
    CloseClients,
    /// Somebody looked at the password of a login.
    Password {
        /// The connection's.
        seat: Seat,
        /// Whether it was right.
        is_right: bool,
    },
    /// Somebody looked at a token.
    Token {
        /// The connection's.
        seat: Seat,
        /// Whom it names, or why it counts for nothing.
        told: Told,
    },
    /// Another shard's gauge fell: connections that waited for it may read again.
    Relieved,
    /// The node ends, step by step.
    Drain(DrainStep),
}

/// Somebody who is no channel and waits for an answer: a task of another thread.
#[derive(Debug)]
pub(crate) struct Outsider(pub(crate) oneshot::Sender<Result<Reply, Refusal>>);

impl switch::Outsider for Outsider {
    fn answer(self, answer: Result<Reply, Refusal>) {
        // Who does not wait any more does not need it.
        drop(self.0.send(answer));
    }
}

/// What is looked at, and where the answer goes. Nobody waits on the shard's side: an answer that
/// nobody takes is dropped.
pub(crate) enum Look {
    /// The connections that are open.
    Connections(oneshot::Sender<Vec<ConnectionReport>>),
    /// What is in the queues.
    Queues(oneshot::Sender<Vec<InQueues>>),
    /// What the queues that are led here have on the disk, or this one alone.
    Disk(Option<QueueId>, oneshot::Sender<Vec<DiskFigures>>),
    /// How the members of groups stand.
    Members(oneshot::Sender<Vec<MemberStanding>>),
    /// What went through, since somebody looked before. One only may look, or each gets a part.
    Statistics(oneshot::Sender<Vec<ShardStatistics>>),
}

/// What went through a shard.
#[derive(Clone, Debug)]
pub struct ShardStatistics {
    /// Over each connection whose virtual host is open, since it came.
    pub connections: Vec<ConnectionFigures>,
    /// What is in the queues.
    pub queues: Vec<QueueFigures>,
    /// By exchange and queue, since the last look.
    pub counted: Counted,
    /// The groups of queues that have a copy here.
    pub partitions: Vec<PartitionFigures>,
    /// Dead letters sent since the start.
    pub dead_lettered: DeadLettered,
    /// How long things took since the start, in the order of [`node::Stage::ALL`].
    pub stages: [Durations; Stage::ALL.len()],
}

/// A connection on its way to its shard, past everything that comes before AMQP.
pub(crate) struct Arrival {
    /// The socket.
    pub(crate) socket: TcpStream,
    /// The client's address; behind a proxy the one that the proxy names.
    pub(crate) peer: SocketAddr,
    /// Whether it comes from this machine.
    pub(crate) is_loopback: bool,
    /// Its TLS, if it has any.
    pub(crate) tls: Option<Encrypted>,
    /// The user that its certificate names, if it showed one.
    pub(crate) certificate_user: Option<String>,
    /// The node's own, for a user who logged in elsewhere: `certificate_user`.
    pub(crate) is_own: bool,
    /// What that user has shown there, where it was a token.
    pub(crate) token: Option<Arc<Token>>,
}

impl Arrival {
    /// A connection that speaks AMQP from its first byte.
    pub(crate) fn plain(socket: TcpStream, peer: SocketAddr) -> Arrival {
        let is_loopback = peer.ip().to_canonical().is_loopback();
        Arrival { socket, peer, is_loopback, tls: None, certificate_user: None, is_own: false, token: None }
    }

    /// A connection of the node's own, for `user`, who logged in from `peer` by other means.
    pub(crate) fn own(socket: TcpStream, peer: SocketAddr, user: String, token: Option<Arc<Token>>) -> Arrival {
        Arrival { socket, peer, is_loopback: true, tls: None, certificate_user: Some(user), is_own: true, token }
    }
}

#[derive(Default)]
struct Waiting {
    parcels: Vec<Parcel>,
    /// Of the messages in `parcels`.
    bytes: u64,
    waker: Option<Waker>,
    /// The shard's thread stands still until somebody takes this back and notifies it.
    is_resting: bool,
}

/// One shard's mailbox.
#[derive(Clone, Default)]
pub(crate) struct Mailbox {
    inner: Arc<Mutex<Waiting>>,
    /// For the thread that stands still.
    roused: Arc<Condvar>,
    /// Of messages that were sent and not yet released.
    bytes: Arc<AtomicU64>,
}

impl Mailbox {
    /// Nothing is ever left half done under this lock, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over one parcel.
    pub(crate) fn send(&self, parcel: Parcel) {
        let mut inner = self.lock();
        inner.parcels.push(parcel);
        self.wake(inner);
    }

    fn wake(&self, mut inner: MutexGuard<'_, Waiting>) {
        if std::mem::take(&mut inner.is_resting) {
            drop(inner);
            return self.roused.notify_one();
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has the shard's thread go on if it stands still: a task of it was woken, which it does not see there.
    pub(crate) fn rouse(&self) {
        let mut inner = self.lock();
        if std::mem::take(&mut inner.is_resting) {
            drop(inner);
            self.roused.notify_one();
        }
    }

    /// Has the shard's thread, which calls this, stand still until there are parcels, it is roused, or so much time has gone by.
    /// True if there are parcels: nobody wakes the shard for them.
    pub(crate) fn rest(&self, at_most: Duration) -> bool {
        let mut inner = self.lock();
        if inner.parcels.is_empty() {
            inner.is_resting = true;
            let rested = self.roused.wait_timeout_while(inner, at_most, |waiting| waiting.is_resting);
            inner = rested.unwrap_or_else(PoisonError::into_inner).0;
            inner.is_resting = false;
        }
        !inner.parcels.is_empty()
    }

    /// Bytes of messages that are on their way to the shard.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The shard shows elsewhere what became of so many bytes that it took.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Sends a parcel for the shard's switch.
    pub(crate) fn cross(&self, parcel: switch::Parcel<Outsider>) {
        self.send(Parcel::Crossing(parcel));
    }

    /// Hands over many, in order, with one lock and at most one wake-up. Their messages have so
    /// many `bytes`.
    pub(crate) fn send_all(&self, parcels: impl ExactSizeIterator<Item = Parcel>, bytes: u64) {
        if parcels.len() == 0 {
            return;
        }
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let mut inner = self.lock();
        inner.bytes += bytes;
        inner.parcels.extend(parcels);
        self.wake(inner);
    }

    /// Takes everything into `parcels`, which is empty; with nothing there, `waker` is called at
    /// the next parcel. Returns how many bytes their messages have, which are to be released.
    pub(crate) fn take(&self, parcels: &mut Vec<Parcel>, waker: &Waker) -> u64 {
        assert!(parcels.is_empty(), "what was taken before is handled before more is taken");
        let mut inner = self.lock();
        if inner.parcels.is_empty() {
            if !inner.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                inner.waker = Some(waker.clone());
            }
        } else {
            std::mem::swap(&mut inner.parcels, parcels);
        }
        std::mem::take(&mut inner.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::PartitionId;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use switch::Parcel as Crossing;

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn many_parcels_are_one_wake_up_and_keep_their_order() {
        let wake = |id| Parcel::Crossing(Crossing::Wake(PartitionId(id)));
        let (mailbox, count) = (Mailbox::default(), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(count.clone());
        let mut taken = Vec::new();
        mailbox.take(&mut taken, &waker);
        mailbox.send(wake(1));
        mailbox.send_all([wake(2), wake(3)].into_iter(), 7);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(mailbox.take(&mut taken, &waker), 7);
        assert_eq!(mailbox.bytes(), 7, "they count until they are released");
        mailbox.release(7);
        assert_eq!(mailbox.bytes(), 0);
        let number = |parcel: &Parcel| if let Parcel::Crossing(Crossing::Wake(id)) = parcel { id.0 } else { 0 };
        let order: Vec<u32> = taken.iter().map(number).collect();
        assert_eq!(order, [1, 2, 3]);
        taken.clear();
        mailbox.take(&mut taken, &waker);
        mailbox.send(Parcel::Alarms);
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn who_stands_still_goes_on_with_the_first_parcel_when_roused_or_after_its_time() {
        const LONG: Duration = Duration::from_secs(3600);
        let (mailbox, count) = (Mailbox::default(), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(count.clone());
        let mut taken = Vec::new();
        mailbox.take(&mut taken, &waker);
        assert!(!mailbox.rest(Duration::from_millis(1)), "nothing came");
        let rests = || {
            let resting = mailbox.clone();
            let thread = std::thread::spawn(move || resting.rest(LONG));
            while !mailbox.lock().is_resting {
                std::thread::yield_now();
            }
            thread
        };
        let resting = rests();
        mailbox.rouse();
        assert!(!resting.join().expect("it goes on"), "a task of it was woken");
        let resting = rests();
        mailbox.send(Parcel::Alarms);
        assert!(resting.join().expect("it goes on"));
        assert_eq!(count.0.load(Ordering::SeqCst), 0, "it wakes itself");
        assert!(mailbox.rest(LONG), "there is something already");
        mailbox.send(Parcel::Alarms);
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "it does not rest, and may not look before it sleeps");
        mailbox.take(&mut taken, &waker);
        assert_eq!(taken.len(), 2);
    }
}
