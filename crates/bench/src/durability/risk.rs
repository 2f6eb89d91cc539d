//! That the value at risk under *selective* never passes its cap, also when the broker is killed.
//!
//! Invariant: the gauge is the broker's own (SIGUSR1 writes it to its log), the loss is counted by
//! the books of the load: confirmed messages that did not come back, times their value. Only a
//! broker that this tool started can be asked and killed.
//!
//! A kill takes the process, not the machine: what was written survives it, so the loss must be
//! nothing. A power cut may take up to the cap; that is shown by the simulator, which can cut the
//! power.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use amqp::Value;

use super::{Lab, Stage, VALUE, VALUE_HEADER, declare, delete, durable};
use crate::Error;
use crate::broker::Broker;
use crate::client::Client;
use crate::fault::{Fault, KILLED};
use crate::record::Figure;
use crate::screen::say;
use crate::series::Series;

/// How often the gauge is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// What the gauge is called in the log.
const GAUGE: &str = "value_at_risk=";

pub(super) fn shown(lab: &mut Lab<'_>, (rate, cap): (f64, u64), series: &mut Series<'_>) -> Result<Figure, Error> {
    let title = "Value at risk under selective".to_owned();
    let absent = |why: &str| {
        say(&format!("\nValue at risk: not shown, {why}"));
        Figure { title: title.clone(), notes: vec![format!("Not shown: {why}.")], ..Figure::default() }
    };
    if !lab.abilities.chooses {
        return Ok(absent("this broker does not know x-durability"));
    }
    let Some(broker) = lab.broker.take() else {
        return Ok(absent("the broker was not started by this tool, so it cannot be killed; leave --uri out"));
    };
    let mut stage = Stage {
        has_value: true,
        ..durable("durability-risk", &[("x-durability", "selective"), ("x-durability-value-header", VALUE_HEADER)])
    };
    stage.arguments.push("x-durability-value-cap", Value::I64(cap as i64));
    let half = Duration::from_secs(lab.seconds) / 2;
    let uris = broker.uris();
    let broker = Arc::new(Mutex::new(broker));
    let (asked, (recorded, is_killed, largest)) = {
        let mut client = Client::connect(&uris[0], &lab.options("")?)?;
        client.open_channel(1)?;
        delete(&mut client, stage.queue)?;
        declare(&mut client, &stage)?;
        client.close();
        let is_over = Arc::new(AtomicBool::new(false));
        let asking = ask(Arc::clone(&broker), Arc::clone(&is_over));
        let killed = Arc::clone(&broker);
        let killing = Fault::new(series.context(), half, move || {
            let mut broker = killed.lock().expect("nobody panics with this lock");
            broker.kill()?;
            broker.launch()
        });
        let text = format!(
            "--producers 1 --consumers 1 --exchange= --predeclared --queue {} --rate {rate} --size 256 --confirm 2000 --qos 1000 \
             --message-properties {VALUE_HEADER}={VALUE} --connection-recovery-interval 0.2 --time {} --drain-timeout 30",
            stage.queue, lab.seconds
        );
        let mut options = lab.options(&text)?;
        options.uris = uris;
        let ran = series
            .run_options(&format!("selective, cap {cap}, killed half of the way"), options, None)
            .map(|run| run.clone());
        is_over.store(true, Ordering::Relaxed);
        let asked = asking.join().expect("the thread that asks does not panic");
        let is_killed = killing.end()?;
        let log = broker.lock().expect("nobody panics with this lock").log();
        (asked, (ran?, is_killed, gauges(&log)))
    };
    series.context().go_on()?;
    let lost = recorded.run.correctness.lost.unwrap_or(0) * VALUE;
    let (count, largest) = (largest.len(), largest.into_iter().max().unwrap_or(0));
    let apart = page::figures::count;
    let told = format!(
        "The gauge was asked {asked} times and read {count} times; the most it showed was {} of a cap of {}. The broker was killed with \
         SIGKILL after {} s and started again: of {} confirmed messages (value {VALUE} each) messages worth {} were gone",
        apart(largest),
        apart(cap),
        half.as_secs_f64(),
        apart(recorded.run.correctness.confirmed),
        apart(lost)
    );
    let run = &mut series.last().run;
    run.faults.extend(is_killed.then(|| (half.as_secs_f64(), KILLED.to_owned())));
    if let Some(why) = not_shown(is_killed, count, largest.max(lost)) {
        run.miss(format!("the value at risk was not shown: {why}"));
        return Ok(absent(&if is_killed { format!("{why}. {told}") } else { why.to_owned() }));
    }
    let holds = largest.max(lost) <= cap;
    say(&format!("\nValue at risk: {told}: {}", if holds { "the cap held" } else { "THE CAP DID NOT HOLD" }));
    if !holds {
        run.missed.push(format!("value at risk {largest}, lost {lost}, cap {cap}"));
    }
    Ok(Figure { title, shown: Some((told, holds)), ..Figure::default() })
}

/// What a run at a low rate may see of a broker that is quick.
const NOTHING: &str = "nothing was at risk whenever the gauge was read; a higher --rate puts more at risk";

/// Why a run says nothing of the cap, if so: the gauge was read `count` times, and `most` is the largest value
/// that it showed, or that was gone.
fn not_shown(is_killed: bool, count: usize, most: u64) -> Option<&'static str> {
    match (is_killed, count, most) {
        (false, ..) => Some("the load was over before the broker could be killed"),
        (true, 0, _) => Some("the gauge could not be read"),
        (true, _, 0) => Some(NOTHING),
        _ => None,
    }
}

/// Asks for the gauge until told to stop; returns how often.
fn ask(broker: Arc<Mutex<Broker>>, is_over: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut asked = 0;
        while !is_over.load(Ordering::Relaxed) {
            // With the lock, so that a broker that just starts is not asked before it can answer.
            let broker = broker.lock().expect("nobody panics with this lock");
            asked += u64::from(broker.signal(rustix::process::Signal::USR1).is_ok());
            drop(broker);
            std::thread::sleep(ASK_EVERY);
        }
        asked
    })
}

/// The gauge's values in a log.
fn gauges(log: &str) -> Vec<u64> {
    let value = |line: &str| {
        let digits = &line[line.find(GAUGE)? + GAUGE.len()..];
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    log.lines().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_held_only_where_something_was_at_risk() {
        assert_eq!(not_shown(true, 9, 0), Some(NOTHING));
        assert!(not_shown(false, 9, 100).is_some() && not_shown(true, 0, 100).is_some());
        assert_eq!(not_shown(true, 1, 100), None);
    }

    #[test]
    fn the_gauge_is_read_off_the_log() {
        let log = "INFO gauges value_at_risk=4900 connections=2\nINFO other\nINFO gauges value_at_risk=0 x=1\n";
        assert_eq!(gauges(log), [4900, 0]);
    }
}
