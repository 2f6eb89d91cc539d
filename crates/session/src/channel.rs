//! One channel: its consumers, the request under way, and publishes that several partitions have to
//! confirm.
//!
//! Invariant: a consumer stays known as long as a message that it was given may still be settled,
//! also after it was cancelled; so an ack always finds its queue. Numbers of consumers start at 1
//! and are never reused on a channel.

use super::asking::Found;
use super::audit::BindingChange;
use super::consumers::Consumers;
use super::counts::{ChannelCounts, ConsumerCounts};
use super::credit::Credit;
use super::declare::Declare;
use super::events::Told;
use super::ledger::Ledger;
use super::reply_to::ReplyConsumer;
use super::routes::Routes;
use super::tally::Count;
use super::timeouts::Aging;
use super::transaction::Transaction;
use super::waiting::{Asked, Unconfirmed};
use super::{Client, Cx, Host};
use amqp::{ChannelId, Confirm, ConsumerTag, Request};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use partition::RequestId;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What a consumer, or the holder of what `basic.get` took, is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its partition has not answered yet.
    Starting,
    /// It gets messages.
    Active,
    /// Its partition was told; messages may still be on their way.
    Stopping,
    /// It gets nothing more, but holds messages.
    Cancelled,
    /// It stands for what `basic.get` took from one queue.
    Get,
    /// It is no more; [`Consumers`] keeps its place.
    Gone,
}

/// A consumer of a channel.
#[derive(Clone, Debug)]
pub(super) struct Consumer {
    pub(super) number: u32,
    /// Its first number: it gets another one when it comes under a budget of its channel, or out of it.
    pub(super) origin: u32,
    pub(super) state: State,
    pub(super) tag: ConsumerTag,
    pub(super) queue: QueueId,
    pub(super) partition: PartitionId,
    /// Its messages may come from another shard or another node.
    pub(super) is_remote: bool,
    /// Its leader left, and the next one is to be asked.
    pub(super) is_detached: bool,
    /// The next leader was asked and has not answered.
    pub(super) is_attaching: bool,
    pub(super) no_ack: bool,
    pub(super) exclusive: bool,
    /// Higher goes first; see [`broker::queue::Consumer`].
    pub(super) priority: i32,
    /// What the client gave at `basic.consume`, encoded; absent where that is nothing, or too much to keep.
    pub(super) arguments: Option<Box<[u8]>>,
    /// Its own prefetch; 0 is no limit.
    pub(super) prefetch: u16,
    /// The channel hands out its credit.
    pub(super) granted_only: bool,
    /// Credit handed out and not yet used.
    pub(super) granted: u32,
    /// Messages that it holds.
    pub(super) unacked: u64,
    /// One past the newest message that it was given.
    pub(super) past: u64,
    /// What it was given and acked since that was taken down.
    pub(super) counts: ConsumerCounts,
    /// Its queue is a quorum queue: redeliveries tell their count in a header.
    pub(super) is_quorum: bool,
    /// It held something for too long, and all that it holds went back: what its client acks is too late.
    pub(super) is_timed_out: bool,
    /// How long it has held what it holds; absent without a timeout.
    pub(super) aging: Option<Box<Aging>>,
    /// What the event exchange was told of it; absent where nobody is.
    pub(super) told: Option<Box<Told>>,
}

impl Consumer {
    /// It holds messages, and no consumer at its partition stands for them: after a change of leaders the next one does not
    /// hear of them by itself.
    pub(super) fn is_holder(&self) -> bool {
        let is_none = matches!(self.state, State::Get | State::Cancelled | State::Stopping);
        is_none && self.unacked > 0 && !self.no_ack && !self.is_timed_out
    }

    /// Who holds what `basic.get` takes from a queue.
    pub(super) fn getter(number: u32, queue: QueueId, partition: PartitionId) -> Self {
        Consumer {
            number,
            origin: number,
            state: State::Get,
            tag: ConsumerTag::default(),
            queue,
            partition,
            is_remote: false,
            is_detached: false,
            is_attaching: false,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: None,
            prefetch: 0,
            granted_only: false,
            granted: 0,
            unacked: 0,
            past: 0,
            counts: ConsumerCounts::default(),
            is_quorum: false,
            is_timed_out: false,
            aging: None,
            told: None,
        }
    }
}

/// The place of who is to hold what is fetched from a queue: who holds something of it, or else
/// nothing at all.
fn getter_for(consumers: &Consumers, queue: QueueId) -> Option<usize> {
    let place_of = |is_it: &dyn Fn(&Consumer) -> bool| consumers.position(|c| c.state == State::Get && is_it(c));
    place_of(&|c| c.queue == queue).or_else(|| place_of(&|c| c.unacked == 0))
}

/// What the request under way waits for.
#[derive(Debug, Default)]
pub(super) enum Pending {
    /// There is none.
    #[default]
    None,
    /// The counts of a queue that was declared or asked for. A declaration makes it anew should it be gone.
    Stat { of: Found, declare: Option<Box<Declare>> },
    /// The decision about a new queue.
    NewQueue { name: Bytes, declare: Box<Declare> },
    /// The decision about the queue behind a channel's replies.
    Replies { tag: ConsumerTag, name: Bytes },
    /// A partition attaches a consumer.
    Consume { number: u32, queue_name: Bytes },
    /// A partition detaches a consumer.
    Cancel { number: u32 },
    /// A partition gives a message, or says that there is none.
    Get { of: Found, no_ack: bool },
    /// A partition drops what is ready.
    Purge(Found),
    /// The shard of a queue deletes it, or says why not.
    Delete { of: Found, if_unused: bool, if_empty: bool, is_exclusive: bool, cancelled: Vec<u32> },
    /// The decision about the beginning or the end of an exchange, and the method that asked for
    /// it.
    Exchange { method: &'static str, name: Bytes },
    /// The decision about a binding.
    Binding(Box<BindingChange>),
    /// This node makes sure that it knows all that was decided; then the request is looked at anew.
    /// `input` is how much the client had said when that began.
    CatchUp { request: Box<Request>, input: u64 },
}

/// What a reply belongs to: the number of a request says so itself.
///
/// ```text
///   63 62 61                0
///   kind  number
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// The request under way; late answers to earlier ones meet nobody.
    Pending(u64),
    /// A publish to the sync barrier, by its publish number.
    Sync(u64),
    /// The end of a consumer that gave way to another of the same tag.
    Replaced(u64),
    /// The beginning of that other.
    Replacing(u64),
}

impl RequestKind {
    const SHIFT: u32 = 62;

    pub(super) fn of(request: RequestId) -> Self {
        let number = request.0 & ((1 << Self::SHIFT) - 1);
        match request.0 >> Self::SHIFT {
            0 => RequestKind::Pending(number),
            1 => RequestKind::Sync(number),
            2 => RequestKind::Replaced(number),
            _ => RequestKind::Replacing(number),
        }
    }

    pub(super) fn id(self) -> RequestId {
        let (kind, number) = match self {
            RequestKind::Pending(number) => (0, number),
            RequestKind::Sync(number) => (1, number),
            RequestKind::Replaced(number) => (2, number),
            RequestKind::Replacing(number) => (3, number),
        };
        assert!(number >> Self::SHIFT == 0, "request numbers have 62 bits");
        RequestId(kind << Self::SHIFT | number)
    }
}

/// A publish that several partitions take.
#[derive(Debug)]
struct Awaited {
    left: u16,
    refused: bool,
}

/// How many publishes have their answer.
#[derive(Clone, Copy, Default)]
#[must_use = "they are counted"]
pub(super) struct Answered {
    confirmed: u64,
    refused: u64,
}

impl Answered {
    #[inline]
    pub(super) fn count(self, host: &impl Host) {
        host.count(Count::Confirmed, self.confirmed);
        host.count(Count::Refused, self.refused);
    }
}

/// A channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    pub(super) key: ChannelKey,
    pub(super) pending: Pending,
    /// The request under way, where what this node knows of the topology may be old.
    pub(super) repeat: Option<Box<Request>>,
    /// It was closed with an error; what the client had sent behind it does not count, until the
    /// machine says the end.
    pub(super) failed: bool,
    /// Nobody led the partition that it asked.
    pub(super) waits_for_leader: bool,
    /// It counts against its user's limit.
    pub(super) is_counted: bool,
    /// The number of the request under way.
    pub(super) request: u64,
    /// With those who hold what `basic.get` took.
    pub(super) consumers: Consumers,
    pub(super) last_number: u32,
    /// The prefetch of consumers to come.
    pub(super) prefetch: u16,
    /// A prefetch of the channel as a whole.
    pub(super) credit: Option<Box<Credit>>,
    /// Every partition that this channel published to, consumed from or took messages of.
    pub(super) partitions: SmallVec<[PartitionId; 2]>,
    pub(super) routes: Routes,
    /// Publishes that wait for their commit; present on a transactional channel.
    pub(super) transaction: Option<Box<Transaction>>,
    /// Who gets the replies to what this channel asks.
    pub(super) reply_consumer: Option<Box<ReplyConsumer>>,
    awaited: BTreeMap<u64, Awaited>,
    /// When it asked last, and what.
    pub(super) asked: Asked,
    pub(super) unconfirmed: Option<Unconfirmed>,
    /// What went over it.
    pub(super) counts: ChannelCounts,
}

impl Channel {
    pub(super) fn new(id: ChannelId, key: ChannelKey) -> Self {
        Channel {
            id,
            key,
            pending: Pending::None,
            repeat: None,
            failed: false,
            waits_for_leader: false,
            is_counted: false,
            request: 0,
            consumers: Consumers::default(),
            last_number: 0,
            prefetch: 0,
            credit: None,
            partitions: SmallVec::new(),
            routes: Routes::default(),
            transaction: None,
            reply_consumer: None,
            awaited: BTreeMap::new(),
            asked: Asked::default(),
            unconfirmed: None,
            counts: ChannelCounts::default(),
        }
    }

    /// The number of the request under way, as partitions are told it.
    pub(super) fn request_id(&self) -> RequestId {
        RequestKind::Pending(self.request).id()
    }

    /// Who holds what was given to consumer `number`.
    pub(super) fn holder(&self, consumer: &Consumer) -> ConsumerKey {
        match consumer.state {
            State::Get => ConsumerKey::get(self.key),
            _ => ConsumerKey { channel: self.key, number: consumer.number },
        }
    }

    pub(super) fn consumer(&self, number: u32) -> Option<&Consumer> {
        self.consumer_at(number).map(|at| &self.consumers[at])
    }

    #[inline]
    pub(super) fn consumer_at(&self, number: u32) -> Option<usize> {
        self.consumers.place_of(number)
    }

    pub(super) fn next_number(&mut self) -> u32 {
        self.last_number =
            self.last_number.checked_add(1).expect("a channel has fewer than 2^32 consumers in its life");
        self.last_number
    }

    /// Notes that a partition knows this channel.
    pub(super) fn use_partition(&mut self, partition: PartitionId) {
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
    }

    /// Who holds what is fetched one by one from a queue: the same for all of a queue, and one that
    /// holds nothing serves the next queue, so that a channel that fetches from queues that come
    /// and go remembers none of them, and runs out of no numbers.
    pub(super) fn holder_of_got(&mut self, queue: QueueId, partition: PartitionId, ledger: &Ledger) -> usize {
        self.take_getter(queue, ledger);
        if let Some(at) = getter_for(&self.consumers, queue) {
            let consumer = &mut self.consumers[at];
            (consumer.queue, consumer.partition) = (queue, partition);
            return at;
        }
        let number = self.next_number();
        self.consumers.push(Consumer::getter(number, queue, partition))
    }

    /// Forgets a consumer that gets nothing more and holds nothing.
    pub(super) fn forget_if_done(&mut self, at: usize, ledger: &Ledger) {
        let consumer = &self.consumers[at];
        if consumer.state == State::Cancelled && consumer.unacked == 0 {
            self.take_consumer(at, ledger);
            self.consumers.remove(at);
        }
    }

    /// A publish that `partitions` partitions have to confirm.
    pub(super) fn await_confirms(&mut self, publish_seq: u64, partitions: usize) {
        let left = u16::try_from(partitions).expect("a node has fewer than 65536 partitions");
        self.awaited.insert(publish_seq, Awaited { left, refused: false });
    }

    /// Whether a partition that a publish went to has not spoken yet, where it went to several.
    pub(super) fn awaits(&self, publish_seq: u64) -> bool {
        self.awaited.contains_key(&publish_seq)
    }

    /// A partition's word about `count` publishes from `first`. One refusal refuses the publish,
    /// once all have spoken.
    #[inline]
    pub(super) fn confirm(&mut self, first: u64, count: u64, refused: bool, client: &mut impl Client) -> Answered {
        let of = |refused| if refused { Confirm::Nack } else { Confirm::Ack };
        if self.awaited.is_empty() {
            client.confirm_run(self.id, first, count, of(refused));
            let (confirmed, refused) = if refused { (0, count) } else { (count, 0) };
            self.counts.traffic.confirmed += confirmed;
            return Answered { confirmed, refused };
        }
        let mut answered = Answered::default();
        for seq in first..first + count {
            let mut refused = refused;
            if let Some(awaited) = self.awaited.get_mut(&seq) {
                awaited.left -= 1;
                awaited.refused |= refused;
                if awaited.left > 0 {
                    continue;
                }
                refused = awaited.refused;
                self.awaited.remove(&seq);
            }
            client.confirm(self.id, seq, of(refused));
            answered.confirmed += u64::from(!refused);
            answered.refused += u64::from(refused);
        }
        self.counts.traffic.confirmed += answered.confirmed;
        answered
    }

    /// The queue of a consumer is gone.
    pub(super) fn cancelled(&mut self, number: u32, cx: &mut Cx<'_, impl Host>) {
        let Some(at) = self.consumer_at(number) else { return };
        let (queue, state) = (self.consumers[at].queue, self.consumers[at].state);
        // Who deletes a queue is answered first.
        if state == State::Active && self.puts_off(queue, number) {
            return;
        }
        match state {
            State::Active => cx.client.cancel_notify(self.id, &self.consumers[at].tag),
            // The client asked for the end itself, or is about to be told that the beginning
            // failed.
            State::Starting | State::Stopping | State::Cancelled | State::Get | State::Gone => {}
        }
        if state != State::Stopping {
            self.stop(at, cx);
        }
    }

    /// Whether it waits for the deletion of this queue: it hears of its own consumer of it once that is
    /// answered.
    fn puts_off(&mut self, queue: QueueId, number: u32) -> bool {
        match &mut self.pending {
            Pending::Delete { of, cancelled, .. } if of.queue == queue => {
                cancelled.push(number);
                true
            }
            _ => false,
        }
    }

    /// A consumer gets nothing more: its credit goes back to the channel.
    pub(super) fn stop(&mut self, at: usize, cx: &mut Cx<'_, impl Host>) {
        let consumer = &mut self.consumers[at];
        if cx.host.common().settings.tells_events {
            consumer.tell_end(cx.host);
        }
        consumer.state = State::Cancelled;
        if consumer.is_holder() {
            cx.host.note_holder(consumer.partition);
        }
        let granted = std::mem::take(&mut consumer.granted);
        let number = consumer.number;
        if let Some(credit) = &mut self.credit {
            credit.leave(number, granted);
        }
        self.forget_if_done(at, cx.host.ledger());
        self.hand_out(cx.host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_nothing_of_one_queue_holds_what_is_fetched_from_the_next() {
        let (first, second, third) = (QueueId(1), QueueId(2), QueueId(3));
        let mut consumers = Consumers::default();
        consumers.push(Consumer::getter(1, first, PartitionId(0)));
        consumers.push(Consumer::getter(2, second, PartitionId(0)));
        consumers[0].state = State::Active;
        assert_eq!(getter_for(&consumers, first), Some(1), "a consumer proper is something else");
        assert_eq!(getter_for(&consumers, third), Some(1));
        consumers[1].unacked = 1;
        assert_eq!(getter_for(&consumers, second), Some(1), "the same for all of a queue");
        assert_eq!(getter_for(&consumers, third), None, "an ack has to find its queue");
    }
}
