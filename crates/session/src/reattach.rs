//! Consumers whose leader left: attached to the next one, unseen by their clients.
//!
//! Invariant: a client hears of the end of a consumer only if its queue is gone, or the next leader
//! does not take it. What the client holds is the consumer's again where nobody else was given it
//! meanwhile, and counts against its prefetch in any case. So what it settles while leaders change
//! counts, with that one exception; then the message is delivered twice, flagged as redelivered. Where
//! an earlier leader gave it to somebody else too, it ends by the first ack of the two.

use super::asking::AGAIN_MS;
use super::channel::{Consumer, RequestKind, State};
use super::{Client, Cx, Host, Session};
use broker::topology::Queue;
use broker::{ConsumerKey, PartitionId, QueueId};
use partition::{Command, Reply};
use smallvec::SmallVec;

impl Session {
    /// A partition says that a consumer is none any more.
    pub(super) fn cancelled(&mut self, at: usize, number: u32, cx: &mut Cx<'_, impl Host>) {
        let key = self.channels[at].key;
        self.abandon_unread(key, true, cx);
        let Some(consumer) = self.channels[at].consumer(number) else { return };
        let is_there = cx.host.topology().queue(consumer.queue).is_some();
        match consumer.state {
            // The answer to its request says what became of it.
            State::Starting if is_there => {}
            State::Active if is_there && consumer.is_attaching => {}
            State::Active if is_there => self.detach_consumer(at, number, cx),
            _ => self.channels[at].cancelled(number, cx),
        }
    }

    /// Has a consumer wait for the next leader.
    fn detach_consumer(&mut self, at: usize, number: u32, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let Some(found) = channel.consumer_at(number) else { return };
        let consumer = &mut channel.consumers[found];
        (consumer.is_detached, consumer.is_attaching) = (true, false);
        let granted = std::mem::take(&mut consumer.granted);
        if let Some(credit) = &mut channel.credit {
            credit.leave(number, granted);
        }
        channel.hand_out(cx.host);
        self.ask_at = self.ask_at.min(cx.host.now() + AGAIN_MS);
    }

    /// Asks for all consumers of a channel that wait for a leader.
    pub(super) fn attach_again(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let numbers: SmallVec<[u32; 4]> =
            self.channels[at].consumers.iter().filter(|c| c.is_detached).map(|c| c.number).collect();
        // One look at all that the channel has out, and none where nobody is asked.
        let mut unacked = None;
        for number in numbers {
            let channel = &mut self.channels[at];
            let Some(found) = channel.consumer_at(number) else { continue };
            let consumer = &mut channel.consumers[found];
            if consumer.state == State::Active && Self::is_home_away(consumer.queue, cx) {
                // Nobody would answer before it is back; its queue may go meanwhile.
                self.ask_at = self.ask_at.min(cx.host.now() + AGAIN_MS);
                continue;
            }
            if !std::mem::take(&mut consumer.is_detached) || consumer.state != State::Active {
                continue;
            }
            if cx.host.topology().queue(consumer.queue).is_none() {
                // It went with the node on which it lived: nobody is there to ask.
                channel.cancelled(number, cx);
                continue;
            }
            consumer.is_attaching = true;
            let (queue, partition, no_ack, past) = (consumer.queue, consumer.partition, consumer.no_ack, consumer.past);
            let request = RequestKind::Replacing(number.into()).id();
            let told = channel.partition_consumer(&channel.consumers[found]);
            cx.host.push(partition, Command::Consume { queue, consumer: told, again: true, request });
            let key = ConsumerKey { channel: channel.key, number };
            let settled = self.continuation.iter().flat_map(|left| left.unsettled_of(channel.id, number));
            let unacked = unacked.get_or_insert_with(|| cx.client.unacked_of_each(channel.id));
            for (first, count) in settled.chain(unacked.remove(&number).unwrap_or_default()) {
                cx.host.push(partition, Command::Hold { queue, consumer: key, first, count });
            }
            let is_single = |queue: &Queue| queue.rules.single_active.is_some();
            if past > 0 && cx.host.topology().queue(queue).is_some_and(is_single) {
                // Of those who attach it may have been the active one.
                cx.host.push(partition, Command::Hold { queue, consumer: key, first: past, count: 0 });
            }
            if no_ack && channel.credit.as_ref().is_some_and(|credit| credit.is_used_up()) {
                cx.host.push(partition, Command::Stall { queue, consumer: key, stalled: true });
            }
        }
    }

    /// Somebody else leads these partitions: tells him what channels hold of them that no consumer stands for. What `basic.get`
    /// took, and what a consumer has that is cancelled, stays theirs as what a consumer holds does.
    pub fn hold_again(&mut self, partitions: &[PartitionId], cx: &mut Cx<'_, impl Host>) {
        for at in 0..self.channels.len() {
            let channel = &self.channels[at];
            let is_asked = |consumer: &Consumer| consumer.is_holder() && partitions.contains(&consumer.partition);
            let is_any = |partition| partitions.contains(partition);
            if channel.failed || !channel.partitions.iter().any(is_any) || !channel.consumers.iter().any(is_asked) {
                continue;
            }
            let mut unacked = cx.client.unacked_of_each(channel.id);
            for consumer in channel.consumers.iter().filter(|consumer| is_asked(consumer)) {
                self.push_holds(at, consumer, unacked.remove(&consumer.number).unwrap_or_default(), cx);
            }
        }
    }

    /// Tells who leads now what one of them holds.
    pub(super) fn hold_of(&self, at: usize, number: u32, cx: &Cx<'_, impl Host>) {
        let channel = &self.channels[at];
        if let Some(consumer) = channel.consumer(number).filter(|consumer| consumer.is_holder()) {
            self.push_holds(at, consumer, cx.client.unacked_of(channel.id, number), cx);
        }
    }

    fn push_holds(&self, at: usize, consumer: &Consumer, unacked: Vec<(u64, u64)>, cx: &Cx<'_, impl Host>) {
        let (channel, queue) = (&self.channels[at], consumer.queue);
        if cx.host.topology().queue(queue).is_none() {
            return;
        }
        let holder = channel.holder(consumer);
        let settled = self.continuation.iter().flat_map(|left| left.unsettled_of(channel.id, consumer.number));
        for (first, count) in settled.chain(unacked) {
            cx.host.push(consumer.partition, Command::Hold { queue, consumer: holder, first, count });
        }
    }

    fn is_home_away(queue: QueueId, cx: &Cx<'_, impl Host>) -> bool {
        let topology = cx.host.topology();
        let home = topology.queue(queue).and_then(|queue| topology.home_node(queue));
        home.is_some_and(|node| !cx.host.reaches(node))
    }

    /// A partition answered for a consumer that took the place of another, or came to its next
    /// leader.
    pub(super) fn attached_again(&mut self, at: usize, number: u32, reply: &Reply, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let Some(found) = channel.consumer_at(number) else { return };
        let consumer = &mut channel.consumers[found];
        consumer.is_attaching = false;
        match reply {
            Reply::Consuming => {}
            Reply::NotLeader if consumer.state == State::Active => self.detach_consumer(at, number, cx),
            _ => {
                // Its queue went meanwhile, or somebody else has it for himself: the client hears of
                // it as of any such end.
                if consumer.state == State::Active {
                    cx.client.cancel_notify(channel.id, &consumer.tag);
                }
                channel.stop(found, cx);
                self.hold_of(at, number, cx);
            }
        }
    }
}
