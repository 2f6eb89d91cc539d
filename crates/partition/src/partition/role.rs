//! Who leads a partition, and what begins and ends with that on this member.
//!
//! Invariant: a member takes commands once an entry of its own term is applied, and with it all that earlier leaders
//! had committed; it stops at once. Whoever waits for an answer then gets one: what may yet be committed by the next
//! leader is returned to its channel, the rest is refused.

use super::{Context, QueuePartition};
use crate::command::{Effect, Reply};
use crate::commands::refuse;
use crate::leader::{ConfirmRange, Leader};
use crate::life::Life;
use crate::log_life::LogLife;
use crate::outputs::ClockAhead;
use broker::{NodeNumber, QueueId};
use consensus::{LogIndex, Term};

/// From here on the operator hears that a clock was ahead: clocks that are set by the network are
/// nearer to each other than this.
const CLOCK_AHEAD_TOLD_MS: u64 = 5_000;

impl QueuePartition {
    /// Whether this member leads and takes commands.
    pub fn is_leading(&self) -> bool {
        self.leader.is_some()
    }

    /// The node whose member leads, as far as this one knows.
    pub fn leader(&self) -> Option<NodeNumber> {
        self.replica.group().leader().map(|leader| NodeNumber(leader.number()))
    }

    /// The term that this member is in: whoever leads in an earlier one leads no more.
    pub fn term(&self) -> Term {
        self.replica.group().term()
    }

    /// It stood still for so long that others may have elected somebody else: if it led, it leads no more,
    /// and gives nothing out that a later leader may have given to others.
    pub fn stood_still(&mut self, cx: &mut Context<'_>) {
        if self.replica.is_leader() {
            self.replica.resign();
            self.drive(cx);
        }
    }

    /// Becomes a leader once an entry of its own term is applied; stops being one at once.
    pub(super) fn note_role(&mut self, cx: &mut Context<'_>) {
        let (leads, term) = (self.replica.is_leader(), self.replica.group().term());
        if let Some(leader) = &self.leader
            && leads
            && leader.term == term
        {
            return;
        }
        if let Some(leader) = self.replica.group().leader().filter(|_| !leads) {
            self.predecessor.follow(leader);
        }
        if leads || self.leader.is_some() || !self.early.is_empty() {
            self.change_role(leads, term, cx);
        }
    }

    /// An office ends, or one begins once its first entry is applied.
    #[cold]
    fn change_role(&mut self, leads: bool, in_term: Term, cx: &mut Context<'_>) {
        if let Some(leader) = &mut self.leader {
            leader.leave_unanswered(&mut cx.out.effects);
            // Publishes may yet be committed by the next leader: it is told them again.
            let term = leader.term.0 as u32;
            let in_log = leader.in_flight.drain(..).chain(leader.held.drain(..).map(|held| held.1));
            let in_log = in_log.flat_map(|entry| entry.confirms.into_all());
            let gone = std::mem::take(&mut leader.confirms).into_all().chain(in_log);
            for ConfirmRange { channel, first, count } in gone {
                cx.out.effects.push(Effect::Returned { channel, first, count, term });
            }
            let postponed = std::mem::take(&mut leader.postponed);
            self.leader = None;
            postponed.into_iter().for_each(|command| refuse(command, Reply::NotLeader, &mut cx.out.effects));
        }
        if !leads {
            // It was elected and took no office.
            self.early.take().into_iter().for_each(|command| refuse(command, Reply::NotLeader, &mut cx.out.effects));
        }
        if leads && self.applied_term == in_term && self.applied > LogIndex(0) {
            let mut leader = Leader::new(in_term, self.entry_bytes_target);
            // A group of one was led by this node before, if by anybody, and consumers on others may hold what it gave out.
            let may_be_held = self.has_guests && !self.queues.queues.is_empty();
            leader.awaits_holders = self.replica.group().membership().voters.len() > 1 || may_be_held;
            self.leader = Some(Box::new(leader));
            self.look_at_rules();
            let ahead_ms = self.queues.time_ms().saturating_sub(cx.now_ms);
            if ahead_ms >= CLOCK_AHEAD_TOLD_MS {
                cx.out.clocks_ahead.push(ClockAhead { partition: self.id(), ahead_ms });
            }
        }
    }

    /// A new leader looks at every queue that may have something to do though nobody asks.
    fn look_at_rules(&mut self) {
        let stated = self.queues.queues.iter().filter(|(_, state)| state.extras().is_some()).map(|(id, _)| *id);
        let ruled = self.rules.iter().filter(|(_, rules)| Life::<LogLife>::is_wanted_by(rules)).map(|(id, _)| *id);
        let mut ids: Vec<QueueId> = stated.chain(ruled).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            if !self.is_at_rest(id) {
                self.touched(id);
            }
        }
    }
}
