//! Tells the log how much this node leads once the link to another is gone: one line, when every group
//! of queues has a leader that is there, or when that takes long.
//!
//! Invariant: about one node there is one line a second at most, however often its link breaks.

use crate::node::Shared;
use broker::topology::PartitionStage;
use broker::{NodeNumber, PartitionId};
use std::sync::Weak;
use std::time::Duration;
use switch::Leaders;
use tokio::time::{Instant, sleep};

/// No election is over sooner, and no two lines come within that time.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Then it is told who leads nothing yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Groups by who leads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Led {
    groups: u32,
    own: u32,
    /// Nobody who is there is known to lead these.
    none: u32,
    /// Those of them that have no other copy.
    only: u32,
}

impl Led {
    /// Of groups and how many members they have.
    fn count(
        leaders: &Leaders,
        groups: impl Iterator<Item = (PartitionId, usize)>,
        is_gone: impl Fn(NodeNumber) -> bool,
    ) -> Led {
        let mut led = Led::default();
        for (group, members) in groups {
            led.groups += 1;
            match leaders.leader(group) {
                Some(node) if node == leaders.own() => led.own += 1,
                Some(node) if !is_gone(node) => {}
                _ => {
                    led.none += 1;
                    led.only += u32::from(members == 1);
                }
            }
        }
        led
    }

    fn tell(self, what: &str) {
        let Led { groups, own, none, only } = self;
        let more = none - only;
        let only = match only {
            0 => String::new(),
            _ => format!(
                "; of {only} the only copy is on a node that is away: nothing goes into their queues or out of them until it is back"
            ),
        };
        match (more, only.is_empty()) {
            (0, true) => tracing::info!("leads {own} of {groups} groups after {what}"),
            (0, false) => tracing::warn!("leads {own} of {groups} groups after {what}{only}"),
            _ => tracing::warn!(
                "leads {own} of {groups} groups after {what}, and nobody is known to lead {more}: nothing goes into their \
                 queues or out of them until a majority of their members is back{only}"
            ),
        }
    }
}

/// Tells it of the node that went just now.
pub(super) async fn tell(shared: Weak<Shared>, gone: NodeNumber) {
    let begin = Instant::now();
    sleep(FIRST_LOOK).await;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let linked = shared.links.get().map(super::Links::linked).unwrap_or_default();
        let is_gone = |node| node == gone && !linked.contains(&gone);
        // Who leads the topology's group is not noted: nobody has to know.
        let of_queues: Vec<(PartitionId, usize)> = {
            let topology = shared.topology();
            let serving = topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Serving);
            let missed = serving.filter(|(id, _)| topology.is_missed(*id));
            missed.map(|(id, put)| (id, put.members.len())).collect()
        };
        let led = Led::count(&shared.leaders, of_queues.into_iter(), is_gone);
        // Those that have no other copy find nobody else.
        if led.none == led.only || begin.elapsed() >= PATIENCE {
            let name = shared.topology().shown_node(gone);
            let what = match linked.contains(&gone) {
                true => format!("the link to {name} broke"),
                false => format!("{name} went"),
            };
            led.tell(&what);
            return;
        }
        drop(shared);
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_led_by_this_node_or_another_or_by_nobody_who_is_there() {
        let [own, other, gone] = [1, 2, 3].map(NodeNumber);
        let leaders = Leaders::among_others(own, PartitionId(4));
        for (group, leader) in [(0, Some(own)), (1, Some(other)), (2, Some(gone)), (3, None), (4, Some(own))] {
            leaders.note(PartitionId(group), leader, 1);
        }
        let groups = || (0..5).map(|group| (PartitionId(group), if group == 2 { 1 } else { 3 }));
        assert_eq!(Led::count(&leaders, groups(), |node| node == gone), Led { groups: 5, own: 2, none: 2, only: 1 });
        assert_eq!(Led::count(&leaders, groups(), |_| false), Led { groups: 5, own: 2, none: 1, only: 0 });
    }
}
