//! Forms, quietness, wrong options, and watching.

use crate::begin;
use clients::tools::command;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::time::Instant;

#[test]
fn the_forms_of_a_list_are_rabbitmqs() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    for (line, wanted) in [
        ("list_users", "Listing users ...\nuser\ttags\nguest\t[administrator]\n"),
        ("-q list_users", "user\ttags\nguest\t[administrator]\n"),
        ("-s list_users", "guest\t[administrator]\n"),
        ("list_users --no-table-headers", "Listing users ...\nguest\t[administrator]\n"),
        ("list_users --formatter json", "[\n{\"user\":\"guest\",\"tags\":[\"administrator\"]}\n]\n"),
        ("list_users --formatter=csv", "\"user\",\"tags\"\n\"guest\",\"[administrator]\"\n"),
        ("list_users --formatter erlang", "Listing users ...\n[[{user,<<\"guest\">>},{tags,[administrator]}]]\n"),
        (
            "-q list_users --formatter pretty_table",
            "┌───────┬───────────────┐\n│ user  │ tags          │\n├───────┼───────────────┤\n\
             │ guest │ administrator │\n└───────┴───────────────┘\n",
        ),
    ] {
        assert_eq!(tools.ctl(line).good(), wanted, "{line}");
    }
    assert!(tools.ctl("list_users --formatter nosuch").bad(64).contains("there are table, pretty_table"));
}

#[test]
fn what_a_program_reads_has_no_banner_and_an_answer() {
    let Some((_broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    let told = tools.ctl("add_vhost v --formatter json").good();
    assert_eq!(told, "{\"node\":\"rabbit@box\",\"result\":\"ok\"}\n");
    let told = tools.diagnostics("check_local_alarms --formatter json").good();
    let message = "\"message\":\"Node rabbit@box reported no local alarms\"";
    assert_eq!(told, format!("{{{message},\"node\":\"rabbit@box\",\"result\":\"ok\"}}\n"));
}

#[test]
fn programs_read_the_keys_that_rabbitmqs_tools_have() {
    let Some((broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    let port = broker.addr().port().to_string();
    let of = |line: &str| -> Value {
        let told = tools.diagnostics(&format!("{line} --formatter json")).good();
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{line}: {error}: {told}"))
    };
    assert_eq!(of("is_running")["result"], true);
    assert_eq!(of("is_booting")["result"], false);
    let version = tools.diagnostics("-q server_version").good();
    assert_eq!(of("server_version"), json!({ "result": "ok", "value": version.trim() }));
    let place = json!({ "node_name": "rabbit@box", "paths": ["<stderr>"], "result": "ok" });
    assert_eq!(of("log_location"), place);
    assert_eq!(of("list_node_auth_attempt_stats")["attempts"][0]["protocol"], "amqp091");
    assert_eq!(of("list_node_auth_attempt_stats")["node"], "rabbit@box");
    let here = of("check_port_connectivity");
    assert!(here["listeners"].as_array().unwrap().iter().any(|one| one["port"] == broker.addr().port()), "{here}");
    let listens = json!({ "node": "rabbit@box", "protocol": "amqp", "result": "ok" });
    assert_eq!(of("check_protocol_listener amqp"), listens);
    let listens = json!({ "node": "rabbit@box", "port": &*port, "result": "ok" });
    assert_eq!(of(&format!("check_port_listener {port}")), listens);
    assert_eq!(of("alarms")["local"], json!([]));
    assert_eq!(of("memory_breakdown")["mnesia"], json!(null));
    assert!(of("memory_breakdown")["other_system"]["bytes"].as_u64() > Some(0));
    tools.words("rabbitmqctl", &["set_user_limits", "guest", r#"{"max-connections":5}"#]).good();
    let limits = |line: &str| tools.ctl(&format!("{line} --formatter json")).good();
    assert_eq!(limits("list_user_limits"), "{\"message\":\"{\\\"max-connections\\\":5}\"}\n");
    tools.ctl("clear_user_limits guest all").good();
    assert_eq!(limits("list_user_limits"), "{\"message\":\"{}\"}\n");
    let closed = limits("close_all_connections bye");
    assert_eq!(closed, "{\"node\":\"rabbit@box\",\"result\":\"ok\",\"value\":\"Closed 0 connections\"}\n");
}

#[test]
fn what_fails_is_an_object_on_standard_error_for_a_program() {
    let Some((_broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    let failed = |tool: &str, line: &str, code: i32| -> Value {
        let told = tools.run(tool, &format!("{line} --formatter json"));
        assert_eq!(told.out, "", "{line}");
        let text = told.bad(code);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    };
    let missing = failed("rabbitmq-diagnostics", "check_port_listener 1", 69);
    assert_eq!((&missing["missing"], &missing["result"]), (&json!("1"), &json!("error")));
    assert!(missing["ports"].is_array() && missing["listeners"].is_array(), "{missing}");
    let missing = failed("rabbitmq-diagnostics", "check_protocol_listener mqtt", 69);
    assert!(missing["protocols"].as_array().unwrap().contains(&json!("amqp")), "{missing}");
    let nobody = failed("rabbitmqctl", "delete_user nobody", 69);
    assert_eq!(nobody, json!({ "message": "User \"nobody\" does not exist", "result": "error" }));
    tools.ctl("set_vm_memory_high_watermark 0.000001").good();
    let held = failed("rabbitmq-diagnostics", "check_local_alarms", 69);
    assert_eq!(held["local"], json!(["Publishers held by the operator on node rabbit@box"]));
    let held = failed("rabbitmq-diagnostics", "check_alarms", 69);
    assert_eq!((held["local"].as_array().map(Vec::len), &held["global"]), (Some(1), &json!([])));
    // Words that are wrong are told in words.
    assert!(tools.ctl("list_queues nosuch --formatter json").bad(64).starts_with("Error (argument validation): "));
}

#[test]
fn wrong_words_end_with_64_and_the_usage() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let usage = "\nUsage\n\nrabbitmqctl [--node <node>] [--longnames] [--quiet] list_users [--no-table-headers] [--timeout <timeout>]\n";
    for (line, why) in [
        ("list_users --nosuch", "Invalid options for this command:\n--nosuch : "),
        ("list_users -t abc", "Invalid options for this command:\n-t : abc"),
        ("list_users extra", "too many arguments."),
    ] {
        let told = tools.ctl(line);
        assert_eq!(told.out, "", "{line}");
        let wanted = format!("Error (argument validation): {why}\nArguments given:\n\t{line}\n{usage}");
        assert_eq!(told.bad(64), wanted, "{line}");
    }
}

#[test]
fn a_watched_list_is_shown_again_until_its_reader_goes() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let words = ["-s", "--watch=1", "list_vhosts"];
    let mut child = command(tools.folder(), "rabbitmqctl", &words).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(lines.next().unwrap().unwrap(), "/");
    }
    assert!(begin.elapsed().as_secs() >= 2);
    drop(lines);
    // Nobody reads any more: it ends by itself, and quietly.
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}
