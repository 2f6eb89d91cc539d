//! Runs against a load generator that is a formula: what is measured, skipped, resumed, and how
//! long it takes.
//!
//! Invariant: no test here waits for time; the generator below answers at once.
#![allow(clippy::unwrap_used, missing_docs)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sizing::input::Document;
use sizing::outcome::{Shown, outcomes};
use sizing::results::{Results, Step, Test, Tolerance};
use sizing::run::journal::Journal;
use sizing::run::load::{BenchProcess, LoadGenerator, measured};
use sizing::run::plan::{Plan, Workload};
use sizing::run::schedule::{Trial, left, seconds_left, trials, words};
use sizing::run::{Event, run};

const PLAN: &str = r#"
[requirement]
rate = 3000
p99_ms = 100
lose_node = true
backlog_rate = 2000

[workload]
queues = 10
publishers = 4
consumers = 8
work_us = 1000

[rising]
rates = [1000, 2000, 3000, 4000, 5000, 6000]
seconds = 10
stop_after_short = 2

[lose_broker]
rates = [1000, 3000]
seconds = 10

[slow_consumers]
rates = [1000, 2000]
consumers = [2, 3]

[[cluster]]
name = "3x2"
nodes = 3
machine = "small"
vcpus = 2
volume = "ssd"
uris = ["amqp://a", "amqp://b", "amqp://c"]
lose_command = ["true"]

[[cluster]]
name = "1x2"
nodes = 1
machine = "small"
vcpus = 2
volume = "ssd"
uris = ["amqp://d"]
"#;

fn plan() -> Plan {
    Plan::read(&Document::new("plan.toml", PLAN)).unwrap()
}

fn mistake(from: &str, to: &str) -> String {
    assert!(PLAN.contains(from), "{from}");
    Plan::read(&Document::new("plan.toml", &PLAN.replacen(from, to, 1))).unwrap_err().to_string()
}

/// A cluster with a top rate: below it all is well, above it messages pile up.
struct Formula {
    top: f64,
    /// Fails from this call on, as a generator does when it is killed.
    calls_left: usize,
    calls: Vec<(Test, f64)>,
}

impl Formula {
    fn of(top: f64) -> Formula {
        Formula { top, calls_left: usize::MAX, calls: Vec::new() }
    }
}

impl LoadGenerator for Formula {
    fn drive(
        &mut self,
        trial: &Trial,
        _: &Workload,
        _: &[String],
        watch: &mut dyn FnMut(f64) -> Result<(), String>,
    ) -> Result<Step, String> {
        if self.calls_left == 0 {
            return Err("killed".to_owned());
        }
        self.calls_left -= 1;
        for part in [0.0, 0.5, 1.0] {
            watch(trial.seconds() * part)?;
        }
        self.calls.push((trial.test, trial.target));
        let through = trial.intended().min(self.top);
        let load = (trial.intended() / self.top).min(0.999);
        let p50 = 1.0 + load / (1.0 - load);
        Ok(Step {
            seconds: trial.seconds(),
            published: through,
            consumed: through,
            p50_ms: Some(p50),
            p99_ms: Some(p50 * 3.0),
            confirm_p99_ms: Some(p50),
            backlog_end: Some(0),
            backlog_max: Some(10),
            lost: Some(0),
            duplicated: Some(0),
            ..Step::default()
        })
    }
}

fn go(path: &Path, plan: &Plan, generator: &mut Formula, events: &mut Vec<Event>) -> usize {
    let mut journal = Journal::open(path, plan, None).unwrap();
    run(plan, &mut journal, generator, &path.with_extension("work"), &mut |event| {
        events.push(event);
        ControlFlow::Continue(())
    })
    .unwrap()
}

fn read(path: &Path) -> Results {
    Results::read(&Document::open(path).unwrap(), Tolerance::Whole).unwrap()
}

#[test]
fn a_whole_run_measures_every_trial_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let (plan, mut events) = (plan(), Vec::new());
    let mut formula = Formula::of(3500.0);
    assert_eq!(go(&path, &plan, &mut formula, &mut events), 0);
    let results = read(&path);
    assert!(results.is_complete);
    assert!(left(&plan, &results).is_empty());
    // 6000 is not driven after 4000 and 5000 were missed; the second cluster has nobody to lose.
    let skipped: Vec<(&str, Test, f64)> =
        results.skipped.iter().map(|s| (s.cluster.as_str(), s.test, s.target)).collect();
    assert_eq!(
        skipped,
        [
            ("3x2", Test::Rising, 6000.0),
            ("1x2", Test::Rising, 6000.0),
            ("1x2", Test::LoseBroker, 1000.0),
            ("1x2", Test::LoseBroker, 3000.0)
        ]
    );
    let all = outcomes(&results, &plan.requirement);
    assert_eq!((all[0].held, all[0].short_of, all[0].top_rate), (Some(3000.0), Some(4000.0), 3500.0));
    assert_eq!((all[0].holds_rate, all[0].holds_p99, all[0].holds_loss), (Shown::Yes, Shown::Yes, Shown::Yes));
    assert_eq!((all[0].holds_backlog, all[1].holds_loss), (Shown::Yes, Shown::NotShown));
    let lefts = events.iter().filter_map(|event| match event {
        Event::Driving { left, elapsed, .. } if *elapsed == 0.0 => Some(*left),
        _ => None,
    });
    let lefts: Vec<f64> = lefts.collect();
    assert!(lefts.windows(2).all(|pair| pair[1] < pair[0]), "the time left shrinks from trial to trial: {lefts:?}");
}

#[test]
fn a_report_on_a_run_of_which_all_failed_says_that_measurements_may_have_failed_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let broken = BenchProcess { command: vec!["false".to_owned()], folder: folder.path().join("load") };
    let plan = plan();
    let (mut broken, mut journal) = (broken, Journal::open(&path, &plan, None).unwrap());
    let mut watch = |_| ControlFlow::Continue(());
    let failed = run(&plan, &mut journal, &mut broken, &path.with_extension("work"), &mut watch).unwrap();
    assert!(failed > 0);
    let document = Document::open(&path).unwrap();
    let told = Results::read(&document, Tolerance::Whole).unwrap_err().to_string();
    let what = "the run was interrupted, or measurements failed: there is no line of kind \"end\" and no measurement";
    let goes_on = "`sizing run` with the same plan goes on from here and tries again what failed";
    assert!(told.contains(&format!("{what}; {goes_on}, --partial uses")), "{told}");
    let partial = Results::read(&document, Tolerance::Partial).unwrap();
    let report = sizing::report::report(&partial, None, None, &plan.requirement).unwrap();
    assert!(report.notes.iter().any(|note| note.contains(what) && note.contains(goes_on)), "{:?}", report.notes);
    let next = report.answer.next.unwrap();
    assert!(
        next.contains("or measurements failed: the same `leveret sizing run` goes on, and tries those again."),
        "{next}"
    );
}

#[test]
fn a_run_that_stops_after_any_trial_goes_on_where_it_was() {
    let plan = plan();
    let whole = {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        go(&path, &plan, &mut Formula::of(3500.0), &mut Vec::new());
        read(&path)
    };
    for stop in 0..whole.steps.len() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let mut first = Formula { calls_left: stop, ..Formula::of(3500.0) };
        // What is decided by a miss before it comes out the same, so the first run must end where
        // it was killed.
        let mut journal = Journal::open(&path, &plan, None).unwrap();
        let mut is_killed = false;
        let mut watch = |event: Event| {
            is_killed |= matches!(event, Event::Failed { .. });
            ControlFlow::Continue(())
        };
        run(&plan, &mut journal, &mut first, &path.with_extension("work"), &mut watch).unwrap();
        assert!(is_killed, "{stop}");
        drop(journal);
        // And the kill leaves half a line behind.
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"kind\":\"step\",\"cluster\":\"3x2\",\"vol");
        std::fs::write(&path, text).unwrap();
        let mut second = Formula::of(3500.0);
        assert_eq!(go(&path, &plan, &mut second, &mut Vec::new()), 0);
        assert_eq!(second.calls.len() + stop, whole.steps.len(), "{stop}: nothing is measured twice");
        let again = read(&path);
        assert_eq!(outcomes(&again, &plan.requirement).len(), 2);
        assert_eq!((again.steps.len(), again.skipped.len()), (whole.steps.len(), whole.skipped.len()), "{stop}");
    }
}

#[test]
fn who_watches_can_stop_a_run_in_the_middle_of_a_trial() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let (plan, mut formula) = (plan(), Formula::of(3500.0));
    let mut journal = Journal::open(&path, &plan, None).unwrap();
    let mut watch = |event: Event| match event {
        Event::Driving { done: 3, elapsed, .. } if elapsed > 0.0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let error = run(&plan, &mut journal, &mut formula, &path.with_extension("work"), &mut watch).unwrap_err();
    assert!(error.starts_with("stopped; the same command"), "{error}");
    assert_eq!(formula.calls.len(), 3, "the fourth was under way and is not written");
    let partial = Results::read(&Document::open(&path).unwrap(), Tolerance::Partial).unwrap();
    assert_eq!((partial.steps.len(), partial.is_complete), (3, false));
}

#[test]
fn another_plan_or_a_foreign_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    drop(Journal::open(&path, &plan(), None).unwrap());
    drop(Journal::open(&path, &plan(), None).unwrap());
    let other = Plan { time_scale: 0.5, ..plan() };
    assert!(
        Journal::open(&path, &other, None)
            .unwrap_err()
            .contains("r.jsonl:1: plan: this file was begun with another plan")
    );
    std::fs::write(&path, sizing::study::RESULTS).unwrap();
    assert!(Journal::open(&path, &plan(), None).unwrap_err().contains("was not written by a run"));
    std::fs::write(&path, "hello\n").unwrap();
    assert!(Journal::open(&path, &plan(), None).unwrap_err().contains("r.jsonl:1: not JSON"));
}

#[test]
fn mistakes_of_a_plan_are_named_with_line_and_field() {
    assert_eq!(mistake("rate = 3000", "rate = -3000"), "plan.toml:3: rate: must not be negative, and is -3000");
    assert!(mistake("p99_ms = 100\n", "").contains("p99_ms: missing field"));
    assert_eq!(
        mistake("rates = [1000, 2000, 3000, 4000, 5000, 6000]", "rates = [1000, 500]"),
        "plan.toml:15: rates: must rise, and 500 comes after 1000"
    );
    assert_eq!(
        mistake("consumers = [2, 3]", "consumers = [2]"),
        "plan.toml:25: consumers: must be 2 counts, one for each rate"
    );
    assert_eq!(mistake("queues = 10", "queues = 0"), "plan.toml:9: queues: must be at least 1");
    assert!(mistake("queues = 10", "quues = 10").starts_with("plan.toml:9: quues: unknown field"));
    assert!(mistake("uris = [\"amqp://d\"]", "").contains("uris: give either"));
    assert!(mistake("name = \"1x2\"", "name = \"3x2\"").contains("there twice"));
    let local = "[cluster.local]\nport = 5700\ncommand = [\"broker\", \"{port}\"]";
    assert!(
        mistake("uris = [\"amqp://a\", \"amqp://b\", \"amqp://c\"]\nlose_command = [\"true\"]", local)
            .contains("join_command: is missing: without it, or {peers} in `command`")
    );
    // What would be without effect is refused.
    assert_eq!(
        mistake("rates = [1000, 2000]\n", ""),
        "plan.toml:24: consumers: needs `rates`: there is one count for each"
    );
    let local = "lose_command = [\"true\"]\n[cluster.local]\nport = 5700";
    assert!(
        mistake("uris = [\"amqp://d\"]", local).starts_with("plan.toml:42: lose_command: is for clusters given by")
    );
}

/// Stands in for nodes that need one another: each answers once the folders of all are there.
const NODE: &str = "import os,socket,sys,time
port,peers,data=int(sys.argv[1]),sys.argv[2].split(','),sys.argv[3]
assert len(open(sys.argv[4]).read())>=16
open(data+'/up','w')
while not all(os.path.exists(os.path.dirname(data)+'/node-%d/up'%n) for n in range(len(peers))): time.sleep(0.01)
s=socket.create_server(('127.0.0.1',port))
while True:
  c=s.accept()[0]; c.recv(8); c.sendall(bytes([1])); c.close()";

#[test]
fn local_nodes_that_know_each_other_are_started_together_and_one_is_lost_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("node.py");
    std::fs::write(&script, NODE).unwrap();
    let port = (20_000..).step_by(16).find(|port| (0..6).all(|more| is_free(port + more))).unwrap();
    let command = format!("[\"python3\", {script:?}, \"{{port}}\", \"{{peers}}\", \"{{data}}\", \"{{secret}}\"]");
    let local = format!("[cluster.local]\nport = {port}\ncommand = {command}");
    let text = PLAN.replacen("uris = [\"amqp://a\", \"amqp://b\", \"amqp://c\"]\nlose_command = [\"true\"]", &local, 1);
    assert_ne!(text, PLAN);
    let plan = Plan::read(&Document::new("plan.toml", &text)).unwrap();
    let path = folder.path().join("r.jsonl");
    let mut events = Vec::new();
    assert_eq!(go(&path, &plan, &mut Formula::of(3500.0), &mut events), 0, "{events:?}");
    let results = Results::read(&Document::open(&path).unwrap(), Tolerance::Whole).unwrap();
    assert!(results.steps.iter().any(|step| step.test == Test::LoseBroker && step.cluster == "3x2"), "one was lost");
}

fn is_free(port: u16) -> bool {
    std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[test]
fn the_plans_of_the_examples_can_be_read_and_last_as_long_as_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/sizing");
    let read = |name: &str| Plan::read(&Document::open(&folder.join(name)).unwrap()).unwrap();
    read("plan-rabbitmq.toml");
    let local = read("plan-local.toml");
    assert!(local.series[0].seconds == 6.0 && local.series[0].test == Test::Rising);
    // What is published was measured by this plan: a run would go on with it.
    let results = Results::read(&Document::open(&folder.join("local.jsonl")).unwrap(), Tolerance::Whole).unwrap();
    assert_eq!(results.header.plan, Some(local.fingerprint()));
}

#[test]
fn cpus_that_contradict_each_other_are_refused() {
    let local = "[cluster.local]\nport = 5700\ncpu = 0.5";
    let said = mistake("uris = [\"amqp://d\"]", local);
    assert_eq!(
        said,
        "plan.toml:40: vcpus: 2 contradicts cpu = 0.5 of this cluster's [cluster.local], which is what a node gets"
    );
    let other = "vcpus = 3\nvolume = \"ssd\"\nuris = [\"amqp://d\"]";
    let said = mistake("vcpus = 2\nvolume = \"ssd\"\nuris = [\"amqp://d\"]", other);
    assert_eq!(said, "plan.toml:40: vcpus: 3 contradicts cluster \"3x2\", where machine \"small\" has vcpus = 2");
}

#[test]
fn seconds_that_are_written_are_meant_and_the_scale_is_for_the_studys_own() {
    let scaled = |text: &str| Plan::read(&Document::new("p", &format!("time_scale = 0.01\n{text}"))).unwrap();
    let seconds = |plan: &Plan, test: Test| trials(plan).iter().find(|trial| trial.test == test).unwrap().seconds();
    let written = scaled(PLAN);
    assert_eq!((seconds(&written, Test::Rising), seconds(&written, Test::LoseBroker)), (10.0, 10.0));
    assert_eq!(seconds(&written, Test::SlowConsumers), 60.0, "a hundred minutes");
    assert_eq!(seconds(&scaled(&PLAN.replace("seconds = 10", "")), Test::Rising), 18.0, "half an hour");
}

#[test]
fn what_cannot_be_measured_takes_no_time() {
    let (plan, of) = (plan(), |test: Test, trial: &&Trial| trial.test == test);
    let losses: Vec<Trial> = trials(&plan).iter().filter(|trial| of(Test::LoseBroker, trial)).cloned().collect();
    // Two of a cluster that has a command, and two of one that has none.
    assert_eq!(losses.len(), 4);
    assert_eq!(seconds_left(&plan, &losses, &[0.0]), 20.0);
}

#[test]
fn the_time_that_is_left_knows_what_did_not_come_up_and_what_is_not_driven_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let local = "[cluster.local]\nport = 1\ncommand = [\"false\", \"{peers}\"]";
    let three = "uris = [\"amqp://a\", \"amqp://b\", \"amqp://c\"]\nlose_command = [\"true\"]";
    let plan = Plan::read(&Document::new("plan.toml", &PLAN.replacen(three, local, 1))).unwrap();
    let mut events = Vec::new();
    assert_eq!(go(&folder.path().join("r.jsonl"), &plan, &mut Formula::of(1500.0), &mut events), 10);
    let begun = events.iter().filter_map(|event| match event {
        Event::Driving { done, all, left, elapsed, .. } if *elapsed == 0.0 => Some((*done, *all, left.round())),
        _ => None,
    });
    let begun: Vec<(usize, usize, f64)> = begun.collect();
    // Ten trials of the cluster that did not come up are behind it, and the other has no node to lose: six
    // targets, and two tests of a hundred minutes. Nothing is left of the targets above two misses.
    assert_eq!(begun[0], (10, 18, 12_071.0), "{begun:?}");
    assert_eq!(begun[3..], [(16, 18, 12_000.0), (17, 18, 6000.0)], "{begun:?}");
}

#[test]
fn the_studys_tests_are_the_default() {
    let text = "[requirement]\nrate = 30000\np99_ms = 1000\n[rising]\n[slow_consumers]\n[publisher_peak]\n\
                [[cluster]]\nname = \"a\"\nnodes = 1\nmachine = \"m\"\nvcpus = 2\nvolume = \"v\"\nuris = [\"amqp://x\"]\n";
    let plan = Plan::read(&Document::new("p", text)).unwrap();
    let trials = trials(&plan);
    assert_eq!(trials.len(), 15 + 3 + 3);
    assert_eq!((trials[0].target, trials[1].target, trials[14].target), (1000.0, 5000.0, 70_000.0));
    // 10 ms of work: one consumer does 100 a second, a queue has 700, and a fifth more is there.
    assert_eq!((trials[14].consumers, trials[0].consumers), (100 * 9, 200));
    let slow = &trials[15];
    assert_eq!((slow.target, slow.consumers, slow.seconds()), (10_000.0, 200, 6000.0));
    assert_eq!(slow.work_us.iter().map(|(work, _)| *work).fold(0.0, f64::max), 30_000.0);
    let peak = &trials[20];
    assert_eq!((peak.target, peak.consumers, peak.seconds()), (30_000.0, 400, 5700.0));
    assert_eq!(peak.rate.iter().map(|(rate, _)| *rate).fold(0.0, f64::max), 40_000.0);
    assert!(peak.intended() > 30_000.0 && peak.intended() < 35_000.0);
    // Half an hour a step, and the overhead of each.
    assert_eq!(seconds_left(&plan, &trials[..2], &[]), 3603.0);
    assert_eq!(seconds_left(&plan, &trials[..2], &[2.0, 4.0]), 3606.0);
}

#[test]
fn the_words_of_a_trial_are_perftests() {
    let plan = plan();
    let all = trials(&plan);
    let line = |trial: &Trial| words(trial, &plan.workload, &["amqp://a".to_owned(), "amqp://b".to_owned()]).join(" ");
    assert_eq!(
        line(&all[0]),
        "--uris amqp://a,amqp://b --time 10 --flag persistent --qos 1000 --confirm 1000 --confirm-timeout -1 --connection-recovery-interval 0.2 --auto-delete false \
         --size 1024 --queue-pattern sizing-rising-1000-%d --queue-pattern-from 1 --queue-pattern-to 10 --queue-args x-queue-type=quorum \
         --producers 4 --consumers 10 --rate 250 --consumer-latency 1000"
    );
    let slow = all.iter().find(|trial| trial.test == Test::SlowConsumers).unwrap();
    assert!(line(slow).contains("--variable-latency 1000:300 --variable-latency 1100:120"), "{}", line(slow));
}

#[test]
fn schedules_are_whole_seconds_and_whole_shares_however_short() {
    for (scale, rates) in [("0.0001", "[7, 100]"), ("0.003", "[300]"), ("0.01", "[1000, 12345]"), ("1.0", "[10000]")] {
        let peak = format!("[publisher_peak]\nrates = {rates}\n[[cluster]]");
        let text = format!("time_scale = {scale}\n{}", PLAN.replacen("[[cluster]]", &peak, 1));
        let plan = Plan::read(&Document::new("p", &text)).unwrap();
        for trial in &trials(&plan) {
            let share = |rate: f64| rate / plan.workload.publishers as f64;
            let is_whole = |value: f64| value.fract() == 0.0 && value >= 1.0;
            assert!(trial.rate.iter().all(|(_, seconds)| is_whole(*seconds)), "{trial:?}");
            assert!(trial.work_us.iter().all(|(work, seconds)| is_whole(*work) && is_whole(*seconds)), "{trial:?}");
            if trial.test == Test::PublisherPeak {
                assert!(trial.rate.iter().all(|(rate, _)| is_whole(share(*rate))), "{trial:?}");
            }
            assert!((trial.seconds() - trial.work_us.iter().map(|(_, seconds)| seconds).sum::<f64>()).abs() < 1e-9);
        }
    }
}

const LINES: &str = concat!(
    "{\"type\":\"interval\",\"at_s\":1.0,\"published_per_s\":100.0,\"received_per_s\":40.0}\n",
    "{\"type\":\"interval\",\"at_s\":2.0,\"published_per_s\":100.0,\"received_per_s\":150.0}\n",
    "{\"type\":\"run\",\"seconds\":2.0,\"published_per_s\":100.0,\"received_per_s\":95.0,\"end_to_end\":{\"figures\":",
    "{\"count\":190,\"p50_ms\":1.0,\"p75_ms\":2.0,\"p95_ms\":3.0,\"p99_ms\":4.0,\"p999_ms\":5.0}},",
    "\"correctness\":{\"left_in_queues\":10,\"lost\":0,\"duplicated_unflagged\":0}}\n"
);

#[test]
fn the_generators_lines_become_a_measurement() {
    let found = measured(LINES).unwrap();
    assert_eq!((found.published, found.consumed), (100.0, 95.0));
    let percentiles = [found.p50_ms, found.p75_ms, found.p95_ms, found.p99_ms, found.p999_ms];
    assert_eq!(percentiles, [1.0, 2.0, 3.0, 4.0, 5.0].map(Some));
    assert_eq!((found.backlog_max, found.backlog_end, found.lost), (Some(60), Some(10), Some(0)));
    // What was refused, or came back, neither waits nor was got rid of.
    let refused = LINES
        .replacen("\"at_s\":1.0", "\"at_s\":1.0,\"nacked\":40,\"returned\":10", 1)
        .replace("\"correctness\":{", "\"correctness\":{\"published\":200,\"nacked\":40,\"returned\":10,");
    let found = measured(&refused).unwrap();
    assert_eq!((found.published, found.backlog_max), (75.0, Some(10)));
    let cut = LINES.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    assert_eq!(measured(&cut).unwrap_err(), "wrote no summary of the run");
    assert!(measured("{\"type\":\"run\"").unwrap_err().contains("line 1 that is not JSON"));
}

/// A shell script in place of a load generator: it writes `lines` to the file named by --json, says
/// something and ends with `code`.
fn script(folder: &Path, lines: &str, code: i32) -> BenchProcess {
    let (path, data) = (folder.join("generator.sh"), folder.join("lines"));
    std::fs::write(&data, lines).unwrap();
    let text = format!(
        "while [ $# -gt 0 ]; do [ \"$1\" = --json ] && cat '{}' > \"$2\"; shift; done; echo 'no route to broker' >&2; exit {code}\n",
        data.display()
    );
    std::fs::write(&path, text).unwrap();
    BenchProcess { command: vec!["sh".to_owned(), path.display().to_string()], folder: folder.join("files") }
}

#[test]
fn a_process_is_a_load_generator_and_its_failure_is_told_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan();
    let trial = &trials(&plan)[0];
    let mut quiet = |_: f64| Ok(());
    let uris = ["amqp://a".to_owned()];
    let found = script(folder.path(), LINES, 1).drive(trial, &plan.workload, &uris, &mut quiet).unwrap();
    assert_eq!(found.published, 100.0, "an exit code is no reason to throw a measurement away");
    let error = script(folder.path(), "", 1).drive(trial, &plan.workload, &uris, &mut quiet).unwrap_err();
    assert!(error.contains("wrote no summary") && error.ends_with("no route to broker"), "{error}");
    let mut nobody =
        BenchProcess { command: vec!["/no/such/program".to_owned()], folder: PathBuf::from(folder.path()) };
    let error = nobody.drive(trial, &plan.workload, &uris, &mut quiet).unwrap_err();
    assert!(error.starts_with("/no/such/program cannot be started"), "{error}");
}

#[test]
fn a_local_node_that_does_not_start_is_told_with_its_log_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let local = "[cluster.local]\nport = 1\ncommand = [\"false\"]";
    let text = PLAN.replacen("uris = [\"amqp://d\"]", local, 1).replacen("1x2", "broken", 1);
    let plan = Plan::read(&Document::new("plan.toml", &text)).unwrap();
    let path = folder.path().join("r.jsonl");
    let mut events = Vec::new();
    let failed = go(&path, &plan, &mut Formula::of(3500.0), &mut events);
    assert_eq!(failed, 10);
    let why = events.iter().find_map(|event| match event {
        Event::Failed { why, .. } => Some(why.clone()),
        _ => None,
    });
    let why = why.unwrap();
    assert!(why.starts_with("node 0: starting false: it ended with exit status: 1; its last words: "), "{why}");
    let kept = why.rsplit_once("its log is in ").unwrap().1;
    assert!(Path::new(kept).join("broker.log").exists(), "{why}");
    let partial = Results::read(&Document::open(&path).unwrap(), Tolerance::Partial).unwrap();
    assert!(!partial.is_complete && partial.steps.len() == 9, "{}", partial.steps.len());
}

#[test]
fn another_broker_on_a_nodes_port_is_not_taken_for_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let local = format!("[cluster.local]\nport = {port}\ncommand = [\"sleep\", \"60\"]");
    let text = PLAN.replacen("uris = [\"amqp://d\"]", &local, 1).replacen("1x2", "taken", 1);
    let plan = Plan::read(&Document::new("plan.toml", &text)).unwrap();
    let mut events = Vec::new();
    go(&folder.path().join("r.jsonl"), &plan, &mut Formula::of(3500.0), &mut events);
    let told = events.iter().any(|event| match event {
        Event::Failed { why, .. } => why.contains(&format!("port {port} is taken")),
        _ => false,
    });
    assert!(told, "nobody said whose port it is");
}

#[test]
fn a_load_generator_that_is_not_there_is_told_before_any_cluster_is_brought_up() {
    let of = |program: &str| BenchProcess { command: vec![program.to_owned()], folder: PathBuf::new() }.check();
    assert_eq!((of("sh"), of("/bin/sh")), (Ok(()), Ok(())));
    for absent in ["no-such-generator", "/etc/passwd", "/bin"] {
        let told = of(absent).unwrap_err();
        assert!(told.contains(absent) && told.contains("no program that can be started"), "{told}");
    }
}
