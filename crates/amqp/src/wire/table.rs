//! AMQP 0-9-1 field tables and values: the arguments of declares, the headers of messages, the
//! properties of peers.
//!
//! Invariant: a table keeps its fields in the order in which they came, repeats included, so that
//! what is decoded and encoded again is the same bytes. Looking a field up takes the first with
//! that name.
//!
//! ```text
//!   table:  u32 bytes | { u8 name length | name | value }*
//!   value:  u8 letter | as the letter says; S, x, A and F are a u32 length and that many bytes
//! ```
//!
//! Two spellings are not kept: `L`, which RabbitMQ reads as `l` and writes as `l`, and a boolean
//! octet other than 0 and
//! 1. Message headers keep even those, as messages carry their properties as the bytes that came.

use bytes::Bytes;

use super::primitives::{DecodeError, Reader, Writer};

/// How deeply tables and arrays may nest. RabbitMQ has no bound; `x-death`, the deepest that it
/// makes, needs three. The broker keeps arguments that nest as deep.
pub const TABLE_DEPTH_MAX: usize = 64;

/// How many values a decoded table may hold, those of nested tables and arrays included, so that a
/// frame full of two-byte fields cannot claim more than about 600 KB of memory. Arguments in real
/// use have a dozen.
pub const TABLE_FIELDS_MAX: usize = 8192;

/// One value of a field table, in the types that RabbitMQ reads and writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `t`: a boolean.
    Bool(bool),
    /// `b`: signed 8 bits.
    I8(i8),
    /// `B`: unsigned 8 bits.
    U8(u8),
    /// `s`: signed 16 bits.
    I16(i16),
    /// `u`: unsigned 16 bits.
    U16(u16),
    /// `I`: signed 32 bits.
    I32(i32),
    /// `i`: unsigned 32 bits.
    U32(u32),
    /// `l` (or `L`): signed 64 bits.
    I64(i64),
    /// `f`: a 32-bit float.
    F32(f32),
    /// `d`: a 64-bit float.
    F64(f64),
    /// `D`: a decimal, `mantissa / 10^scale`.
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// The number without its point.
        mantissa: u32,
    },
    /// `S`: a long string; bytes, as AMQP promises no encoding.
    LongString(Bytes),
    /// `x`: a byte array.
    ByteArray(Bytes),
    /// `T`: seconds since the epoch, unsigned 64 bits.
    Timestamp(u64),
    /// `A`: a list of values.
    Array(Vec<Value>),
    /// `F`: a nested table.
    Table(Table),
    /// `V`: no value.
    Void,
}

/// An ordered list of named values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    fields: Vec<(Bytes, Value)>,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a field; `name` is at most 255 bytes, which the encoder asserts.
    pub fn push(&mut self, name: impl Into<Bytes>, value: Value) {
        self.fields.push((name.into(), value));
    }

    /// Takes away the fields whose name is not to be kept. The others keep their order.
    pub fn retain_names(&mut self, mut is_kept: impl FnMut(&[u8]) -> bool) {
        self.fields.retain(|(name, _)| is_kept(name));
    }

    /// The first value with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(n, _)| n == name.as_bytes()).map(|(_, v)| v)
    }

    /// The field at a place in their order.
    pub fn at(&self, index: usize) -> Option<(&Bytes, &Value)> {
        self.fields.get(index).map(|(n, v)| (n, v))
    }

    /// The fields in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Bytes, &Value)> {
        self.fields.iter().map(|(n, v)| (n, v))
    }

    /// Reads a whole table off `reader`: its length, then its fields. Strings are slices of the
    /// reader's buffer.
    ///
    /// - Limits: [`TABLE_DEPTH_MAX`] and [`TABLE_FIELDS_MAX`].
    pub fn read(reader: &mut Reader<'_>) -> Result<Table, DecodeError> {
        let mut budget = TABLE_FIELDS_MAX;
        read_table(&reader.longstr()?, &mut budget, 1)
    }

    /// Decodes the fields of a table whose length was taken off already, as AMQPLAIN sends them.
    pub fn decode_fields(bytes: &Bytes) -> Result<Table, DecodeError> {
        let mut budget = TABLE_FIELDS_MAX;
        read_table(bytes, &mut budget, 1)
    }

    /// Decodes a table with its length, which must end where `bytes` ends.
    pub fn decode(bytes: &Bytes) -> Result<Table, DecodeError> {
        let mut reader = Reader::new(bytes);
        let table = Table::read(&mut reader)?;
        reader.finish()?;
        Ok(table)
    }

    /// Appends the table with its length.
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.sized(|w| {
            for (name, value) in self.iter() {
                w.shortstr(name);
                write_value(value, w);
            }
        });
    }

    /// The table with its length, in bytes of its own.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut Writer::new(&mut bytes));
        bytes
    }

    /// The number of fields, repeats included.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

fn read_table(bytes: &Bytes, budget: &mut usize, depth: usize) -> Result<Table, DecodeError> {
    if depth > TABLE_DEPTH_MAX {
        return Err(DecodeError::TooDeep);
    }
    let mut reader = Reader::new(bytes);
    let mut table = Table::new();
    while !reader.is_empty() {
        let name = reader.shortstr()?;
        table.fields.push((name, read_value(&mut reader, budget, depth)?));
    }
    Ok(table)
}

fn read_value(reader: &mut Reader<'_>, budget: &mut usize, depth: usize) -> Result<Value, DecodeError> {
    *budget = budget.checked_sub(1).ok_or(DecodeError::TooManyFields)?;
    Ok(match reader.octet()? {
        b't' => Value::Bool(reader.octet()? != 0),
        b'b' => Value::I8(reader.octet()? as i8),
        b'B' => Value::U8(reader.octet()?),
        b's' => Value::I16(reader.short()? as i16),
        b'u' => Value::U16(reader.short()?),
        b'I' => Value::I32(reader.long()? as i32),
        b'i' => Value::U32(reader.long()?),
        b'l' | b'L' => Value::I64(reader.longlong()? as i64),
        b'f' => Value::F32(f32::from_bits(reader.long()?)),
        b'd' => Value::F64(f64::from_bits(reader.longlong()?)),
        b'D' => Value::Decimal { scale: reader.octet()?, mantissa: reader.long()? },
        b'S' => Value::LongString(reader.longstr()?),
        b'x' => Value::ByteArray(reader.longstr()?),
        b'T' => Value::Timestamp(reader.longlong()?),
        b'A' => Value::Array(read_array(&reader.longstr()?, budget, depth + 1)?),
        b'F' => Value::Table(read_table(&reader.longstr()?, budget, depth + 1)?),
        b'V' => Value::Void,
        letter => return Err(DecodeError::UnknownFieldType(letter)),
    })
}

fn read_array(bytes: &Bytes, budget: &mut usize, depth: usize) -> Result<Vec<Value>, DecodeError> {
    if depth > TABLE_DEPTH_MAX {
        return Err(DecodeError::TooDeep);
    }
    let mut reader = Reader::new(bytes);
    let mut values = Vec::new();
    while !reader.is_empty() {
        values.push(read_value(&mut reader, budget, depth)?);
    }
    Ok(values)
}

pub(crate) fn write_value(value: &Value, writer: &mut Writer<'_>) {
    match value {
        Value::Bool(v) => writer.raw(&[b't', u8::from(*v)]),
        Value::I8(v) => writer.raw(&[b'b', *v as u8]),
        Value::U8(v) => writer.raw(&[b'B', *v]),
        Value::I16(v) => put(writer, b's', &v.to_be_bytes()),
        Value::U16(v) => put(writer, b'u', &v.to_be_bytes()),
        Value::I32(v) => put(writer, b'I', &v.to_be_bytes()),
        Value::U32(v) => put(writer, b'i', &v.to_be_bytes()),
        Value::I64(v) => put(writer, b'l', &v.to_be_bytes()),
        Value::F32(v) => put(writer, b'f', &v.to_bits().to_be_bytes()),
        Value::F64(v) => put(writer, b'd', &v.to_bits().to_be_bytes()),
        Value::Decimal { scale, mantissa } => {
            put(writer, b'D', &[*scale]);
            writer.long(*mantissa);
        }
        Value::LongString(v) => {
            writer.octet(b'S');
            writer.longstr(v);
        }
        Value::ByteArray(v) => {
            writer.octet(b'x');
            writer.longstr(v);
        }
        Value::Timestamp(v) => put(writer, b'T', &v.to_be_bytes()),
        Value::Array(values) => {
            writer.octet(b'A');
            writer.sized(|w| values.iter().for_each(|v| write_value(v, w)));
        }
        Value::Table(table) => {
            writer.octet(b'F');
            table.write(writer);
        }
        Value::Void => writer.octet(b'V'),
    }
}

fn put(writer: &mut Writer<'_>, letter: u8, bytes: &[u8]) {
    writer.octet(letter);
    writer.raw(bytes);
}

/// Checks that `bytes` are the fields of a well-formed table, without building it: for what only
/// passes through.
///
/// - Limits: [`TABLE_DEPTH_MAX`]. The number of fields costs nothing here and is not limited.
/// - Cost: one pass, no allocation.
pub fn check_fields(bytes: &[u8]) -> Result<(), DecodeError> {
    check(bytes, true, 1)
}

fn check(mut bytes: &[u8], named: bool, depth: usize) -> Result<(), DecodeError> {
    if depth > TABLE_DEPTH_MAX {
        return Err(DecodeError::TooDeep);
    }
    while !bytes.is_empty() {
        if named {
            let name_bytes = usize::from(bytes[0]);
            bytes = bytes.get(1 + name_bytes..).ok_or(DecodeError::Truncated)?;
        }
        let letter = *bytes.first().ok_or(DecodeError::Truncated)?;
        let count = sized_value(letter, bytes)?;
        let (value, rest) = bytes.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        match letter {
            b'A' => check(&value[5..], false, depth + 1)?,
            b'F' => check(&value[5..], true, depth + 1)?,
            _ => {}
        }
        bytes = rest;
    }
    Ok(())
}

/// The bytes of the value at the start of `bytes`, its letter included, as its letter and its
/// length say.
#[inline]
fn sized_value(letter: u8, bytes: &[u8]) -> Result<usize, DecodeError> {
    Ok(1 + match letter {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | b'x' | b'A' | b'F' => {
            let length = bytes.get(1..5).and_then(|b| b.first_chunk::<4>()).ok_or(DecodeError::Truncated)?;
            4 + u32::from_be_bytes(*length) as usize
        }
        letter => return Err(DecodeError::UnknownFieldType(letter)),
    })
}

/// The bytes of the value at the start of `bytes`, if it is all there.
pub(crate) fn value_bytes(bytes: &[u8]) -> Option<usize> {
    let count = sized_value(*bytes.first()?, bytes).ok()?;
    (count <= bytes.len()).then_some(count)
}

/// Reads one value with its letter, which must end where the bytes end.
pub(crate) fn read_single(reader: &mut Reader<'_>) -> Result<Value, DecodeError> {
    let mut budget = TABLE_FIELDS_MAX;
    let value = read_value(reader, &mut budget, 1)?;
    reader.finish()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn nested(depth: usize) -> Table {
        let mut table = Table::new();
        for _ in 1..depth {
            let mut outer = Table::new();
            outer.push("t", Value::Table(table));
            table = outer;
        }
        table
    }

    #[test]
    fn every_letter_has_its_golden_bytes() {
        let fields: [(Value, &[u8]); 18] = [
            (Value::Bool(true), b"t\x01"),
            (Value::I8(-2), b"b\xfe"),
            (Value::U8(254), b"B\xfe"),
            (Value::I16(-2), b"s\xff\xfe"),
            (Value::U16(65534), b"u\xff\xfe"),
            (Value::I32(-2), b"I\xff\xff\xff\xfe"),
            (Value::U32(1), b"i\0\0\0\x01"),
            (Value::I64(-2), b"l\xff\xff\xff\xff\xff\xff\xff\xfe"),
            (Value::F32(1.0), b"f\x3f\x80\0\0"),
            (Value::F64(1.0), b"d\x3f\xf0\0\0\0\0\0\0"),
            (Value::Decimal { scale: 2, mantissa: 314 }, b"D\x02\0\0\x01\x3a"),
            (Value::LongString(Bytes::from_static(b"ab")), b"S\0\0\0\x02ab"),
            (Value::ByteArray(Bytes::from_static(b"ab")), b"x\0\0\0\x02ab"),
            (Value::Timestamp(1), b"T\0\0\0\0\0\0\0\x01"),
            (Value::Array(vec![Value::Void, Value::U8(1)]), b"A\0\0\0\x03VB\x01"),
            (Value::Array(vec![Value::Array(vec![])]), b"A\0\0\0\x05A\0\0\0\0"),
            (Value::Table(nested(2)), b"F\0\0\0\x07\x01tF\0\0\0\0"),
            (Value::Void, b"V"),
        ];
        for (value, golden) in fields {
            let mut table = Table::new();
            table.push("n", value);
            let mut bytes = (golden.len() as u32 + 2).to_be_bytes().to_vec();
            bytes.extend_from_slice(b"\x01n");
            bytes.extend_from_slice(golden);
            assert_eq!(table.encode(), bytes, "{table:?}");
            assert_eq!(Table::decode(&Bytes::from(bytes.clone())).unwrap(), table);
            check_fields(&bytes[4..]).unwrap();
        }
    }

    #[test]
    fn both_letters_of_a_long_are_read() {
        let bytes = Bytes::from_static(b"\x01nL\0\0\0\0\0\0\0\x05");
        assert_eq!(Table::decode_fields(&bytes).unwrap().get("n"), Some(&Value::I64(5)));
        check_fields(&bytes).unwrap();
    }

    #[test]
    fn nesting_stops_at_its_limit_with_and_without_building() {
        let deepest = Bytes::from(nested(TABLE_DEPTH_MAX).encode());
        Table::decode(&deepest).unwrap();
        check_fields(&deepest[4..]).unwrap();
        let deeper = Bytes::from(nested(TABLE_DEPTH_MAX + 1).encode());
        assert_eq!(Table::decode(&deeper), Err(DecodeError::TooDeep));
        assert_eq!(check_fields(&deeper[4..]), Err(DecodeError::TooDeep));
    }

    #[test]
    fn a_million_entries_are_refused_before_they_are_stored() {
        let fields = Bytes::from(b"\0V".repeat(1_000_000));
        assert_eq!(Table::decode_fields(&fields), Err(DecodeError::TooManyFields));
        let fields = Bytes::from(b"\0V".repeat(TABLE_FIELDS_MAX));
        assert_eq!(Table::decode_fields(&fields).unwrap().len(), TABLE_FIELDS_MAX);
        let array = Bytes::from([&b"\x01aA\0\x0f\x42\x40"[..], &b"V".repeat(1_000_000)].concat());
        assert_eq!(Table::decode_fields(&array), Err(DecodeError::TooManyFields));
        check_fields(&array).unwrap();
    }

    #[test]
    fn every_cut_of_a_table_is_refused() {
        let mut table = nested(3);
        table.push("s", Value::LongString(Bytes::from_static(b"text")));
        table.push("a", Value::Array(vec![Value::Decimal { scale: 1, mantissa: 2 }]));
        let bytes = Bytes::from(table.encode());
        let starts: Vec<usize> = vec![4, 4 + 14, 4 + 14 + 11, bytes.len()];
        for cut in 4..bytes.len() {
            // A cut between two fields is a shorter table, not a broken one.
            let whole = starts.contains(&cut);
            assert_eq!(Table::decode_fields(&bytes.slice(4..cut)).is_ok(), whole, "cut at {cut}");
            assert_eq!(check_fields(&bytes[4..cut]).is_ok(), whole, "cut at {cut}");
        }
    }
}
