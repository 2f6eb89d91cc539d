//! A thread of a broker that stands still in the middle of its work: a disk that hangs, as far as
//! the others can tell.
//!
//! Invariant: it goes on when its [`Stopped`] is dropped, and when this process ends.

use std::ffi::{c_int, c_long, c_void};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::client::PATIENCE;

const PTRACE_SEIZE: c_int = 0x4206;
const PTRACE_INTERRUPT: c_int = 0x4207;
const PTRACE_DETACH: c_int = 17;

unsafe extern "C" {
    fn ptrace(request: c_int, ...) -> c_long;
}

/// A thread that was stopped. It belongs to the thread that stopped it: nobody else may let it go
/// on.
#[derive(Debug)]
pub struct Stopped {
    tid: c_int,
    state: String,
    not_send: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops the broker's thread of this name.
    pub fn thread(broker: &Broker, name: &str) -> Stopped {
        let tasks = format!("/proc/{}/task", broker.pid().expect("the broker runs"));
        let is_it = |tid: &String| {
            std::fs::read_to_string(format!("{tasks}/{tid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let all = std::fs::read_dir(&tasks).expect("its threads").map(|task| task.expect("a thread").file_name());
        let mut found = all.map(|tid| tid.to_string_lossy().into_owned()).filter(is_it);
        let tid = found.next().unwrap_or_else(|| panic!("it has no thread {name}"));
        let state = format!("{tasks}/{tid}/stat");
        let stopped = Stopped { tid: tid.parse().expect("a number"), state, not_send: PhantomData };
        assert_eq!(stopped.ask(PTRACE_SEIZE), 0, "{name}: {}", std::io::Error::last_os_error());
        assert_eq!(stopped.ask(PTRACE_INTERRUPT), 0, "{name}: {}", std::io::Error::last_os_error());
        stopped.wait_until_it_stands();
        stopped
    }

    fn ask(&self, request: c_int) -> c_long {
        let nothing = std::ptr::null_mut::<c_void>();
        // SAFETY: these requests read and write no memory of either process.
        unsafe { ptrace(request, self.tid, nothing, nothing) }
    }

    fn wait_until_it_stands(&self) {
        let due = Instant::now() + PATIENCE;
        while !std::fs::read_to_string(&self.state).is_ok_and(|stat| stat.contains(") t ")) {
            assert!(Instant::now() < due, "thread {} does not stop", self.tid);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Its process may have ended meanwhile.
        self.ask(PTRACE_DETACH);
    }
}
