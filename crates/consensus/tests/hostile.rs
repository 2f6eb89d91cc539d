//! What a peer says, or a disk has lost, ends no process.
#![allow(clippy::expect_used)]

mod trio;

use consensus::{Contradiction, Group, LogIndex, NodeId, Role, StepError, Term};
use proptest::prelude::*;
use trio::{crafted, drain, member, talk};

/// Three members of which the first leads; the second and the third have all that it has.
fn led() -> [Group; 3] {
    let mut members = [1, 2, 3].map(|node| member(node, 3, &[2, 2], false));
    members[0].campaign();
    let [first, second, third] = &mut members;
    talk(&mut [first, second, third], &[1, 2, 3]);
    for _ in 0..5 {
        members[0].propose(bytes::Bytes::from_static(b"command")).expect("it leads");
        let [first, second, third] = &mut members;
        talk(&mut [first, second, third], &[1, 2, 3]);
    }
    members
}

#[test]
fn a_follower_put_back_from_a_copy_is_halted_and_says_why() {
    let [mut leader, mut second, third] = led();
    let commit = leader.status().commit;
    // The third comes back with the folder of last week.
    drop(third);
    let mut third = member(3, 3, &[], false);
    for _ in 0..3 {
        leader.tick();
        talk(&mut [&mut leader, &mut second, &mut third], &[1, 2, 3]);
    }
    let why = third.halted().expect("it cannot go on");
    let term = leader.status().term;
    assert_eq!(why, Contradiction::LogBehind { leader: NodeId(1), term, commit, last: LogIndex(1) });
    assert!(why.to_string().contains("put back from a copy"), "{why}");
    assert!(!third.campaign(), "it stands no more");
    (0..100).for_each(|_| third.tick());
    let mut said = Vec::new();
    drain(&mut third, &mut said);
    assert_eq!(said, [], "it votes no more, and says nothing");
    leader.propose(bytes::Bytes::from_static(b"command")).expect("it leads");
    talk(&mut [&mut leader, &mut second, &mut third], &[1, 2, 3]);
    assert_eq!(leader.status().commit, LogIndex(commit.0 + 1), "the others go on");
}

#[test]
fn a_leader_that_lost_what_is_committed_halts_who_has_it() {
    // With the end of its log there, or further down: the library would answer that all is here.
    for below in [0, 1, 3] {
        let [_, mut second, _] = led();
        let (commit, last, term) = (second.status().commit, second.status().last, second.status().term.0 + 1);
        // It leads a later term, and has other entries where the second has committed ones.
        let append = |index: u64| crafted(1, 1, 2, [term, term, index, 0, 0, 0, 0, 0], &[0]).expect("it can be read");
        assert_eq!(second.step(append(commit.0 - below)), Err(StepError::Halted), "{below}");
        let why = second.halted().expect("it cannot go on");
        let (ours, leader, index) = (Term(term - 1), NodeId(1), LogIndex(commit.0 - below));
        let theirs = Term(term);
        assert_eq!(why, Contradiction::CommittedDiffers { leader, term: Term(term), index, ours, theirs });
        assert_eq!(second.status().last, last, "nothing is cut");
    }
}

#[test]
fn a_committed_change_of_members_that_cannot_be_applied_halts_its_member() {
    let nobody_is_left: &[u8] = &[1, 3, 3, 1, 3, 2, 3, 3];
    let end_of_no_change: &[u8] = &[];
    let two_at_once: &[u8] = &[1, 1, 1, 4];
    // The one before the second of the two is not applied yet, and still goes first.
    let twice_joint: &[u8] = &[1, 2, 1, 4, 1, 5];
    for (changes, good) in
        [(vec![nobody_is_left], 0), (vec![end_of_no_change], 0), (vec![two_at_once, twice_joint, twice_joint], 2)]
    {
        let [_, mut second, _] = led();
        let (last, term) = (second.status().last, second.status().term.0);
        let mut rest = vec![changes.len() as u8];
        changes.iter().for_each(|data| rest.extend([1, 0, data.len() as u8]));
        rest.extend(changes.concat());
        let commit = last.index.0 + changes.len() as u64;
        let append = crafted(1, 1, 2, [term, last.term.0, last.index.0, commit, 0, 0, 0, 0], &rest);
        second.step(append.expect("it can be read")).expect("each of them can be read");
        let mut said = Vec::new();
        drain(&mut second, &mut said);
        let index = LogIndex(last.index.0 + 1 + good);
        assert_eq!(second.halted(), Some(Contradiction::ChangeOfNothing { index, term: Term(term) }), "{changes:?}");
        assert_eq!(second.status().applied, LogIndex(index.0 - 1), "what was before it is applied");
    }
}

#[test]
fn answers_that_acknowledge_what_a_leader_never_had_are_refused() {
    let [mut leader, ..] = led();
    let (term, last) = (leader.status().term.0, leader.status().last.index.0);
    for (index, hint, flag) in [(last + 1, 0, 0), (1 << 40, 0, 0), (u64::MAX, 0, 0), (2, u64::MAX, 0x80)] {
        let reply = crafted(2 | flag, 2, 1, [term, 0, index, 0, 0, hint, 0, 0], &[]).expect("it can be read");
        assert!(matches!(leader.step(reply), Err(StepError::Senseless { .. })), "{index} {hint}");
    }
    assert_eq!(leader.status().role, Role::Leader);
}

/// Numbers around those that the members of [`led`] have, and far from them.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..14u64, 1 => Just(u64::MAX), 1 => Just(1 << 62), 1 => any::<u64>()]
}

/// Entries of an append: terms back, and the sizes of bodies.
fn entries() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..2u8, 0..4u8), 0..4)
}

/// Whose, to be addressed to somebody: kind and flags, from whom, numbers, and what follows them.
type Said = (u8, u64, [u64; 8], Vec<u8>);

fn message() -> impl Strategy<Value = Said> {
    let head = (1..=12u8, prop_oneof![4 => Just(0u8), 1 => Just(0x80u8), 1 => Just(0x40u8)], 1..=3u64);
    (head, prop::array::uniform8(number()), entries(), any::<[u8; 16]>()).prop_map(
        |((kind, flag, from), mut numbers, entries, context)| {
            let mut rest = Vec::new();
            match kind {
                1 => {
                    rest.push(entries.len() as u8);
                    entries.iter().for_each(|(kind, back)| rest.extend([*kind, *back, 1]));
                    rest.extend(entries.iter().map(|_| 7));
                }
                7 | 8 | 11 | 12 => {
                    rest.push(16);
                    rest.extend(context);
                }
                9 => {
                    let [index, term, voters, outgoing, ..] = context;
                    rest.extend([index % 14 + 1, term % 5 + 1, 1, 0]);
                    rest.push(voters % 3);
                    rest.extend((1..=voters % 3).map(|node| node * 2));
                    rest.extend([1, 2]);
                    rest.push(outgoing % 2);
                    rest.extend((0..outgoing % 2).map(|_| 3));
                    rest.extend([0, 0]);
                }
                _ => {}
            }
            // Most of it should get as far as the library.
            (numbers[0], numbers[6], numbers[7]) = match (kind, numbers[5] % 4) {
                (11, _) => (0, 0, 0),
                (_, 0) => (numbers[0].max(1), numbers[6], numbers[7]),
                _ => (numbers[0].max(1), 0, 0),
            };
            (kind | flag, from, numbers, rest)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn nothing_that_a_peer_says_ends_the_process(
        messages in prop::collection::vec(message(), 1..8),
        role in 0..3usize,
        stands in any::<bool>(),
        forgot in any::<bool>(),
    ) {
        let mut members = led();
        let group = &mut members[role];
        if forgot {
            *group = member(role as u64 + 1, 3, &[2, 2, 3], true);
        }
        if stands {
            group.campaign();
        }
        let mut said = Vec::new();
        for (kind, from, numbers, rest) in messages {
            let Some(message) = crafted(kind, from, role as u64 + 1, numbers, &rest) else { continue };
            let _ = group.step(message);
            drain(group, &mut said);
            group.tick();
            drain(group, &mut said);
        }
    }
}
