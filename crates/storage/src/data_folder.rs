//! Whose data folder it is, and that one process has it.
//!
//! ```text
//! identity                        lock
//!   leveret data folder             the process id of the holder, for messages only;
//!   format 1                        the lock itself is flock(2) on the file
//!   node rabbit@host
//!   cluster 0123...ef (32 digits)
//!   folder 0123...ef (32 digits)
//!   check 89abcdef (CRC-32C of the lines before)
//! ```
//!
//! Invariant: the identity is written once, when the folder is founded, and never changed. A folder with other things
//! in it is never founded in, so a mistyped path destroys nothing.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, OpenMode, RealDisk, read_whole};
use crate::error::{StorageError, at, syncing};
use crate::wal::{MARK_NAME, WAL_FOLDER, found_log, is_slot};

mod boot;
mod mend;

pub use boot::{BOOT_NAME, Forgot, Life, doubt_log};
pub use mend::{MendedIdentity, mend_identity};

/// Version of the folder as a whole. Other versions are refused.
pub const FOLDER_FORMAT_VERSION: u32 = 1;
/// Longest name of a node, in bytes.
pub const NODE_NAME_BYTES_MAX: usize = 255;

/// The file that makes a folder a data folder.
pub const IDENTITY_NAME: &str = "identity";
const IDENTITY_TEMPORARY_NAME: &str = "identity.new";
const LOCK_NAME: &str = "lock";
const FIRST_LINE: &str = "leveret data folder";
/// The whole text has six short lines.
const IDENTITY_BYTES_MAX: usize = 1024;

/// What a fresh file system puts into its root; a folder with nothing else is empty.
const IGNORED_NAMES: [&str; 3] = ["lost+found/", LOCK_NAME, IDENTITY_TEMPORARY_NAME];

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
    founded: bool,
    _lock: D::File,
}

impl DataFolder<RealDisk> {
    /// Opens the folder at a path of the file system, which is made if it is missing; see [`DataFolder::open`].
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
    /// `process_id` is only written down for the message that a second process gets. Each error is one line that says
    /// what to do. A node name is 1 to 255 bytes without white space and control characters; anything else is a
    /// caller's bug and panics.
    pub fn open(disk: Arc<D>, founding: FolderIdentity, process_id: u32) -> Result<DataFolder<D>, StorageError> {
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
        let lock = take_lock(&*disk, &folder, process_id)?;
        let identity = read_identity(&*disk).map_err(|error| match error.is_damage() {
            true => StorageError::IdentityDamaged { folder: folder.clone(), why: error.to_string() },
            false => error,
        })?;
        let (identity, founded) = match identity {
            Some(identity) => {
                // The founder may have died between naming the file and making the name durable.
                disk.sync_folder("").map_err(syncing(IDENTITY_NAME))?;
                (identity, false)
            }
            None => {
                // Before the identity, so that a folder with one has a log from its first moment on: see `has_log`.
                found_log(&*disk)?;
                (write_identity(&*disk, &folder, founding.clone())?, true)
            }
        };
        if identity.node_name != founding.node_name {
            return Err(StorageError::OtherNode { folder, found: identity.node_name, wanted: founding.node_name });
        }
        Ok(DataFolder { disk, identity, founded, _lock: lock })
    }

    /// Who it belongs to.
    pub fn identity(&self) -> &FolderIdentity {
        &self.identity
    }

    /// Whether this call made it.
    pub fn was_founded(&self) -> bool {
        self.founded
    }

    /// Its files.
    pub fn disk(&self) -> &Arc<D> {
        &self.disk
    }
}

/// Refuses to found a node where every user of the machine may replace its files. Where one is already it goes on, so
/// that a folder which was fine yesterday stops no restart: the mode is given back then, to be told.
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

fn take_lock<D: Disk>(disk: &D, folder: &str, process_id: u32) -> Result<D::File, StorageError> {
    let lock = disk.open(LOCK_NAME, OpenMode::CreateOrOpen).map_err(|source| unwritable(folder, source))?;
    if !lock.try_lock().map_err(at("lock", LOCK_NAME))? {
        let holder = read_whole(&lock, 64).unwrap_or_default();
        let pid = String::from_utf8_lossy(&holder).trim().to_owned();
        let pid = if pid.is_empty() { "unknown".to_owned() } else { pid };
        return Err(StorageError::Locked { folder: folder.to_owned(), pid });
    }
    let text = format!("{process_id}\n");
    // An idle restart of the same process id writes nothing.
    if read_whole(&lock, 64).unwrap_or_default() != text.as_bytes() {
        lock.set_len(0).map_err(at("write", LOCK_NAME))?;
        lock.write_at(text.as_bytes(), 0).map_err(at("write", LOCK_NAME))?;
    }
    Ok(lock)
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

fn write_identity<D: Disk>(disk: &D, folder: &str, identity: FolderIdentity) -> Result<FolderIdentity, StorageError> {
    let file =
        disk.open(IDENTITY_TEMPORARY_NAME, OpenMode::CreateOrOpen).map_err(|source| unwritable(folder, source))?;
    file.set_len(0).map_err(at("write", IDENTITY_TEMPORARY_NAME))?;
    file.write_at(encode_identity(&identity).as_bytes(), 0).map_err(at("write", IDENTITY_TEMPORARY_NAME))?;
    file.sync_data().map_err(syncing(IDENTITY_TEMPORARY_NAME))?;
    disk.rename(IDENTITY_TEMPORARY_NAME, IDENTITY_NAME).map_err(at("name", IDENTITY_NAME))?;
    disk.sync_folder("").map_err(syncing(IDENTITY_NAME))?;
    Ok(identity)
}

/// The identity of a folder, `None` if it has none yet. Changes nothing.
pub(crate) fn read_identity<D: Disk>(disk: &D) -> Result<Option<FolderIdentity>, StorageError> {
    let file = match disk.open(IDENTITY_NAME, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("open", IDENTITY_NAME)(error)),
    };
    let contents = read_whole(&file, IDENTITY_BYTES_MAX).map_err(at("read", IDENTITY_NAME))?;
    decode_identity(&contents).map(Some)
}

fn encode_identity(identity: &FolderIdentity) -> String {
    let FolderIdentity { node_name, cluster_id, folder_id } = identity;
    let mut text = format!(
        "{FIRST_LINE}\nformat {FOLDER_FORMAT_VERSION}\nnode {node_name}\ncluster {cluster_id:032x}\nfolder {folder_id:032x}\n"
    );
    let check = crc32c::crc32c(text.as_bytes());
    writeln!(text, "check {check:08x}").expect("a string takes all text");
    text
}

fn decode_identity(contents: &[u8]) -> Result<FolderIdentity, StorageError> {
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
    let line = |number: usize, key: &str| text.lines().nth(number).and_then(|line| line.strip_prefix(key));
    let id = |number, key| line(number, key).and_then(|digits| u128::from_str_radix(digits, 16).ok());
    let hashed = text.rfind("check ").map_or(0, |at| crc32c::crc32c(&contents[..at]));
    // The version comes before the checksum: another version may have other lines.
    let version = line(1, "format ").and_then(|version| version.parse().ok());
    if let Some(found) = version.filter(|version| *version != FOLDER_FORMAT_VERSION) {
        return Err(StorageError::OtherVersion {
            file: IDENTITY_NAME.to_owned(),
            found,
            supported: FOLDER_FORMAT_VERSION,
        });
    }
    let stored = line(5, "check ").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match (line(0, FIRST_LINE), line(2, "node "), id(3, "cluster "), id(4, "folder "), stored) {
        (Some(""), Some(node), Some(cluster_id), Some(folder_id), Some(stored))
            if stored == hashed && version.is_some() =>
        {
            Ok(FolderIdentity { node_name: node.to_owned(), cluster_id, folder_id })
        }
        (.., stored) => Err(corrupt("checksum of the lines", hashed, stored.unwrap_or(0))),
    }
}
