//! One queue as its engine sees it, wherever its messages are: who consumes, what its rules limit,
//! who waits for an answer.
//!
//! Queues have two sinks, the log of a partition and the memory of a shard. What differs between
//! them is in [`Queue::sink`]; the rest is here, in `life` and in `closing`, once. Invariant: a
//! message is numbered when it is taken in, so what is between the dispatcher's end and `next_seq`
//! is taken in and not ready yet.

use crate::closing::{Closing, HeldConfirm};
use crate::command::{DeadLetter, Effect, Message, Publish, Reply, RequestId};
use crate::entry::Reason;
use crate::life::Life;
use crate::machine::FixedMap;
use crate::message::{self, Stamp};
use broker::properties::dedup_key;
use broker::queue::dispatch::AttachRefused;
use broker::queue::{Consumer, DedupKey, Dispatch, Overflow, Rules, SeqRanges};
use broker::{ChannelKey, ConsumerKey, QueueId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// Queues that a channel may have used before its list is looked through for those that are gone.
const USED_UNCHECKED: usize = 16;

/// The queues that a channel consumes from or got messages from.
pub(crate) type UsedQueues = FixedMap<ChannelKey, SmallVec<[QueueId; 2]>>;

/// Where a queue's messages go, and what it keeps of them for that.
pub(crate) trait Sink {
    /// What a queue with rules keeps beside what every such queue does.
    type Life: Default;

    /// Messages that are given up and count towards the queue's length until they are gone.
    fn kept(life: &Self::Life) -> u64;
}

/// See the module.
pub(crate) struct Queue<S: Sink> {
    pub(crate) dispatch: Dispatch,
    /// The number of the next message that is taken in.
    pub(crate) next_seq: u64,
    /// Questions, each with the number up to which messages must be visible first.
    pub(crate) waiting: VecDeque<(u64, Waiting)>,
    /// A delete on a condition is being decided.
    pub(crate) closing: Option<Box<Closing>>,
    /// It is on the list of those to dispatch.
    pub(crate) dirty: bool,
    /// Absent on a plain queue.
    pub(crate) rules: Option<Arc<Rules>>,
    /// Absent on a queue whose messages only come and go.
    pub(crate) life: Option<Box<Life<S::Life>>>,
    pub(crate) sink: S,
}

/// An answer that is not given yet.
pub(crate) struct Answer {
    pub(crate) channel: ChannelKey,
    pub(crate) request: RequestId,
    pub(crate) reply: Reply,
}

impl From<Answer> for Effect {
    fn from(Answer { channel, request, reply }: Answer) -> Effect {
        Effect::Reply { channel, request, reply }
    }
}

/// A publish on its way into its queues: what they had to say to it so far.
#[derive(Default)]
pub(crate) struct Intake {
    /// A queue refused it because it is full.
    pub(crate) is_refused: bool,
    /// It, or a queue that takes it in, has a time limit.
    pub(crate) is_timed: bool,
    /// Its key, once a queue asked for it.
    pub(crate) key: Option<DedupKey>,
    /// Queues whose delete is being decided: it is confirmed once they have been decided about.
    pub(crate) closing: SmallVec<[QueueId; 1]>,
}

/// What becomes of a publish in one of its queues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Taken,
    /// What it repeats is there.
    Repeat,
    Refused,
}

/// A question that waits until what was published before it is visible.
pub(crate) enum Waiting {
    /// `lets_pass` is the message that was due to a consumer when the question came up first: the
    /// consumer was there before.
    Get {
        channel: ChannelKey,
        no_ack: bool,
        request: RequestId,
        lets_pass: Option<u64>,
    },
    Purge {
        channel: ChannelKey,
        request: RequestId,
    },
    Stat {
        channel: ChannelKey,
        request: RequestId,
    },
    Close {
        if_unused: bool,
        if_empty: bool,
        channel: ChannelKey,
        request: RequestId,
    },
}

impl Waiting {
    /// Who asked.
    pub(crate) fn channel(&self) -> ChannelKey {
        match self {
            Waiting::Get { channel, .. }
            | Waiting::Purge { channel, .. }
            | Waiting::Stat { channel, .. }
            | Waiting::Close { channel, .. } => *channel,
        }
    }

    /// The number that its answer carries.
    fn request(&self) -> RequestId {
        match self {
            Waiting::Get { request, .. }
            | Waiting::Purge { request, .. }
            | Waiting::Stat { request, .. }
            | Waiting::Close { request, .. } => *request,
        }
    }

    /// Its answer without having come up.
    pub(crate) fn answer(&self, reply: Reply) -> Effect {
        Effect::Reply { channel: self.channel(), request: self.request(), reply }
    }
}

impl<S: Sink> Queue<S> {
    /// A queue of what is in `dispatch`.
    pub(crate) fn new(dispatch: Dispatch, next_seq: u64, sink: S) -> Self {
        Queue {
            dispatch,
            next_seq,
            waiting: VecDeque::new(),
            closing: None,
            dirty: false,
            rules: None,
            life: None,
            sink,
        }
    }

    /// Puts the queue on the list of those to dispatch.
    pub(crate) fn touch(&mut self, id: QueueId, dirty: &mut Vec<QueueId>) {
        if !self.dirty {
            self.dirty = true;
            dirty.push(id);
        }
    }

    /// Attaches a consumer; while a delete is being decided it waits. True if its channel uses the
    /// queue now.
    pub(crate) fn consume(&mut self, consumer: Consumer, request: RequestId, effects: &mut Vec<Effect>) -> bool {
        if let Some(closing) = &mut self.closing {
            closing.consumers.push((consumer, request));
            return true;
        }
        if let Some(rule) = self.rules.as_ref().and_then(|rules| rules.single_active) {
            self.dispatch.set_single_active(rule);
        }
        let channel = consumer.key.channel;
        let reply = match self.dispatch.attach(consumer) {
            Ok(()) => Reply::Consuming,
            Err(AttachRefused::Exclusive | AttachRefused::Repeated) => Reply::ConsumeRefused,
        };
        let is_attached = reply == Reply::Consuming;
        effects.push(Effect::Reply { channel, request, reply });
        is_attached
    }

    /// Takes a consumer away.
    pub(crate) fn cancel(&mut self, id: QueueId, consumer: ConsumerKey, request: RequestId, effects: &mut Vec<Effect>) {
        if let Some((consumer, request)) = self.closing.as_mut().and_then(|closing| closing.take(consumer)) {
            not_here(effects, consumer.key.channel, request);
        }
        let was_there = self.dispatch.cancel(consumer);
        effects.push(Effect::Reply { channel: consumer.channel, request, reply: Reply::Done });
        if was_there && self.dispatch.consumers() == 0 {
            effects.push(Effect::Unused { queue: id });
        }
    }

    /// A channel is gone: what it waits for is forgotten, its consumers go. Returns what it held,
    /// which is ready again.
    pub(crate) fn detach(
        &mut self,
        id: QueueId,
        channel: ChannelKey,
        detach: impl FnOnce(&mut Dispatch, &S) -> SeqRanges,
        effects: &mut Vec<Effect>,
    ) -> SeqRanges {
        self.waiting.retain(|(_, waiting)| waiting.channel() != channel);
        if let Some(closing) = &mut self.closing {
            closing.detach(channel);
        }
        let consumers = self.dispatch.consumers();
        let back = detach(&mut self.dispatch, &self.sink);
        if consumers > 0 && self.dispatch.consumers() == 0 {
            effects.push(Effect::Unused { queue: id });
        }
        back
    }

    /// Tells all consumers that they get nothing more.
    pub(crate) fn cancel_consumers(&self, id: QueueId, effects: &mut Vec<Effect>) {
        let consumers = self.dispatch.consumer_keys().into_iter();
        effects.extend(consumers.map(|consumer| Effect::Cancelled { consumer, queue: id }));
    }

    /// It is deleted: whoever consumes from it or waits for it is told. What is left of a delete
    /// that was being decided is the caller's to confirm.
    pub(crate) fn end(&mut self, id: QueueId, effects: &mut Vec<Effect>) -> Vec<HeldConfirm> {
        self.cancel_consumers(id, effects);
        effects.extend(self.waiting.drain(..).map(|(_, waiting)| waiting.answer(Reply::Gone)));
        let Some(closing) = self.closing.take() else { return Vec::new() };
        closing.refuse_consumers(Reply::Gone, effects);
        closing.confirms
    }

    /// Whether a publish comes in. `admit_key` says what becomes of one with this key.
    #[inline]
    pub(crate) fn admit(
        &self,
        id: QueueId,
        publish: &Publish,
        intake: &mut Intake,
        admit_key: impl Fn(&Self, DedupKey) -> Admission,
        effects: &mut Vec<Effect>,
    ) -> Admission {
        if let Some(held) = &self.closing
            && publish.publish_seq != 0
        {
            if held.is_full() {
                intake.is_refused = true;
                return Admission::Refused;
            }
            intake.closing.push(id);
        }
        let Some(rules) = &self.rules else { return Admission::Taken };
        // What is scheduled meets them when it is due.
        if publish.delay_ms == 0 {
            let mut by_key = Admission::Taken;
            if rules.dedup.is_some() {
                intake.key = intake.key.or_else(|| dedup_key(&publish.message.properties));
                by_key = intake.key.map_or(Admission::Taken, |key| admit_key(self, key));
            }
            if by_key == Admission::Repeat {
                return by_key;
            }
            if by_key == Admission::Refused || self.is_full(rules, publish.message.body.len()) {
                intake.is_refused = true;
                if dead_letters_refused(rules) {
                    effects.push(Effect::DeadLetter(Box::new(refused_letter(id, &publish.message))));
                }
                return Admission::Refused;
            }
        }
        intake.is_timed |= rules.message_ttl_ms.is_some();
        Admission::Taken
    }

    /// Whether one more message with a body of so many bytes is too much for a queue that refuses
    /// then.
    ///
    /// Messages that are not ready yet count as ready, but for those that consumers will take the
    /// moment they are. A body that is too large for an empty queue is refused all the same, as in
    /// RabbitMQ, whoever waits for it.
    pub(crate) fn is_full(&self, rules: &Rules, body_bytes: usize) -> bool {
        if !rules.overflow.is_reject() {
            return false;
        }
        let kept = self.life.as_ref().map_or(0, |l| S::kept(&l.sink));
        let pending = self.next_seq - self.dispatch.end();
        let count = self.dispatch.ready() + pending + kept;
        if let Some(max) = rules.length_max
            && count >= max
            && count - pending.min(self.dispatch.free_credit()) >= max
        {
            return true;
        }
        let Some((max, life)) = rules.length_bytes_max.zip(self.life.as_ref()) else { return false };
        let bytes = if self.dispatch.free_credit() >= count { 0 } else { life.bytes };
        bytes + body_bytes as u64 > max
    }
}

/// Whether a queue with these rules dead-letters what it refuses.
pub(crate) fn dead_letters_refused(rules: &Rules) -> bool {
    rules.overflow == Overflow::RejectPublishDlx && rules.dead_letter.is_some()
}

/// The dead letter of a message that its queue never took in.
pub(crate) fn refused_letter(queue: QueueId, message: &Message) -> DeadLetter {
    let mut stored = Vec::with_capacity(message::stored_bytes(message));
    message::store(message, 0, Stamp::None, &mut stored);
    DeadLetter { queue, seq: 0, reason: Reason::MaxLength, message: stored.into(), wants_answer: false }
}

/// Notes that `channel` uses `id`. Queues that were deleted since are forgotten whenever the list
/// has doubled, so that a channel which lives on short-lived queues does not collect their numbers.
pub(crate) fn note_use<S: Sink>(
    used: &mut UsedQueues,
    queues: &FixedMap<QueueId, Queue<S>>,
    channel: ChannelKey,
    id: QueueId,
) {
    let list = used.entry(channel).or_default();
    if list.contains(&id) {
        return;
    }
    if list.len() >= USED_UNCHECKED && list.len().is_power_of_two() {
        list.retain(|known| queues.contains_key(known));
    }
    list.push(id);
}

/// Answers a question about a queue that is not here.
pub(crate) fn not_here(effects: &mut Vec<Effect>, channel: ChannelKey, request: RequestId) {
    effects.push(Effect::Reply { channel, request, reply: Reply::Gone });
}
