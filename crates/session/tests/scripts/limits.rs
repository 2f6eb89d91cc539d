//! Refusals by limits: of a login, of a channel, of what a client has begun and not ended.

use crate::script::Script;
use amqp::{Event, Request};
use broker::topology::{Command, Name, UserLimits};
use bytes::Bytes;

#[test]
fn a_login_that_failed_too_often_is_refused_unseen_and_every_refusal_takes_a_second() {
    let mut script = Script::connected();
    script.login("wrong");
    assert_eq!(script.said(), [""; 0]);
    script.pass(1_000);
    assert_eq!(script.said(), ["login refused"]);
    for _ in 0..40 {
        script.login("wrong");
    }
    script.login("guest");
    script.pass(1_000);
    assert_eq!(script.said(), ["login refused"], "the password was right, and nobody looked at it");
    script.pass(60_000);
    script.login("guest");
    assert_eq!(script.said(), ["connection.tune"]);
}

#[test]
fn a_password_that_is_looked_at_elsewhere_is_answered_when_that_is_done() {
    let mut script = Script::connected();
    script.slow_password();
    script.login("guest");
    script.pass(2_000);
    assert_eq!(script.said(), [""; 0], "nobody has looked at it yet");
    script.looked_at(true);
    assert_eq!(script.said(), ["connection.tune"]);
    let mut script = Script::connected();
    script.slow_password();
    script.login("wrong");
    script.pass(400);
    script.looked_at(false);
    script.pass(599);
    assert_eq!(script.said(), [""; 0]);
    script.pass(1);
    assert_eq!(script.said(), ["login refused"], "a second after it came, however long somebody looked");
    script.looked_at(true);
    assert_eq!(script.said(), [""; 0], "what comes again changes nothing");
}

#[test]
fn a_login_that_nobody_finished_to_look_at_counts_as_failed() {
    let mut script = Script::connected();
    script.slow_password();
    for _ in 0..15 {
        script.login("guest");
    }
    script.pass(1_000);
    assert_eq!(script.said(), [""; 0]);
    script.login("guest");
    script.pass(1_000);
    assert_eq!(script.said(), ["login refused"], "too many are under way");
}

#[test]
fn a_transaction_that_passes_the_connections_limit_ends_the_connection() {
    let mut script = Script::begun();
    script.ask(1, Request::TxSelect);
    script.said();
    let body = "x".repeat(90_000);
    script.publish(1, "q", &body, 1);
    script.publish(1, "q", &body, 2);
    assert_eq!(script.said(), [""; 0]);
    script.publish(1, "q", &body, 3);
    let said = script.said();
    assert!(said.len() == 1 && said[0].starts_with("error 506 too many bytes in unfinished messages"), "{said:?}");
    script.close(1);
    script.event(Event::Closed(amqp::Closed::Disconnected));
    let sums = &script.node.common.sums;
    assert_eq!(sums.unfinished.load(std::sync::atomic::Ordering::Relaxed), 0, "all of it is given back");
}

#[test]
fn a_virtual_host_that_is_not_there_and_a_queue_that_was_made_otherwise_are_refused() {
    let mut script = Script::connected();
    script.login("guest");
    script.said();
    script.event(Event::Open { vhost: Bytes::from_static(b"nowhere") });
    let said = script.said();
    assert!(said.len() == 1 && said[0].starts_with("error"), "{said:?}");
    let mut script = Script::begun();
    let Request::QueueDeclare { queue, exclusive, auto_delete, arguments, .. } = crate::script::declare("q") else {
        panic!("it is a declare")
    };
    script.ask(1, Request::QueueDeclare { queue, durable: false, exclusive, auto_delete, arguments, passive: false });
    let said = script.said();
    assert!(said.len() == 1 && said[0].starts_with("1: error 406"), "{said:?}");
}

#[test]
fn a_user_with_all_the_channels_it_may_have_gets_no_other() {
    let mut script = Script::begun();
    let limits = UserLimits { connections_max: None, channels_max: Some(2) };
    script.decree(Command::SetUserLimits { user: Name::from("guest"), limits });
    script.open(2);
    assert_eq!(script.said(), [""; 0]);
    script.open(3);
    let said = script.said();
    assert!(said.len() == 1 && said[0].starts_with("error 530"), "{said:?}");
}
