//! The load generator as this room sees it: an order goes in, a measurement comes out. Behind it,
//! the process that does it.
//!
//! Invariant: nothing here knows AMQP or a broker. `leveret bench` is a program with words and a
//! file of JSON lines, and any other program that takes the same words and writes the same file
//! would do.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::plan::Workload;
use super::schedule::{Trial, words};

/// How often a running generator is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Beyond its measured time a generator connects, drains and counts; much later than this it hangs
/// and is ended.
const GRACE: Duration = Duration::from_secs(180);
/// Lines of its complaints that are kept.
const COMPLAINT_LINES: usize = 3;

/// What was measured of one trial. Rates are messages a second, latencies end to end in
/// milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// How long.
    pub seconds: f64,
    /// Sent.
    pub published: f64,
    /// Received.
    pub consumed: f64,
    /// Percentiles 50, 75, 95, 99 and 99.9; `None` where nothing was received.
    pub percentiles: Option<[f64; 5]>,
    /// Percentile 99 from publish to confirm, where there are confirms.
    pub confirm_p99_ms: Option<f64>,
    /// Messages in queues at the end of the measured time.
    pub backlog_end: Option<u64>,
    /// Most messages in queues at the end of an interval.
    pub backlog_max: Option<u64>,
    /// Confirmed and never seen.
    pub lost: Option<u64>,
    /// Seen twice, unflagged.
    pub duplicated: Option<u64>,
}

/// Something that drives load.
pub trait LoadGenerator {
    /// Drives `trial` and measures it. `watch` is called now and then with the seconds since the
    /// start; it may do things to the cluster.
    fn drive(
        &mut self,
        trial: &Trial,
        workload: &Workload,
        uris: &[String],
        watch: &mut dyn FnMut(f64) -> Result<(), String>,
    ) -> Result<Measured, String>;
}

/// `leveret bench`, or a program that takes its words.
#[derive(Debug)]
pub struct BenchProcess {
    /// Program and first words.
    pub command: Vec<String>,
    /// Where its files go.
    pub folder: PathBuf,
}

impl BenchProcess {
    /// That its program is there, which is better known before a cluster is brought up than after.
    pub fn check(&self) -> Result<(), String> {
        use std::os::unix::fs::PermissionsExt as _;
        let program = self.command.first().ok_or("the load generator has no name")?;
        let is_program = |path: PathBuf| {
            path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = match program.contains('/') {
            true => is_program(PathBuf::from(program)),
            false => std::env::split_paths(&path).any(|folder| is_program(folder.join(program))),
        };
        if is_there { Ok(()) } else { Err(format!("the load generator {program} is no program that can be started")) }
    }
}

/// Ends the generator when the run ends early.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl LoadGenerator for BenchProcess {
    fn drive(
        &mut self,
        trial: &Trial,
        workload: &Workload,
        uris: &[String],
        watch: &mut dyn FnMut(f64) -> Result<(), String>,
    ) -> Result<Measured, String> {
        std::fs::create_dir_all(&self.folder).map_err(|why| format!("{}: {why}", self.folder.display()))?;
        let (json, said) = (self.folder.join("load.jsonl"), self.folder.join("load.log"));
        // A file of the trial before must not be taken for this one's.
        let _ = std::fs::remove_file(&json);
        let log = std::fs::File::create(&said).map_err(|why| format!("{}: {why}", said.display()))?;
        let twin = log.try_clone().map_err(|why| format!("{}: {why}", said.display()))?;
        let (program, first) = self.command.split_first().ok_or("the load generator has no name")?;
        let mut command = Command::new(program);
        command.args(first).args(words(trial, workload, uris)).arg("--json").arg(&json).arg("--quiet");
        command.stdin(Stdio::null()).stdout(log).stderr(twin);
        let started = Instant::now();
        let mut running = Running(command.spawn().map_err(|why| format!("{program} cannot be started: {why}"))?);
        let limit = Duration::from_secs_f64(trial.seconds()) + GRACE;
        let status = loop {
            if let Some(status) = running.0.try_wait().map_err(|why| format!("{program}: {why}"))? {
                break status;
            }
            if started.elapsed() > limit {
                return Err(format!("the load generator did not end within {:.0} s", limit.as_secs_f64()));
            }
            watch(started.elapsed().as_secs_f64())?;
            std::thread::sleep(LOOK_EVERY);
        };
        let text = std::fs::read_to_string(&json).unwrap_or_default();
        // Its exit code says whether something was lost or a requirement missed; that is in the
        // file too, and is a result like any other.
        measured(&text).map_err(|why| {
            let complaint = std::fs::read_to_string(&said).unwrap_or_default();
            let last: Vec<&str> = complaint.lines().filter(|line| !line.trim().is_empty()).collect();
            let tail = last[last.len().saturating_sub(COMPLAINT_LINES)..].join(" / ");
            format!("the load generator ended with {status} and {why}: {tail}")
        })
    }
}

/// Reads the generator's JSON lines.
pub fn measured(text: &str) -> Result<Measured, String> {
    let mut backlog_max: Option<u64> = None;
    let (mut sent, mut received) = (0.0_f64, 0.0_f64);
    let mut last_at = 0.0_f64;
    let mut run = None;
    for (at, line) in text.lines().enumerate() {
        let value: Value =
            serde_json::from_str(line).map_err(|why| format!("wrote a line {} that is not JSON ({why})", at + 1))?;
        match value["type"].as_str() {
            Some("interval") => {
                let now = value["at_s"].as_f64().unwrap_or(last_at);
                let length = (now - last_at).max(0.0);
                last_at = now;
                sent += value["published_per_s"].as_f64().unwrap_or(0.0) * length;
                received += value["received_per_s"].as_f64().unwrap_or(0.0) * length;
                // Refused messages never reach a queue; what is left is what waits, to the accuracy
                // of an interval.
                let waiting = (sent - received).max(0.0) as u64;
                backlog_max = Some(backlog_max.unwrap_or(0).max(waiting));
            }
            Some("run") => run = Some(value),
            _ => return Err(format!("wrote a line {} of an unknown type", at + 1)),
        }
    }
    let run = run.ok_or("wrote no summary of the run")?;
    let number = |field: &str| run[field].as_f64().ok_or_else(|| format!("wrote a summary without {field}"));
    let figures = &run["end_to_end"]["figures"];
    let percentile = |field: &str| figures[field].as_f64();
    let percentiles = match ["p50_ms", "p75_ms", "p95_ms", "p99_ms", "p999_ms"].map(percentile) {
        [Some(a), Some(b), Some(c), Some(d), Some(e)] if figures["count"].as_u64() != Some(0) => Some([a, b, c, d, e]),
        _ => None,
    };
    let correctness = &run["correctness"];
    Ok(Measured {
        seconds: number("seconds")?,
        published: number("published_per_s")?,
        consumed: run["received_per_s"].as_f64().unwrap_or(0.0),
        percentiles,
        confirm_p99_ms: run["confirm"]["figures"]["p99_ms"].as_f64(),
        backlog_end: correctness["left_in_queues"].as_u64(),
        backlog_max,
        lost: correctness["lost"].as_u64(),
        duplicated: correctness["duplicated_unflagged"].as_u64(),
    })
}
