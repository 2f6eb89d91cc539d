//! The plan of a run: requirement, workload, tests and candidate clusters, from a TOML file.
//!
//! Invariant: a plan that was read can be carried out as far as the machine allows. Rates rise,
//! counts fit their lists, names are distinct, and every cluster says where it is.

use std::ops::Range;

use serde::Deserialize;

use crate::input::{Document, Mistake, Placed};
use crate::prices::NODES_MAX;
use crate::requirement::Requirement;
use crate::results::{Configuration, Test};

/// Clusters in one plan.
pub const CLUSTERS_MAX: usize = 100;
/// Rates of one test.
pub const RATES_MAX: usize = 100;
/// The highest port that a local cluster may begin at, so that its nodes fit behind it, each with a
/// port for clients and one for the other nodes.
const PORT_MAX: u64 = 65_535 - 2 * NODES_MAX;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    #[serde(default = "whole")]
    time_scale: f64,
    requirement: Placed<Requirement>,
    workload: Option<Placed<Workload>>,
    rising: Option<Placed<RisingRow>>,
    lose_broker: Option<Placed<LossRow>>,
    slow_consumers: Option<Placed<AdverseRow>>,
    publisher_peak: Option<Placed<AdverseRow>>,
    #[serde(default)]
    cluster: Vec<Placed<ClusterRow>>,
}

fn whole() -> f64 {
    1.0
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RisingRow {
    rates: Option<Vec<f64>>,
    seconds: Option<f64>,
    stop_after_short: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LossRow {
    rates: Option<Vec<f64>>,
    seconds: Option<f64>,
    #[serde(default = "third")]
    lose_after: f64,
}

fn third() -> f64 {
    0.3
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdverseRow {
    rates: Option<Vec<f64>>,
    consumers: Option<Vec<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterRow {
    name: String,
    nodes: u64,
    machine: String,
    vcpus: f64,
    volume: String,
    #[serde(default)]
    uris: Vec<String>,
    lose_command: Option<Vec<String>>,
    restore_command: Option<Vec<String>>,
    local: Option<Placed<Local>>,
}

/// What publishers and consumers do in every test.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Queues.
    pub queues: u64,
    /// Publishers, at most one channel each.
    pub publishers: u64,
    /// Consumers, at least.
    pub consumers: u64,
    /// Body.
    pub message_bytes: u64,
    /// Work a message in a consumer.
    pub work_us: u64,
    /// Unconfirmed messages a publisher.
    pub confirm: u64,
    /// Prefetch of a consumer.
    pub prefetch: u64,
    /// Arguments of queues, as the load generator reads them.
    pub queue_args: String,
}

impl Default for Workload {
    /// The study's.
    fn default() -> Workload {
        Workload {
            queues: 100,
            publishers: 200,
            consumers: 200,
            message_bytes: 1024,
            work_us: 10_000,
            confirm: 1000,
            prefetch: 1000,
            queue_args: "x-queue-type=quorum".to_owned(),
        }
    }
}

/// The rates of one test, and what else belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Which test.
    pub test: Test,
    /// Messages a second, rising.
    pub rates: Vec<f64>,
    /// Consumers at each rate; empty leaves it to the workload.
    pub consumers: Vec<u64>,
    /// Length of a step in seconds, for tests with steady rates.
    pub seconds: f64,
    /// The part of a step after which the broker is lost.
    pub lose_after: f64,
    /// Rising tests of a cluster end after so many targets in a row were missed.
    pub stop_after_short: Option<u64>,
}

/// How a candidate is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// It runs already.
    Addresses {
        /// One URI a node.
        uris: Vec<String>,
        /// Loses one node; without it that test is skipped.
        lose_command: Option<Vec<String>>,
        /// Brings it back.
        restore_command: Option<Vec<String>>,
    },
    /// It is started on this machine.
    Local(Local),
}

/// A cluster on this machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    /// AMQP port of the first node; the others follow.
    pub port: u16,
    /// What starts a node, with `{port}`, `{data}`, `{name}`, `{index}`, `{first}`, `{peers}`,
    /// `{peer}` and `{secret}` to fill in; this program's server when absent.
    pub command: Option<Vec<String>>,
    /// What makes a node after the first join it.
    pub join_command: Option<Vec<String>>,
    /// Where data folders are made.
    pub folder: Option<String>,
    /// CPUs of a node.
    pub cpu: Option<f64>,
    /// Memory of a node.
    pub memory_mib: Option<f64>,
    /// Disk operations a second of a node.
    pub iops: Option<f64>,
    /// Disk throughput of a node.
    pub mib_s: Option<f64>,
    /// How long a node may take to answer.
    #[serde(default = "minute")]
    pub start_seconds: f64,
}

fn minute() -> f64 {
    60.0
}

impl Local {
    /// Whether its nodes find each other by themselves, and so are started together.
    pub fn forms_itself(&self, nodes: u64) -> bool {
        nodes > 1 && self.join_command.is_none()
    }
}

impl Candidate {
    /// Whether a node of it can be lost; else why not.
    pub fn can_lose_node(&self) -> Result<(), String> {
        match &self.place {
            Place::Addresses { lose_command: None, .. } => {
                Err("no lose_command was given for this cluster, so no node of it can be killed".to_owned())
            }
            Place::Local(_) if self.configuration.nodes < 2 => Err("a cluster of one node has none to lose".to_owned()),
            _ => Ok(()),
        }
    }
}

/// A candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What it is.
    pub configuration: Configuration,
    /// Where it is.
    pub place: Place,
}

/// A plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The study's durations are multiplied by this; those that the plan states are not.
    pub time_scale: f64,
    /// What is asked for.
    pub requirement: Requirement,
    /// What is done.
    pub workload: Workload,
    /// Tests, in order.
    pub series: Vec<Series>,
    /// Candidates, in order.
    pub candidates: Vec<Candidate>,
}

/// The rates of the study: 1,000, then 5,000 to 70,000 in steps of 5,000.
fn study_rates() -> Vec<f64> {
    [1000.0].into_iter().chain((1..=14).map(|step| 5000.0 * f64::from(step))).collect()
}

/// The adverse tests of the study, each with its consumers.
const ADVERSE_RATES: [f64; 3] = [10_000.0, 20_000.0, 30_000.0];
const ADVERSE_CONSUMERS: [u64; 3] = [200, 300, 400];
const STEP_SECONDS: f64 = 1800.0;

impl Plan {
    /// Reads a plan.
    pub fn read(document: &Document) -> Result<Plan, Mistake> {
        let file: PlanFile = document.toml()?;
        let (top, asked, time_scale) = (0..0, file.requirement.span(), file.time_scale);
        let requirement = file.requirement.into_inner();
        document.above_zero(&top, &[("time_scale", Some(time_scale))])?;
        document.above_zero(&asked, &[("rate", Some(requirement.rate)), ("p99_ms", Some(requirement.p99_ms))])?;
        let workload = file.workload.map_or(Ok(Workload::default()), |row| read_workload(document, row))?;
        let mut series = Vec::new();
        let of = |test, rates| Series {
            test,
            rates,
            consumers: vec![],
            seconds: 0.0,
            lose_after: 1.0,
            stop_after_short: None,
        };
        if let Some(row) = file.rising {
            let (at, row) = (row.span(), row.into_inner());
            let (rates, seconds) = steady(document, &at, row.rates, row.seconds, time_scale)?;
            series.push(Series { seconds, stop_after_short: row.stop_after_short, ..of(Test::Rising, rates) });
        }
        if let Some(row) = file.lose_broker {
            let (at, row) = (row.span(), row.into_inner());
            let (rates, seconds) = steady(document, &at, row.rates, row.seconds, time_scale)?;
            document.above_zero(&at, &[("lose_after", Some(row.lose_after))])?;
            if row.lose_after >= 1.0 {
                return Err(document.mistake(&at, "lose_after", "is a part of the step: below 1"));
            }
            series.push(Series { seconds, lose_after: row.lose_after, ..of(Test::LoseBroker, rates) });
        }
        for (test, row) in [(Test::SlowConsumers, file.slow_consumers), (Test::PublisherPeak, file.publisher_peak)] {
            let Some(row) = row else { continue };
            if test == Test::SlowConsumers && workload.work_us == 0 {
                let what = "must be above zero for [slow_consumers]: three times no work is no slower";
                return Err(Mistake { field: "work_us".to_owned(), ..Mistake::of_file(&document.file, what) });
            }
            let (rates, consumers) = adverse(document, &row.span(), row.into_inner())?;
            series.push(Series { consumers, ..of(test, rates) });
        }
        let candidates = read_candidates(document, file.cluster)?;
        if series.is_empty() {
            let what = "there is no test: write [rising], [lose_broker], [slow_consumers] or [publisher_peak]";
            return Err(Mistake::of_file(&document.file, what));
        }
        if candidates.is_empty() {
            return Err(Mistake::of_file(&document.file, "there is no [[cluster]] to test"));
        }
        Ok(Plan { time_scale, requirement, workload, series, candidates })
    }

    /// A number that differs between plans that measure different things (FNV-1a over the values).
    pub fn fingerprint(&self) -> String {
        // What a configuration has got since, and a plan never states in it: files that were begun
        // before go on.
        let text = format!("{self:?}").replace("iops: None, mib_s: None, note:", "note:");
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        format!("{hash:016x}")
    }
}

fn read_workload(document: &Document, row: Placed<Workload>) -> Result<Workload, Mistake> {
    let (at, row) = (row.span(), row.into_inner());
    let counts = [
        ("queues", row.queues),
        ("publishers", row.publishers),
        ("consumers", row.consumers),
        ("message_bytes", row.message_bytes),
        ("confirm", row.confirm),
        ("prefetch", row.prefetch),
    ];
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((field, _)) => Err(document.mistake(&at, field, "must be at least 1")),
        None => Ok(row),
    }
}

fn steady(
    document: &Document,
    at: &Range<usize>,
    rates: Option<Vec<f64>>,
    seconds: Option<f64>,
    time_scale: f64,
) -> Result<(Vec<f64>, f64), Mistake> {
    let rates = rates.map_or_else(|| Ok(study_rates()), |rates| rising(document, at, rates))?;
    document.above_zero(at, &[("seconds", seconds)])?;
    // What a person wrote is what they want to wait; the scale is for the study's own lengths. Whole
    // seconds, as the schedules of adverse tests are: the load generator's --time knows no others.
    Ok((rates, seconds.unwrap_or(STEP_SECONDS * time_scale).round().max(1.0)))
}

fn adverse(document: &Document, at: &Range<usize>, row: AdverseRow) -> Result<(Vec<f64>, Vec<u64>), Mistake> {
    let rates = match (row.rates, &row.consumers) {
        (Some(rates), _) => rates,
        (None, None) => return Ok((ADVERSE_RATES.to_vec(), ADVERSE_CONSUMERS.to_vec())),
        (None, Some(_)) => return Err(document.mistake(at, "consumers", "needs `rates`: there is one count for each")),
    };
    let rates = rising(document, at, rates)?;
    match row.consumers {
        None => Ok((rates, Vec::new())),
        Some(consumers) if consumers.len() == rates.len() && !consumers.contains(&0) => Ok((rates, consumers)),
        Some(_) => Err(document.mistake(at, "consumers", format!("must be {} counts, one for each rate", rates.len()))),
    }
}

fn rising(document: &Document, at: &Range<usize>, rates: Vec<f64>) -> Result<Vec<f64>, Mistake> {
    let wrong = |what: String| Err(document.mistake(at, "rates", what));
    if rates.is_empty() || rates.len() > RATES_MAX {
        return wrong(format!("must be 1 to {RATES_MAX} rates"));
    }
    if rates.contains(&0.0) {
        return wrong("must be above zero, and one is 0".to_owned());
    }
    if let Some(pair) = rates.windows(2).find(|pair| pair[1] <= pair[0]) {
        return wrong(format!("must rise, and {} comes after {}", pair[1], pair[0]));
    }
    Ok(rates)
}

fn read_candidates(document: &Document, rows: Vec<Placed<ClusterRow>>) -> Result<Vec<Candidate>, Mistake> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for row in rows {
        let (at, row) = (row.span(), row.into_inner());
        let wrong = |field: &str, what: String| Err(document.mistake(&at, field, what));
        let (name, nodes, vcpus) = (&row.name, row.nodes, row.vcpus);
        let is_same =
            |known: &Candidate| known.configuration.cluster == *name && known.configuration.volume == row.volume;
        if name.is_empty() || candidates.iter().any(is_same) {
            return wrong("name", format!("{name:?} is empty, or there twice with the same volume"));
        }
        if candidates.len() == CLUSTERS_MAX {
            return wrong("cluster", format!("at most {CLUSTERS_MAX} in one plan"));
        }
        if !(1..=NODES_MAX).contains(&nodes) {
            return wrong("nodes", format!("must be from 1 to {NODES_MAX}"));
        }
        document.above_zero(&at, &[("vcpus", Some(vcpus))])?;
        for (field, command) in [("lose_command", &row.lose_command), ("restore_command", &row.restore_command)] {
            if command.is_some() && row.local.is_some() {
                return wrong(
                    field,
                    "is for clusters given by `uris`: a node that is started here is killed here".to_owned(),
                );
            }
        }
        let place = match (row.uris, row.local) {
            (uris, None) if !uris.is_empty() => {
                Place::Addresses { uris, lose_command: row.lose_command, restore_command: row.restore_command }
            }
            (uris, Some(local)) if uris.is_empty() => Place::Local(read_local(document, local, nodes)?),
            _ => return wrong("uris", "give either `uris` of running nodes or `local`, how to start them".to_owned()),
        };
        if let Place::Local(Local { cpu: Some(cpu), .. }) = &place
            && *cpu != vcpus
        {
            let why = format!("contradicts cpu = {cpu} of this cluster's [cluster.local], which is what a node gets");
            return wrong("vcpus", format!("{vcpus} {why}"));
        }
        let of_machine = candidates.iter().map(|known| &known.configuration).find(|known| known.machine == row.machine);
        if let Some(known) = of_machine.filter(|known| known.vcpus != vcpus) {
            let (machine, other, before) = (&row.machine, &known.cluster, known.vcpus);
            let why = format!("contradicts cluster {other:?}, where machine {machine:?} has vcpus = {before}");
            return wrong("vcpus", format!("{vcpus} {why}"));
        }
        let configuration = Configuration {
            cluster: row.name,
            nodes,
            machine: row.machine,
            vcpus,
            volume: row.volume,
            iops: None,
            mib_s: None,
            note: None,
            line: 0,
        };
        candidates.push(Candidate { configuration, place });
    }
    Ok(candidates)
}

fn read_local(document: &Document, placed: Placed<Local>, nodes: u64) -> Result<Local, Mistake> {
    let (at, local) = (placed.span(), placed.into_inner());
    if !(1..=PORT_MAX).contains(&u64::from(local.port)) {
        return Err(document.mistake(&at, "port", format!("must be from 1 to {PORT_MAX}")));
    }
    if local.command.as_ref().is_some_and(Vec::is_empty) || local.join_command.as_ref().is_some_and(Vec::is_empty) {
        return Err(document.mistake(&at, "command", "must name a program"));
    }
    let is_told_of_peers = local.command.as_ref().is_none_or(|words| words.iter().any(|word| word.contains("{peers}")));
    if nodes > 1 && !is_told_of_peers && local.join_command.is_none() {
        let what = "is missing: without it, or {peers} in `command`, the nodes would be brokers of their own";
        return Err(document.mistake(&at, "join_command", what));
    }
    let limits = [
        ("cpu", local.cpu),
        ("memory_mib", local.memory_mib),
        ("iops", local.iops),
        ("mib_s", local.mib_s),
        ("start_seconds", Some(local.start_seconds)),
    ];
    document.above_zero(&at, &limits)?;
    Ok(local)
}
