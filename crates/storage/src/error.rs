//! What can go wrong with the data files, in words an operator can act on.
//!
//! Invariant: every message names the file, says what was found, and never suggests a retry of a
//! sync: after a failed sync the kernel may have dropped the pages and call the next one a success,
//! so the only safe answer is to stop and recover from what is on the disk.

use crate::disk::is_no_file;
use std::io;

/// An error of the data files. The text of each variant is one line.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A sync failed. The process must stop; nothing written since the last good sync may be
    /// believed.
    #[error(
        "sync of {file} failed ({source}); this node must stop, what was not yet synced may be lost, check the disk"
    )]
    SyncFailed {
        /// Name inside the data folder.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Bytes on the disk are not the ones that were written.
    #[error("{file} is damaged at byte {offset}: {what} should be {expected:#x} but is {found:#x}")]
    Corrupt {
        /// Name inside the data folder.
        file: String,
        /// Where the damaged item starts.
        offset: u64,
        /// Which item it is.
        what: &'static str,
        /// The value that was stored or computed to hold.
        expected: u64,
        /// The value that was found.
        found: u64,
    },
    /// A file is longer or shorter than it was when it was finished.
    #[error("{file} has {found} bytes and {}", should_have(*.expected))]
    WrongLength {
        /// Name inside the data folder.
        file: String,
        /// How long it is.
        found: u64,
        /// How long it was, if that is known.
        expected: Option<u64>,
    },
    /// Two files of the log say that they are the same one.
    #[error(
        "{second} and {first} both say that they are file {number} of the log, as if one of them had been copied here: move the one that \
         does not belong there away; of two that are alike either"
    )]
    SameNumber {
        /// One of them, by its name inside the data folder.
        first: String,
        /// The other one.
        second: String,
        /// The number that both have.
        number: u64,
    },
    /// No room is left on the disk. Nothing of the refused operation was written to a log file; it
    /// may be tried again after space was freed.
    #[error(
        "no space left on the disk for {file}, {free_bytes} bytes are free; free some space or let consumers drain queues"
    )]
    Full {
        /// Name inside the data folder.
        file: String,
        /// What the file system said was free, 0 when it did not say.
        free_bytes: u64,
    },
    /// A file that must be there is not.
    #[error("{file} is missing ({why}); bring it back from this node's own disk or a copy")]
    Missing {
        /// Name inside the data folder.
        file: String,
        /// Who says that it must exist.
        why: &'static str,
    },
    /// The system refused an operation.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// A verb: open, read, write.
        action: &'static str,
        /// Name inside the data folder.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The log was asked for something after it had failed.
    #[error("the log has stopped after an earlier write or sync failure; restart this node")]
    Stopped,
    /// A file was written by a version of Leveret with another format.
    #[error(
        "{file} has format {found}, this version of leveret reads format {supported}; start the version that wrote it"
    )]
    OtherVersion {
        /// Name inside the data folder.
        file: String,
        /// The number in the file.
        found: u32,
        /// The number this code reads and writes.
        supported: u32,
    },
    /// The data folder belongs to a node of another name.
    #[error(
        "the data folder {folder} belongs to node {found}, not {wanted}; use --node-name {found} or another --data-dir"
    )]
    OtherNode {
        /// The folder.
        folder: String,
        /// The node that founded it.
        found: String,
        /// The node that wants to open it.
        wanted: String,
    },
    /// What says whose folder it is cannot be read.
    #[error(
        "the data folder {folder}: {why}; restore the file from a copy, or see with `leveret repair DIR --dry-run` how it would be made anew"
    )]
    IdentityDamaged {
        /// The folder.
        folder: String,
        /// What is wrong with the file.
        why: String,
    },
    /// The same of a folder of a cluster: other nodes count on what it says.
    #[error(
        "the data folder {folder}: {why}, and in the folder of a node of a cluster no command makes that file anew; nothing was changed. \
         Bring it back from this node's own disk or from a copy of this folder. Where there is none: while other nodes of the cluster are left, leave \
         this one; a majority of them serves, forgets it (`leveret ctl forget_cluster_node`) and takes in one with an empty folder in its stead \
         (`leveret cluster join`), and where they are no majority one of them goes on (`leveret cluster recover`). If this folder is the last, \
         keep it: `leveret inspect {folder} --export` prints the messages that are in extents; what is in its log alone no command prints"
    )]
    NotMadeAnew {
        /// The folder.
        folder: String,
        /// What is wrong with the file.
        why: String,
    },
    /// The file `cluster` is gone or damaged, and the rest of the folder says that its node is one of several.
    #[error(
        "the data folder {folder} is that of node {number} of a cluster with other nodes, and its file `cluster`, which says of which cluster, \
         {what}: nothing was changed, and no start makes a new one over it. Take the file from any copy of this folder, as it is written \
         once; or have it made anew, by `leveret repair {folder} --cluster-of DIR` from the data folder DIR of another node of the cluster, \
         which does not run meanwhile. Where most of the others are lost for good, `leveret cluster recover {folder}` goes on without it"
    )]
    ClusterFileLost {
        /// The folder.
        folder: String,
        /// The node's number.
        number: u32,
        /// What became of the file.
        what: String,
    },
    /// A folder with a log and nothing that says whose it is.
    #[error(
        "the data folder {folder} has a log but no file `identity`; restore the file from a copy, or see with \
         `leveret repair DIR --dry-run --node-name NAME` how it would be made anew"
    )]
    IdentityGone {
        /// The folder.
        folder: String,
    },
    /// A folder that does not say which node of its cluster it is.
    #[error(
        "the data folder {folder} has no file `node`, which says which node of its cluster it is; restore the file from a copy, \
         or see with `leveret repair DIR --dry-run` how it would be made anew"
    )]
    NodeFileGone {
        /// The folder.
        folder: String,
    },
    /// The data folder belongs to a node of another cluster.
    #[error(
        "the data folder {folder} belongs to a node {}, and what is set is about {}: to go on there it needs the \
         cluster_peers with which it began, each node at the same address; one that joined, or ran alone and is to be the first of a \
         cluster, needs cluster_address, and neither cluster_peers nor cluster_join; only one that was forgotten, or is to leave what it \
         has behind, needs another, empty folder as --data-dir. A node that has data of its own joins no others: nodes with empty \
         folders join it",
        own_cluster(*.found),
        other_cluster(*.wanted)
    )]
    OtherCluster {
        /// The folder.
        folder: String,
        /// The cluster that its node founded or joined.
        found: u128,
        /// The cluster that it is to join; 0 where it is not known yet.
        wanted: u128,
    },
    /// The other nodes of its cluster are given up, and not all steps of that were taken.
    #[error(
        "the data folder {folder} is on its way to being that of a cluster of one, and the last steps are missing: run \
         `leveret cluster recover {folder} --yes` again, which takes them"
    )]
    GoingAlone {
        /// The folder.
        folder: String,
    },
    /// Nothing says any more which node a folder belongs to.
    #[error("nothing in the data folder {folder} says any more which node it belongs to; name it with --node-name")]
    NodeNameLost {
        /// The folder.
        folder: String,
    },
    /// Another process has the data folder open.
    #[error("the data folder {folder} is in use by process {pid}; stop it or use another --data-dir")]
    Locked {
        /// The folder.
        folder: String,
        /// The holder's process id, or `unknown`.
        pid: String,
    },
    /// The folder holds something else.
    #[error("{folder} is not a leveret data folder (it holds {found}); give an empty or a new folder as --data-dir")]
    NotADataFolder {
        /// The folder.
        folder: String,
        /// One of the names found.
        found: String,
    },
    /// A new node would be founded where every user of the machine may replace its files.
    #[error(
        "every user of this machine may put files into the data folder {folder} (its mode is {mode:o}); \
         chmod o-w it, or name a folder inside it as --data-dir, which is made for this user alone"
    )]
    OpenToAll {
        /// The folder.
        folder: String,
        /// Its permissions.
        mode: u32,
    },
    /// The folder cannot be written.
    #[error(
        "the data folder {folder} cannot be written ({source}); give this user the right to or use another --data-dir"
    )]
    NotWritable {
        /// The folder.
        folder: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What Linux says when a medium or a file system cannot give back what it took: EIO, EBADMSG,
/// EUCLEAN.
const LOST_ERRNOS: [i32; 3] = [5, 74, 117];

impl StorageError {
    /// Wraps a failed system call; a full disk becomes [`StorageError::Full`].
    pub(crate) fn io(action: &'static str, file: &str, source: io::Error) -> StorageError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StorageError::Full { file: file.to_owned(), free_bytes: 0 }
            }
            io::ErrorKind::NotFound => StorageError::Missing { file: file.to_owned(), why: action },
            _ => StorageError::Io { action, file: file.to_owned(), source },
        }
    }

    /// Whether the disk refused for lack of room, which ends by itself once space is freed.
    pub fn is_full(&self) -> bool {
        matches!(self, StorageError::Full { .. })
    }

    /// Whether the file is not there: a copy from elsewhere helps, and so may a mount.
    pub fn is_gone(&self) -> bool {
        matches!(self, StorageError::Missing { .. })
    }

    /// Whether the bytes on the disk are wrong or gone, so that a copy from elsewhere is needed:
    /// not what was written, no such file, something else in its place, or sectors and file-system blocks that the system cannot
    /// make out. What the system refuses for other reasons (too many open files, say) may be there.
    pub fn is_damage(&self) -> bool {
        match self {
            StorageError::Corrupt { .. }
            | StorageError::WrongLength { .. }
            | StorageError::SameNumber { .. }
            | StorageError::Missing { .. }
            | StorageError::IdentityDamaged { .. }
            | StorageError::NotMadeAnew { .. }
            | StorageError::NodeFileGone { .. } => true,
            StorageError::Io { source, .. } => {
                is_no_file(source) || source.raw_os_error().is_some_and(|errno| LOST_ERRNOS.contains(&errno))
            }
            _ => false,
        }
    }

    /// Whether every later attempt fails as this one did, unless somebody changes something first.
    pub fn is_lasting(&self) -> bool {
        match self {
            StorageError::OtherVersion { .. }
            | StorageError::OtherNode { .. }
            | StorageError::OtherCluster { .. }
            | StorageError::GoingAlone { .. }
            | StorageError::ClusterFileLost { .. }
            | StorageError::IdentityGone { .. }
            | StorageError::NodeNameLost { .. }
            | StorageError::NotADataFolder { .. }
            | StorageError::OpenToAll { .. } => true,
            _ => self.is_damage(),
        }
    }
}

/// Short form for `map_err`.
pub(crate) fn at<'a>(action: &'static str, file: &'a str) -> impl FnOnce(io::Error) -> StorageError + 'a {
    move |source| StorageError::io(action, file, source)
}

/// The same for syncs, whose failures are final.
pub(crate) fn syncing(file: &str) -> impl FnOnce(io::Error) -> StorageError + '_ {
    move |source| StorageError::SyncFailed { file: file.to_owned(), source }
}

/// How long a file was.
fn should_have(expected: Option<u64>) -> String {
    match expected {
        Some(expected) => format!("should have {expected}: its length is wrong"),
        None => "does not end with a footer: its length is wrong, it was cut off or never finished".to_owned(),
    }
}

/// Whose node a folder is of; 0 where it did not found the cluster that it is in.
fn own_cluster(id: u128) -> String {
    match id {
        0 => "that began alone or joined".to_owned(),
        id => format!("of cluster {id:032x}"),
    }
}

/// A cluster that a folder is not of.
fn other_cluster(number: u128) -> String {
    match number {
        0 => "another one to join".to_owned(),
        number => format!("cluster {number:032x}"),
    }
}
