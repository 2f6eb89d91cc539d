//! Partition 0 on its shard: the log that decides about the topology.
//!
//! Invariant: a command is applied to the node's topology before its proposer hears of it, and in the order of the log.

use super::Started;
use super::durable::{Turn, wall_ms};
use crate::node::PartitionWaker;
use crate::shard::Partition;
use crate::topology_log::{Answer, Changes, TopologyLog};
use amqp::Millis;
use broker::QueueId;
use broker::topology::{Command as Change, Topology};
use bytes::Bytes;
use node::{Completion, Completions};
use partition::log_partition::{AppliedEntry, Machine};
use partition::{Command, Effect, LogPartition, Outlets, Outputs, Reply};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

const UPKEEP_EVERY_MS: u64 = 1_000;

/// What waits to be proposed.
#[derive(Clone, Default)]
pub(crate) struct Proposals {
    list: Arc<Mutex<Vec<(Bytes, Answer)>>>,
}

impl Proposals {
    fn take(&self) -> Vec<(Bytes, Answer)> {
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The way in for proposers.
pub(crate) struct MetadataLog {
    pub(crate) proposals: Proposals,
    pub(crate) waker: PartitionWaker,
}

impl TopologyLog for MetadataLog {
    fn propose(&self, command: Change, answer: Answer) {
        self.proposals.list.lock().unwrap_or_else(PoisonError::into_inner).push((command.encode(), answer));
        self.waker.wake();
    }
}

/// The node's topology, as the machine of the log, and who waits for what.
struct Decided {
    changes: Changes,
    answers: BTreeMap<u64, Answer>,
    has_applied: bool,
}

impl Machine for Decided {
    fn apply(&mut self, entry: AppliedEntry) {
        let change = Change::decode(&entry.data).unwrap_or_else(|error| {
            panic!("topology entry {}: {error:?}; the log is kept as it is", entry.index);
        });
        let applied = self.changes.apply(&change);
        let answer = entry.token.and_then(|token| self.answers.remove(&token));
        if let (Some(applied), Some(answer)) = (applied, answer) {
            answer.send(applied);
        }
        self.has_applied = true;
    }

    fn lost(&mut self, token: u64) {
        // Dropped unanswered, as where this member does not lead: in a group of one nothing is ever lost.
        self.answers.remove(&token);
    }

    fn snapshot(&self) -> Vec<u8> {
        self.changes.snapshot()
    }

    fn can_read(&self, state: &Bytes) -> bool {
        Topology::decode_snapshot(state).is_ok()
    }

    fn install(&mut self, state: &Bytes) {
        self.changes.install(state);
        self.has_applied = true;
    }
}

/// The partition itself.
pub(crate) struct MetadataPartition {
    pub(crate) log: LogPartition,
    pub(crate) turn: Rc<Turn>,
    pub(crate) completions: Completions,
    pub(crate) proposals: Proposals,
    decided: Decided,
    next_token: u64,
    taken: Vec<Completion>,
    out: Outputs,
    upkeep_at: Option<Millis>,
    told_needs: Option<u32>,
    /// Syncs asked for: answered when the ticket is synced.
    barriers: Vec<(partition::outputs::Ticket, Effect)>,
}

impl MetadataPartition {
    pub(crate) fn new(
        started: Started<LogPartition>,
        turn: Rc<Turn>,
        completions: Completions,
        proposals: Proposals,
        changes: Changes,
    ) -> Self {
        let Started { partition: log, out } = started;
        MetadataPartition {
            log,
            turn,
            completions,
            proposals,
            decided: Decided { changes, answers: BTreeMap::new(), has_applied: false },
            next_token: 1,
            taken: Vec::new(),
            out,
            upkeep_at: Some(0),
            told_needs: None,
            barriers: Vec::new(),
        }
    }

    fn upkeep(&mut self, now: Millis) {
        let wal = self.turn.wal_state(0);
        self.log.maintain(wal, wall_ms(), &self.decided, &mut self.out);
        let needs = self.log.needs_file(wal.current_file);
        if self.told_needs != Some(needs) {
            self.told_needs = Some(needs);
            self.turn.wal.needs(self.log.id(), needs);
        }
        self.upkeep_at = self.log.wants_maintenance(wal.current_file).then_some(now + UPKEEP_EVERY_MS);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Sync { channel, request } => {
                let ticket = self.log.barrier(&mut self.out);
                self.barriers.push((ticket, Effect::Reply { channel, request, reply: Reply::Done }));
            }
            // Queues do not live here.
            other => tracing::debug!(?other, "a command for a queue went to the topology's partition"),
        }
    }
}

impl Partition for MetadataPartition {
    fn declare(&mut self, _queue: QueueId) {}

    fn step(&mut self, now: Millis, commands: &mut Vec<Command>, effects: &mut Vec<Effect>, _: &mut dyn Outlets) {
        let mut look = self.upkeep_at.is_some_and(|at| at <= now);
        self.completions.take(&mut self.taken);
        for completion in self.taken.drain(..) {
            match completion {
                Completion::Written(ticket, bodies) => self.log.wal_written(ticket, &bodies, &mut self.out),
                Completion::Synced(ticket) => {
                    self.log.wal_synced(ticket, &mut self.out);
                    let (done, left) = std::mem::take(&mut self.barriers).into_iter().partition(|b| b.0 <= ticket);
                    self.barriers = left;
                    let done: Vec<(_, Effect)> = done;
                    effects.extend(done.into_iter().map(|b| b.1));
                }
                Completion::Read(purpose, found) => self.log.read_done(purpose, found, &mut self.out),
                Completion::Checkpoint => {
                    self.log.checkpoint_saved(&mut self.decided, &mut self.out);
                    look = true;
                }
                Completion::Rolled => look = true,
                Completion::Extent(_) | Completion::Received(_) => unreachable!("the topology writes no extents"),
            }
        }
        for command in commands.drain(..) {
            self.command(command);
        }
        for (change, answer) in self.proposals.take() {
            let token = self.next_token;
            self.next_token += 1;
            // Dropped unanswered only if this member does not lead, which a group of one always does.
            if self.log.propose(&change, token, &mut self.decided) {
                self.decided.answers.insert(token, answer);
            }
        }
        self.log.flush(wall_ms(), &mut self.decided, &mut self.out);
        if std::mem::take(&mut self.decided.has_applied) {
            self.upkeep_at.get_or_insert(now + UPKEEP_EVERY_MS);
        }
        if look {
            self.upkeep(now);
        }
        assert!(self.out.frames.is_empty(), "a group of one has nobody to talk to");
        self.turn.carry_out(&mut self.out);
    }

    fn trim(&mut self) {
        self.log.trim();
    }

    fn end_turn(&mut self) {
        self.turn.end();
    }

    fn commit(&mut self) {
        self.turn.commit();
    }

    fn poll_timeout(&self) -> Option<Millis> {
        self.upkeep_at
    }
}
