//! Bytes of AMQP 0-9-1 as a client writes and reads them: arguments, field tables, content
//! properties.
//!
//! Invariant: nothing is checked on the way out, so that a test can send what no client library
//! would.

/// Builds the arguments of a method, field by field.
#[derive(Clone, Default)]
pub struct Args(pub Vec<u8>);

impl Args {
    /// No arguments yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an octet; also the packed bits of a method.
    pub fn octet(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Appends up to eight consecutive bits, the first one lowest.
    pub fn bits(self, bits: &[bool]) -> Self {
        let packed = bits.iter().enumerate().map(|(at, bit)| u8::from(*bit) << at).sum();
        self.octet(packed)
    }

    /// Appends a 16-bit number.
    pub fn short(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends a 32-bit number.
    pub fn long(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends a 64-bit number.
    pub fn longlong(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Appends a short string of at most 255 bytes.
    pub fn shortstr(mut self, value: &str) -> Self {
        let length = u8::try_from(value.len()).expect("a short string has at most 255 bytes");
        self.0.push(length);
        self.0.extend(value.as_bytes());
        self
    }

    /// Appends a long string.
    pub fn longstr(mut self, value: &[u8]) -> Self {
        self.0.extend(u32::try_from(value.len()).expect("a test's string is small").to_be_bytes());
        self.0.extend(value);
        self
    }

    /// Appends a field table.
    pub fn table(self, fields: &[(&str, Value)]) -> Self {
        let body = table_body(fields);
        self.longstr(&body)
    }
}

/// A field value, of the types that the tests write or look at.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: scale and unscaled value.
    Decimal(u8, u32),
    /// `S`
    Str(String),
    /// `x`
    Bytes(Vec<u8>),
    /// `A`
    Array(Vec<Value>),
    /// `T`, seconds.
    Timestamp(u64),
    /// `F`
    Table(Vec<(String, Value)>),
    /// `V`
    Void,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Str(text.to_owned())
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Value::I32(number)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::I64(number)
    }
}

impl From<bool> for Value {
    fn from(bit: bool) -> Self {
        Value::Bool(bit)
    }
}

impl Value {
    /// The number of any integer type, for comparing by value as RabbitMQ does.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::I8(n) => Some((*n).into()),
            Value::U8(n) => Some((*n).into()),
            Value::I16(n) => Some((*n).into()),
            Value::U16(n) => Some((*n).into()),
            Value::I32(n) => Some((*n).into()),
            Value::U32(n) => Some((*n).into()),
            Value::I64(n) => Some(*n),
            _ => None,
        }
    }

    /// Appends the type octet and the value.
    pub fn write(&self, out: &mut Vec<u8>) {
        fn sized(out: &mut Vec<u8>, body: &[u8]) {
            out.extend(u32::try_from(body.len()).expect("a test's value is small").to_be_bytes());
            out.extend(body);
        }
        let mut put = |tag: u8, bytes: &[u8]| {
            out.push(tag);
            out.extend(bytes);
        };
        match self {
            Value::Bool(bit) => put(b't', &[u8::from(*bit)]),
            Value::I8(n) => put(b'b', &n.to_be_bytes()),
            Value::U8(n) => put(b'B', &n.to_be_bytes()),
            Value::I16(n) => put(b's', &n.to_be_bytes()),
            Value::U16(n) => put(b'u', &n.to_be_bytes()),
            Value::I32(n) => put(b'I', &n.to_be_bytes()),
            Value::U32(n) => put(b'i', &n.to_be_bytes()),
            Value::I64(n) => put(b'l', &n.to_be_bytes()),
            Value::F32(n) => put(b'f', &n.to_be_bytes()),
            Value::F64(n) => put(b'd', &n.to_be_bytes()),
            Value::Decimal(scale, unscaled) => {
                put(b'D', &[*scale]);
                out.extend(unscaled.to_be_bytes());
            }
            Value::Timestamp(seconds) => put(b'T', &seconds.to_be_bytes()),
            Value::Void => out.push(b'V'),
            Value::Str(text) => {
                out.push(b'S');
                sized(out, text.as_bytes());
            }
            Value::Bytes(bytes) => {
                out.push(b'x');
                sized(out, bytes);
            }
            Value::Array(items) => {
                let mut body = Vec::new();
                items.iter().for_each(|item| item.write(&mut body));
                out.push(b'A');
                sized(out, &body);
            }
            Value::Table(fields) => {
                let borrowed: Vec<(&str, Value)> = fields.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
                out.push(b'F');
                sized(out, &table_body(&borrowed));
            }
        }
    }
}

/// A field table's content, without its leading length.
pub fn table_body(fields: &[(&str, Value)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.push(u8::try_from(name.len()).expect("a field name has at most 255 bytes"));
        body.extend(name.as_bytes());
        value.write(&mut body);
    }
    body
}

/// Reads the fields of a method or a table. Panics on malformed bytes: a broker that sends them has
/// failed the test.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        assert!(count <= self.0.len(), "the broker sent {} bytes where {count} were due", self.0.len());
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("take returns what it was asked for")
    }

    /// An octet.
    pub fn octet(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// A 16-bit number.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// A 32-bit number.
    pub fn long(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// A 64-bit number.
    pub fn longlong(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A short string.
    pub fn shortstr(&mut self) -> String {
        let length = self.octet().into();
        String::from_utf8(self.take(length).to_vec()).expect("the broker sends UTF-8")
    }

    /// A long string.
    pub fn longstr(&mut self) -> &'a [u8] {
        let length = self.long() as usize;
        self.take(length)
    }

    /// A field table with its length.
    pub fn table(&mut self) -> Vec<(String, Value)> {
        let mut body = Reader(self.longstr());
        let mut fields = Vec::new();
        while !body.0.is_empty() {
            fields.push((body.shortstr(), body.value()));
        }
        fields
    }

    fn value(&mut self) -> Value {
        match self.octet() {
            b't' => Value::Bool(self.octet() != 0),
            b'b' => Value::I8(i8::from_be_bytes(self.array())),
            b'B' => Value::U8(self.octet()),
            b's' => Value::I16(i16::from_be_bytes(self.array())),
            b'u' => Value::U16(self.short()),
            b'I' => Value::I32(i32::from_be_bytes(self.array())),
            b'i' => Value::U32(self.long()),
            b'l' => Value::I64(i64::from_be_bytes(self.array())),
            b'f' => Value::F32(f32::from_be_bytes(self.array())),
            b'd' => Value::F64(f64::from_be_bytes(self.array())),
            b'D' => Value::Decimal(self.octet(), self.long()),
            b'S' => Value::Str(String::from_utf8_lossy(self.longstr()).into_owned()),
            b'x' => Value::Bytes(self.longstr().to_vec()),
            b'T' => Value::Timestamp(self.longlong()),
            b'F' => Value::Table(self.table()),
            b'V' => Value::Void,
            b'A' => {
                let mut body = Reader(self.longstr());
                let mut items = Vec::new();
                while !body.0.is_empty() {
                    items.push(body.value());
                }
                Value::Array(items)
            }
            other => panic!("the broker sent a field of unknown type {:?}", char::from(other)),
        }
    }
}

/// Content properties as flags and bytes, kept verbatim so that a test can compare what went in
/// with what comes out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    /// The property flags, bit 15 first.
    pub flags: u16,
    /// The property list that belongs to the flags.
    pub bytes: Vec<u8>,
}

const FLAG_HEADERS: u16 = 1 << 13;
const FLAG_DELIVERY_MODE: u16 = 1 << 12;
const FLAG_EXPIRATION: u16 = 1 << 8;

impl Properties {
    /// Delivery mode 2 and nothing else.
    pub fn persistent() -> Self {
        Self { flags: FLAG_DELIVERY_MODE, bytes: vec![2] }
    }

    /// Delivery mode 2 and a header table.
    pub fn with_headers(fields: &[(&str, Value)]) -> Self {
        let bytes = Args::new().table(fields).octet(2).0;
        Self { flags: FLAG_HEADERS | FLAG_DELIVERY_MODE, bytes }
    }

    /// These with a time limit; there is nothing behind it yet.
    pub fn with_expiration(self, expiration: &str) -> Self {
        let bytes = Args(self.bytes).shortstr(expiration).0;
        Self { flags: self.flags | FLAG_EXPIRATION, bytes }
    }

    /// The time limit, if there is one.
    pub fn expiration(&self) -> Option<String> {
        let mut reader = Reader(&self.bytes);
        for bit in (9..16).rev().filter(|bit| self.flags & (1 << bit) != 0) {
            match bit {
                13 => drop(reader.table()),
                11 | 12 => drop(reader.octet()),
                _ => drop(reader.shortstr()),
            }
        }
        (self.flags & FLAG_EXPIRATION != 0).then(|| reader.shortstr())
    }

    /// One property alone, by its flag bit and its encoded bytes.
    pub fn only(bit: u32, bytes: Vec<u8>) -> Self {
        Self { flags: 1 << bit, bytes }
    }

    /// The header table; empty when there is none.
    pub fn headers(&self) -> Vec<(String, Value)> {
        let mut reader = Reader(&self.bytes);
        if self.flags & (1 << 15) != 0 {
            reader.shortstr();
        }
        if self.flags & (1 << 14) != 0 {
            reader.shortstr();
        }
        if self.flags & FLAG_HEADERS == 0 { Vec::new() } else { reader.table() }
    }

    /// One header by its name.
    pub fn header(&self, name: &str) -> Option<Value> {
        self.headers().into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}
