//! `leveret bench` as a person runs it: against a server of its own, to an exit code.
//!
//! Invariant: 0 is said only when every message came back and everything required was met.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::{Command, Output};

fn bench(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leveret")).arg("bench").args(line.split_whitespace()).env_clear().output().unwrap()
}

/// A server of the run's own, without limits: the words that start it.
fn with_own_server(line: &str) -> Output {
    let server = format!("{} server --data-dir {{dir}} --amqp 127.0.0.1:{{port}}", env!("CARGO_BIN_EXE_leveret"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    command.arg("bench").args(line.split_whitespace()).args(["--broker", &server]);
    command.env_clear().output().unwrap()
}

#[test]
fn a_run_against_our_own_server_passes_and_leaves_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (json, html, log) = (file("run.json"), file("run.html"), file("run.hdr"));
    let line =
        format!("-x 2 -y 2 -qq -u q -c 100 -q 100 -A 10 -s 500 -C 2000 --json {json} --html {html} --hdr-log {log}");
    let output = with_own_server(&line);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("4,000 sent, 4,000 confirmed, 4,000 received, 0 left in queues"), "{text}");
    assert!(text.ends_with("PASSED: nothing lost, duplicated, reordered or corrupt\n"), "{text}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("class=\"answer good\"") && page.contains("class=\"chart\""));
    assert!(std::fs::read_to_string(&log).unwrap().contains("Tag=end-to-end,"));
    let one = file("one.html");
    assert_eq!(bench(&format!("report {json} --html {one}")).status.code(), Some(0));
    assert!(std::fs::read_to_string(one).unwrap().contains("<h1>Leveret under load</h1>"), "nothing is compared");
    let compared = bench(&format!("report {json} {json}"));
    assert_eq!(compared.status.code(), Some(0));
    let table = String::from_utf8(compared.stdout).unwrap();
    assert!(table.contains("| lost | 0 | 0 |") && table.contains("| Leveret (1) | Leveret (2) |"), "{table}");
    let other = bench(&format!("report {log}"));
    assert_eq!(other.status.code(), Some(2));
    let told = String::from_utf8(other.stderr).unwrap();
    assert!(told.contains("run.hdr is no result file of `leveret bench`: --json FILE makes one of a run"), "{told}");
}

#[test]
fn what_is_refused_or_arrives_nowhere_is_not_passed() {
    let full = "-qq -u full -qa x-max-length=10,x-overflow=reject-publish";
    for (line, code, told) in [
        (
            format!("--time 2 --rate 500 -c 10 -R 20 -q 1 --drain-timeout 3 {full}"),
            4,
            "\n  REFUSED: the broker refused ",
        ),
        (format!("--time 2 --rate 500 -c 10 -y 0 {full}"), 4, "\n  REFUSED: the broker refused 990 of 1,000 messages"),
        (
            "--time 2 --rate 200 -c 10 -sb -k nowhere".to_owned(),
            1,
            "\n  FAILED: none of 400 messages that were sent was received",
        ),
        ("--time 2 -x 0 -y 1".to_owned(), 1, "\n  FAILED: nothing was received"),
    ] {
        let output = with_own_server(&line);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(told) && output.status.code() == Some(code), "{line}: {text}");
    }
}

#[test]
fn a_requirement_that_is_missed_is_exit_code_1() {
    let output = with_own_server("-C 100 -c 10 -qq -u q --require-rate 100000000");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("FAILED: ") && text.contains("100,000,000 are required"), "{text}");
}

#[test]
fn a_wrong_word_is_exit_code_2_and_no_broker_is_3() {
    let output = bench("--frobnicate 3");
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "leveret: unknown option --frobnicate; leveret bench --help lists all\n");
    let output = bench("--uri amqp://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(3));
    let output = bench("--help");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains("--multi-ack-every"));
}

#[test]
fn a_broker_pid_of_no_process_is_an_error_and_no_run() {
    // Above the highest number that a process can have.
    for line in ["-z 1 --broker-pid 4194305", "scenario s1 --seconds 1 --broker-pid 4194305"] {
        let output = bench(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("--broker-pid: \"4194305\" is no process on this machine"), "{told}");
    }
}

#[test]
fn a_backlog_that_grew_is_exit_code_4_and_a_signal_130() {
    // The consumer takes 200 of 2,000 a second.
    let output = with_own_server("--rate 2000 -z 3 -qq -u q -c 100 -q 10 --consumer-rate 200");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("\n  BACKLOG GREW: ") && text.contains(" waited at the end of the load"), "{text}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    command.args("bench --rate 100 -z 600 -qq -u q -c 100 --broker".split_whitespace());
    command.arg("{leveret} server --data-dir {dir} --amqp 127.0.0.1:{port} --management none");
    let (code, text) = interrupted(command, |line| line.contains(" load "), rustix::process::Signal::INT);
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("\n  INTERRUPTED: interrupted after "), "{text}");
}

#[test]
fn the_value_at_risk_stays_within_its_cap_when_the_broker_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (json, html, again) = (file("risk.json"), file("risk.html"), file("again.html"));
    let output =
        with_own_server(&format!("durability --figures risk --seconds 1 --rate 8000 --json {json} --html {html}"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for told in ["the cap held", "8,000 msg/s of 8,000 asked for", "killed with SIGKILL after 0.5 s"] {
        assert!(text.contains(told), "{told} is not in {text}");
    }
    // The page can be made again from the file, with the figure and the command that makes both.
    let mut report = Command::new(env!("CARGO_BIN_EXE_leveret"));
    report.args(["bench", "report", &json, "--html", &again, "--title", "Durability against latency"]);
    assert_eq!(report.env_clear().output().unwrap().status.code(), Some(0));
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(std::fs::read_to_string(again).unwrap(), page);
    assert!(page.contains("The cap held.") && page.contains("<pre>leveret bench durability --figures risk"), "{page}");
}

/// A campaign of two runs on this program's own broker, and one on a broker that does not start.
const CAMPAIGN: &str = r#"
title = "Two sizes"
about = "A campaign of the tests."
[[broker]]
name = "Leveret"
[[broker]]
name = "Hare"
command = "cat /nonexistent/{port}"
version = "echo 1"
[[part]]
name = "fast"
about = "As fast as it goes."
bench = "-x 1 -y 1 -qq -u q -c 100 -q 100 -s {size} -z 1"
with = { size = [100, 1000] }
brokers = ["Leveret"]
[[part]]
name = "no broker"
bench = "-z 1"
brokers = ["Hare"]
"#;

#[test]
fn a_campaign_goes_on_where_it_was_and_tells_what_could_not_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.toml");
    std::fs::write(&file, CAMPAIGN).unwrap();
    let line = format!("campaign {}", file.display());
    let told = |output: Output| (output.status.code(), String::from_utf8(output.stdout).unwrap());
    let (code, text) = told(bench(&format!("{line} --dry-run")));
    assert!(code == Some(0) && text.contains("1 s  fast, size 100, Leveret: leveret bench -x 1"), "{text}");
    assert!(text.ends_with("3 runs, 0 of them done; the others take about 15 s\n"), "{text}");
    assert!(!folder.path().join("two").exists(), "a dry run writes nothing");
    let (code, text) = told(bench(&line));
    assert!(code == Some(1) && text.contains("not made: no broker, Hare: starting cat"), "{code:?} {text}");
    let out = folder.path().join("two");
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    for part in ["fast, size 1,000", "A campaign of the tests.", "Could not be measured: no broker, Hare", "As fast as"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.contains(" runs passed") && page.contains("class=\"chart\""));
    let of = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    let (first, second) = (of("fast-size-100-leveret.jsonl"), of("fast-size-1000-leveret.jsonl"));
    // One is gone, another was cut off by a crash in an older form: both are made again, the third
    // stays.
    std::fs::remove_file(out.join("fast-size-100-leveret.jsonl")).unwrap();
    let (_, text) = told(bench(&line));
    assert!(text.contains("3 runs, 1 of them done") && text.contains("==== 2 of 3"), "{text}");
    assert_ne!(of("fast-size-100-leveret.jsonl"), first, "made again");
    assert_eq!(of("fast-size-1000-leveret.jsonl"), second, "and this was not");
    // The page is made anew without its runs, also of those that another build has made.
    let page = out.join("index.html");
    let of_another = first.replacen("\"tool\":\"", "\"tool\":\"9.", 1);
    std::fs::write(out.join("fast-size-100-leveret.jsonl"), of_another).unwrap();
    std::fs::remove_file(&page).unwrap();
    let (code, text) = told(bench(&format!("{line} --page")));
    assert!(code == Some(1) && text.contains("the page is") && !text.contains("===="), "{code:?} {text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("fast, size 100"));
    let (_, text) = told(bench(&format!("{line} --dry-run")));
    assert!(text.contains("3 runs, 1 of them done"), "and it is still to be measured by this one: {text}");
    // Other words are another run.
    std::fs::write(&file, CAMPAIGN.replace("-z 1\"\nwith", "-z 2\"\nwith")).unwrap();
    let (_, text) = told(bench(&format!("{line} --dry-run")));
    assert!(text.contains("3 runs, 0 of them done"), "{text}");
    // The files are those of any report.
    let names = [out.join("fast-size-100-leveret.jsonl"), out.join("fast-size-1000-leveret.jsonl")];
    let (code, text) = told(bench(&format!("report {} {}", names[0].display(), names[1].display())));
    assert!(code == Some(0) && text.contains("| lost | 0 | 0 |"), "{text}");
}

/// As Ctrl-C at a terminal does: all of the foreground's process group gets the signal.
fn interrupted(mut command: Command, is_time: impl Fn(&str) -> bool, signal: rustix::process::Signal) -> (i32, String) {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::CommandExt as _;
    command.process_group(0).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.lines().last().is_some_and(&is_time) {
        assert!(out.read_line(&mut text).unwrap() > 0, "it ended before its time: {text}");
    }
    rustix::process::kill_process_group(rustix::process::Pid::from_child(&child), signal).unwrap();
    out.read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code().unwrap(), text)
}

#[test]
fn ctrl_c_ends_a_campaign_with_what_was_measured_and_the_next_start_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (file, temp) = (folder.path().join("x.toml"), folder.path().join("tmp"));
    std::fs::create_dir(&temp).unwrap();
    let text = CAMPAIGN.replace("-s {size} -z 1\"", "-s 100 -z {z}\"").replace("size = [100, 1000]", "z = [1, 600]");
    // What the broker says last goes where it is not removed with its folder.
    let log = folder.path().join("broker.log");
    let server = format!("{} server --data-dir $1/data --amqp 127.0.0.1:$2", env!("CARGO_BIN_EXE_leveret"));
    let script = folder.path().join("server.sh");
    std::fs::write(&script, format!("exec {server} --management none >> {} 2>&1", log.display())).unwrap();
    let own =
        format!("name = \"Leveret\"\ncommand = \"sh {} {{dir}} {{port}}\"\nversion = \"echo 1\"", script.display());
    std::fs::write(&file, text.replacen("name = \"Leveret\"", &own, 1)).unwrap();
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
        command.args(["bench", "campaign"]).arg(&file).args(["--brokers", "Leveret"]);
        command.env("TMPDIR", &temp);
        command
    };
    // The second run is under way.
    let is_time = |line: &str| line.contains(" load ") && line.contains("2.0 s");
    let (code, text) = interrupted(command(), is_time, rustix::process::Signal::INT);
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("1 run; the page is") && text.contains("1 run is left; the same command goes on"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("x/index.html")).unwrap();
    assert!(page.contains("Not measured yet, 1 run: fast, z 600, Leveret."), "what was left out is named");
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("SIGTERM: stopping").count(), 2, "each broker was asked, and by us: {said}");
    assert!(!said.contains("SIGINT"), "{said}");
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 0, "no broker and no folder is left");
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace("600", "2")).unwrap();
    let output = command().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(0) && text.contains("2 runs, 1 of them done"), "{text}");
}

#[test]
fn a_signal_ends_a_scenario_whatever_was_to_come_after() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("s4.jsonl").display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    command.args(["bench", "scenario", "s4", "--messages", "1000000000", "--json", &json]);
    command.args(["--broker", "{leveret} server --data-dir {dir} --amqp 127.0.0.1:{port} --management none"]);
    let (code, text) = interrupted(command, |line| line.contains(" load "), rustix::process::Signal::TERM);
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("INTERRUPTED: interrupted after ") && text.contains("what was to be run after"), "{text}");
    assert!(!text.contains("came back"), "what was not run has missed nothing: {text}");
    let kept = std::fs::read_to_string(json).unwrap();
    assert_eq!(kept.matches("\"type\":\"run\"").count(), 1, "{kept}");
}

#[test]
fn a_campaign_that_was_killed_leaves_no_broker_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (file, temp) = (folder.path().join("x.toml"), folder.path().join("tmp"));
    std::fs::create_dir(&temp).unwrap();
    let text = CAMPAIGN.replace("[100, 1000]", "[100]").replace("-z 1\"\nwith", "-z 600\"\nwith");
    std::fs::write(&file, &text).unwrap();
    let command = |file: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
        command.args(["bench", "campaign"]).arg(file).env_clear().env("TMPDIR", &temp);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
        command
    };
    let mut killed = command(&file).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(killed.stdout.take().unwrap()));
    // The first interval of the load is over: its broker is up.
    lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("msg/s"))).unwrap().unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = |what: &str| {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let is_it = |pid: &std::fs::DirEntry| {
            let line = std::fs::read(pid.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(what)
        };
        all.filter(is_it).count()
    };
    let broker = format!("{}/leveret-bench-", temp.display());
    assert_eq!(left(&broker), 1, "its broker outlives it");
    // Who has just made its folder is left alone.
    std::thread::sleep(std::time::Duration::from_secs(6));
    std::fs::write(&file, text.replace("-z 600", "-z 1")).unwrap();
    assert_eq!(command(&file).output().unwrap().status.code(), Some(1));
    assert_eq!((left(&broker), std::fs::read_dir(&temp).unwrap().count()), (0, 0));
}
