//! Where the node is: the file with the operator's token in its data folder, or an address that was
//! given.
//!
//! Invariant: nothing is asked of a node that is not the one meant. A file that cannot be used says
//! why, and what to do.

use crate::failure::{Failure, UNAVAILABLE};
use crate::options::Options;
use crate::trust::Trust;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What the server writes for us.
const FILE_NAME: &str = "operator.json";
/// Where the server keeps its data unless it is told otherwise, and where a package puts them.
const FOLDERS: [&str; 2] = ["data", "/var/lib/leveret"];
/// What names the folder to the server too.
const FOLDER_VARIABLE: &str = "LEVERET_DATA_DIR";
/// What names the node to RabbitMQ's tools.
const NODE_VARIABLE: &str = "RABBITMQ_NODENAME";
/// The file is a few lines.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A node that may be asked.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The scheme, the host and the port.
    pub(crate) url: String,
    /// What goes into the header that says who asks.
    pub(crate) login: Login,
    /// The node's name, where the file told it.
    pub(crate) node: Option<String>,
    /// Its process, where the file told it.
    pub(crate) pid: Option<u32>,
    /// The file.
    pub(crate) file: Option<PathBuf>,
    /// Whom to believe over HTTPS.
    pub(crate) trust: Trust,
}

/// Who asks.
#[derive(Clone)]
pub(crate) enum Login {
    Token(String),
    User(String, String),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Login::Token(_) => "Token",
            Login::User(..) => "User",
        })
    }
}

/// The node that is asked for, by name, if one is.
pub(crate) fn wanted_node(options: &Options) -> Option<String> {
    let said = options.text("node").map(str::to_owned);
    said.or_else(|| std::env::var(NODE_VARIABLE).ok().filter(|name| !name.is_empty()))
}

/// Which node is meant, in words, whether it is there or not: by its name, or by its folder where nobody says its name.
pub(crate) fn meant(options: &Options) -> String {
    let found = || find_file(options).ok().and_then(|place| place.node);
    match wanted_node(options).or_else(found) {
        Some(node) => format!("node {node}"),
        None => {
            let folders: Vec<String> = folders(options).iter().map(|folder| folder.display().to_string()).collect();
            format!("the node with the data folder {}", folders.join(" or "))
        }
    }
}

/// The folders in which the node is looked for.
fn folders(options: &Options) -> Vec<PathBuf> {
    let named = options.text("data-dir").map(PathBuf::from);
    let named = named.or_else(|| std::env::var_os(FOLDER_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from));
    named.map_or_else(|| FOLDERS.map(PathBuf::from).to_vec(), |folder| vec![folder])
}

/// Finds the node. Errors: it is not here, or may not be asked.
pub(crate) fn find(options: &Options) -> Result<Place, Failure> {
    let user = options.text("username").map(str::to_owned);
    if let Some(url) = options.text("url") {
        let Some(user) = user else {
            return Err(Failure::argument(
                crate::failure::USAGE,
                "--url needs --username: a token is for this machine",
            ));
        };
        let login = Login::User(user, password(options)?);
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let text = "--url is http://HOST:PORT or https://HOST:PORT";
            return Err(Failure::argument(crate::failure::USAGE, text));
        }
        let file = |name| options.text(name).map(PathBuf::from);
        let trust = Trust {
            authorities: file("ssl-ca-cert-file"),
            certificate: file("ssl-cert-file"),
            key: file("ssl-key-file"),
            anything: options.flag("ssl-insecure"),
        };
        return Ok(Place { url, login, node: wanted_node(options), pid: None, file: None, trust });
    }
    let mut place = find_file(options)?;
    if let Some(user) = user {
        place.login = Login::User(user, password(options)?);
    }
    Ok(place)
}

fn password(options: &Options) -> Result<String, Failure> {
    match options.text("password") {
        Some(password) => Ok(password.to_owned()),
        None => crate::password::ask(),
    }
}

fn find_file(options: &Options) -> Result<Place, Failure> {
    let folders = folders(options);
    let wanted = wanted_node(options);
    let mut others = Vec::new();
    for folder in &folders {
        let path = folder.join(FILE_NAME);
        let Some(told) = read(&path)? else { continue };
        let node = told["node"].as_str().unwrap_or_default();
        if wanted.as_deref().is_some_and(|wanted| !is_called(node, wanted)) {
            others.push(format!("{} is of {node}", folder.display()));
            continue;
        }
        return place(&path, &told);
    }
    let looked: Vec<String> = folders.iter().map(|folder| folder.join(FILE_NAME).display().to_string()).collect();
    let what = match others.is_empty() {
        true => format!("no node runs on {}: there is no file {}", here(), looked.join(" and no ")),
        false => others.join(", "),
    };
    let is_by_variable = options.text("node").is_none() && !others.is_empty();
    let advice = match is_by_variable {
        true => {
            let node = wanted.as_deref().unwrap_or_default();
            format!("{NODE_VARIABLE} asks for {node}: unset it, or name the node with -n")
        }
        false => "name its data folder by --data-dir or LEVERET_DATA_DIR, or start it: leveret server".to_owned(),
    };
    Err(unable(wanted.as_deref(), &what, &advice))
}

fn here() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A name without a host is one on this machine.
fn is_called(node: &str, wanted: &str) -> bool {
    node == wanted || !wanted.contains('@') && node.split_once('@').is_some_and(|(name, _)| name == wanted)
}

fn read(path: &Path) -> Result<Option<Value>, Failure> {
    use std::io::Read as _;
    let unusable = |why: &str| unable(None, &format!("{}: {why}", path.display()), "start it anew, or use --username");
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let why = format!("{} cannot be read", path.display());
            return Err(unable(None, &why, "run this as the user that the server runs as, or as root"));
        }
        Err(error) => return Err(unusable(&error.to_string())),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| unusable(&error.to_string()))?;
    serde_json::from_str(&text).map(Some).map_err(|_| unusable("it is damaged"))
}

fn place(path: &Path, told: &Value) -> Result<Place, Failure> {
    let node = told["node"].as_str().unwrap_or_default().to_owned();
    let (Some(url), Some(token)) = (told["url"].as_str(), told["token"].as_str()) else {
        let why = told["why"].as_str().unwrap_or("it has no token");
        return Err(unable(Some(&node), &format!("{node} cannot be asked"), why));
    };
    Ok(Place {
        url: url.to_owned(),
        login: Login::Token(token.to_owned()),
        node: Some(node),
        pid: told["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()),
        file: Some(path.to_owned()),
        trust: Trust { anything: true, ..Trust::default() },
    })
}

/// What is said of a node that cannot be asked; `None` where nobody knows which one it is.
pub(crate) fn unable(node: Option<&str>, why: &str, what_to_do: &str) -> Failure {
    let node = node.map_or_else(|| "the node".to_owned(), |name| format!("node '{name}'"));
    let text = format!(
        "Error: unable to perform an operation on {node}. Please see diagnostics information and suggestions \
         below.\n\nDIAGNOSTICS\n===========\n\n  * {why}\n  * suggestion: {what_to_do}\n"
    );
    Failure::plain(UNAVAILABLE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_meant_by_its_whole_name_or_by_what_stands_before_the_host() {
        assert!(is_called("rabbit@box", "rabbit@box") && is_called("rabbit@box", "rabbit"));
        assert!(!is_called("rabbit@box", "rabbit@other") && !is_called("rabbit@box", "hare"));
    }
}
