//! One queue's turn: its consumers are given what they have credit and room for, then what is too
//! much or too old goes, then questions are answered.
//!
//! So nobody sees a queue beyond its limit, and a consumer that was there when a message came has
//! it before a `basic.get` that came after. Invariant: the same for every queue, wherever its
//! messages are. A turn asks its [`Store`] for their bytes and tells it what ended; the compiler
//! makes one turn for each store.

use crate::command::{Delivery, Effect, Reply};
use crate::entry::Reason;
use crate::life::Timers;
use crate::machine::FixedMap;
use crate::queue::{Answer, Queue, Sink, Waiting};
use broker::queue::Levels;
use broker::queue::dispatch::Head;
use broker::{ConsumerKey, QueueId};
use bytes::Bytes;

/// The bytes of a message, or not yet.
pub(crate) enum Next {
    Message(Bytes),
    /// Being read: come back later.
    Later,
}

/// While too many dead letters are on their way, a queue with a message that is too old is looked at again after so
/// long,
const LETTERS_AGAIN_MS: u64 = 10;
/// and one more for each so many queues with timers, so that the looks of many queues cost little.
const TIMERS_A_MS: usize = 64;

/// What a turn has at hand besides its queue.
pub(crate) trait Access {
    type Sink: Sink;

    /// The levels of the queue's messages, if some have one of their own.
    fn levels<'b>(&'b self, sink: &'b Self::Sink) -> Option<&'b Levels>;

    /// What channels are told.
    fn effects(&mut self) -> &mut Vec<Effect>;

    /// Bytes that a consumer may be sent now.
    fn room(&mut self, consumer: ConsumerKey) -> usize;
}

/// What a turn asks of where its queue's messages are.
pub(crate) trait Store {
    /// The message that goes out next.
    fn head(&self) -> Option<Head>;

    /// Whether this message may go out now. If not, the queue has another turn once it may.
    fn may_be_sent(&mut self, seq: u64) -> bool;

    /// The bytes of a message that goes out, or goes.
    fn fetch(&mut self, seq: u64) -> Next;

    /// The bytes of a message that may stay.
    fn peek(&mut self, seq: u64) -> Next;

    /// The number of the message that goes out next and how many go out behind it in a row, where all of them may and are in
    /// hand.
    fn in_hand(&self) -> Option<(u64, u64)> {
        None
    }

    /// The bytes of a message that is in hand.
    fn take_in_hand(&mut self, _seq: u64) -> Option<Bytes> {
        None
    }

    /// The delivery of a message that is not yet taken from the dispatcher.
    fn delivery(&self, consumer: ConsumerKey, needs_ack: bool, head: Head, message: Bytes) -> Delivery;

    /// A message went to who settles nothing.
    fn settle_sent(&mut self, seq: u64);

    /// Ends a message that the dispatcher does not have any more, and dead-letters it if the queue
    /// does that.
    fn give_up(&mut self, seq: u64, reason: Reason, message: Option<Bytes>);

    /// Ends what is ready, and answers with how much that was.
    fn purge(&mut self, answer: Answer);

    /// Before anything goes out. False if nothing may yet.
    fn wake_up(&mut self) -> bool;

    /// Whether the head may be ended for its age now.
    fn may_expire(&self, head: Head) -> bool;

    /// Whether so few dead letters are on their way that a message may become one for its age.
    fn has_letter_room(&mut self) -> bool;

    /// A message that becomes a dead letter ends for its age.
    fn take_letter_room(&mut self, message: &Bytes);

    /// The head was only looked at.
    fn let_go(&mut self);

    /// Sends on what was given up. Returns when the store itself wants another turn.
    fn send_on(&mut self) -> Option<u64>;

    /// Messages that are in no consumer's way, and go with the queue all the same.
    fn set_aside(&self) -> u64;

    /// Whether everybody who was attached to an earlier leader had time to come: before that nobody knows how many
    /// messages are ready, and whether a queue without consumers is unused.
    fn is_all_told(&self) -> bool;

    /// Whether the client of a consumer that is still to come may have this message, though it counts as ready here.
    fn may_be_held(&self, seq: u64) -> bool;
}

/// What consumers may still be sent in this step, whichever of their queues gives it to them.
#[derive(Default)]
pub(crate) struct Rooms {
    /// That of the consumer who had something last: mostly the next one too, and then there is
    /// nothing to look up.
    last: Option<(ConsumerKey, usize)>,
    others: FixedMap<ConsumerKey, usize>,
}

impl Rooms {
    /// A step begins: everybody is asked for room anew.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.last = None;
        if !self.others.is_empty() {
            self.others.clear();
        }
    }

    /// Takes what a consumer has left; 0 if it was not asked for yet.
    #[inline]
    fn take(&mut self, consumer: ConsumerKey) -> usize {
        match self.last.take_if(|(last, _)| *last == consumer) {
            Some((_, room)) => room,
            None if self.others.is_empty() => 0,
            None => self.others.remove(&consumer).unwrap_or(0),
        }
    }

    #[inline]
    fn put(&mut self, consumer: ConsumerKey, room: usize) {
        if let Some((before, left)) = self.last.replace((consumer, room)) {
            self.others.insert(before, left);
        }
    }
}

/// See the module.
pub(crate) struct Turn<'a, A: Access> {
    pub(crate) id: QueueId,
    pub(crate) lq: &'a mut Queue<A::Sink>,
    pub(crate) at: A,
    /// Bytes that consumers may still be sent in this step.
    pub(crate) rooms: &'a mut Rooms,
    pub(crate) timers: &'a mut Timers,
    pub(crate) now_ms: u64,
    /// A consumer waits, and this message, the next one, is not let out or not in memory yet.
    pub(crate) blocked_at: Option<u64>,
}

impl<A: Access> Turn<'_, A>
where
    Self: Store,
{
    /// The whole of it.
    pub(crate) fn run(&mut self) {
        self.lq.dispatch.follow_levels(self.at.levels(&self.lq.sink));
        if self.lq.life.is_none() {
            self.hand_out();
            self.answer();
        } else if self.wake_up() {
            self.hand_out();
            self.live_on();
            let questions = self.lq.waiting.len();
            self.answer();
            if self.lq.waiting.len() < questions && self.lq.closing.is_none() {
                // Another message may be at the head now.
                self.live_on();
            }
        }
        self.grants();
    }

    fn hand_out(&mut self) {
        let share = self.lq.dispatch.share();
        // A portion of room is for this step, whichever queue uses it; the last consumer's is at
        // hand without a look-up.
        let (mut at_hand, mut room) = (None, 0usize);
        'turns: while let Some(consumer) = self.lq.dispatch.next_consumer() {
            let (key, no_ack) = (consumer.key, consumer.no_ack);
            let Some(mut head) = self.head() else { break };
            if at_hand != Some(key) {
                self.put_room(at_hand, room);
                at_hand = Some(key);
                room = self.rooms.take(key);
            }
            loop {
                if room == 0 {
                    room = self.at.room(key);
                    if room == 0 {
                        self.lq.dispatch.set_stalled(key, true);
                        continue 'turns;
                    }
                }
                if !self.may_be_sent(head.seq) {
                    self.blocked_at = Some(head.seq);
                    break 'turns;
                }
                // Not blocked: what came behind it is as old as it is when its turn comes.
                if self.is_known_over(head) && !self.has_letter_room() {
                    break 'turns;
                }
                let Next::Message(message) = self.fetch(head.seq) else {
                    self.blocked_at = Some(head.seq);
                    break 'turns;
                };
                if self.lq.life.is_some() {
                    if self.lq.is_timed(head.seq) && self.lq.is_over(head, &message, self.now_ms) {
                        if !self.end_aged(head, message) {
                            break 'turns;
                        }
                        continue 'turns;
                    }
                    self.lq.note_taken(head.seq, &message, !no_ack);
                }
                room = room.saturating_sub(message.len());
                let delivery = self.delivery(key, !no_ack, head, message);
                let stays = self.lq.dispatch.assign(head, share, self.at.levels(&self.lq.sink));
                if no_ack {
                    self.settle_sent(head.seq);
                }
                self.at.effects().push(Effect::Deliver(delivery));
                if !stays || !self.hand_on(key, no_ack, &mut room, share) {
                    continue 'turns;
                }
                let Some(next) = self.head() else { break 'turns };
                head = next;
            }
        }
        self.put_room(at_hand, room);
    }

    /// Gives the consumer whose turn it is what follows and is in hand: most of what goes out, and nothing has to be asked in
    /// between. True while its turn goes on.
    #[inline]
    fn hand_on(&mut self, key: ConsumerKey, no_ack: bool, room: &mut usize, share: u64) -> bool {
        if self.lq.life.is_some() {
            return true;
        }
        let Some((first, count)) = self.in_hand() else { return true };
        let count = count.min(self.lq.dispatch.burst(share));
        let mut given = 0;
        while given < count && *room > 0 {
            let head = Head { seq: first + given, returned: false };
            let Some(message) = self.take_in_hand(head.seq) else { break };
            *room = room.saturating_sub(message.len());
            let delivery = self.delivery(key, !no_ack, head, message);
            self.at.effects().push(Effect::Deliver(delivery));
            if no_ack {
                self.settle_sent(head.seq);
            }
            given += 1;
        }
        given == 0 || self.lq.dispatch.assign_run(first, given, share)
    }

    fn put_room(&mut self, consumer: Option<ConsumerKey>, room: usize) {
        if let Some(consumer) = consumer.filter(|_| room > 0) {
            self.rooms.put(consumer, room);
        }
    }

    /// The head goes, for this reason.
    fn drop_head(&mut self, head: Head, reason: Reason, message: Option<Bytes>) {
        self.lq.dispatch.drop_head(head, self.at.levels(&self.lq.sink));
        if let Some(message) = &message {
            self.lq.note_taken(head.seq, message, false);
        }
        self.give_up(head.seq, reason, message);
    }

    /// Ends the head for its age. False if it stays for now, as it would become a dead letter and too many are on
    /// their way: nobody is given it meanwhile.
    fn end_aged(&mut self, head: Head, message: Bytes) -> bool {
        if self.lq.dead_letters() {
            if !self.has_letter_room() {
                return false;
            }
            self.take_letter_room(&message);
        }
        self.drop_head(head, Reason::Expired, Some(message));
        true
    }

    /// Whether a look before this one found that the head is too old, and it would become a dead letter. Then its
    /// bytes are fetched once there is room for one.
    fn is_known_over(&self, head: Head) -> bool {
        let looked = self.lq.life.as_ref().and_then(|life| life.looked);
        let is_over =
            |(seq, expires_at): (u64, Option<u64>)| seq == head.seq && expires_at.is_some_and(|at| at <= self.now_ms);
        looked.is_some_and(is_over) && self.lq.dead_letters()
    }

    /// When there may be room for a dead letter again.
    fn room_again_ms(&self) -> u64 {
        self.now_ms + LETTERS_AGAIN_MS + (self.timers.len() / TIMERS_A_MS) as u64
    }

    /// After messages went out: what is too much goes, what is too old goes, what was given up is
    /// dead-lettered, and the next look is set.
    fn live_on(&mut self) {
        let is_trimmed = self.trim(u64::MAX);
        let end = self.lq.dispatch.end();
        if let Some(life) = self.lq.life.as_deref_mut().filter(|_| self.blocked_at.is_none()) {
            (life.fresh_from, life.trims_first) = (end, !is_trimmed);
        }
        let expires_at = self.expire();
        let own = self.send_on();
        let lapses_at = match self.is_all_told() {
            true => self.lq.lapse(self.id, self.now_ms, self.at.effects()),
            false => self.lq.begin_anew(),
        };
        let next = [expires_at, lapses_at, own].into_iter().flatten().min();
        if let Some(life) = &mut self.lq.life {
            life.set_timer(self.timers, self.id, next);
        }
    }

    /// Drops from the head what is beyond the queue's length, of messages below `below`. False
    /// while bytes of them are being read.
    pub(crate) fn trim(&mut self, below: u64) -> bool {
        while self.lq.is_too_long() {
            let Some(head) = self.head().filter(|head| head.seq < below && !self.may_be_held(head.seq)) else {
                return true;
            };
            let mut message = None;
            if self.lq.limits_bytes() {
                let Next::Message(bytes) = self.peek(head.seq) else { return false };
                message = Some(bytes);
            }
            self.drop_head(head, Reason::MaxLength, message);
        }
        true
    }

    /// Ends what is too old, from the head on. Returns when the next one will be.
    fn expire(&mut self) -> Option<u64> {
        loop {
            let head = self.head().filter(|head| self.lq.is_timed(head.seq) && self.may_expire(*head))?;
            let looked = self.lq.life.as_ref().and_then(|life| life.looked);
            if let Some((_, expires_at)) = looked.filter(|(seq, _)| *seq == head.seq)
                && expires_at.is_none_or(|at| at > self.now_ms)
            {
                return expires_at;
            }
            if self.is_known_over(head) && !self.has_letter_room() {
                return Some(self.room_again_ms());
            }
            let Next::Message(message) = self.peek(head.seq) else { return None };
            if !self.lq.is_over(Head { returned: true, ..head }, &message, self.now_ms) {
                self.let_go();
                return self.lq.life.as_ref().and_then(|l| l.looked).and_then(|(_, at)| at);
            }
            if !self.end_aged(head, message) {
                self.let_go();
                return Some(self.room_again_ms());
            }
        }
    }

    /// Whether the `basic.get` at the front has to wait for a consumer. For one message at most,
    /// whatever else keeps coming: a queue that is read from disk has a consumer waiting at the end
    /// of each turn.
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
    fn answer(&mut self) {
        if !self.lq.waiting.is_empty() {
            self.grants();
        }
        while let Some((after, waiting)) = self.lq.waiting.front() {
            if !self.is_all_told() && !matches!(waiting, Waiting::Get { .. }) {
                // What consumers hold would be counted, purged or deleted as if nobody had it.
                return;
            }
            if self.lq.dispatch.end() < *after || self.lets_pass() {
                return;
            }
            if self.lq.life.is_some() {
                // The question before it may have brought one to the head whose time is over.
                self.expire();
            }
            let Some((_, waiting)) = self.lq.waiting.front() else { return };
            if self.lq.closing.is_some() {
                return;
            }
            let (channel, request, reply) = match *waiting {
                Waiting::Get { channel, no_ack, request, .. } => {
                    let Some(head) = self.head() else {
                        self.lq.note_used(self.now_ms);
                        self.reply(Answer { channel, request, reply: Reply::Empty });
                        continue;
                    };
                    if !self.may_be_sent(head.seq) || self.is_known_over(head) && !self.has_letter_room() {
                        return;
                    }
                    let Next::Message(message) = self.fetch(head.seq) else { return };
                    // Expiring stops while too many wait to be sent on; what is over does not go
                    // out all the same.
                    let aged = Head { returned: true, ..head };
                    if self.lq.is_timed(head.seq) && self.lq.is_over(aged, &message, self.now_ms) {
                        if !self.end_aged(head, message) {
                            return;
                        }
                        continue;
                    }
                    self.lq.note_used(self.now_ms);
                    self.lq.note_taken(head.seq, &message, !no_ack);
                    let delivery = self.delivery(ConsumerKey::get(channel), !no_ack, head, message);
                    self.lq.dispatch.assign_get(channel, no_ack, head, self.at.levels(&self.lq.sink));
                    if no_ack {
                        self.settle_sent(head.seq);
                    }
                    (channel, request, Reply::Got { delivery, ready: self.lq.dispatch.ready() })
                }
                Waiting::Purge { channel, request } => {
                    let reply = Reply::Counted(self.lq.dispatch.ready());
                    self.lq.waiting.pop_front();
                    self.purge(Answer { channel, request, reply });
                    continue;
                }
                Waiting::Stat { channel, request } => {
                    self.lq.note_declared(self.now_ms);
                    let d = &self.lq.dispatch;
                    let consumers = d.consumers() as u64;
                    (channel, request, Reply::Stat { ready: d.ready(), unacked: d.held(), consumers })
                }
                Waiting::Close { if_unused, if_empty, channel, request } => {
                    let (ready, used) = (self.lq.dispatch.ready(), self.lq.dispatch.consumers() > 0);
                    // RabbitMQ looks at the messages first.
                    let reply = if if_empty && ready + self.set_aside() > 0 {
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
            self.reply(Answer { channel, request, reply });
        }
    }

    fn reply(&mut self, answer: Answer) {
        self.lq.waiting.pop_front();
        self.at.effects().push(answer.into());
    }

    /// Asks for channel-wide credit where messages wait for it, and gives back what is of no use.
    #[inline]
    fn grants(&mut self) {
        if self.lq.dispatch.has_to_do_with_grants() {
            self.ask_and_return_grants();
        }
    }

    #[cold]
    fn ask_and_return_grants(&mut self) {
        let (mut wanted, mut returned) = (Vec::new(), Vec::new());
        self.lq.dispatch.ask_for_grants(&mut wanted);
        self.lq.dispatch.return_grants(&mut returned);
        if wanted.is_empty() && returned.is_empty() {
            return;
        }
        let (queue, ready) = (self.id, self.lq.dispatch.ready());
        let effects = self.at.effects();
        effects.extend(wanted.into_iter().map(|consumer| Effect::GrantWanted { consumer, queue, ready }));
        effects.extend(returned.into_iter().map(|(consumer, count)| Effect::GrantReturned { consumer, count }));
    }
}
