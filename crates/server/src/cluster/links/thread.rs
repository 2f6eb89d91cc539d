//! The thread that has links come about.

use super::super::encryption::{Wire, objection};
use super::super::handshake::{Hello, PATIENCE, Refused, Side, Verdict, shake, speaks};
use super::super::secret::Secret;
use super::super::strangers::Strangers;
use super::{AGAIN_AFTER, CONNECT_TIMEOUT, Common, GONE_AGAIN_AFTER, HALTED, LOOK_EVERY, LinkArrival, TELL_EVERY};
use crate::random;
use crate::shard::Parcel;
use broker::NodeLife;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use switch::LinkUp;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

pub(super) fn run(common: Arc<Common>, listener: std::net::TcpListener) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "no runtime for links to other nodes"),
    };
    let set = tokio::task::LocalSet::new();
    set.block_on(&runtime, async {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot listen for other nodes"),
        };
        let strangers = Rc::new(Strangers::default());
        let refuse = |strangers: &Strangers, from: SocketAddr, why: &str| {
            if let Some(count) = strangers.refuse(Instant::now()) {
                tracing::warn!(count, %from, "connections of other nodes were refused, the last one: {why}");
            }
        };
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        let (common, strangers) = (common.clone(), strangers.clone());
                        let stranger = strangers.enter(from.ip());
                        tokio::task::spawn_local(async move {
                            let met = tokio::select! {
                                met = meet(&common, stream) => met,
                                () = stranger.cut() => Err("too many introduce themselves at once".to_owned()),
                            };
                            strangers.leave(&stranger);
                            match met {
                                Ok(Some(known)) => have_link(&common, known).await,
                                Ok(None) => {
                                    tracing::debug!(%from, "a connection that said nothing, or not all, is gone")
                                }
                                Err(why) => refuse(&strangers, from, &why),
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection of another node was not accepted");
                        tokio::time::sleep(AGAIN_AFTER).await;
                    }
                }
            }
        };
        let tell = async {
            loop {
                common.untold.notified().await;
                let Some(shared) = common.shared.upgrade() else { return };
                shared.tell_taken();
                drop(shared);
                // What follows at once goes together.
                tokio::time::sleep(TELL_EVERY).await;
            }
        };
        let watch = async {
            let mut called = BTreeSet::new();
            loop {
                common.look_at_nodes(&mut called);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let end = async {
            while !common.ends.load(Ordering::Acquire) {
                common.end.notified().await;
            }
        };
        tokio::select! {
            () = accept => {}
            () = tell => {}
            () = watch => {}
            () = end => {}
        }
    });
}

/// Keeps up the link to a node with a lower number.
pub(super) async fn connect(common: Arc<Common>, number: u32) {
    let (mut told, mut failures) = (String::new(), 0);
    loop {
        // One that was forgotten hears of it, should it be started again.
        let is_gone = common.known.is_gone(number);
        let address = common.known.address_of(number).unwrap_or_default();
        if is_gone && common.known.is_in_use(&address) {
            tokio::time::sleep(GONE_AGAIN_AFTER).await;
            continue;
        }
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&address)).await;
        if let Ok(Ok(stream)) = stream {
            let (secret, is_last) = common.secrets.to_show(failures);
            match introduce(&common, stream, Met::Called { number, address: &address, secret: &secret }).await {
                Ok(known) => {
                    told.clear();
                    have_link(&common, known).await;
                }
                Err(why) => {
                    let why = why.to_string();
                    failures += 1;
                    if is_last && told != why && !is_gone {
                        tracing::warn!(peer = %address, "no link: {why}");
                        told = why;
                    }
                }
            }
        }
        tokio::time::sleep(if is_gone { GONE_AGAIN_AFTER } else { AGAIN_AFTER }).await;
    }
}

/// How another node was met.
#[derive(Clone, Copy)]
pub(super) enum Met<'a> {
    /// It was called at its address, and is shown this secret.
    Called { number: u32, address: &'a str, secret: &'a Secret },
    /// It called.
    Connected,
}

/// Introduces itself to whoever connected. `None`: it has left again.
async fn meet(common: &Common, stream: TcpStream) -> Result<Option<(Hello, Wire)>, String> {
    let introduced = async {
        match speaks(&stream).await? {
            true => introduce(common, stream, Met::Connected).await.map(Some),
            false => Ok(None),
        }
    };
    match introduced.await {
        Ok(known) => Ok(known),
        Err(refused) if refused.has_left() => Ok(None),
        Err(refused) => Err(refused.to_string()),
    }
}

/// Introduces itself over a connection. Errors: why there is no link over it.
pub(super) async fn introduce(common: &Common, stream: TcpStream, met: Met<'_>) -> Result<(Hello, Wire), Refused> {
    let _ = stream.set_nodelay(true);
    let tls = common.tls.as_deref();
    let encrypting = async {
        match met {
            Met::Called { address, .. } => Wire::connect(tls, stream, address).await,
            Met::Connected => Wire::accept(tls, stream).await,
        }
    };
    let wire = tokio::time::timeout(PATIENCE, encrypting).await;
    let mut wire = wire.map_err(|_| Refused::Silent)?.map_err(Refused::Verdict)?;
    let nonce = u128::from(random::dice()) << 64 | u128::from(random::dice());
    let own = Hello::new(common.known.cluster, common.known.folder, &common.address, &common.peers, nonce);
    let mut own = own.going_on_from(&common.known.record.before);
    (own.node, own.start) = (common.own.node, common.own.start);
    let certificate = wire.certificate();
    let known = common.secrets.all();
    let (side, expected) = match met {
        Met::Called { number, secret, .. } => (Side::Connector(secret), Some(number)),
        Met::Connected => (Side::Acceptor(&known), None),
    };
    let word = |peer: &Hello| {
        let is_stranger = objection(certificate.as_ref(), &peer.address);
        let is_right = is_stranger.is_none();
        if common.is_halted() {
            return Verdict::refusing(HALTED.to_owned());
        }
        match is_stranger.or_else(|| own.objection_to(peer)) {
            Some(why) => {
                if is_right && own.was_left_behind_by(peer) {
                    *common.left_behind.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
                }
                Verdict::refusing(why)
            }
            None => common.known.word_about(peer, expected),
        }
    };
    let shaken = shake(&mut wire, side, &own, word).await;
    if matches!(shaken, Err(Refused::Forgotten(_))) {
        common.is_forgotten.store(true, Ordering::Release);
    }
    shaken.map(|(peer, _)| (peer, wire))
}

/// Has the link over a connection, until it is gone.
pub(super) async fn have_link(common: &Arc<Common>, (peer, wire): (Hello, Wire)) {
    if peer.node == 0 {
        let what = if peer.joins.is_some() { "wants to join" } else { "was told which cluster it founded with others" };
        return tracing::debug!(peer = %peer.address, "a node {what}");
    }
    let life = NodeLife { node: peer.node, start: peer.start };
    if common.is_halted() {
        return;
    }
    let Ok((stream, session)) = wire.into_parts() else { return };
    let Some(epoch) = common.outboxes.make(peer.node).and_then(|outbox| common.raise(outbox)) else { return };
    let (gone, wait) = oneshot::channel();
    let up = LinkUp { peer: life, epoch };
    let arrival = LinkArrival { stream, session, up, address: peer.address, common: common.clone(), gone };
    common.mailboxes[common.shard_of(peer.node)].send(Parcel::Linked(Box::new(arrival)));
    let _ = wait.await;
}
