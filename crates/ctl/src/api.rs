//! The management API of a node, asked over HTTP.
//!
//! Invariant: an answer is the node's or a failure that says why there is none. Nothing is asked
//! twice: whether a change was made whose answer did not come, nobody here knows, and that is said.

use crate::failure::{Failure, TOO_LATE, UNAVAILABLE};
use crate::place::{Login, Place, unable};
use base64::Engine as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::time::{Duration, Instant};
use ureq::http::Request;
use ureq::{Agent, Error};

/// The longest answer that is read: lists of a hundred thousand queues have some tens of MB.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// How long a connection to a machine may take that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What stands for something else in a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~');

/// A node to ask.
#[derive(Debug)]
pub(crate) struct Api {
    agent: Agent,
    pub(crate) place: Place,
    operation: String,
    timeout: Option<Duration>,
    until: Option<Instant>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    /// Whether it is a yes.
    pub(crate) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// As JSON; nothing is null.
    pub(crate) fn json(&self) -> Value {
        json_once::value(self.body.as_bytes()).unwrap_or(Value::Null)
    }

    /// Why it is a no, in the node's words.
    pub(crate) fn reason(&self) -> String {
        let json = self.json();
        match &json["reason"] {
            Value::String(reason) => reason.clone(),
            Value::Null => format!("the node answers with status {}", self.status),
            other => other.to_string(),
        }
    }

    /// What a node that is on its way up says of that.
    pub(crate) fn booting(&self) -> Option<String> {
        (self.status == 503 && self.json()["booting"] == true).then(|| self.reason())
    }

    /// What it says, if it is a yes. Errors: what the node says otherwise.
    pub(crate) fn good(self) -> Result<Value, Failure> {
        if self.is_good() { Ok(self.json()) } else { Err(Failure::refused(self.reason())) }
    }

    /// The same where 404 is nothing.
    pub(crate) fn good_or_none(self) -> Result<Option<Value>, Failure> {
        if self.status == 404 { Ok(None) } else { self.good().map(Some) }
    }
}

/// A path of the API: its parts are names, whatever is in them.
pub(crate) fn path(parts: &[&str]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| utf8_percent_encode(part, ESCAPED).to_string()).collect();
    parts.join("/")
}

impl Api {
    /// `timeout` is for all that is asked together.
    /// Errors: the files that are to be believed are of no use.
    pub(crate) fn new(place: Place, operation: &str, timeout: Option<Duration>) -> Result<Api, Failure> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // The node is on this machine, whatever proxies the environment names for others.
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .user_agent(concat!("leveret-ctl/", env!("CARGO_PKG_VERSION")))
            .allow_non_standard_methods(true);
        if place.url.starts_with("https://") {
            config = config.tls_config(place.trust.config()?);
        }
        let until = timeout.map(|timeout| Instant::now() + timeout);
        Ok(Api { agent: config.build().into(), place, operation: operation.to_owned(), timeout, until })
    }

    /// The node's name in messages.
    pub(crate) fn node_shown(&self) -> &str {
        self.place.node.as_deref().unwrap_or(&self.place.url)
    }

    /// GET.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.ask("GET", path, None, &[])
    }

    /// PUT of JSON.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        self.ask("PUT", path, Some(body.to_string()), &[])
    }

    /// POST of JSON.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Answer, Failure> {
        self.ask("POST", path, Some(body.to_string()), &[])
    }

    /// DELETE.
    pub(crate) fn delete(&self, path: &str) -> Result<Answer, Failure> {
        self.ask("DELETE", path, None, &[])
    }

    /// Anything, with these headers.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
        headers: &[(&str, &str)],
    ) -> Result<Answer, Failure> {
        let answer = self.ask_as(&self.place.login, method, path, body, headers)?;
        if answer.status == 401 && matches!(self.place.login, Login::Token(_)) {
            let file = self.place.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
            // A token opens everything, so a no to it is one to the token, but for the few things that need a user.
            if answer.body.contains("\"Login failed\"") {
                let why =
                    format!("{file} is of a server that has ended, and another one answers at {}", self.place.url);
                return Err(unable(
                    Some(self.node_shown()),
                    &why,
                    "name the data folder of the one that runs by --data-dir",
                ));
            }
        }
        if answer.status == 401 && answer.body.contains("\"Login failed\"") {
            return Err(Failure::error(UNAVAILABLE, "Login failed: the name or the password is wrong"));
        }
        Ok(answer)
    }

    /// The same in somebody else's name.
    pub(crate) fn ask_as(
        &self,
        login: &Login,
        method: &str,
        path: &str,
        body: Option<String>,
        headers: &[(&str, &str)],
    ) -> Result<Answer, Failure> {
        let authorization = match login {
            Login::Token(token) => format!("Bearer {token}"),
            Login::User(name, password) => {
                format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}")))
            }
        };
        let left = match self.until {
            Some(until) => match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Err(self.too_late()),
                left => Some(left),
            },
            None => None,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/api/{path}", self.place.url))
            .header("authorization", authorization);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let wrong = |error: String| Failure::refused(format!("the request cannot be made: {error}"));
        let request = request.body(body.unwrap_or_default()).map_err(|error| wrong(error.to_string()))?;
        let request = self.agent.configure_request(request).timeout_global(left).build();
        let mut response = self.agent.run(request).map_err(|error| self.failed(error, method))?;
        let status = response.status().as_u16();
        let reading = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).lossy_utf8(true);
        let body = reading.read_to_string().map_err(|error| self.failed(error, method))?;
        Ok(Answer { status, body })
    }

    /// It took too long.
    pub(crate) fn too_late(&self) -> Failure {
        let text = format!(
            "Error: operation {} on node {} timed out. Timeout value used: {}",
            self.operation,
            self.node_shown(),
            self.timeout.unwrap_or_default().as_millis()
        );
        Failure::plain(TOO_LATE, text)
    }

    fn failed(&self, error: Error, method: &str) -> Failure {
        if matches!(error, Error::Timeout(_))
            && self.until.is_some_and(|until| until <= Instant::now() + Duration::from_millis(20))
        {
            return self.too_late();
        }
        let is_refused = matches!(&error, Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused)
            || matches!(error, Error::ConnectionFailed);
        let why = match (&self.place.file, is_refused) {
            (Some(file), true) => format!(
                "nothing answers at {}: the server that wrote {} has ended without removing it",
                self.place.url,
                file.display()
            ),
            (_, _) => format!("{}: {error}", self.place.url),
        };
        let is_tls = matches!(&error, Error::Rustls(_) | Error::Tls(_))
            || matches!(&error, Error::Io(io) if io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()));
        let what_to_do = match (is_refused, method) {
            _ if is_tls => "name the host as its certificate does, and a file with its authority by --ssl-ca-cert-file",
            (true, _) | (false, "GET") => "start the node, or wait until it has started: leveret ctl await_startup",
            _ => "look whether the change was made: the node may have ended before it could answer",
        };
        unable(Some(self.node_shown()), &why, what_to_do)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_are_names_whatever_is_in_them() {
        assert_eq!(path(&["queues", "/", "a b/ü?"]), "queues/%2F/a%20b%2F%C3%BC%3F");
    }

    #[test]
    fn a_node_on_its_way_up_is_told_from_one_that_does_not_serve_something() {
        let of = |body: &str| Answer { status: 503, body: body.to_owned() }.booting();
        assert_eq!(of(r#"{"reason":"it waits for n2","booting":true}"#).as_deref(), Some("it waits for n2"));
        assert_eq!(of(r#"{"reason":"no"}"#), None);
    }

    #[test]
    fn a_refusal_is_told_in_the_nodes_words() {
        let of = |body: &str| Answer { status: 400, body: body.to_owned() }.reason();
        assert_eq!(of(r#"{"error":"bad_request","reason":"no"}"#), "no");
        assert_eq!(of(r#"{"reason":["a",1]}"#), r#"["a",1]"#);
        assert_eq!(of("<html>"), "the node answers with status 400");
    }
}
