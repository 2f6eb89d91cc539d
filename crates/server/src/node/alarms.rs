//! Conditions under which publishers are blocked while consumers go on.

use std::sync::atomic::{AtomicU8, Ordering};

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

    /// Which are on.
    pub(crate) fn read(&self) -> Alarms {
        let alarms = self.on.load(Ordering::Acquire);
        let is_on = |alarm: Alarm| alarms & alarm.bit() != 0;
        Alarms { disk: is_on(Alarm::Disk), memory: is_on(Alarm::Memory), operator: is_on(Alarm::Operator) }
    }

    /// Why publishers are blocked, in RabbitMQ's words where it has some.
    pub(crate) fn blocked_reason(&self) -> Option<&'static str> {
        let on = self.read();
        match (on.disk, on.memory, on.operator) {
            (false, false, false) => None,
            (true, false, _) => Some("low on disk"),
            (false, true, _) => Some("low on memory"),
            (true, true, _) => Some("low on memory & disk"),
            (false, false, true) => Some("held by the operator"),
        }
    }
}
