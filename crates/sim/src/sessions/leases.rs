//! Whether a node that counts what it knows of the topology as all of it knows what others were answered.
//!
//! Invariant: who was answered finds what was decided over any node that whoever answered could reach: such a node has carried
//! it out, or has no lease by then, and routes nothing before it has asked.

use super::Sessions;
use crate::checks::violated;
use crate::schedule::MS;
use consensus::LogIndex;
use node::Knowledge;
use std::collections::BTreeMap;

/// What nodes have to know that have a lease, by their places.
#[derive(Debug, Default)]
pub(super) struct Owed(BTreeMap<usize, LogIndex>);

impl Sessions {
    /// A node took a step, in which it answered proposers of these entries.
    pub(super) fn look_at_leases(&mut self, node: usize, decided: &[(u64, LogIndex)]) {
        let Some(answered) = decided.iter().map(|(_, index)| *index).max() else { return self.check_lease(node) };
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if self.nodes[node].topology_reaches(self.nodes[other].id) {
                let owed = self.owed.0.entry(other).or_default();
                *owed = (*owed).max(answered);
                self.check_lease(other);
            }
        }
        self.check_lease(node);
    }

    fn check_lease(&mut self, node: usize) {
        let (now, Some(owed)) = (self.schedule.now(), self.owed.0.get(&node)) else { return };
        let Some(view) = self.nodes[node].topology_view() else { return };
        let has_lease = matches!(self.nodes[node].topology_knowledge(), Knowledge::Until(until) if now / MS < until);
        if !has_lease {
            self.ledger.figures.without_lease += 1;
        } else if view.applied < *owed {
            let (id, applied) = (self.nodes[node].id, view.applied);
            violated(
                "lease",
                &format!("{id} counts entry {applied} as all there is, and somebody was answered {owed}"),
            );
        }
    }
}
