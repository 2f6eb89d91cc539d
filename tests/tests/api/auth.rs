//! How logins are counted, and told over HTTP.

use base64::Engine as _;
use clients::broker::is_foreign;
use clients::{Broker, Client, Login};
use serde_json::{Value, json};

#[test]
fn logins_are_counted_by_protocol_until_they_are_forgotten() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let at = format!("/api/auth/attempts/{node}");
    http.delete(&at).with(204);
    assert_eq!(http.as_user("guest", "wrong").get("/api/whoami").status, 401);
    drop(broker.connect());
    let wrong = Login { response: b"\0guest\0wrong".to_vec(), ..Login::default() };
    assert!(Client::login(broker.addr(), &wrong).is_err());
    // A message over HTTP is one request over HTTP, whatever it goes through inside.
    http.put("/api/queues/%2F/q", "{}").with(201);
    let message = r#"{"properties":{},"routing_key":"q","payload":"x","payload_encoding":"string"}"#;
    http.post("/api/exchanges/%2F/amq.default/publish", message).with(200);
    let counted = http.get(&at).with(200);
    let amqp =
        json!({"protocol": "amqp091", "auth_attempts": 2, "auth_attempts_failed": 1, "auth_attempts_succeeded": 1});
    let over_http =
        json!({"protocol": "http", "auth_attempts": 4, "auth_attempts_failed": 1, "auth_attempts_succeeded": 3});
    assert_eq!(counted, json!([amqp, over_http]));
    assert_eq!(http.get(&format!("{at}/source")).with(200), json!([]));
    http.delete(&at).with(204);
    assert_eq!(http.get(&at).with(200)[0]["auth_attempts"], 1);
    assert_eq!(http.get("/api/auth/attempts/none@nowhere").status, 404);
    http.put("/api/users/plain", r#"{"password":"pw","tags":"management"}"#).with(201);
    assert_eq!(http.as_user("plain", "pw").get(&at).status, 401);
}

#[test]
fn a_password_that_is_set_is_hashed_by_argon2id_and_its_hash_goes_out_and_in() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/users/ann", r#"{"password":"sesame","tags":"management"}"#).with(201);
    let ann = http.get("/api/users/ann").with(200);
    assert_eq!(ann["hashing_algorithm"], json!("leveret_password_hashing_argon2id"));
    let hash = ann["password_hash"].as_str().unwrap();
    // RabbitMQ refuses a whole file for one hash that is not base64.
    let plain = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(hash).unwrap()).unwrap();
    assert!(plain.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{plain}");
    for _ in 0..2 {
        assert_eq!(http.as_user("ann", "sesame").get("/api/whoami").with(200)["name"], json!("ann"));
        assert_eq!(http.as_user("ann", "Sesame").get("/api/whoami").status, 401);
    }
    // As it goes out it comes in, and under another name it is the same password.
    let exported = http.get("/api/definitions").with(200);
    http.post("/api/definitions", &exported.to_string()).with(204);
    assert_eq!(http.get("/api/users/ann").with(200), ann);
    http.put("/api/users/bob", &ann.to_string().replace("\"ann\"", "\"bob\"")).with(201);
    http.as_user("bob", "sesame").get("/api/whoami").with(200);
    let other = json!({"password_hash": plain, "hashing_algorithm": ann["hashing_algorithm"], "tags": "management"});
    http.put("/api/users/cid", &other.to_string()).with(201);
    http.as_user("cid", "sesame").get("/api/whoami").with(200);
    // RabbitMQ's hash stays what it is, whoever logs in, until a password is set.
    let old = json!({"password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": "management"});
    http.put("/api/users/old", &old.to_string()).with(201);
    http.as_user("old", "test12").get("/api/whoami").with(200);
    assert_eq!(http.get("/api/users/old").with(200)["password_hash"], old["password_hash"]);
    http.put("/api/users/old", r#"{"password":"test13","tags":"management"}"#).with(204);
    http.as_user("old", "test13").get("/api/whoami").with(200);
    assert_eq!(http.as_user("old", "test12").get("/api/whoami").status, 401, "what was known is not known any more");
    let too_dear = json!({"password_hash": plain.replace("m=19456", "m=1048576"), "tags": "",
                          "hashing_algorithm": "leveret_password_hashing_argon2id"});
    http.put("/api/users/dear", &too_dear.to_string()).with(400);
    drop(broker);
}

#[test]
fn a_hash_that_was_told_is_a_password() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    assert_eq!(http.get("/api/auth").with(200)["oauth_enabled"], json!(false));
    let hash = http.get("/api/auth/hash_password/sesame%21").with(200)["ok"].as_str().unwrap().to_owned();
    let user =
        json!({"password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management"});
    http.put("/api/users/ann", &user.to_string()).with(201);
    assert_eq!(http.as_user("ann", "sesame!").get("/api/whoami").with(200)["name"], json!("ann"));
    assert_ne!(http.get("/api/auth/hash_password/sesame%21").with(200)["ok"], Value::from(hash));
}
