//! What a shard's partitions want done, on its way to the threads that do it.
//!
//! Invariant: all writes of one turn of the shard leave together at its end, so that one write and
//! one sync serve every partition that had something to say.

use super::wal_thread::WalHandle;
use broker::topology::Topology;
use node::{Load, Round, Share, TOPOLOGY, Task, WrittenBy};
use partition::outputs::Read;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether this process has said that a clock was ahead.
static CLOCK_TOLD: AtomicBool = AtomicBool::new(false);

/// The wall clock, milliseconds since the epoch.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// The same in microseconds.
pub(crate) fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}

/// See the module. Lives on the shard's thread.
pub(crate) struct ShardDisk {
    pub(crate) wal: WalHandle,
    pub(crate) reads: Sender<Read>,
    pub(crate) upkeep: Sender<Task>,
    /// The shard writes the log itself before it sleeps, after a turn that was busy with this.
    pub(crate) left: Option<Load>,
    /// What the last turn was busy with.
    pub(crate) load: Load,
    /// The last round of the log's thread that this shard waits for.
    pub(crate) round: Option<Round>,
    /// Messages set aside because their bytes are damaged, on the whole node since its start.
    pub(crate) set_aside: Arc<AtomicU64>,
    /// Why this node takes no part in the topology's group any more.
    pub(crate) halted: Arc<OnceLock<String>>,
}

impl ShardDisk {
    /// The shard's turn is over: what its partitions want written waits for the log from now on.
    /// Who is told of a queue hears its name from `topology`.
    pub(crate) fn end_turn<T: Deref<Target = Topology>>(&mut self, share: &mut Share, topology: impl Fn() -> T) {
        let load = std::mem::take(&mut share.load);
        self.load = load;
        match self.wal.put(&mut share.out.wal, load) {
            WrittenBy::Whoever => {}
            WrittenBy::Shard => self.left = Some(load),
            WrittenBy::Thread(round) => self.round = Some(round),
        }
        for (partition, file) in share.needs.drain(..) {
            self.wal.needs(partition, file);
        }
        self.wal.are_whole(&mut share.whole);
        for read in share.out.reads.drain(..) {
            // The threads outlive the shards; if one is gone the process is on its way down.
            let _ = self.reads.send(read);
        }
        for job in share.out.jobs.drain(..) {
            let _ = self.upkeep.send(Task::Job(job));
        }
        assert!(share.out.frames.is_empty(), "a group of one has nobody to talk to");
        self.tell(share, topology);
    }

    /// Tells the operator what partitions met.
    fn tell<T: Deref<Target = Topology>>(&self, share: &mut Share, topology: impl Fn() -> T) {
        let out = &mut share.out;
        for damage in out.damage.drain(..) {
            let topology = topology();
            let queue = topology.queue(damage.queue);
            let vhost = queue.and_then(|queue| topology.vhost_of(queue.vhost)).map(|vhost| vhost.name.to_string());
            let name = queue.map(|queue| queue.name.to_string());
            tracing::error!(vhost, name, queue = damage.queue.0, messages = damage.count(), "DAMAGED: {damage}");
        }
        for lost in out.lost_entries.drain(..) {
            tracing::error!(partition = lost.partition.0, entry = lost.index.0, "DAMAGED: {lost}");
        }
        for refused in out.refused_images.drain(..) {
            tracing::error!(partition = refused.partition.0, "{refused}");
        }
        for halted in out.halted.drain(..) {
            tracing::error!(partition = halted.partition.0, "HALTED: {halted}");
            if halted.partition == TOPOLOGY {
                // It is said once of a partition.
                let _ = self.halted.set(halted.to_string());
            }
        }
        // One bad clock is in the logs of many partitions: the first says it for all.
        if let Some(ahead) = out.clocks_ahead.first()
            && !CLOCK_TOLD.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(partition = ahead.partition.0, ahead_ms = ahead.ahead_ms, "{ahead}");
        }
        out.clocks_ahead.clear();
        if out.set_aside > 0 {
            self.set_aside.fetch_add(std::mem::take(&mut out.set_aside), Ordering::Relaxed);
        }
    }

    /// The shard has told everybody what this turn brought, and would sleep now.
    pub(crate) fn commit(&mut self) {
        if let Some(load) = self.left.take() {
            self.round = self.wal.commit(load).or(self.round);
        }
    }

    /// How long the shard may stand still now, as the log's thread is writing for it. What arrives meanwhile is mostly the next
    /// batch, which waits for the next round in any case.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        let (at_most, round) = (self.load.rest_max()?, self.round?);
        if self.wal.is_over(round) {
            self.round = None;
            return None;
        }
        Some(at_most)
    }
}
