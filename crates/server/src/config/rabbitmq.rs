//! RabbitMQ's `rabbitmq.conf`, in the settings that are ours.
//!
//! Invariant: of each line is told what became of it: it is a setting, it is left out and told why
//! with its number, or it is an error. What protects somebody there and is not here is an error; what
//! tunes RabbitMQ's inside is left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::{ConfigError, Origin, one_line, quoted};
use super::file::contents;
use super::machine::Machine;
use super::rabbitmq_left_out::{LEFT_OUT, REFUSED};
use super::rabbitmq_oauth2;
use super::settings::Key;
use super::suggest::nearest;
use super::value::{Given, Value};

/// RabbitMQ's smallest limit of free disk is below ours, which has to hold two files of the log.
const DISK_FREE_MIN_BYTES: u64 = 256 << 20;

/// One line that says something.
pub(super) struct Line {
    path: PathBuf,
    number: usize,
    pub(super) key: String,
    pub(super) value: String,
}

impl Line {
    pub(super) fn origin(&self) -> Origin {
        Origin::File { path: self.path.clone(), line: self.number }
    }
}

/// What a file says.
pub(super) struct Translation<'m> {
    machine: &'m Machine,
    pub(super) said: Vec<(Key, Value, Origin)>,
    pub(super) errors: Vec<ConfigError>,
    /// Sentences about lines that are of no use here.
    pub(super) left_out: Vec<String>,
    /// Which files were read.
    pub(super) files: Vec<PathBuf>,
}

/// Keys whose values mean the same here.
const SAME: &[(&str, Key)] = &[
    ("heartbeat", Key::heartbeat_s),
    ("frame_max", Key::frame_max),
    ("initial_frame_max", Key::initial_frame_max),
    ("channel_max", Key::channel_max),
    ("max_message_size", Key::body_bytes_max),
    ("handshake_timeout", Key::handshake_timeout_ms),
    ("ssl_options.certfile", Key::tls_certificate),
    ("ssl_options.keyfile", Key::tls_key),
    ("ssl_options.cacertfile", Key::tls_ca),
    ("management.ssl.certfile", Key::management_tls_certificate),
    ("management.ssl.keyfile", Key::management_tls_key),
    ("management.ssl.cacertfile", Key::management_tls_ca),
    ("load_definitions", Key::definitions),
    ("management.load_definitions", Key::definitions),
    ("definitions.local.path", Key::definitions),
    ("event_exchange.vhost", Key::event_exchange_vhost),
    ("anonymous_login_user", Key::anonymous_login_user),
    ("management.oauth_client_id", Key::management_oauth_client_id),
];

/// A key, ours, and pairs of their word and ours.
type KeyOfWords = (&'static str, Key, &'static [(&'static str, &'static str)]);

/// Keys whose values are words for words of ours.
const WORDS: &[KeyOfWords] = &[
    (
        "ssl_cert_login_from",
        Key::certificate_login,
        &[("distinguished_name", "distinguished_name"), ("common_name", "common_name")],
    ),
    (
        "quorum_queue.property_equivalence.relaxed_checks_on_redeclaration",
        Key::redeclaration,
        &[("true", "relaxed"), ("false", "strict")],
    ),
    (
        "message_interceptors.incoming.set_header_timestamp.overwrite",
        Key::stamp_time,
        &[("true", "overwrite"), ("false", "fill")],
    ),
    (
        "message_interceptors.incoming.set_header_routing_node.overwrite",
        Key::stamp_node,
        &[("true", "overwrite"), ("false", "fill")],
    ),
    (
        "password_hashing_module",
        Key::password_hashing,
        &[("rabbit_password_hashing_sha256", "sha256"), ("rabbit_password_hashing_sha512", "sha512")],
    ),
    (
        "queue_leader_locator",
        Key::queue_leader_locator,
        &[
            ("client-local", "client-local"),
            ("balanced", "balanced"),
            ("random", "balanced"),
            ("least-leaders", "balanced"),
            ("min-masters", "balanced"),
        ],
    ),
    ("log.console.formatter", Key::log_format, &[("json", "json"), ("plaintext", "text")]),
    ("definitions.skip_if_unchanged", Key::definitions_skip_if_unchanged, &[("true", "true"), ("false", "false")]),
];

/// Reads a file, or all `*.conf` of a folder in the order of their names.
pub(super) fn read<'m>(path: &Path, machine: &'m Machine) -> Translation<'m> {
    let mut to = Translation { machine, said: Vec::new(), errors: Vec::new(), left_out: Vec::new(), files: Vec::new() };
    let mut lines = Vec::new();
    for file in to.found(path) {
        match contents(&file) {
            Ok(text) => {
                to.parse(&file, &text, &mut lines);
                to.files.push(file);
            }
            Err(reason) => {
                to.errors.push(ConfigError::RabbitmqFile { path: one_line(&file.to_string_lossy()), reason });
            }
        }
    }
    to.translate(lines);
    to
}

impl Translation<'_> {
    fn found(&mut self, path: &Path) -> Vec<PathBuf> {
        let beside = path.with_file_name("advanced.config");
        if path.is_file() && beside.is_file() {
            self.left_out.push(format!(
                "{} is not read: it is Erlang; say with leveret's settings what it says",
                one_line(&beside.to_string_lossy())
            ));
        }
        let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
        let entries = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "conf")).collect();
        files.sort();
        files
    }

    fn parse(&mut self, path: &Path, text: &str, lines: &mut Vec<Line>) {
        let begin = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('%'));
        if path.extension().is_some_and(|end| end == "config") || begin.is_some_and(|line| line.starts_with('[')) {
            let reason = "it is Erlang (advanced.config or the classic form), which is not read; say with leveret's settings what \
                          it says, and name the rabbitmq.conf beside it"
                .to_owned();
            return self.errors.push(ConfigError::RabbitmqFile { path: one_line(&path.to_string_lossy()), reason });
        }
        for (at, line) in text.lines().enumerate() {
            let line = without_remark(line).trim();
            if line.is_empty() {
                continue;
            }
            let place = Origin::File { path: path.to_owned(), line: at + 1 };
            let Some((key, value)) = line.split_once('=') else {
                self.wrong(&place, line, "it is not of the form key = value".to_owned());
                continue;
            };
            let value = value.trim();
            let value = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\'')).unwrap_or(value);
            lines.push(Line {
                path: path.to_owned(),
                number: at + 1,
                key: key.trim().to_owned(),
                value: value.to_owned(),
            });
        }
    }

    pub(super) fn wrong(&mut self, place: &Origin, key: &str, why: String) {
        self.errors.push(ConfigError::RabbitmqLine { place: place.to_string(), key: one_line(key), why });
    }

    pub(super) fn say(&mut self, line: &Line, key: Key, given: Given) {
        match Value::check(key.setting().kind, &given) {
            Some(value) => self.said.push((key, value, line.origin())),
            None => {
                let why = format!("{} is not allowed: here it must be {}", given.shown(), key.setting().kind.allowed());
                self.wrong(&line.origin(), &line.key, why);
            }
        }
    }

    pub(super) fn leave_out(&mut self, line: &Line, why: &str) {
        self.left_out.push(format!("{}: {} is left out: {why}", line.origin(), one_line(&line.key)));
    }

    fn translate(&mut self, lines: Vec<Line>) {
        // The last of several counts, as there.
        let last: BTreeMap<&str, usize> = lines.iter().enumerate().map(|(at, line)| (line.key.as_str(), at)).collect();
        let lines: Vec<&Line> = {
            let mut places: Vec<usize> = last.into_values().collect();
            places.sort_unstable();
            places.into_iter().map(|at| &lines[at]).collect()
        };
        let find = |key: &str| lines.iter().copied().find(|line| line.key == key);
        self.listeners(&lines, "listeners.tcp", Key::amqp);
        self.listeners(&lines, "listeners.ssl", Key::amqps);
        self.http(&lines);
        self.named(&lines, "loopback_users", Key::loopback_users);
        self.in_turn(&lines, "auth_mechanisms", Key::auth_mechanisms);
        self.tokens(&lines);
        for (prefix, key) in [("ssl_options", Key::tls_verify), ("management.ssl", Key::management_tls_verify)] {
            let must = find(&format!("{prefix}.fail_if_no_peer_cert")).is_some_and(|line| line.value == "true");
            if let Some(line) = find(&format!("{prefix}.verify")) {
                let word = match (line.value.as_str(), must) {
                    ("verify_peer", true) => "required",
                    ("verify_peer", false) => "optional",
                    _ => "none",
                };
                self.say(line, key, Given::Plain(word.to_owned()));
            }
        }
        for line in &lines {
            self.one(line, &lines);
        }
    }

    /// A line that says something by itself.
    fn one(&mut self, line: &Line, lines: &[&Line]) {
        let (key, value) = (line.key.as_str(), line.value.as_str());
        if value.starts_with("encrypted:") {
            return self.wrong(&line.origin(), key, "encrypted values are not read".to_owned());
        }
        if let Some((_, ours)) = SAME.iter().find(|(known, _)| *known == key) {
            return self.say(line, *ours, Given::Plain(value.to_owned()));
        }
        if let Some((_, ours, words)) = WORDS.iter().find(|(known, ..)| *known == key) {
            return match words.iter().find(|(theirs, _)| *theirs == value) {
                Some((_, word)) => self.say(line, *ours, Given::Plain((*word).to_owned())),
                None => {
                    let known: Vec<&str> = words.iter().map(|(theirs, _)| *theirs).collect();
                    self.wrong(&line.origin(), key, format!("{} is not there: {}", quoted(value), known.join(" or ")));
                }
            };
        }
        match key {
            "consumer_timeout" | "connection_max" if ["undefined", "infinity", "false"].contains(&value) => match key {
                "consumer_timeout" => self.say(line, Key::consumer_timeout_ms, Given::Plain("0".to_owned())),
                _ => self.leave_out(line, "here the limit of connections is that of files and memory: connections_max"),
            },
            "consumer_timeout" => self.say(line, Key::consumer_timeout_ms, Given::Plain(value.to_owned())),
            "connection_max" => self.say(line, Key::connections_max, Given::Plain(value.to_owned())),
            "disk_free_limit.absolute" => self.disk_limit(line, bytes_of(value)),
            "disk_free_limit.relative" => {
                let part = value.parse::<f64>().ok().filter(|part| (0.0..1e6).contains(part));
                self.disk_limit(line, part.map(|part| (part * self.machine.memory_bytes as f64) as u64));
            }
            "proxy_protocol" if value == "true" => {
                let behind: Vec<String> = self
                    .said
                    .iter()
                    .filter_map(|(key, value, _)| match (key, value) {
                        (Key::amqp | Key::amqps, Value::Addresses(found)) => {
                            Some(found.iter().map(ToString::to_string))
                        }
                        _ => None,
                    })
                    .flatten()
                    .collect();
                match behind.is_empty() {
                    true => {
                        let why = "name the addresses in listeners.tcp or listeners.ssl: here each that is behind a proxy is named";
                        self.wrong(&line.origin(), key, why.to_owned());
                    }
                    false => self.say(line, Key::proxy_protocol, Given::Plain(behind.join(","))),
                }
            }
            "log.console.level" | "log.file.level" | "log.default.level" | "log.level" => self.log_level(line, lines),
            "cluster_formation.peer_discovery_backend"
                if ["classic_config", "rabbit_peer_discovery_classic_config"].contains(&value) => {}
            "auth_mechanisms" | "proxy_protocol" | "definitions.import_backend"
                if ["none", "false", "local_filesystem", "rabbit_definitions_import_local_filesystem"]
                    .contains(&value) => {}
            _ if is_of_group(key) => {}
            _ if rabbitmq_oauth2::is_own(key) => {}
            _ => self.rest(line),
        }
    }

    /// What is no setting here.
    fn rest(&mut self, line: &Line) {
        let key = line.key.as_str();
        let is_under = |known: &str| key == known || key.strip_prefix(known).is_some_and(|rest| rest.starts_with('.'));
        if let Some((_, why)) = REFUSED.iter().find(|(known, _)| is_under(known)) {
            return self.wrong(&line.origin(), key, (*why).to_owned());
        }
        if let Some((_, why)) = LEFT_OUT.iter().find(|(known, _)| is_under(known)) {
            return self.leave_out(line, why);
        }
        let known = SAME.iter().map(|(known, _)| *known).chain(WORDS.iter().map(|(known, ..)| *known));
        let known = known.chain(GROUPS.iter().copied()).chain(LEFT_OUT.iter().chain(REFUSED).map(|(known, _)| *known));
        let why = match nearest(key, known.filter(|known| *known != key)) {
            Some(near) => format!("it is not known; did you mean {near}?"),
            None => "it is not known; take the line out, or say it with leveret's own settings".to_owned(),
        };
        self.wrong(&line.origin(), key, why);
    }

    fn disk_limit(&mut self, line: &Line, bytes: Option<u64>) {
        match bytes {
            Some(bytes) if bytes < DISK_FREE_MIN_BYTES => self.leave_out(
                line,
                "below 256 MiB there is no room for what acknowledgements need to free space: the default holds",
            ),
            Some(bytes) => self.say(line, Key::disk_free_min_bytes, Given::Plain(bytes.to_string())),
            None => self.wrong(&line.origin(), &line.key, format!("{} is not understood", quoted(&line.value))),
        }
    }

    /// The most talkative of those that are set, since there is one log.
    fn log_level(&mut self, line: &Line, lines: &[&Line]) {
        const LEVELS: [(&str, &str); 8] = [
            ("debug", "debug"),
            ("info", "info"),
            ("notice", "info"),
            ("warning", "warn"),
            ("error", "error"),
            ("critical", "error"),
            ("alert", "error"),
            ("none", "off"),
        ];
        let rank = |line: &Line| LEVELS.iter().position(|(word, _)| *word == line.value);
        let all = lines.iter().filter(|line| {
            ["log.console.level", "log.file.level", "log.default.level", "log.level"].contains(&line.key.as_str())
        });
        match rank(line) {
            None => self.wrong(&line.origin(), &line.key, format!("{} is no level", quoted(&line.value))),
            Some(own) if all.filter_map(|line| rank(line)).min() == Some(own) => {
                self.said.retain(|(key, ..)| *key != Key::log);
                self.say(line, Key::log, Given::Plain(LEVELS[own].1.to_owned()));
            }
            Some(_) => self.leave_out(line, "there is one log here, of the level that lets the most through"),
        }
    }

    fn listeners(&mut self, lines: &[&Line], group: &str, key: Key) {
        let own = || lines.iter().filter(|line| is_in(&line.key, group));
        let Some(last) = own().next_back() else { return };
        let mut addresses = Vec::new();
        for line in own().filter(|line| line.key != group || line.value != "none") {
            match addresses_of(&line.value, self.machine) {
                Some(found) => addresses.extend(found),
                None => {
                    let why = format!("{} is neither a port nor an address with one", quoted(&line.value));
                    return self.wrong(&line.origin(), &line.key, why);
                }
            }
        }
        let text = if addresses.is_empty() { "none".to_owned() } else { addresses.join(",") };
        self.say(last, key, Given::Plain(text));
    }

    fn http(&mut self, lines: &[&Line]) {
        let find = |key: &str| lines.iter().copied().find(|line| line.key == key);
        for (group, key, usual) in [
            ("management.tcp", Key::management, "15672"),
            ("management.ssl", Key::management_tls, "15671"),
            ("prometheus.tcp", Key::prometheus, "15692"),
        ] {
            let (port, ip) = (find(&format!("{group}.port")), find(&format!("{group}.ip")));
            let Some(line) = port.or(ip) else { continue };
            let port = port.map_or(usual, |line| line.value.as_str());
            let text = match ip {
                Some(ip) if ip.value.contains(':') => format!("[{}]:{port}", ip.value),
                Some(ip) => format!("{}:{port}", ip.value),
                None => port.to_owned(),
            };
            match addresses_of(&text, self.machine) {
                Some(found) => self.say(line, key, Given::Plain(found.join(","))),
                None => self.wrong(&line.origin(), &line.key, format!("{} is no address", quoted(&text))),
            }
        }
    }

    /// `group.NAME = true`, or `group = none`.
    fn named(&mut self, lines: &[&Line], group: &str, key: Key) {
        let own = || lines.iter().filter(|line| is_in(&line.key, group));
        let Some(last) = own().next_back() else { return };
        let names: Vec<&str> = own()
            .filter(|line| line.value == "true")
            .filter_map(|line| line.key.strip_prefix(group)?.strip_prefix('.'))
            .collect();
        let given = if names.is_empty() { "none".to_owned() } else { names.join(",") };
        self.say(last, key, Given::Plain(given));
    }

    /// `group.1 = A`, `group.2 = B`.
    pub(super) fn in_turn(&mut self, lines: &[&Line], group: &str, key: Key) {
        let number = |line: &&&Line| line.key.strip_prefix(group)?.strip_prefix('.')?.parse::<u32>().ok();
        let mut own: Vec<(u32, &Line)> = lines.iter().filter_map(|line| Some((number(&line)?, *line))).collect();
        own.sort_by_key(|(number, _)| *number);
        if let Some((_, last)) = own.last() {
            let text = own.iter().map(|(_, line)| line.value.as_str()).collect::<Vec<_>>().join(",");
            self.say(last, key, Given::Plain(text));
        }
    }
}

/// Keys that are read together with others of their group.
const GROUPS: &[&str] = &[
    "listeners.tcp",
    "listeners.ssl",
    "loopback_users",
    "auth_mechanisms",
    "ssl_options.verify",
    "ssl_options.fail_if_no_peer_cert",
    "management.ssl.verify",
    "management.ssl.fail_if_no_peer_cert",
    "management.tcp.port",
    "management.tcp.ip",
    "management.ssl.port",
    "management.ssl.ip",
    "prometheus.tcp.port",
    "prometheus.tcp.ip",
];

fn is_of_group(key: &str) -> bool {
    let has_names = ["listeners.tcp", "listeners.ssl", "loopback_users", "auth_mechanisms"];
    GROUPS.contains(&key) || has_names.iter().any(|group| is_in(key, group))
}

fn is_in(key: &str, group: &str) -> bool {
    key.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A remark begins with `#`, but in quotes.
fn without_remark(line: &str) -> &str {
    let mut is_quoted = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'\'' => is_quoted = !is_quoted,
            b'#' if !is_quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

/// A port is one on all addresses that the machine has.
fn addresses_of(text: &str, machine: &Machine) -> Option<Vec<String>> {
    if let Ok(port) = text.parse::<u16>() {
        let four = machine.ipv4.then(|| format!("0.0.0.0:{port}"));
        let six = machine.ipv6.then(|| format!("[::]:{port}"));
        return Some(four.into_iter().chain(six).collect());
    }
    let text = match text.rsplit_once(':') {
        // `:::5672` is RabbitMQ's way to write [::]:5672.
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    let address: std::net::SocketAddr = text.parse().ok()?;
    Some(vec![address.to_string()])
}

/// RabbitMQ's units: `kB`, `MB` and so on count by 1000, `kiB`, `k` and so on by 1024.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let factor: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_and_quotes_are_theirs() {
        assert_eq!(without_remark("a = b # c"), "a = b ");
        assert_eq!(without_remark("a = 'b#c' # d"), "a = 'b#c' ");
    }

    #[test]
    fn sizes_have_their_units() {
        for (text, bytes) in [("50MB", 50_000_000), ("1GiB", 1 << 30), ("2G", 2 << 30), ("512", 512)] {
            assert_eq!(bytes_of(text), Some(bytes), "{text}");
        }
        assert_eq!(bytes_of("a lot"), None);
    }

    #[test]
    fn a_port_is_on_all_addresses() {
        let machine = Machine {
            processors: 1,
            memory_bytes: 1,
            descriptors: 1,
            ipv4: true,
            ipv6: true,
            hostname: "hare".to_owned(),
        };
        assert_eq!(addresses_of("5672", &machine).expect("a port"), ["0.0.0.0:5672", "[::]:5672"]);
        assert_eq!(addresses_of(":::5672", &machine).expect("all of IPv6"), ["[::]:5672"]);
        assert_eq!(addresses_of("127.0.0.1:1", &machine).expect("an address"), ["127.0.0.1:1"]);
        assert_eq!(addresses_of("nowhere", &machine), None);
    }
}
