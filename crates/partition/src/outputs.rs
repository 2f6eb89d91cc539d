//! What a partition wants done: written, sent, read, copied. The shell carries it out and reports
//! back.

use crate::command::Effect;
use crate::peer::PeerFrame;
use crate::place::Place;
use broker::{PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Contradiction, LogIndex, NodeId, Term};
use smallvec::SmallVec;
use std::fmt;
use storage::{Location, Record};

/// How soon a write must be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncWish {
    /// With the next sync, which starts as soon as the disk is free.
    Now,
    /// At the latest this many milliseconds after it was written; a sync for someone else will do.
    Within(u32),
}

/// Names a write of one partition; grows by one a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Records for the WAL. Answered by `wal_written` if `report_written`, and by `wal_synced` always,
/// in order.
#[derive(Clone, Debug)]
pub struct WalWrite {
    /// Whose.
    pub partition: PartitionId,
    /// Its name.
    pub ticket: Ticket,
    /// What to append, in order. May be empty: then it is a barrier for what was written before.
    pub records: Vec<Record>,
    /// How soon.
    pub sync: SyncWish,
    /// Whether somebody waits for *written* rather than for *synced*.
    pub report_written: bool,
}

/// Bytes to read, answered by `read_done` with the same purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// Whose.
    pub partition: PartitionId,
    /// Where and how much.
    pub at: ReadAt,
    /// What for; handed back.
    pub purpose: ReadPurpose,
}

/// What to read.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadAt {
    /// A stretch of a WAL file. What it holds checks itself.
    Wal(Location),
    /// Several of them, in order. The first is wanted, the others are read ahead: one that cannot
    /// be read ends the answer.
    Batches(Vec<Location>),
    /// Messages of a run of an extent, from a sequence number on, until about `bytes_max` bytes are
    /// together.
    Extent {
        /// The extent.
        id: u32,
        /// Its run.
        run: u32,
        /// The first message wanted.
        from: u64,
        /// One past the last message wanted.
        past: u64,
        /// Enough.
        bytes_max: u32,
    },
    /// The bodies of these records of the WAL, in order: entries for a follower that lags.
    Records(Vec<Location>),
}

/// Why something is read.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadPurpose {
    /// The next messages of a queue.
    Messages {
        /// The queue.
        queue: QueueId,
        /// The message that is waited for.
        seq: u64,
        /// Where it lay when the read was asked for.
        place: Place,
        /// The first read of it was in vain: this one comes from the disk itself, whatever memory
        /// has.
        is_second: bool,
    },
    /// The next messages of a queue, for a follower that is sent a snapshot.
    Snapshot {
        /// The follower.
        to: NodeId,
        /// The term of the snapshot's leader.
        term: Term,
        /// Where the snapshot stands.
        index: LogIndex,
        /// The queue.
        queue: QueueId,
        /// The first message wanted.
        from: u64,
        /// One past the last message of the run that is read.
        past: u64,
        /// Where it lay when the read was asked for.
        place: Place,
        /// The first read of it was in vain: this one comes from the disk itself, whatever memory
        /// has.
        is_second: bool,
    },
    /// Messages that another member asked for, because it cannot read them.
    Repair {
        /// The member.
        to: NodeId,
        /// Its question.
        number: u64,
        /// The queue.
        queue: QueueId,
        /// The first message wanted, which is live.
        from: u64,
        /// One past the last message wanted.
        past: u64,
        /// Where the first lay when the read was asked for.
        place: Place,
    },
    /// Log entries from this index on.
    Entries {
        /// The first.
        from: LogIndex,
    },
}

/// What a read found.
#[derive(Clone, Debug)]
pub enum ReadBytes {
    /// The bytes of [`ReadAt::Wal`].
    Wal(Bytes),
    /// The stretches of [`ReadAt::Batches`] and where they lay; at least the first.
    Batches(Vec<(Location, Bytes)>),
    /// Messages of [`ReadAt::Extent`].
    Extent {
        /// With their numbers, ascending, all of them intact. Those whose bytes are damaged are
        /// passed over: the first one here is the first intact one, and without any there is none
        /// left in the run.
        messages: Vec<(u64, Bytes)>,
        /// What was passed over, and where.
        damage: Option<String>,
    },
    /// One body a record.
    Records(Vec<Bytes>),
}

/// Why a read brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFailed {
    /// The bytes are not what was written: which file, where, and what is wrong.
    Damaged(String),
    /// Their file is not there, and may come back.
    Gone(String),
    /// The system refused just now (too many open files, say); it may be tried again.
    Refused(String),
}

/// What becomes of messages that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No member of the group has them: they end with this, in the log.
    SetAside,
    /// The other members are asked for them; until one of them has answered, or all of them, the
    /// queue waits.
    Asked,
    /// Their file is not there. The queue waits for it.
    Awaited,
    /// A member that does not lead noticed it, and nobody else is there to ask: the leader decides
    /// when it meets them.
    Told,
}

/// Messages whose bytes cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Their queue.
    pub queue: QueueId,
    /// Where they lie.
    pub place: Place,
    /// Which, as `(first, count)`, ascending.
    pub messages: Vec<(u64, u64)>,
    /// Which file, where in it, what is wrong.
    pub why: String,
    /// What becomes of them.
    pub fate: Fate,
}

impl Damage {
    /// How many messages.
    pub fn count(&self) -> u64 {
        self.messages.iter().map(|(_, count)| count).sum()
    }
}

/// `1 message`, `2 messages`.
pub fn messages_in_words(count: u64) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (queue, count, why) = (self.queue.0, self.count(), &self.why);
        write!(f, "{} of queue {queue} cannot be read, numbers", messages_in_words(count))?;
        for (number, (first, count)) in self.messages.iter().enumerate().take(RANGES_TOLD_MAX) {
            let comma = if number > 0 { "," } else { "" };
            match count {
                1 => write!(f, "{comma} {first}")?,
                _ => write!(f, "{comma} {first} to {}", first + count - 1)?,
            }
        }
        if self.messages.len() > RANGES_TOLD_MAX {
            write!(f, " and more")?;
        }
        write!(f, ": {why}. ")?;
        match self.fate {
            Fate::SetAside => write!(
                f,
                "They are set aside: ended in the log as damaged, given to nobody, not dead-lettered; the queue goes on. \
                 Check the disk"
            ),
            Fate::Asked => {
                write!(f, "The other members are asked for them, and the queue waits until they answer. Check the disk")
            }
            Fate::Awaited => write!(f, "Their queue waits until the file is back. Is its disk mounted?"),
            Fate::Told => write!(f, "Whoever leads decides what becomes of them. Check the disk"),
        }
    }
}

/// An entry of the log that a follower needs and that its leader cannot read any more. Followers
/// that need it, or one before, get a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostEntry {
    /// The partition.
    pub partition: PartitionId,
    /// The entry.
    pub index: LogIndex,
    /// Which file, where in it, what is wrong.
    pub why: String,
}

impl std::fmt::Display for LostEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LostEntry { partition, index, why } = self;
        let number = partition.0;
        write!(
            f,
            "entry {index} of partition {number} cannot be read: {why}. Members that need it get a snapshot. Check the disk"
        )
    }
}

/// Ranges of numbers that one line of the log tells.
const RANGES_TOLD_MAX: usize = 16;

/// A run whose live messages are to be copied into an extent.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyRun {
    /// Its queue.
    pub queue: QueueId,
    /// Where it lies now.
    pub place: Place,
    /// The number of its first message, live or not.
    pub first: u64,
    /// How many messages it covers.
    pub count: u32,
    /// The live ones, as `(first, count)`.
    pub live: SmallVec<[(u64, u64); 1]>,
    /// Nothing of the queue lies between the run before in the list and this one: they may become
    /// one run.
    pub joins: bool,
}

/// Work for the maintenance thread; one of a kind a partition at a time.
#[derive(Clone, Debug)]
pub enum Job {
    /// Copy live messages into a new extent; answered by `extent_ready`.
    WriteExtent {
        /// Whose.
        partition: PartitionId,
        /// In the order of queues and numbers.
        runs: Vec<CopyRun>,
        /// The log or its index is too large, or other extents can go for it. Otherwise the partition
        /// is idle and could give up its old files: that can wait where the disk has little room.
        is_pressing: bool,
    },
    /// Make this the partition's newest checkpoint; answered by `checkpoint_saved`.
    SaveCheckpoint {
        /// Whose.
        partition: PartitionId,
        /// Its state, as of `applied`.
        payload: Vec<u8>,
        /// The last entry in it.
        applied: LogIndex,
        /// Replay starts here: in this WAL file, which and whose successors hold every entry after
        /// `applied`.
        replay_file: u32,
    },
    /// Put messages that other members sent into a new extent, in this order; answered by
    /// `received_written`.
    WriteReceived {
        /// Whose.
        partition: PartitionId,
        /// Queue, number, and the message as stored; empty for one that was settled meanwhile.
        messages: Vec<(QueueId, u64, Bytes)>,
    },
    /// Delete an extent file that no checkpoint refers to any more.
    DropExtent {
        /// Which.
        id: u32,
    },
}

/// One message range of a new extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRun {
    /// The queue.
    pub queue: QueueId,
    /// The number of the run in the extent.
    pub run: u32,
    /// Its first message.
    pub first: u64,
    /// One past its last message.
    pub past: u64,
    /// How many messages it has.
    pub messages: u32,
    /// What it takes in the file: its messages, its index, its line of the table.
    pub bytes: u32,
}

/// A finished [`Job::WriteExtent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentReady {
    /// The new extent.
    pub id: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Messages in it.
    pub messages: u64,
    /// Its runs.
    pub runs: Vec<ExtentRun>,
    /// Which of the runs in the job were copied, whole, by their first numbers (a repaired run may
    /// lie in pieces at one place); the rest did not fit.
    pub copied: Vec<(QueueId, Place, u64)>,
}

/// A run that could not be copied, because some of its live messages cannot be read. It stays where
/// it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRun {
    /// Its queue.
    pub queue: QueueId,
    /// Where it lies.
    pub place: Place,
    /// The messages that cannot be read, as `(first, count)`.
    pub messages: Vec<(u64, u64)>,
    /// Which file, where in it, what is wrong.
    pub why: String,
    /// Their file is not there, and may come back.
    pub is_gone: bool,
}

/// A member that takes no part in its group any more: its log and the leader's word cannot both be
/// true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halted {
    /// Whose member.
    pub partition: PartitionId,
    /// What is wrong, and the way out.
    pub why: Contradiction,
}

impl fmt::Display for Halted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this node takes no further part in partition {}: {}", self.partition.0, self.why)
    }
}

/// A follower that needs a snapshot whose state is larger than it could save. It stays behind until
/// the state is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRefused {
    /// Whose.
    pub partition: PartitionId,
    /// The follower.
    pub to: NodeId,
    /// The size of the state.
    pub bytes: u64,
    /// The largest that can be saved.
    pub bytes_max: u64,
}

impl fmt::Display for ImageRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, to, bytes, bytes_max } = self;
        write!(
            f,
            "{to} lags behind in partition {} and cannot be sent its state of {bytes} bytes, as a checkpoint holds at most \
             {bytes_max}: settle or purge messages, or delete queues, and it catches up by itself within a minute",
            partition.0
        )
    }
}

/// The log of a partition has a time that this node's clock has not reached: a clock was ahead when
/// it was written, or this one is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAhead {
    /// Whose log.
    pub partition: PartitionId,
    /// By how much, milliseconds.
    pub ahead_ms: u64,
}

impl fmt::Display for ClockAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the clock was ahead by {} s when the log was written, or is behind now: messages that come now count by \
             today's clock; what was delayed then comes when it has caught up; compare the clocks of all nodes",
            self.ahead_ms / 1000
        )
    }
}

/// Everything that came out of a step. Reused from step to step.
#[derive(Default)]
pub struct Outputs {
    /// For channels.
    pub effects: Vec<Effect>,
    /// For the WAL.
    pub wal: Vec<WalWrite>,
    /// For the readers.
    pub reads: Vec<Read>,
    /// For the maintenance thread.
    pub jobs: Vec<Job>,
    /// For the operator: messages that cannot be read.
    pub damage: Vec<Damage>,
    /// How many of them were set aside.
    pub set_aside: u64,
    /// For the operator: entries that followers need and that cannot be read.
    pub lost_entries: Vec<LostEntry>,
    /// For the operator: members that take no part in their group any more. Each is told once.
    pub halted: Vec<Halted>,
    /// For the operator: followers that cannot be sent a snapshot.
    pub refused_images: Vec<ImageRefused>,
    /// For the operator: logs with a time that the clock has not reached. Each is told when this
    /// member begins to lead.
    pub clocks_ahead: Vec<ClockAhead>,
    /// For other members.
    pub frames: Vec<(NodeId, PartitionId, PeerFrame)>,
}

impl Outputs {
    /// Adds what came out of another step, after what is here.
    pub fn append(&mut self, mut more: Outputs) {
        self.effects.append(&mut more.effects);
        self.wal.append(&mut more.wal);
        self.reads.append(&mut more.reads);
        self.jobs.append(&mut more.jobs);
        self.damage.append(&mut more.damage);
        self.set_aside += more.set_aside;
        self.lost_entries.append(&mut more.lost_entries);
        self.halted.append(&mut more.halted);
        self.refused_images.append(&mut more.refused_images);
        self.clocks_ahead.append(&mut more.clocks_ahead);
        self.frames.append(&mut more.frames);
    }
}
