//! A durable partition on its shard: commands and completions in, effects out, writes and reads on their way.
//!
//! Invariant: all writes of one turn of the shard leave together at its end ([`Turn::end`]), so that one write and one
//! sync serve every partition that had something to say.

use super::Started;
use super::wal_thread::WalHandle;
use crate::shard::Partition;
use amqp::Millis;
use broker::QueueId;
use node::{Completion, Completions, Task};
use partition::extent_copy::Copied;
use partition::outputs::{Read, WalWrite};
use partition::{Command, Context, Effect, Outlets, Outputs, QueueFigures, QueuePartition, Tail, WalState};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{SystemTime, UNIX_EPOCH};

/// How often a partition that is not quiet looks after its log.
const UPKEEP_EVERY_MS: u64 = 500;

/// The wall clock, milliseconds since the epoch.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// What the durable partitions of one shard share. Lives on the shard's thread.
pub(crate) struct Turn {
    pub(crate) wal: WalHandle,
    pub(crate) reads: Sender<Read>,
    pub(crate) upkeep: Sender<Task>,
    /// WAL files that a replay may have to read beyond the one being written.
    pub(crate) checkpoint_lag_files: u32,
    pub(crate) tail: RefCell<Tail>,
    /// What the indexes of this shard's partitions may take, and how many partitions there are.
    pub(crate) index_bytes_max: u64,
    pub(crate) partitions: u64,
    /// What they take now.
    pub(crate) index_bytes: Cell<u64>,
    pub(crate) writes: RefCell<Vec<WalWrite>>,
    /// Commands that this turn brought.
    pub(crate) commands: Cell<usize>,
    /// The shard writes the log itself before it sleeps.
    pub(crate) is_left: Cell<bool>,
    /// Messages set aside because their bytes are damaged, on the whole node since its start.
    pub(crate) set_aside: Arc<AtomicU64>,
}

impl Turn {
    /// The shard's turn is over: what its partitions want written waits for the log from now on.
    pub(crate) fn end(&self) {
        self.wal.note_pushed_out(self.tail.borrow_mut().take_pushed_out_bytes());
        if self.wal.put(&mut self.writes.borrow_mut(), self.commands.take()) {
            self.is_left.set(true);
        }
    }

    /// The shard has told everybody what this turn brought, and would sleep now.
    pub(crate) fn commit(&self) {
        if self.is_left.take() {
            self.wal.commit();
        }
    }

    /// What one partition may keep of the index in any case: all of them together stay within half of it.
    fn index_bytes_share(&self) -> u64 {
        self.index_bytes_max / (2 * self.partitions.max(1))
    }

    /// To what a partition's index shall shrink now. From three quarters of the budget on, those that are large give up what
    /// brings all of them back to half.
    fn index_bytes_kept(&self, own: u64) -> u64 {
        let (now, max) = (self.index_bytes.get(), self.index_bytes_max);
        if now <= max / 4 * 3 {
            return u64::MAX;
        }
        let proportion = u128::from(own) * u128::from(max / 2) / u128::from(now);
        self.index_bytes_share().max(proportion as u64)
    }

    /// A partition's index takes `now` bytes after a step, and took `own` before.
    fn count_index(&self, own: &mut u64, now: u64) {
        self.index_bytes.set(self.index_bytes.get() - *own + now);
        *own = now;
    }

    pub(crate) fn wal_state(&self, own_index_bytes: u64) -> WalState {
        let gauges = self.wal.gauges();
        WalState {
            current_file: gauges.durable_file.load(Ordering::Relaxed),
            retire_through: gauges.retire_through.load(Ordering::Relaxed),
            checkpoint_lag_files: self.checkpoint_lag_files,
            index_bytes_kept: self.index_bytes_kept(own_index_bytes),
            index_bytes_idle: self.index_bytes_share(),
        }
    }

    /// Sends out what a step left, effects aside.
    pub(crate) fn carry_out(&self, out: &mut Outputs) {
        self.writes.borrow_mut().append(&mut out.wal);
        for read in out.reads.drain(..) {
            // The threads outlive the shards; if one is gone the process is on its way down.
            let _ = self.reads.send(read);
        }
        for damage in out.damage.drain(..) {
            tracing::error!(queue = damage.queue.0, messages = damage.count(), "DAMAGED: {damage}");
        }
        for lost in out.lost_entries.drain(..) {
            tracing::error!(partition = lost.partition.0, entry = lost.index.0, "DAMAGED: {lost}");
        }
        for refused in out.refused_images.drain(..) {
            tracing::error!(partition = refused.partition.0, "{refused}");
        }
        for halted in out.halted.drain(..) {
            tracing::error!(partition = halted.partition.0, "HALTED: {halted}");
        }
        if out.set_aside > 0 {
            self.set_aside.fetch_add(std::mem::take(&mut out.set_aside), Ordering::Relaxed);
        }
        for job in out.jobs.drain(..) {
            let _ = self.upkeep.send(Task::Job(job));
        }
    }
}

/// One durable partition.
pub(crate) struct DurablePartition {
    partition: QueuePartition,
    turn: Rc<Turn>,
    completions: Completions,
    taken: Vec<Completion>,
    out: Outputs,
    upkeep_at: Option<Millis>,
    /// When a queue wants to be looked at.
    due_at: Option<Millis>,
    told_needs: Option<u32>,
    /// The value at risk of its selective queues, for whoever asks the node.
    at_risk: Arc<AtomicU64>,
    /// What its index took after the last step.
    index_bytes: u64,
}

impl DurablePartition {
    pub(crate) fn new(
        started: Started<QueuePartition>,
        turn: Rc<Turn>,
        completions: Completions,
        at_risk: Arc<AtomicU64>,
    ) -> Self {
        let Started { partition, out } = started;
        DurablePartition {
            partition,
            turn,
            completions,
            taken: Vec::new(),
            out,
            upkeep_at: Some(0),
            due_at: None,
            told_needs: None,
            at_risk,
            index_bytes: 0,
        }
    }

    fn complete(completion: Completion, partition: &mut QueuePartition, cx: &mut Context<'_>) -> bool {
        match completion {
            Completion::Written(ticket, bodies) => partition.wal_written(ticket, &bodies, cx),
            Completion::Synced(ticket) => partition.wal_synced(ticket, cx),
            Completion::Read(purpose, found) => partition.read_done(purpose, found, cx),
            Completion::Extent(Copied { ready, damaged }) => {
                partition.runs_damaged(damaged, cx);
                match ready {
                    Some(ready) => partition.extent_ready(&ready),
                    None => partition.extent_abandoned(),
                }
                return true;
            }
            Completion::Received(ready) => partition.received_written(ready),
            Completion::Checkpoint => {
                partition.checkpoint_saved(cx);
                return true;
            }
            Completion::Rolled => return true,
        }
        false
    }
}

impl Partition for DurablePartition {
    fn declare(&mut self, _queue: QueueId) {
        // A durable queue costs nothing here until a message or a consumer comes.
    }

    fn step(&mut self, now: Millis, commands: &mut Vec<Command>, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        let turn = self.turn.clone();
        let mut tail = turn.tail.borrow_mut();
        let now_ms = wall_ms();
        let mut cx = Context { now_ms, tail: &mut tail, outlets, out: &mut self.out };
        self.completions.take(&mut self.taken);
        let mut look = self.upkeep_at.is_some_and(|at| at <= now);
        for completion in self.taken.drain(..) {
            look |= Self::complete(completion, &mut self.partition, &mut cx);
        }
        turn.commands.set(turn.commands.get() + commands.len());
        for command in commands.drain(..) {
            self.partition.command(command, &mut cx);
        }
        self.partition.flush(&mut cx);
        turn.count_index(&mut self.index_bytes, self.partition.index_bytes());
        look |= turn.index_bytes_kept(self.index_bytes) < self.index_bytes && self.partition.can_leave_the_log();
        if look {
            let wal = turn.wal_state(self.index_bytes);
            self.partition.maintain(wal, &mut cx);
            let needs = self.partition.needs_file(wal.current_file);
            if self.told_needs != Some(needs) {
                self.told_needs = Some(needs);
                turn.wal.needs(self.partition.id(), needs);
            }
        }
        self.upkeep_at = match self.upkeep_at {
            _ if !self.partition.wants_maintenance() => None,
            Some(at) if !look && at > now => Some(at),
            _ => Some(now + UPKEEP_EVERY_MS),
        };
        // At least a millisecond later: what is due now was looked at.
        self.due_at = self.partition.due_ms().map(|due_ms| now + due_ms.saturating_sub(now_ms).max(1));
        self.at_risk.store(self.partition.values_at_risk(), Ordering::Relaxed);
        effects.append(&mut self.out.effects);
        assert!(self.out.frames.is_empty(), "a group of one has nobody to talk to");
        turn.carry_out(&mut self.out);
    }

    fn end_turn(&mut self) {
        self.turn.end();
    }

    fn commit(&mut self) {
        self.turn.commit();
    }

    fn poll_timeout(&self) -> Option<Millis> {
        self.upkeep_at.into_iter().chain(self.due_at).min()
    }

    fn survey(&self, figures: &mut Vec<QueueFigures>) {
        self.partition.survey(figures);
    }

    fn unwritten_bytes(&self) -> u64 {
        // Index beyond its budget is memory that waits for the disk like what is not written yet, and holds publishers back
        // with it. Where all is well extents are written long before.
        let turn = &self.turn;
        let over = if turn.index_bytes.get() > turn.index_bytes_max { self.index_bytes } else { 0 };
        self.partition.in_flight_bytes() as u64 + over.saturating_sub(turn.index_bytes_share())
    }

    fn trim(&mut self) {
        self.partition.trim();
    }

    fn memory_bytes(&self) -> u64 {
        // Bodies leave memory as the tail's budget says; nothing here grows with a backlog.
        0
    }
}
