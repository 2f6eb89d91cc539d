//! The plan of a run: requirement, workload, tests and candidate clusters, from a TOML file.
//!
//! Invariant: a plan that was read can be carried out as far as the machine allows. Rates rise,
//! counts fit their lists, names are distinct, and every cluster says where it is.

use serde::Deserialize;

use crate::input::{Document, Mistake, Placed, not_negative, positive};
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
    time_scale: Option<Placed<f64>>,
    requirement: RequirementRow,
    #[serde(default)]
    workload: WorkloadRow,
    rising: Option<RisingRow>,
    lose_broker: Option<LossRow>,
    slow_consumers: Option<AdverseRow>,
    publisher_peak: Option<AdverseRow>,
    #[serde(default)]
    cluster: Vec<ClusterRow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequirementRow {
    rate: Placed<f64>,
    p99_ms: Placed<f64>,
    #[serde(default)]
    lose_node: bool,
    backlog_rate: Option<Placed<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadRow {
    queues: Option<Placed<u64>>,
    publishers: Option<Placed<u64>>,
    consumers: Option<Placed<u64>>,
    message_bytes: Option<Placed<u64>>,
    work_us: Option<Placed<u64>>,
    confirm: Option<Placed<u64>>,
    prefetch: Option<Placed<u64>>,
    queue_args: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RisingRow {
    rates: Option<Placed<Vec<f64>>>,
    seconds: Option<Placed<f64>>,
    stop_after_short: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LossRow {
    rates: Option<Placed<Vec<f64>>>,
    seconds: Option<Placed<f64>>,
    lose_after: Option<Placed<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdverseRow {
    rates: Option<Placed<Vec<f64>>>,
    consumers: Option<Placed<Vec<u64>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterRow {
    name: Placed<String>,
    nodes: Placed<u64>,
    machine: String,
    vcpus: Placed<f64>,
    volume: String,
    uris: Option<Placed<Vec<String>>>,
    lose_command: Option<Vec<String>>,
    restore_command: Option<Vec<String>>,
    local: Option<Placed<LocalRow>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LocalRow {
    port: Placed<u64>,
    command: Option<Vec<String>>,
    join_command: Option<Vec<String>>,
    folder: Option<String>,
    cpu: Option<Placed<f64>>,
    memory_mib: Option<Placed<f64>>,
    iops: Option<Placed<f64>>,
    mib_s: Option<Placed<f64>>,
    start_seconds: Option<Placed<f64>>,
}

/// What publishers and consumers do in every test.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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
    pub start_seconds: f64,
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
        let time_scale = file.time_scale.as_ref().map_or(Ok(1.0), |scale| positive(document, "time_scale", scale))?;
        let asked = &file.requirement;
        let backlog_rate =
            asked.backlog_rate.as_ref().map(|rate| not_negative(document, "backlog_rate", rate)).transpose()?;
        let requirement = Requirement {
            rate: positive(document, "rate", &asked.rate)?,
            p99_ms: positive(document, "p99_ms", &asked.p99_ms)?,
            lose_node: asked.lose_node,
            backlog_rate: backlog_rate.filter(|rate| *rate > 0.0),
        };
        let workload = read_workload(document, file.workload)?;
        let mut series = Vec::new();
        if let Some(row) = &file.rising {
            let (rates, seconds) = steady(document, row.rates.as_ref(), row.seconds.as_ref(), time_scale)?;
            let stop_after_short = row.stop_after_short;
            series.push(Series {
                test: Test::Rising,
                rates,
                consumers: vec![],
                seconds,
                lose_after: 1.0,
                stop_after_short,
            });
        }
        if let Some(row) = &file.lose_broker {
            let (rates, seconds) = steady(document, row.rates.as_ref(), row.seconds.as_ref(), time_scale)?;
            let lose_after = row.lose_after.as_ref().map_or(Ok(0.3), |part| positive(document, "lose_after", part))?;
            if lose_after >= 1.0 {
                let at = row.lose_after.as_ref().map_or(0..0, Placed::span);
                return Err(document.mistake(&at, "lose_after", "is a part of the step: below 1"));
            }
            series.push(Series {
                test: Test::LoseBroker,
                rates,
                consumers: vec![],
                seconds,
                lose_after,
                stop_after_short: None,
            });
        }
        for (test, row) in [(Test::SlowConsumers, &file.slow_consumers), (Test::PublisherPeak, &file.publisher_peak)] {
            let Some(row) = row else { continue };
            if test == Test::SlowConsumers && workload.work_us == 0 {
                let what = "must be above zero for [slow_consumers]: three times no work is no slower";
                return Err(Mistake { field: "work_us".to_owned(), ..Mistake::of_file(&document.file, what) });
            }
            let (rates, consumers) = adverse(document, row)?;
            series.push(Series { test, rates, consumers, seconds: 0.0, lose_after: 1.0, stop_after_short: None });
        }
        let candidates = read_candidates(document, &file.cluster)?;
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

fn read_workload(document: &Document, row: WorkloadRow) -> Result<Workload, Mistake> {
    let count = |field: &str, value: Option<Placed<u64>>, default: u64, first: u64| match value {
        None => Ok(default),
        Some(value) if *value.get_ref() >= first => Ok(*value.get_ref()),
        Some(value) => Err(document.mistake(&value.span(), field, format!("must be at least {first}"))),
    };
    Ok(Workload {
        queues: count("queues", row.queues, 100, 1)?,
        publishers: count("publishers", row.publishers, 200, 1)?,
        consumers: count("consumers", row.consumers, 200, 1)?,
        message_bytes: count("message_bytes", row.message_bytes, 1024, 1)?,
        work_us: count("work_us", row.work_us, 10_000, 0)?,
        confirm: count("confirm", row.confirm, 1000, 1)?,
        prefetch: count("prefetch", row.prefetch, 1000, 1)?,
        queue_args: row.queue_args.unwrap_or_else(|| "x-queue-type=quorum".to_owned()),
    })
}

fn steady(
    document: &Document,
    rates: Option<&Placed<Vec<f64>>>,
    seconds: Option<&Placed<f64>>,
    time_scale: f64,
) -> Result<(Vec<f64>, f64), Mistake> {
    let rates = rates.map_or_else(|| Ok(study_rates()), |rates| rising(document, rates))?;
    // What a person wrote is what they want to wait; the scale is for the study's own lengths.
    let written = seconds.map(|seconds| positive(document, "seconds", seconds)).transpose()?;
    // Whole seconds, as the schedules of adverse tests are: the load generator's --time knows no
    // others.
    Ok((rates, written.unwrap_or(STEP_SECONDS * time_scale).round().max(1.0)))
}

fn adverse(document: &Document, row: &AdverseRow) -> Result<(Vec<f64>, Vec<u64>), Mistake> {
    let Some(rates) = &row.rates else { return Ok((ADVERSE_RATES.to_vec(), ADVERSE_CONSUMERS.to_vec())) };
    let (at, rates) = (rates.span(), rising(document, rates)?);
    match &row.consumers {
        None => Ok((rates, Vec::new())),
        Some(consumers) if consumers.get_ref().len() == rates.len() && !consumers.get_ref().contains(&0) => {
            Ok((rates, consumers.get_ref().clone()))
        }
        Some(_) => {
            Err(document.mistake(&at, "consumers", format!("must be {} counts, one for each rate", rates.len())))
        }
    }
}

fn rising(document: &Document, rates: &Placed<Vec<f64>>) -> Result<Vec<f64>, Mistake> {
    let wrong = |what: String| Err(document.mistake(&rates.span(), "rates", what));
    let list = rates.get_ref();
    if list.is_empty() || list.len() > RATES_MAX {
        return wrong(format!("must be 1 to {RATES_MAX} rates"));
    }
    if let Some(bad) = list.iter().find(|rate| !(rate.is_finite() && **rate > 0.0)) {
        return wrong(format!("must be above zero, and one is {bad}"));
    }
    if let Some(pair) = list.windows(2).find(|pair| pair[1] <= pair[0]) {
        return wrong(format!("must rise, and {} comes after {}", pair[1], pair[0]));
    }
    Ok(list.clone())
}

fn read_candidates(document: &Document, rows: &[ClusterRow]) -> Result<Vec<Candidate>, Mistake> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for row in rows {
        let at = row.name.span();
        let wrong = |field: &str, what: String| Err(document.mistake(&at, field, what));
        let name = row.name.get_ref();
        let is_same =
            |known: &Candidate| known.configuration.cluster == *name && known.configuration.volume == row.volume;
        if name.is_empty() || candidates.iter().any(is_same) {
            return wrong("name", format!("{name:?} is empty, or there twice with the same volume"));
        }
        if candidates.len() == CLUSTERS_MAX {
            return wrong("cluster", format!("at most {CLUSTERS_MAX} in one plan"));
        }
        let nodes = *row.nodes.get_ref();
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(document.mistake(&row.nodes.span(), "nodes", format!("must be from 1 to {NODES_MAX}")));
        }
        let place = match (&row.uris, &row.local) {
            (Some(uris), None) if !uris.get_ref().is_empty() => Place::Addresses {
                uris: uris.get_ref().clone(),
                lose_command: row.lose_command.clone(),
                restore_command: row.restore_command.clone(),
            },
            (None, Some(local)) => Place::Local(read_local(document, local, nodes)?),
            _ => return wrong("uris", "give either `uris` of running nodes or `local`, how to start them".to_owned()),
        };
        let vcpus = positive(document, "vcpus", &row.vcpus)?;
        if let Place::Local(Local { cpu: Some(cpu), .. }) = &place
            && *cpu != vcpus
        {
            let what =
                format!("{vcpus} contradicts cpu = {cpu} of this cluster's [cluster.local], which is what a node gets");
            return Err(document.mistake(&row.vcpus.span(), "vcpus", what));
        }
        let of_machine = candidates.iter().map(|known| &known.configuration).find(|known| known.machine == row.machine);
        if let Some(known) = of_machine.filter(|known| known.vcpus != vcpus) {
            let (machine, other, before) = (&row.machine, &known.cluster, known.vcpus);
            let what = format!("{vcpus} contradicts cluster {other:?}, where machine {machine:?} has vcpus = {before}");
            return Err(document.mistake(&row.vcpus.span(), "vcpus", what));
        }
        let configuration = Configuration {
            cluster: name.clone(),
            nodes,
            machine: row.machine.clone(),
            vcpus,
            volume: row.volume.clone(),
            iops: None,
            mib_s: None,
            note: None,
            line: 0,
        };
        candidates.push(Candidate { configuration, place });
    }
    Ok(candidates)
}

fn read_local(document: &Document, placed: &Placed<LocalRow>, nodes: u64) -> Result<Local, Mistake> {
    let row = placed.get_ref();
    let port = *row.port.get_ref();
    if !(1..=PORT_MAX).contains(&port) {
        return Err(document.mistake(&row.port.span(), "port", format!("must be from 1 to {PORT_MAX}")));
    }
    if row.command.as_ref().is_some_and(Vec::is_empty) || row.join_command.as_ref().is_some_and(Vec::is_empty) {
        return Err(document.mistake(&placed.span(), "command", "must name a program"));
    }
    let is_told_of_peers = row.command.as_ref().is_none_or(|words| words.iter().any(|word| word.contains("{peers}")));
    if nodes > 1 && !is_told_of_peers && row.join_command.is_none() {
        let what = "is missing: without it, or {peers} in `command`, the nodes would be brokers of their own";
        return Err(document.mistake(&placed.span(), "join_command", what));
    }
    let limit =
        |field: &str, value: &Option<Placed<f64>>| value.as_ref().map(|v| positive(document, field, v)).transpose();
    Ok(Local {
        port: u16::try_from(port).expect("it is at most PORT_MAX"),
        command: row.command.clone(),
        join_command: row.join_command.clone(),
        folder: row.folder.clone(),
        cpu: limit("cpu", &row.cpu)?,
        memory_mib: limit("memory_mib", &row.memory_mib)?,
        iops: limit("iops", &row.iops)?,
        mib_s: limit("mib_s", &row.mib_s)?,
        start_seconds: limit("start_seconds", &row.start_seconds)?.unwrap_or(60.0),
    })
}
