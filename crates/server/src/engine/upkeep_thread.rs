//! The thread with time: extents, checkpoints, deletions, spare log files. Nothing a client waits
//! for runs here.

use super::{Routes, fatal};
use node::{Task, Upkeep};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use storage::RealDisk;

/// After its last job the thread waits for so long before it gives memory back: what all threads have
/// freed goes, and those that are busy would fetch theirs again at once.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// And for so long at most where one job follows the other.
const QUIET_WITHIN: Duration = Duration::from_secs(5);

/// The thread's own state.
pub(crate) struct UpkeepThread {
    pub(crate) upkeep: Upkeep<RealDisk>,
    /// When its times began.
    pub(crate) epoch: Instant,
    /// Called once some jobs are done and no other came for [`QUIET_AFTER`], or [`QUIET_WITHIN`] after
    /// the first of them: an extent's bodies went through memory.
    pub(crate) on_quiet: fn(),
    pub(crate) routes: Routes,
}

impl UpkeepThread {
    /// Where tasks go, and the loop to run on a thread of its own; it ends when all senders are
    /// gone.
    pub(crate) fn prepare(self) -> (Sender<Task>, impl FnOnce() + Send) {
        let (sender, receiver) = channel();
        (sender, move || self.run(&receiver))
    }

    fn run(self, receiver: &Receiver<Task>) {
        let UpkeepThread { mut upkeep, epoch, on_quiet, mut routes } = self;
        let mut owed = Owed::default();
        loop {
            let own = upkeep.patience(epoch.elapsed());
            let patience = own.into_iter().chain(owed.patience(Instant::now())).min();
            let task = match patience.map_or_else(
                || receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                |patience| receiver.recv_timeout(patience),
            ) {
                Ok(task) => Some(task),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (is_idle, is_job) = (task.is_none(), matches!(task, Some(Task::Job(_))));
            if owed.is_due(Instant::now()) {
                on_quiet();
            }
            let begun = task.map_or(Ok(()), |task| upkeep.begin(task, epoch.elapsed(), &mut routes));
            if is_job {
                owed.worked(Instant::now());
            }
            let done = begun.and_then(|()| upkeep.go_on(is_idle, epoch.elapsed(), &mut routes));
            if let Err(failed) = done {
                fatal(failed.what, &failed.error);
            }
        }
    }
}

/// Memory that is to be given back.
#[derive(Default)]
struct Owed {
    at: Option<Instant>,
    /// At the latest.
    by: Option<Instant>,
}

impl Owed {
    /// A job is done.
    fn worked(&mut self, now: Instant) {
        let by = *self.by.get_or_insert(now + QUIET_WITHIN);
        self.at = Some(by.min(now + QUIET_AFTER));
    }

    /// How long until it is due; `None` if nothing is owed.
    fn patience(&self, now: Instant) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(now))
    }

    /// Whether it is due now; it is said once.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.at.take_if(|at| *at <= now).is_some();
        if is_due {
            self.by = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_a_second_after_the_last_of_several_jobs() {
        let (mut owed, begin) = (Owed::default(), Instant::now());
        let after = |ms| begin + Duration::from_millis(ms);
        assert_eq!((owed.patience(begin), owed.is_due(begin)), (None, false));
        owed.worked(begin);
        owed.worked(after(600));
        assert!(!owed.is_due(after(1_000)), "another job came");
        assert_eq!(owed.patience(after(1_000)), Some(Duration::from_millis(600)));
        assert!(owed.is_due(after(1_600)) && !owed.is_due(after(1_600)), "once");
        assert_eq!(owed.patience(after(1_600)), None, "nothing wakes the thread again");
    }

    #[test]
    fn memory_is_given_back_every_few_seconds_where_jobs_do_not_end() {
        let (mut owed, begin) = (Owed::default(), Instant::now());
        let mut given = Vec::new();
        for ms in (0..=12_000).step_by(500) {
            let now = begin + Duration::from_millis(ms);
            if owed.is_due(now) {
                given.push(ms);
            }
            owed.worked(now);
        }
        assert_eq!(given, [5_000, 10_000]);
    }
}
