//! An issuer of tokens on this machine: it signs with keys of its own, and publishes them over HTTPS
//! with a certificate of an authority of its own.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// What the broker is called here.
pub(crate) const AUDIENCE: &str = "rabbitmq";

/// A key, and what it is called.
pub(crate) struct Signer {
    id: String,
    pair: EcdsaKeyPair,
}

impl Signer {
    pub(crate) fn new(id: &str) -> Signer {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Signer { id: id.to_owned(), pair: EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap() }
    }

    pub(crate) fn jwk(&self) -> Value {
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id,
               "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)})
    }

    /// A token with these claims.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        let message = message(&json!({"alg": "ES256", "kid": self.id, "typ": "JWT"}), claims);
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// What is signed of a token.
pub(crate) fn message(head: &Value, claims: &Value) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(head.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// Seconds since the epoch.
pub(crate) fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// What a token says of a user with these scopes that lasts so long.
pub(crate) fn claims(user: &str, scopes: &str, lasts_s: u64) -> Value {
    json!({"sub": user, "aud": AUDIENCE, "scope": scopes, "exp": now_s() + lasts_s})
}

/// See the module.
pub(crate) struct Issuer {
    addr: SocketAddr,
    folder: tempfile::TempDir,
    pub(crate) signer: Signer,
    keys: Arc<Mutex<Vec<Value>>>,
    asked: Arc<AtomicUsize>,
    hangs: Arc<AtomicBool>,
}

impl Issuer {
    pub(crate) fn start() -> Issuer {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), ca_certificate.pem()).unwrap();
        let authority = rcgen::Issuer::new(ca, ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let own =
            rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![own.der().clone()], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let signer = Signer::new("first");
        let keys = Arc::new(Mutex::new(vec![signer.jwk()]));
        let (asked, hangs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let issuer = Issuer { addr, folder, signer, keys: keys.clone(), asked: asked.clone(), hangs: hangs.clone() };
        let url = issuer.url();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (config, keys, asked, hangs, url) =
                    (config.clone(), keys.clone(), asked.clone(), hangs.clone(), url.clone());
                std::thread::spawn(move || {
                    let mut socket = socket.unwrap();
                    let mut tls = ServerConnection::new(config).unwrap();
                    let mut stream = Stream::new(&mut tls, &mut socket);
                    let mut line = String::new();
                    if BufReader::new(&mut stream).read_line(&mut line).is_err() {
                        return;
                    }
                    let body = if line.starts_with("GET /keys ") {
                        asked.fetch_add(1, Ordering::SeqCst);
                        while hangs.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        json!({"keys": *keys.lock().unwrap()})
                    } else {
                        json!({"issuer": url, "jwks_uri": format!("{url}/keys")})
                    };
                    let body = body.to_string();
                    let head =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                    let _ = stream.write_all(format!("{head}{body}").as_bytes());
                    let _ = stream.flush();
                });
            }
        });
        issuer
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.addr.port())
    }

    /// The file with who vouches for it.
    pub(crate) fn ca(&self) -> String {
        self.file("ca.pem").to_str().unwrap().to_owned()
    }

    /// It takes all its keys back but this one.
    pub(crate) fn keep_only(&self, signer: &Signer) {
        *self.keys.lock().unwrap() = vec![signer.jwk()];
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How often its keys were asked for.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// It publishes one more.
    pub(crate) fn publish(&self, signer: &Signer) {
        self.keys.lock().unwrap().push(signer.jwk());
    }

    /// It does not answer, or does again.
    pub(crate) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// A token with its `iss`.
    pub(crate) fn token(&self, user: &str, scopes: &str, lasts_s: u64) -> String {
        let mut claims = claims(user, scopes, lasts_s);
        claims["iss"] = self.url().into();
        self.signer.sign(&claims)
    }
}
