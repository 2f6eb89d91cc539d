//! `leveret ctl top`: queues, rates and backlogs, live.
//!
//! Invariant: a rate is the difference of two looks over the time between them, and of counters of
//! the node alone: it keeps none itself. A node that stops answering is said to be gone, and the
//! last look stays on the screen until it is back.

use crate::api::{Api, path};
use crate::context::{items, text};
use crate::failure::Failure;
use crate::options::{Options, Switch, flag, number};
use crate::term::harmless;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Between two looks where nobody says, in seconds.
const EVERY_S: u64 = 2;
/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) const SWITCHES: &[Switch] = &[
    number("interval", "seconds between two looks; 2 without it"),
    number("count", "so many looks as plain text, and then the end"),
    flag("by-rate", "the queues that grow fastest first, and not the longest"),
];

/// What a look finds.
#[derive(Clone, Debug, Default)]
struct Look {
    at: Option<Instant>,
    /// Counters of the node.
    counters: HashMap<&'static str, u64>,
    node: String,
    totals: Value,
    alarms: Vec<String>,
    queues: Vec<Queue>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Queue {
    vhost: String,
    name: String,
    kind: String,
    state: String,
    ready: u64,
    unacked: u64,
    consumers: u64,
    /// Messages a second that it grows by.
    growth: f64,
}

const COUNTERS: [(&str, &str); 5] = [
    ("publish", "in"),
    ("deliver_get", "out"),
    ("ack", "acked"),
    ("confirm", "confirmed"),
    ("redeliver", "redelivered"),
];

/// Shows it until a key is pressed or time is up.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if !options.wrong.is_empty() {
        let wrong: Vec<String> = options.wrong.iter().map(|(name, value)| format!("{name} : {value}")).collect();
        let text = format!("Invalid options for this command:\n{}", wrong.join("\n"));
        return Err(Failure::argument(crate::failure::USAGE, text));
    }
    let every = Duration::from_secs(options.number("interval").unwrap_or(EVERY_S).max(1));
    let by_rate = options.flag("by-rate");
    let first = look(options, &Look::default())?;
    match options.number("count") {
        Some(count) => plain(options, first, every, by_rate, count),
        None if !crate::output::is_terminal() => plain(options, first, every, by_rate, u64::MAX),
        None => on_screen(options, first, every, by_rate),
    }
}

fn look(options: &Options, before: &Look) -> Result<Look, Failure> {
    // Anew each time: the node may have come back with another token.
    let api = Api::new(crate::place::find(options)?, "top", Some(LOOK_TIMEOUT))?;
    let overview = api.get("overview")?.good()?;
    let columns = "columns=vhost,name,type,state,messages_ready,messages_unacknowledged,consumers";
    let at = match options.text("vhost") {
        Some(vhost) => format!("{}?{columns}", path(&["queues", vhost])),
        None => format!("queues?{columns}"),
    };
    let listed = items(api.get(&at)?.good()?)?;
    let alarms = api.get("health/checks/alarms")?.json();
    let alarms = alarms["alarms"].as_array().into_iter().flatten().map(|alarm| text(&alarm["resource"])).collect();
    let now = Instant::now();
    let seconds = before.at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
    let known: HashMap<(&str, &str), u64> =
        before.queues.iter().map(|queue| ((&*queue.vhost, &*queue.name), queue.ready + queue.unacked)).collect();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let queue = |item: &Value| {
        let mut queue = Queue {
            vhost: text(&item["vhost"]),
            name: text(&item["name"]),
            kind: text(&item["type"]),
            state: text(&item["state"]),
            ready: number(&item["messages_ready"]),
            unacked: number(&item["messages_unacknowledged"]),
            consumers: number(&item["consumers"]),
            growth: 0.0,
        };
        if let Some(before) = known.get(&(&*queue.vhost, &*queue.name)).filter(|_| seconds > 0.0) {
            queue.growth = ((queue.ready + queue.unacked) as f64 - *before as f64) / seconds;
        }
        queue
    };
    Ok(Look {
        at: Some(now),
        counters: COUNTERS.iter().map(|(name, _)| (*name, number(&overview["message_stats"][*name]))).collect(),
        node: text(&overview["node"]),
        totals: serde_json::json!({ "objects": overview["object_totals"], "queues": overview["queue_totals"] }),
        alarms,
        queues: listed.iter().map(queue).collect(),
    })
}

/// A second's worth of a counter between two looks; nothing where it began anew.
fn rate(before: &Look, now: &Look, counter: &str) -> Option<f64> {
    let seconds = now.at?.duration_since(before.at?).as_secs_f64();
    let (was, is) = (before.counters.get(counter)?, now.counters.get(counter)?);
    (seconds > 0.0 && is >= was).then(|| (is - was) as f64 / seconds)
}

fn sorted(look: &Look, by_rate: bool) -> Vec<&Queue> {
    let mut queues: Vec<&Queue> = look.queues.iter().collect();
    queues.sort_by(|a, b| {
        let length = |queue: &Queue| queue.ready + queue.unacked;
        let by_length = length(b).cmp(&length(a)).then_with(|| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        if by_rate { b.growth.total_cmp(&a.growth).then(by_length) } else { by_length }
    });
    queues
}

fn head(before: &Look, now: &Look) -> Vec<String> {
    let of = |part: &str, field: &str| now.totals[part][field].as_u64().unwrap_or(0);
    let rates: Vec<String> = COUNTERS
        .iter()
        .map(|(counter, shown)| match rate(before, now, counter) {
            Some(rate) => format!("{shown} {rate:.0}/s"),
            None => format!("{shown} -"),
        })
        .collect();
    let alarms =
        if now.alarms.is_empty() { "no alarms".to_owned() } else { format!("ALARM: {}", now.alarms.join(", ")) };
    vec![
        format!(
            "{}  connections {}  channels {}  queues {}  consumers {}  {alarms}",
            harmless(&now.node),
            of("objects", "connections"),
            of("objects", "channels"),
            of("objects", "queues"),
            of("objects", "consumers")
        ),
        format!(
            "messages {}  ready {}  unacked {}  {}",
            of("queues", "messages"),
            of("queues", "messages_ready"),
            of("queues", "messages_unacknowledged"),
            rates.join("  ")
        ),
    ]
}

const HEADER: [&str; 8] = ["vhost", "name", "type", "state", "ready", "unacked", "consumers", "growth/s"];

fn cells(queue: &Queue) -> [String; 8] {
    [
        harmless(&queue.vhost),
        harmless(&queue.name),
        queue.kind.clone(),
        queue.state.clone(),
        queue.ready.to_string(),
        queue.unacked.to_string(),
        queue.consumers.to_string(),
        format!("{:+.0}", queue.growth),
    ]
}

/// For a file, a pipe, or a fixed number of looks.
fn plain(options: &Options, first: Look, every: Duration, by_rate: bool, count: u64) -> Result<(), Failure> {
    let (mut before, mut now) = (Look::default(), first);
    for shown in 1.. {
        let mut text = head(&before, &now).join("\n") + "\n" + &HEADER.join("\t") + "\n";
        for queue in sorted(&now, by_rate) {
            text += &format!("{}\n", cells(queue).join("\t"));
        }
        crate::output::out(&(text + "\n"));
        if shown >= count {
            break;
        }
        std::thread::sleep(every);
        let next = look(options, &now)?;
        before = std::mem::replace(&mut now, next);
    }
    Ok(())
}

/// The terminal as it was before comes back with this, however it ends.
struct Screen(Terminal<CrosstermBackend<std::io::Stdout>>);

impl Screen {
    fn begin() -> std::io::Result<Screen> {
        use ratatui::crossterm::{cursor, execute, terminal};
        terminal::enable_raw_mode()?;
        execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(Screen(Terminal::new(CrosstermBackend::new(std::io::stdout()))?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        use ratatui::crossterm::{cursor, execute, terminal};
        // What cannot be set right here the shell's `reset` sets right.
        let _ = execute!(std::io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

fn on_screen(options: &Options, first: Look, every: Duration, mut by_rate: bool) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::error(crate::failure::SOFTWARE, format!("the terminal: {error}"));
    let mut screen = Screen::begin().map_err(failed)?;
    let (mut before, mut now, mut gone) = (Look::default(), first, None::<String>);
    let mut from = 0;
    loop {
        let queues = sorted(&now, by_rate);
        from = queues.len().saturating_sub(1).min(from);
        let drawn = screen.0.draw(|frame| {
            let [top, list, bottom] =
                Layout::vertical([Constraint::Length(3), Constraint::Min(1), Constraint::Length(1)])
                    .areas(frame.area());
            let mut lines: Vec<Line<'_>> = head(&before, &now).into_iter().map(Line::from).collect();
            if let Some(why) = &gone {
                lines.push(Line::styled(
                    format!("no answer since: {why}"),
                    Style::new().add_modifier(Modifier::REVERSED),
                ));
            }
            frame.render_widget(Paragraph::new(lines), top);
            let widths = [12, 0, 8, 9, 11, 11, 10, 10];
            let constraint = |wide: u16| if wide == 0 { Constraint::Fill(1) } else { Constraint::Length(wide) };
            let rows = queues.iter().skip(from).take(list.height.into()).map(|queue| Row::new(cells(queue)));
            let table = Table::new(rows, widths.map(constraint));
            frame.render_widget(table.header(Row::new(HEADER).style(Modifier::BOLD)), list);
            frame.render_widget(Paragraph::new("q quit   s sort by length or growth   arrows scroll"), bottom);
        });
        drawn.map_err(failed)?;
        let until = Instant::now() + every;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left).map_err(failed)? {
                break;
            }
            let Event::Key(key) = event::read().map_err(failed)? else { break };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Char('s') => by_rate = !by_rate,
                KeyCode::Down => from += 1,
                KeyCode::Up => from = from.saturating_sub(1),
                KeyCode::PageDown => from += 20,
                KeyCode::PageUp => from = from.saturating_sub(20),
                _ => continue,
            }
            break;
        }
        if Instant::now() < until {
            continue;
        }
        match look(options, &now) {
            Ok(next) => {
                before = std::mem::replace(&mut now, next);
                gone = None;
            }
            Err(failure) => {
                let why = failure.text.lines().find_map(|line| line.strip_prefix("  * ")).unwrap_or(&failure.text);
                gone = Some(harmless(why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: Instant, published: u64, lengths: &[(&str, u64, f64)]) -> Look {
        let queue = |(name, ready, growth): &(&str, u64, f64)| Queue {
            name: (*name).to_owned(),
            ready: *ready,
            growth: *growth,
            ..Queue::default()
        };
        Look {
            at: Some(at),
            counters: HashMap::from([("publish", published)]),
            queues: lengths.iter().map(queue).collect(),
            ..Look::default()
        }
    }

    #[test]
    fn a_rate_is_what_came_between_two_looks() {
        let begin = Instant::now();
        let (first, second) = (look(begin, 100, &[]), look(begin + Duration::from_secs(2), 300, &[]));
        assert_eq!(rate(&first, &second, "publish"), Some(100.0));
        assert_eq!(rate(&Look::default(), &second, "publish"), None);
        // The node started anew meanwhile.
        assert_eq!(rate(&second, &look(begin + Duration::from_secs(4), 5, &[]), "publish"), None);
    }

    #[test]
    fn the_longest_come_first_or_those_that_grow() {
        let look = look(Instant::now(), 0, &[("a", 5, 1.0), ("b", 9, -3.0), ("c", 5, 7.0)]);
        let names = |by_rate| sorted(&look, by_rate).iter().map(|queue| queue.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(false), ["b", "a", "c"]);
        assert_eq!(names(true), ["c", "a", "b"]);
    }
}
