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

/// The thread's own state.
pub(crate) struct UpkeepThread {
    pub(crate) upkeep: Upkeep<RealDisk>,
    /// When its times began.
    pub(crate) epoch: Instant,
    /// Called once some jobs are done and no other came for [`QUIET_AFTER`]: an extent's bodies went
    /// through memory.
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
        let mut gives_back = None;
        loop {
            let quiet: Option<Duration> = gives_back.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let patience = upkeep.patience(epoch.elapsed()).into_iter().chain(quiet).min();
            let task = match patience.map_or_else(
                || receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                |patience| receiver.recv_timeout(patience),
            ) {
                Ok(task) => Some(task),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if task.is_none() && gives_back.take_if(|at| *at <= Instant::now()).is_some() {
                on_quiet();
            }
            let is_idle = task.is_none();
            if matches!(task, Some(Task::Job(_))) {
                gives_back = Some(Instant::now() + QUIET_AFTER);
            }
            let begun = task.map_or(Ok(()), |task| upkeep.begin(task, epoch.elapsed(), &mut routes));
            let done = begun.and_then(|()| upkeep.go_on(is_idle, epoch.elapsed(), &mut routes));
            if let Err(failed) = done {
                fatal(failed.what, &failed.error);
            }
        }
    }
}
