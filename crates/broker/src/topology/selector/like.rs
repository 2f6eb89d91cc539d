//! The pattern of a selector's `like`: literal bytes, `_` for any one and `%` for any number of
//! them.
//!
//! Invariant: whatever a look costs is taken from the [`Steps`] of its message before it is done.
//! Pattern and text are chosen by clients, and a naive search takes as many steps as the product of
//! their lengths. Between two `%` the first place that fits is the right one, as what an earlier
//! `%` took can be left to a later one.

use memchr::memmem;

use super::super::message_headers::Steps;
use super::term::Term;

/// The longest pattern that can be bound.
pub(super) const PATTERN_BYTES_MAX: usize = 4096;
/// To begin a search costs as much as so many comparisons.
const SEARCH_STEPS: usize = 8;
/// So many bytes of the text are passed in a search in the time of one comparison.
const TEXT_BYTES_A_STEP: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Byte,
    /// `_`: any one, but no end of a line, which RabbitMQ's pattern does not match either.
    AnyOne,
    /// `%`: any number of those.
    AnyMany,
}

/// A pattern, the byte behind the escape read as itself: each part, and the byte that it stands
/// for.
#[derive(Debug)]
pub(super) struct Pattern {
    parts: Box<[Part]>,
    bytes: Box<[u8]>,
}

/// What lies between two `%`.
#[derive(Clone, Copy)]
struct Segment<'a> {
    parts: &'a [Part],
    bytes: &'a [u8],
}

impl Pattern {
    pub(super) fn of(pattern: &[u8], escape: &Term) -> Option<Pattern> {
        let escape = match escape {
            Term::Atom(word) if **word == *b"no_escape" => None,
            Term::Text(text) if text.len() == 1 => Some(text[0]),
            _ => return None,
        };
        let (mut parts, mut own, mut bytes) = (Vec::new(), Vec::new(), pattern.iter());
        while let Some(&byte) = bytes.next() {
            let (part, byte) = match byte {
                _ if Some(byte) == escape => (Part::Byte, bytes.next().copied().unwrap_or(byte)),
                b'_' => (Part::AnyOne, byte),
                b'%' => (Part::AnyMany, byte),
                _ => (Part::Byte, byte),
            };
            parts.push(part);
            own.push(byte);
        }
        Some(Pattern { parts: parts.into(), bytes: own.into() })
    }

    /// Whether the whole text is like this. It is not where the steps do not suffice to find out.
    pub(super) fn meets(&self, text: &[u8], steps: &Steps) -> bool {
        if !steps.take(self.parts.len() + text.len() / TEXT_BYTES_A_STEP) {
            return false;
        }
        let mut start = 0;
        let mut segments = self.parts.split(|part| *part == Part::AnyMany).map(|parts| {
            let bytes = &self.bytes[start..start + parts.len()];
            start += parts.len() + 1;
            Segment { parts, bytes }
        });
        let Some(first) = segments.next() else { return text.is_empty() };
        if !first.is_at(text, 0) {
            return false;
        }
        let mut at = first.parts.len();
        let Some(mut segment) = segments.next() else { return at == text.len() };
        for next in segments {
            let Some(found) = segment.find(text, at, steps) else { return false };
            if text[at..found].contains(&b'\n') {
                return false;
            }
            at = found + segment.parts.len();
            segment = next;
        }
        // The last one ends where the text ends.
        let Some(last) = text.len().checked_sub(segment.parts.len()).filter(|last| *last >= at) else { return false };
        !text[at..last].contains(&b'\n') && segment.is_at(text, last)
    }
}

impl Segment<'_> {
    fn is_at(&self, text: &[u8], at: usize) -> bool {
        let Some(text) = text.get(at..at + self.parts.len()) else { return false };
        text.iter().zip(self.parts).zip(self.bytes).all(|((given, part), wanted)| match part {
            Part::Byte => given == wanted,
            Part::AnyOne | Part::AnyMany => *given != b'\n',
        })
    }

    /// The first place from `at` on that fits, or that it takes too long to find.
    fn find(&self, text: &[u8], mut at: usize, steps: &Steps) -> Option<usize> {
        let (run, len) = self.longest_run();
        if len == 0 {
            // Nothing but `_`: where a line ends too soon for it here, it does so behind here too.
            return self.is_at(text, at).then_some(at);
        }
        let literal = &self.bytes[run..run + len];
        loop {
            let found = at + memmem::find(text.get(at + run..)?, literal)?;
            // What is searched for and compared again counts.
            if !steps.take(self.parts.len() + SEARCH_STEPS) {
                return None;
            }
            if len == self.parts.len() {
                return Some(found);
            }
            if self.is_at(text, found) {
                return Some(found);
            }
            at = found + 1;
        }
    }

    /// Where the longest run of literal bytes is, and how long.
    fn longest_run(&self) -> (usize, usize) {
        let (mut best, mut start) = ((0, 0), 0);
        for run in self.parts.split(|part| *part == Part::AnyOne) {
            if run.len() > best.1 {
                best = (start, run.len());
            }
            start += run.len() + 1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message_headers::SELECTION_STEPS_MAX;
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::of(text.as_bytes(), &Term::Atom(b"no_escape".to_vec())).expect("a pattern")
    }

    /// The rule itself, by trying everything.
    fn naive(text: &[u8], pattern: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'%', rest)) => {
                naive(text, rest) || text.first().is_some_and(|b| *b != b'\n') && naive(&text[1..], pattern)
            }
            Some((b'_', rest)) => text.first().is_some_and(|b| *b != b'\n') && naive(&text[1..], rest),
            Some((byte, rest)) => text.first() == Some(byte) && naive(&text[1..], rest),
        }
    }

    #[test]
    fn every_short_pattern_meets_what_the_rule_says() {
        let words = |letters: &[u8], len: u32| -> Vec<String> {
            let n = letters.len();
            (0..n.pow(len)).map(|i| (0..len).map(|at| char::from(letters[i / n.pow(at) % n])).collect()).collect()
        };
        let texts: Vec<String> = (0..=5).flat_map(|len| words(b"ab\n", len)).collect();
        for pattern_text in (0..=4).flat_map(|len| words(b"ab\n_%", len)) {
            let pattern = pattern(&pattern_text);
            for text in &texts {
                let is = naive(text.as_bytes(), pattern_text.as_bytes());
                assert_eq!(pattern.meets(text.as_bytes(), &Steps::default()), is, "{text:?} like {pattern_text:?}");
            }
        }
    }

    #[test]
    fn patterns_made_to_be_slow_end_soon() {
        let text = vec![b'a'; 60_000];
        for hostile in [
            format!("%{}b%", "a".repeat(4000)),
            format!("%{}b%", "_".repeat(4000)),
            format!("%{}_{}b%", "a".repeat(2000), "a".repeat(2000)),
            format!("{}%b", "%a".repeat(1000)),
            format!("%{}b%", "a_".repeat(2000)),
        ] {
            let steps = Steps::default();
            assert!(!pattern(&hostile).meets(&text, &steps));
            assert!(steps.taken() <= SELECTION_STEPS_MAX + 2 * hostile.len(), "{} steps", steps.taken());
        }
        let steps = Steps::default();
        assert!(pattern(&format!("%{}%", "a_".repeat(2000))).meets(&text, &steps));
        assert!(!steps.are_used_up());
    }
}
