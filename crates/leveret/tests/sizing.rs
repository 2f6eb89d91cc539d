//! `leveret sizing` as a person meets it: the study, mistakes in files, and a run against a broker
//! that it starts itself.
//!
//! Invariant: no test asks how fast this machine is; the run below only has to measure, stop, go on
//! and be reported.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn sizing(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    // Of this process's environment only what finds `sh`: a broker takes every LEVERET_ variable
    // for a setting of its own.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.arg("sizing").args(words).current_dir(folder).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error of a call that was refused.
fn refused(output: &Output) -> String {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_study_is_reported_and_predicted_without_any_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = printed(&sizing(&["report", "--study", "--html", "r.html"], folder.path()));
    assert!(text.contains("7 x 489 is 3423, as the other clusters pay, not 4123"), "{text}");
    assert!(text.starts_with("7x16/gp2 at $4,123 a month held 30,000 msg/s, with "), "{text}");
    assert!(text.contains("Not shown of it: p99 within 1,000 ms; one node lost."), "{text}");
    let page = std::fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("class=\"chart\""));
    let other =
        printed(&sizing(&["report", "--study", "--backlog-rate", "0", "--lose-node", "no", "--json"], folder.path()));
    let other: serde_json::Value = serde_json::from_str(&other).unwrap();
    // Of 7x8/gp2, which is cheaper, the study does not say how late it is.
    assert_eq!(other["recommendation"]["chosen"]["name"], "5x8/st1");
    assert_eq!(other["recommendation"]["open"][0]["name"], "7x8/gp2");
    let at = |rate| printed(&sizing(&["report", "--study", "--rate", rate, "--json"], folder.path()));
    assert_eq!(at("24k"), at("24000"));
    let text = printed(&sizing(&["predict", "--study", "--candidate", "9x16/gp2"], folder.path()));
    assert!(text.contains("9x16/gp2") && text.contains("inside of the 90 % band"), "{text}");
}

#[test]
fn mistakes_are_one_line_with_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let said = |words: &[&str]| refused(&sizing(words, folder.path()));
    write("cut.jsonl", "{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n{\"kind\":\"cluster\",\"nodes\":3");
    let error = said(&["report", "cut.jsonl"]);
    assert!(error.starts_with("leveret: cut.jsonl:2: nodes: the line ends in the middle: half-written"), "{error}");
    write("whole.jsonl", "{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n{\"kind\":\"end\"}\n");
    assert!(said(&["report", "whole.jsonl"]).starts_with("leveret: --rate is missing"));
    write("prices.toml", "[[volume]]\nname = \"v\"\nmonth = -3\n");
    let words = ["report", "whole.jsonl", "--prices", "prices.toml"];
    assert_eq!(said(&words), "leveret: prices.toml:3: month: must not be negative, and is -3\n");
    assert!(said(&["report", "nowhere.jsonl"]).starts_with("leveret: nowhere.jsonl: cannot be read"));
    assert!(said(&["report"]).contains("missing"));
    assert!(said(&["run", "nowhere.toml", "--results", "r"]).starts_with("leveret: nowhere.toml: cannot be read"));
}

fn plan(port: u16) -> String {
    format!(
        "[requirement]\nrate = 100\np99_ms = 10000\n[workload]\nqueues = 2\npublishers = 2\nconsumers = 4\nwork_us = 0\n\
         [rising]\nrates = [50, 100]\nseconds = 1\n[lose_broker]\nrates = [50]\nseconds = 1\n\
         [[cluster]]\nname = \"1x1\"\nnodes = 1\nmachine = \"m\"\nvcpus = 1\nvolume = \"v\"\n[cluster.local]\nport = {port}\n"
    )
}

#[test]
fn a_run_starts_a_broker_measures_it_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(folder.path().join("plan.toml"), plan(port)).unwrap();
    let outlook = printed(&sizing(&["run", "plan.toml", "--results", "r.jsonl", "--dry-run"], folder.path()));
    // The one that loses a node cannot be made, and takes no time.
    assert!(outlook.ends_with("2 measurements, 5 s in all; bringing clusters up comes on top\n"), "{outlook}");
    assert!(outlook.contains("lose-broker at 50 msg/s: skipped: a cluster of one node has none to lose"), "{outlook}");
    assert!(!folder.path().join("r.jsonl").exists());

    let run = || sizing(&["run", "plan.toml", "--results", "r.jsonl"], folder.path());
    let output = run();
    let progress = String::from_utf8(output.stderr.clone()).unwrap();
    let log = std::fs::read_to_string(folder.path().join("r.jsonl.work/1x1-v/node-0/broker.log")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{progress}{log}");
    assert!(progress.contains("[2/2] 1x1/v rising at 100 msg/s, "), "{progress}");
    assert!(progress.contains("lose-broker at 50: skipped: a cluster of one node has none to lose"), "{progress}");
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the broker is gone");
    assert!(!folder.path().join("r.jsonl.work").exists(), "and so are its files");

    // Cut off in the middle of the last measurement, as a kill would: the same command measures
    // that one again.
    let path = folder.path().join("r.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let second = text.match_indices("\"kind\":\"step\"").nth(1).unwrap().0;
    std::fs::write(&path, &text[..second + 40]).unwrap();
    assert!(refused(&sizing(&["report", "r.jsonl"], folder.path())).contains("half-written"));
    let output = run();
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(progress.contains("[2/2] 1x1/v rising at 100") && !progress.contains("[1/2]"), "{progress}");

    let report = printed(&sizing(&["report", "r.jsonl", "--json"], folder.path()));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let measured = &report["configurations"][0];
    assert_eq!(measured["broken_promises"], 0);
    assert!(measured["top_rate"].as_f64().unwrap() > 0.0, "{measured}");
}
