//! `leveret cluster join`: `leveret server` for a node that comes to a cluster, with what has to be right looked at
//! first.
//!
//! Invariant: nothing is made before the cluster's node answers. A node that has joined starts as before, whoever
//! answers.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use server::config::{Key, Machine, Sources};

use crate::exit::{self, Exit};
use crate::node;

/// How long the cluster's node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The file of a data folder whose node is one of several.
const CLUSTER_FILE: &str = "cluster";

const AFTER_HELP: &str = "\
The data folder is an empty one, or that of a node which joined: that goes on as itself, with `leveret server` too. Where \
cluster_address is not set, it is the address of this machine from which it reaches the other one, with port 25672.

leveret cluster leave takes it out again.";

/// A node that is to join.
#[derive(Debug)]
pub(crate) struct Join {
    via: String,
    sources: Sources,
}

/// `server` is the command whose settings it takes.
pub(crate) fn command(server: Command) -> Command {
    let via = Arg::new("via")
        .value_name("HOST:PORT")
        .required(true)
        .help("Any node of the cluster, by its address for other nodes; without a port it is at 25672");
    server
        .name("join")
        .about("Start this node as one that joins a cluster, with the options of `leveret server`")
        .long_about("Start this node as one that joins a cluster.\n\nIt is `leveret server --cluster-join HOST:PORT` with a look first.")
        .after_long_help(AFTER_HELP)
        .arg(via)
        .mut_arg("cluster_join", |flag| flag.hide(true).conflicts_with("via"))
}

/// What is asked for. `sources`: reads the settings among the words.
pub(crate) fn asked(mut matches: ArgMatches, sources: impl FnOnce(ArgMatches) -> Sources) -> Join {
    let via = matches.remove_one("via").expect("clap requires it");
    Join { via, sources: sources(matches) }
}

/// Looks, and runs the node until it is told to stop.
pub(crate) fn run(join: Join) -> Exit {
    let Join { via, mut sources } = join;
    sources.flags.push((Key::cluster_join, via.clone()));
    let config = match server::config::load(&sources, &Machine::detect()) {
        Ok(config) => config,
        Err(errors) => {
            errors.iter().for_each(|error| exit::say(&error.to_string()));
            return Exit::Usage;
        }
    };
    if config.cluster_secret_file.is_none() {
        return exit::usage(
            "--cluster-secret-file is missing: the file that all nodes of the cluster share, copied from one of them",
        );
    }
    let via = server::cluster::with_port(&via);
    if config.cluster_address.is_empty() {
        match own_address(&via) {
            Ok(own) => sources.flags.push((Key::cluster_address, server::cluster::with_port(&own.to_string()))),
            Err(error) => {
                return failed(&format!(
                    "{via} cannot be reached from here ({error}): say with --cluster-address where others reach this node"
                ));
            }
        }
    }
    if !has_joined(&config.data_dir)
        && let Err(error) = answers(&via)
    {
        return failed(&format!(
            "no node answers at {via} ({error}): name one that runs, by its address for other nodes (its cluster_address, not that for \
             clients); nothing was made"
        ));
    }
    node::serve(&sources)
}

fn failed(why: &str) -> Exit {
    exit::say(why);
    Exit::Failed
}

/// Whether a node of a cluster has this folder.
fn has_joined(folder: &Path) -> bool {
    folder.join(CLUSTER_FILE).exists()
}

/// The address from which this machine reaches another one. Nothing is sent.
fn own_address(via: &str) -> std::io::Result<IpAddr> {
    let to = resolved(via)?;
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

fn resolved(address: &str) -> std::io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("the name has no address"))
}

fn answers(via: &str) -> std::io::Result<()> {
    TcpStream::connect_timeout(&resolved(via)?, ANSWER_WITHIN).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_joins_is_at_the_address_from_which_it_reaches_the_cluster() {
        assert_eq!(own_address("127.0.0.1:9").unwrap(), IpAddr::from([127, 0, 0, 1]));
        assert!(own_address("a host that is none:1").is_err());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        answers(&address).unwrap();
        drop(listener);
        assert!(answers(&address).is_err());
    }
}
