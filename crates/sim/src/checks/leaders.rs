//! What a leader confirmed before it was committed: it has it, and keeps it for as long as it leads on.
//!
//! Invariant: what was confirmed and is in doubt is in `at_risk`, until it is committed or a leader came
//! that lacks it.

use super::raft::Taken;
use super::{Asked, Checks, Published, bit, violated};
use crate::node::Said;
use consensus::NodeId;
use std::collections::BTreeMap;

impl Checks {
    /// A member leads anew: what was confirmed and is not in its log is lost, by what happened until now.
    pub(super) fn observe_leader(&mut self, node: NodeId, group: usize) {
        if self.at_risk.is_empty() {
            return;
        }
        let has = self.groups[group].published_on(node);
        let is_lost = |id: &u64| self.published[*id as usize].group == group && !self.holds(&has, *id);
        let lost: Vec<u64> = self.at_risk.iter().copied().filter(is_lost).collect();
        for id in lost {
            self.at_risk.remove(&id);
            self.open.remove(&id);
            self.lost_to(id, node);
        }
    }

    /// Whether a log has a message, or what it repeats, for which it was confirmed and dropped.
    fn holds(&self, log: &BTreeMap<u64, Taken>, id: u64) -> bool {
        let originals = &self.published[id as usize].originals;
        let has = |original: &u64| log.contains_key(original) || self.published[*original as usize].committed;
        log.contains_key(&id) || !originals.is_empty() && originals.iter().all(has)
    }

    /// A leader lacks a message that another one, or itself in an earlier term, has confirmed.
    fn lost_to(&mut self, id: u64, node: NodeId) {
        let published = &mut self.published[id as usize];
        let by = published.confirmed_by;
        let is_other = by != Some(node);
        let is_superseded = match published.asked {
            Asked::LeaderSynced => is_other,
            Asked::LeaderWritten => is_other || by.is_some_and(|by| published.forgotten_by & bit(by) != 0),
            // By what members may have forgotten: see `finish`.
            _ => return,
        };
        if !is_superseded {
            let asked = published.asked;
            violated("lost", &format!("{node} confirmed message {id} ({asked:?}), leads on, and does not have it"));
        }
        published.is_superseded = true;
        self.figures.superseded += 1;
    }

    /// Whoever confirms something as a leader has it in its log, or in each of its queues another one that it
    /// repeats by its key: looks which.
    pub(super) fn note_originals(&mut self, node: NodeId, said: Said, id: u64) {
        let message = &self.published[id as usize];
        let (group, model) = (&self.groups[message.group], &self.models[message.group]);
        let log = group.published_on(node);
        if log.contains_key(&id) {
            return;
        }
        let mut originals = Vec::new();
        for queue in message.targets.iter().filter(|queue| !self.ends.excuses(**queue)) {
            let is_it = |(other, taken): &(&u64, &Taken)| {
                self.published[**other as usize].key == message.key && taken.queues.contains(queue)
            };
            let same = log.iter().filter(|_| message.key.is_some()).filter(is_it);
            match same.max_by_key(|(_, taken)| taken.index) {
                Some((original, _)) => originals.push(*original),
                None if model.had(message, *queue) => {}
                // In the turn in which it loses its office it may lose the end of its log, too.
                None if said.led_before && !said.serves => {}
                None => {
                    let what = format!("{node} confirmed message {id} ({:?}) and does not have it", message.asked);
                    violated("confirm", &what);
                }
            }
        }
        self.published[id as usize].originals = originals;
    }

    /// A leader confirmed a message alone. True if that is lost by now: it was said by one that does not know
    /// yet that another leads without it.
    pub(super) fn confirmed_alone(&mut self, node: NodeId, id: u64) -> bool {
        self.figures.by_leaders += 1;
        let published = &mut self.published[id as usize];
        published.confirmed_by = Some(node);
        let group = &self.groups[published.group];
        let next = group.last_leader().filter(|leader| *leader != node);
        let is_lost = next.is_some_and(|leader| !self.holds(&group.published_on(leader), id));
        if is_lost {
            self.lost_to(id, next.expect("it lacks it"));
        }
        is_lost
    }

    /// What was confirmed as a repeat of what was not committed by then: that may be so now.
    pub(super) fn settle_repeats(&mut self, group: usize) {
        let is_settled = |id: &u64| {
            let Published { group: of, originals, .. } = &self.published[*id as usize];
            let is_committed = |original: &u64| self.published[*original as usize].committed;
            *of == group && !originals.is_empty() && originals.iter().all(is_committed)
        };
        let settled: Vec<u64> = self.at_risk.iter().copied().filter(is_settled).collect();
        for id in settled {
            self.at_risk.remove(&id);
            self.open.remove(&id);
            self.published[id as usize].repeats = true;
            self.figures.repeats += 1;
        }
    }
}
