//! What a connection was encrypted with, in RabbitMQ's words.
//!
//! Invariant: each suite that this node speaks has its row.

use rustls::{CipherSuite, ProtocolVersion, ServerConnection};
use session::report::{PeerCertificate, TlsSeen};
use std::sync::Arc;

/// Suite, key exchange and cipher. In TLS 1.3 a suite says nothing of the key exchange.
const SUITES: [(CipherSuite, &str, &str); 9] = [
    (CipherSuite::TLS13_AES_256_GCM_SHA384, "any", "aes_256_gcm"),
    (CipherSuite::TLS13_AES_128_GCM_SHA256, "any", "aes_128_gcm"),
    (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, "any", "chacha20_poly1305"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "ecdhe_ecdsa", "aes_256_gcm"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "ecdhe_ecdsa", "aes_128_gcm"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "ecdhe_ecdsa", "chacha20_poly1305"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, "ecdhe_rsa", "aes_256_gcm"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "ecdhe_rsa", "aes_128_gcm"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, "ecdhe_rsa", "chacha20_poly1305"),
];

/// There is no suite here whose cipher does not authenticate too.
const HASH: &str = "aead";

/// What there is to tell of a session past its handshake, whose client showed this certificate. Cheap, so that nothing of it is
/// kept.
pub(crate) fn seen(session: &ServerConnection, certificate: Option<&Arc<PeerCertificate>>) -> TlsSeen {
    let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
    let (_, key_exchange, cipher) =
        SUITES.into_iter().find(|(known, ..)| Some(*known) == suite).expect("each suite has its row");
    let protocol = match session.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "tlsv1.3",
        _ => "tlsv1.2",
    };
    TlsSeen { protocol, key_exchange, cipher, hash: HASH, certificate: certificate.cloned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::finished;

    #[test]
    fn each_suite_that_is_spoken_has_its_row() {
        for suite in finished::provider().cipher_suites {
            let name = suite.suite();
            let (_, key_exchange, cipher) =
                SUITES.into_iter().find(|(known, ..)| *known == name).expect("it has its row");
            let name = format!("{name:?}").to_ascii_lowercase();
            assert!(name.contains(cipher) && (key_exchange == "any" || name.contains(key_exchange)), "{name}");
        }
    }
}
