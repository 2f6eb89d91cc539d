//! What a member counts as written, by three of them whose disks sync when they are let.

use super::*;
use consensus::{Config, Restored};
use storage::{FileNo, RecordKind};

const NOWHERE: Location = Location { file: FileNo(1), offset: 0, bytes: 1 };

/// Three members whose disks write at once and sync when they are let.
struct Net {
    members: Vec<Replica>,
    syncs: bool,
}

impl Net {
    fn new() -> Net {
        let ids = [1, 2, 3].map(NodeId);
        let member = |node: NodeId| {
            let restored = Restored::bootstrap(ids);
            let compacted = restored.compacted.index;
            let group = Group::new(Config::new(node, 1, 7), restored).expect("a lawful group");
            Replica::new(PartitionId(1), node, group, (Term(0), None), compacted, &[])
        };
        Net { members: ids.into_iter().map(member).collect(), syncs: true }
    }

    /// Lets everything happen that follows from what has.
    fn settle(&mut self) {
        loop {
            let mut frames = Vec::new();
            for member in &mut self.members {
                let mut out = Outputs::default();
                member.drive(&mut out);
                for write in std::mem::take(&mut out.wal) {
                    let entries = write.records.iter().filter(|record| record.kind == RecordKind::Entry).count();
                    member.wal_written(write.ticket, &vec![NOWHERE; entries], &mut out);
                    if self.syncs {
                        member.wal_synced(write.ticket, &mut out);
                    }
                }
                let from = member.node();
                frames.extend(out.frames.drain(..).map(|(to, _, frame)| (from, to, frame)));
            }
            if frames.is_empty() {
                return;
            }
            for (from, to, frame) in frames {
                self.members[to.0 as usize - 1].step(from, frame);
            }
        }
    }

    fn leader(&mut self) -> &mut Replica {
        for _ in 0..1_000 {
            self.members.iter_mut().for_each(Replica::tick);
            self.settle();
            if let Some(at) = self.members.iter().position(Replica::is_leader) {
                return &mut self.members[at];
            }
        }
        panic!("nobody leads");
    }
}

#[test]
fn in_the_middle_of_a_change_what_the_new_members_have_written_is_not_enough() {
    let mut net = Net::new();
    let before = net.leader().group().status().commit;
    net.syncs = false;
    net.leader().propose(Bytes::from_static(b"x"), None).expect("it leads");
    net.settle();
    let leader = net.leader();
    assert!(leader.written_index() > before, "a majority has written it");
    assert_eq!(leader.group().status().commit, before, "nobody has synced it");
    leader.is_joint = true;
    assert_eq!(leader.written_index(), before, "those before the change are not asked whether they have it");
}

#[test]
fn who_has_just_been_elected_lets_nobody_go_before_it_has_applied_an_entry_of_its_own_term() {
    let (mut net, gone) = (Net::new(), NodeId::of(9, 1));
    let leader = net.leader();
    let said = |leader: &mut Replica| {
        leader.frames.clear();
        leader.say_left(gone, gone);
        match &leader.frames[..] {
            [(to, PeerFrame::Left(left))] if *to == gone => (left.leads, left.applied),
            other => panic!("{other:?}"),
        }
    };
    let before = leader.group().status();
    assert_eq!(said(leader), (false, before.applied), "the one before may have taken it in");
    leader.applied(before.commit, None, &mut Outputs::default());
    assert_eq!(said(leader), (true, before.commit));
}
