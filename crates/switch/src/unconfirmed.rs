//! Publishes of this shard's channels that want a confirm and have none yet, kept to be sent again
//! when their leader goes.
//!
//! What is kept are the slices that went out: nothing is copied but what names them. Invariants: a
//! publish is at any time on its way to one node at most, and is answered once, by that node, by the
//! next one, or by this shard when its time is over. Those of one channel to one partition are sent
//! in the order of their numbers, the first time and again: none goes out while one before it waits.

use broker::{ChannelKey, NodeNumber, PartitionId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::{Effect, Publish};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    partitions: HashMap<PartitionId, OfPartition, FixedState>,
    /// Bytes of those that wait to be sent again.
    lost_bytes: u64,
}

/// First number and how many, of publishes in rows.
pub(crate) type Rows = SmallVec<[(u64, u64); 1]>;

/// What waits for one partition's answers.
#[derive(Debug)]
struct OfPartition {
    /// Whom they were sent to.
    to: NodeNumber,
    /// Few in most cases: who publishes to one partition at a time from one shard.
    channels: HashMap<ChannelKey, VecDeque<Slot>, FixedState>,
    /// How many are on their way.
    sent: usize,
    /// How many are to be sent again.
    lost: usize,
}

#[derive(Debug)]
struct Slot {
    publish: Publish,
    is_lost: bool,
}

impl Slot {
    fn bytes(&self) -> u64 {
        (self.publish.message.body.len() + size_of::<Slot>()) as u64
    }
}

/// The stretch of a channel's publishes that have these numbers.
fn numbered(slots: &VecDeque<Slot>, first: u64, count: u64) -> std::ops::Range<usize> {
    // Answers come in order, nearly always.
    let begin = match slots.front() {
        Some(slot) if slot.publish.publish_seq >= first => 0,
        _ => slots.partition_point(|slot| slot.publish.publish_seq < first),
    };
    let past = first.saturating_add(count);
    let taken = slots.range(begin..).take_while(|slot| slot.publish.publish_seq < past).count();
    begin..begin + taken
}

impl Unconfirmed {
    /// A publish leaves for the node that leads its partition.
    pub(crate) fn note(&mut self, partition: PartitionId, to: NodeNumber, publish: &Publish) {
        let new = || OfPartition { to, channels: HashMap::default(), sent: 0, lost: 0 };
        let of = self.partitions.entry(partition).or_insert_with(new);
        assert!(of.to == to || of.sent == 0, "what was sent to one node is answered before another one is turned to");
        of.to = to;
        of.sent += 1;
        let slots = of.channels.entry(publish.channel).or_default();
        assert!(
            slots.back().is_none_or(|last| last.publish.publish_seq < publish.publish_seq && !last.is_lost),
            "publishes of a channel leave in order"
        );
        slots.push_back(Slot { publish: publish.clone(), is_lost: false });
    }

    /// The node that was sent what is not answered yet, if anything is on its way.
    #[inline]
    pub(crate) fn is_sent_to(&self, partition: PartitionId) -> Option<NodeNumber> {
        if self.partitions.is_empty() {
            return None;
        }
        self.partitions.get(&partition).filter(|of| of.sent > 0).map(|of| of.to)
    }

    /// Bytes that wait to be sent again.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// A node confirmed or refused publishes: those of them, in rows, that are on their way to it. What
    /// it says of a copy that was sent before is passed over, though it is true: others of the channel
    /// stand before it that are to be sent again, and are confirmed first.
    pub(crate) fn answered(
        &mut self,
        from: NodeNumber,
        partition: PartitionId,
        (channel, first, count): (ChannelKey, u64, u64),
    ) -> Rows {
        let mut rows = Rows::new();
        let Some(of) = self.partitions.get_mut(&partition).filter(|of| of.to == from) else { return rows };
        let Some(slots) = of.channels.get_mut(&channel) else { return rows };
        let which = numbered(slots, first, count);
        let mut at = which.start;
        let mut tell = |seq| match rows.last_mut() {
            Some((first, count)) if *first + *count == seq => *count += 1,
            _ => rows.push((seq, 1)),
        };
        if slots.range(which.clone()).any(|slot| slot.is_lost) {
            for _ in which {
                match slots[at].is_lost {
                    true => at += 1,
                    false => slots.remove(at).into_iter().for_each(|slot| {
                        tell(slot.publish.publish_seq);
                        of.sent -= 1;
                    }),
                }
            }
        } else {
            of.sent -= which.len();
            slots.drain(which).for_each(|slot| tell(slot.publish.publish_seq));
        }
        self.forget_if_done(partition, channel);
        rows
    }

    /// A node promises nothing of these. True if they were on their way to it.
    pub(crate) fn send_again(
        &mut self,
        from: NodeNumber,
        partition: PartitionId,
        (channel, first, count): (ChannelKey, u64, u64),
    ) -> bool {
        let Some(of) = self.partitions.get_mut(&partition).filter(|of| of.to == from) else { return false };
        let Some(slots) = of.channels.get_mut(&channel) else { return false };
        let which = numbered(slots, first, count);
        let mut lost = 0;
        for slot in slots.range_mut(which).filter(|slot| !slot.is_lost) {
            slot.is_lost = true;
            lost += 1;
            self.lost_bytes += slot.bytes();
        }
        of.sent -= lost;
        of.lost += lost;
        lost > 0
    }

    /// The link to a node is gone, and all that was on its way: the partitions of which something is
    /// to be sent again, and what channels hear of what is in that node's memory alone.
    pub(crate) fn lose(&mut self, node: NodeNumber) -> (Vec<PartitionId>, Vec<Effect>) {
        let mut lost: Vec<PartitionId> =
            self.partitions.iter().filter(|(_, of)| of.to == node && of.sent > 0).map(|(id, _)| *id).collect();
        lost.sort_unstable();
        let mut effects = Vec::new();
        lost.retain(|partition| {
            if partition.is_in_memory() {
                effects.extend(self.give_up(*partition));
                return false;
            }
            let of = self.partitions.get_mut(partition).expect("it was listed");
            for slot in of.channels.values_mut().flatten().filter(|slot| !slot.is_lost) {
                slot.is_lost = true;
                self.lost_bytes += slot.bytes();
            }
            of.lost += std::mem::take(&mut of.sent);
            true
        });
        (lost, effects)
    }

    /// Channels of which something is to be sent again, in order.
    pub(crate) fn lost_channels(&self, partition: PartitionId) -> SmallVec<[ChannelKey; 4]> {
        let Some(of) = self.partitions.get(&partition) else { return SmallVec::new() };
        let is_lost = |slots: &VecDeque<Slot>| slots.iter().any(|slot| slot.is_lost);
        let mut all: SmallVec<_> =
            of.channels.iter().filter(|(_, slots)| is_lost(slots)).map(|(channel, _)| *channel).collect();
        all.sort_unstable();
        all
    }

    /// What is sent again leaves for this node: nothing is on its way meanwhile.
    pub(crate) fn resend(&mut self, partition: PartitionId, to: NodeNumber) -> Vec<Publish> {
        let channels = self.lost_channels(partition);
        let Some(of) = self.partitions.get_mut(&partition) else { return Vec::new() };
        assert!(of.sent == 0, "what was sent is answered before anything is sent again");
        of.to = to;
        (of.sent, of.lost) = (std::mem::take(&mut of.lost), 0);
        let mut again = Vec::with_capacity(of.sent);
        for slot in channels.iter().filter_map(|channel| of.channels.get(channel)).flatten() {
            again.push(slot.publish.clone());
        }
        for slot in of.channels.values_mut().flatten() {
            self.lost_bytes -= slot.bytes();
            slot.is_lost = false;
        }
        again
    }

    /// The time is over: nobody promises what is not answered, and channels hear that.
    pub(crate) fn give_up(&mut self, partition: PartitionId) -> Vec<Effect> {
        let Some(of) = self.partitions.remove(&partition) else { return Vec::new() };
        let mut channels: Vec<_> = of.channels.into_iter().collect();
        channels.sort_unstable_by_key(|(channel, _)| *channel);
        let mut effects: Vec<Effect> = Vec::new();
        for (channel, slots) in channels {
            for slot in slots {
                if slot.is_lost {
                    self.lost_bytes -= slot.bytes();
                }
                let seq = slot.publish.publish_seq;
                match effects.last_mut() {
                    Some(Effect::Refuse { channel: last, first, count })
                        if *last == channel && *first + *count == seq =>
                    {
                        *count += 1;
                    }
                    _ => effects.push(Effect::Refuse { channel, first: seq, count: 1 }),
                }
            }
        }
        effects
    }

    /// A channel has left a partition: nobody hears of its publishes any more.
    pub(crate) fn forget(&mut self, partition: PartitionId, channel: ChannelKey) {
        let Some(of) = self.partitions.get_mut(&partition) else { return };
        for slot in of.channels.remove(&channel).into_iter().flatten() {
            match slot.is_lost {
                true => (of.lost, self.lost_bytes) = (of.lost - 1, self.lost_bytes - slot.bytes()),
                false => of.sent -= 1,
            }
        }
        if of.channels.is_empty() {
            self.partitions.remove(&partition);
        }
    }

    /// A channel all of whose publishes are answered keeps its place while others are not: it
    /// publishes again soon, as a rule.
    fn forget_if_done(&mut self, partition: PartitionId, channel: ChannelKey) {
        let Some(of) = self.partitions.get_mut(&partition) else { return };
        let Some(slots) = of.channels.get_mut(&channel).filter(|slots| slots.is_empty()) else { return };
        if slots.capacity() > SLOTS_KEPT {
            of.channels.remove(&channel);
        }
    }
}

/// Places that a channel keeps for its next publishes though none waits.
const SLOTS_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use broker::NodeLife;
    use bytes::Bytes;
    use partition::Message;

    const P: PartitionId = PartitionId(3);
    const X: NodeNumber = NodeNumber(1);
    const Y: NodeNumber = NodeNumber(2);

    fn channel(number: u64) -> ChannelKey {
        ChannelKey::of(NodeLife { node: 1, start: 1 }, number)
    }

    fn publish(number: u64, publish_seq: u64) -> Publish {
        let empty = Bytes::new;
        let message = Message { exchange: empty(), routing_key: empty(), properties: empty(), body: empty() };
        Publish { channel: channel(number), publish_seq, targets: SmallVec::new(), delay_ms: 0, message }
    }

    fn numbers(publishes: &[Publish]) -> Vec<(u64, u64)> {
        publishes.iter().map(|publish| (publish.channel.number(), publish.publish_seq)).collect()
    }

    #[test]
    fn what_a_link_took_with_it_goes_to_the_next_leader_in_order() {
        let mut unconfirmed = Unconfirmed::default();
        for (number, seq) in [(2, 1), (1, 1), (1, 2), (2, 5), (1, 7)] {
            unconfirmed.note(P, X, &publish(number, seq));
        }
        assert_eq!(unconfirmed.answered(X, P, (channel(1), 1, 1))[..], [(1, 1)]);
        assert!(unconfirmed.answered(X, P, (channel(1), 1, 1)).is_empty(), "a second time");
        assert_eq!(unconfirmed.lose(Y), (vec![], vec![]));
        assert_eq!(unconfirmed.lose(X), (vec![P], vec![]));
        assert!(unconfirmed.lost_bytes() > 0 && unconfirmed.is_sent_to(P).is_none());
        assert_eq!(unconfirmed.lost_channels(P)[..], [channel(1), channel(2)]);
        assert_eq!(numbers(&unconfirmed.resend(P, Y)), [(1, 2), (1, 7), (2, 1), (2, 5)]);
        assert_eq!((unconfirmed.lost_bytes(), unconfirmed.is_sent_to(P)), (0, Some(Y)));
        assert!(!unconfirmed.send_again(X, P, (channel(1), 2, 1)), "of the leader before, which is not asked any more");
        assert!(unconfirmed.send_again(Y, P, (channel(1), 7, 1)));
        for (number, seq, count) in [(2, 1, 1), (2, 5, 1), (1, 2, 1)] {
            assert_eq!(unconfirmed.answered(Y, P, (channel(number), seq, count))[..], [(seq, count)]);
        }
        assert_eq!(numbers(&unconfirmed.resend(P, Y)), [(1, 7)]);
    }

    #[test]
    fn a_confirm_of_a_copy_before_does_not_overtake_what_is_sent_again() {
        let mut unconfirmed = Unconfirmed::default();
        (7..10).for_each(|seq| unconfirmed.note(P, X, &publish(1, seq)));
        unconfirmed.lose(X);
        let said = |unconfirmed: &mut Unconfirmed, from| unconfirmed.answered(from, P, (channel(1), 9, 1)).to_vec();
        assert_eq!(said(&mut unconfirmed, X), [], "7 and 8 were confirmed too, over the link that is gone");
        assert_eq!(unconfirmed.resend(P, Y).len(), 3);
        assert_eq!(said(&mut unconfirmed, X), [], "the leader before is asked no more");
        assert_eq!(said(&mut unconfirmed, Y), [(9, 1)]);
    }

    #[test]
    fn what_nobody_took_in_time_is_refused_once() {
        let mut unconfirmed = Unconfirmed::default();
        for seq in [1, 2, 4] {
            unconfirmed.note(P, X, &publish(1, seq));
        }
        let memory = PartitionId::in_memory(X, 0);
        unconfirmed.note(memory, X, &publish(1, 3));
        let refuse = |first, count| Effect::Refuse { channel: channel(1), first, count };
        assert_eq!(unconfirmed.lose(X), (vec![P], vec![refuse(3, 1)]), "what was in its memory is gone with it");
        assert_eq!(unconfirmed.give_up(P), [refuse(1, 2), refuse(4, 1)]);
        assert_eq!((unconfirmed.give_up(P), unconfirmed.lost_bytes()), (vec![], 0));
    }

    #[test]
    fn who_left_is_not_waited_for() {
        let mut unconfirmed = Unconfirmed::default();
        unconfirmed.note(P, X, &publish(1, 1));
        unconfirmed.note(P, X, &publish(2, 1));
        unconfirmed.lose(X);
        unconfirmed.forget(P, channel(1));
        assert_eq!(numbers(&unconfirmed.resend(P, Y)), [(2, 1)]);
        unconfirmed.forget(P, channel(2));
        assert!(unconfirmed.partitions.is_empty() && unconfirmed.lost_bytes() == 0);
    }
}
