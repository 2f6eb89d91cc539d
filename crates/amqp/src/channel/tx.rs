//! The transaction of one channel: the acks that wait for its commit, and the publishes whose
//! confirms the commit awaits.
//!
//! Invariant: an ack that waits here is not outstanding in `Unacked`, so that a tag is acked once;
//! a rollback puts it back under its tag. `tx.commit-ok` goes out when the broker has carried
//! everything out and every publish of the transaction is as safe as its queues promise. Absent on
//! purpose: the messages, which the session holds after it has checked them, and atomicity over
//! several queues, which RabbitMQ does not give either.

use super::Deliveries;
use super::unacked::{Tagged, Unacked, push_delivered};
use crate::connection::event::Settlement;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    /// The number of the last publish; they are numbered like those of a channel in confirm mode.
    last_seq: u64,
    /// Publishes up to this number were committed or rolled back.
    ended_seq: u64,
    /// Publishes of the commit under way that are not confirmed yet.
    awaited: u64,
    /// One of them was refused.
    refused: bool,
    /// The broker has carried the commit out; only confirms are missing.
    carried_out: bool,
    acks: Vec<(Settlement, Vec<Tagged>)>,
}

impl Tx {
    /// The number of the next publish, from 1.
    pub(crate) fn next_publish_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// Keeps an ack until the end of the transaction.
    pub(crate) fn keep(&mut self, outcome: Settlement, deliveries: Vec<Tagged>) {
        match self.acks.last_mut() {
            _ if deliveries.is_empty() => {}
            Some((last, kept)) if *last == outcome => kept.extend(deliveries),
            _ => self.acks.push((outcome, deliveries)),
        }
    }

    /// What the acks that wait settle, in their order.
    pub(crate) fn acked(&self) -> impl Iterator<Item = Tagged> + '_ {
        self.acks.iter().flat_map(|(_, tagged)| tagged).copied()
    }

    /// Begins the commit: what is to be settled, in the order of the acks.
    pub(crate) fn commit(&mut self) -> Vec<(Settlement, Deliveries)> {
        self.awaited = self.last_seq - self.ended_seq;
        self.ended_seq = self.last_seq;
        (self.refused, self.carried_out) = (false, false);
        let runs = |(outcome, tagged): (Settlement, Vec<Tagged>)| {
            let mut runs = Deliveries::new();
            tagged.iter().for_each(|one| push_delivered(&mut runs, one.consumer, one.seq, 1));
            (outcome, runs)
        };
        std::mem::take(&mut self.acks).into_iter().map(runs).collect()
    }

    /// Ends the transaction without effect: acked deliveries are outstanding again.
    pub(crate) fn rollback(&mut self, unacked: &mut Unacked) {
        self.ended_seq = self.last_seq;
        let acks = std::mem::take(&mut self.acks);
        unacked.restore(acks.into_iter().flat_map(|(_, tagged)| tagged).collect());
    }

    /// The broker has carried the commit out.
    pub(crate) fn note_carried_out(&mut self) {
        self.carried_out = true;
    }

    /// One publish of the commit was answered.
    pub(crate) fn note_confirm(&mut self, refused: bool) {
        assert!(self.awaited > 0, "a publish is confirmed once, after it was committed");
        self.awaited -= 1;
        self.refused |= refused;
    }

    /// How the commit ended, if it did: whether everything was taken.
    pub(crate) fn end_of_commit(&self) -> Option<bool> {
        (self.carried_out && self.awaited == 0).then_some(!self.refused)
    }

    /// Bytes of memory held.
    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.acks.iter().map(|(_, tagged)| tagged.capacity() * size_of::<Tagged>()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_one_by_one_are_carried_out_together_in_their_order() {
        let mut tx = Tx::default();
        let one = |seq| vec![Tagged { tag: seq + 1, consumer: 7, seq }];
        (0..100).for_each(|seq| tx.keep(Settlement::Ack, one(seq)));
        tx.keep(Settlement::Reject { requeue: true }, one(100));
        tx.keep(Settlement::Ack, one(102));
        tx.keep(Settlement::Ack, one(101));
        let runs: Vec<Vec<(u64, u32)>> =
            tx.commit().iter().map(|(_, runs)| runs.iter().map(|run| (run.first_seq, run.count)).collect()).collect();
        assert_eq!(runs, [vec![(0, 100)], vec![(100, 1)], vec![(102, 1), (101, 1)]]);
    }
}
