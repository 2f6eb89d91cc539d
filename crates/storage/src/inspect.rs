//! Reads a data folder as far as a damaged one allows, and tells what it sees, fact by fact.
//!
//! Invariant: opens everything for reading only, takes no lock, creates nothing, stops at nothing:
//! each file is looked at on its own and an error in one becomes a [`Fact::Damaged`]. The folder may
//! be that of a running node: its last frames may look torn, because they are being written, and a
//! file that is given back, used again or written over while it is read is not damaged. What looks
//! like damage is looked at once more before it is told. Bytes that were never durable and bytes that
//! rotted look alike to it where no evidence is left; it says "ends here".

mod log;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::checkpoint::{self, CHECKPOINT_FOLDER, CheckpointStore, TEMPORARY_NAME, checkpoint_name, place_of};
use crate::data_folder::{
    CLUSTER_FILE, ClusterRecord, FolderIdentity, NODE_FILE, NodeRecord, read_cluster_record, read_identity, read_node,
};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::extent::{EXTENT_FOLDER, Extent, ExtentId, Run, check_folder, extent_name, extent_of};
use crate::wal::format::{FileHeader, FrameHeader};
use crate::wal::{self, FileNo, GroupId, RecordKind, RecordName, WAL_FOLDER, WalPosition};

/// What to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Show each frame and record of the log, not only its files.
    pub records: bool,
    /// Read all bytes of the extents, not only their tables. Without it, damage in a message is not
    /// found.
    pub contents: bool,
    /// Check each message of every extent, so that a damaged one is named. Reads all of their
    /// bytes.
    pub messages: bool,
}

/// One thing seen. Names are inside the data folder, offsets in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Whose folder it is.
    Identity(FolderIdentity),
    /// Which node of its cluster that is. Folders of earlier builds do not say it.
    Node(NodeRecord),
    /// The cluster that its node is one of, as it was founded or joined.
    Cluster(ClusterRecord),
    /// The folder has no identity: it was never founded, or is not one.
    NoIdentity,
    /// A file of the log.
    WalFile {
        /// Its name.
        name: String,
        /// Length of the file.
        bytes: u64,
        /// Its header; `file` 0 marks a prepared spare.
        header: FileHeader,
    },
    /// A frame of the log file named last.
    Frame {
        /// Where it starts.
        offset: u32,
        /// Its header.
        header: FrameHeader,
    },
    /// A record of the frame named last.
    Record {
        /// What it is called.
        record: RecordName,
        /// Where its body starts.
        body_offset: u32,
        /// Length of its body.
        body_bytes: u32,
    },
    /// How the log file named last ends.
    WalFileEnd {
        /// End of its last frame.
        end: u32,
        /// Frames in it.
        frames: u64,
        /// Records in them.
        records: u64,
        /// Durable for certain up to here.
        synced: u32,
        /// Something that was never durable, as far as can be told, lies behind the end.
        torn: bool,
    },
    /// A file of the log without a readable header: a spare in the making, a reuse that a crash
    /// tore, or damage.
    WalFileUnreadable {
        /// Its name.
        name: String,
        /// Length of the file.
        bytes: u64,
    },
    /// How far the log was durable when that was last noted.
    DurableNote(WalPosition),
    /// A finished extent.
    Extent {
        /// Which one.
        id: ExtentId,
        /// Length of the file.
        bytes: u32,
        /// Runs in it.
        run_count: usize,
        /// Only its tables were read: nothing is known of its messages.
        is_unread: bool,
    },
    /// A run of the extent named last.
    Run(Run),
    /// A checkpoint.
    Checkpoint {
        /// Its file.
        name: String,
        /// Whose it is.
        group: GroupId,
        /// How many went before, plus one.
        generation: u64,
        /// The log is needed from here on.
        replay_from: WalPosition,
        /// Length of its payload, which was checked.
        payload_bytes: u64,
    },
    /// Something that is not whole and that nothing needs: an extent or a checkpoint that a kill
    /// left half written or half deleted, or a record of the log that a repair gave up. It goes
    /// with time.
    Unfinished {
        /// Which file.
        name: String,
        /// What it lacks.
        text: String,
    },
    /// A file that no part of this version makes.
    Unknown {
        /// Its name.
        name: String,
    },
    /// Something that cannot be read, or not as it was written.
    Damaged {
        /// Which file.
        name: String,
        /// Where in it.
        offset: u64,
        /// How long, 0 if unknown.
        bytes: u64,
        /// What it should be and what it is.
        text: String,
        /// Which record of the log, if that is known.
        record: Option<RecordName>,
    },
}

/// What a checkpoint needs beside the log behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The extents in which live messages are.
    pub extents: Vec<ExtentId>,
    /// The oldest log file in which live messages are; `None` without any.
    pub log_from: Option<FileNo>,
}

/// What a checkpoint of this group with this payload needs; `None` if the payload cannot be read,
/// so that anything may be needed. What a payload means is the partitions' affair.
pub type NeedsOf<'a> = &'a dyn Fn(GroupId, &Bytes) -> Option<Needs>;

/// Looks at everything in the folder and shows it to `visit`: identity, log files by number,
/// extents, checkpoints.
pub fn inspect<D: Disk>(disk: &D, depth: Depth, needs_of: NeedsOf<'_>, visit: &mut dyn FnMut(Fact)) {
    let folder_id = match read_identity(disk) {
        Ok(Some((identity, version))) => {
            let folder_id = identity.folder_id;
            visit(Fact::Identity(identity));
            inspect_node(disk, version, visit);
            match read_cluster_record(disk) {
                Ok(record) => record.into_iter().for_each(|record| visit(Fact::Cluster(record))),
                Err(error) => visit(damaged(CLUSTER_FILE, &error)),
            }
            Some(folder_id)
        }
        Ok(None) => {
            visit(Fact::NoIdentity);
            None
        }
        Err(error) => {
            visit(damaged(crate::data_folder::IDENTITY_NAME, &error));
            None
        }
    };
    let look = || Needed::look(disk, folder_id, needs_of);
    let needed = look();
    log::inspect(disk, depth, &needed, &look, visit);
    if folder_id.is_some() && matches!(wal::has_log(disk), Ok(false)) {
        let text = "no file of the log is left".to_owned();
        visit(Fact::Damaged { name: WAL_FOLDER.to_owned(), offset: 0, bytes: 0, text, record: None });
    }
    inspect_extents(disk, folder_id, depth, &needed, visit);
    missed_extents(disk, &needed, &look, visit);
    inspect_checkpoints(disk, folder_id, &needed, visit);
}

fn inspect_node<D: Disk>(disk: &D, version: u32, visit: &mut dyn FnMut(Fact)) {
    match read_node(disk) {
        Ok(Some(node)) => visit(Fact::Node(node)),
        Ok(None) if version == 1 => {}
        Ok(None) => visit(damaged(NODE_FILE, &StorageError::NodeFileGone { folder: disk.describe() })),
        Err(error) => visit(damaged(NODE_FILE, &error)),
    }
}

fn damaged(name: &str, error: &StorageError) -> Fact {
    let offset = if let StorageError::Corrupt { offset, .. } = error { *offset } else { 0 };
    Fact::Damaged { name: name.to_owned(), offset, bytes: 0, text: error.to_string(), record: None }
}

/// The names of a folder, or a fact about why there are none.
fn list<D: Disk>(disk: &D, folder: &str, visit: &mut dyn FnMut(Fact)) -> Vec<String> {
    disk.list(folder).map_err(crate::error::at("list", folder)).unwrap_or_else(|error| {
        visit(damaged(folder, &error));
        Vec::new()
    })
}

/// What the readable checkpoints say before everything is told: of each group its newest one, as a
/// start goes by that.
struct Needed {
    /// Each with the group that needs it; `None` if any may be needed.
    extents: Option<BTreeMap<ExtentId, GroupId>>,
    /// Groups with a whole checkpoint: only then is the other of their two files ever written over.
    groups: BTreeSet<GroupId>,
    /// The first log file that a start needs; `None` if that is not known.
    log_from: Option<FileNo>,
    /// The file from which on the log is read again, the newest of all groups, and whose it is.
    log_to: Option<(FileNo, GroupId)>,
    /// The same as `log_from` of each group of which it is known.
    log_from_of: BTreeMap<GroupId, FileNo>,
}

/// A node may write over either file of a group while the other one is read, so that neither is seen
/// whole. It does not do so three times in a row.
const LOOKS_AT_A_GROUP: usize = 3;

impl Needed {
    fn look<D: Disk>(disk: &D, folder_id: Option<u128>, needs_of: NeedsOf<'_>) -> Needed {
        let mut unreadable = BTreeSet::new();
        let mut newest: BTreeMap<GroupId, (u64, FileNo, Option<Needs>)> = BTreeMap::new();
        let names = disk.list(CHECKPOINT_FOLDER).unwrap_or_default();
        let all: BTreeSet<GroupId> = names.iter().filter_map(|name| place_of(name)).map(|(group, _)| group).collect();
        for group in all {
            let looks = || newest_of(disk, group, folder_id);
            let found = (0..LOOKS_AT_A_GROUP).map(|_| looks()).find(|found| !matches!(found, Err(Unreadable)));
            match found {
                Some(Ok(Some(checkpoint))) => {
                    let needs = needs_of(group, &checkpoint.payload);
                    newest.insert(group, (checkpoint.generation, checkpoint.replay_from.file, needs));
                }
                // The node left the group since the files were listed.
                Some(Ok(None)) => {}
                Some(Err(Unreadable)) | None => {
                    unreadable.insert(group);
                }
            }
        }
        let groups: BTreeSet<GroupId> = newest.keys().copied().collect();
        // A group of which nothing can be read may have needed anything.
        let is_known = unreadable.is_subset(&groups) && newest.values().all(|(_, _, needs)| needs.is_some());
        let oldest = |replay: FileNo, needs: &Needs| needs.log_from.map_or(replay, |from| from.min(replay));
        let each =
            newest.iter().filter_map(|(group, (_, replay, needs))| Some((*group, oldest(*replay, needs.as_ref()?))));
        let log_from_of: BTreeMap<GroupId, FileNo> = each.collect();
        let log_to = newest.iter().map(|(group, (_, replay, _))| (*replay, *group)).max();
        let mut needed = Needed { extents: None, groups, log_from: None, log_to, log_from_of };
        if is_known {
            let of_group = |(group, found): (&GroupId, &(u64, FileNo, Option<Needs>))| {
                let ids = found.2.iter().flat_map(|needs| needs.extents.clone());
                ids.map(|id| (id, *group)).collect::<Vec<_>>()
            };
            needed.extents = Some(newest.iter().flat_map(of_group).collect());
            needed.log_from = needed.log_from_of.values().min().copied();
        }
        needed
    }

    fn extent(&self, id: ExtentId) -> bool {
        self.extents.as_ref().is_none_or(|extents| extents.contains_key(&id))
    }
}

/// There are files of the group, and none of them is whole.
struct Unreadable;

/// The newest whole checkpoint of a group; `None` if there is no file of it.
fn newest_of<D: Disk>(
    disk: &D,
    group: GroupId,
    folder_id: Option<u128>,
) -> Result<Option<checkpoint::Checkpoint>, Unreadable> {
    let (mut newest, mut is_one_there) = (None, false);
    for place in 0..2 {
        match CheckpointStore::read_only(disk, &checkpoint_name(group, place), group, folder_id) {
            Ok(found) => {
                newest =
                    newest.filter(|known: &checkpoint::Checkpoint| known.generation > found.generation).or(Some(found));
            }
            Err(StorageError::Missing { .. }) => {}
            Err(_) => is_one_there = true,
        }
    }
    if newest.is_none() && is_one_there { Err(Unreadable) } else { Ok(newest) }
}

/// Extents that a start needs and that are not there.
fn missed_extents<D: Disk>(disk: &D, needed: &Needed, again: &dyn Fn() -> Needed, visit: &mut dyn FnMut(Fact)) {
    let is_there = |id: ExtentId| !matches!(Extent::open(disk, id), Err(StorageError::Missing { .. }));
    let missed = |needed: &Needed| {
        let known = needed.extents.iter().flatten().map(|(id, group)| (*id, *group));
        known.filter(|(id, _)| !is_there(*id)).collect::<BTreeMap<_, _>>()
    };
    let before = missed(needed);
    if before.is_empty() {
        return;
    }
    // A node that runs may have given them back since its states were read: what it needs now
    // counts.
    for (id, group) in missed(&again()).into_iter().filter(|(id, _)| before.contains_key(id)) {
        let text = format!("it is not there, and the newest state of group {} has messages in it", group.0);
        visit(Fact::Damaged { name: extent_name(id), offset: 0, bytes: 0, text, record: None });
    }
}

fn unfinished(name: &str, error: &StorageError) -> Fact {
    Fact::Unfinished { name: name.to_owned(), text: error.to_string() }
}

fn inspect_extents<D: Disk>(
    disk: &D,
    folder_id: Option<u128>,
    depth: Depth,
    needed: &Needed,
    visit: &mut dyn FnMut(Fact),
) {
    for file_name in list(disk, EXTENT_FOLDER, visit) {
        let Some(id) = extent_of(&file_name) else {
            visit(Fact::Unknown { name: format!("{EXTENT_FOLDER}/{file_name}") });
            continue;
        };
        let extent = match Extent::open(disk, id) {
            Ok(extent) => extent,
            // Given back since it was listed; if it is needed, that is told later.
            Err(StorageError::Missing { .. }) => continue,
            Err(error) => {
                let tell = if needed.extent(id) { damaged } else { unfinished };
                visit(tell(&extent_name(id), &error));
                continue;
            }
        };
        if let Some(Err(error)) = folder_id.map(|folder_id| check_folder(disk, id, folder_id)) {
            let tell = if needed.extent(id) { damaged } else { unfinished };
            visit(tell(&extent_name(id), &error));
            continue;
        }
        let is_unread = !(depth.contents || depth.messages);
        visit(Fact::Extent { id, bytes: extent.bytes(), run_count: extent.runs().len(), is_unread });
        for run in extent.runs() {
            visit(Fact::Run(*run));
        }
        if !is_unread && let Err(error) = extent.verify() {
            let tell = if needed.extent(id) { damaged } else { unfinished };
            visit(tell(&extent_name(id), &error));
        }
        if depth.messages && needed.extent(id) {
            for number in 0..extent.runs().len() {
                inspect_messages(&extent, number, visit);
            }
        }
    }
}

/// Checks the messages of one run; after damage it goes on with the next message.
fn inspect_messages<D: Disk>(extent: &Extent<D>, number: usize, visit: &mut dyn FnMut(Fact)) {
    /// Messages and bytes checked per read.
    const BATCH: (u32, u32) = (1024, 4 << 20);
    let run = extent.runs()[number];
    let mut count = BATCH.0;
    let mut next = Some(run.first_seq);
    while let Some(seq) = next.filter(|seq| *seq <= run.last_seq) {
        match extent.read(number, seq, count, BATCH.1) {
            Ok(messages) => {
                count = BATCH.0;
                next = messages.last().and_then(|message| message.seq.checked_add(1));
            }
            // A batch with a bad message is read again one by one, to name the bad one and only it.
            Err(_) if count > 1 => count = 1,
            Err(error) => {
                visit(damaged(&extent_name(extent.id()), &error));
                if run.last_seq - run.first_seq >= u64::from(run.count) {
                    // With holes in it, a run whose index is damaged cannot be walked past the
                    // damage without trying each number.
                    return;
                }
                next = seq.checked_add(1);
            }
        }
    }
}

fn inspect_checkpoints<D: Disk>(disk: &D, folder_id: Option<u128>, needed: &Needed, visit: &mut dyn FnMut(Fact)) {
    for file_name in list(disk, CHECKPOINT_FOLDER, visit) {
        let Some((group, place)) = place_of(&file_name) else {
            let name = format!("{CHECKPOINT_FOLDER}/{file_name}");
            let text = "it is the first one of its group, and is not whole yet".to_owned();
            visit(if name == TEMPORARY_NAME { Fact::Unfinished { name, text } } else { Fact::Unknown { name } });
            continue;
        };
        let name = checkpoint_name(group, place);
        match CheckpointStore::read_only(disk, &name, group, folder_id) {
            Ok(checkpoint::Checkpoint { generation, replay_from, payload, .. }) => {
                visit(Fact::Checkpoint { name, group, generation, replay_from, payload_bytes: payload.len() as u64 });
            }
            // The node left the group since the files were listed.
            Err(StorageError::Missing { .. }) => {}
            // It is written over in place only while the one beside it is whole, and that one is
            // what a start goes by.
            Err(error @ StorageError::Corrupt { .. })
                if needed.groups.contains(&group) || matches!(newest_of(disk, group, folder_id), Ok(Some(_))) =>
            {
                visit(unfinished(&name, &error));
            }
            Err(error) => visit(damaged(&name, &error)),
        }
    }
}

impl crate::wal::RecordRef<'_> {
    fn name(&self) -> RecordName {
        RecordName { group: self.group, kind: self.kind, term: self.term, index: self.index }
    }
}

impl RecordKind {
    /// What to call it in a listing.
    pub fn name(self) -> &'static str {
        match self {
            RecordKind::Entry => "entry",
            RecordKind::HardState => "hard state",
            RecordKind::Membership => "membership",
            RecordKind::SnapshotMark => "snapshot mark",
            RecordKind::Tombstone => "tombstone",
        }
    }
}
