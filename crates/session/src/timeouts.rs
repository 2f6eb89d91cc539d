//! Consumer timeouts: a consumer that holds a message for too long is cancelled, and what it holds
//! goes back to its queue.
//!
//! Nothing is noted when a message is delivered. Delivery tags only grow on a channel, so a mark of
//! the last tag at a time tells of every delivery at or below it that it is at least so old.
//! Invariant: a consumer is cancelled only for a message that it holds for its timeout or longer,
//! and at most an eighth of it and one look later.

use super::channel::{RequestKind, State};
use super::{Client, Cx, Host, NEVER, Session};
use amqp::{ChannelError, ChannelId, MethodId, Millis, ReplyCode};
use broker::ConsumerKey;
use partition::command::EVERYTHING;
use partition::{Command, Disposition};
use std::collections::VecDeque;

/// A timeout is divided into so many marks.
const MARKS: Millis = 8;
/// Consumers are looked at no more often, and, with the default of half an hour, once a minute.
const LOOK_MS_MIN: Millis = 100;
const LOOK_MS_MAX: Millis = 60_000;

/// How long one consumer has held what it holds.
#[derive(Clone, Debug)]
pub(super) struct Aging {
    timeout_ms: Millis,
    /// The channel's last delivery tag at a time, oldest first; at most `MARKS` and one.
    marks: VecDeque<(Millis, u64)>,
}

impl Aging {
    pub(super) fn new(timeout_ms: Millis) -> Self {
        Aging { timeout_ms, marks: VecDeque::new() }
    }

    fn look_every_ms(&self) -> Millis {
        (self.timeout_ms / MARKS).clamp(LOOK_MS_MIN, LOOK_MS_MAX)
    }

    /// Notes what is outstanding now: the consumer's oldest tag, and the channel's last one. True
    /// if the oldest has been out for too long.
    fn look(&mut self, now: Millis, oldest: Option<u64>, last: u64) -> bool {
        let Some(oldest) = oldest else {
            self.marks.clear();
            return false;
        };
        while self.marks.front().is_some_and(|(_, tag)| *tag < oldest) {
            self.marks.pop_front();
        }
        if self.marks.front().is_some_and(|(at, _)| at + self.timeout_ms <= now) {
            return true;
        }
        if self.marks.back().is_none_or(|(at, _)| at + self.timeout_ms / MARKS <= now) {
            self.marks.push_back((now, last));
        }
        false
    }
}

impl Session {
    /// Has consumers looked at in time.
    pub(super) fn watch(&mut self, aging: &Aging, now: Millis) {
        self.look_at = self.look_at.min(now + aging.look_every_ms());
    }

    /// Looks at every consumer that has a timeout.
    pub(super) fn look_at_consumers(&mut self, cx: &mut Cx<'_, impl Host>, now: Millis) {
        let mut next = NEVER;
        for at in 0..self.channels.len() {
            let channel = &mut self.channels[at];
            if channel.failed {
                continue;
            }
            let (id, mut late) = (channel.id, Vec::new());
            // Of many it is looked at once what is outstanding, and not once for each.
            let of_each = (channel.consumers.places() > 1).then(|| cx.client.oldest_unacked_of_each(id));
            for consumer in channel.consumers.iter_mut() {
                let is_on = matches!(consumer.state, State::Starting | State::Active);
                let Some(aging) = consumer.aging.as_mut().filter(|_| is_on) else { continue };
                next = next.min(now + aging.look_every_ms());
                let oldest = match &of_each {
                    Some(of_each) => of_each.get(&consumer.number).copied(),
                    None => cx.client.oldest_unacked(id, consumer.number),
                };
                if aging.look(now, oldest, cx.client.last_delivery_tag(id)) {
                    late.push((consumer.number, aging.timeout_ms));
                }
            }
            for (number, timeout_ms) in late {
                self.time_out(at, number, timeout_ms, cx);
            }
        }
        self.look_at = next;
    }

    /// Cancels a consumer and has everything that it holds go back. It does not count against the
    /// messages.
    fn time_out(&mut self, at: usize, number: u32, timeout_ms: Millis, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let id = channel.id;
        tracing::warn!(peer = %self.peer, channel = id.number(), timeout_ms, "a consumer held a message for too long");
        if !cx.client.knows_cancel() {
            return self.fail(at, timed_out(id, timeout_ms), cx);
        }
        let found = channel.consumer_at(number).expect("it was there a line ago");
        let consumer = &mut channel.consumers[found];
        consumer.state = State::Stopping;
        (consumer.aging, consumer.is_timed_out) = (None, true);
        let (queue, partition, tag) = (consumer.queue, consumer.partition, consumer.tag.clone());
        let key = ConsumerKey { channel: channel.key, number };
        let request = RequestKind::Replaced(number.into()).id();
        cx.host.push(partition, Command::Cancel { queue, consumer: key, request });
        // Everything that it holds, whatever the numbers; what the client acks later is not passed on.
        let all = Command::Settle { queue, holder: key, first: 0, count: EVERYTHING, outcome: Disposition::Nack };
        cx.host.push(partition, all);
        cx.client.cancel_notify(id, &tag);
    }
}

/// What a client that knows no cancel notification gets instead: the whole channel ends, as in
/// RabbitMQ before 4.3.
fn timed_out(channel: ChannelId, timeout_ms: Millis) -> ChannelError {
    let text = format!(
        "delivery acknowledgement on channel {channel} timed out. Timeout value used: {timeout_ms} ms. This timeout value \
         can be configured, see consumer_timeout_ms"
    );
    ChannelError { code: ReplyCode::PreconditionFailed, text, method: MethodId::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every tenth of a second at a consumer whose oldest tag and the channel's last one are
    /// `tags(time)`.
    fn late_at(timeout_ms: Millis, until: Millis, tags: impl Fn(Millis) -> (Option<u64>, u64)) -> Option<Millis> {
        let mut aging = Aging::new(timeout_ms);
        (0..until).step_by(100).find(|now| {
            let (oldest, last) = tags(*now);
            let is_late = aging.look(*now, oldest, last);
            assert!(aging.marks.len() <= MARKS as usize + 2);
            is_late
        })
    }

    #[test]
    fn a_message_that_stays_is_late_after_the_timeout_and_an_eighth_at_most() {
        let late = late_at(8_000, 60_000, |now| (Some(7).filter(|_| now >= 1_050), 7 + now / 100));
        assert!(late.is_some_and(|at| (9_050..=10_150).contains(&at)), "{late:?}");
    }

    #[test]
    fn a_consumer_that_acks_is_never_late() {
        assert_eq!(late_at(8_000, 600_000, |now| (Some(now / 100 - now / 100 % 70), now / 100)), None);
        assert_eq!(late_at(8_000, 600_000, |now| (None, now)), None);
    }
}
