//! A node's shards between its sessions and its partitions: what each leaves is carried to where it
//! goes, by mailboxes and in turns, at once or late.
//!
//! Invariant: what goes the same way keeps its order.

use super::front::{Crossroads, Desk, shard_of};
use super::{Event, Handed, NEW_FOR, Sent, Served, Sessions, brief, brief_effect};
use crate::bug::Bug;
use crate::checks::violated;
use crate::node::{StepOutput, TOPOLOGY};
use crate::schedule::{MS, Micros};
use broker::{NodeNumber, PartitionId};
use node::Waiting;
use partition::command::Disposition;
use partition::{Command, Effect, Publish};
use std::cell::RefCell;
use std::task::Waker;

impl Sessions {
    /// How long something takes between a session and a partition: little, or much if their shards
    /// are busy.
    pub(super) fn delay(&mut self) -> Micros {
        if self.random.chance(self.late) { self.random.between(1, 300) * MS } else { self.random.between(0, 40) }
    }

    /// Carries what sessions and switches left to where it goes, in its order.
    pub(super) fn carry(&mut self, node: usize) {
        let now = self.schedule.now();
        loop {
            let Some(front) = &self.fronts[node] else { return };
            let sent = front.sent.take();
            if sent.is_empty() {
                break;
            }
            for sent in sent {
                match sent {
                    Sent::Propose(token, change) => {
                        self.trace.line(now, || format!("n{} proposes {token} {change:?}", node + 1));
                        let mut out = StepOutput::default();
                        self.nodes[node].propose(token, &change, &mut out);
                        self.settle(node, out);
                    }
                    Sent::CatchUp(token) => {
                        let mut out = StepOutput::default();
                        self.nodes[node].wish(token, node::Wish::CatchUp, &mut out);
                        self.settle(node, out);
                    }
                    Sent::Mail(shard, parcel) => {
                        let Some(front) = &self.fronts[node] else { return };
                        front.shards[shard].mailbox.borrow_mut().push_back(parcel);
                    }
                    Sent::Hear(connection, channel, effect) => {
                        self.ledger.is_key(connection, channel);
                        self.trace.line(now, || {
                            format!("n{} c{connection}.{} <- {}", node + 1, channel.1, brief_effect(&effect))
                        });
                        self.with_session(connection, |session, cx| session.handle_effect(channel, effect, cx));
                    }
                    Sent::HearDecided(connection, channel, request, outcome) => {
                        self.trace
                            .line(now, || format!("n{} c{connection}.{} <- decided {outcome:?}", node + 1, channel.1));
                        self.with_session(connection, |session, cx| {
                            session.handle_decided(channel, request, outcome, cx);
                        });
                    }
                    Sent::Starve(connection, consumer) => {
                        let Some(served) = self.served.get_mut(&connection) else { continue };
                        served.starved.push(consumer);
                        self.with_session(connection, |_, _| {});
                    }
                    Sent::HoldAgain(shard, partitions) => {
                        let is_here = |served: &Served| (served.node, served.shard) == (node, shard);
                        let here = self.served.iter().filter(|(_, served)| is_here(served));
                        let mut connections: Vec<_> = here.map(|(connection, _)| *connection).collect();
                        connections.sort_unstable();
                        for connection in connections {
                            self.with_session(connection, |session, cx| session.hold_again(&partitions, cx));
                        }
                    }
                    Sent::Effect(effect) => self.say(node, TOPOLOGY, effect),
                }
            }
        }
        let shards = self.fronts[node].as_ref().map_or(0, |front| front.shards.len());
        (0..shards).for_each(|shard| self.rouse(node, shard));
    }

    /// Has a shard's task run, if something woke it: soon, or late if its thread is busy.
    fn rouse(&mut self, node: usize, shard: usize) {
        let Some(front) = &self.fronts[node] else { return };
        let Crossroads { switch, mailbox, is_due, .. } = &front.shards[shard];
        let wants = switch.inbox().borrow().is_woken() || !mailbox.borrow().is_empty();
        if wants && !is_due.replace(true) {
            let (after, life) = (self.delay(), self.nodes[node].life);
            self.schedule.after(after, Event::Shard { node, life, shard });
        }
    }

    /// The turn of a shard's task, as on the server: what came by mail, dead letters, what waits for
    /// partitions here, and what is for other shards.
    pub(super) fn turn(&mut self, node: usize, shard: usize) {
        let (now, life) = (self.schedule.now(), self.nodes[node].life);
        if self.nodes[node].stands_still(shard) {
            // Its thread is in a sync.
            return self.schedule.after(100, Event::Shard { node, life, shard });
        }
        let (Some(front), true) = (&self.fronts[node], self.nodes[node].is_up()) else { return };
        let Crossroads { switch, mailbox, is_due, looks_at } = &front.shards[shard];
        let (mail, mut out) = (mailbox.take(), StepOutput::default());
        mail.iter().for_each(|parcel| self.nodes[node].note_link(shard, parcel, now, &mut out));
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard, connection: 0 };
        is_due.set(false);
        switch.inbox().borrow_mut().start_step(Waker::noop());
        switch.look_at_queues(&desk);
        for parcel in mail {
            switch.take(parcel, &desk);
        }
        switch.resume_roads(&desk);
        switch.send_dead_letters(&desk);
        let (mut due, mut waiting, mut batches) = (Vec::new(), Waiting::default(), Vec::new());
        let mut inbox = switch.inbox().borrow_mut();
        inbox.waits().take_due(&mut due);
        for place in due {
            inbox.waits().swap(place, &mut waiting);
            let declared = waiting.declared.drain(..).map(Handed::Declare);
            let forwards = waiting.forwards.drain(..).map(|(from, forward)| Handed::Forward(from, forward));
            let commands = waiting.commands.drain(..).map(Handed::Command);
            let handed: Vec<_> = declared.chain(forwards).chain(commands).collect();
            batches.push((front.partition_at(shard, place), handed));
        }
        let (mut posted, mut away) = (Vec::new(), Vec::new());
        inbox.post_away(|link, frames| away.push((link, std::mem::take(frames))));
        inbox.post(|to, parcels, _| posted.push((to, std::mem::take(parcels))));
        drop(inbox);
        for (to, parcels) in posted {
            front.shards[to].mailbox.borrow_mut().extend(parcels);
        }
        switch.tell_leaders();
        // What one turn leaves for a partition comes to it in one step. Who lets gets go ahead takes
        // steps between.
        let are_letters_held = switch.has_dead_letters() && !switch.inbox().borrow().is_woken();
        let looks = (switch.is_leaderless() || are_letters_held) && looks_at.get() <= now;
        if looks {
            looks_at.set(now + switch::LEADERS_LOOK_MS * MS);
        }
        let at_once = if self.options.bug == Some(Bug::GetOvertakes) { 1 } else { usize::MAX };
        for (partition, mut left) in batches {
            while !left.is_empty() {
                let handed = left.drain(..left.len().min(at_once)).collect();
                let delay = self.delay();
                let Some(front) = &mut self.fronts[node] else { return };
                let last = front.to_partition.entry(partition).or_default();
                *last = (now + delay).max(*last + 1);
                self.schedule.at(*last, Event::Handed { node, life, partition, handed });
            }
        }
        away.into_iter().for_each(|(link, frames)| self.send_over(node, link, frames));
        if looks {
            self.schedule.after(switch::LEADERS_LOOK_MS * MS, Event::Shard { node, life, shard });
        }
        self.settle(node, out);
    }

    pub(super) fn hand(&mut self, node: usize, partition: PartitionId, handed: Handed) {
        let now = self.schedule.now();
        let command = match handed {
            Handed::Command(command) => command,
            Handed::Forward(from, forward) => {
                let mut out = StepOutput::default();
                self.nodes[node].receive_forward(partition, from, forward, &mut out);
                return self.settle(node, out);
            }
            Handed::Declare(queue) => {
                let mut out = StepOutput::default();
                self.nodes[node].declare(partition, queue, &mut out);
                return self.settle(node, out);
            }
        };
        if let (Some(front), Command::Close { queue, channel, request, .. }) = (&self.fronts[node], &command)
            && let Some(asker) = front.askers.borrow().get(queue)
        {
            front.asked_for.borrow_mut().insert((*channel, *request), *asker);
        }
        if self.options.bug == Some(Bug::RepeatIsLost) && self.is_repeat(&command) {
            return;
        }
        let command = match (command, self.options.bug) {
            (Command::Part { channel }, Some(Bug::ChannelIsForgotten)) => Command::Detach { channel },
            (command, _) => command,
        };
        if let Command::Publish(publish @ Publish { channel, publish_seq: first @ 1.., .. }) = &command {
            for seq in *first..*first + publish.count() {
                let is_new = self.handed.insert((partition, *channel, seq));
                self.ledger.figures.resent += u64::from(!is_new);
            }
        }
        if let Command::Publish(publish) = &command {
            self.ledger.figures.in_rows += publish.count() - 1;
        }
        self.trace.line(now, || format!("n{} p{} <- {}", node + 1, partition.0, brief(&command)));
        let mut out = StepOutput::default();
        self.nodes[node].enqueue_for(partition, command, &mut out);
        self.settle(node, out);
    }

    /// Whether some leader was told before what a command settles.
    fn is_repeat(&mut self, command: &Command) -> bool {
        let Command::Settle { queue, first, count, outcome: Disposition::Ack, .. } = *command else { return false };
        // Not in short: all of them have to be noted.
        (first..first.saturating_add(count)).filter(|seq| self.settled.insert((queue.0, *seq))).count() == 0
    }

    /// A partition has another leader than before.
    pub(super) fn say_leader(
        &mut self,
        node: usize,
        partition: PartitionId,
        (leader, term): (Option<NodeNumber>, u64),
    ) {
        let (now, life) = (self.schedule.now(), self.nodes[node].life);
        let Some(front) = &mut self.fronts[node] else { return };
        // Who comes back may have been told so as the member that it was.
        let is_known = !self.options.returns || front.leaders.leader(partition) == leader;
        if front.told_leaders.insert(partition, (leader, term)) == Some((leader, term)) && is_known {
            return;
        }
        let last = front.from_partition.entry(partition).or_default();
        *last = now.max(*last + 1);
        self.schedule.at(*last, Event::Leader { node, life, partition, leader, term });
    }

    /// A partition says something: it comes to the sessions, in its order.
    pub(super) fn say(&mut self, node: usize, partition: PartitionId, effect: Effect) {
        if let (Effect::Refuse { channel, first, count }, false) = (&effect, partition.is_in_memory()) {
            // No queue is full here, and what a leader cannot promise any more goes to the next one. Who has just
            // come back may not know the queue yet, nor what of it was taken in when; the latter neither who has
            // just got a snapshot.
            let installed = self.installed.get(&(node, partition)).map_or(0, |(_, at)| *at);
            let is_new = self.schedule.now() < self.started[&node].max(installed) + NEW_FOR;
            let of = (channel.words(), first, count);
            if !is_new {
                violated("refused", &format!("n{} p{} refuses {of:?}", node + 1, partition.0));
            }
        }
        let (now, life, delay) = (self.schedule.now(), self.nodes[node].life, self.delay());
        let Some(front) = &mut self.fronts[node] else { return };
        let last = front.from_partition.entry(partition).or_default();
        *last = (now + delay).max(*last + 1);
        self.schedule.at(*last, Event::Effect { node, life, partition, effect });
    }

    /// What a partition said arrives.
    pub(super) fn hear(&mut self, node: usize, partition: PartitionId, effect: Effect) {
        let now = self.schedule.now();
        self.trace.line(now, || format!("n{} p{} says {}", node + 1, partition.0, brief_effect(&effect)));
        let Some(front) = &self.fronts[node] else { return };
        let shard = shard_of(&front.directory, partition);
        let switch = &front.shards[shard].switch;
        match (&effect, self.options.bug) {
            (Effect::Reply { channel, request, .. }, Some(Bug::DeletionIsAbandoned))
                if *channel == switch.own_key() =>
            {
                // A wrong host forgets what it began when nobody waits for it.
                let asked_for = front.asked_for.borrow().get(&(*channel, *request)).copied();
                let is_there = |channel| front.shards.iter().any(|shard| shard.switch.number_of(channel).is_some());
                if asked_for.is_some_and(|channel| !is_there(channel)) {
                    return;
                }
            }
            (Effect::Reply { channel, reply: partition::Reply::NotLeader, .. }, Some(Bug::NotLeaderIsSwallowed))
                if front.shards.iter().all(|shard| shard.switch.own_key() != *channel) =>
            {
                return;
            }
            (Effect::DeadLetter(_), Some(Bug::LetterIsLost)) => return,
            _ => {}
        }
        let desk = Desk { front, node: RefCell::new(&mut self.nodes[node]), now, shard, connection: 0 };
        switch.deliver(std::iter::once(effect).peekable(), Some(partition), &desk);
        self.carry(node);
    }
}
