//! Bytes going out as segments that a vectored write takes, and bytes coming in as slices of what
//! was read.
//!
//! Numbers are LEB128 varints, seven bits a byte, least first. A body above [`INLINE_BYTES_MAX`] is
//! never copied, neither out (it becomes a segment of its own) nor in (it is a slice of the frame).
//! There is no checksum here: the peer protocol has one over each frame, which carries many
//! messages.
//!
//! Invariant: a [`Cursor`] never reads past its bytes, never allocates more than they justify, and
//! never panics, whatever they say.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

/// A body up to this size is copied behind the numbers that precede it; above, the segment that
/// would save the copy costs less than the copy. One `iovec` and one reference count are worth a
/// few hundred bytes of `memcpy`.
pub const INLINE_BYTES_MAX: usize = 512;

/// A varint of 64 bits takes at most this many bytes.
const VARINT_BYTES_MAX: usize = 10;

/// Why bytes are not a message. The peer is broken or of another version: close the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside the message.
    #[error("the message ends early, at byte {at}")]
    Truncated {
        /// Where the next byte was expected.
        at: usize,
    },
    /// A format this program does not know.
    #[error("format version {found} is not known here, which speaks {known}")]
    Version {
        /// What the bytes say.
        found: u8,
        /// What this program writes.
        known: u8,
    },
    /// A number or a tag that means nothing.
    #[error("{what} has no meaning, at byte {at}")]
    Invalid {
        /// What was being read.
        what: &'static str,
        /// Where it ended.
        at: usize,
    },
}

/// Bytes in a row, and their checksum where somebody has taken it.
pub type Segment = (Bytes, Option<u32>);

/// Bytes to send, as segments for one vectored write. Reused from frame to frame.
#[derive(Debug, Default)]
pub struct Segments {
    closed: Vec<Segment>,
    open: BytesMut,
    closed_bytes: usize,
}

impl Segments {
    /// Nothing to send.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes put since the last [`Segments::take`].
    pub fn len(&self) -> usize {
        self.closed_bytes + self.open.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has room for `bytes` more that are copied, and then for `portion`, so that memory is taken seldom.
    pub fn reserve(&mut self, bytes: usize, portion: usize) {
        if self.open.capacity() - self.open.len() < bytes {
            self.open.reserve(portion.max(bytes));
        }
    }

    /// One byte.
    pub fn put_u8(&mut self, byte: u8) {
        self.open.put_u8(byte);
    }

    /// A number, in one to ten bytes.
    pub fn put_varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.open.put_u8(number as u8 | 0x80);
            number >>= 7;
        }
        self.open.put_u8(number as u8);
    }

    /// Bytes, copied.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.open.put_slice(bytes);
    }

    /// Bytes, shared when they are more than [`INLINE_BYTES_MAX`].
    pub fn put_bytes(&mut self, bytes: &Bytes) {
        self.put_summed(bytes, None);
    }

    /// The same of bytes whose checksum somebody may have taken.
    pub fn put_summed(&mut self, bytes: &Bytes, crc: Option<u32>) {
        if bytes.len() <= INLINE_BYTES_MAX {
            self.open.put_slice(bytes);
            return;
        }
        self.close();
        self.closed_bytes += bytes.len();
        self.closed.push((bytes.clone(), crc));
    }

    /// Takes all segments, in order, and leaves nothing to send.
    pub fn take(&mut self) -> impl Iterator<Item = Segment> + '_ {
        self.close();
        self.closed_bytes = 0;
        self.closed.drain(..)
    }

    /// All segments as one piece of memory. For tests and small frames.
    pub fn to_bytes(&self) -> Bytes {
        let mut all = BytesMut::with_capacity(self.len());
        for (segment, _) in &self.closed {
            all.put_slice(segment);
        }
        all.put_slice(&self.open);
        all.freeze()
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.closed_bytes += self.open.len();
            self.closed.push((self.open.split().freeze(), None));
        }
    }
}

/// Reads from the front of a frame. Errors of its functions: the bytes end before, or mean nothing.
#[derive(Debug)]
pub struct Cursor<'a> {
    frame: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the first byte.
    pub fn new(frame: &'a Bytes) -> Self {
        Self { frame, at: 0 }
    }

    /// Bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.frame.get(self.at).ok_or(DecodeError::Truncated { at: self.at })?;
        self.at += 1;
        Ok(byte)
    }

    /// A number, as [`Segments::put_varint`] wrote it.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0_u64;
        for place in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit of a 64-bit number.
            if place == VARINT_BYTES_MAX - 1 && bits > 1 {
                return Err(self.invalid("a number of more than 64 bits"));
            }
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                // One number has one form, so that equal messages have equal bytes.
                if byte == 0 && place > 0 {
                    return Err(self.invalid("a number with idle bytes"));
                }
                return Ok(number);
            }
        }
        Err(self.invalid("a number of more than ten bytes"))
    }

    /// A count of things that take at least `bytes_min` bytes each, so that no count makes the
    /// reader allocate more than a small multiple of what was sent.
    pub fn count(&mut self, bytes_min: usize) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        let left = self.frame.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left / bytes_min => Ok(count),
            _ => Err(DecodeError::Truncated { at: self.at }),
        }
    }

    /// The next `length` bytes, shared with the frame.
    pub fn bytes(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if length > self.frame.len() - self.at {
            return Err(DecodeError::Truncated { at: self.at });
        }
        let start = self.at;
        self.at += length;
        Ok(self.frame.slice(start..self.at))
    }

    /// What was read last has no meaning: `what` names it.
    pub fn invalid(&self, what: &'static str) -> DecodeError {
        DecodeError::Invalid { what, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_take_the_bytes_they_need() {
        for (number, length) in
            [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (u64::from(u32::MAX), 5), (u64::MAX, 10)]
        {
            let mut out = Segments::new();
            out.put_varint(number);
            let bytes = out.to_bytes();
            assert_eq!(bytes.len(), length, "{number}");
            assert_eq!(Cursor::new(&bytes).varint(), Ok(number));
        }
    }

    #[test]
    fn a_number_has_one_form_only() {
        let idle = Bytes::from_static(&[0x81, 0x00]);
        assert!(matches!(Cursor::new(&idle).varint(), Err(DecodeError::Invalid { .. })));
        let long = Bytes::from_static(&[0xff; 11]);
        assert!(matches!(Cursor::new(&long).varint(), Err(DecodeError::Invalid { .. })));
        let mut wide = [0xff; 10];
        wide[9] = 0x02;
        let wide = Bytes::copy_from_slice(&wide);
        assert!(matches!(Cursor::new(&wide).varint(), Err(DecodeError::Invalid { .. })));
    }

    #[test]
    fn a_count_is_believed_only_as_far_as_there_are_bytes() {
        let mut out = Segments::new();
        out.put_varint(3);
        out.put_slice(&[0; 5]);
        let bytes = out.to_bytes();
        assert_eq!(Cursor::new(&bytes).count(1), Ok(3));
        assert_eq!(Cursor::new(&bytes).count(2), Err(DecodeError::Truncated { at: 1 }));
    }

    #[test]
    fn large_bodies_are_shared_and_small_ones_copied() {
        let large = Bytes::from(vec![7; INLINE_BYTES_MAX + 1]);
        let small = Bytes::from_static(b"small");
        let mut out = Segments::new();
        out.put_u8(1);
        out.put_bytes(&large);
        out.put_bytes(&small);
        out.put_u8(2);
        assert_eq!(out.len(), large.len() + small.len() + 2);
        let segments: Vec<Bytes> = out.take().map(|(bytes, _)| bytes).collect();
        assert_eq!(segments.len(), 3);
        assert_eq!(segments[1].as_ptr(), large.as_ptr(), "the large body is the same memory");
        assert_eq!(&segments[2][..], b"small\x02");
        assert!(out.is_empty());
    }
}
