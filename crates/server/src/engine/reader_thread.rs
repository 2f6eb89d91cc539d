//! The thread that reads messages back from the disk, so that a cold page stalls one queue and not a shard.
//!
//! Invariant: what it hands over was read whole; whether it is what was written is checked by who knows its checksum
//! (batches of the log) or here (extents). Open extents are bounded: they hold a descriptor each.

use super::completions::{Completion, Completions};
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use partition::outputs::{Read, ReadAt, ReadBytes};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use storage::{Extent, ExtentId, RealDisk, StorageError, WalReader};

/// Extents kept open; the longest unused goes first.
const OPEN_EXTENTS_MAX: usize = 64;
/// Messages that one read of an extent brings at most.
const READ_MESSAGES_MAX: u32 = 4096;

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
            let bytes = match self.read(&read.at, &mut open) {
                Ok(bytes) => Some(bytes),
                // Given up because its messages moved: the partition knows where they are now, or says that they are
                // damaged if they should be here.
                Err(error) => {
                    if !matches!(error, StorageError::Missing { .. }) {
                        tracing::error!(%error, partition = read.partition.0, "messages could not be read");
                    }
                    None
                }
            };
            if completions.put(Completion::Read(read.purpose, bytes)) {
                mailbox.send(Parcel::Wake(read.partition));
            }
        }
    }

    fn read(&self, at: &ReadAt, open: &mut VecDeque<Extent<RealDisk>>) -> Result<ReadBytes, StorageError> {
        match at {
            ReadAt::Wal(location) => self.wal.read(*location).map(ReadBytes::Wal),
            ReadAt::Batches(places) => {
                let mut batches = Vec::with_capacity(places.len());
                for place in places {
                    match self.wal.read(*place) {
                        Ok(bytes) => batches.push((*place, bytes)),
                        Err(error) if batches.is_empty() => return Err(error),
                        Err(_) => break,
                    }
                }
                Ok(ReadBytes::Batches(batches))
            }
            ReadAt::Records(places) => {
                let bodies: Result<Vec<_>, _> =
                    places.iter().map(|place| self.wal.read_record(*place).map(|record| record.body)).collect();
                bodies.map(ReadBytes::Records)
            }
            ReadAt::Extent { id, run, from, past, bytes_max } => {
                let extent = self.extent(ExtentId(u64::from(*id)), open)?;
                let messages = extent.read(*run as usize, *from, READ_MESSAGES_MAX, *bytes_max)?;
                let wanted = messages.into_iter().filter(|m| m.seq < *past).map(|m| (m.seq, m.body));
                Ok(ReadBytes::Extent(wanted.collect()))
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
