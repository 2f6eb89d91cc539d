//! The nodes behind the sessions: what comes out of their steps, how they start and fall, and what
//! goes wrong with them.
//!
//! Invariant: with a node its sessions go, unheard; clients are let in once the node has read its
//! log to the end.

use super::front::{Desk, Front, PARTITIONS, Proposer, Sent};
use super::holdings::Place;
use super::{Event, Phase, Sessions, members};
use crate::bug::Bug;
use crate::network::{self, Weather};
use crate::node::{Node, StepOutput, View};
use crate::schedule::MS;
use broker::topology::{Command as Change, CommandReply as Decision, Refusal, Topology};
use broker::{NodeLife, NodeNumber, PartitionId};
use node::Announcing;
use partition::message::MessageView;
use partition::{Command, Effect, QueuePartition, Reply};
use std::cell::RefCell;
use std::sync::Arc;
use storage::disk::{Crash, SurvivalUnit};
use switch::{Parcel, Tell};

impl Sessions {
    /// Carries out what came out of a step of a node.
    pub(super) fn settle(&mut self, node: usize, out: StepOutput) {
        let (now, id, life) = (self.schedule.now(), self.nodes[node].id, self.nodes[node].life);
        for (after, happening) in out.later {
            self.schedule.after(after, Event::Node { node, life, happening });
        }
        for (to, partition, frame) in out.frames {
            let packet = network::pack(partition, &frame);
            for after in self.network.send(id, to, &mut self.random) {
                let (from, to) = (id, to.number() as usize - 1);
                self.schedule.after(after, Event::Packet { from, to, packet: packet.clone(), waited: false });
            }
        }
        if let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up()) {
            let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard: 0, connection: 0 };
            {
                let topology = desk.topology();
                switch::tell_partitions(&out.follows, &topology, &desk);
            }
            switch::follow(&out.follows, &desk);
            self.carry(node);
        }
        if let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up()) {
            let mut desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard: 0, connection: 0 };
            self.ledger.figures.passed_over += out.passed_over.len() as u64;
            for (shard, consumer) in out.passed_over {
                desk.shard = shard;
                desk.switch().pass_over(consumer, &desk);
            }
            self.carry(node);
        }
        for (to, partition, forward) in out.forwards {
            self.forward(node, to, partition, forward);
        }
        for (partition, _, effect) in out.effects {
            self.note_given(node, partition, &effect);
            self.say(node, partition, effect);
        }
        self.look_at_holdings(node);
        self.look_at_leases(node, &out.decided);
        let mut leaders = Vec::new();
        if let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up() && self.nodes.len() > 1) {
            let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard: 0, connection: 0 };
            for group in 0..PARTITIONS as usize {
                let node = desk.node.borrow();
                if let Some(partition) = node.partition(group) {
                    let (term, switch) = (partition.term().0, front.switch_of(partition.id()));
                    if !switch.believes(partition, &desk) {
                        continue;
                    }
                    switch.note_term(partition.id(), term);
                    leaders.push((partition.id(), (partition.leader(), term)));
                    let snapshots = partition.snapshots_installed();
                    let installed = self.installed.entry((id.0 as usize - 1, partition.id())).or_default();
                    if installed.0 != snapshots {
                        *installed = (snapshots, now);
                    }
                    switch.note_member(partition, &desk);
                }
            }
        }
        leaders.into_iter().for_each(|(partition, leader)| self.say_leader(node, partition, leader));
        self.check_members(node);
        self.carry(node);
        let lost = out.lost.into_iter().map(|token| (token, Err(Refusal::undecided())));
        for (token, outcome) in out.answers.into_iter().chain(lost) {
            self.decided(node, token, outcome);
        }
        self.open(node);
        if let Some(why) = out.stopped {
            self.trace.line(now, || format!("{id} stops: {why}"));
            self.fall(node);
        } else if self.nodes[node].disk.down().is_some() && self.nodes[node].is_up() {
            self.fall(node);
        }
    }

    /// The ledger knows of what a leader gives out, but for one that was voted out and does not know
    /// it: what that says is of no account.
    fn note_given(&mut self, node: usize, partition: PartitionId, effect: &Effect) {
        let delivery = match effect {
            Effect::Deliver(delivery) | Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => delivery,
            _ => return,
        };
        let of = |node: &Node| node.partition(partition.0 as usize - 1).map_or(0, |member| member.term().0);
        if partition.is_in_memory() || self.nodes.iter().any(|node| of(node) > delivery.term) {
            return;
        }
        let Some(topology) = self.nodes[node].topology() else { return };
        let Some(queue) = topology.queue(delivery.queue) else { return };
        let view = MessageView::parse(&delivery.message).expect("partitions deliver whole messages");
        let name = queue.name.to_string();
        self.ledger.given(view.body(), &name, delivery.consumer);
        if let Some(id) = self.ledger.may_expire(view.body(), &name) {
            let place = Place { partition, queue: delivery.queue, seq: delivery.seq };
            self.holdings.given(place, id, delivery.needs_ack.then_some(delivery.consumer));
        }
    }

    /// The topology decided about something that was proposed here, or never will.
    pub(super) fn decided(&mut self, node: usize, token: u64, outcome: Result<Decision, Refusal>) {
        let Some(front) = &mut self.fronts[node] else { return };
        if front.said == Some(token) {
            let is_lost = matches!(&outcome, Err(refusal) if *refusal == Refusal::undecided());
            front.said = None;
            if !is_lost {
                front.to_say = None;
            }
            return;
        }
        let Some(proposer) = front.proposers.borrow_mut().remove(&token) else { return };
        let Proposer { shard, channel, request } = proposer;
        front.sent.borrow_mut().push(Sent::Mail(shard, Parcel::Decided { channel, request, outcome }));
        self.carry(node);
    }

    /// Lets clients in once the topology was read as far as anybody was promised something of it:
    /// what no queue's log keeps is told to the partitions before. A node that is alone leads all by
    /// then.
    pub(super) fn open(&mut self, node: usize) {
        let serves = |view: Option<View>| view.is_some_and(|view| view.serves);
        let alone = self.nodes.len() == 1;
        let all_lead = (0..PARTITIONS as usize).all(|group| serves(self.nodes[node].view(group)));
        let Some(front) = self.fronts[node].as_mut() else { return };
        if front.is_open || alone && !all_lead {
            return;
        }
        if !alone {
            // Whoever begins to lead a partition looks for orphans then.
            return self.announce(node);
        }
        let mut orphans = Vec::new();
        let known = self.nodes[node].topology().expect("it serves");
        for group in 0..PARTITIONS as usize {
            let partition = self.nodes[node].partition(group).expect("it is up");
            let gone = partition.queue_ids().into_iter().filter(|queue| known.queue(*queue).is_none());
            orphans.extend(gone.map(|queue| (partition.id(), Command::Delete { queue })));
        }
        let front = self.fronts[node].as_mut().expect("it is there");
        front.is_open = true;
        orphans.into_iter().for_each(|(partition, command)| front.switch_of(partition).command(partition, command));
        self.carry(node);
    }

    /// Has the next thing decided that a node of a cluster has decided before it lets clients in; lets
    /// them in once that was all.
    fn announce(&mut self, node: usize) {
        let Some(front) = self.fronts[node].as_mut().filter(|front| front.said.is_none()) else { return };
        let Some(topology) = self.nodes[node].topology() else { return };
        if front.to_say.is_none() {
            front.to_say = match front.announcing.as_mut() {
                Some(announcing) => announcing.next(topology),
                None => next_of_known(&mut front.known_said, topology),
            };
        }
        let Some(change) = front.to_say.clone() else {
            front.is_open = true;
            front.leaders.know_members();
            return self.check_open(node);
        };
        let token = front.next();
        front.said = Some(token);
        let mut out = StepOutput::default();
        self.nodes[node].propose(token, &change, &mut out);
        self.settle(node, out);
    }

    pub(super) fn start(&mut self, node: usize) {
        let (now, mut out) = (self.schedule.now(), StepOutput::default());
        self.lives += 1;
        let life = NodeLife { node: node as u32 + 1, start: self.lives };
        self.nodes[node].start_number = life.start;
        self.nodes[node].shards = self.random.between(1, 3) as usize;
        self.started.insert(node, now);
        match self.nodes[node].start(now, &mut out) {
            Ok(_) => {
                self.trace.line(now, || format!("n{} starts", node + 1));
                self.ledger.figures.restarts += 1;
                if self.nodes.len() > 1
                    && let Some(topology) = self.nodes[node].topology_mut()
                {
                    topology.set_own_home(Some(NodeNumber(life.node)));
                }
                let directory = self.nodes[node].directory().expect("it is up").clone();
                self.ledger.figures.spread += u64::from(directory.shards() > 1);
                let name = self.nodes[node].name();
                let announcing = self.nodes[node].record.clone().map(|record| {
                    let said = (name.as_str(), &*members::address_of(&self.nodes[node]));
                    Announcing::new(NodeNumber(life.node), said, members::CAN, record, PARTITIONS)
                });
                let has_peers = self.nodes.len() > 1;
                let front = Front::new(life, directory, has_peers, announcing, self.random.fork(), self.options.bug);
                for shard in &front.shards {
                    self.sizes.away.into_iter().for_each(|bytes| shard.switch.limit_bytes_away(bytes));
                }
                self.fronts[node] = Some(front);
                self.forget_rules(node);
                self.carry(node);
                self.settle(node, out);
            }
            Err(error) => {
                self.trace.line(now, || format!("n{} fails to start: {error}", node + 1));
                self.fall(node);
            }
        }
    }

    /// A wrong host, alone, takes from its queues the rules that the start told them.
    fn forget_rules(&mut self, node: usize) {
        let (Some(front), Some(topology)) = (&self.fronts[node], self.nodes[node].topology()) else { return };
        if self.options.bug != Some(Bug::RulesAreForgotten) {
            return;
        }
        for queue in topology.queues().filter(|queue| !queue.id.is_local()) {
            let command = Command::Configure { queue: queue.id, rules: Arc::default() };
            front.switch_of(queue.partition).command(queue.partition, command);
        }
    }

    /// A node is down. Its sessions are gone with it, and what its sockets held; it comes back
    /// after a while.
    pub(super) fn fall(&mut self, node: usize) {
        let now = self.schedule.now();
        self.nodes[node].stop();
        self.fronts[node] = None;
        let crash = self.nodes[node].disk.down();
        if crash.is_none() {
            self.nodes[node].disk.crash(Crash::Process);
        }
        if crash == Some(Crash::Power) {
            self.nodes[node].boot += 1;
        }
        self.trace.line(now, || format!("n{} is down: {crash:?}", node + 1));
        (0..self.nodes.len()).filter(|other| *other != node).for_each(|other| self.break_link(node, other));
        let survival = *self.random.pick(&[SurvivalUnit::Nothing, SurvivalUnit::Sector, SurvivalUnit::Everything]);
        self.nodes[node].disk.set_survival(survival);
        self.nodes[node].disk.clear_faults();
        self.nodes[node].disk.restart();
        let gone: Vec<super::ConnectionId> =
            self.served.iter().filter(|(_, s)| s.node == node).map(|(id, _)| *id).collect();
        for connection in gone {
            self.served.remove(&connection);
            self.schedule.after(self.random.below(2 * MS), Event::Gone { connection });
        }
        let (after, life) = (self.random.between(20, 1_500) * MS, self.nodes[node].life);
        self.schedule.after(after, Event::Restart { node, life });
    }

    /// Something goes wrong.
    pub(super) fn weather(&mut self) {
        if self.phase != Phase::Works {
            return;
        }
        self.schedule.after(self.random.between(100, 1_500) * MS, Event::Weather);
        let faults = self.options.faults;
        let node = self.random.below(self.nodes.len() as u64) as usize;
        match self.random.below(100) {
            0..20 if faults.crashes && self.nodes[node].is_up() => {
                self.nodes[node].disk.crash(Crash::Process);
                self.fall(node);
            }
            20..40 if faults.power && self.nodes[node].is_up() => {
                self.nodes[node].disk.crash(Crash::Power);
                self.fall(node);
            }
            40..46 if faults.disks => self.nodes[node].disk_slowness = *self.random.pick(&[1, 1, 5, 30]),
            46..54 if faults.pauses => {
                // Some for longer than anybody who is answered waits for the node.
                self.nodes[node].paused_until = self.schedule.now() + self.random.between(50, 600) * MS;
                self.ledger.is_stormy(node, self.nodes[node].paused_until);
            }
            54..70 if faults.network => self.move_leaders(),
            70..76 if faults.network && self.nodes.len() > 1 => self.network.change_weather(&mut self.random),
            76..82 if faults.network && self.nodes.len() > 1 => {
                let ids: Vec<_> = self.nodes.iter().map(|node| node.id).collect();
                self.network.cut_some(&ids, &mut self.random);
            }
            82..88 if faults.rot && self.nodes.len() > 1 => {
                // Always the same node, so that the others have what it lost.
                if let Some(name) = self.nodes[0].rot(&mut self.random) {
                    self.trace.line(self.schedule.now(), || format!("n1 finds rot in {name}"));
                }
            }
            94..96 if faults.power && self.nodes.len() > 1 => {
                for node in (0..self.nodes.len()).filter(|node| self.nodes[*node].is_up()).collect::<Vec<_>>() {
                    self.nodes[node].disk.crash(Crash::Power);
                    self.fall(node);
                }
            }
            94..100 => {
                let is_on = self.fronts[node].as_ref().is_some_and(|front| front.is_alarmed.get());
                self.set_alarm(node, !is_on);
            }
            _ => {}
        }
    }

    /// Publishers of a node are held back, or let go on.
    fn set_alarm(&mut self, node: usize, on: bool) {
        let now = self.schedule.now();
        let Some(front) = &self.fronts[node] else { return };
        if front.is_alarmed.replace(on) == on {
            return;
        }
        self.trace.line(now, || format!("n{} has an alarm: {on}", node + 1));
        self.ledger.figures.alarms += u64::from(on);
        let here: Vec<_> = self.served.iter().filter(|(_, served)| served.node == node).map(|(id, _)| *id).collect();
        for connection in here {
            let served = self.served.get_mut(&connection).expect("it was listed");
            served.amqp.set_blocked(on.then_some("low on memory"));
            self.with_session(connection, |_, _| {});
        }
    }

    /// Somebody else is to lead the topology's group, or a partition.
    pub(super) fn move_leaders(&mut self) {
        self.ledger.figures.leaders_moved += 1;
        let to = self.nodes[self.random.below(self.nodes.len() as u64) as usize].id;
        let group = self.random.below(u64::from(PARTITIONS) + 1) as usize;
        for node in &mut self.nodes {
            match group < PARTITIONS as usize {
                true => node.transfer(group, to),
                false => node.transfer_topology(to),
            }
        }
    }

    /// Everything that a node leads goes to others.
    pub(super) fn outvote(&mut self, node: usize) {
        if self.phase != Phase::Works {
            return;
        }
        let leads = |group: &usize| self.nodes[node].partition(*group).is_some_and(QueuePartition::is_leading);
        for group in (0..PARTITIONS as usize).filter(leads).collect::<Vec<_>>() {
            let next = (node as u64 + self.random.between(1, self.nodes.len() as u64 - 1)) % self.nodes.len() as u64;
            self.ledger.figures.leaders_moved += 1;
            let to = self.nodes[next as usize].id;
            self.nodes[node].transfer(group, to);
        }
    }

    pub(super) fn heal(&mut self) {
        self.late = 0;
        self.clients.iter_mut().for_each(|client| client.is_done = true);
        self.network.heal();
        self.network.weather = Weather::FAIR;
        for node in &mut self.nodes {
            (node.paused_until, node.disk_slowness) = (0, 1);
        }
        if self.options.bug != Some(Bug::AlarmStays) {
            (0..self.nodes.len()).for_each(|node| self.set_alarm(node, false));
        }
    }
}

/// What a node that the map knows from the start has decided before it lets clients in: behind the first it
/// knows all that was decided before it started.
fn next_of_known(said: &mut u32, topology: &Topology) -> Option<Change> {
    *said += 1;
    match *said {
        1 => Some(Change::RaiseVersion { version: 1 }),
        2 => topology.own_home().map(Change::EndHome),
        _ => None,
    }
}
