//! What a report answers first: a sentence, four tiles, and what keeps runs from being compared.
//!
//! Invariant: nothing is said that was not measured. Only a run that passed can be the best of
//! those beside it: a wait is short where messages get lost.

use page::figures::{self, count, duration_ms, three};
use page::hue::Hue;
use page::table::{Better, best};
use page::tile::{Line, Tile, Tone};

use super::charts::hues;
use crate::record::{Correctness, Latency, Recorded, Run, Unended, Verdict};

/// The tile of what became of the messages.
pub(super) const FAULTS: &str = "lost / reordered / corrupt";

/// More runs than this do not each have their line on a tile.
const LINES_MAX: usize = 4;

/// Runs that did not pass and are named in a sentence on all of them.
const NAMED_MAX: usize = 3;

/// Runs that did not pass and have a line of their own at the top of a page.
const EXPLAINED_MAX: usize = 3;

/// A run that is shorter than another by more than this is not as long.
const LENGTH_TIE: f64 = 0.05;

/// A rate that is short of what was asked for by more than this was not held.
const HELD: f64 = 0.99;

/// The latency that counts most, and what it is of: from end to end where somebody received.
pub(super) fn latency(run: &Run) -> Option<(&Latency, &'static str)> {
    let end_to_end = run.end_to_end.as_ref().map(|latency| (latency, "end to end"));
    end_to_end.or(run.confirm.as_ref().map(|latency| (latency, "of confirms")))
}

/// The rate of what that latency is of: where a backlog stands, who takes it tells nothing of how
/// much is published.
pub(super) fn rate(run: &Run) -> f64 {
    let own = match run.end_to_end {
        None if run.confirm.is_some() => run.confirmed_per_s,
        _ => run.received_per_s,
    };
    own.or(run.received_per_s).or(run.confirmed_per_s).unwrap_or(run.published_per_s)
}

/// A figure of each run that passed.
pub(super) fn of_passed(runs: &[Recorded], value: impl Fn(&Run) -> Option<f64>) -> Vec<Option<f64>> {
    let passed = |run: &Run| (run.verdict() == Verdict::Passed).then(|| value(run)).flatten();
    runs.iter().map(|recorded| passed(&recorded.run)).collect()
}

pub(super) fn p99(run: &Run) -> Option<f64> {
    latency(run).map(|(latency, _)| latency.figures.p99_ms)
}

/// The verdict on a report's runs; `are_comparable` where they differ in who was measured and not
/// in what.
pub(super) fn sentence(runs: &[Recorded], are_comparable: bool) -> (Tone, String) {
    let sentence = match runs {
        [] => "Nothing was run.".to_owned(),
        [one] => of_one(&one.run),
        _ if are_comparable => of_several(runs),
        _ => of_many(runs),
    };
    (tone(runs), sentence)
}

/// Whether all of them passed.
pub(super) fn tone(runs: &[Recorded]) -> Tone {
    if let [Recorded { run, .. }] = runs
        && run.verdict() == Verdict::UnderWay
    {
        return if run.backlog_grew { Tone::Bad } else { Tone::Plain };
    }
    let all = runs.iter().all(|recorded| recorded.run.verdict() == Verdict::Passed);
    if all { Tone::Good } else { Tone::Bad }
}

/// How many of these passed, and which did not.
pub(super) fn passed_of(runs: &[Recorded]) -> String {
    let failed: Vec<&Run> =
        runs.iter().map(|recorded| &recorded.run).filter(|run| run.verdict() != Verdict::Passed).collect();
    let all = figures::counted(runs.len(), "run");
    if failed.is_empty() {
        return format!("All {all} passed");
    }
    // By what was wrong; of many the first are named, and the others in their own sections.
    let worst_first =
        [Verdict::Failed, Verdict::Refused, Verdict::BacklogGrew, Verdict::Interrupted, Verdict::UnderWay];
    let of_it = |verdict: &Verdict| {
        let names: Vec<&str> =
            failed.iter().filter(|run| run.verdict() == *verdict).map(|run| run.label.as_str()).collect();
        let word = verdict.word().to_lowercase();
        match names.as_slice() {
            [] => None,
            names if names.len() <= NAMED_MAX => {
                Some(names.iter().map(|name| format!("{name} {word}")).collect::<Vec<_>>().join(", "))
            }
            names => Some(format!("{word} in {} of them", names.len())),
        }
    };
    let told: Vec<String> = worst_first.iter().filter_map(of_it).collect();
    format!("{} of {all} passed; {}", runs.len() - failed.len(), told.join(", "))
}

/// The sentence on a single run.
fn of_one(run: &Run) -> String {
    let who = if run.broker.is_empty() { run.label.clone() } else { broker(&run.broker).to_owned() };
    let missed = run.missed.join("; ");
    let is_judged = matches!(run.verdict(), Verdict::Passed | Verdict::BacklogGrew | Verdict::Refused);
    if let Some(held) = run.held().filter(|_| is_judged) {
        return format!("{who} held {held}; {}.", if missed.is_empty() { run.checked() } else { missed });
    }
    match run.verdict() {
        Verdict::UnderWay => {
            let now = run.unended.as_ref().map_or("", |unended| match unended {
                Unended::UnderWay(now) => now.as_str(),
                Unended::Cut => "",
            });
            return format!("{who} is under way: {now}.");
        }
        Verdict::Interrupted if run.books().is_none() => {
            return format!("{who}: {missed}; what became of its messages is not known.");
        }
        Verdict::BacklogGrew => return format!("{who} fell behind: {missed}."),
        Verdict::Refused => return format!("{who} did not take everything: {missed}."),
        Verdict::Failed => return format!("{who} failed: {missed}."),
        Verdict::Interrupted => return format!("{who}: {missed}, up to where nothing was wrong."),
        Verdict::Passed => {}
    }
    let seconds = figures::duration_ms(run.seconds * 1000.0);
    let held = rate(run);
    let rate = match run.target_per_s {
        Some(target) if held >= HELD * target => format!("held {} msg/s for {seconds}", three(target)),
        Some(target) => format!("reached {} of {} msg/s asked for in {seconds}", three(held), three(target)),
        None => format!("reached {} msg/s in {seconds}, as fast as it went", three(held)),
    };
    let wait = latency(run)
        .map_or(String::new(), |(latency, of)| format!(", p99 {} {of}", duration_ms(latency.figures.p99_ms)));
    format!("{who} {rate}{wait}; {}.", run.checked())
}

/// The sentence on runs that are not compared: how far they reach.
fn of_many(runs: &[Recorded]) -> String {
    let passed: Vec<&Run> =
        runs.iter().map(|recorded| &recorded.run).filter(|run| run.verdict() == Verdict::Passed).collect();
    let range = |value: &dyn Fn(&Run) -> Option<f64>, text: fn(f64) -> String| {
        let values: Vec<f64> = passed.iter().filter_map(|run| value(run)).collect();
        let (low, high) = values.iter().fold((f64::MAX, 0.0_f64), |(low, high), v| (low.min(*v), high.max(*v)));
        (!values.is_empty()).then(|| if low < high { format!("{} to {}", text(low), text(high)) } else { text(low) })
    };
    let rates = range(&|run| Some(rate(run)), three).map(|rates| format!("{rates} msg/s"));
    let waits = range(&p99, duration_ms).map(|waits| format!("p99 {waits}"));
    let told: Vec<String> = [rates, waits].into_iter().flatten().collect();
    if told.is_empty() {
        return format!("{}.", passed_of(runs));
    }
    let unknown = passed.iter().filter(|run| run.correctness.lost.is_none()).count();
    let checked = match unknown {
        0 => "nothing lost, duplicated, reordered or corrupt".to_owned(),
        all if all == passed.len() => {
            "nothing duplicated, reordered or corrupt; what was lost cannot be told".to_owned()
        }
        _ => format!("nothing duplicated, reordered or corrupt, and in {} nothing lost", passed.len() - unknown),
    };
    let those = if passed.len() == runs.len() { "" } else { "; those that passed" };
    format!("{}{those}: {}; {checked}.", passed_of(runs), told.join(", "))
}

/// The sentence on runs that are compared.
fn of_several(runs: &[Recorded]) -> String {
    let name = |at: usize| runs[at].run.label.as_str();
    let mut parts = vec![passed_of(runs)];
    let rates = of_passed(runs, |run| Some(rate(run)));
    let waits = of_passed(runs, p99);
    let costs = of_passed(runs, |run| run.cost.broker_us_per_message);
    let others = |values: &[Option<f64>], at: usize, text: fn(f64) -> String| {
        let others = values.iter().enumerate().filter(|(other, _)| *other != at);
        others.filter_map(|(_, value)| value.map(text)).collect::<Vec<_>>().join(" and ")
    };
    match best(&rates, Better::Higher) {
        Some(at) => parts.push(format!(
            "{} is fastest, {} msg/s against {}",
            name(at),
            three(rates[at].unwrap_or_default()),
            others(&rates, at, three)
        )),
        None if rates.iter().flatten().count() > 1 => {
            parts.push(format!(
                "rates are the same ({} msg/s)",
                rates.iter().flatten().next().map_or(String::new(), |r| three(*r))
            ));
        }
        None => {}
    }
    if let Some(at) = best(&waits, Better::Lower) {
        let of = latency(&runs[at].run).map_or("", |(_, of)| of);
        let (own, others) = (duration_ms(waits[at].unwrap_or_default()), others(&waits, at, duration_ms));
        parts.push(format!("{} waits least, p99 {of} {own} against {others}", name(at)));
    }
    if let Some(at) = best(&costs, Better::Lower) {
        let (own, others) = (three(costs[at].unwrap_or_default()), others(&costs, at, three));
        parts.push(format!("{} needs least CPU, {own} us a message against {others}", name(at)));
    }
    format!("{}.", parts.join("; "))
}

/// `RabbitMQ 3.10.8 (process beam.smp)` without its process.
fn broker(broker: &str) -> &str {
    broker.split(" (process").next().unwrap_or(broker)
}

/// Why those that did not pass did not, a line each.
pub(super) fn explained(runs: &[Recorded]) -> Vec<String> {
    let missed = runs.iter().map(|recorded| &recorded.run).filter(|run| !run.missed.is_empty());
    missed
        .map(|run| format!("{} {}: {}.", run.label, run.verdict().word().to_lowercase(), run.missed.join("; ")))
        .collect()
}

/// What is to be said beside the verdict: who was held back, and what was not asked for.
/// `has_sections` where each workload says in its own what went wrong in it.
pub(super) fn beside(runs: &[Recorded], has_sections: bool) -> Vec<String> {
    let mut lines = if runs.len() > 1 { explained(runs) } else { Vec::new() };
    if has_sections && lines.len() > EXPLAINED_MAX {
        lines = vec!["Why each of them did not pass stands in its section.".to_owned()];
    }
    lines.extend(runs.iter().filter_map(|Recorded { run, .. }| {
        let held = run.held_back.as_ref()?.text();
        Some(if runs.len() > 1 { format!("{}: {held}.", run.label) } else { format!("{held}.") })
    }));
    if let [Recorded { run, .. }] = runs {
        lines.extend(run.required.iter().filter(|(_, is_met)| *is_met).map(|(told, _)| format!("Met: {told}.")));
    }
    // What was made for a figure has no requirements but its own.
    let mut judged = runs.iter().filter(|recorded| !recorded.is_of_figure).map(|recorded| &recorded.run.not_asked);
    let not_asked = judged.next().cloned().unwrap_or_default();
    if !not_asked.is_empty() && judged.all(|other| *other == not_asked) {
        lines.push(format!("Not asked for: {}.", not_asked.join(", ")));
    }
    lines
}

/// What else differs between runs that stand side by side than who was measured. Those of many
/// workloads differ in their rates and lengths on purpose, so `is_one_workload` says whether these
/// are looked at.
pub(super) fn differences(runs: &[Recorded], is_one_workload: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut differ = |what: &str, of: &dyn Fn(&Run) -> String| {
        let mut values: Vec<(String, Vec<&str>)> = Vec::new();
        for Recorded { run, .. } in runs {
            let value = of(run);
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, labels)) => labels.push(&run.label),
                None => values.push((value, vec![&run.label])),
            }
        }
        if values.len() > 1 {
            let told: Vec<String> =
                values.iter().map(|(value, labels)| format!("{value} ({})", labels.join(", "))).collect();
            lines.push(format!("{what} differ: {}.", told.join("; ")));
        }
    };
    let longest = runs.iter().map(|recorded| recorded.run.seconds).fold(0.0, f64::max);
    let is_as_long = |run: &Run| run.seconds >= longest * (1.0 - LENGTH_TIE);
    if is_one_workload && !runs.iter().all(|recorded| is_as_long(&recorded.run)) {
        differ("Lengths", &|run| figures::duration_ms(run.seconds * 1000.0));
    }
    if is_one_workload {
        differ("Rates asked for", &|run| {
            run.target_per_s.map_or("none".to_owned(), |rate| format!("{} msg/s", three(rate)))
        });
    }
    differ("Versions of leveret bench", &|run| run.version.clone());
    differ("Machines", &|run| {
        let machine = &run.machine;
        let memory = machine.memory_bytes as f64 / 1e9;
        format!("{} cores, {}, {memory:.0} GB, kernel {}", machine.cores, machine.cpu, machine.kernel)
    });
    lines
}

/// The four tiles.
pub(super) fn tiles(runs: &[Recorded], are_comparable: bool) -> Vec<Tile> {
    match runs.len() == 1 || (are_comparable && runs.len() <= LINES_MAX) {
        true => each(runs),
        false => together(runs),
    }
}

/// Why nothing is told of what the broker's processes used.
fn why_not_measured(run: &Run) -> &'static str {
    match run.cost.broker_rss_bytes_max {
        Some(_) => "the load was too short for it",
        None => "its processes were not found on this machine, or were gone at the end",
    }
}

/// Tiles with a line for each run.
fn each(runs: &[Recorded]) -> Vec<Tile> {
    let hues = hues(runs);
    let of = |at: usize| (runs.len() > 1).then(|| (runs[at].run.label.clone(), hues[at]));
    let tile = |name: &str, best: Option<usize>, value: &dyn Fn(&Run) -> (String, String, Tone)| {
        let line = |(at, recorded): (usize, &Recorded)| {
            let (value, more, tone) = value(&recorded.run);
            Line { of: of(at), value, more, is_best: best == Some(at), tone }
        };
        Tile::of(name, runs.iter().enumerate().map(line).collect())
    };
    let fastest = best(&of_passed(runs, |run| Some(rate(run))), Better::Higher);
    let rates = tile("messages a second", fastest, &|run| {
        let asked = run.target_per_s.map(|target| format!("{} asked for", three(target)));
        let sent = Some(format!("{} sent", three(run.published_per_s))).filter(|_| run.published_per_s > 0.0);
        let confirmed = run.confirmed_per_s.map(|rate| format!("{} confirmed", three(rate)));
        let received = run.received_per_s.map(|rate| format!("{} received", three(rate)));
        let more: Vec<String> = [asked, sent, confirmed, received].into_iter().flatten().collect();
        let tone = if run.backlog_grew || run.was_refused { Tone::Bad } else { Tone::Plain };
        // A mean of several rates is none that was asked for.
        let (rate, more) = match run.held_rate() {
            Some(held) => (held, format!("the highest of its rates that was held; on average {}", more.join(", "))),
            None => (rate(run), more.join(", ")),
        };
        (format!("{} msg/s", three(rate)), more, tone)
    });
    let whats: Vec<&str> = runs.iter().filter_map(|recorded| latency(&recorded.run)).map(|(_, of)| of).collect();
    let is_one = whats.iter().all(|what| *what == whats[0]);
    let name = if is_one { format!("p99 {}", whats.first().unwrap_or(&"latency")) } else { "p99".to_owned() };
    let quickest = best(&of_passed(runs, p99), Better::Lower).filter(|_| is_one);
    let mut waits = tile(&name, quickest, &|run| match latency(run) {
        None if run.books().is_none() => {
            ("not known".to_owned(), "of the whole; that of each interval is drawn below".to_owned(), Tone::Plain)
        }
        None => ("not measured".to_owned(), String::new(), Tone::Plain),
        Some((latency, of)) => {
            let f = &latency.figures;
            let of = if is_one { String::new() } else { format!("{of}; ") };
            let (p50, p999, max) = (duration_ms(f.p50_ms), duration_ms(f.p999_ms), duration_ms(f.max_ms));
            let why = run.why_p99.as_ref().map_or(String::new(), |why| format!("; why: {why}"));
            (duration_ms(f.p99_ms), format!("{of}p50 {p50}, p99.9 {p999}, max {max}{why}"), Tone::Plain)
        }
    });
    let drawn = |(at, recorded): (usize, &Recorded)| {
        let (latency, _) = latency(&recorded.run)?;
        Some((if runs.len() > 1 { hues[at] } else { Hue::RECEIVED }, latency.curve.clone()))
    };
    waits.curves = runs.iter().enumerate().filter_map(drawn).collect();
    let correct = tile(FAULTS, None, &|run| {
        let Some(c) = run.books() else {
            return ("not known".to_owned(), "until a run is over".to_owned(), Tone::Plain);
        };
        let is_bad = !c.faults().is_empty();
        let lost = c.lost.or(c.unpromised_missing).map_or("?".to_owned(), count);
        let again = Some(format!("{} duplicated without a flag", count(c.duplicated_unflagged)));
        let again = again.filter(|_| c.duplicated_unflagged > 0);
        let flagged = Some(format!("{} redelivered", count(c.duplicated_flagged))).filter(|_| c.duplicated_flagged > 0);
        let left = c.left_in_queues.filter(|left| *left > 0).map(|left| format!("{} left in queues", count(left)));
        let unknown = match (c.lost, c.unpromised_missing) {
            (Some(_), _) => None,
            (None, Some(_)) => Some("without confirms nothing was promised: what is missing is told".to_owned()),
            (None, None) => Some("what was lost cannot be told".to_owned()),
        };
        let all = format!("{} sent, {} received", count(c.published), count(c.received));
        let more: Vec<String> =
            [Some(all), c.not_taken(), again, flagged, left, unknown].into_iter().flatten().collect();
        let value = format!("{lost} / {} / {}", count(c.reordered), count(c.corrupt));
        (value, more.join(", "), if is_bad { Tone::Bad } else { Tone::Plain })
    });
    let cheapest = best(&of_passed(runs, |run| run.cost.broker_us_per_message), Better::Lower);
    let cost = tile("CPU and memory of the broker", cheapest, &|run| {
        let cost = &run.cost;
        let (Some(cores), Some(rss)) = (cost.broker_cores, cost.broker_rss_bytes_max) else {
            return ("not measured".to_owned(), why_not_measured(run).to_owned(), Tone::Plain);
        };
        let per = cost.broker_us_per_message.map(|us| format!("{} us a message {}", three(us), cost.broker_per));
        let value = format!("{} cores, {}", three(cores), figures::bytes(rss as f64));
        (value, per.unwrap_or_default(), Tone::Plain)
    });
    vec![rates, waits, correct, cost]
}

/// Tiles over runs that are too many, or too different, for a line each.
fn together(runs: &[Recorded]) -> Vec<Tile> {
    let all = |value: &dyn Fn(&Run) -> Option<f64>| -> Vec<(f64, &str)> {
        runs.iter().filter_map(|recorded| Some((value(&recorded.run)?, recorded.run.label.as_str()))).collect()
    };
    let range = |name: &str, values: Vec<(f64, &str)>, text: &dyn Fn(f64) -> String, worst: &str| {
        let low = values.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let high = values.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let told = match (low, high) {
            (Some(low), Some(high)) => {
                Line::of(format!("{} to {}", text(low.0), text(high.0)), format!("{worst}: {}", high.1))
            }
            _ => Line::of("not measured", ""),
        };
        Tile::of(name, vec![told])
    };
    let most = |value: &dyn Fn(&Run) -> Option<f64>| all(value).into_iter().map(|(value, _)| value).reduce(f64::max);
    let cores = most(&|run| run.cost.broker_cores);
    let rss = most(&|run| run.cost.broker_rss_bytes_max.map(|bytes| bytes as f64));
    let cost = match (cores, rss) {
        (Some(cores), Some(rss)) => {
            Line::of(format!("{} cores, {}", three(cores), figures::bytes(rss)), "the most of any run")
        }
        _ => Line::of("not measured", ""),
    };
    vec![
        range("messages a second", all(&|run| Some(rate(run))), &three, "most"),
        range("p99", all(&p99), &duration_ms, "longest"),
        Tile::of(FAULTS, vec![faults(runs)]),
        Tile::of("CPU and memory of a broker", vec![cost]),
    ]
}

/// What became of the messages of all of these runs.
pub(super) fn faults(runs: &[Recorded]) -> Line {
    let sum = |of: fn(&Run) -> u64| runs.iter().map(|recorded| of(&recorded.run)).sum::<u64>();
    let unknown = runs.iter().filter(|recorded| recorded.run.correctness.lost.is_none()).count();
    let is_bad = runs.iter().any(|recorded| !recorded.run.correctness.faults().is_empty());
    let lost = sum(|run| run.correctness.lost.unwrap_or(0));
    let (reordered, corrupt) = (sum(|run| run.correctness.reordered), sum(|run| run.correctness.corrupt));
    let sent = count(sum(|run| run.correctness.published));
    let mut more = format!("{sent} messages sent in {}", figures::counted(runs.len(), "run"));
    if unknown > 0 {
        more.push_str(&format!("; what was lost cannot be told in {unknown} of them"));
    }
    let all = Correctness {
        nacked: sum(|run| run.correctness.nacked),
        returned: sum(|run| run.correctness.returned),
        ..Correctness::default()
    };
    more.extend(all.not_taken().map(|told| format!("; {told}")));
    let value = format!("{} / {} / {}", count(lost), count(reordered), count(corrupt));
    Line { tone: if is_bad { Tone::Bad } else { Tone::Plain }, ..Line::of(value, more) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AtRate;
    use crate::report::tests::recorded;

    fn told(runs: &[Recorded]) -> String {
        sentence(runs, true).1
    }

    #[test]
    fn a_run_is_answered_in_a_sentence() {
        let mut run = recorded("Leveret", 4.321);
        run.run.broker = "Leveret 0.1.0 (process leveret)".to_owned();
        (run.run.target_per_s, run.run.seconds, run.run.correctness.lost) = (Some(1000.0), 30.0, Some(0));
        assert_eq!(
            told(std::slice::from_ref(&run)),
            "Leveret 0.1.0 held 1,000 msg/s for 30 s, p99 4.32 ms end to end; nothing lost, duplicated, reordered or corrupt."
        );
        run.run.target_per_s = Some(2000.0);
        assert!(told(std::slice::from_ref(&run)).contains(" reached 1,000 of 2,000 msg/s asked for in 30 s"));
        run.run.correctness.lost = None;
        assert!(told(std::slice::from_ref(&run)).contains("what was lost cannot be told"));
        (run.run.backlog_grew, run.run.missed) = (true, vec!["508 of 4,000 messages".to_owned()]);
        assert_eq!(told(std::slice::from_ref(&run)), "Leveret 0.1.0 fell behind: 508 of 4,000 messages.");
        assert_eq!(sentence(&[run.clone()], true).0, Tone::Bad);
        run.run.at_rates =
            [(1000.0, 1000.0), (2000.0, 1200.0)].map(|(asked, sent)| AtRate { asked, sent, received: None }).to_vec();
        let knee = "Leveret 0.1.0 held up to 1,000 msg/s, not 2,000 (1,200 came through); 508 of 4,000 messages.";
        assert_eq!(told(std::slice::from_ref(&run)), knee);
        assert_eq!(each(&[run])[0].lines[0].value, "1,000 msg/s");
    }

    #[test]
    fn runs_are_compared_in_a_sentence_and_one_that_failed_is_never_the_best() {
        let mut runs = [recorded("Leveret", 4.0), recorded("RabbitMQ", 9.0)];
        assert_eq!(
            told(&runs),
            "All 2 runs passed; rates are the same (1,000 msg/s); Leveret waits least, p99 end to end 4 ms against 9 ms."
        );
        runs[1].run.received_per_s = Some(1500.0);
        assert!(told(&runs).contains("RabbitMQ is fastest, 1,500 msg/s against 1,000;"), "{}", told(&runs));
        let best = |runs: &[Recorded]| {
            tiles(runs, true).iter().flat_map(|tile| &tile.lines).filter(|line| line.is_best).count()
        };
        assert_eq!(best(&runs), 2);
        runs[0].run.missed = vec!["3 lost".to_owned()];
        assert_eq!(told(&runs), "1 of 2 runs passed; Leveret failed.");
        assert_eq!(best(&runs), 0);
        assert_eq!(beside(&runs, false), ["Leveret failed: 3 lost."]);
    }

    #[test]
    fn what_else_differs_between_runs_is_said() {
        let mut runs = [recorded("a", 4.0), recorded("b", 9.0), recorded("c", 9.0)];
        runs.iter_mut().for_each(|recorded| recorded.run.seconds = 30.0);
        assert_eq!(differences(&runs, true), Vec::<String>::new());
        runs[2].run.seconds = 29.5;
        assert_eq!(differences(&runs, true), Vec::<String>::new(), "as long as the others");
        runs[1].run.seconds = 10.0;
        runs[1].run.version = "0.2".to_owned();
        runs[1].run.machine.cores = 8;
        runs[1].run.target_per_s = Some(500.0);
        let told = differences(&runs, true);
        assert_eq!(told.len(), 4, "{told:?}");
        assert_eq!(told[0], "Lengths differ: 30 s (a); 10 s (b); 29.5 s (c).");
        assert!(told[1].starts_with("Rates asked for differ: none (a, c); 500 msg/s (b)"), "{told:?}");
    }

    #[test]
    fn many_runs_have_tiles_of_all_of_them() {
        let mut runs: Vec<Recorded> = (0..6).map(|at| recorded(&format!("run {at}"), 4.0 + f64::from(at))).collect();
        runs[2].run.correctness.reordered = 7;
        runs[2].run.correctness.lost = Some(0);
        let tiles = tiles(&runs, true);
        let lines: Vec<(&str, &str)> =
            tiles.iter().map(|t| (t.lines[0].value.as_str(), t.lines[0].more.as_str())).collect();
        assert_eq!(lines[1], ("4 ms to 9 ms", "longest: run 5"));
        assert_eq!(lines[2], ("0 / 7 / 0", "0 messages sent in 6 runs; what was lost cannot be told in 5 of them"));
        assert_eq!(tiles[2].lines[0].tone, Tone::Bad);
    }
}
