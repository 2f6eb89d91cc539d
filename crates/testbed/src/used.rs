//! What processes have used, from /proc, and which of them there are.
//!
//! Invariant: reading never disturbs them; a process that is gone, or a file that may not be read,
//! is left out and not guessed.

use std::collections::BTreeMap;
use std::fs;

use crate::process::all;

/// What processes have used since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory now.
    pub rss_bytes: u64,
    /// Bytes read from disk, where /proc tells.
    pub read_bytes: Option<u64>,
    /// Bytes written to disk as /proc has them, which may be far too many: see [`crate::written`].
    pub write_bytes: Option<u64>,
}

impl Usage {
    /// What `pids` have used, together; `None` when none of them is there.
    pub fn of(pids: &[u32]) -> Option<Usage> {
        Ledger::default().look(pids)
    }
}

/// What processes have used, looked at again and again: what one that is gone had used, as it was seen
/// last, stays in the sum, which never falls.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    last: BTreeMap<u32, Usage>,
}

impl Ledger {
    /// What `pids` have used by now, together, those that are gone too; `None` when none of them is
    /// there.
    pub fn look(&mut self, pids: &[u32]) -> Option<Usage> {
        self.enter(pids.iter().map(|pid| (*pid, one(*pid))))
    }

    fn enter(&mut self, found: impl Iterator<Item = (u32, Option<Usage>)>) -> Option<Usage> {
        let (mut is_any_there, mut all) = (false, Vec::new());
        for (pid, usage) in found {
            match usage {
                Some(usage) => {
                    is_any_there = true;
                    self.last.insert(pid, usage);
                    all.push(usage);
                }
                // It has no memory any more.
                None => all.extend(self.last.get(&pid).map(|last| Usage { rss_bytes: 0, ..*last })),
            }
        }
        is_any_there.then(|| Usage {
            cpu_ns: all.iter().map(|u| u.cpu_ns).sum(),
            rss_bytes: all.iter().map(|u| u.rss_bytes).sum(),
            read_bytes: all.iter().map(|u| u.read_bytes).sum(),
            write_bytes: all.iter().map(|u| u.write_bytes).sum(),
        })
    }
}

/// What all cores of the machine did so far, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// Work of anybody.
    pub busy: u64,
    /// That and idling.
    pub all: u64,
}

impl Cores {
    /// Now; `None` where the kernel does not tell.
    pub fn now() -> Option<Cores> {
        Cores::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// User, nice, system, idle, waiting for disks, interrupts of two kinds, and what other machines
    /// took; guests are in the first two.
    fn of(stat: &str) -> Option<Cores> {
        let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let ticks: Vec<u64> = ticks.map(|tick| tick.parse().ok()).collect::<Option<_>>()?;
        let all = ticks.iter().sum::<u64>();
        Some(Cores { busy: all - ticks.get(3)? - ticks.get(4)?, all })
    }

    /// Which part of the time since `before` was work.
    pub fn busy_since(self, before: Cores) -> f64 {
        self.busy.saturating_sub(before.busy) as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }
}

fn one(pid: u32) -> Option<Usage> {
    let stat = stat(pid)?;
    let fields: Vec<&str> = stat.split(' ').collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let rss_pages: u64 = fields.get(21)?.parse().ok()?;
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let counter =
        |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse::<u64>().ok());
    Some(Usage {
        cpu_ns: ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)),
        rss_bytes: rss_pages * rustix::param::page_size() as u64,
        read_bytes: counter("read_bytes"),
        write_bytes: counter("write_bytes"),
    })
}

/// The fields of a process behind its name, which may hold anything, parentheses too.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// The processes of a group.
pub fn of_group(pgid: u32) -> Vec<u32> {
    let is_in = |pid: &u32| stat(*pid).is_some_and(|stat| stat.split(' ').nth(2) == Some(&pgid.to_string()));
    all().filter(is_in).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_no_work() {
        let of = |stat: &str| Cores::of(stat).unwrap();
        let (before, after) = (of("cpu  10 0 5 80 5 0 0 0 0 0\ncpu0 1"), of("cpu  40 0 15 110 25 5 5 0 9 9\ncpu0 1"));
        assert_eq!((after, after.busy_since(before)), (Cores { busy: 65, all: 200 }, 0.5));
        assert!(Cores::now().is_some());
    }

    #[test]
    fn what_a_process_used_that_is_gone_stays_in_the_sum() {
        let used = |cpu_ns, written| Usage { cpu_ns, rss_bytes: 7, read_bytes: None, write_bytes: Some(written) };
        let mut ledger = Ledger::default();
        let mut look = |of: [Option<Usage>; 2]| ledger.enter([1, 2].into_iter().zip(of));
        assert_eq!(look([Some(used(100, 10)), Some(used(200, 20))]).unwrap().cpu_ns, 300);
        let after = look([Some(used(150, 15)), None]).unwrap();
        assert_eq!((after.cpu_ns, after.rss_bytes, after.write_bytes), (350, 7, Some(35)));
        assert_eq!(look([None, None]), None, "nobody is there to be measured");
    }

    #[test]
    fn our_own_process_is_in_its_group_and_measured() {
        let group = u32::try_from(rustix::process::getpgrp().as_raw_pid()).unwrap();
        assert!(of_group(group).contains(&std::process::id()));
        assert!(Usage::of(&[std::process::id()]).unwrap().rss_bytes > 100_000);
        assert_eq!(Usage::of(&[u32::MAX - 1]), None);
    }
}
