//! A node that is not there, comes, and goes, at any moment between two steps.

use crate::begin;
use clients::broker::free_port;
use clients::tools::{Tools, command};
use clients::{Broker, End};
use std::time::{Duration, Instant};

#[test]
fn stop_comes_back_when_the_process_is_gone() {
    let Some((mut broker, _http, tools)) = begin(&[]) else { return };
    let pid = broker.pid().unwrap();
    let told = tools.ctl("stop").good();
    assert!(told.starts_with("Stopping and halting node "), "{told}");
    // It has ended already; what is left of it is for its parent to collect.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(state.contains(") Z "), "{state}");
    assert_eq!(broker.wait_for_end().code(), Some(0));
    assert!(!broker.data_folder().join("operator.json").exists());
    let gone = tools.ctl("list_queues").bad(69);
    assert!(gone.contains("there is no file"), "{gone}");
    tools.ctl("stop").bad(69);
    tools.ctl("shutdown").bad(69);
}

#[test]
fn two_that_stop_a_node_stop_it_once_and_in_order() {
    let Some((mut broker, _http, tools)) = begin(&[]) else { return };
    let both = [0, 1].map(|_| command(tools.folder(), "rabbitmqctl", &["shutdown"]).spawn().unwrap());
    let codes = both.map(|child| child.wait_with_output().unwrap().status.code());
    assert!(codes.contains(&Some(0)), "{codes:?}");
    // A second SIGTERM would have ended it at once, with another code.
    assert_eq!(broker.wait_for_end().code(), Some(0));
}

#[test]
fn the_file_of_a_dead_server_is_told_from_one_that_answers() {
    let Some((mut broker, http, tools)) = begin(&[]) else { return };
    broker.kill();
    assert!(broker.data_folder().join("operator.json").exists());
    let gone = tools.ctl("list_queues");
    assert_eq!(gone.out, "", "nothing is said before it is known that nobody answers");
    let gone = gone.bad(69);
    assert!(gone.contains("has ended without removing it"), "{gone}");
    tools.ctl("stop").bad(69);
    // Another server at the same address: the token is not its own.
    let address = http.addr().to_string();
    let other = Broker::own(&["--management", &address]);
    let left = broker.data_folder().join("operator.json");
    let refused = tools.ctl("list_queues").bad(69);
    assert!(refused.contains("is of a server that has ended, and another one answers"), "{refused}");
    assert!(left.exists());
    drop(other);
    // Over a file that was left, a start writes its own.
    broker.start();
    tools.ctl("list_queues").good();
}

#[test]
fn a_restart_makes_another_token() {
    let Some((mut broker, _http, tools)) = begin(&[]) else { return };
    let read = |broker: &Broker| std::fs::read_to_string(broker.data_folder().join("operator.json")).unwrap();
    let before = read(&broker);
    broker.restart(End::Killed);
    assert_ne!(read(&broker), before);
    tools.ctl("list_queues").good();
}

#[test]
fn waiting_ends_when_the_node_answers_and_fails_when_it_does_not() {
    let Some((mut broker, _http, tools)) = begin(&[]) else { return };
    assert_eq!(tools.ctl("await_startup").good(), "");
    tools.ctl("await_online_nodes 1").good();
    let late = tools.ctl("await_online_nodes 2 --timeout 1").bad(70);
    assert!(late.contains("Not enough nodes joined"), "{late}");
    for count in ["abc", "0"] {
        tools.ctl(&format!("await_online_nodes {count}")).bad(65);
    }
    broker.terminate();
    let begin = Instant::now();
    tools.ctl("await_startup --timeout 1").bad(75);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let waiting = command(tools.folder(), "rabbitmqctl", &["await_startup", "--timeout", "30"]).spawn().unwrap();
    broker.start();
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(0));
}

#[test]
fn a_node_that_hangs_is_waited_for_no_longer_than_was_said() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    broker.signal(rustix::process::Signal::STOP);
    for verb in ["list_queues", "ping", "await_startup", "stop"] {
        let begin = Instant::now();
        let late = tools.ctl(&format!("{verb} --timeout 1")).bad(75);
        assert!(late.contains("timed out. Timeout value used: 1000"), "{verb}: {late}");
        assert!(begin.elapsed() < Duration::from_secs(4), "{verb}: {:?}", begin.elapsed());
    }
    broker.signal(rustix::process::Signal::CONT);
    tools.ctl("ping").good();
}

#[test]
fn wait_is_for_a_process_and_ends_with_it() {
    let Some((mut broker, _http, tools)) = begin(&[]) else { return };
    let pid = broker.pid().unwrap().to_string();
    tools.ctl(&format!("wait --pid {pid}")).good();
    let file = broker.data_folder().join("../pid");
    std::fs::write(&file, format!("{pid}\n")).unwrap();
    let told = tools.words("rabbitmqctl", &["wait", &file.display().to_string()]).good();
    assert!(told.contains(&format!("pid is {pid}\n")), "{told}");
    std::fs::write(&file, "garbage").unwrap();
    tools.words("rabbitmqctl", &["wait", &file.display().to_string()]).bad(69);
    let node = std::fs::read_to_string(broker.data_folder().join("operator.json")).unwrap();
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    let late = tools.ctl("wait /nonexistent --timeout 1").bad(75);
    assert!(late.contains(&format!("operation wait on node {} timed out", node["node"].as_str().unwrap())), "{late}");
    assert!(tools.ctl("wait").bad(64).contains("No pid or pidfile specified"));
    broker.terminate();
    let gone = tools.ctl(&format!("wait --pid {pid}")).bad(69);
    assert!(gone.contains("process_not_running"), "{gone}");
    let late = tools.ctl("wait /nonexistent --timeout 1").bad(75);
    assert!(late.contains(&format!("operation wait on the node with the data folder {} ", tools.folder())), "{late}");
}

#[test]
fn a_node_without_an_api_says_how_to_get_one() {
    if clients::broker::is_foreign() {
        return;
    }
    let broker = Broker::own(&[]);
    let told = Tools::of(&broker).ctl("list_queues").bad(69);
    assert!(told.contains("it serves no management API: start it with --management"), "{told}");
}

#[test]
fn a_node_is_meant_by_name() {
    let Some((_broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    for name in ["rabbit@box", "rabbit"] {
        tools.ctl(&format!("-n {name} list_queues")).good();
    }
    let other = tools.ctl("-n rabbit@other list_queues");
    assert_eq!(other.out, "");
    let said = other.bad(69);
    assert!(said.contains("is of rabbit@box") && !said.contains("RABBITMQ_NODENAME"), "{said}");
    // A variable of a RabbitMQ that was here names one too.
    let mut by_variable = clients::tools::command(tools.folder(), "rabbitmqctl", &["list_queues"]);
    let said = by_variable.env("RABBITMQ_NODENAME", "rabbit@other").output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("RABBITMQ_NODENAME asks for rabbit@other: unset it"), "{said}");
    let other = tools.ctl("-n rabbit@other ping").bad(69);
    assert!(other.contains("Failed to connect and authenticate to rabbit@other"), "{other}");
}

#[test]
fn an_api_elsewhere_is_asked_in_the_name_of_a_user() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    let url = format!("--url=http://{}", http.addr());
    tools.ctl(&format!("{url} --username guest --password guest -q list_users")).good();
    let wrong = tools.ctl(&format!("{url} --username guest --password wrong list_users")).bad(69);
    assert!(wrong.contains("the name or the password is wrong"), "{wrong}");
    tools.ctl(&format!("{url} list_users")).bad(64);
    tools.ctl("--url=ftp://localhost --username a --password b list_users").bad(64);
    for scheme in ["http", "https"] {
        let nobody = format!("--url={scheme}://{} --username a --password b list_users", free_port());
        tools.ctl(&nobody).bad(69);
    }
}
