//! Damaged files that a repair keeps: copied or moved into a folder of their own.
//!
//! Invariant: a file that is moved or copied is there under its new name, durably, before anything is
//! made in its stead.

use super::Work;
use std::collections::BTreeSet;
use storage::extent::{extent_name, list_extents};
use storage::{Disk, DiskFile, ExtentId, OpenMode, StorageError, is_no_file};

/// Where damaged files are kept, inside the data folder.
pub const ASIDE_FOLDER: &str = "damaged";
/// Files are copied in such pieces.
const COPY_BYTES: usize = 1 << 20;

impl<D: Disk> Work<D> {
    fn next_aside(&mut self, name: &str) -> Result<String, StorageError> {
        self.kept_aside += 1;
        aside_name(&*self.disk, self.kept_aside, name)
    }

    /// Copies a file, if it is there, to where damaged ones are kept.
    pub(super) fn copy_aside(&mut self, name: &str) -> Result<(), StorageError> {
        let source = match self.disk.open(name, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // There is nothing to copy, and its name is needed.
            Err(error) if is_no_file(&error) => return self.move_aside(name),
            Err(error) => return Err(failed("open", name, error)),
        };
        let target_name = self.next_aside(name)?;
        let target =
            self.disk.open(&target_name, OpenMode::CreateNew).map_err(|error| failed("create", &target_name, error))?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut offset = 0;
        loop {
            let read = source.read_at(&mut buffer, offset).map_err(|error| failed("read", name, error))?;
            if read == 0 {
                break;
            }
            target.write_at(&buffer[..read], offset).map_err(|error| failed("write", &target_name, error))?;
            offset += read as u64;
        }
        target.sync_data().map_err(|error| failed("sync", &target_name, error))?;
        self.sync_names(&target_name)?;
        self.report.aside.push((name.to_owned(), target_name));
        Ok(())
    }

    /// Keeps extents aside that no checkpoint knows, but for the new ones: those of a partition
    /// that lost its state are among them, and the next start would delete them.
    pub(super) fn keep_orphans(&mut self, known: &BTreeSet<u32>, first_new: u32) -> Result<(), StorageError> {
        let is_orphan = |id: &ExtentId| u32::try_from(id.0).is_ok_and(|id| id < first_new && !known.contains(&id));
        let orphans = list_extents(&*self.disk)?.into_iter().filter(is_orphan);
        orphans.collect::<Vec<_>>().into_iter().try_for_each(|id| self.move_aside(&extent_name(id)))
    }

    pub(super) fn move_aside(&mut self, name: &str) -> Result<(), StorageError> {
        // A trial keeps no changes, and would take one of a file that is not there.
        match self.disk.open(name, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if is_no_file(&error) => {}
            Err(error) => return Err(failed("open", name, error)),
            Ok(_) => {}
        }
        let target = self.next_aside(name)?;
        self.disk.rename(name, &target).map_err(|error| failed("move", name, error))?;
        self.sync_names(&target)?;
        self.sync_names(name)?;
        self.report.aside.push((name.to_owned(), target));
        Ok(())
    }

    pub(super) fn sync_names(&self, name: &str) -> Result<(), StorageError> {
        let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
        self.disk.sync_folder(folder).map_err(|error| failed("sync", folder, error))
    }
}

pub(super) fn count_aside<D: Disk>(disk: &D) -> Result<u32, StorageError> {
    let names = disk.list(ASIDE_FOLDER).map_err(|source| failed("list", ASIDE_FOLDER, source))?;
    Ok(names.iter().filter_map(|name| name.split_once('-')?.0.parse().ok()).max().unwrap_or(0))
}

fn aside_name<D: Disk>(disk: &D, number: u32, name: &str) -> Result<String, StorageError> {
    disk.create_folder(ASIDE_FOLDER).map_err(|source| failed("create", ASIDE_FOLDER, source))?;
    Ok(format!("{ASIDE_FOLDER}/{number:04}-{}", name.replace('/', "-")))
}

/// Under which name a damaged file is kept next.
pub fn next_aside<D: Disk>(disk: &D, name: &str) -> Result<String, StorageError> {
    aside_name(disk, count_aside(disk)? + 1, name)
}

pub(super) fn failed(action: &'static str, file: &str, source: std::io::Error) -> StorageError {
    StorageError::Io { action, file: file.to_owned(), source }
}
