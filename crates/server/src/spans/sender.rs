//! The thread that sends spans: what it waits for, and what it does about a collector that does not
//! take them.
//!
//! Invariant: a batch is sent until the collector has it or says that it will not have it, at most
//! [`TRIES_MAX`] times; each try, and the whole of it at the end of the node, has a limit in time.

use super::Counts;
use super::otlp;
use crate::config::{TraceSettings, masked_within};
use crate::tls;
use session::Span;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::tls::TlsConfig;

/// Spans of one request.
pub(super) const BATCH_MAX: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How often it is looked whether others came.
const GATHER_LOOK: Duration = Duration::from_millis(20);
/// How long a collector may take for its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a batch is sent at most.
const TRIES_MAX: u32 = 4;
/// How long the second try waits; each after it twice as long as the one before.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// What is read of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// What a collector said to a batch.
enum Answer {
    /// It has it, but so many spans.
    Taken { rejected: u64 },
    /// Later, perhaps.
    NotNow(String),
    /// Never.
    Refused(String),
}

/// See the module.
pub(super) struct Sender {
    agent: Agent,
    endpoint: String,
    headers: Vec<(String, String)>,
    resource: otlp::Resource,
    start: Instant,
    counts: Arc<Counts>,
}

impl Sender {
    /// Errors: nobody is believed about the collector's address.
    pub(super) fn new(
        settings: &TraceSettings,
        node_name: &str,
        start: Instant,
        counts: Arc<Counts>,
    ) -> Result<Sender, String> {
        let mut config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(PATIENCE))
            .user_agent(concat!("leveret/", env!("CARGO_PKG_VERSION")));
        if settings.endpoint.starts_with("https://") {
            let roots = tls::believed(settings.authorities.as_deref(), "otel_ca")?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(roots).build();
            config = config.tls_config(tls);
        }
        Ok(Sender {
            agent: config.build().into(),
            endpoint: settings.endpoint.clone(),
            headers: settings.headers.clone(),
            resource: otlp::Resource::new(settings, node_name),
            start,
            counts,
        })
    }

    /// Sends what comes until nothing comes any more.
    pub(super) fn run(self, spans: &Receiver<Box<Span>>) {
        let mut batch = Vec::new();
        while let Ok(first) = spans.recv() {
            batch.push(first);
            let until = Instant::now() + GATHER;
            loop {
                batch.extend(spans.try_iter().take(BATCH_MAX - batch.len()));
                let is_over = Instant::now() >= until || self.counts.end_at().is_some();
                if batch.len() == BATCH_MAX || is_over {
                    break;
                }
                // Who ends a span does not have to wake anybody then.
                std::thread::sleep(GATHER_LOOK);
            }
            self.send(&batch, spans);
            batch.clear();
        }
    }

    fn send(&self, batch: &[Box<Span>], spans: &Receiver<Box<Span>>) {
        let body = otlp::request(&self.resource, batch, self.start);
        let count = batch.len() as u64;
        let (mut pause, mut why) = (RETRY_AFTER, String::new());
        for tries in 0..TRIES_MAX {
            if tries > 0 {
                self.wait(pause);
                pause *= 2;
            }
            let Some(patience) = self.patience() else { break };
            match self.post(&body, patience) {
                Answer::Taken { rejected } => {
                    let rejected = rejected.min(count);
                    self.counts.sent(count - rejected);
                    return self.counts.give_up(rejected, "the collector rejects some");
                }
                Answer::NotNow(reason) => why = reason,
                Answer::Refused(reason) => return self.counts.give_up(count, &reason),
            }
        }
        self.counts.give_up(count, &why);
        if self.patience().is_none() {
            // What still waits is not sent by anybody.
            self.counts.dropped.fetch_add(spans.try_iter().count() as u64, Ordering::Relaxed);
        }
    }

    /// How long a try may take now; `None` once the sending is over.
    fn patience(&self) -> Option<Duration> {
        let Some(end_at) = self.counts.end_at() else { return Some(PATIENCE) };
        Some(end_at.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Waits for a while, or for the end of the node.
    fn wait(&self, pause: Duration) {
        const LOOK: Duration = Duration::from_millis(50);
        let until = Instant::now() + pause;
        while Instant::now() < until && self.counts.end_at().is_none() {
            std::thread::sleep(LOOK);
        }
    }

    fn post(&self, body: &[u8], patience: Duration) -> Answer {
        let mut request = self.agent.post(&self.endpoint).header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = match request.config().timeout_global(Some(patience)).build().send(body) {
            Ok(response) => response,
            Err(error) => return Answer::NotNow(masked_within(&error.to_string())),
        };
        let status = response.status();
        let said = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().unwrap_or_default();
        match status {
            status if status.is_success() => Answer::Taken { rejected: otlp::rejected(&said) },
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Answer::NotNow(format!("the collector says {status}")),
            status => Answer::Refused(format!("the collector says {status}")),
        }
    }
}
