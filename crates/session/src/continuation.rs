//! What one event asks for and one turn may not finish: the publishes of a commit, and what a client says of a million
//! messages at once.
//!
//! Invariant: no event is taken before its end, so there is one at a time, and its channel is there. What is handed on in a
//! turn is bounded, so the commands that wait for a partition are, too.

use super::{Client, Cx, Host, Session, traits};
use amqp::{ChannelId, Deliveries, Publish, Reply};
use partition::Disposition;

/// So many runs of messages are settled between two looks at what the turn has done.
const RUNS_AT_ONCE: usize = 256;

/// The rest of what an event asked for.
#[derive(Debug)]
pub(super) struct Continuation {
    channel: ChannelId,
    /// Come first.
    publishes: std::vec::IntoIter<Publish>,
    settles: Vec<(Disposition, Deliveries)>,
    /// Of `settles`, those that are done whole, and the runs of the next one that are.
    settled: (usize, usize),
    /// Whether the client waits for an answer.
    is_answered: bool,
}

impl Continuation {
    /// What a consumer was given and has settled that is not passed on yet: first sequence number and count of each run.
    pub(super) fn unsettled_of(&self, channel: ChannelId, consumer: u32) -> impl Iterator<Item = (u64, u64)> {
        let (done, runs) = self.settled;
        let left = self.settles.iter().skip(done).flat_map(|(_, deliveries)| deliveries).skip(runs);
        let is_its = move |run: &&amqp::Delivered| self.channel == channel && run.consumer == consumer;
        left.filter(is_its).map(|run| (run.first_seq, run.count.into()))
    }
}

impl Session {
    /// Hands on publishes and then what was settled, as much of it as a turn may, and answers.
    pub(super) fn begin(
        &mut self,
        at: usize,
        publishes: Vec<Publish>,
        settles: Vec<(Disposition, Deliveries)>,
        cx: &mut Cx<'_, impl Host>,
    ) {
        let (channel, publishes) = (self.channels[at].id, publishes.into_iter());
        self.go_on_with(Continuation { channel, publishes, settles, settled: (0, 0), is_answered: true }, cx);
    }

    /// Passes on what a consumer decided about its messages.
    pub(super) fn settle(&mut self, settle: amqp::Settle, cx: &mut Cx<'_, impl Host>) {
        let (at, outcome) = (self.at(settle.channel), super::publish::outcome_of(settle.outcome));
        if settle.deliveries.len() <= RUNS_AT_ONCE {
            return self.settle_all(at, &settle.deliveries, outcome, cx);
        }
        let (channel, publishes) = (settle.channel, Vec::new().into_iter());
        let settles = vec![(outcome, settle.deliveries)];
        self.go_on_with(Continuation { channel, publishes, settles, settled: (0, 0), is_answered: false }, cx);
    }

    /// Hands on what is left of the last turn's, or as much of it as a turn may.
    pub(super) fn go_on(&mut self, cx: &mut Cx<'_, impl Host>) {
        if let Some(left) = self.continuation.take() {
            self.go_on_with(*left, cx);
        }
    }

    fn go_on_with(&mut self, mut left: Continuation, cx: &mut Cx<'_, impl Host>) {
        let at = self.at(left.channel);
        // Once: all of it had come before. Where it has to wait, the turn ends in front of it.
        if !left.publishes.as_slice().is_empty() {
            self.may_route(cx.host.now(), cx);
        }
        while !self.channels[at].failed {
            if self.work.is_enough() {
                self.continuation = Some(Box::new(left));
                return;
            }
            if let Some(publish) = left.publishes.next() {
                let copies = traits::copies(&publish.properties);
                self.send_publish(at, publish, &copies, cx);
                continue;
            }
            let (done, runs) = left.settled;
            let Some((outcome, deliveries)) = left.settles.get(done) else {
                if left.is_answered {
                    cx.client.reply(left.channel, Reply::Done);
                }
                return;
            };
            let rest = &deliveries[runs..];
            let portion = &rest[..rest.len().min(RUNS_AT_ONCE)];
            self.settle_all(at, portion, *outcome, cx);
            self.work.add(portion.len());
            left.settled = match portion.len() == rest.len() {
                true => (done + 1, 0),
                false => (done, runs + portion.len()),
            };
        }
    }
}
