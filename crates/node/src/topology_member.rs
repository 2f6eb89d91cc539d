//! This node's member of the group that decides about the topology.
//!
//! Invariant: a change is applied before its proposer hears of it, and in the order of the log.

use crate::completions::{Completion, Completions};
use crate::shard::Now;
use crate::share::Share;
use crate::waits::Waiting;
use crate::{Millis, TICK_MS};
use bytes::Bytes;
use partition::log_partition::Machine;
use partition::outputs::Ticket;
use partition::{Command, Effect, LogPartition, Outputs, Reply};

const UPKEEP_EVERY_MS: u64 = 1_000;

/// The machine behind the log, and what this node wants decided.
pub trait Proposer: Machine {
    /// The next change that somebody on this node wants, as its entry has it, and a number for it.
    /// What is not taken in is lost ([`Machine::lost`]).
    fn next_proposal(&mut self) -> Option<(Bytes, u64)>;
}

/// See the module.
pub struct TopologyMember<M> {
    log: LogPartition,
    machine: M,
    completions: Completions,
    taken: Vec<Completion>,
    /// What it has asked for before its shard ran.
    first: Option<Box<Outputs>>,
    tick_at: Option<Millis>,
    upkeep_at: Option<Millis>,
    told_needs: Option<u32>,
    /// Syncs asked for: answered when the ticket is synced.
    barriers: Vec<(Ticket, Effect)>,
}

impl<M: Proposer> TopologyMember<M> {
    /// A member that was brought back, with what it asked for meanwhile. `has_peers`: its group has
    /// members on other nodes.
    pub fn new(log: LogPartition, first: Outputs, machine: M, completions: Completions, has_peers: bool) -> Self {
        TopologyMember {
            log,
            machine,
            completions,
            taken: Vec::new(),
            first: Some(Box::new(first)),
            tick_at: has_peers.then_some(0),
            upkeep_at: Some(0),
            told_needs: None,
            barriers: Vec::new(),
        }
    }

    /// The log itself.
    pub fn log(&self) -> &LogPartition {
        &self.log
    }

    /// The log itself, to hand its leadership over.
    pub fn log_mut(&mut self) -> &mut LogPartition {
        &mut self.log
    }

    /// The machine behind it.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine behind it.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    fn complete(&mut self, completion: Completion, out: &mut Outputs) -> bool {
        match completion {
            Completion::Written(ticket, bodies) => self.log.wal_written(ticket, &bodies, out),
            Completion::Synced(ticket) => {
                self.log.wal_synced(ticket, out);
                let done = self.barriers.extract_if(.., |(at, _)| *at <= ticket);
                out.effects.extend(done.map(|(_, effect)| effect));
            }
            Completion::Read(purpose, found) => self.log.read_done(purpose, found, out),
            Completion::Checkpoint => {
                self.log.checkpoint_saved(&mut self.machine, out);
                return true;
            }
            Completion::Rolled => return true,
            Completion::Extent(_) | Completion::Received(_) => unreachable!("the topology writes no extents"),
        }
        false
    }

    fn command(&mut self, command: Command, out: &mut Outputs) {
        match command {
            Command::Sync { channel, request } => {
                let ticket = self.log.barrier(out);
                self.barriers.push((ticket, Effect::Reply { channel, request, reply: Reply::Done }));
            }
            // Queues do not live here.
            other => tracing::debug!(?other, "a command for a queue went to the topology's partition"),
        }
    }

    /// Carries out all that waits, in order. What follows is in `share`.
    pub(crate) fn step(&mut self, now: Now, waiting: &mut Waiting, share: &mut Share) {
        let out = &mut share.out;
        if let Some(first) = self.first.take() {
            out.append(*first);
        }
        let applied_before = self.log.applied();
        let mut look = self.upkeep_at.is_some_and(|at| at <= now.ms);
        let mut taken = std::mem::take(&mut self.taken);
        self.completions.take(&mut taken);
        for completion in taken.drain(..) {
            look |= self.complete(completion, out);
        }
        self.taken = taken;
        for (from, frame) in waiting.frames.drain(..) {
            self.log.step(from, frame, &self.machine, out);
        }
        while let Some(at) = self.tick_at.filter(|at| *at <= now.ms) {
            self.log.tick();
            self.tick_at = Some((at + TICK_MS).max((now.ms + 1).saturating_sub(TICK_MS)));
        }
        for command in waiting.commands.drain(..) {
            self.command(command, out);
        }
        while let Some((change, token)) = self.machine.next_proposal() {
            if !self.log.propose(&change, token, &mut self.machine) {
                self.machine.lost(token);
            }
        }
        self.log.flush(now.wall_ms, &mut self.machine, out);
        if self.log.applied() != applied_before {
            self.upkeep_at.get_or_insert(now.ms + UPKEEP_EVERY_MS);
        }
        if look {
            let wal = share.wal_state(0);
            self.log.maintain(wal, now.wall_ms, &self.machine, &mut share.out);
            share.note_needs(self.log.id(), &mut self.told_needs, self.log.needs_file(wal.current_file));
            self.upkeep_at = self.log.wants_maintenance(wal.current_file).then_some(now.ms + UPKEEP_EVERY_MS);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        self.upkeep_at.into_iter().chain(self.tick_at).min()
    }

    pub(crate) fn trim(&mut self) {
        self.log.trim();
    }
}
