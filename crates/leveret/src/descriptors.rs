//! How many files and sockets this process may have open.
//!
//! Invariant: the soft limit is raised as far as the system allows before anything is opened; a
//! limit that stays low is told once, with the two places where people raise it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::config::DESCRIPTORS_RESERVED;

/// Fewer than this leave room for a few thousand clients at most: worth a word to the operator.
const DESCRIPTORS_LOW: u64 = 4096;

/// Raises the soft limit to the hard one. Failing is no error: the limit that holds is read
/// afterwards by whoever needs it.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// What to tell the operator, if the limit is low for `connections_max` connections.
pub(crate) fn warning(descriptors: u64, connections_max: usize) -> Option<String> {
    let connections = descriptors.saturating_sub(DESCRIPTORS_RESERVED);
    let advice = "raise it with `ulimit -n` or, under systemd, LimitNOFILE=";
    if connections < connections_max as u64 {
        Some(format!(
            "only {descriptors} files may be open, enough for {connections} of connections_max = {connections_max}; {advice}"
        ))
    } else if descriptors < DESCRIPTORS_LOW {
        Some(format!("only {descriptors} files may be open, enough for {connections} connections; {advice}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_is_told_with_what_it_means() {
        assert_eq!(
            warning(1024, 768).as_deref(),
            Some(
                "only 1024 files may be open, enough for 768 connections; raise it with `ulimit -n` or, under systemd, LimitNOFILE="
            )
        );
        assert_eq!(
            warning(20_000, 50_000).as_deref(),
            Some(
                "only 20000 files may be open, enough for 19744 of connections_max = 50000; raise it with `ulimit -n` or, under systemd, LimitNOFILE="
            )
        );
        assert_eq!(warning(20_000, 19_744), None);
    }

    #[test]
    fn raising_leaves_the_soft_limit_at_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let lowered = before.maximum.map(|maximum| maximum / 2).or(Some(512));
        setrlimit(Resource::Nofile, Rlimit { current: lowered, maximum: before.maximum }).expect("lowering is allowed");
        raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
