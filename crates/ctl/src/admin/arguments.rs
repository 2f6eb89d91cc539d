//! The options of rabbitmqadmin, from the command line and from its configuration file.
//!
//! Invariant: the command line goes before the file, the file before what is usual.

use crate::trust::Trust;
use std::collections::HashMap;

/// What was said.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) ssl: bool,
    pub(super) trust: Trust,
    pub(super) path_prefix: String,
    pub(super) vhost: Option<String>,
    pub(super) declare_vhost: String,
    pub(super) username: String,
    pub(super) password: String,
    pub(super) quiet: bool,
    pub(super) timeout_s: u64,
    pub(super) format: String,
    pub(super) sort: Option<String>,
    pub(super) sort_reverse: bool,
    pub(super) depth: usize,
    pub(super) help: bool,
    pub(super) version: bool,
    pub(super) words: Vec<String>,
}

/// An option: its letter, its name, its name in the file, and whether a value comes with it.
const OPTIONS: &[(char, &str, &str, bool)] = &[
    ('c', "config", "config", true),
    ('N', "node", "node", true),
    ('H', "host", "hostname", true),
    ('P', "port", "port", true),
    ('\0', "path-prefix", "path_prefix", true),
    ('V', "vhost", "vhost", true),
    ('u', "username", "username", true),
    ('p', "password", "password", true),
    ('U', "base-uri", "base_uri", true),
    ('q', "quiet", "quiet", false),
    ('s', "ssl", "ssl", false),
    ('\0', "ssl-key-file", "ssl_key_file", true),
    ('\0', "ssl-cert-file", "ssl_cert_file", true),
    ('\0', "ssl-ca-cert-file", "ssl_ca_cert_file", true),
    ('\0', "ssl-disable-hostname-verification", "ssl_disable_hostname_verification", false),
    ('k', "ssl-insecure", "ssl_insecure", false),
    ('t', "request-timeout", "request_timeout", true),
    ('f', "format", "format", true),
    ('S', "sort", "sort", true),
    ('R', "sort-reverse", "sort_reverse", false),
    ('d', "depth", "depth", true),
    ('h', "help", "help", false),
    ('\0', "version", "version", false),
];

/// Reads the words. Errors: one line.
pub(super) fn read(words: &[String]) -> Result<Arguments, String> {
    let (mut said, rest) = options(words)?;
    if let Some(url) = said.get("base_uri").cloned() {
        for (name, value) in of_url(&url)? {
            said.entry(name).or_insert(value);
        }
    }
    let named = said.get("config").cloned();
    let usual = std::env::var_os("HOME").map(|home| std::path::Path::new(&home).join(".rabbitmqadmin.conf"));
    let section = said.get("node").map_or("default", String::as_str).to_owned();
    match (&named, usual.filter(|path| path.is_file())) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file).map_err(|_| format!("Could not read config file '{file}'"))?;
            add_section(&mut said, &text, file, &section)?;
        }
        (None, Some(file)) => {
            if let Ok(text) = std::fs::read_to_string(&file) {
                add_section(&mut said, &text, &file.display().to_string(), &section)?;
            }
        }
        (None, None) if section != "default" => {
            return Err(format!("there is no configuration file with a section '{section}': name it by --config"));
        }
        (None, None) => {}
    }
    let is_set = |name: &str| said.get(name).is_some_and(|value| value != "False" && value != "false");
    if is_set("ssl_disable_hostname_verification") {
        return Err("--ssl-disable-hostname-verification is not there: name the host as its certificate does by --host, or believe \
                    whatever answers by --ssl-insecure"
            .to_owned());
    }
    let file = |name: &str| said.get(name).map(std::path::PathBuf::from);
    let trust = Trust {
        authorities: file("ssl_ca_cert_file"),
        certificate: file("ssl_cert_file"),
        key: file("ssl_key_file"),
        anything: is_set("ssl_insecure"),
    };
    let text = |name: &str, default: &str| said.get(name).map_or_else(|| default.to_owned(), String::clone);
    let number = |name: &str, default: u64| match said.get(name) {
        None => Ok(default),
        Some(value) => {
            value.parse::<u64>().map_err(|_| format!("--{} is a number, not '{value}'", name.replace('_', "-")))
        }
    };
    Ok(Arguments {
        host: text("hostname", "localhost"),
        port: u16::try_from(number("port", 15_672)?).map_err(|_| "--port is below 65536".to_owned())?,
        ssl: is_set("ssl"),
        trust,
        path_prefix: text("path_prefix", ""),
        vhost: said.get("vhost").cloned(),
        declare_vhost: text("declare_vhost", "/"),
        username: text("username", "guest"),
        password: text("password", "guest"),
        quiet: is_set("quiet"),
        timeout_s: number("request_timeout", 120)?.max(1),
        format: text("format", "table"),
        sort: said.get("sort").cloned(),
        sort_reverse: is_set("sort_reverse"),
        depth: usize::try_from(number("depth", 1)?).unwrap_or(usize::MAX),
        help: is_set("help"),
        version: is_set("version"),
        words: rest,
    })
}

type Said = HashMap<String, String>;

/// Options may stand anywhere, letters may stand together, and a value may follow its letter at
/// once.
fn options(words: &[String]) -> Result<(Said, Vec<String>), String> {
    let (mut said, mut rest) = (Said::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.extend(words.by_ref().cloned());
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, inline) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let known = OPTIONS.iter().find(|(_, known, ..)| *known == name);
            let (_, _, key, takes) = known.ok_or_else(|| match name {
                "bash-completion" => {
                    "no such option: --bash-completion; `leveret completions bash` prints them".to_owned()
                }
                _ => format!("no such option: --{name}"),
            })?;
            let value = match (takes, inline) {
                (false, None) => "True".to_owned(),
                (false, Some(_)) => return Err(format!("--{name} option does not take a value")),
                (true, Some(value)) => value.to_owned(),
                (true, None) => words.next().cloned().ok_or_else(|| format!("--{name} option requires 1 argument"))?,
            };
            said.insert((*key).to_owned(), value);
        } else if word.len() > 1 && word.starts_with('-') {
            let mut letters = word[1..].chars();
            while let Some(letter) = letters.next() {
                let known = OPTIONS.iter().find(|(known, ..)| *known == letter);
                let (_, _, key, takes) = known.ok_or_else(|| format!("no such option: -{letter}"))?;
                if !takes {
                    said.insert((*key).to_owned(), "True".to_owned());
                    continue;
                }
                let value = match letters.as_str() {
                    "" => words.next().cloned().ok_or_else(|| format!("-{letter} option requires 1 argument"))?,
                    value => value.to_owned(),
                };
                said.insert((*key).to_owned(), value);
                break;
            }
        } else {
            rest.push(word.clone());
        }
    }
    Ok((said, rest))
}

/// Host, port, name and password out of `http://user:password@host:port`.
fn of_url(url: &str) -> Result<Vec<(String, String)>, String> {
    let (rest, is_tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, false),
        (_, Some(rest)) => (rest, true),
        _ => return Err("--base-uri is http://HOST:PORT or https://HOST:PORT".to_owned()),
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let mut found = Vec::new();
    if is_tls {
        found.push(("ssl".to_owned(), "True".to_owned()));
    }
    let (login, address) = authority.rsplit_once('@').map_or((None, authority), |(login, rest)| (Some(login), rest));
    if let Some(login) = login {
        let (user, password) = login.split_once(':').map_or((login, None), |(user, word)| (user, Some(word)));
        found.push(("username".to_owned(), decode(user)));
        found.extend(password.map(|password| ("password".to_owned(), decode(password))));
    }
    // An IPv6 address has colons of its own, in brackets.
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (address, None),
    };
    found.push(("hostname".to_owned(), host.to_owned()));
    found.extend(port.map(|port| ("port".to_owned(), port.to_owned())));
    Ok(found)
}

/// What the file says that nobody said before.
fn add_section(said: &mut Said, text: &str, file: &str, section: &str) -> Result<(), String> {
    let (mut is_in, mut was_found) = (false, false);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_in = name == section;
            was_found |= is_in;
        } else if is_in && !line.is_empty() && !line.starts_with(['#', ';']) {
            let (key, value) =
                line.split_once(['=', ':']).ok_or_else(|| format!("{file}: not name = value: {line}"))?;
            // A remark may stand behind a value.
            let value = value.split(" #").next().unwrap_or_default().trim();
            said.entry(key.trim().to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    if was_found || section == "default" {
        return Ok(());
    }
    Err(format!("Could not read section '{section}' in config file '{file}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Arguments, String> {
        read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_anywhere_and_letters_together() {
        let wrong = of("list -Pqueues").expect_err("that is no port");
        assert_eq!(wrong, "--port is a number, not 'queues'");
        let read = of("-qV v list --port=1 -ftsv queues name").expect("it is right");
        assert!(read.quiet && read.vhost.as_deref() == Some("v") && read.port == 1 && read.format == "tsv");
        assert_eq!(read.words, ["list", "queues", "name"]);
        assert!(
            of("--nosuch").is_err()
                && of("-Z").is_err()
                && of("--port").is_err()
                && of("-s list").expect("it is right").ssl
        );
    }

    #[test]
    fn an_url_says_who_and_where() {
        let read = of("-U http://a%40b:p@host:81 list").expect("it is right");
        assert_eq!((read.username.as_str(), read.password.as_str()), ("a@b", "p"));
        assert_eq!((read.host.as_str(), read.port), ("host", 81));
        assert_eq!(of("-U http://[::1]:5 list").expect("it is right").host, "[::1]");
        assert!(of("-U https://host list").expect("it is right").ssl && of("-U ftp://host list").is_err());
    }

    #[test]
    fn a_file_says_what_nobody_said_before() {
        let mut said = Said::from([("port".to_owned(), "1".to_owned())]);
        let text = "[default]\nport = 2\n[other]\n# no\nport = 3\nvhost = /         # usual\n";
        add_section(&mut said, text, "f", "other").expect("it is there");
        assert_eq!((said["port"].as_str(), said["vhost"].as_str()), ("1", "/"));
        assert!(add_section(&mut said, text, "f", "third").is_err());
    }
}
