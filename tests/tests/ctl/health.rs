//! Status and health checks.

use crate::begin;

#[test]
fn a_healthy_node_passes_every_check() {
    let Some((broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    let port = broker.addr().port();
    for (check, told) in [
        ("check_running", "RabbitMQ on node rabbit@box is fully booted and running"),
        ("is_running", "RabbitMQ on node rabbit@box is fully booted and running"),
        ("check_alarms", "Node rabbit@box reported no alarms, local or clusterwide"),
        ("check_local_alarms", "Node rabbit@box reported no local alarms"),
        ("alarms", "Node rabbit@box reported no alarms, local or clusterwide"),
        ("check_virtual_hosts", "Node rabbit@box reported all vhosts as running"),
        ("check_protocol_listener amqp", "A listener for protocol amqp is running on node rabbit@box."),
        ("check_certificate_expiration --within 1 --unit weeks", "No certificates are expiring within 1 week."),
        ("ping", "Ping succeeded"),
        ("node_health_check", "Health check passed"),
        ("discover_peers", "No peers discovered"),
        ("log_location", "<stderr>"),
    ] {
        assert_eq!(tools.diagnostics(&format!("-q {check}")).good(), format!("{told}\n"), "{check}");
    }
    let told = tools.diagnostics(&format!("-q check_port_listener {port}")).good();
    assert_eq!(told, format!("A listener for port {port} is running on node rabbit@box.\n"));
    let told = tools.diagnostics("-q check_port_connectivity").good();
    assert!(told.starts_with(&format!("Successfully connected to ports {port}, ")), "{told}");
    for check in ["check_if_node_is_quorum_critical", "check_if_node_is_mirror_sync_critical"] {
        assert!(tools.run("rabbitmq-queues", check).good().ends_with("the check does not apply\n"));
    }
}

#[test]
fn a_check_that_fails_says_why_and_ends_with_69() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let missing = tools.diagnostics("check_port_listener 1").bad(69);
    assert!(missing.starts_with("No listener for port 1 is active on node "), "{missing}");
    let missing = tools.diagnostics("check_protocol_listener mqtt").bad(69);
    assert!(missing.starts_with("Error:\nNo listener for protocol mqtt is active"), "{missing}");
    tools.diagnostics("check_port_listener x").bad(65);
    tools.diagnostics("check_certificate_expiration --unit moons").bad(64);
    tools.ctl("set_vm_memory_high_watermark 0.000001").good();
    for check in ["check_alarms", "check_local_alarms"] {
        let failed = tools.diagnostics(check).bad(69);
        assert!(failed.contains("Publishers held by the operator"), "{failed}");
    }
    assert!(tools.diagnostics("alarms").good().contains("Publishers held by the operator"));
    tools.ctl("node_health_check").bad(70);
    tools.ctl("set_vm_memory_high_watermark 0.4").good();
    tools.diagnostics("check_alarms").good();
    tools.ctl("set_vm_memory_high_watermark 7").bad(65);
}

#[test]
fn the_status_is_read_by_persons_and_by_programs() {
    let Some((broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    let text = tools.ctl("status").good();
    for part in ["Runtime\n\nOS PID: ", "Node name: rabbit@box\n", "Totals\n\nConnection count: 0\n", "Listeners\n\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&tools.ctl("status --formatter json").good()).unwrap();
    assert_eq!(json["pid"], broker.pid().unwrap());
    assert_eq!(json["totals"]["virtual_host_count"], 1);
    let text = tools.ctl("cluster_status").good();
    for part in
        ["Running Nodes\n\nrabbit@box\n", "Network Partitions\n\n(none)\n", "Maintenance status\n\nNode: rabbit@box, "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&tools.ctl("cluster_status --formatter json").good()).unwrap();
    assert_eq!(json["running_nodes"], serde_json::json!(["rabbit@box"]));
    assert!(json["listeners"]["rabbit@box"].as_array().unwrap().len() >= 2);
    let memory = tools.diagnostics("memory_breakdown --unit mb").good();
    assert!(memory.contains("not told apart: "), "{memory}");
    tools.diagnostics("memory_breakdown --unit miles").bad(64);
    let environment = tools.ctl("environment").good();
    assert!(environment.contains("node_name = \"rabbit@box\" (command line)\n"), "{environment}");
    assert!(tools.diagnostics("-q command_line_arguments").good().contains("node_name"));
    let report = tools.ctl("report").good();
    assert!(report.contains("Listing queues for vhost / ...") && report.contains("Cluster status of node rabbit@box"));
    // The setting says how they are hashed.
    assert!(!report.replace("password_hashing", "").contains("password"), "{report}");
}

#[test]
fn logins_are_counted_and_forgotten() {
    let Some((broker, _http, tools)) = begin(&[]) else { return };
    drop(broker.connect());
    let told = tools.ctl("-s list_node_auth_attempt_stats").good();
    assert!(told.contains("amqp091\t"), "{told}");
    tools.diagnostics("reset_node_auth_attempt_metrics").good();
    assert_eq!(tools.ctl("-s list_node_auth_attempt_stats").good(), "");
}
