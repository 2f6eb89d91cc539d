//! This node's member of the group that decides about the topology.
//!
//! Invariant: a change is applied before its proposer hears of it, and in the order of the log.

use crate::Millis;
use crate::catch_up::CatchUps;
use crate::completions::{Completion, Completions};
use crate::heard::Heard;
use crate::lease::Lease;
use crate::own_disk::OwnDisk;
use crate::proposals::Proposals;
use crate::shard::Now;
use crate::share::Share;
use crate::steward::{MembersView, told};
use crate::ticks::Ticks;
use crate::waits::Waiting;
use broker::{NodeLife, NodeNumber};
use bytes::Bytes;
use consensus::{LogIndex, NodeId};
use partition::log_partition::Machine;
use partition::outputs::Ticket;
use partition::peer::forward::Forward;
use partition::{Command, Effect, LogPartition, Outputs, Reply};

const UPKEEP_EVERY_MS: u64 = 1_000;
/// How often a leader looks for nodes that are away with what they had in memory.
const HOMES_EVERY_MS: Millis = 250;

/// What somebody on this node wants of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A change, as its entry has it.
    Change(Bytes),
    /// To hear when this node has carried out all that was decided by now.
    CatchUp,
}

/// Whether this node knows all of the topology that anybody was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Until this time, in milliseconds since the node started; afterwards nobody knows.
    Until(Millis),
    /// Nobody knows, and no majority has said so for seconds.
    Vain,
}

impl Knowledge {
    /// It does, as nobody else decides.
    pub const ALL: Knowledge = Knowledge::Until(Millis::MAX);
}

/// The machine behind the log, and what this node wants decided.
pub trait Proposer: Machine {
    /// The next wish of somebody on this node, and a number for it. What is not taken in is lost
    /// ([`Machine::lost`]). Numbers are counted from 1.
    fn next_wish(&mut self) -> Option<(Wish, u64)>;

    /// All is carried out here that was decided when this was wished.
    fn caught_up(&mut self, token: u64);

    /// Every node that can be reached has carried out the log up to here: who asked for that hears
    /// of it.
    fn release(&mut self, up_to: LogIndex);

    /// The nodes that have something in memory which every node knows.
    fn homes(&self) -> Vec<NodeNumber>;

    /// The nodes that the topology's group is to have as its members; none while nobody says.
    fn members_wanted(&self) -> Vec<NodeNumber>;

    /// What the leader has to say once these nodes have a vote.
    fn next_standing(&self, voters: &[NodeNumber]) -> Option<Bytes>;

    /// Who is to lead instead of this node, if that is to lead nothing.
    fn heir(&self) -> Option<NodeNumber> {
        None
    }

    /// What a node is called in the log.
    fn shown_node(&self, node: NodeNumber) -> String {
        format!("node {}", node.0)
    }

    /// Whether all nodes answer how far their logs of the topology go.
    fn knows_leases(&self) -> bool;

    /// What this node knows of the topology from now on. Told again with each tick.
    fn knows(&mut self, knowledge: Knowledge);

    /// Whether somebody has routed by the topology since this was last asked, or waits until that is known.
    fn was_knowledge_used(&mut self) -> bool;

    /// The change that ends what a node has in memory.
    fn end_of(&self, home: NodeNumber) -> Bytes;
}

/// A leader takes the next step towards the members that its group is to have; gives what is to be
/// said once they are.
fn look_after_members(
    log: &mut LogPartition,
    machine: &impl Proposer,
    own_disk: &mut OwnDisk,
    now: Millis,
) -> Option<Bytes> {
    let wanted: Vec<NodeId> = machine.members_wanted().iter().map(|node| NodeId(node.0.into())).collect();
    let replica = log.replica_mut();
    let view = MembersView::of(replica.group(), replica.node());
    if let Some(heir) = own_disk.heir(&view, now) {
        if replica.group_mut().transfer_leadership(NodeId(heir.0.into())).is_ok() {
            let heir = machine.shown_node(heir);
            tracing::warn!(%heir, "this node's disk hangs: another node is to lead the topology's group");
        }
        return None;
    }
    let changes = view.next_change(&wanted, true);
    if !changes.is_empty() {
        match replica.group_mut().change_membership(&changes) {
            Ok(_) => tracing::info!("the topology's group: {}", told(&changes, |node| machine.shown_node(node))),
            // It is asked again with the next look.
            Err(why) => {
                tracing::debug!(%why, "the topology's group, not yet: {}", told(&changes, |node| machine.shown_node(node)))
            }
        }
        return None;
    }
    if view.membership.is_joint() {
        return None;
    }
    if let Some((heir, member)) = machine.heir().map(|heir| (heir, NodeId(heir.0.into())))
        && view.may_lead(member)
        && replica.group_mut().transfer_leadership(member).is_ok()
    {
        tracing::info!(heir = machine.shown_node(heir), "the topology's group: another node is to lead");
        return None;
    }
    let voters = view.membership.voters.iter().filter_map(|node| u32::try_from(node.0).ok());
    machine.next_standing(&voters.map(NodeNumber).collect::<Vec<_>>())
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
    catch_ups: CatchUps,
    heard: Heard,
    lease: Lease,
    /// Not all nodes had leases at the last look.
    knew_of_none: bool,
    /// What was told of how much was carried out here, and to whom all of it.
    told_applied: LogIndex,
    homes_at: Millis,
    /// When a slow node is not waited for any more.
    slow_at: Option<Millis>,
    own_disk: OwnDisk,
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
            catch_ups: CatchUps::new(forwards.unwrap_or_default()),
            heard: Heard::default(),
            lease: Lease::new(forwards.unwrap_or_default()),
            knew_of_none: false,
            told_applied: LogIndex(0),
            homes_at: 0,
            slow_at: None,
            own_disk: OwnDisk::default(),
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

    /// There is a link to a node.
    pub(crate) fn link_up(&mut self, node: NodeNumber) {
        self.heard.up(node);
        self.lease.is_due();
        // It has to hear how far this one is.
        self.told_applied = LogIndex(0);
        let leader = self.log.replica().group().leader();
        if let Some(proposals) = self.proposals.as_mut().filter(|_| leader == Some(NodeId(node.0.into()))) {
            proposals.leader_linked();
        }
    }

    /// The link to a node is gone: if that leads, whoever follows it looks for another leader.
    pub(crate) fn link_lost(&mut self, node: NodeNumber, now: Millis) -> bool {
        self.heard.down(node, now);
        // It waits for this node no more, and may be there for others.
        self.lease.give_up();
        self.machine.knows(Knowledge::Until(0));
        let leader = self.log.replica().group().status().leader;
        let follows = leader.is_some_and(|leader| leader.0 == u64::from(node.0));
        if follows {
            self.ticks.hurry(now);
        }
        // Answers may have waited for that node.
        true
    }

    /// Whether there is a link to a node, so that answers wait for it.
    pub fn reaches(&self, node: NodeNumber) -> bool {
        self.heard.nodes().any(|linked| linked == node)
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
        if self.machine.was_knowledge_used() {
            self.lease.is_used();
        }
        while let Some(tick) = self.ticks.take(now.ms) {
            if !tick.has_heartbeat {
                self.log.hold_heartbeat();
            }
            self.log.tick();
            match tick.is_whole {
                true => self.lease.tick(),
                false => self.lease.is_due(),
            }
            self.proposals.iter_mut().for_each(Proposals::tick);
        }
        for command in waiting.commands.drain(..) {
            self.command(command, out);
        }
        match &mut self.proposals {
            None => {
                waiting.forwards.clear();
                while let Some((wish, token)) = self.machine.next_wish() {
                    match wish {
                        Wish::CatchUp => self.catch_ups.add(now.ms, token, 0),
                        Wish::Change(change) if self.log.propose(&change, token, &mut self.machine) => {}
                        Wish::Change(_) => self.machine.lost(token),
                    }
                }
                loop {
                    self.catch_ups.ask(now.ms, &mut self.log);
                    self.log.flush(now.wall_ms, &mut self.machine, out);
                    let known = (0, self.log.applied());
                    if !self.catch_ups.hear(now.ms, known, &mut self.log, &mut self.machine) {
                        break;
                    }
                }
                self.machine.release(self.log.applied());
            }
            Some(proposals) => {
                let mut forwards = Vec::new();
                for (from, forward) in waiting.forwards.drain(..) {
                    let node = NodeNumber(from.node);
                    match forward {
                        Forward::Applied { index } => self.heard.said(node, index),
                        // Who may have lost entries that it had does not know what was decided.
                        Forward::AskLease { .. } if self.log.replica().may_have_forgotten() => {}
                        Forward::AskLease { number } => {
                            let end = self.log.replica().group().status().last.index;
                            forwards.push((node, Forward::Lease { number, end }));
                        }
                        Forward::Lease { number, end } => self.lease.answered(node, number, end),
                        forward => proposals.receive(from, forward, &mut self.log, &mut forwards),
                    }
                }
                if self.homes_at <= now.ms {
                    self.homes_at = now.ms + HOMES_EVERY_MS;
                    if self.log.is_leading() {
                        let homes = self.machine.homes();
                        let others = homes.into_iter().filter(|home| *home != proposals.own());
                        let gone: Vec<_> = others.filter(|home| self.heard.is_away(*home, now.ms)).collect();
                        gone.into_iter().for_each(|home| proposals.want(now.ms, 0, self.machine.end_of(home)));
                        if let Some(change) =
                            look_after_members(&mut self.log, &self.machine, &mut self.own_disk, now.ms)
                        {
                            proposals.want(now.ms, 0, change);
                        }
                    } else {
                        self.own_disk.forget();
                    }
                }
                while let Some((wish, token)) = self.machine.next_wish() {
                    match wish {
                        Wish::Change(change) => proposals.want(now.ms, token, change),
                        Wish::CatchUp => self.catch_ups.add(now.ms, token, proposals.wanted()),
                    }
                }
                loop {
                    proposals.send(now.ms, &mut self.log, &mut forwards);
                    loop {
                        self.catch_ups.ask(now.ms, &mut self.log);
                        self.log.flush(now.wall_ms, &mut proposals.machine(&mut self.machine), out);
                        let known = (proposals.known(), self.heard.everywhere(self.log.applied(), now.ms));
                        if !self.catch_ups.hear(now.ms, known, &mut self.log, &mut self.machine) {
                            break;
                        }
                    }
                    if !proposals.look(now.ms, &self.log, &mut self.machine) {
                        break;
                    }
                }
                let (id, index) = (self.log.id(), self.log.applied());
                if std::mem::replace(&mut self.told_applied, index) != index {
                    forwards.extend(self.heard.nodes().map(|node| (node, Forward::Applied { index })));
                }
                self.machine.release(self.heard.everywhere(index, now.ms));
                self.slow_at = self.heard.next();
                if self.machine.knows_leases() {
                    if std::mem::take(&mut self.knew_of_none) {
                        self.machine.knows(Knowledge::Until(0));
                    }
                    let replica = self.log.replica();
                    let (members, end) = (replica.group().membership(), replica.group().status().last.index);
                    let own = (!replica.may_have_forgotten()).then_some((proposals.own(), end));
                    self.lease.ask(now.ms, own, &members, self.heard.nodes(), &mut forwards);
                    if let Some(until) = self.lease.look(now.ms, index, &members) {
                        self.machine.knows(Knowledge::Until(until));
                    } else if self.lease.is_vain() {
                        self.machine.knows(Knowledge::Vain);
                    }
                } else {
                    self.lease.rest();
                    self.knew_of_none = true;
                    self.machine.knows(Knowledge::ALL);
                }
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
        self.upkeep_at.into_iter().chain(self.ticks.next()).chain(self.slow_at).min()
    }

    pub(crate) fn trim(&mut self) {
        self.log.trim();
    }
}
