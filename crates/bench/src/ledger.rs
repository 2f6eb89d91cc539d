//! Which of a publisher's messages something happened to: a set of sequence numbers that stays
//! small.
//!
//! Invariant: `count` is the number of members. Stretches of 4096 that are all there cost a tag of
//! 16 bytes and no bits, so a run in which nothing is missing costs next to nothing, however long
//! it is.

/// Sequence numbers in one chunk.
const CHUNK: u64 = 4096;

/// Sequence numbers that a ledger takes: a publisher at a million a second for twelve days. Beyond
/// it a number is damage.
pub const SEQUENCE_LIMIT: u64 = 1 << 40;

#[derive(Clone, Debug)]
enum Chunk {
    Empty,
    Some { bits: Box<[u64; CHUNK as usize / 64]>, count: u16 },
    Full,
}

/// A set of sequence numbers.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    chunks: Vec<Chunk>,
    count: u64,
}

impl Ledger {
    /// How many are in it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether this one is in it.
    pub fn contains(&self, sequence: u64) -> bool {
        match self.chunks.get((sequence / CHUNK) as usize) {
            None | Some(Chunk::Empty) => false,
            Some(Chunk::Full) => true,
            Some(Chunk::Some { bits, .. }) => bits[(sequence % CHUNK / 64) as usize] >> (sequence % 64) & 1 == 1,
        }
    }

    /// Adds one; false when it was there already. Numbers from [`SEQUENCE_LIMIT`] on are the
    /// caller's bug.
    #[inline]
    pub fn insert(&mut self, sequence: u64) -> bool {
        let chunk = self.chunk_mut(sequence);
        let (is_new, is_full) = match chunk {
            Chunk::Full => (false, false),
            Chunk::Empty => unreachable!("chunk_mut gave it bits"),
            Chunk::Some { bits, count } => {
                let word = &mut bits[(sequence % CHUNK / 64) as usize];
                let mask = 1 << (sequence % 64);
                let is_new = *word & mask == 0;
                *word |= mask;
                *count += u16::from(is_new);
                (is_new, u64::from(*count) == CHUNK)
            }
        };
        if is_full {
            *chunk = Chunk::Full;
        }
        self.count += u64::from(is_new);
        is_new
    }

    /// Takes one out; false when it was not there.
    pub fn remove(&mut self, sequence: u64) -> bool {
        if !self.contains(sequence) {
            return false;
        }
        let chunk = &mut self.chunks[(sequence / CHUNK) as usize];
        if matches!(chunk, Chunk::Full) {
            *chunk = Chunk::Some { bits: Box::new([u64::MAX; CHUNK as usize / 64]), count: CHUNK as u16 };
        }
        if let Chunk::Some { bits, count } = chunk {
            bits[(sequence % CHUNK / 64) as usize] &= !(1 << (sequence % 64));
            *count -= 1;
        }
        self.count -= 1;
        true
    }

    /// Adds all of `first..limit`, a word of 64 at a time.
    pub fn insert_range(&mut self, first: u64, limit: u64) {
        let mut at = first;
        while at < limit {
            let until = limit.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (until - at))) << (at % 64);
            let chunk = self.chunk_mut(at);
            let mut new = 0;
            if let Chunk::Some { bits, count } = chunk {
                let word = &mut bits[(at % CHUNK / 64) as usize];
                new = (mask & !*word).count_ones();
                *word |= mask;
                *count += new as u16;
                if u64::from(*count) == CHUNK {
                    *chunk = Chunk::Full;
                }
            }
            self.count += u64::from(new);
            at = until;
        }
    }

    /// Those that are here and not in `other`, the first `at_most` of them, and how many there are
    /// in all.
    pub fn missing_in(&self, other: &Ledger, at_most: usize) -> (Vec<u64>, u64) {
        let (mut first, mut count) = (Vec::new(), 0);
        for (at, chunk) in self.chunks.iter().enumerate() {
            if matches!(chunk, Chunk::Empty) || matches!(other.chunks.get(at), Some(Chunk::Full)) {
                continue;
            }
            let start = at as u64 * CHUNK;
            for sequence in (start..start + CHUNK).filter(|s| self.contains(*s) && !other.contains(*s)) {
                count += 1;
                if first.len() < at_most {
                    first.push(sequence);
                }
            }
        }
        (first, count)
    }

    /// The chunk of a number, with bits to set unless it is full.
    fn chunk_mut(&mut self, sequence: u64) -> &mut Chunk {
        assert!(sequence < SEQUENCE_LIMIT, "sequence {sequence} is beyond what a ledger takes");
        let at = (sequence / CHUNK) as usize;
        if at >= self.chunks.len() {
            self.chunks.resize(at + 1, Chunk::Empty);
        }
        let chunk = &mut self.chunks[at];
        if matches!(chunk, Chunk::Empty) {
            *chunk = Chunk::Some { bits: Box::new([0; CHUNK as usize / 64]), count: 0 };
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_ledger_is_a_set(steps in proptest::collection::vec((0u64..10_000, 0u64..5000, 0u8..3), 1..30)) {
            let (mut ledger, mut model, mut half) = (Ledger::default(), BTreeSet::new(), Ledger::default());
            for (first, length, kind) in steps {
                match kind {
                    0 => { ledger.insert_range(first, first + length); model.extend(first..first + length); }
                    1 => prop_assert_eq!(ledger.insert(first), model.insert(first)),
                    _ => prop_assert_eq!(ledger.remove(first), model.remove(&first)),
                }
                prop_assert_eq!(ledger.count(), model.len() as u64);
            }
            model.iter().filter(|s| *s % 2 == 0).for_each(|s| { half.insert(*s); });
            let odd: Vec<u64> = model.iter().copied().filter(|s| s % 2 == 1).collect();
            let (first, count) = ledger.missing_in(&half, 3);
            prop_assert_eq!(count, odd.len() as u64);
            prop_assert_eq!(&first[..], &odd[..odd.len().min(3)]);
        }
    }

    #[test]
    fn a_long_complete_run_costs_next_to_nothing() {
        let mut ledger = Ledger::default();
        ledger.insert_range(0, 1_000_000);
        let with_bits = ledger.chunks.iter().filter(|chunk| matches!(chunk, Chunk::Some { .. })).count();
        assert_eq!(with_bits, 1);
    }
}
