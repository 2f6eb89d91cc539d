//! One event as a line of text for people.
//!
//! Invariant: the line ends with the only line break in it, whatever the fields hold.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::moment;

/// A field longer than this is cut: a log line is for reading. Backtraces are the longest that make
/// sense.
const FIELD_BYTES_MAX: usize = 16 * 1024;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Writes events as `time LEVEL message field=value`.
pub(super) struct TextLine {
    /// Whether somebody watches on a terminal.
    pub(super) is_coloured: bool,
}

impl<S, N> FormatEvent<S, N> for TextLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = *event.metadata().level();
        let (dim, plain) = if self.is_coloured { (DIM, PLAIN) } else { ("", "") };
        out.write_str(dim)?;
        moment::write_now(&mut out)?;
        write!(out, "{plain} {}{level:<5}{plain} ", if self.is_coloured { colour(level) } else { "" })?;
        // Who writes debug lines wants to know where they come from; an operator does not.
        if level > Level::INFO {
            write!(out, "{dim}{}:{plain} ", event.metadata().target())?;
        }
        let mut fields = LineFields::default();
        event.record(&mut fields);
        out.write_str(&fields.message)?;
        out.write_str(dim)?;
        out.write_str(&fields.others)?;
        writeln!(out, "{plain}")
    }
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[34m",
    }
}

/// The fields of one event, ready to be printed.
#[derive(Default)]
struct LineFields {
    message: String,
    others: String,
}

impl Visit for LineFields {
    fn record_str(&mut self, field: &Field, text: &str) {
        self.add(field, text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

impl LineFields {
    fn add(&mut self, field: &Field, text: &str) {
        let text = cut(text);
        if field.name() == "message" {
            push_visible(&mut self.message, text);
            return;
        }
        let _ = write!(self.others, " {}=", field.name());
        let is_quoted_already = text.len() >= 2 && text.starts_with('"') && text.ends_with('"');
        if !is_quoted_already && (text.is_empty() || text.contains([' ', '"', '=', '\n'])) {
            self.others.push('"');
            push_visible(&mut self.others, &text.replace('"', "\\\""));
            self.others.push('"');
        } else {
            push_visible(&mut self.others, text);
        }
    }
}

/// The beginning of a text, if it is too long.
fn cut(text: &str) -> &str {
    let end = (0..=FIELD_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// Adds text with its control characters escaped, and with those that turn the direction of
/// writing, which can hide words.
fn push_visible(line: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' => {
                line.extend(character.escape_unicode())
            }
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

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

    /// What is logged, without the time, which has 24 characters and a space.
    fn logged(is_coloured: bool, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer =
            tracing_subscriber::fmt::layer().event_format(TextLine { is_coloured }).with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let bytes = lines.0.lock().expect("no test panics with the lock").clone();
        let text = String::from_utf8(bytes).expect("lines are text");
        if is_coloured { text } else { text.lines().map(|line| format!("{}\n", &line[25..])).collect() }
    }

    #[test]
    fn a_line_has_level_message_and_fields() {
        let text = logged(false, || {
            tracing::info!(peer = "127.0.0.1:5000", user = "guest", channels = 3, "connection opened");
            tracing::warn!(reason = "no such vhost", "connection closed");
            tracing::debug!("a detail");
        });
        let expected = "INFO  connection opened peer=127.0.0.1:5000 user=guest channels=3\n\
                        WARN  connection closed reason=\"no such vhost\"\n\
                        DEBUG leveret::logging::line::tests: a detail\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_field_cannot_forge_a_line_or_move_the_cursor() {
        let evil = "x\n2026-11-21T08:29:23.123Z ERROR forged\r\u{1b}[2K\u{202e}";
        let text = logged(false, || tracing::info!(vhost = evil, shown = %evil, debug = ?evil, "opened {evil}"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
    }

    #[test]
    fn empty_and_quoted_fields_stay_readable() {
        let text = logged(false, || tracing::info!(user = "", quoted = ?"a b", inner = "say \"a\" b", "x"));
        assert_eq!(text, "INFO  x user=\"\" quoted=\"a b\" inner=\"say \\\"a\\\" b\"\n");
    }

    #[test]
    fn a_long_field_is_cut_between_characters() {
        let text = logged(false, || tracing::info!(name = "ü".repeat(FIELD_BYTES_MAX), "x"));
        assert!(text.len() <= FIELD_BYTES_MAX + 20, "{}", text.len());
    }

    #[test]
    fn colours_are_only_for_a_terminal() {
        let text = logged(true, || tracing::error!("x"));
        assert!(text.contains("\u{1b}[31mERROR\u{1b}[0m x"), "{text:?}");
    }
}
