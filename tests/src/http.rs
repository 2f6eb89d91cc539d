//! A blocking HTTP/1.1 client for the management API: one request a connection, answers as JSON.
//!
//! Environment: `MANAGEMENT` names the address of the API of the broker that `AMQP_URI` names.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::client::PATIENCE;

/// The API of one broker, in the name of one user.
#[derive(Clone, Debug)]
pub struct Http {
    addr: SocketAddr,
    user: String,
    password: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The head as it came, in lower case.
    pub head: String,
    /// The body as it came.
    pub text: String,
}

impl Response {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body as JSON, once the status is `status`.
    pub fn with(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.text.is_empty() { Value::Null } else { self.json() }
    }
}

impl Http {
    /// In the name of guest.
    pub fn new(addr: SocketAddr) -> Http {
        Http { addr, user: "guest".to_owned(), password: "guest".to_owned() }
    }

    /// In the name of somebody else.
    pub fn as_user(&self, user: &str, password: &str) -> Http {
        Http { addr: self.addr, user: user.to_owned(), password: password.to_owned() }
    }

    /// Where the API listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// GET.
    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    /// PUT of a JSON text.
    pub fn put(&self, path: &str, body: &str) -> Response {
        self.send("PUT", path, &[], body)
    }

    /// POST of a JSON text.
    pub fn post(&self, path: &str, body: &str) -> Response {
        self.send("POST", path, &[], body)
    }

    /// DELETE.
    pub fn delete(&self, path: &str) -> Response {
        self.send("DELETE", path, &[], "")
    }

    /// A request with more headers.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n");
        text += &format!("Authorization: Basic {}\r\n", base64(format!("{}:{}", self.user, self.password).as_bytes()));
        if method != "GET" {
            text += &format!("Content-Length: {}\r\n", body.len());
            if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                text += "Content-Type: application/json\r\n";
            }
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        text += body;
        self.raw(text.as_bytes())
    }

    /// Any bytes, and what comes back until the broker closes.
    pub fn raw(&self, bytes: &[u8]) -> Response {
        let mut socket = TcpStream::connect(self.addr).expect("the API listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        socket.write_all(bytes).expect("the API reads");
        let mut answer = Vec::new();
        // A reset after the answer is an end too.
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let head = head.to_lowercase();
        let text = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Response { status, head, text }
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    whole
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at > chunk.len() { '=' } else { letter as char });
        }
    }
    text
}
