//! One node of a cluster goes on without the others: what it keeps, what begins anew, and a crash at every point.
//!
//! The folder is that of node 1 of three: partitions 1 and 2 are on all of them, a queue with one copy is on node 2.

use super::*;
use crate::{AloneReport, RoomShort, go_on_alone};
use amqp::{Table, Value};
use broker::topology::{ClusterNode, CopyChange, MachineVersions, NodeChange};
use consensus::{Membership, Term};
use partition::checkpoint::Head;
use partition::joining_checkpoint;
use storage::{ClusterRecord, DryDisk, Founder, StorageError};

/// The cluster that it was, and what it is to be.
const BEFORE: u128 = 1;
const AFTER: u128 = 2;
const BOOT: u128 = 3;

struct Lost {
    disk: Arc<FaultyDisk>,
    /// The queues in partitions 1 and 2, with six messages each; of three of each the states know nothing.
    queues: [QueueId; 2],
    /// The partition of the queue that is on node 2 alone.
    elsewhere: PartitionId,
}

fn other(number: u32) -> ClusterNode {
    let can = MachineVersions { topology: MACHINE_VERSION, queues: QUEUES_MACHINE_VERSION };
    let (name, address) = (format!("n{number}"), format!("host{number}:1"));
    let (name, address) = (Name::from(name.as_str()), Name::from(address.as_str()));
    ClusterNode { name, address, standing: NodeStanding::Member, can }
}

/// `act`: what else happens before the others are lost.
fn folder(act: impl Fn(&mut Lab, &Lost)) -> Lost {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut lab = open(&disk, 2).unwrap();
    let queues = [lab.declare("first", 1).unwrap(), lab.declare("second", 2).unwrap()];
    let put = |number| Change::PutNode { number: NodeNumber(number), node: other(number) };
    lab.all.change(vec![put(2), put(3)]).unwrap();
    let elsewhere = declare_elsewhere(&mut lab);
    (1..=2).for_each(|partition| lab.publish(partition, queues[partition as usize - 1], 3, 1000).unwrap());
    lab.begin_files(2).unwrap();
    lab.upkeep().unwrap();
    (1..=2).for_each(|partition| lab.publish(partition, queues[partition as usize - 1], 3, 1000).unwrap());
    let lost = Lost { disk: disk.clone(), queues, elsewhere };
    act(&mut lab, &lost);
    drop(lab);
    for group in 0..=2 {
        with_head(&disk, group, |head| head.membership = Membership::of_voters([1, 2, 3].map(NodeId)));
    }
    let folder = DataFolder::open_as_it_is(disk, 1).unwrap();
    let founder = |number: u32| {
        let folder_id = if number == 1 { FOLDER } else { u128::from(number) };
        Founder { number, folder_id, address: format!("host{number}:1") }
    };
    let (joined, partitions, founders) = (None, 2, (1..=3).map(founder).collect());
    folder.store_cluster_record(&ClusterRecord { joined, partitions, founders, before: Vec::new() }).unwrap();
    lost
}

/// A queue that asks for one copy, in a partition of node 2.
fn declare_elsewhere(lab: &mut Lab) -> PartitionId {
    let mut arguments = Table::new();
    arguments.push(Bytes::from_static(b"x-queue-type"), Value::LongString(Bytes::from_static(b"quorum")));
    arguments.push(Bytes::from_static(b"x-quorum-initial-group-size"), Value::I64(1));
    let declare = |partition| DeclareQueue {
        vhost: VhostId(0),
        name: Name::from("elsewhere"),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments: arguments.clone(),
        partition,
        home: None,
    };
    // The second of the pool, which comes to be with the queue.
    lab.all.change(vec![Change::DeclareQueue(declare(PartitionId(4)))]).unwrap();
    let (id, put) = lab.all.topology.partitions().find(|(id, _)| id.0 == 4).expect("the pool has twelve");
    assert_eq!(put.members, [NodeNumber(2)]);
    id
}

/// Both states of a group with another head.
pub(super) fn with_head(disk: &Arc<FaultyDisk>, group: u32, change: impl Fn(&mut Head)) {
    let mut checkpoints = CheckpointStore::open(disk, FOLDER).unwrap();
    let newest = checkpoints.load_pair(GroupId(group)).unwrap().expect("upkeep saves one").newest;
    let (mut head, state) = Head::decode(&newest.payload).unwrap();
    change(&mut head);
    let mut payload = Vec::new();
    head.encode(&mut payload);
    payload.extend_from_slice(&state);
    (0..2).for_each(|_| _ = checkpoints.save(GroupId(group), newest.replay_from, &payload).unwrap());
}

fn recover(disk: &Arc<FaultyDisk>, cluster: u128) -> Result<AloneReport, OpenError> {
    go_on_alone(&DataFolder::open_as_it_is(disk.clone(), 1)?, cluster, disk.operations())
}

/// Opens it as a broker of a cluster does.
fn join(disk: &Arc<FaultyDisk>) -> Result<DataFolder<FaultyDisk>, StorageError> {
    let identity = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: BEFORE, folder_id: FOLDER };
    DataFolder::join(disk.clone(), identity, 1)
}

/// Starts it as the only node of its cluster; everything leads when it returns.
fn start(disk: &Arc<FaultyDisk>) -> Lab {
    let folder = join(disk).unwrap();
    let options = WalOptions { file_bytes: FILE_BYTES_MIN, ..WalOptions::new(disk.operations()) };
    let mut all = bring_back_among_others(&folder, options, BOOT, 0).unwrap();
    all.take_office().unwrap();
    Lab { disk: disk.clone(), all, published: 0 }
}

/// What has to hold of a folder whose node went on alone.
fn goes_on(lost: &Lost) -> Lab {
    let record = join(&lost.disk).unwrap().cluster_record().unwrap().unwrap();
    assert_eq!((record.joined, &record.before[..]), (Some(AFTER), &[BEFORE][..]));
    let founders: Vec<_> = record.founders.iter().map(|f| (f.number, f.folder_id)).collect();
    assert_eq!(founders, [(1, FOLDER)]);
    let mut lab = start(&lost.disk);
    for (partition, queue) in (1..).zip(lost.queues) {
        assert_eq!(lab.live(partition, queue), 6);
        lab.publish(partition, queue, 1, 1000).unwrap();
        assert_eq!(lab.live(partition, queue), 7);
    }
    let elsewhere = lost.elsewhere.0;
    assert_eq!((lab.all.placed(), lab.all.set_aside()), (vec![1, 2, elsewhere], vec![]));
    let queue = lab.all.topology.queues().find(|queue| queue.name == Name::from("elsewhere")).unwrap().id;
    lab.publish(elsewhere, queue, 1, 10).unwrap();
    assert_eq!(lab.live(elsewhere, queue), 1, "it began anew");
    let present: Vec<_> = lab.all.topology.present_nodes().map(|(number, _)| number.0).collect();
    assert_eq!((present, lab.all.topology.nodes().count()), (vec![1], 3), "no number is free again");
    lab
}

#[test]
fn what_one_node_has_goes_on_with_all_of_its_log_and_what_it_has_not_begins_anew() {
    let lost = folder(|_, _| {});
    let report = recover(&lost.disk, AFTER).unwrap();
    let given_up: Vec<_> = report.given_up.iter().map(|node| (node.number, &node.address[..])).collect();
    assert_eq!(given_up, [(2, "host2:1"), (3, "host3:1")]);
    assert_eq!((report.clusters, report.messages, report.was_begun), ((BEFORE, AFTER), 12, false));
    let copies: Vec<_> = report.copies.iter().map(|copy| (copy.partition, copy.votes, copy.messages)).collect();
    assert_eq!(copies, [(0, true, 0), (1, true, 6), (2, true, 6)]);
    assert!(
        matches!(&report.empty[..], [one] if one.starts_with("queue \"elsewhere\" of virtual host \"/\"")),
        "{report:?}"
    );
    assert_eq!((report.damage, report.adopted), (Vec::<String>::new(), Vec::<String>::new()));
    let lab = goes_on(&lost);
    // No member of before comes near its terms.
    let term = lab.all.partitions[0].partition.replica().stored_vote().0;
    assert!(term > Term(report.copies[1].last.term.0 + (1 << 31)), "{term:?}");
    drop(lab);
    drop(start(&lost.disk));
    let again = recover(&lost.disk, 99).unwrap();
    assert!(again.is_alone() && again.given_up.is_empty(), "{again:?}");
    drop(start(&lost.disk));
}

#[test]
fn either_of_the_two_states_of_a_group_is_enough_and_both_go_on_behind_the_whole_log() {
    for group in 0..=2 {
        for generation in 0..2 {
            let lost = folder(|_, _| {});
            let files = lost.disk.list("wal").unwrap();
            recover(&lost.disk, AFTER).unwrap();
            let new: Vec<_> = lost.disk.list("wal").unwrap().into_iter().filter(|name| !files.contains(name)).collect();
            assert!(!new.is_empty(), "the log goes on in a file that no state from before names");
            let name = format!("checkpoints/{group:08}.{generation}");
            lost.disk.flip_bit(&name, 60, 3);
            let left = CheckpointStore::open(&lost.disk, FOLDER).unwrap().load_pair(GroupId(group)).unwrap();
            assert_eq!(left.expect("one is left").older, None);
            drop(goes_on(&lost));
        }
    }
}

#[test]
fn a_look_at_it_changes_nothing_and_says_the_same() {
    let lost = folder(|_, _| {});
    let operations = lost.disk.operations();
    let dry = Arc::new(DryDisk::new(lost.disk.clone()));
    let looked = go_on_alone(&DataFolder::open_as_it_is(dry, 1).unwrap(), AFTER, 7).unwrap();
    assert_eq!(lost.disk.operations(), operations);
    assert_eq!(join(&lost.disk).unwrap().cluster_record().unwrap().unwrap().founders.len(), 3);
    assert_eq!(looked, recover(&lost.disk, AFTER).unwrap());
}

#[test]
fn a_crash_at_any_operation_leaves_the_folder_as_it_was_or_one_for_which_it_is_done_again() {
    for kind in [Crash::Power, Crash::Process] {
        let (mut points, mut begun) = (0, 0);
        for at in 0.. {
            let lost = folder(|_, _| {});
            let disk = &lost.disk;
            disk.schedule(disk.operations() + at, Fault::Crash(kind));
            let recovered = recover(disk, AFTER);
            let has_crashed = disk.down().is_some();
            assert_eq!(recovered.is_err(), has_crashed, "{kind:?} at {at}: {:?}", recovered.err());
            disk.clear_faults();
            if !has_crashed {
                disk.crash(kind);
            }
            disk.restart();
            let next = match join(disk) {
                Err(error) => {
                    assert!(matches!(error, StorageError::GoingAlone { .. }), "{kind:?} at {at}: {error}");
                    begun += 1;
                    // The number that it was to have is the one that it gets.
                    recover(disk, 99).unwrap()
                }
                Ok(folder) => {
                    let is_old = folder.cluster_record().unwrap().unwrap().joined.is_none();
                    assert!(!is_old || has_crashed, "{kind:?} at {at}: what is done is done");
                    drop(folder);
                    recover(disk, AFTER).unwrap()
                }
            };
            assert!(next.is_alone() || next.empty.len() == 1, "{kind:?} at {at}: {next:?}");
            drop(goes_on(&lost));
            if !has_crashed {
                break;
            }
            points += 1;
        }
        assert!(points > 20 && begun > 15, "{kind:?}: {points} points, {begun} of them in the middle");
    }
}

/// Contents of every file but the lock's.
fn contents(disk: &FaultyDisk) -> Vec<(String, Vec<u8>)> {
    let folders = ["", "wal", "checkpoints", "extents"];
    let names = folders.iter().flat_map(|folder| {
        let names = disk.list(folder).unwrap().into_iter().filter(|name| !name.ends_with('/') && name != "lock");
        names.map(move |name| if folder.is_empty() { name } else { format!("{folder}/{name}") })
    });
    names.map(|name| (name.clone(), disk.contents(&name).unwrap())).collect()
}

#[test]
fn a_disk_that_is_full_at_any_operation_leaves_a_folder_for_which_it_is_done_again() {
    let (mut points, mut begun) = (0, 0);
    for at in 0.. {
        let lost = folder(|_, _| {});
        let disk = &lost.disk;
        // The first operation is that of the lock.
        disk.schedule(disk.operations() + 1 + at, Fault::Full);
        let Err(error) = recover(disk, AFTER) else { break };
        disk.clear_faults();
        let told = error.to_string();
        let OpenError::StoppedHalfWay { is_begun, .. } = error else { panic!("at {at}: {told}") };
        assert!(told.contains("no space left") || told.contains("no storage space"), "at {at}: {told}");
        match join(disk) {
            Err(StorageError::GoingAlone { .. }) => {
                assert!(is_begun && told.contains("run `leveret cluster recover DIR --yes` again"), "at {at}: {told}");
                begun += 1;
            }
            Ok(_) => assert!(!is_begun && told.contains("Nothing was changed"), "at {at}: {told}"),
            Err(other) => panic!("at {at}: {other}"),
        }
        let again = recover(disk, AFTER).unwrap();
        assert_eq!((again.was_begun, again.messages), (is_begun, 12), "at {at}");
        drop(goes_on(&lost));
        points += 1;
    }
    assert!(points > 10 && begun > 8, "{points} points, {begun} of them in the middle");
}

#[test]
fn a_disk_with_too_little_room_is_refused_before_anything_is_changed() {
    let lost = folder(|_, _| {});
    let disk = &lost.disk;
    let before = contents(disk);
    let free = |bytes| disk.set_capacity(disk.used_bytes() + bytes);
    free(1 << 20);
    let report = recover(disk, AFTER).unwrap();
    let RoomShort { needed, free: told } = report.room_short.unwrap();
    assert!(told <= 1 << 20 && needed > u64::from(WalOptions::new(1).file_bytes), "{report:?}");
    assert_eq!((report.given_up.len(), report.copies.len(), report.messages), (2, 3, 12), "it says what there is");
    assert!(contents(disk) == before && join(disk).is_ok());
    // So much is enough, to the byte.
    free(needed - 1);
    assert!(recover(disk, AFTER).unwrap().room_short.is_some());
    free(needed);
    assert_eq!(recover(disk, AFTER).unwrap().room_short, None);
    disk.set_capacity(u64::MAX);
    drop(goes_on(&lost));
}

#[test]
fn a_file_that_says_what_was_begun_and_is_damaged_is_made_anew() {
    for at in [None, Some(15), Some(20), Some(25)] {
        let lost = folder(|_, _| {});
        let disk = &lost.disk;
        match at {
            None => disk.plant("alone", b"rubbish"),
            Some(at) => {
                disk.schedule(disk.operations() + at, Fault::Crash(Crash::Process));
                recover(disk, 77).unwrap_err();
                disk.restart();
                disk.flip_bit("alone", 40, 2);
            }
        }
        assert!(matches!(join(disk), Err(StorageError::GoingAlone { .. })), "{at:?}");
        let report = recover(disk, AFTER).unwrap();
        assert_eq!((report.was_begun, report.clusters.1, report.messages), (true, AFTER, 12), "{at:?}");
        drop(goes_on(&lost));
    }
}

#[test]
fn a_node_that_no_cluster_has_taken_in_is_not_the_one() {
    let joining = Arc::new(FaultyDisk::new(1));
    drop(join(&joining).unwrap());
    assert!(matches!(recover(&joining, AFTER), Err(OpenError::NotTakenIn)));
}

#[test]
fn a_node_goes_on_without_the_file_of_its_cluster_wherever_a_crash_fell() {
    for spoil in [FaultyDisk::remove_cluster, FaultyDisk::spoil_cluster] {
        let mut points = 0;
        for at in 0.. {
            let lost = folder(|_, _| {});
            let disk = &lost.disk;
            spoil(disk);
            disk.schedule(disk.operations() + at, Fault::Crash(Crash::Power));
            let first = recover(disk, AFTER);
            let has_crashed = disk.down().is_some();
            disk.clear_faults();
            disk.restart();
            if has_crashed {
                recover(disk, AFTER).unwrap();
            } else {
                let report = first.unwrap();
                assert!(report.lost_file.is_some() && !report.is_alone(), "{report:?}");
                assert_eq!((report.clusters, report.messages), ((BEFORE, AFTER), 12));
            }
            drop(goes_on(&lost));
            if !has_crashed {
                break;
            }
            points += 1;
        }
        assert!(points > 15, "{points}");
    }
}

/// What a disk does to the file `cluster`.
trait Spoils {
    fn remove_cluster(&self);
    fn spoil_cluster(&self);
}

impl Spoils for FaultyDisk {
    fn remove_cluster(&self) {
        self.remove("cluster").unwrap();
    }

    fn spoil_cluster(&self) {
        self.flip_bit("cluster", 40, 2);
    }
}

#[test]
fn what_is_declared_comes_back_from_a_whole_log_and_is_not_told_as_given_up() {
    let lost = folder(|_, _| {});
    (0..2).for_each(|place| lost.disk.flip_bit(&format!("checkpoints/00000000.{place}"), 60, 3));
    let node = join(&lost.disk).unwrap().node();
    assert!(!recover(&lost.disk, AFTER).unwrap().damage.is_empty());
    let report = repair(&lost.disk, FOLDER, node, 7, Others::GivenUp).unwrap();
    assert_eq!((&report.given_up[..], report.messages_lost), (&[][..], 0), "{report:?}");
    assert!(report.changed.iter().any(|line| line.starts_with("what is declared is made anew")), "{report:?}");
    recover(&lost.disk, 99).unwrap();
    goes_on(&lost);
}

#[test]
fn a_node_that_does_not_vote_keeps_what_it_has_and_says_that_it_may_be_too_little() {
    let lost = folder(|_, _| {});
    with_head(&lost.disk, 2, |head| {
        head.membership = Membership { learners: vec![NodeId(1)], ..Membership::of_voters([NodeId(2), NodeId(3)]) };
    });
    let report = recover(&lost.disk, AFTER).unwrap();
    let copies: Vec<_> = report.copies.iter().map(|copy| (copy.partition, copy.votes, copy.messages)).collect();
    assert_eq!(copies, [(0, true, 0), (1, true, 6), (2, false, 6)]);
    goes_on(&lost);
}

#[test]
fn a_node_that_was_to_join_a_group_and_has_heard_nothing_of_it_begins_it_anew() {
    let give = |lost: &Lost| CopyChange::Give { partition: lost.elsewhere, node: NodeNumber(1) };
    let lost = folder(|lab, lost| lab.all.change(vec![Change::ChangeCopies(give(lost))]).unwrap());
    let mut checkpoints = CheckpointStore::open(&lost.disk, FOLDER).unwrap();
    let replay_from = checkpoints.load_pair(GroupId(1)).unwrap().unwrap().newest.replay_from;
    checkpoints.save(GroupId(lost.elsewhere.0), replay_from, &joining_checkpoint()).unwrap();
    let report = recover(&lost.disk, AFTER).unwrap();
    assert_eq!((report.copies.len(), report.empty.len()), (3, 1), "{report:?}");
    goes_on(&lost);
}

#[test]
fn a_change_of_members_in_the_log_gives_nobody_a_vote_in_the_group_that_goes_on() {
    // The second one is not decided by one voter.
    for change in [consensus::Change::Learner(NodeId(3)), consensus::Change::Voter(NodeId(3))] {
        let lost = folder(|lab, _| {
            lab.with(2, |p, _| _ = p.replica_mut().group_mut().change_membership(&[change]).unwrap()).unwrap();
        });
        recover(&lost.disk, AFTER).unwrap();
        let lab = goes_on(&lost);
        let group = lab.all.partitions[1].partition.replica().group().membership();
        assert_eq!(group, Membership::of_voters([ONLY_NODE]), "{change:?}");
    }
}

#[test]
fn who_was_to_leave_a_group_and_come_back_goes_on_as_the_member_that_the_map_wants() {
    let own = NodeNumber(1);
    let lost = folder(|lab, _| {
        let partition = PartitionId(2);
        let moved = [CopyChange::Take { partition, node: own }, CopyChange::Give { partition, node: own }];
        lab.all.change(moved.map(Change::ChangeCopies).to_vec()).unwrap();
    });
    let report = recover(&lost.disk, AFTER).unwrap();
    assert_eq!(report.messages, 12, "what it has it keeps");
    let lab = goes_on(&lost);
    assert_eq!(lab.all.topology.lives_wanted(PartitionId(2)), [(own, 1)]);
    let group = |at: usize| lab.all.partitions[at].partition.replica().group().membership();
    assert_eq!(group(1), Membership::of_voters([NodeId::of(1, 1)]));
    assert_eq!(group(0), Membership::of_voters([NodeId::of(1, 0)]));
}

#[test]
fn messages_of_a_queue_that_the_node_has_not_heard_of_are_in_one_that_says_so() {
    let unknown = std::cell::Cell::new(QueueId(0));
    let lost = folder(|lab, _| {
        unknown.set(QueueId(lab.all.topology.next_queue_id().0 + 5));
        lab.publish(1, unknown.get(), 2, 10).unwrap();
    });
    let unknown = unknown.get();
    let report = recover(&lost.disk, AFTER).unwrap();
    assert!(
        matches!(&report.adopted[..], [one] if one.starts_with("2 messages of a queue that was declared")),
        "{report:?}"
    );
    assert_eq!(report.messages, 14);
    let lab = start(&lost.disk);
    let name = format!("recovered.1.{}", unknown.0);
    let queue = lab.all.topology.queues().find(|queue| queue.name == Name::from(name.as_str())).unwrap();
    assert_eq!((queue.id, lab.live(1, unknown)), (unknown, 2));
    assert_eq!(lab.all.topology.next_queue_id(), QueueId(unknown.0 + 1));
}

#[test]
fn a_damaged_folder_is_told_and_repaired_first() {
    let lost = folder(|_, _| {});
    let name = lost.disk.list("extents").unwrap().first().map(|name| format!("extents/{name}"));
    let name = name.expect("upkeep moved messages");
    let middle = lost.disk.contents(&name).unwrap().len() as u64 / 2;
    lost.disk.flip_bit(&name, middle, 3);
    let node = join(&lost.disk).unwrap().node();
    let member_repairs = |others| repair(&lost.disk, FOLDER, node, 7, others);
    assert!(matches!(member_repairs(Others::None), Err(OpenError::OthersHaveIt { .. })));
    let report = recover(&lost.disk, AFTER).unwrap();
    assert!(!report.damage.is_empty() && report.given_up.is_empty(), "{report:?}");
    assert!(matches!(join(&lost.disk), Err(StorageError::GoingAlone { .. })));
    assert!(!recover(&lost.disk, AFTER).unwrap().damage.is_empty(), "it says so until it is repaired");
    let repaired = member_repairs(Others::GivenUp).unwrap();
    assert!(repaired.messages_lost > 0 && repaired.messages >= 6, "{repaired:?}");
    assert!(matches!(join(&lost.disk), Err(StorageError::GoingAlone { .. })), "it votes for nobody yet");
    let report = recover(&lost.disk, 99).unwrap();
    assert_eq!((report.clusters.1, report.messages), (AFTER, repaired.messages));
    drop(start(&lost.disk));
}

#[test]
fn who_is_alone_or_was_forgotten_is_not_the_one() {
    let disk = Arc::new(FaultyDisk::new(1));
    drop(open(&disk, 2).unwrap());
    assert!(matches!(recover(&disk, AFTER), Err(OpenError::RunsAlone)));
    let forgotten = folder(|lab, _| {
        lab.all.change(vec![Change::ChangeNodes(NodeChange::Forget(NodeNumber(1)))]).unwrap();
    });
    assert!(matches!(recover(&forgotten.disk, AFTER), Err(OpenError::WasForgotten)));
    assert!(join(&forgotten.disk).is_ok(), "nothing was begun");
}

/// A group that came to be on other nodes, between two that this one has.
#[test]
fn a_node_that_others_joined_begins_nothing_of_which_its_folder_has_nothing() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut lab = open(&disk, 2).unwrap();
    let queue = lab.declare("first", 1).unwrap();
    lab.publish(1, queue, 3, 1000).unwrap();
    drop(lab);
    let mut checkpoints = CheckpointStore::open(&disk, FOLDER).unwrap();
    let begin = storage::WalPosition { file: storage::FileNo(1), offset: 0 };
    checkpoints.save(GroupId(4), begin, &founding_checkpoint(&[1, 2].map(NodeId))).unwrap();
    drop(checkpoints);
    let folder = DataFolder::open_as_it_is(disk.clone(), 1).unwrap();
    let founder = Founder { number: 1, folder_id: FOLDER, address: "host1:1".to_owned() };
    let record = ClusterRecord { joined: Some(BEFORE), partitions: 2, founders: vec![founder], before: Vec::new() };
    folder.store_cluster_record(&record).unwrap();
    drop(folder);
    let folder = join(&disk).unwrap();
    let options = WalOptions { file_bytes: FILE_BYTES_MIN, ..WalOptions::new(disk.operations()) };
    let all = bring_back_among_others(&folder, options, BOOT, 0).unwrap();
    let members = all.partitions.iter().map(|started| {
        let partition = &started.partition;
        let voters = partition.replica().group().membership().voters.iter().map(|node| node.number()).collect();
        (partition.id().0, voters)
    });
    let members: Vec<(u32, Vec<u32>)> = members.collect();
    assert_eq!(members, [(1, vec![1]), (2, vec![1]), (4, vec![1, 2])]);
}
