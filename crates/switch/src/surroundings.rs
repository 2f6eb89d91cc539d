//! What a switch is given by whoever runs it: the whole of what it knows of the world.
//!
//! Invariant: a switch keeps none of it. Every call brings its surroundings along.

use crate::follow::Tell;
use crate::parcel::Parcel;
use broker::topology::{Applied, Command as Change, CommandReply, Name, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, PartitionId, VhostId};
use partition::{Command, Effect, Reply, RequestId};
use std::ops::Deref;

/// Somebody who is no channel and waits for an answer.
pub trait Outsider {
    /// It hears what became of what it asked. It may be gone by then.
    fn answer(self, answer: Result<Reply, Refusal>);
}

/// Where a shard's switch stands: a thread of the server, or a simulated one.
pub trait Surroundings {
    /// A connection of this shard.
    type Connection: Clone;
    /// Who asks from outside.
    type Outsider: Outsider;

    /// The topology, to look at; held for as long as one check takes.
    fn topology(&self) -> impl Deref<Target = Topology>;

    /// The virtual host whose event exchange is told what happens; `None` if there is none.
    fn event_vhost(&self) -> Option<VhostId>;

    /// Makes a change that concerns this node only, and has partitions told by `tell` before
    /// anybody else sees it ([`tell_partitions`](crate::tell_partitions)). What else follows is the
    /// switch's to carry out.
    fn apply_local(&self, change: &Change, tell: &impl Tell) -> Applied;

    /// Proposes a replicated change for a channel of this shard, or for the shard's own key: the
    /// answer comes to this shard as [`Parcel::Decided`], also where nobody will decide.
    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId);

    /// A virtual host is gone: its connections are closed, on every shard.
    fn vhost_deleted(&self, vhost: VhostId, name: &Name);

    /// A user is gone: its connections are closed, on every shard.
    fn user_deleted(&self, name: &Name);

    /// Sends a parcel to a shard, which may be this one, at once and not at the end of the step.
    fn mail(&self, shard: usize, parcel: Parcel<Self::Outsider>);

    /// Hands out room at a connection, in bytes, to be used in this step; 0 means that the consumer
    /// is to wait, and the connection sees to it that it hears when there is room again.
    fn room(&self, connection: &Self::Connection, consumer: ConsumerKey) -> usize;

    /// The step's room is used, or given back.
    fn settle_room(&self, connection: &Self::Connection);

    /// A partition of another shard passed a consumer over, as too much is on its way from there.
    fn starve(&self, connection: &Self::Connection, consumer: ConsumerKey);

    /// Somebody else leads these partitions: sessions say what their channels hold of them that no consumer stands for.
    fn hold_again(&self, partitions: &[PartitionId]);

    /// Effects for a channel of a connection: `first`, and all that `next` gives.
    fn hear(
        &self,
        connection: &Self::Connection,
        channel: (ChannelKey, u16),
        first: Effect,
        next: &mut dyn FnMut() -> Option<Effect>,
    );

    /// A proposal of a channel was decided.
    fn hear_decided(
        &self,
        connection: &Self::Connection,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<CommandReply, Refusal>,
    );

    /// A command of a channel of another shard or another node goes to a partition of this shard.
    fn passes(&self, partition: PartitionId, command: &Command);

    /// Whether this shard has as much to write as it may: other nodes send it no more then.
    fn is_loaded(&self) -> bool;

    /// Whether some shard of this node has as much to write as it may: dead letters wait then, as publishers do.
    fn is_any_loaded(&self) -> bool {
        self.is_loaded()
    }

    /// Milliseconds since the epoch, as the wall clock has it.
    fn wall_ms(&self) -> u64;

    /// A number that is hard to guess.
    fn dice(&self) -> u64;

    /// Microseconds on a clock that never goes back, for how long a turn has taken.
    fn elapsed_us(&self) -> u64;
}
