//! `leveret bench` over TLS: whom it believes, what it shows, and that the load itself goes through
//! it unharmed.
//!
//! Invariant: certificates are made here for one test; no key lies in the repository.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority, a server's certificate and a client's, as files.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Certificates {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        for (name, host, user) in [("server", "broker.example", "broker"), ("client", "client.example", "guest")] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new([host.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, user);
            let certificate = params.signed_by(&key, &*authority).unwrap();
            std::fs::write(folder.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        Certificates { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

struct Broker {
    child: Child,
    port: u16,
    plain: u16,
    _data: tempfile::TempDir,
}

impl Broker {
    fn start(certificates: &Certificates, more: &[&str]) -> Broker {
        let data = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
        command.arg("server").arg("--data-dir").arg(data.path().join("data"));
        // Ports of the kernel's choice: one that was free a moment ago may be somebody's by now.
        command.args(["--management", "none", "--amqp", "127.0.0.2:0", "--amqps", "127.0.0.1:0"]);
        let file = |command: &mut Command, option: &str, path: &Path| {
            command.arg(option).arg(path);
        };
        file(&mut command, "--tls-certificate", &certificates.path("server.pem"));
        file(&mut command, "--tls-key", &certificates.path("server-key.pem"));
        file(&mut command, "--tls-ca", &certificates.path("ca.pem"));
        // No setting of whoever runs the tests.
        command.args(more).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut next_port = || {
            let ready = log.by_ref().map(Result::unwrap).find(|line| line.contains("ready: AMQP 0-9-1"));
            let line = ready.expect("a broker that starts says when it is ready");
            let address = line.split("address=").nth(1).and_then(|rest| rest.split(' ').next());
            address.and_then(|address| address.parse::<SocketAddr>().ok()).expect("it says where").port()
        };
        let (plain, port) = (next_port(), next_port());
        // Nobody else reads it, and a full pipe would hold the broker up.
        std::thread::spawn(move || log.for_each(drop));
        Broker { child, port, plain, _data: data }
    }

    fn bench(&self, words: &str, more: &[&str]) -> (Option<i32>, String) {
        self.bench_at(&format!("amqps://guest:guest@127.0.0.1:{}", self.port), words, more)
    }

    fn bench_at(&self, uri: &str, words: &str, more: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
        command.arg("bench").args(["--uri", uri]).args(words.split_whitespace()).args(more).env_clear();
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bodies larger than a TLS record, and many small ones: both ends of what a record can hold.
const LOAD: &str =
    "-x 2 -y 2 -qq -u q -c 50 -q 50 -A 10 -C 500 --variable-size 20:1 --variable-size 70000:60 --warmup 0";

#[test]
fn every_message_comes_back_through_tls_and_nobody_was_verified_unless_asked() {
    let certificates = Certificates::new();
    let broker = Broker::start(&certificates, &[]);
    let (code, told) = broker.bench(LOAD, &[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("1,000 sent, 1,000 confirmed, 1,000 received, 0 left in queues"), "{told}");
    assert!(told.contains("over TLS 1.3, the broker's certificate was not verified"), "{told}");
    let verified = ["--tls-ca", &certificates.text("ca.pem"), "--server-name-indication", "broker.example"];
    let (code, told) = broker.bench("-qq -u q2 -c 5 -C 50", &verified);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("the broker's certificate was verified"), "{told}");
}

#[test]
fn a_broker_that_is_not_believed_is_not_talked_to() {
    let certificates = Certificates::new();
    let broker = Broker::start(&certificates, &[]);
    let (code, told) = broker.bench("-C 1", &["--tls-ca", &certificates.text("ca.pem")]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("no broker at 127.0.0.1") && told.contains("not valid for name"), "{told}");
    // Another authority than its own: one that the broker does not have its certificate from.
    let others = Certificates::new();
    let strange = others.text("ca.pem");
    let (code, told) = broker.bench("-C 1", &["--tls-ca", &strange, "--server-name-indication", "broker.example"]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("TLS: invalid peer certificate"), "{told}");
    let plain = format!("amqps://127.0.0.2:{}", broker.plain);
    let (code, told) = broker.bench_at(&plain, "-C 1", &[]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("is it a plain listener?"), "{told}");
    let (code, told) = broker.bench_at(&format!("amqp://127.0.0.1:{}", broker.port), "-C 1", &[]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("is amqps:// meant?"), "{told}");
}

#[test]
fn a_client_certificate_is_shown_and_logs_in() {
    let certificates = Certificates::new();
    let more = ["--tls-verify", "required", "--auth-mechanisms", "EXTERNAL", "--certificate-login", "common_name"];
    let broker = Broker::start(&certificates, &more);
    let (certificate, key) = (certificates.text("client.pem"), certificates.text("client-key.pem"));
    let shown = ["--tls-certificate", &certificate, "--tls-key", &key, "--sasl-external"];
    let (code, told) = broker.bench("-qq -u q -c 5 -C 50", &shown);
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = broker.bench("-C 1", &shown[..4]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("refused a login with PLAIN: 403 it offers EXTERNAL"), "{told}");
    let (code, told) = broker.bench("-C 1", &["--sasl-external"]);
    assert_eq!(code, Some(3), "without a certificate: {told}");
}
