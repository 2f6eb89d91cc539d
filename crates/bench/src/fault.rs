//! What is done to a broker in the middle of a load: after a time that counts from the load's own
//! beginning, and never when there is no load.
//!
//! Invariant: whoever asks learns whether it was done. A run whose broker was not lost says nothing
//! of losing one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::run::Context;

/// What was done to a broker that was killed, for a mark in charts.
pub const KILLED: &str = "a broker killed";

/// How often is looked whether it is time.
const LOOK: Duration = Duration::from_millis(10);

/// A deed that waits for its time.
#[derive(Debug)]
pub struct Fault {
    thread: JoinHandle<Result<bool, Error>>,
    is_over: Arc<AtomicBool>,
}

impl Fault {
    /// Does `deed` once the next load that is driven in this context has lasted for `after`.
    pub fn new(context: &Context, after: Duration, deed: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Fault {
        let is_over = Arc::new(AtomicBool::new(false));
        let (loads, interrupted, over) =
            (Arc::clone(&context.loads), Arc::clone(&context.interrupted), Arc::clone(&is_over));
        let before = loads.load(Ordering::Relaxed);
        let thread = std::thread::spawn(move || {
            let until = |is_time: &dyn Fn() -> bool| {
                while !is_time() {
                    if over.load(Ordering::Relaxed) || interrupted.load(Ordering::Relaxed) {
                        return false;
                    }
                    std::thread::sleep(LOOK);
                }
                true
            };
            if !until(&|| loads.load(Ordering::Relaxed) != before) {
                return Ok(false);
            }
            let began = Instant::now();
            let is_time = until(&|| began.elapsed() >= after);
            if is_time {
                deed()?;
            }
            Ok(is_time)
        });
        Fault { thread, is_over }
    }

    /// Called when the load is over: whether it was done.
    pub fn end(self) -> Result<bool, Error> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread of a fault does not panic")
    }
}

/// How many loads have begun in a context.
pub type Loads = Arc<AtomicU64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_the_load_and_is_not_done_without_one() {
        let context = Context::default();
        let done = Arc::new(AtomicBool::new(false));
        let fault = |after| {
            let done = Arc::clone(&done);
            Fault::new(&context, after, move || {
                done.store(true, Ordering::Relaxed);
                Ok(())
            })
        };
        let early = fault(Duration::ZERO);
        std::thread::sleep(5 * LOOK);
        assert!(!early.end().expect("nothing failed") && !done.load(Ordering::Relaxed), "no load began");
        let late = fault(Duration::from_secs(600));
        context.loads.fetch_add(1, Ordering::Relaxed);
        assert!(!late.end().expect("nothing failed") && !done.load(Ordering::Relaxed), "the load was over before");
        let timely = fault(Duration::from_millis(1));
        context.loads.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        while !done.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(LOOK);
        }
        assert!(timely.end().expect("nothing failed") && done.load(Ordering::Relaxed));
    }
}
