//! The primitive fields: octets, integers in network order, packed bits, short and long strings.
//!
//! Invariant: a [`Reader`] never reads past its payload and never copies a string; what it returns
//! are slices of the buffer that the socket was read into. A bit field shares its octet with the
//! bits right before it, and with nothing else.

use bytes::Bytes;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field, or what its length promises, goes beyond the end.
    #[error("field beyond the end")]
    Truncated,
    /// Bytes are left over after the last field.
    #[error("bytes after the last field")]
    TrailingBytes,
    /// A name is not UTF-8.
    #[error("Malformed UTF-8 in shortstr")]
    MalformedUtf8,
    /// A type letter that RabbitMQ does not know.
    #[error("unknown field type {0}")]
    UnknownFieldType(u8),
    /// A table nested more deeply than [`super::table::TABLE_DEPTH_MAX`].
    #[error("tables and arrays nest at most {max} deep", max = super::table::TABLE_DEPTH_MAX)]
    TooDeep,
    /// A table with more fields than [`super::table::TABLE_FIELDS_MAX`], nested ones included.
    #[error("too many fields in a table")]
    TooManyFields,
    /// No such class and method.
    #[error("unknown method {class}.{method}")]
    UnknownMethod {
        /// The class number.
        class: u16,
        /// The method number.
        method: u16,
    },
    /// Property flags that stand for no property of the class basic.
    #[error("unknown property flags {0:#06x}")]
    UnknownPropertyFlags(u16),
}

/// Takes the fields off a payload one by one.
#[derive(Debug)]
pub struct Reader<'a> {
    source: &'a Bytes,
    at: usize,
    /// The octet that bits are taken from, and how many are taken; 0 taken means that no bit octet
    /// is open.
    bits: u8,
    bits_taken: u8,
}

impl<'a> Reader<'a> {
    /// Reads `source` from its start.
    pub fn new(source: &'a Bytes) -> Self {
        Self { source, at: 0, bits: 0, bits_taken: 0 }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        self.bits_taken = 0;
        let rest = &self.source[self.at..];
        if count > rest.len() {
            return Err(DecodeError::Truncated);
        }
        self.at += count;
        Ok(&rest[..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn slice(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        let start = self.at;
        self.take(count)?;
        Ok(self.source.slice(start..start + count))
    }

    /// The next bit, from the octet of the bit before or from a new one.
    pub fn bit(&mut self) -> Result<bool, DecodeError> {
        if self.bits_taken == 0 || self.bits_taken == 8 {
            self.bits = self.octet()?;
        }
        let bit = self.bits >> (self.bits_taken % 8) & 1;
        self.bits_taken = self.bits_taken % 8 + 1;
        Ok(bit == 1)
    }

    /// An unsigned octet.
    pub fn octet(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// An unsigned 16-bit integer.
    pub fn short(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// An unsigned 32-bit integer.
    pub fn long(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// An unsigned 64-bit integer.
    pub fn longlong(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A short string, at most 255 bytes of any kind.
    pub fn shortstr(&mut self) -> Result<Bytes, DecodeError> {
        let count = self.octet()?;
        self.slice(usize::from(count))
    }

    /// A short string that is a name and must be UTF-8.
    pub fn name(&mut self) -> Result<Bytes, DecodeError> {
        let name = self.shortstr()?;
        match std::str::from_utf8(&name) {
            Ok(_) => Ok(name),
            Err(_) => Err(DecodeError::MalformedUtf8),
        }
    }

    /// A long string, or anything else with a 32-bit length before it.
    pub fn longstr(&mut self) -> Result<Bytes, DecodeError> {
        let count = self.long()?;
        self.slice(count as usize)
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        &self.source[self.at..]
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.at == self.source.len()
    }

    /// Asserts that the payload ends here, as RabbitMQ does for methods.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }
}

/// Appends fields to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    target: &'a mut Vec<u8>,
    /// Bits already written into the last octet; 0 when the last octet is not one of bits.
    bits_put: u8,
}

impl<'a> Writer<'a> {
    /// Appends to `target`.
    pub fn new(target: &'a mut Vec<u8>) -> Self {
        Self { target, bits_put: 0 }
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bits_put = 0;
        self.target.extend_from_slice(bytes);
    }

    /// A bit, in the octet of the bit before while there is room.
    pub fn bit(&mut self, bit: bool) {
        if self.bits_put == 0 || self.bits_put == 8 {
            self.target.push(0);
            self.bits_put = 0;
        }
        let last = self.target.last_mut().expect("an octet for bits was pushed above");
        *last |= u8::from(bit) << self.bits_put;
        self.bits_put += 1;
    }

    /// An octet.
    pub fn octet(&mut self, value: u8) {
        self.raw(&[value]);
    }

    /// A 16-bit integer.
    pub fn short(&mut self, value: u16) {
        self.raw(&value.to_be_bytes());
    }

    /// A 32-bit integer.
    pub fn long(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    /// A 64-bit integer.
    pub fn longlong(&mut self, value: u64) {
        self.raw(&value.to_be_bytes());
    }

    /// A short string; longer than 255 bytes is the caller's bug.
    pub fn shortstr(&mut self, value: &[u8]) {
        let count = u8::try_from(value.len()).expect("a short string has at most 255 bytes");
        self.octet(count);
        self.raw(value);
    }

    /// A long string; longer than 4 GiB is the caller's bug.
    pub fn longstr(&mut self, value: &[u8]) {
        let count = u32::try_from(value.len()).expect("a long string has less than 4 GiB");
        self.long(count);
        self.raw(value);
    }

    /// What `body` appends, behind its own 32-bit length.
    pub fn sized(&mut self, body: impl FnOnce(&mut Writer<'_>)) {
        self.long(0);
        let start = self.target.len();
        body(&mut Writer::new(self.target));
        let count = u32::try_from(self.target.len() - start).expect("a sized field has less than 4 GiB");
        self.target[start - 4..start].copy_from_slice(&count.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bits_share_an_octet_until_another_field_comes() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        [true, false, true].into_iter().for_each(|b| writer.bit(b));
        writer.octet(7);
        (0..9).for_each(|_| writer.bit(true));
        assert_eq!(bytes, [0b101, 7, 0xff, 1]);

        let bytes = Bytes::from(bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!([(); 3].map(|()| reader.bit().unwrap()), [true, false, true]);
        assert_eq!(reader.octet().unwrap(), 7);
        (0..9).for_each(|_| assert!(reader.bit().unwrap()));
        reader.finish().unwrap();
    }

    #[test]
    fn a_length_beyond_the_end_is_refused_before_anything_is_taken() {
        let bytes = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(Reader::new(&bytes).longstr(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(&bytes).shortstr(), Err(DecodeError::Truncated));
    }

    #[test]
    fn a_name_must_be_text() {
        let bytes = Bytes::from_static(&[1, 0xff]);
        assert_eq!(Reader::new(&bytes).name(), Err(DecodeError::MalformedUtf8));
        assert_eq!(Reader::new(&bytes).shortstr().unwrap(), Bytes::from_static(&[0xff]));
    }
}
