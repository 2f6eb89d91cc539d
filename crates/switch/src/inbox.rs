//! Commands on their way to partitions, gathered while the sockets of a shard are read.
//!
//! Invariant: commands of one shard to one partition keep their order, and a queue is declared
//! before commands for it arrive. Nothing here is locked: what stays on the shard is a push to a
//! vector, what leaves it waits for the end of the step and goes over as one batch.

use crate::directory::Directory;
use crate::holders::Holders;
use crate::leaders::Leaders;
use crate::parcel::Parcel;
use crate::roads::{Frames, LinkUp, Roads};
use crate::settles::{Run, Settles, Sitting, Way};
use crate::unanswered::unanswered;
use broker::{ChannelKey, NodeLife, PartitionId, QueueId};
use node::{NodeId, TOPOLOGY, Waits};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Message, PeerFrame, Publish, RequestId};
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
    holders: Holders,
    /// The key of the shard itself, which asks whether that is applied.
    own_key: ChannelKey,
    /// What is answered here, as the node that has the partition in its memory cannot be reached.
    given_up: Vec<Effect>,
    waits: Waits,
    remote: Vec<Vec<Parcel<O>>>,
    /// Bytes of the messages that wait here for each shard: for the others in `remote`, for this one since its members
    /// had their turn last.
    waiting_bytes: Vec<u64>,
    /// Since the members of this shard had their turn last, something came for them that begins a round of the log.
    has_publish: bool,
    has_remote: bool,
    waker: Option<Waker>,
    is_woken: bool,
}

impl<O> Inbox<O> {
    /// Nothing waits; `members` partitions run on this shard, which asks under this key.
    pub fn new(shard: usize, own_key: ChannelKey, directory: Directory, leaders: Leaders, members: usize) -> Self {
        let roads = Roads::new(shard);
        let remote = (0..directory.shards()).map(|_| Vec::new()).collect();
        let waiting_bytes = vec![0; directory.shards()];
        let (waits, has_remote, waker, is_woken) = (Waits::new(members), false, None, false);
        Inbox {
            shard,
            directory,
            leaders,
            roads,
            settles: Settles::default(),
            holders: Holders::default(),
            own_key,
            given_up: Vec::new(),
            waits,
            remote,
            waiting_bytes,
            has_publish: false,
            has_remote,
            waker,
            is_woken,
        }
    }

    /// Queues a command for whoever leads the partition: another node, as far as is known here and
    /// there is a link, or this node's member. That alone is asked in the partition of the topology: who leads
    /// it has other disks.
    #[inline]
    pub fn push(&mut self, partition: PartitionId, command: Command) {
        let command = match self.leaders.has_peers() && partition != TOPOLOGY {
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
            if let Command::Settle { queue, holder, first, count, .. } = command {
                self.roads.turning.settled(partition, (queue, holder), first, count);
            }
            self.settle(partition, run);
            return None;
        }
        if self.settles.is_due(partition, || sitting(&self.leaders, &self.roads, partition)) {
            self.tell_due(partition);
        }
        let office = self.leaders.office(partition);
        let leader = match office {
            Some(office) => Some(office.leader),
            None => partition.home(),
        };
        let left = if let Command::Detach { channel } = &command {
            self.roads.detach(partition, *channel);
            let is_owed = self.roads.publishes.detach(partition, *channel);
            self.roads.turning.detach(partition, *channel, is_owed);
            self.roads.turning.hold(partition, command.clone());
            Some(command)
        } else {
            match self.roads.hold(partition, (leader, office), self.leaders.own(), command) {
                Some(mut command) => {
                    if let (Some(office), Command::Publish(publish)) = (office, &mut command) {
                        match publish.publish_seq {
                            // Nobody sends it again: should it wait until its leader has led no more and leads
                            // again, it would come behind what was published after it.
                            0 => publish.term = office.term,
                            _ => self.roads.publishes.keep(partition, office, publish),
                        }
                    }
                    match leader.filter(|node| *node != self.leaders.own()) {
                        Some(node) => match self.roads.command(node, partition, command) {
                            Some(command) if partition.is_in_memory() => {
                                self.given_up.extend(unanswered(partition, &command));
                                self.wake();
                                None
                            }
                            left => left,
                        },
                        None => Some(command),
                    }
                }
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

    /// A channel of this shard holds something of a partition that no consumer there stands for.
    pub(crate) fn note_holder(&mut self, partition: PartitionId) {
        let Inbox { holders, leaders, roads, .. } = self;
        holders.note(partition, || sitting_of_any(leaders, roads, partition));
    }

    /// Whether there are such.
    pub(crate) fn has_holders(&self) -> bool {
        self.holders.is_any()
    }

    /// Partitions whose leaders have to be told what such channels hold.
    pub(crate) fn take_unheld(&mut self) -> Vec<PartitionId> {
        let changes = (self.leaders.changes(), self.roads.changes());
        let Inbox { holders, leaders, roads, .. } = self;
        holders.take_due(changes, |partition| sitting_of_any(leaders, roads, partition))
    }

    /// A partition says something to a channel of this shard: passes on what that is to hear. An answer to a
    /// publish that may be sent again is passed on once; what its leader gives back waits for the next one.
    pub(crate) fn hear(&mut self, partition: PartitionId, effect: Effect, mut pass: impl FnMut(Effect)) {
        let (channel, first, count) = match effect {
            Effect::Confirm { channel, first, count }
            | Effect::Refuse { channel, first, count }
            | Effect::Returned { channel, first, count, .. }
                if self.leaders.is_led_in_terms(partition) =>
            {
                (channel, first, count)
            }
            other => return pass(other),
        };
        match effect {
            Effect::Returned { term, .. } => {
                self.roads.publishes.returned(partition, channel, (first, count), (term, self.roads.now_us));
                if self.roads.publishes.has_left(partition) {
                    self.roads.turning.begin_answers(partition, self.leaders.own());
                }
            }
            _ => {
                for (first, count) in self.roads.publishes.answered(partition, channel, (first, count)) {
                    pass(match effect {
                        Effect::Confirm { .. } => Effect::Confirm { channel, first, count },
                        _ => Effect::Refuse { channel, first, count },
                    });
                }
            }
        }
        if self.roads.turning.is_waiting(partition) {
            self.wake();
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
        if let Some((shard, place)) = self.directory.find(partition) {
            if let Command::Publish(publish) = &command {
                self.waiting_bytes[shard] += bytes_of(publish);
                self.has_publish |= shard == self.shard && !partition.is_in_memory();
            }
            match shard == self.shard {
                true => self.waits.push(place, command),
                false => self.push_parcel(shard, Parcel::Command(partition, command)),
            }
        }
        self.wake();
    }

    /// What another node wants of a partition that this one had in memory, on a shard that it has no
    /// more, is answered as if the node could not be reached.
    pub(crate) fn refuse_lost(&mut self, partition: PartitionId, command: &Command) {
        for effect in unanswered(partition, command) {
            self.answer_away(partition, effect);
        }
    }

    /// Says to a channel of another node what a partition here has to say.
    pub(crate) fn answer_away(&mut self, partition: PartitionId, effect: Effect) {
        if let Some(channel) = effect.channel()
            && self.roads.effect(channel, partition, effect)
        {
            self.wake();
        }
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

    /// Whether the place of a partition is on this shard.
    pub(crate) fn is_here(&self, partition: PartitionId) -> bool {
        self.directory.find(partition).is_some_and(|(shard, _)| shard == self.shard)
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
            let is_publish = matches!(forward, Forward::Command(Command::Publish(_)));
            self.has_publish |= is_publish && !partition.is_in_memory();
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

    /// Whether dead letters for a partition, for which nobody waits, are to stay where they are for now.
    pub(crate) fn is_no_place_for_letters(&self, partition: PartitionId) -> bool {
        self.roads.is_no_place_for_letters(partition)
    }

    /// Whether dead letters that nobody waits for may be kept until they are answered.
    pub(crate) fn may_keep_letters(&self) -> bool {
        self.roads.may_keep_letters()
    }

    /// The numbers of the dead letters of this shard that are on their way, or are to be sent again.
    pub(crate) fn letters_on_their_way(&self) -> impl Iterator<Item = u64> {
        self.roads.publishes.unanswered_of(self.own_key)
    }

    /// Bytes of the messages that wait here for a shard: neither that one's gauge nor its mailbox shows them yet.
    #[inline]
    pub fn waiting_bytes(&self, shard: usize) -> u64 {
        self.waiting_bytes[shard]
    }

    /// Whether the next turn of this shard's members begins a round of the log for a publish: a write and a sync, on every
    /// node of the group.
    #[inline]
    pub fn has_publish(&self) -> bool {
        self.has_publish
    }

    /// The members of this shard have had their turn: what waited for them is theirs.
    pub fn end_turn(&mut self) {
        self.waiting_bytes[self.shard] = 0;
        self.has_publish = false;
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
        for (shard, (parcels, bytes)) in self.remote.iter_mut().zip(&mut self.waiting_bytes).enumerate() {
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

/// The same, of those in the memory of a node, too.
fn sitting_of_any(leaders: &Leaders, roads: &Roads, partition: PartitionId) -> Option<Sitting> {
    let Some(leader) = partition.home().filter(|_| partition.is_in_memory()) else {
        return sitting(leaders, roads, partition);
    };
    let epoch = if leader == leaders.own() { 0 } else { roads.epoch(leader)? };
    Some(Sitting { leader, term: 0, epoch })
}

/// What a publish weighs while it waits for its shard.
fn bytes_of(publish: &Publish) -> u64 {
    let Message { exchange, routing_key, properties, .. } = &publish.message;
    let beside = exchange.len() + routing_key.len() + properties.len() + size_of::<Command>();
    publish.count() * beside as u64 + publish.body_bytes() as u64
}

#[cfg(test)]
mod tests;
