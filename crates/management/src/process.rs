//! What the operating system says of this process.

/// Memory and descriptors of this process; what is not told is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Memory that it holds.
    pub(crate) resident_bytes: Option<u64>,
    /// Descriptors that are open.
    pub(crate) open_fds: Option<u64>,
    /// Descriptors that may be.
    pub(crate) max_fds: Option<u64>,
}

impl Process {
    /// Asks now. Cost: the descriptors are counted one by one.
    pub(crate) fn look() -> Process {
        Process { resident_bytes: resident_bytes(), open_fds: open_fds(), max_fds: max_fds() }
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

fn max_fds() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
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
    }
}
