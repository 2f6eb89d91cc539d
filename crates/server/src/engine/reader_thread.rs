//! The thread that reads messages back from the disk, so that a cold page stalls one queue and not a shard.
//!
//! Invariant: what it hands over was read whole; whether it is what was written is checked by who knows its checksum
//! (batches of the log) or while it is read (extents). Open extents are bounded: they hold a descriptor each.

use super::completions::{Completion, Completions};
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use partition::cold_read::carry_out;
use partition::outputs::{Read, ReadFailed};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use storage::{Extent, ExtentId, RealDisk, StorageError, WalReader};

/// Extents kept open; the longest unused goes first.
const OPEN_EXTENTS_MAX: usize = 64;

/// The thread's own state.
pub(crate) struct ReaderThread {
    pub(crate) disk: Arc<RealDisk>,
    pub(crate) wal: WalReader<RealDisk>,
    pub(crate) routes: BTreeMap<PartitionId, (Completions, Mailbox)>,
}

impl ReaderThread {
    /// Where reads go, and the loop to run on a thread of its own; it ends when all senders are gone.
    pub(crate) fn prepare(self) -> (Sender<Read>, impl FnOnce() + Send) {
        let (sender, receiver) = channel();
        (sender, move || self.run(&receiver))
    }

    fn run(self, receiver: &Receiver<Read>) {
        let mut open: VecDeque<Extent<RealDisk>> = VecDeque::new();
        while let Ok(read) = receiver.recv() {
            let (completions, mailbox) = &self.routes[&read.partition];
            let found = carry_out(&read, &*self.disk, &self.wal, |id| self.extent(id, &mut open));
            // What is damaged, and still wanted where it is, is told by its partition, with its queue and its numbers.
            if let Err(ReadFailed::Refused(why)) = &found {
                tracing::warn!(partition = read.partition.0, "messages could not be read, trying again: {why}");
            }
            if completions.put_awaited(Completion::Read(read.purpose, found)) {
                mailbox.send(Parcel::Wake(read.partition));
            }
        }
    }

    fn extent<'a>(
        &self,
        id: ExtentId,
        open: &'a mut VecDeque<Extent<RealDisk>>,
    ) -> Result<&'a Extent<RealDisk>, StorageError> {
        match open.iter().position(|e| e.id() == id) {
            Some(0) => {}
            Some(at) => {
                let extent = open.remove(at).expect("it is at this position");
                open.push_front(extent);
            }
            None => {
                open.truncate(OPEN_EXTENTS_MAX - 1);
                open.push_front(Extent::open(&*self.disk, id)?);
            }
        }
        Ok(&open[0])
    }
}
