//! What the threads of a run counted, put together a second at a time, and its record.
//!
//! Invariant: an interval is told once every thread has sent its part of it, so that no number of
//! it changes afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use page::figures::count;
use testbed::Look;
use testbed::written::Reading;

use super::watched::Watched;
use super::{COST_SPAN_S, Going, Observer};
use crate::clock::SECOND;
use crate::disk::own_count;
use crate::latency::{Figures, curve, histogram};
use crate::load::{Counts, Sample, Side, rates_told_apart, sizes_told_apart};
use crate::options::Options;
use crate::process::Load;
use crate::record::{AtRate, Begun, Cost, HeldBack, Interval, Latency, Run, add_reason, mean};
use crate::setup::Found;
use crate::verdict;

/// From this part of its cores on the publishing side is what holds a rate back.
const BUSY: f64 = 0.9;

/// Samples of all threads, put together.
pub(super) struct Merge {
    interval_secs: u64,
    warmup_secs: u64,
    start_ns: u64,
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
    /// The same for each rate in all, where they are told apart.
    by_rate: Vec<(f64, Histogram<u64>)>,
    pub(super) intervals: Vec<Interval>,
    /// Counts of the intervals so far, and at the end of the load.
    told: Counts,
    at_end: Counts,
    /// All that was counted, also before and behind the load.
    pub(super) all: Counts,
    /// What each thread was held back: nanoseconds and how often. A broker holds all threads back
    /// at once, so the longest counts.
    held_back: BTreeMap<usize, (u64, u64)>,
    held_back_why: Vec<String>,
    /// Queues that each message reaches; `None` where one side is missing or that cannot be told.
    copies: Option<u64>,
    /// Copies that were sent and not received in the intervals so far; below zero where older ones
    /// were received.
    waiting: i64,
    /// Messages that were sent in the intervals so far, where it is known how many were due.
    sent: Option<u64>,
    /// The CPU time of each thread.
    cpu_ns: BTreeMap<usize, (Side, u64)>,
    /// The broker's processes, those too that were killed meanwhile; looked at last, where the cost begins,
    /// and at the end of the load.
    pub(super) watched: Watched,
    seen: Option<Look>,
    first: Option<Look>,
    last: Option<Look>,
    rss_max: u64,
    /// The counters of what was written at the first look that knew a device, and what they have counted
    /// since: the lower one of two that only grow does not go back.
    written_first: Option<Reading>,
    written: Option<u64>,
    /// What the broker counts itself, where the cost begins and at the end of the load; and its
    /// AMQP ports, where nobody asks for it.
    own_first: Option<u64>,
    pub(super) own_last: Option<u64>,
    pub(super) ports: Vec<u16>,
    size: crate::pace::Steps,
    rate: Option<crate::pace::Steps>,
    publishers: f64,
    running_end_ns: u64,
}

#[derive(Default)]
struct Part {
    counts: Counts,
    held_back_ns: u64,
    held_back_why: Vec<String>,
    cpu_ns: u64,
    confirm: Option<Histogram<u64>>,
    end_to_end: Option<Histogram<u64>>,
}

impl Merge {
    pub(super) fn new(
        options: &Options,
        start_ns: u64,
        threads: usize,
        mut watched: Watched,
        copies: Option<u64>,
    ) -> Merge {
        let seen = watched.look();
        let written_first = seen.as_ref().map(|look| look.written).filter(|reading| reading.device.is_some());
        let publishers = f64::from(options.producing.count) * f64::from(options.producing.channels);
        Merge {
            interval_secs: options.interval_secs,
            warmup_secs: options.warmup_secs,
            start_ns,
            next: vec![0; threads],
            parts: BTreeMap::new(),
            emitted: 0,
            confirm: histogram(),
            end_to_end: histogram(),
            handed: (!options.stages.is_empty()).then(histogram),
            stages: options.stages.iter().map(|name| (name.clone(), histogram())).collect(),
            by_size: sizes_told_apart(options).into_iter().map(|size| (size as u64, histogram())).collect(),
            by_rate: rates_told_apart(options).into_iter().map(|rate| (rate * publishers, histogram())).collect(),
            intervals: Vec::new(),
            told: Counts::default(),
            at_end: Counts::default(),
            all: Counts::default(),
            held_back: BTreeMap::new(),
            held_back_why: Vec::new(),
            copies,
            waiting: 0,
            sent: owes(options).then_some(0),
            cpu_ns: BTreeMap::new(),
            watched,
            seen,
            first: None,
            last: None,
            rss_max: 0,
            written: written_first.and_then(|first| first.since(&first).bytes),
            written_first,
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
    pub(super) fn running_ended(&mut self, going: &Going) {
        self.running_end_ns = going.running_end_ns;
        self.at_end = Counts {
            published: going.sum(|g| &g.published),
            confirmed: going.sum(|g| &g.confirmed),
            received: going.sum(|g| &g.received),
            ..Counts::default()
        };
        self.last = self.watched.look();
    }

    /// The consumers' own pace, where it is what most of the load waits for at its end.
    pub(super) fn own_pace(&self, options: &Options) -> Option<f64> {
        let seconds = self.running_end_ns.saturating_sub(self.start_ns).max(1) as f64 / SECOND as f64;
        let sent = (self.at_end.published * self.copies?) as f64;
        let waits = sent - self.at_end.received as f64;
        verdict::own_pace(options, sent / seconds).filter(|_| waits > sent / seconds * verdict::BACKLOG_SECONDS)
    }

    pub(super) fn add(&mut self, thread: usize, sample: Sample, going: &Going, observers: &mut [&mut dyn Observer]) {
        let index = sample.index;
        self.next[thread] = index + 1;
        let before = self.cpu_ns.insert(thread, (sample.side, sample.cpu_ns)).map_or(0, |(_, cpu)| cpu);
        let part = self.parts.entry(index).or_default();
        part.counts += sample.counts;
        self.all += sample.counts;
        part.held_back_ns = part.held_back_ns.max(sample.held_back_ns);
        let held_back = self.held_back.entry(thread).or_default();
        held_back.0 += sample.held_back_ns;
        held_back.1 += sample.held_back_times;
        for why in sample.held_back_why {
            add_reason(&mut part.held_back_why, why.clone());
            add_reason(&mut self.held_back_why, why);
        }
        part.cpu_ns += sample.cpu_ns.saturating_sub(before);
        let is_warm = index * self.interval_secs >= self.warmup_secs;
        if let (Some(all), Some(handed)) = (&mut self.handed, sample.handed.filter(|_| is_warm)) {
            add(all, &handed);
            self.stages.iter_mut().zip(&sample.stages).for_each(|((_, all), stage)| add(all, stage));
        }
        if is_warm {
            self.by_size.iter_mut().zip(&sample.by_size).for_each(|((_, all), of_size)| add(all, of_size));
            self.by_rate.iter_mut().zip(&sample.by_rate).for_each(|((_, all), of_rate)| add(all, of_rate));
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
        let counts = part.counts;
        let interval_ns = self.interval_secs * SECOND;
        let (begin, end) = (index * interval_ns, (index + 1) * interval_ns);
        let running_end = self.running_end_ns.saturating_sub(self.start_ns);
        let is_load = begin < running_end;
        // The last interval is as long as it was.
        let whole = (end.min(going.clock.now().saturating_sub(self.start_ns)) - begin.min(end)).max(1_000_000);
        // One in which the load ends is two: what came behind is no rate of the load.
        let is_parted = is_load && running_end < begin + whole;
        let length = if is_parted { running_end - begin } else { whole };
        let (here, behind) =
            if is_parted { counts.parted(&self.at_end, &self.told) } else { (counts, Counts::default()) };
        self.told += counts;
        let over = |count: u64, length: u64| count as f64 * SECOND as f64 / length as f64;
        let broker = self.look_at_broker();
        let body_bytes = (self.size.at(begin + interval_ns / 2).0 as u64).max(crate::message::BODY_BYTES_MIN as u64);
        let (confirm, end_to_end) = (part.confirm.unwrap_or_else(histogram), part.end_to_end.unwrap_or_else(histogram));
        let is_warm = begin >= self.warmup_secs * SECOND;
        if is_warm {
            add(&mut self.confirm, &confirm);
            add(&mut self.end_to_end, &end_to_end);
        }
        let mut waiting = |counts: &Counts| {
            let copies = self.copies?;
            let taken = counts.published.saturating_sub(counts.nacked + counts.returned) * copies;
            self.waiting += taken as i64 - counts.received as i64;
            Some(self.waiting.max(0) as u64)
        };
        let (backlog, backlog_behind) = (waiting(&here), waiting(&behind));
        self.sent = self.sent.map(|sent| sent + counts.published);
        let unsent = self.sent.zip(self.rate.as_ref()).filter(|_| is_load).map(|(sent, rate)| {
            let until = begin + length;
            let due = rate.mean(until) * self.publishers * until as f64 / SECOND as f64;
            (due - sent as f64).max(0.0) as u64
        });
        let figures = |h: &Histogram<u64>| (!h.is_empty()).then(|| Figures::of(h));
        let interval = Interval {
            at_s: (begin + length) as f64 / SECOND as f64,
            phase: match (is_warm, is_load) {
                (false, _) => "warm-up".to_owned(),
                (true, true) => "load".to_owned(),
                (true, false) => "drain".to_owned(),
            },
            body_bytes,
            target_per_s: self
                .rate
                .as_ref()
                .filter(|_| is_load)
                .map(|rate| rate.at(begin + interval_ns / 2).0 * self.publishers),
            published_per_s: over(here.published, length),
            confirmed_per_s: over(here.confirmed, length),
            received_per_s: over(here.received, length),
            nacked: counts.nacked,
            returned: counts.returned,
            connections_lost: counts.connections_lost,
            blocked_s: counts.blocked_ns as f64 / SECOND as f64,
            held_back_s: part.held_back_ns as f64 / SECOND as f64,
            held_back_why: part.held_back_why,
            backlog,
            unsent,
            confirm: figures(&confirm),
            end_to_end: figures(&end_to_end),
            broker,
            generator_cores: part.cpu_ns as f64 / whole as f64,
            to_broker_bytes_s: over(counts.bytes_out, whole),
            from_broker_bytes_s: over(counts.bytes_in, whole),
        };
        // The moment in which the threads end is no interval: a few messages in a millisecond are
        // no rate.
        let is_moment = |length: u64| length < interval_ns / 10;
        if !is_load && is_moment(whole) {
            return;
        }
        observers.iter_mut().for_each(|observer| observer.interval(&interval, &confirm, &end_to_end));
        let rest = whole - length;
        let drain = (is_parted && !is_moment(rest)).then(|| Interval {
            at_s: (begin + whole) as f64 / SECOND as f64,
            phase: "drain".to_owned(),
            published_per_s: over(behind.published, rest),
            confirmed_per_s: over(behind.confirmed, rest),
            received_per_s: over(behind.received, rest),
            backlog: backlog_behind,
            ..interval.only_used()
        });
        self.intervals.push(interval);
        if let Some(drain) = drain {
            observers.iter_mut().for_each(|observer| observer.interval(&drain, &histogram(), &histogram()));
            self.intervals.push(drain);
        }
    }

    fn look_at_broker(&mut self) -> Option<Load> {
        let look = self.watched.look()?;
        let used = self.seen.as_ref().map(|seen| look.since(seen));
        let written = look.written.since(self.written_first.get_or_insert(look.written)).bytes;
        let load = used.map(|used| Load {
            write_bytes_s: written.zip(self.written).map(|(now, then)| now.saturating_sub(then) as f64 / used.seconds),
            ..Load::from(&used)
        });
        self.written = written;
        self.rss_max = self.rss_max.max(look.used.rss_bytes);
        if self.first.is_none() {
            self.first = Some(look.clone());
            self.own_first = own_count(self.watched.pids(), &self.ports);
        }
        self.seen = Some(look);
        load
    }

    pub(super) fn finish(&mut self, going: &Going, observers: &mut [&mut dyn Observer]) {
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

    /// What went through in the intervals that asked for this rate.
    fn at_rate(&self, asked: f64, consumes: bool) -> Option<AtRate> {
        let of = |rate: fn(&Interval) -> f64| {
            let is_it = |i: &Interval| i.phase == "load" && i.target_per_s == Some(asked);
            mean(&self.intervals, |i| is_it(i).then(|| rate(i)))
        };
        let sent = of(|i| if i.nacked > 0 { i.published_per_s.min(i.confirmed_per_s) } else { i.published_per_s })?;
        Some(AtRate { asked, sent, received: of(|i| i.received_per_s).filter(|_| consumes) })
    }

    /// Latency end to end by rate, from the slowest on.
    fn by_rate(&self) -> Vec<(f64, Figures)> {
        let measured = self.by_rate.iter().filter(|(_, histogram)| !histogram.is_empty());
        let mut figures: Vec<(f64, Figures)> = measured.map(|(rate, h)| (*rate, Figures::of(h))).collect();
        figures.sort_by(|a, b| a.0.total_cmp(&b.0));
        figures
    }

    /// How long publishers were held back in all.
    fn held_back(&self) -> Option<HeldBack> {
        let (ns, times) = self.held_back.values().copied().max().filter(|(ns, _)| *ns > 0)?;
        Some(HeldBack { seconds: ns as f64 / SECOND as f64, times, reasons: self.held_back_why.clone() })
    }

    pub(super) fn summary(&self, options: &Options, going: &Going, found: &Found, begun: &Begun) -> Run {
        let run_ns = going.running_end_ns.saturating_sub(going.start_ns);
        // The rates of a run are the means of its intervals, which the warm-up has whole ones of.
        let warm_secs = self.warmup_secs.next_multiple_of(self.interval_secs);
        let seconds = run_ns.saturating_sub(warm_secs * SECOND) as f64 / SECOND as f64;
        let in_load =
            |rate: fn(&Interval) -> f64| mean(&self.intervals, |i| (i.phase == "load").then(|| rate(i))).unwrap_or(0.0);
        let latency =
            |h: &Histogram<u64>| (!h.is_empty()).then(|| Latency { figures: Figures::of(h), curve: curve(h) });
        let (produces, consumes) = (options.producing.count > 0, begun.receives);
        let cpu = |side| self.cpu_ns.values().filter(|(s, _)| *s == side).map(|(_, cpu)| *cpu).sum::<u64>() as f64;
        let each = |cpu_ns: f64, count: u64| (count > 0).then(|| cpu_ns / 1000.0 / count as f64);
        let received_per_s = in_load(|i| i.received_per_s);
        let mut run = Run {
            seconds,
            target_per_s: self.rate.as_ref().map(|rate| rate.mean(run_ns) * self.publishers),
            published_per_s: in_load(|i| i.published_per_s),
            confirmed_per_s: begun.confirms.then(|| in_load(|i| i.confirmed_per_s)),
            received_per_s: consumes.then_some(received_per_s),
            confirm: latency(&self.confirm),
            end_to_end: latency(&self.end_to_end),
            handed: self.handed.as_ref().and_then(latency),
            stages: self.stages.iter().filter_map(|(name, h)| Some((name.clone(), latency(h)?))).collect(),
            by_size: self.by_size(),
            by_rate: self.by_rate(),
            at_rates: self.by_rate.iter().filter_map(|(asked, _)| self.at_rate(*asked, consumes)).collect(),
            blocked_s: self.all.blocked_ns as f64 / SECOND as f64,
            held_back: self.held_back(),
            connections_lost: self.all.connections_lost,
            cost: Cost {
                publishing_us_per_message: each(cpu(Side::Producing), self.all.published),
                consuming_us_per_message: each(cpu(Side::Consuming), self.all.received),
                consumers_busy: consumers_busy(options, received_per_s),
                ..Cost::default()
            },
            ..begun.run()
        };
        if let (Some(first), Some(last)) = (&self.first, &self.last) {
            let mut used = last.since(first);
            used.written.own_bytes = self.own_last.zip(self.own_first).map(|(now, then)| now.saturating_sub(then));
            let sent = produces.then_some(run.published_per_s);
            let written_for = sent.or(run.received_per_s).filter(|rate| *rate > 0.0);
            run.cost.broker_rss_bytes_max = Some(self.rss_max);
            if used.seconds >= COST_SPAN_S {
                run.cost.enter_broker(used.cpu_cores, sent, run.received_per_s);
                let messages = written_for.map(|rate| rate * used.seconds);
                run.cost.broker_write_bytes_per_message =
                    used.written.bytes.zip(messages).map(|(bytes, messages)| bytes as f64 / messages);
                run.cost.written_messages = messages.unwrap_or(0.0);
                (run.cost.machine, run.cost.disk_busy) = (used.machine, used.disk_busy);
                (run.cost.throttled, run.cost.cores_limit) = (used.throttled, used.cores_limit);
                run.cost.disk_operations_s = used.operations_s;
                run.cost.written = Some(used.written);
            }
        } else if self.watched.pids().is_empty() {
            run.notes.push(
                "the broker's processes are not on this machine or were not found: --broker-pid names them".to_owned(),
            );
        } else {
            run.notes.push(
                "none of the broker's processes was there at the end of the load: what they used is not told"
                    .to_owned(),
            );
        }
        run.notes.extend(self.watched.notes());
        if let Some(version) = found.tls {
            run.notes.push(match options.tls.as_ref().is_some_and(|tls| tls.verifies) {
                true => format!("over {version}, the broker's certificate was verified"),
                false => format!(
                    "over {version}, the broker's certificate was not verified: --use-default-ssl-context or --tls-ca says whom to believe"
                ),
            });
        }
        run.notes.extend(held_back(options, &run, seconds));
        run
    }
}

/// The part of the time in which consumers did what `--consumer-latency` has them do, where that is the same
/// all the time.
fn consumers_busy(options: &Options, received_per_s: f64) -> Option<f64> {
    let (work, count) = (&options.consuming.work_us, options.consuming.count * u32::from(options.consuming.channels));
    let is_steady = !work.is_stepped() && work.max() > 0.0 && count > 0;
    is_steady.then(|| received_per_s * work.max() / 1e6 / f64::from(count))
}

/// Whether messages that were due are sent later, and how many are due is known: a closed loop owes
/// nothing, a number of messages is owed as a whole, and who starts at a random time owes from then on.
fn owes(options: &Options) -> bool {
    let producing = &options.producing;
    let is_paced = producing.rate.is_some() && !options.closed_loop;
    is_paced && producing.messages == 0 && producing.random_start_delay_secs == 0
}

/// How far a rate was missed, and what kept it back.
fn held_back(options: &Options, run: &Run, seconds: f64) -> Option<String> {
    let target = run.target_per_s.filter(|target| run.published_per_s < target * 0.99)?;
    let behind = (target - run.published_per_s) * seconds;
    let cores = run.cost.publishing_us_per_message.unwrap_or(0.0) * run.published_per_s / 1e6;
    let threads = options.threads.min(options.producing.count as usize) as f64;
    let why = match (&run.held_back, options.producing.confirm) {
        (Some(held), _) => format!("the broker held the rest back: {}", held.reasons.join(", ")),
        _ if cores >= threads * BUSY => {
            format!("this load's own threads were busy ({cores:.2} of {threads} cores; --threads gives it more)")
        }
        (None, Some(window)) => {
            let window = count(window);
            format!("the broker held the rest back, with at most {window} unconfirmed on a channel (--confirm)")
        }
        (None, None) => "the broker held the rest back".to_owned(),
    };
    (options.producing.messages == 0)
        .then(|| format!("{} messages were due in the time of load and not sent: {why}", count(behind as u64)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::run_of;
    use crate::words::words_of;

    #[test]
    fn who_asked_for_a_number_of_messages_is_not_told_of_more_that_were_due() {
        let mut run = Run { target_per_s: Some(1000.0), published_per_s: 2.0, ..Run::default() };
        let told = |run: &Run, line: &str| held_back(&run_of(&words_of(line)).expect("a run"), run, 1.5);
        assert_eq!(told(&run, "--rate 1k -C 3"), None);
        let note = told(&run, "--rate 1k --time 2").expect("a note");
        assert_eq!(note, "1,497 messages were due in the time of load and not sent: the broker held the rest back");
        let note = told(&run, "--rate 1k --time 2 -c 50").expect("a note");
        assert!(note.ends_with("the rest back, with at most 50 unconfirmed on a channel (--confirm)"), "{note}");
        run.cost.publishing_us_per_message = Some(480_000.0);
        let note = told(&run, "--rate 1k --time 2").expect("a note");
        assert!(
            note.ends_with("this load's own threads were busy (0.96 of 1 cores; --threads gives it more)"),
            "{note}"
        );
    }
}
