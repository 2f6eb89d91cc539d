//! Rows of what is set over the management API: policies, rights, users, virtual hosts, limits,
//! parameters.

use clients::matrix::Outcome;
use clients::wire::Properties;
use clients::{Client, Login, QueueDeclare, Value};

use crate::Row;
use crate::cell::{Cell, Kind, same};

fn put(cell: &Cell<'_>, path: &str, body: &str) -> Outcome {
    let answer = cell.http.put(path, body);
    if (200..300).contains(&answer.status) { Ok(()) } else { Err(format!("PUT {path}: {answer:?}")) }
}

/// A policy for the cell's queue, of one kind or the other.
fn policy(cell: &Cell<'_>, kind: &str, definition: &str) -> Outcome {
    let name = cell.name("q");
    let body = format!(r#"{{"pattern":"^{name}$","definition":{definition},"apply-to":"queues","priority":1}}"#);
    put(cell, &format!("/api/{kind}/%2f/{name}"), &body)
}

/// A row whose policy makes the queue keep its last three messages.
fn keeps_three(name: &'static str, kind: &'static str) -> Row {
    let prepare = move |cell: &mut Cell<'_>| {
        policy(cell, kind, r#"{"max-length":3}"#)?;
        let queue = cell.declare("q", &[])?;
        cell.put(&queue, &["a", "b", "c", "d", "e"])?;
        cell.comes_to_hold(&queue, &["c", "d", "e"])
    };
    let look = |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        cell.holds(&queue, &["c", "d", "e"])?;
        cell.put(&queue, &["c", "d", "e"])?;
        cell.comes_to_hold(&queue, &["c", "d", "e"])
    };
    Row::new(name, prepare, look)
}

fn login(cell: &Cell<'_>, user: &str, password: &str, vhost: &str) -> Result<Client, u16> {
    let response = format!("\0{user}\0{password}").into_bytes();
    let login = Login { response, vhost: vhost.to_owned(), ..Login::default() };
    Client::login(cell.addr(), &login).map_err(|refused| refused.code)
}

/// The code of a get, 0 if it is allowed; the same of a publish and of a declare.
fn allowed(cell: &Cell<'_>, user: &str, queue: &str) -> Result<[u16; 3], String> {
    let mut client = login(cell, user, "secret", "/").map_err(|code| format!("no login: {code}"))?;
    let channel = client.channel();
    let got = client.get(channel, queue, false).map_or_else(|closed| closed.code, |_| 0);
    let channel = client.channel();
    client.confirm_select(channel).map_err(|closed| format!("{closed:?}"))?;
    let properties = Properties::persistent();
    // To an exchange that leads nowhere: a look changes nothing.
    client.publish(channel, &clients::Publish { exchange: "amq.fanout", properties, body: b"x", ..Default::default() });
    let published = match client.event(channel) {
        clients::Event::Closed(closed) => closed.code,
        _ => 0,
    };
    let channel = client.channel();
    let name = format!("{queue}-declared-{}", cell.round);
    let declare = QueueDeclare { name: &name, exclusive: true, ..Default::default() };
    let declared = client.declare(channel, &declare).map_or_else(|closed| closed.code, |_| 0);
    Ok([got, published, declared])
}

fn user(cell: &Cell<'_>, tags: &str, permission: Option<[&str; 3]>) -> Result<String, String> {
    let name = cell.name("user");
    put(cell, &format!("/api/users/{name}"), &format!(r#"{{"password":"secret","tags":"{tags}"}}"#))?;
    if let Some([configure, write, read]) = permission {
        let body = format!(r#"{{"configure":"{configure}","write":"{write}","read":"{read}"}}"#);
        put(cell, &format!("/api/permissions/%2f/{name}"), &body)?;
    }
    Ok(name)
}

fn has_rights(name: &'static str, permission: [&'static str; 3], wanted: [u16; 3]) -> Row {
    let prepare = move |cell: &mut Cell<'_>| {
        let (user, queue) = (user(cell, "", Some(permission))?, cell.declare("q", &[])?);
        same("get, publish, declare", allowed(cell, &user, &queue)?, wanted)
    };
    let look = move |cell: &mut Cell<'_>| {
        let (user, queue) = (cell.name("user"), cell.name("q"));
        same("get, publish, declare", allowed(cell, &user, &queue)?, wanted)
    };
    Row::new(name, prepare, look)
}

fn field(cell: &Cell<'_>, path: &str, name: &str) -> Result<String, String> {
    let answer = cell.http.get(path);
    if answer.status != 200 {
        return Err(format!("GET {path}: {answer:?}"));
    }
    let mut json = answer.json();
    if let Some(first) = json.as_array_mut().and_then(|all| all.pop()) {
        json = first;
    }
    Ok(json[name].to_string())
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![
        keeps_three("policy max-length", "policies"),
        keeps_three("operator policy max-length", "operator-policies"),
        has_rights("right to read", ["^$", "^$", ".*"], [0, 403, 403]),
        has_rights("right to write", ["^$", ".*", "^$"], [403, 0, 403]),
        has_rights("right to configure", [".*", "^$", "^$"], [403, 403, 0]),
        has_rights("all rights", [".*", ".*", ".*"], [0, 0, 0]),
        Row::new(
            "policy message-ttl",
            |cell| {
                policy(cell, "policies", r#"{"message-ttl":700}"#)?;
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a"])
            },
            |cell| {
                let queue = cell.name("q");
                cell.comes_to_hold(&queue, &[])?;
                cell.put(&queue, &["b"])?;
                cell.comes_to_hold(&queue, &[])
            },
        ),
        Row::new(
            "policy dead-letter-exchange",
            |cell| {
                let dead = cell.declare("dead", &[])?;
                let definition = format!(r#"{{"dead-letter-exchange":"","dead-letter-routing-key":"{dead}"}}"#);
                policy(cell, "policies", &definition)?;
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a", "b", "c"])
            },
            |cell| {
                let (queue, dead) = (cell.name("q"), cell.name("dead"));
                cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, false))?;
                cell.comes_to_hold(&dead, if cell.round == 1 { &["a"] } else { &["a", "b"] })
            },
        ),
        Row::new(
            "policy expires",
            |cell| {
                policy(cell, "policies", r#"{"expires":2000}"#)?;
                cell.declare("q", &[]).map(|_| ())
            },
            |cell| {
                let (http, path) = (cell.http, format!("/api/queues/%2f/{}", cell.name("q")));
                cell.until("the end of the queue", |_| http.get(&path).status == 404)
            },
        ),
        Row::new(
            "policy that was taken away",
            |cell| {
                policy(cell, "policies", r#"{"max-length":1}"#)?;
                let queue = cell.declare("q", &[])?;
                let name = cell.name("q");
                let gone = cell.http.delete(&format!("/api/policies/%2f/{name}"));
                same("DELETE", gone.status, 204)?;
                let http = cell.http;
                let path = format!("/api/queues/%2f/{name}");
                cell.until("the queue without a policy", |_| {
                    let answer = http.get(&path);
                    answer.status == 200 && answer.json()["policy"].as_str().is_none_or(str::is_empty)
                })?;
                cell.put(&queue, &["a", "b"])
            },
            |cell| cell.holds(&cell.name("q"), &["a", "b"]),
        ),
        Row::new(
            "password, and one that was changed",
            |cell| {
                let (name, _) = (user(cell, "", Some([".*"; 3]))?, ());
                put(cell, &format!("/api/users/{name}"), r#"{"password":"changed","tags":""}"#)
            },
            |cell| {
                let name = cell.name("user");
                same("with the old one", login(cell, &name, "secret", "/").map(|_| ()), Err(403))?;
                same("with the new one", login(cell, &name, "changed", "/").map(|_| ()), Ok(()))
            },
        ),
        Row::new(
            "tags of a user",
            |cell| user(cell, "monitoring,policymaker", None).map(|_| ()),
            |cell| {
                let tags = field(cell, &format!("/api/users/{}", cell.name("user")), "tags")?;
                same("tags", tags.contains("monitoring") && tags.contains("policymaker"), true)
            },
        ),
        Row::new(
            "user that was deleted",
            |cell| {
                let name = user(cell, "", Some([".*"; 3]))?;
                same("DELETE", cell.http.delete(&format!("/api/users/{name}")).status, 204)
            },
            |cell| same("a login", login(cell, &cell.name("user"), "secret", "/").map(|_| ()), Err(403)),
        ),
        Row::new(
            "right to a topic",
            |cell| {
                let name = user(cell, "", Some([".*"; 3]))?;
                let body = r#"{"exchange":"amq.topic","write":"^a","read":".*"}"#;
                put(cell, &format!("/api/topic-permissions/%2f/{name}"), body)
            },
            |cell| {
                let name = cell.name("user");
                let mut client = login(cell, &name, "secret", "/").map_err(|code| format!("no login: {code}"))?;
                for (key, wanted) in [("a.b", 0), ("b.a", 403)] {
                    let channel = client.channel();
                    client.confirm_select(channel).map_err(|closed| format!("{closed:?}"))?;
                    let publish = clients::Publish { exchange: "amq.topic", key, body: b"x", ..Default::default() };
                    client.publish(channel, &publish);
                    let code = match client.event(channel) {
                        clients::Event::Closed(closed) => closed.code,
                        _ => 0,
                    };
                    same(key, code, wanted)?;
                }
                Ok(())
            },
        ),
        Row::new(
            "virtual host with a queue, and one that was deleted",
            |cell| {
                for stem in ["vhost", "deleted"] {
                    let name = cell.name(stem);
                    put(cell, &format!("/api/vhosts/{name}"), r#"{"description":"ours","tags":"x"}"#)?;
                    put(
                        cell,
                        &format!("/api/permissions/{name}/guest"),
                        r#"{"configure":".*","write":".*","read":".*"}"#,
                    )?;
                    let mut client =
                        login(cell, "guest", "guest", &name).map_err(|code| format!("no login: {code}"))?;
                    let channel = client.channel();
                    let arguments = vec![("x-queue-type", Value::from(cell.kind.word()))];
                    let declare = QueueDeclare { name: "q", durable: true, arguments, ..Default::default() };
                    client.declare(channel, &declare).map_err(|closed| format!("{closed:?}"))?;
                    client.confirm_select(channel).map_err(|closed| format!("{closed:?}"))?;
                    client.put(channel, "q", b"m");
                    client.confirmed(channel, 1, 1);
                    client.close();
                }
                let path = format!("/api/vhosts/{}", cell.name("deleted"));
                same("DELETE", cell.http.delete(&path).status, 204)
            },
            |cell| {
                let (name, deleted) = (cell.name("vhost"), cell.name("deleted"));
                let mut client = login(cell, "guest", "guest", &name).map_err(|code| format!("no login: {code}"))?;
                let channel = client.channel();
                let found = client.get(channel, "q", false).map_err(|closed| format!("{closed:?}"))?;
                same("its message", found.map(|d| d.body), Some(b"m".to_vec()))?;
                same(
                    "what is said of it",
                    field(cell, &format!("/api/vhosts/{name}"), "description")?,
                    r#""ours""#.to_owned(),
                )?;
                same("the other one", cell.http.get(&format!("/api/vhosts/{deleted}")).status, 404)
            },
        ),
        Row::new(
            "limit of a virtual host",
            |cell| {
                let name = cell.name("vhost");
                put(cell, &format!("/api/vhosts/{name}"), "{}")?;
                put(cell, &format!("/api/permissions/{name}/guest"), r#"{"configure":".*","write":".*","read":".*"}"#)?;
                put(cell, &format!("/api/vhost-limits/{name}/max-queues"), r#"{"value":0}"#)
            },
            |cell| {
                let name = cell.name("vhost");
                let mut client = login(cell, "guest", "guest", &name).map_err(|code| format!("no login: {code}"))?;
                let channel = client.channel();
                let declare = QueueDeclare { name: "q", durable: true, ..Default::default() };
                same("a declare", client.declare(channel, &declare).map_err(|closed| closed.code).map(|_| ()), Err(406))
            },
        ),
        Row::new(
            "limit of a user",
            |cell| {
                let name = user(cell, "", Some([".*"; 3]))?;
                put(cell, &format!("/api/user-limits/{name}/max-connections"), r#"{"value":0}"#)
            },
            |cell| same("a login", login(cell, &cell.name("user"), "secret", "/").map(|_| ()), Err(530)),
        ),
    ];
    rows.extend(policies());
    rows.extend(taken_away());
    rows.push(
        Row::new(
            "default queue type of a virtual host",
            |cell| {
                let name = cell.name("vhost");
                let body = format!(r#"{{"default_queue_type":"{}"}}"#, cell.kind.word());
                put(cell, &format!("/api/vhosts/{name}"), &body)
            },
            |cell| {
                let found = field(cell, &format!("/api/vhosts/{}", cell.name("vhost")), "default_queue_type")?;
                same("it", found, format!("\"{}\"", cell.kind.word()))
            },
        )
        .ours(),
    );
    rows
}

/// A policy of one key, and an operator policy where that key may be in one: after a restart they
/// say the same.
fn is_kept(key: &'static str, value: &'static str, is_operators_too: bool) -> Row {
    let kinds = move || ["policies", "operator-policies"].into_iter().take(1 + usize::from(is_operators_too));
    let prepare = move |cell: &mut Cell<'_>| {
        kinds().try_for_each(|kind| policy(cell, kind, &format!(r#"{{"{key}":{value}}}"#)))?;
        cell.declare("q", &[]).map(|_| ())
    };
    let look = move |cell: &mut Cell<'_>| {
        let name = cell.name("q");
        let wanted: serde_json::Value = serde_json::from_str(value).map_err(|why| why.to_string())?;
        for kind in kinds() {
            let found = cell.http.get(&format!("/api/{kind}/%2f/{name}")).with(200);
            same(kind, found["definition"][key].clone(), wanted.clone())?;
            same("its pattern", found["pattern"].clone(), format!("^{name}$").into())?;
            same("its priority", found["priority"].clone(), 1.into())?;
        }
        let http = cell.http;
        cell.until("the policy at its queue", |_| {
            http.get(&format!("/api/queues/%2f/{name}")).with(200)["policy"] == *name
        })
    };
    Row::new(format!("policy key {key}"), prepare, look)
}

fn policies() -> Vec<Row> {
    let all = r#""all""#;
    vec![
        is_kept("alternate-exchange", r#""amq.fanout""#, false),
        is_kept("dead-letter-exchange", r#""amq.fanout""#, false),
        is_kept("dead-letter-routing-key", r#""k""#, false),
        is_kept("dead-letter-strategy", r#""at-least-once""#, false),
        is_kept("message-ttl", "3600000", true),
        is_kept("expires", "3600000", true),
        is_kept("max-length", "7", true),
        is_kept("max-length-bytes", "7000", true),
        is_kept("overflow", r#""reject-publish""#, false),
        is_kept("delivery-limit", "7", true),
        is_kept("delayed-retry-type", all, true).ours(),
        is_kept("delayed-retry-min", "7", true).ours(),
        is_kept("delayed-retry-max", "7", true).ours(),
        is_kept("max-in-memory-length", "7", true),
        is_kept("max-in-memory-bytes", "7", true),
        is_kept("queue-mode", r#""lazy""#, false),
        is_kept("queue-version", "2", false),
        is_kept("queue-leader-locator", r#""balanced""#, false),
        is_kept("target-group-size", "1", true).ours(),
        is_kept("consumer-timeout", "3600000", false).ours(),
        is_kept("consumer-disconnected-timeout", "3600000", false).ours(),
        is_kept("message-deduplication", "true", false).ours(),
        is_kept("deduplication-window-ms", "7000", false).ours(),
        limits_bytes(),
        crate::queues::times_out(
            "consumer that policy consumer-timeout cancels",
            |cell| {
                policy(cell, "policies", &format!(r#"{{"consumer-timeout":{}}}"#, crate::queues::HELD_MS))?;
                cell.declare("q", &[])
            },
            false,
        )
        .only(Kind::Quorum),
        Row::new(
            "policy overflow, of a queue that is full",
            |cell| {
                policy(cell, "policies", r#"{"max-length":1,"overflow":"reject-publish"}"#)?;
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a"])
            },
            |cell| {
                let queue = cell.name("q");
                let refused = cell.publish("", &queue, &[("b", Properties::persistent())])?;
                same("those that are refused", refused, vec![1])?;
                cell.holds(&queue, &["a"])
            },
        )
        .ours(),
        Row::new(
            "policy delivery-limit, passed after a restart",
            |cell| {
                policy(cell, "policies", r#"{"delivery-limit":1}"#)?;
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a"])?;
                cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, true))
            },
            |cell| {
                let queue = cell.name("q");
                if cell.round == 1 {
                    cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, true))?;
                }
                cell.comes_to_hold(&queue, &[])
            },
        )
        .only(Kind::Quorum),
        Row::new(
            "policy alternate-exchange",
            |cell| {
                let (name, other) = (cell.name("e"), cell.declare_exchange("other", "fanout", &[])?);
                let body = format!(
                    r#"{{"pattern":"^{name}$","definition":{{"alternate-exchange":"{other}"}},"apply-to":"exchanges"}}"#
                );
                put(cell, &format!("/api/policies/%2f/{name}"), &body)?;
                cell.declare_exchange("e", "direct", &[])?;
                let queue = cell.declare("q", &[])?;
                cell.bind(&queue, &other, "", &[])
            },
            |cell| {
                cell.publish(&cell.name("e"), "nowhere", &[("m", Properties::persistent())])?;
                cell.comes_to_hold(&cell.name("q"), &vec!["m"; cell.round as usize])
            },
        ),
        Row::new(
            "policy message-deduplication",
            |cell| {
                policy(cell, "policies", r#"{"message-deduplication":true}"#)?;
                let queue = cell.declare("q", &[])?;
                cell.put_as(&queue, &[("a", with_key())])
            },
            |cell| {
                let queue = cell.name("q");
                cell.put_as(&queue, &[("again", with_key())])?;
                cell.holds(&queue, &["a"])
            },
        )
        .ours(),
        Row::new(
            "policy that was changed, and the one of higher priority",
            |cell| {
                let name = cell.name("q");
                policy(cell, "policies", r#"{"max-length":9}"#)?;
                policy(cell, "policies", r#"{"max-length":1}"#)?;
                let low = format!(r#"{{"pattern":"^{name}$","definition":{{"max-length":5}},"priority":0}}"#);
                put(cell, &format!("/api/policies/%2f/{name}-low"), &low)?;
                cell.declare("q", &[]).map(|_| ())
            },
            |cell| {
                let queue = cell.name("q");
                cell.put(&queue, &["a", "b", "c"])?;
                cell.comes_to_hold(&queue, &["c"])
            },
        ),
    ]
}

fn with_key() -> Properties {
    Properties::with_headers(&[("x-deduplication-header", "1".into())])
}

/// As of messages, but of bytes.
fn limits_bytes() -> Row {
    Row::new(
        "policy max-length-bytes",
        |cell| {
            policy(cell, "policies", r#"{"max-length-bytes":2}"#)?;
            let queue = cell.declare("q", &[])?;
            cell.put(&queue, &["a", "b", "c"])
        },
        |cell| {
            let queue = cell.name("q");
            cell.comes_to_hold(&queue, &["b", "c"])?;
            cell.put(&queue, &["b", "c"])?;
            cell.comes_to_hold(&queue, &["b", "c"])
        },
    )
}

/// What somebody had once, and has not any more.
fn taken_away() -> Vec<Row> {
    vec![
        Row::new(
            "right that was changed",
            |cell| {
                let (user, _) = (user(cell, "", Some([".*"; 3]))?, cell.declare("q", &[])?);
                put(cell, &format!("/api/permissions/%2f/{user}"), r#"{"configure":"^$","write":"^$","read":".*"}"#)
            },
            |cell| {
                let (user, queue) = (cell.name("user"), cell.name("q"));
                same("get, publish, declare", allowed(cell, &user, &queue)?, [0, 403, 403])
            },
        ),
        Row::new(
            "right that was taken away",
            |cell| {
                let user = user(cell, "", Some([".*"; 3]))?;
                same("DELETE", cell.http.delete(&format!("/api/permissions/%2f/{user}")).status, 204)
            },
            |cell| same("a login", login(cell, &cell.name("user"), "secret", "/").map(|_| ()), Err(530)),
        ),
        Row::new(
            "right to a topic that was taken away",
            |cell| {
                let name = user(cell, "", Some([".*"; 3]))?;
                let path = format!("/api/topic-permissions/%2f/{name}");
                put(cell, &path, r#"{"exchange":"amq.topic","write":"^a","read":".*"}"#)?;
                same("DELETE", cell.http.delete(&path).status, 204)
            },
            |cell| {
                let name = cell.name("user");
                let mut client = login(cell, &name, "secret", "/").map_err(|code| format!("no login: {code}"))?;
                let channel = client.channel();
                client.confirm_select(channel).map_err(|closed| format!("{closed:?}"))?;
                let publish = clients::Publish { exchange: "amq.topic", key: "b", body: b"x", ..Default::default() };
                client.publish(channel, &publish);
                match client.event(channel) {
                    clients::Event::Confirm { nack: false, .. } => Ok(()),
                    other => Err(format!("a confirm was due: {other:?}")),
                }
            },
        ),
        Row::new(
            "limits that were taken away",
            |cell| {
                let (vhost, name) = (cell.name("vhost"), user(cell, "", None)?);
                put(cell, &format!("/api/vhosts/{vhost}"), "{}")?;
                put(
                    cell,
                    &format!("/api/permissions/{vhost}/{name}"),
                    r#"{"configure":".*","write":".*","read":".*"}"#,
                )?;
                let of_vhost =
                    ["max-queues", "max-connections"].map(|limit| format!("/api/vhost-limits/{vhost}/{limit}"));
                let of_user =
                    ["max-channels", "max-connections"].map(|limit| format!("/api/user-limits/{name}/{limit}"));
                of_vhost.iter().chain(&of_user).try_for_each(|path| {
                    put(cell, path, r#"{"value":0}"#)?;
                    same("DELETE", cell.http.delete(path).status, 204)
                })
            },
            |cell| {
                let (vhost, name) = (cell.name("vhost"), cell.name("user"));
                let mut client = login(cell, &name, "secret", &vhost).map_err(|code| format!("no login: {code}"))?;
                let channel = client.channel();
                let declare = QueueDeclare { name: "q", durable: true, ..Default::default() };
                client.declare(channel, &declare).map(|_| ()).map_err(|closed| format!("{closed:?}"))
            },
        ),
        Row::new(
            "limit of connections of a virtual host",
            |cell| {
                let name = cell.name("vhost");
                put(cell, &format!("/api/vhosts/{name}"), "{}")?;
                put(cell, &format!("/api/permissions/{name}/guest"), r#"{"configure":".*","write":".*","read":".*"}"#)?;
                put(cell, &format!("/api/vhost-limits/{name}/max-connections"), r#"{"value":0}"#)
            },
            |cell| {
                let name = cell.name("vhost");
                same("the virtual host", cell.http.get(&format!("/api/vhosts/{name}")).status, 200)?;
                same("a login", login(cell, "guest", "guest", &name).map(|_| ()), Err(530))
            },
        ),
        Row::new(
            "limit of channels of a user",
            |cell| {
                let name = user(cell, "", Some([".*"; 3]))?;
                put(cell, &format!("/api/user-limits/{name}/max-channels"), r#"{"value":1}"#)
            },
            |cell| {
                let name = cell.name("user");
                let mut client = login(cell, &name, "secret", "/").map_err(|code| format!("no login: {code}"))?;
                client.channel();
                let second = client.open_channel(2).and_then(|()| client.round_trip(2));
                same("a second channel", second.map_err(|closed| closed.code), Err(530))
            },
        ),
        Row::new(
            "password that came as its hash",
            |cell| {
                let name = cell.name("user");
                // The salt 1, 2, 3, 4, and SHA-256 of that and of "hashed".
                let hash = "AQIDBMZlpCepT0oPFm77WEN/N7+r8SBtunipTI6/Q00UfotE";
                let body = format!(r#"{{"password_hash":"{hash}","tags":""}}"#);
                put(cell, &format!("/api/users/{name}"), &body)?;
                put(cell, &format!("/api/permissions/%2f/{name}"), r#"{"configure":"","write":"","read":""}"#)
            },
            |cell| {
                let name = cell.name("user");
                same("with another one", login(cell, &name, "secret", "/").map(|_| ()), Err(403))?;
                same("with its own", login(cell, &name, "hashed", "/").map(|_| ()), Ok(()))
            },
        ),
    ]
}
