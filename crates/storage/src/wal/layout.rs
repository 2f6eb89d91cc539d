//! How frames lie in a file, and what is filled with zeroes ahead of them.

use super::format::{FIRST_FRAME_OFFSET, FRAME_HEADER_BYTES, FrameHeader, RECORD_HEADER_BYTES, RecordHeader};
use super::record::{Location, Record};
use super::stage::{Stage, write_zeroes};
use super::{Current, FILL_AHEAD_BYTES, FramePlan};
use crate::crc32c;
use crate::disk::DiskFile;
use std::io;

/// The bytes of one write, as they are laid out.
pub(super) struct Layout<'a, F> {
    pub(super) current: &'a mut Current<F>,
    pub(super) session: u32,
    pub(super) frame_no: u64,
    pub(super) previous_crc: u32,
    /// First byte of the write.
    pub(super) start: u32,
    /// Its end, a multiple of a page.
    pub(super) padded: u32,
}

impl<F: DiskFile> Layout<'_, F> {
    pub(super) fn fill_ahead(&mut self) -> io::Result<()> {
        let current = &mut *self.current;
        if self.padded <= current.filled {
            return Ok(());
        }
        let end = self.padded.next_multiple_of(FILL_AHEAD_BYTES).min(current.slot.bytes);
        // What this very write covers needs no zeroes.
        write_zeroes(&current.slot.file, self.padded, end)?;
        current.filled = end;
        Ok(())
    }

    /// Puts file header, frames and padding onto the stage, and the places of the bodies into
    /// `locations`.
    pub(super) fn lay(
        &mut self,
        frames: &[FramePlan],
        records: &[Record],
        locations: &mut Vec<Location>,
        stage: &mut impl Stage,
    ) -> io::Result<()> {
        let current = &*self.current;
        let mut offset = self.start;
        if !current.header_written {
            stage.put(&current.header.encode())?;
            offset = FIRST_FRAME_OFFSET;
        }
        self.previous_crc = current.previous_crc;
        for frame in frames {
            stage.zeroes((frame.offset - offset) as usize)?;
            let header = FrameHeader {
                salt: current.header.salt,
                frame_no: self.frame_no,
                bytes: frame.bytes,
                record_count: (frame.limit - frame.first) as u32,
                previous_crc: self.previous_crc,
                synced_bytes: current.synced,
                session: self.session,
                crc: 0,
            }
            .encode();
            self.previous_crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            self.frame_no += 1;
            stage.put(&header)?;
            let mut at = frame.offset + FRAME_HEADER_BYTES;
            for (number, record) in records.iter().enumerate().take(frame.limit).skip(frame.first) {
                let body_crc = record.body_crc.unwrap_or_else(|| crc32c::crc32c(&record.body));
                debug_assert_eq!(body_crc, crc32c::crc32c(&record.body), "it is that of these bytes");
                let header = RecordHeader {
                    body_crc,
                    kind: record.kind,
                    group: record.group,
                    body_bytes: record.body.len() as u32,
                    term: record.term,
                    index: record.index,
                };
                stage.put(&header.encode())?;
                stage.body(number, &record.body)?;
                let bytes = record.body.len() as u32;
                locations.push(Location { file: current.header.file, offset: at + RECORD_HEADER_BYTES, bytes });
                at += RECORD_HEADER_BYTES + bytes;
            }
            assert_eq!(at, frame.offset + frame.bytes, "a frame is as long as planned");
            offset = at;
        }
        stage.zeroes((self.padded - offset) as usize)
    }
}
