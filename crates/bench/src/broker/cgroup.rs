//! A box for the broker: a cgroup with a share of the CPU and a bound on memory, version 1 or 2.
//!
//! Invariant: the limits are written and read back before anything starts in the box; where that is not possible the run does not
//! begin, and says which file of which version refused.
//!
//! ```text
//!   version 2:  /sys/fs/cgroup/cgroup.subtree_control, then /sys/fs/cgroup/leveret-bench-PID/{cpu.max, memory.max, cgroup.procs}
//!               (or under /sys/fs/cgroup/unified, where both versions are mounted and version 2 has the controller)
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
        Cgroup::create_in(Path::new(ROOT), &|_| (), cpu, memory_bytes)
    }

    /// `made` is told of each folder: a test stands in for the kernel, which puts files into it.
    fn create_in(
        root: &Path,
        made: &dyn Fn(&Path),
        cpu: Option<f64>,
        memory_bytes: Option<u64>,
    ) -> Result<Cgroup, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("leveret-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut cgroup = Cgroup { folders: Vec::new() };
        let both = root.join("unified");
        // Where version 2 offers a controller.
        let unified = |name: &str| {
            let offers = |place: &&Path| {
                let controllers = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
                controllers.split_whitespace().any(|controller| controller == name)
            };
            [root, &both].into_iter().find(offers).map(Path::to_owned)
        };
        if let Some(cores) = cpu {
            let quota = ((cores * PERIOD_US as f64) as u64).max(1000);
            if let Some(place) = unified("cpu") {
                hand_down(&place, "cpu")?;
                let folder = cgroup.folder(&place, "", &name, "cpu", made)?;
                write(&folder.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
            } else {
                let folder = cgroup.folder(root, "cpu", &name, "cpu", made)?;
                write(&folder.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                write(&folder.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        if let Some(bytes) = memory_bytes {
            if let Some(place) = unified("memory") {
                hand_down(&place, "memory")?;
                let folder = cgroup.folder(&place, "", &name, "memory", made)?;
                write(&folder.join("memory.max"), &bytes.to_string())?;
            } else {
                let folder = cgroup.folder(root, "memory", &name, "memory", made)?;
                write(&folder.join("memory.limit_in_bytes"), &bytes.to_string())?;
            }
        }
        Ok(cgroup)
    }

    /// The folder of this box under a controller (none in version 2), made if it is not there.
    fn folder(
        &mut self,
        root: &Path,
        hierarchy: &str,
        name: &str,
        controller: &str,
        made: &dyn Fn(&Path),
    ) -> Result<PathBuf, Error> {
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
            made(&folder);
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

/// Makes a controller of version 2 apply to the groups below `place`, if it does not yet.
fn hand_down(place: &Path, controller: &str) -> Result<(), Error> {
    let file = place.join("cgroup.subtree_control");
    let handed = fs::read_to_string(&file).unwrap_or_default();
    if handed.split_whitespace().any(|name| name == controller) {
        return Ok(());
    }
    put(&file, &format!("+{controller}")).map_err(|why| {
        let hint = match why.kind() {
            std::io::ErrorKind::ResourceBusy => {
                "; a cgroup that has processes of its own cannot hand controllers down: run in a delegated one \
                 (systemd-run --scope -p Delegate=yes), or move them into a group below it"
            }
            std::io::ErrorKind::PermissionDenied => "; run as root, or in a delegated cgroup",
            _ => "",
        };
        Error::machine(format!("writing +{controller} to {}", file.display()), format!("{why}{hint}"))
    })
}

/// Writes a file of the kernel's. One that is not there is not made.
fn put(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).truncate(true).open(file)?.write_all(text.as_bytes())
}

/// Writes a limit and reads back whether it holds. The kernel rounds memory to pages, so only a different size of number counts.
fn write(file: &Path, value: &str) -> Result<(), Error> {
    let what = format!("writing {value} to {}", file.display());
    put(file, value).map_err(|why| Error::machine(what.clone(), why))?;
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

    const FILES_OF_TWO: [(&str, &[&str]); 2] = [("cpu", &["cpu.max"]), ("memory", &["memory.max"])];

    /// A folder that looks like version 2 offering these controllers.
    fn version_2(controllers: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(root.path().join("cgroup.subtree_control"), "").unwrap();
        root
    }

    /// What the kernel does when a group of version 2 is made: it has the files of the controllers that were handed down.
    fn kernel_of_two(group: &Path) {
        let handed = fs::read_to_string(group.parent().unwrap().join("cgroup.subtree_control")).unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        for (controller, files) in FILES_OF_TWO {
            // The file holds what was written last; the kernel adds up.
            if handed.contains(&format!("+{controller}")) || handed == "cpu memory" {
                files.iter().for_each(|name| fs::write(group.join(name), "max").unwrap());
            }
        }
    }

    fn kernel_of_one(group: &Path) {
        for name in ["cpu.cfs_period_us", "cpu.cfs_quota_us", "memory.limit_in_bytes", "cgroup.procs"] {
            fs::write(group.join(name), "-1").unwrap();
        }
    }

    fn remove(cgroup: &Cgroup) {
        cgroup.folders.iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }

    #[test]
    fn version_2_has_one_folder_and_version_1_one_for_each_controller() {
        let two = version_2("cpuset cpu memory pids");
        fs::write(two.path().join("cgroup.subtree_control"), "cpu memory").unwrap();
        let cgroup = Cgroup::create_in(two.path(), &kernel_of_two, Some(0.9), Some(1 << 29)).unwrap();
        assert_eq!(cgroup.folders.len(), 1);
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("cpu.max")).unwrap(), "90000 100000");
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("memory.max")).unwrap(), "536870912");
        remove(&cgroup);

        let one = tempfile::tempdir().unwrap();
        ["cpu", "memory"].iter().for_each(|name| fs::create_dir(one.path().join(name)).unwrap());
        let cgroup = Cgroup::create_in(one.path(), &kernel_of_one, Some(0.9), Some(1 << 29)).unwrap();
        assert_eq!(cgroup.folders.len(), 2);
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("cpu.cfs_quota_us")).unwrap(), "90000");
        let words = cgroup.wrapped(&["x".to_owned(), "a b".to_owned()]);
        assert_eq!(words[words.len() - 2..], ["x", "a b"]);
        assert_eq!(words[2].matches("cgroup.procs").count(), 2);
        remove(&cgroup);
    }

    #[test]
    fn version_2_hands_a_controller_down_before_it_limits_with_it() {
        let two = version_2("cpu memory");
        let cgroup = Cgroup::create_in(two.path(), &kernel_of_two, Some(1.8), None).unwrap();
        assert_eq!(fs::read_to_string(two.path().join("cgroup.subtree_control")).unwrap(), "+cpu");
        assert_eq!(fs::read_to_string(cgroup.folders[0].join("cpu.max")).unwrap(), "180000 100000");
        remove(&cgroup);
    }

    #[test]
    fn beside_version_1_version_2_is_used_for_what_it_offers() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("cpu")).unwrap();
        fs::create_dir(root.path().join("unified")).unwrap();
        let both = root.path().join("unified");
        fs::write(both.join("cgroup.controllers"), "memory").unwrap();
        fs::write(both.join("cgroup.subtree_control"), "").unwrap();
        let kernel = |group: &Path| match group.starts_with(&both) {
            true => kernel_of_two(group),
            false => kernel_of_one(group),
        };
        let cgroup = Cgroup::create_in(root.path(), &kernel, Some(0.5), Some(1 << 28)).unwrap();
        assert!(cgroup.folders[0].starts_with(root.path().join("cpu")) && cgroup.folders[1].starts_with(&both));
        remove(&cgroup);
    }

    #[test]
    fn a_machine_without_the_controller_is_told_which_one() {
        let none = tempfile::tempdir().unwrap();
        let error = Cgroup::create_in(none.path(), &|_| (), Some(1.0), None).unwrap_err().to_string();
        assert!(error.contains("does not offer the controller cpu"), "{error}");
        // It is offered, and nobody hands it down: the file is not there, and is not made.
        let two = version_2("memory");
        let error = Cgroup::create_in(two.path(), &|_| (), None, Some(1 << 28)).unwrap_err().to_string();
        assert!(error.contains("memory.max") && error.contains("No such file"), "{error}");
    }

    /// The kernel's own version 2, where this machine has it and lets us: a process enters a group, and limits that version 2 does not
    /// offer there are refused by name.
    #[test]
    fn a_process_enters_a_group_of_the_kernels_version_2() {
        let places = [Path::new(ROOT), Path::new("/sys/fs/cgroup/unified")];
        let Some(place) = places.into_iter().find(|place| place.join("cgroup.procs").exists()) else { return };
        let mut cgroup = Cgroup { folders: Vec::new() };
        let name = format!("leveret-bench-test-{}", std::process::id());
        // Without the right to make groups there is nothing to see.
        if cgroup.folder(place, "", &name, "cpu", &|_| ()).is_err() {
            return;
        }
        let words = cgroup.wrapped(&["cat", "/proc/self/cgroup"].map(str::to_owned));
        let output = std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.lines().any(|line| line.starts_with("0::") && line.ends_with(&name)), "{told}");
        let folder = cgroup.folders[0].clone();
        drop(cgroup);
        assert!(!folder.exists(), "an empty group goes with its box");
        let offered = fs::read_to_string(place.join("cgroup.controllers")).unwrap();
        if !offered.contains("memory") {
            let error = Cgroup::create_in(place, &|_| (), None, Some(1 << 28)).unwrap_err().to_string();
            assert!(error.contains("does not offer the controller memory"), "{error}");
        }
    }
}
