//! What processes have used: CPU, memory, bytes to disk, from /proc.
//!
//! Invariant: figures are of the processes that were alive at both looks; where /proc says nothing, neither does this.

use std::time::Instant;

/// One look at a group of processes.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    at: Instant,
    cpu_seconds: f64,
    write_bytes: f64,
    memory_mib: f64,
    operations: Option<u64>,
}

/// The use of one node between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// 100 for one CPU.
    pub cpu_percent: f64,
    /// Resident at the end.
    pub memory_mib: f64,
    /// Written.
    pub disk_mib_s: f64,
    /// Disk operations a second, where they are counted.
    pub disk_iops: Option<f64>,
}

impl Usage {
    /// Looks at all processes of the group `pgid`; `None` when none can be seen. `operations` are those of its disk so far.
    pub fn of_group(pgid: u32, operations: Option<u64>) -> Option<Usage> {
        let mut usage = Usage { at: Instant::now(), cpu_seconds: 0.0, write_bytes: 0.0, memory_mib: 0.0, operations };
        let mut is_any = false;
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let path = entry.path();
            let Some(stat) = std::fs::read_to_string(path.join("stat")).ok() else { continue };
            // The name in parentheses may hold anything, blanks and parentheses too.
            let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
            let fields: Vec<&str> = rest.split(' ').collect();
            let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
            if field(2) != f64::from(pgid) {
                continue;
            }
            is_any = true;
            usage.cpu_seconds += (field(11) + field(12)) / rustix::param::clock_ticks_per_second() as f64;
            usage.memory_mib += field(21) * rustix::param::page_size() as f64 / 1_048_576.0;
            let io = std::fs::read_to_string(path.join("io")).unwrap_or_default();
            let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
            usage.write_bytes += written.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        }
        is_any.then_some(usage)
    }

    /// The use from `before` until this look.
    pub fn since(&self, before: &Usage) -> Used {
        let seconds = (self.at - before.at).as_secs_f64().max(0.001);
        Used {
            cpu_percent: 100.0 * (self.cpu_seconds - before.cpu_seconds).max(0.0) / seconds,
            memory_mib: self.memory_mib,
            disk_mib_s: (self.write_bytes - before.write_bytes).max(0.0) / 1_048_576.0 / seconds,
            disk_iops: self
                .operations
                .zip(before.operations)
                .map(|(now, then)| now.saturating_sub(then) as f64 / seconds),
        }
    }
}

/// The mean of nodes.
pub fn mean(nodes: &[Used]) -> Option<Used> {
    let count = nodes.len() as f64;
    let of = |field: fn(&Used) -> f64| nodes.iter().map(field).sum::<f64>() / count;
    (!nodes.is_empty()).then(|| Used {
        cpu_percent: of(|used| used.cpu_percent),
        memory_mib: of(|used| used.memory_mib),
        disk_mib_s: of(|used| used.disk_mib_s),
        disk_iops: nodes.iter().map(|used| used.disk_iops).sum::<Option<f64>>().map(|all| all / count),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn this_process_is_seen_and_uses_something() {
        let pgid = u32::try_from(rustix::process::getpgrp().as_raw_pid()).unwrap();
        let before = Usage::of_group(pgid, None).unwrap();
        assert!(before.memory_mib > 0.1);
        let used = Usage::of_group(pgid, None).unwrap().since(&before);
        assert!(used.cpu_percent >= 0.0 && used.disk_mib_s >= 0.0);
        assert_eq!(mean(&[]), None);
    }
}
