//! The HTTP listener: one thread, apart from those that move messages.
//!
//! Invariant: who asks slowly, too much or too often waits for himself. Connections, their life,
//! heads and bodies have limits that nothing a client sends renews, as have answers that it does
//! not read, and nothing is read of a body before it is known who sends it and that this user may
//! do what it is for.

use crate::answer::Answer;
use crate::body::{Body, Turns};
use crate::boot::Boot;
use crate::call::{self, Asker, Call};
use crate::encryption::{self, Served};
use crate::framing::{self, Framing};
use crate::metrics::Pages;
use crate::operator::Operator;
use crate::others;
use crate::page_session::Sessions;
use crate::patience::Patient;
use crate::permits::{self, Permit, Permits};
use crate::resource;
use crate::statistics::Statistics;
use crate::take_back;
use crate::ui;
use crate::unsent::{Answers, Owner};
use crate::waiting::{self, Requests};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use server::cluster::Question;
use server::{Handle, Startup};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Semaphore, oneshot};

/// How long one may last, whatever it does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the head of a request may take from the moment it is waited for, so also how long a
/// connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the first head may take, from the connection on: nothing is known of its sender.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take nothing of what it is sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Questions of other nodes that wait to be looked at; more are refused.
const QUESTIONS_WAITING_MAX: usize = 64;
/// Questions of other nodes that are looked at together.
const QUESTIONS_AT_A_TIME: usize = 8;
/// How long nothing is accepted after the system refused a connection, for want of descriptors say.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Addresses that are listened on and not served yet.
#[derive(Debug)]
pub struct Management {
    listeners: Vec<TcpListener>,
    /// Likewise, over HTTPS.
    tls: Vec<TcpListener>,
    /// Where metrics are served and nothing else.
    metrics: Vec<TcpListener>,
    /// Of a node on its way up.
    operator: Option<Operator>,
    boot: Option<Boot>,
}

/// How an address is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    is_tls: bool,
    /// Metrics and nothing else.
    is_metrics: bool,
}

/// A running listener; it ends when this is dropped.
#[derive(Debug)]
pub struct Listening {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Kept here where no thread has it.
    _idle: Option<Operator>,
}

impl Management {
    /// Takes all of `addresses`; who connects is refused for now. Errors: the first that does not work.
    pub fn bind(addresses: &[SocketAddr]) -> Result<Management, (SocketAddr, io::Error)> {
        let (tls, metrics) = (Vec::new(), Vec::new());
        Ok(Management { listeners: reserve(addresses)?, tls, metrics, operator: None, boot: None })
    }

    /// These too, over HTTPS. Errors: the first that does not work.
    pub fn bind_tls(self, addresses: &[SocketAddr]) -> Result<Management, (SocketAddr, io::Error)> {
        Ok(Management { tls: reserve(addresses)?, ..self })
    }

    /// Serves metrics alone on these too. Errors: the first that does not work.
    pub fn with_metrics(self, addresses: &[SocketAddr]) -> Result<Management, (SocketAddr, io::Error)> {
        Ok(Management { metrics: reserve(addresses)?, ..self })
    }

    /// Says over HTTP what a node on its way up waits for, and tells who runs this machine where it is;
    /// `folder` is its data folder. HTTPS comes with the certificates, and is refused until then. Errors:
    /// somebody else listens there, or a thread cannot be started.
    pub fn begin(&mut self, folder: &Path, startup: &Arc<Startup>) -> io::Result<()> {
        let plain: Vec<&TcpListener> = self.listeners.iter().chain(&self.metrics).collect();
        plain.iter().try_for_each(|listener| server::listen(listener))?;
        let operator = Operator::begin(folder, (startup.node_name(), startup.secret()), &self.served());
        let plain: Vec<TcpListener> = plain.into_iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
        if !plain.is_empty() {
            self.boot = Some(Boot::begin(plain, startup.clone(), operator.token().cloned())?);
        }
        self.operator = Some(operator);
        Ok(())
    }

    /// Where it listens for those who want metrics alone.
    pub fn metrics_addresses(&self) -> Vec<SocketAddr> {
        self.metrics.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Where it listens, and whether that is over HTTPS; for port 0 the system chose.
    pub fn addresses(&self) -> Vec<(SocketAddr, bool)> {
        self.served().into_iter().map(|served| (served.address, served.is_tls)).collect()
    }

    fn served(&self) -> Vec<Served> {
        let plain = self.listeners.iter().map(|listener| (listener, false));
        let all = plain.chain(self.tls.iter().map(|listener| (listener, true)));
        all.filter_map(|(listener, is_tls)| Some(Served { address: listener.local_addr().ok()?, is_tls })).collect()
    }

    /// Nobody is told any more what the node waits for: who connects waits until it is served.
    pub fn hold(&mut self) {
        drop(self.boot.take());
    }

    /// Answers on a thread that it starts. Nothing to listen on starts nothing, and who runs this
    /// machine is told so in the file that `operator` writes.
    pub fn serve(mut self, handle: Handle) -> io::Result<Listening> {
        let (served, scraped) = (self.served(), self.metrics_addresses());
        // Those that are listened on already stay so.
        self.listeners.iter().chain(&self.metrics).chain(&self.tls).try_for_each(server::listen)?;
        self.hold();
        let facts = handle.facts();
        let begin = || Operator::begin(&facts.config.data_dir, (&facts.node_name, handle.secret()), &served);
        let operator = self.operator.take().unwrap_or_else(begin);
        // Another node of the cluster may ask where nobody else does.
        if served.is_empty() && self.metrics.is_empty() && !handle.has_peers() {
            return Ok(Listening { end: None, thread: None, _idle: Some(operator) });
        }
        let (end, until) = oneshot::channel();
        let thread = std::thread::Builder::new().name("management".into()).spawn(move || {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(run(self, handle, (served, scraped), operator, until));
                    runtime.shutdown_timeout(LONG_WORK_MAX);
                }
                Err(error) => tracing::error!(%error, "the management API has no runtime"),
            }
        })?;
        Ok(Listening { end: Some(end), thread: Some(thread), _idle: None })
    }
}

fn reserve(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    addresses.iter().map(|address| server::reserve(*address).map_err(|error| (*address, error))).collect()
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

/// How long the node's end waits for what a request has a thread of its own for: definitions of 16 MiB that are looked at, or a
/// page of metrics. Nobody is told of it any more.
const LONG_WORK_MAX: Duration = Duration::from_secs(2);

/// What all connections share.
struct Shared {
    handle: Handle,
    served: Vec<Served>,
    /// Where metrics are served alone.
    scraped: Vec<SocketAddr>,
    permits: Rc<Permits>,
    turns: Rc<Turns>,
    requests: Rc<Requests>,
    answers: Answers,
    pages: Rc<Pages>,
    leave_waits: RefCell<Option<String>>,
    statistics: Rc<Statistics>,
    messages: Semaphore,
    operator: Operator,
    sessions: Sessions,
    /// Of what other nodes ask.
    node_permits: Rc<Permits>,
}

async fn run(
    management: Management,
    handle: Handle,
    (served, scraped): (Vec<Served>, Vec<SocketAddr>),
    operator: Operator,
    until: oneshot::Receiver<()>,
) {
    let shared = Rc::new(Shared {
        sessions: Sessions::new(&handle),
        handle,
        served,
        scraped,
        permits: Rc::default(),
        turns: Rc::new(Turns::new()),
        requests: Rc::default(),
        answers: Answers::default(),
        pages: Rc::default(),
        leave_waits: RefCell::default(),
        statistics: Rc::default(),
        messages: Semaphore::new(resource::MESSAGES_AT_A_TIME),
        operator,
        node_permits: Rc::default(),
    });
    // It ends with this thread's runtime.
    drop(tokio::task::spawn_local(shared.statistics.clone().run(shared.handle.clone())));
    tokio::task::spawn_local(take_back::run(shared.handle.clone()));
    if let Some(questions) = shared.handle.serve_questions(QUESTIONS_WAITING_MAX) {
        tokio::task::spawn_local(serve_questions(questions, shared.clone()));
    }
    let by = |is_tls, is_metrics| move |listener| (listener, Way { is_tls, is_metrics });
    let plain = management.listeners.into_iter().map(by(false, false));
    let tls = management.tls.into_iter().map(by(true, false));
    for (listener, way) in plain.chain(tls).chain(management.metrics.into_iter().map(by(false, true))) {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => drop(tokio::task::spawn_local(accept(listener, way, shared.clone()))),
            Err(error) => tracing::error!(%error, "the management API is not served"),
        }
    }
    // Its end, or that of whoever could send it.
    let _ = until.await;
    // Requests that are not answered yet may keep what they share a little longer.
    shared.operator.end();
}

async fn accept(listener: tokio::net::TcpListener, way: Way, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => drop(tokio::task::spawn_local(serve(stream, peer, way, shared.clone()))),
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// One connection, to its end.
async fn serve(stream: TcpStream, peer: SocketAddr, way: Way, shared: Rc<Shared>) {
    let permit = Rc::new(shared.permits.take(peer));
    if !way.is_tls {
        return speak(stream, peer, way, permit, shared).await;
    }
    let Some(config) = shared.handle.management_tls() else { return };
    let begun = tokio::select! {
        begun = encryption::begin(stream, config) => begun,
        () = permit.end.notified() => return tracing::debug!(%peer, "an HTTPS connection made room for another"),
        () = tokio::time::sleep(FIRST_HEAD_TIMEOUT) => return,
    };
    match begun {
        Ok(Some(stream)) => speak(stream, peer, way, permit, shared).await,
        Ok(None) => {}
        // Whoever connects may do this as often as it likes, so it is no warning.
        Err(error) => tracing::debug!(%peer, %error, "an HTTPS connection did not come about"),
    }
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: SocketAddr,
    way: Way,
    permit: Rc<Permit>,
    shared: Rc<Shared>,
) {
    let (asked, says_two) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let service = service_fn(|request: Request<Incoming>| {
        asked.set(true);
        let (permit, of_all, says_two) = (permit.clone(), shared.clone(), says_two.clone());
        let responding = async move {
            let (head, body) = request.into_parts();
            let has_body = !body.is_end_stream();
            if let Some(refused) = framing::objection(&head, has_body, says_two.get()) {
                let has_body = head.method != hyper::Method::HEAD;
                return Ok(framing::last(refused.into()).into_response(has_body));
            }
            let is_last = framing::is_last(&head);
            let mut responded = respond(Request::from_parts(head, body), (peer, way), permit, of_all).await;
            if let (Ok(response), true) = (&mut responded, is_last) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            responded
        };
        let hsts_s = way.is_tls.then_some(shared.handle.facts().config.management_hsts_s);
        async move {
            let mut responded = responding.await;
            if let (Ok(response), Some(hsts_s)) = (&mut responded, hsts_s) {
                encryption::secure(response.headers_mut(), hsts_s);
            }
            responded
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, WRITE_TIMEOUT, Framing::new(says_two.clone()))), service);
    let says_nothing = async {
        tokio::time::sleep(FIRST_HEAD_TIMEOUT).await;
        if asked.get() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // A client that speaks no HTTP, or goes away, harms nobody.
        _ = connection => {}
        () = says_nothing => {}
        () = permit.end.notified() => tracing::debug!(%peer, "an HTTP connection made room for another"),
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
    }
}

/// Answers what other nodes ask, for as long as they do.
async fn serve_questions(mut questions: Receiver<Question>, shared: Rc<Shared>) {
    let turns = Arc::new(Semaphore::new(QUESTIONS_AT_A_TIME));
    while let Some(question) = questions.recv().await {
        let Ok(turn) = turns.clone().acquire_owned().await else { return };
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            // One that cannot be read is dropped, which refuses it.
            if let Some(request) = others::Request::decode(&question.question)
                && let Some(answer) = answer_node(request, &shared).await
            {
                question.answer(others::encode_answer(answer));
            }
            drop(turn);
        });
    }
}

/// The answer to a request of another node.
async fn answer_node(request: others::Request, shared: &Shared) -> Option<Answer> {
    let others::Request { method, target, caller, peer, reason } = request;
    let mut head = Request::builder().method(method.as_str()).uri(target.as_str());
    if let Some(reason) = reason {
        head = head.header("x-reason", reason);
    }
    let (head, ()) = head.body(()).ok()?.into_parts();
    let permit = shared.node_permits.take(peer);
    let asking = shared.requests.begin(&method, head.uri.path(), peer);
    let asker = Asker::default();
    let call = Call {
        head: &head,
        peer,
        handle: &shared.handle,
        served: &shared.served,
        scraped: &shared.scraped,
        permit: &permit,
        asking: &asking,
        asker: &asker,
        messages: &shared.messages,
        answers: &shared.answers,
        operator: &shared.operator,
        pages: &shared.pages,
        leave_waits: &shared.leave_waits,
        statistics: &shared.statistics,
        sessions: &shared.sessions,
        narrow: RefCell::default(),
    };
    let body = Body::new(None, shared.turns.clone(), asking.request.clone());
    Some(resource::answer_node(&call, &caller, body).await.unwrap_or_else(Into::into))
}

type Responded = Result<Response<http_body_util::Full<bytes::Bytes>>, Infallible>;

/// Answers a request. One that may change something is a task of its own, which the connection only
/// waits for: what was begun is finished, whoever listens. It keeps the connection's place as long
/// as it lasts, so that hanging up brings nobody more.
async fn respond(
    request: Request<Incoming>,
    from: (SocketAddr, Way),
    permit: Rc<Permit>,
    shared: Rc<Shared>,
) -> Responded {
    permit.asks();
    let asker = Rc::new(Asker::default());
    if matches!(*request.method(), hyper::Method::GET | hyper::Method::HEAD) {
        return answer(request, from, &permit, &shared, &asker).await;
    }
    // Dropped with this when the connection ends.
    let _listener = call::Listener(asker.clone());
    let change = tokio::task::spawn_local(async move { answer(request, from, &permit, &shared, &asker).await });
    match change.await {
        Ok(answered) => answered,
        Err(error) => {
            tracing::error!(%error, "a request was not finished");
            Ok(Answer::from(crate::answer::Refused::NoAnswer).into_response(true))
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    (peer, way): (SocketAddr, Way),
    permit: &Permit,
    shared: &Shared,
    asker: &Asker,
) -> Responded {
    // Others have their turn between two requests that came at once: the socket of one who reads no
    // answers takes many of them before it is full.
    tokio::task::yield_now().await;
    let has_body = *request.method() != hyper::Method::HEAD;
    let (head, incoming) = request.into_parts();
    let asking = shared.requests.begin(head.method.as_str(), head.uri.path(), peer);
    let body = Body::new(Some(incoming), shared.turns.clone(), asking.request.clone());
    let call = Call {
        head: &head,
        peer,
        handle: &shared.handle,
        served: &shared.served,
        scraped: &shared.scraped,
        permit,
        asking: &asking,
        asker,
        messages: &shared.messages,
        answers: &shared.answers,
        operator: &shared.operator,
        sessions: &shared.sessions,
        pages: &shared.pages,
        leave_waits: &shared.leave_waits,
        statistics: &shared.statistics,
        narrow: RefCell::default(),
    };
    let answer = waiting::watch(&call, async {
        match call::is_metrics(&head) {
            true => crate::metrics::answer(&call).await,
            false if way.is_metrics => Err(crate::answer::Refused::NotFound),
            false if ui::is_page(&head) => ui::answer(&head),
            false => resource::answer(&call, body).await,
        }
    });
    let mut answer: Answer = answer.await.unwrap_or_else(Into::into);
    if Sessions::is_page(&head.headers) {
        answer = answer.without_challenge();
    }
    let user = asking.request.user.borrow().clone();
    let owner = user.map_or_else(|| Owner::Stranger(permits::network(peer.ip())), Owner::User);
    Ok(answer.map_body(|body| shared.answers.count(body, owner, &permit.end)).into_response(has_body))
}
