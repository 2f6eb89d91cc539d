//! Permissions.

use crate::begin;

#[test]
fn permissions_are_set_listed_and_cleared() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    tools.ctl("add_user ann secret").good();
    let set = tools.ctl("set_permissions ann ^a ^b .*").good();
    assert_eq!(set, "Setting permissions for user \"ann\" in vhost \"/\" ...\n");
    let listed = tools.ctl("list_permissions").good();
    let rows = "user\tconfigure\twrite\tread\nann\t^a\t^b\t.*\nguest\t.*\t.*\t.*\n";
    assert_eq!(listed, format!("Listing permissions for vhost \"/\" ...\n{rows}"));
    let of_user = tools.ctl("-q list_user_permissions ann").good();
    assert_eq!(of_user, "vhost\tconfigure\twrite\tread\n/\t^a\t^b\t.*\n");
    for _ in 0..2 {
        // None left is what was wanted the second time too.
        let cleared = tools.ctl("clear_permissions ann").good();
        assert_eq!(cleared, "Clearing permissions for user \"ann\" in vhost \"/\" ...\n");
    }
}

#[test]
fn who_and_where_must_be_there() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    tools.ctl("add_user ann secret").good();
    assert_eq!(tools.ctl("set_permissions -p nov ann a b c").bad(69), "Error:\nVirtual host nov does not exist\n");
    assert_eq!(tools.ctl("set_permissions nobody a b c").bad(67), "Error:\nUser nobody does not exist\n");
    assert_eq!(tools.ctl("clear_permissions nobody").bad(67), "Error:\nUser nobody does not exist\n");
    assert_eq!(tools.ctl("list_permissions -p nov").bad(65), "Virtual host 'nov' does not exist\n");
    assert_eq!(tools.ctl("list_user_permissions nobody").bad(69), "Error:\n{:no_such_user, \"nobody\"}\n");
    assert!(tools.ctl("set_permissions ann ( b c").bad(69).contains("regular expression"));
    assert!(tools.ctl("set_permissions ann a b").bad(64).contains("not enough arguments"));
}

#[test]
fn topic_permissions_are_set_listed_and_cleared() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    tools.ctl("add_user ann secret").good();
    let set = tools.ctl("set_topic_permissions ann amq.topic ^a ^b").good();
    assert_eq!(set, "Setting topic permissions on \"amq.topic\" for user \"ann\" in vhost \"/\" ...\n");
    let listed = tools.ctl("-q list_topic_permissions").good();
    assert_eq!(listed, "user\texchange\twrite\tread\nann\tamq.topic\t^a\t^b\n");
    // Without a line of column names, as RabbitMQ's tool has it.
    assert_eq!(tools.ctl("-q list_user_topic_permissions ann").good(), "/\tamq.topic\t^a\t^b\n");
    let cleared = tools.ctl("clear_topic_permissions ann amq.topic").good();
    assert_eq!(cleared, "Clearing topic permissions on \"amq.topic\" for user \"ann\" in vhost \"/\" ...\n");
    assert_eq!(tools.ctl("-q list_topic_permissions").good(), "");
    let cleared = tools.ctl("clear_topic_permissions ann").good();
    assert_eq!(cleared, "Clearing topic permissions for user \"ann\" in vhost \"/\" ...\n");
}
