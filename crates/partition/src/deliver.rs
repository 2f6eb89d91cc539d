//! Handing out messages: the leader's turn over the queues in which something changed.
//!
//! Order: a queue's consumers in turn, then the questions that wait for what was published before them: a consumer that was
//! there when a message came has it before a `basic.get` that came after. A message goes out once it has reached its level and the log says that it may have been sent, so that a later leader
//! flags it. Nothing here blocks: bytes that are not in memory are asked for, and the queue comes back when they are.

use crate::command::{DeadLetter, Delivery, Effect, Reply};
use crate::damage::next_sound;
use crate::entry::Reason;
use crate::leader::{Answer, Leader, LeaderQueue, Waiting};
use crate::life::{DueMessage, Timers};
use crate::machine::{FixedMap, scheduled_for};
use crate::outputs::{LostEntry, Outputs, Read, ReadAt, ReadBytes, ReadFailed, ReadPurpose};
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use crate::reader::Reader;
use crate::tail::Tail;
use broker::queue::dispatch::Head;
use broker::queue::{Counts, QueueState, Run};
use broker::{ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use std::collections::VecDeque;
use storage::Location;

/// One read of an extent brings about this much.
const EXTENT_READ_BYTES: u32 = 256 << 10;
/// And this much where queues hold as much as they may already.
const CROWDED_READ_BYTES: u32 = 16 << 10;
/// One read of the log brings a batch, and as many after it as consumers have room for, up to so many bytes
const AHEAD_BYTES_MAX: u64 = 256 << 10;
/// and batches.
const AHEAD_BATCHES_MAX: usize = 64;

/// The bytes of a message, or not yet.
pub(crate) enum Next {
    Message(Bytes),
    /// Being read: come back later.
    Later,
}

impl QueuePartition {
    /// Hands out what can be, over all queues in which something changed.
    pub(crate) fn dispatch(&mut self, cx: &mut Context<'_>) {
        let partition = self.id();
        let Some(leader) = self.leader.as_deref_mut() else { return };
        let mut dirty = std::mem::take(&mut leader.dirty);
        leader.rooms.clear();
        for id in dirty.drain(..) {
            let Some(mut lq) = leader.queues.get_mut(&id) else { continue };
            lq.dirty = false;
            if lq.closing.is_some() {
                // Whether it goes or stays is being decided: until then it says nothing and gives nothing out.
                continue;
            }
            let mut scheduled = 0;
            if lq.is_asked_if_empty() {
                // Those that are not in the log yet count too: they will be confirmed.
                let schedule = scheduled_for(id);
                let (live, applied) = self.queues.queue(schedule).map_or((0, 1), |s| (s.runs().live(), s.next_seq()));
                let next_seq = leader.queues.get(&schedule).map_or(applied, |schedule| schedule.next_seq);
                scheduled = live + next_seq.saturating_sub(applied);
                lq = leader.queues.get_mut(&id).expect("it was there above");
            }
            lq.look_again(cx.now_ms);
            let mut turn = Turn {
                partition,
                id,
                lq,
                state: self.queues.queue(id),
                builder: &mut leader.builder,
                raised: &mut leader.raised,
                ahead: &mut leader.ahead,
                rooms: &mut leader.rooms,
                timers: &mut leader.timers,
                letters: &mut leader.letters,
                answers: &mut leader.answers,
                due: &mut leader.due,
                blocked_at: None,
                scheduled,
            };
            turn.lq.dispatch.follow_levels(turn.state.and_then(QueueState::levels));
            if turn.lq.life.is_none() {
                turn.hand_out(cx);
                turn.answer(cx);
            } else if turn.wake_up(cx) {
                turn.hand_out(cx);
                turn.live_on(cx);
                let questions = turn.lq.waiting.len();
                turn.answer(cx);
                if turn.lq.waiting.len() < questions && turn.lq.closing.is_none() {
                    // Another message may be at the head now.
                    turn.live_on(cx);
                }
            }
            turn.grants(cx.out);
            if !lq.ahead.is_empty() && lq.dispatch.consumers() == 0 {
                // Nobody is there to take it: it is read again when somebody is.
                lq.ahead.clear();
            }
            if lq.reader.is_some() || !lq.ahead.is_empty() || !lq.read_share.is_empty() {
                lq.count_read(cx.tail);
            }
            if lq.dispatch.consumers() == 0
                && let Some(below) = lq.unsent_from(self.queues.queue(id)).filter(|_| leader.held.is_empty())
            {
                // Whoever would have taken more is gone.
                Leader::lower(&mut leader.builder, &mut leader.lowered, (id, below), lq);
            }
            let has_ended = lq.life.as_ref().is_some_and(|l| !l.ended.is_empty());
            if !lq.acked.is_empty() || !lq.discarded.is_empty() || has_ended {
                Leader::settle_later(&mut leader.settling, id, lq);
            }
            if lq.is_idle(self.queues.queue(id)) {
                leader.queues.remove(&id);
            }
        }
        if leader.dirty.is_empty() {
            leader.dirty = dirty;
        }
        if !leader.due.is_empty() {
            self.publish_due(cx);
        }
    }

    /// Bytes came for a queue, or could not be read where they were thought to be.
    pub fn read_done(&mut self, purpose: ReadPurpose, found: Result<ReadBytes, ReadFailed>, cx: &mut Context<'_>) {
        let (id, seq, place, is_second) = match purpose {
            ReadPurpose::Entries { from } => {
                // Every fetch is answered: with nothing, if the entries are gone, so that they are asked for again.
                let bodies = match found {
                    Ok(ReadBytes::Records(bodies)) => bodies,
                    Err(ReadFailed::Damaged(why)) if self.replica.give_up_through(from) => {
                        cx.out.lost_entries.push(LostEntry { partition: self.replica.id(), index: from, why });
                        Vec::new()
                    }
                    _ => Vec::new(),
                };
                self.replica.fetched(from, bodies);
                return self.drive(cx);
            }
            ReadPurpose::Snapshot { to, term, index, queue, from, place, is_second } => {
                return self.snapshot_read((to, term, index), (queue, from, place), is_second, found, cx);
            }
            purpose @ ReadPurpose::Mending { .. } => return self.mending_read(purpose, found, cx),
            ReadPurpose::Messages { queue, seq, place, is_second } => (queue, seq, place, is_second),
        };
        let Some(leader) = self.leader.as_deref_mut() else { return };
        let Some(lq) = leader.queues.get_mut(&id) else { return };
        lq.reading = false;
        Leader::touch(&mut leader.dirty, id, lq);
        let state = self.queues.queue(id);
        let run = state.and_then(|s| s.runs().covering(seq));
        // Settled meanwhile: nobody waits for it.
        let Some(run) = run.filter(|run| run.is_live(seq)) else { return };
        let (past, why) = match Found::new(found, state, run, seq) {
            Found::Readers(readers) => return lq.take_in(seq, readers, state, cx.tail),
            // It has moved while it was read: it is read again where it is now.
            _ if run.place != place => return,
            Found::Refused => {
                let at = lq.read_later(cx.now_ms);
                leader.timers.insert((at, id));
                return;
            }
            Found::Damaged { past, why } => (past, why),
        };
        if !is_second {
            // What memory holds of the file may be what is wrong.
            lq.reading = true;
            let purpose = ReadPurpose::Messages { queue: id, seq, place, is_second: true };
            let at = message_at(run.place, seq, run.past());
            cx.out.reads.push(Read { partition: self.replica.id(), at, purpose });
            return;
        }
        let first = if matches!(place, Place::Wal { .. }) { run.first } else { seq };
        if self.is_only_copy() {
            self.set_aside(id, place, first..past, why, cx.out);
        } else if self.mend((id, place), (first, past), why, cx) {
            // As if the read did not come back yet: the other queues go on.
            self.touched(id).reading = true;
        } else {
            self.look_later(id, cx.now_ms);
        }
    }
}

impl LeaderQueue {
    /// Whether this message comes after all that went out, so that what lies behind it in the log is what is next.
    fn goes_forward(&self, seq: u64, state: Option<&QueueState<Place>>) -> bool {
        seq >= self.dispatch.cursor() && state.is_none_or(|s| s.levels().is_none())
    }

    /// What was read from this message on is at hand from now on.
    fn take_in(&mut self, seq: u64, mut readers: VecDeque<Reader>, state: Option<&QueueState<Place>>, tail: &mut Tail) {
        if !self.goes_forward(seq, state) {
            if let Some(reader) = readers.pop_front() {
                self.put_reader(Some(reader), tail);
            }
            return;
        }
        if self.ahead.back().is_some_and(|last| last.past() > seq) {
            self.ahead.clear();
        }
        self.ahead.append(&mut readers);
    }

    /// Counts what is at hand of what was read from the disk. Where all queues together have too much of it, this one keeps
    /// nothing that it could not give out: it is read again when somebody has room.
    fn count_read(&mut self, tail: &mut Tail) {
        let bytes = |lq: &Self| lq.reader.iter().chain(&lq.ahead).map(Reader::held_bytes).sum();
        self.read_share.set(bytes(self), tail);
        if tail.is_crowded() {
            self.ahead = VecDeque::new();
            if self.reader.as_ref().is_some_and(|reader| reader.held_bytes() > 0) {
                self.put_reader(None, tail);
            }
            self.read_share.set(bytes(self), tail);
        }
    }

    /// Takes this in hand, and lets go of what was.
    fn put_reader(&mut self, reader: Option<Reader>, tail: &mut Tail) {
        if let Some(Reader::Batch { place: Some((file, offset)), taken, .. }) = &self.reader {
            tail.used(*file, *offset, *taken);
        }
        self.reader = reader;
    }

    /// Nobody will be given what waits: what of it is in memory need not stay there.
    pub(crate) fn let_go(&mut self, state: Option<&QueueState<Place>>, tail: &mut Tail) {
        self.put_reader(None, tail);
        let Some(state) = state else { return };
        let cursor = self.dispatch.cursor();
        // The newest are at hand, if any.
        for run in state.runs().iter().rev().take_while(|run| run.past() > cursor) {
            let Some((_, (file, offset))) = in_tail(run, tail) else { return };
            tail.used(file, offset, (run.past() - cursor.max(run.first)).min(run.live().into()));
        }
    }
}

/// A batch that was read, if it is whole and its run still lies there.
pub(crate) fn batch_of(run: &Run<Place>, at: Location, bytes: Bytes) -> Option<Reader> {
    let is_there = run.place.in_wal() == Some(at);
    let is_intact = is_there && crate::entry::Batch::parse(&bytes, 0).is_ok_and(|b| b.is_intact());
    is_intact.then(|| Reader::batch(run.first, run.count, bytes, None)).flatten()
}

/// The bytes of a run that are still in memory, and where the log has them.
fn in_tail(run: &Run<Place>, tail: &Tail) -> Option<(Bytes, (u32, u32))> {
    let Place::Wal { file, offset, bytes } = run.place else { return None };
    tail.get(file, offset, bytes).map(|cached| (cached, (file, offset)))
}

/// What a read of messages brought.
enum Found {
    Readers(VecDeque<Reader>),
    /// Nothing up to `past` can be read.
    Damaged {
        past: u64,
        why: String,
    },
    Refused,
}

impl Found {
    fn new(
        found: Result<ReadBytes, ReadFailed>,
        state: Option<&QueueState<Place>>,
        run: &Run<Place>,
        seq: u64,
    ) -> Found {
        match found {
            Ok(ReadBytes::Extent { messages, damage }) => match messages.iter().find(|m| m.0 >= seq) {
                Some((first, _)) if *first == seq => Found::Readers(VecDeque::from([Reader::extent(messages.into())])),
                next => {
                    let past = next.map_or(run.past(), |(first, _)| *first);
                    let why = damage.unwrap_or_else(|| format!("{:?} does not have them", run.place));
                    Found::Damaged { past, why }
                }
            },
            Ok(ReadBytes::Batches(batches)) => {
                // One that is damaged ends what was read ahead: it is asked for by itself when it is next.
                let runs = state.into_iter().flat_map(|s| s.runs().iter_from(run.first));
                let readers: VecDeque<Reader> =
                    runs.zip(batches).map_while(|(run, (at, bytes))| batch_of(run, at, bytes)).collect();
                match readers.is_empty() {
                    true => Found::Damaged { past: run.past(), why: batch_is_damaged(run.place) },
                    false => Found::Readers(readers),
                }
            }
            Ok(ReadBytes::Wal(_) | ReadBytes::Records(_)) => unreachable!("these are read for followers only"),
            Err(ReadFailed::Damaged(why)) => Found::Damaged { past: run.past(), why },
            Err(ReadFailed::Refused(_)) => Found::Refused,
        }
    }
}

/// Says what is wrong with a batch that does not check out.
pub(crate) fn batch_is_damaged(place: Place) -> String {
    match place {
        Place::Wal { file, offset, bytes } => {
            format!(
                "log file number {file} is damaged in the {bytes} bytes from {offset} on, by the checksum of their batch"
            )
        }
        Place::Extent { id, run } => format!("run {run} of extent {id:016x} is damaged"),
    }
}

/// What to read for a message of a run that ends before `past`.
fn message_at(place: Place, seq: u64, past: u64) -> ReadAt {
    match place {
        Place::Wal { .. } => ReadAt::Batches(place.in_wal().into_iter().collect()),
        Place::Extent { id, run } => ReadAt::Extent { id, run, from: seq, past, bytes_max: EXTENT_READ_BYTES },
    }
}

/// One queue's turn.
pub(crate) struct Turn<'a> {
    partition: PartitionId,
    pub(crate) id: QueueId,
    pub(crate) lq: &'a mut LeaderQueue,
    /// What the log says of it. Looked up once a turn, not once a message.
    pub(crate) state: Option<&'a QueueState<Place>>,
    pub(crate) builder: &'a mut crate::entry::EntryBuilder,
    raised: &'a mut Vec<QueueId>,
    ahead: &'a mut Vec<QueueId>,
    rooms: &'a mut FixedMap<ConsumerKey, usize>,
    pub(crate) timers: &'a mut Timers,
    /// Dead letters that leave with the entry being built.
    pub(crate) letters: &'a mut Vec<DeadLetter>,
    /// Answers that wait for the entry being built.
    pub(crate) answers: &'a mut Vec<Answer>,
    /// Scheduled messages that are due.
    pub(crate) due: &'a mut Vec<DueMessage>,
    /// A consumer waits, and this message, the next one, is not let out or not in memory yet.
    pub(crate) blocked_at: Option<u64>,
    /// Messages of this queue that wait to be due; counted only where somebody asks.
    scheduled: u64,
}

impl Turn<'_> {
    pub(crate) fn head(&self) -> Option<Head> {
        let state = self.state;
        self.lq.dispatch.head(state.and_then(QueueState::levels), |from| match state {
            Some(state) => match next_sound(state, self.lq.spoilt.as_deref(), from) {
                Some(seq) => Some(seq),
                // Ready before it is applied (written level): not in the state yet, and live.
                None => Some(from.max(state.next_seq())),
            },
            None => Some(from),
        })
    }

    /// Whether the log lets this message out; if not, the next entry will say so.
    fn may_be_sent(&mut self, seq: u64) -> bool {
        let state = self.state;
        let (applied, next_seq) = state.map_or((1, 1), |s| (s.dispatched_below(), s.next_seq()));
        if seq < self.lq.lowered_to.map_or(applied, |below| below.min(applied)) {
            return true;
        }
        // Not applied yet: it goes out if the watermark that covers it stands in its own entry or in one before. In a later
        // one it might be lost while the message is kept, and the next leader would not flag it.
        if seq >= next_seq {
            let at = self.lq.pending.partition_point(|b| b.first + u64::from(b.count) <= seq);
            if self.lq.pending.get(at).is_some_and(|batch| seq < batch.sent_below) {
                return true;
            }
        }
        self.raise_sent(seq);
        false
    }

    fn raise_sent(&mut self, seq: u64) {
        // A `basic.get` has no credit to look at; one message is enough for it.
        let below = self.lq.sent_below().unwrap_or(0).max(seq + 1);
        if below > self.lq.sent_proposed {
            self.lq.sent_proposed = below;
            self.builder.sent(self.id, below);
            self.builder.want_sync();
            if self.lq.dispatch.consumers() > 0 {
                self.lq.widen_slack();
                Leader::note_raised(self.ahead, self.id, self.lq);
            }
        }
        self.raised.push(self.id);
    }

    fn counts(&self, seq: u64) -> Counts {
        match self.lq.counts.get(&seq) {
            Some(counts) => *counts,
            None => self.state.map(|s| s.counts_of(seq)).unwrap_or_default(),
        }
    }

    fn delivery(&self, consumer: ConsumerKey, needs_ack: bool, head: Head, message: Bytes) -> Delivery {
        let redelivered = head.returned || head.seq < self.lq.redelivered_below;
        let counts = if redelivered { self.counts(head.seq) } else { Counts::default() };
        Delivery { consumer, queue: self.id, seq: head.seq, needs_ack, redelivered, counts, message }
    }

    fn hand_out(&mut self, cx: &mut Context<'_>) {
        let share = self.lq.dispatch.share();
        // A portion of room is for this step, whichever queue uses it; the last consumer's is at hand without a look-up.
        let (mut at_hand, mut room) = (None, 0usize);
        while let Some(consumer) = self.lq.dispatch.next_consumer() {
            let (key, no_ack) = (consumer.key, consumer.no_ack);
            let Some(head) = self.head() else { break };
            if at_hand != Some(key) {
                self.put_room(at_hand, room);
                at_hand = Some(key);
                room = self.rooms.remove(&key).unwrap_or(0);
            }
            if room == 0 {
                room = cx.outlets.room(key);
                if room == 0 {
                    self.lq.dispatch.set_stalled(key, true);
                    continue;
                }
            }
            if !self.may_be_sent(head.seq) {
                self.blocked_at = Some(head.seq);
                break;
            }
            let Next::Message(message) = self.fetch(head.seq, cx.tail, cx.out) else {
                self.blocked_at = Some(head.seq);
                break;
            };
            if self.lq.life.is_some() {
                if self.is_timed(head.seq) && self.is_over(head, &message, cx.now_ms) {
                    self.drop_head(head, Reason::Expired, Some(message));
                    continue;
                }
                self.lq.note_taken(head.seq, &message, !no_ack);
            }
            room = room.saturating_sub(message.len());
            self.lq.dispatch.assign(head, share, self.state.and_then(QueueState::levels));
            if no_ack {
                self.lq.acked.insert_range(head.seq, 1);
            }
            let delivery = self.delivery(key, !no_ack, head, message);
            cx.out.effects.push(Effect::Deliver(delivery));
        }
        self.put_room(at_hand, room);
    }

    fn put_room(&mut self, consumer: Option<ConsumerKey>, room: usize) {
        if let Some(consumer) = consumer.filter(|_| room > 0) {
            self.rooms.insert(consumer, room);
        }
    }

    /// Whether the `basic.get` at the front has to wait for a consumer. For one message at most, whatever else keeps coming: a
    /// queue that is read from disk has a consumer waiting at the end of each turn.
    fn lets_pass(&mut self) -> bool {
        if !matches!(self.lq.waiting.front(), Some((_, Waiting::Get { .. }))) {
            return false;
        }
        let is_granted_late = self.lq.dispatch.awaits_grant();
        let due = self.blocked_at.or_else(|| self.head().filter(|_| is_granted_late).map(|head| head.seq));
        let Some((_, Waiting::Get { lets_pass, .. })) = self.lq.waiting.front_mut() else { return false };
        let waits = due.is_some_and(|seq| lets_pass.is_none_or(|known| known == seq));
        if waits {
            *lets_pass = due;
        }
        waits
    }

    /// Answers questions whose time has come, in order.
    fn answer(&mut self, cx: &mut Context<'_>) {
        if !self.lq.waiting.is_empty() {
            self.grants(cx.out);
        }
        while let Some((after, _)) = self.lq.waiting.front() {
            if self.lq.dispatch.end() < *after || self.lets_pass() {
                return;
            }
            if self.lq.life.is_some() {
                // The question before it may have brought one to the head whose time is over.
                self.expire(cx);
            }
            let Some((_, waiting)) = self.lq.waiting.front() else { return };
            if self.lq.closing.is_some() {
                return;
            }
            let (channel, request, reply) = match *waiting {
                Waiting::Get { channel, no_ack, request, .. } => {
                    let Some(head) = self.head() else {
                        if let Some(life) = &mut self.lq.life {
                            life.used(cx.now_ms);
                        }
                        self.reply(channel, request, Reply::Empty, cx.out);
                        continue;
                    };
                    if !self.may_be_sent(head.seq) {
                        return;
                    }
                    let Next::Message(message) = self.fetch(head.seq, cx.tail, cx.out) else { return };
                    // Expiring stops while too many wait to be sent on; what is over does not go out all the same.
                    if self.is_timed(head.seq) && self.is_over(Head { returned: true, ..head }, &message, cx.now_ms) {
                        self.drop_head(head, Reason::Expired, Some(message));
                        continue;
                    }
                    if let Some(life) = &mut self.lq.life {
                        life.used(cx.now_ms);
                        self.lq.note_taken(head.seq, &message, !no_ack);
                    }
                    self.lq.dispatch.assign_get(channel, no_ack, head, self.state.and_then(QueueState::levels));
                    if no_ack {
                        self.lq.acked.insert_range(head.seq, 1);
                    }
                    let delivery = self.delivery(ConsumerKey::get(channel), !no_ack, head, message);
                    (channel, request, Reply::Got { delivery, ready: self.lq.dispatch.ready() })
                }
                Waiting::Purge { channel, request } => {
                    let ready = self.lq.dispatch.ready();
                    if self.purge(cx.tail) {
                        // As durable as a delete: what was purged does not come back once its client knows.
                        self.lq.waiting.pop_front();
                        self.builder.want_sync();
                        self.answers.push(Answer { channel, request, reply: Reply::Counted(ready) });
                        continue;
                    }
                    (channel, request, Reply::Counted(ready))
                }
                Waiting::Stat { channel, request } => {
                    if let Some(life) = &mut self.lq.life
                        && self.lq.rules.as_ref().is_some_and(|r| r.declare_renews)
                    {
                        life.used(cx.now_ms);
                    }
                    let d = &self.lq.dispatch;
                    let consumers = d.consumers() as u64;
                    (channel, request, Reply::Stat { ready: d.ready(), unacked: d.held(), consumers })
                }
                Waiting::Close { if_unused, if_empty, channel, request } => {
                    let (ready, used) = (self.lq.dispatch.ready(), self.lq.dispatch.consumers() > 0);
                    // RabbitMQ looks at the messages first.
                    // What waits for its time, for its retry or for a place as a dead letter is in no consumer's way, and goes
                    // with the queue all the same.
                    let delayed =
                        self.scheduled + self.lq.life.as_ref().map_or(0, |life| life.retrying() + life.kept());
                    let reply = if if_empty && ready + delayed > 0 {
                        Reply::DeleteRefused { in_use: false }
                    } else if if_unused && used {
                        Reply::DeleteRefused { in_use: true }
                    } else {
                        if if_unused || if_empty {
                            self.lq.closing = Some(Box::default());
                        }
                        Reply::Counted(ready)
                    };
                    (channel, request, reply)
                }
            };
            self.reply(channel, request, reply, cx.out);
        }
    }

    fn reply(
        &mut self,
        channel: broker::ChannelKey,
        request: crate::command::RequestId,
        reply: Reply,
        out: &mut Outputs,
    ) {
        self.lq.waiting.pop_front();
        out.effects.push(Effect::Reply { channel, request, reply });
    }

    /// Ends what is ready. True if the entry being built says so.
    fn purge(&mut self, tail: &mut Tail) -> bool {
        let state = self.state;
        self.lq.let_go(state, tail);
        let ranges = self.lq.dispatch.purge(state.and_then(QueueState::levels), |from| match state {
            // What is ready before it is applied (written level) is not in the state yet, and live.
            Some(state) => Some(state.runs().next_live(from).map_or(from.max(state.next_seq()), |(seq, _)| seq)),
            None => Some(from),
        });
        // By what is remembered, which is little, and not by number: a backlog has millions.
        self.lq.counts.retain(|seq, _| !ranges.contains(*seq));
        let ranges: Vec<(u64, u64)> = ranges.iter().collect();
        if !ranges.is_empty() {
            self.builder.settle(self.id, Reason::Purged, &ranges);
        }
        if let Some(life) = &mut self.lq.life {
            life.purged();
        }
        !ranges.is_empty()
    }

    /// The bytes of a message that may stay: unlike a fetch, a look at what is in memory counts as no use of it.
    pub(crate) fn peek(&mut self, seq: u64, tail: &mut Tail, out: &mut Outputs) -> Next {
        let run = self.state.and_then(|s| s.runs().covering(seq));
        let reader = match run {
            Some(run) => match run.place {
                Place::Wal { file, offset, bytes } => {
                    tail.get(file, offset, bytes).and_then(|cached| Reader::batch(run.first, run.count, cached, None))
                }
                Place::Extent { .. } => None,
            },
            None => {
                let at = self.lq.pending.partition_point(|b| b.first + u64::from(b.count) <= seq);
                let batch = self.lq.pending.get(at);
                batch.and_then(|b| Reader::batch(b.first, b.count, b.bytes.clone(), None))
            }
        };
        match reader.and_then(|mut reader| reader.take(seq)) {
            Some(message) => Next::Message(message),
            None => self.fetch(seq, tail, out),
        }
    }

    /// The bytes of a message: in hand, in memory, or asked for.
    pub(crate) fn fetch(&mut self, seq: u64, tail: &mut Tail, out: &mut Outputs) -> Next {
        if let Some(reader) = &mut self.lq.reader
            && let Some(message) = reader.take(seq)
        {
            if reader.is_used_up() {
                self.put_reader(None, tail);
            }
            return Next::Message(message);
        }
        while self.lq.ahead.front().is_some_and(|next| next.past() <= seq || next.has(seq)) {
            let mut next = self.lq.ahead.pop_front().expect("it was looked at");
            let past = next.past();
            let Some(message) = next.take(seq) else { continue };
            self.put_reader((!next.is_used_up()).then_some(next), tail);
            if self.lq.ahead.is_empty() {
                self.read_ahead(past, past - seq, tail, out);
            }
            return Next::Message(message);
        }
        if self.lq.reading {
            return Next::Later;
        }
        let state = self.state;
        let reader = match state.and_then(|s| s.runs().covering(seq)) {
            Some(run) => {
                let Some((cached, (file, offset))) = in_tail(run, tail) else {
                    self.read(seq, run, self.lq.dispatch.free_credit(), tail, out);
                    return Next::Later;
                };
                Reader::batch(run.first, run.count, cached, Some((file, offset)))
            }
            None => {
                let at = self.lq.pending.partition_point(|b| b.first + u64::from(b.count) <= seq);
                let batch = self.lq.pending.get(at).expect("what is ready is live or on its way");
                Reader::batch(batch.first, batch.count, batch.bytes.clone(), None)
            }
        };
        self.put_reader(Some(reader.expect("what this member wrote it can read")), tail);
        let message = self.lq.reader.as_mut().and_then(|r| r.take(seq)).expect("the run covers the message");
        if self.lq.reader.as_ref().is_some_and(Reader::is_used_up) {
            self.put_reader(None, tail);
        }
        Next::Message(message)
    }

    pub(crate) fn put_reader(&mut self, reader: Option<Reader>, tail: &mut Tail) {
        self.lq.put_reader(reader, tail);
    }

    /// Asks for a message, and for as many after it as are `wanted` and one read brings.
    fn read(&mut self, seq: u64, run: &Run<Place>, wanted: u64, tail: &Tail, out: &mut Outputs) {
        let at = match run.place {
            Place::Wal { .. } => {
                let state = self.state.filter(|s| self.lq.goes_forward(seq, Some(s)));
                let runs = state.into_iter().flat_map(|s| s.runs().iter_from(run.past()));
                let mut places: Vec<Location> = run.place.in_wal().into_iter().collect();
                let (mut bytes, mut messages) = (u64::from(places[0].bytes), u64::from(run.live()));
                let batches_max = if tail.is_crowded() { 1 } else { AHEAD_BATCHES_MAX };
                for next in runs.take(batches_max - 1) {
                    let Some(at) = next.place.in_wal() else { break };
                    bytes += u64::from(at.bytes);
                    if bytes > AHEAD_BYTES_MAX || messages >= wanted || in_tail(next, tail).is_some() {
                        break;
                    }
                    messages += u64::from(next.live());
                    places.push(at);
                }
                ReadAt::Batches(places)
            }
            Place::Extent { id, run: number } => {
                let bytes_max = if tail.is_crowded() { CROWDED_READ_BYTES } else { EXTENT_READ_BYTES };
                ReadAt::Extent { id, run: number, from: seq, past: run.past(), bytes_max }
            }
        };
        self.lq.reading = true;
        let purpose = ReadPurpose::Messages { queue: self.id, seq, place: run.place, is_second: false };
        out.reads.push(Read { partition: self.partition, at, purpose });
    }

    /// While consumers are given the last that was read, `in_hand` messages: asks for what comes after it, from `past` on,
    /// if they have room for more.
    fn read_ahead(&mut self, past: u64, in_hand: u64, tail: &Tail, out: &mut Outputs) {
        let wanted = self.lq.dispatch.free_credit().saturating_sub(in_hand);
        if self.lq.reading || wanted == 0 {
            return;
        }
        let state = self.state.filter(|s| self.lq.goes_forward(past, Some(s)));
        if let Some((seq, run)) = state.and_then(|s| s.runs().next_live(past))
            && in_tail(run, tail).is_none()
        {
            self.read(seq, run, wanted, tail, out);
        }
    }

    /// Asks for channel-wide credit where messages wait for it, and gives back what is of no use.
    fn grants(&mut self, out: &mut Outputs) {
        let (mut wanted, mut returned) = (Vec::new(), Vec::new());
        self.lq.dispatch.ask_for_grants(&mut wanted);
        self.lq.dispatch.return_grants(&mut returned);
        let ready = self.lq.dispatch.ready();
        out.effects.extend(wanted.into_iter().map(|consumer| Effect::GrantWanted { consumer, queue: self.id, ready }));
        out.effects.extend(returned.into_iter().map(|(consumer, count)| Effect::GrantReturned { consumer, count }));
    }
}
