//! One consuming channel: checks each message, works on it, acks it.
//!
//! Invariant: messages are worked on one after the other, in the order of their arrival; latency
//! counts until the work on a message begins, as PerfTest counts it. A message is acked once, after
//! its work.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::wire::method::Method;
use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::connection::Link;
use super::content::{Announced, Content};
use super::tally::{Books, Sample, StepsAt};
use crate::clock::SECOND;
use crate::message::{self, Filling};
use crate::options::{Consuming, Options};
use crate::pace::Steps;
use crate::plan::{ConsumerPlan, QueueId};

/// What all consumers of a run have in common.
#[derive(Debug)]
pub struct ConsumerSettings {
    /// The run's number.
    pub run: u32,
    /// How messages are consumed.
    pub consuming: Consuming,
    /// Microseconds of work, where there is any.
    pub work_us: Option<Steps>,
    /// Nanoseconds from one message to the next.
    pub pause_ns: u64,
    /// Messages of other runs count for latency.
    pub counts_foreign: bool,
    /// Messages that lay in the queues at the start.
    pub backlog_at_start: u64,
    /// What is in the bodies of this run beside their stamps.
    pub filling: Filling,
    /// Sizes of bodies whose latencies are told apart; none where there is one size only.
    pub sizes: Vec<usize>,
    /// Rates whose latencies are told apart, each once, and when each is asked for; none where there is
    /// one rate only.
    pub rates: Option<(Vec<f64>, Steps)>,
}

impl ConsumerSettings {
    /// Those of a run.
    pub fn of(options: &Options, run: u32, backlog_at_start: u64) -> ConsumerSettings {
        let consuming = &options.consuming;
        ConsumerSettings {
            run,
            consuming: consuming.clone(),
            work_us: (consuming.work_us.max() > 0.0).then(|| consuming.work_us.clone()),
            pause_ns: consuming.rate.map_or(0, |rate| (SECOND as f64 / rate) as u64),
            counts_foreign: options.use_millis || options.producing.count == 0,
            backlog_at_start,
            filling: Filling::new(options.producing.size.values().map(|size| size as usize)),
            sizes: sizes_told_apart(options),
            rates: options.producing.rate.clone().map(|steps| (rates_told_apart(options), steps)),
        }
    }

    /// In which steps a message was sent, however late it comes: the size is told by its own length,
    /// the rate by the time at which it was due, `due_ns` after the start.
    #[inline]
    fn steps_at(&self, bytes: usize, due_ns: u64) -> StepsAt {
        let rate = self.rates.as_ref().filter(|(rates, _)| !rates.is_empty());
        StepsAt {
            size: self.sizes.iter().position(|size| *size == bytes),
            rate: rate.and_then(|(rates, steps)| rates.iter().position(|rate| *rate == steps.at(due_ns).0)),
        }
    }

    /// Nanoseconds between two basic.get.
    fn polling_ns(&self) -> Option<u64> {
        self.consuming.polling_ms.map(|ms| ms * 1_000_000)
    }

    /// Whether a message takes time.
    fn takes_time(&self) -> bool {
        self.work_us.is_some() || self.pause_ns > 0
    }
}

/// The sizes of bodies in the order of their steps, each once, as they are sent; none where there
/// is only one.
pub fn sizes_told_apart(options: &Options) -> Vec<usize> {
    let mut sizes: Vec<usize> = Vec::new();
    for value in options.producing.size.values() {
        let size = (value as usize).max(message::BODY_BYTES_MIN);
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    if sizes.len() > 1 { sizes } else { Vec::new() }
}

/// Rates that are told apart at the most: each is a histogram a second.
const RATES_MAX: usize = 12;

/// The rates of a publisher that last, each once; none where there is only one, or there are many: a
/// ramp has its curve over time.
pub fn rates_told_apart(options: &Options) -> Vec<f64> {
    let mut rates: Vec<f64> = Vec::new();
    for value in options.producing.rate.iter().flat_map(Steps::values).filter(|value| *value > 0.0) {
        if !rates.contains(&value) {
            rates.push(value);
        }
    }
    if (2..=RATES_MAX).contains(&rates.len()) { rates } else { Vec::new() }
}

/// A message that waits for its work.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    tag: u64,
    /// When it was due; 0 when its latency does not count.
    due_ns: u64,
    steps_at: StepsAt,
}

/// One consuming channel.
#[derive(Debug)]
pub(super) struct Consumer {
    settings: Arc<ConsumerSettings>,
    pub(super) channel: u16,
    queues: Vec<QueueId>,
    pub(super) content: Content,
    /// The last sequence of each publisher that came here without the redelivered flag.
    last_seen: HashMap<(QueueId, u32), u64, FixedState>,
    waiting: VecDeque<Waiting>,
    /// When the work on the first of `waiting` is done.
    busy_until: Option<u64>,
    start_ns: u64,
    received: u64,
    settled: u64,
    last_tag: u64,
    since_ack: u64,
    pub(super) is_started: bool,
    pub(super) timer_set: bool,
}

impl Consumer {
    pub(super) fn new(settings: Arc<ConsumerSettings>, plan: &ConsumerPlan, channel: u16, start_ns: u64) -> Consumer {
        Consumer {
            settings,
            channel,
            queues: plan.queues.clone(),
            content: Content::default(),
            last_seen: HashMap::default(),
            waiting: VecDeque::new(),
            busy_until: None,
            start_ns,
            received: 0,
            settled: 0,
            last_tag: 0,
            since_ack: 0,
            is_started: false,
            timer_set: false,
        }
    }

    /// Asks for messages: basic.consume on each queue, or the first basic.get.
    pub(super) fn start(&mut self, link: &mut Link, names: &[String]) {
        self.is_started = true;
        if self.settings.polling_ns().is_some() {
            return self.get(link, names);
        }
        for (at, queue) in self.queues.iter().enumerate() {
            Method::BasicConsume {
                ticket: 0,
                queue: Bytes::copy_from_slice(names[queue.0 as usize].as_bytes()),
                // The tag is the queue's place in our list, so that a delivery is read without a
                // search.
                consumer_tag: Bytes::from(at.to_string()),
                no_local: false,
                no_ack: self.settings.consuming.auto_ack,
                exclusive: false,
                no_wait: false,
                arguments: self.settings.consuming.arguments.clone(),
            }
            .write(&mut link.output, self.channel);
        }
    }

    fn get(&mut self, link: &mut Link, names: &[String]) {
        let queue = self.queues[self.received as usize % self.queues.len()];
        Method::BasicGet {
            ticket: 0,
            queue: Bytes::copy_from_slice(names[queue.0 as usize].as_bytes()),
            no_ack: self.settings.consuming.auto_ack,
        }
        .write(&mut link.output, self.channel);
    }

    /// A message is whole. Returns when this channel is to be looked at again, if it is.
    pub(super) fn received(
        &mut self,
        announced: Announced,
        body: &[u8],
        (sample, books): (&mut Sample, &mut Books),
        link: &mut Link,
        now: u64,
    ) -> Option<u64> {
        self.received += 1;
        let due_ns = self.check(&announced, body, books, now);
        let steps_at = self.settings.steps_at(body.len(), due_ns.saturating_sub(self.start_ns));
        if !self.settings.takes_time() {
            sample.counts.received += 1;
            if due_ns != 0 {
                sample.enter_end_to_end(now.saturating_sub(due_ns).max(1), steps_at);
            }
            self.settle(announced.tag, link);
            return self.settings.polling_ns().map(|pause| now + pause);
        }
        self.waiting.push_back(Waiting { tag: announced.tag, due_ns, steps_at });
        if self.busy_until.is_none() {
            return self.begin_work(sample, now);
        }
        None
    }

    /// Enters a message into the books; returns when it was due, or 0 if its latency does not
    /// count.
    fn check(&mut self, announced: &Announced, body: &[u8], books: &mut Books, now: u64) -> u64 {
        let queue = self.queues[announced.queue_at];
        let Some(stamp) = self.settings.filling.read(body, self.settings.run, now) else {
            // A short body of another run cannot be told from a damaged one, but what lay in the
            // queue can.
            let may_be_foreign = body.len() < message::FULL_BYTES_MIN || !message::is_stamped(body);
            if may_be_foreign && books.foreign < self.settings.backlog_at_start {
                books.foreign += 1;
            } else {
                books.corrupt += 1;
            }
            return 0;
        };
        if stamp.run != self.settings.run {
            books.foreign += 1;
            return if self.settings.counts_foreign { stamp.due_ns } else { 0 };
        }
        let is_new = books.enter(queue, &stamp, announced.redelivered);
        if is_new && !announced.redelivered {
            let last = self.last_seen.entry((queue, stamp.publisher)).or_insert(stamp.sequence);
            if stamp.sequence < *last {
                books.reordered += 1;
            }
            *last = stamp.sequence.max(*last);
        }
        stamp.due_ns
    }

    fn begin_work(&mut self, sample: &mut Sample, now: u64) -> Option<u64> {
        let first = self.waiting.front()?;
        // Not when it came: without a prefetch a broker hands over all that it has, and a consumer
        // that cannot keep up would look as if it did.
        sample.counts.received += 1;
        if first.due_ns != 0 {
            sample.enter_end_to_end(now.saturating_sub(first.due_ns).max(1), first.steps_at);
        }
        let work_us = self.settings.work_us.as_ref().map_or(0.0, |work| work.at(now.saturating_sub(self.start_ns)).0);
        let until = now + ((work_us * 1000.0) as u64).max(self.settings.pause_ns);
        self.busy_until = Some(until);
        Some(until)
    }

    /// Its time has come: work is done, or another basic.get is due. Returns when to look again.
    pub(super) fn on_time(&mut self, link: &mut Link, names: &[String], sample: &mut Sample, now: u64) -> Option<u64> {
        while let Some(until) = self.busy_until {
            if until > now {
                return Some(until);
            }
            let done = self.waiting.pop_front().expect("who is busy has something to work on");
            self.settle(done.tag, link);
            self.busy_until = None;
            // The next one begins when this one ended, not when we looked: the consumer is a person
            // who never pauses.
            self.begin_work(sample, until);
        }
        if self.settings.polling_ns().is_some() && self.is_started && !self.is_done() {
            self.get(link, names);
        }
        None
    }

    /// basic.get-empty. Returns when to ask again.
    pub(super) fn found_nothing(&self, now: u64) -> Option<u64> {
        // An empty queue is not asked more often than once a millisecond, or it would be nothing
        // but asked.
        self.settings.polling_ns().map(|pause| now + pause.max(1_000_000))
    }

    fn settle(&mut self, tag: u64, link: &mut Link) {
        self.settled += 1;
        self.last_tag = tag;
        if self.settings.consuming.auto_ack {
            return;
        }
        self.since_ack += 1;
        if self.since_ack >= self.settings.consuming.multi_ack_every.max(1) {
            self.send_ack(link);
        }
    }

    /// Acks what multi-ack held back.
    pub(super) fn ack_rest(&mut self, link: &mut Link) {
        if self.since_ack > 0 && !self.settings.consuming.auto_ack {
            self.send_ack(link);
        }
    }

    fn send_ack(&mut self, link: &mut Link) {
        let multiple = self.since_ack > 1;
        self.since_ack = 0;
        let out = &mut link.output;
        let Consuming { nack, requeue, .. } = self.settings.consuming;
        match nack {
            false => {
                // Written by hand: it runs once a message.
                out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 13, 0, 60, 0, 80]);
                let start = out.len() - 11;
                out[start + 1..start + 3].copy_from_slice(&self.channel.to_be_bytes());
                out.extend_from_slice(&self.last_tag.to_be_bytes());
                out.push(u8::from(multiple));
                out.push(amqp::wire::frame::FRAME_END);
            }
            true => {
                Method::BasicNack { delivery_tag: self.last_tag, multiple, requeue }.write(out, self.channel);
            }
        }
    }

    /// The connection is gone: what was not acked comes again.
    pub(super) fn lost(&mut self) {
        self.waiting.clear();
        self.busy_until = None;
        self.since_ack = 0;
        self.is_started = false;
        self.content = Content::default();
    }

    /// Whether it got all it was asked to.
    pub(super) fn is_done(&self) -> bool {
        (1..=self.settled).contains(&self.settings.consuming.messages)
    }

    /// Of the messages that wait those that go back to the queue when the connection ends.
    pub(super) fn given_back(&self) -> u64 {
        if self.settings.consuming.auto_ack { 0 } else { self.unsettled() }
    }

    /// Received and not yet worked on.
    pub(super) fn unsettled(&self) -> u64 {
        self.waiting.len() as u64
    }
}
