//! The sizing study's workload: rising intensities, and the three adverse tests.
//!
//! Invariant: the words are the study's own; only lengths shrink, all by the same factor, unless the full ones are asked for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{line, seconds};
use crate::Error;
use crate::broker::Broker;
use crate::run::pause;
use crate::screen::say;
use crate::series::{Series, broker_of};
use crate::words::Words;

/// Publishers of the study.
const PUBLISHERS: f64 = 200.0;

/// Its requirement: the 99th percentile end to end.
const P99_MS: f64 = 1000.0;

/// After so many intensities in a row that were not held, higher ones tell nothing.
const MISSES_MAX: u32 = 2;

/// A minute of the study is a second of a short run.
const SHORTER: u64 = 60;

pub(super) fn run(name: &str, words: &Words, series: &mut Series<'_>) -> Result<(), Error> {
    match name {
        "sizing" => rising(words, series),
        "lose-a-broker" => lose_a_broker(words, series),
        _ => adverse(name, words, series),
    }
}

/// The study's command line with rate, consumers and length open.
fn command(words: &Words, consumers: u64, rest: &str) -> Result<Vec<String>, Error> {
    let group = match words.text("initial-group-size") {
        Some(_) => {
            format!(",x-quorum-initial-group-size={}", words.whole("initial-group-size", 3, 1, 9)?)
        }
        None => String::new(),
    };
    let text = format!(
        "-f persistent -q 1000 -c 1000 -ct -1 -ad false --size 1024 --queue-pattern sizing-%d --queue-pattern-from 1 --queue-pattern-to 100 \
         -qa x-queue-type=quorum,x-max-in-memory-length=0{group} --producers 200 --consumers {consumers} {rest}"
    );
    Ok(line(words, &text))
}

/// Consumers that a rate needs: each does 100 messages a second, and the study had a third to a half more than that.
fn consumers(rate: f64) -> u64 {
    ((rate / 10_000.0).ceil() as u64 * 100 + 100).max(200)
}

fn rising(words: &Words, series: &mut Series<'_>) -> Result<(), Error> {
    let seconds = seconds(words, 1800, 1)?;
    let highest = words.number("max-rate", 80_000.0, 1000.0, 10_000_000.0)?;
    let broker = broker_of(words)?;
    let rates =
        std::iter::once(1000.0).chain((1..).map(|step| f64::from(step) * 5000.0)).take_while(|rate| *rate <= highest);
    let mut misses = 0;
    for rate in rates {
        let delay = if words.is_set("full") { "--producer-random-start-delay 30" } else { "" };
        let rest = format!(
            "--rate {} --consumer-latency 10000 --time {seconds} {delay} --require-rate {rate} --require-p99-ms {P99_MS}",
            rate / PUBLISHERS
        );
        let held = series.run(&format!("{rate} msg/s"), &command(words, consumers(rate), &rest)?, broker.as_ref())?;
        misses = if held.run.missed.is_empty() { 0 } else { misses + 1 };
        if misses >= MISSES_MAX {
            say(&format!("higher rates are left out: {misses} in a row were not held"));
            break;
        }
    }
    Ok(())
}

/// Minutes of the study as seconds of this run.
fn minutes(words: &Words, count: u64) -> u64 {
    if words.is_set("full") { count * 60 } else { count * 60 / SHORTER }
}

/// Values over time: `low` for 5 minutes, up to `high` over 20, there for 5, back over 20, and 50 at `low`.
fn hill(words: &Words, low: u64, high: u64, option: &str) -> String {
    let mut steps = vec![(low, minutes(words, 5))];
    let between = |step: u64| low + (high - low) * step / 20;
    steps.extend((1..=20).map(|step| (between(step), minutes(words, 1))));
    steps.push((high, minutes(words, 5)));
    steps.extend((0..20).rev().map(|step| (between(step), minutes(words, 1))));
    steps.push((low, minutes(words, 50)));
    steps.iter().map(|(value, secs)| format!("{option} {value}:{secs} ")).collect()
}

fn adverse(name: &str, words: &Words, series: &mut Series<'_>) -> Result<(), Error> {
    let rate = words.number("rate", 10_000.0, PUBLISHERS, 1_000_000.0)?;
    if rate % PUBLISHERS != 0.0 {
        return Err(Error::usage(format!(
            "--rate {rate}: a multiple of {PUBLISHERS} is expected, one share for each publisher"
        )));
    }
    let broker = broker_of(words)?;
    let time = minutes(words, 100);
    let per_publisher = (rate / PUBLISHERS) as u64;
    let rest = match name {
        // A publisher that is slowed down sends less than its rate: that is what "must not feel it" means.
        "slow-consumers" => {
            let work = hill(words, 10_000, 30_000, "-vl");
            format!("--rate {per_publisher} {work} --time {time} --drain-timeout 600")
        }
        _ => {
            let rates = hill(words, per_publisher, per_publisher + (10_000.0 / PUBLISHERS) as u64, "-vr");
            format!("{rates} --consumer-latency 10000 --time {time} --drain-timeout 600")
        }
    };
    let label = format!("{name}, {rate} msg/s");
    let recorded = series.run(&label, &command(words, consumers(rate), &rest)?, broker.as_ref())?;
    let target = recorded.run.target_per_s.unwrap_or(rate);
    if recorded.run.published_per_s < target * 0.99 {
        let sent = recorded.run.published_per_s;
        recorded.run.miss(format!("publishers felt it: {sent:.0} of {target:.0} messages a second were sent"));
    }
    Ok(())
}

/// A broker is killed hard half of the way into each intensity: with a command, or the one that we started, which comes back.
fn lose_a_broker(words: &Words, series: &mut Series<'_>) -> Result<(), Error> {
    let kill = words.text("kill-command").map(str::to_owned);
    if kill.is_some() && words.is_set("broker") {
        return Err(Error::usage(
            "--broker and --kill-command contradict each other: a broker that is started here is killed and started again here",
        ));
    }
    let broker = broker_of(words)?.map(|broker| Arc::new(Mutex::new(broker)));
    if broker.is_none() && kill.is_none() {
        return Err(Error::usage(
            "lose-a-broker needs --kill-command (what kills one of the cluster) or --broker (one to start, kill and start again)",
        ));
    }
    let seconds = seconds(words, 1800, 2)?;
    let highest = words.number("max-rate", 30_000.0, 1000.0, 10_000_000.0)?;
    for rate in [10_000.0, 20_000.0, 30_000.0].into_iter().filter(|rate| *rate <= highest) {
        let rest = format!(
            "--rate {} --consumer-latency 10000 --time {seconds} --connection-recovery-interval 1 --drain-timeout 120",
            rate / PUBLISHERS
        );
        let words_of_run = command(words, consumers(rate), &rest)?;
        let killer = {
            let (broker, kill) = (broker.clone(), kill.clone());
            let interrupted = Arc::clone(&series.context().interrupted);
            std::thread::spawn(move || match pause(&interrupted, Duration::from_secs(seconds / 2)) {
                true => lose(broker.as_deref(), kill.as_deref()),
                false => Ok(()),
            })
        };
        let pids = broker.as_ref().map(|broker| broker.lock().expect("nobody panics with this lock").uri());
        let words_of_run = match pids {
            Some(uri) => without_broker(&words_of_run, &format!("amqp://guest:guest@{}/%2f", uri.address())),
            None => words_of_run,
        };
        let label = format!("{rate} msg/s, a broker killed after {} s", seconds / 2);
        let ran = series.run(&label, &words_of_run, None).map(drop);
        killer.join().expect("the thread that kills does not panic")?;
        ran?;
    }
    Ok(())
}

fn lose(broker: Option<&Mutex<Broker>>, kill: Option<&str>) -> Result<(), Error> {
    if let Some(command) = kill {
        let status = std::process::Command::new("sh").arg("-c").arg(command).status();
        return match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Error::machine(format!("killing a broker with {command:?}"), status)),
            Err(why) => Err(Error::machine(format!("killing a broker with {command:?}"), why)),
        };
    }
    let mut broker = broker.expect("there is a command or a broker").lock().expect("nobody panics with this lock");
    broker.kill()?;
    broker.launch()
}

/// The words of a run against a broker that this tool has started already.
fn without_broker(words: &[String], uri: &str) -> Vec<String> {
    let mut kept = vec!["--uri".to_owned(), uri.to_owned()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if ["--broker", "--limit-cpu", "--limit-memory", "--uri", "--uris"].contains(&word.as_str()) {
            words.next();
        } else {
            kept.push(word.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_hill_rises_and_falls_over_a_hundred_minutes() {
        let words = Words::default();
        let steps = hill(&words, 10_000, 30_000, "-vl");
        let pairs: Vec<(u64, u64)> = steps
            .split_whitespace()
            .filter(|word| *word != "-vl")
            .map(|pair| pair.split_once(':').map(|(v, s)| (v.parse().unwrap(), s.parse().unwrap())).unwrap())
            .collect();
        assert_eq!(pairs.iter().map(|(_, secs)| secs).sum::<u64>(), 100);
        assert_eq!((pairs[0], pairs[21], *pairs.last().unwrap()), ((10_000, 5), (30_000, 5), (10_000, 50)));
        assert_eq!((consumers(10_000.0), consumers(20_000.0), consumers(30_000.0)), (200, 300, 400));
    }

    #[test]
    fn a_broker_that_runs_already_is_not_started_again() {
        let words = ["--broker", "x {port}", "--rate", "5"].map(str::to_owned);
        assert_eq!(without_broker(&words, "amqp://h"), ["--uri", "amqp://h", "--rate", "5"]);
    }
}
