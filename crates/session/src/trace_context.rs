//! Which trace a message belongs to, as its headers say, and of which messages spans are made.
//!
//! ```text
//!   traceparent:  00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!                 version  trace                      span             flags, of which 1 is: sampled
//! ```
//!
//! Invariant: what is not exactly of this form is no context: a message with one is taken for a
//! message without. Source: W3C, Trace Context; headers of a message have the names that HTTP's have.

use amqp::wire::headers::Headers;
use amqp::{Properties, Value, wire};
use broker::ChannelKey;
use bytes::Bytes;

const PARENT_HEADER: &str = "traceparent";
const STATE_HEADER: &str = "tracestate";

/// Bytes of a `traceparent` of version 0; later versions may have more behind it.
const PARENT_BYTES: usize = 55;
/// W3C asks for at least so much of a `tracestate` to be passed on.
const STATE_BYTES_MAX: usize = 512;
const FLAG_SAMPLED: u8 = 1;
/// The bit of the headers among the flags of a message's properties.
const HEADERS: u16 = 1 << 13;

/// A trace, and the span in it that made a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The span that made the message; never 0.
    pub span_id: u64,
    /// Whether who made it keeps its spans.
    pub is_sampled: bool,
    /// What others who take part have written beside it.
    pub state: Option<Box<str>>,
}

/// A number in lower-case hexadecimal digits, all of them there; W3C has no others.
fn hex(digits: &[u8]) -> Option<u128> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(is_digit))?;
    u128::from_str_radix(text, 16).ok()
}

impl TraceContext {
    /// The context in the properties of a message, which were checked when it came. A message without
    /// headers costs a look at two bytes.
    #[inline]
    pub fn of(properties: &[u8]) -> Option<TraceContext> {
        match properties.first_chunk::<2>() {
            Some(flags) if u16::from_be_bytes(*flags) & HEADERS != 0 => TraceContext::in_headers(properties),
            _ => None,
        }
    }

    fn in_headers(properties: &[u8]) -> Option<TraceContext> {
        let fields = Properties::parse(properties).expect("the machine checks the properties of every message").headers;
        let headers = Headers::new(fields?);
        let context = TraceContext::parse(headers.get(PARENT_HEADER.as_bytes())?.as_string()?)?;
        let state = headers.get(STATE_HEADER.as_bytes()).and_then(|header| header.as_string());
        let is_shown = |byte: &u8| matches!(byte, 0x20..=0x7e);
        let state = state.filter(|state| (1..=STATE_BYTES_MAX).contains(&state.len()) && state.iter().all(is_shown));
        Some(TraceContext { state: state.and_then(|state| std::str::from_utf8(state).ok()).map(Box::from), ..context })
    }

    /// Reads a `traceparent`.
    fn parse(text: &[u8]) -> Option<TraceContext> {
        let (known, rest) = text.split_at_checked(PARENT_BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let mut part = |digits: usize| parts.next().filter(|part| part.len() == digits).and_then(hex);
        let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let is_whole = match version {
            0 => rest.is_empty(),
            // Forbidden.
            0xff => false,
            _ => rest.is_empty() || rest[0] == b'-',
        };
        if !is_whole || trace_id == 0 || span_id == 0 {
            return None;
        }
        let is_sampled = flags as u8 & FLAG_SAMPLED != 0;
        Some(TraceContext { trace_id, span_id: span_id as u64, is_sampled, state: None })
    }

    /// The same properties with this context, in the place of any other.
    pub(crate) fn written_into(&self, properties: &[u8]) -> Bytes {
        let flags = if self.is_sampled { FLAG_SAMPLED } else { 0 };
        let text = format!("00-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.span_id);
        let set = [(PARENT_HEADER, Value::LongString(text.into()))];
        let written = wire::headers::rewrite(properties, &set, &[STATE_HEADER]);
        written.expect("the machine checks the properties of every message").into()
    }
}

/// The number of the span of a publish that waits for its confirm: made of what both nodes know where
/// one takes a publish and another stores it, so that what the second tells belongs to what the first
/// tells.
pub fn publish_span_id(trace_id: u128, channel: ChannelKey, publish_seq: u64) -> u64 {
    let (life, number) = channel.words();
    let words = [(trace_id >> 64) as u64, trace_id as u64, life, number, publish_seq];
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    };
    words.into_iter().fold(0, mix).max(1)
}

/// Which messages are traced of those that nobody else decided about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampler {
    /// Of so many messages a thousand million.
    per_billion: u32,
}

impl Sampler {
    /// All of them.
    pub const ONE: u32 = 1_000_000_000;

    /// This many of a thousand million messages, by chance.
    pub fn new(per_billion: u32) -> Sampler {
        Sampler { per_billion: per_billion.min(Self::ONE) }
    }

    /// Whether chance has it that a message is traced.
    #[inline]
    pub(crate) fn takes(self, dice: impl FnOnce() -> u64) -> bool {
        self.per_billion > 0 && (u128::from(dice()) * u128::from(Self::ONE)) >> 64 < u128::from(self.per_billion)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use amqp::Table;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn properties(headers: &[(&'static str, Value)]) -> Vec<u8> {
        let mut table = Table::new();
        headers.iter().for_each(|(name, value)| table.push(*name, value.clone()));
        let (fields, mut encoded) = (table.encode(), Vec::new());
        let message_id = Some(&b"m"[..]);
        Properties { headers: Some(&fields[4..]), message_id, ..Properties::default() }.encode_to(&mut encoded);
        encoded
    }

    fn text(text: &str) -> Value {
        Value::LongString(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_context_is_read_as_it_was_written() {
        let context = TraceContext::of(&properties(&[("a", Value::I32(1)), ("traceparent", text(GOOD))])).unwrap();
        let (trace_id, span_id) = (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7);
        assert_eq!(context, TraceContext { trace_id, span_id, is_sampled: true, state: None });
        let with_state = properties(&[("tracestate", text("a=1,b=2")), ("traceparent", text(GOOD))]);
        assert_eq!(TraceContext::of(&with_state).unwrap().state.as_deref(), Some("a=1,b=2"));
        let written = context.written_into(&with_state);
        let parsed = Properties::parse(&written).unwrap();
        assert_eq!(parsed.message_id, Some(&b"m"[..]));
        let headers = parsed.headers_table().unwrap();
        assert_eq!((headers.get("traceparent"), headers.get("tracestate")), (Some(&text(GOOD)), None));
        assert_eq!(TraceContext::of(&context.written_into(b"\0\0")), Some(context));
    }

    #[test]
    fn flags_and_versions_to_come_are_read_as_far_as_they_are_known() {
        let of = |text: &str| TraceContext::parse(text.as_bytes());
        for (flags, is_sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let said = of(&format!("{}{flags}", &GOOD[..53])).unwrap();
            assert_eq!(said.is_sampled, is_sampled, "{flags}");
        }
        assert!(of(&format!("cc{}", &GOOD[2..])).is_some());
        assert!(of(&format!("cc{}-more", &GOOD[2..])).is_some());
        assert!(of(&format!("cc{}more", &GOOD[2..])).is_none());
    }

    #[test]
    fn what_is_not_exactly_a_context_is_none() {
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_span = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16));
        let upper = GOOD.to_uppercase();
        let longer = format!("{GOOD}-more");
        let spaced = format!(" {}", &GOOD[..54]);
        let signed = GOOD.replacen("4b", "+b", 1);
        let moved = "00-4bf92f3577b34da6a3ce929d0e0e4736a-0f067aa0ba902b7-01";
        let forbidden = format!("ff{}", &GOOD[2..]);
        let cut = &GOOD[..54];
        let wrong = ["", cut, &zero_trace, &zero_span, &upper, &longer, &spaced, &signed, moved, &forbidden, "ü"];
        for wrong in wrong {
            assert_eq!(TraceContext::parse(wrong.as_bytes()), None, "{wrong}");
            assert_eq!(TraceContext::of(&properties(&[("traceparent", text(wrong))])), None);
        }
        assert_eq!(TraceContext::parse(&[0xff; PARENT_BYTES]), None);
        assert_eq!(TraceContext::of(&properties(&[("traceparent", Value::I64(1))])), None);
        assert_eq!(TraceContext::of(&properties(&[("Traceparent", text(GOOD))])), None);
        assert_eq!(TraceContext::of(b"\0\0"), None);
        for state in ["", "a\u{7f}", "ü", &"x".repeat(513)] {
            let context = TraceContext::of(&properties(&[("traceparent", text(GOOD)), ("tracestate", text(state))]));
            assert_eq!(context.unwrap().state, None, "{state}");
        }
    }

    #[test]
    fn a_ratio_takes_its_part_of_all_dice() {
        const STEP: u64 = u64::MAX / 1000;
        let taken = |per_billion| (0..1000).filter(|n| Sampler::new(per_billion).takes(|| n * STEP + STEP / 2)).count();
        assert_eq!([0, 100_000_000, 500_000_000, Sampler::ONE].map(taken), [0, 100, 500, 1000]);
        assert!(Sampler::new(Sampler::ONE).takes(|| u64::MAX));
        assert!(!Sampler::default().takes(|| unreachable!("without a ratio nobody throws any")));
    }

    #[test]
    fn a_publish_has_one_number_wherever_it_is_asked_for_and_others_have_another() {
        let key = |number: u128| ChannelKey(number);
        let first = publish_span_id(7, key(1 << 64 | 2), 3);
        assert_eq!(first, publish_span_id(7, key(1 << 64 | 2), 3));
        let others =
            [(8, key(1 << 64 | 2), 3), (7, key(2 << 64 | 2), 3), (7, key(1 << 64 | 3), 3), (7, key(1 << 64 | 2), 4)];
        for (trace_id, channel, seq) in others {
            assert_ne!(first, publish_span_id(trace_id, channel, seq));
        }
        assert_ne!(publish_span_id(0, key(0), 0), 0);
    }
}
