//! The askers over HTTP: each change, its caller gone.
//!
//! Invariant: a change that was begun is finished, whoever listens, and is never seen in half for long.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use clients::broker::{is_foreign, unique};
use clients::matrix::side_by_side;
use clients::{Broker, Client, Difference, Event, Http, Matrix, Outcome};

use crate::{Kind, comes_about, tries};

/// How a caller over HTTP goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangUp {
    /// Right behind the request.
    AtOnce,
    /// A moment later, when the work has begun.
    Soon,
    /// In the middle of the request.
    Half,
}

impl HangUp {
    const ALL: [HangUp; 3] = [HangUp::AtOnce, HangUp::Soon, HangUp::Half];
}

/// What one change over HTTP is about.
struct Thing {
    vhost: String,
    name: String,
    kind: Kind,
}

/// A change over HTTP.
struct Change {
    name: &'static str,
    scene: fn(&Http, &Thing),
    request: fn(&Thing) -> (&'static str, String, String),
    /// Whether it was made; an error if only half of it was.
    is_made: fn(&Http, &Thing) -> Result<bool, String>,
    /// Asked again, one of these.
    again: &'static [u16],
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

fn changes() -> Vec<Change> {
    let nobody: fn(&Http, &Thing) = |_, _| ();
    const PUT: &[u16] = &[201, 204];
    const DELETE: &[u16] = &[204, 404];
    vec![
        Change {
            name: "PUT vhost",
            scene: nobody,
            request: |t| {
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
                    found => Err(format!("permission, default queue type, tag: {found:?}")),
                }
            },
            again: PUT,
        },
        Change {
            name: "DELETE vhost",
            scene: bound_of,
            request: |t| ("DELETE", format!("/api/vhosts/{}", t.vhost), String::new()),
            is_made: |http, t| there(http, format!("/api/vhosts/{}", t.vhost)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT user",
            scene: nobody,
            request: |t| ("PUT", format!("/api/users/{}", t.name), USER.into()),
            is_made: |http, t| {
                let is_there = there(http, format!("/api/users/{}", t.name))?;
                let gets_in = http.as_user(&t.name, "secret").get("/api/whoami").status == 200;
                if is_there == gets_in { Ok(is_there) } else { Err("who is there cannot log in".into()) }
            },
            again: PUT,
        },
        Change {
            name: "DELETE user",
            scene: user_of,
            request: |t| ("DELETE", format!("/api/users/{}", t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/users/{}", t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT permission",
            scene: user_of,
            request: |t| ("PUT", format!("/api/permissions/{}/{}", t.vhost, t.name), EVERYTHING.into()),
            is_made: |http, t| there(http, format!("/api/permissions/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "PUT policy",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/policies/{}/{}", t.vhost, t.name), POLICY.into()),
            is_made: |http, t| there(http, format!("/api/policies/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE policy",
            scene: |http, t| {
                vhost_of(http, t);
                http.put(&format!("/api/policies/{}/{}", t.vhost, t.name), POLICY).with(201);
            },
            request: |t| ("DELETE", format!("/api/policies/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/policies/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT vhost limit",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/vhost-limits/{}/max-queues", t.vhost), r#"{"value":5}"#.into()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/vhost-limits/{}", t.vhost)).with(200);
                Ok(found[0]["value"]["max-queues"] == 5)
            },
            again: PUT,
        },
        Change {
            name: "PUT user limit",
            scene: user_of,
            request: |t| ("PUT", format!("/api/user-limits/{}/max-connections", t.name), r#"{"value":5}"#.into()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/user-limits/{}", t.name)).with(200);
                Ok(found[0]["value"]["max-connections"] == 5)
            },
            again: PUT,
        },
        Change {
            name: "DELETE user limit",
            scene: |http, t| {
                user_of(http, t);
                let status = http.put(&format!("/api/user-limits/{}/max-connections", t.name), r#"{"value":5}"#).status;
                assert!([201, 204].contains(&status), "{status}");
            },
            request: |t| ("DELETE", format!("/api/user-limits/{}/max-connections", t.name), String::new()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/user-limits/{}", t.name)).with(200);
                Ok(found[0]["value"]["max-connections"] != 5)
            },
            again: DELETE,
        },
        Change {
            name: "PUT operator policy",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/operator-policies/{}/{}", t.vhost, t.name), POLICY.into()),
            is_made: |http, t| there(http, format!("/api/operator-policies/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE operator policy",
            scene: |http, t| {
                vhost_of(http, t);
                http.put(&format!("/api/operator-policies/{}/{}", t.vhost, t.name), POLICY).with(201);
            },
            request: |t| ("DELETE", format!("/api/operator-policies/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| {
                there(http, format!("/api/operator-policies/{}/{}", t.vhost, t.name)).map(|is_there| !is_there)
            },
            again: DELETE,
        },
        Change {
            name: "PUT topic permission",
            scene: user_of,
            request: |t| ("PUT", format!("/api/topic-permissions/{}/{}", t.vhost, t.name), TOPIC.into()),
            is_made: has_topic_permission,
            again: PUT,
        },
        Change {
            name: "DELETE topic permission",
            scene: |http, t| {
                user_of(http, t);
                http.put(&format!("/api/topic-permissions/{}/{}", t.vhost, t.name), TOPIC).with(201);
            },
            request: |t| ("DELETE", format!("/api/topic-permissions/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| has_topic_permission(http, t).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT exchange",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/exchanges/{}/{}", t.vhost, t.name), r#"{"type":"fanout"}"#.into()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE exchange",
            scene: bound_of,
            request: |t| ("DELETE", format!("/api/exchanges/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT queue",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/queues/{}/{}", t.vhost, t.name), queue_body(t)),
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE queue",
            scene: queue_of,
            request: |t| ("DELETE", format!("/api/queues/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "DELETE queue if-empty",
            scene: queue_of,
            request: |t| {
                let condition = if t.kind == Kind::Quorum { "" } else { "?if-empty=true" };
                ("DELETE", format!("/api/queues/{}/{}{condition}", t.vhost, t.name), String::new())
            },
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "DELETE queue contents",
            scene: queue_of,
            request: |t| ("DELETE", format!("/api/queues/{}/{}/contents", t.vhost, t.name), String::new()),
            is_made: |_, _| Ok(true),
            again: &[204],
        },
        Change {
            name: "POST binding",
            scene: exchange_of,
            request: |t| ("POST", binding_path(t), r#"{"routing_key":"k"}"#.into()),
            is_made: |http, t| there(http, format!("{}/k", binding_path(t))),
            again: &[201],
        },
        Change {
            name: "DELETE binding",
            scene: bound_of,
            request: |t| ("DELETE", format!("{}/k", binding_path(t)), String::new()),
            is_made: |http, t| there(http, format!("{}/k", binding_path(t))).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "POST definitions",
            scene: nobody,
            request: |t| ("POST", "/api/definitions".into(), definitions(t)),
            is_made: |http, t| {
                let of = |path: String| there(http, path);
                let parts = [
                    of(format!("/api/vhosts/{}", t.vhost))?,
                    of(format!("/api/permissions/{}/guest", t.vhost))?,
                    of(format!("/api/queues/{}/{}", t.vhost, t.name))?,
                    of(format!("/api/exchanges/{}/{}", t.vhost, t.name))?,
                    of(format!("{}/k", binding_path(t)))?,
                ];
                match parts.iter().filter(|is_there| **is_there).count() {
                    0 => Ok(false),
                    5 => Ok(true),
                    _ => Err(format!("virtual host, permission, queue, exchange, binding: {parts:?}")),
                }
            },
            again: &[200, 204],
        },
    ]
}

fn call_and_hang_up(http: &Http, (method, path, body): (&str, String, String), how: HangUp) {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: broker\r\n").into_bytes();
    request.extend(b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nContent-Type: application/json\r\n");
    request.extend(format!("Content-Length: {}\r\n\r\n{body}", body.len()).bytes());
    if how == HangUp::Half {
        // Within the body, or within the end of the head where there is no body.
        request.truncate(request.len() - 1 - body.len() / 2);
    }
    let mut socket = TcpStream::connect(http.addr()).expect("the API listens");
    socket.write_all(&request).unwrap();
    if how == HangUp::Soon {
        socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        // An answer may be faster.
        let _ = socket.read(&mut [0; 16]);
    }
    // The peer may have closed it already.
    let _ = socket.shutdown(Shutdown::Both);
}

fn try_change(broker: &Broker, http: &Http, change: &Change, kind: Kind, how: HangUp) -> Outcome {
    let thing = Thing { vhost: unique("askers-v"), name: unique("askers-n"), kind };
    (change.scene)(http, &thing);
    call_and_hang_up(http, (change.request)(&thing), how);
    if how == HangUp::Half {
        if change.name != "DELETE queue contents" && (change.is_made)(http, &thing)? {
            return Err("half a request was carried out".to_owned());
        }
    } else {
        // What was begun is finished soon.
        let mut last = Ok(false);
        let whole = comes_about("a whole change or none", || {
            last = (change.is_made)(http, &thing);
            last.is_ok()
        });
        whole.map_err(|why| format!("{why}: {last:?}"))?;
    }
    let (method, path, body) = (change.request)(&thing);
    let answer = http.send(method, &path, &[], &body);
    if !change.again.contains(&answer.status) {
        return Err(format!("asked again: {answer:?}"));
    }
    if !(change.is_made)(http, &thing)? {
        return Err("asked again, and it is not made".to_owned());
    }
    if thing_has_vhost(http, &thing) && change.name != "DELETE queue contents" {
        // Whatever became of the queue: one of this name confirms what it has.
        let login = clients::Login { vhost: thing.vhost.clone(), ..Default::default() };
        let mut client = Client::login(broker.addr(), &login).map_err(|why| format!("login: {why:?}"))?;
        client.channel();
        let status = http.put(&format!("/api/queues/{}/{}", thing.vhost, thing.name), "").status;
        if status >= 300 && status != 400 {
            return Err(format!("the queue again: {status}"));
        }
        client.confirm_select(1).unwrap();
        let mut taken = false;
        // RabbitMQ refuses what meets the beginning of a quorum queue.
        for seq in 1..=if is_foreign() { 8 } else { 1 } {
            client.put(1, &thing.name, b"probe");
            match client.event(1) {
                Event::Confirm { tag, nack: false, .. } if tag == seq => taken = true,
                Event::Confirm { nack: true, .. } if is_foreign() => std::thread::sleep(Duration::from_millis(100)),
                other => return Err(format!("a confirm was due: {other:?}")),
            }
            if taken {
                break;
            }
        }
        if !taken {
            return Err("the queue refuses what is published".to_owned());
        }
        let got = client.get(1, &thing.name, true).map_err(|why| format!("get: {why:?}"))?;
        if got.is_none() {
            return Err("confirmed, and not in its queue".to_owned());
        }
    }
    Ok(())
}

fn thing_has_vhost(http: &Http, thing: &Thing) -> bool {
    http.get(&format!("/api/vhosts/{}", thing.vhost)).status == 200
}

/// Where RabbitMQ 3.10.8 differs.
const HTTP_DIFFERENCES: &[Difference] = &[];

#[test]
fn http_callers_that_vanish_leave_nothing_half_done() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let columns = Kind::ALL.iter().flat_map(|kind| HangUp::ALL.iter().map(move |how| (*kind, *how)));
    let columns: Vec<(String, Kind, HangUp)> =
        columns.map(|(kind, how)| (format!("{kind:?}, {how:?}"), kind, how)).collect();
    let changes = changes();
    let (names, heads) = (changes.iter().map(|change| change.name), columns.iter().map(|c| c.0.clone()));
    let matrix = Matrix::new("askers over HTTP", names, heads, HTTP_DIFFERENCES);
    let jobs = changes.iter().flat_map(|change| columns.iter().map(move |column| (change, column)));
    side_by_side(
        4,
        jobs,
        |_| (),
        |(), (change, (column, kind, how))| {
            let concerns_queues = change.name.contains("queue");
            if *kind != Kind::Classic && !concerns_queues {
                return matrix.leave_out(change.name, column);
            }
            for _ in 0..tries() {
                if !matrix.has_failed(change.name, column) {
                    matrix.cell(change.name, column, || try_change(&broker, &http, change, *kind, *how));
                }
            }
        },
    );
    matrix.finish();
}
