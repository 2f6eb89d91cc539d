//! Where a queue's leader stands in the bytes of its next messages: one stretch in hand, walked
//! forward.
//!
//! Invariant: what is in hand is at most one batch of the log or one read of an extent, and what
//! was read ahead at most two reads, so an active queue holds a bounded number of bytes whatever
//! its backlog.

use crate::entry::Batch;
use crate::message::MessageView;
use bytes::Bytes;
use std::collections::VecDeque;

/// Messages in hand.
#[derive(Debug)]
pub enum Reader {
    /// A batch as the log has it; `at` is the offset of message `next`.
    Batch {
        /// Number of its first message.
        first: u64,
        /// One past the number of its last message.
        past: u64,
        /// The message at `at`.
        next: u64,
        /// Offset of that message.
        at: usize,
        /// The batch.
        bytes: Bytes,
        /// Where it lies, if in the WAL: file and offset, for giving cached entries back.
        place: Option<(u32, u32)>,
        /// Messages taken from it.
        taken: u64,
    },
    /// Messages of one read of an extent.
    Extent {
        /// With their numbers.
        messages: VecDeque<(u64, Bytes)>,
        /// What the read brought: the first messages may keep the memory of all until the last one
        /// is gone.
        bytes: usize,
    },
}

impl Reader {
    /// Reads a batch whose messages have numbers from `first` on; `None` if the bytes are no such
    /// batch.
    pub fn batch(first: u64, count: u32, bytes: Bytes, place: Option<(u32, u32)>) -> Option<Self> {
        let batch = Batch::parse(&bytes, 0).ok().filter(|b| b.messages() == count)?;
        let at = batch.first_message_at();
        Some(Reader::Batch { first, past: first + u64::from(count), next: first, at, bytes, place, taken: 0 })
    }

    /// Messages of one read of an extent.
    pub fn extent(messages: VecDeque<(u64, Bytes)>) -> Self {
        let bytes = messages.iter().map(|(_, message)| message.len()).sum();
        Reader::Extent { messages, bytes }
    }

    /// The message with this number, if it is in hand.
    pub fn take(&mut self, seq: u64) -> Option<Bytes> {
        match self {
            Reader::Batch { first, past, next, at, bytes, taken, .. } => {
                if seq < *first || seq >= *past {
                    return None;
                }
                if seq < *next {
                    // A returned message: walk the batch from its start again.
                    *next = *first;
                    *at = Batch::parse(bytes, 0).expect("it was parsed when it came").first_message_at();
                }
                loop {
                    let view = MessageView::parse(&bytes[*at..]).expect("a checked batch holds whole messages");
                    let (from, to) = (*at, *at + view.len());
                    *at = to;
                    *next += 1;
                    if *next > seq {
                        *taken += 1;
                        return Some(bytes.slice(from..to));
                    }
                }
            }
            Reader::Extent { messages, .. } => {
                while messages.front().is_some_and(|(s, _)| *s < seq) {
                    messages.pop_front();
                }
                match messages.front() {
                    Some((s, _)) if *s == seq => messages.pop_front().map(|(_, m)| m),
                    _ => None,
                }
            }
        }
    }

    /// Bytes that it keeps alive beside the tail.
    pub fn held_bytes(&self) -> usize {
        match self {
            Reader::Batch { place: Some(_), .. } => 0,
            Reader::Batch { bytes, .. } => bytes.len(),
            Reader::Extent { bytes, .. } => *bytes,
        }
    }

    /// Whether it has the message with this number.
    pub fn has(&self, seq: u64) -> bool {
        match self {
            Reader::Batch { first, past, .. } => (*first..*past).contains(&seq),
            Reader::Extent { messages, .. } => messages.binary_search_by_key(&seq, |(s, _)| *s).is_ok(),
        }
    }

    /// One past the number of its last message.
    pub fn past(&self) -> u64 {
        match self {
            Reader::Batch { past, .. } => *past,
            Reader::Extent { messages, .. } => messages.back().map_or(0, |(last, _)| last + 1),
        }
    }

    /// Whether it has nothing more to give to someone who goes forward.
    pub fn is_used_up(&self) -> bool {
        match self {
            Reader::Batch { next, past, .. } => next == past,
            Reader::Extent { messages, .. } => messages.is_empty(),
        }
    }
}
