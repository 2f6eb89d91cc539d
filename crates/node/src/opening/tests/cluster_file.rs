//! The file `cluster` of a folder is lost: the folder tells that it is one of several, and another node's, or the folder
//! itself, says what it was.
//!
//! The folders are those of nodes 1 to 3 that founded a cluster, or of a first node and those that joined it.

use super::*;
use crate::{ClusterFile, go_on_alone, is_one_of_several, make_cluster_file};
use broker::topology::{ClusterNode, MachineVersions, Newcomer as Join, NodeChange, NodeStanding};
use storage::{ClusterRecord, Founder, StorageError};

const CLUSTER: u128 = 77;

fn can() -> MachineVersions {
    MachineVersions { topology: MACHINE_VERSION, queues: QUEUES_MACHINE_VERSION }
}

fn address(number: u32) -> String {
    format!("host{number}:1")
}

fn folder_id(number: u32) -> u128 {
    100 + u128::from(number)
}

fn founder(number: u32) -> Founder {
    Founder { number, folder_id: folder_id(number), address: address(number) }
}

fn founders(numbers: std::ops::RangeInclusive<u32>, joined: Option<u128>) -> ClusterRecord {
    ClusterRecord { joined, partitions: 2, founders: numbers.map(founder).collect(), before: Vec::new() }
}

/// What each folder has of the topology: nodes 1 to 3, of which those in `joined` came to others.
fn changes(joined: &[u32]) -> Vec<Change> {
    let put = |number: u32| {
        let (name, address) = (Name::from(format!("n{number}").as_str()), Name::from(address(number).as_str()));
        Change::PutNode {
            number: NodeNumber(number),
            node: ClusterNode { name, address, standing: NodeStanding::Member, can: can() },
        }
    };
    (1..=3)
        .map(|number| match joined.contains(&number) {
            false => put(number),
            true => Change::ChangeNodes(NodeChange::Join(Join {
                folder: folder_id(number),
                name: Name::from(format!("n{number}").as_str()),
                address: Name::from(address(number).as_str()),
                can: can(),
            })),
        })
        .collect()
}

/// The folder of a node, with its file.
fn folder(number: u32, identity: u128, record: &ClusterRecord, joined: &[u32]) -> Arc<FaultyDisk> {
    let disk = Arc::new(FaultyDisk::new(u64::from(number)));
    let mut all = {
        let identity =
            FolderIdentity { node_name: "a@host".to_owned(), cluster_id: identity, folder_id: folder_id(number) };
        let mut folder = DataFolder::open(disk.clone(), identity, 1).unwrap();
        let options = WalOptions { file_bytes: FILE_BYTES_MIN, ..WalOptions::new(1) };
        bring_back(&mut folder, 2, options, 0).unwrap()
    };
    all.change(changes(joined).into_iter().skip(1).collect()).unwrap();
    drop(all);
    let text = String::from_utf8(disk.contents("node").unwrap()).unwrap();
    let body = text.replace("id 1\n", &format!("id {number}\n"));
    let body = &body[..body.rfind("check ").unwrap()];
    disk.plant("node", format!("{body}check {:08x}\n", storage::crc32c::crc32c(body.as_bytes())).as_bytes());
    disk.plant("cluster", record.encode().as_bytes());
    disk
}

fn open_it(disk: &Arc<FaultyDisk>) -> DataFolder<FaultyDisk> {
    DataFolder::open_as_it_is(disk.clone(), 1).unwrap()
}

fn make(disk: &Arc<FaultyDisk>, other: Option<&Arc<FaultyDisk>>) -> Result<ClusterFile, OpenError> {
    make_cluster_file(&open_it(disk), other, disk.operations())
}

fn record_of(disk: &Arc<FaultyDisk>) -> ClusterRecord {
    open_it(disk).cluster_record().unwrap().unwrap()
}

#[test]
fn a_folder_without_its_file_tells_by_its_number_and_by_what_is_declared_that_it_is_one_of_several() {
    for number in [1, 3] {
        let disk = folder(number, CLUSTER, &founders(1..=3, None), &[]);
        assert_eq!(make(&disk, None).unwrap(), ClusterFile::Sound);
        disk.remove("cluster").unwrap();
        let operations = disk.operations();
        let told = open_it(&disk);
        assert!(is_one_of_several(&told, 1).unwrap());
        assert!(disk.operations() <= operations + 2, "but for the lock nothing is written");
        drop(told);
        let error = make(&disk, None).unwrap_err();
        assert!(matches!(error, OpenError::Storage(StorageError::ClusterFileLost { .. })), "{error}");
        let told = error.to_string();
        assert!(told.contains(&format!("is that of node {number} of a cluster with other nodes")), "{told}");
        assert!(disk.contents("cluster").is_none());
    }
    let alone = Arc::new(FaultyDisk::new(9));
    drop(open(&alone, 2).unwrap());
    assert!(!is_one_of_several(&open_it(&alone), 1).unwrap());
    assert_eq!(make(&alone, None).unwrap(), ClusterFile::Sound);
    assert!(alone.contents("cluster").is_none(), "who runs alone has none");
}

#[test]
fn a_founder_has_the_same_file_again_by_that_of_another_one() {
    let record = founders(1..=3, None);
    let (one, three) = (folder(1, CLUSTER, &record, &[]), folder(3, CLUSTER, &record, &[]));
    three.flip_bit("cluster", 40, 2);
    let ClusterFile::MadeAnew { found, changed, aside } = make(&three, Some(&one)).unwrap() else {
        panic!("it was lost")
    };
    assert!(found.contains("is damaged") && changed.contains("by that of node 1"), "{found} {changed}");
    assert!(three.contents(&aside.unwrap()).is_some(), "the damaged one is kept");
    assert_eq!(record_of(&three), record);
    // The first one, by the third.
    one.remove("cluster").unwrap();
    assert!(matches!(make(&one, Some(&three)).unwrap(), ClusterFile::MadeAnew { aside: None, .. }));
    assert_eq!(record_of(&one), record);
}

/// As an earlier build made it, which took the node for one that runs alone.
#[test]
fn a_file_of_a_node_that_began_alone_is_not_that_of_a_later_one() {
    let (one, three) =
        (folder(1, CLUSTER, &founders(1..=3, None), &[]), folder(3, CLUSTER, &founders(3..=3, Some(CLUSTER)), &[]));
    let told = make(&three, None).unwrap_err().to_string();
    assert!(told.contains("its file `cluster`, which says of which cluster, is not its own"), "{told}");
    assert!(matches!(make(&three, Some(&one)).unwrap(), ClusterFile::MadeAnew { aside: Some(_), .. }));
    assert_eq!(record_of(&three), founders(1..=3, None));
}

#[test]
fn who_joined_has_a_file_again_by_that_of_a_founder_that_knows_its_folder() {
    let (one, three) =
        (folder(1, CLUSTER, &founders(1..=2, None), &[3]), folder(3, 0, &founders(1..=3, Some(CLUSTER)), &[3]));
    three.remove("cluster").unwrap();
    make(&three, Some(&one)).unwrap();
    assert_eq!(record_of(&three), founders(1..=3, Some(CLUSTER)));
}

#[test]
fn the_first_node_of_a_cluster_that_others_joined_needs_no_other() {
    let disk = folder(1, CLUSTER, &founders(1..=1, Some(CLUSTER)), &[2, 3]);
    disk.remove("cluster").unwrap();
    let ClusterFile::MadeAnew { changed, .. } = make(&disk, None).unwrap() else { panic!("it was lost") };
    assert!(changed.contains("what the folder itself says"), "{changed}");
    let made = record_of(&disk);
    assert_eq!((made.joined, made.founders[0].folder_id, made.founders.len()), (Some(CLUSTER), folder_id(1), 1));
}

#[test]
fn a_folder_that_went_on_alone_is_not_what_another_one_or_itself_says_it_was() {
    let first = folder(1, CLUSTER, &founders(1..=1, Some(CLUSTER)), &[2, 3]);
    let two = folder(2, 0, &founders(1..=2, Some(CLUSTER)), &[2, 3]);
    go_on_alone(&open_it(&first), 999, first.operations()).unwrap();
    assert_eq!(record_of(&first).joined, Some(999));
    // Who was given up believes in it as before, and it in nobody.
    first.remove("cluster").unwrap();
    let told = make(&first, Some(&two)).unwrap_err().to_string();
    assert!(told.contains("for node 1 there is no node 2, or none any more"), "{told}");
    assert!(make(&first, None).is_err(), "the number that it was given is lost");
    // What is left of it goes on once more.
    let report = go_on_alone(&open_it(&first), 1000, first.operations()).unwrap();
    assert!(report.given_up.is_empty() && report.lost_file.is_some(), "{report:?}");
    assert_eq!(record_of(&first).joined, Some(1000));
}

#[test]
fn a_folder_of_another_cluster_proves_nothing() {
    let one = folder(1, CLUSTER, &founders(1..=3, None), &[]);
    let same = folder(1, CLUSTER, &founders(1..=3, None), &[]);
    let other = founders(1..=3, None);
    let foreign = ClusterRecord {
        founders: other.founders.iter().map(|f| Founder { folder_id: f.folder_id + 50, ..f.clone() }).collect(),
        ..other
    };
    let three = folder(3, 78, &foreign, &[]);
    one.remove("cluster").unwrap();
    let told = make(&one, Some(&three)).unwrap_err().to_string();
    assert!(told.contains("the folder of its node 1 is another one"), "{told}");
    let unknown = folder(3, 78, &ClusterRecord { joined: Some(78), founders: vec![founder(3)], ..foreign }, &[]);
    let told = make(&one, Some(&unknown)).unwrap_err().to_string();
    assert!(told.contains("neither of the two knows the folder of the other"), "{told}");
    let told = make(&one, Some(&same)).unwrap_err().to_string();
    assert!(told.contains("it is a copy of the same folder"), "{told}");
    assert!(one.contents("cluster").is_none());
}

#[test]
fn a_repair_of_a_member_says_that_nothing_is_damaged_and_refuses_what_is() {
    let lab = Arc::new(FaultyDisk::new(4));
    let mut all = open(&lab, 2).unwrap();
    let queue = all.declare("one", 1).unwrap();
    all.publish(1, queue, 3, 1000).unwrap();
    all.begin_files(2).unwrap();
    all.upkeep().unwrap();
    all.all.change(changes(&[]).into_iter().skip(1).collect()).unwrap();
    drop(all);
    for group in 0..=2 {
        super::alone::with_head(&lab, group, |head| {
            head.membership = consensus::Membership::of_voters([1, 2, 3].map(NodeId))
        });
    }
    let sound = repair(&lab, FOLDER, MEMBER, 7, Others::Serve).unwrap();
    assert_eq!((sound.found, sound.messages), (Vec::<String>::new(), 3));
    assert!(matches!(repair(&lab, FOLDER, MEMBER, 7, Others::None), Err(OpenError::OthersHaveIt { .. })));
    let name = lab.list("extents").unwrap().first().map(|name| format!("extents/{name}")).unwrap();
    lab.flip_bit(&name, lab.contents(&name).unwrap().len() as u64 / 2, 3);
    let refused = repair(&lab, FOLDER, MEMBER, 7, Others::Serve).unwrap_err().to_string();
    assert!(
        refused.starts_with("extents/") && refused.contains("other nodes have members of these partitions"),
        "{refused}"
    );
}
