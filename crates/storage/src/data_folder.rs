//! Whose data folder it is, and that one process has it.
//!
//! ```text
//! identity                        lock
//!   leveret data folder             the process id of the holder, for messages only;
//!   format 2                        the lock itself is flock(2) on the file
//!   node rabbit@host
//!   cluster 0123...ef (32 digits)
//!   folder 0123...ef (32 digits)
//!   check 89abcdef (CRC-32C of the lines before)
//! ```
//!
//! Invariant: the identity is written once, when the folder is founded, and what it says is never
//! changed, but for the name and the cluster of a node that none has taken in yet. A folder with other things in it is
//! never founded in, so a mistyped path destroys nothing.

use crate::crc32c;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, FolderLock, OpenMode, RealDisk, read_whole};
use crate::error::{StorageError, at, syncing};
use crate::wal::{MARK_NAME, WAL_FOLDER, found_log, is_slot};

mod alone;
mod boot;
mod cluster;
mod node;
mod repair;
mod reserve;

pub use alone::{ALONE_FILE, AloneRecord};
pub use boot::{BOOT_NAME, Forgot, Life, doubt_log};
pub(crate) use cluster::{CLUSTER_FILE, read_cluster_record};
pub use cluster::{ClusterRecord, Founder, ToldOfItself, WENT_ON_MAX};
pub use node::{NODE_FILE, NodeRecord, NodeState};
pub(crate) use node::{decode as decode_node, read as read_node};
pub use repair::{RepairedIdentity, repair_identity};
pub use reserve::{RESERVE_BYTES, give_back, keep_reserve};

/// Version of the folder as a whole. Later ones are refused. Version 1 has no file `node`, and
/// becomes version 2 when it is opened.
pub const FOLDER_FORMAT_VERSION: u32 = 2;
/// Longest name of a node, in bytes.
pub const NODE_NAME_BYTES_MAX: usize = 255;

/// The file that makes a folder a data folder.
pub const IDENTITY_NAME: &str = "identity";
const LOCK_NAME: &str = "lock";
const FIRST_LINE: &str = "leveret data folder";
/// The whole text has six short lines.
const IDENTITY_BYTES_MAX: usize = 1024;

/// What a fresh file system puts into its root; a folder with nothing else is empty.
/// A founder that died leaves the others.
const IGNORED_NAMES: [&str; 5] = ["lost+found/", LOCK_NAME, "identity.new", NODE_FILE, "node.new"];

/// Who owns a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderIdentity {
    /// The node, as in `--node-name`.
    pub node_name: String,
    /// The cluster that the node founded or joined.
    pub cluster_id: u128,
    /// This folder itself; files of other folders are not taken for its own.
    pub folder_id: u128,
}

/// An open data folder. The lock lasts as long as this value.
#[derive(Debug)]
pub struct DataFolder<D: Disk> {
    disk: Arc<D>,
    identity: FolderIdentity,
    node: NodeRecord,
    founded: bool,
    /// Whether its node became a member by this process.
    is_new_member: bool,
    was_short: bool,
    _lock: D::File,
    _folder_lock: FolderLock,
}

impl DataFolder<RealDisk> {
    /// Opens the folder at a path of the file system, which is made if it is missing; see
    /// [`DataFolder::open`].
    pub fn open_path(
        path: &Path,
        founding: FolderIdentity,
        process_id: u32,
    ) -> Result<DataFolder<RealDisk>, StorageError> {
        let disk = RealDisk::create(path).map_err(|source| unwritable(&path.display().to_string(), source))?;
        refuse_open_to_all(&disk)?;
        DataFolder::open(Arc::new(disk), founding, process_id)
    }
}

impl<D: Disk> DataFolder<D> {
    /// Opens the folder for the node of that name, or founds it with `founding` if it is empty.
    ///
    /// `process_id` is only written down for the message that a second process gets. Each error is
    /// one line that says what to do. A node name is 1 to 255 bytes without white space and control
    /// characters; anything else is a caller's bug and panics.
    pub fn open(disk: Arc<D>, founding: FolderIdentity, process_id: u32) -> Result<DataFolder<D>, StorageError> {
        DataFolder::open_or_make(disk, founding, NodeRecord::UNSTARTED, process_id)
    }

    /// Opens the folder for a node of that name that is, or wants to be, a member of the cluster
    /// that `joining` names. An empty folder is made into one that founds nothing. Errors as those
    /// of [`DataFolder::open`], and of a folder of another cluster.
    pub fn join(disk: Arc<D>, joining: FolderIdentity, process_id: u32) -> Result<DataFolder<D>, StorageError> {
        let newcomer = NodeRecord { id: 0, state: NodeState::Joining, ..NodeRecord::UNSTARTED };
        DataFolder::open_or_make(disk, joining, newcomer, process_id)
    }

    fn open_or_make(
        disk: Arc<D>,
        founding: FolderIdentity,
        node: NodeRecord,
        process_id: u32,
    ) -> Result<DataFolder<D>, StorageError> {
        let name = &founding.node_name;
        assert!(
            (1..=NODE_NAME_BYTES_MAX).contains(&name.len())
                && !name.contains(|c: char| c.is_whitespace() || c.is_control()),
            "a node name is 1 to {NODE_NAME_BYTES_MAX} bytes without white space"
        );
        let folder = disk.describe();
        let names = disk.list("").map_err(|source| unwritable(&folder, source))?;
        let exists = names.iter().any(|name| name == IDENTITY_NAME);
        // Looked at before anything is made: a wrong path must stay as it was.
        if !exists {
            let log = log_of_nobody(&*disk)?;
            if log == LogOfNobody::Written {
                return Err(StorageError::IdentityGone { folder });
            }
            let belongs = |name: &str| {
                IGNORED_NAMES.contains(&name) || log == LogOfNobody::Blank && name.strip_suffix('/') == Some(WAL_FOLDER)
            };
            if let Some(found) = names.into_iter().find(|name| !belongs(name)) {
                return Err(StorageError::NotADataFolder { folder, found });
            }
        }
        let (lock, folder_lock) = take_lock(&*disk, &folder)?;
        let was_short = exists && reserve::give_back(&*disk)?;
        note_holder(&lock, process_id)?;
        let identity = read_identity(&*disk).map_err(|error| match error.is_damage() {
            true => StorageError::IdentityDamaged { folder: folder.clone(), why: error.to_string() },
            false => error,
        })?;
        let Some((mut identity, version)) = identity else {
            // Both before the identity, so that a folder with one has a log and a node from its
            // first moment on: see `has_log`.
            found_log(&*disk)?;
            let node = node.started()?;
            node::write(&*disk, &node)?;
            write_identity(&*disk, &founding)?;
            return Ok(DataFolder {
                disk,
                identity: founding,
                node,
                founded: true,
                is_new_member: false,
                was_short,
                _lock: lock,
                _folder_lock: folder_lock,
            });
        };
        if alone::is_begun(&*disk)? {
            return Err(StorageError::GoingAlone { folder });
        }
        let known = node::read(&*disk).map_err(|error| match error.is_damage() {
            true => StorageError::IdentityDamaged { folder: folder.clone(), why: error.to_string() },
            false => error,
        })?;
        // Of a node that no cluster has taken in there is nothing yet: it may come to another one, by
        // another name. The folder's number stays, by which the one before would know it.
        let joins = node.state == NodeState::Joining;
        let is_begun = joins
            && known.is_some_and(|known| known.state == NodeState::Joining)
            && read_cluster_record(&*disk)?.is_none();
        if identity.node_name != founding.node_name && !is_begun {
            return Err(StorageError::OtherNode { folder, found: identity.node_name, wanted: founding.node_name });
        }
        if joins && identity.cluster_id != founding.cluster_id && !is_begun {
            return Err(StorageError::OtherCluster { folder, found: identity.cluster_id, wanted: founding.cluster_id });
        }
        let node = match known {
            Some(node) => node.started()?,
            None if version == 1 => NodeRecord::UNSTARTED.started()?,
            None => return Err(StorageError::NodeFileGone { folder }),
        };
        // Makes the name of the identity durable, too: its founder may have died between naming it
        // and that.
        node::write(&*disk, &node)?;
        let told = FolderIdentity { folder_id: identity.folder_id, ..founding };
        if is_begun && identity != told {
            identity = told;
            write_identity(&*disk, &identity)?;
        }
        if version == 1 {
            write_identity(&*disk, &identity)?;
        }
        Ok(DataFolder {
            disk,
            identity,
            node,
            founded: false,
            is_new_member: false,
            was_short,
            _lock: lock,
            _folder_lock: folder_lock,
        })
    }

    /// Takes away what the folder began with: its node was to come to a cluster, and no other node counts
    /// on it. What is left counts as empty, for whatever comes next, and this value is used no more.
    ///
    /// # Panics
    /// If a cluster has taken the node in.
    pub fn abandon(&self) -> Result<(), StorageError> {
        let is_begun = self.node.state == NodeState::Joining && self.cluster_record()?.is_none();
        assert!(is_begun, "what a cluster has taken in is not given up");
        let remove = |name: &str| self.disk.remove(name).map_err(at("remove", name));
        // First: without it the others are what a founder that died leaves.
        remove(IDENTITY_NAME)?;
        self.disk.sync_folder("").map_err(syncing(IDENTITY_NAME))?;
        remove(NODE_FILE)?;
        for name in self.disk.list(WAL_FOLDER).map_err(at("list", WAL_FOLDER))? {
            remove(&format!("{WAL_FOLDER}/{name}"))?;
        }
        Ok(())
    }

    /// Who it belongs to.
    pub fn identity(&self) -> &FolderIdentity {
        &self.identity
    }

    /// Whether this call made it.
    pub fn was_founded(&self) -> bool {
        self.founded
    }

    /// Whether the disk was full, so that the room kept for this start was given back to it.
    pub fn was_short(&self) -> bool {
        self.was_short
    }

    /// Its files.
    pub fn disk(&self) -> &Arc<D> {
        &self.disk
    }
}

/// Refuses to found a node where every user of the machine may replace its files. Where one is
/// already it goes on, so that a folder which was fine yesterday stops no restart: the mode is
/// given back then, to be told.
pub fn refuse_open_to_all(disk: &RealDisk) -> Result<Option<u32>, StorageError> {
    let folder = disk.describe();
    let mode = disk.mode_open_to_all().map_err(|source| unwritable(&folder, source))?;
    let Some(mode) = mode else { return Ok(None) };
    let names = disk.list("").map_err(|source| unwritable(&folder, source))?;
    match names.iter().any(|name| name == IDENTITY_NAME) {
        true => Ok(Some(mode)),
        false => Err(StorageError::OpenToAll { folder, mode }),
    }
}

fn unwritable(folder: &str, source: io::Error) -> StorageError {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StorageError::NotWritable { folder: folder.to_owned(), source }
        }
        _ => StorageError::io("use", folder, source),
    }
}

/// A folder in use is locked twice: on a file that names the process, and as a folder, because
/// people remove files that look like left-overs.
type Locks<D> = (<D as Disk>::File, FolderLock);

fn take_lock<D: Disk>(disk: &D, folder: &str) -> Result<Locks<D>, StorageError> {
    let lock = disk.open(LOCK_NAME, OpenMode::CreateOrOpen).map_err(|source| unwritable(folder, source))?;
    let folder_lock = disk.lock_folder().map_err(|source| unwritable(folder, source))?;
    let is_free = lock.try_lock().map_err(at("lock", LOCK_NAME))?;
    let (true, Some(folder_lock)) = (is_free, folder_lock) else {
        let holder = read_whole(&lock, 64).unwrap_or_default();
        let pid = String::from_utf8_lossy(&holder).trim().to_owned();
        let pid = if pid.is_empty() { "unknown".to_owned() } else { pid };
        return Err(StorageError::Locked { folder: folder.to_owned(), pid });
    };
    Ok((lock, folder_lock))
}

/// Why a folder cannot be opened now, if another process has it. Makes nothing and keeps nothing.
pub fn held_by_another<D: Disk>(disk: &D) -> Option<StorageError> {
    let has_lock = disk.list("").is_ok_and(|names| names.iter().any(|name| name == LOCK_NAME));
    let taken = has_lock.then(|| take_lock(disk, &disk.describe()))?;
    taken.err().filter(|error| matches!(error, StorageError::Locked { .. }))
}

fn note_holder(lock: &impl DiskFile, process_id: u32) -> Result<(), StorageError> {
    let text = format!("{process_id}\n");
    // An idle restart of the same process id writes nothing.
    if read_whole(lock, 64).unwrap_or_default() != text.as_bytes() {
        lock.set_len(0).map_err(at("write", LOCK_NAME))?;
        lock.write_at(text.as_bytes(), 0).map_err(at("write", LOCK_NAME))?;
    }
    Ok(())
}

/// What the log's folder looks like in a folder without an identity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogOfNobody {
    /// Not there, or as a founder that died left it: empty, or with empty files.
    Blank,
    /// A log.
    Written,
    /// Something else's.
    Foreign,
}

fn log_of_nobody<D: Disk>(disk: &D) -> Result<LogOfNobody, StorageError> {
    let names = disk.list(WAL_FOLDER).map_err(at("list", WAL_FOLDER))?;
    for name in names {
        let is_log = is_slot(&name);
        let name = format!("{WAL_FOLDER}/{name}");
        if !is_log && name != MARK_NAME {
            return Ok(LogOfNobody::Foreign);
        }
        let file = disk.open(&name, OpenMode::Read).map_err(at("open", &name))?;
        if !file.is_empty().map_err(at("measure", &name))? {
            return Ok(LogOfNobody::Written);
        }
    }
    Ok(LogOfNobody::Blank)
}

/// Writes a small file as a whole under another name, and gives it its own. Returns when that is
/// durable.
fn replace_text<D: Disk>(disk: &D, name: &str, text: &str) -> Result<(), StorageError> {
    let temporary = format!("{name}.new");
    let file = disk.open(&temporary, OpenMode::CreateOrOpen).map_err(at("create", &temporary))?;
    file.set_len(0).map_err(at("write", &temporary))?;
    file.write_at(text.as_bytes(), 0).map_err(at("write", &temporary))?;
    file.sync_data().map_err(syncing(&temporary))?;
    disk.rename(&temporary, name).map_err(at("name", name))?;
    disk.sync_folder("").map_err(syncing(name))
}

/// Such a file, `None` if it is not there. Changes nothing. Errors: it has more than `bytes_max`, which is damage.
fn read_text<D: Disk>(disk: &D, name: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, StorageError> {
    let file = match disk.open(name, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("open", name)(error)),
    };
    match read_whole(&file, bytes_max) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let (expected, found) = (bytes_max as u64, file.len().map_err(at("measure", name))?);
            Err(StorageError::Corrupt { file: name.to_owned(), offset: 0, what: "count of its bytes", expected, found })
        }
        read => read.map(Some).map_err(at("read", name)),
    }
}

/// Ends such a text with the checksum of its lines.
fn seal_text(mut text: String) -> String {
    let check = crc32c::crc32c(text.as_bytes());
    writeln!(text, "check {check:08x}").expect("a string takes all text");
    text
}

/// What stands behind `key` in a line of such a text.
fn line_of<'a>(text: &'a str, number: usize, key: &str) -> Option<&'a str> {
    text.lines().nth(number).and_then(|line| line.strip_prefix(key))
}

/// Of a folder without a file `node`, as earlier builds made them, the version stays theirs: the
/// next opening raises it.
fn write_identity<D: Disk>(disk: &D, identity: &FolderIdentity) -> Result<(), StorageError> {
    let version = if node::read_bytes(disk)?.is_some() { FOLDER_FORMAT_VERSION } else { 1 };
    replace_text(disk, IDENTITY_NAME, &encode_identity(identity, version))
}

/// The identity of a folder and the version of its format, `None` if it has none yet. Changes
/// nothing.
pub(crate) fn read_identity<D: Disk>(disk: &D) -> Result<Option<(FolderIdentity, u32)>, StorageError> {
    read_text(disk, IDENTITY_NAME, IDENTITY_BYTES_MAX)?.map(|contents| decode_identity(&contents)).transpose()
}

fn encode_identity(identity: &FolderIdentity, version: u32) -> String {
    let FolderIdentity { node_name, cluster_id, folder_id } = identity;
    seal_text(format!(
        "{FIRST_LINE}\nformat {version}\nnode {node_name}\ncluster {cluster_id:032x}\nfolder {folder_id:032x}\n"
    ))
}

fn decode_identity(contents: &[u8]) -> Result<(FolderIdentity, u32), StorageError> {
    let corrupt = |what, expected: u32, found: u32| StorageError::Corrupt {
        file: IDENTITY_NAME.to_owned(),
        offset: 0,
        what,
        expected: u64::from(expected),
        found: u64::from(found),
    };
    if contents.is_empty() {
        return Err(corrupt("length of an empty file", FIRST_LINE.len() as u32, 0));
    }
    let text = str::from_utf8(contents).map_err(|_| corrupt("text", 0, 0))?;
    let line = |number, key| line_of(text, number, key);
    let id = |number, key| line(number, key).and_then(|digits| u128::from_str_radix(digits, 16).ok());
    let hashed = text.rfind("check ").map_or(0, |at| crc32c::crc32c(&contents[..at]));
    // The version comes before the checksum: another version may have other lines.
    let version = line(1, "format ").and_then(|version| version.parse().ok());
    if let Some(found) = version.filter(|version| !(1..=FOLDER_FORMAT_VERSION).contains(version)) {
        return Err(StorageError::OtherVersion {
            file: IDENTITY_NAME.to_owned(),
            found,
            supported: FOLDER_FORMAT_VERSION,
        });
    }
    let stored = line(5, "check ").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let ids = id(3, "cluster ").zip(id(4, "folder "));
    match (line(0, FIRST_LINE), version, line(2, "node "), ids, stored) {
        (Some(""), Some(version), Some(node), Some((cluster_id, folder_id)), Some(stored)) if stored == hashed => {
            let identity = FolderIdentity { node_name: node.to_owned(), cluster_id, folder_id };
            match encode_identity(&identity, version).len() {
                length if length == contents.len() => Ok((identity, version)),
                length => Err(corrupt("count of its bytes", length as u32, contents.len() as u32)),
            }
        }
        (.., stored) => Err(corrupt("checksum of the lines", hashed, stored.unwrap_or(0))),
    }
}
