//! rabbitmq-queues.

use crate::begin;

#[test]
fn members_are_told_and_the_only_one_stays() {
    let Some((_broker, http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    http.put("/api/queues/%2F/qq", r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#).with(201);
    http.put("/api/queues/%2F/cq", r#"{"durable":true}"#).with(201);
    let queues = |line: &str| tools.run("rabbitmq-queues", line);
    let status = queues("quorum_status qq").good();
    assert!(status.starts_with("Status of quorum queue qq on node rabbit@box ...\n┌"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&queues("quorum_status qq --formatter json").good()).unwrap();
    assert_eq!((&json[0]["Node Name"], &json[0]["Raft State"]), (&"rabbit@box".into(), &"leader".into()));
    assert_eq!(queues("quorum_status cq").bad(69), "Error:\nCannot get quorum status of a classic queue\n");
    assert_eq!(queues("add_member cq rabbit@box").bad(69), "Error:\nCannot add members to a classic queue\n");
    assert_eq!(queues("delete_member cq rabbit@box").bad(69), "Error:\nCannot delete members of a classic queue\n");
    assert!(queues("quorum_status nosuch").bad(69).starts_with("Error:\nnot_found"));
    assert_eq!(queues("add_member qq rabbit@box").good(), "Adding a replica for queue qq on node rabbit@box...\n");
    assert_eq!(queues("add_member qq rabbit@other").bad(69), "Error:\nnode_not_running\n");
    assert!(queues("delete_member qq rabbit@box").bad(69).contains("the last node cannot be removed"));
    let shrunk = queues("-q shrink rabbit@box").good();
    assert_eq!(shrunk, "vhost\tname\tsize\tresult\n/\tqq\t1\terror: the last node cannot be removed\n");
    queues("grow rabbit@box all").good();
    assert!(queues("grow rabbit@box some").bad(64).contains("strategy 'some' is not recognised."));
    assert!(queues("rebalance all").good().contains("│ rabbit@box │ 1 "));
    assert!(queues("rebalance some").bad(69).contains("Try one of all, classic, quorum."));
    queues("rebalance all --vhost-pattern x").bad(64);
}
