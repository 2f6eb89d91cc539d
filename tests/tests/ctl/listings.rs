//! Lists with columns, and what is done to queues and connections.

use crate::begin;
use clients::{Publish, QueueDeclare, Value};

#[test]
fn queues_are_listed_by_columns_and_forms() {
    let Some((broker, http, tools)) = begin(&[]) else { return };
    let limited = r#"{"durable":true,"arguments":{"x-max-length":5,"x-queue-type":"quorum"}}"#;
    http.put("/api/queues/%2F/q1", limited).with(201);
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    client.publish(channel, &Publish { key: "q1", body: b"hello", ..Publish::default() });
    client.confirmed(channel, 1, 1);
    let listed = tools.ctl("list_queues").good();
    assert_eq!(listed, "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\nname\tmessages\nq1\t1\n");
    let arguments = r#"[{"x-max-length",5},{"x-queue-type","quorum"}]"#;
    let listed = tools.ctl("list_queues -q name durable arguments state type").good();
    assert_eq!(listed, format!("name\tdurable\targuments\tstate\ttype\nq1\ttrue\t{arguments}\trunning\tquorum\n"));
    let json = tools.ctl("list_queues --formatter=json name messages arguments").good();
    let typed = r#"[["x-max-length","signedint",5],["x-queue-type","longstr","quorum"]]"#;
    assert_eq!(json, format!("[\n{{\"name\":\"q1\",\"messages\":1,\"arguments\":{typed}}}\n]\n"));
    assert_eq!(tools.ctl("list_queues --formatter csv name messages").good(), "\"name\",\"messages\"\n\"q1\",\"1\"\n");
    assert_eq!(tools.ctl("-s list_queues --offline").good(), "");
    assert_eq!(tools.ctl("-s list_queues --online --local name").good(), "q1\n");
    assert_eq!(tools.ctl("-s list_queues -p nov").good(), "");
    let wrong = tools.ctl("list_queues nosuch").bad(64);
    assert!(wrong.starts_with("Error (argument validation): Info key(s) nosuch are not supported\n"), "{wrong}");
    assert!(tools.ctl("list_queues --timeout 0").bad(75).contains("timed out. Timeout value used: 0"));
}

/// As RabbitMQ 3.10.8 has it: what is kept by virtual host is looked up by its name, and what is declared is not.
#[test]
fn a_virtual_host_that_is_not_there_has_nothing_in_it_or_is_told_as_in_rabbitmq() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    for verb in ["list_queues", "list_exchanges", "list_bindings", "list_consumers", "list_unresponsive_queues"] {
        assert_eq!(tools.ctl(&format!("-s {verb} -p nope")).good(), "", "{verb}");
    }
    let kept = ["policies", "operator_policies", "permissions", "topic_permissions", "parameters", "vhost_limits"];
    for verb in kept.map(|what| format!("list_{what} -p nope")) {
        assert_eq!(tools.ctl(&verb).bad(65), "Virtual host 'nope' does not exist\n", "{verb}");
    }
}

#[test]
fn exchanges_and_bindings_are_listed() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    http.put("/api/queues/%2F/q1", "{}").with(201);
    http.put("/api/exchanges/%2F/x1", r#"{"type":"topic"}"#).with(201);
    http.post("/api/bindings/%2F/e/x1/q/q1", r#"{"routing_key":"a.*","arguments":{"n":1}}"#).with(201);
    let exchanges = tools.ctl("list_exchanges").good();
    assert!(exchanges.starts_with("Listing exchanges for vhost / ...\nname\ttype\n"), "{exchanges}");
    assert!(exchanges.contains("\namq.topic\ttopic\n") && exchanges.contains("\nx1\ttopic\n"), "{exchanges}");
    let bindings = tools.ctl("list_bindings").good();
    let head = "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments";
    let wanted = format!(
        "Listing bindings for vhost /...\n{head}\n\texchange\tq1\tqueue\tq1\t[]\nx1\texchange\tq1\tqueue\ta.*\t[{{\"n\",1}}]\n"
    );
    assert_eq!(bindings, wanted);
}

#[test]
fn consumers_are_listed_with_their_arguments_and_with_which_one_is_active() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-single-active-consumer", true.into())];
    client.declare(channel, &QueueDeclare { name: "q", arguments, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "shared", ..QueueDeclare::default() }).unwrap();
    client.consume_with(channel, "q", "a", [false; 3], &[("note", "why".into())]).unwrap();
    client.consume(channel, "q", "b").unwrap();
    client.consume(channel, "shared", "c").unwrap();
    let told = tools.ctl("-s list_consumers consumer_tag active activity_status arguments").good();
    assert_eq!(told, "a\ttrue\tsingle_active\t[{\"note\",\"why\"}]\nb\tfalse\twaiting\t[]\nc\ttrue\tup\t[]\n");
}

#[test]
fn a_connection_is_closed_by_what_the_list_calls_it() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", ..QueueDeclare::default() }).unwrap();
    client.consume(channel, "q", "tag").unwrap();
    let listed = tools.ctl("list_connections").good();
    assert!(
        listed.starts_with("Listing connections ...\nuser\tpeer_host\tpeer_port\tstate\nguest\t127.0.0.1\t"),
        "{listed}"
    );
    let consumers = tools.ctl("-s list_consumers queue_name consumer_tag ack_required").good();
    assert_eq!(consumers, "q\ttag\ttrue\n");
    assert_eq!(tools.ctl("-s list_channels user consumer_count number").good(), "guest\t1\t1\n");
    let pid = tools.ctl("-s list_connections pid").good();
    let pid = pid.trim_end();
    assert!(pid.starts_with('<') && pid.ends_with('>') && !pid.contains(' '), "{pid}");
    assert_eq!(tools.ctl("-s list_channels connection").good().trim_end(), pid);
    let told = tools.words("rabbitmqctl", &["close_connection", pid, "go away"]).good();
    assert_eq!(told, format!("Closing connection {pid}, reason: go away...\n"));
    let closed = client.closed(0);
    assert_eq!(closed.code, 320);
    assert!(closed.text.contains("go away"), "{closed:?}");
    assert!(tools.ctl("close_connection <0.1.0> text").bad(69).starts_with("Error:\nnot_found"));
    // Of a pid that nobody has what is wanted is so.
    let gone = tools.ctl("close_connection <a.1.2.3> text");
    assert!(gone.err.contains("has a connection <a.1.2.3>: was it closed already?"), "{gone:?}");
    gone.good();
}

#[test]
fn connections_are_closed_by_virtual_host_and_by_user() {
    let Some((broker, http, tools)) = begin(&[]) else { return };
    http.put("/api/vhosts/other", "{}").with(201);
    let mut mine = [broker.connect(), broker.connect()];
    let told = tools.ctl("close_all_connections --vhost other bye").good();
    assert_eq!(told, "Closing all connections in vhost other, reason: bye...\nClosed 0 connections\n");
    let told = tools.ctl("close_all_connections --limit 1 bye").good();
    assert_eq!(told, "Closing 1 connections in vhost /, reason: bye...\nClosed 1 connections\n");
    assert_eq!(tools.ctl("-q close_all_connections --global bye").code, 0);
    for client in &mut mine {
        assert_eq!(client.closed(0).code, 320);
    }
    let mut client = broker.connect();
    let told = tools.ctl("close_all_user_connections guest bye").good();
    assert_eq!(told, "Closing connections of user guest, reason: bye...\n");
    assert_eq!(client.closed(0).code, 320);
}

#[test]
fn queues_are_purged_and_deleted_on_their_conditions() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let durable = QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() };
    client.declare(channel, &durable).unwrap();
    client.put(channel, "q", b"one");
    client.round_trip(channel).unwrap();
    clients::api::until("the message is in", || {
        (tools.ctl("-s list_queues messages").good() == "1\n").then_some(serde_json::Value::Null)
    });
    assert!(tools.ctl("delete_queue q --if-empty").bad(69).contains("Queue is not empty"));
    assert_eq!(tools.ctl("purge_queue q").good(), "Purging queue 'q' in vhost '/' ...\n");
    assert_eq!(client.counts(channel, "q").unwrap().0, 0);
    client.consume(channel, "q", "tag").unwrap();
    assert!(tools.ctl("delete_queue q --if-unused").bad(69).contains("Queue is in use"));
    let told = tools.ctl("delete_queue q").good();
    assert_eq!(told, "Deleting queue 'q' on vhost '/' ...\nQueue was successfully deleted with 0 ready messages\n");
    assert_eq!(tools.ctl("delete_queue q").bad(64), "Error:\nQueue not found\n");
    assert_eq!(tools.ctl("purge_queue q").bad(69), "Error:\nnot_found\n");
}

#[test]
fn what_is_exclusive_stays_its_connections() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "own", exclusive: true, ..QueueDeclare::default() }).unwrap();
    tools.ctl("delete_queue own").bad(69);
    client.counts(channel, "own").unwrap();
}

#[test]
fn a_name_cannot_drive_the_terminal() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-a", Value::Str("\x1b[2J".to_owned()))];
    client.declare(channel, &QueueDeclare { name: "a\x1b[31m", arguments, ..QueueDeclare::default() }).unwrap();
    let listed = tools.ctl("list_queues name arguments").good();
    assert!(listed.contains("a\\033[31m") && !listed.contains('\x1b'), "{listed:?}");
}
