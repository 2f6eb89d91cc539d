//! A shard's connections and its node, as the shard's partitions see them in a turn: where a channel is,
//! how much it may be sent, who is to be a member and who is to lead.
//!
//! Invariant: room that was handed out in a step is used or given back at its end.

use super::Switch;
use crate::balance::{self, Led};
use crate::surroundings::{Outsider, Surroundings};
use broker::topology::PartitionStage;
use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, QueueId};
use node::{Beginning, Edge, KnownQueue, NodeId};
use partition::{Effect, Outlets, QueuePartition};

/// Who has led a partition for so long hands it to a node that leads fewer. One that came back has its
/// logs and its clients by then.
const BALANCE_AFTER_MS: u64 = 60_000;

/// Where a channel is, as a shard's partitions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach<C> {
    /// On this connection of the shard.
    Here(C),
    /// On another shard or another node.
    Away,
    /// It is gone.
    Nobody,
}

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Where what this shard's partitions say to a channel goes.
    #[inline]
    pub fn reach(&self, channel: ChannelKey) -> Reach<C> {
        let shard = self.keys.borrow().shard_of(channel);
        match shard {
            Some(shard) if shard == self.index => match self.connection_of(channel) {
                Some((connection, _)) => Reach::Here(connection),
                None => Reach::Nobody,
            },
            Some(_) => Reach::Away,
            // A channel of another life: nobody is there to take anything.
            None if self.inbox.borrow_mut().roads.to(channel).is_none() => Reach::Nobody,
            None => Reach::Away,
        }
    }

    /// Hands out room at a channel of another shard or another node, to be used in this step; 0 when
    /// nothing is free.
    pub fn reserve_away(&self, channel: ChannelKey) -> usize {
        let portion = self.remote.borrow_mut().reserve(channel);
        if portion > 0 {
            self.reserved_remote.borrow_mut().push(channel);
        }
        portion
    }

    /// What was handed out of such room is used, or given back.
    pub fn settle_away(&self) {
        for channel in self.reserved_remote.borrow_mut().drain(..) {
            self.remote.borrow_mut().settle(channel);
        }
    }

    /// No more than this may be on its way to a channel of another shard or node: less than usual, for
    /// runs that are to meet the limit.
    pub fn limit_bytes_away(&self, bytes: usize) {
        self.remote.borrow_mut().bytes_max = bytes;
    }
}

/// A shard's connections, as its partitions see them in a turn.
pub struct Crossing<'a, E: Surroundings> {
    /// The shard's switch.
    pub switch: &'a Switch<E::Connection, E::Outsider>,
    /// Where it stands.
    pub env: &'a E,
}

impl<E: Surroundings> Outlets for Crossing<'_, E> {
    fn room(&mut self, consumer: ConsumerKey) -> usize {
        match self.switch.reach(consumer.channel) {
            Reach::Here(connection) => {
                let portion = self.env.room(&connection, consumer);
                if portion > 0 {
                    self.switch.reserved.borrow_mut().push(connection);
                }
                portion
            }
            Reach::Away => {
                let portion = self.switch.reserve_away(consumer.channel);
                if portion == 0 {
                    self.switch.pass_over(consumer, self.env);
                }
                portion
            }
            Reach::Nobody => 0,
        }
    }

    fn has_letter_room(&mut self, queue: QueueId) -> bool {
        self.switch.outgoing.borrow().has_room(queue)
    }

    fn take_letter_room(&mut self, queue: QueueId, bytes: usize) {
        self.switch.outgoing.borrow_mut().take_room(queue, bytes);
    }
}

impl<E: Surroundings> Edge for Crossing<'_, E> {
    fn members_wanted(&mut self, partition: PartitionId, members: &[NodeNumber]) -> Vec<NodeId> {
        let topology = self.env.topology();
        match self.switch.leaders.knows_members() {
            true => topology.lives_wanted_after(partition, members).into_iter().map(member_of).collect(),
            false => Vec::new(),
        }
    }

    fn is_to_leave(&mut self, partition: PartitionId, member: NodeId) -> bool {
        self.env.topology().is_to_leave(partition, NodeNumber(member.number()), member.life())
    }

    fn beginning(&mut self, partition: PartitionId) -> Beginning {
        let leaders = &self.switch.leaders;
        let topology = self.env.topology();
        let life = topology.life_in(partition, leaders.own());
        let founders = topology.founders_of(partition).unwrap_or_default();
        match topology.members_wanted(partition).contains(&leaders.own()) {
            // Where all nodes have a copy each begins with it, and those who come back have left.
            true if founders.is_empty() && life == 0 => Beginning::Nothing,
            false => Beginning::Nothing,
            // By a map of the past this node would begin what has ended.
            true if !leaders.knows_members() => Beginning::NotKnown,
            true if life > 0 => Beginning::Joins { life },
            true if founders.contains(&leaders.own()) => Beginning::Founds {
                founders: founders.to_vec(),
                leads_first: topology.leads_first(partition) == Some(leaders.own()),
            },
            true => Beginning::Joins { life },
        }
    }

    fn queues_of(&mut self, partition: PartitionId) -> Vec<KnownQueue> {
        let topology = self.env.topology();
        let there = topology.queues().filter(|queue| queue.partition == partition && !queue.id.is_local());
        there.map(|queue| (queue.id, (!queue.rules.is_plain()).then(|| queue.rules.clone()))).collect()
    }

    fn heir(&mut self, partition: PartitionId, led_ms: u64) -> Option<NodeNumber> {
        let leaders = &self.switch.leaders;
        if leaders.rests(leaders.own()) {
            return self.successor(partition);
        }
        if led_ms < BALANCE_AFTER_MS && !leaders.balances_at(self.env.elapsed_us()) {
            return None;
        }
        let topology = self.env.topology();
        let serving = || topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Serving);
        let led =
            serving().map(|(id, put)| Led { partition: id, leader: leaders.leader(id), members: put.members.clone() });
        let mut all: Vec<Led> = led.collect();
        drop(topology);
        let mut inbox = self.switch.inbox.borrow_mut();
        let reached: Vec<NodeNumber> = all
            .iter()
            .flat_map(|led| led.members.iter().copied())
            .filter(|node| inbox.roads.road(*node).is_some() && !leaders.rests(*node))
            .collect();
        drop(inbox);
        // What nobody can lead keeps nobody waiting.
        let is_there = |node: &NodeNumber| *node == leaders.own() || reached.contains(node);
        all.retain(|led| {
            led.leader.is_some() || 2 * led.members.iter().filter(|node| is_there(node)).count() > led.members.len()
        });
        balance::heir(leaders.own(), partition, &all, |node| reached.contains(&node))
    }

    fn shown_node(&self, node: NodeNumber) -> String {
        self.env.topology().shown_node(node)
    }

    fn is_led(&mut self, partition: PartitionId, leader: Option<NodeNumber>, term: u64) {
        // Nobody speaks to a damaged one any more that has left.
        let own = self.switch.leaders.own();
        let has_left = || self.env.topology().is_to_leave(partition, own, 0);
        if self.switch.leaders.has_peers() && (leader.is_some() || !has_left()) {
            self.switch.note_term(partition, term);
            self.switch.note_leader(partition, leader, term);
        }
    }

    fn take_effects(&mut self, partition: PartitionId, queues: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
        let queues = queues.filter(|_| self.switch.leaders.has_peers());
        if let Some(queues) = queues.filter(|queues| self.switch.believes(queues, self.env)) {
            let term = queues.term().0;
            self.switch.note_term(partition, term);
            self.switch.note_leader(partition, queues.leader(), term);
            self.switch.note_member(queues, self.env);
        }
        for connection in self.switch.reserved.borrow_mut().drain(..) {
            self.env.settle_room(&connection);
        }
        self.switch.settle_away();
        self.switch.deliver(effects.drain(..), Some(partition), self.env);
    }
}

impl<E: Surroundings> Crossing<'_, E> {
    /// Who leads a partition instead of this node, which is to lead nothing.
    fn successor(&self, partition: PartitionId) -> Option<NodeNumber> {
        let leaders = &self.switch.leaders;
        let topology = self.env.topology();
        let put = topology.partitions().find(|(id, _)| *id == partition);
        let members = put.map(|(_, put)| put.members.clone()).unwrap_or_default();
        drop(topology);
        let mut inbox = self.switch.inbox.borrow_mut();
        let can =
            |node: &NodeNumber| *node != leaders.own() && inbox.roads.road(*node).is_some() && !leaders.rests(*node);
        let others: Vec<NodeNumber> = members.into_iter().filter(can).collect();
        balance::successor(partition, &others)
    }
}

fn member_of((node, life): (NodeNumber, u32)) -> NodeId {
    NodeId::of(node.0, life)
}
