//! What a client of real sessions makes of what its connection says.

use super::super::ledger::{Fate, Ledger, Out, To};
use super::super::wire;
use super::super::wire::Heard;
use super::{
    ATTACHED_WITHIN, Asked, Client, Consumer, DIRECT_REPLY_TO, Habit, Held, PASSED_OVER_AFTER, PASSED_OVER_AWAY_AFTER,
    text,
};
use crate::checks::violated;
use crate::schedule::{MS, Micros};
use amqp::Properties;
use amqp::wire::method::Method;
use bytes::Bytes;

impl Consumer {
    /// Whether gets go past it that should wait for it, or find nothing: for longer than it takes to come to the next
    /// leader.
    fn is_passed_for_long(&mut self, now: Micros, ledger: &Ledger) -> bool {
        let since = *self.passed_since.get_or_insert(now);
        let late_until = ledger.late_until.get(&(ledger.node, self.queue.clone())).copied().unwrap_or_default();
        since.max(late_until) + ATTACHED_WITHIN < now
    }
}

impl Client {
    /// Its connection said something.
    pub(in crate::sessions) fn hear(&mut self, bytes: &[u8], now: Micros, ledger: &mut Ledger) {
        for heard in self.wire.take(bytes) {
            match heard.channel {
                0 => self.hear_connection(&heard.method),
                _ if self.is_closing && self.channels.is_empty() => {}
                _ => self.hear_channel(heard, now, ledger),
            }
        }
    }

    pub(super) fn hear_connection(&mut self, method: &Method) {
        match method {
            Method::ConnectionStart { .. } => wire::start_ok().write(&mut self.output, 0),
            Method::ConnectionTune { channel_max, frame_max, .. } => {
                let (channel_max, frame_max) = (*channel_max, *frame_max);
                Method::ConnectionTuneOk { channel_max, frame_max, heartbeat: 0 }.write(&mut self.output, 0);
                let (virtual_host, capabilities) = (Bytes::from_static(b"/"), Bytes::new());
                Method::ConnectionOpen { virtual_host, capabilities, insist: false }.write(&mut self.output, 0);
            }
            Method::ConnectionOpenOk { .. } => self.is_open = true,
            Method::ConnectionCloseOk {} => {}
            // Of a change that nobody decided about, or of a question that nobody answered.
            Method::ConnectionClose { reply_code: 541, reply_text, .. } => {
                // Every disk here writes within half a minute.
                if text(reply_text).contains("does not answer") {
                    violated("answer", &format!("client {} hears nothing of who leads", self.number));
                }
                self.is_closing = true;
                self.channels.clear();
                Method::ConnectionCloseOk {}.write(&mut self.output, 0);
            }
            other => violated("connection", &format!("client {} is told {other:?}", self.number)),
        }
    }

    pub(super) fn hear_channel(&mut self, heard: Heard, now: Micros, ledger: &mut Ledger) {
        let Heard { channel: number, method, properties, body } = heard;
        let Some(channel) = self.channels.get_mut(&number) else {
            violated("answer", &format!("client {} has no channel {number} and hears {method:?}", self.number));
        };
        match method {
            Method::BasicDeliver { consumer_tag, delivery_tag, redelivered, .. } => {
                self.delivered(
                    number,
                    &text(&consumer_tag),
                    (delivery_tag, redelivered),
                    (&properties, &body),
                    now,
                    ledger,
                );
            }
            Method::BasicAck { delivery_tag, multiple } => {
                self.confirmed(number, delivery_tag, multiple, true, ledger);
            }
            Method::BasicNack { delivery_tag, multiple, .. } => {
                self.confirmed(number, delivery_tag, multiple, false, ledger);
            }
            Method::BasicCancel { consumer_tag, .. } => {
                // Unless it was cancelled by both sides at once, nothing comes for it any more.
                let tag = text(&consumer_tag);
                let is_asked = channel.asked.iter().any(|(asked, _)| *asked == Asked::Cancel(tag.clone()));
                if channel.consumers.remove(&tag).is_none() && !is_asked {
                    violated("cancel", &format!("client {} never had consumer {tag}", self.number));
                }
            }
            Method::ChannelClose { reply_code, reply_text, .. } => {
                ledger.figures.channel_errors += 1;
                let is_away = reply_code == 404 && text(&reply_text).contains("home node");
                ledger.figures.homes_away += u64::from(is_away);
                // Where both sides close it at once, both are answered.
                channel.asked.retain(|(asked, _)| *asked == Asked::Close);
                match channel.asked.is_empty() {
                    true => drop(self.channels.remove(&number)),
                    false => {
                        channel.is_open = false;
                        channel.unconfirmed.clear();
                    }
                }
                Method::ChannelCloseOk {}.write(&mut self.output, number);
            }
            Method::BasicGetOk { delivery_tag, redelivered, .. } => {
                let Some((Asked::Get(queue, no_ack, own), _)) = channel.asked.pop_front() else {
                    violated("answer", &format!("client {} asked for no message on channel {number}", self.number));
                };
                ledger.figures.got += 1;
                let id =
                    ledger.came(&Out { body: &body, queue: &queue, redelivered, consumer: None, needs_ack: !no_ack });
                if let Some(consumer) = own.and_then(|tag| channel.consumers.get_mut(&tag))
                    && !ledger.has_full_sockets
                    // It may be on its way to the next leader, but not for ever.
                    && (!ledger.leaders_move || consumer.is_passed_for_long(now, ledger))
                {
                    let what = format!("message {id} was got from {queue}, past {consumer:?} of the same channel");
                    violated("overtaken", &what);
                }
                if !no_ack {
                    let until = now + self.random.between(1, 60) * MS;
                    channel.held.insert(delivery_tag, Held { id, queue, tag: String::new(), until });
                }
            }
            answer => self.answered(number, &answer, ledger),
        }
    }

    pub(super) fn answered(&mut self, number: u16, answer: &Method, ledger: &mut Ledger) {
        let channel = self.channels.get_mut(&number).expect("it was looked up");
        let Some((asked, _)) = channel.asked.pop_front() else {
            violated(
                "answer",
                &format!("client {} asked nothing on channel {number} and hears {answer:?}", self.number),
            );
        };
        let id = answer.id();
        match (&asked, answer) {
            (Asked::Open, Method::ChannelOpenOk { .. }) => channel.is_open = true,
            (Asked::Select, Method::ConfirmSelectOk {} | Method::TxSelectOk {}) => {}
            (Asked::Qos(count, true), Method::BasicQosOk {}) => channel.limit = *count,
            (Asked::Qos(count, false), Method::BasicQosOk {}) => channel.prefetch = *count,
            (Asked::Consume(tag), Method::BasicConsumeOk { consumer_tag }) if *tag == text(consumer_tag) => {}
            (Asked::Cancel(tag), Method::BasicCancelOk { consumer_tag }) if *tag == text(consumer_tag) => {
                channel.consumers.remove(tag);
            }
            (Asked::Get(..), Method::BasicGetEmpty { .. }) | (Asked::Rollback, Method::TxRollbackOk {}) => {}
            // All that came before goes back, also what was on its way.
            (Asked::Recover, Method::BasicRecoverOk {}) => channel.held.clear(),
            (Asked::Commit, Method::TxCommitOk {}) => {
                for id in std::mem::take(&mut channel.committing) {
                    ledger.figures.committed += 1;
                    ledger.message(id).fate = Fate::Confirmed;
                }
            }
            (Asked::Other(class, method), _) if (*class, *method) == (id.class, id.method) => {}
            (Asked::Close, Method::ChannelCloseOk {}) => drop(self.channels.remove(&number)),
            _ => violated("answer", &format!("client {} asked for {asked:?} and hears {answer:?}", self.number)),
        }
    }

    pub(super) fn confirmed(&mut self, number: u16, last: u64, multiple: bool, is_ack: bool, ledger: &mut Ledger) {
        let channel = self.channels.get_mut(&number).expect("it was looked up");
        let first = if multiple { 0 } else { last };
        let gone: Vec<u64> = channel.unconfirmed.range(first..=last).map(|(seq, _)| *seq).collect();
        if gone.last() != Some(&last) {
            let what =
                format!("client {} hears of publish {last} on channel {number}, which waits for no word", self.number);
            violated("confirm", &what);
        }
        for seq in gone {
            let (id, _) = channel.unconfirmed.remove(&seq).expect("it was listed");
            ledger.answered(channel.key, seq, is_ack);
            if !is_ack {
                ledger.figures.nacked += 1;
                continue;
            }
            ledger.figures.confirmed += 1;
            let message = ledger.message(id);
            message.fate = Fate::Confirmed;
            if let To::Queue(queue) = message.to.clone()
                && ledger.kept.contains(&queue)
            {
                let before = channel.confirmed.insert(queue.clone(), seq);
                if before.is_some_and(|before| before > seq) {
                    violated("confirm", &format!("publish {seq} to {queue} is confirmed after {before:?}"));
                }
            }
        }
    }

    pub(super) fn delivered(
        &mut self,
        number: u16,
        tag: &str,
        (delivery_tag, redelivered): (u64, bool),
        (properties, body): (&Bytes, &Bytes),
        now: Micros,
        ledger: &mut Ledger,
    ) {
        ledger.figures.delivered += 1;
        let channel = self.channels.get_mut(&number).expect("it was looked up");
        let Some(consumer) = channel.consumers.get(tag) else {
            violated("cancel", &format!("client {} gets a message for {tag} on channel {number}", self.number));
        };
        if consumer.queue == DIRECT_REPLY_TO {
            return ledger.replied(body, channel.key);
        }
        if let Some(consumer) = channel.consumers.get_mut(tag) {
            consumer.passed_since = None;
        }
        let consumer = &channel.consumers[tag];
        let (queue, needs_ack) = (&consumer.queue, !consumer.no_ack);
        let id = ledger.came(&Out { body, queue, redelivered, consumer: Some(consumer.number), needs_ack });
        let consumed = channel.held.values().filter(|held| !held.tag.is_empty());
        let all = consumed.clone().count();
        let own = consumed.filter(|held| held.tag == tag).count();
        if consumer.no_ack {
            let after = if ledger.leaders_move { PASSED_OVER_AWAY_AFTER } else { PASSED_OVER_AFTER };
            let is_late = channel.full_since.is_some_and(|since| since + after < now) && !ledger.has_full_sockets;
            if is_late && all >= channel.limit.into() {
                let what = format!("a consumer without acks gets message {id} on a channel that holds {all}");
                violated("prefetch", &what);
            }
            return;
        }
        let is_full = |limit: u16, held: usize| limit > 0 && held >= limit.into();
        if is_full(channel.limit, all) || is_full(consumer.prefetch, own) {
            let what =
                format!("{consumer:?} gets message {id}, holds {own}, and its channel {all} of {}", channel.limit);
            violated("prefetch", &what);
        }
        let mut until = now + self.random.between(1, 60) * MS;
        if channel.limit > 0 && channel.key.is_multiple_of(2) {
            // Some take their time, so that the limit is reached and stays so.
            until += 5_000 * MS;
        }
        if channel.limit > 0 && all + 1 >= channel.limit.into() {
            channel.full_since = Some(now);
        }
        let queue = consumer.queue.clone();
        let tag = tag.to_owned();
        channel.held.insert(delivery_tag, Held { id, queue, tag, until });
        let parsed = Properties::parse(properties).expect("they are as somebody encoded them");
        let is_closing = channel.asked.iter().any(|(asked, _)| *asked == Asked::Close);
        if let (Some(reply_to), Some(caller), false) = (parsed.reply_to, parsed.correlation_id, is_closing) {
            let caller = caller.try_into().map(u64::from_be_bytes).expect("a caller names its channel");
            let id = ledger.publish(channel.key, To::Caller(caller), false);
            if channel.habit == Habit::Consumes {
                channel.unconfirmed.insert(channel.next_seq, (id, now));
                channel.next_seq += 1;
            }
            let (exchange, routing_key) = (Bytes::new(), Bytes::copy_from_slice(reply_to));
            let publish = Method::BasicPublish { ticket: 0, exchange, routing_key, mandatory: false, immediate: false };
            wire::publish(&mut self.output, number, &publish, &Properties::default(), &id.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gets_may_go_past_a_consumer_while_something_of_its_way_to_the_next_leader_is_late() {
        let queue = "k.0".to_owned();
        let consumer = || Consumer {
            number: 1,
            queue: queue.clone(),
            prefetch: 0,
            no_ack: false,
            is_cancelled: false,
            passed_since: None,
        };
        let mut ledger = Ledger::default();
        ledger.node = 2;
        let is_passed = |ledger: &Ledger, times: [Micros; 2]| {
            let mut consumer = consumer();
            times.map(|now| consumer.is_passed_for_long(now, ledger))
        };
        assert_eq!(is_passed(&ledger, [5, 5 + ATTACHED_WITHIN]), [false; 2]);
        assert_eq!(is_passed(&ledger, [5, 6 + ATTACHED_WITHIN]), [false, true]);
        // Of another queue, and between other nodes.
        ledger.late_until.extend([((2, "k.1".to_owned()), 9), ((1, queue.clone()), 9)]);
        assert_eq!(is_passed(&ledger, [5, 6 + ATTACHED_WITHIN]), [false, true]);
        ledger.late_until.insert((2, queue.clone()), 9);
        assert_eq!(is_passed(&ledger, [5, 9 + ATTACHED_WITHIN]), [false; 2]);
        assert_eq!(is_passed(&ledger, [5, 10 + ATTACHED_WITHIN]), [false, true]);
    }
}
