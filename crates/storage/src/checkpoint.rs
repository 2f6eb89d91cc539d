//! Checkpoints: per group the newest state that was saved, and the one before it in case the newest
//! is damaged.
//!
//! ```text
//! checkpoints/GGGGGGGG.0 and .1, the group in hexadecimal, written in turn
//!   0 magic  [8]  "LVRTCKP\0"      16 folder id   u128     48 wal file no u64     68 payload crc u32
//!   8 crc    u32  over 12..128     32 group       u32      56 wal offset  u32     72 zeroes to 128
//!  12 version u32                  36 last group  u32      60 payload bytes u64
//!                                  40 generation  u64
//! 4096 seal: magic [8] "LVRTCKS\0", crc u32 over the rest, generation u64, header crc u32; written after the sync, itself unsynced
//! 8192 payload
//! ```
//!
//! Invariant: a save overwrites the older of the two files only, so the newer one stays whole
//! whatever happens meanwhile. Where no whole one stands beside it (a group's first save, or after
//! damage) the file is written under another name first. So a crash never leaves a group without a
//! whole file, and a group whose files are all damaged has lost them to the disk.
//!
//! A state that is read back may be one whose sync failed, or was never called, when the process
//! ended: the page cache shows it all the same, and a log released on its word would be lost with
//! the power. So a save is sealed after its sync, and what is loaded without its seal is compared
//! with what the disk has, and synced, before it is handed out.
//!
//! The log is released when nobody needs it any more, so somebody has to know who there is.
//! `last group` says it: the groups of the folder are 0 to this one, and one that has no checkpoint
//! yet needs the log from its first file on. 0 says nothing: earlier builds wrote it.
//!
//! Two fixed files and not a temporary one with a rename each time: it needs one sync instead of
//! two and names hardly ever change, so there is no order of file and folder syncs to get wrong.
//! Price: while a save is under way there is one good generation and not two.

use crate::crc32c;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile, OpenMode, is_no_file, read_whole, set_aside, settle};
use crate::error::{StorageError, at, syncing};
use crate::fields::{Fields, FieldsMut};
use crate::wal::{FileNo, GroupId, WalPosition};

/// Folder of the checkpoints.
pub const CHECKPOINT_FOLDER: &str = "checkpoints";
/// Largest payload. 100,000 queues of a group take about 10 MB.
pub const CHECKPOINT_BYTES_MAX: usize = 1 << 30;
/// Version of everything in this file. Readers refuse others.
pub const CHECKPOINT_FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"LVRTCKP\0";
const SEAL_MAGIC: [u8; 8] = *b"LVRTCKS\0";
/// The seal has a page of its own, so that writing it endangers nothing else.
const SEAL_OFFSET: usize = 4096;
const SEAL_BYTES: usize = 24;
const PAYLOAD_OFFSET: usize = 8192;
/// Name that a file has until it is whole, if nothing whole is beside it.
pub(crate) const TEMPORARY_NAME: &str = "checkpoints/new";
const HEADER_BYTES: usize = 128;

/// A saved state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Whose it is.
    pub group: GroupId,
    /// 1 for the group's first, then one more each time.
    pub generation: u64,
    /// The log is needed from here on.
    pub replay_from: WalPosition,
    /// Opaque here.
    pub payload: Bytes,
}

/// What is known of one of the two files.
#[derive(Clone, Copy, Debug)]
struct Place {
    generation: u64,
    replay_from: WalPosition,
}

/// The two places of each group: `None` is free or damaged.
type Places = [Option<Place>; 2];

/// All checkpoints of a folder.
#[derive(Debug)]
pub struct CheckpointStore<D: Disk> {
    disk: Arc<D>,
    folder_id: u128,
    groups: BTreeMap<GroupId, Places>,
    /// What the next save says of the folder's groups; 0 for nothing.
    last_group: u32,
}

/// What is left of a group's two checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPair {
    /// The newest that is whole.
    pub newest: Checkpoint,
    /// The one before it, which a start falls back to should the newest rot; `None` if there is
    /// none, or if it is damaged.
    pub older: Option<Checkpoint>,
    /// There is a newer one, which is damaged: `newest` was the older of the two.
    pub is_fallback: bool,
}

impl<D: Disk> CheckpointStore<D> {
    /// Opens the folder and reads the headers. Payloads are checked when they are loaded; until all
    /// groups were loaded, the positions that this store tells may be those of checkpoints that do
    /// not hold.
    pub fn open(disk: &Arc<D>, folder_id: u128) -> Result<CheckpointStore<D>, StorageError> {
        disk.create_folder(CHECKPOINT_FOLDER).map_err(at("create", CHECKPOINT_FOLDER))?;
        let mut groups: BTreeMap<GroupId, Places> = BTreeMap::new();
        let mut last_group = 0;
        for file_name in disk.list(CHECKPOINT_FOLDER).map_err(at("list", CHECKPOINT_FOLDER))? {
            // The name of a folder ends so.
            let Some((group, place)) = place_of(file_name.trim_end_matches('/')) else { continue };
            let name = checkpoint_name(group, place);
            let file = match disk.open(&name, OpenMode::Read) {
                Ok(file) => file,
                // It is damaged, as will be found when it is loaded.
                Err(error) if is_no_file(&error) => {
                    groups.entry(group).or_default();
                    continue;
                }
                Err(error) => return Err(at("open", &name)(error)),
            };
            let mut header = [0; HEADER_BYTES];
            let read = file.read_at(&mut header, 0).map_err(at("read", &name))?;
            let header = Header::decode(&header[..read], &name)?
                .filter(|header| header.folder_id == folder_id && header.group == group);
            last_group = last_group.max(header.map_or(0, |header| header.last_group));
            groups.entry(group).or_default()[place] =
                header.map(|header| Place { generation: header.generation, replay_from: header.replay_from });
        }
        Ok(CheckpointStore { disk: disk.clone(), folder_id, groups, last_group })
    }

    /// The last of the folder's groups, which are numbered from 0 on, as far as it is known: see
    /// the module. `None` in a folder of an earlier build, and in one without checkpoints.
    pub fn last_group(&self) -> Option<GroupId> {
        Some(GroupId(self.last_group)).filter(|last| last.0 > 0)
    }

    /// Has the next saves say so. Each of these groups has a checkpoint, or its log begins in the
    /// log's first file.
    pub fn note_last_group(&mut self, last: GroupId) {
        self.last_group = self.last_group.max(last.0);
    }

    /// The groups that have files here, in order.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.keys().copied()
    }

    /// The newest checkpoint of a group that is whole; see [`CheckpointStore::load_pair`].
    pub fn load_newest(&mut self, group: GroupId) -> Result<Option<Checkpoint>, StorageError> {
        Ok(self.load_pair(group)?.map(|pair| pair.newest))
    }

    /// The checkpoints of a group that are whole; `None` if the group has no files.
    ///
    /// A newest one that is damaged is passed over for the one before it. A damaged one is
    /// forgotten, so that the next save overwrites it. Whether the log still reaches back to the
    /// older one's `replay_from` is seen by the recovery. An error that [is
    /// damage](StorageError::is_damage) if none is whole.
    pub fn load_pair(&mut self, group: GroupId) -> Result<Option<CheckpointPair>, StorageError> {
        let Some(places) = self.groups.get(&group).copied() else { return Ok(None) };
        let mut order = [0, 1];
        order.sort_by_key(|&place| std::cmp::Reverse(places[place].map(|place| place.generation)));
        let (mut newest, mut older, mut first_error, mut is_fallback) = (None, None, None, false);
        for place in order {
            let name = checkpoint_name(group, place);
            match self.load(&name, group) {
                Ok(checkpoint) if newest.is_none() => {
                    newest = Some(checkpoint);
                    is_fallback = first_error.is_some();
                }
                Ok(checkpoint) => older = Some(checkpoint),
                // The first save makes one file only.
                Err(StorageError::Missing { .. }) => {}
                Err(error) if error.is_damage() => {
                    self.keep_as_it_is(&name)?;
                    self.groups.entry(group).or_default()[place] = None;
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        // No crash does this: without a good file beside it, a file gets its name only when it is
        // whole.
        let Some(newest) = newest else { return first_error.map_or(Ok(None), Err) };
        Ok(Some(CheckpointPair { newest, older, is_fallback }))
    }

    /// Has a file that holds no checkpoint stay so. Half overwritten by a process that died, and not synced, it
    /// would be a whole one again after a power cut: an old one, whose log is given up meanwhile.
    fn keep_as_it_is(&self, name: &str) -> Result<(), StorageError> {
        match self.disk.open(name, OpenMode::ReadWrite) {
            Ok(file) => file.sync_data().map_err(syncing(name)),
            Err(error) if is_no_file(&error) => Ok(()),
            Err(error) => Err(at("open", name)(error)),
        }
    }

    /// Makes room for a file where something else is.
    fn set_aside_what_is_no_file(&self, name: &str) -> Result<(), StorageError> {
        match self.disk.open(name, OpenMode::Read) {
            Err(error) if is_no_file(&error) => set_aside(&*self.disk, name).map(drop).map_err(at("set aside", name)),
            _ => Ok(()),
        }
    }

    fn load(&self, name: &str, group: GroupId) -> Result<Checkpoint, StorageError> {
        let (header, payload, sealed) = read_checkpoint(&*self.disk, name, group, Some(self.folder_id))?;
        if !sealed {
            let file = self.disk.open(name, OpenMode::ReadWrite).map_err(at("open", name))?;
            settle(&file, 0, (PAYLOAD_OFFSET + payload.len()) as u64).map_err(syncing(name))?;
            self.disk.sync_folder(CHECKPOINT_FOLDER).map_err(syncing(CHECKPOINT_FOLDER))?;
            file_seal(&*self.disk, name, &header)?;
        }
        Ok(header.with(payload))
    }

    /// Reads one file and changes nothing, sealed or not.
    pub(crate) fn read_only(
        disk: &D,
        name: &str,
        group: GroupId,
        folder_id: Option<u128>,
    ) -> Result<Checkpoint, StorageError> {
        let (header, payload, _) = read_checkpoint(disk, name, group, folder_id)?;
        Ok(header.with(payload))
    }

    /// Saves a state, durable after `Ok`, and returns its generation.
    ///
    /// - Everything that the payload refers to (extents) is durable before; the log from
    ///   `replay_from` on is kept.
    /// - Errors: [`StorageError::SyncFailed`] is final for the node. After any other the
    ///   checkpoints before are still good.
    pub fn save(&mut self, group: GroupId, replay_from: WalPosition, payload: &[u8]) -> Result<u64, StorageError> {
        assert!(payload.len() <= CHECKPOINT_BYTES_MAX, "a checkpoint has at most {CHECKPOINT_BYTES_MAX} bytes");
        let places = self.groups.get(&group).copied().unwrap_or_default();
        let generations = places.map(|place| place.map_or(0, |place| place.generation));
        let target = usize::from(generations[0] > generations[1]);
        let generation = generations[0].max(generations[1]) + 1;
        let header = Header {
            folder_id: self.folder_id,
            group,
            generation,
            replay_from,
            payload_bytes: payload.len() as u64,
            payload_crc: crc32c::crc32c(payload),
            last_group: self.last_group,
        };
        // From here on the old contents of this place count for nothing, even if the write fails
        // half way.
        self.groups.entry(group).or_default()[target] = None;
        let whole_beside = places[1 - target].is_some();
        if places[target].is_none() {
            self.set_aside_what_is_no_file(&checkpoint_name(group, target))?;
        }
        let name = if whole_beside { checkpoint_name(group, target) } else { TEMPORARY_NAME.to_owned() };
        if !whole_beside {
            self.set_aside_what_is_no_file(TEMPORARY_NAME)?;
        }
        write_durably(&*self.disk, &name, &header, payload)?;
        let final_name = checkpoint_name(group, target);
        if !whole_beside {
            self.disk.rename(&name, &final_name).map_err(at("name", &final_name))?;
        }
        // The name is new for the first two generations, or after damage.
        if generation <= 2 || !whole_beside {
            self.disk.sync_folder(CHECKPOINT_FOLDER).map_err(syncing(CHECKPOINT_FOLDER))?;
        }
        file_seal(&*self.disk, &final_name, &header)?;
        self.groups.entry(group).or_default()[target] = Some(Place { generation, replay_from });
        Ok(generation)
    }

    /// Forgets a group, durable after `Ok`.
    pub fn remove(&mut self, group: GroupId) -> Result<(), StorageError> {
        if self.groups.remove(&group).is_none() {
            return Ok(());
        }
        for place in 0..2 {
            let name = checkpoint_name(group, place);
            self.set_aside_what_is_no_file(&name)?;
            match self.disk.remove(&name).map_err(at("remove", &name)) {
                Ok(()) | Err(StorageError::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.disk.sync_folder(CHECKPOINT_FOLDER).map_err(syncing(CHECKPOINT_FOLDER))
    }

    /// The oldest place that the newest checkpoints replay from: what recovery starts with. `None`
    /// without checkpoints.
    ///
    /// It knows nothing of groups without a checkpoint. So a group is given its first one when it
    /// is made, replaying from the log's position at that time, or else its records may be taken
    /// for not needed.
    pub fn oldest_replay(&self) -> Option<WalPosition> {
        self.groups.values().filter_map(newest).map(|place| place.replay_from).min()
    }

    /// The oldest place that any whole generation replays from. Keeping the log from here lets a
    /// recovery fall back to the older one.
    pub fn oldest_replay_of_all(&self) -> Option<WalPosition> {
        self.groups.values().flatten().flatten().map(|place| place.replay_from).min()
    }
}

/// Reads and checks a file, and says whether it is sealed.
fn read_checkpoint<D: Disk>(
    disk: &D,
    name: &str,
    group: GroupId,
    folder_id: Option<u128>,
) -> Result<(Header, Bytes, bool), StorageError> {
    let file = disk.open(name, OpenMode::Read).map_err(at("open", name))?;
    let contents = read_whole(&file, PAYLOAD_OFFSET + CHECKPOINT_BYTES_MAX).map_err(at("read", name))?;
    let corrupt = |offset: u64, what, expected, found| StorageError::Corrupt {
        file: name.to_owned(),
        offset,
        what,
        expected,
        found,
    };
    let Some(header) = Header::decode(&contents, name)? else {
        let field = |at: usize| contents.get(at..at + 4).map_or(0, |bytes| u64::from(Fields::new(bytes).u32()));
        let computed = contents.get(12..HEADER_BYTES).map_or(0, crc32c::crc32c);
        return Err(corrupt(8, "checksum of the header", field(8), u64::from(computed)));
    };
    if let Some(folder_id) = folder_id.filter(|folder_id| *folder_id != header.folder_id) {
        return Err(corrupt(16, "id of the data folder", folder_id as u64, header.folder_id as u64));
    }
    if header.group != group {
        return Err(corrupt(32, "group", u64::from(group.0), u64::from(header.group.0)));
    }
    let end = usize::try_from(header.payload_bytes).ok().and_then(|bytes| bytes.checked_add(PAYLOAD_OFFSET));
    let Some(payload) = end.and_then(|end| contents.get(PAYLOAD_OFFSET..end)) else {
        let found = contents.len().saturating_sub(PAYLOAD_OFFSET) as u64;
        return Err(corrupt(60, "length of the payload", header.payload_bytes, found));
    };
    let computed = crc32c::crc32c(payload);
    if computed != header.payload_crc {
        let (expected, found) = (u64::from(header.payload_crc), u64::from(computed));
        return Err(corrupt(PAYLOAD_OFFSET as u64, "checksum of the payload", expected, found));
    }
    let sealed = contents.get(SEAL_OFFSET..SEAL_OFFSET + SEAL_BYTES) == Some(&header.seal());
    let payload = PAYLOAD_OFFSET..PAYLOAD_OFFSET + payload.len();
    Ok((header, Bytes::from(contents).slice(payload), sealed))
}

/// Writes and syncs everything but the seal, over whatever the file held.
fn write_durably<D: Disk>(disk: &D, name: &str, header: &Header, payload: &[u8]) -> Result<(), StorageError> {
    let file = disk.open(name, OpenMode::CreateOrOpen).map_err(at("open", name))?;
    let bytes = (PAYLOAD_OFFSET + payload.len()) as u64;
    let mut page = [0; PAYLOAD_OFFSET];
    page[..HEADER_BYTES].copy_from_slice(&header.encode());
    file.write_vectored_at(&[IoSlice::new(&page), IoSlice::new(payload)], 0).map_err(at("write", name))?;
    if file.len().map_err(at("measure", name))? > bytes {
        file.set_len(bytes).map_err(at("cut", name))?;
    }
    file.sync_data().map_err(syncing(name))
}

/// Says that the contents are durable. Not synced: if it is lost, the next load looks closer, and
/// that is all.
fn file_seal<D: Disk>(disk: &D, name: &str, header: &Header) -> Result<(), StorageError> {
    let file = disk.open(name, OpenMode::ReadWrite).map_err(at("open", name))?;
    file.write_at(&header.seal(), SEAL_OFFSET as u64).map_err(at("write", name))
}

fn newest(places: &Places) -> Option<Place> {
    places.iter().flatten().copied().max_by_key(|place| place.generation)
}

/// Name of one of a group's two files.
pub fn checkpoint_name(group: GroupId, place: usize) -> String {
    format!("{CHECKPOINT_FOLDER}/{:08x}.{place}", group.0)
}

/// Group and place in a file name without the folder.
pub(crate) fn place_of(name: &str) -> Option<(GroupId, usize)> {
    let (group, place) = name.split_once('.').filter(|(group, _)| group.len() == 8)?;
    let place = match place {
        "0" => 0,
        "1" => 1,
        _ => return None,
    };
    Some((GroupId(u32::from_str_radix(group, 16).ok()?), place))
}

/// Start of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) folder_id: u128,
    pub(crate) group: GroupId,
    pub(crate) generation: u64,
    pub(crate) replay_from: WalPosition,
    pub(crate) payload_bytes: u64,
    pub(crate) payload_crc: u32,
    /// See the module.
    pub(crate) last_group: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        FieldsMut::<HEADER_BYTES>::new()
            .put(&MAGIC)
            .u32(0)
            .u32(CHECKPOINT_FORMAT_VERSION)
            .u128(self.folder_id)
            .u32(self.group.0)
            .u32(self.last_group)
            .u64(self.generation)
            .u64(self.replay_from.file.0)
            .u32(self.replay_from.offset)
            .u64(self.payload_bytes)
            .u32(self.payload_crc)
            .put(&[0; HEADER_BYTES - 72])
            .seal(8)
    }

    fn with(self, payload: Bytes) -> Checkpoint {
        Checkpoint { group: self.group, generation: self.generation, replay_from: self.replay_from, payload }
    }

    fn crc(&self) -> u32 {
        Fields::new(&self.encode()[8..]).u32()
    }

    fn seal(&self) -> [u8; SEAL_BYTES] {
        FieldsMut::<SEAL_BYTES>::new().put(&SEAL_MAGIC).u32(0).u64(self.generation).u32(self.crc()).seal(8)
    }

    /// `Ok(None)` if it is not whole.
    pub(crate) fn decode(bytes: &[u8], file: &str) -> Result<Option<Header>, StorageError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let mut fields = Fields::new(bytes);
        if fields.bytes() != MAGIC || fields.u32() != crc32c::crc32c(&bytes[12..]) {
            return Ok(None);
        }
        let version = fields.u32();
        if version != CHECKPOINT_FORMAT_VERSION {
            let supported = CHECKPOINT_FORMAT_VERSION;
            return Err(StorageError::OtherVersion { file: file.to_owned(), found: version, supported });
        }
        let (folder_id, group, last_group) = (fields.u128(), GroupId(fields.u32()), fields.u32());
        let (generation, file) = (fields.u64(), FileNo(fields.u64()));
        let replay_from = WalPosition { file, offset: fields.u32() };
        Ok(Some(Header {
            folder_id,
            group,
            generation,
            replay_from,
            payload_bytes: fields.u64(),
            payload_crc: fields.u32(),
            last_group,
        }))
    }
}
