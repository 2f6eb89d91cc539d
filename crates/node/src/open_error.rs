//! Why a data folder cannot be served: each is one line that says what to do.

use storage::StorageError;

/// Why a data folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The storage says why.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A checkpoint of another version, or a bug.
    #[error("{0}; the data folder was written by another version of leveret: start that version, or restore a copy")]
    Checkpoint(#[from] partition::checkpoint::CheckpointDamaged),
    /// The topology's state cannot be read.
    #[error("the topology cannot be read ({0}); start the version that wrote it, or restore a copy")]
    Topology(String),
    /// Records that were synced cannot be read any more.
    #[error(
        "{count} ranges of the log are damaged, the first in {file} at byte {offset}: confirmed messages may be missing. \
         restore the data folder from a copy, or see with `leveret repair DIR --dry-run` what going on without them gives up"
    )]
    Damaged {
        /// How many ranges.
        count: u64,
        /// The file of the first.
        file: String,
        /// Where it begins.
        offset: u32,
    },
    /// No file of the log is left.
    #[error(
        "the log is gone: no file of it is left in `wal`, as if that had been emptied or its disk were not mounted. mount it or restore \
         the data folder from a copy, or see with `leveret repair DIR --dry-run` what going on without it gives up"
    )]
    LogGone,
    /// A file of messages is not there.
    #[error(
        "{file} is missing, which has messages of partition {partition}, as if it had been deleted or its disk were not mounted. \
         bring it back from this node's own disk or a copy, or see with `leveret repair DIR --dry-run` what going on without it gives up"
    )]
    FileMissing {
        /// Which it is.
        file: String,
        /// The partition.
        partition: u32,
    },
    /// A file of messages is another folder's, or another one of this folder.
    #[error(
        "{why}: it is not this folder's file of that name, and partition {partition} has messages in its own. bring that back from this node's \
         own disk or a copy of this folder, or see with `leveret repair DIR --dry-run` what going on without it gives up"
    )]
    FileForeign {
        /// Which it is.
        file: String,
        /// The partition.
        partition: u32,
        /// What tells it.
        why: String,
    },
    /// The log ends before a saved state says it goes on.
    #[error(
        "the log ends with its file {last}, and the state of partition {partition} was saved when file {file} was there, as if the newest \
         files of it were missing: restore the data folder from a copy, or see with `leveret repair DIR --dry-run` what going on without \
         them gives up"
    )]
    LogShort {
        /// Its last file; 0 for none.
        last: u64,
        /// The partition; 0 is the topology's group.
        partition: u32,
        /// The file.
        file: u32,
    },
    /// An entry is not in the log, though later ones are, and nothing that was read is damaged.
    #[error(
        "entry {index} of partition {partition} is missing in the log, as if a file of it were gone: restore the data folder from a \
         copy, or see with `leveret repair DIR --dry-run` what going on without it gives up"
    )]
    EntryMissing {
        /// The partition.
        partition: u32,
        /// The entry.
        index: u64,
    },
    /// All that was read of a partition is whole, and cannot be true.
    #[error(
        "what the data folder has of partition {partition} contradicts itself ({why}), as if files of two folders were in it: restore \
         the data folder from a copy"
    )]
    Contradictory {
        /// The partition; 0 is the topology's group.
        partition: u32,
        /// What cannot be.
        why: String,
    },
    /// No whole checkpoint of a partition is left.
    #[error(
        "{0}, and there is no other checkpoint: restore the file from a copy, or see with `leveret repair DIR --dry-run` what going on \
         without it gives up"
    )]
    StateLost(StorageError),
    /// The folder is of a node that founds nothing, and this process runs alone.
    #[error(
        "the data folder is that of a node which is to join a cluster and was not taken in yet, and this version of leveret runs \
         alone: give an empty folder as --data-dir to found a cluster instead"
    )]
    Joining,
    /// A repair is for a folder that is the only copy.
    #[error(
        "{damage}: other nodes have members of these partitions, which have what this one lost, and what it had promised them is not to be \
         made up: nothing was changed. If the node starts, start it: what is damaged of a partition is set aside, and the others serve its \
         queues. If not, leave it stopped: the cluster serves without it as long as a majority of its nodes runs. The damaged bytes back from \
         this node's own disk make it whole; an older copy of the folder does not, and must not be used. Where they are gone, have another node \
         forget this one (`leveret ctl forget_cluster_node`) and start one with an empty folder and cluster_join in its stead. Where most of the \
         others are lost for good, `leveret cluster recover DIR` says what this node could go on with alone"
    )]
    OthersHaveIt {
        /// What is damaged, the first of it.
        damage: String,
    },
    /// The folder by which the file `cluster` of this one was to be made anew.
    #[error(
        "{other} is not proven to be the data folder of another node of the same cluster ({why}), so the file `cluster` is not made by it: \
         nothing was changed. Name that of a node that was in the cluster with this one until last, and does not run meanwhile"
    )]
    NotOfOneCluster {
        /// The folder.
        other: String,
        /// What is missing.
        why: String,
    },
    /// The other nodes of a cluster are to be given up, and there is none.
    #[error(
        "the data folder is that of a node that runs alone: there are no other nodes that it could go on without, and nothing was changed. \
         Start it as it is; if it is damaged, `leveret repair DIR --dry-run` says more"
    )]
    RunsAlone,
    /// The same of a node that has no part in its cluster yet.
    #[error(
        "the data folder is that of a node which is to join a cluster and was not taken in yet, so it has nothing that could go on: choose \
         another node that is left; nothing was changed"
    )]
    NotTakenIn,
    /// The same of a node that the cluster has forgotten.
    #[error(
        "the cluster had forgotten this node before it was lost, and the others went on without it: what it has is old. Choose another node \
         that is left; nothing was changed"
    )]
    WasForgotten,
    /// The steps by which a node goes on without the others met a disk that is full, or fails.
    #[error(
        "{error}. {}",
        match .is_begun {
            true => "Not all steps were taken, and no broker opens this folder before they are: once that is mended (where the disk is full, make \
                     room on it outside of this folder), run `leveret cluster recover DIR --yes` again, which takes them all",
            false => "Nothing was changed: once that is mended, run this again",
        }
    )]
    StoppedHalfWay {
        /// What the disk said.
        error: Box<OpenError>,
        /// Whether the folder says that it is on its way.
        is_begun: bool,
    },
    /// The system does not give a random number.
    #[error("the system gives no random numbers: {0}")]
    Random(std::io::Error),
}
