//! TLS between nodes: which certificates a node shows and believes, and a connection that has them.
//!
//! Invariants: with certificates nothing is said to another node, and nothing heard of it, that is
//! not encrypted; both sides show a certificate of the cluster's authority that names the host under
//! which the other knows them. It comes before the proof of the secret and replaces nothing of it.
//! What is wrong with a certificate is told with what to do about it.

use crate::tls::{self, PemFile, TlsError, end_of};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, Connection, ServerConfig};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// What a TLS record of a handshake begins with. The first message of a node that does not encrypt
/// begins with its length, which is never this.
const HANDSHAKE_RECORD: u8 = 22;

/// A TLS record with the word that a handshake failed.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];

/// Where the certificates of nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFiles {
    /// Certificates in PEM of the authorities whose nodes are believed.
    pub authorities: PemFile,
    /// This node's certificate in PEM, those between it and its authority behind it.
    pub certificate: PemFile,
    /// Its key in PEM.
    pub key: PemFile,
}

/// The certificates of a node, as they were last read.
#[derive(Debug)]
pub(crate) struct LinkTls {
    files: LinkFiles,
    used: RwLock<Used>,
}

#[derive(Clone, Debug)]
struct Used {
    accepts: Arc<ServerConfig>,
    connects: Arc<ClientConfig>,
    end: SystemTime,
}

impl LinkTls {
    /// Reads the files. Errors: the one that is missing, unreadable or does not fit the others.
    pub(super) fn load(files: LinkFiles) -> Result<LinkTls, TlsError> {
        let used = RwLock::new(read(&files)?);
        Ok(LinkTls { files, used })
    }

    /// Reads the files again, for links to come. What is wrong is told and changes nothing.
    pub(super) fn reload_and_tell(&self) {
        match read(&self.files) {
            Ok(used) => {
                *self.used.write().unwrap_or_else(PoisonError::into_inner) = used;
                tracing::info!("certificates for other nodes read again; links that are up keep theirs");
            }
            Err(error) => {
                tracing::error!("certificates for other nodes not changed, those before stay in use: {error}");
            }
        }
    }

    /// When this node's certificate ends, or one between it and its authority.
    pub(super) fn end(&self) -> SystemTime {
        self.used().end
    }

    fn used(&self) -> Used {
        self.used.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(files: &LinkFiles) -> Result<Used, TlsError> {
    let LinkFiles { authorities, certificate, key } = files;
    let (chain, own_key) = tls::pair(certificate, key)?;
    let end = end_of(certificate, &chain)?;
    let (roots, provider) = (tls::authorities(authorities)?, Arc::new(rustls::crypto::ring::default_provider()));
    let known = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let known = known.build().map_err(|error| authorities.wrong(error))?;
    let believed = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
    let believed = believed.build().map_err(|error| authorities.wrong(error))?;
    let versions = &[&rustls::version::TLS13];
    let accepts = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions);
    let accepts = accepts.expect("the provider has suites for it").with_client_cert_verifier(known);
    let misfit = |error| tls::misfit(&error, certificate, key);
    let mut accepts = accepts.with_single_cert(chain.clone(), own_key.clone_key()).map_err(misfit)?;
    let connects = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
    let connects = connects.expect("the provider has suites for it").with_webpki_verifier(believed);
    let mut connects = connects.with_client_auth_cert(chain.clone(), own_key).map_err(misfit)?;
    // Each link looks at both certificates anew.
    accepts.send_tls13_tickets = 0;
    connects.resumption = Resumption::disabled();
    tls::warn_of_dates(certificate, &chain, tls::NODES);
    Ok(Used { accepts: Arc::new(accepts), connects: Arc::new(connects), end })
}

/// A connection between two nodes, encrypted or not.
pub(super) enum Wire {
    Plain(TcpStream),
    Sealed(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// Over a connection to the node at `address`. Errors: one line that says what to do.
    pub(super) async fn connect(tls: Option<&LinkTls>, stream: TcpStream, address: &str) -> Result<Wire, String> {
        let Some(tls) = tls else { return Ok(Wire::Plain(stream)) };
        let name = ServerName::try_from(host(address)).map_err(|_| no_name(address))?.to_owned();
        let connecting = TlsConnector::from(tls.used().connects).connect(name, stream);
        match connecting.await {
            Ok(stream) => Ok(Wire::Sealed(Box::new(TlsStream::Client(stream)))),
            Err(error) => Err(told(&error, address)),
        }
    }

    /// Over a connection that another made. Errors: one line that says what to do.
    pub(super) async fn accept(tls: Option<&LinkTls>, stream: TcpStream) -> Result<Wire, String> {
        let Some(tls) = tls else { return Ok(Wire::Plain(stream)) };
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1) if first[0] != HANDSHAKE_RECORD => return Err(turn_away(&stream).await),
            Ok(_) => {}
            Err(error) => return Err(format!("the connection to a peer ended: {error}")),
        }
        match TlsAcceptor::from(tls.used().accepts).accept(stream).await {
            Ok(stream) => Ok(Wire::Sealed(Box::new(TlsStream::Server(stream)))),
            Err(error) => Err(told(&error, "somebody who connected")),
        }
    }

    /// What the other side showed.
    pub(super) fn certificate(&self) -> Option<CertificateDer<'static>> {
        match self {
            Wire::Plain(_) => None,
            Wire::Sealed(stream) => {
                stream.get_ref().1.peer_certificates()?.first().map(|found| found.clone().into_owned())
            }
        }
    }

    /// The socket, and what encrypts over it.
    pub(super) fn into_parts(self) -> io::Result<(std::net::TcpStream, Option<Box<Connection>>)> {
        match self {
            Wire::Plain(stream) => Ok((stream.into_std()?, None)),
            Wire::Sealed(stream) => {
                let (stream, session): (TcpStream, Connection) = match *stream {
                    TlsStream::Client(stream) => {
                        let (stream, session) = stream.into_inner();
                        (stream, session.into())
                    }
                    TlsStream::Server(stream) => {
                        let (stream, session) = stream.into_inner();
                        (stream, session.into())
                    }
                };
                Ok((stream.into_std()?, Some(Box::new(session))))
            }
        }
    }
}

/// Tells a node that does not encrypt so, in the words of TLS, which it knows ([`is_tls`]).
async fn turn_away(stream: &TcpStream) -> String {
    // What it said is read, so that the answer is not lost with a reset of the connection.
    let _ = stream.try_read(&mut [0; 4096]);
    let _ = stream.try_write(&HANDSHAKE_FAILURE);
    NOT_ENCRYPTED.to_owned()
}

/// Why a certificate is none of the node at `address`, which who shows it says to be.
pub(super) fn objection(certificate: Option<&CertificateDer<'_>>, address: &str) -> Option<String> {
    let certificate = ParsedCertificate::try_from(certificate?);
    let Ok(name) = ServerName::try_from(host(address)) else { return Some(no_name(address)) };
    match certificate.and_then(|certificate| verify_server_name(&certificate, &name)) {
        Ok(()) => None,
        Err(_) => Some(wrong_name(address)),
    }
}

/// The host of `host:port`.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn no_name(address: &str) -> String {
    format!(
        "{address} has no name that a certificate could have: name nodes by host name or IP address in cluster_peers"
    )
}

fn wrong_name(address: &str) -> String {
    let host = host(address);
    format!(
        "the certificate of {address} does not name {host}: make one that does with `leveret cluster certificates DIR {host}`, or \
         name the node as its certificate does: in cluster_peers, or by the cluster_address of a node that joins"
    )
}

/// What a node that encrypts says of one that does not.
pub(super) const NOT_ENCRYPTED: &str = "the peer does not encrypt and this node does: give all nodes cluster_tls_ca, \
                                        cluster_tls_certificate and cluster_tls_key, or none of them; or another service listens \
                                        there, and this is not the node's cluster_address";

/// What a node that does not encrypt says of one that does.
pub(super) const ENCRYPTED: &str = "the peer encrypts and this node does not: give this node cluster_tls_ca, \
                                    cluster_tls_certificate and cluster_tls_key too, or take them from all nodes";

/// Whether the first bytes of a message are those of TLS: of a handshake, or of a word about its
/// failure.
pub(super) fn is_tls(first: [u8; 4]) -> bool {
    matches!(first, [21 | HANDSHAKE_RECORD, 3, ..])
}

/// What is wrong, in a line that says what to do. `whom`: the other side.
pub(super) fn told(error: &io::Error, whom: &str) -> String {
    use rustls::{AlertDescription as Alert, Error};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidMessage(_)) => NOT_ENCRYPTED.to_owned(),
        Some(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => format!(
            "the certificate of {whom} has ended: make a new one with `leveret cluster certificates DIR NAME --renew` and send that \
             node SIGHUP"
        ),
        Some(Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => format!("the certificate of {whom} begins in the future: compare the clocks of both machines"),
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => wrong_name(whom),
        // Two authorities that our own command made have one name, and are told apart by their signature.
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => format!(
            "the certificate of {whom} is of an authority that cluster_tls_ca does not have: give all nodes certificates of one \
             authority, or all authorities in cluster_tls_ca"
        ),
        Some(Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        )) => format!(
            "the certificate of {whom} is not for servers and for clients: give it the extended key usages serverAuth and clientAuth"
        ),
        Some(Error::InvalidCertificate(why)) => format!("the certificate of {whom} is not believed: {why}"),
        Some(Error::NoCertificatesPresented) => format!("{whom} shows no certificate: a node has cluster_tls_certificate"),
        Some(Error::AlertReceived(Alert::CertificateExpired)) => "the peer says that this node's certificate has ended: make a new \
             one with `leveret cluster certificates DIR NAME --renew` and send this node SIGHUP; if it has not, compare the clocks"
            .to_owned(),
        Some(Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError)) => "the peer does not believe the authority of this node's certificate: give all \
             nodes certificates of one authority, or all authorities in cluster_tls_ca"
            .to_owned(),
        Some(Error::AlertReceived(Alert::BadCertificate)) => "the peer does not take this node's certificate: it does not name the host \
             by which cluster_peers names this node, or is damaged"
            .to_owned(),
        Some(Error::AlertReceived(Alert::UnsupportedCertificate)) => "the peer does not take this node's certificate: it has to be for \
             servers and for clients (extended key usage serverAuth and clientAuth)"
            .to_owned(),
        Some(Error::AlertReceived(alert)) => format!("the peer does not take this node's certificate or its TLS: {alert:?}"),
        Some(other) => format!("no TLS with {whom}: {other}"),
        None => format!("the connection to a peer ended: {error}"),
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Wire::Sealed(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Sealed(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Sealed(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Sealed(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_what_a_certificate_names() {
        for (address, expected) in
            [("n1.example:25672", "n1.example"), ("127.0.0.1:1", "127.0.0.1"), ("[::1]:1", "::1")]
        {
            assert_eq!(host(address), expected);
        }
    }

    #[test]
    fn what_a_node_says_first_is_told_from_tls() {
        assert!(is_tls([22, 3, 1, 2]) && is_tls([21, 3, 3, 0]));
        // The length of a hello.
        assert!(!is_tls(22_u32.to_le_bytes()) && !is_tls(300_u32.to_le_bytes()));
    }
}
