//! Where the runs of live messages lie: how many in each WAL file, what of each extent is live, and how they move from
//! the one to the other.
//!
//! Invariants: `wal_runs` counts the runs that lie in each WAL file, and a file that is not in it holds nothing live of
//! this partition; the use of an extent counts its live messages. Moving a run changes where its messages lie and never
//! which of them are live.

use super::{Queues, scheduled_for};
use crate::outputs::{ExtentReady, ExtentRun};
use crate::place::Place;
use broker::QueueId;
use broker::queue::{QueueState, Run, SeqRanges};
use hashbrown::HashSet;
use std::collections::BTreeMap;

/// What a run costs in memory; lists of them have up to as much room again.
pub const RUN_BYTES: usize = size_of::<Run<Place>>();
const _: () = assert!(RUN_BYTES <= 40, "the index of the log is bounded in bytes: a larger run means fewer of them");

/// What of an extent file is still live here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentUse {
    /// Messages in the file.
    pub messages: u64,
    /// Live ones.
    pub live: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Queues {
    /// The oldest WAL file in which something live lies.
    pub fn oldest_wal_file(&self) -> Option<u32> {
        self.wal_runs.keys().next().copied()
    }

    /// How many runs lie in WAL files: what the index of unflushed messages costs, times
    /// [`RUN_BYTES`].
    pub fn wal_run_count(&self) -> u64 {
        self.wal_run_count
    }

    /// The extents that hold something of this partition, used up ones included until they are
    /// forgotten.
    pub fn extents(&self) -> &BTreeMap<u32, ExtentUse> {
        &self.extents
    }

    /// The highest number of an extent that ever held something of this partition, though it may be
    /// gone. Checkpoints keep it, and an extent goes only after two of them: so no start gives its
    /// number out again.
    pub fn highest_extent(&self) -> u32 {
        self.highest_extent
    }

    /// Numbers up to this one are used, as a checkpoint has it.
    pub(crate) fn raise_highest_extent(&mut self, id: u32) {
        self.highest_extent = self.highest_extent.max(id);
    }

    /// Notes an extent that is about to be referred to.
    pub fn add_extent(&mut self, id: u32, messages: u64, bytes: u64) {
        self.raise_highest_extent(id);
        let before = self.extents.insert(id, ExtentUse { messages, live: 0, bytes });
        assert!(before.is_none(), "extent ids are used once");
    }

    /// The same of one that was just written.
    pub(crate) fn add_ready(&mut self, ready: &ExtentReady) {
        self.add_extent(ready.id, ready.messages, ready.bytes);
        let of = |run: &ExtentRun| run.bytes.div_ceil(run.messages.max(1));
        self.message_bytes.insert(ready.id, ready.runs.iter().map(of).collect());
    }

    /// Knows of its extents what another state knew of them.
    pub(crate) fn take_message_bytes(&mut self, other: &mut Queues) {
        let mut known = std::mem::take(&mut other.message_bytes);
        known.retain(|id, _| self.extents.contains_key(id));
        self.message_bytes.append(&mut known);
    }

    /// Bytes of what is live in a run, where it lies. A batch in the log, and an extent that was there at the start,
    /// are taken to have messages of equal length.
    fn live_bytes(&self, run: &Run<Place>) -> u64 {
        let live = u64::from(run.live());
        match run.place {
            Place::Wal { bytes, .. } => u64::from(bytes) * live / u64::from(run.count),
            Place::Extent { id, run } => match self.message_bytes.get(&id).and_then(|runs| runs.get(run as usize)) {
                Some(bytes) => u64::from(*bytes) * live,
                None => self.extents.get(&id).map_or(0, |extent| extent.bytes * live / extent.messages.max(1)),
            },
        }
    }

    /// Bytes that the live messages of a queue take on this member's disk, scheduled ones included. Cost: a look at
    /// each of its runs.
    pub(crate) fn live_bytes_of(&self, queue: QueueId) -> u64 {
        let states = [queue, scheduled_for(queue)].into_iter().filter_map(|id| self.queue(id));
        states.flat_map(|state| state.runs().iter()).map(|run| self.live_bytes(run)).sum()
    }

    /// Forgets an extent in which nothing is live.
    pub fn forget_extent(&mut self, id: u32) {
        self.message_bytes.remove(&id);
        let gone = self.extents.remove(&id);
        assert!(gone.is_some_and(|e| e.live == 0), "an extent with live messages is kept");
    }

    /// Puts runs of a queue whose live messages were copied to an extent into their new places.
    /// Which messages are live stays the same: what was settled since they were copied is not
    /// revived.
    pub fn move_runs(&mut self, queue: QueueId, copied: &[(Place, u64)], extent: u32, new: &[ExtentRun]) {
        let Some(state) = self.queues.get_mut(&queue) else { return };
        let (Some(first), Some(last)) = (new.first(), new.last()) else { return };
        let copied: HashSet<(Place, u64), foldhash::fast::FixedState> = copied.iter().copied().collect();
        let (wal_runs, extents, wal_run_count) = (&mut self.wal_runs, &mut self.extents, &mut self.wal_run_count);
        // Each run that was copied held something live then, so it reaches into what the new ones
        // cover.
        state.runs_mut().replace(first.first, last.past, |stretch| {
            let (mut kept, mut live) = (Vec::new(), SeqRanges::new());
            for run in stretch {
                if copied.contains(&(run.place, run.first)) {
                    uncount(&run, wal_runs, extents, wal_run_count);
                    run.live_ranges().for_each(|(first, count)| live.insert_range(first, count));
                } else {
                    kept.push(run);
                }
            }
            for run in new {
                let place = Place::Extent { id: extent, run: run.run };
                let within = live.iter().filter_map(|(first, count)| {
                    let (low, high) = (first.max(run.first), (first + count).min(run.past));
                    (low < high).then(|| (low, high - low))
                });
                let Some(moved) = Run::restore(run.first, (run.past - run.first) as u32, place, within) else {
                    continue;
                };
                extents.get_mut(&extent).expect("an extent is added first").live += u64::from(moved.live());
                kept.push(moved);
            }
            kept.sort_by_key(|run| run.first);
            kept
        });
    }

    /// Puts what is live among messages `first..past` of the run at `place` into runs of an extent,
    /// which was added before and has all of it; what lies around them stays. A run in the log goes
    /// over whole.
    pub(crate) fn repair_run(
        &mut self,
        queue: QueueId,
        place: Place,
        (first, past): (u64, u64),
        extent: u32,
        new: &[ExtentRun],
    ) {
        let Some(state) = self.queues.get_mut(&queue) else { return };
        let (wal_runs, extents, wal_run_count) = (&mut self.wal_runs, &mut self.extents, &mut self.wal_run_count);
        state.runs_mut().replace(first, past, |stretch| {
            let mut kept = Vec::new();
            for run in stretch {
                if run.place != place {
                    kept.push(run);
                    continue;
                }
                uncount(&run, wal_runs, extents, wal_run_count);
                let piece = |low: u64, high: u64, place: Place| {
                    let (low, high) = (low.max(run.first), high.min(run.past()));
                    let within = run.live_ranges().filter_map(move |(first, count)| {
                        let (low, high) = (first.max(low), (first + count).min(high));
                        (low < high).then(|| (low, high - low))
                    });
                    if low < high { Run::restore(low, (high - low) as u32, place, within) } else { None }
                };
                let at = |new: &ExtentRun| Place::Extent { id: extent, run: new.run };
                let middle = new.iter().filter_map(|new| piece(new.first, new.past, at(new)));
                let pieces = piece(0, first, place).into_iter().chain(middle).chain(piece(past, u64::MAX, place));
                for piece in pieces {
                    let Place::Extent { id, .. } = piece.place else {
                        panic!("of a batch in the log nothing is left behind")
                    };
                    extents.get_mut(&id).expect("an extent is added first").live += u64::from(piece.live());
                    kept.push(piece);
                }
            }
            kept
        });
    }

    pub(super) fn count(&mut self, place: Place, live: u64) {
        match place {
            Place::Wal { file, .. } => {
                *self.wal_runs.entry(file).or_default() += 1;
                self.wal_run_count += 1;
            }
            Place::Extent { id, .. } => self.extents.get_mut(&id).expect("an extent is added first").live += live,
        }
    }
}

pub(super) fn run_gone(run: &Run<Place>, wal_runs: &mut BTreeMap<u32, u64>, wal_run_count: &mut u64) {
    if let Place::Wal { file, .. } = run.place {
        let left = wal_runs.get_mut(&file).expect("a run's file is counted");
        *left -= 1;
        *wal_run_count -= 1;
        if *left == 0 {
            wal_runs.remove(&file);
        }
    }
}

fn uncount(
    run: &Run<Place>,
    wal_runs: &mut BTreeMap<u32, u64>,
    extents: &mut BTreeMap<u32, ExtentUse>,
    wal_run_count: &mut u64,
) {
    match run.place {
        Place::Wal { .. } => run_gone(run, wal_runs, wal_run_count),
        Place::Extent { id, .. } => {
            extents.get_mut(&id).expect("a run's extent is known").live -= u64::from(run.live());
        }
    }
}

/// Takes what is about to be settled off the extents that it lies in.
pub(super) fn count_extents(state: &QueueState<Place>, first: u64, count: u64, extents: &mut BTreeMap<u32, ExtentUse>) {
    let mut from = first;
    while let Some((seq, run)) = state.runs().next_live(from) {
        if seq >= first + count {
            return;
        }
        match run.place {
            Place::Extent { id, .. } => {
                extents.get_mut(&id).expect("a run's extent is known").live -= 1;
                from = seq + 1;
            }
            Place::Wal { .. } => from = run.past(),
        }
    }
}
