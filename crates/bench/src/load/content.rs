//! A message on its way in: the method that announced it, its size, and as much of its body as is
//! there.
//!
//! Invariant: a body that lies in one frame is never copied.

use amqp::wire::content::CONTENT_HEADER_BYTES;

/// The largest body that is put together. A broker that claims more breaks AMQP's usual limits.
const BODY_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// How a message was announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    /// Delivery tag, or 0 for a returned message.
    pub(super) tag: u64,
    /// The broker's flag.
    pub(super) redelivered: bool,
    /// The consumer's place in its channel's list of queues.
    pub(super) queue_at: usize,
}

/// A channel's message in the making.
#[derive(Debug, Default)]
pub(super) struct Content {
    announced: Option<Announced>,
    body_bytes: Option<u64>,
    parts: Vec<u8>,
}

/// A frame that cannot be there.
#[derive(Debug)]
pub(super) struct OutOfPlace;

impl Content {
    /// A method announced a message.
    pub(super) fn announce(&mut self, announced: Announced) {
        self.announced = Some(announced);
        self.body_bytes = None;
        self.parts.clear();
    }

    /// Its header came; true when the body is empty and the message therefore whole.
    pub(super) fn header(&mut self, payload: &[u8]) -> Result<bool, OutOfPlace> {
        let size = payload.get(4..CONTENT_HEADER_BYTES).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let size = size.filter(|size| *size <= BODY_BYTES_MAX).ok_or(OutOfPlace)?;
        if self.announced.is_none() {
            return Err(OutOfPlace);
        }
        self.body_bytes = Some(size);
        Ok(size == 0)
    }

    /// A part of its body came; the whole body once it is there.
    pub(super) fn body<'a>(&'a mut self, payload: &'a [u8]) -> Result<Option<&'a [u8]>, OutOfPlace> {
        let size = self.body_bytes.ok_or(OutOfPlace)?;
        let have = self.parts.len() as u64 + payload.len() as u64;
        if have > size {
            return Err(OutOfPlace);
        }
        if self.parts.is_empty() && have == size {
            return Ok(Some(payload));
        }
        self.parts.extend_from_slice(payload);
        Ok((have == size).then_some(&self.parts[..]))
    }

    /// How it was announced.
    pub(super) fn announced(&self) -> Option<Announced> {
        self.announced
    }

    /// The message is done.
    pub(super) fn finish(&mut self) {
        self.body_bytes = None;
        self.announced = None;
    }
}
