//! Logins of users whose passwords have a hash that takes long: over real sockets, on shards that
//! never wait for it.
#![allow(clippy::unwrap_used)]

mod support;

use amqp::wire::method::Method;
use broker::VhostId;
use broker::topology::{Command, HashAlgorithm, Name, PasswordHash, Permission, Topology};
use server::{MemoryLog, Node, ShardParts, TopologyLog};
use std::sync::Arc;
use support::{Client, TestNode};

/// A node with a user "ann" whose password is "correct", hashed as passwords are that are set here.
fn with_ann(shards: usize) -> TestNode {
    let mut topology = Topology::new();
    let (name, password) = (Name::from("ann"), PasswordHash::argon2id(b"correct", [7; 16]));
    assert_eq!(password.algorithm(), HashAlgorithm::Argon2id);
    for command in [
        Command::RaiseVersion { version: 3 },
        Command::PutUser { name: name.clone(), password, tags: Vec::new() },
        Command::PutPermission { user: name, vhost: VhostId(0), permission: Permission::everything() },
    ] {
        topology.apply(&command).outcome.unwrap();
    }
    let mut config = support::config();
    config.shards = shards;
    let node = Node::start(config, topology, |wiring| {
        let log: Arc<dyn TopologyLog> = Arc::new(MemoryLog::new(wiring.changes()));
        (log, Arc::new(|_| ShardParts::without_log(Vec::new())))
    });
    TestNode(node.unwrap())
}

on_one_and_three_shards!(
    the_right_password_is_let_in_again_and_again_and_a_wrong_one_never,
    many_logins_at_once_are_all_let_in,
    who_leaves_before_the_password_was_looked_at_harms_nobody,
);

fn the_right_password_is_let_in_again_and_again_and_a_wrong_one_never(shards: usize) {
    let node = with_ann(shards);
    for _ in 0..2 {
        let refused = Client::login(node.address(), "ann", "Correct").err().flatten();
        assert!(matches!(refused, Some(Method::ConnectionClose { reply_code: 403, .. })), "{refused:?}");
        Client::login(node.address(), "ann", "correct").ok().unwrap().open(1);
    }
    assert!(Client::login(node.address(), "ann", "").is_err(), "no password is never the right one");
}

fn many_logins_at_once_are_all_let_in(shards: usize) {
    let node = with_ann(shards);
    let address = node.address();
    let begin = || std::thread::spawn(move || Client::login(address, "ann", "correct").is_ok());
    let logins: Vec<_> = (0..100).map(|_| begin()).collect();
    // Who has another hash does not wait behind them, and neither does who is in already.
    node.channel();
    assert!(logins.into_iter().all(|login| login.join().unwrap()));
}

fn who_leaves_before_the_password_was_looked_at_harms_nobody(shards: usize) {
    use std::io::Write as _;
    let node = with_ann(shards);
    for _ in 0..8 {
        let mut client = Client::raw(node.address());
        client.stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
        client.recv();
        client.send(0, &Client::start_ok("ann", "correct"));
    }
    Client::login(node.address(), "ann", "correct").ok().unwrap().open(1);
}
