//! A client's socket, with TLS between it and the connection or without.
//!
//! Invariant: without TLS every call is the socket's own, behind one branch a call (never one a
//! message). With TLS what was taken from the output and not yet by the socket is at most
//! [`UNSENT_BYTES_MAX`], and counts as unsent until it is.

use crate::tls;
use bytes::BytesMut;
use rustix::net::sockopt;
use rustls::ServerConnection;
use session::report::{PeerCertificate, TlsSeen};
use std::future::Future;
use std::io::{self, BufRead as _, IoSlice, Read, Write};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Bytes of one connection that TLS holds on their way out.
pub(crate) const UNSENT_BYTES_MAX: usize = 64 << 10;

/// After so long without a word the kernel asks whether the other side is there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(120);
/// How often it asks one that does not answer, and how many times.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 8;

/// Has the kernel end a client's connection whose other side vanished without a word, as after a pulled
/// cable: nobody else notices where the client has no heartbeats, and what it holds, its exclusive queues
/// too, would stay for ever.
pub(crate) fn keep_alive(socket: &std::net::TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_TRIES)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// See the module.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

/// A session past its handshake.
pub(crate) struct Encrypted {
    pub(crate) session: Box<ServerConnection>,
    /// What is told of the certificate that the client showed.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
}

/// A socket and its TLS, past the handshake.
pub(crate) struct Tls {
    socket: TcpStream,
    session: ServerConnection,
    certificate: Option<Arc<PeerCertificate>>,
}

/// The socket as TLS wants it: what would wait is an error.
pub(crate) struct Impatient<'a>(pub(crate) &'a TcpStream);

impl Read for Impatient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Impatient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// The stream of a connection that was accepted, its handshake done if it has TLS.
    pub(crate) fn new(socket: TcpStream, encrypted: Option<Encrypted>) -> Stream {
        match encrypted {
            None => Stream::Plain(socket),
            Some(Encrypted { mut session, certificate }) => {
                session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
                Stream::Tls(Box::new(Tls { socket, session: *session, certificate }))
            }
        }
    }

    /// What there is to tell of its TLS.
    pub(crate) fn tls_seen(&self) -> Option<TlsSeen> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => Some(tls::seen(&tls.session, tls.certificate.as_ref())),
        }
    }

    /// The socket below.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &tls.socket,
        }
    }

    /// The socket below, for what still comes when nothing counts any more.
    pub(crate) fn socket_mut(&mut self) -> &mut TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &mut tls.socket,
        }
    }

    /// Ready when a read may give something.
    #[inline]
    pub(crate) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_read_ready(cx),
            Stream::Tls(tls) => match tls.has_plaintext() {
                true => Poll::Ready(Ok(())),
                false => tls.socket.poll_read_ready(cx),
            },
        }
    }

    /// Reads into the spare room of `buffer`; 0 is the end.
    #[inline]
    pub(crate) fn poll_read(&mut self, buffer: &mut BytesMut, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(socket) => pin!(socket.read_buf(buffer)).poll(cx),
            Stream::Tls(tls) => tls.poll_read(buffer, cx),
        }
    }

    /// Writes what goes at once. Errors: `WouldBlock` when nothing does.
    #[inline]
    pub(crate) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_write_vectored(slices),
            Stream::Tls(tls) => tls.try_write_vectored(slices),
        }
    }

    /// Whether something was taken that the socket has not.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(tls) => tls.session.wants_write(),
        }
    }

    /// Writes what was taken before. Errors: `WouldBlock` when the socket does not take all.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(tls) => tls.flush(),
        }
    }

    /// Says the end, as far as the socket takes it.
    pub(crate) fn say_end(&mut self) {
        if let Stream::Tls(tls) = self {
            tls.session.send_close_notify();
            // A client that does not read any more does not read this either.
            let _ = tls.flush();
        }
    }
}

impl Tls {
    /// Whether decrypted bytes wait to be read. Asks nobody: what the records held was decrypted
    /// when they came.
    fn has_plaintext(&mut self) -> bool {
        self.session.reader().fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Moves decrypted bytes to `buffer`, as many as it has room for. `None`: there are none and
    /// the client said the end.
    fn take_plaintext(&mut self, buffer: &mut BytesMut, room: usize) -> Option<usize> {
        let (mut reader, mut taken) = (self.session.reader(), 0);
        while taken < room {
            match reader.fill_buf() {
                Ok([]) if taken == 0 => return None,
                Ok([]) | Err(_) => break,
                Ok(bytes) => {
                    let count = bytes.len().min(room - taken);
                    buffer.extend_from_slice(&bytes[..count]);
                    reader.consume(count);
                    taken += count;
                }
            }
        }
        Some(taken)
    }

    fn poll_read(&mut self, buffer: &mut BytesMut, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = buffer.capacity() - buffer.len();
        let mut total = 0;
        loop {
            match self.take_plaintext(buffer, room - total) {
                None => return Poll::Ready(Ok(total)),
                Some(taken) => total += taken,
            }
            if total == room {
                return Poll::Ready(Ok(total));
            }
            match self.socket.poll_read_ready(cx) {
                Poll::Pending if total > 0 => return Poll::Ready(Ok(total)),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            }
            match self.session.read_tls(&mut Impatient(&self.socket)) {
                // The end without a word: what was read before still counts.
                Ok(0) => return Poll::Ready(Ok(total)),
                Ok(_) => {
                    if let Err(error) = self.session.process_new_packets() {
                        // The client learns why, if it reads on.
                        let _ = self.flush();
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let count = self.session.writer().write_vectored(slices)?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            // They are taken; the next write waits for them.
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Impatient(&self.socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_looks_after_a_connection_over_which_nothing_comes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let socket = std::net::TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        assert!(!sockopt::socket_keepalive(&socket).expect("it is a socket"), "the system does not by itself");
        keep_alive(&socket).expect("it can");
        assert!(sockopt::socket_keepalive(&socket).expect("it is a socket"));
        let after = sockopt::tcp_keepidle(&socket).expect("it is one of TCP");
        let every = sockopt::tcp_keepintvl(&socket).expect("it is one of TCP");
        let tries = sockopt::tcp_keepcnt(&socket).expect("it is one of TCP");
        assert!(after + every * tries <= Duration::from_secs(240), "{after:?}, {tries} times {every:?}");
    }
}
