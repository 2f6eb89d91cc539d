//! The data files of one node: the shared write-ahead log, the extents that take what outlives it,
//! the checkpoints that say from where to replay. All of it behind a [`Disk`], none of it with an
//! idea of what an entry means.
//!
//! Invariant: what a `sync` or `finish` or `save` returned `Ok` for survives a power cut, what is
//! read back is checked against its checksum or was checked by the caller's own, and damage is
//! reported with file and offset, never repaired by forgetting.
//!
//! In reading order:
//! - [`error`]: what can go wrong and what to tell the operator.
//! - [`disk`]: the trait, the real folder and the faulty one in memory.
//! - [`data_folder`]: whose folder it is, one process at a time.
//! - [`wal`]: frames of records, one write and one sync for all groups; recovery; recycling.
//! - [`extent`]: immutable files of messages, by queue and sequence.
//! - [`checkpoint`]: the newest of two states per group.
//! - [`inspect`]: reads a folder as far as a damaged one allows.
//! - [`export`]: every message that an extent still has, whoever refers to it.
//! - [`fuzz`]: entry points that take any bytes.
//!
//! The bytes are drawn in `docs/formats/`.

pub mod checkpoint;
pub mod crc32c;
pub mod data_folder;
pub mod disk;
pub mod error;
pub mod export;
pub mod extent;
mod fields;
pub mod fuzz;
pub mod inspect;
pub mod wal;

pub use checkpoint::{Checkpoint, CheckpointPair, CheckpointStore};
pub use data_folder::{
    AloneRecord, ClusterRecord, DataFolder, FolderIdentity, Forgot, Founder, Life, NodeRecord, NodeState, doubt_log,
};
pub use disk::{Disk, DiskFile, DryDisk, FaultyDisk, OpenMode, RealDisk, is_no_file};
pub use error::StorageError;
pub use extent::{Extent, ExtentId, ExtentWriter};
pub use wal::{
    FileNo, GroupId, Location, Record, RecordKind, RecordRef, Wal, WalOptions, WalPosition, WalReader, WriteWay,
    recover,
};
