//! What a leader does with each command: take in, attach, settle, answer. Nothing here is visible
//! to others before the entry that carries it is committed, except what is leader-local.
//!
//! Taking in is in `commands/publish.rs`, settling and coming back in `commands/settle.rs`.

mod publish;
mod settle;

use crate::closing::{Closing, HeldConfirm};
use crate::command::{Command, Effect, Publish, Reply, RequestId};
use crate::damage::next_sound;
use crate::early::held_bytes;
use crate::leader::{Leader, LeaderQueue};
use crate::life::Life;
use crate::machine::scheduled_for;
use crate::message::stored_bytes_of_all;
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use crate::queue::{Answer, Waiting, note_use};
use crate::repeats::confirm_repeat;
use broker::queue::{Consumer, QueueState, Rules};
use broker::{ChannelKey, ConsumerKey, QueueId};
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

/// Answers what wants an answer for a member that carries out nothing, as it does not lead or is
/// damaged. A publish for the leader of one term is given back where nobody leads.
pub fn refuse(command: Command, reply: Reply, effects: &mut Vec<Effect>) {
    let (channel, request) = match command {
        Command::Publish(Publish { publish_seq: 0, .. }) => return,
        Command::Publish(publish) => {
            let Publish { channel, publish_seq: first, term, .. } = publish;
            let count = publish.count();
            return effects.push(match reply {
                Reply::NotLeader if term != 0 => Effect::Returned { channel, first, count, term },
                _ => Effect::Refuse { channel, first, count },
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
        | Command::LimitReplies { .. }
        | Command::Detach { .. }
        | Command::Reopen { .. }
        | Command::Delete { .. }
        | Command::Stall { .. }
        | Command::Grant { .. } => return,
    };
    effects.push(Effect::Reply { channel, request, reply });
}

impl QueuePartition {
    /// These commands are about to come: their messages have room in one entry from the beginning, instead of one that grows
    /// and is copied each time. What was expected before is not any more.
    pub fn expect(&mut self, commands: &[Command]) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        let publishes = commands.iter().filter_map(|command| match command {
            Command::Publish(publish) => Some(stored_bytes_of_all(publish)),
            _ => None,
        });
        leader.builder.expect(publishes.sum());
    }

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
            Command::Publish(publish) => _ = self.publish(publish, cx),
            // Neither a queue's end nor a new leader's wait for holders is anything to it.
            &Command::Settle { queue, holder, first, count, outcome } => {
                self.settle(queue, holder, first, count, outcome, cx.now_ms);
            }
            _ => self.carry_out(command, cx),
        }
        self.propose_if_full(cx);
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
            self.propose_if_full(cx);
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
            return;
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
            Command::LimitReplies { .. } => unreachable!("replies wait in memory"),
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

    /// Proposes the entry being built if it is long enough.
    pub(crate) fn propose_if_full(&mut self, cx: &mut Context<'_>) {
        if self.leader.as_deref().is_some_and(|leader| leader.builder.is_full()) {
            self.finish_entry(cx.now_ms);
            self.replica.drive(cx.out);
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

    /// A consumer that attached, or waits for it, or was one, or a channel by `basic.get`, has messages of an earlier leader.
    fn hold(&mut self, queue: QueueId, consumer: ConsumerKey, first: u64, count: u64) {
        let leader = self.leader.as_deref().expect("only a leader takes commands");
        if self.queues.queue(queue).is_none() && !leader.queues.contains_key(&queue) {
            return;
        }
        self.note_channel(consumer.channel, queue);
        if let Some(closing) = &mut self.touched(queue).closing {
            return closing.holds.push((consumer, first, count));
        }
        let state = self.queues.queue(queue);
        let Some(lq) = self.leader.as_mut().and_then(|leader| leader.queues.get_mut(&queue)) else { return };
        let spoilt = lq.sink.spoilt.as_deref();
        // What waits for its time, or is on its way to a dead-letter exchange, is live and not ready.
        let next_live = |from| state.and_then(|state| next_sound(state, spoilt, from));
        lq.dispatch.hold(consumer, first, count, self.queues.levels(queue), next_live);
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
