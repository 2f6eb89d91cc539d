//! Bytes that rot in the data folder: while the broker runs, and between two starts.
//!
//! Invariant: a damaged message is told and given to nobody; everything intact is there, in order,
//! before and after a repair; a trial of a repair changes nothing.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use clients::broker::{binary, is_foreign};
use clients::{Broker, Client, Event, QueueDeclare};
use rustix::process::Signal;

/// A small cache, so that messages are read from the disk.
const COLD: &[&str] = &["--cache-bytes=1MiB", "--body-bytes-max=1MiB", "--partitions=2"];
/// The same with files so small that messages go to extents and partitions save their state.
const SMALL_FILES: &[&str] = &[
    "--cache-bytes=1MiB",
    "--body-bytes-max=1MiB",
    "--partitions=2",
    "--wal-file-bytes=4MiB",
    "--wal-retained-bytes=4MiB",
    "--checkpoint-interval-bytes=1MiB",
];
const QUEUE: &str = "payments";

fn text(number: u32) -> String {
    format!("payment number {number:08} ")
}

fn body(number: u32, bytes: usize) -> Vec<u8> {
    let mut body = text(number).into_bytes();
    body.resize(bytes.max(body.len()), b'.');
    body
}

fn number(body: &[u8]) -> u32 {
    let digits = String::from_utf8_lossy(&body["payment number ".len()..][..8]).into_owned();
    digits.parse().unwrap_or_else(|_| panic!("a damaged body was given out: {digits}"))
}

fn declare(broker: &Broker, queue: &str) -> (Client, u16) {
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: queue, durable: true, ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    (client, channel)
}

/// Publishes messages 1 to `count`, each confirmed before the next: each is an entry of its own.
fn publish_each(broker: &Broker, queue: &str, count: u32) {
    let (mut client, channel) = declare(broker, queue);
    for n in 1..=count {
        client.put(channel, queue, &body(n, 200));
        client.confirmed(channel, u64::from(n), u64::from(n));
    }
    client.close();
}

/// Publishes messages 1 to `count` of a KiB in batches.
fn publish(broker: &Broker, queue: &str, count: u32) {
    let (mut client, channel) = declare(broker, queue);
    for first in (1..=count).step_by(200) {
        let last = (first + 199).min(count);
        (first..=last).for_each(|n| client.put(channel, queue, &body(n, 1000)));
        client.confirmed(channel, u64::from(first), u64::from(last));
    }
    client.close();
}

/// So much in other queues that what was published before leaves memory, on every shard.
fn push_out(broker: &Broker, count: u32) {
    for filler in 1..=4 {
        publish(broker, &format!("filler-{filler}"), count);
    }
}

/// Whatever was settled is in the log now: nobody waits for a settle, so it goes with the next
/// publish.
fn write_settles(broker: &Broker) {
    publish_each(broker, "mark", 1);
}

/// Takes everything out of a queue by `basic.get`; numbers, and whether each was flagged as
/// redelivered.
fn drain(broker: &Broker, queue: &str) -> Vec<(u32, bool)> {
    let mut client = broker.connect();
    let channel = client.channel();
    let mut drained = Vec::new();
    while let Some(delivery) = client.get(channel, queue, true).unwrap() {
        drained.push((number(&delivery.body), delivery.redelivered));
    }
    client.close();
    write_settles(broker);
    drained
}

fn numbers(drained: &[(u32, bool)]) -> Vec<u32> {
    drained.iter().map(|d| d.0).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort_unstable();
    files
}

/// Turns one bit `shift` bytes from where `needle` begins, in the one file of a part of the folder
/// that has it.
fn flip(data: &Path, part: &str, needle: &str, shift: i64) -> PathBuf {
    for path in files(&data.join(part)) {
        let bytes = fs::read(&path).unwrap();
        let Some(at) = bytes.windows(needle.len()).position(|window| window == needle.as_bytes()) else { continue };
        flip_at(&path, (at as i64 + shift) as u64);
        return path;
    }
    panic!("{needle} is in no file of {part}: {:?}", files(&data.join(part)));
}

fn flip_at(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let due = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < due, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn leveret(command: &str, data: &Path, words: &[&str]) -> Output {
    Command::new(binary()).arg(command).arg(data).args(words).output().unwrap()
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Every file with its contents, but for what a start or a lock writes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(contents(&path)),
            false => _ = all.insert(path.clone(), fs::read(&path).unwrap()),
        }
    }
    all
}

/// The broker does not start, and says in this line why and what to do.
fn refused(broker: &mut Broker) -> String {
    broker.launch();
    let status = broker.wait_for_end();
    assert_eq!(status.code(), Some(2), "{}", broker.log());
    let log = broker.log();
    let line = log.lines().rfind(|line| line.contains("ERROR")).unwrap_or_else(|| panic!("no line says why:\n{log}"));
    assert!(line.contains("leveret repair DIR --dry-run"), "{line}");
    line.to_owned()
}

/// The broker starts without this queue, whose partition is damaged, says so, and gives nothing out
/// in its name.
fn start_without(broker: &mut Broker, queue: &str) {
    broker.start();
    let log = broker.log();
    let line =
        log.lines().rfind(|line| line.contains("QUARANTINED")).unwrap_or_else(|| panic!("no line says so:\n{log}"));
    assert!(line.contains("ERROR") && line.contains("leveret repair DIR --dry-run"), "{line}");
    let mut client = broker.connect();
    let channel = client.channel();
    assert_eq!(client.counts(channel, queue).unwrap(), (0, 0), "it is there, and nobody knows what is in it");
    client.confirm_select(channel).unwrap();
    client.put(channel, queue, b"nowhere to keep it");
    let told = client.event(channel);
    assert!(matches!(told, Event::Confirm { nack: true, .. }), "what cannot be kept is not confirmed: {told:?}");
    let closed = client.get(channel, queue, true).unwrap_err();
    assert_eq!(closed.code, 541, "{closed:?}");
    assert!(closed.text.contains("is unavailable"), "{closed:?}");
}

/// The broker starts without this queue; a trial changes nothing; a repair of its partition gives
/// this report; then all is served.
fn quarantined_then_repaired(broker: &mut Broker, queue: &str) -> String {
    start_without(broker, queue);
    broker.kill();
    let report = repaired(broker);
    assert!(report.contains("partitions that are whole stay as they are"), "{report}");
    assert!(!broker.log().rsplit("data folder opened").next().unwrap().contains("QUARANTINED"), "{}", broker.log());
    report
}

/// The broker is refused; a trial changes nothing; a repair gives this report; then it starts.
fn refused_then_repaired(broker: &mut Broker) -> String {
    refused(broker);
    repaired(broker)
}

fn repaired(broker: &mut Broker) -> String {
    let data = broker.data_folder();
    let before = contents(&data);
    let trial = leveret("repair", &data, &["--dry-run"]);
    assert_eq!(trial.status.code(), Some(1), "{}", shown(&trial));
    assert!(contents(&data) == before, "a trial changes nothing");
    let repair = leveret("repair", &data, &[]);
    assert_eq!(repair.status.code(), Some(0), "{}", shown(&repair));
    let (promised, done) = (shown(&trial), shown(&repair));
    let but_last = |text: &str| text.lines().take(text.lines().count() - 1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(but_last(&promised), but_last(&done), "a trial tells what a repair does");
    // Files of the log stay where they are when partitions that are whole need them.
    let is_partial = done.contains("partitions that are whole stay as they are");
    assert!(is_partial || !files(&data.join("damaged")).is_empty(), "what was damaged is kept: {done}");
    let inspected = leveret("inspect", &data, &["--messages"]);
    assert_eq!(inspected.status.code(), Some(0), "inspect agrees: {}", shown(&inspected));
    let again = leveret("repair", &data, &[]);
    assert!(shown(&again).starts_with("nothing is damaged"), "{}", shown(&again));
    broker.start();
    done
}

#[test]
fn damaged_message_in_the_log_is_set_aside_and_the_others_come() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 40);
    push_out(&broker, 1500);
    for n in [3, 4, 20] {
        flip(&broker.data_folder(), "wal", &text(n), 40);
    }
    let expected: Vec<u32> = (1..=40).filter(|n| ![3, 4, 20].contains(n)).collect();
    assert_eq!(numbers(&drain(&broker, QUEUE)), expected);
    let log = broker.log();
    assert_eq!(log.lines().filter(|line| line.contains("DAMAGED")).count(), 3, "{log}");
    assert!(log.contains("set aside: ended in the log as damaged"), "{log}");
    broker.signal(Signal::USR1);
    wait_for("the gauges", || broker.log().contains("messages_set_aside=3"));
    // They have ended in the log. It is still damaged, so a start sets the partition aside, and a
    // repair has nothing to give up.
    broker.kill();
    let report = quarantined_then_repaired(&mut broker, QUEUE);
    assert!(!report.contains("come back") && !report.contains("given up:"), "{report}");
    assert_eq!(drain(&broker, QUEUE), []);
}

#[test]
fn damaged_messages_in_an_extent_are_set_aside_and_the_others_come() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    publish(&broker, QUEUE, 14_000);
    let data = broker.data_folder();
    wait_for("an extent", || !files(&data.join("extents")).is_empty());
    std::thread::sleep(Duration::from_millis(1500));
    broker.kill();
    broker.start();
    let first = files(&data.join("extents")).remove(0);
    for n in [2, 3, 700] {
        flip(&data, "extents", &text(n), 100);
    }
    // The end of the table: no message depends on it alone.
    let bytes = fs::metadata(&first).unwrap().len();
    flip_at(&first, bytes - 20);
    flip_at(&first, bytes - 40);
    let expected: Vec<u32> = (1..=14_000).filter(|n| ![2, 3, 700].contains(n)).collect();
    let drained = numbers(&drain(&broker, QUEUE));
    assert_eq!(drained.len(), expected.len());
    assert_eq!(drained, expected);
    assert!(broker.log().contains("2 messages of queue"), "{}", broker.log());
    broker.kill();
    broker.start();
    assert_eq!(drain(&broker, QUEUE), []);
}

#[test]
fn upkeep_that_meets_damage_goes_on() {
    let Some(broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    publish_each(&broker, QUEUE, 20);
    let data = broker.data_folder();
    flip(&data, "wal", &text(5), 60);
    push_out(&broker, 3500);
    wait_for("the damage to be told", || broker.log().contains("DAMAGED"));
    wait_for("an extent", || !files(&data.join("extents")).is_empty());
    let expected: Vec<u32> = (1..=20).filter(|n| *n != 5).collect();
    assert_eq!(numbers(&drain(&broker, QUEUE)), expected, "{}", broker.log());
    assert_eq!(drain(&broker, "filler-2").len(), 3500, "the process lives");
}

#[test]
fn damaged_record_costs_its_messages_and_nothing_else() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 40);
    let mut client = broker.connect();
    let channel = client.channel();
    for _ in 0..5 {
        client.get(channel, QUEUE, true).unwrap().unwrap();
    }
    client.close();
    publish_each(&broker, "after", 3);
    broker.kill();
    flip(&broker.data_folder(), "wal", &text(10), 30);
    flip(&broker.data_folder(), "wal", &text(2), 30);
    let report = quarantined_then_repaired(&mut broker, QUEUE);
    assert!(
        report.contains("given up: partition")
            && report.contains("1 message of queue \"payments\" of virtual host \"/\" (number 1), numbers 10\n"),
        "{report}"
    );
    assert!(!report.contains("come back") && !report.contains("entries of its log"), "{report}");
    let expected: Vec<u32> = (6..=40).filter(|n| *n != 10).collect();
    assert_eq!(numbers(&drain(&broker, QUEUE)), expected);
    assert_eq!(numbers(&drain(&broker, "after")), [1, 2, 3]);
    broker.kill();
    broker.start();
    assert_eq!(drain(&broker, QUEUE), []);
}

#[test]
fn queues_of_other_partitions_are_served_while_one_is_damaged_and_deletes_wait_for_its_repair() {
    if is_foreign() {
        return;
    }
    let Some((mut broker, http)) = Broker::managed(COLD) else { return };
    // Queues are placed in turn.
    let queues = ["one", "two", "three", "four"];
    queues.iter().for_each(|queue| publish_each(&broker, queue, 5));
    broker.kill();
    let needle = b"payment number 00000003 ";
    let log = files(&broker.data_folder().join("wal")).remove(0);
    let bytes = fs::read(&log).unwrap();
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    flip_at(&log, at as u64 + 30);
    broker.start();
    assert!(broker.log().contains("QUARANTINED"), "{}", broker.log());
    let (up, down): (Vec<&str>, Vec<&str>) = queues.iter().partition(|queue| {
        let described = http.get(&format!("/api/queues/%2F/{queue}"));
        described.json()["state"] == "running"
    });
    assert_eq!((up.len(), down.len()), (2, 2), "{up:?} {down:?}");
    for queue in up {
        assert_eq!(numbers(&drain(&broker, queue)), [1, 2, 3, 4, 5]);
    }
    let unknown = http.get(&format!("/api/queues/%2F/{}", down[0])).json();
    assert!(unknown["messages"].is_null() && unknown["consumers"].is_null(), "nobody knows: {unknown}");
    let gone = |queue: &str| http.delete(&format!("/api/queues/%2F/{queue}")).status;
    assert_eq!(gone(down[0]), 503);
    assert_eq!(http.get("/api/health/checks/virtual-hosts").status, 503);
    assert_eq!(http.get("/api/health/checks/alarms").status, 200);
    assert!(http.get("/metrics").text.contains("leveret_partitions_quarantined 1\n"));
    // New queues go where they can be kept.
    publish_each(&broker, "five", 3);
    publish_each(&broker, "six", 3);
    broker.kill();
    let report = repaired(&mut broker);
    assert!(report.contains("numbers 3\n"), "{report}");
    assert_eq!(http.get("/api/health/checks/virtual-hosts").status, 200);
    let drained: Vec<_> = down.iter().map(|queue| numbers(&drain(&broker, queue))).collect();
    assert!(drained.contains(&vec![1, 2, 4, 5]) && drained.contains(&vec![1, 2, 3, 4, 5]), "{drained:?}");
    assert_eq!(gone(down[0]), 204);
    for queue in ["five", "six"] {
        assert_eq!(numbers(&drain(&broker, queue)), [1, 2, 3], "{queue}");
    }
}

#[test]
fn missing_entry_costs_its_messages_and_what_was_settled_behind_it_comes_back_flagged() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 30);
    let mut client = broker.connect();
    let channel = client.channel();
    for _ in 0..15 {
        client.get(channel, QUEUE, true).unwrap().unwrap();
    }
    client.close();
    write_settles(&broker);
    broker.kill();
    // In the header of the batch: what the entry says can no longer be proven.
    flip(&broker.data_folder(), "wal", &text(10), -45);
    let report = quarantined_then_repaired(&mut broker, QUEUE);
    assert!(report.contains("1 entries of its log"), "{report}");
    assert!(report.contains("come back, flagged as redelivered"), "{report}");
    let drained = drain(&broker, QUEUE);
    // 1 to 9 are known to be settled; whether 11 to 15 are, nobody can tell.
    assert_eq!(numbers(&drained), (11..=30).collect::<Vec<_>>());
    assert!(drained.iter().all(|(_, redelivered)| *redelivered), "{drained:?}");
}

#[test]
fn header_of_a_log_file_is_made_anew() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 10);
    broker.kill();
    let path = files(&broker.data_folder().join("wal")).into_iter().find(|p| p.extension().is_some()).unwrap();
    flip_at(&path, 20);
    flip_at(&path, 2048 + 20);
    broker.start();
    assert_eq!(numbers(&drain(&broker, QUEUE)), (1..=10).collect::<Vec<_>>());
}

#[test]
fn damaged_extent_is_repaired_offline_too() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    publish(&broker, QUEUE, 14_000);
    let data = broker.data_folder();
    wait_for("extents in a checkpoint", || !files(&data.join("extents")).is_empty());
    std::thread::sleep(Duration::from_millis(1500));
    broker.kill();
    broker.start();
    broker.kill();
    let first = files(&data.join("extents")).remove(0);
    flip(&data, "extents", &text(7), 100);
    let bytes = fs::metadata(&first).unwrap().len();
    flip_at(&first, bytes - 64 - 10);
    let report = repaired(&mut broker);
    assert!(report.contains("1 message of queue") && report.contains("extents-"), "{report}");
    let expected: Vec<u32> = (1..=14_000).filter(|n| *n != 7).collect();
    assert_eq!(numbers(&drain(&broker, QUEUE)), expected);
}

/// The newest file of the log.
fn newest_log_file(data: &Path) -> PathBuf {
    log_files(data).pop().unwrap()
}

/// The files of the log, by their numbers.
fn log_files(data: &Path) -> Vec<PathBuf> {
    let output = leveret("inspect", data, &["wal", "--json"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let facts = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut files: Vec<_> = facts.filter(|fact| fact["kind"] == "wal_file").collect();
    files.sort_by_key(|fact| fact["file"].as_u64().unwrap());
    files.iter().map(|fact| data.join(fact["name"].as_str().unwrap())).collect()
}

#[test]
fn messages_of_a_log_file_that_is_gone_are_never_told_as_none_and_nobody_misses_it_twice() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    publish(&broker, QUEUE, 14_000);
    let data = broker.data_folder();
    std::thread::sleep(Duration::from_millis(1500));
    // By its own will, so that the note beside the log names its last file.
    broker.terminate();
    fs::remove_file(newest_log_file(&data)).unwrap();
    assert_eq!(leveret("inspect", &data, &[]).status.code(), Some(1));
    let report = shown(&leveret("repair", &data, &[]));
    let left = drain_after_repair(&mut broker);
    let last = report.lines().last().unwrap();
    assert!(last.starts_with(&format!("repaired: {left} messages are there; ")), "{report}");
    // What is known by number and what is estimated are what is missing, within a fifth of a log
    // file's worth.
    let count = |word: &str| -> i64 {
        let Some((before, _)) = last.split_once(word) else { return 0 };
        before.rsplit(' ').find_map(|word| word.parse().ok()).unwrap_or(0)
    };
    let told =
        count(" that are known by number") + if last.contains("about ") { count(" that nobody can count") } else { 0 };
    let missing = 14_000 - i64::from(left);
    assert!(missing > 0 && (told - missing).abs() < 800, "{missing} are missing: {report}");
}

/// Nobody has read it, and nobody is asked: the messages that lie there would have ended when the log
/// was looked after.
#[test]
fn a_log_file_with_messages_that_is_gone_or_short_is_missed_before_anybody_reads_it() {
    let roomy = SMALL_FILES.iter().map(|setting| match setting.starts_with("--wal-retained-bytes") {
        true => "--wal-retained-bytes=1GiB",
        false => setting,
    });
    let Some(mut broker) = Broker::own_or_skip(&roomy.collect::<Vec<_>>()) else { return };
    publish(&broker, QUEUE, 14_000);
    let data = broker.data_folder();
    std::thread::sleep(Duration::from_millis(1500));
    broker.terminate();
    let second = log_files(&data).remove(1);
    let kept = fs::read(&second).unwrap();
    for left in [None, Some(kept.len() / 2)] {
        match left {
            None => fs::remove_file(&second).unwrap(),
            Some(bytes) => fs::write(&second, &kept[..bytes]).unwrap(),
        }
        start_without(&mut broker, QUEUE);
        assert!(broker.log().contains("is missing, which has messages of it"), "{}", broker.log());
        // Upkeep has looked after the log meanwhile.
        std::thread::sleep(Duration::from_millis(1500));
        broker.terminate();
        fs::write(&second, &kept).unwrap();
        broker.start();
        let mut client = broker.connect();
        let channel = client.channel();
        assert_eq!(client.counts(channel, QUEUE).unwrap().0, 14_000, "all is there once it is back");
        client.close();
        broker.terminate();
    }
    fs::remove_file(&second).unwrap();
    let report = shown(&leveret("repair", &data, &[]));
    let left = drain_after_repair(&mut broker);
    let last = report.lines().last().unwrap();
    assert!(last.starts_with(&format!("repaired: {left} messages are there; ")), "{report}");
    assert!((8_000..14_000).contains(&left), "{report}");
}

/// What a repair left is whole to `inspect` and to a second repair, and a broker serves it in
/// order; how many messages that is.
fn drain_after_repair(broker: &mut Broker) -> u32 {
    let data = broker.data_folder();
    let inspected = leveret("inspect", &data, &["--messages"]);
    assert_eq!(inspected.status.code(), Some(0), "{}", shown(&inspected));
    let again = leveret("repair", &data, &["--dry-run"]);
    assert!(shown(&again).starts_with("nothing is damaged"), "{}", shown(&again));
    broker.start();
    let drained = numbers(&drain(broker, QUEUE));
    assert!(drained.is_sorted());
    drained.len() as u32
}

#[test]
fn an_extent_that_is_gone_is_missed_by_inspect_and_its_messages_are_given_up_by_the_name_of_their_queue() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    publish(&broker, QUEUE, 14_000);
    let data = broker.data_folder();
    wait_for("extents in a checkpoint", || !files(&data.join("extents")).is_empty());
    std::thread::sleep(Duration::from_millis(1500));
    broker.terminate();
    let first = files(&data.join("extents")).remove(0);
    let name = format!("extents/{}", first.file_name().unwrap().to_string_lossy());
    let kept = fs::read(&first).unwrap();
    fs::remove_file(&first).unwrap();
    start_without(&mut broker, QUEUE);
    assert!(broker.log().contains(&format!("{name} is missing")), "{}", broker.log());
    broker.terminate();
    fs::write(&first, kept).unwrap();
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    assert_eq!(client.counts(channel, QUEUE).unwrap().0, 14_000, "it came back");
    client.close();
    // While the broker runs: what is in it waits until it is back.
    let elsewhere = first.with_extension("elsewhere");
    fs::rename(&first, &elsewhere).unwrap();
    let mut client = broker.connect();
    let channel = client.channel();
    client.qos(channel, 10, false).unwrap();
    client.consume(channel, QUEUE, "waits").unwrap();
    wait_for("a line that says so", || broker.log().contains("trying again"));
    fs::rename(&elsewhere, &first).unwrap();
    let Event::Delivery(delivery) = client.event(channel) else { panic!("it is back") };
    assert_eq!(number(&delivery.body), 1, "{}", broker.log());
    client.close();
    broker.terminate();
    fs::remove_file(&first).unwrap();
    let inspected = leveret("inspect", &data, &[]);
    assert_eq!(inspected.status.code(), Some(1), "{}", shown(&inspected));
    assert!(shown(&inspected).contains(&format!("DAMAGED {name}")), "{}", shown(&inspected));
    let report = shown(&leveret("repair", &data, &[]));
    assert!(
        report.contains("messages of queue \"payments\" of virtual host \"/\" (number 1), numbers 1 to "),
        "{report}"
    );
    let left = drain_after_repair(&mut broker);
    assert!(
        report.contains(&format!("; {} that are known by number were given up; ", 14_000 - left)),
        "{left} {report}"
    );
}

#[test]
fn damaged_checkpoint_is_passed_over_and_without_another_the_log_must_do() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 10);
    broker.terminate();
    broker.start();
    let data = broker.data_folder();
    publish_each(&broker, "other", 3);
    broker.kill();
    let states = files(&data.join("checkpoints"));
    let is_of_queues_only = states.is_empty();
    if is_of_queues_only {
        // Nothing was worth a checkpoint: one that is rubbish stands for it.
        fs::create_dir_all(data.join("checkpoints")).unwrap();
        for id in ["00000001.0", "00000002.0"] {
            fs::write(data.join("checkpoints").join(id), vec![7; 9000]).unwrap();
        }
    } else {
        states.iter().for_each(|path| flip_at(path, 100));
    }
    let report = match is_of_queues_only {
        true => quarantined_then_repaired(&mut broker, QUEUE),
        false => refused_then_repaired(&mut broker),
    };
    assert!(report.contains("its state"), "{report}");
    assert_eq!(numbers(&drain(&broker, QUEUE)), (1..=10).collect::<Vec<_>>());
    assert_eq!(numbers(&drain(&broker, "other")), [1, 2, 3]);
}

/// Numbers of a queue's messages that an export of the data folder shows.
fn exported(data: &Path, queue: &str) -> BTreeSet<u32> {
    let output = leveret("inspect", data, &["--export"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let messages = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let of_queue = messages.filter(|line| line["kind"] == "message" && line["routing_key"] == queue);
    // They were published in the order of their numbers.
    of_queue.map(|line| line["number"].as_u64().unwrap() as u32).collect()
}

#[test]
fn a_partition_that_lost_both_states_keeps_what_its_log_has_and_its_extents_as_files() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    publish(&broker, QUEUE, 14_000);
    let data = broker.data_folder();
    wait_for("extents", || !files(&data.join("extents")).is_empty());
    wait_for("both states", || files(&data.join("checkpoints")).len() >= 4);
    // More, so that the log lets go of its first files.
    push_out(&broker, 7_000);
    std::thread::sleep(Duration::from_secs(3));
    publish_each(&broker, "last", 3);
    broker.kill();
    // Partition 0 is who declared what: it stays.
    let states = files(&data.join("checkpoints"));
    let of_queues = |path: &&PathBuf| !path.file_name().unwrap().to_string_lossy().starts_with("00000000.");
    let damaged: Vec<_> = states.iter().filter(of_queues).collect();
    assert!(damaged.len() >= 2, "{states:?}");
    damaged.iter().for_each(|path| flip_at(path, 100));
    let extents = files(&data.join("extents")).len();
    let report = quarantined_then_repaired(&mut broker, QUEUE);
    assert!(report.contains("its state"), "{report}");
    let drained = drain(&broker, QUEUE);
    let of_log = numbers(&drained);
    if report.contains("its messages in extents are not") {
        let kept = files(&data.join("damaged")).iter().filter(|p| p.to_string_lossy().contains("extents-")).count();
        assert_eq!(kept, extents, "{report}");
        assert!(of_log.is_sorted(), "{of_log:?}");
        // What did not come back is in the export.
        let mut reachable = exported(&data, QUEUE);
        assert!(!reachable.is_empty());
        reachable.extend(of_log.iter().copied());
        assert_eq!(reachable, (1..=14_000).collect(), "nothing on the disk is out of reach");
    } else {
        // Its log still reached back to its beginning.
        assert_eq!(of_log, (1..=14_000).collect::<Vec<_>>(), "{report}");
    }
    publish_each(&broker, "after", 3);
    broker.kill();
    broker.start();
    assert_eq!(drain(&broker, "after").len(), 3);
    assert_eq!(drain(&broker, QUEUE), []);
}

/// It writes extents and states, gives them back and uses its log's files again, while somebody reads.
#[test]
fn no_look_into_the_folder_of_a_busy_node_finds_damage() {
    let Some(broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let data = broker.data_folder();
    let until = Instant::now() + Duration::from_secs(8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                publish(&broker, QUEUE, 14_000);
                drain(&broker, QUEUE);
            }
        });
        wait_for("extents", || !files(&data.join("extents")).is_empty());
        let mut looks = 0;
        while Instant::now() < until {
            for words in [&["--export"][..], &["--quick"], &["--messages"], &["--json", "--records"]] {
                let output = leveret("inspect", &data, words);
                let text = shown(&output);
                let told = text.lines().filter(|line| line.contains("DAMAGED") || line.contains("\"damage\""));
                let told: Vec<_> = told.collect();
                assert_eq!(output.status.code(), Some(0), "{words:?}, after {looks} looks: {told:#?}");
                looks += 1;
            }
        }
    });
}

/// Nothing of what is in it is in a state that could be shown.
#[test]
fn a_folder_in_which_no_state_was_saved_yet_says_what_its_log_has() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    publish(&broker, QUEUE, 3);
    broker.kill();
    let output = leveret("inspect", &broker.data_folder(), &[]);
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let (_, told) = text.split_once("no state was saved yet").unwrap_or_else(|| panic!("{text}"));
    let counted = |line: &str| line.split_once(": ")?.1.split(' ').next()?.parse::<u64>().ok();
    let of =
        |what: &str| told.lines().filter(|line| line.trim_start().starts_with(what)).filter_map(counted).sum::<u64>();
    assert!(of("what is declared: ") >= 1 && of("partition ") >= 2, "a queue and its messages: {told}");
}

#[test]
fn damaged_identity_is_made_anew() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 5);
    broker.kill();
    let identity = broker.data_folder().join("identity");
    let whole = fs::read(&identity).unwrap();
    flip_at(&identity, 60);
    let report = refused_then_repaired(&mut broker);
    assert!(report.contains("kept aside: identity as damaged/"), "{report}");
    assert_eq!(fs::read(&identity).unwrap(), whole);
    assert_eq!(numbers(&drain(&broker, QUEUE)), [1, 2, 3, 4, 5]);
    // And without a file: the node's name is asked for.
    broker.terminate();
    fs::remove_file(&identity).unwrap();
    let why = refused(&mut broker);
    assert!(why.contains("leveret repair DIR --dry-run --node-name NAME"), "{why}");
    let data = broker.data_folder();
    let nameless = leveret("repair", &data, &[]);
    assert!(shown(&nameless).contains("name it with --node-name"), "{}", shown(&nameless));
    assert!(!identity.exists());
    let named = leveret("repair", &data, &["--node-name", "leveret@moor"]);
    assert_eq!(named.status.code(), Some(0), "{}", shown(&named));
    broker.start();
    assert!(broker.log().contains("node=leveret@moor"), "{}", broker.log());
}

#[test]
fn a_log_that_is_gone_is_missed_in_a_folder_that_never_had_a_state_too() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    publish_each(&broker, QUEUE, 5);
    broker.kill();
    let (log, elsewhere) = (broker.data_folder().join("wal"), broker.data_folder().join("elsewhere"));
    assert_eq!(files(&broker.data_folder().join("checkpoints")), [] as [PathBuf; 0], "none yet");
    fs::rename(&log, &elsewhere).unwrap();
    let why = refused(&mut broker);
    assert!(why.contains("the log is gone"), "{why}");
    // As a disk that was not mounted shows it.
    fs::create_dir(&log).unwrap();
    let why = refused(&mut broker);
    assert!(why.contains("the log is gone"), "{why}");
    fs::remove_dir(&log).unwrap();
    fs::rename(&elsewhere, &log).unwrap();
    broker.start();
    assert_eq!(numbers(&drain(&broker, QUEUE)), [1, 2, 3, 4, 5]);
    broker.kill();
    fs::remove_dir_all(&log).unwrap();
    refused(&mut broker);
    let repair = leveret("repair", &broker.data_folder(), &[]);
    assert_eq!(repair.status.code(), Some(0), "{}", shown(&repair));
    assert!(shown(&repair).contains("the log: all its files are gone"), "{}", shown(&repair));
    assert!(
        shown(&repair).contains("given up: all that was published, settled or declared ever"),
        "{}",
        shown(&repair)
    );
    broker.start();
    publish_each(&broker, "after", 2);
    assert_eq!(numbers(&drain(&broker, "after")), [1, 2]);
}

#[test]
fn messages_of_queues_that_nobody_knows_any_more_are_kept() {
    let Some(mut broker) = Broker::own_or_skip(COLD) else { return };
    for queue in ["first-queue", "second-queue", "third-queue"] {
        publish_each(&broker, queue, 5);
    }
    broker.kill();
    flip(&broker.data_folder(), "wal", "second-queue", 3);
    let report = refused_then_repaired(&mut broker);
    assert!(report.contains("2 changes of users, virtual hosts, exchanges, queues and bindings"), "{report}");
    assert_eq!(numbers(&drain(&broker, "first-queue")), [1, 2, 3, 4, 5]);
    let names: Vec<&str> = report.split_whitespace().filter(|word| word.starts_with("recovered.")).collect();
    assert_eq!(names.len(), 2, "{report}");
    for name in names {
        assert_eq!(numbers(&drain(&broker, name)), [1, 2, 3, 4, 5], "{name}");
    }
    // New queues get numbers that no message has.
    publish_each(&broker, "fourth-queue", 2);
    assert_eq!(numbers(&drain(&broker, "fourth-queue")), [1, 2]);
}

#[test]
fn repair_of_a_sound_folder_or_of_a_running_broker_changes_nothing() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    publish_each(&broker, QUEUE, 5);
    let data = broker.data_folder();
    let busy = leveret("repair", &data, &[]);
    assert_eq!(busy.status.code(), Some(3));
    assert!(shown(&busy).contains("in use by process"), "{}", shown(&busy));
    broker.terminate();
    let before = contents(&data);
    let sound = leveret("repair", &data, &["--dry-run"]);
    assert_eq!(sound.status.code(), Some(0), "{}", shown(&sound));
    assert_eq!(shown(&sound), "nothing is damaged; 5 messages are there, and nothing was changed\n");
    assert!(contents(&data) == before);
    let nowhere = leveret("repair", Path::new("/nonexistent"), &[]);
    assert_eq!(nowhere.status.code(), Some(3), "{}", shown(&nowhere));
}

#[test]
fn a_folder_in_the_place_of_a_file_is_as_a_file_that_is_gone() {
    const MESSAGES: u32 = 3_000;
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let data = broker.data_folder();
    // Until some partition has saved its state twice.
    let mut queues = Vec::new();
    let states = |partition: u32| [0, 1].map(|copy| format!("checkpoints/{partition:08x}.{copy}"));
    let is_saved_twice = |partition: &u32| states(*partition).iter().all(|name| data.join(name).is_file());
    let partition = loop {
        if let Some(partition) = [1, 2].into_iter().find(is_saved_twice) {
            break partition;
        }
        queues.push(format!("queue.{}", queues.len()));
        publish(&broker, &queues[queues.len() - 1], MESSAGES);
    };
    broker.terminate();
    let replace = |name: &str| {
        fs::remove_file(data.join(name)).unwrap();
        fs::create_dir(data.join(name)).unwrap();
        fs::write(data.join(name).join("inside"), "x").unwrap();
    };
    let [first, second] = states(partition);
    replace("wal/durable");
    replace(&first);
    broker.start();
    let is_aside = || data.join(format!("{first}.aside-1/inside")).is_file();
    // The next state that is saved needs its name.
    while !is_aside() {
        queues.push(format!("queue.{}", queues.len()));
        publish(&broker, &queues[queues.len() - 1], MESSAGES);
    }
    broker.terminate();
    assert!(data.join("wal/durable").is_file() && data.join("wal/durable.aside-1/inside").is_file());
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    for queue in &queues {
        assert_eq!(client.counts(channel, queue).unwrap().0, MESSAGES, "{queue}");
    }
    client.close();
    broker.terminate();
    [first, second].iter().for_each(|name| replace(name));
    broker.start();
    assert!(broker.log().contains("QUARANTINED: cannot open checkpoints/"), "{}", broker.log());
    broker.kill();
    let report = repaired(&mut broker);
    assert!(report.contains("its state"), "{report}");
}
