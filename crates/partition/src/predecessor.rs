//! Who led before this member, and whether consumers that were attached there have heard that its office ended.
//!
//! They hear it from that leader itself, or when the link to its node breaks. Behind one that hangs, or is cut off,
//! they hear nothing before their links are given up, and the next leader, which is elected sooner, waits for them.

use consensus::{Group, NodeId};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Predecessor {
    node: Option<NodeId>,
    /// The link to it broke, and nothing came from it since.
    is_away: bool,
}

impl Predecessor {
    /// Another member leads.
    pub(crate) fn follow(&mut self, leader: NodeId) {
        if self.node != Some(leader) {
            *self = Predecessor { node: Some(leader), is_away: false };
        }
    }

    /// Something came from a member.
    #[inline]
    pub(crate) fn heard(&mut self, from: NodeId) {
        if self.is_away && self.node == Some(from) {
            self.is_away = false;
        }
    }

    /// The link to a node broke.
    pub(crate) fn link_lost(&mut self, node: NodeId) {
        self.is_away |= self.node == Some(node);
    }

    /// Whether those who were attached to it know that it leads no more, as this member, the leader now, sees it:
    /// it is away, or it has answered in this term.
    pub(crate) fn has_ended(&self, group: &Group) -> bool {
        let has_answered = |node| group.progress().iter().any(|p| p.node == node && p.matched.0 > 0);
        // Who was removed from the group hears of its end from nobody, and was told before.
        self.node.is_none_or(|node| self.is_away || !group.membership().contains(node) || has_answered(node))
    }
}
