//! What somebody may do by a token: scopes instead of a user's permissions, as RabbitMQ's OAuth 2
//! backend has them.
//!
//! ```text
//!   read:VHOST/NAME        write:VHOST/NAME/KEY        configure:*/*
//! ```
//!
//! Each part is a pattern: `*` stands for any bytes, the rest is percent-encoded, `{vhost}` is the
//! name of the virtual host that is asked about, and another `{claim}` is that claim of the token.
//!
//! Invariant: what a claim says is a text and never a pattern: no token widens its own scope by a
//! claim with a `*` or a `/` in it. A scope that is not understood grants nothing.

use super::name::Name;
use super::user::Access;
use std::fmt::Write as _;

/// Scopes of one token. RabbitMQ takes as many.
pub const SCOPES_MAX: usize = 2048;
/// Pieces of one part of a scope.
const PIECES_MAX: usize = 64;

/// What somebody is let in by, who is no user here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What they are called.
    pub user: Name,
    /// RabbitMQ's tags, such as `administrator`.
    pub tags: Vec<Name>,
    /// What they may do.
    pub scopes: Scopes,
    /// When that ends, in milliseconds since the epoch.
    pub expires_ms: u64,
}

impl Token {
    /// Whether it has a tag.
    pub fn has_tag(&self, tag: &[u8]) -> bool {
        self.tags.iter().any(|own| **own == *tag)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    access: Access,
    vhost: Glob,
    name: Glob,
    /// Without one no routing key of a topic exchange is granted.
    key: Option<Glob>,
}

/// A pattern in its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Glob(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Any,
    Text(Vec<u8>),
    Vhost,
}

impl Scopes {
    /// What these scopes say, their prefix taken off. `claim` is the text of a claim of the token.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>, claim: &dyn Fn(&str) -> Option<String>) -> Scopes {
        let mut grants: Vec<Grant> = Vec::new();
        for grant in texts.into_iter().filter_map(|text| Grant::parse(text, claim)) {
            if grants.len() < SCOPES_MAX && !grants.contains(&grant) {
                grants.push(grant);
            }
        }
        Scopes { grants }
    }

    /// The same in texts that [`Scopes::parse`] understands without any claim.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.grants.iter().map(|grant| {
            let mut text = format!("{}:{}/{}", grant.access.word(), grant.vhost.text(), grant.name.text());
            if let Some(key) = &grant.key {
                let _ = write!(text, "/{}", key.text());
            }
            text
        })
    }

    /// Whether a virtual host may be opened: anything in it has to be granted.
    pub fn opens(&self, vhost: &[u8]) -> bool {
        self.grants.iter().any(|grant| grant.vhost.matches(vhost, vhost))
    }

    /// Whether this access to a queue or exchange is granted.
    pub fn allows(&self, access: Access, vhost: &[u8], name: &[u8]) -> bool {
        self.on(access, vhost, name).next().is_some()
    }

    /// Whether this access with a routing key of a topic exchange is granted.
    pub fn allows_key(&self, access: Access, vhost: &[u8], exchange: &[u8], key: &[u8]) -> bool {
        self.on(access, vhost, exchange).any(|grant| grant.key.as_ref().is_some_and(|glob| glob.matches(key, vhost)))
    }

    fn on<'a>(&'a self, access: Access, vhost: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a Grant> {
        let grants = self.grants.iter().filter(move |grant| grant.access == access);
        grants.filter(move |grant| grant.vhost.matches(vhost, vhost) && grant.name.matches(name, vhost))
    }
}

impl Grant {
    fn parse(text: &str, claim: &dyn Fn(&str) -> Option<String>) -> Option<Grant> {
        let (word, pattern) = text.split_once(':')?;
        let access = [Access::Read, Access::Write, Access::Configure].into_iter().find(|it| it.word() == word)?;
        let parts: Vec<&str> = pattern.split('/').collect();
        let glob = |part: &str| Glob::parse(part, claim);
        match parts[..] {
            [vhost, name] => Some(Grant { access, vhost: glob(vhost)?, name: glob(name)?, key: None }),
            [vhost, name, key] => Some(Grant { access, vhost: glob(vhost)?, name: glob(name)?, key: Some(glob(key)?) }),
            _ => None,
        }
    }
}

impl Glob {
    fn parse(part: &str, claim: &dyn Fn(&str) -> Option<String>) -> Option<Glob> {
        let mut glob = Glob(Vec::new());
        let mut rest = part;
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix('*') {
                glob.push(Piece::Any);
                rest = behind;
            } else if let Some(behind) = rest.strip_prefix('{') {
                let (name, behind) = behind.split_once('}')?;
                match name {
                    "vhost" => glob.push(Piece::Vhost),
                    _ => glob.push(Piece::Text(claim(name)?.into_bytes())),
                }
                rest = behind;
            } else {
                let end = rest.find(['*', '{']).unwrap_or(rest.len());
                glob.push(Piece::Text(decoded(&rest[..end])?));
                rest = &rest[end..];
            }
        }
        (glob.0.len() <= PIECES_MAX).then_some(glob)
    }

    fn push(&mut self, piece: Piece) {
        match (self.0.last_mut(), piece) {
            (Some(Piece::Any), Piece::Any) => {}
            (Some(Piece::Text(before)), Piece::Text(text)) => before.extend(text),
            (_, piece) => self.0.push(piece),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Any => text.push('*'),
                Piece::Vhost => text.push_str("{vhost}"),
                Piece::Text(bytes) => bytes.iter().for_each(|&byte| match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(byte as char),
                    _ => {
                        let _ = write!(text, "%{byte:02X}");
                    }
                }),
            }
        }
        text
    }

    /// In time that grows with the subject's length times the pieces: of each `*` the last one is
    /// all that is ever gone back to.
    fn matches(&self, subject: &[u8], vhost: &[u8]) -> bool {
        let (mut piece, mut at) = (0, 0);
        let mut back: Option<(usize, usize)> = None;
        loop {
            let fits = match self.0.get(piece) {
                None if at == subject.len() => return true,
                None => None,
                Some(Piece::Any) if piece + 1 == self.0.len() => return true,
                Some(Piece::Any) => {
                    back = Some((piece + 1, at));
                    Some(0)
                }
                Some(Piece::Text(text)) => subject[at..].starts_with(text).then_some(text.len()),
                Some(Piece::Vhost) => subject[at..].starts_with(vhost).then_some(vhost.len()),
            };
            match (fits, &mut back) {
                (Some(bytes), _) => (piece, at) = (piece + 1, at + bytes),
                (None, Some((after, from))) if *from < subject.len() => {
                    *from += 1;
                    (piece, at) = (*after, *from);
                }
                (None, _) => return false,
            }
        }
    }
}

/// As in the query of an address: `+` is a space.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let mut digit = || (bytes.next()? as char).to_digit(16);
                out.push((digit()? * 16 + digit()?) as u8);
            }
            b'+' => out.push(b' '),
            other => out.push(other),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(texts: &[&str]) -> Scopes {
        Scopes::parse(texts.iter().copied(), &|claim| (claim == "sub").then(|| "an*n/x".to_owned()))
    }

    #[test]
    fn a_scope_grants_one_access_to_what_its_patterns_match() {
        let one = scopes(&["read:%2F/q-*"]);
        assert!(one.opens(b"/") && !one.opens(b"other"));
        assert!(one.allows(Access::Read, b"/", b"q-1") && one.allows(Access::Read, b"/", b"q-"));
        assert!(!one.allows(Access::Read, b"/", b"q") && !one.allows(Access::Read, b"other", b"q-1"));
        assert!(!one.allows(Access::Write, b"/", b"q-1") && !one.allows(Access::Configure, b"/", b"q-1"));
    }

    #[test]
    fn a_key_of_a_topic_exchange_is_granted_only_where_a_scope_names_keys() {
        assert!(!scopes(&["write:*/*"]).allows_key(Access::Write, b"/", b"x", b"a.b"));
        let keys = scopes(&["write:*/x/a.*", "read:*/*/*"]);
        assert!(keys.allows(Access::Write, b"/", b"x") && keys.allows_key(Access::Write, b"/", b"x", b"a.b"));
        assert!(
            !keys.allows_key(Access::Write, b"/", b"x", b"b") && !keys.allows_key(Access::Write, b"/", b"y", b"a.")
        );
        assert!(keys.allows_key(Access::Read, b"v", b"y", b""));
    }

    #[test]
    fn stars_match_anything_and_the_rest_itself() {
        let matches = |pattern: &str, subject: &str| {
            let glob = Glob::parse(pattern, &|_| None).expect("a pattern");
            glob.matches(subject.as_bytes(), b"prod")
        };
        for (pattern, subject) in [
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("a*", "a"),
            ("*a", "aba"),
            ("a*c*e", "abcde"),
            ("**b", "ab"),
            ("a%2Ab", "a*b"),
            ("a+b", "a b"),
            ("{vhost}.*", "prod.x"),
            ("*-{vhost}", "prod-x-prod"),
        ] {
            assert!(matches(pattern, subject), "{pattern} {subject}");
        }
        for (pattern, subject) in
            [("", "a"), ("a", "ab"), ("a*", "ba"), ("*a", "ab"), ("a*c", "ab"), ("a*a", "a"), ("{vhost}", "pro")]
        {
            assert!(!matches(pattern, subject), "{pattern} {subject}");
        }
    }

    #[test]
    fn a_claim_is_a_text_and_no_pattern_and_one_that_is_not_there_grants_nothing() {
        let own = scopes(&["read:*/{sub}-*", "write:*/{nobody}", "configure:*/{nobody}*"]);
        assert!(own.allows(Access::Read, b"/", b"an*n/x-1") && !own.allows(Access::Read, b"/", b"annn/x-1"));
        assert!(!own.allows(Access::Write, b"/", b"nobody") && !own.allows(Access::Write, b"/", b"{nobody}"));
        assert!(
            !own.allows(Access::Write, b"/", b"") && !own.allows(Access::Configure, b"/", b"q"),
            "it is no empty text"
        );
    }

    #[test]
    fn what_is_not_understood_grants_nothing() {
        let odd =
            ["read", "read:", "read:a", "read:a/b/c/d", "publish:*/*", "tag:administrator", "read:*/{x", "read:*/%2"];
        assert_eq!(scopes(&odd), Scopes::default());
    }

    #[test]
    fn patterns_and_scopes_have_a_limit_and_what_is_beyond_it_grants_nothing() {
        let stars = |count: usize| scopes(&[&format!("read:*/{}", "a*".repeat(count / 2))]);
        assert!(stars(PIECES_MAX).allows(Access::Read, b"/", "a".repeat(PIECES_MAX / 2).as_bytes()));
        assert_eq!(stars(PIECES_MAX + 2), Scopes::default());
        let many: Vec<String> = (0..=SCOPES_MAX).map(|number| format!("read:*/q{number}")).collect();
        let many = Scopes::parse(many.iter().map(String::as_str), &|_| None);
        let is_read = |number: usize| many.allows(Access::Read, b"/", format!("q{number}").as_bytes());
        assert!(is_read(SCOPES_MAX - 1) && !is_read(SCOPES_MAX));
    }

    #[test]
    fn texts_say_the_same_again() {
        let own = scopes(&["read:*/{sub}-*", "write:%2F/x/a.*%25", "configure:{vhost}/a+b"]);
        let texts: Vec<String> = own.texts().collect();
        assert_eq!(texts, ["read:*/an%2An%2Fx-*", "write:%2F/x/a.*%25", "configure:{vhost}/a%20b"]);
        assert_eq!(Scopes::parse(texts.iter().map(String::as_str), &|_| None), own);
    }
}
