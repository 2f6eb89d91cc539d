//! What the broker's processes use, read from /proc, when they are on this machine.
//!
//! Invariant: reading never disturbs them; a process that is gone, or a file that may not be read,
//! is left out and not guessed. Network is not here: /proc counts it by namespace and not by
//! process. The load itself knows the bytes between it and the broker.

use std::collections::HashSet;
use std::fs;

pub use cgroup::used::{Usage, all};
use serde::{Deserialize, Serialize};

use crate::clock::SECOND;

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

impl Load {
    /// The use from `before` until `now`, but for what was written.
    pub fn between(before: &Usage, now: &Usage, elapsed_ns: u64) -> Load {
        let per_second =
            |now: u64, then: u64| now.saturating_sub(then) as f64 * SECOND as f64 / elapsed_ns.max(1) as f64;
        Load {
            cpu_cores: per_second(now.cpu_ns, before.cpu_ns) / SECOND as f64,
            rss_bytes: now.rss_bytes,
            read_bytes_s: now.read_bytes.zip(before.read_bytes).map(|(now, then)| per_second(now, then)),
            write_bytes_s: None,
        }
    }
}

/// The processes that listen on a port of this machine, found through /proc/net/tcp; empty when
/// there is none that we may see.
pub fn listeners(port: u16) -> Vec<u32> {
    let mut inodes = HashSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        inodes.extend(text.lines().skip(1).filter_map(|line| listening_inode(line, port)));
    }
    let mut pids: Vec<u32> = all().filter(|pid| holds_any(*pid, &inodes)).collect();
    pids.sort_unstable();
    pids
}

/// The value of a variable in the environment that a process was started with; `None` if it has
/// none or we may not see it.
pub fn variable(pid: u32, name: &str) -> Option<Vec<u8>> {
    let all = fs::read(format!("/proc/{pid}/environ")).ok()?;
    all.split(|byte| *byte == 0)
        .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))
}

/// The ports on which a process listens.
pub fn ports_of(pid: u32) -> Vec<u16> {
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let local = line.split_whitespace().nth(1).and_then(|local| local.rsplit_once(':'));
            let Some(port) = local.and_then(|(_, digits)| u16::from_str_radix(digits, 16).ok()) else { continue };
            let inode = listening_inode(line, port);
            if inode.is_some_and(|inode| holds_any(pid, &HashSet::from([inode]))) {
                ports.push(port);
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The socket of a line of /proc/net/tcp that listens (state 0A) on `port`.
fn listening_inode(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?;
    let (_, digits) = local.rsplit_once(':')?;
    (state == "0A" && u16::from_str_radix(digits, 16).ok()? == port).then(|| inode.parse().ok())?
}

fn holds_any(pid: u32, inodes: &HashSet<u64>) -> bool {
    if inodes.is_empty() {
        return false;
    }
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.and_then(|digits| digits.parse().ok()).is_some_and(|inode: u64| inodes.contains(&inode))
    })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn our_own_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let pids = listeners(listener.local_addr().unwrap().port());
        assert_eq!(pids, [std::process::id()]);
        assert!(ports_of(std::process::id()).contains(&listener.local_addr().unwrap().port()));
    }

    #[test]
    fn use_is_a_difference_over_time() {
        let before = Usage { cpu_ns: SECOND, rss_bytes: 1, read_bytes: Some(100), write_bytes: Some(0) };
        let after = Usage { cpu_ns: 2 * SECOND, rss_bytes: 7, read_bytes: Some(300), write_bytes: Some(9) };
        let load = Load::between(&before, &after, 2 * SECOND);
        assert_eq!(load, Load { cpu_cores: 0.5, rss_bytes: 7, read_bytes_s: Some(100.0), write_bytes_s: None });
    }
}
