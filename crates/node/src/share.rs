//! What the partitions of one shard share: the newest entries in memory, a budget for indexes, and
//! what they want done.
//!
//! Invariant: the writes of one turn leave together at its end, so that one write and one sync
//! serve every partition that had something to say.

use crate::gauges::LogGauges;
use crate::log_queue::Load;
use broker::{NodeNumber, PartitionId};
use partition::peer::forward::Forward;
use partition::{Outputs, Tail, WalState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What may be on its way to the log before large messages wait until it is written.
const AWAITED_BYTES_MAX: u64 = 16 << 20;

/// What a shard may use.
#[derive(Clone, Copy, Debug)]
pub struct ShareLimits {
    /// Log files that a replay may have to read beyond the one being written.
    pub checkpoint_lag_files: u32,
    /// What the indexes of the shard's partitions may take, in bytes.
    pub index_bytes_max: u64,
    /// How many partitions the shard has, those left out of which it has nothing.
    pub partitions: u64,
}

/// See the module.
pub struct Share {
    /// The newest entries.
    pub tail: Tail,
    /// What the partitions stepped in this turn want done; its effects are handed on after each of
    /// them.
    pub out: Outputs,
    /// What the members of this turn want other nodes to do for their groups.
    pub forwards: Vec<(NodeNumber, PartitionId, Forward)>,
    /// What this turn is busy with.
    pub load: Load,
    /// The oldest file of the log that a partition needs, where that changed in this turn.
    pub needs: Vec<(PartitionId, u32)>,
    /// The members of which this turn found, for the first time, that they have all that they may have
    /// forgotten.
    pub whole: Vec<PartitionId>,
    /// Whether queues with deduplication may remember no further keys.
    pub are_keys_full: bool,
    limits: ShareLimits,
    gauges: Arc<LogGauges>,
    /// What the indexes take now.
    index_bytes: u64,
    /// The group that takes a member in: the others wait for their turn.
    growing: Option<PartitionId>,
}

impl Share {
    /// Nothing is wanted yet.
    pub fn new(tail: Tail, limits: ShareLimits, gauges: Arc<LogGauges>) -> Share {
        let (out, needs, whole, forwards) = (Outputs::default(), Vec::new(), Vec::new(), Vec::new());
        let (load, index_bytes, are_keys_full, growing) = (Load::default(), 0, false, None);
        Share { tail, out, forwards, load, needs, whole, are_keys_full, limits, gauges, index_bytes, growing }
    }

    /// For a shard without anything durable.
    pub fn without_log() -> Share {
        let limits = ShareLimits { checkpoint_lag_files: 1, index_bytes_max: 0, partitions: 0 };
        Share::new(Tail::new(0), limits, Arc::default())
    }

    /// How much of large messages may go to the log now, beside what is on its way there; 0: none of it.
    pub(crate) fn log_room(&self) -> u64 {
        let of_turn: usize = self.out.wal.iter().flat_map(|write| &write.records).map(|record| record.body.len()).sum();
        let waiting = self.gauges.waiting_bytes.load(Ordering::Relaxed);
        AWAITED_BYTES_MAX.saturating_sub(waiting + of_turn as u64)
    }

    /// The turn is over.
    pub(crate) fn end_turn(&mut self) {
        let pushed_out = self.tail.take_pushed_out_bytes();
        if pushed_out > 0 {
            self.gauges.pushed_out_bytes.fetch_add(pushed_out, Ordering::Relaxed);
        }
    }

    /// What one partition may keep of the index in any case: all of them together stay within half
    /// of it.
    fn index_bytes_share(&self) -> u64 {
        self.limits.index_bytes_max / (2 * self.limits.partitions.max(1))
    }

    /// To what a partition's index shall shrink now. From three quarters of the budget on, those
    /// that are large give up what brings all of them back to half.
    pub(crate) fn index_bytes_kept(&self, own: u64) -> u64 {
        let (now, max) = (self.index_bytes, self.limits.index_bytes_max);
        if now <= max / 4 * 3 {
            return u64::MAX;
        }
        let proportion = u128::from(own) * u128::from(max / 2) / u128::from(now);
        self.index_bytes_share().max(proportion as u64)
    }

    /// A partition's index takes `now` bytes after a step, and took `own` before.
    pub(crate) fn count_index(&mut self, own: &mut u64, now: u64) {
        self.index_bytes = self.index_bytes - *own + now;
        *own = now;
    }

    /// Bytes by which a partition's index is too large, while all of them together are.
    pub(crate) fn index_bytes_over(&self, own: u64) -> u64 {
        let over = if self.index_bytes > self.limits.index_bytes_max { own } else { 0 };
        over.saturating_sub(self.index_bytes_share())
    }

    /// Whether a group may take a member in: no other one of this shard does.
    pub(crate) fn may_grow(&self, partition: PartitionId) -> bool {
        self.growing.is_none_or(|growing| growing == partition)
    }

    /// A group takes a member in.
    pub(crate) fn grows(&mut self, partition: PartitionId) {
        self.growing = Some(partition);
    }

    /// A group takes nobody in, or this shard does not lead it.
    pub(crate) fn has_grown(&mut self, partition: PartitionId) {
        self.growing = self.growing.filter(|growing| *growing != partition);
    }

    /// A partition more runs here.
    pub(crate) fn seat_is_taken(&mut self) {
        self.limits.partitions += 1;
    }

    pub(crate) fn wal_state(&self, own_index_bytes: u64) -> WalState {
        WalState {
            current_file: self.gauges.durable_file.load(Ordering::Relaxed),
            retire_through: self.gauges.retire_through.load(Ordering::Relaxed),
            checkpoint_lag_files: self.limits.checkpoint_lag_files,
            index_bytes_kept: self.index_bytes_kept(own_index_bytes),
            index_bytes_idle: self.index_bytes_share(),
        }
    }

    /// Takes down what a partition needs of the log, if that changed.
    pub(crate) fn note_needs(&mut self, partition: PartitionId, told: &mut Option<u32>, needs: u32) {
        if told.replace(needs) != Some(needs) {
            self.needs.push((partition, needs));
        }
    }
}
