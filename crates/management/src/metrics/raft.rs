//! The family about Raft, as RabbitMQ 3.x and 4.0 and 4.1 name it, of the groups that this node has a member of.
//!
//! Invariant: here a group is a partition of queues, or the topology; RabbitMQ has one for each quorum queue. So what is
//! told one by one is by partition. A member that is damaged knows nothing, and nothing is told of it.

use super::out::{Labels, Metric, Out, counter, gauge};
use super::scrape::Scrape;
use server::handle::MemberStanding;
use std::fmt::Error;

/// A metric, and what of a member's standing it tells.
type OfMember = (Metric, fn(&MemberStanding) -> u64);

const OF_MEMBERS: [OfMember; 5] = [
    (counter("raft_term", "Term of the group: each election begins a new one"), |member| member.term),
    (gauge("raft_log_snapshot_index", "Last entry that is in the log no more"), |member| member.snapshot),
    (gauge("raft_log_last_applied_index", "Last entry that is carried out"), |member| member.applied),
    (gauge("raft_log_commit_index", "Last entry that a majority is known to have"), |member| member.commit),
    (gauge("raft_log_last_written_index", "Last entry that is synced to the disk here"), |member| member.synced),
];

impl Scrape {
    pub(super) fn of_groups(&self, out: &mut Out<'_>) -> Result<(), Error> {
        if !self.view.has("ra_metrics") {
            return Ok(());
        }
        let known: Vec<(String, &MemberStanding)> = self
            .standings
            .iter()
            .filter(|member| member.role != "damaged")
            .map(|member| (member.partition.0.to_string(), member))
            .collect();
        for (metric, value) in OF_MEMBERS {
            let rows = known.iter().map(|(partition, member)| {
                let labels: Labels<'_> = vec![("partition", partition)];
                (labels, Some(value(member)))
            });
            out.rows(metric, rows)?;
        }
        // Measured on some messages, by a node that leads; one that leads nothing has nothing to tell.
        match self.commit_latency_s {
            None => Ok(()),
            Some(latency_s) => {
                let help = "From the proposal of an entry until a majority has it, on average";
                out.real(gauge("raft_entry_commit_latency_seconds", help), latency_s)
            }
        }
    }
}
