//! Measuring candidates: one after another is brought up, driven through its trials, and what was
//! measured is written as it comes.
//!
//! Reading order: `plan` (what a person wrote), `schedule` (trials and words), `load` (who drives
//! them), `cluster` with `usage` (what is driven), `journal` (what is kept). Invariant: a trial is
//! either measured, or skipped with its reason, or still to do; a run can be stopped at any moment
//! and loses the trial under way and no other.

pub mod cluster;
pub mod journal;
pub mod load;
pub mod plan;
pub mod schedule;
pub mod usage;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use self::cluster::Cluster;
use self::journal::Journal;
use self::load::{LoadGenerator, Measured};
use self::plan::{Candidate, Place, Plan};
use self::schedule::{Trial, left, seconds_left};
use self::usage::Used;
use crate::outcome::is_matched;
use crate::results::{Configuration, Record, Skipped, Step, Test};

/// What happens, for the person who watches.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A candidate is being brought up.
    Starting {
        /// Cluster and volume.
        name: String,
    },
    /// A candidate is up.
    Up {
        /// Cluster and volume.
        name: String,
        /// How long that took.
        seconds: f64,
    },
    /// Something that goes into the results as a note.
    Note {
        /// In words.
        text: String,
    },
    /// A trial is under way.
    Driving {
        /// Cluster and volume.
        name: String,
        /// Which test.
        test: Test,
        /// Its rate.
        target: f64,
        /// Trials done, of the whole plan.
        done: usize,
        /// Trials of the whole plan.
        all: usize,
        /// Seconds since it began.
        elapsed: f64,
        /// Seconds it is measured.
        seconds: f64,
        /// Seconds left of the run.
        left: f64,
    },
    /// A trial was measured.
    Measured {
        /// What was written.
        step: Box<Step>,
    },
    /// A trial was not made.
    Skipped {
        /// What was written.
        skipped: Skipped,
    },
    /// A trial failed; it is tried again by a run with the same results file.
    Failed {
        /// Cluster and volume.
        name: String,
        /// In words.
        why: String,
    },
}

/// Where a run does its work.
#[derive(Clone, Debug)]
pub struct Workshop {
    /// This program, which starts the brokers that a plan gives no command for.
    pub program: String,
    /// A folder for data of local nodes; emptied.
    pub folder: PathBuf,
}

/// What a person who stops a run reads.
const STOPPED: &str = "stopped; the same command with the same results file goes on from here";

/// Whoever watches a run; a break stops it, and everything that it has started.
pub type Watch<'a> = &'a mut dyn FnMut(Event) -> ControlFlow<()>;

/// Measures what is left of `plan`. Returns how many trials failed; zero means that the file is
/// complete.
pub fn run(
    plan: &Plan,
    journal: &mut Journal,
    generator: &mut dyn LoadGenerator,
    workshop: &Workshop,
    watch: Watch<'_>,
) -> Result<usize, String> {
    if journal.results.is_complete {
        return Ok(0);
    }
    let all = schedule::trials(plan).len();
    let mut overheads: Vec<f64> = Vec::new();
    let mut failed = 0;
    for at in 0..plan.candidates.len() {
        let waiting = left(plan, &journal.results);
        if !waiting.iter().any(|trial| trial.candidate == at) {
            continue;
        }
        let candidate = &plan.candidates[at];
        let name = candidate.configuration.name();
        tell(watch, Event::Starting { name: name.clone() })?;
        let folder = workshop.folder.join(name.replace(['/', ' '], "-"));
        let began = Instant::now();
        let mut cluster = match Cluster::up(candidate, &workshop.program, folder) {
            Ok(cluster) => cluster,
            Err(why) => {
                tell(watch, Event::Failed { name, why })?;
                failed += waiting.iter().filter(|trial| trial.candidate == at).count();
                continue;
            }
        };
        if let Place::Local(_) = candidate.place {
            tell(watch, Event::Up { name, seconds: began.elapsed().as_secs_f64() })?;
        }
        for text in &cluster.notes {
            tell(watch, Event::Note { text: text.clone() })?;
        }
        describe(candidate, &cluster, journal)?;
        let mut course = Course { plan, all, overheads: &mut overheads, failed: 0 };
        for trial in waiting.iter().filter(|trial| trial.candidate == at) {
            course.one(trial, &mut cluster, journal, generator, watch)?;
        }
        failed += course.failed;
    }
    if failed == 0 {
        journal.write(&Record::End)?;
    }
    Ok(failed)
}

fn tell(watch: Watch<'_>, event: Event) -> Result<(), String> {
    match watch(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(STOPPED.to_owned()),
    }
}

/// Writes what is tested next, unless the file has it already.
fn describe(candidate: &Candidate, cluster: &Cluster, journal: &mut Journal) -> Result<(), String> {
    let configuration = &candidate.configuration;
    if journal.results.configuration(&configuration.cluster, &configuration.volume).is_some() {
        return Ok(());
    }
    let note = (!cluster.notes.is_empty()).then(|| cluster.notes.join("; "));
    let (iops, mib_s) = match &candidate.place {
        Place::Local(local) => (local.iops, local.mib_s),
        Place::Addresses { .. } => (None, None),
    };
    journal.write(&Record::Cluster(Configuration { note, iops, mib_s, ..configuration.clone() }))
}

/// The trials of one candidate.
struct Course<'a> {
    plan: &'a Plan,
    all: usize,
    overheads: &'a mut Vec<f64>,
    failed: usize,
}

impl Course<'_> {
    fn one(
        &mut self,
        trial: &Trial,
        cluster: &mut Cluster,
        journal: &mut Journal,
        generator: &mut dyn LoadGenerator,
        watch: Watch<'_>,
    ) -> Result<(), String> {
        let known = &self.plan.candidates[trial.candidate].configuration;
        if let Some(why) = self.reason_to_skip(trial, journal) {
            let (cluster, volume) = (known.cluster.clone(), known.volume.clone());
            let skipped = Skipped { cluster, volume, test: trial.test, target: trial.target, why };
            journal.write(&Record::Skipped(skipped.clone()))?;
            return tell(watch, Event::Skipped { skipped });
        }
        match self.drive(trial, cluster, journal, generator, watch) {
            Ok((measured, used)) => {
                let step = step(known, trial, &measured, used);
                journal.write(&Record::Step(step.clone()))?;
                tell(watch, Event::Measured { step: Box::new(step) })
            }
            Err(why) if why == STOPPED => Err(why),
            Err(why) => {
                self.failed += 1;
                tell(watch, Event::Failed { name: known.name(), why })
            }
        }
    }

    fn reason_to_skip(&self, trial: &Trial, journal: &Journal) -> Option<String> {
        if trial.test == Test::LoseBroker {
            return self.plan.candidates[trial.candidate].can_lose_node().err();
        }
        let series = self.plan.series.iter().find(|series| series.test == trial.test)?;
        let limit = series.stop_after_short.filter(|_| trial.test == Test::Rising)?;
        let known = &self.plan.candidates[trial.candidate].configuration;
        let of_it = |step: &&Step| known.is_of(step) && step.test == Test::Rising;
        let missed = journal.results.steps.iter().rev().filter(of_it).take_while(|step| !is_matched(step)).count();
        (missed as u64 >= limit).then(|| format!("it fell short of {missed} targets in a row before"))
    }

    fn drive(
        &mut self,
        trial: &Trial,
        cluster: &mut Cluster,
        journal: &Journal,
        generator: &mut dyn LoadGenerator,
        watch: Watch<'_>,
    ) -> Result<(Measured, Option<Used>), String> {
        let waiting = left(self.plan, &journal.results);
        let (done, after) = (self.all - waiting.len(), &waiting[1.min(waiting.len())..]);
        let later = seconds_left(self.plan, after, self.overheads);
        let name = self.plan.candidates[trial.candidate].configuration.name();
        let (test, target, seconds, all) = (trial.test, trial.target, trial.seconds(), self.all);
        let uris = cluster.uris.clone();
        let mut is_lost = false;
        cluster.look();
        let began = Instant::now();
        let driven = generator.drive(trial, &self.plan.workload, &uris, &mut |elapsed| {
            if trial.lose_at.is_some_and(|at| elapsed >= at) && !is_lost {
                is_lost = true;
                cluster.lose_node()?;
            }
            let left = later + (seconds - elapsed).max(0.0);
            tell(watch, Event::Driving { name: name.clone(), test, target, done, all, elapsed, seconds, left })
        });
        let used = cluster.used();
        let restored = if is_lost { cluster.restore_node() } else { Ok(()) };
        let measured = driven?;
        restored?;
        if trial.lose_at.is_some() && !is_lost {
            return Err("the load ended before the broker was to be lost".to_owned());
        }
        self.overheads.push((began.elapsed().as_secs_f64() - seconds).max(0.0));
        Ok((measured, used))
    }
}

/// A measurement as a line of the results.
fn step(known: &Configuration, trial: &Trial, measured: &Measured, used: Option<Used>) -> Step {
    let percentile = |at: usize| measured.percentiles.map(|all| all[at]);
    // Three decimals are finer than any clock here, and keep the file readable.
    let tidy = |value: f64| (value * 1000.0).round() / 1000.0;
    Step {
        cluster: known.cluster.clone(),
        volume: known.volume.clone(),
        test: trial.test,
        target: trial.target,
        intended: tidy(trial.intended()),
        seconds: tidy(measured.seconds),
        consumers: trial.consumers,
        published: tidy(measured.published),
        consumed: tidy(measured.consumed),
        p50_ms: percentile(0).map(tidy),
        p75_ms: percentile(1).map(tidy),
        p95_ms: percentile(2).map(tidy),
        p99_ms: percentile(3).map(tidy),
        p999_ms: percentile(4).map(tidy),
        confirm_p99_ms: measured.confirm_p99_ms.map(tidy),
        backlog_end: measured.backlog_end,
        backlog_max: measured.backlog_max,
        lost: measured.lost,
        duplicated: measured.duplicated,
        cpu_percent: used.map(|used| tidy(used.cpu_percent)),
        memory_mib: used.map(|used| tidy(used.memory_mib)),
        network_mbit: None,
        disk_mib_s: used.and_then(|used| used.disk_mib_s).map(tidy),
        disk_iops: used.and_then(|used| used.disk_iops).map(tidy),
        machine_cpu_percent: used.and_then(|used| used.machine_cpu_percent).map(tidy),
        disk_busy_percent: used.and_then(|used| used.disk_busy_percent).map(tidy),
        throttled_percent: used.and_then(|used| used.throttled_percent).map(tidy),
        consumers_busy_percent: trial
            .work()
            .map(|work| tidy(100.0 * measured.consumed * work / 1e6 / trial.consumers as f64)),
    }
}
