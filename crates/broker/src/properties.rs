//! What the broker itself reads in a message's properties, and writes into them.
//!
//! Invariant: properties were checked when the message came in, so that reading them cannot fail
//! here; what is not touched stays byte for byte as it came.

use crate::queue::DedupKey;
use amqp::wire::headers::{self, Headers};
use amqp::{Properties, Value};

/// The bit of `expiration` among the property flags.
const EXPIRATION: u16 = 1 << 8;
/// The header that says how long a message is to wait before it is routed on, in milliseconds.
pub const DELAY_HEADER: &str = "x-delay";

/// The header by which a queue knows a message again.
pub const DEDUPLICATION_HEADER: &str = "x-deduplication-header";
/// The bit of the headers among the property flags.
const HEADERS: u16 = 1 << 13;

fn parse(properties: &[u8]) -> Properties<'_> {
    Properties::parse(properties).expect("the machine checks the properties of every message")
}

/// Whether they are properties at all: what others do with them cannot fail then. For what another node sends;
/// what clients send, their connection checks. Costs one pass.
pub fn is_sound(properties: &[u8]) -> bool {
    Properties::parse(properties).is_ok()
}

/// Whether the message has a time limit of its own. Two bytes are looked at.
#[inline]
pub fn has_expiration(properties: &[u8]) -> bool {
    properties.first_chunk::<2>().is_some_and(|flags| u16::from_be_bytes(*flags) & EXPIRATION != 0)
}

/// The message's own time limit, in milliseconds. One that is no number was refused when it came.
pub fn expiration_ms(properties: &[u8]) -> Option<u64> {
    if !has_expiration(properties) {
        return None;
    }
    std::str::from_utf8(parse(properties).expiration?).ok()?.parse().ok()
}

/// The key by which a queue that asks for that knows the message again; `None` without the header.
pub fn dedup_key(properties: &[u8]) -> Option<DedupKey> {
    let flags = properties.first_chunk::<2>().map_or(0, |flags| u16::from_be_bytes(*flags));
    if flags & HEADERS == 0 {
        return None;
    }
    let headers = Headers::new(parse(properties).headers.unwrap_or_default());
    headers.get(DEDUPLICATION_HEADER.as_bytes()).map(|header| DedupKey::of(header.value()))
}

/// What the message says about its wait, in milliseconds; `None` if it says nothing. Integers
/// count, texts of integers, and floats that are whole. Errors: the header is something else, so
/// nobody knows what is meant.
pub fn delay(properties: &[u8]) -> Result<Option<i128>, NoDelay> {
    let headers = Headers::new(parse(properties).headers.unwrap_or_default());
    let Some(header) = headers.get(DELAY_HEADER.as_bytes()) else { return Ok(None) };
    let whole = |float: f64| (float.fract() == 0.0).then_some(float as i128);
    let ms = match header.decode() {
        Ok(Value::Timestamp(_)) => None,
        Ok(Value::LongString(text)) => std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()),
        Ok(Value::F32(float)) => whole(float.into()),
        Ok(Value::F64(float)) => whole(float),
        _ => header.as_integer(),
    };
    ms.map(Some).ok_or(NoDelay)
}

/// A delay that is no whole number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoDelay;

/// How long the message asks to wait, in milliseconds; 0 and less is not at all.
pub fn delay_ms(properties: &[u8]) -> u64 {
    delay(properties).ok().flatten().and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)
}

/// The properties of a message whose wait is over: the delay stands there below zero, so that
/// nobody waits again and everybody sees that it waited. In 32 bits where it fits: some clients
/// read the letter of the 64-bit integer as unsigned.
pub fn delay_over(properties: &[u8]) -> Vec<u8> {
    let ms = -i64::try_from(delay_ms(properties)).unwrap_or(i64::MAX);
    let value = i32::try_from(ms).map_or(Value::I64(ms), Value::I32);
    headers::rewrite(properties, &[(DELAY_HEADER, value)], &[]).expect("they were checked when they came")
}
