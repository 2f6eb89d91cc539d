//! What a person sees while a run measures: one live line on a terminal, a line for each
//! measurement elsewhere.
//!
//! Invariant: this goes to standard error and is never needed: everything said here is in the
//! results file too.

use std::io::{IsTerminal as _, Write as _};

use sizing::figures::{exact, three};
use sizing::outcome::is_matched;
use sizing::results::Step;
use sizing::run::Event;
use sizing::run::plan::Plan;
use sizing::run::schedule::{is_possible, seconds_left, trials};

/// Columns of a terminal that does not say how wide it is.
const COLUMNS: u16 = 80;

/// Cells of the bar.
const BAR: usize = 20;

/// The terminal, or not one.
#[derive(Debug)]
pub(crate) struct Screen {
    is_live: bool,
    /// Length of the live line, to wipe it.
    shown: usize,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen { is_live: std::io::stderr().is_terminal(), shown: 0 }
    }

    /// Shows what happens.
    pub(crate) fn show(&mut self, event: &Event) {
        match event {
            Event::Driving { name, test, target, done, all, elapsed, seconds, left } => {
                if self.is_live {
                    let part = (elapsed / seconds).clamp(0.0, 1.0);
                    let full = (part * BAR as f64) as usize;
                    let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR - full));
                    // What matters most comes first: a narrow terminal cuts the end.
                    let line = format!(
                        "[{}/{all}] {} left [{bar}] {elapsed:.0} of {seconds:.0} s, {name} {test} at {} msg/s",
                        done + 1,
                        span(*left),
                        exact(*target)
                    );
                    self.live(&line);
                } else if *elapsed < 0.5 && self.shown != done + 1 {
                    self.shown = done + 1;
                    let line =
                        format!("[{}/{all}] {name} {test} at {} msg/s, {} left", done + 1, exact(*target), span(*left));
                    self.line(&line);
                }
            }
            Event::Starting { name } => self.line(&format!("bringing up {name}")),
            Event::Up { name, seconds } => self.line(&format!("{name} is up after {}", span(*seconds))),
            Event::Note { text } => self.line(&format!("note: {text}")),
            Event::Measured { step } => self.line(&measured(step)),
            Event::Skipped { skipped } => {
                let target = exact(skipped.target);
                self.line(&format!(
                    "  {}/{} {} at {target}: skipped: {}",
                    skipped.cluster, skipped.volume, skipped.test, skipped.why
                ));
            }
            Event::Failed { name, why } => self.line(&format!("  {name}: failed: {why}")),
        }
    }

    /// Leaves the cursor on a line of its own.
    pub(crate) fn end(&mut self) {
        if self.is_live && self.shown > 0 {
            self.live("");
            let _ = write!(std::io::stderr(), "\r");
        }
    }

    /// Draws the live line again. One that is wider than the terminal would go on in the next line,
    /// and each drawing would leave one behind: it is cut.
    fn live(&mut self, line: &str) {
        let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
        let line = cut(line, columns);
        let blanks = " ".repeat(self.shown.saturating_sub(line.chars().count()));
        let _ = write!(std::io::stderr(), "\r{line}{blanks}");
        self.shown = line.chars().count();
    }

    fn line(&mut self, line: &str) {
        if self.is_live {
            // A line that stays is whole, however wide: only what is drawn again must fit.
            self.live("");
            let _ = write!(std::io::stderr(), "\r");
            self.shown = 0;
        }
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// As much of a line as a terminal shows; 0 columns are a terminal that does not say.
fn cut(line: &str, columns: u16) -> &str {
    // The last column stays free: some terminals go on in the next line once it is full.
    let room = usize::from(if columns == 0 { COLUMNS } else { columns }).saturating_sub(1);
    line.char_indices().nth(room).map_or(line, |(end, _)| &line[..end])
}

fn measured(step: &Step) -> String {
    let late = step.p99_ms.map_or(String::new(), |p99| format!(", p99 {} ms", three(p99)));
    let cpu = step.cpu_percent.map_or(String::new(), |percent| format!(", CPU {percent:.0} %"));
    let broken = step.lost.unwrap_or(0) + step.duplicated.unwrap_or(0);
    let broken = if broken > 0 { format!(", {broken} LOST OR DOUBLED") } else { String::new() };
    format!(
        "  {}/{} {} at {}: {} msg/s{late}{cpu}{broken}{}",
        step.cluster,
        step.volume,
        step.test,
        exact(step.target),
        three(step.consumed),
        if is_matched(step) { "" } else { ", short of the target" }
    )
}

/// What a plan would measure, and for how long.
pub(crate) fn outlook(plan: &Plan) -> String {
    let all = trials(plan);
    let (mut text, mut count) = (String::new(), 0);
    for (at, candidate) in plan.candidates.iter().enumerate() {
        let of_it: Vec<_> = all.iter().filter(|trial| trial.candidate == at).cloned().collect();
        let possible = of_it.iter().filter(|trial| is_possible(plan, trial)).count();
        let length = span(seconds_left(plan, &of_it, &[]));
        text.push_str(&format!("{}: {possible} measurements, {length}\n", candidate.configuration.name()));
        for trial in &of_it {
            let (target, length) = (exact(trial.target), span(trial.seconds()));
            let (test, consumers) = (trial.test, trial.consumers);
            match candidate.can_lose_node() {
                Err(why) if !is_possible(plan, trial) => {
                    text.push_str(&format!("  {test} at {target} msg/s: skipped: {why}\n"));
                }
                _ => text.push_str(&format!("  {test} at {target} msg/s, {consumers} consumers, {length}\n")),
            }
        }
        count += possible;
    }
    let may_stop = plan.series.iter().any(|series| series.stop_after_short.is_some());
    let most = if may_stop { " at most: a cluster that falls short is not driven further" } else { "" };
    let length = span(seconds_left(plan, &all, &[]));
    text.push_str(&format!("{count} measurements, {length} in all{most}; bringing clusters up comes on top\n"));
    text
}

fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_never_as_wide_as_the_terminal() {
        assert_eq!(cut("0123456789", 80), "0123456789");
        assert_eq!(cut("0123456789", 10), "012345678");
        assert_eq!(cut("äöüß", 3), "äö");
        assert_eq!(cut(&"x".repeat(100), 0).len(), 79);
        assert_eq!(cut("x", 1), "");
    }
}
