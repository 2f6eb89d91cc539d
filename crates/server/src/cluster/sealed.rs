//! What encrypts over the socket of a link, on the shard that has it.
//!
//! What is written is sealed out of the packets' own pieces, so there is no copy beside the sealed
//! one. What comes is read in as large reads as without encryption, and copied once on its way to
//! the packets: the library opens records in a buffer of its own.
//!
//! Invariant: nothing here waits but for the socket, and at most [`UNSENT_BYTES_MAX`] are sealed and
//! not yet taken by it; the pieces behind them wait unsealed, within the link's budget.

use crate::stream::Impatient;
use bytes::{Buf, BytesMut};
use rustls::Connection;
use std::cell::RefCell;
use std::io::{self, BufRead as _, ErrorKind, IoSlice, Write as _};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

/// Sealed bytes on their way to the socket.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// See the module.
pub(super) struct Sealed(RefCell<Box<Connection>>);

impl Sealed {
    /// What encrypts, past its handshake.
    pub(super) fn new(mut session: Box<Connection>) -> Sealed {
        session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        Sealed(RefCell::new(session))
    }

    /// Takes as much as there is room for, and writes as far as the socket takes it. Errors:
    /// `WouldBlock` if nothing was taken.
    pub(super) fn try_write_vectored(&self, socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(socket)?;
        let count = self.0.borrow_mut().writer().write_vectored(slices)?;
        match self.flush(socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            // They are taken; the next write waits for them.
            _ => Ok(count),
        }
    }

    /// Writes what was taken. Errors: `WouldBlock` if the socket does not take all.
    pub(super) fn flush(&self, socket: &TcpStream) -> io::Result<()> {
        let mut session = self.0.borrow_mut();
        while session.wants_write() {
            match session.write_tls(&mut Impatient(socket)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads at least a byte into `opened`; 0 is the end. `sealed` keeps what is not opened yet.
    pub(super) async fn read(
        &self,
        reader: &mut OwnedReadHalf,
        sealed: &mut BytesMut,
        read_bytes: usize,
        opened: &mut BytesMut,
    ) -> io::Result<usize> {
        loop {
            // Before the first read too: the other side may have spoken with its handshake.
            match self.open(sealed, opened)? {
                None => return Ok(0),
                Some(0) => {}
                Some(count) => return Ok(count),
            }
            sealed.reserve(read_bytes);
            if reader.read_buf(sealed).await? == 0 {
                return Ok(0);
            }
        }
    }

    /// Opens all whole records; says how many bytes were in them. `None`: the other side said the
    /// end.
    fn open(&self, sealed: &mut BytesMut, opened: &mut BytesMut) -> io::Result<Option<usize>> {
        let (mut session, before) = (self.0.borrow_mut(), opened.len());
        loop {
            let mut reader = session.reader();
            loop {
                match reader.fill_buf() {
                    Ok([]) if opened.len() == before => return Ok(None),
                    Ok([]) => return Ok(Some(opened.len() - before)),
                    Ok(bytes) => {
                        opened.extend_from_slice(bytes);
                        let count = bytes.len();
                        reader.consume(count);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if sealed.is_empty() {
                return Ok(Some(opened.len() - before));
            }
            let count = session.read_tls(&mut &sealed[..])?;
            if count == 0 {
                return Err(io::Error::new(ErrorKind::InvalidData, "a record has no end"));
            }
            sealed.advance(count);
            session.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::encryption::{LinkFiles, LinkTls, Wire};
    use crate::tls::PemFile;
    use std::path::Path;

    fn certificates(folder: &Path) -> LinkTls {
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let key = rcgen::KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate");
        let path = |name: &str| folder.join(name);
        std::fs::write(path("node.pem"), own.pem()).expect("written");
        std::fs::write(path("node.key"), key.serialize_pem()).expect("written");
        let file = |setting, name| PemFile::new(setting, path(name));
        let files = LinkFiles {
            authorities: file("cluster_tls_ca", "node.pem"),
            certificate: file("cluster_tls_certificate", "node.pem"),
            key: file("cluster_tls_key", "node.key"),
        };
        LinkTls::load(files).expect("they fit")
    }

    #[test]
    fn what_is_sealed_comes_out_in_order_wherever_the_socket_stops() {
        let folder = tempfile::tempdir().expect("a folder");
        let tls = certificates(folder.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = format!("localhost:{}", listener.local_addr().expect("it listens").port());
            let connector = async {
                let stream = TcpStream::connect(&address).await.expect("it listens");
                Wire::connect(Some(&tls), stream, &address).await.expect("they believe each other")
            };
            let acceptor = async {
                let (stream, _) = listener.accept().await.expect("somebody connects");
                Wire::accept(Some(&tls), stream).await.expect("they believe each other")
            };
            let (one, other) = tokio::join!(connector, acceptor);
            let part = |wire: Wire| {
                let (stream, session) = wire.into_parts().expect("a socket");
                let stream = TcpStream::from_std(stream).expect("a socket");
                (stream, Sealed::new(session.expect("it is encrypted")))
            };
            let ((out, sealer), (into, opener)) = (part(one), part(other));
            let (mut reader, _writer) = into.into_split();
            // More than sockets and sealed bytes hold.
            let sent: Vec<u8> = (0..8_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let write = async {
                let mut rest = &sent[..];
                let mut waits = 0;
                while !rest.is_empty() {
                    let (first, second) = rest.split_at(rest.len().min(7_001));
                    let second = &second[..second.len().min(90_001)];
                    match sealer.try_write_vectored(&out, &[IoSlice::new(first), IoSlice::new(second)]) {
                        Ok(count) => rest = &rest[count..],
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            waits += 1;
                            out.writable().await.expect("it lives");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                while sealer.flush(&out).is_err() {
                    out.writable().await.expect("it lives");
                }
                waits
            };
            let read = async {
                let (mut sealed, mut opened) = (BytesMut::new(), BytesMut::new());
                while opened.len() < sent.len() {
                    let count = opener.read(&mut reader, &mut sealed, 64 << 10, &mut opened).await.expect("sound");
                    assert!(count > 0, "it ends early");
                }
                opened
            };
            let (waits, opened) = tokio::join!(write, read);
            assert!(waits > 0, "the socket was full once");
            assert!(opened[..] == sent[..], "all of it came, in order");
        });
    }
}
