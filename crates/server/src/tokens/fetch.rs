//! An issuer's keys, over HTTPS.
//!
//! Invariant: what is asked is an address that somebody configured, or one that such an address
//! named; both over TLS, with the other side's certificate looked at. An answer has a limit in bytes
//! and time. What is told of an address has no login in it.

use super::WrongKeyFile;
use crate::config::{KeySource, masked, masked_within};
use crate::tls;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tokens::Keys;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// How long an answer may take, from the name's look-up on.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may be: some issuers publish dozens of keys, each with a chain of certificates.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Where an issuer says where its keys are.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// What an issuer said.
pub(super) struct Found {
    pub(super) keys: Keys,
    /// What it calls itself.
    pub(super) issuer: Option<String>,
}

/// See the module.
pub(super) struct Fetch {
    source: KeySource,
    authorities: Option<PathBuf>,
}

impl Fetch {
    /// Errors: nobody is believed.
    pub(super) fn new(source: KeySource, authorities: Option<PathBuf>) -> Result<Fetch, WrongKeyFile> {
        let fetch = Fetch { source, authorities };
        fetch.roots().map_err(|why| WrongKeyFile {
            file: fetch.authorities.clone().unwrap_or_else(|| Path::new("oauth2_ca").to_owned()),
            why,
        })?;
        Ok(fetch)
    }

    /// Asks each time that it is asked to, until nobody does any more.
    pub(super) fn run(&self, asked: &Receiver<()>, tell: impl Fn(Result<Found, String>) -> bool) {
        while asked.recv().is_ok() {
            if !tell(self.fetch()) {
                return;
            }
        }
    }

    fn roots(&self) -> Result<RootCerts, String> {
        tls::believed(self.authorities.as_deref(), "oauth2_ca")
    }

    fn fetch(&self) -> Result<Found, String> {
        // Made anew each time: authorities may be others by now.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(self.roots()?).build();
        let config = Agent::config_builder()
            .https_only(true)
            .max_redirects(3)
            .timeout_global(Some(PATIENCE))
            .user_agent(concat!("leveret/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        let agent: Agent = config.into();
        let (url, issuer) = match &self.source {
            KeySource::Keys(url) => (url.clone(), None),
            KeySource::Issuer(issuer) => {
                let url = format!("{}{DISCOVERY}", issuer.trim_end_matches('/'));
                let document: serde_json::Value =
                    serde_json::from_slice(&get(&agent, &url)?).map_err(|_| format!("{}: no JSON", masked(&url)))?;
                let text = |name: &str| document.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
                let keys = text("jwks_uri").filter(|keys| keys.starts_with("https://"));
                (keys.ok_or_else(|| format!("{}: no jwks_uri with https", masked(&url)))?, text("issuer"))
            }
        };
        let keys =
            Keys::published(&get(&agent, &url)?).ok_or_else(|| format!("{}: no JSON web key set", masked(&url)))?;
        Ok(Found { keys, issuer })
    }
}

fn get(agent: &Agent, url: &str) -> Result<Vec<u8>, String> {
    let failed = |error: ureq::Error| format!("{}: {}", masked(url), masked_within(&error.to_string()));
    let mut response = agent.get(url).call().map_err(failed)?;
    response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_no_keys_is_told_without_a_login() {
        // Nobody listens there.
        let why = get(&Agent::new_with_defaults(), "http://ann:SECRET@127.0.0.1:1/x").expect_err("nobody is there");
        assert!(why.starts_with("http://***@127.0.0.1:1/x: ") && !why.contains("SECRET"), "{why}");
    }
}
