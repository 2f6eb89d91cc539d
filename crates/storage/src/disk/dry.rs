//! A disk that takes every change and keeps none: what a repair would do is tried on it.
//!
//! Invariant: the disk below is only read. What was written here is not read back, except of files
//! that were made here, which are empty; whoever reads its own writes needs a real disk.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::{Advice, Disk, DiskFile, OpenMode, is_no_file};

/// See the module.
#[derive(Debug)]
pub struct DryDisk<D: Disk> {
    below: Arc<D>,
}

/// A file of a [`DryDisk`]: one of the disk below, for reading, or one that exists in name only.
#[derive(Debug)]
pub struct DryFile<F>(Option<F>);

impl<D: Disk> DryDisk<D> {
    /// Over `below`, which stays as it is.
    pub fn new(below: Arc<D>) -> DryDisk<D> {
        DryDisk { below }
    }
}

impl<D: Disk> Disk for DryDisk<D> {
    type File = DryFile<D::File>;

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<DryFile<D::File>> {
        match self.below.open(name, OpenMode::Read) {
            Ok(_) if mode == OpenMode::CreateNew => Err(io::ErrorKind::AlreadyExists.into()),
            Ok(file) => Ok(DryFile(Some(file))),
            // It may have been renamed to this name, or made.
            Err(error) if mode != OpenMode::Read && (error.kind() == io::ErrorKind::NotFound || is_no_file(&error)) => {
                Ok(DryFile(None))
            }
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.below.list(folder)
    }

    fn create_folder(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _source: &str, _target: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.below.free_bytes()
    }

    fn describe(&self) -> String {
        self.below.describe()
    }
}

impl<F: DiskFile> DiskFile for DryFile<F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.as_ref().map_or(Ok(0), |file| file.read_at(buffer, offset))
    }

    fn write_vectored_at(&self, _slices: &[IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.0.as_ref().map_or(Ok(0), DiskFile::len)
    }

    fn set_len(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn advise(&self, _offset: u64, _bytes: u64, _advice: Advice) {
        // What the system remembers of the files is no affair of a trial.
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.0.as_ref().map_or(Ok(true), DiskFile::try_lock)
    }
}
