//! A node that is to leave its cluster, on one that is alone; three nodes are in `tests/whole/leave.rs`.

use clients::Broker;
use clients::api::reason;
use clients::broker::is_foreign;

#[test]
fn the_only_node_of_a_cluster_does_not_leave_it_and_only_an_administrator_asks() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let at = format!("/api/leveret/nodes/{node}/leave");
    http.put("/api/users/mon", r#"{"password":"pw","tags":"monitoring"}"#).with(201);
    let theirs = http.as_user("mon", "pw");
    assert_eq!([theirs.get(&at).status, theirs.post(&at, "").status], [401, 401]);
    assert_eq!(http.get("/api/leveret/nodes/none@nowhere/leave").status, 404);
    // Before anything else: whether it serves clients.
    let serves = reason(&http.post(&at, ""), 400);
    assert!(serves.contains("serves clients: drain it first"), "{serves}");
    http.put(&format!("/api/nodes/{node}/maintenance"), "").with(204);
    for answer in [http.get(&at), http.post(&at, "")] {
        let alone = reason(&answer, 400);
        assert!(alone.contains("is the only node of its cluster"), "{alone}");
    }
    http.delete(&format!("/api/nodes/{node}/maintenance")).with(204);
    assert_eq!(http.get("/api/nodes").with(200).as_array().unwrap().len(), 1);
}
