//! Message headers as bytes: looking into them and changing some, while all others stay as they
//! came.
//!
//! Invariant: what is not touched is byte for byte the same, letters included that
//! [`Table`](super::table::Table) would spell otherwise. Nothing is built: a lookup is one pass
//! over the fields.
//!
//! ```text
//!   properties:  flags | content-type? | content-encoding? | headers? = u32 length, fields | the rest
//!   rewritten :  flags | ........ as it came ............. | u32 length, kept fields, new  | as it came
//! ```

use bytes::Bytes;

use super::primitives::{DecodeError, Reader, Writer};
use super::table::{Value, read_single, value_bytes, write_value};

const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;

/// The fields of a headers table, as in [`Properties::headers`](super::content::Properties).
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    fields: &'a [u8],
}

/// One header as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The letter of the type and the value.
    value: &'a [u8],
    /// Name and value together.
    whole: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Headers of these fields, without the table's length.
    pub fn new(fields: &'a [u8]) -> Self {
        Self { fields }
    }

    /// The headers in their order; ends early where the bytes are broken, which checked properties
    /// never are.
    pub fn iter(self) -> impl Iterator<Item = Header<'a>> {
        let mut rest = self.fields;
        std::iter::from_fn(move || {
            let name_bytes = usize::from(*rest.first()?);
            let name = rest.get(1..1 + name_bytes)?;
            let value_start = 1 + name_bytes;
            let count = value_bytes(rest.get(value_start..)?)?;
            let (whole, left) = rest.split_at_checked(value_start + count)?;
            rest = left;
            Some(Header { name, value: &whole[value_start..], whole })
        })
    }

    /// The first header with this name.
    pub fn get(self, name: &[u8]) -> Option<Header<'a>> {
        self.iter().find(|header| header.name == name)
    }
}

impl<'a> Header<'a> {
    /// The letter of its type.
    pub fn letter(&self) -> u8 {
        self.value[0]
    }

    /// The letter of its type and its value, as they are on the wire.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// Its bytes, if it is a long string (or a byte array).
    pub fn as_string(&self) -> Option<&'a [u8]> {
        matches!(self.letter(), b'S' | b'x').then(|| &self.value[5..])
    }

    /// Its number, if it is an integer of any size.
    pub fn as_integer(&self) -> Option<i128> {
        match self.decode().ok()? {
            Value::I8(v) => Some(v.into()),
            Value::U8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            Value::Timestamp(v) => Some(v.into()),
            _ => None,
        }
    }

    /// The long strings of an array, however many; none of any other value.
    pub fn strings(&self) -> impl Iterator<Item = Bytes> + use<> {
        let array = if self.letter() == b'A' { Bytes::copy_from_slice(&self.value[5..]) } else { Bytes::new() };
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let item = array.slice(at..at + value_bytes(&array[at..])?);
                at += item.len();
                if item[0] == b'S' {
                    return Some(item.slice(5..));
                }
            }
        })
    }

    /// Builds the value.
    pub fn decode(&self) -> Result<Value, DecodeError> {
        let bytes = Bytes::copy_from_slice(self.value);
        read_single(&mut Reader::new(&bytes))
    }
}

/// Properties with some headers changed: those in `remove` are gone, those in `set` stand at the
/// end (and nowhere else), everything else is as it came.
///
/// `properties` are checked ones, as in [`Publish`](crate::Publish); others give the error that a
/// check would.
pub fn rewrite(properties: &[u8], set: &[(&str, Value)], remove: &[&str]) -> Result<Vec<u8>, DecodeError> {
    let (flags, rest) = properties.split_first_chunk::<2>().ok_or(DecodeError::Truncated)?;
    let flags = u16::from_be_bytes(*flags);
    let strings = usize::from(flags & CONTENT_TYPE != 0) + usize::from(flags & CONTENT_ENCODING != 0);
    let mut at = 0;
    for _ in 0..strings {
        at += 1 + usize::from(*rest.get(at).ok_or(DecodeError::Truncated)?);
    }
    let (before, rest) = rest.split_at_checked(at).ok_or(DecodeError::Truncated)?;
    let (fields, after) = if flags & HEADERS == 0 {
        (&[][..], rest)
    } else {
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(DecodeError::Truncated)?;
        rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(DecodeError::Truncated)?
    };
    super::table::check_fields(fields)?;

    let added: usize = set.iter().map(|(name, _)| name.len() + 32).sum();
    let mut target = Vec::with_capacity(properties.len() + 4 + added);
    let is_touched = |name: &[u8]| {
        remove.iter().any(|removed| removed.as_bytes() == name) || set.iter().any(|(key, _)| key.as_bytes() == name)
    };
    let mut writer = Writer::new(&mut target);
    writer.short(flags | HEADERS);
    writer.raw(before);
    let mut kept = 0;
    writer.sized(|w| {
        for header in Headers::new(fields).iter().filter(|header| !is_touched(header.name)) {
            w.raw(header.whole);
            kept += 1;
        }
        for (name, value) in set {
            w.shortstr(name.as_bytes());
            write_value(value, w);
        }
    });
    if kept == 0 && set.is_empty() {
        // No header is left: nor is the table, unless it was an empty one from the start.
        if flags & HEADERS == 0 || !fields.is_empty() {
            let length_at = 2 + before.len();
            target.truncate(length_at);
            target[..2].copy_from_slice(&(flags & !HEADERS).to_be_bytes());
        }
    }
    target.extend_from_slice(after);
    Ok(target)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::wire::content::Properties;

    /// Content type, three headers with unusual letters, delivery mode and application id.
    const SAMPLE: &[u8] = b"\xb0\x08\x01a\0\0\0\x19\x01aL\0\0\0\0\0\0\0\x05\x01bt\x07\x02ccS\0\0\0\x02hi\x02\x01z";

    #[test]
    fn headers_are_found_by_name() {
        let headers = Headers::new(Properties::parse(SAMPLE).unwrap().headers.unwrap());
        assert_eq!(headers.iter().count(), 3);
        assert_eq!(headers.get(b"a").unwrap().as_integer(), Some(5));
        assert_eq!(headers.get(b"b").unwrap().decode().unwrap(), Value::Bool(true));
        assert_eq!(headers.get(b"cc").unwrap().as_string(), Some(&b"hi"[..]));
        assert_eq!((headers.get(b"cc").unwrap().as_integer(), headers.get(b"a").unwrap().as_string()), (None, None));
        assert!(headers.get(b"c").is_none());
    }

    #[test]
    fn what_is_not_touched_stays_byte_for_byte() {
        let changed = rewrite(SAMPLE, &[("n", Value::I64(1))], &["cc"]).unwrap();
        assert_eq!(
            changed,
            b"\xb0\x08\x01a\0\0\0\x1a\x01aL\0\0\0\0\0\0\0\x05\x01bt\x07\x01nl\0\0\0\0\0\0\0\x01\x02\x01z"
        );
        Properties::parse(&changed).unwrap();
        assert_eq!(rewrite(SAMPLE, &[], &["nobody"]).unwrap(), SAMPLE);
    }

    #[test]
    fn a_header_that_is_set_again_is_there_once() {
        let once = rewrite(SAMPLE, &[("n", Value::I64(1))], &[]).unwrap();
        let twice = rewrite(&once, &[("n", Value::I64(2))], &[]).unwrap();
        let headers = Headers::new(Properties::parse(&twice).unwrap().headers.unwrap());
        assert_eq!(headers.iter().filter(|header| header.name == b"n").count(), 1);
        assert_eq!(headers.get(b"n").unwrap().as_integer(), Some(2));
    }

    #[test]
    fn a_table_comes_with_its_first_header_and_goes_with_its_last() {
        let with = rewrite(b"\x10\0\x02", &[("n", Value::Void)], &[]).unwrap();
        assert_eq!(with, b"\x30\0\0\0\0\x03\x01nV\x02");
        assert_eq!(rewrite(&with, &[], &["n"]).unwrap(), b"\x10\0\x02");
        assert_eq!(rewrite(b"\x10\0\x02", &[], &["n"]).unwrap(), b"\x10\0\x02");
        let empty = b"\x20\0\0\0\0\0";
        assert_eq!(rewrite(empty, &[], &["n"]).unwrap(), empty);
    }

    #[test]
    fn broken_properties_are_refused() {
        for cut in 0..SAMPLE.len() - 3 {
            assert!(rewrite(&SAMPLE[..cut], &[], &[]).is_err(), "cut at {cut}");
        }
        assert!(rewrite(b"\x20\0\0\0\0\x03\x01n?", &[], &[]).is_err());
    }
}
