//! The class tx: what waits for a commit, what a rollback undoes, what it does not.
//!
//! Invariant: nobody sees a publish or an ack of a transaction before its commit is sent.

use clients::methods::*;
use clients::wire::{Args, Properties};
use clients::{Client, Event, Publish, Scope};

use crate::setup::{Kind, assert_closed, fill, number, with_queue};

fn select(client: &mut Client, channel: u16) {
    client.call(channel, TX_SELECT, &Args::new(), TX_SELECT_OK).unwrap();
}

fn commit(client: &mut Client, channel: u16) {
    client.call(channel, TX_COMMIT, &Args::new(), TX_COMMIT_OK).unwrap();
}

fn rollback(client: &mut Client, channel: u16) {
    client.call(channel, TX_ROLLBACK, &Args::new(), TX_ROLLBACK_OK).unwrap();
}

#[test]
fn publishes_appear_with_their_commit_and_in_order() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        let other = client.channel();
        select(&mut client, channel);
        select(&mut client, channel);
        for n in 0..3 {
            client.put(channel, &queue, n.to_string().as_bytes());
        }
        client.round_trip(channel).unwrap();
        assert_eq!(client.counts(other, &queue).unwrap(), (0, 0), "{kind:?}: not before the commit");
        commit(&mut client, channel);
        assert_eq!(client.counts(other, &queue).unwrap(), (3, 0), "{kind:?}: commit-ok says that they are there");
        client.put(channel, &queue, b"3");
        rollback(&mut client, channel);
        commit(&mut client, channel);
        for n in 0..3 {
            assert_eq!(number(&client.get(other, &queue, true).unwrap().unwrap().body), n);
        }
        assert!(client.get(other, &queue, true).unwrap().is_none(), "{kind:?}: rolled back");
    }
}

#[test]
fn acks_count_from_their_commit_and_a_rollback_does_not_requeue() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 4);
        select(&mut client, channel);
        for _ in 0..4 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.ack(channel, 2, true);
        client.nack(channel, 4, false, true);
        client.round_trip(channel).unwrap();
        let other = client.channel();
        assert!(client.get(other, &queue, true).unwrap().is_none(), "{kind:?}: the nack waits");
        rollback(&mut client, channel);
        assert!(client.get(other, &queue, true).unwrap().is_none(), "{kind:?}: nothing comes back");
        // All four are outstanding again, under their tags.
        client.ack(channel, 3, true);
        client.nack(channel, 4, false, true);
        commit(&mut client, channel);
        client.close_channel(channel);
        let back = client.get(other, &queue, true).unwrap().unwrap();
        assert_eq!((number(&back.body), back.redelivered), (3, true), "{kind:?}");
        assert!(client.get(other, &queue, true).unwrap().is_none());
    }
}

#[test]
fn a_close_undoes_what_was_not_committed() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    fill(&mut client, &queue, 1);
    select(&mut client, channel);
    client.get(channel, &queue, false).unwrap().unwrap();
    client.ack(channel, 1, false);
    client.put(channel, &queue, b"9");
    client.close_channel(channel);
    let other = client.channel();
    assert_eq!(number(&client.get(other, &queue, true).unwrap().unwrap().body), 0);
    assert!(client.get(other, &queue, true).unwrap().is_none());
}

#[test]
fn returns_arrive_before_commit_ok() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    select(&mut client, channel);
    client.publish(channel, &Publish { key: "nobody", mandatory: true, body: b"x", ..Default::default() });
    client.round_trip(channel).unwrap();
    client.silent(channel);
    client.send(channel, TX_COMMIT, &Args::new());
    assert!(matches!(client.event(channel), Event::Returned(returned) if returned.code == 312));
    assert!(matches!(client.event(channel), Event::Method(TX_COMMIT_OK, _)));
}

#[test]
fn an_unknown_exchange_costs_the_channel_before_the_commit() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    select(&mut client, channel);
    let properties = Properties::persistent();
    client.publish(channel, &Publish { exchange: "nowhere", key: "q", properties, ..Default::default() });
    let Event::Closed(closed) = client.event(channel) else { panic!("a close") };
    assert_closed(&closed, Scope::Channel, 404, "no exchange 'nowhere' in vhost '/'", BASIC_PUBLISH);
}

#[test]
fn modes_do_not_mix() {
    let (mut client, _, _) = with_queue(Kind::Classic);
    let mut refused = |first: Option<(Method, Method)>, method: Method, args: &Args, text: &str| {
        let channel = client.channel();
        if let Some((method, reply)) = first {
            let args = if method == CONFIRM_SELECT { Args::new().octet(0) } else { Args::new() };
            client.call(channel, method, &args, reply).unwrap();
        }
        let closed = client.call(channel, method, args, Method(0, 0)).unwrap_err();
        assert_closed(&closed, Scope::Channel, 406, text, method);
    };
    let nothing = Args::new();
    refused(None, TX_COMMIT, &nothing, "PRECONDITION_FAILED - channel is not transactional");
    refused(None, TX_ROLLBACK, &nothing, "PRECONDITION_FAILED - channel is not transactional");
    let confirm = Some((CONFIRM_SELECT, CONFIRM_SELECT_OK));
    refused(confirm, TX_SELECT, &nothing, "PRECONDITION_FAILED - cannot switch from confirm to tx mode");
    let tx = Some((TX_SELECT, TX_SELECT_OK));
    refused(tx, CONFIRM_SELECT, &Args::new().octet(0), "PRECONDITION_FAILED - cannot switch from tx to confirm mode");
}
