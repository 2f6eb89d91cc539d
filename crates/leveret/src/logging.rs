//! The log on standard error: one event, one line.
//!
//! Invariant: an event never takes more than one line and never carries control characters, because names in it come from clients; a
//! client must not be able to forge a line or to move an operator's cursor.
//!
//! Text is `2026-11-21T08:29:23.123Z INFO  message field=value`, times in UTC. Colour only on a terminal, and not with `NO_COLOR`.

mod line;
mod moment;

use std::io::{self, IsTerminal as _};

use server::config::{Level, LogFormat, LogLevels};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use line::TextLine;
use moment::UtcTime;

/// Starts the log of this process. Call it once.
pub(crate) fn start(levels: &LogLevels, format: LogFormat) {
    let registry = tracing_subscriber::registry().with(filter(levels));
    match format {
        LogFormat::Text => {
            let is_coloured =
                io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let layer = tracing_subscriber::fmt::layer().event_format(TextLine { is_coloured }).with_writer(io::stderr);
            registry.with(layer).init();
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false);
            registry.with(layer.with_timer(UtcTime).with_writer(io::stderr)).init();
        }
    }
    log_panics();
}

fn filter(levels: &LogLevels) -> Targets {
    let single = levels.targets.iter().map(|(target, level)| (target.clone(), level_filter(*level)));
    Targets::new().with_default(level_filter(levels.everything)).with_targets(single)
}

fn level_filter(level: Level) -> LevelFilter {
    match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}

/// A bug of ours ends the process; the last line must be in the log's own form, or a collector would drop it.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let payload = panic.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let reason = owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason was given");
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let backtrace = std::backtrace::Backtrace::capture();
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => {
                tracing::error!(%place, thread, %backtrace, "this is a bug in leveret: {reason}");
            }
            _ => tracing::error!(%place, thread, "this is a bug in leveret: {reason}"),
        }
    }));
}
