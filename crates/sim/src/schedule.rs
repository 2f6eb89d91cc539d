//! Virtual time: what happens next, and when.
//!
//! Invariant: time never goes back, and events of the same moment happen in the order in which they
//! were put there.

use std::collections::BTreeMap;

/// Microseconds since the start of a run.
pub type Micros = u64;

/// A millisecond.
pub const MS: Micros = 1_000;
/// A second.
pub const SECOND: Micros = 1_000_000;

/// Events by time.
#[derive(Debug)]
pub struct Schedule<E> {
    now: Micros,
    next: u64,
    events: BTreeMap<(Micros, u64), E>,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Schedule { now: 0, next: 0, events: BTreeMap::new() }
    }
}

impl<E> Schedule<E> {
    /// The time of the last event taken.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Lets `event` happen `after` microseconds from now.
    pub fn after(&mut self, after: Micros, event: E) {
        self.at(self.now + after, event);
    }

    /// Lets `event` happen at `time`, or now if that is over.
    pub fn at(&mut self, time: Micros, event: E) {
        self.next += 1;
        self.events.insert((time.max(self.now), self.next), event);
    }

    /// Takes the next event and goes to its time.
    #[allow(clippy::should_implement_trait)] // Taking an event moves the clock.
    pub fn next(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }
}
