//! What each role may ask of the management API, path by path, in a virtual host of its own and in
//! another's: the answers are those of RabbitMQ 3.10.8.
//!
//! `golden-3.10.8.txt` was written by the real one:
//!
//! ```text
//! ROLES_GOLDEN=write AMQP_URI=amqp://127.0.0.1:5672 MANAGEMENT=127.0.0.1:15672 cargo test -p clients --test roles
//! ```
//!
//! Invariant: every cell is asked, and one that differs from the golden is named in `DIFFERENCES`
//! with its reason, or fails.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod rows;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clients::broker::unique;
use clients::client::PATIENCE;
use clients::{Broker, Client, Http, Login};
use serde_json::Value;

use rows::{Ask, DIFFERENCES, ELSEWHERE, OTHERS, ROWS, Who};

const EVERYTHING: &str = r#"{"configure":".*","write":".*","read":".*"}"#;
const ROLES: &[&str] = &["none", "management", "policymaker", "monitoring", "administrator"];

/// What all cells have in common.
struct Scene {
    guest: Http,
    own: String,
    other: String,
    node: String,
    /// Somebody else, whose limits and rights are asked for.
    subject: String,
    /// Names of guest's connections, by virtual host.
    connections: BTreeMap<String, String>,
    _clients: Vec<Client>,
}

/// One who asks.
struct Asker {
    http: Http,
    name: String,
    /// The name of the asker's own connection, in the asker's virtual host.
    connection: String,
    _client: Option<Client>,
}

fn connection_of(guest: &Http, vhost: &str, user: &str) -> String {
    let due = Instant::now() + PATIENCE;
    loop {
        let all = guest.get("/api/connections").with(200);
        let mut found = all.as_array().unwrap().iter().filter(|c| c["vhost"] == vhost && c["user"] == user);
        if let Some(found) = found.next() {
            return found["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
        }
        assert!(Instant::now() < due, "no connection of {user} in {vhost}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn connect(broker: &Broker, vhost: &str, user: &str, password: &str) -> Client {
    let response = format!("\0{user}\0{password}").into_bytes();
    let mut client =
        Client::login(broker.addr(), &Login { vhost: vhost.to_owned(), response, ..Login::default() }).unwrap();
    client.channel();
    client
}

impl Scene {
    fn new(broker: &Broker, guest: Http) -> Scene {
        let (own, other, subject) = (unique("own"), unique("other"), unique("subject"));
        let done = |status: u16| assert!([200, 201, 204].contains(&status), "the scene is set: {status}");
        done(guest.put(&format!("/api/users/{subject}"), r#"{"password":"pw","tags":""}"#).status);
        done(guest.put(&format!("/api/user-limits/{subject}/max-channels"), r#"{"value":100}"#).status);
        let mut clients = Vec::new();
        for vhost in [&own, &other] {
            for (path, body) in [
                (format!("/api/vhosts/{vhost}"), ""),
                (format!("/api/permissions/{vhost}/guest"), EVERYTHING),
                (format!("/api/permissions/{vhost}/{subject}"), EVERYTHING),
                (
                    format!("/api/topic-permissions/{vhost}/{subject}"),
                    r#"{"exchange":"amq.topic","write":".*","read":".*"}"#,
                ),
                (format!("/api/queues/{vhost}/q"), r#"{"durable":true}"#),
                (format!("/api/exchanges/{vhost}/x"), r#"{"type":"direct","durable":true}"#),
                (format!("/api/policies/{vhost}/p"), r#"{"pattern":"^none$","definition":{"max-length":5}}"#),
                (format!("/api/operator-policies/{vhost}/o"), r#"{"pattern":"^none$","definition":{"max-length":5}}"#),
                (format!("/api/vhost-limits/{vhost}/max-queues"), r#"{"value":100}"#),
            ] {
                done(guest.put(&path, body).status);
            }
            done(guest.post(&format!("/api/bindings/{vhost}/e/x/q/q"), r#"{"routing_key":"k"}"#).status);
            clients.push(connect(broker, vhost, "guest", "guest"));
        }
        let named = |vhost: &String| (vhost.clone(), connection_of(&guest, vhost, "guest"));
        let connections = [&own, &other].map(named).into_iter().collect();
        let nodes = guest.get("/api/nodes").with(200);
        let node = nodes[0]["name"].as_str().unwrap().replace('@', "%40");
        Scene { guest, own, other, node, subject, connections, _clients: clients }
    }

    fn asker(&self, broker: &Broker, role: &str) -> Asker {
        let name = unique(role);
        let tags = if role == "none" { "" } else { role };
        let body = format!(r#"{{"password":"pw","tags":"{tags}"}}"#);
        self.guest.put(&format!("/api/users/{name}"), &body).with(201);
        self.guest.put(&format!("/api/permissions/{}/{name}", self.own), EVERYTHING).with(201);
        let http = self.guest.as_user(&name, "pw");
        if role == "none" {
            return Asker { http, name, connection: "none".to_owned(), _client: None };
        }
        let client = connect(broker, &self.own, &name, "pw");
        let connection = connection_of(&self.guest, &self.own, &name);
        Asker { http, name, connection, _client: Some(client) }
    }

    fn filled(&self, text: &str, vhost: &str, asker: &Asker) -> String {
        text.replace("{V}", vhost)
            .replace("{OTHER}", if vhost == self.own { &self.other } else { &self.own })
            .replace("{U}", &asker.name)
            .replace("{S}", &self.subject)
            .replace("{N}", &self.node)
            .replace("{M}", &asker.connection)
            .replace("{C}", &self.connections[vhost])
    }

    /// The status, and for a list whose virtual hosts are in it.
    fn answer(&self, ask: &Ask, vhost: &str, asker: &Asker) -> String {
        for (method, path, body) in ask.before {
            self.guest.send(method, &self.filled(path, vhost, asker), &[], &self.filled(body, vhost, asker));
        }
        let path = self.filled(ask.path, vhost, asker);
        let response = asker.http.send(ask.method, &path, &[], &self.filled(ask.body, vhost, asker));
        let mut text = response.status.to_string();
        if let (200, "GET", Ok(Value::Array(items))) =
            (response.status, ask.method, serde_json::from_str(&response.text))
        {
            for (name, vhost) in [("own", &self.own), ("other", &self.other)] {
                let is_of = |item: &Value| {
                    let queue = &item["queue"]["vhost"];
                    item["vhost"] == **vhost || item["name"] == **vhost || *queue == **vhost
                };
                if items.iter().any(is_of) {
                    text = text + " " + name;
                }
            }
        }
        text
    }
}

#[test]
fn every_role_is_answered_as_rabbitmq_answers_it() {
    let Some((broker, guest)) = Broker::managed(&[]) else { return };
    let scene = Scene::new(&broker, guest);
    let mut answers = Vec::new();
    for role in ROLES {
        let asker = scene.asker(&broker, role);
        for ask in ROWS {
            // Who may not use the API at all is told so at every path alike.
            if *role == "none" && !ask.is_asked_by_none() {
                continue;
            }
            let places: &[(&str, &String)] = match ask.has_vhost() {
                true => &[("own", &scene.own), ("other", &scene.other)],
                false => &[("-", &scene.own)],
            };
            for (place, vhost) in places {
                let case = format!("{role} {place} {} {}{}", ask.method, ask.path, ask.note);
                answers.push((case, scene.answer(ask, vhost, &asker)));
            }
        }
        scene.guest.delete(&format!("/api/users/{}", asker.name)).with(204);
    }
    for vhost in [&scene.own, &scene.other] {
        scene.guest.delete(&format!("/api/vhosts/{vhost}")).with(204);
    }
    scene.guest.delete(&format!("/api/users/{}", scene.subject)).with(204);
    compare(&answers);
}

#[test]
fn every_role_is_answered_at_paths_of_our_own_as_their_table_says() {
    let Some((broker, guest)) = Broker::managed(&[]).filter(|_| !clients::broker::is_foreign()) else { return };
    let scene = Scene::new(&broker, guest);
    let mut wrong = Vec::new();
    for role in ROLES {
        let asker = scene.asker(&broker, role);
        for (who, ask) in OTHERS {
            for (place, vhost) in [("own", &scene.own), ("other", &scene.other)] {
                let is_own = place == "own";
                let is_let_in = *role != "none"
                    && match who {
                        Who::Everybody => true,
                        Who::OfTheVirtualHost => is_own || *role == "administrator",
                        Who::UsesTheVirtualHost => is_own,
                        Who::Monitors => ["monitoring", "administrator"].contains(role),
                        Who::Administrators => *role == "administrator",
                        Who::Nobody => false,
                    };
                let answer = scene.answer(ask, vhost, &asker);
                if answer.starts_with("401") == is_let_in {
                    wrong.push(format!("{role} {place} {} {} => {answer}", ask.method, ask.path));
                }
            }
        }
        scene.guest.delete(&format!("/api/users/{}", asker.name)).with(204);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_path_of_the_api_is_asked_by_every_role() {
    let Some((_broker, guest)) = Broker::managed(&[]).filter(|_| !clients::broker::is_foreign()) else { return };
    let asked: Vec<(&str, &str)> =
        ROWS.iter().chain(OTHERS.iter().map(|(_, ask)| ask)).map(|ask| (ask.method, ask.path)).collect();
    let is_of = |path: &str, template: &str| {
        let (parts, wanted): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), template.split('/').collect());
        parts.len() == wanted.len()
            && parts.iter().zip(wanted).all(|(part, wanted)| wanted.starts_with('{') || *part == wanted)
    };
    let document = guest.get("/api/openapi.json").with(200);
    let mut missing = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        if ELSEWHERE.iter().any(|of| path.strip_prefix("/api/") == Some(of)) {
            continue;
        }
        for method in operations.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let method = method.to_uppercase();
            if !asked.iter().any(|(of, asked)| *of == method && is_of(asked, path)) {
                missing.push(format!("{method} {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "no role asks for\n{}", missing.join("\n"));
}

fn compare(answers: &[(String, String)]) {
    let lines: Vec<String> = answers.iter().map(|(case, answer)| format!("{case} => {answer}")).collect();
    if std::env::var_os("ROLES_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/roles/golden-3.10.8.txt");
        std::fs::write(path, lines.join("\n") + "\n").unwrap();
        return;
    }
    let golden: BTreeMap<&str, &str> =
        include_str!("golden-3.10.8.txt").lines().map(|line| line.split_once(" => ").unwrap()).collect();
    assert_eq!(golden.len(), answers.len(), "the golden has every case and no other");
    let mut wrong = Vec::new();
    let mut excused = vec![0; DIFFERENCES.len()];
    for (case, ours) in answers {
        let theirs = golden.get(case.as_str()).copied().unwrap_or("nothing: the golden lacks it");
        if theirs == ours {
            continue;
        }
        match DIFFERENCES.iter().position(|difference| (difference.is_it)(case, theirs, ours)) {
            Some(at) => excused[at] += 1,
            None => wrong.push(format!("{case}: RabbitMQ {theirs}, here {ours}")),
        }
    }
    for (difference, count) in DIFFERENCES.iter().zip(&excused) {
        println!("{count:4} differ: {}", difference.why);
    }
    assert!(wrong.is_empty(), "{} of {} cells differ:\n{}", wrong.len(), answers.len(), wrong.join("\n"));
    if !clients::broker::is_foreign() {
        let unused: Vec<&str> =
            DIFFERENCES.iter().zip(&excused).filter(|(_, count)| **count == 0).map(|(d, _)| d.why).collect();
        assert!(unused.is_empty(), "no difference any more: {unused:?}");
    }
}
