//! What a member does not do, and how it says so.

mod cluster;

use bytes::Bytes;
use cluster::{Cluster, GROUP};
use consensus::{
    Change, Config, Entry, EntryKind, Group, LogIndex, Message, NodeId, Position, Ready, Refused, Restored, Role,
    SnapshotOffer, StartError, StepError, Term,
};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);
const N4: NodeId = NodeId(4);

/// Three members, of which the first leads.
fn led_by_n1(config: fn(Config) -> Config) -> Cluster {
    let mut cluster = Cluster::new(3, 1, config);
    cluster.with(N1, |group| group.campaign());
    cluster.run();
    cluster.with(N1, |group| group.tick());
    cluster.run();
    cluster
}

fn leader(cluster: &mut Cluster) -> &mut Group {
    cluster.member(N1).group.as_mut().expect("it is up")
}

#[test]
fn a_message_for_another_group_or_node_is_refused() {
    let mut cluster = led_by_n1(|config| config);
    cluster.with(N1, |group| group.tick());
    let heartbeat: Message = cluster.network.remove(0);
    assert_eq!(heartbeat.to(), N2);
    let n3 = cluster.member(N3).group.as_mut().expect("it is up");
    assert_eq!(n3.step(heartbeat.clone()), Err(StepError::Misrouted { group: GROUP, to: N2 }));

    let elsewhere = Group::new(Config::new(N2, GROUP + 1, 1), Restored::bootstrap([N1, N2, N3]));
    let refused = elsewhere.expect("valid").step(heartbeat);
    assert_eq!(refused, Err(StepError::Misrouted { group: GROUP, to: N2 }));
}

#[test]
fn an_answer_from_a_stranger_is_refused() {
    let mut cluster = led_by_n1(|config| config);
    cluster.change(N1, &[Change::Remove(N3)]).expect("up").expect("leads");
    cluster.with(N1, |group| group.tick());
    let to_n3: Vec<Message> = cluster.network.iter().filter(|message| message.to() == N3).cloned().collect();
    cluster.run();
    cluster.network.clear();
    for message in to_n3 {
        cluster.deliver(message);
    }
    let answer = cluster.network.iter().find(|message| message.from() == N3).cloned().expect("n3 answers");
    assert_eq!(leader(&mut cluster).step(answer), Err(StepError::NotMember { from: N3 }));
}

#[test]
fn only_the_leader_takes_proposals_and_others_name_it() {
    let mut cluster = led_by_n1(|config| config);
    assert_eq!(cluster.propose(N2, "m"), Some(Err(Refused::NotLeader { leader: Some(N1) })));
    let mut alone = Cluster::new(3, 1, |config| config);
    assert_eq!(alone.propose(N2, "m"), Some(Err(Refused::NotLeader { leader: None })));
    assert_eq!(alone.with(N2, |group| group.read_index(1)), Some(Err(Refused::NotLeader { leader: None })));
}

#[test]
fn proposals_are_refused_while_too_much_is_uncommitted() {
    let mut cluster = led_by_n1(|config| Config { message_bytes_max: 10, uncommitted_bytes_max: 20, ..config });
    let body = || Bytes::from_static(b"ten bytes!");
    assert!(cluster.propose(N1, body()).expect("up").is_ok());
    assert!(cluster.propose(N1, body()).expect("up").is_ok());
    assert_eq!(cluster.propose(N1, body()), Some(Err(Refused::Backlogged)));
    cluster.run();
    assert!(cluster.propose(N1, body()).expect("up").is_ok(), "what is committed counts no more");
    cluster.run();
    let large = Bytes::from(vec![1; 1000]);
    assert!(cluster.propose(N1, large).expect("up").is_ok(), "one entry is always taken");
}

#[test]
#[should_panic(expected = "where 1 to 16777216 are lawful")]
fn an_empty_command_is_a_bug() {
    let _ = led_by_n1(|config| config).propose(N1, "");
}

#[test]
fn a_new_leader_answers_no_reads_before_it_has_committed() {
    let mut cluster = Cluster::new(3, 1, |config| config);
    cluster.with(N1, |group| group.campaign());
    while cluster.status(N1).expect("up").role != Role::Leader {
        cluster.deliver_all();
        cluster.sync(N1);
        cluster.sync(N2);
    }
    assert_eq!(cluster.with(N1, |group| group.read_index(1)), Some(Err(Refused::NotReady)));
    cluster.run();
    assert_eq!(cluster.with(N1, |group| group.read_index(1)), Some(Ok(())));
}

#[test]
fn leadership_goes_to_voters_only() {
    let mut cluster = led_by_n1(|config| config);
    cluster.add_joining(N4);
    cluster.change(N1, &[Change::Learner(N4)]).expect("up").expect("leads");
    cluster.run();
    let mut transfer = |to| cluster.with(N1, |group| group.transfer_leadership(to)).expect("up");
    assert_eq!(transfer(N4), Err(Refused::NoVoter { node: N4 }));
    assert_eq!(transfer(NodeId(9)), Err(Refused::NoVoter { node: NodeId(9) }));
    assert_eq!(transfer(N1), Ok(()), "it leads already");
}

#[test]
fn a_change_of_members_that_leads_nowhere_is_refused() {
    let mut cluster = led_by_n1(|config| config);
    let mut change = |changes: &[Change]| cluster.change(N1, changes).expect("up");
    assert_eq!(change(&[]), Err(Refused::BadChange));
    assert_eq!(change(&[Change::Remove(N1), Change::Remove(N2), Change::Remove(N3)]), Err(Refused::BadChange));
    assert!(change(&[Change::Remove(N2), Change::Learner(N3)]).is_ok());
    assert_eq!(change(&[Change::Voter(N4)]), Err(Refused::ChangeUnderWay));
}

#[test]
fn who_follows_keeps_no_body_that_it_applied_and_who_leads_keeps_them_for_who_lags() {
    let mut cluster = led_by_n1(|config| Config { cache_bytes_max: 1 << 20, ..config });
    let kept = |cluster: &Cluster, node| cluster.status(node).expect("it is up").cache_bytes;
    cluster.crash(N3, 0);
    cluster.propose(N1, vec![7; 10_000]).expect("up").expect("leads");
    cluster.run();
    // With what follows the other one hears that it is decided.
    let next = cluster.propose(N1, "next").expect("up").expect("leads");
    cluster.run();
    assert!(cluster.status(N2).expect("it is up").applied.next() >= next.index);
    assert!(kept(&cluster, N1) >= 10_000 && kept(&cluster, N2) < 1_000);
}

/// A leader with two entries that are on disk only, and a follower that asks for them. Returns what
/// is wanted.
fn with_a_laggard() -> (Cluster, Ready) {
    let mut cluster = led_by_n1(|config| Config { cache_bytes_max: 1, ..config });
    cluster.crash(N3, 0);
    cluster.propose(N1, "m1").expect("up").expect("leads");
    cluster.propose(N1, "m2").expect("up").expect("leads");
    cluster.run();
    cluster.checks.restarted(N3);
    cluster.restart(N3, false);
    let mut ready = Ready::new();
    ask_again(&mut cluster, &mut ready);
    (cluster, ready)
}

/// A heartbeat and what comes of it, without answering what the leader wants. The answers of n3
/// reach the leader twice.
fn ask_again(cluster: &mut Cluster, ready: &mut Ready) {
    let mut wanted = Vec::new();
    let mut snapshots = Vec::new();
    leader(cluster).tick();
    for _ in 0..8 {
        while leader(cluster).ready(ready) {
            wanted.append(&mut ready.fetches);
            snapshots.append(&mut ready.snapshots_wanted);
            cluster.network.append(&mut ready.messages);
            assert!(!ready.must_sync, "nothing new is written");
        }
        for message in std::mem::take(&mut cluster.network) {
            if message.to() == N1 {
                let _ = leader(cluster).step(message.clone());
                let _ = leader(cluster).step(message);
            } else {
                cluster.deliver(message);
            }
        }
    }
    ready.fetches = wanted;
    ready.snapshots_wanted = snapshots;
}

#[test]
fn a_fetch_is_wanted_once_until_it_is_answered() {
    let (mut cluster, mut ready) = with_a_laggard();
    assert_eq!(ready.fetches.len(), 1);
    let fetch = ready.fetches[0];
    assert_eq!((fetch.from, fetch.limit), (LogIndex(3), LogIndex(5)));
    ask_again(&mut cluster, &mut ready);
    assert_eq!(ready.fetches, [], "it is under way");
    leader(&mut cluster).fetched(fetch.from, Vec::new());
    ask_again(&mut cluster, &mut ready);
    assert_eq!(ready.fetches, [fetch], "it could not be read, and is wanted again");
    let entries = cluster.members[&N1].disk.fetch(fetch);
    leader(&mut cluster).fetched(fetch.from, entries);
    ask_again(&mut cluster, &mut ready);
    cluster.sync(N3);
    assert_eq!(cluster.status(N3).expect("up").last, Position::new(4, 2));
}

#[test]
fn fetched_entries_that_are_not_those_of_the_log_are_not_sent() {
    let (mut cluster, mut ready) = with_a_laggard();
    let from = ready.fetches[0].from;
    let wrong =
        Entry { index: from, term: Term(1), kind: EntryKind::Command, data: Bytes::from_static(b"other"), crc: None };
    leader(&mut cluster).fetched(from, vec![wrong]);
    while leader(&mut cluster).ready(&mut ready) {
        assert!(ready.messages.iter().all(|message| message.entry_count() == 0), "{:?}", ready.messages);
    }
    leader(&mut cluster).fetched(LogIndex(77), Vec::new());
}

#[test]
fn a_new_term_of_office_asks_anew() {
    let (mut cluster, ready) = with_a_laggard();
    let fetch = ready.fetches[0];
    // It hands over to n2 and takes over again, while n3 hears nothing. What it asked for is never
    // answered.
    for (from, to) in [(N1, N2), (N2, N1)] {
        cluster.with(from, |group| group.transfer_leadership(to)).expect("up").expect("leads");
        for _ in 0..6 {
            let all = std::mem::take(&mut cluster.network);
            for message in all.into_iter().filter(|message| message.to() != N3) {
                cluster.deliver(message);
            }
            cluster.sync(N1);
            cluster.sync(N2);
        }
        assert_eq!(cluster.status(to).expect("up").role, Role::Leader);
    }
    cluster.take_trace();
    cluster.network.clear();
    cluster.with(N1, |group| group.tick());
    cluster.run();
    let asked = format!("fetch from={}", fetch.from);
    let trace = cluster.take_trace();
    assert!(trace.contains(&asked), "{trace}");
}

#[test]
fn who_steps_down_wants_nothing_for_others_any_more() {
    let (mut cluster, mut ready) = with_a_laggard();
    leader(&mut cluster).compact(LogIndex(3));
    leader(&mut cluster).fetched(LogIndex(3), Vec::new());
    leader(&mut cluster).tick();
    while leader(&mut cluster).ready(&mut ready) {
        cluster.network.append(&mut ready.messages);
    }
    for message in std::mem::take(&mut cluster.network) {
        cluster.deliver(message);
    }
    for answer in std::mem::take(&mut cluster.network) {
        leader(&mut cluster).step(answer).expect("it is for n1");
    }
    // From now on it hears nobody, and leads no more before it could say what it wants.
    for _ in 0..100 {
        leader(&mut cluster).tick();
    }
    assert_ne!(cluster.status(N1).expect("up").role, Role::Leader);
    while leader(&mut cluster).ready(&mut ready) {
        assert_eq!((ready.snapshots_wanted.len(), ready.fetches.len()), (0, 0));
    }
}

#[test]
fn a_follower_asks_for_a_read_though_it_knows_nothing_of_this_term_to_be_committed() {
    let mut cluster = Cluster::new(3, 1, |config| config);
    cluster.with(N1, |group| group.campaign());
    while cluster.status(N2).expect("up").leader != Some(N1) {
        (1..=3).for_each(|node| cluster.sync(NodeId(node)));
        cluster.deliver_at(0);
    }
    let status = cluster.status(N2).expect("up");
    assert!(status.commit < status.last.index, "{status:?}");
    assert_eq!(cluster.with(N2, |group| group.read_index(1)), Some(Ok(())));
}

/// A follower that has entries of the leader's term and has not heard that they are committed.
fn with_an_uncommitted_tail() -> Cluster {
    let mut cluster = led_by_n1(|config| config);
    cluster.propose(N1, "m1").expect("up").expect("leads");
    cluster.propose(N1, "m2").expect("up").expect("leads");
    while cluster.status(N3).expect("up").last.index < LogIndex(4) {
        (1..=3).for_each(|node| cluster.sync(NodeId(node)));
        let to_n3 = cluster.network.iter().position(|message| message.to() == N3).expect("there is one for n3");
        cluster.deliver_at(to_n3);
    }
    cluster.network.clear();
    cluster
}

#[test]
fn an_offered_snapshot_of_the_term_of_its_last_entry_tells_that_its_log_is_committed() {
    let membership = with_an_uncommitted_tail().with(N1, |group| group.membership()).expect("up");
    let learned = |index, term| {
        let mut cluster = with_an_uncommitted_tail();
        let before = cluster.status(N3).expect("up");
        assert_eq!((before.commit, before.last), (LogIndex(2), Position::new(4, 2)), "{before:?}");
        let unapplied = cluster.with(N3, |group| group.unapplied()).expect("up");
        assert_eq!(unapplied.iter().map(|entry| &entry.data[..]).collect::<Vec<_>>(), [b"m1", b"m2"]);
        let (membership, manifest) = (membership.clone(), Bytes::new());
        let offer = SnapshotOffer { position: Position::new(index, term), membership, manifest };
        let is_new = cluster.with(N3, |group| group.learn_from_offer(&offer)).expect("up");
        let commit = cluster.status(N3).expect("up").commit.0;
        assert!(!cluster.with(N3, |group| group.learn_from_offer(&offer)).expect("up"), "nothing is new twice");
        (is_new, commit)
    };
    assert_eq!(learned(9, 2), (true, 4));
    assert_eq!(learned(9, 3), (false, 2), "another leader may have replaced them");
    // Of what is not behind its log it tells nothing about the end.
    assert_eq!(learned(4, 2), (false, 2));
    assert_eq!(learned(3, 2), (false, 2));
    let mut cluster = with_an_uncommitted_tail();
    let offer = SnapshotOffer { position: Position::new(9, 2), membership, manifest: Bytes::new() };
    assert_eq!(cluster.with(N1, |group| group.learn_from_offer(&offer)), Some(false), "a leader knows better");
}

#[test]
fn a_snapshot_is_wanted_once_and_one_that_is_too_old_is_refused() {
    let (mut cluster, mut ready) = with_a_laggard();
    leader(&mut cluster).compact(LogIndex(3));
    let old = SnapshotOffer {
        position: Position::new(2, 2),
        membership: leader(&mut cluster).membership(),
        manifest: Bytes::new(),
    };
    leader(&mut cluster).fetched(LogIndex(3), Vec::new());
    ask_again(&mut cluster, &mut ready);
    assert_eq!(ready.snapshots_wanted.len(), 1);
    assert_eq!(ready.snapshots_wanted[0].index_min, LogIndex(3));
    ask_again(&mut cluster, &mut ready);
    assert_eq!(ready.snapshots_wanted, [], "it is under way");
    assert!(!leader(&mut cluster).offer_snapshot(N3, old.clone()), "the log after it has a hole");
    ask_again(&mut cluster, &mut ready);
    assert_eq!(ready.snapshots_wanted.len(), 1, "it is wanted again");
    leader(&mut cluster).refuse_snapshot(N3);
    ask_again(&mut cluster, &mut ready);
    assert_eq!(ready.snapshots_wanted.len(), 1, "and again");
    let new = SnapshotOffer { position: Position::new(4, 2), ..old };
    assert!(leader(&mut cluster).offer_snapshot(N3, new.clone()));
    assert!(!leader(&mut cluster).offer_snapshot(N3, new), "it is sent");
}

#[test]
fn a_log_that_ends_before_its_commit_index_is_damaged() {
    let mut restored = Restored::bootstrap([N1]);
    restored.hard_state.commit = LogIndex(9);
    let refused = Group::new(Config::new(N1, 1, 1), restored).err().expect("eight entries are missing");
    assert!(
        matches!(&refused, StartError::Contradictory(what) if what.contains("last (1) are not in this order")),
        "{refused}"
    );
}

#[test]
fn a_member_that_joins_never_stands() {
    let mut group = Group::new(Config::new(N4, 1, 1), Restored::joining()).expect("valid");
    for _ in 0..100 {
        group.tick();
    }
    assert!(!group.campaign());
    assert!(!group.ready(&mut Ready::new()), "it says nothing");
}

#[test]
fn a_member_that_starts_knows_that_a_change_is_committed_once_another_one_follows_in_its_log() {
    let entry = |index, kind, data: &'static [u8]| Entry {
        index: LogIndex(index),
        term: Term(1),
        kind,
        data: Bytes::from_static(data),
        crc: None,
    };
    let (in_comes_n4, out_goes_n2): (&[u8], &[u8]) = (&[1, 1, 1, 4], &[1, 1, 3, 2]);
    let (command, change) = (EntryKind::Command, EntryKind::Membership);
    let begin = |entries: Vec<Entry>| {
        let group = Group::new(Config::new(N2, 1, 1), Restored { entries, ..Restored::bootstrap([N1, N2, N3]) });
        let (mut group, mut ready) = (group.expect("valid"), Ready::new());
        group.campaign();
        let (stood, mut committed) = (group.status().role != Role::Follower, None);
        while group.ready(&mut ready) {
            committed = ready.committed.last().map(|entry| entry.index.0).or(committed);
        }
        (stood, committed, group)
    };
    // One alone may be uncommitted: by what is known, the old members decide.
    let one = vec![entry(2, command, b"x"), entry(3, change, in_comes_n4), entry(4, command, b"y")];
    let (stood, committed, _) = begin(one.clone());
    assert_eq!((stood, committed), (true, None));
    let (stood, committed, mut group) = begin([one, vec![entry(5, change, out_goes_n2)]].concat());
    assert_eq!((stood, committed), (false, Some(3)), "the old members elect nobody any more");
    group.applied(LogIndex(3));
    assert_eq!(group.membership().voters, [N1, N2, N3, N4]);
    group.campaign();
    assert_ne!(group.status().role, Role::Follower);
}

#[test]
fn a_member_that_loses_every_election_waits_differently_each_time() {
    let mut group = Group::new(Config::new(N1, 1, 1), Restored::bootstrap([N1, N2, N3])).expect("valid");
    let mut ready = Ready::new();
    let mut waits = Vec::new();
    let mut waited = 0;
    for _ in 0..1000 {
        group.tick();
        waited += 1;
        if group.ready(&mut ready) && !ready.messages.is_empty() {
            waits.push(waited);
            waited = 0;
        }
    }
    assert!(waits.iter().all(|ticks| (10..20).contains(ticks)), "{waits:?}");
    assert!((10..20).all(|ticks| waits.contains(&ticks)), "{waits:?}");
}

#[test]
fn the_term_of_an_entry_is_known_from_the_compacted_one_to_the_last() {
    let mut cluster = led_by_n1(|config| config);
    cluster.propose(N1, "m").expect("up").expect("leads");
    let group = leader(&mut cluster);
    let terms: Vec<Option<Term>> = (0..=4).map(|index| group.term_at(LogIndex(index))).collect();
    assert_eq!(terms, [None, Some(Term(1)), Some(Term(2)), Some(Term(2)), None]);
}

#[test]
fn a_leader_counts_the_voters_it_hears_of() {
    let mut cluster = led_by_n1(|config| config);
    cluster.add_joining(N4);
    cluster.change(N1, &[Change::Learner(N4)]).expect("up").expect("leads");
    cluster.run();
    assert!(leader(&mut cluster).is_leader());
    assert_eq!(leader(&mut cluster).active_voters(), 3, "learners do not count");
    // It checks, forgets, and hears of n2 only.
    for _ in 0..10 {
        cluster.with(N1, |group| group.tick());
    }
    cluster.network.retain(|message| message.to() == N2);
    cluster.run();
    assert_eq!(leader(&mut cluster).active_voters(), 2);
    let n2 = cluster.members[&N2].group.as_ref().expect("it is up");
    assert!(!n2.is_leader());
    assert_eq!(n2.active_voters(), 0);
}

#[test]
fn a_leader_that_resigns_leads_no_more_and_takes_nothing() {
    let mut cluster = led_by_n1(|config| config);
    let before = cluster.status(N1).expect("up");
    cluster.with(N1, Group::resign).expect("up");
    let after = cluster.status(N1).expect("up");
    assert_eq!((after.role, after.leader, after.term), (Role::Follower, None, before.term));
    let proposed = cluster.with(N1, |group| group.propose(bytes::Bytes::from_static(b"late"))).expect("up");
    assert!(proposed.is_err(), "it leads no more");
    cluster.with(N2, Group::resign).expect("up");
    assert_eq!(cluster.status(N2).expect("up").leader, Some(N1), "who does not lead has nothing to give up");
}
