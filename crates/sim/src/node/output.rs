//! What happens to a node, and what comes out of it.

use super::SessionId;
use crate::schedule::Micros;
use broker::{ConsumerKey, NodeNumber, PartitionId};
use bytes::Bytes;
use consensus::{LogIndex, NodeId, Term};
use partition::outputs::Read;
use partition::peer::forward::Forward;
use partition::{Effect, PeerFrame};

/// Something that happens on a node.
#[derive(Debug)]
pub enum Happening {
    /// A shard takes what is in its inbox.
    Turn(usize),
    /// A shard has nothing better to do than to write what was left to it.
    Commit(usize),
    /// The log's thread looks what there is to do.
    LogDue,
    /// Whoever holds the log has written.
    Write,
    /// Whoever holds the log has synced.
    Sync,
    /// A read is done.
    Read(Read),
    /// The upkeep thread did something.
    Upkeep,
    /// A partition of a shard wants a turn now, whether or not anything came for it.
    Due(usize),
    /// The node notes which partitions have not caught up since the end of their log was in doubt.
    Forgot,
}

/// What came out of a step of a node.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// What happens on this node, and after how long.
    pub later: Vec<(Micros, Happening)>,
    /// Frames for other nodes.
    pub frames: Vec<(NodeId, PartitionId, PeerFrame)>,
    /// For other nodes, beside their groups.
    pub forwards: Vec<(NodeNumber, PartitionId, Forward)>,
    /// For clients: what a partition says, as of an applied index in the term of its leader.
    pub effects: Vec<(PartitionId, Said, Effect)>,
    /// Sessions that the node closed, because its partition does not lead any more.
    pub resets: Vec<SessionId>,
    /// Entries that a partition appended: partition, term, index, body as stored.
    pub appended: Vec<(PartitionId, Term, LogIndex, Bytes)>,
    /// Consumers that a shard passed over, as their connections had no room.
    pub passed_over: Vec<(usize, ConsumerKey)>,
    /// Messages that were fetched from another member, because they had rotted.
    pub repaired: u64,
    /// Entries that a follower needed and that had rotted.
    pub lost_entries: u64,
    /// Proposals of this node that were decided, and the entries that decided them.
    pub decided: Vec<(u64, LogIndex)>,
    /// What the topology answered to proposals of this node.
    pub answers: Vec<(u64, Result<broker::topology::CommandReply, broker::topology::Refusal>)>,
    /// What follows from changes of the topology, for the node to carry out.
    pub follows: Vec<broker::topology::Effect>,
    /// Proposals of this node that nothing will be heard of.
    pub lost: Vec<u64>,
    /// What made the node stop, if it did.
    pub stopped: Option<String>,
}

/// By whom and when something was said to a client.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// The term of the leader.
    pub term: Term,
    /// What it had applied.
    pub applied: LogIndex,
    /// What it had applied before its turn.
    pub applied_before: LogIndex,
    /// It led when its turn began.
    pub led_before: bool,
    /// It leads now that its turn ends.
    pub leads: bool,
    /// It led all through its turn.
    pub serves: bool,
    /// Its clock, milliseconds since the epoch.
    pub now_ms: u64,
    /// The latest that its clock showed in this life.
    pub latest_ms: u64,
}

/// A partition as an observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Its term.
    pub term: Term,
    /// It leads, as Raft sees it.
    pub leads: bool,
    /// It takes commands.
    pub serves: bool,
    /// Whom it follows.
    pub leader: Option<NodeId>,
    /// The last applied entry.
    pub applied: LogIndex,
    /// The last entry that is no longer in its log.
    pub compacted: LogIndex,
    /// The end of its log.
    pub last: LogIndex,
    /// It may have forgotten the end of its log, and has not caught up.
    pub may_have_forgotten: bool,
    /// It counts as whole again only because it heard of no leader for long.
    pub gave_up_waiting: bool,
}

/// The connections that a node's shards write to.
pub trait Sockets {
    /// How many bytes a shard's partition may give a consumer now, in this step of it; `None` leaves
    /// that to chance.
    fn room(&mut self, shard: usize, consumer: ConsumerKey) -> Option<usize>;

    /// The step is over: what it was given is used, or given back.
    fn settle(&mut self, shard: usize);
}

/// Whether there is room is left to chance.
pub struct NoSockets;

impl Sockets for NoSockets {
    fn room(&mut self, _: usize, _: ConsumerKey) -> Option<usize> {
        None
    }

    fn settle(&mut self, _: usize) {}
}
