//! The HTTP listener: one thread, apart from those that move messages.
//!
//! Invariant: who asks slowly, too much or too often waits for himself. Connections, their life, heads and bodies have limits,
//! and nothing is read of a body before it is known who sends it.

use crate::call::{self, Call};
use crate::resource;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use server::Handle;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, oneshot};

/// HTTP connections at one time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// How long one may last, whatever it does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the head of a request may take, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Largest body: RabbitMQ's own limit, in powers of two.
const BODY_BYTES_MAX: usize = 16 << 20;
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bodies read at one time, which bounds the memory for them.
const BODIES_MAX: usize = 4;
/// How long nothing is accepted after the system refused a connection, for want of descriptors say.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Addresses that are listened on and not served yet.
#[derive(Debug)]
pub struct Management {
    listeners: Vec<TcpListener>,
}

/// A running listener; it ends when this is dropped.
#[derive(Debug)]
pub struct Listening {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Management {
    /// Listens on all of `addresses`. Errors: the first that does not work.
    pub fn bind(addresses: &[SocketAddr]) -> Result<Management, (SocketAddr, io::Error)> {
        let bind = |address: &SocketAddr| server::bind(*address).map_err(|error| (*address, error));
        Ok(Management { listeners: addresses.iter().map(bind).collect::<Result<_, _>>()? })
    }

    /// Where it listens; for port 0 the system chose.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers on a thread that it starts. Nothing to listen on starts nothing.
    pub fn serve(self, handle: Handle) -> io::Result<Listening> {
        if self.listeners.is_empty() {
            return Ok(Listening { end: None, thread: None });
        }
        let (end, until) = oneshot::channel();
        let addresses = self.addresses();
        let thread = std::thread::Builder::new().name("management".into()).spawn(move || {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
            match runtime {
                Ok(runtime) => runtime.block_on(run(self.listeners, handle, addresses, until)),
                Err(error) => tracing::error!(%error, "the management API has no runtime"),
            }
        })?;
        Ok(Listening { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the management thread panicked");
        }
    }
}

/// What all connections share.
struct Shared {
    handle: Handle,
    addresses: Vec<SocketAddr>,
    bodies: Semaphore,
}

async fn run(listeners: Vec<TcpListener>, handle: Handle, addresses: Vec<SocketAddr>, until: oneshot::Receiver<()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shared = Rc::new(Shared { handle, addresses, bodies: Semaphore::new(BODIES_MAX) });
    for listener in listeners {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => drop(tokio::task::spawn_local(accept(listener, shared.clone(), room.clone()))),
            Err(error) => tracing::error!(%error, "the management API is not served"),
        }
    }
    // Its end, or that of whoever could send it.
    let _ = until.await;
}

async fn accept(listener: tokio::net::TcpListener, shared: Rc<Shared>, room: Arc<Semaphore>) {
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| respond(request, peer, shared.clone()));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // A client that speaks no HTTP, or goes away, harms nobody.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(place);
        });
    }
}

async fn respond(
    request: Request<Incoming>,
    peer: SocketAddr,
    shared: Rc<Shared>,
) -> Result<Response<http_body_util::Full<bytes::Bytes>>, Infallible> {
    let has_body = *request.method() != hyper::Method::HEAD;
    let (head, incoming) = request.into_parts();
    let body = async {
        let Ok(_turn) = shared.bodies.acquire().await else { return Err(crate::answer::Refused::NoAnswer) };
        let whole = Limited::new(incoming, BODY_BYTES_MAX).collect();
        match tokio::time::timeout(BODY_TIMEOUT, whole).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(_)) => Err(crate::answer::Refused::TooLarge),
            Err(_) => Err(crate::answer::Refused::TooSlow),
        }
    };
    let call = Call { head: &head, peer, handle: &shared.handle, http: &shared.addresses };
    let answer = match call::is_metrics(&head) {
        true => crate::metrics::answer(&call).await,
        false => resource::answer(&call, body).await,
    };
    let answer = answer.unwrap_or_else(Into::into);
    Ok(answer.into_response(has_body))
}
