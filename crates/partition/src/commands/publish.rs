//! How a leader takes messages in: which of a publish's queues take it, how safe it is to be before its confirm, and
//! into which batches of the entry it goes. Scheduled messages whose time has come are taken in like others.
//!
//! Invariant: a message gets its number in each of its queues here, and is written into the entry in the same step.

use super::{hold_confirm, refuse};
use crate::closing::HeldConfirm;
use crate::command::{Command, Durability, Effect, Level, Message, Publish, Reply, Selective, Target};
use crate::entry::{Reason, TARGETS_MAX};
use crate::leader::{Leader, LeaderQueue};
use crate::machine::scheduled_for;
use crate::message::{MessageView, Stamp};
use crate::partition::{Context, QueuePartition};
use crate::publishers::Standing;
use crate::queue::{Admission, Intake, dead_letters_refused, refused_letter};
use crate::repeats::{are_new_from, confirm_repeat, note_taken, standing};
use broker::queue::levels::{has_priority, priority_of};
use broker::queue::{DedupKey, DedupRule, LevelRule, Rules};
use broker::{ChannelKey, QueueId};
use smallvec::SmallVec;
use std::sync::Arc;

impl QueuePartition {
    /// Takes a message in, or several in a row. False if a queue refused one because it is full.
    pub(super) fn publish(&mut self, publish: &Publish, cx: &mut Context<'_>) -> bool {
        if publish.more.is_some() {
            return self.publish_run(publish, cx);
        }
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let (channel, seq) = (publish.channel, publish.publish_seq);
        if seq != 0 {
            match standing(leader, &self.queues, channel, seq) {
                Standing::New => {}
                Standing::Repeat => return self.answer_repeat(publish, cx),
                Standing::Passed => return self.answer_passed(publish, cx),
            }
        }
        if self.publish_plainly(publish) {
            return true;
        }
        let leader = self.leader.as_deref_mut().expect("it was there above");
        let mut targets = std::mem::take(&mut leader.targets);
        targets.clear();
        let mut level = Level::LeaderWritten;
        let mut selective = false;
        let mut is_known = false;
        let is_timed = broker::properties::has_expiration(&publish.message.properties);
        let mut intake = Intake { is_timed, ..Intake::default() };
        for target in &publish.targets {
            if self.deleted.contains(target.queue) {
                continue;
            }
            let lq = leader
                .queues
                .entry(target.queue)
                .or_insert_with(|| LeaderQueue::of(self.queues.queue(target.queue), self.rules.get(&target.queue)));
            let admit_key = |lq: &LeaderQueue, key| lq.admit_key(key, &self.queues, target.queue, cx.now_ms);
            match lq.admit(target.queue, publish, &mut intake, admit_key, &mut cx.out.effects) {
                Admission::Taken => {}
                Admission::Refused => continue,
                Admission::Repeat => {
                    // Where it goes elsewhere too, it is confirmed no sooner than what it repeats
                    // here.
                    level = level.with(match target.durability {
                        Durability::Level(asked) => asked,
                        Durability::Selective { .. } => Level::Synced,
                    });
                    is_known = true;
                    *leader.repeats.entry(target.queue).or_insert(0) += 1;
                    continue;
                }
            }
            targets.push(target.queue);
            match target.durability {
                Durability::Level(asked) => level = level.with(asked),
                Durability::Selective { value } => {
                    selective = true;
                    level = level.with(Level::Written);
                    // Every sound node names the queue's rule; without one nothing may be at risk.
                    let is_within =
                        |rule: Selective| lq.sink.at_risk.checked_add(value).is_some_and(|at_risk| at_risk <= rule.cap);
                    if !target.selective.is_some_and(is_within) {
                        level = Level::Synced;
                    }
                    if target.selective.is_some() {
                        lq.sink.selective = target.selective;
                    }
                }
            }
        }
        let Intake { is_refused, mut is_timed, key, closing } = intake;
        if targets.is_empty() {
            // Every queue is full, or gone: what is gone is as good as unroutable, and confirmed
            // like that.
            leader.targets = targets;
            match seq {
                0 => {}
                _ if is_refused => cx.out.effects.push(Effect::Refuse { channel, first: seq, count: 1 }),
                // It is as safe as the message that it repeats.
                _ if is_known => confirm_repeat(leader, level, (channel, seq), &mut cx.out.effects),
                _ => cx.out.effects.push(Effect::Confirm { channel, first: seq, count: 1 }),
            }
            if seq != 0 && !is_refused {
                note_taken(leader, (seq, 1));
            }
            return !is_refused;
        }
        let mut stamp = Stamp::None;
        if is_timed || publish.delay_ms > 0 {
            // Today's clock, whatever the log says: an entry of a leader whose clock was ahead must not
            // put off what comes after it.
            let now_ms = cx.now_ms;
            stamp = Stamp::Since(now_ms);
            if publish.delay_ms > 0 {
                is_timed = false;
                stamp = Stamp::Due(now_ms.saturating_add(publish.delay_ms));
                for id in &mut targets {
                    *id = scheduled_for(*id);
                    let made = || LeaderQueue::of(self.queues.queue(*id), None);
                    leader.queues.entry(*id).or_insert_with(made).life.get_or_insert_default();
                }
            }
        }
        targets.sort_unstable();
        if selective && level == Level::Written {
            for target in &publish.targets {
                let (Durability::Selective { value }, Some(rule)) = (target.durability, target.selective) else {
                    continue;
                };
                let Some(lq) = leader.queues.get_mut(&target.queue) else { continue };
                lq.sink.at_risk += value;
                leader.at_risk += u128::from(value);
                leader.values.push((target.queue, value));
                leader.builder.want_sync_within(rule.interval_ms);
            }
        }
        for id in &targets {
            let lq = leader.queues.get_mut(id).expect("made above");
            lq.next_seq += 1;
            if let Some(key) = key {
                lq.note_key(key);
            }
            if is_timed || lq.life.is_some() {
                lq.note_published(is_timed, publish.message.body.len());
            }
            if !lq.sink.published && lq.dispatch.consumers() > 0 {
                lq.sink.published = true;
                leader.published.push(*id);
            }
        }
        let publisher = if seq == 0 { ChannelKey::NOBODY } else { channel };
        if seq != 0 {
            note_taken(leader, (seq, 1));
        }
        if targets.len() > TARGETS_MAX {
            let past = (targets.len() - 1) / TARGETS_MAX * TARGETS_MAX;
            self.publish_widely(&targets[..past], (level, stamp, key), &publish.message, cx);
            targets.drain(..past);
        }
        let leader = self.leader.as_deref_mut().expect("publishing ends no office");
        if key.is_none() && !has_priority(&publish.message.properties) {
            leader.builder.publish(publisher, seq, &targets, &[], &[], level, &publish.message, stamp);
        } else {
            let rules = level_rules(leader, &targets, &publish.message.properties);
            let dedup = if key.is_some() { dedup_rules(leader, &targets) } else { SmallVec::new() };
            leader.builder.publish(publisher, seq, &targets, &rules, &dedup, level, &publish.message, stamp);
        }
        if level.is_on_disk() {
            leader.builder.want_sync();
        }
        leader.targets = targets;
        if is_refused && seq != 0 {
            // One queue refused it: its publisher hears that, though others have it.
            cx.out.effects.push(Effect::Refuse { channel, first: seq, count: 1 });
        } else if seq != 0 && !closing.is_empty() {
            hold_confirm(leader, HeldConfirm { channel, seq, level, closing }, &mut cx.out.effects);
        } else if seq != 0 {
            leader.confirm_at(level, channel, (seq, 1));
        }
        !is_refused
    }

    /// Takes in what most publishes are: those for a single queue that takes all and stays, of messages without a time and
    /// a priority of their own. They are new by their numbers. False, and nothing has happened, for any other.
    #[inline]
    fn publish_plainly(&mut self, publish: &Publish) -> bool {
        let [target] = &publish.targets[..] else { return false };
        let Durability::Level(level) = target.durability else { return false };
        let (message, queue) = (&publish.message, target.queue);
        let is_timed = publish.delay_ms > 0 || broker::properties::has_expiration(&message.properties);
        if is_timed || self.deleted.contains(queue) {
            return false;
        }
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let Some(lq) = leader.queues.get_mut(&queue) else { return false };
        let takes_all = |rules: &Arc<Rules>| rules.take_all() && !has_priority(&message.properties);
        if lq.closing.is_some() || !lq.rules.as_ref().is_none_or(takes_all) {
            return false;
        }
        let count = publish.count();
        lq.next_seq += count;
        lq.note_published(false, publish.body_bytes());
        if !lq.sink.published && lq.dispatch.consumers() > 0 {
            lq.sink.published = true;
            leader.published.push(queue);
        }
        let (channel, seq) = (publish.channel, publish.publish_seq);
        let publisher = if seq == 0 { ChannelKey::NOBODY } else { channel };
        match &publish.more {
            None => leader.builder.publish(publisher, seq, &[queue], &[], &[], level, message, Stamp::None),
            Some(more) => leader.builder.publish_run(publisher, seq, queue, level, message, more),
        }
        if level.is_on_disk() {
            leader.builder.want_sync();
        }
        if seq != 0 {
            note_taken(leader, (seq, count));
            leader.confirm_at(level, channel, (seq, count));
        }
        true
    }

    /// Takes several messages in, at once where nothing is special about them. False if a queue refused one.
    fn publish_run(&mut self, run: &Publish, cx: &mut Context<'_>) -> bool {
        let (channel, first) = (run.channel, run.publish_seq);
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        if (first == 0 || are_new_from(leader, &self.queues, channel, first)) && self.publish_plainly(run) {
            return true;
        }
        let mut are_taken = true;
        run.each(|publish| {
            match self.leader.is_some() {
                true => are_taken &= self.publish(publish, cx),
                // An entry that was full, and went, may have been the last of its office.
                false => refuse(Command::Publish(publish.clone()), Reply::NotLeader, &mut cx.out.effects),
            }
            self.propose_if_full(cx);
        });
        are_taken
    }

    /// Writes a message for more queues than one batch may name, some at a time and in entries of a
    /// usual length. Those are nobody's publish: the rest of its queues, which come behind, carry
    /// the number that is confirmed.
    fn publish_widely(
        &mut self,
        targets: &[QueueId],
        (level, stamp, key): (Level, Stamp, Option<DedupKey>),
        message: &Message,
        cx: &mut Context<'_>,
    ) {
        for some in targets.chunks(TARGETS_MAX) {
            let leader = self.leader.as_deref_mut().expect("publishing ends no office");
            let rules = level_rules(leader, some, &message.properties);
            let dedup = if key.is_some() { dedup_rules(leader, some) } else { SmallVec::new() };
            leader.builder.publish(ChannelKey::NOBODY, 0, some, &rules, &dedup, level, message, stamp);
            if level.is_on_disk() {
                leader.builder.want_sync();
            }
            self.propose_if_full(cx);
        }
    }

    /// Publishes scheduled messages whose time has come, each in one entry with the end of its
    /// wait. Where one finds its queue full, those behind it wait with it; where full queues
    /// dead-letter what they refuse, it is given up instead, and its dead letter leaves with the
    /// entry that says so: an end that the log does not have would come again.
    pub(crate) fn publish_due(&mut self, cx: &mut Context<'_>) {
        self.propose_if_full(cx);
        let leader = self.leader.as_deref_mut().expect("only a leader looks at times");
        let mut full = None;
        for (queue, due, stored) in std::mem::take(&mut leader.due) {
            let leader = self.leader.as_deref().expect("publishing ends no office");
            // While a delete is being decided, or bytes are being counted, what is due waits as
            // before a full queue.
            let state = self.queues.queue(queue);
            let closes = leader.queues.get(&queue).is_some_and(|lq| lq.closing.is_some() || lq.has_uncounted(state));
            let view = MessageView::parse(&stored).expect("partitions hold whole messages");
            let message = Message {
                exchange: stored.slice_ref(view.exchange()),
                routing_key: stored.slice_ref(view.routing_key()),
                properties: broker::properties::delay_over(view.properties()).into(),
                body: view.body_of(&stored),
            };
            let id = scheduled_for(queue);
            if !closes && self.is_surplus(queue, &message, cx.now_ms) {
                let leader = self.leader.as_deref_mut().expect("publishing ends no office");
                let letter = refused_letter(queue, &message);
                leader.letters_bytes += letter.bytes();
                leader.letters.push(letter);
                leader.builder.settle(id, Reason::MaxLength, &[(due.1, 1)]);
                leader.builder.want_sync();
                self.propose_if_full(cx);
                continue;
            }
            let targets = [Target { queue, durability: Durability::Level(Level::Synced), selective: None }];
            let publish = Publish {
                channel: ChannelKey::NOBODY,
                publish_seq: 0,
                term: 0,
                targets: targets.into_iter().collect(),
                delay_ms: 0,
                message,
                more: None,
            };
            let is_in = !closes && full != Some(queue) && self.publish(&publish, cx);
            let leader = self.leader.as_deref_mut().expect("publishing ends no office");
            if is_in {
                leader.builder.settle(id, Reason::Due, &[(due.1, 1)]);
                self.propose_if_full(cx);
            } else if let Some(lq) = leader.queues.get_mut(&id) {
                full = Some(queue);
                lq.not_released(&mut leader.timers, id, due, cx.now_ms);
            }
        }
    }

    /// Whether a message that is due is too much for its queue, which dead-letters what it refuses.
    /// A repeat is not: it is dropped for what is there already.
    fn is_surplus(&mut self, queue: QueueId, message: &Message, now_ms: u64) -> bool {
        if self.deleted.contains(queue) || !self.rules.get(&queue).is_some_and(|rules| dead_letters_refused(rules)) {
            return false;
        }
        let _ = self.touched(queue);
        let lq = self.leader.as_deref().and_then(|leader| leader.queues.get(&queue)).expect("touched above");
        let Some(rules) = &lq.rules else { return false };
        let key = rules.dedup.and_then(|_| broker::properties::dedup_key(&message.properties));
        match key.map_or(Admission::Taken, |key| lq.admit_key(key, &self.queues, queue, now_ms)) {
            Admission::Taken => lq.is_full(rules, message.body.len()),
            by_key => by_key == Admission::Refused,
        }
    }
}

/// How each queue makes a level of the priority that a message names; nothing if it makes no
/// difference to any.
#[inline]
fn level_rules(leader: &Leader, targets: &[QueueId], properties: &[u8]) -> SmallVec<[LevelRule; 1]> {
    if !has_priority(properties) {
        return SmallVec::new();
    }
    let rule = |id| leader.queues.get(id).and_then(|lq| lq.rules.as_ref()).map_or(LevelRule::None, |r| r.levels);
    let rules: SmallVec<[LevelRule; 1]> = targets.iter().map(rule).collect();
    let priority = priority_of(properties);
    let matters = |rule: &LevelRule| rule.level(priority) != rule.default_level();
    if rules.iter().any(matters) { rules } else { SmallVec::new() }
}

/// Which of a message's queues take its key in once.
fn dedup_rules(leader: &Leader, targets: &[QueueId]) -> SmallVec<[Option<DedupRule>; 1]> {
    targets.iter().map(|id| leader.queues.get(id).and_then(|lq| lq.rules.as_ref()).and_then(|r| r.dedup)).collect()
}
