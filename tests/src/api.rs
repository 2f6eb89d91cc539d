//! What tests of the management API share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, unique};
use crate::client::{Client, Login, PATIENCE};
use crate::http::{Http, Response};

/// Asks until the answer is as wanted.
pub fn until(what: &str, mut ask: impl FnMut() -> Option<Value>) -> Value {
    let due = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < due, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A virtual host of the test's own, which guest may use.
pub fn vhost(http: &Http) -> String {
    let name = unique("vhost");
    http.put(&format!("/api/vhosts/{name}"), "").with(201);
    let everything = r#"{"configure":".*","write":".*","read":".*"}"#;
    let status = http.put(&format!("/api/permissions/{name}/guest"), everything).status;
    assert!([201, 204].contains(&status), "RabbitMQ gives the maker of a virtual host everything in it: {status}");
    name
}

/// The reason of a refusal with this status.
pub fn reason(response: &Response, status: u16) -> String {
    let body = response.with(status);
    body["reason"].as_str().unwrap_or_else(|| panic!("a refusal has a reason: {response:?}")).to_owned()
}

/// The only connection of a virtual host.
pub fn connection_in(http: &Http, vhost: &str) -> Value {
    until("a connection in the list", || {
        let all = http.get("/api/connections").with(200);
        let mut own = all.as_array().expect("a list").iter().filter(|c| c["vhost"] == vhost && c["state"] == "running");
        own.next().cloned()
    })
}

/// Where a connection of a list is.
pub fn path_of(connection: &Value) -> String {
    let name = connection["name"].as_str().expect("it has a name");
    format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"))
}

/// A client of guest in a virtual host.
pub fn connect(broker: &Broker, vhost: &str) -> Client {
    Client::login(broker.addr(), &Login { vhost: vhost.to_owned(), ..Login::default() }).expect("it may log in")
}

/// Samples of a page of metrics: by name, each with its labels as they stand there and its value.
pub fn samples(text: &str) -> BTreeMap<String, Vec<(String, f64)>> {
    let mut found: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("a sample has a value: {line}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let value = value.parse().unwrap_or_else(|_| panic!("a number: {line}"));
        found.entry(name.to_owned()).or_default().push((labels.trim_end_matches('}').to_owned(), value));
    }
    found
}
