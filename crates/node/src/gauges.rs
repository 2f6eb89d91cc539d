//! Figures about the log, for shards, upkeep and metrics.

use crate::sync_times::SyncClock;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What the log's writer shows, and one thing that shards show it. Any thread reads; nothing here
/// orders anything.
#[derive(Debug, Default)]
pub struct LogGauges {
    /// The newest file of which something is durable.
    pub durable_file: AtomicU32,
    /// Files up to this one are to be given up; 0 for none.
    pub retire_through: AtomicU32,
    /// Bytes of entries that shards have handed over and that are not written yet.
    pub waiting_bytes: AtomicU64,
    /// Bytes written, headers and padding included.
    pub written_bytes: AtomicU64,
    /// Bytes of entries that shards gave up while somebody was still to get them.
    pub pushed_out_bytes: AtomicU64,
    /// Syncs made.
    pub syncs: AtomicU64,
    /// How long they took.
    pub sync_times: SyncClock,
    /// How long writes took.
    pub write_times: SyncClock,
    /// The disk is full and writes wait.
    pub is_full: AtomicU32,
}
