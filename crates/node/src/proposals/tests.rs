//! What one node wants decided, beside leaders that come and go: node 2 follows whoever speaks.

use super::*;
use crate::catch_up::CatchUps;
use crate::topology_member::Knowledge;
use broker::PartitionId;
use consensus::{Config, LogIndex, Message, NodeId};
use partition::{Outputs, PeerFrame, Recovery};
use storage::{FileNo, Location, RecordKind};

const OWN: NodeLife = NodeLife { node: 2, start: 1 };

/// Keeps what is decided in a row.
#[derive(Default)]
struct Row {
    decided: Vec<u64>,
    caught_up: Vec<u64>,
}

impl Machine for Row {
    fn apply(&mut self, entry: AppliedEntry) {
        self.decided.extend(entry.token);
    }
    fn lost(&mut self, token: u64) {
        panic!("{token} is given up");
    }
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }
    fn can_read(&self, _: &Bytes) -> bool {
        false
    }
    fn install(&mut self, _: &Bytes) {}
}

impl Proposer for Row {
    fn knows_leases(&self) -> bool {
        true
    }

    fn knows(&mut self, _: Knowledge) {}

    fn was_knowledge_used(&mut self) -> bool {
        true
    }

    fn next_wish(&mut self) -> Option<(crate::topology_member::Wish, u64)> {
        None
    }
    fn caught_up(&mut self, token: u64) {
        self.caught_up.push(token);
    }
    fn release(&mut self, _: LogIndex) {}
    fn homes(&self) -> Vec<NodeNumber> {
        Vec::new()
    }
    fn members_wanted(&self) -> Vec<NodeNumber> {
        Vec::new()
    }
    fn next_standing(&self, _: &[NodeNumber]) -> Option<Bytes> {
        None
    }
    fn end_of(&self, _: NodeNumber) -> Bytes {
        Bytes::new()
    }
}

struct Follower {
    log: LogPartition,
    row: Row,
    out: Outputs,
    proposals: Proposals,
    catch_ups: CatchUps,
    now: Millis,
    last: u64,
}

impl Follower {
    fn new() -> Follower {
        let group = PartitionId(0);
        let recovery = Recovery::log(group, None).expect("nothing was written");
        let (node, all) = (NodeId(OWN.node.into()), [1, 2, 3].map(NodeId));
        let (mut log, _) = recovery.finish_log(node, Config::new(node, group.0, 1), &all).expect("a new log");
        log.log_is_at(1);
        log.set_life(OWN.word());
        let (row, out) = (Row::default(), Outputs::default());
        let (proposals, catch_ups) = (Proposals::new(OWN), CatchUps::new(OWN));
        Follower { log, row, out, proposals, catch_ups, now: 1_000, last: 1 }
    }

    /// A leader speaks: the numbers of its message and what follows them, as `consensus` writes them.
    fn hear(&mut self, from: u8, kind: u8, present: u8, rest: &[u8]) {
        let bytes = [&[1, kind, present, 0, from, OWN.node as u8], rest].concat();
        let message = Message::decode(&mut bytes.into()).expect("it is well made");
        self.log.step(NodeId(from.into()), PeerFrame::Raft(message), &self.row, &mut self.out);
    }

    /// A node leads in a term; nothing of it is committed.
    fn heartbeat(&mut self, from: u8, term: u8) {
        self.hear(from, 7, 1, &[term, 0]);
    }

    /// The next entry is committed: that with which a term begins, or a change of this node's.
    fn commit(&mut self, from: u8, (term, before): (u8, u8), change: Option<u64>) {
        let base = self.last as u8;
        let data = change.map_or(Vec::new(), |number| {
            let origin = Origin { life: OWN.word(), token: number };
            [&[2, 1, 0, 0][..], &origin.life.to_le_bytes(), &origin.token.to_le_bytes(), b"change"].concat()
        });
        self.last += 1;
        let head = [term, before, base, self.last as u8, 1, 0, 0, data.len() as u8];
        self.hear(from, 1, 0b1111, &[&head, &data[..]].concat());
    }

    /// A turn, as its member takes it. Gives the numbers that go to other nodes, with whose they are.
    fn turn(&mut self) -> Vec<(u32, u64)> {
        let mut said = Vec::new();
        loop {
            self.proposals.send(self.now, &mut self.log, &mut said);
            for _ in 0..3 {
                self.log.flush(self.now, &mut self.proposals.machine(&mut self.row), &mut self.out);
                for write in std::mem::take(&mut self.out.wal) {
                    let entries = write.records.iter().filter(|record| record.kind == RecordKind::Entry);
                    let at = |(at, record): (usize, &storage::Record)| Location {
                        file: FileNo(1),
                        offset: 4096 + 64 * (at as u32 + self.last as u32),
                        bytes: record.body.len() as u32,
                    };
                    let places: Vec<Location> = entries.enumerate().map(at).collect();
                    self.log.wal_written(write.ticket, &places, &mut self.out);
                    self.log.wal_synced(write.ticket, &mut self.out);
                }
            }
            let known = self.proposals.known();
            let known = (known, self.log.applied());
            let _ = self.catch_ups.hear(self.now, known, &mut self.log, &mut self.row);
            if !self.proposals.look(self.now, &self.log, &mut self.row) {
                break;
            }
        }
        let proposed = |(node, forward): (NodeNumber, Forward)| match forward {
            Forward::Propose { token, .. } => (node.0, token),
            other => panic!("{other:?}"),
        };
        said.into_iter().map(proposed).collect()
    }

    fn want(&mut self, token: u64) {
        self.proposals.want(self.now, token, Bytes::from_static(b"change"));
    }

    fn refused(&mut self, by: u32, number: u64) {
        let (from, answer) = (NodeLife { node: by, start: 1 }, Forward::NotProposed { token: number });
        self.proposals.receive(from, answer, &mut self.log, &mut Vec::new());
    }
}

#[test]
fn what_is_wanted_later_waits_until_it_is_known_what_an_earlier_leader_made_of_the_rest() {
    let mut follower = Follower::new();
    follower.heartbeat(1, 2);
    follower.want(11);
    assert_eq!(follower.turn(), [(1, 1)]);
    // That leader dies. The next one may have it in its log.
    follower.heartbeat(3, 3);
    follower.want(12);
    assert_eq!(follower.turn(), [], "it would come before the first");
    follower.commit(3, (3, 1), None);
    assert_eq!(follower.turn(), [(3, 2), (3, 3)], "it had nothing of it");
    follower.commit(3, (3, 3), Some(2));
    follower.commit(3, (3, 3), Some(3));
    assert_eq!(follower.turn(), []);
    assert_eq!(follower.row.decided, [11, 12]);
}

#[test]
fn what_a_leader_gives_back_goes_ahead_of_what_was_wanted_since() {
    let mut follower = Follower::new();
    follower.heartbeat(1, 2);
    follower.want(11);
    follower.want(12);
    assert_eq!(follower.turn(), [(1, 1), (1, 2)]);
    follower.refused(1, 1);
    follower.want(13);
    follower.refused(1, 2);
    assert_eq!(follower.turn(), [], "it is asked again with the next tick");
    follower.proposals.tick();
    assert_eq!(follower.turn(), [(1, 3), (1, 4), (1, 5)]);
    for number in [3, 4, 5] {
        follower.commit(1, (2, if number == 3 { 1 } else { 2 }), Some(number));
    }
    assert_eq!(follower.turn(), []);
    assert_eq!(follower.row.decided, [11, 12, 13]);
}

#[test]
fn what_was_lost_with_a_link_goes_first_over_the_next_one() {
    let mut follower = Follower::new();
    follower.heartbeat(1, 2);
    follower.want(11);
    assert_eq!(follower.turn(), [(1, 1)]);
    follower.proposals.leader_linked();
    follower.want(12);
    assert_eq!(follower.turn(), [(1, 1), (1, 2)]);
}

#[test]
fn nobody_is_told_that_this_node_knows_all_while_what_it_wanted_before_is_not_decided() {
    let mut follower = Follower::new();
    follower.heartbeat(1, 2);
    follower.want(11);
    assert_eq!(follower.turn(), [(1, 1)]);
    follower.catch_ups.add(follower.now, 20, follower.proposals.wanted());
    // The next leader answers, and has nothing of it.
    follower.heartbeat(3, 3);
    follower.commit(3, (3, 1), None);
    follower.catch_ups.ask(follower.now, &mut follower.log);
    assert_eq!(follower.turn(), [(3, 2)]);
    // Its first question, as it is numbered in this life.
    let question = (u64::from(OWN.start) << 32) + 1;
    let context = [u64::from(OWN.node).to_be_bytes(), question.to_be_bytes()].concat();
    follower.hear(3, 12, 0b101, &[&[3, follower.last as u8, 16], &context[..]].concat());
    assert_eq!(follower.turn(), []);
    assert_eq!(follower.row.caught_up, [], "the change is on its way");
    follower.commit(3, (3, 3), Some(2));
    assert_eq!(follower.turn(), []);
    assert_eq!((&follower.row.decided[..], &follower.row.caught_up[..]), (&[11][..], &[20][..]));
}
