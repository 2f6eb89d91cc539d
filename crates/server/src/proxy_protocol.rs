//! The PROXY protocol, versions 1 and 2: a proxy's first bytes, which say whose connection it
//! passes on.
//!
//! Invariant: never a byte more is read than the header has, because what follows is the client's,
//! and perhaps TLS.
//!
//! ```text
//! version 1: "PROXY TCP4 192.0.2.1 198.51.100.1 56324 5672\r\n", or TCP6, or UNKNOWN and anything; at most 107 bytes
//! version 2: 12 bytes signature | 0x20 LOCAL or 0x21 PROXY | family and transport | u16 length | addresses, then more
//! ```
//! Source: the PROXY protocol's specification, sections 2.1 and 2.2.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of the longest header of version 1, line end included.
const LINE_BYTES_MAX: usize = 107;
/// Bytes behind the fixed part of a version 2 header: addresses and what proxies add to them.
const EXTENSION_BYTES_MAX: usize = 4096;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Reads a header. `None`: the proxy speaks for itself (a health check) or does not know whose
/// connection it is. Errors: the socket's, or `InvalidData` for anything that is no header.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    // No header of either version is shorter than this.
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == *SIGNATURE {
        return read_binary(stream).await;
    }
    if !start.starts_with(b"PROXY ") {
        return Err(invalid("no PROXY header"));
    }
    let mut line = start.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= LINE_BYTES_MAX {
            return Err(invalid("a PROXY header without an end"));
        }
        line.push(stream.read_u8().await?);
    }
    let line = std::str::from_utf8(&line).map_err(|_| invalid("a PROXY header that is no text"))?;
    parse_line(line.trim_end()).ok_or_else(|| invalid("a PROXY header that cannot be understood"))
}

/// `None`: not understood.
fn parse_line(line: &str) -> Option<Option<SocketAddr>> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => Some(None),
        ["PROXY", family @ ("TCP4" | "TCP6"), source, _, port, _] => {
            let source: IpAddr = source.parse().ok()?;
            let fits = source.is_ipv4() == (*family == "TCP4");
            fits.then_some(Some(SocketAddr::new(source, port.parse().ok()?)))
        }
        _ => None,
    }
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut fixed = [0; 4];
    stream.read_exact(&mut fixed).await?;
    let [command, family, high, low] = fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > EXTENSION_BYTES_MAX {
        return Err(invalid("a PROXY header that is too long"));
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    match (command, family) {
        (0x20, _) => Ok(None),
        (0x21, 0x11) if length >= 12 => {
            let source: [u8; 4] = rest[..4].try_into().expect("four bytes");
            Ok(Some(SocketAddr::new(Ipv4Addr::from(source).into(), u16::from_be_bytes([rest[8], rest[9]]))))
        }
        (0x21, 0x21) if length >= 36 => {
            let source: [u8; 16] = rest[..16].try_into().expect("sixteen bytes");
            Ok(Some(SocketAddr::new(Ipv6Addr::from(source).into(), u16::from_be_bytes([rest[32], rest[33]]))))
        }
        // A family without addresses that mean something here (AF_UNSPEC, UNIX), which is to be
        // taken as unknown.
        (0x21, 0x00 | 0x31 | 0x32) => Ok(None),
        _ => Err(invalid("a PROXY header of another version, or for no TCP connection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a header says, and how many bytes are left behind it.
    fn of(bytes: &[u8]) -> io::Result<(Option<SocketAddr>, usize)> {
        let mut stream = bytes;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let source = runtime.block_on(read(&mut stream))?;
        Ok((source, stream.len()))
    }

    fn address(text: &str) -> Option<SocketAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn the_line_of_version_1_names_the_source_and_leaves_what_follows() {
        let ok = |bytes: &[u8]| of(bytes).expect("it is a header");
        assert_eq!(ok(b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 5672\r\nAMQP"), (address("192.0.2.1:56324"), 4));
        assert_eq!(ok(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n"), (address("[2001:db8::1]:1"), 0));
        assert_eq!(ok(b"PROXY UNKNOWN\r\nAMQP\0\0\x09\x01"), (None, 8));
    }

    #[test]
    fn the_bytes_of_version_2_name_the_source_and_leave_what_follows() {
        let header = |command: u8, family: u8, rest: &[u8]| {
            let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
            [&SIGNATURE[..], &[command, family], &length, rest, b"AMQP"].concat()
        };
        let four = [192, 0, 2, 1, 10, 0, 0, 1, 0xdc, 0x04, 0x16, 0x28, 3, 0, 1, 9];
        assert_eq!(of(&header(0x21, 0x11, &four)).expect("a header"), (address("192.0.2.1:56324"), 4));
        let mut six = [0; 36];
        six[15] = 1;
        six[33] = 7;
        assert_eq!(of(&header(0x21, 0x21, &six)).expect("a header"), (address("[::1]:7"), 4));
        assert_eq!(of(&header(0x20, 0x00, &[])).expect("a header"), (None, 4));
        assert!(of(&header(0x21, 0x11, &four[..8])).is_err());
        assert!(of(&header(0x31, 0x11, &four)).is_err());
        assert!(of(&header(0x21, 0x11, &[0; EXTENSION_BYTES_MAX + 1])).is_err());
    }

    #[test]
    fn anything_else_is_an_error_and_reading_it_ends() {
        for wrong in [
            &b"AMQP\0\0\x09\x01AMQPAMQP"[..],
            b"PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 x 5672\r\n",
            b"PROXY",
            &[&b"PROXY "[..], &[b'x'; 200]].concat(),
        ] {
            assert!(of(wrong).is_err(), "{:?}", wrong.escape_ascii().to_string());
        }
    }
}
