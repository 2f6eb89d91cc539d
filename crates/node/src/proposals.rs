//! Changes that this node wants the topology's group to make, where the group has members on other
//! nodes: on their way to whoever leads it, and back.
//!
//! Invariants: a change is carried out at most once. It is sent again only where it is certain that
//! the log has not got it: the leader said so, or a later term began and it was not in the log
//! before; a leader takes it only in the term for which it was sent. Whoever waits hears what became
//! of it when it is applied on this node, or, after [`GIVE_UP_MS`], that nobody knows.
//!
//! Changes come into the log in the order in which they were wanted. So what was wanted later waits until it
//! is known what became of everything that an earlier leader was sent, and what was on its way over a link
//! that broke goes first over the next one. Only a leader whose log was full for one change and not for the
//! next, and what was given up, leave that order.

use crate::Millis;
use crate::topology_member::Proposer;
use broker::{NodeLife, NodeNumber};
use bytes::Bytes;
use consensus::{Role, Term};
use partition::log_partition::{AppliedEntry, LogPartition, Machine, Origin};
use partition::peer::forward::Forward;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// After so long nobody waits any more for a change whose fate is unknown.
pub(crate) const GIVE_UP_MS: Millis = 10_000;
/// A change that was sent and not heard of is sent again after so long, in case that the link broke.
const AGAIN_MS: Millis = 1_000;
/// What a leader remembers of the numbers that one node used in its term.
const SEEN_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct Proposals {
    life: NodeLife,
    /// Not on its way yet, in the order in which it was wanted.
    waiting: VecDeque<Wanted>,
    /// On its way, by the number in its entry.
    sent: BTreeMap<u64, Sent>,
    /// How many were wanted.
    wanted: u64,
    /// Somebody was asked in vain: nobody is asked again before the next tick.
    is_held: bool,
    last: u64,
    /// Snapshots that were taken over when somebody looked last.
    installed: u64,
    /// What this member took from others in its term as leader.
    seen: BTreeMap<NodeLife, BTreeSet<u64>>,
    seen_in: Term,
}

#[derive(Debug)]
struct Wanted {
    /// Its place among all that were wanted, from 1.
    place: u64,
    token: u64,
    change: Bytes,
    give_up_at: Millis,
}

#[derive(Debug)]
struct Sent {
    wanted: Wanted,
    term: Term,
    again_at: Millis,
}

/// The machine, which is told of its own numbers.
struct Numbered<'a, M> {
    machine: &'a mut M,
    sent: &'a mut BTreeMap<u64, Sent>,
}

impl<M: Machine> Machine for Numbered<'_, M> {
    fn apply(&mut self, entry: AppliedEntry) {
        let sent = entry.token.and_then(|number| self.sent.remove(&number));
        self.machine.apply(AppliedEntry { token: sent.map(|sent| sent.wanted.token), ..entry });
    }

    fn lost(&mut self, _: u64) {}

    fn snapshot(&self) -> Vec<u8> {
        self.machine.snapshot()
    }

    fn can_read(&self, state: &Bytes) -> bool {
        self.machine.can_read(state)
    }

    fn install(&mut self, state: &Bytes) {
        self.machine.install(state);
    }
}

impl Proposals {
    pub(crate) fn new(life: NodeLife) -> Proposals {
        Proposals {
            life,
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            wanted: 0,
            is_held: false,
            last: 0,
            installed: 0,
            seen: BTreeMap::new(),
            seen_in: Term(0),
        }
    }

    /// This node.
    pub(crate) fn own(&self) -> NodeNumber {
        NodeNumber(self.life.node)
    }

    /// The machine as its log is to see it.
    pub(crate) fn machine<'a, M: Machine>(&'a mut self, machine: &'a mut M) -> impl Machine + 'a {
        Numbered { machine, sent: &mut self.sent }
    }

    /// A tick went by.
    pub(crate) fn tick(&mut self) {
        self.is_held = false;
    }

    /// Takes what another node sent.
    pub(crate) fn receive(
        &mut self,
        from: NodeLife,
        forward: Forward,
        log: &mut LogPartition,
        out: &mut Vec<(NodeNumber, Forward)>,
    ) {
        match forward {
            Forward::Propose { token, term, change } => {
                let status = log.replica().group().status();
                if self.seen_in != status.term {
                    (self.seen_in, self.seen) = (status.term, BTreeMap::new());
                }
                if status.role != Role::Leader || status.term != term {
                    return out.push((NodeNumber(from.node), Forward::NotProposed { token }));
                }
                let seen = self.seen.entry(from).or_default();
                // It came before, and only the answer is late. What is older than all that is remembered may
                // have been forgotten: it is not taken twice, and its node gives it up.
                let may_be_forgotten = seen.len() >= SEEN_MAX && seen.first().is_some_and(|first| token < *first);
                if may_be_forgotten || seen.contains(&token) {
                    return;
                }
                match log.propose_for(Origin { life: from.word(), token }, &change) {
                    true => {
                        seen.insert(token);
                        while seen.len() > SEEN_MAX {
                            seen.pop_first();
                        }
                    }
                    false => out.push((NodeNumber(from.node), Forward::NotProposed { token })),
                }
            }
            Forward::NotProposed { token } => {
                if let Some(sent) = self.sent.remove(&token) {
                    self.put_back(sent.wanted);
                    self.is_held = true;
                }
            }
            _ => {}
        }
    }

    /// It is not on its way any more: back to its place.
    fn put_back(&mut self, wanted: Wanted) {
        let at = self.waiting.partition_point(|other| other.place < wanted.place);
        self.waiting.insert(at, wanted);
    }

    /// How many changes were wanted so far.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Of so many changes that were wanted first it is known what became of them.
    pub(crate) fn known(&self) -> u64 {
        let unknown = self.sent.values().map(|sent| &sent.wanted).chain(self.waiting.front());
        unknown.map(|wanted| wanted.place - 1).min().unwrap_or(self.wanted)
    }

    /// There is a new link to whoever leads: what was on its way over the one before may be lost.
    pub(crate) fn leader_linked(&mut self) {
        self.sent.values_mut().for_each(|sent| sent.again_at = 0);
    }

    /// Looks at what is under way: what is certainly not in the log is to go out again. True if there is
    /// such.
    pub(crate) fn look(&mut self, now: Millis, log: &LogPartition, machine: &mut impl Proposer) -> bool {
        let installed = log.snapshots_installed();
        if std::mem::replace(&mut self.installed, installed) != installed {
            // It may be in the snapshot or not.
            let sent = std::mem::take(&mut self.sent);
            sent.into_values().for_each(|sent| machine.lost(sent.wanted.token));
        }
        let term = log.applied_position().term;
        let is_over = |sent: &Sent| sent.term < term;
        let over: Vec<u64> = self.sent.iter().filter(|(_, sent)| is_over(sent)).map(|(number, _)| *number).collect();
        let has_over = !over.is_empty();
        for number in over {
            let sent = self.sent.remove(&number).expect("it was listed");
            self.put_back(sent.wanted);
        }
        self.sent.retain(|_, sent| {
            let is_late = sent.wanted.give_up_at <= now;
            if is_late {
                machine.lost(sent.wanted.token);
            }
            !is_late
        });
        self.waiting.retain(|wanted| {
            let is_late = wanted.give_up_at <= now;
            if is_late {
                machine.lost(wanted.token);
            }
            !is_late
        });
        has_over
    }

    /// Adds a change that is wanted; with number 0 nobody waits for it.
    pub(crate) fn want(&mut self, now: Millis, token: u64, change: Bytes) {
        self.wanted += 1;
        self.waiting.push_back(Wanted { place: self.wanted, token, change, give_up_at: now + GIVE_UP_MS });
    }

    /// Sends what waits to whoever leads, or appends it here.
    pub(crate) fn send(&mut self, now: Millis, log: &mut LogPartition, out: &mut Vec<(NodeNumber, Forward)>) {
        let status = log.replica().group().status();
        let Some(leader) = status.leader else { return };
        let (leads, term) = (status.role == Role::Leader, status.term);
        let node = NodeNumber(u32::try_from(leader.0).expect("numbers of nodes have 32 bits"));
        if !leads {
            for (number, sent) in self.sent.iter_mut().filter(|(_, sent)| sent.term == term && sent.again_at <= now) {
                sent.again_at = now + AGAIN_MS;
                let change = sent.wanted.change.clone();
                out.push((node, Forward::Propose { token: *number, term, change }));
            }
        }
        if self.is_held && !leads {
            return;
        }
        // An earlier leader may have it in a log that this one has, or not.
        if self.sent.first_key_value().is_some_and(|(_, sent)| sent.term < term) {
            return;
        }
        while let Some(wanted) = self.waiting.pop_front() {
            self.last += 1;
            let number = self.last;
            if leads {
                if !log.propose_for(Origin { life: self.life.word(), token: number }, &wanted.change) {
                    self.waiting.push_front(wanted);
                    break;
                }
            } else {
                out.push((node, Forward::Propose { token: number, term, change: wanted.change.clone() }));
            }
            self.sent.insert(number, Sent { wanted, term, again_at: now + AGAIN_MS });
        }
    }
}

#[cfg(test)]
mod tests;
