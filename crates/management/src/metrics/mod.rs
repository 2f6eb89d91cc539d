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
mod pages;
mod raft;
mod scrape;
mod view;

use crate::answer::{Answer, Refused};
use crate::call::Call;
use bytes::Bytes;
use hyper::header::RETRY_AFTER;
pub(crate) use pages::Pages;
use pages::{LATE, Page};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use scrape::Scrape;
use std::fmt::{self, Write};
use view::View;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The answer to a request for metrics.
pub(crate) async fn answer(call: &Call<'_>) -> Result<Answer, Refused> {
    let view = View::of(call)?;
    if !["GET", "HEAD"].contains(&call.head.method.as_str()) {
        return Err(Refused::NotAllowed(&["GET", "HEAD"]));
    }
    let page = Page { view, is_plain: wants_plain(call) };
    let content_type = if page.is_plain { PLAIN } else { OPEN_METRICS };
    match call.pages.text_of(call, page).await? {
        Some(text) => Ok(Answer::text(text, content_type)),
        None => Ok(Answer::from(Refused::Unavailable(LATE.to_owned())).with(RETRY_AFTER, "1")),
    }
}

/// Whether whoever asks wants the older of the two formats and cannot read the newer one. Who says
/// nothing reads anything.
fn wants_plain(call: &Call<'_>) -> bool {
    let accepts = call.header("accept").map(String::from_utf8_lossy).unwrap_or_default();
    accepts.contains("text/plain") && !accepts.contains("openmetrics") && !accepts.contains("*/*")
}

/// The text of a page, of which it is known that it is about so long, or that is measured before: it may have hundreds of
/// megabytes, and would be there twice each time that it is moved to where there is more room.
fn encode(scrape: Scrape, is_plain: bool, bytes: Option<usize>) -> Option<Bytes> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let bytes = match bytes {
        Some(bytes) => bytes,
        None => {
            let mut measured = Measured(0);
            text::encode(&mut measured, &registry).ok()?;
            measured.0
        }
    };
    // A little more, as figures grow.
    let mut page = String::with_capacity(bytes + bytes / 32);
    match is_plain {
        true => text::encode(&mut Plain { page: &mut page, line: String::new(), help: String::new() }, &registry),
        false => text::encode(&mut page, &registry),
    }
    .ok()?;
    Some(page.into())
}

/// The length of what is written.
struct Measured(usize);

impl Write for Measured {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0 += part.len();
        Ok(())
    }
}

/// Writes in the older format what comes in the newer one: there the type of a counter has the name of its samples.
struct Plain<'p> {
    page: &'p mut String,
    /// What has come of a line, and the last line that described something.
    line: String,
    help: String,
}

impl Write for Plain<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for piece in part.split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                None => self.line.push_str(piece),
                Some(end) => {
                    self.line.push_str(end);
                    self.end_line();
                    self.line.clear();
                }
            }
        }
        Ok(())
    }
}

impl Plain<'_> {
    fn end_line(&mut self) {
        let line = self.line.as_str();
        if line.starts_with("# HELP ") {
            line.clone_into(&mut self.help);
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap_or((described, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "unknown" => ("", "untyped"),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            let help = self.help.strip_prefix("# HELP ");
            let words = help.and_then(|help| help.split_once(' ')).map_or("", |(_, words)| words);
            self.page.push_str(&format!("# HELP {name}{suffix} {words}\n# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with("# ") {
            self.page.push_str(line);
            self.page.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_has_the_same_samples_and_names_their_type() {
        let page = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{c=\"d\"} 1\n# HELP e Others.\n# TYPE e gauge\ne 2\n# EOF\n";
        let text = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{c=\"d\"} 1\n\
                    # HELP e Others.\n# TYPE e gauge\ne 2\n";
        for part in [1, 7, page.len()] {
            let mut plain = String::new();
            let mut writer = Plain { page: &mut plain, line: String::new(), help: String::new() };
            let parts = page.as_bytes().chunks(part).map(|part| std::str::from_utf8(part).expect("it is ASCII"));
            parts.for_each(|part| writer.write_str(part).expect("it is written"));
            assert_eq!(plain, text);
        }
    }
}
