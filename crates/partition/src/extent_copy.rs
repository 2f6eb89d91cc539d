//! Carrying out [`crate::outputs::Job::WriteExtent`]: live messages of the log, or of sparse
//! extents, into a new extent.
//!
//! Part of the shell, not of the machine: it reads and writes files. It stands here so that the
//! server's thread and the simulator run the same code. Invariant: a run goes over whole or not at
//! all, and what is referred to afterwards was synced before, name included. A run of which
//! something live cannot be read stays where it is and is told: what becomes of those messages is
//! for the log to say.

use crate::deliver::batch_is_damaged;
use crate::entry::Batch;
use crate::outputs::{CopyRun, DamagedRun, ExtentReady, ExtentRun};
use crate::place::Place;
use broker::QueueId;
use broker::queue::SeqRanges;
use bytes::Bytes;
use std::sync::Arc;
use storage::extent::{SalvagedExtent, check_folder, extent_name};
use storage::{Disk, Extent, ExtentId, ExtentWriter, FileNo, Location, StorageError, WalReader};

/// A hole longer than this between two live messages begins a new run: its bitmap would cost more
/// than the run.
const HOLE_MESSAGES_MAX: u64 = 4096;
/// Messages and bytes that one read of an extent brings at most.
const READ_MESSAGES_MAX: u32 = 4096;
const READ_BYTES_MAX: u32 = 4 << 20;
/// One read of the log brings at most this much, unless a single batch is larger.
const WINDOW_BYTES_MAX: u32 = 256 << 10;
/// What a message costs in an extent beside its bytes, with a run of its own at worst.
const MESSAGE_OVERHEAD_BYTES: usize = 16 + 64;

/// What came of copying runs.
#[derive(Debug, Default)]
pub struct Copied {
    /// The new extent; `None`, and no file, if nothing could be copied.
    pub ready: Option<ExtentReady>,
    /// Runs that were passed over because of damage.
    pub damaged: Vec<DamagedRun>,
}

/// Copies what fits of `runs` into extent `id`, which is new.
///
/// After an error nothing refers to the file, and it is removed as far as the disk allows.
pub fn copy_runs<D: Disk>(
    disk: &Arc<D>,
    folder_id: u128,
    wal: &WalReader<D>,
    id: ExtentId,
    runs: &[CopyRun],
) -> Result<Copied, StorageError> {
    copy_runs_within((disk, u64::MAX), folder_id, wal, id, runs)
}

/// [`copy_runs`], into an extent of so many bytes at most.
///
/// - Errors: [`StorageError::Full`] also where not even the first run that can be read fits.
pub fn copy_runs_within<D: Disk>(
    (disk, bytes_max): (&Arc<D>, u64),
    folder_id: u128,
    wal: &WalReader<D>,
    id: ExtentId,
    runs: &[CopyRun],
) -> Result<Copied, StorageError> {
    let mut extent = NewExtent::create(disk, folder_id, id)?;
    let (mut copied, mut damaged, mut follows_damage) = (Vec::new(), Vec::new(), false);
    let mut window = Window::default();
    for (number, run) in runs.iter().enumerate() {
        let bodies = match read_run((&**disk, folder_id), wal, &mut window, &runs[number..])? {
            Ok(bodies) => bodies,
            Err(run) => {
                damaged.push(run);
                follows_damage = true;
                continue;
            }
        };
        let bytes: usize = bodies.iter().map(|(_, body)| body.len()).sum();
        if !extent.has_room(bytes, bodies.len()) {
            break;
        }
        if extent.bytes_with(bytes, bodies.len()) > bytes_max {
            if copied.is_empty() && damaged.is_empty() {
                return Err(StorageError::Full { file: extent_name(id), free_bytes: bytes_max });
            }
            break;
        }
        // A new run must not reach over one that stays where it is.
        if !run.joins || std::mem::take(&mut follows_damage) {
            extent.end_run()?;
        }
        for (seq, body) in bodies {
            extent.push(run.queue, seq, &body)?;
        }
        copied.push((run.queue, run.place, run.first));
    }
    let ready = extent.finish(copied)?;
    Ok(Copied { ready, damaged })
}

/// Puts messages that came with a snapshot into extent `id`, which is new:
/// [`crate::outputs::Job::WriteReceived`].
pub fn write_received<D: Disk>(
    disk: &Arc<D>,
    folder_id: u128,
    id: ExtentId,
    messages: &[(QueueId, u64, Bytes)],
) -> Result<Option<ExtentReady>, StorageError> {
    let mut extent = NewExtent::create(disk, folder_id, id)?;
    for (queue, seq, body) in messages {
        extent.push(*queue, *seq, body)?;
    }
    extent.finish(Vec::new())
}

/// An extent that is being filled, queue by queue, in the order of numbers.
pub struct NewExtent<D: Disk> {
    writer: ExtentWriter<D>,
    id: ExtentId,
    messages: u64,
    /// Queue, first and last number of the run at hand.
    run: Option<(QueueId, u64, u64)>,
}

impl<D: Disk> NewExtent<D> {
    /// Begins extent `id`, which is new.
    pub fn create(disk: &Arc<D>, folder_id: u128, id: ExtentId) -> Result<Self, StorageError> {
        let writer = ExtentWriter::create(disk, folder_id, id)?;
        Ok(NewExtent { writer, id, messages: 0, run: None })
    }

    /// Whether `messages` more of together `bytes` fit.
    pub fn has_room(&self, bytes: usize, messages: usize) -> bool {
        self.writer.has_room(bytes + messages * MESSAGE_OVERHEAD_BYTES)
    }

    /// How long it is with `messages` more of together `bytes`, at most.
    fn bytes_with(&self, bytes: usize, messages: usize) -> u64 {
        u64::from(self.writer.bytes()) + (bytes + messages * MESSAGE_OVERHEAD_BYTES) as u64
    }

    /// Messages in it.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The next message begins a new run.
    pub fn end_run(&mut self) -> Result<(), StorageError> {
        self.run = None;
        self.writer.end_run()
    }

    /// Adds a message; within a queue numbers ascend.
    pub fn push(&mut self, queue: QueueId, seq: u64, body: &[u8]) -> Result<(), StorageError> {
        let goes_on = self.run.is_some_and(|(of, first, last)| {
            of == queue
                && seq - last <= HOLE_MESSAGES_MAX
                && seq - first < u64::from(broker::queue::runs::RUN_MESSAGES_MAX)
        });
        if !goes_on {
            self.writer.end_run()?;
        }
        let first = self.run.filter(|_| goes_on).map_or(seq, |run| run.1);
        self.run = Some((queue, first, seq));
        self.messages += 1;
        self.writer.push(queue.0, seq, body)
    }

    /// Makes it durable; `copied` is handed through. `None`, and no file, if it holds nothing.
    pub fn finish(self, copied: Vec<(QueueId, Place, u64)>) -> Result<Option<ExtentReady>, StorageError> {
        if self.messages == 0 {
            // Its writer takes the file away, as it does when an error ends it.
            return Ok(None);
        }
        let summary = self.writer.finish()?;
        let runs = summary.runs.iter().enumerate().map(|(number, run)| ExtentRun {
            queue: QueueId(run.queue),
            run: number as u32,
            first: run.first_seq,
            past: run.last_seq + 1,
            messages: run.count,
            bytes: run.bytes(),
        });
        Ok(Some(ExtentReady {
            id: u32::try_from(self.id.0).expect("extents are numbered in 32 bits"),
            bytes: u64::from(summary.bytes),
            messages: self.messages,
            runs: runs.collect(),
            copied,
        }))
    }
}

/// A stretch of a WAL file in hand: small batches that lie side by side are read together.
#[derive(Default)]
struct Window {
    file: u32,
    offset: u32,
    bytes: Bytes,
}

impl Window {
    /// The batch of the first of `runs`, which lies in the WAL; those that follow it closely are
    /// read with it.
    fn batch<D: Disk>(&mut self, wal: &WalReader<D>, runs: &[CopyRun]) -> Result<Bytes, StorageError> {
        let Some(Place::Wal { file, offset, bytes }) = runs.first().map(|r| r.place) else {
            unreachable!("asked for runs in the WAL only")
        };
        let at = |window: &Window| offset.checked_sub(window.offset).map(|from| from as usize..(from + bytes) as usize);
        if let Some(range) = at(self).filter(|range| self.file == file && range.end <= self.bytes.len()) {
            return Ok(self.bytes.slice(range));
        }
        let mut past = offset + bytes;
        for run in &runs[1..] {
            match run.place {
                Place::Wal { file: f, offset: o, bytes: b }
                    if f == file && o >= past && o + b - offset <= WINDOW_BYTES_MAX =>
                {
                    past = o + b;
                }
                _ => break,
            }
        }
        // The one before goes first: two of them are never in memory.
        *self = Window::default();
        let stored = wal.read(Location { file: FileNo(u64::from(file)), offset, bytes: past - offset })?;
        let batch = stored.slice(..bytes as usize);
        *self = Window { file, offset, bytes: stored };
        Ok(batch)
    }
}

/// Live messages with their numbers, ascending; or why not.
type RunRead = Result<Vec<(u64, Bytes)>, DamagedRun>;

/// The live messages of the first of `runs`, checked against their checksums. What does not check
/// out is read a second time, past what memory holds of it.
fn read_run<D: Disk>(
    (disk, folder_id): (&D, u128),
    wal: &WalReader<D>,
    window: &mut Window,
    runs: &[CopyRun],
) -> Result<RunRead, StorageError> {
    let run = &runs[0];
    match run.place {
        Place::Wal { file, offset, bytes } => {
            let of_batch = |stored: &Bytes| live_of_batch(run, stored);
            let first = window.batch(wal, runs).map(|stored| of_batch(&stored));
            let (why, is_gone) = match first {
                Ok(Some(live)) => return Ok(Ok(live)),
                Err(error) if !error.is_damage() => return Err(error),
                _ => {
                    *window = Window::default();
                    match wal.read_past_cache(Location { file: FileNo(u64::from(file)), offset, bytes }) {
                        Ok(stored) => match of_batch(&stored) {
                            Some(live) => return Ok(Ok(live)),
                            None => (batch_is_damaged(run.place), false),
                        },
                        Err(error) if error.is_damage() => (error.to_string(), error.is_gone()),
                        Err(error) => return Err(error),
                    }
                }
            };
            let (queue, place) = (run.queue, run.place);
            Ok(Err(DamagedRun { queue, place, messages: run.live.to_vec(), why, is_gone }))
        }
        Place::Extent { id, run: number } => {
            let id = ExtentId(u64::from(id));
            let own = check_folder(disk, id, folder_id);
            if own.is_ok() {
                match live_of_extent(disk, id, number as usize, run) {
                    Err(error) if error.is_damage() => {}
                    read => return read.map(Ok),
                }
            }
            // Of another folder's messages none is one of these, whatever their checksums say.
            match own.and_then(|()| salvage_run(disk, id, number as usize, run)) {
                Err(error) if error.is_damage() => {
                    let (queue, place, why) = (run.queue, run.place, error.to_string());
                    let (messages, is_gone) = (run.live.to_vec(), error.is_gone());
                    Ok(Err(DamagedRun { queue, place, messages, why, is_gone }))
                }
                read => read,
            }
        }
    }
}

/// The live messages of a run in the log; `None` if its batch is not what was written.
fn live_of_batch(run: &CopyRun, stored: &Bytes) -> Option<Vec<(u64, Bytes)>> {
    let batch = Batch::parse(stored, 0).ok().filter(|b| b.is_intact() && b.messages() == run.count)?;
    let mut live = Vec::with_capacity(run.live.iter().map(|l| l.1 as usize).sum());
    let mut wanted = run.live.iter().flat_map(|(first, count)| *first..first + count).peekable();
    let mut at = batch.first_message_at();
    for (number, message) in batch.iter().enumerate() {
        let seq = run.first + number as u64;
        if wanted.next_if_eq(&seq).is_some() {
            live.push((seq, stored.slice(at..at + message.len())));
        }
        at += message.len();
    }
    Some(live)
}

fn live_of_extent<D: Disk>(
    disk: &D,
    id: ExtentId,
    number: usize,
    run: &CopyRun,
) -> Result<Vec<(u64, Bytes)>, StorageError> {
    let mut live = Vec::with_capacity(run.live.iter().map(|l| l.1 as usize).sum());
    let mut wanted = run.live.iter().flat_map(|(first, count)| *first..first + count).peekable();
    let extent = Extent::open(disk, id)?;
    if number >= extent.runs().len() {
        let file = format!("extent {:016x}", id.0);
        let (expected, found) = (number as u64, extent.runs().len() as u64);
        return Err(StorageError::Corrupt { file, offset: 0, what: "number of runs, more than", expected, found });
    }
    let mut from = run.first;
    loop {
        let read = extent.read(number, from, READ_MESSAGES_MAX, READ_BYTES_MAX)?;
        let Some(last) = read.last() else { break };
        from = last.seq + 1;
        for message in read {
            if wanted.next_if_eq(&message.seq).is_some() {
                live.push((message.seq, message.body));
            }
        }
    }
    match wanted.next() {
        None => Ok(live),
        Some(seq) => {
            let file = format!("extent {:016x}", id.0);
            Err(StorageError::Corrupt { file, offset: 0, what: "a live message", expected: seq, found: from })
        }
    }
}

/// The live messages of a run in a damaged extent, if it has all of them.
fn salvage_run<D: Disk>(disk: &D, id: ExtentId, number: usize, run: &CopyRun) -> Result<RunRead, StorageError> {
    let extent = SalvagedExtent::open(disk, id)?;
    let mut missing = SeqRanges::new();
    run.live.iter().for_each(|(first, count)| missing.insert_range(*first, *count));
    let past = run.first + u64::from(run.count);
    let (mut live, mut from, mut damage) = (Vec::new(), run.first, None);
    while from < past {
        let salvaged = extent.read(run.queue.0, number, from..past, READ_BYTES_MAX);
        damage = damage.or(salvaged.damage);
        let Some(last) = salvaged.messages.last() else { break };
        from = last.seq + 1;
        for message in salvaged.messages {
            if missing.remove_range(message.seq, 1) == 1 {
                live.push((message.seq, message.body));
            }
        }
    }
    if missing.is_empty() {
        return Ok(Ok(live));
    }
    let why = damage.map_or_else(|| batch_is_damaged(run.place), |error| error.to_string());
    Ok(Err(DamagedRun { queue: run.queue, place: run.place, messages: missing.iter().collect(), why, is_gone: false }))
}
