//! Which groups of a folder are damaged while the others are not: they are set aside, and the
//! others served.
//!
//! Invariant: a group is set aside only for damage that is its own. Of damage that nobody can
//! attribute, or that is the topology's, the start is refused: it could have cost any group a
//! confirmed message.

use crate::TOPOLOGY;
use crate::open_error::OpenError;
use broker::PartitionId;
use consensus::NodeId;
use partition::Recovery;
use partition::place::file_u32;
use std::collections::BTreeMap;
use storage::FileNo;
use storage::wal::{Damage, RecordName, Recovery as WalReport};

/// A group that is damaged.
#[derive(Debug)]
pub struct Quarantined {
    /// What is wrong with it.
    pub why: OpenError,
    /// The oldest log file that it may need. Where no state of it is left, that is any.
    pub needs_file: u32,
    /// The highest number of an extent that it is known to have used.
    pub(crate) highest_extent: u32,
}

impl Quarantined {
    /// `left`: what can be read of it.
    pub(crate) fn new(why: OpenError, left: Option<&Recovery>) -> Quarantined {
        let needs_file = left.map_or(0, Recovery::needs_file);
        Quarantined { why, needs_file, highest_extent: left.map_or(0, Recovery::highest_extent) }
    }

    /// Tells the operator what to do; `has_peers`: the partition has members on other nodes.
    pub fn tell(&self, partition: PartitionId, queues: usize, has_peers: bool) {
        if has_peers {
            return tracing::error!(
                partition = partition.0,
                "a partition is QUARANTINED on this node: {}. The other nodes serve its queues, also to clients of this one, as long as a \
                 majority of them runs; do not take another of them away. The damaged bytes back from this node's own disk make it whole; an \
                 older copy of the folder does not, and must not be used. Where they are gone, stop this node, have another one forget it \
                 (`leveret ctl forget_cluster_node`) and start one with an empty folder and cluster_join in its stead; `leveret repair` is \
                 for nodes that are alone",
                self.why.cause()
            );
        }
        tracing::error!(
            partition = partition.0,
            queues,
            "a partition is QUARANTINED: {}. Its queues are unavailable until it is whole, all others are served. Stop the broker, and \
             restore what is damaged from a copy, or see with `leveret repair DIR --dry-run` what going on without it gives up",
            self.why.cause()
        );
    }
}

impl OpenError {
    /// Whether something of the folder is damaged or gone, so that a member of a cluster is told what
    /// helps there.
    pub fn is_damage(&self) -> bool {
        match self {
            OpenError::Storage(error) => error.is_damage(),
            OpenError::Checkpoint(_) | OpenError::Topology(_) | OpenError::Joining | OpenError::Random(_) => false,
            OpenError::OthersHaveIt { .. } | OpenError::NotOfOneCluster { .. } => false,
            _ => true,
        }
    }

    /// Whether every later start fails as this one did, unless somebody changes something first.
    pub fn is_lasting(&self) -> bool {
        match self {
            OpenError::Storage(error) => error.is_lasting(),
            OpenError::Random(_) => false,
            _ => true,
        }
    }

    /// What is wrong, of one partition where it is set aside, without what to do about it.
    pub fn cause(&self) -> String {
        match self {
            OpenError::LogGone => "no file of its log is left in `wal`".to_owned(),
            OpenError::LogShort { last, file, .. } => {
                format!("its log ends with file {last}, and a state was saved when file {file} was there")
            }
            OpenError::Damaged { count, file, offset } => {
                format!("{count} ranges of its log are damaged, the first in {file} at byte {offset}")
            }
            OpenError::EntryMissing { index, .. } => format!("entry {index} of its log is missing"),
            OpenError::FileMissing { file, .. } => format!("{file} is missing, which has messages of it"),
            OpenError::FileForeign { file, .. } => format!("{file} is not this folder's file of that name"),
            OpenError::Contradictory { why, .. } => format!("what is there of it contradicts itself ({why})"),
            OpenError::StateLost(error) => format!("{error}, and there is no other checkpoint of it"),
            other => other.to_string(),
        }
    }
}

/// Damage of the log by the groups that it concerns.
#[derive(Debug, Default)]
pub(crate) struct Attributed<'a> {
    /// Of one group each.
    pub(crate) groups: BTreeMap<u32, Vec<&'a Damage>>,
    /// The first that may concern any group, or that concerns the topology's.
    pub(crate) of_all: Option<&'a Damage>,
}

impl<'a> Attributed<'a> {
    /// Whose the damage is, for a start: what costs no group an entry or a vote is left out. A
    /// message that is damaged where it lies is a matter for whoever reads it.
    pub(crate) fn for_start(report: &'a WalReport, groups: &BTreeMap<u32, Recovery>) -> Attributed<'a> {
        let knows = |recovery: &Recovery, name: RecordName, file: u32| {
            recovery.knows_without(name.kind, name.term, name.index, file)
        };
        Attributed::new(report, groups, Recovery::replay_file, knows)
    }

    /// The same for a repair: damaged messages count too. What is left out is in files of which the
    /// group needs nothing.
    pub(crate) fn for_repair(report: &'a WalReport, groups: &BTreeMap<u32, Recovery>) -> Attributed<'a> {
        Attributed::new(report, groups, Recovery::needs_file, |recovery, _, file| file < recovery.needs_file())
    }

    /// `needs`: from which file on a group needs the log. `knows`: what it knows without a record.
    fn new(
        report: &'a WalReport,
        groups: &BTreeMap<u32, Recovery>,
        needs: impl Fn(&Recovery) -> u32,
        knows: impl Fn(&Recovery, RecordName, u32) -> bool,
    ) -> Attributed<'a> {
        let with_state = groups.values().filter(|recovery| recovery.replay_file() > 0);
        let needed = with_state.map(needs).min().unwrap_or(0);
        let without_state = || groups.values().filter(|recovery| recovery.replay_file() == 0);
        let mut attributed = Attributed::default();
        for damage in &report.damage {
            let concerned: Vec<u32> = match damage.record {
                Some(name) => {
                    let group = groups.get(&name.group.0);
                    let is_known = group.is_some_and(|group| knows(group, name, file_u32(damage.file)));
                    Some(name.group.0).filter(|_| !is_known).into_iter().collect()
                }
                // Before all that the others need it concerns those that have nothing but the log.
                None if damage.file < FileNo(u64::from(needed)) => without_state().map(|r| r.id().0).collect(),
                None => vec![TOPOLOGY.0],
            };
            for group in concerned {
                match group == TOPOLOGY.0 {
                    true => drop(attributed.of_all.get_or_insert(damage)),
                    false => attributed.groups.entry(group).or_default().push(damage),
                }
            }
        }
        if report.damage_unlisted > 0 {
            attributed.of_all = attributed.of_all.or(report.damage.first());
        }
        attributed
    }
}

/// So many damaged ranges of the log, of which this is the first.
pub(crate) fn damaged(first: &Damage, count: u64) -> OpenError {
    let file = if first.name.is_empty() { format!("log file {}", first.file.0) } else { first.name.clone() };
    OpenError::Damaged { count, file, offset: first.offset }
}

/// What is wrong with the members that a group's state names, on a node that runs alone.
pub(crate) fn foreign(recovery: &Recovery, only_node: NodeId) -> Option<OpenError> {
    let members = recovery.membership()?;
    let is_alone = members.voters.iter().eq([&only_node]) && members.learners.is_empty();
    let why = "this node is not all of its members".to_owned();
    (!is_alone).then(|| OpenError::Contradictory { partition: recovery.id().0, why })
}
