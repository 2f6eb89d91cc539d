//! An identity file that is damaged, or gone, made anew from what is left of it and from the files of the log.
//!
//! Invariant: a folder is never given another folder's id: it is the one that a checksum vouches for, of the file's own lines
//! with one bit turned back, or of the headers of the log's files. A file that was damaged is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, OpenMode, read_whole};
use crate::error::{StorageError, at, syncing};
use crate::wal::folder_ids;

use super::{
    FolderIdentity, IDENTITY_BYTES_MAX, IDENTITY_NAME, NODE_NAME_BYTES_MAX, decode_identity, take_lock, write_identity,
};

/// An identity that was made anew. The folder's lock is held as long as this value.
#[derive(Debug)]
pub struct MendedIdentity<D: Disk> {
    /// Whose folder it is.
    pub identity: FolderIdentity,
    /// What was wrong.
    pub damage: String,
    /// What of the new one is not as the old one said, or cannot be proven to be; for a person.
    pub changed: Vec<String>,
    /// Where the damaged file is kept, if there was one.
    pub aside: Option<String>,
    _lock: D::File,
}

/// Makes the identity of a folder anew if it is damaged or missing; `None`, and nothing changed, if it is whole.
///
/// - `node_name` stands for a name that cannot be read any more.
/// - Cost: with damage, one look at the header of each file of the log.
/// - Errors: the folder is in use; nothing says which folder it is; the name is needed and not given.
pub fn mend_identity<D: Disk>(
    disk: &Arc<D>,
    node_name: Option<&str>,
    aside: impl FnOnce() -> Result<String, StorageError>,
) -> Result<Option<MendedIdentity<D>>, StorageError> {
    let contents = match disk.open(IDENTITY_NAME, OpenMode::Read) {
        Ok(file) => Some(read_whole(&file, IDENTITY_BYTES_MAX).map_err(at("read", IDENTITY_NAME))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(at("open", IDENTITY_NAME)(error)),
    };
    let damage = match contents.as_deref().map(decode_identity) {
        Some(Ok(_)) => return Ok(None),
        Some(Err(error)) => error,
        None => StorageError::Missing { file: IDENTITY_NAME.to_owned(), why: "open" },
    };
    let left = contents.as_deref().unwrap_or_default();
    let found = match turn_back(left) {
        Some(identity) => Some((identity, Vec::new())),
        // Another version whose lines are whole is no damage.
        None if !damage.is_damage() => return Err(damage),
        None => pieced_together(&**disk, left, node_name)?,
    };
    let Some((identity, changed)) = found else { return Err(damage) };
    let folder = disk.describe();
    let lock = take_lock(&**disk, &folder, std::process::id())?;
    let kept = match contents {
        Some(contents) => {
            let name = aside()?;
            let file = disk.open(&name, OpenMode::CreateNew).map_err(at("create", &name))?;
            file.write_at(&contents, 0).map_err(at("write", &name))?;
            file.sync_data().map_err(syncing(&name))?;
            disk.sync_folder(name.rsplit_once('/').map_or("", |(folder, _)| folder)).map_err(syncing(&name))?;
            Some(name)
        }
        None => None,
    };
    let identity = write_identity(&**disk, &folder, identity)?;
    Ok(Some(MendedIdentity { identity, damage: damage.to_string(), changed, aside: kept, _lock: lock }))
}

/// The identity that one turned bit made unreadable. The checksum tells all errors of up to three bits apart in so short a text.
fn turn_back(contents: &[u8]) -> Option<FolderIdentity> {
    let mut bytes = contents.to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(identity) = decode_identity(&bytes) {
            return Some(identity);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// From the lines that can be read and from the headers of the log's files; `None` if none of those says whose it is.
fn pieced_together<D: Disk>(
    disk: &D,
    contents: &[u8],
    node_name: Option<&str>,
) -> Result<Option<(FolderIdentity, Vec<String>)>, StorageError> {
    let mut named: BTreeMap<u128, u32> = BTreeMap::new();
    for id in folder_ids(disk)? {
        *named.entry(id).or_default() += 1;
    }
    let Some((folder_id, _)) = named.into_iter().max_by_key(|(_, files)| *files) else { return Ok(None) };
    let text = String::from_utf8_lossy(contents);
    let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let is_name = |name: &&str| {
        let is_letter = |c: char| c.is_ascii_graphic();
        (1..=NODE_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_letter)
    };
    let mut changed = Vec::new();
    let node = match (node_name, line("node ").filter(is_name)) {
        (Some(given), _) => given.to_owned(),
        (None, Some(read)) => {
            changed.push(format!(
                "the node is called {read}, as its damaged file says; --node-name gives it another name"
            ));
            read.to_owned()
        }
        (None, None) => return Err(StorageError::NodeNameLost { folder: disk.describe() }),
    };
    let digits = line("cluster ").filter(|digits| digits.len() == 32);
    let cluster_id = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()).unwrap_or(folder_id);
    changed.push(format!(
        "the id of the folder is {folder_id:032x}, as its log says, and that of its cluster {cluster_id:032x}"
    ));
    Ok(Some((FolderIdentity { node_name: node, cluster_id, folder_id }, changed)))
}
