//! How two nodes come to know each other over a new connection.
//!
//! ```text
//! connector                              acceptor
//!   hello ─────────────────────────────────▶          who each is, and a number that was never used
//!         ◀───────────────────────────────── hello
//!   proof ─────────────────────────────────▶          HMAC-SHA256 by the cluster's secret of both hellos,
//!         ◀───────────────────────────────── proof    with a word for each side
//!   verdict ───────────────────────────────▶          refused, and why; or what the founders agreed on
//!         ◀───────────────────────────────── verdict
//! ```
//!
//! Each is a message: u32 little-endian length, then the bytes. Invariants: the acceptor proves
//! nothing before the connector has, and proves with the secret with which that did; a proof serves for one connection, one side and these two
//! hellos; a message is at most [`MESSAGE_BYTES_MAX`], and all of it takes [`PATIENCE`] at most.

use super::encryption;
use super::secret::Secret;
use hmac::Mac;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// What both hellos begin with.
const MAGIC: &str = "leveret link 1";
const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// How long all of it may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    magic: String,
    /// The cluster's number, in hexadecimal digits.
    pub(super) cluster: String,
    /// The node's number; 0 where it has none yet.
    pub(super) node: u32,
    /// Which of its starts.
    pub(super) start: u32,
    /// Its data folder's number, in hexadecimal digits.
    pub(super) folder: String,
    /// Where the others reach it.
    pub(super) address: String,
    /// All nodes that it was told of, sorted.
    pub(super) peers: Vec<String>,
    /// The version of the packets that it speaks.
    pub(super) packets: u8,
    nonce: String,
    /// It has an empty folder, and wants to join a cluster that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) joins: Option<Newcomer>,
    /// The numbers of the clusters that its own goes on from, all other nodes of which were given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
}

/// What a node says of itself that wants to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Newcomer {
    /// Its name.
    pub(super) name: String,
    /// The newest version of the topology's machine that it can carry out.
    pub(super) topology: u32,
    /// The same of the queues' machine.
    pub(super) queues: u32,
}

impl Hello {
    /// What a node says of itself; `nonce` was never used before.
    pub(super) fn new(cluster: u128, folder: u128, address: &str, peers: &[String], nonce: u128) -> Hello {
        Hello {
            magic: MAGIC.to_owned(),
            cluster: format!("{cluster:032x}"),
            node: 0,
            start: 0,
            folder: format!("{folder:032x}"),
            address: address.to_owned(),
            peers: peers.to_vec(),
            packets: partition::peer::packet::PACKET_VERSION,
            nonce: format!("{nonce:032x}"),
            joins: None,
            before: Vec::new(),
        }
    }

    /// The same of a node whose cluster goes on from these.
    pub(super) fn going_on_from(self, before: &[u128]) -> Hello {
        Hello { before: before.iter().map(|cluster| format!("{cluster:032x}")).collect(), ..self }
    }

    /// Whether the cluster of a node went on as another one, and this node was given up. Only of a peer that has
    /// proved itself it means something.
    pub(super) fn was_left_behind_by(&self, peer: &Hello) -> bool {
        peer.cluster != self.cluster && peer.before.contains(&self.cluster)
    }

    /// The same of one that wants to join, and does not know the cluster's number yet.
    pub(super) fn joining(self, newcomer: Newcomer) -> Hello {
        Hello { joins: Some(newcomer), ..self }
    }

    /// Why a peer is no node of this one's cluster, by what both say of it. Both sides come to the same.
    pub(super) fn objection_to(&self, peer: &Hello) -> Option<String> {
        let left_behind = [(self, peer), (peer, self)].into_iter().find(|(one, other)| one.was_left_behind_by(other));
        if let Some((gone, other)) = left_behind {
            return Some(format!(
                "{} is a node of cluster {}, which went on as another one at {} when its other nodes were given up (`leveret cluster \
                 recover`): start it with an empty data folder and with cluster_join in place of cluster_peers, and it joins anew; keep the \
                 old folder, if there is one, until you know that nothing in it is missed",
                gone.address, gone.cluster, other.address
            ));
        }
        // Nodes that joined were given no list, and those that are to join do not know the cluster yet.
        if !peer.peers.is_empty() && !self.peers.is_empty() && peer.peers != self.peers {
            return Some(format!(
                "two lists of nodes: {} has {}, {} has {}; give all nodes the same cluster_peers",
                peer.address,
                peer.peers.join(","),
                self.address,
                self.peers.join(",")
            ));
        }
        let is_to_join = peer.joins.is_some() && peer.node == 0;
        // Who founds makes the number of its list and its secret, which may be another one since the others founded: it
        // hears from them what they agreed on.
        let is_founding = |hello: &Hello| hello.node == 0 && hello.joins.is_none() && !hello.peers.is_empty();
        let has_a_list = !self.peers.is_empty() && !peer.peers.is_empty();
        let is_late = has_a_list && is_founding(self) != is_founding(peer);
        (peer.cluster != self.cluster && !is_to_join && !is_late).then(|| {
            format!(
                "two clusters: {} is a node of {}, {} of {}; start each node with the cluster_peers, the cluster_secret_file and \
                 the data folder of its own cluster",
                peer.address, peer.cluster, self.address, self.cluster
            )
        })
    }
}

/// What a side makes of the other in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// Why it wants nothing to do with the other.
    pub(super) refused: Option<String>,
    /// What the founders agreed on, if it knows.
    pub(super) founding: Option<String>,
    /// It refuses the other because that was a node of this cluster and has been forgotten: for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) forgotten: bool,
}

impl Verdict {
    /// Refuses the other, and says why.
    pub(super) fn refusing(why: impl Into<String>) -> Verdict {
        Verdict { refused: Some(why.into()), ..Verdict::default() }
    }

    /// Refuses the other, which was forgotten.
    pub(super) fn of_forgotten(why: impl Into<String>) -> Verdict {
        Verdict { forgotten: true, ..Verdict::refusing(why) }
    }

    /// Tells the other what the founders agreed on.
    pub(super) fn telling(founding: String) -> Verdict {
        Verdict { founding: Some(founding), ..Verdict::default() }
    }
}

/// Why two nodes do not come together. Each is one line that says what to do.
#[derive(Debug, Error)]
pub(super) enum Refused {
    /// The connection ended.
    #[error("{}", encryption::told(.0, "the peer"))]
    Io(#[from] io::Error),
    /// The other side encrypts, and this one does not.
    #[error("{}", encryption::ENCRYPTED)]
    Encrypted,
    /// It took too long.
    #[error("the peer did not introduce itself within five seconds")]
    Silent,
    /// Something else listens or connects there.
    #[error("what answers there is no node of Leveret, or one of another version: {0}")]
    Stranger(String),
    /// The peer does not have the secret.
    #[error(
        "the peer has another secret: give all nodes the same file as cluster_secret_file (and while it changes, that of the one before as \
         cluster_secret_file_before)"
    )]
    Secret,
    /// One side does not want the other.
    #[error("{0}")]
    Verdict(String),
    /// The peer does not want this node.
    #[error("the peer refuses this node: {0}")]
    ByPeer(String),
    /// The same for good: this node was forgotten.
    #[error("the peer refuses this node: {0}")]
    Forgotten(String),
}

impl Refused {
    /// The other side hung up before it had introduced itself: a node that ended meanwhile, or somebody who looks
    /// whether anything listens.
    pub(super) fn has_left(&self) -> bool {
        matches!(self, Refused::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof)
    }
}

/// Whether whoever connected says anything, and has not only looked whether somebody listens: as `leveret cluster join`
/// does, and who watches ports. Errors: it says nothing and stays.
pub(super) async fn speaks(stream: &TcpStream) -> Result<bool, Refused> {
    let first = tokio::time::timeout(PATIENCE, stream.peek(&mut [0])).await.map_err(|_| Refused::Silent)?;
    Ok(first? > 0)
}

/// What to do where a service for clients and a node met.
const OTHER_PORT: &str = "nodes meet at the cluster_address of each, which is not the address for clients";

/// Which side of a connection a node is on, and what it knows.
#[derive(Clone, Copy)]
pub(super) enum Side<'a> {
    /// It called, and shows that it has this one.
    Connector(&'a Secret),
    /// It was called, and believes whoever has one of these.
    Acceptor(&'a [Secret]),
}

/// Introduces two nodes to each other. `own_word` makes the verdict about a peer that has proved
/// itself. Gives the peer's hello and what it knows of the founding.
pub(super) async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    side: Side<'_>,
    own: &Hello,
    own_word: impl FnOnce(&Hello) -> Verdict,
) -> Result<(Hello, Option<String>), Refused> {
    match tokio::time::timeout(PATIENCE, introduce(stream, side, own, own_word)).await {
        Ok(result) => result,
        Err(_) => Err(Refused::Silent),
    }
}

async fn introduce<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    side: Side<'_>,
    own: &Hello,
    own_word: impl FnOnce(&Hello) -> Verdict,
) -> Result<(Hello, Option<String>), Refused> {
    let own_bytes = serde_json::to_vec(own).expect("a hello has no keys that are no text");
    send(stream, &own_bytes).await?;
    let peer_bytes = receive(stream).await?;
    let peer: Hello = serde_json::from_slice(&peer_bytes).map_err(|error| Refused::Stranger(error.to_string()))?;
    if peer.magic != MAGIC {
        return Err(Refused::Stranger(format!("it begins with {:?}", peer.magic)));
    }
    const CONNECTOR: &[u8] = b"connector";
    const ACCEPTOR: &[u8] = b"acceptor";
    match side {
        Side::Connector(secret) => {
            let proof_of = |side: &[u8]| secret.mac(&[MAGIC.as_bytes(), side, &own_bytes, &peer_bytes]);
            send(stream, &proof_of(CONNECTOR).finalize().into_bytes()).await?;
            let proof = receive(stream).await.map_err(|error| match error {
                // Who does not believe a proof hangs up.
                Refused::Io(_) => Refused::Secret,
                other => other,
            })?;
            proof_of(ACCEPTOR).verify_slice(&proof).map_err(|_| Refused::Secret)?;
        }
        Side::Acceptor(secrets) => {
            let proof = receive(stream).await?;
            let proof_of =
                |secret: &Secret, side: &[u8]| secret.mac(&[MAGIC.as_bytes(), side, &peer_bytes, &own_bytes]);
            let shown = secrets.iter().find(|secret| proof_of(secret, CONNECTOR).verify_slice(&proof).is_ok());
            let shown = shown.ok_or(Refused::Secret)?;
            send(stream, &proof_of(shown, ACCEPTOR).finalize().into_bytes()).await?;
        }
    }
    let word = own_word(&peer);
    send(stream, &serde_json::to_vec(&word).expect("a verdict has no keys that are no text")).await?;
    let verdict = receive(stream).await?;
    let verdict: Verdict = serde_json::from_slice(&verdict).map_err(|error| Refused::Stranger(error.to_string()))?;
    match (word.refused, verdict.refused) {
        (Some(why), _) => Err(Refused::Verdict(why)),
        (None, Some(why)) if verdict.forgotten => Err(Refused::Forgotten(why)),
        (None, Some(why)) => Err(Refused::ByPeer(why)),
        (None, None) => Ok((peer, verdict.founding)),
    }
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), Refused> {
    let mut message = (bytes.len() as u32).to_le_bytes().to_vec();
    message.extend_from_slice(bytes);
    Ok(stream.write_all(&message).await?)
}

async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, Refused> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    if encryption::is_tls(length) {
        return Err(Refused::Encrypted);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(Refused::Stranger(match &length.to_le_bytes()[..4] {
            b"AMQP" => format!("it speaks AMQP; {OTHER_PORT}"),
            b"HTTP" | b"GET " | b"POST" => format!("it speaks HTTP; {OTHER_PORT}"),
            _ => format!("it sends a message of {length} bytes"),
        }));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn hello(number: u128) -> Hello {
        Hello::new(7, number, &format!("host{number}:1"), &["host1:1".to_owned(), "host2:1".to_owned()], number)
    }

    fn secret(text: &str) -> Secret {
        Secret::of(text.as_bytes())
    }

    type Met = Result<(Hello, Option<String>), Refused>;

    fn meet(secrets: [&str; 2], words: [Verdict; 2]) -> (Met, Met) {
        meet_who_knows(secrets[0], &[secrets[1]], words)
    }

    fn meet_who_knows(shown: &str, known: &[&str], words: [Verdict; 2]) -> (Met, Met) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let [one_word, other_word] = words;
        runtime.block_on(async {
            let (mut one, mut other) = duplex(1 << 16);
            let (own, peer) = (hello(1), hello(2));
            let (shown, known) = (secret(shown), known.iter().map(|known| secret(known)).collect::<Vec<_>>());
            let connector = async {
                let result = shake(&mut one, Side::Connector(&shown), &own, |_| one_word).await;
                drop(one);
                result
            };
            let acceptor = async {
                let result = shake(&mut other, Side::Acceptor(&known), &peer, |_| other_word).await;
                drop(other);
                result
            };
            tokio::join!(connector, acceptor)
        })
    }

    #[test]
    fn who_hangs_up_without_a_word_has_said_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("it listens");
            for word in [&b""[..], b"A"] {
                let mut caller = TcpStream::connect(address).await.expect("it listens");
                let (stream, _) = listener.accept().await.expect("somebody calls");
                caller.write_all(word).await.expect("there is room");
                drop(caller);
                assert_eq!(speaks(&stream).await.expect("it is over"), !word.is_empty());
            }
        });
    }

    #[test]
    fn who_came_to_the_port_for_clients_is_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        for (word, says) in
            [("AMQP\0\0\x09\x01", "it speaks AMQP"), ("HTTP/1.1 400", "it speaks HTTP"), ("????", "of 1061109567")]
        {
            let (mut one, mut other) = duplex(1 << 16);
            let refused = runtime.block_on(async {
                other.write_all(word.as_bytes()).await.expect("there is room");
                shake(&mut one, Side::Connector(&secret("the same secret!")), &hello(1), |_| Verdict::default()).await
            });
            let refused = refused.expect_err("it is no node").to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn two_nodes_with_one_secret_know_each_other_and_what_each_knows() {
        let founding = Verdict::telling("text".to_owned());
        let (one, other) = meet(["the same secret!", "the same secret!"], [Verdict::default(), founding]);
        assert_eq!(one.expect("it knows the other"), (hello(2), Some("text".to_owned())));
        assert_eq!(other.expect("it knows the other"), (hello(1), None));
    }

    #[test]
    fn another_secret_is_found_by_both_before_anything_is_believed() {
        let (one, other) = meet(["the same secret!", "another secret !"], Default::default());
        assert!(matches!(one, Err(Refused::Secret)), "{one:?}");
        assert!(matches!(other, Err(Refused::Secret)), "{other:?}");
    }

    #[test]
    fn who_shows_either_of_two_secrets_is_believed_and_hears_a_proof_by_the_same() {
        let known = ["the secret now !", "the secret before"];
        for shown in known {
            let (one, other) = meet_who_knows(shown, &known, Default::default());
            assert_eq!(one.expect("it is believed").0, hello(2), "{shown}");
            assert_eq!(other.expect("it is believed").0, hello(1), "{shown}");
        }
        let (one, other) = meet_who_knows("a third secret !!", &known, Default::default());
        assert!(matches!((one, other), (Err(Refused::Secret), Err(Refused::Secret))));
    }

    #[test]
    fn a_refusal_is_told_to_both() {
        let refused = Verdict::refusing("go away");
        let (one, other) = meet(["the same secret!", "the same secret!"], [Verdict::default(), refused]);
        assert_eq!(one.expect_err("refused").to_string(), "the peer refuses this node: go away");
        assert_eq!(other.expect_err("refused").to_string(), "go away");
    }

    #[test]
    fn who_was_forgotten_hears_that_it_is_for_good_if_it_takes_the_peer_for_one_of_its_cluster() {
        let forgotten = || Verdict::of_forgotten("it was forgotten");
        let (one, other) = meet(["the same secret!", "the same secret!"], [Verdict::default(), forgotten()]);
        assert!(matches!(one, Err(Refused::Forgotten(why)) if why == "it was forgotten"));
        assert!(matches!(other, Err(Refused::Verdict(_))), "who forgot it goes on: {other:?}");
        let (one, _) = meet(["the same secret!", "the same secret!"], [Verdict::refusing("a stranger"), forgotten()]);
        assert!(matches!(one, Err(Refused::Verdict(_))), "the word of a stranger ends nothing: {one:?}");
        // As builds from before it read and write it.
        let plain = serde_json::to_string(&Verdict::refusing("no")).expect("it is text");
        assert_eq!(plain, r#"{"refused":"no","founding":null}"#);
        assert_eq!(serde_json::from_str::<Verdict>(&plain).expect("it is one"), Verdict::refusing("no"));
    }

    #[test]
    fn who_is_of_another_cluster_or_names_other_nodes_is_told_what_to_do() {
        let own = hello(1);
        assert_eq!(own.objection_to(&hello(2)), None);
        let list = Hello { peers: vec!["host2:1".to_owned()], ..hello(2) };
        let says = own.objection_to(&list).expect("it names fewer nodes");
        assert_eq!(
            says,
            "two lists of nodes: host2:1 has host2:1, host1:1 has host1:1,host2:1; give all nodes the same cluster_peers"
        );
        let other = Hello { cluster: format!("{:032x}", 8), ..hello(2) };
        // One that founds makes its number of the secret of today, and one that has founded of that of the day.
        let founded = Hello { node: 2, ..other.clone() };
        assert_eq!((own.objection_to(&founded), founded.objection_to(&own)), (None, None));
        let (founded_too, joined) = (Hello { node: 1, ..own.clone() }, Hello { peers: Vec::new(), ..founded.clone() });
        assert!(founded_too.objection_to(&founded).is_some() && own.objection_to(&joined).is_some());
        for (one, two) in [(&own, &other), (&other, &own)] {
            let says = one.objection_to(two).expect("it is of another cluster");
            assert!(says.contains("two clusters") && says.contains("start each node with"), "{says}");
        }
    }

    #[test]
    fn who_was_given_up_is_told_so_by_both_whatever_nodes_they_name() {
        let (lost, own) = (hello(1), Hello { cluster: format!("{:032x}", 9), ..hello(2) }.going_on_from(&[5, 7]));
        assert!(lost.was_left_behind_by(&own) && !own.was_left_behind_by(&lost));
        for peers in [Vec::new(), vec!["host9:1".to_owned()]] {
            let lost = Hello { peers, ..lost.clone() };
            let says = lost.objection_to(&own).expect("it was given up");
            assert_eq!(own.objection_to(&lost), Some(says.clone()));
            let (gone, number) = ("host1:1 is a node of cluster", format!("{:032x}", 7));
            assert!(says.starts_with(&format!("{gone} {number}, which went on as another one at host2:1")), "{says}");
        }
        // Whoever joined the cluster that goes on is one of its nodes, and a third cluster is another one.
        let joined = Hello { cluster: own.cluster.clone(), ..hello(3) };
        assert_eq!(own.objection_to(&Hello { peers: own.peers.clone(), ..joined }), None);
        let other = Hello { cluster: format!("{:032x}", 6), ..hello(1) };
        assert!(own.objection_to(&other).expect("another one").contains("two clusters"));
        // Builds from before say and read nothing of it.
        assert!(!serde_json::to_string(&lost).expect("it is text").contains("before"));
    }

    #[test]
    fn a_proof_does_not_serve_for_the_other_side() {
        // Whoever sends back what it hears proves nothing.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (mut one, mut mirror) = duplex(1 << 16);
            let reflect = async {
                for _ in 0..2 {
                    let message = receive(&mut mirror).await.expect("it speaks");
                    send(&mut mirror, &message).await.expect("it listens");
                }
            };
            let secret = secret("the same secret!");
            let own = hello(1);
            let (result, ()) =
                tokio::join!(shake(&mut one, Side::Connector(&secret), &own, |_| Verdict::default()), reflect);
            assert!(matches!(result, Err(Refused::Secret)), "{result:?}");
        });
    }
}
