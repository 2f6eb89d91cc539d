//! What is asked of a token, and what its claims mean.
//!
//! Invariant: without an end a token is none. Scopes count only with the prefix that was agreed on,
//! so that an issuer's scopes for other services mean nothing here.

use crate::algorithm::Algorithm;
use crate::jws::Jws;
use crate::key::Keys;
use broker::topology::{NAME_BYTES_MAX, Name, OPERATOR, SCOPES_MAX, Scopes, TAGS_MAX, Token};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The claim with scopes that every issuer has.
const SCOPE: &str = "scope";
/// Where Keycloak puts what it grants by its own policies.
const GRANTED_BY_KEYCLOAK: &str = "authorization.permissions.scopes";
/// What a scope with a tag begins with, behind the prefix.
const TAG: &str = "tag:";
/// Whom RabbitMQ takes a token to be of that names nobody.
const UNKNOWN: &str = "unknown";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which service this broker is, as the issuer knows it.
    pub resource_server_id: String,
    /// Whether `aud` has to name it.
    pub verifies_audience: bool,
    /// Who has to have issued the token, if anybody in particular.
    pub issuers: Vec<String>,
    /// What the scopes for this broker begin with.
    pub scope_prefix: String,
    /// Claims, or paths to claims, that hold scopes beside `scope`.
    pub additional_scopes: Vec<String>,
    /// The claims that may name the user; the first one that is there does.
    pub username_claims: Vec<String>,
    /// Scopes that stand for others.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// What tokens may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// How far clocks may differ.
    pub leeway_s: u64,
}

/// Why a token counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no token.
    Malformed,
    /// Its head asks for something that is not understood.
    Critical,
    /// It is signed by something else than what is allowed.
    Algorithm,
    /// Nobody knows the key that it names.
    UnknownKey,
    /// Its key does not sign by its algorithm.
    OtherKind,
    /// The signature is not the key's.
    Signature,
    /// It has no end.
    Endless,
    /// It has ended.
    Expired,
    /// It has not begun.
    Early,
    /// It is for another service.
    Audience,
    /// It is somebody else's.
    Issuer,
    /// It names a user that has too long a name.
    LongName,
    /// It names a user by what logs call the operator.
    OperatorsName,
    /// It has more scopes than anybody needs.
    ManyScopes,
}

impl Refused {
    /// For the log. It says nothing of what is in the token.
    pub fn reason(self) -> &'static str {
        match self {
            Refused::Malformed => "the token is malformed",
            Refused::Critical => "the token asks for extensions (crit)",
            Refused::Algorithm => "the token is signed by an algorithm that is not among oauth2_algorithms",
            Refused::UnknownKey => "the token names a key that is not known",
            Refused::OtherKind => "the token's key is not one for its algorithm",
            Refused::Signature => "the token's signature is wrong",
            Refused::Endless => "the token has no end (exp)",
            Refused::Expired => "the token has expired",
            Refused::Early => "the token is not valid yet (nbf)",
            Refused::Audience => "the token is for another audience (aud)",
            Refused::Issuer => "the token is of another issuer (iss)",
            Refused::LongName => "the token names a user with a name of more than 255 bytes",
            Refused::OperatorsName => "the token names a user by what the audit log calls the operator",
            Refused::ManyScopes => "the token has too many scopes",
        }
    }
}

impl Rules {
    /// Whom a token names and what they may do, at a time in milliseconds since the epoch.
    pub fn look(&self, token: &[u8], keys: &Keys, now_ms: u64) -> Result<Token, Refused> {
        let claims = Jws::parse(token, &self.algorithms)?.claims(keys)?;
        let seconds = |name: &str| claims.get(name).map(|value| value.as_f64().ok_or(Refused::Malformed));
        let expires_ms = match seconds("exp").transpose()? {
            None => return Err(Refused::Endless),
            // Beyond what the number holds it saturates.
            Some(exp) => (exp.trunc() as u64).saturating_add(self.leeway_s).saturating_mul(1000),
        };
        if expires_ms <= now_ms {
            return Err(Refused::Expired);
        }
        if let Some(begin) = seconds("nbf").transpose()?
            && (begin as u64).saturating_mul(1000) > now_ms.saturating_add(self.leeway_s * 1000)
        {
            return Err(Refused::Early);
        }
        if self.verifies_audience && !is_for(claims.get("aud"), &self.resource_server_id) {
            return Err(Refused::Audience);
        }
        if !self.issuers.is_empty() {
            let issuer = claims.get("iss").and_then(Value::as_str).ok_or(Refused::Issuer)?;
            let is_same = |known: &String| known.trim_end_matches('/') == issuer.trim_end_matches('/');
            if !self.issuers.iter().any(is_same) {
                return Err(Refused::Issuer);
            }
        }
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let user = self.username_claims.iter().find_map(|name| text(name)).filter(|name| !name.is_empty());
        let user = user.unwrap_or(UNKNOWN);
        if user.len() > NAME_BYTES_MAX {
            return Err(Refused::LongName);
        }
        if user == OPERATOR {
            return Err(Refused::OperatorsName);
        }
        let scopes = self.scopes(&claims);
        if scopes.len() > SCOPES_MAX {
            return Err(Refused::ManyScopes);
        }
        let tags = scopes.iter().filter_map(|scope| scope.strip_prefix(TAG));
        let tags =
            tags.filter(|tag| (1..=NAME_BYTES_MAX).contains(&tag.len())).take(TAGS_MAX).map(Name::from).collect();
        let claim = |name: &str| text(name).map(str::to_owned);
        let scopes = Scopes::parse(scopes.iter().map(String::as_str), &claim);
        Ok(Token { user: Name::from(user), tags, scopes, expires_ms })
    }

    /// The scopes for this broker, without their prefix.
    fn scopes(&self, claims: &Map<String, Value>) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(value) = claims.get(SCOPE) {
            self.take_scopes(value, &mut all);
        }
        let keycloak = std::iter::once(GRANTED_BY_KEYCLOAK);
        for path in keycloak.chain(self.additional_scopes.iter().map(String::as_str)) {
            match claims.get(path) {
                Some(value) => self.take_scopes(value, &mut all),
                None => {
                    let path: Vec<&str> = path.split('.').filter(|part| !part.is_empty()).collect();
                    self.follow(claims, &path, &mut all);
                }
            }
        }
        let meant: Vec<String> = all.iter().filter_map(|scope| self.aliases.get(scope)).flatten().cloned().collect();
        all.extend(meant);
        let mut own: Vec<String> =
            all.iter().filter_map(|scope| scope.strip_prefix(&self.scope_prefix)).map(str::to_owned).collect();
        own.sort_unstable();
        own.dedup();
        own
    }

    /// Scopes at the end of a path; of a list on the way each one counts.
    fn follow(&self, fields: &Map<String, Value>, path: &[&str], to: &mut Vec<String>) {
        let Some((first, rest)) = path.split_first() else { return };
        let Some(value) = fields.get(*first) else { return };
        match value {
            _ if rest.is_empty() => self.take_scopes(value, to),
            Value::Object(fields) => self.follow(fields, rest, to),
            Value::Array(items) => {
                items.iter().filter_map(Value::as_object).for_each(|fields| self.follow(fields, rest, to));
            }
            _ => {}
        }
    }

    /// Scopes as a text with spaces, a list, or, under this service's name, without its prefix.
    fn take_scopes(&self, value: &Value, to: &mut Vec<String>) {
        let words = |text: &str| text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        match value {
            Value::String(text) => to.extend(words(text)),
            Value::Array(items) => to.extend(items.iter().filter_map(Value::as_str).map(str::to_owned)),
            Value::Object(fields) => {
                let id = &self.resource_server_id;
                let own = match fields.get(id) {
                    Some(Value::String(text)) => words(text),
                    Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
                    _ => Vec::new(),
                };
                to.extend(own.iter().map(|scope| format!("{id}.{scope}")));
            }
            _ => {}
        }
    }
}

/// Whether an audience is, or has among others, this service.
fn is_for(audience: Option<&Value>, id: &str) -> bool {
    match audience {
        Some(Value::String(text)) => text.split(' ').any(|word| word == id),
        Some(Value::Array(items)) => items.iter().any(|item| item == id),
        _ => false,
    }
}
