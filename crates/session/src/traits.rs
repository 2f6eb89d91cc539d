//! What a message's own properties ask of the broker, read only where they can ask for anything.
//!
//! Invariant: a message that asks for something this version does not do is refused, never taken
//! and the wish ignored.

use amqp::wire::headers::Headers;
use amqp::{ChannelError, MethodId, Properties, ReplyCode, Value};
use broker::topology::{NAME_BYTES_MAX, type_name};
use bytes::Bytes;
use partition::Level;

/// Property flags, by their bits in the first two bytes of the content header's properties.
const HEADERS: u16 = 1 << 13;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const USER_ID: u16 = 1 << 4;

/// The header that chooses a message's level.
const DURABILITY_HEADER: &str = "x-durability";

/// Whose users may publish in the name of others.
pub(super) const IMPERSONATOR_TAG: &[u8] = b"impersonator";

/// The name that asks for an answer over the asker's own channel.
pub(super) const DIRECT_REPLY_TO: &[u8] = b"amq.rabbitmq.reply-to";

/// Whether the properties can ask for anything at all. The common message has a content type and a
/// delivery mode.
#[inline]
pub(super) fn may_ask(properties: &[u8]) -> bool {
    match properties.first_chunk::<2>() {
        Some(flags) => u16::from_be_bytes(*flags) & (HEADERS | REPLY_TO | EXPIRATION | USER_ID) != 0,
        None => false,
    }
}

fn refused(code: ReplyCode, text: String) -> ChannelError {
    ChannelError { code, text, method: MethodId::BASIC_PUBLISH }
}

fn parse(properties: &[u8]) -> Properties<'_> {
    Properties::parse(properties).expect("the machine checks the properties of every message")
}

/// RabbitMQ's bound for a time limit: ten years.
const EXPIRATION_MS_MAX: u64 = broker::topology::EXPIRY_MS_MAX as u64;

/// Where a message asks to go besides its routing key.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Copies {
    /// The routing keys in its headers CC and BCC.
    pub(super) keys: Vec<Bytes>,
    /// It has a header BCC, which no receiver may see.
    pub(super) has_blind: bool,
}

/// What a message asks of its channel.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    /// It wants its answer over the channel it came by.
    pub(super) asks_for_reply: bool,
    /// Where else it is to go.
    pub(super) copies: Copies,
}

/// Refuses what this version does not do, and what RabbitMQ refuses, and says what the message asks
/// for. `may_impersonate` says whether the user may claim to be another one.
pub(super) fn check(
    properties: &[u8],
    user: &[u8],
    may_impersonate: impl FnOnce() -> bool,
) -> Result<Asked, ChannelError> {
    let parsed = parse(properties);
    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Some(claimed) = parsed.user_id
        && claimed != user
        && !may_impersonate()
    {
        let text = format!("user_id property set to '{}' but authenticated user was '{}'", show(claimed), show(user));
        return Err(refused(ReplyCode::PreconditionFailed, text));
    }
    if let Some(expiration) = parsed.expiration {
        check_expiration(expiration)?;
    }
    match broker::properties::delay(properties) {
        Ok(Some(ms)) if ms > i128::from(DELAY_MS_MAX) => {
            let text = format!("header 'x-delay' is {ms}: at most {DELAY_MS_MAX} milliseconds");
            return Err(refused(ReplyCode::PreconditionFailed, text));
        }
        Ok(_) => {}
        Err(broker::properties::NoDelay) => {
            let text = "header 'x-delay' is no whole number of milliseconds".to_owned();
            return Err(refused(ReplyCode::PreconditionFailed, text));
        }
    }
    let asks_for_reply = parsed.reply_to == Some(DIRECT_REPLY_TO);
    Ok(Asked { asks_for_reply, copies: copies_in(parsed.headers.unwrap_or_default())? })
}

/// The copies of a message that was checked when it came.
pub(super) fn copies(properties: &[u8]) -> Copies {
    match may_ask(properties) {
        true => copies_in(parse(properties).headers.unwrap_or_default()).unwrap_or_default(),
        false => Copies::default(),
    }
}

/// The routing keys in the headers CC and BCC: arrays, of which the strings count.
fn copies_in(fields: &[u8]) -> Result<Copies, ChannelError> {
    let mut copies = Copies::default();
    for header in Headers::new(fields).iter().filter(|header| matches!(header.name, b"CC" | b"BCC")) {
        let name = String::from_utf8_lossy(header.name);
        copies.has_blind |= header.name == b"BCC";
        if header.letter() != b'A' {
            let word = header.decode().map_or("unknown", |value| type_name(&value));
            let text = format!("invalid message: {{unacceptable_type_in_header,\"{name}\",{word}}}");
            return Err(refused(ReplyCode::PreconditionFailed, text));
        }
        for key in header.strings() {
            if key.len() > NAME_BYTES_MAX {
                let text = format!("header '{name}' has a routing key of more than {NAME_BYTES_MAX} bytes");
                return Err(refused(ReplyCode::PreconditionFailed, text));
            }
            copies.keys.push(key);
        }
    }
    Ok(copies)
}

/// Whether a header is there and says true.
pub(super) fn is_true(properties: &[u8], header: &[u8]) -> bool {
    may_ask(properties)
        && Headers::new(parse(properties).headers.unwrap_or_default())
            .get(header)
            .is_some_and(|header| header.decode() == Ok(Value::Bool(true)))
}

/// How long the message asks to wait before it is there for consumers, in milliseconds.
#[inline]
pub(super) fn delay_ms(properties: &[u8]) -> u64 {
    match properties.first_chunk::<2>() {
        Some(flags) if u16::from_be_bytes(*flags) & HEADERS != 0 => broker::properties::delay_ms(properties),
        _ => 0,
    }
}

/// The longest wait of a scheduled message: ten years, as for everything that expires.
const DELAY_MS_MAX: u64 = EXPIRATION_MS_MAX;

/// Whether a message's own time limit is one. Errors: RabbitMQ's, whose texts are terms of its
/// language.
fn check_expiration(expiration: &[u8]) -> Result<(), ChannelError> {
    let show = String::from_utf8_lossy(expiration);
    let digits = expiration.strip_prefix(b"-").or(expiration.strip_prefix(b"+")).unwrap_or(expiration);
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let why = if count == 0 {
        "no_integer".to_owned()
    } else if count < digits.len() {
        format!("{{leftover_string,\"{}\"}}", String::from_utf8_lossy(&digits[count..]))
    } else {
        match show.strip_prefix('+').unwrap_or(&show).parse::<i128>() {
            Ok(ms) if ms < 0 => format!("{{value_negative,{ms}}}"),
            Ok(ms) if ms <= i128::from(EXPIRATION_MS_MAX) => return Ok(()),
            Ok(ms) => format!("{{value_too_large,{ms}}}"),
            Err(_) => format!("{{value_too_large,{show}}}"),
        }
    };
    let text = format!("invalid expiration '{show}': {why}");
    Err(refused(ReplyCode::PreconditionFailed, text))
}

/// The level that a message asks for itself, if it does. Errors: a word that is no level.
pub(super) fn level(properties: &[u8]) -> Result<Option<Level>, ChannelError> {
    let headers = Headers::new(parse(properties).headers.unwrap_or_default());
    let Some(header) = headers.get(DURABILITY_HEADER.as_bytes()) else { return Ok(None) };
    match header.as_string() {
        Some(b"synced") => Ok(Some(Level::Synced)),
        Some(b"written") => Ok(Some(Level::Written)),
        Some(b"leader-synced") => Ok(Some(Level::LeaderSynced)),
        Some(b"leader-written") => Ok(Some(Level::LeaderWritten)),
        _ => {
            let words = "'synced', 'written', 'leader-synced' or 'leader-written'";
            let text = format!("header '{DURABILITY_HEADER}' must be the string {words}");
            Err(refused(ReplyCode::PreconditionFailed, text))
        }
    }
}

/// The value that a message adds to what is at risk: 0 without the header, rounded up. Errors: no
/// number, or a negative one, since a sum that can fall proves nothing.
pub(super) fn value(properties: &[u8], header: &[u8]) -> Result<u64, ChannelError> {
    let headers = Headers::new(parse(properties).headers.unwrap_or_default());
    let found = headers.get(header).map(|header| header.decode().unwrap_or(Value::Void));
    let wrong = || {
        let text = format!("header '{}' must be a number and not negative", String::from_utf8_lossy(header));
        refused(ReplyCode::PreconditionFailed, text)
    };
    let integer = |number: i64| u64::try_from(number).map_err(|_| wrong());
    let float = |number: f64| match number >= 0.0 {
        // Beyond the range of u64 the cast gives its largest value, which passes every cap.
        true => Ok(number.ceil() as u64),
        false => Err(wrong()),
    };
    match found {
        None | Some(Value::Void) => Ok(0),
        Some(Value::I8(number)) => integer(number.into()),
        Some(Value::U8(number)) => Ok(number.into()),
        Some(Value::I16(number)) => integer(number.into()),
        Some(Value::U16(number)) => Ok(number.into()),
        Some(Value::I32(number)) => integer(number.into()),
        Some(Value::U32(number)) => Ok(number.into()),
        Some(Value::I64(number)) => integer(number),
        Some(Value::F32(number)) => float(number.into()),
        Some(Value::F64(number)) => float(number),
        Some(Value::Decimal { scale, mantissa }) => {
            Ok(u64::from(mantissa).div_ceil(10u64.checked_pow(scale.into()).unwrap_or(u64::MAX)))
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use amqp::Table;

    fn with_headers(fields: &[(&'static str, Value)]) -> Vec<u8> {
        let mut table = Table::new();
        fields.iter().for_each(|(name, value)| table.push(*name, value.clone()));
        let encoded = table.encode();
        let mut out = Vec::new();
        let headers = &encoded[4..];
        Properties { headers: Some(headers), ..Properties::default() }.encode_to(&mut out);
        out
    }

    fn text(word: &'static str) -> Value {
        Value::LongString(bytes::Bytes::from_static(word.as_bytes()))
    }

    fn encoded(properties: Properties<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        properties.encode_to(&mut out);
        out
    }

    #[test]
    fn only_messages_that_can_ask_for_something_are_looked_at() {
        let plain = Properties { content_type: Some(b"text/plain"), delivery_mode: Some(2), ..Properties::default() };
        assert!(!may_ask(&encoded(plain)));
        assert!(may_ask(&encoded(Properties { expiration: Some(b"5"), ..plain })));
        assert!(may_ask(&with_headers(&[("a", Value::Bool(true))])));
    }

    #[test]
    fn what_is_not_there_yet_is_refused_with_its_name() {
        let code = |properties: &[u8]| {
            check(properties, b"guest", || false).map(|asked| asked.asks_for_reply).map_err(|e| (e.code, e.text))
        };
        let refused = code(&encoded(Properties { user_id: Some(b"eve"), ..Properties::default() })).unwrap_err();
        assert_eq!(refused.0, ReplyCode::PreconditionFailed);
        assert_eq!(refused.1, "user_id property set to 'eve' but authenticated user was 'guest'");
        assert!(code(&encoded(Properties { user_id: Some(b"guest"), ..Properties::default() })).is_ok());
        for bad in [&b"5s"[..], b"", b"-1", b"315360000001", b"99999999999999999999999999999999999999999"] {
            let refused = code(&encoded(Properties { expiration: Some(bad), ..Properties::default() })).unwrap_err();
            assert_eq!(refused.0, ReplyCode::PreconditionFailed, "{bad:?}");
        }
        assert!(code(&encoded(Properties { expiration: Some(b"315360000000"), ..Properties::default() })).is_ok());
        assert_eq!(delay_ms(&with_headers(&[("x-delay", Value::I32(5))])), 5);
        assert_eq!(delay_ms(&with_headers(&[("x-delay", Value::I32(-5))])), 0);
        for same in [text("1000"), Value::F64(1000.0), Value::F32(1000.0), Value::I8(10)] {
            let properties = with_headers(&[("x-delay", same.clone())]);
            assert!(code(&properties).is_ok(), "{same:?}");
            let ms = if same == Value::I8(10) { 10 } else { 1000 };
            assert_eq!(delay_ms(&properties), ms, "{same:?}");
            let over = broker::properties::delay_over(&properties);
            let headers = Headers::new(parse(&over).headers.unwrap());
            assert_eq!(headers.get(b"x-delay").unwrap().decode().unwrap(), Value::I32(-(ms as i32)));
        }
        let decimal = Value::Decimal { scale: 1, mantissa: 10_000 };
        let no_numbers =
            [text("soon"), text(""), text("1.5"), Value::F64(0.5), Value::F64(f64::INFINITY), Value::F64(1e30)];
        for bad in no_numbers.into_iter().chain([Value::Bool(true), Value::Void, decimal]) {
            let refused = code(&with_headers(&[("x-delay", bad.clone())])).unwrap_err();
            assert_eq!(refused.0, ReplyCode::PreconditionFailed, "{bad:?}");
        }
        let far = code(&with_headers(&[("x-delay", Value::I64(i64::MAX))])).unwrap_err();
        assert_eq!(far.0, ReplyCode::PreconditionFailed);
        let reply = encoded(Properties { reply_to: Some(DIRECT_REPLY_TO), ..Properties::default() });
        assert_eq!(code(&reply), Ok(true));
        assert_eq!(code(&encoded(Properties { reply_to: Some(b"q"), ..Properties::default() })), Ok(false));
    }

    #[test]
    fn copies_are_the_strings_of_two_headers_and_nothing_else() {
        let of = |fields: &[(&'static str, Value)]| {
            check(&with_headers(fields), b"guest", || false).map(|asked| asked.copies)
        };
        let list = |words: &[&'static str]| Value::Array(words.iter().map(|word| text(word)).collect());
        let mixed = Value::Array(vec![Value::I32(5), text("d")]);
        let copies = of(&[("BCC", list(&["a"])), ("CC", list(&["b", "c"])), ("ACC", text("\u{2}CC"))]).unwrap();
        assert_eq!(
            (copies.keys.as_slice(), copies.has_blind),
            (&[&b"a"[..], b"b", b"c"].map(Bytes::from_static)[..], true)
        );
        let copies = of(&[("CC", mixed)]).unwrap();
        assert_eq!((copies.keys.as_slice(), copies.has_blind), (&[Bytes::from_static(b"d")][..], false));
        assert_eq!(of(&[("cc", text("a"))]).unwrap(), Copies::default());
        let many = ["k"; 10_000];
        assert_eq!(of(&[("CC", list(&many))]).unwrap().keys.len(), many.len(), "as many as a frame has room for");
        let refused = of(&[("CC", text("a"))]).unwrap_err();
        assert_eq!(refused.code, ReplyCode::PreconditionFailed);
        assert_eq!(refused.text, "invalid message: {unacceptable_type_in_header,\"CC\",longstr}");
        let long = Value::Array(vec![Value::LongString(Bytes::from(vec![b'k'; 256]))]);
        assert_eq!(of(&[("BCC", long)]).unwrap_err().code, ReplyCode::PreconditionFailed);
    }

    #[test]
    fn only_an_impersonator_may_name_another_user() {
        let claimed = encoded(Properties { user_id: Some(b"eve"), ..Properties::default() });
        assert!(check(&claimed, b"guest", || true).is_ok());
        assert!(check(&claimed, b"guest", || false).is_err());
    }

    #[test]
    fn a_message_chooses_between_two_levels_and_no_other() {
        assert_eq!(level(&with_headers(&[("x-durability", text("written"))])).unwrap(), Some(Level::Written));
        assert_eq!(level(&with_headers(&[("x-durability", text("synced"))])).unwrap(), Some(Level::Synced));
        let of_leader = |word| level(&with_headers(&[("x-durability", text(word))])).unwrap();
        assert_eq!(of_leader("leader-synced"), Some(Level::LeaderSynced));
        assert_eq!(of_leader("leader-written"), Some(Level::LeaderWritten));
        assert_eq!(level(&with_headers(&[("a", text("x-durability"))])).unwrap(), None);
        let wrong = level(&with_headers(&[("x-durability", text("maybe"))])).unwrap_err();
        assert_eq!(wrong.code, ReplyCode::PreconditionFailed);
    }

    #[test]
    fn a_value_is_a_number_that_is_not_negative_rounded_up() {
        let of = |v: Value| value(&with_headers(&[("amount", v)]), b"amount").map_err(|e| e.code);
        assert_eq!(of(Value::I32(5)), Ok(5));
        assert_eq!(of(Value::F64(1.25)), Ok(2));
        assert_eq!(of(Value::F64(1e300)), Ok(u64::MAX));
        assert_eq!(of(Value::Decimal { scale: 2, mantissa: 101 }), Ok(2));
        for bad in [Value::I64(-1), Value::F32(-0.5), Value::F64(f64::NAN), text("5"), Value::Bool(true)] {
            assert_eq!(of(bad), Err(ReplyCode::PreconditionFailed));
        }
        assert_eq!(value(&with_headers(&[("other", Value::I32(5))]), b"amount"), Ok(0));
    }
}
