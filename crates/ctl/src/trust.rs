//! Whom this tool believes to be the node, over HTTPS, and what it shows of itself.
//!
//! Invariant: a certificate is looked at unless somebody said that it need not be, or the node is the
//! one on this machine that wrote its address and a token into a file of its own: that was never
//! more than a port of this machine, with encryption or without.

use crate::failure::{Failure, USAGE};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    /// Certificates of those that are believed; those of this machine without it.
    pub(crate) authorities: Option<PathBuf>,
    /// A certificate to show.
    pub(crate) certificate: Option<PathBuf>,
    /// Its key; in the same file without it.
    pub(crate) key: Option<PathBuf>,
    /// Everything is believed.
    pub(crate) anything: bool,
}

impl Trust {
    /// As the library wants it. Errors: a file that is of no use.
    pub(crate) fn config(&self) -> Result<TlsConfig, Failure> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
        let builder = builder.disable_verification(self.anything).client_cert(self.shown()?);
        Ok(builder.root_certs(self.roots()?).build())
    }

    fn roots(&self) -> Result<RootCerts, Failure> {
        if self.anything {
            return Ok(RootCerts::new_with_certs(&[]));
        }
        let found = match &self.authorities {
            Some(file) => certificates(file)?,
            None => {
                let found = rustls_native_certs::load_native_certs().certs;
                found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
            }
        };
        if found.is_empty() {
            let text = "this machine knows no authorities: name a file with those to believe by --ssl-ca-cert-file";
            return Err(Failure::argument(USAGE, text));
        }
        Ok(RootCerts::new_with_certs(&found))
    }

    fn shown(&self) -> Result<Option<ClientCert>, Failure> {
        let Some(file) = &self.certificate else { return Ok(None) };
        let key_file = self.key.as_ref().unwrap_or(file);
        let key = PrivateKey::from_pem(&read(key_file)?).map_err(|_| wrong(key_file, "there is no key in it"))?;
        Ok(Some(ClientCert::new_with_certs(&certificates(file)?, key)))
    }
}

fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let bytes = read(file)?;
    let found: Vec<_> = parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() { Err(wrong(file, "there is no certificate in it; PEM is expected")) } else { Ok(found) }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| wrong(file, &error.to_string()))
}

fn wrong(file: &Path, why: &str) -> Failure {
    Failure::argument(USAGE, format!("{}: {why}", file.display()))
}
