//! Members that may have forgotten the end of their logs: who elects whom.
#![allow(clippy::expect_used)]

mod trio;

use consensus::{Config, Group, NodeId, Role};
use trio::{member, talk};

fn leads(group: &Group) -> bool {
    group.status().role == Role::Leader
}

fn stand(candidate: usize, members: &mut [&mut Group], ids: &[u64]) -> bool {
    assert!(members[candidate].campaign(), "it may stand");
    talk(members, ids);
    leads(members[candidate])
}

#[test]
fn one_that_forgot_and_one_that_did_not_elect_nobody() {
    // The third has the entry 3 that the first forgot, and the second never had.
    let (mut forgot, mut whole) = (member(1, 3, &[2], true), member(2, 3, &[2], false));
    assert!(!stand(0, &mut [&mut forgot, &mut whole], &[1, 2]));
    assert!(!stand(1, &mut [&mut forgot, &mut whole], &[1, 2]));
    let mut knows = member(3, 3, &[2, 2], false);
    assert!(!stand(1, &mut [&mut forgot, &mut whole, &mut knows], &[1, 2, 3]), "it has less than the third");
    assert!(stand(2, &mut [&mut forgot, &mut whole, &mut knows], &[1, 2, 3]), "two are whole");
    assert_eq!(forgot.status().last.index.0, 4, "what was forgotten is there again, and the leader's own entry");
}

#[test]
fn members_that_all_forgot_elect_at_once() {
    let (mut first, mut second) = (member(1, 3, &[2], true), member(2, 3, &[2, 2], true));
    assert!(first.may_have_forgotten() && second.may_have_forgotten());
    assert!(!stand(0, &mut [&mut first, &mut second], &[1, 2]), "the other has more");
    assert!(stand(1, &mut [&mut first, &mut second], &[1, 2]));
    assert!(!second.may_have_forgotten(), "a leader has nothing to catch up with");
    assert!(first.may_have_forgotten(), "the other has to ask");
}

#[test]
fn of_five_neither_two_that_forgot_nor_two_that_did_not_are_enough() {
    let mut members: Vec<Group> = (1..=5).map(|node| member(node, 5, &[2], node <= 2)).collect();
    let [first, second, third, fourth, fifth] = &mut members[..] else { unreachable!("there are five") };
    assert!(!stand(2, &mut [first, second, third, fourth], &[1, 2, 3, 4]));
    assert!(stand(2, &mut [first, second, third, fourth, fifth], &[1, 2, 3, 4, 5]));
}

#[test]
fn a_vote_of_one_that_forgot_counts_when_it_has_caught_up() {
    let (mut forgot, mut whole) = (member(1, 3, &[2], true), member(2, 3, &[2], false));
    assert!(!stand(1, &mut [&mut forgot, &mut whole], &[1, 2]));
    forgot.caught_up();
    assert!(stand(1, &mut [&mut forgot, &mut whole], &[1, 2]));
}

#[test]
fn without_a_leader_for_long_the_doubt_is_given_up() {
    let (mut forgot, mut whole) = (member(1, 3, &[2], true), member(2, 3, &[2], false));
    let election_ticks = Config::new(NodeId(1), 0, 0).election_ticks;
    for _ in 0..8 * election_ticks - 1 {
        forgot.tick();
        talk(&mut [&mut forgot, &mut whole], &[1, 2]);
        assert!(forgot.may_have_forgotten() && !leads(&forgot) && !leads(&whole));
    }
    forgot.tick();
    assert!(!forgot.may_have_forgotten() && forgot.gave_up_waiting());
    assert!(stand(1, &mut [&mut forgot, &mut whole], &[1, 2]));
}

#[test]
fn who_follows_a_leader_does_not_give_up_its_doubt() {
    let (mut forgot, mut second, mut third) =
        (member(1, 3, &[2], true), member(2, 3, &[2], false), member(3, 3, &[2], false));
    assert!(stand(1, &mut [&mut forgot, &mut second, &mut third], &[1, 2, 3]));
    for _ in 0..200 {
        [&mut forgot, &mut second, &mut third].into_iter().for_each(Group::tick);
        talk(&mut [&mut forgot, &mut second, &mut third], &[1, 2, 3]);
    }
    assert!(forgot.may_have_forgotten(), "nobody told it that it has caught up");
}

#[test]
fn a_group_that_can_miss_nobody_is_never_in_doubt() {
    assert!(!member(1, 1, &[2], true).may_have_forgotten());
    assert!(!member(1, 2, &[2], true).may_have_forgotten());
    assert!(member(1, 3, &[2], true).may_have_forgotten());
}
