//! Certificates and keys out of files of PEM, and what is wrong with a file that has none.
//!
//! Invariant: an error names the setting and the file, says what is there instead, and what to do. Nothing of a key is in it.

use rustls::Error;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::{Path, PathBuf};

/// A file of PEM, and the setting that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFile {
    /// The setting.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
}

impl PemFile {
    /// The file that a setting names.
    pub fn new(setting: &'static str, path: impl Into<PathBuf>) -> PemFile {
        PemFile { setting, path: path.into() }
    }

    pub(crate) fn wrong(&self, what: impl fmt::Display) -> TlsError {
        TlsError { file: self.clone(), what: what.to_string() }
    }
}

impl fmt::Display for PemFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.setting, self.path.display())
    }
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {what}")]
pub struct TlsError {
    /// The file that is to blame.
    pub file: PemFile,
    /// What is wrong with it.
    pub what: String,
}

/// All certificates of a file, at least one.
pub(crate) fn certificates(file: &PemFile) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(file.wrong(no_certificate(&bytes, &file.path))),
        Ok(found) => Ok(found),
        Err(error) => Err(file.wrong(damaged(&error))),
    }
}

/// The first certificate of an authority's file, as its bytes.
pub fn first_certificate(file: &Path) -> Result<Vec<u8>, TlsError> {
    Ok(certificates(&PemFile::new("authority", file))?.swap_remove(0).to_vec())
}

/// The key of a file.
pub(super) fn key(file: &PemFile) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| file.wrong(no_key(&bytes, &file.path, &error)))
}

/// Why a key and a chain, each right by itself, are not taken.
pub(crate) fn misfit(error: &Error, certificate: &PemFile, key: &PemFile) -> TlsError {
    match error {
        Error::InconsistentKeys(_) => key.wrong(format!(
            "it is not the key of the first certificate in {certificate}: give both of one pair, the node's own certificate first in its file"
        )),
        Error::General(_) => key.wrong(
            "the key is of a kind that is not spoken: make one of ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 4096 bits, and a certificate \
             for it",
        ),
        other => certificate.wrong(format!("its first certificate cannot be used: {other}")),
    }
}

fn read(file: &PemFile) -> Result<Vec<u8>, TlsError> {
    std::fs::read(&file.path).map_err(|error| file.wrong(format!("it cannot be read: {error}")))
}

fn has(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

/// Whether the bytes are a sequence of ASN.1, as DER and PKCS#12 are.
fn is_binary(bytes: &[u8]) -> bool {
    matches!(bytes, [0x30, second, ..] if second & 0x80 != 0)
}

fn no_certificate(bytes: &[u8], path: &Path) -> String {
    let path = path.display();
    if has(bytes, "PRIVATE KEY-----") {
        "it is a key, and a certificate is expected: the settings may be the wrong way round".to_owned()
    } else if has(bytes, "BEGIN CERTIFICATE REQUEST-----") {
        "it is the request for a certificate: give the certificate that the authority made for it".to_owned()
    } else if is_binary(bytes) {
        format!(
            "it is binary (DER or PKCS#12), and PEM is expected: `openssl x509 -inform DER -in {path}`, or `openssl pkcs12 -nokeys -in {path}`, \
             writes it as PEM"
        )
    } else {
        "there is no certificate in it: PEM is expected, from -----BEGIN CERTIFICATE----- on".to_owned()
    }
}

fn no_key(bytes: &[u8], path: &Path, error: &pem::Error) -> String {
    let path = path.display();
    if has(bytes, "BEGIN ENCRYPTED PRIVATE KEY-----") || has(bytes, "Proc-Type: 4,ENCRYPTED") {
        return format!(
            "the key has a password, and keys with a password are not read: take it off with `openssl pkey -in {path} -out NEWFILE`, and give the \
             new file"
        );
    }
    match error {
        pem::Error::NoItemsFound if has(bytes, "BEGIN CERTIFICATE-----") => {
            "it is a certificate, and its private key is expected: the settings may be the wrong way round".to_owned()
        }
        pem::Error::NoItemsFound if has(bytes, "PUBLIC KEY-----") => {
            "it is a public key, and the private one is expected".to_owned()
        }
        pem::Error::NoItemsFound if is_binary(bytes) => format!(
            "it is binary (DER or PKCS#12), and PEM is expected: `openssl pkey -inform DER -in {path}`, or `openssl pkcs12 -nocerts -noenc -in {path}`, \
             writes it as PEM"
        ),
        pem::Error::NoItemsFound => {
            "there is no private key in it: PEM is expected, from -----BEGIN PRIVATE KEY----- on".to_owned()
        }
        other => damaged(other),
    }
}

/// A file that begins as PEM does and goes on otherwise. What stands there is not told: it may be a key.
fn damaged(error: &pem::Error) -> String {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "its end is missing",
        pem::Error::IllegalSectionStart { .. } => "a line that begins a part of it is not whole",
        pem::Error::Base64Decode(_) => "what stands between its first and last line is not base64",
        _ => "it is no PEM",
    };
    format!("{what}: it may have been cut or changed on its way, copy it again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{TlsFiles, VerifyClients, load};
    use tempfile::TempDir;

    struct Pair {
        folder: TempDir,
    }

    impl Pair {
        /// `own.pem`, `own.key` and another `other.key`.
        fn new() -> Pair {
            let folder = tempfile::tempdir().expect("a folder");
            let pair = Pair { folder };
            let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
            let (key, other) = (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
            pair.write("own.pem", params.self_signed(&key).expect("a certificate").pem().as_bytes());
            pair.write("own.key", key.serialize_pem().as_bytes());
            pair.write("own.der", &key.serialize_der());
            pair.write("other.key", other.serialize_pem().as_bytes());
            pair
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.path(name), bytes).expect("written");
        }

        fn told(&self, certificate: &str, key: &str) -> String {
            let files = TlsFiles {
                certificate: PemFile::new("tls_certificate", self.path(certificate)),
                key: PemFile::new("tls_key", self.path(key)),
                authorities: None,
                verify: VerifyClients::Never,
            };
            load(&files).map(|_| ()).expect_err("it is wrong").to_string()
        }
    }

    /// What `openssl ec -aes128` and `openssl pkcs8 -topk8` begin with.
    const OLD_FORM: &str = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
                            -----END EC PRIVATE KEY-----\n";
    const NEW_FORM: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    /// A key that is whole as PEM, and none that could be used.
    const STRANGE: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

    #[test]
    fn a_key_that_cannot_be_used_is_told_with_its_setting_its_file_and_what_to_do() {
        let pair = Pair::new();
        pair.write("old.key", OLD_FORM.as_bytes());
        pair.write("new.key", NEW_FORM.as_bytes());
        pair.write("cut.key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n");
        pair.write("changed.key", b"-----BEGIN PRIVATE KEY-----\n!!\n-----END PRIVATE KEY-----\n");
        pair.write("strange.key", STRANGE.as_bytes());
        pair.write("public.key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
        pair.write("nothing.key", b"nothing");
        for (key, words) in [
            ("missing.key", "it cannot be read: No such file"),
            ("old.key", "keys with a password are not read: take it off with `openssl pkey -in "),
            ("new.key", "keys with a password are not read: take it off with `openssl pkey -in "),
            ("own.pem", "it is a certificate, and its private key is expected"),
            ("own.der", "`openssl pkey -inform DER -in "),
            ("other.key", "it is not the key of the first certificate in tls_certificate "),
            ("strange.key", "of a kind that is not spoken"),
            ("public.key", "it is a public key"),
            ("cut.key", "its end is missing"),
            ("changed.key", "is not base64"),
            ("nothing.key", "there is no private key in it"),
        ] {
            let told = pair.told("own.pem", key);
            let file = format!("tls_key {}: ", pair.path(key).display());
            assert!(told.starts_with(&file) && told.contains(words) && told.lines().count() == 1, "{key}: {told}");
        }
    }

    #[test]
    fn a_certificate_that_cannot_be_used_is_told_with_its_setting_its_file_and_what_to_do() {
        let pair = Pair::new();
        pair.write("strange.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        pair.write("request.pem", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n");
        pair.write("nothing.pem", b"");
        for (certificate, words) in [
            ("missing.pem", "it cannot be read: No such file"),
            ("own.key", "it is a key, and a certificate is expected"),
            ("own.der", "`openssl x509 -inform DER -in "),
            ("strange.pem", "its first certificate cannot be used"),
            ("request.pem", "it is the request for a certificate"),
            ("nothing.pem", "there is no certificate in it"),
        ] {
            let told = pair.told(certificate, "own.key");
            let file = format!("tls_certificate {}: ", pair.path(certificate).display());
            assert!(told.starts_with(&file) && told.contains(words), "{certificate}: {told}");
        }
    }
}
