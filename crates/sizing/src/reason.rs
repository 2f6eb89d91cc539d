//! Why a message took as long as it did, as far as the measurement knows.
//!
//! Invariant: a reason is named only where something was measured that is one. Where nothing was
//! busy that says so, and where nothing was looked at there is no reason.

use page::figures::{count, exact, three};

use crate::outcome::is_matched;
use crate::results::{Configuration, Step};

/// From this part of its CPUs on a node has none to spare: work waits for work.
const CPU_FULL: f64 = 0.85;

/// From this part of its cores on a machine has none to spare, whoever uses them.
pub(crate) const MACHINE_FULL: f64 = 0.9;

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

/// `p99 37.0 ms at 27 % CPU: the disk's syncs, ...`; `None` where the step has no latency or nothing
/// of its node was measured.
pub(crate) fn of(step: &Step, known: &Configuration) -> Option<String> {
    let p99 = step.p99_ms?;
    let cpu = step.cpu_percent.map(|percent| percent / 100.0 / known.vcpus);
    if cpu.is_none() && step.disk_busy_percent.is_none() && step.disk_iops.is_none() {
        return None;
    }
    let at = cpu.map_or(String::new(), |cpu| format!(" at {:.0} % CPU", 100.0 * cpu));
    Some(format!("{} ms{at}: {}", three(p99), why(step, known, cpu, p99)))
}

fn why(step: &Step, known: &Configuration, cpu: Option<f64>, p99: f64) -> String {
    let mut busy = Vec::new();
    if let Some(cpu) = cpu.filter(|cpu| *cpu >= CPU_FULL) {
        busy.push(format!("its CPU ({:.0} % of {} in use)", 100.0 * cpu, exact(known.vcpus)));
    }
    if let Some(percent) =
        step.machine_cpu_percent.filter(|percent| *percent >= 100.0 * MACHINE_FULL && busy.is_empty())
    {
        busy.push(format!("the machine's cores ({percent:.0} % in use, by the load and others too)"));
    }
    if let Some(part) = step.throttled_percent.map(|percent| percent / 100.0).filter(|part| *part >= THROTTLED) {
        busy.push(format!("its share of the CPU (work waited for it {:.0} % of the time)", 100.0 * part.min(1.0)));
    }
    let limits = [(step.disk_iops, known.iops, "operations a second"), (step.disk_mib_s, known.mib_s, "MiB a second")];
    for (used, limit, unit) in limits {
        if let (Some(used), Some(limit)) = (used, limit)
            && used >= AT_LIMIT * limit
        {
            busy.push(format!("the disk's limit of {} {unit} ({} used)", exact(limit), three(used)));
        }
    }
    if let Some(part) = step.disk_busy_percent.filter(|percent| *percent >= 100.0 * DISK_FULL) {
        busy.push(format!("the disk's syncs (it had something to do {part:.0} % of the time)"));
    }
    if let Some(part) = step.consumers_busy_percent.filter(|percent| *percent >= 100.0 * CONSUMERS_FULL) {
        busy.push(format!("the consumers' own work (they were busy {part:.0} % of the time)"));
    }
    let busy = match busy.as_slice() {
        [] => {
            let disk = match (step.disk_busy_percent, step.disk_iops) {
                (Some(percent), _) => format!("nor its disk, busy {percent:.0} % of the time,"),
                (None, Some(iops)) => format!("(its disk did {} operations a second)", three(iops)),
                (None, None) => String::new(),
            };
            format!("neither its CPU {disk} was short").replace("  ", " ")
        }
        some => some.join(" and "),
    };
    let waits = step.backlog_max.filter(|_| !is_matched(step));
    if let Some(waits) = waits {
        return format!("a backlog of {}, for {busy}", count(waits));
    }
    match step.confirm_p99_ms {
        Some(confirm) if confirm < MOST * p99 => {
            format!("{} ms to the confirm and the rest behind it, with the consumers; {busy}", three(confirm))
        }
        _ => busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Document;
    use crate::results::{Results, Tolerance};

    fn reason(cluster: &str, step: &str) -> Option<String> {
        let text = format!(
            "{{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}}\n\
             {{\"kind\":\"cluster\",\"cluster\":\"a\",\"nodes\":1,\"machine\":\"m\",\"vcpus\":0.5,\"volume\":\"v\"{cluster}}}\n\
             {{\"kind\":\"step\",\"cluster\":\"a\",\"volume\":\"v\",\"test\":\"rising\",\"target\":2000,\"seconds\":6,\
             \"consumers\":2,\"published\":2000,\"p99_ms\":37{step}}}\n"
        );
        let results = Results::read(&Document::new("r", &text), Tolerance::Partial).expect("lawful lines");
        of(&results.steps[0], &results.configurations[0])
    }

    #[test]
    fn a_latency_has_the_reason_that_was_measured_and_no_other() {
        let held = ",\"consumed\":2000,\"cpu_percent\":13.5";
        let of = |cluster: &str, step: &str| reason(cluster, &format!("{held}{step}"));
        let told = of("", ",\"disk_busy_percent\":93.4").expect("the disk was looked at");
        assert_eq!(told, "37.0 ms at 27 % CPU: the disk's syncs (it had something to do 93 % of the time)");
        let told = of(",\"iops\":3000", ",\"disk_iops\":2900.2,\"disk_busy_percent\":20").expect("so was its limit");
        assert_eq!(told, "37.0 ms at 27 % CPU: the disk's limit of 3,000 operations a second (2,900 used)");
        let told = of("", ",\"throttled_percent\":31").expect("its share was");
        assert!(told.ends_with("its share of the CPU (work waited for it 31 % of the time)"), "{told}");
        let told = of("", ",\"machine_cpu_percent\":97.2").expect("others were");
        assert!(told.ends_with("the machine's cores (97 % in use, by the load and others too)"), "{told}");
        let told = of("", ",\"consumers_busy_percent\":96.2").expect("the load's own were");
        assert!(told.ends_with("the consumers' own work (they were busy 96 % of the time)"), "{told}");
        let told = of("", ",\"disk_busy_percent\":20").expect("nothing was busy");
        assert_eq!(told, "37.0 ms at 27 % CPU: neither its CPU nor its disk, busy 20 % of the time, was short");
        let told = of("", ",\"disk_busy_percent\":80,\"confirm_p99_ms\":5").expect("it was confirmed early");
        assert!(
            told.contains(": 5.00 ms to the confirm and the rest behind it, with the consumers; the disk"),
            "{told}"
        );
        let told = reason("", ",\"consumed\":900,\"cpu_percent\":49,\"backlog_max\":61500").expect("it fell behind");
        assert_eq!(told, "37.0 ms at 98 % CPU: a backlog of 61,500, for its CPU (98 % of 0.500 in use)");
        assert_eq!(reason("", ",\"consumed\":2000"), None, "nothing was looked at");
    }
}
