//! What clients hear of nodes, and nodes of clients.

use super::{Cluster, Event, Link, brief_effect, brief_entry, group_of};
use crate::client::{Client, Now, Wish};
use crate::network;
use crate::node::{SessionId, StepOutput, TOPOLOGY};
use broker::ChannelKey;
use partition::Effect;

impl Cluster {
    /// Carries out what came out of a step of a node, and looks at how it stands.
    pub(super) fn settle(&mut self, node: usize, out: StepOutput) {
        let (now, id, life) = (self.schedule.now(), self.nodes[node].id, self.nodes[node].life);
        let StepOutput {
            later,
            frames,
            effects,
            resets,
            appended,
            repaired,
            lost_entries,
            decided,
            answers,
            lost,
            stopped,
            ..
        } = out;
        self.checks.figures.repaired += repaired;
        self.checks.figures.lost_entries += lost_entries;
        for (partition, term, index, body) in appended {
            if partition == TOPOLOGY {
                self.checks.topology.appended(id, term, index, body);
                continue;
            }
            let group = group_of(partition);
            self.trace.line(now, || format!("{id} p{group} append {index}@{} {}", term.0, brief_entry(&body)));
            self.checks.appended(id, group, term, index, body);
        }
        if self.nodes[node].is_up() {
            self.look_at_lives(node);
            for group in 0..self.plan.groups.len() {
                let (Some(view), Some(partition)) = (self.nodes[node].view(group), self.nodes[node].partition(group))
                else {
                    continue;
                };
                self.checks.observe(id, group, view, partition);
                if let Some(members) = self.members.as_mut().filter(|members| members.is_news(group, view.applied)) {
                    let membership = partition.replica().group().membership();
                    self.checks.members_are(group, membership.voters.iter().chain(&membership.voters_outgoing));
                    members.are(group, view.applied, membership);
                }
            }
        }
        let answered: Vec<u64> = answers.iter().map(|(token, _)| *token).collect();
        self.note_topology(node, &decided, &answered, &lost);
        for (after, happening) in later {
            self.schedule.after(after, Event::Node { node, life, happening });
        }
        for (to, partition, frame) in frames {
            let packet = network::pack(partition, &frame);
            let arrivals = self.network.send(id, to, &mut self.random);
            if arrivals.is_empty() {
                network::assert_damage_is_found(&packet);
            }
            for after in arrivals {
                let to = to.number() as usize - 1;
                self.schedule.after(after, Event::Packet { from: id, to, packet: packet.clone() });
            }
        }
        for (partition, said, effect) in effects {
            let group = group_of(partition);
            self.trace.line(now, || format!("{id} p{group} says {} ({said:?})", brief_effect(&effect)));
            self.checks.said(id, group, said, &effect);
            if let Effect::DeadLetter(letter) = &effect {
                self.send_letter(node, group, letter);
            }
            self.note_answer(&effect);
            if self.note_dead_letter(node, &effect) {
                continue;
            }
            let Some(session) = effect.channel().and_then(|c| self.nodes[node].session_of(c)) else { continue };
            self.tell_client(session, |session| Event::Effect { session, effect });
        }
        for session in resets {
            self.tell_client(session, |session| Event::Reset { session });
        }
        if let Some(why) = stopped {
            self.trace.line(now, || format!("{id} stops: {why}"));
            if why.contains("could not be synced") {
                self.checks.lost_unsynced(id);
            }
            self.fall(node);
        } else if self.nodes[node].disk.down().is_some() && self.nodes[node].is_up() {
            self.fall(node);
        }
    }

    pub(super) fn tell_client(&mut self, session: SessionId, event: impl FnOnce(SessionId) -> Event) {
        let after = self.random.between(50, 300);
        let now = self.schedule.now();
        let Some(link) = self.links.get_mut(&session) else { return };
        link.to_client = (now + after).max(link.to_client + 1);
        let at = link.to_client;
        self.schedule.at(at, event(session));
    }

    pub(super) fn with_client(&mut self, client: usize, act: impl FnOnce(&mut Client, &mut Now<'_>)) {
        let now = self.schedule.now();
        let mut wishes = Vec::new();
        let mut n = Now {
            now,
            draining: self.draining,
            checks: &mut self.checks,
            registry: &self.registry,
            wishes: &mut wishes,
        };
        let before = self.clients[client].session;
        act(&mut self.clients[client], &mut n);
        let mut session = before;
        for wish in wishes {
            match wish {
                Wish::Wake(after) => self.schedule.after(after, Event::Client { client }),
                Wish::Open(channel) => {
                    self.open(client, channel);
                    session = self.clients[client].session;
                }
                Wish::Send(command) => self.tell_node(session, |session| Event::Command { session, command }),
                Wish::Close { ended } => {
                    self.tell_node(session, |session| Event::Close { session, ended });
                    session = None;
                }
            }
        }
    }

    pub(super) fn tell_node(&mut self, session: Option<SessionId>, event: impl FnOnce(SessionId) -> Event) {
        let Some(session) = session else { return };
        let after = self.random.between(50, 300);
        let now = self.schedule.now();
        let Some(link) = self.links.get_mut(&session) else { return };
        link.to_node = (now + after).max(link.to_node + 1);
        let at = link.to_node;
        self.schedule.at(at, event(session));
    }

    /// Connects a client to a node that somebody says leads, or to any.
    pub(super) fn open(&mut self, client: usize, channel: ChannelKey) {
        let group = self.clients[client].group;
        let asked = self.random.below(self.nodes.len() as u64) as usize;
        let hint = self.nodes[asked].view(group).and_then(|v| v.leader).map(|l| l.number() as usize - 1);
        let node = match hint {
            Some(hint) if self.random.chance(80) => hint,
            _ => self.random.below(self.nodes.len() as u64) as usize,
        };
        let session = SessionId(self.next_session);
        self.next_session += 1;
        if !self.nodes[node].open(session, group, channel) {
            return;
        }
        let now = self.schedule.now();
        self.trace
            .line(now, || format!("c{client} opens s{} channel {} on n{}", session.0, channel.number(), node + 1));
        self.links.insert(session, Link { client, node, to_node: now, to_client: now });
        self.clients[client].session = Some(session);
        self.with_client(client, Client::opened);
    }
}
