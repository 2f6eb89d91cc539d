//! What goes through a shard, counted: for metrics.
//!
//! Invariant: counting on the road of a message is an addition to a cell of the shard's own thread.
//! Other threads see the sums as they were at the end of the shard's last step; a counter never
//! falls.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What went through the node since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that clients published.
    pub published: u64,
    /// Messages that were confirmed.
    pub confirmed: u64,
    /// Messages that were refused on channels that confirm: with `basic.nack`.
    pub refused: u64,
    /// Messages that reached no queue and came back.
    pub returned: u64,
    /// Messages that reached no queue and were dropped.
    pub dropped: u64,
    /// Deliveries to consumers that ack.
    pub delivered: u64,
    /// Deliveries to consumers that do not.
    pub delivered_no_ack: u64,
    /// Messages that `basic.get` took, to be acked.
    pub got: u64,
    /// Messages that `basic.get` took without acks.
    pub got_no_ack: u64,
    /// Times that `basic.get` found nothing.
    pub got_empty: u64,
    /// Deliveries that had been delivered before.
    pub redelivered: u64,
    /// Deliveries that were acked.
    pub acked: u64,
    /// Connections that were let in.
    pub connections_opened: u64,
    /// Connections that were let in and ended.
    pub connections_closed: u64,
    /// Channels opened.
    pub channels_opened: u64,
    /// Channels closed.
    pub channels_closed: u64,
    /// Times that a queue was declared, whether or not it was there.
    pub queues_declared: u64,
}

macro_rules! counters {
    ($($count:ident => $field:ident),* $(,)?) => {
        /// What is counted; [`Traffic`] says what each of them is.
        #[derive(Clone, Copy, Debug)]
        pub enum Count { $(#[doc = concat!("For [`Traffic::", stringify!($field), "`].")] $count),* }

        const COUNTS: usize = [$(Count::$count),*].len();

        impl Published {
            /// Adds what this shard counted to `traffic`.
            pub fn add_to(&self, traffic: &mut Traffic) {
                $(traffic.$field += self.counts[Count::$count as usize].load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    Published => published,
    Confirmed => confirmed,
    Refused => refused,
    Returned => returned,
    Dropped => dropped,
    Delivered => delivered,
    DeliveredNoAck => delivered_no_ack,
    Got => got,
    GotNoAck => got_no_ack,
    GotEmpty => got_empty,
    Redelivered => redelivered,
    Acked => acked,
    ConnectionOpened => connections_opened,
    ConnectionClosed => connections_closed,
    ChannelOpened => channels_opened,
    ChannelClosed => channels_closed,
    QueueDeclared => queues_declared,
}

/// The upper ends of RabbitMQ's buckets for bodies of messages, in bytes; each has at least half of
/// the next.
const SIZES: [u64; 9] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000, u64::MAX];

/// By how many bits a size has: the first bucket that holds one of them.
const FIRST_BUCKET: [u8; 65] = {
    let (mut first, mut bits) = ([0; 65], 1);
    while bits <= 64 {
        let (least, mut at) = (1u64 << (bits - 1), 0);
        while SIZES[at] < least {
            at += 1;
        }
        first[bits] = at as u8;
        bits += 1;
    }
    first
};

#[inline]
fn bucket(bytes: u64) -> usize {
    let first = usize::from(FIRST_BUCKET[(u64::BITS - bytes.leading_zeros()) as usize]);
    first + usize::from(bytes > SIZES[first])
}

/// How large messages were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageSizes {
    counts: [u64; SIZES.len()],
    /// All bodies together.
    pub sum_bytes: u64,
}

impl MessageSizes {
    /// The upper end of each bucket in bytes, the last of which has none, and the messages in it
    /// alone.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let ends = SIZES.iter().map(|end| if *end == u64::MAX { f64::INFINITY } else { *end as f64 });
        ends.zip(self.counts)
    }
}

/// A shard's own counts.
#[derive(Default)]
pub struct Tally {
    counts: [Cell<u64>; COUNTS],
    sizes: [Cell<u64>; SIZES.len()],
    sum_bytes: Cell<u64>,
}

impl Tally {
    /// Counts `count` more.
    #[inline]
    pub fn add(&self, what: Count, count: u64) {
        let cell = &self.counts[what as usize];
        cell.set(cell.get() + count);
    }

    /// Counts the size of a published body.
    #[inline]
    pub fn add_size(&self, bytes: usize) {
        let cell = &self.sizes[bucket(bytes as u64)];
        cell.set(cell.get() + 1);
        self.sum_bytes.set(self.sum_bytes.get() + bytes as u64);
    }
}

/// The counts of a shard, for other threads.
#[derive(Debug, Default)]
pub struct Published {
    counts: [AtomicU64; COUNTS],
    sizes: [AtomicU64; SIZES.len()],
    sum_bytes: AtomicU64,
}

impl Published {
    /// Shows what was counted so far.
    pub fn show(&self, tally: &Tally) {
        let published = Count::Published as usize;
        let has_published = self.counts[published].load(Ordering::Relaxed) != tally.counts[published].get();
        for (shown, count) in self.counts.iter().zip(&tally.counts) {
            shown.store(count.get(), Ordering::Relaxed);
        }
        if has_published {
            for (shown, count) in self.sizes.iter().zip(&tally.sizes) {
                shown.store(count.get(), Ordering::Relaxed);
            }
            self.sum_bytes.store(tally.sum_bytes.get(), Ordering::Relaxed);
        }
    }

    /// Adds the sizes that this shard counted to `sizes`.
    pub fn add_sizes_to(&self, sizes: &mut MessageSizes) {
        sizes.counts.iter_mut().zip(&self.sizes).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        sizes.sum_bytes += self.sum_bytes.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_in_the_first_bucket_that_holds_it() {
        let by_search = |bytes: u64| SIZES.partition_point(|end| *end < bytes);
        let near = |end: u64| [end.saturating_sub(1), end, end.saturating_add(1)];
        let sizes = SIZES.into_iter().flat_map(near).chain((0..64).map(|bits| 1 << bits)).chain([0, 3, 127, 128, 129]);
        for bytes in sizes {
            assert_eq!(bucket(bytes), by_search(bytes), "{bytes}");
        }
        let (tally, shown, mut sizes) = (Tally::default(), Published::default(), MessageSizes::default());
        tally.add(Count::Published, 2);
        [5, 1_001].into_iter().for_each(|bytes| tally.add_size(bytes));
        shown.show(&tally);
        shown.add_sizes_to(&mut sizes);
        let counts: Vec<u64> = sizes.buckets().map(|(_, count)| count).collect();
        assert_eq!((counts, sizes.sum_bytes), (vec![1, 0, 1, 0, 0, 0, 0, 0, 0], 1_006));
    }

    #[test]
    fn what_two_shards_count_is_added_up_once_they_show_it() {
        let (tallies, shown) = ([Tally::default(), Tally::default()], [Published::default(), Published::default()]);
        tallies[0].add(Count::Published, 3);
        tallies[1].add(Count::Published, 4);
        tallies[1].add(Count::ChannelClosed, 1);
        let sum = || {
            let mut traffic = Traffic::default();
            shown.iter().for_each(|one| one.add_to(&mut traffic));
            traffic
        };
        assert_eq!(sum(), Traffic::default());
        shown.iter().zip(&tallies).for_each(|(one, tally)| one.show(tally));
        assert_eq!(sum(), Traffic { published: 7, channels_closed: 1, ..Traffic::default() });
    }
}
