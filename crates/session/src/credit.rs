//! A prefetch of the channel as a whole (`basic.qos` with `global`): one budget that its consumers
//! share.
//!
//! The queues of a channel may live in different partitions, so none of them can keep the budget.
//! Each asks when it has messages for a consumer, and the channel grants so many of them.
//! Invariant: unacked and granted together are at most the limit, except for what was unacked
//! already when the limit came or fell.
//!
//! A consumer's own prefetch holds beside it. What a consumer holds from before a budget is held under another number, and only
//! the channel knows of both: so one that holds something is granted its messages on when the budget ends, as one of a budget
//! without a limit.
//!
//! A no-ack consumer uses nothing of the budget, but gets nothing either while the budget is used
//! up, as with RabbitMQ: a client that falls behind with its acks is not sent more on the same
//! channel. Its queue is told to pass it over, as for a full socket.

use super::Host;
use super::channel::{Channel, Consumer, RequestKind, State};
use broker::ConsumerKey;
use partition::Command;
use std::collections::VecDeque;

/// No limit: the budget has ended, and consumers whose own prefetch the channel counts are granted theirs.
const UNLIMITED: u64 = u64::MAX;

/// The budget of one channel.
#[derive(Debug)]
pub(super) struct Credit {
    limit: u64,
    /// Messages that consumers of the channel hold.
    used: u64,
    /// Handed out and not yet used.
    granted: u64,
    /// Consumers that messages wait for, with how many, in the order in which they asked.
    wanting: VecDeque<(u32, u64)>,
    /// Nothing of it is left, and the queues of no-ack consumers were told.
    is_used_up: bool,
}

impl Credit {
    /// How many messages the channel's consumers may hold; `None` once the budget has ended.
    pub(super) fn limit(&self) -> Option<u64> {
        (self.limit != UNLIMITED).then_some(self.limit)
    }

    /// Whether no-ack consumers are passed over.
    pub(super) fn is_used_up(&self) -> bool {
        self.is_used_up
    }

    /// A delivery used a granted credit; it counts as unacked now.
    pub(super) fn spend(&mut self) {
        self.granted = self.granted.saturating_sub(1);
        self.used += 1;
    }

    /// A delivery without a grant, from before the budget: it counts as unacked too.
    pub(super) fn count(&mut self) {
        self.used += 1;
    }

    /// Messages were settled.
    pub(super) fn release(&mut self, count: u64) {
        self.used = self.used.saturating_sub(count);
    }

    /// A consumer goes, and what it was granted is free again.
    pub(super) fn leave(&mut self, number: u32, granted: u32) {
        self.granted = self.granted.saturating_sub(u64::from(granted));
        self.wanting.retain(|(known, _)| *known != number);
    }
}

impl Channel {
    /// Sets or ends the channel's prefetch. Consumers that were attached under the other rule give
    /// way to others with the same tag: a partition fixes the rule when a consumer attaches.
    pub(super) fn set_credit(&mut self, limit: u16, host: &impl Host) {
        let is_lifted = limit == 0;
        if is_lifted && self.credit.is_none() {
            return;
        }
        let used = self.consumers.iter().filter(|c| c.state != State::Get).map(|c| c.unacked).sum();
        let credit = self.credit.get_or_insert_with(|| {
            let wanting = VecDeque::new();
            Box::new(Credit { limit: 0, used, granted: 0, wanting, is_used_up: false })
        });
        credit.limit = if is_lifted { UNLIMITED } else { limit.into() };
        let changed: Vec<(usize, bool)> = (0..self.consumers.places())
            .map(|at| (at, !is_lifted || self.is_counted_here(at)))
            .filter(|(at, wanted)| {
                let consumer = &self.consumers[*at];
                consumer.state == State::Active && !consumer.no_ack && consumer.granted_only != *wanted
            })
            .collect();
        for (at, wanted) in changed {
            match &mut self.consumers[at] {
                // No partition has it now: it comes to the next leader under the new rule, with what it holds.
                waiting if waiting.is_detached => waiting.granted_only = wanted,
                _ => self.replace(at, wanted, host),
            }
        }
        self.hand_out(host);
        let is_granted =
            |consumer: &Consumer| consumer.granted_only && matches!(consumer.state, State::Starting | State::Active);
        if is_lifted && !self.consumers.iter().any(is_granted) {
            self.credit = None;
        }
    }

    /// Whether a consumer has to be granted its messages where the channel has no budget: its own prefetch is used in part by
    /// what it got by grants, or under another number.
    fn is_counted_here(&self, at: usize) -> bool {
        let consumer = &self.consumers[at];
        let holds = || consumer.unacked + u64::from(consumer.granted) + self.held_before(at);
        consumer.granted_only && consumer.prefetch > 0 && holds() > 0
    }

    /// What a consumer holds under the numbers that it had before.
    fn held_before(&self, at: usize) -> u64 {
        let Consumer { number, origin, .. } = self.consumers[at];
        if number == origin {
            return 0;
        }
        self.consumers.iter().filter(|c| c.origin == origin && c.number != number).map(|c| c.unacked).sum()
    }

    fn replace(&mut self, at: usize, granted_only: bool, host: &impl Host) {
        let number = self.next_number();
        let old = &mut self.consumers[at];
        let mut new = old.clone();
        old.state = State::Stopping;
        old.granted = 0;
        (new.number, new.granted_only, new.granted, new.unacked) = (number, granted_only, 0, 0);
        let (queue, partition) = (old.queue, old.partition);
        let consumer = ConsumerKey { channel: self.key, number: old.number };
        let request = RequestKind::Replaced(old.number.into()).id();
        host.push(partition, Command::Cancel { queue, consumer, request });
        let request = RequestKind::Replacing(number.into()).id();
        let consumer = self.partition_consumer(&new);
        host.push(partition, Command::Consume { queue, consumer, again: true, request });
        self.consumers.push(new);
    }

    /// What a partition is told of a consumer.
    pub(super) fn partition_consumer(&self, consumer: &Consumer) -> broker::queue::Consumer {
        broker::queue::Consumer {
            key: ConsumerKey { channel: self.key, number: consumer.number },
            prefetch: consumer.prefetch.into(),
            no_ack: consumer.no_ack,
            exclusive: consumer.exclusive,
            priority: consumer.priority,
            granted_only: consumer.granted_only,
        }
    }

    /// A partition has `ready` messages for a consumer.
    pub(super) fn grant_wanted(&mut self, number: u32, ready: u64, host: &impl Host) {
        let Some(credit) = &mut self.credit else { return };
        match credit.wanting.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) => *known = ready,
            None => credit.wanting.push_back((number, ready)),
        }
        self.hand_out(host);
        let is_unserved = self.credit.as_ref().is_some_and(|c| c.wanting.iter().any(|(known, _)| *known == number));
        if is_unserved && let Some(consumer) = self.consumer(number) {
            // Others of the queue need not wait for this one's turn.
            let key = ConsumerKey { channel: self.key, number };
            host.push(consumer.partition, Command::Grant { queue: consumer.queue, consumer: key, count: 0 });
        }
    }

    /// A grant found nothing.
    pub(super) fn grant_returned(&mut self, number: u32, count: u32, host: &impl Host) {
        if let Some(at) = self.consumer_at(number) {
            let consumer = &mut self.consumers[at];
            let count = count.min(consumer.granted);
            consumer.granted -= count;
            if let Some(credit) = &mut self.credit {
                credit.granted = credit.granted.saturating_sub(count.into());
            }
        }
        self.hand_out(host);
    }

    /// Grants what is free, and tells no-ack consumers whether anything is left.
    pub(super) fn hand_out(&mut self, host: &impl Host) {
        self.grant(host);
        self.note_use(host);
    }

    /// Has no-ack consumers passed over or not, if that changed.
    #[inline]
    pub(super) fn note_use(&mut self, host: &impl Host) {
        let Some(credit) = &mut self.credit else { return };
        let is_used_up = credit.used + credit.granted >= credit.limit;
        if std::mem::replace(&mut credit.is_used_up, is_used_up) != is_used_up {
            self.hold_unacked(is_used_up, host);
        }
    }

    fn hold_unacked(&self, stalled: bool, host: &impl Host) {
        let takes = |c: &&Consumer| c.no_ack && matches!(c.state, State::Starting | State::Active);
        for consumer in self.consumers.iter().filter(takes) {
            let key = ConsumerKey { channel: self.key, number: consumer.number };
            host.push(consumer.partition, Command::Stall { queue: consumer.queue, consumer: key, stalled });
        }
    }

    /// Grants what is free, in equal shares to those that ask.
    fn grant(&mut self, host: &impl Host) {
        let turns = self.credit.as_ref().map_or(0, |credit| credit.wanting.len());
        for _ in 0..turns {
            let Some(credit) = &mut self.credit else { return };
            let free = credit.limit.saturating_sub(credit.used + credit.granted);
            if free == 0 {
                return;
            }
            let share = free.div_ceil(credit.wanting.len() as u64);
            let Some((number, ready)) = credit.wanting.pop_front() else { return };
            let Some(at) = self.consumers.place_of(number) else { continue };
            let held_before = self.held_before(at);
            let Some(credit) = &mut self.credit else { return };
            let Some(consumer) = Some(&mut self.consumers[at]).filter(|consumer| consumer.granted_only) else {
                continue;
            };
            if !matches!(consumer.state, State::Starting | State::Active) {
                continue;
            }
            let own = match consumer.prefetch {
                0 => u64::MAX,
                prefetch => {
                    let has = consumer.unacked + u64::from(consumer.granted) + held_before;
                    u64::from(prefetch).saturating_sub(has)
                }
            };
            let count = share.min(ready.max(1)).min(own).min(u32::MAX.into());
            if count == 0 {
                // Its own prefetch is used up: it asks again in vain, and gets its turn when it has
                // acked.
                credit.wanting.push_back((number, ready));
                continue;
            }
            credit.granted += count;
            consumer.granted += count as u32;
            let key = ConsumerKey { channel: self.key, number };
            let grant = Command::Grant { queue: consumer.queue, consumer: key, count: count as u32 };
            host.push(consumer.partition, grant);
        }
    }
}
