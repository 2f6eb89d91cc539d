//! What partitions say to clients: whether they may say it, and what is known from then on.

use super::messages::{Found, Moment};
use super::{Asked, Checks, id_of, violated};
use crate::client::{is_dead_letter_channel, queue_of};
use crate::node::Said;
use crate::registry::name_of;
use broker::queue::Rules;
use broker::{ChannelKey, QueueId};
use consensus::NodeId;
use partition::message::MessageView;
use partition::{DeadLetter, Delivery, Effect, Reply};

impl Checks {
    /// A partition said this to a client.
    pub fn said(&mut self, node: NodeId, group: usize, said: Said, effect: &Effect) {
        match effect {
            Effect::Confirm { channel, first, count } => {
                for seq in *first..*first + *count {
                    self.confirmed(node, said, *channel, seq);
                }
            }
            // With the office of a leader its consumers end too.
            Effect::Cancelled { .. } if !said.serves => {}
            Effect::Cancelled { queue, .. } => self.ends.cancelled(*queue, said.term),
            Effect::Deliver(delivery) => {
                self.ends.given(delivery.queue, delivery.seq, said.term);
                if self.rule(delivery.queue, |rules| rules.single_active.is_some()) {
                    self.holdings.given(delivery, said.term);
                }
                self.delivered(group, said, delivery);
            }
            Effect::Reply { reply: Reply::Got { delivery, ready }, .. } => {
                self.check_length(delivery.queue, *ready);
                self.delivered(group, said, delivery);
            }
            Effect::Reply { request, reply: Reply::Stat { ready, .. }, .. } => {
                self.check_length(queue_of(*request), *ready);
            }
            Effect::Refuse { channel, first, count } | Effect::Returned { channel, first, count, .. }
                if !is_dead_letter_channel(*channel) =>
            {
                (*first..*first + *count).for_each(|seq| self.refused(group, said, *channel, seq));
            }
            Effect::Unused { queue } => _ = self.used_ms.insert(*queue, said.now_ms),
            Effect::Lapsed { queue } => self.lapsed(*queue, said.now_ms),
            Effect::DeadLetter(letter) => self.letter(group, said, letter),
            _ => {}
        }
    }

    pub(super) fn rule(&self, queue: QueueId, asks: impl Fn(&Rules) -> bool) -> bool {
        self.expected.rules_of(queue).is_some_and(|rules| asks(rules))
    }

    /// Nobody sees a queue that drops what is too much beyond its length.
    pub(super) fn check_length(&self, queue: QueueId, ready: u64) {
        // Under a limit of bytes too, what goes may have to be read first.
        let is_beyond = |rules: &Rules| {
            !rules.overflow.is_reject()
                && rules.length_bytes_max.is_none()
                && rules.length_max.is_some_and(|m| ready > m)
        };
        if self.rule(queue, is_beyond) {
            violated("limit", &format!("{ready} messages are ready in queue {}", queue.0));
        }
    }

    /// A leader refused a publish: one of its queues may be full.
    pub(super) fn refused(&mut self, group: usize, said: Said, channel: ChannelKey, seq: u64) {
        let Some(id) = self.by_number.get(&(channel, seq)) else { return };
        if said.serves && self.models[group].has_passed(channel, seq) {
            // It comes again, and its leader does not know whether it was taken in.
            return;
        }
        let is_nowhere = said.serves && self.published[*id as usize].targets.len() == 1;
        // Where a refusal is an answer, it does not come again.
        if self.expected.gives_up[group] && (is_nowhere || !said.led_before && !said.leads) {
            for queue in &self.published[*id as usize].targets {
                *self.aimed.get_mut(queue).expect("it was counted") -= 1;
            }
        }
        if !said.serves {
            // Nobody promises anything.
            return;
        }
        self.figures.refused += 1;
        let may_be_full = |queue: &QueueId| {
            let aimed = self.aimed.get(queue).copied().unwrap_or(0);
            let others = aimed - u64::from(!is_nowhere);
            let there = others.saturating_sub(self.models[group].ended(*queue));
            let is_full = |rules: &Rules| {
                let is_long = rules.length_bytes_max.is_some() || rules.length_max.is_some_and(|max| there >= max);
                rules.overflow.is_reject() && is_long
            };
            self.rule(*queue, is_full)
        };
        if !self.published[*id as usize].targets.iter().any(may_be_full) {
            violated("limit", &format!("message {id} was refused, and none of its queues can be full"));
        }
    }

    /// A leader says that a queue was not used for as long as its rules say.
    pub(super) fn lapsed(&mut self, queue: QueueId, now_ms: u64) {
        self.figures.lapsed += 1;
        let expires_ms = self.expected.rules_of(queue).and_then(|rules| rules.expires_ms).unwrap_or(u64::MAX);
        let used_ms = self.used_ms.insert(queue, now_ms).unwrap_or(0);
        if now_ms + self.expected.slack_ms < used_ms.saturating_add(expires_ms) {
            let what = format!("queue {} was used at {used_ms} and lapsed at {now_ms}", queue.0);
            violated("lapse", &what);
        }
    }

    /// A dead letter left: at most once, its message has ended in the log before; at least once, it
    /// may leave again.
    pub(super) fn letter(&mut self, group: usize, said: Said, letter: &DeadLetter) {
        let (queue, seq) = (letter.queue, letter.seq);
        self.figures.dead_letters += 1;
        let id = MessageView::parse(&letter.message).and_then(|view| id_of(view.body()));
        let Some(id) = id else { violated("published", &format!("a dead letter of queue {} is of nothing", queue.0)) };
        if let Some(grave) = self.expected.grave_of(queue) {
            self.awaited.entry((grave, id)).or_default().0 += 1;
        }
        self.models[group].check_gone(queue, said.applied_before.0, || format!("a dead letter of message {seq}"));
        if seq == 0 {
            // It was refused, so it never had a number.
            return;
        }
        let is_first = self.letters.insert((queue, seq));
        if letter.wants_answer {
            return;
        }
        if !is_first {
            violated("dead letter", &format!("message {seq} of queue {} was dead-lettered twice", queue.0));
        }
        if !self.models[group].is_settled(queue, seq) {
            violated("dead letter", &format!("message {seq} of queue {} was dead-lettered and is there", queue.0));
        }
    }

    pub(super) fn confirmed(&mut self, node: NodeId, said: Said, channel: ChannelKey, seq: u64) {
        if is_dead_letter_channel(channel) {
            return;
        }
        let Some(&id) = self.by_number.get(&(channel, seq)) else {
            violated(
                "confirm",
                &format!("publish {seq} of channel {} was confirmed and never published", channel.number()),
            );
        };
        let group = self.published[id as usize].group;
        let is_excused = |queue: QueueId| self.ends.excuses(queue);
        let repeats = self.models[group].knows(&self.published[id as usize], &is_excused);
        let targets = &self.published[id as usize].targets;
        let is_nowhere = targets.iter().all(|queue| is_excused(*queue));
        // What one of its queues asked for counts only as long as that is there.
        let asks_less = targets.iter().any(|queue| is_excused(*queue));
        let published = &mut self.published[id as usize];
        if std::mem::replace(&mut published.confirmed, true) {
            return;
        }
        self.figures.confirmed += 1;
        if published.committed {
            return;
        }
        if is_nowhere {
            self.figures.nowhere += 1;
            published.is_nowhere = true;
            return;
        }
        if repeats {
            self.figures.repeats += 1;
            published.repeats = true;
            return;
        }
        if published.asked == Asked::Synced && published.key.is_some() && !asks_less {
            violated("dedup", &format!("message {id} was confirmed, is not committed, and repeats nothing"));
        }
        if published.asked == Asked::Synced && !asks_less {
            violated("confirm", &format!("message {id} was confirmed as synced and is not committed"));
        }
        self.note_originals(node, said, id);
        let is_of_leader = matches!(self.published[id as usize].asked, Asked::LeaderWritten | Asked::LeaderSynced);
        if is_of_leader && self.confirmed_alone(node, id) {
            return;
        }
        self.at_risk.insert(id);
        let majority = self.voters[group].count_ones() / 2 + 1;
        let published = &mut self.published[id as usize];
        published.majority = Some(majority).filter(|majority| *majority < self.majority);
        let published = &self.published[id as usize];
        if let Asked::Selective { .. } = published.asked {
            let targets = published.targets.clone();
            targets.into_iter().for_each(|queue| self.check_cap(queue));
        }
    }

    pub(super) fn check_cap(&self, queue: QueueId) {
        let Some(&cap) = self.expected.caps.get(&name_of(queue)) else { return };
        let value = |id: &u64| {
            let published = &self.published[*id as usize];
            match published.asked {
                Asked::Selective { value } if published.targets.contains(&queue) && !self.ends.excuses(queue) => value,
                _ => 0,
            }
        };
        let at_risk: u64 = self.at_risk.iter().map(value).sum();
        if at_risk > cap {
            violated("cap", &format!("a value of {at_risk} is at risk in queue {}, where {cap} is the cap", queue.0));
        }
    }

    pub(super) fn delivered(&mut self, group: usize, said: Said, delivery: &Delivery) {
        self.figures.delivered += 1;
        self.figures.redelivered += u64::from(delivery.redelivered);
        let id = self.identify(delivery);
        self.check_wait(delivery, id);
        if !delivery.needs_ack {
            self.settle_asked.insert((delivery.queue, delivery.seq));
        }
        self.used_ms.insert(delivery.queue, said.now_ms);
        if !delivery.redelivered {
            // In the order of the queue, that is, among those of one priority.
            let level = self.level_of(delivery);
            let last = self.order.entry((delivery.queue, level, said.term)).or_insert(0);
            if delivery.seq <= *last {
                let (queue, seq) = (delivery.queue.0, delivery.seq);
                violated("order", &format!("message {seq} of queue {queue} went out after {last}"));
            }
            *last = delivery.seq;
        }
        let at = Moment {
            term: said.term,
            applied: said.applied.0,
            applied_before: said.applied_before.0,
            latest_ms: said.latest_ms,
            now_ms: said.now_ms,
        };
        if let Some(Found::Delivered { queue, id, redelivered }) = self.models[group].delivered(delivery, id, at) {
            self.flag(queue, id, redelivered);
        }
    }

    pub(super) fn level_of(&self, delivery: &Delivery) -> u8 {
        let view = MessageView::parse(&delivery.message).expect("it was identified");
        let priority = broker::queue::levels::priority_of(view.properties());
        self.expected.rules_of(delivery.queue).map_or(0, |rules| rules.levels.level(priority))
    }

    /// Which message a delivery is of; it must be one that was published, to this queue, with these
    /// bytes.
    pub(super) fn identify(&self, delivery: &Delivery) -> u64 {
        let what = || format!("message {} of queue {}", delivery.seq, delivery.queue.0);
        let Some(view) = MessageView::parse(&delivery.message) else {
            violated("published", &format!("{} cannot be read", what()));
        };
        let id = id_of(view.body());
        match id.and_then(|id| self.published.get(id as usize)) {
            Some(p)
                if p.body[..] == *view.body()
                    && p.targets.iter().any(|target| self.expected.leads_to(*target, delivery.queue)) =>
            {
                id.expect("it was found")
            }
            _ => violated("published", &format!("{} was never published there", what())),
        }
    }
}
