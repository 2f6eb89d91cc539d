//! What the consumers of a channel hold: what was delivered to them and is not settled, as far as the broker was told.
//!
//! Invariant: a delivery is held until the event that settles it is taken. What waits for its turn, or for the commit of a
//! transaction, is held: whoever asks afterwards would not hear of it again.

use super::Connection;
use super::event::Event;
use super::request::Request;
use crate::channel::{ChannelId, Delivered, Deliveries};
use std::collections::HashMap;

impl Connection {
    /// The lowest delivery tag of a consumer that the client has not settled; `None` if there is
    /// none, or no such channel. Costs a look at what is outstanding before it.
    pub fn oldest_unacked(&self, channel: ChannelId, consumer: u32) -> Option<u64> {
        self.channels.look(channel)?.unacked.oldest_of(consumer)
    }

    /// The same of each consumer of a channel that has one. Costs one look at all that is outstanding.
    pub fn oldest_unacked_of_each(&self, channel: ChannelId) -> HashMap<u32, u64> {
        self.channels.look(channel).map(|channel| channel.unacked.oldest_of_each()).unwrap_or_default()
    }

    /// What a consumer holds: first sequence number and count of each run.
    pub fn unacked_of(&self, channel: ChannelId, consumer: u32) -> Vec<(u64, u64)> {
        let mut held = Vec::new();
        let mut add = |run: &Delivered| {
            if run.consumer == consumer {
                held.push((run.first_seq, run.count.into()));
            }
        };
        self.each_untold(channel, &mut add);
        let outstanding = self.channels.look(channel).map(|channel| channel.unacked.of_consumer(consumer));
        outstanding.iter().flatten().for_each(add);
        held
    }

    /// The same of each consumer of a channel that holds something. Costs one look at all that is outstanding.
    pub fn unacked_of_each(&self, channel: ChannelId) -> HashMap<u32, Vec<(u64, u64)>> {
        let mut held: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        let mut add = |run: &Delivered| held.entry(run.consumer).or_default().push((run.first_seq, run.count.into()));
        self.each_untold(channel, &mut add);
        let mut outstanding = Deliveries::new();
        if let Some(channel) = self.channels.look(channel) {
            channel.unacked.collect(&mut outstanding);
        }
        outstanding.iter().for_each(add);
        held
    }

    /// Calls `add` for what the client has settled, and no event says that was taken.
    fn each_untold(&self, channel: ChannelId, add: &mut impl FnMut(&Delivered)) {
        for event in &self.events {
            match event {
                Event::Settle(settle) if settle.channel == channel => settle.deliveries.iter().for_each(&mut *add),
                Event::Request { channel: of, request } if *of == channel => match request {
                    Request::Recover { unsettled } => unsettled.iter().for_each(&mut *add),
                    Request::TxCommit { settles } => settles.iter().flat_map(|(_, runs)| runs).for_each(&mut *add),
                    _ => {}
                },
                _ => {}
            }
        }
        let kept = self.channels.look(channel).and_then(|channel| channel.tx.as_ref());
        for one in kept.into_iter().flat_map(|tx| tx.acked()) {
            add(&Delivered { consumer: one.consumer, first_seq: one.seq, count: 1 });
        }
    }
}
