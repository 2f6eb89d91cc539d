//! One run from its options to its record: set up, load, drain, judge.
//!
//! Invariant: rates are those of the time of load; latencies and books are those of every message,
//! also of the ones that came after it, because leaving the late ones out is how measurements lie.

mod merge;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use page::figures::three;

use crate::Error;
use crate::clock::{Clock, SECOND};
use crate::disk::own_count;
use crate::fault::Loads;
use crate::load::{
    Connector, ConsumerSettings, Control, Final, Gauges, Phase, ProducerSettings, Ready, Sample, Side, Worker,
    WorkerSettings,
};
use crate::options::{ExitWhen, Options};
use crate::plan::{ConnectionPlan, Plan};
use crate::process::Machine;
use crate::record::{Begun, Interval, Latency, Recorded, Run};
use crate::setup::{Found, Setup};
use crate::uri::without_passwords;
use crate::verdict;
use merge::Merge;
use watched::Watched;

/// From the last thread's start to the first message: all threads are waiting by then.
const START_DELAY_NS: u64 = 50_000_000;

/// How often the run looks at its threads.
const LOOK: Duration = Duration::from_millis(50);

/// What the broker used in less than this is not told: the kernel counts CPU in hundredths of a
/// second, and the ends of a run are not its middle.
const COST_SPAN_S: f64 = 0.5;

/// How often the queues are counted for --exit-when empty.
const COUNT_EVERY_NS: u64 = SECOND / 2;

/// How long is waited for a broker to count what was given back.
const COUNT_PATIENCE: Duration = Duration::from_secs(5);

/// Who is told how a run goes.
pub trait Observer {
    /// The set-up is done and the load starts.
    fn started(&mut self, _options: &Options, _found: &Found, _begun: &Begun) {}
    /// An interval is over; its histograms of confirms and of deliveries.
    fn interval(&mut self, _interval: &Interval, _confirm: &Histogram<u64>, _end_to_end: &Histogram<u64>) {}
    /// The run is over.
    fn finished(&mut self, _run: &Recorded) {}
}

/// What a run is done with beside its options.
#[derive(Debug, Default)]
pub struct Context {
    /// Set from outside (by a signal) to end the load early; the run is then judged as far as it
    /// went.
    pub interrupted: Arc<AtomicBool>,
    /// How many loads have begun: what happens in the middle of one counts from there.
    pub loads: Loads,
    /// The broker's processes, when the caller has started them.
    pub broker_pids: Vec<u32>,
    /// Which build this is, for reports.
    pub version: String,
}

impl Context {
    /// The same, for brokers that were started since.
    pub fn with_brokers(&self, broker_pids: Vec<u32>) -> Context {
        Context {
            interrupted: Arc::clone(&self.interrupted),
            loads: Arc::clone(&self.loads),
            broker_pids,
            version: self.version.clone(),
        }
    }

    /// An error once somebody asked to end.
    pub fn go_on(&self) -> Result<(), Error> {
        if self.interrupted.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Makes a run.
pub fn run(options: &Options, context: &Context, observers: &mut [&mut dyn Observer]) -> Result<Recorded, Error> {
    let clock = Clock::new();
    let run_number = (clock.now() / 1000) as u32 ^ std::process::id().rotate_left(16);
    let plan = Plan::of(options, run_number);
    let setup = Arc::new(Setup::new(options, &plan));
    let found = setup.prepare()?;
    let ready = setup.connect_all()?;
    let mut names: Vec<String> = plan.queues.iter().map(|queue| queue.name.clone()).collect();
    for (at, name) in ready.iter().flat_map(|ready| &ready.names) {
        names[*at as usize].clone_from(name);
    }
    let watched = Watched::new(options, named_pids(options, context));
    let begun = begun(options, &found, watched.pids(), (clock.now() / SECOND, context.version.clone()));
    observers.iter_mut().for_each(|observer| observer.started(options, &found, &begun));
    let mut going = Going::start(options, &plan, &setup, (clock, run_number), (ready, &names), found.backlog)?;
    let mut merge = Merge::new(options, going.start_ns, going.threads.len(), watched, copies(options, &plan));
    let failure = going.watch(options, context, &setup, &names, &mut merge, observers);
    let finals = going.join();
    merge.finish(&going, observers);
    let given_back = finals.iter().map(|last| last.books.given_back).sum();
    let left = left(options, &setup, &names, (given_back, going.own_pace.is_some()));
    let mut run = merge.summary(options, &going, &found, &begun);
    run.correctness = verdict::correctness(options, &plan, &finals, (found.backlog, left));
    run.correctness.nacked = merge.all.nacked;
    run.required = verdict::required(options, &run);
    run.missed = verdict::missed(&run, failure);
    let over_time = |value: fn(&Interval) -> Option<u64>| -> Vec<(f64, u64)> {
        let load = merge.intervals.iter().filter(|interval| interval.phase != "drain");
        load.filter_map(|interval| Some((interval.at_s, value(interval)?))).collect()
    };
    let unsent = verdict::unsent(options, &run, &over_time(|interval| interval.unsent));
    let grown = verdict::grown(options, &run, &over_time(|interval| interval.backlog), found.backlog);
    let behind: Vec<String> = unsent.into_iter().chain(grown).collect();
    run.backlog_grew = !behind.is_empty();
    // One of what was missed, however many sides fell behind.
    run.missed.extend(run.backlog_grew.then(|| behind.join(", and ")));
    run.why_p99 = why_p99(&run, &merge.intervals);
    run.was_interrupted = going.interrupted.is_some();
    run.missed.extend(going.interrupted.take());
    verdict::judge(&mut run);
    if going.ran_until_told {
        run.notes.push("it had no end of its own (--time) and ran until it was interrupted".to_owned());
    }
    if let Some(pace) = going.own_pace {
        run.notes.push(format!(
            "what waited at the end was not drained: the consumers themselves take at most {} messages a second \
             (--consumer-rate, --consumer-latency)",
            three(pace)
        ));
    }
    run.not_asked = verdict::not_asked(options);
    let recorded = Recorded { run, intervals: merge.intervals, is_of_figure: false };
    observers.iter_mut().for_each(|observer| observer.finished(&recorded));
    Ok(recorded)
}

/// What the 99th percentile is made of.
fn why_p99(run: &Run, intervals: &[Interval]) -> Option<String> {
    let p99 = |latency: &Option<Latency>| latency.as_ref().map(|latency| latency.figures.p99_ms);
    let (end_to_end, confirm) = (p99(&run.end_to_end), p99(&run.confirm));
    let waits = intervals.iter().filter_map(|i| i.backlog.max(i.unsent)).max().filter(|_| run.backlog_grew);
    run.circumstances(waits).reason(end_to_end.or(confirm)?, confirm.filter(|_| end_to_end.is_some()))
}

/// What is known of a run before its load.
fn begun(options: &Options, found: &Found, pids: &[u32], (started_s, version): (u64, String)) -> Begun {
    let identity = &found.identity;
    Begun {
        label: if options.label.is_empty() { identity.product.clone() } else { options.label.clone() },
        scenario: options.scenario.clone(),
        command: format!("leveret bench {}", without_passwords(&options.words)),
        version,
        started_s,
        broker: format!("{} {}{}", identity.product, identity.version, process_name(pids)).trim().to_owned(),
        machine: Machine::this(),
        open_loop: !options.closed_loop && options.producing.count > 0 && options.producing.rate.is_some(),
        confirms: options.producing.count > 0 && options.producing.confirm.is_some(),
        receives: options.consuming.count > 0,
    }
}

/// What runs there, beside what it says of itself: a broker may call itself by another's name, so
/// that clients take it for that.
fn process_name(pids: &[u32]) -> String {
    let name = pids.first().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    name.map_or(String::new(), |name| format!(" (process {})", name.trim()))
}

/// What lies in the queues at the end; `None` where that cannot be counted. At least `given_back`
/// must come to lie there, which a broker may do a moment after the connection is closed.
fn left(options: &Options, setup: &Setup, names: &[String], (given_back, was_cut_short): (u64, bool)) -> Option<u64> {
    // A queue that goes with its last consumer takes what lay in it along.
    if options.topology.exclusive || options.topology.auto_delete && (was_cut_short || given_back > 0) {
        return None;
    }
    let began = Instant::now();
    let mut before = None;
    loop {
        let now = setup.depth(names).ok()?;
        let is_settled = given_back == 0 || now >= given_back && before == Some(now);
        if is_settled || began.elapsed() > COUNT_PATIENCE {
            return Some(now);
        }
        before = Some(now);
        std::thread::sleep(LOOK);
    }
}

/// The processes to watch that somebody named, or that were started by us; none where they are found by their ports.
fn named_pids<'a>(options: &'a Options, context: &'a Context) -> &'a [u32] {
    if options.broker_pids.is_empty() { &context.broker_pids } else { &options.broker_pids }
}

/// How many queues each message reaches, where both sides are here and it is the same for all
/// publishers.
fn copies(options: &Options, plan: &Plan) -> Option<u64> {
    if options.producing.count == 0 || options.consuming.count == 0 {
        return None;
    }
    let publishers = plan.connections.iter().flat_map(|connection| match connection {
        ConnectionPlan::Producer(channels) => &channels[..],
        ConnectionPlan::Consumer(_) => &[],
    });
    let mut each = publishers.map(|publisher| Some(plan.reached(&publisher.routing_key)?.len() as u64));
    let first = each.next()??;
    each.all(|copies| copies == Some(first)).then_some(first)
}

/// The threads of a run.
struct Going {
    clock: Clock,
    start_ns: u64,
    /// When producers stopped, or the run did.
    running_end_ns: u64,
    /// Somebody ended a load that had an end of its own, or the time after it: when, in words.
    interrupted: Option<String>,
    /// A load without an end of its own was ended: it always is so.
    ran_until_told: bool,
    /// What the consumers take by themselves, where they are what the queues wait for: that is not
    /// waited for.
    own_pace: Option<f64>,
    control: Arc<Control>,
    gauges: Vec<(Side, Arc<Gauges>)>,
    threads: Vec<std::thread::JoinHandle<Final>>,
    samples: Receiver<(usize, Box<Sample>)>,
    channels: (u64, u64),
}

impl Going {
    fn start(
        options: &Options,
        plan: &Plan,
        setup: &Arc<Setup>,
        (clock, run_number): (Clock, u32),
        (ready, names): (Vec<Ready>, &[String]),
        backlog: u64,
    ) -> Result<Going, Error> {
        let producer = Arc::new(ProducerSettings::of(options, run_number));
        let consumer = Arc::new(ConsumerSettings::of(options, run_number, backlog));
        let control = Arc::new(Control::default());
        let (sender, samples) = channel();
        let start_ns = clock.now() + START_DELAY_NS + plan.connections.len() as u64 * 20_000;
        let channels = (
            u64::from(options.producing.count) * u64::from(options.producing.channels),
            u64::from(options.consuming.count) * u64::from(options.consuming.channels),
        );
        let mut going = Going {
            clock,
            start_ns,
            running_end_ns: 0,
            interrupted: None,
            ran_until_told: false,
            own_pace: None,
            control: Arc::clone(&control),
            gauges: Vec::new(),
            threads: Vec::new(),
            samples,
            channels,
        };
        for (side, share) in deal_out(options, plan, ready) {
            let number = going.threads.len();
            let settings = WorkerSettings {
                thread: number,
                side,
                clock,
                start_ns,
                interval_ns: options.interval_secs * SECOND,
                stages: if side == Side::Producing { options.stages.len() } else { 0 },
                producer: Arc::clone(&producer),
                consumer: Arc::clone(&consumer),
                recovery_secs: options.recovery_secs,
                consumer_starts_ns: share.iter().map(|(at, _, _)| consumer_start(options, *at)).collect(),
                producer_starts_ns: share.iter().flat_map(|(_, plan, _)| producer_starts(options, plan)).collect(),
            };
            let gauges = Arc::new(Gauges::default());
            let connector: Connector = Arc::clone(setup) as Connector;
            let shared = (Arc::clone(&control), Arc::clone(&gauges));
            let worker = Worker::new(settings, share, names.to_vec(), shared, sender.clone(), connector)?;
            let thread = std::thread::Builder::new().name(format!("load {number}")).spawn(move || worker.run());
            going.threads.push(thread.map_err(|why| Error::machine("starting a thread", why))?);
            going.gauges.push((side, gauges));
        }
        Ok(going)
    }

    /// Until everything is over. Returns why the run failed, if it did.
    fn watch(
        &mut self,
        options: &Options,
        context: &Context,
        setup: &Setup,
        names: &[String],
        merge: &mut Merge,
        observers: &mut [&mut dyn Observer],
    ) -> Option<String> {
        let mut next_count = self.start_ns + COUNT_EVERY_NS;
        let mut has_begun = false;
        loop {
            match self.samples.recv_timeout(LOOK) {
                Ok((thread, sample)) => merge.add(thread, *sample, self, observers),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = self.clock.now();
            if !has_begun && now >= self.start_ns {
                has_begun = true;
                context.loads.fetch_add(1, Ordering::Relaxed);
            }
            let is_interrupted = context.interrupted.load(Ordering::Relaxed);
            let failure = self.control.failure();
            match self.control.phase() {
                Phase::Running => {
                    let is_done = self.is_over(options, now);
                    let mut is_over = is_interrupted || failure.is_some() || is_done;
                    if options.exit_when == Some(ExitWhen::Empty) && now >= next_count && !is_over {
                        next_count = now + COUNT_EVERY_NS;
                        is_over = self.sum(|g| &g.unacked) == 0
                            && self.is_idle(now, SECOND / 4)
                            && setup.depth(names).is_ok_and(|d| d == 0);
                    }
                    if is_over {
                        let planned = options.time_secs.map_or(u64::MAX, |secs| self.start_ns + secs * SECOND);
                        self.running_end_ns = now.min(planned);
                        if is_interrupted && !is_done {
                            self.was_told_to_end(options, now);
                        }
                        merge.running_ended(self);
                        self.own_pace = merge.own_pace(options);
                        self.control.advance(Phase::Draining);
                        // Asked behind the end: the load does not wait for the answer.
                        merge.own_last = own_count(merge.watched.pids(), &merge.ports);
                    }
                }
                Phase::Draining => {
                    let patience = if failure.is_some() { 2 } else { options.drain_secs };
                    let is_late = now > self.running_end_ns + patience * SECOND;
                    let is_told = is_interrupted && self.interrupted.is_none() && !self.ran_until_told;
                    if is_told && failure.is_none() {
                        self.interrupted = Some("interrupted while the queues were drained".to_owned());
                    }
                    let is_over = self.own_pace.is_some() && self.is_answered() || self.is_drained(options, now);
                    if is_late || is_told || is_over {
                        self.control.advance(Phase::Ending);
                    }
                }
                Phase::Ending => {
                    if self.threads.iter().all(|thread| thread.is_finished()) {
                        break;
                    }
                }
            }
        }
        self.control.failure()
    }

    /// A signal ended the load before it was done.
    fn was_told_to_end(&mut self, options: &Options, now: u64) {
        let counts = options.producing.messages.max(options.consuming.messages);
        if options.time_secs.is_none() && counts == 0 && options.exit_when.is_none() {
            self.ran_until_told = true;
            return;
        }
        let seconds = now.saturating_sub(self.start_ns) as f64 / SECOND as f64;
        let planned = options.time_secs.map_or(String::new(), |secs| format!(" of {secs}"));
        self.interrupted = Some(format!("interrupted after {seconds:.1}{planned} s, before the load was done"));
    }

    fn sum(&self, gauge: impl Fn(&Gauges) -> &std::sync::atomic::AtomicU64) -> u64 {
        self.gauges.iter().map(|(_, gauges)| gauge(gauges).load(Ordering::Relaxed)).sum()
    }

    fn is_idle(&self, now: u64, for_ns: u64) -> bool {
        let last = self.gauges.iter().map(|(_, g)| g.last_event_ns.load(Ordering::Relaxed)).max().unwrap_or(0);
        now > last.max(self.start_ns) + for_ns
    }

    /// Whether the load has done what it was asked to.
    fn is_over(&self, options: &Options, now: u64) -> bool {
        if options.time_secs.is_some_and(|secs| now >= self.start_ns + secs * SECOND) {
            return true;
        }
        let done = |side: Side| -> u64 {
            let of = self.gauges.iter().filter(|(s, _)| *s == side);
            of.map(|(_, gauges)| gauges.done_channels.load(Ordering::Relaxed)).sum()
        };
        let (producers, consumers) = self.channels;
        if options.producing.messages > 0 && producers > 0 && done(Side::Producing) == producers {
            return true;
        }
        if options.consuming.messages > 0 && consumers > 0 && done(Side::Consuming) == consumers {
            return true;
        }
        options.exit_when == Some(ExitWhen::Idle) && self.is_idle(now, SECOND)
    }

    /// Whether everything that was sent was answered, on connections that are there.
    fn is_answered(&self) -> bool {
        self.sum(|g| &g.outstanding) == 0 && self.sum(|g| &g.lost_connections) == 0
    }

    /// Whether nothing is on its way any more.
    fn is_drained(&self, options: &Options, now: u64) -> bool {
        if !self.is_answered() {
            return false;
        }
        if options.consuming.count == 0 || options.consuming.messages > 0 {
            return self.is_idle(now, SECOND / 10);
        }
        if options.producing.count == 0 {
            return true;
        }
        // A second of silence: the books tell exactly what is missing, this only decides how long
        // to wait for it.
        self.sum(|g| &g.unacked) == 0 && self.is_idle(now, SECOND)
    }

    fn join(&mut self) -> Vec<Final> {
        self.control.advance(Phase::Ending);
        let threads = std::mem::take(&mut self.threads);
        threads.into_iter().map(|thread| thread.join().expect("a thread of load does not panic")).collect()
    }
}

type Share = Vec<(usize, ConnectionPlan, Ready)>;

/// Which thread has which connections. All consumers of a queue are on one.
fn deal_out(options: &Options, plan: &Plan, ready: Vec<Ready>) -> Vec<(Side, Share)> {
    let mut shares: BTreeMap<(bool, usize), Share> = BTreeMap::new();
    for (at, (connection, ready)) in plan.connections.iter().zip(ready).enumerate() {
        let key = match connection {
            ConnectionPlan::Producer(_) => (false, at % options.threads),
            ConnectionPlan::Consumer(channels) => match channels.first().map(|c| &c.queues[..]) {
                Some([only]) => (true, only.0 as usize % options.threads),
                _ => (true, 0),
            },
        };
        shares.entry(key).or_default().push((at, connection.clone(), ready));
    }
    let side = |consumes| if consumes { Side::Consuming } else { Side::Producing };
    shares.into_iter().map(|((consumes, _), share)| (side(consumes), share)).collect()
}

fn consumer_start(options: &Options, at: usize) -> u64 {
    let slow = if options.consuming.slow_start { at as u64 } else { 0 };
    (options.consuming.start_delay_secs + slow) * SECOND
}

/// When each channel of a connection publishes first, after the start. Producers at a rate are
/// spread evenly over one interval between two messages, or 500 of them would send at the same
/// instant, which no 500 applications do.
fn producer_starts(options: &Options, plan: &ConnectionPlan) -> Vec<u64> {
    let ConnectionPlan::Producer(channels) = plan else { return Vec::new() };
    let count = f64::from(options.producing.count) * f64::from(options.producing.channels);
    let starts = channels.iter().map(|channel| {
        let share = f64::from(channel.publisher) / count;
        if options.producing.random_start_delay_secs > 0 {
            // Not evenly but the same in every run.
            let mixed = (u64::from(channel.publisher) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
            return (mixed as f64 / (1u64 << 53) as f64 * (options.producing.random_start_delay_secs * SECOND) as f64)
                as u64;
        }
        let rate = options.producing.rate.as_ref().map_or(f64::INFINITY, |rate| rate.at(0).0);
        if rate > 0.0 { (share * SECOND as f64 / rate) as u64 } else { 0 }
    });
    starts.collect()
}
