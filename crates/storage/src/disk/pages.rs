//! Memory for writes past the page cache.
//!
//! Invariant: it begins at a multiple of [`DIRECT_ALIGN_BYTES`], and its length is one.

use super::DIRECT_ALIGN_BYTES;

/// Zeroed memory that a [`super::DiskFile::write_pages_at`] takes. Reserved at first use, and then
/// touched only as far as it is used: a quiet broker's small batches take a few pages of it.
#[derive(Debug)]
pub struct Pages {
    bytes: usize,
    memory: Vec<u8>,
    start: usize,
}

impl Pages {
    /// Room for `bytes`, a multiple of [`DIRECT_ALIGN_BYTES`]; anything else is a caller's bug and
    /// panics.
    pub fn new(bytes: usize) -> Pages {
        assert!(bytes.is_multiple_of(DIRECT_ALIGN_BYTES), "memory for whole pages: {bytes} bytes");
        Pages { bytes, memory: Vec::new(), start: 0 }
    }

    /// All of it.
    pub fn memory(&mut self) -> &mut [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; self.bytes + DIRECT_ALIGN_BYTES];
            self.start = self.memory.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        }
        &mut self.memory[self.start..self.start + self.bytes]
    }

    /// What was put there, to be read by many at a time: nothing, if [`Pages::memory`] was never called.
    pub fn contents(&self) -> &[u8] {
        &self.memory[self.start..(self.start + self.bytes).min(self.memory.len())]
    }
}
