//! What the operating system says of this process: memory, descriptors, threads.

/// Memory, descriptors and threads of this process; what is not told is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Memory that it holds.
    pub(crate) resident_bytes: Option<u64>,
    /// Descriptors that are open.
    pub(crate) open_fds: Option<u64>,
    /// Descriptors that may be.
    pub(crate) max_fds: Option<u64>,
    /// Threads that there may be.
    pub(crate) max_threads: Option<u64>,
    /// Its threads.
    pub(crate) threads: Option<u64>,
    /// Those that run or wait for a processor.
    pub(crate) runnable: Option<u64>,
    /// How often a processor left one of them for another, of those that are there.
    pub(crate) context_switches: Option<u64>,
}

impl Process {
    /// Asks now. Cost: descriptors and threads are counted one by one.
    pub(crate) fn look() -> Process {
        let seen = Threads::look();
        Process {
            resident_bytes: resident_bytes(),
            open_fds: open_fds(),
            max_fds: limit("Max open files"),
            max_threads: limit("Max processes").or_else(threads_of_system),
            threads: seen.as_ref().map(|seen| seen.count),
            runnable: seen.as_ref().map(|seen| seen.runnable),
            context_switches: seen.map(|seen| seen.switches),
        }
    }
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn open_fds() -> Option<u64> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

/// A limit of the process; `None` where there is none.
fn limit(name: &str) -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

fn threads_of_system() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/kernel/threads-max").ok()?.trim().parse().ok()
}

/// The threads of this process together.
struct Threads {
    count: u64,
    runnable: u64,
    switches: u64,
}

impl Threads {
    fn look() -> Option<Threads> {
        let mut seen = Threads { count: 0, runnable: 0, switches: 0 };
        for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
            seen.count += 1;
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            for line in status.lines() {
                match line.split_once(':') {
                    Some(("State", state)) => seen.runnable += u64::from(state.trim_start().starts_with('R')),
                    Some(("voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches", count)) => {
                        seen.switches += count.trim().parse::<u64>().unwrap_or_default();
                    }
                    _ => {}
                }
            }
        }
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_this_process() {
        let process = Process::look();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(process.open_fds.is_some_and(|count| count >= 3));
        assert!(process.max_fds.is_none_or(|count| count >= 3));
        assert!(process.threads.is_some_and(|count| count >= 1));
        // It is this very thread that looks.
        assert!(process.runnable.is_some_and(|count| count >= 1));
        assert!(process.max_threads.is_some_and(|count| count > 1));
        assert!(process.context_switches.is_some_and(|count| count >= 1));
    }
}
