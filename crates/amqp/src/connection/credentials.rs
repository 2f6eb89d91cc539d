//! What a client answers to `connection.start`: a user and a password, in one of two spellings.

use bytes::Bytes;

use super::config::Mechanism;
use crate::reply_code::Snippet;
use crate::wire::table::{Table, Value};

/// A user and a password.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Bytes,
    pub(crate) password: Bytes,
}

/// Reads a response; the error is a reply text, which never repeats what may be a password.
pub(crate) fn read_response(mechanism: Mechanism, response: &Bytes) -> Result<Credentials, String> {
    match mechanism {
        Mechanism::Plain => read_plain(response),
        Mechanism::AmqPlain => read_amqplain(response),
        // What an anonymous client adds is a trace for the log, which nobody vouches for.
        Mechanism::External | Mechanism::Anonymous => Ok(Credentials { user: Bytes::new(), password: Bytes::new() }),
        Mechanism::CrDemo => Ok(Credentials { user: response.clone(), password: Bytes::new() }),
    }
}

/// `[authorization id] NUL user NUL password`. RabbitMQ takes no authorization id, and neither do
/// we.
fn read_plain(response: &Bytes) -> Result<Credentials, String> {
    let invalid = || "PLAIN response invalid".to_owned();
    if response.first() != Some(&0) {
        return Err(invalid());
    }
    let second = 1 + response[1..].iter().position(|b| *b == 0).ok_or_else(invalid)?;
    if response[second + 1..].contains(&0) {
        return Err(invalid());
    }
    Ok(Credentials { user: response.slice(1..second), password: response.slice(second + 1..) })
}

/// The fields of a table, without its length.
fn read_amqplain(response: &Bytes) -> Result<Credentials, String> {
    let table = Table::decode_fields(response).map_err(|error| format!("AMQPLAIN auth info is no table: {error}"))?;
    let field = |name: &str| match table.get(name) {
        Some(Value::LongString(bytes) | Value::ByteArray(bytes)) => Ok(bytes.clone()),
        Some(_) => Err("AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field".to_owned()),
        None => Err("AMQPLAIN auth info is missing LOGIN or PASSWORD field".to_owned()),
    };
    Ok(Credentials { user: field("LOGIN")?, password: field("PASSWORD")? })
}

/// What RABBIT-CR-DEMO asks once it knows the user.
pub(crate) const CHALLENGE: &[u8] = b"Please tell me your password";

/// The password in the answer to [`CHALLENGE`].
pub(crate) fn read_challenge_response(response: &Bytes) -> Result<Bytes, String> {
    let prefix = b"My password is ";
    match response.starts_with(prefix) {
        true => Ok(response.slice(prefix.len()..)),
        false => Err("RABBIT-CR-DEMO response invalid".to_owned()),
    }
}

/// The text for a mechanism that is not offered.
pub(crate) fn unknown_mechanism(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => format!("unknown authentication mechanism '{name}'"),
        Err(_) => format!("unknown authentication mechanism {}", Snippet(name)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plain_is_user_and_password_between_zeros() {
        let read = |bytes: &'static [u8]| read_plain(&Bytes::from_static(bytes));
        let guest = Credentials { user: Bytes::from_static(b"guest"), password: Bytes::from_static(b"pw") };
        assert_eq!(read(b"\0guest\0pw").unwrap(), guest);
        assert_eq!(read(b"\0\0").unwrap().user, &b""[..]);
        for bad in [&b""[..], b"guest\0pw", b"\0guest", b"\0guest\0pw\0", b"id\0guest\0pw"] {
            assert_eq!(read(bad).unwrap_err(), "PLAIN response invalid", "{bad:?}");
        }
    }

    #[test]
    fn amqplain_is_a_table_without_its_length() {
        let read = |bytes: &[u8]| read_amqplain(&Bytes::copy_from_slice(bytes));
        let good = read(b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x02pw").unwrap();
        assert_eq!((&good.user[..], &good.password[..]), (&b"guest"[..], &b"pw"[..]));
        assert!(read(b"\x05LOGINS\0\0\0\x05guest").unwrap_err().contains("missing"));
        assert!(read(b"\x05LOGINV\x08PASSWORDV").unwrap_err().contains("unsupported type"));
        assert!(read(b"\x05LOGIN").unwrap_err().contains("no table"));
    }
}
