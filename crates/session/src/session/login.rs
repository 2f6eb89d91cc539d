//! How a client becomes somebody: the login, who it is then, and the virtual host that it opens.
//!
//! Invariant: a password that is wrong and a user who is not there take as long to be refused.

use super::{Cx, Session, log_text};
use crate::client::Client;
use crate::host::{Admitted, Host, PasswordCheck, Verdict};
use crate::logins::{LoginOver, Try};
use crate::refusal;
use crate::tally::Count;
use crate::token::{self, is_token};
use amqp::{Authenticate, Mechanism, Millis};
use broker::topology::{NAME_BYTES_MAX, Name, Token};
use bytes::Bytes;
use std::sync::Arc;

/// How long a refused login waits for its answer: guessing passwords is slow, and nobody else
/// waits.
const LOGIN_REFUSED_DELAY_MS: Millis = 1_000;

/// A login that is not decided.
pub(super) struct Login {
    authenticate: Box<Authenticate>,
    /// Who it is, or wants to be.
    name: Bytes,
    admitted: Option<Try>,
    begun: Millis,
}

impl Session {
    pub(super) fn authenticate(&mut self, authenticate: Box<Authenticate>, cx: &mut Cx<'_, impl Host>, now: Millis) {
        let topology = cx.host.topology();
        let common = cx.host.common();
        let user_of = |name: &[u8]| (Bytes::copy_from_slice(name), topology.user(name).is_some());
        let mut hash = None;
        let (name, exists) = match (authenticate.mechanism, &self.certificate_user) {
            // Whom the node has let in by a token, and who is no user.
            (Mechanism::External, Some(name)) if self.token.is_some() => {
                (Bytes::copy_from_slice(name.as_bytes()), true)
            }
            (Mechanism::External, Some(name)) => user_of(name.as_bytes()),
            (Mechanism::External, None) => (Bytes::new(), false),
            (Mechanism::Anonymous, _) => user_of(common.settings.anonymous_user.as_bytes()),
            _ => {
                hash = topology.user(&authenticate.user).map(|user| user.password.clone());
                user_of(&authenticate.user)
            }
        };
        drop(topology);
        let (mechanism, password) = (authenticate.mechanism, authenticate.password.clone());
        let mut admitted = None;
        let mut admit = || {
            admitted = common.logins.admit(self.peer.ip(), &name, exists, now);
            Admitted::of(admitted.as_ref())
        };
        let takes_passwords = common.settings.takes_passwords || self.is_own;
        let is_by_password = !matches!(mechanism, Mechanism::External | Mechanism::Anonymous);
        let is_token = common.settings.takes_tokens && is_by_password && is_token(&password);
        let verdict = match (mechanism, hash) {
            // Nobody guesses a signature, so a wrong one takes nothing from who else is at the address.
            _ if is_token => match cx.host.check_token(password) {
                true => Verdict::Later,
                false => Verdict::TooMany,
            },
            _ if !takes_passwords => Verdict::Wrong,
            (Mechanism::External | Mechanism::Anonymous, _) if exists => Verdict::Right,
            (Mechanism::External | Mechanism::Anonymous, _) => Verdict::Wrong,
            (_, None) if admit() == Admitted::No => Verdict::NotAdmitted,
            (_, None) => Verdict::Wrong,
            (_, Some(hash)) => {
                cx.host.check_password(PasswordCheck { user: Name::new(&name), hash, password }, &mut admit)
            }
        };
        self.login = Some(Box::new(Login { authenticate, name, admitted, begun: now }));
        let outcome = match verdict {
            Verdict::Right => Ok(()),
            Verdict::Wrong if !takes_passwords => Err("auth_backends takes tokens only"),
            Verdict::Wrong => Err(match mechanism {
                Mechanism::External => "no user of the certificate's name",
                Mechanism::Anonymous => "no user of the name in anonymous_login_user",
                _ => "wrong user or password",
            }),
            Verdict::NotAdmitted => Err("too many failed logins: the password was not looked at"),
            Verdict::TooMany => Err("too many logins at once: the password was not looked at"),
            Verdict::Later => return,
        };
        self.end_login(outcome, cx, now);
    }

    /// Whether the password was right that was looked at elsewhere.
    pub fn handle_password(&mut self, is_right: bool, cx: &mut Cx<'_, impl Host>, now: Millis) {
        self.end_login(if is_right { Ok(()) } else { Err("wrong user or password") }, cx, now);
    }

    pub(crate) fn end_login(&mut self, outcome: Result<(), &'static str>, cx: &mut Cx<'_, impl Host>, now: Millis) {
        // A client that left meanwhile waits for nothing.
        let Some(login) = self.login.take().filter(|_| !cx.client.is_finished()) else { return };
        let Login { authenticate, name, admitted, begun } = *login;
        let user = log_text(&name);
        let common = cx.host.common();
        let only_loopback = common.settings.loopback_users.iter().any(|other| other.as_bytes() == &name[..]);
        let reason = match outcome {
            Err(reason) => reason,
            Ok(()) if only_loopback && !self.is_loopback => "this user may only connect via loopback",
            Ok(()) => {
                if let Some(admitted) = admitted {
                    common.logins.was_right(admitted, now);
                }
                let client = client_name(&authenticate);
                let mechanism = authenticate.mechanism.name();
                self.count_login(true, cx);
                let token_lasts_s = self.token_lasts_s(cx);
                tracing::info!(peer = %self.peer, user = &*user, mechanism, token_lasts_s, ?client, "connection authenticated");
                self.user = name;
                if common.settings.tells_events {
                    self.tell_login("user.authentication.success", &self.user, authenticate.mechanism, None, cx.host);
                }
                self.client_properties = authenticate.client_properties.encode().into();
                return cx.client.authenticated(Ok(()));
            }
        };
        self.token = None;
        self.count_login(false, cx);
        tracing::warn!(peer = %self.peer, user = &*user, reason, "login refused");
        if common.settings.tells_events {
            self.tell_login("user.authentication.failure", &name, authenticate.mechanism, Some(reason), cx.host);
        }
        // From when it came: how long somebody looked at the password says nothing then.
        self.refuse_at = begun + LOGIN_REFUSED_DELAY_MS;
    }

    /// Who logs in is whom a token names.
    pub(crate) fn take_token(&mut self, token: Arc<Token>) {
        if let Some(login) = &mut self.login {
            login.name = Bytes::copy_from_slice(&token.user);
            self.token = Some(token);
        }
    }

    fn count_login(&self, was_right: bool, cx: &Cx<'_, impl Host>) {
        // What the node itself opens was counted where its user logged in.
        if !self.is_own {
            cx.host.common().logins.count(LoginOver::Amqp, was_right);
        }
    }

    pub(super) fn open(&mut self, vhost: Bytes, cx: &mut Cx<'_, impl Host>, now: Millis) {
        if self.is_token_over(cx) {
            return cx.client.opened(Err(token::over()));
        }
        let topology = cx.host.topology();
        let known = if vhost.len() > NAME_BYTES_MAX { None } else { topology.vhost(&vhost) };
        let check = |open| topology.open_vhost(self.actor(), &vhost, open);
        let opened = cx.host.common().occupancy.enter(&self.user, known, check);
        drop(topology);
        match opened {
            Ok(place) => {
                self.vhost = place.vhost();
                self.unfinished.belongs_to(place.unfinished_bytes.clone());
                self.occupied = Some(place);
                cx.host.count(Count::ConnectionOpened, 1);
                self.vhost_name = Bytes::copy_from_slice(&vhost);
                let vhost = log_text(&vhost);
                let user = log_text(&self.user);
                tracing::info!(peer = %self.peer, user = &*user, vhost = &*vhost, "connection opened");
                if cx.host.common().settings.tells_events {
                    self.tell_connection("connection.created", None, cx.host);
                }
                self.watch_token(cx, now);
                cx.client.opened(Ok(()));
            }
            Err(refused) => {
                tracing::warn!(peer = %self.peer, text = %refused.text, "connection refused");
                self.tell_not_opened(&vhost, &refused);
                cx.client.opened(Err(refusal::connection_error(refused)));
            }
        }
    }
}

/// What a client calls itself, if it does.
fn client_name(authenticate: &Authenticate) -> String {
    let table = &authenticate.client_properties;
    let text = |name: &str| match table.get(name) {
        Some(amqp::Value::LongString(bytes)) => Some(log_text(bytes)),
        _ => None,
    };
    text("connection_name").or_else(|| text("product")).unwrap_or_default()
}
