//! Measuring candidates: one after another is brought up, driven through its trials, and what was
//! measured is written as it comes.
//!
//! Reading order: `plan` (what a person wrote), `schedule` (trials and words), `load` (who drives
//! them), `cluster` (what is driven), `journal` (what is kept). Invariant: a trial is
//! either measured, or skipped with its reason, or still to do; a run can be stopped at any moment
//! and loses the trial under way and no other.

pub mod cluster;
pub mod journal;
pub mod load;
pub mod plan;
pub mod schedule;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use testbed::Used;

use self::cluster::Cluster;
use self::journal::Journal;
use self::load::{LoadGenerator, tidy};
use self::plan::{Candidate, Place, Plan};
use self::schedule::{Trial, is_possible, left, seconds_left};
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
        /// Trials of the plan before this one, but for those that cannot be made.
        done: usize,
        /// Trials of the whole plan, but for those.
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

/// What a person who stops a run reads.
const STOPPED: &str = "stopped; the same command with the same results file goes on from here";

/// Whoever watches a run; a break stops it, and everything that it has started.
pub type Watch<'a> = &'a mut dyn FnMut(Event) -> ControlFlow<()>;

/// Measures what is left of `plan`; data of local nodes go into `folder`, which is emptied. Returns how many trials failed; zero means that the file is
/// complete.
pub fn run(
    plan: &Plan,
    journal: &mut Journal,
    generator: &mut dyn LoadGenerator,
    folder: &Path,
    watch: Watch<'_>,
) -> Result<usize, String> {
    if journal.results.is_complete {
        return Ok(0);
    }
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
        let folder = folder.join(name.replace(['/', ' '], "-"));
        let began = Instant::now();
        let mut cluster = match Cluster::up(candidate, folder) {
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
        let mut course = Course { plan, overheads: &mut overheads, failed: 0 };
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
                let step = step(known, trial, measured, &used);
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

    /// How many trials come before this one, how many there are, and how long those behind it take. What
    /// cannot be made, or is known to be skipped, takes no time, nor does what failed before: that is for the
    /// next run.
    fn place(&self, trial: &Trial, journal: &Journal) -> (usize, usize, f64) {
        let mut all = schedule::trials(self.plan);
        all.retain(|other| is_possible(self.plan, other));
        let done = all.iter().position(|other| other == trial).unwrap_or(0);
        let waiting = left(self.plan, &journal.results).into_iter().skip_while(|other| other != trial).skip(1);
        let later: Vec<Trial> = waiting.filter(|other| self.reason_to_skip(other, journal).is_none()).collect();
        (done, all.len(), seconds_left(self.plan, &later, self.overheads))
    }

    fn drive(
        &mut self,
        trial: &Trial,
        cluster: &mut Cluster,
        journal: &Journal,
        generator: &mut dyn LoadGenerator,
        watch: Watch<'_>,
    ) -> Result<(Step, Vec<Used>), String> {
        let (done, all, later) = self.place(trial, journal);
        let name = self.plan.candidates[trial.candidate].configuration.name();
        let (test, target, seconds) = (trial.test, trial.target, trial.seconds());
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

/// A measurement as a line of the results: what the load saw, and what the nodes used.
fn step(known: &Configuration, trial: &Trial, measured: Step, used: &[Used]) -> Step {
    // The mean of the nodes, of what was measured of all of them.
    let mean = |of: &dyn Fn(&Used) -> Option<f64>| {
        let sum = used.iter().map(of).sum::<Option<f64>>().filter(|_| !used.is_empty());
        sum.map(|sum| tidy(sum / used.len() as f64))
    };
    let mib = |bytes: f64| bytes / 1_048_576.0;
    let worked = trial.work().map(|work| 100.0 * measured.consumed * work / 1e6 / trial.consumers as f64);
    Step {
        cluster: known.cluster.clone(),
        volume: known.volume.clone(),
        test: trial.test,
        target: trial.target,
        intended: tidy(trial.intended()),
        consumers: trial.consumers,
        cpu_percent: mean(&|used| Some(100.0 * used.cpu_cores)),
        memory_mib: mean(&|used| Some(mib(used.rss_bytes as f64))),
        disk_mib_s: mean(&|used| Some(mib(used.written.bytes? as f64) / used.seconds)),
        disk_iops: mean(&|used| used.operations_s),
        machine_cpu_percent: mean(&|used| Some(100.0 * used.machine?)),
        disk_busy_percent: mean(&|used| Some(100.0 * used.disk_busy?)),
        throttled_percent: mean(&|used| Some(100.0 * used.throttled?)),
        consumers_busy_percent: worked.map(tidy),
        ..measured
    }
}
