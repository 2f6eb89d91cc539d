//! Metrics for Prometheus: what the node knows of itself, in the text that Prometheus reads.
//!
//! | path | |
//! |---|---|
//! | `/metrics` | everything, added up over queues, channels and connections |
//! | `/metrics/per-object` | the same one by one |
//! | `/metrics/detailed` | the families that `family` names, of the virtual hosts that `vhost` names |
//! | `/metrics/memory-breakdown` | what the memory holds |
//!
//! Invariant: where the meaning is RabbitMQ's the name is RabbitMQ's, and a name of RabbitMQ's
//! never means anything else; what only this broker has begins with `leveret_`. Nothing of it is on
//! the road of a message. Nobody is asked for a password, as in RabbitMQ: the figures hold no
//! message, and one by one the names of queues, exchanges and connections.

mod families;
mod out;
mod own;
mod raft;
mod scrape;
mod view;

use crate::answer::{Answer, Refused};
use crate::call::Call;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use scrape::Scrape;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use view::View;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The answer to a request for metrics.
pub(crate) async fn answer(call: &Call<'_>) -> Result<Answer, Refused> {
    let view = View::of(call)?;
    if !["GET", "HEAD"].contains(&call.head.method.as_str()) {
        return Err(Refused::NotAllowed(&["GET", "HEAD"]));
    }
    let page = match view {
        View::Total | View::Memory => encode(Scrape::new(call, view).await).ok_or(Refused::NoAnswer)?,
        View::Each => call.pages.page(call).await?,
        // Others have this thread meanwhile.
        View::Detailed(_) => {
            let scrape = Scrape::new(call, view).await;
            let page = tokio::task::spawn_blocking(|| encode(scrape)).await;
            page.ok().flatten().ok_or(Refused::NoAnswer)?
        }
    };
    Ok(match wants_plain(call) {
        true => Answer::text(plain(&page), PLAIN),
        false => Answer::text(page, OPEN_METRICS),
    })
}

/// Whether whoever asks wants the older of the two formats and cannot read the newer one. Who says
/// nothing reads anything.
fn wants_plain(call: &Call<'_>) -> bool {
    let accepts = call.header("accept").map(String::from_utf8_lossy).unwrap_or_default();
    accepts.contains("text/plain") && !accepts.contains("openmetrics") && !accepts.contains("*/*")
}

/// A page in the older format: there the type of a counter has the name of its samples.
fn plain(page: &Bytes) -> Bytes {
    let text = String::from_utf8_lossy(page);
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut help = "";
    for line in text.lines() {
        if line.starts_with("# HELP ") {
            help = line;
            continue;
        }
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap_or((described, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "unknown" => ("", "untyped"),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            let words =
                help.strip_prefix("# HELP ").and_then(|help| help.split_once(' ')).map_or("", |(_, words)| words);
            out.push_str(&format!("# HELP {name}{suffix} {words}\n# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with("# ") {
            out.push_str(line);
            out.push('\n');
        }
    }
    out.into()
}

fn encode(scrape: Scrape) -> Option<Bytes> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).ok()?;
    Some(text.into())
}

/// How long a page is given to others who ask: they are not asked for a password, and a page of
/// many queues takes long to make.
const PAGE_AGE: Duration = Duration::from_secs(1);
/// Shorter pages are made for each.
const PAGE_BYTES: usize = 256 << 10;

/// The page per object that was made last, if that was a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    newest: RefCell<Option<Bytes>>,
    making: tokio::sync::Mutex<()>,
}

impl Pages {
    async fn page(self: &Rc<Self>, call: &Call<'_>) -> Result<Bytes, Refused> {
        let _turn = self.making.lock().await;
        if let Some(page) = self.newest.borrow().clone() {
            return Ok(page);
        }
        let scrape = Scrape::new(call, View::Each).await;
        // Others have this thread meanwhile.
        let page = tokio::task::spawn_blocking(|| encode(scrape)).await;
        let page = page.ok().flatten().ok_or(Refused::NoAnswer)?;
        if page.len() >= PAGE_BYTES {
            *self.newest.borrow_mut() = Some(page.clone());
            let pages = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(PAGE_AGE).await;
                *pages.newest.borrow_mut() = None;
            });
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_has_the_same_samples_and_names_their_type() {
        let page = Bytes::from_static(
            b"# HELP a_b Things.\n# TYPE a_b counter\na_b_total{c=\"d\"} 1\n# HELP e Others.\n# TYPE e gauge\ne 2\n# EOF\n",
        );
        let text = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{c=\"d\"} 1\n\
                    # HELP e Others.\n# TYPE e gauge\ne 2\n";
        assert_eq!(plain(&page), text);
    }
}
