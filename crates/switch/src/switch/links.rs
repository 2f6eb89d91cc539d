//! What links to other nodes bring to a shard, and what their coming and going means for it.
//!
//! Invariant: what came over one link is never taken for something of the next.

use super::{At, Switch};
use crate::roads::{Frames, LinkUp};
use crate::surroundings::{Outsider, Surroundings};
use broker::{NodeNumber, PartitionId, QueueId};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Reply};
use session::{Asker, Deletion};

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Sends something to another node beside what channels and partitions say; nothing where there
    /// is no link.
    pub fn forward(&self, node: NodeNumber, partition: PartitionId, forward: Forward) {
        let mut inbox = self.inbox.borrow_mut();
        inbox.roads.send(node, partition, forward);
        inbox.wake();
    }

    /// There is a link to another node, which hears what this shard leads: it may have no copy, or one that has
    /// just been begun and hears of nobody.
    pub(super) fn link_up(&self, link: LinkUp) {
        let leading = self.leading.borrow();
        let mut inbox = self.inbox.borrow_mut();
        inbox.roads.open(link);
        self.reach_changes.set(self.reach_changes.get() + 1);
        let node = NodeNumber(link.peer.node);
        for (partition, term) in leading.iter() {
            inbox.roads.send(node, *partition, Forward::Leads { term: *term, leads: true });
            inbox.wake();
        }
    }

    /// The link to another node is gone, and with it all that was on its way.
    pub(super) fn link_down(&self, node: NodeNumber, env: &impl Surroundings<Connection = C, Outsider = O>) {
        // What that node led it may lead no more when it is back; who is a member hears that otherwise. Another
        // shard may hear of this only after the next link has told who leads.
        {
            let (topology, inbox) = (env.topology(), self.inbox.borrow());
            let all = topology.partitions().map(|(id, _)| id);
            let told_here = all.filter(|id| inbox.is_here(*id) && !self.leaders.is_heard(*id));
            told_here.for_each(|id| self.leaders.lose(id, node));
        }
        let (effects, gone) = self.inbox.borrow_mut().roads.close(node);
        self.reach_changes.set(self.reach_changes.get() + 1);
        for (partition, channel) in gone {
            self.remote.borrow_mut().forget(channel);
            self.inbox.borrow_mut().push_here(partition, Command::Part { channel });
        }
        self.deliver(effects.into_iter(), None, env);
        // What waited for that node goes on.
        self.inbox.borrow_mut().wake();
    }

    /// Takes what another node sent, in its order.
    pub(super) fn take_forwards(
        &self,
        node: NodeNumber,
        frames: Frames,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let mut answers = Vec::new();
        let next_queue = self.next_queue.get();
        let is_new = |queue: QueueId| !queue.is_local() && queue >= next_queue;
        for (partition, forward) in frames {
            let mut inbox = self.inbox.borrow_mut();
            // Without a link it is of an earlier one.
            let Some(road) = inbox.roads.road(node) else { break };
            let waits = match &forward {
                Forward::Command(command) => names(command).any(is_new),
                Forward::Delete { queue, .. } => is_new(*queue),
                _ => false,
            };
            let ordered = matches!(forward, Forward::Command(_) | Forward::Ping { .. } | Forward::Delete { .. });
            let forward = match ordered {
                true => match road.hold(partition, forward, waits) {
                    Some(forward) => forward,
                    None => continue,
                },
                false => forward,
            };
            match forward {
                Forward::Command(command) if self.directory.had(partition) => inbox.refuse_lost(partition, &command),
                Forward::Command(command) => {
                    road.note_guest(partition, &command);
                    if let Command::Detach { channel } = &command {
                        self.remote.borrow_mut().forget(*channel);
                    }
                    drop(inbox);
                    env.passes(partition, &command);
                    self.inbox.borrow_mut().push_here(partition, command);
                }
                // No node has such a partition: nobody published there.
                Forward::Effect(Effect::Confirm { .. } | Effect::Refuse { .. } | Effect::Returned { .. })
                    if !partition.is_in_memory() && !self.leaders.is_led_in_terms(partition) => {}
                Forward::Effect(mut effect) => {
                    if road.answered(partition, &mut effect) {
                        inbox.hear(partition, effect, |effect| answers.push(effect));
                    } else if let Effect::Deliver(delivery) = effect {
                        // Nobody takes it, and it is on its way no longer.
                        let (channel, bytes) = (delivery.consumer.channel, delivery.message.len() as u64);
                        inbox.roads.send(node, partition, Forward::Drained { channel, bytes });
                    }
                }
                Forward::Starved { consumer } => {
                    drop(inbox);
                    self.deliver(answers.drain(..), None, env);
                    self.pass_over(consumer, env);
                }
                Forward::Drained { channel, bytes } => {
                    self.remote.borrow_mut().drained(channel, usize::try_from(bytes).unwrap_or(usize::MAX));
                }
                Forward::Ping { number } => inbox.roads.mark(node, number),
                Forward::Pong { number } => road.handled(number),
                Forward::Delete { channel, request, .. } if self.directory.had(partition) => {
                    inbox.answer_away(partition, Effect::Reply { channel, request, reply: Reply::NotLeader });
                }
                Forward::Delete { queue, if_unused, if_empty, channel, request } => {
                    drop(inbox);
                    let asker = Asker::Channel { channel, request };
                    let deletion = Deletion { queue, partition, if_unused, if_empty, asker, insists: false };
                    self.deletions.begin(deletion, &At { switch: self, env });
                }
                forward @ (Forward::Propose { .. }
                | Forward::NotProposed { .. }
                | Forward::Applied { .. }
                | Forward::AskLease { .. }
                | Forward::Lease { .. }) => {
                    let from = road.peer();
                    inbox.receive_forward(partition, from, forward);
                }
                Forward::Leads { term, leads } => {
                    self.leaders.hear(partition, node, term, leads);
                    // What waits for a leader goes on.
                    inbox.wake();
                }
                // For the node as a whole: what drives the links keeps them.
                Forward::Ask { .. } | Forward::Answer { .. } | Forward::News(_) => {}
            }
        }
        self.deliver(answers.into_iter(), None, env);
        // Marks are answered in the step that follows.
        let mut inbox = self.inbox.borrow_mut();
        if inbox.roads.has_waiting() {
            inbox.wake();
        }
    }
}

/// The queues that have to be known before a command is carried out. An ack that came to the next leader ahead
/// of the queue would come to nothing, and the mark behind it would say that it is applied.
fn names(command: &Command) -> impl Iterator<Item = QueueId> + '_ {
    let (targets, one) = match command {
        Command::Publish(publish) => (&publish.targets[..], None),
        Command::Settle { queue, .. }
        | Command::Consume { queue, .. }
        | Command::Hold { queue, .. }
        | Command::Cancel { queue, .. }
        | Command::Stall { queue, .. }
        | Command::Grant { queue, .. }
        | Command::Get { queue, .. }
        | Command::Purge { queue, .. }
        | Command::Stat { queue, .. }
        | Command::Close { queue, .. } => (&[][..], Some(*queue)),
        Command::Configure { .. }
        | Command::DeadLetterAnswered { .. }
        | Command::Detach { .. }
        | Command::Part { .. }
        | Command::Reopen { .. }
        | Command::Delete { .. }
        | Command::Mark { .. }
        | Command::LimitReplies { .. }
        | Command::Sync { .. } => (&[][..], None),
    };
    targets.iter().map(|target| target.queue).chain(one)
}
