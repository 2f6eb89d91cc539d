//! Conditions under which publishers are blocked while consumers go on.

use broker::NodeNumber;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// A condition under which publishers are blocked while consumers go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The disk is nearly full.
    Disk,
    /// Messages in memory are at their limit.
    Memory,
    /// The operator wants it so.
    Operator,
}

impl Alarm {
    fn bit(self) -> u8 {
        match self {
            Alarm::Disk => 1,
            Alarm::Memory => 2,
            Alarm::Operator => 4,
        }
    }
}

/// Which alarms are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// The disk is nearly full.
    pub disk: bool,
    /// Messages in memory are at their limit.
    pub memory: bool,
    /// The operator holds publishers.
    pub operator: bool,
}

/// The alarms of a node, for all of its threads.
#[derive(Debug, Default)]
pub(crate) struct AlarmSwitches {
    on: AtomicU8,
    /// Those of other nodes, of which none stands here that has none.
    others: Mutex<BTreeMap<NodeNumber, u8>>,
    /// All of those together.
    elsewhere: AtomicU8,
}

impl AlarmSwitches {
    /// Raises or ends an alarm; false if it was so before.
    pub(super) fn set(&self, alarm: Alarm, on: bool) -> bool {
        let before = match on {
            true => self.on.fetch_or(alarm.bit(), Ordering::AcqRel),
            false => self.on.fetch_and(!alarm.bit(), Ordering::AcqRel),
        };
        (before & alarm.bit() != 0) != on
    }

    /// Another node says which of its alarms hold publishers everywhere; none if it is gone. True if
    /// publishers of this node are held for another reason than before, or not any more.
    pub(super) fn note(&self, node: NodeNumber, disk: bool, memory: bool) -> bool {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let bit = |alarm: Alarm, on: bool| if on { alarm.bit() } else { 0 };
        match bit(Alarm::Disk, disk) | bit(Alarm::Memory, memory) {
            0 => others.remove(&node),
            bits => others.insert(node, bits),
        };
        let elsewhere = others.values().fold(0, |all, bits| all | bits);
        let own = self.on.load(Ordering::Acquire);
        self.elsewhere.swap(elsewhere, Ordering::AcqRel) | own != elsewhere | own
    }

    /// Which are on, on this node.
    pub(crate) fn read(&self) -> Alarms {
        AlarmSwitches::alarms(self.on.load(Ordering::Acquire))
    }

    /// Which are on, on any node.
    pub(crate) fn read_all(&self) -> Alarms {
        AlarmSwitches::alarms(self.on.load(Ordering::Acquire) | self.elsewhere.load(Ordering::Acquire))
    }

    fn alarms(alarms: u8) -> Alarms {
        let is_on = |alarm: Alarm| alarms & alarm.bit() != 0;
        Alarms { disk: is_on(Alarm::Disk), memory: is_on(Alarm::Memory), operator: is_on(Alarm::Operator) }
    }

    /// Why publishers are blocked, in RabbitMQ's words where it has some.
    pub(crate) fn blocked_reason(&self) -> Option<&'static str> {
        let on = self.read_all();
        match (on.disk, on.memory, on.operator) {
            (false, false, false) => None,
            (true, false, _) => Some("low on disk"),
            (false, true, _) => Some("low on memory"),
            (true, true, _) => Some("low on memory & disk"),
            (false, false, true) => Some("held by the operator"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_of_one_node_holds_publishers_of_all_until_it_or_the_node_is_gone() {
        let alarms = AlarmSwitches::default();
        let (second, third) = (NodeNumber(2), NodeNumber(3));
        assert!(alarms.note(second, false, true));
        assert_eq!((alarms.blocked_reason(), alarms.read()), (Some("low on memory"), Alarms::default()));
        assert!(!alarms.note(third, false, true), "they are held for that already");
        assert!(alarms.note(third, true, true));
        assert_eq!(alarms.blocked_reason(), Some("low on memory & disk"));
        assert!(!alarms.note(second, false, false));
        assert!(alarms.set(Alarm::Memory, true));
        assert!(alarms.note(third, false, false));
        assert_eq!(alarms.blocked_reason(), Some("low on memory"));
        assert!(alarms.set(Alarm::Memory, false));
        assert_eq!(alarms.blocked_reason(), None);
    }
}
