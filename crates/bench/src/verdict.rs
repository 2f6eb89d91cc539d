//! From the books of all threads to what became of the messages, and whether the run met what was
//! required.
//!
//! Invariant: a message counts as lost only if its publisher was promised it (confirmed, not
//! returned), it reached a queue that was consumed to its end or counted, it was not received and
//! it is not in a queue. Where that cannot be told, nothing is claimed.

use page::figures::{count, three};

use crate::ledger::Ledger;
use crate::load::{Final, PublisherFinal};
use crate::options::Options;
use crate::pace::Steps;
use crate::plan::{Plan, QueueId};
use crate::record::{Correctness, Run};

/// Why a message came back.
const NOT_BOUND: &str = "no queue is bound to where they were published with their routing key";

/// Lost messages that are named.
const EXAMPLES_MAX: usize = 10;

/// What became of the messages. `left` is what lies in the queues, if it could be counted;
/// `backlog` is what lay there before.
pub fn correctness(
    options: &Options,
    plan: &Plan,
    finals: &[Final],
    (backlog, left): (u64, Option<u64>),
) -> Correctness {
    let mut found = Correctness { left_in_queues: left, ..Correctness::default() };
    for books in finals.iter().map(|last| &last.books) {
        found.duplicated_flagged += books.duplicated_flagged;
        found.duplicated_unflagged += books.duplicated_unflagged;
        found.reordered += books.reordered;
        found.corrupt += books.corrupt;
        found.foreign += books.foreign;
        found.received += books.received.values().map(Ledger::count).sum::<u64>();
    }
    found.received += found.duplicated_flagged + found.duplicated_unflagged + found.corrupt + found.foreign;
    let publishers: Vec<&PublisherFinal> = finals.iter().flat_map(|last| &last.publishers).collect();
    for publisher in &publishers {
        found.published += publisher.published;
        found.confirmed += publisher.confirmed.count();
        found.returned += publisher.returned.count();
        found.unanswered += publisher.unanswered;
    }
    if options.consuming.count == 0 || options.producing.count == 0 {
        return found;
    }
    let is_promised = options.producing.confirm.is_some();
    if found.all_returned() {
        // Wherever they were to go: no message is missing that its publisher has back.
        found.lost = is_promised.then_some(0);
        return found;
    }
    let mut missing = 0;
    for publisher in publishers {
        let Some(queues) = plan.reached(&publisher.routing_key) else { return found };
        for queue in queues {
            let (examples, count) = missing_of(publisher, queue, is_promised, finals);
            missing += count;
            let room = EXAMPLES_MAX.saturating_sub(found.lost_examples.len());
            let named = examples.into_iter().take(room).map(|sequence| format!("{}:{sequence}", publisher.publisher));
            found.lost_examples.extend(named);
        }
    }
    // What lies in the queues explains as many missing messages, whichever they are, but for what
    // is left of those that lay there before, and for those that came and went back. Where they
    // cannot be counted, only that nothing is missing can be told.
    let given_back: u64 = finals.iter().map(|last| last.books.given_back).sum();
    let older = backlog.saturating_sub(found.foreign) + given_back;
    // What came damaged came: it is no message that is known by its number, and not lost too.
    let missing = missing.saturating_sub(found.corrupt);
    let is_gone = match left.map(|left| left.saturating_sub(older)) {
        Some(left) => Some(missing.saturating_sub(left)),
        None => (missing == 0).then_some(0),
    };
    if is_gone.is_none_or(|gone| gone == 0) {
        found.lost_examples.clear();
    }
    match is_promised {
        true => found.lost = is_gone,
        false => found.unpromised_missing = is_gone,
    }
    found
}

/// What of a publisher did not come from a queue: of what was confirmed to it, or without confirms
/// of all that it sent.
fn missing_of(publisher: &PublisherFinal, queue: QueueId, is_promised: bool, finals: &[Final]) -> (Vec<u64>, u64) {
    let nothing = Ledger::default();
    let received = finals.iter().find_map(|last| last.books.received.get(&(queue, publisher.publisher)));
    if publisher.returned.count() == 0 && is_promised {
        return publisher.confirmed.missing_in(received.unwrap_or(&nothing), EXAMPLES_MAX);
    }
    let mut expected = publisher.confirmed.clone();
    if !is_promised {
        expected.insert_range(0, publisher.published);
    }
    let (returned, _) = publisher.returned.missing_in(&nothing, usize::MAX);
    returned.into_iter().for_each(|sequence| {
        expected.remove(sequence);
    });
    expected.missing_in(received.unwrap_or(&nothing), EXAMPLES_MAX)
}

/// What was required, in words, with what was measured; and whether it was met.
pub fn required(options: &Options, run: &Run) -> Vec<(String, bool)> {
    let mut told = Vec::new();
    let required = &options.requirement;
    if let Some(rate) = required.rate {
        let sides = [run.confirmed_per_s, run.received_per_s].into_iter().flatten();
        let held = sides.fold(f64::MAX, f64::min).min(if options.producing.count > 0 {
            run.published_per_s
        } else {
            f64::MAX
        });
        // A run that ends between two messages is not short of its rate.
        let is_met = held >= rate * 0.99;
        told.push((format!("{} messages a second, {} are required", count(held as u64), count(rate as u64)), is_met));
    }
    let latency = run.end_to_end.as_ref().or(run.confirm.as_ref()).map(|latency| &latency.figures);
    for (limit, name, value) in
        [(required.p99_ms, "p99", latency.map(|f| f.p99_ms)), (required.p999_ms, "p99.9", latency.map(|f| f.p999_ms))]
    {
        told.extend(limit.map(|limit| match value {
            Some(value) => (format!("{name} is {} ms, at most {limit} ms is required", three(value)), value <= limit),
            None => (format!("{name} was not measured, at most {limit} ms is required"), false),
        }));
    }
    told
}

/// The last of what is judged of a run, by what is written down of it, so that one of an older file is
/// judged alike: whether the broker took everything, and whether anything came of it at all.
///
/// One message that was refused is enough. A publisher has to send it again, which this load does not:
/// the rate that was asked for is none that went in.
pub fn judge(run: &mut Run) {
    let c = &run.correctness;
    let sent = count(c.published);
    let nacked =
        (c.nacked > 0).then(|| format!("the broker refused {} of {sent} messages (basic.nack)", count(c.nacked)));
    let returned = (c.returned > 0 && !c.all_returned())
        .then(|| format!("{} of {sent} messages came back: {NOT_BOUND}", count(c.returned)));
    let refused: Vec<String> = nacked.into_iter().chain(returned).collect();
    if !run.was_refused && !refused.is_empty() {
        run.missed.push(refused.join(", and "));
        run.was_refused = true;
    }
    // Where something else was missed, or all was refused, it is said already why nothing came.
    let is_said = run.was_refused && run.correctness.nacked + run.correctness.returned >= run.correctness.published;
    if !is_said && run.missed.len() == usize::from(run.was_refused) {
        run.missed.extend(nothing(run));
    }
}

/// That those who were there sent, received or were confirmed nothing at all, in words.
fn nothing(run: &Run) -> Option<String> {
    let c = &run.correctness;
    let sent = count(c.published);
    let publishes = run.confirmed_per_s.is_some() || run.target_per_s.is_some() || run.received_per_s.is_none();
    if c.published == 0 && publishes {
        let why = run.held_back.as_ref().map_or(String::new(), |held| format!(": {}", held.text()));
        return Some(format!("nothing was sent{why}"));
    }
    if run.received_per_s.is_some() && c.received == 0 {
        let left = match c.left_in_queues {
            Some(0) => " and none lies in a queue: --flag mandatory tells whether one is bound there".to_owned(),
            Some(left) => format!(", {} lie in the queues", count(left)),
            None => String::new(),
        };
        return Some(match c.published {
            0 => "nothing was received".to_owned(),
            _ => format!("none of {sent} messages that were sent was received{left}"),
        });
    }
    (run.confirmed_per_s.is_some() && c.confirmed == 0 && c.published > 0)
        .then(|| format!("none of {sent} messages that were sent was confirmed"))
}

/// What is wrong with the messages, and what of the requirements was missed, in words.
pub fn missed(run: &Run, failure: Option<String>) -> Vec<String> {
    let missed = run.required.iter().filter(|(_, is_met)| !is_met).map(|(told, _)| told.clone());
    let nowhere = run
        .correctness
        .all_returned()
        .then(|| format!("all {} messages came back: {NOT_BOUND}", count(run.correctness.published)));
    let failure = failure.or(nowhere);
    failure.into_iter().chain(run.correctness.faults()).chain(missed).collect()
}

/// A backlog that is worth less than so many seconds of what was sent is on its way, and no
/// backlog.
pub(crate) const BACKLOG_SECONDS: f64 = 0.5;

/// What of the messages may be added to the backlog over the second half of the load before it
/// counts as growing.
pub(crate) const GROWTH_SHARE: f64 = 0.02;

/// What waited at the end of the load, and how much more that was than in the middle of it. `waits` are
/// times and what waited then, over the time of load.
fn growth(waits: &[(f64, u64)]) -> Option<(f64, u64, f64)> {
    let (ended_s, waited) = waits.last().copied()?;
    let at_half = waits.iter().rev().find(|(at_s, _)| *at_s <= ended_s / 2.0).map_or(0, |(_, count)| *count);
    Some((ended_s, waited, waited.saturating_sub(at_half) as f64))
}

/// Whether consumers fell behind, in words. `backlogs` is what was sent and not received over the time of
/// load; `before` is what lay in the queues at the start. Numbers of messages are no load that goes on:
/// they are sent and then drained.
pub fn grown(options: &Options, run: &Run, backlogs: &[(f64, u64)], before: u64) -> Option<String> {
    let received = run.received_per_s?;
    let (producing, consuming) = (&options.producing, &options.consuming);
    if producing.count == 0 || producing.messages > 0 || consuming.messages > 0 {
        return None;
    }
    let (ended_s, waited, grew) = growth(backlogs)?;
    let sent = run.published_per_s;
    // Where the load or the work changes on purpose a backlog comes and goes: what is left of it
    // after the time to drain it counts.
    let is_growing = !is_stepped(options) && grew > GROWTH_SHARE * sent * ended_s / 2.0;
    let left = run.correctness.left_in_queues.map(|left| left.saturating_sub(before));
    let is_left = left.is_some_and(|left| left as f64 > sent * BACKLOG_SECONDS);
    if waited as f64 <= sent * BACKLOG_SECONDS || !(is_growing || is_left) {
        return None;
    }
    let left = match left {
        Some(left) => format!(", {} were left after the time to drain them", count(left)),
        None => String::new(),
    };
    Some(format!(
        "{} of {} messages a second that were sent were received, {} waited at the end of the load{left}",
        three(received),
        three(sent),
        count(waited)
    ))
}

/// Whether publishers fell behind the rate that was asked for, in words: what waits to be sent is a
/// backlog too, though the broker has seen nothing of it. `waits` is what was due and not sent over the
/// time of load.
pub fn unsent(options: &Options, run: &Run, waits: &[(f64, u64)]) -> Option<String> {
    let asked = run.target_per_s.filter(|_| options.judges_rate)?;
    let (ended_s, waited, grew) = growth(waits)?;
    let is_growing = is_stepped(options) || grew > GROWTH_SHARE * asked * ended_s / 2.0;
    (is_growing && waited as f64 > asked * BACKLOG_SECONDS).then(|| {
        format!(
            "{} of {} messages a second that were asked for were sent, {} waited to be sent at the end of the load",
            three(run.published_per_s),
            three(asked),
            count(waited)
        )
    })
}

fn is_stepped(options: &Options) -> bool {
    options.producing.rate.as_ref().is_some_and(Steps::is_stepped) || options.consuming.work_us.is_stepped()
}

/// The messages a second that consumers take at most because of `--consumer-rate` or
/// `--consumer-latency`, where more than that was sent: what waits then waits for them, whatever
/// the broker does. `None` where they do, or may come to, keep up.
pub fn own_pace(options: &Options, sent_per_s: f64) -> Option<f64> {
    let (producing, consuming) = (&options.producing, &options.consuming);
    if is_stepped(options) || producing.count == 0 || producing.messages > 0 || consuming.messages > 0 {
        return None;
    }
    let each_s = (consuming.work_us.max() / 1e6).max(consuming.rate.map_or(0.0, |rate| 1.0 / rate));
    let pace = f64::from(consuming.count) * f64::from(consuming.channels) / each_s;
    (pace < sent_per_s).then_some(pace)
}

/// The requirements that were not given.
pub fn not_asked(options: &Options) -> Vec<String> {
    let asked = &options.requirement;
    let all = [
        (asked.rate.is_some(), "a rate (--require-rate)"),
        (asked.p99_ms.is_some(), "p99 (--require-p99-ms)"),
        (asked.p999_ms.is_some(), "p99.9 (--require-p999-ms)"),
    ];
    all.into_iter().filter(|(is_asked, _)| !is_asked).map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::load::Books;
    use crate::message::Stamp;
    use crate::options::run_of;
    use crate::record::{HeldBack, Verdict};
    use crate::words::words_of;

    fn options(line: &str) -> Options {
        run_of(&words_of(line)).unwrap()
    }

    fn finals(confirmed: &[u64], returned: &[u64], received: &[u64]) -> Vec<Final> {
        let ledger = |numbers: &[u64]| {
            let mut ledger = Ledger::default();
            numbers.iter().for_each(|n| {
                ledger.insert(*n);
            });
            ledger
        };
        let mut books = Books::default();
        for &sequence in received {
            books.enter(QueueId(0), &Stamp { run: 1, publisher: 0, sequence, due_ns: 0 }, false);
        }
        let publisher = PublisherFinal {
            publisher: 0,
            routing_key: "leveret-bench-00000001".into(),
            published: 10,
            confirmed: ledger(confirmed),
            returned: ledger(returned),
            unanswered: 0,
        };
        vec![Final { publishers: vec![publisher], books: Books::default() }, Final { publishers: vec![], books }]
    }

    #[test]
    fn lost_is_what_was_promised_and_is_nowhere() {
        let options = options("--confirm 5 -u q");
        let plan = Plan::of(&options, 1);
        let of = |finals: &[Final], left| correctness(&options, &plan, finals, (0, left));
        let all = finals(&[0, 1, 2, 3], &[3], &[0, 2]);
        let found = of(&all, Some(0));
        assert_eq!((found.lost, &found.lost_examples[..]), (Some(1), &["0:1".to_owned()][..]));
        assert_eq!(of(&all, Some(1)).lost, Some(0), "it may lie in the queue");
        let beside = |backlog, left| correctness(&options, &plan, &all, (backlog, Some(left))).lost;
        assert_eq!(beside(50, 50), Some(1), "what lies there is what lay there before");
        assert_eq!(beside(50, 51), Some(0), "one more may be the one");
        let mut again = finals(&[0, 1, 2, 3], &[3], &[0, 2]);
        again[1].books.given_back = 1;
        assert_eq!(of(&again, Some(1)).lost, Some(1), "what lies there is one that came and went back");
        assert_eq!(of(&all, None).lost, None, "who cannot count the queue claims nothing");
        assert_eq!(of(&finals(&[0], &[], &[0]), None).lost, Some(0), "except that nothing is missing");
        assert_eq!(of(&finals(&[0], &[], &[0, 1]), Some(0)).lost, Some(0), "more than confirmed may come");
    }

    #[test]
    fn what_cannot_be_followed_is_not_claimed() {
        let options = options("--confirm 5 -u q -t headers -e h");
        let plan = Plan::of(&options, 1);
        assert_eq!(correctness(&options, &plan, &finals(&[0, 1], &[], &[]), (0, Some(0))).lost, None);
    }

    #[test]
    fn a_rate_that_was_sent_and_not_received_is_a_backlog_that_grew() {
        let mut run = Run { published_per_s: 4000.0, received_per_s: Some(508.0), ..Run::default() };
        run.correctness.left_in_queues = Some(40_500);
        let grows: Vec<(f64, u64)> =
            (1..=20).map(|second| (f64::from(second), u64::from(second as u32) * 3492)).collect();
        let of = |line: &str, run: &Run, backlogs: &[(f64, u64)]| grown(&options(line), run, backlogs, 0);
        let told = of("--rate 4000", &run, &grows).unwrap();
        for part in ["508 of 4,000 messages", "69,840 waited", "40,500 were left"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(of("", &run, &grows).is_some(), "also without a rate");
        assert!(of("--rate 4000 --consumer-rate 508", &run, &grows).is_some(), "whoever holds the consumers back");
        assert_eq!(of("-C 100", &run, &grows), None, "numbers of messages are sent and then drained");
        let stands: Vec<(f64, u64)> = (1..=20).map(|second| (f64::from(second), 3000)).collect();
        assert!(of("--rate 4000", &run, &stands).is_some(), "it is left");
        run.correctness.left_in_queues = Some(0);
        assert!(of("--rate 4000", &run, &grows).is_some(), "it was drained, and grew all the same");
        assert_eq!(of("--rate 4000", &run, &stands), None, "late by the same all the time");
        assert_eq!(of("-vr 4000:10 -vr 1000:10", &run, &grows), None, "a rate that changes is judged by what is left");
        assert_eq!(grown(&options("--rate 4000"), &run, &[(1.0, 90), (2.0, 180)], 0), None, "on its way");
    }

    #[test]
    fn a_rate_that_was_asked_for_and_not_sent_is_a_backlog_too() {
        let run = Run { published_per_s: 48_400.0, target_per_s: Some(120_000.0), ..Run::default() };
        let waits = |each: u64| (1..=8).map(|second| (second as f64, second * each)).collect::<Vec<_>>();
        let of = |line: &str, waits: &[(f64, u64)]| unsent(&options(line), &run, waits);
        let told = "48,400 of 120,000 messages a second that were asked for were sent, 572,800 waited to be sent at the end of the load";
        assert_eq!(of("--rate 120k", &waits(71_600)).as_deref(), Some(told));
        let stands: Vec<(f64, u64)> = (1..=8).map(|second| (f64::from(second), 90_000)).collect();
        assert_eq!(of("--rate 120k", &stands), None, "late by the same all the time");
        assert!(of("-vr 120k:4 -vr 110k:4", &stands).is_some(), "of a rate that changes, what is left");
        assert_eq!(of("--rate 120k", &waits(7_000)), None, "on its way");
        let tries = Options { judges_rate: false, ..options("--rate 120k") };
        assert_eq!(unsent(&tries, &run, &waits(71_600)), None, "it goes on with a lower rate");
    }

    #[test]
    fn a_verdict_says_the_worst_and_what_was_not_asked_for() {
        let named = not_asked(&options("--require-rate 5"));
        assert_eq!(named, ["p99 (--require-p99-ms)", "p99.9 (--require-p999-ms)"]);
        let mut run = Run { not_asked: named, ..Run::default() };
        let summary = crate::screen::summary;
        assert!(summary(&run).contains("not asked for     p99 (--req") && summary(&run).contains("\n  PASSED: "));
        run.missed.push("508 of 4,000".to_owned());
        run.backlog_grew = true;
        assert!(summary(&run).ends_with("  BACKLOG GREW: 508 of 4,000"), "{}", summary(&run));
        run.missed.push("interrupted after 1 s".to_owned());
        run.was_interrupted = true;
        assert!(summary(&run).contains("INTERRUPTED: 508 of 4,000; interrupted"), "{}", summary(&run));
        run.missed.push("5 lost".to_owned());
        assert!(summary(&run).contains("FAILED: "), "{}", summary(&run));
    }

    #[test]
    fn consumers_that_hold_themselves_back_have_a_pace_of_their_own() {
        let of = |line: &str| own_pace(&options(line), 4000.0);
        assert_eq!(of("--consumer-rate 500 -y 2"), Some(1000.0));
        assert_eq!(of("--consumer-latency 10000"), Some(100.0));
        assert_eq!((of(""), of("--consumer-rate 5000")), (None, None));
        assert_eq!((of("--consumer-rate 500 -C 100"), of("--consumer-rate 500 -vr 10:5 -vr 9:5")), (None, None));
    }

    #[test]
    fn faults_and_missed_requirements_are_told() {
        let options = options("--require-rate 1000 --require-p99-ms 5");
        let mut run = Run { published_per_s: 900.0, confirmed_per_s: Some(2000.0), ..Run::default() };
        run.correctness.lost = Some(2);
        run.correctness.duplicated_flagged = 9;
        run.required = required(&options, &run);
        let missed = missed(&run, None);
        assert_eq!(missed.len(), 3, "{missed:?}");
        assert!(missed[0].starts_with("2 lost") && missed[1].starts_with("900") && missed[2].contains("p99 was not"));
    }

    fn judged(run: &Run) -> (Verdict, String) {
        let mut run = run.clone();
        judge(&mut run);
        let once = run.clone();
        judge(&mut run);
        assert_eq!(run, once, "a file that is read again says the same");
        (run.verdict(), run.missed.join("; "))
    }

    #[test]
    fn what_was_refused_is_a_verdict_of_its_own_from_the_first_message_on() {
        let of = |nacked, returned| {
            let correctness = Correctness {
                published: 1500,
                confirmed: 70,
                nacked,
                returned,
                received: 60,
                ..Correctness::default()
            };
            Run { confirmed_per_s: Some(23.0), received_per_s: Some(20.0), correctness, ..Run::default() }
        };
        let told = |nacked, returned| judged(&of(nacked, returned));
        assert_eq!(told(0, 0), (Verdict::Passed, String::new()));
        assert_eq!(
            told(1430, 0),
            (Verdict::Refused, "the broker refused 1,430 of 1,500 messages (basic.nack)".to_owned())
        );
        assert_eq!(told(1, 0).0, Verdict::Refused);
        let both = "the broker refused 1 of 1,500 messages (basic.nack), and 9 of 1,500 messages came back: ";
        let (verdict, said) = told(1, 9);
        assert!(verdict == Verdict::Refused && said.starts_with(both), "{said}");
        let beside = |change: fn(&mut Run)| {
            let mut run = of(5, 0);
            change(&mut run);
            run.missed.push("this too".to_owned());
            judged(&run).0
        };
        assert_eq!(beside(|run| run.backlog_grew = true), Verdict::Refused);
        assert_eq!(beside(|run| run.was_interrupted = true), Verdict::Interrupted);
        assert_eq!(beside(|_| {}), Verdict::Failed, "a requirement was missed");
        let mut run = of(1430, 5);
        judge(&mut run);
        let summary = crate::screen::summary(&run);
        assert!(summary.contains("\n  REFUSED: the broker refused 1,430 of "), "{summary}");
    }

    #[test]
    fn a_run_of_which_nothing_came_is_never_passed() {
        let of = |published, confirmed, received, left_in_queues| {
            let correctness = Correctness { published, confirmed, received, left_in_queues, ..Correctness::default() };
            Run { confirmed_per_s: Some(0.0), received_per_s: Some(0.0), correctness, ..Run::default() }
        };
        let failed = |told: &str| (Verdict::Failed, told.to_owned());
        let none = "none of 400 messages that were sent was received";
        assert_eq!(judged(&of(400, 400, 0, None)), failed(none));
        assert_eq!(
            judged(&of(400, 400, 0, Some(0))),
            failed(&format!("{none} and none lies in a queue: --flag mandatory tells whether one is bound there"))
        );
        assert_eq!(judged(&of(400, 400, 0, Some(9))), failed(&format!("{none}, 9 lie in the queues")));
        assert_eq!(judged(&of(400, 0, 5, None)), failed("none of 400 messages that were sent was confirmed"));
        let mut idle = of(0, 0, 7, None);
        idle.held_back = Some(HeldBack { seconds: 3.0, times: 1, reasons: vec!["low on disk".to_owned()] });
        assert_eq!(judged(&idle), failed("nothing was sent: held back by the broker for 3.0 s: low on disk"));
        idle.confirmed_per_s = None;
        assert_eq!(judged(&idle).0, Verdict::Passed, "nobody was there to send");
        idle.correctness.received = 0;
        assert_eq!(judged(&idle), failed("nothing was received"));
        let mut refused = of(400, 0, 0, Some(0));
        refused.correctness.nacked = 400;
        assert_eq!(judged(&refused).0, Verdict::Refused, "all of it");
        refused.correctness.nacked = 399;
        assert_eq!(judged(&refused).0, Verdict::Failed, "the other one did not come");
        let mut grew = of(400, 400, 0, Some(400));
        (grew.backlog_grew, grew.missed) = (true, vec!["it is left".to_owned()]);
        assert_eq!(judged(&grew), (Verdict::BacklogGrew, "it is left".to_owned()));
    }

    #[test]
    fn a_run_whose_messages_all_came_back_has_failed_and_lost_nothing() {
        let (returned, published) = (200, 200);
        let mut run =
            Run { correctness: Correctness { published, returned, ..Correctness::default() }, ..Run::default() };
        let told = missed(&run, None);
        assert!(told[0].starts_with("all 200 messages came back: no queue is bound"), "{told:?}");
        run.correctness.returned = 199;
        assert_eq!(missed(&run, None), [""; 0], "one of them went somewhere");
        assert!(!Correctness::default().all_returned(), "nothing was sent");

        let options = options("--confirm 5 -f mandatory -k nowhere -e amq.headers -t headers -u q");
        let plan = Plan::of(&options, 1);
        let all: Vec<u64> = (0..10).collect();
        let mut finals = finals(&all, &all, &[]);
        finals[0].publishers[0].routing_key = "nowhere".into();
        assert_eq!(plan.reached("nowhere"), None, "it cannot be told where they go");
        assert_eq!(correctness(&options, &plan, &finals, (0, None)).lost, Some(0));
    }
}
