//! Regular expressions over names: what permissions and policies are made of.
//!
//! Invariant: a pattern that exists compiles, or was stored by an earlier version, and asking it
//! never fails: where its search would take more steps than [`STEPS_MAX`] it matches nothing, which
//! grants nothing. Two patterns are equal when their texts are.
//!
//! Without look-around and back references a search takes time in proportion to the name. With them
//! it may have to try again, so it has a limit, and a pattern that reaches it is refused when it is
//! set: see [`Pattern::check_cost`].
//!
//! They are RabbitMQ's: searched for anywhere in the name, case and all, over bytes. PCRE's
//! look-around works; what this machine cannot do as PCRE does (callouts, recursion, verbs) is
//! refused when a pattern is set and not when it is used: see [`super::pcre`].

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, OnceLock};

use fancy_regex::{BytesMode, Regex, RegexBuilder};
use foldhash::fast::FixedState;

use super::name::NAME_BYTES_MAX;
use super::pattern_weight::weight_of;
use super::pcre;

/// Bytes of the text of a pattern.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// How often one search may try again (look-around, back references). A name has at most 255 bytes,
/// so that a pattern of a few parts that tries each place once stays far below; one that tries
/// every combination is beyond any limit.
pub const STEPS_MAX: usize = 4096;
/// Memory of one compiled pattern.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Memory in which one remembers what its searches found on their way, for those that follow. Where it is
/// full it is begun anew: with the machine's own two megabytes a thousand patterns would fill any memory.
const REMEMBERED_BYTES_MAX: usize = 32 << 10;
/// What the counts of a pattern's repeats make when they are multiplied, nested or not. The
/// compiler multiplies some of them in 64 bits, and ends the process beyond that.
const REPEATS_MAX: u64 = 1 << 32;
/// How many different bytes of its text a pattern is tried with: see [`Pattern::check_cost`].
const PROBES_MAX: usize = 64;

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a regular expression that can be used: {0}")]
pub struct WrongPattern(String);

/// A search that had to try again more than [`STEPS_MAX`] times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("searching a name for it takes more than {STEPS_MAX} tries")]
pub struct TooManySteps;

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
    /// What an earlier version took and this one would refuse.
    Never,
    Search(Arc<Search>),
}

struct Search {
    regex: Regex,
    /// What was found of names that were asked about lately; absent where a search is quick.
    memo: Option<Memo>,
}

/// Names whose answer is remembered.
const MEMO_SLOTS: usize = 64;

/// Answers by name, so that an operation that comes a thousand times searches once. A slot keeps
/// the whole name: two names of one hash are told apart, and the later one takes the slot.
#[derive(Default)]
struct Memo(OnceLock<Box<[Mutex<Remembered>; MEMO_SLOTS]>>);

/// A name that was asked about, and what was found.
type Remembered = Option<(Box<[u8]>, bool)>;

impl Memo {
    fn slot(&self, name: &[u8]) -> &Mutex<Remembered> {
        let hash = FixedState::default().hash_one(name);
        &self.0.get_or_init(|| Box::new([const { Mutex::new(None) }; MEMO_SLOTS]))[hash as usize % MEMO_SLOTS]
    }
}

impl Pattern {
    /// The pattern of this text, in which an empty one matches only the empty name. Errors: it is
    /// too long or does not compile.
    pub fn new(text: &str) -> Result<Self, WrongPattern> {
        let matcher = match text {
            ".*" => Matcher::Everything,
            "" => Matcher::Nothing,
            _ => Matcher::Search(Arc::new(Search {
                regex: compile(text)?,
                memo: may_try_again(text).then(Memo::default),
            })),
        };
        Ok(Self { text: text.into(), matcher })
    }

    /// A pattern that was taken once: one that would be refused now and was taken by an earlier
    /// version matches nothing, which grants nothing, and keeps its text. Errors: no version took
    /// it.
    pub fn stored(text: &str) -> Result<Self, WrongPattern> {
        Self::new(text).or_else(|wrong| match compile_as_written(text) {
            Ok(_) => Ok(Self { text: text.into(), matcher: Matcher::Never }),
            Err(_) => Err(wrong),
        })
    }

    /// What an earlier version took as `meant`, and this one would refuse: it matches nothing. Errors:
    /// no version took it.
    pub(super) fn never(text: &str, meant: &str) -> Result<Self, WrongPattern> {
        compile_as_written(meant)?;
        Ok(Self { text: text.into(), matcher: Matcher::Never })
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
        self.find(name).unwrap_or(false)
    }

    /// As [`Pattern::matches`], for who asks again and again about the same names.
    pub fn matches_often(&self, name: &[u8]) -> bool {
        let Matcher::Search(search) = &self.matcher else { return self.matches(name) };
        let Some(memo) = &search.memo else { return self.matches(name) };
        let slot = memo.slot(name);
        // Nobody waits for who searches: the slot is held for a comparison only.
        if let Ok(kept) = slot.try_lock()
            && let Some((known, found)) = &*kept
            && **known == *name
        {
            return *found;
        }
        let found = self.matches(name);
        if let Ok(mut kept) = slot.try_lock() {
            *kept = Some((name.into(), found));
        }
        found
    }

    /// As [`Pattern::matches`], which takes a search that does not end in time for one that finds
    /// nothing.
    pub fn find(&self, name: &[u8]) -> Result<bool, TooManySteps> {
        match &self.matcher {
            Matcher::Everything => Ok(true),
            Matcher::Nothing => Ok(name.is_empty()),
            Matcher::Never => Ok(false),
            Matcher::Search(search) => search.regex.is_match(name).map_err(|_| TooManySteps),
        }
    }

    /// Tries it on long names that are made of its own letters: those on which a search that tries
    /// every combination takes longest. For who is about to store a pattern; one that is stored is
    /// asked as it is.
    ///
    /// - `may_go_on` is asked after each name; with false the pattern takes too long for another
    ///   reason, its size.
    pub fn check_cost(&self, may_go_on: &mut dyn FnMut() -> bool) -> Result<(), TooManySteps> {
        let mut letters: Vec<u8> = Vec::new();
        for byte in self.text.bytes().filter(u8::is_ascii_graphic) {
            if letters.len() < PROBES_MAX && !letters.contains(&byte) {
                letters.push(byte);
            }
        }
        let mut probe = |name: &[u8]| match self.find(name) {
            Ok(_) if may_go_on() => Ok(()),
            _ => Err(TooManySteps),
        };
        for letter in &letters {
            let mut name = [*letter; NAME_BYTES_MAX];
            probe(&name)?;
            name[NAME_BYTES_MAX - 1] = b'\0';
            probe(&name)?;
        }
        let mixed: Vec<u8> = letters.iter().copied().cycle().take(NAME_BYTES_MAX).collect();
        probe(&mixed)
    }

    /// What it adds to the work of whoever asks many patterns: see [`super::pattern_weight`].
    pub(super) fn weight(&self) -> u64 {
        match self.matcher {
            Matcher::Everything | Matcher::Nothing | Matcher::Never => 1,
            Matcher::Search(_) => weight_of(&self.text),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Whether a pattern may have what needs more than one pass over a name: groups that are no plain
/// ones, back references, possessive repeats. Where this says yes for nothing, a few hundred bytes
/// are lost.
fn may_try_again(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.contains("(?")
        || bytes.windows(2).any(|two| two[0] == b'\\' && (two[1].is_ascii_digit() || b"kgGK".contains(&two[1])))
        || bytes.windows(2).any(|two| b"+*?}".contains(&two[0]) && two[1] == b'+')
}

/// The product of all numbers within braces, as far as 64 bits go: at least as often as any part of
/// it can be repeated.
fn repeats(text: &str) -> u64 {
    let braces = text.split('{').skip(1).filter_map(|behind| behind.split_once('}'));
    let numbers = braces.flat_map(|(inside, _)| inside.split(|letter: char| !letter.is_ascii_digit()));
    let counts = numbers.filter(|digits| !digits.is_empty()).map(|digits| digits.parse().unwrap_or(u64::MAX).max(1));
    counts.fold(1, u64::saturating_mul)
}

fn compile(text: &str) -> Result<Regex, WrongPattern> {
    check_size(text)?;
    build(&pcre::translate(text).map_err(|what| WrongPattern(format!("it has {what}")))?)
}

/// As the first versions did, which took what their machine took.
fn compile_as_written(text: &str) -> Result<Regex, WrongPattern> {
    check_size(text)?;
    build(text)
}

fn check_size(text: &str) -> Result<(), WrongPattern> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(WrongPattern(format!("it has more than {PATTERN_BYTES_MAX} bytes")));
    }
    if repeats(text) > REPEATS_MAX {
        return Err(WrongPattern("the counts of its repeats are too large together".into()));
    }
    Ok(())
}

fn build(text: &str) -> Result<Regex, WrongPattern> {
    RegexBuilder::new(text)
        .unicode_mode(false)
        .bytes_mode(BytesMode::Ascii)
        .backtrack_limit(STEPS_MAX)
        .delegate_size_limit(COMPILED_BYTES_MAX)
        .delegate_dfa_size_limit(REMEMBERED_BYTES_MAX)
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
    fn counts_that_are_too_large_together_are_refused_and_end_nothing() {
        let nested = |depth| format!("{}a{}", "(".repeat(depth), "{99})".repeat(depth));
        let wrong = [
            nested(5),
            nested(10),
            nested(20),
            r"\Ka{18446744073709551615}".into(),
            r"{99}\x{10FFFF}{18446744073709551615}(?P<m>\z)\b{0}\K".into(),
            "(?=a){4294967296}{2}b".into(),
            "a{1,99999999999999999999999}".into(),
        ];
        for text in wrong {
            assert!(Pattern::new(&text).is_err(), "{text}");
        }
        let uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
        assert!(matches(uuid, b"01234567-89ab-cdef-0123-456789abcdef"));
        assert!(matches(r"^\x{41}{2,3}$", b"AAA"));
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
    fn patterns_that_people_write_are_cheap_and_those_that_try_every_combination_are_refused() {
        let check = |text: &str| Pattern::new(text).expect("it compiles").check_cost(&mut || true);
        for usual in [
            "^a",
            r"^(?!amq\.).+",
            r"^((?!foo).)*$",
            r"^(?=.*prod)(?=.*eu)(?!.*test).*\.(orders|invoices)$",
            r"(?<!x)foo.*bar(?<!baz)$",
            r"^(\w+)\.\1$",
            r"(?i)^(?!mirror)[a-z0-9._-]{1,200}$",
            "(a+)+b",
        ] {
            assert_eq!(check(usual), Ok(()), "{usual}");
        }
        for endless in ["(?:(?=a)(?:a|aa))+(?!a)b", r"^(?:(?=\w)(?:x|xx))+(?!x)y$"] {
            assert_eq!(check(endless), Err(TooManySteps), "{endless}");
        }
        let mut asked = 0;
        let slow = Pattern::new("^abc").expect("it compiles").check_cost(&mut || {
            asked += 1;
            asked < 3
        });
        assert_eq!((slow, asked), (Err(TooManySteps), 3), "who asks may end it");
    }

    #[test]
    fn answers_are_remembered_by_name_and_stay_right() {
        for text in [r"^(?!amq\.).+7$", "7$", ".*", ""] {
            let pattern = Pattern::new(text).expect("it compiles");
            let names: Vec<String> = (0..500).map(|n| format!("q{n}")).chain(["amq.7".to_owned()]).collect();
            for _ in 0..3 {
                for name in &names {
                    assert_eq!(
                        pattern.matches_often(name.as_bytes()),
                        pattern.matches(name.as_bytes()),
                        "{text} {name}"
                    );
                }
            }
        }
        assert!(may_try_again(r"^(\w)\1$") && may_try_again("a++b") && !may_try_again(r"^a\.b+(c|d)*$"));
    }

    #[test]
    fn a_search_without_end_ends_and_grants_nothing() {
        assert!(!matches(r"^(a+)+(?!b)\1$", &[&[b'a'; 200][..], b"!"].concat()));
    }
}
