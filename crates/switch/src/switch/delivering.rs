//! Effects of partitions on their way to whom they concern: channels of this shard, other shards, other
//! nodes, or the shard itself.
//!
//! Invariant: what a partition says to a channel arrives in its order, and what an earlier leader said is
//! not heard after the next one was.

use super::{At, Switch};
use crate::parcel::Parcel;
use crate::settles::Settles;
use crate::surroundings::{Outsider, Surroundings};
use crate::windows::RemoteWindows;
use broker::{ChannelKey, PartitionId};
use partition::{Effect, Reply};
use session::Deletion;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::iter::Peekable;

/// Room for so many effects that are left of one answer is kept.
const LEFT_KEPT: usize = 64;

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Hands effects to whom they concern: channels here, other shards, or the shard itself. What
    /// follows each other for one channel is one look-up. `partition` said them; without one they
    /// came from another shard.
    pub fn deliver(
        &self,
        effects: impl Effects,
        partition: Option<PartitionId>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        match partition.filter(|partition| self.leaders.is_led_in_terms(*partition)) {
            Some(of) => {
                let mut left = self.left_to_hear.take();
                let heard = Heard { effects, left: &mut left, partition: of, switch: self };
                self.hand_out(heard, partition, env);
                // Its memory serves again, unless that is much.
                debug_assert!(left.is_empty(), "all is handed out");
                left.shrink_to(LEFT_KEPT);
                self.left_to_hear.replace(left);
            }
            None => self.hand_out(effects, partition, env),
        }
    }

    fn hand_out(
        &self,
        mut effects: impl Effects,
        partition: Option<PartitionId>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let mut sent = Sent { windows: &self.remote, channel: None, bytes: 0 };
        while let Some(effect) = effects.next() {
            let Some(channel) = effect.channel() else {
                if let Some(partition) = partition {
                    self.take_own(effect, partition, env);
                }
                continue;
            };
            let keys = self.keys.borrow();
            let (shard, own) = (keys.shard_of(channel), keys.own());
            drop(keys);
            match shard {
                Some(shard) if shard == self.index => {}
                Some(shard) => {
                    if let Effect::Deliver(delivery) = &effect {
                        sent.note(channel, delivery.message.len());
                    }
                    sent.note_cancelled(&effect);
                    let parcel = Parcel::Effect(partition.unwrap_or(PartitionId(0)), effect);
                    self.inbox.borrow_mut().push_parcel(shard, parcel);
                    continue;
                }
                None => {
                    // A channel of another node; one of another life is not there to hear of it.
                    let bytes = if let Effect::Deliver(delivery) = &effect { delivery.message.len() } else { 0 };
                    sent.note_cancelled(&effect);
                    let mut inbox = self.inbox.borrow_mut();
                    let is_told = match partition {
                        Some(partition) => inbox.roads.effect_of(partition, channel, effect),
                        None => inbox.roads.effect(channel, PartitionId(0), effect),
                    };
                    if is_told {
                        inbox.wake();
                        if bytes > 0 {
                            sent.note(channel, bytes);
                        }
                    }
                    continue;
                }
            }
            if channel == own {
                self.take_answer(effect, env);
                continue;
            }
            let Some((connection, number)) = self.connection_of(channel) else { continue };
            let mut next = || match effects.peek()?.channel() == Some(channel) {
                true => effects.next(),
                false => None,
            };
            env.hear(&connection, (channel, number), effect, &mut next);
        }
    }

    /// A partition of another shard says something to a channel of this one: adds what that is to hear.
    pub fn hear(&self, partition: PartitionId, effect: Effect, heard: &mut Vec<Effect>) {
        self.inbox.borrow_mut().hear(partition, effect, |effect| heard.push(effect));
    }

    /// Whether a channel of this shard hears of an effect what is left of it once it is known what was answered before.
    #[inline]
    fn is_answer_here(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Confirm { channel, .. } | Effect::Refuse { channel, .. } | Effect::Returned { channel, .. } => {
                self.keys.borrow().shard_of(*channel) == Some(self.index)
            }
            _ => false,
        }
    }

    /// What a partition says to its shard.
    fn take_own(&self, effect: Effect, partition: PartitionId, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let unused = |queue| self.deletions.begin(Deletion::of_unused(queue, partition), &At { switch: self, env });
        match effect {
            // The last consumer went. An auto-delete queue ends now, unless a new consumer came
            // meanwhile: the partition is asked, as only it knows.
            Effect::Unused { queue } => {
                let auto_delete = env.topology().queue(queue).is_some_and(|queue| queue.shape.auto_delete);
                if auto_delete {
                    unused(queue);
                }
            }
            Effect::Lapsed { queue } => unused(queue),
            Effect::Parted { channel } => self.inbox.borrow_mut().roads.parted(partition, channel),
            Effect::DeadLetter(letter) => self.take_dead_letter(partition, letter, env),
            _ => {}
        }
    }

    /// An answer to the shard itself.
    fn take_answer(&self, effect: Effect, env: &impl Surroundings<Connection = C, Outsider = O>) {
        match effect {
            Effect::Reply { request, reply, .. } if Settles::is_mark(request) => {
                self.inbox.borrow_mut().mark_answered(request, reply == Reply::Done);
            }
            Effect::Reply { request, reply, .. } => {
                if self.deletions.may_be_deleted(request, &reply, &At { switch: self, env }) {
                    return;
                }
                let outsider = self.asked.borrow_mut().remove(&request);
                outsider.into_iter().for_each(|outsider| outsider.answer(Ok(reply.clone())));
            }
            Effect::Confirm { first, count, .. } => self.dead_letters_answered((first, count), true),
            Effect::Refuse { first, count, .. } | Effect::Returned { first, count, .. } => {
                self.dead_letters_answered((first, count), false);
            }
            _ => {}
        }
    }

    /// Partitions answered for dead letters.
    fn dead_letters_answered(&self, (first, count): (u64, u64), is_safe: bool) {
        let mut done = Vec::new();
        self.awaited.borrow_mut().answered(first, count, is_safe, &mut done);
        // The partition that gave them up is this node's.
        let mut inbox = self.inbox.borrow_mut();
        done.into_iter().for_each(|(partition, command)| inbox.push_here(partition, command));
    }
}

/// Effects of a partition as channels of this shard are to hear of them: what answers publishes once, the others as they
/// are. Those are handed on and not gathered, as most are deliveries.
struct Heard<'a, I, C, O> {
    effects: I,
    /// What is left to be heard of one effect.
    left: &'a mut VecDeque<Effect>,
    partition: PartitionId,
    switch: &'a Switch<C, O>,
}

impl<I: Effects, C: Clone, O: Outsider> Heard<'_, I, C, O> {
    /// Has what is next in `left` if that is where it comes from.
    #[inline]
    fn look(&mut self) {
        while self.left.is_empty()
            && let Some(next) = self.effects.peek()
            && self.switch.is_answer_here(next)
            && let Some(effect) = self.effects.next()
        {
            let left = &mut *self.left;
            self.switch.inbox.borrow_mut().hear(self.partition, effect, |effect| left.push_back(effect));
        }
    }
}

impl<I: Effects, C: Clone, O: Outsider> Iterator for Heard<'_, I, C, O> {
    type Item = Effect;

    #[inline]
    fn next(&mut self) -> Option<Effect> {
        self.look();
        if self.left.is_empty() { self.effects.next() } else { self.left.pop_front() }
    }
}

impl<I: Effects, C: Clone, O: Outsider> Effects for Heard<'_, I, C, O> {
    #[inline]
    fn peek(&mut self) -> Option<&Effect> {
        self.look();
        if self.left.is_empty() { self.effects.peek() } else { self.left.front() }
    }
}

/// Effects in their order, the next of which can be looked at where it is: they are large.
pub trait Effects: Iterator<Item = Effect> {
    /// The next one.
    fn peek(&mut self) -> Option<&Effect>;
}

impl Effects for std::vec::Drain<'_, Effect> {
    #[inline]
    fn peek(&mut self) -> Option<&Effect> {
        self.as_slice().first()
    }
}

impl Effects for std::vec::IntoIter<Effect> {
    fn peek(&mut self) -> Option<&Effect> {
        self.as_slice().first()
    }
}

impl<I: Iterator<Item = Effect>> Effects for Peekable<I> {
    fn peek(&mut self) -> Option<&Effect> {
        Peekable::peek(self)
    }
}

/// What of a partition's effects leaves for channels of other shards and nodes. What goes to one of them in a row is
/// counted at once.
struct Sent<'a> {
    windows: &'a RefCell<RemoteWindows>,
    channel: Option<ChannelKey>,
    bytes: usize,
}

impl Sent<'_> {
    #[inline]
    fn note(&mut self, channel: ChannelKey, bytes: usize) {
        if self.channel != Some(channel) {
            self.tell();
            self.channel = Some(channel);
        }
        self.bytes += bytes;
    }

    /// A consumer elsewhere is none any more: what was on its way to its channel is not counted
    /// further, as what drains of it may be told to the next leader.
    fn note_cancelled(&mut self, effect: &Effect) {
        if let Effect::Cancelled { consumer, .. } = effect {
            self.tell();
            self.windows.borrow_mut().forget(consumer.channel);
        }
    }

    fn tell(&mut self) {
        if let Some(channel) = self.channel.take().filter(|_| self.bytes > 0) {
            self.windows.borrow_mut().send(channel, self.bytes);
        }
        self.bytes = 0;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}
