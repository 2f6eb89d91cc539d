//! Three members of a log whose machine is the caller's: it is cut whatever the number of members,
//! and who needs what was cut gets the machine's state, whole and durable, or stays with what it
//! has.
#![allow(clippy::unwrap_used)]

use broker::PartitionId;
use bytes::Bytes;
use consensus::{Change, Config, LogIndex, NodeId};
use partition::log_partition::{AppliedEntry, Machine};
use partition::outputs::{Job, LostEntry, Outputs, ReadAt, ReadBytes, ReadFailed};
use partition::{LogPartition, PeerFrame, Recovery, WalState, joining_log_checkpoint};
use storage::{FileNo, Location, RecordKind};

const GROUP: PartitionId = PartitionId(0);
/// An append message, and with it a part, carries so much.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Keeps all commands in a row.
#[derive(Default)]
struct Row {
    state: Vec<u8>,
    decided: Vec<u64>,
    lost: Vec<u64>,
    cannot_read: bool,
}

impl Machine for Row {
    fn apply(&mut self, entry: AppliedEntry) {
        self.state.extend_from_slice(&entry.data);
        self.decided.extend(entry.token);
    }

    fn lost(&mut self, token: u64) {
        self.lost.push(token);
    }

    fn snapshot(&self) -> Vec<u8> {
        self.state.clone()
    }

    fn can_read(&self, _: &Bytes) -> bool {
        !self.cannot_read
    }

    fn install(&mut self, state: &Bytes) {
        self.state = state.to_vec();
    }
}

/// Where a crash falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    /// Before the mark that cuts the log is written.
    BeforeMark,
    /// Before the checkpoint of a snapshot is saved, the log being cut.
    BeforeCheckpoint,
    /// When it is saved, before the partition hears of it.
    AfterCheckpoint,
}

struct Member {
    log: LogPartition,
    machine: Row,
    out: Outputs,
    records: Vec<(RecordKind, u64, u64, Bytes, Location)>,
    /// Payload, and the file that its replay starts in.
    checkpoint: Option<(Bytes, u32)>,
    file: u32,
    lost_entries: Vec<LostEntry>,
    /// From this file on records cannot be read, until this one.
    rotten: std::ops::Range<u32>,
    crash: Option<Crash>,
    is_cut_by_mark: bool,
}

struct Trio {
    members: Vec<Member>,
    /// Hears nothing, and is not heard.
    cut: Option<usize>,
    parts: u32,
    now: u64,
}

fn config(node: u64) -> Config {
    Config { message_bytes_max: MESSAGE_BYTES_MAX, cache_bytes_max: 0, ..Config::new(NodeId(node), GROUP.0, node) }
}

fn recovered(checkpoint: Option<&(Bytes, u32)>) -> Recovery {
    Recovery::log(GROUP, checkpoint.map(|(payload, file)| (payload, *file))).unwrap()
}

impl Member {
    fn new(node: u64) -> Member {
        let all = [NodeId(1), NodeId(2), NodeId(3)];
        let (mut log, _) = recovered(None).finish_log(NodeId(node), config(node), &all).unwrap();
        log.log_is_at(1);
        Member {
            log,
            machine: Row::default(),
            out: Outputs::default(),
            records: Vec::new(),
            checkpoint: None,
            file: 1,
            lost_entries: Vec::new(),
            rotten: 0..0,
            crash: None,
            is_cut_by_mark: false,
        }
    }

    /// The process dies, and starts over what was written.
    fn restart(&mut self, node: u64) {
        let all = [NodeId(1), NodeId(2), NodeId(3)];
        let mut recovery = recovered(self.checkpoint.as_ref());
        let from = recovery.replay_file();
        for (kind, term, index, body, at) in self.records.iter().filter(|r| r.4.file.0 >= u64::from(from)) {
            recovery.record(*kind, *term, *index, body.clone(), *at);
        }
        assert_eq!(recovery.gap(), None);
        let (log, state) = recovery.finish_log(NodeId(node), config(node), &all).unwrap();
        self.log = log;
        self.log.log_is_at(self.file);
        self.machine = Row { state: state.unwrap_or_default().to_vec(), ..Row::default() };
        self.out = Outputs::default();
        self.crash = None;
    }

    /// Carries out what waits; false if there was nothing, or the process died.
    fn carry_out(&mut self, node: u64, now: u64) -> bool {
        self.log.flush(now, &mut self.machine, &mut self.out);
        self.lost_entries.append(&mut self.out.lost_entries);
        let (writes, reads) = (std::mem::take(&mut self.out.wal), std::mem::take(&mut self.out.reads));
        let jobs = std::mem::take(&mut self.out.jobs);
        let any = !(writes.is_empty() && reads.is_empty() && jobs.is_empty());
        for write in writes {
            let is_mark = write.records.iter().any(|r| r.kind == RecordKind::SnapshotMark);
            if is_mark && self.crash == Some(Crash::BeforeMark) {
                self.restart(node);
                return false;
            }
            self.is_cut_by_mark |= is_mark;
            let mut places = Vec::new();
            for record in write.records {
                let offset = 4096 + 64 * self.records.len() as u32;
                let at = Location { file: FileNo(u64::from(self.file)), offset, bytes: record.body.len() as u32 };
                if record.kind == RecordKind::Entry {
                    places.push(at);
                }
                self.records.push((record.kind, record.term, record.index, record.body, at));
            }
            self.log.wal_written(write.ticket, &places, &mut self.out);
            self.log.wal_synced(write.ticket, &mut self.out);
        }
        for read in reads {
            let ReadAt::Records(places) = &read.at else { panic!("only entries are read here") };
            let rots = |at: &&Location| self.rotten.contains(&(at.file.0 as u32));
            let sound = places.iter().take_while(|at| !rots(at));
            let bodies: Vec<Bytes> =
                sound.map(|at| self.records.iter().find(|r| r.4 == *at).unwrap().3.clone()).collect();
            let found = match bodies.is_empty() {
                true => Err(ReadFailed::Damaged("rot".to_owned())),
                false => Ok(ReadBytes::Records(bodies)),
            };
            self.log.read_done(read.purpose, found, &mut self.out);
        }
        for job in jobs {
            let Job::SaveCheckpoint { payload, replay_file, .. } = job else {
                panic!("only checkpoints are made here")
            };
            if self.is_cut_by_mark && self.crash == Some(Crash::BeforeCheckpoint) {
                self.restart(node);
                return false;
            }
            self.checkpoint = Some((payload.into(), replay_file));
            if self.is_cut_by_mark && self.crash == Some(Crash::AfterCheckpoint) {
                self.restart(node);
                return false;
            }
            self.log.checkpoint_saved(&mut self.machine, &mut self.out);
        }
        any
    }

    fn entries_kept(&self) -> u64 {
        self.log.replica().table().len() as u64
    }
}

impl Trio {
    fn new() -> Trio {
        let mut trio = Trio { members: (1..=3).map(Member::new).collect(), cut: None, parts: 0, now: 1_000 };
        trio.ticks(200);
        trio
    }

    fn run(&mut self) {
        for _ in 0..5_000 {
            let mut moved = false;
            for at in 0..self.members.len() {
                moved |= self.members[at].carry_out(at as u64 + 1, self.now);
                for (to, _, frame) in std::mem::take(&mut self.members[at].out.frames) {
                    let to = to.0 as usize - 1;
                    if self.cut == Some(at) || self.cut == Some(to) {
                        continue;
                    }
                    moved = true;
                    self.parts += u32::from(matches!(frame, PeerFrame::ImagePart { .. }));
                    let member = &mut self.members[to];
                    member.log.step(NodeId(at as u64 + 1), frame, &member.machine, &mut member.out);
                }
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.now += 150;
            self.members.iter_mut().for_each(|m| m.log.tick());
            self.run();
        }
    }

    fn leader(&self) -> usize {
        let leads = |at: &usize| self.cut != Some(*at) && self.members[*at].log.is_leading();
        (0..self.members.len()).find(leads).expect("somebody leads")
    }

    fn follower(&self) -> usize {
        (self.leader() + 1) % 3
    }

    fn propose(&mut self, at: usize, token: u64, bytes: usize) -> bool {
        let member = &mut self.members[at];
        member.log.propose(&vec![b'a' + (token % 26) as u8; bytes], token, &mut member.machine)
    }

    /// Commands of so many bytes are decided.
    fn decide(&mut self, tokens: std::ops::Range<u64>, bytes: usize) {
        for token in tokens {
            let leader = self.leader();
            assert!(self.propose(leader, token, bytes));
            self.run();
            assert_eq!(self.members[leader].machine.decided.last(), Some(&token));
        }
    }

    /// All that are not cut off write their logs to the next file from now on, and look after them.
    fn roll(&mut self) {
        for at in (0..self.members.len()).filter(|at| self.cut != Some(*at)) {
            self.members[at].file += 1;
        }
        self.maintain();
    }

    fn maintain(&mut self) {
        let cut = self.cut;
        for member in self.members.iter_mut().enumerate().filter(|(at, _)| cut != Some(*at)).map(|(_, member)| member) {
            let wal = WalState { current_file: member.file, checkpoint_lag_files: 0, ..WalState::CALM };
            member.log.maintain(wal, self.now, &member.machine, &mut member.out);
        }
        self.run();
    }

    /// A follower misses so much that it was cut; returns who.
    fn missed(&mut self) -> usize {
        let follower = self.follower();
        self.decide(0..2, 10);
        self.ticks(2);
        self.cut = Some(follower);
        self.decide(2..12, 3_000);
        // Nobody has heard of it for long enough.
        self.ticks(40);
        self.roll();
        assert_eq!(self.members[self.leader()].entries_kept(), 0, "the log is cut");
        follower
    }

    fn are_equal(&self) -> bool {
        let applied = self.members[0].log.applied();
        self.members.iter().all(|m| m.log.applied() == applied && m.machine.state == self.members[0].machine.state)
    }
}

#[test]
fn who_missed_what_was_cut_gets_the_state_in_parts() {
    let mut trio = Trio::new();
    let follower = trio.missed();
    let behind = trio.members[follower].log.applied();
    trio.cut = None;
    trio.ticks(40);
    assert!(trio.are_equal());
    assert!(trio.members[follower].log.applied() > behind);
    assert_eq!(trio.members[follower].log.snapshots_installed(), 1);
    assert!((8..=20).contains(&trio.parts), "30 KB in parts of {MESSAGE_BYTES_MAX} B: {}", trio.parts);
    // It goes on with the log from there, and starts from there.
    trio.decide(20..25, 100);
    trio.members[follower].restart(follower as u64 + 1);
    assert!(trio.members[follower].machine.state.len() >= 30_000, "the checkpoint has it");
    trio.ticks(40);
    assert!(trio.are_equal());
}

/// A node joins the group with nothing, as one that has an empty folder does: however often it starts, it
/// founds nothing, and once it is taken in it has all of the state and then a vote.
#[test]
fn who_joins_with_nothing_gets_the_state_and_then_a_vote() {
    let mut trio = Trio::new();
    trio.decide(0..6, 3_000);
    let mut fourth = Member::new(4);
    fourth.checkpoint = Some((Bytes::from(joining_log_checkpoint(b"")), 1));
    trio.members.push(fourth);
    for _ in 0..2 {
        trio.members[3].restart(4);
        trio.ticks(60);
        assert_eq!((trio.members[3].log.applied(), trio.members[3].log.is_leading()), (LogIndex(0), false));
    }
    let change = |trio: &mut Trio, change: Change| {
        let leader = trio.leader();
        trio.members[leader].log.replica_mut().group_mut().change_membership(&[change]).unwrap();
        trio.ticks(20);
    };
    change(&mut trio, Change::Learner(NodeId(4)));
    assert!(trio.are_equal());
    assert_eq!(trio.members[3].log.snapshots_installed(), 1, "who the first members were no entry says");
    // It dies as a learner, and is one again.
    trio.members[3].restart(4);
    trio.decide(6..9, 100);
    trio.ticks(20);
    assert!(trio.are_equal());
    change(&mut trio, Change::Voter(NodeId(4)));
    // Without one of the founders the three others are a majority, and it is one of them.
    trio.cut = Some(trio.leader());
    trio.ticks(200);
    trio.decide(9..12, 100);
    trio.cut = None;
    trio.ticks(40);
    assert!(trio.are_equal());
    assert_eq!(trio.members[3].log.replica().group().membership().voters.len(), 4);
}

/// A start looks for a majority of the members that its checkpoint names. Of those before them nobody
/// may be left.
#[test]
fn who_starts_after_others_were_removed_looks_for_a_majority_without_them() {
    let mut trio = Trio::new();
    trio.decide(0..3, 10);
    let leader = trio.leader();
    for gone in (0..3).filter(|at| *at != leader) {
        let change = [Change::Remove(NodeId(gone as u64 + 1))];
        trio.members[leader].log.replica_mut().group_mut().change_membership(&change).unwrap();
        trio.ticks(20);
    }
    // Neither is the log's file full, nor was nothing decided for long.
    trio.maintain();
    let own = leader as u64 + 1;
    trio.members[leader].restart(own);
    assert_eq!(trio.members[leader].log.replica().group().membership().voters, [NodeId(own)]);
}

/// The same before any checkpoint says so: of the last change, too, its log says that it is committed.
#[test]
fn who_starts_right_after_others_were_removed_looks_for_a_majority_without_them() {
    let mut trio = Trio::new();
    trio.decide(0..3, 10);
    let leader = trio.leader();
    for gone in (0..3).filter(|at| *at != leader) {
        let change = [Change::Remove(NodeId(gone as u64 + 1))];
        trio.members[leader].log.replica_mut().group_mut().change_membership(&change).unwrap();
        trio.ticks(20);
    }
    assert!(trio.members[leader].checkpoint.is_none());
    let own = leader as u64 + 1;
    // Whatever else came behind it.
    trio.decide(3..5, 10);
    for _ in 0..2 {
        trio.members[leader].restart(own);
        trio.cut = Some((leader + 1) % 3);
        while trio.members[leader].carry_out(own, trio.now) {}
        assert_eq!(trio.members[leader].log.replica().group().membership().voters, [NodeId(own)]);
    }
    trio.ticks(40);
    assert!(trio.members[leader].log.is_leading());
    assert_eq!(trio.members[leader].machine.state.len(), 50, "and it has all");
}

#[test]
fn a_crash_at_any_step_of_an_install_leaves_the_old_state_or_the_new_one() {
    for crash in [Crash::BeforeMark, Crash::BeforeCheckpoint, Crash::AfterCheckpoint] {
        let mut trio = Trio::new();
        let follower = trio.missed();
        let (old, new) =
            (trio.members[follower].machine.state.clone(), trio.members[trio.leader()].machine.state.clone());
        let old_applied = trio.members[follower].log.applied();
        trio.members[follower].crash = Some(crash);
        trio.cut = None;
        for _ in 0..40 {
            trio.now += 150;
            trio.members.iter_mut().for_each(|m| m.log.tick());
            trio.run();
            if trio.members[follower].crash.is_none() {
                break;
            }
        }
        assert_eq!(trio.members[follower].crash, None, "it fell to {crash:?}");
        let member = &mut trio.members[follower];
        // Alone it knows of nothing more than what its disk holds; its log is applied only when a
        // leader says so.
        member.restart(follower as u64 + 1);
        let is_new = crash == Crash::AfterCheckpoint;
        assert_eq!(member.machine.state.len(), if is_new { new.len() } else { 0 }, "{crash:?}");
        assert_eq!(member.log.applied() > old_applied, is_new, "{crash:?}");
        assert_eq!(is_new, member.entries_kept() == 0, "{crash:?}: the old log stands until the checkpoint is there");
        assert!(old.len() < new.len());
        trio.ticks(80);
        assert!(trio.are_equal(), "{crash:?}");
    }
}

#[test]
fn what_cannot_be_read_here_takes_the_place_of_nothing() {
    let mut trio = Trio::new();
    let follower = trio.missed();
    trio.members[follower].machine.cannot_read = true;
    trio.cut = None;
    trio.ticks(40);
    let member = &trio.members[follower];
    assert!(!member.is_cut_by_mark && member.log.snapshots_installed() == 0);
    assert_eq!(member.machine.state.len(), 20, "it has what it had");
    trio.members[follower].machine.cannot_read = false;
    trio.ticks(80);
    assert!(trio.are_equal());
}

#[test]
fn the_log_is_kept_for_who_lags_a_little_and_cut_when_that_is_over() {
    let mut trio = Trio::new();
    let (leader, follower) = (trio.leader(), trio.follower());
    trio.decide(0..5, 10);
    trio.cut = Some(follower);
    trio.decide(5..10, 10);
    // It was heard of a moment ago.
    trio.roll();
    assert!(trio.members[leader].checkpoint.is_some());
    assert!(trio.members[leader].entries_kept() >= 5, "what it has not got is there");
    let needs = trio.members[leader].log.needs_file(2);
    assert_eq!(needs, 1, "and so are the files that hold it");
    trio.cut = None;
    trio.ticks(5);
    assert!(trio.are_equal());
    assert_eq!(trio.members[follower].log.snapshots_installed(), 0, "the log was enough");
    trio.maintain();
    assert_eq!(trio.members[leader].entries_kept(), 0, "without another checkpoint");
    // One that lags by too many files is not waited for.
    trio.cut = Some(follower);
    trio.decide(10..15, 10);
    (0..6).for_each(|_| trio.members[leader].file += 1);
    trio.decide(15..16, 10);
    trio.maintain();
    assert_eq!(trio.members[leader].entries_kept(), 0);
}

#[test]
fn no_checkpoint_names_a_file_that_a_power_cut_may_take_away() {
    let mut trio = Trio::new();
    trio.decide(0..2, 10);
    // What is not applied yet lies in the next file, of which nothing is durable: upkeep is told of
    // the one before.
    let leader = trio.leader();
    let member = &mut trio.members[leader];
    member.file = 2;
    assert!(member.log.propose(b"c", 9, &mut member.machine));
    member.carry_out(leader as u64 + 1, trio.now);
    assert_eq!(member.log.replica().table().body(member.log.applied().next()).unwrap().file, FileNo(2));
    for (current_file, replay_file) in [(1, 1), (2, 2)] {
        let wal = WalState { current_file, checkpoint_lag_files: 0, ..WalState::CALM };
        member.log.maintain(wal, trio.now + 60_000, &member.machine, &mut member.out);
        let saved = member.out.jobs.drain(..).map(|job| match job {
            Job::SaveCheckpoint { replay_file, .. } => replay_file,
            job => panic!("{job:?}"),
        });
        assert!(saved.eq((replay_file > 1).then_some(replay_file)), "with file {current_file}");
    }
}

#[test]
fn while_the_log_grows_quickly_several_files_are_let_go_of_at_a_time() {
    let mut trio = Trio::new();
    trio.decide(0..2, 10);
    let (leader, now) = (trio.leader(), trio.now + 60_000);
    let member = &mut trio.members[leader];
    let mut saves = |file: u32, now_ms: u64| {
        let wal = WalState { current_file: file, checkpoint_lag_files: 3, ..WalState::CALM };
        member.log.maintain(wal, now_ms, &member.machine, &mut member.out);
        let is_saved = member.out.jobs.drain(..).any(|job| matches!(job, Job::SaveCheckpoint { .. }));
        if is_saved {
            member.log.checkpoint_saved(&mut member.machine, &mut member.out);
        }
        is_saved
    };
    let at: Vec<u32> = (2..=11).filter(|file| saves(*file, now + u64::from(*file) * 1_000)).collect();
    assert_eq!(at, [5, 9]);
    assert!(!saves(11, now + 13_999) && saves(11, now + 14_000), "nothing more comes");
}

#[test]
fn who_needs_an_entry_that_rotted_gets_the_state() {
    let mut trio = Trio::new();
    let (leader, follower) = (trio.leader(), trio.follower());
    trio.cut = Some(follower);
    trio.decide(0..5, 3_000);
    trio.members[leader].rotten = 1..2;
    trio.cut = None;
    trio.ticks(40);
    assert!(trio.are_equal());
    assert_eq!(trio.members[leader].lost_entries.len(), 1, "it is told once");
    assert_eq!(trio.members[follower].log.snapshots_installed(), 1);
}

#[test]
fn who_proposed_hears_once_what_became_of_it() {
    let mut trio = Trio::new();
    let old = trio.leader();
    trio.decide(0..3, 10);
    trio.cut = Some(old);
    for token in 10..14 {
        assert!(trio.propose(old, token, 10));
    }
    trio.run();
    trio.ticks(60);
    assert_ne!(trio.leader(), old, "another leads");
    trio.decide(20..21, 10);
    trio.cut = None;
    trio.ticks(20);
    trio.members[old].machine.lost.sort_unstable();
    assert_eq!(trio.members[old].machine.lost, [10, 11, 12, 13], "what was written over is lost");
    assert_eq!(trio.members[old].machine.decided, [0, 1, 2]);
    // It leads again: its new proposals stand where the old ones stood.
    let new = trio.leader();
    trio.members[new].log.replica_mut().group_mut().transfer_leadership(NodeId(old as u64 + 1)).unwrap();
    trio.ticks(20);
    assert_eq!(trio.leader(), old);
    trio.decide(30..33, 10);
    assert_eq!(trio.members[old].machine.decided, [0, 1, 2, 30, 31, 32]);
    trio.ticks(2);
    assert!(trio.are_equal());
    assert!(trio.members[0].log.applied() > LogIndex(8));
}

/// What came of a question so far.
fn answer_to(trio: &mut Trio, at: usize, context: u64) -> Option<LogIndex> {
    let states = trio.members[at].log.take_read_states();
    states.into_iter().find(|state| state.context == context).map(|state| state.index)
}

#[test]
fn whoever_asks_how_far_the_log_was_decided_hears_it_from_a_majority_or_not_at_all() {
    let mut trio = Trio::new();
    let follower = trio.follower();
    trio.decide(0..3, 10);
    let decided = trio.members[trio.leader()].log.applied();
    for at in 0..3 {
        assert!(trio.members[at].log.read_index(7 + at as u64));
    }
    trio.run();
    for at in 0..3 {
        assert_eq!(answer_to(&mut trio, at, 7 + at as u64), Some(decided), "member {at}");
    }
    // Cut off, it still believes in its leader for a while, and then in none.
    trio.cut = Some(follower);
    trio.decide(3..5, 10);
    assert!(trio.members[follower].log.read_index(20));
    trio.ticks(40);
    assert_eq!(answer_to(&mut trio, follower, 20), None);
    assert!(!trio.members[follower].log.read_index(21));
    trio.cut = None;
    trio.ticks(40);
    // A leader that lost the others answers itself no more than anybody.
    let leader = trio.leader();
    trio.cut = Some(leader);
    assert!(trio.members[leader].log.read_index(30));
    trio.ticks(40);
    assert_eq!(answer_to(&mut trio, leader, 30), None);
}
