//! HTTPS: the handshake before the first request, and what is said to who speaks HTTP at such a port.
//!
//! Invariant: a handshake has its time, within that of a first head, and nothing is answered without
//! encryption at a port that has it but where to go instead.

use hyper::header::HeaderValue;
use hyper::{HeaderMap, header};
use rustls::ServerConfig;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What a TLS record of a handshake begins with. No method of HTTP does.
const HANDSHAKE_RECORD: u8 = 22;
/// What is looked at of a request that comes without encryption.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// An address that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
}

/// A connection past its handshake. `None`: it is none, and was told so.
pub(crate) async fn begin(
    mut stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
        turn_away(&mut stream).await?;
        return Ok(None);
    }
    TlsAcceptor::from(config).accept(stream).await.map(Some)
}

/// Says where to go to who speaks HTTP here. A browser is sent there; a request with a password, or
/// one that changes something, is refused, so that whoever wrote it notices.
async fn turn_away(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    stream.write_all(elsewhere(&String::from_utf8_lossy(&head)).as_bytes()).await
}

/// What is answered to this head.
fn elsewhere(head: &str) -> String {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let value = |name: &str| {
        let header = |line: &str| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        lines.clone().find_map(header)
    };
    let is_host = |host: &String| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    let host = value("host").filter(is_host).filter(|_| is_path && value("authorization").is_none());
    let (status, location, text) = match host {
        Some(host) if matches!(method, "GET" | "HEAD") => {
            ("301 Moved Permanently", format!("location: https://{host}{path}\r\n"), "this is https\n")
        }
        _ => ("400 Bad Request", String::new(), "this port speaks HTTPS: begin the URL with https://\n"),
    };
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\n{location}content-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
    )
}

/// Has browsers keep to HTTPS: cookies go by nothing else, and nothing at all for so long, if that is
/// wanted.
pub(crate) fn secure(headers: &mut HeaderMap, seconds: u64) {
    let cookie = headers.get(header::SET_COOKIE).and_then(|value| value.to_str().ok());
    if let Some(Ok(cookie)) = cookie.map(|cookie| HeaderValue::from_str(&format!("{cookie}; Secure"))) {
        headers.insert(header::SET_COOKIE, cookie);
    }
    if seconds > 0
        && let Ok(value) = HeaderValue::from_str(&format!("max-age={seconds}"))
    {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_sent_to_https_and_who_shows_a_password_is_refused() {
        let sent = elsewhere("GET /api/overview?a=b HTTP/1.1\r\nHost: broker:15671\r\n\r\n");
        assert!(
            sent.starts_with("HTTP/1.1 301 ") && sent.contains("location: https://broker:15671/api/overview?a=b\r\n")
        );
        for head in [
            "GET / HTTP/1.1\r\nHost: broker:15671\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n",
            "PUT /api/users/x HTTP/1.1\r\nHost: broker:15671\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET http://elsewhere/ HTTP/1.1\r\nHost: broker\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "AMQP\0\0\u{9}\u{1}",
            "",
        ] {
            assert!(elsewhere(head).starts_with("HTTP/1.1 400 "), "{head:?}");
        }
    }
}
