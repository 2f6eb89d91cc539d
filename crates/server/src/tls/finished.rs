//! The server's Finished in a TLS record of its own, in TLS 1.3.
//!
//! rustls puts its whole first flight into one record. Java's `SSLEngine` hands the work on such a
//! record out as a task, Finished included, and the NIO transport of RabbitMQ's Java client then
//! reads from its socket before it looks whether there is something to write: both sides wait for
//! ever. A Finished in its own record is no task, and that client goes on. A smaller limit for
//! records would do as well, but rustls keeps it for the whole connection, where it costs. So the
//! handshake's cipher seals two records where rustls asks for one, and names the second one's
//! length in the header of the first, where a protocol version belongs; [`take_output`] puts the
//! header right.
//!
//! Invariant: each record is sealed by the suite as it is, under a number of its own, and what the
//! records hold is what rustls wrote, in its order. Every byte that a session with [`provider`]'s
//! suites gives in its handshake goes through [`take_output`]. Messages pass without a copy.

use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage, OutboundPlainMessage,
    Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{
    CipherSuiteCommon, ConnectionTrafficSecrets, ContentType, Error, HandshakeType, ProtocolVersion, ServerConnection,
    SupportedCipherSuite, Tls13CipherSuite,
};
use std::io;
use std::sync::LazyLock;

/// In the place of a record's version: two records are in this one, and the low bits are the length
/// of the second.
const JOINED: u16 = 0x8000;
/// What a record's header says where it is only one.
const VERSION: [u8; 2] = [3, 3];
/// Kind and length of a handshake message.
const MESSAGE_HEADER: usize = 4;

/// ring's suites, those of TLS 1.3 with Finished in a record of its own. rustls takes suites that
/// live for ever, so they are made once, however often the certificates are read again.
static SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
    let suites = rustls::crypto::ring::default_provider().cipher_suites;
    suites.into_iter().map(|suite| suite.tls13().map_or(suite, parted)).collect()
});

fn parted(suite: &'static Tls13CipherSuite) -> SupportedCipherSuite {
    let CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit } = suite.common;
    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: Box::leak(Box::new(Parting(suite.aead_alg))),
        quic: suite.quic,
    })))
}

/// What rustls encrypts with, as it comes but for the records of its first flight.
pub(super) fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: SUITES.clone(), ..rustls::crypto::ring::default_provider() }
}

/// Appends to `output` what `session` wants to send. Errors: none that a buffer in memory can have.
pub(crate) fn take_output(session: &mut ServerConnection, output: &mut Vec<u8>) -> io::Result<()> {
    let start = output.len();
    while session.wants_write() {
        session.write_tls(output)?;
    }
    part(&mut output[start..]);
    Ok(())
}

/// Puts the headers of joined records right.
fn part(mut records: &mut [u8]) {
    while let [_, high, low, length_high, length_low, rest @ ..] = records {
        let mark = u16::from_be_bytes([*high, *low]);
        let mut length = u16::from_be_bytes([*length_high, *length_low]);
        if mark & JOINED != 0 {
            length -= mark & !JOINED;
            [*high, *low] = VERSION;
            [*length_high, *length_low] = length.to_be_bytes();
        }
        records = rest.get_mut(usize::from(length)..).unwrap_or_default();
    }
}

struct Parting(&'static dyn Tls13AeadAlgorithm);

impl Tls13AeadAlgorithm for Parting {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(PartingEncrypter { inner: self.0.encrypter(key, iv), ahead: 0, rest: 0 })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(&self, key: AeadKey, iv: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct PartingEncrypter {
    inner: Box<dyn MessageEncrypter>,
    /// Records sealed under this key that rustls does not know of.
    ahead: u64,
    /// Bytes of the last handshake message that are in the next record.
    rest: usize,
}

impl PartingEncrypter {
    /// Where Finished begins in the next record's `messages`, unless it is first in it anyway.
    fn finished_at(&mut self, messages: &[u8]) -> Option<usize> {
        let mut at = self.rest;
        while let Some([kind, length @ ..]) = messages.get(at..).and_then(<[u8]>::first_chunk::<MESSAGE_HEADER>) {
            if HandshakeType::from(*kind) == HandshakeType::Finished {
                return (at > 0).then_some(at);
            }
            let [high, middle, low] = length.map(usize::from);
            at += MESSAGE_HEADER + (high << 16 | middle << 8 | low);
        }
        self.rest = at.saturating_sub(messages.len());
        None
    }
}

impl MessageEncrypter for PartingEncrypter {
    fn encrypt(&mut self, message: OutboundPlainMessage<'_>, seq: u64) -> Result<OutboundOpaqueMessage, Error> {
        let OutboundPlainMessage { typ, version, payload } = message;
        let finished_at = match typ {
            ContentType::Handshake => self.finished_at(&payload.to_vec()),
            _ => None,
        };
        let Some(at) = finished_at else {
            return self.inner.encrypt(OutboundPlainMessage { typ, version, payload }, seq + self.ahead);
        };
        let (before, finished) = payload.split_at(at);
        let mut seal =
            |payload: OutboundChunks<'_>, seq| self.inner.encrypt(OutboundPlainMessage { typ, version, payload }, seq);
        let mut joined = seal(before, seq + self.ahead)?;
        self.ahead += 1;
        let second = seal(finished, seq + self.ahead)?.encode();
        joined.payload.extend_from_slice(&second);
        // A Finished is some dozens of bytes.
        joined.version = ProtocolVersion::Unknown(JOINED | second.len() as u16);
        Ok(joined)
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        self.inner.encrypted_payload_len(payload_len)
    }
}
