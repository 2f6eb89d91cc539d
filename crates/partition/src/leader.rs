//! What a leader holds beside the replicated state: the entry it is building, what is in flight,
//! and its queues.
//!
//! Invariants: a leader numbers a message when it takes it in, and the machine gives it the same
//! number when it applies it (asserted); confirms leave in the order of the log for each level; the
//! value at risk of a selective queue counts every message that was or will be confirmed before its
//! sync, and never passes the cap.

use crate::command::{Command, DeadLetter, Effect, Level, Reply, RequestId, Selective};
use crate::commands::refuse;
use crate::damage::Spoilt;
use crate::entry::{BatchPlace, EntryBuilder};
use crate::latecomers::Latecomers;
use crate::life::{Life, Timers};
use crate::log_life::{DueMessage, LogLife};
use crate::machine::{FixedMap, Queues};
use crate::publishers::Seen;
use crate::queue::{Answer, Queue, Sink, UsedQueues, Waiting};
use crate::reader::Reader;
use crate::tail::ReadShare;
use crate::turn::Rooms;
use broker::queue::{Aside, CountMap, Dispatch, LevelRule, QueueState, Rules, SeqRanges};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use consensus::{LogIndex, Term};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::place::Place;

/// How far the dispatch watermark runs ahead of what consumers can take now, once they had to wait
/// for it.
const SENT_SLACK_FIRST: u64 = 8;
/// It runs twice as far ahead with each further wait, up to twice their credit, which counts as so
/// much at least.
const SENT_CREDIT_MIN: u64 = 64;
/// What unlimited credit counts as when the watermark is raised.
const SENT_AHEAD_UNLIMITED: u64 = 4096;
/// So many ticks, 450 to 600 ms, a leader gives out nothing that an earlier one may have given out, once those who
/// were attached there know that its office ended: they attach anew within a tenth of a second, and what they hold is
/// theirs.
pub(crate) const HOLDERS_TICKS: u64 = 4;
/// So many ticks of its office, three seconds, it waits at most: links to a node that hangs are given up before.
pub(crate) const HOLDERS_TICKS_MAX: u64 = 20;
/// A watermark that runs ahead of a queue from which nothing went out for so long is lowered to
/// what was sent.
const SENT_QUIET_MS: u64 = 1_000;

/// Publishes in a row of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfirmRange {
    pub(crate) channel: ChannelKey,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// Appends publishes in a row to a list of ranges; publishes of one channel come in order, so most extend
/// the last one.
pub(crate) fn push_confirm(ranges: &mut Vec<ConfirmRange>, channel: ChannelKey, (first, count): (u64, u64)) {
    if let Some(last) = ranges.last_mut()
        && last.channel == channel
        && last.first + last.count == first
    {
        last.count += count;
        return;
    }
    ranges.push(ConfirmRange { channel, first, count });
}

impl From<ConfirmRange> for Effect {
    fn from(ConfirmRange { channel, first, count }: ConfirmRange) -> Effect {
        Effect::Confirm { channel, first, count }
    }
}

/// Publishes that wait for their confirms, by the level that they wait for.
#[derive(Debug, Default)]
pub(crate) struct Confirms([Vec<ConfirmRange>; Level::ALL.len()]);

impl Confirms {
    /// Those of one level, in the order of the log.
    #[inline]
    pub(crate) fn at(&mut self, level: Level) -> &mut Vec<ConfirmRange> {
        &mut self.0[level as usize]
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ConfirmRange> {
        self.0.iter().flatten()
    }

    /// All of them, by level.
    pub(crate) fn into_all(self) -> impl Iterator<Item = ConfirmRange> {
        self.0.into_iter().flatten()
    }

    /// A channel wants to hear of nothing any more.
    pub(crate) fn forget(&mut self, channel: ChannelKey) {
        self.0.iter_mut().for_each(|ranges| ranges.retain(|range| range.channel != channel));
    }
}

/// An entry that was proposed and is not applied yet.
#[derive(Default)]
pub(crate) struct InFlight {
    pub(crate) index: LogIndex,
    pub(crate) confirms: Confirms,
    pub(crate) batches: Vec<BatchPlace>,
    /// Queues of which this entry settles something.
    pub(crate) settled: Vec<QueueId>,
    /// Queues that wait for the dispatch watermark in this entry.
    pub(crate) raised: Vec<QueueId>,
    /// Queues whose dispatch watermark this entry lowers.
    pub(crate) lowered: Vec<QueueId>,
    /// What comes off the value at risk once this entry is synced.
    pub(crate) values: Vec<(QueueId, u64)>,
    pub(crate) bytes: usize,
    /// The checksum of a large one.
    pub(crate) crc: Option<u32>,
    /// Messages that this entry ends and that go elsewhere once it is applied.
    pub(crate) letters: Vec<DeadLetter>,
    /// Requests that are answered once this entry is applied, because the answer promises what it
    /// says.
    pub(crate) answers: Vec<Answer>,
}

/// A batch of one queue that is proposed and not applied.
pub(crate) struct PendingBatch {
    pub(crate) index: LogIndex,
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) level: Level,
    /// The dispatch watermark as it stands in the log once this entry does: messages below may go
    /// out with the entry.
    pub(crate) sent_below: u64,
    /// Its bytes in the entry.
    pub(crate) bytes: Bytes,
    /// Some of its messages have a priority: their levels are known once it is applied.
    pub(crate) has_priorities: bool,
}

/// A queue as its leader sees it.
pub(crate) type LeaderQueue = Queue<LogSink>;

/// What a queue keeps whose messages are in the log.
pub(crate) struct LogSink {
    /// The number of the next message that is proposed; behind `next_seq` by what is in the entry
    /// being built.
    pub(crate) proposed_seq: u64,
    pub(crate) pending: VecDeque<PendingBatch>,
    /// How many of `pending`, from the front, were made ready before they were applied.
    pub(crate) counted: usize,
    /// The dispatch watermark as proposed.
    pub(crate) sent_proposed: u64,
    /// How far the watermark runs ahead of what consumers can take.
    pub(crate) sent_slack: u64,
    /// A lower watermark is on its way into the log: nothing from there on goes out until it is
    /// applied.
    pub(crate) lowered_to: Option<u64>,
    /// Its watermark was raised lately, and the cursor when that was looked at last.
    pub(crate) looked_at_cursor: Option<u64>,
    /// Messages below were perhaps sent by a leader before this one.
    pub(crate) redelivered_below: u64,
    pub(crate) reader: Option<Reader>,
    /// What was read and comes after it, ascending.
    pub(crate) ahead: VecDeque<Reader>,
    /// What both hold of what was read from the disk, as the shard counts it.
    pub(crate) read_share: ReadShare,
    /// A read is under way.
    pub(crate) reading: bool,
    /// Outcomes for the entry that is being built.
    pub(crate) acked: SeqRanges,
    pub(crate) discarded: SeqRanges,
    pub(crate) settling: bool,
    pub(crate) published: bool,
    /// Entries with settles of this queue that are not applied yet.
    pub(crate) settles_in_flight: u32,
    /// Counts as this leader knows them, ahead of the log.
    pub(crate) counts: CountMap,
    pub(crate) selective: Option<Selective>,
    pub(crate) at_risk: u64,
    /// Absent while everything can be read.
    pub(crate) spoilt: Option<Box<Spoilt>>,
}

impl Sink for LogSink {
    type Life = LogLife;

    fn kept(life: &LogLife) -> u64 {
        life.kept()
    }
}

impl LeaderQueue {
    pub(crate) fn of(state: Option<&QueueState<Place>>, rules: Option<&Arc<Rules>>) -> Self {
        let (next_seq, live, first, sent) = match state {
            Some(s) => {
                (s.next_seq(), s.in_turn(), s.next_in_turn(0).map_or(s.next_seq(), |n| n.0), s.dispatched_below())
            }
            None => (1, 0, 1, 1),
        };
        let sink = LogSink {
            proposed_seq: next_seq,
            pending: VecDeque::new(),
            counted: 0,
            sent_proposed: sent,
            sent_slack: 0,
            lowered_to: None,
            looked_at_cursor: None,
            redelivered_below: sent,
            reader: None,
            ahead: VecDeque::new(),
            read_share: ReadShare::default(),
            reading: false,
            acked: SeqRanges::new(),
            discarded: SeqRanges::new(),
            settling: false,
            published: false,
            settles_in_flight: 0,
            counts: CountMap::default(),
            selective: None,
            at_risk: 0,
            spoilt: None,
        };
        let mut queue = Queue::new(dispatch_around(state, rules, (first, next_seq, live)), next_seq, sink);
        queue.life = Life::of(state, rules.map(|r| &**r), next_seq);
        queue.rules = rules.cloned();
        queue
    }

    /// Whether forgetting it loses nothing: what is in the replicated state makes the same again.
    pub(crate) fn is_idle(&self, state: Option<&QueueState<Place>>) -> bool {
        self.dispatch.is_idle()
            && state.is_none_or(|s| s.runs().is_empty())
            && self.sink.pending.is_empty()
            // What was taken in and is held back is pending soon.
            && self.sink.proposed_seq == self.next_seq
            && self.waiting.is_empty()
            && !self.sink.settling
            && self.closing.is_none()
            && !self.sink.reading
            && self.sink.settles_in_flight == 0
            && self.sink.lowered_to.is_none()
            && self.sink.at_risk == 0
            && self.life.as_ref().is_none_or(|l| l.sink.is_idle(self.rules.as_deref()))
    }

    /// Whether somebody waits to hear if the queue is empty, to delete it.
    pub(crate) fn is_asked_if_empty(&self) -> bool {
        self.waiting.iter().any(|(_, waiting)| matches!(waiting, Waiting::Close { if_empty: true, .. }))
    }

    /// Where the dispatch watermark should stand, if it should rise: as far as its consumers could
    /// take, in what there is.
    pub(crate) fn sent_below(&self) -> Option<u64> {
        if self.dispatch.consumers() == 0 {
            return None;
        }
        let ahead = self.dispatch.free_credit().min(SENT_AHEAD_UNLIMITED) + self.sink.sent_slack;
        let below = (self.dispatch.cursor() + ahead).min(self.next_seq);
        (below > self.sink.sent_proposed).then_some(below)
    }

    /// A consumer has to wait for the watermark. Next time it runs further ahead, so that a queue
    /// that is consumed quickly waits seldom.
    pub(crate) fn widen_slack(&mut self) {
        let credit = self.dispatch.credit(SENT_AHEAD_UNLIMITED).clamp(SENT_CREDIT_MIN, SENT_AHEAD_UNLIMITED);
        self.sink.sent_slack = (2 * self.sink.sent_slack).clamp(SENT_SLACK_FIRST, 2 * credit);
    }

    /// Where the watermark should stand, if it runs ahead of what was ever sent and nothing on its
    /// way out goes by it.
    ///
    /// One that is being raised is left alone: on a disk that is slower than the look at quiet
    /// queues, whoever waits for it would wait for ever.
    pub(crate) fn unsent_from(&self, state: Option<&QueueState<Place>>) -> Option<u64> {
        let sent_below = self.dispatch.cursor().max(self.sink.redelivered_below);
        let is_quiet =
            self.sink.pending.is_empty() && self.sink.proposed_seq == self.next_seq && self.waiting.is_empty();
        let is_raised =
            self.sink.lowered_to.is_none() && state.is_some_and(|s| s.dispatched_below() >= self.sink.sent_proposed);
        (is_quiet && is_raised && sent_below < self.sink.sent_proposed).then_some(sent_below)
    }

    /// Makes a batch ready that is applied now, and was not ready before.
    pub(crate) fn make_applied_ready(&mut self, count: u32, state: &QueueState<Place>) {
        let count = u64::from(count);
        match state.levels() {
            Some(levels) => self.dispatch.add_ready_by_level(count, levels, returned_first(self.rules.as_ref())),
            None => self.dispatch.add_ready(count),
        }
    }

    /// Makes batches ready that have reached their level.
    pub(crate) fn make_ready(&mut self, written: LogIndex) -> bool {
        let before = self.sink.counted;
        while let Some(batch) = self.sink.pending.get(self.sink.counted) {
            if batch.level.is_on_disk() || batch.index > written || batch.has_priorities {
                break;
            }
            self.dispatch.add_ready(u64::from(batch.count));
            self.sink.counted += 1;
        }
        self.sink.counted > before
    }
}

/// Whether what came back goes before everything else, among messages with priorities: so on quorum
/// queues.
fn returned_first(rules: Option<&Arc<Rules>>) -> bool {
    rules.is_some_and(|rules| rules.levels == LevelRule::Strict)
}

/// A dispatcher of what is in turn. What waits for a retry comes back from outside of its first
/// pass, so the first pass begins behind it, and what lies before is given out as returned.
fn dispatch_around(
    state: Option<&QueueState<Place>>,
    rules: Option<&Arc<Rules>>,
    (first, next_seq, live): (u64, u64, u64),
) -> Dispatch {
    let Some(state) = state else { return Dispatch::new(first, next_seq, live) };
    let aside = state.extras().map(|e| &e.aside);
    let is_waiting = |(seq, aside): (&u64, &Aside)| matches!(aside, Aside::Until(_)).then_some(*seq);
    let last = aside.and_then(|aside| aside.iter().rev().find_map(is_waiting));
    let mut next = state.next_in_turn(0);
    let mut in_turn = std::iter::from_fn(|| {
        let (seq, _) = next?;
        next = state.next_in_turn(seq + 1);
        Some(seq)
    })
    .peekable();
    let mut before = Vec::new();
    if let Some(last) = last {
        before.extend(std::iter::from_fn(|| in_turn.next_if(|seq| *seq < last)));
    }
    let mut dispatch = match state.levels() {
        Some(levels) => Dispatch::with_levels(next_seq, levels, returned_first(rules), in_turn),
        None => Dispatch::new(last.map_or(first, |last| last + 1), next_seq, live - before.len() as u64),
    };
    before.into_iter().for_each(|seq| dispatch.put_back(seq, 1, state.levels()));
    dispatch
}

/// A leader of one term.
pub(crate) struct Leader {
    pub(crate) term: Term,
    pub(crate) queues: FixedMap<QueueId, LeaderQueue>,
    pub(crate) builder: EntryBuilder,
    /// The machine version that it proposed last.
    pub(crate) raising: u32,
    /// What is confirmed with the entry being built.
    pub(crate) confirms: Confirms,
    pub(crate) values: Vec<(QueueId, u64)>,
    /// The values at risk of all queues together: each may come close to what 64 bits hold.
    pub(crate) at_risk: u128,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) in_flight_bytes: usize,
    /// Up to where a majority has written the log, and confirms of that level are given.
    pub(crate) written: LogIndex,
    /// The same of this member alone: written, and synced. Looked at once somebody asked for a level that
    /// waits for no other member.
    pub(crate) own: [LogIndex; 2],
    pub(crate) confirms_alone: bool,
    pub(crate) dirty: Vec<QueueId>,
    pub(crate) settling: Vec<QueueId>,
    /// Queues whose next message waits for the watermark that the entry being built raises.
    pub(crate) raised: Vec<QueueId>,
    /// Queues whose watermark the entry being built lowers.
    pub(crate) lowered: Vec<QueueId>,
    /// Queues whose watermark was raised lately, and when they are looked at.
    pub(crate) ahead: Vec<QueueId>,
    pub(crate) look_ahead_ms: Option<u64>,
    /// Queues with consumers that the entry being built publishes to.
    pub(crate) published: Vec<QueueId>,
    /// Queues that a channel consumes from or got from.
    pub(crate) channels: UsedQueues,
    /// Channels that publish here, ahead of the log; but for the one that published last.
    pub(crate) publishers: FixedMap<ChannelKey, Seen>,
    pub(crate) last_publisher: (ChannelKey, Seen),
    /// Ticks of this office, and what the last number of each channel was at the last look for idle ones.
    pub(crate) ticks: u64,
    /// Consumers on other nodes may still come and say what they hold of an earlier leader: what that may have
    /// given out waits for them.
    pub(crate) awaits_holders: bool,
    /// The tick from which on they know that they have to come.
    pub(crate) holders_know_at: Option<u64>,
    /// New consumers, which wait as long.
    pub(crate) latecomers: Latecomers,
    pub(crate) idle: FixedMap<ChannelKey, u64>,
    /// Repeats that queues with deduplication dropped since this leader began; only those that did.
    pub(crate) repeats: FixedMap<QueueId, u64>,
    /// Barriers: answered once everything written before is synced.
    pub(crate) barriers: VecDeque<(crate::outputs::Ticket, ChannelKey, RequestId)>,
    /// Finished entries that the log did not take yet: too much of it is uncommitted.
    pub(crate) held: VecDeque<(Bytes, InFlight)>,
    pub(crate) targets: SmallVec<[QueueId; 1]>,
    /// Room for what a settle takes out of a holder's hands.
    pub(crate) taken: Vec<(u64, u64)>,
    /// What is left of the room that consumers' connections gave in this step.
    pub(crate) rooms: Rooms,
    /// When queues want to be looked at.
    pub(crate) timers: Timers,
    /// Dead letters that leave once the entry being built is applied.
    pub(crate) letters: Vec<DeadLetter>,
    /// Bytes of those, and of all in entries that are not applied yet.
    pub(crate) letters_bytes: usize,
    /// Answers that are given once the entry being built is applied.
    pub(crate) answers: Vec<Answer>,
    /// Scheduled messages that this turn found due.
    pub(crate) due: Vec<DueMessage>,
    /// Commands behind a publish whose queue has to count its bytes first, and that publish before
    /// them.
    pub(crate) postponed: VecDeque<Command>,
    /// What they hold of memory.
    pub(crate) postponed_bytes: usize,
}

impl Leader {
    /// One whose entries are proposed from a length of `entry_bytes_target` on.
    pub(crate) fn new(term: Term, entry_bytes_target: usize) -> Self {
        Leader {
            term,
            queues: FixedMap::default(),
            builder: EntryBuilder::of(entry_bytes_target),
            raising: 0,
            confirms: Confirms::default(),
            values: Vec::new(),
            at_risk: 0,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            written: LogIndex(0),
            own: [LogIndex(0); 2],
            confirms_alone: false,
            dirty: Vec::new(),
            settling: Vec::new(),
            raised: Vec::new(),
            lowered: Vec::new(),
            ahead: Vec::new(),
            look_ahead_ms: None,
            published: Vec::new(),
            channels: FixedMap::default(),
            publishers: FixedMap::default(),
            last_publisher: (ChannelKey::NOBODY, Seen::default()),
            ticks: 0,
            awaits_holders: false,
            holders_know_at: None,
            latecomers: Latecomers::default(),
            idle: FixedMap::default(),
            barriers: VecDeque::new(),
            held: VecDeque::new(),
            targets: SmallVec::new(),
            taken: Vec::new(),
            rooms: Rooms::default(),
            timers: Timers::new(),
            letters: Vec::new(),
            letters_bytes: 0,
            answers: Vec::new(),
            repeats: FixedMap::default(),
            due: Vec::new(),
            postponed: VecDeque::new(),
            postponed_bytes: 0,
        }
    }

    /// Answers once all that was taken in before is applied: with the entry being built, or the last
    /// one that is on its way.
    pub(crate) fn mark(&mut self, answer: Answer, effects: &mut Vec<Effect>) {
        if !self.builder.is_empty() || !self.settling.is_empty() {
            self.answers.push(answer);
        } else if let Some((_, entry)) = self.held.back_mut() {
            entry.answers.push(answer);
        } else if let Some(entry) = self.in_flight.back_mut() {
            entry.answers.push(answer);
        } else {
            effects.push(answer.into());
        }
    }

    /// Has publishes in a row confirmed once the entry being built has reached a level.
    #[inline]
    pub(crate) fn confirm_at(&mut self, level: Level, channel: ChannelKey, run: (u64, u64)) {
        self.confirms_alone |= level.is_of_leader();
        push_confirm(self.confirms.at(level), channel, run);
    }

    /// Whether what is in flight at this index has reached a level, and is confirmed at it.
    pub(crate) fn has_reached(&self, level: Level, index: LogIndex) -> bool {
        match level {
            Level::LeaderWritten => index <= self.own[0],
            Level::LeaderSynced => index <= self.own[1],
            Level::Written => index <= self.written,
            // It would be applied.
            Level::Synced => false,
        }
    }

    /// Its office ends: whoever waits for an answer is told to ask the next leader, publishes that
    /// were not confirmed before a decision go back to whoever sent them, and consumers hear that
    /// they are none any more: the next leader does not know them, and would leave them waiting for
    /// ever.
    pub(crate) fn leave_unanswered(&mut self, effects: &mut Vec<Effect>) {
        let mut ids: Vec<QueueId> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(lq) = self.queues.get_mut(&id) else { continue };
            effects.extend(lq.waiting.drain(..).map(|(_, waiting)| waiting.answer(Reply::NotLeader)));
            lq.cancel_consumers(id, effects);
            let Some(closing) = lq.closing.take() else { continue };
            closing.refuse_consumers(Reply::NotLeader, effects);
            let term = self.term.0 as u32;
            let returned = closing.confirms.into_iter();
            effects.extend(returned.map(|held| Effect::Returned {
                channel: held.channel,
                first: held.seq,
                count: 1,
                term,
            }));
        }
        self.latecomers.take().for_each(|command| refuse(command, Reply::NotLeader, effects));
        for (_, channel, request) in self.barriers.drain(..) {
            effects.push(Effect::Reply { channel, request, reply: Reply::NotLeader });
        }
        // What the log was told and nobody has heard of yet may come to pass or not.
        let in_log = self.in_flight.iter_mut().chain(self.held.iter_mut().map(|held| &mut held.1));
        let in_log = in_log.flat_map(|entry| std::mem::take(&mut entry.answers));
        for Answer { channel, request, .. } in in_log.chain(std::mem::take(&mut self.answers)) {
            effects.push(Effect::Reply { channel, request, reply: Reply::NotLeader });
        }
    }

    /// The watermark of a queue was raised: it is looked at again once the queue may be quiet.
    pub(crate) fn note_raised(ahead: &mut Vec<QueueId>, id: QueueId, queue: &mut LeaderQueue) {
        if queue.sink.looked_at_cursor.is_none() {
            queue.sink.looked_at_cursor = Some(queue.dispatch.cursor());
            ahead.push(id);
        }
    }

    /// Sets the time at which queues are looked at whose watermark was raised.
    #[inline]
    pub(crate) fn note_ahead(&mut self, now_ms: u64) {
        if !self.ahead.is_empty() && self.look_ahead_ms.is_none() {
            self.look_ahead_ms = Some(now_ms + SENT_QUIET_MS);
        }
    }

    /// Lowers the watermarks of queues from which nothing went out since they were looked at last.
    pub(crate) fn lower_watermarks(&mut self, queues: &Queues, now_ms: u64) {
        if self.look_ahead_ms.is_none_or(|at| at > now_ms) {
            return;
        }
        for id in std::mem::take(&mut self.ahead) {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            let cursor = queue.dispatch.cursor();
            if queue.sink.looked_at_cursor.replace(cursor) != Some(cursor) {
                self.ahead.push(id);
            } else if queue.sink.sent_proposed <= cursor.max(queue.sink.redelivered_below) {
                queue.sink.looked_at_cursor = None;
            } else if let Some(below) = queue.unsent_from(queues.queue(id)).filter(|_| self.held.is_empty()) {
                queue.sink.looked_at_cursor = None;
                Leader::lower(&mut self.builder, &mut self.lowered, (id, below), queue);
            } else {
                self.ahead.push(id);
            }
        }
        self.look_ahead_ms = (!self.ahead.is_empty()).then_some(now_ms + SENT_QUIET_MS);
    }

    /// Says in the entry being built that nothing from `below` on was sent. Nothing from there on
    /// is, until that is applied and the watermark raised again.
    pub(crate) fn lower(
        builder: &mut EntryBuilder,
        lowered: &mut Vec<QueueId>,
        (id, below): (QueueId, u64),
        queue: &mut LeaderQueue,
    ) {
        builder.unsent(id, below);
        (queue.sink.sent_proposed, queue.sink.sent_slack, queue.sink.lowered_to) = (below, 0, Some(below));
        lowered.push(id);
    }

    /// Puts a queue on the list of those with outcomes to log.
    pub(crate) fn settle_later(settling: &mut Vec<QueueId>, id: QueueId, queue: &mut LeaderQueue) {
        if !queue.sink.settling {
            queue.sink.settling = true;
            settling.push(id);
        }
    }
}
