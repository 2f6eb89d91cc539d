//! What a log says of a partition, read again.

use super::*;
use crate::Outputs;
use storage::FileNo;

/// A checkpoint that has applied entry 10 of term 3, and then these entries: index and term.
fn replayed(entries: &[(u64, u64)]) -> Recovery {
    let mut recovery = Recovery::queues(PartitionId(1), None).expect("there is nothing to read");
    recovery.applied.index = LogIndex(10);
    for (index, term) in entries {
        let at = Location { file: FileNo(1), offset: 4096, bytes: 0 };
        recovery.record(RecordKind::Entry, *term, *index, Bytes::new(), at);
    }
    recovery
}

fn found(entries: &[(u64, u64)]) -> (Vec<(u64, u64)>, Option<u64>) {
    let recovery = replayed(entries);
    let left = recovery.entries().into_iter().map(|(index, term, _)| (index.0, term.0)).collect();
    (left, recovery.gap().map(|gap| gap.0))
}

#[test]
fn the_end_of_a_log_that_was_replaced_is_no_gap() {
    // The replay begins behind 14 of term 2, which the checkpoint does not know; term 3 wrote
    // from 9 on.
    assert_eq!(found(&[(14, 2), (15, 2), (9, 3), (10, 3), (11, 3), (12, 3)]), (vec![(11, 3), (12, 3)], None));
    assert_eq!(found(&[(14, 2), (15, 2), (11, 3), (12, 3)]), (vec![(11, 3), (12, 3)], None));
    assert_eq!(found(&[(11, 2), (13, 2), (12, 3), (13, 3)]), (vec![(11, 2), (12, 3), (13, 3)], None));
}

#[test]
fn who_is_to_join_founds_nothing_however_often_it_is_started() {
    let payload = Bytes::from(joining_checkpoint());
    for _ in 0..2 {
        let recovery = Recovery::queues(PartitionId(1), Some((&payload, 1))).expect("it can be read");
        assert!(!recovery.is_blank(), "nobody founds it in its stead");
        let member = recovery.finish(NodeId(4), Config::new(NodeId(4), 1, 1), &[NodeId(4)]).expect("it is sound");
        assert_eq!(member.replica().group().membership(), Membership::default());
        assert_eq!((member.applied(), member.is_leading()), (LogIndex(0), false));
    }
}

#[test]
fn what_a_node_is_in_its_group_says_the_last_word_of_its_log() {
    let payload = |members: Membership| {
        let (applied, vote) = (Restored::BOOTSTRAP, (Term(1), None));
        let mut payload = Vec::new();
        checkpoint::Head { applied, vote, membership: members, life: 0 }.encode(&mut payload);
        checkpoint::encode_queues(&Queues::default(), &mut payload);
        Bytes::from(payload)
    };
    let others = || Membership::of_voters([NodeId(2), NodeId(3)]);
    let learner = Membership { learners: vec![NodeId(1)], ..others() };
    let with_own = Membership::of_voters([1, 2, 3].map(NodeId));
    let own_or_other = |what: u8, node: u8| Bytes::copy_from_slice(&[1, 1, what, node]);
    let (voter, removed, other) = (own_or_other(1, 1), own_or_other(3, 1), own_or_other(1, 4));
    for (members, changes, expected) in [
        (others(), vec![], Part::None),
        (learner.clone(), vec![], Part::Learner),
        (learner.clone(), vec![&other, &voter], Part::Voter),
        (with_own.clone(), vec![], Part::Voter),
        (with_own, vec![&removed, &other], Part::None),
    ] {
        let mut recovery = Recovery::queues(PartitionId(1), Some((&payload(members), 1))).expect("it can be read");
        for (index, data) in (Restored::BOOTSTRAP.index.0 + 1..).zip(&changes) {
            let (index, term, kind) = (LogIndex(index), Term(1), EntryKind::Membership);
            let body = body_of(&Entry { index, term, kind, data: (*data).clone(), crc: None });
            let at = Location { file: FileNo(1), offset: 4096, bytes: 0 };
            recovery.record(RecordKind::Entry, term.0, index.0, body, at);
        }
        assert_eq!(recovery.part(NodeId(1)), Ok(expected), "{changes:?}");
    }
    let alone = Recovery::queues(PartitionId(1), None).expect("there is nothing to read");
    assert_eq!(alone.part(NodeId(1)), Ok(Part::Voter), "who founds alone needs no checkpoint");
    let joining = Bytes::from(joining_checkpoint());
    let joining = Recovery::queues(PartitionId(1), Some((&joining, 1))).expect("it can be read");
    assert!(joining.is_to_join() && !alone.is_to_join());
}

#[test]
fn what_a_member_of_an_earlier_life_wrote_is_nothing_to_who_came_back() {
    let payload = Bytes::from(returning_checkpoint(2));
    let at = Location { file: FileNo(1), offset: 4096, bytes: 0 };
    let tombstone = |recovery: &mut Recovery, life: u32| {
        recovery.record(RecordKind::Tombstone, 3, 500, ending::tombstone_body(life), at);
    };
    let mut recovery = Recovery::queues(PartitionId(1), Some((&payload, 1))).expect("it can be read");
    assert_eq!(recovery.member(NodeId(4)), NodeId::of(4, 2));
    let vote = Bytes::copy_from_slice(&7_u64.to_le_bytes());
    recovery.record(RecordKind::HardState, 9, 0, vote, at);
    recovery.record(RecordKind::Entry, 3, 500, Bytes::new(), at);
    recovery.record(RecordKind::Membership, 3, 500, Bytes::new(), at);
    assert!(recovery.gap().is_some(), "it is part of a log that begins elsewhere");
    tombstone(&mut recovery, 1);
    assert_eq!((recovery.gap(), recovery.entries(), recovery.ended()), (None, Vec::new(), None));
    let own = recovery.member(NodeId(4));
    let member = recovery.finish(own, Config::new(own, 1, 1), &[]).expect("it is sound");
    assert_eq!(member.replica().stored_vote(), (Term(0), None), "it has voted for nobody");
    let mut recovery = Recovery::queues(PartitionId(1), Some((&payload, 1))).expect("it can be read");
    tombstone(&mut recovery, 0);
    tombstone(&mut recovery, 2);
    assert!(recovery.ended().is_some(), "its own counts");
    // A crash came between its two first checkpoints.
    let mut recovery = Recovery::queues(PartitionId(1), Some((&payload, 1))).expect("it can be read");
    let last = Position { index: LogIndex(500), term: Term(3) };
    recovery.keep_for(&ending::ended_checkpoint(last).into(), u32::MAX).expect("it can be read");
    assert!(recovery.is_beside_its_end() && recovery.ended().is_none());
}

#[test]
fn an_entry_that_is_missing_is_told_until_it_was_written_anew() {
    assert_eq!(found(&[(11, 2), (13, 2)]).1, Some(12));
    assert_eq!(found(&[(12, 2)]).1, Some(11));
    // Replaced behind the gap only.
    assert_eq!(found(&[(11, 2), (13, 2), (14, 2), (14, 3)]), (vec![(11, 2), (13, 2), (14, 3)], Some(12)));
    assert_eq!(found(&[(14, 2), (15, 2), (13, 3)]).1, Some(11));
}

/// Without it a start knows no more to be decided than its checkpoint says, and would let a leader that lost the rest
/// write over it.
#[test]
fn what_a_node_had_applied_as_it_ended_is_decided_after_its_next_start() {
    let payload = Bytes::from(crate::founding_checkpoint(&[1, 2, 3].map(NodeId)));
    let begin = Restored::BOOTSTRAP.index.0;
    let start = |note: Option<(u64, u64)>| {
        let mut recovery = Recovery::queues(PartitionId(1), Some((&payload, 1))).expect("it can be read");
        let at = Location { file: FileNo(1), offset: 4096, bytes: 0 };
        for index in begin + 1..=begin + 3 {
            let (index, term, kind) = (LogIndex(index), Term(2), EntryKind::Empty);
            let body = body_of(&Entry { index, term, kind, data: Bytes::new(), crc: None });
            recovery.record(RecordKind::Entry, term.0, index.0, body, at);
        }
        if let Some((index, term)) = note {
            recovery.record(RecordKind::Membership, term, index, Bytes::new(), at);
        }
        recovery.finish(NodeId(1), Config::new(NodeId(1), 1, 1), &[]).expect("it is sound")
    };
    let commit = |note| start(note).replica().group().commit().0;
    assert_eq!(commit(None), begin);
    assert_eq!(commit(Some((begin + 2, 2))), begin + 2);
    assert_eq!(commit(Some((begin + 2, 1))), begin, "another entry stands there");
    // And what it writes as it ends is that.
    let (mut member, mut out) = (start(None), Outputs::default());
    member.replica_mut().note_applied(LogIndex(begin + 2), &mut out);
    let written: Vec<_> = out.wal.iter().flat_map(|write| &write.records).map(|r| (r.kind, r.index, r.term)).collect();
    assert_eq!(written, [(RecordKind::Membership, begin + 2, 2)]);
    let mut out = Outputs::default();
    member.replica_mut().note_applied(LogIndex(begin), &mut out);
    assert!(out.wal.is_empty(), "the checkpoint says so");
}
