//! Questions to the partition of a queue: asked, asked again while nobody leads it, and given up in
//! the end.
//!
//! Invariant: a channel that waits hears something, whatever leader or node goes. That nobody leads
//! a partition says nothing of its queues: they are neither gone nor deleted. One that lives on one node is not
//! waited for while that is away: its client hears so at once, as RabbitMQ has it of classic queues. Who led it before has
//! forgotten the question, so it is asked again until somebody leads, and each time under a new
//! number, so that it is not answered twice.

use super::channel::{Channel, Pending};
use super::refusal::channel_error;
use super::{Cx, DeleteQueue, Host, NEVER, Session};
use amqp::{ChannelError, Millis, ReplyCode};
use broker::topology::Refusal;
use broker::{ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use partition::{Command, Reply};

/// How soon a question is asked again. An election takes longer, and asking costs a command.
pub(super) const AGAIN_MS: Millis = 100;
/// How long after the request it is given up. An election takes seconds; a client should hear of
/// what takes longer.
pub(super) const GIVE_UP_MS: Millis = 30_000;

/// A queue that was found by its name.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) queue: QueueId,
    pub(super) partition: PartitionId,
    pub(super) name: Bytes,
}

fn internal_error(queue: &str, why: &str) -> ChannelError {
    ChannelError::new(ReplyCode::InternalError, format!("{queue} {why}"))
}

impl Pending {
    /// Whether a queue's partition is to answer.
    pub(super) fn is_of_queue(&self) -> bool {
        match self {
            Pending::Stat { .. }
            | Pending::Purge(_)
            | Pending::Get { .. }
            | Pending::Delete { .. }
            | Pending::Consume { .. }
            | Pending::Cancel { .. } => true,
            Pending::None
            | Pending::NewQueue { .. }
            | Pending::Replies { .. }
            | Pending::Exchange { .. }
            | Pending::Binding(_)
            | Pending::CatchUp { .. } => false,
        }
    }
}

impl Channel {
    /// The queue whose partition is to answer.
    fn pending_queue(&self) -> Option<QueueId> {
        match &self.pending {
            Pending::Stat { of, .. } | Pending::Purge(of) | Pending::Get { of, .. } | Pending::Delete { of, .. } => {
                Some(of.queue)
            }
            Pending::Consume { number, .. } | Pending::Cancel { number } => {
                self.consumer(*number).map(|consumer| consumer.queue)
            }
            _ => None,
        }
    }
}

impl Session {
    /// Has the channel wait for something that the partition of a queue knows, and asks for it.
    pub(super) fn wait_for(&mut self, at: usize, pending: Pending, cx: &mut Cx<'_, impl Host>) {
        self.channels[at].pending = pending;
        self.ask(at, cx);
    }

    fn ask(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        if let Some(refusal) = self.home_is_away(at, cx)
            && self.refuse_home(at, refusal, cx)
        {
            return;
        }
        let channel = &self.channels[at];
        let (request, key) = (channel.request_id(), channel.key);
        let (partition, command) = match &channel.pending {
            Pending::Stat { of, .. } => (of.partition, Command::Stat { queue: of.queue, channel: key, request }),
            Pending::Purge(of) => (of.partition, Command::Purge { queue: of.queue, channel: key, request }),
            Pending::Get { of, no_ack } => {
                (of.partition, Command::Get { queue: of.queue, channel: key, no_ack: *no_ack, request })
            }
            Pending::Delete { of, if_unused, if_empty, .. } => {
                let (queue, partition) = (of.queue, of.partition);
                let (if_unused, if_empty) = (*if_unused, *if_empty);
                return cx.host.delete_queue(DeleteQueue {
                    queue,
                    partition,
                    if_unused,
                    if_empty,
                    channel: key,
                    request,
                    insists: false,
                });
            }
            Pending::Consume { number, .. } => {
                let consumer = channel.consumer(*number).expect("the caller has seen it");
                let told = channel.partition_consumer(consumer);
                (consumer.partition, Command::Consume { queue: consumer.queue, consumer: told, again: false, request })
            }
            Pending::Cancel { number } => {
                let consumer = channel.consumer(*number).expect("a consumer that is to stop stays known");
                let key = ConsumerKey { channel: key, number: *number };
                (consumer.partition, Command::Cancel { queue: consumer.queue, consumer: key, request })
            }
            Pending::None
            | Pending::NewQueue { .. }
            | Pending::Replies { .. }
            | Pending::Exchange { .. }
            | Pending::Binding(_)
            | Pending::CatchUp { .. } => {
                unreachable!("the topology's answers are not asked for here")
            }
        };
        if cx.host.shard_of(partition).is_none() {
            return self.wait_for_leader(at, cx);
        }
        cx.host.push(partition, command);
        let channel = &self.channels[at];
        if let Pending::Consume { number, .. } = &channel.pending
            && let Some(consumer) = channel.consumer(*number).filter(|consumer| consumer.no_ack)
            && channel.credit.as_ref().is_some_and(|credit| credit.is_used_up())
        {
            let key = ConsumerKey { channel: channel.key, number: *number };
            cx.host.push(partition, Command::Stall { queue: consumer.queue, consumer: key, stalled: true });
        }
    }

    /// Nobody leads the partition that the channel asked: it is asked again in a while, or given
    /// up.
    pub(super) fn wait_for_leader(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let (now, channel) = (cx.host.now(), &mut self.channels[at]);
        // Who led forgot its consumers, so one that was to end has ended, unless it is on its way to
        // the next leader.
        let is_done = match &channel.pending {
            Pending::Cancel { number } => !channel.consumer(*number).is_some_and(|consumer| consumer.is_attaching),
            _ => false,
        };
        if !is_done && channel.asked.at + GIVE_UP_MS > now {
            channel.waits_for_leader = true;
            self.ask_at = self.ask_at.min(now + AGAIN_MS);
            return;
        }
        let why = "has no leader to ask: does a majority of its nodes run?";
        self.give_up(at, |queue| internal_error(queue, why), cx);
    }

    /// Whoever leads the partition that the channel asked does not answer: it was elected, and the others cannot write what it
    /// decides.
    pub(super) fn give_up_silent(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let why = "has a leader that does not answer: does a majority of its nodes run, and have room on their disks?";
        let channel = &self.channels[at];
        if matches!(channel.pending, Pending::Cancel { .. }) {
            // What its leader gave the consumer may still be on its way, and is nobody's: it goes back with the channel.
            let queue = channel.pending_queue();
            let name = queue.and_then(|queue| cx.host.topology().queue(queue).map(|queue| queue.name.clone()));
            let error = internal_error(&self.queue_text(name.as_deref().unwrap_or_default()), why);
            return self.fail(at, error, cx);
        }
        self.give_up(at, |queue| internal_error(queue, why), cx);
    }

    /// What a client hears of the queue that its channel waits for, if that lives on a node that is away.
    fn home_is_away(&self, at: usize, cx: &Cx<'_, impl Host>) -> Option<Refusal> {
        let channel = &self.channels[at];
        // One that is to end and is on its way to its leader may come to be there.
        let is_on_its_way = match &channel.pending {
            Pending::Cancel { number } => channel.consumer(*number).is_some_and(|consumer| consumer.is_attaching),
            _ => false,
        };
        let queue = channel.pending_queue().filter(|_| !is_on_its_way)?;
        let topology = cx.host.topology();
        topology.check_home(topology.queue(queue)?, |node| cx.host.reaches(node)).err()
    }

    /// Answers for a queue whose node is away. False for a delete that goes on: it needs nobody there.
    fn refuse_home(&mut self, at: usize, refusal: Refusal, cx: &mut Cx<'_, impl Host>) -> bool {
        let error = match &mut self.channels[at].pending {
            Pending::Delete { if_empty: true, .. } => None,
            Pending::Delete { if_unused, .. } => {
                // Its consumers went with its leader.
                *if_unused = false;
                return false;
            }
            _ => Some(channel_error(refusal)),
        };
        // Nobody can say that it has no messages.
        let not_empty = |queue: &str| ChannelError::new(ReplyCode::PreconditionFailed, format!("{queue} not empty"));
        self.give_up(at, |queue| error.unwrap_or_else(|| not_empty(queue)), cx);
        true
    }

    /// The queue's group is damaged. Nobody answers before a person has acted, so nobody is asked
    /// again.
    pub(super) fn is_unavailable(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let partition =
            self.channels[at].pending_queue().and_then(|queue| Some(cx.host.topology().queue(queue)?.partition));
        if partition.is_some_and(|partition| cx.host.topology().members_wanted(partition).len() > 1) {
            // Others have it too, and one of them leads it sooner or later.
            return self.wait_for_leader(at, cx);
        }
        // The queue is there: an application that declares all of its queues first is to come up
        // for the others. As RabbitMQ answers for a queue that has no leader.
        if matches!(self.channels[at].pending, Pending::Stat { .. }) {
            return self.answer(at, Reply::Stat { ready: 0, unacked: 0, consumers: 0 }, cx);
        }
        let why = "is unavailable: its messages are damaged on this node, and its operator has to repair them";
        self.give_up(at, |queue| internal_error(queue, why), cx);
    }

    /// Nobody answers what the channel asked of a queue, which `error` is told as it is called in texts.
    fn give_up(&mut self, at: usize, error: impl FnOnce(&str) -> ChannelError, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let name = match &channel.pending {
            Pending::Cancel { number } => {
                let number = *number;
                if let Some(found) = channel.consumer_at(number) {
                    // Whoever leads next does not know what it holds.
                    channel.consumers[found].is_detached = true;
                }
                // An answer that comes after all is not waited for any more.
                channel.request += 1;
                return self.answer(at, Reply::Done, cx);
            }
            Pending::Stat { of, .. } | Pending::Purge(of) | Pending::Get { of, .. } | Pending::Delete { of, .. } => {
                of.name.clone()
            }
            Pending::Consume { number, queue_name } => {
                let (number, name) = (*number, queue_name.clone());
                if let Some(found) = channel.consumer_at(number) {
                    channel.stop(found, cx);
                }
                name
            }
            Pending::None
            | Pending::NewQueue { .. }
            | Pending::Replies { .. }
            | Pending::Exchange { .. }
            | Pending::Binding(_)
            | Pending::CatchUp { .. } => return,
        };
        let error = error(&self.queue_text(&name));
        self.fail(at, error, cx);
    }

    /// Asks again for all that nobody answered for want of a leader.
    pub(super) fn ask_again(&mut self, cx: &mut Cx<'_, impl Host>) {
        self.ask_at = NEVER;
        for at in 0..self.channels.len() {
            self.attach_again(at, cx);
            let channel = &mut self.channels[at];
            if !std::mem::take(&mut channel.waits_for_leader) || channel.failed {
                continue;
            }
            if !channel.pending.is_of_queue() {
                continue;
            }
            let queue = channel.pending_queue();
            if queue.is_some_and(|queue| cx.host.topology().queue(queue).is_some()) {
                channel.request += 1;
                self.ask(at, cx);
            } else {
                // It was deleted meanwhile.
                self.answer(at, Reply::Gone, cx);
            }
        }
    }
}
