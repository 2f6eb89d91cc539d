//! Logins by tokens of an issuer: over AMQP and over HTTP, what they give, how they end, and whom
//! they keep waiting.
#![allow(clippy::unwrap_used)]

mod issuer;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clients::api::until;
use clients::broker::is_foreign;
use clients::http::Response;
use clients::methods::{CONNECTION_UPDATE_SECRET, CONNECTION_UPDATE_SECRET_OK};
use clients::wire::Args;
use clients::{Broker, Client, Closed, ExchangeDeclare, Http, Login, Publish, QueueDeclare};
use issuer::{Issuer, Signer, claims, message, now_s};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ALL: &str = "rabbitmq.read:*/* rabbitmq.write:*/* rabbitmq.configure:*/*";

/// A broker that believes an issuer, which it finds by its name.
fn broker(more: &[&str]) -> Option<(Broker, Http, Issuer)> {
    if is_foreign() {
        return None;
    }
    let issuer = Issuer::start();
    let (url, ca) = (issuer.url(), issuer.ca());
    let own = [
        "--oauth2-resource-server-id",
        "rabbitmq",
        "--oauth2-issuer",
        &url,
        "--oauth2-ca",
        &ca,
        "--oauth2-leeway-s",
        "0",
    ];
    let all: Vec<&str> = own.iter().chain(more).copied().collect();
    let backends = if more.contains(&"--auth-backends") { vec![] } else { vec!["--auth-backends", "internal,oauth2"] };
    let (broker, http) = Broker::managed(&[&backends[..], &all].concat())?;
    Some((broker, http, issuer))
}

fn login(broker: &Broker, user: &str, token: &str) -> Result<Client, Closed> {
    let response = [b"\0", user.as_bytes(), b"\0", token.as_bytes()].concat();
    Client::login(broker.addr(), &Login { response, ..Login::default() })
}

fn code(result: Result<Client, Closed>) -> u16 {
    result.err().expect("it is refused").code
}

fn update_secret(client: &mut Client, token: &str) -> Result<(), Closed> {
    let args = Args::new().longstr(token.as_bytes()).shortstr("it is time");
    client.call(0, CONNECTION_UPDATE_SECRET, &args, CONNECTION_UPDATE_SECRET_OK).map(|_| ())
}

/// A request that names a token.
fn bearer(http: &Http, token: &str, method: &str, path: &str, body: &str) -> Response {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    http.raw(text.as_bytes())
}

#[test]
fn a_token_is_a_password_and_says_who_one_is_and_what_one_may_do() {
    let Some((broker, http, issuer)) = broker(&[]) else { return };
    let token = issuer.token(
        "ann",
        "rabbitmq.configure:%2F/mine-* rabbitmq.write:%2F/amq.default rabbitmq.write:%2F/amq.topic/a.* other.read:*/*",
        600,
    );
    let mut client = login(&broker, "whoever", &token).unwrap();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "mine-1", durable: true, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "mine-1", b"hello");
    client.publish(channel, &Publish { exchange: "amq.topic", key: "a.b", body: b"x", ..Publish::default() });
    client.confirmed(channel, 1, 2);
    client.publish(channel, &Publish { exchange: "amq.topic", key: "b", body: b"x", ..Publish::default() });
    let closed = client.closed(channel);
    assert!(closed.code == 403 && closed.text.contains("write access to topic 'b'"), "{closed:?}");
    let channel = client.channel();
    let closed = client.get(channel, "mine-1", true).unwrap_err();
    assert!(closed.code == 403 && closed.text.ends_with("refused for user 'ann'"), "{closed:?}");
    let channel = client.channel();
    let theirs = ExchangeDeclare { name: "theirs", kind: "direct", ..ExchangeDeclare::default() };
    assert_eq!(client.declare_exchange(channel, &theirs).unwrap_err().code, 403);
    let shown = http.get("/api/connections").with(200);
    assert_eq!(shown[0]["user"], json!("ann"));
    // Nothing of it is that of a user who is so called, and who may do everything.
    http.put("/api/users/eve", r#"{"password":"sesame","tags":"administrator"}"#).with(201);
    http.put("/api/permissions/%2F/eve", r#"{"configure":".*","write":".*","read":".*"}"#).with(201);
    let token = issuer.token("eve", "rabbitmq.read:%2F/none", 600);
    let mut client = login(&broker, "", &token).unwrap();
    let channel = client.channel();
    assert_eq!(client.purge(channel, "mine-1").unwrap_err().code, 403);
    let nowhere = issuer.token("eve", "rabbitmq.read:elsewhere/*", 600);
    assert_eq!(code(login(&broker, "eve", &nowhere)), 530);
    // What it does would be told as the operator's.
    let token = issuer.token("(operator)", ALL, 600);
    assert_eq!(code(login(&broker, "", &token)), 403);
    assert!(
        broker.log().contains("the token names a user by what the audit log calls the operator"),
        "{}",
        broker.log()
    );
    // Passwords are as they were.
    login(&broker, "guest", "guest").unwrap();
    login(&broker, "eve", "sesame").unwrap();
    assert!(!broker.log().contains(&token[..40]), "a token is in the log");
}

#[test]
fn a_token_that_is_not_as_it_should_be_is_refused_and_the_log_says_why() {
    let Some((broker, http, issuer)) = broker(&[]) else { return };
    let good = |change: &dyn Fn(&mut Value)| {
        let mut claims = claims("ann", ALL, 600);
        claims["iss"] = issuer.url().into();
        change(&mut claims);
        claims
    };
    let sign = |change: &dyn Fn(&mut Value)| issuer.signer.sign(&good(change));
    login(&broker, "", &sign(&|_| ())).unwrap();
    let none = message(&json!({"alg": "none", "kid": "first"}), &good(&|_| ()));
    // The public key as a secret that both know.
    let point = URL_SAFE_NO_PAD.decode(issuer.signer.jwk()["x"].as_str().unwrap()).unwrap();
    let confused = message(&json!({"alg": "HS256", "kid": "first"}), &good(&|_| ()));
    let mac = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &point), confused.as_bytes());
    let spoilt = {
        let token = sign(&|_| ());
        let (head, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let body = URL_SAFE_NO_PAD.encode(good(&|claims| claims["sub"] = json!("root")).to_string());
        format!("{head}.{body}.{signature}")
    };
    let cases = [
        (sign(&|claims| claims["exp"] = json!(now_s() - 1)), "the token has expired"),
        (sign(&|claims| claims["nbf"] = json!(now_s() + 60)), "the token is not valid yet"),
        (sign(&|claims| claims["aud"] = json!("another")), "the token is for another audience"),
        (sign(&|claims| claims["iss"] = json!("https://another")), "the token is of another issuer"),
        (sign(&|claims| drop(claims.as_object_mut().unwrap().remove("exp"))), "the token has no end"),
        (Signer::new("first").sign(&good(&|_| ())), "the token's signature is wrong"),
        (Signer::new("nobody's").sign(&good(&|_| ())), "the token names a key that is not known"),
        (format!("{none}."), "the token is signed by an algorithm that is not among oauth2_algorithms"),
        (
            format!("{confused}.{}", URL_SAFE_NO_PAD.encode(mac)),
            "the token is signed by an algorithm that is not among oauth2_algorithms",
        ),
        (spoilt, "the token's signature is wrong"),
    ];
    for (token, why) in &cases {
        let begin = Instant::now();
        assert_eq!(code(login(&broker, "ann", token)), 403, "{why}");
        assert!(begin.elapsed() >= Duration::from_millis(900), "{why}: as slow as a wrong password");
        let is_told = || broker.log().lines().any(|line| line.contains("login refused") && line.contains(why));
        until(why, || is_told().then_some(Value::Null));
    }
    assert_eq!(bearer(&http, &cases[0].0, "GET", "/api/whoami", "").status, 401);
    let log = broker.log();
    assert!(cases.iter().all(|(token, _)| !log.contains(&token[..token.len().min(60)])), "a token is in the log");
}

#[test]
fn a_connection_ends_with_its_token_unless_it_brings_another() {
    let Some((broker, _http, issuer)) = broker(&[]) else { return };
    let mut ends = login(&broker, "", &issuer.token("ann", ALL, 3)).unwrap();
    let mut goes_on = login(&broker, "", &issuer.token("ann", ALL, 3)).unwrap();
    let channel = goes_on.channel();
    goes_on.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    goes_on.confirm_select(channel).unwrap();
    goes_on.put(channel, "q", b"before");
    goes_on.confirmed(channel, 1, 1);
    update_secret(&mut goes_on, &issuer.token("ann", "rabbitmq.read:*/*", 600)).unwrap();
    let closed = ends.closed(0);
    assert!(closed.code == 320 && closed.text.contains("the token has expired"), "{closed:?}");
    goes_on.put(channel, "q", b"after");
    assert_eq!(goes_on.closed(channel).code, 403, "the new token gives no right to write");
    let channel = goes_on.channel();
    assert_eq!(goes_on.get(channel, "q", true).unwrap().unwrap().body, b"before");
    let closed = update_secret(&mut goes_on, &issuer.token("bob", ALL, 600)).unwrap_err();
    assert!(closed.code == 530 && closed.text.contains("New secret was refused"), "{closed:?}");
    let mut client = login(&broker, "", &issuer.token("ann", ALL, 600)).unwrap();
    assert_eq!(update_secret(&mut client, "no token").unwrap_err().code, 530);
    // With a password there is nothing to renew.
    update_secret(&mut login(&broker, "guest", "guest").unwrap(), "other").unwrap();
}

#[test]
fn a_token_opens_the_api_as_far_as_its_tags_and_scopes_say() {
    let Some((_broker, http, issuer)) = broker(&["--management-oauth-client-id", "page"]) else { return };
    let ways = http.as_user("nobody", "").get("/api/auth").with(200);
    assert_eq!((&ways["oauth_enabled"], &ways["oauth_client_id"]), (&json!(true), &json!("page")));
    http.put("/api/vhosts/other", "").with(201);
    http.put("/api/queues/other/theirs", r#"{"durable":true}"#).with(201);
    let token = issuer.token("ann", &format!("{} rabbitmq.tag:management", ALL.replace("*/*", "%2F/*")), 600);
    let ask = |method: &str, path: &str, body: &str| bearer(&http, &token, method, path, body);
    let who = ask("GET", "/api/whoami", "").with(200);
    assert_eq!((&who["name"], &who["tags"]), (&json!("ann"), &json!(["management"])));
    assert_eq!(http.as_user("", &token).get("/api/whoami").with(200)["name"], json!("ann"), "as a password too");
    ask("PUT", "/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    assert_eq!(ask("GET", "/api/queues", "").with(200).as_array().unwrap().len(), 1, "those of its virtual hosts");
    assert_eq!(ask("GET", "/api/queues/other", "").status, 401);
    assert_eq!(ask("GET", "/api/users", "").status, 401);
    assert_eq!(ask("PUT", "/api/policies/%2F/p", r#"{"pattern":"q","definition":{"max-length":1}}"#).status, 401);
    let message = r#"{"properties":{},"routing_key":"q","payload":"hello","payload_encoding":"string"}"#;
    assert_eq!(ask("POST", "/api/exchanges/%2F/amq.default/publish", message).with(200)["routed"], json!(true));
    let get = r#"{"count":1,"ackmode":"ack_requeue_false","encoding":"auto"}"#;
    assert_eq!(ask("POST", "/api/queues/%2F/q/get", get).with(200)[0]["payload"], json!("hello"));
    let administrator = issuer.token("root", "rabbitmq.tag:administrator", 600);
    bearer(&http, &administrator, "GET", "/api/users", "").with(200);
    let nobody = issuer.token("nobody", ALL, 600);
    assert_eq!(bearer(&http, &nobody, "GET", "/api/whoami", "").status, 401, "without a tag");
    // The page has a cookie for it, which ends with it.
    let short = issuer.token("ann", "rabbitmq.tag:management", 3);
    let begun = bearer(&http, &short, "POST", "/api/leveret/session", "");
    assert_eq!(begun.status, 204, "{begun:?}");
    let cookie = begun.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let by_cookie = || {
        http.raw(
            format!("GET /api/whoami HTTP/1.1\r\nHost: broker\r\nConnection: close\r\nX-Leveret-Page: 1\r\nCookie: {cookie}\r\n\r\n")
                .as_bytes(),
        )
    };
    assert_eq!(by_cookie().with(200)["name"], json!("ann"));
    until("the end of the session", || (by_cookie().status == 401).then_some(Value::Null));
}

#[test]
fn keys_that_nobody_has_cause_no_requests_and_keep_nobody_waiting() {
    let Some((broker, http, issuer)) = broker(&[]) else { return };
    login(&broker, "", &issuer.token("ann", ALL, 600)).unwrap();
    let before = issuer.asked();
    assert_eq!(before, 1, "once at the start");
    let stranger = Signer::new("nobody's").sign(&claims("ann", ALL, 600));
    for _ in 0..8 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(bearer(&http, &stranger, "GET", "/api/whoami", "").status, 401));
            }
        });
    }
    assert!(issuer.asked() <= before + 2, "asked {} times", issuer.asked());
    // The issuer hangs, and whoever has a key that is known does not notice.
    issuer.hang(true);
    let second = Signer::new("second");
    issuer.publish(&second);
    let mut new = claims("ann", "rabbitmq.tag:management", 600);
    new["iss"] = issuer.url().into();
    let new = second.sign(&new);
    let began = Instant::now();
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            // It is asked ten seconds after the last time.
            until("the key that is new", || {
                let answer = bearer(&http, &new, "GET", "/api/whoami", "");
                (answer.status == 200).then(|| answer.json())
            })
        });
        while began.elapsed() < Duration::from_secs(11) {
            let begin = Instant::now();
            let token = issuer.token("ann", "rabbitmq.tag:management", 600);
            bearer(&http, &token, "GET", "/api/whoami", "").with(200);
            assert!(begin.elapsed() < Duration::from_millis(900), "{:?}", begin.elapsed());
            std::thread::sleep(Duration::from_millis(100));
        }
        issuer.keep_only(&second);
        issuer.hang(false);
        waits.join().unwrap()
    });
    assert_eq!(waits["name"], json!("ann"));
    let taken_back = issuer.token("ann", "rabbitmq.tag:management", 600);
    assert_eq!(bearer(&http, &taken_back, "GET", "/api/whoami", "").status, 401, "its key was taken back");
}

#[test]
fn without_the_internal_backend_users_are_not_let_in() {
    let Some((broker, http, issuer)) = broker(&["--auth-backends", "oauth2"]) else { return };
    assert_eq!(code(login(&broker, "guest", "guest")), 403);
    assert_eq!(http.get("/api/whoami").status, 401);
    assert_eq!(http.get("/api/auth").with(200)["oauth_disable_basic_auth"], json!(true));
    login(&broker, "", &issuer.token("ann", ALL, 600)).unwrap();
}

#[test]
fn keys_in_files_sign_too_and_are_read_again() {
    if is_foreign() {
        return;
    }
    let issuer = Issuer::start();
    let secret = URL_SAFE_NO_PAD.encode([7; 40]);
    let (first, second) = (Signer::new("own"), Signer::new("own"));
    std::fs::write(issuer.file("own.json"), first.jwk().to_string()).unwrap();
    std::fs::write(issuer.file("secret.json"), json!({"kty": "oct", "k": secret}).to_string()).unwrap();
    let keys = format!("own={},shared={}", issuer.file("own.json").display(), issuer.file("secret.json").display());
    let arguments =
        ["--auth-backends", "oauth2", "--oauth2-resource-server-id", "rabbitmq", "--oauth2-signing-keys", &keys];
    let broker = Broker::own(&[&arguments[..], &["--oauth2-algorithms", "ES256,HS256"]].concat());
    login(&broker, "", &first.sign(&claims("ann", ALL, 600))).unwrap();
    let message = message(&json!({"alg": "HS256", "kid": "shared"}), &claims("ann", ALL, 600));
    let mac = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &[7; 40]), message.as_bytes());
    login(&broker, "", &format!("{message}.{}", URL_SAFE_NO_PAD.encode(mac))).unwrap();
    let second_token = second.sign(&claims("ann", ALL, 600));
    assert_eq!(code(login(&broker, "", &second_token)), 403);
    std::fs::write(issuer.file("own.json"), second.jwk().to_string()).unwrap();
    broker.signal(rustix::process::Signal::HUP);
    until("the key that is new", || login(&broker, "", &second_token).is_ok().then_some(Value::Null));
}
