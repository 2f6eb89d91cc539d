//! Files that say whose folder it is and which node, damaged or gone: made anew from what is left
//! of them and of the log.
//!
//! Invariant: a folder is never given another folder's id: it is the one that a checksum vouches
//! for, of the file's own lines with one bit turned back, or of the headers of the log's files. A
//! file that was damaged is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checkpoint::CHECKPOINT_FOLDER;
use crate::disk::{Disk, DiskFile, FolderLock, OpenMode, is_no_file};
use crate::error::{StorageError, at, syncing};
use crate::wal::folder_ids;

use super::cluster::{CLUSTER_FILE, read_cluster_record};
use super::node::{self, NODE_FILE, NodeRecord, NodeState};
use super::{
    FolderIdentity, IDENTITY_BYTES_MAX, IDENTITY_NAME, NODE_NAME_BYTES_MAX, decode_identity, note_holder, read_text,
    take_lock, write_identity,
};

/// What a damaged file of lines may have in all; it is kept whole beside the new one.
const REPAIRED_BYTES_MAX: usize = 1 << 20;

/// An identity of which something was made anew. The folder's lock is held as long as this value.
#[derive(Debug)]
pub struct RepairedIdentity<D: Disk> {
    /// Whose folder it is.
    pub identity: FolderIdentity,
    /// Which node of its cluster.
    pub node: NodeRecord,
    /// What was wrong, a line a file.
    pub damage: Vec<String>,
    /// What of the new one is not as the old one said, or cannot be proven to be; for a person.
    pub changed: Vec<String>,
    /// Whether the folder is that of a node of a cluster, by a file that says of which.
    pub is_of_cluster: bool,
    /// Damaged files, and where they are kept.
    pub aside: Vec<(String, String)>,
    _lock: D::File,
    _folder_lock: FolderLock,
}

/// Makes those of the files `identity` and `node` anew that are damaged or missing; `None`, and
/// nothing changed, if both are whole.
///
/// - `node_name` stands for a name that cannot be read any more, `unused_start` is a number of a
///   start that was surely not used yet.
/// - Cost: with damage, one look at the header of each file of the log.
/// - Errors: the folder is in use; nothing says which folder it is; the name is needed and not
///   given; a folder of a cluster, and neither a checksum nor another file says what it was
///   ([`StorageError::NotMadeAnew`]).
pub fn repair_identity<D: Disk>(
    disk: &Arc<D>,
    node_name: Option<&str>,
    unused_start: u32,
    mut aside: impl FnMut(&str) -> Result<String, StorageError>,
) -> Result<Option<RepairedIdentity<D>>, StorageError> {
    let contents = read_or_gone(&**disk, IDENTITY_NAME)?;
    let (mut damage, mut changed, mut broken) = (Vec::new(), Vec::new(), Vec::new());
    let is_of_cluster = has_cluster_file(&**disk)?;
    let not_proven = |why: &StorageError| StorageError::NotMadeAnew { folder: disk.describe(), why: why.to_string() };
    let (identity, version) = match contents.as_deref().map(decode_identity) {
        Some(Ok(whole)) => whole,
        failed => {
            let why = missing_or(failed, IDENTITY_NAME);
            let left = contents.as_deref().unwrap_or_default();
            let found = match turn_back(left, decode_identity) {
                Some(found) => Some(found),
                // Another version whose lines are whole is no damage.
                None if !why.is_damage() => return Err(why),
                // The others know the node by what it said, and it does not follow from the log.
                None if is_of_cluster => return Err(not_proven(&why)),
                // Without a file `node` it may be a folder of a build that made none.
                None => pieced_together(&**disk, left, node_name)?.map(|(identity, told)| {
                    changed = told;
                    (identity, 1)
                }),
            };
            let Some(found) = found else { return Err(why) };
            damage.push(why.to_string());
            broken.push((IDENTITY_NAME, contents));
            found
        }
    };
    let contents = read_or_gone(&**disk, NODE_FILE)?;
    let node = match contents.as_deref().map(node::decode) {
        Some(Ok(whole)) => whole,
        None if version == 1 => NodeRecord::UNSTARTED,
        failed => {
            let why = missing_or(failed, NODE_FILE);
            let left = contents.as_deref().unwrap_or_default();
            let found = turn_back(left, node::decode);
            if found.is_none() && !why.is_damage() {
                return Err(why);
            }
            let found = match found {
                None if is_of_cluster => {
                    let listed = listed(&**disk, &identity, unused_start).ok_or_else(|| not_proven(&why))?;
                    let (id, file) = (listed.id, CLUSTER_FILE);
                    changed.push(format!(
                        "the node is number {id} of its cluster, as the file `{file}` says, and its starts are counted from a number on that \
                         none had"
                    ));
                    Some(listed)
                }
                found => found,
            };
            damage.push(why.to_string());
            broken.push((NODE_FILE, contents.clone()));
            found.unwrap_or_else(|| {
                let read = node::lines(&String::from_utf8_lossy(left)).unwrap_or(NodeRecord::UNSTARTED);
                let (id, state) = (read.id, read.state.name());
                changed.push(format!(
                    "the node is taken for number {id} of its cluster ({state}), and its starts are counted from a number on that none had"
                ));
                NodeRecord { start: unused_start, ..read }
            })
        }
    };
    if broken.is_empty() {
        return Ok(None);
    }
    let (lock, folder_lock) = take_lock(&**disk, &disk.describe())?;
    note_holder(&lock, std::process::id())?;
    let mut kept = Vec::new();
    for (name, contents) in &broken {
        if let Some(contents) = contents {
            let target = aside(name)?;
            keep(&**disk, &target, contents)?;
            kept.push(((*name).to_owned(), target));
        }
    }
    if broken.iter().any(|(name, _)| *name == NODE_FILE) {
        node::write(&**disk, &node)?;
    }
    if broken.iter().any(|(name, _)| *name == IDENTITY_NAME) {
        write_identity(&**disk, &identity)?;
    }
    Ok(Some(RepairedIdentity {
        identity,
        node,
        damage,
        changed,
        is_of_cluster,
        aside: kept,
        _lock: lock,
        _folder_lock: folder_lock,
    }))
}

fn has_cluster_file<D: Disk>(disk: &D) -> Result<bool, StorageError> {
    let names = disk.list("").map_err(at("list", "the data folder"))?;
    // Also where it is a folder by now, whose name ends so.
    Ok(names.iter().any(|name| name.trim_end_matches('/') == CLUSTER_FILE))
}

/// The node of a folder by what the file `cluster` says, once the node has the state of its groups: which is what makes
/// it a member.
fn listed<D: Disk>(disk: &D, identity: &FolderIdentity, unused_start: u32) -> Option<NodeRecord> {
    let record = read_cluster_record(disk).ok()??;
    let own = record.founders.iter().find(|founder| founder.folder_id == identity.folder_id)?;
    let has_state = disk.list(CHECKPOINT_FOLDER).ok()?.iter().any(|name| name.ends_with(".0") || name.ends_with(".1"));
    has_state.then_some(NodeRecord { id: own.number, state: NodeState::Member, start: unused_start })
}

/// A text that may be damaged. What is no file says as little as none.
fn read_or_gone<D: Disk>(disk: &D, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
    match read_text(disk, name, REPAIRED_BYTES_MAX) {
        Err(StorageError::Io { source, .. }) if is_no_file(&source) => Ok(None),
        read => read,
    }
}

/// Why a file is no good that could not be decoded, or is not there.
fn missing_or<T>(decoded: Option<Result<T, StorageError>>, name: &str) -> StorageError {
    let missing = StorageError::Missing { file: name.to_owned(), why: "open" };
    decoded.and_then(Result::err).unwrap_or(missing)
}

pub(super) fn keep<D: Disk>(disk: &D, name: &str, contents: &[u8]) -> Result<(), StorageError> {
    let file = disk.open(name, OpenMode::CreateNew).map_err(at("create", name))?;
    file.write_at(contents, 0).map_err(at("write", name))?;
    file.sync_data().map_err(syncing(name))?;
    disk.sync_folder(name.rsplit_once('/').map_or("", |(folder, _)| folder)).map_err(syncing(name))
}

/// What one turned bit made unreadable, or something behind it. The checksum tells all errors of up
/// to three bits apart in so short a text.
fn turn_back<T>(contents: &[u8], decode: impl Fn(&[u8]) -> Result<T, StorageError>) -> Option<T> {
    const CHECK_LINE_BYTES: usize = "check 01234567\n".len();
    let check = contents.windows(CHECK_LINE_BYTES).position(|line| line.starts_with(b"check "));
    if let Some(Ok(found)) = check.map(|at| decode(&contents[..at + CHECK_LINE_BYTES])) {
        return Some(found);
    }
    if contents.len() > IDENTITY_BYTES_MAX {
        return None;
    }
    let mut bytes = contents.to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(found) = decode(&bytes) {
            return Some(found);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// From the lines that can be read and from the headers of the log's files; `None` if none of those
/// says whose it is.
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
