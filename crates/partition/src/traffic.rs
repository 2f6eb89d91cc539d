//! What clients published into each queue, and what this member wrote to its disk for it, since its
//! node started.
//!
//! Only this member's own: it is no part of the state that members agree on, and a start forgets it.
//! What a start applies again was written before, and does not count; nor does what a member was given
//! to catch up, as nobody published that here. Invariant: a queue without an entry had nothing
//! published to it and nothing written for it.

use crate::entry::{Batch, LogCommand};
use crate::machine::{FixedMap, Observer, schedule_of};
use crate::message::MESSAGE_HEADER_BYTES;
use crate::outputs::ExtentRun;
use broker::QueueId;
use consensus::LogIndex;

/// Of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Bytes of messages that came in: bodies and properties, names of exchanges and routing keys. A
    /// scheduled message counts once it is due.
    pub(crate) published: u64,
    /// Bytes of the log's entries: of its messages, its part of those that other queues have too, and
    /// of what became of them.
    pub(crate) log: u64,
    /// Bytes of extents that its messages were copied to.
    pub(crate) extents: u64,
    /// Bytes of checkpoints.
    pub(crate) checkpoints: u64,
}

/// See the module.
pub(crate) struct Traffic {
    queues: FixedMap<QueueId, Written>,
    /// Entries up to here were written before the start.
    started_behind: LogIndex,
}

impl Traffic {
    /// Of a member that starts with this as the last entry of its log.
    pub(crate) fn new(last: LogIndex) -> Self {
        Traffic { queues: FixedMap::default(), started_behind: last }
    }

    /// Whether an entry was written since the start.
    pub(crate) fn counts(&self, index: LogIndex) -> bool {
        index > self.started_behind
    }

    pub(crate) fn of(&self, queue: QueueId) -> Written {
        self.queues.get(&queue).copied().unwrap_or_default()
    }

    /// The queue, or the one whose scheduled messages it holds.
    fn entry(&mut self, queue: QueueId) -> &mut Written {
        self.queues.entry(schedule_of(queue).unwrap_or(queue)).or_default()
    }

    /// Messages were copied to an extent.
    pub(crate) fn copied<'a>(&mut self, runs: impl Iterator<Item = &'a ExtentRun>) {
        for run in runs {
            self.entry(run.queue).extents += u64::from(run.bytes);
        }
    }

    /// A checkpoint was made, in which the queue takes so many bytes.
    pub(crate) fn saved(&mut self, queue: QueueId, bytes: u64) {
        self.entry(queue).checkpoints += bytes;
    }

    /// Forgets all but these.
    pub(crate) fn retain(&mut self, is_there: impl Fn(QueueId) -> bool) {
        self.queues.retain(|queue, _| is_there(*queue));
    }
}

impl Observer for Traffic {
    #[inline]
    fn published(&mut self, batch: &Batch<'_>) {
        let headers = batch.messages() as usize * MESSAGE_HEADER_BYTES;
        let published = (batch.message_bytes() as usize).saturating_sub(headers) as u64;
        let log = u64::from(batch.bytes()) / batch.target_count().max(1) as u64;
        for queue in batch.targets() {
            let comes_in = schedule_of(queue).is_none();
            let written = self.entry(queue);
            written.log += log;
            written.published += if comes_in { published } else { 0 };
        }
    }

    #[inline]
    fn noted(&mut self, command: &LogCommand<'_>, bytes: usize) {
        if let Some(queue) = command.queue() {
            self.entry(queue).log += bytes as u64;
        }
    }

    fn deleted(&mut self, queue: QueueId) {
        self.queues.remove(&queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Level, Message};
    use crate::entry::{BATCH_HEADER_BYTES, EntryBuilder, Reason};
    use crate::machine::{Queues, scheduled_for};
    use crate::message::Stamp;
    use broker::ChannelKey;
    use bytes::Bytes;
    use storage::{FileNo, Location};

    const A: QueueId = QueueId(1);
    const B: QueueId = QueueId(2);

    fn publish(builder: &mut EntryBuilder, seq: u64, targets: &[QueueId], stamp: Stamp) {
        let slice = |text: &'static str| Bytes::from_static(text.as_bytes());
        let (exchange, routing_key) = (slice("x"), slice("key"));
        let message = Message { exchange, routing_key, properties: slice("\0\0"), body: slice("carrot") };
        builder.publish(ChannelKey(1), seq, targets, &[], &[], Level::Synced, &message, stamp);
    }

    fn applied(traffic: &mut Traffic, queues: &mut Queues, builder: &mut EntryBuilder) -> u64 {
        let (entry, _) = builder.finish(1);
        let body = Location { file: FileNo(1), offset: 0, bytes: entry.len() as u32 };
        queues.apply(&entry, body, traffic).expect("it was just made");
        (entry.len() - crate::entry::ENTRY_HEADER_BYTES) as u64
    }

    #[test]
    fn a_queue_counts_what_came_in_and_its_part_of_the_log() {
        let (mut traffic, mut queues) = (Traffic::new(LogIndex(0)), Queues::default());
        let mut builder = EntryBuilder::default();
        for seq in 1..=3 {
            publish(&mut builder, seq, &[A], Stamp::None);
        }
        builder.settle(A, Reason::Acked, &[(1, 2)]);
        let bytes = applied(&mut traffic, &mut queues, &mut builder);
        let three = Written { published: 3 * 12, log: bytes, ..Written::default() };
        assert_eq!((traffic.of(A), traffic.of(B)), (three, Written::default()));
        // What two queues have is there once, and came in at both.
        publish(&mut builder, 4, &[A, B], Stamp::None);
        let bytes = applied(&mut traffic, &mut queues, &mut builder);
        assert_eq!(traffic.of(B), Written { published: 12, log: bytes / 2, ..Written::default() });
        assert_eq!(traffic.of(A).log - three.log, bytes / 2);
        assert_eq!(bytes, (BATCH_HEADER_BYTES + 2 * 8 + MESSAGE_HEADER_BYTES + 12) as u64, "one message, two queues");
        builder.delete(B);
        applied(&mut traffic, &mut queues, &mut builder);
        assert_eq!(traffic.of(B), Written::default());
    }

    #[test]
    fn what_is_scheduled_is_written_for_its_queue_and_comes_in_when_it_is_due() {
        let (mut traffic, mut queues) = (Traffic::new(LogIndex(0)), Queues::default());
        let mut builder = EntryBuilder::default();
        publish(&mut builder, 1, &[scheduled_for(A)], Stamp::Due(5));
        let bytes = applied(&mut traffic, &mut queues, &mut builder);
        assert_eq!(traffic.of(A), Written { log: bytes, ..Written::default() });
        publish(&mut builder, 0, &[A], Stamp::None);
        builder.settle(scheduled_for(A), Reason::Due, &[(1, 1)]);
        let more = applied(&mut traffic, &mut queues, &mut builder);
        assert_eq!(traffic.of(A), Written { published: 12, log: bytes + more, ..Written::default() });
    }

    #[test]
    fn what_was_written_before_the_start_does_not_count() {
        let traffic = Traffic::new(LogIndex(7));
        assert!(!traffic.counts(LogIndex(7)) && traffic.counts(LogIndex(8)));
    }
}
