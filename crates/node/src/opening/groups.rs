//! What a folder holds of each group: its checkpoints, its records of the log, its extents; and
//! which groups are damaged.
//!
//! Invariant: what either of a group's two checkpoints needs stays, and all that may be a damaged
//! one's.

use crate::TOPOLOGY;
use crate::open_error::OpenError;
use crate::quarantine::{Attributed, Quarantined, damaged, foreign};
use bytes::Bytes;
use consensus::NodeId;
use partition::Recovery;
use partition::checkpoint::CheckpointDamaged;
use partition::ending::{NO_REPLAY, ended_checkpoint};
use partition::place::file_u32;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage::extent::{check_folder, extent_name, list_extents, remove_extent};
use storage::wal::{Recovery as WalReport, newest_file, reaches_back_from};
use storage::{CheckpointStore, Disk, ExtentId, FileNo, GroupId, Wal, WalOptions, WalPosition};

/// Begins a group by its number, from the payload of its newest checkpoint and the file that it
/// replays from, if it has one.
pub type Begin<'a> = &'a dyn Fn(u32, Option<(&Bytes, u32)>) -> Result<Recovery, CheckpointDamaged>;

/// The groups of a folder, by number; the topology's is 0.
pub struct Groups<'a> {
    begin: Begin<'a>,
    /// Of which all is there that was ever promised, as far as was looked.
    pub whole: BTreeMap<u32, Recovery>,
    /// Those that are damaged.
    pub quarantined: BTreeMap<u32, Quarantined>,
    /// The newest checkpoint of those of which the other one is that of an earlier member, which has ended.
    beside_ends: BTreeMap<u32, (WalPosition, Bytes)>,
}

impl<'a> Groups<'a> {
    /// These groups, with both checkpoints of each that has some.
    pub fn load<D: Disk>(
        checkpoints: &mut CheckpointStore<D>,
        ids: impl IntoIterator<Item = u32>,
        begin: Begin<'a>,
    ) -> Result<Groups<'a>, OpenError> {
        let (whole, quarantined) = (BTreeMap::new(), BTreeMap::new());
        let mut groups = Groups { begin, whole, quarantined, beside_ends: BTreeMap::new() };
        for id in ids {
            let pair = match checkpoints.load_pair(GroupId(id)) {
                Ok(pair) => pair,
                Err(error) if error.is_damage() => {
                    groups.set_aside(id, OpenError::StateLost(error))?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let newest = pair.as_ref().map(|pair| (&pair.newest.payload, file_u32(pair.newest.replay_from.file)));
            let mut recovery = begin(id, newest)?;
            if let Some(older) = pair.as_ref().and_then(|pair| pair.older.as_ref()) {
                recovery.keep_for(&older.payload, file_u32(older.replay_from.file))?;
            }
            if let Some(pair) = pair.as_ref().filter(|_| recovery.is_beside_its_end()) {
                groups.beside_ends.insert(id, (pair.newest.replay_from, pair.newest.payload.clone()));
            }
            if pair.is_some_and(|pair| pair.is_fallback) {
                tracing::info!(partition = id, "the newest saved state is not whole: the one before it is used");
            }
            groups.whole.insert(id, recovery);
        }
        Ok(groups)
    }

    /// The highest number of a group.
    pub(super) fn last(&self) -> u32 {
        let highest = |last: Option<(&u32, _)>| last.map_or(0, |(id, ())| *id);
        let whole = self.whole.last_key_value().map(|(id, _)| (id, ()));
        highest(whole).max(highest(self.quarantined.last_key_value().map(|(id, _)| (id, ()))))
    }

    pub(super) fn has(&self, id: u32) -> bool {
        self.whole.contains_key(&id) || self.quarantined.contains_key(&id)
    }

    /// Quarantines a group. Without the topology's no queue is known: the start is refused.
    pub(super) fn set_aside(&mut self, id: u32, why: OpenError) -> Result<(), OpenError> {
        if id == TOPOLOGY.0 {
            return Err(why);
        }
        let left = self.whole.remove(&id);
        self.quarantined.entry(id).or_insert_with(|| Quarantined::new(why, left.as_ref()));
        Ok(())
    }

    /// Those of which other nodes are members, as this one runs alone.
    pub(super) fn set_aside_foreign(&mut self, only_node: NodeId) -> Result<(), OpenError> {
        let foreign: Vec<_> = self.whole.values().filter_map(|r| Some((r.id().0, foreign(r, only_node)?))).collect();
        foreign.into_iter().try_for_each(|(id, why)| self.set_aside(id, why))
    }

    /// Shows each group its records, and finds those that only the log knows. `is_complete`: there
    /// are none.
    pub fn read_log<D: Disk>(
        &mut self,
        disk: &Arc<D>,
        folder_id: u128,
        options: WalOptions,
        is_complete: bool,
    ) -> Result<(Wal<D>, WalReport), OpenError> {
        let Groups { begin, whole: groups, quarantined, .. } = self;
        // What has ended needs nothing of the log, and does not say where it is.
        let replay = groups.values().filter(|recovery| recovery.ended().is_none()).map(Recovery::replay_file).min();
        let replay = match replay {
            Some(file) => FileNo(u64::from(file)),
            None if groups.is_empty() => FileNo(0),
            None => newest_file(&**disk, folder_id)?.unwrap_or(FileNo(0)),
        };
        let needs = groups.values().map(Recovery::needs_file).chain(quarantined.values().map(|aside| aside.needs_file));
        let needs = FileNo(u64::from(needs.min().unwrap_or(0)));
        // Earlier builds did not write down which groups there are: what is left of the log may
        // know more.
        let from = if is_complete { replay } else { reaches_back_from(&**disk, folder_id, replay)? };
        let from_start = WalPosition { file: from, offset: 0 };
        let mut failed = None;
        let (wal, report) =
            storage::recover(disk, folder_id, options, needs.min(from), from_start, &mut |record, at| {
                let id = record.group.0;
                if quarantined.contains_key(&id) {
                    return;
                }
                let recovery = match groups.entry(id) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => match begin(id, None) {
                        Ok(recovery) => new.insert(recovery),
                        Err(error) => return failed = Some(error),
                    },
                };
                recovery.record(record.kind, record.term, record.index, Bytes::copy_from_slice(record.body), at);
            })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let attributed = Attributed::for_start(&report, groups);
        if let Some(first) = attributed.of_all {
            return Err(damaged(first, report.damage.len() as u64 + report.damage_unlisted));
        }
        let gaps: Vec<_> = groups.values().filter_map(|r| Some((r.id().0, r.gap()?.0))).collect();
        for (id, damage) in attributed.groups {
            self.set_aside(id, damaged(damage[0], damage.len() as u64))?;
        }
        for (partition, index) in gaps {
            self.set_aside(partition, OpenError::EntryMissing { partition, index })?;
        }
        self.check_end(&wal)?;
        self.look_for_messages(&wal)?;
        Ok((wal, report))
    }

    /// A read that misses its file, or the end of it, would end messages in the log, though they may
    /// lie on in a copy.
    fn look_for_messages<D: Disk>(&mut self, wal: &Wal<D>) -> Result<(), OpenError> {
        let missing = self.whole.values().filter_map(|r| Some((r.id().0, missing_with_messages(r, wal)?)));
        for (partition, (file, is_short)) in missing.collect::<Vec<_>>() {
            let file = format!("log file number {}{}", file.0, if is_short { ", or its end," } else { "" });
            self.set_aside(partition, OpenError::FileMissing { file, partition })?;
        }
        Ok(())
    }

    /// A checkpoint names a file of the log that was durable before it: files behind it may be gone
    /// too.
    fn check_end<D: Disk>(&self, wal: &Wal<D>) -> Result<(), OpenError> {
        let with_state = self.whole.values().filter(|recovery| recovery.ended().is_none());
        let furthest = with_state.map(|recovery| (recovery.replay_file(), recovery.id().0)).max().unwrap_or_default();
        let last = wal.last_file().unwrap_or(FileNo(0));
        match furthest {
            (file, partition) if file > 1 && FileNo(u64::from(file)) > last => {
                Err(OpenError::LogShort { last: last.0, partition, file })
            }
            _ => Ok(()),
        }
    }

    /// The extents that are there. A group that misses one with messages is set aside: a read that
    /// misses it would end those messages in the log, though the file may be on a disk that is not
    /// mounted. So is one that has another folder's in its place, whose messages would go to its consumers.
    pub fn look_for_extents<D: Disk>(&mut self, disk: &D, folder_id: u128) -> Result<Vec<ExtentId>, OpenError> {
        let has_any = disk.list("extents").is_ok_and(|names| !names.is_empty());
        let there = if has_any { list_extents(disk)? } else { Vec::new() };
        let missing = self.whole.values().filter_map(|recovery| {
            let needs = recovery.extents_with_messages().into_iter().map(|id| ExtentId(u64::from(id)));
            Some((recovery.id().0, needs.filter(|id| !there.contains(id)).min()?))
        });
        for (partition, id) in missing.collect::<Vec<_>>() {
            self.set_aside(partition, OpenError::FileMissing { file: extent_name(id), partition })?;
        }
        let needs = self.whole.values().flat_map(|recovery| {
            recovery.extents_with_messages().into_iter().map(|id| (recovery.id().0, ExtentId(u64::from(id))))
        });
        let mut checked = BTreeSet::new();
        for (partition, id) in needs.collect::<Vec<_>>() {
            if !checked.insert(id) {
                continue;
            }
            match check_folder(disk, id, folder_id) {
                Err(error) if error.is_damage() => {
                    let file = extent_name(id);
                    self.set_aside(partition, OpenError::FileForeign { file, partition, why: error.to_string() })?;
                }
                checked => checked?,
            }
        }
        Ok(there)
    }

    /// The extents that a checkpoint knows, and the highest number that was ever used.
    pub fn extents(&self) -> (BTreeSet<u32>, u32) {
        let used = self.whole.values().map(Recovery::highest_extent);
        let used = used.chain(self.quarantined.values().map(|aside| aside.highest_extent)).max().unwrap_or(0);
        (self.whole.values().flat_map(Recovery::extents).collect(), used)
    }

    /// Takes out the groups that have ended here, once both checkpoints of each say so: then
    /// nothing else of them is needed.
    pub fn finish_endings<D: Disk>(
        &mut self,
        checkpoints: &mut CheckpointStore<D>,
    ) -> Result<BTreeSet<u32>, OpenError> {
        let ended = self.whole.iter().filter_map(|(id, recovery)| Some((*id, recovery.ended()?)));
        let ended: BTreeMap<u32, _> = ended.collect();
        for (id, (last, is_finished)) in &ended {
            for _ in 0..if *is_finished { 0 } else { 2 } {
                checkpoints.save(GroupId(*id), NO_REPLAY, &ended_checkpoint(*last))?;
            }
            self.whole.remove(id);
        }
        // A crash came between the two first checkpoints of a member that came back. Were the newer one lost
        // later, the other one would have it begin once more.
        for (id, (replay_from, payload)) in &self.beside_ends {
            if self.whole.contains_key(id) {
                checkpoints.save(GroupId(*id), *replay_from, payload)?;
            }
        }
        Ok(ended.into_keys().collect())
    }
}

/// The first file of the log from before a group's replay that has messages of it and is not there,
/// or is there and too short for them.
pub(crate) fn missing_with_messages<D: Disk>(recovery: &Recovery, wal: &Wal<D>) -> Option<(FileNo, bool)> {
    let needs = recovery.log_files_with_messages();
    if needs.is_empty() {
        return None;
    }
    let there: BTreeMap<FileNo, u64> = wal.closed_files().collect();
    let mut needs = needs.into_iter().map(|(file, end)| (FileNo(u64::from(file)), u64::from(end)));
    let (file, _) = needs.find(|(file, end)| there.get(file).is_none_or(|bytes| bytes < end))?;
    Some((file, there.contains_key(&file)))
}

/// Deletes extents that no checkpoint knows, if all were read: a crash came before they counted.
/// Returns the next number to use, which is above all that are there, all that are known and all
/// that were used before.
pub fn drop_orphans<D: Disk>(
    disk: &D,
    there: &[ExtentId],
    known: &BTreeSet<u32>,
    used: u32,
    all_were_read: bool,
) -> Result<u32, OpenError> {
    let mut next = known.last().map_or(0, |last| *last).max(used) + 1;
    for id in there {
        let number = u32::try_from(id.0).unwrap_or(u32::MAX - 1);
        next = next.max(number + 1);
        if all_were_read && !known.contains(&number) {
            remove_extent(disk, ExtentId(u64::from(number)))?;
        }
    }
    Ok(next)
}
