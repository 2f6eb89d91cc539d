//! TLS as a client of a broker has it: whose certificate is believed, and which one is shown.
//!
//! Invariant: files were read and understood before the first connection; what is wrong is named
//! with its option. Without a word about whom to believe nobody is verified, as in PerfTest, and
//! the run says so.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::Error;

/// What the command line says about TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsAsked {
    /// Believe whom this machine believes.
    pub system_roots: bool,
    /// A file of certificates in PEM to believe.
    pub authorities: Option<String>,
    /// A client's certificate in PEM, those between it and a root behind it.
    pub certificate: Option<String>,
    /// Its key in PEM.
    pub key: Option<String>,
    /// The name to ask for and to verify, instead of the URI's host.
    pub name: Option<String>,
}

/// Everything that a connection over TLS needs.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
    /// Whether the broker's certificate is verified.
    pub verifies: bool,
}

impl Tls {
    /// Reads the files that were named.
    pub fn of(asked: &TlsAsked) -> Result<Tls, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions");
        let verifies = asked.system_roots || asked.authorities.is_some();
        let builder = match verifies {
            true => builder.with_root_certificates(roots(asked)?),
            false => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody { provider })),
        };
        let config = match (&asked.certificate, &asked.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates("tls-certificate", certificate)?;
                let own = PrivateKeyDer::from_pem_file(key).map_err(|why| wrong("tls-key", key, why))?;
                builder.with_client_auth_cert(chain, own).map_err(|why| wrong("tls-certificate", certificate, why))?
            }
            (Some(_), None) => return Err(Error::usage("--tls-certificate needs --tls-key")),
            (None, Some(_)) => return Err(Error::usage("--tls-key needs --tls-certificate")),
        };
        let name = asked.name.as_deref().map(server_name).transpose()?;
        Ok(Tls { config: Arc::new(config), name, verifies })
    }

    /// The client's end of a connection to `host`; nothing was sent yet.
    pub fn connection(&self, host: &str) -> Result<ClientConnection, Error> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host)?,
        };
        ClientConnection::new(Arc::clone(&self.config), name).map_err(|why| Error::machine("beginning TLS", why))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("verifies", &self.verifies).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Two are the same when they are one: keys are not compared.
impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

fn roots(asked: &TlsAsked) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    if asked.system_roots {
        let found = rustls_native_certs::load_native_certs();
        let why = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let what = "--use-default-ssl-context: this machine's trusted certificates";
            return Err(Error::usage(format!("{what} were not found: {why}")));
        }
    }
    if let Some(file) = &asked.authorities {
        for certificate in certificates("tls-ca", file)? {
            roots.add(certificate).map_err(|why| wrong("tls-ca", file, why))?;
        }
    }
    Ok(roots)
}

fn certificates(option: &str, file: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match read {
        Ok(found) if found.is_empty() => Err(wrong(option, file, "there is no certificate in it; PEM is expected")),
        Ok(found) => Ok(found),
        Err(why) => Err(wrong(option, file, why)),
    }
}

fn wrong(option: &str, file: &str, why: impl fmt::Display) -> Error {
    Error::usage(format!("--{option} {file}: {why}"))
}

fn server_name(text: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(text.to_owned()).map_err(|_| Error::usage(format!("{text:?} is no name that TLS can ask for")))
}

/// Believes any certificate. What is sent is encrypted, and it is not known for whom.
#[derive(Debug)]
struct Anybody {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(asked: &TlsAsked) -> String {
        Tls::of(asked).expect_err("it is wrong").to_string()
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_option() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let name = file.path().display().to_string();
        let authorities = TlsAsked { authorities: Some(name.clone()), ..TlsAsked::default() };
        assert_eq!(error(&authorities), format!("--tls-ca {name}: there is no certificate in it; PEM is expected"));
        let certificate = TlsAsked { certificate: Some(name.clone()), ..TlsAsked::default() };
        assert_eq!(error(&certificate), "--tls-certificate needs --tls-key");
        let key = TlsAsked { key: Some(name), ..TlsAsked::default() };
        assert_eq!(error(&key), "--tls-key needs --tls-certificate");
        let strange = TlsAsked { name: Some("a b".to_owned()), ..TlsAsked::default() };
        assert_eq!(error(&strange), "\"a b\" is no name that TLS can ask for");
    }

    #[test]
    fn nobody_is_verified_unless_it_is_said_whom_to_believe() {
        assert!(!Tls::of(&TlsAsked::default()).expect("nothing to read").verifies);
    }
}
