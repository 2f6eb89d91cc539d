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
}

impl Process {
    /// Asks now. Cost: descriptors and threads are counted one by one.
    pub(crate) fn look() -> Process {
        let (threads, runnable) = threads().unzip();
        Process {
            resident_bytes: resident_bytes(),
            open_fds: open_fds(),
            max_fds: limit("Max open files"),
            max_threads: limit("Max processes").or_else(threads_of_system),
            threads,
            runnable,
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

/// How many threads there are, and how many of them have something to do for a processor.
fn threads() -> Option<(u64, u64)> {
    let mut counted = (0, 0);
    for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        counted.0 += 1;
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which stands in brackets.
        counted.1 += u64::from(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')));
    }
    Some(counted)
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
    }
}
