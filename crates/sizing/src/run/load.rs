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
use crate::results::Step;

/// How often a running generator is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Beyond its measured time a generator connects, drains and counts; much later than this it hangs
/// and is ended.
const GRACE: Duration = Duration::from_secs(180);
/// Lines of its complaints that are kept.
const COMPLAINT_LINES: usize = 3;

/// Something that drives load.
pub trait LoadGenerator {
    /// Drives `trial` and measures it: what a load generator sees of a step. `watch` is called now and then with the seconds since the
    /// start; it may do things to the cluster.
    fn drive(
        &mut self,
        trial: &Trial,
        workload: &Workload,
        uris: &[String],
        watch: &mut dyn FnMut(f64) -> Result<(), String>,
    ) -> Result<Step, String>;
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
    ) -> Result<Step, String> {
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
pub fn measured(text: &str) -> Result<Step, String> {
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
                sent += value["published_per_s"].as_f64().unwrap_or(0.0) * length - not_taken(&value);
                received += value["received_per_s"].as_f64().unwrap_or(0.0) * length;
                // Refused messages never reach a queue; what is left is what waits, to the accuracy
                // of an interval.
                let waiting = (sent - received).max(0.0) as u64;
                backlog_max = Some(backlog_max.unwrap_or(0).max(waiting));
            }
            Some("begun") => {}
            Some("run") => run = Some(value),
            _ => return Err(format!("wrote a line {} of an unknown type", at + 1)),
        }
    }
    let run = run.ok_or("wrote no summary of the run")?;
    let number = |field: &str| run[field].as_f64().ok_or_else(|| format!("wrote a summary without {field}"));
    let percentile = |of: &str, field: &str| {
        let figures = &run[of]["figures"];
        figures[field].as_f64().map(tidy).filter(|_| figures["count"].as_u64() != Some(0))
    };
    let correctness = &run["correctness"];
    // Who is refused has not got rid of a message.
    let all = correctness["published"].as_f64().unwrap_or(0.0).max(1.0);
    let taken = 1.0 - (not_taken(correctness) / all).min(1.0);
    Ok(Step {
        seconds: tidy(number("seconds")?),
        published: tidy(number("published_per_s")? * taken),
        consumed: tidy(run["received_per_s"].as_f64().unwrap_or(0.0)),
        p50_ms: percentile("end_to_end", "p50_ms"),
        p75_ms: percentile("end_to_end", "p75_ms"),
        p95_ms: percentile("end_to_end", "p95_ms"),
        p99_ms: percentile("end_to_end", "p99_ms"),
        p999_ms: percentile("end_to_end", "p999_ms"),
        confirm_p99_ms: percentile("confirm", "p99_ms"),
        backlog_end: correctness["left_in_queues"].as_u64(),
        backlog_max,
        lost: correctness["lost"].as_u64(),
        duplicated: correctness["duplicated_unflagged"].as_u64(),
        ..Step::default()
    })
}

/// Messages that the broker refused, or gave back, of an interval or a run.
fn not_taken(of: &Value) -> f64 {
    ["nacked", "returned"].iter().filter_map(|field| of[field].as_f64()).sum()
}

/// Three decimals are finer than any clock here, and keep the file readable.
pub(crate) fn tidy(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
