//! One publishing channel: when what is sent, and what was answered.
//!
//! Invariant: a message's latency counts from the time at which it was due, also when the window,
//! the socket or the broker held it back. `outstanding` holds the due times of exactly the messages
//! sent and not yet answered, oldest first, with 0 for those that were answered out of turn.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::wire::content::{CLASS_BASIC, Properties};
use amqp::wire::frame::{FRAME_BODY, FRAME_EMPTY_BYTES, FRAME_HEADER, write_frame};
use amqp::wire::method::Method;
use bytes::Bytes;

use super::connection::{Link, OUTPUT_BYTES_MAX};
use super::tally::{PublisherFinal, Sample};
use crate::clock::SECOND;
use crate::ledger::Ledger;
use crate::message::{self, BODY_BYTES_MIN, Filling, Stamp};
use crate::options::{Options, Producing};
use crate::pace::Pace;

/// Frames of a body when the broker does not limit them.
const BODY_FRAME_BYTES: usize = 128 * 1024;

/// Publishes up to this size are kept as a whole, each producer its own: a thousand producers take
/// 8 MiB.
const WHOLE_BYTES_MAX: usize = 8 * 1024;

/// Random routing keys made in advance when no cache was asked for.
const RANDOM_KEYS: u64 = 4096;

/// What all publishers of a run have in common.
#[derive(Debug)]
pub struct ProducerSettings {
    /// The run's number.
    pub run: u32,
    /// How messages are made.
    pub producing: Producing,
    /// Nothing is sent that is due later than so long after the start.
    pub time_ns: u64,
    /// Latency from the moment of sending.
    pub closed_loop: bool,
    /// How messages look.
    pub form: PublishForm,
}

impl ProducerSettings {
    /// Those of a run.
    pub fn of(options: &Options, run: u32) -> ProducerSettings {
        ProducerSettings {
            run,
            producing: options.producing.clone(),
            time_ns: options.time_secs.map_or(u64::MAX / 2, |secs| secs * SECOND),
            closed_loop: options.closed_loop,
            form: PublishForm::of(options),
        }
    }
}

/// The bytes of a publish that are the same for all.
#[derive(Debug)]
pub struct PublishForm {
    exchange: String,
    mandatory: bool,
    /// Flags and properties, as on the wire.
    properties: Vec<u8>,
    /// What is in bodies beside their stamps.
    filling: Filling,
    random_keys: Option<u64>,
}

impl PublishForm {
    fn of(options: &Options) -> PublishForm {
        let producing = &options.producing;
        let text =
            |name: &str| producing.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_bytes());
        let number = |name: &str| text(name).and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok());
        let headers = producing.headers.encode();
        let mode = number("deliveryMode").map(|mode| mode as u8);
        let properties = Properties {
            content_type: text("contentType"),
            content_encoding: text("contentEncoding"),
            headers: (!producing.headers.is_empty()).then_some(&headers[4..]),
            delivery_mode: mode.or(producing.persistent.then_some(2)),
            priority: number("priority").map(|priority| priority as u8),
            correlation_id: text("correlationId"),
            reply_to: text("replyTo"),
            expiration: text("expiration"),
            message_id: text("messageId"),
            timestamp: number("timestamp"),
            kind: text("type"),
            user_id: text("userId"),
            app_id: text("appId"),
            cluster_id: None,
        };
        let mut bytes = Vec::new();
        properties.encode_to(&mut bytes);
        PublishForm {
            exchange: options.topology.exchange.clone(),
            mandatory: producing.mandatory,
            properties: bytes,
            filling: Filling::new(producing.size.values().map(|size| size as usize)),
            random_keys: producing.random_routing_key.map(|keys| if keys == 0 { RANDOM_KEYS } else { keys }),
        }
    }

    /// Method and content header with this routing key and no body yet; and where the header's body
    /// size stands.
    fn prefix(&self, channel: u16, routing_key: &str) -> Prefix {
        let mut bytes = Vec::new();
        Method::BasicPublish {
            ticket: 0,
            exchange: Bytes::copy_from_slice(self.exchange.as_bytes()),
            routing_key: Bytes::copy_from_slice(routing_key.as_bytes()),
            mandatory: self.mandatory,
            immediate: false,
        }
        .write(&mut bytes, channel);
        let header_start = bytes.len();
        write_frame(&mut bytes, FRAME_HEADER, channel, |writer| {
            writer.short(CLASS_BASIC);
            writer.short(0);
            writer.longlong(0);
            writer.raw(&self.properties);
        });
        Prefix { bytes, size_at: header_start + 7 + 4 }
    }
}

#[derive(Debug)]
struct Prefix {
    bytes: Vec<u8>,
    size_at: usize,
}

/// A whole publish of one size as it stands on the wire, but for the stamp of its body: it is
/// copied in one go.
#[derive(Debug, Default)]
struct Whole {
    body_bytes: usize,
    bytes: Vec<u8>,
    body_at: usize,
}

impl Whole {
    fn of(prefix: &Prefix, channel: u16, filling: &[u8]) -> Whole {
        let mut bytes = prefix.bytes.clone();
        bytes[prefix.size_at..prefix.size_at + 8].copy_from_slice(&(filling.len() as u64).to_be_bytes());
        push_frame_header(&mut bytes, channel, filling.len());
        let body_at = bytes.len();
        bytes.extend_from_slice(filling);
        bytes.push(amqp::wire::frame::FRAME_END);
        Whole { body_bytes: filling.len(), bytes, body_at }
    }
}

/// What a publisher waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// This time, nanoseconds since the epoch.
    Until(u64),
    /// A confirm, or room in the socket.
    ForTheBroker,
    /// Nothing: it could go on at once, and stopped so that others get their turn.
    ForItsTurn,
    /// It has sent all it was asked to.
    Done,
}

/// One publishing channel.
#[derive(Debug)]
pub(super) struct Producer {
    settings: Arc<ProducerSettings>,
    publisher: u32,
    pub(super) channel: u16,
    routing_key: String,
    prefixes: Vec<Prefix>,
    whole: Whole,
    start_ns: u64,
    pace: Option<Pace>,
    next_sequence: u64,
    /// The sequence of `outstanding[0]`.
    oldest: u64,
    /// The sequence that this session's first publish had: its publish number 1.
    session_first: u64,
    outstanding: VecDeque<u64>,
    /// Of them, those still unanswered.
    unanswered: u64,
    confirmed: Ledger,
    returned: Ledger,
    given_up: u64,
    stopped: bool,
    /// The window or the socket held the next message back.
    was_held: bool,
    pub(super) timer_set: bool,
    pub(super) content: super::content::Content,
}

impl Producer {
    pub(super) fn new(
        settings: Arc<ProducerSettings>,
        plan: &crate::plan::ProducerPlan,
        channel: u16,
        start_ns: u64,
        offset_ns: u64,
    ) -> Producer {
        let form = &settings.form;
        let prefixes = match form.random_keys {
            None => vec![form.prefix(channel, &plan.routing_key)],
            Some(count) => {
                let key = |at: u64| {
                    format!("{:016x}", (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(settings.run))
                };
                (0..count).map(|at| form.prefix(channel, &key(at))).collect()
            }
        };
        Producer {
            pace: settings.producing.rate.clone().map(|rate| Pace::new(rate, offset_ns)),
            publisher: plan.publisher,
            channel,
            routing_key: plan.routing_key.clone(),
            prefixes,
            whole: Whole::default(),
            start_ns,
            next_sequence: 0,
            oldest: 0,
            session_first: 0,
            outstanding: VecDeque::new(),
            unanswered: 0,
            confirmed: Ledger::default(),
            returned: Ledger::default(),
            given_up: 0,
            stopped: false,
            was_held: false,
            timer_set: false,
            content: super::content::Content::default(),
            settings,
        }
    }

    /// Sends what is due, as far as window and socket allow.
    pub(super) fn pump(&mut self, link: &mut Link, sample: &mut Sample, now: u64) -> Waits {
        let window = self.settings.producing.confirm.unwrap_or(u64::MAX);
        loop {
            if self.is_done() {
                return Waits::Done;
            }
            if link.blocked_since.is_some() || self.unanswered >= window {
                self.was_held = true;
                return Waits::ForTheBroker;
            }
            if link.pending() >= OUTPUT_BYTES_MAX {
                self.was_held = true;
                return if link.waits_for_room { Waits::ForTheBroker } else { Waits::ForItsTurn };
            }
            let due = match &self.pace {
                None => now,
                Some(pace) => match pace.due() {
                    u64::MAX => return Waits::Until(u64::MAX),
                    due => self.start_ns + due,
                },
            };
            if due >= self.start_ns + self.settings.time_ns {
                self.stop();
                return Waits::Done;
            }
            if due > now {
                return Waits::Until(due);
            }
            if let Some(pace) = self.pace.as_mut().filter(|_| self.was_held && self.settings.closed_loop) {
                // What the broker held back is not caught up; being woken a little late is no such
                // thing.
                pace.restart_from(now - self.start_ns);
            }
            self.was_held = false;
            self.publish(link, if self.settings.closed_loop { now } else { due }, now);
            sample.counts.published += 1;
            if let Some(pace) = &mut self.pace {
                pace.advance();
            }
        }
    }

    fn publish(&mut self, link: &mut Link, due_ns: u64, now: u64) {
        let settings = &self.settings;
        let size = (settings.producing.size.at(now.saturating_sub(self.start_ns)).0 as usize).max(BODY_BYTES_MIN);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let out = &mut link.output;
        let stamp = Stamp { run: settings.run, publisher: self.publisher, sequence, due_ns };
        let frame_max = if link.limits.frame_max == 0 { BODY_FRAME_BYTES } else { link.limits.frame_max as usize };
        let part_max = frame_max - FRAME_EMPTY_BYTES;
        let (start, filling) = (out.len(), &settings.form.filling);
        if size <= part_max.min(WHOLE_BYTES_MAX) && self.prefixes.len() == 1 {
            if self.whole.body_bytes != size {
                self.whole = Whole::of(&self.prefixes[0], self.channel, filling.of(size));
            }
            out.extend_from_slice(&self.whole.bytes);
            let body_at = start + self.whole.body_at;
            filling.write(&mut out[body_at..body_at + size], &stamp);
        } else {
            let prefix = &self.prefixes[(sequence % self.prefixes.len() as u64) as usize];
            out.extend_from_slice(&prefix.bytes);
            out[start + prefix.size_at..start + prefix.size_at + 8].copy_from_slice(&(size as u64).to_be_bytes());
            let mut body = filling.of(size).to_vec();
            filling.write(&mut body, &stamp);
            for part in body.chunks(part_max) {
                push_frame_header(out, self.channel, part.len());
                out.extend_from_slice(part);
                out.push(amqp::wire::frame::FRAME_END);
            }
        }
        link.message_appended(due_ns);
        if settings.producing.confirm.is_some() {
            self.outstanding.push_back(due_ns);
            self.unanswered += 1;
        }
    }

    /// basic.ack: publishes up to `number` of this session, or this one alone, are confirmed.
    pub(super) fn confirmed(&mut self, number: u64, multiple: bool, sample: &mut Sample, now: u64) {
        let publisher = self.publisher as usize;
        let mut enter = |due: u64, first: u64, count: u64, ledger: &mut Ledger| {
            let late = now.saturating_sub(due).max(1);
            sample.confirm.saturating_record_n(late, count);
            if let Some(stage) = sample.stages.get_mut(publisher) {
                stage.saturating_record_n(late, count);
            }
            ledger.insert_range(first, first + count);
        };
        // Those that were due at one time and follow one another are entered together.
        let (mut due_of, mut first, mut together) = (0, 0, 0);
        let count = self.settle(number, multiple, |sequence, due, ledger| {
            if together > 0 && due == due_of && sequence == first + together {
                together += 1;
                return;
            }
            if together > 0 {
                enter(due_of, first, together, ledger);
            }
            (due_of, first, together) = (due, sequence, 1);
        });
        if together > 0 {
            enter(due_of, first, together, &mut self.confirmed);
        }
        sample.counts.confirmed += count;
    }

    /// basic.nack: the broker refuses them.
    pub(super) fn nacked(&mut self, number: u64, multiple: bool, sample: &mut Sample) {
        sample.counts.nacked += self.settle(number, multiple, |_, _, _| {});
    }

    /// basic.return brought this body back.
    pub(super) fn returned(&mut self, body: &[u8], sample: &mut Sample, now: u64) {
        sample.counts.returned += 1;
        if let Some(stamp) = message::read(body, self.settings.run, now).filter(|s| s.sequence < self.next_sequence) {
            self.returned.insert(stamp.sequence);
        }
    }

    fn settle(&mut self, number: u64, multiple: bool, mut each: impl FnMut(u64, u64, &mut Ledger)) -> u64 {
        let Some(last) = (self.session_first + number).checked_sub(1).filter(|last| *last < self.next_sequence) else {
            return 0;
        };
        let mut count = 0;
        if multiple {
            while self.oldest <= last {
                let Some(due) = self.outstanding.pop_front() else { break };
                if due != 0 {
                    each(self.oldest, due, &mut self.confirmed);
                    count += 1;
                }
                self.oldest += 1;
            }
        } else if let Some(due) = last.checked_sub(self.oldest).and_then(|at| self.outstanding.get_mut(at as usize)) {
            if *due != 0 {
                each(last, *due, &mut self.confirmed);
                count = 1;
                *due = 0;
            }
            while self.outstanding.front() == Some(&0) {
                self.outstanding.pop_front();
                self.oldest += 1;
            }
        }
        self.unanswered -= count;
        count
    }

    /// The connection is gone: what was not answered never will be.
    pub(super) fn lost(&mut self) {
        self.given_up += self.unanswered;
        self.outstanding.clear();
        self.unanswered = 0;
        self.oldest = self.next_sequence;
        self.session_first = self.next_sequence;
    }

    /// Sends no more.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether everything was sent that was asked for.
    pub(super) fn is_done(&self) -> bool {
        self.stopped || (1..=self.next_sequence).contains(&self.settings.producing.messages)
    }

    /// Sent and unanswered.
    pub(super) fn outstanding(&self) -> u64 {
        self.unanswered
    }

    /// How long the oldest unanswered message is late, if longer than allowed.
    pub(super) fn overdue(&self, now: u64) -> Option<u64> {
        let oldest = self.outstanding.iter().find(|due| **due != 0)?;
        let timeout_ns = self.settings.producing.confirm_timeout_secs.saturating_mul(SECOND);
        Some(now.saturating_sub(*oldest)).filter(|late| *late > timeout_ns)
    }

    /// Its books.
    pub(super) fn finish(self) -> PublisherFinal {
        PublisherFinal {
            publisher: self.publisher,
            routing_key: self.routing_key,
            published: self.next_sequence,
            confirmed: self.confirmed,
            returned: self.returned,
            unanswered: self.given_up + self.unanswered,
        }
    }
}

#[inline]
fn push_frame_header(out: &mut Vec<u8>, channel: u16, size: usize) {
    out.push(FRAME_BODY);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&(size as u32).to_be_bytes());
}
