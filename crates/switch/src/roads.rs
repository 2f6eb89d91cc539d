//! A shard's roads to the other nodes: commands for partitions that they lead, and what partitions
//! here say to their channels.
//!
//! ```text
//!   sessions ──Command──▶ road ──link──▶ the shard of the partition, on the node that leads it
//!      ▲                                        │
//!      └────────────── link ◀── road ◀──Effect──┘
//! ```
//!
//! Invariants: a road is there as long as its link is up, and with the link goes all that was on its
//! way: here what was asked is answered ([`Unanswered`]), there what the channels held is given back
//! (guests are detached). What a road carries keeps its order. What waits because this node has not
//! heard of a queue yet holds up what comes behind it on the same road, and nothing else.

use crate::channel_key::shard_of_number;
use crate::directory::Directory;
use crate::leaders::Leaders;
use crate::marks::{Marks, is_of_turn};
use crate::publishes::{Office, Publishes, may_come_again};
use crate::turning::{Fate, LEADERLESS_US, On, Turning};
use crate::unanswered::Unanswered;
use broker::{ChannelKey, NodeLife, NodeNumber, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::peer::forward::Forward;
use partition::{Command, Effect, RequestId};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What a shard may have on its way to one other node before its publishers wait.
const WINDOW_BYTES: u64 = 16 << 20;
/// What a shard may keep of publishes that have no answer before its publishers wait.
const KEPT_BYTES: u64 = 4 * WINDOW_BYTES;
/// The part of it beyond which dead letters that nobody waits for are not kept: a partition without a majority would
/// have them fill it, and publishers wait.
const KEPT_LETTERS_BYTES: u64 = KEPT_BYTES / 4;
/// The part of a window beyond which such letters do not leave to wait for somebody to lead: publishers would wait for them.
const HELD_LETTERS_BYTES: u64 = WINDOW_BYTES / 4;
/// What a command or an effect weighs beside its message.
const FRAME_BYTES: u64 = 64;

/// A link to another node, as a shard knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkUp {
    /// The other node, in its present life.
    pub peer: NodeLife,
    /// Differs from link to link.
    pub epoch: u64,
}

/// What a shard sends over a link at the end of a step.
pub type Frames = Vec<(PartitionId, Forward)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Road {
    link: LinkUp,
    unanswered: Unanswered,
    /// Channels of the other node, and the partitions of this shard that know them.
    guests: HashMap<ChannelKey, SmallVec<[PartitionId; 2]>, FixedState>,
    out: Frames,
    /// Came from there and waits for a queue that this node has not heard of.
    held: VecDeque<(PartitionId, Forward)>,
    /// How far it has come with what was sent.
    pub(crate) sent: Marks,
    /// Marks of the other node's shards that wait for this shard to have room.
    marks: Vec<u64>,
}

/// All of a shard.
#[derive(Debug)]
pub(crate) struct Roads {
    /// Which shard it is.
    shard: usize,
    /// Few: a cluster has some nodes.
    roads: Vec<Road>,
    pub(crate) turning: Turning,
    pub(crate) publishes: Publishes,
    /// Partitions that have not heard yet that the link to a channel's node broke, and how many times it did.
    parting: HashMap<(PartitionId, ChannelKey), u32, FixedState>,
    has_frames: bool,
    /// Grows whenever a link comes or goes.
    changes: u64,
    /// The time of this step, microseconds.
    pub(crate) now_us: u64,
}

/// Whether somebody is here, or can be reached.
fn leads(office: Office, own: NodeNumber, roads: &[Road]) -> bool {
    office.leader == own || roads.iter().any(|road| road.link.peer.node == office.leader.0)
}

/// A mark says which shard made it: `shard u8 | number`.
const MARK_SHIFT: u32 = 56;

/// The shard that something from another node is for: of a partition, or of a channel of this life
/// of this node.
pub fn shard_for(life: NodeLife, partition: PartitionId, forward: &Forward, directory: &Directory) -> Option<usize> {
    let of_channel = |channel: ChannelKey| {
        let shard = shard_of_number(channel.number());
        (channel.life() == life && shard < directory.shards()).then_some(shard)
    };
    match forward {
        Forward::Command(_)
        | Forward::Drained { .. }
        | Forward::Ping { .. }
        | Forward::Propose { .. }
        | Forward::Delete { .. }
        | Forward::Applied { .. }
        | Forward::AskLease { .. }
        | Forward::Lease { .. }
        | Forward::Leads { .. }
        | Forward::NotProposed { .. } => match directory.find(partition) {
            Some((shard, _)) => Some(shard),
            // The node had it in memory before it was started with fewer shards: any may say so.
            None => directory.had(partition).then_some(0),
        },
        Forward::Effect(effect) => of_channel(effect.channel()?),
        Forward::Starved { consumer } => of_channel(consumer.channel),
        // For the node as a whole, and no shard of it.
        Forward::Ask { .. } | Forward::Answer { .. } | Forward::News(_) => None,
        Forward::Pong { number } => Some((number >> MARK_SHIFT) as usize).filter(|shard| *shard < directory.shards()),
    }
}

impl Roads {
    /// Of this shard, without any link.
    pub(crate) fn new(shard: usize) -> Roads {
        let (turning, publishes) = (Turning::default(), Publishes::default());
        Roads {
            shard,
            roads: Vec::new(),
            turning,
            publishes,
            parting: HashMap::default(),
            has_frames: false,
            changes: 0,
            now_us: 0,
        }
    }

    /// A link is up.
    pub(crate) fn open(&mut self, link: LinkUp) {
        assert!(self.road(NodeNumber(link.peer.node)).is_none(), "a link goes before the next one comes");
        self.changes += 1;
        self.roads.push(Road {
            link,
            unanswered: Unanswered::default(),
            guests: HashMap::default(),
            out: Vec::new(),
            held: VecDeque::new(),
            sent: Marks::default(),
            marks: Vec::new(),
        });
    }

    /// A link is gone: what channels here hear of it, and which channels of the other node are to be
    /// detached from which partitions.
    pub(crate) fn close(&mut self, node: NodeNumber) -> (Vec<Effect>, Vec<(PartitionId, ChannelKey)>) {
        self.turning.lost(node);
        for partition in self.publishes.lost(node) {
            self.turning.begin_answers(partition, node);
        }
        let Some(at) = self.roads.iter().position(|road| road.link.peer.node == node.0) else {
            return (Vec::new(), Vec::new());
        };
        self.changes += 1;
        let Road { unanswered, guests, .. } = self.roads.swap_remove(at);
        let mut gone: Vec<_> = guests
            .into_iter()
            .flat_map(|(channel, partitions)| partitions.into_iter().map(move |partition| (partition, channel)))
            .collect();
        gone.sort_unstable();
        gone.iter().for_each(|of| *self.parting.entry(*of).or_default() += 1);
        (unanswered.give_up(), gone)
    }

    pub(crate) fn road(&mut self, node: NodeNumber) -> Option<&mut Road> {
        self.roads.iter_mut().find(|road| road.link.peer.node == node.0)
    }

    /// The road to a channel of another node, if that node lives in the life of the channel.
    pub(crate) fn to(&mut self, channel: ChannelKey) -> Option<&mut Road> {
        let life = channel.life();
        self.roads.iter_mut().find(|road| road.link.peer == life)
    }

    /// Sends something along.
    pub(crate) fn send(&mut self, node: NodeNumber, partition: PartitionId, forward: Forward) {
        let Some(road) = self.road(node) else { return };
        road.out.push((partition, forward));
        self.has_frames = true;
    }

    /// Sends a command along, messages that are published as one each by itself; gives it back if there is no link.
    #[inline]
    pub(crate) fn command(&mut self, node: NodeNumber, partition: PartitionId, command: Command) -> Option<Command> {
        let shard = self.shard as u64;
        let Some(road) = self.roads.iter_mut().find(|road| road.link.peer.node == node.0) else {
            return Some(command);
        };
        if let Command::Publish(publish) = &command
            && publish.more.is_some()
        {
            for one in publish.apart() {
                let left = self.command(node, partition, Command::Publish(one));
                assert!(left.is_none(), "there is a link");
            }
            return None;
        }
        road.unanswered.note(partition, &command);
        let body_bytes = match &command {
            Command::Publish(publish) => publish.message.body.len() as u64,
            _ => 0,
        };
        road.out.push((partition, Forward::Command(command)));
        self.turning.sent(partition, node);
        if let Some((mark, partitions)) = road.sent.send(partition, FRAME_BYTES + body_bytes, self.now_us) {
            let number = shard << MARK_SHIFT | mark;
            road.out.extend(partitions.into_iter().map(|partition| (partition, Forward::Ping { number })));
        }
        self.has_frames = true;
        None
    }

    /// Before something goes to another leader than before: has it wait if something of the partition
    /// is on its way to that one.
    fn turn(&mut self, partition: PartitionId, leader: Option<NodeNumber>) {
        let (Some(before), Some(_)) = (self.turning.before(partition, leader), leader) else { return };
        let shard = self.shard as u64;
        // What it has handled it may still have to answer.
        let owes_answers = self.publishes.has_sent_to(partition, before);
        let Some(road) = self.road(before) else { return };
        if road.sent.under_way() == 0 && !owes_answers {
            return;
        }
        let mark = road.sent.turn();
        road.out.push((partition, Forward::Ping { number: shard << MARK_SHIFT | mark }));
        self.has_frames = true;
        self.turning.begin(partition, before, mark);
    }

    /// Holds a command for a partition whose leader changed while something was on its way to the
    /// one before, or in which something is to be sent again; gives it back if it need not wait.
    /// `office`: who leads a durable partition.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        partition: PartitionId,
        (leader, office): (Option<NodeNumber>, Option<Office>),
        own: NodeNumber,
        command: Command,
    ) -> Option<Command> {
        if let Some(home) = partition.home()
            && home != own
            && self.road(home).is_none()
        {
            return self.hold_for_home(partition, command);
        }
        let mut command = self.turning.hold(partition, command)?;
        if self.turning.before(partition, leader).is_some() {
            self.turn(partition, leader);
            command = self.turning.hold(partition, command)?;
        }
        if let Some(office) = office.filter(|office| self.publishes.is_elsewhere(partition, *office)) {
            self.turning.begin_answers(partition, office.leader);
            command = self.turning.hold(partition, command)?;
        }
        if partition.is_in_memory() || self.has_leader(partition, office, own) {
            return Some(command);
        }
        self.turning.begin_leaderless(partition, self.now_us);
        self.turning.hold(partition, command)
    }

    /// Holds what is published to queues in the memory of a node that cannot be reached. Either it is back in a moment, or its
    /// queues are gone: refused meanwhile, the publish would be repeated for all its other queues, which have it. Gives back what asks
    /// for an answer, which nobody gives.
    fn hold_for_home(&mut self, partition: PartitionId, command: Command) -> Option<Command> {
        if !matches!(command, Command::Publish(_)) {
            return Some(command);
        }
        if !self.turning.is_waiting(partition) {
            self.turning.begin_leaderless(partition, self.now_us);
        }
        self.turning.hold(partition, command)
    }

    /// Whether something may go to this leader at once. Otherwise it waits until the one before has
    /// answered for what was sent to it.
    pub(crate) fn may_go(&mut self, partition: PartitionId, leader: NodeNumber) -> bool {
        if !self.turning.is_waiting(partition) && self.turning.before(partition, Some(leader)).is_some() {
            self.turn(partition, Some(leader));
        }
        !self.turning.is_waiting(partition)
    }

    /// Which link to a node there is.
    pub(crate) fn epoch(&self, node: NodeNumber) -> Option<u64> {
        self.roads.iter().find(|road| road.link.peer.node == node.0).map(|road| road.link.epoch)
    }

    /// Grows whenever a link comes or goes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// What need not wait any more, and ahead of it what is to be sent again; true with what nobody is
    /// asked any more.
    pub(crate) fn take_turned(&mut self, leaders: &Leaders) -> Vec<(PartitionId, Command, bool)> {
        if self.turning.is_empty() {
            return Vec::new();
        }
        let done = {
            let Roads { roads, turning, publishes, now_us, .. } = &mut *self;
            let (roads, publishes, now_us) = (&*roads, &*publishes, *now_us);
            let road_to = |node: NodeNumber| roads.iter().find(|road| road.link.peer.node == node.0);
            turning.take_done(|partition, on| match on {
                On::Before { from, mark } => {
                    let has_handled = |mark: u64| road_to(*from).is_none_or(|road| road.sent.has_turned(mark));
                    let is_done = mark.is_none_or(has_handled) && !publishes.has_sent(partition);
                    if is_done { Fate::Goes } else { Fate::Waits }
                }
                On::Leader { .. } if partition.home().is_some_and(|home| road_to(home).is_some()) => Fate::Goes,
                On::Leader { since_us } => match leaders.office(partition) {
                    Some(office)
                        if leads(office, leaders.own(), roads) && !publishes.has_ended(partition, office, now_us) =>
                    {
                        Fate::Goes
                    }
                    _ if now_us >= since_us + LEADERLESS_US => Fate::GivenUp,
                    _ => Fate::Waits,
                },
            })
        };
        let mut turned = Vec::new();
        for (partition, held, is_given_up) in done {
            match self.publishes.has_sent(partition) {
                // It comes back, or is answered: then what is left goes ahead.
                true if self.publishes.has_left(partition) => self.turning.begin_answers(partition, leaders.own()),
                true => {}
                false => turned.extend(self.publishes.take_left(partition).into_iter().map(|publish| {
                    let is_given_up = is_given_up || !may_come_again(&publish);
                    (partition, Command::Publish(publish), is_given_up)
                })),
            }
            turned.extend(held.into_iter().map(|command| (partition, command, is_given_up)));
        }
        turned
    }

    /// Whether a partition is led by somebody who can be reached, and has not said that its office ended.
    fn has_leader(&self, partition: PartitionId, office: Option<Office>, own: NodeNumber) -> bool {
        office.is_some_and(|office| {
            leads(office, own, &self.roads) && !self.publishes.has_ended(partition, office, self.now_us)
        })
    }

    /// Whether time alone may bring on what waits.
    pub(crate) fn is_leaderless(&self) -> bool {
        self.turning.is_leaderless()
    }

    /// Has the node that leads a queue's partition delete the queue; false if there is no link.
    pub(crate) fn delete(
        &mut self,
        node: NodeNumber,
        partition: PartitionId,
        queue: QueueId,
        (if_unused, if_empty): (bool, bool),
        (channel, request): (ChannelKey, RequestId),
    ) -> bool {
        let Some(road) = self.road(node) else { return false };
        road.unanswered.note_deletion(channel, request);
        road.out.push((partition, Forward::Delete { queue, if_unused, if_empty, channel, request }));
        self.has_frames = true;
        true
    }

    /// The same of what a partition of this shard says. Before it has heard that the link to the channel's
    /// node broke, it speaks to what came over that link, and the channel has given that up. What was published
    /// then comes again over this link: answered now, it would be answered ahead of what has to come again
    /// before it. A consumer attaches over this link: what it was given then comes back, and would be more than
    /// it may hold.
    pub(crate) fn effect_of(&mut self, partition: PartitionId, channel: ChannelKey, effect: Effect) -> bool {
        if self.parting.contains_key(&(partition, channel)) {
            return false;
        }
        self.effect(channel, partition, effect)
    }

    /// A partition of this shard has heard that the link to a channel's node broke.
    pub(crate) fn parted(&mut self, partition: PartitionId, channel: ChannelKey) {
        if let Some(times) = self.parting.get_mut(&(partition, channel)) {
            *times -= 1;
            if *times == 0 {
                self.parting.remove(&(partition, channel));
            }
        }
    }

    /// Says to a channel of another node what a partition has to say; false if nobody is there.
    pub(crate) fn effect(&mut self, channel: ChannelKey, partition: PartitionId, effect: Effect) -> bool {
        let Some(road) = self.to(channel) else { return false };
        road.out.push((partition, Forward::Effect(effect)));
        self.has_frames = true;
        true
    }

    /// Says to every node that can be reached whether this one leads a partition.
    pub(crate) fn tell_leads(&mut self, partition: PartitionId, term: u64, leads: bool) {
        for road in &mut self.roads {
            road.out.push((partition, Forward::Leads { term, leads }));
            self.has_frames = true;
        }
    }

    /// A channel of this shard leaves a partition: every node is told that may know the channel
    /// there.
    pub(crate) fn detach(&mut self, partition: PartitionId, channel: ChannelKey) {
        for road in &mut self.roads {
            if road.unanswered.detach(partition, channel) {
                road.out.push((partition, Forward::Command(Command::Detach { channel })));
                self.has_frames = true;
            }
        }
    }

    /// A step begins at this time.
    pub(crate) fn begin_step(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.roads.iter_mut().for_each(|road| road.sent.handle_timeout(now_us));
    }

    /// Whether as much is on its way to some node as may be: publishers wait.
    pub(crate) fn is_full(&self) -> bool {
        let is_full = |road: &Road| road.sent.under_way() > WINDOW_BYTES;
        self.turning.held_bytes() > WINDOW_BYTES
            || self.publishes.bytes() > KEPT_BYTES
            || self.roads.iter().any(is_full)
    }

    /// Whether dead letters that nobody waits for stay where they are for now: much waits for somebody to lead, and they
    /// would, too.
    pub(crate) fn is_no_place_for_letters(&self, partition: PartitionId) -> bool {
        self.turning.is_waiting(partition) && self.turning.held_bytes() >= HELD_LETTERS_BYTES
    }

    /// See [`KEPT_LETTERS_BYTES`].
    pub(crate) fn may_keep_letters(&self) -> bool {
        self.publishes.bytes() < KEPT_LETTERS_BYTES
    }

    pub(crate) fn has_frames(&self) -> bool {
        self.has_frames
    }

    /// Whether something waits for this shard to have room, or for a queue.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.turning.is_empty() || self.roads.iter().any(|road| !road.held.is_empty() || !road.marks.is_empty())
    }

    /// Hands out what is to go over each link.
    pub(crate) fn post(&mut self, mut send: impl FnMut(LinkUp, &mut Frames)) {
        if !std::mem::take(&mut self.has_frames) {
            return;
        }
        for road in self.roads.iter_mut().filter(|road| !road.out.is_empty()) {
            send(road.link, &mut road.out);
            road.out.clear();
        }
    }

    /// A mark of another node. One that a turn waits for is answered at once: what came before it is in the hands of its
    /// partition, however much this shard has to write.
    pub(crate) fn mark(&mut self, node: NodeNumber, number: u64) {
        let Some(road) = self.road(node) else { return };
        if !is_of_turn(number) {
            return road.marks.push(number);
        }
        road.out.push((PartitionId(0), Forward::Pong { number }));
        self.has_frames = true;
    }

    /// Answers marks, now that this shard has room.
    pub(crate) fn answer_marks(&mut self) {
        for road in self.roads.iter_mut().filter(|road| !road.marks.is_empty()) {
            let pongs = road.marks.drain(..).map(|number| (PartitionId(0), Forward::Pong { number }));
            road.out.extend(pongs);
            self.has_frames = true;
        }
    }

    /// What was held back of one node, to be tried again.
    pub(crate) fn take_held(&mut self) -> Vec<(NodeNumber, VecDeque<(PartitionId, Forward)>)> {
        let held = self.roads.iter_mut().filter(|road| !road.held.is_empty());
        held.map(|road| (NodeNumber(road.link.peer.node), std::mem::take(&mut road.held))).collect()
    }

    pub(crate) fn trim(&mut self) {
        self.roads.iter_mut().for_each(|road| road.out.shrink_to(0));
    }
}

impl Road {
    pub(crate) fn peer(&self) -> NodeLife {
        self.link.peer
    }

    pub(crate) fn node(&self) -> NodeNumber {
        NodeNumber(self.link.peer.node)
    }

    /// Holds back what came, as something before it is held back, or as `waits`. Gives it back if it
    /// need not wait.
    pub(crate) fn hold(&mut self, partition: PartitionId, forward: Forward, waits: bool) -> Option<Forward> {
        if waits || !self.held.is_empty() {
            self.held.push_back((partition, forward));
            return None;
        }
        Some(forward)
    }

    /// A channel of the other node has a partition of this shard do something.
    pub(crate) fn note_guest(&mut self, partition: PartitionId, command: &Command) {
        let channel = match command {
            Command::Consume { consumer, .. } => consumer.key.channel,
            Command::Hold { consumer, .. } => consumer.channel,
            Command::Get { channel, .. } => *channel,
            Command::Publish(publish) if publish.publish_seq != 0 => publish.channel,
            Command::Detach { channel } => {
                if let Some(partitions) = self.guests.get_mut(channel) {
                    partitions.retain(|known| *known != partition);
                    if partitions.is_empty() {
                        self.guests.remove(channel);
                    }
                }
                return;
            }
            _ => return,
        };
        let partitions = self.guests.entry(channel).or_default();
        if !partitions.contains(&partition) {
            partitions.push(partition);
        }
    }

    /// An effect came from the other node; false if nobody waits for it any more.
    pub(crate) fn answered(&mut self, partition: PartitionId, effect: &mut Effect) -> bool {
        self.unanswered.answered(partition, effect)
    }

    /// One of this node came back.
    pub(crate) fn handled(&mut self, number: u64) {
        self.sent.answered(number & ((1 << MARK_SHIFT) - 1));
    }
}
