//! Certificates from files, and who a client's certificate says it is.
//!
//! Invariant: what is used was read and understood as a whole; a file that is wrong is named, and
//! what was used before stays in use. Keys are in no log line.

mod finished;

pub(crate) use finished::take_output;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use ureq::tls::{Certificate, RootCerts};
use x509_cert::der::{Decode, asn1::PrintableStringRef, asn1::Utf8StringRef};

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyClients {
    /// They are not asked.
    #[default]
    Never,
    /// They are asked; one that is shown has to be right.
    Optional,
    /// They have to.
    Required,
}

/// Which part of a certificate's subject is the name of the user, where a client logs in by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginFrom {
    /// The whole subject, as `CN=client,O=Example`.
    #[default]
    DistinguishedName,
    /// Its common name alone.
    CommonName,
}

/// Where certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate in PEM, those between it and a root behind it.
    pub certificate: PathBuf,
    /// Its key in PEM.
    pub key: PathBuf,
    /// Certificates in PEM of the authorities whose clients are believed.
    pub authorities: Option<PathBuf>,
    /// Whether clients show theirs.
    pub verify: VerifyClients,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", file.display())]
pub struct TlsError {
    /// The file that is to blame.
    pub file: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

pub(crate) fn wrong(file: &Path, what: impl std::fmt::Display) -> TlsError {
    TlsError { file: file.to_owned(), what: what.to_string() }
}

pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match read {
        Ok(found) if found.is_empty() => Err(wrong(file, "there is no certificate in it; PEM is expected")),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(file, error)),
    }
}

/// Whom we believe about another side: the authorities in a file of PEM, or those that this machine
/// knows. Errors: nobody; `setting` names such a file.
pub(crate) fn believed(file: Option<&Path>, setting: &str) -> Result<RootCerts, String> {
    let found = match file {
        Some(file) => certificates(file).map_err(|error| error.to_string())?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    if found.is_empty() {
        return Err(format!("this machine knows no authorities: name a file with those to believe by {setting}"));
    }
    let found: Vec<Certificate<'static>> =
        found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(RootCerts::new_with_certs(&found))
}

/// The first certificate out of a file of PEM, as its bytes.
pub fn first_certificate(file: &Path) -> Result<Vec<u8>, TlsError> {
    Ok(certificates(file)?.swap_remove(0).to_vec())
}

/// Reads certificates and keys: TLS 1.2 and 1.3. Errors: the file that is missing, unreadable or
/// does not fit the others.
pub(crate) fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    load_with(files, finished::provider(), &[])
}

/// The same for HTTP.
pub(crate) fn load_for_http(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    load_with(files, rustls::crypto::ring::default_provider(), &[b"http/1.1"])
}

fn load_with(files: &TlsFiles, provider: CryptoProvider, speaks: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error))?;
    let provider = Arc::new(provider);
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    let builder = match (&files.authorities, files.verify) {
        (_, VerifyClients::Never) | (None, _) => builder.with_no_client_auth(),
        (Some(file), verify) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| wrong(file, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match verify {
                VerifyClients::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(file, error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| wrong(&files.certificate, error))?;
    // The NIO transport of RabbitMQ's Java client gives a connection up where a ticket comes behind
    // the handshake. RabbitMQ sends none either.
    config.send_tls13_tickets = 0;
    config.alpn_protocols = speaks.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// When the first of the certificates that are shown to clients ends.
pub(crate) fn ends(files: &TlsFiles) -> Result<SystemTime, TlsError> {
    end_of(&files.certificate, &certificates(&files.certificate)?)
}

/// When the first of the certificates out of a file ends.
pub(crate) fn end_of(file: &Path, chain: &[CertificateDer<'_>]) -> Result<SystemTime, TlsError> {
    let mut first = None;
    for certificate in chain {
        let read = x509_cert::Certificate::from_der(certificate).map_err(|error| wrong(file, error))?;
        let ends = read.tbs_certificate.validity.not_after.to_system_time();
        first = Some(first.map_or(ends, |first: SystemTime| first.min(ends)));
    }
    first.ok_or_else(|| wrong(file, "there is no certificate in it"))
}

/// The user that a verified certificate names. `None`: it has no such name.
pub(crate) fn user_of(certificate: &CertificateDer<'_>, from: LoginFrom) -> Option<String> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let subject = certificate.tbs_certificate.subject;
    match from {
        LoginFrom::DistinguishedName => Some(subject.to_string()).filter(|name| !name.is_empty()),
        LoginFrom::CommonName => {
            let mut attributes = subject.0.iter().flat_map(|set| set.0.iter());
            let common_name = attributes.find(|a| a.oid.to_string() == COMMON_NAME)?;
            let value = &common_name.value;
            let utf8 = value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
            utf8.or_else(|_| value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned())).ok()
        }
    }
}

/// `id-at-commonName` of X.520.
const COMMON_NAME: &str = "2.5.4.3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_wrong_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("empty.pem"), "nothing here").expect("written");
        let files = |certificate: &str| TlsFiles {
            certificate: path(certificate),
            key: path("key.pem"),
            authorities: None,
            verify: VerifyClients::Never,
        };
        for name in ["missing.pem", "empty.pem"] {
            let error = load(&files(name)).map(|_| ()).expect_err("no certificate").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
