//! Links between the nodes behind the sessions: as TCP, they keep their order, and when one breaks
//! all that was on its way is gone and both ends hear of it, each in its time. For some seconds what
//! goes one way may be seconds late, while groups elect over it as if nothing were: who says it leads no
//! more by the time when it arrives.
//!
//! Invariant: a link comes up only after both ends have heard that the one before it is gone.

use super::{Event, Phase, Sessions, brief, brief_effect};
use crate::bug::Bug;
use crate::network;
use crate::random::Random;
use crate::schedule::{MS, Micros, SECOND};
use broker::{NodeNumber, PartitionId};
use bytes::Bytes;
use partition::peer::forward::Forward;
use partition::{Command, Effect, Reply};
use std::collections::BTreeMap;
use switch::{Frames, LinkUp, Parcel};

/// What takes longer is late.
const LATE_AFTER: Micros = 500 * MS;

/// How often broken links are looked at.
const LOOK_AFTER: Micros = 20 * MS;

/// The link between two nodes, by their places, the lower first.
#[derive(Debug, Default)]
struct Link {
    epoch: u64,
    is_up: bool,
    /// How many ends have not heard that it is gone.
    untold: usize,
    /// It does not come up again before then.
    rests_until: Micros,
    /// When what was sent last arrives at the lower and at the higher end.
    arrives: [Micros; 2],
    /// How much later than usual that is, and until when.
    lag: [(Micros, Micros); 2],
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<(usize, usize), Link>,
}

impl Links {
    fn between(&mut self, one: usize, other: usize) -> &mut Link {
        self.links.entry((one.min(other), one.max(other))).or_default()
    }
}

impl Sessions {
    /// Links come up and break.
    pub(super) fn look_at_links(&mut self) {
        self.schedule.after(LOOK_AFTER, Event::Links);
        let now = self.schedule.now();
        let is_hit = self.phase == Phase::Works && self.options.faults.network;
        let ids: Vec<_> = self.nodes.iter().map(|node| node.id).collect();
        if ids.iter().any(|one| ids.iter().any(|other| self.network.is_cut(*one, *other))) {
            self.ledger.cut_at = now;
        }
        for higher in 1..self.nodes.len() {
            for lower in 0..higher {
                let [a, b] = [lower, higher].map(|node| self.nodes[node].id);
                let is_cut = self.network.is_cut(a, b) || self.network.is_cut(b, a);
                if is_cut {
                    [lower, higher].iter().for_each(|node| self.ledger.is_stormy(*node, now));
                }
                let breaks = is_hit && self.random.below(1_500) == 0;
                if is_hit && self.random.below(400) == 0 {
                    let way = self.random.below(2) as usize;
                    let (lag, until) = (self.random.between(500, 4_000) * MS, now + self.random.between(1, 4) * SECOND);
                    self.links.between(lower, higher).lag[way] = (lag, until);
                    [lower, higher].iter().for_each(|node| self.ledger.is_stormy(*node, until + lag));
                    self.trace.line(now, || format!("link n{} n{} is slow, way {way}", lower + 1, higher + 1));
                    // It has said something by then.
                    let (after, node) = (self.random.between(20, 600) * MS, if way == 0 { higher } else { lower });
                    self.schedule.after(after, Event::Outvoted { node });
                }
                let link = self.links.between(lower, higher);
                let (is_up, rests) = (link.is_up, link.untold > 0 || now < link.rests_until);
                let can = [(lower, higher), (higher, lower)].iter().all(|(node, other)| {
                    self.fronts[*node].is_some() && self.nodes[*node].is_up() && !self.refuses(*node, *other)
                });
                if is_up && (is_cut || breaks || !can) {
                    self.break_link(lower, higher);
                } else if !is_up && !rests && !is_cut && can {
                    self.raise_link(lower, higher);
                }
            }
        }
    }

    fn raise_link(&mut self, lower: usize, higher: usize) {
        let now = self.schedule.now();
        let link = self.links.between(lower, higher);
        link.epoch += 1;
        (link.is_up, link.arrives, link.lag) = (true, [now; 2], Default::default());
        let epoch = link.epoch;
        self.trace.line(now, || format!("link n{} n{} is up: {epoch}", lower + 1, higher + 1));
        for (end, other) in [(lower, higher), (higher, lower)] {
            let peer = self.fronts[other].as_ref().expect("it is up").life;
            let front = self.fronts[end].as_ref().expect("it is up");
            for shard in &front.shards {
                shard.mailbox.borrow_mut().push_back(Parcel::LinkUp(LinkUp { peer, epoch }));
            }
            self.carry(end);
        }
    }

    /// The link of two nodes is gone, and all that is on it.
    pub(super) fn break_link(&mut self, one: usize, other: usize) {
        let now = self.schedule.now();
        let rest = self.random.between(1, 200) * MS;
        let link = self.links.between(one, other);
        if !std::mem::replace(&mut link.is_up, false) {
            return;
        }
        (link.untold, link.rests_until) = (2, now + rest);
        let epoch = link.epoch;
        self.ledger.figures.links_broken += 1;
        if [one, other].iter().all(|node| self.nodes[*node].is_up()) {
            [one, other].iter().for_each(|node| self.ledger.is_stormy(*node, now));
        }
        self.trace.line(now, || format!("link n{} n{} breaks: {epoch}", one + 1, other + 1));
        for (node, peer) in [(one, other), (other, one)] {
            let (after, life) = (self.random.below(300) * MS, self.nodes[node].life);
            self.schedule.after(after, Event::LinkDown { node, life, peer });
        }
    }

    /// An end hears that its link is gone; one that fell meanwhile needs not.
    pub(super) fn link_down(&mut self, node: usize, life: u32, peer: usize) {
        self.links.between(node, peer).untold -= 1;
        let Some(front) = self.fronts[node].as_ref().filter(|_| self.nodes[node].life == life) else { return };
        let number = NodeNumber(self.nodes[peer].id.0 as u32);
        for shard in &front.shards {
            shard.mailbox.borrow_mut().push_back(Parcel::LinkDown(number));
        }
        self.carry(node);
    }

    /// A shard sends what it has for another node, if its link is still the one that it knows.
    pub(super) fn send_over(&mut self, from: usize, link: LinkUp, mut frames: Frames) {
        if self.fronts[from].as_ref().is_some_and(|front| front.bug == Some(Bug::LeaderIsSilent)) {
            frames.retain(|(_, forward)| !matches!(forward, Forward::Leads { .. }));
        }
        let (now, to) = (self.schedule.now(), link.peer.node as usize - 1);
        let delay = delay(&mut self.random, self.network.weather.delay_max, self.network.weather.loss);
        let known = self.links.between(from, to);
        if !known.is_up || known.epoch != link.epoch {
            return;
        }
        let way = usize::from(to > from);
        let (lag, until) = known.lag[way];
        let delay = if now < until { delay + lag } else { delay };
        let last = &mut known.arrives[way];
        *last = (now + delay).max(*last + 1);
        let arrives = *last;
        self.ledger.figures.forwarded += frames.len() as u64;
        for (partition, forward) in &frames {
            self.trace.line(now, || {
                let text = match forward {
                    Forward::Command(command) => brief(command),
                    Forward::Effect(effect) => brief_effect(effect),
                    other => format!("{other:?}"),
                };
                format!("n{} to n{} p{}: {text}", from + 1, to + 1, partition.0)
            });
        }
        if arrives > now + LATE_AFTER {
            self.note_late([from, to], &frames, arrives);
        }
        let packet = network::pack_forwards(&frames);
        self.schedule.at(arrives, Event::Forwards { from, to, epoch: link.epoch, packet });
    }

    /// What a consumer waits for that is on its way to the next leader of a queue comes late.
    fn note_late(&mut self, ends: [usize; 2], frames: &Frames, arrives: Micros) {
        let Some(topology) = self.nodes[ends[0]].topology() else { return };
        let is_of = |partition| frames.iter().any(|(of, frame)| *of == partition && moves_consumers(frame));
        for queue in topology.queues().filter(|queue| is_of(queue.partition)) {
            for end in ends {
                let known = self.ledger.late_until.entry((end, queue.name.to_string())).or_default();
                *known = (*known).max(arrives);
            }
        }
    }

    /// What was sent arrives, and goes to the shards that it is for.
    pub(super) fn arrive(&mut self, from: usize, to: usize, epoch: u64, packet: &Bytes) {
        let link = self.links.between(from, to);
        let (Some(front), true) = (&self.fronts[to], link.is_up && link.epoch == epoch) else { return };
        let ends = (self.nodes[from].id, self.nodes[to].id);
        let from = NodeNumber(ends.0.0 as u32);
        let mut by_shard: Vec<Frames> = front.shards.iter().map(|_| Vec::new()).collect();
        for (partition, forward) in network::open_forwards(packet, ends) {
            if let Some(shard) = front.shard_for(partition, &forward) {
                by_shard[shard].push((partition, forward));
            }
        }
        for (shard, frames) in by_shard.into_iter().enumerate().filter(|(_, frames)| !frames.is_empty()) {
            front.shards[shard].mailbox.borrow_mut().push_back(Parcel::Forwards(from, frames));
        }
        self.carry(to);
    }

    /// Something for another node beside what channels and partitions say.
    pub(super) fn forward(&mut self, node: usize, to: NodeNumber, partition: PartitionId, forward: Forward) {
        let Some(front) = &self.fronts[node] else { return };
        front.switch_of(partition).forward(to, partition, forward);
    }
}

/// Whether this has a consumer go on to the next leader: the end at the one before, who the next one is, and what is said
/// to it and by it of the beginning there.
fn moves_consumers(forward: &Forward) -> bool {
    match forward {
        Forward::Command(command) => matches!(command, Command::Consume { .. }),
        Forward::Effect(Effect::Reply { reply, .. }) => matches!(reply, Reply::Consuming | Reply::NotLeader),
        Forward::Effect(effect) => matches!(effect, Effect::Cancelled { .. }),
        other => matches!(other, Forward::Leads { .. }),
    }
}

/// How long a packet takes: what is lost is sent again.
fn delay(random: &mut Random, delay_max: Micros, loss: u64) -> Micros {
    let again = if random.chance(loss) { random.between(1, 200) * MS } else { 0 };
    random.between(50, delay_max.max(51)) + again
}
