//! Keys of messages that a queue takes in once: what a queue with deduplication remembers.
//!
//! Replicated like the rest of the queue's state, so that the next leader, and the one after a
//! restart, drops the same repeats. Invariants: a key belongs to the last message that came in with
//! it; a key is known while its message is there or its window is open, and at most [`KEYS_MAX`]
//! are, the newest ones. Time is that of log entries: nothing here reads a clock. Absent on every
//! queue that does not ask for it.

use hashbrown::HashMap;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Most keys that one queue remembers; with more, the oldest are forgotten. About 50 MB.
pub const KEYS_MAX: usize = 1 << 18;

/// How a queue deals with messages of the same key: it takes one in, and no other while that one is
/// there, nor within `window_ms` after it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupRule {
    /// Milliseconds; 0 is no longer than the message is there.
    pub window_ms: u64,
}

impl DedupRule {
    /// The rule as a log entry has it; 0 is a queue without one.
    pub fn code(rule: Option<DedupRule>) -> u64 {
        rule.map_or(0, |rule| rule.window_ms.saturating_add(1))
    }

    /// The rule of a code.
    pub fn from_code(code: u64) -> Option<DedupRule> {
        code.checked_sub(1).map(|window_ms| DedupRule { window_ms })
    }
}

/// What stands for the value of a message's header: half of its SHA-256, so that nobody finds two
/// values for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKey(pub [u8; 16]);

impl DedupKey {
    /// The key of a header's value, type and all.
    pub fn of(value: &[u8]) -> DedupKey {
        let digest: [u8; 32] = Sha256::digest(value).into();
        DedupKey(digest[..16].try_into().expect("half of 32 bytes"))
    }
}

/// Memory of a key: its places in the three maps, with the room that they have to spare.
pub const KEY_BYTES: u64 = 192;

/// Counts the keys of many queues, for whoever watches their memory. It is no part of their state.
#[derive(Clone, Debug, Default)]
pub struct KeyMeter(Arc<Metered>);

#[derive(Debug, Default)]
struct Metered {
    count: AtomicU64,
    is_full: AtomicBool,
}

impl KeyMeter {
    /// Memory of all the keys that it counts.
    pub fn bytes(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed) * KEY_BYTES
    }

    /// Says whether all that there are on this node take what they may.
    pub fn set_full(&self, is_full: bool) {
        self.0.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Whether they do.
    pub fn is_full(&self) -> bool {
        self.0.is_full.load(Ordering::Relaxed)
    }
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The message.
    pub seq: u64,
    /// Until when it is known though its message is gone; 0 is no longer than that is there.
    pub until_ms: u64,
    /// Its message is gone.
    pub is_gone: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Keys {
    by_key: HashMap<DedupKey, Seen, foldhash::fast::FixedState>,
    by_seq: BTreeMap<u64, DedupKey>,
    /// Windows that may be open: when they close, and whose they are.
    windows: BTreeSet<(u64, u64)>,
    /// Where they are counted.
    meter: Option<KeyMeter>,
}

/// A copy is counted nowhere.
impl Clone for Keys {
    fn clone(&self) -> Keys {
        let Keys { by_key, by_seq, windows, meter: _ } = self;
        Keys { by_key: by_key.clone(), by_seq: by_seq.clone(), windows: windows.clone(), meter: None }
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Keys) -> bool {
        self.by_key == other.by_key && self.by_seq == other.by_seq && self.windows == other.windows
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(KeyMeter(all)) = &self.meter {
            all.count.fetch_sub(self.by_key.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Keys {
    /// Counts them from now on, where nobody does yet.
    pub fn count_in(&mut self, meter: &KeyMeter) {
        if self.meter.is_none() {
            meter.0.count.fetch_add(self.by_key.len() as u64, Ordering::Relaxed);
            self.meter = Some(meter.clone());
        }
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// How many keys are known.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// What is known of a key.
    pub fn find(&self, key: DedupKey) -> Option<Seen> {
        self.by_key.get(&key).copied()
    }

    /// Whether one more message with this key makes it no longer: another key goes for it, or its
    /// windows that are over do.
    pub fn has_room_for(&self, key: DedupKey, now_ms: u64) -> bool {
        let is_window_over = self.windows.first().is_some_and(|(until_ms, _)| *until_ms <= now_ms);
        self.len() >= KEYS_MAX || self.by_key.contains_key(&key) || is_window_over
    }

    /// All keys in the order of their messages.
    pub fn iter(&self) -> impl Iterator<Item = (DedupKey, Seen)> + '_ {
        self.by_seq.values().map(|key| (*key, self.by_key[key]))
    }

    /// Message `seq` came in with this key at `now_ms`, and is above all that did before. Windows
    /// that are over close.
    pub fn note(&mut self, seq: u64, key: DedupKey, rule: DedupRule, now_ms: u64) {
        self.close_windows(now_ms);
        let until_ms = if rule.window_ms == 0 { 0 } else { now_ms.saturating_add(rule.window_ms) };
        self.restore(key, Seen { seq, until_ms, is_gone: false });
        while self.by_key.len() > KEYS_MAX {
            let (_, oldest) = self.by_seq.first_key_value().expect("there are keys");
            self.forget(*oldest);
        }
    }

    /// Puts a key back as [`iter`](Self::iter) told it.
    pub fn restore(&mut self, key: DedupKey, seen: Seen) {
        self.forget(key);
        self.by_key.insert(key, seen);
        if let Some(KeyMeter(all)) = &self.meter {
            all.count.fetch_add(1, Ordering::Relaxed);
        }
        self.by_seq.insert(seen.seq, key);
        if seen.until_ms > 0 {
            self.windows.insert((seen.until_ms, seen.seq));
        }
    }

    /// `count` messages from `first` are gone.
    pub fn settle(&mut self, first: u64, count: u64) {
        let mut over: Vec<DedupKey> = Vec::new();
        for key in self.by_seq.range(first..first.saturating_add(count)).map(|(_, key)| *key) {
            let seen = self.by_key.get_mut(&key).expect("both maps have it");
            seen.is_gone = true;
            if seen.until_ms == 0 {
                over.push(key);
            }
        }
        over.into_iter().for_each(|key| self.forget(key));
    }

    fn close_windows(&mut self, now_ms: u64) {
        while let Some(&(until_ms, seq)) = self.windows.first().filter(|(until_ms, _)| *until_ms <= now_ms) {
            self.windows.remove(&(until_ms, seq));
            let key = self.by_seq[&seq];
            let seen = self.by_key.get_mut(&key).expect("both maps have it");
            seen.until_ms = 0;
            if seen.is_gone {
                self.forget(key);
            }
        }
    }

    fn forget(&mut self, key: DedupKey) {
        if let Some(seen) = self.by_key.remove(&key) {
            self.by_seq.remove(&seen.seq);
            self.windows.remove(&(seen.until_ms, seen.seq));
            if let Some(KeyMeter(all)) = &self.meter {
                all.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u8) -> DedupKey {
        DedupKey([number; 16])
    }

    #[test]
    fn a_key_is_known_while_its_message_is_there_and_its_window_is_open() {
        let mut keys = Keys::default();
        keys.note(1, key(1), DedupRule { window_ms: 0 }, 100);
        keys.note(2, key(2), DedupRule { window_ms: 50 }, 100);
        keys.settle(1, 2);
        assert_eq!(keys.find(key(1)), None);
        assert_eq!(keys.find(key(2)), Some(Seen { seq: 2, until_ms: 150, is_gone: true }));
        keys.note(3, key(3), DedupRule { window_ms: 0 }, 150);
        assert_eq!(keys.find(key(2)), None, "its window is over");
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn with_too_many_keys_the_oldest_are_forgotten() {
        let mut keys = Keys::default();
        for seq in 1..=KEYS_MAX as u64 + 5 {
            keys.note(seq, DedupKey::of(&seq.to_le_bytes()), DedupRule { window_ms: 10 }, 1);
        }
        assert_eq!(keys.len(), KEYS_MAX);
        assert_eq!(keys.find(DedupKey::of(&5u64.to_le_bytes())), None);
        assert!(keys.find(DedupKey::of(&6u64.to_le_bytes())).is_some());
        assert_eq!(keys.windows.len(), KEYS_MAX, "nothing stays behind of a key that was forgotten");
    }

    #[test]
    fn a_rule_comes_back_from_its_code() {
        for rule in [None, Some(DedupRule { window_ms: 0 }), Some(DedupRule { window_ms: 77 })] {
            assert_eq!(DedupRule::from_code(DedupRule::code(rule)), rule);
        }
    }

    proptest! {
        /// Against a list that is looked through: what is known, and that both maps and the windows
        /// agree.
        #[test]
        fn keys_agree_with_a_plain_list(steps in prop::collection::vec((0u8..6, 0u64..4, 0u64..30, 0u64..20), 1..200)) {
            let (mut keys, mut plain, mut next, mut now) = (Keys::default(), Vec::<(DedupKey, Seen)>::new(), 1u64, 1u64);
            let meter = KeyMeter::default();
            for (number, kind, window_ms, pause) in steps {
                now += pause;
                if kind < 3 {
                    plain.retain(|(_, s)| !s.is_gone || s.until_ms > now);
                    plain.retain(|(k, _)| *k != key(number));
                    let until_ms = if window_ms == 0 { 0 } else { now + window_ms };
                    plain.push((key(number), Seen { seq: next, until_ms, is_gone: false }));
                    keys.note(next, key(number), DedupRule { window_ms }, now);
                    keys.count_in(&meter);
                    next += 1;
                } else {
                    let first = next.saturating_sub(window_ms);
                    for (_, seen) in plain.iter_mut().filter(|(_, s)| (first..first + 3).contains(&s.seq)) {
                        seen.is_gone = true;
                    }
                    plain.retain(|(_, s)| !s.is_gone || s.until_ms > 0);
                    keys.settle(first, 3);
                }
                for number in 0..6 {
                    let open = |seen: &Seen| !seen.is_gone || seen.until_ms > now;
                    let expected = plain.iter().find(|(k, _)| *k == key(number)).map(|(_, s)| *s).filter(open);
                    let found = keys.find(key(number)).filter(open);
                    prop_assert_eq!(found.map(|s| (s.seq, s.is_gone)), expected.map(|s| (s.seq, s.is_gone)));
                }
                let mut copy = Keys::default();
                keys.iter().for_each(|(key, seen)| copy.restore(key, seen));
                prop_assert_eq!(&copy, &keys);
                prop_assert_eq!(meter.bytes(), keys.len() as u64 * KEY_BYTES);
            }
            drop(keys.clone());
            drop(keys);
            prop_assert_eq!(meter.bytes(), 0, "none is left, and a copy never counted");
        }
    }
}
