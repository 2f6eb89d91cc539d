//! What is told of connections with TLS, in RabbitMQ's words; and of certificates of this node that clients will refuse.

use clients::api::{reason, until};
use clients::broker::{free_port, is_foreign};
use clients::methods::{
    CONNECTION_OPEN, CONNECTION_OPEN_OK, CONNECTION_START, CONNECTION_START_OK, CONNECTION_TUNE, CONNECTION_TUNE_OK,
    Method,
};
use clients::wire::Args;
use clients::{Broker, Http, Nodes, Tools};
use rcgen::{BasicConstraints, CertificateParams, DnType, DnValue, IsCa, Issuer, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// When the certificates here begin and end, but for those that a test is about.
const YEARS: (i32, i32) = (2020, 2090);

/// An authority, and what it made: `ca.pem`, and by name `NAME.pem` and `NAME.key`.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

fn named(parts: &[(DnType, &str)], years: (i32, i32)) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, text) in parts {
        params.distinguished_name.push(kind.clone(), DnValue::Utf8String((*text).to_owned()));
    }
    (params.not_before, params.not_after) =
        (rcgen::date_time_ymd(years.0, 1, 1), rcgen::date_time_ymd(years.1, 12, 31));
    params
}

impl Authority {
    fn new() -> Authority {
        let mut params = named(&[(DnType::CommonName, "ca"), (DnType::OrganizationName, "Org")], YEARS);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    fn make(&self, file: &str, parts: &[(DnType, &str)], years: (i32, i32)) {
        let key = KeyPair::generate().unwrap();
        let made = named(parts, years).signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.folder.path().join(format!("{file}.pem")), made.pem()).unwrap();
        std::fs::write(self.folder.path().join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The settings of a node that asks clients for certificates, as flags.
    fn flags(&self, amqps: SocketAddr) -> Vec<String> {
        let all = [
            ("--amqps", amqps.to_string()),
            ("--tls-certificate", self.path("server.pem")),
            ("--tls-key", self.path("server.key")),
            ("--tls-ca", self.path("ca.pem")),
            ("--tls-verify", "optional".to_owned()),
        ];
        all.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }
}

type Sealed = StreamOwned<ClientConnection, TcpStream>;

fn send(stream: &mut Sealed, method: Method, args: &Args) {
    let payload = [&method.0.to_be_bytes()[..], &method.1.to_be_bytes(), &args.0].concat();
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    stream.write_all(&[&[1, 0, 0][..], &length, &payload, &[0xCE]].concat()).unwrap();
}

/// Takes the next frame, which is of this method.
fn take(stream: &mut Sealed, method: Method) {
    let mut head = [0; 7];
    stream.read_exact(&mut head).unwrap();
    let [_, _, _, length @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes(length) as usize + 1];
    stream.read_exact(&mut payload).unwrap();
    let found = [&method.0.to_be_bytes()[..], &method.1.to_be_bytes()].concat();
    assert!(payload.starts_with(&found), "{method:?}: {}", String::from_utf8_lossy(&payload));
}

/// A connection of this version and suite, of a client who shows this certificate, past its login.
fn connect(
    authority: &Authority,
    address: SocketAddr,
    (version, suite): (&'static SupportedProtocolVersion, &str),
    shows: Option<&str>,
) -> Sealed {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|known| format!("{:?}", known.suite()) == suite);
    assert_eq!(provider.cipher_suites.len(), 1, "{suite}");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::<CryptoProvider>::new(provider));
    let config = config.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots);
    let config = match shows {
        None => config.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(authority.path(&format!("{name}.pem"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(authority.path(&format!("{name}.key"))).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, TcpStream::connect(address).unwrap());
    stream.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    take(&mut stream, CONNECTION_START);
    let args = Args::new().table(&[]).shortstr("PLAIN").longstr(b"\0guest\0guest").shortstr("en_US");
    send(&mut stream, CONNECTION_START_OK, &args);
    take(&mut stream, CONNECTION_TUNE);
    send(&mut stream, CONNECTION_TUNE_OK, &Args::new().short(2047).long(131_072).short(0));
    send(&mut stream, CONNECTION_OPEN, &Args::new().shortstr("/").shortstr("").octet(0));
    take(&mut stream, CONNECTION_OPEN_OK);
    stream
}

/// What is told of the TLS of the one connection that has it, or has none.
fn told(http: &Http, is_encrypted: bool) -> Value {
    let fields =
        "ssl,ssl_protocol,ssl_key_exchange,ssl_cipher,ssl_hash,peer_cert_subject,peer_cert_issuer,peer_cert_validity";
    until("the connection", || {
        let all = http.get(&format!("/api/connections?columns={fields}")).with(200);
        all.as_array().unwrap().iter().find(|one| one["ssl"] == is_encrypted).cloned()
    })
}

fn until_none(http: &Http) {
    until("nobody", || (http.get("/api/connections").with(200) == json!([])).then_some(Value::Null));
}

#[test]
fn a_connection_tells_what_it_is_encrypted_with_and_whose_certificate_it_showed() {
    if is_foreign() {
        return;
    }
    let (authority, amqps) = (Authority::new(), free_port());
    authority.make("server", &[(DnType::CommonName, "s")], YEARS);
    authority.make("ann", &[(DnType::OrganizationName, "Müller, Söhne"), (DnType::CommonName, "ann")], YEARS);
    let flags = authority.flags(amqps);
    let (broker, http) = Broker::managed(&flags.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let tools = Tools::of(&broker);
    // RabbitMQ writes a year from 2050 on as a term of Erlang.
    let (subject, validity) = ("CN=ann,O=M\\C3\\BCller\\, S\\C3\\B6hne", "2020-01-01T00:00:00Z - 2090-12-31T00:00:00Z");
    let expected = |protocol, key_exchange, cipher, [subject, issuer, validity]: [Option<&str>; 3]| {
        json!({
            "ssl": true, "ssl_protocol": protocol, "ssl_key_exchange": key_exchange, "ssl_cipher": cipher, "ssl_hash": "aead",
            "peer_cert_subject": subject, "peer_cert_issuer": issuer, "peer_cert_validity": validity,
        })
    };
    let shown = [Some(subject), Some("O=Org,CN=ca"), Some(validity)];
    for (version, suite, words, shows) in [
        (&version::TLS13, "TLS13_AES_256_GCM_SHA384", ["tlsv1.3", "any", "aes_256_gcm"], Some("ann")),
        (&version::TLS13, "TLS13_CHACHA20_POLY1305_SHA256", ["tlsv1.3", "any", "chacha20_poly1305"], None),
        (
            &version::TLS12,
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            ["tlsv1.2", "ecdhe_ecdsa", "aes_128_gcm"],
            Some("ann"),
        ),
        (
            &version::TLS12,
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            ["tlsv1.2", "ecdhe_ecdsa", "chacha20_poly1305"],
            None,
        ),
    ] {
        let client = connect(&authority, amqps, (version, suite), shows);
        let [protocol, key_exchange, cipher] = words;
        let of = if shows.is_some() { shown } else { [None; 3] };
        assert_eq!(told(&http, true), expected(protocol, key_exchange, cipher, of), "{suite}");
        let listed =
            tools.ctl("-s list_connections ssl_protocol ssl_cipher peer_cert_issuer peer_cert_validity").good();
        let [_, issuer, validity] = of.map(Option::unwrap_or_default);
        assert_eq!(listed, format!("{protocol}\t{cipher}\t{issuer}\t{validity}\n"), "{suite}");
        drop(client);
        until_none(&http);
    }
    let _plain = broker.connect();
    let none = json!({
        "ssl": false, "ssl_protocol": "", "ssl_key_exchange": "", "ssl_cipher": "", "ssl_hash": "",
        "peer_cert_subject": "", "peer_cert_issuer": "", "peer_cert_validity": "",
    });
    assert_eq!(told(&http, false), none);
}

#[test]
fn the_encryption_of_connections_of_another_node_is_told_too() {
    if is_foreign() {
        return;
    }
    let (authority, amqps) = (Authority::new(), free_port());
    authority.make("server", &[(DnType::CommonName, "s")], YEARS);
    authority.make("ann", &[(DnType::CommonName, "ann")], YEARS);
    let mut nodes = Nodes::none();
    let mut addresses = [free_port().to_string(), free_port().to_string()];
    addresses.sort_unstable();
    let peers = addresses.join(",");
    let founds = ["--cluster-peers", &peers];
    let flags = authority.flags(amqps);
    nodes.add(&founds, &addresses[0]);
    let encrypted: Vec<&str> = founds.into_iter().chain(flags.iter().map(String::as_str)).collect();
    nodes.add(&encrypted, &addresses[1]);
    nodes.nodes.iter_mut().for_each(|node| node.broker.launch());
    nodes.nodes.iter_mut().for_each(|node| node.broker.until_it_answers());
    let _client = connect(&authority, amqps, (&version::TLS13, "TLS13_AES_128_GCM_SHA256"), Some("ann"));
    let told = told(&nodes.nodes[0].http, true);
    assert_eq!((&told["ssl_protocol"], &told["ssl_cipher"]), (&json!("tlsv1.3"), &json!("aes_128_gcm")));
    assert_eq!((&told["peer_cert_subject"], &told["peer_cert_issuer"]), (&json!("CN=ann"), &json!("O=Org,CN=ca")));
}

/// Waits until a log has these words behind `from` bytes.
fn until_told(broker: &Broker, from: usize, words: &str) {
    let due = Instant::now() + Duration::from_secs(20);
    while !broker.log()[from..].contains(words) {
        assert!(Instant::now() < due, "{words:?} is not told:\n{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_certificate_that_does_not_count_is_used_and_told_at_the_start_and_when_it_is_read_again() {
    if is_foreign() {
        return;
    }
    let (authority, amqps, https) = (Authority::new(), free_port(), free_port().to_string());
    authority.make("server", &[(DnType::CommonName, "late")], (2020, 2021));
    let flags = authority.flags(amqps);
    let more = ["--management-tls", &https];
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more).collect();
    let (broker, http) = Broker::managed(&flags).unwrap();
    let file = format!("tls_certificate {}: the certificate of ", authority.path("server.pem"));
    let dates = "from 2020-01-01T00:00:00Z to 2021-12-31T00:00:00Z";
    for refused in ["clients that verify it refuse to connect by AMQPS", "refuse to connect by HTTPS"] {
        let log = broker.log();
        let told = log.lines().find(|line| line.contains("CN=late has ended") && line.contains(refused));
        assert!(
            told.is_some_and(|line| line.contains("WARN") && line.contains(&file) && line.contains(dates)),
            "{log}"
        );
    }
    let check = http.get("/api/health/checks/certificate-expiration/1/days");
    assert_eq!(reason(&check, 503), "Certificates expiring", "it is used");
    let metrics = http.get("/metrics").text;
    for shown_to in ["clients", "management"] {
        let line = format!(
            "leveret_certificate_end_timestamp_seconds{{shown_to=\"{shown_to}\",file=\"{}\"}} ",
            authority.path("server.pem")
        );
        let ends =
            metrics.lines().find_map(|told| told.strip_prefix(&line)).unwrap_or_else(|| panic!("no {line}: {metrics}"));
        assert_eq!(ends, "1640908800", "2021-12-31T00:00:00Z");
    }
    let from = broker.log().len();
    authority.make("server", &[(DnType::CommonName, "early")], (2080, 2090));
    broker.signal(rustix::process::Signal::HUP);
    until_told(&broker, from, "CN=early does not count yet, but from 2080-01-01T00:00:00Z to 2090-12-31T00:00:00Z");
    until_told(&broker, from, "certificates read again");
    let from = broker.log().len();
    authority.make("server", &[(DnType::CommonName, "right")], YEARS);
    broker.signal(rustix::process::Signal::HUP);
    until_told(&broker, from, "certificates of the management API read again");
    assert!(!broker.log()[from..].contains("WARN"), "{}", broker.log());
}

#[test]
fn a_file_that_is_wrong_when_it_is_read_again_is_told_with_its_setting_and_what_to_do() {
    if is_foreign() {
        return;
    }
    let (authority, amqps) = (Authority::new(), free_port());
    authority.make("server", &[(DnType::CommonName, "s")], YEARS);
    authority.make("other", &[(DnType::CommonName, "s")], YEARS);
    let flags = authority.flags(amqps);
    let (broker, _http) = Broker::managed(&flags.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let key = authority.path("server.key");
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let [certificate, other] =
        ["server.pem", "other.key"].map(|name| std::fs::read_to_string(authority.path(name)).unwrap());
    for (text, words) in [
        (encrypted, "the key has a password, and keys with a password are not read: take it off with `openssl pkey"),
        (&certificate, "it is a certificate, and its private key is expected"),
        (&other, "it is not the key of the first certificate in tls_certificate "),
    ] {
        let from = broker.log().len();
        std::fs::write(Path::new(&key), text).unwrap();
        broker.signal(rustix::process::Signal::HUP);
        let told = format!("certificates not changed, those before stay in use: tls_key {key}: {words}");
        until_told(&broker, from, &told);
    }
    drop(connect(&authority, amqps, (&version::TLS13, "TLS13_AES_128_GCM_SHA256"), None));
}
