//! Where the bytes of a run lie on this member.

use storage::{FileNo, Location};

/// A stretch of messages of one queue in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A batch in a WAL record: its header and all its messages.
    Wal {
        /// The WAL file. 32 bits last for 256 PiB of log.
        file: u32,
        /// Offset of the batch's first byte in the file.
        offset: u32,
        /// Bytes of the batch.
        bytes: u32,
    },
    /// A run of an extent file.
    Extent {
        /// The extent.
        id: u32,
        /// The number of the run in it.
        run: u32,
    },
}

impl Place {
    /// Where this is in the log, if it is.
    pub fn in_wal(self) -> Option<Location> {
        match self {
            Place::Wal { file, offset, bytes } => Some(Location { file: FileNo(u64::from(file)), offset, bytes }),
            Place::Extent { .. } => None,
        }
    }

    /// The batch at `offset` of a log entry's body that lies at `body`.
    pub fn in_record(body: Location, offset: u32, bytes: u32) -> Self {
        assert!(offset + bytes <= body.bytes, "a batch lies within its entry");
        Place::Wal { file: file_u32(body.file), offset: body.offset + offset, bytes }
    }
}

/// A WAL file's number in 32 bits.
pub fn file_u32(file: FileNo) -> u32 {
    u32::try_from(file.0).expect("a log of 2^32 files is beyond any disk")
}
