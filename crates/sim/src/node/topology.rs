//! The topology's group on a node: the server's own machine behind its log, on the same disk and threads as the queues.
//!
//! Invariant: a change is applied before its proposer hears that it was decided, and in the order of the log. Where
//! clients speak through sessions, all that they use comes from here; elsewhere what is declared shows that members agree, and nothing else.

use super::{Node, Running, StepOutput, View};
use crate::bug::Bug;
use broker::PartitionId;
use broker::topology::{Command as Change, CommandReply as Answer, DeleteQueue, Effect as Followed, Refusal, Topology};
use bytes::Bytes;
use consensus::{LogIndex, NodeId, Role};
use node::Completion;
use partition::log_partition::{AppliedEntry, Machine};
use partition::{LogPartition, PeerFrame, WalState};

/// The topology's group.
pub const TOPOLOGY: PartitionId = PartitionId(0);

/// A member of the topology's group.
pub(super) struct Member {
    log: LogPartition,
    decided: Decided,
    proposals: Vec<(u64, Bytes)>,
}

/// The topology, and what became of this node's proposals since somebody looked.
struct Decided {
    topology: Topology,
    decided: Vec<(u64, LogIndex)>,
    answers: Vec<(u64, Result<Answer, Refusal>)>,
    follows: Vec<Followed>,
    lost: Vec<u64>,
    bug: Option<Bug>,
}

impl Decided {
    /// What a wrong shell makes of a state that it takes over.
    fn spoil(&mut self, bug: Bug) {
        if self.bug == Some(bug)
            && let Some(queue) = self.topology.queues().map(|queue| queue.id).min()
        {
            self.topology.apply(&Change::DeleteQueue(DeleteQueue { queue, keep: Vec::new() }));
        }
    }
}

impl Machine for Decided {
    fn apply(&mut self, entry: AppliedEntry) {
        let change = Change::decode(&entry.data).expect("it was proposed here or elsewhere");
        // A refusal is an answer like any other.
        let applied = self.topology.apply(&change);
        self.follows.extend(applied.effects);
        self.answers.extend(entry.token.map(|token| (token, applied.outcome)));
        let is_told = !matches!(self.bug, Some(Bug::DecisionIsEarly | Bug::DecisionIsLost));
        self.decided.extend(entry.token.filter(|_| is_told).map(|token| (token, entry.index)));
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

impl Member {
    /// A member over what its node's disk holds.
    pub(super) fn new(log: LogPartition, state: Option<Bytes>, bug: Option<Bug>) -> Member {
        let topology = match &state {
            Some(state) => Topology::decode_snapshot(state).expect("a checkpoint that was saved can be read"),
            None => Topology::new(),
        };
        let (decided, answers, follows, lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut decided = Decided { topology, decided, answers, follows, lost, bug };
        if state.is_some() {
            decided.spoil(Bug::StateIsAltered);
        }
        Member { log, decided, proposals: Vec::new() }
    }
}

impl Node {
    /// Somebody here wants a change of the topology; nothing happens if the node is down.
    pub fn propose(&mut self, token: u64, change: &Change, out: &mut StepOutput) {
        let Some(member) = self.running.as_mut().and_then(|r| r.topology.as_mut()) else { return };
        member.proposals.push((token, change.encode()));
        self.want_turn(out);
    }

    /// How the topology's group stands here, if the node is up and has one.
    pub fn topology_view(&self) -> Option<View> {
        let member = self.running.as_ref()?.topology.as_ref()?;
        let status = member.log.replica().group().status();
        Some(View {
            term: status.term,
            leads: status.role == Role::Leader,
            serves: member.log.is_leading(),
            leader: status.leader,
            applied: member.log.applied(),
            compacted: status.compacted.index,
            last: status.last.index,
            may_have_forgotten: member.log.replica().may_have_forgotten(),
            gave_up_waiting: member.log.replica().group().gave_up_waiting(),
        })
    }

    /// The topology as it is known here.
    pub fn topology(&self) -> Option<&Topology> {
        let member = self.running.as_ref()?.topology.as_ref()?;
        Some(&member.decided.topology)
    }

    /// The same, for changes that concern this node only.
    pub fn topology_mut(&mut self) -> Option<&mut Topology> {
        let member = self.running.as_mut()?.topology.as_mut()?;
        Some(&mut member.decided.topology)
    }

    /// Hands leadership of the topology's group to another member, if this one leads it.
    pub fn transfer_topology(&mut self, to: NodeId) {
        if let Some(member) = self.running.as_mut().and_then(|r| r.topology.as_mut()) {
            let _ = member.log.replica_mut().group_mut().transfer_leadership(to);
        }
    }

    /// How many files of the log the topology's group keeps here, before the one that is written.
    pub fn topology_keeps_files(&self) -> u32 {
        let Some(r) = &self.running else { return 0 };
        let current_file = partition::place::file_u32(r.writer.wal().durable_file());
        r.topology.as_ref().map_or(0, |member| current_file.saturating_sub(member.log.needs_file(current_file)))
    }
}

impl Running {
    /// The topology's part of a turn.
    pub(super) fn topology_turn(
        &mut self,
        frames: &[(NodeId, usize, PeerFrame)],
        (ticks, now_ms, look): (u32, u64, bool),
        wal: WalState,
        out: &mut StepOutput,
    ) {
        let number = self.partitions.len();
        let Some(Member { log, decided, proposals }) = self.topology.as_mut() else { return };
        let (bug, mut look) = (decided.bug, look);
        for completion in self.completions[number].drain(..) {
            match completion {
                Completion::Written(ticket, bodies) => log.wal_written(ticket, &bodies, &mut self.out),
                Completion::Synced(ticket) => log.wal_synced(ticket, &mut self.out),
                Completion::Read(purpose, found) => log.read_done(purpose, found, &mut self.out),
                Completion::Checkpoint => log.checkpoint_saved(decided, &mut self.out),
                Completion::Rolled => {}
                Completion::Extent(_) | Completion::Received(_) => unreachable!("the topology writes no extents"),
            }
        }
        for (from, _, frame) in frames.iter().filter(|f| f.1 == number) {
            if bug != Some(Bug::PullsAreLost) || !matches!(frame, PeerFrame::PullImage { .. }) {
                log.step(*from, frame.clone(), decided, &mut self.out);
            }
        }
        (0..ticks).for_each(|_| log.tick());
        for (token, change) in proposals.drain(..) {
            if !log.propose(&change, token, decided) {
                decided.lost.push(token);
            } else if bug == Some(Bug::DecisionIsEarly) {
                decided.decided.push((token, log.replica().group().status().last.index));
            }
        }
        log.flush(now_ms, decided, &mut self.out);
        look &= bug != Some(Bug::TopologyIsKept);
        if look {
            log.maintain(wal, now_ms, decided, &mut self.out);
            let needs = log.needs_file(wal.current_file);
            if self.told_needs[number].replace(needs) != Some(needs) {
                self.queue.needs(TOPOLOGY, needs);
            }
        }
        out.decided.append(&mut decided.decided);
        out.answers.append(&mut decided.answers);
        out.follows.append(&mut decided.follows);
        out.lost.append(&mut decided.lost);
    }
}
