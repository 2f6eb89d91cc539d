//! A queue whose messages are in memory: its batches hold them, and what a turn asks for is at
//! hand.
//!
//! Invariant: what ends is gone at once, and its dead letter leaves with it. No message waits for a
//! disk here.

use super::Place;
use super::batch::copy_together;
use crate::command::{DeadLetter, Delivery, Effect, Outlets};
use crate::entry::Reason;
use crate::given_up::GivenUp;
use crate::life::{Life, body_bytes};
use crate::queue::{Admission, Answer, Queue, Sink};
use crate::reply_room::WaitingReplies;
use crate::turn::{Access, Next, Store, Turn};
use broker::queue::dispatch::Head;
use broker::queue::{DedupKey, Dispatch, KeyMeter, LevelRule, Levels, QueueState, Rules};
use broker::{ConsumerKey, QueueId};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What a queue keeps whose messages are in memory.
pub(super) struct MemorySink {
    pub(super) state: QueueState<Place>,
    /// Offsets into the open batch of messages that came in this step.
    pub(super) incoming: Vec<u32>,
    /// Its messages that wait for their time.
    pub(super) delayed: u64,
    /// What it holds of direct replies, if it carries some.
    pub(super) replies: Option<Box<WaitingReplies>>,
}

impl Sink for MemorySink {
    type Life = ();

    fn kept(_: &()) -> u64 {
        0
    }
}

/// Replies that wait in a batch which is more than so many times as large are copied out of it.
const OWN_SHARE: usize = 2;

/// A queue whose messages are in memory.
pub(super) type MemoryQueue = Queue<MemorySink>;

impl MemoryQueue {
    pub(super) fn empty() -> Self {
        let sink = MemorySink { state: QueueState::default(), incoming: Vec::new(), delayed: 0, replies: None };
        Queue::new(Dispatch::new(1, 1, 0), 1, sink)
    }

    pub(super) fn level_rule(&self) -> LevelRule {
        self.rules.as_ref().map_or(LevelRule::None, |rules| rules.levels)
    }

    #[inline]
    pub(super) fn message(&self, seq: u64) -> Bytes {
        let run = self.sink.state.runs().covering(seq).expect("what is live is in a run");
        run.place.message((seq - run.first) as usize)
    }

    pub(super) fn settle(&mut self, first: u64, count: u64) {
        if count > 0 {
            if self.sink.replies.is_some() {
                self.note_replies_gone(first, count);
            }
            self.sink.state.settle(first, count, &mut |_| {});
        }
    }

    #[cold]
    fn note_replies_gone(&mut self, first: u64, count: u64) {
        let MemorySink { state, replies, .. } = &mut self.sink;
        let Some(replies) = replies else { return };
        for seq in replies.counted(first, count) {
            if let Some(run) = state.runs().covering(seq).filter(|run| run.is_live(seq)) {
                replies.take(run.place.message_bytes((seq - run.first) as usize));
            }
        }
    }

    /// A turn left replies behind: they count towards what may wait for their connection.
    #[cold]
    pub(super) fn count_replies(&mut self, meter: &Arc<AtomicU64>) {
        let MemorySink { state, replies, .. } = &mut self.sink;
        let Some(replies) = replies else { return };
        let uncounted = replies.uncounted(state.next_seq());
        for run in state.runs_mut().iter_mut().rev().take_while(|run| run.past() > uncounted.start) {
            let mut live_bytes = 0;
            for seq in (run.first.max(uncounted.start)..run.past()).filter(|seq| run.is_live(*seq)) {
                let bytes = run.place.message_bytes((seq - run.first) as usize);
                live_bytes += bytes;
                replies.add(bytes);
            }
            // It would keep what was published to others at the same time in memory for as long as it waits.
            if run.place.batch.len() > OWN_SHARE * live_bytes {
                copy_together(run, meter);
            }
        }
    }

    /// Ends a message that the dispatcher does not have any more, and dead-letters it if the queue
    /// does that.
    pub(super) fn give_up(
        &mut self,
        id: QueueId,
        seq: u64,
        reason: Reason,
        message: Option<Bytes>,
        (effects, given_up): (&mut Vec<Effect>, &mut GivenUp),
    ) {
        if self.rules.as_ref().is_some_and(|r| r.dead_letter.is_some()) && self.sink.state.runs().is_live(seq) {
            let message = message.unwrap_or_else(|| self.message(seq));
            let letter = DeadLetter { queue: id, seq, reason, message, wants_answer: false };
            effects.push(Effect::DeadLetter(Box::new(letter)));
        } else if self.sink.state.runs().is_live(seq) {
            given_up.note(id, reason, 1);
        }
        self.settle(seq, 1);
    }

    /// Other rules hold from now on.
    pub(super) fn configure(&mut self, rules: &Arc<Rules>) {
        let before = std::mem::replace(&mut self.rules, (!rules.is_plain()).then(|| rules.clone()));
        if Life::<()>::is_wanted_by(rules) {
            self.life.get_or_insert_default();
        }
        let Some(life) = &mut self.life else { return };
        life.reconfigured(before.as_deref(), self.rules.as_deref());
        if rules.length_bytes_max.is_some() {
            life.bytes = 0;
            let mut next = self.sink.state.runs().next_live(0);
            while let Some((seq, run)) = next {
                let bytes = body_bytes(&run.place.message((seq - run.first) as usize));
                life.count(seq, bytes, self.dispatch.is_held(seq));
                next = self.sink.state.runs().next_live(seq + 1);
            }
        }
    }

    /// What becomes of a message with this key, as far as that goes by its key: it is a repeat
    /// where one is here, or was so lately.
    pub(super) fn admit_key(&self, key: DedupKey, now_ms: u64, meter: &KeyMeter) -> Admission {
        let state = &self.sink.state;
        let is_here = |seq: u64| seq >= state.next_seq() || state.runs().is_live(seq);
        match state.seen(key) {
            Some(seen) if seen.until_ms > now_ms || is_here(seen.seq) => Admission::Repeat,
            _ if state.has_room_for_key(key, now_ms, meter) => Admission::Taken,
            _ => Admission::Refused,
        }
    }
}

/// What a turn has at hand of the shard.
pub(super) struct MemoryAccess<'a> {
    pub(super) effects: &'a mut Vec<Effect>,
    pub(super) outlets: &'a mut dyn Outlets,
    /// Messages that went to who settles nothing: they end together, after the turn.
    pub(super) sent: &'a mut Vec<(u64, u64)>,
    pub(super) given_up: &'a mut GivenUp,
}

impl Access for MemoryAccess<'_> {
    type Sink = MemorySink;

    #[inline]
    fn levels<'b>(&'b self, sink: &'b MemorySink) -> Option<&'b Levels> {
        sink.state.levels()
    }

    #[inline]
    fn effects(&mut self) -> &mut Vec<Effect> {
        self.effects
    }

    #[inline]
    fn room(&mut self, consumer: ConsumerKey) -> usize {
        self.outlets.room(consumer)
    }
}

impl Store for Turn<'_, MemoryAccess<'_>> {
    #[inline]
    fn head(&self) -> Option<Head> {
        let state = &self.lq.sink.state;
        self.lq.dispatch.head(state.levels(), |from| state.runs().next_live(from).map(|(seq, _)| seq))
    }

    #[inline]
    fn may_be_sent(&mut self, _: u64) -> bool {
        true
    }

    #[inline]
    fn fetch(&mut self, seq: u64) -> Next {
        Next::Message(self.lq.message(seq))
    }

    #[inline]
    fn peek(&mut self, seq: u64) -> Next {
        self.fetch(seq)
    }

    #[inline]
    fn delivery(&self, consumer: ConsumerKey, needs_ack: bool, head: Head, message: Bytes) -> Delivery {
        let counts = self.lq.sink.state.counts_of(head.seq);
        let redelivered = head.returned || counts.acquired > 0;
        Delivery { consumer, queue: self.id, seq: head.seq, needs_ack, redelivered, counts, term: 0, message }
    }

    fn settle_sent(&mut self, seq: u64) {
        match self.at.sent.last_mut() {
            Some((first, count)) if *first + *count == seq => *count += 1,
            _ => self.at.sent.push((seq, 1)),
        }
    }

    fn give_up(&mut self, seq: u64, reason: Reason, message: Option<Bytes>) {
        self.lq.give_up(self.id, seq, reason, message, (&mut *self.at.effects, &mut *self.at.given_up));
    }

    fn purge(&mut self, answer: Answer) {
        let Queue { dispatch, sink, .. } = &mut *self.lq;
        let next_live = |from| sink.state.runs().next_live(from).map(|(seq, _)| seq);
        let purged = dispatch.purge(sink.state.levels(), next_live);
        purged.iter().for_each(|(first, count)| self.lq.settle(first, count));
        if let Some(life) = &mut self.lq.life {
            life.bytes = 0;
        }
        self.at.effects.push(answer.into());
    }

    #[inline]
    fn wake_up(&mut self) -> bool {
        true
    }

    #[inline]
    fn may_expire(&self, _: Head) -> bool {
        true
    }

    fn has_letter_room(&mut self) -> bool {
        self.at.outlets.has_letter_room(self.id)
    }

    fn take_letter_room(&mut self, message: &Bytes) {
        self.at.outlets.take_letter_room(self.id, message.len() + DeadLetter::OVERHEAD_BYTES);
    }

    fn let_go(&mut self) {}

    fn send_on(&mut self) -> Option<u64> {
        None
    }

    fn set_aside(&self) -> u64 {
        self.lq.sink.delayed
    }

    fn is_all_told(&self) -> bool {
        true
    }

    #[inline]
    fn may_be_held(&self, _: u64) -> bool {
        false
    }
}
