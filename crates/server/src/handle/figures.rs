//! What a node counts and measures, and what its shards tell of their connections and queues.
//!
//! Invariant: a look changes nothing, but for the statistics of shards, which one asker alone may take.

use super::Handle;
use crate::engine::{Durations, SyncTimes};
use crate::node::Alarms;
use crate::shard::{InQueues, Look, Parcel, ShardStatistics};
use crate::spans::{SpanFigures, Spans};
use broker::QueueId;
use node::MemberStanding;
use partition::DiskFigures;
use session::report::ConnectionReport;
use session::{MessageSizes, Traffic};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// What the node counts and measures, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFigures {
    /// Open client connections, those in their handshake included.
    pub connections: u64,
    /// Messages and acks since the start.
    pub traffic: Traffic,
    /// How large published messages were.
    pub message_sizes: MessageSizes,
    /// Queues that came since the start, of those that this node led then.
    pub queues_created: u64,
    /// Queues that went since the start, of those that this node led then.
    pub queues_deleted: u64,
    /// Bytes that messages of transient queues pin.
    pub transient_bytes: u64,
    /// Bytes of messages that have not arrived as a whole, and of transactions.
    pub unfinished_bytes: u64,
    /// Bytes that `x-recent-history` exchanges remember.
    pub history_bytes: u64,
    /// Bytes that queues with deduplication remember keys in.
    pub deduplication_bytes: u64,
    /// Bytes of frames that wait for their channel's turn: of publishers that are blocked, above
    /// all.
    pub waiting_bytes: u64,
    /// Bytes that clients were sent and have not read.
    pub unread_bytes: u64,
    /// Bytes that were proposed and are not yet written.
    pub unwritten_bytes: u64,
    /// Why publishers are blocked, if they are.
    pub alarms: Alarms,
    /// The sum over all selective queues of what was confirmed, or is about to be, and is not
    /// synced.
    pub value_at_risk: u64,
    /// Messages set aside since the start, because their bytes are damaged on the disk.
    pub messages_set_aside: u64,
    /// Partitions of which this node's copy is damaged: their queues are unavailable until they are repaired, where no other
    /// node has a sound one.
    pub partitions_quarantined: u64,
    /// Bytes written to the log since the start.
    pub log_bytes: u64,
    /// Syncs made since the start.
    pub log_syncs: u64,
    /// How long they took.
    pub sync_times: Option<SyncTimes>,
    /// How long writes and syncs of the log took.
    pub log_times: (Durations, Durations),
    /// Bytes free on the disk of the data folder.
    pub disk_free_bytes: Option<u64>,
    /// What became of the spans of traced messages.
    pub spans: SpanFigures,
}

impl Handle {
    /// What the node counts and measures now.
    pub fn figures(&self) -> NodeFigures {
        let shared = self.shared();
        let mut figures = NodeFigures {
            connections: shared.connections() as u64,
            alarms: shared.alarms.read(),
            ..NodeFigures::default()
        };
        (figures.unfinished_bytes, figures.history_bytes) =
            (shared.unfinished_bytes(), shared.sessions.histories.bytes());
        figures.deduplication_bytes = shared.key_bytes();
        figures.queues_created = shared.queues_created.load(Ordering::Relaxed);
        figures.queues_deleted = shared.queues_deleted.load(Ordering::Relaxed);
        figures.waiting_bytes = shared.sessions.sums.waiting.load(Ordering::Relaxed);
        figures.unread_bytes = shared.untaken.bytes();
        figures.spans = shared.spans.as_ref().map(Spans::figures).unwrap_or_default();
        for gauge in &shared.gauges {
            figures.transient_bytes += gauge.memory_bytes.load(Ordering::Relaxed);
            figures.unwritten_bytes += gauge.unwritten_bytes.load(Ordering::Relaxed);
            gauge.traffic.add_to(&mut figures.traffic);
            gauge.traffic.add_sizes_to(&mut figures.message_sizes);
        }
        if let Some(engine) = &self.inner.engine {
            figures.value_at_risk = engine.value_at_risk();
            figures.messages_set_aside = engine.messages_set_aside();
            figures.partitions_quarantined = shared.config.quarantined.len() as u64;
            (figures.log_bytes, figures.log_syncs) = engine.log_written();
            figures.sync_times = Some(engine.sync_times());
            figures.log_times = engine.log_times();
            figures.disk_free_bytes = engine.free_bytes();
        }
        figures
    }

    /// All connections whose virtual host is open, in no order.
    pub async fn connections(&self) -> Vec<ConnectionReport> {
        self.look(Look::Connections).await
    }

    /// What is in the queues, as far as this node knows it.
    pub async fn queue_figures(&self) -> InQueues {
        self.look(Look::Queues).await.into_iter().collect()
    }

    /// What the queues that this node leads have on its disk, or this one alone; one that is missing has nothing there.
    /// Cost: a look at every run of messages, where all are asked for.
    pub async fn disk_figures(&self, only: Option<QueueId>) -> HashMap<QueueId, DiskFigures> {
        let figures = self.look(|answer| Look::Disk(only, answer)).await;
        figures.into_iter().map(|figures| (figures.queue, figures)).collect()
    }

    /// What went through each shard since this was asked for before, and what is in its queues. One
    /// only may ask, or each gets a part of it.
    pub async fn statistics(&self) -> Vec<ShardStatistics> {
        self.look(Look::Statistics).await
    }

    /// How the members of groups stand that this node has, in no order.
    pub async fn member_standings(&self) -> Vec<MemberStanding> {
        self.look(Look::Members).await
    }

    async fn look<T>(&self, look: impl Fn(oneshot::Sender<Vec<T>>) -> Look) -> Vec<T> {
        let answers: Vec<oneshot::Receiver<Vec<T>>> = self
            .shared()
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (sender, answer) = oneshot::channel();
                mailbox.send(Parcel::Look(look(sender)));
                answer
            })
            .collect();
        let mut all = Vec::new();
        for answer in answers {
            // A shard that drains has nothing to tell any more.
            all.extend(answer.await.unwrap_or_default());
        }
        all
    }
}
