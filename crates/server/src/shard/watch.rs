//! Traced publishes in the hands of the partitions of a shard, until they are safe there.
//!
//! Invariant: a publish that was handed over before a step is in its partition's last entry after it, so
//! that entry's way through the log is the publish's. What a step hears of the log was so when it began:
//! that is the time which counts, and no confirm that follows is earlier. Nothing here is on the road of a
//! message that is not traced.

use broker::PartitionId;
use node::Progress;
use session::{Moment, Span};
use std::cell::{Cell, RefCell};

/// So many at once; further ones are given up.
const WATCHED_MAX: usize = 1024;

/// How far one has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It waits for the shard's step.
    Waits,
    /// The step that begins takes it in.
    Taken,
    /// It is in the entry of this index.
    InEntry(u64),
}

struct Watched {
    partition: PartitionId,
    place: Place,
    span: Box<Span>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Watch {
    all: RefCell<Vec<Watched>>,
    /// When the step under way began.
    step_us: Cell<u64>,
}

impl Watch {
    /// Whether nothing is watched.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// A publish was handed to a partition. Gives its span back if there are too many.
    pub(crate) fn push(&self, partition: PartitionId, span: Box<Span>) -> Option<Box<Span>> {
        let mut all = self.all.borrow_mut();
        if all.len() >= WATCHED_MAX {
            return Some(span);
        }
        all.push(Watched { partition, place: Place::Waits, span });
        None
    }

    /// A step begins that takes in what waits.
    pub(crate) fn begin_step(&self, now_us: u64) {
        self.step_us.set(now_us);
        for watched in self.all.borrow_mut().iter_mut().filter(|watched| watched.place == Place::Waits) {
            watched.place = Place::Taken;
            watched.span.pass(Moment::Queued, now_us);
        }
    }

    /// The step is over, and partitions are where `progress` says, if they are led here; gives the spans
    /// that end with that, each with an error if it came to nothing.
    pub(crate) fn end_step(&self, progress: impl Fn(PartitionId) -> Option<Progress>, mut end: impl FnMut(Box<Span>)) {
        let (mut all, now_us) = (self.all.borrow_mut(), self.step_us.get());
        let done = all.extract_if(.., |watched| {
            let Watched { partition, place, span } = watched;
            let now = match (*place, progress(*partition)) {
                (Place::Waits, _) => return false,
                // In memory it is as safe as it gets.
                (_, None) if partition.is_in_memory() => return true,
                (_, None) => {
                    span.error = Some("leader_lost");
                    return true;
                }
                (_, Some(now)) => now,
            };
            let index = match *place {
                Place::InEntry(index) => index,
                Place::Waits | Place::Taken => now.last,
            };
            *place = Place::InEntry(index);
            let passed =
                [(Moment::Written, now.written), (Moment::Synced, now.synced), (Moment::Replicated, now.committed)];
            for (moment, up_to) in passed {
                let is_new = span.moments.iter().all(|(known, _)| *known != moment);
                if is_new && up_to >= index {
                    span.pass(moment, now_us);
                }
            }
            now.committed >= index
        });
        for Watched { mut span, .. } in done {
            span.end_us = now_us;
            end(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::tests::span;

    const P: PartitionId = PartitionId(1);

    #[expect(clippy::vec_box, reason = "they come boxed")]
    fn step(watch: &Watch, now_us: u64, progress: Option<Progress>) -> Vec<Box<Span>> {
        let ended: RefCell<Vec<Box<Span>>> = RefCell::default();
        watch.begin_step(now_us);
        watch.end_step(|_| progress, |span| ended.borrow_mut().push(span));
        ended.take()
    }

    fn at(last: u64, written: u64, synced: u64, committed: u64) -> Option<Progress> {
        Some(Progress { last, written, synced, committed })
    }

    #[test]
    fn a_publish_passes_the_log_and_ends_once_a_majority_has_it() {
        let watch = Watch::default();
        assert!(watch.push(P, span()).is_none());
        assert!(step(&watch, 100, at(7, 6, 6, 6)).is_empty());
        // What follows it is in later entries.
        assert!(step(&watch, 200, at(8, 7, 6, 6)).is_empty());
        assert!(step(&watch, 300, at(9, 8, 7, 6)).is_empty());
        let [ended] = &step(&watch, 400, at(9, 9, 9, 7))[..] else { panic!("it is done") };
        let moments: Vec<_> = ended.moments.iter().skip(1).copied().collect();
        let expected =
            [(Moment::Queued, 100), (Moment::Written, 200), (Moment::Synced, 300), (Moment::Replicated, 400)];
        assert_eq!((moments, ended.end_us, ended.error), (expected.to_vec(), 400, None));
        assert!(watch.is_empty());
    }

    #[test]
    fn what_comes_after_a_step_waits_for_the_next_one() {
        let watch = Watch::default();
        watch.begin_step(1);
        watch.push(P, span());
        watch.end_step(|_| at(5, 5, 5, 5), |_| panic!("it is in no entry"));
        assert_eq!(step(&watch, 3, at(6, 6, 6, 6)).len(), 1);
    }

    #[test]
    fn what_its_leader_loses_is_told_and_what_is_in_memory_is_safe_at_once() {
        let watch = Watch::default();
        watch.push(P, span());
        step(&watch, 1, at(5, 4, 4, 4));
        assert_eq!(step(&watch, 2, None)[0].error, Some("leader_lost"));
        watch.push(PartitionId::in_memory(broker::NodeNumber(0), 0), span());
        assert_eq!(step(&watch, 3, None)[0].error, None);
    }

    #[test]
    fn there_is_a_limit() {
        let watch = Watch::default();
        let given_back = Cell::new(0);
        (0..WATCHED_MAX + 2)
            .for_each(|_| given_back.set(given_back.get() + usize::from(watch.push(P, span()).is_some())));
        assert_eq!(given_back.get(), 2);
    }
}
