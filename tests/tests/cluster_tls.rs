//! Nodes that encrypt what they say to each other: with certificates that `leveret cluster
//! certificates` made, with those of an operator's authority, and with none that is of use.
#![allow(clippy::unwrap_used)]

use clients::Broker;
use clients::broker::{binary, free_port, is_foreign};
use clients::nodes::durable;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HOST: &str = "127.0.0.1";

struct Nodes {
    brokers: Vec<Broker>,
    /// Each node has its certificates in a folder of its own: `ca.pem`, `node.pem`, `node.key`.
    folders: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Nodes {
    /// Three that are not started, with certificates that our own command made.
    fn new() -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "a secret of three nodes\n").unwrap();
        let made = folder.path().join("made");
        let output = Command::new(binary())
            .args(["cluster", "certificates", made.to_str().unwrap(), HOST, "n9.example"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut addresses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        // The last one connects to the others.
        addresses.sort();
        let peers = addresses.join(",");
        let mut folders = Vec::new();
        let brokers = addresses.iter().map(|address| {
            let own = folder.path().join(address.replace(':', "-"));
            std::fs::create_dir(&own).unwrap();
            for (from, to) in [("ca.pem", "ca.pem"), ("127.0.0.1.pem", "node.pem"), ("127.0.0.1.key", "node.key")] {
                std::fs::copy(made.join(from), own.join(to)).unwrap();
            }
            let path = |name: &str| own.join(name).to_str().unwrap().to_owned();
            let (ca, certificate, key) = (path("ca.pem"), path("node.pem"), path("node.key"));
            let name = format!("leveret@{address}").replace(':', "-");
            folders.push(own);
            Broker::not_started(&[
                "--cluster-peers",
                &peers,
                "--cluster-address",
                address,
                "--cluster-secret-file",
                secret.to_str().unwrap(),
                "--node-name",
                &name,
                "--partitions",
                "2",
                "--cluster-tls-ca",
                &ca,
                "--cluster-tls-certificate",
                &certificate,
                "--cluster-tls-key",
                &key,
            ])
        });
        Nodes { brokers: brokers.collect(), folders, _folder: folder }
    }

    fn launch(&mut self) {
        self.brokers.iter_mut().for_each(Broker::launch);
        self.brokers.iter_mut().for_each(Broker::until_it_answers);
    }

    /// Waits until a node's log has these words behind `from` bytes.
    fn until_told(&self, node: usize, from: usize, words: &str) {
        let due = Instant::now() + Duration::from_secs(20);
        while !self.brokers[node].log()[from..].contains(words) {
            assert!(Instant::now() < due, "node {node} does not say {words:?}:\n{}", &self.brokers[node].log()[from..]);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn told(&self) -> Vec<usize> {
        self.brokers.iter().map(|broker| broker.log().len()).collect()
    }
}

/// An authority of somebody's, and a certificate of it.
struct Authority {
    params: CertificateParams,
    key: KeyPair,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "An authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { params, key: KeyPair::generate().unwrap() }
    }

    /// Writes a certificate for `name` into a node's folder, and the authority if that is asked for.
    fn write(&self, folder: &Path, name: &str, ends: Duration, with_ca: bool) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = std::time::UNIX_EPOCH.into();
        params.not_after = (std::time::UNIX_EPOCH + ends).into();
        let own = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        std::fs::write(folder.join("node.pem"), own.pem()).unwrap();
        std::fs::write(folder.join("node.key"), key.serialize_pem()).unwrap();
        if with_ca {
            std::fs::write(folder.join("ca.pem"), self.params.self_signed(&self.key).unwrap().pem()).unwrap();
        }
    }
}

const FAR: Duration = Duration::from_secs(4_000_000_000);
const LONG_AGO: Duration = Duration::from_secs(1_000_000_000);

#[test]
fn three_nodes_that_encrypt_are_one_broker_and_new_certificates_are_read() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::new();
    nodes.launch();
    let mut client = nodes.brokers[0].connect();
    let channel = client.channel();
    let names: Vec<String> = (0..4).map(|number| format!("q{number}")).collect();
    for name in &names {
        client.declare(channel, &durable(name)).unwrap();
    }
    client.confirm_select(channel).unwrap();
    // Bodies of more than a record, and of less.
    let bodies: Vec<Vec<u8>> = [1, 1_000, 16_384, 300_000].into_iter().map(|bytes| vec![b'x'; bytes]).collect();
    for (name, body) in names.iter().flat_map(|name| bodies.iter().map(move |body| (name, body))) {
        client.put(channel, name, body);
    }
    client.confirmed(channel, 1, 16);
    nodes.brokers[0].kill();
    let mut client = nodes.brokers[1].connect();
    let channel = client.channel();
    for (name, body) in names.iter().flat_map(|name| bodies.iter().map(move |body| (name, body))) {
        assert_eq!(&client.get(channel, name, true).unwrap().expect("it was confirmed").body, body);
    }
    // It comes back with certificates that are of no use, is told so, and reads better ones.
    let authority = Authority::new();
    let right: Vec<Vec<u8>> =
        ["node.pem", "node.key"].iter().map(|name| std::fs::read(nodes.folders[0].join(name)).unwrap()).collect();
    authority.write(&nodes.folders[0], HOST, FAR, false);
    let told = nodes.told();
    nodes.brokers[0].launch();
    nodes.until_told(0, told[0], "the peer does not believe the authority of this node's certificate");
    nodes.until_told(1, told[1], "is of an authority that cluster_tls_ca does not have");
    for (name, bytes) in ["node.pem", "node.key"].iter().zip(right) {
        std::fs::write(nodes.folders[0].join(name), bytes).unwrap();
    }
    nodes.brokers[0].signal(rustix::process::Signal::HUP);
    nodes.brokers[0].until_it_answers();
    let lines = nodes.brokers[1].log().matches("cluster_tls_ca does not have").count();
    assert!(lines < 20, "{lines} lines about one node that tries again and again");
}

#[test]
fn a_node_whose_certificate_is_of_no_use_is_refused_and_both_sides_say_what_to_do() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::new();
    let authority = Authority::new();
    for folder in &nodes.folders {
        authority.write(folder, HOST, FAR, true);
    }
    nodes.launch();
    for (name, ends, own_word, their_word) in [
        (HOST, LONG_AGO, "says that this node's certificate has ended", "has ended: make a new one"),
        ("n9.example", FAR, "does not name 127.0.0.1", "does not name 127.0.0.1"),
    ] {
        nodes.brokers[2].kill();
        authority.write(&nodes.folders[2], name, ends, false);
        let told = nodes.told();
        nodes.brokers[2].launch();
        nodes.until_told(2, told[2], own_word);
        nodes.until_told(0, told[0], their_word);
    }
    // One that does not encrypt at all.
    nodes.brokers[2].kill();
    authority.write(&nodes.folders[2], HOST, FAR, false);
    let told = nodes.told();
    let arguments = nodes.brokers[2].without_arguments("--cluster-tls-");
    nodes.brokers[2].launch();
    nodes.until_told(2, told[2], "the peer encrypts and this node does not");
    nodes.until_told(0, told[0], "the peer does not encrypt and this node does");
    nodes.brokers[2].kill();
    nodes.brokers[2].set_arguments(arguments);
    // And all is well once it has what it needs.
    nodes.brokers[2].launch();
    nodes.brokers[2].until_it_answers();
}

#[test]
fn nodes_that_cannot_meet_for_want_of_certificates_say_why_while_they_wait() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::new();
    Authority::new().write(&nodes.folders[1], HOST, FAR, true);
    nodes.brokers[2].without_arguments("--cluster-tls-");
    nodes.brokers.iter_mut().for_each(Broker::launch);
    nodes.until_told(0, 0, "of an authority that cluster_tls_ca does not have");
    nodes.until_told(0, 0, "does not encrypt and this node does");
    nodes.until_told(2, 0, "the peer encrypts and this node does not");
}
