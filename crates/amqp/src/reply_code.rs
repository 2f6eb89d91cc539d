//! Reply codes, and the two errors that a peer can be told: one ends a channel, the other the
//! connection.
//!
//! Invariant: which of the two an error is follows from its code alone ([`ReplyCode::is_hard`]), as
//! in RabbitMQ, so that no caller can close a channel with a code that the protocol keeps for
//! connections.

use std::fmt;

/// The longest reply text on the wire, a short string.
pub const REPLY_TEXT_BYTES_MAX: usize = 255;

/// The reply codes of AMQP 0-9-1, with RabbitMQ's names in front of every text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ReplyCode {
    /// 200: a close without an error.
    Success = 200,
    /// 311: the content is larger than the server takes at this moment.
    ContentTooLarge = 311,
    /// 312: a mandatory message reached no queue; only in `basic.return`.
    NoRoute = 312,
    /// 313: an immediate message found no consumer; only in `basic.return`.
    NoConsumers = 313,
    /// 320: an operator or the server itself closes the connection.
    ConnectionForced = 320,
    /// 402: an unknown or malformed virtual host path.
    InvalidPath = 402,
    /// 403: no permission.
    AccessRefused = 403,
    /// 404: no such queue or exchange.
    NotFound = 404,
    /// 405: somebody else owns it exclusively.
    ResourceLocked = 405,
    /// 406: a condition for the method does not hold.
    PreconditionFailed = 406,
    /// 501: a frame that could not be taken apart.
    FrameError = 501,
    /// 502: a field with an impossible value.
    SyntaxError = 502,
    /// 503: an unknown or misplaced method.
    CommandInvalid = 503,
    /// 504: a channel that is not open, or is open already.
    ChannelError = 504,
    /// 505: a frame at the wrong place.
    UnexpectedFrame = 505,
    /// 506: a limit on resources is reached.
    ResourceError = 506,
    /// 530: not allowed, or beyond what was negotiated.
    NotAllowed = 530,
    /// 540: lawful, but this server does not do it.
    NotImplemented = 540,
    /// 541: the server's own fault.
    InternalError = 541,
}

impl ReplyCode {
    /// Every code, in the order of the numbers.
    pub const ALL: [ReplyCode; 19] = [
        Self::Success,
        Self::ContentTooLarge,
        Self::NoRoute,
        Self::NoConsumers,
        Self::ConnectionForced,
        Self::InvalidPath,
        Self::AccessRefused,
        Self::NotFound,
        Self::ResourceLocked,
        Self::PreconditionFailed,
        Self::FrameError,
        Self::SyntaxError,
        Self::CommandInvalid,
        Self::ChannelError,
        Self::UnexpectedFrame,
        Self::ResourceError,
        Self::NotAllowed,
        Self::NotImplemented,
        Self::InternalError,
    ];

    /// The number on the wire.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The name that RabbitMQ writes before the text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::ContentTooLarge => "CONTENT_TOO_LARGE",
            Self::NoRoute => "NO_ROUTE",
            Self::NoConsumers => "NO_CONSUMERS",
            Self::ConnectionForced => "CONNECTION_FORCED",
            Self::InvalidPath => "INVALID_PATH",
            Self::AccessRefused => "ACCESS_REFUSED",
            Self::NotFound => "NOT_FOUND",
            Self::ResourceLocked => "RESOURCE_LOCKED",
            Self::PreconditionFailed => "PRECONDITION_FAILED",
            Self::FrameError => "FRAME_ERROR",
            Self::SyntaxError => "SYNTAX_ERROR",
            Self::CommandInvalid => "COMMAND_INVALID",
            Self::ChannelError => "CHANNEL_ERROR",
            Self::UnexpectedFrame => "UNEXPECTED_FRAME",
            Self::ResourceError => "RESOURCE_ERROR",
            Self::NotAllowed => "NOT_ALLOWED",
            Self::NotImplemented => "NOT_IMPLEMENTED",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }

    /// Whether an error with this code ends the whole connection, whatever channel it happened on.
    pub fn is_hard(self) -> bool {
        match self {
            Self::Success
            | Self::ContentTooLarge
            | Self::NoRoute
            | Self::NoConsumers
            | Self::AccessRefused
            | Self::NotFound
            | Self::ResourceLocked
            | Self::PreconditionFailed => false,
            Self::ConnectionForced
            | Self::InvalidPath
            | Self::FrameError
            | Self::SyntaxError
            | Self::CommandInvalid
            | Self::ChannelError
            | Self::UnexpectedFrame
            | Self::ResourceError
            | Self::NotAllowed
            | Self::NotImplemented
            | Self::InternalError => true,
        }
    }
}

/// The class and method that an error blames; both 0 when no method is to blame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MethodId {
    /// The class: 10 connection, 20 channel, 40 exchange, 50 queue, 60 basic and so on.
    pub class: u16,
    /// The method within the class.
    pub method: u16,
}

impl MethodId {
    /// No method is to blame.
    pub const NONE: MethodId = MethodId { class: 0, method: 0 };
    /// `basic.publish`, whose errors come back after the method itself is long gone.
    pub const BASIC_PUBLISH: MethodId = MethodId { class: 60, method: 40 };
    pub(crate) const BASIC_GET: MethodId = MethodId { class: 60, method: 70 };
    /// `tx.commit`, which ends when its publishes are confirmed.
    pub const TX_COMMIT: MethodId = MethodId { class: 90, method: 20 };
    /// `connection.open`, which a virtual host refuses.
    pub const CONNECTION_OPEN: MethodId = MethodId { class: 10, method: 40 };

    /// The class and the method.
    pub const fn new(class: u16, method: u16) -> Self {
        Self { class, method }
    }
}

/// An error that ends one channel: `channel.close`, and its unacked messages are requeued.
///
/// A hard code escalates to the connection, see [`ReplyCode::is_hard`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} - {text}", code.name())]
pub struct ChannelError {
    /// The reply code.
    pub code: ReplyCode,
    /// The text without the code's name, which is written before it. Cut at 255 bytes in all.
    pub text: String,
    /// The method to blame; [`MethodId::NONE`] means the request that the channel waits on, if
    /// there is one.
    pub method: MethodId,
}

/// An error that ends the connection: `connection.close`, then the socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} - {text}", code.name())]
pub struct ConnectionError {
    /// The reply code.
    pub code: ReplyCode,
    /// The text without the code's name, which is written before it. Cut at 255 bytes in all.
    pub text: String,
    /// The method to blame.
    pub method: MethodId,
}

impl ChannelError {
    /// An error of the request that the channel waits on.
    pub fn new(code: ReplyCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), method: MethodId::NONE }
    }

    /// The same error, blamed on `method`.
    pub fn on(mut self, method: MethodId) -> Self {
        self.method = method;
        self
    }
}

impl ConnectionError {
    /// An error that no method is to blame for.
    pub fn new(code: ReplyCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), method: MethodId::NONE }
    }

    /// The same error, blamed on `method`.
    pub fn on(mut self, method: MethodId) -> Self {
        self.method = method;
        self
    }
}

impl From<ChannelError> for ConnectionError {
    fn from(error: ChannelError) -> Self {
        Self { code: error.code, text: error.text, method: error.method }
    }
}

/// What went wrong, before anybody knows whether it costs a channel or the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: ReplyCode,
    pub(crate) text: String,
    pub(crate) method: MethodId,
}

impl Fault {
    pub(crate) fn new(code: ReplyCode, method: MethodId, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), method }
    }
}

impl From<ChannelError> for Fault {
    fn from(error: ChannelError) -> Self {
        Self { code: error.code, text: error.text, method: error.method }
    }
}

impl From<ConnectionError> for Fault {
    fn from(error: ConnectionError) -> Self {
        Self { code: error.code, text: error.text, method: error.method }
    }
}

/// The text as it goes on the wire: the code's name, the text, cut to a short string at a
/// character's border.
pub(crate) fn wire_text(code: ReplyCode, text: &str) -> String {
    let mut whole = format!("{} - {text}", code.name());
    if whole.len() > REPLY_TEXT_BYTES_MAX {
        let mut cut = REPLY_TEXT_BYTES_MAX - 3;
        while !whole.is_char_boundary(cut) {
            cut -= 1;
        }
        whole.truncate(cut);
        whole.push_str("...");
    }
    whole
}

/// Bytes in a reply text, as Erlang prints a binary, so that texts compare with RabbitMQ's.
pub(crate) struct Snippet<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Snippet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snippet(bytes) = self;
        let printable = |b: &u8| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\';
        if bytes.is_empty() {
            return f.write_str("<<>>");
        }
        if bytes.iter().all(printable) {
            f.write_str("<<\"")?;
            bytes.iter().try_for_each(|b| write!(f, "{}", *b as char))?;
            return f.write_str("\">>");
        }
        f.write_str("<<")?;
        for (at, byte) in bytes.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{byte}")?;
        }
        f.write_str(">>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_codes_are_the_four_of_the_channel() {
        let soft: Vec<u16> =
            ReplyCode::ALL.iter().filter(|c| !c.is_hard() && c.number() >= 400).map(|c| c.number()).collect();
        assert_eq!(soft, [403, 404, 405, 406]);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = wire_text(ReplyCode::NotFound, &"é".repeat(200));
        assert!(text.len() <= REPLY_TEXT_BYTES_MAX, "{}", text.len());
        assert!(text.starts_with("NOT_FOUND - é") && text.ends_with("é..."));
    }

    #[test]
    fn bytes_print_as_erlang_prints_them() {
        assert_eq!(Snippet(b"").to_string(), "<<>>");
        assert_eq!(Snippet(b"GET /").to_string(), "<<\"GET /\">>");
        assert_eq!(Snippet(&[0, 255]).to_string(), "<<0,255>>");
    }
}
