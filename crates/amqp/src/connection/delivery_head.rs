//! What stands on the wire ahead of a delivery's body, kept for the next delivery: mostly only the tag and the size of
//! the body are others.
//!
//! ```text
//!   method frame: header, basic.deliver, consumer tag | delivery tag, redelivered | exchange, routing key, end
//!   content header frame: header, class, weight | size of the body | properties, end
//!   body frame: header with the size of the body
//! ```
//!
//! Invariant: what is kept is a whole head, whose tag and sizes are anything, or nothing.

use super::answer::{Delivery, MessageParts};
use crate::wire::content::{CLASS_BASIC, CONTENT_HEADER_BYTES};
use crate::wire::frame::{FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEADER_BYTES, FRAME_METHOD};

/// Longer heads are written anew each time: to copy them would cost as much.
const KEPT_BYTES_MAX: usize = 512;

/// Class and method of `basic.deliver`.
const DELIVER: [u8; 4] = [0, 60, 0, 60];

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DeliveryHead {
    bytes: Vec<u8>,
    channel: u16,
    /// Where these are in it.
    consumer_tag: usize,
    tag: usize,
    exchange: usize,
    routing_key: usize,
    content_header: usize,
    properties: usize,
}

impl DeliveryHead {
    /// The head of this delivery but for its tag and its size, which [`put`](Self::put) writes: of the last one, if it fits,
    /// or made anew.
    #[inline]
    pub(crate) fn of(&mut self, channel: u16, delivery: &Delivery<'_>) -> &Self {
        if !self.fits(channel, delivery) {
            self.make(channel, delivery);
        }
        self
    }

    /// Bytes of it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn fits(&self, channel: u16, Delivery { consumer_tag, message, .. }: &Delivery<'_>) -> bool {
        let MessageParts { exchange, routing_key, properties, .. } = message;
        // In front of each but the properties stands its length, behind all but the exchange an end or a tag.
        let part = |from: usize, until: usize| self.bytes.get(from..until).unwrap_or_default();
        channel == self.channel
            && part(self.consumer_tag, self.tag) == consumer_tag.as_bytes()
            && part(self.exchange, self.routing_key.saturating_sub(1)) == *exchange
            && part(self.routing_key, self.content_header.saturating_sub(1)) == *routing_key
            && part(self.properties, self.len().saturating_sub(1 + FRAME_HEADER_BYTES)) == *properties
            && !self.bytes.is_empty()
    }

    #[cold]
    fn make(&mut self, channel: u16, Delivery { consumer_tag, message, .. }: &Delivery<'_>) {
        let MessageParts { exchange, routing_key, properties, .. } = message;
        let [n1, n2] = channel.to_be_bytes();
        let consumer_tag = consumer_tag.as_bytes();
        let bytes = &mut self.bytes;
        bytes.clear();
        if bytes.capacity() > KEPT_BYTES_MAX {
            bytes.shrink_to(KEPT_BYTES_MAX);
        }
        let frame = |bytes: &mut Vec<u8>, kind: u8, payload_bytes: usize| {
            let payload_bytes = u32::try_from(payload_bytes).expect("a payload has less than 4 GiB");
            bytes.extend_from_slice(&[kind, n1, n2]);
            bytes.extend_from_slice(&payload_bytes.to_be_bytes());
        };
        let short = |bytes: &mut Vec<u8>, string: &[u8]| {
            bytes.push(u8::try_from(string.len()).expect("names, keys and tags are short strings"));
            bytes.extend_from_slice(string);
        };
        let fields = DELIVER.len() + 1 + consumer_tag.len() + 9 + 2 + exchange.len() + routing_key.len();
        self.channel = channel;
        frame(bytes, FRAME_METHOD, fields);
        bytes.extend_from_slice(&DELIVER);
        self.consumer_tag = bytes.len() + 1;
        short(bytes, consumer_tag);
        self.tag = bytes.len();
        bytes.extend_from_slice(&[0; 9]);
        self.exchange = bytes.len() + 1;
        short(bytes, exchange);
        self.routing_key = bytes.len() + 1;
        short(bytes, routing_key);
        bytes.push(FRAME_END);
        self.content_header = bytes.len();
        frame(bytes, FRAME_HEADER, CONTENT_HEADER_BYTES + properties.len());
        let [c1, c2] = CLASS_BASIC.to_be_bytes();
        bytes.extend_from_slice(&[c1, c2, 0, 0]);
        bytes.extend_from_slice(&[0; 8]);
        self.properties = bytes.len();
        bytes.extend_from_slice(properties);
        bytes.push(FRAME_END);
        frame(bytes, FRAME_BODY, 0);
    }

    /// Appends the head with this tag, ahead of a body of so many bytes in one frame, or of none.
    #[inline]
    pub(crate) fn put(&self, small: &mut Vec<u8>, tag: u64, redelivered: bool, body_bytes: usize) {
        let at = small.len();
        small.extend_from_slice(&self.bytes);
        let head = &mut small[at..];
        head[self.tag..self.tag + 8].copy_from_slice(&tag.to_be_bytes());
        head[self.tag + 8] = u8::from(redelivered);
        head[self.properties - 8..self.properties].copy_from_slice(&(body_bytes as u64).to_be_bytes());
        let end = head.len();
        head[end - 4..].copy_from_slice(&(body_bytes as u32).to_be_bytes());
        if body_bytes == 0 {
            small.truncate(at + end - FRAME_HEADER_BYTES);
        }
    }

    /// Whether a head like this one is worth to be kept.
    #[inline]
    pub(crate) fn is_kept(Delivery { consumer_tag, message, .. }: &Delivery<'_>) -> bool {
        let names = consumer_tag.as_bytes().len() + message.exchange.len() + message.routing_key.len();
        names + message.properties.len() < KEPT_BYTES_MAX - 64
    }

    /// Gives its memory back.
    pub(crate) fn trim(&mut self) {
        *self = DeliveryHead::default();
    }

    /// Bytes of memory that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}
