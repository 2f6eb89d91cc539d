//! `leveret inspect` on folders that are whole, damaged or something else.
//!
//! Invariant: whatever is found, the folder is byte for byte what it was.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use storage::{
    CheckpointStore, DataFolder, ExtentId, ExtentWriter, FileNo, FolderIdentity, GroupId, RealDisk, Record, RecordKind,
    WalOptions, WalPosition, recover,
};

const FOLDER_ID: u128 = 0xf01d;

/// A data folder with two files of log, an extent and a checkpoint.
fn data_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::create(folder.path()).unwrap());
    let identity = FolderIdentity { node_name: "leveret@hare".to_owned(), cluster_id: 0xc1, folder_id: FOLDER_ID };
    DataFolder::open(disk.clone(), identity, 1).unwrap();

    let options = WalOptions { file_bytes: 64 << 10, ..WalOptions::new(7) };
    let (mut wal, _) = recover(&disk, FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).unwrap();
    for index in 1..=5 {
        let record = |group, kind| Record {
            group: GroupId(group),
            kind,
            term: 2,
            index,
            body: vec![index as u8; 10_000].into(),
            body_crc: None,
        };
        wal.append(&[record(1, RecordKind::Entry), record(2, RecordKind::HardState)], &mut Vec::new()).unwrap();
        wal.sync().unwrap();
    }
    wal.note_durable().unwrap();

    let mut extent = ExtentWriter::create(&disk, FOLDER_ID, ExtentId(3)).unwrap();
    for seq in 10..20 {
        extent.push(77, seq, format!("message {seq}").as_bytes()).unwrap();
    }
    extent.finish().unwrap();
    CheckpointStore::open(&disk, FOLDER_ID).unwrap().save(GroupId(1), WalPosition::START, b"state").unwrap();
    folder
}

/// Every file with its contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                files.insert(path, bytes);
            }
        }
    }
    files
}

/// Runs `inspect` and checks that it changed nothing.
fn inspect(folder: &Path, words: &[&str]) -> Output {
    let before = contents(folder);
    let output = Command::new(env!("CARGO_BIN_EXE_leveret")).arg("inspect").arg(folder).args(words).output().unwrap();
    assert!(contents(folder) == before, "inspect changed the folder");
    output
}

fn text(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The lines of `--json`.
fn facts(output: &Output) -> Vec<serde_json::Value> {
    text(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind<'a>(facts: &'a [serde_json::Value], kind: &str) -> Vec<&'a serde_json::Value> {
    facts.iter().filter(|fact| fact["kind"] == kind).collect()
}

/// Turns one bit of a file, and gives the file's name inside the folder.
fn damage(folder: &Path, part: &str, choose: impl Fn(&str) -> bool, offset: usize) -> String {
    let entries = fs::read_dir(folder.join(part)).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).filter(|name| choose(name)).collect();
    names.sort_unstable();
    let path = folder.join(part).join(&names[0]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[offset] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    format!("{part}/{}", names[0])
}

fn assert_golden(name: &str, printed: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("RENEW").is_some() {
        fs::write(&path, printed).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(printed, kept, "renew {name} with: RENEW=1 cargo test -p leveret --test inspect");
}

#[test]
fn a_whole_folder_is_listed_and_exits_0() {
    let folder = data_folder();
    let output = inspect(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_golden("inspect.txt", &text(&output));
    let output = inspect(folder.path(), &["--records", "--messages"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_golden("inspect-records.txt", &text(&output));
}

#[test]
fn json_has_one_object_a_line_with_all_that_is_there() {
    let folder = data_folder();
    let output = inspect(folder.path(), &["--json", "--records", "--messages"]);
    let facts = facts(&output);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(of_kind(&facts, "identity")[0]["node_name"], "leveret@hare");
    assert_eq!(of_kind(&facts, "identity")[0]["folder_id"], format!("{FOLDER_ID:032x}"));
    assert_eq!(
        of_kind(&facts, "node"),
        [&serde_json::json!({ "kind": "node", "id": 1, "state": "founding", "start": 1 })]
    );
    assert_eq!(of_kind(&facts, "record").len(), 10);
    let first = of_kind(&facts, "record")[0];
    assert_eq!((&first["group"], &first["term"], &first["index"]), (&1.into(), &2.into(), &1.into()));
    assert_eq!((&first["record_kind"], &first["body_bytes"]), (&"entry".into(), &10_000.into()));
    assert_eq!(of_kind(&facts, "wal_file").len(), of_kind(&facts, "wal_file_end").len());
    assert_eq!((&of_kind(&facts, "run")[0]["queue"], &of_kind(&facts, "run")[0]["count"]), (&77.into(), &10.into()));
    assert_eq!(of_kind(&facts, "checkpoint")[0]["payload_bytes"], 5);
    assert_eq!(
        facts.last().unwrap(),
        &serde_json::json!({ "kind": "summary", "damage_count": 0, "unread_extent_count": 0 })
    );
}

#[test]
fn only_the_parts_that_were_asked_for_are_listed() {
    let folder = data_folder();
    for (parts, log, extents, checkpoints) in [
        (&["wal"][..], true, false, false),
        (&["extents"], false, true, false),
        (&["checkpoints"], false, false, true),
        (&["checkpoints", "wal"], true, false, true),
    ] {
        let words: Vec<&str> = parts.iter().copied().chain(["--json"]).collect();
        let facts = facts(&inspect(folder.path(), &words));
        let has = |kind| !of_kind(&facts, kind).is_empty();
        assert_eq!((has("wal_file"), has("extent"), has("checkpoint")), (log, extents, checkpoints), "{parts:?}");
    }
}

#[test]
fn a_damaged_frame_of_the_log_is_called_out_with_file_and_offset() {
    let folder = data_folder();
    // The body of the first record: after the page of the header, the header of the frame and the
    // header of the record.
    let name = damage(folder.path(), "wal", |name| name.ends_with(".wal"), 4096 + 48 + 40 + 100);
    let output = inspect(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = text(&output);
    let line = text.lines().find(|line| line.starts_with("DAMAGED")).unwrap();
    assert!(line.starts_with(&format!("DAMAGED {name} at byte ")), "{line}");
    assert!(line.contains("entry 1@2 of group 1"), "{line}");
    assert_eq!(text.lines().last(), Some("log files 2, extents 1, checkpoints 1; damaged places 1"));
}

#[test]
fn a_damaged_message_is_found_unless_the_extents_are_not_read_which_is_said() {
    let folder = data_folder();
    let entry = fs::read_dir(folder.path().join("extents")).unwrap().next().unwrap().unwrap();
    let bytes = fs::read(entry.path()).unwrap();
    let offset = bytes.windows(10).position(|window| window == b"message 12").unwrap();
    let name = damage(folder.path(), "extents", |_| true, offset + 9);
    let output = inspect(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = text(&output);
    assert!(told.contains(&format!("DAMAGED {name} at byte 0: ")), "{told}");
    assert_eq!(told.lines().last(), Some("log files 2, extents 1, checkpoints 1; damaged places 1"));
    let output = inspect(folder.path(), &["--quick"]);
    assert_eq!(output.status.code(), Some(0), "tables alone are whole");
    let last = "log files 2, extents 1, checkpoints 1; no damage found in what was read; not read: the messages of 1 extents, as --quick \
                asks for";
    assert_eq!(text(&output).lines().last(), Some(last));
    let output = inspect(folder.path(), &["--quick", "--json"]);
    assert_eq!(facts(&output).last().unwrap()["unread_extent_count"], 1);
    assert_eq!(inspect(folder.path(), &["--quick", "--messages"]).status.code(), Some(2));
    let output = inspect(folder.path(), &["--messages", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let facts = facts(&output);
    let damaged = of_kind(&facts, "damage");
    assert!(!damaged.is_empty() && damaged.iter().all(|fact| fact["name"] == name.as_str()), "{damaged:?}");
}

#[test]
fn damage_is_told_even_in_parts_that_were_not_asked_for() {
    let folder = data_folder();
    let name = damage(folder.path(), "checkpoints", |_| true, 20);
    let output = inspect(folder.path(), &["wal"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains(&format!("DAMAGED {name} at byte ")), "{output:?}");
}

#[test]
fn a_folder_whose_identity_is_gone_or_damaged_is_damaged() {
    let folder = data_folder();
    let path = folder.path().join("identity");
    let identity = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let output = inspect(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("DAMAGED identity: the file is missing"), "{output:?}");
    fs::write(&path, &identity[..identity.len() / 2]).unwrap();
    let output = inspect(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("DAMAGED identity at byte "), "{output:?}");
}

#[test]
fn any_bytes_in_any_file_are_survived() {
    let whole = data_folder();
    for path in contents(whole.path()).keys() {
        let bytes = fs::read(path).unwrap();
        for broken in [Vec::new(), bytes[..bytes.len() / 2].to_vec(), vec![0xff; bytes.len()]] {
            fs::write(path, broken).unwrap();
            let output = inspect(whole.path(), &["--records", "--messages"]);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {output:?}", path.display());
        }
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn an_export_has_the_messages_of_extents_in_use_and_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::create(folder.path()).unwrap());
    let stored = |body: &str| {
        // Lengths of body, properties, exchange and routing key; no stamp.
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(b"\x03\0\0\0\0\0\0\0\0\x01\0\0q\x10\x00\x02");
        bytes.extend_from_slice(body.as_bytes());
        bytes
    };
    for (id, body) in [(3, "carrot"), (4, "clover")] {
        let mut extent = ExtentWriter::create(&disk, FOLDER_ID, ExtentId(id)).unwrap();
        extent.push(7, id, &stored(body)).unwrap();
        extent.finish().unwrap();
    }
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("damaged")).unwrap();
    fs::rename(at("extents/0000000000000003.extent"), at("damaged/0002-extents-0000000000000003.extent")).unwrap();
    fs::write(at("damaged/0001-wal-00000001.wal"), "not an extent").unwrap();
    let output = inspect(folder.path(), &["--export"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = facts(&output);
    let messages: Vec<_> = of_kind(&lines, "message").into_iter().map(|m| (&m["number"], &m["payload"])).collect();
    assert_eq!(messages, [(&4.into(), &"Y2xvdmVy".into()), (&3.into(), &"Y2Fycm90".into())]);
    assert_eq!(lines[1]["file"], "damaged/0002-extents-0000000000000003.extent");
    assert_eq!((&lines[1]["queue_id"], &lines[1]["routing_key"]), (&7.into(), &"q".into()));
    assert_eq!(lines[1]["properties"], serde_json::json!({ "delivery_mode": 2 }));
    assert_eq!(lines[2], serde_json::json!({ "kind": "summary", "message_count": 2, "damage_count": 0 }));
    // What is damaged is told, and the exit code says so.
    damage(folder.path(), "extents", |_| true, 64 + 20);
    let output = inspect(folder.path(), &["--export"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = facts(&output);
    assert_eq!((of_kind(&lines, "message").len(), of_kind(&lines, "damage").len()), (1, 1));
    // Where there is a log, what is in that alone is not printed, which is told.
    fs::create_dir(at("wal")).unwrap();
    fs::write(at("wal/00000001.wal"), "").unwrap();
    let told = String::from_utf8(inspect(folder.path(), &["--export"]).stderr).unwrap();
    assert!(told.contains("those that are in the log alone, the newest ones, are not printed"), "{told}");
    // It is that and nothing else.
    assert_eq!(inspect(folder.path(), &["wal", "--export"]).status.code(), Some(2));
}

#[test]
fn what_is_no_data_folder_exits_3_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "x").unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::create_dir(at("other")).unwrap();
    fs::write(at("other/notes.txt"), "x").unwrap();
    for (name, said) in [
        ("gone", "cannot inspect {}: there is no such folder; give the data folder of a node"),
        ("file", "cannot inspect {}: it is not a folder; give the data folder of a node"),
        ("empty", "{} is not a leveret data folder; give the data folder of a node"),
        ("other", "{} is not a leveret data folder; give the data folder of a node"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_leveret")).arg("inspect").arg(at(name)).output().unwrap();
        let path = at(name).display().to_string();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("leveret: {}\n", said.replace("{}", &path)));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_reader_that_saw_enough_is_no_error() {
    let folder = data_folder();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    let output = command.arg("inspect").arg(folder.path()).arg("--records").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}
