//! A place for a group of queues that this node has nothing of: other nodes have it, or it does not
//! exist. Once the map says that this node is to have a copy, it begins here as a member.
//!
//! Who founds a group knows its members from the beginning; who comes later learns them from its
//! leader. Either is in a checkpoint that is durable before the member says its first word, and from
//! then on a start finds it.
//!
//! Invariants: what is on the disk was looked at when the node started, so nobody who was a member
//! before begins here anew: a node that comes back to a group does so as another member of it, and not
//! before both of its checkpoints say so, in place of those that say that the one before has ended; nothing is said in the group's name before its checkpoint is saved. Who asks
//! for something hears that this node does not lead it.

use crate::Millis;
use crate::completions::{Completion, Completions};
use crate::opening::{raft, recovery_of};
use crate::queue_member::QueueMember;
use crate::shard::{Edge, Now};
use crate::share::Share;
use crate::waits::Waiting;
use broker::queue::Rules;
use broker::{NodeNumber, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{LogIndex, NodeId};
use partition::outputs::{Job, Ticket};
use partition::{Command, Context, Outputs, Reply, founding_checkpoint, refuse, returning_checkpoint};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How soon it is asked again what nobody knew.
const ASK_EVERY_MS: Millis = 300;

/// How a node begins as a member of a group of which it has nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Not at all, as far as the map says.
    Nothing,
    /// It is not known yet.
    NotKnown,
    /// It founds it with these, of which it is one.
    Founds {
        /// All of them.
        founders: Vec<NodeNumber>,
        /// It is to lead first.
        leads_first: bool,
    },
    /// It joins those that have it.
    Joins {
        /// How often it had left them before.
        life: u32,
    },
}

enum Stage {
    /// Nothing of it is here.
    Vacant,
    /// The first checkpoint is on its way to the disk; `again`: and once more behind that.
    Saving { payload: Bytes, replay_file: u32, leads_first: bool, life: u32, again: bool },
    /// It may be taken.
    Begun(Box<QueueMember>),
}

/// See the module.
pub struct VacantMember {
    id: PartitionId,
    own: NodeId,
    completions: Completions,
    taken: Vec<Completion>,
    at_risk: Arc<AtomicU64>,
    stage: Stage,
    told_needs: Option<u32>,
    look_at: Option<Millis>,
    /// The last write of a member that this node was before, of which the disk may still report.
    last_ticket: Ticket,
}

impl VacantMember {
    /// The place of a group on a node.
    pub fn new(id: PartitionId, own: NodeId, completions: Completions, at_risk: Arc<AtomicU64>) -> VacantMember {
        let (taken, stage, told_needs, look_at) = (Vec::new(), Stage::Vacant, None, Some(0));
        VacantMember { id, own, completions, taken, at_risk, stage, told_needs, look_at, last_ticket: Ticket(0) }
    }

    /// The place of a member that has ended here, and whose last write this was.
    pub(crate) fn behind(self, last_ticket: Ticket) -> VacantMember {
        VacantMember { last_ticket, ..self }
    }

    /// The member, once it has begun.
    pub(crate) fn take_begun(&mut self) -> Option<Box<QueueMember>> {
        match std::mem::replace(&mut self.stage, Stage::Vacant) {
            Stage::Begun(member) => Some(member),
            other => {
                self.stage = other;
                None
            }
        }
    }

    pub(crate) fn step<E: Edge>(&mut self, now: Now, waiting: &mut Waiting, share: &mut Share, edge: &mut E) {
        waiting.declared.clear();
        waiting.frames.clear();
        waiting.commands.drain(..).for_each(|command| refuse(command, Reply::NotLeader, &mut share.out.effects));
        let mut taken = std::mem::take(&mut self.taken);
        self.completions.take(&mut taken);
        let is_saved = taken.drain(..).any(|completion| matches!(completion, Completion::Checkpoint));
        self.taken = taken;
        self.look_at = None;
        match &self.stage {
            Stage::Vacant => self.look(now.ms, share, edge),
            Stage::Saving { again: true, .. } if is_saved => self.save_again(share),
            Stage::Saving { .. } if is_saved => self.begin(now, share, edge),
            Stage::Saving { .. } | Stage::Begun(_) => {}
        }
    }

    /// Looks whether this node is to have a copy.
    fn look<E: Edge>(&mut self, now: Millis, share: &mut Share, edge: &mut E) {
        let (payload, leads_first, life) = match edge.beginning(self.id) {
            Beginning::Founds { founders, leads_first } => {
                let founders: Vec<NodeId> = founders.iter().map(|node| NodeId(node.0.into())).collect();
                (founding_checkpoint(&founders), leads_first, 0)
            }
            Beginning::Joins { life } => (returning_checkpoint(life), false, life),
            Beginning::NotKnown => {
                self.look_at = Some(now + ASK_EVERY_MS);
                return share.note_needs(self.id, &mut self.told_needs, u32::MAX);
            }
            Beginning::Nothing => return share.note_needs(self.id, &mut self.told_needs, u32::MAX),
        };
        let replay_file = share.wal_state(0).current_file;
        // The log keeps that file from now on.
        share.note_needs(self.id, &mut self.told_needs, replay_file);
        let (payload, again) = (Bytes::from(payload), life > 0);
        self.save(&payload, replay_file, share);
        self.stage = Stage::Saving { payload, replay_file, leads_first, life, again };
    }

    fn save(&self, payload: &Bytes, replay_file: u32, share: &mut Share) {
        let (partition, payload, applied) = (self.id, payload.to_vec(), LogIndex(0));
        share.out.jobs.push(Job::SaveCheckpoint { partition, payload, applied, replay_file });
    }

    fn save_again(&mut self, share: &mut Share) {
        let Stage::Saving { payload, replay_file, again, .. } = &mut self.stage else { return };
        *again = false;
        let (payload, replay_file) = (payload.clone(), *replay_file);
        self.save(&payload, replay_file, share);
    }

    /// Begins as a member: what the checkpoint says is on the disk.
    fn begin<E: Edge>(&mut self, now: Now, share: &mut Share, edge: &mut E) {
        let Stage::Saving { payload, replay_file, leads_first, life, .. } =
            std::mem::replace(&mut self.stage, Stage::Vacant)
        else {
            return;
        };
        let recovery = recovery_of(self.id.0, Some((&payload, replay_file))).expect("it was written here");
        let own = NodeId::of(self.own.number(), life);
        let mut partition = recovery.finish(own, raft(own, self.id.0), &[]).expect("it says who its members are");
        partition.log_is_at(share.wal_state(0).current_file);
        partition.ask_for_queues();
        partition.replica_mut().write_behind(self.last_ticket);
        let mut out = Outputs::default();
        for (queue, rules) in edge.queues_of(self.id) {
            partition.queue_is_known(queue);
            let Share { tail, .. } = &mut *share;
            let mut cx = Context { now_ms: now.wall_ms, tail, outlets: edge, out: &mut out };
            rules.into_iter().for_each(|rules| partition.command(Command::Configure { queue, rules }, &mut cx));
        }
        share.seat_is_taken();
        let mut member = QueueMember::new(partition, out, self.completions.clone(), self.at_risk.clone(), true);
        if leads_first {
            member.hurry(now.ms);
        }
        tracing::debug!(partition = self.id.0, "begins as a member of the group");
        self.stage = Stage::Begun(Box::new(member));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        self.look_at
    }
}

/// A queue of a partition, with its rules where they are not plain.
pub type KnownQueue = (QueueId, Option<Arc<Rules>>);

#[cfg(test)]
mod tests {
    use super::*;
    use broker::{ChannelKey, ConsumerKey, NodeLife};
    use partition::{Effect, Outlets, QueuePartition, RequestId};

    /// What the map says.
    struct Map(Beginning);

    impl Outlets for Map {
        fn room(&mut self, _: ConsumerKey) -> usize {
            0
        }
    }

    impl Edge for Map {
        fn beginning(&mut self, _: PartitionId) -> Beginning {
            self.0.clone()
        }

        fn queues_of(&mut self, _: PartitionId) -> Vec<KnownQueue> {
            vec![(QueueId(4), None)]
        }

        fn take_effects(&mut self, _: PartitionId, _: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
            effects.clear();
        }
    }

    const ID: PartitionId = PartitionId(9);

    fn vacant() -> (VacantMember, Completions, Share) {
        let completions = Completions::default();
        let member = VacantMember::new(ID, NodeId(2), completions.clone(), Arc::default());
        (member, completions, Share::without_log())
    }

    fn step(member: &mut VacantMember, share: &mut Share, beginning: &Beginning, ms: Millis) {
        let mut waiting = Waiting::default();
        let channel = ChannelKey::of(NodeLife { node: 1, start: 1 }, 5);
        waiting.commands.push(Command::Get { queue: QueueId(4), channel, no_ack: true, request: RequestId(1) });
        share.out.effects.clear();
        member.step(Now { ms, wall_ms: ms }, &mut waiting, share, &mut Map(beginning.clone()));
        let answer = Effect::Reply { channel, request: RequestId(1), reply: Reply::NotLeader };
        assert_eq!(share.out.effects, [answer], "whatever it is about to be");
    }

    #[test]
    fn a_member_begins_once_its_checkpoint_is_saved_and_the_log_is_kept_for_it() {
        let founders: Vec<NodeNumber> = [2, 3, 5].map(NodeNumber).to_vec();
        for (beginning, voters) in [
            (Beginning::Founds { founders, leads_first: true }, vec![NodeId(2), NodeId(3), NodeId(5)]),
            (Beginning::Joins { life: 0 }, Vec::new()),
        ] {
            let (mut member, completions, mut share) = vacant();
            assert_eq!(member.poll_timeout(), Some(0), "it looks when its node starts");
            step(&mut member, &mut share, &Beginning::Nothing, 1);
            assert_eq!((&share.needs[..], member.poll_timeout()), (&[(ID, u32::MAX)][..], None));
            step(&mut member, &mut share, &beginning, 2);
            let [Job::SaveCheckpoint { partition: ID, replay_file, .. }] = share.out.jobs[..] else {
                panic!("{:?}", share.out.jobs)
            };
            assert_eq!(share.needs[1..], [(ID, replay_file)]);
            step(&mut member, &mut share, &beginning, 3);
            completions.put(Completion::Rolled);
            step(&mut member, &mut share, &beginning, 4);
            assert!(member.take_begun().is_none() && share.out.jobs.len() == 1, "it is on its way");
            completions.put(Completion::Checkpoint);
            step(&mut member, &mut share, &beginning, 5);
            let begun = member.take_begun().expect("it is saved");
            let membership = begun.partition().replica().group().membership();
            assert_eq!((begun.partition().id(), membership.voters), (ID, voters));
            assert!(share.out.frames.is_empty() && share.out.wal.is_empty(), "it has said nothing yet");
        }
    }

    #[test]
    fn who_comes_back_is_another_member_and_both_checkpoints_say_so_first() {
        let (member, completions, mut share) = vacant();
        let mut member = member.behind(Ticket(40));
        let beginning = Beginning::Joins { life: 3 };
        step(&mut member, &mut share, &beginning, 1);
        completions.put(Completion::Checkpoint);
        step(&mut member, &mut share, &beginning, 2);
        assert!(member.take_begun().is_none(), "the other one still says that the member before has ended");
        let [Job::SaveCheckpoint { payload: first, .. }, Job::SaveCheckpoint { payload: second, .. }] =
            &share.out.jobs[..]
        else {
            panic!("{:?}", share.out.jobs)
        };
        assert_eq!(first, second);
        completions.put(Completion::Checkpoint);
        step(&mut member, &mut share, &beginning, 3);
        let begun = member.take_begun().expect("both are saved");
        assert_eq!(begun.partition().replica().node(), NodeId::of(2, 3));
        assert!(share.out.frames.is_empty() && share.out.wal.is_empty(), "it has said nothing yet");
    }

    #[test]
    fn who_does_not_know_the_map_yet_asks_again() {
        let (mut member, _, mut share) = vacant();
        step(&mut member, &mut share, &Beginning::NotKnown, 10);
        assert_eq!(member.poll_timeout(), Some(10 + ASK_EVERY_MS));
        assert_eq!(share.needs, [(ID, u32::MAX)], "it holds nothing of the log");
        step(&mut member, &mut share, &Beginning::Nothing, 10 + ASK_EVERY_MS);
        assert_eq!((member.poll_timeout(), share.out.jobs.len()), (None, 0));
    }
}
