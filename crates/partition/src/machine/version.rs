//! The version of the machine: by which rules entries are applied, and which this build knows
//! (`docs/decisions/0013-machine-versions.md`).
//!
//! Invariant: it is part of the state and only rises; a machine that does not know a version stops there.

use super::Queues;
use std::fmt;

/// The newest version of the machine that this build carries out. A rule that changes what `apply`
/// makes of an entry gets the next one, and the old rule stays beside it.
pub const MACHINE_VERSION: u32 = 1;
/// The version of a state that does not say which it works by.
pub const FIRST_MACHINE_VERSION: u32 = 1;

/// The version that a machine works by, and the newest that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) current: u32,
    pub(crate) newest: u32,
}

impl Default for Versions {
    fn default() -> Self {
        Versions { current: FIRST_MACHINE_VERSION, newest: MACHINE_VERSION }
    }
}

/// Why a process ends that is to apply what a newer build made of a log: whoever takes panics in says these words, and
/// not that there is a bug.
///
/// An entry is decided by then, and passed over by nobody: members would part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenByNewer(String);

impl WrittenByNewer {
    /// Ends the process by a panic with this in it: `what` cannot be read, because of `why`.
    pub fn end(what: &str, why: &dyn fmt::Display) -> ! {
        std::panic::panic_any(WrittenByNewer(format!(
            "{what} cannot be read ({why}); start the version that wrote it, or restore a copy"
        )))
    }
}

impl fmt::Display for WrittenByNewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a machine says of a version that it does not know.
pub(crate) const TOO_NEW: &str = "a newer leveret raised the machine version: start that leveret again";

impl Queues {
    /// Knows versions up to another one than this build does: for simulated clusters whose members
    /// differ.
    pub fn know_versions_to(&mut self, newest: u32) {
        self.versions.newest = newest;
    }

    /// The version of the machine that entries are applied by. It is part of the state.
    pub fn machine_version(&self) -> u32 {
        self.versions.current
    }

    /// Entries are applied by this version from here on; false for one that this machine does not
    /// know.
    #[must_use]
    pub(crate) fn raise_version(&mut self, version: u32) -> bool {
        let is_known = version <= self.versions.newest;
        if is_known {
            // Said twice, or behind a higher one: it is as high already.
            self.versions.current = self.versions.current.max(version);
        }
        is_known
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::checkpoint::{decode_queues_by, encode_queues};
    use crate::entry::{EntryBuilder, EntryDamaged};
    use crate::machine::Unobserved;
    use bytes::Bytes;
    use storage::Location;

    /// A version that no build ships: it shows the mechanism while there is one version only.
    const NEXT: u32 = MACHINE_VERSION + 1;

    fn knows(newest: u32) -> Versions {
        Versions { newest, ..Versions::default() }
    }

    fn raise(version: u32) -> Bytes {
        let mut builder = EntryBuilder::default();
        builder.raise_version(version);
        builder.finish(5).0
    }

    fn apply(queues: &mut Queues, entry: &[u8]) -> Result<(), EntryDamaged> {
        queues.apply(entry, Location { file: storage::FileNo(1), offset: 0, bytes: 0 }, &mut Unobserved)
    }

    fn saved(queues: &Queues) -> Bytes {
        let mut payload = Vec::new();
        encode_queues(queues, &mut payload);
        payload.into()
    }

    #[test]
    fn the_entry_that_raises_the_machine_has_these_bytes() {
        let command = b"\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
        assert_eq!(&raise(2)[crate::entry::ENTRY_HEADER_BYTES..], command);
    }

    #[test]
    fn the_version_is_part_of_the_state_and_only_rises() {
        let (mut one, mut other) = (Queues::new(knows(NEXT)), Queues::new(knows(NEXT)));
        for entry in [raise(1), raise(5)] {
            assert_eq!(apply(&mut one, &entry).is_ok(), entry == raise(1), "nobody knows version 5");
        }
        assert_eq!(one.machine_version(), FIRST_MACHINE_VERSION);
        apply(&mut other, &raise(1)).unwrap();
        assert_eq!((one.state_hash(), saved(&one)), (other.state_hash(), saved(&other)));
        for entry in [raise(NEXT), raise(NEXT), raise(1)] {
            apply(&mut one, &entry).unwrap();
            assert_eq!(one.machine_version(), NEXT);
        }
        assert_ne!(one.state_hash(), other.state_hash(), "members that work by other versions have parted");
    }

    #[test]
    fn a_machine_that_does_not_know_a_version_stops_and_says_what_to_do() {
        let (mut old, mut new) = (Queues::default(), Queues::new(knows(NEXT)));
        let why = apply(&mut old, &raise(NEXT)).unwrap_err().to_string();
        assert!(why.contains("start that leveret again"), "{why}");
        assert_eq!(old.machine_version(), FIRST_MACHINE_VERSION);
        apply(&mut new, &raise(NEXT)).unwrap();
        let why = decode_queues_by(&saved(&new), knows(MACHINE_VERSION)).unwrap_err().to_string();
        assert!(why.contains("start that leveret again"), "{why}");
    }

    #[test]
    fn a_checkpoint_says_its_version_from_the_second_on() {
        let mut queues = Queues::new(knows(NEXT));
        let first = saved(&queues);
        assert_eq!(decode_queues_by(&first, knows(NEXT)).unwrap().machine_version(), FIRST_MACHINE_VERSION);
        apply(&mut queues, &raise(NEXT)).unwrap();
        let second = saved(&queues);
        assert_eq!(second[first.len()..], NEXT.to_le_bytes(), "it stands behind what was there before");
        let back = decode_queues_by(&second, knows(NEXT)).unwrap();
        assert_eq!((back.machine_version(), back.state_hash()), (NEXT, queues.state_hash()));
        let needless = Bytes::from([&first[..], &FIRST_MACHINE_VERSION.to_le_bytes()].concat());
        assert!(decode_queues_by(&needless, knows(NEXT)).is_err(), "one state has one spelling");
    }
}
