//! Which part of a folder is damaged, and how: one group is set aside, or the start is refused. The
//! others go on.
//!
//! Invariant: whatever a start and what followed did, the damaged group is whole again once its
//! bytes are.

use super::*;
use storage::checkpoint::checkpoint_name;
use storage::extent::list_extents;
use storage::inspect::{Depth, Fact, inspect};
use storage::wal::RecordName;

/// The partition that is damaged, in a folder of three.
const DAMAGED: u32 = 2;

/// What is done to the folder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rot {
    /// One bit in the body of the last entry of this group behind which something was synced.
    Body(u32),
    /// The same of its last hard state.
    Vote(u32),
    /// The same of an entry that the group's checkpoint covers.
    OldBody(u32),
    /// The same in the header of such a record.
    RecordHeader(u32),
    /// In the header of its frame.
    FrameHeader(u32),
    /// In these of the group's two saved states.
    States(u32, &'static [usize]),
    /// The group's two saved states are not there.
    NoStates(u32),
    /// A file of the log between others is not there.
    NoLogFile,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Served,
    Quarantined,
    Refused,
}

const MATRIX: [(Rot, Outcome); 13] = [
    (Rot::Body(DAMAGED), Outcome::Quarantined),
    (Rot::Vote(DAMAGED), Outcome::Quarantined),
    (Rot::OldBody(DAMAGED), Outcome::Served),
    (Rot::States(DAMAGED, &[0]), Outcome::Served),
    (Rot::States(DAMAGED, &[1]), Outcome::Served),
    (Rot::States(DAMAGED, &[0, 1]), Outcome::Quarantined),
    (Rot::NoStates(DAMAGED), Outcome::Quarantined),
    (Rot::Body(0), Outcome::Refused),
    (Rot::States(0, &[0, 1]), Outcome::Refused),
    (Rot::NoStates(0), Outcome::Refused),
    (Rot::RecordHeader(DAMAGED), Outcome::Refused),
    (Rot::FrameHeader(DAMAGED), Outcome::Refused),
    (Rot::NoLogFile, Outcome::Refused),
];

/// A record of the log: its name, its file, where its frame, its body and its end are.
struct Found {
    record: RecordName,
    file: String,
    frame: u64,
    body: u64,
    end: u64,
}

fn records(disk: &FaultyDisk) -> Vec<Found> {
    let (mut found, mut name, mut frame) = (Vec::new(), String::new(), 0);
    let depth = Depth { records: true, contents: false, messages: false };
    inspect(disk, depth, &crate::needs_of, &mut |fact| match fact {
        Fact::WalFile { name: of, .. } => name = of,
        Fact::Frame { offset, .. } => frame = u64::from(offset),
        Fact::Record { record, body_offset, body_bytes } => {
            let (body, end) = (u64::from(body_offset), u64::from(body_offset + body_bytes));
            found.push(Found { record, file: name.clone(), frame, body, end });
        }
        _ => {}
    });
    found
}

fn of_group(disk: &FaultyDisk, group: u32) -> Vec<(u64, u64)> {
    let records = records(disk).into_iter().filter(|found| found.record.group.0 == group);
    records.map(|found| (found.record.term, found.record.index)).collect()
}

/// What was done, so that it can be undone.
#[derive(Default)]
struct Done {
    flipped: Vec<(String, u64)>,
    removed: Vec<(String, Vec<u8>)>,
}

impl Done {
    fn flip(&mut self, disk: &FaultyDisk, name: &str, at: u64) {
        disk.flip_bit(name, at, 3);
        self.flipped.push((name.to_owned(), at));
    }

    fn remove(&mut self, disk: &FaultyDisk, name: &str) {
        self.removed.push((name.to_owned(), disk.contents(name).unwrap()));
        disk.remove(name).unwrap();
    }

    fn undo(self, disk: &FaultyDisk) {
        self.flipped.iter().for_each(|(name, at)| disk.flip_bit(name, *at, 3));
        self.removed.iter().for_each(|(name, bytes)| disk.plant(name, bytes));
    }
}

impl Rot {
    fn befall(self, disk: &FaultyDisk) -> Done {
        let mut done = Done::default();
        let all = records(disk);
        let of = |group: u32, kind: RecordKind| {
            all.iter().filter(move |found| found.record.group.0 == group && found.record.kind == kind)
        };
        let last = |group, kind| of(group, kind).next_back().unwrap();
        match self {
            Rot::Body(group) => {
                let found = last(group, RecordKind::Entry);
                done.flip(disk, &found.file, found.end - 1);
            }
            Rot::Vote(group) => {
                let found = last(group, RecordKind::HardState);
                done.flip(disk, &found.file, found.body);
            }
            Rot::OldBody(group) => {
                let found = of(group, RecordKind::Entry).next().unwrap();
                done.flip(disk, &found.file, found.end - 1);
            }
            Rot::RecordHeader(group) => {
                let found = last(group, RecordKind::Entry);
                done.flip(disk, &found.file, found.body - 4);
            }
            Rot::FrameHeader(group) => {
                let found = last(group, RecordKind::Entry);
                done.flip(disk, &found.file, found.frame + 20);
            }
            Rot::States(group, places) => {
                places.iter().for_each(|place| done.flip(disk, &checkpoint_name(GroupId(group), *place), 8192 + 5));
            }
            Rot::NoStates(group) => (0..2).for_each(|place| done.remove(disk, &checkpoint_name(GroupId(group), place))),
            Rot::NoLogFile => {
                let last = &all.last().unwrap().file;
                let before = all.iter().rev().find(|found| found.file != *last).unwrap();
                done.remove(disk, &before.file);
            }
        }
        done
    }
}

/// Three partitions with a queue of five messages in each: three in extents, two in the log behind
/// the saved states.
fn folder() -> (Arc<FaultyDisk>, [QueueId; 3]) {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 3).unwrap();
    let queues = [1, 2, 3].map(|partition| {
        let queue = lab.declare(&format!("q{partition}"), partition).unwrap();
        lab.publish(partition, queue, 3, 1000).unwrap();
        queue
    });
    lab.begin_files(4).unwrap();
    lab.upkeep().unwrap();
    lab.roll().unwrap();
    drop(lab);
    // A start of its own, so that there is a vote behind the saved states.
    let mut lab = open(&disk, 3).unwrap();
    lab.declare("later", 3).unwrap();
    lab.begin_files(2).unwrap();
    (1..=3).rev().for_each(|partition| lab.publish(partition, queues[partition as usize - 1], 2, 1000).unwrap());
    assert!(lab.first_file() > 2, "the log's beginning is gone");
    (disk, queues)
}

/// What clients do meanwhile, and upkeep.
fn go_on(lab: &mut Lab, queues: &[QueueId; 3], round: u64) -> Result<(), OpenError> {
    for partition in [1, 3] {
        let queue = queues[partition as usize - 1];
        let live = lab.live(partition, queue);
        lab.publish(partition, queue, 1, 1000)?;
        assert_eq!(lab.live(partition, queue), live + 1);
    }
    let queue = lab.declare(&format!("new-{round}"), 3)?;
    lab.publish(3, queue, 1, 1000)?;
    lab.roll()
}

#[test]
fn damage_of_one_group_costs_the_others_nothing_and_is_gone_when_its_bytes_are_whole() {
    for (rot, expected) in MATRIX {
        let (disk, queues) = folder();
        let done = rot.befall(&disk);
        let (before, extents) = (of_group(&disk, DAMAGED), list_extents(&*disk).unwrap());
        for round in 0..2 {
            let opened = open(&disk, 3);
            let found = match &opened {
                Err(_) => Outcome::Refused,
                Ok(lab) if lab.all.set_aside().is_empty() => Outcome::Served,
                Ok(lab) => {
                    assert_eq!((lab.all.placed(), lab.all.set_aside()), (vec![1, 3], vec![DAMAGED]), "{rot:?}");
                    Outcome::Quarantined
                }
            };
            assert_eq!(found, expected, "{rot:?}: {:?}", opened.as_ref().err());
            if found == Outcome::Quarantined {
                go_on(&mut opened.unwrap(), &queues, round).unwrap_or_else(|error| panic!("{rot:?}: {error}"));
                let written = of_group(&disk, DAMAGED);
                assert!(before.ends_with(&written) || written.ends_with(&before), "{rot:?}: something was written");
                let there = list_extents(&*disk).unwrap();
                assert!(extents.iter().all(|id| there.contains(id)), "{rot:?}: it may need each of them");
            }
        }
        done.undo(&disk);
        let mut lab = open(&disk, 3).unwrap_or_else(|error| panic!("{rot:?} undone: {error}"));
        assert_eq!((lab.all.placed(), lab.all.set_aside()), (vec![1, 2, 3], vec![]), "{rot:?} undone");
        assert_eq!(lab.live(DAMAGED, queues[1]), 5, "{rot:?} undone");
        lab.publish(DAMAGED, queues[1], 1, 1000).unwrap();
        go_on(&mut lab, &queues, 9).unwrap();
        assert_eq!(lab.live(DAMAGED, queues[1]), 6, "{rot:?} undone");
    }
}

#[test]
fn an_entry_that_is_missing_between_others_is_its_groups_affair() {
    let (disk, queues) = folder();
    let mut lab = open(&disk, 3).unwrap();
    let last = of_group(&disk, DAMAGED).iter().map(|(_, index)| *index).max().unwrap();
    let (group, body) = (GroupId(DAMAGED), Bytes::from_static(&[1]));
    let record = storage::Record { group, kind: RecordKind::Entry, term: 9, index: last + 2, body, body_crc: None };
    lab.all.wal.append(&[record], &mut Vec::new()).unwrap();
    lab.all.wal.sync().unwrap();
    drop(lab);
    let mut lab = open(&disk, 3).unwrap();
    let why = &lab.all.quarantined[&PartitionId(DAMAGED)].why;
    assert!(matches!(why, OpenError::EntryMissing { partition: DAMAGED, .. }), "{why}");
    go_on(&mut lab, &queues, 0).unwrap();
}

#[test]
fn a_crash_at_any_operation_beside_a_damaged_group_loses_nothing_of_it() {
    for rot in [Rot::Body(DAMAGED), Rot::States(DAMAGED, &[0, 1])] {
        for (kind, step) in [(Crash::Power, 13), (Crash::Process, 29)] {
            let mut points = 0;
            for at in (0..).step_by(step) {
                let (disk, queues) = folder();
                let done = rot.befall(&disk);
                disk.schedule(disk.operations() + at, Fault::Crash(kind));
                let lived = open(&disk, 3).and_then(|mut lab| go_on(&mut lab, &queues, 0));
                let has_crashed = disk.down().is_some();
                assert_eq!(lived.is_err(), has_crashed, "{rot:?} {kind:?} at {at}: {:?}", lived.err());
                disk.clear_faults();
                disk.restart();
                let lab = open(&disk, 3).unwrap_or_else(|error| panic!("{rot:?} {kind:?} at {at}: {error}"));
                assert_eq!(lab.all.set_aside(), [DAMAGED], "{rot:?} {kind:?} at {at}");
                drop(lab);
                done.undo(&disk);
                let lab = open(&disk, 3).unwrap_or_else(|error| panic!("{rot:?} {kind:?} at {at}: {error}"));
                assert_eq!(lab.live(DAMAGED, queues[1]), 5, "{rot:?} {kind:?} at {at}");
                assert!(lab.live(1, queues[0]) >= 5 && lab.live(3, queues[2]) >= 5, "{rot:?} {kind:?} at {at}");
                points += 1;
                if !has_crashed {
                    break;
                }
            }
            assert!(points > 3, "there is more to crash in than {points} points");
        }
    }
}

#[test]
fn an_extent_that_no_state_knows_stays_while_a_group_is_quarantined() {
    let (disk, queues) = folder();
    let done = Rot::Body(DAMAGED).befall(&disk);
    let stray = storage::extent::extent_name(ExtentId(900));
    disk.plant(&stray, b"half of an extent");
    let mut lab = open(&disk, 3).unwrap();
    assert_eq!(lab.all.next_extent, 901);
    go_on(&mut lab, &queues, 0).unwrap();
    drop(lab);
    assert!(disk.contents(&stray).is_some());
    done.undo(&disk);
    drop(open(&disk, 3).unwrap());
    assert!(disk.contents(&stray).is_none(), "now everybody says what is known");
}

/// Whatever is not the damaged group's own in a folder: what a repair of that group has to leave as
/// it lies.
fn of_others(disk: &FaultyDisk) -> Vec<(String, Vec<u8>)> {
    let groups = [0, 1, 3].into_iter().flat_map(|group| [0, 1].map(|place| checkpoint_name(GroupId(group), place)));
    groups.map(|name| (name.clone(), disk.contents(&name).unwrap_or_default())).collect()
}

/// What such a repair leaves of the damaged group's five messages.
fn left_of(rot: Rot) -> std::ops::RangeInclusive<u64> {
    match rot {
        // The last of them was in that entry.
        Rot::Body(_) => 4..=4,
        // No message was.
        Rot::Vote(_) => 5..=5,
        // Nobody knows any more which are in extents. Old files of the log have them too, as long
        // as they are not used again.
        Rot::States(..) | Rot::NoStates(_) => 2..=5,
        _ => unreachable!("nothing is repaired there"),
    }
}

#[test]
fn a_repair_of_one_group_leaves_all_others_as_they_lie_and_is_needed_once() {
    for (rot, _) in MATRIX.into_iter().filter(|(_, expected)| *expected == Outcome::Quarantined) {
        let (disk, queues) = folder();
        rot.befall(&disk);
        // The others are used first, so that more of the log follows the damage.
        go_on(&mut open(&disk, 3).unwrap(), &queues, 0).unwrap();
        let (before, log) = (of_others(&disk), disk.list("wal").unwrap());
        let report = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
        assert!(
            !report.found.is_empty()
                && report.changed.iter().any(|line| line.contains("partition 2: its state is new"))
        );
        assert!(of_others(&disk) == before, "{rot:?}: the others' states are as they were");
        assert!(
            log.iter().all(|name| disk.contents(&format!("wal/{name}")).is_some()),
            "{rot:?}: the others need the log"
        );
        for round in 1..3 {
            let mut lab = open(&disk, 3).unwrap_or_else(|error| panic!("{rot:?}: {error}"));
            assert_eq!((lab.all.placed(), lab.all.set_aside()), (vec![1, 2, 3], vec![]), "{rot:?}");
            let live = lab.live(DAMAGED, queues[1]) + 1 - round;
            assert!(left_of(rot).contains(&live), "{rot:?}: {live}, {report:?}");
            assert!(lab.live(1, queues[0]) >= 6 && lab.live(3, queues[2]) >= 6, "{rot:?}");
            go_on(&mut lab, &queues, round).unwrap();
            lab.publish(DAMAGED, queues[1], 1, 1000).unwrap();
        }
        let again = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
        assert_eq!(again.found, Vec::<String>::new(), "{rot:?}");
    }
}

#[test]
fn a_crash_at_any_operation_of_the_repair_of_one_group_costs_the_others_nothing() {
    for rot in [Rot::Body(DAMAGED), Rot::States(DAMAGED, &[0, 1])] {
        for kind in [Crash::Power, Crash::Process] {
            let mut points = 0;
            for at in 0.. {
                let (disk, queues) = folder();
                rot.befall(&disk);
                disk.schedule(disk.operations() + at, Fault::Crash(kind));
                let repaired = repair(&disk, FOLDER, MEMBER, 7, Others::None);
                let has_crashed = disk.down().is_some();
                assert_eq!(repaired.is_err(), has_crashed, "{rot:?} {kind:?} at {at}: {:?}", repaired.err());
                disk.clear_faults();
                disk.restart();
                let mut lab = open(&disk, 3).unwrap_or_else(|error| panic!("{rot:?} {kind:?} at {at}: {error}"));
                assert!(lab.all.set_aside().is_empty() || has_crashed, "{rot:?} {kind:?} at {at}");
                go_on(&mut lab, &queues, 0).unwrap();
                drop(lab);
                repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
                let lab = open(&disk, 3).unwrap_or_else(|error| panic!("{rot:?} {kind:?} at {at}: {error}"));
                assert_eq!(lab.all.set_aside(), Vec::<u32>::new(), "{rot:?} {kind:?} at {at}");
                let live = lab.live(DAMAGED, queues[1]);
                assert!(left_of(rot).contains(&live), "{rot:?} {kind:?} at {at}: {live}");
                assert!(lab.live(1, queues[0]) >= 6 && lab.live(3, queues[2]) >= 6, "{rot:?} {kind:?} at {at}");
                points += 1;
                if !has_crashed {
                    break;
                }
            }
            assert!(points > 10, "there is more to crash in than {points} points");
        }
    }
}

#[test]
fn a_log_whose_newest_files_are_missing_is_noticed_and_repaired() {
    let (disk, queues) = folder();
    let lab = open(&disk, 3).unwrap();
    let needed = file_u32(lab.all.wal.durable_file());
    drop(lab);
    // As in a copy that broke off: the newest files of the log are not there, nor the note beside
    // it.
    let mut checkpoints = CheckpointStore::open(&disk, FOLDER).unwrap();
    let replay = (0..=3).map(|group| checkpoints.load_newest(GroupId(group)).unwrap().unwrap().replay_from.file);
    let replay = replay.max().unwrap();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    for name in disk.list("wal").unwrap().iter().map(|name| format!("wal/{name}")) {
        if disk
            .contents(&name)
            .is_some_and(|bytes| bytes.len() > 24 && name.ends_with(".wal") && number(&bytes) >= replay.0)
        {
            disk.remove(&name).unwrap();
        }
    }
    disk.remove("wal/durable").unwrap_or_default();
    let refused = open(&disk, 3).err();
    assert!(matches!(refused, Some(OpenError::LogShort { .. })), "{refused:?}, {needed}");
    let report = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    assert!(report.found.iter().any(|line| line.contains("newest files are missing")), "{report:?}");
    let mut lab = open(&disk, 3).unwrap();
    assert_eq!(lab.all.set_aside(), Vec::<u32>::new());
    assert!(lab.live(1, queues[0]) >= 3);
    go_on(&mut lab, &queues, 0).unwrap();
    drop(lab);
    assert_eq!(repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap().found, Vec::<String>::new());
}
