//! A stored message: the bytes that go into a log entry, an extent and a transient queue alike, and
//! the view of them.
//!
//! ```text
//! 0        4            8              12   13   14     16
//! body_len properties   publish_delta  ex   rk   flags  exchange, routing key, properties, body, stamp
//! u32 LE   u32 LE       u32 LE         u8   u8   u16    verbatim                                 u64 LE
//! ```
//!
//! Invariant: what is behind the header has exactly the lengths it says. `publish_delta` is the
//! distance of the publish number from the first of its batch; outside a log entry it means
//! nothing. `flags`: 0 for a plain message, which has no stamp; 1: the stamp is when it was
//! published; 2: the stamp is when it is due. Times are the leader's, in milliseconds since the
//! epoch.

use crate::command::{Message, Publish};
use amqp::{Bodies, Payload};
use bytes::Bytes;

/// Bytes before the exchange name.
pub const MESSAGE_HEADER_BYTES: usize = 16;

/// Largest stored message: RabbitMQ's 16 MiB body, properties as long as the longest frame, and
/// beside them a page for names and for what the broker writes into a message when it comes.
pub const MESSAGE_BYTES_MAX: usize = (16 << 20) + (1 << 20) + (4 << 10);

/// Bytes of a stamp.
const STAMP_BYTES: usize = 8;
const FLAG_SINCE: u8 = 1;
const FLAG_DUE: u8 = 2;

/// The time in a stored message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamp {
    /// A plain message: nothing asks when it came.
    #[default]
    None,
    /// When it was published: it, or a queue that it went to, has a time limit.
    Since(u64),
    /// When it is due: until then it is scheduled.
    Due(u64),
}

impl Stamp {
    fn flag_and_time(self) -> (u8, u64) {
        match self {
            Stamp::None => (0, 0),
            Stamp::Since(ms) => (FLAG_SINCE, ms),
            Stamp::Due(ms) => (FLAG_DUE, ms),
        }
    }
}

/// Bytes that `message` takes when stored without a stamp.
pub fn stored_bytes(message: &Message) -> usize {
    MESSAGE_HEADER_BYTES
        + message.exchange.len()
        + message.routing_key.len()
        + message.properties.len()
        + message.body.len()
}

/// Bytes that all messages of `publish` take when stored without a stamp.
pub fn stored_bytes_of_all(publish: &Publish) -> usize {
    let Publish { message, more, .. } = publish;
    let (count, bytes) = more.as_ref().map_or((0, 0), |more| (more.len(), more.bytes()));
    stored_bytes(message) + count * (stored_bytes(message) - message.body.len()) + bytes
}

/// Appends `message` as stored.
pub fn store(message: &Message, publish_delta: u32, stamp: Stamp, out: &mut Vec<u8>) {
    assert!(message.exchange.len() <= 255 && message.routing_key.len() <= 255, "short strings are at most 255 bytes");
    assert!(stored_bytes(message) <= MESSAGE_BYTES_MAX, "a message is within its limit before it gets here");
    let mut header = [0u8; MESSAGE_HEADER_BYTES];
    header[0..4].copy_from_slice(&(message.body.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&(message.properties.len() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&publish_delta.to_le_bytes());
    header[12] = message.exchange.len() as u8;
    header[13] = message.routing_key.len() as u8;
    let (flag, time_ms) = stamp.flag_and_time();
    header[14] = flag;
    out.extend_from_slice(&header);
    out.extend_from_slice(&message.exchange);
    out.extend_from_slice(&message.routing_key);
    out.extend_from_slice(&message.properties);
    out.extend_from_slice(&message.body);
    if flag != 0 {
        out.extend_from_slice(&time_ms.to_le_bytes());
    }
}

/// Appends messages that differ from the one that was stored at `first` of `out`, without a stamp, in their bodies alone.
/// Each has the number behind that of the one before it where `is_numbered`; the others have the first's.
pub(crate) fn store_more(first: usize, bodies: &Bodies, is_numbered: bool, out: &mut Vec<u8>) {
    let view = MessageView::parse(&out[first..]).expect("a message was stored there");
    assert!(view.stamp() == Stamp::None, "a message with a time is stored by itself");
    let (mut delta, head_bytes) = (view.publish_delta(), view.body_at());
    out.reserve(bodies.len() * head_bytes + bodies.bytes());
    for body in bodies.iter() {
        assert!(head_bytes + body.len() <= MESSAGE_BYTES_MAX, "a message is within its limit before it gets here");
        delta += u32::from(is_numbered);
        let at = out.len();
        out.extend_from_within(first..first + head_bytes);
        out[at..at + 4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        out[at + 8..at + 12].copy_from_slice(&delta.to_le_bytes());
        out.extend_from_slice(body);
    }
}

/// A stored message, seen in place.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    bytes: &'a [u8],
}

impl<'a> MessageView<'a> {
    /// The message at the start of `bytes`; `None` if they are too few for it.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < MESSAGE_HEADER_BYTES {
            return None;
        }
        let view = MessageView { bytes };
        let len = view.len();
        (len <= bytes.len()).then(|| MessageView { bytes: &bytes[..len] })
    }

    /// Bytes of the whole message, header included.
    #[allow(clippy::len_without_is_empty)] // A message has a header at least.
    pub fn len(&self) -> usize {
        MESSAGE_HEADER_BYTES
            + usize::from(self.bytes[12])
            + usize::from(self.bytes[13])
            + self.word(4) as usize
            + self.word(0) as usize
            + if self.bytes[14] == 0 { 0 } else { STAMP_BYTES }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }

    /// Distance of its publish number from the first of its batch.
    pub fn publish_delta(&self) -> u32 {
        self.word(8)
    }

    /// The exchange that it was published to.
    pub fn exchange(&self) -> &'a [u8] {
        &self.bytes[MESSAGE_HEADER_BYTES..][..usize::from(self.bytes[12])]
    }

    /// Its routing key.
    pub fn routing_key(&self) -> &'a [u8] {
        &self.bytes[MESSAGE_HEADER_BYTES + usize::from(self.bytes[12])..][..usize::from(self.bytes[13])]
    }

    /// Its content header from the property flags on.
    pub fn properties(&self) -> &'a [u8] {
        &self.bytes[self.properties_at()..self.body_at()]
    }

    /// Its body.
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[self.body_at()..self.body_end()]
    }

    /// Bytes of its body.
    pub fn body_bytes(&self) -> u32 {
        self.word(0)
    }

    /// The time in it.
    pub fn stamp(&self) -> Stamp {
        let time = || u64::from_le_bytes(self.bytes[self.body_end()..].try_into().expect("a stamp is eight bytes"));
        match self.bytes[14] {
            0 => Stamp::None,
            FLAG_SINCE => Stamp::Since(time()),
            _ => Stamp::Due(time()),
        }
    }

    /// Its body where it lies in `message`, which is what this view was parsed from.
    #[inline]
    pub fn body_in<'b>(&self, message: &'b Bytes) -> Payload<'b> {
        Payload::new(message, self.body_at(), self.body_end())
    }

    /// Its body as a slice of `message`, which is what this view was parsed from.
    pub fn body_of(&self, message: &Bytes) -> Bytes {
        message.slice(self.body_at()..self.body_end())
    }

    fn properties_at(&self) -> usize {
        MESSAGE_HEADER_BYTES + usize::from(self.bytes[12]) + usize::from(self.bytes[13])
    }

    fn body_at(&self) -> usize {
        self.properties_at() + self.word(4) as usize
    }

    fn body_end(&self) -> usize {
        self.body_at() + self.word(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was_with_and_without_a_time() {
        let slice = |text: &'static str| Bytes::from_static(text.as_bytes());
        let message = Message {
            exchange: slice("amq.topic"),
            routing_key: slice("a.b"),
            properties: slice("\0\0"),
            body: slice("carrot"),
        };
        for stamp in [Stamp::None, Stamp::Since(7), Stamp::Due(u64::MAX)] {
            let mut out = Vec::new();
            store(&message, 3, stamp, &mut out);
            out.extend_from_slice(b"the next one");
            let whole = Bytes::from(out);
            let view = MessageView::parse(&whole).expect("it is whole");
            assert_eq!((view.exchange(), view.routing_key()), (&b"amq.topic"[..], &b"a.b"[..]));
            assert_eq!((view.properties(), view.body(), view.body_bytes()), (&b"\0\0"[..], &b"carrot"[..], 6));
            assert_eq!((view.stamp(), view.publish_delta()), (stamp, 3));
            assert_eq!(&whole[view.len()..], b"the next one");
            assert_eq!(view.body_of(&whole), "carrot");
        }
    }
}
