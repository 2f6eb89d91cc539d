//! One run from its options to its record: set up, load, drain, judge.
//!
//! Invariant: rates are those of the time of load; latencies and books are those of every message, also of the ones that came after
//! it, because leaving the late ones out is how measurements lie.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use page::figures::three;

use crate::Error;
use crate::clock::{Clock, SECOND};
use crate::disk::{Disk, Reading, own_count};
use crate::latency::{Figures, curve, histogram};
use crate::load::{
    Connector, ConsumerSettings, Control, Final, Gauges, Phase, ProducerSettings, Ready, Sample, Side, Worker,
    WorkerSettings, sizes_told_apart,
};
use crate::options::{ExitWhen, Options};
use crate::plan::{ConnectionPlan, Plan};
use crate::process::{Machine, Usage, listeners};
use crate::record::{Cost, HeldBack, Interval, Latency, Recorded, Run, add_reason};
use crate::setup::{Found, Setup};
use crate::uri::without_passwords;
use crate::verdict;

/// From the last thread's start to the first message: all threads are waiting by then.
const START_DELAY_NS: u64 = 50_000_000;

/// How often the run looks at its threads.
const LOOK: Duration = Duration::from_millis(50);

/// What the broker used in less than this is not told: the kernel counts CPU in hundredths of a second, and the ends of a run are not
/// its middle.
const COST_SPAN_NS: u64 = SECOND / 2;

/// How often the queues are counted for --exit-when empty.
const COUNT_EVERY_NS: u64 = SECOND / 2;

/// How long is waited for a broker to count what was given back.
const COUNT_PATIENCE: Duration = Duration::from_secs(5);

/// Who is told how a run goes.
pub trait Observer {
    /// The set-up is done and the load starts.
    fn started(&mut self, _options: &Options, _found: &Found) {}
    /// An interval is over; its histograms of confirms and of deliveries.
    fn interval(&mut self, _interval: &Interval, _confirm: &Histogram<u64>, _end_to_end: &Histogram<u64>) {}
    /// The run is over.
    fn finished(&mut self, _run: &Recorded) {}
}

/// What a run is done with beside its options.
#[derive(Debug, Default)]
pub struct Context {
    /// Set from outside (by a signal) to end the load early; the run is then judged as far as it went.
    pub interrupted: Arc<AtomicBool>,
    /// The broker's processes, when the caller has started them.
    pub broker_pids: Vec<u32>,
    /// Which build this is, for reports.
    pub version: String,
}

impl Context {
    /// The same, for brokers that were started since.
    pub fn with_brokers(&self, broker_pids: Vec<u32>) -> Context {
        Context { interrupted: Arc::clone(&self.interrupted), broker_pids, version: self.version.clone() }
    }

    /// An error once somebody asked to end.
    pub fn go_on(&self) -> Result<(), Error> {
        if self.interrupted.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Waits, but not beyond an interruption; whether there was none.
pub fn pause(interrupted: &AtomicBool, length: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < length && !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    !interrupted.load(Ordering::Relaxed)
}

/// Makes a run.
pub fn run(options: &Options, context: &Context, observers: &mut [&mut dyn Observer]) -> Result<Recorded, Error> {
    let clock = Clock::new();
    let run_number = (clock.now() / 1000) as u32 ^ std::process::id().rotate_left(16);
    let plan = Plan::of(options, run_number);
    let machine = Machine::this();
    let setup = Arc::new(Setup::new(options, &plan));
    let found = setup.prepare()?;
    let ready = setup.connect_all()?;
    let mut names: Vec<String> = plan.queues.iter().map(|queue| queue.name.clone()).collect();
    for (at, name) in ready.iter().flat_map(|ready| &ready.names) {
        names[*at as usize].clone_from(name);
    }
    observers.iter_mut().for_each(|observer| observer.started(options, &found));
    let pids = broker_pids(options, context);
    let mut going = Going::start(options, &plan, &setup, (clock, run_number), (ready, &names), found.backlog)?;
    let mut merge = Merge::new(options, going.start_ns, going.threads.len(), pids, copies(options, &plan));
    let failure = going.watch(options, context, &setup, &names, &mut merge, observers);
    let finals = going.join();
    merge.finish(&going, observers);
    let given_back = finals.iter().map(|last| last.books.given_back).sum();
    let left = left(options, &setup, &names, (given_back, going.own_pace.is_some()));
    let mut run = merge.summary(options, &going, &found, (machine, context.version.clone()));
    run.correctness = verdict::correctness(options, &plan, &finals, (found.backlog, left));
    run.correctness.nacked = merge.nacked;
    run.missed = verdict::missed(options, &run, failure);
    let backlogs: Vec<(f64, u64)> = merge
        .intervals
        .iter()
        .filter(|interval| interval.phase != "drain")
        .filter_map(|interval| Some((interval.at_s, interval.backlog?)))
        .collect();
    let grown = verdict::grown(options, &run, &backlogs, found.backlog);
    run.backlog_grew = grown.is_some();
    run.missed.extend(grown);
    run.was_interrupted = going.interrupted.is_some();
    run.missed.extend(going.interrupted.take());
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
    let recorded = Recorded { run, intervals: merge.intervals };
    observers.iter_mut().for_each(|observer| observer.finished(&recorded));
    Ok(recorded)
}

/// What lies in the queues at the end; `None` where that cannot be counted. At least `given_back` must come to lie there, which
/// a broker may do a moment after the connection is closed.
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

/// The processes to watch: named, started by us, or found by their port when the broker is on this machine.
fn broker_pids(options: &Options, context: &Context) -> Vec<u32> {
    if !options.broker_pids.is_empty() {
        return options.broker_pids.clone();
    }
    if !context.broker_pids.is_empty() {
        return context.broker_pids.clone();
    }
    let local = |host: &str| host == "localhost" || host == "::1" || host.starts_with("127.");
    let mut pids: Vec<u32> =
        options.uris.iter().filter(|uri| local(&uri.host)).flat_map(|uri| listeners(uri.port)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| *pid != std::process::id());
    pids
}

/// How many queues each message reaches, where both sides are here and it is the same for all publishers.
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
    /// What the consumers take by themselves, where they are what the queues wait for: that is not waited for.
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
        loop {
            match self.samples.recv_timeout(LOOK) {
                Ok((thread, sample)) => merge.add(thread, *sample, self, observers),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = self.clock.now();
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
                        merge.running_ended(self, now);
                        self.own_pace = merge.own_pace(options);
                        self.control.advance(Phase::Draining);
                        // Asked behind the end: the load does not wait for the answer.
                        merge.own_last = own_count(&merge.pids, &merge.ports);
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
        // A second of silence: the books tell exactly what is missing, this only decides how long to wait for it.
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

/// When each channel of a connection publishes first, after the start. Producers at a rate are spread evenly over one interval
/// between two messages, or 500 of them would send at the same instant, which no 500 applications do.
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

/// Samples of all threads, put together.
struct Merge {
    interval_secs: u64,
    warmup_secs: u64,
    start_ns: u64,
    pids: Vec<u32>,
    /// The next sample that each thread has not sent yet.
    next: Vec<u64>,
    parts: BTreeMap<u64, Part>,
    emitted: u64,
    confirm: Histogram<u64>,
    end_to_end: Histogram<u64>,
    handed: Option<Histogram<u64>>,
    stages: Vec<(String, Histogram<u64>)>,
    /// Latency end to end for each size, where there is more than one.
    by_size: Vec<(u64, Histogram<u64>)>,
    intervals: Vec<Interval>,
    /// Counts at the end of the warm-up and of the load.
    before_warm: Counts,
    at_end: Counts,
    nacked: u64,
    blocked_ns: u64,
    /// What each thread was held back: nanoseconds and how often. A broker holds all threads back at once, so the longest counts.
    held_back: BTreeMap<usize, (u64, u64)>,
    held_back_why: Vec<String>,
    lost_connections: u64,
    /// All messages of each side, and the CPU time of it.
    all_published: u64,
    all_received: u64,
    /// Queues that each message reaches; `None` where one side is missing or that cannot be told.
    copies: Option<u64>,
    /// Copies that were sent and not received in the intervals so far; below zero where older ones were received.
    waiting: i64,
    cpu_ns: BTreeMap<usize, (Side, u64)>,
    usage: Option<Usage>,
    usage_at: u64,
    usage_first: Option<(Usage, u64)>,
    usage_last: Option<(Usage, u64)>,
    rss_max: u64,
    /// The broker's devices, and its counters of what was written: at the first look, where the cost begins, at the end of the load.
    disk: Disk,
    disk_first: Option<Reading>,
    disk_load: Reading,
    disk_last: Reading,
    /// What was written between the first look and the last one.
    written: Option<u64>,
    /// What the broker counts itself, where the cost begins and at the end of the load; and its AMQP ports, where nobody asks for it.
    own_first: Option<u64>,
    own_last: Option<u64>,
    ports: Vec<u16>,
    size: crate::pace::Steps,
    rate: Option<crate::pace::Steps>,
    publishers: f64,
    running_end_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    published: u64,
    confirmed: u64,
    received: u64,
}

#[derive(Default)]
struct Part {
    published: u64,
    confirmed: u64,
    nacked: u64,
    returned: u64,
    received: u64,
    bytes_out: u64,
    bytes_in: u64,
    blocked_ns: u64,
    held_back_ns: u64,
    held_back_why: Vec<String>,
    connections_lost: u64,
    cpu_ns: u64,
    confirm: Option<Histogram<u64>>,
    end_to_end: Option<Histogram<u64>>,
}

impl Merge {
    fn new(options: &Options, start_ns: u64, threads: usize, pids: Vec<u32>, copies: Option<u64>) -> Merge {
        let usage = Usage::of(&pids);
        let disk = Disk::of(&pids);
        let disk_first = usage.filter(|_| disk.is_known()).map(|usage| disk.read(usage.write_bytes));
        let publishers = f64::from(options.producing.count) * f64::from(options.producing.channels);
        Merge {
            interval_secs: options.interval_secs,
            warmup_secs: options.warmup_secs,
            start_ns,
            pids,
            next: vec![0; threads],
            parts: BTreeMap::new(),
            emitted: 0,
            confirm: histogram(),
            end_to_end: histogram(),
            handed: (!options.stages.is_empty()).then(histogram),
            stages: options.stages.iter().map(|name| (name.clone(), histogram())).collect(),
            by_size: sizes_told_apart(options).into_iter().map(|size| (size as u64, histogram())).collect(),
            intervals: Vec::new(),
            before_warm: Counts::default(),
            at_end: Counts::default(),
            nacked: 0,
            blocked_ns: 0,
            held_back: BTreeMap::new(),
            held_back_why: Vec::new(),
            lost_connections: 0,
            all_published: 0,
            all_received: 0,
            copies,
            waiting: 0,
            cpu_ns: BTreeMap::new(),
            usage,
            usage_at: start_ns,
            usage_first: None,
            usage_last: None,
            rss_max: 0,
            written: disk_first.and_then(|first| first.since(&first).bytes),
            disk,
            disk_first,
            disk_load: Reading::default(),
            disk_last: Reading::default(),
            own_first: None,
            own_last: None,
            ports: options.uris.iter().map(|uri| uri.port).collect(),
            size: options.producing.size.clone(),
            rate: options.producing.rate.clone().filter(|_| publishers > 0.0),
            publishers,
            running_end_ns: u64::MAX,
        }
    }

    /// The time of load is over: what was done by now is what the rates are made of.
    fn running_ended(&mut self, going: &Going, now: u64) {
        self.running_end_ns = going.running_end_ns;
        self.at_end = Counts {
            published: going.sum(|g| &g.published),
            confirmed: going.sum(|g| &g.confirmed),
            received: going.sum(|g| &g.received),
        };
        if let Some(usage) = Usage::of(&self.pids) {
            self.usage_last = Some((usage, now));
            self.disk_last = self.disk.read(usage.write_bytes);
        }
    }

    /// The consumers' own pace, where it is what most of the load waits for at its end.
    fn own_pace(&self, options: &Options) -> Option<f64> {
        let seconds = self.running_end_ns.saturating_sub(self.start_ns).max(1) as f64 / SECOND as f64;
        let sent = (self.at_end.published * self.copies?) as f64;
        let waits = sent - self.at_end.received as f64;
        verdict::own_pace(options, sent / seconds).filter(|_| waits > sent / seconds * verdict::BACKLOG_SECONDS)
    }

    fn add(&mut self, thread: usize, sample: Sample, going: &Going, observers: &mut [&mut dyn Observer]) {
        let index = sample.index;
        self.next[thread] = index + 1;
        let before = self.cpu_ns.insert(thread, (sample.side, sample.cpu_ns)).map_or(0, |(_, cpu)| cpu);
        let part = self.parts.entry(index).or_default();
        part.published += sample.published;
        part.confirmed += sample.confirmed;
        part.nacked += sample.nacked;
        part.returned += sample.returned;
        part.received += sample.received;
        part.bytes_out += sample.bytes_out;
        part.bytes_in += sample.bytes_in;
        part.blocked_ns += sample.blocked_ns;
        part.held_back_ns = part.held_back_ns.max(sample.held_back_ns);
        let held_back = self.held_back.entry(thread).or_default();
        held_back.0 += sample.held_back_ns;
        held_back.1 += sample.held_back_times;
        for why in sample.held_back_why {
            add_reason(&mut part.held_back_why, why.clone());
            add_reason(&mut self.held_back_why, why);
        }
        part.connections_lost += sample.connections_lost;
        part.cpu_ns += sample.cpu_ns.saturating_sub(before);
        self.all_published += sample.published;
        self.all_received += sample.received;
        let is_warm = index * self.interval_secs >= self.warmup_secs;
        if let (Some(all), Some(handed)) = (&mut self.handed, sample.handed.filter(|_| is_warm)) {
            add(all, &handed);
            self.stages.iter_mut().zip(&sample.stages).for_each(|((_, all), stage)| add(all, stage));
        }
        if is_warm {
            self.by_size.iter_mut().zip(&sample.by_size).for_each(|((_, all), of_size)| add(all, of_size));
        }
        join(&mut part.confirm, sample.confirm);
        join(&mut part.end_to_end, sample.end_to_end);
        let complete = self.next.iter().copied().min().unwrap_or(0);
        while self.emitted < complete {
            self.emit(going, observers);
        }
    }

    fn emit(&mut self, going: &Going, observers: &mut [&mut dyn Observer]) {
        let index = self.emitted;
        self.emitted += 1;
        let part = self.parts.remove(&index).unwrap_or_default();
        let interval_ns = self.interval_secs * SECOND;
        let (begin, end) = (index * interval_ns, (index + 1) * interval_ns);
        let running_end = self.running_end_ns.saturating_sub(self.start_ns);
        // The last interval is as long as it was.
        let length = (end.min(going.clock.now().saturating_sub(self.start_ns)) - begin.min(end)).max(1_000_000);
        let per_second = |count: u64| count as f64 * SECOND as f64 / length as f64;
        let broker = self.look_at_broker(going.clock.now());
        let body_bytes = (self.size.at(begin + interval_ns / 2).0 as u64).max(crate::message::BODY_BYTES_MIN as u64);
        let (confirm, end_to_end) = (part.confirm.unwrap_or_else(histogram), part.end_to_end.unwrap_or_else(histogram));
        let is_warm = begin >= self.warmup_secs * SECOND;
        if is_warm {
            add(&mut self.confirm, &confirm);
            add(&mut self.end_to_end, &end_to_end);
        } else {
            self.before_warm.published += part.published;
            self.before_warm.confirmed += part.confirmed;
            self.before_warm.received += part.received;
        }
        if let Some(copies) = self.copies {
            let taken = part.published.saturating_sub(part.nacked + part.returned) * copies;
            self.waiting += taken as i64 - part.received as i64;
        }
        self.nacked += part.nacked;
        self.blocked_ns += part.blocked_ns;
        self.lost_connections += part.connections_lost;
        let figures = |h: &Histogram<u64>| (!h.is_empty()).then(|| Figures::of(h));
        let interval = Interval {
            at_s: (begin + length) as f64 / SECOND as f64,
            phase: match (is_warm, begin < running_end) {
                (false, _) => "warm-up".to_owned(),
                (true, true) => "load".to_owned(),
                (true, false) => "drain".to_owned(),
            },
            body_bytes,
            target_per_s: self
                .rate
                .as_ref()
                .filter(|_| begin < running_end)
                .map(|rate| rate.at(begin + interval_ns / 2).0 * self.publishers),
            published_per_s: per_second(part.published),
            confirmed_per_s: per_second(part.confirmed),
            received_per_s: per_second(part.received),
            nacked: part.nacked,
            returned: part.returned,
            connections_lost: part.connections_lost,
            blocked_s: part.blocked_ns as f64 / SECOND as f64,
            held_back_s: part.held_back_ns as f64 / SECOND as f64,
            held_back_why: part.held_back_why,
            backlog: self.copies.map(|_| self.waiting.max(0) as u64),
            confirm: figures(&confirm),
            end_to_end: figures(&end_to_end),
            broker,
            generator_cores: part.cpu_ns as f64 / length as f64,
            to_broker_bytes_s: per_second(part.bytes_out),
            from_broker_bytes_s: per_second(part.bytes_in),
        };
        // The moment in which the threads end is no interval: a few messages in a millisecond are no rate.
        if begin >= running_end && length < interval_ns / 10 {
            return;
        }
        observers.iter_mut().for_each(|observer| observer.interval(&interval, &confirm, &end_to_end));
        self.intervals.push(interval);
    }

    fn look_at_broker(&mut self, now: u64) -> Option<crate::process::Load> {
        let usage = Usage::of(&self.pids)?;
        let elapsed_ns = now.saturating_sub(self.usage_at).max(1);
        let mut load = self.usage.map(|before| usage.since(&before, elapsed_ns));
        if self.usage_first.is_none() && !self.disk.is_known() {
            self.disk = Disk::of(&self.pids);
        }
        let reading = self.disk.read(usage.write_bytes);
        // Counted from the first look on: the lower one of two counters that only grow does not go back.
        let first = *self.disk_first.get_or_insert(reading);
        let written = reading.since(&first).bytes;
        if let Some(load) = &mut load {
            load.write_bytes_s = written
                .zip(self.written)
                .map(|(now, then)| now.saturating_sub(then) as f64 * SECOND as f64 / elapsed_ns as f64);
        }
        self.written = written;
        self.usage = Some(usage);
        self.usage_at = now;
        self.rss_max = self.rss_max.max(usage.rss_bytes);
        if self.usage_first.is_none() {
            self.usage_first = Some((usage, now));
            self.disk_load = reading;
            self.own_first = own_count(&self.pids, &self.ports);
        }
        load
    }

    fn finish(&mut self, going: &Going, observers: &mut [&mut dyn Observer]) {
        while let Ok((thread, sample)) = going.samples.recv_timeout(Duration::from_millis(200)) {
            self.add(thread, *sample, going, observers);
        }
        let last = self.next.iter().copied().max().unwrap_or(0);
        while self.emitted < last {
            self.emit(going, observers);
        }
    }

    /// Latency end to end by size, from the smallest on.
    fn by_size(&self) -> Vec<(u64, Figures)> {
        let one = [((self.size.max() as u64).max(crate::message::BODY_BYTES_MIN as u64), self.end_to_end.clone())];
        let all = if self.by_size.is_empty() { &one[..] } else { &self.by_size[..] };
        let measured = all.iter().filter(|(_, histogram)| !histogram.is_empty());
        let mut figures: Vec<(u64, Figures)> = measured.map(|(size, h)| (*size, Figures::of(h))).collect();
        figures.sort_unstable_by_key(|(size, _)| *size);
        figures
    }

    /// How long publishers were held back in all.
    fn held_back(&self) -> Option<HeldBack> {
        let (ns, times) = self.held_back.values().copied().max().filter(|(ns, _)| *ns > 0)?;
        Some(HeldBack { seconds: ns as f64 / SECOND as f64, times, reasons: self.held_back_why.clone() })
    }

    fn summary(&self, options: &Options, going: &Going, found: &Found, (machine, version): (Machine, String)) -> Run {
        let run_ns = going.running_end_ns.saturating_sub(going.start_ns);
        let warm_ns = run_ns.saturating_sub(self.warmup_secs * SECOND).max(1);
        let seconds = warm_ns as f64 / SECOND as f64;
        let per_second = |count: u64| count as f64 / seconds;
        let latency =
            |h: &Histogram<u64>| (!h.is_empty()).then(|| Latency { figures: Figures::of(h), curve: curve(h) });
        let (produces, consumes) = (options.producing.count > 0, options.consuming.count > 0);
        let identity = &found.identity;
        let cpu = |side| self.cpu_ns.values().filter(|(s, _)| *s == side).map(|(_, cpu)| *cpu).sum::<u64>() as f64;
        let each = |cpu_ns: f64, count: u64| (count > 0).then(|| cpu_ns / 1000.0 / count as f64);
        let mut run = Run {
            label: if options.label.is_empty() { identity.product.clone() } else { options.label.clone() },
            scenario: options.scenario.clone(),
            command: format!("leveret bench {}", without_passwords(&options.words)),
            version,
            started_s: going.start_ns / SECOND,
            broker: format!("{} {}{}", identity.product, identity.version, process_name(&self.pids)).trim().to_owned(),
            machine,
            open_loop: !options.closed_loop && self.rate.is_some(),
            seconds,
            target_per_s: self.rate.as_ref().map(|rate| rate.mean(run_ns) * self.publishers),
            published_per_s: per_second(self.at_end.published.saturating_sub(self.before_warm.published)),
            confirmed_per_s: (produces && options.producing.confirm.is_some())
                .then(|| per_second(self.at_end.confirmed.saturating_sub(self.before_warm.confirmed))),
            received_per_s: consumes
                .then(|| per_second(self.at_end.received.saturating_sub(self.before_warm.received))),
            confirm: latency(&self.confirm),
            end_to_end: latency(&self.end_to_end),
            handed: self.handed.as_ref().and_then(latency),
            stages: self.stages.iter().filter_map(|(name, h)| Some((name.clone(), latency(h)?))).collect(),
            by_size: self.by_size(),
            blocked_s: self.blocked_ns as f64 / SECOND as f64,
            held_back: self.held_back(),
            connections_lost: self.lost_connections,
            cost: Cost {
                publishing_us_per_message: each(cpu(Side::Producing), self.all_published),
                consuming_us_per_message: each(cpu(Side::Consuming), self.all_received),
                ..Cost::default()
            },
            ..Run::default()
        };
        if let (Some((first, from)), Some((last, until))) = (self.usage_first, self.usage_last) {
            let load = last.since(&first, until.saturating_sub(from));
            let mut written = self.disk_last.since(&self.disk_load);
            written.own_bytes = self.own_last.zip(self.own_first).map(|(now, then)| now.saturating_sub(then));
            let span_s = until.saturating_sub(from) as f64 / SECOND as f64;
            let sent = produces.then_some(run.published_per_s);
            let written_for = sent.or(run.received_per_s).filter(|rate| *rate > 0.0);
            run.cost.broker_rss_bytes_max = Some(self.rss_max);
            if until.saturating_sub(from) >= COST_SPAN_NS {
                run.cost.enter_broker(load.cpu_cores, sent, run.received_per_s);
                let messages = written_for.map(|rate| rate * span_s);
                run.cost.broker_write_bytes_per_message =
                    written.bytes.zip(messages).map(|(bytes, messages)| bytes as f64 / messages);
                run.cost.written_messages = messages.unwrap_or(0.0);
                run.cost.written = Some(written);
            }
        } else if self.pids.is_empty() {
            run.notes.push(
                "the broker's processes are not on this machine or were not found: --broker-pid names them".to_owned(),
            );
        }
        if let Some(version) = found.tls {
            run.notes.push(match options.tls.as_ref().is_some_and(|tls| tls.verifies) {
                true => format!("over {version}, the broker's certificate was verified"),
                false => format!(
                    "over {version}, the broker's certificate was not verified: --use-default-ssl-context or --tls-ca says whom to believe"
                ),
            });
        }
        if let Some(target) = run.target_per_s.filter(|target| run.published_per_s < target * 0.99) {
            let behind = (target - run.published_per_s) * seconds;
            run.notes.push(format!(
                "{behind:.0} messages were due in the time of load and not sent: the broker held the rest back"
            ));
        }
        run
    }
}

/// What runs there, beside what it says of itself: a broker may call itself by another's name, so that clients take it for that.
fn process_name(pids: &[u32]) -> String {
    let name = pids.first().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    name.map_or(String::new(), |name| format!(" (process {})", name.trim()))
}

fn add(all: &mut Histogram<u64>, part: &Histogram<u64>) {
    all.add(part).expect("all histograms of a run have the same bounds");
}

fn join(all: &mut Option<Histogram<u64>>, part: Histogram<u64>) {
    match all {
        Some(all) => add(all, &part),
        None => *all = Some(part),
    }
}
