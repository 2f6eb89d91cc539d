//! Room that a node keeps for its next start: the file `reserve`, with nothing in it that anybody
//! reads.
//!
//! A start writes small files, and may have to end what the process before it had begun. Where the
//! disk has no free byte it could not, and what is in the node's queues could not be consumed, which
//! is what makes room. So a start that finds less than [`RESERVE_BYTES`] free gives the file back to
//! the disk, and a node that runs makes it again once there is room. A node that runs gives it back
//! too where a checkpoint finds no room: without checkpoints neither files of the log nor extents can go.
//!
//! Invariant: only who has the folder's lock gives it back. A folder without it is as good as any;
//! its node may fail to start over a full disk.

use std::io;

use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at, syncing};

/// The file.
pub(super) const RESERVE_NAME: &str = "reserve";
/// Some hundred times what the small files of a start take.
pub const RESERVE_BYTES: u64 = 1 << 20;

/// Gives the room back if the disk has less; whether it did.
pub fn give_back<D: Disk>(disk: &D) -> Result<bool, StorageError> {
    if disk.free_bytes().map_err(at("measure", RESERVE_NAME))? >= RESERVE_BYTES {
        return Ok(false);
    }
    match disk.remove(RESERVE_NAME) {
        Ok(()) => disk.sync_folder("").map(|()| true).map_err(syncing(RESERVE_NAME)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(at("remove", RESERVE_NAME)(error)),
    }
}

/// Takes the room, if it is not taken. To be called where the disk has plenty. After an error the
/// disk has all of it back.
pub fn keep_reserve<D: Disk>(disk: &D) -> io::Result<()> {
    let file = disk.open(RESERVE_NAME, OpenMode::CreateOrOpen)?;
    if file.len()? >= RESERVE_BYTES {
        return Ok(());
    }
    file.allocate(RESERVE_BYTES).inspect_err(|_| drop(disk.remove(RESERVE_NAME)))
}
