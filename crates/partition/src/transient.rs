//! Queues that live in one shard's memory: transient, exclusive and auto-delete ones. Neither Raft nor disk sees them.
//!
//! Same commands and effects as a partition, so that a session does not care where a queue lives. What differs: a
//! confirm is immediate, and what is here ends with the process.
//!
//! Invariant: every message of a queue is exactly one of ready, held by one holder, or settled; messages go out in the
//! order in which they came, and what comes back goes to its old place. Absent on purpose: files, time, randomness.
//!
//! Memory: the publishes of one step are laid one behind the other into one batch buffer; a queue's run is that buffer
//! and an offset a message. So a batch costs three allocations however many messages it holds, a fan-out stores a body
//! once, and a delivery is a slice. The price is that one live message pins its batch; [`TransientQueues::bytes`] counts
//! what is pinned, not what is live, and sparse runs are copied together once they dominate.

mod closing;
mod life;

use crate::command::{Command, Delivery, Effect, Outcome, Outlets, Publish, Reply, RequestId};
use crate::entry::Reason;
use crate::message::{self, MessageView, Stamp};
use crate::survey::QueueFigures;
use broker::queue::dispatch::Head;
use broker::queue::levels::priority_of;
use broker::queue::{Dispatch, LevelRule, QueueState, Rules};
use broker::{ChannelKey, ConsumerKey, QueueId};
use bytes::Bytes;
use closing::{Closing, HeldConfirm};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use life::{Life, Scheduled};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A batch buffer is closed once it holds this much: what one old message can pin stays small. One larger message is a
/// batch of its own.
pub const BATCH_BYTES_MAX: usize = 256 << 10;

/// Most messages of one batch; an offset and a run of it stay small, and a run's limit is far away.
pub const BATCH_MESSAGES_MAX: usize = 16 << 10;

const _: () = assert!(BATCH_MESSAGES_MAX <= broker::queue::runs::RUN_MESSAGES_MAX as usize);
const _: () = assert!(BATCH_BYTES_MAX + message::MESSAGE_BYTES_MAX <= u32::MAX as usize, "an offset is 32 bits");

/// Below this many pinned bytes nobody looks for sparse runs.
const COMPACT_BYTES_MIN: u64 = 32 << 20;

/// A run is copied together when fewer than one in this many of its messages is live.
const COMPACT_LIVE_FRACTION: u32 = 4;

/// What a batch costs besides its bytes: the owner, the runs that point to it.
const BATCH_OVERHEAD_BYTES: u64 = 160;

/// Marks the place of a message that was settled before its run was copied together.
const GONE: u32 = u32::MAX;

/// One batch buffer. It uncharges itself when its last slice goes, be it in a queue or on its way to a socket.
struct Batch {
    bytes: Vec<u8>,
    charged: u64,
    meter: Arc<AtomicU64>,
}

impl Batch {
    /// Freezes `bytes`, charged to `meter` until the last slice is gone.
    fn freeze(bytes: Vec<u8>, messages: usize, meter: &Arc<AtomicU64>) -> Bytes {
        let charged = bytes.capacity() as u64 + 4 * messages as u64 + BATCH_OVERHEAD_BYTES;
        meter.fetch_add(charged, Ordering::Relaxed);
        Bytes::from_owner(Batch { bytes, charged, meter: meter.clone() })
    }
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.meter.fetch_sub(self.charged, Ordering::Relaxed);
    }
}

/// Where the messages of one run are.
struct Place {
    batch: Bytes,
    offsets: SmallVec<[u32; 4]>,
}

impl Place {
    #[inline]
    fn message(&self, index: usize) -> Bytes {
        let at = self.offsets[index] as usize;
        let view = MessageView::parse(&self.batch[at..]).expect("the batch was written by store()");
        self.batch.slice(at..at + view.len())
    }
}

/// One queue.
struct Queue {
    state: QueueState<Place>,
    dispatch: Dispatch,
    /// Offsets into the open batch of messages that came in this step.
    incoming: Vec<u32>,
    /// A delete on a condition is being decided.
    closing: Option<Box<Closing>>,
    /// It is in `dirty`.
    is_dirty: bool,
    /// A consumer under a channel-wide prefetch was attached once.
    has_grants: bool,
    /// Each `basic.get` that lets a consumer go first whose channel was asked for its word, as `(channel, no_ack, request)`.
    gets: VecDeque<(ChannelKey, bool, RequestId)>,
    /// Absent on a plain queue.
    rules: Option<Arc<Rules>>,
    /// Absent on a queue whose messages only come and go.
    life: Option<Box<Life>>,
    /// Bodies of `incoming`.
    incoming_bytes: u64,
    /// Its messages that wait for their time.
    delayed: u64,
}

impl Queue {
    fn new() -> Self {
        Queue {
            state: QueueState::default(),
            dispatch: Dispatch::new(1, 1, 0),
            incoming: Vec::new(),
            closing: None,
            is_dirty: false,
            has_grants: false,
            gets: VecDeque::new(),
            rules: None,
            life: None,
            incoming_bytes: 0,
            delayed: 0,
        }
    }

    fn level_rule(&self) -> LevelRule {
        self.rules.as_ref().map_or(LevelRule::None, |rules| rules.levels)
    }

    #[inline]
    fn head(&self) -> Option<Head> {
        self.dispatch.head(self.state.levels(), |from| self.state.runs().next_live(from).map(|(seq, _)| seq))
    }

    /// The delivery of `head`, not yet taken from the dispatcher.
    #[inline]
    fn delivery(&self, id: QueueId, head: Head, consumer: ConsumerKey, needs_ack: bool) -> Delivery {
        let run = self.state.runs().covering(head.seq).expect("what is ready is in a run");
        let counts = self.state.counts_of(head.seq);
        Delivery {
            consumer,
            queue: id,
            seq: head.seq,
            needs_ack,
            redelivered: head.returned || counts.acquired > 0,
            counts,
            message: run.place.message((head.seq - run.first) as usize),
        }
    }

    fn settle(&mut self, first: u64, count: u64) {
        if count > 0 {
            self.state.settle(first, count, &mut |_| {});
        }
    }
}

/// All transient queues of one shard.
pub struct TransientQueues {
    queues: HashMap<QueueId, Queue, FixedState>,
    /// The queues that a channel consumes from or took messages of, so that its end need not visit all queues.
    used: HashMap<ChannelKey, SmallVec<[QueueId; 2]>, FixedState>,
    /// Queues with something to hand out, or with credit that changed.
    dirty: Vec<QueueId>,
    /// The open batch, its messages, and the queues with some of them.
    open: Vec<u8>,
    open_messages: usize,
    open_queues: Vec<QueueId>,
    /// Bytes that a consumer may still be sent in this step.
    rooms: HashMap<ConsumerKey, usize, FixedState>,
    taken: Vec<(u64, u64)>,
    wanted: Vec<ConsumerKey>,
    given_back: Vec<(ConsumerKey, u32)>,
    meter: Arc<AtomicU64>,
    compact_at: u64,
    /// The time of this step.
    now_ms: u64,
    /// When queues want to be looked at.
    timers: BTreeSet<(u64, QueueId)>,
    /// Messages that are not due yet, by time and by order.
    scheduled: BTreeMap<(u64, u64), Scheduled>,
    last_scheduled: u64,
    /// Queues with messages whose time came while there was no room for them.
    late: BTreeSet<QueueId>,
    /// Repeats that queues with deduplication dropped; only those that did.
    repeats: HashMap<QueueId, u64, FixedState>,
    /// Some queue had a time limit once: the others are not asked for theirs at each publish.
    has_time_limits: bool,
}

impl Default for TransientQueues {
    fn default() -> Self {
        Self::new()
    }
}

impl TransientQueues {
    /// No queues.
    pub fn new() -> Self {
        TransientQueues {
            queues: HashMap::default(),
            used: HashMap::default(),
            dirty: Vec::new(),
            open: Vec::new(),
            open_messages: 0,
            open_queues: Vec::new(),
            rooms: HashMap::default(),
            taken: Vec::new(),
            wanted: Vec::new(),
            given_back: Vec::new(),
            meter: Arc::new(AtomicU64::new(0)),
            compact_at: COMPACT_BYTES_MIN,
            now_ms: 0,
            timers: BTreeSet::new(),
            scheduled: BTreeMap::new(),
            last_scheduled: 0,
            late: BTreeSet::new(),
            repeats: HashMap::default(),
            has_time_limits: false,
        }
    }

    /// Adds an empty queue. Its number was never used before; declaring a queue that is there changes nothing.
    pub fn declare(&mut self, queue: QueueId) {
        self.queues.entry(queue).or_insert_with(Queue::new);
    }

    /// How many queues there are.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Memory that messages pin, in bytes: batches in queues and batches of which a slice still waits for a socket.
    pub fn bytes(&self) -> u64 {
        self.meter.load(Ordering::Relaxed)
    }

    /// Appends every queue with what is in it. Looking changes nothing.
    pub fn survey(&self, figures: &mut Vec<QueueFigures>) {
        for (id, queue) in &self.queues {
            let (ready, unacked) = (queue.dispatch.ready(), queue.dispatch.held());
            let consumers = queue.dispatch.consumers() as u64;
            let repeats_dropped = self.repeats.get(id).copied().unwrap_or(0);
            let delayed = queue.delayed;
            let none = QueueFigures::empty(*id);
            figures.push(QueueFigures { ready, unacked, delayed, consumers, repeats_dropped, ..none });
        }
    }

    /// Carries out `commands` in order, then hands out what consumers have credit and room for.
    ///
    /// - Order: the effects of a command come after those of the commands before it; deliveries come last.
    /// - Takes all of `commands`, whose memory stays with the caller for the next step.
    /// - A command for a queue that is not here is answered [`Reply::Gone`]; a publish to it counts as unroutable
    ///   and is confirmed.
    /// - `now_ms` never falls from step to step; time limits are measured by it.
    pub fn step(
        &mut self,
        now_ms: u64,
        commands: &mut Vec<Command>,
        effects: &mut Vec<Effect>,
        outlets: &mut dyn Outlets,
    ) {
        self.now_ms = now_ms;
        self.wake_due(effects);
        for at in 0..commands.len() {
            let command = &commands[at];
            if let Command::Publish(publish) = command {
                if self.open.capacity() == 0 {
                    self.open = Vec::with_capacity(batch_bytes(&commands[at..]));
                }
                self.publish(publish, effects);
                continue;
            }
            if let Some(queue) = must_see_publishes(command) {
                self.close_batch();
                // What is too much or too old is nothing that anybody sees, and what is a consumer's is nobody else's.
                if self.queues.get(&queue).is_some_and(|q| q.life.is_some() || q.dispatch.consumers() > 0) {
                    self.hand_out(queue, effects, outlets);
                }
            }
            self.handle(command, effects);
        }
        commands.clear();
        self.close_batch();
        self.hand_out_all(effects, outlets);
        while !self.late.is_empty() && self.publish_late(effects) {
            self.close_batch();
            self.hand_out_all(effects, outlets);
        }
        self.rooms.clear();
        if self.bytes() > self.compact_at {
            self.compact();
        }
    }

    fn publish(&mut self, publish: &Publish, effects: &mut Vec<Effect>) {
        if publish.delay_ms > 0 {
            return self.publish_later(publish, effects);
        }
        let mut offset = None;
        let (body_bytes, mut is_refused) = (publish.message.body.len(), false);
        let mut is_timed = broker::properties::has_expiration(&publish.message.properties);
        if self.has_time_limits {
            for target in &publish.targets {
                let rules = self.queues.get(&target.queue).and_then(|q| q.rules.as_ref());
                is_timed |= rules.is_some_and(|r| r.message_ttl_ms.is_some());
            }
        }
        let mut key = None;
        let mut closing = SmallVec::<[QueueId; 1]>::new();
        for target in &publish.targets {
            let Some(queue) = self.queues.get_mut(&target.queue) else { continue };
            if let Some(held) = &queue.closing
                && publish.publish_seq != 0
            {
                if held.is_full() {
                    is_refused = true;
                    continue;
                }
                closing.push(target.queue);
            }
            let mut noted = None;
            if let Some(rules) = &queue.rules {
                if let Some(dedup) = rules.dedup {
                    key = key.or_else(|| broker::properties::dedup_key(&publish.message.properties));
                    if key.is_some_and(|key| queue.knows_key(key, self.now_ms)) {
                        // A repeat: what it repeats is here.
                        *self.repeats.entry(target.queue).or_insert(0) += 1;
                        continue;
                    }
                    noted = Some(dedup).zip(key);
                }
                if queue.is_full(rules, body_bytes) {
                    is_refused = true;
                    if life::buries_refused(rules) {
                        effects.push(life::refused_letter(target.queue, &publish.message));
                    }
                    continue;
                }
            }
            let offset = *offset.get_or_insert_with(|| {
                let offset = self.open.len() as u32;
                let stamp = if is_timed { Stamp::Since(self.now_ms) } else { Stamp::None };
                message::store(&publish.message, 0, stamp, &mut self.open);
                self.open_messages += 1;
                offset
            });
            if queue.incoming.is_empty() {
                self.open_queues.push(target.queue);
            }
            if let Some((rule, key)) = noted {
                let seq = queue.state.next_seq() + queue.incoming.len() as u64;
                queue.state.note_key(seq, key, rule, self.now_ms);
            }
            queue.incoming.push(offset);
            if is_timed || queue.life.is_some() {
                queue.incoming_bytes += body_bytes as u64;
                queue.note_published(is_timed, body_bytes);
            }
        }
        self.answer(publish, is_refused, closing, effects);
        if self.open.len() >= BATCH_BYTES_MAX || self.open_messages >= BATCH_MESSAGES_MAX {
            self.close_batch();
        }
    }

    /// Puts a message aside until its time. It is confirmed as one that comes at once: while a queue's delete is decided, not yet.
    fn publish_later(&mut self, publish: &Publish, effects: &mut Vec<Effect>) {
        let (mut closing, mut is_refused) = (SmallVec::new(), false);
        for target in publish.targets.iter().filter(|_| publish.publish_seq != 0) {
            if let Some(held) = self.queues.get(&target.queue).and_then(|queue| queue.closing.as_ref()) {
                is_refused |= held.is_full();
                closing.push(target.queue);
            }
        }
        if !is_refused {
            self.schedule(publish);
        }
        self.answer(publish, is_refused, closing, effects);
    }

    /// Tells a publisher what became of its message. It waits for what is decided about queues that are `closing`.
    fn answer(
        &mut self,
        publish: &Publish,
        is_refused: bool,
        closing: SmallVec<[QueueId; 1]>,
        effects: &mut Vec<Effect>,
    ) {
        let (channel, seq) = (publish.channel, publish.publish_seq);
        if seq == 0 {
            return;
        }
        if is_refused {
            effects.push(Effect::Refuse { channel, first: seq, count: 1 });
        } else if !closing.is_empty() {
            self.hold(HeldConfirm { channel, seq, closing }, effects);
        } else {
            push_confirm(effects, channel, seq);
        }
    }

    /// Freezes the open batch and appends a run of it to each of its queues.
    fn close_batch(&mut self) {
        let bytes = std::mem::take(&mut self.open);
        let messages = std::mem::take(&mut self.open_messages);
        if messages == 0 {
            return;
        }
        let batch = Batch::freeze(bytes, messages, &self.meter);
        for id in self.open_queues.drain(..) {
            let queue = self.queues.get_mut(&id).expect("a queue with open messages is there: Delete closes the batch");
            let count = queue.incoming.len();
            let place = Place { batch: batch.clone(), offsets: SmallVec::from_slice(&queue.incoming) };
            let rule = queue.level_rule();
            let priorities = |offset: &u32| {
                let view = MessageView::parse(&batch[*offset as usize..]).expect("the batch was written by store()");
                priority_of(view.properties())
            };
            let priorities: Vec<_> = match rule {
                LevelRule::None => Vec::new(),
                _ => queue.incoming.iter().map(priorities).collect(),
            };
            queue.incoming.clear();
            queue.incoming.shrink_to(INCOMING_KEPT);
            queue.incoming_bytes = 0;
            let first = queue.state.publish(count as u32, place);
            queue.state.note_priorities(first, rule, priorities.into_iter());
            match queue.state.levels() {
                Some(levels) => queue.dispatch.add_ready_by_level(count as u64, levels, false),
                None => queue.dispatch.add_ready(count as u64),
            }
            mark_dirty(&mut self.dirty, queue, id);
        }
    }

    fn handle(&mut self, command: &Command, effects: &mut Vec<Effect>) {
        if self.waits_for_decision(command) {
            return;
        }
        match command {
            Command::Publish(_) => unreachable!("step() keeps publishes for itself"),
            Command::Consume { queue, consumer, request } => {
                let channel = consumer.key.channel;
                let Some(q) = self.queues.get_mut(queue) else { return not_here(effects, channel, *request) };
                if let Some(rule) = q.rules.as_ref().and_then(|rules| rules.single_active) {
                    q.dispatch.set_single_active(rule);
                }
                let reply = match q.dispatch.attach(consumer.clone()) {
                    Ok(()) => Reply::Consuming,
                    Err(_) => Reply::ConsumeRefused,
                };
                if reply == Reply::Consuming {
                    q.has_grants |= consumer.granted_only;
                    mark_dirty(&mut self.dirty, q, *queue);
                    note_use(&mut self.used, &self.queues, channel, *queue);
                }
                effects.push(Effect::Reply { channel, request: *request, reply });
            }
            Command::Cancel { queue, consumer, request } => {
                let channel = consumer.channel;
                let Some(q) = self.queues.get_mut(queue) else { return not_here(effects, channel, *request) };
                let was_there = q.dispatch.cancel(*consumer);
                mark_dirty(&mut self.dirty, q, *queue);
                effects.push(Effect::Reply { channel, request: *request, reply: Reply::Done });
                if was_there && q.dispatch.consumers() == 0 {
                    effects.push(Effect::Unused { queue: *queue });
                }
            }
            Command::Get { queue, channel, no_ack, request } => match self.queues.get_mut(queue) {
                Some(q) if q.has_grants && q.dispatch.awaits_grant() => {
                    q.gets.push_back((*channel, *no_ack, *request));
                    note_use(&mut self.used, &self.queues, *channel, *queue);
                }
                _ => self.get(*queue, *channel, *no_ack, *request, effects),
            },
            Command::Settle { queue, holder, first, count, outcome } => {
                self.settle(*queue, *holder, *first, *count, *outcome, effects);
            }
            Command::Detach { channel } => self.detach(*channel, effects),
            Command::Purge { queue, channel, request } => {
                let Some(q) = self.queues.get_mut(queue) else { return not_here(effects, *channel, *request) };
                let ready = q.dispatch.ready();
                q.note_purged();
                let next_live = |from| q.state.runs().next_live(from).map(|(seq, _)| seq);
                let purged = q.dispatch.purge(q.state.levels(), next_live);
                purged.iter().for_each(|(first, count)| q.settle(first, count));
                effects.push(Effect::Reply { channel: *channel, request: *request, reply: Reply::Counted(ready) });
                mark_dirty(&mut self.dirty, q, *queue);
            }
            Command::Stat { queue, channel, request } => {
                let Some(q) = self.queues.get_mut(queue) else { return not_here(effects, *channel, *request) };
                if q.rules.as_ref().is_some_and(|rules| rules.declare_renews) {
                    q.note_used(self.now_ms);
                }
                let d = &q.dispatch;
                let reply = Reply::Stat { ready: d.ready(), unacked: d.held(), consumers: d.consumers() as u64 };
                effects.push(Effect::Reply { channel: *channel, request: *request, reply });
            }
            Command::Close { queue, if_unused, if_empty, channel, request } => {
                let Some(q) = self.queues.get_mut(queue) else { return not_here(effects, *channel, *request) };
                let (ready, in_use) = (q.dispatch.ready(), q.dispatch.consumers() > 0);
                // RabbitMQ looks at the messages first.
                let reply = if *if_empty && ready + q.delayed > 0 {
                    Reply::DeleteRefused { in_use: false }
                } else if *if_unused && in_use {
                    Reply::DeleteRefused { in_use: true }
                } else {
                    if *if_unused || *if_empty {
                        q.closing = Some(Box::default());
                    }
                    Reply::Counted(ready)
                };
                effects.push(Effect::Reply { channel: *channel, request: *request, reply });
            }
            Command::Reopen { queue } => self.reopen(*queue, effects),
            Command::Delete { queue } => {
                let Some(mut q) = self.queues.remove(queue) else { return };
                let closing = q.closing.take();
                self.repeats.remove(queue);
                if let Some(life) = &q.life {
                    life.timer_ms().map(|at| self.timers.remove(&(at, *queue)));
                    self.meter.fetch_sub(life.late_bytes(), Ordering::Relaxed);
                }
                q.gets.iter().for_each(|(channel, _, request)| not_here(effects, *channel, *request));
                let gone = q.dispatch.consumer_keys();
                effects.extend(gone.into_iter().map(|consumer| Effect::Cancelled { consumer, queue: *queue }));
                if let Some(closing) = closing {
                    self.closed(*closing, effects);
                }
            }
            Command::Stall { queue, consumer, stalled } => {
                if let Some(q) = self.queues.get_mut(queue)
                    && q.dispatch.set_stalled(*consumer, *stalled)
                {
                    mark_dirty(&mut self.dirty, q, *queue);
                }
            }
            Command::Grant { queue, consumer, count } => {
                // A grant to a consumer that has gone is not returned: its channel forgot it with the consumer.
                if let Some(q) = self.queues.get_mut(queue)
                    && q.dispatch.grant(*consumer, *count)
                {
                    mark_dirty(&mut self.dirty, q, *queue);
                }
            }
            Command::Configure { queue, rules } => {
                if let Some(q) = self.queues.get_mut(queue) {
                    self.has_time_limits |= rules.message_ttl_ms.is_some();
                    q.configure(rules, self.now_ms);
                    mark_dirty(&mut self.dirty, q, *queue);
                }
            }
            // No dead letter of a queue in memory waits for an answer.
            Command::Buried { .. } => {}
            // Nothing here is ever written, so everything that was is synced.
            Command::Sync { channel, request } => {
                effects.push(Effect::Reply { channel: *channel, request: *request, reply: Reply::Done });
            }
        }
    }

    fn get(&mut self, id: QueueId, channel: ChannelKey, no_ack: bool, request: RequestId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.queues.get_mut(&id) else { return not_here(effects, channel, request) };
        queue.note_used(self.now_ms);
        let reply = match queue.head() {
            None => Reply::Empty,
            Some(head) => {
                let delivery = queue.delivery(id, head, ConsumerKey::get(channel), !no_ack);
                queue.note_taken(head.seq, &delivery.message, !no_ack);
                queue.dispatch.assign_get(channel, no_ack, head, queue.state.levels());
                if no_ack {
                    queue.settle(head.seq, 1);
                }
                let ready = queue.dispatch.ready();
                if queue.life.is_some() {
                    // Another message is at the head now.
                    mark_dirty(&mut self.dirty, queue, id);
                }
                if !no_ack {
                    note_use(&mut self.used, &self.queues, channel, id);
                }
                Reply::Got { delivery, ready }
            }
        };
        effects.push(Effect::Reply { channel, request, reply });
    }

    fn settle(
        &mut self,
        id: QueueId,
        holder: ConsumerKey,
        first: u64,
        count: u64,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        self.taken.clear();
        queue.dispatch.release(holder, first, count, &mut self.taken);
        for (first, count) in self.taken.drain(..) {
            queue.note_released(first, count, matches!(outcome, Outcome::Nack | Outcome::Reject));
            match outcome {
                Outcome::Discard if queue.rules.is_some() => {
                    (first..first + count).for_each(|seq| queue.give_up(id, seq, Reason::Discarded, effects));
                }
                Outcome::Ack | Outcome::Discard => queue.settle(first, count),
                Outcome::Nack | Outcome::Reject => {
                    for seq in first..first + count {
                        queue.state.requeue(seq, outcome == Outcome::Reject);
                    }
                    queue.dispatch.put_back(first, count, queue.state.levels());
                }
            }
        }
        mark_dirty(&mut self.dirty, queue, id);
    }

    fn detach(&mut self, channel: ChannelKey, effects: &mut Vec<Effect>) {
        for id in self.used.remove(&channel).unwrap_or_default() {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            let had = queue.dispatch.consumers();
            queue.gets.retain(|(of, ..)| *of != channel);
            if let Some(closing) = &mut queue.closing {
                closing.forget(channel);
            }
            for seq in queue.dispatch.detach(channel, queue.state.levels()).seqs() {
                queue.state.requeue(seq, true);
                if queue.life.is_some() {
                    queue.note_released(seq, 1, true);
                }
            }
            if had > 0 && queue.dispatch.consumers() == 0 {
                effects.push(Effect::Unused { queue: id });
            }
            mark_dirty(&mut self.dirty, queue, id);
        }
    }

    /// Hands out what changed queues have.
    fn hand_out_all(&mut self, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.hand_out(id, effects, outlets);
        }
        self.dirty = dirty;
    }

    fn hand_out(&mut self, id: QueueId, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.is_dirty = false;
        if queue.closing.is_some() {
            // Whether it goes or stays is being decided: until then it gives nothing out.
            return;
        }
        queue.dispatch.follow_levels(queue.state.levels());
        self.taken.clear();
        let share = queue.dispatch.share();
        // A consumer gets several in a row: its room is looked up once for them.
        let mut current: Option<(ConsumerKey, usize)> = None;
        while let Some(consumer) = queue.dispatch.next_consumer() {
            let (key, no_ack) = (consumer.key, consumer.no_ack);
            let Some(head) = queue.head() else { break };
            let room = match &mut current {
                Some((of, room)) if *of == key => room,
                _ => {
                    if let Some((of, room)) = current {
                        self.rooms.insert(of, room);
                    }
                    &mut current.insert((key, self.rooms.get(&key).copied().unwrap_or(0))).1
                }
            };
            if *room == 0 {
                *room = outlets.room(key);
            }
            if *room == 0 {
                queue.dispatch.set_stalled(key, true);
                continue;
            }
            if queue.life.is_some() && queue.is_over(head, self.now_ms) {
                queue.drop_head(id, head, Reason::Expired, effects);
                continue;
            }
            let delivery = queue.delivery(id, head, key, !no_ack);
            if queue.life.is_some() {
                queue.note_taken(head.seq, &delivery.message, !no_ack);
            }
            *room = room.saturating_sub(delivery.message.len());
            queue.dispatch.assign(head, share, queue.state.levels());
            if no_ack {
                match self.taken.last_mut() {
                    Some((first, count)) if *first + *count == head.seq => *count += 1,
                    _ => self.taken.push((head.seq, 1)),
                }
            }
            effects.push(Effect::Deliver(delivery));
        }
        self.rooms.extend(current);
        for (first, count) in self.taken.drain(..) {
            queue.settle(first, count);
        }
        if queue.has_grants {
            // Before more is asked for: who waits lets consumers go first once, not as long as they want more.
            let gets = match queue.dispatch.awaits_grant() {
                true => VecDeque::new(),
                false => std::mem::take(&mut queue.gets),
            };
            queue.dispatch.return_grants(&mut self.given_back);
            queue.dispatch.ask_for_grants(&mut self.wanted);
            let ready = queue.dispatch.ready();
            for (consumer, count) in self.given_back.drain(..) {
                effects.push(Effect::GrantReturned { consumer, count });
            }
            for consumer in self.wanted.drain(..) {
                effects.push(Effect::GrantWanted { consumer, queue: id, ready });
            }
            for (channel, no_ack, request) in gets {
                self.get(id, channel, no_ack, request, effects);
            }
        }
        if self.queues.get(&id).is_some_and(|queue| queue.life.is_some()) {
            self.live_on(id, effects);
        }
    }

    /// Copies the live messages of sparse runs together, so that their batches can go.
    fn compact(&mut self) {
        for queue in self.queues.values_mut() {
            for run in queue.state.runs_mut().iter_mut() {
                if run.live() > run.count / COMPACT_LIVE_FRACTION {
                    continue;
                }
                let live: Vec<u64> = (run.first..run.past()).filter(|seq| run.is_live(*seq)).collect();
                let mut bytes = Vec::new();
                let mut offsets: SmallVec<[u32; 4]> = SmallVec::from_elem(GONE, run.count as usize);
                for seq in &live {
                    let index = (seq - run.first) as usize;
                    let message = run.place.message(index);
                    offsets[index] = bytes.len() as u32;
                    bytes.extend_from_slice(&message);
                }
                bytes.shrink_to_fit();
                run.place = Place { batch: Batch::freeze(bytes, run.count as usize, &self.meter), offsets };
            }
        }
        self.compact_at = COMPACT_BYTES_MIN.max(2 * self.bytes());
    }
}

/// Offsets that an idle queue may keep room for.
const INCOMING_KEPT: usize = 16;

/// Queues that a channel may have used before its list is looked through for deleted ones.
const USED_UNCHECKED: usize = 16;

/// The queue in which what was published before must be when `command` is carried out, if it matters. Settles, grants and stalls
/// concern messages that are out already, and deliveries come at the end of the step anyway.
fn must_see_publishes(command: &Command) -> Option<QueueId> {
    match command {
        Command::Get { queue, .. }
        | Command::Purge { queue, .. }
        | Command::Stat { queue, .. }
        | Command::Close { queue, .. }
        | Command::Configure { queue, .. }
        | Command::Reopen { queue }
        | Command::Delete { queue } => Some(*queue),
        _ => None,
    }
}

/// The size of the batch that starts with `commands`: exact, so that the buffer is allocated once and never grows.
fn batch_bytes(commands: &[Command]) -> usize {
    let mut bytes = 0;
    for command in commands {
        match command {
            Command::Publish(publish) => bytes += message::stored_bytes(&publish.message),
            _ if must_see_publishes(command).is_some() => break,
            _ => continue,
        }
        if bytes >= BATCH_BYTES_MAX {
            break;
        }
    }
    bytes
}

/// Confirms one publish, in one effect with those before it where their numbers follow.
fn push_confirm(effects: &mut Vec<Effect>, channel: ChannelKey, seq: u64) {
    match effects.last_mut() {
        Some(Effect::Confirm { channel: last, first, count }) if *last == channel && *first + *count == seq => {
            *count += 1;
        }
        _ => effects.push(Effect::Confirm { channel, first: seq, count: 1 }),
    }
}

fn not_here(effects: &mut Vec<Effect>, channel: ChannelKey, request: RequestId) {
    effects.push(Effect::Reply { channel, request, reply: Reply::Gone });
}

fn mark_dirty(dirty: &mut Vec<QueueId>, queue: &mut Queue, id: QueueId) {
    if !queue.is_dirty {
        queue.is_dirty = true;
        dirty.push(id);
    }
}

/// Notes that `channel` uses `id`. Queues that were deleted since are forgotten whenever the list has doubled, so that a
/// channel which lives on short-lived queues does not collect their numbers.
fn note_use(
    used: &mut HashMap<ChannelKey, SmallVec<[QueueId; 2]>, FixedState>,
    queues: &HashMap<QueueId, Queue, FixedState>,
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
