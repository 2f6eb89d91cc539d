//! Message priorities of one queue: which level each message has, where it is not the queue's
//! default.
//!
//! Replicated like the rest of the queue's state, as a new leader must know the order without
//! reading a body. Invariant: a number that no chunk covers has the default level; a chunk has a
//! live message. Cost: one byte a message in a chunk, and nothing on a queue whose messages all
//! have the default level, which is every plain queue. A chunk lives as long as one of its messages
//! does, so one old message keeps at most [`CHUNK_MESSAGES_MAX`] bytes.

use std::collections::VecDeque;

/// Most messages of one chunk.
pub const CHUNK_MESSAGES_MAX: usize = 4096;
/// Levels of a quorum queue: 0 to 31.
pub const STRICT_LEVEL_MAX: u8 = 31;
/// The level of a message on a quorum queue that names none.
pub const STRICT_LEVEL_DEFAULT: u8 = 4;

/// The flag of the property `priority` in a content header, and those of the properties before it.
const PRIORITY: u16 = 1 << 11;
const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;

/// How a queue makes levels of priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LevelRule {
    /// It has no priorities.
    #[default]
    None,
    /// `x-max-priority` of a classic queue: 0 to the number, 0 without a priority.
    UpTo(u8),
    /// A quorum queue: 0 to 31, 4 without a priority.
    Strict,
}

impl LevelRule {
    const STRICT_CODE: u16 = 256;

    /// The rule as a log entry has it.
    pub fn code(self) -> u16 {
        match self {
            LevelRule::None => 0,
            LevelRule::UpTo(level_max) => level_max.into(),
            LevelRule::Strict => Self::STRICT_CODE,
        }
    }

    /// The rule of a code; `None` for a number that is no code.
    pub fn from_code(code: u16) -> Option<LevelRule> {
        match code {
            0 => Some(LevelRule::None),
            Self::STRICT_CODE => Some(LevelRule::Strict),
            _ => u8::try_from(code).ok().map(LevelRule::UpTo),
        }
    }

    /// The level of a message that names no priority.
    pub fn default_level(self) -> u8 {
        if self == LevelRule::Strict { STRICT_LEVEL_DEFAULT } else { 0 }
    }

    /// The level of a message with this priority; one above the highest counts as the highest.
    pub fn level(self, priority: Option<u8>) -> u8 {
        let level_max = match self {
            LevelRule::None => 0,
            LevelRule::UpTo(level_max) => level_max,
            LevelRule::Strict => STRICT_LEVEL_MAX,
        };
        priority.map_or(self.default_level(), |priority| priority.min(level_max))
    }
}

/// Whether a content header, from its property flags on, names a priority.
#[inline]
pub fn has_priority(properties: &[u8]) -> bool {
    properties.first_chunk::<2>().is_some_and(|flags| u16::from_be_bytes(*flags) & PRIORITY != 0)
}

/// The priority that a content header, from its property flags on, names. The header was checked
/// when it came in.
pub fn priority_of(properties: &[u8]) -> Option<u8> {
    if !has_priority(properties) {
        return None;
    }
    let flags = u16::from_be_bytes(*properties.first_chunk::<2>()?);
    let mut at = 2;
    for flag in [CONTENT_TYPE, CONTENT_ENCODING] {
        if flags & flag != 0 {
            at += 1 + usize::from(*properties.get(at)?);
        }
    }
    if flags & HEADERS != 0 {
        at += 4 + u32::from_be_bytes(*properties.get(at..)?.first_chunk::<4>()?) as usize;
    }
    at += usize::from(flags & DELIVERY_MODE != 0);
    properties.get(at).copied()
}

#[derive(Clone, Debug, PartialEq)]
struct Chunk {
    first: u64,
    live: u32,
    marks: Vec<u8>,
}

impl Chunk {
    fn past(&self) -> u64 {
        self.first + self.marks.len() as u64
    }
}

/// Messages in a row of one level: the first, how many, the level.
pub type Stretch = (u64, u32, u8);

/// The levels of one queue's messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    default: u8,
    chunks: VecDeque<Chunk>,
}

impl Levels {
    /// All messages have this level.
    pub fn new(default: u8) -> Self {
        Levels { default, chunks: VecDeque::new() }
    }

    /// The level of a message that is in no chunk.
    pub fn default_level(&self) -> u8 {
        self.default
    }

    /// Whether every live message has the default level, as far as anything is kept of it.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Notes the levels of new live messages: of `first` and those after it. They are above all
    /// that were noted before.
    pub fn note(&mut self, first: u64, levels: &[u8]) {
        let mut at = 0;
        while at < levels.len() {
            let seq = first + at as u64;
            let joins = self.chunks.back().is_some_and(|c| c.past() == seq && c.marks.len() < CHUNK_MESSAGES_MAX);
            if !joins {
                assert!(self.chunks.back().is_none_or(|c| c.past() <= seq), "levels are noted in order");
                self.chunks.push_back(Chunk { first: seq, live: 0, marks: Vec::new() });
            }
            let chunk = self.chunks.back_mut().expect("pushed above if there was none");
            let count = (CHUNK_MESSAGES_MAX - chunk.marks.len()).min(levels.len() - at);
            chunk.marks.extend_from_slice(&levels[at..at + count]);
            chunk.live += count as u32;
            at += count;
        }
    }

    /// The level of a message.
    pub fn of(&self, seq: u64) -> u8 {
        let chunk = self.chunks.get(self.place(seq)).filter(|chunk| chunk.first <= seq);
        chunk.map_or(self.default, |chunk| chunk.marks[(seq - chunk.first) as usize])
    }

    /// The first chunk that ends behind `seq`.
    fn place(&self, seq: u64) -> usize {
        match self.chunks.front() {
            Some(chunk) if seq < chunk.past() => 0,
            _ => self.chunks.partition_point(|chunk| chunk.past() <= seq),
        }
    }

    /// The first number of this level at or after `from`, settled ones included; `None` if there is
    /// none for sure.
    ///
    /// Cost: a byte a message that is passed over.
    pub fn next_of(&self, level: u8, from: u64) -> Option<u64> {
        let mut seq = from;
        for chunk in self.chunks.range(self.place(from)..) {
            if level == self.default && seq < chunk.first {
                return Some(seq);
            }
            seq = seq.max(chunk.first);
            let offset = (seq - chunk.first) as usize;
            if let Some(found) = chunk.marks[offset..].iter().position(|mark| *mark == level) {
                return Some(seq + found as u64);
            }
            seq = chunk.past();
        }
        (level == self.default).then_some(seq)
    }

    /// Forgets `count` numbers from `first`, which end now. `is_live` tells which of them have not
    /// ended before.
    pub fn settle(&mut self, first: u64, count: u64, is_live: impl Fn(u64) -> bool) {
        let past = first + count;
        let mut at = self.place(first);
        while let Some(chunk) = self.chunks.get_mut(at).filter(|chunk| chunk.first < past) {
            let ending = (first.max(chunk.first)..past.min(chunk.past())).filter(|seq| is_live(*seq)).count();
            chunk.live -= ending as u32;
            if chunk.live == 0 {
                self.chunks.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Stretches of messages of one level that is not the default, as `(first, count, level)`,
    /// ascending; settled ones included.
    pub fn stretches(&self) -> Vec<Stretch> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let marked = self.chunks.iter().flat_map(|chunk| (chunk.first..).zip(&chunk.marks));
        for (seq, level) in marked.filter(|(_, level)| **level != self.default) {
            match stretches.last_mut() {
                Some((first, count, last)) if *first + u64::from(*count) == seq && *last == *level => *count += 1,
                _ => stretches.push((seq, 1, *level)),
            }
        }
        stretches
    }

    /// The levels that [`stretches`](Self::stretches) told, of the messages that are live now.
    pub fn restore(default: u8, stretches: &[Stretch], is_live: impl Fn(u64) -> bool) -> Option<Self> {
        let mut levels = Levels::new(default);
        for (first, count, level) in stretches {
            let marks = vec![*level; *count as usize];
            levels.note(*first, &marks);
            let ended = (*first..*first + u64::from(*count)).filter(|seq| !is_live(*seq));
            ended.for_each(|seq| levels.settle(seq, 1, |_| true));
        }
        (!levels.is_empty()).then_some(levels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_priority_is_found_behind_any_properties_before_it() {
        let before: [(u16, &[u8]); 4] = [
            (CONTENT_TYPE, b"\x04text"),
            (CONTENT_ENCODING, b"\x00"),
            (HEADERS, b"\x00\x00\x00\x03abc"),
            (DELIVERY_MODE, b"\x02"),
        ];
        for chosen in 0..16usize {
            let (mut flags, mut list) = (PRIORITY | 1 << 10, Vec::new());
            for (bit, (flag, bytes)) in before.iter().enumerate() {
                if chosen >> bit & 1 == 1 {
                    flags |= flag;
                    list.extend_from_slice(bytes);
                }
            }
            let properties = [&flags.to_be_bytes()[..], &list, &[7], b"\x01c"].concat();
            assert_eq!(priority_of(&properties), Some(7));
            let without = [&(flags & !PRIORITY).to_be_bytes()[..], &list, b"\x01c"].concat();
            assert_eq!(priority_of(&without), None);
        }
    }

    #[test]
    fn rules_cap_and_default_as_their_queue_type_says() {
        let classic = LevelRule::UpTo(9);
        assert_eq!([None, Some(3), Some(200)].map(|p| classic.level(p)), [0, 3, 9]);
        assert_eq!([None, Some(3), Some(200)].map(|p| LevelRule::Strict.level(p)), [4, 3, 31]);
        for rule in [LevelRule::None, LevelRule::UpTo(1), LevelRule::UpTo(255), LevelRule::Strict] {
            assert_eq!(LevelRule::from_code(rule.code()), Some(rule));
        }
        assert_eq!(LevelRule::from_code(257), None);
    }

    proptest! {
        #[test]
        fn levels_agree_with_a_plain_map(
            notes in prop::collection::vec((0u64..30, prop::collection::vec(0u8..4, 1..2500)), 1..6),
            ends in prop::collection::vec((0u64..9000, 1u64..900), 0..30),
        ) {
            let (mut levels, mut plain, mut next) = (Levels::new(1), BTreeMap::new(), 1u64);
            for (gap, marks) in &notes {
                (next..next + gap).for_each(|seq| { plain.insert(seq, 1u8); });
                next += gap;
                levels.note(next, marks);
                marks.iter().for_each(|mark| { plain.insert(next, *mark); next += 1; });
            }
            for (first, count) in ends {
                levels.settle(first, count, |seq| plain.contains_key(&seq));
                (first..first + count).for_each(|seq| { plain.remove(&seq); });
            }
            for (seq, level) in &plain {
                prop_assert_eq!(levels.of(*seq), *level);
            }
            let first_live = |levels: &Levels, level, mut from| loop {
                let seq = levels.next_of(level, from)?;
                if plain.contains_key(&seq) { return Some(seq) }
                if seq >= next { return None }
                from = seq + 1;
            };
            for level in 0..4u8 {
                for from in (1..next + 2).step_by(97) {
                    let expected = plain.range(from..).find(|(_, l)| **l == level).map(|(seq, _)| *seq);
                    prop_assert_eq!(first_live(&levels, level, from), expected);
                }
            }
            let again = Levels::restore(1, &levels.stretches(), |seq| plain.contains_key(&seq));
            let again = again.unwrap_or(Levels::new(1));
            plain.iter().for_each(|(seq, level)| assert_eq!(again.of(*seq), *level));
            levels.settle(0, next, |seq| plain.contains_key(&seq));
            prop_assert!(levels.is_empty());
        }
    }
}
