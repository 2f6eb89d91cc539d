//! RabbitMQ's `auth_backends` and `auth_oauth2`, in the settings that are ours.
//!
//! Invariant: what would let in somebody whom RabbitMQ keeps out, or the other way round, is an
//! error: several resource servers or issuers, patterns that are regular expressions, a certificate
//! that is not looked at.

use super::rabbitmq::{Line, Translation};
use super::settings::Key;
use super::value::Given;
use std::collections::BTreeMap;

/// What a key begins with.
const OWN: &str = "auth_oauth2.";

/// Keys whose values mean the same here.
const SAME: &[(&str, Key)] = &[
    ("resource_server_id", Key::oauth2_resource_server_id),
    ("issuer", Key::oauth2_issuer),
    ("jwks_url", Key::oauth2_jwks_url),
    ("jwks_uri", Key::oauth2_jwks_url),
    ("https.cacertfile", Key::oauth2_ca),
    ("default_key", Key::oauth2_default_key),
    ("verify_aud", Key::oauth2_verify_aud),
];

/// Keys with a value that is how it is here anyway; another one is an error, with what to do.
const ONLY: &[(&str, &[&str], &str)] = &[
    (
        "https.peer_verification",
        &["verify_peer"],
        "the issuer's certificate is always looked at: name its authority by https.cacertfile",
    ),
    ("https.hostname_verification", &["wildcard"], "the issuer's certificate has to name its host"),
    ("https.crl_check", &["false"], "lists of revoked certificates are not looked at: take this out if that will do"),
    ("https.fail_if_no_peer_cert", &["true", "false"], ""),
    ("scope_pattern_syntax", &["wildcard"], "scopes are patterns with *, not regular expressions"),
    (
        "discovery_endpoint_path",
        &[".well-known/openid-configuration", "/.well-known/openid-configuration"],
        "name the address of the keys by jwks_url",
    ),
];

/// Keys that are errors.
const REFUSED: &[(&str, &str)] = &[
    ("resource_servers", "there is one resource server: auth_oauth2.resource_server_id"),
    ("oauth_providers", "there is one issuer: auth_oauth2.issuer or auth_oauth2.jwks_url"),
    ("default_oauth_provider", "there is one issuer: auth_oauth2.issuer or auth_oauth2.jwks_url"),
    ("resource_server_type", "rich authorization requests are not read: take this out if scopes will do"),
    ("discovery_endpoint_params", "name the address of the keys by jwks_url"),
    ("proxy", "name a proxy in the environment: https_proxy"),
];

/// Keys of a login that the page has not.
const OF_THE_PAGE: &[&str] = &["token_endpoint", "authorization_endpoint", "end_session_endpoint", "https.depth"];

/// Whether a key is read here.
pub(super) fn is_own(key: &str) -> bool {
    key.starts_with(OWN) || key.starts_with("auth_backends.")
}

impl Translation<'_> {
    /// All that is said about backends and tokens.
    pub(super) fn tokens(&mut self, lines: &[&Line]) {
        self.backends(lines);
        let mut aliases: Vec<String> = Vec::new();
        // In two lines by a number.
        let mut halves: BTreeMap<&str, [Option<&str>; 2]> = BTreeMap::new();
        let mut keys: Vec<String> = Vec::new();
        let (mut last_alias, mut last_key) = (None, None);
        for line in lines {
            let Some(key) = line.key.strip_prefix(OWN) else { continue };
            let value = line.value.as_str();
            if let Some((_, ours)) = SAME.iter().find(|(known, _)| *known == key) {
                self.say(line, *ours, Given::Plain(value.to_owned()));
            } else if let Some((_, allowed, why)) = ONLY.iter().find(|(known, ..)| *known == key) {
                if !allowed.contains(&value) {
                    self.wrong(&line.origin(), &line.key, (*why).to_owned());
                }
            } else if let Some((_, why)) = REFUSED.iter().find(|(known, _)| is_under(key, known)) {
                self.wrong(&line.origin(), &line.key, (*why).to_owned());
            } else if OF_THE_PAGE.contains(&key) {
                self.leave_out(line, "the page takes a token, and asks no issuer for one");
            } else if key == "scope_prefix" {
                let prefix = if value.is_empty() { Vec::new() } else { vec![value.to_owned()] };
                self.say(line, Key::oauth2_scope_prefix, Given::List(prefix));
            } else if key == "additional_scopes_key" {
                let paths = value.split_whitespace().map(str::to_owned).collect();
                self.say(line, Key::oauth2_additional_scopes_key, Given::List(paths));
            } else if let Some(id) = key.strip_prefix("signing_keys.") {
                keys.push(format!("{id}={value}"));
                last_key = Some(*line);
            } else if let Some(rest) = key.strip_prefix("scope_aliases.") {
                last_alias = Some(*line);
                match rest.rsplit_once('.') {
                    Some((number, "alias")) if is_number(number) => halves.entry(number).or_default()[0] = Some(value),
                    Some((number, "scope")) if is_number(number) => halves.entry(number).or_default()[1] = Some(value),
                    _ => aliases.push(format!("{rest}={value}")),
                }
            } else if !["preferred_username_claims.", "algorithms."].iter().any(|group| key.starts_with(group)) {
                self.wrong(
                    &line.origin(),
                    &line.key,
                    "it is not known; take the line out, or say it with leveret's own settings".to_owned(),
                );
            }
        }
        for (number, half) in halves {
            match (half, last_alias) {
                ([Some(alias), Some(scope)], _) => aliases.push(format!("{alias}={scope}")),
                (_, Some(line)) => {
                    let why = format!("scope_aliases.{number} needs both alias and scope");
                    self.wrong(&line.origin(), &line.key, why);
                }
                (_, None) => {}
            }
        }
        if let Some(line) = last_alias {
            self.say(line, Key::oauth2_scope_aliases, Given::List(aliases));
        }
        if let Some(line) = last_key {
            self.say(line, Key::oauth2_signing_keys, Given::List(keys));
        }
        self.in_turn(lines, "auth_oauth2.preferred_username_claims", Key::oauth2_preferred_username_claims);
        self.in_turn(lines, "auth_oauth2.algorithms", Key::oauth2_algorithms);
    }

    fn backends(&mut self, lines: &[&Line]) {
        let mut found: Vec<(&str, &str)> = Vec::new();
        let mut last = None;
        for line in lines {
            let Some(place) = line.key.strip_prefix("auth_backends.") else { continue };
            let name = match line.value.as_str() {
                "internal" | "rabbit_auth_backend_internal" => "internal",
                "oauth2" | "rabbit_auth_backend_oauth2" => "oauth2",
                other => {
                    let why =
                        format!("there is no {}: internal and oauth2 are expected", super::error::one_line(other));
                    self.wrong(&line.origin(), &line.key, why);
                    continue;
                }
            };
            if !is_number(place) {
                let why =
                    "who says who somebody is says what they may do as well: name one backend, without authn and authz";
                self.wrong(&line.origin(), &line.key, why.to_owned());
                continue;
            }
            found.push((place, name));
            last = Some(*line);
        }
        found.sort_unstable_by_key(|(place, _)| place.parse::<u32>().unwrap_or(u32::MAX));
        let mut names: Vec<String> = Vec::new();
        for (_, name) in found {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        if let Some(line) = last {
            self.say(line, Key::auth_backends, Given::List(names));
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_under(key: &str, known: &str) -> bool {
    key.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
