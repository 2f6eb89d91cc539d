//! How many messages a damaged log has lost that nobody can count: an estimate from the entries
//! beside the missing ones.
//!
//! A missing entry may have published one message or a thousand, or none. Those that can be read
//! say how many one entry of the same partition published on average, and, where the log breaks off
//! and not even the entries can be counted, how many came with so many bytes. Invariant: something
//! that was lost is never told as nothing: what cannot be estimated is told as unknown.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use partition::salvage::published_in;
use storage::wal::{Damage, Location, Recovery as WalReport};
use storage::{FileNo, RecordKind};

/// The log's frames begin at pages, or right behind the one before.
const PAGE_BYTES: u32 = 4096;

/// Messages that were given up and cannot be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uncounted {
    /// There are none.
    #[default]
    Nothing,
    /// About so many.
    About(u64),
    /// Nothing is left to estimate them from.
    Unknown,
}

impl Uncounted {
    /// What is left of an estimate once so many of its messages were counted.
    pub(super) fn beside(self, counted: u64) -> Uncounted {
        match self {
            Uncounted::About(count) => Uncounted::About(count.saturating_sub(counted)),
            other => other,
        }
    }
}

impl AddAssign for Uncounted {
    fn add_assign(&mut self, more: Uncounted) {
        *self = match (*self, more) {
            (Uncounted::Nothing, other) | (other, Uncounted::Nothing) => other,
            (Uncounted::About(one), Uncounted::About(other)) => Uncounted::About(one + other),
            (Uncounted::Unknown, _) | (_, Uncounted::Unknown) => Uncounted::Unknown,
        };
    }
}

impl fmt::Display for Uncounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Uncounted::Nothing => f.write_str("none"),
            Uncounted::About(count) => write!(f, "about {count}"),
            Uncounted::Unknown => f.write_str("an unknown number"),
        }
    }
}

/// What the readable entries of a log published.
#[derive(Debug, Default)]
pub(super) struct Density {
    /// By partition: entries and messages.
    of: BTreeMap<u32, (u64, u64)>,
    /// By file of the log: where its first readable record begins, and where its last one ends. What lies between them
    /// is what the messages took, with the headers and the padding of whole pages: a message alone may take one.
    spans: BTreeMap<FileNo, (u32, u32)>,
    last: Option<(FileNo, u32)>,
}

impl Density {
    /// Takes a record of a queue partition in.
    pub(super) fn note(&mut self, partition: u32, kind: RecordKind, body: &[u8], at: Location) {
        self.note_place(at);
        if kind == RecordKind::Entry {
            let (entries, messages) = self.of.entry(partition).or_default();
            *entries += 1;
            *messages += published_in(body);
        }
    }

    /// Takes the place of a record in that publishes nothing.
    pub(super) fn note_place(&mut self, at: Location) {
        self.last = self.last.max(Some((at.file, at.offset)));
        let end = at.offset.saturating_add(at.bytes);
        let span = self.spans.entry(at.file).or_insert((at.offset, end));
        *span = (span.0.min(at.offset), span.1.max(end));
    }

    /// What so many entries of a partition published.
    pub(super) fn of_entries(&self, partition: u32, count: u64) -> Uncounted {
        match self.of.get(&partition) {
            Some((entries, messages)) => Uncounted::About(share(count, *messages, *entries)),
            None => Uncounted::Unknown,
        }
    }

    /// The places behind the last record that can be read, from `first` on: which entries lay
    /// there, and how many, nothing says.
    pub(super) fn behind_the_end<'a>(
        &self,
        report: &'a WalReport,
        first: FileNo,
    ) -> impl Iterator<Item = &'a Damage> + use<'a> {
        let last = self.last.unwrap_or((FileNo(0), 0));
        let is_behind = move |damage: &&Damage| (damage.file, damage.offset) > last && damage.file >= first;
        report.damage.iter().filter(|damage| damage.record.is_none()).filter(is_behind)
    }

    /// How many bytes of the log could be read, in whole pages.
    fn bytes_read(&self, report: &WalReport) -> u64 {
        let pages =
            |(first, end): &(u32, u32)| u64::from(end.next_multiple_of(PAGE_BYTES) - first / PAGE_BYTES * PAGE_BYTES);
        let between = |damage: &&Damage| {
            self.spans.get(&damage.file).is_some_and(|(first, end)| (*first..*end).contains(&damage.offset))
        };
        let damaged = report.damage.iter().filter(between).map(|damage| u64::from(damage.bytes)).sum();
        self.spans.values().map(pages).sum::<u64>().saturating_sub(damaged)
    }

    /// What came with so many bytes of the log; 0 are an unknown number of bytes.
    pub(super) fn of_bytes(&self, bytes: u64, report: &WalReport) -> Uncounted {
        let messages: u64 = self.of.values().map(|(_, messages)| messages).sum();
        match (bytes, self.bytes_read(report)) {
            (0, _) | (_, 0) => Uncounted::Unknown,
            (bytes, all) => Uncounted::About(share(bytes, messages, all)),
        }
    }
}

/// `count` times `of` over `by`, without overflow and rounded up: a little is not nothing.
fn share(count: u64, of: u64, by: u64) -> u64 {
    let product = u128::from(count) * u128::from(of);
    u64::try_from(product.div_ceil(u128::from(by.max(1)))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> WalReport {
        WalReport::default()
    }

    fn at(offset: u32, bytes: u32) -> Location {
        Location { file: FileNo(3), offset, bytes }
    }

    /// As a publisher writes them that waits for each confirm.
    #[test]
    fn messages_that_take_a_page_each_are_not_estimated_by_their_own_bytes() {
        let mut density = Density::default();
        (1..=10).for_each(|page| density.note_place(at(page * PAGE_BYTES + 80, 200)));
        density.of.insert(1, (10, 10));
        assert_eq!(density.of_bytes(u64::from(30 * PAGE_BYTES), &whole()), Uncounted::About(30));
        let damage = Damage {
            file: FileNo(3),
            name: "wal/00000003.wal".to_owned(),
            offset: 4 * PAGE_BYTES,
            bytes: 5 * PAGE_BYTES,
            what: "frame",
            record: None,
        };
        let report = WalReport { damage: vec![damage], ..whole() };
        assert_eq!(density.of_bytes(u64::from(30 * PAGE_BYTES), &report), Uncounted::About(60), "5 pages were read");
    }

    #[test]
    fn what_cannot_be_estimated_is_never_told_as_nothing() {
        let mut sum = Uncounted::Nothing;
        for (more, told) in [
            (Uncounted::Nothing, "none"),
            (Uncounted::About(3), "about 3"),
            (Uncounted::About(4), "about 7"),
            (Uncounted::Unknown, "an unknown number"),
            (Uncounted::About(1), "an unknown number"),
        ] {
            sum += more;
            assert_eq!(sum.to_string(), told);
        }
        let mut density = Density::default();
        assert_eq!(
            (density.of_entries(1, 1), density.of_bytes(10, &whole())),
            (Uncounted::Unknown, Uncounted::Unknown)
        );
        density.of.insert(1, (4, 10));
        density.note_place(at(PAGE_BYTES, 1000));
        assert_eq!((density.of_entries(1, 2), density.of_entries(2, 2)), (Uncounted::About(5), Uncounted::Unknown));
        let of = |bytes| density.of_bytes(bytes, &whole());
        assert_eq!((of(600), of(0)), (Uncounted::About(2), Uncounted::Unknown));
    }
}
