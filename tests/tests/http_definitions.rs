//! Definitions over HTTP.

use clients::Broker;

#[test]
fn who_imports_the_first_definitions_over_http_stays_who_they_are() {
    // At its start RabbitMQ makes no guest where a file is to be imported; over HTTP somebody has logged
    // in already.
    if clients::broker::is_foreign() {
        return;
    }
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let queues = r#"{"queues":[{"name":"q","vhost":"/","durable":true,"auto_delete":false,"arguments":{}}]}"#;
    http.post("/api/definitions", queues).with(204);
    assert_eq!(http.get("/api/queues/%2f/q").with(200)["name"], "q");
}
