//! What becomes of messages that were given out: they are settled, or they come back, as their consumer or its whole
//! channel gives them up. Also what becomes of a message whose dead letter was answered.
//!
//! Invariant: a settle ends what its holder holds here and, as an earlier leader may have given them out, messages that
//! are ready, or that somebody else came with when it attached; never what this leader gave to somebody else. What comes
//! back goes by its queue's rules before it is ready again.

use crate::command::Disposition;
use crate::damage::next_sound;
use crate::entry::{EntryBuilder, Reason};
use crate::leader::{Leader, LeaderQueue};
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use crate::publishers::Seen;
use broker::queue::{Dispatch, Levels, QueueState, SeqRanges};
use broker::{ChannelKey, ConsumerKey, QueueId};

impl QueuePartition {
    /// A dead letter is where it should be, or has no place yet.
    pub(super) fn dead_letter_answered(&mut self, id: QueueId, seq: u64, is_safe: bool, now_ms: u64) {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let Some(lq) = leader.queues.get_mut(&id) else { return };
        let Some(life) = &mut lq.life else { return };
        if life.sink.dead_letter_answered(seq, is_safe, now_ms) {
            Leader::settle_later(&mut leader.settling, id, lq);
        }
        lq.touch(id, &mut leader.dirty);
    }

    pub(super) fn settle(
        &mut self,
        id: QueueId,
        holder: ConsumerKey,
        first: u64,
        count: u64,
        outcome: Disposition,
        now_ms: u64,
    ) {
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
                    lq.sink.counts.remove(*first, first + count);
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
                    lq.sink.counts.remove(*first, first + count);
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

    /// Of messages that somebody settles who does not hold them here, takes those that another one came with, and those
    /// that are ready. Of the ready ones none where bytes are limited: what they count would be known only by reading
    /// them.
    #[cold]
    fn claim(&mut self, id: QueueId, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) {
        if self.deleted.contains(id) || self.queues.queue(id).is_none() {
            return;
        }
        let _ = self.touched(id);
        let state = self.queues.queue(id);
        let lq = self.leader.as_deref_mut().and_then(|leader| leader.queues.get_mut(&id)).expect("touched above");
        lq.dispatch.claim_brought(first, count, taken);
        if !lq.limits_bytes() {
            let spoilt = lq.sink.spoilt.as_deref();
            let next_live = |from| state.and_then(|state| next_sound(state, spoilt, from));
            lq.dispatch.claim(first, count, self.queues.levels(id), next_live, taken);
        }
    }

    /// A channel has ended: nothing of it is remembered.
    pub(super) fn detach(&mut self, channel: ChannelKey, cx: &mut Context<'_>) {
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
    pub(super) fn part(&mut self, channel: ChannelKey, cx: &mut Context<'_>) {
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
}

fn raise_counts(lq: &mut LeaderQueue, state: Option<&QueueState<Place>>, first: u64, count: u64, counts_against: bool) {
    lq.sink.counts.raise(first, first + count, counts_against, state.map(QueueState::counts));
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
    for (first, count) in back.drain(..) {
        for (first, past, counts) in lq.sink.counts.within(first, first + count) {
            let counts = counts.unwrap_or_default();
            if counts_against && rules.delivery_limit.is_some_and(|limit| counts.delivery > limit) {
                for seq in first..past {
                    lq.dispatch.drop_returned(seq, levels);
                    lq.note_released(seq, 1, false);
                    lq.give_up(builder, id, seq, Reason::DeliveryLimit, None);
                }
                lq.sink.counts.remove(first, past);
                continue;
            }
            lq.note_released(first, past - first, true);
            let Some(until_ms) = lq.retry_until(counts_against, counts.acquired, now_ms) else {
                kept.insert_range(first, past - first);
                continue;
            };
            for seq in first..past {
                lq.dispatch.drop_returned(seq, levels);
                lq.wait_until(until_ms, seq);
            }
            builder.retry(id, counts_against, until_ms, &[(first, past - first)]);
        }
    }
    back.extend(kept.iter());
}
