//! What a session is given by whoever runs it, and what it hands out: the whole of what it knows of
//! the world.
//!
//! Invariant: a session keeps none of it. Every call of a session brings its host along, and
//! everything that a session wants done leaves by the host in that call, in order.

use crate::client::Client;
use crate::histories::Histories;
use crate::ledger::Ledger;
use crate::logins::{Logins, Try};
use crate::occupancy::Occupancy;
use crate::span::Span;
use crate::tally::Count;
use crate::trace_context::Sampler;
use crate::unfinished::Sums;
use amqp::{Millis, Table};
use broker::topology::{Applied, BrokerEvent, Command as Change, Name, PasswordHash, Placement, Topology};
use broker::{ChannelKey, NodeNumber, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use partition::{Command, RequestId};
use std::ops::Deref;
use std::sync::Arc;

use super::Stamps;

/// What all sessions of a node have in common.
#[derive(Debug)]
pub struct Common {
    /// What is set for them.
    pub settings: Settings,
    /// How many passwords were tried.
    pub logins: Logins,
    /// Who has how many connections and channels.
    pub occupancy: Arc<Occupancy>,
    /// What `x-recent-history` exchanges remember.
    pub histories: Histories,
    /// What all clients have begun and not ended.
    pub sums: Sums,
}

/// What is set for all sessions of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, as it says it in messages.
    pub node_name: String,
    /// Users that may log in from a loopback address only.
    pub loopback_users: Vec<String>,
    /// Whom clients are who log in without saying who they are.
    pub anonymous_user: String,
    /// How long a consumer may hold a message, where its queue says nothing; 0 is for ever.
    pub consumer_timeout_ms: Millis,
    /// What is written into messages that come in; `None` is nothing.
    pub stamps: Option<Stamps>,
    /// Whether there is an event exchange to tell of what happens.
    pub tells_events: bool,
    /// Whether users log in, by a password, a certificate or nothing.
    pub takes_passwords: bool,
    /// Whether tokens are looked at.
    pub takes_tokens: bool,
}

/// A password that is to be looked at. It is not printed.
pub struct PasswordCheck {
    /// The user's name.
    pub user: Name,
    /// The hash of the user's password.
    pub hash: PasswordHash,
    /// What is said to be it.
    pub password: Bytes,
}

/// Whether a password may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It may not.
    No,
    /// It may.
    Yes,
    /// It may, and this user logged in from there before: such come first.
    Known,
}

impl Admitted {
    /// What a try says.
    pub fn of(admitted: Option<&Try>) -> Admitted {
        match admitted {
            None => Admitted::No,
            Some(admitted) if admitted.is_known() => Admitted::Known,
            Some(_) => Admitted::Yes,
        }
    }
}

/// Whether a password is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Right,
    /// It is not.
    Wrong,
    /// That is found out elsewhere.
    Later,
    /// It was not to be looked at.
    NotAdmitted,
    /// So many wait for that already that nobody looks.
    TooMany,
}

/// A channel's wish that a queue goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteQueue {
    /// The queue.
    pub queue: QueueId,
    /// Where it lives.
    pub partition: PartitionId,
    /// Only without consumers.
    pub if_unused: bool,
    /// Only without ready messages.
    pub if_empty: bool,
    /// Who hears of it; nobody for a queue whose connection is gone.
    pub channel: ChannelKey,
    /// The request that waits.
    pub request: RequestId,
    /// Whether it is asked again until it is decided: nobody else would.
    pub insists: bool,
}

/// Whether this node knows all of the topology that anybody was answered, so that messages go where they have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyKnown {
    /// It does.
    All,
    /// It stood still, or has not heard of others: it asks them what it missed.
    NotYet,
    /// No majority has answered for seconds.
    Vain,
}

/// What runs a session: a shard's thread, or a simulated one.
pub trait Host {
    /// The machine of the protocol that the client speaks.
    type Client: Client;

    /// What it shares with the other sessions of its node.
    fn common(&self) -> &Common;

    /// The topology, to look at; held for as long as one check takes.
    fn topology(&self) -> impl Deref<Target = Topology>;

    /// Differs from what it was before whenever a message may have to go another way: with each change of the
    /// topology, and of which nodes can be reached. It is never ahead of either.
    fn routes_version(&self) -> u64;

    /// Whether a node of the cluster is this one, or can be reached.
    fn reaches(&self, node: NodeNumber) -> bool;

    /// Milliseconds since the node started.
    fn now(&self) -> Millis;

    /// Milliseconds since the epoch.
    fn wall_ms(&self) -> u64;

    /// Bits that nobody can guess.
    fn random(&self) -> u128;

    /// Whether this is the password of a hash. Where that takes long it is found out elsewhere, and
    /// comes as [`super::Session::handle_password`]. `admit` is asked once before anything is looked
    /// at, but where the very same is being looked at already: a thousand programs with one password
    /// are one try.
    fn check_password(&self, check: PasswordCheck, admit: &mut dyn FnMut() -> Admitted) -> Verdict;

    /// Has a token looked at, which comes as [`super::Session::handle_token`]. False: so many wait for
    /// that already that nobody looks.
    fn check_token(&self, token: Bytes) -> bool;

    /// A number that differs each time, for choices that may be guessed.
    fn dice(&self) -> u64;

    /// The number of the shard that this session lives on.
    fn shard(&self) -> usize;

    /// The shard that a partition runs on, or this one if it is in the memory of another node;
    /// `None` if nobody here is to be asked about it.
    fn shard_of(&self, partition: PartitionId) -> Option<usize>;

    /// Whether what a partition says to this shard's channels may come from another shard or another
    /// node.
    fn is_remote(&self, partition: PartitionId) -> bool;

    /// Whether it is known here that a leader of this term leads the partition no more, so that others
    /// may have been given what it gave out.
    fn is_outdated(&self, partition: PartitionId, term: u64) -> bool;

    /// The partition of what this shard has in memory: transient and exclusive queues.
    fn transient_partition(&self) -> PartitionId;

    /// The partition for a new durable queue, one of those in which it may live; `None` where there are
    /// none.
    fn place_queue(&self, placement: &Placement) -> Option<PartitionId>;

    /// The partition that answers a sync for the whole node.
    fn sync_partition(&self) -> PartitionId;

    /// Whether messages are looked at on their way: the firehose tells of some virtual host, or spans are
    /// made. The rest is asked where this is true.
    fn is_tracing(&self) -> bool;

    /// Whether the firehose tells of this virtual host.
    fn traces(&self, vhost: VhostId) -> bool;

    /// Of which messages spans are made that bring no trace along; `None` where no spans are made.
    fn sampler(&self) -> Option<Sampler>;

    /// A span has ended.
    fn end_span(&self, span: Box<Span>);

    /// A span was given up for want of room.
    fn drop_span(&self);

    /// A traced publish was just pushed to a partition. Where that is led on this shard, `span` ends once
    /// it has the message safe; where it is led elsewhere, it is looked at there.
    fn watch(&self, partition: PartitionId, span: Box<Span>);

    /// Has the sums compared with the budget of the memory: they moved.
    fn check_memory(&self);

    /// Hands a command to a partition. Commands to one partition arrive in this order.
    fn push(&self, partition: PartitionId, command: Command);

    /// Makes a change that concerns this node only, and has partitions do what follows.
    fn change(&self, change: &Change) -> Applied;

    /// Proposes a replicated change; the answer comes as [`super::Session::handle_decided`].
    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId);

    /// Whether the topology here is all that anybody was answered, for what had come by `now`.
    fn topology_known(&self, now: Millis) -> TopologyKnown;

    /// Whether other nodes decide about the topology too, so that this one may not know all of it.
    fn has_peers(&self) -> bool;

    /// Makes sure that this node knows all that was decided by now. The answer comes as
    /// [`super::Session::handle_decided`]: done, or refused where no majority was found.
    fn catch_up(&self, channel: ChannelKey, request: RequestId);

    /// Has a queue deleted by the shard that it lives on; the answer comes as a reply, or as a
    /// decision that refuses it.
    fn delete_queue(&self, delete: DeleteQueue);

    /// A key for a channel that was opened on this connection, to which effects for that key come
    /// from now on.
    fn open_channel(&self, number: u16) -> ChannelKey;

    /// A channel is gone; late effects for it meet nobody.
    fn close_channel(&self, channel: ChannelKey);

    /// The client took so many bytes of a channel that a partition which is remote had sent; [`usize::MAX`] says that
    /// nothing of it is on its way to the client.
    fn drained(&self, partition: PartitionId, channel: ChannelKey, bytes: usize);

    /// A channel holds something of a partition that no consumer there stands for; whoever leads it next is told by
    /// [`super::Session::hold_again`].
    fn note_holder(&self, partition: PartitionId);

    /// Counts `count` more.
    fn count(&self, what: Count, count: u64);

    /// Microseconds since the node started.
    fn elapsed_us(&self) -> u64;

    /// A publish that was begun to be handled at `begin_us` has been handed to its partitions. One of
    /// some is told of.
    fn note_routed(&self, begin_us: u64);

    /// It was confirmed.
    fn note_confirmed(&self, begin_us: u64);

    /// Counts the size of a published body.
    fn count_size(&self, bytes: usize);

    /// What is counted by exchange and queue, of the sessions of this thread.
    fn ledger(&self) -> &Ledger;

    /// Tells the event exchange. Events cost memory to make: only where the settings say that it is
    /// told.
    fn tell(&self, event: BrokerEvent);

    /// Publishes a message of the broker's own to an exchange of this virtual host.
    fn emit(&self, vhost: VhostId, exchange: &'static str, key: &[u8], headers: &Table, body: Bytes);
}
