//! Walking the frames of one file, which decides what a torn tail is and what is damage.
//!
//! A frame that does not check out is **damage** if it was durable once, and a **tear** if it was
//! not. It was durable if the next file says so, if the note beside the log says so, or if any
//! later frame says that the file was synced beyond it when that frame was written. A tear ends the
//! file: nothing behind it was ever acknowledged, even if pages of it reached the disk. Damage is
//! reported with its range and the walk goes on behind it.
//!
//! Invariant: the walk only moves forward, reads a window at a time, and shows a frame's records
//! only when all of them are whole or the frame was durable.

use crate::crc32c;
use crate::disk::DiskFile;
use crate::error::{StorageError, at};

use super::format::{
    FIRST_FRAME_OFFSET, FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, FrameHeader, RECORD_HEADER_BYTES, RecordHeader,
    next_frame_offsets,
};
use super::{GroupId, RecordKind, RecordRef};

/// Bytes read at once; a larger frame makes the window grow to its own size.
const WINDOW_BYTES: u32 = 1 << 20;

/// Which record something happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordName {
    /// Whose it is.
    pub group: GroupId,
    /// What it is.
    pub kind: RecordKind,
    /// Raft term.
    pub term: u64,
    /// Raft log index.
    pub index: u64,
}

/// A file seen through a buffer that moves.
pub(crate) struct Window<'a, F> {
    file: &'a F,
    name: &'a str,
    /// What can be read, in bytes.
    limit: u32,
    buffer: Vec<u8>,
    start: u32,
}

impl<'a, F: DiskFile> Window<'a, F> {
    pub(crate) fn new(file: &'a F, name: &'a str, limit: u32) -> Window<'a, F> {
        Window { file, name, limit, buffer: Vec::new(), start: 0 }
    }

    /// The bytes from `offset` on, at most `bytes` and fewer only at the end of the file.
    pub(crate) fn get(&mut self, offset: u32, bytes: u32) -> Result<&[u8], StorageError> {
        let end = offset.saturating_add(bytes).min(self.limit);
        if offset >= end {
            return Ok(&[]);
        }
        let held = self.start..self.start + self.buffer.len() as u32;
        if offset < held.start || end > held.end {
            let wanted = (end - offset).max(WINDOW_BYTES.min(self.limit - offset));
            self.buffer.resize(wanted as usize, 0);
            self.start = offset;
            let read = self.file.read_at(&mut self.buffer, u64::from(offset)).map_err(at("read", self.name));
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            read?;
        }
        let from = (offset - self.start) as usize;
        let to = ((end - self.start) as usize).min(self.buffer.len());
        Ok(self.buffer.get(from..to).unwrap_or(&[]))
    }
}

/// What is known about a file before it is walked.
pub(crate) struct Known {
    pub(crate) salt: u64,
    /// Header crc that the first frame's chain starts from.
    pub(crate) header_crc: u32,
    pub(crate) first_frame_no: u64,
    /// The file is known to have been durable up to here, by the note beside the log. A file that
    /// is shorter was cut off.
    pub(crate) synced: u32,
    /// End of the last frame, if the next file tells; then it was all durable. It, too, may lie
    /// behind a cut.
    pub(crate) closed_end: Option<u32>,
    /// Records of frames that end before are not wanted.
    pub(crate) wanted_from: u32,
}

/// What the walk comes across, in order.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    Frame { offset: u32, header: FrameHeader },
    Record { record: RecordRef<'a>, body_offset: u32 },
    Damage { offset: u32, bytes: u32, what: &'static str, record: Option<RecordName> },
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileWalk {
    /// End of the last frame, or of damage behind it, which may lie behind the end of the file.
    pub(crate) end: u32,
    /// Header crc of the last frame, or of the file header.
    pub(crate) end_crc: u32,
    pub(crate) next_frame_no: u64,
    /// What is surely durable: the last frame's word or the note's.
    pub(crate) synced: u32,
    /// Something lay behind the end that was never durable.
    pub(crate) torn: bool,
}

/// Walks all frames of a file and shows them to `visit`.
pub(crate) fn walk_file<F: DiskFile>(
    window: &mut Window<'_, F>,
    known: &Known,
    visit: &mut dyn FnMut(Seen<'_>),
) -> Result<FileWalk, StorageError> {
    let mut walk = Walk {
        limit: known.closed_end.unwrap_or(window.limit).min(window.limit),
        end: FIRST_FRAME_OFFSET,
        chain: Chain::After(known.header_crc),
        end_crc: known.header_crc,
        next_frame_no: known.first_frame_no,
        synced: known.synced.max(known.closed_end.unwrap_or(0)),
        evidence_sought: false,
        known,
    };
    let torn = loop {
        if known.closed_end.is_some_and(|end| walk.end >= end) {
            break false;
        }
        let Some((offset, header)) = walk.next_frame(window)? else {
            match walk.find_behind_damage(window, visit)? {
                true => continue,
                false => break walk.anything_behind(window)?,
            }
        };
        if !walk.take_frame(window, offset, header, visit)? {
            break true;
        }
    };
    Ok(FileWalk {
        end: walk.end,
        end_crc: walk.end_crc,
        next_frame_no: walk.next_frame_no,
        synced: walk.synced.min(walk.end),
        torn,
    })
}

struct Walk<'a> {
    limit: u32,
    end: u32,
    chain: Chain,
    end_crc: u32,
    next_frame_no: u64,
    /// Everything before was durable once.
    synced: u32,
    evidence_sought: bool,
    known: &'a Known,
}

/// How the next frame must be tied to what came before.
#[derive(Clone, Copy)]
enum Chain {
    /// By the crc of its predecessor's header, and by the next number.
    After(u32),
    /// The predecessor is damaged.
    Lost,
}

impl Walk<'_> {
    /// A frame at one of the two places where it may start.
    fn next_frame<F: DiskFile>(&self, window: &mut Window<'_, F>) -> Result<Option<(u32, FrameHeader)>, StorageError> {
        for offset in next_frame_offsets(self.end) {
            if let Some(header) = self.frame_at(window, offset)? {
                let fits = match self.chain {
                    Chain::After(crc) => header.previous_crc == crc && header.frame_no == self.next_frame_no,
                    // Remains of a frame that an earlier recovery cut off know of fewer synced
                    // bytes than this.
                    Chain::Lost => offset < self.synced || header.synced_bytes >= self.synced,
                };
                if fits {
                    return Ok(Some((offset, header)));
                }
            }
        }
        Ok(None)
    }

    fn frame_at<F: DiskFile>(
        &self,
        window: &mut Window<'_, F>,
        offset: u32,
    ) -> Result<Option<FrameHeader>, StorageError> {
        let header = FrameHeader::decode(window.get(offset, FRAME_HEADER_BYTES)?, self.known.salt);
        Ok(header.filter(|header| {
            let end = u64::from(offset) + u64::from(header.bytes);
            // A sync covers whole frames: nobody wrote one across the end of what was synced.
            let straddles = offset < self.synced && end > u64::from(self.synced);
            (self.next_frame_no..u64::MAX).contains(&header.frame_no)
                && header.is_credible_at(offset)
                && end <= u64::from(self.limit)
                && !straddles
        }))
    }

    /// Shows a frame and steps behind it; `false` if it is torn.
    fn take_frame<F: DiskFile>(
        &mut self,
        window: &mut Window<'_, F>,
        offset: u32,
        header: FrameHeader,
        visit: &mut dyn FnMut(Seen<'_>),
    ) -> Result<bool, StorageError> {
        let end = offset + header.bytes;
        // Not `>`: the body of a last record may be empty and its place the frame's end.
        if end >= self.known.wanted_from {
            let whole = is_whole(window.get(offset, header.bytes)?, &header);
            // Durable as a whole, or not at all. Whoever believed a witness of one half would clean
            // the witness away, as it may lie in the page in which the frame ends.
            if !whole && end > self.synced {
                self.seek_evidence(window)?;
                if end > self.synced {
                    return Ok(false);
                }
            }
            visit(Seen::Frame { offset, header });
            show_records(window.get(offset, header.bytes)?, offset, &header, visit);
        }
        self.synced = self.synced.max(header.synced_bytes.min(offset));
        self.end = end;
        self.end_crc = header.crc;
        self.chain = Chain::After(header.crc);
        self.next_frame_no = header.frame_no + 1;
        Ok(true)
    }

    /// At a place without a frame: `false` if the file simply ends here, else steps over the damage
    /// and reports it.
    fn find_behind_damage<F: DiskFile>(
        &mut self,
        window: &mut Window<'_, F>,
        visit: &mut dyn FnMut(Seen<'_>),
    ) -> Result<bool, StorageError> {
        self.seek_evidence(window)?;
        if self.synced <= self.end {
            return Ok(false);
        }
        let start = self.end;
        let mut offset = start.next_multiple_of(FRAME_ALIGN_BYTES);
        // What lies between here and the synced end was all written by those who also wrote the
        // evidence: any whole frame is one of them.
        let there = self.synced.min(self.limit);
        while offset < there && self.frame_at(window, offset)?.is_none() {
            offset += FRAME_ALIGN_BYTES;
        }
        // A file that was cut off is damaged to where it once went.
        self.end = if offset < there { offset } else { self.synced };
        if self.end > self.known.wanted_from {
            visit(Seen::Damage { offset: start, bytes: self.end - start, what: "frame", record: None });
        }
        self.chain = Chain::Lost;
        // Should nothing follow, whatever is written next must not look like the successor of the
        // last good frame: the damage between them would never be found again.
        self.end_crc = !self.end_crc;
        if self.end < self.synced {
            // Take the found frame even if it is not at a place that follows from the one before.
            let header = self.frame_at(window, offset)?.expect("it was just found");
            return self.take_frame(window, offset, header, visit);
        }
        Ok(true)
    }

    /// Looks once through the rest of the file for frames that tell how far it was synced when they
    /// were written.
    fn seek_evidence<F: DiskFile>(&mut self, window: &mut Window<'_, F>) -> Result<(), StorageError> {
        if std::mem::replace(&mut self.evidence_sought, true) {
            return Ok(());
        }
        let mut offset = self.end.next_multiple_of(FRAME_ALIGN_BYTES);
        while offset < self.limit {
            let bytes = window.get(offset, WINDOW_BYTES)?;
            if bytes.len() < FRAME_HEADER_BYTES as usize {
                break;
            }
            // A header that spans two windows is seen whole in the second.
            let steps = (bytes.len() - FRAME_HEADER_BYTES as usize) / FRAME_ALIGN_BYTES as usize + 1;
            for step in 0..steps {
                let here = step * FRAME_ALIGN_BYTES as usize;
                if let Some(header) = FrameHeader::decode(&bytes[here..], self.known.salt)
                    && header.frame_no >= self.next_frame_no
                    && header.is_credible_at(offset + here as u32)
                {
                    self.synced = self.synced.max(header.synced_bytes.min(self.limit));
                }
            }
            offset += steps as u32 * FRAME_ALIGN_BYTES;
        }
        Ok(())
    }

    /// Whether bytes lie where the next frame would be.
    fn anything_behind<F: DiskFile>(&self, window: &mut Window<'_, F>) -> Result<bool, StorageError> {
        for offset in next_frame_offsets(self.end) {
            // A file that is used again holds frames of its former life; only this life's make a
            // tear.
            let bytes = window.get(offset, FRAME_HEADER_BYTES)?;
            if bytes.len() >= 16 && bytes[8..16] == self.known.salt.to_le_bytes() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// One record of a frame's bytes, or what is wrong with it.
enum Parsed<'a> {
    Whole { header: RecordHeader, body: &'a [u8], body_at: u32 },
    BadBody { header: RecordHeader, at: u32 },
    BadRest { at: u32 },
}

/// Takes a frame apart. Ends at the first record whose length cannot be believed.
fn parse_records<'a>(frame: &'a [u8], header: &FrameHeader, mut each: impl FnMut(Parsed<'a>)) {
    let mut at = FRAME_HEADER_BYTES;
    for _ in 0..header.record_count {
        let rest = frame.get(at as usize..).unwrap_or(&[]);
        let record = rest.split_first_chunk::<{ RECORD_HEADER_BYTES as usize }>();
        let Some((Ok(record), body)) = record.map(|(head, body)| (RecordHeader::decode(head), body)) else {
            return each(Parsed::BadRest { at });
        };
        let Some(body) = body.get(..record.body_bytes as usize) else { return each(Parsed::BadRest { at }) };
        if crc32c::crc32c(body) == record.body_crc {
            each(Parsed::Whole { header: record, body, body_at: at + RECORD_HEADER_BYTES });
        } else {
            each(Parsed::BadBody { header: record, at });
        }
        at += RECORD_HEADER_BYTES + record.body_bytes;
    }
    if at != header.bytes {
        each(Parsed::BadRest { at });
    }
}

fn is_whole(frame: &[u8], header: &FrameHeader) -> bool {
    let mut whole = true;
    parse_records(frame, header, |parsed| whole &= matches!(parsed, Parsed::Whole { .. }));
    whole
}

fn show_records(frame: &[u8], offset: u32, header: &FrameHeader, visit: &mut dyn FnMut(Seen<'_>)) {
    parse_records(frame, header, |parsed| match parsed {
        Parsed::Whole { header, body, body_at } => {
            visit(Seen::Record { record: header.of(body), body_offset: offset + body_at });
        }
        Parsed::BadBody { header, at } => {
            let RecordHeader { group, kind, term, index, .. } = header;
            let bytes = RECORD_HEADER_BYTES + header.body_bytes;
            let record = Some(RecordName { group, kind, term, index });
            visit(Seen::Damage { offset: offset + at, bytes, what: "record body", record });
        }
        Parsed::BadRest { at } => {
            let bytes = header.bytes.saturating_sub(at);
            visit(Seen::Damage { offset: offset + at, bytes, what: "record header", record: None });
        }
    });
}
