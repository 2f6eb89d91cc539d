//! What idle connections cost: serves until the end of its input, and prints its memory whenever a
//! line comes.
//!
//! `cargo run --release -p server --example idle [port]`; open connections from another process,
//! then press return.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use server::{Node, NodeConfig};

fn main() {
    let port: u16 = std::env::args().nth(1).map_or(5690, |a| a.parse().unwrap());
    let mut config = NodeConfig::small(vec![([127, 0, 0, 1], port).into()]);
    config.connections_max = 100_000;
    let node = Node::start_transient(config).unwrap();
    let mut before = None;
    let mut line = String::new();
    loop {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident = statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096;
        let base = *before.get_or_insert(resident);
        let connections = node.connections();
        let each = resident.saturating_sub(base) / connections.max(1);
        println!("{connections} connections, {} KiB resident, {each} bytes each", resident >> 10);
        line.clear();
        if std::io::stdin().read_line(&mut line).unwrap() == 0 {
            break;
        }
    }
    node.drain();
}
