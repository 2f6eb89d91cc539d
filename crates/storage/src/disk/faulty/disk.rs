//! The disk and its files as the storage sees them.

use super::super::{Advice, Disk, DiskFile, OpenMode, folder_of};
use super::memory::{Inode, PAGE_BYTES};
use super::{FaultyDisk, FaultyFile, Kind, Meeting, NameChange, State, down_error, lock};
use std::io;
use std::io::IoSlice;
use std::sync::MutexGuard;

impl Disk for FaultyDisk {
    type File = FaultyFile;

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<FaultyFile> {
        let mut state = self.state();
        state.check_up(state.generation)?;
        let found = state.names.get(name).copied();
        let inode = match (found, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(inode), _) => inode,
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(io::ErrorKind::NotFound.into()),
            (None, OpenMode::CreateNew | OpenMode::CreateOrOpen) => {
                let folder = folder_of(name);
                if !folder.is_empty() && !state.folders.iter().any(|known| known == folder) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let number = state.next_inode;
                state.next_inode += 1;
                state.inodes.insert(number, Inode::default());
                state.whole(Kind::Space, |state| {
                    state.change_name(folder, NameChange::Set(name.to_owned(), number));
                })?;
                number
            }
        };
        let handle = state.next_handle;
        state.next_handle += 1;
        let generation = state.generation;
        *state.open.entry(inode).or_insert(0) += 1;
        drop(state);
        let writable = mode != OpenMode::Read;
        Ok(FaultyFile { state: self.state.clone(), inode, generation, handle, writable })
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        state.check_up(state.generation)?;
        let mut names: Vec<String> = state
            .names
            .keys()
            .filter(|name| folder_of(name) == folder)
            .map(|name| name.rsplit_once('/').map_or(name.as_str(), |(_, file)| file).to_owned())
            .collect();
        if folder.is_empty() {
            names.extend(state.folders.iter().map(|name| format!("{name}/")));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_up(state.generation)?;
        if state.folders.iter().any(|known| known == folder) {
            return Ok(());
        }
        state.whole(Kind::Name, |state| state.folders.push(folder.to_owned()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_up(state.generation)?;
        if !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.whole(Kind::Name, |state| state.change_name(folder_of(name), NameChange::Remove(name.to_owned())))
    }

    fn rename(&self, source: &str, target: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_up(state.generation)?;
        let Some(&inode) = state.names.get(source) else { return Err(io::ErrorKind::NotFound.into()) };
        state.whole(Kind::Name, |state| {
            if folder_of(source) == folder_of(target) {
                let change = NameChange::Rename(source.to_owned(), target.to_owned());
                return state.change_name(folder_of(source), change);
            }
            // Nobody promises that two folders change together.
            state.change_name(folder_of(target), NameChange::Set(target.to_owned(), inode));
            state.change_name(folder_of(source), NameChange::Remove(source.to_owned()));
        })
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_up(state.generation)?;
        state.whole(Kind::Sync, |state| state.sync_names(folder))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        state.check_up(state.generation)?;
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes()))
    }

    fn describe(&self) -> String {
        "the simulated disk".to_owned()
    }
}

impl FaultyFile {
    pub(super) fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        state.check_up(self.generation)?;
        Ok(state)
    }

    pub(super) fn state_to_write(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state()?;
        if self.writable { Ok(state) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.state()?.inode(self.inode).read(buffer, offset))
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut state = self.state_to_write()?;
        let new_bytes = state.inode(self.inode).new_bytes(offset, bytes as u64);
        let full = new_bytes > 0 && state.used_bytes() + new_bytes > state.capacity_bytes;
        let (written, result) = match state.meet(Kind::Write) {
            Meeting::Nothing if full => (0, Err(io::ErrorKind::StorageFull.into())),
            Meeting::Nothing => (bytes, Ok(())),
            Meeting::Crash => (state.random.below(bytes as u64 + 1) as usize, Err(down_error())),
            Meeting::Error(error) => (state.random.below(bytes as u64 + 1) as usize, Err(error)),
        };
        let inode = state.inode(self.inode);
        let mut done = 0;
        for slice in slices {
            let count = slice.len().min(written - done);
            inode.write(&slice[..count], offset + done as u64);
            done += count;
        }
        result
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state()?;
        match state.meet(Kind::Sync) {
            Meeting::Nothing => {
                state.inode(self.inode).sync();
                Ok(())
            }
            Meeting::Crash => {
                if state.random.coin() {
                    state.inode(self.inode).sync();
                }
                Err(down_error())
            }
            Meeting::Error(error) => {
                state.inode(self.inode).fail_sync();
                Err(error)
            }
        }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state_to_write()?;
        let inode = state.inode(self.inode);
        let already = inode.charged_bytes();
        let beyond = inode.pages.range(bytes.div_ceil(PAGE_BYTES as u64)..).count() as u64;
        let after = (bytes.max(inode.bytes_reserved).div_ceil(PAGE_BYTES as u64) + beyond) * PAGE_BYTES as u64;
        if state.used_bytes() - already + after > state.capacity_bytes {
            state.operations += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        let number = self.inode;
        state.whole(Kind::Space, |state| {
            let inode = state.inode(number);
            inode.bytes_reserved = inode.bytes_reserved.max(bytes);
            inode.bytes = inode.bytes.max(bytes);
        })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.inode(self.inode).bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let number = self.inode;
        self.state_to_write()?.whole(Kind::Space, |state| state.inode(number).set_len(bytes))
    }

    fn advise(&self, offset: u64, bytes: u64, advice: Advice) {
        if let (Advice::DontNeed, Ok(mut state)) = (advice, self.state()) {
            // Whole pages only: of a range within one page nothing leaves memory.
            let first = offset.div_ceil(PAGE_BYTES as u64);
            let pages = first..((offset + bytes) / PAGE_BYTES as u64).max(first);
            let survival = state.survival;
            let State { inodes, random, .. } = &mut *state;
            let inode = inodes.get_mut(&self.inode).expect("an open file keeps its inode");
            // Only clean pages leave memory. For one whose sync failed that means: the disk's
            // version comes to light.
            for (_, page) in inode.pages.range_mut(pages).filter(|(_, page)| page.lost) {
                page.cut_power(survival, random);
            }
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.state()?;
        let holder = *state.locks.entry(self.inode).or_insert(self.handle);
        Ok(holder == self.handle)
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if state.generation == self.generation && state.locks.get(&self.inode) == Some(&self.handle) {
            state.locks.remove(&self.inode);
        }
        let handles = state.open.get_mut(&self.inode).expect("an open file is counted");
        *handles -= 1;
        if *handles == 0 {
            state.open.remove(&self.inode);
        }
    }
}
