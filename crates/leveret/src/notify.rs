//! What is told to systemd, or whoever else listens at `NOTIFY_SOCKET`: that the node serves, that it
//! reads its files again, that it stops.
//!
//! Invariant: nobody waits for whoever listens, and nothing depends on him.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Clients are let in.
pub(crate) fn ready() {
    tell("READY=1");
}

/// Clients are told to go.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(what: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        // A name that is in no file system.
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(what.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "whoever started this process is not told: {what}");
    }
}
