//! The broker as a process: signals, its folder, its port, its descriptors.
//!
//! Invariant: whatever keeps it from running is said in one line that names the cause, and the exit
//! code is not 0.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clients::broker::binary;
use clients::client::PATIENCE;
use clients::{Broker, Event, QueueDeclare};
use rustix::process::Signal;

/// Runs a second server to its end.
fn serve(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("server").args(arguments).stdin(Stdio::null());
    command.env_clear();
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(0), "a server that can not serve says so: {output:?}");
    output
}

/// The last line that a process wrote.
fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn second_server_on_one_folder_is_refused() {
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    let folder = broker.data_folder();
    let line = last_line(&serve(&["--data-dir", folder.to_str().unwrap(), "--amqp", "127.0.0.1:0"]));
    assert!(line.contains(folder.to_str().unwrap()), "the line names the folder: {line}");
    broker.connect().close();
}

#[test]
fn a_second_server_with_the_settings_of_the_first_hears_which_process_has_the_folder() {
    let management = clients::broker::free_port().to_string();
    let nodes = clients::broker::free_port().to_string();
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "a secret of one node\n").unwrap();
    let cluster = ["--cluster-address", &nodes, "--cluster-secret-file", secret.path().to_str().unwrap()];
    let Some(broker) = Broker::own_or_skip(&[&cluster[..], &["--management", &management]].concat()) else { return };
    let (folder, amqp) = (broker.data_folder(), broker.addr().to_string());
    let same = ["--data-dir", folder.to_str().unwrap(), "--amqp", &amqp];
    let in_use = format!("is in use by process {};", broker.pid().unwrap());
    for taken in [&["--management", &management][..], &[&cluster[..], &["--management", "none"]].concat()] {
        let line = last_line(&serve(&[&same[..], taken].concat()));
        assert!(line.contains(&in_use), "{taken:?}: {line}");
    }
    broker.connect().close();
}

#[test]
fn port_in_use_is_named() {
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let addr = broker.addr().to_string();
    let line = last_line(&serve(&["--data-dir", folder.path().join("d").to_str().unwrap(), "--amqp", &addr]));
    assert!(line.contains(&addr) && line.to_lowercase().contains("in use"), "{line}");
}

#[test]
fn folder_that_is_a_file_is_refused() {
    if clients::broker::is_foreign() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let line = last_line(&serve(&["--data-dir", path, "--amqp", "127.0.0.1:0"]));
    assert!(line.contains(path), "{line}");
}

#[test]
fn folder_of_something_else_is_refused_and_left_alone() {
    if clients::broker::is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("letter.txt"), "dear diary").unwrap();
    let line = last_line(&serve(&["--data-dir", folder.path().to_str().unwrap(), "--amqp", "127.0.0.1:0"]));
    assert!(line.contains(folder.path().to_str().unwrap()), "{line}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["letter.txt"], "nothing was written beside it");
}

#[test]
fn definitions_that_are_wrong_or_not_there_end_the_start_for_good() {
    if clients::broker::is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("definitions.json"));
    let start = || {
        let arguments = ["--data-dir", data.to_str().unwrap(), "--amqp", "127.0.0.1:0", "--management", "none"];
        serve(&[&arguments[..], &["--definitions", file.to_str().unwrap()]].concat())
    };
    let absent = start();
    assert_eq!(absent.status.code(), Some(2), "a service manager would start it for ever: {absent:?}");
    assert!(last_line(&absent).contains("cannot read it"), "{absent:?}");

    std::fs::write(&file, "{\n \"users\": [\n  {\"name\": \"app\", \"pasword_hash\": \"\"}]}\n").unwrap();
    let wrong = start();
    assert_eq!(wrong.status.code(), Some(2), "a service manager would start it for ever: {wrong:?}");
    let line = last_line(&wrong);
    assert!(line.contains("line 3: users[0].pasword_hash"), "{line}");
}

#[test]
fn files_for_tls_that_are_wrong_or_not_there_end_the_start_for_good_whether_they_are_used_or_not() {
    if clients::broker::is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("own.pem"), certified.cert.pem()).unwrap();
    std::fs::write(path("own.key"), certified.signing_key.serialize_pem()).unwrap();
    let (data, certificate, key, gone) = (path("data"), path("own.pem"), path("own.key"), path("gone.pem"));
    let used = ["--amqps", "127.0.0.1:0"];
    let of_a_cluster = ["--cluster-tls-ca", &certificate, "--cluster-tls-key", &key];
    for (flags, words) in [
        (&[&used[..], &["--tls-certificate", &gone, "--tls-key", &key]].concat()[..], "tls_certificate"),
        (&[&used[..], &["--tls-certificate", &certificate, "--tls-key", &gone]].concat(), "tls_key"),
        (&["--tls-certificate", &gone], "tls_certificate"),
        (&["--tls-ca", &gone], "tls_ca"),
        (&["--management-tls-key", &gone], "management_tls_key"),
        (&[&of_a_cluster[..], &["--cluster-tls-certificate", &gone]].concat(), "cluster_tls_certificate"),
    ] {
        let arguments = ["--data-dir", &data, "--amqp", "127.0.0.1:0", "--management", "none"];
        let ended = serve(&[&arguments[..], flags].concat());
        assert_eq!(ended.status.code(), Some(2), "a service manager would start it for ever: {ended:?}");
        let told = format!("TLS: {words} {gone}: it cannot be read: ");
        assert!(last_line(&ended).contains(&told), "{told:?}: {ended:?}");
        assert!(!folder.path().join("data").exists(), "nothing was begun");
    }
}

#[test]
fn sigterm_tells_clients_and_ends_with_zero() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    for _ in 0..1000 {
        client.put(channel, "q", &[1; 100]);
    }
    broker.signal(Signal::TERM);
    let mut confirmed = 0;
    let closed = loop {
        match client.event(channel) {
            Event::Confirm { tag, nack: false, multiple } => confirmed = if multiple { tag } else { confirmed + 1 },
            Event::Closed(closed) => break closed,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(closed.code, 320, "CONNECTION_FORCED: {closed:?}");
    assert_eq!(broker.wait_for_end().code(), Some(0), "{}", broker.log());
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    let (ready, _) = client.counts(channel, "q").unwrap();
    assert!(u64::from(ready) >= confirmed, "{confirmed} were confirmed, {ready} are there");
}

#[test]
fn sigint_is_taken_like_sigterm() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    broker.signal(Signal::INT);
    assert_eq!(broker.wait_for_end().code(), Some(0), "{}", broker.log());
}

#[test]
fn second_sigterm_ends_it_at_once() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    // A client that does not answer the close keeps a drain waiting.
    let stuck = broker.connect();
    broker.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(30));
    let since = Instant::now();
    if broker.pid().is_some() {
        broker.signal(Signal::TERM);
    }
    broker.wait_for_end();
    assert!(since.elapsed() < Duration::from_secs(2), "it took {:?}", since.elapsed());
    drop(stuck);
}

#[test]
fn clients_that_never_answer_do_not_hold_up_the_end() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    let stuck: Vec<_> = (0..20).map(|_| broker.connect()).collect();
    let half = std::net::TcpStream::connect(broker.addr()).unwrap();
    (&half).write_all(b"AMQP").unwrap();
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
    drop(stuck);
}

#[test]
fn too_few_descriptors_cost_new_connections_and_nothing_else() {
    let Some(mut broker) = Broker::own_or_skip(&["--connections-max", "1000"]) else { return };
    // As many as fit, then more: the limit of the process is lowered while it runs.
    let pid = rustix::process::Pid::from_raw(broker.pid().unwrap() as i32);
    let mut calm = broker.connect();
    let channel = calm.channel();
    calm.declare(channel, &QueueDeclare { name: "q", durable: true, ..Default::default() }).unwrap();
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
    let mut open = Vec::new();
    for _ in 0..100 {
        open.extend(std::net::TcpStream::connect(broker.addr()));
    }
    calm.confirm_select(channel).unwrap();
    calm.put(channel, "q", b"served");
    calm.confirmed(channel, 1, 1);
    std::thread::sleep(clients::client::SILENCE);
    let log = broker.log().to_lowercase();
    assert!(log.contains("descriptor") || log.contains("open files"), "the log says what ran out:\n{log}");
    let lines = log.lines().count();
    assert!(lines < 200, "and does not say it {lines} times");
    drop(open);
    // Once they are gone, new ones get in.
    let due = Instant::now() + PATIENCE;
    while clients::Client::login(broker.addr(), &Default::default()).is_err() {
        assert!(Instant::now() < due, "it takes connections again when there is room");
    }
    assert_eq!(broker.terminate().code(), Some(0));
}

#[test]
fn idle_broker_writes_nothing() {
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "q", b"x");
    client.confirmed(channel, 1, 1);
    // What settles down after traffic (the note of the log's durable end, a checkpoint that frees a
    // file) has a few seconds.
    std::thread::sleep(Duration::from_secs(5));
    let written = |pid: u32| {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let line = io.lines().find(|line| line.starts_with("write_bytes")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let before = written(broker.pid().unwrap());
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(written(broker.pid().unwrap()) - before, 0, "bytes written by an idle broker");
}

#[test]
fn a_taken_management_address_is_an_error_only_where_it_was_asked_for() {
    if clients::broker::is_foreign() {
        return;
    }
    // Taken by this test or by whoever has it already.
    let _held = std::net::TcpListener::bind("127.0.0.1:15672");
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("d");
    let own = ["--data-dir", data.to_str().unwrap(), "--amqp", "127.0.0.1:0"];
    let asked = [&own[..], &["--management", "127.0.0.1:15672"]].concat();
    let line = last_line(&serve(&asked));
    assert!(line.contains("127.0.0.1:15672") && line.to_lowercase().contains("in use"), "{line}");
    let mut command = Command::new(binary());
    command.arg("server").args(own).env_clear().stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(server.stderr.take().unwrap()));
    let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.contains("ready: AMQP")).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    let told = |line: &&String| line.contains("WARN") && line.contains("the management API and metrics are not served");
    assert!(seen.iter().any(|line| told(&line)), "{seen:#?}");
}
