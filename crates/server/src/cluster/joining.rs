//! How a node with an empty folder joins a cluster that is there.
//!
//! It asks a member again and again. That has the topology give the folder a number, and tells the
//! node all that it has to know once it has one: which cluster it is, which nodes it has, and how many
//! partitions. A folder that asks again is told the same.
//!
//! Invariant: what it is told is durable here before anything else follows, and it founds nothing.

use super::encryption::{LinkTls, Wire, objection};
use super::handshake::{Hello, Newcomer, PATIENCE, Refused, Side, Verdict, shake};
use super::secret::Secrets;
use crate::random;
use crate::startup::Startup;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use storage::ClusterRecord;
use tokio::net::TcpStream;

/// How often it asks.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// How often the log says what it waits for.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A node that wants to join.
pub(super) struct Joining<'a> {
    /// The member that it asks.
    pub(super) via: &'a str,
    /// Where the others reach it.
    pub(super) address: &'a str,
    pub(super) secrets: &'a Secrets,
    pub(super) tls: Option<Arc<LinkTls>>,
    /// Its data folder.
    pub(super) folder: u128,
    pub(super) newcomer: Newcomer,
}

/// What a node that asks hears in the end.
pub(super) enum Answered {
    /// What the cluster tells it.
    Joined(ClusterRecord),
    /// Its folder had joined, and was forgotten since.
    Forgotten,
    /// The process is to end.
    Ended {
        /// The cluster may have taken the folder in.
        is_known: bool,
    },
}

/// Why there is no answer yet.
struct NotYet {
    why: String,
    /// Who was asked has answered, and does not want it, or is nobody who could.
    is_refused: bool,
}

impl NotYet {
    fn waits(why: String) -> NotYet {
        NotYet { why, is_refused: false }
    }

    fn refused(why: String) -> NotYet {
        NotYet { why, is_refused: true }
    }
}

impl Joining<'_> {
    /// Asks until there is an answer for good. Blocks.
    pub(super) fn join(&self, (ends, startup): (&AtomicBool, &Startup)) -> std::io::Result<Answered> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        tracing::info!(address = %self.address, member = %self.via, "asking to join a cluster");
        runtime.block_on(async {
            let (mut told, mut tell_at) = (String::new(), Instant::now() + TELL_EVERY);
            let is_known = Cell::new(false);
            let mut failures = 0;
            loop {
                if ends.load(Ordering::Relaxed) {
                    return Ok(Answered::Ended { is_known: is_known.get() });
                }
                let (why, is_refused) = match self.ask(failures, &is_known).await {
                    Ok(Some(asked)) => return Ok(asked),
                    Ok(None) => ("no majority of the cluster has decided about it yet".to_owned(), false),
                    Err(NotYet { why, is_refused }) => (why, is_refused),
                };
                startup.note(format!("it waits to join the cluster of {}: {why}", self.via));
                // What passes by itself is told when it has lasted; the rest is for somebody to do.
                if Instant::now() >= tell_at || (is_refused && told != why) {
                    tell_at = Instant::now() + TELL_EVERY;
                    tracing::warn!(member = %self.via, "not joined yet: {why}");
                    told = why;
                }
                failures += 1;
                tokio::time::sleep(ASK_EVERY).await;
            }
        })
    }

    /// Asks once. Sets `is_known` if the cluster may take the folder in by that.
    async fn ask(&self, failures: usize, is_known: &Cell<bool>) -> Result<Option<Answered>, NotYet> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.via));
        let stream = connecting.await.map_err(|_| NotYet::waits("it does not answer".to_owned()))?;
        let stream = stream.map_err(|error| NotYet::waits(format!("it cannot be reached: {error}")))?;
        let tls = self.tls.as_deref();
        let wire = tokio::time::timeout(PATIENCE, Wire::connect(tls, stream, self.via)).await;
        let wire = wire.map_err(|_| NotYet::waits(Refused::Silent.to_string()))?;
        let mut wire = wire.map_err(NotYet::refused)?;
        let nonce = u128::from(random::dice()) << 64 | u128::from(random::dice());
        let own = Hello::new(0, self.folder, self.address, &[], nonce).joining(self.newcomer.clone());
        let certificate = wire.certificate();
        let word =
            |peer: &Hello| Verdict { refused: objection(certificate.as_ref(), &peer.address), ..Verdict::default() };
        let shaken = shake(&mut wire, Side::Connector(&self.secrets.to_show(failures).0), &own, word).await;
        // These end before the other side knows that this one has the secret.
        if !matches!(shaken, Err(Refused::Secret | Refused::Stranger(_) | Refused::Encrypted)) {
            is_known.set(true);
        }
        match shaken {
            Ok((_, told)) => {
                let record = told.map(|text| self.take(&text)).transpose().map_err(NotYet::refused)?;
                Ok(record.map(Answered::Joined))
            }
            Err(Refused::Forgotten(_)) => Ok(Some(Answered::Forgotten)),
            Err(error @ (Refused::Io(_) | Refused::Silent)) => Err(NotYet::waits(error.to_string())),
            Err(error) => Err(NotYet::refused(error.to_string())),
        }
    }

    fn take(&self, text: &str) -> Result<ClusterRecord, String> {
        let record = ClusterRecord::decode(text.as_bytes()).map_err(|error| error.to_string())?;
        let names_it = record.founders.iter().any(|founder| founder.folder_id == self.folder);
        match record.joined.is_some() && names_it {
            true => Ok(record),
            // A build that lets nobody join tells who founded the cluster.
            false => {
                Err("the cluster runs a leveret that lets no nodes join: upgrade all of its nodes first".to_owned())
            }
        }
    }
}
