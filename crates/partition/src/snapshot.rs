//! Bringing a follower up to date that needs more than the log still has.
//!
//! ```text
//! leader                                                follower
//! wants to send what is compacted: image of its state
//!   ── Raft's snapshot message (position, manifest) ──▶ kept aside: the group goes on voting meanwhile
//!   ◀── pull image from byte n ── / ── bytes ──▶        until the image is whole
//!   ◀── pull queue q from message m ── / ── bodies ──▶  that it has not: into extents, synced, which nothing
//!                                                       refers to yet
//!                                                       the message is stepped: the log is cut by a mark,
//!                                                       a checkpoint at its position is saved, the state is
//!   ◀── Raft's answer ──                                exchanged; only now it counts
//! ```
//!
//! Manifest: `u8 version=1 | u64 image bytes | u32 crc32c(image)`. The image's own bytes are
//! drawn in `snapshot/image.rs`.
//!
//! Frames: [`crate::peer`].
//!
//! Invariants: what is half fetched is never referred to; the image is of one log index; bodies are
//! those of now, and a message that is settled meanwhile comes without one: the log behind the
//! snapshot settles it before anyone could deliver it. What the follower has of the image it keeps where it
//! is, so a copy that was away for seconds fetches what was published meanwhile, whatever the backlog. Memory is
//! bounded: one image a follower at the leader, and [`RECEIVED_BYTES_MAX`] of bodies at the follower.

mod image;
pub(crate) mod transfer;

use crate::checkpoint::Head;
use crate::entry::{Batch, Commands, LogCommand};
use crate::machine::{ExtentUse, Queues};
use crate::machine::{TOO_NEW, WrittenByNewer};
use crate::outputs::{ExtentReady, Job, Outputs, Read, ReadAt, ReadBytes, ReadFailed, ReadPurpose};
use crate::partition::{Context, QueuePartition};
use crate::peer::{PeerFrame, SnapshotKey};
use crate::place::Place;
use broker::QueueId;
use broker::queue::{QueueState, Run};
use bytes::Bytes;
use consensus::{EntryKind, LogIndex, Message, NodeId, Position, Term};
use image::Image;
use std::collections::{BTreeMap, BTreeSet};
use storage::{FileNo, Location};
use transfer::{IDLE_TICKS_MAX, IncomingImage, OutgoingImages, PULL_TICKS, Taken};

/// One answer brings about this much of an extent, or of batches of the log.
const BODIES_PART_BYTES: u32 = 256 << 10;
/// So many batches of the log are read for one answer.
const READS_MAX: usize = 256;
/// Bodies and messages that are gathered before they go into an extent.
pub(crate) const RECEIVED_BYTES_MAX: usize = 8 << 20;
const RECEIVED_MESSAGES_MAX: usize = 65_536;

/// What a follower fetches.
struct Incoming {
    message: Message,
    position: Position,
    gathered: IncomingImage,
    image: Option<Image>,
    /// For each queue of the image the number below which this member has its messages.
    kept: Vec<u64>,
    /// The queue of the image whose messages are fetched, by number, and the next message.
    queue: usize,
    from: u64,
    received: Vec<(QueueId, u64, Bytes)>,
    received_bytes: usize,
    /// Parts of that queue that came ahead of others, by their first number.
    early: BTreeMap<u64, Part>,
    is_writing: bool,
    extents: Vec<ExtentReady>,
    idle_ticks: u32,
    /// Ticks until the pull under way is repeated; 0 sends one now.
    pull_in: u32,
}

/// Messages of a queue up to a number, as they came.
struct Part {
    past: u64,
    messages: Vec<(u64, Bytes)>,
}

/// A snapshot that is fetched and handed to the group; it counts once its checkpoint is saved.
struct Installing {
    queues: Queues,
    position: Position,
    /// The log behind it begins in this file, or a later one.
    file: u32,
    is_saving: bool,
}

/// All transfers of one partition.
#[derive(Default)]
pub(crate) struct Snapshots {
    outgoing: OutgoingImages,
    incoming: Option<Incoming>,
    installing: Option<Installing>,
    installed: u64,
    /// Messages that came with the last one.
    fetched: u64,
}

impl Snapshots {
    /// Whether an extent of received messages is under way.
    pub(crate) fn is_writing(&self) -> bool {
        self.incoming.as_ref().is_some_and(|i| i.is_writing)
    }

    /// Whether a snapshot takes over where this member has its messages: nothing may move until it counts.
    pub(crate) fn takes_over(&self) -> bool {
        self.installing.is_some() || self.incoming.as_ref().is_some_and(Incoming::is_complete)
    }

    /// Whether a checkpoint of a snapshot is being saved.
    pub(crate) fn is_saving(&self) -> bool {
        self.installing.as_ref().is_some_and(|i| i.is_saving)
    }

    /// The WAL file from which on the log is needed, if a snapshot is being installed.
    pub(crate) fn needs_file(&self) -> Option<u32> {
        self.installing.as_ref().map(|i| i.file)
    }

    /// The last entry that a follower has once its snapshot is installed; of all a snapshots under
    /// way, the first.
    pub(crate) fn needs(&self) -> Option<LogIndex> {
        self.outgoing.needs()
    }
}

impl QueuePartition {
    /// How many snapshots this member has installed since it started.
    pub fn snapshots_installed(&self) -> u64 {
        self.snapshots.installed
    }

    /// How many messages came with the last of them. The others were here.
    pub fn messages_fetched(&self) -> u64 {
        self.snapshots.fetched
    }

    /// A follower asks for more of the image.
    pub(crate) fn image_pulled(&mut self, from: NodeId, (term, index): SnapshotKey, offset: u64, out: &mut Outputs) {
        let part = self.snapshots.outgoing.part(&self.replica, (from, term, index), offset);
        out.frames.extend(part.map(|part| (from, self.id(), part)));
    }

    /// A tick went by: transfers in which nothing moves are repeated, then given up.
    pub(crate) fn snapshot_tick(&mut self, out: &mut Outputs) {
        self.snapshots.outgoing.tick(&mut self.replica);
        if let Some(incoming) = &mut self.snapshots.incoming {
            incoming.pull_in = incoming.pull_in.saturating_sub(1);
            incoming.idle_ticks += 1;
            if incoming.idle_ticks >= IDLE_TICKS_MAX && !incoming.is_writing {
                self.forget_incoming(out);
            }
        }
    }

    /// Takes every transfer as far as it goes now.
    pub(crate) fn snapshot_turn(&mut self, cx: &mut Context<'_>) {
        for wanted in self.replica.take_snapshots_wanted() {
            self.offer(wanted.to);
        }
        if let Some(message) = self.replica.take_offered() {
            self.begin(message, cx);
        }
        self.fetch_on(cx.out);
        // What is being moved stays where it is: the snapshot's state is to say where that is.
        let is_moving = self.maintenance.is_copying() || self.repairs.is_writing();
        if !is_moving && self.snapshots.incoming.as_ref().is_some_and(Incoming::is_complete) {
            self.hand_to_group(cx);
        }
        self.save_installing(cx);
    }

    /// Makes an image of the state for a follower, and offers it.
    fn offer(&mut self, to: NodeId) {
        if !self.snapshots.outgoing.may_offer(&mut self.replica, to) {
            return;
        }
        let position = Position { index: self.applied, term: self.applied_term };
        let image = Bytes::from(image::encode(&self.queues));
        self.snapshots.outgoing.offer(&mut self.replica, to, position, image::VERSION, image);
    }

    /// Answers with the next live messages of a queue, once they are read: a run of an extent, or so many
    /// batches of the log as make one answer, each of them by itself.
    pub(crate) fn serve_messages(
        &mut self,
        to: NodeId,
        (term, index): SnapshotKey,
        queue: QueueId,
        from: u64,
        out: &mut Outputs,
    ) {
        if self.snapshots.outgoing.is_pulled(&self.replica, (to, term, index), (queue, from)) {
            let past = self.read_messages((to, term, index), (queue, from), READS_MAX, out);
            self.snapshots.outgoing.are_read(&self.replica, (to, term, index), (queue, from, past));
        }
    }

    /// Has so many runs be read at most, or says that there is nothing more. Gives the number before which what
    /// is read ends, as far as that is known.
    fn read_messages(
        &mut self,
        (to, term, index): (NodeId, Term, LogIndex),
        (queue, from): (QueueId, u64),
        reads_max: usize,
        out: &mut Outputs,
    ) -> u64 {
        let partition = self.id();
        let (mut next, mut bytes_left, mut reads) = (from, BODIES_PART_BYTES, 0);
        while let Some((seq, run)) = self.queues.queue(queue).and_then(|state| state.runs().next_live(next)) {
            let bytes = match run.place {
                Place::Wal { bytes, .. } => bytes,
                Place::Extent { .. } if reads == 0 => BODIES_PART_BYTES,
                Place::Extent { .. } => break,
            };
            let purpose = ReadPurpose::Snapshot {
                to,
                term,
                index,
                queue,
                from: next,
                past: run.past(),
                place: run.place,
                is_second: false,
            };
            out.reads.push(Read { partition, at: bodies_at(run, seq), purpose });
            // How much of an extent comes is known once it is read.
            next = if let Place::Wal { .. } = run.place { run.past() } else { next };
            (bytes_left, reads) = (bytes_left.saturating_sub(bytes), reads + 1);
            if bytes_left == 0 || reads == reads_max {
                break;
            }
        }
        if reads == 0 {
            // Nothing is left of it; what the image has is settled by the log behind it.
            out.frames.push((to, partition, messages_part((term, index), (queue, from, u64::MAX), Vec::new())));
        }
        next
    }

    /// The messages for an answer were read, or are not there any more.
    pub(crate) fn snapshot_read(
        &mut self,
        (to, term, index): (NodeId, Term, LogIndex),
        (queue, (from, read_past), place): (QueueId, (u64, u64), Place),
        is_second: bool,
        found: Result<ReadBytes, ReadFailed>,
        cx: &mut Context<'_>,
    ) {
        let partition = self.id();
        if !self.snapshots.outgoing.offers(&self.replica, (to, term, index)) {
            return;
        }
        let next = self.queues.queue(queue).and_then(|state| state.runs().next_live(from));
        let Some((seq, run)) = next.filter(|(_, run)| run.place == place) else {
            match next {
                // Moved meanwhile: it is looked for again.
                Some((seq, _)) if seq < read_past => {
                    self.read_messages((to, term, index), (queue, from), 1, cx.out);
                }
                // Settled meanwhile, and what is read behind it follows.
                _ => {
                    let part = messages_part((term, index), (queue, from, read_past), Vec::new());
                    cx.out.frames.push((to, partition, part));
                }
            }
            return;
        };
        let run_past = run.past();
        // Intact ones up to `past`, or that nothing up to there can be read.
        let (messages, past) = match found {
            Ok(ReadBytes::Wal(bytes)) => match Batch::parse(&bytes, 0).ok().filter(Batch::is_intact) {
                Some(batch) => {
                    let (mut messages, mut at) = (Vec::new(), batch.first_message_at());
                    for (number, view) in batch.iter().enumerate() {
                        let seq = run.first + number as u64;
                        if seq >= from && run.is_live(seq) {
                            messages.push((seq, bytes.slice(at..at + view.len())));
                        }
                        at += view.len();
                    }
                    (Some(messages), run_past)
                }
                None => (None, run_past),
            },
            Ok(ReadBytes::Extent { messages, damage: None }) => {
                let Some(past) = messages.last().map(|m| m.0 + 1) else { return };
                (Some(messages.into_iter().filter(|(seq, _)| run.is_live(*seq)).collect()), past)
            }
            Ok(ReadBytes::Extent { messages, damage: Some(_) }) => {
                // What is intact up to the first that is not can go; the rest is asked of the
                // others.
                let live = (seq..run_past).filter(|seq| run.is_live(*seq));
                let intact: Vec<_> = messages.into_iter().filter(|(seq, _)| run.is_live(*seq)).collect();
                let sound = live.zip(&intact).take_while(|(seq, (number, _))| seq == number).count();
                match sound.checked_sub(1).map(|last| intact[last].0 + 1) {
                    Some(past) => (Some(intact.into_iter().take(sound).collect()), past),
                    None => (None, intact.first().map_or(run_past, |(first, _)| *first)),
                }
            }
            Err(ReadFailed::Damaged(_) | ReadFailed::Gone(_)) => (None, run_past),
            Ok(_) | Err(ReadFailed::Refused(_)) => return,
        };
        if let Some(messages) = messages {
            cx.out.frames.push((to, partition, messages_part((term, index), (queue, from, past), messages)));
        } else if is_second {
            // What this member cannot read it cannot give: another may have it. The follower asks
            // again meanwhile.
            let why = crate::deliver::batch_is_damaged(place);
            self.repair_stretches((queue, place), vec![(seq, past - seq)], &why, cx);
        } else {
            let purpose =
                ReadPurpose::Snapshot { to, term, index, queue, from, past: run_past, place, is_second: true };
            cx.out.reads.push(Read { partition, at: bodies_at(run, seq), purpose });
        }
    }

    /// If this member waits for these very messages, or for more than them, to go on with a
    /// snapshot of `leader`: from which number of the queue on it has nothing, not even in entries
    /// that it has not applied. It will not get them from anybody else before that.
    pub(crate) fn has_nothing_from(&self, leader: NodeId, queue: QueueId, first: u64) -> Option<u64> {
        let incoming = self.snapshots.incoming.as_ref()?;
        let stands_at = incoming.image.as_ref().and_then(|image| image.queues.get(incoming.queue))?;
        let is_asked_by_its_leader =
            incoming.message.from() == leader && incoming.message.term() == self.replica.group().status().term;
        if !is_asked_by_its_leader || stands_at.id != queue || incoming.from > first {
            return None;
        }
        let fresh = QueueState::default();
        let mut next = self.queues.queue(queue).unwrap_or(&fresh).next_seq();
        let entries = self.replica.group().unapplied();
        // Whether they are what was committed cannot be told. If they are, these are the numbers of
        // what they publish; if they are not, it stands in them no more than elsewhere.
        for entry in entries.iter().filter(|entry| entry.index > self.applied && entry.kind == EntryKind::Command) {
            let mut commands = Commands::parse(&entry.data).ok()?;
            while let Some(command) = commands.next().ok()? {
                if let LogCommand::Publish(batch) = command {
                    let times = batch.targets().filter(|target| *target == queue).count() as u64;
                    next += times * u64::from(batch.messages());
                }
            }
        }
        Some(next)
    }

    /// Raft's message came: if it is needed, fetching begins, and the group gets it when that is
    /// done.
    fn begin(&mut self, message: Message, cx: &mut Context<'_>) {
        let Some(offer) = message.snapshot() else { return };
        let status = self.replica.group().status();
        let position = offer.position;
        let has_it =
            position.index <= status.commit || self.replica.table().term(position.index) == Some(position.term);
        if has_it || message.term() < status.term || self.snapshots.installing.is_some() {
            // The group answers what is old by itself.
            self.replica.step_offered(message);
            return self.drive(cx);
        }
        if self
            .snapshots
            .incoming
            .as_ref()
            .is_some_and(|i| i.position == position && i.message.term() == message.term())
        {
            return;
        }
        if self.snapshots.incoming.as_ref().is_some_and(|i| i.is_writing) {
            // Its extent is on the way; the leader offers again.
            return;
        }
        self.forget_incoming(cx.out);
        // What it has of the log it may be the only one to have whole: applied, it can be given to
        // others.
        if self.replica.group_mut().learn_from_offer(&offer) {
            self.drive(cx);
        }
        let Some(gathered) = IncomingImage::of(offer.manifest, image::VERSION) else { return };
        self.snapshots.incoming = Some(Incoming {
            message,
            position,
            gathered,
            image: None,
            kept: Vec::new(),
            queue: 0,
            from: 0,
            received: Vec::new(),
            received_bytes: 0,
            early: BTreeMap::new(),
            is_writing: false,
            extents: Vec::new(),
            idle_ticks: 0,
            pull_in: 0,
        });
    }

    fn incoming(&mut self, (term, index): SnapshotKey) -> Option<&mut Incoming> {
        self.snapshots.incoming.as_mut().filter(|i| i.message.term() == term && i.position.index == index)
    }

    /// A part of the image came. What belongs to no transfer is dropped.
    pub(crate) fn take_image(&mut self, snapshot: SnapshotKey, offset: u64, part: &Bytes) {
        let (id, versions) = (self.id().0, self.queues.versions);
        let Some(incoming) = self.incoming(snapshot) else { return };
        if incoming.image.is_some() {
            return;
        }
        let whole = match incoming.gathered.take(offset, part) {
            Taken::Passed => return,
            Taken::Part => return incoming.moved(),
            Taken::Whole(bytes) => match Image::decode(&bytes, versions) {
                Err(why) if why.what == TOO_NEW => {
                    WrittenByNewer::end(&format!("partition {id}"), &format_args!("a snapshot: {}", why.what))
                }
                image => image.ok(),
            },
            Taken::Damaged => None,
        };
        let Some(image) = whole else {
            // Damaged on the way, or of a version that this build does not know. The leader offers
            // again, later.
            self.snapshots.incoming = None;
            return;
        };
        let kept: Vec<u64> = image.queues.iter().map(|queue| queue.kept_below(&self.queues)).collect();
        let incoming = self.incoming(snapshot).expect("it was there");
        incoming.from = kept.first().copied().unwrap_or_default();
        (incoming.image, incoming.kept) = (Some(image), kept);
        incoming.skip_done();
        incoming.moved();
    }

    /// Messages of a queue came. What belongs to no transfer is dropped. One question is answered in many parts, which
    /// are read one by one and may come in any order: one that is ahead of others waits for them.
    pub(crate) fn take_messages(
        &mut self,
        snapshot: SnapshotKey,
        (queue, from, past): (QueueId, u64, u64),
        messages: Vec<(u64, Bytes)>,
    ) {
        let Some(incoming) = self.incoming(snapshot) else { return };
        let at = incoming.queue;
        let is_of = incoming.image.as_ref().and_then(|i| i.queues.get(at)).is_some_and(|image| image.id == queue);
        if !is_of || from < incoming.from || past <= from {
            return;
        }
        let part = Part { past, messages };
        if from > incoming.from {
            return incoming.keep_early(from, part);
        }
        let mut next = Some(part);
        while let Some(part) = next {
            incoming.take_part(part);
            next = if incoming.queue == at { incoming.early.remove(&incoming.from) } else { None };
        }
        let (is_same, from) = (incoming.queue == at, incoming.from);
        incoming.early.retain(|first, _| is_same && *first > from);
        incoming.moved();
    }

    /// Asks for what comes next, or has what was gathered written.
    fn fetch_on(&mut self, out: &mut Outputs) {
        let (partition, is_repairing) = (self.replica.id(), self.repairs.is_writing());
        let Some(incoming) = &mut self.snapshots.incoming else { return };
        if incoming.is_writing {
            return;
        }
        let is_full = incoming.received_bytes >= RECEIVED_BYTES_MAX || incoming.received.len() >= RECEIVED_MESSAGES_MAX;
        if !incoming.received.is_empty() && (is_full || incoming.has_all()) {
            if is_repairing {
                return;
            }
            incoming.is_writing = true;
            incoming.received_bytes = 0;
            let messages = std::mem::take(&mut incoming.received);
            out.jobs.push(Job::WriteReceived { partition, messages });
            return;
        }
        if incoming.pull_in > 0 || incoming.has_all() {
            return;
        }
        incoming.pull_in = PULL_TICKS;
        let (term, index) = (incoming.message.term(), incoming.position.index);
        let frame = match &incoming.image {
            None => incoming.gathered.pull((term, index)),
            Some(image) => PeerFrame::PullMessages {
                snapshot: (term, index),
                queue: image.queues[incoming.queue].id,
                from: incoming.from,
            },
        };
        out.frames.push((incoming.message.from(), partition, frame));
    }

    /// What was received is in an extent. `None`: it held nothing.
    pub fn received_written(&mut self, ready: Option<ExtentReady>) {
        if self.repairs.is_writing() {
            return self.repair_written(ready);
        }
        let incoming = self.snapshots.incoming.as_mut().expect("a transfer that writes is not given up");
        assert!(std::mem::take(&mut incoming.is_writing), "an extent was under way");
        incoming.extents.extend(ready);
        incoming.moved();
    }

    /// Whether messages from other members are being written to a file.
    pub(crate) fn is_receiving(&self) -> bool {
        self.snapshots.is_writing() || self.repairs.is_writing()
    }

    /// Takes part in no transfer any more. Returns all extents that this member has, those that
    /// nothing refers to yet included.
    pub(crate) fn give_up_snapshots(&mut self) -> Vec<u32> {
        let Snapshots { incoming, installing, .. } = std::mem::take(&mut self.snapshots);
        let installing = installing.iter().flat_map(|installing| installing.queues.extents().keys().copied());
        let incoming = incoming.iter().flat_map(|incoming| incoming.extents.iter().map(|extent| extent.id));
        let all: BTreeSet<u32> = self.queues.extents().keys().copied().chain(installing).chain(incoming).collect();
        all.into_iter().collect()
    }

    fn forget_incoming(&mut self, out: &mut Outputs) {
        let Some(incoming) = self.snapshots.incoming.take() else { return };
        assert!(!incoming.is_writing, "what is being written would be left behind");
        out.jobs.extend(incoming.extents.iter().map(|extent| Job::DropExtent { id: extent.id }));
    }

    /// Everything is here: the group takes the snapshot, unless it has gone on meanwhile.
    fn hand_to_group(&mut self, cx: &mut Context<'_>) {
        if self.replica.is_installing() {
            return;
        }
        let mut incoming = self.snapshots.incoming.take().expect("it is complete");
        let image = incoming.image.as_ref().expect("a complete transfer has its image");
        let (kept, own) = (incoming.kept.iter(), &self.queues);
        // Entries that came late may have brought what was fetched, too.
        if image.queues.iter().zip(kept).any(|(queue, kept)| *kept > 0 && queue.kept_below(own) != *kept) {
            self.snapshots.incoming = Some(incoming);
            return self.forget_incoming(cx.out);
        }
        let message = incoming.message.clone();
        self.replica.step_offered(message);
        self.drive(cx);
        if self.replica.installing() != Some(incoming.position) {
            self.snapshots.incoming = Some(incoming);
            return self.forget_incoming(cx.out);
        }
        let image = incoming.image.take().expect("it was looked at");
        self.snapshots.fetched = incoming.extents.iter().map(|extent| extent.messages).sum();
        let queues = image.restore(&incoming.extents, &self.queues, &incoming.kept, self.queues.versions);
        let (position, file) = (incoming.position, self.maintenance.current_file());
        assert!(file > 0, "a partition is told where the log is before it runs");
        self.snapshots.installing = Some(Installing { queues, position, file, is_saving: false });
    }

    /// Saves the checkpoint of a snapshot once the log is cut.
    fn save_installing(&mut self, cx: &mut Context<'_>) {
        let Some(installing) = &mut self.snapshots.installing else { return };
        if installing.is_saving || self.maintenance.is_saving() {
            return;
        }
        let Some(membership) = self.replica.cut_is_synced() else { return };
        installing.is_saving = true;
        // A checkpoint that was under way let go of them.
        let gone =
            |(id, used): (&u32, &ExtentUse)| (used.live == 0 && !self.queues.extents().contains_key(id)).then_some(*id);
        let gone: Vec<u32> = installing.queues.extents().iter().filter_map(gone).collect();
        gone.into_iter().for_each(|id| installing.queues.forget_extent(id));
        let vote = self.replica.stored_vote();
        let head = Head { applied: installing.position, vote, membership, life: self.replica.node().life() };
        let job = self.maintenance.save_snapshot(self.replica.id(), &head, &installing.queues, installing.file);
        cx.out.jobs.push(job);
    }

    /// Its checkpoint is saved: the snapshot counts.
    pub(crate) fn install(&mut self, cx: &mut Context<'_>) {
        let Installing { mut queues, position, .. } =
            self.snapshots.installing.take().expect("its checkpoint was saved");
        assert!(position.index > self.applied, "a snapshot never takes back what is applied");
        // Extents in which nothing lives any more go when no checkpoint refers to them.
        let made_since = |id: &u32| !queues.extents().contains_key(id);
        let made_since: Vec<u32> = self.queues.extents().keys().copied().filter(made_since).collect();
        for id in made_since {
            let used = self.queues.extents()[&id];
            queues.add_extent(id, used.messages, used.bytes);
        }
        queues.take_message_bytes(&mut self.queues);
        self.queues = queues;
        let there = &self.queues;
        self.traffic.retain(|queue| there.queue(queue).is_some());
        self.applied = position.index;
        self.applied_term = position.term;
        self.snapshots.installed += 1;
        self.replica.installed(cx.out);
    }
}

impl Part {
    fn bytes(&self) -> usize {
        self.messages.iter().map(|(_, body)| body.len()).sum()
    }
}

impl Incoming {
    /// Something came: the next pull may go out.
    fn moved(&mut self) {
        self.idle_ticks = 0;
        self.pull_in = 0;
    }

    /// Keeps a part that came ahead of others, unless too much is kept: then it is asked for again.
    fn keep_early(&mut self, from: u64, part: Part) {
        let kept: usize = self.early.values().map(Part::bytes).sum();
        if self.early.len() < READS_MAX && self.received_bytes + kept + part.bytes() <= RECEIVED_BYTES_MAX {
            self.early.insert(from, part);
        }
    }

    /// The next messages of the queue have come.
    fn take_part(&mut self, Part { past, messages }: Part) {
        let Some(image) = self.image.as_ref().and_then(|image| image.queues.get(self.queue)) else { return };
        let mut given: BTreeMap<u64, Bytes> = messages.into_iter().collect();
        for &(first, count) in &image.live {
            for seq in first.max(self.from)..(first + count).min(past) {
                let body = given.remove(&seq).unwrap_or_default();
                self.received_bytes += body.len();
                self.received.push((image.id, seq, body));
            }
        }
        self.from = past;
        self.skip_done();
    }

    /// Goes on to the next queue with messages that are not fetched.
    fn skip_done(&mut self) {
        let Some(image) = &self.image else { return };
        while let Some(queue) = image.queues.get(self.queue) {
            if queue.live.last().is_some_and(|(first, count)| first + count > self.from) {
                return;
            }
            self.queue += 1;
            self.from = self.kept.get(self.queue).copied().unwrap_or_default();
        }
    }

    fn has_all(&self) -> bool {
        self.image.as_ref().is_some_and(|image| self.queue == image.queues.len())
    }

    fn is_complete(&self) -> bool {
        self.has_all() && !self.is_writing && self.received.is_empty()
    }
}

/// What to read for a message of a run, and as many behind it as one answer brings.
fn bodies_at(run: &Run<Place>, seq: u64) -> ReadAt {
    match run.place {
        Place::Wal { file, offset, bytes } => ReadAt::Wal(Location { file: FileNo(u64::from(file)), offset, bytes }),
        Place::Extent { id, run: number } => {
            ReadAt::Extent { id, run: number, from: seq, past: run.past(), bytes_max: BODIES_PART_BYTES }
        }
    }
}

fn messages_part(
    snapshot: SnapshotKey,
    (queue, from, past): (QueueId, u64, u64),
    messages: Vec<(u64, Bytes)>,
) -> PeerFrame {
    PeerFrame::MessagesPart { snapshot, queue, from, past, messages }
}
