//! Verbs without a meaning here, unknown ones, and help.

use crate::begin;

#[test]
fn what_has_nothing_to_do_says_so_and_what_to_use_instead() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    for (tool, line, instead) in [
        ("rabbitmqctl", "eval 1.", "status, environment and report"),
        ("rabbitmqctl", "stop_app", "end it by stop and start it by leveret server"),
        ("rabbitmqctl", "join_cluster rabbit@x --ram", "docs/clustering.md"),
        ("rabbitmqctl", "set_log_level debug", "--log"),
        ("rabbitmqctl", "rotate_logs", "standard error"),
        ("rabbitmq-diagnostics", "observer", "leveret ctl top"),
        ("rabbitmq-diagnostics", "log_tail -N 50", "journalctl"),
        ("rabbitmq-queues", "peek q 1", "rabbitmqadmin get"),
        ("rabbitmq-plugins", "directories", "Nothing is plugged in"),
        ("rabbitmq-plugins", "set rabbitmq_management", "rabbitmq-plugins list"),
    ] {
        let told = tools.run(tool, line);
        assert_eq!(told.out, "", "{line}");
        let told = told.bad(64);
        assert!(told.contains("has nothing to do here") && told.contains(instead), "{line}: {told}");
    }
}

#[test]
fn an_unknown_verb_is_told_with_the_one_that_was_meant() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let near = tools.ctl("list_quues").bad(64);
    assert_eq!(near, "\nCommand 'list_quues' not found. \nDid you mean 'list_queues'? \n\n");
    let far = tools.ctl("frobnicate").bad(64);
    assert!(far.starts_with("\nCommand 'frobnicate' not found. \n\nUsage\n"), "{far}");
    // Of another tool.
    assert!(tools.diagnostics("add_user a b").bad(64).starts_with("\nCommand 'add_user' not found."));
    assert!(tools.ctl("").bad(64).contains("Available commands:"));
}

#[test]
fn help_is_for_all_and_for_one() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    for line in ["help", "--help", "-h"] {
        let all = tools.ctl(line).good();
        assert!(all.contains("   list_queues ") && all.contains("Monitoring, observability"), "{line}: {all}");
    }
    for line in ["help list_queues", "list_queues --help"] {
        let one = tools.ctl(line).good();
        assert!(one.contains("rabbitmqctl [--node <node>] [--longnames] [--quiet] list_queues "), "{one}");
        assert!(one.contains("messages_ready") && one.contains("--offline"), "{one}");
    }
    assert_eq!(tools.ctl("help nosuch").bad(64), "Error:\n\nCommand 'nosuch' not found.\n");
    assert_eq!(
        tools.ctl("autocomplete list_us").good(),
        "list_user_limits\nlist_user_permissions\nlist_user_topic_permissions\nlist_users\n"
    );
    for line in ["version", "--version"] {
        assert_eq!(tools.ctl(line).good(), tools.diagnostics("-q server_version").good(), "{line}");
    }
}

#[test]
fn plugins_are_what_is_built_in() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let plugins = |line: &str| tools.run("rabbitmq-plugins", line);
    let listed = plugins("list -q -m").good();
    assert!(listed.contains("rabbitmq_management\n") && !listed.contains("shovel"), "{listed}");
    assert!(plugins("list management").good().contains("[E*] rabbitmq_management"));
    assert!(
        plugins("-q is_enabled rabbitmq_management")
            .good()
            .starts_with("Plugin rabbitmq_management is enabled on node")
    );
    assert!(plugins("is_enabled rabbitmq_shovel").bad(69).starts_with("Error:\nPlugin rabbitmq_shovel is not enabled"));
    plugins("enable rabbitmq_management rabbitmq_prometheus").good();
    plugins("enable --offline rabbitmq_management").good();
    assert!(plugins("enable nosuch").bad(70).starts_with("Error:\n{:plugins_not_found, [:nosuch]}"));
    plugins("disable rabbitmq_management").bad(69);
}
