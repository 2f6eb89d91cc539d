//! How the client of a script logs in, and what is found out about that elsewhere.

use super::Script;
use amqp::{Authenticate, Event, Mechanism, Table};
use broker::topology::{Command as Change, Name, PasswordHash, Scopes, Token};
use bytes::Bytes;
use session::{Cx, Host};
use std::sync::Arc;

impl Script {
    /// The client says who it is.
    pub(crate) fn login(&mut self, password: &'static str) {
        let (user, password) = (Bytes::from_static(b"guest"), Bytes::from_static(password.as_bytes()));
        let (mechanism, client_properties) = (Mechanism::Plain, Table::new());
        self.event(Event::Authenticate(Box::new(Authenticate { mechanism, user, password, client_properties })));
    }

    /// Guest has a password whose hash takes long.
    pub(crate) fn slow_password(&self) {
        let password = PasswordHash::argon2id(b"guest", [7; 16]);
        let put = Change::PutUser { name: Name::from("guest"), password, tags: Vec::new() };
        for change in [Change::RaiseVersion { version: 3 }, put] {
            self.node.topology.borrow_mut().apply(&change).outcome.expect("it is allowed");
        }
    }

    /// Somebody has looked at the password.
    pub(crate) fn looked_at(&mut self, is_right: bool) {
        let Script { session, machine, node, .. } = self;
        let now = node.now();
        session.handle_password(is_right, &mut Cx { client: machine, host: node }, now);
    }

    /// Somebody has looked at a token: it is of `user` with these scopes and lasts until then, or
    /// counts for nothing.
    pub(crate) fn told_token(&mut self, told: Result<(&str, &[&str], u64), &'static str>) {
        let token = told.map(|(user, scopes, expires_ms)| {
            let scopes = Scopes::parse(scopes.iter().copied(), &|_| None);
            Arc::new(Token { user: Name::from(user), tags: Vec::new(), scopes, expires_ms })
        });
        let Script { session, machine, node, .. } = self;
        let now = node.now();
        session.handle_token(token, &mut Cx { client: machine, host: node }, now);
    }
}
