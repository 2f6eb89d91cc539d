//! What processes wrote to disk, from the counters that know something of it, and which of them is
//! told.
//!
//! Invariant: every counter can only be too high, so the lower one is told; what no second counter
//! confirms is left out.
//!
//! - `/proc/PID/io` counts pages that the process made dirty, and whole large folios: 200 bytes
//!   rewritten in a file of which the page cache holds 2 MiB in one piece count as 2 MiB, though 4
//!   KiB go to the disk.
//! - The device counts what went to it, from everybody on the machine, with the file system's own
//!   journal.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes of a sector in the kernel's counters, whatever the device has.
const SECTOR_BYTES: u64 = 512;

/// The block devices that hold the files that processes have open for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Their files of counters.
    counters: Vec<PathBuf>,
}

/// What the counters say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Of the processes.
    pub process: Option<u64>,
    /// Of the devices.
    pub device: Option<u64>,
}

/// What was written over a time, as each counter has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// What is told: the lower one, where there are two.
    pub bytes: Option<u64>,
    /// Of which counter that is, in words, or why nothing is told.
    pub counter: String,
    /// The processes' counter in /proc.
    pub process_bytes: Option<u64>,
    /// The device's.
    pub device_bytes: Option<u64>,
    /// What Leveret says that it gave its log.
    pub own_bytes: Option<u64>,
}

impl Disk {
    /// Of these processes; empty when a device is not known, or nothing is open yet.
    pub fn of(pids: &[u32]) -> Disk {
        let mut devices = BTreeSet::new();
        for pid in pids {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            for file in files.filter(|file| is_written(*pid, &file.path())) {
                let Ok(data) = fs::metadata(file.path()) else { continue };
                if data.is_file() {
                    devices.insert((*pid, data.dev()));
                }
            }
        }
        let counters: Option<BTreeSet<PathBuf>> =
            devices.into_iter().map(|(pid, device)| counter_of(pid, device)).collect();
        Disk { counters: counters.unwrap_or_default().into_iter().collect() }
    }

    /// Whose counters stand in these files, in the kernel's form of a block device's.
    pub fn counted_in(counters: Vec<PathBuf>) -> Disk {
        Disk { counters }
    }

    /// Whether a device is known.
    pub fn is_known(&self) -> bool {
        !self.counters.is_empty()
    }

    /// For how long so far the busiest of the devices had something to do, for whomever.
    pub fn busy(&self) -> Option<Duration> {
        self.counters.iter().filter_map(|path| busy(&fs::read_to_string(path).ok()?)).max()
    }

    /// The counters now; `process` is what /proc says of the processes.
    pub fn read(&self, process: Option<u64>) -> Reading {
        let each: Option<Vec<u64>> =
            self.counters.iter().map(|path| sectors(&fs::read_to_string(path).ok()?)).collect();
        let device = each.filter(|each| !each.is_empty()).map(|each| each.iter().sum::<u64>() * SECTOR_BYTES);
        Reading { process, device }
    }
}

impl Reading {
    /// What was written since `before`.
    pub fn since(&self, before: &Reading) -> Written {
        let difference = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let process_bytes = difference(self.process, before.process);
        let device_bytes = difference(self.device, before.device);
        let (bytes, counter) = match (process_bytes, device_bytes) {
            (Some(process), Some(device)) if process <= device => (Some(process), "the process's counter"),
            (Some(_), Some(device)) => (Some(device), "the device's counter; the process's says more than went to it"),
            (None, Some(device)) => (Some(device), "the device's counter, of everybody on this machine"),
            (Some(_), None) => {
                (None, "not known: the device's counter was not found, and the process's alone may be far too high")
            }
            (None, None) => (None, "not known: neither counter can be read"),
        };
        Written { bytes, counter: counter.to_owned(), process_bytes, device_bytes, own_bytes: None }
    }
}

impl Written {
    /// `1052 B written to disk a message sent (the device's counter), 1040 B to the log by its own count`.
    pub fn text(&self, messages: f64, per: &str) -> String {
        let each = |bytes: u64| format!("{:.0} B", bytes as f64 / messages);
        let told = self.bytes.filter(|_| messages > 0.0);
        let mut text = match told {
            Some(bytes) => format!("{} written to disk a message {per} ({})", each(bytes), self.counter),
            None => format!("written to disk: {}", self.counter),
        };
        if let Some(own) = self.own_bytes.filter(|_| messages > 0.0) {
            text.push_str(&format!("; {} by the broker's own count", each(own)));
        }
        text
    }
}

/// Whether a descriptor is open for writing: the last two bits of its flags are the mode.
fn is_written(pid: u32, descriptor: &Path) -> bool {
    let name = descriptor.file_name().unwrap_or_default().to_string_lossy();
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{name}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).is_some_and(|flags| flags & 3 != 0)
}

/// The counters of a file system's device. Where the file system has a number of its own (btrfs),
/// its mount names the device; where there is none (overlay, tmpfs, a network), none is known.
fn counter_of(pid: u32, device: u64) -> Option<PathBuf> {
    let stat = |device: u64| {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        path.exists().then_some(path)
    };
    stat(device).or_else(|| {
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number.as_str()))?;
        let source = mount.split_once(" - ")?.1.split(' ').nth(1)?;
        stat(fs::metadata(source).ok().filter(|_| source.starts_with("/dev/"))?.rdev())
    })
}

/// Time with requests under way, the tenth number of a device's counters, in milliseconds.
fn busy(stat: &str) -> Option<Duration> {
    stat.split_whitespace().nth(9)?.parse().ok().map(Duration::from_millis)
}

/// Sectors written, the seventh number of a device's counters.
fn sectors(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write as _;

    #[test]
    fn of_two_counters_the_lower_one_is_told_and_one_of_the_process_alone_is_not() {
        let at = |process, device| Reading { process, device };
        let since = |process, device| at(process, device).since(&at(process.map(|_| 0), device.map(|_| 0)));
        let of = |process, device| (since(process, device).bytes, since(process, device).counter);
        let (bytes, counter) = of(Some(7_700_000_000), Some(200_000_000));
        assert_eq!(bytes, Some(200_000_000));
        assert!(counter.starts_with("the device's counter; the process's says more"), "{counter}");
        assert_eq!(of(Some(100), Some(300)), (Some(100), "the process's counter".to_owned()));
        let (bytes, counter) = of(Some(100), None);
        assert!(bytes.is_none() && counter.contains("the device's counter was not found"), "{counter}");
        assert!(of(None, Some(300)).1.contains("everybody"));
        let mut written = since(Some(7_700), Some(2_000));
        written.own_bytes = Some(1_900);
        let told = written.text(10.0, "sent");
        assert!(
            told.starts_with("200 B written to disk a message sent (the device's")
                && told.ends_with("190 B by the broker's own count"),
            "{told}"
        );
    }

    #[test]
    fn the_seventh_number_of_a_device_is_sectors_written() {
        let vda =
            "  357342    59639 131234762   535059  9175443   856282 623546728  4839341        0  1052452  6079480";
        assert_eq!(sectors(vda), Some(623_546_728));
        assert_eq!(sectors(""), None);
    }

    #[test]
    fn the_device_of_a_file_that_is_open_for_writing_counts_what_is_synced() {
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let mut file = fs::File::create(folder.path().join("data")).unwrap();
        let own = [std::process::id()];
        let disk = Disk::of(&own);
        // Where the tests run on a file system without a device there is nothing to know, and
        // nothing is claimed.
        if !disk.is_known() {
            return;
        }
        let before = disk.read(None);
        file.write_all(&vec![0xA5; 4 << 20]).unwrap();
        file.sync_all().unwrap();
        let written = disk.read(None).since(&before);
        assert!(written.device_bytes.unwrap() >= 4 << 20, "{written:?}");
    }
}
