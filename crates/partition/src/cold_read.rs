//! Carrying out a [`Read`]: messages and entries that left memory, from the log or an extent.
//!
//! Part of the shell, not of the machine: it reads files. It stands here so that the server's
//! thread and the simulator run the same code. Invariant: an answer never holds back what is intact
//! because of what is not; whether that was the disk's last word is said by [`ReadFailed`].

use crate::outputs::{Read, ReadAt, ReadBytes, ReadFailed, ReadPurpose};
use broker::QueueId;
use std::ops::Deref;
use storage::extent::SalvagedExtent;
use storage::{Disk, Extent, ExtentId, StorageError, WalReader};

/// Messages that one read of an extent brings at most.
const READ_MESSAGES_MAX: u32 = 4096;

impl Read {
    /// The first read was in vain, here or on another member: nothing that memory holds of the file
    /// counts.
    fn is_second(&self) -> bool {
        matches!(
            self.purpose,
            ReadPurpose::Messages { is_second: true, .. }
                | ReadPurpose::Snapshot { is_second: true, .. }
                | ReadPurpose::Repair { .. }
        )
    }

    fn queue(&self) -> Option<QueueId> {
        match self.purpose {
            ReadPurpose::Messages { queue, .. }
            | ReadPurpose::Snapshot { queue, .. }
            | ReadPurpose::Repair { queue, .. } => Some(queue),
            ReadPurpose::Entries { .. } => None,
        }
    }
}

fn failed(error: &StorageError) -> ReadFailed {
    match error.is_damage() {
        true if error.is_gone() => ReadFailed::Gone(error.to_string()),
        true => ReadFailed::Damaged(error.to_string()),
        false => ReadFailed::Refused(error.to_string()),
    }
}

/// Reads what `read` asks for. `open` gives an extent, which it may keep open.
pub fn carry_out<D: Disk, E: Deref<Target = Extent<D>>>(
    read: &Read,
    disk: &D,
    wal: &WalReader<D>,
    open: impl FnOnce(ExtentId) -> Result<E, StorageError>,
) -> Result<ReadBytes, ReadFailed> {
    match &read.at {
        ReadAt::Wal(location) => {
            let found = if read.is_second() { wal.read_past_cache(*location) } else { wal.read(*location) };
            found.map(ReadBytes::Wal).map_err(|error| failed(&error))
        }
        ReadAt::Batches(places) => {
            let mut batches = Vec::with_capacity(places.len());
            for place in places {
                match if read.is_second() { wal.read_past_cache(*place) } else { wal.read(*place) } {
                    Ok(bytes) => batches.push((*place, bytes)),
                    Err(error) if batches.is_empty() => return Err(failed(&error)),
                    Err(_) => break,
                }
            }
            Ok(ReadBytes::Batches(batches))
        }
        ReadAt::Records(places) => {
            let mut bodies = Vec::with_capacity(places.len());
            for place in places {
                // What memory holds of the file may be what is wrong.
                let again = |error: StorageError| match error.is_damage() {
                    true => wal.read_record_past_cache(*place),
                    false => Err(error),
                };
                match wal.read_record(*place).or_else(again) {
                    Ok(record) => bodies.push(record.body),
                    Err(error) if bodies.is_empty() => return Err(failed(&error)),
                    Err(_) => break,
                }
            }
            Ok(ReadBytes::Records(bodies))
        }
        ReadAt::Extent { id, run, from, past, bytes_max } => {
            let id = ExtentId(u64::from(*id));
            let why = match open(id).and_then(|extent| read_run(&extent, *run as usize, *from, *bytes_max)) {
                Ok(messages) => {
                    let wanted = messages.into_iter().filter(|m| m.seq < *past).map(|m| (m.seq, m.body));
                    return Ok(ReadBytes::Extent { messages: wanted.collect(), damage: None });
                }
                Err(error) if error.is_damage() => error.to_string(),
                Err(error) => return Err(failed(&error)),
            };
            let queue = read.queue().expect("an extent is read for a queue");
            let extent = SalvagedExtent::open(disk, id).map_err(|error| failed(&error))?;
            let salvaged = extent.read(queue.0, *run as usize, *from..*past, *bytes_max);
            let messages = salvaged.messages.into_iter().map(|m| (m.seq, m.body)).collect();
            let damage = salvaged.damage.map_or(why, |error| error.to_string());
            Ok(ReadBytes::Extent { messages, damage: Some(damage) })
        }
    }
}

fn read_run<D: Disk>(
    extent: &Extent<D>,
    run: usize,
    from: u64,
    bytes_max: u32,
) -> Result<Vec<storage::extent::ExtentMessage>, StorageError> {
    let count = extent.runs().len();
    if run >= count {
        let file = format!("extent {:016x}", extent.id().0);
        let (expected, found) = (run as u64 + 1, count as u64);
        return Err(StorageError::Corrupt { file, offset: 0, what: "number of runs, at least,", expected, found });
    }
    extent.read(run, from, READ_MESSAGES_MAX, bytes_max)
}
