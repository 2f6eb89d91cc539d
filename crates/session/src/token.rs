//! Logins by a token, its renewal and its end.
//!
//! Invariant: a connection that was let in by a token has the rights that its latest token gives,
//! and no longer than that token lasts: then it is closed, so that no consumer goes on either. A
//! new token is of the same user, or the connection ends.

use crate::client::Client;
use crate::host::Host;
use crate::session::{Cx, NEVER, Session, log_text};
use amqp::{ConnectionError, MethodId, Millis, ReplyCode};
use broker::topology::{Actor, Token};
use bytes::Bytes;
use std::sync::Arc;

/// The wall's clock may be set: it is looked at again at least as often.
const LOOK_AGAIN_MS: Millis = 60_000;

const EXPIRED: &str = "the token has expired";
/// RabbitMQ's words.
const SECRET_REFUSED: &str = "New secret was refused by one of the backends";

/// Whether a password has the form of a token: a JSON object, something, and perhaps a signature,
/// in base64 with dots between. Nobody chooses such a password.
pub fn is_token(password: &[u8]) -> bool {
    let mut parts = password.split(|byte| *byte == b'.');
    let is_part = |part: &[u8]| part.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'='));
    let (Some(head), Some(body), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // `{` and what may follow it.
    let is_object = head.len() >= 8 && (head.starts_with(b"ey") || head.starts_with(b"ew"));
    is_object && !body.is_empty() && [head, body, signature].into_iter().all(is_part)
}

/// The answer to `connection.open` where the token ended meanwhile.
pub(crate) fn over() -> ConnectionError {
    ConnectionError { code: ReplyCode::NotAllowed, text: EXPIRED.to_owned(), method: MethodId::NONE }
}

impl Session {
    /// Who asks, with the rights that they have by a token.
    pub(crate) fn actor(&self) -> Actor<'_> {
        let scopes = self.token.as_ref().map(|token| &token.scopes);
        Actor { user: &self.user, connection: self.connection, scopes }
    }

    /// Whether the user has a tag.
    pub(crate) fn has_tag(&self, tag: &[u8], cx: &Cx<'_, impl Host>) -> bool {
        match &self.token {
            Some(token) => token.has_tag(tag),
            None => cx.host.topology().has_tag(&self.user, tag),
        }
    }

    /// A token was looked at elsewhere: whom it names, or why it counts for nothing.
    pub fn handle_token(&mut self, outcome: Result<Arc<Token>, &'static str>, cx: &mut Cx<'_, impl Host>, now: Millis) {
        if std::mem::take(&mut self.renews) {
            return self.renew(outcome, cx, now);
        }
        let outcome = outcome.map(|token| {
            self.take_token(token);
        });
        self.end_login(outcome, cx, now);
    }

    /// `connection.update-secret`.
    pub(crate) fn update_secret(&mut self, secret: Bytes, reason: &[u8], cx: &mut Cx<'_, impl Host>) {
        let (user, reason) = (log_text(&self.user), log_text(reason));
        if self.token.is_none() {
            // Passwords are checked at login only and rights at every operation, so a renewed
            // password has nothing to refresh.
            tracing::info!(peer = %self.peer, user = &*user, ?reason, "secret updated");
            return cx.client.secret_updated(Ok(()));
        }
        // One at a time: who sends tokens without waiting has others wait.
        if self.renews || !is_token(&secret) || !cx.host.check_token(secret) {
            return self.refuse_secret("not a token, or one too many", cx);
        }
        self.renews = true;
    }

    fn renew(&mut self, outcome: Result<Arc<Token>, &'static str>, cx: &mut Cx<'_, impl Host>, now: Millis) {
        if cx.client.is_finished() || cx.client.is_closing() {
            return;
        }
        let token = match outcome {
            Err(reason) => return self.refuse_secret(reason, cx),
            Ok(token) if *token.user != *self.user => return self.refuse_secret("it is another user's", cx),
            Ok(token) => token,
        };
        let before = self.token.replace(token);
        if !cx.host.topology().uses(self.actor(), self.vhost) {
            self.token = before;
            return self.refuse_secret("it does not give access to the virtual host", cx);
        }
        // What may be published was asked of the token before.
        self.channels.iter_mut().for_each(|channel| channel.routes.forget_all());
        self.watch_token(cx, now);
        let user = log_text(&self.user);
        tracing::info!(peer = %self.peer, user = &*user, lasts_s = self.token_lasts_s(cx), "token renewed");
        cx.client.secret_updated(Ok(()));
    }

    fn refuse_secret(&mut self, reason: &'static str, cx: &mut Cx<'_, impl Host>) {
        let user = log_text(&self.user);
        tracing::warn!(peer = %self.peer, user = &*user, reason, "token not renewed");
        let text = SECRET_REFUSED.to_owned();
        let error = ConnectionError { code: ReplyCode::NotAllowed, text, method: MethodId::NONE };
        cx.client.secret_updated(Err(error));
    }

    /// How long the token lasts.
    pub(crate) fn token_lasts_s(&self, cx: &Cx<'_, impl Host>) -> Option<u64> {
        self.token.as_ref().map(|token| token.expires_ms.saturating_sub(cx.host.wall_ms()) / 1000)
    }

    /// Whether there is a token that has come to its end.
    pub(crate) fn is_token_over(&self, cx: &Cx<'_, impl Host>) -> bool {
        self.token.as_ref().is_some_and(|token| token.expires_ms <= cx.host.wall_ms())
    }

    /// Looks at the token again when it ends.
    pub(crate) fn watch_token(&mut self, cx: &Cx<'_, impl Host>, now: Millis) {
        self.expires_at = match &self.token {
            Some(token) => now + token.expires_ms.saturating_sub(cx.host.wall_ms()).clamp(1, LOOK_AGAIN_MS),
            None => NEVER,
        };
    }

    /// Closes the connection if its token has come to its end.
    pub(crate) fn look_at_token(&mut self, cx: &mut Cx<'_, impl Host>, now: Millis) {
        if !self.is_token_over(cx) {
            return self.watch_token(cx, now);
        }
        self.expires_at = NEVER;
        if cx.client.is_finished() || cx.client.is_closing() {
            return;
        }
        let user = log_text(&self.user);
        tracing::info!(peer = %self.peer, user = &*user, "token expired: the connection is closed");
        let text = EXPIRED.to_owned();
        cx.client.connection_error(ConnectionError { code: ReplyCode::ConnectionForced, text, method: MethodId::NONE });
    }
}

#[cfg(test)]
mod tests {
    use super::is_token;

    #[test]
    fn a_token_is_told_from_a_password() {
        assert!(is_token(b"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"));
        assert!(is_token(b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."), "one without a signature is no password either");
        for password in
            ["", "guest", "a.b.c", "eyJhbGci.x", "eyJhbGci.x.y.z", "eyJhbGciOi J9.eyJz.c2ln", "xyJhbGciOi.e.f"]
        {
            assert!(!is_token(password.as_bytes()), "{password}");
        }
    }
}
