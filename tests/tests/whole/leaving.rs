//! A member that was taken from its group is shown to whoever looks for as long as its vote counts.

use crate::nodes::Nodes;
use clients::Tools;
use clients::api::reason;
use clients::broker::is_foreign;
use rustix::process::Signal;
use serde_json::{Value, json};

const STATUS: &str = "/api/queues/quorum/%2f/kept/status";

/// The rows of a list whose field has this value.
fn with<'a>(list: &'a Value, field: &str, value: &str) -> Vec<&'a Value> {
    list.as_array().unwrap().iter().filter(|row| row[field] == value).collect()
}

#[test]
fn a_member_that_was_taken_is_told_until_it_has_left_and_that_its_vote_is_needed() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    // A partition of its own: nobody else's copies come along.
    let arguments =
        json!({ "x-queue-type": "quorum", "x-dedicated-partition": true, "x-quorum-initial-group-size": 2 });
    let declare = json!({ "durable": true, "arguments": arguments }).to_string();
    nodes.http[0].put("/api/queues/%2f/kept", &declare).with(201);
    let (leader, taken, partition) = nodes.until("one member follows the other", || {
        let status = nodes.http[0].get(STATUS).with(200);
        let at = |row: &Value| nodes.names.iter().position(|name| row["Node Name"] == name.as_str());
        let leader = with(&status, "Raft State", "leader").first().and_then(|row| at(row))?;
        let taken = with(&status, "Raft State", "follower").first().and_then(|row| at(row))?;
        (with(&status, "Membership", "voter").len() == 2)
            .then(|| (leader, taken, status[0]["leveret_partition"].clone()))
    });
    let (http, name) = (nodes.http[leader].clone(), nodes.names[taken].clone());
    let of_partition = || {
        let cluster = http.get("/api/leveret/cluster").with(200);
        let partitions = cluster["partitions"].as_array().unwrap().clone();
        partitions.into_iter().find(|row| row["partition"] == partition).unwrap()
    };
    assert_eq!(of_partition()["leaving"], json!([]));

    // Of two members both have to decide that one of them goes, and that one stands still.
    nodes.brokers[taken].signal(Signal::STOP);
    let member = json!({ "node": name }).to_string();
    http.send("DELETE", "/api/queues/quorum/%2f/kept/replicas/delete", &[], &member).with(200);
    nodes.until("its vote is needed", || {
        let status = http.get(STATUS).with(200);
        let leaving = with(&status, "Membership", "leaving");
        let told = leaving.first().is_some_and(|row| {
            (&row["Node Name"], &row["Raft State"], &row["leveret_vote_needed"])
                == (&json!(name), &json!("nodedown"), &json!(true))
        });
        told.then_some(())
    });
    // Who asks again is told how it stands, and by the command as well.
    let again = reason(&http.send("DELETE", "/api/queues/quorum/%2f/kept/replicas/delete", &[], &member), 400);
    let told = format!("the member on {name} is on its way out already");
    assert!(again.starts_with(&told), "{again}");
    let refused =
        Tools::of(&nodes.brokers[leader]).run("rabbitmq-queues", &format!("delete_member kept {name}")).bad(69);
    assert!(refused.contains(&told), "{refused}");
    let expected = json!([{ "node": name, "state": "unreachable", "vote_needed": true }]);
    assert_eq!(of_partition()["leaving"], expected);
    let told = http.get("/api/leveret/queues/%2f/kept").with(200);
    let members = told["members"].as_array().unwrap();
    let leavers: Vec<&Value> = members.iter().filter(|member| member["leaving"] == true).collect();
    assert_eq!(leavers.iter().map(|member| &member["node"]).collect::<Vec<_>>(), [&json!(name)]);
    let shown = Tools::of(&nodes.brokers[leader]).run("leveret", "cluster status").good();
    assert!(shown.contains(&format!("{name} leaving (unreachable, its vote is needed)")), "{shown}");
    let shown = Tools::of(&nodes.brokers[leader]).run("rabbitmq-queues", "quorum_status kept").good();
    assert!(shown.contains("leaving"), "{shown}");
    nodes.until("nobody leads it without that vote", || {
        let queue = http.get("/api/queues/%2f/kept").with(200);
        (queue["state"] == "down").then_some(())
    });

    // It is back, and agrees.
    nodes.brokers[taken].signal(Signal::CONT);
    nodes.until("it has left", || {
        let status = http.get(STATUS).with(200);
        (status.as_array().unwrap().len() == 1 && of_partition()["leaving"] == json!([])).then_some(())
    });
}
