//! What the broker's processes use, read from /proc, when they are on this machine.
//!
//! Invariant: reading never disturbs them; a process that is gone, or a file that may not be read,
//! is left out and not guessed. Network is not here: /proc counts it by namespace and not by
//! process. The load itself knows the bytes between it and the broker.

use std::fs;

use serde::{Deserialize, Serialize};
use testbed::Used;

/// The use of processes over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Cores busy.
    pub cpu_cores: f64,
    /// Resident memory at its end.
    pub rss_bytes: u64,
    /// Bytes a second from disk; absent where that is not known.
    pub read_bytes_s: Option<f64>,
    /// Bytes a second to disk, by the counter that [`crate::disk`] tells; absent where none is
    /// trusted.
    pub write_bytes_s: Option<f64>,
}

impl From<&Used> for Load {
    /// All but what was written.
    fn from(used: &Used) -> Load {
        let Used { cpu_cores, rss_bytes, read_bytes_s, .. } = *used;
        Load { cpu_cores, rss_bytes, read_bytes_s, write_bytes_s: None }
    }
}

/// What the machine is, for a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of its CPU.
    pub cpu: String,
    /// Cores.
    pub cores: usize,
    /// Memory.
    pub memory_bytes: u64,
    /// Kernel.
    pub kernel: String,
    /// What else ran at the start: the load average over a minute.
    pub load_before: f64,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            cpu: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load_before: load.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0),
        }
    }
}
