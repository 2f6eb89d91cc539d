//! How who runs this machine shows it: a token in a file of the data folder that only the server's
//! user can read. `leveret ctl` takes it from there and needs no password.
//!
//! ```text
//! operator.json        {"node": name, "pid": process id, "url": where the API is, "token": 32 hexadecimal digits}
//!                      url and token are null where no address of this machine serves the API;
//!                      then "why" says what to do
//! ```
//!
//! Invariant: a token is made at each start and dies with the process, so a copy of a data folder
//! opens nothing. It is in no log and in no answer.

use crate::encryption::Served;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file's name in the data folder.
const FILE_NAME: &str = "operator.json";
/// What it is called until it is written as a whole.
const FILE_NAME_NEW: &str = "operator.json.new";
/// For the server's user alone.
const FILE_MODE: u32 = 0o600;
/// How long the answer to who stops the node may take to go out before the end begins.
const ANSWER_FIRST: Duration = Duration::from_millis(50);

/// A secret of this process. It is not shown by `Debug`.
#[derive(Clone)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    #[cfg(test)]
    pub(crate) fn of_test(token: &str) -> Token {
        Token(token.to_owned())
    }

    /// Whether these are its bytes. It takes the same time wherever they differ.
    pub(crate) fn is(&self, named: &[u8]) -> bool {
        let own = self.0.as_bytes();
        own.len() == named.len() && own.iter().zip(named).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// The token and its file; the file goes with this.
#[derive(Debug)]
pub(crate) struct Operator {
    token: Option<Token>,
    path: PathBuf,
    is_written: Cell<bool>,
    is_stopping: Cell<bool>,
}

impl Operator {
    /// Writes the file of a node over that of an earlier start, with a token that is made of `secret`.
    /// Without a file nobody can name a token, so there is none.
    pub(crate) fn begin(folder: &Path, (node, secret): (&str, u128), served: &[Served]) -> Operator {
        let path = folder.join(FILE_NAME);
        let token = format!("{secret:032x}");
        let mut told = json!({ "node": node, "pid": std::process::id() });
        match url(served) {
            Some(url) => {
                told["url"] = Value::from(url);
                told["token"] = Value::from(token.as_str());
            }
            None => {
                told["url"] = Value::Null;
                told["token"] = Value::Null;
                told["why"] = Value::from(why_not(served));
            }
        }
        let is_served = !told["token"].is_null();
        match write(folder, &told) {
            Ok(()) => {
                let token = is_served.then_some(Token(token));
                Operator { token, path, is_written: Cell::new(true), is_stopping: Cell::new(false) }
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the operator's token cannot be written: leveret ctl needs --username and --password");
                Operator { token: None, path, is_written: Cell::new(false), is_stopping: Cell::new(false) }
            }
        }
    }

    /// The token, where one is told.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Whether this is the first time that the process is told to stop.
    pub(crate) fn stops_first(&self) -> bool {
        !self.is_stopping.replace(true)
    }

    /// Takes the file away, and nobody else's: where a start fails another process may have the folder
    /// by now.
    pub(crate) fn end(&self) {
        if self.is_written.replace(false) && self.is_own() {
            // What is left of it names a process that is gone, and opens nothing.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Whether the file is still the one that this process wrote.
    fn is_own(&self) -> bool {
        let told = std::fs::read(&self.path).ok();
        let told: Option<Value> = told.and_then(|text| serde_json::from_slice(&text).ok());
        let token = self.token.as_ref().map(|token| token.0.as_str());
        told.is_some_and(|told| told["pid"] == std::process::id() && told["token"].as_str() == token)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has this process end as by SIGTERM, once an answer had the time to go out.
pub(crate) fn stop_soon() {
    tokio::task::spawn_local(async {
        tokio::time::sleep(ANSWER_FIRST).await;
        let own = rustix::process::getpid();
        if let Err(error) = rustix::process::kill_process(own, rustix::process::Signal::TERM) {
            tracing::error!(%error, "the process cannot be told to stop");
        }
    });
}

/// Writes the file as a whole or not at all. It need not outlive a power loss.
fn write(folder: &Path, told: &Value) -> io::Result<()> {
    let new = folder.join(FILE_NAME_NEW);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // A new file and no other, so that nobody has it open who could not open it now.
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
    file.write_all(format!("{told}\n").as_bytes())?;
    std::fs::rename(&new, folder.join(FILE_NAME))
}

/// Where this machine reaches the API on an address of its own alone.
fn url(served: &[Served]) -> Option<String> {
    served.iter().find_map(|Served { address, is_tls }| {
        let address = match address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
            ip if ip.to_canonical().is_loopback() => *address,
            _ => return None,
        };
        let scheme = if *is_tls { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    })
}

fn why_not(served: &[Served]) -> &'static str {
    match served {
        [] => "it serves no management API: start it with --management 127.0.0.1:15672, or another port",
        _ => "its management API is on no loopback address: add 127.0.0.1:15672 to its --management",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = Token("0123456789abcdef".to_owned());
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdeg", b"0123456789abcdef0"] {
            assert!(!token.is(other), "{other:?}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn the_api_is_reached_on_a_loopback_address_or_not_at_all() {
        let of = |texts: &[&str]| {
            let served =
                |(at, text): (usize, &&str)| Served { address: text.parse().expect("an address"), is_tls: at == 2 };
            url(&texts.iter().enumerate().map(served).collect::<Vec<_>>())
        };
        assert_eq!(of(&["10.0.0.1:1", "127.0.0.2:2"]).as_deref(), Some("http://127.0.0.2:2"));
        assert_eq!(of(&["0.0.0.0:3"]).as_deref(), Some("http://127.0.0.1:3"));
        assert_eq!(of(&["[::]:4"]).as_deref(), Some("http://[::1]:4"));
        assert_eq!(of(&["10.0.0.1:1", "10.0.0.1:2", "[::]:3"]).as_deref(), Some("https://[::1]:3"));
        assert_eq!(of(&["10.0.0.1:1"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_file_of_another_process_stays_where_it_is() {
        let folder = std::env::temp_dir().join(format!("leveret-operator-other-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let served = [Served { address: "127.0.0.1:1".parse().expect("an address"), is_tls: false }];
        let (path, first) = (folder.join(FILE_NAME), Operator::begin(&folder, ("n1", 1), &served));
        // As by a process that has the folder since.
        let second = Operator::begin(&folder, ("n1", 2), &served);
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
        std::fs::remove_dir_all(&folder).expect("it goes");
    }

    #[test]
    fn the_file_is_for_its_owner_and_written_over_what_was_left() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("leveret-operator-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(FILE_NAME_NEW), "left by one that died").expect("a file");
        write(&folder, &json!({ "token": "1" })).expect("it is written");
        write(&folder, &json!({ "token": "2" })).expect("it is written again");
        let path = folder.join(FILE_NAME);
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "{\"token\":\"2\"}\n");
        assert_eq!(path.metadata().expect("it is there").permissions().mode() & 0o777, FILE_MODE);
        std::fs::remove_dir_all(&folder).expect("it goes");
    }
}
