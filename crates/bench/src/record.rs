//! What is written down of a run: one object for each interval and one for the whole, the same in
//! JSON, in the report and on screen.
//!
//! Invariant: numbers carry their unit in their name. What was not measured is absent, never zero.

mod book;
mod interval;

pub use book::{Book, Curve, Figure, Line, Recorded, read_lines};
pub use interval::{HeldBack, Interval, add_reason, mean, reason_text};

use page::figures::{count, three};
use page::reason::Circumstances;
use serde::{Deserialize, Serialize};

use crate::disk::Written;
use crate::latency::Figures;
use crate::process::Machine;

/// A latency over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Its figures.
    pub figures: Figures,
    /// Percentile and milliseconds, denser towards the tail.
    pub curve: Vec<(f64, f64)>,
}

/// What was lost, and what else should not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correctness {
    /// Messages sent.
    pub published: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages refused.
    pub nacked: u64,
    /// Messages returned.
    pub returned: u64,
    /// Messages sent and never answered: they may or may not be there.
    pub unanswered: u64,
    /// Messages received, all copies.
    pub received: u64,
    /// Messages that lie in the queues at the end.
    pub left_in_queues: Option<u64>,
    /// Copies that were promised, did not come and are not in the queues; absent when it cannot be
    /// told why.
    pub lost: Option<u64>,
    /// Copies that were sent without confirms, so that nobody promised them, did not come and are
    /// not in the queues; absent where there are confirms, or it cannot be told.
    #[serde(default)]
    pub unpromised_missing: Option<u64>,
    /// The first of those that are lost, or missing, publisher:sequence.
    pub lost_examples: Vec<String>,
    /// Copies that came again, flagged.
    pub duplicated_flagged: u64,
    /// Copies that came again, unflagged.
    pub duplicated_unflagged: u64,
    /// Copies that came after a later one.
    pub reordered: u64,
    /// Copies with a wrong checksum.
    pub corrupt: u64,
    /// Messages of other runs.
    pub foreign: u64,
}

impl Cost {
    /// Enters what the broker used. Both sides count: a broker that takes in and cannot deliver has
    /// worked for what it took in, and dividing by the few that it delivered would make its work
    /// look large.
    pub fn enter_broker(&mut self, cores: f64, sent_per_s: Option<f64>, received_per_s: Option<f64>) {
        let (rate, per) = match (sent_per_s, received_per_s) {
            (Some(sent), Some(received)) => ((sent + received) / 2.0, "in and out"),
            (Some(sent), None) => (sent, "sent"),
            (None, received) => (received.unwrap_or(0.0), "received"),
        };
        self.broker_cores = Some(cores);
        self.broker_us_per_message = (rate > 0.0).then(|| cores * 1e6 / rate);
        self.broker_per = per.to_owned();
    }
}

impl Correctness {
    /// Nothing that was sent reached a queue.
    pub fn all_returned(&self) -> bool {
        self.published > 0 && self.returned == self.published
    }

    /// What the broker did not take in, in words; `None` where it took everything.
    pub fn not_taken(&self) -> Option<String> {
        let told = |number: u64, word: &str| (number > 0).then(|| format!("{} {word}", count(number)));
        let told: Vec<String> =
            [told(self.nacked, "refused"), told(self.returned, "came back")].into_iter().flatten().collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// What is wrong, in words; empty when nothing is.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut fault = |count: u64, text: &str| {
            if count > 0 {
                faults.push(format!("{count} {text}"));
            }
        };
        fault(self.lost.unwrap_or(0), "lost");
        fault(self.corrupt, "corrupt");
        fault(self.duplicated_unflagged, "duplicated and not flagged as redelivered");
        fault(self.reordered, "reordered");
        faults
    }
}

/// What the whole run cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU of the load's publishing side, microseconds a message sent.
    pub publishing_us_per_message: Option<f64>,
    /// CPU of its consuming side, microseconds a message received.
    pub consuming_us_per_message: Option<f64>,
    /// CPU of the broker, microseconds a message of `broker_per`.
    pub broker_us_per_message: Option<f64>,
    /// What a message is there: `in and out` where half of it is its way in and half its way out,
    /// else `sent` or `received`.
    #[serde(default)]
    pub broker_per: String,
    /// Cores that the broker used.
    pub broker_cores: Option<f64>,
    /// The most memory that it had, at the ends of intervals.
    pub broker_rss_bytes_max: Option<u64>,
    /// Bytes that it wrote to disk for each message sent, or received where nothing is sent.
    pub broker_write_bytes_per_message: Option<f64>,
    /// What each counter says was written over the time of the cost, and which is told.
    #[serde(default)]
    pub written: Option<Written>,
    /// Messages of that time that it is divided by.
    #[serde(default)]
    pub written_messages: f64,
    /// The cores that a box leaves it.
    #[serde(default)]
    pub cores_limit: Option<f64>,
    /// The part of the machine's cores that worked, for whomever.
    #[serde(default)]
    pub machine: Option<f64>,
    /// The part of the time in which its disk had something to do, for whomever.
    #[serde(default)]
    pub disk_busy: Option<f64>,
    /// Operations a second of that, where a box counts them.
    #[serde(default)]
    pub disk_operations_s: Option<f64>,
    /// The part of the time in which it was ready and its box's share of the CPU was used up.
    #[serde(default)]
    pub throttled: Option<f64>,
    /// The part of the time in which the consumers worked themselves.
    #[serde(default)]
    pub consumers_busy: Option<f64>,
}

/// What went through at one of several rates, messages a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AtRate {
    /// What was asked for, of all publishers.
    pub asked: f64,
    /// What was sent, and not refused.
    pub sent: f64,
    /// What was received; absent where nobody does.
    pub received: Option<f64>,
}

impl AtRate {
    /// What came through to the end.
    pub fn through(&self) -> f64 {
        self.received.map_or(self.sent, |received| received.min(self.sent))
    }
}

/// A rate of which less came through was not held.
const HELD: f64 = 0.99;

/// What is known of a run when its load begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Its name.
    pub label: String,
    /// Which workload of the articles it is, if it is one.
    pub scenario: String,
    /// The words that repeat it.
    pub command: String,
    /// Version of this tool.
    pub version: String,
    /// Seconds since the epoch.
    pub started_s: u64,
    /// Who the broker says it is.
    pub broker: String,
    /// The machine of the load.
    pub machine: Machine,
    /// Whether latency counts from the due time.
    pub open_loop: bool,
    /// Whether publishers wait for confirms.
    pub confirms: bool,
    /// Whether anybody receives.
    pub receives: bool,
}

impl Begun {
    /// The run of which no more is known yet.
    pub fn run(&self) -> Run {
        let Begun { label, scenario, command, version, started_s, broker, machine, open_loop, .. } = self.clone();
        Run { label, scenario, command, version, started_s, broker, machine, open_loop, ..Run::default() }
    }
}

/// How far a run is whose end was not written down.
#[derive(Clone, Debug, PartialEq)]
pub enum Unended {
    /// It goes on; how it stands, in words.
    UnderWay(String),
    /// Whoever made it was killed.
    Cut,
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its name.
    pub label: String,
    /// Which workload of the articles it is; runs of the same one are compared with each other.
    #[serde(default)]
    pub scenario: String,
    /// The words that repeat it.
    pub command: String,
    /// The command that made it and others in one go; empty for a run by itself.
    #[serde(default)]
    pub made_by: String,
    /// It prepared another one (filled a queue, say) and is not compared with others.
    #[serde(default)]
    pub is_preparation: bool,
    /// Version of this tool.
    pub version: String,
    /// Seconds since the epoch at its start.
    pub started_s: u64,
    /// Who the broker says it is.
    pub broker: String,
    /// The machine of the load.
    pub machine: Machine,
    /// Whether the rate was fixed and latency counts from the due time.
    pub open_loop: bool,
    /// Seconds measured.
    pub seconds: f64,
    /// Messages a second asked for.
    pub target_per_s: Option<f64>,
    /// Messages a second sent.
    pub published_per_s: f64,
    /// Messages a second confirmed.
    pub confirmed_per_s: Option<f64>,
    /// Messages a second received.
    pub received_per_s: Option<f64>,
    /// Publish to confirm.
    pub confirm: Option<Latency>,
    /// Publish to consumer.
    pub end_to_end: Option<Latency>,
    /// Due until the socket took it.
    pub handed: Option<Latency>,
    /// Publish to confirm for each thing that was waited for, by name.
    #[serde(default)]
    pub stages: Vec<(String, Latency)>,
    /// End to end for each size of a body that had its time.
    pub by_size: Vec<(u64, Figures)>,
    /// End to end for each rate that was asked for, messages a second in all; empty where there was
    /// one, or so many that they are a ramp.
    #[serde(default)]
    pub by_rate: Vec<(f64, Figures)>,
    /// What went through while each of these rates was asked for.
    #[serde(default)]
    pub at_rates: Vec<AtRate>,
    /// Seconds that connections were blocked, summed.
    pub blocked_s: f64,
    /// How long the broker held publishers back, how often and why; absent when it did not.
    #[serde(default)]
    pub held_back: Option<HeldBack>,
    /// Connections lost.
    pub connections_lost: u64,
    /// What was done to the broker on purpose, and how many seconds after the start.
    #[serde(default)]
    pub faults: Vec<(f64, String)>,
    /// What became of the messages.
    pub correctness: Correctness,
    /// What it cost.
    pub cost: Cost,
    /// Each requirement that was given, in words with what was measured, and whether it was met.
    #[serde(default)]
    pub required: Vec<(String, bool)>,
    /// What was required and missed, in words; empty is success.
    pub missed: Vec<String>,
    /// Consumers fell behind; one of the sentences in `missed` says how far.
    #[serde(default)]
    pub backlog_grew: bool,
    /// It was ended before its end; one of the sentences in `missed` says when.
    #[serde(default)]
    pub was_interrupted: bool,
    /// Messages were refused or came back; one of the sentences in `missed` says how many. Older files
    /// do not have it: theirs is entered when they are read.
    #[serde(default)]
    pub was_refused: bool,
    /// Requirements that could have been given and were not: a run that passed says nothing of
    /// them.
    #[serde(default)]
    pub not_asked: Vec<String>,
    /// What its p99 is made of, as far as that was measured: `4.32 ms at 27 % CPU: the disk's syncs`.
    #[serde(default)]
    pub why_p99: Option<String>,
    /// What a reader must know to read it.
    pub notes: Vec<String>,
    /// It is not over, or was cut off: then its intervals are all that is known, and its books and its
    /// percentiles are not.
    #[serde(skip)]
    pub unended: Option<Unended>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has not ended.
    UnderWay,
    /// Everything that was required was met.
    Passed,
    /// Something that was required was not met, or something is wrong with a message.
    Failed,
    /// Nothing is wrong but that more was sent than could be received: no rate of it is one that is
    /// held.
    BacklogGrew,
    /// Nothing is wrong but that the broker did not take everything in: no rate of it is one that is
    /// held either.
    Refused,
    /// Nothing was wrong up to where it was interrupted, and nothing is known of the rest.
    Interrupted,
}

impl Verdict {
    /// As it stands on a screen and in a report.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::UnderWay => "UNDER WAY",
            Verdict::Passed => "PASSED",
            Verdict::Failed => "FAILED",
            Verdict::BacklogGrew => "BACKLOG GREW",
            Verdict::Refused => "REFUSED",
            Verdict::Interrupted => "INTERRUPTED",
        }
    }
}

impl Run {
    /// How it ended: the worst of what is to be said of it.
    pub fn verdict(&self) -> Verdict {
        let excused = [self.backlog_grew, self.was_interrupted, self.was_refused];
        match self.missed.len() {
            _ if matches!(self.unended, Some(Unended::UnderWay(_))) => Verdict::UnderWay,
            0 => Verdict::Passed,
            said if said > excused.into_iter().filter(|is_so| *is_so).count() => Verdict::Failed,
            _ if self.was_interrupted => Verdict::Interrupted,
            _ if self.was_refused => Verdict::Refused,
            _ => Verdict::BacklogGrew,
        }
    }

    /// What was short while it went on; `waited` is what waited where a rate was missed.
    pub fn circumstances(&self, waited: Option<u64>) -> Circumstances {
        let cost = &self.cost;
        let cpus = cost.cores_limit.unwrap_or(self.machine.cores as f64);
        Circumstances {
            cpus,
            cpu: cost.broker_cores.filter(|_| cpus > 0.0).map(|cores| cores / cpus),
            machine: cost.machine,
            throttled: cost.throttled,
            limits: Vec::new(),
            disk: cost.disk_busy,
            disk_operations: cost.disk_operations_s,
            consumers: cost.consumers_busy,
            backlog: waited,
        }
    }

    /// Whose it is, and what its label has behind that: the step of its workload.
    pub fn name_and_step(&self) -> (&str, &str) {
        let step = self.scenario.split_once(": ").map_or(self.scenario.as_str(), |(_, step)| step);
        let name = self.label.strip_suffix(step).unwrap_or(&self.label);
        (name.trim(), &self.label[name.len()..])
    }

    /// What became of its messages; `None` where that was not written down.
    pub fn books(&self) -> Option<&Correctness> {
        self.unended.is_none().then_some(&self.correctness)
    }

    /// Up to which of several rates all came through, in words; `None` where there was one rate.
    pub fn held(&self) -> Option<String> {
        let short = self.missed_rate().map(|at| format!("{} ({} came through)", three(at.asked), three(at.through())));
        match (self.held_rate().map(three), short) {
            (Some(last), Some(short)) => Some(format!("up to {last} msg/s, not {short}")),
            (Some(last), None) => Some(format!("all of its rates, up to {last} msg/s")),
            (None, short) => short.map(|short| format!("none of its rates, not even {short}")),
        }
    }

    /// The lowest of several rates that did not come through.
    fn missed_rate(&self) -> Option<&AtRate> {
        let missed = self.at_rates.iter().filter(|at| at.through() < HELD * at.asked);
        missed.min_by(|a, b| a.asked.total_cmp(&b.asked))
    }

    /// The highest of them below it.
    pub fn held_rate(&self) -> Option<f64> {
        let limit = self.missed_rate().map_or(f64::MAX, |at| at.asked);
        self.at_rates.iter().map(|at| at.asked).filter(|asked| *asked < limit).reduce(f64::max)
    }

    /// What a run that passed has shown of its messages, in words, and why not more.
    pub fn checked(&self) -> String {
        let c = &self.correctness;
        let (confirms, receives) = (self.confirmed_per_s.is_some(), self.received_per_s.is_some());
        let sent = count(c.published);
        let of_lost = match c.unpromised_missing {
            _ if !receives && confirms => {
                let confirmed = count(c.confirmed);
                return format!(
                    "{confirmed} of {sent} sent were confirmed; nothing was received, so nothing else was checked"
                );
            }
            _ if !receives => return "nothing was confirmed or received, so nothing was checked".to_owned(),
            _ if c.lost.is_some() => return "nothing lost, duplicated, reordered or corrupt".to_owned(),
            Some(0) => "none of what was sent is missing, though without confirms nothing was promised".to_owned(),
            Some(missing) => {
                let missing = count(missing);
                format!("{missing} of {sent} sent are missing, and without confirms nothing was promised")
            }
            None if c.published == 0 => "what was lost cannot be told of what others sent".to_owned(),
            None if !confirms => "without confirms nothing was promised, so nothing can be called lost".to_owned(),
            None => "what was lost cannot be told, as routes cannot be followed or queues not be counted".to_owned(),
        };
        format!("nothing duplicated, reordered or corrupt; {of_lost}")
    }

    /// It did not do what it was made for. One that was interrupted had no time to.
    pub fn miss(&mut self, why: String) {
        if !self.was_interrupted {
            self.missed.push(why);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_backlog_makes_no_message_dear() {
        let cost = |sent, received| {
            let mut cost = Cost::default();
            cost.enter_broker(0.35, sent, received);
            (cost.broker_us_per_message.map(f64::round), cost.broker_per)
        };
        // Divided by what was received these would be 689 us.
        assert_eq!(cost(Some(4000.0), Some(508.0)), (Some(155.0), "in and out".to_owned()));
        assert_eq!(cost(Some(3500.0), Some(3500.0)), (Some(100.0), "in and out".to_owned()));
        assert_eq!(cost(Some(3500.0), None), (Some(100.0), "sent".to_owned()));
        assert_eq!(cost(None, Some(3500.0)), (Some(100.0), "received".to_owned()));
        assert_eq!(cost(Some(0.0), Some(0.0)).0, None);
    }

    #[test]
    fn of_several_rates_the_highest_is_told_that_came_through_with_all_below_it() {
        let of = |through: &[(f64, f64)]| {
            let at = |&(asked, received): &(f64, f64)| AtRate { asked, sent: asked, received: Some(received) };
            Run { at_rates: through.iter().map(at).collect(), ..Run::default() }.held()
        };
        let rising = [(1000.0, 1000.0), (10_000.0, 9_950.0), (30_000.0, 16_700.0)];
        assert_eq!(of(&rising).as_deref(), Some("up to 10,000 msg/s, not 30,000 (16,700 came through)"));
        // In whatever order they were tried, and though a higher one came through.
        let odd = [(30_000.0, 30_000.0), (1000.0, 1000.0), (10_000.0, 9_000.0)];
        assert_eq!(of(&odd).as_deref(), Some("up to 1,000 msg/s, not 10,000 (9,000 came through)"));
        assert_eq!(of(&rising[..2]).as_deref(), Some("all of its rates, up to 10,000 msg/s"));
        let none = Some("none of its rates, not even 30,000 (16,700 came through)");
        assert_eq!((of(&rising[2..]).as_deref(), of(&[])), (none, None));
    }
}
