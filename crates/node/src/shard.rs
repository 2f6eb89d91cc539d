//! The partitions of one thread, and whose turn it is. Nothing here is shared, so nothing is
//! locked.
//!
//! Invariant: the sums and the earliest time are those of the members' last words, so that a turn
//! costs what it steps and not what there is: a node may have hundreds of partitions and one busy
//! one.

mod member;

pub use member::{Member, Partition};

use crate::durations::Stage;
use crate::ending_member::EndingMember;
use crate::queue_member::QueueMember;
use crate::share::Share;
use crate::standing::{MemberStanding, Voter};
use crate::topology_member::{Proposer, TopologyMember};
use crate::vacant_member::{Beginning, KnownQueue};
use crate::waits::{Intake, Waiting};
use crate::{Millis, NEVER};
use broker::queue::KeyMeter;
use broker::{NodeNumber, PartitionId, QueueId};
use consensus::NodeId;
use partition::entry::Reason;
use partition::{
    Command, DiskFigures, Effect, Outlets, PartitionFigures, QueueFigures, QueuePartition, TransientQueues,
};

/// How far a group has come that a shard leads, in indexes of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What commands became is there or before.
    pub last: u64,
    /// Up to here this node has written it.
    pub written: u64,
    /// Up to here it is on this node's disk.
    pub synced: u64,
    /// Up to here a majority has it on disk.
    pub committed: u64,
}

/// What time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the node started; never goes back.
    pub ms: Millis,
    /// Milliseconds since the epoch, as the wall clock has it.
    pub wall_ms: u64,
}

/// Where a shard's effects go: to the connections, or in a test to a list.
pub trait Edge: Outlets {
    /// A partition is about to be stepped. `queues`: it is a member of a group of queues.
    fn begin(&mut self, _partition: PartitionId, _queues: Option<&QueuePartition>) {}

    /// Whether a command is still to be carried out, now that these effects came of those before
    /// it.
    #[inline]
    fn admits(&mut self, _partition: PartitionId, _command: &Command, _effects: &[Effect]) -> bool {
        true
    }

    /// The members that the group of a partition, which has these nodes as its `members` now, is to have instead;
    /// none while nobody says.
    fn members_wanted(&mut self, _partition: PartitionId, _members: &[NodeNumber]) -> Vec<NodeId> {
        Vec::new()
    }

    /// Whether this member of the group of a partition is to leave it for good.
    fn is_to_leave(&mut self, _partition: PartitionId, _member: NodeId) -> bool {
        false
    }

    /// How this node begins as a member of the group of a partition of which it has nothing.
    fn beginning(&mut self, _partition: PartitionId) -> Beginning {
        Beginning::Nothing
    }

    /// The queues of a partition, as the topology here has them.
    fn queues_of(&mut self, _partition: PartitionId) -> Vec<KnownQueue> {
        Vec::new()
    }

    /// Who is to lead a partition instead of this node, which has led it for so long, where another one
    /// leads fewer.
    fn heir(&mut self, _partition: PartitionId, _led_ms: Millis) -> Option<NodeNumber> {
        None
    }

    /// What a node is called in the log.
    fn shown_node(&self, node: NodeNumber) -> String {
        format!("node {}", node.0)
    }

    /// The group of a partition that is damaged here is led by this node, or by nobody who is heard of,
    /// in this term.
    fn is_led(&mut self, _partition: PartitionId, _leader: Option<NodeNumber>, _term: u64) {}

    /// Takes all `effects` of one step of `partition`. Commands that follow from them wait for the
    /// next step.
    fn take_effects(&mut self, partition: PartitionId, queues: Option<&QueuePartition>, effects: &mut Vec<Effect>);
}

/// A partition and what it said of itself after its last step.
struct Seated<M> {
    id: PartitionId,
    member: Member<M>,
    timeout: Millis,
    unwritten_bytes: u64,
    key_bytes: u64,
}

/// See the module.
pub struct Shard<M> {
    members: Vec<Seated<M>>,
    share: Share,
    unwritten_bytes: u64,
    memory_bytes: u64,
    key_bytes: u64,
    earliest: Millis,
    due: Vec<usize>,
    waiting: Waiting,
    /// Places for which large messages wait until others are written.
    held: Vec<usize>,
    /// Bytes of these messages.
    held_bytes: u64,
    /// When that is looked at again, though nobody may wake the shard.
    held_until: Millis,
    /// Until then it counts as busy with messages in memory alone.
    serves_memory_until: Millis,
    serves_few_until: Millis,
}

/// How often a shard with such messages looks whether they may go on: it is woken by what is written before.
const HELD_LOOK_MS: Millis = 5;

/// So long after something waited for its transient queues a shard counts as busy with them, and likewise with consumers that
/// ack a few messages at a time.
const SERVES_MS: Millis = 1_000;
/// So many messages acked in one turn are few: who acks more has others at hand meanwhile.
const FEW_SETTLED: u64 = 32;

/// The place of a shard's transient queues among its partitions.
const TRANSIENT_PLACE: usize = 0;

impl<M: Proposer> Shard<M> {
    /// The shard with its transient queues, under this number, and these durable partitions, in the
    /// order of their places.
    pub fn new(transient: PartitionId, durable: Vec<(PartitionId, Member<M>)>, share: Share) -> Self {
        let transient = (transient, Member::Transient(Box::new(TransientQueues::new())));
        let all = std::iter::once(transient).chain(durable);
        let seated = |(id, member)| Seated { id, member, timeout: NEVER, unwritten_bytes: 0, key_bytes: 0 };
        let mut shard = Shard {
            members: all.map(seated).collect(),
            share,
            unwritten_bytes: 0,
            memory_bytes: 0,
            key_bytes: 0,
            earliest: NEVER,
            due: Vec::new(),
            waiting: Waiting::default(),
            held: Vec::new(),
            held_bytes: 0,
            held_until: NEVER,
            serves_memory_until: 0,
            serves_few_until: 0,
        };
        (0..shard.members.len()).for_each(|place| shard.note(place));
        shard
    }

    /// How many partitions there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Never: the transient queues are there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// One turn: every partition that something waits for is stepped once, and its effects are
    /// handed on before the next one is asked, so that no two of them count the same room at a
    /// connection twice. What the turn wants written, read, sent and done is in [`Shard::share`]
    /// afterwards, for the caller to take. False if nothing waited for anybody.
    pub fn step<E: Edge>(&mut self, now: Now, intake: &impl Intake, edge: &mut E) -> bool {
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        let may_go_on = !self.held.is_empty() && self.share.log_room() > 0;
        intake.with(|waits| {
            if may_go_on {
                self.held.drain(..).for_each(|place| waits.wake(place));
            }
            if self.earliest <= now.ms {
                let late = self.members.iter().enumerate().filter(|(_, seated)| seated.timeout <= now.ms);
                late.for_each(|(place, _)| waits.wake(place));
            }
            waits.take_due(&mut due);
        });
        let mut settled = 0_u64;
        for &place in &due {
            let Shard { members, share, waiting, held, .. } = self;
            let Seated { id, member, .. } = &mut members[place];
            intake.with(|waits| match waits.large_bytes(place) > 0 && place != TRANSIENT_PLACE {
                false => waits.swap(place, waiting),
                true => {
                    let is_all = waits.take_within(place, share.log_room(), waiting);
                    if !is_all && !held.contains(&place) {
                        held.push(place);
                    }
                }
            });
            if place == TRANSIENT_PLACE && !waiting.is_empty() {
                self.serves_memory_until = now.ms + SERVES_MS;
            }
            settled = settled.saturating_add(waiting.settled());
            edge.begin(*id, member.queues());
            member.step(now, waiting, share, edge);
            assert!(waiting.commands.is_empty(), "a step carries out all of its commands");
            if let Member::Vacant(vacant) = member
                && let Some(begun) = vacant.take_begun()
            {
                *member = Member::Queues(begun);
                intake.with(|waits| waits.wake(place));
            }
            if let Member::Quarantined(member) = member {
                edge.is_led(*id, member.leader(), member.term());
            }
            edge.take_effects(*id, member.queues(), &mut share.out.effects);
            assert!(share.out.effects.is_empty(), "the edge takes all effects");
            if member.changes_seats(share) {
                intake.with(|waits| waits.wake(place));
            }
        }
        due.iter().for_each(|place| self.note(*place));
        self.note_held(now.ms, intake);
        self.share.load.serves_memory = now.ms < self.serves_memory_until;
        if (1..=FEW_SETTLED).contains(&settled) {
            self.serves_few_until = now.ms + SERVES_MS;
        }
        self.share.load.serves_few = now.ms < self.serves_few_until;
        let is_any = !due.is_empty();
        if is_any {
            self.share.end_turn();
        }
        self.due = due;
        is_any
    }

    /// Takes down what waits until others are written.
    fn note_held(&mut self, now: Millis, intake: &impl Intake) {
        if self.held.is_empty() && self.held_bytes == 0 {
            return;
        }
        self.held_bytes = intake.with(|waits| self.held.iter().map(|place| waits.large_bytes(*place)).sum());
        self.held_until = if self.held.is_empty() { NEVER } else { now + HELD_LOOK_MS };
    }

    /// Takes down what a partition says of itself now.
    fn note(&mut self, place: usize) {
        let Shard { members, share, .. } = self;
        let seated = &mut members[place];
        let unwritten = seated.member.unwritten_bytes(share);
        self.unwritten_bytes = self.unwritten_bytes - seated.unwritten_bytes + unwritten;
        seated.unwritten_bytes = unwritten;
        let keys = seated.member.key_meter().map_or(0, KeyMeter::bytes);
        self.key_bytes = self.key_bytes - seated.key_bytes + keys;
        seated.key_bytes = keys;
        if place == TRANSIENT_PLACE {
            self.memory_bytes = seated.member.memory_bytes();
        }
        let before = std::mem::replace(&mut seated.timeout, seated.member.poll_timeout().unwrap_or(NEVER));
        if seated.timeout <= self.earliest {
            self.earliest = seated.timeout;
        } else if before == self.earliest {
            self.earliest = self.members.iter().map(|seated| seated.timeout).min().unwrap_or(NEVER);
        }
    }

    /// There is a link to another node.
    pub fn link_up(&mut self, node: NodeNumber, intake: &impl Intake) {
        for (place, seated) in self.members.iter_mut().enumerate() {
            match &mut seated.member {
                Member::Queues(member) => member.link_up(),
                Member::Topology(member) => {
                    member.link_up(node);
                    intake.with(|waits| waits.wake(place));
                }
                _ => {}
            }
        }
    }

    /// The link to another node is gone: partitions that follow it there look for another leader at
    /// once.
    pub fn link_lost(&mut self, node: NodeNumber, now: Millis, intake: &impl Intake) {
        for (place, seated) in self.members.iter_mut().enumerate() {
            let follows = match &mut seated.member {
                Member::Queues(member) => member.link_lost(node, now),
                Member::Topology(member) => member.link_lost(node, now),
                Member::Quarantined(member) => member.link_lost(node),
                _ => false,
            };
            if follows {
                intake.with(|waits| waits.wake(place));
            }
        }
    }

    /// What the partitions want done.
    pub fn share(&mut self) -> &mut Share {
        &mut self.share
    }

    /// The member of a group of queues at a place.
    pub fn queues(&self, place: usize) -> Option<&QueueMember> {
        match &self.members.get(place)?.member {
            Member::Queues(member) => Some(member),
            _ => None,
        }
    }

    /// The member of a group of queues at a place.
    pub fn queues_mut(&mut self, place: usize) -> Option<&mut QueueMember> {
        match &mut self.members.get_mut(place)?.member {
            Member::Queues(member) => Some(member),
            _ => None,
        }
    }

    /// Ends the part of this node in the group of queues at a place, which has to be woken then. It
    /// keeps its place.
    ///
    /// - Before: a majority of the group's voters have applied the change of members by which the
    ///   node left.
    pub fn end(&mut self, place: usize) {
        self.end_as(place, EndingMember::new);
    }

    /// The same, and its place is vacant then: whoever says so knows that it may come back.
    pub fn end_and_leave(&mut self, place: usize) {
        self.end_as(place, EndingMember::of_one_that_left);
    }

    fn end_as(&mut self, place: usize, ending: impl FnOnce(QueueMember) -> EndingMember) {
        let Seated { id, member, .. } = &mut self.members[place];
        // It may have led the group, and taken somebody in.
        self.share.has_grown(*id);
        let vacant = Member::Transient(Box::new(TransientQueues::new()));
        *member = match std::mem::replace(member, vacant) {
            Member::Queues(queues) => Member::Ending(Box::new(ending(*queues))),
            other => other,
        };
    }

    /// The group that ends, or has ended, at a place.
    pub fn ending(&self, place: usize) -> Option<&EndingMember> {
        match &self.members.get(place)?.member {
            Member::Ending(member) => Some(member),
            _ => None,
        }
    }

    /// The member of the topology's group, if it is at this place.
    pub fn topology(&self, place: usize) -> Option<&TopologyMember<M>> {
        match &self.members.get(place)?.member {
            Member::Topology(member) => Some(member),
            _ => None,
        }
    }

    /// The member of the topology's group, if it is at this place.
    pub fn topology_mut(&mut self, place: usize) -> Option<&mut TopologyMember<M>> {
        match &mut self.members.get_mut(place)?.member {
            Member::Topology(member) => Some(member),
            _ => None,
        }
    }

    /// Appends what is in the queues of all partitions.
    pub fn survey(&self, figures: &mut Vec<QueueFigures>) {
        self.members.iter().for_each(|seated| seated.member.survey(figures));
    }

    /// Appends what the queues that are led here have on the disk, or this one of them alone.
    pub fn disk_figures(&self, only: Option<QueueId>, figures: &mut Vec<DiskFigures>) {
        for seated in &self.members {
            if let Member::Queues(member) = &seated.member {
                member.disk_figures(only, figures);
            }
        }
    }

    /// The partitions of whose queues a [`survey`](Self::survey) tells: those in memory, and those that this shard's
    /// member leads and has applied what a leader has to. Of any other it says nothing, whatever is in them. Each comes
    /// with who has a vote in it; about what is in memory nobody votes.
    pub fn surveyed(&self) -> impl Iterator<Item = (PartitionId, Vec<Voter>)> {
        let told = self.members.iter().filter(|seated| seated.member.tells_of_queues());
        told.map(|seated| (seated.id, seated.member.queue_voters()))
    }

    /// Messages that ended and became no dead letters, by queue and reason, since this was asked before.
    pub fn take_given_up(&mut self) -> Vec<(QueueId, Reason, u64)> {
        let mut all = Vec::new();
        for seated in &mut self.members {
            match &mut seated.member {
                Member::Transient(queues) => all.extend(queues.take_given_up()),
                Member::Queues(member) => all.extend(member.take_given_up()),
                Member::Topology(_)
                | Member::Quarantined(_)
                | Member::Ending(_)
                | Member::Vacant(_)
                | Member::Other(_) => {}
            }
        }
        all
    }

    /// The groups of queues that this shard has a member of.
    pub fn group_figures(&self) -> Vec<PartitionFigures> {
        self.queue_members().map(|member| member.partition().group_figures()).collect()
    }

    /// A group that this shard leads and that has proposed what is not committed: up to which index.
    pub fn proposed(&self) -> Option<(PartitionId, u64)> {
        self.queue_members().find_map(|member| {
            let status = member.partition().replica().group().status();
            let is_proposed = status.role == consensus::Role::Leader && status.last.index > status.commit;
            is_proposed.then_some((member.partition().id(), status.last.index.0))
        })
    }

    /// Up to which index a group is committed, if this shard leads it; and the stage that its entries pass until then.
    pub fn committed(&self, partition: PartitionId) -> Option<(u64, Stage)> {
        let member = self.queue_members().find(|member| member.partition().id() == partition)?;
        let replica = member.partition().replica();
        let stage = if replica.is_alone() { Stage::Alone } else { Stage::Replicate };
        replica.group().is_leader().then(|| (replica.group().commit().0, stage))
    }

    /// How far a group has come, if this shard leads it.
    pub fn progress(&self, partition: PartitionId) -> Option<Progress> {
        let member = self.queue_members().find(|member| member.partition().id() == partition)?;
        let partition = member.partition();
        let status = partition.replica().group().status();
        let written = partition.replica().own_written().0.max(status.persisted.0);
        let (last, synced, committed) = (partition.last_index().0, status.persisted.0, status.commit.0);
        (status.role == consensus::Role::Leader).then_some(Progress { last, written, synced, committed })
    }

    fn queue_members(&self) -> impl Iterator<Item = &QueueMember> {
        self.members.iter().filter_map(|seated| match &seated.member {
            Member::Queues(member) => Some(&**member),
            _ => None,
        })
    }

    /// Appends how each member of a group stands.
    pub fn standings(&self, standings: &mut Vec<MemberStanding>) {
        standings.extend(self.members.iter().filter_map(|seated| match &seated.member {
            Member::Queues(member) => Some(member.standing()),
            Member::Topology(member) => Some(member.standing()),
            Member::Quarantined(_) => Some(MemberStanding::damaged(seated.id)),
            _ => None,
        }));
    }

    /// The node ends: each group that has members elsewhere writes up to where it has applied its log.
    pub fn note_applied(&mut self) {
        let out = &mut self.share.out;
        for seated in &mut self.members {
            let (replica, applied) = match &mut seated.member {
                Member::Queues(member) => {
                    let partition = member.partition_mut();
                    let applied = partition.applied();
                    (partition.replica_mut(), applied)
                }
                Member::Topology(member) => {
                    let applied = member.log().applied();
                    (member.log_mut().replica_mut(), applied)
                }
                _ => continue,
            };
            if !replica.is_alone() {
                replica.note_applied(applied, out);
            }
        }
    }

    /// Gives the memory of a burst back; for when nothing is going on.
    pub fn trim(&mut self) {
        self.waiting.trim();
        self.share.out.effects = Vec::new();
        self.members.iter_mut().for_each(|seated| seated.member.trim());
    }

    /// When a partition wants its next step.
    pub fn poll_timeout(&self) -> Option<Millis> {
        let earliest = self.earliest.min(self.held_until);
        (earliest != NEVER).then_some(earliest)
    }

    /// Proposed and not yet written, all partitions together, and what cannot be proposed before that is written.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes + self.held_bytes
    }

    /// Whether some of those bytes wait for this node alone: no other one is a member of their group.
    pub fn has_own_unwritten(&self) -> bool {
        let is_own = |seated: &Seated<M>| seated.unwritten_bytes > 0 && !seated.member.has_others();
        !self.held.is_empty() || self.unwritten_bytes > 0 && self.members.iter().any(is_own)
    }

    /// Memory of the keys that queues with deduplication remember.
    pub fn key_bytes(&self) -> u64 {
        self.key_bytes
    }

    /// Memory that messages in the transient queues pin. It falls between steps too, when a socket
    /// has taken the last slice of a batch.
    pub fn memory_bytes(&mut self) -> u64 {
        self.note(TRANSIENT_PLACE);
        self.memory_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauges::LogGauges;
    use crate::share::ShareLimits;
    use crate::topology_member::{Knowledge, Wish};
    use crate::waits::{Waits, publish};
    use broker::{ChannelKey, ConsumerKey};
    use bytes::Bytes;
    use partition::Disposition;
    use partition::log_partition::{AppliedEntry, Machine};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// A partition that says what it is told to say, and counts its steps.
    #[derive(Clone, Default)]
    struct Told {
        timeout: Rc<Cell<Option<Millis>>>,
        bytes: Rc<Cell<u64>>,
        steps: Rc<Cell<u32>>,
        taken: Rc<Cell<usize>>,
    }

    impl Partition for Told {
        fn declare(&mut self, _: QueueId) {}

        fn step(&mut self, _: Millis, commands: &mut Vec<Command>, _: &mut Vec<Effect>, _: &mut dyn Outlets) {
            self.taken.set(self.taken.get() + commands.len());
            commands.clear();
            self.steps.set(self.steps.get() + 1);
        }

        fn poll_timeout(&self) -> Option<Millis> {
            self.timeout.get()
        }

        fn unwritten_bytes(&self) -> u64 {
            self.bytes.get()
        }
    }

    struct Nobody;
    impl Outlets for Nobody {
        fn room(&mut self, _: ConsumerKey) -> usize {
            0
        }
    }
    impl Edge for Nobody {
        fn take_effects(&mut self, _: PartitionId, _: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
            effects.clear();
        }
    }

    /// Nothing is decided here.
    struct NoTopology;
    impl Machine for NoTopology {
        fn apply(&mut self, _: AppliedEntry) {}
        fn lost(&mut self, _: u64) {}
        fn snapshot(&self) -> Vec<u8> {
            Vec::new()
        }
        fn can_read(&self, _: &Bytes) -> bool {
            false
        }
        fn install(&mut self, _: &Bytes) {}
    }
    impl Proposer for NoTopology {
        fn knows_leases(&self) -> bool {
            true
        }

        fn knows(&mut self, _: Knowledge) {}

        fn was_knowledge_used(&mut self) -> bool {
            true
        }

        fn next_wish(&mut self) -> Option<(Wish, u64)> {
            None
        }
        fn caught_up(&mut self, _: u64) {}
        fn release(&mut self, _: crate::LogIndex) {}
        fn homes(&self) -> Vec<NodeNumber> {
            Vec::new()
        }
        fn members_wanted(&self) -> Vec<NodeNumber> {
            Vec::new()
        }
        fn next_standing(&self, _: &[NodeNumber]) -> Option<Bytes> {
            None
        }
        fn end_of(&self, _: NodeNumber) -> Bytes {
            Bytes::new()
        }
    }

    #[test]
    fn partitions_are_stepped_for_commands_and_at_their_time_and_their_sums_follow() {
        let told: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        told[1].timeout.set(Some(50));
        let other = |t: &Told| Member::<NoTopology>::Other(Box::new(t.clone()));
        let durable = (1..).map(PartitionId).zip(told.iter().map(other)).collect();
        let mut shard = Shard::new(PartitionId(1 << 31), durable, Share::without_log());
        let waits = RefCell::new(Waits::new(shard.len()));
        let steps = || told.iter().map(|t| t.steps.get()).collect::<Vec<_>>();
        let at = |ms| Now { ms, wall_ms: 0 };
        assert_eq!(shard.poll_timeout(), Some(50));
        told[0].bytes.set(100);
        waits.borrow_mut().push(1, Command::Reopen { queue: QueueId(1) });
        shard.step(at(49), &waits, &mut Nobody);
        assert_eq!((steps(), shard.unwritten_bytes()), (vec![1, 0, 0], 100));
        assert!(shard.has_own_unwritten(), "no other node has a part in it");
        told[1].timeout.set(Some(70));
        told[1].bytes.set(7);
        shard.step(at(50), &waits, &mut Nobody);
        assert_eq!((steps(), shard.unwritten_bytes(), shard.poll_timeout()), (vec![1, 1, 0], 107, Some(70)));
        told[0].bytes.set(0);
        told[0].timeout.set(Some(60));
        waits.borrow_mut().push(1, Command::Reopen { queue: QueueId(1) });
        shard.step(at(51), &waits, &mut Nobody);
        assert_eq!((shard.unwritten_bytes(), shard.poll_timeout()), (7, Some(60)));
        told[0].timeout.set(None);
        told[1].timeout.set(None);
        shard.step(at(80), &waits, &mut Nobody);
        assert_eq!((steps(), shard.poll_timeout()), (vec![3, 2, 0], None));
    }

    #[test]
    fn a_shard_whose_consumers_ack_a_few_messages_at_a_time_counts_as_busy_with_them_for_a_second() {
        let durable = vec![(PartitionId(1), Member::<NoTopology>::Other(Box::new(Told::default())))];
        let mut shard = Shard::new(PartitionId(1 << 31), durable, Share::without_log());
        let waits = RefCell::new(Waits::new(shard.len()));
        let mut is_busy = |ms, acked: &[u64]| {
            for count in acked {
                let (holder, outcome) = (ConsumerKey { channel: ChannelKey(7), number: 1 }, Disposition::Ack);
                let acked = Command::Settle { queue: QueueId(1), holder, first: 0, count: *count, outcome };
                waits.borrow_mut().push(1, acked);
            }
            shard.step(Now { ms, wall_ms: 0 }, &waits, &mut Nobody);
            std::mem::take(&mut shard.share().load).serves_few
        };
        assert!(!is_busy(10, &[]));
        assert!(!is_busy(20, &[FEW_SETTLED + 1]) && !is_busy(30, &[1; FEW_SETTLED as usize + 1]), "many");
        assert!(is_busy(40, &[1, 1]));
        assert!(is_busy(1_039, &[3_000]) && is_busy(1_039, &[]));
        assert!(!is_busy(1_040, &[]));
    }

    #[test]
    fn a_shard_that_had_to_do_with_messages_in_memory_counts_as_busy_with_them_for_a_second() {
        let durable = vec![(PartitionId(1), Member::<NoTopology>::Other(Box::new(Told::default())))];
        let mut shard = Shard::new(PartitionId(1 << 31), durable, Share::without_log());
        let waits = RefCell::new(Waits::new(shard.len()));
        let mut is_busy = |ms, place: Option<usize>| {
            place.into_iter().for_each(|place| waits.borrow_mut().push(place, Command::Reopen { queue: QueueId(1) }));
            shard.step(Now { ms, wall_ms: 0 }, &waits, &mut Nobody);
            std::mem::take(&mut shard.share().load).serves_memory
        };
        assert!(!is_busy(10, Some(1)), "that queue is on the disk");
        assert!(is_busy(20, Some(TRANSIENT_PLACE)));
        assert!(is_busy(1_019, Some(1)) && is_busy(1_019, None));
        assert!(!is_busy(1_020, Some(1)));
    }

    #[test]
    fn large_messages_to_many_partitions_go_to_the_log_one_after_the_other() {
        let told: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        let other = |t: &Told| Member::<NoTopology>::Other(Box::new(t.clone()));
        let durable = (1..).map(PartitionId).zip(told.iter().map(other)).collect();
        let gauges = Arc::<LogGauges>::default();
        let limits = ShareLimits { checkpoint_lag_files: 1, index_bytes_max: 0, partitions: 3 };
        let share = Share::new(partition::Tail::new(0), limits, gauges.clone());
        let mut shard = Shard::new(PartitionId(1 << 31), durable, share);
        let waits = RefCell::new(Waits::new(shard.len()));
        let at = |ms| Now { ms, wall_ms: 0 };
        let size = 16 << 20;
        (1..=3).for_each(|place| waits.borrow_mut().push(place, publish(1, size)));
        // The first turn's are on their way to the log: what the others have waits for them.
        gauges.waiting_bytes.store(size as u64, Ordering::Relaxed);
        shard.step(at(1), &waits, &mut Nobody);
        let taken = || told.iter().map(|t| t.taken.get()).collect::<Vec<_>>();
        assert_eq!((taken(), shard.unwritten_bytes(), shard.poll_timeout()), (vec![0; 3], 3 * size as u64, Some(6)));
        assert!(shard.has_own_unwritten(), "somebody will come back to it");
        assert!(!shard.step(at(6), &waits, &mut Nobody), "nothing is written yet");
        gauges.waiting_bytes.store(0, Ordering::Relaxed);
        shard.step(at(7), &waits, &mut Nobody);
        assert_eq!((taken(), shard.unwritten_bytes(), shard.poll_timeout()), (vec![1; 3], 0, None));
    }

    #[test]
    fn a_group_that_ends_here_lets_the_others_take_members_in() {
        let other = |_| Member::<NoTopology>::Other(Box::new(Told::default()));
        let durable = (1..).map(PartitionId).zip((0..2).map(other)).collect();
        let mut shard = Shard::new(PartitionId(1 << 31), durable, Share::without_log());
        shard.share().grows(PartitionId(1));
        assert!(!shard.share().may_grow(PartitionId(2)), "one after the other");
        shard.end(1);
        assert!(shard.share().may_grow(PartitionId(2)));
    }
}
