//! Permissions over HTTP.

use clients::api::reason;
use clients::broker::{is_foreign, unique};
use clients::methods::{TX_COMMIT, TX_COMMIT_OK, TX_SELECT, TX_SELECT_OK};
use clients::wire::{Args, Properties, Value as Field};
use clients::{Broker, Client, Login, Publish};

#[test]
fn a_permission_for_nobody_or_nowhere_is_a_wrong_request() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let body = r#"{"configure":"","write":"","read":""}"#;
    let topic = r#"{"exchange":"amq.topic","write":"","read":""}"#;
    for at in ["none/guest", "%2F/none"] {
        assert_eq!(reason(&http.put(&format!("/api/permissions/{at}"), body), 400), "vhost_or_user_not_found");
        assert_eq!(reason(&http.put(&format!("/api/topic-permissions/{at}"), topic), 400), "vhost_or_user_not_found");
        assert_eq!(http.get(&format!("/api/permissions/{at}")).status, 404);
        assert_eq!(http.delete(&format!("/api/permissions/{at}")).status, 404);
    }
}

/// A right to some keys of a topic exchange would be none if a header went round it. RabbitMQ 3.10
/// looks at the message's own key alone.
#[test]
fn a_topic_permission_holds_for_the_keys_of_copies_too() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let user = unique("user");
    http.put(&format!("/api/users/{user}"), r#"{"password":"pw","tags":""}"#).with(201);
    let all = r#"{"configure":".*","write":".*","read":".*"}"#;
    http.put(&format!("/api/permissions/%2F/{user}"), all).with(201);
    let topics = r#"{"exchange":"amq.topic","write":"^a","read":".*"}"#;
    http.put(&format!("/api/topic-permissions/%2F/{user}"), topics).with(201);
    let login = Login { response: format!("\0{user}\0pw").into_bytes(), ..Login::default() };
    for (header, copy, is_allowed) in
        [("CC", "a.2", true), ("BCC", "a.2", true), ("CC", "b", false), ("BCC", "b", false)]
    {
        for is_transaction in [false, true] {
            let mut client = Client::login(broker.addr(), &login).unwrap();
            let channel = client.channel();
            match is_transaction {
                true => drop(client.call(channel, TX_SELECT, &Args::new(), TX_SELECT_OK).unwrap()),
                false => client.confirm_select(channel).unwrap(),
            }
            let properties = Properties::with_headers(&[(header, Field::Array(vec!["a.3".into(), copy.into()]))]);
            client.publish(
                channel,
                &Publish { exchange: "amq.topic", key: "a.1", properties, body: b"1", ..Publish::default() },
            );
            match (is_allowed, is_transaction) {
                (true, true) => drop(client.call(channel, TX_COMMIT, &Args::new(), TX_COMMIT_OK).unwrap()),
                (true, false) => client.confirmed(channel, 1, 1),
                (false, _) => {
                    let closed = client.closed(channel);
                    let what = "access to topic 'b' in exchange 'amq.topic' in vhost '/' refused";
                    assert!(closed.code == 403 && closed.text.contains(what), "{header}: {closed:?}");
                }
            }
        }
    }
}
