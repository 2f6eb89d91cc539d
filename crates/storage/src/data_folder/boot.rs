//! Under which boot of the machine a folder was used last: whether the end of its log may be
//! missing.
//!
//! ```text
//! boot
//!   leveret boot
//!   format 1
//!   start 12                        which start of a process over this folder it was, as in `node`
//!   boot 0123...ef (32 digits)      the boot of the machine in which it started
//!   closed no                       yes: it ended by its own will, with everything synced
//!   forgot none                     all, none, or the groups that have not caught up since the end of the log was in doubt
//!   check 89abcdef (CRC-32C of the lines before)
//! ```
//!
//! What a process wrote and did not sync outlives it, but not a power cut. Afterwards the log says
//! nothing about it: a tail that is missing looks like one that was never written. So each start
//! writes down in which boot of the machine it happened, and the next one compares: another boot,
//! and no closing, means that something may be missing.
//!
//! Invariant: a group counts as one that forgot nothing only if this file proves it. A file that is
//! missing, damaged or of another format proves nothing. It is written as a whole, under another
//! name first, and is durable before anybody builds on it.

use crate::crc32c;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{DataFolder, read_text, replace_text, seal_text};
use crate::disk::Disk;
use crate::error::StorageError;

/// The file.
pub const BOOT_NAME: &str = "boot";
const FIRST_LINE: &str = "leveret boot";
const FORMAT_VERSION: u32 = 1;
/// Seven lines, one of which names each group at most once.
const BYTES_MAX: usize = 1 << 20;

/// Which groups may have forgotten what they wrote last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgot {
    /// All that this folder has.
    Everything,
    /// These, and no others.
    Groups(BTreeSet<u32>),
}

impl Forgot {
    /// Whether a group is among them.
    pub fn contains(&self, group: u32) -> bool {
        match self {
            Self::Everything => true,
            Self::Groups(groups) => groups.contains(&group),
        }
    }
}

/// One life of a process over a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    start: u64,
    boot: u128,
    forgot: Forgot,
}

impl Life {
    /// A number that no earlier life over this folder had.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The groups that may have forgotten what they wrote last, as noted.
    pub fn forgot(&self) -> &Forgot {
        &self.forgot
    }

    /// Notes which groups may still have forgotten something. Writes nothing if that was noted
    /// before.
    pub fn note_forgot<D: Disk>(&mut self, disk: &D, groups: &BTreeSet<u32>) -> Result<(), StorageError> {
        if matches!(&self.forgot, Forgot::Groups(noted) if noted == groups) {
            return Ok(());
        }
        let next = Life { forgot: Forgot::Groups(groups.clone()), ..*self };
        write(disk, &next, false)?;
        *self = next;
        Ok(())
    }

    /// The process ends by its own will. Everything it wrote is synced, which the caller has seen
    /// to, and it writes nothing afterwards.
    pub fn close<D: Disk>(&self, disk: &D) -> Result<(), StorageError> {
        write(disk, self, true)
    }
}

impl<D: Disk> DataFolder<D> {
    /// A process begins to use the folder, in this boot of the machine: a number that no other boot
    /// has.
    ///
    /// A folder that was founded just now, or whose node became a member just now, has forgotten nothing. What is
    /// returned is durable.
    pub fn begin_life(&self, boot: u128) -> Result<Life, StorageError> {
        let last = match read(&*self.disk) {
            Ok(last) => last,
            // What cannot be read proves nothing; what the system refuses to read may be there the
            // next time.
            Err(error) if error.is_damage() => None,
            Err(error) => return Err(error),
        };
        let forgot = match &last {
            Some((life, closed)) if *closed || life.boot == boot => life.forgot.clone(),
            None if self.founded || self.is_new_member => Forgot::Groups(BTreeSet::new()),
            _ => Forgot::Everything,
        };
        let life = Life { start: u64::from(self.node.start), boot, forgot };
        write(&*self.disk, &life, false)?;
        Ok(life)
    }
}

/// Takes away the proof that nothing is missing: a sync failed, and what memory still shows may
/// never reach the disk. Best effort, by a process that ends.
pub fn doubt_log<D: Disk>(disk: &D) {
    // Another process of this boot sees the removal, whether it is durable or not; and another boot
    // doubts anyway.
    let _ = disk.remove(BOOT_NAME);
}

fn read<D: Disk>(disk: &D) -> Result<Option<(Life, bool)>, StorageError> {
    match read_text(disk, BOOT_NAME, BYTES_MAX) {
        Err(StorageError::Corrupt { .. }) => Ok(None),
        read => Ok(read?.and_then(|contents| decode(&contents))),
    }
}

fn write<D: Disk>(disk: &D, life: &Life, closed: bool) -> Result<(), StorageError> {
    replace_text(disk, BOOT_NAME, &encode(life, closed))
}

fn encode(life: &Life, closed: bool) -> String {
    let Life { start, boot, forgot } = life;
    let closed = if closed { "yes" } else { "no" };
    let mut text =
        format!("{FIRST_LINE}\nformat {FORMAT_VERSION}\nstart {start}\nboot {boot:032x}\nclosed {closed}\nforgot");
    match forgot {
        Forgot::Everything => text += " all",
        Forgot::Groups(groups) if groups.is_empty() => text += " none",
        Forgot::Groups(groups) => {
            for group in groups {
                write!(text, " {group}").expect("a string takes all text");
            }
        }
    }
    text.push('\n');
    seal_text(text)
}

/// `None` for anything but a whole file of this format.
fn decode(contents: &[u8]) -> Option<(Life, bool)> {
    let text = str::from_utf8(contents).ok()?;
    let (hashed, check) = text.split_at_checked(text.rfind("check ")?)?;
    let check = u32::from_str_radix(check.strip_prefix("check ")?.strip_suffix('\n')?, 16).ok()?;
    let mut lines = hashed.lines();
    let is_ours = lines.next()? == FIRST_LINE && lines.next()? == format!("format {FORMAT_VERSION}");
    if !is_ours || check != crc32c::crc32c(hashed.as_bytes()) {
        return None;
    }
    let start = lines.next()?.strip_prefix("start ")?.parse().ok()?;
    let boot = u128::from_str_radix(lines.next()?.strip_prefix("boot ")?, 16).ok()?;
    let closed = match lines.next()?.strip_prefix("closed ")? {
        "yes" => true,
        "no" => false,
        _ => return None,
    };
    let forgot = match lines.next()?.strip_prefix("forgot ")? {
        "all" => Forgot::Everything,
        "none" => Forgot::Groups(BTreeSet::new()),
        groups => Forgot::Groups(groups.split(' ').map(|group| group.parse().ok()).collect::<Option<_>>()?),
    };
    Some((Life { start, boot, forgot }, closed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data_folder::FolderIdentity;
    use crate::disk::{Crash, Fault, FaultyDisk, SurvivalUnit};
    use crate::wal::{FileNo, GroupId, Record, RecordKind, WalOptions, WalPosition, recover};

    fn open(disk: &Arc<FaultyDisk>) -> DataFolder<FaultyDisk> {
        let founding = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: 2 };
        DataFolder::open(disk.clone(), founding, 1).unwrap()
    }

    fn some(groups: &[u32]) -> Forgot {
        Forgot::Groups(groups.iter().copied().collect())
    }

    #[test]
    fn a_folder_is_in_doubt_after_another_boot_and_not_after_another_process() {
        let disk = Arc::new(FaultyDisk::new(1));
        let life = open(&disk).begin_life(7).unwrap();
        assert_eq!((life.start(), life.forgot()), (1, &some(&[])), "founded just now");
        let life = open(&disk).begin_life(7).unwrap();
        assert_eq!((life.start(), life.forgot()), (2, &some(&[])), "the process died, the machine went on");
        let life = open(&disk).begin_life(8).unwrap();
        assert_eq!((life.start(), life.forgot()), (3, &Forgot::Everything), "the machine started anew");
        let life = open(&disk).begin_life(8).unwrap();
        assert_eq!((life.start(), life.forgot()), (4, &Forgot::Everything), "and nobody has caught up since");
    }

    #[test]
    fn a_node_that_becomes_a_member_only_at_its_second_start_has_forgotten_nothing() {
        let disk = Arc::new(FaultyDisk::new(1));
        drop(open(&disk));
        let mut folder = open(&disk);
        folder.become_member(1).unwrap();
        let life = folder.begin_life(7).unwrap();
        assert_eq!((life.start(), life.forgot()), (2, &some(&[])), "it gave no vote and took nothing in before");
        drop(folder);
        doubt_log(&*disk);
        let mut folder = open(&disk);
        folder.become_member(1).unwrap();
        assert_eq!(folder.begin_life(7).unwrap().forgot(), &Forgot::Everything, "it was one before");
    }

    #[test]
    fn what_has_caught_up_stays_so_until_the_next_boot() {
        let disk = Arc::new(FaultyDisk::new(1));
        open(&disk).begin_life(7).unwrap();
        let folder = open(&disk);
        let mut life = folder.begin_life(8).unwrap();
        life.note_forgot(&*disk, &[3, 5].into()).unwrap();
        life.note_forgot(&*disk, &[5].into()).unwrap();
        drop(folder);
        let life = open(&disk).begin_life(8).unwrap();
        assert_eq!(life.forgot(), &some(&[5]));
        assert!(life.forgot().contains(5) && !life.forgot().contains(3));
        assert_eq!(open(&disk).begin_life(9).unwrap().forgot(), &Forgot::Everything);
    }

    #[test]
    fn a_folder_that_was_closed_is_not_in_doubt_in_any_boot() {
        let disk = Arc::new(FaultyDisk::new(1));
        let folder = open(&disk);
        let life = folder.begin_life(7).unwrap();
        life.close(&*disk).unwrap();
        drop(folder);
        assert_eq!(open(&disk).begin_life(8).unwrap().forgot(), &some(&[]));
        assert_eq!(open(&disk).begin_life(9).unwrap().forgot(), &Forgot::Everything, "the closing counts once");
    }

    #[test]
    fn a_file_that_is_gone_or_damaged_proves_nothing() {
        let disk = Arc::new(FaultyDisk::new(1));
        open(&disk).begin_life(7).unwrap();
        doubt_log(&*disk);
        assert_eq!(open(&disk).begin_life(7).unwrap().forgot(), &Forgot::Everything);
        let folder = open(&disk);
        let mut life = folder.begin_life(7).unwrap();
        life.note_forgot(&*disk, &BTreeSet::new()).unwrap();
        drop(folder);
        disk.flip_bit(BOOT_NAME, 30, 2);
        assert_eq!(open(&disk).begin_life(7).unwrap().forgot(), &Forgot::Everything);
    }

    #[test]
    fn a_log_whose_sync_failed_is_in_doubt_in_the_same_boot() {
        let disk = Arc::new(FaultyDisk::new(1));
        let folder = open(&disk);
        folder.begin_life(7).unwrap();
        let (options, from) = (WalOptions::new(1), WalPosition::START);
        let (mut wal, _) = recover(&disk, 2, options, FileNo(0), from, &mut |_, _| {}).unwrap();
        let body = bytes::Bytes::from_static(b"written and not synced");
        let record = Record { group: GroupId(1), kind: RecordKind::Entry, term: 1, index: 1, body, body_crc: None };
        wal.append(&[record], &mut Vec::new()).unwrap();
        disk.schedule(disk.operations(), Fault::SyncError);
        wal.sync().unwrap_err();
        drop((wal, folder));
        assert_eq!(open(&disk).begin_life(7).unwrap().forgot(), &Forgot::Everything);
    }

    #[test]
    fn a_power_cut_at_any_moment_never_makes_a_doubtful_folder_sure() {
        for operation in 0..40 {
            let disk = Arc::new(FaultyDisk::new(operation));
            open(&disk).begin_life(7).unwrap();
            disk.set_survival(SurvivalUnit::Sector);
            disk.schedule(disk.operations() + operation, crate::disk::Fault::Crash(Crash::Power));
            let founding = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: 2 };
            let begun = DataFolder::open(disk.clone(), founding, 1).and_then(|folder| folder.begin_life(8));
            if disk.down().is_none() {
                disk.crash(Crash::Power);
            }
            disk.clear_faults();
            disk.restart();
            let next = open(&disk).begin_life(9).unwrap();
            assert_eq!(next.forgot(), &Forgot::Everything, "cut at operation {operation}");
            assert!(begun.is_err() || next.start() == 3, "a life that began is counted");
        }
    }
}
