//! Predicting configurations that were not measured, with the error that leaving measured ones out
//! has shown.
//!
//! Two roads. With enough configurations of its own the model is fitted on them. With fewer, one
//! small machine say, the *form* is borrowed from the study (how CPUs, copies and agreement share
//! the time of a message) and only its scale is measured here. Invariant: what was measured beats
//! what is predicted. Every prediction carries a band, and everything assumed is in the output
//! beside it.

mod shown;

use serde::Serialize;

use page::figures::{counted, three};

use crate::doubt::doubts;
use crate::latency::Curve;
use crate::model::{COPIES, Estimate, Model, Parameter, Point, Shape, Validation, student, validate};
use crate::outcome::{Outcome, Shown, outcomes};
use crate::prices::{Basis, NODES_MAX, PriceList};
use crate::requirement::Requirement;
use crate::results::{Configuration, Results};
use crate::study;

/// Node counts that are tried when nobody names candidates: what the study tried.
const NODES_TRIED: [u64; 4] = [3, 5, 7, 9];

/// Times that a message is written to a volume, at most: once to the log and, where consumers fall
/// behind, once more.
const WRITES_MAX: f64 = 2.0;

/// Candidates in one prediction.
pub const CANDIDATES_MAX: usize = 1000;

/// What is asked of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The requirement that verdicts are about.
    pub requirement: Requirement,
    /// Candidates as `NODESxMACHINE/VOLUME`; all of the price file when empty.
    pub candidates: Vec<String>,
    /// Clusters or configurations that are not fitted but predicted.
    pub left_out: Vec<String>,
    /// Size of a message's body.
    pub message_bytes: f64,
}

/// Where the form of the model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Fitted on these measurements.
    Fitted,
    /// The study's, scaled to these measurements.
    Borrowed,
}

/// What limits a predicted rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// What the model covers: CPU, volume time, agreement.
    Model,
    /// The volume's bytes a second.
    Disk,
    /// The machine's network.
    Network,
}

/// A predicted configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// What.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// Its top rate.
    pub top: Estimate,
    /// The same with one node lost.
    pub top_with_one_lost: Option<Estimate>,
    /// What limits it.
    pub limit: Limit,
    /// The rate that is likely held without falling short, low and high.
    pub held: (f64, f64),
    /// p99 at the requirement's rate in milliseconds, where latencies were measured.
    pub p99_ms: Option<f64>,
    /// Whether the requirement's rate is held.
    pub verdict: Shown,
    /// A month, where priced.
    pub month: Option<f64>,
    /// The top rate that was measured of it, or of another configuration of the same shape.
    pub measured: Option<f64>,
}

/// What was measured of a configuration, beside what is predicted of others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Known {
    /// Cluster and volume.
    pub name: String,
    /// Highest target matched, with every lower one.
    pub held: Option<f64>,
    /// Lowest target missed.
    pub short_of: Option<f64>,
    /// Whether everything asked for was shown.
    pub verdict: Shown,
    /// A month of it, where priced.
    pub month: Option<f64>,
}

/// A prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The requirement of the verdicts.
    pub requirement: Requirement,
    /// Sign of the currency.
    pub currency: String,
    /// Where the form comes from.
    pub form: Form,
    /// Terms of the model.
    pub parameters: Vec<Parameter>,
    /// Configurations it was fitted or scaled on.
    pub fitted_on: usize,
    /// Standard deviation of relative errors over those.
    pub fit_error: f64,
    /// Leaving configurations out, then clusters.
    pub validations: Vec<Validation>,
    /// The part of its top rate that a configuration held: lower quartile, median, upper quartile.
    pub held_part: Option<(f64, f64, f64)>,
    /// p99 over the part of the top rate.
    pub latency: Option<Curve>,
    /// What was measured: it says more than any prediction.
    pub measured: Vec<Known>,
    /// Likely cheapest first where priced.
    pub predicted: Vec<Predicted>,
    /// Which of these were asked for by name.
    pub asked: Vec<String>,
    /// Measurements that look odd: a prediction from them is no better.
    pub doubts: Vec<String>,
    /// Everything taken for granted.
    pub assumptions: Vec<String>,
}

/// Predicts. The error is one line.
pub fn predict(results: &Results, prices: Option<&PriceList>, question: &Question) -> Result<Prediction, String> {
    let all = outcomes(results, &question.requirement);
    for configuration in &results.configurations {
        let contradicts = |why: String| format!("{}:{}: vcpus: {why}", results.file, configuration.line);
        prices.map_or(Ok(()), |prices| prices.same_vcpus(configuration)).map_err(contradicts)?;
    }
    let is_left =
        |known: &Configuration| question.left_out.iter().any(|left| *left == known.cluster || *left == known.name());
    for left in &question.left_out {
        if !all.iter().any(|o| *left == o.configuration.cluster || *left == o.configuration.name()) {
            return Err(format!("--leave-out {left}: nothing of that name was measured"));
        }
    }
    let used: Vec<&Outcome> = all.iter().filter(|outcome| !is_left(&outcome.configuration)).collect();
    let points: Vec<Point> = used.iter().map(|outcome| point(outcome)).collect();
    let mut assumptions = Vec::new();
    if let Some(note) = results.header.note.as_ref().filter(|_| results.header.plan.is_some()) {
        assumptions.push(format!("the measurements stand for clusters elsewhere: {note}"));
    }
    let engine = Engine::choose(&points, &used, &mut assumptions)?;
    let tops: Vec<(String, f64)> = used
        .iter()
        .filter(|outcome| outcome.short_of.is_some())
        .map(|outcome| (outcome.configuration.name(), outcome.top_rate))
        .collect();
    let latency = Curve::fit(results, &tops);
    let held_part = held_part(&used);
    assume(question, latency.as_ref(), held_part, &mut assumptions);
    let mut wanted: Vec<Configuration> = all.iter().map(|o| &o.configuration).filter(|c| is_left(c)).cloned().collect();
    let candidates = candidates(&all, prices, question)?;
    let is_named = !question.candidates.is_empty();
    let asked: Vec<String> = candidates.iter().filter(|_| is_named).map(Configuration::name).collect();
    wanted.extend(candidates);
    if wanted.is_empty() {
        return Err(
            "nothing to predict: name candidates with --candidate NODESxMACHINE/VOLUME, or leave measured ones out"
                .to_owned(),
        );
    }
    let mut predicted = Vec::new();
    for configuration in wanted {
        let is_it = |outcome: &&Outcome| outcome.configuration == configuration;
        let measured = all.iter().find(is_it).or_else(|| used.iter().copied().find(|of| is_alike(of, &configuration)));
        let one = Oracle { engine: &engine, prices, question, latency: latency.as_ref(), held_part };
        predicted.push(one.predicted(configuration, measured)?);
    }
    let rank = |one: &Predicted| match one.verdict {
        Shown::Yes => 0,
        Shown::NotShown => 1,
        Shown::No => 2,
    };
    predicted.sort_by(|a, b| {
        let money = |one: &Predicted| one.month.unwrap_or(0.0);
        rank(a).cmp(&rank(b)).then(money(a).total_cmp(&money(b))).then(b.top.rate.total_cmp(&a.top.rate))
    });
    Ok(Prediction {
        requirement: question.requirement,
        currency: prices.map_or("$", |prices| &prices.currency).to_owned(),
        form: engine.form,
        parameters: engine.parameters(),
        fitted_on: points.len(),
        fit_error: engine.model.sigma(),
        validations: engine.validations,
        held_part,
        latency,
        measured: all.iter().map(|outcome| known(outcome, prices, &question.requirement)).collect(),
        predicted,
        asked,
        doubts: doubts(results),
        assumptions,
    })
}

/// Of one shape: what was measured of the one holds for the other, whatever they are called.
fn is_alike(outcome: &Outcome, wanted: &Configuration) -> bool {
    let known = &outcome.configuration;
    known.nodes == wanted.nodes && known.vcpus == wanted.vcpus && known.volume == wanted.volume
}

fn known(outcome: &Outcome, prices: Option<&PriceList>, requirement: &Requirement) -> Known {
    let configuration = &outcome.configuration;
    Known {
        name: configuration.name(),
        held: outcome.held,
        short_of: outcome.short_of,
        verdict: outcome.verdict(requirement),
        month: prices.and_then(|prices| prices.month(configuration, Basis::Corrected).ok()),
    }
}

fn point(outcome: &Outcome) -> Point {
    let known = &outcome.configuration;
    let shape = Shape { nodes: known.nodes as f64, vcpus: known.vcpus, volume: known.volume.clone() };
    Point { name: known.name(), cluster: known.cluster.clone(), shape, rate: outcome.top_rate }
}

/// A fitted model, or the study's with a scale.
struct Engine {
    form: Form,
    model: Model,
    /// Measured here over predicted by the study.
    scale: f64,
    /// Relative error of that scale.
    scale_error: f64,
    /// The volume of the study that stands for one it does not know.
    stand_in: Option<String>,
    validations: Vec<Validation>,
}

impl Engine {
    fn choose(points: &[Point], used: &[&Outcome], assumptions: &mut Vec<String>) -> Result<Engine, String> {
        if points.is_empty() {
            return Err("nothing was measured that a prediction could start from".to_owned());
        }
        for outcome in used.iter().filter(|outcome| outcome.short_of.is_none() && outcome.held.is_some()) {
            assumptions.push(format!(
                "{} never fell short: its top rate is only known to be at least {} msg/s",
                outcome.configuration.name(),
                three(outcome.top_rate)
            ));
        }
        if let (Ok(model), true) = (Model::fit(points), varies(points)) {
            // Both validations need points enough to fit without some; without them the band is all
            // there is.
            let validations: Vec<Validation> =
                [false, true].into_iter().filter_map(|by| validate(points, by).ok()).collect();
            return Ok(Engine { form: Form::Fitted, model, scale: 1.0, scale_error: 0.0, stand_in: None, validations });
        }
        Engine::borrow(points, assumptions)
    }

    fn borrow(points: &[Point], assumptions: &mut Vec<String>) -> Result<Engine, String> {
        let told = |mistake: crate::input::Mistake| mistake.to_string();
        let reference = study::results().map_err(told)?;
        let asked = reference.header.requirement.ok_or("the study states its requirement")?;
        let reference: Vec<Point> = outcomes(&reference, &asked).iter().map(point).collect();
        let model = Model::fit(&reference)?;
        let fastest = study_volume(&model);
        let stand_in = |volume: &str| {
            if model.volumes().iter().any(|known| known == volume) { volume } else { &fastest }.to_owned()
        };
        let shapes: Vec<Shape> =
            points.iter().map(|p| Shape { volume: stand_in(&p.shape.volume), ..p.shape.clone() }).collect();
        let ratio = |(point, shape): (&Point, &Shape)| (point.rate / model.estimate(shape, 0.0).rate).ln();
        let ratios: Vec<f64> = points.iter().zip(&shapes).map(ratio).collect();
        let (mean, spread) = scale_of(&ratios, model.sigma());
        // What was measured here says more about predictions for here than the study does.
        let without = |at: usize| {
            let others: Vec<f64> = ratios.iter().enumerate().filter(|(of, _)| *of != at).map(|(_, r)| *r).collect();
            let (mean, spread) = scale_of(&others, model.sigma());
            (points[at].name.clone(), points[at].rate, scaled(model.estimate(&shapes[at], spread), mean.exp()))
        };
        let own = (points.len() > 1)
            .then(|| Validation::of("configuration measured here", (0..points.len()).map(without).collect()));
        assumptions.push(format!(
            "the form of the model is the study's (RabbitMQ 3.8 on {} clusters): how CPU, volume, copies and agreement share the time of a \
             message; only its scale is measured here, on {}: {:.2} times the study's rate for the same shape",
            reference.len(),
            counted(points.len(), "configuration"),
            mean.exp()
        ));
        let mut unknown: Vec<&str> = points.iter().map(|point| point.shape.volume.as_str()).collect();
        unknown.sort_unstable();
        unknown.dedup();
        for volume in unknown.iter().filter(|volume| stand_in(volume) != **volume) {
            assumptions.push(format!(
                "volume {volume} is not in the study: it is taken to behave as {fastest}, the study's fastest"
            ));
        }
        assumptions.push(
            "a node of the cluster is to the machine measured as the study's nodes are to each other: same kind of CPU, a network that is \
             not the limit, load spread evenly over leaders"
                .to_owned(),
        );
        let stand_in = Some(fastest.clone());
        let mut validations: Vec<Validation> = own.into_iter().collect();
        for (by_cluster, left_out) in [(false, "configuration of the study"), (true, "cluster of the study")] {
            validations.push(Validation { left_out, ..validate(&reference, by_cluster)? });
        }
        Ok(Engine { form: Form::Borrowed, model, scale: mean.exp(), scale_error: spread, stand_in, validations })
    }

    fn estimate(&self, shape: &Shape) -> Option<Estimate> {
        let is_known = self.model.volumes().contains(&shape.volume);
        let volume = if is_known { Some(&shape.volume) } else { self.stand_in.as_ref() }?.clone();
        Some(scaled(self.model.estimate(&Shape { volume, ..shape.clone() }, self.scale_error), self.scale))
    }

    fn parameters(&self) -> Vec<Parameter> {
        let scaled = |found: Parameter| Parameter { micros: found.micros / self.scale, ..found };
        self.model.parameters().into_iter().map(scaled).collect()
    }
}

fn scaled(of: Estimate, scale: f64) -> Estimate {
    Estimate { rate: of.rate * scale, low: of.low * scale, high: of.high * scale }
}

/// Mean and error of the logarithms of what was measured here over what the study predicts.
fn scale_of(ratios: &[f64], sigma: f64) -> (f64, f64) {
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    if ratios.len() == 1 {
        return (mean, sigma);
    }
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // A spread of few ratios is itself uncertain; never believe less than the form's own error.
    let factor = student(ratios.len() - 1) / student(usize::MAX);
    (mean, (variance.sqrt() * factor).max(sigma))
}

/// Nodes and CPUs must both vary, or the terms cannot be told apart and a fit would extrapolate
/// from nothing.
fn varies(points: &[Point]) -> bool {
    let distinct = |of: fn(&Point) -> f64| {
        let mut values: Vec<u64> = points.iter().map(|point| of(point).to_bits()).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    distinct(|point| point.shape.nodes) >= 3 && distinct(|point| point.shape.vcpus) >= 2
}

/// The study's volume with the least time.
fn study_volume(model: &Model) -> String {
    let time = |volume: &String| {
        let shape = Shape { nodes: COPIES, vcpus: 1.0, volume: volume.clone() };
        1.0 / model.estimate(&shape, 0.0).rate
    };
    model.volumes().iter().min_by(|a, b| time(a).total_cmp(&time(b))).expect("a fit has a volume").clone()
}

/// Quartiles of held over top rate.
fn held_part(used: &[&Outcome]) -> Option<(f64, f64, f64)> {
    let mut parts: Vec<f64> =
        used.iter().filter_map(|outcome| Some((outcome.held? / outcome.top_rate).min(1.0))).collect();
    parts.sort_by(f64::total_cmp);
    let last = parts.len().checked_sub(1)?;
    Some((parts[last / 4], parts[last / 2], parts[last - last / 4]))
}

fn assume(question: &Question, latency: Option<&Curve>, held: Option<(f64, f64, f64)>, assumptions: &mut Vec<String>) {
    assumptions.push(format!(
        "each message is on {COPIES} nodes, or on all where there are fewer; leaders and load are spread evenly"
    ));
    assumptions.push(format!(
        "a body has {} bytes and is written {WRITES_MAX} times at most: volumes with stated MiB/s, and machines with stated Mbit/s, bound \
         the rate",
        question.message_bytes
    ));
    match held {
        Some((low, middle, high)) => assumptions.push(format!(
            "a configuration holds a target up to {:.0} to {:.0} % of its top rate (median {:.0} %), as the measured ones did",
            100.0 * low,
            100.0 * high,
            100.0 * middle
        )),
        None => assumptions.push("no measured configuration matched a target: held rates are taken to be the top rate".to_owned()),
    }
    match latency {
        Some(curve) => assumptions.push(format!(
            "p99 is {:.1} ms idle plus {:.1} ms times load/(1 - load), fitted on {} measurements, typically within a factor of {:.2}",
            curve.idle_ms, curve.wait_ms, curve.steps, curve.error_factor
        )),
        None => assumptions.push("too few latencies below saturation were measured: p99 is not predicted".to_owned()),
    }
    assumptions.push(
        "a lost node is predicted as a cluster with one node less; the moments of the failover are not".to_owned(),
    );
    if question.requirement.backlog_rate.is_some() {
        assumptions.push("what a backlog costs is not predicted: measure it on the candidate you choose".to_owned());
    }
}

/// What to predict: named candidates, or all shapes of the price file that were not measured.
fn candidates(all: &[Outcome], prices: Option<&PriceList>, question: &Question) -> Result<Vec<Configuration>, String> {
    if !question.candidates.is_empty() {
        if question.candidates.len() > CANDIDATES_MAX {
            return Err(format!("at most {CANDIDATES_MAX} candidates"));
        }
        return question.candidates.iter().map(|text| candidate(text, all, prices)).collect();
    }
    let Some(prices) = prices else { return Ok(Vec::new()) };
    if !question.left_out.is_empty() {
        return Ok(Vec::new());
    }
    let mut made = Vec::new();
    for volume in &prices.volumes {
        for machine in &prices.machines {
            for nodes in NODES_TRIED {
                let is_measured = all.iter().any(|outcome| {
                    let known = &outcome.configuration;
                    known.nodes == nodes && known.machine == machine.name && known.volume == volume.name
                });
                if !is_measured && made.len() < CANDIDATES_MAX {
                    made.push(configuration(nodes, machine.name.clone(), machine.vcpus, volume.name.clone()));
                }
            }
        }
    }
    Ok(made)
}

fn configuration(nodes: u64, machine: String, vcpus: f64, volume: String) -> Configuration {
    Configuration {
        cluster: format!("{nodes}x{vcpus}"),
        nodes,
        machine,
        vcpus,
        volume,
        iops: None,
        mib_s: None,
        note: None,
        line: 0,
    }
}

/// Reads `7xc5.4xlarge/gp2` or `7x16/gp2`.
fn candidate(text: &str, all: &[Outcome], prices: Option<&PriceList>) -> Result<Configuration, String> {
    let wrong = |why: &str| {
        format!("--candidate {text}: {why}; write NODESxMACHINE/VOLUME or NODESxVCPUS/VOLUME, 7x16/gp2 say")
    };
    let (cluster, volume) = text.split_once('/').ok_or_else(|| wrong("the volume is missing"))?;
    let (nodes, machine) = cluster.split_once('x').ok_or_else(|| wrong("the number of nodes is missing"))?;
    let nodes: u64 =
        nodes.parse().ok().filter(|n| (1..=NODES_MAX).contains(n)).ok_or_else(|| wrong("nodes are from 1 to 1000"))?;
    if volume.is_empty() || machine.is_empty() {
        return Err(wrong("a part is empty"));
    }
    if let Some(known) = prices.and_then(|prices| prices.machine(machine)) {
        return Ok(configuration(nodes, known.name.clone(), known.vcpus, volume.to_owned()));
    }
    let measured = all.iter().map(|outcome| &outcome.configuration).find(|known| known.machine == machine);
    if let Some(known) = measured {
        return Ok(configuration(nodes, machine.to_owned(), known.vcpus, volume.to_owned()));
    }
    let vcpus: f64 = machine.parse().map_err(|_| wrong(&format!("no machine {machine:?} is known")))?;
    if !(vcpus.is_finite() && vcpus > 0.0) {
        return Err(wrong("CPUs are above zero"));
    }
    let of_price = prices.and_then(|prices| prices.machines.iter().find(|known| known.vcpus == vcpus));
    let name = of_price.map_or_else(|| format!("{vcpus} vCPU"), |known| known.name.clone());
    Ok(configuration(nodes, name, vcpus, volume.to_owned()))
}

struct Oracle<'a> {
    engine: &'a Engine,
    prices: Option<&'a PriceList>,
    question: &'a Question,
    latency: Option<&'a Curve>,
    held_part: Option<(f64, f64, f64)>,
}

impl Oracle<'_> {
    fn predicted(&self, configuration: Configuration, measured: Option<&Outcome>) -> Result<Predicted, String> {
        let shape = |nodes: u64| Shape {
            nodes: nodes as f64,
            vcpus: configuration.vcpus,
            volume: configuration.volume.clone(),
        };
        let estimate =
            |nodes: u64| self.engine.estimate(&shape(nodes)).map(|of| self.bounded(of, nodes, &configuration));
        let (top, limit) = estimate(configuration.nodes).ok_or_else(|| {
            let known = self.engine.model.volumes().join(", ");
            format!("{}: no volume {:?} was measured; there are {known}", configuration.name(), configuration.volume)
        })?;
        let requirement = &self.question.requirement;
        // With fewer than three nodes left there are fewer copies to make; that a loss makes a
        // cluster faster is no promise to give.
        let less = |of: Estimate| Estimate {
            rate: of.rate.min(top.rate),
            low: of.low.min(top.low),
            high: of.high.min(top.high),
        };
        let lost =
            (configuration.nodes > 1).then(|| estimate(configuration.nodes - 1)).flatten().map(|(of, _)| less(of));
        let judged = if requirement.lose_node { lost } else { Some(top) };
        let (low_part, _, high_part) = self.held_part.unwrap_or((1.0, 1.0, 1.0));
        let part_in_time = self.latency.map_or(1.0, |curve| curve.part_within(requirement.p99_ms));
        let of_measurement = measured.map(|outcome| outcome.verdict(requirement)).filter(|of| *of != Shown::NotShown);
        let verdict = match judged {
            _ if let Some(of) = of_measurement => of,
            // One node that is lost is the end of a cluster of one.
            None => Shown::No,
            Some(of) if of.low * low_part.min(part_in_time) >= requirement.rate => Shown::Yes,
            Some(of) if of.high * high_part.min(part_in_time) < requirement.rate => Shown::No,
            Some(_) => Shown::NotShown,
        };
        let month = match self.prices {
            Some(prices) if prices.machine(&configuration.machine).is_some() => {
                Some(prices.month(&configuration, Basis::Corrected)?)
            }
            _ => None,
        };
        Ok(Predicted {
            held: (top.low * low_part, top.high * high_part),
            p99_ms: self.latency.map(|curve| curve.p99_ms(requirement.rate / top.rate)).filter(|ms| ms.is_finite()),
            top_with_one_lost: lost,
            configuration,
            top,
            limit,
            verdict,
            month,
            measured: measured.map(|outcome| outcome.top_rate),
        })
    }

    /// The estimate under what the volume and the network carry.
    fn bounded(&self, of: Estimate, nodes: u64, configuration: &Configuration) -> (Estimate, Limit) {
        let nodes = nodes as f64;
        let copies = COPIES.min(nodes);
        let bytes = self.question.message_bytes;
        let volume = self.prices.and_then(|prices| prices.volume(&configuration.volume));
        let machine = self.prices.and_then(|prices| prices.machine(&configuration.machine));
        let disk =
            volume.and_then(|volume| volume.mib_s).map(|mib| mib * 1_048_576.0 * nodes / (copies * bytes * WRITES_MAX));
        // A message comes in and goes out once, and between nodes once for each further copy, in
        // one and out of another.
        let network = machine
            .and_then(|machine| machine.network_mbit)
            .map(|mbit| mbit * 125_000.0 * nodes / (2.0 * copies * bytes));
        let mut found = (of, Limit::Model);
        for (bound, limit) in [(disk, Limit::Disk), (network, Limit::Network)] {
            if let Some(bound) = bound.filter(|bound| *bound < found.0.rate) {
                let Estimate { low, high, .. } = found.0;
                found = (Estimate { rate: bound, low: low.min(bound), high: high.min(bound) }, limit);
            }
        }
        found
    }
}
