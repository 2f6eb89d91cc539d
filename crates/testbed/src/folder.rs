//! The folder of a node that is started here, and what is left of runs that were killed.
//!
//! Invariant: a folder is locked as long as the process that made it lives, and every process that
//! was started for it shows its name; so whoever finds one without its owner can end what is left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Failed, process};

/// The variable by which a process shows that it comes from what was started, whoever forked it:
/// its value is the folder.
pub(crate) const MARK: &str = "BENCH_BROKER_FOLDER";

/// How the names of folders for a while begin.
const PREFIX: &str = "leveret-bench-";

/// The file of a folder that is locked by the process that made it.
const OWNER: &str = "owner";

/// A folder that is younger than this may belong to a process that has not come to locking it.
const YOUNG: Duration = Duration::from_secs(5);

/// A folder of this process. Removed with all that is in it when dropped, unless it is to be kept.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Whether it outlives this process: its log says what went wrong.
    pub is_kept: bool,
    /// Locked as long as this process lives.
    _owner: File,
}

impl Folder {
    /// One that nobody else has, where files for a while are.
    pub fn for_a_while() -> Result<Folder, Failed> {
        let failed = |why| Failed::new("making a folder for the broker", why);
        let path = tempfile::Builder::new().prefix(PREFIX).tempdir().map_err(failed)?.keep();
        Folder::owned(path)
    }

    /// One of this name, emptied. Processes that a killed run left in it are ended; one whose run
    /// lives is refused.
    pub fn at(path: PathBuf) -> Result<Folder, Failed> {
        if let Ok(file) = File::open(path.join(OWNER)) {
            file.try_lock()
                .map_err(|_| Failed::new(format!("using {}", path.display()), "another run that lives uses it"))?;
            end_processes_of(&path);
        }
        // Data of a run that was interrupted would be a head start.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|why| Failed::new(format!("making {}", path.display()), why))?;
        Folder::owned(path)
    }

    fn owned(path: PathBuf) -> Result<Folder, Failed> {
        let owner = owner(&path)?;
        Ok(Folder { path, is_kept: false, _owner: owner })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn owner(folder: &Path) -> Result<File, Failed> {
    let file = File::create(folder.join(OWNER)).and_then(|file| file.try_lock().map(|()| file).map_err(Into::into));
    file.map_err(|why| Failed::new("locking the broker's folder", why))
}

/// Whether a process comes from what was started for this folder; `None` if it has no mark or we
/// may not see it.
pub(crate) fn is_marked(pid: u32, folder: &Path) -> Option<bool> {
    use std::os::unix::ffi::OsStrExt as _;
    process::variable(pid, MARK).map(|mark| mark == folder.as_os_str().as_bytes())
}

fn end_processes_of(folder: &Path) {
    for pid in process::all().filter(|pid| is_marked(*pid, folder) == Some(true)) {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Ends the brokers of runs that were killed, and removes their folders. Nobody else would, and
/// they would go on using the machine that is measured. Waits for a few seconds where it is too
/// early to tell whose a folder is: a run that is begun again at once finds its own of before.
pub fn end_orphans() {
    end_orphans_in(&std::env::temp_dir(), YOUNG);
}

fn end_orphans_in(all: &Path, young: Duration) {
    if let Some(left) = end_those_of_age(all, young) {
        std::thread::sleep(left);
        // What has come since is nobody's that was killed before.
        let _ = end_those_of_age(all, young);
    }
}

/// Ends those whose folders are older than `young`. Says after how long all of the others will be.
fn end_those_of_age(all: &Path, young: Duration) -> Option<Duration> {
    let mut longest = None;
    let entries = fs::read_dir(all).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let folder = entry.path();
        let Ok(file) = File::open(folder.join(OWNER)) else { continue };
        // One of the future is left alone: the clock was set.
        let Some(age) = file.metadata().and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok()) else {
            continue;
        };
        if age < young {
            longest = longest.max(Some(young - age));
            continue;
        }
        if file.try_lock().is_err() {
            continue;
        }
        end_processes_of(&folder);
        let _ = fs::remove_dir_all(&folder);
    }
    longest
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    fn sleeper(folder: &Path) -> std::process::Child {
        Command::new("sleep").arg("60").env(MARK, folder).spawn().expect("it starts")
    }

    #[test]
    fn a_broker_that_a_killed_run_left_a_moment_ago_is_ended_too() {
        let all = tempfile::tempdir().expect("a folder");
        let of = |name: &str| {
            let folder = all.path().join(format!("{PREFIX}{name}"));
            fs::create_dir(&folder).expect("a folder");
            folder
        };
        let (left, lives) = (of("left"), of("lives"));
        drop(owner(&left).expect("it is locked, until its owner is killed"));
        let _lock = owner(&lives).expect("it is locked");
        let (mut orphan, mut other) = (sleeper(&left), sleeper(&lives));
        end_orphans_in(all.path(), Duration::from_millis(300));
        assert!(!orphan.wait().expect("it ends").success(), "it was killed");
        assert!(!left.exists() && lives.exists());
        assert!(other.try_wait().expect("it is asked").is_none(), "its run lives");
        other.kill().expect("it is ended");
        other.wait().expect("it ends");
    }

    #[test]
    fn a_folder_of_a_killed_run_is_taken_over_and_that_of_one_that_lives_is_not() {
        let all = tempfile::tempdir().expect("a folder");
        let path = all.path().join("node-0");
        let mut first = Folder::at(path.clone()).expect("nobody has it");
        fs::write(path.join("data"), "old").expect("it is written");
        let mut orphan = sleeper(&path);
        let failed = Folder::at(path.clone()).expect_err("its run lives");
        assert!(failed.to_string().contains("another run"), "{failed}");
        // What a kill leaves: the folder, the process, and no lock.
        first.is_kept = true;
        drop(first);
        // A process that another test begins just now holds what is open here until it runs its program.
        let mut tries = (0..200).map(|_| Folder::at(path.clone()).inspect_err(|_| thread::sleep(SOON)));
        let second = tries.find_map(Result::ok).expect("its run is gone");
        assert!(!orphan.wait().expect("it ends").success(), "it was killed");
        assert!(!path.join("data").exists());
        drop(second);
        assert!(!path.exists());
    }
}
