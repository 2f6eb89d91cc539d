//! Handing out messages from the log: the leader gives each queue in which something changed its
//! turn.
//!
//! A message goes out once it has reached its level and the log says that it may have been sent, so
//! that a later leader flags it. Nothing here blocks: bytes that are not in memory are asked for,
//! and the queue comes back when they are.

mod store;

use crate::command::{DeadLetter, Effect};
use crate::entry::EntryBuilder;
use crate::leader::{HOLDERS_TICKS, HOLDERS_TICKS_MAX, Leader, LeaderQueue, LogSink};
use crate::log_life::DueMessage;
use crate::machine::scheduled_for;
use crate::outputs::{LostEntry, Read, ReadAt, ReadBytes, ReadFailed, ReadPurpose};
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use crate::queue::Answer;
use crate::reader::Reader;
use crate::tail::Tail;
use crate::turn::{Access, Turn};
use broker::queue::{Levels, QueueState, Run};
use broker::{ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use std::collections::VecDeque;
use storage::Location;

/// One read of an extent brings about this much.
const EXTENT_READ_BYTES: u32 = 256 << 10;
/// And this much where queues hold as much as they may already.
const CROWDED_READ_BYTES: u32 = 16 << 10;
/// One read of the log brings a batch, and as many after it as consumers have room for, up to so
/// many bytes
const AHEAD_BYTES_MAX: u64 = 256 << 10;
/// and batches.
const AHEAD_BATCHES_MAX: usize = 64;
/// While dead letters of so many bytes wait for their entries to be applied, few messages end for their age.
const LETTERS_BYTES_MAX: usize = 4 << 20;

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
                // Whether it goes or stays is being decided: until then it says nothing and gives
                // nothing out.
                continue;
            }
            if !self.known.has(id) {
                // It is touched when its rules are known.
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
            let now_ms = cx.now_ms;
            let at = LogAccess {
                partition,
                term: leader.term.0,
                awaits_holders: leader.awaits_holders,
                state: self.queues.queue(id),
                builder: &mut leader.builder,
                raised: &mut leader.raised,
                ahead: &mut leader.ahead,
                letters: &mut leader.letters,
                letters_bytes: &mut leader.letters_bytes,
                answers: &mut leader.answers,
                due: &mut leader.due,
                scheduled,
                cx,
            };
            let (rooms, timers) = (&mut leader.rooms, &mut leader.timers);
            Turn { id, lq, at, rooms, timers, now_ms, blocked_at: None }.run();
            if !lq.sink.ahead.is_empty() && lq.dispatch.consumers() == 0 {
                // Nobody is there to take it: it is read again when somebody is.
                lq.sink.ahead.clear();
            }
            if lq.sink.reader.is_some() || !lq.sink.ahead.is_empty() || !lq.sink.read_share.is_empty() {
                lq.count_read(cx.tail);
            }
            if lq.dispatch.consumers() == 0
                && let Some(below) = lq.unsent_from(self.queues.queue(id)).filter(|_| leader.held.is_empty())
            {
                // Whoever would have taken more is gone.
                Leader::lower(&mut leader.builder, &mut leader.lowered, (id, below), lq);
            }
            let has_ended = lq.life.as_ref().is_some_and(|l| !l.sink.ended.is_empty());
            if !lq.sink.acked.is_empty() || !lq.sink.discarded.is_empty() || has_ended {
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

    /// Another 150 ms of this leader's office went by, if this member leads.
    pub fn tick_office(&mut self, cx: &mut Context<'_>) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        leader.ticks += 1;
        if leader.awaits_holders && leader.holders_know_at.is_none() && self.predecessor.has_ended(self.replica.group())
        {
            leader.holders_know_at = Some(leader.ticks - 1);
        }
        let has_waited = |from: u64| leader.ticks >= from + HOLDERS_TICKS;
        if leader.awaits_holders
            && (leader.holders_know_at.is_some_and(has_waited) || leader.ticks >= HOLDERS_TICKS_MAX)
        {
            leader.awaits_holders = false;
            let mut ids: Vec<QueueId> = leader.queues.keys().copied().collect();
            ids.sort_unstable();
            for id in ids {
                self.touched(id);
            }
            self.admit_latecomers(cx);
        }
        self.forget_idle_publishers();
    }

    /// Bytes came for a queue, or could not be read where they were thought to be.
    pub fn read_done(&mut self, purpose: ReadPurpose, found: Result<ReadBytes, ReadFailed>, cx: &mut Context<'_>) {
        let (id, seq, place, is_second) = match purpose {
            ReadPurpose::Entries { from } => {
                // Every fetch is answered: with nothing, if the entries are gone, so that they are
                // asked for again.
                let bodies = match found {
                    Ok(ReadBytes::Records(bodies)) => bodies,
                    Err(ReadFailed::Damaged(why) | ReadFailed::Gone(why)) if self.replica.give_up_through(from) => {
                        cx.out.lost_entries.push(LostEntry { partition: self.replica.id(), index: from, why });
                        Vec::new()
                    }
                    _ => Vec::new(),
                };
                self.replica.fetched(from, bodies);
                return self.drive(cx);
            }
            ReadPurpose::Snapshot { to, term, index, queue, from, past, place, is_second } => {
                return self.snapshot_read((to, term, index), (queue, (from, past), place), is_second, found, cx);
            }
            purpose @ ReadPurpose::Repair { .. } => return self.repair_read(purpose, found, cx),
            ReadPurpose::Messages { queue, seq, place, is_second } => (queue, seq, place, is_second),
        };
        let is_only_copy = self.is_only_copy();
        let Some(leader) = self.leader.as_deref_mut() else { return };
        let Some(lq) = leader.queues.get_mut(&id) else { return };
        lq.sink.reading = false;
        lq.touch(id, &mut leader.dirty);
        let state = self.queues.queue(id);
        let run = state.and_then(|s| s.runs().covering(seq));
        // Settled meanwhile: nobody waits for it.
        let Some(run) = run.filter(|run| run.is_live(seq)) else { return };
        let (past, why) = match Found::new(found, state, run, seq, is_only_copy) {
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
            lq.sink.reading = true;
            let purpose = ReadPurpose::Messages { queue: id, seq, place, is_second: true };
            let at = message_at(run.place, seq, run.past());
            cx.out.reads.push(Read { partition: self.replica.id(), at, purpose });
            return;
        }
        let first = if matches!(place, Place::Wal { .. }) { run.first } else { seq };
        if is_only_copy {
            self.set_aside(id, place, first..past, why, cx.out);
        } else if self.repair((id, place), (first, past), why, cx) {
            // As if the read did not come back yet: the other queues go on.
            self.touched(id).sink.reading = true;
        } else {
            self.look_later(id, cx.now_ms);
        }
    }
}

impl LeaderQueue {
    /// Whether this message comes after all that went out, so that what lies behind it in the log
    /// is what is next.
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
        if self.sink.ahead.back().is_some_and(|last| last.past() > seq) {
            self.sink.ahead.clear();
        }
        self.sink.ahead.append(&mut readers);
    }

    /// Counts what is at hand of what was read from the disk. Where all queues together have too
    /// much of it, this one keeps nothing that it could not give out: it is read again when
    /// somebody has room.
    fn count_read(&mut self, tail: &mut Tail) {
        let bytes = |lq: &Self| lq.sink.reader.iter().chain(&lq.sink.ahead).map(Reader::held_bytes).sum();
        self.sink.read_share.set(bytes(self), tail);
        if tail.is_crowded() {
            self.sink.ahead = VecDeque::new();
            if self.sink.reader.as_ref().is_some_and(|reader| reader.held_bytes() > 0) {
                self.put_reader(None, tail);
            }
            self.sink.read_share.set(bytes(self), tail);
        }
    }

    /// Takes this in hand, and lets go of what was.
    fn put_reader(&mut self, reader: Option<Reader>, tail: &mut Tail) {
        if let Some(Reader::Batch { place: Some((file, offset)), taken, .. }) = &self.sink.reader {
            tail.used(*file, *offset, *taken);
        }
        self.sink.reader = reader;
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
        is_only_copy: bool,
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
                // One that is damaged ends what was read ahead: it is asked for by itself when it
                // is next.
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
            // What others have is asked of them; else it is waited for.
            Err(ReadFailed::Gone(why)) if !is_only_copy => Found::Damaged { past: run.past(), why },
            Err(ReadFailed::Gone(_) | ReadFailed::Refused(_)) => Found::Refused,
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

/// What a turn has at hand of the log.
pub(crate) struct LogAccess<'a, 'c> {
    partition: PartitionId,
    /// Of this leader.
    term: u64,
    /// See [`Leader::awaits_holders`].
    awaits_holders: bool,
    /// What the log says of the queue. Looked up once a turn, not once a message.
    pub(crate) state: Option<&'a QueueState<Place>>,
    pub(crate) builder: &'a mut EntryBuilder,
    raised: &'a mut Vec<QueueId>,
    ahead: &'a mut Vec<QueueId>,
    /// Dead letters that leave with the entry being built.
    pub(crate) letters: &'a mut Vec<DeadLetter>,
    /// Bytes of those, and of all in entries that are not applied yet.
    pub(crate) letters_bytes: &'a mut usize,
    /// Answers that wait for the entry being built.
    answers: &'a mut Vec<Answer>,
    /// Scheduled messages that are due.
    pub(crate) due: &'a mut Vec<DueMessage>,
    /// Messages of this queue that wait to be due; counted only where somebody asks.
    scheduled: u64,
    pub(crate) cx: &'a mut Context<'c>,
}

impl Access for LogAccess<'_, '_> {
    type Sink = LogSink;

    #[inline]
    fn levels<'b>(&'b self, _: &'b LogSink) -> Option<&'b Levels> {
        self.state.and_then(QueueState::levels)
    }

    #[inline]
    fn effects(&mut self) -> &mut Vec<Effect> {
        &mut self.cx.out.effects
    }

    #[inline]
    fn room(&mut self, consumer: ConsumerKey) -> usize {
        self.cx.outlets.room(consumer)
    }
}
