//! Bytes of commands and snapshots: little-endian varints, length-prefixed strings, tagged values.
//!
//! Invariant: encoding is canonical (one state, one sequence of bytes) and decoding of anything
//! else ends in `Malformed`, never in a panic, a deep recursion or memory beyond a small multiple
//! of the input.
//!
//! ```text
//! number  = 7 bits a byte, low first, high bit = more follow (at most 10 bytes)
//! bytes   = number length, then that many bytes
//! limit   = 0: none, else number above it
//! signed  = number, its sign in the lowest bit
//! table   = number fields, then per field: bytes name, value
//! value   = 1 byte tag (AMQP's letter), then by tag: fixed little-endian number | bytes | array | table | nothing
//! ```

use amqp::{Table, Value};
use bytes::{BufMut, Bytes};

use super::name::{NAME_BYTES_MAX, Name};

/// Tables in tables in arrays: deeper is refused when a client declares it and malformed when read
/// back.
pub const TABLE_DEPTH_MAX: usize = 64;

/// What was read is not what this version writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what} at {offset} bytes from the start")]
pub struct Malformed {
    /// The item that was being read.
    pub what: &'static str,
    /// Where it stands.
    pub offset: usize,
}

/// What is refused where the state machine is of a version that this build does not know.
pub(super) const NEWER_MACHINE: &str = "machine version, raised by a newer leveret,";
/// The same of a snapshot's form.
pub(super) const NEWER_SNAPSHOT: &str = "snapshot version of a newer leveret";

impl Malformed {
    /// Whether a newer build wrote it, and nothing says that it is damaged.
    pub fn is_of_newer(&self) -> bool {
        [NEWER_MACHINE, NEWER_SNAPSHOT].contains(&self.what)
    }
}

/// Collects the bytes of one command or snapshot.
#[derive(Debug, Default)]
pub(super) struct Writer {
    buffer: Vec<u8>,
}

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) {
        self.buffer.push(byte);
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.byte(flag.into());
    }

    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte((number as u8) | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    pub(super) fn length(&mut self, length: usize) {
        self.number(length as u64);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// A number that may be missing.
    pub(super) fn limit(&mut self, limit: Option<u32>) {
        self.number(limit.map_or(0, |limit| u64::from(limit) + 1));
    }

    /// A number of either sign.
    pub(super) fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    pub(super) fn table(&mut self, table: &Table) {
        assert!(depth(table) <= TABLE_DEPTH_MAX, "the checks refuse tables that could not be read back");
        self.fields(table.iter());
    }

    fn fields<'a>(&mut self, fields: impl ExactSizeIterator<Item = (&'a Bytes, &'a Value)>) {
        self.length(fields.len());
        for (name, value) in fields {
            assert!(name.len() <= NAME_BYTES_MAX, "the wire carries no longer name of a field");
            self.bytes(name);
            self.value(value);
        }
    }

    fn value(&mut self, value: &Value) {
        self.byte(tag(value));
        match value {
            Value::Bool(b) => self.flag(*b),
            Value::I8(n) => self.buffer.put_i8(*n),
            Value::U8(n) => self.buffer.put_u8(*n),
            Value::I16(n) => self.buffer.put_i16_le(*n),
            Value::U16(n) => self.buffer.put_u16_le(*n),
            Value::I32(n) => self.buffer.put_i32_le(*n),
            Value::U32(n) => self.buffer.put_u32_le(*n),
            Value::I64(n) => self.buffer.put_i64_le(*n),
            Value::F32(x) => self.buffer.put_u32_le(x.to_bits()),
            Value::F64(x) => self.buffer.put_u64_le(x.to_bits()),
            Value::Decimal { scale, mantissa } => {
                self.byte(*scale);
                self.buffer.put_u32_le(*mantissa);
            }
            Value::LongString(bytes) | Value::ByteArray(bytes) => self.bytes(bytes),
            Value::Timestamp(seconds) => self.buffer.put_u64_le(*seconds),
            Value::Array(items) => {
                self.length(items.len());
                for item in items {
                    self.value(item);
                }
            }
            Value::Table(table) => self.fields(table.iter()),
            Value::Void => {}
        }
    }

    pub(super) fn finish(self) -> Bytes {
        Bytes::from(self.buffer)
    }
}

fn tag(value: &Value) -> u8 {
    match value {
        Value::Bool(_) => b't',
        Value::I8(_) => b'b',
        Value::U8(_) => b'B',
        Value::I16(_) => b's',
        Value::U16(_) => b'u',
        Value::I32(_) => b'I',
        Value::U32(_) => b'i',
        Value::I64(_) => b'l',
        Value::F32(_) => b'f',
        Value::F64(_) => b'd',
        Value::Decimal { .. } => b'D',
        Value::LongString(_) => b'S',
        Value::ByteArray(_) => b'x',
        Value::Timestamp(_) => b'T',
        Value::Array(_) => b'A',
        Value::Table(_) => b'F',
        Value::Void => b'V',
    }
}

/// Reads what `Writer` wrote. Strings and tables are copied out, so that nothing keeps a snapshot's
/// buffer alive.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, offset: self.at }
    }

    pub(super) fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        if length > self.bytes.len() - self.at {
            return Err(self.malformed(what));
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        Ok(self.take(N, what)?.try_into().expect("`take` gives what it was asked for"))
    }

    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, Malformed> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed(what)),
        }
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(self.malformed(what));
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                // A zero last byte would be a second spelling of the same number.
                return if byte == 0 && shift > 0 { Err(self.malformed(what)) } else { Ok(number) };
            }
        }
        Err(self.malformed(what))
    }

    pub(super) fn number_u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        u32::try_from(self.number(what)?).map_err(|_| self.malformed(what))
    }

    pub(super) fn limit(&mut self, what: &'static str) -> Result<Option<u32>, Malformed> {
        match self.number(what)? {
            0 => Ok(None),
            above => u32::try_from(above - 1).map(Some).map_err(|_| self.malformed(what)),
        }
    }

    pub(super) fn signed(&mut self, what: &'static str) -> Result<i64, Malformed> {
        let number = self.number(what)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, Malformed> {
        let bytes = self.bytes(what)?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed(what))
    }

    /// The number of items that follow; each takes at least a byte, so a larger number is a lie.
    pub(super) fn count(&mut self, what: &'static str) -> Result<usize, Malformed> {
        let count = self.number(what)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.bytes.len() - self.at => Ok(count),
            _ => Err(self.malformed(what)),
        }
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let length = self.count(what)?;
        self.take(length, what)
    }

    pub(super) fn name(&mut self, what: &'static str) -> Result<Name, Malformed> {
        match self.bytes(what)? {
            long if long.len() > NAME_BYTES_MAX => Err(self.malformed(what)),
            bytes => Ok(Name::new(bytes)),
        }
    }

    pub(super) fn table(&mut self) -> Result<Table, Malformed> {
        self.table_within(TABLE_DEPTH_MAX)
    }

    fn table_within(&mut self, depth: usize) -> Result<Table, Malformed> {
        if depth == 0 {
            return Err(self.malformed("table nested too deep"));
        }
        let mut table = Table::new();
        for _ in 0..self.count("table")? {
            let name = self.bytes("field name")?;
            if name.len() > NAME_BYTES_MAX {
                return Err(self.malformed("field name"));
            }
            let name = Bytes::copy_from_slice(name);
            table.push(name, self.value(depth)?);
        }
        Ok(table)
    }

    fn value(&mut self, depth: usize) -> Result<Value, Malformed> {
        let what = "value";
        Ok(match self.byte(what)? {
            b't' => Value::Bool(self.flag(what)?),
            b'b' => Value::I8(i8::from_le_bytes(self.array(what)?)),
            b'B' => Value::U8(self.byte(what)?),
            b's' => Value::I16(i16::from_le_bytes(self.array(what)?)),
            b'u' => Value::U16(u16::from_le_bytes(self.array(what)?)),
            b'I' => Value::I32(i32::from_le_bytes(self.array(what)?)),
            b'i' => Value::U32(u32::from_le_bytes(self.array(what)?)),
            b'l' => Value::I64(i64::from_le_bytes(self.array(what)?)),
            b'f' => Value::F32(f32::from_le_bytes(self.array(what)?)),
            b'd' => Value::F64(f64::from_le_bytes(self.array(what)?)),
            b'D' => Value::Decimal { scale: self.byte(what)?, mantissa: u32::from_le_bytes(self.array(what)?) },
            b'S' => Value::LongString(Bytes::copy_from_slice(self.bytes(what)?)),
            b'x' => Value::ByteArray(Bytes::copy_from_slice(self.bytes(what)?)),
            b'T' => Value::Timestamp(u64::from_le_bytes(self.array(what)?)),
            b'A' => {
                if depth == 1 {
                    return Err(self.malformed("array nested too deep"));
                }
                let mut items = Vec::new();
                for _ in 0..self.count(what)? {
                    items.push(self.value(depth - 1)?);
                }
                Value::Array(items)
            }
            b'F' => Value::Table(self.table_within(depth - 1)?),
            b'V' => Value::Void,
            _ => return Err(self.malformed(what)),
        })
    }

    /// Checks that nothing follows.
    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.malformed("end")) }
    }
}

/// How deep tables and arrays nest; a flat table is 1. Stops counting beyond `TABLE_DEPTH_MAX`.
pub(super) fn depth(table: &Table) -> usize {
    fn of(value: &Value, budget: usize) -> usize {
        if budget == 0 {
            return 1;
        }
        match value {
            Value::Array(items) => 1 + items.iter().map(|v| of(v, budget - 1)).max().unwrap_or(0),
            Value::Table(table) => 1 + table.iter().map(|(_, v)| of(v, budget - 1)).max().unwrap_or(0),
            _ => 0,
        }
    }
    1 + table.iter().map(|(_, v)| of(v, TABLE_DEPTH_MAX)).max().unwrap_or(0)
}

/// The bytes of a table alone.
pub(super) fn table_bytes(table: &Table) -> Bytes {
    let mut writer = Writer::default();
    writer.table(table);
    writer.finish()
}

/// As [`table_bytes`], with the fields in the order of their names.
pub(super) fn sorted_table_bytes(table: &Table) -> Box<[u8]> {
    assert!(depth(table) <= TABLE_DEPTH_MAX, "the checks refuse tables that could not be read back");
    let mut fields: Vec<(&Bytes, &Value)> = table.iter().collect();
    fields.sort_by(|a, b| a.0.cmp(b.0));
    let mut writer = Writer::default();
    writer.fields(fields.into_iter());
    writer.buffer.into_boxed_slice()
}

/// What arguments count for against the limit on them: their encoding, and something for each name
/// and value, which take many times their encoded size once they are read. Nothing where there are
/// none.
pub(super) fn counted_bytes(table: &Table) -> usize {
    if table.is_empty() { 0 } else { table_bytes(table).len() + read_bytes(table) }
}

/// The part of [`counted_bytes`] that is not the encoding.
pub(super) fn read_bytes(table: &Table) -> usize {
    const ITEM_BYTES: usize = 16;
    fn of_value(value: &Value) -> usize {
        ITEM_BYTES
            + match value {
                Value::Array(items) => items.iter().map(of_value).sum(),
                Value::Table(table) => read_bytes(table),
                _ => 0,
            }
    }
    table.iter().map(|(_, value)| ITEM_BYTES + of_value(value)).sum()
}

/// A copy that shares no memory with the buffer that the table was read from.
pub(super) fn owned(table: &Table) -> Table {
    table_from(&table_bytes(table))
}

/// The table of bytes that `table_bytes` made; no bytes are an empty table.
pub(super) fn table_from(bytes: &[u8]) -> Table {
    if bytes.is_empty() {
        return Table::new();
    }
    let mut reader = Reader::new(bytes);
    let table = reader.table().expect("these bytes were written by `table_bytes`");
    reader.end().expect("these bytes were written by `table_bytes`");
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::Bool),
            any::<i8>().prop_map(Value::I8),
            any::<u8>().prop_map(Value::U8),
            any::<i16>().prop_map(Value::I16),
            any::<u16>().prop_map(Value::U16),
            any::<i32>().prop_map(Value::I32),
            any::<u32>().prop_map(Value::U32),
            any::<i64>().prop_map(Value::I64),
            any::<f32>().prop_map(Value::F32),
            any::<f64>().prop_map(Value::F64),
            (any::<u8>(), any::<u32>()).prop_map(|(scale, mantissa)| Value::Decimal { scale, mantissa }),
            bytes().prop_map(Value::LongString),
            bytes().prop_map(Value::ByteArray),
            any::<u64>().prop_map(Value::Timestamp),
            Just(Value::Void),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::vec(("[a-c]{0,3}", inner), 0..5).prop_map(|fields| Value::Table(of_fields(fields))),
            ]
        })
    }

    fn of_fields(fields: Vec<(String, Value)>) -> Table {
        let mut table = Table::new();
        for (name, value) in fields {
            table.push(name, value);
        }
        table
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_table_comes_back_as_it_was(fields in prop::collection::vec(("[a-c]{0,3}", value()), 0..6)) {
            let table = of_fields(fields);
            let bytes = table_bytes(&table);
            // By their bytes, because a float that is no number equals not even itself.
            prop_assert_eq!(table_bytes(&table_from(&bytes)), bytes.clone());
            prop_assert_eq!(format!("{:?}", table_from(&bytes)), format!("{table:?}"));
            for cut in 0..bytes.len() {
                let mut reader = Reader::new(&bytes[..cut]);
                prop_assert!(reader.table().is_err(), "cut at {}", cut);
            }
        }

        #[test]
        fn a_number_comes_back_and_has_one_spelling(number in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..11)) {
            let spell = |number| {
                let mut writer = Writer::default();
                writer.number(number);
                writer.finish()
            };
            prop_assert_eq!(Reader::new(&spell(number)).number("number"), Ok(number));
            let mut reader = Reader::new(&bytes);
            if let Ok(number) = reader.number("number") {
                prop_assert_eq!(&spell(number)[..], &bytes[..reader.at]);
            }
        }
    }

    #[test]
    fn a_number_with_a_needless_byte_is_malformed() {
        assert!(Reader::new(&[0x80, 0x00]).number("number").is_err());
        assert!(Reader::new(&[0xff; 10]).number("number").is_err());
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).number("n"), Ok(u64::MAX));
    }

    #[test]
    fn fixed_numbers_are_little_endian() {
        let mut table = Table::new();
        table.push("n", Value::U32(0x0102_0304));
        assert_eq!(&table_bytes(&table)[..], b"\x01\x01ni\x04\x03\x02\x01");
    }

    #[test]
    fn tables_nest_to_the_limit_and_no_further() {
        let nested = |levels: usize, as_array: bool| {
            let mut table = Table::new();
            for _ in 1..levels {
                let inner = if as_array { Value::Array(vec![Value::Table(table)]) } else { Value::Table(table) };
                table = Table::new();
                table.push("t", inner);
            }
            table
        };
        assert_eq!(depth(&Table::new()), 1);
        assert_eq!(depth(&nested(TABLE_DEPTH_MAX, false)), TABLE_DEPTH_MAX);
        table_from(&table_bytes(&nested(TABLE_DEPTH_MAX, false)));
        assert!(depth(&nested(TABLE_DEPTH_MAX + 1, false)) > TABLE_DEPTH_MAX);
        assert!(depth(&nested(500, true)) > TABLE_DEPTH_MAX);
        let mut bytes = [b"\x01\x01tF".as_slice(); TABLE_DEPTH_MAX].concat();
        bytes.push(0);
        assert_eq!(Reader::new(&bytes).table().map_err(|e| e.what), Err("table nested too deep"));
        let mut bytes = [b"\x01\x01tA\x01F".as_slice(); TABLE_DEPTH_MAX].concat();
        bytes.push(0);
        assert!(Reader::new(&bytes).table().is_err_and(|e| e.what.ends_with("nested too deep")));
    }

    #[test]
    fn a_lying_length_is_malformed_before_anything_is_made_for_it() {
        for bytes in
            [b"\xff\xff\xff\xff\x0f".as_slice(), b"\x01\xff\xff\x03n", b"\x01\x01nA\xff\xff\x03", b"\x01\x01n?"]
        {
            assert!(Reader::new(bytes).table().is_err(), "{bytes:?}");
        }
    }
}
