//! What happened, line by line, for a person who looks for the reason of a failure.
//!
//! Invariant: writing a trace changes nothing of a run; a run that failed is run again from its
//! seed with the trace on.

use crate::schedule::Micros;
use std::collections::VecDeque;
use std::fmt::Write as _;

/// Lines kept: the last seconds before a failure.
const LINES_MAX: usize = 100_000;

/// The lines of one run, or nothing if it is off.
#[derive(Debug, Default)]
pub struct Trace {
    is_on: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// A trace that keeps lines if `is_on`.
    pub fn new(is_on: bool) -> Self {
        Trace { is_on, lines: VecDeque::new() }
    }

    /// Whether lines are kept; building one may be spared otherwise.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Adds a line.
    pub fn line(&mut self, now: Micros, line: impl FnOnce() -> String) {
        if !self.is_on {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        let mut text = String::new();
        let _ = write!(text, "{:>12.6} {}", now as f64 / 1e6, line());
        self.lines.push_back(text);
    }

    /// The last `count` lines, oldest first.
    pub fn last(&self, count: usize) -> String {
        let skip = self.lines.len().saturating_sub(count);
        let mut text = String::new();
        for line in self.lines.iter().skip(skip) {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}
