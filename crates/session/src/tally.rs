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
                $(traffic.$field += self.0[Count::$count as usize].load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    Published => published,
    Confirmed => confirmed,
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

/// A shard's own counts.
#[derive(Default)]
pub struct Tally([Cell<u64>; COUNTS]);

impl Tally {
    /// Counts `count` more.
    #[inline]
    pub fn add(&self, what: Count, count: u64) {
        let cell = &self.0[what as usize];
        cell.set(cell.get() + count);
    }
}

/// The counts of a shard, for other threads.
#[derive(Debug, Default)]
pub struct Published([AtomicU64; COUNTS]);

impl Published {
    /// Shows what was counted so far.
    pub fn show(&self, tally: &Tally) {
        for (shown, count) in self.0.iter().zip(&tally.0) {
            shown.store(count.get(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
