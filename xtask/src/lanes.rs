//! The workspace's test programs in two lanes at a time: those that compute, and those that mostly wait for a broker.
//!
//! Two cores have room for both: the simulator and the crash rounds of the storage run beside the others, and give way to them.
//!
//! Invariant: each test program runs in exactly one lane, with the features that `cargo test --workspace` gives it.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Packages whose tests do nothing but compute, and know no clock but their own.
const COMPUTING: &[&str] = &["sim", "storage"];
/// The package of the black-box tests.
const BLACK_BOX: &str = "clients";
/// So many of its tests run at a time, as they wait: for brokers that start, for disks, for what must not come.
const BLACK_BOX_THREADS: &str = "4";

/// Half of the test programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Those that compute, at the lowest priority.
    Computing,
    /// All others.
    Waiting,
}

impl Lane {
    const ALL: [Lane; 2] = [Lane::Computing, Lane::Waiting];

    fn name(self) -> &'static str {
        match self {
            Lane::Computing => "computing",
            Lane::Waiting => "waiting",
        }
    }

    fn of(package: &str) -> Lane {
        if COMPUTING.contains(&package) { Lane::Computing } else { Lane::Waiting }
    }

    /// `cargo test` over the workspace, of whose programs only those of this lane run. Cargo hands each of
    /// them to [`run`]: with packages left out it would build their dependencies with other features.
    pub(crate) fn command(self) -> Result<Command, String> {
        let chore = env::current_exe().map_err(|why| format!("where this program is: {why}"))?;
        let runner =
            format!("target.'cfg(unix)'.runner=[{:?}, \"lane\", {:?}]", chore.display().to_string(), self.name());
        let mut command = Command::new("cargo");
        command.args(["--config", &runner, "test", "--locked", "--no-fail-fast", "--workspace"]);
        if self == Lane::Computing {
            // The examples in docs, and the names of programs, are left to the other lane.
            command.args(["--tests", "-q"]);
        }
        Ok(command)
    }
}

/// Becomes the test program `words` if it belongs to the lane that is named first; does nothing otherwise.
pub(crate) fn run(mut words: impl Iterator<Item = String>) -> Result<(), String> {
    let named = words.next().unwrap_or_default();
    let lane = Lane::ALL.into_iter().find(|lane| lane.name() == named).ok_or(format!("there is no lane {named:?}"))?;
    let program = words.next().ok_or("a lane needs a test program")?;
    let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
    if Lane::of(&package) != lane {
        return Ok(());
    }
    let mut test = match lane {
        Lane::Waiting => Command::new(&program),
        Lane::Computing => {
            let mut nice = Command::new("nice");
            nice.args(["-n", "19", &program]);
            nice
        }
    };
    if package == BLACK_BOX && env::var_os("RUST_TEST_THREADS").is_none() {
        test.env("RUST_TEST_THREADS", BLACK_BOX_THREADS);
    }
    let why = test.args(words).stdin(Stdio::null()).exec();
    Err(format!("{program}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_of_the_lanes_are_packages_of_this_workspace() {
        let root = crate::shell::root();
        for package in COMPUTING {
            assert!(root.join("crates").join(package).join("tests").is_dir(), "{package} has no tests");
            assert_eq!(Lane::of(package), Lane::Computing);
        }
        let black_box = std::fs::read_to_string(root.join("tests/Cargo.toml")).expect("the black-box tests are there");
        assert!(black_box.contains(&format!("name = {BLACK_BOX:?}")));
        assert_eq!(Lane::of(BLACK_BOX), Lane::Waiting);
    }
}
