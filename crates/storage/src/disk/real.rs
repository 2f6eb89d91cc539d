//! The data folder on a real file system.
//!
//! Invariant: a write or read that returned `Ok` moved all its bytes; short counts and interrupts
//! are handled here and nowhere else. No memory mapping: an I/O error must be an `Err`, not a
//! signal. A file is never reached through a symbolic link of its name: whoever could put one there
//! would choose what is overwritten.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Advice, Disk, DiskFile, FolderLock, NoFile, OpenMode, check_alignment, set_aside};

/// Slices handed to one `pwritev`. Linux takes 1024 and fails above.
const SLICES_MAX: usize = 1024;

/// Every user of the machine may make and remove files.
const WRITABLE_BY_ALL: u32 = 0o002;

/// A folder of the file system that holds everything of one node.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Opens the folder, which is made (with its parents, readable for this user only) when
    /// missing.
    pub fn create(root: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let root = root.into();
        if !root.is_dir() {
            if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                fs::create_dir_all(parent)?;
            }
            make_folder(&root)?;
        }
        Ok(RealDisk { root })
    }

    /// Opens a folder that must exist, without changing anything.
    pub fn existing(root: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let root = root.into();
        if !fs::metadata(&root)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(RealDisk { root })
    }

    /// Its mode, if every user of the machine may put files into it. A folder that was made here
    /// never lets them.
    pub fn mode_open_to_all(&self) -> io::Result<Option<u32>> {
        let mode = fs::metadata(&self.root)?.mode() & 0o7777;
        Ok(Some(mode).filter(|mode| mode & WRITABLE_BY_ALL != 0))
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(!name.starts_with('/') && !name.contains(".."), "names stay inside the data folder: {name}");
        self.root.join(name)
    }
}

/// Whether something has this name that is no file, as a folder or a socket.
fn is_something_else(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_file())
}

fn make_folder(path: &Path) -> io::Result<()> {
    rustix::fs::mkdir(path, Mode::RWXU)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_path(parent),
        _ => sync_path(Path::new(".")),
    }
}

fn sync_path(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl Disk for RealDisk {
    type File = RealFile;

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<RealFile> {
        let flags = OFlags::CLOEXEC
            | OFlags::NOFOLLOW
            // A pipe in place of a file would keep us waiting for somebody at its other end.
            | OFlags::NONBLOCK
            | match mode {
                OpenMode::Read => OFlags::RDONLY,
                OpenMode::ReadWrite => OFlags::RDWR,
                OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
                OpenMode::CreateOrOpen => OFlags::RDWR | OFlags::CREATE,
            };
        let path = self.path(name);
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
            Errno::LOOP => {
                io::Error::other(format!("{} is a symbolic link, and none is followed here", path.display()))
            }
            Errno::ISDIR | Errno::NXIO if is_something_else(&path) => NoFile.into(),
            other => other.into(),
        })?;
        let file = File::from(file);
        if !file.metadata()?.is_file() {
            return Err(NoFile.into());
        }
        Ok(RealFile { file, path, direct: OnceLock::new(), is_writable: mode != OpenMode::Read })
    }

    fn lock_folder(&self) -> io::Result<Option<FolderLock>> {
        let folder = File::open(self.path(""))?;
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            // Some file systems of the network lock no folders: there the lock on the file has to
            // do.
            Ok(()) | Err(_) => Ok(Some(Box::new(folder))),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let mut name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                name.push('/');
            }
            names.push(name);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        let path = self.path(folder);
        if path.is_dir() { Ok(()) } else { make_folder(&path) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn rename(&self, source: &str, target: &str) -> io::Result<()> {
        let renamed = || fs::rename(self.path(source), self.path(target));
        match renamed() {
            // A folder in the place of a file is replaced too, but not lost.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                set_aside(self, target)?;
                renamed()
            }
            done => done,
        }
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        sync_path(&self.path(folder))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let room = rustix::fs::statvfs(&self.root)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}

/// A file of a [`RealDisk`].
#[derive(Debug)]
pub struct RealFile {
    file: File,
    /// The name it was opened by, for the second handle.
    path: PathBuf,
    /// A handle on the same file that goes past the page cache, from the first time that it is
    /// wanted. `None` inside: the file system has no such thing, or the name no longer leads here.
    direct: OnceLock<Option<File>>,
    is_writable: bool,
}

impl RealFile {
    fn direct(&self) -> Option<&File> {
        self.direct.get_or_init(|| self.open_direct().ok().filter(|_| self.is_writable)).as_ref()
    }

    fn open_direct(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let direct = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let (one, other) = (rustix::fs::fstat(&self.file)?, rustix::fs::fstat(&direct)?);
        if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
            Ok(direct)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut offset = offset;
        for some in slices.chunks(SLICES_MAX) {
            let bytes: usize = some.iter().map(|slice| slice.len()).sum();
            let written = loop {
                match rustix::io::pwritev(&self.file, some, offset) {
                    Ok(written) => break written,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            };
            if written < bytes {
                self.write_rest(some, written, offset)?;
            }
            offset += bytes as u64;
        }
        Ok(())
    }

    fn write_pages_at(&self, pages: &[u8], offset: u64) -> io::Result<()> {
        check_alignment(pages, offset);
        let Some(direct) = self.direct() else { return self.write_at(pages, offset) };
        let mut done = 0;
        while done < pages.len() {
            match rustix::io::pwrite(direct, &pages[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                // Blocks larger than ours, or a file system that takes the flag and not the write:
                // the ordinary way.
                Err(Errno::INVAL) => return self.write_at(&pages[done..], offset + done as u64),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // An interrupted sync is not repeated: whether a second one would still report the first
        // one's failure is unknown.
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                // A file system without reservations (some network and overlay ones): what was
                // written has its room.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.extend_with_zeroes(bytes),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn advise(&self, offset: u64, bytes: u64, advice: Advice) {
        let advice = match advice {
            Advice::Sequential => rustix::fs::Advice::Sequential,
            Advice::Random => rustix::fs::Advice::Random,
            Advice::DontNeed => rustix::fs::Advice::DontNeed,
        };
        // A hint that is refused changes nothing for the caller.
        let _ = rustix::fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(bytes), advice);
    }

    fn try_lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl RealFile {
    /// Writes zeroes from the end of the file up to `bytes`; what cannot be finished is cut off
    /// again.
    fn extend_with_zeroes(&self, bytes: u64) -> io::Result<()> {
        let zeroes = [0; 64 << 10];
        let length = self.len()?;
        let mut at = length;
        while at < bytes {
            let piece = (bytes - at).min(zeroes.len() as u64);
            if let Err(error) = self.write_at(&zeroes[..piece as usize], at) {
                // Its room is needed elsewhere; if this fails too the first error says more.
                let _ = self.set_len(length);
                return Err(error);
            }
            at += piece;
        }
        Ok(())
    }

    /// Ends a vectored write that the system took only in part, slice by slice.
    fn write_rest(&self, slices: &[IoSlice<'_>], mut skip: usize, mut offset: u64) -> io::Result<()> {
        for slice in slices {
            let skipped = skip.min(slice.len());
            skip -= skipped;
            offset += skipped as u64;
            let mut rest = &slice[skipped..];
            while !rest.is_empty() {
                match rustix::io::pwrite(&self.file, rest, offset) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        rest = &rest[written..];
                        offset += written as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::disk::is_no_file;

    #[test]
    fn no_symbolic_link_is_followed_to_a_file() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let disk = RealDisk::create(folder.path()).unwrap();
        let target = elsewhere.path().join("target");
        fs::write(&target, "not ours").unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join("lock")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("new"), folder.path().join("identity.new")).unwrap();
        for (name, mode) in [
            ("lock", OpenMode::Read),
            ("lock", OpenMode::ReadWrite),
            ("lock", OpenMode::CreateOrOpen),
            ("lock", OpenMode::CreateNew),
            ("identity.new", OpenMode::CreateOrOpen),
        ] {
            disk.open(name, mode).expect_err("a link is not followed");
        }
        assert_eq!(fs::read(&target).unwrap(), b"not ours");
        assert!(!elsewhere.path().join("new").exists());
    }

    #[test]
    fn what_is_no_file_is_told_from_one_that_the_system_refuses_and_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::create(folder.path()).unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        for name in ["folder", "pipe", "socket"] {
            for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::CreateOrOpen] {
                let error = disk.open(name, mode).expect_err("it is no file");
                assert!(is_no_file(&error), "{name}, {mode:?}: {error}");
            }
            let aside = set_aside(&disk, name).unwrap();
            assert_eq!((aside, disk.open(name, OpenMode::CreateOrOpen).is_ok()), (format!("{name}.aside-1"), true));
        }
        fs::remove_file(folder.path().join("folder")).unwrap();
        fs::create_dir_all(folder.path().join("folder/full")).unwrap();
        assert_eq!(set_aside(&disk, "folder").unwrap(), "folder.aside-2", "what was set aside before stays");
        drop(disk.open("new", OpenMode::CreateNew).unwrap());
        fs::create_dir_all(folder.path().join("folder/full")).unwrap();
        disk.rename("new", "folder").unwrap();
        assert!(disk.open("folder", OpenMode::Read).is_ok() && folder.path().join("folder.aside-3/full").is_dir());
        let missing = disk.open("missing", OpenMode::Read).expect_err("it is missing");
        assert!(!is_no_file(&missing));
    }

    #[test]
    fn what_cannot_be_reserved_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::create(folder.path()).unwrap();
        let file = disk.open("log", OpenMode::CreateNew).unwrap();
        file.write_at(b"here before", 0).unwrap();
        let bytes = (300 << 10) + 7;
        file.extend_with_zeroes(bytes).unwrap();
        let mut read = vec![1; bytes as usize + 1];
        assert_eq!(file.read_at(&mut read, 0).unwrap() as u64, bytes);
        assert_eq!(&read[..11], b"here before");
        assert!(read[11..bytes as usize].iter().all(|byte| *byte == 0));
        // 512 bytes a block, whatever the file system's own are: nothing of it is a hole.
        file.sync_data().unwrap();
        assert!(file.file.metadata().unwrap().blocks() * 512 >= bytes);
        file.extend_with_zeroes(100).unwrap();
        assert_eq!(file.len().unwrap(), bytes, "a longer file stays as long");
    }
}
