//! A socket, plain or with TLS around it: the same calls for the set-up, which waits, and for the
//! load, which does not.
//!
//! Invariant: bytes leave in the order in which they were taken. What TLS has taken and the socket
//! has not is owed: a caller that does not wait asks [`Stream::owes`] and comes back when there is
//! room. What TLS has opened is given out before the socket is read again.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustls::ClientConnection;

/// Bytes of one read of a socket under TLS: several records, so that a system call does not bring
/// only one.
const SEALED_BYTES: usize = 128 * 1024;

/// More than rustls holds opened at a time: the largest record.
const OPENED_BYTES: usize = 32 * 1024;

/// A socket to a broker.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    tls: Option<Box<Sealed>>,
}

#[derive(Debug)]
struct Sealed {
    connection: ClientConnection,
    /// Where records are read to.
    input: Vec<u8>,
    /// The part of `input` that was not opened yet.
    unopened: std::ops::Range<usize>,
}

impl Stream {
    /// Plain TCP.
    pub fn plain(socket: TcpStream) -> Stream {
        Stream { socket, tls: None }
    }

    /// TLS over it; the handshake happens with the first bytes.
    pub fn sealed(socket: TcpStream, connection: ClientConnection) -> Stream {
        let sealed = Sealed { connection, input: vec![0; SEALED_BYTES], unopened: 0..0 };
        Stream { socket, tls: Some(Box::new(sealed)) }
    }

    /// The socket itself, for its options.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The version of TLS that was agreed on.
    pub fn tls_version(&self) -> Option<&'static str> {
        match self.tls.as_ref()?.connection.protocol_version()? {
            rustls::ProtocolVersion::TLSv1_2 => Some("TLS 1.2"),
            rustls::ProtocolVersion::TLSv1_3 => Some("TLS 1.3"),
            _ => Some("TLS"),
        }
    }

    /// Whether bytes were taken that the socket has not.
    pub fn owes(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write())
    }

    /// Room for everything that one read of the socket brings under TLS; none is needed beyond the
    /// read itself without it.
    pub fn opened_bytes_max(&self) -> usize {
        if self.tls.is_some() { SEALED_BYTES + OPENED_BYTES } else { 0 }
    }

    /// Opened bytes that are had without the socket, behind a read: an event loop hears nothing of
    /// them. 0 when there are no more.
    pub fn opened(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.tls {
            Some(tls) if !out.is_empty() => Ok(tls.opened(out)?.unwrap_or(0)),
            _ => Ok(0),
        }
    }

    /// Gives the socket what it is owed.
    fn pay(&mut self) -> std::io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.connection.wants_write() {
            match tls.connection.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Says that nothing more will be written.
    pub fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
            let _ = self.pay();
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

impl Sealed {
    /// Opened bytes, at most what fits. `None` at the end of the stream, 0 when there are none yet.
    fn opened(&mut self, out: &mut [u8]) -> std::io::Result<Option<usize>> {
        loop {
            match self.connection.reader().read(out) {
                Ok(0) => return Ok(None),
                Ok(count) => return Ok(Some(count)),
                Err(why) if why.kind() == ErrorKind::WouldBlock => {}
                Err(why) => return Err(why),
            }
            if self.unopened.is_empty() {
                return Ok(Some(0));
            }
            let mut records = &self.input[self.unopened.clone()];
            let before = records.len();
            self.connection.read_tls(&mut records)?;
            self.unopened.start += before - records.len();
            self.connection.process_new_packets().map_err(std::io::Error::other)?;
        }
    }
}

impl Read for Stream {
    /// With TLS on a socket that does not wait, several reads may be had before it says so: what
    /// one read of the socket brought is given out piece by piece.
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.socket.read(out) };
            match tls.opened(out) {
                Ok(Some(0)) => {}
                Ok(count) => return Ok(count.unwrap_or(0)),
                Err(why) => {
                    // The alert tells the broker why.
                    let _ = self.pay();
                    return Err(why);
                }
            }
            // An answer of the handshake or to a change of keys.
            match self.pay() {
                Err(why) if why.kind() != ErrorKind::WouldBlock => return Err(why),
                _ => {}
            }
            let Some(tls) = &mut self.tls else { unreachable!("it was there above") };
            match self.socket.read(&mut tls.input) {
                Ok(0) => return Ok(0),
                Ok(count) => tls.unopened = 0..count,
                Err(why) => return Err(why),
            }
        }
    }
}

impl Write for Stream {
    /// With TLS bytes count as written when TLS has them; it takes no more while it owes the
    /// socket.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.tls.is_none() {
            return self.socket.write(bytes);
        }
        self.pay()?;
        let Some(tls) = &mut self.tls else { unreachable!("it was there above") };
        let count = tls.connection.writer().write(bytes)?;
        match self.pay() {
            Err(why) if why.kind() != ErrorKind::WouldBlock => Err(why),
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.pay()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
