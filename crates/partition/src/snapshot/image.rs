//! The image of a partition's state that a follower fetches before it fetches messages.
//!
//! ```text
//! u8 version=3, or 4 and u32 machine version where that is above 1 | time u64 | publishers u32 * (life u64, channel u64, last u64)
//! queues u32 * (id u64, next u64, dispatched below u64,
//!               counts u32 * (seq u64, acquired u32, delivery u32), levels and extras (as in checkpoint.rs),
//!               live u32 * (first u64, count u64))
//! ```
//!
//! Invariant: it holds nothing of where bytes lie, so the same state has the same image on every
//! member; what is restored from it hashes as what it was made of.

use crate::checkpoint::{
    CheckpointDamaged, Cursor, decode_extras, encode_extras, put_counts, put_levels, put_publishers, put32, put64,
    sorted_publishers,
};
use crate::machine::{FIRST_MACHINE_VERSION, Queues, Versions};
use crate::outputs::ExtentReady;
use crate::place::Place;
use broker::queue::levels::Stretch;
use broker::queue::{CountMap, Extras, QueueState, Run};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The version that this build writes and reads, of the manifest too.
pub(super) const VERSION: u8 = 3;
/// The version of an image that says which machine version its state works by. Where that is the
/// first, the image stays one that members can read which know no other.
const VERSION_RAISED: u8 = 4;

/// One queue of an image.
#[derive(Debug, PartialEq)]
pub(super) struct QueueImage {
    pub(super) id: QueueId,
    pub(super) next_seq: u64,
    pub(super) dispatched_below: u64,
    pub(super) counts: CountMap,
    pub(super) levels: (u8, Vec<Stretch>),
    pub(super) extras: Extras,
    pub(super) live: Vec<(u64, u64)>,
}

/// The state of a queue partition as of one log index, without the bytes of its messages.
#[derive(Debug, PartialEq)]
pub(super) struct Image {
    pub(super) machine_version: u32,
    pub(super) time_ms: u64,
    pub(super) publishers: Vec<(ChannelKey, u64)>,
    pub(super) queues: Vec<QueueImage>,
}

/// The image of a state.
pub(super) fn encode(queues: &Queues) -> Vec<u8> {
    let mut out = vec![VERSION];
    if queues.machine_version() > FIRST_MACHINE_VERSION {
        out[0] = VERSION_RAISED;
        put32(&mut out, queues.machine_version());
    }
    put64(&mut out, queues.time_ms);
    put_publishers(&sorted_publishers(queues), &mut out);
    let ids = queues.queue_ids();
    put32(&mut out, ids.len() as u32);
    for id in ids {
        let state = &queues.queues[&id];
        put64(&mut out, id.0);
        put64(&mut out, state.next_seq());
        put64(&mut out, state.dispatched_below());
        put_counts(state.counts(), &mut out);
        put_levels(state.levels(), &mut out);
        encode_extras(state.extras(), &mut out);
        let live = live_ranges(state);
        put32(&mut out, live.len() as u32);
        for (first, count) in live {
            put64(&mut out, first);
            put64(&mut out, count);
        }
    }
    out
}

/// The live messages of a queue, as ranges `(first, count)` that do not touch.
fn live_ranges(state: &QueueState<Place>) -> Vec<(u64, u64)> {
    let mut live: Vec<(u64, u64)> = Vec::new();
    for (first, count) in state.runs().iter().flat_map(Run::live_ranges) {
        match live.last_mut() {
            Some((last, so_far)) if *last + *so_far == first => *so_far += count,
            _ => live.push((first, count)),
        }
    }
    live
}

impl QueueImage {
    /// The number below which a member has all messages that the image has live, in a state of an earlier
    /// index: what has ended lives no more, so nothing that came before that index lives now and not then. 0
    /// where it lacks one, as one that was given up here and not by the others.
    pub(super) fn kept_below(&self, own: &Queues) -> u64 {
        let Some(state) = own.queue(self.id) else { return 0 };
        let below = state.next_seq().min(self.next_seq);
        let mut there = live_ranges(state).into_iter().peekable();
        let has_all = self.live.iter().take_while(|(first, _)| *first < below).all(|(first, count)| {
            let past = (first + count).min(below);
            while there.next_if(|(from, many)| from + many <= *first).is_some() {}
            there.peek().is_some_and(|(from, many)| from <= first && past <= from + many)
        });
        if has_all { below } else { 0 }
    }
}

impl Image {
    /// Reads what [`encode`] wrote; anything else is refused whole.
    pub(super) fn decode(bytes: &Bytes, versions: Versions) -> Result<Image, CheckpointDamaged> {
        let mut cursor = Cursor::new(bytes);
        let machine_version = match cursor.u8()? {
            VERSION => FIRST_MACHINE_VERSION,
            VERSION_RAISED => cursor.machine_version(versions)?,
            _ => return Err(cursor.damaged("a version that this build does not know")),
        };
        let time_ms = cursor.u64()?;
        let publishers = cursor.publishers()?;
        let mut queues = Vec::new();
        for _ in 0..cursor.u32()? {
            let (id, next_seq, dispatched_below) = (QueueId(cursor.u64()?), cursor.u64()?, cursor.u64()?);
            let counts = cursor.counts()?;
            let levels = cursor.levels()?;
            let extras = decode_extras(&mut cursor)?;
            let (mut live, mut past) = (Vec::new(), 1);
            for _ in 0..cursor.u32()? {
                let (first, count) = (cursor.u64()?, cursor.u64()?);
                let end = first.checked_add(count).filter(|end| count > 0 && first >= past && *end <= next_seq);
                past = end.ok_or_else(|| cursor.damaged("live ranges out of order"))?;
                live.push((first, count));
            }
            queues.push(QueueImage { id, next_seq, dispatched_below, counts, levels, extras, live });
        }
        cursor.end()?;
        Ok(Image { machine_version, time_ms, publishers, queues })
    }

    /// The state that an image tells, with its messages where they were written: in `own`, an earlier state
    /// of this member, those of each queue below the number that is `kept` of it, the others in `extents`.
    pub(super) fn restore(self, extents: &[ExtentReady], own: &Queues, kept: &[u64], versions: Versions) -> Queues {
        let mut queues = Queues::new(Versions { current: self.machine_version, ..versions });
        queues.time_ms = self.time_ms;
        queues.remember_publishers(self.publishers);
        queues.raise_highest_extent(own.highest_extent());
        for (id, used) in own.extents() {
            queues.add_extent(*id, used.messages, used.bytes);
        }
        let mut runs: BTreeMap<QueueId, Vec<(u64, u64, Place)>> = BTreeMap::new();
        for (queue, below) in self.queues.iter().zip(kept) {
            let there = own.queue(queue.id).into_iter().flat_map(|state| state.runs().iter());
            let there = there.take_while(|run| run.past() <= *below).map(|run| (run.first, run.past(), run.place));
            runs.insert(queue.id, there.collect());
        }
        for extent in extents {
            queues.add_ready(extent);
            for run in &extent.runs {
                let place = Place::Extent { id: extent.id, run: run.run };
                runs.entry(run.queue).or_default().push((run.first, run.past, place));
            }
        }
        for queue in self.queues {
            let mut places = runs.remove(&queue.id).unwrap_or_default();
            places.sort_unstable_by_key(|run| run.0);
            let of = |(first, past, place): (u64, u64, Place)| {
                let within = queue.live.iter().filter_map(move |&(from, count)| {
                    let (low, high) = (from.max(first), (from + count).min(past));
                    (low < high).then(|| (low, high - low))
                });
                Run::restore(first, (past - first) as u32, place, within)
            };
            let restored: Vec<_> = places.into_iter().filter_map(of).collect();
            let live: u64 = restored.iter().map(|run| u64::from(run.live())).sum();
            assert_eq!(live, queue.live.iter().map(|l| l.1).sum::<u64>(), "every live message was written somewhere");
            let mut state = QueueState::restore(queue.next_seq, queue.dispatched_below, restored, queue.counts);
            state.restore_levels(queue.levels.0, &queue.levels.1);
            state.restore_extras(queue.extras);
            queues.restore(queue.id, state);
        }
        queues
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::command::{Level, Message};
    use crate::entry::{EntryBuilder, Reason};
    use crate::machine::Unobserved;
    use crate::message::Stamp;
    use crate::outputs::ExtentRun;
    use broker::queue::LevelRule;
    use proptest::prelude::*;
    use storage::{FileNo, Location};

    /// What a leader may log of three queues.
    #[derive(Clone, Debug)]
    enum Step {
        Publish { queue: u64, count: u8, priority: Option<u8>, due: bool },
        Settle { queue: u64, first: u64, count: u64 },
        Requeue { queue: u64, seq: u64 },
        Retry { queue: u64, seq: u64 },
        Dead { queue: u64, seq: u64 },
        Sent { queue: u64, below: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let (queue, seq) = (1..4u64, 1..30u64);
        prop_oneof![
            3 => (queue.clone(), 1..5u8, prop::option::of(0..10u8), prop::bool::weighted(0.1))
                .prop_map(|(queue, count, priority, due)| Step::Publish { queue, count, priority, due }),
            2 => (queue.clone(), seq.clone(), 1..4u64).prop_map(|(queue, first, count)| Step::Settle { queue, first, count }),
            1 => (queue.clone(), seq.clone()).prop_map(|(queue, seq)| Step::Requeue { queue, seq }),
            1 => (queue.clone(), seq.clone()).prop_map(|(queue, seq)| Step::Retry { queue, seq }),
            1 => (queue.clone(), seq.clone()).prop_map(|(queue, seq)| Step::Dead { queue, seq }),
            1 => (queue, seq).prop_map(|(queue, below)| Step::Sent { queue, below }),
        ]
    }

    fn state_after(steps: &[Step]) -> Queues {
        let mut queues = Queues::default();
        let mut published = 0;
        for (number, step) in steps.iter().enumerate() {
            let mut builder = EntryBuilder::default();
            match *step {
                Step::Publish { queue, count, priority, due } => {
                    for _ in 0..count {
                        published += 1;
                        let properties = priority.map_or(vec![0, 0], |priority| vec![0x08, 0, priority]);
                        let message = Message {
                            exchange: Bytes::new(),
                            routing_key: Bytes::from_static(b"q"),
                            properties: properties.into(),
                            body: Bytes::from_static(b"body"),
                        };
                        let rules = [LevelRule::Strict];
                        let rules = if priority.is_some() { &rules[..] } else { &[] };
                        let stamp = if due { Stamp::Due(1000 + published) } else { Stamp::Since(published) };
                        let (publisher, targets) = (ChannelKey(9), [QueueId(queue)]);
                        builder.publish(publisher, published, &targets, rules, &[], Level::Synced, &message, stamp);
                    }
                }
                Step::Settle { queue, first, count } => {
                    builder.settle(QueueId(queue), Reason::Acked, &[(first, count)])
                }
                Step::Requeue { queue, seq } => builder.requeue(QueueId(queue), true, &[(seq, 1)]),
                Step::Retry { queue, seq } => builder.retry(QueueId(queue), false, 5000, &[(seq, 1)]),
                Step::Dead { queue, seq } => builder.dead(QueueId(queue), Reason::Expired, &[(seq, 1)]),
                Step::Sent { queue, below } => builder.sent(QueueId(queue), below),
            }
            let (entry, _) = builder.finish(number as u64);
            let at = Location { file: FileNo(1), offset: 4096 * (number as u32 + 1), bytes: entry.len() as u32 };
            queues.apply(&entry, at, &mut Unobserved).unwrap();
        }
        queues
    }

    /// Extents as a follower writes them: everything live, so many messages each.
    fn extents_of(image: &Image, messages_max: usize) -> Vec<ExtentReady> {
        let live =
            |q: &QueueImage| q.live.iter().flat_map(|(f, c)| *f..f + c).map(|seq| (q.id, seq)).collect::<Vec<_>>();
        let all: Vec<(QueueId, u64)> = image.queues.iter().flat_map(live).collect();
        let extents = all.chunks(messages_max).enumerate().map(|(number, messages)| {
            let mut runs: Vec<ExtentRun> = Vec::new();
            for (queue, seq) in messages {
                match runs.last_mut().filter(|run| run.queue == *queue) {
                    Some(run) => run.past = seq + 1,
                    None => {
                        let run = runs.len() as u32;
                        runs.push(ExtentRun {
                            queue: *queue,
                            run,
                            first: *seq,
                            past: seq + 1,
                            messages: 1,
                            bytes: 100,
                        });
                    }
                }
            }
            let messages = messages.len() as u64;
            ExtentReady { id: number as u32 + 1, bytes: 100 * messages, messages, runs, copied: Vec::new() }
        });
        extents.collect()
    }

    proptest! {
        #[test]
        fn what_is_restored_from_an_image_is_the_state_that_it_was_made_of(
            steps in prop::collection::vec(step(), 0..40),
            messages_max in 1..20usize,
        ) {
            let queues = state_after(&steps);
            let bytes = Bytes::from(encode(&queues));
            let image = Image::decode(&bytes, Versions::default()).unwrap();
            let extents = extents_of(&image, messages_max);
            let restored = image.restore(&extents, &Queues::default(), &[], Versions::default());
            prop_assert_eq!(restored.state_hash(), queues.state_hash());
            let again = Image::decode(&Bytes::from(encode(&restored)), Versions::default()).unwrap();
            let again = again.restore(&extents, &Queues::default(), &[], Versions::default());
            prop_assert_eq!(again.state_hash(), queues.state_hash(), "and so on from member to member");
            prop_assert_eq!(restored.wal_run_count(), 0, "nothing of it lies in this member's log");
        }

        #[test]
        fn an_image_that_is_cut_or_goes_on_is_refused(steps in prop::collection::vec(step(), 1..20), cut in 0.0..1.0f64) {
            let mut bytes = encode(&state_after(&steps));
            let at = (bytes.len() as f64 * cut) as usize;
            prop_assert!(Image::decode(&Bytes::copy_from_slice(&bytes[..at]), Versions::default()).is_err());
            bytes.push(0);
            prop_assert!(Image::decode(&Bytes::from(bytes), Versions::default()).is_err());
        }

        #[test]
        fn no_bytes_make_decoding_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = Image::decode(&Bytes::from(bytes), Versions::default());
        }
    }

    #[test]
    fn an_image_is_one_that_others_can_read_until_the_machine_is_raised() {
        let next = crate::machine::MACHINE_VERSION + 1;
        let knows = |newest| Versions { newest, ..Versions::default() };
        let mut queues = Queues::new(knows(next));
        assert_eq!(encode(&queues)[0], 3);
        assert!(queues.raise_version(next));
        let bytes = Bytes::from(encode(&queues));
        assert_eq!(bytes[..5], [&[4][..], &next.to_le_bytes()].concat());
        let restored = Image::decode(&bytes, knows(next)).unwrap().restore(&[], &Queues::default(), &[], knows(next));
        assert_eq!((restored.machine_version(), restored.state_hash()), (next, queues.state_hash()));
        let why = Image::decode(&bytes, knows(next - 1)).unwrap_err().to_string();
        assert!(why.contains("start that leveret again"), "{why}");
    }
}
