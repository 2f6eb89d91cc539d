//! The live view: a few lines at the bottom of the terminal that are drawn again each interval.
//!
//! Invariant: it takes no keyboard and leaves the terminal's modes alone, so that Ctrl-C and
//! scrolling work as always, and what is left on the screen at the end is the verdict. A terminal
//! that is too narrow for a line is not given its less important parts, and one with fewer lines
//! than the view has is not given the less important lines: no number is ever cut in two.

use std::collections::VecDeque;
use std::io::{Stdout, stdout};

use hdrhistogram::Histogram;
use page::figures::{count, three};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::{opening, summary};
use crate::latency::Figures;
use crate::options::Options;
use crate::record::{Begun, Interval, Recorded};
use crate::run::Observer;
use crate::setup::Found;
use crate::verdict::{BACKLOG_SECONDS, GROWTH_SHARE};

/// Lines of the view.
const HEIGHT: u16 = 12;

/// The lines of the view, the most important one first: progress, rates, what consumers wait, the
/// backlog, what publishers wait, what went wrong, the broker, the course of what was received, of
/// the tail and of what was sent, the title, the network.
const IMPORTANCE: [usize; HEIGHT as usize] = [1, 2, 7, 5, 6, 11, 9, 4, 8, 3, 0, 10];

/// Intervals over which the backlog's trend is told: long enough that a pause of the broker is
/// none.
const TREND: usize = 5;

/// Columns for what the highest bar stands for, in a terminal that has so many.
const SCALE_WIDTH: u16 = 13;
const SCALE_FROM: u16 = 50;

/// Where the values of a verdict's rows begin.
const VALUES_AT: usize = 20;

/// Intervals that the sparklines remember; no terminal is wider.
const REMEMBERED: usize = 512;

/// What the view shows.
#[derive(Debug, Default)]
pub struct View {
    title: String,
    time_secs: Option<u64>,
    /// Messages after which the load ends by itself, and those that went so far.
    messages: Option<(u64, f64)>,
    last: Interval,
    sent: VecDeque<f64>,
    taken: VecDeque<f64>,
    tails: VecDeque<f64>,
    /// The last moments and what waited to be received then, and to be sent, where that is known.
    backlogs: VecDeque<(f64, u64)>,
    unsents: VecDeque<(f64, u64)>,
}

impl View {
    /// Of a run that begins.
    pub fn of(options: &Options, found: &Found) -> View {
        let (p, c) = (&options.producing, &options.consuming);
        let each = |count: u32, channels: u16, messages: u64| {
            let all = messages.saturating_mul(u64::from(count) * u64::from(channels));
            (all > 0).then_some((all, 0.0))
        };
        let messages = each(p.count, p.channels, p.messages).or_else(|| each(c.count, c.channels, c.messages));
        View { title: opening(options, found), time_secs: options.time_secs, messages, ..View::default() }
    }

    /// How it stands, in words.
    pub fn told(&self) -> String {
        let i = &self.last;
        let of_target = i.target_per_s.map_or(String::new(), |target| format!(" of {}", three(target)));
        let sent = format!("{}{of_target} msg/s sent, {} received", three(i.published_per_s), three(i.received_per_s));
        let backlog = self.backlog().into_iter().map(|(_, part)| part).collect::<Vec<_>>().join(", ");
        let held = i.held_back_text().map_or(String::new(), |held| format!("; {held}"));
        let backlog = if backlog.is_empty() { backlog } else { format!("; backlog {backlog}") };
        format!("{}; {sent}{backlog}{held}", self.clock())
    }

    /// Whether anybody falls behind.
    pub fn is_behind(&self) -> bool {
        self.are_consumers_behind() || self.are_publishers_behind()
    }

    /// Takes an interval in.
    pub fn push(&mut self, interval: &Interval) {
        let taken = if self.is_of_confirms(interval) { interval.confirmed_per_s } else { interval.received_per_s };
        let tail = interval.end_to_end.as_ref().or(interval.confirm.as_ref()).map_or(0.0, |f| f.p99_ms);
        let rings = [(&mut self.sent, interval.published_per_s), (&mut self.taken, taken), (&mut self.tails, tail)];
        for (ring, value) in rings {
            ring.push_back(value);
            if ring.len() > REMEMBERED {
                ring.pop_front();
            }
        }
        for (ring, waits) in [(&mut self.backlogs, interval.backlog), (&mut self.unsents, interval.unsent)] {
            ring.extend(waits.map(|count| (interval.at_s, count)));
            if ring.len() > TREND {
                ring.pop_front();
            }
        }
        if let Some((_, went)) = &mut self.messages {
            *went += interval.published_per_s.max(interval.received_per_s) * (interval.at_s - self.last.at_s).max(0.0);
        }
        self.last = interval.clone();
    }

    /// How much of the load is over, as far as that can be told.
    fn share(&self) -> f64 {
        let of_time = self.time_secs.map_or(0.0, |secs| self.last.at_s / secs as f64);
        let of_messages = self.messages.map_or(0.0, |(all, went)| went / all as f64);
        of_time.max(of_messages).clamp(0.0, 1.0)
    }

    /// Whether nobody receives, so that the confirms are what there is to see.
    fn is_of_confirms(&self, interval: &Interval) -> bool {
        interval.end_to_end.is_none() && interval.received_per_s == 0.0 && interval.confirmed_per_s > 0.0
    }

    /// Whether consumers fall behind what is sent.
    fn are_consumers_behind(&self) -> bool {
        is_behind(&self.backlogs, self.last.published_per_s)
    }

    /// Whether publishers fall behind what is due.
    fn are_publishers_behind(&self) -> bool {
        self.last.target_per_s.is_some_and(|target| is_behind(&self.unsents, target))
    }

    /// What waits, with the importance of each part; empty where that is not known.
    fn backlog(&self) -> Vec<(u8, String)> {
        let Some(backlog) = self.last.backlog.or(self.last.unsent.map(|_| 0)) else { return Vec::new() };
        let grows = |ring| match trend(ring)? {
            trend if trend.abs() < 1.0 => Some("steady".to_owned()),
            trend if trend > 0.0 => Some(format!("grows by {} a second", three(trend))),
            trend => Some(format!("falls by {} a second", three(-trend))),
        };
        let (consumers, publishers) = (self.are_consumers_behind(), self.are_publishers_behind());
        let mut parts = vec![(0, format!("{} messages", count(backlog)))];
        if publishers {
            // The broker has seen nothing of these: its own backlog is the window at most.
            parts[0].0 = 3;
            parts.push((0, format!("{} not sent", count(self.last.unsent.unwrap_or(0)))));
            parts.extend(grows(&self.unsents).map(|grows| (1, grows)));
            parts.push((2, "publishers fall behind".to_owned()));
        } else {
            parts.extend(grows(&self.backlogs).map(|grows| (1, grows)));
        }
        if consumers {
            parts.push((2, "consumers fall behind".to_owned()));
        }
        parts
    }

    fn backlog_line(&self, width: usize) -> Line<'static> {
        let parts = self.backlog();
        let line = if parts.is_empty() { Line::from("backlog    -") } else { line_of("backlog    ", parts, width) };
        if self.is_behind() { line.red() } else { line }
    }

    /// What the load still takes, as far as it ends by itself.
    fn left(&self) -> Option<f64> {
        match (self.time_secs, self.messages) {
            (Some(secs), _) => Some((secs as f64 - self.last.at_s).max(0.0)),
            (None, Some((all, went))) if went > 0.0 && self.last.at_s > 0.0 => {
                Some((all as f64 - went).max(0.0) * self.last.at_s / went)
            }
            _ => None,
        }
    }

    /// How far the load is.
    fn clock(&self) -> String {
        let at_s = self.last.at_s;
        let left = self.left().map_or(String::new(), |left| format!(", {left:.0} s left"));
        match (self.time_secs, self.messages) {
            (Some(secs), _) => format!("{at_s:.0} of {secs} s{left}"),
            (None, Some((all, went))) => {
                format!("{at_s:.0} s, {} of {} messages{left}", count(went.min(all as f64) as u64), count(all))
            }
            (None, None) => format!("{at_s:.0} s"),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rows = rows(frame.area());
        let i = &self.last;
        let title = parts_that_fit(&self.title, usize::from(frame.area().width));
        frame.render_widget(Paragraph::new(title.bold()), rows[0]);
        let clock = format!("{}, {}", self.clock(), i.phase);
        frame.render_widget(
            Gauge::default().ratio(self.share()).label(clock).gauge_style(Style::new().fg(Color::Blue)),
            rows[1],
        );
        let width = usize::from(frame.area().width);
        let target = i.target_per_s.map(|target| (3, format!("target {}", three(target))));
        let rates = [
            Some((2, format!("sent {}", three(i.published_per_s)))),
            target,
            Some((1, format!("confirmed {}", three(i.confirmed_per_s)))),
            Some((0, format!("received {}", three(i.received_per_s)))),
        ];
        let mut rates = line_of("msg/s      ", rates.into_iter().flatten().collect(), width);
        let (consumers, publishers) = (self.are_consumers_behind(), self.are_publishers_behind());
        for (name, _) in [("received", consumers), ("sent", publishers)].into_iter().filter(|(_, is_behind)| *is_behind)
        {
            let behind = rates.spans.iter_mut().filter(|span| span.content.starts_with(name));
            behind.for_each(|span| span.style = span.style.fg(Color::Red));
        }
        frame.render_widget(rates, rows[2]);
        let taken = if self.is_of_confirms(i) { "confirmed  " } else { "received   " };
        let colour = |is_behind, usual| if is_behind { Color::Red } else { usual };
        sparkline(frame, rows[3], "sent       ", &self.sent, "", colour(publishers, Color::Blue));
        sparkline(frame, rows[4], taken, &self.taken, "", colour(consumers, Color::Green));
        frame.render_widget(self.backlog_line(width), rows[5]);
        frame.render_widget(latency_line("confirm    ", &i.confirm, width), rows[6]);
        frame.render_widget(latency_line("end to end ", &i.end_to_end, width), rows[7]);
        sparkline(frame, rows[8], "p99        ", &self.tails, " ms", Color::Yellow);
        let broker = i.broker.map_or(vec![(1, "not on this machine".to_owned())], |load| {
            let mut parts =
                vec![(1, format!("{:.2} cores", load.cpu_cores)), (2, format!("{} MB", load.rss_bytes / 1_000_000))];
            parts.extend(load.write_bytes_s.map(|bytes| (3, format!("disk write {:.1} MB/s", bytes / 1e6))));
            parts
        });
        frame.render_widget(line_of("broker     ", broker, width), rows[9]);
        let network = vec![
            (1, format!("out {:.1} MB/s", i.to_broker_bytes_s / 1e6)),
            (2, format!("in {:.1} MB/s", i.from_broker_bytes_s / 1e6)),
            (3, format!("this load {:.2} cores", i.generator_cores)),
        ];
        frame.render_widget(line_of("network    ", network, width), rows[10]);
        let is_calm = i.nacked + i.returned + i.connections_lost == 0 && i.held_back_s == 0.0;
        let mut odd = vec![
            (2, format!("{} nacked", i.nacked)),
            (4, format!("{} returned", i.returned)),
            (1, format!("{} connections lost", i.connections_lost)),
        ];
        // What stands still and why comes before counts of nothing.
        if let Some(held_back) = i.held_back_text() {
            odd.insert(0, (0, held_back));
        }
        let odd = line_of("", odd, width);
        frame.render_widget(if is_calm { odd.dim() } else { odd.red() }, rows[11]);
    }
}

/// Messages a second by which what waits grows (or falls, below zero), as far as there is something to
/// tell it from.
fn trend(waits: &VecDeque<(f64, u64)>) -> Option<f64> {
    let ((from, first), (to, last)) = (waits.front()?, waits.back()?);
    (to > from).then(|| (*last as f64 - *first as f64) / (to - from))
}

/// Whether somebody falls behind this rate, by the measure of the verdict: what waits is more than is
/// on its way, and it grows.
fn is_behind(waits: &VecDeque<(f64, u64)>, rate: f64) -> bool {
    let waited = waits.back().map_or(0, |(_, count)| *count);
    waited as f64 > rate * BACKLOG_SECONDS && trend(waits).is_some_and(|trend| trend > rate * GROWTH_SHARE)
}

/// A line for each part of the view, from the top; where there are too few, the least important
/// parts get none.
fn rows(area: Rect) -> [Rect; HEIGHT as usize] {
    let kept = &IMPORTANCE[..usize::from(area.height.min(HEIGHT))];
    let mut next = area.y;
    std::array::from_fn(|at| {
        let height = u16::from(kept.contains(&at));
        next += height;
        Rect { y: next - height, height, ..area }
    })
}

/// Parts with their importance, the lowest number the most important, without those that there is
/// no room for beside the name.
fn parts_with_room(name: &str, mut parts: Vec<(u8, String)>, width: usize) -> Vec<(u8, String)> {
    let taken = |parts: &[(u8, String)]| {
        let gaps = 2 * parts.len().saturating_sub(1);
        name.len() + gaps + parts.iter().map(|(_, text)| text.chars().count()).sum::<usize>()
    };
    while parts.len() > 1 && taken(&parts) > width {
        let least = parts.iter().map(|(importance, _)| *importance).max();
        parts.retain(|(importance, _)| Some(*importance) != least);
    }
    parts
}

/// Those parts as a line; a part of importance 0 stands out.
fn line_of(name: &'static str, parts: Vec<(u8, String)>, width: usize) -> Line<'static> {
    let mut spans = vec![Span::from(name)];
    for (at, (importance, text)) in parts_with_room(name, parts, width).into_iter().enumerate() {
        spans.push(Span::from(if at > 0 { "  " } else { "" }));
        spans.push(if importance == 0 { Span::from(text).bold() } else { Span::from(text) });
    }
    Line::from(spans)
}

/// A title of parts between commas, without those at its end that there is no room for.
fn parts_that_fit(title: &str, columns: usize) -> &str {
    let mut fits = title;
    while fits.chars().count() > columns {
        match fits.rfind(", ") {
            Some(at) => fits = &fits[..at],
            None => break,
        }
    }
    fits
}

/// A verdict for a terminal of so many columns: a row that is wider goes on below its own values,
/// and no number is cut in two.
fn folded(text: &str, columns: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for row in text.lines() {
        let mut line = String::new();
        for word in row.split_inclusive(' ') {
            if (line.chars().count() + word.trim_end().chars().count()) > columns && line.len() > VALUES_AT {
                lines.push(std::mem::replace(&mut line, " ".repeat(VALUES_AT)).trim_end().to_owned());
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join("\n")
}

fn latency_line(name: &'static str, figures: &Option<Figures>, width: usize) -> Line<'static> {
    let Some(f) = figures else { return Line::from(format!("{name}-")) };
    let parts = [
        (1, "p50", f.p50_ms),
        (5, "p95", f.p95_ms),
        (0, "p99", f.p99_ms),
        (2, "p99.9", f.p999_ms),
        (4, "p99.99", f.p9999_ms),
        (3, "max", f.max_ms),
    ];
    let parts = parts.map(|(importance, percentile, value)| (importance, format!("{percentile} {}", three(value))));
    let unit = "  ms";
    let mut line = line_of(name, parts.to_vec(), width.saturating_sub(unit.len()));
    line.push_span(unit);
    line
}

/// The course of a figure, with what its highest bar stands for.
fn sparkline(frame: &mut Frame<'_>, row: Rect, name: &'static str, values: &VecDeque<f64>, unit: &str, color: Color) {
    let scale = if row.width < SCALE_FROM { 0 } else { SCALE_WIDTH };
    let areas = Layout::horizontal([Constraint::Length(11), Constraint::Min(1), Constraint::Length(scale)]);
    let [left, middle, right] = areas.areas(row);
    frame.render_widget(Line::from(name), left);
    let shown = values.iter().skip(values.len().saturating_sub(usize::from(middle.width)));
    // Bars are whole numbers: in thousandths, so that waits under a millisecond have some too.
    let bars: Vec<u64> = shown.clone().map(|value| (value * 1000.0) as u64).collect();
    frame.render_widget(Sparkline::default().data(&bars).style(Style::new().fg(color)), middle);
    let most = shown.copied().fold(0.0, f64::max);
    frame.render_widget(Line::from(format!(" {}{unit}", three(most))).dim(), right);
}

/// The view on a terminal.
pub struct Live {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    view: View,
}

impl Live {
    /// On standard output, if it is a terminal that can be drawn on.
    pub fn on_stdout() -> Option<Live> {
        let options = TerminalOptions { viewport: Viewport::Inline(HEIGHT) };
        let terminal = Terminal::with_options(CrosstermBackend::new(stdout()), options).ok()?;
        Some(Live { terminal, view: View::default() })
    }
}

impl Observer for Live {
    fn started(&mut self, options: &Options, found: &Found, _begun: &Begun) {
        self.view = View::of(options, found);
        let view = &self.view;
        // A terminal that went away does not end a run.
        let _ = self.terminal.draw(|frame| view.draw(frame));
    }

    fn interval(&mut self, interval: &Interval, _confirm: &Histogram<u64>, _end_to_end: &Histogram<u64>) {
        self.view.push(interval);
        let view = &self.view;
        let _ = self.terminal.draw(|frame| view.draw(frame));
    }

    fn finished(&mut self, run: &Recorded) {
        let _ = self.terminal.clear();
        // The verdict takes the view's place; ratatui leaves the cursor below it, and its empty
        // lines would stand in between.
        let top = self.terminal.get_frame().area().as_position();
        let _ = self.terminal.backend_mut().set_cursor_position(top);
        let _ = self.terminal.backend_mut().show_cursor();
        let columns = self.terminal.size().map_or(usize::MAX, |size| usize::from(size.width));
        super::say(&folded(&summary(&run.run), columns));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ratatui::backend::TestBackend;

    #[test]
    fn an_interval_is_drawn_with_its_rates_and_percentiles() {
        let mut view = View { title: "Leveret".to_owned(), time_secs: Some(20), ..View::default() };
        let figures = Figures { count: 5, p99_ms: 4.25, ..Figures::default() };
        for rate in [1000.0, 8000.0] {
            view.push(&Interval {
                at_s: 10.0,
                received_per_s: rate,
                end_to_end: Some(figures.clone()),
                ..Interval::default()
            });
        }
        let mut terminal = Terminal::new(TestBackend::new(100, HEIGHT)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let drawn = terminal.backend().to_string();
        for part in ["10 of 20 s", "received 8,000", "p99 4.25", "█"] {
            assert!(drawn.contains(part), "{part} is missing in\n{drawn}");
        }
    }

    #[test]
    fn consumers_that_fall_behind_are_red_with_how_much_waits_and_how_fast_it_grows() {
        let draw = |received: f64, growth: u64| {
            let mut view = View { time_secs: Some(60), ..View::default() };
            for second in 1..=8u32 {
                view.push(&Interval {
                    at_s: f64::from(second),
                    published_per_s: 4000.0,
                    received_per_s: received,
                    backlog: Some(40 + growth * u64::from(second)),
                    ..Interval::default()
                });
            }
            let mut terminal = Terminal::new(TestBackend::new(100, HEIGHT)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
            let buffer = terminal.backend().buffer().clone();
            let line = (0..100).map(|x| buffer[(x, 2)].symbol().to_owned()).collect::<String>();
            let at = line.find("received").unwrap() as u16;
            (terminal.backend().to_string(), buffer[(at, 2)].fg == Color::Red)
        };
        let (drawn, is_red) = draw(508.0, 3492);
        assert!(is_red, "{drawn}");
        for part in
            ["8 of 60 s, 52 s left", "27,976 messages  grows by 3,490 a second  consumers fall behind", "4,000 "]
        {
            assert!(drawn.contains(part), "{part} is missing in\n{drawn}");
        }
        let (drawn, is_red) = draw(4000.0, 0);
        assert!(!is_red && drawn.contains("40 messages  steady") && !drawn.contains("behind"), "{drawn}");
    }

    #[test]
    fn publishers_that_fall_behind_what_is_due_are_red_though_the_broker_has_no_backlog() {
        let mut view = View { time_secs: Some(60), ..View::default() };
        for second in 1..=8u32 {
            view.push(&Interval {
                at_s: f64::from(second),
                target_per_s: Some(120_000.0),
                published_per_s: 48_400.0,
                received_per_s: 48_400.0,
                backlog: Some(5000),
                unsent: Some(71_600 * u64::from(second)),
                ..Interval::default()
            });
        }
        let draw = |columns: u16| {
            let mut terminal = Terminal::new(TestBackend::new(columns, HEIGHT)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
            terminal
        };
        let (wide, narrow) = (draw(100).backend().to_string(), draw(46).backend().to_string());
        let told = "backlog    5,000 messages  572,800 not sent  grows by 71,600 a second  publishers fall behind";
        assert!(wide.contains(told), "{wide}");
        assert!(narrow.contains("backlog    572,800 not sent"), "{narrow}");
        let buffer = draw(100).backend().buffer().clone();
        let colour_of = |name: &str| {
            let line = (0..100).map(|x| buffer[(x, 2)].symbol().to_owned()).collect::<String>();
            buffer[(line.find(name).unwrap() as u16, 2)].fg
        };
        assert_eq!((colour_of("sent"), colour_of("received")), (Color::Red, Color::Reset));
    }

    #[test]
    fn a_broker_that_holds_back_is_said_first_of_what_went_wrong_in_red() {
        let mut view = View { time_secs: Some(60), ..View::default() };
        let held = Interval { held_back_s: 1.0, held_back_why: vec!["low on disk".to_owned()], ..Interval::default() };
        view.push(&Interval { at_s: 1.0, published_per_s: 10.0, nacked: 5, ..held });
        let mut terminal = Terminal::new(TestBackend::new(100, HEIGHT)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = (0..100).map(|x| buffer[(x, HEIGHT - 1)].symbol().to_owned()).collect::<String>();
        assert!(line.starts_with("held back by the broker for 1.0 s: low on disk  5 nacked"), "{line}");
        assert_eq!(buffer[(0, HEIGHT - 1)].fg, Color::Red);
    }

    #[test]
    fn a_small_terminal_is_given_the_lines_and_parts_that_matter_most_and_no_number_in_two() {
        let figures = Figures { count: 5, p99_ms: 4.25, ..Figures::default() };
        let mut view = View { title: "Leveret".to_owned(), time_secs: Some(20), ..View::default() };
        view.push(&Interval {
            at_s: 10.0,
            target_per_s: Some(1_234_567.0),
            published_per_s: 1_234_567.0,
            confirmed_per_s: 1_234_568.0,
            received_per_s: 1_234_569.0,
            connections_lost: 3,
            end_to_end: Some(figures),
            ..Interval::default()
        });
        let drawn = |columns, lines| {
            let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
            terminal.backend().to_string()
        };
        let whole = drawn(100, HEIGHT);
        assert!(
            whole.contains("target 1,230,000") && whole.contains("network") && whole.contains("Leveret"),
            "{whole}"
        );
        let small = drawn(66, 8);
        assert!(!small.contains("network") && !small.contains("Leveret"), "{small}");
        for part in
            ["10 of 20 s", "sent 1,230,000  confirmed 1,230,000  received 1,230,000", "p99 4.25", "3 connections lost"]
        {
            assert!(small.contains(part), "{part} is missing in\n{small}");
        }
        let tiny = drawn(30, 3);
        assert!(
            tiny.contains("10 of 20 s") && tiny.contains("received 1,230,000") && tiny.contains("p99 4.25"),
            "{tiny}"
        );
        assert!(!tiny.contains("sent") && !tiny.contains("confirm"), "{tiny}");
    }

    #[test]
    fn a_narrow_terminal_keeps_what_matters_and_cuts_no_figure() {
        let figures = Figures { count: 5, p50_ms: 1.5, p99_ms: 4.25, p9999_ms: 12345.0, ..Figures::default() };
        let line = |width: usize| latency_line("end to end ", &Some(figures.clone()), width).to_string();
        assert!(line(100).contains("p95") && line(100).contains("p99.99 12,300"));
        let narrow = line(60);
        assert!(narrow.len() <= 60 && narrow.contains("p50 1.50  p99 4.25") && narrow.ends_with("ms"), "{narrow}");
        assert!(!narrow.contains("p95") && line(20).contains("p99 4.25"));
    }

    #[test]
    fn a_title_loses_whole_parts_and_a_verdict_goes_on_below_its_values() {
        assert_eq!(parts_that_fit("Leveret at h:1, 2 producers, open loop", 30), "Leveret at h:1, 2 producers");
        assert_eq!(parts_that_fit("Leveret", 3), "Leveret");
        let verdict = "\nLeveret, 2.0 s measured\n  confirm           p50 1.0 p75 2.0 p90 3.0 ms\n  PASSED";
        let told = "\nLeveret, 2.0 s measured\n  confirm           p50 1.0 p75\n                    2.0 p90 3.0\n                    ms\n  PASSED";
        assert_eq!(folded(verdict, 31), told);
        assert_eq!(folded(verdict, 80), verdict);
        assert_eq!(folded("  checked           a_word_that_is_wider", 10).lines().count(), 1, "a word is not cut");
    }

    #[test]
    fn progress_is_told_by_messages_where_no_time_was_set() {
        let mut view = View { messages: Some((1000, 0.0)), ..View::default() };
        for at_s in [1.0, 2.0] {
            view.push(&Interval { at_s, published_per_s: 250.0, ..Interval::default() });
        }
        assert_eq!(view.share(), 0.5);
        let mut terminal = Terminal::new(TestBackend::new(60, HEIGHT)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        assert!(terminal.backend().to_string().contains("500 of 1,000 messages"));
    }
}
