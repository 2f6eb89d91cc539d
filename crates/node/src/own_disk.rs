//! A leader whose own disk hangs: it can write nothing, while the others have what it sent them, so it
//! lets one of them lead.
//!
//! Invariant: it is asked of a leader only, and says a member that may lead, with more of the log on its
//! disk than this one. Where all disks hang, as when they are one, nobody is better off, and it says none.
//!
//! A shard that itself stands still in a sync sends nothing, and the others elect as after any silence.
//! This is for a sync that the log's own thread hangs in, while the shard goes on to be heard.

use crate::Millis;
use crate::steward::MembersView;
use broker::NodeNumber;
use consensus::{LogIndex, NodeId, ProgressState};

/// How long a leader's disk takes nothing before somebody else is to lead.
const HANGS_MS: Millis = 1_000;

/// What a leader saw of its own disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnDisk {
    /// Up to here the log was on it, since when.
    seen: Option<(LogIndex, Millis)>,
}

impl OwnDisk {
    /// This member does not lead.
    pub(crate) fn forget(&mut self) {
        self.seen = None;
    }

    /// A leader looks. Gives who is to lead instead, where its disk has taken nothing for long that waits
    /// for it, and another one's has; once in that time, as long as it lasts.
    pub(crate) fn heir(&mut self, view: &MembersView, now: Millis) -> Option<NodeNumber> {
        if view.persisted >= view.last {
            self.seen = None;
            return None;
        }
        let since = match self.seen {
            Some((persisted, since)) if persisted == view.persisted => since,
            _ => now,
        };
        self.seen = Some((view.persisted, since));
        if now < since + HANGS_MS {
            return None;
        }
        let is_ahead = |node: NodeId, matched: LogIndex| matched > view.persisted && view.may_lead(node);
        let others =
            view.progress.iter().filter(|p| p.state == ProgressState::Replicate && is_ahead(p.node, p.matched));
        let heir = others.max_by_key(|p| (p.matched, p.node)).map(|p| p.node.number());
        if heir.is_some() {
            self.seen = Some((view.persisted, now));
        }
        heir.map(NodeNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consensus::{Membership, Progress};

    /// Node 1 leads 2 and 3, and has its log up to 100; it is on its disk up to `own`, on theirs up to these.
    fn view(own: u64, others: [u64; 2]) -> MembersView {
        let progress = [2, 3].into_iter().zip(others).map(|(node, matched)| Progress {
            node: NodeId(node),
            matched: LogIndex(matched),
            next: LogIndex(101),
            state: ProgressState::Replicate,
            is_paused: false,
            is_recently_active: true,
            is_learner: false,
            in_flight_bytes: 0,
        });
        MembersView {
            own: NodeId(1),
            membership: Membership::of_voters([1, 2, 3].map(NodeId).to_vec()),
            progress: progress.collect(),
            last: LogIndex(100),
            persisted: LogIndex(own),
        }
    }

    #[test]
    fn a_leader_whose_disk_takes_nothing_for_a_second_lets_the_one_lead_that_has_most() {
        let mut disk = OwnDisk::default();
        assert_eq!(disk.heir(&view(50, [90, 100]), 5_000), None, "it may be under way");
        assert_eq!(disk.heir(&view(50, [90, 100]), 5_900), None);
        assert_eq!(disk.heir(&view(50, [90, 100]), 6_000), Some(NodeNumber(3)));
        assert_eq!(disk.heir(&view(50, [100, 90]), 6_300), None, "it is on its way to the next one");
        assert_eq!(disk.heir(&view(50, [100, 90]), 7_000), Some(NodeNumber(2)), "nobody took it");
        let mut silent = view(50, [100, 90]);
        silent.progress[0].is_recently_active = false;
        assert_eq!(disk.heir(&silent, 8_000), Some(NodeNumber(3)));
        disk.forget();
        assert_eq!(disk.heir(&view(50, [100, 90]), 9_000), None, "it leads anew");
    }

    #[test]
    fn a_disk_that_is_slow_or_has_all_or_is_no_worse_than_the_others_hangs_not() {
        let mut disk = OwnDisk::default();
        let steps = (0..10).map(|step| disk.heir(&view(50 + step, [100, 100]), 1_000 * step));
        assert!(steps.collect::<Vec<_>>().iter().all(Option::is_none), "it takes something each second");
        assert_eq!(disk.heir(&view(59, [59, 59]), 60_000), None, "nobody's disk takes anything");
        assert_eq!(disk.heir(&view(100, [100, 100]), 90_000), None, "there is nothing to take");
        assert_eq!(disk.heir(&view(99, [100, 100]), 90_300), None, "it is under way");
    }
}
