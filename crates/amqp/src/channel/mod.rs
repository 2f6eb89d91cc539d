//! What one channel remembers: whose turn it is, the content under way, outstanding deliveries,
//! outstanding confirms.
//!
//! Invariant: a channel does one thing after the other. While a request waits for the broker, or a
//! publish waits for the broker's alarm to end, the frames behind it wait in `pending`, in order. A
//! closing channel keeps nothing but its number.

pub mod assembly;
pub mod confirms;
pub(crate) mod tx;
pub mod unacked;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use bytes::Bytes;

use crate::reply_code::MethodId;
use crate::wire::frame::Payload;
use assembly::Assembly;
use confirms::Confirms;
use tx::Tx;
use unacked::Unacked;

pub use unacked::{Delivered, Deliveries};

/// A channel of one connection: its number, and which opening of that number.
///
/// A client may open a number again as soon as it is closed. What the broker says late about the
/// old channel carries the old opening, finds nobody and is dropped, instead of reaching the new
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId {
    number: u16,
    opening: u32,
}

impl ChannelId {
    /// The channel of this number that was opened as the `opening`th: for the machine, and for who
    /// plays its part in a test.
    pub fn new(number: u16, opening: u32) -> Self {
        Self { number, opening }
    }

    /// The number on the wire, from 1.
    pub fn number(self) -> u16 {
        self.number
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

/// The name of a consumer on its channel, at most 255 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerTag(Bytes);

impl ConsumerTag {
    /// A tag of these bytes; more than 255 is the caller's bug.
    pub fn new(tag: impl Into<Bytes>) -> Self {
        let tag = tag.into();
        assert!(tag.len() <= 255, "a consumer tag is a short string");
        Self(tag)
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the client leaves the choice to the server.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Display for ConsumerTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

/// What the broker was asked and has not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Open,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeBind,
    ExchangeUnbind,
    QueueDeclare,
    QueueBind,
    QueueUnbind,
    QueuePurge,
    QueueDelete,
    Qos,
    Consume,
    Cancel(ConsumerTag),
    Get,
    Recover,
    RecoverAsync,
    TxSelect,
    TxCommit,
    TxRollback,
}

/// The question, the method it came with, and whether the client wants to hear the answer.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) question: Question,
    pub(crate) method: MethodId,
    pub(crate) no_wait: bool,
}

#[derive(Debug)]
pub(crate) enum ChannelPhase {
    /// Frames are handled as they come.
    Open,
    /// The broker owes an answer.
    Waiting(Waiting),
    /// The next frame is a publish, and the broker takes none for now; or a get, and there is no room for what it
    /// fetches.
    Held,
    /// `channel.close` was sent; everything is ignored until `channel.close-ok`.
    Closing,
}

/// A frame that waits for its channel's turn.
#[derive(Debug)]
pub(crate) struct PendingFrame {
    pub(crate) kind: u8,
    pub(crate) payload: Bytes,
}

/// A smaller frame is copied when it has to wait, so that it does not keep a read buffer alive that
/// is many times as large.
const PENDING_COPY_BYTES_MAX: usize = 4096;

impl PendingFrame {
    pub(crate) fn new(kind: u8, payload: Payload<'_>) -> Self {
        let small = payload.len() <= PENDING_COPY_BYTES_MAX;
        let payload = if small { Bytes::copy_from_slice(&payload) } else { payload.to_bytes() };
        Self { kind, payload }
    }
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) phase: ChannelPhase,
    pub(crate) assembly: Assembly,
    pub(crate) unacked: Unacked,
    /// Present in confirm mode.
    pub(crate) confirms: Option<Box<Confirms>>,
    /// Present on a transactional channel, which is never in confirm mode.
    pub(crate) tx: Option<Box<Tx>>,
    /// Whether the channel is in the connection's list of those with unsent confirms.
    pub(crate) confirms_listed: bool,
    /// In order, so that a client with tens of thousands of consumers costs others nothing.
    pub(crate) consumers: BTreeSet<ConsumerTag>,
    pub(crate) pending: VecDeque<PendingFrame>,
    /// The queue that an empty name stands for: the last one declared here.
    pub(crate) last_queue: Bytes,
}

impl Channel {
    pub(crate) fn new(id: ChannelId) -> Self {
        Self {
            id,
            phase: ChannelPhase::Open,
            assembly: Assembly::Idle,
            unacked: Unacked::default(),
            confirms: None,
            tx: None,
            confirms_listed: false,
            consumers: BTreeSet::new(),
            pending: VecDeque::new(),
            last_queue: Bytes::new(),
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.phase, ChannelPhase::Closing)
    }

    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.unacked.held_bytes()
            + self.confirms.as_ref().map_or(0, |c| size_of::<Confirms>() + c.held_bytes())
            + self.tx.as_ref().map_or(0, |tx| tx.held_bytes())
            + self.consumers.len() * size_of::<ConsumerTag>()
            + self.pending.capacity() * size_of::<PendingFrame>()
            + self.assembly.held_bytes()
    }

    pub(crate) fn trim(&mut self) {
        self.unacked.trim();
        self.pending.shrink_to_fit();
        if let Some(confirms) = &mut self.confirms {
            confirms.trim();
        }
    }
}

/// The channels of a connection, by number.
///
/// Clients number channels from 1 without gaps, so the place of number `n` is tried at `n - 1`
/// before it is searched.
#[derive(Debug, Default)]
#[allow(clippy::vec_box, reason = "opening a channel in the middle moves pointers, not channels of 300 bytes")]
pub(crate) struct Channels {
    sorted: Vec<Box<Channel>>,
}

impl Channels {
    #[inline]
    fn place(&self, number: u16) -> Result<usize, usize> {
        let guess = usize::from(number).wrapping_sub(1);
        match self.sorted.get(guess) {
            Some(channel) if channel.id.number == number => Ok(guess),
            _ => self.sorted.binary_search_by_key(&number, |channel| channel.id.number),
        }
    }

    #[inline]
    pub(crate) fn by_number(&mut self, number: u16) -> Option<&mut Channel> {
        match self.place(number) {
            Ok(at) => Some(&mut self.sorted[at]),
            Err(_) => None,
        }
    }

    /// As [`open`](Self::open), to look at.
    pub(crate) fn look(&self, id: ChannelId) -> Option<&Channel> {
        let at = self.place(id.number).ok()?;
        Some(&*self.sorted[at]).filter(|channel| channel.id == id && !channel.is_closing())
    }

    /// The channel, unless it is closing, closed, or its number was opened again.
    #[inline]
    pub(crate) fn open(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.by_number(id.number).filter(|channel| channel.id == id && !channel.is_closing())
    }

    pub(crate) fn insert(&mut self, channel: Channel) {
        let at = self.place(channel.id.number).expect_err("a number is opened once at a time");
        self.sorted.insert(at, Box::new(channel));
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<Channel> {
        let at = self.place(number).ok()?;
        let channel = *self.sorted.remove(at);
        if self.sorted.is_empty() {
            self.sorted = Vec::new();
        }
        Some(channel)
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Takes the last channel out, by its number.
    pub(crate) fn pop(&mut self) -> Option<Channel> {
        self.sorted.pop().map(|channel| *channel)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.sorted.iter().map(|channel| &**channel)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.sorted.iter_mut().map(|channel| &mut **channel)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_found_whatever_the_gaps() {
        let mut channels = Channels::default();
        for number in [1, 2, 9, 3, 2047, 700] {
            channels.insert(Channel::new(ChannelId::new(number, 1)));
        }
        for number in [1, 2, 3, 9, 700, 2047] {
            assert_eq!(channels.by_number(number).unwrap().id.number(), number);
        }
        assert!(channels.by_number(4).is_none() && channels.by_number(0).is_none());
        channels.remove(2).unwrap();
        assert!(channels.by_number(2).is_none());
        assert_eq!(channels.iter().map(|c| c.id.number()).collect::<Vec<_>>(), [1, 3, 9, 700, 2047]);
    }

    #[test]
    fn an_old_opening_does_not_find_the_new_channel() {
        let mut channels = Channels::default();
        channels.insert(Channel::new(ChannelId::new(1, 1)));
        channels.remove(1).unwrap();
        channels.insert(Channel::new(ChannelId::new(1, 2)));
        assert!(channels.open(ChannelId::new(1, 1)).is_none());
        assert!(channels.open(ChannelId::new(1, 2)).is_some());
    }
}
