//! Logins by a token, what it gives, its renewal and its end.

use crate::script::{Script, declare, get};
use amqp::{Event, Properties};
use broker::topology::{Command as Change, Name, PasswordHash};
use bytes::Bytes;

/// Of the form of a token; who looks at it is the script.
const TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln";
/// When the script's clock begins, on the wall.
const WALL_MS: u64 = 1_700_000_000_000;
const ALL: [&str; 3] = ["read:*/*", "write:*/*", "configure:*/*"];

/// Ann, who was let in by a token that lasts ten seconds.
fn ann(scopes: &[&str]) -> Script {
    let mut script = Script::connected();
    script.login(TOKEN);
    assert_eq!(script.said(), ["look at token"]);
    script.told_token(Ok(("ann", scopes, WALL_MS + 10_000)));
    script.event(Event::Open { vhost: Bytes::from_static(b"/") });
    assert_eq!(script.said(), ["connection.tune", "connection.open-ok"]);
    script.open(1);
    script
}

fn renew(script: &mut Script) {
    let (new_secret, reason) = (Bytes::from_static(TOKEN.as_bytes()), Bytes::from_static(b"time"));
    script.event(Event::UpdateSecret { new_secret, reason });
}

#[test]
fn who_is_let_in_by_a_token_may_do_what_its_scopes_say() {
    let mut script = ann(&["configure:*/mine-*", "write:*/amq.default"]);
    script.ask(1, declare("mine-1"));
    script.decide();
    assert_eq!(script.said(), ["topology <- DeclareQueue", "1: queue.declare-ok mine-1 0 0"]);
    script.publish(1, "mine-1", "x", 1);
    assert_eq!(script.said().len(), 1, "it goes on its way");
    script.ask(1, get());
    assert_eq!(script.said(), ["1: error 403 read access to queue 'q' in vhost '/' refused for user 'ann'"]);
}

#[test]
fn the_tags_of_a_user_of_that_name_are_not_those_of_a_token() {
    let mut script = ann(&["configure:*/*", "write:*/amq.default"]);
    let password = PasswordHash::argon2id(b"sesame", [7; 16]);
    script.decree(Change::RaiseVersion { version: 3 });
    script.decree(Change::PutUser { name: Name::from("ann"), password, tags: vec![Name::from("impersonator")] });
    let mut properties = Vec::new();
    Properties { user_id: Some(b"bob"), ..Properties::default() }.encode_to(&mut properties);
    script.publish_with(1, "q", "x", 1, &properties);
    let said = script.said();
    assert!(said.len() == 1 && said[0].starts_with("1: error 406 user_id property set to 'bob'"), "{said:?}");
}

#[test]
fn a_token_that_counts_for_nothing_is_refused_like_a_password() {
    let mut script = Script::connected();
    script.login(TOKEN);
    script.pass(400);
    script.told_token(Err("its signature is not that of the key"));
    script.pass(599);
    assert_eq!(script.said(), ["look at token"]);
    script.pass(1);
    assert_eq!(script.said(), ["login refused"]);
    script.node.takes_tokens.set(false);
    script.login(TOKEN);
    script.pass(1_000);
    assert_eq!(script.said(), ["look at token", "login refused"], "so many wait that nobody looks");
    for _ in 0..100 {
        script.node.takes_tokens.set(true);
        script.login(TOKEN);
        script.told_token(Err("wrong"));
        script.pass(1_000);
    }
    script.said();
    script.login("guest");
    assert_eq!(script.said(), ["connection.tune"], "tokens that failed take nothing from passwords");
}

#[test]
fn a_virtual_host_without_a_scope_is_not_opened() {
    let mut script = Script::connected();
    script.login(TOKEN);
    script.told_token(Ok(("guest", &["read:other/*"], WALL_MS + 10_000)));
    script.event(Event::Open { vhost: Bytes::from_static(b"/") });
    let said = script.said();
    assert!(
        said[2].ends_with("access to vhost '/' refused for user 'guest'"),
        "what the user guest may is not asked: {said:?}"
    );
}

#[test]
fn a_connection_ends_with_its_token() {
    let mut script = ann(&ALL);
    script.pass(9_998);
    assert_eq!(script.said(), [""; 0]);
    script.pass(1);
    assert_eq!(script.said(), ["error 320 the token has expired"]);
    script.pass(100_000);
    assert_eq!(script.said(), [""; 0], "it is told once");
}

#[test]
fn a_token_that_is_renewed_in_time_goes_on_with_the_rights_of_the_new_one() {
    let mut script = ann(&ALL);
    script.ask(1, declare("q"));
    script.decide();
    script.said();
    script.publish(1, "q", "x", 1);
    script.said();
    script.pass(9_000);
    renew(&mut script);
    script.told_token(Ok(("ann", &["configure:*/*"], WALL_MS + 20_000)));
    assert_eq!(script.said(), ["look at token", "update-secret-ok"]);
    script.pass(10_990);
    assert_eq!(script.said(), [""; 0]);
    script.publish(1, "q", "x", 2);
    let refused = "1: error 403 write access to exchange 'amq.default' in vhost '/' refused for user 'ann'";
    assert_eq!(script.said(), [refused], "the route that is remembered was asked of the token before");
    script.pass(100);
    assert_eq!(script.said(), ["error 320 the token has expired"]);
}

#[test]
fn a_token_that_ends_sooner_than_the_one_before_ends_its_connection_then() {
    let mut script = ann(&ALL);
    renew(&mut script);
    script.told_token(Ok(("ann", &ALL, WALL_MS + 3_000)));
    assert_eq!(script.said(), ["look at token", "update-secret-ok"]);
    script.pass(2_990);
    assert_eq!(script.said(), [""; 0]);
    script.pass(20);
    assert_eq!(script.said(), ["error 320 the token has expired"]);
}

#[test]
fn a_renewal_that_is_refused_ends_the_connection() {
    let refused = "error 530 New secret was refused by one of the backends";
    type Told<'a> = Result<(&'a str, &'a [&'a str], u64), &'a str>;
    let told: [Told<'_>; 3] =
        [Err("it has expired"), Ok(("bob", &ALL, WALL_MS + 20_000)), Ok(("ann", &["read:other/*"], WALL_MS + 20_000))];
    for told in told {
        let mut script = ann(&ALL);
        renew(&mut script);
        script.told_token(told);
        assert_eq!(script.said(), ["look at token", refused], "{told:?}");
    }
    let mut script = ann(&ALL);
    renew(&mut script);
    renew(&mut script);
    assert_eq!(script.said(), ["look at token", refused], "one at a time");
    let mut script = ann(&ALL);
    let new_secret = Bytes::from_static(b"a password");
    script.event(Event::UpdateSecret { new_secret, reason: Bytes::new() });
    assert_eq!(script.said(), [refused]);
}

#[test]
fn a_token_that_ends_between_login_and_open_opens_nothing() {
    let mut script = Script::connected();
    script.login(TOKEN);
    script.told_token(Ok(("ann", &ALL, WALL_MS + 10_000)));
    script.pass(10_000);
    script.event(Event::Open { vhost: Bytes::from_static(b"/") });
    let said = script.said();
    assert!(said.len() == 3 && said[2].ends_with("the token has expired"), "{said:?}");
}
