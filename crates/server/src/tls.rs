//! Certificates from files, and who a client's certificate says it is.
//!
//! Invariant: what is used was read and understood as a whole; a file that is wrong is named, and
//! what was used before stays in use. Keys are in no log line.

mod dates;
mod finished;
mod pem;
mod subject;
mod suite;

pub(crate) use dates::{BROWSERS, CLIENTS, NODES, end_of, warn as warn_of_dates};
pub(crate) use finished::take_output;
pub use pem::{PemFile, TlsError, first_certificate};
pub(crate) use pem::{certificates, misfit};
pub(crate) use subject::PeerCertificates;
pub(crate) use suite::seen;

use crate::config::Config;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use session::report::PeerCertificate;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use ureq::tls::{Certificate, RootCerts};
use x509_cert::der::{Decode, asn1::PrintableStringRef, asn1::Utf8StringRef};
use x509_cert::name::Name;

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
    pub certificate: PemFile,
    /// Its key in PEM.
    pub key: PemFile,
    /// Certificates in PEM of the authorities whose clients are believed.
    pub authorities: Option<PemFile>,
    /// Whether clients show theirs.
    pub verify: VerifyClients,
}

/// Whom we believe about another side: the authorities in a file of PEM, or those that this machine
/// knows. Errors: nobody; `setting` names such a file.
pub(crate) fn believed(file: Option<&Path>, setting: &'static str) -> Result<RootCerts, String> {
    let found = match file {
        Some(file) => certificates(&PemFile::new(setting, file)).map_err(|error| error.to_string())?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    if found.is_empty() {
        return Err(format!("this machine knows no authorities: name a file with those to believe by {setting}"));
    }
    let found: Vec<Certificate<'static>> =
        found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(RootCerts::new_with_certs(&found))
}

/// What was read of these files.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Arc<ServerConfig>,
    /// When the first of the certificates that are shown ends.
    pub(crate) ends: SystemTime,
    /// The certificates that are shown.
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

/// A certificate with those between it and a root, and its key.
pub(crate) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads certificates and keys: TLS 1.2 and 1.3. Errors: the file that is missing, unreadable or
/// does not fit the others.
pub(crate) fn load(files: &TlsFiles) -> Result<Loaded, TlsError> {
    load_with(files, finished::provider(), &[])
}

/// The same for HTTP.
pub(crate) fn load_for_http(files: &TlsFiles) -> Result<Loaded, TlsError> {
    load_with(files, rustls::crypto::ring::default_provider(), &[b"http/1.1"])
}

fn load_with(files: &TlsFiles, provider: CryptoProvider, speaks: &[&[u8]]) -> Result<Loaded, TlsError> {
    let (chain, key) = pair(&files.certificate, &files.key)?;
    let provider = Arc::new(provider);
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    let builder = match (&files.authorities, files.verify) {
        (_, VerifyClients::Never) | (None, _) => builder.with_no_client_auth(),
        (Some(file), verify) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities(file)?, provider);
            let verifier = match verify {
                VerifyClients::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| file.wrong(error))?)
        }
    };
    let mut config =
        builder.with_single_cert(chain.clone(), key).map_err(|error| misfit(&error, &files.certificate, &files.key))?;
    // The NIO transport of RabbitMQ's Java client gives a connection up where a ticket comes behind
    // the handshake. RabbitMQ sends none either.
    config.send_tls13_tickets = 0;
    config.alpn_protocols = speaks.iter().map(|name| name.to_vec()).collect();
    let ends = end_of(&files.certificate, &chain)?;
    Ok(Loaded { config: Arc::new(config), ends, chain })
}

/// Reads both. Errors: as of each; whether they fit is not looked at.
pub(crate) fn pair(certificate: &PemFile, key: &PemFile) -> Result<Pair, TlsError> {
    Ok((certificates(certificate)?, pem::key(key)?))
}

/// Who is believed about another side.
pub(crate) fn authorities(file: &PemFile) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| file.wrong(format!("one of its certificates is of no authority: {error}")))?;
    }
    Ok(Arc::new(roots))
}

/// Errors: the first of the files that settings name, used or not, that is missing or not what it should be.
pub(crate) fn check(config: &Config) -> Result<(), TlsError> {
    config.certificate_files().try_for_each(|file| certificates(&file).map(drop))?;
    config.key_files().try_for_each(|file| pem::key(&file).map(drop))?;
    config.tls_files().map_or(Ok(()), |files| load(&files).map(drop))?;
    config.management_tls_files().map_or(Ok(()), |files| load_for_http(&files).map(drop))
}

/// Who a client is by the certificate that it showed.
pub(crate) struct Shown {
    /// The user that it names; `None`: it has no such name.
    pub(crate) user: Option<String>,
    /// What is told of it.
    pub(crate) described: PeerCertificate,
}

/// Reads a verified certificate. `None`: it says nothing that we can read.
pub(crate) fn read_shown(certificate: &CertificateDer<'_>, from: LoginFrom) -> Option<Shown> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let described = subject::described(&certificate);
    let user = match from {
        LoginFrom::DistinguishedName => Some(String::from(&*described.subject)).filter(|name| !name.is_empty()),
        LoginFrom::CommonName => common_name(&certificate.tbs_certificate.subject),
    };
    Some(Shown { user, described })
}

fn common_name(subject: &Name) -> Option<String> {
    let mut attributes = subject.0.iter().flat_map(|set| set.0.iter());
    let value = &attributes.find(|a| a.oid.to_string() == COMMON_NAME)?.value;
    let utf8 = value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    utf8.or_else(|_| value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned())).ok()
}

/// `id-at-commonName` of X.520.
const COMMON_NAME: &str = "2.5.4.3";
