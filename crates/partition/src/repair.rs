//! Messages that this member cannot read any more, fetched from the others and written anew; given
//! up only when nobody has them.
//!
//! ```text
//! member with the damage                                another member
//!   ── ask: queue, numbers from, past ──▶               reads where they lie there, past what memory has of the file
//!   ◀── have: numbers from, past; bodies, or lost ──    what is neither was ended there, or is not there yet
//! (the same of the next member, until nothing is missing, or all others have lost what is)
//! what came: into an extent, synced; then the run lies there instead of where the damage is
//! what every member has lost: set aside, in the log, by the leader
//! ```
//!
//! Frames: [`crate::peer`].
//!
//! Invariants: a message is set aside only when every member of the group has said, in answer to
//! this very question, that it lost it; a member that does not answer may have it, so the queue
//! waits. What is written anew is never referred to before it is synced. Memory is bounded:
//! [`REPAIRS_MAX`] at a time, of [`REPAIR_BYTES_MAX`] and one batch or message each.

use crate::deliver::batch_of;
use crate::message::MessageView;
use crate::outputs::{Damage, ExtentReady, Fate, Job, Read, ReadAt, ReadBytes, ReadFailed, ReadPurpose};
use crate::partition::{Context, QueuePartition};
use crate::peer::{Missing, PeerFrame};
use crate::place::Place;
use broker::QueueId;
use broker::queue::SeqRanges;
use bytes::Bytes;
use consensus::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// One answer brings about this much.
const PART_BYTES: u32 = 256 << 10;
/// Stretches of messages that are repaired at the same time; others are met again later.
const REPAIRS_MAX: usize = 8;
/// Numbers that one repair of an extent covers: one answer names as many at most.
const REPAIR_NUMBERS_MAX: u64 = 1024;
/// Of an extent no more is gathered than this before it is written; a batch of the log is repaired
/// whole.
const REPAIR_BYTES_MAX: usize = 1 << 20;
/// A question without an answer goes to the next member after this many ticks.
const ASK_TICKS: u32 = 2;
/// A repair in which nothing moves for this many ticks makes room for another; its queue looks
/// again later.
const IDLE_TICKS_MAX: u32 = 20;
/// Damaged places that are told once, and not at each look.
const TOLD_MAX: usize = 1024;

/// A stretch of messages of one run that cannot be read here.
struct Repair {
    number: u64,
    queue: QueueId,
    place: Place,
    first: u64,
    past: u64,
    why: String,
    has: BTreeMap<u64, Bytes>,
    has_bytes: usize,
    /// What others said that they lost.
    lost_by: BTreeMap<NodeId, SeqRanges>,
    asked: Option<NodeId>,
    /// Whoever brought something last is asked for the rest.
    helpful: Option<NodeId>,
    /// Ticks until somebody else is asked; 0 asks now.
    ask_in: u32,
    idle_ticks: u32,
    is_writing: bool,
    /// Nobody has what is missing, and the log is told so.
    is_set_aside: bool,
}

/// All repairs of one partition.
#[derive(Default)]
pub(crate) struct Repairs {
    running: Vec<Repair>,
    begun: u64,
    /// Something came, or time went by.
    look: bool,
    /// Places that were told to be damaged and are not repaired yet.
    told: BTreeSet<Place>,
}

impl Repairs {
    /// Whether an extent of repaired messages is under way.
    pub(crate) fn is_writing(&self) -> bool {
        self.running.iter().any(|m| m.is_writing)
    }
}

/// How a repair goes on.
enum Step {
    Waits,
    /// It came to nothing for now.
    GivenUp,
    /// Nothing of it is live any more where it lay.
    Gone,
}

impl QueuePartition {
    /// The other members, in order.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let m = self.replica.group().membership();
        let all = m.voters.iter().chain(&m.learners).chain(&m.voters_outgoing).copied();
        let others: BTreeSet<NodeId> = all.filter(|node| *node != self.replica.node()).collect();
        others.into_iter().collect()
    }

    /// Begins to fetch messages `first..past` of one run from the others: they were read twice in
    /// vain, the second time from the disk itself. False if there is no room for another stretch
    /// now.
    pub(crate) fn repair(
        &mut self,
        (queue, place): (QueueId, Place),
        (first, past): (u64, u64),
        why: String,
        cx: &mut Context<'_>,
    ) -> bool {
        let m = &mut self.repairs;
        m.look = true;
        let overlapping = |r: &Repair| (r.queue, r.place) == (queue, place) && r.first < past && first < r.past;
        if m.running.iter().any(overlapping) {
            return true;
        }
        if m.running.len() >= REPAIRS_MAX {
            return false;
        }
        let past = match place {
            Place::Wal { .. } => past,
            Place::Extent { .. } => past.min(first + REPAIR_NUMBERS_MAX),
        };
        m.begun += 1;
        // An answer to a question of an earlier life of this node must not be taken for one to
        // this.
        let number = (cx.now_ms << 16) + m.begun % (1 << 16);
        if m.told.len() < TOLD_MAX && m.told.insert(place) {
            let messages = vec![(first, past - first)];
            cx.out.damage.push(Damage { queue, place, messages, why: why.clone(), fate: Fate::Asked });
        }
        m.running.push(Repair {
            number,
            queue,
            place,
            first,
            past,
            why,
            has: BTreeMap::new(),
            has_bytes: 0,
            lost_by: BTreeMap::new(),
            asked: None,
            helpful: None,
            ask_in: 0,
            idle_ticks: 0,
            is_writing: false,
            is_set_aside: false,
        });
        true
    }

    /// The same for several stretches of a run; those for which there is no room are met again.
    pub(crate) fn repair_stretches(
        &mut self,
        (queue, place): (QueueId, Place),
        stretches: Vec<(u64, u64)>,
        why: &str,
        cx: &mut Context<'_>,
    ) {
        let run = |first| self.queues.queue(queue).and_then(|state| state.runs().covering(first));
        let whole = stretches.first().and_then(|(first, _)| run(*first)).map(|run| (run.first, run.past()));
        match (place, whole) {
            (Place::Wal { .. }, Some(whole)) => _ = self.repair((queue, place), whole, why.to_owned(), cx),
            _ => {
                for (first, count) in stretches {
                    self.repair((queue, place), (first, first + count), why.to_owned(), cx);
                }
            }
        }
    }

    /// A tick went by: questions without an answer are repeated, and given up at last.
    pub(crate) fn repair_tick(&mut self) {
        self.repairs.look |= !self.repairs.running.is_empty();
        for m in &mut self.repairs.running {
            m.ask_in = m.ask_in.saturating_sub(1);
            m.idle_ticks += 1;
        }
    }

    /// Takes every repair as far as it goes now.
    pub(crate) fn repair_turn(&mut self, cx: &mut Context<'_>) {
        if !std::mem::take(&mut self.repairs.look) {
            return;
        }
        let mut running = std::mem::take(&mut self.repairs.running);
        let mut is_writing = running.iter().any(|m| m.is_writing);
        running.retain_mut(|m| match self.repair_on(m, &mut is_writing, cx) {
            Step::Waits => true,
            Step::GivenUp => {
                self.look_later(m.queue, cx.now_ms);
                false
            }
            Step::Gone => {
                self.repaired(m);
                false
            }
        });
        self.repairs.running = running;
    }

    fn repair_on(&mut self, m: &mut Repair, is_writing: &mut bool, cx: &mut Context<'_>) -> Step {
        if m.is_writing {
            return Step::Waits;
        }
        let live = self.live_there(m);
        if live.is_empty() {
            return Step::Gone;
        }
        let mut missing = SeqRanges::new();
        live.seqs().filter(|seq| !m.has.contains_key(seq)).for_each(|seq| missing.insert(seq));
        if missing.is_empty() {
            if *is_writing
                || self.maintenance.is_copying()
                || self.snapshots.is_writing()
                || self.snapshots.takes_over()
            {
                return Step::Waits;
            }
            (m.is_writing, *is_writing) = (true, true);
            let messages = live.seqs().map(|seq| (m.queue, seq, m.has[&seq].clone())).collect();
            cx.out.jobs.push(Job::WriteReceived { partition: self.replica.id(), messages });
            return Step::Waits;
        }
        if m.idle_ticks >= IDLE_TICKS_MAX {
            return Step::GivenUp;
        }
        let others = self.others();
        let unheard = |node: &NodeId| match m.lost_by.get(node) {
            Some(lost) => missing.seqs().find(|seq| !lost.contains(*seq)),
            None => missing.first(),
        };
        if others.iter().all(|node| unheard(node).is_none()) {
            if self.leader.is_none() {
                // A leader that wants them asks for itself.
                return Step::GivenUp;
            }
            if !std::mem::replace(&mut m.is_set_aside, true) {
                self.set_aside(m.queue, m.place, missing.seqs(), m.why.clone(), cx.out);
            }
            return Step::Waits;
        }
        if m.ask_in > 0 {
            return Step::Waits;
        }
        // The one after the last that was asked, round and round.
        let (before, after): (Vec<NodeId>, Vec<NodeId>) =
            others.into_iter().partition(|node| m.asked.is_some_and(|asked| *node <= asked));
        let helpful = m.helpful.take().filter(|node| before.contains(node));
        let mut next = helpful.iter().chain(&after).chain(&before);
        let next = next.find_map(|node| unheard(node).map(|from| (*node, from)));
        let (node, from) = next.expect("somebody was not heard of everything");
        (m.asked, m.ask_in) = (Some(node), ASK_TICKS);
        let missing = Missing { number: m.number, queue: m.queue, from, past: m.past };
        cx.out.frames.push((node, self.replica.id(), PeerFrame::AskMissing(missing)));
        Step::Waits
    }

    /// What of a stretch is live and still lies where the damage is.
    fn live_there(&self, m: &Repair) -> SeqRanges {
        let mut live = SeqRanges::new();
        let Some(state) = self.queues.queue(m.queue) else { return live };
        let runs = state.runs().iter_from(m.first).take_while(|run| run.first < m.past);
        for run in runs.filter(|run| run.place == m.place) {
            for (first, count) in run.live_ranges() {
                let (low, high) = (first.max(m.first), (first + count).min(m.past));
                live.insert_range(low, high.saturating_sub(low));
            }
        }
        live
    }

    /// Its queue may go on: the messages are there again, or they have ended.
    fn repaired(&mut self, m: &Repair) {
        self.repairs.told.remove(&m.place);
        self.maintenance.put_back(m.place);
        if let Some(leader) = self.leader.as_deref_mut()
            && let Some(lq) = leader.queues.get_mut(&m.queue)
        {
            lq.sink.reading = false;
            lq.touch(m.queue, &mut leader.dirty);
        }
    }

    /// Its queue looks again in a while, and meets the damage again if it is still there.
    pub(crate) fn look_later(&mut self, queue: QueueId, now_ms: u64) {
        if let Some(leader) = self.leader.as_deref_mut()
            && let Some(lq) = leader.queues.get_mut(&queue)
        {
            let at = lq.read_later(now_ms);
            leader.timers.insert((at, queue));
        }
    }

    /// What was fetched is in an extent: from now on it lies there.
    pub(crate) fn repair_written(&mut self, ready: Option<ExtentReady>) {
        let at = self.repairs.running.iter().position(|m| m.is_writing).expect("an extent is written for somebody");
        let m = self.repairs.running.remove(at);
        if let Some(ready) = ready {
            self.queues.add_ready(&ready);
            self.queues.repair_run(m.queue, m.place, (m.first, m.past), ready.id, &ready.runs);
            self.repaired_messages += ready.messages;
        }
        self.repairs.look = true;
        self.repaired(&m);
    }

    /// How many messages this member has fetched from others since it started, because it could not
    /// read them.
    pub fn messages_repaired(&self) -> u64 {
        self.repaired_messages
    }

    /// Looks for the first of the numbers that lives here, and for what lies with it.
    pub(crate) fn serve_mending(&mut self, to: NodeId, missing: Missing, cx: &mut Context<'_>) {
        let Missing { number, queue, from, past } = missing;
        let partition = self.replica.id();
        let next = self.queues.queue(queue).and_then(|state| state.runs().next_live(from));
        let Some((seq, run)) = next.filter(|(seq, _)| *seq < past) else {
            // Ended here, or not here yet. Whoever asks hears of it, and asks again if it lives
            // there. To a leader whose snapshot stops at these very messages that is the last word:
            // without it the two would wait for one another.
            let lost = match self.has_nothing_from(to, queue, from) {
                Some(never_here) => never_here.max(from)..past.min(from + REPAIR_NUMBERS_MAX),
                None => 0..0,
            };
            let lost = lost.map(|seq| (seq, None)).collect();
            cx.out.frames.push((to, partition, PeerFrame::HaveMissing(missing, lost)));
            return;
        };
        let place = run.place;
        let purpose = ReadPurpose::Repair { to, number, queue, from: seq, past, place };
        let at = match place {
            Place::Wal { file, offset, bytes } => {
                let at = place.in_wal().expect("it lies in the log");
                if let Some(cached) = cx.tail.get(file, offset, bytes) {
                    return self.repair_read(purpose, Ok(ReadBytes::Batches(vec![(at, cached)])), cx);
                }
                ReadAt::Batches(vec![at])
            }
            Place::Extent { id, run: number } => {
                let past = run.past().min(past).min(seq + REPAIR_NUMBERS_MAX);
                ReadAt::Extent { id, run: number, from: seq, past, bytes_max: PART_BYTES }
            }
        };
        cx.out.reads.push(Read { partition, at, purpose });
    }

    /// What another member asked for was read, or is lost here too.
    pub(crate) fn repair_read(
        &mut self,
        purpose: ReadPurpose,
        found: Result<ReadBytes, ReadFailed>,
        cx: &mut Context<'_>,
    ) {
        let ReadPurpose::Repair { to, number, queue, from, past, place } = purpose else {
            unreachable!("asked for repairs only")
        };
        let run = self.queues.queue(queue).and_then(|state| state.runs().covering(from));
        let Some(run) = run.filter(|run| run.place == place && run.is_live(from)) else {
            // Ended or moved meanwhile: look again.
            return self.serve_mending(to, Missing { number, queue, from, past }, cx);
        };
        let mut past = past.min(run.past());
        let mut have: BTreeMap<u64, Bytes> = BTreeMap::new();
        match found {
            Ok(ReadBytes::Batches(batches)) => {
                let batch = batches.into_iter().next().and_then(|(at, bytes)| batch_of(run, at, bytes));
                if let Some(mut reader) = batch {
                    let wanted = (from..past).filter(|seq| run.is_live(*seq));
                    have.extend(wanted.filter_map(|seq| reader.take(seq).map(|body| (seq, body))));
                }
            }
            Ok(ReadBytes::Extent { messages, damage }) => {
                past = past.min(from + REPAIR_NUMBERS_MAX);
                // Without damage it may end early, because it is enough; with damage, after what is
                // intact.
                if let Some((last, _)) = messages.last() {
                    past = past.min(last + 1);
                } else if damage.is_none() {
                    return;
                }
                have.extend(messages);
            }
            Err(ReadFailed::Damaged(_) | ReadFailed::Gone(_)) => past = past.min(from + REPAIR_NUMBERS_MAX),
            Ok(_) | Err(ReadFailed::Refused(_)) => return,
        }
        let live = (from..past).filter(|seq| run.is_live(*seq));
        let messages = live.map(|seq| (seq, have.remove(&seq))).collect();
        let frame = PeerFrame::HaveMissing(Missing { number, queue, from, past }, messages);
        cx.out.frames.push((to, self.replica.id(), frame));
    }

    /// An answer came. One to another question is dropped.
    pub(crate) fn take_mending(&mut self, from: NodeId, missing: Missing, messages: Vec<(u64, Option<Bytes>)>) {
        let Missing { number, queue, from: first, past } = missing;
        let repairs = &mut self.repairs;
        let Some(m) = repairs.running.iter_mut().find(|m| m.number == number && m.queue == queue && !m.is_writing)
        else {
            return;
        };
        let mut moved = false;
        for (seq, body) in messages {
            if !(first.max(m.first)..past.min(m.past)).contains(&seq) {
                return;
            }
            let Some(body) = body else {
                m.lost_by.entry(from).or_default().insert(seq);
                moved = true;
                continue;
            };
            // One without a body was ended there before it was fetched.
            if MessageView::parse(&body).is_some_and(|view| view.len() == body.len()) {
                m.has_bytes += body.len();
                m.has.insert(seq, body);
                moved = true;
            }
        }
        if matches!(m.place, Place::Extent { .. }) && m.has_bytes >= REPAIR_BYTES_MAX {
            // The rest is met again.
            m.past = m.has.last_key_value().map_or(m.past, |(last, _)| last + 1);
        }
        if moved {
            m.idle_ticks = 0;
            m.ask_in = 0;
            m.helpful = Some(from);
            repairs.look = true;
        }
    }
}
