//! The road of dead letters: from the leader that gave a message up to the leader of the queue that
//! it goes to, and back.
//!
//! As between the server's nodes: at most once, a letter is sent once and may be lost; at least
//! once, its queue hears what became of it, and after some time without an answer that nothing did.
//! Invariant: a letter gets its number where it arrives, so that the numbers of a channel grow in
//! the order in which its partition sees them.

use super::{Cluster, Event};
use crate::bug::Bug;
use crate::checks::id_of;
use crate::client::dead_letter_channel;
use crate::registry::name_of;
use crate::schedule::{MS, Micros, SECOND};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use consensus::NodeId;
use partition::command::{Durability, Level, Target};
use partition::message::MessageView;
use partition::{Command, DeadLetter, Effect, Message, Publish};
use std::collections::BTreeMap;

/// How long a queue waits for an answer.
const ANSWER_TIMEOUT: Micros = 2 * SECOND;
/// Of a hundred letters that want an answer, so many find no place the first time.
const UNROUTED: u64 = 10;

/// A letter that its queue waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    node: usize,
    life: u32,
    group: usize,
    queue: QueueId,
    seq: u64,
}

/// Letters that arrived and are not answered, by channel and number.
#[derive(Default)]
pub(super) struct AwaitedDeadLetters {
    waiting: BTreeMap<(ChannelKey, u64), Origin>,
    last: u64,
}

/// What happens to a letter.
pub(super) enum Step {
    /// It arrives.
    Arrives { to: usize, group: usize, queue: QueueId, message: Message, origin: Option<Origin> },
    /// What became of it arrives.
    Answered { origin: Origin, is_safe: bool },
}

impl Cluster {
    /// A queue gave a message up.
    pub(super) fn send_letter(&mut self, node: usize, group: usize, letter: &DeadLetter) {
        let bug = self.options.bug;
        let &(target, name) =
            self.plan.dead_letters_of.get(&name_of(letter.queue)).expect("what dead-letters has a place");
        let grave = self.registry.current(name);
        if let Some(id) = MessageView::parse(&letter.message).and_then(|view| id_of(view.body())) {
            self.checks.ends.letter(name, id, grave);
        }
        // Whoever publishes it asks the topology, which may know neither the queue nor its grave
        // any more.
        let grave = grave.filter(|_| self.registry.exists(letter.queue));
        let life = self.nodes[node].life;
        let origin = Origin { node, life, group, queue: letter.queue, seq: letter.seq };
        let origin = letter.wants_answer.then_some(origin);
        if let Some(origin) = origin {
            let unrouted = !self.draining && self.random.chance(UNROUTED);
            if bug == Some(Bug::LetterIsLost) || unrouted || grave.is_none() {
                self.answer(50, origin, bug == Some(Bug::LetterIsLost));
                return;
            }
            self.answer(ANSWER_TIMEOUT, origin, false);
        }
        let Some(queue) = grave else { return };
        let view = MessageView::parse(&letter.message).expect("partitions hold whole messages");
        let message = Message {
            exchange: Bytes::from_static(b"dlx"),
            routing_key: Bytes::from_static(b"q"),
            properties: Bytes::from_static(&[0x10, 0, 2]),
            body: view.body_of(&letter.message),
        };
        let knows = self.who_knows(target, node);
        let leader = self.nodes[knows].view(target).and_then(|view| view.leader);
        let Some(to) = leader.map(|id| id.number() as usize - 1) else { return };
        let copies = if bug == Some(Bug::LetterIsDoubled) { 2 } else { 1 };
        let Some(after) = self.way(node, to) else { return };
        for _ in 0..copies {
            let step = Step::Arrives { to, group: target, queue, message: message.clone(), origin };
            self.schedule.after(after, Event::DeadLetter(step));
        }
    }

    /// After how long something sent by one node arrives at another, if it does; once.
    fn way(&mut self, from: usize, to: usize) -> Option<Micros> {
        if from == to {
            return Some(50);
        }
        let (from, to) = (self.nodes[from].id, self.nodes[to].id);
        self.network.send(from, to, &mut self.random).first().copied()
    }

    fn answer(&mut self, after: Micros, origin: Origin, is_safe: bool) {
        self.schedule.after(after, Event::DeadLetter(Step::Answered { origin, is_safe }));
    }

    pub(super) fn dead_letter(&mut self, step: Step) {
        let mut out = crate::node::StepOutput::default();
        let node = match step {
            Step::Arrives { to, group, queue, .. } if !self.nodes[to].knows_queue(group, queue) => {
                // Its grave went meanwhile: it has no place.
                if let Step::Arrives { origin: Some(origin), .. } = step {
                    self.answer(50, origin, false);
                }
                return;
            }
            Step::Arrives { to, group, queue, message, origin } => {
                let (mut channel, mut publish_seq) = (ChannelKey::NOBODY, 0);
                if let Some(origin) = origin {
                    self.awaited.last += 1;
                    (channel, publish_seq) = (self.own_channel(to), self.awaited.last);
                    self.awaited.waiting.insert((channel, publish_seq), origin);
                }
                let target = Target { queue, durability: Durability::Level(Level::Synced), selective: None };
                let targets = std::iter::once(target).collect();
                let publish = Publish { channel, publish_seq, term: 0, targets, delay_ms: 0, message, more: None };
                self.nodes[to].enqueue(group, Command::Publish(publish), &mut out);
                to
            }
            Step::Answered { origin: Origin { node, life, group, queue, seq }, is_safe } => {
                if self.nodes[node].life == life {
                    self.nodes[node].enqueue(group, Command::DeadLetterAnswered { queue, seq, is_safe }, &mut out);
                }
                node
            }
        };
        self.settle(node, out);
    }

    fn own_channel(&self, node: usize) -> ChannelKey {
        let NodeId(id) = self.nodes[node].id;
        dead_letter_channel(id, self.nodes[node].life)
    }

    /// Looks whether an effect is about letters that arrived here; if so, their queues hear of it.
    pub(super) fn note_dead_letter(&mut self, node: usize, effect: &Effect) -> bool {
        let (channel, first, count, is_safe) = match effect {
            Effect::Confirm { channel, first, count } => (*channel, *first, *count, true),
            Effect::Refuse { channel, first, count } | Effect::Returned { channel, first, count, .. } => {
                (*channel, *first, *count, false)
            }
            _ => return false,
        };
        if !crate::client::is_dead_letter_channel(channel) {
            return false;
        }
        for seq in first..first + count {
            let Some(origin) = self.awaited.waiting.remove(&(channel, seq)) else { continue };
            if let Some(after) = self.way(node, origin.node) {
                self.answer(after, origin, is_safe);
            }
        }
        true
    }
}

const _: () = assert!(ANSWER_TIMEOUT > 300 * MS, "an answer has time to arrive");
