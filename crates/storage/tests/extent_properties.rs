//! Extents give back what was put in, from any place, and never anything else, whatever rots.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;
use storage::disk::Fault;
use storage::export::{Found, export};
use storage::extent::{EXTENT_BYTES_MAX, SalvagedExtent, list_extents, remove_extent};
use storage::{Disk, DiskFile, Extent, ExtentId, ExtentWriter, FaultyDisk, OpenMode, StorageError, fuzz};

const NAME: &str = "extents/0000000000000001.extent";

type Messages = Vec<(u64, Vec<u8>)>;

/// Runs of one queue each: first sequence, then steps (1 is "no hole") and sizes.
fn runs() -> impl Strategy<Value = Vec<(u64, Messages)>> {
    let run =
        (0..4u64, 0..1000u64, prop::collection::vec((prop_oneof![4 => Just(1u64), 1 => 2..50u64], 0..300usize), 1..40));
    prop::collection::vec(run, 1..6).prop_map(|runs| {
        let mut filling = 0u8;
        let each = |(queue, first, steps): (u64, u64, Vec<(u64, usize)>)| {
            let mut seq = first;
            let messages = steps.into_iter().map(|(step, bytes)| {
                filling = filling.wrapping_add(1);
                let message = (seq, vec![filling; bytes]);
                seq += step;
                message
            });
            (queue, messages.collect())
        };
        runs.into_iter().map(each).collect()
    })
}

fn write(runs: &[(u64, Messages)]) -> Arc<FaultyDisk> {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut writer = ExtentWriter::create(&disk, 5, ExtentId(1)).unwrap();
    for (queue, messages) in runs {
        for (seq, body) in messages {
            writer.push(*queue, *seq, body).unwrap();
        }
        writer.end_run().unwrap();
    }
    let bytes = writer.bytes();
    let summary = writer.finish().unwrap();
    assert_eq!(summary.bytes, bytes, "the length is known before");
    assert_eq!(summary.bytes as usize, disk.contents(NAME).unwrap().len());
    disk
}

/// What a read must return.
fn model(messages: &Messages, from_seq: u64, count_max: u32, bytes_max: u32) -> Messages {
    let mut bytes = 0;
    let mut taken = Vec::new();
    for (seq, body) in messages.iter().filter(|(seq, _)| *seq >= from_seq) {
        bytes += body.len();
        if taken.len() == count_max as usize || (bytes > bytes_max as usize && !taken.is_empty()) {
            break;
        }
        taken.push((*seq, body.clone()));
    }
    taken
}

fn read(
    extent: &Extent<FaultyDisk>,
    run: usize,
    from_seq: u64,
    count: u32,
    bytes: u32,
) -> Result<Messages, StorageError> {
    let messages = extent.read(run, from_seq, count, bytes)?;
    Ok(messages.into_iter().map(|message| (message.seq, message.body.to_vec())).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_part_of_any_run_is_read_back(runs in runs(), count in 0..20u32, bytes in 0..2000u32) {
        let disk = write(&runs);
        let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
        extent.verify().unwrap();
        prop_assert_eq!(extent.runs().len(), runs.len());
        for (number, (queue, messages)) in runs.iter().enumerate() {
            let run = extent.runs()[number];
            prop_assert_eq!((run.queue, run.count as usize), (*queue, messages.len()));
            prop_assert_eq!((run.first_seq, run.last_seq), (messages[0].0, messages[messages.len() - 1].0));
            for from_seq in run.first_seq.saturating_sub(2)..run.last_seq + 3 {
                prop_assert_eq!(read(&extent, number, from_seq, count, bytes).unwrap(), model(messages, from_seq, count, bytes));
            }
        }
    }

    #[test]
    fn rot_is_reported_or_harmless(runs in runs(), place in any::<prop::sample::Index>(), bit in 0..8u8) {
        let disk = write(&runs);
        let offset = place.index(disk.contents(NAME).unwrap().len()) as u64;
        disk.flip_bit(NAME, offset, bit);
        let Ok(extent) = Extent::open(&*disk, ExtentId(1)) else { return Ok(()) };
        prop_assert!(extent.verify().is_err(), "a scrub sees every bit");
        for (number, (_, messages)) in runs.iter().enumerate() {
            for from_seq in messages[0].0..=messages[messages.len() - 1].0 {
                if let Ok(read) = read(&extent, number, from_seq, 5, 1000) {
                    // A size that rotted can end a read early, but never before its first message.
                    let all = model(messages, from_seq, 5, 1000);
                    prop_assert!(!read.is_empty() && all.starts_with(&read));
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_within_bounds(runs in runs(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5), cut in any::<prop::sample::Index>()) {
        let disk = write(&runs);
        let mut contents = disk.contents(NAME).unwrap();
        for (place, byte) in &changes {
            let at = place.index(contents.len());
            contents[at] = *byte;
        }
        fuzz::extent_file(&contents);
        contents.truncate(cut.index(contents.len()));
        fuzz::extent_file(&contents);
    }
}

/// A run so holey that its place is found by halving.
fn holey() -> (Vec<(u64, Messages)>, Arc<FaultyDisk>) {
    let messages: Messages =
        (0..30_000u64).map(|number| (number * 3 + number / 1000, number.to_le_bytes().to_vec())).collect();
    let runs = vec![(1, messages)];
    let disk = write(&runs);
    (runs, disk)
}

#[test]
fn run_with_many_holes_is_searched_by_halving() {
    let (runs, disk) = holey();
    let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
    for from_seq in (0..90_100).step_by(97) {
        assert_eq!(
            read(&extent, 0, from_seq, 4, 1000).unwrap(),
            model(&runs[0].1, from_seq, 4, 1000),
            "from {from_seq}"
        );
    }
}

#[test]
fn rotten_index_of_a_run_with_many_holes_hides_no_message() {
    let (runs, disk) = holey();
    let run = Extent::open(&*disk, ExtentId(1)).unwrap().runs()[0];
    let mut refused = 0;
    for entry in (0..run.count).step_by(61).chain([3749, 7499, 11_249, 14_999, 22_499, 29_999]) {
        let delta_at = u64::from(run.index_offset + entry * 16 + 8);
        for bit in [0, 4, 16] {
            disk.flip_bit(NAME, delta_at + bit / 8, (bit % 8) as u8);
            let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
            for from_seq in [u64::from(entry) * 3, 100, 45_000, 45_001, 89_000] {
                for count in [4, 100] {
                    match read(&extent, 0, from_seq, count, 1000) {
                        Ok(read) => {
                            let expected = model(&runs[0].1, from_seq, count, 1000);
                            assert_eq!(read, expected, "entry {entry} bit {bit} from {from_seq}");
                        }
                        Err(StorageError::Corrupt { .. }) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            disk.flip_bit(NAME, delta_at + bit / 8, (bit % 8) as u8);
        }
    }
    assert!(refused > 100);
}

#[test]
fn unfinished_extent_is_removed_and_a_torn_one_refused() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut writer = ExtentWriter::create(&disk, 5, ExtentId(1)).unwrap();
    writer.push(1, 1, b"x").unwrap();
    drop(writer);
    assert_eq!(list_extents(&*disk).unwrap(), []);

    let disk = write(&[(1, vec![(1, vec![7; 100])])]);
    let file = disk.open(NAME, OpenMode::ReadWrite).unwrap();
    file.set_len(file.len().unwrap() - 1).unwrap();
    assert!(matches!(Extent::open(&*disk, ExtentId(1)), Err(StorageError::WrongLength { .. })));
    remove_extent(&*disk, ExtentId(1)).unwrap();
    assert!(matches!(Extent::open(&*disk, ExtentId(1)), Err(StorageError::Missing { .. })));
}

#[test]
fn id_is_never_taken_twice() {
    let disk = write(&[(1, vec![(1, vec![7; 100])])]);
    assert!(ExtentWriter::create(&disk, 5, ExtentId(1)).is_err());
}

#[test]
fn full_disk_and_failed_sync_leave_no_extent_behind() {
    for fault in [Fault::Full, Fault::WriteError, Fault::SyncError] {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut writer = ExtentWriter::create(&disk, 5, ExtentId(1)).unwrap();
        writer.push(1, 1, &[1; 1000]).unwrap();
        disk.schedule(0, fault);
        let error = writer.finish().unwrap_err();
        assert_eq!(error.is_full(), fault == Fault::Full, "{error}");
        assert_eq!(matches!(error, StorageError::SyncFailed { .. }), fault == Fault::SyncError, "{error}");
        assert_eq!(list_extents(&*disk).unwrap(), []);
    }
}

#[test]
fn large_bodies_and_the_limit_of_an_extent() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut writer = ExtentWriter::create(&disk, 5, ExtentId(1)).unwrap();
    let body = vec![3; 5 << 20];
    for seq in 0..3 {
        assert!(writer.has_room(body.len()));
        writer.push(1, seq, &body).unwrap();
    }
    assert!(!writer.has_room(EXTENT_BYTES_MAX as usize - (14 << 20)));
    writer.finish().unwrap();
    let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
    let messages = extent.read(0, 1, 100, 1).unwrap();
    assert_eq!(messages.len(), 1, "one message is always returned");
    assert_eq!(messages[0].body, body);
    assert_eq!(extent.read_raw(64, 10).unwrap(), &body[..10]);
}

#[test]
fn a_scrub_reads_an_extent_larger_than_its_buffer() {
    let messages: Messages = (0..60).map(|seq| (seq, vec![seq as u8; 50_000])).collect();
    let disk = write(&[(1, messages)]);
    let bytes = disk.contents(NAME).unwrap().len() as u64;
    assert!(bytes > 2 << 20);
    let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
    extent.verify().unwrap();
    assert_eq!(u64::from(extent.bytes()), bytes);
    for offset in [100, 1 << 20, bytes - 600] {
        disk.flip_bit(NAME, offset, 3);
        assert!(Extent::open(&*disk, ExtentId(1)).is_ok_and(|extent| extent.verify().is_err()), "at {offset}");
        disk.flip_bit(NAME, offset, 3);
    }
}

#[test]
fn an_extent_may_end_anywhere_in_a_page_or_in_what_is_written_at_once() {
    // Header, index, run table and footer.
    const AROUND: usize = 64 + 16 + 64 + 64;
    for multiple in [4096, 512 << 10, 1 << 20] {
        for bytes in (multiple - 3..=multiple + 3).chain([multiple + 32, multiple + 64, multiple + 100]) {
            let body: Vec<u8> = (0..bytes - AROUND).map(|at| (at % 251) as u8).collect();
            let disk = write(&[(1, vec![(9, body.clone())])]);
            assert_eq!(disk.contents(NAME).unwrap().len(), bytes, "nothing is behind the footer");
            let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
            extent.verify().unwrap();
            assert_eq!(extent.read(0, 9, 1, u32::MAX).unwrap()[0].body, body);
        }
    }
}

#[test]
fn an_entry_that_leads_out_of_its_run_is_named() {
    let messages: Messages = (0..8).map(|seq| (seq, vec![seq as u8; 10])).collect();
    let disk = write(&[(1, messages)]);
    let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
    let run = extent.runs()[0];
    let entry_bytes = 16;
    for number in [3, 7] {
        // The length of a body, in its entry: so long that only the whole memory could hold it.
        let entry = u64::from(run.index_offset) + number * entry_bytes;
        let found = disk.contents(NAME).unwrap()[entry as usize..][..entry_bytes as usize].to_vec();
        let length = found.chunks(4).position(|word| word == [10, 0, 0, 0]).unwrap() as u64 * 4;
        disk.flip_bit(NAME, entry + length + 3, 6);
        let error = Extent::open(&*disk, ExtentId(1)).unwrap().read(0, number, 1, 1 << 30).unwrap_err();
        let StorageError::Corrupt { offset, what, .. } = &error else { panic!("{error}") };
        assert_eq!((*what, *offset), ("offset in the index", entry), "message {number}");
        disk.flip_bit(NAME, entry + length + 3, 6);
    }
}

#[test]
fn an_export_shows_every_intact_message_wherever_its_file_is_kept() {
    let message = |seq: u64| (seq, vec![seq as u8; 700_000]);
    let disk = write(&[(7, vec![message(3), message(4), message(6)]), (8, vec![(1, b"one".to_vec())])]);
    let exported = || {
        let (mut messages, mut damage) = (Vec::new(), Vec::new());
        export(&*disk, "damaged", &mut |name, found| match found {
            Found::Message { queue, message } => messages.push((queue, message.seq, message.body.len())),
            Found::Damaged(error) => damage.push((name.to_owned(), error.to_string())),
            Found::Unfinished => panic!("{name} was finished"),
        });
        (messages, damage)
    };
    let all = [(7, 3, 700_000), (7, 4, 700_000), (7, 6, 700_000), (8, 1, 3)];
    assert_eq!(exported(), (all.to_vec(), vec![]));
    disk.create_folder("damaged").unwrap();
    let aside = "damaged/0001-extents-0000000000000001.extent";
    let bytes = disk.contents(NAME).unwrap();
    let copy = disk.open(aside, OpenMode::CreateNew).unwrap();
    copy.write_at(&bytes, 0).unwrap();
    assert_eq!(exported().0, [&all[..], &all[..]].concat(), "both files have them");
    disk.remove(NAME).unwrap();
    // A body, and the footer: the rows in front of it lead to the rest.
    disk.flip_bit(aside, 64 + 700_000, 1);
    let (messages, damage) = exported();
    assert_eq!(messages, [all[0], all[2], all[3]]);
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(damage[0].0 == aside && damage[0].1.contains("checksum of a message"), "{damage:?}");
    disk.flip_bit(aside, bytes.len() as u64 - 30, 1);
    assert_eq!(exported().0, [all[0], all[2], all[3]]);
    // Where the bodies begin, and where the index is: a walk finds both.
    for field in [28, 36] {
        for row in 1..=2 {
            disk.flip_bit(aside, bytes.len() as u64 - 64 - row * 64 + field, 1);
        }
        assert_eq!(exported().0, [all[0], all[2], all[3]], "without byte {field} of the rows");
    }
    // Without its queue a message is not proven.
    for row in 1..=2 {
        disk.flip_bit(aside, bytes.len() as u64 - 64 - row * 64, 1);
    }
    assert_eq!(exported().0, []);
}

#[test]
fn an_export_shows_the_messages_of_a_file_of_the_wrong_length_and_tells_it() {
    let runs = three_runs();
    let disk = write(&runs);
    let all: Vec<(u64, u64)> =
        runs.iter().flat_map(|(queue, messages)| messages.iter().map(|(seq, _)| (*queue, *seq))).collect();
    let file = disk.open(NAME, OpenMode::ReadWrite).unwrap();
    let bytes = file.len().unwrap();
    for length in [bytes + 1, bytes - 1, bytes - 40, bytes + 5000] {
        file.set_len(length).unwrap();
        let (mut messages, mut damage) = (Vec::new(), Vec::new());
        export(&*disk, "damaged", &mut |name, found| match found {
            Found::Message { queue, message } => messages.push((queue, message.seq)),
            Found::Damaged(error) if name == NAME => damage.push(error.to_string()),
            Found::Damaged(_) => {}
            Found::Unfinished => panic!("{name} was finished"),
        });
        assert!(messages == all, "{} of {} with {length} bytes", messages.len(), all.len());
        assert!(damage.len() == 1 && damage[0].contains("its length is wrong"), "{damage:?}");
    }
}

/// Three runs, one with holes; with bodies of which some end in what could be the begin of an index.
fn three_runs() -> Vec<(u64, Messages)> {
    let body = |seq: u64| [vec![seq as u8; 300 + seq as usize % 7], [64, 0, 0, 0].repeat(4)].concat();
    let messages = |numbers: &[u64]| numbers.iter().map(|seq| (*seq, body(*seq))).collect();
    let many: Vec<u64> = (5..400).collect();
    vec![(7, messages(&many)), (8, messages(&[1])), (9, messages(&[(1 << 32) - 2, (1 << 32) - 1, (1 << 32) + 5]))]
}

/// What can still be read of each run, and the first thing that was wrong with it.
fn salvaged(disk: &FaultyDisk, runs: &[(u64, Messages)]) -> Vec<(Messages, Option<String>)> {
    let extent = SalvagedExtent::open(disk, ExtentId(1)).unwrap();
    let each = runs.iter().enumerate().map(|(number, (queue, messages))| {
        let wanted = messages[0].0..messages.last().unwrap().0 + 1;
        let salvaged = extent.read(*queue, number, wanted, u32::MAX);
        let found = salvaged.messages.into_iter().map(|message| (message.seq, message.body.to_vec()));
        (found.collect(), salvaged.damage.map(|error| error.to_string()))
    });
    each.collect()
}

#[test]
fn a_wrong_length_costs_no_message_whose_bytes_and_index_are_left() {
    let runs = three_runs();
    let whole = write(&runs).contents(NAME).unwrap();
    let table = whole.len() - 64 - runs.len() * 64;
    // Too long by so much, or too short; of the run table and of the footer nothing else can be gone.
    let more = [1, 63, 64, 65, 4096, 100_000, 2 << 20].map(|more| whole.len() + more);
    let fewer = [1, 24, 25, 63, 64, 65, 100, 128, 129, 192, 255, 256].map(|fewer| whole.len() - fewer);
    for length in more.into_iter().chain(fewer) {
        let disk = FaultyDisk::new(1);
        let mut contents = whole.clone();
        contents.resize(length, 0xa5);
        disk.plant(NAME, &contents);
        for ((found, _), (queue, messages)) in salvaged(&disk, &runs).iter().zip(&runs) {
            assert!(found == messages, "queue {queue}: {} of {} with {length} bytes", found.len(), messages.len());
        }
        let error = Extent::open(&disk, ExtentId(1)).unwrap_err();
        let is_told = matches!(error, StorageError::WrongLength { found, .. } if found == length as u64);
        assert!(is_told && error.is_damage(), "{length} bytes: {error}");
    }
    assert!(table > 100_000, "half of it is in the first run");
}

#[test]
fn an_extent_that_is_cut_in_half_keeps_what_is_before_the_cut() {
    let runs = three_runs();
    let disk = write(&runs);
    let (whole, extent) = (disk.contents(NAME).unwrap(), Extent::open(&*disk, ExtentId(1)).unwrap());
    let cut_at = |length: u32| {
        let disk = FaultyDisk::new(1);
        disk.plant(NAME, &whole[..length as usize]);
        salvaged(&disk, &runs)
    };
    let [first, second, third] = extent.runs() else { panic!("three runs") };
    let counts = |length| cut_at(length).iter().map(|(found, _)| found.len()).collect::<Vec<_>>();
    assert_eq!(counts(third.index_offset + 2 * 16 + 3), [395, 1, 2], "in the last index");
    assert_eq!(counts(third.index_offset), [395, 1, 0], "before it");
    assert_eq!(counts(second.index_offset + 16), [395, 1, 0], "in the bodies of the last run");
    assert_eq!(counts(first.index_offset + 200 * 16), [200, 0, 0], "in the first index");
    assert_eq!(counts(first.index_offset - 1), [0, 0, 0], "in the first bodies, of which nothing is proven");
    for (_, damage) in cut_at(first.index_offset + 200 * 16) {
        let damage = damage.expect("something of each is gone");
        assert!(damage.contains("its length is wrong"), "{damage}");
    }
    // What is left is proven one by one.
    let disk = FaultyDisk::new(1);
    disk.plant(NAME, &whole[..second.index_offset as usize + 16]);
    disk.flip_bit(NAME, 70, 3);
    let found = &salvaged(&disk, &runs)[0];
    assert_eq!((found.0.len(), found.0[0].0), (394, 6), "{:?}", found.1);
    assert!(found.1.as_ref().is_some_and(|damage| damage.contains("checksum of a message")), "{:?}", found.1);
    let extent = SalvagedExtent::open(&disk, ExtentId(1)).unwrap();
    assert!(extent.read(6, 0, 5..400, u32::MAX).messages.is_empty(), "of another queue it has none");
    assert!(extent.read(7, 0, 1000..2000, u32::MAX).messages.is_empty(), "nor with other numbers");
}
