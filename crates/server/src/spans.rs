//! Where the spans of traced messages go: to a collector, by OTLP over HTTP in JSON.
//!
//! ```text
//!   shards ──a span that ended──▶ at most SPANS_WAITING_MAX ──▶ "spans": batches ──POST──▶ collector
//!                  └── where that is full: dropped and counted
//! ```
//!
//! Invariant: whoever ends a span waits for nobody: neither for a collector that is away, nor for one
//! that hangs. What is dropped is counted, and told once until a collector takes spans again.

mod otlp;
mod sender;

use crate::config::TraceSettings;
use sender::Sender;
use session::{Sampler, Span};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Spans that wait for the thread that sends them: a few hundred bytes each.
const SPANS_WAITING_MAX: usize = 4096;
/// How long a node that ends goes on to send what waits.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Why a node that is to trace messages does not start.
#[derive(Debug, thiserror::Error)]
#[error("otel_endpoint: {0}")]
pub struct WrongCollector(String);

/// What became of spans since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanFigures {
    /// A collector has them.
    pub sent: u64,
    /// Nobody has them.
    pub dropped: u64,
}

/// What the shards and the thread that sends have in common.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// The operator was told that spans are dropped, and no collector has taken any since.
    has_told: AtomicBool,
    /// When the sending is to be over.
    end_at: Mutex<Option<Instant>>,
}

impl Counts {
    fn give_up(&self, count: u64, why: &str) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
        if count > 0 && !self.has_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(why, "spans of traced messages are dropped; messages go on as they are");
        }
    }

    fn sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::Relaxed);
        if self.has_told.swap(false, Ordering::Relaxed) {
            let dropped = self.dropped.load(Ordering::Relaxed);
            tracing::info!(dropped, "the collector takes spans again");
        }
    }

    fn end_at(&self) -> Option<Instant> {
        *self.end_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(crate) struct Spans {
    sampler: Sampler,
    counts: Arc<Counts>,
    /// Gone once the node ends.
    to: Mutex<Option<SyncSender<Box<Span>>>>,
    /// The thread has ended.
    ended: Mutex<Option<Receiver<()>>>,
}

impl Spans {
    /// Starts the thread that sends. `start` is when the clock of spans began. Errors: the thread cannot be
    /// started, or nobody is believed about the collector's address.
    pub(crate) fn start(settings: TraceSettings, node_name: &str, start: Instant) -> Result<Spans, WrongCollector> {
        let (to, spans) = sync_channel(SPANS_WAITING_MAX);
        let (ends, ended) = channel();
        let counts: Arc<Counts> = Arc::default();
        let sampler = settings.sampler;
        let sender = Sender::new(&settings, node_name, start, counts.clone()).map_err(WrongCollector)?;
        let thread = std::thread::Builder::new().name("spans".to_owned()).spawn(move || {
            sender.run(&spans);
            drop(ends);
        });
        thread.map_err(|error| WrongCollector(format!("its thread cannot be started: {error}")))?;
        Ok(Spans { sampler, counts, to: Mutex::new(Some(to)), ended: Mutex::new(Some(ended)) })
    }

    /// Of which messages spans are made that bring no trace along.
    pub(crate) fn sampler(&self) -> Sampler {
        self.sampler
    }

    /// A span has ended.
    pub(crate) fn end(&self, span: Box<Span>) {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if to.as_ref().is_none_or(|to| to.try_send(span).is_err()) {
            self.counts.give_up(1, "the collector does not take them as fast as they come");
        }
    }

    /// A span was given up.
    pub(crate) fn drop_one(&self) {
        self.counts.give_up(1, "too many messages of one connection are traced at once");
    }

    /// What became of all spans.
    pub(crate) fn figures(&self) -> SpanFigures {
        let Counts { sent, dropped, .. } = &*self.counts;
        SpanFigures { sent: sent.load(Ordering::Relaxed), dropped: dropped.load(Ordering::Relaxed) }
    }

    /// The node ends: what waits is sent, for as long as [`END_PATIENCE`] at most.
    pub(crate) fn stop(&self) {
        *self.counts.end_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + END_PATIENCE);
        // The thread ends with the last span that was sent here.
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if ended.is_some_and(|ended| ended.recv_timeout(END_PATIENCE) == Err(RecvTimeoutError::Timeout)) {
            tracing::warn!("the collector does not answer: the last spans are not sent");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    pub(crate) use crate::spans::otlp::tests::span;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    fn settings(listener: &TcpListener) -> TraceSettings {
        TraceSettings {
            endpoint: format!("http://{}/v1/traces", listener.local_addr().unwrap()),
            sampler: Sampler::default(),
            headers: vec![("x-key".to_owned(), "sesame".to_owned())],
            service_name: "leveret".to_owned(),
            attributes: Vec::new(),
            authorities: None,
        }
    }

    /// Reads one request, its body as JSON, and gives this answer.
    fn answer(socket: TcpStream, status: &str) -> (String, serde_json::Value) {
        let mut reader = BufReader::new(socket);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}");
        reader.into_inner().write_all(text.as_bytes()).unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    }

    fn names(body: &serde_json::Value) -> Vec<String> {
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        spans.iter().map(|span| span["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn spans_come_in_batches_and_those_that_wait_are_sent_at_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let spans = Spans::start(settings(&listener), "leveret@test", Instant::now()).unwrap();
        (0..700).for_each(|_| spans.end(span()));
        let (tell, told) = mpsc::channel();
        let collector = std::thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                let (head, body) = answer(socket, "200 OK");
                assert!(head.contains("x-key: sesame") && head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
                tell.send(names(&body).len()).unwrap();
            }
        });
        assert_eq!(told.recv().unwrap(), sender::BATCH_MAX);
        spans.stop();
        assert_eq!(told.recv().unwrap(), 700 - sender::BATCH_MAX);
        assert_eq!(spans.figures(), SpanFigures { sent: 700, dropped: 0 });
        spans.end(span());
        assert_eq!(spans.figures(), SpanFigures { sent: 700, dropped: 1 }, "nobody sends it any more");
        drop(collector);
    }

    #[test]
    fn a_collector_that_hangs_keeps_nobody_waiting_and_what_does_not_fit_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let spans = Spans::start(settings(&listener), "leveret@test", Instant::now()).unwrap();
        let begin = Instant::now();
        let count = SPANS_WAITING_MAX + 3 * sender::BATCH_MAX;
        (0..count).for_each(|_| spans.end(span()));
        assert!(begin.elapsed() < Duration::from_secs(2), "nobody waits for it");
        // At most a batch is on its way while the others wait.
        assert!(spans.figures().dropped >= (2 * sender::BATCH_MAX) as u64, "{:?}", spans.figures());
        let begin = Instant::now();
        spans.stop();
        assert!(begin.elapsed() < END_PATIENCE + Duration::from_secs(1), "the end does not wait for it either");
        assert_eq!(spans.figures().sent, 0);
    }

    #[test]
    fn a_batch_is_sent_again_where_that_may_help_and_given_up_where_it_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let spans = Spans::start(settings(&listener), "leveret@test", Instant::now()).unwrap();
        let next = |status: &str| names(&answer(listener.accept().unwrap().0, status).1).len();
        let settled = |expected: SpanFigures| {
            while spans.figures() != expected {
                std::thread::yield_now();
            }
        };
        (0..3).for_each(|_| spans.end(span()));
        assert_eq!((next("503 Service Unavailable"), next("200 OK")), (3, 3));
        settled(SpanFigures { sent: 3, dropped: 0 });
        spans.end(span());
        assert_eq!(next("400 Bad Request"), 1);
        settled(SpanFigures { sent: 3, dropped: 1 });
        spans.end(span());
        assert_eq!(next("200 OK"), 1);
        settled(SpanFigures { sent: 4, dropped: 1 });
        spans.stop();
    }
}
