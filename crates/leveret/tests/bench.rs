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
    assert!(text.ends_with("PASSED\n"), "{text}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("class=\"answer good\"") && page.contains("class=\"chart\""));
    assert!(std::fs::read_to_string(log).unwrap().contains("Tag=end-to-end,"));
    let compared = bench(&format!("report {json} {json}"));
    assert_eq!(compared.status.code(), Some(0));
    assert!(String::from_utf8(compared.stdout).unwrap().contains("| lost | 0 | 0 |"));
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
fn the_value_at_risk_stays_within_its_cap_when_the_broker_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (json, html, again) = (file("risk.json"), file("risk.html"), file("again.html"));
    let output = with_own_server(&format!("durability --figures risk --seconds 3 --json {json} --html {html}"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("the cap held"), "{text}");
    // The page can be made again from the file, with the figure and the command that makes both.
    let mut report = Command::new(env!("CARGO_BIN_EXE_leveret"));
    report.args(["bench", "report", &json, "--html", &again, "--title", "Durability against latency"]);
    assert_eq!(report.env_clear().output().unwrap().status.code(), Some(0));
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(std::fs::read_to_string(again).unwrap(), page);
    assert!(page.contains("The cap held.") && page.contains("<pre>leveret bench durability --figures risk"), "{page}");
}
