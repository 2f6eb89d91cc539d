//! What processes have used: CPU, memory, bytes to disk, from /proc.
//!
//! Invariant: figures are of the processes that were alive at both looks; where /proc says nothing,
//! neither does this. What was written is what [`testbed::written`] makes of /proc and of the
//! device: /proc alone may say far too much.

use std::time::{Duration, Instant};

use testbed::used;
use testbed::written::{Disk, Reading};

/// One look at a group of processes.
#[derive(Clone, Debug)]
pub struct Usage {
    at: Instant,
    used: used::Usage,
    disk: Disk,
    written: Reading,
    busy: Option<Duration>,
    cores: Option<used::Cores>,
    boxed: Boxed,
}

/// What the box of a node counts so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Boxed {
    /// Disk operations.
    pub operations: Option<u64>,
    /// How long its threads had to wait for their share of the CPU.
    pub throttled: Option<Duration>,
}

/// The use of one node between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// 100 for one CPU.
    pub cpu_percent: f64,
    /// Resident at the end.
    pub memory_mib: f64,
    /// Written to disk, where a counter can be believed.
    pub disk_mib_s: Option<f64>,
    /// Disk operations a second, where they are counted.
    pub disk_iops: Option<f64>,
    /// Work of all cores of the machine, whoever's; 100 is all of them all the time.
    pub machine_cpu_percent: Option<f64>,
    /// Part of the time in which its disk had something to do, for whomever; 100 is all of it.
    pub disk_busy_percent: Option<f64>,
    /// Time for which its threads were ready and its share of the CPU was used up; 100 is one
    /// thread all the time.
    pub throttled_percent: Option<f64>,
}

impl Usage {
    /// Looks at all processes of the group `pgid`; `None` when none can be seen.
    pub fn of_group(pgid: u32, boxed: Boxed) -> Option<Usage> {
        let pids = used::of_group(pgid);
        let used = used::Usage::of(&pids)?;
        let disk = Disk::of(&pids);
        let written = disk.read(used.write_bytes);
        let busy = disk.busy();
        Some(Usage { at: Instant::now(), used, disk, written, busy, cores: used::Cores::now(), boxed })
    }

    /// The use from `before` until this look, which was just taken: the devices of then are read
    /// once more.
    pub fn since(&self, before: &Usage) -> Used {
        let seconds = (self.at - before.at).as_secs_f64().max(0.001);
        let written = before.disk.read(self.used.write_bytes).since(&before.written).bytes;
        let share = |now: Option<Duration>, then: Option<Duration>| {
            Some(100.0 * now?.saturating_sub(then?).as_secs_f64() / seconds)
        };
        Used {
            cpu_percent: self.used.cpu_ns.saturating_sub(before.used.cpu_ns) as f64 / 1e7 / seconds,
            memory_mib: self.used.rss_bytes as f64 / 1_048_576.0,
            disk_mib_s: written.map(|bytes| bytes as f64 / 1_048_576.0 / seconds),
            disk_iops: self
                .boxed
                .operations
                .zip(before.boxed.operations)
                .map(|(now, then)| now.saturating_sub(then) as f64 / seconds),
            machine_cpu_percent: self.cores.zip(before.cores).map(|(now, then)| 100.0 * now.busy_since(then)),
            disk_busy_percent: share(before.disk.busy(), before.busy).map(|percent| percent.min(100.0)),
            throttled_percent: share(self.boxed.throttled, before.boxed.throttled),
        }
    }
}

/// The mean of nodes.
pub fn mean(nodes: &[Used]) -> Option<Used> {
    let count = nodes.len() as f64;
    let of = |field: fn(&Used) -> f64| nodes.iter().map(field).sum::<f64>() / count;
    let known = |field: fn(&Used) -> Option<f64>| nodes.iter().map(field).sum::<Option<f64>>().map(|all| all / count);
    (!nodes.is_empty()).then(|| Used {
        cpu_percent: of(|used| used.cpu_percent),
        memory_mib: of(|used| used.memory_mib),
        disk_mib_s: known(|used| used.disk_mib_s),
        disk_iops: known(|used| used.disk_iops),
        machine_cpu_percent: known(|used| used.machine_cpu_percent),
        disk_busy_percent: known(|used| used.disk_busy_percent),
        throttled_percent: known(|used| used.throttled_percent),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn this_process_is_seen_and_uses_something() {
        let pgid = u32::try_from(rustix::process::getpgrp().as_raw_pid()).unwrap();
        let before = Usage::of_group(pgid, Boxed::default()).unwrap();
        assert!(before.used.rss_bytes > 100_000);
        let used = Usage::of_group(pgid, Boxed::default()).unwrap().since(&before);
        assert!(used.cpu_percent >= 0.0);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn what_was_written_is_never_more_than_went_to_the_device() {
        let pgid = u32::try_from(rustix::process::getpgrp().as_raw_pid()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let counters = folder.path().join("stat");
        // The seventh number of a device is sectors of 512 bytes that were written.
        let device = |sectors: u64| std::fs::write(&counters, format!("1 0 8 0 1 0 {sectors} 0 0 0 0")).unwrap();
        let mut before = Usage::of_group(pgid, Boxed::default()).unwrap();
        device(1000);
        before.disk = Disk::counted_in(vec![counters.clone()]);
        before.used.write_bytes = Some(0);
        before.written = before.disk.read(before.used.write_bytes);
        let mut after = Usage { at: before.at + Duration::from_secs(1), ..before.clone() };
        device(1000 + (2 << 20) / 512);
        // As after a large folio: /proc says a terabyte more than the disk has seen.
        after.used.write_bytes = Some(1 << 40);
        assert_eq!(after.since(&before).disk_mib_s, Some(2.0));
        // Somebody else wrote too.
        after.used.write_bytes = Some(1 << 20);
        assert_eq!(after.since(&before).disk_mib_s, Some(1.0));
        after.disk = Disk::default();
        before.disk = Disk::default();
        before.written = before.disk.read(Some(0));
        assert_eq!(after.since(&before).disk_mib_s, None, "what no second counter confirms is left out");
    }
}
