//! Limits of CPU, memory and disk for the processes of one local node, by control groups of version 1 or 2.
//!
//! Invariant: a limit is either set or told about. What this machine does not permit becomes a sentence that goes into the results, so
//! that nobody takes an unlimited node for a small one.

use std::fs;
use std::path::{Path, PathBuf};

use super::plan::Local;

const ROOT: &str = "/sys/fs/cgroup";
/// The period over which a share of CPU counts; the kernel's own default.
const CPU_PERIOD_US: f64 = 100_000.0;

/// Groups of one node; removed when it is dropped, after its processes.
#[derive(Debug, Default)]
pub struct Limits {
    root: PathBuf,
    folders: Vec<PathBuf>,
    /// What could not be limited, and why.
    pub refused: Vec<String>,
}

impl Limits {
    /// Makes the groups that `local` asks for. `data` is a folder on the disk to limit.
    pub fn set(name: &str, local: &Local, data: &Path) -> Limits {
        Limits::set_in(Path::new(ROOT), &|_| (), name, local, data)
    }

    /// `made` is told of each group: a test stands in for the kernel, which puts files into it.
    fn set_in(root: &Path, made: &dyn Fn(&Path), name: &str, local: &Local, data: &Path) -> Limits {
        let mut limits = Limits { root: root.to_owned(), folders: Vec::new(), refused: Vec::new() };
        let is_asked =
            local.cpu.is_some() || local.memory_mib.is_some() || local.iops.is_some() || local.mib_s.is_some();
        if !is_asked {
            return limits;
        }
        match root.join("cgroup.controllers").exists() {
            true => limits.set_two(made, name, local, data),
            false => limits.set_one(made, name, local, data),
        }
        limits
    }

    /// Files to write a process id to.
    pub fn doors(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// Disk operations so far of everything in the groups; `None` where no disk was limited, for nobody counts them then.
    pub fn disk_operations(&self) -> Option<u64> {
        // Version 1: `8:0 Write 12` a line. Version 2: `8:0 rbytes=.. wbytes=.. rios=3 wios=12 ..`.
        let one = |folder: &PathBuf| fs::read_to_string(folder.join("blkio.throttle.io_serviced")).ok();
        let two = |folder: &PathBuf| fs::read_to_string(folder.join("io.stat")).ok();
        let text = self.folders.iter().find_map(|folder| one(folder).or_else(|| two(folder)))?;
        Some(text.lines().map(operations).sum())
    }

    fn refuse(&mut self, what: &str, why: impl std::fmt::Display) {
        self.refused.push(format!("{what} could not be limited: {why}"));
    }

    /// Version 2: one group, every controller in it.
    fn set_two(&mut self, made: &dyn Fn(&Path), name: &str, local: &Local, data: &Path) {
        // What the parent does not hand down has no file in the group; that error names it.
        for controller in ["+cpu", "+memory", "+io"] {
            let _ = write(&self.root.join("cgroup.subtree_control"), controller);
        }
        let folder = self.root.join(name);
        if let Err(why) = fs::create_dir_all(&folder) {
            return self.refuse("the node", format!("{}: {why}", folder.display()));
        }
        made(&folder);
        self.folders.push(folder.clone());
        if let Some(cpu) = local.cpu {
            let text = format!("{:.0} {CPU_PERIOD_US:.0}", cpu * CPU_PERIOD_US);
            self.put("CPU", &folder.join("cpu.max"), &text);
        }
        if let Some(mib) = local.memory_mib {
            self.put("memory", &folder.join("memory.max"), &bytes(mib));
        }
        if local.iops.is_none() && local.mib_s.is_none() {
            return;
        }
        match device(data) {
            Err(why) => self.refuse("the disk", why),
            Ok(device) => {
                let mut text = device;
                if let Some(mib) = local.mib_s {
                    text.push_str(&format!(" rbps={0} wbps={0}", bytes(mib)));
                }
                if let Some(iops) = local.iops {
                    text.push_str(&format!(" riops={iops:.0} wiops={iops:.0}"));
                }
                self.put("the disk", &folder.join("io.max"), &text);
            }
        }
    }

    /// Version 1: a group in each controller.
    fn set_one(&mut self, made: &dyn Fn(&Path), name: &str, local: &Local, data: &Path) {
        if let Some(cpu) = local.cpu
            && let Some(folder) = self.group(made, "cpu", "CPU", name)
        {
            self.put("CPU", &folder.join("cpu.cfs_period_us"), &format!("{CPU_PERIOD_US:.0}"));
            self.put("CPU", &folder.join("cpu.cfs_quota_us"), &format!("{:.0}", cpu * CPU_PERIOD_US));
        }
        if let Some(mib) = local.memory_mib
            && let Some(folder) = self.group(made, "memory", "memory", name)
        {
            self.put("memory", &folder.join("memory.limit_in_bytes"), &bytes(mib));
        }
        if local.iops.is_none() && local.mib_s.is_none() {
            return;
        }
        let device = match device(data) {
            Ok(device) => device,
            Err(why) => return self.refuse("the disk", why),
        };
        let Some(folder) = self.group(made, "blkio", "the disk", name) else { return };
        for way in ["read", "write"] {
            if let Some(mib) = local.mib_s {
                let text = format!("{device} {}", bytes(mib));
                self.put("disk throughput", &folder.join(format!("blkio.throttle.{way}_bps_device")), &text);
            }
            if let Some(iops) = local.iops {
                let text = format!("{device} {iops:.0}");
                self.put("disk operations", &folder.join(format!("blkio.throttle.{way}_iops_device")), &text);
            }
        }
        self.refused.push(
            "disk limits of control groups version 1 hold for synced and direct writes only; what the kernel writes back later is not held"
                .to_owned(),
        );
    }

    fn group(&mut self, made: &dyn Fn(&Path), controller: &str, what: &str, name: &str) -> Option<PathBuf> {
        let parent = self.root.join(controller);
        let folder = parent.join(name);
        if !parent.is_dir() {
            self.refuse(what, format!("{} is not there", parent.display()));
            return None;
        }
        match fs::create_dir_all(&folder) {
            Ok(()) => {
                made(&folder);
                self.folders.push(folder.clone());
                Some(folder)
            }
            Err(why) => {
                self.refuse(what, format!("{}: {why}", folder.display()));
                None
            }
        }
    }

    fn put(&mut self, what: &str, path: &Path, text: &str) {
        if let Err(why) = write(path, text) {
            self.refuse(what, format!("{}: {why}", path.display()));
        }
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        // A group with a process that is still going away cannot be removed at once.
        for folder in &self.folders {
            for _ in 0..20 {
                match fs::remove_dir(folder) {
                    Err(why) if why.kind() == std::io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(std::time::Duration::from_millis(50));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Writes a file of the kernel's. One that is not there is not made.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// Operations in one line of a group's counters.
fn operations(line: &str) -> u64 {
    let words: Vec<&str> = line.split(' ').collect();
    if let [_, "Read" | "Write", count] = words.as_slice() {
        return count.parse().unwrap_or(0);
    }
    let counts = words.iter().filter_map(|word| word.strip_prefix("rios=").or_else(|| word.strip_prefix("wios=")));
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

fn bytes(mib: f64) -> String {
    format!("{:.0}", mib * 1_048_576.0)
}

/// The disk of a folder as `major:minor`; of a partition the whole disk, because only that can be limited.
fn device(folder: &Path) -> Result<String, String> {
    use std::os::unix::fs::MetadataExt as _;
    let about = fs::metadata(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let (major, minor) = (rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !block.exists() {
        return Err(format!("{} is not on a disk of its own ({major}:{minor} is no block device)", folder.display()));
    }
    if !block.join("partition").exists() {
        return Ok(format!("{major}:{minor}"));
    }
    let whole = fs::canonicalize(&block).ok().and_then(|path| path.parent().map(|disk| disk.join("dev")));
    let text = whole.and_then(|path| fs::read_to_string(path).ok());
    text.map(|text| text.trim().to_owned())
        .ok_or_else(|| format!("the disk of partition {major}:{minor} was not found"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_of_no_disk_cannot_be_limited_and_says_so() {
        assert!(device(Path::new("/proc")).unwrap_err().contains("no block device"));
        assert!(device(Path::new("/nowhere/at/all")).unwrap_err().contains("/nowhere/at/all"));
    }

    #[test]
    fn operations_of_both_versions_are_counted() {
        let one = ["254:0 Read 3", "254:0 Write 12", "254:0 Sync 9", "254:0 Total 15", "Total 15"];
        assert_eq!(one.map(operations), [3, 12, 0, 0, 0]);
        assert_eq!(operations("8:0 rbytes=4096 wbytes=0 rios=1 wios=7 dbytes=0 dios=0"), 8);
    }

    fn unlimited() -> Local {
        Local {
            port: 1,
            command: None,
            join_command: None,
            folder: None,
            cpu: None,
            memory_mib: None,
            iops: None,
            mib_s: None,
            start_seconds: 1.0,
        }
    }

    fn limited() -> Local {
        Local { cpu: Some(0.5), memory_mib: Some(256.0), iops: Some(3000.0), mib_s: Some(50.0), ..unlimited() }
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    /// The groups of a stand-in root are plain folders: they do not go by themselves.
    fn remove(limits: &Limits) {
        limits.folders.iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }

    #[test]
    fn version_2_limits_everything_in_one_group() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory io").unwrap();
        fs::write(root.path().join("cgroup.subtree_control"), "").unwrap();
        let made = |group: &Path| {
            ["cpu.max", "memory.max", "io.max", "cgroup.procs"]
                .iter()
                .for_each(|name| fs::write(group.join(name), "max").unwrap());
        };
        // The folder of this test may lie on no disk of its own, and then the disk is what cannot be limited.
        let limits = Limits::set_in(root.path(), &made, "node", &limited(), root.path());
        let group = root.path().join("node");
        assert_eq!(limits.doors(), [group.join("cgroup.procs")]);
        assert_eq!(
            (read(&group.join("cpu.max")), read(&group.join("memory.max"))),
            ("50000 100000".into(), "268435456".into())
        );
        match device(root.path()) {
            Ok(device) => {
                let line = format!("{device} rbps=52428800 wbps=52428800 riops=3000 wiops=3000");
                assert_eq!((read(&group.join("io.max")), limits.refused.len()), (line, 0));
            }
            Err(_) => assert!(limits.refused[0].starts_with("the disk could not be limited"), "{:?}", limits.refused),
        }
        fs::write(group.join("io.stat"), "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0").unwrap();
        assert_eq!(limits.disk_operations(), Some(7));
        remove(&limits);
    }

    #[test]
    fn what_version_2_does_not_hand_down_is_told_by_its_file() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu").unwrap();
        let made = |group: &Path| fs::write(group.join("cpu.max"), "max").unwrap();
        let limits = Limits::set_in(root.path(), &made, "node", &limited(), root.path());
        assert_eq!(read(&root.path().join("node/cpu.max")), "50000 100000");
        assert!(limits.refused[0].contains("memory could not be limited") && limits.refused[0].contains("memory.max"));
        assert_eq!(limits.refused.len(), 2, "memory and the disk: {:?}", limits.refused);
        remove(&limits);
    }

    #[test]
    fn version_1_has_a_group_in_each_controller_and_tells_of_one_that_is_missing() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("cpu")).unwrap();
        let made = |group: &Path| {
            ["cpu.cfs_period_us", "cpu.cfs_quota_us"]
                .iter()
                .for_each(|name| fs::write(group.join(name), "-1").unwrap());
        };
        let limits = Limits::set_in(root.path(), &made, "node", &limited(), Path::new("/proc"));
        assert_eq!(limits.doors(), [root.path().join("cpu/node/cgroup.procs")]);
        assert_eq!(read(&root.path().join("cpu/node/cpu.cfs_quota_us")), "50000");
        assert!(
            limits.refused[0].contains("memory could not be limited") && limits.refused[0].contains("is not there")
        );
        assert!(limits.refused[1].contains("no block device"), "{:?}", limits.refused);
        remove(&limits);
    }

    #[test]
    fn without_limits_nothing_is_made() {
        let local = unlimited();
        let limits = Limits::set("leveret-sizing-test", &local, Path::new("/"));
        assert!(limits.doors().is_empty() && limits.refused.is_empty());
    }
}
