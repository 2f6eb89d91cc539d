//! One non-blocking socket: bytes to write, bytes that are half a frame.
//!
//! Invariant: what is appended to `output` leaves in that order. Frames are looked at only when
//! they are whole.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use amqp::wire::frame::{FRAME_HEADER_BYTES, FrameHeader};
use bytes::Bytes;

use super::Ready;
use super::tally::Sample;
use crate::client::{Limits, Stream};
use crate::clock::SECOND;

/// A producer adds nothing while so much is unwritten: the socket's own buffer and this are all
/// that a stalled broker costs. It stays in the processor's nearer cache between being made and being
/// handed to the kernel.
pub(super) const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// What one read may bring; more where a frame is longer. As above.
const READ_BYTES: usize = 64 * 1024;

/// The largest frame that is taken, whatever was negotiated.
const FRAME_BYTES_MAX: usize = 20 * 1024 * 1024;

/// A socket that takes nothing for so long is held back by the broker and not just full.
const UNREAD_NS: u64 = SECOND / 2;

/// The reason of a broker that does not say connection.blocked and stops reading.
const UNREAD: &str = "it stopped reading from the connection (TCP back-pressure)";

/// A socket and its buffers.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) limits: Limits,
    pub(super) output: Vec<u8>,
    written: usize,
    /// Bytes ever written; with `handing` it says when a message left.
    written_total: u64,
    /// The position after each message, and when it was due; only when that is measured.
    handing: Option<VecDeque<(u64, u64)>>,
    /// Half a frame.
    tail: Vec<u8>,
    pub(super) waits_for_room: bool,
    pub(super) last_write_ns: u64,
    pub(super) blocked_since: Option<u64>,
    /// What connection.blocked said.
    pub(super) blocked_why: Option<Bytes>,
    /// Since when the broker has read nothing although bytes wait, and how many were written by
    /// then.
    pub(super) unread_since: Option<(u64, u64)>,
}

impl Link {
    /// A socket that is ready for the load.
    pub(super) fn new(ready: Ready, measures_handing: bool, now: u64) -> std::io::Result<Link> {
        ready.stream.socket().set_nonblocking(true)?;
        let mut ready = ready;
        // What the set-up's last read brought under TLS and did not give out.
        let mut opened = vec![0; ready.stream.opened_bytes_max()];
        while let count @ 1.. = ready.stream.opened(&mut opened)? {
            ready.leftover.extend_from_slice(&opened[..count]);
        }
        Ok(Link {
            stream: ready.stream,
            limits: ready.limits,
            output: Vec::with_capacity(16 * 1024),
            written: 0,
            written_total: 0,
            handing: measures_handing.then(VecDeque::new),
            tail: ready.leftover,
            waits_for_room: false,
            last_write_ns: now,
            blocked_since: ready.blocked.is_some().then_some(now),
            blocked_why: ready.blocked,
            unread_since: None,
        })
    }

    /// Why the broker holds this connection back, in its own words or, when it just stops reading,
    /// in ours.
    pub(super) fn held_back_why(&self, now: u64) -> Option<String> {
        if let Some(why) = self.blocked_why.as_ref().filter(|_| self.blocked_since.is_some()) {
            return Some(crate::record::reason_text(why));
        }
        self.unread_since.filter(|(since, _)| now.saturating_sub(*since) >= UNREAD_NS).map(|_| UNREAD.to_owned())
    }

    /// Looks whether the broker has read anything since the last look.
    pub(super) fn look_whether_read(&mut self, now: u64) {
        let is_same = self.unread_since.is_some_and(|(_, written)| written == self.written_total);
        match self.waits_for_room {
            false => self.unread_since = None,
            true if is_same => {}
            true => self.unread_since = Some((now, self.written_total)),
        }
    }

    /// Bytes to write.
    pub(super) fn pending(&self) -> usize {
        self.output.len() - self.written
    }

    /// Whether there is anything to do for [`Link::flush`].
    pub(super) fn has_unwritten(&self) -> bool {
        self.pending() > 0 || self.stream.owes()
    }

    /// A message due at `due_ns` was appended.
    #[inline]
    pub(super) fn message_appended(&mut self, due_ns: u64) {
        if let Some(handing) = &mut self.handing {
            handing.push_back((self.written_total + (self.output.len() - self.written) as u64, due_ns));
        }
    }

    /// Writes what the socket takes. `now` is asked only when handing is measured.
    pub(super) fn flush(&mut self, sample: &mut Sample, now: impl Fn() -> u64) -> std::io::Result<()> {
        while self.pending() > 0 {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    self.written_total += count as u64;
                    sample.counts.bytes_out += count as u64;
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        while self.stream.owes() {
            match self.stream.flush() {
                Ok(()) => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        let owes = self.stream.owes();
        if let Some(handing) = self.handing.as_mut().filter(|_| !owes) {
            let now = now();
            while let Some(&(_, due)) = handing.front().filter(|(end, _)| *end <= self.written_total) {
                handing.pop_front();
                if let Some(histogram) = &mut sample.handed {
                    histogram.saturating_record(now.saturating_sub(due).max(1));
                }
            }
        }
        self.waits_for_room = self.pending() > 0 || owes;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        } else if self.written >= OUTPUT_BYTES_MAX {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// Reads once into `buffer`, behind what was left of the last read. Returns how many bytes of
    /// `buffer` count, 0 when there is nothing to read now, and `None` at the end of the stream.
    pub(super) fn fill(&mut self, buffer: &mut Vec<u8>, sample: &mut Sample) -> std::io::Result<Option<usize>> {
        let kept = self.tail.len();
        let wanted = FrameHeader::read(&self.tail).map_or(0, |header| header.frame_bytes());
        if wanted > FRAME_BYTES_MAX {
            return Err(std::io::Error::other(format!("the broker sent a frame of {wanted} bytes")));
        }
        let room = READ_BYTES.max(wanted + 64 * 1024).max(kept + 64 * 1024 + self.stream.opened_bytes_max());
        if buffer.len() < room {
            buffer.resize(room, 0);
        }
        buffer[..kept].copy_from_slice(&self.tail);
        loop {
            return match self.stream.read(&mut buffer[kept..]) {
                Ok(0) => Ok(None),
                Ok(count) => {
                    let mut end = kept + count;
                    while let more @ 1.. = self.stream.opened(&mut buffer[end..])? {
                        end += more;
                    }
                    sample.counts.bytes_in += (end - kept) as u64;
                    self.tail.clear();
                    Ok(Some(end))
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                Err(why) => Err(why),
            };
        }
    }

    /// Keeps half a frame for the next read.
    pub(super) fn keep(&mut self, rest: &[u8]) {
        self.tail.clear();
        self.tail.extend_from_slice(rest);
    }

    /// What the set-up read too much; taken once.
    pub(super) fn take_leftover(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.tail)
    }
}

/// One whole frame at the start of `input`: its kind, its channel, its payload, and the bytes it
/// takes.
#[inline]
pub(super) fn split_frame(input: &[u8]) -> Option<(u8, u16, &[u8], usize)> {
    let header = FrameHeader::read(input)?;
    let end = header.frame_bytes();
    let frame = input.get(..end)?;
    Some((header.kind, header.channel, &frame[FRAME_HEADER_BYTES..end - 1], end))
}
