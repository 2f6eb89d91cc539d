//! Messages in memory, many in one buffer.

use crate::message::MessageView;
use broker::queue::runs::Run;
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below this many pinned bytes nobody looks for sparse runs.
pub(super) const COMPACT_BYTES_MIN: u64 = 32 << 20;

/// A run is copied together when fewer than one in this many of its messages is live.
pub(super) const COMPACT_LIVE_FRACTION: u32 = 4;

/// What a batch costs besides its bytes: the owner, the runs that point to it.
pub(super) const BATCH_OVERHEAD_BYTES: u64 = 160;

/// Marks the place of a message that was settled before its run was copied together.
pub(super) const GONE: u32 = u32::MAX;

/// One batch buffer. It uncharges itself when its last slice goes, be it in a queue or on its way
/// to a socket.
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) charged: u64,
    pub(super) meter: Arc<AtomicU64>,
}

impl Batch {
    /// Freezes `bytes`, charged to `meter` until the last slice is gone.
    pub(super) fn freeze(bytes: Vec<u8>, messages: usize, meter: &Arc<AtomicU64>) -> Bytes {
        let charged = bytes.capacity() as u64 + 4 * messages as u64 + BATCH_OVERHEAD_BYTES;
        meter.fetch_add(charged, Ordering::Relaxed);
        Bytes::from_owner(Batch { bytes, charged, meter: meter.clone() })
    }
}

impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.meter.fetch_sub(self.charged, Ordering::Relaxed);
    }
}

/// Where the messages of one run are.
pub(super) struct Place {
    pub(super) batch: Bytes,
    pub(super) offsets: SmallVec<[u32; 4]>,
}

impl Place {
    #[inline]
    pub(super) fn message(&self, index: usize) -> Bytes {
        let at = self.offsets[index] as usize;
        let view = MessageView::parse(&self.batch[at..]).expect("the batch was written by store()");
        self.batch.slice(at..at + view.len())
    }

    /// How long a message is.
    pub(super) fn message_bytes(&self, index: usize) -> usize {
        let at = self.offsets[index] as usize;
        MessageView::parse(&self.batch[at..]).expect("the batch was written by store()").len()
    }
}

/// Copies the live messages of a run out of their batch, so that it can go.
pub(super) fn copy_together(run: &mut Run<Place>, meter: &Arc<AtomicU64>) {
    let live: Vec<u64> = (run.first..run.past()).filter(|seq| run.is_live(*seq)).collect();
    let mut bytes = Vec::new();
    let mut offsets: SmallVec<[u32; 4]> = SmallVec::from_elem(GONE, run.count as usize);
    for seq in &live {
        let index = (seq - run.first) as usize;
        let message = run.place.message(index);
        offsets[index] = bytes.len() as u32;
        bytes.extend_from_slice(&message);
    }
    bytes.shrink_to_fit();
    run.place = Place { batch: Batch::freeze(bytes, run.count as usize, meter), offsets };
}
