//! What goes wrong next, and how it ends.
//!
//! Invariant: nothing that happens here breaks a promise of the disk or the network that the engine
//! is told it may rely on: synced bytes stay (but for rot, which has one victim), frames arrive
//! unaltered, a node that lost its disk does not come back under its id.

use super::{Cluster, Event};
use crate::network::Weather;
use crate::node::PowerLoss;
use crate::schedule::{MS, SECOND};
use broker::PartitionId;
use consensus::NodeId;

use storage::Disk;
use storage::disk::{Crash, Fault};
use storage::inspect::{Depth, Fact, inspect};

/// How many disk operations ahead a scheduled fault may strike.
const OPERATIONS_AHEAD_MAX: u64 = 40;
/// How often a full disk gets room when the weather changes.
const ROOM_PERCENT: u64 = 20;
/// How often a change of the weather brings rot, where there is rot,
const ROT_PERCENT: u64 = 30;
/// Of a log file that rots, so many bytes in a row stay sound at most: few followers need any of
/// it.
const SOUND_BYTES_MAX: u64 = 8 << 10;
/// One of so many records before the last is the one that cannot be read.
const NEWEST_RECORDS: usize = 30;
/// Where log files lie.
const WAL_FOLDER: &str = "wal";
/// A log file's header, which recovery alone looks at.
const LOG_HEADER_BYTES: u64 = 4096;

impl Cluster {
    /// Something changes, if the plan says so.
    pub(super) fn weather(&mut self) {
        if self.draining {
            return;
        }
        let pause = self.random.between(20 * MS, self.plan.calm_max);
        self.schedule.after(pause, Event::Weather);
        let faults = self.options.faults;
        if faults.rot && self.nodes.len() > 1 && self.random.chance(ROT_PERCENT) {
            self.rot();
        }
        if faults.log_rot && self.nodes.len() > 1 && self.random.chance(ROT_PERCENT) {
            self.rot_in_the_log();
        }
        self.hit_leaders();
        for node in 0..self.nodes.len() {
            if self.nodes[node].disk.is_full() && self.random.chance(ROOM_PERCENT) {
                self.nodes[node].disk.set_capacity(u64::MAX);
                self.note(node, "has room on its disk again");
            }
        }
        match self.random.below(100) {
            0..22 if faults.network => self.network_weather(),
            22..40 if faults.network => self.cut_links(),
            40..58 if faults.crashes => self.crash_one(Crash::Process),
            58..74 if faults.power => self.crash_one(Crash::Power),
            74..77 if faults.power => self.crash_all(Crash::Power),
            77..79 if faults.crashes => self.crash_all(Crash::Process),
            79..85 if faults.pauses => {
                let node = self.any_node();
                let until = self.schedule.now() + self.random.between(50 * MS, 4 * SECOND);
                self.nodes[node].paused_until = until;
                self.note(node, "stalls");
            }
            85..88 if faults.pauses => {
                let node = self.any_node();
                self.nodes[node].clock_ms = self.random.below(20_000) as i64 - 10_000;
                self.note(node, "has another time");
            }
            88..92 if faults.disks => {
                let node = self.any_node();
                self.nodes[node].disk_slowness = *self.random.pick(&[1, 1, 5, 30]);
                self.note(node, "has a disk of another speed");
            }
            92..95 if faults.disks => {
                let node = self.any_node();
                let fault = *self.random.pick(&[Fault::SyncError, Fault::WriteError, Fault::Full]);
                self.strike(node, fault);
            }
            95..97 => {
                let node = self.any_node();
                self.nodes[node].full_outlets = *self.random.pick(&[0, 0, 10, 60]);
            }
            97..100 => self.move_leader(),
            _ => {}
        }
    }

    /// Bits of one extent flip. Always on the same node, so that the others have what it lost.
    fn rot(&mut self) {
        let node = self.victim;
        if let Some(name) = self.nodes[node].rot(&mut self.random) {
            self.note(node, &format!("finds rot in {name}"));
        }
    }

    /// Bits of a log file of the same node flip, but for the header's.
    fn rot_in_the_log(&mut self) {
        let node = self.victim;
        let disk = self.nodes[node].disk.clone();
        let files: Vec<String> = disk.list(WAL_FOLDER).into_iter().flatten().filter(|n| n.ends_with(".wal")).collect();
        if files.is_empty() {
            return;
        }
        let name = format!("{WAL_FOLDER}/{}", self.random.pick(&files));
        let bytes = disk.contents(&name).map_or(0, |contents| contents.len() as u64);
        let mut at = LOG_HEADER_BYTES + self.random.below(SOUND_BYTES_MAX);
        while at < bytes {
            disk.flip_bit(&name, at, self.random.below(8) as u8);
            at += self.random.between(1, SOUND_BYTES_MAX);
        }
        self.note(node, &format!("finds rot in {name}"));
    }

    /// A record of a group of queues in its log, not behind the last sync that the log itself
    /// proves, cannot be read at the next start. Behind that, rot and a write that was torn look
    /// alike.
    pub(super) fn rot_before_start(&mut self, node: usize) {
        if self.random.chance(ROT_PERCENT) {
            return;
        }
        let disk = self.nodes[node].disk.clone();
        let (mut records, mut of_file, mut name) = (Vec::new(), Vec::new(), String::new());
        let depth = Depth { records: true, contents: false, messages: false };
        inspect(&*disk, depth, &node::needs_of, &mut |fact| match fact {
            Fact::WalFile { name: of, .. } => name = of,
            Fact::Record { record, body_offset, body_bytes } if body_bytes > 0 && record.group.0 != 0 => {
                of_file.push((PartitionId(record.group.0), name.clone(), body_offset, body_bytes));
            }
            Fact::WalFileEnd { synced, .. } => {
                records.extend(of_file.drain(..).filter(|(_, _, offset, bytes)| offset + bytes <= synced));
            }
            _ => {}
        });
        // What is older is in a saved state most often, and costs nothing.
        let newest = records.len().saturating_sub(NEWEST_RECORDS);
        if records.is_empty() {
            return;
        }
        let (group, name, offset, bytes) = self.random.pick(&records[newest..]).clone();
        let (at, bit) = (u64::from(offset) + self.random.below(u64::from(bytes)), self.random.below(8) as u8);
        disk.flip_bit(&name, at, bit);
        self.spoilt.push((group, name, at, bit));
        self.note(node, &format!("has a record of {group:?} that cannot be read"));
    }

    /// The bytes are whole again. Who was quarantined for them starts anew.
    fn mend_log(&mut self) {
        let node = self.victim;
        if self.spoilt.is_empty() {
            return;
        }
        if self.nodes[node].is_up() {
            self.fall(node);
        }
        let disk = self.nodes[node].disk.clone();
        self.spoilt.drain(..).for_each(|(_, name, at, bit)| disk.flip_bit(&name, at, bit));
        self.note(node, "has its records back");
    }

    /// Whether this node must stay up: what it would find at a start it could not start over.
    fn must_stay_up(&self, node: usize) -> bool {
        self.options.faults.log_rot && node == self.victim
    }

    pub(super) fn note(&mut self, node: usize, what: &str) {
        let now = self.schedule.now();
        let id = self.nodes[node].id;
        self.trace.line(now, || format!("{id} {what}"));
    }

    pub(super) fn any_node(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    fn network_weather(&mut self) {
        self.network.change_weather(&mut self.random);
        let (now, weather) = (self.schedule.now(), self.network.weather);
        self.trace.line(now, || format!("{weather:?}"));
    }

    fn cut_links(&mut self) {
        let ids: Vec<NodeId> = self.nodes.iter().map(|n| n.id).collect();
        self.network.cut_some(&ids, &mut self.random);
        let (now, network) = (self.schedule.now(), format!("{:?}", self.network));
        self.trace.line(now, || network);
    }

    /// A node goes down: now, or in the middle of one of its next disk operations.
    fn crash_one(&mut self, crash: Crash) {
        let node = self.any_node();
        if !self.nodes[node].is_up() || self.must_stay_up(node) {
            return;
        }
        if self.random.chance(50) {
            return self.strike(node, Fault::Crash(crash));
        }
        self.nodes[node].disk.crash(crash);
        self.fall(node);
    }

    fn crash_all(&mut self, crash: Crash) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_up() && !self.must_stay_up(node) {
                self.nodes[node].disk.crash(crash);
                self.fall(node);
            }
        }
    }

    fn strike(&mut self, node: usize, fault: Fault) {
        if self.must_stay_up(node) && fault != Fault::Full {
            return;
        }
        let ahead = self.random.below(OPERATIONS_AHEAD_MAX);
        let disk = &self.nodes[node].disk;
        if fault == Fault::Full {
            // No new file until somebody makes room; what has its place can be written.
            disk.set_capacity(disk.used_bytes());
            self.nodes[node].has_faults = true;
            return self.note(node, "has a disk that is full");
        }
        disk.schedule(disk.operations() + ahead, fault);
        self.nodes[node].has_faults = true;
        self.note(node, &format!("will meet {fault:?} within {ahead} operations"));
    }

    /// Leadership changes hands without a fault.
    fn move_leader(&mut self) {
        let group = self.random.below(self.plan.groups.len() as u64) as usize;
        let (from, to) = (self.any_node(), self.any_node());
        let to = self.nodes[to].id;
        self.nodes[from].transfer(group, to);
    }

    /// The faults are over: all links, disks and clocks are well, everyone comes up.
    pub(super) fn heal(&mut self) {
        let now = self.schedule.now();
        self.trace.line(now, || "the faults are over".to_owned());
        self.hit = None;
        self.mend_log();
        self.network.heal();
        self.network.weather = Weather::FAIR;
        for node in 0..self.nodes.len() {
            let n = &mut self.nodes[node];
            n.paused_until = 0;
            n.disk_slowness = 1;
            n.full_outlets = 0;
            n.power_loss = PowerLoss::None;
            n.disk.clear_faults();
            n.has_faults = false;
            n.disk.set_capacity(u64::MAX);
            if !n.is_up() {
                let life = n.life;
                self.schedule.after(10 * MS, Event::Restart { node, life });
            }
        }
    }
}
