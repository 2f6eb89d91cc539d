//! What strangers may do to those who are logged in, over HTTP and over AMQP: guess, hold up, ask
//! through somebody's browser.
//!
//! Invariant: counts are asserted, and that somebody is answered at all while others hold back;
//! never how fast.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use clients::broker::{is_foreign, unique};
use clients::client::PATIENCE;
use clients::{Broker, Client, Http, Login, QueueDeclare, Refused, Value};
use rustix::net::{AddressFamily, SocketType};

const GUEST: &str = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
/// Long before the thirty seconds that a head or a body may take.
const SOON: Duration = Duration::from_secs(15);

/// Sends bytes and keeps the socket.
fn begin(addr: SocketAddr, bytes: &str) -> TcpStream {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.write_all(bytes.as_bytes()).unwrap();
    socket
}

/// The status of an answer that comes soon, to a request that may be unfinished.
fn status(mut socket: &TcpStream) -> Result<u16, std::io::Error> {
    let mut line = [0; 12];
    socket.read_exact(&mut line)?;
    Ok(String::from_utf8_lossy(&line)[9..].parse().unwrap_or(0))
}

/// A browser's request for a page of another site, as Chromium 156 sends them; without
/// `Sec-Fetch-Site` to hosts other than this machine, because it gives that to trustworthy
/// addresses only.
fn from_a_page(addr: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> u16 {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: {}\r\nCache-Control: max-age=0\r\n{GUEST}\
         Upgrade-Insecure-Requests: 1\r\n{headers}\r\n{body}",
        body.len()
    );
    status(&begin(addr, &head)).unwrap()
}

#[test]
fn a_page_of_another_site_changes_nothing_for_somebody_who_is_logged_in() {
    if is_foreign() {
        eprintln!("skipped: RabbitMQ takes what a page sends");
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    let (addr, name) = (http.addr(), unique("by-page"));
    let user =
        format!(r#"{{"users":[{{"name":"{name}","password":"x","tags":"administrator"}}],"vhosts":[], "x": "="}}"#);
    let here = format!("http://{addr}");
    for headers in [
        // A form in text/plain, from another machine and from another port of this one.
        "Content-Type: text/plain\r\nOrigin: http://elsewhere.example\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
         Sec-Fetch-Dest: document\r\nReferer: http://elsewhere.example/\r\n",
        "Content-Type: text/plain\r\nOrigin: http://localhost:20512\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\n\
         Sec-Fetch-Dest: document\r\nReferer: http://localhost:20512/\r\n",
        // `fetch` and `sendBeacon`, which need no preflight for these types.
        "Content-Type: text/plain;charset=UTF-8\r\nOrigin: http://elsewhere.example\r\nSec-Fetch-Site: cross-site\r\n\
         Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\nOrigin: null\r\n",
        // To a broker that is not on this machine.
        "Content-Type: text/plain\r\nOrigin: http://elsewhere.example\r\nReferer: http://elsewhere.example/\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\nReferer: http://elsewhere.example/\r\n",
        // As if a preflight had been granted.
        "Content-Type: application/json\r\nOrigin: http://elsewhere.example\r\n",
    ] {
        assert_eq!(from_a_page(addr, "POST", "/api/definitions", headers, &user), 403, "{headers}");
        assert_eq!(http.get(&format!("/api/users/{name}")).status, 404, "{headers}");
    }
    let foreign = "Origin: http://elsewhere.example\r\n";
    assert_eq!(from_a_page(addr, "PUT", "/api/vhosts/by-page", foreign, ""), 403);
    assert_eq!(from_a_page(addr, "DELETE", "/api/vhosts/%2F", foreign, ""), 403);
    assert_eq!(http.get("/api/vhosts/%2F").status, 200);
    // A preflight is granted nothing, whatever it asks for.
    for (origin, method) in [("http://elsewhere.example", "PUT"), (&*here, "DELETE")] {
        let preflight = http.raw(
            format!(
                "OPTIONS /api/vhosts/v HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nOrigin: {origin}\r\n\
                 Access-Control-Request-Method: {method}\r\nAccess-Control-Request-Headers: content-type\r\n\r\n"
            )
            .as_bytes(),
        );
        assert!(preflight.status >= 400 && !preflight.head.contains("access-control"), "{preflight:?}");
    }
    // A page at the API's own address may, and so may programs, whatever type they name or none:
    // `curl -d` names a form's.
    let own = format!("Content-Type: text/plain\r\nOrigin: {here}\r\n");
    assert_eq!(from_a_page(addr, "PUT", "/api/vhosts/own-page", &own, ""), 201);
    for (at, kind) in
        ["application/x-www-form-urlencoded", "text/plain", "application/json", ""].into_iter().enumerate()
    {
        let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
        assert_eq!(from_a_page(addr, "PUT", &format!("/api/vhosts/program-{at}"), &kind, "{}"), 201, "{kind}");
    }
}

#[test]
fn sockets_that_trickle_a_head_shut_nobody_out() {
    if is_foreign() {
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    // One that is logged in keeps its connection throughout.
    let mut known = begin(http.addr(), "");
    let ask = format!("GET /api/whoami HTTP/1.1\r\nHost: x\r\n{GUEST}\r\n");
    let mut answers = |what: &str| {
        known.write_all(ask.as_bytes()).unwrap();
        assert_eq!(status(&known).unwrap(), 200, "{what}");
        let mut rest = [0; 4096];
        let read = known.read(&mut rest).unwrap();
        assert!(rest[..read].ends_with(b"}"), "an answer comes as one piece");
    };
    answers("before");
    let slow: Vec<TcpStream> =
        (0..300).map(|_| begin(http.addr(), "GET /api/whoami HTTP/1.1\r\nHost: x\r\nX-Slow: ")).collect();
    let newcomer = begin(http.addr(), &ask);
    assert_eq!(status(&newcomer).expect("a newcomer is answered while others trickle"), 200);
    answers("while others trickle");
    let gone = slow.iter().filter(|socket| {
        socket.set_nonblocking(true).unwrap();
        // Closed is an end or a reset; still open is nothing to read.
        !matches!(status(socket), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    });
    let gone = gone.count();
    assert!(gone >= 200, "{gone} of {} made room", slow.len());
}

#[test]
fn a_byte_now_and_then_renews_no_deadline() {
    if is_foreign() {
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    let mut socket = begin(http.addr(), "GET /api/whoami HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    let due = Instant::now() + Duration::from_secs(20);
    // To write to what was closed fails, the second time at the latest.
    while socket.write_all(b"x").is_ok() {
        assert!(Instant::now() < due, "a stranger has ten seconds for the first head");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn rights_are_looked_at_before_the_body_and_slow_bodies_hold_up_nobody() {
    if is_foreign() {
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    http.put("/api/users/ann", r#"{"password":"pw","tags":"management"}"#).with(201);
    http.put("/api/vhosts/hers", "").with(201);
    http.put("/api/permissions/hers/ann", r#"{"configure":".*","write":".*","read":".*"}"#).with(201);
    let half = |path: &str, bytes: usize| {
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YW5uOnB3\r\nContent-Length: {bytes}\r\n\r\n{}",
            " ".repeat(bytes.min(100_000) - 1)
        );
        begin(http.addr(), &head)
    };
    for path in
        ["/api/vhosts/new", "/api/users/new", "/api/permissions/hers/ann", "/api/queues/%2F/q", "/api/policies/hers/p"]
    {
        assert_eq!(status(&half(path, 10)).expect("refused without waiting for the body"), 401, "{path}");
    }
    // What she may do she may be slow with, and others go on meanwhile.
    let _slow: Vec<TcpStream> = (0..8).map(|at| half(&format!("/api/queues/hers/q{at}"), 1_000_000)).collect();
    let _short: Vec<TcpStream> = (0..8).map(|at| half(&format!("/api/queues/hers/s{at}"), 10)).collect();
    let answered =
        begin(http.addr(), &format!("PUT /api/vhosts/new HTTP/1.1\r\nHost: x\r\n{GUEST}Content-Length: 2\r\n\r\n{{}}"));
    assert_eq!(status(&answered).expect("an administrator's change is not held up"), 201);
    let long = format!(r#"{{"queues":[],"x":"{}"}}"#, "x".repeat(200_000));
    let head =
        format!("POST /api/definitions HTTP/1.1\r\nHost: x\r\n{GUEST}Content-Length: {}\r\n\r\n{long}", long.len());
    let status = status(&begin(http.addr(), &head)).expect("nor is a long one");
    assert!([200, 204].contains(&status), "{status}");
}

/// A login from another address of this machine.
fn login_from(source: [u8; 4], addr: SocketAddr, user: &str, password: &str) -> Result<Client, Refused> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    rustix::net::connect(&socket, &addr).unwrap();
    let mut client = Client::of(TcpStream::from(socket));
    client.raw(b"AMQP\x00\x00\x09\x01");
    let response = format!("\0{user}\0{password}").into_bytes();
    let login = Login { response, ..Login::default() };
    client.start(&login)?;
    client.open(&login)?;
    Ok(client)
}

fn login(addr: SocketAddr, user: &str, password: &str) -> Result<Client, Refused> {
    login_from([127, 0, 0, 1], addr, user, password)
}

fn with_users(http: &Http, names: &[&str]) {
    for name in names {
        http.put(&format!("/api/users/{name}"), r#"{"password":"right","tags":"management"}"#).with(201);
        let all = r#"{"configure":".*","write":".*","read":".*"}"#;
        http.put(&format!("/api/permissions/%2F/{name}"), all).with(201);
    }
}

#[test]
fn guesses_in_parallel_are_limited_over_amqp_and_http_together_and_lock_out_nobody_else() {
    if is_foreign() {
        eprintln!("skipped: RabbitMQ has no limit");
        return;
    }
    // With a hash that takes no time what was looked at is told before what was not: only the first
    // fifty lines are there.
    let (broker, http) = Broker::managed(&["--password-hashing", "sha256"]).unwrap();
    with_users(&http, &["ann", "bob", "carl"]);
    // Carl was here before.
    login(broker.addr(), "carl", "right").unwrap().close();
    let guess = |user: &'static str, count: usize| {
        let guesses: Vec<_> = (0..count)
            .map(|at| {
                let addr = broker.addr();
                std::thread::spawn(move || login(addr, user, &format!("guess-{at}")).is_err())
            })
            .collect();
        assert!(guesses.into_iter().all(|guess| guess.join().unwrap()), "no guess was right");
    };
    guess("ann", 120);
    let looked_at = |user: &str| {
        let log = broker.log();
        let of = |reason: &str| {
            log.lines().filter(|line| line.contains(&format!("user={user} ")) && line.contains(reason)).count()
        };
        (of("wrong user or password"), of("too many failed logins"))
    };
    let (tried, not_tried) = looked_at("ann");
    // Fifteen at once, one in four seconds after that, and lines beyond the first fifty are
    // counted.
    assert!((15..=25).contains(&tried), "{tried} of 120 guesses were looked at, {not_tried} told not to be");
    assert!(not_tried > 0);
    // The same limit holds for HTTP, which is told nothing else than before.
    let refused = http.as_user("ann", "right").get("/api/whoami");
    assert_eq!((refused.status, refused.json()["reason"].clone()), (401, "Login failed".into()));
    // Others at that address, and ann herself elsewhere, are let in.
    login(broker.addr(), "bob", "right").unwrap().close();
    http.as_user("carl", "right").get("/api/whoami").with(200);
    http.get("/api/whoami").with(200);
    login_from([127, 0, 0, 2], broker.addr(), "ann", "right").unwrap().close();
    // Who logged in somewhere keeps the way in there, though as many guesses are made at that name.
    guess("carl", 60);
    login(broker.addr(), "carl", "right").unwrap().close();
}

/// How many lines of the log say this themselves, and how many more it says that there were.
fn lines(log: &str, text: &str) -> (u64, u64) {
    let (told, shown): (Vec<&str>, Vec<&str>) =
        log.lines().filter(|line| line.contains(text)).partition(|line| line.contains("more like this"));
    let count = |line: &&str| line.split("count=").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    (shown.len() as u64, told.iter().filter_map(count).sum())
}

#[test]
fn lines_of_short_connections_are_counted_and_not_all_printed() {
    if is_foreign() {
        return;
    }
    let mut broker = Broker::own(&[]);
    for _ in 0..300 {
        broker.connect().close();
    }
    assert!(broker.terminate().success());
    let log = broker.log();
    for text in ["connection opened", "connection authenticated"] {
        let (shown, told) = lines(&log, text);
        // A slow machine begins the ten seconds more than once.
        assert!((10..=200).contains(&shown), "{text}: {shown} are shown");
        // One more is the fixture's, which looked whether the broker answers.
        assert_eq!(shown + told, 301, "{text}: every one is shown or counted");
    }
    assert!(log.contains("from=\"127.0.0.1: ") && log.contains("users=\"guest: "), "{log}");
}

#[test]
fn messages_dropped_in_a_circle_are_counted_and_not_all_printed() {
    if is_foreign() {
        return;
    }
    let mut broker = Broker::own(&[]);
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![
        ("x-message-ttl", Value::from(1)),
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from("circle")),
    ];
    client.declare(channel, &QueueDeclare { name: "circle", durable: true, arguments, ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    (0..500).for_each(|_| client.put(channel, "circle", b"round and round"));
    client.confirmed(channel, 1, 500);
    let text = "messages dropped: they would go round";
    let due = Instant::now() + PATIENCE;
    while !broker.log().contains(text) || client.counts(channel, "circle").unwrap() != (0, 0) {
        assert!(Instant::now() < due, "expired messages go");
        std::thread::sleep(Duration::from_millis(20));
    }
    client.close();
    assert!(broker.terminate().success());
    // What the first line does not count is told later, and at the end at the latest.
    let log = broker.log();
    let told = |line: &str| line.split("messages=").nth(1)?.split_whitespace().next()?.parse::<u64>().ok();
    let told: Vec<u64> = log.lines().filter(|line| line.contains(text)).filter_map(told).collect();
    assert_eq!((told[0], told.iter().sum::<u64>()), (1, 500), "{log}");
    assert!(told.len() < 10, "{log}");
}

#[test]
fn a_request_whose_length_or_host_is_in_doubt_is_refused_and_the_connection_ends() {
    if is_foreign() {
        eprintln!("skipped: RabbitMQ takes some of them");
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    let body = "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n";
    let other_way = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let smuggled = format!("PUT /api/vhosts/smuggled HTTP/1.1\r\nHost: x\r\n{GUEST}Content-Length: 0\r\n\r\n");
    for head in [
        format!("PUT /api/vhosts/a HTTP/1.1\r\nHost: x\r\n{GUEST}{body}{smuggled}"),
        format!("PUT /api/vhosts/a HTTP/1.1\r\nHost: x\r\n{GUEST}{other_way}{smuggled}"),
        format!("PUT /api/vhosts/a HTTP/1.1\r\n{GUEST}Content-Length: 0\r\n\r\n{smuggled}"),
        format!("PUT /api/vhosts/a HTTP/1.1\r\nHost: x\r\nHost: y\r\n{GUEST}Content-Length: 0\r\n\r\n{smuggled}"),
    ] {
        let answer = http.raw(head.as_bytes());
        assert_eq!((answer.status, answer.head.contains("connection: close")), (400, true), "{head}: {answer:?}");
    }
    // One that is not in doubt is the last one of its connection.
    let chunked =
        format!("PUT /api/vhosts/b HTTP/1.1\r\nHost: x\r\n{GUEST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(http.raw(format!("{chunked}{smuggled}").as_bytes()).status, 201);
    assert_eq!(http.raw(format!("GET /api/whoami HTTP/1.0\r\n{GUEST}\r\n").as_bytes()).status, 200);
    assert_eq!(http.get("/api/vhosts/a").status, 404);
    assert_eq!(http.get("/api/vhosts/smuggled").status, 404);
}

#[test]
fn what_is_made_over_http_has_a_name_that_answers_can_tell() {
    if is_foreign() {
        eprintln!("skipped: RabbitMQ makes it, and cannot list it");
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    for path in ["vhosts/%FF", "users/%FF", "queues/%2F/a%C3", "policies/%2F/%FF", "permissions/%2F/%FF"] {
        let refused = http.put(&format!("/api/{path}"), "{}").with(400);
        assert!(refused["reason"].as_str().unwrap().contains("UTF-8"), "{path}: {refused}");
    }
    // What AMQP made is reached.
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "aü", durable: true, ..QueueDeclare::default() }).unwrap();
    http.get("/api/queues/%2F/a%C3%BC").with(200);
    http.delete("/api/queues/%2F/a%C3%BC").with(204);
}
