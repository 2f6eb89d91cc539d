//! The topology's refusals in the words of the AMQP machine.
//!
//! Invariant: the one place where a refusal becomes a reply code; which codes end the connection
//! the machine knows.

use amqp::{ChannelError, ConnectionError, MethodId, ReplyCode};
use broker::topology::Refusal;

fn code(number: u16) -> ReplyCode {
    let found = ReplyCode::ALL.into_iter().find(|code| code.number() == number);
    found.expect("the topology refuses with AMQP's codes")
}

/// The machine writes the code's name before the text itself.
fn text(refusal: &Refusal, code: ReplyCode) -> String {
    let text = &refusal.text;
    text.strip_prefix(code.name()).and_then(|rest| rest.strip_prefix(" - ")).unwrap_or(text).to_owned()
}

/// A refusal of the request that a channel waits on.
pub(super) fn channel_error(refusal: Refusal) -> ChannelError {
    let code = code(refusal.code);
    assert!(code.is_hard() == refusal.hard, "a code alone says what it ends");
    ChannelError { code, text: text(&refusal, code), method: MethodId::NONE }
}

/// A refusal of a publish, whose method is long gone.
pub(super) fn publish_error(refusal: Refusal) -> ChannelError {
    ChannelError { method: MethodId::BASIC_PUBLISH, ..channel_error(refusal) }
}

/// A refusal of the connection itself.
pub(super) fn connection_error(refusal: Refusal) -> ConnectionError {
    let code = code(refusal.code);
    ConnectionError { code, text: text(&refusal, code), method: MethodId::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_code_is_not_written_twice() {
        let refusal = Refusal { code: 404, text: "NOT_FOUND - no queue 'q' in vhost '/'".to_owned(), hard: false };
        let error = channel_error(refusal);
        assert_eq!((error.code, &*error.text), (ReplyCode::NotFound, "no queue 'q' in vhost '/'"));
    }
}
