//! Which nodes are to be one cluster, and which of them this one is.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use thiserror::Error;

/// Why the list of nodes is of no use. Each is one line that says what to do.
#[derive(Debug, Error)]
pub(super) enum PeersError {
    /// There is no place for the node in it.
    #[error("cluster_peers: {0}")]
    List(String),
    /// The address cannot be listened on.
    #[error(
        "cannot listen for other nodes on {address}: {source}; this is the node's own address by `cluster_address`, or by `cluster_peers` where \
         that is not set, and has to be one of this machine that no other program has"
    )]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
}

impl PeersError {
    /// Whether somebody else listens there.
    pub(super) fn is_of_a_taken_address(&self) -> bool {
        matches!(self, PeersError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peers {
    /// All of them, sorted.
    pub(super) all: Vec<String>,
    /// This node's.
    pub(super) own: String,
    /// Where it listens for the others.
    pub(super) listener: TcpListener,
}

impl Peers {
    /// The same, with the same socket.
    pub(super) fn try_clone(&self) -> std::io::Result<Peers> {
        Ok(Peers { all: self.all.clone(), own: self.own.clone(), listener: self.listener.try_clone()? })
    }

    /// Of a node that is no founder: it listens there, and has no list.
    pub(super) fn joined(own: &str) -> Result<Peers, PeersError> {
        Ok(Peers { all: Vec::new(), own: own.to_owned(), listener: listen(own)? })
    }

    /// Finds this node among `all`: `own` if it is said, or else the one whose address is this
    /// machine's. Listens there.
    pub(super) fn new(all: &[String], own: Option<&str>) -> Result<Peers, PeersError> {
        let mut all = all.to_vec();
        all.sort();
        let wrong = |what: String| Err(PeersError::List(what));
        if all.windows(2).any(|pair| pair[0] == pair[1]) {
            return wrong("a node stands in it twice".to_owned());
        }
        if all.len() < 2 {
            return wrong("name all nodes of the cluster, this one too, as host:port".to_owned());
        }
        let own = match own {
            Some(own) if all.iter().any(|peer| peer == own) => own.to_owned(),
            Some(own) => return wrong(format!("cluster_address {own} is none of them")),
            None => {
                let here: Vec<&String> = all.iter().filter(|peer| is_here(peer)).collect();
                match here[..] {
                    [one] => one.clone(),
                    [] => return wrong("none of them is this machine: say which with cluster_address".to_owned()),
                    _ => {
                        return wrong(format!("{here:?} are all this machine: say which with cluster_address"));
                    }
                }
            }
        };
        let listener = listen(&own)?;
        Ok(Peers { all, own, listener })
    }
}

fn listen(own: &str) -> Result<TcpListener, PeersError> {
    let failed = |source| PeersError::Listen { address: own.to_owned(), source };
    let addresses: Vec<SocketAddr> = own.to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Whether an address is this machine's.
fn is_here(peer: &str) -> bool {
    let local = |ip: IpAddr| TcpListener::bind((ip, 0)).is_ok();
    peer.to_socket_addrs().is_ok_and(|mut found| found.any(|address| local(address.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(all: &[&str], own: Option<&str>) -> Result<Peers, PeersError> {
        let all: Vec<String> = all.iter().map(|peer| (*peer).to_owned()).collect();
        Peers::new(&all, own)
    }

    #[test]
    fn a_node_finds_itself_or_is_told_to_say_who_it_is() {
        let found = peers(&["127.0.0.1:0", "192.0.2.7:25672"], None).expect("one of them is here");
        assert_eq!((found.own.as_str(), found.all.len()), ("127.0.0.1:0", 2));
        for (all, own, says) in [
            (&["127.0.0.1:0"][..], None, "name all nodes"),
            (&["127.0.0.1:1", "127.0.0.1:2"], None, "say which with cluster_address"),
            (&["192.0.2.7:1", "192.0.2.8:2"], None, "none of them is this machine"),
            (&["127.0.0.1:1", "127.0.0.1:1"], None, "twice"),
            (&["127.0.0.1:1", "127.0.0.1:2"], Some("127.0.0.1:3"), "none of them"),
        ] {
            let error = peers(all, own).expect_err("it is wrong").to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
