//! What a person sees: lines while it runs, and the verdict.
//!
//! Invariant: a line is whole and means something by itself, so that a log of them can be read
//! without the screen.

pub mod live;
pub mod served;

use std::io::{IsTerminal as _, Write};

use hdrhistogram::Histogram;
use page::figures::{count, three};

use crate::latency::{Figures, TOLD};
use crate::options::Options;
use crate::record::{Begun, Interval, Latency, Recorded, Run};
use crate::run::Observer;
use crate::setup::Found;
use crate::verdict::BACKLOG_SECONDS;
use live::Live;

/// A line for each interval, on standard output.
#[derive(Debug, Default)]
pub struct Lines {
    /// Only the verdict.
    pub quiet: bool,
}

impl Observer for Lines {
    fn started(&mut self, options: &Options, found: &Found, _begun: &Begun) {
        if !self.quiet {
            say(&opening(options, found));
        }
    }

    fn interval(&mut self, interval: &Interval, _confirm: &Histogram<u64>, _end_to_end: &Histogram<u64>) {
        if !self.quiet {
            say(&line(interval));
        }
    }

    fn finished(&mut self, run: &Recorded) {
        say(&summary(&run.run));
    }
}

/// What is seen of a run: the live view on a terminal, lines elsewhere.
pub fn chosen(is_plain: bool, quiet: bool) -> Box<dyn Observer> {
    let is_live = !is_plain && !quiet && std::io::stdout().is_terminal();
    match is_live.then(Live::on_stdout).flatten() {
        Some(live) => Box::new(live),
        None => Box::new(Lines { quiet }),
    }
}

/// Prints; a reader who has seen enough is no error.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// The first line of a run.
pub fn opening(options: &Options, found: &Found) -> String {
    let many = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let (p, c) = (&options.producing, &options.consuming);
    let producers = many(u64::from(p.count) * u64::from(p.channels), "producer");
    let consumers = many(u64::from(c.count) * u64::from(c.channels), "consumer");
    let pace = match &p.rate {
        None => "as fast as it goes".to_owned(),
        Some(rate) => {
            let all = |each: f64| three(each * f64::from(p.count) * f64::from(p.channels));
            let from = if rate.is_stepped() { format!("{} to ", all(rate.min())) } else { String::new() };
            let loop_kind = if options.closed_loop { "closed loop" } else { "open loop" };
            format!("{from}{} msg/s in all, {loop_kind}", all(rate.max()))
        }
    };
    let backlog = match found.backlog {
        0 => String::new(),
        backlog => format!("; {} messages lie in the queues already", count(backlog)),
    };
    format!(
        "{} {} at {}: {producers}, {consumers}, {} B, {pace}{backlog}",
        found.identity.product,
        found.identity.version,
        options.uris.iter().map(crate::uri::Uri::address).collect::<Vec<_>>().join(", "),
        (p.size.min() as u64).max(crate::message::BODY_BYTES_MIN as u64),
    )
}

/// One interval on one line.
pub fn line(i: &Interval) -> String {
    let latency = |name: &str, figures: &Option<Figures>| match figures {
        None => String::new(),
        Some(f) => format!(" | {name} p50 {} p99 {} p99.9 {} ms", three(f.p50_ms), three(f.p99_ms), three(f.p999_ms)),
    };
    let broker = match &i.broker {
        None => String::new(),
        Some(load) => format!(" | broker {:.2} cores {} MB", load.cpu_cores, load.rss_bytes / 1_000_000),
    };
    let mut odd = String::new();
    for (count, text) in [(i.nacked, "nacked"), (i.returned, "returned"), (i.connections_lost, "connections lost")] {
        if count > 0 {
            odd.push_str(&format!(" | {count} {text}"));
        }
    }
    let late = i.unsent.filter(|unsent| *unsent as f64 > i.target_per_s.unwrap_or(f64::MAX) * BACKLOG_SECONDS);
    if let Some(unsent) = late {
        odd.push_str(&format!(" | {} due and not sent", count(unsent)));
    }
    if let Some(held_back) = i.held_back_text() {
        odd.push_str(&format!(" | {held_back}"));
    }
    format!(
        "{:7.1} s {:7} | sent {:>8} confirmed {:>8} received {:>8} msg/s{}{}{broker}{odd}",
        i.at_s,
        i.phase,
        three(i.published_per_s),
        three(i.confirmed_per_s),
        three(i.received_per_s),
        latency("confirm", &i.confirm),
        latency("end to end", &i.end_to_end),
    )
}

/// The whole run: what was held, how late it was, what became of the messages, and the verdict.
pub fn summary(run: &Run) -> String {
    let name = match run.broker.starts_with(&run.label) {
        true => run.broker.clone(),
        false => format!("{} ({})", run.label, run.broker),
    };
    let mut text = format!("\n{name}, {:.1} s measured\n", run.seconds);
    let mut row = |name: &str, value: String| text.push_str(&format!("  {name:<17} {value}\n"));
    let target = run.target_per_s.map_or(String::new(), |target| format!(" of {} asked for", three(target)));
    row("sent", format!("{} msg/s{target}", three(run.published_per_s)));
    if let Some(rate) = run.confirmed_per_s {
        row("confirmed", format!("{} msg/s", three(rate)));
    }
    if let Some(rate) = run.received_per_s {
        row("received", format!("{} msg/s", three(rate)));
    }
    for (name, latency) in
        [("handed to socket", &run.handed), ("confirm", &run.confirm), ("end to end", &run.end_to_end)]
    {
        if let Some(latency) = latency {
            row(name, percentiles(latency));
        }
    }
    for (name, latency) in &run.stages {
        row(name, percentiles(latency));
    }
    let of_step = |figures: &Figures| percentiles(&Latency { figures: figures.clone(), curve: Vec::new() });
    for (size, figures) in run.by_size.iter().filter(|_| run.by_size.len() > 1) {
        row(&format!("end to end, {size} B"), of_step(figures));
    }
    for (rate, figures) in &run.by_rate {
        let at = run.at_rates.iter().find(|at| at.asked == *rate);
        let through = at.map_or(String::new(), |at| format!("{} came through, ", three(at.through())));
        row(&format!("at {}/s", three(*rate)), format!("{through}{}", of_step(figures)));
    }
    if let Some(held) = run.held() {
        row("held", held);
    }
    let c = &run.correctness;
    let optional = |known: Option<u64>| known.map_or("not known".to_owned(), count);
    let confirmed = match run.confirmed_per_s {
        None if c.published > 0 => "no confirms asked for".to_owned(),
        _ => format!("{} confirmed", count(c.confirmed)),
    };
    // Only what was promised can be lost.
    let lost = match (c.lost, c.unpromised_missing) {
        (None, Some(missing)) => format!("missing {} (nothing was promised)", count(missing)),
        (None, None) if run.received_per_s.is_none() => "lost not known (nothing was received)".to_owned(),
        (lost, _) => format!("lost {}", optional(lost)),
    };
    row(
        "messages",
        format!(
            "{} sent, {confirmed}, {} received, {} left in queues, {} unanswered",
            count(c.published),
            count(c.received),
            optional(c.left_in_queues),
            count(c.unanswered)
        ),
    );
    row(
        "checked",
        format!(
            "{lost}, duplicated {} (+{} flagged), reordered {}, corrupt {}, of other runs {}, nacked {}, returned {}",
            count(c.duplicated_unflagged),
            count(c.duplicated_flagged),
            count(c.reordered),
            count(c.corrupt),
            count(c.foreign),
            count(c.nacked),
            count(c.returned)
        ),
    );
    if !c.lost_examples.is_empty() {
        let what = if c.lost.is_some() { "lost" } else { "missing" };
        row("", format!("first {what}, publisher:sequence: {}", c.lost_examples.join(" ")));
    }
    let us = |name: &str, value: Option<f64>, per: &str| {
        value.map(|us| format!("{name} {} us a message {per}", three(us)).trim_end().to_owned())
    };
    let cost: Vec<String> = [
        us("publishing", run.cost.publishing_us_per_message, "sent"),
        us("consuming", run.cost.consuming_us_per_message, "received"),
        us("broker", run.cost.broker_us_per_message, &run.cost.broker_per),
    ]
    .into_iter()
    .flatten()
    .collect();
    row("CPU", cost.join(", "));
    if let (Some(cores), Some(rss)) = (run.cost.broker_cores, run.cost.broker_rss_bytes_max) {
        row("broker", format!("{cores:.2} cores, {} MB at most", rss / 1_000_000));
    }
    if let Some(written) = &run.cost.written {
        let side = if run.published_per_s > 0.0 { "sent" } else { "received" };
        row("disk", written.text(run.cost.written_messages, side));
    }
    if let Some(why) = &run.why_p99 {
        row("why p99", why.clone());
    }
    if let Some(held_back) = &run.held_back {
        row("trouble", held_back.text());
    }
    if run.connections_lost > 0 {
        row("trouble", format!("{} connections lost", run.connections_lost));
    }
    for note in &run.notes {
        row("note", note.clone());
    }
    for (told, _) in run.required.iter().filter(|(_, is_met)| *is_met) {
        row("met", told.clone());
    }
    if !run.not_asked.is_empty() {
        row("not asked for", run.not_asked.join(", "));
    }
    text.push_str(&format!("  {}", run.verdict().word()));
    let said = if run.missed.is_empty() { run.checked() } else { run.missed.join("; ") };
    text.push_str(&format!(": {said}"));
    text
}

fn percentiles(latency: &Latency) -> String {
    let f = &latency.figures;
    let told: Vec<String> = TOLD.iter().zip(f.told()).map(|(name, value)| format!("{name} {}", three(value))).collect();
    format!("{} max {} ms", told.join(" "), three(f.max_ms))
}
