//! One interval of a run, and what the broker held back in it.

use serde::{Deserialize, Serialize};

use crate::latency::Figures;
use crate::process::Load;

/// One interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its end, seconds after the start.
    pub at_s: f64,
    /// What it belongs to.
    pub phase: String,
    /// Bytes of a body then.
    pub body_bytes: u64,
    /// Messages a second that were asked for; absent for as fast as it goes.
    pub target_per_s: Option<f64>,
    /// Messages a second sent.
    pub published_per_s: f64,
    /// Messages a second confirmed.
    pub confirmed_per_s: f64,
    /// Messages a second received.
    pub received_per_s: f64,
    /// Messages refused.
    pub nacked: u64,
    /// Messages returned.
    pub returned: u64,
    /// Connections lost.
    pub connections_lost: u64,
    /// Seconds that connections were blocked, summed.
    pub blocked_s: f64,
    /// Seconds in which the broker held publishers back.
    #[serde(default)]
    pub held_back_s: f64,
    /// Why, in its words.
    #[serde(default)]
    pub held_back_why: Vec<String>,
    /// Copies that were sent and not received by its end; absent where one side is missing or
    /// routes cannot be followed.
    #[serde(default)]
    pub backlog: Option<u64>,
    /// Messages that were due and not sent by its end; absent where nothing says what is due by when.
    #[serde(default)]
    pub unsent: Option<u64>,
    /// From the due time to the confirm.
    pub confirm: Option<Figures>,
    /// From the due time to the consumer.
    pub end_to_end: Option<Figures>,
    /// The broker's processes.
    pub broker: Option<Load>,
    /// Cores that the load itself used.
    pub generator_cores: f64,
    /// Bytes a second to the broker.
    pub to_broker_bytes_s: f64,
    /// Bytes a second from the broker.
    pub from_broker_bytes_s: f64,
}

/// What the broker held back: with connection.blocked, or by reading no more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldBack {
    /// Seconds in which at least one publishing connection was held back.
    pub seconds: f64,
    /// How often that began.
    pub times: u64,
    /// Why, in the broker's words, in the order in which they came.
    pub reasons: Vec<String>,
}

impl HeldBack {
    /// `held back by the broker for 7.2 s in 2 periods: low on disk`.
    pub fn text(&self) -> String {
        let times = match self.times {
            0 | 1 => String::new(),
            times => format!(" in {times} periods"),
        };
        format!("held back by the broker for {:.1} s{times}: {}", self.seconds, self.reasons.join(", "))
    }
}

impl Interval {
    /// What was used in it, without what became of messages: of a part of it no more is known.
    pub fn only_used(&self) -> Interval {
        Interval {
            body_bytes: self.body_bytes,
            broker: self.broker,
            generator_cores: self.generator_cores,
            to_broker_bytes_s: self.to_broker_bytes_s,
            from_broker_bytes_s: self.from_broker_bytes_s,
            ..Interval::default()
        }
    }

    /// The same of an interval; `None` when nobody was held back in it.
    pub fn held_back_text(&self) -> Option<String> {
        let held = HeldBack { seconds: self.held_back_s, times: 1, reasons: self.held_back_why.clone() };
        (self.held_back_s > 0.0).then(|| held.text())
    }
}

/// Reasons that are kept of one run. A broker that gives a new one each time would fill the screen.
const REASONS_MAX: usize = 5;

/// Characters of a reason that are kept.
const REASON_CHARS_MAX: usize = 120;

/// What connection.blocked says, fit for a terminal: a broker is not to move the cursor.
pub fn reason_text(reason: &[u8]) -> String {
    let text: String =
        String::from_utf8_lossy(reason).chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
    if text.is_empty() { "it gave no reason".to_owned() } else { text }
}

/// Adds a reason that is not there yet.
pub fn add_reason(reasons: &mut Vec<String>, reason: String) {
    if reasons.len() < REASONS_MAX && !reasons.contains(&reason) {
        reasons.push(reason);
    }
}

/// The mean of a figure over the intervals that have it, each by its length; `None` where none has.
pub fn mean(intervals: &[Interval], value: impl Fn(&Interval) -> Option<f64>) -> Option<f64> {
    let (mut before, mut seconds, mut sum) = (0.0, 0.0, 0.0);
    for interval in intervals {
        let length = interval.at_s - before;
        before = interval.at_s;
        if let Some(value) = value(interval) {
            seconds += length;
            sum += value * length;
        }
    }
    (seconds > 0.0).then(|| sum / seconds)
}
