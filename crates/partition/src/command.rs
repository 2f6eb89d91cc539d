//! What a partition is told and what it answers: the whole of its surface towards channels, as
//! data.
//!
//! Order: commands of one channel to one queue take effect in the order in which they were handed
//! in; so do the effects towards one channel. A command never blocks; what must wait for the disk
//! answers later.

use crate::reply_room::ReplyRoom;
use amqp::Bodies;
use broker::queue::{Consumer, Counts, Rules};
use broker::{ChannelKey, ConsumerKey, QueueId};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;

/// As a count of messages from 0 on: all that a holder has, whatever their numbers. No queue numbers so many.
pub const EVERYTHING: u64 = u64::MAX >> 1;

/// When a publish may be confirmed: who has to have it, and how. Without an order, as *leader synced* and
/// *written* each promise what the other does not: see [`Level::with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Once the leader's operating system has it. Gone if the next leader lacks it.
    LeaderWritten,
    /// Once it is on the leader's disk. Gone if the next leader lacks it.
    LeaderSynced,
    /// Once the operating systems of a majority have it: survives the process, not the power.
    Written,
    /// Once a majority has synced it (Raft commit). The default of durable queues.
    Synced,
}

impl Level {
    /// All of them; the place of each is its two bits: 1 for a disk, 2 for a majority.
    pub const ALL: [Level; 4] = [Level::LeaderWritten, Level::LeaderSynced, Level::Written, Level::Synced];

    /// The weakest level that promises what both do.
    #[inline]
    #[must_use]
    pub fn with(self, other: Level) -> Level {
        Level::ALL[self as usize | other as usize]
    }

    /// Whether it waits for a disk.
    #[inline]
    pub fn is_on_disk(self) -> bool {
        self as usize & 1 != 0
    }

    /// Whether the leader alone decides: nobody else needs to have the message.
    #[inline]
    pub fn is_of_leader(self) -> bool {
        self as usize & 2 == 0
    }

    /// The level of a majority that promises no less.
    #[must_use]
    pub fn of_majority(self) -> Level {
        self.with(Level::Written)
    }
}

/// The durability of one publish to one queue, as its queue's settings and its own headers say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Durability {
    /// A fixed level.
    Level(Level),
    /// *Written* as long as the queue's value at risk stays within its cap, else *synced*.
    Selective {
        /// What this message adds to the value at risk until it is synced; never negative.
        value: u64,
    },
}

/// A queue's rule for selective durability: a sync is due when the sum over what was confirmed and
/// is not yet synced would pass `cap`, or `interval_ms` after the first such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selective {
    /// The value at risk never passes it.
    pub cap: u64,
    /// The longest that a confirmed message stays unsynced, in milliseconds; at least 1.
    pub interval_ms: u64,
}

/// A queue that a message goes to, with what the leader must know of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The queue.
    pub queue: QueueId,
    /// When this publish counts as safe there.
    pub durability: Durability,
    /// The rule behind [`Durability::Selective`]; absent otherwise.
    pub selective: Option<Selective>,
}

/// A message on its way in: slices of what the socket gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The exchange it was published to; at most 255 bytes.
    pub exchange: Bytes,
    /// Its routing key; at most 255 bytes.
    pub routing_key: Bytes,
    /// The content header from its property flags on, verbatim.
    pub properties: Bytes,
    /// Its body.
    pub body: Bytes,
}

/// One publish to all its queues on one partition, or several of a channel in a row that differ from it in their bodies
/// alone. Those stay on their node: to others each goes by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    /// Who publishes.
    pub channel: ChannelKey,
    /// The number to confirm; 0 asks for no confirm.
    pub publish_seq: u64,
    /// The leader of which term it is for, by the term's low bits: one of another term gives it back by
    /// [`Effect::Returned`]. With 0 it is for whoever leads, and refused where nobody does.
    pub term: u32,
    /// Its queues on this partition, each once; at least one.
    pub targets: SmallVec<[Target; 1]>,
    /// Milliseconds until it is due; 0 is at once.
    pub delay_ms: u64,
    /// The message.
    pub message: Message,
    /// The bodies of those behind it. Their numbers follow its own, or are 0 as that is.
    pub more: Option<Arc<Bodies>>,
}

impl Publish {
    /// How many messages it is.
    #[inline]
    pub fn count(&self) -> u64 {
        1 + self.more.as_ref().map_or(0, |more| more.len() as u64)
    }

    /// Bytes of its bodies.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.message.body.len() + self.more.as_ref().map_or(0, |more| more.bytes())
    }

    /// The number of the message `later` behind the first.
    #[inline]
    fn seq(&self, later: u64) -> u64 {
        if self.publish_seq == 0 { 0 } else { self.publish_seq + later }
    }

    /// Each message by itself.
    pub fn apart(&self) -> impl Iterator<Item = Publish> {
        let Publish { channel, term, delay_ms, ref targets, ref message, ref more, .. } = *self;
        let more = (0..).zip(more.iter().flat_map(|more| more.iter_bytes()));
        std::iter::once((0, message.body.clone())).chain(more.map(|(number, body)| (1 + number, body))).map(
            move |(later, body)| {
                let message = Message { body, ..message.clone() };
                let targets = targets.clone();
                Publish { channel, publish_seq: self.seq(later), term, targets, delay_ms, message, more: None }
            },
        )
    }

    /// Looks at each message by itself, in order. One stands for all of them, so that none is made for a look.
    pub fn each(&self, mut look: impl FnMut(&Publish)) {
        let mut one = Publish { more: None, ..self.clone() };
        look(&one);
        for (later, body) in (1..).zip(self.more.iter().flat_map(|more| more.iter_bytes())) {
            (one.message.body, one.publish_seq) = (body, self.seq(later));
            look(&one);
        }
    }

    /// Leaves the first `count` messages and gives the others, of which there are some on either side.
    #[must_use]
    pub fn split_off(&mut self, count: u64) -> Publish {
        let more = self.more.take().filter(|more| (1..=more.len() as u64).contains(&count));
        let more = more.expect("a publish of several messages is split between two of them");
        let (at, len) = (count as usize, more.len());
        let part = |range: std::ops::Range<usize>| (!range.is_empty()).then(|| Arc::new(more.part(range)));
        self.more = part(0..at - 1);
        let message = Message { body: more.get(at - 1), ..self.message.clone() };
        Publish { publish_seq: self.seq(count), message, more: part(at..len), ..self.clone() }
    }
}

/// What becomes of unacked messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Done with: settled.
    Ack,
    /// Given back to its old place; does not count against the message.
    Nack,
    /// Given back to its old place; counts against it.
    Reject,
    /// Dropped for good (nack or reject without requeue).
    Discard,
}

/// A question with an answer: the number comes back in [`Effect::Reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a channel asks of a queue's leader.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Store and confirm a message.
    Publish(Publish),
    /// Attach a consumer; answered [`Reply::Consuming`] or [`Reply::ConsumeRefused`].
    Consume {
        /// The queue.
        queue: QueueId,
        /// The consumer, its credit and its flags.
        consumer: Consumer,
        /// It was attached to an earlier leader, or takes the place of one that is attached. Others wait while
        /// consumers of the leader before are expected, so that an exclusive one stays alone.
        again: bool,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// The queue carries direct replies to a channel of this shard, which share the room of its connection with
    /// those to the connection's other channels. For queues in memory alone; no reply.
    LimitReplies {
        /// The queue, which nobody has published to yet.
        queue: QueueId,
        /// Whose replies they are.
        channel: ChannelKey,
        /// The room of its connection.
        room: Arc<ReplyRoom>,
    },
    /// A consumer that attaches anew, right before this, or one that was cancelled, or a channel by `basic.get`, has `count`
    /// messages from `first` of an earlier leader: those that nobody else has are its own, the others count against its
    /// prefetch. None: an earlier leader gave it messages up to there. No reply.
    Hold {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerKey,
        /// The first message.
        first: u64,
        /// How many in a row.
        count: u64,
    },
    /// Detach a consumer; what it holds stays unacked with its channel. Answered [`Reply::Done`]
    /// after its last delivery.
    Cancel {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerKey,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// Take one message; answered [`Reply::Got`] or [`Reply::Empty`].
    Get {
        /// The queue.
        queue: QueueId,
        /// Who takes it.
        channel: ChannelKey,
        /// It is settled at once.
        no_ack: bool,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// Settle or give back `count` messages from `first` that `holder` holds, or with [`EVERYTHING`] all of
    /// them. No reply, as in AMQP. What
    /// is to be settled and is ready here, as its holder got it from an earlier leader or over a link
    /// that broke, is settled too; what somebody else was given meanwhile stays as it is.
    Settle {
        /// The queue.
        queue: QueueId,
        /// Who holds them.
        holder: ConsumerKey,
        /// The first message.
        first: u64,
        /// How many in a row.
        count: u64,
        /// What becomes of them.
        outcome: Disposition,
    },
    /// A channel ended: its consumers go, what it holds comes back in order. Goes to every
    /// partition it ever used.
    Detach {
        /// The channel.
        channel: ChannelKey,
    },
    /// The link to the node of a channel broke: its consumers go and what it holds comes back, as with
    /// [`Command::Detach`]. What it published may be sent again, and is not forgotten.
    Part {
        /// The channel.
        channel: ChannelKey,
    },
    /// Drop what is ready; answered [`Reply::Counted`] with how many.
    Purge {
        /// The queue.
        queue: QueueId,
        /// Who asks.
        channel: ChannelKey,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// How many are ready and who consumes; answered [`Reply::Stat`].
    Stat {
        /// The queue.
        queue: QueueId,
        /// Who asks.
        channel: ChannelKey,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// First half of a delete: check its conditions. Answered [`Reply::Counted`] (may go, with how
    /// many are ready) or [`Reply::DeleteRefused`].
    ///
    /// If it has a condition and may go, the queue waits for [`Command::Delete`] or
    /// [`Command::Reopen`], so that the condition still holds when the delete is decided: it takes
    /// messages in, and until one of the two comes it confirms none of them, gives none out and
    /// answers nothing. A queue that may go whatever is in it needs no such wait.
    Close {
        /// The queue.
        queue: QueueId,
        /// Only without consumers.
        if_unused: bool,
        /// Only without ready messages.
        if_empty: bool,
        /// Who asks.
        channel: ChannelKey,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// The delete did not happen after all: what waited since [`Command::Close`] is confirmed,
    /// given out and answered.
    Reopen {
        /// The queue.
        queue: QueueId,
    },
    /// Second half: the topology has forgotten the queue; its consumers are cancelled and its
    /// messages end.
    Delete {
        /// The queue.
        queue: QueueId,
    },
    /// What became of a dead letter that wanted an answer: with `is_safe`, every queue that it goes
    /// to has it; otherwise it is tried again after a while.
    DeadLetterAnswered {
        /// The queue that gave the message up.
        queue: QueueId,
        /// The message.
        seq: u64,
        /// It is where it should be.
        is_safe: bool,
    },
    /// Other rules hold for the queue from now on. No reply. Every member is told, whoever leads.
    Configure {
        /// The queue.
        queue: QueueId,
        /// What its arguments and policies come to.
        rules: Arc<Rules>,
    },
    /// The consumer's connection has enough to write, or has room again.
    Stall {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerKey,
        /// Whether it is to be passed over.
        stalled: bool,
    },
    /// Lets a consumer under a channel-wide prefetch take `count` messages.
    Grant {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerKey,
        /// How many more.
        count: u32,
    },
    /// Answered [`Reply::Done`] once everything that this leader was told before is applied: no later
    /// leader needs to be told again.
    Mark {
        /// Who asks.
        channel: ChannelKey,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// Answered [`Reply::Done`] once everything that this member has written so far, of all
    /// partitions of its node, is synced.
    Sync {
        /// Who asks.
        channel: ChannelKey,
        /// Comes back in the reply.
        request: RequestId,
    },
}

/// A message on its way out.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Whom it goes to.
    pub consumer: ConsumerKey,
    /// The queue it comes from.
    pub queue: QueueId,
    /// Its number there: what [`Command::Settle`] names.
    pub seq: u64,
    /// The consumer settles it (false: no-ack, settled already).
    pub needs_ack: bool,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// How often it came back.
    pub counts: Counts,
    /// The term of the leader that gives it out; 0 where the queue is in a node's memory. Once a
    /// later term is known, the next leader may give it to others: it must not be passed on.
    pub term: u64,
    /// The message as stored; see [`crate::message::MessageView`].
    pub message: Bytes,
}

/// A message that its queue gave up, to be published to the queue's dead-letter exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// The queue that gave it up.
    pub queue: QueueId,
    /// Its number there.
    pub seq: u64,
    /// Why; [`crate::entry::Reason::death`] has the word.
    pub reason: crate::entry::Reason,
    /// The message as stored.
    pub message: Bytes,
    /// The queue keeps it until [`Command::DeadLetterAnswered`] says that it is safe.
    pub wants_answer: bool,
}

impl DeadLetter {
    /// What a dead letter costs beside its message while it is on its way, in bytes.
    pub const OVERHEAD_BYTES: usize = 256;

    /// What it takes of memory while it is on its way.
    pub fn bytes(&self) -> usize {
        self.message.len() + DeadLetter::OVERHEAD_BYTES
    }
}

/// Answers to requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The consumer is attached.
    Consuming,
    /// Another consumer is exclusive here, or this one wants to be and is not alone.
    ConsumeRefused,
    /// The message asked for, and how many are ready after it.
    Got {
        /// The message; its consumer number is 0.
        delivery: Delivery,
        /// Ready messages left.
        ready: u64,
    },
    /// Nothing is ready.
    Empty,
    /// How many messages it concerned.
    Counted(u64),
    /// The state of a queue.
    Stat {
        /// Messages ready.
        ready: u64,
        /// Messages held unacked.
        unacked: u64,
        /// Consumers attached.
        consumers: u64,
    },
    /// The queue has consumers or messages, and the delete said it must not.
    DeleteRefused {
        /// It is in use (else: not empty).
        in_use: bool,
    },
    /// This member does not lead; ask who does.
    NotLeader,
    /// The queue was deleted while the question was on its way.
    Gone,
    /// The queue's group is damaged on its only node: nobody answers before an operator has
    /// repaired it.
    Unavailable,
}

/// What a partition tells channels.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// `count` publishes in a row from `first` are as safe as they asked to be, as far as this
    /// partition goes.
    Confirm {
        /// Whose publishes.
        channel: ChannelKey,
        /// The first number.
        first: u64,
        /// How many; the numbers are consecutive.
        count: u64,
    },
    /// These publishes did not make it: `basic.nack`.
    Refuse {
        /// Whose publishes.
        channel: ChannelKey,
        /// The first number.
        first: u64,
        /// How many; the numbers are consecutive.
        count: u64,
    },
    /// These publishes were for the leader of a term that ended. They may be in the log or not, and come
    /// to the next leader again: it takes a repeat for one. Where nobody does that, they are refused.
    Returned {
        /// Whose publishes.
        channel: ChannelKey,
        /// The first number.
        first: u64,
        /// How many; the numbers are consecutive.
        count: u64,
        /// The low bits of the term.
        term: u32,
    },
    /// What came before the end of a link has been answered: what a channel of the other node published over
    /// that link hears nothing more before it is published again.
    Parted {
        /// Whose link it was.
        channel: ChannelKey,
    },
    /// A message for a consumer.
    Deliver(Delivery),
    /// The answer to a request.
    Reply {
        /// Who asked.
        channel: ChannelKey,
        /// Which request.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// The consumer is gone because its queue is, or because this member leads no more:
    /// `basic.cancel` to a client that knows it.
    Cancelled {
        /// The consumer.
        consumer: ConsumerKey,
        /// Its queue.
        queue: QueueId,
    },
    /// The last consumer of this queue went (an auto-delete queue ends now).
    Unused {
        /// The queue.
        queue: QueueId,
    },
    /// A message was given up and its queue has a dead-letter exchange.
    DeadLetter(Box<DeadLetter>),
    /// Nobody used this queue for as long as its rules say: it ends now, unless somebody uses it.
    Lapsed {
        /// The queue.
        queue: QueueId,
    },
    /// A direct reply to this channel was dropped, as those that wait for its connection are as many as may.
    /// Said once for each connection.
    RepliesDropped {
        /// The channel.
        channel: ChannelKey,
    },
    /// A consumer under a channel-wide prefetch could take messages.
    GrantWanted {
        /// The consumer.
        consumer: ConsumerKey,
        /// Its queue.
        queue: QueueId,
        /// How many are ready for it.
        ready: u64,
    },
    /// A grant that nothing was ready for goes back to its channel.
    GrantReturned {
        /// The consumer.
        consumer: ConsumerKey,
        /// How many.
        count: u32,
    },
}

impl Effect {
    /// Whom it concerns; `None` if it is for the shard of its partition.
    pub fn channel(&self) -> Option<ChannelKey> {
        Some(match self {
            Effect::Confirm { channel, .. }
            | Effect::Refuse { channel, .. }
            | Effect::Returned { channel, .. }
            | Effect::Reply { channel, .. }
            | Effect::RepliesDropped { channel } => *channel,
            Effect::Deliver(delivery) => delivery.consumer.channel,
            Effect::Cancelled { consumer, .. }
            | Effect::GrantWanted { consumer, .. }
            | Effect::GrantReturned { consumer, .. } => consumer.channel,
            Effect::Unused { .. } | Effect::DeadLetter(_) | Effect::Lapsed { .. } | Effect::Parted { .. } => {
                return None;
            }
        })
    }
}

/// How much a consumer's connection still takes, in bytes; asked before each delivery turn.
pub trait Outlets {
    /// Bytes that may be dispatched to this consumer now; 0 stalls it until a [`Command::Stall`]
    /// with `false`.
    fn room(&mut self, consumer: ConsumerKey) -> usize;

    /// Whether a queue may end messages for their age now that become dead letters: so few of them are on their way
    /// that another one has room.
    fn has_letter_room(&mut self, _queue: QueueId) -> bool {
        true
    }

    /// It ends one, which becomes a dead letter of so many bytes.
    fn take_letter_room(&mut self, _queue: QueueId, _bytes: usize) {}
}
