//! What a repair does to a folder, and what it tells of it.

use super::RANGES_TOLD_MAX;
use super::RepairReport;
use super::file_of;
use super::in_words;
use super::uncounted::Density;
use super::uncounted::Uncounted;
use broker::topology::Topology;
use partition::extent_copy::copy_runs;
use partition::machine::schedule_of;
use partition::messages_in_words;
use partition::place::Place;
use partition::salvage::{Salvage, SalvagedLog};
use std::collections::BTreeSet;
use std::sync::Arc;
use storage::extent::list_extents;
use storage::wal::Recovery as WalReport;
use storage::{CheckpointStore, Disk, ExtentId, FileNo, StorageError, WalReader};

/// A repair under way.
pub(super) struct Work<D: Disk> {
    pub(super) disk: Arc<D>,
    pub(super) folder_id: u128,
    pub(super) checkpoints: CheckpointStore<D>,
    pub(super) report: RepairReport,
    pub(super) next_extent: u32,
    pub(super) kept_aside: u32,
    /// Runs of the log that could not be read: file, offset, and how many messages are known by
    /// number to be lost there.
    pub(super) lost_in_log: Vec<(FileNo, u32, u64)>,
}

impl<D: Disk> Work<D> {
    pub(super) fn first_free_extent(&self, partitions: &[Salvage]) -> Result<u32, StorageError> {
        let used = partitions.iter().map(|p| p.queues().highest_extent()).max().unwrap_or(0);
        let listed = list_extents(&*self.disk)?.last().map_or(0, |id| u32::try_from(id.0).unwrap_or(u32::MAX - 1));
        Ok(used.max(listed) + 1)
    }

    /// Copies what lives in the log and in damaged extents; what cannot be read of it is given up.
    pub(super) fn move_messages(
        &mut self,
        partition: &mut Salvage,
        wal: &WalReader<D>,
        damaged: &BTreeSet<ExtentId>,
    ) -> Result<(), StorageError> {
        let leaves = |place: &Place| match place {
            Place::Wal { .. } => true,
            Place::Extent { id, .. } => damaged.contains(&ExtentId(u64::from(*id))),
        };
        loop {
            let runs = partition.runs(leaves);
            if runs.is_empty() {
                return Ok(());
            }
            let id = ExtentId(u64::from(self.next_extent));
            self.next_extent += 1;
            let copied = copy_runs(&self.disk, self.folder_id, wal, id, &runs)?;
            for lost in &copied.damaged {
                if let Place::Wal { file, offset, .. } = lost.place {
                    let count: u64 = lost.messages.iter().map(|(_, count)| count).sum();
                    self.lost_in_log.push((FileNo(u64::from(file)), offset, count));
                }
            }
            let progress = copied.ready.is_some() || !copied.damaged.is_empty();
            assert!(progress, "a run is copied, or told to be damaged");
            partition.copied(copied);
        }
    }

    pub(super) fn tell_losses(
        &mut self,
        partition: &Salvage,
        is_state_lost: bool,
        topology: &Topology,
        density: &Density,
    ) {
        let (id, lost) = (partition.id().0, &partition.lost);
        let given_up = &mut self.report.given_up;
        // What every group's log has first is its own.
        let is_all_lost = is_state_lost && partition.last().0.index.0 == 0;
        if is_state_lost && lost.entries.is_empty() && !is_all_lost {
            self.report.changed.push(format!("partition {id}: its state is made anew from its whole log"));
        } else if is_state_lost {
            given_up.push(format!(
                "partition {id}: its state. What its log still has is kept; its messages in extents are not, and those files are \
                 kept aside: leveret inspect DIR --export prints them"
            ));
        }
        if is_state_lost && (is_all_lost || !lost.entries.is_empty()) {
            self.report.uncounted += Uncounted::Unknown;
        }
        for (first, count) in &lost.entries {
            let messages = density.of_entries(id, *count);
            given_up.push(format!(
                "partition {id}: {count} entries of its log from index {first} on, and the messages that they published: {messages}, if \
                 they were as the entries that can be read"
            ));
            self.report.uncounted += messages;
        }
        self.report.messages_lost += lost.message_count();
        for (queue, ranges) in lost.messages.iter().filter(|(_, ranges)| !ranges.is_empty()) {
            let numbers = ranges.iter().take(RANGES_TOLD_MAX).map(|(first, count)| match count {
                1 => first.to_string(),
                _ => format!("{first} to {}", first + count - 1),
            });
            let numbers = numbers.collect::<Vec<_>>().join(", ");
            let more = if ranges.iter().count() > RANGES_TOLD_MAX { " and more" } else { "" };
            let (messages, queue) = (messages_in_words(ranges.count()), in_words(topology, *queue));
            given_up.push(format!("partition {id}: {messages} of {queue}, numbers {numbers}{more}"));
        }
        if lost.outcomes > 0 {
            let count = lost.outcomes;
            self.report.changed.push(format!(
                "partition {id}: up to {count} messages that were settled behind the missing entries come back, flagged as redelivered"
            ));
        }
    }

    /// What lay behind the last record that can be read, where something did: nothing says which
    /// entries those were.
    pub(super) fn tell_end_of_log(&mut self, wal_report: &WalReport, needed: FileNo, density: &Density) {
        for damage in density.behind_the_end(wal_report, needed) {
            let is_in_it = |(file, offset, _): &&(FileNo, u32, u64)| *file == damage.file && *offset >= damage.offset;
            let known = self.lost_in_log.iter().filter(is_in_it).map(|(_, _, count)| count).sum();
            let messages = density.of_bytes(u64::from(damage.bytes), wal_report).beside(known);
            let file = file_of(damage);
            self.report.given_up.push(format!(
                "the end of the log, in {file}, and the messages that it published: {messages} beside those known by number, if it was as \
                 what can be read, and fewer where it had settled some of them"
            ));
            self.report.uncounted += messages;
        }
    }

    /// The topology's state, with a queue for all messages that would belong to none.
    pub(super) fn salvage_topology(
        &mut self,
        mut topology: Topology,
        log: &SalvagedLog,
        partitions: &[Salvage],
        is_state_lost: bool,
    ) -> bytes::Bytes {
        if let Some((first, count)) = log.missing {
            let why = "of users, virtual hosts, exchanges, queues and bindings";
            self.report.given_up.push(format!("{count} changes {why}, from entry {first} of partition 0 on"));
        }
        let comes_from_log = log.last().0.index.0 > 0 && log.missing.is_none_or(|(first, _)| first > 1);
        if is_state_lost && comes_from_log {
            self.report
                .changed
                .push("what is declared is made anew from its log, which goes back to the beginning".to_owned());
        } else if is_state_lost {
            self.report.given_up.push(
                "everything that was declared: users, virtual hosts, exchanges, queues, bindings. Declare it anew, or import definitions"
                    .to_owned(),
            );
        }
        if log.missing.is_some() || is_state_lost {
            for partition in partitions {
                self.adopt(&mut topology, partition);
            }
        }
        topology.encode_snapshot()
    }

    pub(super) fn adopt(&mut self, topology: &mut Topology, partition: &Salvage) {
        for id in partition.queues().queue_ids() {
            let owner = schedule_of(id).unwrap_or(id);
            topology.pass_over_queue_ids(owner);
            let live = partition.queues().queue(id).map_or(0, |state| state.runs().live());
            if live == 0 || topology.queue(owner).is_some() {
                continue;
            }
            if topology.adopt_queue(owner, partition.id()) {
                let (partition, queue) = (partition.id().0, owner.0);
                let (messages, are) = (messages_in_words(live), if live == 1 { "is" } else { "are" });
                self.report.changed.push(format!(
                    "{messages} of a queue that nobody knows any more {are} in queue recovered.{partition}.{queue} of virtual host /"
                ));
            } else {
                let messages = messages_in_words(live);
                self.report.given_up.push(format!("{messages} of queue {}, which nobody knows any more", owner.0));
                self.report.messages_lost += live;
            }
        }
    }
}
