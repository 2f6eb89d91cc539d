//! The allocator of this process.
//!
//! Invariant: pages that are free again go back to the system at once, so that resident memory follows use; a broker that was busy for a
//! minute must not look busy for a day. The numbers behind the choice are in `docs/decisions/allocator.md`.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's number of its option `purge_delay`, which the binding does not name. A test holds it to its effect.
#[cfg(feature = "mimalloc")]
const OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Has freed pages given back without delay. By default mimalloc waits a second, and then for a call that an idle thread never makes.
///
/// Nothing on the way of a message allocates a page of its own, so the way of a message does not pay for it.
pub(crate) fn give_back_freed_pages() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: sets a number in a table of the allocator; allowed at any time.
    unsafe {
        libmimalloc_sys::mi_option_set(OPTION_PURGE_DELAY, 0);
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
        give_back_freed_pages();
        let bodies: Vec<Vec<u8>> = (0..BYTES / 1024).map(|number| vec![number as u8; 1000]).collect();
        let full = resident_bytes();
        drop(bodies);
        let freed = full.saturating_sub(resident_bytes());
        assert!(freed > BYTES / 2, "{freed} bytes of {BYTES} were given back");
    }
}
