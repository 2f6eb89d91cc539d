//! How much is on its way to a follower that does not answer.
#![allow(clippy::expect_used)]

mod trio;

use bytes::Bytes;
use consensus::{Config, Group, Message, NodeId};
use trio::{GROUP, drain, member, member_with, talk};

const WINDOW_BYTES: usize = 64 << 10;
const MESSAGE_BYTES: usize = 8 << 10;

fn config(node: u64) -> Config {
    let node = NodeId(node);
    let (message_bytes_max, inflight_bytes_max) = (MESSAGE_BYTES, WINDOW_BYTES);
    Config { message_bytes_max, inflight_bytes_max, inflight_messages_max: 1000, ..Config::new(node, GROUP, node.0) }
}

/// A leader with one follower that answers, and what it then sends to the third, which does not.
fn led() -> (Group, Group, Group) {
    let mut members = (member_with(config(1), 3, &[], false), member(2, 3, &[], false), member(3, 3, &[], false));
    members.0.campaign();
    talk(&mut [&mut members.0, &mut members.1, &mut members.2], &[1, 2, 3]);
    members
}

fn body_bytes_to(node: u64, network: &[Message]) -> usize {
    network.iter().filter(|message| message.to().0 == node).map(Message::body_bytes).sum()
}

fn in_flight_to(node: u64, leader: &Group) -> usize {
    let progress = leader.progress();
    progress.iter().find(|progress| progress.node.0 == node).expect("a follower").in_flight_bytes
}

/// The leader and the second member talk; what is for the third comes back.
fn talk_without_third(leader: &mut Group, second: &mut Group) -> Vec<Message> {
    let (mut network, mut to_third) = (Vec::new(), Vec::new());
    loop {
        drain(leader, &mut network);
        drain(second, &mut network);
        if network.is_empty() {
            return to_third;
        }
        for message in network.drain(..) {
            match message.to().0 {
                1 => leader.step(message).expect("a member"),
                2 => second.step(message).expect("a member"),
                _ => to_third.push(message),
            }
        }
    }
}

#[test]
fn a_follower_that_does_not_answer_is_sent_a_window_and_no_more() {
    for body_bytes in [100, 5_000, 8 << 10, 40 << 10] {
        let (mut leader, mut second, mut third) = led();
        let mut to_third = Vec::new();
        for _ in 0..(1 << 20) / body_bytes {
            leader.propose(Bytes::from(vec![1; body_bytes])).expect("it leads");
            to_third.extend(talk_without_third(&mut leader, &mut second));
        }
        let sent = body_bytes_to(3, &to_third);
        assert!(sent <= WINDOW_BYTES.max(body_bytes), "{sent} bytes are under way in bodies of {body_bytes}");
        assert!(sent >= WINDOW_BYTES / 2, "the window is used: {sent} bytes in bodies of {body_bytes}");
        assert_eq!(in_flight_to(3, &leader), sent);
        // It answers after all, and has everything in the end.
        for message in to_third {
            third.step(message).expect("a member");
        }
        for _ in 0..20 {
            leader.tick();
            talk(&mut [&mut leader, &mut second, &mut third], &[1, 2, 3]);
        }
        assert_eq!(third.status().last, leader.status().last);
        assert_eq!(in_flight_to(3, &leader), 0);
    }
}

#[test]
fn heartbeats_do_not_open_the_window_and_what_was_lost_is_sent_again() {
    let (mut leader, mut second, mut third) = led();
    for _ in 0..100 {
        leader.propose(Bytes::from(vec![1; 5_000])).expect("it leads");
        // All of it is lost on its way to the third.
        talk_without_third(&mut leader, &mut second);
    }
    let before = in_flight_to(3, &leader);
    let mut sent = 0;
    for _ in 0..9 {
        leader.tick();
        let to_third = talk_without_third(&mut leader, &mut second);
        for message in to_third.into_iter().filter(|message| message.body_bytes() == 0) {
            third.step(message).expect("a member");
        }
        let mut answers = Vec::new();
        drain(&mut third, &mut answers);
        for answer in answers {
            leader.step(answer).expect("a member");
        }
        sent += body_bytes_to(3, &talk_without_third(&mut leader, &mut second));
    }
    assert_eq!(sent, 0, "{before} bytes are under way, and each heartbeat was answered");
    for _ in 0..40 {
        leader.tick();
        talk(&mut [&mut leader, &mut second, &mut third], &[1, 2, 3]);
    }
    assert_eq!(third.status().last, leader.status().last, "it was found out that something was lost");
}
