//! Users: how they log in, what they may do in a virtual host, and how much.
//!
//! Invariant: a right is a pattern over the thing's name; a virtual host that is not in a user's
//! permissions may not be opened, and an exchange that is not in its topic permissions is not
//! restricted further.

use std::collections::BTreeMap;

use super::name::Name;
use super::password::PasswordHash;
use super::pattern::{Pattern, TooManySteps, WrongPattern};
use crate::ids::VhostId;

/// What logs call who runs the machine and is no user. A user of that name would do what is told of the operator.
pub const OPERATOR: &str = "(operator)";

/// Why nobody may be called so.
pub const OPERATORS_NAME: &str =
    "(operator) is what the audit log calls who runs the machine: a user needs another name";

/// Tags of one user; RabbitMQ knows six.
pub const TAGS_MAX: usize = 64;

/// What is asked for: RabbitMQ's three rights on a queue or exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Declare and delete.
    Configure,
    /// Publish to an exchange, bind a queue.
    Write,
    /// Consume, get, purge; bind from an exchange.
    Read,
}

impl Access {
    /// The word in RabbitMQ's texts.
    pub(super) fn word(self) -> &'static str {
        match self {
            Access::Configure => "configure",
            Access::Write => "write",
            Access::Read => "read",
        }
    }
}

/// What a user may do in one virtual host: a pattern over names for each right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// See `Access::Configure`.
    pub configure: Pattern,
    /// See `Access::Write`.
    pub write: Pattern,
    /// See `Access::Read`.
    pub read: Pattern,
}

impl Permission {
    /// RabbitMQ's `.*`, `.*`, `.*`.
    pub fn everything() -> Self {
        Self { configure: Pattern::everything(), write: Pattern::everything(), read: Pattern::everything() }
    }

    /// The virtual host may be opened, and that is all.
    pub fn nothing() -> Self {
        Self { configure: Pattern::nothing(), write: Pattern::nothing(), read: Pattern::nothing() }
    }

    /// Whether all three can be asked in time: see [`Pattern::check_cost`].
    pub fn check_cost(&self, may_go_on: &mut dyn FnMut() -> bool) -> Result<(), TooManySteps> {
        [&self.configure, &self.write, &self.read].into_iter().try_for_each(|pattern| pattern.check_cost(may_go_on))
    }

    /// Whether this access to something of this name is granted.
    pub fn allows(&self, access: Access, name: &[u8]) -> bool {
        match access {
            Access::Configure => self.configure.matches_often(name),
            Access::Write => self.write.matches_often(name),
            Access::Read => self.read.matches_often(name),
        }
    }
}

/// What a user may do with the routing keys of one topic exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPermission {
    write: TopicPattern,
    read: TopicPattern,
}

/// A pattern in which `{username}` and `{vhost}` stand for themselves until user and virtual host
/// are known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TopicPattern {
    text: String,
    pattern: Pattern,
}

impl TopicPattern {
    fn new(text: &str, user: &Name, vhost: &Name) -> Result<Self, WrongPattern> {
        Ok(Self { text: text.to_owned(), pattern: Pattern::new(&Self::expanded(text, user, vhost))? })
    }

    fn stored(text: &str, user: &Name, vhost: &Name) -> Result<Self, WrongPattern> {
        let pattern = Pattern::stored(&Self::expanded(text, user, vhost));
        // Earlier versions put the names in as if they were part of the expression.
        let pattern = pattern.or_else(|_| Pattern::never(text, &Self::expanded_unescaped(text, user, vhost)))?;
        Ok(Self { text: text.to_owned(), pattern })
    }

    /// The text with the names in it, each byte of which means itself. A brace behind a backslash is
    /// no variable's.
    fn expanded(text: &str, user: &Name, vhost: &Name) -> String {
        let variables = [("{username}", literal(user)), ("{vhost}", literal(vhost))];
        let (mut expanded, mut rest, mut is_quoted) = (String::new(), text, false);
        while let Some(first) = rest.chars().next() {
            let found = variables.iter().find_map(|(name, value)| Some((rest.strip_prefix(name)?, value)));
            let taken = match (found, first) {
                (Some((behind, value)), _) => {
                    // Between `\Q` and `\E` a backslash means itself.
                    let (open, close) = if is_quoted { ("\\Q", "\\E") } else { ("", "") };
                    expanded.extend([close, value, open]);
                    rest = behind;
                    continue;
                }
                (None, '\\') if rest.starts_with(if is_quoted { "\\E" } else { "\\Q" }) => {
                    is_quoted = !is_quoted;
                    2
                }
                (None, '\\') if !is_quoted => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
                (None, other) => other.len_utf8(),
            };
            let (taken, behind) = rest.split_at(taken);
            expanded.push_str(taken);
            rest = behind;
        }
        expanded
    }

    fn expanded_unescaped(text: &str, user: &Name, vhost: &Name) -> String {
        text.replace("{username}", &user.to_string()).replace("{vhost}", &vhost.to_string())
    }
}

/// The expression that matches this name and nothing else.
fn literal(name: &Name) -> String {
    let mut literal = String::new();
    for char in name.to_string().chars() {
        if char.is_ascii_punctuation() || char.is_ascii_whitespace() {
            literal.push('\\');
        }
        literal.push(char);
    }
    literal
}

impl TopicPermission {
    /// The permission of `user` in `vhost`, whose names are put in where the patterns ask for them.
    /// Errors: a pattern does not compile.
    pub fn new(user: &Name, vhost: &Name, write: &str, read: &str) -> Result<Self, WrongPattern> {
        Ok(Self { write: TopicPattern::new(write, user, vhost)?, read: TopicPattern::new(read, user, vhost)? })
    }

    /// The same of patterns that were taken once; see [`Pattern::stored`].
    pub(super) fn stored(user: &Name, vhost: &Name, write: &str, read: &str) -> Result<Self, WrongPattern> {
        Ok(Self { write: TopicPattern::stored(write, user, vhost)?, read: TopicPattern::stored(read, user, vhost)? })
    }

    /// As [`TopicPermission::stored`], if builds that took the names for parts of the expression can read
    /// it, too.
    pub(super) fn stored_before(user: &Name, vhost: &Name, write: &str, read: &str) -> Result<Self, WrongPattern> {
        for text in [write, read] {
            Pattern::stored(&TopicPattern::expanded_unescaped(text, user, vhost))?;
        }
        Self::stored(user, vhost, write, read)
    }

    /// Whether both can be asked in time: see [`Pattern::check_cost`].
    pub fn check_cost(&self, may_go_on: &mut dyn FnMut() -> bool) -> Result<(), TooManySteps> {
        [&self.write, &self.read].into_iter().try_for_each(|topic| topic.pattern.check_cost(may_go_on))
    }

    /// Whether publishing with this key, or binding with it, is granted.
    pub fn allows(&self, access: Access, key: &[u8]) -> bool {
        match access {
            Access::Write => self.write.pattern.matches_often(key),
            Access::Read => self.read.pattern.matches_often(key),
            Access::Configure => true,
        }
    }

    /// Both patterns as they were written, write first.
    pub fn texts(&self) -> (&str, &str) {
        (&self.write.text, &self.read.text)
    }
}

/// How much a user may have at a time; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Connections.
    pub connections_max: Option<u32>,
    /// Channels, all connections together.
    pub channels_max: Option<u32>,
}

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The hash of the password.
    pub password: PasswordHash,
    /// RabbitMQ's tags, such as `administrator`; they mean something to the management API only.
    pub tags: Vec<Name>,
    /// How much it may have.
    pub limits: UserLimits,
    /// By virtual host; a host that is not there may not be opened.
    pub permissions: BTreeMap<VhostId, Permission>,
    /// By virtual host and exchange.
    pub topic_permissions: BTreeMap<(VhostId, Name), TopicPermission>,
}

impl User {
    /// A user that may do nothing yet.
    pub fn new(password: PasswordHash, tags: Vec<Name>) -> Self {
        Self {
            password,
            tags,
            limits: UserLimits::default(),
            permissions: BTreeMap::new(),
            topic_permissions: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_permission_knows_its_user_and_virtual_host() {
        let permission = TopicPermission::new(&"ann".into(), &"prod".into(), "^{vhost}\\.{username}\\..*", "^public")
            .expect("both compile");
        assert!(permission.allows(Access::Write, b"prod.ann.x") && !permission.allows(Access::Write, b"prod.bob.x"));
        assert!(permission.allows(Access::Read, b"public.x") && !permission.allows(Access::Read, b"prod.ann.x"));
        assert_eq!(permission.texts().0, "^{vhost}\\.{username}\\..*");
    }

    #[test]
    fn names_in_a_topic_permission_stand_for_themselves() {
        let allows = |user: &str, vhost: &str, pattern: &str, key: &str| {
            let permission = TopicPermission::new(&user.into(), &vhost.into(), pattern, "");
            permission.expect("any name suits any pattern").allows(Access::Write, key.as_bytes())
        };
        let every_ascii = (1..=127).map(char::from).collect::<String>();
        let names =
            [".*", "a|", "a(", "[", "b)", "c{", "*d", "john.doe", "\\", "\\E", "a-b", "ä.", "a b#", "^$", &every_ascii];
        for name in names {
            for pattern in ["^{username}$", "^\\Q{username}\\E$", "^(?x:{username})$", "^[x]?({username}|y)$"] {
                assert!(allows(name, "v", pattern, name), "{name:?} in {pattern}");
                for other in ["", "a", "other", "xa", "johnXdoe"] {
                    assert!(!allows(name, "v", pattern, other), "{name:?} in {pattern} allows {other}");
                }
            }
            assert!(allows("u", name, "^{vhost}\\.{username}$", &format!("{name}.u")), "{name:?}");
        }
        assert!(allows("a.b", "v", "^[{username}]+$", "b.a") && !allows("a.b", "v", "^[{username}]+$", "axb"));
        // A name is no variable, and an escaped brace begins none.
        assert!(allows("{vhost}", "v", "^{username}$", "{vhost}"));
        assert!(allows("ann", "v", "^\\{username\\}$", "{username}"));
    }

    #[test]
    fn a_permission_that_an_earlier_version_took_and_this_one_cannot_read_grants_nothing() {
        let read = TopicPermission::stored(&"a)".into(), &"v".into(), "({username}", ".*").expect("it was taken once");
        assert!(
            !read.allows(Access::Write, b"a") && !read.allows(Access::Write, b"") && read.allows(Access::Read, b"a")
        );
        assert_eq!(read.texts().0, "({username}");
        assert!(TopicPermission::stored(&"a".into(), &"v".into(), "({username}", "").is_err(), "no version took it");
    }
}
