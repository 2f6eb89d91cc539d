//! `leveret ctl top`, and what completions and manual pages say of the verbs.

use crate::begin;
use clients::Publish;

#[test]
fn top_shows_backlogs_and_rates_between_two_looks() {
    let Some((broker, http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    http.put("/api/queues/%2F/busy", r#"{"durable":true}"#).with(201);
    http.put("/api/queues/%2F/idle", r#"{"durable":true}"#).with(201);
    let words = ["ctl", "top", "--count", "2", "--interval", "2"];
    let top = clients::tools::command(tools.folder(), "leveret", &words).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for _ in 0..100 {
        client.publish(channel, &Publish { key: "busy", body: b"x", ..Publish::default() });
    }
    client.confirmed(channel, 1, 100);
    let output = top.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("rabbit@box  connections "), "{text}");
    let (first, second) = text.trim_end().split_once("\n\n").unwrap();
    assert!(first.contains("in -") && first.contains("/\tbusy\tclassic\trunning\t0\t0\t0\t"), "{first}");
    // The longest first, as fast as it grew: a hundred in two seconds, on a machine that may be busy.
    let mut rows = second.lines().skip_while(|line| !line.starts_with("vhost\t")).skip(1);
    let busy: Vec<&str> = rows.next().unwrap().split('\t').collect();
    assert_eq!(busy[..5], ["/", "busy", "classic", "running", "100"]);
    let growth: f64 = busy[7].parse().unwrap();
    assert!((5.0..=50.0).contains(&growth), "{growth}");
    assert!(!second.contains("in -") && !second.contains("in 0/s"), "{second}");
    tools.run("leveret", "ctl top --nosuch").bad(64);
}

#[test]
fn all_tools_are_in_one_under_our_own_name() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    tools.run("leveret", "ctl -q list_users").good();
    tools.run("leveret", "ctl -q check_running").good();
    tools.run("leveret", "ctl quorum_status nosuch").bad(69);
    tools.run("leveret", "ctl plugins list").good();
    let port = http.addr().port();
    tools.run("leveret", &format!("ctl admin -P {port} list queues")).good();
    assert!(tools.run("leveret", "ctl list_quues").bad(64).contains("Did you mean 'list_queues'?"));
    assert!(tools.run("leveret", "ctl help").good().contains("leveret ctl [--node <node>]"));
}

#[test]
fn completions_and_manual_pages_know_every_verb() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    for shell in ["bash", "zsh", "fish"] {
        let script = tools.run("leveret", &format!("completions {shell}")).good();
        assert!(script.contains("list_queues"), "{shell}");
        // fish is told of words by another way than the generator goes.
        assert!(shell == "fish" || script.contains("messages_ready"), "{shell}");
    }
    let folder = broker.data_folder().join("../man");
    std::fs::create_dir(&folder).unwrap();
    tools.words("leveret", &["manual", &folder.display().to_string()]).good();
    for page in ["leveret.1", "leveret-server.1", "leveret-ctl.1", "leveret-ctl-list_queues.1"] {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    tools.run("leveret", "manual /dev/null/folder").bad(1);
}
