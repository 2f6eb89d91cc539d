//! Virtual hosts and their limits.

use crate::begin;

#[test]
fn virtual_hosts_are_added_described_and_deleted() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    for _ in 0..2 {
        // RabbitMQ's tool does not mind one that is there.
        assert_eq!(tools.ctl("add_vhost v1").good(), "Adding vhost \"v1\" ...\n");
    }
    tools.ctl("add_vhost v2 --description words --tags a,b --default-queue-type quorum").good();
    assert_eq!(tools.ctl("list_vhosts").good(), "Listing vhosts ...\nname\n/\nv1\nv2\n");
    let listed = tools.ctl("-s list_vhosts name tracing description tags default_queue_type").good();
    assert!(listed.ends_with("v2\tfalse\twords\t[a, b]\tquorum\n"), "{listed}");
    tools.ctl("update_vhost_metadata v2 --description others").good();
    tools.ctl("update_vhost_metadata v2").bad(64);
    let set = tools.ctl("set_vhost_tags v2 x y").good();
    assert_eq!(set, "Setting tags for virtual host \"v2\" to [x, y] ...\n");
    let v2 = http.get("/api/vhosts/v2").with(200);
    assert_eq!((&v2["description"], &v2["tags"]), (&"others".into(), &serde_json::json!(["x", "y"])));
    assert_eq!(v2["default_queue_type"], "quorum");
    let on = tools.ctl("trace_on -p v2").good();
    assert_eq!(on, "Starting tracing for vhost \"v2\" ...\nTrace enabled for vhost v2\n");
    assert_eq!(tools.ctl("-s list_vhosts name tracing").good(), "/\tfalse\nv1\tfalse\nv2\ttrue\n");
    tools.ctl("trace_off -p v2").good();
    // Nobody makes a virtual host by changing it.
    for verb in
        ["trace_on -p nov", "set_vhost_tags nov x", "update_vhost_metadata nov --tags x", "restart_vhost -p nov"]
    {
        assert_eq!(tools.ctl(verb).bad(65), "Virtual host 'nov' does not exist\n", "{verb}");
    }
    assert!(tools.ctl("-q restart_vhost").good().starts_with("Vhost '/' is already running on node"));
    assert_eq!(tools.ctl("delete_vhost v1").good(), "Deleting vhost \"v1\" ...\n");
    assert_eq!(tools.ctl("delete_vhost v1").bad(65), "Virtual host 'v1' does not exist\n");
    assert!(tools.words("rabbitmqctl", &["add_vhost", ""]).bad(65).contains("vhost cannot be an empty string"));
}

#[test]
fn who_adds_a_virtual_host_gives_nobody_rights_in_it() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    // Who runs the machine is no user, and no user is called so.
    tools.ctl("add_vhost v1").good();
    assert_eq!(tools.ctl("-q list_permissions -p v1").good(), "");
}

#[test]
fn limits_are_said_all_at_once() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let set = |limits: &str| tools.words("rabbitmqctl", &["set_vhost_limits", limits]);
    set(r#"{"max-queues":5,"max-connections":7}"#).good();
    let set_again = set(r#"{"max-queues": 6}"#).good();
    assert_eq!(set_again, "Setting vhost limits to \"{\"max-queues\": 6}\" for vhost \"/\" ...\n");
    assert_eq!(tools.ctl("-q list_vhost_limits").good(), "{\"max-queues\":6}\n");
    assert_eq!(tools.ctl("-q list_vhost_limits --global").good(), "vhost\tlimits\n/\t{\"max-queues\":6}\n");
    assert!(set(r#"{"max-nosuch":5}"#).bad(69).starts_with("Error:\nValidation failed\n\n"));
    assert!(set("{").bad(69).starts_with("Error:\nJSON decoding error. Reason: "));
    tools.ctl("clear_vhost_limits").good();
    assert_eq!(tools.ctl("list_vhost_limits").good(), "Listing limits for vhost \"/\" ...\n\n");
    assert_eq!(tools.ctl("list_vhost_limits --formatter json").good(), "[]\n");
    tools.ctl("clear_vhost_limits -p nov").bad(65);
}
