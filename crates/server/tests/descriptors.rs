//! Running out of descriptors; alone in its process, since it lowers the limit of all of it.
#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpStream;
use support::{Client, TestNode};

#[test]
fn clients_wait_while_descriptors_are_out_and_are_served_when_some_are_free() {
    let node = TestNode::start();
    let mut early = node.channel();
    early.declare(1, "q");
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let before = getrlimit(Resource::Nofile);
    // Room for the client's ends of ten connections and the server's of five.
    setrlimit(Resource::Nofile, Rlimit { current: Some(used + 15), maximum: before.maximum }).unwrap();
    let mut sockets: Vec<TcpStream> = Vec::new();
    while let Ok(socket) = TcpStream::connect(node.address()) {
        sockets.push(socket);
    }
    assert!(sockets.len() >= 7, "the kernel completes handshakes that nobody accepts yet");
    std::thread::sleep(std::time::Duration::from_millis(100));
    // Who is connected is served as before.
    early.publish(1, "", "q", b"m");
    assert_eq!(early.counts(1, "q"), (1, 0));
    sockets.truncate(1);
    drop(sockets);
    setrlimit(Resource::Nofile, before).unwrap();
    let mut late = Client::connect(node.address());
    late.open(1);
    assert_eq!(late.counts(1, "q"), (1, 0));
}
