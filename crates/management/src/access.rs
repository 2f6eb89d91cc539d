//! Who asks, and what that person may see and do: RabbitMQ's tags.
//!
//! Invariant: nobody is told whether a virtual host exists that they may not see, a wrong password
//! costs a second, and failures are limited. Who names the operator's token may do what an
//! administrator may, from this machine and from no other.

use crate::answer::Refused;
use crate::operator::Token as OperatorToken;
use base64::Engine as _;
use broker::VhostId;
use broker::topology::{Actor, Name, OPERATOR, Scopes, Token, Topology};
use server::Handle;
use server::handle::{LoginError, is_token, operator};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a refused login waits for its answer, as with AMQP: guessing passwords is slow.
const LOGIN_REFUSED_DELAY: Duration = Duration::from_secs(1);
/// The longest name and password together, in base64: a token is a password too.
const CREDENTIALS_BYTES_MAX: usize = 32_768;

/// What is said of a wrong name or password, and where they were not looked at.
const FAILED: &str = "Login failed";

/// Who may use the API: a user, or who runs this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The user's name.
    pub(crate) name: Name,
    tags: Vec<Name>,
    is_operator: bool,
    /// What they may do by a token, instead of what the user may who is so called.
    token: Option<Arc<Token>>,
}

impl Caller {
    /// Who an `Authorization` header names, if that may be.
    pub(crate) async fn identify(
        handle: &Handle,
        authorization: Option<&[u8]>,
        from: SocketAddr,
        token: Option<&OperatorToken>,
    ) -> Result<Caller, Refused> {
        if let Some(named) = authorization.and_then(bearer) {
            return match handle.takes_tokens() && is_token(named) {
                true => Caller::admit(handle.check_token(named, from).await.map(Some), b"", handle, from).await,
                false => Caller::of_operator(named, from, token).await,
            };
        }
        let Some((name, password)) = authorization.and_then(credentials) else { return Err(Refused::Anonymous) };
        Caller::admit(handle.check_login(&name, &password, from).await, &name, handle, from).await
    }

    /// Whom a login has let in, by a token or as this user.
    async fn admit(
        login: Result<Option<Arc<Token>>, LoginError>,
        name: &[u8],
        handle: &Handle,
        from: SocketAddr,
    ) -> Result<Caller, Refused> {
        let mut name = Name::new(name);
        let (refused, reason) = match login {
            Ok(token) => {
                let caller = match token {
                    Some(token) => Caller::by_token(token),
                    None => {
                        let tags = handle.topology().user(&name).map(|user| user.tags.clone());
                        Caller { name, tags: tags.unwrap_or_default(), is_operator: false, token: None }
                    }
                };
                if caller.may_use_the_api() {
                    return Ok(caller);
                }
                name = caller.name;
                let reason = "Not management user";
                (Refused::NotAuthorised(reason), reason)
            }
            Err(LoginError::Token(reason)) => (Refused::LoginFailed(FAILED), reason),
            Err(LoginError::OnlyTokens) => (Refused::LoginFailed(FAILED), "auth_backends takes tokens only"),
            Err(LoginError::Wrong) => (Refused::LoginFailed(FAILED), "wrong user or password"),
            Err(LoginError::NotAdmitted) => {
                (Refused::LoginFailed(FAILED), "too many failed logins: the password was not looked at")
            }
            Err(LoginError::TooMany) => {
                (Refused::LoginFailed(FAILED), "too many logins at once: the password was not looked at")
            }
            Err(LoginError::OnlyLoopback) => {
                let reason = "User can only log in via localhost";
                (Refused::LoginFailed(reason), reason)
            }
        };
        let user = String::from_utf8_lossy(&name).into_owned();
        tracing::warn!(peer = %from, user = &*user, reason, "management login refused");
        if matches!(refused, Refused::NotAuthorised(_)) {
            tell_login_refused(&name, from, reason);
        }
        // Where the password was right there is nothing to guess, and nothing to make slow.
        if !matches!(refused, Refused::NotAuthorised(_)) {
            tokio::time::sleep(LOGIN_REFUSED_DELAY).await;
        }
        Err(refused)
    }

    /// Who names the operator's token: nobody can tell from the answer whether it is wrong, or right and
    /// named from another machine.
    async fn of_operator(named: &[u8], from: SocketAddr, token: Option<&OperatorToken>) -> Result<Caller, Refused> {
        let is_here = from.ip().to_canonical().is_loopback();
        if is_here && token.is_some_and(|token| token.is(named)) {
            let tags = vec![Name::from("administrator")];
            return Ok(Caller { name: Name::from(OPERATOR), tags, is_operator: true, token: None });
        }
        let reason = if is_here { "a token that is not this server's" } else { "a token from another machine" };
        tracing::warn!(peer = %from, reason, "management login refused");
        tokio::time::sleep(LOGIN_REFUSED_DELAY).await;
        Err(Refused::LoginFailed(FAILED))
    }

    /// Who logged in before and has a session since: with the tags of this moment.
    pub(crate) fn of_session(handle: &Handle, name: &Name, from: SocketAddr) -> Result<Caller, Refused> {
        let loopback_users = &handle.facts().config.loopback_users;
        if loopback_users.iter().any(|user| user.as_bytes() == &**name) && !from.ip().to_canonical().is_loopback() {
            return Err(Refused::LoginFailed("User can only log in via localhost"));
        }
        let tags = handle.topology().user(name).map(|user| user.tags.clone()).ok_or(Refused::Anonymous)?;
        let caller = Caller { name: name.clone(), tags, is_operator: false, token: None };
        if caller.may_use_the_api() {
            return Ok(caller);
        }
        let reason = "Not management user";
        tell_login_refused(name, from, reason);
        Err(Refused::LoginFailed(reason))
    }

    /// Somebody whom another node let in.
    pub(crate) fn known_elsewhere(name: Name, tags: Vec<Name>, is_operator: bool, scopes: Option<Scopes>) -> Caller {
        let of = |scopes| Token { user: name.clone(), tags: tags.clone(), scopes, expires_ms: u64::MAX };
        let token = scopes.map(|scopes| Arc::new(of(scopes)));
        Caller { name, tags, is_operator, token }
    }

    /// Whom a token names.
    pub(crate) fn by_token(token: Arc<Token>) -> Caller {
        Caller { name: token.user.clone(), tags: token.tags.clone(), is_operator: false, token: Some(token) }
    }

    /// The token that has let them in.
    pub(crate) fn token(&self) -> Option<&Arc<Token>> {
        self.token.as_ref()
    }

    /// Whether this is who runs the machine, and no user.
    pub(crate) fn is_operator(&self) -> bool {
        self.is_operator
    }

    /// In whose name something is declared or deleted.
    pub(crate) fn actor(&self) -> Actor<'_> {
        let scopes = self.token.as_ref().map(|token| &token.scopes);
        if self.is_operator { Actor::MACHINE } else { Actor { scopes, ..operator(&self.name) } }
    }

    fn has_one_of(&self, wanted: &[&str]) -> bool {
        self.tags.iter().any(|tag| wanted.iter().any(|word| word.as_bytes() == &**tag))
    }

    fn may_use_the_api(&self) -> bool {
        self.has_one_of(&["administrator", "monitoring", "policymaker", "management"])
    }

    /// The tags, as they are.
    pub(crate) fn tags(&self) -> &[Name] {
        &self.tags
    }

    /// Whether everything may be changed.
    pub(crate) fn is_administrator(&self) -> bool {
        self.has_one_of(&["administrator"])
    }

    /// Whether everything may be seen.
    pub(crate) fn is_monitoring(&self) -> bool {
        self.has_one_of(&["administrator", "monitoring"])
    }

    /// Whether policies may be changed where the virtual host may be used.
    pub(crate) fn is_policymaker(&self) -> bool {
        self.has_one_of(&["administrator", "policymaker"])
    }

    /// Whether a virtual host may be used.
    pub(crate) fn uses(&self, topology: &Topology, vhost: VhostId) -> bool {
        self.is_operator || topology.uses(self.actor(), vhost)
    }

    /// Whether what is declared in a virtual host may be looked at: monitors without rights in it
    /// see who is connected to it, its limits and its figures, and no queue, exchange, binding or
    /// policy. These are RabbitMQ's rules.
    pub(crate) fn sees(&self, topology: &Topology, vhost: VhostId) -> bool {
        self.is_administrator() || self.uses(topology, vhost)
    }

    /// Whether a virtual host as a whole may be looked at.
    pub(crate) fn monitors(&self, topology: &Topology, vhost: VhostId) -> bool {
        self.is_monitoring() || self.uses(topology, vhost)
    }

    /// Errors: 401 unless `allowed`.
    pub(crate) fn need(&self, allowed: bool, reason: &'static str) -> Result<(), Refused> {
        if allowed { Ok(()) } else { Err(Refused::NotAuthorised(reason)) }
    }

    /// Errors: 401 unless an administrator asks.
    pub(crate) fn need_administrator(&self) -> Result<(), Refused> {
        self.need(self.is_administrator(), "Not administrator user")
    }

    /// Errors: 401 unless somebody asks who may see everything.
    pub(crate) fn need_monitoring(&self) -> Result<(), Refused> {
        self.need(self.is_monitoring(), "Not monitor user")
    }
}

/// Tells the audit log of somebody who is who he says, and may not use the API.
fn tell_login_refused(name: &Name, from: SocketAddr, reason: &str) {
    let user = String::from_utf8_lossy(name);
    tracing::info!(target: "audit", user = &*user, peer = %from, refused = "management login", reason, "audit");
}

/// The token out of `Bearer ...`.
pub(crate) fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Name and password out of `Basic ...`.
fn credentials(header: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = header.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") || rest.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let (name, password) = (decoded[..colon].to_vec(), decoded[colon + 1..].to_vec());
    (name.len() <= broker::topology::NAME_BYTES_MAX).then_some((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_colons_and_a_name_may_not() {
        let header = |text: &str| format!("bAsIc {}", base64::engine::general_purpose::STANDARD.encode(text));
        let of = |text: &str| credentials(header(text).as_bytes());
        assert_eq!(of("ann:a:b"), Some((b"ann".to_vec(), b"a:b".to_vec())));
        assert_eq!(of("ann"), None);
        assert_eq!(of(&format!("{}:x", "a".repeat(256))), None);
        assert_eq!(credentials(b"Bearer abc"), None);
        assert_eq!(credentials(b"Basic !!"), None);
    }

    #[test]
    fn tags_say_what_may_be_seen_and_done() {
        let caller = |tag: &str| Caller {
            name: Name::from("ann"),
            tags: vec![Name::from(tag)],
            is_operator: false,
            token: None,
        };
        assert!(caller("management").may_use_the_api() && !caller("management").is_monitoring());
        assert!(caller("monitoring").is_monitoring() && !caller("monitoring").is_policymaker());
        assert!(caller("policymaker").is_policymaker() && !caller("policymaker").is_administrator());
        assert!(caller("administrator").is_monitoring() && caller("administrator").is_policymaker());
        assert!(!caller("impersonator").may_use_the_api());
    }
}
