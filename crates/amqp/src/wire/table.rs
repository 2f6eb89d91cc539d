//! AMQP 0-9-1 field tables and values: the arguments of declares, the headers of messages, the properties of peers.
//!
//! Invariant: a table keeps its fields in the order in which they came, repeats included, so that what is decoded and
//! encoded again is the same bytes. Looking a field up takes the first with that name.

use bytes::Bytes;

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

    /// The first value with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(n, _)| n == name.as_bytes()).map(|(_, v)| v)
    }

    /// The fields in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Value)> {
        self.fields.iter().map(|(n, v)| (n, v))
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
