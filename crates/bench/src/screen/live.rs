//! The live view: a few lines at the bottom of the terminal that are drawn again each interval.
//!
//! Invariant: it takes no keyboard and leaves the terminal's modes alone, so that Ctrl-C and scrolling work as always, and what is
//! left on the screen at the end is the verdict.

use std::collections::VecDeque;
use std::io::{Stdout, stdout};

use hdrhistogram::Histogram;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::{ms, opening, rate_text, summary};
use crate::latency::Figures;
use crate::options::Options;
use crate::record::{Interval, Recorded};
use crate::run::Observer;
use crate::setup::Found;

/// Lines of the view.
const HEIGHT: u16 = 10;

/// Intervals that the sparklines remember; no terminal is wider.
const REMEMBERED: usize = 512;

/// What the view shows.
#[derive(Debug, Default)]
pub struct View {
    title: String,
    time_secs: Option<u64>,
    last: Interval,
    rates: VecDeque<u64>,
    tails: VecDeque<u64>,
}

impl View {
    /// Takes an interval in.
    pub fn push(&mut self, interval: &Interval) {
        let rate = interval.received_per_s.max(interval.confirmed_per_s).max(if interval.confirm.is_none() {
            interval.published_per_s
        } else {
            0.0
        });
        let tail = interval.end_to_end.as_ref().or(interval.confirm.as_ref()).map_or(0.0, |f| f.p99_ms);
        for (ring, value) in [(&mut self.rates, rate), (&mut self.tails, tail * 1000.0)] {
            ring.push_back(value as u64);
            if ring.len() > REMEMBERED {
                ring.pop_front();
            }
        }
        self.last = interval.clone();
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rows: [Rect; 10] = Layout::vertical([Constraint::Length(1); 10]).areas(frame.area());
        let i = &self.last;
        frame.render_widget(Paragraph::new(self.title.as_str().bold()), rows[0]);
        let share = self.time_secs.map_or(0.0, |secs| (i.at_s / secs as f64).clamp(0.0, 1.0));
        let clock = match self.time_secs {
            Some(secs) => format!("{:.0} of {secs} s, {}", i.at_s, i.phase),
            None => format!("{:.0} s, {}", i.at_s, i.phase),
        };
        frame.render_widget(
            Gauge::default().ratio(share).label(clock).gauge_style(Style::new().fg(Color::Blue)),
            rows[1],
        );
        let target = i.target_per_s.map_or(String::new(), |target| format!(" of {}", rate_text(target)));
        let rates = Line::from(vec![
            Span::from("msg/s      "),
            Span::from(format!("sent {}{target}  ", rate_text(i.published_per_s))),
            Span::from(format!("confirmed {}  ", rate_text(i.confirmed_per_s))),
            Span::from(format!("received {}", rate_text(i.received_per_s))).bold(),
        ]);
        frame.render_widget(rates, rows[2]);
        sparkline(frame, rows[3], "rate       ", &self.rates, Color::Green);
        frame.render_widget(latency_line("confirm    ", &i.confirm), rows[4]);
        frame.render_widget(latency_line("end to end ", &i.end_to_end), rows[5]);
        sparkline(frame, rows[6], "p99        ", &self.tails, Color::Yellow);
        let broker = i.broker.map_or("not on this machine".to_owned(), |load| {
            format!(
                "{:.2} cores  {} MB  disk write {:.1} MB/s",
                load.cpu_cores,
                load.rss_bytes / 1_000_000,
                load.write_bytes_s / 1e6
            )
        });
        frame.render_widget(Line::from(format!("broker     {broker}")), rows[7]);
        let network = format!(
            "network    to the broker {:.1} MB/s  from it {:.1} MB/s  this load {:.2} cores",
            i.to_broker_bytes_s / 1e6,
            i.from_broker_bytes_s / 1e6,
            i.generator_cores
        );
        frame.render_widget(Line::from(network), rows[8]);
        let odd = format!("{} nacked  {} returned  {} connections lost", i.nacked, i.returned, i.connections_lost);
        let calm = i.nacked + i.returned + i.connections_lost == 0 && i.blocked_s == 0.0;
        let odd = if i.blocked_s > 0.0 { format!("{odd}  blocked {:.1} s", i.blocked_s) } else { odd };
        frame.render_widget(Line::from(if calm { odd.dim() } else { odd.red() }), rows[9]);
    }
}

fn latency_line(name: &'static str, figures: &Option<Figures>) -> Line<'static> {
    let Some(f) = figures else { return Line::from(format!("{name}-")) };
    Line::from(vec![
        Span::from(name),
        Span::from(format!("p50 {}  p95 {}  ", ms(f.p50_ms), ms(f.p95_ms))),
        Span::from(format!("p99 {}  ", ms(f.p99_ms))).bold(),
        Span::from(format!("p99.9 {}  p99.99 {}  max {} ms", ms(f.p999_ms), ms(f.p9999_ms), ms(f.max_ms))),
    ])
}

fn sparkline(frame: &mut Frame<'_>, row: Rect, name: &'static str, values: &VecDeque<u64>, color: Color) {
    let [left, right] = Layout::horizontal([Constraint::Length(11), Constraint::Min(1)]).areas(row);
    frame.render_widget(Line::from(name), left);
    let width = usize::from(right.width);
    let shown: Vec<u64> = values.iter().skip(values.len().saturating_sub(width)).copied().collect();
    frame.render_widget(Sparkline::default().data(&shown).style(Style::new().fg(color)), right);
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
    fn started(&mut self, options: &Options, found: &Found) {
        self.view = View { title: opening(options, found), time_secs: options.time_secs, ..View::default() };
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
        let _ = self.terminal.backend_mut().show_cursor();
        super::say(&summary(&run.run));
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
        for part in ["10 of 20 s", "received 8000", "p99 4.250", "█"] {
            assert!(drawn.contains(part), "{part} is missing in\n{drawn}");
        }
    }
}
