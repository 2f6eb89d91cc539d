//! Regular expressions over names: what permissions and policies are made of.
//!
//! Invariant: a pattern that exists compiles, and asking it never fails: where its search would take more steps than
//! [`STEPS_MAX`] it matches nothing, which grants nothing. Two patterns are equal when their texts are.
//!
//! They are RabbitMQ's: searched for anywhere in the name, case and all, over bytes. PCRE's look-around works; what this
//! machine cannot compile (callouts, recursion, verbs) is refused when it is set and not when it is used.

use std::fmt;
use std::sync::Arc;

use fancy_regex::{BytesMode, Regex, RegexBuilder};

/// Bytes of the text of a pattern.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Steps of a search that has to try again (look-around); a name has at most 255 bytes.
pub const STEPS_MAX: usize = 100_000;
/// Memory of one compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a regular expression that can be used: {0}")]
pub struct WrongPattern(String);

/// A compiled pattern; clones share it.
#[derive(Clone)]
pub struct Pattern {
    text: Arc<str>,
    matcher: Matcher,
}

#[derive(Clone)]
enum Matcher {
    /// `.*`: what most users have, without the memory of a machine for it.
    Everything,
    /// The empty text, which RabbitMQ takes for `^$`.
    Nothing,
    Search(Arc<Regex>),
}

impl Pattern {
    /// The pattern of this text, in which an empty one matches only the empty name. Errors: it is too long or does not
    /// compile.
    pub fn new(text: &str) -> Result<Self, WrongPattern> {
        let matcher = match text {
            ".*" => Matcher::Everything,
            "" => Matcher::Nothing,
            _ => Matcher::Search(Arc::new(compile(text)?)),
        };
        Ok(Self { text: text.into(), matcher })
    }

    /// `.*`.
    pub fn everything() -> Self {
        Self { text: ".*".into(), matcher: Matcher::Everything }
    }

    /// The empty text: matches nothing that has a name.
    pub fn nothing() -> Self {
        Self { text: "".into(), matcher: Matcher::Nothing }
    }

    /// Whether it is found in `name`.
    pub fn matches(&self, name: &[u8]) -> bool {
        match &self.matcher {
            Matcher::Everything => true,
            Matcher::Nothing => name.is_empty(),
            Matcher::Search(regex) => regex.is_match(name).unwrap_or(false),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn compile(text: &str) -> Result<Regex, WrongPattern> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(WrongPattern(format!("it has more than {PATTERN_BYTES_MAX} bytes")));
    }
    RegexBuilder::new(text)
        .unicode_mode(false)
        .bytes_mode(BytesMode::Ascii)
        .backtrack_limit(STEPS_MAX)
        .delegate_size_limit(COMPILED_BYTES_MAX)
        .build()
        .map_err(|error| WrongPattern(error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")))
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &[u8]) -> bool {
        Pattern::new(pattern).expect("it compiles").matches(name)
    }

    #[test]
    fn a_pattern_is_searched_for_anywhere_in_the_name() {
        assert!(matches("b", b"abc") && !matches("^b", b"abc"));
        assert!(matches(".*", b"") && matches(".*", b"q"));
        assert!(matches("", b"") && !matches("", b"q"));
        assert!(matches("^$", b"") && !matches("^$", b"q"));
        assert!(matches("^(a|b)\\.[0-9]+\\w$", b"b.17x") && !matches("A", b"a"));
    }

    #[test]
    fn names_of_any_bytes_are_looked_at() {
        assert!(matches("^q.$", b"q\xff"));
        assert!(matches("ä", "bär".as_bytes()));
    }

    #[test]
    fn what_rabbitmq_users_write_for_all_but_the_brokers_own_names_works() {
        let pattern = r"^(?!amq\.).+";
        assert!(matches(pattern, b"orders") && !matches(pattern, b"amq.topic"));
    }

    #[test]
    fn a_pattern_that_does_not_compile_is_refused_with_its_fault() {
        for wrong in ["(", "[a", "*a", "(*COMMIT)a"] {
            let error = Pattern::new(wrong).expect_err(wrong).to_string();
            assert!(!error.contains('\n'), "one line: {error}");
        }
        assert!(Pattern::new(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
        assert!(Pattern::new("(a{1000}){1000}").is_err());
    }

    #[test]
    fn a_search_without_end_ends_and_grants_nothing() {
        assert!(!matches(r"^(a+)+(?!b)\1$", &[&[b'a'; 200][..], b"!"].concat()));
    }
}
