//! Why a message took as long as it did, as far as the measurement knows.
//!
//! Invariant: a reason is named only where something was measured that is one. Where nothing was
//! busy that says so, and where nothing was looked at there is no reason.

use crate::figures::{count, exact, three};

/// From this part of its CPUs on a node has none to spare: work waits for work.
const CPU_FULL: f64 = 0.85;

/// From this part of its cores on a machine has none to spare, whoever uses them.
pub const MACHINE_FULL: f64 = 0.9;

/// From this part of the time on, consumers are what messages wait for.
const CONSUMERS_FULL: f64 = 0.9;

/// From this part of the time on, waiting for a share of the CPU is what a tail is made of.
const THROTTLED: f64 = 0.05;

/// From this part of a limit on a disk is at it: it is counted over seconds and held over less.
const AT_LIMIT: f64 = 0.85;

/// From this part of the time on a disk has no time to spare for the next sync.
const DISK_FULL: f64 = 0.7;

/// A confirm that takes this part of the way from end to end, or more, is what the way waits for.
const MOST: f64 = 0.5;

/// What was used while a latency came about; `None` is what nobody looked at. Parts are of 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Circumstances {
    /// CPUs that a node of the broker may use.
    pub cpus: f64,
    /// The part of them that was in use.
    pub cpu: Option<f64>,
    /// The part of the machine's cores that was in use, by whomever.
    pub machine: Option<f64>,
    /// The part of the time in which something was ready and the share of the CPU was used up.
    pub throttled: Option<f64>,
    /// What was used of a disk, its limit, and of what a second.
    pub limits: Vec<(f64, f64, &'static str)>,
    /// The part of the time in which the disk had something to do.
    pub disk: Option<f64>,
    /// Operations a second of the disk.
    pub disk_operations: Option<f64>,
    /// The part of the time in which the consumers worked themselves.
    pub consumers: Option<f64>,
    /// Messages that waited, where a rate was missed.
    pub backlog: Option<u64>,
}

impl Circumstances {
    /// `37.0 ms at 27 % CPU: the disk's syncs, ...`; `None` where nothing of the broker was measured.
    /// `confirm_ms` is the same percentile up to the confirm, of a way that goes on behind it.
    pub fn reason(&self, ms: f64, confirm_ms: Option<f64>) -> Option<String> {
        if self.cpu.is_none() && self.disk.is_none() && self.disk_operations.is_none() {
            return None;
        }
        let at = self.cpu.map_or(String::new(), |cpu| format!(" at {:.0} % CPU", 100.0 * cpu));
        let short = self.short();
        let why = match (self.backlog, confirm_ms) {
            (Some(waits), _) => format!("a backlog of {}, for {short}", count(waits)),
            (None, Some(confirm)) if confirm < MOST * ms => {
                format!("{} ms to the confirm and the rest behind it, with the consumers; {short}", three(confirm))
            }
            _ => short,
        };
        Some(format!("{} ms{at}: {why}", three(ms)))
    }

    /// What was short, in words, or that nothing was.
    pub fn short(&self) -> String {
        let mut busy = Vec::new();
        if let Some(cpu) = self.cpu.filter(|cpu| *cpu >= CPU_FULL) {
            busy.push(format!("its CPU ({:.0} % of {} in use)", 100.0 * cpu, exact(self.cpus)));
        }
        if let Some(part) = self.machine.filter(|part| *part >= MACHINE_FULL && busy.is_empty()) {
            busy.push(format!("the machine's cores ({:.0} % in use, by the load and others too)", 100.0 * part));
        }
        if let Some(part) = self.throttled.filter(|part| *part >= THROTTLED) {
            let part = 100.0 * part.min(1.0);
            busy.push(format!("its share of the CPU (work waited for it {part:.0} % of the time)"));
        }
        for (used, limit, unit) in self.limits.iter().filter(|(used, limit, _)| *used >= AT_LIMIT * limit) {
            busy.push(format!("the disk's limit of {} {unit} ({} used)", exact(*limit), three(*used)));
        }
        if let Some(part) = self.disk.filter(|part| *part >= DISK_FULL) {
            busy.push(format!("the disk's syncs (it had something to do {:.0} % of the time)", 100.0 * part));
        }
        if let Some(part) = self.consumers.filter(|part| *part >= CONSUMERS_FULL) {
            busy.push(format!("the consumers' own work (they were busy {:.0} % of the time)", 100.0 * part));
        }
        match (busy.as_slice(), self.disk, self.disk_operations) {
            ([], Some(part), _) => {
                format!("neither its CPU nor its disk, busy {:.0} % of the time, was short", 100.0 * part)
            }
            ([], None, Some(each)) => {
                format!("neither its CPU (its disk did {} operations a second) was short", three(each))
            }
            ([], None, None) => "its CPU was not short, and its disk was not looked at".to_owned(),
            (some, ..) => some.join(" and "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_has_the_reason_that_was_measured_and_no_other() {
        let idle = Circumstances { cpus: 0.5, cpu: Some(0.27), ..Circumstances::default() };
        let told = |of: Circumstances| of.reason(37.0, None).unwrap_or_default();
        for (of, expected) in [
            (
                Circumstances { disk: Some(0.934), ..idle.clone() },
                "the disk's syncs (it had something to do 93 % of the time)",
            ),
            (
                Circumstances { limits: vec![(2900.2, 3000.0, "operations a second")], ..idle.clone() },
                "the disk's limit of 3,000 operations a second (2,900 used)",
            ),
            (
                Circumstances { throttled: Some(0.31), ..idle.clone() },
                "its share of the CPU (work waited for it 31 % of the time)",
            ),
            (
                Circumstances { machine: Some(0.972), ..idle.clone() },
                "the machine's cores (97 % in use, by the load and others too)",
            ),
            (
                Circumstances { consumers: Some(0.962), ..idle.clone() },
                "the consumers' own work (they were busy 96 % of the time)",
            ),
            (
                Circumstances { disk: Some(0.2), ..idle.clone() },
                "neither its CPU nor its disk, busy 20 % of the time, was short",
            ),
            (idle.clone(), "its CPU was not short, and its disk was not looked at"),
        ] {
            assert_eq!(told(of), format!("37.0 ms at 27 % CPU: {expected}"));
        }
        let early = Circumstances { disk: Some(0.8), ..idle }.reason(37.0, Some(5.0)).unwrap_or_default();
        assert!(
            early.contains(": 5.00 ms to the confirm and the rest behind it, with the consumers; the disk"),
            "{early}"
        );
        let behind = Circumstances { cpus: 0.5, cpu: Some(0.98), backlog: Some(61_500), ..Circumstances::default() };
        assert_eq!(told(behind), "37.0 ms at 98 % CPU: a backlog of 61,500, for its CPU (98 % of 0.500 in use)");
        assert_eq!(Circumstances::default().reason(37.0, None), None, "nothing was looked at");
    }
}
