//! This node's member of the group that decides about the topology.
//!
//! Invariant: a change is applied before its proposer hears of it, and in the order of the log.

use crate::Millis;
use crate::completions::{Completion, Completions};
use crate::proposals::Proposals;
use crate::shard::Now;
use crate::share::Share;
use crate::ticks::Ticks;
use crate::waits::Waiting;
use broker::{NodeLife, NodeNumber};
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
    ticks: Ticks,
    upkeep_at: Option<Millis>,
    told_needs: Option<u32>,
    /// Syncs asked for: answered when the ticket is synced.
    barriers: Vec<(Ticket, Effect)>,
    /// What this node wants decided, in a group with members on other nodes.
    proposals: Option<Proposals>,
}

impl<M: Proposer> TopologyMember<M> {
    /// A member that was brought back, with what it asked for meanwhile. `has_peers`: its group has
    /// members on other nodes. `forwards`: then what this life of the node wants decided goes to
    /// whoever leads the group; without it, it is lost where this member does not lead.
    pub fn new(
        mut log: LogPartition,
        first: Outputs,
        machine: M,
        completions: Completions,
        has_peers: bool,
        forwards: Option<NodeLife>,
    ) -> Self {
        if let Some(life) = forwards {
            log.set_life(life.word());
        }
        TopologyMember {
            proposals: forwards.map(Proposals::new),
            log,
            machine,
            completions,
            taken: Vec::new(),
            first: Some(Box::new(first)),
            ticks: Ticks::new(has_peers),
            upkeep_at: Some(0),
            told_needs: None,
            barriers: Vec::new(),
        }
    }

    /// The link to a node is gone: if that leads, whoever follows it looks for another leader.
    pub(crate) fn link_lost(&mut self, node: NodeNumber, now: Millis) -> bool {
        let leader = self.log.replica().group().status().leader;
        let follows = leader.is_some_and(|leader| leader.0 == u64::from(node.0));
        if follows {
            self.ticks.hurry(now);
        }
        follows
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
        while self.ticks.take(now.ms) {
            self.log.tick();
            self.proposals.iter_mut().for_each(Proposals::tick);
        }
        for command in waiting.commands.drain(..) {
            self.command(command, out);
        }
        match &mut self.proposals {
            None => {
                waiting.forwards.clear();
                while let Some((change, token)) = self.machine.next_proposal() {
                    if !self.log.propose(&change, token, &mut self.machine) {
                        self.machine.lost(token);
                    }
                }
                self.log.flush(now.wall_ms, &mut self.machine, out);
            }
            Some(proposals) => {
                let mut forwards = Vec::new();
                for (from, forward) in waiting.forwards.drain(..) {
                    proposals.receive(from, forward, &mut self.log, &mut forwards);
                }
                proposals.send(now.ms, &mut self.log, &mut self.machine, &mut forwards);
                self.log.flush(now.wall_ms, &mut proposals.machine(&mut self.machine), out);
                proposals.look(now.ms, &self.log, &mut self.machine);
                let id = self.log.id();
                share.forwards.extend(forwards.into_iter().map(|(node, forward)| (node, id, forward)));
            }
        }
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
        self.upkeep_at.into_iter().chain(self.ticks.next()).min()
    }

    pub(crate) fn trim(&mut self) {
        self.log.trim();
    }
}
