//! Content assembly: a publish, its header and its body come in frames of their own and leave as
//! one message.
//!
//! Invariant: memory follows the bytes that arrived, never the size that a header claims. A message
//! whose frames lie one behind the other is slices of the read buffer. Of a message that has to
//! wait for its next frame everything is copied, once: a few bytes of a client that stops in the
//! middle must not keep a whole read buffer alive on every channel.

use bytes::Bytes;

use crate::reply_code::{Fault, MethodId, ReplyCode};
use crate::wire::DecodeError;
use crate::wire::content::{CLASS_BASIC, CONTENT_HEADER_BYTES, Properties};
use crate::wire::frame::Payload;

/// Beyond this RabbitMQ calls the size itself a broken frame, not a message that is too large.
pub const CONTENT_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// A body's buffer grows to this many times what has come, at most to the body's own size.
const GROWTH: usize = 2;

/// `basic.publish` without its content.
#[derive(Debug)]
pub(crate) struct PublishMethod {
    pub(crate) exchange: Bytes,
    pub(crate) routing_key: Bytes,
    pub(crate) mandatory: bool,
}

impl PublishMethod {
    /// The same, in memory of its own.
    pub(crate) fn detach(self) -> PublishMethod {
        let both = Bytes::from([&self.exchange[..], &self.routing_key[..]].concat());
        let exchange = both.slice(..self.exchange.len());
        let routing_key = both.slice(self.exchange.len()..);
        PublishMethod { exchange, routing_key, mandatory: self.mandatory }
    }

    fn held_bytes(&self) -> usize {
        self.exchange.len() + self.routing_key.len()
    }

    /// Reads the fields of `basic.publish` from `payload`, whose class and method were read.
    ///
    /// By hand and not through the table of methods, as it runs once a message.
    #[inline]
    pub(crate) fn decode(payload: Payload<'_>) -> Result<PublishMethod, Fault> {
        const EXCHANGE_AT: usize = 7; // class, method, ticket, the exchange's length
        let cannot = || Fault::new(ReplyCode::FrameError, MethodId::BASIC_PUBLISH, cannot_decode(&payload));
        let bytes: &[u8] = &payload;
        let exchange_bytes = usize::from(*bytes.get(6).ok_or_else(cannot)?);
        let key_at = EXCHANGE_AT + exchange_bytes + 1;
        let key_bytes = usize::from(*bytes.get(key_at - 1).ok_or_else(cannot)?);
        if bytes.len() != key_at + key_bytes + 1 {
            return Err(cannot());
        }
        let flags = bytes[key_at + key_bytes];
        if flags & 2 != 0 {
            return Err(Fault::new(ReplyCode::NotImplemented, MethodId::BASIC_PUBLISH, "immediate=true"));
        }
        Ok(PublishMethod {
            exchange: payload.slice(EXCHANGE_AT, EXCHANGE_AT + exchange_bytes),
            routing_key: payload.slice(key_at, key_at + key_bytes),
            mandatory: flags & 1 != 0,
        })
    }
}

/// The text for a method whose fields make no sense.
pub(crate) fn cannot_decode(payload: &[u8]) -> String {
    let fields = payload.get(4..).unwrap_or_default();
    // RabbitMQ prints the whole payload; the reply text ends after 255 bytes anyway.
    let shown = &fields[..fields.len().min(64)];
    let bytes: Vec<String> = shown.iter().map(u8::to_string).collect();
    format!("cannot decode <<{}>>", bytes.join(","))
}

/// A whole message as it came in.
#[derive(Debug)]
pub(crate) struct Assembled {
    pub(crate) method: PublishMethod,
    pub(crate) properties: Bytes,
    pub(crate) body: Bytes,
}

/// The content under way on one channel.
#[derive(Debug, Default)]
pub(crate) enum Assembly {
    /// A method is expected.
    #[default]
    Idle,
    /// The content header is expected.
    Header(PublishMethod),
    /// Body frames are expected until `body` has `size` bytes.
    Body(PartialBody),
}

#[derive(Debug)]
pub(crate) struct PartialBody {
    method: PublishMethod,
    properties: Bytes,
    size: usize,
    body: Vec<u8>,
}

fn unexpected(text: &str, method: MethodId) -> Fault {
    Fault::new(ReplyCode::UnexpectedFrame, method, text)
}

impl Assembly {
    /// Bytes of memory held for an unfinished message: its names, its properties and what is there
    /// of its body.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Idle => 0,
            Self::Header(method) => method.held_bytes(),
            Self::Body(partial) => partial.method.held_bytes() + partial.properties.len() + partial.body.capacity(),
        }
    }

    /// A method frame came: the right one only while no content is under way.
    #[inline]
    pub(crate) fn expect_method(&self) -> Result<(), Fault> {
        match self {
            Self::Idle => Ok(()),
            Self::Header(_) => Err(unexpected(
                "expected content header for class 60, got non content header frame instead",
                MethodId::BASIC_PUBLISH,
            )),
            Self::Body(_) => {
                Err(unexpected("expected content body, got non content body frame instead", MethodId::BASIC_PUBLISH))
            }
        }
    }

    /// A content header came.
    ///
    /// - Errors: 505 at the wrong place, 406 for a body of more than `body_bytes_max`, 501 and 502
    ///   for a broken header.
    #[inline]
    pub(crate) fn header(&mut self, payload: Payload<'_>, body_bytes_max: u64) -> Result<Option<Assembled>, Fault> {
        let method = match std::mem::take(self) {
            Self::Header(method) => method,
            Self::Idle => {
                return Err(unexpected("expected method frame, got non method frame instead", MethodId::NONE));
            }
            Self::Body(_) => {
                return Err(unexpected(
                    "expected content body, got non content body frame instead",
                    MethodId::BASIC_PUBLISH,
                ));
            }
        };
        let size = body_size(&payload, body_bytes_max)?;
        if let Err(error) = Properties::parse(&payload[CONTENT_HEADER_BYTES..]) {
            return Err(broken_properties(error));
        }
        let properties = Bytes::copy_from_slice(&payload[CONTENT_HEADER_BYTES..]);
        if size == 0 {
            return Ok(Some(Assembled { method, properties, body: Bytes::new() }));
        }
        *self = Self::Body(PartialBody { method, properties, size, body: Vec::new() });
        Ok(None)
    }

    /// A body frame came.
    #[inline]
    pub(crate) fn body(&mut self, payload: Payload<'_>) -> Result<Option<Assembled>, Fault> {
        let mut partial = match std::mem::take(self) {
            Self::Body(partial) => partial,
            Self::Header(_) => {
                return Err(unexpected(
                    "expected content header for class 60, got non content header frame instead",
                    MethodId::BASIC_PUBLISH,
                ));
            }
            Self::Idle => {
                return Err(unexpected("expected method frame, got non method frame instead", MethodId::NONE));
            }
        };
        let missing = partial.size - partial.body.len();
        if payload.len() > missing {
            return Err(Fault::new(
                ReplyCode::FrameError,
                MethodId::BASIC_PUBLISH,
                "content body frame exceeds remaining content size",
            ));
        }
        let whole = payload.len() == missing;
        if whole && partial.body.is_empty() {
            let PartialBody { method, properties, .. } = partial;
            return Ok(Some(Assembled { method, properties, body: payload.to_bytes() }));
        }
        partial.append(&payload);
        if whole {
            let PartialBody { method, properties, body, .. } = partial;
            return Ok(Some(Assembled { method, properties, body: Bytes::from(body) }));
        }
        *self = Self::Body(partial);
        Ok(None)
    }
}

impl PartialBody {
    fn append(&mut self, payload: &[u8]) {
        let needed = self.body.len() + payload.len();
        if needed > self.body.capacity() {
            let grown = needed.saturating_mul(GROWTH);
            self.body.reserve_exact(grown.min(self.size) - self.body.len());
        }
        self.body.extend_from_slice(payload);
    }
}

impl Assembled {
    /// Reads a whole message from the payloads of its frames, where a body is in one frame or there
    /// is none.
    ///
    /// `None` when anything is not as it should be: then the frames go one by one, and the one to
    /// blame is blamed.
    #[inline]
    pub(crate) fn read(
        method: Payload<'_>,
        header: Payload<'_>,
        body: Option<Payload<'_>>,
        body_bytes_max: u64,
    ) -> Option<Assembled> {
        let size = body_size(&header, body_bytes_max).ok()?;
        if body.map_or(0, |body| body.len()) != size {
            return None;
        }
        Properties::parse(&header[CONTENT_HEADER_BYTES..]).ok()?;
        let method = PublishMethod::decode(method).ok()?;
        let properties = header.slice(CONTENT_HEADER_BYTES, header.len());
        Some(Assembled { method, properties, body: body.map_or_else(Bytes::new, Payload::to_bytes) })
    }
}

/// The body's size in a content header, if it is one.
#[inline]
pub(crate) fn peek_body_size(header: &[u8]) -> Option<u64> {
    let size = header.get(4..CONTENT_HEADER_BYTES)?.first_chunk()?;
    Some(u64::from_be_bytes(*size))
}

/// The body's size from a content header, which is checked as a whole.
fn body_size(payload: &[u8], body_bytes_max: u64) -> Result<usize, Fault> {
    let publish = MethodId::BASIC_PUBLISH;
    let Some(fixed) = payload.first_chunk::<CONTENT_HEADER_BYTES>() else {
        return Err(unexpected("expected content header for class 60, got non content header frame instead", publish));
    };
    let class = u16::from_be_bytes([fixed[0], fixed[1]]);
    if class != CLASS_BASIC {
        let text = format!("expected content header for class 60, got one for class {class} instead");
        return Err(unexpected(&text, publish));
    }
    if fixed[2..4] != [0, 0] {
        // The weight must be zero; RabbitMQ does not take such a header for one either.
        return Err(unexpected("expected content header for class 60, got non content header frame instead", publish));
    }
    let [.., a, b, c, d, e, f, g, h] = *fixed;
    let size = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    if size > CONTENT_BYTES_MAX {
        let text = format!("content body size {size} exceeds maximum allowed size {CONTENT_BYTES_MAX}");
        return Err(Fault::new(ReplyCode::FrameError, publish, text));
    }
    if size > body_bytes_max {
        let text = format!("message size {size} is larger than configured max size {body_bytes_max}");
        return Err(Fault::new(ReplyCode::PreconditionFailed, publish, text));
    }
    Ok(usize::try_from(size).expect("a body within the limits fits into memory"))
}

fn broken_properties(error: DecodeError) -> Fault {
    Fault::new(ReplyCode::SyntaxError, MethodId::BASIC_PUBLISH, format!("malformed content header: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MAX: u64 = 1 << 20;

    fn whole(payload: &Bytes) -> Payload<'_> {
        Payload::whole(payload)
    }

    fn header(size: u64) -> Bytes {
        let mut bytes = vec![0, 60, 0, 0];
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        Bytes::from(bytes)
    }

    fn begun() -> Assembly {
        Assembly::Header(PublishMethod {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            mandatory: false,
        })
    }

    #[test]
    fn a_body_in_one_frame_is_not_copied() {
        let mut assembly = begun();
        assert!(assembly.header(whole(&header(5)), MAX).unwrap().is_none());
        let frame = Bytes::from_static(b"hello");
        let message = assembly.body(whole(&frame)).unwrap().unwrap();
        assert_eq!(message.body.as_ptr(), frame.as_ptr());
        assembly.expect_method().unwrap();
    }

    #[test]
    fn bodies_of_many_frames_and_none_are_whole() {
        for (size, step) in [(0, 1), (1, 1), (10, 1), (10, 9), (10, 10), (100_000, 4088), (8176, 4088)] {
            let body: Vec<u8> = (0..size).map(|i| i as u8).collect();
            let mut assembly = begun();
            let mut message = assembly.header(whole(&header(size as u64)), MAX).unwrap();
            for chunk in body.chunks(step) {
                assert!(message.is_none());
                message = assembly.body(whole(&Bytes::copy_from_slice(chunk))).unwrap();
            }
            assert_eq!(message.unwrap().body, body);
        }
    }

    #[test]
    fn empty_body_frames_change_nothing() {
        let mut assembly = begun();
        assembly.header(whole(&header(2)), MAX).unwrap();
        assert!(assembly.body(whole(&Bytes::new())).unwrap().is_none());
        assert!(assembly.body(whole(&Bytes::from_static(b"a"))).unwrap().is_none());
        assert!(assembly.body(whole(&Bytes::new())).unwrap().is_none());
        assert_eq!(assembly.body(whole(&Bytes::from_static(b"b"))).unwrap().unwrap().body, &b"ab"[..]);
    }

    #[test]
    fn a_claimed_size_costs_nothing_before_the_bytes_come() {
        let mut assembly = begun();
        assembly.header(whole(&header(MAX)), MAX).unwrap();
        assert!(assembly.held_bytes() < 256, "{}", assembly.held_bytes());
        assembly.body(whole(&Bytes::from(vec![1; 1000]))).unwrap();
        assert!(assembly.held_bytes() < 8 * 1000, "{}", assembly.held_bytes());
    }

    #[test]
    fn sizes_beyond_the_limits_have_their_codes() {
        let fault = begun().header(whole(&header(MAX + 1)), MAX).unwrap_err();
        assert_eq!(fault.code, ReplyCode::PreconditionFailed);
        assert_eq!(fault.text, "message size 1048577 is larger than configured max size 1048576");
        let fault = begun().header(whole(&header(u64::MAX)), MAX).unwrap_err();
        assert_eq!(fault.code, ReplyCode::FrameError);
    }

    #[test]
    fn content_out_of_order_is_an_unexpected_frame() {
        let code = |r: Result<Option<Assembled>, Fault>| r.unwrap_err().code;
        assert_eq!(code(Assembly::Idle.header(whole(&header(1)), MAX)), ReplyCode::UnexpectedFrame);
        assert_eq!(code(Assembly::Idle.body(whole(&Bytes::new()))), ReplyCode::UnexpectedFrame);
        assert_eq!(code(begun().body(whole(&Bytes::new()))), ReplyCode::UnexpectedFrame);
        assert_eq!(begun().expect_method().unwrap_err().code, ReplyCode::UnexpectedFrame);
        let mut assembly = begun();
        assembly.header(whole(&header(1)), MAX).unwrap();
        assert_eq!(assembly.expect_method().unwrap_err().code, ReplyCode::UnexpectedFrame);
        assert_eq!(code(assembly.body(whole(&Bytes::from_static(b"two")))), ReplyCode::FrameError);
    }
}
