//! The one way to the data files: a folder of files as the log, the extents and the checkpoints
//! need it.
//!
//! Invariant: nothing in this crate touches a file but through [`Disk`] and [`DiskFile`], so that
//! the same code runs on [`RealDisk`] in the server and on [`FaultyDisk`] in tests and in the
//! simulator. Names are relative, `/` parts the folder from the file, and there is one level of
//! folders.
//!
//! What a caller may rely on after a power cut: bytes of a file once its `sync_data` returned,
//! names of a folder once its `sync_folder` returned. Everything else may be there, partly there,
//! or gone.

mod dry;
mod faulty;
mod pages;
mod real;

use std::io::{self, IoSlice};

pub use dry::{DryDisk, DryFile};
pub use faulty::{Crash, Fault, FaultyDisk, FaultyFile, SurvivalUnit};
pub use pages::Pages;
pub use real::{RealDisk, RealFile};

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; never written.
    Read,
    /// Must exist.
    ReadWrite,
    /// Must not exist.
    CreateNew,
    /// Made if it does not exist, contents kept if it does.
    CreateOrOpen,
}

/// What the reader is going to do, as a hint to the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Read from front to back soon.
    Sequential,
    /// Small reads anywhere.
    Random,
    /// Not needed again: the pages may go.
    DontNeed,
}

/// Held as long as nobody else may use a data folder.
pub type FolderLock = Box<dyn std::any::Any + Send + Sync>;

/// One data folder.
pub trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Opens or creates a file. The name of a created file survives a power cut only after
    /// [`Disk::sync_folder`].
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Self::File>;

    /// The files of a folder (`""` is the data folder itself), without the folder's name, sorted; a
    /// folder within it ends with `/`. A missing folder has no files.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes a folder if it is missing, and its name durable.
    fn create_folder(&self, folder: &str) -> io::Result<()>;

    /// Removes a name; open files stay readable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, replacing what had it. Both names are in the same folder.
    fn rename(&self, source: &str, target: &str) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Room that is left for this user, in bytes.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Locks the data folder itself until the lock is dropped, beside the lock on a file in it,
    /// which somebody may take for a left-over and remove. `None`: another process has it. A disk
    /// that locks no folders gives a lock that keeps nobody out.
    fn lock_folder(&self) -> io::Result<Option<FolderLock>> {
        Ok(Some(Box::new(())))
    }

    /// What to call the folder in messages to people.
    fn describe(&self) -> String;
}

/// One open file. Reads and writes carry their offsets, so a file can be shared by threads.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buffer` from `offset`; less only at the end of the file. Returns the bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all slices one after the other from `offset`, with one system call where the system
    /// takes them at once.
    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Writes whole pages, past the page cache where the system can: nothing is copied a second
    /// time, and a read of them comes from the disk. As durable as any write, so not at all before
    /// [`DiskFile::sync_data`].
    ///
    /// `pages` begins at a multiple of [`DIRECT_ALIGN_BYTES`] in memory, and so do its length and
    /// `offset`. Bytes around may be written the ordinary way, through the same handle.
    fn write_pages_at(&self, pages: &[u8], offset: u64) -> io::Result<()> {
        check_alignment(pages, offset);
        self.write_at(pages, offset)
    }

    /// Makes the bytes written so far durable, and the length if it grew.
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves room for the first `bytes` bytes and makes the file at least that long. Fails when
    /// the disk is full.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts or extends (with zeroes) the file.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// A hint; no effect on what was written and synced. After `DontNeed` reads should come from
    /// the disk, not from memory.
    fn advise(&self, offset: u64, bytes: u64, advice: Advice);

    /// Takes the file's exclusive advisory lock, which ends with the process or with the last
    /// handle. `false`: somebody else has it.
    fn try_lock(&self) -> io::Result<bool>;

    /// Writes one slice.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_vectored_at(&[IoSlice::new(bytes)], offset)
    }
}

/// What a write past the page cache is aligned to, in memory and in the file: no disk in use has
/// larger blocks.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

fn check_alignment(pages: &[u8], offset: u64) {
    assert!(
        (pages.as_ptr() as usize).is_multiple_of(DIRECT_ALIGN_BYTES)
            && pages.len().is_multiple_of(DIRECT_ALIGN_BYTES)
            && offset.is_multiple_of(DIRECT_ALIGN_BYTES as u64),
        "pages are written whole and from aligned memory"
    );
}

/// Ranges are settled in such pieces, aligned to their size: no cached unit of a file is larger,
/// and only whole ones leave the cache.
const SETTLE_BYTES: u64 = 2 << 20;
/// Within a piece, what differs is written again in such units.
const SETTLE_PAGE_BYTES: usize = 4096;

/// Makes the bytes that can be read between `from` and `to` durable, whatever befell the process
/// that wrote them.
///
/// A sync alone is not enough. If that process met a failed sync, the system may count pages as
/// clean that the disk does not have: reads show them until memory runs short, or the power goes.
/// So they are read twice, from memory and then from the disk, and what differs is written again.
/// Nothing else is: a page that the disk has must not be written over, for a power cut in the
/// middle could destroy it.
///
/// Returns how many bytes had to be written again.
pub(crate) fn settle<F: DiskFile>(file: &F, from: u64, to: u64) -> io::Result<u64> {
    file.sync_data()?;
    let mut rewritten = 0;
    let mut start = from;
    while start < to {
        let piece = start - start % SETTLE_BYTES;
        let end = to.min(piece + SETTLE_BYTES);
        let mut cached = vec![0; (end - start) as usize];
        let mut stored = cached.clone();
        let in_cache = file.read_at(&mut cached, start)?;
        file.advise(piece, SETTLE_BYTES, Advice::DontNeed);
        let on_disk = file.read_at(&mut stored, start)?;
        let known = in_cache.min(cached.len());
        // A file that the disk holds shorter differs from there on.
        stored.truncate(on_disk);
        let mut at = 0;
        while at < known {
            let page_end = known.min(at + SETTLE_PAGE_BYTES - (start as usize + at) % SETTLE_PAGE_BYTES);
            if stored.get(at..page_end) != Some(&cached[at..page_end]) {
                file.write_at(&cached[at..page_end], start + at as u64)?;
                rewritten += (page_end - at) as u64;
            }
            at = page_end;
        }
        start = end;
    }
    if rewritten > 0 {
        file.sync_data()?;
    }
    Ok(rewritten)
}

/// The folder part of a name, `""` for files of the data folder itself.
pub(crate) fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Something has the name of a file and is none: a folder, a pipe, a socket. What was written there before is gone.
#[derive(Debug, thiserror::Error)]
#[error("it is no file but a folder or the like")]
pub(crate) struct NoFile;

impl From<NoFile> for io::Error {
    fn from(error: NoFile) -> io::Error {
        io::Error::other(error)
    }
}

/// Whether an error of [`Disk::open`] says that something has the name of a file and is none.
pub fn is_no_file(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoFile>())
}

/// Gives what is in a file's place another name beside it, which is returned, so that the file can be made.
pub(crate) fn set_aside<D: Disk>(disk: &D, name: &str) -> io::Result<String> {
    let taken = disk.list(folder_of(name))?;
    let is_taken = |aside: &str| {
        let aside = aside.rsplit('/').next().unwrap_or(aside);
        taken.iter().any(|known| known.trim_end_matches('/') == aside)
    };
    let mut names = (1..).map(|number: u32| format!("{name}.aside-{number}"));
    let aside = names.find(|aside| !is_taken(aside)).expect("a folder has fewer names than there are numbers");
    disk.rename(name, &aside)?;
    Ok(aside)
}

/// Reads the whole of a small file, refusing more than `bytes_max`.
pub(crate) fn read_whole<F: DiskFile>(file: &F, bytes_max: usize) -> io::Result<Vec<u8>> {
    let bytes = file.len()?;
    if bytes > bytes_max as u64 {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{bytes} bytes, at most {bytes_max} expected"),
        ));
    }
    let mut contents = vec![0; bytes as usize];
    let read = file.read_at(&mut contents, 0)?;
    contents.truncate(read);
    Ok(contents)
}
