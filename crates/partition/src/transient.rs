//! Queues that live in one shard's memory: transient, exclusive and auto-delete ones. Neither Raft
//! nor disk sees them.
//!
//! Same commands and effects as a partition, so that a session does not care where a queue lives.
//! What differs: a confirm is immediate, and what is here ends with the process.
//!
//! Invariant: every message of a queue is exactly one of ready, held by one holder, or settled;
//! messages go out in the order in which they came, and what comes back goes to its old place.
//! Absent on purpose: files, time, randomness.
//!
//! Memory: the publishes of one step are laid one behind the other into one batch buffer; a queue's
//! run is that buffer and an offset a message. So a batch costs three allocations however many
//! messages it holds, a fan-out stores a body once, and a delivery is a slice. The price is that
//! one live message pins its batch; [`TransientQueues::bytes`] counts what is pinned, not what is
//! live, and sparse runs are copied together once they dominate.

mod batch;
mod queue;
mod scheduled;

use crate::closing::{Closing, HeldConfirm};
use crate::command::{Command, Disposition, Effect, Level, Outlets, Publish, Reply, RequestId};
use crate::entry::Reason;
use crate::given_up::GivenUp;
use crate::life::Timers;
use crate::machine::FixedMap;
use crate::message::{self, MessageView, Stamp};
use crate::queue::{Admission, Intake, UsedQueues, Waiting, not_here, note_use};
use crate::reply_room::WaitingReplies;
use crate::survey::QueueFigures;
use crate::turn::{Rooms, Turn};
use batch::{Batch, COMPACT_BYTES_MIN, COMPACT_LIVE_FRACTION, Place, copy_together};
use broker::queue::levels::priority_of;
use broker::queue::{Consumer, Dispatch, KeyMeter, LevelRule};
use broker::{ChannelKey, ConsumerKey, QueueId};
use queue::{MemoryAccess, MemoryQueue, MemorySink};
use scheduled::Schedule;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A batch buffer is closed once it holds this much: what one old message can pin stays small. One
/// larger message is a batch of its own.
pub const BATCH_BYTES_MAX: usize = 256 << 10;

/// Most messages of one batch; an offset and a run of it stay small, and a run's limit is far away.
pub const BATCH_MESSAGES_MAX: usize = 16 << 10;

const _: () = assert!(BATCH_MESSAGES_MAX <= broker::queue::runs::RUN_MESSAGES_MAX as usize);
const _: () = assert!(BATCH_BYTES_MAX + message::MESSAGE_BYTES_MAX <= u32::MAX as usize, "an offset is 32 bits");

/// All transient queues of one shard.
pub struct TransientQueues {
    queues: FixedMap<QueueId, MemoryQueue>,
    /// The queues that a channel consumes from or took messages of, so that its end need not visit
    /// all queues.
    used: UsedQueues,
    /// Queues with something to hand out, or with credit that changed.
    dirty: Vec<QueueId>,
    /// The open batch, its messages, and the queues with some of them.
    open: Vec<u8>,
    open_messages: usize,
    open_queues: Vec<QueueId>,
    /// Bytes that a consumer may still be sent in this step.
    rooms: Rooms,
    taken: Vec<(u64, u64)>,
    meter: Arc<AtomicU64>,
    key_meter: KeyMeter,
    compact_at: u64,
    /// The time of this step.
    now_ms: u64,
    /// When queues want to be looked at.
    timers: Timers,
    /// Messages that are not due yet, or were while there was no room for them.
    schedule: Schedule,
    /// Repeats that queues with deduplication dropped; only those that did.
    repeats: FixedMap<QueueId, u64>,
    /// What ended by rules, or by consumers, and became no dead letter.
    given_up: GivenUp,
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
            queues: FixedMap::default(),
            used: FixedMap::default(),
            dirty: Vec::new(),
            open: Vec::new(),
            open_messages: 0,
            open_queues: Vec::new(),
            rooms: Rooms::default(),
            taken: Vec::new(),
            meter: Arc::new(AtomicU64::new(0)),
            key_meter: KeyMeter::default(),
            compact_at: COMPACT_BYTES_MIN,
            now_ms: 0,
            timers: Timers::new(),
            schedule: Schedule::default(),
            repeats: FixedMap::default(),
            given_up: GivenUp::default(),
            has_time_limits: false,
        }
    }

    /// Adds an empty queue. Its number was never used before; declaring a queue that is there
    /// changes nothing.
    pub fn declare(&mut self, queue: QueueId) {
        self.queues.entry(queue).or_insert_with(MemoryQueue::empty);
    }

    /// How many queues there are.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Memory that messages pin, in bytes: batches in queues and batches of which a slice still
    /// waits for a socket.
    pub fn bytes(&self) -> u64 {
        self.meter.load(Ordering::Relaxed)
    }

    /// Counts the keys of messages that come in once.
    pub fn key_meter(&self) -> &KeyMeter {
        &self.key_meter
    }

    /// Appends every queue with what is in it. Looking changes nothing.
    pub fn survey(&self, figures: &mut Vec<QueueFigures>) {
        for (id, queue) in &self.queues {
            let (ready, unacked) = (queue.dispatch.ready(), queue.dispatch.held());
            let consumers = queue.dispatch.consumers() as u64;
            let repeats_dropped = self.repeats.get(id).copied().unwrap_or(0);
            let delayed = queue.sink.delayed;
            let active = queue.dispatch.active();
            let none = QueueFigures::empty(*id);
            figures.push(QueueFigures { ready, unacked, delayed, consumers, active, repeats_dropped, ..none });
        }
    }

    /// Messages that ended and became no dead letters, by queue and reason, since this was asked before.
    pub fn take_given_up(&mut self) -> impl Iterator<Item = (QueueId, Reason, u64)> + use<> {
        self.given_up.take()
    }

    /// Carries out `commands` in order, then hands out what consumers have credit and room for.
    ///
    /// - Order: the effects of a command come after those of the commands before it; deliveries
    ///   come last.
    /// - Takes all of `commands`, whose memory stays with the caller for the next step.
    /// - A command for a queue that is not here is answered [`Reply::Gone`]; a publish to it counts
    ///   as unroutable and is confirmed.
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
                match publish.more {
                    None => self.publish(publish, effects),
                    Some(_) => publish.each(|publish| self.publish(publish, effects)),
                }
                continue;
            }
            if let Some(queue) = must_see_publishes(command) {
                self.close_batch();
                // What is too much or too old is nothing that anybody sees, and what is a
                // consumer's is nobody else's.
                if self.queues.get(&queue).is_some_and(|q| q.life.is_some() || q.dispatch.consumers() > 0) {
                    self.turn(queue, effects, outlets);
                }
            }
            self.handle(command, effects, outlets);
        }
        commands.clear();
        self.close_batch();
        self.turn_all(effects, outlets);
        while self.schedule.has_late() && self.publish_late(effects) {
            self.close_batch();
            self.turn_all(effects, outlets);
        }
        self.rooms.clear();
        if self.bytes() > self.compact_at {
            self.compact();
        }
    }

    fn publish(&mut self, publish: &Publish, effects: &mut Vec<Effect>) {
        let mut offset = None;
        let body_bytes = publish.message.body.len();
        let mut is_timed = broker::properties::has_expiration(&publish.message.properties);
        if self.has_time_limits {
            // It is stored once: whether it needs a time is known before the first of its queues
            // has it.
            for target in &publish.targets {
                let rules = self.queues.get(&target.queue).and_then(|q| q.rules.as_ref());
                is_timed |= rules.is_some_and(|r| r.message_ttl_ms.is_some());
            }
        }
        let mut intake = Intake::default();
        for target in &publish.targets {
            let Some(queue) = self.queues.get_mut(&target.queue) else { continue };
            let admit_key = |queue: &MemoryQueue, key| queue.admit_key(key, self.now_ms, &self.key_meter);
            match queue.admit(target.queue, publish, &mut intake, admit_key, effects) {
                Admission::Taken => {}
                Admission::Refused => continue,
                Admission::Repeat => {
                    *self.repeats.entry(target.queue).or_insert(0) += 1;
                    continue;
                }
            }
            if let Some(replies) = queue.sink.replies.as_ref().filter(|replies| replies.is_full()) {
                effects.extend(replies.note_dropped().map(|channel| Effect::RepliesDropped { channel }));
                self.given_up.note(target.queue, Reason::MaxLength, 1);
                continue;
            }
            if publish.delay_ms > 0 {
                self.schedule(target.queue, publish);
                continue;
            }
            let offset = *offset.get_or_insert_with(|| {
                let offset = self.open.len() as u32;
                let stamp = if is_timed { Stamp::Since(self.now_ms) } else { Stamp::None };
                message::store(&publish.message, 0, stamp, &mut self.open);
                self.open_messages += 1;
                offset
            });
            if queue.sink.incoming.is_empty() {
                self.open_queues.push(target.queue);
            }
            if let Some((rule, key)) = queue.rules.as_ref().and_then(|rules| rules.dedup).zip(intake.key) {
                queue.sink.state.note_key(queue.next_seq, key, rule, self.now_ms, &self.key_meter);
            }
            queue.sink.incoming.push(offset);
            queue.next_seq += 1;
            if is_timed || queue.life.is_some() {
                queue.note_published(is_timed, body_bytes);
            }
        }
        let (channel, seq) = (publish.channel, publish.publish_seq);
        match seq {
            0 => {}
            _ if intake.is_refused => effects.push(Effect::Refuse { channel, first: seq, count: 1 }),
            _ if intake.closing.is_empty() => push_confirm(effects, channel, seq),
            _ => {
                let held = HeldConfirm { channel, seq, level: Level::Written, closing: intake.closing };
                self.confirm(held, effects);
            }
        }
        if self.open.len() >= BATCH_BYTES_MAX || self.open_messages >= BATCH_MESSAGES_MAX {
            self.close_batch();
        }
    }

    /// Confirms a publish once the queues that it waits for are decided about.
    fn confirm(&mut self, held: HeldConfirm, effects: &mut Vec<Effect>) {
        if let Some(held) = Closing::hold(&mut self.queues, held) {
            push_confirm(effects, held.channel, held.seq);
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
            let count = queue.sink.incoming.len();
            let place = Place { batch: batch.clone(), offsets: SmallVec::from_slice(&queue.sink.incoming) };
            let rule = queue.level_rule();
            let priorities = |offset: &u32| {
                let view = MessageView::parse(&batch[*offset as usize..]).expect("the batch was written by store()");
                priority_of(view.properties())
            };
            let priorities: Vec<_> = match rule {
                LevelRule::None => Vec::new(),
                _ => queue.sink.incoming.iter().map(priorities).collect(),
            };
            queue.sink.incoming.clear();
            queue.sink.incoming.shrink_to(INCOMING_KEPT);
            let first = queue.sink.state.publish(count as u32, place);
            queue.sink.state.note_priorities(first, rule, priorities.into_iter());
            match queue.sink.state.levels() {
                Some(levels) => queue.dispatch.add_ready_by_level(count as u64, levels, false),
                None => queue.dispatch.add_ready(count as u64),
            }
            queue.touch(id, &mut self.dirty);
        }
    }

    fn handle(&mut self, command: &Command, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        match command {
            Command::Publish(_) => unreachable!("step() keeps publishes for itself"),
            Command::Consume { queue, consumer, request, .. } => {
                self.consume(*queue, consumer.clone(), *request, effects);
            }
            // A consumer comes back over a link that broke, with what its client still holds.
            Command::Hold { queue, consumer, first, count } => {
                self.hold(*queue, *consumer, *first, *count);
            }
            Command::LimitReplies { queue, channel, room } => {
                if let Some(q) = self.queues.get_mut(queue) {
                    q.sink.replies = Some(Box::new(WaitingReplies::new(room.clone(), *channel)));
                }
            }
            Command::Cancel { queue, consumer, request } => {
                let channel = consumer.channel;
                let Some(q) = self.queues.get_mut(queue) else { return not_here(effects, channel, *request) };
                q.cancel(*queue, *consumer, *request, effects);
                q.touch(*queue, &mut self.dirty);
            }
            Command::Get { queue, channel, no_ack, request } => {
                let waiting = Waiting::Get { channel: *channel, no_ack: *no_ack, request: *request, lets_pass: None };
                if self.ask(*queue, waiting, effects, outlets) {
                    note_use(&mut self.used, &self.queues, *channel, *queue);
                }
            }
            Command::Purge { queue, channel, request } => {
                self.ask(*queue, Waiting::Purge { channel: *channel, request: *request }, effects, outlets);
            }
            Command::Stat { queue, channel, request } => {
                self.ask(*queue, Waiting::Stat { channel: *channel, request: *request }, effects, outlets);
            }
            &Command::Close { queue, if_unused, if_empty, channel, request } => {
                self.ask(queue, Waiting::Close { if_unused, if_empty, channel, request }, effects, outlets);
            }
            Command::Settle { queue, holder, first, count, outcome } => {
                self.settle(*queue, *holder, *first, *count, *outcome, effects);
            }
            Command::Detach { channel } => self.detach(*channel, effects),
            // What is in memory knows no publishers.
            Command::Part { channel } => {
                self.detach(*channel, effects);
                effects.push(Effect::Parted { channel: *channel });
            }
            Command::Reopen { queue } => self.reopen(*queue, effects),
            Command::Delete { queue } => {
                let Some(mut q) = self.queues.remove(queue) else { return };
                self.repeats.remove(queue);
                q.life.as_ref().and_then(|life| life.timer_ms).map(|at| self.timers.remove(&(at, *queue)));
                self.forget_scheduled(*queue);
                q.end(*queue, effects).into_iter().for_each(|held| self.confirm(held, effects));
            }
            Command::Stall { queue, consumer, stalled } => {
                if let Some(q) = self.queues.get_mut(queue)
                    && q.dispatch.set_stalled(*consumer, *stalled)
                {
                    q.touch(*queue, &mut self.dirty);
                }
            }
            Command::Grant { queue, consumer, count } => {
                // A grant to a consumer that has gone is not returned: its channel forgot it with
                // the consumer.
                if let Some(q) = self.queues.get_mut(queue)
                    && q.dispatch.grant(*consumer, *count)
                {
                    q.touch(*queue, &mut self.dirty);
                }
            }
            Command::Configure { queue, rules } => {
                if let Some(q) = self.queues.get_mut(queue) {
                    self.has_time_limits |= rules.message_ttl_ms.is_some();
                    q.configure(rules);
                    q.touch(*queue, &mut self.dirty);
                }
            }
            // No dead letter of a queue in memory waits for an answer.
            Command::DeadLetterAnswered { .. } => {}
            // Nothing here is ever written, so everything that was is synced.
            Command::Mark { channel, request } | Command::Sync { channel, request } => {
                effects.push(Effect::Reply { channel: *channel, request: *request, reply: Reply::Done });
            }
        }
    }

    fn consume(&mut self, id: QueueId, consumer: Consumer, request: RequestId, effects: &mut Vec<Effect>) {
        let channel = consumer.key.channel;
        let Some(queue) = self.queues.get_mut(&id) else { return not_here(effects, channel, request) };
        if queue.consume(consumer, request, effects) {
            queue.touch(id, &mut self.dirty);
            note_use(&mut self.used, &self.queues, channel, id);
        }
    }

    /// Asks a queue, and has it answer if it does now. False if it does not.
    fn ask(&mut self, id: QueueId, waiting: Waiting, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) -> bool {
        let Some(queue) = self.queues.get_mut(&id) else {
            effects.push(waiting.answer(Reply::Gone));
            return false;
        };
        queue.waiting.push_back((queue.next_seq, waiting));
        self.turn(id, effects, outlets);
        true
    }

    /// The delete of a queue came to nothing.
    fn reopen(&mut self, id: QueueId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let Some(closing) = queue.closing.take() else { return };
        queue.touch(id, &mut self.dirty);
        closing.confirms.into_iter().for_each(|held| self.confirm(held, effects));
        for (consumer, request) in closing.consumers {
            self.consume(id, consumer, request, effects);
        }
        for (consumer, first, count) in closing.holds {
            self.hold(id, consumer, first, count);
        }
    }

    /// A consumer that attached, or waits for it, has messages from before.
    fn hold(&mut self, id: QueueId, consumer: ConsumerKey, first: u64, count: u64) {
        note_use(&mut self.used, &self.queues, consumer.channel, id);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if let Some(closing) = &mut queue.closing {
            return closing.holds.push((consumer, first, count));
        }
        let MemoryQueue { dispatch, sink, .. } = &mut *queue;
        let next_live = |from| sink.state.runs().next_live(from).map(|(seq, _)| seq);
        dispatch.hold(consumer, first, count, sink.state.levels(), next_live);
        queue.touch(id, &mut self.dirty);
    }

    fn settle(
        &mut self,
        id: QueueId,
        holder: ConsumerKey,
        first: u64,
        count: u64,
        outcome: Disposition,
        effects: &mut Vec<Effect>,
    ) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        self.taken.clear();
        queue.dispatch.release(holder, first, count, &mut self.taken);
        queue.closing.iter_mut().for_each(|closing| closing.settled(holder, first, count));
        for (first, count) in self.taken.drain(..) {
            queue.note_released(first, count, matches!(outcome, Disposition::Nack | Disposition::Reject));
            match outcome {
                Disposition::Discard if queue.rules.is_some() => {
                    let given_up = &mut self.given_up;
                    let seqs = first..first + count;
                    seqs.for_each(|seq| {
                        queue.give_up(id, seq, Reason::Discarded, None, (&mut *effects, &mut *given_up))
                    });
                }
                Disposition::Ack => queue.settle(first, count),
                Disposition::Discard => {
                    self.given_up.note(id, Reason::Discarded, count);
                    queue.settle(first, count);
                }
                Disposition::Nack | Disposition::Reject => {
                    queue.sink.state.requeue(first, count, outcome == Disposition::Reject);
                    queue.dispatch.put_back(first, count, queue.sink.state.levels());
                }
            }
        }
        queue.touch(id, &mut self.dirty);
    }

    fn detach(&mut self, channel: ChannelKey, effects: &mut Vec<Effect>) {
        for id in self.used.remove(&channel).unwrap_or_default() {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            let detach = |dispatch: &mut Dispatch, sink: &MemorySink| dispatch.detach(channel, sink.state.levels());
            for (first, count) in queue.detach(id, channel, detach, effects).iter() {
                queue.sink.state.requeue(first, count, true);
                queue.note_released(first, count, true);
            }
            queue.touch(id, &mut self.dirty);
        }
    }

    /// Gives changed queues their turn.
    fn turn_all(&mut self, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.turn(id, effects, outlets);
        }
        self.dirty = dirty;
    }

    fn turn(&mut self, id: QueueId, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.dirty = false;
        if queue.closing.is_some() {
            // Whether it goes or stays is being decided: until then it says nothing and gives
            // nothing out.
            return;
        }
        self.taken.clear();
        let at = MemoryAccess { effects, outlets, sent: &mut self.taken, given_up: &mut self.given_up };
        let (rooms, timers, now_ms) = (&mut self.rooms, &mut self.timers, self.now_ms);
        Turn { id, lq: &mut *queue, at, rooms, timers, now_ms, blocked_at: None }.run();
        for (first, count) in self.taken.drain(..) {
            queue.settle(first, count);
        }
        if queue.sink.replies.is_some() && queue.dispatch.ready() > 0 {
            queue.count_replies(&self.meter);
        }
    }

    /// Copies the live messages of sparse runs together, so that their batches can go.
    fn compact(&mut self) {
        for queue in self.queues.values_mut() {
            for run in queue.sink.state.runs_mut().iter_mut() {
                if run.live() > run.count / COMPACT_LIVE_FRACTION {
                    continue;
                }
                copy_together(run, &self.meter);
            }
        }
        self.compact_at = COMPACT_BYTES_MIN.max(2 * self.bytes());
    }
}

/// Offsets that an idle queue may keep room for.
const INCOMING_KEPT: usize = 16;

/// The queue in which what was published before must be when `command` is carried out, if it
/// matters. Settles, grants and stalls concern messages that are out already, and deliveries come
/// at the end of the step anyway.
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

/// The size of the batch that starts with `commands`: exact, so that the buffer is allocated once
/// and never grows.
fn batch_bytes(commands: &[Command]) -> usize {
    let mut bytes = 0;
    for command in commands {
        match command {
            Command::Publish(publish) => bytes += message::stored_bytes_of_all(publish),
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
