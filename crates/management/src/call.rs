//! One request: its path in parts, its query.

use crate::answer::Refused;
use crate::encryption::Served;
use crate::fields::cut;
use crate::metrics::Pages;
use crate::operator::Operator;
use crate::page_session::Sessions;
use crate::permits::Permit;
use crate::site;
use crate::statistics::Statistics;
use crate::unsent::Answers;
use crate::waiting::Asking;
use hyper::http::request::Parts;
use percent_encoding::percent_decode;
use server::Handle;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::sync::Semaphore;

/// A request without its body, and the node it is about.
pub(crate) struct Call<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) peer: SocketAddr,
    pub(crate) handle: &'a Handle,
    /// Where HTTP is served.
    pub(crate) served: &'a [Served],
    /// Where metrics are served alone.
    pub(crate) scraped: &'a [SocketAddr],
    /// The connection's.
    pub(crate) permit: &'a Permit,
    /// Its place among the requests under way.
    pub(crate) asking: &'a Asking,
    /// Whether somebody waits for the answer.
    pub(crate) asker: &'a Asker,
    /// The turns for messages over HTTP.
    pub(crate) messages: &'a Semaphore,
    /// Who has a long answer made.
    pub(crate) answers: &'a Answers,
    /// What is kept for who runs this machine.
    pub(crate) operator: &'a Operator,
    /// Who is logged in on the page.
    pub(crate) sessions: &'a Sessions,
    /// Metrics that were made a moment ago.
    pub(crate) pages: &'a Rc<Pages>,
    /// Rates and histories.
    pub(crate) statistics: &'a Rc<Statistics>,
    /// What the log was told last of why this node waits before it leaves its cluster.
    pub(crate) leave_waits: &'a RefCell<Option<String>>,
    /// While a list is sorted: the only columns that are looked at.
    pub(crate) narrow: RefCell<Option<String>>,
}

/// Whether somebody waits for an answer. A request that changes something goes on without.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    gone: Cell<bool>,
}

impl Asker {
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

/// Held by the connection as long as it waits for the answer.
#[derive(Debug)]
pub(crate) struct Listener(pub(crate) Rc<Asker>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.gone.set(true);
    }
}

/// Whether metrics are asked for, which need no name.
pub(crate) fn is_metrics(head: &Parts) -> bool {
    let path = head.uri.path();
    path == "/metrics" || path.starts_with("/metrics/")
}

impl Call<'_> {
    /// Where HTTP is served without encryption.
    pub(crate) fn http(&self) -> impl Iterator<Item = SocketAddr> {
        self.served.iter().filter(|served| !served.is_tls).map(|served| served.address)
    }

    /// Where HTTPS is served.
    pub(crate) fn https(&self) -> impl Iterator<Item = SocketAddr> {
        self.served.iter().filter(|served| served.is_tls).map(|served| served.address)
    }

    /// Whether the path has a `%` that no two hexadecimal digits follow.
    pub(crate) fn has_broken_escape(&self) -> bool {
        let mut escapes = self.head.uri.path().split('%').skip(1).map(str::as_bytes);
        escapes.any(|rest| !matches!(rest, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()))
    }

    /// The parts of the path behind `/api`, decoded; `None` for another path. A slash at the end
    /// says nothing.
    pub(crate) fn parts(&self) -> Option<Vec<Vec<u8>>> {
        let rest = self.head.uri.path().strip_prefix("/api/")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        Some(rest.split('/').map(|part| percent_decode(part.as_bytes()).collect()).collect())
    }

    /// A parameter of the query, as it came.
    pub(crate) fn raw_query(&self, name: &str) -> Option<&str> {
        self.head.uri.query()?.split('&').find_map(|pair| match pair.split_once('=') {
            Some((key, value)) if key == name => Some(value),
            None if pair == name => Some(""),
            _ => None,
        })
    }

    /// A parameter of the query, decoded.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let found = self.raw_query(name)?;
        let spaced = found.replace('+', " ");
        Some(percent_decode(spaced.as_bytes()).decode_utf8_lossy().into_owned())
    }

    /// All values of a parameter that may be said several times, decoded.
    pub(crate) fn queries(&self, name: &str) -> impl Iterator<Item = String> {
        let pairs = self.head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(move |(key, _)| *key == name).map(|(_, value)| {
            let spaced = value.replace('+', " ");
            percent_decode(spaced.as_bytes()).decode_utf8_lossy().into_owned()
        })
    }

    /// Whether a column is looked at, or something in it: a list of thousands need not make what
    /// nobody is told.
    pub(crate) fn wants(&self, column: &str) -> bool {
        let columns = match &*self.narrow.borrow() {
            Some(narrow) => narrow.clone(),
            None => match self.query("columns").filter(|columns| !columns.is_empty()) {
                Some(columns) => format!("{columns},{}", self.query("sort").unwrap_or_default()),
                None => return true,
            },
        };
        columns.split(',').any(|wanted| wanted.split('.').next() == Some(column))
    }

    /// Whether a parameter of the query says yes.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.query(name).is_some_and(|value| value == "true")
    }

    /// The conditions on which something is deleted, which are `if-...` in the query. Errors: 400 for one that is not known
    /// or neither true nor false, as nothing is deleted by a mistyped one.
    pub(crate) fn conditions<const N: usize>(&self, known: [&str; N]) -> Result<[bool; N], Refused> {
        let mut found = [false; N];
        for pair in self.head.uri.query().unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !name.get(..2).is_some_and(|two| two.eq_ignore_ascii_case("if")) {
                continue;
            }
            let at = known.iter().position(|known| *known == name).ok_or_else(|| {
                let hint = server::config::nearest(name, known).unwrap_or(known[0]);
                Refused::BadRequest(format!("unknown condition {}; did you mean {hint}?", cut(name)))
            })?;
            found[at] = match value {
                "true" => true,
                "false" => false,
                _ => return Err(Refused::BadRequest(format!("{name} is neither true nor false"))),
            };
        }
        Ok(found)
    }

    /// Whether a page of another site asks, in the browser of somebody who is logged in here.
    pub(crate) fn is_of_another_site(&self) -> bool {
        site::is_another(&self.head.headers, self.head.uri.authority().map(|authority| authority.as_str()))
    }

    /// A header, as it came.
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.headers.get(name).map(|value| value.as_bytes())
    }
}
