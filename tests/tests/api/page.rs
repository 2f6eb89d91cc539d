//! The page: what a browser is given. Who is logged in on it is in `session.rs`. The page
//! itself is clicked through in `tests/page/`.

use clients::Broker;
use clients::broker::is_foreign;
use clients::http::{Http, Response};

/// A request of a browser: without a name, with these headers.
pub(crate) fn browse(http: &Http, method: &str, path: &str, headers: &str) -> Response {
    let length = if method == "GET" { "" } else { "Content-Length: 0\r\n" };
    let text = format!("{method} {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n{length}{headers}\r\n");
    http.raw(text.as_bytes())
}

/// A header of an answer.
pub(crate) fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let start = format!("{name}: ");
    response.head.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default()
}

/// Logs in on the page; the cookie as it goes back.
pub(crate) fn login(http: &Http) -> String {
    let answer = http.send("POST", "/api/leveret/session", &[("X-Leveret-Page", "1")], "");
    assert_eq!(answer.status, 204, "{answer:?}");
    let set = header(&answer, "set-cookie");
    assert!(set.contains("httponly") && set.contains("samesite=strict") && set.contains("max-age="), "{set}");
    format!("Cookie: {}\r\n", set.split(';').next().unwrap())
}

pub(crate) const PAGE: &str = "X-Leveret-Page: 1\r\n";

#[test]
fn the_page_is_given_to_anybody_and_lets_a_browser_run_its_own_files_alone() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let page = browse(&http, "GET", "/", "");
    assert_eq!((page.status, header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    let policy = header(&page, "content-security-policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(header(&page, "cache-control"), "no-cache");
    let tag = header(&page, "etag").to_owned();
    assert_eq!(browse(&http, "GET", "/", &format!("If-None-Match: {tag}\r\n")).status, 304);
    let mut asked = 0;
    for part in page.text.split("=\"ui/").skip(1) {
        let path = format!("/ui/{}", part.split('"').next().unwrap());
        let file = browse(&http, "GET", &path, "");
        assert_eq!(file.status, 200, "{path}");
        assert_eq!(header(&file, "cache-control"), "public, max-age=31536000, immutable", "{path}");
        assert!(!file.text.is_empty() && header(&file, "content-security-policy") == policy, "{path}");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
    assert_eq!(browse(&http, "GET", "/ui/0/../Cargo.toml", "").status, 404);
    assert_eq!(browse(&http, "GET", "/ui/0/none.js", "").status, 404);
    assert_eq!(browse(&http, "POST", "/", "").status, 405);
    // Where RabbitMQ tells people of its API; a path of the API is told as before.
    for (path, place) in [("/api", "./#/api"), ("/api/", "../#/api"), ("/api/index.html", "../#/api")] {
        let found = browse(&http, "GET", path, "");
        assert_eq!((found.status, header(&found, "location")), (302, place), "{path}");
    }
    assert_eq!(browse(&http, "GET", "/api/overview", "").status, 401);
    // An older build's page may ask this one; it keeps nothing of the answer.
    let other = browse(&http, "GET", "/ui/0/app.css", "");
    assert_eq!((other.status, header(&other, "cache-control")), (200, "no-cache"));
}

/// As in RabbitMQ: its page's files have tags, what its API answers has none.
#[test]
fn files_of_the_page_are_not_sent_twice_and_answers_of_the_api_have_no_tags() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let page = browse(&http, "GET", "/", "");
    let mut asked = 0;
    for part in page.text.split("=\"ui/").skip(1) {
        let path = format!("/ui/{}", part.split('"').next().unwrap());
        let told = browse(&http, "GET", &path, "");
        let tag = header(&told, "etag").to_owned();
        assert!(told.status == 200 && tag.len() > 2, "{path}: {}", told.head);
        let again = browse(&http, "GET", &path, &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((again.status, &*again.text, header(&again, "etag")), (304, "", &*tag), "{path}");
        assert_eq!(browse(&http, "GET", &path, "If-None-Match: \"another\"\r\n").status, 200, "{path}");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    for path in
        ["overview", "nodes", "queues", "queues/%2F/q", "exchanges", "bindings", "vhosts", "users", "definitions"]
    {
        let told = http.send("GET", &format!("/api/{path}"), &[("If-None-Match", "*")], "");
        assert_eq!((told.status, header(&told, "etag")), (200, ""), "{path}: {}", told.head);
    }
}
