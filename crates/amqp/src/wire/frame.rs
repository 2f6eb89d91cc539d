//! Frames: how a stream of bytes is cut.
//!
//! ```text
//!   0      1         3              7                      7+size
//!   +------+---------+--------------+----------------------+------+
//!   | type | channel | payload size | payload              | 0xCE |
//!   +------+---------+--------------+----------------------+------+
//!     u8     u16       u32                                    u8
//! ```
//!
//! Invariant: a frame is looked at only when all of it is there, so nothing behind this file
//! handles half a frame.

use std::ops::Deref;

use bytes::Bytes;

use crate::wire::primitives::Writer;

/// The bytes before the payload.
pub const FRAME_HEADER_BYTES: usize = 7;
/// The bytes of a frame with an empty payload, end octet included.
pub const FRAME_EMPTY_BYTES: usize = 8;
/// The octet after every payload.
pub const FRAME_END: u8 = 0xce;
/// The smallest `frame_max` that may be negotiated (AMQP 0-9-1, 4.2.3).
pub const FRAME_BYTES_MIN: u32 = 4096;
/// The largest frame before a limit is negotiated, if nothing else is set.
pub const FRAME_BYTES_INITIAL: u32 = 8192;

/// A method frame.
pub const FRAME_METHOD: u8 = 1;
/// A content header frame.
pub const FRAME_HEADER: u8 = 2;
/// A content body frame.
pub const FRAME_BODY: u8 = 3;
/// A heartbeat frame.
pub const FRAME_HEARTBEAT: u8 = 8;

/// The whole heartbeat frame.
pub const HEARTBEAT: [u8; 8] = [FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END];
/// The protocol header of AMQP 0-9-1.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
/// The protocol header of AMQP 0-9, which differs in nothing that a client of today uses.
pub const PROTOCOL_HEADER_0_9: [u8; 8] = *b"AMQP\x01\x01\x00\x09";

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The type: method, header, body or heartbeat.
    pub kind: u8,
    /// The channel's number; 0 is the connection itself.
    pub channel: u16,
    /// The payload's size, header and end octet not counted.
    pub payload_bytes: u32,
}

impl FrameHeader {
    /// Reads the header at the start of `bytes`, if all seven bytes are there.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<FrameHeader> {
        let header = bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
        Some(FrameHeader {
            kind: header[0],
            channel: u16::from_be_bytes([header[1], header[2]]),
            payload_bytes: u32::from_be_bytes([header[3], header[4], header[5], header[6]]),
        })
    }

    /// The bytes of the whole frame.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        self.payload_bytes as usize + FRAME_EMPTY_BYTES
    }

    /// Whether the frame is larger than `frame_max` allows; 0 allows every size.
    ///
    /// RabbitMQ lets a payload be as large as `frame_max` itself, eight bytes more than the
    /// specification, as many clients count wrong by that much.
    #[inline]
    pub fn exceeds(&self, frame_max: u32) -> bool {
        frame_max != 0 && self.payload_bytes > frame_max
    }
}

/// A frame's payload, still in the batch of input that it came in, or a body, still in the message that is stored.
///
/// Looking at it costs nothing; only what is kept takes a reference on the batch.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    batch: &'a Bytes,
    start: usize,
    end: usize,
}

impl<'a> Payload<'a> {
    /// The payload at `start..end` of `batch`.
    #[inline]
    pub fn new(batch: &'a Bytes, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= batch.len(), "a payload lies within its batch");
        Self { batch, start, end }
    }

    /// All of `payload`.
    pub fn whole(payload: &'a Bytes) -> Self {
        Self { batch: payload, start: 0, end: payload.len() }
    }

    /// The payload to keep.
    #[inline]
    pub fn to_bytes(self) -> Bytes {
        self.batch.slice(self.start..self.end)
    }

    /// A part of the payload, to look at.
    #[inline]
    #[must_use]
    pub fn part(self, from: usize, until: usize) -> Payload<'a> {
        assert!(until <= self.len(), "a part lies within its payload");
        Payload::new(self.batch, self.start + from, self.start + until)
    }

    /// A part of the payload to keep.
    #[inline]
    pub fn slice(self, from: usize, until: usize) -> Bytes {
        assert!(until <= self.len(), "a part lies within its payload");
        self.batch.slice(self.start + from..self.start + until)
    }
}

impl<'a> From<&'a Bytes> for Payload<'a> {
    fn from(whole: &'a Bytes) -> Payload<'a> {
        Payload::whole(whole)
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.batch[self.start..self.end]
    }
}

/// How many bytes at the start of `input` are whole frames within `frame_max`.
///
/// Stops at the first frame that is not complete or is too large; the caller tells the two apart by
/// its header.
pub fn complete_prefix(input: &[u8], frame_max: u32) -> usize {
    let mut at = 0;
    while let Some(header) = FrameHeader::read(&input[at..]) {
        if header.exceeds(frame_max) || header.frame_bytes() > input.len() - at {
            break;
        }
        at += header.frame_bytes();
    }
    at
}

/// How many bytes are missing until the frame at the start of `input` is whole; 0 when it is, or
/// when not even its header is there. For sizing the next read: a frame that is larger than the
/// read buffer is best given its room at once.
///
/// Only a frame within `frame_max` counts, so nobody is made to reserve what a client merely
/// claims.
pub fn missing_bytes(input: &[u8], frame_max: u32) -> usize {
    match FrameHeader::read(input) {
        Some(header) if !header.exceeds(frame_max) => header.frame_bytes().saturating_sub(input.len()),
        _ => 0,
    }
}

/// Appends a frame around the payload that `payload` writes.
pub fn write_frame(target: &mut Vec<u8>, kind: u8, channel: u16, payload: impl FnOnce(&mut Writer<'_>)) {
    let mut writer = Writer::new(target);
    writer.octet(kind);
    writer.short(channel);
    writer.sized(payload);
    writer.octet(FRAME_END);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_whole_frames_are_counted() {
        let mut bytes = HEARTBEAT.to_vec();
        write_frame(&mut bytes, FRAME_BODY, 3, |w| w.raw(b"hello"));
        let whole = bytes.len();
        for cut in 0..whole {
            let expected = if cut < HEARTBEAT.len() { 0 } else { HEARTBEAT.len() };
            assert_eq!(complete_prefix(&bytes[..cut], 0), expected, "cut at {cut}");
        }
        assert_eq!(complete_prefix(&bytes, 0), whole);
    }

    #[test]
    fn what_is_missing_is_known_from_the_header_on() {
        let bytes = [FRAME_BODY, 0, 1, 0, 0, 0x10, 0, 1, 2];
        assert_eq!(missing_bytes(&bytes[..6], 4096), 0);
        assert_eq!(missing_bytes(&bytes[..7], 4096), 4097);
        assert_eq!(missing_bytes(&bytes, 4096), 4095);
        assert_eq!(missing_bytes(&bytes, 4095), 0);
        assert_eq!(missing_bytes(&HEARTBEAT, 4096), 0);
    }

    #[test]
    fn a_frame_that_is_too_large_ends_the_prefix_before_it_arrives() {
        let bytes = [FRAME_BODY, 0, 1, 0, 0, 0x10, 1];
        assert_eq!(complete_prefix(&bytes, 4096), 0);
        assert!(FrameHeader::read(&bytes).unwrap().exceeds(4096));
        assert!(!FrameHeader::read(&bytes).unwrap().exceeds(4097));
        assert!(!FrameHeader::read(&bytes).unwrap().exceeds(0));
    }
}
