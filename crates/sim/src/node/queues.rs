//! Which queues a node knows: what is for one that is gone ends here, and what one left behind is
//! deleted by who leads next.
//!
//! As the server does it: a session asks the topology where a message goes and whether a queue is
//! there, then hands the command to the partition's inbox, where it may meet the queue's end. A
//! node that starts has the whole topology before it takes anything in. Invariant: a node never
//! knows a queue again that it has forgotten.

use super::{Node, Running, Said, SessionId, StepOutput};
use crate::bug::Bug;
use crate::schedule::{Micros, SECOND};
use broker::queue::Rules;
use broker::{PartitionId, QueueId};
use partition::{Command, Effect, QueuePartition, Reply};
use std::collections::BTreeMap;
use std::sync::Arc;
use storage::extent::list_extents;

/// Queues of one partition, with their rules if they have any.
pub type Known = BTreeMap<QueueId, Option<Arc<Rules>>>;

impl Node {
    /// What there is, for a node that starts.
    pub fn knows(&mut self, known: Vec<Known>) {
        self.known = known;
    }

    /// A queue was created.
    pub fn queue_created(&mut self, partition: usize, queue: QueueId, rules: Option<Arc<Rules>>, out: &mut StepOutput) {
        self.known[partition].insert(queue, rules.clone());
        if let Some(rules) = rules {
            self.enqueue(partition, Command::Configure { queue, rules: self.told(&rules) }, out);
        }
    }

    /// A queue was deleted.
    pub fn queue_deleted(&mut self, partition: usize, queue: QueueId, out: &mut StepOutput) {
        self.known[partition].remove(&queue);
        self.enqueue(partition, Command::Delete { queue }, out);
    }

    /// Whether a partition here takes messages for this queue.
    pub fn knows_queue(&self, partition: usize, queue: QueueId) -> bool {
        self.settings.bug == Some(Bug::GoneIsUnknown) || self.known[partition].contains_key(&queue)
    }

    /// The rules as the partition is told them.
    pub(super) fn told(&self, rules: &Arc<Rules>) -> Arc<Rules> {
        let mut rules = (**rules).clone();
        if let Some(bug) = self.settings.bug {
            bug.spoil_rules(&mut rules);
        }
        Arc::new(rules)
    }

    /// Extents on the disk.
    pub fn extents(&self) -> usize {
        list_extents(&*self.disk).map_or(0, |extents| extents.len())
    }

    /// What is left of a command: a message goes where there are queues yet, a question about none
    /// is answered at once.
    pub(super) fn look_up(&self, session: SessionId, mut command: Command, out: &mut StepOutput) -> Option<Command> {
        let r = self.running.as_ref()?;
        let Some(of) = r.sessions.get(&session).filter(|_| self.settings.turnover) else { return Some(command) };
        let at = of.partition;
        let Some(partition) = r.queues(at) else { return Some(command) };
        let answer = match &mut command {
            Command::Publish(publish) => {
                publish.targets.retain(|target| self.knows_queue(at, target.queue));
                if !publish.targets.is_empty() {
                    return Some(command);
                }
                let (channel, first) = (publish.channel, publish.publish_seq);
                (first != 0).then_some(Effect::Confirm { channel, first, count: 1 })?
            }
            Command::Consume { queue, consumer, request, .. } if !self.knows_queue(at, *queue) => {
                Effect::Reply { channel: consumer.key.channel, request: *request, reply: Reply::Gone }
            }
            Command::Get { queue, channel, request, .. }
            | Command::Purge { queue, channel, request }
            | Command::Stat { queue, channel, request }
                if !self.knows_queue(at, *queue) =>
            {
                Effect::Reply { channel: *channel, request: *request, reply: Reply::Gone }
            }
            _ => return Some(command),
        };
        out.effects.push((partition.id(), said_now(partition, r), answer));
        None
    }
}

impl Running {
    /// Who begins to lead deletes what is left of queues that are gone: whoever led before may not
    /// have come to it. True if there is something.
    pub(super) fn delete_orphans(&mut self, known: &[Known]) -> bool {
        let mut orphans = Vec::new();
        for (at, partition) in self.all_queues() {
            let term = partition.replica().group().status().term;
            if partition.is_leading() && self.serving[at] != Some(term) {
                let gone = partition.queue_ids().into_iter().filter(|queue| !known[at].contains_key(queue));
                orphans.extend(gone.map(|queue| (at, queue)));
            }
        }
        let is_any = !orphans.is_empty();
        orphans.into_iter().for_each(|(at, queue)| self.send(self.places[at], None, Command::Delete { queue }));
        is_any
    }
}

fn said_now(partition: &QueuePartition, r: &Running) -> Said {
    let applied = partition.applied();
    Said {
        term: partition.replica().group().status().term,
        applied,
        applied_before: applied,
        led_before: partition.is_leading(),
        leads: partition.is_leading(),
        serves: partition.is_leading(),
        now_ms: r.latest_ms,
        latest_ms: r.latest_ms,
    }
}

/// A wrong shell keeps something that a queue said, and says it again when the queue is long gone.
pub(super) fn outlive(
    said: &mut Vec<(PartitionId, Said, Effect)>,
    r: &mut Running,
    (bug, now): (Bug, Micros),
    known: &[Known],
) {
    let is_meant = |effect: &Effect| match bug {
        Bug::DeliveryOutlivesQueue => matches!(effect, Effect::Deliver(_)),
        _ => matches!(effect, Effect::DeadLetter(_)),
    };
    let Some((since, id, effect)) = &r.kept else {
        r.kept = said.iter().find(|s| is_meant(&s.2)).map(|(id, _, effect)| (now, *id, effect.clone()));
        return;
    };
    let Some((at, partition)) = r.all_queues().find(|(_, partition)| partition.id() == *id) else { return };
    if queue_of(effect).is_some_and(|queue| known[at].contains_key(&queue)) {
        // Another one may go sooner.
        if now > since + SECOND {
            r.kept = None;
        }
    } else if now > since + 2 * SECOND {
        said.push((*id, said_now(partition, r), effect.clone()));
        r.kept = None;
    }
}

fn queue_of(effect: &Effect) -> Option<QueueId> {
    match effect {
        Effect::Deliver(delivery) => Some(delivery.queue),
        Effect::DeadLetter(letter) => Some(letter.queue),
        _ => None,
    }
}

/// A wrong shell lets messages that waited look as if they had still to wait.
pub(super) fn hide_waits(said: &mut [(PartitionId, Said, Effect)]) {
    for effect in said.iter_mut().map(|s| &mut s.2) {
        let Effect::Deliver(delivery) = effect else { continue };
        if let Some((at, ms)) = crate::checks::delay_header(&delivery.message) {
            let mut bytes = delivery.message.to_vec();
            bytes[at..at + 4].copy_from_slice(&(-ms).to_be_bytes());
            delivery.message = bytes.into();
        }
    }
}
