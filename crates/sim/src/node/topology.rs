//! The topology's group on a node: the server's own machine behind its log, on the same disk and
//! threads as the queues.
//!
//! Invariant: a change is applied before its proposer hears that it was decided, and in the order
//! of the log. Where clients speak through sessions, all that they use comes from here; elsewhere
//! what is declared shows that members agree, and nothing else.

use super::{Node, Running, StepOutput, View};
use crate::bug::Bug;
use crate::schedule::{MS, Micros};
use broker::topology::{
    ApplyTo, ClusterNode, Command as Change, CommandReply as Answer, DeleteQueue, Effect as Followed, FIRST_POOL, Home,
    MACHINE_VERSION, MachineVersions, Name, NodeStanding, PartitionPool, PartitionStage, Pattern, Policy,
    PoolPartition, PutPolicy, QueueType, Refusal, Topology, VhostDescription,
};
use broker::{NodeNumber, PartitionId, PoolId, VhostId};
use bytes::Bytes;
use consensus::{LogIndex, Membership, NodeId, Role};
use node::{Beginning, Knowledge, KnownQueue, Proposer, TopologyMember, Wish};
use partition::log_partition::{AppliedEntry, Machine};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use switch::Parcel;

/// The topology's group.
pub const TOPOLOGY: PartitionId = PartitionId(0);

/// The topology, what this node wants of it, and what became of that since somebody looked.
pub(super) struct Decided {
    pub(super) topology: Topology,
    wishes: VecDeque<(u64, Wish)>,
    /// Those that a wrong shell says to be decided as soon as they are proposed.
    hasty: Vec<u64>,
    decided: Vec<(u64, LogIndex)>,
    answers: Vec<(u64, Result<Answer, Refusal>)>,
    /// Carried out here, and not yet on every node that can be reached.
    done: VecDeque<(LogIndex, u64, Result<Answer, Refusal>)>,
    follows: Vec<Followed>,
    lost: Vec<u64>,
    knowledge: Knowledge,
    is_knowledge_used: Cell<bool>,
    bug: Option<Bug>,
}

impl Decided {
    /// The machine over what its node's disk holds.
    pub(super) fn new(state: Option<&Bytes>, bug: Option<Bug>, first: impl FnOnce() -> Topology) -> Decided {
        let topology = match state {
            Some(state) => Topology::decode_snapshot(state).expect("a checkpoint that was saved can be read"),
            None => first(),
        };
        let mut decided = Decided::of(topology, bug);
        if state.is_some() {
            decided.spoil(Bug::StateIsAltered);
        }
        decided
    }

    /// The machine with this state.
    pub(super) fn of(topology: Topology, bug: Option<Bug>) -> Decided {
        let (wishes, hasty, decided) = (VecDeque::new(), Vec::new(), Vec::new());
        let (answers, done, follows, lost) = (Vec::new(), VecDeque::new(), Vec::new(), Vec::new());
        let (knowledge, is_knowledge_used) = (Knowledge::Until(0), Cell::default());
        Decided { topology, done, wishes, hasty, decided, answers, follows, lost, knowledge, is_knowledge_used, bug }
    }

    /// What a wrong shell makes of a state that it takes over.
    fn spoil(&mut self, bug: Bug) {
        if self.bug == Some(bug)
            && let Some(queue) = self.topology.queues().map(|queue| queue.id).min()
        {
            self.topology.apply(&Change::DeleteQueue(DeleteQueue { queue, keep: Vec::new() }));
        }
    }
}

/// The last version by which durable classic queues have a copy on every node. Later ones bring partitions for which
/// nodes have no places here, but where a plan is about such queues.
pub(crate) const CLASSIC_EVERYWHERE: u32 = 10;

/// The topology that nodes begin with where partitions come to be by it.
/// `classic`: one of two is on one node.
pub(super) fn with_pools(members: &[NodeId], classic: bool) -> Topology {
    let mut topology = Topology::new();
    let members: Vec<NodeNumber> = members.iter().map(|node| NodeNumber(node.0 as u32)).collect();
    let pool = |name: &str, size: u32, target| PartitionPool {
        name: Name::from(name),
        replication_factor: size,
        target,
        serves_classic: size > POOL_SIZE,
        serves_quorum: true,
    };
    let version = if classic { MACHINE_VERSION } else { CLASSIC_EVERYWHERE };
    let can = MachineVersions { topology: version, queues: 1 };
    let put = |number: &NodeNumber| {
        let (name, address) = (Name::from(&*format!("n{}", number.0)), Name::from(&*format!("host{}:1", number.0)));
        let node = ClusterNode { name, address, standing: NodeStanding::Member, can };
        Change::PutNode { number: *number, node }
    };
    let everywhere = PoolPartition { pool: FIRST_POOL, members: members.clone(), stage: PartitionStage::Serving };
    let mut unlimited = amqp::Table::new();
    unlimited.push("delivery-limit", amqp::Value::I32(-1));
    let policy = Policy {
        pattern: Pattern::new("").expect("it is one"),
        apply_to: ApplyTo::Queues,
        priority: 0,
        definition: unlimited,
    };
    let description = VhostDescription { default_queue_type: Some(QueueType::Quorum), ..VhostDescription::default() };
    let changes = [
        Change::PutPool { id: FIRST_POOL, pool: pool("default", members.len() as u32, 1) },
        Change::PutPartition { id: PartitionId(1), partition: everywhere },
        Change::PutPool { id: PoolId(2), pool: pool("quorum-3", POOL_SIZE, if classic { 1 } else { 2 }) },
        Change::RaiseVersion { version },
        Change::DescribeVhost { vhost: VhostId(0), description },
        Change::PutPolicy(PutPolicy { vhost: VhostId(0), operator: false, name: Name::from("unlimited"), policy }),
    ];
    let on_one = classic.then(|| Change::PutPool { id: PoolId(3), pool: pool("quorum-1", 1, 1) });
    for change in members.iter().map(put).chain(changes).chain(on_one) {
        topology.apply(&change).outcome.expect("it is lawful");
    }
    topology
}

/// Copies of a quorum queue.
const POOL_SIZE: u32 = 3;

impl Proposer for Decided {
    fn next_wish(&mut self) -> Option<(Wish, u64)> {
        if self.bug == Some(Bug::KnowledgeIsAssumed) {
            let asked = self.wishes.iter().filter(|(_, wish)| *wish == Wish::CatchUp);
            self.answers.extend(asked.map(|(token, _)| (*token, Ok(Answer::Done))));
            self.wishes.retain(|(_, wish)| *wish != Wish::CatchUp);
        }
        let (token, wish) = self.wishes.pop_front()?;
        if self.bug == Some(Bug::DecisionIsEarly) && matches!(wish, Wish::Change(_)) {
            self.hasty.push(token);
        }
        Some((wish, token))
    }

    fn caught_up(&mut self, token: u64) {
        self.answers.push((token, Ok(Answer::Done)));
    }

    fn release(&mut self, up_to: LogIndex) {
        while self.done.front().is_some_and(|(at, ..)| *at <= up_to) {
            let (at, token, outcome) = self.done.pop_front().expect("it is in front");
            self.answers.push((token, outcome));
            if !matches!(self.bug, Some(Bug::DecisionIsEarly | Bug::DecisionIsLost)) {
                self.decided.push((token, at));
            }
        }
    }

    /// Whatever version of the machine the nodes of a run begin with, all of them are of this build.
    fn knows_leases(&self) -> bool {
        true
    }

    fn knows(&mut self, knowledge: Knowledge) {
        self.knowledge = match (self.bug, knowledge) {
            // A lease lasts for ever once it was had.
            (Some(Bug::LeaseLasts), Knowledge::Until(1..)) => Knowledge::ALL,
            (Some(Bug::LeaseLasts), _) => return,
            (_, knowledge) => knowledge,
        };
    }

    fn was_knowledge_used(&mut self) -> bool {
        self.is_knowledge_used.take()
    }

    fn homes(&self) -> Vec<NodeNumber> {
        self.topology.homes()
    }

    fn members_wanted(&self) -> Vec<NodeNumber> {
        self.topology.members_wanted(TOPOLOGY)
    }

    fn next_standing(&self, voters: &[NodeNumber]) -> Option<Bytes> {
        self.topology.next_standing(voters).map(|change| change.encode())
    }

    fn end_of(&self, node: NodeNumber) -> Bytes {
        Change::EndHome(Home { node, era: self.topology.era(node) }).encode()
    }
}

impl Machine for Decided {
    fn apply(&mut self, entry: AppliedEntry) {
        let change = Change::decode(&entry.data).expect("it was proposed here or elsewhere");
        // A refusal is an answer like any other.
        let applied = self.topology.apply(&change);
        self.follows.extend(applied.effects);
        self.done.extend(entry.token.filter(|token| *token != 0).map(|token| (entry.index, token, applied.outcome)));
    }

    fn lost(&mut self, token: u64) {
        self.lost.push(token);
    }

    fn snapshot(&self) -> Vec<u8> {
        self.topology.encode_snapshot().to_vec()
    }

    fn can_read(&self, state: &Bytes) -> bool {
        Topology::decode_snapshot(state).is_ok()
    }

    fn install(&mut self, state: &Bytes) {
        self.follows.extend(self.topology.install_snapshot(state).expect("it was looked at before"));
        self.spoil(Bug::SnapshotIsAltered);
    }
}

impl Node {
    /// Somebody here wants a change of the topology; nothing happens if the node is down.
    pub fn propose(&mut self, token: u64, change: &Change, out: &mut StepOutput) {
        self.wish(token, Wish::Change(change.encode()), out);
    }

    /// Somebody here wants something of the topology's group; nothing happens if the node is down.
    pub fn wish(&mut self, token: u64, wish: Wish, out: &mut StepOutput) {
        let Some(r) = self.running.as_mut() else { return };
        let Some((member, at)) = r.topology_mut() else { return };
        member.machine_mut().wishes.push_back((token, wish));
        self.wake(at, out);
    }

    /// A shard hears that a link to another node came or went.
    pub fn note_link<O>(&mut self, shard: usize, parcel: &Parcel<O>, now: Micros, out: &mut StepOutput) {
        let Some(r) = self.running.as_mut() else { return };
        let thread = &mut r.threads[shard];
        match parcel {
            Parcel::LinkUp(link) => thread.shard.link_up(NodeNumber(link.peer.node), &thread.waits),
            Parcel::LinkDown(node) => thread.shard.link_lost(*node, now / MS, &thread.waits),
            _ => return,
        }
        self.want_turn(shard, out);
    }

    /// How the topology's group stands here, if the node is up and has one.
    pub fn topology_view(&self) -> Option<View> {
        let log = self.running.as_ref()?.topology()?.log();
        let status = log.replica().group().status();
        Some(View {
            term: status.term,
            leads: status.role == Role::Leader,
            serves: log.is_leading(),
            leader: status.leader,
            applied: log.applied(),
            compacted: status.compacted.index,
            last: status.last.index,
            may_have_forgotten: log.replica().may_have_forgotten(),
            gave_up_waiting: log.replica().group().gave_up_waiting(),
        })
    }

    /// The members of the topology's group, as this node has them.
    pub fn topology_membership(&self) -> Option<Membership> {
        Some(self.running.as_ref()?.topology()?.log().replica().group().membership())
    }

    /// Whether whoever is answered here has waited for that node.
    pub fn topology_reaches(&self, other: NodeId) -> bool {
        let member = self.running.as_ref().and_then(Running::topology);
        member.is_some_and(|member| member.reaches(NodeNumber(other.number())))
    }

    /// Whether the topology here is all that anybody was answered.
    pub fn topology_knowledge(&self) -> Knowledge {
        let member = self.running.as_ref().and_then(Running::topology);
        member.map_or(Knowledge::Until(0), |member| {
            member.machine().is_knowledge_used.set(true);
            member.machine().knowledge
        })
    }

    /// The topology as it is known here.
    pub fn topology(&self) -> Option<&Topology> {
        Some(&self.running.as_ref()?.topology()?.machine().topology)
    }

    /// The same, for changes that concern this node only.
    pub fn topology_mut(&mut self) -> Option<&mut Topology> {
        let (member, _) = self.running.as_mut()?.topology_mut()?;
        Some(&mut member.machine_mut().topology)
    }

    /// Hands leadership of the topology's group to another member, if this one leads it.
    pub fn transfer_topology(&mut self, to: NodeId) {
        if let Some((member, _)) = self.running.as_mut().and_then(Running::topology_mut) {
            let _ = member.log_mut().replica_mut().group_mut().transfer_leadership(to);
        }
    }

    /// How many files of the log the topology's group keeps here, before the one that is written.
    pub fn topology_keeps_files(&self) -> u32 {
        let Some(r) = &self.running else { return 0 };
        let current_file = partition::place::file_u32(r.writer.wal().durable_file());
        r.topology().map_or(0, |member| current_file.saturating_sub(member.log().needs_file(current_file)))
    }
}

/// What a place looks at that a node has nothing of yet: how the node begins there, and with which queues.
#[derive(Clone, Debug)]
pub(super) struct Vacancy {
    pub(super) beginning: Beginning,
    pub(super) queues: Vec<KnownQueue>,
}

impl Node {
    /// Finds out of which groups it is to be a member again, by the map that it has heard.
    pub(super) fn look_for_returns(&mut self) {
        self.returns.clear();
        if !self.settings.returns || self.settings.pools {
            return;
        }
        for (at, id) in self.settings.partitions.iter().enumerate() {
            if self.settings.bug == Some(Bug::ReturnIsTheSame)
                && self.left[at] > 0
                && let Some(running) = self.running.as_mut().filter(|running| running.queues(at).is_some())
            {
                // It asks nobody whether it may go.
                let (shard, place) = running.places[at];
                running.threads[shard].shard.end_and_leave(place);
                running.threads[shard].waits.borrow_mut().wake(place);
            }
            let is_here = self.running.as_ref().is_some_and(|running| running.queues(at).is_some());
            let own = self.wanted[at].iter().find(|member| member.number() == self.id.number());
            let Some(own) = own.filter(|own| !is_here && own.life() > 0) else { continue };
            let queues = self.known[at].iter().map(|(queue, rules)| (*queue, rules.as_ref().map(|r| self.told(r))));
            let queues = queues.collect();
            let life = if self.settings.bug == Some(Bug::ReturnIsTheSame) { 0 } else { own.life() };
            self.returns.insert(*id, Vacancy { beginning: Beginning::Joins { life }, queues });
        }
    }
}

impl Running {
    /// Of these partitions how a node begins as a member of those that it has nothing of.
    pub(super) fn vacancies(&self, own: NodeId, partitions: &[PartitionId]) -> BTreeMap<PartitionId, Vacancy> {
        let Some(member) = self.topology() else { return BTreeMap::new() };
        let (topology, own) = (&member.machine().topology, NodeNumber(own.0 as u32));
        let here = |at: &usize| self.queues(*at).is_some();
        let vacant = (0..partitions.len()).filter(|at| !here(at)).map(|at| partitions[at]);
        vacant
            .map(|id| {
                let life = topology.life_in(id, own);
                let founders = topology.founders_of(id).filter(|_| topology.members_wanted(id).contains(&own));
                let beginning = match founders {
                    Some(founders) if life == 0 && founders.contains(&own) => Beginning::Founds {
                        founders: founders.to_vec(),
                        leads_first: topology.leads_first(id) == Some(own),
                    },
                    Some(_) => Beginning::Joins { life },
                    None => Beginning::NotKnown,
                };
                let queues = topology.queues().filter(|queue| queue.partition == id);
                let queues = queues.map(|queue| (queue.id, (!queue.rules.is_plain()).then(|| queue.rules.clone())));
                (id, Vacancy { beginning, queues: queues.collect() })
            })
            .collect()
    }

    pub(super) fn topology(&self) -> Option<&TopologyMember<Decided>> {
        let (shard, place) = self.directory.find(TOPOLOGY)?;
        self.threads[shard].shard.topology(place)
    }

    fn topology_mut(&mut self) -> Option<(&mut TopologyMember<Decided>, (usize, usize))> {
        let (shard, place) = self.directory.find(TOPOLOGY)?;
        Some((self.threads[shard].shard.topology_mut(place)?, (shard, place)))
    }

    /// Hands on what the topology decided in a turn.
    pub(super) fn topology_said(&mut self, out: &mut StepOutput) {
        let Some((member, _)) = self.topology_mut() else { return };
        let last = member.log().replica().group().status().last.index;
        let decided = member.machine_mut();
        let lost = &decided.lost;
        out.decided.extend(decided.hasty.drain(..).filter(|token| !lost.contains(token)).map(|token| (token, last)));
        out.decided.append(&mut decided.decided);
        out.answers.append(&mut decided.answers);
        out.follows.append(&mut decided.follows);
        out.lost.append(&mut decided.lost);
    }
}
