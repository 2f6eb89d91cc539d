//! Where the bytes of a write come together on their way into a log file.
//!
//! Two ways lead there. **Cached**: small pieces are collected, large bodies go as slices of their
//! own, and one system call copies all of it into the page cache, where readers find it.
//! **Direct**: everything is copied once into aligned memory that stays warm, and goes to the disk
//! from there; the page cache sees nothing, which saves its allocation, its bookkeeping and its
//! write-back (a third to a half of a small sync's CPU, two thirds of a large one's).
//!
//! Invariant: what was put is written in order and without gaps, from the offset on that the stage
//! began with.

use std::io::{self, IoSlice};
use std::sync::LazyLock;

use bytes::Bytes;

use super::format::PAGE_BYTES;
use crate::disk::{DIRECT_ALIGN_BYTES, DiskFile, Pages};

/// Bodies up to this size are copied next to their headers; above, the system call gets the body's
/// own slice. Measured: a slice costs `pwritev` about as much as copying one KiB.
const COPIED_BODY_BYTES_MAX: usize = 1024;
/// What goes to the disk in one direct write; a longer batch takes several.
const DIRECT_BYTES_MAX: usize = 512 << 10;

const _: () = assert!(DIRECT_BYTES_MAX.is_multiple_of(DIRECT_ALIGN_BYTES));

/// What files are filled with: made once, as making it costs as much as writing it.
static ZEROES: LazyLock<Pages> = LazyLock::new(|| {
    let mut zeroes = Pages::new(DIRECT_BYTES_MAX);
    zeroes.memory();
    zeroes
});
const _: () = assert!((PAGE_BYTES as usize).is_multiple_of(DIRECT_ALIGN_BYTES));

/// The way into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteWay {
    /// Through the page cache: cheap to read again, and small writes between two syncs share a
    /// page.
    Cached,
    /// Past the page cache, in whole pages: cheapest for what is synced at once and read from
    /// memory, if at all.
    Direct,
}

/// What a write is put into.
pub(super) trait Stage {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn zeroes(&mut self, count: usize) -> io::Result<()>;
    /// The body of record `number` of the batch.
    fn body(&mut self, number: usize, body: &Bytes) -> io::Result<()>;
}

/// Memory of both ways, kept from one write to the next.
#[derive(Debug)]
pub(super) struct Memory {
    staged: Vec<u8>,
    pieces: Vec<Piece>,
    pages: Pages,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { staged: Vec::new(), pieces: Vec::new(), pages: Pages::new(DIRECT_BYTES_MAX) }
    }
}

#[derive(Debug)]
enum Piece {
    /// Up to this end of `staged`.
    Staged(usize),
    /// The body of this record.
    Body(usize),
}

/// Own bytes and slices of bodies in turn.
pub(super) struct CachedStage<'a> {
    memory: &'a mut Memory,
}

impl Memory {
    pub(super) fn cached(&mut self) -> CachedStage<'_> {
        self.staged.clear();
        self.pieces.clear();
        CachedStage { memory: self }
    }

    /// A direct write from `offset`, a multiple of a page.
    pub(super) fn direct<'a, F: DiskFile>(&'a mut self, file: &'a F, offset: u32) -> DirectStage<'a, F> {
        DirectStage { file, offset: u64::from(offset), pages: &mut self.pages, held: 0 }
    }
}

impl CachedStage<'_> {
    /// Writes everything; `body(n)` is the body of record `n`.
    pub(super) fn finish<'a, F: DiskFile>(
        self,
        file: &F,
        offset: u32,
        body: impl Fn(usize) -> &'a Bytes,
    ) -> io::Result<()> {
        let Memory { staged, pieces, .. } = self.memory;
        let mut slices = Vec::with_capacity(pieces.len() + 1);
        let mut from = 0;
        for piece in pieces.iter() {
            match piece {
                Piece::Staged(end) => {
                    slices.push(IoSlice::new(&staged[from..*end]));
                    from = *end;
                }
                Piece::Body(number) => slices.push(IoSlice::new(body(*number))),
            }
        }
        if from < staged.len() {
            slices.push(IoSlice::new(&staged[from..]));
        }
        file.write_vectored_at(&slices, u64::from(offset))
    }
}

impl Stage for CachedStage<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.memory.staged.extend_from_slice(bytes);
        Ok(())
    }

    fn zeroes(&mut self, count: usize) -> io::Result<()> {
        let length = self.memory.staged.len() + count;
        self.memory.staged.resize(length, 0);
        Ok(())
    }

    fn body(&mut self, number: usize, body: &Bytes) -> io::Result<()> {
        if body.len() <= COPIED_BODY_BYTES_MAX {
            return self.put(body);
        }
        self.memory.pieces.push(Piece::Staged(self.memory.staged.len()));
        self.memory.pieces.push(Piece::Body(number));
        Ok(())
    }
}

/// Aligned memory, written out whenever it is full.
pub(super) struct DirectStage<'a, F> {
    file: &'a F,
    /// Where the held bytes belong.
    offset: u64,
    pages: &'a mut Pages,
    held: usize,
}

impl<F: DiskFile> DirectStage<'_, F> {
    /// Writes the rest, which is whole pages.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held > 0 {
            self.file.write_pages_at(&self.pages.memory()[..self.held], self.offset)?;
            self.offset += self.held as u64;
            self.held = 0;
        }
        Ok(())
    }

    fn room(&mut self) -> io::Result<&mut [u8]> {
        if self.held == DIRECT_BYTES_MAX {
            self.flush()?;
        }
        Ok(&mut self.pages.memory()[self.held..])
    }
}

impl<F: DiskFile> Stage for DirectStage<'_, F> {
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let now = room.len().min(bytes.len());
            room[..now].copy_from_slice(&bytes[..now]);
            self.held += now;
            bytes = &bytes[now..];
        }
        Ok(())
    }

    fn zeroes(&mut self, mut count: usize) -> io::Result<()> {
        while count > 0 {
            let room = self.room()?;
            let now = room.len().min(count);
            room[..now].fill(0);
            self.held += now;
            count -= now;
        }
        Ok(())
    }

    fn body(&mut self, _: usize, body: &Bytes) -> io::Result<()> {
        self.put(body)
    }
}

/// Writes zeroes from `offset` up to `end`, both multiples of a page, past the page cache where
/// that is possible.
pub(super) fn write_zeroes<F: DiskFile>(file: &F, offset: u32, end: u32) -> io::Result<()> {
    if offset >= end {
        return Ok(());
    }
    let zeroes = ZEROES.contents();
    let mut at = offset;
    while at < end {
        let now = zeroes.len().min((end - at) as usize);
        file.write_pages_at(&zeroes[..now], u64::from(at))?;
        at += now as u32;
    }
    Ok(())
}
