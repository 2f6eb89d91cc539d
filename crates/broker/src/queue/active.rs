//! Single active consumer: which of a queue's consumers gets its messages while the others wait in
//! line.
//!
//! Invariant: the next one is chosen when the one before it holds nothing any more, so that no
//! message overtakes one that went out earlier. The line is by priority, then by who came first.
//! Leader-local like all of dispatch: with a leader go its consumers, and those that come to the
//! next one stand in line anew. Who holds something of the leader before stays the active one, or else who was
//! given the newest message by it.

use crate::ids::ConsumerKey;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How a queue with a single active consumer chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleActive {
    /// A consumer of higher priority takes the place of an active one as soon as that holds nothing
    /// (quorum queues); otherwise priorities count only when the place is free (classic queues).
    pub preempts: bool,
}

/// A place in the line: the priority and when it came.
type Place = (i32, u64);

/// Who is active, and who waits.
#[derive(Debug)]
pub(super) struct ActiveConsumer {
    rule: SingleActive,
    active: Option<(Place, ConsumerKey)>,
    /// Everyone attached, the active one included: by priority, highest first, then as they came.
    line: BTreeMap<(Reverse<i32>, u64), ConsumerKey>,
    last: u64,
    /// Up to where a consumer was given messages by earlier leaders, of all that said it; `None` once this leader gave some.
    newest: Option<u64>,
}

impl ActiveConsumer {
    pub(super) fn new(rule: SingleActive) -> Self {
        ActiveConsumer { rule, active: None, line: BTreeMap::new(), last: 0, newest: Some(0) }
    }

    /// Whether a consumer that was given messages up to `past` by an earlier leader was the active one there, as far as all
    /// say until now.
    pub(super) fn was_active(&mut self, past: u64) -> bool {
        let is_newest = self.newest.is_some_and(|newest| past > newest);
        if is_newest {
            self.newest = Some(past);
        }
        is_newest
    }

    /// Messages go out: who was active before is of the past.
    #[inline]
    pub(super) fn note_given(&mut self) {
        self.newest = None;
    }

    pub(super) fn active(&self) -> Option<ConsumerKey> {
        self.active.map(|(_, key)| key)
    }

    /// A consumer comes; returns its place.
    pub(super) fn join(&mut self, key: ConsumerKey, priority: i32) -> Place {
        self.last += 1;
        self.line.insert((Reverse(priority), self.last), key);
        (priority, self.last)
    }

    /// The consumer of this place goes.
    pub(super) fn leave(&mut self, (priority, at): Place) {
        self.line.remove(&(Reverse(priority), at));
    }

    /// A consumer in line was the active one of an earlier leader, and is it here. Gives the one before.
    pub(super) fn claim(&mut self, place: Place, key: ConsumerKey) -> Option<ConsumerKey> {
        self.active.replace((place, key)).map(|(_, before)| before)
    }

    /// Settles who is active; `holds`: the active one, attached or cancelled, has unacked messages.
    /// Returns whether who is active now may take more.
    pub(super) fn choose(&mut self, holds: bool) -> bool {
        let first = self.line.first_key_value().map(|((priority, at), key)| ((priority.0, *at), *key));
        let stays = self.active.is_some_and(|((priority, at), _)| {
            let is_there = self.line.contains_key(&(Reverse(priority), at));
            is_there && (!self.rule.preempts || first.is_some_and(|((highest, _), _)| highest == priority))
        });
        if stays {
            return true;
        }
        if self.active.is_some() && holds {
            return false;
        }
        self.active = first;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ChannelKey;
    use crate::queue::{Consumer, Dispatch};

    fn key(number: u32) -> ConsumerKey {
        ConsumerKey { channel: ChannelKey(7), number }
    }

    fn consumer(number: u32) -> Consumer {
        let (no_ack, exclusive, granted_only) = (false, false, false);
        Consumer { key: key(number), prefetch: 4, no_ack, exclusive, priority: 0, granted_only }
    }

    #[test]
    fn the_first_of_the_highest_priority_is_next_once_the_old_one_holds_nothing() {
        let mut consumers = ActiveConsumer::new(SingleActive { preempts: false });
        let mut places = Vec::new();
        for (number, priority) in [(1, 0), (2, 5), (3, 5), (4, -1)] {
            places.push(consumers.join(key(number), priority));
            assert!(consumers.choose(true));
            assert_eq!(consumers.active(), Some(key(1)), "nobody is pushed aside");
        }
        consumers.leave(places[0]);
        assert!(!consumers.choose(true));
        assert_eq!(consumers.active(), Some(key(1)), "it still holds messages");
        assert!(consumers.choose(false));
        assert_eq!(consumers.active(), Some(key(2)));
    }

    #[test]
    fn a_higher_priority_takes_the_place_where_the_rule_says_so() {
        let mut consumers = ActiveConsumer::new(SingleActive { preempts: true });
        consumers.join(key(1), 0);
        consumers.choose(false);
        consumers.join(key(2), 0);
        assert!(consumers.choose(true), "an equal waits");
        let third = consumers.join(key(3), 1);
        assert!(!consumers.choose(true), "the active one takes nothing more");
        consumers.leave(third);
        assert!(consumers.choose(true), "and goes on when the other left");
        consumers.join(key(4), 1);
        assert!(consumers.choose(false));
        assert_eq!(consumers.active(), Some(key(4)));
    }

    #[test]
    fn who_was_given_the_newest_message_by_the_leader_before_is_the_active_one_until_others_are_given_some() {
        let mut dispatch = Dispatch::new(21, 31, 10);
        dispatch.set_single_active(SingleActive { preempts: true });
        (1..=4).for_each(|number| dispatch.attach(consumer(number)).expect("nobody is exclusive"));
        dispatch.hold(key(2), 15, 0, None, Some);
        assert_eq!(dispatch.active(), Some(key(2)));
        dispatch.hold(key(3), 21, 0, None, Some);
        dispatch.hold(key(4), 20, 0, None, Some);
        assert_eq!(dispatch.active(), Some(key(3)));
        let head = dispatch.head(None, Some).expect("one is ready");
        dispatch.assign(head, 1, None);
        dispatch.hold(key(1), 30, 0, None, Some);
        assert_eq!(dispatch.active(), Some(key(3)));
        let mut taken = Vec::new();
        dispatch.release(key(3), head.seq, 1, &mut taken);
        dispatch.hold(key(1), 30, 0, None, Some);
        assert_eq!(dispatch.active(), Some(key(3)), "it came too late");
        // Who holds something comes before all of them.
        let mut dispatch = Dispatch::new(1, 31, 30);
        dispatch.set_single_active(SingleActive { preempts: true });
        (1..=2).for_each(|number| dispatch.attach(consumer(number)).expect("nobody is exclusive"));
        dispatch.hold(key(2), 3, 1, None, Some);
        dispatch.hold(key(1), 20, 0, None, Some);
        assert_eq!(dispatch.active(), Some(key(2)));
    }

    #[test]
    fn who_holds_something_of_the_leader_before_is_the_active_one_unless_another_holds_some_of_it() {
        let mut dispatch = Dispatch::new(1, 21, 20);
        dispatch.set_single_active(SingleActive { preempts: true });
        dispatch.attach(consumer(2)).expect("nobody is exclusive");
        dispatch.attach(consumer(1)).expect("nobody is exclusive");
        assert_eq!(dispatch.active(), Some(key(2)), "it came first");
        dispatch.hold(key(1), 1, 3, None, Some);
        assert_eq!(dispatch.active(), Some(key(1)));
        let next = dispatch.next_consumer().map(|consumer| consumer.key);
        let head = dispatch.head(None, Some).expect("one is ready");
        assert_eq!((next, head.seq), (Some(key(1)), 4));
        dispatch.assign(head, 1, None);
        assert!(dispatch.next_consumer().is_none(), "its prefetch is used up, and the other waits");
        dispatch.hold(key(2), 5, 2, None, Some);
        assert_eq!(dispatch.active(), Some(key(1)), "nobody takes the place of one that holds something");
        dispatch.hold(key(2), 1, 1, None, Some);
        assert_eq!(dispatch.active(), Some(key(1)), "what is in another one's hands is no claim");
    }
}
