//! Leaders that lose power at the worst moment: what they confirmed as written is on a bare
//! majority, and in no disk of theirs.
//!
//! A leader is no longer heard by as many followers as it can spare, its disk gets slow, and its
//! power goes in the sync of what it wrote since. What it confirmed meanwhile is on the followers
//! that still hear it, and on no other. It is back before anybody is elected. Then those that have
//! everything are cut off for seconds, most of the time: who is left is a majority, which must not
//! elect, because one of them has forgotten.
//!
//! Invariant: by this alone no majority is ever hit at once, and nobody is out of reach for as long
//! as a member in doubt waits.

use super::Cluster;
use crate::node::PowerLoss;
use crate::schedule::{MS, Micros, SECOND};

/// How often a change of the weather hits a leader, where leaders are hit.
const HIT_PERCENT: u64 = 60;
/// Its disk takes this many times as long, so that much is written and not synced.
const SLOWNESS: u64 = 30;
/// So long it may take until the leader writes something that its followers do not hear of.
const PATIENCE: Micros = 2 * SECOND;
/// How often the members that have everything are cut off.
const CUT_OFF_PERCENT: u64 = 75;

/// One leader that is hit.
pub(super) struct Hit {
    leader: usize,
    /// Those that still hear it.
    keepers: Vec<usize>,
    /// When all links are healed.
    until: Micros,
}

impl Cluster {
    /// Ends a hit that is over; begins another one, now and then, when everybody is up and whole.
    pub(super) fn hit_leaders(&mut self) {
        if !self.options.faults.leaders || self.nodes.len() < 3 {
            return;
        }
        if let Some(hit) = self.hit.take_if(|hit| hit.until <= self.schedule.now()) {
            self.nodes[hit.leader].power_loss = PowerLoss::None;
            self.network.heal();
            self.note(hit.leader, "can be heard by all");
        }
        if self.hit.is_none() && self.random.chance(HIT_PERCENT) {
            self.hit_a_leader();
        }
    }

    fn hit_a_leader(&mut self) {
        let group = self.random.below(self.plan.groups.len() as u64) as usize;
        let is_calm = |node: usize| {
            let is_whole = |group| self.nodes[node].view(group).is_some_and(|view| !view.may_have_forgotten);
            (0..self.plan.groups.len()).all(is_whole) && !self.nodes[node].has_faults
        };
        let count = self.nodes.len();
        if !(0..count).all(is_calm) {
            return;
        }
        let serves = |node: &usize| self.nodes[*node].view(group).is_some_and(|view| view.serves);
        let Some(leader) = (0..count).find(serves) else { return };
        let mut keepers: Vec<usize> = (0..count).filter(|node| *node != leader).collect();
        self.network.heal();
        while keepers.len() > count / 2 {
            let deaf = keepers.remove(self.random.below(keepers.len() as u64) as usize);
            self.network.cut(self.nodes[leader].id, self.nodes[deaf].id);
        }
        self.nodes[leader].disk_slowness = SLOWNESS;
        self.nodes[leader].power_loss = PowerLoss::AfterWrite;
        let heard_by: Vec<_> = keepers.iter().map(|node| self.nodes[*node].id).collect();
        self.note(leader, &format!("leads {group}, is heard by {heard_by:?} and will lose its power"));
        self.hit = Some(Hit { leader, keepers, until: self.schedule.now() + PATIENCE });
    }

    /// A node lost its power.
    pub(super) fn note_power_loss(&mut self, node: usize) {
        let Some(hit) = self.hit.as_mut().filter(|hit| hit.leader == node) else { return };
        self.network.heal();
        self.nodes[node].power_loss = PowerLoss::None;
        let seconds = self.random.between(2, 6);
        hit.until = self.schedule.now() + seconds * SECOND;
        if !self.random.chance(CUT_OFF_PERCENT) {
            hit.until = self.schedule.now() + MS;
            return;
        }
        for keeper in &hit.keepers {
            for other in (0..self.nodes.len()).filter(|other| !hit.keepers.contains(other)) {
                self.network.cut(self.nodes[*keeper].id, self.nodes[other].id);
                self.network.cut(self.nodes[other].id, self.nodes[*keeper].id);
            }
        }
        let cut_off: Vec<_> = hit.keepers.iter().map(|node| self.nodes[*node].id).collect();
        self.note(node, &format!("lost its power, and {cut_off:?} are cut off for {seconds} s"));
    }
}
