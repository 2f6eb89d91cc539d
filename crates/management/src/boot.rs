//! What is answered over HTTP while a node is on its way up: that it is, and what it waits for. Who runs
//! this machine may stop it.
//!
//! Invariant: nothing of a request is looked at but what asks for a stop. A connection ends after one
//! answer, and after [`CONNECTION_TIMEOUT`] without one; who comes while there are [`AT_ONCE_MAX`] waits.
//! What a node waits for, with the names of other nodes, hears who runs this machine alone.

use crate::answer::Answer;
use crate::operator::Token;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use server::Startup;
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, oneshot};

/// How long a connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// So many are there at once.
const AT_ONCE_MAX: usize = 64;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long those who were accepted have for their answer when the node is up.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
/// How long nothing is accepted after the system refused a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// The thread that answers; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Boot {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Boot {
    /// Answers on these sockets until it is dropped. `token` is the operator's, if there is one.
    pub(crate) fn begin(listeners: Vec<TcpListener>, startup: Arc<Startup>, token: Option<Token>) -> io::Result<Boot> {
        let (end, until) = oneshot::channel();
        let thread = std::thread::Builder::new().name("boot".into()).spawn(move || {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
            match runtime {
                Ok(runtime) => runtime.block_on(run(listeners, Rc::new(Answers::new(startup, token)), until)),
                Err(error) => tracing::error!(%error, "nobody is told what the node waits for"),
            }
        })?;
        Ok(Boot { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that says what the node waits for panicked");
        }
    }
}

struct Answers {
    startup: Arc<Startup>,
    token: Option<Token>,
    places: Arc<Semaphore>,
    is_stopping: Cell<bool>,
}

impl Answers {
    fn new(startup: Arc<Startup>, token: Option<Token>) -> Answers {
        Answers { startup, token, places: Arc::new(Semaphore::new(AT_ONCE_MAX)), is_stopping: Cell::new(false) }
    }

    fn answer(&self, request: &Request<Incoming>, peer: SocketAddr) -> Answer {
        let authorization = request.headers().get("authorization").map(|value| value.as_bytes());
        self.answer_to(request.method(), request.uri().path(), authorization, peer)
    }

    fn answer_to(&self, method: &Method, path: &str, authorization: Option<&[u8]>, peer: SocketAddr) -> Answer {
        let is_here = peer.ip().to_canonical().is_loopback();
        let named = authorization.and_then(crate::access::bearer);
        let is_operator = is_here && named.zip(self.token.as_ref()).is_some_and(|(named, token)| token.is(named));
        if is_operator && method == Method::POST && path == "/api/leveret/stop" {
            if !self.is_stopping.replace(true) {
                crate::operator::stop_soon();
            }
            return Answer::accepted();
        }
        let name = self.startup.node_name();
        let why = match is_here {
            true => format!("{name} is on its way up and serves nobody yet: {}", self.startup.waits_for()),
            false => "the node is on its way up and serves nobody yet; its log says what it waits for".to_owned(),
        };
        Answer::booting(&why)
    }
}

async fn run(listeners: Vec<TcpListener>, answers: Rc<Answers>, until: oneshot::Receiver<()>) {
    let begin = |listener| match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => Some(tokio::task::spawn_local(accept(listener, answers.clone()))),
        Err(error) => {
            tracing::error!(%error, "nobody is told what the node waits for");
            None
        }
    };
    let accepting: Vec<_> = listeners.into_iter().filter_map(begin).collect();
    // Its end, or that of whoever could send it.
    let _ = until.await;
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    let all = u32::try_from(AT_ONCE_MAX).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(LAST_ANSWERS, answers.places.acquire_many(all)).await;
}

async fn accept(listener: tokio::net::TcpListener, answers: Rc<Answers>) {
    loop {
        let Ok(place) = answers.places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let answers = answers.clone();
                tokio::task::spawn_local(async move {
                    speak(stream, peer, &answers).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection could not be accepted");
                drop(place);
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn speak(stream: TcpStream, peer: SocketAddr, answers: &Answers) {
    let service = service_fn(|request: Request<Incoming>| {
        let has_body = *request.method() != Method::HEAD;
        let response = answers.answer(&request, peer).into_response(has_body);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that speaks no HTTP, or goes away, harms nobody.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    const TOKEN: &str = "0123456789abcdef";

    fn waiting() -> Arc<Startup> {
        let startup = Startup::new("leveret@n1");
        startup.note("it waits for nodes n2, n3".to_owned());
        Arc::new(startup)
    }

    fn begin(startup: &Arc<Startup>) -> (Boot, SocketAddr) {
        let listener = server::reserve("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        server::listen(&listener).expect("it is ours");
        let address = listener.local_addr().expect("it is bound");
        let boot = Boot::begin(vec![listener], startup.clone(), Some(Token::of_test(TOKEN))).expect("a thread");
        (boot, address)
    }

    fn said(address: SocketAddr, request: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it ends after one answer");
        said
    }

    #[test]
    fn whatever_is_asked_is_answered_at_once_with_what_the_node_waits_for() {
        let startup = waiting();
        let (boot, address) = begin(&startup);
        for request in ["GET /api/whoami", "GET /", "PUT /api/queues/%2F/q", "DELETE /x", "POST /api/leveret/stop"] {
            let said = said(address, &format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n"));
            assert!(said.starts_with("HTTP/1.1 503 ") && said.contains(r#""booting":true"#), "{said}");
            let reason = "leveret@n1 is on its way up and serves nobody yet: it waits for nodes n2, n3";
            assert!(said.contains(reason) && said.contains("retry-after: 2"), "{said}");
        }
        let said = said(address, "HEAD /api/whoami HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 503 ") && said.ends_with("\r\n\r\n"), "{said}");
        drop(boot);
    }

    #[test]
    fn who_is_elsewhere_hears_no_names_and_stops_nothing() {
        let startup = waiting();
        let answers = Answers::new(startup, Some(Token::of_test(TOKEN)));
        let authorization = format!("Bearer {TOKEN}");
        let elsewhere = "192.0.2.1:9".parse().expect("an address");
        let answer = answers.answer_to(&Method::POST, "/api/leveret/stop", Some(authorization.as_bytes()), elsewhere);
        let (status, body) = answer.into_parts();
        let body = String::from_utf8_lossy(&body).into_owned();
        assert!(status == 503 && !body.contains("n2") && !answers.is_stopping.get(), "{body}");
        let here = "127.0.0.1:9".parse().expect("an address");
        let wrong = answers.answer_to(&Method::POST, "/api/leveret/stop", Some(b"Bearer 0123456789abcdee"), here);
        assert!(wrong.status() == 503 && !answers.is_stopping.get());
    }
}
