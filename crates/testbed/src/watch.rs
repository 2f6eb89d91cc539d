//! The processes of a broker, looked at again and again, and what they used between two looks.
//!
//! Invariant: where nothing says what was used, neither does this. What was written is what
//! [`crate::written`] makes of /proc and of the device: /proc alone may say far too much.

use std::time::{Duration, Instant};

use crate::cgroup::Share;
use crate::used::{Cores, Ledger, Usage};
use crate::written::{Disk, Reading, Written};

/// Processes that are watched; what those had used that are gone stays in the sum.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    ledger: Ledger,
    disk: Disk,
}

/// One look at them.
#[derive(Clone, Debug)]
pub struct Look {
    /// What they had used by then.
    pub used: Usage,
    /// What the counters of writes said.
    pub written: Reading,
    at: Instant,
    disk_busy: Option<Duration>,
    cores: Option<Cores>,
    share: Share,
}

/// What they used between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    /// Seconds between the looks.
    pub seconds: f64,
    /// Cores busy.
    pub cpu_cores: f64,
    /// Resident memory at the end.
    pub rss_bytes: u64,
    /// Bytes a second from disk, where /proc tells.
    pub read_bytes_s: Option<f64>,
    /// What was written, and by which counter.
    pub written: Written,
    /// Disk operations a second, where a box counts them.
    pub operations_s: Option<f64>,
    /// The cores that their boxes leave them, where they have boxes.
    pub cores_limit: Option<f64>,
    /// Which part of the machine's cores worked, for whomever.
    pub machine: Option<f64>,
    /// Which part of the time their disk had something to do, for whomever.
    pub disk_busy: Option<f64>,
    /// For which part of the time something of them was ready and their share of the CPU was used up; 1 is
    /// one thread all the time.
    pub throttled: Option<f64>,
}

impl Watch {
    /// Looks at them; `None` when none can be seen. Their disk is found once they have a file open.
    pub fn look(&mut self, pids: &[u32]) -> Option<Look> {
        let used = self.ledger.look(pids)?;
        if !self.disk.is_known() {
            self.disk = Disk::of(pids);
        }
        Some(Look {
            used,
            written: self.disk.read(used.write_bytes),
            at: Instant::now(),
            disk_busy: self.disk.busy(),
            cores: Cores::now(),
            share: Share::of(pids),
        })
    }
}

impl Look {
    /// What was used since `before`.
    pub fn since(&self, before: &Look) -> Used {
        let seconds = (self.at - before.at).as_secs_f64().max(0.001);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let part =
            |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?).as_secs_f64() / seconds);
        Used {
            seconds,
            cpu_cores: rate(self.used.cpu_ns, before.used.cpu_ns) / 1e9,
            rss_bytes: self.used.rss_bytes,
            read_bytes_s: self.used.read_bytes.zip(before.used.read_bytes).map(|(now, then)| rate(now, then)),
            written: self.written.since(&before.written),
            operations_s: self.share.operations.zip(before.share.operations).map(|(now, then)| rate(now, then)),
            cores_limit: self.share.cores,
            machine: self.cores.zip(before.cores).map(|(now, then)| now.busy_since(then)),
            disk_busy: part(self.disk_busy, before.disk_busy).map(|part| part.min(1.0)),
            throttled: part(self.share.throttled, before.share.throttled),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn use_is_a_difference_over_time() {
        let own = [std::process::id()];
        let before = Watch::default().look(&own).unwrap();
        let mut after = Look { at: before.at + Duration::from_secs(2), ..before.clone() };
        after.used.cpu_ns += 1_000_000_000;
        after.used.read_bytes = before.used.read_bytes.map(|bytes| bytes + 200);
        (after.disk_busy, after.share.throttled) = (Some(Duration::from_secs(9)), Some(Duration::from_secs(3)));
        let before = Look {
            disk_busy: Some(Duration::from_secs(8)),
            share: Share { throttled: Some(Duration::ZERO), ..Share::default() },
            ..before
        };
        let used = after.since(&before);
        assert_eq!((used.seconds, used.cpu_cores, used.rss_bytes), (2.0, 0.5, before.used.rss_bytes));
        assert_eq!((used.disk_busy, used.throttled, used.operations_s), (Some(0.5), Some(1.5), None));
        assert_eq!(used.read_bytes_s, before.used.read_bytes.map(|_| 100.0));
        assert!(Watch::default().look(&[u32::MAX - 1]).is_none(), "nobody is there");
    }

    #[test]
    fn what_was_written_is_never_more_than_went_to_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let counters = folder.path().join("stat");
        // The seventh number of a device is sectors of 512 bytes that were written.
        let device = |sectors: u64| std::fs::write(&counters, format!("1 0 8 0 1 0 {sectors} 0 0 0 0")).unwrap();
        let disk = Disk::counted_in(vec![counters.clone()]);
        let bytes = |process: u64, sectors: u64| {
            device(1000);
            let before = disk.read(Some(0));
            device(1000 + sectors);
            disk.read(Some(process)).since(&before).bytes
        };
        // As after a large folio: /proc says a terabyte more than the disk has seen.
        assert_eq!(bytes(1 << 40, (2 << 20) / 512), Some(2 << 20));
        assert_eq!(bytes(1 << 20, (2 << 20) / 512), Some(1 << 20), "somebody else wrote too");
        let nowhere = Disk::default();
        let alone = nowhere.read(Some(7)).since(&nowhere.read(Some(0))).bytes;
        assert_eq!(alone, None, "what no second counter confirms is left out");
    }
}
