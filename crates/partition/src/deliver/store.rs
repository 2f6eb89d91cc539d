//! A queue of the log as a turn sees it: what is next, where its bytes are, what becomes of it.

use super::{
    AHEAD_BATCHES_MAX, AHEAD_BYTES_MAX, CROWDED_READ_BYTES, EXTENT_READ_BYTES, LETTERS_BYTES_MAX, LogAccess, in_tail,
};
use crate::command::{DeadLetter, Delivery};
use crate::damage::next_sound;
use crate::entry::Reason;
use crate::leader::Leader;
use crate::outputs::{Read, ReadAt, ReadPurpose};
use crate::place::Place;
use crate::queue::Answer;
use crate::reader::Reader;
use crate::turn::{Next, Store, Turn};
use broker::ConsumerKey;
use broker::queue::dispatch::Head;
use broker::queue::{Counts, QueueState, Run};
use bytes::Bytes;
use storage::Location;

impl Store for Turn<'_, LogAccess<'_, '_>> {
    fn head(&self) -> Option<Head> {
        let state = self.at.state;
        self.lq.dispatch.head(state.and_then(QueueState::levels), |from| match state {
            Some(state) => match next_sound(state, self.lq.sink.spoilt.as_deref(), from) {
                Some(seq) => Some(seq),
                // Ready before it is applied (written level): not in the state yet, and live.
                None => Some(from.max(state.next_seq())),
            },
            None => Some(from),
        })
    }

    /// Whether the log lets this message out; if not, the next entry will say so.
    fn may_be_sent(&mut self, seq: u64) -> bool {
        if self.may_be_held(seq) {
            return false;
        }
        let state = self.at.state;
        let (applied, next_seq) = state.map_or((1, 1), |s| (s.dispatched_below(), s.next_seq()));
        if seq < self.lq.sink.lowered_to.map_or(applied, |below| below.min(applied)) {
            return true;
        }
        // Not applied yet: it goes out if the watermark that covers it stands in its own entry or
        // in one before. In a later one it might be lost while the message is kept, and the next
        // leader would not flag it.
        if seq >= next_seq {
            let at = self.lq.sink.pending.partition_point(|b| b.first + u64::from(b.count) <= seq);
            if self.lq.sink.pending.get(at).is_some_and(|batch| seq < batch.sent_below) {
                return true;
            }
        }
        self.raise_sent(seq);
        false
    }

    #[inline]
    fn in_hand(&self) -> Option<(u64, u64)> {
        let (from, state) = (self.lq.dispatch.next_plain()?, self.at.state?);
        if self.lq.sink.spoilt.is_some() {
            return None;
        }
        let (seq, past) = state.stretch_in_turn(from)?;
        let below = self.lq.sink.lowered_to.map_or(u64::MAX, |below| below).min(state.dispatched_below());
        let past = past.min(self.lq.sink.reader.as_ref()?.past()).min(self.lq.dispatch.end()).min(below);
        (seq < past && !self.may_be_held(seq)).then(|| (seq, past - seq))
    }

    #[inline]
    fn take_in_hand(&mut self, seq: u64) -> Option<Bytes> {
        let reader = self.lq.sink.reader.as_mut()?;
        let message = reader.take(seq)?;
        if reader.is_used_up() {
            self.put_reader(None);
        }
        Some(message)
    }

    /// The bytes of a message: in hand, in memory, or asked for.
    fn fetch(&mut self, seq: u64) -> Next {
        if let Some(reader) = &mut self.lq.sink.reader
            && let Some(message) = reader.take(seq)
        {
            if reader.is_used_up() {
                self.put_reader(None);
            }
            return Next::Message(message);
        }
        while self.lq.sink.ahead.front().is_some_and(|next| next.past() <= seq || next.has(seq)) {
            let mut next = self.lq.sink.ahead.pop_front().expect("it was looked at");
            let past = next.past();
            let Some(message) = next.take(seq) else { continue };
            self.put_reader((!next.is_used_up()).then_some(next));
            if self.lq.sink.ahead.is_empty() {
                self.read_ahead(past, past - seq);
            }
            return Next::Message(message);
        }
        if self.lq.sink.reading {
            return Next::Later;
        }
        let state = self.at.state;
        let reader = match state.and_then(|s| s.runs().covering(seq)) {
            Some(run) => {
                let Some((cached, (file, offset))) = in_tail(run, self.at.cx.tail) else {
                    self.read(seq, run, self.lq.dispatch.free_credit());
                    return Next::Later;
                };
                Reader::batch(run.first, run.count, cached, Some((file, offset)))
            }
            None => {
                let at = self.lq.sink.pending.partition_point(|b| b.first + u64::from(b.count) <= seq);
                let batch = self.lq.sink.pending.get(at).expect("what is ready is live or on its way");
                Reader::batch(batch.first, batch.count, batch.bytes.clone(), None)
            }
        };
        self.put_reader(Some(reader.expect("what this member wrote it can read")));
        let message = self.lq.sink.reader.as_mut().and_then(|r| r.take(seq)).expect("the run covers the message");
        if self.lq.sink.reader.as_ref().is_some_and(Reader::is_used_up) {
            self.put_reader(None);
        }
        Next::Message(message)
    }

    /// The bytes of a message that may stay: unlike a fetch, a look at what is in memory counts as
    /// no use of it.
    fn peek(&mut self, seq: u64) -> Next {
        let run = self.at.state.and_then(|s| s.runs().covering(seq));
        let reader = match run {
            Some(run) => match run.place {
                Place::Wal { file, offset, bytes } => self
                    .at
                    .cx
                    .tail
                    .get(file, offset, bytes)
                    .and_then(|cached| Reader::batch(run.first, run.count, cached, None)),
                Place::Extent { .. } => None,
            },
            None => {
                let at = self.lq.sink.pending.partition_point(|b| b.first + u64::from(b.count) <= seq);
                let batch = self.lq.sink.pending.get(at);
                batch.and_then(|b| Reader::batch(b.first, b.count, b.bytes.clone(), None))
            }
        };
        match reader.and_then(|mut reader| reader.take(seq)) {
            Some(message) => Next::Message(message),
            None => self.fetch(seq),
        }
    }

    fn delivery(&self, consumer: ConsumerKey, needs_ack: bool, head: Head, message: Bytes) -> Delivery {
        let redelivered = head.returned || head.seq < self.lq.sink.redelivered_below;
        let counts = if redelivered { self.counts(head.seq) } else { Counts::default() };
        Delivery {
            consumer,
            queue: self.id,
            seq: head.seq,
            needs_ack,
            redelivered,
            counts,
            term: self.at.term,
            message,
        }
    }

    fn settle_sent(&mut self, seq: u64) {
        self.lq.sink.acked.insert_range(seq, 1);
    }

    fn give_up(&mut self, seq: u64, reason: Reason, message: Option<Bytes>) {
        self.lq.sink.counts.remove(seq, seq + 1);
        self.lq.give_up(self.at.builder, self.id, seq, reason, message);
    }

    fn purge(&mut self, answer: Answer) {
        let state = self.at.state;
        self.lq.let_go(state, self.at.cx.tail);
        let ranges = self.lq.dispatch.purge(state.and_then(QueueState::levels), |from| match state {
            // What is ready before it is applied (written level) is not in the state yet, and live.
            Some(state) => Some(state.runs().next_live(from).map_or(from.max(state.next_seq()), |(seq, _)| seq)),
            None => Some(from),
        });
        self.lq.note_purged();
        if ranges.is_empty() {
            return self.at.cx.out.effects.push(answer.into());
        }
        // By what is remembered, which is little, and not by number: a backlog has millions.
        let ranges: Vec<(u64, u64)> = ranges.iter().collect();
        if !self.lq.sink.counts.is_empty() {
            ranges.iter().for_each(|(first, count)| self.lq.sink.counts.remove(*first, first + count));
        }
        // As durable as a delete: what was purged does not come back once its client knows.
        self.at.builder.settle_apart(self.id, Reason::Purged, &ranges);
        self.at.builder.want_sync();
        self.at.answers.push(answer);
    }

    fn wake_up(&mut self) -> bool {
        self.wake()
    }

    fn may_expire(&self, head: Head) -> bool {
        let life = self.lq.life.as_ref().expect("what is timed has a life");
        // A fresh one whose consumer only waits for the log may still go out.
        let is_awaited = self.blocked_at.is_some() && !head.returned && head.seq >= life.fresh_from;
        !life.sink.is_crowded() && !is_awaited && !self.may_be_held(head.seq)
    }

    fn has_letter_room(&mut self) -> bool {
        let dying_bytes = self.lq.life.as_ref().map_or(0, |life| life.sink.dying_bytes());
        let is_crowded = *self.at.letters_bytes + dying_bytes >= LETTERS_BYTES_MAX;
        // Each queue may have one on its way, however many the others have.
        let has_own = || {
            let is_kept = self.lq.life.as_ref().is_some_and(|life| life.sink.kept() > 0);
            is_kept || self.lq.sink.settles_in_flight > 0 || self.at.letters.iter().any(|l| l.queue == self.id)
        };
        !(is_crowded && has_own()) && self.at.cx.outlets.has_letter_room(self.id)
    }

    fn take_letter_room(&mut self, message: &Bytes) {
        self.at.cx.outlets.take_letter_room(self.id, message.len() + DeadLetter::OVERHEAD_BYTES);
    }

    fn let_go(&mut self) {
        // Whoever takes it fetches it again, and nothing is held for an idle queue.
        if self.lq.dispatch.consumers() == 0 {
            self.put_reader(None);
        }
    }

    fn send_on(&mut self) -> Option<u64> {
        self.bury();
        self.lq.life.as_ref().and_then(|life| life.sink.due_ms(self.now_ms))
    }

    fn set_aside(&self) -> u64 {
        self.at.scheduled + self.lq.life.as_ref().map_or(0, |life| life.sink.retrying() + life.sink.kept())
    }

    fn is_all_told(&self) -> bool {
        !self.at.awaits_holders
    }

    #[inline]
    fn may_be_held(&self, seq: u64) -> bool {
        self.at.awaits_holders && seq < self.lq.sink.redelivered_below
    }
}

impl Turn<'_, LogAccess<'_, '_>> {
    pub(super) fn raise_sent(&mut self, seq: u64) {
        // A `basic.get` has no credit to look at; one message is enough for it.
        let below = self.lq.sent_below().unwrap_or(0).max(seq + 1);
        if below > self.lq.sink.sent_proposed {
            self.lq.sink.sent_proposed = below;
            self.at.builder.sent(self.id, below);
            self.at.builder.want_sync();
            if self.lq.dispatch.consumers() > 0 {
                self.lq.widen_slack();
                Leader::note_raised(self.at.ahead, self.id, self.lq);
            }
        }
        self.at.raised.push(self.id);
    }

    pub(super) fn counts(&self, seq: u64) -> Counts {
        self.lq.sink.counts.get(seq).or_else(|| self.at.state.map(|s| s.counts_of(seq))).unwrap_or_default()
    }

    pub(super) fn put_reader(&mut self, reader: Option<Reader>) {
        self.lq.put_reader(reader, self.at.cx.tail);
    }

    /// Asks for a message, and for as many after it as are `wanted` and one read brings.
    pub(super) fn read(&mut self, seq: u64, run: &Run<Place>, wanted: u64) {
        let at = match run.place {
            Place::Wal { .. } => {
                let state = self.at.state.filter(|s| self.lq.goes_forward(seq, Some(s)));
                let runs = state.into_iter().flat_map(|s| s.runs().iter_from(run.past()));
                let mut places: Vec<Location> = run.place.in_wal().into_iter().collect();
                let (mut bytes, mut messages) = (u64::from(places[0].bytes), u64::from(run.live()));
                let batches_max = if self.at.cx.tail.is_crowded() { 1 } else { AHEAD_BATCHES_MAX };
                for next in runs.take(batches_max - 1) {
                    let Some(at) = next.place.in_wal() else { break };
                    bytes += u64::from(at.bytes);
                    if bytes > AHEAD_BYTES_MAX || messages >= wanted || in_tail(next, self.at.cx.tail).is_some() {
                        break;
                    }
                    messages += u64::from(next.live());
                    places.push(at);
                }
                ReadAt::Batches(places)
            }
            Place::Extent { id, run: number } => {
                let bytes_max = if self.at.cx.tail.is_crowded() { CROWDED_READ_BYTES } else { EXTENT_READ_BYTES };
                ReadAt::Extent { id, run: number, from: seq, past: run.past(), bytes_max }
            }
        };
        self.lq.sink.reading = true;
        let purpose = ReadPurpose::Messages { queue: self.id, seq, place: run.place, is_second: false };
        self.at.cx.out.reads.push(Read { partition: self.at.partition, at, purpose });
    }

    /// While consumers are given the last that was read, `in_hand` messages: asks for what comes
    /// after it, from `past` on, if they have room for more.
    pub(super) fn read_ahead(&mut self, past: u64, in_hand: u64) {
        let wanted = self.lq.dispatch.free_credit().saturating_sub(in_hand);
        if self.lq.sink.reading || wanted == 0 {
            return;
        }
        let state = self.at.state.filter(|s| self.lq.goes_forward(past, Some(s)));
        if let Some((seq, run)) = state.and_then(|s| s.runs().next_live(past))
            && in_tail(run, self.at.cx.tail).is_none()
        {
            self.read(seq, run, wanted);
        }
    }
}
