//! The end of a group on a node: it was deleted, or the node is no member of it any more.
//!
//! ```text
//! tombstone    a record of the log: the term and index of the last entry that the member had; its body is the life
//!              of the member as u32, or nothing for the first
//! last state   u8 255 | index u64 | term u64: the checkpoint of a group that has ended
//! ```
//!
//! The tombstone is durable first; from it on nothing of the group counts. Then both of its
//! checkpoints say so, and need nothing of the log any more: only then may the tombstone, and the
//! files that an older checkpoint needs, go.
//!
//! Invariant: a member that has ended is not opened again, nor founded, whichever of the two
//! checkpoints a start finds and wherever a crash fell. A node that comes back to the group does so as
//! another member, whose checkpoints say which one it is: what the log has of those before, up to the
//! tombstone of the last of them, is nothing to it.

use crate::checkpoint::{CheckpointDamaged, Cursor, put64};
use crate::outputs::{Job, Outputs, Ticket};
use crate::partition::QueuePartition;
use crate::place::file_u32;
use broker::PartitionId;
use bytes::Bytes;
use consensus::{LogIndex, Position, Term};
use storage::{FileNo, WalPosition};

/// No version of a checkpoint's head.
const ENDED: u8 = 255;

/// From where the log is replayed for a group that has ended: it needs none of it.
pub const NO_REPLAY: WalPosition = WalPosition { file: FileNo(u32::MAX as u64), offset: 0 };

/// The checkpoint of a group that has ended, behind this entry. It is saved with [`NO_REPLAY`].
pub fn ended_checkpoint(last: Position) -> Vec<u8> {
    let mut payload = vec![ENDED];
    put64(&mut payload, last.index.0);
    put64(&mut payload, last.term.0);
    payload
}

/// What is left to do for a group that ends on this node.
#[derive(Debug)]
pub struct End {
    partition: PartitionId,
    last: Position,
    /// Files with messages of it.
    extents: Vec<u32>,
    /// Checkpoints that are still to say so.
    left: u8,
}

impl QueuePartition {
    /// Writes the tombstone, and says what follows once that is synced. `None` while something of
    /// it is on its way to a file: it would come behind its last state. From here on the partition
    /// is not asked for anything any more.
    pub fn end(&mut self, out: &mut Outputs) -> Option<(Ticket, End)> {
        if self.maintenance.is_copying() || self.maintenance.is_saving() || self.is_receiving() {
            return None;
        }
        let extents = self.give_up_snapshots();
        let (ticket, last) = self.replica.write_tombstone(out);
        Some((ticket, End { partition: self.id(), last, extents, left: 2 }))
    }
}

impl End {
    /// The next thing to do: a checkpoint to be saved. With none left the group's files go, and
    /// nothing of it is needed.
    pub fn next(&mut self, out: &mut Outputs) -> bool {
        let is_over = self.left == 0;
        if is_over {
            out.jobs.extend(self.extents.drain(..).map(|id| Job::DropExtent { id }));
        } else {
            self.left -= 1;
            let (partition, payload) = (self.partition, ended_checkpoint(self.last));
            let replay_file = file_u32(NO_REPLAY.file);
            out.jobs.push(Job::SaveCheckpoint { partition, payload, applied: self.last.index, replay_file });
        }
        is_over
    }
}

/// The body of the tombstone of a member.
pub(crate) fn tombstone_body(life: u32) -> Bytes {
    if life == 0 { Bytes::new() } else { Bytes::copy_from_slice(&life.to_le_bytes()) }
}

/// Whose tombstone it is.
pub(crate) fn life_of(body: &Bytes) -> u32 {
    body.first_chunk().map_or(0, |life| u32::from_le_bytes(*life))
}

/// The last entry of a group of which this checkpoint says that it has ended; `None` if it says
/// something else.
pub(crate) fn ended(payload: &Bytes) -> Result<Option<Position>, CheckpointDamaged> {
    if payload.first() != Some(&ENDED) {
        return Ok(None);
    }
    let mut cursor = Cursor::new(payload);
    cursor.u8()?;
    let last = Position { index: LogIndex(cursor.u64()?), term: Term(cursor.u64()?) };
    cursor.end()?;
    Ok(Some(last))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_last_state_of_a_group_is_what_the_page_says_and_nothing_else() {
        let last = Position { index: LogIndex(0x0102), term: Term(3) };
        let payload = Bytes::from(ended_checkpoint(last));
        assert_eq!(payload, &[255, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..]);
        assert_eq!(ended(&payload).unwrap(), Some(last));
        assert_eq!(ended(&Bytes::from(crate::founding_checkpoint(&[]))).unwrap(), None);
        for wrong in [payload.slice(..16), [&payload[..], &[0]].concat().into()] {
            assert!(ended(&wrong).is_err());
        }
    }
}
