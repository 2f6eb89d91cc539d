//! A node between its sockets and its disk, sans-io: how its folder is opened and repaired, who
//! writes the log and when, what becomes of reads and upkeep, whose turn it is.
//!
//! ```text
//! partitions ──WalWrite──▶ LogQueue ──Batch──▶ LogWriter ──Written, Synced──▶ Completions ──▶ partitions
//!            ──Read──────▶ Reader ─────────────Read─────────────────────────▶
//!            ──Job───────▶ Upkeep ─────────────Extent, Checkpoint───────────▶
//! ```
//!
//! The server gives each part a thread, a lock and a real disk; the simulator gives them virtual
//! time and a faulty one. Invariant: no part here waits, sleeps, knows the time but from its
//! caller, or ends the process.

mod announcing;
mod batch;
mod catch_up;
mod completions;
mod durations;
mod ending_member;
mod gauges;
mod heard;
mod lease;
mod log_queue;
mod log_writer;
mod memory;
mod open_error;
mod open_extents;
mod opening;
mod own_disk;
mod placement;
mod proposals;
mod quarantine;
mod quarantined_member;
mod queue_member;
mod reader;
mod repair;
mod shard;
mod share;
mod standing;
mod steward;
mod sync_times;
mod ticks;
mod topology_member;
mod upkeep;
mod vacant_member;
mod waits;

pub use announcing::Announcing;
pub use batch::Batch;
pub use completions::{Completion, Completions};
/// A node as the groups know it.
pub use consensus::{LogIndex, NodeId};
pub use durations::{BOUNDS_US, BUCKETS, Durations, Stage, StageClock};
pub use ending_member::EndingMember;
pub use gauges::LogGauges;
pub use log_queue::{
    Load, LogQueue, OWN_BATCH_BYTES_MAX, OWN_COMMANDS_MAX, OWN_SYNC_ALONE_MAX, OWN_SYNC_MAX, REST_MAX, Round, WrittenBy,
};
pub use log_writer::{Listener, LogWriter};
pub use memory::Memory;
pub use open_error::OpenError;
pub use open_extents::OpenExtents;
pub use opening::{
    Begin, Brought, Groups, Started, bring_back, bring_back_among_others, drop_orphans, found_among_others,
};
pub use placement::placement;
pub use quarantine::Quarantined;
pub use quarantined_member::QuarantinedMember;
pub use queue_member::QueueMember;
pub use reader::Reader;
pub use repair::{
    ASIDE_FOLDER, AloneReport, ClusterFile, Copy, GivenUp, Others, RepairReport, RoomShort, Uncounted, go_on_alone,
    is_one_of_several, make_cluster_file, next_aside, repair,
};
pub use shard::{Edge, Member, Now, Partition, Progress, Shard};
pub use share::{Share, ShareLimits};
pub use standing::{Follower, MemberStanding, Voter};
pub use steward::MembersView;
pub use sync_times::{SyncClock, SyncTimes};
pub use topology_member::{Knowledge, Proposer, TopologyMember, Wish};
pub use upkeep::{RoomLeft, Task, Upkeep, UpkeepFailed};
pub use vacant_member::{Beginning, KnownQueue, VacantMember};
pub use waits::{Intake, Waiting, Waits};

use broker::PartitionId;
use bytes::Bytes;
use partition::Recovery;
use storage::inspect::Needs;
use storage::{ExtentId, FileNo, GroupId, NodeRecord};

/// The topology's partition.
pub const TOPOLOGY: PartitionId = PartitionId(0);

/// The node as its groups know it, before it has left any.
fn member_of(node: NodeRecord) -> NodeId {
    NodeId::of(node.id, 0)
}

/// What a checkpoint needs beside the log behind it, for tools that only read; `None` if its
/// payload cannot be read.
pub fn needs_of(group: GroupId, payload: &Bytes) -> Option<Needs> {
    if group == GroupId(TOPOLOGY.0) {
        return Some(Needs::default());
    }
    let recovery = Recovery::queues(PartitionId(group.0), Some((payload, 0))).ok()?;
    Some(Needs {
        extents: recovery.extents_with_messages().into_iter().map(|id| ExtentId(u64::from(id))).collect(),
        log_from: recovery.oldest_file_with_messages().map(|file| FileNo(u64::from(file))),
    })
}

/// Milliseconds since the node started.
pub type Millis = u64;

/// When what has no time is due.
const NEVER: Millis = Millis::MAX;

/// How long a tick of a group's clock is: 10 of them without a leader begin an election.
pub const TICK_MS: Millis = 150;
