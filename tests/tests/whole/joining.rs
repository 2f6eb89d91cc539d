//! A copy that is new counts for nothing before it has a vote, and every list says so.

use crate::nodes::Nodes;
use clients::Tools;
use clients::broker::is_foreign;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn a_copy_without_a_vote_is_a_member_and_joins_and_is_not_online() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    // A partition of its own: nobody else's copies come along.
    let arguments =
        json!({ "x-queue-type": "quorum", "x-dedicated-partition": true, "x-quorum-initial-group-size": 1 });
    let declare = json!({ "durable": true, "arguments": arguments }).to_string();
    nodes.http[0].put("/api/queues/%2f/kept", &declare).with(201);
    let queue = |node: usize| nodes.http[node].get("/api/queues/%2f/kept").with(200);
    let first = nodes.until("it is led", || {
        let queue = queue(0);
        let members = queue["members"].as_array()?;
        (queue["online"] == queue["members"] && members.len() == 1).then(|| members[0].clone())
    });
    assert_eq!(queue(0)["leveret_joining"], json!(null));

    let newcomer = nodes.names.iter().find(|name| first != name.as_str()).unwrap();
    let member = json!({ "node": newcomer }).to_string();
    nodes.http[0].send("POST", "/api/queues/quorum/%2f/kept/replicas/add", &[], &member).with(200);
    // A group takes nobody in before its leader has looked at who is wanted, and gives no vote in the same moment. The newcomer itself
    // may not have heard yet who leads, and is told by the leader all the same: who is asked after it says whether it was right.
    let at = nodes.names.iter().position(|name| name == newcomer).unwrap();
    let joins = |queue: &Value| {
        let is_member = queue["members"].as_array().map(Vec::len) == Some(2);
        is_member && queue["online"] == json!([first]) && queue["leveret_joining"] == json!([newcomer])
    };
    let is_online = |queue: &Value| queue["online"].as_array().unwrap().contains(&json!(newcomer));
    let (mut joined, mut is_told, due) = (false, false, Instant::now() + Duration::from_secs(20));
    while Instant::now() < due {
        let own = queue(at);
        let others: Vec<Value> = (0..3).filter(|node| *node != at).map(queue).collect();
        // Of those that were asked before and after it.
        assert!(!(joined && is_online(&own) && others.iter().all(joins)), "{own} {others:?}");
        joined = others.iter().all(joins);
        is_told |= joins(&own) && joined;
        if is_told && is_online(&own) {
            break;
        }
    }
    assert!(is_told, "it was a member that joined, and served nobody, on every node");
    let listed = Tools::of(&nodes.brokers[0]).run("rabbitmqctl", "-q list_queues name online leveret_joining").good();
    nodes.until("it has a vote", || {
        let queue = queue(0);
        (queue["online"] == queue["members"] && queue["leveret_joining"].is_null()).then_some(())
    });
    assert!(listed.contains("leveret_joining"), "{listed}");
}
