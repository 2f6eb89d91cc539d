//! This node's member of a group of queues: commands, frames, ticks and completions in; effects,
//! writes, reads and jobs out.

use crate::Millis;
use crate::completions::{Completion, Completions};
use crate::own_disk::OwnDisk;
use crate::shard::{Edge, Now};
use crate::share::Share;
use crate::steward::{LOOK_EVERY_MS, MembersView, SETTLED_MS, told};
use crate::ticks::Ticks;
use crate::waits::Waiting;
use broker::{ConsumerKey, NodeNumber, QueueId};
use consensus::{Change, NodeId};
use partition::ending::End;
use partition::entry::Reason;
use partition::extent_copy::Copied;
use partition::outputs::Ticket;
use partition::{Context, DiskFigures, Outlets, Outputs, QueueFigures, QueuePartition, Tail};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nobody consumes from a member that ends.
struct Nobody;

impl Outlets for Nobody {
    fn room(&mut self, _: ConsumerKey) -> usize {
        0
    }
}

/// How often a partition that is not quiet looks after its log.
const UPKEEP_EVERY_MS: u64 = 500;

/// See the module.
pub struct QueueMember {
    partition: QueuePartition,
    completions: Completions,
    taken: Vec<Completion>,
    /// What it has asked for before its shard ran.
    first: Option<Box<Outputs>>,
    /// When its group's clock ticks next, if there is anybody to hear from.
    ticks: Ticks,
    upkeep_at: Option<Millis>,
    /// When a queue wants to be looked at.
    due_at: Option<Millis>,
    told_needs: Option<u32>,
    /// Whether it has said that it has all that it may have forgotten.
    told_whole: bool,
    /// The value at risk of its selective queues, for whoever asks the node.
    at_risk: Arc<AtomicU64>,
    /// What its index took after the last step.
    index_bytes: u64,
    /// When it looks, as a leader, whether its members are those that are wanted.
    members_at: Millis,
    /// Since when it leads, as of the last such look.
    led_since: Option<Millis>,
    own_disk: OwnDisk,
    /// Reads that are under way.
    reads: usize,
}

impl QueueMember {
    /// A member that was brought back, with what it asked for meanwhile. `has_peers`: its group has
    /// members on other nodes.
    pub fn new(
        mut partition: QueuePartition,
        first: Outputs,
        completions: Completions,
        at_risk: Arc<AtomicU64>,
        has_peers: bool,
    ) -> QueueMember {
        if has_peers {
            partition.may_have_guests();
        }
        QueueMember {
            partition,
            completions,
            taken: Vec::new(),
            first: Some(Box::new(first)),
            ticks: Ticks::new(has_peers),
            upkeep_at: Some(0),
            due_at: None,
            told_needs: None,
            told_whole: false,
            at_risk,
            index_bytes: 0,
            members_at: 0,
            led_since: None,
            own_disk: OwnDisk::default(),
            reads: 0,
        }
    }

    /// A leader takes the next step towards the members that are wanted.
    fn look_after_members<E: Edge>(&mut self, now: Millis, share: &mut Share, edge: &mut E) {
        if self.members_at > now || self.ticks.next().is_none() {
            return;
        }
        self.members_at = now + LOOK_EVERY_MS;
        let id = self.partition.id();
        let own = self.partition.replica().node();
        if !self.partition.replica().is_leader() && edge.is_to_leave(id, own) {
            let others = edge.members_wanted(id, &[]);
            self.partition.replica_mut().leave(&others);
        }
        if !self.partition.is_leading() {
            self.led_since = None;
            self.own_disk.forget();
            return share.has_grown(id);
        }
        let led_ms = now - *self.led_since.get_or_insert(now);
        let replica = self.partition.replica_mut();
        let view = MembersView::of(replica.group(), replica.node());
        // Who comes to lead may be a moment behind in what is decided about the cluster.
        let wanted = if led_ms < SETTLED_MS { Vec::new() } else { edge.members_wanted(id, &view.members()) };
        if !view.is_growing() {
            share.has_grown(id);
        }
        if let Some(heir) = self.own_disk.heir(&view, now) {
            let member = view.member_on(heir);
            if member.is_some_and(|member| replica.group_mut().transfer_leadership(member).is_ok()) {
                let heir = edge.shown_node(heir);
                tracing::warn!(partition = id.0, %heir, "this node's disk hangs: another node is to lead");
            }
            return;
        }
        let changes = view.next_change(&wanted, share.may_grow(id));
        if changes.is_empty() {
            if let Some(heir) = edge.heir(id, led_ms)
                && let Some(member) = view.member_on(heir)
                && view.may_lead(member)
                && replica.group_mut().transfer_leadership(member).is_ok()
            {
                let heir = edge.shown_node(heir);
                tracing::info!(partition = id.0, %heir, "another node is to lead");
            }
            return;
        }
        match replica.group_mut().change_membership(&changes) {
            Ok(_) => {
                if matches!(changes[..], [Change::Learner(_)]) {
                    share.grows(id);
                }
                tracing::debug!(partition = id.0, "{}", told(&changes, |node| edge.shown_node(node)));
            }
            // It is asked again with the next look.
            Err(why) => {
                tracing::debug!(partition = id.0, %why, "not yet: {}", told(&changes, |node| edge.shown_node(node)))
            }
        }
    }

    /// There is a link to a node.
    pub(crate) fn link_up(&mut self) {
        self.partition.link_came();
    }

    /// The link to a node is gone: if that leads, whoever follows it looks for another leader.
    pub(crate) fn link_lost(&mut self, node: NodeNumber, now: Millis) -> bool {
        self.partition.link_lost(NodeId(node.0.into()));
        let follows = self.partition.leader() == Some(node);
        if follows {
            self.ticks.hurry(now);
        }
        follows
    }

    /// It looks for a leader at once: itself, as nobody else hurries.
    pub(crate) fn hurry(&mut self, now: Millis) {
        self.ticks.hurry(now);
    }

    /// The partition itself.
    pub fn partition(&self) -> &QueuePartition {
        &self.partition
    }

    /// The partition itself, to hand its leadership over.
    pub fn partition_mut(&mut self) -> &mut QueuePartition {
        &mut self.partition
    }

    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Takes in what concerns its files, and nothing else: it is about to end.
    pub(crate) fn come_to_rest(&mut self, completion: Completion, share: &mut Share) {
        self.reads -= usize::from(matches!(completion, Completion::Read(..)));
        if !matches!(completion, Completion::Extent(_) | Completion::Received(_) | Completion::Checkpoint) {
            return;
        }
        let (mut tail, mut out) = (Tail::new(0), Outputs::default());
        let mut cx = Context { now_ms: 0, tail: &mut tail, outlets: &mut Nobody, out: &mut out };
        self.complete(completion, &mut cx);
        share.out.jobs.append(&mut out.jobs);
    }

    /// Whether the group has let this member go, as was wanted of it.
    pub(crate) fn has_left(&self) -> bool {
        !self.partition.is_leading() && self.partition.replica().has_left()
    }

    /// The value at risk of its queues, for whoever asks the node.
    pub(crate) fn at_risk(&self) -> &Arc<AtomicU64> {
        &self.at_risk
    }

    /// Ends its part in the group, see [`QueuePartition::end`]. What was read for it would be taken for
    /// something of the next one.
    pub(crate) fn end(&mut self, share: &mut Share) -> Option<(Ticket, End)> {
        if self.reads > 0 {
            return None;
        }
        let end = self.partition.end(&mut share.out)?;
        share.count_index(&mut self.index_bytes, 0);
        self.at_risk.store(0, Ordering::Relaxed);
        Some(end)
    }

    fn complete(&mut self, completion: Completion, cx: &mut Context<'_>) -> bool {
        let partition = &mut self.partition;
        match completion {
            Completion::Written(ticket, bodies) => partition.wal_written(ticket, &bodies, cx),
            Completion::Synced(ticket) => partition.wal_synced(ticket, cx),
            Completion::Read(purpose, found) => {
                self.reads -= 1;
                partition.read_done(purpose, found, cx);
            }
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
                let before = partition.snapshots_installed();
                partition.checkpoint_saved(cx);
                if partition.snapshots_installed() > before {
                    let (partition, fetched) = (partition.id().0, partition.messages_fetched());
                    tracing::info!(
                        partition,
                        fetched,
                        "has its copy of the partition, as its leader's state and what came after; the log does not go back to the start"
                    );
                }
                return true;
            }
            Completion::Rolled => return true,
        }
        false
    }

    /// Carries out all that waits, in order. What follows is in `share`.
    pub(crate) fn step<E: Edge>(&mut self, now: Now, waiting: &mut Waiting, share: &mut Share, edge: &mut E) {
        let reads_before = share.out.reads.len();
        if let Some(first) = self.first.take() {
            share.out.append(*first);
        }
        let mut look = self.upkeep_at.is_some_and(|at| at <= now.ms);
        let mut taken = std::mem::take(&mut self.taken);
        self.completions.take(&mut taken);
        share.load.commands += waiting.messages();
        {
            let Share { tail, out, .. } = share;
            let mut cx = Context { now_ms: now.wall_ms, tail, outlets: edge, out };
            if self.ticks.stood_still(now.ms) {
                self.partition.stood_still(&mut cx);
                // Nobody else can have been elected where nobody else has a vote.
                if MembersView::of(self.partition.replica().group(), self.partition.replica().node()).is_alone() {
                    self.ticks.hurry(now.ms);
                }
            }
            for completion in taken.drain(..) {
                look |= self.complete(completion, &mut cx);
            }
            for (from, frame) in waiting.frames.drain(..) {
                self.partition.step(from, frame, &mut cx);
            }
            while let Some(tick) = self.ticks.take(now.ms) {
                if !tick.has_heartbeat {
                    self.partition.hold_heartbeat();
                }
                self.partition.tick(&mut cx);
                if tick.is_whole {
                    self.partition.tick_office(&mut cx);
                }
            }
        }
        self.partition.expect(&waiting.commands);
        for command in waiting.commands.drain(..) {
            let Share { tail, out, .. } = &mut *share;
            if edge.admits(self.partition.id(), &command, &out.effects) {
                let mut cx = Context { now_ms: now.wall_ms, tail, outlets: edge, out };
                self.partition.command(command, &mut cx);
            }
        }
        self.taken = taken;
        self.look_after_members(now.ms, share, edge);
        let Share { tail, out, .. } = &mut *share;
        self.partition.flush(&mut Context { now_ms: now.wall_ms, tail, outlets: edge, out });
        if !self.told_whole && !self.partition.replica().may_have_forgotten() {
            self.told_whole = true;
            share.whole.push(self.partition.id());
        }
        share.count_index(&mut self.index_bytes, self.partition.index_bytes());
        look |= share.index_bytes_kept(self.index_bytes) < self.index_bytes && self.partition.can_leave_the_log();
        if look {
            self.look_after_log(now, share, edge);
        }
        self.upkeep_at = match self.upkeep_at {
            _ if !self.partition.wants_maintenance() => None,
            Some(at) if !look && at > now.ms => Some(at),
            _ => Some(now.ms + UPKEEP_EVERY_MS),
        };
        // At least a millisecond later: what is due now was looked at.
        self.due_at = self.partition.due_ms().map(|due_ms| now.ms + due_ms.saturating_sub(now.wall_ms).max(1));
        self.at_risk.store(self.partition.values_at_risk(), Ordering::Relaxed);
        self.reads += share.out.reads.len() - reads_before;
    }

    fn look_after_log<E: Edge>(&mut self, now: Now, share: &mut Share, edge: &mut E) {
        let wal = share.wal_state(self.index_bytes);
        let Share { tail, out, .. } = &mut *share;
        self.partition.maintain(wal, &mut Context { now_ms: now.wall_ms, tail, outlets: edge, out });
        let needs = self.partition.needs_file(wal.current_file);
        share.note_needs(self.partition.id(), &mut self.told_needs, needs);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        self.upkeep_at.into_iter().chain(self.due_at).chain(self.ticks.next()).min()
    }

    pub(crate) fn take_given_up(&mut self) -> impl Iterator<Item = (QueueId, Reason, u64)> + use<> {
        self.partition.take_given_up()
    }

    pub(crate) fn survey(&self, figures: &mut Vec<QueueFigures>) {
        self.partition.survey(figures);
    }

    pub(crate) fn disk_figures(&self, only: Option<QueueId>, figures: &mut Vec<DiskFigures>) {
        self.partition.disk_figures(only, figures);
    }

    pub(crate) fn unwritten_bytes(&self, share: &Share) -> u64 {
        // Index beyond its budget is memory that waits for the disk like what is not written yet,
        // and holds publishers back with it. Where all is well extents are written long before.
        self.partition.in_flight_bytes() as u64 + share.index_bytes_over(self.index_bytes)
    }

    pub(crate) fn trim(&mut self) {
        self.partition.trim();
    }
}
