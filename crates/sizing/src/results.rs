//! The results file: JSON lines, written as a run goes, read by `report` and `predict`.
//!
//! ```text
//! {"kind":"header", format, source?, plan?, requirement?, note?}                       first line, once
//! {"kind":"cluster", cluster, nodes, machine, vcpus, volume, iops?, mib_s?, note?}     before anything about it
//! {"kind":"step", cluster, volume, test, target, ... rates, latencies, ...}            one measurement
//! {"kind":"summary", cluster, volume, top_rate, held?, short_of?, p99_below_ms?}       a study that kept no steps
//! {"kind":"adverse", cluster, volume?, test, held?, short_of?}                         the same for an adverse test
//! {"kind":"skipped", cluster, volume, test, target, why}                               what was planned and could not be measured
//! {"kind":"end"}                                                                       the run is complete
//! ```
//!
//! Invariant: every line stands alone and is complete once its newline is written, so a killed run
//! loses one line at most. A line about a configuration comes after the line that describes it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::input::{Document, Line, Mistake};
use crate::prices::NODES_MAX;
use crate::requirement::Requirement;

/// What the header says of the layout. A change that an older reader cannot read gets a new number.
pub const FORMAT: &str = "leveret-sizing/1";

/// Configurations in one file, at most.
pub const CONFIGURATIONS_MAX: usize = 1000;

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Constant rates, each higher than the one before.
    #[default]
    Rising,
    /// The same while one broker is killed part of the way.
    LoseBroker,
    /// Consumers slow down and recover.
    SlowConsumers,
    /// Publishers go above their rate and back.
    PublisherPeak,
}

impl Test {
    /// All, in the order they are run and shown.
    pub const ALL: [Test; 4] = [Test::Rising, Test::LoseBroker, Test::SlowConsumers, Test::PublisherPeak];

    /// The word of the results file.
    pub fn word(self) -> &'static str {
        match self {
            Test::Rising => "rising",
            Test::LoseBroker => "lose-broker",
            Test::SlowConsumers => "slow-consumers",
            Test::PublisherPeak => "publisher-peak",
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What was tested: a cluster with a kind of volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Name of the cluster.
    pub cluster: String,
    /// Nodes.
    pub nodes: u64,
    /// Kind of machine.
    pub machine: String,
    /// CPUs of a node; a fraction where a limit says so.
    pub vcpus: f64,
    /// Kind of volume.
    pub volume: String,
    /// Disk operations a second that a node may do, where that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<f64>,
    /// Megabytes (MiB) a second that it may write, where that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// What a reader must know, a limit that could not be set for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Line of the results file.
    #[serde(skip)]
    pub line: usize,
}

impl Configuration {
    /// `cluster/volume`: what tables call it.
    pub fn name(&self) -> String {
        format!("{}/{}", self.cluster, self.volume)
    }

    /// Whether a measurement is of it.
    pub fn is_of(&self, step: &Step) -> bool {
        (&step.cluster, &step.volume) == (&self.cluster, &self.volume)
    }
}

/// One measurement. Rates are messages a second in all, latencies end to end in milliseconds,
/// machine figures the mean of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name of the cluster.
    pub cluster: String,
    /// Kind of volume.
    pub volume: String,
    /// Which test.
    pub test: Test,
    /// The intended rate; of `publisher-peak` the base rate.
    pub target: f64,
    /// The intended rate, averaged over the test; the target itself where it is constant.
    #[serde(default)]
    pub intended: f64,
    /// How long it was measured.
    pub seconds: f64,
    /// Consumers.
    pub consumers: u64,
    /// What publishers got rid of.
    pub published: f64,
    /// What consumers received.
    pub consumed: f64,
    /// 50th percentile of latency, and so on; absent where nothing was received.
    pub p50_ms: Option<f64>,
    /// 75th.
    pub p75_ms: Option<f64>,
    /// 95th.
    pub p95_ms: Option<f64>,
    /// 99th.
    pub p99_ms: Option<f64>,
    /// 99.9th.
    pub p999_ms: Option<f64>,
    /// 99th percentile from publish to confirm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_p99_ms: Option<f64>,
    /// Messages in queues at the end.
    pub backlog_end: Option<u64>,
    /// Most messages in queues at once.
    pub backlog_max: Option<u64>,
    /// Confirmed messages that never came.
    pub lost: Option<u64>,
    /// Messages that came again without being flagged.
    pub duplicated: Option<u64>,
    /// CPU, 100 for one whole CPU.
    pub cpu_percent: Option<f64>,
    /// Resident memory.
    pub memory_mib: Option<f64>,
    /// Network, both directions.
    pub network_mbit: Option<f64>,
    /// Written to disk.
    pub disk_mib_s: Option<f64>,
    /// Disk operations.
    pub disk_iops: Option<f64>,
    /// Work of all cores of the node's machine, whoever's; 100 is all of them all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_cpu_percent: Option<f64>,
    /// Part of the time in which the disk had something to do, for whomever; 100 is all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_busy_percent: Option<f64>,
    /// Time for which threads were ready and the share of the CPU was used up; 100 is one thread
    /// all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_percent: Option<f64>,
    /// Work of the consumers themselves; 100 is all of them all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers_busy_percent: Option<f64>,
}

/// What a study kept of a rising test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Name of the cluster.
    pub cluster: String,
    /// Kind of volume.
    pub volume: String,
    /// Highest throughput.
    pub top_rate: f64,
    /// Highest target that was matched.
    pub held: Option<f64>,
    /// Lowest target that was missed.
    pub short_of: Option<f64>,
    /// A bound of the 99th percentile at the requirement's rate.
    pub p99_below_ms: Option<f64>,
}

/// What a study kept of an adverse test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adverse {
    /// Name of the cluster.
    pub cluster: String,
    /// Kind of volume; all of them when absent.
    pub volume: Option<String>,
    /// Which test.
    pub test: Test,
    /// Highest rate at which publishers did not feel it.
    pub held: Option<f64>,
    /// Lowest rate at which they did.
    pub short_of: Option<f64>,
}

/// A measurement that was planned and could not be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Name of the cluster.
    pub cluster: String,
    /// Kind of volume.
    pub volume: String,
    /// Which test.
    pub test: Test,
    /// The intended rate.
    pub target: f64,
    /// Why.
    pub why: String,
}

/// The first line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Where the figures come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Fingerprint of the plan, so that a run is only resumed with the plan it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// What was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirement: Option<Requirement>,
    /// What a reader must know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant)]
pub enum Record {
    /// First line.
    Header {
        /// [`FORMAT`].
        format: String,
        /// The rest of it.
        #[serde(flatten)]
        header: Header,
    },
    /// What is tested next.
    Cluster(Configuration),
    /// A measurement.
    Step(Step),
    /// What a study kept.
    Summary(Summary),
    /// What a study kept of an adverse test.
    Adverse(Adverse),
    /// What could not be measured.
    Skipped(Skipped),
    /// Last line of a complete run.
    End,
}

/// Whether a file may be one of a run that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// A half-written line or a missing end is a mistake.
    Whole,
    /// Both are noted and the whole lines are used.
    Partial,
}

/// Everything a results file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// The file, for messages.
    pub file: String,
    /// The first line.
    pub header: Header,
    /// What was tested, in the order of the file.
    pub configurations: Vec<Configuration>,
    /// Measurements.
    pub steps: Vec<Step>,
    /// Summaries of a study.
    pub summaries: Vec<Summary>,
    /// Adverse tests of a study.
    pub adverse: Vec<Adverse>,
    /// What could not be measured.
    pub skipped: Vec<Skipped>,
    /// The file ends as a complete run ends.
    pub is_complete: bool,
    /// What was tolerated.
    pub notes: Vec<String>,
    /// Length of the whole lines: a resumed run goes on from here.
    pub whole_bytes: usize,
}

impl Results {
    /// Reads a results file.
    pub fn read(document: &Document, tolerance: Tolerance) -> Result<Results, Mistake> {
        let mut results = Results { file: document.file.clone(), ..Results::default() };
        let mut header_seen = false;
        let mut lines = 0;
        for (at, line) in document.text.split_inclusive('\n').enumerate() {
            lines = at + 1;
            if line.trim().is_empty() {
                results.whole_bytes += line.len();
                continue;
            }
            if !line.ends_with('\n') {
                // The newline is written with the line: without it the writer was stopped inside of
                // the write.
                let cut = match Line::read(&document.file, lines, line) {
                    Err(mistake) => mistake,
                    Ok(line) => line.mistake("", "the line has no newline: half-written"),
                };
                if tolerance == Tolerance::Whole {
                    return Err(with_way_out(cut));
                }
                results.notes.push(format!("{cut}; the line is left out"));
                break;
            }
            let record = Record::read(&document.file, lines, line.trim_end())?;
            results.accept(record, lines, &mut header_seen, &document.file)?;
            results.whole_bytes += line.len();
        }
        let end = Mistake { file: document.file.clone(), line: lines, field: String::new(), what: String::new() };
        if !header_seen {
            let what = "there is no header line: this is no results file".to_owned();
            return Err(Mistake { line: 1, what, ..end });
        }
        if !results.is_complete {
            // What failed is not written down, so that the next run tries it again.
            let of_steps = match results.steps.len() {
                0 => " and no measurement",
                _ => "",
            };
            let what =
                format!("the run was interrupted, or measurements failed: there is no line of kind \"end\"{of_steps}");
            let mistake = Mistake { field: "kind".to_owned(), what, ..end };
            if tolerance == Tolerance::Whole {
                return Err(with_way_out(mistake));
            }
            results.notes.push(format!("{mistake}; what it has measured is used, and {GOES_ON}"));
        }
        Ok(results)
    }

    fn accept(&mut self, record: Record, line: usize, header_seen: &mut bool, file: &str) -> Result<(), Mistake> {
        let wrong = |field: &str, what: String| Mistake { file: file.to_owned(), line, field: field.to_owned(), what };
        if *header_seen == matches!(record, Record::Header { .. }) {
            let what =
                if *header_seen { "there is a second header" } else { "the first line must be of kind \"header\"" };
            return Err(wrong("kind", what.to_owned()));
        }
        if self.is_complete {
            return Err(wrong("kind", "there is a line after the one of kind \"end\"".to_owned()));
        }
        let unknown = |cluster: &str, volume: &str| {
            wrong("cluster", format!("no line before describes cluster {cluster:?} with volume {volume:?}"))
        };
        match record {
            Record::Header { header, .. } => {
                *header_seen = true;
                self.header = header;
            }
            Record::Cluster(configuration) => {
                if self.configuration(&configuration.cluster, &configuration.volume).is_some() {
                    return Err(wrong("cluster", format!("{} is described twice", configuration.name())));
                }
                if self.configurations.len() == CONFIGURATIONS_MAX {
                    return Err(wrong("kind", format!("more than {CONFIGURATIONS_MAX} configurations")));
                }
                self.configurations.push(configuration);
            }
            Record::Step(step) => {
                if self.configuration(&step.cluster, &step.volume).is_none() {
                    return Err(unknown(&step.cluster, &step.volume));
                }
                if self.step(&step.cluster, &step.volume, step.test, step.target).is_some() {
                    return Err(wrong("target", format!("{} at {} is there twice", step.test, step.target)));
                }
                self.steps.push(step);
            }
            Record::Summary(summary) => {
                if self.configuration(&summary.cluster, &summary.volume).is_none() {
                    return Err(unknown(&summary.cluster, &summary.volume));
                }
                if self.summaries.iter().any(|s| s.cluster == summary.cluster && s.volume == summary.volume) {
                    return Err(wrong("cluster", format!("{}/{} is summed up twice", summary.cluster, summary.volume)));
                }
                self.summaries.push(summary);
            }
            Record::Adverse(adverse) => {
                if !self.configurations.iter().any(|known| known.cluster == adverse.cluster) {
                    return Err(unknown(&adverse.cluster, adverse.volume.as_deref().unwrap_or("any")));
                }
                self.adverse.push(adverse);
            }
            Record::Skipped(skipped) => self.skipped.push(skipped),
            Record::End => self.is_complete = true,
        }
        Ok(())
    }

    /// The configuration of these names.
    pub fn configuration(&self, cluster: &str, volume: &str) -> Option<&Configuration> {
        self.configurations.iter().find(|known| known.cluster == cluster && known.volume == volume)
    }

    /// The measurement of a test at a rate.
    pub fn step(&self, cluster: &str, volume: &str, test: Test, target: f64) -> Option<&Step> {
        self.steps
            .iter()
            .find(|step| step.cluster == cluster && step.volume == volume && step.test == test && step.target == target)
    }
}

/// What to do with a file that does not end as a complete run ends.
const GOES_ON: &str = "`sizing run` with the same plan goes on from here and tries again what failed";

fn with_way_out(mistake: Mistake) -> Mistake {
    let what = format!("{}; {GOES_ON}, --partial uses what is whole", mistake.what);
    Mistake { what, ..mistake }
}

impl Record {
    /// The line of a record, newline included.
    pub fn line(&self) -> String {
        let mut text = serde_json::to_string(self).expect("records hold text, finite numbers and flags");
        text.push('\n');
        text
    }

    fn read(file: &str, number: usize, text: &str) -> Result<Record, Mistake> {
        let mut line = Line::read(file, number, text)?;
        Ok(match line.take("kind")?.as_str() {
            "header" => {
                let format = line.take("format")?;
                if format != FORMAT {
                    let what = format!("{format:?} cannot be read; this program reads {FORMAT:?}");
                    return Err(line.mistake("format", what));
                }
                let header: Header = line.fields()?;
                header.requirement.map_or(Ok(()), |asked| line.above_zero(&[("rate", asked.rate)]))?;
                Record::Header { format, header }
            }
            "cluster" => {
                let cluster = Configuration { line: number, ..line.fields()? };
                if !(1..=NODES_MAX).contains(&cluster.nodes) {
                    let what = format!("must be a whole number from 1 to {NODES_MAX}, and is {}", cluster.nodes);
                    return Err(line.mistake("nodes", what));
                }
                line.above_zero(&[("vcpus", cluster.vcpus)])?;
                Record::Cluster(cluster)
            }
            "step" => {
                let mut step: Step = line.fields()?;
                line.above_zero(&[
                    ("target", step.target),
                    ("seconds", step.seconds),
                    ("consumers", step.consumers as f64),
                ])?;
                if step.intended == 0.0 {
                    step.intended = step.target;
                }
                rising(&line, &step)?;
                Record::Step(step)
            }
            "summary" => {
                let summary: Summary = line.fields()?;
                line.above_zero(&[("top_rate", summary.top_rate)])?;
                ordered(&line, summary.held, summary.short_of)?;
                Record::Summary(summary)
            }
            "adverse" => {
                let adverse: Adverse = line.fields()?;
                ordered(&line, adverse.held, adverse.short_of)?;
                Record::Adverse(adverse)
            }
            "skipped" => Record::Skipped(line.fields()?),
            "end" => Record::End,
            other => return Err(line.mistake("kind", format!("{other:?} is no kind of line"))),
        })
    }
}

/// A higher percentile is no shorter than a lower one.
fn rising(line: &Line<'_>, step: &Step) -> Result<(), Mistake> {
    let latencies = [
        ("p50_ms", step.p50_ms),
        ("p75_ms", step.p75_ms),
        ("p95_ms", step.p95_ms),
        ("p99_ms", step.p99_ms),
        ("p999_ms", step.p999_ms),
    ];
    let known: Vec<_> = latencies.into_iter().filter_map(|(name, ms)| Some((name, ms?))).collect();
    match known.windows(2).find(|pair| pair[1].1 < pair[0].1) {
        Some(pair) => {
            let what = format!("{} ms is less than {} with {} ms", pair[1].1, pair[0].0, pair[0].1);
            Err(line.mistake(pair[1].0, what))
        }
        None => Ok(()),
    }
}

fn ordered(line: &Line<'_>, held: Option<f64>, short_of: Option<f64>) -> Result<(), Mistake> {
    match (held, short_of) {
        (Some(held), Some(short)) if short <= held => {
            Err(line.mistake("short_of", format!("{short} is not above held, which is {held}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HEADER: &str = "{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n";
    const CLUSTER: &str =
        "{\"kind\":\"cluster\",\"cluster\":\"a\",\"nodes\":3,\"machine\":\"m\",\"vcpus\":2,\"volume\":\"v\"}\n";
    const STEP: &str = "{\"kind\":\"step\",\"cluster\":\"a\",\"volume\":\"v\",\"test\":\"rising\",\"target\":1000,\
        \"seconds\":10,\"consumers\":2,\"published\":1000,\"consumed\":999,\"p50_ms\":1,\"p99_ms\":2}\n";
    const END: &str = "{\"kind\":\"end\"}\n";

    fn read(text: &str, tolerance: Tolerance) -> Result<Results, String> {
        Results::read(&Document::new("r", text), tolerance).map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn a_whole_file_is_read_and_what_is_written_reads_the_same() {
        let results = read(&[HEADER, CLUSTER, STEP, END].concat(), Tolerance::Whole).unwrap();
        let header = Record::Header { format: FORMAT.to_owned(), header: results.header.clone() };
        let again = [
            header.line(),
            Record::Cluster(results.configurations[0].clone()).line(),
            Record::Step(results.steps[0].clone()).line(),
            Record::End.line(),
        ];
        let again = read(&again.concat(), Tolerance::Whole).unwrap();
        assert_eq!(again.steps, results.steps);
        assert_eq!(again.configurations, results.configurations);
    }

    #[test]
    fn a_file_cut_at_any_byte_is_named_with_its_line_and_its_whole_lines_are_kept() {
        let whole = [HEADER, CLUSTER, STEP, END].concat();
        for cut in 1..whole.len() {
            let text = &whole[..cut];
            let error = read(text, Tolerance::Whole).unwrap_err();
            let last = text.lines().count();
            assert!(error.starts_with(&format!("r:{last}:")), "{cut}: {error}");
            match read(text, Tolerance::Partial) {
                Ok(results) => {
                    assert_eq!(results.whole_bytes, text.rfind('\n').unwrap() + 1);
                    assert!(!results.notes.is_empty());
                }
                Err(error) => assert!(cut < HEADER.len(), "{cut}: {error}"),
            }
        }
    }

    #[test]
    fn a_line_that_contradicts_itself_or_the_lines_before_is_named() {
        let said = |lines: &[&str]| read(&lines.concat(), Tolerance::Whole).unwrap_err();
        let other = STEP.replace("\"a\"", "\"b\"");
        let negative = STEP.replace("\"published\":1000", "\"published\":-1");
        let late = STEP.replace("\"p99_ms\":2", "\"p99_ms\":0.5");
        assert_eq!(said(&[CLUSTER]), "r:1: kind: the first line must be of kind \"header\"");
        assert_eq!(said(&[HEADER, HEADER]), "r:2: kind: there is a second header");
        assert!(said(&[HEADER, CLUSTER, &other]).starts_with("r:3: cluster: no line before describes cluster \"b\""));
        assert_eq!(said(&[HEADER, CLUSTER, &negative]), "r:3: published: must not be negative, and is -1");
        assert_eq!(said(&[HEADER, CLUSTER, &late]), "r:3: p99_ms: 0.5 ms is less than p50_ms with 1 ms");
        assert_eq!(said(&[HEADER, CLUSTER, STEP, STEP]), "r:4: target: rising at 1000 is there twice");
        assert_eq!(said(&[HEADER, CLUSTER, CLUSTER]), "r:3: cluster: a/v is described twice");
        assert_eq!(said(&[HEADER, END, CLUSTER]), "r:3: kind: there is a line after the one of kind \"end\"");
        assert!(said(&[""]).starts_with("r:1: there is no header line") || said(&[""]).starts_with("r"));
    }
}
