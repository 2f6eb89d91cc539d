//! One time for a whole run: nanoseconds since the Unix epoch that never go back.
//!
//! Invariant: differences come from the monotonic clock alone. The wall clock is read once, so that
//! the time in a message means something to a consumer in another process, or on another machine
//! whose clock agrees.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// The clock of a run; copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Instant,
    anchor_ns: u64,
}

impl Clock {
    /// Reads the wall clock, for the only time.
    pub fn new() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { anchor: Instant::now(), anchor_ns: wall.as_nanos() as u64 }
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub fn now(&self) -> u64 {
        self.anchor_ns + self.anchor.elapsed().as_nanos() as u64
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
