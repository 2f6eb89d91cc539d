//! What a run is like, from its seed: how many partitions and clients, which faults, how often.
//!
//! Invariant: everything that differs between two runs with the same options follows from the seed.

use crate::bug::Bug;
use crate::client::{Keeping, QueueSettings};
use crate::random::Random;
use crate::schedule::{Micros, SECOND};
use broker::QueueId;
use broker::queue::{DeadLetterRule, DedupRule, LevelRule, Overflow, Retried, RetryRule, Rules, SingleActive};
use broker::topology::{ExchangeType, Name};
use partition::command::Selective;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Queues for dead letters are numbered from here on, by partition.
const GRAVES_FROM: u64 = 1_000;

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
    /// Bits of one node's extents flip. Not with a single node, which would have to set messages
    /// aside.
    pub rot: bool,
    /// Bits of the same node's log flip, behind its back. It does not go down then: a start over
    /// such a log is refused.
    pub log_rot: bool,
    /// One record in the log of the same node cannot be read when it starts: its group is
    /// quarantined there until the faults are over and the record is whole again. Not with a single
    /// node, whose messages would not be there.
    pub start_rot: bool,
    /// A leader is not heard by one of its followers, and loses power soon after: what a majority
    /// has written is then on one of the others and not on the next. Alone it never happens to two
    /// at once.
    pub leaders: bool,
}

impl Faults {
    /// Nothing: to see that the cluster works at all.
    pub const NONE: Faults = Faults {
        network: false,
        crashes: false,
        power: false,
        pauses: false,
        disks: false,
        rot: false,
        log_rot: false,
        start_rot: false,
        leaders: false,
    };
    /// Everything but rot.
    pub const ALL: Faults =
        Faults { network: true, crashes: true, power: true, pauses: true, disks: true, ..Faults::NONE };

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
                "rot" => faults.rot = true,
                "log-rot" => faults.log_rot = true,
                "start-rot" => faults.start_rot = true,
                "leaders" => faults.leaders = true,
                _ => return None,
            }
        }
        Some(faults)
    }
}

/// What is asked for beside the seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Nodes, each with a member of every partition but for `pools`: 1 or 3, or 5.
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
    /// Queues have rules: limits of all kinds, dead letters, retries, priorities, one active
    /// consumer; messages have priorities, time limits and delays.
    pub rules: bool,
    /// Queues are deleted and created again; some publishes go through an `x-delayed-message`
    /// exchange.
    pub turnover: bool,
    /// The topology's group runs too, and somebody declares and deletes all the time.
    pub declares: bool,
    /// Nodes are upgraded one by one, each with its first restart; some are from the start. The new
    /// build knows a version of the queues' machine that no real one does.
    pub upgrades: bool,
    /// Members of the groups change: nodes join, take the place of others, leave; disks are lost
    /// for good. Not together with `declares`, whose group keeps its members without sessions, nor
    /// with leaders that are hit or a log that rots.
    pub members: bool,
    /// The same by a map of who is to have what, which nodes hear of late and leaders follow by
    /// themselves, as in the server.
    pub mapped: bool,
    /// The same, and who left a group comes back to it: with `mapped` by that map, with sessions and pools by the
    /// topology, in which copies are given and taken. Not with queues that come and go beside a topology.
    pub returns: bool,
    /// Nodes have up to three shards, another number at each start. With sessions they always do.
    pub spread: bool,
    /// With sessions and more than three nodes, where it has to be: quorum queues live in partitions with
    /// members on three of the nodes, which come to be with the first of them.
    pub pools: bool,
    /// Queues that would be written are confirmed by their leaders alone, as written or as synced. Not with
    /// turnover, where what a queue asked for may be gone with it, nor with members that change.
    pub levels: bool,
    /// With `pools`: the durable queues that come and go are classic, each on one node.
    pub classic: bool,
    /// With sessions: who publishes sends several messages in a row to one place.
    pub rows: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nodes: 3,
            faults: Faults::ALL,
            bug: None,
            upkeep: None,
            trace: false,
            duration: None,
            rules: false,
            turnover: false,
            declares: false,
            upgrades: false,
            members: false,
            mapped: false,
            returns: false,
            spread: false,
            pools: false,
            levels: false,
            classic: false,
            rows: false,
        }
    }
}

/// What one run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long clients work and faults happen.
    pub duration: Micros,
    /// Queues of each partition.
    pub groups: Vec<Vec<QueueSettings>>,
    /// What queues ask for, if they ask for anything.
    pub rules: BTreeMap<QueueId, Arc<Rules>>,
    /// Of each partition the queue for dead letters, if queues have rules.
    pub graves: Vec<QueueSettings>,
    /// Where the dead letters of a queue go: partition and queue.
    pub dead_letters_of: BTreeMap<QueueId, (usize, QueueId)>,
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
    /// What the delaying exchange of each partition chooses by; empty if no queue ever goes.
    pub routes_as: Vec<ExchangeType>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(random: &mut Random, options: &Options) -> Plan {
        let group_count = random.between(1, 3);
        let mut next = 1;
        let mut rules: BTreeMap<QueueId, Arc<Rules>> = BTreeMap::new();
        let grave = |group: u64| QueueSettings { id: QueueId(GRAVES_FROM + group), keeping: Keeping::Synced };
        let graves: Vec<QueueSettings> = (0..group_count).filter(|_| options.rules).map(grave).collect();
        let mut dead_letters_of = BTreeMap::new();
        let groups = (0..group_count)
            .map(|group| {
                let queues = random.between(1, 3);
                (0..queues)
                    .map(|_| {
                        let keeping = match random.below(10) {
                            0..5 => Keeping::Synced,
                            5..8 if options.levels && random.chance(50) => Keeping::LeaderWritten,
                            5..8 if options.levels => Keeping::LeaderSynced,
                            5..8 => Keeping::Written,
                            _ => {
                                let cap = random.between(50, 400);
                                Keeping::Selective(Selective { cap, interval_ms: random.between(1, 200) })
                            }
                        };
                        next += 1;
                        let id = QueueId(next);
                        if options.rules {
                            let of = rules_of(random);
                            if of.dead_letter.is_some() {
                                // In the same partition, or in any.
                                let to = if random.chance(50) { group } else { random.below(group_count) };
                                dead_letters_of.insert(id, (to as usize, grave(to).id));
                            }
                            rules.insert(id, of);
                        }
                        QueueSettings { id, keeping }
                    })
                    .collect()
            })
            .collect();
        let seconds = random.between(4, 12);
        Plan {
            duration: options.duration.unwrap_or(seconds * SECOND),
            groups,
            rules,
            graves,
            dead_letters_of,
            publishers: random.between(1, 3),
            readers: random.between(1, 3),
            unruly: random.chance(60),
            // With little in memory followers are served from the log.
            tight: random.chance(50) || options.faults.log_rot,
            // What is due, or given up, together goes into one entry.
            file_bytes: match options.rules {
                true => *random.pick(&[512 << 10, 1 << 20]),
                false => *random.pick(&[128 << 10, 256 << 10, 1 << 20]),
            },
            tail_bytes: *random.pick(&[1 << 10, 32 << 10, 1 << 20]),
            upkeep: options.upkeep.unwrap_or(true),
            calm_max: *random.pick(&[200, 600, 2_000]) * crate::schedule::MS,
            routes_as: match options.turnover {
                true => (0..group_count).map(|_| *random.pick(&ROUTES_AS)).collect(),
                false => Vec::new(),
            },
        }
    }
}

/// What a delaying exchange may choose by.
const ROUTES_AS: [ExchangeType; 3] = [ExchangeType::Direct, ExchangeType::Topic, ExchangeType::Fanout];

/// Some of what a queue may ask for.
fn rules_of(random: &mut Random) -> Arc<Rules> {
    let retry = RetryRule { which: Retried::All, min_ms: random.between(50, 400), max_ms: 1_000 };
    let at_least_once = random.chance(50);
    let dead_letter = DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once };
    let overflow =
        *random.pick(&[Overflow::DropHead, Overflow::DropHead, Overflow::RejectPublish, Overflow::RejectPublishDlx]);
    // What refuses has room for any one message: a scheduled one that never fits would wait for
    // ever.
    let (length_min, bytes_min) = if overflow.is_reject() { (1, 20_000) } else { (0, 100) };
    Arc::new(Rules {
        message_ttl_ms: random.chance(40).then(|| random.between(0, 1_500)),
        length_max: random.chance(40).then(|| random.between(length_min, 30)),
        length_bytes_max: random.chance(20).then(|| random.between(bytes_min, bytes_min + 20_000)),
        delivery_limit: random.chance(40).then(|| random.below(3) as u32),
        dead_letter: random.chance(60).then_some(dead_letter),
        retry: random.chance(30).then_some(retry),
        overflow,
        levels: *random.pick(&[LevelRule::None, LevelRule::None, LevelRule::UpTo(3), LevelRule::Strict]),
        single_active: random.chance(25).then(|| SingleActive { preempts: random.chance(50) }),
        dedup: random.chance(25).then(|| DedupRule { window_ms: *random.pick(&[0, 0, 200, 1_500]) }),
        expires_ms: random.chance(30).then(|| random.between(40, 600)),
        ..Rules::default()
    })
}
