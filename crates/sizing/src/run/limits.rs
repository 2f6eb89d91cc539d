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
    folders: Vec<PathBuf>,
    /// What could not be limited, and why.
    pub refused: Vec<String>,
}

impl Limits {
    /// Makes the groups that `local` asks for. `data` is a folder on the disk to limit.
    pub fn set(name: &str, local: &Local, data: &Path) -> Limits {
        let mut limits = Limits::default();
        let is_asked =
            local.cpu.is_some() || local.memory_mib.is_some() || local.iops.is_some() || local.mib_s.is_some();
        if !is_asked {
            return limits;
        }
        match Path::new(ROOT).join("cgroup.controllers").exists() {
            true => limits.set_two(name, local, data),
            false => limits.set_one(name, local, data),
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
    fn set_two(&mut self, name: &str, local: &Local, data: &Path) {
        // Without the controllers in the parent the files below do not exist; that error names them.
        for controller in ["+cpu", "+memory", "+io"] {
            let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), controller);
        }
        let folder = Path::new(ROOT).join(name);
        if let Err(why) = fs::create_dir_all(&folder) {
            return self.refuse("the node", format!("{}: {why}", folder.display()));
        }
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
    fn set_one(&mut self, name: &str, local: &Local, data: &Path) {
        if let Some(cpu) = local.cpu
            && let Some(folder) = self.group("cpu", "CPU", name)
        {
            self.put("CPU", &folder.join("cpu.cfs_period_us"), &format!("{CPU_PERIOD_US:.0}"));
            self.put("CPU", &folder.join("cpu.cfs_quota_us"), &format!("{:.0}", cpu * CPU_PERIOD_US));
        }
        if let Some(mib) = local.memory_mib
            && let Some(folder) = self.group("memory", "memory", name)
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
        let Some(folder) = self.group("blkio", "the disk", name) else { return };
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

    fn group(&mut self, controller: &str, what: &str, name: &str) -> Option<PathBuf> {
        let folder = Path::new(ROOT).join(controller).join(name);
        if !Path::new(ROOT).join(controller).is_dir() {
            self.refuse(what, format!("{ROOT}/{controller} is not there"));
            return None;
        }
        match fs::create_dir_all(&folder) {
            Ok(()) => {
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
        if let Err(why) = fs::write(path, text) {
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

    #[test]
    fn without_limits_nothing_is_made() {
        let local = Local {
            port: 1,
            command: None,
            join_command: None,
            folder: None,
            cpu: None,
            memory_mib: None,
            iops: None,
            mib_s: None,
            start_seconds: 1.0,
        };
        let limits = Limits::set("leveret-sizing-test", &local, Path::new("/"));
        assert!(limits.doors().is_empty() && limits.refused.is_empty());
    }
}
