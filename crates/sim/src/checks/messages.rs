//! A model of one partition's queues, made from the committed log: which message has which number,
//! what became of it.
//!
//! It reads entries with the engine's own reader and follows rules of its own: a publish number
//! that is not above the last one of its channel is a repeat and ends at once; a scheduled message
//! comes into its queue in the entry that ends its wait. Invariant: the fate of a committed message
//! changes once, from live to settled.

use super::ends::Ends;
use super::fate::{End, Fate};
use super::{Expected, Published, id_of, violated};
use crate::client::is_dead_letter_channel;
use crate::registry::name_of;
use broker::queue::{DedupKey, Rules};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use consensus::Term;
use partition::Delivery;
use partition::entry::{Batch, Commands, LogCommand, Reason};
use partition::machine::{schedule_of, scheduled_for};
use partition::message::MessageView;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Default)]
struct Queue {
    /// By number, from 1.
    fates: Vec<Fate>,
    live: u64,
    /// The last live publish of each publisher.
    last_of: BTreeMap<ChannelKey, u64>,
    /// Ids that were live at some time.
    taken_in: BTreeSet<u64>,
    /// Live messages that nobody was given yet, by level.
    fresh: BTreeMap<u8, BTreeSet<u64>>,
    fresh_count: u64,
    /// Messages by their key, where a key comes in once: numbers, and when each came in.
    keys: BTreeMap<DedupKey, Vec<(u64, u64)>>,
    /// The entry that touched it last, and how many were live at most while that was applied.
    peak: (u64, u64),
    /// Messages that one of a lower level went before, in this term.
    overtaken: BTreeMap<u64, (Term, u64)>,
}

impl Queue {
    fn fate(&mut self, seq: u64) -> Option<&mut Fate> {
        (seq as usize).checked_sub(1).and_then(|at| self.fates.get_mut(at))
    }

    /// How many were live at most while the entry at `index` was applied, so far: it may purge,
    /// too.
    fn peak(&mut self, index: u64) -> u64 {
        self.peak = if self.peak.0 == index { (index, self.peak.1.max(self.live)) } else { (index, self.live) };
        self.peak.1
    }

    fn not_fresh(&mut self, seq: u64, level: u8) {
        if self.fresh.get_mut(&level).is_some_and(|seqs| seqs.remove(&seq)) {
            self.fresh_count -= 1;
        }
    }
}

/// What the model learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A message is in the committed log.
    Committed(u64),
    /// A delivery is of a message that is committed.
    Delivered {
        /// The queue.
        queue: QueueId,
        /// The message.
        id: u64,
        /// Its flag.
        redelivered: bool,
    },
    /// A message ended in a way that makes a dead letter where the queue has a place for it.
    Ended {
        /// The queue.
        queue: QueueId,
        /// The message's number.
        seq: u64,
        /// The message.
        id: u64,
        /// A rule of the queue did it, and no client.
        by_rule: bool,
    },
    /// A dead letter came into a queue for those.
    DeadLettered {
        /// The queue.
        queue: QueueId,
        /// The message.
        id: u64,
    },
}

/// When and by whom a message was given out.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The term of the leader.
    pub term: Term,
    /// What it had applied after its turn.
    pub applied: u64,
    /// What it had applied before its turn.
    pub applied_before: u64,
    /// The latest that its clock ever showed in this life, milliseconds since the epoch.
    pub latest_ms: u64,
    /// Its clock now.
    pub now_ms: u64,
}

/// An entry that is being looked at.
struct Entry<'a> {
    index: u64,
    time_ms: u64,
    published: &'a [Published],
    settle_asked: &'a BTreeSet<(QueueId, u64)>,
    /// Queues that take a key in once, and keys that it brings.
    keys: Vec<(QueueId, DedupKey)>,
    /// Scheduled messages that it brings into their queues, and those whose wait it ends.
    released: Vec<(QueueId, u64)>,
    due: Vec<(QueueId, u64)>,
}

/// A delivery of a message that is not committed yet.
#[derive(Clone, Copy, Debug)]
struct Early {
    id: u64,
    redelivered: bool,
}

/// The queues of one partition.
#[derive(Debug, Default)]
pub struct Model {
    queues: BTreeMap<QueueId, Queue>,
    publishers: BTreeMap<ChannelKey, u64>,
    early: BTreeMap<(QueueId, u64), Vec<Early>>,
    /// Queues that are gone, the entry that ended each, and how they stood.
    gone: BTreeMap<QueueId, (u64, Queue)>,
    expected: Arc<Expected>,
    applied: u64,
}

impl Model {
    /// A model of queues of which this is expected.
    pub fn new(expected: &Arc<Expected>) -> Self {
        Model { expected: expected.clone(), ..Model::default() }
    }

    fn rules(&self, queue: QueueId) -> Arc<Rules> {
        self.expected.rules_of(queue).cloned().unwrap_or_default()
    }

    /// Whether a message has ended in the committed log.
    pub fn is_settled(&self, queue: QueueId, seq: u64) -> bool {
        let of = self.queues.get(&queue).or_else(|| self.gone.get(&queue).map(|gone| &gone.1));
        let fate = of.and_then(|q| q.fates.get(seq as usize - 1));
        fate.is_some_and(|fate| fate.settled_at.is_some())
    }

    /// How many messages of a queue have ended.
    pub fn ended(&self, queue: QueueId) -> u64 {
        self.queues.get(&queue).map_or(0, |q| q.taken_in.len() as u64 - q.live)
    }

    /// Whether a publish of a channel with this number, or a later one, is in the log.
    pub fn has_passed(&self, channel: ChannelKey, seq: u64) -> bool {
        self.publishers.get(&channel).is_some_and(|last| seq <= *last)
    }

    /// Whoever has applied the end of a queue neither takes anything in for it nor lets anything
    /// out.
    pub fn check_gone(&self, queue: QueueId, applied: u64, what: impl Fn() -> String) {
        if let Some((index, _)) = self.gone.get(&queue).filter(|(index, _)| *index <= applied) {
            violated("deleted", &format!("{}, and queue {} was deleted by entry {index}", what(), queue.0));
        }
    }

    /// An entry is committed at `index`.
    pub fn commit(
        &mut self,
        index: u64,
        body: &Bytes,
        published: &[Published],
        settle_asked: &BTreeSet<(QueueId, u64)>,
        ends: &Ends,
        found: &mut Vec<Found>,
    ) {
        self.applied = index;
        if body.first() != Some(&partition::entry::ENTRY_VERSION) {
            return;
        }
        let mut commands = Commands::parse(body).expect("a committed entry can be read");
        let time_ms = commands.time_ms;
        let (keys, released, due) = (Vec::new(), Vec::new(), Vec::new());
        let mut entry = Entry { index, time_ms, published, settle_asked, keys, released, due };
        while let Some(command) = commands.next().expect("a committed entry can be read") {
            match command {
                LogCommand::Publish(batch) => self.publish(&batch, &mut entry, found),
                LogCommand::Settle { queue, reason, ranges } => {
                    for (first, count) in ranges {
                        self.settle((queue, reason), first..first + count, &mut entry, found);
                    }
                }
                LogCommand::Dead { queue, reason, ranges } => {
                    for seq in ranges.flat_map(|(first, count)| first..first + count) {
                        self.dead(queue, reason, seq, &entry);
                    }
                }
                LogCommand::Requeue { queue, counts_against, ranges } => {
                    for seq in ranges.flat_map(|(first, count)| first..first + count) {
                        self.back(queue, seq, counts_against, None);
                    }
                }
                LogCommand::Retry { queue, counts_against, until_ms, ranges } => {
                    for seq in ranges.flat_map(|(first, count)| first..first + count) {
                        self.back(queue, seq, counts_against, Some((index, until_ms)));
                    }
                }
                LogCommand::Sent { .. } | LogCommand::RaiseVersion { .. } => {}
                LogCommand::Delete { queue } => {
                    for id in [queue, scheduled_for(queue)] {
                        let was = self.queues.remove(&id).unwrap_or_default();
                        self.early.retain(|(of, _), _| *of != id);
                        self.gone.entry(id).or_insert((index, was));
                    }
                }
                LogCommand::Closed { publisher } => {
                    self.publishers.remove(&publisher);
                }
            }
        }
        // What an entry ends stands behind what it takes in.
        for (id, queue) in &self.queues {
            let Some(bound) = self.expected.undelivered_max.get(&name_of(*id)) else { continue };
            let fresh = queue.fresh_count;
            if fresh > *bound {
                violated("limit", &format!("{fresh} messages wait in queue {}, which refuses beyond {bound}", id.0));
            }
        }
        for (id, key) in &entry.keys {
            // It may have ended behind them.
            let Some(queue) = self.queues.get(id) else { continue };
            let live = |seq: &u64| queue.fates[*seq as usize - 1].settled_at.is_none();
            let there: Vec<u64> = queue.keys[key].iter().map(|(seq, _)| *seq).filter(live).collect();
            if there.len() > 1 {
                violated("dedup", &format!("messages {there:?} of queue {} have the same key", id.0));
            }
        }
        entry.released.sort_unstable();
        // Where it would be a repeat, or its queue was deleted and the log does not say so yet, one
        // that is due ends and does not come in.
        let takes_once = |(queue, id): &(QueueId, u64)| self.rules(*queue).dedup.zip(published[*id as usize].key);
        let may_stay = |due: &(QueueId, u64)| takes_once(due).is_some() || ends.excuses(due.0);
        let must_come = |due: &&(QueueId, u64)| !may_stay(due) || entry.released.contains(due);
        let mut due: Vec<_> = entry.due.iter().filter(must_come).copied().collect();
        due.sort_unstable();
        if entry.released != due {
            violated("schedule", &format!("entry {index} releases {:?} and ends the waits of {due:?}", entry.released));
        }
    }

    /// The last entry that any member applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Whether each queue of a message takes a key in once and had one with its key after it was
    /// published, or within the window before.
    pub fn knows(&self, message: &Published, is_excused: &dyn Fn(QueueId) -> bool) -> bool {
        message.key.is_some() && message.targets.iter().filter(|id| !is_excused(**id)).all(|id| self.had(message, *id))
    }

    /// Whether this one of its queues did.
    pub fn had(&self, message: &Published, queue: QueueId) -> bool {
        let (Some(key), Some(rule)) = (message.key, self.rules(queue).dedup) else { return false };
        let Some(queue) = self.queues.get(&queue) else { return false };
        let was_there = |(seq, _): &(u64, u64)| {
            let settled_at = queue.fates[*seq as usize - 1].settled_at;
            rule.window_ms > 0 || settled_at.is_none_or(|index| index > message.since)
        };
        queue.keys.get(&key).is_some_and(|seqs| seqs.iter().any(was_there))
    }

    fn publish(&mut self, batch: &Batch<'_>, entry: &mut Entry<'_>, found: &mut Vec<Found>) {
        let channel = batch.publisher();
        for message in batch.iter() {
            let id = id_of(message.body())
                .filter(|id| entry.published.get(*id as usize).is_some_and(|p| p.body[..] == *message.body()));
            let Some(id) = id else {
                violated("published", &format!("entry {} holds a message that nobody published", entry.index));
            };
            let of = &entry.published[id as usize];
            let seq = batch.first_publish_seq() + u64::from(message.publish_delta());
            let mut is_repeat = false;
            if channel != ChannelKey::NOBODY {
                assert!(
                    is_dead_letter_channel(channel) || (of.channel, of.seq) == (channel, seq),
                    "a publish keeps its number"
                );
                let last = self.publishers.entry(channel).or_insert(0);
                is_repeat = seq <= *last;
                *last = seq.max(*last);
            }
            for queue in batch.targets() {
                self.take_in(queue, id, &message, is_repeat, entry, found);
            }
            found.push(Found::Committed(id));
        }
    }

    fn take_in(
        &mut self,
        id: QueueId,
        message: u64,
        view: &MessageView<'_>,
        is_repeat: bool,
        entry: &mut Entry<'_>,
        found: &mut Vec<Found>,
    ) {
        let of = &entry.published[message as usize];
        self.check_gone(id, entry.index, || format!("entry {} takes in message {message}", entry.index));
        let (is_schedule, is_grave) = (schedule_of(id).is_some(), self.expected.is_grave(id));
        let rules = self.rules(id);
        let mut fate = Fate::new(message, entry.index, view, &rules);
        let queue = self.queues.entry(id).or_default();
        let seq = queue.fates.len() as u64 + 1;
        if is_repeat {
            fate.settled_at = Some(entry.index);
        } else {
            queue.live += 1;
            let is_new = queue.taken_in.insert(message);
            if is_grave {
                found.push(Found::DeadLettered { queue: id, id: message });
            } else if !is_new {
                violated("duplicate", &format!("message {message} is in queue {} twice", id.0));
            }
            if let Some((rule, key)) = rules.dedup.zip(of.key) {
                let seen = queue.keys.entry(key).or_default();
                if let Some((before, at)) = seen.last().filter(|(_, at)| entry.time_ms < at + rule.window_ms) {
                    violated(
                        "dedup",
                        &format!("message {seq} came at {}, and {before} of its key at {at}", entry.time_ms),
                    );
                }
                seen.push((seq, entry.time_ms));
                entry.keys.push((id, key));
            }
            if is_schedule {
                let is_late = fate.due_ms > entry.time_ms + of.delay_ms + self.expected.slack_ms;
                if is_late || fate.due_ms + self.expected.slack_ms < entry.time_ms + of.delay_ms {
                    let (delay, due) = (of.delay_ms, fate.due_ms);
                    violated("schedule", &format!("message {message} asked for {delay} ms and is due at {due}"));
                }
            } else if !is_grave && of.delay_ms > 0 {
                entry.released.push((id, message));
            } else if !is_grave {
                let last = queue.last_of.entry(of.channel).or_insert(0);
                if of.number <= *last {
                    violated(
                        "fifo",
                        &format!("publish {} of channel {} is behind {last}", of.number, of.channel.number()),
                    );
                }
                *last = of.number;
            }
        }
        for early in self.early.remove(&(id, seq)).unwrap_or_default() {
            // What was lost with the power may have had this number.
            if early.id == message {
                fate.deliveries += 1;
                found.push(Found::Delivered { queue: id, id: message, redelivered: early.redelivered });
            }
        }
        if fate.is_fresh() {
            queue.fresh.entry(fate.level).or_default().insert(seq);
            queue.fresh_count += 1;
        }
        queue.fates.push(fate);
    }

    fn settle(
        &mut self,
        (id, reason): (QueueId, Reason),
        seqs: std::ops::Range<u64>,
        entry: &mut Entry<'_>,
        found: &mut Vec<Found>,
    ) {
        let rules = self.rules(schedule_of(id).unwrap_or(id));
        let latest_ms = entry.time_ms + self.expected.slack_ms;
        let there = schedule_of(id).filter(|_| reason == Reason::MaxLength).map(|target| self.there(target, entry));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        for seq in seqs {
            let live = queue.peak(entry.index);
            let Some(fate) = queue.fate(seq).filter(|fate| fate.settled_at.is_none()) else { continue };
            let is_surplus = there.is_some_and(|(count, bytes)| {
                let bytes = bytes + entry.published[fate.id as usize].body.len() as u64;
                rules.length_max.is_some_and(|max| count >= max)
                    || rules.length_bytes_max.is_some_and(|max| bytes > max)
            });
            if fate.dead_at.is_none() {
                let end = End { queue: id, seq, reason, latest_ms, is_surplus };
                end.check(&rules, live, fate, entry.settle_asked);
            }
            fate.settled_at = Some(entry.index);
            let of = *fate;
            if reason.death().is_some() {
                found.push(Found::Ended { queue: id, seq, id: of.id, by_rule: reason != Reason::Discarded });
            }
            queue.live -= 1;
            queue.not_fresh(seq, of.level);
            if let Some(target) = schedule_of(id).filter(|_| reason == Reason::Due) {
                entry.due.push((target, of.id));
                let late_ms = entry.time_ms.saturating_sub(of.due_ms);
                if !rules.overflow.is_reject() && self.expected.late_ms_max.is_some_and(|max| late_ms > max) {
                    violated("schedule", &format!("message {seq} of queue {} came {late_ms} ms late", target.0));
                }
                Self::check_turn(queue, seq, of);
            }
        }
    }

    /// Messages that may be in a queue where an entry stands, and the bytes of their bodies: what
    /// it ends, it may end later.
    fn there(&self, id: QueueId, entry: &Entry<'_>) -> (u64, u64) {
        let fates = self.queues.get(&id).into_iter().flat_map(|queue| &queue.fates);
        let there = fates.filter(|fate| fate.settled_at.is_none_or(|index| index == entry.index));
        let bytes = |fate: &Fate| entry.published[fate.id as usize].body.len() as u64;
        there.fold((0, 0), |(count, sum), fate| (count + 1, sum + bytes(fate)))
    }

    /// Of the scheduled messages that a leader knew together, the one whose time comes first is
    /// first.
    fn check_turn(queue: &Queue, seq: u64, of: Fate) {
        let earlier = (1..).zip(&queue.fates).find(|(other, fate)| {
            fate.settled_at.is_none()
                && fate.committed_at <= of.committed_at
                && (fate.due_ms, *other) < (of.due_ms, seq)
        });
        if let Some((other, fate)) = earlier {
            let what = format!("message {seq} due at {} went before {other} due at {}", of.due_ms, fate.due_ms);
            violated("schedule", &what);
        }
    }

    fn dead(&mut self, id: QueueId, reason: Reason, seq: u64, entry: &Entry<'_>) {
        let rules = self.rules(id);
        let latest_ms = entry.time_ms + self.expected.slack_ms;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let live = queue.peak(entry.index);
        let fate = queue.fate(seq).expect("what is given up was taken in");
        if fate.settled_at.is_none() && fate.dead_at.is_none() {
            let end = End { queue: id, seq, reason, latest_ms, is_surplus: false };
            end.check(&rules, live, fate, entry.settle_asked);
            fate.dead_at = Some(entry.index);
            let level = fate.level;
            queue.not_fresh(seq, level);
        }
    }

    fn back(&mut self, id: QueueId, seq: u64, counts_against: bool, waits: Option<(u64, u64)>) {
        let limit = self.rules(id).delivery_limit;
        let Some(fate) = self.queues.get_mut(&id).and_then(|q| q.fate(seq)) else { return };
        fate.acquired += 1;
        fate.failed += u32::from(counts_against);
        fate.waits = waits;
        if let Some(limit) = limit.filter(|limit| fate.failed > *limit) {
            let failed = fate.failed;
            violated("counts", &format!("message {seq} of queue {} failed {failed} times, {limit} is the limit", id.0));
        }
    }

    /// A delivery of message `id`.
    pub fn delivered(&mut self, delivery: &Delivery, id: u64, at: Moment) -> Option<Found> {
        let (id_of_queue, seq) = (delivery.queue, delivery.seq);
        let (applied, what) = (self.applied, format!("message {seq} of queue {}", delivery.queue.0));
        self.check_gone(id_of_queue, at.applied, || format!("message {seq} went out"));
        if self.gone.contains_key(&id_of_queue) {
            // By a leader that has not applied its end.
            return None;
        }
        let queue = self.queues.entry(id_of_queue).or_default();
        let Some(fate) = queue.fate(seq) else {
            let early = Early { id, redelivered: delivery.redelivered };
            self.early.entry((id_of_queue, seq)).or_default().push(early);
            return None;
        };
        if fate.id != id {
            violated("published", &format!("{what} is {}, and {id} went out", fate.id));
        }
        if fate.settled_at.is_some_and(|index| index <= at.applied) {
            violated("settled", &format!("{what} went out, settled as it was"));
        }
        if fate.dead_at.is_some_and(|index| index <= at.applied) {
            violated("dead letter", &format!("{what} went out, given up as it was"));
        }
        if let Some((_, until_ms)) = fate.waits.filter(|w| w.0 <= at.applied_before && w.1 > at.latest_ms) {
            violated("retry", &format!("{what} went out at {}, and waits until {until_ms}", at.latest_ms));
        }
        // What came this moment goes out however short its time is; what was out before did not
        // come this moment.
        if let Some(over_ms) = fate.expires_ms.filter(|over| delivery.redelivered && *over <= at.now_ms) {
            violated("expired", &format!("{what} went out at {}, and its time was over at {over_ms}", at.now_ms));
        }
        let counts = delivery.counts;
        let is_too_low = at.applied == applied && counts.acquired < fate.acquired;
        if is_too_low || counts.acquired > fate.deliveries || counts.delivery > counts.acquired {
            violated("counts", &format!("{what} went out with {counts:?}, and the log says {fate:?}"));
        }
        fate.deliveries += 1;
        let of = *fate;
        queue.not_fresh(seq, of.level);
        if !delivery.redelivered {
            Self::check_level(queue, &what, (seq, of.level), at);
        }
        Some(Found::Delivered { queue: id_of_queue, id, redelivered: delivery.redelivered })
    }

    /// A message that goes out for the first time leaves none of a higher level behind that its
    /// leader had by then. It is found out when that one goes out too: until then it may have ended
    /// without anybody being told.
    fn check_level(queue: &mut Queue, what: &str, (seq, level): (u64, u8), at: Moment) {
        if let Some((_, before)) = queue.overtaken.remove(&seq).filter(|(term, _)| *term == at.term) {
            violated("priority", &format!("{what} has a higher priority than {before}, which went out before it"));
        }
        let Queue { fresh, fates, overtaken, .. } = queue;
        for seqs in fresh.range(level + 1..).map(|(_, seqs)| seqs) {
            for other in seqs.iter().filter(|other| fates[**other as usize - 1].committed_at <= at.applied_before) {
                overtaken.insert(*other, (at.term, seq));
            }
        }
    }

    /// Messages not settled.
    pub fn live(&self) -> u64 {
        self.queues.values().map(|q| q.live).sum()
    }

    /// The first message that is not settled: queue, number, id.
    pub fn first_live(&self) -> Option<(QueueId, u64, u64)> {
        self.queues.iter().find_map(|(id, queue)| {
            let at = queue.fates.iter().position(|f| f.settled_at.is_none())?;
            Some((*id, at as u64 + 1, queue.fates[at].id))
        })
    }
}
