//! Messages moved from one queue to another over HTTP.

use clients::Broker;
use clients::broker::is_foreign;

#[test]
fn moved_messages_keep_their_order_and_properties_and_are_in_one_queue() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    for queue in ["from", "to"] {
        http.put(&format!("/api/queues/%2F/{queue}"), r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#)
            .with(201);
    }
    for number in 0..12 {
        let body = format!(
            r#"{{"routing_key":"from","payload":"{number}","payload_encoding":"string","properties":{{"delivery_mode":2,"message_id":"m{number}","headers":{{"n":{number}}}}}}}"#
        );
        assert_eq!(http.post("/api/exchanges/%2F/amq.default/publish", &body).with(200)["routed"], true);
    }
    let path = "/api/leveret/queues/%2F/from/move";
    assert_eq!(http.post(path, r#"{"to":"to","count":5}"#).with(200)["moved"], 5);
    let rest = http.post(path, r#"{"to":"to","count":100}"#).with(200);
    assert_eq!((&rest["moved"], &rest["empty"]), (&7.into(), &true.into()));
    let get = r#"{"count":100,"ackmode":"ack_requeue_false","encoding":"auto"}"#;
    let got = http.post("/api/queues/%2F/to/get", get).with(200);
    let got = got.as_array().unwrap();
    assert_eq!(got.len(), 12);
    for (number, message) in got.iter().enumerate() {
        assert_eq!(message["payload"], number.to_string());
        assert_eq!(message["properties"]["message_id"], format!("m{number}"));
        assert_eq!(message["properties"]["headers"]["n"], number);
    }
    assert_eq!(http.post("/api/queues/%2F/from/get", get).with(200).as_array().unwrap().len(), 0);
    for (body, status) in [
        (r#"{"to":"nowhere","count":1}"#, 400),
        (r#"{"to":"from","count":1}"#, 400),
        (r#"{"to":"to"}"#, 400),
        (r#"{"to":"to","cuont":1}"#, 400),
        (r#"{"to":"to","count":10001}"#, 400),
    ] {
        assert_eq!(http.post(path, body).status, status, "{body}");
    }
    assert_eq!(http.post("/api/leveret/queues/%2F/none/move", r#"{"to":"to","count":1}"#).status, 404);
}

#[test]
fn a_queue_that_refuses_a_moved_message_leaves_it_where_it_was() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/from", r#"{"durable":true}"#).with(201);
    let full = r#"{"durable":true,"arguments":{"x-max-length":1,"x-overflow":"reject-publish"}}"#;
    http.put("/api/queues/%2F/full", full).with(201);
    let publish = r#"{"routing_key":"from","payload":"x","payload_encoding":"string","properties":{}}"#;
    for _ in 0..3 {
        http.post("/api/exchanges/%2F/amq.default/publish", publish).with(200);
    }
    assert_eq!(http.post("/api/leveret/queues/%2F/from/move", r#"{"to":"full","count":3}"#).status, 400);
    let get = r#"{"count":100,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
    let in_queue =
        |queue: &str| http.post(&format!("/api/queues/%2F/{queue}/get"), get).with(200).as_array().unwrap().len();
    assert_eq!(in_queue("from") + in_queue("full"), 3, "none is lost and none is in both");
}
