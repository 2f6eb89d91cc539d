//! Packets: what goes over a link between two nodes at a time, frames of any of their groups and of
//! the nodes themselves.
//!
//! ```text
//! length u32 of what follows the head, crc32c u32 of what follows this field, version u8 = 7   little-endian, 9 bytes
//! partition varint, frame (see `peer` and `forward`; their kinds differ)                        until the length is used up
//! ```
//!
//! Invariants: a packet is taken whole, with its checksum, or not at all: whoever gets one that is
//! not sound closes the link, since nothing behind it can be found. A version that this build does
//! not know is told apart from damage.

use super::PeerFrame;
use super::forward::Forward;
use broker::PartitionId;
use bytes::{Buf, Bytes};
use consensus::{Cursor, DecodeError, Segments};
use std::collections::VecDeque;
use storage::crc32c;
use thiserror::Error;

/// What every packet begins with. A node must not speak a version that some peer does not know.
pub const PACKET_VERSION: u8 = 7;
/// Bytes before the first frame.
pub const HEAD_BYTES: usize = 9;
/// Whoever fills a packet ends it once it has so many bytes.
pub const PACKET_BYTES: usize = 256 << 10;
/// No frame counts less towards that, however short it is.
pub const FRAME_BYTES_MIN: usize = 64;
/// No packet has more frames: in memory each takes several times its bytes.
pub const FRAMES_MAX: usize = PACKET_BYTES / FRAME_BYTES_MIN;
/// What of packets is copied lies in portions of so many bytes,
const PORTION_BYTES: usize = 4 << 10;
/// and another one is begun where less than this is left.
const PORTION_BYTES_MIN: usize = 256;
/// From so many bytes on the body of an entry is summed up once, by whoever makes it or takes it in, for links and the
/// log: putting two checksums together costs as much as summing up 2 KiB.
const SUMMED_BYTES_MIN: usize = 4 << 10;
/// No packet is longer: a full one, and behind that the largest frame, which is one file of the
/// log.
pub const PACKET_BYTES_MAX: usize = PACKET_BYTES + (256 << 20);

/// Why bytes are no packet: close the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// A format that this build does not know.
    #[error(
        "the peer speaks version {found} of the peer protocol, this node {PACKET_VERSION}: run the same version on both"
    )]
    Version {
        /// What the packet says.
        found: u8,
    },
    /// No packet may be so long.
    #[error("a packet of {bytes} bytes, of which {PACKET_BYTES_MAX} are the most")]
    TooLong {
        /// What its head says.
        bytes: u32,
    },
    /// The bytes are not those that were sent.
    #[error("the checksum of a packet does not fit its bytes")]
    Damaged,
    /// More of them than fit into one packet.
    #[error("a packet of more than {FRAMES_MAX} frames")]
    TooMany,
    /// The bytes are those that were sent, and they are no frames.
    #[error("a frame of a packet cannot be read: {0}")]
    Frame(#[from] DecodeError),
}

/// The head of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    length: u32,
    crc: u32,
    version: u8,
}

impl Head {
    /// Reads a head. Errors: the version is not known, or the packet would be too long.
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Head, PacketError> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let head = Head { length: word(0), crc: word(4), version: bytes[8] };
        if head.version != PACKET_VERSION {
            return Err(PacketError::Version { found: head.version });
        }
        if head.length as usize > PACKET_BYTES_MAX {
            return Err(PacketError::TooLong { bytes: head.length });
        }
        Ok(head)
    }

    /// How many bytes follow.
    pub fn length(&self) -> usize {
        self.length as usize
    }
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Said by a member of the partition to another one.
    Group(PeerFrame),
    /// Said by the node.
    Forward(Forward),
}

impl From<PeerFrame> for Frame {
    fn from(frame: PeerFrame) -> Frame {
        Frame::Group(frame)
    }
}

impl From<Forward> for Frame {
    fn from(frame: Forward) -> Frame {
        Frame::Forward(frame)
    }
}

impl Frame {
    fn decode(bytes: &mut Bytes) -> Result<Frame, DecodeError> {
        match bytes.first() {
            Some(&kind) if kind >= Forward::KIND_MIN => Forward::decode(bytes).map(Frame::Forward),
            _ => PeerFrame::decode(bytes).map(Frame::Group),
        }
    }
}

/// A frame that stays where it is while it is written.
#[derive(Clone, Copy, Debug)]
pub enum FrameRef<'a> {
    /// See [`Frame::Group`].
    Group(&'a PeerFrame),
    /// See [`Frame::Forward`].
    Forward(&'a Forward),
}

impl<'a> From<&'a PeerFrame> for FrameRef<'a> {
    fn from(frame: &'a PeerFrame) -> FrameRef<'a> {
        FrameRef::Group(frame)
    }
}

impl<'a> From<&'a Forward> for FrameRef<'a> {
    fn from(frame: &'a Forward) -> FrameRef<'a> {
        FrameRef::Forward(frame)
    }
}

impl<'a> From<&'a Frame> for FrameRef<'a> {
    fn from(frame: &'a Frame) -> FrameRef<'a> {
        match frame {
            Frame::Group(frame) => FrameRef::Group(frame),
            Frame::Forward(frame) => FrameRef::Forward(frame),
        }
    }
}

/// A packet of these frames, as pieces for one vectored write, the head first. They are references
/// to [`Frame`], [`PeerFrame`] or [`Forward`]. Large bodies are shared, not copied.
///
/// # Panics
/// If they are more than [`FRAMES_MAX`] or 4 GiB, or one is a [`Forward`] that no node says to another one.
pub fn encode<'a, F: Into<FrameRef<'a>>>(frames: impl IntoIterator<Item = (PartitionId, F)>) -> Vec<Bytes> {
    let mut pieces = VecDeque::new();
    PacketWriter::default().encode(frames, &mut pieces);
    pieces.into()
}

/// Writes packets one after the other, in memory that it keeps.
#[derive(Debug, Default)]
pub struct PacketWriter {
    segments: Segments,
}

impl PacketWriter {
    /// Puts a packet behind what is in `pieces`: see [`encode`]. The pieces that are copied lie in portions of 4 KiB, each of
    /// which is held as long as one of its pieces is.
    ///
    /// # Panics
    /// As [`encode`].
    pub fn encode<'a, F: Into<FrameRef<'a>>>(
        &mut self,
        frames: impl IntoIterator<Item = (PartitionId, F)>,
        pieces: &mut VecDeque<Bytes>,
    ) {
        let segments = &mut self.segments;
        segments.reserve(PORTION_BYTES_MIN, PORTION_BYTES);
        for (count, (partition, frame)) in frames.into_iter().enumerate() {
            assert!(count < FRAMES_MAX, "packets are ended before");
            segments.put_varint(u64::from(partition.0));
            match frame.into() {
                FrameRef::Group(frame) => frame.encode(segments),
                FrameRef::Forward(frame) => frame.encode(segments),
            }
        }
        let length = u32::try_from(segments.len()).expect("packets are ended long before");
        // What is in it is known once it is there.
        let place_of_head = pieces.len();
        pieces.push_back(Bytes::new());
        let mut crc = crc32c::crc32c(&[PACKET_VERSION]);
        pieces.extend(segments.take().map(|(piece, own)| {
            crc = append(crc, &piece, own);
            piece
        }));
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        head[8] = PACKET_VERSION;
        segments.put_slice(&head);
        pieces[place_of_head] = segments.take().next().expect("it was put there").0;
    }
}

/// The checksum of the body of an entry, where it pays to have it.
pub(crate) fn checksum_of(body: &[u8]) -> Option<u32> {
    (body.len() >= SUMMED_BYTES_MIN).then(|| crc32c::crc32c(body))
}

/// The checksum of a packet with these bytes behind its head.
pub fn checksum(body: &[u8]) -> u32 {
    append(crc32c::crc32c(&[PACKET_VERSION]), body, None)
}

/// The checksum of what `crc` is of, and of `more` behind it. `own`: the checksum of `more`, if somebody has taken it.
fn append(crc: u32, more: &[u8], own: Option<u32>) -> u32 {
    match own {
        Some(own) if more.len() >= SUMMED_BYTES_MIN => crc32c::combine(crc, own, more.len()),
        _ => crc32c::crc32c_append(crc, more),
    }
}

/// The frames of a packet. Errors: the bytes behind its head are not those that were sent, or no
/// frames.
///
/// # Panics
/// If `body` is not as long as the head says.
pub fn decode(head: &Head, body: Bytes) -> Result<Vec<(PartitionId, Frame)>, PacketError> {
    let mut frames = Vec::new();
    decode_into(head, body, &mut frames)?;
    Ok(frames)
}

/// The same, behind what is in `frames`, which is of no use after an error.
///
/// # Panics
/// As [`decode`].
pub fn decode_into(head: &Head, body: Bytes, frames: &mut Vec<(PartitionId, Frame)>) -> Result<(), PacketError> {
    assert_eq!(body.len(), head.length(), "what follows the head is read to its end");
    let before = frames.len();
    match take_frames(body.clone(), frames) {
        Ok(()) => {}
        Err(_) if checksum(&body) != head.crc => return Err(PacketError::Damaged),
        Err(error) => return Err(error),
    }
    // They are looked at before it is known that they are what was sent, so that the bodies of entries are summed up once.
    let (mut crc, mut at) = (crc32c::crc32c(&[PACKET_VERSION]), 0);
    for (_, frame) in &mut frames[before..] {
        let Frame::Group(PeerFrame::Raft(message)) = frame else { continue };
        message.sum_bodies(SUMMED_BYTES_MIN, |entry| {
            let own = crc32c::crc32c(entry);
            let from = entry.as_ptr() as usize - body.as_ptr() as usize;
            crc = crc32c::combine(crc32c::crc32c_append(crc, &body[at..from]), own, entry.len());
            at = from + entry.len();
            own
        });
    }
    match crc32c::crc32c_append(crc, &body[at..]) == head.crc {
        true => Ok(()),
        false => Err(PacketError::Damaged),
    }
}

/// What bytes say, whether they are what was sent or not.
fn take_frames(mut body: Bytes, frames: &mut Vec<(PartitionId, Frame)>) -> Result<(), PacketError> {
    let before = frames.len();
    while !body.is_empty() {
        if frames.len() - before == FRAMES_MAX {
            return Err(PacketError::TooMany);
        }
        let mut cursor = Cursor::new(&body);
        let number = cursor.varint()?;
        let partition = u32::try_from(number).map_err(|_| cursor.invalid("a partition"))?;
        let taken = cursor.at();
        body.advance(taken);
        frames.push((PartitionId(partition), Frame::decode(&mut body)?));
    }
    Ok(())
}
