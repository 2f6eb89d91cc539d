//! What a channel has outstanding while something that the client said of it waits for its turn.

mod client;

use amqp::wire::method::Method;
use amqp::{ChannelId, ConsumerTag, Delivery, MessageParts, Reply, Request};
use bytes::Bytes;
use client::*;

fn deliver_many(client: &mut Client, channel: ChannelId, consumer: u32, seqs: impl IntoIterator<Item = u64>) {
    let (consumer_tag, body) = (ConsumerTag::new(Bytes::from_static(b"tag")), Bytes::from_static(b"m"));
    for seq in seqs {
        let message = MessageParts { exchange: b"", routing_key: b"q", properties: b"\0\0", body: (&body).into() };
        let delivery =
            Delivery { consumer_tag: &consumer_tag, consumer, seq, redelivered: false, no_ack: false, message };
        client.connection.deliver(channel, &delivery);
    }
    client.read();
}

#[test]
fn recover_hands_over_everything_and_forgets_it() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, [1, 2]);
    client.send(1, Method::BasicRecoverAsync { requeue: true });
    let Request::Recover { unsettled } = client.request() else { panic!("recover") };
    assert_eq!(unsettled.len(), 1);
    client.connection.reply(channel, Reply::Done);
    assert_eq!(client.read(), [], "the asynchronous one has no answer");
    client.send(1, ack(1, false));
    assert!(matches!(client.read_method(), (1, Method::ChannelClose { reply_code: 406, .. })));
}

#[test]
fn what_is_sent_while_a_recover_waits_for_its_turn_goes_back_as_well() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, [1, 2]);
    client.send(1, Method::BasicRecover { requeue: true });
    deliver_many(&mut client, channel, 7, [3]);
    let Request::Recover { unsettled } = client.request() else { panic!("recover") };
    assert_eq!(unsettled.iter().map(|run| run.count).sum::<u32>(), 3);
    client.connection.reply(channel, Reply::Done);
    client.read();
    client.send(1, ack(3, false));
    assert!(matches!(client.read_method(), (1, Method::ChannelClose { reply_code: 406, .. })));
}

#[test]
fn what_was_settled_by_an_event_that_waits_is_held_until_it_is_taken() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, [1, 2, 3]);
    client.send(1, ack(2, false));
    client.send(1, ack(1, false));
    let held = |client: &Client| client.connection.unacked_of(channel, 7).iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!(held(&client), 3, "nobody was told of any ack");
    assert_eq!(client.events().len(), 1);
    assert_eq!(held(&client), 1);
    assert_eq!(client.connection.unacked_of(channel, 8), []);
}
