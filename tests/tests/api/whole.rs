//! The cluster at a glance, on one node; three of them are in `tests/whole/`.

use clients::api::until;
use clients::broker::is_foreign;
use clients::{Broker, QueueDeclare};

#[test]
fn the_cluster_at_a_glance_names_nodes_and_partitions_to_those_who_monitor() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-queue-type", "quorum".into())];
    client.declare(channel, &QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "q", b"m");
    client.confirmed(channel, 1, 1);
    let node = http.get("/api/overview").with(200)["node"].clone();
    let told = until("a leader of every partition", || {
        let told = http.get("/api/leveret/cluster").with(200);
        told["partitions"].as_array().unwrap().iter().all(|one| one["leader"] == node).then_some(told)
    });
    assert_eq!(told["nodes"].as_array().unwrap().len(), 1, "{told}");
    let partitions = told["partitions"].as_array().unwrap();
    assert!(partitions.iter().any(|one| one["kind"] == "topology") && partitions.len() > 1, "{told}");
    for one in partitions {
        assert_eq!(one["members"].as_array().unwrap().len(), 1, "{one}");
        assert!(one["term"].as_u64().unwrap() > 0, "{one}");
    }
    for (name, tags, status) in [("mon", "monitoring", 200), ("pol", "policymaker", 401), ("man", "management", 401)] {
        http.put(&format!("/api/users/{name}"), &format!(r#"{{"password":"pw","tags":"{tags}"}}"#)).with(201);
        http.as_user(name, "pw").get("/api/leveret/cluster").with(status);
    }
}
