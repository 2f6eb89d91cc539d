//! What a run is like, from its seed: how many partitions and clients, which faults, how often.
//!
//! Invariant: everything that differs between two runs with the same options follows from the seed.

use crate::bug::Bug;
use crate::client::{Keeping, QueueSettings};
use crate::random::Random;
use crate::schedule::{Micros, SECOND};
use broker::QueueId;
use partition::command::Selective;

/// Which kinds of faults may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Frames are lost, late, doubled and reordered; links are cut.
    pub network: bool,
    /// Processes die.
    pub crashes: bool,
    /// Power is cut: what was not synced is lost in parts.
    pub power: bool,
    /// Machines stall, and their clocks step.
    pub pauses: bool,
    /// Disks are slow, fail, or are full.
    pub disks: bool,
}

impl Faults {
    /// Everything.
    pub const ALL: Faults = Faults { network: true, crashes: true, power: true, pauses: true, disks: true };
    /// Nothing: to see that the cluster works at all.
    pub const NONE: Faults = Faults { network: false, crashes: false, power: false, pauses: false, disks: false };

    /// Reads a list of names, such as `network,crashes`, or `all`, or `none`.
    pub fn parse(text: &str) -> Option<Faults> {
        let mut faults = Faults::NONE;
        for name in text.split(',').filter(|n| !n.is_empty()) {
            match name {
                "all" => faults = Faults::ALL,
                "none" => faults = Faults::NONE,
                "network" => faults.network = true,
                "crashes" => faults.crashes = true,
                "power" => faults.power = true,
                "pauses" => faults.pauses = true,
                "disks" => faults.disks = true,
                _ => return None,
            }
        }
        Some(faults)
    }
}

/// What is asked for beside the seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Nodes, each with a member of every partition: 1 or 3, or 5.
    pub nodes: u64,
    /// What may go wrong.
    pub faults: Faults,
    /// A deliberate bug.
    pub bug: Option<Bug>,
    /// Whether extents and checkpoints are made; `None` leaves it to the seed.
    pub upkeep: Option<bool>,
    /// Whether a trace is kept.
    pub trace: bool,
    /// How long faults go on; `None` leaves it to the seed.
    pub duration: Option<Micros>,
}

impl Default for Options {
    fn default() -> Self {
        Options { nodes: 3, faults: Faults::ALL, bug: None, upkeep: None, trace: false, duration: None }
    }
}

/// What one run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long clients work and faults happen.
    pub duration: Micros,
    /// Queues of each partition.
    pub groups: Vec<Vec<QueueSettings>>,
    /// Publishers of each partition.
    pub publishers: u64,
    /// Readers of each partition.
    pub readers: u64,
    /// Readers do more than ack.
    pub unruly: bool,
    /// Small limits in consensus.
    pub tight: bool,
    /// Size of log files.
    pub file_bytes: u32,
    /// Memory for the newest entries.
    pub tail_bytes: usize,
    /// Extents and checkpoints are made.
    pub upkeep: bool,
    /// Longest time between two changes of the weather.
    pub calm_max: Micros,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(random: &mut Random, options: &Options) -> Plan {
        let groups = random.between(1, 3);
        let mut next = 1;
        let groups = (0..groups)
            .map(|_| {
                let queues = random.between(1, 3);
                (0..queues)
                    .map(|_| {
                        let keeping = match random.below(10) {
                            0..5 => Keeping::Synced,
                            5..8 => Keeping::Written,
                            _ => {
                                let cap = random.between(50, 400);
                                Keeping::Selective(Selective { cap, interval_ms: random.between(1, 200) })
                            }
                        };
                        next += 1;
                        QueueSettings { id: QueueId(next), keeping }
                    })
                    .collect()
            })
            .collect();
        let seconds = random.between(4, 12);
        Plan {
            duration: options.duration.unwrap_or(seconds * SECOND),
            groups,
            publishers: random.between(1, 3),
            readers: random.between(1, 3),
            unruly: random.chance(60),
            tight: random.chance(50),
            file_bytes: *random.pick(&[128 << 10, 256 << 10, 1 << 20]),
            tail_bytes: *random.pick(&[1 << 10, 32 << 10, 1 << 20]),
            upkeep: options.upkeep.unwrap_or(true),
            calm_max: *random.pick(&[200, 600, 2_000]) * crate::schedule::MS,
        }
    }
}
