//! The process of a node on this machine: whether it runs, and its end.
//!
//! Invariant: it is held by a descriptor from before it is told to end, so a process that gets the
//! same number later is never taken for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::time::Duration;

/// A process.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    /// The one of this number, if there is one.
    pub(crate) fn of(pid: u32) -> Option<Process> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Process)
    }

    /// Waits for its end; false if it has not ended by then. `None` waits for ever.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let until = at_most.map(|wait| std::time::Instant::now() + wait);
        loop {
            let left = until.map(|until| until.saturating_duration_since(std::time::Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether it still runs.
    pub(crate) fn runs(&self) -> bool {
        !self.wait(Some(Duration::ZERO))
    }
}
