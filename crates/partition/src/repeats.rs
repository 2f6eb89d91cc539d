//! Publishes that come to a leader again, and how long it is remembered what came.
//!
//! Invariant: a publish that comes again is confirmed only if the log has it, no sooner than that is safe, and
//! never taken in twice. Where nobody knows, it is refused.

use crate::command::{Durability, Effect, Level, Publish, Target};
use crate::leader::{ConfirmRange, InFlight, Leader, push_confirm};
use crate::machine::{FixedMap, Queues};
use crate::partition::{Context, QueuePartition};
use crate::publishers::{Seen, Standing, runs_max};
use broker::ChannelKey;

/// Publishers that are forgotten at a time: 16 bytes each in the log.
const FORGOTTEN_AT_ONCE_MAX: usize = 32_768;

/// A channel that published nothing for so many ticks of one leader's office, ten minutes, is forgotten as if it
/// had ended: its end may have come while nobody could be told. Nothing is sent again after as long.
const IDLE_TICKS: u64 = 4_000;

/// What a publish is by its number.
#[inline]
pub(crate) fn standing(leader: &mut Leader, queues: &Queues, channel: ChannelKey, seq: u64) -> Standing {
    seen(leader, queues, channel).see(seq)
}

/// Whether publishes from this number on are new. If not, each is to be looked at by itself.
#[inline]
pub(crate) fn are_new_from(leader: &mut Leader, queues: &Queues, channel: ChannelKey, first: u64) -> bool {
    seen(leader, queues, channel).are_new_from(first)
}

/// A publisher as its leader sees it.
#[inline]
fn seen<'a>(leader: &'a mut Leader, queues: &Queues, channel: ChannelKey) -> &'a mut Seen {
    if leader.last_publisher.0 != channel {
        let known = leader.publishers.remove(&channel);
        let known = known.unwrap_or_else(|| Seen::of(queues.publishers.get(&channel)));
        let (before, seen) = std::mem::replace(&mut leader.last_publisher, (channel, known));
        if before != ChannelKey::NOBODY {
            leader.publishers.insert(before, seen);
        }
    }
    &mut leader.last_publisher.1
}

/// Notes that so many publishes in a row, each of which is [`Standing::New`], are in the log, or are answered as if they
/// were.
pub(crate) fn note_taken(leader: &mut Leader, (first, count): (u64, u64)) {
    let publishers = leader.publishers.len();
    leader.last_publisher.1.take_run(first, count, || runs_max(publishers));
}

/// Confirms a publish whose message is there already, once that has reached a level: with the last entry of
/// the log, so that it stays ahead of what its channel publishes later.
pub(crate) fn confirm_repeat(
    leader: &mut Leader,
    level: Level,
    (channel, seq): (ChannelKey, u64),
    effects: &mut Vec<Effect>,
) {
    if !leader.builder.is_empty() {
        return leader.confirm_at(level, channel, (seq, 1));
    }
    leader.confirms_alone |= level.is_of_leader();
    if let Some((_, entry)) = leader.held.back_mut() {
        return push_confirm(entry.confirms.at(level), channel, (seq, 1));
    }
    let waits = |leader: &Leader, entry: &InFlight| !leader.has_reached(level, entry.index);
    if leader.in_flight.back().is_some_and(|entry| waits(leader, entry)) {
        let entry = leader.in_flight.back_mut().expect("looked at above");
        return push_confirm(entry.confirms.at(level), channel, (seq, 1));
    }
    effects.push(Effect::Confirm { channel, first: seq, count: 1 });
}

/// The level at which a publish is confirmed that comes again: what it asks for, where that is fixed.
fn level_asked(publish: &Publish) -> Level {
    let asked = |target: &Target| match target.durability {
        Durability::Level(level) => level,
        // It was a matter of what else was at risk then.
        Durability::Selective { .. } => Level::Synced,
    };
    publish.targets.iter().map(asked).fold(Level::LeaderWritten, Level::with)
}

/// Whether a publish that was taken in is to be confirmed yet.
fn is_awaited(leader: &Leader, publish: &Publish) -> bool {
    let (channel, seq) = (publish.channel, publish.publish_seq);
    let holds =
        |range: &ConfirmRange| range.channel == channel && (range.first..range.first + range.count).contains(&seq);
    let in_entry = |entry: &InFlight| entry.confirms.iter().any(holds);
    let closings = || publish.targets.iter().filter_map(|to| leader.queues.get(&to.queue)?.closing.as_ref());
    leader.confirms.iter().any(holds)
        || leader.held.iter().any(|(_, entry)| in_entry(entry))
        || leader.in_flight.iter().any(in_entry)
        || closings().any(|closing| closing.confirms.iter().any(|held| (held.channel, held.seq) == (channel, seq)))
}

impl QueuePartition {
    /// Answers a publish that the log has. One of its queues may have refused it then, which its
    /// publisher may not have heard: where that can be, nobody promises anything.
    #[cold]
    pub(crate) fn answer_repeat(&mut self, publish: &Publish, cx: &mut Context<'_>) -> bool {
        let leader = self.leader.as_deref_mut().expect("only a leader takes commands");
        let (channel, first) = (publish.channel, publish.publish_seq);
        let refuses = |target: &Target| self.rules.get(&target.queue).is_some_and(|rules| rules.overflow.is_reject());
        if publish.targets.len() > 1 && publish.targets.iter().any(refuses) {
            cx.out.effects.push(Effect::Refuse { channel, first, count: 1 });
            return false;
        }
        // Behind anything else than what it waits for it would come behind later publishes.
        if !is_awaited(leader, publish) {
            match self.queues.publishers.get(&channel).is_some_and(|known| known.has(first)) {
                true => cx.out.effects.push(Effect::Confirm { channel, first, count: 1 }),
                false => confirm_repeat(leader, level_asked(publish), (channel, first), &mut cx.out.effects),
            }
        }
        true
    }

    /// The link to a channel's node broke: the channel hears nothing of what it published over that link, and
    /// publishes it again. Confirmed meanwhile, it would be confirmed ahead of what was confirmed in vain.
    pub(crate) fn forget_confirms(&mut self, channel: ChannelKey) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        leader.confirms.forget(channel);
        let entries = leader.held.iter_mut().map(|(_, entry)| entry).chain(&mut leader.in_flight);
        entries.for_each(|entry| entry.confirms.forget(channel));
    }

    /// Answers a publish behind which others were taken in, and of which nobody knows that it was: it was
    /// refused, most likely. Taken in now it would come behind those.
    #[cold]
    pub(crate) fn answer_passed(&mut self, publish: &Publish, cx: &mut Context<'_>) -> bool {
        let (channel, first) = (publish.channel, publish.publish_seq);
        let is_gone = publish.targets.iter().all(|target| self.deleted.contains(target.queue));
        cx.out.effects.push(match is_gone {
            true => Effect::Confirm { channel, first, count: 1 },
            false => Effect::Refuse { channel, first, count: 1 },
        });
        is_gone
    }

    /// Publishers of which `is_gone` will send nothing again, though nobody said so: their process
    /// died. At most so many at a time, so that the entry which says it stays small.
    pub fn forget_publishers(&mut self, is_gone: impl Fn(ChannelKey) -> bool) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        let mut gone: Vec<ChannelKey> = self.queues.publishers.keys().copied().filter(|key| is_gone(*key)).collect();
        gone.sort_unstable();
        for channel in gone.into_iter().take(FORGOTTEN_AT_ONCE_MAX) {
            leader.builder.closed(channel);
        }
    }

    /// Forgets publishers that did nothing for long.
    pub(crate) fn forget_idle_publishers(&mut self) {
        let Some(leader) = self.leader.as_deref_mut() else { return };
        if !leader.ticks.is_multiple_of(IDLE_TICKS) {
            return;
        }
        let before = std::mem::take(&mut leader.idle);
        let (cached, cached_last) = (leader.last_publisher.0, leader.last_publisher.1.publisher.last());
        let ahead = |channel: ChannelKey| match cached == channel {
            true => Some(cached_last),
            false => leader.publishers.get(&channel).map(|seen| seen.publisher.last()),
        };
        let lasts = self.queues.publishers.iter().map(|(channel, known)| (*channel, known.last()));
        let is_idle = |(channel, last): &(ChannelKey, u64)| {
            before.get(channel) == Some(last) && ahead(*channel).is_none_or(|ahead| ahead == *last)
        };
        let mut gone: Vec<ChannelKey> = lasts.clone().filter(is_idle).map(|(channel, _)| channel).collect();
        gone.sort_unstable();
        gone.truncate(FORGOTTEN_AT_ONCE_MAX);
        let mut idle: FixedMap<ChannelKey, u64> = lasts.collect();
        for channel in gone {
            idle.remove(&channel);
            leader.publishers.remove(&channel);
            if leader.last_publisher.0 == channel {
                leader.last_publisher = (ChannelKey::NOBODY, Seen::default());
            }
            leader.builder.closed(channel);
        }
        leader.idle = idle;
    }
}
