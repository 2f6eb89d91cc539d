//! The changes that can be made over HTTP, each with what has to be there before it, and how it is
//! seen to be made.
//!
//! Invariant: every path of the API that changes anything has its row.

use std::cell::RefCell;
use std::net::SocketAddr;

use clients::broker::is_foreign;
use clients::{Client, Http};

use crate::{Kind, comes_about};

/// What one change over HTTP is about.
pub(crate) struct Thing {
    pub(crate) vhost: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Where AMQP is served, and somebody who is connected there, if the change is about that.
    pub(crate) amqp: SocketAddr,
    pub(crate) connected: RefCell<Option<Client>>,
}

/// Which broker a change is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// One that all share, of any make.
    Anybodys,
    /// The same, but RabbitMQ 3.10.8 has no such path.
    Ours,
    /// One of ours with nobody else on it, as the change concerns the whole node.
    OursAlone,
}

/// A change over HTTP.
pub(crate) struct Change {
    pub(crate) name: &'static str,
    pub(crate) scene: fn(&Http, &Thing),
    pub(crate) request: fn(&Http, &Thing) -> (&'static str, String, String),
    /// Whether it was made; an error if only half of it was.
    pub(crate) is_made: fn(&Http, &Thing) -> Result<bool, String>,
    /// Asked again, one of these.
    pub(crate) again: &'static [u16],
    pub(crate) whose: Whose,
}

const EVERYTHING: &str = r#"{"configure":".*","write":".*","read":".*"}"#;

fn vhost_of(http: &Http, thing: &Thing) {
    http.put(&format!("/api/vhosts/{}", thing.vhost), "{}").with(201);
    let status = http.put(&format!("/api/permissions/{}/guest", thing.vhost), EVERYTHING).status;
    assert!([201, 204].contains(&status), "{status}");
}
fn queue_of(http: &Http, thing: &Thing) {
    vhost_of(http, thing);
    http.put(&format!("/api/queues/{}/{}", thing.vhost, thing.name), &queue_body(thing)).with(201);
}
fn exchange_of(http: &Http, thing: &Thing) {
    queue_of(http, thing);
    http.put(&format!("/api/exchanges/{}/{}", thing.vhost, thing.name), r#"{"type":"fanout","durable":true}"#)
        .with(201);
}
fn bound_of(http: &Http, thing: &Thing) {
    exchange_of(http, thing);
    http.post(&binding_path(thing), r#"{"routing_key":"k"}"#).with(201);
}
fn user_of(http: &Http, thing: &Thing) {
    vhost_of(http, thing);
    http.put(&format!("/api/users/{}", thing.name), USER).with(201);
}
fn queue_body(thing: &Thing) -> String {
    let (durable, arguments) = match thing.kind {
        Kind::Classic => (true, r#"{"x-queue-type":"classic"}"#),
        Kind::Quorum => (true, r#"{"x-queue-type":"quorum"}"#),
        Kind::Transient => (false, "{}"),
    };
    format!(r#"{{"durable":{durable},"arguments":{arguments}}}"#)
}
fn binding_path(thing: &Thing) -> String {
    format!("/api/bindings/{}/e/{}/q/{}", thing.vhost, thing.name, thing.name)
}
const USER: &str = r#"{"password":"secret","tags":"monitoring"}"#;
const POLICY: &str = r#"{"pattern":"^none$","definition":{"max-length":5},"apply-to":"queues"}"#;

fn there(http: &Http, path: String) -> Result<bool, String> {
    match http.get(&path).status {
        200 => Ok(true),
        404 => Ok(false),
        other => Err(format!("{path}: {other}")),
    }
}

const TOPIC: &str = r#"{"exchange":"amq.topic","write":"^a","read":"^b"}"#;

fn has_topic_permission(http: &Http, thing: &Thing) -> Result<bool, String> {
    let found = http.get(&format!("/api/topic-permissions/{}/{}", thing.vhost, thing.name));
    if found.status == 404 {
        return Ok(false);
    }
    let found = found.with(200);
    match (found[0]["write"].as_str(), found[0]["read"].as_str()) {
        (None, None) => Ok(false),
        (Some("^a"), Some("^b")) => Ok(true),
        half => Err(format!("write, read: {half:?}")),
    }
}

fn definitions(thing: &Thing) -> String {
    let Thing { vhost, name, .. } = thing;
    format!(
        r#"{{"vhosts":[{{"name":"{vhost}"}}],
        "permissions":[{{"user":"guest","vhost":"{vhost}","configure":".*","write":".*","read":".*"}}],
        "queues":[{{"name":"{name}","vhost":"{vhost}","durable":true,"auto_delete":false,"arguments":{{}}}}],
        "exchanges":[{{"name":"{name}","vhost":"{vhost}","type":"fanout","durable":true,"auto_delete":false,
        "internal":false,"arguments":{{}}}}],
        "bindings":[{{"source":"{name}","vhost":"{vhost}","destination":"{name}","destination_type":"queue",
        "routing_key":"k","arguments":{{}}}}]}}"#
    )
}

/// The same, of one virtual host that is there.
fn definitions_of_vhost(thing: &Thing) -> String {
    let name = &thing.name;
    format!(
        r#"{{"queues":[{{"name":"{name}","durable":true,"auto_delete":false,"arguments":{{}}}}],
        "exchanges":[{{"name":"{name}","type":"fanout","durable":true,"auto_delete":false,"internal":false,
        "arguments":{{}}}}],
        "bindings":[{{"source":"{name}","destination":"{name}","destination_type":"queue","routing_key":"k",
        "arguments":{{}}}}]}}"#
    )
}

/// All of them are there, or none is.
fn all_or_none(what: &str, parts: &[bool]) -> Result<bool, String> {
    match parts.iter().filter(|is_there| **is_there).count() {
        0 => Ok(false),
        there if there == parts.len() => Ok(true),
        _ => Err(format!("{what}: {parts:?}")),
    }
}

/// A second exchange, and the path of the bindings from the first one to it.
fn two_exchanges_of(http: &Http, thing: &Thing) {
    exchange_of(http, thing);
    let path = format!("/api/exchanges/{}/{}-2", thing.vhost, thing.name);
    http.put(&path, r#"{"type":"fanout","durable":true}"#).with(201);
}
fn path_between(thing: &Thing) -> String {
    format!("/api/bindings/{}/e/{}/e/{}-2", thing.vhost, thing.name, thing.name)
}

/// Somebody is connected in a name of his own.
fn connected_of(http: &Http, thing: &Thing) {
    user_of(http, thing);
    let path = format!("/api/permissions/{}/{}", thing.vhost, thing.name);
    assert!([201, 204].contains(&http.put(&path, EVERYTHING).status));
    let response = format!("\0{}\0secret", thing.name).into_bytes();
    let login = clients::Login { response, vhost: thing.vhost.clone(), ..Default::default() };
    let mut client = Client::login(thing.amqp, &login).unwrap();
    client.channel();
    let name = connection_path(thing, &client);
    *thing.connected.borrow_mut() = Some(client);
    // RabbitMQ's API knows a connection a little later.
    comes_about("the connection in the API", || http.get(&name).status == 200).unwrap();
}
fn connection_path(thing: &Thing, client: &Client) -> String {
    let name = format!("{} -> {}", client.stream.local_addr().unwrap(), thing.amqp);
    format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"))
}
fn is_cut_off(_: &Http, thing: &Thing) -> Result<bool, String> {
    Ok(thing.connected.borrow_mut().as_mut().is_none_or(|client| client.round_trip(1).is_err()))
}

fn hold_path(http: &Http) -> String {
    format!("/api/nodes/{}/publishers/hold", http.get("/api/overview").with(200)["node"].as_str().unwrap())
}
fn are_held(http: &Http, _: &Thing) -> Result<bool, String> {
    Ok(http.get("/api/health/checks/alarms").status == 503)
}

pub(crate) fn changes() -> Vec<Change> {
    let nobody: fn(&Http, &Thing) = |_, _| ();
    const PUT: &[u16] = &[201, 204];
    const DELETE: &[u16] = &[204, 404];
    vec![
        Change {
            name: "PUT vhost",
            scene: nobody,
            request: |_, t| {
                ("PUT", format!("/api/vhosts/{}", t.vhost), r#"{"default_queue_type":"quorum","tags":"a"}"#.into())
            },
            is_made: |http, t| {
                let vhost = http.get(&format!("/api/vhosts/{}", t.vhost));
                if vhost.status == 404 {
                    return Ok(false);
                }
                let permission = http.get(&format!("/api/permissions/{}/guest", t.vhost)).status;
                let vhost = vhost.with(200);
                match (permission, vhost["default_queue_type"].as_str(), vhost["tags"][0].as_str()) {
                    (200, Some("quorum"), Some("a")) => Ok(true),
                    // RabbitMQ 3.10 does not know them over HTTP.
                    (200, _, Some("a")) if is_foreign() => Ok(true),
                    found => Err(format!("permission, default queue type, tag: {found:?}")),
                }
            },
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE vhost",
            scene: bound_of,
            request: |_, t| ("DELETE", format!("/api/vhosts/{}", t.vhost), String::new()),
            is_made: |http, t| there(http, format!("/api/vhosts/{}", t.vhost)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT user",
            scene: nobody,
            request: |_, t| ("PUT", format!("/api/users/{}", t.name), USER.into()),
            is_made: |http, t| {
                let is_there = there(http, format!("/api/users/{}", t.name))?;
                let gets_in = http.as_user(&t.name, "secret").get("/api/whoami").status == 200;
                if is_there == gets_in { Ok(is_there) } else { Err("who is there cannot log in".into()) }
            },
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE user",
            scene: user_of,
            request: |_, t| ("DELETE", format!("/api/users/{}", t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/users/{}", t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT permission",
            scene: user_of,
            request: |_, t| ("PUT", format!("/api/permissions/{}/{}", t.vhost, t.name), EVERYTHING.into()),
            is_made: |http, t| there(http, format!("/api/permissions/{}/{}", t.vhost, t.name)),
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT policy",
            scene: vhost_of,
            request: |_, t| ("PUT", format!("/api/policies/{}/{}", t.vhost, t.name), POLICY.into()),
            is_made: |http, t| there(http, format!("/api/policies/{}/{}", t.vhost, t.name)),
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE policy",
            scene: |http, t| {
                vhost_of(http, t);
                http.put(&format!("/api/policies/{}/{}", t.vhost, t.name), POLICY).with(201);
            },
            request: |_, t| ("DELETE", format!("/api/policies/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/policies/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT vhost limit",
            scene: vhost_of,
            request: |_, t| ("PUT", format!("/api/vhost-limits/{}/max-queues", t.vhost), r#"{"value":5}"#.into()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/vhost-limits/{}", t.vhost)).with(200);
                Ok(found[0]["value"]["max-queues"] == 5)
            },
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT user limit",
            scene: user_of,
            request: |_, t| ("PUT", format!("/api/user-limits/{}/max-connections", t.name), r#"{"value":5}"#.into()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/user-limits/{}", t.name)).with(200);
                Ok(found[0]["value"]["max-connections"] == 5)
            },
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE user limit",
            scene: |http, t| {
                user_of(http, t);
                let status = http.put(&format!("/api/user-limits/{}/max-connections", t.name), r#"{"value":5}"#).status;
                assert!([201, 204].contains(&status), "{status}");
            },
            request: |_, t| ("DELETE", format!("/api/user-limits/{}/max-connections", t.name), String::new()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/user-limits/{}", t.name)).with(200);
                Ok(found[0]["value"]["max-connections"] != 5)
            },
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT operator policy",
            scene: vhost_of,
            request: |_, t| ("PUT", format!("/api/operator-policies/{}/{}", t.vhost, t.name), POLICY.into()),
            is_made: |http, t| there(http, format!("/api/operator-policies/{}/{}", t.vhost, t.name)),
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE operator policy",
            scene: |http, t| {
                vhost_of(http, t);
                http.put(&format!("/api/operator-policies/{}/{}", t.vhost, t.name), POLICY).with(201);
            },
            request: |_, t| ("DELETE", format!("/api/operator-policies/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| {
                there(http, format!("/api/operator-policies/{}/{}", t.vhost, t.name)).map(|is_there| !is_there)
            },
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT topic permission",
            scene: user_of,
            request: |_, t| ("PUT", format!("/api/topic-permissions/{}/{}", t.vhost, t.name), TOPIC.into()),
            is_made: has_topic_permission,
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE topic permission",
            scene: |http, t| {
                user_of(http, t);
                http.put(&format!("/api/topic-permissions/{}/{}", t.vhost, t.name), TOPIC).with(201);
            },
            request: |_, t| ("DELETE", format!("/api/topic-permissions/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| has_topic_permission(http, t).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT exchange",
            scene: vhost_of,
            request: |_, t| ("PUT", format!("/api/exchanges/{}/{}", t.vhost, t.name), r#"{"type":"fanout"}"#.into()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)),
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE exchange",
            scene: bound_of,
            request: |_, t| ("DELETE", format!("/api/exchanges/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT queue",
            scene: vhost_of,
            request: |_, t| ("PUT", format!("/api/queues/{}/{}", t.vhost, t.name), queue_body(t)),
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)),
            again: PUT,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE queue",
            scene: queue_of,
            request: |_, t| ("DELETE", format!("/api/queues/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE queue if-empty",
            scene: queue_of,
            request: |_, t| {
                let condition = if t.kind == Kind::Quorum { "" } else { "?if-empty=true" };
                ("DELETE", format!("/api/queues/{}/{}{condition}", t.vhost, t.name), String::new())
            },
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE queue contents",
            scene: queue_of,
            request: |_, t| ("DELETE", format!("/api/queues/{}/{}/contents", t.vhost, t.name), String::new()),
            is_made: |_, _| Ok(true),
            again: &[204],
            whose: Whose::Anybodys,
        },
        Change {
            name: "POST binding",
            scene: exchange_of,
            request: |_, t| ("POST", binding_path(t), r#"{"routing_key":"k"}"#.into()),
            is_made: |http, t| there(http, format!("{}/k", binding_path(t))),
            again: &[201],
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE binding",
            scene: bound_of,
            request: |_, t| ("DELETE", format!("{}/k", binding_path(t)), String::new()),
            is_made: |http, t| there(http, format!("{}/k", binding_path(t))).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "POST definitions",
            scene: nobody,
            request: |_, t| ("POST", "/api/definitions".into(), definitions(t)),
            is_made: |http, t| {
                let of = |path: String| there(http, path);
                let parts = [
                    of(format!("/api/vhosts/{}", t.vhost))?,
                    of(format!("/api/permissions/{}/guest", t.vhost))?,
                    of(format!("/api/queues/{}/{}", t.vhost, t.name))?,
                    of(format!("/api/exchanges/{}/{}", t.vhost, t.name))?,
                    of(format!("{}/k", binding_path(t)))?,
                ];
                all_or_none("virtual host, permission, queue, exchange, binding", &parts)
            },
            again: &[200, 204],
            whose: Whose::Anybodys,
        },
        Change {
            name: "POST definitions of a vhost",
            scene: vhost_of,
            request: |_, t| ("POST", format!("/api/definitions/{}", t.vhost), definitions_of_vhost(t)),
            is_made: |http, t| {
                let of = |path: String| there(http, path);
                let parts = [
                    of(format!("/api/queues/{}/{}", t.vhost, t.name))?,
                    of(format!("/api/exchanges/{}/{}", t.vhost, t.name))?,
                    of(format!("{}/k", binding_path(t)))?,
                ];
                all_or_none("queue, exchange, binding", &parts)
            },
            again: &[200, 204],
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE permission",
            scene: |http, t| {
                user_of(http, t);
                let status = http.put(&format!("/api/permissions/{}/{}", t.vhost, t.name), EVERYTHING).status;
                assert!([201, 204].contains(&status), "{status}");
            },
            request: |_, t| ("DELETE", format!("/api/permissions/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| {
                there(http, format!("/api/permissions/{}/{}", t.vhost, t.name)).map(|is_there| !is_there)
            },
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE vhost limit",
            scene: |http, t| {
                vhost_of(http, t);
                let status = http.put(&format!("/api/vhost-limits/{}/max-queues", t.vhost), r#"{"value":5}"#).status;
                assert!([201, 204].contains(&status), "{status}");
            },
            request: |_, t| ("DELETE", format!("/api/vhost-limits/{}/max-queues", t.vhost), String::new()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/vhost-limits/{}", t.vhost)).with(200);
                Ok(found[0]["value"]["max-queues"] != 5)
            },
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE topic permission of an exchange",
            scene: |http, t| {
                user_of(http, t);
                http.put(&format!("/api/topic-permissions/{}/{}", t.vhost, t.name), TOPIC).with(201);
            },
            request: |_, t| {
                ("DELETE", format!("/api/topic-permissions/{}/{}/amq.topic", t.vhost, t.name), String::new())
            },
            is_made: |http, t| has_topic_permission(http, t).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Ours,
        },
        Change {
            name: "POST bulk delete of users",
            scene: |http, t| {
                user_of(http, t);
                http.put(&format!("/api/users/{}-2", t.name), USER).with(201);
            },
            request: |_, t| {
                ("POST", "/api/users/bulk-delete".into(), format!(r#"{{"users":["{0}","{0}-2"]}}"#, t.name))
            },
            is_made: |http, t| {
                let of = |path: String| there(http, path);
                let users = [of(format!("/api/users/{}", t.name))?, of(format!("/api/users/{}-2", t.name))?];
                all_or_none("the two users", &users).map(|are_there| !are_there)
            },
            // RabbitMQ refuses who is not there any more.
            again: if is_foreign() { &[204, 400] } else { DELETE },
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE exchange if-unused",
            scene: exchange_of,
            request: |_, t| ("DELETE", format!("/api/exchanges/{}/{}?if-unused=true", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE queue if-unused",
            scene: queue_of,
            request: |_, t| {
                let condition = if t.kind == Kind::Quorum { "" } else { "?if-unused=true" };
                ("DELETE", format!("/api/queues/{}/{}{condition}", t.vhost, t.name), String::new())
            },
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "POST binding to an exchange",
            scene: two_exchanges_of,
            request: |_, t| ("POST", path_between(t), r#"{"routing_key":"k"}"#.into()),
            is_made: |http, t| there(http, format!("{}/k", path_between(t))),
            again: &[201],
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE binding to an exchange",
            scene: |http, t| {
                two_exchanges_of(http, t);
                http.post(&path_between(t), r#"{"routing_key":"k"}"#).with(201);
            },
            request: |_, t| ("DELETE", format!("{}/k", path_between(t)), String::new()),
            is_made: |http, t| there(http, format!("{}/k", path_between(t))).map(|is_there| !is_there),
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE connection",
            scene: connected_of,
            request: |_, t| ("DELETE", connection_path(t, t.connected.borrow().as_ref().unwrap()), String::new()),
            is_made: is_cut_off,
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "DELETE connections of a user",
            scene: connected_of,
            request: |_, t| ("DELETE", format!("/api/connections/username/{}", t.name), String::new()),
            is_made: is_cut_off,
            again: DELETE,
            whose: Whose::Anybodys,
        },
        Change {
            name: "PUT hold of publishers",
            scene: |http, _| _ = http.delete(&hold_path(http)).with(204),
            request: |http, _| ("PUT", hold_path(http), String::new()),
            is_made: are_held,
            again: PUT,
            whose: Whose::OursAlone,
        },
        Change {
            name: "DELETE hold of publishers",
            scene: |http, _| _ = http.put(&hold_path(http), "").with(204),
            request: |http, _| ("DELETE", hold_path(http), String::new()),
            is_made: |http, t| are_held(http, t).map(|are_held| !are_held),
            again: DELETE,
            whose: Whose::OursAlone,
        },
    ]
}
