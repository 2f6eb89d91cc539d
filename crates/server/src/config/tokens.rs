//! What the settings about tokens say together: what is asked of a token, and where keys are.
//!
//! Invariant: what is wrong with them is told at the start, by the setting's name; the files and
//! addresses that they name are looked at later.

use super::error::ConfigError;
use super::settings::{Config, Key};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tokens::{Algorithm, Rules};

/// What stands for `oauth2_resource_server_id` in `oauth2_scope_prefix`.
const OWN_ID: &str = "{resource_server_id}";
/// The backends.
const INTERNAL: &str = "internal";
const OAUTH2: &str = "oauth2";

/// Who signs tokens, and what is asked of them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSettings {
    /// What is asked of them.
    pub rules: Rules,
    /// Where an issuer's keys are.
    pub source: Option<KeySource>,
    /// Who is believed about its address; the machine's authorities without it.
    pub authorities: Option<PathBuf>,
    /// Keys in files, with their names.
    pub files: Vec<(String, PathBuf)>,
    /// The key of tokens that name none.
    pub default_key: Option<String>,
}

/// Where an issuer's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// Where this issuer says.
    Issuer(String),
    /// There.
    Keys(String),
}

impl Config {
    /// Whether users of this broker log in.
    pub fn takes_passwords(&self) -> bool {
        self.auth_backends.iter().any(|name| name == INTERNAL)
    }

    /// Whether tokens are taken.
    pub fn takes_tokens(&self) -> bool {
        self.auth_backends.iter().any(|name| name == OAUTH2)
    }

    /// What is to be known of tokens; `None` where none are taken.
    pub fn token_settings(&self) -> Option<TokenSettings> {
        let id = self.oauth2_resource_server_id.first().filter(|_| self.takes_tokens())?;
        let prefix = self.oauth2_scope_prefix.first().map(|prefix| prefix.replace(OWN_ID, id));
        let pair = |item: &String| item.split_once('=').map(|(name, rest)| (name.to_owned(), rest.to_owned()));
        let aliases = self.oauth2_scope_aliases.iter().filter_map(pair);
        let aliases: BTreeMap<String, Vec<String>> =
            aliases.map(|(alias, scopes)| (alias, scopes.split_whitespace().map(str::to_owned).collect())).collect();
        let issuer = self.oauth2_issuer.first().cloned();
        let source = match (self.oauth2_jwks_url.first().cloned(), issuer.clone()) {
            (Some(url), _) => Some(KeySource::Keys(url)),
            (None, issuer) => issuer.map(KeySource::Issuer),
        };
        let files = self.oauth2_signing_keys.iter().filter_map(pair).map(|(id, file)| (id, file.into()));
        let rules = Rules {
            resource_server_id: id.clone(),
            verifies_audience: self.oauth2_verify_aud,
            issuers: issuer.into_iter().collect(),
            scope_prefix: prefix.unwrap_or_default(),
            additional_scopes: self.oauth2_additional_scopes_key.clone(),
            username_claims: self.oauth2_preferred_username_claims.clone(),
            aliases,
            algorithms: self.oauth2_algorithms.iter().filter_map(|name| Algorithm::named(name)).collect(),
            leeway_s: self.oauth2_leeway_s,
        };
        Some(TokenSettings {
            rules,
            source,
            authorities: self.oauth2_ca.clone(),
            files: files.collect(),
            default_key: self.oauth2_default_key.first().cloned(),
        })
    }

    /// Settings about tokens that are each allowed but mean nothing.
    pub(super) fn token_contradictions(&self) -> Vec<ConfigError> {
        let wrong = |key: Key, rule: &str| {
            let setting = key.setting();
            ConfigError::relation(setting, self.origin(key), self.told(key).shown(setting.kind), rule.to_owned())
        };
        let mut errors = Vec::new();
        if self.auth_backends.is_empty() || self.auth_backends.iter().any(|name| ![INTERNAL, OAUTH2].contains(&&**name))
        {
            errors.push(wrong(Key::auth_backends, "one or both of internal and oauth2 are expected"));
        }
        let is_https = |url: &String| url.len() > 8 && url.starts_with("https://");
        for (key, urls) in [(Key::oauth2_issuer, &self.oauth2_issuer), (Key::oauth2_jwks_url, &self.oauth2_jwks_url)] {
            if !urls.iter().all(is_https) {
                errors
                    .push(wrong(key, "it begins with https://: whoever changes the keys on their way lets anybody in"));
            }
        }
        let are_pairs = |items: &[String]| {
            items
                .iter()
                .all(|item| item.split_once('=').is_some_and(|(name, rest)| !name.is_empty() && !rest.is_empty()))
        };
        if !are_pairs(&self.oauth2_signing_keys) {
            errors.push(wrong(Key::oauth2_signing_keys, "each is of the form ID=FILE"));
        }
        if !are_pairs(&self.oauth2_scope_aliases) {
            errors.push(wrong(Key::oauth2_scope_aliases, "each is of the form ALIAS=SCOPE SCOPE"));
        }
        let is_unknown = |name: &String| Algorithm::named(name).is_none();
        if self.oauth2_algorithms.is_empty() || self.oauth2_algorithms.iter().any(is_unknown) {
            let known = Algorithm::ALL.map(|(_, name)| name).join(", ");
            errors.push(wrong(Key::oauth2_algorithms, &format!("some of {known} are expected")));
        }
        if self.takes_tokens() {
            if self.oauth2_resource_server_id.is_empty() {
                errors.push(wrong(Key::auth_backends, "oauth2 needs oauth2_resource_server_id, which is not set"));
            }
            let has_keys = [&self.oauth2_issuer, &self.oauth2_jwks_url, &self.oauth2_signing_keys]
                .iter()
                .any(|all| !all.is_empty());
            if !has_keys {
                let rule = "oauth2 needs one of oauth2_issuer, oauth2_jwks_url and oauth2_signing_keys, or no token is ever right";
                errors.push(wrong(Key::auth_backends, rule));
            }
        } else if let Some(key) = [
            (Key::oauth2_resource_server_id, &self.oauth2_resource_server_id),
            (Key::oauth2_issuer, &self.oauth2_issuer),
            (Key::oauth2_jwks_url, &self.oauth2_jwks_url),
            (Key::oauth2_signing_keys, &self.oauth2_signing_keys),
        ]
        .iter()
        .find_map(|(key, value)| (!value.is_empty()).then_some(*key))
        {
            errors.push(wrong(key, "it means nothing without oauth2 in auth_backends"));
        }
        errors
    }
}
