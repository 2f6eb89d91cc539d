//! The thread with time: extents, checkpoints, deletions, spare log files. Nothing a client waits
//! for runs here.

use super::{Routes, fatal};
use node::{Task, Upkeep};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;
use storage::RealDisk;

/// The thread's own state.
pub(crate) struct UpkeepThread {
    pub(crate) upkeep: Upkeep<RealDisk>,
    /// When its times began.
    pub(crate) epoch: Instant,
    /// Called after each job: an extent's bodies went through memory.
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
        loop {
            let task = match upkeep.patience(epoch.elapsed()).map_or_else(
                || receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                |patience| receiver.recv_timeout(patience),
            ) {
                Ok(task) => Some(task),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (is_idle, is_job) = (task.is_none(), matches!(task, Some(Task::Job(_))));
            let begun = task.map_or(Ok(()), |task| upkeep.begin(task, epoch.elapsed(), &mut routes));
            if is_job {
                on_quiet();
            }
            let done = begun.and_then(|()| upkeep.go_on(is_idle, epoch.elapsed(), &mut routes));
            if let Err(failed) = done {
                fatal(failed.what, &failed.error);
            }
        }
    }
}
