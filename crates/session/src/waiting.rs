//! What waits for an answer for long: told in the log, once each, and to whoever asks what waits
//! for what.
//!
//! Invariant: a request that the broker does not answer, and a publish that it does not confirm,
//! never stay unseen: the log names the queue and the partition. It costs a look at one connection
//! now and then, and nothing a message.

use super::asking::GIVE_UP_MS;
use super::channel::{Channel, Pending};
use super::{Client, Cx, Host, NEVER, Session};
use crate::report::WaitingReport;
use amqp::{Millis, Request};
use broker::{PartitionId, QueueId};
use bytes::Bytes;

/// A request that waits for so long is told of. No sync that goes well takes as long.
const TOLD_MS: Millis = 10_000;
/// A node that stood still has read by then what came for it meanwhile.
const STOOD_STILL_MS: Millis = 1_000;
/// How often it is looked whether the oldest publish without a confirm is still the same; it is
/// told of then. A connection is looked at from its first publish on.
pub(super) const CONFIRMS_LOOK_MS: Millis = 10_000;

/// The last request of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    method: &'static str,
    pub(super) at: Millis,
    is_told: bool,
}

impl Asked {
    /// The method, or nothing if nothing was asked yet.
    pub(super) fn method(&self) -> &'static str {
        self.method
    }
}

/// The oldest publish without a confirm, as of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unconfirmed {
    seq: u64,
    since: Millis,
    is_told: bool,
}

/// What a request waits for.
struct Awaited {
    queue: Option<Bytes>,
    partition: Option<PartitionId>,
    what: &'static str,
}

impl Session {
    /// Notes that a request goes on its way.
    pub(super) fn note_request(&mut self, at: usize, request: &Request, now: Millis) {
        self.channels[at].asked = Asked { method: method_of(request), at: now, is_told: false };
        self.slow_at = self.slow_at.min(now + TOLD_MS);
    }

    /// Tells of what waits for too long.
    pub(super) fn look_at_requests(&mut self, cx: &mut Cx<'_, impl Host>, now: Millis) {
        self.slow_at = NEVER;
        for at in 0..self.channels.len() {
            let id = self.channels[at].id;
            let asked = self.channels[at].asked;
            if cx.client.is_waiting(id) && !asked.is_told {
                let due = asked.at + TOLD_MS;
                if due <= now {
                    self.channels[at].asked.is_told = true;
                    self.tell_request(at, asked, cx, now);
                    // Where this node stood still the answer may be here already.
                    self.slow_at = self.slow_at.min((asked.at + GIVE_UP_MS).max(now + STOOD_STILL_MS));
                } else {
                    self.slow_at = self.slow_at.min(due);
                }
            } else if cx.client.is_waiting(id) && self.channels[at].pending.is_of_queue() {
                match asked.at + GIVE_UP_MS {
                    // It is asked again, and given up where that is in vain.
                    due if due <= now && self.channels[at].waits_for_leader => {
                        self.slow_at = self.slow_at.min(now + STOOD_STILL_MS);
                    }
                    due if due <= now => self.give_up_silent(at, cx),
                    due => self.slow_at = self.slow_at.min(due),
                }
            }
            if cx.client.is_confirming(id) {
                self.look_at_confirms(at, cx, now);
            }
        }
        if self.published != 0 {
            self.slow_at = self.slow_at.min(now + CONFIRMS_LOOK_MS);
        }
    }

    fn tell_request(&self, at: usize, asked: Asked, cx: &Cx<'_, impl Host>, now: Millis) {
        let Awaited { queue, partition, what } = self.awaited(&self.channels[at], cx.host);
        let (queue, vhost) = (queue.as_deref().map(String::from_utf8_lossy), String::from_utf8_lossy(&self.vhost_name));
        tracing::warn!(
            peer = %self.peer, channel = self.channels[at].id.number(), method = asked.method, queue = queue.as_deref(),
            %vhost, partition = partition.map(|id| id.0), waits_for = what, waited_ms = now - asked.at,
            "a request is not answered"
        );
    }

    fn look_at_confirms(&mut self, at: usize, cx: &Cx<'_, impl Host>, now: Millis) {
        let channel = &mut self.channels[at];
        let Some(seq) = cx.client.oldest_unconfirmed(channel.id) else {
            channel.unconfirmed = None;
            return;
        };
        match &mut channel.unconfirmed {
            Some(known) if known.seq == seq => {
                let waited_ms = now - known.since;
                // Another request may be why it is looked so soon.
                if waited_ms >= CONFIRMS_LOOK_MS && !std::mem::replace(&mut known.is_told, true) {
                    let (queues, partitions) = published_to(&self.channels[at], cx.host);
                    let queues: Vec<_> = queues.iter().map(|name| String::from_utf8_lossy(name)).collect();
                    tracing::warn!(
                        peer = %self.peer, channel = self.channels[at].id.number(), publish = seq, queues = queues.join(","),
                        vhost = %String::from_utf8_lossy(&self.vhost_name),
                        partitions = ?partitions.iter().map(|id| id.0).collect::<Vec<_>>(),
                        waited_ms, "a publish is not confirmed"
                    );
                }
            }
            _ => channel.unconfirmed = Some(Unconfirmed { seq, since: now, is_told: false }),
        }
    }

    fn awaited(&self, channel: &Channel, host: &impl Host) -> Awaited {
        let topology = host.topology();
        let name_of = |id: QueueId| topology.queue(id).map(|queue| Bytes::copy_from_slice(&queue.name));
        let (queue, partition, what) = match &channel.pending {
            Pending::Stat { of, .. } | Pending::Purge(of) | Pending::Get { of, .. } | Pending::Delete { of, .. } => {
                (Some(of.name.clone()), Some(of.partition), "partition")
            }
            Pending::Consume { number, .. } | Pending::Cancel { number } => {
                let consumer = channel.consumer(*number);
                let queue = consumer.and_then(|consumer| name_of(consumer.queue));
                (queue, consumer.map(|consumer| consumer.partition), "partition")
            }
            Pending::NewQueue { name, .. } => (Some(name.clone()), None, "topology"),
            Pending::Replies { .. } | Pending::Exchange { .. } | Pending::Binding(_) | Pending::CatchUp { .. } => {
                (None, None, "topology")
            }
            // A commit: its publishes wait for their confirms.
            Pending::None => (None, None, "confirms"),
        };
        Awaited { queue, partition, what }
    }

    /// What a channel waits for at this moment: its request, and its oldest publish as far as it
    /// was seen at a look.
    pub(super) fn waiting(&self, channel: &Channel, client: &impl Client, host: &impl Host) -> Vec<WaitingReport> {
        let now = host.now();
        let mut all = Vec::new();
        if client.is_waiting(channel.id) {
            let Awaited { queue, partition, what } = self.awaited(channel, host);
            let (method, waited_ms) = (channel.asked.method, now - channel.asked.at);
            let partitions = partition.into_iter().collect();
            all.push(WaitingReport { method, queue, partitions, waits_for: what, waited_ms });
        }
        if let Some(known) = channel.unconfirmed
            && client.oldest_unconfirmed(channel.id) == Some(known.seq)
        {
            let (mut queues, partitions) = published_to(channel, host);
            let queue = if queues.len() == 1 { queues.pop() } else { None };
            let waited_ms = now - known.since;
            all.push(WaitingReport { method: "basic.publish", queue, partitions, waits_for: "confirm", waited_ms });
        }
        all
    }
}

/// Where a channel's publishes went lately, without those that are gone. What was published once
/// and long ago is not known any more, but whoever publishes on such a channel and waits for a
/// confirm has not gone on for long.
fn published_to(channel: &Channel, host: &impl Host) -> (Vec<Bytes>, Vec<PartitionId>) {
    let topology = host.topology();
    let (mut queues, mut partitions) = (Vec::new(), Vec::new());
    for (queue, partition) in channel.routes.queues() {
        let Some(queue) = topology.queue(queue) else { continue };
        if !queues.contains(&&*queue.name) {
            queues.push(&*queue.name);
        }
        if !partitions.contains(&partition) {
            partitions.push(partition);
        }
    }
    (queues.into_iter().map(Bytes::copy_from_slice).collect(), partitions)
}

fn method_of(request: &Request) -> &'static str {
    match request {
        Request::ExchangeDeclare { .. } => "exchange.declare",
        Request::ExchangeDelete { .. } => "exchange.delete",
        Request::ExchangeBind { .. } => "exchange.bind",
        Request::ExchangeUnbind { .. } => "exchange.unbind",
        Request::QueueDeclare { .. } => "queue.declare",
        Request::QueueBind { .. } => "queue.bind",
        Request::QueueUnbind { .. } => "queue.unbind",
        Request::QueuePurge { .. } => "queue.purge",
        Request::QueueDelete { .. } => "queue.delete",
        Request::Qos { .. } => "basic.qos",
        Request::Consume { .. } => "basic.consume",
        Request::Cancel { .. } => "basic.cancel",
        Request::Get { .. } => "basic.get",
        Request::Recover { .. } => "basic.recover",
        Request::TxSelect => "tx.select",
        Request::TxCommit { .. } => "tx.commit",
        Request::TxRollback => "tx.rollback",
    }
}
