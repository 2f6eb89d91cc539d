//! What comes to the port for other nodes and is no node: strangers, half-open connections, bytes of
//! chance, who poses as a node without the secret, and who has it and lies.
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

    /// The first node has come back to what it held before, `bytes`, and the little that it may hold more. What is freed is given back
    /// once its threads find nothing else to do.
    fn assert_bounded(&self, bytes: u64) {
        let since = Instant::now();
        loop {
            let grown = self.resident_bytes(0).saturating_sub(bytes);
            if grown < GROWN_BYTES_MAX {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{grown} bytes");
            std::thread::sleep(Duration::from_millis(50));
        }
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
        "magic": "leveret link 1", "cluster": number("identity", "cluster "), "node": number_of(nodes, 2), "start": 1000,
        "folder": number("identity", "folder "), "address": nodes.peers[2].to_string(), "peers": peers, "packets": PACKET_VERSION,
        "nonce": format!("{nonce:032x}"),
    })
}

/// A node's number, as the file of the founders has it.
fn number_of(nodes: &Nodes, node: usize) -> u32 {
    let founders = std::fs::read_to_string(nodes.brokers[2].data_folder().join("cluster")).unwrap();
    let own = nodes.peers[node].to_string();
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
    // Who only looks whether somebody listens is no cause for alarm.
    (0..5).for_each(|_| drop(open(port)));
    let words: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"AMQP\0\0\x09\x01",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\x02\0\0\0{}",
    ];
    for (at, word) in words.into_iter().enumerate() {
        let refused = nodes.brokers[0].log();
        assert!(at > 0 || !refused.contains("were refused"), "{}", last_lines(&refused));
        let mut socket = open(port);
        socket.write_all(word).unwrap();
        assert!(is_hung_up(&mut socket), "{word:?}");
    }
    assert!(nodes.brokers[0].log().contains("it speaks HTTP"), "{}", last_lines(&nodes.brokers[0].log()));
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
        for node in [number_of(&nodes, 2), 0] {
            // Without a number a new folder is told who founded the cluster, also where it makes another number of the list
            // and the secret: that may have changed since.
            if node == 0 && change != "peers" {
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
    nodes.assert_bounded(bytes);
}

/// A number as packets have it.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A packet with these frames in it, under a checksum that fits.
fn packet(frames: &[u8]) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&[PACKET_VERSION]), frames);
    let head = [&u32::try_from(frames.len()).unwrap().to_le_bytes()[..], &crc.to_le_bytes(), &[PACKET_VERSION]];
    [&head.concat(), frames].concat()
}

/// What a node says of a link that ended.
const GONE: &str = "the link to another node is gone";

/// As `docs/formats/peer.md` has it.
const PACKET_VERSION: u8 = 7;

/// One of Raft's messages, of the topology's group: kind, from whom to whom, which of the eight numbers it has, and
/// those and what follows.
fn raft(kind: u8, from: u32, to: u32, present: u8, rest: &[u64]) -> Vec<u8> {
    let head = [0, 1, 1, kind, present, 0];
    let ends = [varint(from.into()), varint(to.into())].concat();
    [&head[..], &ends, &rest.iter().flat_map(|number| varint(*number)).collect::<Vec<u8>>()].concat()
}

/// A link to a node as the third one, over which the node has spoken: it is up.
fn linked(nodes: &Nodes, node: usize, random: &mut Pcg64) -> TcpStream {
    let due = Instant::now() + PATIENCE;
    loop {
        // The one before may not be gone yet, and there is one at a time.
        if let Ok((mut socket, verdict)) = introduce(nodes.peers[node], &hello(nodes, random.random()), SECRET) {
            assert_eq!(verdict["refused"], Value::Null, "{verdict}");
            let mut head = [0; 9];
            if socket.read_exact(&mut head).is_ok() {
                assert_eq!(head[8], PACKET_VERSION);
                return socket;
            }
        }
        assert!(Instant::now() < due, "{}", last_lines(&nodes.brokers[node].log()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_that_lies_loses_its_link_and_nobody_else_notices() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let (liar, own) = (number_of(&nodes, 2), number_of(&nodes, 0));
    let other = number_of(&nodes, 1);
    // The other two are a majority, and who lies has the folder of the third.
    nodes.brokers[2].kill();
    let pulse = Pulse::of(&nodes.brokers[1], "pulse");
    let mut client = nodes.brokers[0].connect();
    let channel = client.channel();
    let mut random = Pcg64::seed_from_u64(16);
    let bytes = nodes.resident_bytes(0);
    let nodes = nodes;

    let cut = packet(&[0, 84]);
    let mut damaged = packet(&[0, 84, 1]);
    *damaged.last_mut().unwrap() ^= 1;
    let mut newer = packet(&[]);
    newer[8] += 1;
    // To a queue, by a channel of the liar's.
    let targets = |count| [&[1, 32][..], &[3, 1, 1, 1, 0, 0], &varint(count), &[1, 1]].concat();
    let missing = [&[1, 10, 1, 1, 1, 9][..], &varint(1 << 40), &[1, 0]].concat();
    // Term 90 on both sides of an entry of term 89, behind one of term 90.
    let backwards = raft(1, liar, own, 0b111, &[90, 90, 5, 2, 0, 0, 1, 0, 1, 0]);
    let pings = [0, 84, 1].repeat(200_000);
    // How a queue that nobody has stands, and a grant that nobody gave.
    let stat = |node: u32| [&[1, 39, 9, 0][..], &varint(node.into()), &[1, 1]].concat();
    let grant_returned = |node: u32| [&[1, 70][..], &varint(node.into()), &[1, 1, 1, 1]].concat();
    for (lie, says) in [
        (vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, PACKET_VERSION], "a packet of 4294967295 bytes"),
        (cut, "the message ends early"),
        (damaged, "the checksum of a packet does not fit"),
        (newer, "the peer speaks version 8"),
        (packet(&[0, 200]), "a kind of frame has no meaning"),
        (packet(&[0, 1, 1, 63, 0]), "a kind of message has no meaning"),
        (packet(&targets(1 << 60)), "the message ends early"),
        (packet(&targets(0)), "a publish to no queue has no meaning"),
        (packet(&missing), "the message ends early"),
        (packet(&pings), "a packet of more than 4096 frames"),
        (packet(&raft(4, other, own, 1, &[90])), "it speaks in the name of another node"),
        (packet(&raft(4, 77, own, 1, &[90])), "it speaks in the name of another node"),
        (packet(&raft(4, liar, other, 1, &[90])), "it says what is for another member"),
        (packet(&backwards), "the term of an entry has no meaning"),
        (packet(&[0, 82, 1, 1, 3, 9, 9, 9]), "it wants a change of the topology that cannot be read"),
        (packet(&stat(own)), "it speaks in the name of a channel of another node"),
        (packet(&stat(other)), "it speaks in the name of a channel of another node"),
        (packet(&grant_returned(other)), "it speaks to a channel of another node"),
        (packet(&grant_returned(liar)), "it speaks to a channel of another node"),
    ] {
        let before = nodes.brokers[0].log().matches(says).count();
        let mut socket = linked(&nodes, 0, &mut random);
        // It may be hung up on before all of it is written.
        let _ = socket.write_all(&lie);
        assert!(is_hung_up(&mut socket), "{says}");
        let said = format!("{GONE}: {says}");
        let due = Instant::now() + PATIENCE;
        while nodes.brokers[0].log().matches(says).count() == before {
            assert!(Instant::now() < due, "{says}:\n{}", last_lines(&nodes.brokers[0].log()));
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = nodes.brokers[0].log();
        assert_eq!(log.matches(says).count(), before + 1, "{said} once:\n{}", last_lines(&log));
    }
    // What is only late ends nothing: of a term long over, of groups and queues that nobody knows, to channels
    // of an earlier life, and answers that nobody waits for.
    let mut socket = linked(&nodes, 0, &mut random);
    let vote_of =
        |group: u8| [&[group, 1, 1, 4, 1, group][..], &varint(liar.into()), &varint(own.into()), &[1]].concat();
    let everything = [&[1, 36, 0][..], &varint(liar.into()), &[1, 1, 1, 0], &varint(u64::MAX >> 1), &[1]].concat();
    let answer_of = |partition: u64, kind: u8| {
        [&varint(partition)[..], &[kind], &varint(own.into()), &[1, 9, 1], &varint(1 << 61)].concat()
    };
    for late in [
        vote_of(0),
        vote_of(1),
        vote_of(120),
        stat(liar),
        grant_returned(own),
        everything,
        answer_of(1, 64),
        answer_of(1 << 20, 65),
        [answer_of(1, 71), vec![1]].concat(),
        vec![1, 90, 1, 1],
        vec![0, 83, 99],
        vec![0, 87, 1],
    ] {
        let before = nodes.brokers[0].log().matches(GONE).count();
        socket.write_all(&packet(&late)).unwrap();
        // What is objected to ends the link at once.
        std::thread::sleep(Duration::from_millis(150));
        socket.write_all(&packet(&[])).unwrap();
        let log = nodes.brokers[0].log();
        assert_eq!(log.matches(GONE).count(), before, "{late:?}:\n{}", last_lines(&log));
    }
    drop(socket);
    // Of what is promised a part comes, and then nothing.
    for part in [5, 64 << 20] {
        let mut socket = linked(&nodes, 0, &mut random);
        let head = [&(200_u32 << 20).to_le_bytes()[..], &[0; 4], &[PACKET_VERSION]].concat();
        socket.write_all(&[head, vec![0; part]].concat()[..part]).unwrap();
        assert!(is_hung_up(&mut socket), "nobody waits for what does not come");
    }
    nodes.assert_well(&[0, 1], "lies");
    // Its own clients are served, and the other node has noticed nothing.
    client.declare(channel, &QueueDeclare { name: "own", durable: true, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "own", b"after");
    client.confirmed(channel, 1, 1);
    let (count, longest) = pulse.end();
    assert!(count > 100 && longest < Duration::from_secs(5), "{count} confirms, {longest:?}");
    nodes.assert_bounded(bytes);
    // The third itself comes back.
    let mut nodes = nodes;
    nodes.brokers[2].launch();
    nodes.brokers[2].until_it_answers();
    let pulse = Pulse::of(&nodes.brokers[2], "pulse");
    std::thread::sleep(Duration::from_millis(200));
    assert!(pulse.end().0 > 0);
}
