//! Fields at fixed places in a header, little-endian.
//!
//! Invariant: `Fields` never reads past its slice: a short slice is a caller's bug and panics, so
//! callers check the length of what they read from a disk once, before they take it apart.

use crate::crc32c;

/// Reads fields one after the other.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.rest.split_first_chunk().expect("the header's length was checked");
        self.rest = rest;
        *head
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        self.take()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(crate) fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }
}

/// Writes fields one after the other into an array of exactly their size.
pub(crate) struct FieldsMut<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> FieldsMut<N> {
    pub(crate) fn new() -> FieldsMut<N> {
        FieldsMut { bytes: [0; N], filled: 0 }
    }

    pub(crate) fn put(mut self, field: &[u8]) -> FieldsMut<N> {
        self.bytes[self.filled..self.filled + field.len()].copy_from_slice(field);
        self.filled += field.len();
        self
    }

    pub(crate) fn u8(self, value: u8) -> FieldsMut<N> {
        self.put(&[value])
    }

    pub(crate) fn u16(self, value: u16) -> FieldsMut<N> {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> FieldsMut<N> {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> FieldsMut<N> {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u128(self, value: u128) -> FieldsMut<N> {
        self.put(&value.to_le_bytes())
    }

    /// Sets the CRC-32C of everything after it, which is how all headers of this crate begin or
    /// where `at` says.
    pub(crate) fn seal(mut self, at: usize) -> [u8; N] {
        assert_eq!(self.filled, N, "a header is written whole");
        let crc = crc32c::crc32c(&self.bytes[at + 4..]);
        self.bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        self.bytes
    }
}
