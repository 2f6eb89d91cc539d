//! What a leader does with each command: take in, attach, settle, answer. Nothing here is visible
//! to others before the entry that carries it is committed, except what is leader-local.

use crate::closing::{Closing, HeldConfirm};
use crate::command::{
    Command, Disposition, Durability, Effect, Level, Message, Publish, Reply, RequestId, Selective, Target,
};
use crate::damage::next_sound;
use crate::early::held_bytes;
use crate::entry::{EntryBuilder, Reason, TARGETS_MAX};
use crate::leader::{Leader, LeaderQueue};
use crate::life::Life;
use crate::machine::scheduled_for;
use crate::message::{MessageView, Stamp};
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use crate::publishers::{Seen, Standing};
use crate::queue::{Admission, Answer, Intake, Waiting, dead_letters_refused, note_use, refused_letter};
use crate::repeats::{confirm_repeat, note_taken, standing};
use broker::queue::levels::{has_priority, priority_of};
use broker::queue::{Consumer, DedupKey, DedupRule, Dispatch, LevelRule, Levels, QueueState, Rules, SeqRanges};
use broker::{ChannelKey, ConsumerKey, QueueId};
use smallvec::SmallVec;
use std::sync::Arc;

/// A limit of bytes up to which, and messages up to which, publishes wait until a queue has counted
/// what it has: as much as is read in a fraction of a second. The other queues of the partition
/// wait meanwhile.
const COUNTED_FIRST_MAX: (u64, u64) = (64 << 20, 16_384);

/// Bodies of commands that wait for a count; beyond, they do not wait for it.
const POSTPONED_BYTES_MAX: usize = 1 << 20;

/// Keeps a confirm until the queues that it waits for are decided about. Confirms it where none of
/// them waits any more, no earlier than what was taken in with it is safe.
fn hold_confirm(leader: &mut Leader, held: HeldConfirm, effects: &mut Vec<Effect>) {
    if let Some(held) = Closing::hold(&mut leader.queues, held) {
        confirm_repeat(leader, held.level, (held.channel, held.seq), effects);
    }
}

fn raise_counts(lq: &mut LeaderQueue, state: Option<&QueueState<Place>>, first: u64, count: u64, counts_against: bool) {
    for seq in first..first + count {
        let counts = lq.sink.counts.entry(seq).or_insert_with(|| state.map(|s| s.counts_of(seq)).unwrap_or_default());
        counts.acquired += 1;
        counts.delivery += u32::from(counts_against);
    }
}

fn forget_counts(lq: &mut LeaderQueue, first: u64, count: u64) {
    if !lq.sink.counts.is_empty() {
        let settled: Vec<u64> = lq.sink.counts.range(first..first + count).map(|(seq, _)| *seq).collect();
        for seq in settled {
            lq.sink.counts.remove(&seq);
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

/// Of the messages in `back`, which were just put back: those that came back too often are given
/// up, those that have to wait do so; the others stay in `back`. Whatever is given up does not
/// count towards the queue's bytes again.
fn back_by_rules(
    lq: &mut LeaderQueue,
    builder: &mut EntryBuilder,
    id: QueueId,
    counts_against: bool,
    back: &mut Vec<(u64, u64)>,
    (levels, now_ms): (Option<&Levels>, u64),
) {
    let rules = lq.rules.clone().expect("asked before");
    if rules.delivery_limit.is_none() && rules.retry.is_none() {
        return back.iter().for_each(|(first, count)| lq.note_released(*first, *count, true));
    }
    let mut kept = SeqRanges::new();
    for seq in back.drain(..).flat_map(|(first, count)| first..first + count) {
        let counts = lq.sink.counts.get(&seq).copied().unwrap_or_default();
        if counts_against && rules.delivery_limit.is_some_and(|limit| counts.delivery > limit) {
            lq.dispatch.drop_returned(seq, levels);
            lq.note_released(seq, 1, false);
            lq.sink.counts.remove(&seq);
            lq.give_up(builder, id, seq, Reason::DeliveryLimit, None);
            continue;
        }
        lq.note_released(seq, 1, true);
        if let Some(until_ms) = lq.retry_until(counts_against, counts.acquired, now_ms) {
            lq.dispatch.drop_returned(seq, levels);
            lq.wait_until(until_ms, seq);
            builder.retry(id, counts_against, until_ms, &[(seq, 1)]);
        } else {
            kept.insert(seq);
        }
    }
    back.extend(kept.iter());
}

/// Answers what wants an answer for a member that carries out nothing, as it does not lead or is
/// damaged. A publish for the leader of one term is given back where nobody leads.
pub fn refuse(command: Command, reply: Reply, effects: &mut Vec<Effect>) {
    let (channel, request) = match command {
        Command::Publish(Publish { publish_seq: 0, .. }) => return,
        Command::Publish(Publish { channel, publish_seq: first, term, .. }) => {
            return effects.push(match reply {
                Reply::NotLeader if term != 0 => Effect::Returned { channel, first, count: 1, term },
                _ => Effect::Refuse { channel, first, count: 1 },
            });
        }
        Command::Part { channel } => return effects.push(Effect::Parted { channel }),
        Command::Consume { consumer, request, .. } => (consumer.key.channel, request),
        Command::Cancel { consumer, request, .. } => (consumer.channel, request),
        Command::Get { channel, request, .. }
        | Command::Purge { channel, request, .. }
        | Command::Stat { channel, request, .. }
        | Command::Close { channel, request, .. }
        | Command::Mark { channel, request }
        | Command::Sync { channel, request } => (channel, request),
        Command::Settle { .. }
        | Command::Hold { .. }
        | Command::Configure { .. }
        | Command::DeadLetterAnswered { .. }
        | Command::Detach { .. }
        | Command::Reopen { .. }
        | Command::Delete { .. }
        | Command::Stall { .. }
        | Command::Grant { .. } => return,
    };
    effects.push(Effect::Reply { channel, request, reply });
}

impl QueuePartition {
    /// Takes a command in. Its effects come with this loop's [`QueuePartition::flush`] or later.
    pub fn command(&mut self, command: Command, cx: &mut Context<'_>) {
        match command {
            Command::Configure { queue, rules } => return self.configure(queue, rules),
            Command::Delete { queue } => self.forget(queue),
            _ => {}
        }
        self.carry_out_early(cx);
        let Some(leader) = self.leader.as_deref() else { return self.wait_for_office(command, cx) };
        if let Command::Publish(publish) = &command
            && publish.term != 0
            && publish.term != leader.term.0 as u32
        {
            return refuse(command, Reply::NotLeader, &mut cx.out.effects);
        }
        if !self.known.has_all_of(&command) {
            // The next leader may know them no sooner.
            let reply = if matches!(command, Command::Publish(_)) { Reply::Unavailable } else { Reply::NotLeader };
            return refuse(command, reply, &mut cx.out.effects);
        }
        // The topology decides for itself, not in a channel's order.
        let is_decision = matches!(command, Command::Delete { .. } | Command::Reopen { .. });
        let waits = !leader.postponed.is_empty() && !is_decision;
        if waits || self.limits_bytes && self.must_count_for(&command) {
            self.postpone(command);
            self.carry_out_postponed(cx);
            return;
        }
        // Looked at where they are: commands are large, and handing them on would copy them for each message.
        match &command {
            Command::Publish(publish) => {
                self.publish(publish, cx);
                self.propose_if_full(cx);
            }
            // Neither a queue's end nor a new leader's wait for holders is anything to it.
            &Command::Settle { queue, holder, first, count, outcome } => {
                self.settle(queue, holder, first, count, outcome, cx.now_ms)
            }
            _ => self.carry_out(command, cx),
        }
    }

    fn postpone(&mut self, command: Command) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        leader.postponed_bytes += held_bytes(&command);
        leader.postponed.push_back(command);
    }

    /// Carries out what waited until a queue knew how many bytes it has, in its order. False if
    /// there was nothing to do.
    pub(crate) fn carry_out_postponed(&mut self, cx: &mut Context<'_>) -> bool {
        let mut did = false;
        while let Some(command) = self.leader.as_deref_mut().and_then(|leader| leader.postponed.pop_front()) {
            if self.must_count_for(&command) {
                let leader = self.leader.as_deref_mut().expect("it was there above");
                leader.postponed.push_front(command);
                break;
            }
            let leader = self.leader.as_deref_mut().expect("it was there above");
            leader.postponed_bytes -= held_bytes(&command);
            self.carry_out(command, cx);
            did = true;
        }
        did
    }

    /// Whether a publish goes to a queue with a limit of bytes that has not counted yet what was
    /// there before, as after a restart. Until then nobody knows whether it is full. Where the
    /// count takes long, or too much waits, it does not wait.
    fn must_count_for(&mut self, command: &Command) -> bool {
        let Command::Publish(publish) = command else { return false };
        let leader = self.leader.as_deref().expect("only a leader takes commands");
        if leader.postponed_bytes > POSTPONED_BYTES_MAX && !leader.postponed.is_empty() {
            return false;
        }
        let mut must = false;
        for target in &publish.targets {
            let limits = |rules: &Arc<Rules>| {
                rules.length_bytes_max.is_some_and(|max| max <= COUNTED_FIRST_MAX.0) && rules.overflow.is_reject()
            };
            let is_short = |state: &QueueState<Place>| state.runs().live() <= COUNTED_FIRST_MAX.1;
            if publish.delay_ms == 0
                && !self.deleted.contains(target.queue)
                && self.rules.get(&target.queue).is_some_and(limits)
                && self.queues.queue(target.queue).is_some_and(is_short)
            {
                // It is looked at, and with that it counts.
                self.touched(target.queue);
                let leader = self.leader.as_deref().expect("only a leader takes commands");
                must |= leader.queues[&target.queue].has_uncounted(self.queues.queue(target.queue));
            }
        }
        must
    }

    pub(crate) fn carry_out(&mut self, command: Command, cx: &mut Context<'_>) {
        if !self.deleted.is_empty() && self.answers_late(&command, cx) {
            return;
        }
        if let Command::Publish(publish) = &command {
            self.publish(publish, cx);
            return self.propose_if_full(cx);
        }
        // Commands are large: only where somebody waits, or may have to, one is handed about.
        let leader = self.leader.as_deref().expect("only a leader takes commands");
        let command = match leader.awaits_holders || !leader.latecomers.is_empty() {
            true => match self.has_to_wait(command, cx) {
                Some(command) => command,
                None => return,
            },
            false => command,
        };
        match command {
            Command::Configure { .. } | Command::Publish(_) => unreachable!("handled above"),
            Command::DeadLetterAnswered { queue, seq, is_safe } => {
                self.dead_letter_answered(queue, seq, is_safe, cx.now_ms)
            }
            Command::Settle { queue, holder, first, count, outcome } => {
                self.settle(queue, holder, first, count, outcome, cx.now_ms)
            }
            Command::Consume { queue, consumer, request, .. } => {
                self.consume(queue, consumer, request, cx);
            }
            Command::Hold { queue, consumer, first, count } => self.hold(queue, consumer, first, count),
            Command::Cancel { queue, consumer, request } => {
                self.touched(queue).cancel(queue, consumer, request, &mut cx.out.effects);
            }
            Command::Get { queue, channel, no_ack, request } => {
                self.note_channel(channel, queue);
                self.wait(queue, Waiting::Get { channel, no_ack, request, lets_pass: None });
            }
            Command::Purge { queue, channel, request } => self.wait(queue, Waiting::Purge { channel, request }),
            Command::Stat { queue, channel, request } => self.wait(queue, Waiting::Stat { channel, request }),
            Command::Close { queue, if_unused, if_empty, channel, request } => {
                self.wait(queue, Waiting::Close { if_unused, if_empty, channel, request });
            }
            Command::Reopen { queue } => self.reopen(queue, cx),
            Command::Delete { queue } => self.delete(queue, cx),
            Command::Detach { channel } => self.detach(channel, cx),
            Command::Part { channel } => {
                self.forget_confirms(channel);
                self.part(channel, cx);
                cx.out.effects.push(Effect::Parted { channel });
            }
            Command::Stall { queue, consumer, stalled } => {
                let known = self.leader.as_ref().is_some_and(|l| l.queues.contains_key(&queue));
                if known {
                    self.touched(queue).dispatch.set_stalled(consumer, stalled);
                }
            }
            Command::Grant { queue, consumer, count } => {
                let lq = self.touched(queue);
                if !lq.dispatch.grant(consumer, count) {
                    cx.out.effects.push(Effect::GrantReturned { consumer, count });
                }
            }
            Command::Mark { channel, request } => {
                let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
                leader.mark(Answer { channel, request, reply: Reply::Done }, &mut cx.out.effects);
            }
            Command::Sync { channel, request } => {
                // What this loop took in so far goes first.
                self.finish_entry(cx.now_ms);
                self.replica.drive(cx.out);
                let ticket = self.replica.barrier(cx.out);
                if let Some(leader) = &mut self.leader {
                    leader.barriers.push_back((ticket, channel, request));
                }
            }
        }
    }

    /// Other rules hold for a queue: whoever leads it, now or later, goes by them.
    fn configure(&mut self, queue: QueueId, rules: Arc<Rules>) {
        if self.deleted.contains(queue) {
            return;
        }
        self.limits_bytes |= rules.length_bytes_max.is_some() && rules.overflow.is_reject();
        match rules.is_plain() {
            true => self.rules.remove(&queue),
            false => self.rules.insert(queue, rules.clone()),
        };
        if self.leader.is_some() && !self.is_at_rest(queue) {
            let lq = self.touched(queue);
            let before = std::mem::replace(&mut lq.rules, (!rules.is_plain()).then_some(rules));
            let (rules, next_seq) = (lq.rules.as_deref(), lq.next_seq);
            match &mut lq.life {
                Some(life) => life.configured(before.as_deref(), rules, next_seq),
                None => lq.life = Life::of(None, rules, next_seq),
            }
        }
    }

    /// Whether the leader has nothing to keep in mind for a queue: its replicated state and its
    /// rules say everything. After a start that holds for nearly all of many queues, and what was
    /// made for each of them would stay as room.
    pub(crate) fn is_at_rest(&self, queue: QueueId) -> bool {
        let state = self.queues.queue(queue);
        let is_known = self.leader.as_ref().is_some_and(|leader| leader.queues.contains_key(&queue));
        !is_known
            && state.is_none_or(|state| state.runs().is_empty())
            && LeaderQueue::of(state, self.rules.get(&queue)).is_idle(state)
    }

    pub(crate) fn touched(&mut self, queue: QueueId) -> &mut LeaderQueue {
        let Leader { queues, dirty, .. } = self.leader.as_deref_mut().expect("only a leader takes commands");
        let lq =
            queues.entry(queue).or_insert_with(|| LeaderQueue::of(self.queues.queue(queue), self.rules.get(&queue)));
        lq.touch(queue, dirty);
        lq
    }

    pub(crate) fn consume(&mut self, queue: QueueId, consumer: Consumer, request: RequestId, cx: &mut Context<'_>) {
        let channel = consumer.key.channel;
        if self.touched(queue).consume(consumer, request, &mut cx.out.effects) {
            self.note_channel(channel, queue);
        }
    }

    fn note_channel(&mut self, channel: ChannelKey, queue: QueueId) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        note_use(&mut leader.channels, &leader.queues, channel, queue);
    }

    fn wait(&mut self, queue: QueueId, waiting: Waiting) {
        let lq = self.touched(queue);
        lq.waiting.push_back((lq.next_seq, waiting));
    }

    /// Takes a message in. False if a queue refused it because it is full.
    fn publish(&mut self, publish: &Publish, cx: &mut Context<'_>) -> bool {
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
                note_taken(leader, seq);
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
            note_taken(leader, seq);
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
            leader.confirm_at(level, channel, seq);
        }
        !is_refused
    }

    /// Takes in what most publishes are: one for a single queue that has no rules and stays, and the message
    /// has no time of its own. False, and nothing has happened, for any other.
    #[inline]
    fn publish_plainly(&mut self, publish: &Publish) -> bool {
        let [target] = &publish.targets[..] else { return false };
        let Durability::Level(level) = target.durability else { return false };
        let is_timed = publish.delay_ms > 0 || broker::properties::has_expiration(&publish.message.properties);
        if is_timed || self.deleted.contains(target.queue) {
            return false;
        }
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let Some(lq) = leader.queues.get_mut(&target.queue) else { return false };
        if lq.rules.is_some() || lq.life.is_some() || lq.closing.is_some() {
            return false;
        }
        lq.next_seq += 1;
        if !lq.sink.published && lq.dispatch.consumers() > 0 {
            lq.sink.published = true;
            leader.published.push(target.queue);
        }
        let (channel, seq) = (publish.channel, publish.publish_seq);
        let publisher = if seq == 0 { ChannelKey::NOBODY } else { channel };
        leader.builder.publish(publisher, seq, &[target.queue], &[], &[], level, &publish.message, Stamp::None);
        if level.is_on_disk() {
            leader.builder.want_sync();
        }
        if seq != 0 {
            note_taken(leader, seq);
            leader.confirm_at(level, channel, seq);
        }
        true
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

    /// Proposes the entry being built if it is long enough.
    fn propose_if_full(&mut self, cx: &mut Context<'_>) {
        if self.leader.as_deref().is_some_and(|leader| leader.builder.bytes_len() >= self.entry_bytes_target) {
            self.finish_entry(cx.now_ms);
            self.replica.drive(cx.out);
        }
    }

    /// Publishes scheduled messages whose time has come, each in one entry with the end of its
    /// wait. Where one finds its queue full, those behind it wait with it; where full queues
    /// dead-letter what they refuse, it is given up instead, and its dead letter leaves with the
    /// entry that says so: an end that the log does not have would come again.
    pub(crate) fn publish_due(&mut self, cx: &mut Context<'_>) {
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
                leader.letters.push(refused_letter(queue, &message));
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

    /// A dead letter is where it should be, or has no place yet.
    fn dead_letter_answered(&mut self, id: QueueId, seq: u64, is_safe: bool, now_ms: u64) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let Some(lq) = leader.queues.get_mut(&id) else { return };
        let Some(life) = &mut lq.life else { return };
        if life.sink.dead_letter_answered(seq, is_safe, now_ms) {
            Leader::settle_later(&mut leader.settling, id, lq);
        }
        lq.touch(id, &mut leader.dirty);
    }

    fn settle(&mut self, id: QueueId, holder: ConsumerKey, first: u64, count: u64, outcome: Disposition, now_ms: u64) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let mut taken = std::mem::take(&mut leader.taken);
        taken.clear();
        if let Some(lq) = leader.queues.get_mut(&id) {
            lq.dispatch.release(holder, first, count, &mut taken);
            lq.closing.iter_mut().for_each(|closing| closing.settled(holder, first, count));
            lq.touch(id, &mut leader.dirty);
        }
        let is_end = matches!(outcome, Disposition::Ack | Disposition::Discard);
        if is_end && taken.iter().map(|(_, count)| count).sum::<u64>() < count {
            self.claim(id, first, count, &mut taken);
        }
        let leader = self.leader.as_deref_mut().expect("it was there above");
        // A queue that was deleted meanwhile: an ack after that is harmless.
        let Some(lq) = leader.queues.get_mut(&id) else { return };
        match outcome {
            _ if taken.is_empty() => {}
            Disposition::Discard if lq.rules.as_ref().is_some_and(|r| r.dead_letter.is_some()) => {
                for (first, count) in &taken {
                    lq.note_released(*first, *count, false);
                    forget_counts(lq, *first, *count);
                    for seq in *first..*first + *count {
                        lq.give_up(&mut leader.builder, id, seq, Reason::Discarded, None);
                    }
                }
            }
            Disposition::Ack | Disposition::Discard => {
                for (first, count) in &taken {
                    lq.note_released(*first, *count, false);
                    let ranges = if outcome == Disposition::Ack { &mut lq.sink.acked } else { &mut lq.sink.discarded };
                    ranges.insert_range(*first, *count);
                    forget_counts(lq, *first, *count);
                }
                Leader::settle_later(&mut leader.settling, id, lq);
            }
            Disposition::Nack | Disposition::Reject => {
                let counts_against = outcome == Disposition::Reject;
                for (first, count) in &taken {
                    lq.dispatch.put_back(*first, *count, self.queues.levels(id));
                    raise_counts(lq, self.queues.queue(id), *first, *count, counts_against);
                }
                if lq.rules.is_some() {
                    let cx = (self.queues.levels(id), now_ms);
                    back_by_rules(lq, &mut leader.builder, id, counts_against, &mut taken, cx);
                } else {
                    taken.iter().for_each(|(first, count)| lq.note_released(*first, *count, true));
                }
                if !taken.is_empty() {
                    leader.builder.requeue(id, counts_against, &taken);
                }
            }
        }
        leader.taken = taken;
    }

    /// Of messages that somebody settles who does not hold them here, takes those that are ready. Where
    /// bytes are limited none: what they count would be known only by reading them.
    #[cold]
    fn claim(&mut self, id: QueueId, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) {
        if self.deleted.contains(id) || self.queues.queue(id).is_none() {
            return;
        }
        let _ = self.touched(id);
        let state = self.queues.queue(id);
        let lq = self.leader.as_deref_mut().and_then(|leader| leader.queues.get_mut(&id)).expect("touched above");
        if !lq.limits_bytes() {
            let spoilt = lq.sink.spoilt.as_deref();
            let next_live = |from| state.and_then(|state| next_sound(state, spoilt, from));
            lq.dispatch.claim(first, count, self.queues.levels(id), next_live, taken);
        }
    }

    /// The delete of a queue came to nothing.
    fn reopen(&mut self, queue: QueueId, cx: &mut Context<'_>) {
        let Some(closing) = self.touched(queue).closing.take() else { return };
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        closing.confirms.into_iter().for_each(|held| hold_confirm(leader, held, &mut cx.out.effects));
        for (consumer, request) in closing.consumers {
            self.consume(queue, consumer, request, cx);
        }
        for (consumer, first, count) in closing.holds {
            self.hold(queue, consumer, first, count);
        }
    }

    /// A consumer that attached, or waits for it, has messages of an earlier leader.
    fn hold(&mut self, queue: QueueId, consumer: ConsumerKey, first: u64, count: u64) {
        let state = self.queues.queue(queue);
        let Some(lq) = self.leader.as_mut().and_then(|leader| leader.queues.get_mut(&queue)) else { return };
        if let Some(closing) = &mut lq.closing {
            return closing.holds.push((consumer, first, count));
        }
        let spoilt = lq.sink.spoilt.as_deref();
        // What waits for its time, or is on its way to a dead-letter exchange, is live and not ready.
        let next_live = |from| state.and_then(|state| next_sound(state, spoilt, from));
        lq.dispatch.hold(consumer, first, count, self.queues.levels(queue), next_live);
    }

    /// A channel has ended: nothing of it is remembered.
    fn detach(&mut self, channel: ChannelKey, cx: &mut Context<'_>) {
        self.part(channel, cx);
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        if leader.last_publisher.0 == channel {
            leader.last_publisher = (ChannelKey::NOBODY, Seen::default());
            leader.builder.closed(channel);
        } else if leader.publishers.remove(&channel).is_some() || self.queues.publishers.contains_key(&channel) {
            leader.builder.closed(channel);
        }
    }

    /// Nothing is given to a channel any more, and what it holds comes back.
    fn part(&mut self, channel: ChannelKey, cx: &mut Context<'_>) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        leader.latecomers.forget(channel);
        for id in leader.channels.remove(&channel).unwrap_or_default() {
            let Some(lq) = leader.queues.get_mut(&id) else { continue };
            let detach = |dispatch: &mut Dispatch, _: &_| dispatch.detach(channel, self.queues.levels(id));
            let mut back: Vec<(u64, u64)> = lq.detach(id, channel, detach, &mut cx.out.effects).iter().collect();
            for (first, count) in &back {
                raise_counts(lq, self.queues.queue(id), *first, *count, true);
            }
            if lq.rules.is_some() {
                back_by_rules(lq, &mut leader.builder, id, true, &mut back, (self.queues.levels(id), cx.now_ms));
            } else {
                back.iter().for_each(|(first, count)| lq.note_released(*first, *count, true));
            }
            if !back.is_empty() {
                leader.builder.requeue(id, true, &back);
            }
            lq.touch(id, &mut leader.dirty);
        }
    }

    /// Has the machine raised to this version, which every member of the group has said that it can
    /// carry out. Nothing happens where it is as high, where that is on its way, and where this
    /// member does not lead.
    pub fn raise_version(&mut self, version: u32) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        if version > self.queues.machine_version().max(leader.raising) {
            leader.raising = version;
            leader.builder.raise_version(version);
        }
    }

    /// A queue ends: every member is told, so that whoever leads next takes nothing late.
    fn forget(&mut self, id: QueueId) {
        self.rules.remove(&id);
        self.deleted.insert(id);
    }

    /// Answers a question about a queue that ended while it was on its way. Publishes and outcomes
    /// look for themselves.
    fn answers_late(&self, command: &Command, cx: &mut Context<'_>) -> bool {
        let (queue, channel, request) = match command {
            Command::Consume { queue, consumer, request, .. } => (queue, consumer.key.channel, request),
            Command::Cancel { queue, consumer, request } => (queue, consumer.channel, request),
            Command::Get { queue, channel, request, .. }
            | Command::Purge { queue, channel, request }
            | Command::Stat { queue, channel, request }
            | Command::Close { queue, channel, request, .. } => (queue, *channel, request),
            Command::Reopen { queue } | Command::Grant { queue, .. } => return self.deleted.contains(*queue),
            _ => return false,
        };
        let is_gone = self.deleted.contains(*queue);
        if is_gone {
            cx.out.effects.push(Effect::Reply { channel, request: *request, reply: Reply::Gone });
        }
        is_gone
    }

    fn delete(&mut self, id: QueueId, cx: &mut Context<'_>) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        leader.repeats.remove(&id);
        for id in [id, scheduled_for(id)] {
            let at = leader.queues.get(&id).and_then(|lq| lq.life.as_ref()).and_then(|life| life.timer_ms);
            at.map(|at| leader.timers.remove(&(at, id)));
        }
        leader.queues.remove(&scheduled_for(id));
        let mut confirms = Vec::new();
        if let Some(mut lq) = leader.queues.remove(&id) {
            lq.let_go(self.queues.queue(id), cx.tail);
            leader.at_risk -= u128::from(lq.sink.at_risk);
            leader.values.retain(|(q, _)| *q != id);
            confirms = lq.end(id, &mut cx.out.effects);
        }
        leader.builder.delete(id);
        confirms.into_iter().for_each(|held| hold_confirm(leader, held, &mut cx.out.effects));
    }
}
