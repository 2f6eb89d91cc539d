//! A box for processes: a share of the CPU, a bound on memory, a bound on a disk, by Linux control
//! groups of version 1 or 2.
//!
//! Invariant: a limit holds (it was written and read back) before anything starts in the box, or it
//! is in [`Cgroup::refused`] with the file that refused; whoever made the box decides whether that
//! ends the run or stands beside its results.
//!
//! ```text
//!   version 2:  /sys/fs/cgroup/cgroup.subtree_control, then /sys/fs/cgroup/NAME/{cpu.max, memory.max, io.max, cgroup.procs}
//!               (or under /sys/fs/cgroup/unified, where both versions are mounted and version 2 has the controller)
//!   version 1:  /sys/fs/cgroup/cpu/NAME/{cpu.cfs_period_us, cpu.cfs_quota_us, cgroup.procs}
//!               /sys/fs/cgroup/memory/NAME/{memory.limit_in_bytes, cgroup.procs}
//!               /sys/fs/cgroup/blkio/NAME/{blkio.throttle.*_bps_device, blkio.throttle.*_iops_device, cgroup.procs}
//! ```

mod disk;
mod file;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The period over which CPU is shared out, microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// The least that the kernel takes as a share of a period, microseconds.
const CPU_QUOTA_US_MIN: u64 = 1000;

/// Where control groups are.
const ROOT: &str = "/sys/fs/cgroup";

/// How often a group is tried to be removed: a process that was just killed is still counted for a
/// moment.
const REMOVE_TRIES_MAX: u32 = 50;

/// Between two of them.
const REMOVE_EVERY: Duration = Duration::from_millis(20);

/// What holds for disk limits of version 1, which nobody must take for limits of everything.
const WRITE_BACK: &str = "disk limits of control groups version 1 hold for synced and direct writes only; what the kernel writes back later is not held";

/// What a box is asked to limit; what is `None` stays free.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Cores, above zero; parts of one too.
    pub cpu: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// The disk.
    pub disk: Option<DiskLimits>,
}

/// Limits of one disk, for reads and as much again for writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskLimits {
    /// A folder on the disk to limit.
    pub folder: PathBuf,
    /// Bytes a second.
    pub bytes_s: Option<u64>,
    /// Operations a second.
    pub operations_s: Option<u64>,
}

/// A limit that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Of what.
    pub what: &'static str,
    /// Why, with the file that said so.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} could not be limited: {}", self.what, self.why)
    }
}

/// A box; its groups go when it is dropped, which is after the processes in it.
#[derive(Debug)]
pub struct Cgroup {
    folders: Vec<PathBuf>,
    /// Limits that were asked for and do not hold.
    pub refused: Vec<Refused>,
    /// What a reader of figures out of this box must know about limits that do hold.
    pub caveats: Vec<String>,
}

impl Cgroup {
    /// Makes a box that nobody else has: `name` must not be there yet.
    pub fn create(name: &str, limits: &Limits) -> Cgroup {
        let cores = std::thread::available_parallelism().map_or(f64::MAX, |cores| cores.get() as f64);
        Making { root: Path::new(ROOT), made: &|_| (), name, cores }.of(limits)
    }

    /// Files that a process writes its id to in order to be in the box.
    pub fn doors(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// A command that enters the box and then becomes `words`: the process is inside before it runs
    /// its first instruction, and what it starts is too.
    pub fn wrapped(&self, words: &[String]) -> Vec<String> {
        // The doors are words of the shell and no part of its script, so that no name of a folder
        // is read as one.
        let script = "for door in \"$@\"; do shift; [ \"$door\" = -- ] && break; echo $$ > \"$door\" || exit 97; done; exec \"$@\"";
        let doors = self.doors().into_iter().map(|door| door.display().to_string());
        let shell = ["sh", "-c", script, "sh"].map(str::to_owned);
        shell.into_iter().chain(doors).chain(["--".to_owned()]).chain(words.iter().cloned()).collect()
    }

    fn refuse(&mut self, what: &'static str, why: impl Into<String>) {
        self.refused.push(Refused { what, why: why.into() });
    }
}

/// What limited groups leave the processes in them, and have counted of them so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Cores, all groups together; `None` where the CPU of one is not limited.
    pub cores: Option<f64>,
    /// For how long something in them was ready to run and had to wait, because its share of the CPU was
    /// used up; the sum over threads. `None` where no CPU was limited.
    pub throttled: Option<Duration>,
    /// Disk operations; `None` where no disk was limited, for nobody counts them then.
    pub operations: Option<u64>,
}

impl Share {
    /// Of these processes, whoever put them into their groups.
    pub fn of(pids: &[u32]) -> Share {
        let told = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
        let groups: Vec<String> = pids.iter().filter_map(told).collect();
        Share::of_groups(Path::new(ROOT), &groups)
    }

    /// `groups` is what /proc says of the groups of each process.
    fn of_groups(root: &Path, groups: &[String]) -> Share {
        let mut folders: Vec<PathBuf> = groups.iter().flat_map(|told| folders(root, told)).collect();
        folders.sort();
        folders.dedup();
        let read = |folder: &PathBuf, name: &str| fs::read_to_string(folder.join(name)).ok();
        let limited = folders.iter().filter_map(|folder| {
            let one = || Some(read(folder, "cpu.cfs_quota_us")? + &read(folder, "cpu.cfs_period_us")?);
            let cores = cores(&read(folder, "cpu.max").or_else(one)?)?;
            Some((cores, read(folder, "cpu.stat").and_then(|stat| throttled(&stat))))
        });
        let limited: Vec<(f64, Option<Duration>)> = limited.collect();
        let counters = ["blkio.throttle.io_serviced", "io.stat"];
        let counted = folders.iter().filter_map(|folder| counters.iter().find_map(|name| read(folder, name)));
        Share {
            cores: limited.iter().map(|(cores, _)| *cores).reduce(|all, more| all + more),
            throttled: limited.iter().filter_map(|(_, waited)| *waited).reduce(|all, more| all + more),
            operations: counted
                .map(|text| text.lines().map(disk::operations).sum())
                .reduce(|all: u64, more| all + more),
        }
    }
}

/// The folders of the groups that a process is in, but for the roots, which hold everybody. `told` has a line
/// `7:cpu,cpuacct:/name` for each controller of version 1, and `0::/name` for version 2.
fn folders(root: &Path, told: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?.to_owned(), parts.next()?.trim_start_matches('/').to_owned());
        let places: Vec<PathBuf> = match controllers.as_str() {
            "" => vec![root.to_owned(), root.join("unified")],
            several => several.split(',').map(|controller| root.join(controller)).collect(),
        };
        (!group.is_empty()).then(|| places.into_iter().map(move |place| place.join(&group)))
    };
    told.lines().filter_map(of_line).flatten().filter(|folder| folder.is_dir()).collect()
}

/// Cores of a quota and its period; `None` where there is no limit (`max`, or -1).
fn cores(limit: &str) -> Option<f64> {
    let mut words = limit.split_whitespace().map(str::parse::<f64>);
    let (quota, period) = (words.next()?.ok()?, words.next()?.ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// In a group's `cpu.stat`: nanoseconds in version 1, microseconds in version 2.
fn throttled(stat: &str) -> Option<Duration> {
    let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    of("throttled_time ").map(Duration::from_nanos).or_else(|| of("throttled_usec ").map(Duration::from_micros))
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            for _ in 0..REMOVE_TRIES_MAX {
                if fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(REMOVE_EVERY);
            }
        }
    }
}

/// A box while it is made.
struct Making<'a> {
    root: &'a Path,
    /// Is told of each group: a test stands in for the kernel, which puts files into it.
    made: &'a dyn Fn(&Path),
    name: &'a str,
    cores: f64,
}

/// A group of a controller, and of which version it is.
enum Group {
    One(PathBuf),
    Two(PathBuf),
}

impl Making<'_> {
    fn of(&self, limits: &Limits) -> Cgroup {
        let mut cgroup = Cgroup { folders: Vec::new(), refused: Vec::new(), caveats: Vec::new() };
        if let Some(cores) = limits.cpu
            && let Err(why) = self.limit_cpu(&mut cgroup, cores)
        {
            cgroup.refuse("CPU", why);
        }
        if let Some(bytes) = limits.memory_bytes
            && let Err(why) = self.limit_memory(&mut cgroup, bytes)
        {
            cgroup.refuse("memory", why);
        }
        if let Some(limits) = &limits.disk
            && (limits.bytes_s.is_some() || limits.operations_s.is_some())
            && let Err(why) = self.limit_disk(&mut cgroup, limits)
        {
            cgroup.refuse("the disk", why);
        }
        cgroup
    }

    fn limit_cpu(&self, cgroup: &mut Cgroup, cores: f64) -> Result<(), String> {
        if cores > self.cores {
            return Err(format!("{cores} cores are more than this machine has, which is {}", self.cores));
        }
        let quota = ((cores * CPU_PERIOD_US as f64).round() as u64).max(CPU_QUOTA_US_MIN);
        match self.group(cgroup, "cpu", "cpu")? {
            Group::Two(folder) => file::limit(&folder.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}")),
            Group::One(folder) => {
                file::limit(&folder.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                file::limit(&folder.join("cpu.cfs_quota_us"), &quota.to_string())
            }
        }
    }

    fn limit_memory(&self, cgroup: &mut Cgroup, bytes: u64) -> Result<(), String> {
        match self.group(cgroup, "memory", "memory")? {
            Group::Two(folder) => file::limit(&folder.join("memory.max"), &bytes.to_string()),
            Group::One(folder) => file::limit(&folder.join("memory.limit_in_bytes"), &bytes.to_string()),
        }
    }

    fn limit_disk(&self, cgroup: &mut Cgroup, limits: &DiskLimits) -> Result<(), String> {
        let device = disk::device(&limits.folder)?;
        match self.group(cgroup, "io", "blkio")? {
            Group::Two(folder) => {
                let mut line = device.clone();
                for (names, limit) in [(["rbps", "wbps"], limits.bytes_s), (["riops", "wiops"], limits.operations_s)] {
                    let Some(limit) = limit else { continue };
                    names.iter().for_each(|name| line.push_str(&format!(" {name}={limit}")));
                }
                file::line(&folder.join("io.max"), &line, &device)
            }
            Group::One(folder) => {
                for way in ["read", "write"] {
                    for (unit, limit) in [("bps", limits.bytes_s), ("iops", limits.operations_s)] {
                        let Some(limit) = limit else { continue };
                        let path = folder.join(format!("blkio.throttle.{way}_{unit}_device"));
                        file::line(&path, &format!("{device} {limit}"), &device)?;
                    }
                }
                cgroup.caveats.push(WRITE_BACK.to_owned());
                Ok(())
            }
        }
    }

    /// The group of this box under a controller, made if it is not there yet: version 2 where it
    /// offers the controller, else 1.
    fn group(&self, cgroup: &mut Cgroup, in_two: &str, in_one: &str) -> Result<Group, String> {
        let unified = self.root.join("unified");
        let offers = |place: &&Path| {
            let offered = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
            offered.split_whitespace().any(|controller| controller == in_two)
        };
        if let Some(place) = [self.root, &unified].into_iter().find(offers) {
            file::hand_down(place, in_two)?;
            return self.folder(cgroup, place).map(Group::Two);
        }
        let parent = self.root.join(in_one);
        if parent.is_dir() {
            return self.folder(cgroup, &parent).map(Group::One);
        }
        Err(format!(
            "cgroup version 2 at {} does not offer the controller {in_two} (cgroup.controllers), and there is no version 1 at {}",
            self.root.display(),
            parent.display()
        ))
    }

    fn folder(&self, cgroup: &mut Cgroup, parent: &Path) -> Result<PathBuf, String> {
        let folder = parent.join(self.name);
        if !cgroup.folders.contains(&folder) {
            file::told(&folder, fs::create_dir(&folder))?;
            (self.made)(&folder);
            cgroup.folders.push(folder.clone());
        }
        Ok(folder)
    }
}

#[cfg(test)]
mod tests;
