//! AMQP URIs as RabbitMQ's clients write them: `amqp://user:password@host:port/vhost`, and
//! `amqps://` for TLS.
//!
//! Invariant: every part is percent-decoded once. No path means the vhost `/`, and so does `%2f`; a
//! path of only `/` means the empty vhost, which the specification of AMQP URIs demands and
//! PerfTest does too.

use crate::Error;

/// Where a broker is and who we are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// With TLS.
    pub tls: bool,
    /// Name or address of the host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// User.
    pub user: String,
    /// Password; never shown.
    pub password: String,
    /// Virtual host.
    pub vhost: String,
}

impl Uri {
    /// Reads one URI. The error names what is wrong with it, without its password.
    pub fn parse(text: &str) -> Result<Uri, Error> {
        let (tls, rest) = match text.split_once("://") {
            Some(("amqp", rest)) => (false, rest),
            Some(("amqps", rest)) => (true, rest),
            _ => {
                let what = "it starts with amqp:// or amqps://";
                return Err(Error::usage(format!("{:?} is not an AMQP URI: {what}", shown(text))));
            }
        };
        // Some clients take settings there. Each has an option here, and what is not read is not
        // passed over.
        if rest.contains(['?', '#']) {
            let what = "nothing is read behind ? or #; heartbeat, certificates and the like are options";
            return Err(Error::usage(format!("{}: {what}", shown(text))));
        }
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        let (login, place) =
            authority.rsplit_once('@').map_or(("guest:guest", authority), |(login, place)| (login, place));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, port) = host_and_port(place, if tls { 5671 } else { 5672 })
            .ok_or_else(|| Error::usage(format!("{} has no usable port", shown(text))))?;
        let decoded = |part: &str, name: &str| {
            decode(part).ok_or_else(|| Error::usage(format!("{}: the {name} is not percent-encoded text", shown(text))))
        };
        Ok(Uri {
            tls,
            host: if host.is_empty() { "localhost".to_owned() } else { decoded(host, "host")? },
            port,
            user: decoded(user, "user")?,
            password: decoded(password, "password")?,
            vhost: path.map_or(Ok("/".to_owned()), |path| decoded(path, "virtual host"))?,
        })
    }

    /// `host:port`, for messages and for connecting.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Words of a command line as a shell takes them and as they may be shown: passwords in URIs are
/// left out, except the one that everybody knows.
pub fn without_passwords(words: &[String]) -> String {
    let hidden = |uri: &str| {
        let (start, end) = (uri.find("://")? + 3, uri.rfind('@')?);
        let (user, password) = uri.get(start..end)?.split_once(':')?;
        (password != "guest").then(|| format!("{}{user}:…{}", &uri[..start], &uri[end..]))
    };
    let shown = |word: &String| {
        let parts = word.split(',').map(|part| hidden(part).unwrap_or_else(|| part.to_owned()));
        parts.collect::<Vec<_>>().join(",")
    };
    words.iter().map(|word| quoted(shown(word))).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it for one: in quotes if the shell would see more in it than letters.
fn quoted(word: String) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+{}…".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The URI without its password.
fn shown(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(start), Some(end)) if end > start => format!("{}…{}", &text[..start + 3], &text[end..]),
        _ => text.to_owned(),
    }
}

fn host_and_port(place: &str, standard: u16) -> Option<(&str, u16)> {
    if let Some(rest) = place.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        return Some((host, if port.is_empty() { standard } else { port.strip_prefix(':')?.parse().ok()? }));
    }
    match place.split_once(':') {
        Some((host, port)) => Some((host, port.parse().ok()?)),
        None => Some((place, standard)),
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parts_have_their_defaults() {
        let uri = Uri::parse("amqp://localhost").unwrap();
        assert_eq!(
            (uri.port, uri.user.as_str(), uri.password.as_str(), uri.vhost.as_str()),
            (5672, "guest", "guest", "/")
        );
        let uri = Uri::parse("amqp://a%40b:c%3Ad@h:1/%2f").unwrap();
        assert_eq!((uri.user.as_str(), uri.password.as_str(), uri.vhost.as_str()), ("a@b", "c:d", "/"));
        assert_eq!(uri.address(), "h:1");
        assert_eq!(Uri::parse("amqp://h/").unwrap().vhost, "");
        assert_eq!(Uri::parse("amqp://[::1]:9/x").unwrap().address(), "[::1]:9");
        assert_eq!(Uri::parse("amqp://").unwrap().host, "localhost");
        assert!(!uri.tls);
        let uri = Uri::parse("amqps://h").unwrap();
        assert_eq!((uri.tls, uri.port), (true, 5671));
        assert_eq!(Uri::parse("amqps://[::1]:9/x").unwrap().port, 9);
    }

    #[test]
    fn a_command_line_is_shown_without_passwords() {
        let words = ["--uris", "amqp://guest:guest@h,amqps://u:se:cret@h/v", "--uri=amqp://u:secret@h", "-k", "a@b:c"];
        let words = words.map(str::to_owned);
        let shown = "--uris amqp://guest:guest@h,amqps://u:…@h/v --uri=amqp://u:…@h -k a@b:c";
        assert_eq!(without_passwords(&words), shown);
    }

    #[test]
    fn a_command_line_that_is_shown_can_be_typed() {
        let words =
            ["--broker", "leveret server --amqp 127.0.0.1:{port}", "-k", "it's", "--id", "", "-mp", "x-value=100"];
        let shown = "--broker 'leveret server --amqp 127.0.0.1:{port}' -k 'it'\\''s' --id '' -mp x-value=100";
        assert_eq!(without_passwords(&words.map(str::to_owned)), shown);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is() {
        for text in ["http://h", "amqp://u:secret@h:x", "amqps://u:secret@h?verify=none", "amqp://u:secret@h/%zz"] {
            let why = Uri::parse(text).unwrap_err().to_string();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
