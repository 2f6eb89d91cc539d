//! What comes to the port for other nodes and is no node: strangers, half-open connections, bytes of
//! chance, and who poses as a node without the secret.
//!
//! Invariant: whoever it is, the nodes go on, who publishes meanwhile notices nothing, and what is
//! refused leaves nothing behind.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clients::broker::{free_port, is_foreign};
use clients::{Broker, QueueDeclare};
use hmac::{Hmac, Mac};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::{Value, json};
use sha2::Sha256;

const SECRET: &str = "a secret of three nodes";
/// What a node may hold more after all of that: what is held is bounded, not nothing.
const GROWN_BYTES_MAX: u64 = 96 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

struct Nodes {
    brokers: Vec<Broker>,
    peers: Vec<SocketAddr>,
    _folder: tempfile::TempDir,
}

impl Nodes {
    fn up() -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let secret = secret.to_str().unwrap();
        let peers: Vec<SocketAddr> = (0..3).map(|_| free_port()).collect();
        let list = peers.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let mut brokers: Vec<Broker> = peers
            .iter()
            .map(|peer| {
                let peer = peer.to_string();
                let name = format!("leveret@{peer}").replace(':', "-");
                let own = ["--cluster-peers", &list, "--cluster-address", &peer, "--cluster-secret-file", secret];
                Broker::not_started(&[&own[..], &["--node-name", &name, "--partitions", "2"]].concat())
            })
            .collect();
        brokers.iter_mut().for_each(Broker::launch);
        brokers.iter_mut().for_each(Broker::until_it_answers);
        Nodes { brokers, peers, _folder: folder }
    }

    /// Nobody ended, and each is linked with `others`.
    fn assert_well(&self, of: &[usize], after: &str) {
        for &node in of {
            let pid = self.brokers[node].pid().unwrap();
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let is_gone = state.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'));
            assert!(!is_gone, "node {node} ended after {after}:\n{}", last_lines(&self.brokers[node].log()));
        }
    }

    fn resident_bytes(&self, node: usize) -> u64 {
        let pid = self.brokers[node].pid().unwrap();
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn descriptors(&self, node: usize) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.brokers[node].pid().unwrap())).unwrap().count()
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Publishes and waits for each confirm, until it is told to stop. Gives how many, and the longest
/// wait.
struct Pulse {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(u64, Duration)>,
}

impl Pulse {
    fn of(broker: &Broker, queue: &'static str) -> Pulse {
        let mut client = broker.connect();
        let channel = client.channel();
        client.declare(channel, &QueueDeclare { name: queue, durable: true, ..QueueDeclare::default() }).unwrap();
        client.confirm_select(channel).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let over = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut count, mut longest) = (0, Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                let sent = Instant::now();
                client.put(channel, queue, b"pulse");
                count += 1;
                client.confirmed(channel, count, count);
                longest = longest.max(sent.elapsed());
                std::thread::sleep(Duration::from_millis(2));
            }
            (count, longest)
        });
        Pulse { stop, thread }
    }

    fn end(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("every publish was confirmed")
    }
}

fn send(socket: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    socket.write_all(&u32::try_from(message.len()).unwrap().to_le_bytes())?;
    socket.write_all(message)
}

fn receive(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut message)?;
    Ok(message)
}

fn open(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn proof(secret: &str, side: &str, connector: &[u8], acceptor: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    for word in [b"leveret link 1", side.as_bytes(), connector, acceptor] {
        mac.update(&(word.len() as u64).to_le_bytes());
        mac.update(word);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Who a liar says it is: the third node, whose folder it has seen.
fn hello(nodes: &Nodes, nonce: u128) -> Value {
    let folder = nodes.brokers[2].data_folder();
    let number = |file: &str, word: &str| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        text.lines().find_map(|line| line.strip_prefix(word)).unwrap().trim().to_owned()
    };
    let mut peers: Vec<String> = nodes.peers.iter().map(SocketAddr::to_string).collect();
    peers.sort();
    json!({
        "magic": "leveret link 1", "cluster": number("identity", "cluster "), "node": number_of(nodes), "start": 1000,
        "folder": number("identity", "folder "), "address": nodes.peers[2].to_string(), "peers": peers, "packets": 2,
        "nonce": format!("{nonce:032x}"),
    })
}

/// The third node's number, as the file of the founders has it.
fn number_of(nodes: &Nodes) -> u32 {
    let founders = std::fs::read_to_string(nodes.brokers[2].data_folder().join("cluster")).unwrap();
    let own = nodes.peers[2].to_string();
    let line = founders.lines().find(|line| line.ends_with(&own)).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Introduces itself as the third node to another; the connection, and what the other says of it.
fn introduce(addr: SocketAddr, hello: &Value, secret: &str) -> std::io::Result<(TcpStream, Value)> {
    let mut socket = open(addr);
    let own = serde_json::to_vec(hello).unwrap();
    send(&mut socket, &own)?;
    let theirs = receive(&mut socket)?;
    send(&mut socket, &proof(secret, "connector", &own, &theirs))?;
    let answer = receive(&mut socket)?;
    assert_eq!(answer, proof(secret, "acceptor", &own, &theirs), "only who has the secret proves it");
    send(&mut socket, br#"{"refused":null,"founding":null}"#)?;
    let verdict = serde_json::from_slice(&receive(&mut socket)?).unwrap();
    Ok((socket, verdict))
}

/// What a node says of somebody who has the secret and poses as the third node.
fn said_of(port: SocketAddr, told: &Value) -> String {
    let (mut socket, verdict) = introduce(port, told, SECRET).unwrap();
    assert!(is_hung_up(&mut socket), "{verdict}");
    verdict["refused"].as_str().unwrap_or_default().to_owned()
}

/// Waits for the other side to hang up: it refused what it was sent.
fn is_hung_up(socket: &mut TcpStream) -> bool {
    let due = Instant::now() + PATIENCE;
    let mut bytes = [0; 4096];
    while Instant::now() < due {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
    false
}

#[test]
fn strangers_at_the_port_for_nodes_are_hung_up_on_and_nobody_else_notices() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up();
    let pulse = Pulse::of(&nodes.brokers[1], "pulse");
    let (bytes, descriptors) = (nodes.resident_bytes(0), nodes.descriptors(0));
    let port = nodes.peers[0];
    let mut random = Pcg64::seed_from_u64(15);
    let words: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"AMQP\0\0\x09\x01",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\x02\0\0\0{}",
    ];
    for word in words {
        let mut socket = open(port);
        socket.write_all(word).unwrap();
        assert!(is_hung_up(&mut socket), "{word:?}");
    }
    for _ in 0..100 {
        let mut socket = open(port);
        let length = random.random_range(0..2000);
        let chance: Vec<u8> = (0..length).map(|_| random.random()).collect();
        // It may be hung up on before all of it is written.
        let _ = socket.write_all(&chance).and_then(|()| socket.shutdown(std::net::Shutdown::Write));
        assert!(is_hung_up(&mut socket));
    }
    // Without the secret: nothing is proved to it, whoever it says that it is.
    for (change, value) in [("magic", json!("leveret link 0")), ("node", json!(1)), ("start", json!(1000))] {
        let mut told = hello(&nodes, random.random());
        told[change] = value;
        assert!(introduce(port, &told, "another secret of three").is_err(), "{change}");
    }
    // With it, and with what a node says of itself, but of another cluster or with another list of nodes.
    let other_list = json!([nodes.peers[0].to_string(), nodes.peers[2].to_string()]);
    for (change, value, says) in [
        ("cluster", json!("0123456789abcdef0123456789abcdef"), "two clusters"),
        ("peers", other_list, "two lists of nodes"),
        ("folder", json!("0123456789abcdef0123456789abcdef"), "is none of those"),
    ] {
        for node in [number_of(&nodes), 0] {
            // Without a number a new folder is told who founded the cluster.
            if node == 0 && change == "folder" {
                continue;
            }
            let mut told = hello(&nodes, random.random());
            (told[change], told["node"]) = (value.clone(), json!(node));
            let said = said_of(port, &told);
            assert!(said.contains(says), "{change} of {node}: {said:?}");
        }
    }
    // There is a line about it in the log, at most every five seconds.
    let due = Instant::now() + PATIENCE;
    while !nodes.brokers[0].log().contains("two clusters") {
        assert!(Instant::now() < due, "{}", last_lines(&nodes.brokers[0].log()));
        let mut told = hello(&nodes, random.random());
        told["cluster"] = json!("0123456789abcdef0123456789abcdef");
        assert!(said_of(port, &told).contains("two clusters"));
        std::thread::sleep(Duration::from_millis(100));
    }
    // More half-open connections than there may be, and slow ones; they go after their time.
    let mut open_ones: Vec<TcpStream> = (0..400).map(|_| open(port)).collect();
    for (at, socket) in open_ones.iter_mut().enumerate() {
        let _ = socket.write_all(&[b"\x00\x10\0\0{", &b"\x00"[..]][at % 2][..1]);
    }
    assert!(open_ones.iter_mut().all(is_hung_up), "nobody stays who does not introduce himself");
    nodes.assert_well(&[0, 1, 2], "strangers");
    let (count, longest) = pulse.end();
    assert!(count > 100 && longest < Duration::from_secs(5), "{count} confirms, {longest:?}");
    for node in &nodes.brokers {
        let log = node.log();
        assert!(!log.contains("the link to another node is gone"), "no link is lost\n{}", last_lines(&log));
        assert!(log.lines().filter(|line| line.contains("were refused")).count() < 20, "few lines");
    }
    assert!(nodes.descriptors(0) <= descriptors + 8, "{} descriptors, {descriptors} before", nodes.descriptors(0));
    let grown = nodes.resident_bytes(0).saturating_sub(bytes);
    assert!(grown < GROWN_BYTES_MAX, "{grown} bytes");
}
