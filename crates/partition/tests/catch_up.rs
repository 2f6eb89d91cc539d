//! A copy that was away for a while and needs more than the log has: it fetches what it lacks, and keeps what it
//! has where it is.
#![allow(clippy::unwrap_used)]

mod trio;

use partition::WalState;
use partition::command::{Command, Disposition};
use partition::place::Place;
use trio::{QUEUE, READER, Trio};

/// A follower that has messages 1 to `had` and was cut off when those up to `all` were published, which the log
/// of its leader has no more.
fn behind(had: u64, all: u64) -> (Trio, usize, usize) {
    let mut trio = Trio::filled(had);
    let (leader, [behind, _]) = (trio.leader(), trio.followers());
    trio.cut = Some(behind);
    trio.publish(had + 1..=all);
    trio.tick();
    trio.compact();
    assert_eq!(trio.leader(), leader);
    (trio, leader, behind)
}

fn caught_up(trio: &mut Trio, behind: usize) {
    trio.cut = None;
    (0..30).for_each(|_| trio.tick());
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.assert_equal();
}

/// What upkeep is told when the log's first file is to go.
const RETIRES: WalState = WalState { retire_through: 1, current_file: 3, checkpoint_lag_files: 100, ..WalState::CALM };

#[test]
fn it_fetches_what_it_lacks_in_few_answers_and_keeps_the_rest_where_it_is() {
    let (mut trio, _, behind) = behind(6, 60);
    let now = trio.now;
    trio.members[behind].with(now, |p, cx| p.maintain(WalState { retire_through: 0, ..RETIRES }, cx));
    let places: Vec<_> = (1..=6).map(|seq| trio.members[behind].run(seq)).collect();
    caught_up(&mut trio, behind);
    let member = &trio.members[behind];
    assert_eq!(member.live(), 60);
    assert_eq!((1..=6).map(|seq| member.run(seq)).collect::<Vec<_>>(), places);
    assert!((7..=60).all(|seq| matches!(member.run(seq), Some(Place::Extent { .. }))));
    assert_eq!(trio.pulled, (7..=60).collect::<Vec<_>>(), "once each, in order");
    assert!(trio.pulls <= 2, "{}", trio.pulls);
    // What it kept moves on, and its checkpoint still says that it lies in the log.
    trio.members[behind].with(now, |p, cx| p.maintain(RETIRES, cx));
    trio.run();
    let member = &trio.members[behind];
    assert!(matches!(member.run(1), Some(Place::Extent { .. })));
    assert_eq!(member.partition.needs_file(9), 1);
    trio.publish(61..=62);
    trio.tick();
    trio.assert_equal();
}

#[test]
fn what_comes_in_another_order_than_it_was_asked_for_is_asked_for_once() {
    let (mut trio, leader, behind) = behind(6, 60);
    trio.members[leader].reads_last_first = true;
    caught_up(&mut trio, behind);
    assert_eq!(trio.members[behind].live(), 60);
    assert_eq!(trio.pulled, (7..=60).rev().collect::<Vec<_>>(), "once each");
    assert!(trio.pulls <= 2, "{}", trio.pulls);
}

#[test]
fn what_ended_meanwhile_is_not_kept_and_its_extents_go() {
    let mut trio = Trio::filled(6);
    trio.move_to_extents();
    let (leader, [behind, _]) = (trio.leader(), trio.followers());
    trio.consume();
    let delivered = trio.delivered();
    assert_eq!(delivered, [1, 2, 3, 4, 5, 6]);
    trio.cut = Some(behind);
    let holder = broker::ConsumerKey { channel: READER, number: 1 };
    for (first, count) in [(1, 2), (4, 3)] {
        trio.command(Command::Settle { queue: QUEUE, holder, first, count, outcome: Disposition::Ack });
    }
    trio.publish(7..=8);
    trio.tick();
    trio.compact();
    assert_eq!(trio.leader(), leader);
    caught_up(&mut trio, behind);
    let member = &trio.members[behind];
    assert_eq!((member.live(), trio.pulled.clone()), (3, vec![7, 8]));
    assert_eq!(member.run(3), Some(Place::Extent { id: 1, run: 0 }));
    let extents = member.partition.queues().extents();
    assert_eq!(extents.iter().map(|(id, used)| (*id, used.live)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    trio.command(Command::Settle { queue: QUEUE, holder, first: 3, count: 1, outcome: Disposition::Ack });
    trio.tick();
    let wal = WalState { current_file: 2, checkpoint_lag_files: 100, ..WalState::CALM };
    // Two checkpoints without it, and it goes.
    for _ in 0..4 {
        trio.now += 5_000;
        let now = trio.now;
        trio.members[behind].with(now, |p, cx| p.maintain(wal, cx));
        trio.run();
    }
    assert_eq!(trio.members[behind].extents.keys().copied().collect::<Vec<_>>(), [2]);
    trio.assert_equal();
}

#[test]
fn what_is_on_its_way_is_not_read_again_for_who_asks_behind_each_part() {
    let (mut trio, _, behind) = behind(6, 60);
    trio.is_prompt = true;
    caught_up(&mut trio, behind);
    assert_eq!(trio.pulled, (7..=60).collect::<Vec<_>>());
    assert!(trio.pulls > 50, "{}", trio.pulls);
}

#[test]
fn nothing_is_moved_while_a_snapshot_takes_over_where_it_lies() {
    let (mut trio, _, behind) = behind(6, 12);
    trio.members[behind].keeps_checkpoints = true;
    trio.cut = None;
    (0..10).for_each(|_| trio.tick());
    // Everything is here, and its checkpoint is on its way, which says where it lies.
    let now = trio.now;
    trio.members[behind].with(now, |p, cx| p.maintain(RETIRES, cx));
    trio.run();
    assert!((1..=6).all(|seq| matches!(trio.members[behind].run(seq), Some(Place::Wal { .. }))));
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 0);
    trio.members[behind].keeps_checkpoints = false;
    trio.members[behind].with(now, |p, cx| p.checkpoint_saved(cx));
    caught_up(&mut trio, behind);
    trio.members[behind].with(now, |p, cx| p.maintain(RETIRES, cx));
    trio.run();
    let member = &trio.members[behind];
    assert!((1..=12).all(|seq| matches!(member.run(seq), Some(Place::Extent { .. }))));
    assert_eq!(member.live(), 12);
    trio.assert_equal();
}
