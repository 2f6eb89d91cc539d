//! What became of one message of one queue, as the committed log has it, and whether its end was
//! lawful.
//!
//! Invariant: a fate changes once from live to settled; counts and times in it come from the log
//! and from deliveries that were seen, never from the engine's own state.

use super::violated;
use broker::QueueId;
use broker::queue::{Overflow, Rules};
use partition::entry::Reason;
use partition::message::{MessageView, Stamp};
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// The message.
    pub id: u64,
    /// The entry that took it in.
    pub committed_at: u64,
    /// The entry that ended it.
    pub settled_at: Option<u64>,
    /// The entry that gave it up: it waits for its dead letter.
    pub dead_at: Option<u64>,
    /// How often it was seen going out.
    pub deliveries: u32,
    /// How often it came back.
    pub acquired: u32,
    /// How often it came back in a way that counts against it.
    pub failed: u32,
    /// Its level, as its queue makes levels of priorities.
    pub level: u8,
    /// When its time is over.
    pub expires_ms: Option<u64>,
    /// When it is due, in a queue of scheduled messages.
    pub due_ms: u64,
    /// It came back and waits: the entry that says so, and until when.
    pub waits: Option<(u64, u64)>,
}

impl Fate {
    /// A message that the entry at `index` took in.
    pub fn new(id: u64, index: u64, message: &MessageView<'_>, rules: &Rules) -> Self {
        let priority = broker::queue::levels::priority_of(message.properties());
        let (mut expires_ms, mut due_ms) = (None, 0);
        match message.stamp() {
            Stamp::None => {}
            Stamp::Due(at) => due_ms = at,
            Stamp::Since(since) => {
                let own = broker::properties::expiration_ms(message.properties());
                expires_ms = own.into_iter().chain(rules.message_ttl_ms).min().map(|ttl| since + ttl);
            }
        }
        Fate {
            id,
            committed_at: index,
            settled_at: None,
            dead_at: None,
            deliveries: 0,
            acquired: 0,
            failed: 0,
            level: rules.levels.level(priority),
            expires_ms,
            due_ms,
            waits: None,
        }
    }

    /// Whether it is there and nobody was given it yet.
    pub fn is_fresh(&self) -> bool {
        self.settled_at.is_none() && self.dead_at.is_none() && self.deliveries == 0
    }
}

/// The end of a message, in an entry.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its queue.
    pub queue: QueueId,
    /// Its number.
    pub seq: u64,
    /// Why.
    pub reason: Reason,
    /// The latest that its leader's clock may have shown.
    pub latest_ms: u64,
    /// It waited for its time, and what is there in its queue may leave no room for it.
    pub is_surplus: bool,
}

impl End {
    /// Panics if a message may not end like that. `live`: messages of its queue that have not
    /// ended.
    pub fn check(&self, rules: &Rules, live: u64, fate: &Fate, settle_asked: &BTreeSet<(QueueId, u64)>) {
        let is_lawful = match self.reason {
            Reason::Purged => true,
            Reason::Acked | Reason::Discarded => fate.deliveries > 0 && settle_asked.contains(&(self.queue, self.seq)),
            Reason::Expired => fate.expires_ms.is_some_and(|at| at <= self.latest_ms),
            // Of those that wait for their time only what a full queue refuses and dead-letters:
            // where a queue drops, they make room, and where it only refuses, they wait for it.
            Reason::MaxLength if fate.due_ms != 0 => {
                let is_refused = rules.overflow == Overflow::RejectPublishDlx && rules.dead_letter.is_some();
                is_refused && self.is_surplus && fate.due_ms <= self.latest_ms
            }
            // What is ready is among what is live. Before its dead letter leaves, it may have to be
            // read; others end meanwhile.
            Reason::MaxLength => {
                let waits = rules.dead_letter.is_some();
                let is_long = rules.length_max.is_some_and(|max| live > max || waits);
                (is_long || rules.length_bytes_max.is_some()) && !rules.overflow.is_reject()
            }
            Reason::DeliveryLimit => rules.delivery_limit.is_some_and(|max| fate.deliveries > 0 && fate.failed >= max),
            Reason::Due => fate.due_ms != 0 && fate.due_ms <= self.latest_ms,
            // What rots here rots on one node only, and the others have it.
            Reason::Damaged => false,
        };
        if !is_lawful {
            let (seq, queue, reason) = (self.seq, self.queue.0, self.reason);
            let checker = match reason {
                Reason::Due => "schedule",
                Reason::Damaged => "set aside",
                _ => "settled",
            };
            violated(
                checker,
                &format!("message {seq} of queue {queue} ended ({reason:?}), and nobody did that: {fate:?}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::queue::DeadLetterRule;
    use broker::topology::Name;
    use std::panic::catch_unwind;

    /// Whether a message that is due at 100 may end by its queue's length at `at_ms`, where there
    /// are letters, and is no room.
    fn may_end(overflow: Overflow, has_letters: bool, at_ms: u64, is_surplus: bool) -> bool {
        let letters = DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once: false };
        let rules =
            Rules { length_max: Some(1), overflow, dead_letter: has_letters.then_some(letters), ..Rules::default() };
        let fate = Fate {
            id: 1,
            committed_at: 1,
            settled_at: None,
            dead_at: None,
            deliveries: 0,
            acquired: 0,
            failed: 0,
            level: 0,
            expires_ms: None,
            due_ms: 100,
            waits: None,
        };
        let end = End { queue: QueueId(1), seq: 1, reason: Reason::MaxLength, latest_ms: at_ms, is_surplus };
        catch_unwind(|| end.check(&rules, 9, &fate, &BTreeSet::new())).is_ok()
    }

    #[test]
    fn what_waits_for_its_time_ends_by_length_only_where_a_full_queue_dead_letters_what_it_refuses() {
        assert!(may_end(Overflow::RejectPublishDlx, true, 100, true));
        assert!(!may_end(Overflow::RejectPublishDlx, true, 100, false), "there is room");
        assert!(!may_end(Overflow::RejectPublishDlx, true, 99, true), "its time has not come");
        assert!(!may_end(Overflow::RejectPublishDlx, false, 100, true), "its letter would go nowhere");
        assert!(!may_end(Overflow::RejectPublish, true, 100, true), "it waits for room");
        assert!(!may_end(Overflow::DropHead, true, 100, true), "it makes room");
    }
}
