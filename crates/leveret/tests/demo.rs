//! `leveret cluster demo` as its user has it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn demo(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    // Three ports in a row from there on are looked for by the demo itself.
    command.args(["cluster", "demo", "--nodes", "2", "--port", "17600", "--dir"]).arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A demo, which a test that fails does not leave behind: its nodes end with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

impl Running {
    /// One all of whose nodes serve.
    fn serving(folder: &Path) -> Running {
        let mut running = Running(demo(folder).spawn().expect("the program is there"));
        let said = BufReader::new(running.0.stdout.as_mut().expect("it is piped"));
        let is_up = said.lines().map_while(Result::ok).any(|line| line.contains("Ctrl-C ends all"));
        assert!(is_up, "it ended before its nodes served");
        running
    }

    /// Its exit code, if it ends in time: it gives its nodes 20 s.
    fn ended(&mut self) -> Option<i32> {
        let due = Instant::now() + Duration::from_secs(40);
        while Instant::now() < due {
            if let Some(status) = self.0.try_wait().expect("it is ours") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}

/// What ends a demo here: tests that run under `nohup` ignore the end of the terminal, and so does what they start.
fn end_of_terminal() -> Signal {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    if ignored & 1 == 0 { Signal::HUP } else { Signal::TERM }
}

#[test]
fn a_folder_has_one_demo_at_a_time_which_ends_with_its_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = Running::serving(folder.path());
    let log = || std::fs::read_to_string(folder.path().join("n1.log")).expect("it is there");
    let before = log().len();
    let mut second = Running(demo(folder.path()).spawn().expect("the program is there"));
    assert_eq!(second.ended(), Some(1), "it is refused");
    let said = std::io::read_to_string(second.0.stderr.take().expect("it is piped")).expect("it ended");
    assert!(said.contains(&format!("already, process {}: end it", first.0.id())), "{said}");
    let told = std::io::read_to_string(second.0.stdout.take().expect("it is piped")).expect("it ended");
    assert_eq!(told, "", "it starts nothing");
    assert!(!log()[before..].contains("in use"), "and leaves the log of the first alone");

    kill_process(Pid::from_child(&first.0), end_of_terminal()).expect("it runs");
    assert_eq!(first.ended(), Some(0));
    assert!(log().trim_end().ends_with("stopped"), "its nodes end in good order: {}", log());
}
