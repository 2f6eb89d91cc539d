//! Commands on their way to partitions, gathered while the sockets of a shard are read.
//!
//! Invariant: commands of one shard to one partition keep their order, and a queue is declared
//! before commands for it arrive. Nothing here is locked: what stays on the shard is a push to a
//! vector, what leaves it waits for the end of the step and goes over as one batch.

use crate::directory::Directory;
use crate::leaders::Leaders;
use crate::parcel::Parcel;
use crate::roads::{Frames, LinkUp, Roads};
use crate::settles::{Run, Settles, Sitting, Way};
use crate::unanswered::unanswered;
use broker::{ChannelKey, NodeLife, PartitionId, QueueId};
use node::{NodeId, Waits};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Message, PeerFrame, RequestId};
use std::task::Waker;

/// What waits for partitions, here and on other shards.
pub struct Inbox<O> {
    shard: usize,
    directory: Directory,
    leaders: Leaders,
    /// What is for other nodes.
    pub(crate) roads: Roads,
    /// What was settled, and may have to be told again.
    settles: Settles,
    /// The key of the shard itself, which asks whether that is applied.
    own_key: ChannelKey,
    /// What is answered here, as the node that has the partition in its memory cannot be reached.
    given_up: Vec<Effect>,
    waits: Waits,
    remote: Vec<Vec<Parcel<O>>>,
    /// Bytes of the messages in `remote`.
    remote_bytes: Vec<u64>,
    has_remote: bool,
    waker: Option<Waker>,
    is_woken: bool,
}

impl<O> Inbox<O> {
    /// Nothing waits; `members` partitions run on this shard, which asks under this key.
    pub fn new(shard: usize, own_key: ChannelKey, directory: Directory, leaders: Leaders, members: usize) -> Self {
        let roads = Roads::new(shard);
        let remote = (0..directory.shards()).map(|_| Vec::new()).collect();
        let remote_bytes = vec![0; directory.shards()];
        let (waits, has_remote, waker, is_woken) = (Waits::new(members), false, None, false);
        Inbox {
            shard,
            directory,
            leaders,
            roads,
            settles: Settles::default(),
            own_key,
            given_up: Vec::new(),
            waits,
            remote,
            remote_bytes,
            has_remote,
            waker,
            is_woken,
        }
    }

    /// Queues a command for whoever leads the partition: another node, as far as is known here and
    /// there is a link, or this node's member.
    #[inline]
    pub fn push(&mut self, partition: PartitionId, command: Command) {
        let command = match self.leaders.has_peers() {
            false => command,
            true => match self.push_away(partition, command) {
                Some(command) => command,
                None => return,
            },
        };
        self.push_here(partition, command);
    }

    /// Sends a command to the node that leads the partition; gives it back if that is this one, or
    /// nobody is known to, or cannot be reached.
    fn push_away(&mut self, partition: PartitionId, command: Command) -> Option<Command> {
        if let Some(run) = Run::of(&command).filter(|_| !partition.is_in_memory()) {
            self.settle(partition, run);
            return None;
        }
        if self.settles.is_due(partition, || sitting(&self.leaders, &self.roads, partition)) {
            self.tell_due(partition);
        }
        let leader = self.leaders.leader(partition);
        let left = if let Command::Detach { channel } = &command {
            self.roads.detach(partition, *channel);
            self.roads.turning.hold(partition, command.clone());
            Some(command)
        } else {
            match self.roads.hold(partition, leader, self.leaders.own(), command) {
                Some(command) => match leader.filter(|node| *node != self.leaders.own()) {
                    Some(node) => match self.roads.command(node, partition, command) {
                        Some(command) if partition.is_in_memory() => {
                            self.given_up.extend(unanswered(partition, &command));
                            self.wake();
                            None
                        }
                        left => left,
                    },
                    None => Some(command),
                },
                // The next step sees what it waits for; nothing else may call for one.
                None => {
                    self.wake();
                    None
                }
            }
        };
        if self.roads.has_frames() {
            self.wake();
        }
        left
    }

    /// What a channel settles for good goes to the leader as everything does, and is kept until that
    /// says that it is applied.
    fn settle(&mut self, partition: PartitionId, run: Run) {
        let now = sitting(&self.leaders, &self.roads, partition);
        match (self.settles.keep(partition, run, now), now) {
            (Way::Goes(mark), Some(now)) => {
                self.tell(partition, now, run.command());
                mark.into_iter().for_each(|request| self.mark(partition, now, request));
            }
            _ => {
                self.tell_due(partition);
                // What cannot be told now is told in a step; nothing else may call for one.
                self.wake();
            }
        }
    }

    /// Tells the leader of a partition what is due, if one can be reached and the one before has
    /// answered.
    fn tell_due(&mut self, partition: PartitionId) {
        let Some(now) = sitting(&self.leaders, &self.roads, partition) else { return };
        if !self.roads.may_go(partition, now.leader) {
            return;
        }
        let (runs, again, mark) = self.settles.take_due(partition, now);
        for (at, run) in runs.iter().enumerate() {
            let command = if at < again { run.command_again() } else { run.command() };
            self.tell(partition, now, command);
        }
        self.settles.give_back(partition, runs);
        mark.into_iter().for_each(|request| self.mark(partition, now, request));
    }

    fn tell(&mut self, partition: PartitionId, now: Sitting, command: Command) {
        if now.leader == self.leaders.own() {
            return self.push_here(partition, command);
        }
        let left = self.roads.command(now.leader, partition, command);
        assert!(left.is_none(), "a leader that can be reached has a link");
        self.wake();
    }

    fn mark(&mut self, partition: PartitionId, now: Sitting, request: RequestId) {
        self.tell(partition, now, Command::Mark { channel: self.own_key, request });
    }

    /// A leader answered whether what was settled is applied.
    pub(crate) fn mark_answered(&mut self, request: RequestId, is_done: bool) {
        let next = self.settles.answered(request, is_done, self.roads.now_us);
        if let Some((partition, told, request)) = next {
            match sitting(&self.leaders, &self.roads, partition) {
                Some(now) if now == told => self.mark(partition, now, request),
                // It is told again, with this mark or another one.
                _ => _ = self.settles.answered(request, false, self.roads.now_us),
            }
        }
        if self.settles.has_due() {
            self.wake();
        }
    }

    /// Tells leaders again what those before were told. To be called at the beginning of each step.
    pub(crate) fn settle_again(&mut self) {
        let changes = (self.leaders.changes(), self.roads.changes());
        let Inbox { settles, leaders, roads, .. } = self;
        for partition in settles.due(changes, roads.now_us, |partition| sitting(leaders, roads, partition)) {
            self.tell_due(partition);
        }
    }

    /// Whether something waits for a leader, or to be told to one again.
    pub(crate) fn waits_for_leader(&self) -> bool {
        self.settles.has_due() || self.roads.is_leaderless()
    }

    /// Queues a command for this node's member. One for a partition that does not run here is
    /// dropped: its queue cannot be declared here.
    #[inline]
    pub(crate) fn push_here(&mut self, partition: PartitionId, command: Command) {
        match self.directory.find(partition) {
            Some((shard, place)) if shard == self.shard => self.waits.push(place, command),
            Some((shard, _)) => {
                if let Command::Publish(publish) = &command {
                    self.remote_bytes[shard] += bytes_of(&publish.message);
                }
                self.push_parcel(shard, Parcel::Command(partition, command));
            }
            None => {}
        }
        self.wake();
    }

    /// Tells a partition that a queue exists.
    pub fn declare(&mut self, partition: PartitionId, queue: QueueId) {
        match self.directory.find(partition) {
            Some((shard, place)) if shard == self.shard => self.waits.declare(place, queue),
            Some((shard, _)) => self.push_parcel(shard, Parcel::Declare(partition, queue)),
            None => {}
        }
        self.wake();
    }

    /// Has a partition of this shard stepped in the step that is about to begin, even if no command
    /// waits for it.
    pub fn wake_partition(&mut self, partition: PartitionId) {
        if let Some((shard, place)) = self.directory.find(partition) {
            assert!(shard == self.shard, "a partition is woken on its own shard");
            self.waits.wake(place);
        }
    }

    /// Has the place of a partition on this node look whether the node is to have it.
    pub(crate) fn look(&mut self, partition: PartitionId) {
        match self.directory.find(partition) {
            Some((shard, place)) if shard == self.shard => self.waits.wake(place),
            Some((shard, _)) => self.push_parcel(shard, Parcel::Look(partition)),
            None => {}
        }
        self.wake();
    }

    /// Queues a parcel for another shard; it leaves at the end of the step.
    pub fn push_parcel(&mut self, shard: usize, parcel: Parcel<O>) {
        self.remote[shard].push(parcel);
        self.has_remote = true;
        self.wake();
    }

    /// Queues a frame of another member of a partition's group.
    pub fn receive(&mut self, partition: PartitionId, from: NodeId, frame: PeerFrame) {
        if let Some((shard, place)) = self.directory.find(partition) {
            assert!(shard == self.shard, "a frame comes to the shard of its partition");
            self.waits.receive(place, from, frame);
            self.wake();
        }
    }

    /// Queues what another node wants of the group at a partition of this shard.
    pub(crate) fn receive_forward(&mut self, partition: PartitionId, from: NodeLife, forward: Forward) {
        if let Some((_, place)) = self.directory.find(partition).filter(|(shard, _)| *shard == self.shard) {
            self.waits.receive_forward(place, from, forward);
            self.wake();
        }
    }

    /// What channels of this shard hear in the place of nodes that cannot be reached.
    pub(crate) fn take_given_up(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.given_up)
    }

    /// Hands out what is for other nodes: over which link, in order. What `send` leaves in the list
    /// is dropped. To be called before [`Inbox::post`]: what another shard is told must not overtake
    /// it.
    pub fn post_away(&mut self, send: impl FnMut(LinkUp, &mut Frames)) {
        self.roads.post(send);
    }

    /// Whether so much is on its way to other nodes that publishers have to wait.
    pub fn is_full(&self) -> bool {
        self.roads.is_full()
    }

    /// Whether the shard's task is on its way and will look here.
    pub fn is_woken(&self) -> bool {
        self.is_woken
    }

    /// Has the shard's task run once, after the tasks that are ready now.
    #[inline]
    pub fn wake(&mut self) {
        if !self.is_woken {
            self.is_woken = true;
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
    }

    /// The shard's task runs now; `waker` calls it again.
    pub fn start_step(&mut self, waker: &Waker) {
        self.is_woken = false;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    /// Hands out what is for other shards: to which, in order, and the bytes of the messages in it.
    /// What `send` leaves in the list is dropped.
    pub fn post(&mut self, mut send: impl FnMut(usize, &mut Vec<Parcel<O>>, u64)) {
        if !std::mem::take(&mut self.has_remote) {
            return;
        }
        for (shard, (parcels, bytes)) in self.remote.iter_mut().zip(&mut self.remote_bytes).enumerate() {
            if !parcels.is_empty() {
                send(shard, parcels, std::mem::take(bytes));
                parcels.clear();
            }
        }
    }

    /// Gives the memory of a burst back.
    pub fn trim(&mut self) {
        self.waits.trim();
        self.remote.iter_mut().for_each(|parcels| parcels.shrink_to(0));
        self.roads.trim();
        self.settles.trim();
    }

    /// What waits for the partitions of this shard.
    #[inline]
    pub fn waits(&mut self) -> &mut Waits {
        &mut self.waits
    }
}

/// Who leads a partition and can be reached.
fn sitting(leaders: &Leaders, roads: &Roads, partition: PartitionId) -> Option<Sitting> {
    let (leader, term) = leaders.in_term(partition)?;
    let epoch = if leader == leaders.own() { 0 } else { roads.epoch(leader)? };
    Some(Sitting { leader, term, epoch })
}

/// What a message weighs while it waits for another shard.
fn bytes_of(message: &Message) -> u64 {
    let Message { exchange, routing_key, properties, body } = message;
    (exchange.len() + routing_key.len() + properties.len() + body.len() + size_of::<Command>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::{ConsumerKey, NodeNumber};
    use node::Waiting;
    use partition::command::Disposition;

    #[test]
    fn commands_stay_in_order_and_leave_the_shard_only_at_the_end_of_the_step() {
        let directory = Directory::new(2, &[(PartitionId(1), 1)]);
        let mut inbox = Inbox::<()>::new(0, ChannelKey(1), directory, Leaders::alone(broker::NodeNumber(1)), 1);
        for queue in 1..4 {
            inbox.push(PartitionId::in_memory(broker::NodeNumber(0), 0), Command::Delete { queue: QueueId(queue) });
        }
        inbox.push(PartitionId(1), Command::Delete { queue: QueueId(4) });
        inbox.push(PartitionId(7), Command::Delete { queue: QueueId(5) });
        let (mut due, mut waiting) = (Vec::new(), Waiting::default());
        inbox.waits().take_due(&mut due);
        assert_eq!(due, [0]);
        inbox.waits().swap(0, &mut waiting);
        let queues: Vec<u64> =
            waiting.commands.iter().map(|c| if let Command::Delete { queue } = c { queue.0 } else { 0 }).collect();
        assert_eq!(queues, [1, 2, 3]);
        let mut sent = Vec::new();
        inbox.post(|shard, parcels, _| sent.push((shard, std::mem::take(parcels))));
        assert!(matches!(&sent[..], [(1, parcels)] if matches!(parcels[..], [Parcel::Command(PartitionId(1), _)])));
        inbox.post(|_, _, _| panic!("nothing is sent twice"));
    }

    const P: PartitionId = PartitionId(1);

    /// A shard of node 2, linked with nodes 1 and 3, in whose memory nothing is.
    fn among_others() -> (Inbox<()>, Leaders) {
        let leaders = Leaders::among_others(NodeNumber(2), P);
        let directory = Directory::new(1, &[(P, 0)]).among_others(NodeNumber(2));
        let mut inbox = Inbox::<()>::new(0, ChannelKey(1), directory, leaders.clone(), 2);
        for node in [1, 3] {
            inbox.roads.open(LinkUp { peer: NodeLife { node, start: 1 }, epoch: node.into() });
        }
        (inbox, leaders)
    }

    fn ack(first: u64) -> Command {
        let holder = ConsumerKey { channel: ChannelKey(7), number: 1 };
        Command::Settle { queue: QueueId(1), holder, first, count: 1, outcome: Disposition::Ack }
    }

    fn stat() -> Command {
        Command::Stat { queue: QueueId(1), channel: ChannelKey(7), request: RequestId(1) }
    }

    /// What is sent: to which node, and what.
    fn sent(inbox: &mut Inbox<()>) -> Vec<(u32, String)> {
        let mut sent = Vec::new();
        inbox.post_away(|link, frames| {
            sent.extend(frames.iter().map(|(_, forward)| {
                let text = match forward {
                    Forward::Command(Command::Settle { first, count, .. }) => format!("ack {count} from {first}"),
                    Forward::Command(Command::Mark { .. }) => "mark".to_owned(),
                    Forward::Command(Command::Stat { .. }) => "stat".to_owned(),
                    other => format!("{other:?}"),
                };
                (link.peer.node, text)
            }));
        });
        sent
    }

    fn said(lines: &[(u32, &str)]) -> Vec<(u32, String)> {
        lines.iter().map(|(node, text)| (*node, (*text).to_owned())).collect()
    }

    #[test]
    fn the_next_leader_hears_what_was_settled_before_anything_else() {
        let (mut inbox, leaders) = among_others();
        leaders.note(P, Some(NodeNumber(1)), 5);
        inbox.push(P, ack(1));
        inbox.push(P, ack(2));
        inbox.push(P, stat());
        assert_eq!(sent(&mut inbox), said(&[(1, "ack 1 from 1"), (1, "mark"), (1, "ack 1 from 2"), (1, "stat")]));
        inbox.roads.close(NodeNumber(1));
        inbox.push(P, ack(3));
        assert_eq!(sent(&mut inbox), said(&[]), "nobody can be reached");
        assert!(inbox.waits_for_leader());
        leaders.note(P, Some(NodeNumber(3)), 6);
        inbox.push(P, stat());
        assert_eq!(
            sent(&mut inbox),
            said(&[(3, "ack 1 from 1"), (3, "ack 1 from 2"), (3, "ack 1 from 3"), (3, "stat")]),
            "its mark is not answered"
        );
        inbox.mark_answered(RequestId(1 << 63 | 1), false);
        inbox.roads.now_us = crate::settles::AGAIN_US;
        inbox.settle_again();
        assert_eq!(
            sent(&mut inbox),
            said(&[(3, "ack 1 from 1"), (3, "ack 1 from 2"), (3, "ack 1 from 3"), (3, "mark")])
        );
        inbox.mark_answered(RequestId(1 << 63 | 2), true);
        inbox.settle_again();
        assert!(sent(&mut inbox).is_empty() && !inbox.waits_for_leader(), "all of it is applied");
    }

    #[test]
    fn who_leads_again_in_a_later_term_is_told_by_itself() {
        let (mut inbox, leaders) = among_others();
        leaders.note(P, Some(NodeNumber(3)), 5);
        inbox.push(P, ack(1));
        assert_eq!(sent(&mut inbox), said(&[(3, "ack 1 from 1"), (3, "mark")]));
        inbox.settle_again();
        assert_eq!(sent(&mut inbox), said(&[]));
        leaders.note(P, Some(NodeNumber(3)), 7);
        inbox.settle_again();
        assert_eq!(sent(&mut inbox), said(&[(3, "ack 1 from 1")]));
        leaders.note(P, Some(NodeNumber(2)), 8);
        inbox.settle_again();
        // Node 3 may still have something to answer: it is asked how far it has come.
        assert_eq!(sent(&mut inbox).len(), 1);
        assert!(inbox.waits_for_leader() && inbox.roads.has_waiting());
        inbox.roads.close(NodeNumber(3));
        assert!(inbox.roads.take_turned(&leaders).is_empty());
        inbox.settle_again();
        let (mut due, mut waiting) = (Vec::new(), Waiting::default());
        inbox.waits().take_due(&mut due);
        inbox.waits().swap(1, &mut waiting);
        let [Command::Settle { first: 1, count: 1, .. }] = waiting.commands[..] else {
            panic!("{:?}", waiting.commands)
        };
        assert_eq!(due, [1], "this node leads now");
    }

    #[test]
    fn what_waits_for_a_leader_calls_for_a_step_by_itself() {
        for (command, what) in [(stat(), "a request"), (ack(1), "an ack")] {
            let (mut inbox, leaders) = among_others();
            inbox.start_step(Waker::noop());
            inbox.push(P, command.clone());
            assert!(inbox.waits_for_leader() && inbox.is_woken(), "{what} that nobody can be told");
            inbox.start_step(Waker::noop());
            inbox.roads.take_turned(&leaders);
            inbox.settle_again();
            assert!(!inbox.is_woken(), "{what} that waits on needs no step at once");

            let (mut inbox, leaders) = among_others();
            leaders.note(P, Some(NodeNumber(3)), 5);
            inbox.push(P, stat());
            sent(&mut inbox);
            leaders.note(P, Some(NodeNumber(2)), 6);
            inbox.start_step(Waker::noop());
            inbox.push(P, command);
            assert!(inbox.roads.has_waiting() && inbox.is_woken(), "{what} behind the leader before");
            assert_eq!(sent(&mut inbox).len(), 1, "which is asked how far it has come");
        }
    }
}
