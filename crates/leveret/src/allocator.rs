//! The allocator of this process.
//!
//! Invariant: pages that are free again go back to the system when their thread falls quiet, so
//! that resident memory follows use; a broker that was busy for a minute must not look busy for a
//! day. While it is busy they are kept: giving each batch's pages back at once cost a fifth of the
//! CPU. The numbers are in `docs/decisions/0005-allocator.md`.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives back what this thread has freed. Called when the thread was busy and is quiet now.
pub(crate) fn give_back_freed_pages() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: allowed at any time on any thread.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}

#[cfg(all(test, feature = "mimalloc", target_os = "linux"))]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("every Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of every process");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    #[test]
    fn freed_messages_leave_resident_memory() {
        const BYTES: usize = 64 << 20;
        let bodies: Vec<Vec<u8>> = (0..BYTES / 1024).map(|number| vec![number as u8; 1000]).collect();
        let full = resident_bytes();
        drop(bodies);
        give_back_freed_pages();
        let freed = full.saturating_sub(resident_bytes());
        assert!(freed > BYTES / 2, "{freed} bytes of {BYTES} were given back");
    }
}
