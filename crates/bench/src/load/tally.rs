//! What a thread counts: a sample for each interval, and the books for the whole run.
//!
//! Invariant: a sample holds only what happened in its interval; the books only grow.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hdrhistogram::Histogram;

use crate::latency;
use crate::ledger::{Ledger, SEQUENCE_LIMIT};
use crate::message::Stamp;
use crate::plan::QueueId;

/// Which side a thread is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It publishes.
    Producing,
    /// It consumes.
    Consuming,
}

/// What is counted of an interval, or of a whole run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Messages sent.
    pub published: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages refused with basic.nack.
    pub nacked: u64,
    /// Messages returned.
    pub returned: u64,
    /// Messages received.
    pub received: u64,
    /// Bytes written to the sockets.
    pub bytes_out: u64,
    /// Bytes read off the sockets.
    pub bytes_in: u64,
    /// Nanoseconds that connections were blocked by the broker, summed.
    pub blocked_ns: u64,
    /// Connections lost.
    pub connections_lost: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.published += more.published;
        self.confirmed += more.confirmed;
        self.nacked += more.nacked;
        self.returned += more.returned;
        self.received += more.received;
        self.bytes_out += more.bytes_out;
        self.bytes_in += more.bytes_in;
        self.blocked_ns += more.blocked_ns;
        self.connections_lost += more.connections_lost;
    }
}

impl Counts {
    /// What of an interval was counted by `until`, when `before` was counted before it, and the rest. Only
    /// messages are told apart.
    pub fn parted(self, until: &Counts, before: &Counts) -> (Counts, Counts) {
        let first = |of: fn(&Counts) -> u64| of(until).saturating_sub(of(before)).min(of(&self));
        let (published, confirmed, received) = (first(|c| c.published), first(|c| c.confirmed), first(|c| c.received));
        let rest = Counts {
            published: self.published - published,
            confirmed: self.confirmed - confirmed,
            received: self.received - received,
            ..Counts::default()
        };
        (Counts { published, confirmed, received, ..self }, rest)
    }
}

/// What happened in one interval on one thread.
#[derive(Debug)]
pub struct Sample {
    /// Which interval, from 0.
    pub index: u64,
    /// Which side.
    pub side: Side,
    /// What was counted.
    pub counts: Counts,
    /// CPU time of the thread, nanoseconds.
    pub cpu_ns: u64,
    /// Nanoseconds in which the broker held back at least one publishing connection of this thread.
    pub held_back_ns: u64,
    /// How often that began.
    pub held_back_times: u64,
    /// Why, in the broker's words; each reason once.
    pub held_back_why: Vec<String>,
    /// From the due time to the confirm.
    pub confirm: Histogram<u64>,
    /// From the due time to the consumer.
    pub end_to_end: Histogram<u64>,
    /// The same for each size of a body, where there is more than one; in the order of
    /// [`crate::pace::Steps::values`].
    pub by_size: Vec<Histogram<u64>>,
    /// The same for each rate that is asked for, where they are told apart.
    pub by_rate: Vec<Histogram<u64>>,
    /// From the due time until the socket took it; only when asked for.
    pub handed: Option<Histogram<u64>>,
    /// From the due time to the confirm, for each publisher; only when asked for.
    pub stages: Vec<Histogram<u64>>,
}

/// The places of a message's size and rate among those that are told apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepsAt {
    /// In `by_size`.
    pub size: Option<usize>,
    /// In `by_rate`.
    pub rate: Option<usize>,
}

impl Sample {
    /// A message came so late.
    #[inline]
    pub fn enter_end_to_end(&mut self, late_ns: u64, steps_at: StepsAt) {
        self.end_to_end.saturating_record(late_ns);
        if let Some(of_size) = steps_at.size.and_then(|at| self.by_size.get_mut(at)) {
            of_size.saturating_record(late_ns);
        }
        if let Some(of_rate) = steps_at.rate.and_then(|at| self.by_rate.get_mut(at)) {
            of_rate.saturating_record(late_ns);
        }
    }

    /// An empty one.
    pub fn new(index: u64, side: Side, stages: usize, (sizes, rates): (usize, usize)) -> Sample {
        Sample {
            index,
            side,
            counts: Counts::default(),
            cpu_ns: 0,
            held_back_ns: 0,
            held_back_times: 0,
            held_back_why: Vec::new(),
            confirm: latency::histogram(),
            end_to_end: latency::histogram(),
            by_size: (0..sizes).map(|_| latency::histogram()).collect(),
            by_rate: (0..rates).map(|_| latency::histogram()).collect(),
            handed: (stages > 0).then(latency::histogram),
            stages: (0..stages).map(|_| latency::histogram()).collect(),
        }
    }
}

/// What a queue's consumers got, checked.
#[derive(Debug, Default)]
pub struct Books {
    /// Received messages of each queue and publisher.
    pub received: HashMap<(QueueId, u32), Ledger, FixedState>,
    /// Messages that came again, flagged as redelivered.
    pub duplicated_flagged: u64,
    /// Messages that came again without the flag.
    pub duplicated_unflagged: u64,
    /// Messages that came after a later one of the same publisher, on one channel and not
    /// redelivered.
    pub reordered: u64,
    /// Messages whose checksum is wrong.
    pub corrupt: u64,
    /// Messages of another run that lay in the queue.
    pub foreign: u64,
    /// Messages that were received and went back to their queue at the end, because nobody had come
    /// to working on them.
    pub given_back: u64,
}

impl Books {
    /// Enters a message of this run; false when it was there already.
    #[inline]
    pub fn enter(&mut self, queue: QueueId, stamp: &Stamp, redelivered: bool) -> bool {
        if stamp.sequence >= SEQUENCE_LIMIT {
            self.corrupt += 1;
            return false;
        }
        if self.received.entry((queue, stamp.publisher)).or_default().insert(stamp.sequence) {
            return true;
        }
        match redelivered {
            true => self.duplicated_flagged += 1,
            false => self.duplicated_unflagged += 1,
        }
        false
    }
}

/// What a publisher did.
#[derive(Debug)]
pub struct PublisherFinal {
    /// Its number.
    pub publisher: u32,
    /// Its routing key.
    pub routing_key: String,
    /// Messages sent: sequences from 0 to here.
    pub published: u64,
    /// Confirmed ones.
    pub confirmed: Ledger,
    /// Returned ones: confirmed, but nobody was promised to get them.
    pub returned: Ledger,
    /// Sent, and never answered.
    pub unanswered: u64,
}

/// What a thread leaves when it ends.
#[derive(Debug, Default)]
pub struct Final {
    /// Of a producing thread.
    pub publishers: Vec<PublisherFinal>,
    /// Of a consuming one.
    pub books: Books,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_twice_is_told_apart_by_its_flag() {
        let mut books = Books::default();
        let stamp = Stamp { run: 1, publisher: 1, sequence: 5, due_ns: 0 };
        assert!(books.enter(QueueId(0), &stamp, false));
        assert!(books.enter(QueueId(1), &stamp, false), "another queue has its own copy");
        assert!(!books.enter(QueueId(0), &stamp, true));
        assert!(!books.enter(QueueId(0), &stamp, false));
        assert_eq!((books.duplicated_flagged, books.duplicated_unflagged), (1, 1));
        assert!(!books.enter(QueueId(0), &Stamp { sequence: SEQUENCE_LIMIT, ..stamp }, false));
        assert_eq!(books.corrupt, 1);
    }
}
