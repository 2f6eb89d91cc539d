//! Upkeep gives up an extent only once no checkpoint that a start may fall back to names it.
#![allow(clippy::unwrap_used)]

mod member;

use broker::QueueId;
use member::{QUEUE, Rig};
use partition::WalState;
use partition::command::Disposition;
use partition::outputs::{ExtentReady, ExtentRun, Job};
use partition::place::Place;

/// Looks after the log as it stands with this file; the jobs that come of it.
fn maintain(rig: &mut Rig, current_file: u32, retire_through: u32) -> Vec<Job> {
    let wal = WalState { current_file, retire_through, checkpoint_lag_files: 0, ..WalState::CALM };
    rig.with(|p, cx| p.maintain(wal, cx));
    rig.out.jobs.drain(..).collect()
}

/// The runs that are to be copied to an extent.
fn copied(jobs: Vec<Job>) -> Vec<(QueueId, Place, u64)> {
    let runs = jobs.into_iter().flat_map(|job| match job {
        Job::WriteExtent { runs, .. } => runs,
        _ => Vec::new(),
    });
    runs.map(|run| (QUEUE, run.place, run.first)).collect()
}

fn saves(jobs: &[Job]) -> bool {
    matches!(jobs, [Job::SaveCheckpoint { .. }])
}

/// The checkpoint under way is saved; the extents that go with it.
fn saved(rig: &mut Rig) -> Vec<u32> {
    rig.with(|p, cx| p.checkpoint_saved(cx));
    let dropped = rig.out.jobs.drain(..).map(|job| match job {
        Job::DropExtent { id } => id,
        job => panic!("{job:?}"),
    });
    dropped.collect()
}

#[test]
fn a_checkpoint_begun_before_an_extent_was_used_up_still_names_it() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=3 {
        rig.publish_synced(seq, "m");
    }
    rig.consume(1, 0, false);
    rig.run();
    // All three go to an extent.
    let copied = copied(maintain(&mut rig, 10, 1));
    assert!(!copied.is_empty());
    let runs = vec![ExtentRun { queue: QUEUE, run: 0, first: 1, past: 4, messages: 3, bytes: 100 }];
    rig.with(|p, _| p.extent_ready(&ExtentReady { id: 7, bytes: 100, messages: 3, runs, copied }));
    // The first checkpoint was begun before that, and is saved now.
    assert_eq!(saved(&mut rig), []);

    rig.publish_synced(4, "m");
    rig.run();
    assert!(saves(&maintain(&mut rig, 20, 0)), "it names the extent");
    rig.settle(1, 1, 4, Disposition::Ack);
    rig.run();
    assert_eq!(maintain(&mut rig, 20, 0).len(), 0, "now upkeep knows that it is used up");
    assert_eq!(saved(&mut rig), []);
    for (current_file, dropped) in [(30, vec![]), (40, vec![7])] {
        rig.publish_synced(u64::from(current_file), "m");
        rig.run();
        assert!(saves(&maintain(&mut rig, current_file, 0)), "it names the extent no more");
        assert_eq!(saved(&mut rig), dropped, "the older of the two must be without it as well");
    }
}

#[test]
fn what_an_idle_partition_gives_up_can_wait_for_room_and_what_the_log_has_too_much_of_cannot() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "m");
    rig.run();
    let copies = |rig: &mut Rig, wal: WalState| -> Vec<bool> {
        rig.with(|p, cx| p.maintain(wal, cx));
        let is_pressing = |job: Job| match job {
            Job::WriteExtent { is_pressing, .. } => Some(is_pressing),
            _ => None,
        };
        let copies = rig.out.jobs.drain(..).filter_map(is_pressing).collect();
        rig.with(|p, _| p.extent_abandoned());
        copies
    };
    let calm = WalState { current_file: 3, checkpoint_lag_files: 0, ..WalState::CALM };
    assert_eq!(copies(&mut rig, WalState { retire_through: 1, ..calm }), [true]);
    assert_eq!(copies(&mut rig, WalState { index_bytes_kept: 0, ..calm }), [true]);
    assert_eq!(copies(&mut rig, calm), []);
    rig.now += 3_000;
    assert_eq!(copies(&mut rig, calm), [false], "it is idle");
}

#[test]
fn a_queue_knows_what_it_has_on_the_disk_and_what_was_written_for_it() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let disk = |rig: &Rig| {
        let mut figures = Vec::new();
        rig.partition.disk_figures(Some(QUEUE), &mut figures);
        let mut all = Vec::new();
        rig.partition.disk_figures(None, &mut all);
        assert_eq!(figures, all, "there is one queue");
        figures.pop()
    };
    assert_eq!(disk(&rig), None, "nothing was ever published to it");
    for seq in 1..=4 {
        rig.publish_synced(seq, "12345");
    }
    rig.consume(1, 0, false);
    rig.run();
    let in_log = disk(&rig).unwrap();
    // One batch or several, each with its header and its queue; each message with a header.
    let headers = in_log.live - in_log.published;
    assert!(in_log.published >= 4 * 5 && (4 * 16 + 40..=4 * (16 + 40)).contains(&headers), "{in_log:?}");
    assert!(in_log.log >= in_log.live && (in_log.extents, in_log.checkpoints) == (0, 0), "{in_log:?}");

    let copied = copied(maintain(&mut rig, 10, 1));
    let runs = vec![ExtentRun { queue: QUEUE, run: 0, first: 1, past: 5, messages: 4, bytes: 400 }];
    rig.with(|p, _| p.extent_ready(&ExtentReady { id: 7, bytes: 9_000, messages: 4, runs, copied }));
    let in_extent = disk(&rig).unwrap();
    assert_eq!((in_extent.live, in_extent.extents), (400, 400), "its part of the extent, and not of the file");
    assert!(in_extent.checkpoints > 0, "one was begun with it: {in_extent:?}");
    rig.settle(1, 1, 3, Disposition::Ack);
    rig.run();
    let acked = disk(&rig).unwrap();
    assert_eq!((acked.live, acked.published), (100, in_log.published));
    assert!(acked.log > in_extent.log, "an ack is in the log too");
}

#[test]
fn an_idle_partition_lets_go_of_several_files_at_a_time_unless_the_log_stands_still_or_presses() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "m");
    rig.consume(1, 0, false);
    rig.run();
    rig.settle(1, 1, 2, Disposition::Ack);
    rig.run();
    rig.now += 10_000;
    let maintain = |rig: &mut Rig, file: u32, retire_through: u32| -> Option<u32> {
        let wal = WalState { current_file: file, retire_through, checkpoint_lag_files: 3, ..WalState::CALM };
        rig.with(|p, cx| p.maintain(wal, cx));
        let replay = rig.out.jobs.pop().map(|job| match job {
            Job::SaveCheckpoint { replay_file, .. } => replay_file,
            job => panic!("{job:?}"),
        });
        if replay.is_some() {
            saved(rig);
        }
        replay
    };
    // A file a second.
    let mut seen = Vec::new();
    for file in 2..=13 {
        rig.now += 1_000;
        seen.extend(maintain(&mut rig, file, 0));
        seen.extend(maintain(&mut rig, file, 0));
    }
    assert_eq!(seen, [5, 9, 13]);
    assert_eq!(rig.partition.needs_file(13), 9, "the older one is kept, and its log");
    // It is needed at once.
    assert_eq!((maintain(&mut rig, 14, 8), maintain(&mut rig, 14, 9)), (None, Some(14)));
    // Nothing more comes: the last files go as well, and then it is quiet.
    rig.now += 2_900;
    assert_eq!(maintain(&mut rig, 14, 0), None);
    assert!(rig.partition.wants_maintenance(), "there is a file that it has not let go of");
    rig.now += 100;
    assert_eq!(maintain(&mut rig, 14, 0), Some(14));
    assert_eq!((maintain(&mut rig, 14, 0), rig.partition.needs_file(14)), (None, 14));
    assert!(!rig.partition.wants_maintenance());
}
