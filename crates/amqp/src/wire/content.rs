//! Content headers: a body's size and the properties of the class basic.
//!
//! ```text
//!   +----------+-----------+--------------+-----------+------------------------------+
//!   | class 60 | weight 0  | body size    | flags     | the properties that flags say |
//!   +----------+-----------+--------------+-----------+------------------------------+
//!     u16        u16         u64            u16
//! ```
//!
//! Invariant: properties travel as the bytes that came, from `flags` on. They are checked once,
//! when they come in, so that no consumer is ever sent a header that it cannot read. [`Properties`]
//! is a view for whoever needs one of them.

use bytes::Bytes;

use super::primitives::{DecodeError, Writer};
use super::table::{Table, check_fields};

/// The class of all content.
pub const CLASS_BASIC: u16 = 60;

/// The bytes before the property flags.
pub const CONTENT_HEADER_BYTES: usize = 12;

/// Property flags without any property.
pub const NO_PROPERTIES: [u8; 2] = [0, 0];

const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const KIND: u16 = 1 << 5;
const USER_ID: u16 = 1 << 4;
const APP_ID: u16 = 1 << 3;
const CLUSTER_ID: u16 = 1 << 2;
/// The two bits that stand for no property; the lowest would announce more flags, which the class
/// basic does not have.
const UNKNOWN: u16 = 0b11;

/// The properties of one message, as slices of their wire form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    /// MIME type of the body.
    pub content_type: Option<&'a [u8]>,
    /// MIME encoding of the body.
    pub content_encoding: Option<&'a [u8]>,
    /// The fields of the headers table, without its length; [`Table::decode_fields`] builds the
    /// table.
    pub headers: Option<&'a [u8]>,
    /// 2 is persistent, everything else is transient.
    pub delivery_mode: Option<u8>,
    /// The priority, 0 to 255.
    pub priority: Option<u8>,
    /// The application's correlation id.
    pub correlation_id: Option<&'a [u8]>,
    /// Where to send the reply.
    pub reply_to: Option<&'a [u8]>,
    /// The time to live in milliseconds, as decimal digits.
    pub expiration: Option<&'a [u8]>,
    /// The application's message id.
    pub message_id: Option<&'a [u8]>,
    /// Seconds since the epoch.
    pub timestamp: Option<u64>,
    /// The property `type`.
    pub kind: Option<&'a [u8]>,
    /// The publishing user.
    pub user_id: Option<&'a [u8]>,
    /// The publishing application.
    pub app_id: Option<&'a [u8]>,
    /// Deprecated by the specification, passed on.
    pub cluster_id: Option<&'a [u8]>,
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    fn shortstr(&mut self) -> Result<&'a [u8], DecodeError> {
        let [count] = self.array()?;
        self.take(usize::from(count))
    }
}

impl<'a> Properties<'a> {
    /// Reads the properties in `bytes`, which start with the flags and end with the last property.
    ///
    /// - Errors: anything but exactly that. The headers table is checked with [`check_fields`].
    /// - Cost: one pass, no allocation.
    pub fn parse(bytes: &'a [u8]) -> Result<Properties<'a>, DecodeError> {
        let mut cursor = Cursor(bytes);
        let flags = u16::from_be_bytes(cursor.array()?);
        if flags & UNKNOWN != 0 {
            return Err(DecodeError::UnknownPropertyFlags(flags));
        }
        let mut p = Properties::default();
        if flags & (CONTENT_TYPE | CONTENT_ENCODING | HEADERS) != 0 {
            if flags & CONTENT_TYPE != 0 {
                p.content_type = Some(cursor.shortstr()?);
            }
            if flags & CONTENT_ENCODING != 0 {
                p.content_encoding = Some(cursor.shortstr()?);
            }
            if flags & HEADERS != 0 {
                let count = u32::from_be_bytes(cursor.array()?);
                let fields = cursor.take(count as usize)?;
                check_fields(fields)?;
                p.headers = Some(fields);
            }
        }
        if flags & DELIVERY_MODE != 0 {
            p.delivery_mode = Some(cursor.array::<1>()?[0]);
        }
        if flags & PRIORITY != 0 {
            p.priority = Some(cursor.array::<1>()?[0]);
        }
        let rest =
            CORRELATION_ID | REPLY_TO | EXPIRATION | MESSAGE_ID | TIMESTAMP | KIND | USER_ID | APP_ID | CLUSTER_ID;
        if flags & rest != 0 {
            p.read_rest(flags, &mut cursor)?;
        }
        if cursor.0.is_empty() { Ok(p) } else { Err(DecodeError::TrailingBytes) }
    }

    /// The properties that most messages do not have.
    fn read_rest(&mut self, flags: u16, cursor: &mut Cursor<'a>) -> Result<(), DecodeError> {
        if flags & CORRELATION_ID != 0 {
            self.correlation_id = Some(cursor.shortstr()?);
        }
        if flags & REPLY_TO != 0 {
            self.reply_to = Some(cursor.shortstr()?);
        }
        if flags & EXPIRATION != 0 {
            self.expiration = Some(cursor.shortstr()?);
        }
        if flags & MESSAGE_ID != 0 {
            self.message_id = Some(cursor.shortstr()?);
        }
        if flags & TIMESTAMP != 0 {
            self.timestamp = Some(u64::from_be_bytes(cursor.array()?));
        }
        if flags & KIND != 0 {
            self.kind = Some(cursor.shortstr()?);
        }
        if flags & USER_ID != 0 {
            self.user_id = Some(cursor.shortstr()?);
        }
        if flags & APP_ID != 0 {
            self.app_id = Some(cursor.shortstr()?);
        }
        if flags & CLUSTER_ID != 0 {
            self.cluster_id = Some(cursor.shortstr()?);
        }
        Ok(())
    }

    /// Whether the message asks to be kept on disk.
    pub fn is_persistent(&self) -> bool {
        self.delivery_mode == Some(2)
    }

    /// The headers as a table; `None` when there are none or when they go beyond the limits of
    /// [`Table`].
    pub fn headers_table(&self) -> Option<Table> {
        Table::decode_fields(&Bytes::copy_from_slice(self.headers?)).ok()
    }

    /// Appends the flags and the properties, the wire form that [`parse`](Self::parse) reads.
    pub fn encode_to(&self, target: &mut Vec<u8>) {
        let strings = [
            (CONTENT_TYPE, self.content_type),
            (CONTENT_ENCODING, self.content_encoding),
            (HEADERS, self.headers),
            (CORRELATION_ID, self.correlation_id),
            (REPLY_TO, self.reply_to),
            (EXPIRATION, self.expiration),
            (MESSAGE_ID, self.message_id),
            (KIND, self.kind),
            (USER_ID, self.user_id),
            (APP_ID, self.app_id),
            (CLUSTER_ID, self.cluster_id),
        ];
        let mut flags = strings.iter().filter(|(_, v)| v.is_some()).fold(0, |flags, (bit, _)| flags | bit);
        flags |= if self.delivery_mode.is_some() { DELIVERY_MODE } else { 0 };
        flags |= if self.priority.is_some() { PRIORITY } else { 0 };
        flags |= if self.timestamp.is_some() { TIMESTAMP } else { 0 };

        let mut w = Writer::new(target);
        w.short(flags);
        self.content_type.iter().for_each(|v| w.shortstr(v));
        self.content_encoding.iter().for_each(|v| w.shortstr(v));
        self.headers.iter().for_each(|v| w.longstr(v));
        self.delivery_mode.iter().for_each(|v| w.octet(*v));
        self.priority.iter().for_each(|v| w.octet(*v));
        for string in [self.correlation_id, self.reply_to, self.expiration, self.message_id].into_iter().flatten() {
            w.shortstr(string);
        }
        self.timestamp.iter().for_each(|v| w.longlong(*v));
        for string in [self.kind, self.user_id, self.app_id, self.cluster_id].into_iter().flatten() {
            w.shortstr(string);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_usual_persistent_message_has_its_golden_bytes() {
        let properties = Properties {
            content_type: Some(b"text/plain"),
            delivery_mode: Some(2),
            priority: Some(0),
            ..Properties::default()
        };
        let mut bytes = Vec::new();
        properties.encode_to(&mut bytes);
        assert_eq!(bytes, b"\x98\x00\x0atext/plain\x02\x00");
        assert_eq!(Properties::parse(&bytes).unwrap(), properties);
        assert!(properties.is_persistent());
    }

    #[test]
    fn every_property_is_in_its_place() {
        let bytes =
            b"\xff\xfc\x01a\x01b\0\0\0\x03\x01hV\x02\x05\x01c\x01d\x01e\x01f\0\0\0\0\0\0\0\x09\x01g\x01u\x01i\x01j";
        let properties = Properties::parse(bytes).unwrap();
        assert_eq!(properties.headers, Some(&b"\x01hV"[..]));
        assert_eq!((properties.priority, properties.timestamp), (Some(5), Some(9)));
        assert_eq!((properties.expiration, properties.kind), (Some(&b"e"[..]), Some(&b"g"[..])));
        assert_eq!(properties.headers_table().unwrap().len(), 1);
        let mut again = Vec::new();
        properties.encode_to(&mut again);
        assert_eq!(again, bytes);
        for cut in 0..bytes.len() {
            assert!(Properties::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let longer = [&bytes[..], b"\0"].concat();
        assert_eq!(Properties::parse(&longer), Err(DecodeError::TrailingBytes));
    }

    #[test]
    fn flags_that_stand_for_nothing_are_refused() {
        assert_eq!(Properties::parse(&[0, 1, 0, 0]), Err(DecodeError::UnknownPropertyFlags(1)));
        assert_eq!(Properties::parse(&[0, 2]), Err(DecodeError::UnknownPropertyFlags(2)));
    }

    #[test]
    fn broken_headers_are_found_without_building_them() {
        assert_eq!(Properties::parse(b"\x20\0\0\0\0\x03\x01h?"), Err(DecodeError::UnknownFieldType(b'?')));
        assert_eq!(Properties::parse(b"\x20\0\0\0\0\x09\x01hV"), Err(DecodeError::Truncated));
    }
}
