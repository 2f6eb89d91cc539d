//! Why a message of a measurement took as long as it did.
//!
//! Invariant: what the step did not measure is not claimed; the words are those of every page.

use page::reason::Circumstances;

use crate::outcome::is_matched;
use crate::results::{Configuration, Step};

/// `p99 37.0 ms at 27 % CPU: the disk's syncs, ...`; `None` where the step has no latency or nothing
/// of its node was measured.
pub(crate) fn of(step: &Step, known: &Configuration) -> Option<String> {
    let part = |percent: Option<f64>| percent.map(|percent| percent / 100.0);
    let limits = [(step.disk_iops, known.iops, "operations a second"), (step.disk_mib_s, known.mib_s, "MiB a second")];
    let circumstances = Circumstances {
        cpus: known.vcpus,
        cpu: part(step.cpu_percent).map(|cpus| cpus / known.vcpus),
        machine: part(step.machine_cpu_percent),
        throttled: part(step.throttled_percent),
        limits: limits.into_iter().filter_map(|(used, limit, unit)| Some((used?, limit?, unit))).collect(),
        disk: part(step.disk_busy_percent),
        disk_operations: step.disk_iops,
        consumers: part(step.consumers_busy_percent),
        backlog: step.backlog_max.filter(|_| !is_matched(step)),
    };
    circumstances.reason(step.p99_ms?, step.confirm_p99_ms)
}
