//! An attached consumer, and what all of a queue's would take together.
//!
//! Invariant: the tally says at any time what a look at each consumer would say: whoever changes a
//! consumer has the tally note it. So nobody looks at all of them to know.

use super::dispatch::Consumer;
use super::foreign::Foreign;
use super::ranges::SeqRanges;
use crate::ids::ConsumerKey;
use std::collections::BTreeSet;

#[cfg(test)]
thread_local! {
    /// How often somebody looked at what a consumer takes.
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// An attached consumer.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) consumer: Consumer,
    pub(super) held: SeqRanges,
    /// What its client holds of an earlier leader, and is not its own here: it counts against the
    /// prefetch until the client settles it.
    pub(super) foreign: Foreign,
    pub(super) granted: u32,
    /// A grant was asked for and has not come.
    pub(super) asked: bool,
    /// The answer to that was that there is none at the moment; it comes when there is.
    pub(super) refused: bool,
    /// Its connection has enough to write; it takes nothing until it says so.
    pub(super) stalled: bool,
    /// Its place in the ring.
    pub(super) ticket: Option<u64>,
    /// Messages in a row of its present turn.
    pub(super) turn: u64,
    /// Another consumer of the queue is the active one, or is about to be.
    pub(super) waits: bool,
    /// Its place in the line for that.
    pub(super) in_line: (i32, u64),
    /// What the tally has of it.
    noted: Noted,
}

/// What one consumer adds to a tally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Noted {
    /// Messages that it would take at once.
    free: Amount,
    /// It is to be asked for a grant.
    is_unasked: bool,
    /// It has a grant.
    is_granted: bool,
    /// Only its grant is missing.
    awaits: bool,
}

/// A number of messages, or as many as come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Limited(u64),
    Unlimited,
}

impl Default for Amount {
    fn default() -> Self {
        Amount::Limited(0)
    }
}

/// The sum of such.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    limited: u64,
    unlimited: u64,
}

impl Sum {
    #[inline]
    fn add(&mut self, amount: Amount) {
        match amount {
            Amount::Limited(count) => self.limited += count,
            Amount::Unlimited => self.unlimited += 1,
        }
    }

    #[inline]
    fn remove(&mut self, amount: Amount) {
        match amount {
            Amount::Limited(count) => self.limited -= count,
            Amount::Unlimited => self.unlimited -= 1,
        }
    }
}

impl Attached {
    /// One that holds nothing yet.
    pub(super) fn new(consumer: Consumer) -> Self {
        Attached {
            consumer,
            held: SeqRanges::new(),
            foreign: Foreign::default(),
            granted: 0,
            asked: false,
            refused: false,
            stalled: false,
            ticket: None,
            turn: 0,
            waits: false,
            in_line: (0, 0),
            noted: Noted::default(),
        }
    }

    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        self.has_room() && (!self.consumer.granted_only || self.granted > 0)
    }

    /// Whether what it takes changes with each message that it is given.
    #[inline]
    pub(super) fn is_bounded(&self) -> bool {
        self.consumer.granted_only || (!self.consumer.no_ack && self.consumer.prefetch != 0)
    }

    /// Whether it takes messages, as far as its queue knows.
    #[inline]
    fn has_room(&self) -> bool {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let c = &self.consumer;
        let room = c.no_ack || c.prefetch == 0 || self.held.count() + self.foreign.count() < u64::from(c.prefetch);
        room && !self.stalled && !self.waits
    }

    /// How many messages in a row it may be given before anything is to be asked again.
    #[inline]
    pub(super) fn takes(&self) -> u64 {
        match self.free() {
            _ if self.consumer.granted_only => u64::from(self.has_credit()),
            Amount::Limited(count) => count,
            Amount::Unlimited => u64::MAX,
        }
    }

    /// What it takes when it holds nothing.
    fn credit(&self) -> Amount {
        match self.consumer.prefetch {
            _ if self.consumer.no_ack => Amount::Unlimited,
            0 => Amount::Unlimited,
            prefetch => Amount::Limited(prefetch.into()),
        }
    }

    #[inline]
    fn free(&self) -> Amount {
        match self.credit() {
            _ if !self.has_credit() => Amount::default(),
            Amount::Limited(prefetch) => Amount::Limited(prefetch - self.held.count() - self.foreign.count()),
            Amount::Unlimited => Amount::Unlimited,
        }
    }

    #[inline]
    fn to_note(&self) -> Noted {
        let mut noted = Noted { free: self.free(), ..Noted::default() };
        if self.consumer.granted_only {
            noted.is_granted = self.granted > 0;
            noted.is_unasked = !noted.is_granted && !self.asked && !self.stalled;
            noted.awaits = !noted.is_granted && self.asked && !self.refused && self.has_room();
        }
        noted
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tally {
    credit: Sum,
    free: Sum,
    /// Those under a channel-wide prefetch that are to be asked for a grant.
    unasked: BTreeSet<ConsumerKey>,
    /// And those that have one.
    granted: BTreeSet<ConsumerKey>,
    /// How many miss nothing but their grant.
    awaiting: u64,
}

impl Tally {
    /// A consumer comes; it is noted once it has its place.
    pub(super) fn enter(&mut self, attached: &Attached) {
        self.credit.add(attached.credit());
    }

    /// A consumer goes.
    pub(super) fn leave(&mut self, attached: &Attached) {
        self.credit.remove(attached.credit());
        self.put(attached.consumer.key, attached.noted, Noted::default());
    }

    /// Something about a consumer changed.
    #[inline]
    pub(super) fn note(&mut self, attached: &mut Attached) {
        let now = attached.to_note();
        let before = std::mem::replace(&mut attached.noted, now);
        if before != now {
            self.put(attached.consumer.key, before, now);
        }
    }

    /// A consumer whose prefetch counts was given so many messages: as a rule it would take as many less, and nothing else
    /// changes.
    #[inline]
    pub(super) fn note_given(&mut self, attached: &mut Attached, count: u64) {
        match &mut attached.noted.free {
            Amount::Limited(free) if *free > count && !attached.consumer.granted_only => {
                *free -= count;
                self.free.limited -= count;
            }
            _ => self.note(attached),
        }
    }

    #[inline]
    fn put(&mut self, key: ConsumerKey, before: Noted, now: Noted) {
        self.free.remove(before.free);
        self.free.add(now.free);
        if before != (Noted { free: before.free, ..now }) {
            self.put_grant(key, before, now);
        }
    }

    #[inline(never)]
    fn put_grant(&mut self, key: ConsumerKey, before: Noted, now: Noted) {
        self.awaiting -= u64::from(before.awaits);
        self.awaiting += u64::from(now.awaits);
        for (set, was, is) in [
            (&mut self.unasked, before.is_unasked, now.is_unasked),
            (&mut self.granted, before.is_granted, now.is_granted),
        ] {
            match (was, is) {
                (false, true) => set.insert(key),
                (true, false) => set.remove(&key),
                _ => continue,
            };
        }
    }

    /// What all may hold together; no limit counts as `unlimited`.
    pub(super) fn credit(&self, unlimited: u64) -> u64 {
        self.credit.limited.saturating_add(self.credit.unlimited.saturating_mul(unlimited))
    }

    /// What all would take at once; no limit counts as `u64::MAX`.
    pub(super) fn free_credit(&self) -> u64 {
        if self.free.unlimited > 0 { u64::MAX } else { self.free.limited }
    }

    /// Whether anybody is to be asked for a grant, or has one.
    #[inline]
    pub(super) fn has_to_do_with_grants(&self) -> bool {
        !self.unasked.is_empty() || !self.granted.is_empty()
    }

    /// Who is to be asked for a grant, in order.
    pub(super) fn unasked(&self) -> impl Iterator<Item = ConsumerKey> + '_ {
        self.unasked.iter().copied()
    }

    /// Who has a grant, in order.
    pub(super) fn granted(&self) -> impl Iterator<Item = ConsumerKey> + '_ {
        self.granted.iter().copied()
    }

    /// Whether somebody misses nothing but its grant.
    pub(super) fn awaits_grant(&self) -> bool {
        self.awaiting > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ChannelKey;
    use crate::queue::dispatch::Head;
    use crate::queue::{Dispatch, SingleActive};

    fn consumer(channel: u64, number: u32, priority: i32) -> Consumer {
        let key = ConsumerKey { channel: ChannelKey(channel.into()), number };
        Consumer { key, prefetch: 2, no_ack: false, exclusive: false, priority, granted_only: number.is_multiple_of(3) }
    }

    /// Everything that a queue does while consumers come, are given something, and go again.
    fn live(count: u32, is_single: bool, of_channel: impl Fn(u32) -> u64) -> u64 {
        let before = LOOKS.get();
        let mut dispatch = Dispatch::new(1, 1, 0);
        if is_single {
            dispatch.set_single_active(SingleActive { preempts: true });
        }
        let (mut wanted, mut returned) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let new = consumer(of_channel(number), number, (number % 7) as i32);
            let key = new.key;
            dispatch.attach(new).expect("nobody is exclusive");
            dispatch.add_ready(1);
            dispatch.ask_for_grants(&mut wanted);
            assert!(dispatch.free_credit() + dispatch.credit(1) > 0);
            let _ = dispatch.awaits_grant();
            if let Some(head) = dispatch.next_consumer().is_some().then(|| dispatch.head(None, Some)).flatten() {
                dispatch.assign(head, 1, None);
            }
            dispatch.set_stalled(key, number % 5 == 0);
            dispatch.return_grants(&mut returned);
            if number % 4 == 0 {
                assert!(dispatch.cancel(key));
            }
        }
        for channel in (1..=count).map(of_channel).collect::<BTreeSet<_>>() {
            dispatch.detach(ChannelKey(channel.into()), None);
        }
        assert_eq!((dispatch.consumers(), dispatch.held(), dispatch.free_credit()), (0, 0, 0));
        LOOKS.get() - before
    }

    #[test]
    fn what_a_consumer_costs_does_not_grow_with_how_many_there_are() {
        for is_single in [false, true] {
            for of_channel in [(|_| 1) as fn(u32) -> u64, |number| number.into()] {
                let (few, many) = (live(100, is_single, of_channel), live(10_000, is_single, of_channel));
                assert!(many <= few * 100 * 2, "{few} looks for 100 consumers, {many} for 10,000");
            }
        }
    }

    /// A queue with so many consumers, whose prefetch differs, and as many messages.
    fn busy(consumers: u32, messages: u64) -> Dispatch {
        let mut dispatch = Dispatch::new(1, 1, 0);
        for number in 1..=consumers {
            let (prefetch, no_ack) = ([0, 1, 2, 7, 40][number as usize % 5], number % 4 == 0);
            let consumer = Consumer { prefetch, no_ack, ..consumer(1, number, (number % 2) as i32) };
            dispatch.attach(consumer).expect("nobody is exclusive");
        }
        dispatch.add_ready(messages);
        dispatch
    }

    #[test]
    fn a_burst_is_what_its_messages_are_one_by_one() {
        let mut bursts = 0;
        for (consumers, share) in (1..9).flat_map(|consumers| [1, 3, 16].map(|share| (consumers, share))) {
            let (mut at_once, mut one_by_one) = (busy(consumers, 300), busy(consumers, 300));
            while let (Some(key), Some(first)) =
                (at_once.next_consumer().map(|consumer| consumer.key), at_once.next_plain())
            {
                assert_eq!(one_by_one.next_consumer().map(|consumer| consumer.key), Some(key));
                let count = at_once.burst(share).min(at_once.ready());
                bursts += u32::from(count > 1);
                if count == 0 {
                    // It waits for a grant.
                    break;
                }
                let stays = at_once.assign_run(first, count, share);
                for seq in first..first + count {
                    assert_eq!(one_by_one.next_consumer().map(|consumer| consumer.key), Some(key), "message {seq}");
                    let stayed = one_by_one.assign(Head { seq, returned: false }, share, None);
                    assert_eq!(stayed, stays || seq + 1 < first + count);
                }
                let sums = |dispatch: &Dispatch| (dispatch.ready(), dispatch.held(), dispatch.free_credit());
                assert_eq!(sums(&at_once), sums(&one_by_one));
            }
        }
        assert!(bursts > 20, "{bursts} of more than one");
    }

    #[test]
    fn what_came_back_or_has_a_level_is_part_of_no_burst() {
        let mut dispatch = busy(1, 10);
        assert_eq!(dispatch.next_plain(), Some(1));
        dispatch.assign_run(1, 1, 1);
        dispatch.detach(ChannelKey(1), None);
        assert_eq!(dispatch.next_plain(), None, "it goes out before the others");
        assert_eq!(busy(1, 0).next_plain(), None, "there is none");
    }

    #[test]
    fn a_turn_stays_with_who_has_it_as_long_as_that_is_said() {
        let mut dispatch = Dispatch::new(1, 1, 0);
        for number in 1..=5 {
            dispatch.attach(consumer(1, number, (number % 2) as i32)).expect("nobody is exclusive");
        }
        for number in [1, 2] {
            let unlimited = Consumer { prefetch: 0, ..consumer(2, number, 1) };
            dispatch.attach(unlimited).expect("nobody is exclusive");
        }
        dispatch.add_ready(40);
        let turn = |dispatch: &Dispatch| dispatch.next_consumer().map(|consumer| consumer.key);
        let (mut stayed, mut passed) = (0, 0);
        while let Some(key) = turn(&dispatch)
            && let Some(head) = dispatch.head(None, Some)
        {
            if dispatch.assign(head, 3, None) {
                assert_eq!(turn(&dispatch), Some(key));
                stayed += 1;
            } else {
                passed += 1;
            }
            assert_eq!(dispatch.free_credit(), u64::MAX, "two have no limit");
        }
        assert!(dispatch.ready() == 0 && stayed > 5 && passed > 5, "{stayed} stayed, {passed} passed");
    }
}
