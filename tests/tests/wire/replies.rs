//! Direct reply-to: answers over the asker's own channel.
//!
//! Invariant: the name that the answerer sees is opaque, differs between channels, and means
//! nothing once its channel is gone.

use clients::broker::is_foreign;
use clients::methods::*;
use clients::wire::{Args, Properties, Reader};
use clients::{Broker, Client, Delivery, Event, Publish, QueueDeclare, Scope};

use crate::setup::{Kind, assert_closed, new_queue};

const REPLY_TO: &str = "amq.rabbitmq.reply-to";
const REPLY_TO_BIT: u32 = 9;

fn ask<'a>(key: &'a str, body: &'a [u8]) -> Publish<'a> {
    let reply_to = Args::new().shortstr(REPLY_TO).0;
    Publish { key, body, properties: Properties::only(REPLY_TO_BIT, reply_to), ..Default::default() }
}

fn reply_name(question: &Delivery) -> String {
    assert_eq!(question.properties.flags, 1 << REPLY_TO_BIT);
    Reader(&question.properties.bytes).shortstr()
}

/// A client that consumes replies on its first channel.
fn asker() -> (Client, u16, String) {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let tag = client.consume_with(channel, REPLY_TO, "", [false, true, false], &[]).unwrap();
    (client, channel, tag)
}

#[test]
fn an_answer_comes_over_the_channel_that_asked() {
    let (mut client, channel, tag) = asker();
    let mut server = Broker::shared().connect();
    let serving = server.channel();
    let queue = new_queue(&mut server, serving, Kind::Classic);
    for n in 0..3u8 {
        client.publish(channel, &ask(&queue, &[n]));
        let question = loop {
            if let Some(question) = server.get(serving, &queue, true).unwrap() {
                break question;
            }
        };
        let name = reply_name(&question);
        assert!(name.starts_with("amq.rabbitmq.reply-to."), "{name}");
        server.publish(serving, &Publish { key: &name, body: &[n + 10], ..Default::default() });
        let answer = client.delivery(channel);
        assert_eq!((&answer.body[..], answer.consumer_tag.as_str()), (&[n + 10][..], tag.as_str()));
        assert_eq!((answer.exchange.as_str(), answer.redelivered), ("", false));
        assert_eq!(answer.routing_key, name);
    }
}

#[test]
fn an_answer_after_the_asker_left_is_dropped() {
    let (mut client, channel, tag) = asker();
    let mut server = Broker::shared().connect();
    let serving = server.channel();
    let queue = new_queue(&mut server, serving, Kind::Classic);
    client.publish(channel, &ask(&queue, b"question"));
    let question = loop {
        if let Some(question) = server.get(serving, &queue, true).unwrap() {
            break question;
        }
    };
    let name = reply_name(&question);
    assert_eq!(server.counts(serving, &name).unwrap(), (0, 1), "the answerer may look whether anybody waits");
    client.cancel(channel, &tag).unwrap();
    server.confirm_select(serving).unwrap();
    server.publish(serving, &Publish { key: &name, body: b"late", ..Default::default() });
    server.confirmed(serving, 1, 1);
    client.silent(channel);
    // A new consumer has a new name.
    client.consume_with(channel, REPLY_TO, "", [false, true, false], &[]).unwrap();
    client.publish(channel, &ask(&queue, b"again"));
    client.silent(channel);
    match server.counts(serving, &name) {
        Ok(_) => assert!(is_foreign(), "RabbitMQ keeps the name while the channel lives"),
        Err(closed) => {
            let text = "NOT_FOUND - no queue 'amq.rabbitmq.reply-to.";
            assert_closed(&closed, Scope::Channel, 404, text, QUEUE_DECLARE);
        }
    }
}

#[test]
fn a_question_needs_a_reply_consumer() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let queue = new_queue(&mut client, channel, Kind::Classic);
    client.publish(channel, &ask(&queue, b"question"));
    let Event::Closed(closed) = client.event(channel) else { panic!("a close") };
    let text = "PRECONDITION_FAILED - fast reply consumer does not exist";
    assert_closed(&closed, Scope::Channel, 406, text, BASIC_PUBLISH);
}

#[test]
fn a_reply_consumer_does_not_ack_and_is_alone() {
    let (mut client, channel, _) = asker();
    let closed = client.consume_with(channel, REPLY_TO, "", [false, true, false], &[]).unwrap_err();
    let text = "PRECONDITION_FAILED - reply consumer already set";
    assert_closed(&closed, Scope::Channel, 406, text, BASIC_CONSUME);
    let other = client.channel();
    let closed = client.consume(other, REPLY_TO, "").unwrap_err();
    let text = "PRECONDITION_FAILED - reply consumer cannot acknowledge";
    assert_closed(&closed, Scope::Channel, 406, text, BASIC_CONSUME);
}

#[test]
fn the_name_can_be_declared_and_used_for_nothing_else() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let declare = QueueDeclare { name: REPLY_TO, ..Default::default() };
    assert_eq!(client.declare(channel, &declare).unwrap(), (REPLY_TO.to_owned(), 0, 1));
    assert_eq!(client.counts(channel, REPLY_TO).unwrap(), (0, 1));
    let closed = client.get(channel, REPLY_TO, true).unwrap_err();
    let text = "NOT_FOUND - no queue 'amq.rabbitmq.reply-to' in vhost '/'";
    assert_closed(&closed, Scope::Channel, 404, text, BASIC_GET);
    let channel = client.channel();
    let closed = client.counts(channel, "amq.rabbitmq.reply-to.nobody").unwrap_err();
    let text = "no queue 'amq.rabbitmq.reply-to.nobody' in vhost '/'";
    assert_closed(&closed, Scope::Channel, 404, text, QUEUE_DECLARE);
}
