//! Measurements that look odd, each said with what may be behind it before somebody else finds it.
//!
//! Invariant: a doubt names figures of the file and changes no verdict.

use page::figures::{exact, three};
use page::reason::MACHINE_FULL;

use crate::outcome::is_matched;
use crate::results::{Configuration, Results, Step, Test};

/// A p99 that is lower than one at a lower rate by more than this part did not rise with the load.
const FALL: f64 = 0.05;

/// A rate that is so many times another one and takes no more than this part more CPU.
const TIMES: f64 = 2.0;
const SAME_CPU: f64 = 0.1;

/// Percent of a CPU below which a node has some to spare, for each that it has.
const CPU_FREE: f64 = 75.0;

/// In shorter steps than this a few pauses are all of the tail.
const LONG_S: f64 = 60.0;

/// All of them.
pub(crate) fn doubts(results: &Results) -> Vec<String> {
    let mut doubts = Vec::new();
    for known in &results.configurations {
        for test in Test::ALL {
            let mut steps: Vec<&Step> =
                results.steps.iter().filter(|step| step.test == test && known.is_of(step)).collect();
            steps.sort_by(|a, b| a.target.total_cmp(&b.target));
            doubts.extend(missed_below(known, test, &steps));
            doubts.extend(falling(known, test, &steps));
            doubts.extend(idle(known, test, &steps));
        }
    }
    doubts.extend(smaller_ones(results));
    doubts.extend(full_machine(results));
    doubts
}

/// Whether a rate was missed that may well be held.
pub(crate) fn is_a_miss_doubted(results: &Results) -> bool {
    let is_missed_below = |known: &Configuration| {
        let is_of = |step: &&Step| step.test == Test::Rising && known.is_of(step);
        let mut steps: Vec<&Step> = results.steps.iter().filter(is_of).collect();
        steps.sort_by(|a, b| a.target.total_cmp(&b.target));
        missed_below(known, Test::Rising, &steps).is_some()
    };
    full_machine(results).is_some() || results.configurations.iter().any(is_missed_below)
}

/// What holds more holds less: a rate that was missed below one that was held was missed by chance.
fn missed_below(known: &Configuration, test: Test, steps: &[&Step]) -> Option<String> {
    let held = steps.iter().rev().find(|step| is_matched(step))?;
    let missed: Vec<&&Step> = steps.iter().filter(|step| !is_matched(step) && step.target < held.target).collect();
    let told: Vec<String> = missed
        .iter()
        .map(|step| format!("{} msg/s ({} came through)", exact(step.target), three(step.published.min(step.consumed))))
        .collect();
    (!told.is_empty()).then(|| {
        format!(
            "{}, {test}: {} fell short, and {} was held. What holds more holds less: something else was in the way for a \
             moment. Nothing above the lowest miss counts as held; measure again, in longer steps.",
            known.name(),
            told.join(" and "),
            exact(held.target)
        )
    })
}

/// Rates that were missed while the whole machine was busy and the node was not: what was short is this
/// machine.
fn full_machine(results: &Results) -> Option<String> {
    let is_short = |known: &Configuration| {
        let own = results.steps.iter().filter(|step| known.is_of(step) && !is_matched(step));
        let is_full = |step: &Step| step.machine_cpu_percent.is_some_and(|percent| percent >= 100.0 * MACHINE_FULL);
        let is_free = |step: &Step| step.cpu_percent.is_some_and(|cpu| cpu < CPU_FREE * known.vcpus);
        own.into_iter().any(|step| is_full(step) && is_free(step))
    };
    let short: Vec<String> =
        results.configurations.iter().filter(|known| is_short(known)).map(Configuration::name).collect();
    (!short.is_empty()).then(|| {
        format!(
            "{} fell short while all cores of the machine were in use, and not by the nodes: the load and other programs share it. \
             Where the load has a machine of its own, they may hold more.",
            short.join(", ")
        )
    })
}

/// More load makes nothing faster.
fn falling(known: &Configuration, test: Test, steps: &[&Step]) -> Option<String> {
    let late: Vec<(&Step, f64)> = steps.iter().filter_map(|step| Some((*step, step.p99_ms?))).collect();
    let falls = |at: &usize| late[..*at].iter().any(|(_, before)| late[*at].1 < before * (1.0 - FALL));
    let last = (1..late.len()).rev().find(falls)?;
    let (low, before) = late[..last].iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (high, after) = late[last];
    let why = match low.seconds.min(high.seconds) {
        seconds if seconds < LONG_S => {
            format!("in steps of {} s a few pauses are all of a tail, and they come when they come", exact(seconds))
        }
        _ => "something else than the load decides it, which `why p99` may name".to_owned(),
    };
    Some(format!(
        "{}, {test}: p99 falls while the rate rises, from {} ms at {} msg/s to {} ms at {}. More load makes nothing faster: {why}. \
         Take the higher one for both.",
        known.name(),
        three(*before),
        exact(low.target),
        three(after),
        exact(high.target)
    ))
}

/// More load takes more work, unless it shares it or there is none left.
fn idle(known: &Configuration, test: Test, steps: &[&Step]) -> Option<String> {
    // Where a rate was missed, or hardly any CPU is left, that is what keeps it from rising.
    let is_free = |step: &&&Step| is_matched(step) && step.cpu_percent.is_some_and(|cpu| cpu < CPU_FREE * known.vcpus);
    let free = steps.iter().filter(is_free);
    let busy: Vec<(&Step, f64)> = free.filter_map(|step| Some((*step, step.cpu_percent?))).collect();
    let (high, cpu) = *busy.last()?;
    let (low, before) =
        busy.iter().find(|(low, before)| high.consumed >= low.consumed * TIMES && cpu < before * (1.0 + SAME_CPU))?;
    Some(format!(
        "{}, {test}: the CPU of a node does not rise with the rate, {} % of one at {} msg/s and {} % at {}. Messages that come \
         together share syncs and wake-ups; what a message costs at one rate says nothing of another.",
        known.name(),
        three(*before),
        exact(low.target),
        three(cpu),
        exact(high.target)
    ))
}

/// Of two that differ by their CPUs alone, the one with fewer that reached more.
fn smaller_ones(results: &Results) -> Vec<String> {
    let top = |known: &Configuration| {
        let steps = results.steps.iter().filter(|step| step.test == Test::Rising && known.is_of(step));
        steps.max_by(|a, b| a.consumed.total_cmp(&b.consumed))
    };
    let mut doubts = Vec::new();
    for small in &results.configurations {
        for large in results.configurations.iter().filter(|large| differ_by_cpu(small, large)) {
            let (Some(of_small), Some(of_large)) = (top(small), top(large)) else { continue };
            if of_small.consumed <= of_large.consumed {
                continue;
            }
            let cpu = |step: &Step, known: &Configuration| {
                step.cpu_percent.map_or("not measured".to_owned(), |cpu| format!("{:.0} %", cpu / known.vcpus))
            };
            doubts.push(format!(
                "{} reached more than {}, which has more CPU: {} and {} msg/s, with {} and {} of it in use. What limits both is \
                 something else, and they differ by chance.",
                small.name(),
                large.name(),
                three(of_small.consumed),
                three(of_large.consumed),
                cpu(of_small, small),
                cpu(of_large, large)
            ));
        }
    }
    doubts
}

/// Whether two are the same but for `small` having less CPU. Clusters of several brokers are called by
/// the broker, a line, and their size.
fn differ_by_cpu(small: &Configuration, large: &Configuration) -> bool {
    let broker = |known: &Configuration| known.cluster.rsplit_once('-').map(|(broker, _)| broker.to_owned());
    small.vcpus < large.vcpus
        && (small.nodes, &small.volume) == (large.nodes, &large.volume)
        && broker(small) == broker(large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Document;
    use crate::results::Tolerance;

    const CLUSTERS: &str = concat!(
        "{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n",
        "{\"kind\":\"cluster\",\"cluster\":\"x-1\",\"nodes\":1,\"machine\":\"m\",\"vcpus\":1,\"volume\":\"v\"}\n",
        "{\"kind\":\"cluster\",\"cluster\":\"x-half\",\"nodes\":1,\"machine\":\"m\",\"vcpus\":0.5,\"volume\":\"v\"}\n",
        "{\"kind\":\"cluster\",\"cluster\":\"y-half\",\"nodes\":1,\"machine\":\"m\",\"vcpus\":0.5,\"volume\":\"v\"}\n"
    );

    /// `steps` are cluster, rate, p99 and CPU.
    fn of(steps: &[(&str, f64, f64, f64)], seconds: u64) -> Vec<String> {
        let mut text = CLUSTERS.to_owned();
        for (name, rate, p99, cpu) in steps {
            text.push_str(&format!(
                "{{\"kind\":\"step\",\"cluster\":\"{name}\",\"volume\":\"v\",\"test\":\"rising\",\"target\":{rate},\"seconds\":{seconds},\
                 \"consumers\":2,\"published\":{rate},\"consumed\":{rate},\"p99_ms\":{p99},\"cpu_percent\":{cpu}}}\n"
            ));
        }
        doubts(&Results::read(&Document::new("r", &text), Tolerance::Partial).expect("lawful lines"))
    }

    #[test]
    fn a_rate_that_was_missed_below_one_that_was_held_is_doubted_and_so_is_a_machine_that_was_full() {
        let of = |lines: &[(f64, f64, &str)]| {
            let steps = lines.iter().map(|(rate, consumed, more)| {
                format!(
                    "{{\"kind\":\"step\",\"cluster\":\"x-1\",\"volume\":\"v\",\"test\":\"rising\",\"target\":{rate},\
                     \"seconds\":5,\"consumers\":2,\"published\":{rate},\"consumed\":{consumed},\"cpu_percent\":{}{more}}}\n",
                    rate / 500.0
                )
            });
            let text = CLUSTERS.to_owned() + &steps.collect::<String>();
            doubts(&Results::read(&Document::new("r", &text), Tolerance::Partial).expect("lawful lines"))
        };
        let told = of(&[(2000.0, 2000.0, ""), (5000.0, 4930.0, ""), (8000.0, 8000.0, "")]);
        assert!(
            told.len() == 1 && told[0].contains("rising: 5,000 msg/s (4,930 came through) fell short, and 8,000"),
            "{told:?}"
        );
        assert!(of(&[(2000.0, 2000.0, ""), (5000.0, 4930.0, "")]).is_empty(), "nothing higher was held");
        let full = ",\"machine_cpu_percent\":99.5";
        let told = of(&[(2000.0, 2000.0, full), (5000.0, 4930.0, full)]);
        assert!(told.len() == 1 && told[0].starts_with("x-1/v fell short while all cores"), "{told:?}");
        assert!(of(&[(2000.0, 2000.0, full)]).is_empty(), "nothing was missed");
    }

    #[test]
    fn a_p99_that_falls_while_the_rate_rises_is_doubted() {
        let of = |p99: f64, seconds| of(&[("x-1", 4000.0, 193.0, 10.0), ("x-1", 8000.0, p99, 20.0)], seconds);
        let told = of(178.5, 6);
        assert!(told.len() == 1 && told[0].contains("from 193 ms at 4,000 msg/s to 178 ms at 8,000."), "{told:?}");
        assert!(told[0].contains("in steps of 6 s") && of(178.5, 600)[0].contains("something else"), "{told:?}");
        assert_eq!((of(189.0, 6).len(), of(300.0, 6).len()), (0, 0), "as long as it was, or longer");
    }

    #[test]
    fn a_cpu_that_does_not_rise_and_a_smaller_machine_that_reaches_more_are_doubted() {
        let told = of(&[("x-1", 5000.0, 4.0, 34.5), ("x-1", 20_000.0, 24.0, 33.4)], 8);
        assert!(told.len() == 1 && told[0].contains("34.5 % of one at 5,000 msg/s and 33.4 % at 20,000."), "{told:?}");
        assert!(of(&[("x-1", 5000.0, 4.0, 84.5), ("x-1", 20_000.0, 24.0, 88.4)], 8).is_empty(), "none is left");
        assert!(of(&[("x-1", 5000.0, 4.0, 34.5), ("x-1", 9_000.0, 24.0, 33.4)], 8).is_empty(), "hardly more load");
        let told =
            of(&[("x-1", 23_000.0, 4.0, 32.0), ("x-half", 24_000.0, 4.0, 40.0), ("y-half", 30_000.0, 4.0, 40.0)], 8);
        assert_eq!(told.len(), 1, "another broker may: {told:?}");
        assert!(
            told[0].starts_with("x-half/v reached more than x-1/v") && told[0].contains("with 80 % and 32 %"),
            "{told:?}"
        );
    }
}
