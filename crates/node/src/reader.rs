//! Reading messages back from the disk, apart from everything else, so that a cold page stalls one
//! queue and not a shard.
//!
//! Invariant: what it hands over was read whole; whether it is what was written is checked by who
//! knows its checksum (batches of the log) or while it is read (extents).

use crate::completions::Completion;
use crate::open_extents::OpenExtents;
use partition::cold_read::carry_out;
use partition::outputs::{Read, ReadFailed};
use std::sync::Arc;
use storage::{Disk, WalReader};

/// See the module.
pub struct Reader<D: Disk> {
    disk: Arc<D>,
    wal: WalReader<D>,
    open: OpenExtents<D>,
}

impl<D: Disk> Reader<D> {
    /// A reader that keeps open what it reads in `open`.
    pub fn new(disk: Arc<D>, wal: WalReader<D>, open: OpenExtents<D>) -> Reader<D> {
        Reader { disk, wal, open }
    }

    /// Reads; blocks as long as the disk takes. The completion is for `read.partition`, which waits
    /// for it.
    pub fn read(&mut self, read: Read) -> Completion {
        let Reader { disk, wal, open } = self;
        let found = carry_out(&read, &**disk, wal, |id| open.get(disk, id));
        // What is damaged, and still wanted where it is, is told by its partition, with its queue
        // and its numbers.
        if let Err(ReadFailed::Refused(why) | ReadFailed::Gone(why)) = &found {
            tracing::warn!(partition = read.partition.0, "messages could not be read, trying again: {why}");
        }
        Completion::Read(read.purpose, found)
    }
}
