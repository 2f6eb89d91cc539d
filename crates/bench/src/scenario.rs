//! The articles' workloads by name: what PerfTest is called with there, at their lengths or shorter ones.
//!
//! Invariant: a scenario is nothing but runs with options that a person could type; each prints the line that repeats it.

mod boxed;
mod sizing;

use crate::Error;
use crate::broker::Broker;
use crate::command::Ended;
use crate::run::Context;
use crate::screen::say;
use crate::series::{Series, broker_of};
use crate::words::{ABOUT_BROKER, ABOUT_OUTPUT, Known, Words, help};

const OWN: &[Known] = &[
    ("kind", "quorum|classic", "type of the queues (default quorum)"),
    ("seconds", "N", "seconds of each step (default 15)"),
    ("full", "", "the article's lengths: hours"),
    ("messages", "N", "messages of s4 (default 1000000, 10 million with --full)"),
    ("rate", "N", "base rate of the adverse tests, 10000, 20000 or 30000 (default 10000)"),
    ("max-rate", "N", "highest rate of the sizing workload (default 80000)"),
    ("initial-group-size", "N", "x-quorum-initial-group-size of the sizing queues (default: the broker's)"),
    ("kill-command", "COMMAND", "lose-a-broker: what kills one, half of the way into each intensity"),
];

/// Messages of s4: more than any disk here holds.
const MESSAGES_MAX: u64 = 10_000_000_000;

/// A scenario, and which options of the list above it reads.
struct Name {
    name: &'static str,
    about: &'static str,
    reads: &'static [&'static str],
}

/// What there is, for `scenario --help`.
const NAMES: &[Name] = &[
    Name {
        name: "s1",
        about: "one queue, 2 publishers, 2 consumers, as fast as it goes; 10, 100, 1000 and 5000 B",
        reads: &["kind", "seconds", "full"],
    },
    Name {
        name: "s2",
        about: "one queue at 10,000 msg/s; the same sizes; the rate must be held",
        reads: &["kind", "seconds", "full"],
    },
    Name {
        name: "s3",
        about: "500 queues, each with a publisher at 10 msg/s and a consumer; the rate must be held",
        reads: &["kind", "seconds", "full"],
    },
    Name {
        name: "s4",
        about: "a long queue: publish everything, then consume it; all of it must come back",
        reads: &["kind", "messages", "full"],
    },
    Name {
        name: "sizing",
        about: "the sizing study: 100 queues, 200 publishers, 10 ms of work, rising rates; held with p99 below 1 s",
        reads: &["seconds", "full", "max-rate", "initial-group-size"],
    },
    Name {
        name: "lose-a-broker",
        about: "the same at three rates, and a broker is killed half of the way",
        reads: &["seconds", "full", "max-rate", "initial-group-size", "kill-command"],
    },
    Name {
        name: "slow-consumers",
        about: "work rises from 10 to 30 ms and falls back; publishers must not feel it",
        reads: &["full", "rate", "initial-group-size"],
    },
    Name {
        name: "publisher-peak",
        about: "the rate rises by 10,000 msg/s and falls back; it must be followed",
        reads: &["full", "rate", "initial-group-size"],
    },
    Name {
        name: "box",
        about: "S3's grid: 8 to 64 writers that wait for each confirm, in 0.9 cores and more, 512 MB and more, and a standing backlog",
        reads: &["seconds", "full"],
    },
];

/// Seconds of a step: what was asked for, or the article's.
fn seconds(words: &Words, full: u64, at_least: u64) -> Result<u64, Error> {
    match (words.is_set("full"), words.is_set("seconds")) {
        (true, true) => {
            Err(Error::usage("--full and --seconds contradict each other: --full is the article's lengths"))
        }
        (true, false) => Ok(full),
        (false, _) => words.whole("seconds", 15, at_least, 86_400),
    }
}

/// Runs one.
pub fn scenario(words: &[String], context: &Context) -> Result<Ended, Error> {
    if words.is_empty() || words.iter().any(|word| word == "--help" || word == "--list") {
        let names: String = NAMES.iter().map(|known| format!("  {:<16}{}\n", known.name, known.about)).collect();
        let options = help(&[OWN, ABOUT_BROKER, ABOUT_OUTPUT]);
        say(&format!("Usage: leveret bench scenario NAME [OPTIONS]\n\n{names}\n{options}"));
        return Ok(Ended::Met);
    }
    let words = Words::read("scenario", words, &[OWN, ABOUT_BROKER, ABOUT_OUTPUT])?;
    let [name] = &words.rest[..] else {
        return Err(Error::usage("name one scenario; leveret bench scenario --list shows them"));
    };
    let known = NAMES.iter().find(|known| known.name == name);
    let Name { name, about, reads } = known
        .ok_or_else(|| Error::usage(format!("unknown scenario {name}; leveret bench scenario --list shows them")))?;
    if let Some((other, ..)) = OWN.iter().find(|(option, ..)| words.is_set(option) && !reads.contains(option)) {
        let reads: Vec<String> = reads.iter().map(|option| format!("--{option}")).collect();
        return Err(Error::usage(format!("--{other} means nothing to {name}, which has {}", reads.join(", "))));
    }
    let mut series = Series::new(&format!("{name}: {about}"), &words, context)?;
    let ran = match *name {
        "box" => boxed::run(&words, &mut series),
        "sizing" | "lose-a-broker" | "slow-consumers" | "publisher-peak" => sizing::run(name, &words, &mut series),
        _ => one_node(name, &words, &mut series),
    };
    let note = match words.is_set("full") {
        true => String::new(),
        false => "<p class=\"faint\">A short run: the articles' lengths are minutes to hours a step (--full).</p>\n"
            .to_owned(),
    };
    series.finish(ran, &note)
}

/// The queue's options of S1's command lines.
fn queue_words(words: &Words) -> Result<&'static str, Error> {
    match words.text("kind").unwrap_or("quorum") {
        "quorum" => Ok("--quorum-queue"),
        "classic" => Ok("--auto-delete false --flag persistent"),
        other => Err(Error::usage(format!("--kind {other}: quorum or classic is expected"))),
    }
}

fn prefix(words: &Words) -> Result<&'static str, Error> {
    Ok(if queue_words(words)?.starts_with("--quorum") { "qq" } else { "cq" })
}

/// Words of a line, with those about the broker.
fn line(words: &Words, text: &str) -> Vec<String> {
    words.handed_on().into_iter().chain(text.split_whitespace().map(str::to_owned)).collect()
}

fn one_node(name: &str, words: &Words, series: &mut Series<'_>) -> Result<(), Error> {
    let step = seconds(words, 900, 1)?;
    let (queue, prefix) = (queue_words(words)?, prefix(words)?);
    let sizes = [10, 100, 1000, 5000].map(|size| format!("--variable-size {size}:{step}")).join(" ");
    let broker = broker_of(words)?;
    let broker = broker.as_ref();
    let total = 4 * step;
    match name {
        "s1" => series.run(
            "one queue, fast",
            &line(words, &format!(
                "--producers 2 --consumers 2 --confirm 3000 --multi-ack-every 3000 --qos 3000 {sizes} {queue} --queue {prefix}-s1 --time {total}"
            )),
            broker,
        )?,
        "s2" => series.run(
            "10,000 msg/s",
            &line(words, &format!(
                "--rate 10000 --confirm 3000 --multi-ack-every 3000 --qos 3000 {sizes} {queue} --queue {prefix}-s2 --time {total} --require-rate 10000"
            )),
            broker,
        )?,
        "s3" => series.run(
            "500 queues",
            &line(words, &format!(
                "--producers 500 --consumers 500 --publishing-interval 0.1 --confirm 10 --multi-ack-every 100 --qos 100 {sizes} {queue} \
                 --queue-pattern {prefix}-s3-%d --queue-pattern-from 1 --queue-pattern-to 500 --time {total} --require-rate 5000"
            )),
            broker,
        )?,
        _ => return long_queue(words, series, broker, (queue, prefix)),
    };
    Ok(())
}

/// Publish everything, then consume everything. What was confirmed must come back.
fn long_queue(
    words: &Words,
    series: &mut Series<'_>,
    broker: Option<&Broker>,
    (queue, prefix): (&str, &str),
) -> Result<(), Error> {
    let default = if words.is_set("full") { 10_000_000 } else { 1_000_000 };
    let each = words.whole("messages", default, 2, MESSAGES_MAX)?.div_ceil(2);
    let arguments = if prefix == "qq" { "--queue-args x-max-in-memory-length=0" } else { "" };
    let publish = format!(
        "--producers 2 --consumers 0 --confirm 3000 --pmessages {each} {arguments} {queue} --queue {prefix}-s4 --size 32"
    );
    let confirmed = series.run("publish", &line(words, &publish), broker)?.run.correctness.confirmed;
    let consume = format!(
        "--producers 0 --consumers 2 --multi-ack-every 3000 --qos 3000 --exit-when empty {arguments} {queue} --queue {prefix}-s4"
    );
    let drained = series.run("consume", &line(words, &consume), broker)?;
    let (received, twice) = (drained.run.correctness.received, drained.run.correctness.duplicated_flagged);
    if received - twice < confirmed {
        drained.run.miss(format!("{confirmed} messages were confirmed and {received} came back"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unknown_scenario_is_named() {
        let words = ["s9".to_owned()];
        let error = scenario(&words, &Context::default()).unwrap_err().to_string();
        assert!(error.contains("unknown scenario s9"), "{error}");
    }

    #[test]
    fn an_option_that_a_scenario_does_not_read_is_refused() {
        let told = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            scenario(&words, &Context::default()).unwrap_err().to_string()
        };
        assert_eq!(told("s1 --rate 5"), "--rate means nothing to s1, which has --kind, --seconds, --full");
        assert!(told("slow-consumers --seconds 5").contains("--seconds means nothing to slow-consumers"));
        assert!(told("s2 --full --seconds 5").contains("contradict"));
        assert!(told("s1 --seconds 1.7").contains("--seconds 1.7: a whole number"));
        assert!(told("box --limit-cpu 1").contains("--limit-cpu"));
        assert!(told("slow-consumers --rate 10001").contains("--rate 10001: a multiple of 200"));
        assert!(told("lose-a-broker --broker x{port} --kill-command y").contains("contradict"));
        let read: Vec<&str> = NAMES.iter().flat_map(|known| known.reads.iter().copied()).collect();
        assert!(OWN.iter().all(|(option, ..)| read.contains(option)), "nobody reads one of the options");
    }

    #[test]
    fn a_line_has_the_words_about_the_broker_first() {
        let words = Words::read("scenario", &["--uri".to_owned(), "amqp://h".to_owned()], &[ABOUT_BROKER]).unwrap();
        assert_eq!(line(&words, "--rate 5"), ["--uri", "amqp://h", "--rate", "5"]);
    }
}
