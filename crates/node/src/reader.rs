//! Reading messages back from the disk, apart from everything else, so that a cold page stalls one
//! queue and not a shard.
//!
//! Invariant: what it hands over was read whole; whether it is what was written is checked by who
//! knows its checksum (batches of the log) or while it is read (extents). Open extents are bounded:
//! they hold a descriptor each.

use crate::completions::Completion;
use partition::cold_read::carry_out;
use partition::outputs::{Read, ReadFailed};
use std::collections::VecDeque;
use std::sync::Arc;
use storage::{Disk, Extent, ExtentId, StorageError, WalReader};

/// Extents kept open; the longest unused goes first.
const OPEN_EXTENTS_MAX: usize = 64;

/// See the module.
pub struct Reader<D: Disk> {
    disk: Arc<D>,
    wal: WalReader<D>,
    open: VecDeque<Extent<D>>,
}

impl<D: Disk> Reader<D> {
    /// A reader that has nothing open.
    pub fn new(disk: Arc<D>, wal: WalReader<D>) -> Reader<D> {
        Reader { disk, wal, open: VecDeque::new() }
    }

    /// Reads; blocks as long as the disk takes. The completion is for `read.partition`, which waits
    /// for it.
    pub fn read(&mut self, read: Read) -> Completion {
        let Reader { disk, wal, open } = self;
        let found = carry_out(&read, &**disk, wal, |id| opened(&**disk, id, open));
        // What is damaged, and still wanted where it is, is told by its partition, with its queue
        // and its numbers.
        if let Err(ReadFailed::Refused(why) | ReadFailed::Gone(why)) = &found {
            tracing::warn!(partition = read.partition.0, "messages could not be read, trying again: {why}");
        }
        Completion::Read(read.purpose, found)
    }
}

fn opened<'a, D: Disk>(
    disk: &D,
    id: ExtentId,
    open: &'a mut VecDeque<Extent<D>>,
) -> Result<&'a Extent<D>, StorageError> {
    match open.iter().position(|e| e.id() == id) {
        Some(0) => {}
        Some(at) => {
            let extent = open.remove(at).expect("it is at this position");
            open.push_front(extent);
        }
        None => {
            open.truncate(OPEN_EXTENTS_MAX - 1);
            open.push_front(Extent::open(disk, id)?);
        }
    }
    Ok(&open[0])
}
