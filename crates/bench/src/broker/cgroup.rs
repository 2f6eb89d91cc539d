//! A box for the broker: a cgroup with a share of the CPU and a bound on memory, version 1 or 2.
//!
//! Invariant: the limits are written and read back before anything starts in the box; where that is not possible the run does not
//! begin, and says which file of which version refused.
//!
//! ```text
//!   version 2:  /sys/fs/cgroup/leveret-bench-PID/{cpu.max, memory.max, cgroup.procs}
//!   version 1:  /sys/fs/cgroup/cpu/leveret-bench-PID/{cpu.cfs_period_us, cpu.cfs_quota_us, cgroup.procs}
//!               /sys/fs/cgroup/memory/leveret-bench-PID/{memory.limit_in_bytes, cgroup.procs}
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// The period over which CPU is shared out, microseconds: the kernel's default.
const PERIOD_US: u64 = 100_000;

/// Where cgroups are.
const ROOT: &str = "/sys/fs/cgroup";

/// A box; its folders go when it is dropped.
#[derive(Debug)]
pub(super) struct Cgroup {
    folders: Vec<PathBuf>,
}

impl Cgroup {
    pub(super) fn create(cpu: Option<f64>, memory_bytes: Option<u64>) -> Result<Cgroup, Error> {
        Cgroup::create_in(Path::new(ROOT), cpu, memory_bytes)
    }

    fn create_in(root: &Path, cpu: Option<f64>, memory_bytes: Option<u64>) -> Result<Cgroup, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("leveret-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut cgroup = Cgroup { folders: Vec::new() };
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let unified = |name: &str| controllers.split_whitespace().any(|controller| controller == name);
        if let Some(cores) = cpu {
            let quota = ((cores * PERIOD_US as f64) as u64).max(1000);
            if unified("cpu") {
                let folder = cgroup.folder(root, "", &name, "cpu")?;
                write(&folder.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
            } else {
                let folder = cgroup.folder(root, "cpu", &name, "cpu")?;
                write(&folder.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                write(&folder.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        if let Some(bytes) = memory_bytes {
            if unified("memory") {
                let folder = cgroup.folder(root, "", &name, "memory")?;
                write(&folder.join("memory.max"), &bytes.to_string())?;
            } else {
                let folder = cgroup.folder(root, "memory", &name, "memory")?;
                write(&folder.join("memory.limit_in_bytes"), &bytes.to_string())?;
            }
        }
        Ok(cgroup)
    }

    /// The folder of this box under a controller (none in version 2), made if it is not there.
    fn folder(&mut self, root: &Path, hierarchy: &str, name: &str, controller: &str) -> Result<PathBuf, Error> {
        let parent = root.join(hierarchy);
        if !hierarchy.is_empty() && !parent.is_dir() {
            return Err(Error::machine(
                format!("limiting the broker's {controller}"),
                format!(
                    "cgroup version 2 at {} does not offer the controller {controller} (cgroup.controllers), and there is no version 1 at {}",
                    root.display(),
                    parent.display()
                ),
            ));
        }
        let folder = parent.join(name);
        if !self.folders.contains(&folder) {
            fs::create_dir(&folder).map_err(|why| {
                let hint = match why.kind() {
                    std::io::ErrorKind::PermissionDenied => "; run as root, or in a delegated cgroup",
                    std::io::ErrorKind::ReadOnlyFilesystem => {
                        "; cgroups are mounted read-only here, as in most containers"
                    }
                    _ => "",
                };
                Error::machine(format!("making the cgroup {}", folder.display()), format!("{why}{hint}"))
            })?;
            self.folders.push(folder.clone());
        }
        Ok(folder)
    }

    /// A command that enters the box and then becomes `words`: the process is inside before it runs its first instruction.
    pub(super) fn wrapped(&self, words: &[String]) -> Vec<String> {
        let enter: Vec<String> =
            self.folders.iter().map(|folder| format!("echo $$ > '{}/cgroup.procs'", folder.display())).collect();
        let script = format!("{} && exec \"$@\"", enter.join(" && "));
        ["sh", "-c", &script, "sh"].map(str::to_owned).into_iter().chain(words.iter().cloned()).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            // A process that was just killed is still counted for a moment.
            for _ in 0..50 {
                if fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

/// Writes a limit and reads back whether it holds. The kernel rounds memory to pages, so only a different size of number counts.
fn write(file: &Path, value: &str) -> Result<(), Error> {
    let what = format!("writing {value} to {}", file.display());
    fs::write(file, value).map_err(|why| Error::machine(what.clone(), why))?;
    let read = fs::read_to_string(file).map_err(|why| Error::machine(what.clone(), why))?;
    let first = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    match (first(value), first(&read)) {
        (Some(wanted), Some(is)) if (wanted - is).abs() <= 4096.0_f64.max(wanted * 0.001) => Ok(()),
        _ => Err(Error::machine(what, format!("it reads {} afterwards", read.trim()))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn version_2_has_one_folder_and_version_1_one_for_each_controller() {
        let two = tempfile::tempdir().unwrap();
        fs::write(two.path().join("cgroup.controllers"), "cpuset cpu memory pids").unwrap();
        let cgroup = Cgroup::create_in(two.path(), Some(0.9), Some(1 << 29)).unwrap();
        assert_eq!(cgroup.folders.len(), 1);
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("cpu.max")).unwrap(), "90000 100000");
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("memory.max")).unwrap(), "536870912");

        let one = tempfile::tempdir().unwrap();
        ["cpu", "memory"].iter().for_each(|name| fs::create_dir(one.path().join(name)).unwrap());
        let cgroup = Cgroup::create_in(one.path(), Some(0.9), Some(1 << 29)).unwrap();
        assert_eq!(cgroup.folders.len(), 2);
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("cpu.cfs_quota_us")).unwrap(), "90000");
        let words = cgroup.wrapped(&["x".to_owned(), "a b".to_owned()]);
        assert_eq!(words[words.len() - 2..], ["x", "a b"]);
        assert_eq!(words[2].matches("cgroup.procs").count(), 2);
        for folder in cgroup.folders.clone() {
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn a_machine_without_the_controller_is_told_which_one() {
        let none = tempfile::tempdir().unwrap();
        let error = Cgroup::create_in(none.path(), Some(1.0), None).unwrap_err().to_string();
        assert!(error.contains("does not offer the controller cpu"), "{error}");
    }
}
