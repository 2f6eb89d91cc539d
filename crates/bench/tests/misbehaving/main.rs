//! Whatever a broker does to messages, the load generator says so: one broker for each way of being
//! wrong.
#![allow(clippy::unwrap_used)]

mod broker;

use std::time::Duration;

use bench::options::run_of;
use bench::record::{Recorded, Run, Verdict};
use bench::run::{Context, run};
use bench::words::words_of;
use broker::{Mischief, start};

fn recorded(mischief: Mischief, line: &str) -> Recorded {
    let port = start(mischief);
    let line = if line.contains("--drain-timeout") { line.to_owned() } else { format!("--drain-timeout 5 {line}") };
    recorded_by(&format!("--uri amqp://127.0.0.1:{port} -u q --confirm 100 {line}"))
}

fn recorded_by(text: &str) -> Recorded {
    run(&run_of(&words_of(text)).unwrap(), &Context::default(), &mut []).unwrap()
}

fn run_against(mischief: Mischief, line: &str) -> Run {
    recorded(mischief, line).run
}

#[test]
fn a_broker_that_does_all_right_passes_with_small_and_with_large_bodies() {
    for size in [12, 40, 1000, 50_000] {
        let run = run_against(Mischief::None, &format!("-C 500 -s {size}"));
        let c = &run.correctness;
        assert_eq!((c.published, c.confirmed, c.received, c.lost), (500, 500, 500, Some(0)), "{size} B: {c:?}");
        assert!(run.missed.is_empty(), "{size} B: {:?}", run.missed);
    }
}

#[test]
fn lost_messages_are_counted_and_named() {
    let run = run_against(Mischief::Lose(100), "-C 500 -s 100");
    assert_eq!(run.correctness.lost, Some(5));
    assert_eq!(run.correctness.lost_examples, ["0:99", "0:199", "0:299", "0:399", "0:499"]);
    assert_eq!(run.missed, ["5 lost"]);
}

#[test]
fn without_confirms_nothing_is_called_lost_and_what_is_missing_is_said() {
    let of = |mischief| {
        let port = start(mischief);
        recorded_by(&format!("--uri amqp://127.0.0.1:{port} -u q -C 500 -s 100 --drain-timeout 2")).run
    };
    let run = of(Mischief::Lose(100));
    assert_eq!((run.correctness.lost, run.correctness.unpromised_missing), (None, Some(5)));
    let summary = bench::screen::summary(&run);
    for told in [
        "500 sent, no confirms asked for, 495 received",
        "missing 5 (nothing was promised), duplicated 0",
        "first missing, publisher:sequence: 0:99 0:199",
        "PASSED: nothing duplicated, reordered or corrupt; 5 of 500 sent are missing, and without confirms nothing was promised",
    ] {
        assert!(summary.contains(told), "{told} is not in {summary}");
    }
    let summary = bench::screen::summary(&of(Mischief::None));
    assert!(
        summary.ends_with("none of what was sent is missing, though without confirms nothing was promised"),
        "{summary}"
    );
}

#[test]
fn duplicates_are_told_apart_by_their_flag() {
    let run = run_against(Mischief::Duplicate(50, false), "-C 500 -s 100");
    assert_eq!((run.correctness.duplicated_unflagged, run.correctness.duplicated_flagged), (10, 0));
    assert_eq!(run.missed, ["10 duplicated and not flagged as redelivered"]);
    let run = run_against(Mischief::Duplicate(50, true), "-C 500 -s 100");
    assert_eq!((run.correctness.duplicated_unflagged, run.correctness.duplicated_flagged), (0, 10));
    assert!(run.missed.is_empty(), "at least once is what AMQP promises: {:?}", run.missed);
}

#[test]
fn reordered_and_corrupt_messages_are_counted_in_both_forms_of_a_body() {
    for size in [12, 100] {
        let run = run_against(Mischief::Swap(100), &format!("-C 499 -s {size}"));
        assert_eq!((run.correctness.reordered, run.correctness.lost), (4, Some(0)), "{size} B");
        let run = run_against(Mischief::Corrupt(100), &format!("-C 500 -s {size}"));
        assert_eq!(run.missed, ["5 corrupt"], "{size} B: what came damaged came, and is not lost too");
    }
}

#[test]
fn refused_messages_are_not_lost() {
    let run = run_against(Mischief::Nack(10), "-C 500 -s 100");
    let c = &run.correctness;
    assert_eq!((c.nacked, c.confirmed, c.received, c.lost), (50, 450, 450, Some(0)));
    assert_eq!((run.verdict(), run.was_refused), (Verdict::Refused, true));
    assert_eq!(run.missed, ["the broker refused 50 of 500 messages (basic.nack)"]);
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains(r#""nacked":50"#) && json.contains(r#""was_refused":true"#), "{json}");
    // Nothing else was asked of it: neither a rate that is met nor publishers alone change that.
    assert_eq!(run_against(Mischief::Nack(10), "-C 500 -s 100 --require-rate 1").verdict(), Verdict::Refused);
    assert_eq!(run_against(Mischief::Nack(10), "-C 500 -s 100 -y 0").verdict(), Verdict::Refused);
    let missed = run_against(Mischief::Nack(2), "--rate 500 -z 2 -s 100 --require-rate 400");
    assert_eq!((missed.verdict(), missed.missed.len()), (Verdict::Failed, 2), "{:?}", missed.missed);
    // Of several rates, none of which half was refused is held.
    let steps = run_against(Mischief::Nack(2), "-vr 100:1 -vr 200:1 -z 2 -s 100 -y 0");
    assert_eq!(steps.held_rate(), None, "{:?}", steps.at_rates);
    // A page says so in its first line, on its tiles and in its table; one of an older file too.
    let text = format!("{json}\n").replacen('{', r#"{"type":"run","#, 1);
    let older = text
        .replace(r#""was_refused":true,"#, "")
        .replace(r#"["the broker refused 50 of 500 messages (basic.nack)"]"#, "[]");
    assert!(!older.contains("was_refused") && older.contains(r#""missed":[]"#), "{older}");
    for text in [text, older] {
        let page = bench::report::html("x", &bench::record::read_lines("f", &text).unwrap(), "");
        for told in [
            " did not take everything: the broker refused 50 of 500 messages (basic.nack).",
            "450 received, 50 refused",
            "<td>refused</td>",
            "<td>refused (basic.nack)</td>",
        ] {
            assert!(page.contains(told), "{told} is not in {page}");
        }
    }
}

#[test]
fn a_load_that_is_over_within_an_interval_has_the_rate_of_its_time() {
    let recorded = recorded(Mischief::None, "-C 500 -s 100");
    let [load, drain, ..] = &recorded.intervals[..] else { panic!("{:?}", recorded.intervals) };
    assert_eq!((load.phase.as_str(), drain.phase.as_str(), drain.at_s), ("load", "drain", 1.0));
    assert!((load.at_s - recorded.run.seconds).abs() < 1e-9 && load.at_s < 0.9, "{load:?}");
    assert!((load.published_per_s - recorded.run.published_per_s).abs() < 1e-6, "{load:?}");
    let received = load.received_per_s * load.at_s + drain.received_per_s * (1.0 - load.at_s);
    assert!((received - 500.0).abs() < 1e-6, "{received}");
    // What is warmed up with is whole intervals.
    let warm = recorded_by(&format!(
        "--uri amqp://127.0.0.1:{} -u q -c 100 --rate 1000 --interval 2 --warmup 1 -z 4",
        start(Mischief::None)
    ))
    .run;
    assert!((warm.seconds - 2.0).abs() < 1e-9 && (warm.published_per_s - 1000.0).abs() < 30.0, "{warm:?}");
}

#[test]
fn a_second_of_standstill_shows_in_the_open_loop_and_hides_in_the_closed_one() {
    let stall = Mischief::Stall(1000, Duration::from_secs(1));
    // 3 s at 1000 a second: a third of all messages fell due while nothing moved, and there is time
    // left to send them.
    let open = run_against(stall, "--rate 1000 -z 3 -s 100");
    let f = open.end_to_end.unwrap().figures;
    assert!(f.p99_ms > 800.0 && f.p999_ms > 900.0, "open loop: {f:?}");
    assert!(f.p75_ms > 100.0, "those that fell due in the standstill are late by what was left of it: {f:?}");
    let closed = run_against(stall, "--rate 1000 -z 3 -s 100 --closed-loop");
    let f = closed.end_to_end.unwrap().figures;
    assert!(f.max_ms > 900.0, "closed loop: {f:?}");
    assert!(closed.published_per_s < 750.0, "a closed loop waits with its broker: {}", closed.published_per_s);
}

#[test]
fn a_cut_connection_comes_back_and_what_was_not_answered_is_not_called_lost() {
    let run = run_against(Mischief::Cut(500), "-C 1000 -s 100 --connection-recovery-interval 0.1");
    let c = &run.correctness;
    assert_eq!((run.connections_lost, c.published, c.lost), (1, 1000, Some(0)));
    assert!(c.unanswered >= 1 && c.unanswered <= 100, "{c:?}");
    assert_eq!(c.confirmed + c.unanswered, 1000);
    let run = run_against(Mischief::Cut(500), "-C 1000 -s 100 --disable-connection-recovery");
    assert!(run.missed[0].starts_with("a connection was lost"), "{:?}", run.missed);
}

#[test]
fn a_closed_channel_ends_the_run_with_the_brokers_words() {
    let run = run_against(Mischief::CloseChannel, "-C 10 -s 100");
    assert!(run.missed[0].contains("404 NOT_FOUND - no such thing"), "{:?}", run.missed);
}

#[test]
fn a_broker_that_holds_publishers_back_is_named_with_its_reason_in_every_interval_of_it() {
    let recorded = recorded(Mischief::Block(500, Duration::from_millis(2500)), "--rate 1000 -z 5 -s 100");
    let held = recorded.run.held_back.clone().unwrap();
    assert!(held.seconds > 2.4 && held.seconds < 5.0 && held.times == 1, "{held:?}");
    assert_eq!(held.reasons, ["low on disk"]);
    // It lasted through at least one whole interval, in which nothing but this explains the zeros.
    let whole = recorded.intervals.iter().find(|i| i.held_back_s > 0.95).unwrap();
    let line = bench::screen::line(whole);
    assert!(line.contains("held back by the broker for 1.0 s: low on disk"), "{line}");
    let summary = bench::screen::summary(&recorded.run);
    assert!(summary.contains("trouble           held back by the broker for ") && summary.contains("low on disk"));
    let json = serde_json::to_string(whole).unwrap();
    assert!(json.contains(r#""held_back_why":["low on disk"]"#), "{json}");
    let book = bench::record::Book { runs: vec![recorded], figures: Vec::new() };
    let page = bench::report::html("x", &book, "");
    assert!(page.contains("<p>held back by the broker for ") && page.contains("<td>held back by the broker, s</td>"));
}

#[test]
fn what_a_broker_says_before_the_load_starts_is_heard() {
    let run = run_against(Mischief::BlockAtOnce(Duration::from_secs(4)), "--rate 1000 -z 6 -s 100");
    let held = run.held_back.unwrap();
    assert!(held.seconds > 0.0 && held.reasons == ["low on disk"], "{held:?}");
    assert_eq!(run.correctness.received, run.correctness.published);
}

#[test]
fn a_broker_that_stops_reading_is_told_apart_from_one_that_says_so() {
    let run = run_against(Mischief::Stall(10, Duration::from_secs(4)), "-C 120 -s 500000");
    let held = run.held_back.unwrap();
    assert!(held.seconds > 0.5 && held.reasons[0].contains("stopped reading"), "{held:?}");
}

#[test]
fn a_run_that_was_interrupted_before_its_end_says_so_and_one_without_an_end_is_judged() {
    let interrupted = |line: &str| {
        let text = format!("--uri amqp://127.0.0.1:{} -u q --confirm 100 --rate 100 {line}", start(Mischief::None));
        let options = run_of(&words_of(&text)).unwrap();
        let context = Context::default();
        let interrupted = std::sync::Arc::clone(&context.interrupted);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        run(&options, &context, &mut []).unwrap().run.missed
    };
    let missed = interrupted("-z 600");
    assert!(missed.len() == 1 && missed[0].starts_with("interrupted after "), "{missed:?}");
    assert!(interrupted("").is_empty());
}

#[test]
fn a_broker_that_drowns_is_not_called_passed_also_when_it_is_drained_in_the_end() {
    let recorded = recorded(Mischief::Slow(Duration::from_millis(1)), "--rate 1800 -z 4 -s 100 --drain-timeout 60");
    let run = &recorded.run;
    assert_eq!((run.verdict(), run.correctness.left_in_queues), (Verdict::BacklogGrew, Some(0)), "{:?}", run.missed);
    assert!(
        run.missed.len() == 1 && run.backlog_grew && run.missed[0].contains(" that were sent were received, "),
        "{:?}",
        run.missed
    );
    let backlogs: Vec<u64> =
        recorded.intervals.iter().filter(|i| i.phase == "load").map(|i| i.backlog.unwrap()).collect();
    assert!(backlogs.windows(2).all(|pair| pair[0] < pair[1]), "{backlogs:?}");
    assert_eq!(recorded.intervals.last().unwrap().backlog, Some(0), "and drained");
    assert_eq!(run_against(Mischief::None, "--rate 2000 -z 4 -s 100").verdict(), Verdict::Passed);
}

#[test]
fn a_rate_that_the_window_of_confirms_keeps_from_being_sent_is_not_called_passed() {
    let line = "--rate 5M -s 100 -z 3";
    let recorded = recorded(Mischief::None, line);
    let run = &recorded.run;
    assert_eq!(run.verdict(), Verdict::BacklogGrew, "{:?}", run.missed);
    assert!(
        run.missed[0].contains(" of 5,000,000 messages a second that were asked for were sent, "),
        "{:?}",
        run.missed
    );
    let unsent: Vec<u64> = recorded.intervals.iter().filter_map(|i| i.unsent).collect();
    assert!(unsent.len() >= 3 && unsent.is_sorted() && unsent[0] > 1_000_000, "{unsent:?}");
    assert!(run.correctness.lost == Some(0) && run.notes.iter().any(|note| note.contains("due in the time of load")));
    // A closed loop owes nothing, and a rate that is held leaves nothing unsent.
    let closed = run_against(Mischief::None, &format!("{line} --closed-loop"));
    assert_eq!(closed.verdict(), Verdict::Passed, "{:?}", closed.missed);
    assert_eq!(run_against(Mischief::None, "--rate 500 -s 100 -z 2").verdict(), Verdict::Passed);
}

#[test]
fn consumers_that_hold_themselves_back_are_not_waited_for() {
    // All messages are handed over at once, and 200 a second are worked on: the rest would take a
    // minute and more.
    let recorded =
        recorded(Mischief::None, "--rate 4000 --consumer-rate 200 -z 4 -s 100 -ad false --drain-timeout 600");
    let run = &recorded.run;
    assert_eq!(run.verdict(), Verdict::BacklogGrew, "{:?}", run.missed);
    assert!(run.received_per_s.unwrap() < 400.0, "{:?}", run.received_per_s);
    assert!(recorded.intervals.last().unwrap().at_s < 60.0, "{:?}", recorded.intervals.last());
    // What is still on its way when the consumers go is not received, and goes back.
    let correctness = &run.correctness;
    assert!(correctness.published - correctness.received <= 100 && correctness.lost == Some(0), "{correctness:?}");
    assert!(correctness.left_in_queues > Some(10_000), "{correctness:?}");
    assert!(run.notes.iter().any(|note| note.contains("at most 200 messages a second")), "{:?}", run.notes);
}

#[test]
fn a_latency_belongs_to_the_size_that_was_sent_also_while_draining() {
    // Each second adds to the backlog, so that what is sent first is late by least; what is sent
    // last comes after the load, in seconds in which the steps of the sizes would begin again.
    let line = "--rate 1800 -z 4 -vs 100:1 -vs 1000:3 --drain-timeout 60";
    let run = run_against(Mischief::Slow(Duration::from_millis(1)), line);
    let [(100, small), (1000, large)] = &run.by_size[..] else { panic!("{:?}", run.by_size) };
    assert!(small.count.abs_diff(1800) < 20 && large.count.abs_diff(5400) < 60, "{small:?} {large:?}");
    // A few messages may fall due at the very end of the load, where the first step begins again.
    assert!(small.p99_ms < large.p99_ms / 2.0, "{small:?} {large:?}");
}

#[test]
fn a_latency_belongs_to_the_rate_at_which_it_was_due() {
    // 500 a second are held, and of 2,500 the broker delivers a thousand.
    let run =
        run_against(Mischief::Slow(Duration::from_millis(1)), "-vr 500:2 -vr 2500:2 -z 4 -s 100 --drain-timeout 60");
    let [(slow, first), (fast, second)] = &run.by_rate[..] else { panic!("{:?}", run.by_rate) };
    assert_eq!((*slow, *fast), (500.0, 2500.0));
    assert!(first.count.abs_diff(1000) < 20 && second.count.abs_diff(5000) < 60, "{first:?} {second:?}");
    assert!(first.p99_ms < second.p50_ms, "{first:?} {second:?}");
    let told = bench::screen::summary(&run);
    assert!(told.contains("at 500/s") && told.contains("at 2,500/s"), "{told}");
    assert!(told.contains("  held              up to 500 msg/s, not 2,500 ("), "{told}");
    assert!(run_against(Mischief::None, "--rate 500 -z 1 -s 100").by_rate.is_empty(), "one rate is all of it");
}

#[test]
fn a_campaign_names_what_each_broker_did_wrong_and_none_of_them_is_the_best() {
    let brokers = [
        ("sound", Mischief::None),
        ("stalls", Mischief::Stall(1000, Duration::from_secs(1))),
        ("drowns", Mischief::Slow(Duration::from_millis(1))),
        ("loses", Mischief::Lose(100)),
        ("doubles", Mischief::Duplicate(100, false)),
        ("reorders", Mischief::Swap(100)),
        ("garbles", Mischief::Corrupt(100)),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.toml");
    let mut text = "title = \"Ways of being wrong\"\nseconds = 3\n".to_owned();
    for (name, mischief) in brokers {
        let uri = format!("amqp://127.0.0.1:{}", start(mischief));
        let commands = "version = \"echo 1\"\nstart = \"true\"\nstop = \"true\"";
        text.push_str(&format!("[[broker]]\nname = \"{name}\"\nuri = \"{uri}\"\n{commands}\n"));
    }
    let bench = "-u q -c 1000 -s 100 -r 1800 -z {seconds} --drain-timeout 30 --require-p99-ms 800";
    text.push_str(&format!("[[part]]\nname = \"one queue\"\nbench = \"{bench}\"\n"));
    std::fs::write(&file, text).unwrap();
    let words = [file.display().to_string()];
    let ended = bench::campaign::campaign(&words, &Context::default()).unwrap();
    assert_eq!(ended, bench::command::Ended::Missed);
    let page = std::fs::read_to_string(folder.path().join("wrong/index.html")).unwrap();
    let said: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("<p>")).collect();
    for (who, what) in [
        ("stalls one queue failed: p99 is ", " ms, at most 800 ms is required"),
        ("drowns one queue failed: p99 is ", " that were sent were received, "),
        ("loses one queue failed: ", " lost."),
        ("doubles one queue failed: ", " duplicated and not flagged as redelivered."),
        ("reorders one queue failed: ", " reordered."),
        ("garbles one queue failed: 54 corrupt", "."),
    ] {
        assert!(said.iter().any(|line| line.starts_with(who) && line.contains(what)), "{who}: {said:?}");
    }
    assert!(page.contains("1 of 7 runs passed; failed in 6 of them"), "{said:?}");
    assert!(!said.iter().any(|line| line.starts_with("sound ")), "{said:?}");
    assert_eq!(page.matches(">best<").count(), 0, "the only one that passed is compared with nobody");
}

#[test]
fn intervals_add_up_to_the_run() {
    let recorded = recorded(Mischief::None, "--rate 2000 -z 3 -s 100");
    let sent: f64 = recorded.intervals.iter().map(|i| i.published_per_s).sum();
    assert!((sent - 6000.0).abs() < 30.0, "{sent}");
    assert!(recorded.run.open_loop && (recorded.run.published_per_s - 2000.0).abs() < 5.0);
}

#[test]
fn no_broker_is_an_error_and_no_verdict() {
    let words: Vec<String> = ["--uri", "amqp://127.0.0.1:1"].map(str::to_owned).to_vec();
    let options = run_of(&words).unwrap();
    let error = run(&options, &Context::default(), &mut []).unwrap_err().to_string();
    assert!(
        error.starts_with("no broker at 127.0.0.1:1") && error.ends_with("--nodes 1 starts one for the run"),
        "{error}"
    );
}
