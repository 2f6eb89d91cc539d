//! What tests of the management API share.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::unique;
use crate::client::PATIENCE;
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
