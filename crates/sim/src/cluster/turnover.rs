//! Queues that go and come back: deleted while messages are ready, held, scheduled, being read, on
//! their way as dead letters, and created again under their names.
//!
//! As the server does it: the leader is asked whether the queue may go, on conditions or without,
//! or is not asked, as when a virtual host goes; the topology forgets the queue; every node hears
//! of that in its own time, and its partition is told. Who asks without conditions may die before
//! it does more. Invariant: a name belongs to one queue at a time, and when the faults are over
//! every name has one again.

use super::{Cluster, Event};
use crate::bug::Bug;
use crate::client::queue_of;
use crate::node::{Known, Node, StepOutput};
use crate::registry::name_of;
use crate::schedule::{MS, Micros, SECOND};
use broker::queue::Rules;
use broker::{ChannelKey, QueueId};
use partition::{Command, Effect, Reply, RequestId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Longest time between two deletes.
const CALM_MAX: Micros = SECOND;
/// A node, or a client, hears of a delete within this time.
const NEWS_MAX: Micros = 300 * MS;
/// Where nodes hand on what is for queues that are gone, clients go on sending it for so long:
/// beyond the next checkpoint and start.
const STALE_NEWS_MAX: Micros = 4 * SECOND;
/// After so long without an answer a queue is deleted all the same: whoever was asked leads no
/// more.
const ANSWER_MAX: Micros = 2 * SECOND;
/// Who asks before a delete.
const ADMINISTRATOR: ChannelKey = ChannelKey(1 << 59);

/// Queues that are about to go.
#[derive(Default)]
pub(super) struct Turnover {
    going: BTreeSet<QueueId>,
    /// Of these the leader was asked: what is done when it has answered.
    asked: BTreeMap<QueueId, Step>,
}

/// What happens to a queue.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Somebody picks one.
    Begin,
    /// The topology forgets it.
    Delete { group: usize, queue: QueueId },
    /// The delete comes to nothing.
    Reopen { group: usize, queue: QueueId },
    /// There was no answer.
    Unanswered { group: usize, queue: QueueId },
    /// A node hears that it is gone.
    Tell { node: usize, group: usize, queue: QueueId },
    /// A client hears of it.
    TellClient { client: usize, queue: QueueId },
    /// A queue of this name is there again.
    Create { group: usize, name: QueueId },
}

impl Cluster {
    pub(super) fn turn_over(&mut self, step: Step) {
        match step {
            Step::Begin => self.begin_delete(),
            Step::Delete { group, queue } => self.delete_queue(group, queue),
            Step::Reopen { group, queue } => {
                self.turnover.going.remove(&queue);
                self.tell_nodes(group, &Command::Reopen { queue });
            }
            Step::Unanswered { group, queue } => {
                if self.turnover.asked.remove(&queue).is_some() {
                    self.delete_queue(group, queue);
                }
            }
            Step::Tell { node, group, queue } => {
                // Who is down hears of it with its start.
                if self.nodes[node].is_up() && self.options.bug != Some(Bug::DeleteIsForgotten) {
                    let mut out = StepOutput::default();
                    self.nodes[node].queue_deleted(group, queue, &mut out);
                    self.settle(node, out);
                }
            }
            Step::TellClient { client, queue } => self.clients[client].queue_gone(queue),
            Step::Create { group, name } => self.create_queue(group, name),
        }
    }

    fn later(&mut self, within: Micros, step: Step) {
        let after = self.random.between(0, within);
        self.schedule.after(after, Event::Turnover(step));
    }

    fn begin_delete(&mut self) {
        if self.draining {
            return;
        }
        let calm = self.random.between(50 * MS, CALM_MAX);
        self.schedule.after(calm, Event::Turnover(Step::Begin));
        let group = self.random.below(self.plan.groups.len() as u64) as usize;
        let name = *self.random.pick(&self.registry.names(group));
        let Some(queue) = self.registry.current(name).filter(|queue| !self.turnover.going.contains(queue)) else {
            return;
        };
        self.turnover.going.insert(queue);
        if self.random.chance(40) {
            return self.later(NEWS_MAX, Step::Delete { group, queue });
        }
        let if_empty = self.random.chance(50);
        let (channel, request) = (ADMINISTRATOR, RequestId(queue.0 << 32));
        self.tell_nodes(group, &Command::Close { queue, if_unused: false, if_empty, channel, request });
        if !if_empty && self.random.chance(25) {
            // Whoever asked is gone: nothing was decided, so nothing may come of it.
            self.turnover.going.remove(&queue);
            return;
        }
        let is_undone = self.random.chance(25);
        let next = if is_undone { Step::Reopen { group, queue } } else { Step::Delete { group, queue } };
        self.turnover.asked.insert(queue, next);
        self.schedule.after(ANSWER_MAX, Event::Turnover(Step::Unanswered { group, queue }));
    }

    /// Looks whether an effect is a leader's answer to who wants to delete a queue.
    pub(super) fn note_answer(&mut self, effect: &Effect) {
        let Effect::Reply { channel: ADMINISTRATOR, request, reply } = effect else { return };
        let queue = queue_of(*request);
        match reply {
            Reply::Counted(_) => {
                if let Some(step) = self.turnover.asked.remove(&queue) {
                    self.later(NEWS_MAX, step);
                }
            }
            // It is not empty.
            Reply::DeleteRefused { .. } if self.turnover.asked.remove(&queue).is_some() => {
                self.turnover.going.remove(&queue);
            }
            _ => {}
        }
    }

    /// Whoever leads now.
    fn tell_nodes(&mut self, group: usize, command: &Command) {
        for node in 0..self.nodes.len() {
            let mut out = StepOutput::default();
            self.nodes[node].enqueue(group, command.clone(), &mut out);
            self.settle(node, out);
        }
    }

    fn delete_queue(&mut self, group: usize, queue: QueueId) {
        let now = self.schedule.now();
        self.trace.line(now, || format!("queue {} is deleted", queue.0));
        self.turnover.going.remove(&queue);
        self.registry.delete(queue);
        self.checks.deleted(queue);
        for node in 0..self.nodes.len() {
            self.later(NEWS_MAX, Step::Tell { node, group, queue });
        }
        let is_stale = self.options.bug == Some(Bug::GoneIsUnknown);
        for client in 0..self.clients.len() {
            self.later(if is_stale { STALE_NEWS_MAX } else { NEWS_MAX }, Step::TellClient { client, queue });
        }
        let absent = if self.random.chance(40) { 0 } else { SECOND };
        self.later(absent, Step::Create { group, name: name_of(queue) });
    }

    fn create_queue(&mut self, group: usize, name: QueueId) {
        let now = self.schedule.now();
        let queue = self.registry.create(name);
        let rules = self.rules_of(queue);
        self.trace.line(now, || format!("queue {} is created", queue.0));
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_up() {
                let mut out = StepOutput::default();
                self.nodes[node].queue_created(group, queue, rules.clone(), &mut out);
                self.settle(node, out);
            }
        }
        let settings = self.registry.settings(queue);
        let is_grave = self.registry.is_grave(queue);
        for client in self.clients.iter_mut().filter(|c| c.group == group && (!is_grave || c.is_reader())) {
            client.queue_created(settings);
        }
    }

    fn rules_of(&self, queue: QueueId) -> Option<Arc<Rules>> {
        self.plan.rules.get(&name_of(queue)).cloned()
    }

    /// What there is, for a node that starts.
    pub(super) fn known_queues(&self) -> Vec<Known> {
        let of_group = |group| {
            let queues = self.registry.of_group(group).into_iter();
            queues.map(|queue| (queue, self.rules_of(queue))).collect()
        };
        (0..self.plan.groups.len()).map(of_group).collect()
    }

    /// Whether every name has a queue, and nothing is left of those that are gone: in no
    /// partition's memory, on no disk.
    pub(super) fn is_turnover_over(&self) -> bool {
        !self.options.turnover || (self.registry.is_complete() && self.remains().is_none() && self.waste().is_none())
    }

    /// A queue that is gone and of which a node remembers something.
    pub(super) fn remains(&self) -> Option<String> {
        let groups = 0..self.plan.groups.len();
        let all = self.nodes.iter().flat_map(|node| groups.clone().map(move |group| (node, group)));
        for (node, group) in all.filter(|(node, group)| self.is_member(*group, node.id)) {
            let Some(partition) = node.partition(group) else { continue };
            if let Some(queue) = self.checks.ends.gone().iter().find(|queue| partition.remembers(**queue)) {
                return Some(format!("{} remembers queue {}, which was deleted", node.id, queue.0));
            }
        }
        None
    }

    /// Space that a node keeps for messages, when all of them have ended.
    pub(super) fn waste(&self) -> Option<String> {
        let is_member = |node: &&Node| (0..self.plan.groups.len()).all(|group| self.is_member(group, node.id));
        for node in self.nodes.iter().filter(|_| self.plan.upkeep).filter(is_member) {
            if node.extents() > 0 {
                return Some(format!("{} keeps {} extents, and no message is there", node.id, node.extents()));
            }
            for partition in (0..self.plan.groups.len()).filter_map(|group| node.partition(group)) {
                if partition.queues().wal_run_count() > 0 {
                    return Some(format!("{} counts messages in its log, and none is there", node.id));
                }
            }
        }
        None
    }
}
