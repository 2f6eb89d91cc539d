//! The log on standard error: one event, one line.
//!
//! Invariant: an event never takes more than one line and never carries control characters, because
//! names in it come from clients; a client must not be able to forge a line or to move an
//! operator's cursor.
//!
//! Lines that a client can cause at will are counted once there are many: see `repeats`.
//!
//! Text is `2026-11-21T08:29:23.123Z INFO  message field=value`, times in UTC. Colour only on a terminal, and not with `NO_COLOR`.

mod line;
mod moment;
mod repeats;

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use server::config::{Level, LogFormat, LogLevels};
use server::engine::WrittenByNewer;
use tracing::Dispatch;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::exit::Exit;
use line::TextLine;
use moment::UtcTime;
use repeats::Repeats;

/// What is counted and not told yet.
static REPEATS: OnceLock<Repeats> = OnceLock::new();

/// Tells what was counted and not told yet: the last thing but one that a process logs.
pub(crate) fn finish() {
    if let Some(repeats) = REPEATS.get() {
        repeats.tell_all();
    }
}

/// Starts the log of this process. Call it once.
pub(crate) fn start(levels: &LogLevels, format: LogFormat) {
    let is_coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let repeats = REPEATS.get_or_init(Repeats::default);
    let dispatch = dispatch(levels, format, is_coloured, io::stderr, repeats);
    tracing::dispatcher::set_global_default(dispatch).expect("the log is started once");
    log_panics();
    if let Err(error) = repeats.tell_in_time() {
        tracing::error!(%error, "lines that are counted cannot be told: there is no thread for it");
    }
}

/// Where events go, on the way to a writer.
fn dispatch<W>(levels: &LogLevels, format: LogFormat, is_coloured: bool, writer: W, repeats: &Repeats) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry().with(filter(levels)).with(repeats.clone());
    match format {
        LogFormat::Text => {
            let layer = tracing_subscriber::fmt::layer().event_format(TextLine { is_coloured });
            Dispatch::new(registry.with(layer.with_writer(writer)))
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_current_span(false);
            Dispatch::new(registry.with(layer.with_span_list(false).with_timer(UtcTime).with_writer(writer)))
        }
    }
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

/// A bug of ours ends the process, and so does what a newer build wrote; the last line must be in the log's own form, or a collector
/// would drop it.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let payload = panic.payload();
        if let Some(newer) = payload.downcast_ref::<WrittenByNewer>() {
            // No bug, and no start goes better: what was decided is for the version that decided it.
            tracing::error!("{newer}");
            std::process::exit(Exit::Usage as i32);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics with the lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(levels: &str, format: LogFormat, log: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let writer = lines.clone();
        let levels = levels.parse().expect("levels of a test");
        tracing::dispatcher::with_default(
            &dispatch(&levels, format, false, move || writer.clone(), &Repeats::default()),
            log,
        );
        let bytes = lines.0.lock().expect("no test panics with the lock").clone();
        String::from_utf8(bytes).expect("lines are text").lines().map(str::to_owned).collect()
    }

    fn log_at_all_levels() {
        tracing::error!("error of us");
        tracing::info!("info of us");
        tracing::debug!("debug of us");
        tracing::info!(target: "server::session", "info of a session");
        tracing::debug!(target: "server::session", "debug of a session");
        tracing::trace!(target: "server::session", "trace of a session");
    }

    #[test]
    fn levels_choose_what_is_logged() {
        for (levels, last_words) in [
            ("off", &[][..]),
            ("error", &["error of us"]),
            ("info", &["error of us", "info of us", "info of a session"]),
            ("error,server=debug", &["error of us", "info of a session", "debug of a session"]),
            ("trace,server::session=off", &["error of us", "info of us", "debug of us"]),
        ] {
            let lines = logged(levels, LogFormat::Text, log_at_all_levels);
            assert_eq!(lines.len(), last_words.len(), "{levels}: {lines:?}");
            for (line, words) in lines.iter().zip(last_words) {
                assert!(line.ends_with(words), "{levels}: {line}");
            }
        }
    }

    #[test]
    fn json_has_an_object_a_line_with_the_fields_beside_the_message() {
        let lines = logged("info", LogFormat::Json, || tracing::warn!(peer = "127.0.0.1:1", count = 3, "a \"b\"\nc"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line: serde_json::Value = serde_json::from_str(&lines[0]).expect("a line is JSON");
        assert_eq!((&line["level"], &line["message"]), (&"WARN".into(), &"a \"b\"\nc".into()));
        assert_eq!((&line["peer"], &line["count"]), (&"127.0.0.1:1".into(), &3.into()));
        let time = line["timestamp"].as_str().expect("a text");
        assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
    }
}
