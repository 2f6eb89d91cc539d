//! The thread in front of the shards for connections that have more to say before AMQP begins: a
//! PROXY header, a TLS handshake. It exists only where a listener needs it.
//!
//! Invariant: a shard is handed connections that are past all of that, so a flood of handshakes,
//! which cost a thousand times what a login costs, holds up nobody who is connected. What a client
//! may take for it is bounded in time, and how many take it at once in number; the rest wait in the
//! kernel.

use crate::listener::{self, Door};
use crate::node::Shared;
use crate::shard::{Arrival, Parcel};
use crate::stream::{Encrypted, Impatient};
use crate::tls::Shown;
use crate::{proxy_protocol, tls};
use listener::{Place, Room};
use rustls::{ServerConfig, ServerConnection};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};

/// Connections at the door at one time.
const AT_DOOR_MAX: usize = 1024;

/// Serves `listeners` until the node drains.
pub(crate) fn run(listeners: Vec<(TcpListener, Door)>, shared: &Arc<Shared>) {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the thread for TLS has no runtime");
            return;
        }
    };
    runtime.block_on(async {
        let room = Arc::new(Room::new(AT_DOOR_MAX));
        for (listener, door) in listeners {
            tokio::task::spawn_local(listener::accept(listener, door, shared.clone(), room.clone()));
        }
        shared.door_closes.notified().await;
    });
}

/// Takes a connection through the door and hands it to `shard`, or gives it up with a line in the
/// log.
pub(crate) async fn let_in(
    socket: TcpStream,
    peer: SocketAddr,
    door: Door,
    shard: usize,
    shared: Arc<Shared>,
    place: Place,
) {
    let limit = Duration::from_millis(shared.config.amqp.handshake_timeout_ms);
    let result = tokio::select! {
        result = tokio::time::timeout(limit, pass(socket, peer, door, &shared, &place)) => result,
        () = place.is_wanted() => {
            if place.room().complains() {
                tracing::warn!(
                    %peer, tls = door.tls, proxy = door.proxy,
                    "many connections begin a handshake and do not go on: the oldest of the addresses that have most give way"
                );
            }
            Ok(Err(io::ErrorKind::UnexpectedEof.into()))
        }
    };
    match result.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "not finished in time"))) {
        Ok(arrival) => shared.mailboxes[shard].send(Parcel::Accepted(Box::new(arrival))),
        Err(error) => {
            // Health checks open a socket and close it again, every few seconds.
            match error.kind() {
                io::ErrorKind::UnexpectedEof => tracing::debug!(%peer, %error, "gone at the door"),
                _ => {
                    tracing::warn!(%peer, %error, tls = door.tls, proxy = door.proxy, "connection refused at the door")
                }
            }
            shared.gauges[shard].connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

async fn pass(
    mut socket: TcpStream,
    peer: SocketAddr,
    door: Door,
    shared: &Shared,
    place: &Place,
) -> io::Result<Arrival> {
    let mut claimed = peer;
    if door.proxy {
        claimed = proxy_protocol::read(&mut socket).await?.unwrap_or(peer);
        place.is_of(claimed.ip());
    }
    // A proxy elsewhere could claim anything, so both have to be from here.
    let is_loopback = [peer, claimed].iter().all(|address| address.ip().to_canonical().is_loopback());
    let mut encrypted = None;
    let mut user = None;
    if door.tls {
        let config = shared.certificates.get().ok_or_else(|| io::Error::other("no certificate"))?;
        let done = handshake(&socket, config).await?;
        let certificate = done.peer_certificates().and_then(|chain| chain.first());
        let shown = certificate.and_then(|certificate| tls::read_shown(certificate, shared.config.login_from));
        let mut certificate = None;
        if let Some(Shown { user: named, described }) = shown {
            user = named;
            certificate = Some(shared.peer_certificates.shared(described));
        }
        encrypted = Some(Encrypted { session: Box::new(done), certificate });
    }
    let socket = socket.into_std()?;
    Ok(Arrival {
        socket,
        peer: claimed,
        is_loopback,
        tls: encrypted,
        certificate_user: user,
        is_own: false,
        token: None,
    })
}

async fn handshake(socket: &TcpStream, config: Arc<ServerConfig>) -> io::Result<ServerConnection> {
    let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut output = Vec::new();
    loop {
        tls::take_output(&mut session, &mut output)?;
        write_all(socket, &output).await?;
        output.clear();
        if !session.is_handshaking() {
            return Ok(session);
        }
        socket.readable().await?;
        match session.read_tls(&mut Impatient(socket)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                if let Err(error) = session.process_new_packets() {
                    tls::take_output(&mut session, &mut output)?;
                    // The client learns why, if the socket takes it at once.
                    let _ = socket.try_write(&output);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
