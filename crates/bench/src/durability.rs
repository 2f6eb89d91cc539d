//! `leveret bench durability`: S4's three figures on this machine. How long one waits for each
//! stage, what each policy costs, and that the value at risk under *selective* stays within its
//! cap.
//!
//! Invariant: the stages of a figure are measured in one run, over one TCP connection, at the same
//! time; policies are measured one after the other at the same rate, because one policy's syncs
//! would serve the other's messages. A rate that was not held is never shown as held: the figure
//! names the one that was, and why.

mod risk;

use amqp::{Table, Value};
use page::figures::three;

use crate::Error;
use crate::broker::Broker;
use crate::client::{Client, QueueDeclare};
use crate::command::Ended;
use crate::options::table::Spec;
use crate::options::{Options, run_of};
use crate::record::{Curve, Figure, Latency, Recorded, Run};
use crate::run::Context;
use crate::screen::say;
use crate::series::{Series, broker_of};
use crate::words::{Given, Tool};

const TOOL: Tool = Tool {
    name: "durability",
    usage: "[OPTIONS]",
    own: &[
        Spec::value("seconds", "N", "seconds of each measurement (default 10)"),
        Spec::value(
            "rate",
            "N",
            "highest rate of all figures (default: the article's 200000 and 50000, 5000 for the risk)",
        ),
        Spec::value("figures", "1,2,3,risk", "which ones (default all)"),
        Spec::value("cap", "N", "value at risk that selective allows in the last part (default 5000)"),
    ],
    makes_runs: true,
};

/// Messages unconfirmed at most: a second of the article's highest rate, so that the window is
/// never what holds the rate back.
const WINDOW: u64 = 200_000;

/// A figure that was not held is tried again at what was held, so often.
const TRIES_MAX: u32 = 3;

/// Syncs a second under selective.
const SYNCS_PER_SECOND: f64 = 10.0;

/// What has not left the first node's memory when it is confirmed.
const ASYNC: &str = "async (first node has it)";

/// The header that carries a message's value, and its value.
const VALUE_HEADER: &str = "x-value";
const VALUE: u64 = 100;

/// Messages a second that nobody asks of one connection.
const RATE_MAX: f64 = 10_000_000.0;

/// The same while the value at risk is asked for, where nobody says.
const RATE_AT_RISK: f64 = 5000.0;

/// The largest cap on the value at risk.
const CAP_MAX: u64 = 1_000_000_000_000_000;

/// One of the article's figures.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: &'static str,
    title: &'static str,
    body_bytes: u64,
    rate: f64,
}

const FIGURES: [Asked; 3] = [
    Asked {
        number: "1",
        title: "256 B, up to 200,000 msg/s: which stage one waits for",
        body_bytes: 256,
        rate: 200_000.0,
    },
    Asked { number: "2", title: "1 KB, up to 50,000 msg/s: what each policy costs", body_bytes: 1024, rate: 50_000.0 },
    Asked {
        number: "3",
        title: "1 KB, up to 200,000 msg/s: what each policy costs",
        body_bytes: 1024,
        rate: 200_000.0,
    },
];

/// A queue that stands for a stage or a policy.
#[derive(Clone, Debug)]
struct Stage {
    name: &'static str,
    queue: &'static str,
    durable: bool,
    arguments: Table,
    has_value: bool,
}

impl Stage {
    /// How its queue was declared, in words.
    fn told(&self) -> String {
        let kind = if self.durable { "durable" } else { "transient" };
        let value = |value: &Value| match value {
            Value::LongString(text) => String::from_utf8_lossy(text).into_owned(),
            Value::I32(number) => number.to_string(),
            Value::I64(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        let arguments =
            self.arguments.iter().map(|(name, of)| format!("{}={}", String::from_utf8_lossy(name), value(of)));
        let arguments: Vec<String> = std::iter::once(kind.to_owned()).chain(arguments).collect();
        format!("queue {} ({})", self.queue, arguments.join(", "))
    }
}

/// What the broker under test can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Abilities {
    /// It knows `x-durability`.
    chooses: bool,
    /// It knows the levels of that for which the leader alone has to have a message.
    chooses_leader: bool,
    /// More than one node was named.
    is_cluster: bool,
}

/// A measured curve of a figure.
#[derive(Clone, Debug)]
struct Measured {
    name: String,
    latency: Latency,
    held: f64,
    asked: f64,
    why: Option<String>,
}

/// Runs all of it.
pub fn durability(words: &[String], context: &Context) -> Result<Ended, Error> {
    if words.iter().any(|word| word == "--help") {
        say(&TOOL.help(""));
        return Ok(Ended::Met);
    }
    let words = TOOL.read(words)?;
    if let Some(word) = words.rest.first() {
        return Err(Error::usage(format!("{word:?} is not expected here; leveret bench durability --help tells more")));
    }
    let seconds = words.whole("seconds", 10, 1, 3600)?;
    let highest = words.counted("rate", RATE_MAX, 100.0, RATE_MAX)?;
    let at_risk = words.counted("rate", RATE_AT_RISK, 100.0, RATE_MAX)?;
    let cap = words.whole("cap", 5000, VALUE, CAP_MAX)?;
    let wanted: Vec<&str> = words.text("figures").unwrap_or("1,2,3,risk").split(',').collect();
    if let Some(other) = wanted.iter().find(|name| !["1", "2", "3", "risk"].contains(name)) {
        return Err(Error::usage(format!("--figures {other}: 1, 2, 3 or risk are expected")));
    }
    let broker = broker_of(&words, words.text("uri").or(words.text("uris")).is_none())?;
    let mut lab = Lab { words: &words, broker, seconds, abilities: Abilities::default() };
    lab.abilities = lab.abilities()?;
    let mut series = Series::new("Durability against latency", &words, context)?;
    let ran = figures(&mut lab, &wanted, (highest, at_risk, cap), &mut series);
    series.finish(ran, "")
}

fn figures(
    lab: &mut Lab<'_>,
    wanted: &[&str],
    (highest, at_risk, cap): (f64, f64, u64),
    series: &mut Series<'_>,
) -> Result<(), Error> {
    for figure in FIGURES.iter().filter(|figure| wanted.contains(&figure.number)) {
        let mut absent = lab.absent();
        if highest < figure.rate {
            absent.push(format!("Rates above {} were not tried: --rate.", three(highest)));
        }
        let figure = Asked { rate: figure.rate.min(highest), ..*figure };
        let measured = match figure.number {
            "1" => lab.stages(&figure, series)?,
            _ => lab.policies(&figure, series)?,
        };
        say(&text(&figure, &measured));
        series.figure(drawn(&figure, measured, absent));
    }
    if wanted.contains(&"risk") {
        let figure = risk::shown(lab, (at_risk, cap), series)?;
        series.figure(figure);
    }
    Ok(())
}

/// The machinery of all figures.
struct Lab<'a> {
    words: &'a Given,
    broker: Option<Broker>,
    seconds: u64,
    abilities: Abilities,
}

impl Lab<'_> {
    fn options(&self, text: &str) -> Result<Options, Error> {
        // A rate that is not held is tried lower, and a broker that is killed has none.
        let mut options = Options { judges_rate: false, ..run_of(&self.words.handed_on(text))? };
        if let Some(broker) = &self.broker {
            options.uris = broker.uris();
        }
        Ok(options)
    }

    fn client(&self) -> Result<Client, Error> {
        let options = self.options("")?;
        let mut client = Client::connect(&options.uris[0], &options)?;
        client.open_channel(1)?;
        Ok(client)
    }

    /// A broker that knows `x-durability` refuses a level that does not exist; others do not look
    /// at it.
    fn abilities(&self) -> Result<Abilities, Error> {
        let chooses = !self.takes_level("no-such-level")?;
        let chooses_leader = chooses && self.takes_level("leader-written")?;
        Ok(Abilities { chooses, chooses_leader, is_cluster: self.options("")?.uris.len() > 1 })
    }

    /// Whether a queue with this level can be declared.
    fn takes_level(&self, level: &'static str) -> Result<bool, Error> {
        let mut client = self.client()?;
        let probe = durable("durability-probe", &[("x-durability", level)]);
        let taken = match declare(&mut client, &probe) {
            Ok(_) => {
                delete(&mut client, probe.queue)?;
                true
            }
            Err(Error::Refused { code: 406, .. }) => false,
            Err(why) => return Err(why),
        };
        client.close();
        Ok(taken)
    }

    /// What waits for no disk. One node has it in memory; of a cluster that lets a queue choose, a
    /// majority has: for less there are levels of the leader alone.
    fn unsynced(&self) -> Stage {
        let written = durable("durability-written", &[("x-durability", "written")]);
        match (self.abilities.chooses, self.abilities.is_cluster) {
            (true, true) => Stage { name: "replicated (a majority has it)", ..written },
            (true, false) => Stage { name: ASYNC, ..written },
            (false, _) => Stage { name: ASYNC, durable: false, ..durable("durability-transient", &[]) },
        }
    }

    fn synced(&self) -> Stage {
        let quorum = durable("durability-quorum", &[("x-queue-type", "quorum")]);
        let synced = durable("durability-synced", &[("x-durability", "synced")]);
        match (self.abilities.chooses, self.abilities.is_cluster) {
            (true, true) => Stage { name: "synced (on a majority's disks)", ..synced },
            (true, false) => Stage { name: "synced", ..synced },
            (false, false) => Stage { name: "synced", ..quorum },
            (false, true) => {
                // One member: its own disk and nobody else's, or it would be the replicated stage
                // again.
                let mut stage = Stage { name: "synced (one node's disk)", ..quorum };
                stage.arguments.push("x-quorum-initial-group-size", Value::I32(1));
                stage
            }
        }
    }

    /// What waits for the leader alone, on several nodes: on one it is what waits for a majority.
    fn of_leader(&self) -> [Option<Stage>; 2] {
        let stage = |name, queue, level| Stage { name, ..durable(queue, &[("x-durability", level)]) };
        let is_there = self.abilities.chooses_leader && self.abilities.is_cluster;
        [
            stage("async (the leader has it)", "durability-leader-written", "leader-written"),
            stage("leader synced (on its disk)", "durability-leader-synced", "leader-synced"),
        ]
        .map(|stage| is_there.then_some(stage))
    }

    /// What a broker that does not let a queue choose does with a quorum queue on several nodes.
    fn replicated(&self) -> Option<Stage> {
        let stage = durable("durability-replicated", &[("x-queue-type", "quorum")]);
        (!self.abilities.chooses && self.abilities.is_cluster)
            .then_some(Stage { name: "replicated (and synced by a majority)", ..stage })
    }

    /// A sync ten times a second at this rate, by accumulated value.
    fn selective(&self, rate: f64) -> Option<Stage> {
        if !self.abilities.chooses {
            return None;
        }
        let cap = ((rate / SYNCS_PER_SECOND) as u64 * VALUE).max(VALUE);
        let mut stage = Stage {
            name: "selective (10 syncs a second by value)",
            has_value: true,
            ..durable(
                "durability-selective",
                &[("x-durability", "selective"), ("x-durability-value-header", VALUE_HEADER)],
            )
        };
        stage.arguments.push("x-durability-value-cap", Value::I64(cap as i64));
        Some(stage)
    }

    /// What cannot be measured on this broker, in words.
    fn absent(&self) -> Vec<String> {
        let mut absent = Vec::new();
        if !self.abilities.is_cluster {
            absent.push(
                "Replicated: there is one node, so nothing is replicated; --nodes starts several, --uris names those of \
                 a cluster."
                    .to_owned(),
            );
        } else if self.abilities.chooses && !self.abilities.chooses_leader {
            absent.push(
                "Async: this broker confirms nothing before a majority has it, so there is no curve of one node's \
                 memory."
                    .to_owned(),
            );
        }
        if !self.abilities.chooses {
            absent.push("Selective: this broker does not know x-durability. Async is a transient queue here, synced a quorum queue.".to_owned());
            if self.abilities.is_cluster {
                absent.push(
                    "Replicated: a quorum queue on all nodes, each of which syncs before it answers, so it is never replicated alone; \
                     synced is a quorum queue with one member."
                        .to_owned(),
                );
            }
        }
        absent
    }

    /// Figure 1: all stages in the same run, each a channel of one connection.
    fn stages(&mut self, figure: &Asked, series: &mut Series<'_>) -> Result<Vec<Measured>, Error> {
        let [written, synced] = self.of_leader();
        let all = [written, synced, Some(self.unsynced()), self.replicated(), Some(self.synced())];
        let stages: Vec<Stage> = all.into_iter().flatten().collect();
        let (run, asked) = self.at_a_held_rate(figure, &stages, "stages", series)?;
        let why = why_not_held(&run, figure.rate);
        let of = |name: &str, latency: Latency| Measured {
            name: name.to_owned(),
            latency,
            held: run.published_per_s,
            asked,
            why: why.clone(),
        };
        let handed = run.handed.clone().map(|latency| of("handed to the socket", latency));
        Ok(handed.into_iter().chain(run.stages.iter().map(|(name, latency)| of(name, latency.clone()))).collect())
    }

    /// Figures 2 and 3: one policy after the other, all at the same rate, which is the highest
    /// tried that all of them held.
    fn policies(&mut self, figure: &Asked, series: &mut Series<'_>) -> Result<Vec<Measured>, Error> {
        let mut rate = figure.rate;
        let mut why = None;
        for attempt in 1.. {
            let mut measured = Vec::new();
            let mut held = None;
            for policy in self.policies_at(rate) {
                let run = self.at(figure, std::slice::from_ref(&policy), policy.name, rate, series)?;
                if !is_held(&run) {
                    why = why_not_held(&run, rate)
                        .map(|why| format!("{} did not hold {}: {why}", policy.name, three(rate)));
                    held = Some(run.clone());
                }
                if let Some(latency) = run.confirm.clone() {
                    let (held, why) = (run.published_per_s, why.clone());
                    measured.push(Measured { name: policy.name.to_owned(), latency, held, asked: rate, why });
                }
                // The others would be measured at a rate that the figure cannot show.
                if held.is_some() && attempt < TRIES_MAX {
                    break;
                }
            }
            match held {
                Some(run) if attempt < TRIES_MAX => rate = lower(&run, rate),
                _ => return Ok(measured),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn policies_at(&self, rate: f64) -> Vec<Stage> {
        // The most expensive first: what it does not hold need not be tried with the others.
        let [leader_written, leader_synced] = self.of_leader();
        let majority = [Some(self.synced()), self.selective(rate), self.replicated()];
        let quicker = [leader_synced, Some(self.unsynced()), leader_written];
        majority.into_iter().chain(quicker).flatten().collect()
    }

    /// Runs at the figure's rate, and lower until one is held. Returns the last run and the rate
    /// that it was asked for.
    fn at_a_held_rate(
        &mut self,
        figure: &Asked,
        stages: &[Stage],
        label: &str,
        series: &mut Series<'_>,
    ) -> Result<(Run, f64), Error> {
        let mut rate = figure.rate;
        for attempt in 1.. {
            let run = self.at(figure, stages, label, rate, series)?;
            if is_held(&run) || attempt == TRIES_MAX {
                return Ok((run, rate));
            }
            rate = lower(&run, rate);
        }
        unreachable!("the last attempt returns")
    }

    fn at(
        &mut self,
        figure: &Asked,
        stages: &[Stage],
        label: &str,
        rate: f64,
        series: &mut Series<'_>,
    ) -> Result<Run, Error> {
        let label = format!("figure {}, {label}, {} msg/s", figure.number, three(rate));
        Ok(self.once(stages, figure.body_bytes, rate, &label, series)?.run.clone())
    }

    fn once<'s>(
        &mut self,
        stages: &[Stage],
        body: u64,
        rate: f64,
        label: &str,
        series: &'s mut Series<'_>,
    ) -> Result<&'s mut Recorded, Error> {
        series.context().go_on()?;
        let mut client = self.client()?;
        for stage in stages {
            delete(&mut client, stage.queue)?;
            declare(&mut client, stage)?;
        }
        let names: Vec<&str> = stages.iter().map(|stage| stage.queue).collect();
        let each = rate / stages.len() as f64;
        let window = WINDOW / stages.len() as u64;
        let value = if stages.iter().any(|stage| stage.has_value) {
            format!("--message-properties {VALUE_HEADER}={VALUE}")
        } else {
            String::new()
        };
        let warmup = (self.seconds / 5).min(3);
        let text = format!(
            "--producers 1 --producer-channel-count {} --consumers 0 --exchange= --predeclared --queue {} --rate {each} --size {body} \
             --confirm {window} --flag persistent --time {} --warmup {warmup} {value}",
            stages.len(),
            names.join(","),
            self.seconds + warmup
        );
        let mut options = self.options(&text)?;
        options.topology.spreads_channels = true;
        options.stages = stages.iter().map(|stage| stage.name.to_owned()).collect();
        let recorded = series.run_options(label, options, self.broker.as_ref())?;
        // The line of the run does not declare them, and whoever repeats it must.
        recorded
            .run
            .notes
            .push(format!("declared before: {}", stages.iter().map(Stage::told).collect::<Vec<_>>().join("; ")));
        for stage in stages {
            delete(&mut client, stage.queue)?;
        }
        client.close();
        // Of a run that was cut short no curve is drawn.
        series.context().go_on()?;
        Ok(series.last())
    }
}

fn durable(queue: &'static str, arguments: &[(&'static str, &'static str)]) -> Stage {
    let mut table = Table::new();
    arguments.iter().for_each(|(name, value)| table.push(*name, Value::LongString((*value).into())));
    Stage { name: "", queue, durable: true, arguments: table, has_value: false }
}

fn declare(client: &mut Client, stage: &Stage) -> Result<(), Error> {
    let declare = QueueDeclare {
        name: stage.queue,
        durable: stage.durable,
        arguments: stage.arguments.clone(),
        ..QueueDeclare::default()
    };
    client.declare_queue(&declare).map(|_| ())
}

/// Deletes a queue; one that is not there is gone already.
fn delete(client: &mut Client, queue: &str) -> Result<(), Error> {
    let method = amqp::wire::method::Method::QueueDelete {
        ticket: 0,
        queue: bytes::Bytes::copy_from_slice(queue.as_bytes()),
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    match client.call(1, method, &format!("the end of queue {queue}")) {
        Ok(_) => Ok(()),
        Err(Error::Refused { code: 404, .. }) => client.open_channel(1),
        Err(why) => Err(why),
    }
}

fn is_held(run: &Run) -> bool {
    let target = run.target_per_s.unwrap_or(0.0);
    // Sent and confirmed; and what was late at the end was not a queue that grew.
    let confirmed = run.confirmed_per_s.unwrap_or(0.0);
    run.published_per_s >= target * 0.99 && confirmed >= target * 0.98
}

/// Why the article's rate was not reached, from what was busy.
fn why_not_held(run: &Run, wanted: f64) -> Option<String> {
    if run.published_per_s >= wanted * 0.99 && run.confirmed_per_s.is_none_or(|confirmed| confirmed >= wanted * 0.98) {
        return None;
    }
    let Some(broker) = run.cost.broker_cores else {
        return Some("the broker is not on this machine, so what held it back was not seen".to_owned());
    };
    let load = run.cost.publishing_us_per_message.unwrap_or(0.0) * run.published_per_s / 1e6;
    let written = match run.cost.broker_write_bytes_per_message {
        Some(bytes) => format!("; {:.0} MB/s went to disk", bytes * run.published_per_s / 1e6),
        None => String::new(),
    };
    let (cores, before) = (run.machine.cores, run.machine.load_before);
    Some(format!(
        "{} (broker {broker:.2} and load {load:.2} of {cores} cores, load average before: {before:.1}{written})",
        run.circumstances(None).short()
    ))
}

/// Three quarters of what went through: near the limit there is a queue, and a figure would show
/// nothing else.
fn lower(run: &Run, rate: f64) -> f64 {
    let confirmed = run.confirmed_per_s.unwrap_or(run.published_per_s);
    round_down(confirmed.min(run.published_per_s) * 0.75).min(rate * 0.75).max(100.0)
}

/// Two digits that mean something.
fn round_down(rate: f64) -> f64 {
    let ten = 10f64.powf(rate.max(1.0).log10().floor() - 1.0);
    (rate / ten).floor() * ten
}

fn text(figure: &Asked, measured: &[Measured]) -> String {
    let mut text = format!("\nFigure {}: {}\n", figure.number, figure.title);
    for curve in measured {
        let f = &curve.latency.figures;
        text.push_str(&format!(
            "  {:<40} {:>8} msg/s  p50 {} p90 {} p99 {} p99.9 {} p99.99 {} ms\n",
            curve.name,
            three(curve.held),
            three(f.p50_ms),
            three(f.p90_ms),
            three(f.p99_ms),
            three(f.p999_ms),
            three(f.p9999_ms)
        ));
        if let Some(why) = &curve.why {
            text.push_str(&format!("  {:<40} held {}, not {}: {why}\n", "", three(curve.asked), three(figure.rate)));
        }
    }
    text
}

/// The figure as it is written down.
fn drawn(asked: &Asked, measured: Vec<Measured>, absent: Vec<String>) -> Figure {
    // Curves at one rate for one reason share a sentence.
    let mut not_held: Vec<(&str, f64, Vec<&str>)> = Vec::new();
    for curve in &measured {
        let Some(why) = &curve.why else { continue };
        match not_held.iter_mut().find(|(of, at, _)| of == why && *at == curve.asked) {
            Some((_, _, names)) => names.push(&curve.name),
            None => not_held.push((why, curve.asked, vec![&curve.name])),
        }
    }
    let not_held = not_held.into_iter().map(|(why, at, names)| {
        let (held, wanted) = (three(at), three(asked.rate));
        format!("{}: measured at {held} msg/s, not {wanted}: {why}.", names.join(", "))
    });
    let notes = absent.into_iter().chain(not_held).collect();
    let curve = |curve: Measured| Curve { name: curve.name, held_per_s: curve.held, latency: curve.latency };
    let title = format!("Figure {}: {}", asked.number, asked.title);
    Figure { title, notes, curves: measured.into_iter().map(curve).collect(), ..Figure::default() }
}

#[cfg(test)]
mod tests;
