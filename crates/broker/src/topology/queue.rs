//! Queues as records: who they are and what was asked for. What is in them is the business of the
//! queue machines.
//!
//! Invariant: a queue's name is unique in its virtual host, its id is unique for ever, and queues
//! that were declared alike share one shape. The default exchange has no bindings of its own: it is
//! the index by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use amqp::Table;
use bytes::Bytes;
use hashbrown::{HashMap, HashTable};

use super::command::Home;
use super::name::Name;
use super::policy_plan::Held;
use super::refusal::{Kind, Resource};
use super::settings::{Durability, DurabilityLevel, QueueSettings, QueueType};
use super::vhost::BytesByVhost;
use super::{encoding, hash};
use crate::ids::{PartitionId, QueueId, VhostId};
use crate::queue::Rules;

/// Replicated queues, all virtual hosts together; and as many again that live on one node only.
pub const QUEUES_MAX: usize = 1 << 24;

/// What queues that were declared alike have in common.
#[derive(Debug, PartialEq)]
pub struct QueueShape {
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it goes when its last consumer goes.
    pub auto_delete: bool,
    /// Classic or quorum.
    pub queue_type: QueueType,
    /// The arguments of the declare, the queue type spelled out.
    pub arguments: Table,
    /// What the arguments mean.
    pub settings: QueueSettings,
    /// The rules of a queue of this shape that no policy matches.
    pub rules: Arc<Rules>,
    /// `arguments` encoded: what tells shapes apart.
    pub(super) encoded: Bytes,
}

impl QueueShape {
    /// See [`encoding::counted_bytes`].
    pub(super) fn counted_bytes(&self) -> usize {
        self.encoded.len() + encoding::read_bytes(&self.arguments)
    }
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    /// Its number, never given out again.
    pub id: QueueId,
    /// Its virtual host.
    pub vhost: VhostId,
    /// Its name.
    pub name: Name,
    /// The partition that holds its messages, or the shard's in whose memory they are.
    pub partition: PartitionId,
    /// The connection that alone may use it, and with which it goes.
    pub exclusive: Option<u64>,
    /// The node in whose memory it lives, if every node knows it all the same.
    pub home: Option<Home>,
    /// What it shares with queues that were declared alike.
    pub shape: Arc<QueueShape>,
    /// The policies that hold for it, kept so that nobody matches its name again.
    pub(super) held: Held,
    /// What its machine works by: its arguments and the policies that match it, merged by
    /// [`super::effective`].
    pub rules: Arc<Rules>,
    /// Places of the bindings that lead here; those of the default exchange are not among them.
    pub(super) incoming: Vec<u32>,
}

/// Where a routed message goes: small, so that a fanout of thousands is a copy of thousands of
/// these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTarget {
    /// The queue.
    pub queue: QueueId,
    /// The partition that holds it.
    pub partition: PartitionId,
    /// When its confirm may go out; the bounds of `Selective` are in the queue's settings.
    pub durability: DurabilityLevel,
}

impl Queue {
    /// Whether it is one of those that carry direct replies to a channel: nobody declared it.
    pub fn is_of_replies(&self) -> bool {
        is_of_replies(&self.name)
    }

    /// When its confirms may go out: as its declare says, or else a policy. Nobody chooses for a queue that
    /// is not durable.
    pub fn durability(&self) -> &Durability {
        match (&self.shape.settings.durability, &self.rules.durability) {
            (Durability::Memory, _) | (_, None) => &self.shape.settings.durability,
            (_, Some(said)) => said,
        }
    }
}

/// What the names of queues that carry direct replies begin with; 22 characters that nobody can guess
/// follow.
pub const REPLY_PREFIX: &str = "amq.rabbitmq.reply-to.";

/// Whether a queue of this name carries direct replies.
pub(super) fn is_of_replies(name: &[u8]) -> bool {
    name.starts_with(REPLY_PREFIX.as_bytes())
}

/// How many queues of a virtual host there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueCounts {
    /// On this node only.
    pub(super) local: usize,
    /// Known to every node.
    pub(super) replicated: usize,
    /// Of replies, known to every node. Those that this node alone knows nobody counts.
    pub(super) replies: usize,
}

impl QueueCounts {
    fn of_kind(&mut self, queue: &Queue) -> Option<&mut usize> {
        match (queue.id.is_local(), queue.is_of_replies()) {
            (true, true) => None,
            (true, false) => Some(&mut self.local),
            (false, true) => Some(&mut self.replies),
            (false, false) => Some(&mut self.replicated),
        }
    }
}

/// All queues, found by name, by id and by owner.
#[derive(Debug, Default)]
pub(super) struct Queues {
    slots: slab::Slab<Queue>,
    /// What routing needs, at the same places as `slots`; a place without a queue holds what was
    /// there before.
    targets: Vec<RouteTarget>,
    by_name: HashTable<u32>,
    by_id: HashTable<u32>,
    /// Exclusive queues by their connection.
    /// By id: an owner of many thousands that goes takes them out one after the other.
    by_owner: HashMap<u64, BTreeSet<QueueId>, foldhash::fast::FixedState>,
    /// Queues in the memory of a node that every node knows.
    by_home: BTreeMap<Home, BTreeSet<QueueId>>,
    /// How many that every node knows live in each partition that has some.
    by_partition: BTreeMap<PartitionId, u32>,
    shapes: HashTable<Arc<QueueShape>>,
    local_count: usize,
    /// By virtual host: how many live on this node only, and how many do not.
    vhost_counts: Vec<QueueCounts>,
    /// What their arguments take, each queue's for itself.
    pub(super) argument_bytes: BytesByVhost,
}

impl Queues {
    pub(super) fn find(&self, vhost: VhostId, name: &[u8]) -> Option<usize> {
        let is_it = |&at: &u32| {
            let queue = &self.slots[at as usize];
            queue.vhost == vhost && *queue.name == *name
        };
        self.by_name.find(hash::of_name(vhost.0, name), is_it).map(|&at| at as usize)
    }

    pub(super) fn find_id(&self, id: QueueId) -> Option<usize> {
        self.by_id.find(hash::of_number(id.0), |&at| self.slots[at as usize].id == id).map(|&at| at as usize)
    }

    pub(super) fn insert(&mut self, queue: Queue) -> usize {
        let by_name = hash::of_name(queue.vhost.0, &queue.name);
        let by_id = hash::of_number(queue.id.0);
        let target =
            RouteTarget { queue: queue.id, partition: queue.partition, durability: queue.durability().level() };
        if let Some(owner) = queue.exclusive {
            self.by_owner.entry(owner).or_default().insert(queue.id);
        }
        if let Some(home) = queue.home {
            self.by_home.entry(home).or_default().insert(queue.id);
        }
        if !queue.id.is_local() {
            *self.by_partition.entry(queue.partition).or_default() += 1;
        }
        self.local_count += usize::from(queue.id.is_local());
        self.argument_bytes.add(queue.vhost, queue.shape.counted_bytes());
        let vhost = queue.vhost.0 as usize;
        if self.vhost_counts.len() <= vhost {
            self.vhost_counts.resize(vhost + 1, QueueCounts::default());
        }
        self.vhost_counts[vhost].of_kind(&queue).into_iter().for_each(|count| *count += 1);
        let at = self.slots.insert(queue);
        if at == self.targets.len() {
            self.targets.push(target);
        } else {
            self.targets[at] = target;
        }
        let slots = &self.slots;
        let place = u32::try_from(at).expect("the number of queues is limited");
        self.by_name.insert_unique(by_name, place, |&at| {
            let queue = &slots[at as usize];
            hash::of_name(queue.vhost.0, &queue.name)
        });
        self.by_id.insert_unique(by_id, place, |&at| hash::of_number(slots[at as usize].id.0));
        at
    }

    /// Takes over a queue of another table, without its bindings.
    pub(super) fn adopt(&mut self, queue: &Queue) {
        let QueueShape { durable, auto_delete, queue_type, .. } = *queue.shape;
        let shape = self.share(QueueShape {
            durable,
            auto_delete,
            queue_type,
            arguments: queue.shape.arguments.clone(),
            settings: queue.shape.settings.clone(),
            rules: queue.shape.rules.clone(),
            encoded: queue.shape.encoded.clone(),
        });
        self.insert(Queue {
            id: queue.id,
            vhost: queue.vhost,
            name: queue.name.clone(),
            partition: queue.partition,
            exclusive: queue.exclusive,
            home: queue.home,
            shape,
            held: Held::default(),
            rules: queue.rules.clone(),
            incoming: Vec::new(),
        });
    }

    pub(super) fn remove(&mut self, at: usize) -> Queue {
        let queue = self.slots.remove(at);
        let is_it = |&place: &u32| place as usize == at;
        let by_name = self.by_name.find_entry(hash::of_name(queue.vhost.0, &queue.name), is_it);
        by_name.map_err(|_| ()).expect("every queue is in the index of names").remove();
        let by_id = self.by_id.find_entry(hash::of_number(queue.id.0), is_it);
        by_id.map_err(|_| ()).expect("every queue is in the index of ids").remove();
        if let Some(owner) = queue.exclusive {
            let owned = self.by_owner.get_mut(&owner).expect("every exclusive queue is in the index of owners");
            owned.remove(&queue.id);
            if owned.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
        if let Some(home) = queue.home {
            let there = self.by_home.get_mut(&home).expect("every queue with a home is in the index");
            there.remove(&queue.id);
            if there.is_empty() {
                self.by_home.remove(&home);
            }
        }
        if !queue.id.is_local() {
            let there = self.by_partition.get_mut(&queue.partition).expect("every queue is counted");
            *there -= 1;
            if *there == 0 {
                self.by_partition.remove(&queue.partition);
            }
        }
        self.local_count -= usize::from(queue.id.is_local());
        self.argument_bytes.take(queue.vhost, queue.shape.counted_bytes());
        self.vhost_counts[queue.vhost.0 as usize].of_kind(&queue).into_iter().for_each(|count| *count -= 1);
        self.release_shape(&queue.shape);
        queue
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Queue {
        &mut self.slots[at]
    }

    /// Gives a queue other rules.
    pub(super) fn set_rules(&mut self, at: usize, rules: Arc<Rules>) {
        let queue = &mut self.slots[at];
        queue.rules = rules;
        self.targets[at].durability = queue.durability().level();
    }

    pub(super) fn target(&self, at: usize) -> RouteTarget {
        self.targets[at]
    }

    /// The exclusive queues of a connection, by id.
    pub(super) fn owned_by(&self, owner: u64) -> impl Iterator<Item = QueueId> {
        self.by_owner.get(&owner).into_iter().flatten().copied()
    }

    /// The nodes in whose memory queues live that every node knows, and those queues.
    pub(super) fn by_home(&self) -> &BTreeMap<Home, BTreeSet<QueueId>> {
        &self.by_home
    }

    /// How many queues that every node knows live in each partition that has some.
    pub(super) fn by_partition(&self) -> &BTreeMap<PartitionId, u32> {
        &self.by_partition
    }

    /// How many live on this node only, or how many do not.
    pub(super) fn count(&self, local: bool) -> usize {
        if local { self.local_count } else { self.slots.len() - self.local_count }
    }

    /// How many queues a virtual host has.
    pub(super) fn count_in(&self, vhost: VhostId) -> QueueCounts {
        self.vhost_counts.get(vhost.0 as usize).copied().unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Queue)> {
        self.slots.iter()
    }

    /// The queues at these places.
    pub(super) fn between(&self, places: std::ops::Range<usize>) -> impl Iterator<Item = &Queue> {
        places.filter_map(|at| self.slots.get(at))
    }

    /// No queue has a place from here on.
    pub(super) fn places(&self) -> usize {
        self.targets.len()
    }

    /// The one shared copy of a shape.
    pub(super) fn share(&mut self, shape: QueueShape) -> Arc<QueueShape> {
        let hash = shape_hash(&shape);
        if let Some(shared) = self.shapes.find(hash, |s| is_same_shape(s, &shape)) {
            return shared.clone();
        }
        let shared = Arc::new(shape);
        self.shapes.insert_unique(hash, shared.clone(), |s| shape_hash(s));
        shared
    }

    fn release_shape(&mut self, shape: &Arc<QueueShape>) {
        // Two are left when the last queue goes: the one in the table and that queue's own.
        if Arc::strong_count(shape) == 2 {
            let entry = self.shapes.find_entry(shape_hash(shape), |s| Arc::ptr_eq(s, shape));
            entry.map_err(|_| ()).expect("every shape is in the table").remove();
        }
    }
}

impl std::ops::Index<usize> for Queues {
    type Output = Queue;

    fn index(&self, at: usize) -> &Queue {
        &self.slots[at]
    }
}

/// Settings follow from the rest, so they are not compared.
fn is_same_shape(a: &QueueShape, b: &QueueShape) -> bool {
    (a.durable, a.auto_delete, a.queue_type) == (b.durable, b.auto_delete, b.queue_type) && a.encoded == b.encoded
}

fn shape_hash(shape: &QueueShape) -> u64 {
    let flags = u32::from(shape.durable) | u32::from(shape.auto_delete) << 1;
    hash::of_name(flags, &shape.encoded)
}

/// The queue in RabbitMQ's texts.
pub(super) fn resource<'a>(name: &'a [u8], vhost: &'a Name) -> Resource<'a> {
    Resource { kind: Kind::Queue, name, vhost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::settings::{Durability, Wishes};

    fn shape(auto_delete: bool) -> QueueShape {
        let settings = QueueSettings {
            durability: Durability::Memory,
            initial_group_size: None,
            is_dedicated: false,
            leader_locator: None,
            wishes: Wishes::default(),
        };
        QueueShape {
            durable: false,
            auto_delete,
            queue_type: QueueType::Classic,
            arguments: Table::new(),
            settings,
            rules: Arc::default(),
            encoded: Bytes::new(),
        }
    }

    #[test]
    fn queues_declared_alike_share_a_shape_that_goes_with_the_last_of_them() {
        let mut queues = Queues::default();
        let places: Vec<usize> = (0..4u8)
            .map(|i| {
                let shape = queues.share(shape(i == 3));
                queues.insert(Queue {
                    id: QueueId(i.into()),
                    vhost: VhostId(0),
                    name: Name::new(&[i]),
                    partition: PartitionId(0),
                    exclusive: None,
                    home: None,
                    held: Held::default(),
                    rules: shape.rules.clone(),
                    shape,
                    incoming: Vec::new(),
                })
            })
            .collect();
        assert_eq!(queues.shapes.len(), 2);
        assert!(Arc::ptr_eq(&queues[places[0]].shape, &queues[places[2]].shape));
        for (at, left) in places.into_iter().zip([2, 2, 1, 0]) {
            queues.remove(at);
            assert_eq!(queues.shapes.len(), left);
        }
    }
}
