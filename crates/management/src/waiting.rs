//! Requests under way: which of them is not answered for long is told in the log, once, and to
//! whoever asks what waits for what.
//!
//! Invariant: the time that a client takes to send its body does not count as one that it waits for us: where that
//! is what takes long, it is told as what it is.

use crate::call::Call;
use broker::PartitionId;
use broker::topology::{Name, Topology};
use percent_encoding::percent_decode;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A request that waits for so long is told of. As with AMQP: no sync that goes well takes as long.
const TOLD: Duration = Duration::from_secs(10);

/// All requests under way.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    all: RefCell<BTreeMap<u64, Rc<Request>>>,
    next: Cell<u64>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Request {
    number: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) user: RefCell<Option<Name>>,
    since: Cell<Instant>,
    /// What is missing of its body while that is read.
    lacks: Cell<Option<Lacking>>,
    /// Its body is there.
    whole: Notify,
}

/// What a body that is not whole waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// Its sender.
    Bytes,
    /// Other long bodies, which are read before it.
    Turn,
}

/// What a request is about and waits for.
pub(crate) struct Awaited {
    pub(crate) vhost: Option<Vec<u8>>,
    pub(crate) queue: Option<Vec<u8>>,
    pub(crate) partition: Option<PartitionId>,
    pub(crate) what: &'static str,
}

/// A request's place among the others, until this is dropped.
#[derive(Debug)]
pub(crate) struct Asking {
    requests: Rc<Requests>,
    pub(crate) request: Rc<Request>,
}

impl Requests {
    /// A request begins.
    pub(crate) fn begin(self: &Rc<Self>, method: &str, path: &str, peer: SocketAddr) -> Asking {
        let number = self.next.get();
        self.next.set(number + 1);
        let (method, path) = (method.to_owned(), path.to_owned());
        let since = Cell::new(Instant::now());
        let user = RefCell::default();
        let (lacks, whole) = (Cell::new(None), Notify::new());
        let request = Rc::new(Request { number, peer, method, path, user, since, lacks, whole });
        self.all.borrow_mut().insert(number, request.clone());
        Asking { requests: self.clone(), request }
    }
}

impl Asking {
    /// The requests beside this one.
    pub(crate) fn others(&self) -> Vec<Rc<Request>> {
        let all = self.requests.all.borrow();
        all.values().filter(|request| request.number != self.request.number).cloned().collect()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.requests.all.borrow_mut().remove(&self.request.number);
    }
}

impl Request {
    /// Its body is read from now on, and waits for this.
    pub(crate) fn lacks(&self, lacking: Lacking) {
        self.lacks.set(Some(lacking));
    }

    /// Its body is there: from now on it waits for us.
    pub(crate) fn is_whole(&self) {
        self.since.set(Instant::now());
        self.lacks.set(None);
        self.whole.notify_one();
    }

    pub(crate) fn waited_ms(&self) -> u64 {
        self.since.get().elapsed().as_millis() as u64
    }

    /// What it is about, as its path says it, and what it waits for.
    pub(crate) fn awaited(&self, topology: &Topology) -> Awaited {
        let path = self.path.strip_prefix("/api/").unwrap_or_default();
        let parts: Vec<Vec<u8>> = path.split('/').map(|part| percent_decode(part.as_bytes()).collect()).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let (vhost, queue) = match parts[..] {
            [b"queues", vhost, queue, ..] | [b"bindings", vhost, b"e", _, b"q", queue, ..] => {
                (Some(vhost), Some(queue))
            }
            [b"queues" | b"exchanges" | b"bindings" | b"vhosts" | b"permissions" | b"policies", vhost, ..] => {
                (Some(vhost), None)
            }
            _ => (None, None),
        };
        let partition = vhost.zip(queue).and_then(|(vhost, queue)| {
            let vhost = topology.vhost(vhost)?;
            topology.find_queue(vhost, queue).map(|queue| queue.partition)
        });
        let what = match (self.lacks.get(), &*self.method, &parts[..]) {
            (Some(Lacking::Bytes), ..) => "body",
            (Some(Lacking::Turn), ..) => "bodies",
            (None, "GET" | "HEAD", _) => "shards",
            (None, "DELETE", [b"queues", ..]) => "partition",
            _ => "topology",
        };
        Awaited { vhost: vhost.map(<[u8]>::to_vec), queue: queue.map(<[u8]>::to_vec), partition, what }
    }
}

/// Waits for the answer to a call, and tells of it if that takes too long: once while its body comes, and once after that.
pub(crate) async fn watch<T>(call: &Call<'_>, answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    let request = &call.asking.request;
    loop {
        let since = request.since.get();
        match tokio::time::timeout_at(since + TOLD, answer.as_mut()).await {
            Ok(answer) => return answer,
            Err(_) if request.since.get() > since => continue,
            Err(_) => {}
        }
        tell(call);
        if request.lacks.get().is_none() {
            return answer.await;
        }
        tokio::select! {
            answer = answer.as_mut() => return answer,
            () = request.whole.notified() => {}
        }
    }
}

fn tell(call: &Call<'_>) {
    let request = &call.asking.request;
    let Awaited { vhost, queue, partition, what } = request.awaited(&call.handle.topology());
    let [vhost, queue] = [vhost, queue].map(|name| name.map(|name| String::from_utf8_lossy(&name).into_owned()));
    let user = request.user.borrow().as_ref().map(|name| String::from_utf8_lossy(name).into_owned());
    tracing::warn!(
        peer = %request.peer, user, method = request.method, path = request.path, queue, vhost,
        partition = partition.map(|id| id.0), waits_for = what, waited_ms = request.waited_ms(),
        "an HTTP request is not answered"
    );
}
