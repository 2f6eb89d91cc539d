//! The runs of a scenario, one after the other, and what is required of each beside what its line
//! requires.
//!
//! Invariant: a broker that the scenario started is the same for all its runs, except where a run
//! has a box of its own.

use std::sync::{Arc, Mutex};

use super::file::{HELD_DEFAULT, Planned, run_of};
use crate::Error;
use crate::broker::Broker;
use crate::fault::{Fault, KILLED};
use crate::options::BrokerStart;
use crate::record::Recorded;
use crate::screen::say;
use crate::series::{Series, broker_of};
use crate::words::Given;

/// Makes them.
pub(super) fn run(planned: &[Planned], words: &Given, series: &mut Series<'_>) -> Result<(), Error> {
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    let shared = if planned.iter().any(|run| run.has_own_broker) { None } else { broker_of(words, false)? };
    let shared = shared.map(|broker| Arc::new(Mutex::new(broker)));
    let (mut first_held, mut confirmed, mut misses) = (None, 0, 0);
    for run in planned {
        if let Some(cpu) = run.options.broker.cpu.filter(|cpu| run.has_own_broker && *cpu > cores) {
            say(&format!("\n{}: left out, this machine has {cores} cores and not {cpu}", run.label));
            continue;
        }
        let own = match run.has_own_broker {
            true => Some(Arc::new(Mutex::new(Broker::start(&run.options.broker)?))),
            false => None,
        };
        let broker = own.as_ref().or(shared.as_ref());
        let mut before_told = None;
        if let Some(before) = &run.before {
            let filled = once(series, words, (&before.label, &before.bench), broker, false)?;
            // Beside what is measured it would be one of them.
            filled.run.is_preparation = filled.run.missed.is_empty();
            before_told = Some(format!("before, on the same broker: {}", filled.run.command));
        }
        let killer = run.kill_after.map(|after| {
            let (broker, kill) = (broker.cloned(), words.text("kill-command").map(str::to_owned));
            Fault::new(series.context(), after, move || lose(broker.as_deref(), kill.as_deref()))
        });
        let line = run.bench.replace("{held}", &format!("{:.0}", first_held.unwrap_or(HELD_DEFAULT)));
        let ran = once(series, words, (&run.label, &line), broker, run.kill_after.is_some());
        let is_killed = killer.map(Fault::end).transpose()?;
        let recorded = ran?;
        if is_killed == Some(false) && !recorded.run.was_interrupted {
            recorded.run.miss("the load was over before the broker was killed".to_owned());
        }
        let done = run.kill_after.filter(|_| is_killed == Some(true));
        recorded.run.faults.extend(done.map(|after| (after.as_secs_f64(), KILLED.to_owned())));
        recorded.run.notes.extend(before_told);
        judge(run, recorded, words, confirmed);
        confirmed = recorded.run.correctness.confirmed;
        first_held = first_held.or(recorded.run.confirmed_per_s);
        misses = if recorded.run.missed.is_empty() { 0 } else { misses + 1 };
        if run.misses_max.is_some_and(|most| misses >= most) {
            say(&format!("higher rates are left out: {misses} in a row were not held"));
            break;
        }
    }
    Ok(())
}

fn once<'s>(
    series: &'s mut Series<'_>,
    words: &Given,
    (label, line): (&str, &str),
    broker: Option<&Arc<Mutex<Broker>>>,
    is_killed: bool,
) -> Result<&'s mut Recorded, Error> {
    let mut options = run_of(words, line).map_err(Error::usage)?;
    let broker = broker.map(|broker| broker.lock().expect("nobody panics with this lock"));
    if let (Some(killed), true) = (&broker, is_killed) {
        // Whoever kills it needs the lock. Its processes are found by its port, also the next ones.
        options.uris = killed.uris();
        options.broker = BrokerStart::default();
        drop(broker);
        return series.run_options(label, options, None);
    }
    series.run_options(label, options, broker.as_deref())
}

/// What the scenario requires beside what the line does.
fn judge(run: &Planned, recorded: &mut Recorded, words: &Given, confirmed_before: u64) {
    let done = &mut recorded.run;
    if let (true, Some(cpu), Some(memory)) =
        (run.has_own_broker, run.options.broker.cpu, run.options.broker.memory_bytes)
    {
        done.notes.push(format!("the broker ran in a box of {cpu} cores and {} MB", memory >> 20));
    }
    let c = &done.correctness;
    let (received, twice) = (c.received, c.duplicated_flagged);
    if run.takes_all && received - twice < confirmed_before {
        done.miss(format!("{confirmed_before} messages were confirmed and {received} came back"));
    }
    let target = done.target_per_s.unwrap_or(0.0);
    if run.sends_all && done.published_per_s < target * 0.99 {
        done.miss(format!(
            "publishers felt it: {:.0} of {target:.0} messages a second were sent",
            done.published_per_s
        ));
    }
    if let Some(backlog) = run.stands {
        let left = done.correctness.left_in_queues.unwrap_or(0);
        done.notes.push(format!("{backlog} messages stood in the queue at the start, {left} at the end"));
        if left < backlog / 2 {
            done.miss(format!("the backlog did not stand: {left} of {backlog} messages were left"));
        }
    }
    if let Some((beside, theirs)) = &run.beside {
        let held = done.confirmed_per_s.unwrap_or(0.0);
        let note = format!("{}: {theirs:.0} msg/s; here {held:.0}, {:.1} times that", beside.who, held / theirs);
        say(&format!("  note              {note}"));
        done.notes.push(note);
        let required = theirs * beside.times;
        if !words.is_set("broker") && held < required {
            done.miss(format!("{held:.0} messages a second, {required:.0} are required"));
        }
    }
}

/// Kills a broker with a command, or the one that was started here, which comes back.
fn lose(broker: Option<&Mutex<Broker>>, kill: Option<&str>) -> Result<(), Error> {
    if let Some(command) = kill {
        let failed = |why: String| Error::machine(format!("killing a broker with {command:?}"), why);
        let status = std::process::Command::new("sh").arg("-c").arg(command).status();
        let status = status.map_err(|why| failed(why.to_string()))?;
        return if status.success() { Ok(()) } else { Err(failed(status.to_string())) };
    }
    let mut broker = broker.expect("there is a command or a broker").lock().expect("nobody panics with this lock");
    broker.kill()?;
    broker.launch()
}
