//! How long requests are, by what they say themselves: a second look beside hyper's.
//!
//! A request with both Content-Length and Transfer-Encoding is cut elsewhere by a proxy in front than
//! here, and what one of the two takes for its body is a request to the other. hyper takes the second
//! and forgets the first, so it is looked for in the bytes as they come. A connection over which a
//! request with Transfer-Encoding came takes no further one, so that here a body is as long as its
//! Content-Length says.
//!
//! Nor is a body looked at that is in an encoding which nobody here undoes: what is in the clear though it says
//! otherwise would be taken by us and not by the next.
//!
//! Invariant: at most [`LINE_BYTES_MAX`] bytes are kept of a line, and nothing of a body.

use crate::answer::{Answer, Refused};
use hyper::StatusCode;
use hyper::header::{CONNECTION, CONTENT_ENCODING, EXPECT, HOST, HeaderName, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use std::cell::Cell;
use std::rc::Rc;

/// What is kept of a line: more than the names and numbers take that are looked for.
const LINE_BYTES_MAX: usize = 64;

/// Where in the bytes of a connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Head,
    /// So much of a body is left.
    Body(u64),
    /// No further request is taken.
    Over,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Framing {
    at: At,
    /// The beginning of the line that has begun, and the length of all of it.
    line: Vec<u8>,
    line_bytes: usize,
    /// Of the head that has begun.
    lines: u64,
    length: Option<u64>,
    has_encoding: bool,
    /// A request says twice how long it is.
    says_two: Rc<Cell<bool>>,
}

impl Framing {
    /// Of a new connection. What it finds is told by `says_two`.
    pub(crate) fn new(says_two: Rc<Cell<bool>>) -> Framing {
        let (line, line_bytes, lines) = (Vec::new(), 0, 0);
        Framing { at: At::Head, line, line_bytes, lines, length: None, has_encoding: false, says_two }
    }

    /// These bytes came.
    pub(crate) fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.at {
                At::Over => return,
                At::Body(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[count..];
                    self.at = At::body(left - count as u64);
                }
                At::Head => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |at| at + 1));
                    let kept = part.len().min(LINE_BYTES_MAX - self.line.len());
                    self.line.extend_from_slice(&part[..kept]);
                    self.line_bytes += part.len();
                    if end.is_some() {
                        self.end_line();
                    }
                    bytes = rest;
                }
            }
        }
    }

    fn end_line(&mut self) {
        let is_whole = self.line_bytes == self.line.len();
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii_end();
        self.line_bytes = 0;
        match (line.is_empty() && is_whole, self.lines) {
            // Before a request there may be some.
            (true, 0) => {}
            (true, _) => self.end_head(),
            (false, 0) => self.lines = 1,
            (false, _) => {
                self.lines += 1;
                self.field(line, is_whole);
            }
        }
    }

    fn field(&mut self, line: &[u8], is_whole: bool) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.has_encoding = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            match number.filter(|_| is_whole) {
                Some(number) => self.length = Some(number),
                // hyper refuses it, or it is one that nobody writes who means well.
                None => self.refuse(),
            }
        }
    }

    fn end_head(&mut self) {
        let (length, has_encoding) = (self.length.take(), std::mem::take(&mut self.has_encoding));
        self.lines = 0;
        match (length, has_encoding) {
            (Some(_), true) => self.refuse(),
            (None, true) => self.at = At::Over,
            (length, false) if self.at == At::Head => self.at = At::body(length.unwrap_or(0)),
            _ => {}
        }
    }

    fn refuse(&mut self) {
        self.says_two.set(true);
        self.at = At::Over;
    }
}

impl At {
    fn body(left: u64) -> At {
        if left == 0 { At::Head } else { At::Body(left) }
    }
}

/// Why a request is not taken whoever sends it, if it is not.
pub(crate) fn objection(head: &Parts, has_body: bool, says_two: bool) -> Option<Refused> {
    let hosts = head.headers.get_all(HOST).iter().count();
    let wrong = |why: &str| Some(Refused::BadRequest(why.to_owned()));
    if says_two {
        return wrong("the request says twice how long it is: Content-Length and Transfer-Encoding");
    }
    match hosts {
        0 if head.version == hyper::Version::HTTP_11 && head.uri.authority().is_none() => {
            wrong("the request names no Host")
        }
        0 | 1 => not_done(head, has_body),
        _ => wrong("the request names more than one Host"),
    }
}

/// What a request asks for that is not done here.
fn not_done(head: &Parts, has_body: bool) -> Option<Refused> {
    let words = |name: HeaderName| {
        let values = head.headers.get_all(name).into_iter();
        let words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        words.filter(|word| !word.is_empty())
    };
    let other = |name: HeaderName, known: &str| words(name).any(|word| !word.eq_ignore_ascii_case(known.as_bytes()));
    let refused = |status, reason: &str| Some(Refused::NotDone(status, reason.to_owned()));
    // Chunks in chunks are undone once by us, and perhaps twice by the next.
    if other(TRANSFER_ENCODING, "chunked") || words(TRANSFER_ENCODING).count() > 1 {
        return refused(StatusCode::NOT_IMPLEMENTED, "of Transfer-Encoding there is chunked only, once");
    }
    if has_body && other(CONTENT_ENCODING, "identity") {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a body is taken without Content-Encoding only");
    }
    if other(EXPECT, "100-continue") {
        return refused(StatusCode::EXPECTATION_FAILED, "of Expect there is 100-continue only");
    }
    None
}

/// Whether nothing more is taken over a connection after this request.
pub(crate) fn is_last(head: &Parts) -> bool {
    head.headers.contains_key(TRANSFER_ENCODING)
}

/// An answer after which the connection ends.
pub(crate) fn last(answer: Answer) -> Answer {
    answer.with(CONNECTION, "close")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in these bytes, however they are cut.
    fn says_two(bytes: &str) -> bool {
        let found = |part: usize| {
            let told = Rc::new(Cell::new(false));
            let mut framing = Framing::new(told.clone());
            bytes.as_bytes().chunks(part).for_each(|chunk| framing.see(chunk));
            told.get()
        };
        let whole = found(bytes.len());
        assert!([1, 2, 7].iter().all(|part| found(*part) == whole), "{bytes}");
        whole
    }

    #[test]
    fn a_request_that_says_twice_how_long_it_is_is_found_wherever_it_stands() {
        let both = "PUT /x HTTP/1.1\r\nhost: a\r\nContent-Length: 3\r\nX: y\r\ntransfer-ENCODING: chunked\r\n\r\n";
        assert!(says_two(both));
        assert!(says_two("\r\nPUT / HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 3\n\n"), "bare line feeds");
        assert!(says_two(&format!("GET / HTTP/1.1\r\nhost: a\r\n\r\n{both}")), "behind another one");
        assert!(says_two(&format!("POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n12345{both}")), "behind a body");
        assert!(says_two(&format!("GET / HTTP/1.1\r\ncontent-length:{}5\r\n\r\n", " ".repeat(90))));
    }

    #[test]
    fn bodies_and_long_lines_are_no_heads() {
        let head = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(!says_two(&format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\nx\r\n{head}", head.len() + 3)));
        assert!(!says_two(&format!("GET / HTTP/1.1\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(5_000))));
        assert!(!says_two("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"));
        assert!(!says_two("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nContent-Length: 4\r\n\r\n1\n\n2"));
    }

    #[test]
    fn a_request_of_http_1_1_names_one_host() {
        let of = |version, hosts: &[&str]| {
            let mut request = hyper::Request::builder().uri("/api").version(version);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            objection(&request.body(()).expect("a request").into_parts().0, false, false).is_some()
        };
        use hyper::Version;
        assert_eq!(
            [of(Version::HTTP_11, &[]), of(Version::HTTP_11, &["a"]), of(Version::HTTP_10, &[])],
            [true, false, false]
        );
        assert!(of(Version::HTTP_11, &["a", "b"]));
    }

    #[test]
    fn what_nobody_here_undoes_is_refused_with_the_status_that_says_so() {
        let status = |name: HeaderName, value: &str, has_body| {
            let request = hyper::Request::builder().uri("/api").header(HOST, "a").header(name, value);
            match objection(&request.body(()).expect("a request").into_parts().0, has_body, false) {
                None => 200,
                Some(Refused::NotDone(status, _)) => status.as_u16(),
                Some(other) => panic!("{value}: {other:?}"),
            }
        };
        for coded in ["gzip", "identity, br", "x"] {
            assert_eq!([true, false].map(|has_body| status(CONTENT_ENCODING, coded, has_body)), [415, 200], "{coded}");
        }
        for coded in ["gzip, chunked", "identity, chunked", "gzip", "chunked, chunked", "chunked,Chunked"] {
            assert_eq!(status(TRANSFER_ENCODING, coded, true), 501, "{coded}");
        }
        assert_eq!([status(EXPECT, "200-maybe", true), status(EXPECT, "100-continue, x", false)], [417, 417]);
        for (name, value) in [
            (CONTENT_ENCODING, "Identity"),
            (CONTENT_ENCODING, ""),
            (TRANSFER_ENCODING, "Chunked"),
            (EXPECT, "100-Continue"),
        ] {
            assert_eq!(status(name, value, true), 200, "{value}");
        }
    }
}
