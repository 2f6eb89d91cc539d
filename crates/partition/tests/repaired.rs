//! Messages that rot on one member of three: fetched from the others, or given up if nobody has them.
#![allow(clippy::unwrap_used)]

mod trio;

use broker::{ConsumerKey, QueueId};
use consensus::NodeId;
use partition::WalState;
use partition::command::{Command, Disposition, Effect, Reply, RequestId};
use partition::outputs::{DamagedRun, Fate, Job};
use partition::peer::{Missing, PeerFrame};
use partition::place::Place;
use storage::FileNo;
use trio::{OTHER, QUEUE, READER, Trio};

#[test]
fn a_leader_fetches_what_it_cannot_read_and_goes_on_in_order() {
    let mut trio = Trio::filled(6);
    let leader = trio.leader();
    trio.rot(leader, 0, &[2, 3, 5]);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 5, 6]);
    let asked = |seq| (Fate::Asked, vec![(seq, 1)]);
    assert_eq!(trio.fates(leader), [asked(2), asked(3), asked(5)]);
    let member = &trio.members[leader];
    assert_eq!((member.partition.messages_repaired(), member.out.set_aside), (3, 0));
    assert!(
        [2, 3, 5].iter().all(|seq| matches!(member.run(*seq), Some(Place::Extent { .. }))),
        "they are written anew"
    );
    assert!([1, 4, 6].iter().all(|seq| matches!(member.run(*seq), Some(Place::Wal { .. }))), "the others stay");
    trio.tick();
    trio.assert_equal();
    assert!(trio.members.iter().all(|m| m.live() == 6));
}

#[test]
fn a_basic_get_is_answered_with_a_message_that_another_member_had() {
    let mut trio = Trio::filled(2);
    let leader = trio.leader();
    trio.rot(leader, 0, &[1]);
    trio.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(4) });
    let is_answer = |e: &Effect| matches!(e, Effect::Reply { request: RequestId(4), reply: Reply::Got { delivery, .. }, .. } if delivery.seq == 1);
    assert!(trio.members[leader].effects.iter().any(is_answer));
}

#[test]
fn what_one_follower_has_lost_too_comes_from_the_other() {
    let mut trio = Trio::filled(4);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.rot(leader, 0, &[2, 3]);
    trio.rot(one, 0, &[2]);
    trio.rot(other, 0, &[3]);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 4]);
    assert_eq!(trio.members[leader].out.set_aside, 0);
    trio.tick();
    trio.assert_equal();
}

#[test]
fn what_all_members_have_lost_is_set_aside_in_the_log() {
    let mut trio = Trio::filled(4);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    (0..3).for_each(|at| trio.rot(at, 0, &[2]));
    trio.consume();
    trio.tick();
    assert_eq!(trio.delivered(), [1, 3, 4]);
    assert_eq!(trio.fates(leader), [(Fate::Asked, vec![(2, 1)]), (Fate::SetAside, vec![(2, 1)])]);
    assert_eq!(trio.members[leader].out.set_aside, 1);
    assert_eq!((trio.fates(one), trio.fates(other)), (vec![], vec![]), "it is told where it is met");
    trio.tick();
    assert!(trio.members.iter().all(|m| m.live() == 3), "the log says so to all");
    trio.assert_equal();
}

#[test]
fn a_member_that_does_not_answer_may_have_it() {
    let mut trio = Trio::filled(3);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.rot(leader, 0, &[2]);
    trio.rot(one, 0, &[2]);
    trio.cut = Some(other);
    trio.consume();
    for _ in 0..100 {
        trio.tick();
    }
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.delivered(), [1], "the queue waits, in order");
    assert_eq!(trio.fates(leader), [(Fate::Asked, vec![(2, 1)])], "it is told once");
    assert_eq!((trio.members[leader].live(), trio.members[leader].out.set_aside), (3, 0));
    trio.cut = None;
    for _ in 0..40 {
        trio.tick();
    }
    let now_leading = trio.leader();
    assert_eq!(trio.members[now_leading].live(), 3, "nothing was given up");
    if now_leading == leader {
        assert_eq!(trio.delivered(), [2, 3]);
    }
}

#[test]
fn a_follower_mends_what_its_upkeep_could_not_copy() {
    let mut trio = Trio::filled(3);
    let [one, _] = trio.followers();
    trio.rot(one, 0, &[2]);
    let place = trio.members[one].run(2).unwrap();
    let damaged =
        vec![DamagedRun { queue: QUEUE, place, messages: vec![(2, 1)], why: "rot".to_owned(), is_gone: false }];
    let now = trio.now;
    trio.members[one].with(now, |p, cx| p.runs_damaged(damaged, cx));
    trio.run();
    assert_eq!(trio.fates(one), [(Fate::Asked, vec![(2, 1)])]);
    assert!(matches!(trio.members[one].run(2), Some(Place::Extent { .. })));
    assert_eq!(trio.members[one].partition.messages_repaired(), 1);
    trio.assert_equal();
}

#[test]
fn a_follower_gives_nothing_up() {
    let mut trio = Trio::filled(2);
    (0..3).for_each(|at| trio.rot(at, 0, &[1]));
    let [one, _] = trio.followers();
    let place = trio.members[one].run(1).unwrap();
    let damaged =
        vec![DamagedRun { queue: QUEUE, place, messages: vec![(1, 1)], why: "rot".to_owned(), is_gone: false }];
    let now = trio.now;
    trio.members[one].with(now, |p, cx| p.runs_damaged(damaged, cx));
    for _ in 0..60 {
        trio.tick();
    }
    assert_eq!(trio.fates(one), [(Fate::Asked, vec![(1, 1)])]);
    assert!(trio.members.iter().all(|m| m.live() == 2 && m.out.set_aside == 0));
}

#[test]
fn of_an_extent_only_what_is_damaged_is_fetched_and_only_what_nobody_has_is_set_aside() {
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let leader = trio.leader();
    trio.rot(leader, 1, &[1, 4, 5, 6, 9]);
    (0..3).for_each(|at| trio.rot(at, 1, &[5]));
    trio.consume();
    for _ in 0..4 {
        trio.tick();
    }
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 6, 7, 8, 9]);
    let set_aside: Vec<_> = trio.fates(leader).into_iter().filter(|f| f.0 == Fate::SetAside).collect();
    assert_eq!(set_aside, [(Fate::SetAside, vec![(5, 1)])]);
    let member = &trio.members[leader];
    assert_eq!(member.partition.messages_repaired(), 4);
    let extent = |seq| match member.run(seq) {
        Some(Place::Extent { id, .. }) => id,
        place => panic!("{seq} lies at {place:?}"),
    };
    assert!([2, 3, 7, 8].iter().all(|seq| extent(*seq) == 1), "what is intact stays where it is");
    assert!([1, 4, 6, 9].iter().all(|seq| extent(*seq) > 1));
    trio.tick();
    trio.assert_equal();
}

#[test]
fn what_all_have_lost_of_an_extent_with_nothing_behind_it_is_set_aside() {
    let mut trio = Trio::filled(3);
    trio.move_to_extents();
    (0..3).for_each(|at| trio.rot(at, 1, &[3]));
    trio.consume();
    for _ in 0..4 {
        trio.tick();
    }
    assert_eq!(trio.delivered(), [1, 2]);
    assert!(trio.members.iter().all(|m| m.live() == 2), "the log says so to all");
}

#[test]
fn upkeep_mends_each_stretch_of_an_extent() {
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let [one, _] = trio.followers();
    trio.rot(one, 1, &[4, 6, 7]);
    let place = Place::Extent { id: 1, run: 0 };
    let damaged =
        vec![DamagedRun { queue: QUEUE, place, messages: vec![(4, 1), (6, 2)], why: "rot".to_owned(), is_gone: false }];
    let now = trio.now;
    trio.members[one].with(now, |p, cx| p.runs_damaged(damaged, cx));
    for _ in 0..4 {
        trio.tick();
    }
    let member = &trio.members[one];
    assert_eq!(member.partition.messages_repaired(), 3);
    let is_first = |seq| member.run(seq) == Some(place);
    assert_eq!((1..=9).filter(|seq| is_first(*seq)).collect::<Vec<_>>(), [1, 2, 3, 5, 8, 9]);
    assert_eq!(member.jobs, 3, "one extent that all went to, and one for each stretch");
}

#[test]
fn an_extent_that_was_mended_in_the_middle_is_copied_piece_by_piece() {
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let leader = trio.leader();
    trio.rot(leader, 1, &[5]);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // Most of the first extent is settled: what is left on both sides of the repaired message
    // moves.
    let holder = ConsumerKey { channel: READER, number: 1 };
    for (first, count) in [(2, 2), (6, 2)] {
        trio.command(Command::Settle { queue: QUEUE, holder, first, count, outcome: Disposition::Ack });
    }
    for first in [8, 9] {
        trio.command(Command::Settle { queue: QUEUE, holder, first, count: 1, outcome: Disposition::Ack });
    }
    let (now, jobs) = (trio.now, trio.members[leader].jobs);
    trio.members[leader]
        .with(now, |p, cx| p.maintain(WalState { current_file: 2, checkpoint_lag_files: 100, ..WalState::CALM }, cx));
    trio.run();
    let member = &trio.members[leader];
    assert!(member.jobs > jobs, "it is sparse");
    assert!([1, 4].iter().all(|seq| matches!(member.run(*seq), Some(Place::Extent { id: 3.., .. }))));
    assert_eq!(member.run(5), Some(Place::Extent { id: 2, run: 0 }));
    assert_eq!(member.live(), 3);
}

/// A follower that missed messages 4 to 6, of which its leader cannot read the entry of 4, and
/// keeps nothing in memory.
fn behind_rot() -> (Trio, usize, usize, usize) {
    let mut trio = Trio::filled(3);
    let (leader, [behind, other]) = (trio.leader(), trio.followers());
    trio.cut = Some(behind);
    trio.publish(4..=6);
    trio.tick();
    assert_eq!(trio.leader(), leader);
    let group = trio.members[leader].partition.replica_mut().group_mut();
    group.set_cache_bytes_max(0);
    trio.members[leader].rotten_entries.insert(4);
    trio.rot(leader, 0, &[4]);
    (trio, leader, behind, other)
}

impl Trio {
    fn ticks(&mut self, count: u32) {
        (0..count).for_each(|_| self.tick());
    }
}

#[test]
fn a_follower_that_needs_an_entry_that_rotted_gets_a_snapshot() {
    let (mut trio, leader, behind, _) = behind_rot();
    trio.cut = None;
    trio.ticks(30);
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.members[behind].live(), 6);
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    let member = &trio.members[leader];
    let lost: Vec<_> = member.out.lost_entries.iter().map(|lost| lost.why.as_str()).collect();
    assert_eq!(lost, ["rot"], "it is told once");
    assert_eq!(
        (member.partition.messages_repaired(), member.out.set_aside),
        (1, 0),
        "the third member had the message"
    );
    trio.publish(7..=7);
    trio.tick();
    assert_eq!(trio.members[behind].live(), 7, "the log goes on behind the snapshot");
    trio.assert_equal();
}

#[test]
fn what_waits_for_a_snapshot_has_lost_what_never_came_to_it() {
    let (mut trio, leader, behind, other) = behind_rot();
    trio.rot(other, 0, &[4]);
    trio.cut = None;
    // Without the last word of who waits the snapshot would wait for the message, and the message
    // for the snapshot.
    trio.ticks(60);
    assert_eq!(trio.members[leader].out.set_aside, 1);
    assert_eq!(trio.fates(leader), [(Fate::Asked, vec![(4, 1)]), (Fate::SetAside, vec![(4, 1)])]);
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 5, 6]);
    trio.tick();
    trio.assert_equal();
}

#[test]
fn who_waits_for_a_snapshot_gives_what_it_alone_has() {
    let (mut trio, leader, behind, other) = behind_rot();
    trio.rot(leader, 0, &[2]);
    trio.rot(other, 0, &[2]);
    trio.cut = None;
    trio.ticks(60);
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.consume();
    trio.ticks(60);
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 5, 6]);
    let member = &trio.members[leader];
    assert_eq!((member.partition.messages_repaired(), member.out.set_aside), (2, 0));
    trio.assert_equal();
}

/// A follower that was cut off when it had the entry of message `count`, and had not heard that it
/// is committed.
fn with_more_in_its_log(count: u64) -> (Trio, usize, usize, usize) {
    for frames in 1..8 {
        let mut trio = Trio::filled(count - 1);
        let (leader, [behind, other]) = (trio.leader(), trio.followers());
        trio.cut_after = Some((behind, frames));
        trio.publish(count..=count);
        let member = &trio.members[behind].partition;
        if trio.cut.is_some() && member.replica().table().last() > member.applied() {
            return (trio, leader, behind, other);
        }
    }
    panic!("no such moment was found");
}

#[test]
fn who_waits_for_a_snapshot_gives_what_it_did_not_know_to_be_committed() {
    let (mut trio, leader, behind, other) = with_more_in_its_log(4);
    trio.publish(5..=6);
    trio.compact();
    trio.rot(leader, 0, &[4]);
    trio.rot(other, 0, &[4]);
    trio.cut = None;
    trio.ticks(60);
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    assert_eq!(trio.members[behind].live(), 6);
    trio.consume();
    trio.ticks(60);
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 5, 6]);
    let member = &trio.members[leader];
    assert_eq!((member.partition.messages_repaired(), member.out.set_aside), (1, 0), "it was the only one to have it");
    trio.assert_equal();
}

/// The same, and another member leads since.
fn with_more_in_its_log_of_an_older_term(count: u64) -> (Trio, usize, usize) {
    let (mut trio, leader, behind, other) = with_more_in_its_log(count);
    let group = trio.members[leader].partition.replica_mut().group_mut();
    group.transfer_leadership(NodeId(other as u64 + 1)).unwrap();
    trio.ticks(3);
    assert_eq!(trio.leader(), other);
    trio.publish(count + 1..=count + 2);
    trio.compact();
    (trio, behind, leader)
}

#[test]
fn what_cannot_be_in_a_log_is_lost_to_it_whatever_is_not_applied_of_it() {
    let (mut trio, behind, other) = with_more_in_its_log_of_an_older_term(4);
    let leader = trio.leader();
    trio.rot(leader, 0, &[5]);
    trio.rot(other, 0, &[5]);
    trio.cut = None;
    trio.ticks(60);
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.members[leader].out.set_aside, 1, "message 5 is none of those that may be in it");
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.tick();
    assert!(trio.members.iter().all(|m| m.live() == 5));
    trio.assert_equal();
}

#[test]
fn who_may_have_it_in_its_log_has_not_lost_it() {
    // In the second case it has not heard of the queue.
    for count in [4, 1] {
        let (mut trio, behind, other) = with_more_in_its_log_of_an_older_term(count);
        let leader = trio.leader();
        trio.rot(leader, 0, &[count]);
        trio.rot(other, 0, &[count]);
        trio.cut = None;
        trio.ticks(60);
        assert_eq!(trio.members[leader].out.set_aside, 0, "it may be what everybody asks for");
        assert_eq!(trio.members[behind].partition.snapshots_installed(), 0, "and nobody can tell");
    }
}

#[test]
fn no_checkpoint_names_a_file_that_a_power_cut_may_take_away() {
    let mut trio = Trio::filled(0);
    let (leader, now) = (trio.leader(), trio.now + 60_000);
    // A message that is not applied yet lies in the next file, of which nothing is durable: upkeep
    // is told of the one before.
    trio.members.iter_mut().for_each(|member| member.file = 2);
    let entry = |trio: &Trio| {
        let replica = trio.members[leader].partition.replica();
        replica.table().body(trio.members[leader].partition.applied().next()).map(|body| body.file)
    };
    trio.cut = Some(leader);
    trio.publish(1..=1);
    assert_eq!(entry(&trio), Some(FileNo(2)));
    for (current_file, saves) in [(1, None), (2, Some(2))] {
        let wal = WalState { current_file, checkpoint_lag_files: 100, ..WalState::CALM };
        let member = &mut trio.members[leader];
        // The second time the log stands still.
        for now in [now, now + 3_000] {
            member.with(now, |p, cx| p.maintain(wal, cx));
        }
        let saved = member.out.jobs.drain(..).map(|job| match job {
            Job::SaveCheckpoint { replay_file, .. } => replay_file,
            job => panic!("{job:?}"),
        });
        assert!(saved.eq(saves), "with file {current_file}");
    }
}

impl Trio {
    /// What `to` says at once to a question of `from` for one message: `None` if it has to read
    /// first; else whether it is lost.
    fn is_lost_to(&mut self, to: usize, from: usize, seq: u64) -> Option<bool> {
        let question = PeerFrame::AskMissing(Missing { number: 99, queue: QUEUE, from: seq, past: seq + 1 });
        let now = self.now;
        self.members[to].with(now, |p, cx| p.step(NodeId(from as u64 + 1), question, cx));
        let frames = &mut self.members[to].out.frames;
        let is_answer = |(_, _, frame): &mut (_, _, PeerFrame)| matches!(frame, PeerFrame::HaveMissing(..));
        let answer = frames.extract_if(.., is_answer).last()?.2;
        Some(matches!(answer, PeerFrame::HaveMissing(_, messages) if !messages.is_empty()))
    }
}

#[test]
fn who_waits_for_a_snapshot_says_what_it_never_had_to_nobody_but_its_leader() {
    for frames in 1..30 {
        let (mut trio, leader, behind, other) = behind_rot();
        trio.rot(other, 0, &[4]);
        trio.cut = None;
        trio.cut_after = Some((behind, frames));
        trio.ticks(8);
        // It has the image, and stands at the first message that it never had.
        if trio.is_lost_to(behind, leader, 4) == Some(true) {
            assert_eq!(trio.is_lost_to(behind, other, 4), Some(false), "of another it waits for nothing");
            assert_eq!(trio.is_lost_to(behind, leader, 4), Some(true));
            return;
        }
    }
    panic!("no such moment was found");
}

#[test]
fn a_question_without_an_answer_goes_to_the_next_member() {
    let mut trio = Trio::filled(3);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.rot(leader, 0, &[2]);
    // Members are asked in their order.
    trio.cut = Some(one.min(other));
    trio.consume();
    assert_eq!(trio.delivered(), [1]);
    trio.ticks(3);
    assert_eq!(trio.delivered(), [2, 3]);
}

impl Trio {
    /// What upkeep says of these stretches of a queue.
    fn runs_damaged(&mut self, member: usize, queue: QueueId, stretches: &[&[(u64, u64)]]) {
        let damaged = stretches.iter().map(|messages| {
            let state = self.members[member].partition.queues().queue(queue).unwrap();
            let place = state.runs().covering(messages[0].0).unwrap().place;
            DamagedRun { queue, place, messages: messages.to_vec(), why: "rot".to_owned(), is_gone: false }
        });
        let (damaged, now) = (damaged.collect(), self.now);
        self.members[member].with(now, |p, cx| p.runs_damaged(damaged, cx));
    }
}

#[test]
fn of_many_stretches_a_few_are_mended_at_a_time_and_each_is_written_alone() {
    let mut trio = Trio::filled(10);
    let [one, _] = trio.followers();
    trio.cut = Some(one);
    let all: Vec<[(u64, u64); 1]> = (1..=10).map(|seq| [(seq, 1)]).collect();
    let all: Vec<&[(u64, u64)]> = all.iter().map(|run| &run[..]).collect();
    trio.runs_damaged(one, QUEUE, &all);
    assert_eq!(trio.fates(one).len(), 8, "there is room for so many");
    trio.cut = None;
    trio.ticks(4);
    assert_eq!(trio.members[one].partition.messages_repaired(), 8);
    trio.runs_damaged(one, QUEUE, &all[8..]);
    trio.ticks(4);
    assert_eq!(trio.members[one].partition.messages_repaired(), 10);
    trio.assert_equal();
}

#[test]
fn stretches_side_by_side_and_of_two_queues_are_different_ones() {
    let mut trio = Trio::filled(0);
    trio.publish_to(&[QUEUE, OTHER], 1..=9);
    let [one, _] = trio.followers();
    trio.runs_damaged(one, QUEUE, &[&[(2, 1)]]);
    trio.runs_damaged(one, OTHER, &[&[(2, 1)]]);
    trio.ticks(2);
    assert_eq!(trio.members[one].partition.messages_repaired(), 2);
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let [one, _] = trio.followers();
    trio.rot(one, 1, &[3, 4, 6, 7]);
    trio.runs_damaged(one, QUEUE, &[&[(3, 1), (4, 1), (7, 1), (6, 1)]]);
    trio.ticks(4);
    assert_eq!(trio.members[one].partition.messages_repaired(), 4);
}

#[test]
fn an_answer_to_another_question_is_none() {
    let mut trio = Trio::filled(2);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.runs_damaged(leader, QUEUE, &[&[(1, 1)]]);
    // The others hear nothing; what they would say is made up here.
    let now = trio.now;
    let member = &mut trio.members[leader];
    member.with(now, |p, cx| p.flush(cx));
    let asked = member.out.frames.drain(..).find_map(|(_, _, frame)| match frame {
        PeerFrame::AskMissing(missing) => Some(missing),
        _ => None,
    });
    let asked = asked.expect("somebody is asked");
    let answer =
        |number: u64, queue: QueueId| PeerFrame::HaveMissing(Missing { number, queue, ..asked }, vec![(1, None)]);
    let number = asked.number;
    for (number, queue, set_aside) in [(number + 1, QUEUE, 0), (number, OTHER, 0), (number, QUEUE, 1)] {
        for from in [one, other] {
            let frame = answer(number, queue);
            member.with(now, |p, cx| p.step(NodeId(from as u64 + 1), frame, cx));
        }
        member.with(now, |p, cx| p.flush(cx));
        assert_eq!(member.out.set_aside, set_aside);
    }
}

/// The next leader does not know them, so that nobody else would tell them anything, ever.
#[test]
fn consumers_of_a_leader_that_goes_hear_that_they_get_nothing_more() {
    let mut trio = Trio::filled(1);
    trio.consume();
    let (leader, [next, _]) = (trio.leader(), trio.followers());
    let group = trio.members[leader].partition.replica_mut().group_mut();
    group.transfer_leadership(NodeId(next as u64 + 1)).unwrap();
    trio.ticks(3);
    assert_eq!(trio.leader(), next);
    let key = ConsumerKey { channel: READER, number: 1 };
    let told = trio.members[leader].effects.iter().filter(|effect| matches!(effect, Effect::Cancelled { .. }));
    assert_eq!(told.collect::<Vec<_>>(), [&Effect::Cancelled { consumer: key, queue: QUEUE }]);
}
