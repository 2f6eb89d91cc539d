//! The class tx on the wire: what waits for a commit, what a rollback gives back, when commit-ok
//! goes out.

mod client;

use amqp::wire::method::Method;
use amqp::{ChannelId, Confirm, ConsumerTag, Delivery, MessageParts, Reply, Request, Settlement};
use bytes::Bytes;
use client::*;

fn in_tx() -> (Client, ChannelId) {
    let (mut client, channel) = Client::with_channel();
    client.send(1, Method::TxSelect {});
    assert_eq!(client.request(), Request::TxSelect);
    client.connection.reply(channel, Reply::Done);
    assert_eq!(client.read(), [Sent::Method(1, Method::TxSelectOk {})]);
    (client, channel)
}

fn deliver(client: &mut Client, channel: ChannelId, seqs: impl IntoIterator<Item = u64>) {
    for seq in seqs {
        let body = Bytes::from_static(b"body");
        let message = MessageParts { exchange: b"", routing_key: b"q", properties: &[0, 0], body: (&body).into() };
        let consumer_tag = &ConsumerTag::new("c");
        let delivery = Delivery { consumer_tag, consumer: 7, seq, redelivered: false, no_ack: false, message };
        client.connection.deliver(channel, &delivery);
    }
    client.read();
}

fn commit(client: &mut Client) -> Vec<(Settlement, Vec<(u64, u32)>)> {
    client.send(1, Method::TxCommit {});
    let Request::TxCommit { settles } = client.request() else { panic!("a commit") };
    let runs = |d: amqp::Deliveries| d.iter().map(|run| (run.first_seq, run.count)).collect();
    settles.into_iter().map(|(outcome, deliveries)| (outcome, runs(deliveries))).collect()
}

#[test]
fn acks_wait_for_the_commit_in_their_order() {
    let (mut client, channel) = in_tx();
    deliver(&mut client, channel, 1..=6);
    client.send(1, ack(2, true));
    client.send(1, Method::BasicReject { delivery_tag: 4, requeue: true });
    client.send(1, ack(3, false));
    assert!(client.events().is_empty(), "nothing is settled before the commit");
    let settles = commit(&mut client);
    let expected = [
        (Settlement::Ack, vec![(1, 2)]),
        (Settlement::Reject { requeue: true }, vec![(4, 1)]),
        (Settlement::Ack, vec![(3, 1)]),
    ];
    assert_eq!(settles, expected);
    client.connection.reply(channel, Reply::Done);
    assert_eq!(client.read(), [Sent::Method(1, Method::TxCommitOk {})]);
    assert_eq!(commit(&mut client), [], "the next transaction is empty");
    client.connection.reply(channel, Reply::Done);
    client.read();
    client.send(1, ack(3, false));
    assert!(matches!(client.read_method(), (1, Method::ChannelClose { reply_code: 406, .. })));
}

#[test]
fn a_rollback_makes_acked_deliveries_outstanding_again() {
    let (mut client, channel) = in_tx();
    deliver(&mut client, channel, 1..=3);
    client.send(1, ack(0, true));
    deliver(&mut client, channel, [4]);
    client.send(1, Method::TxRollback {});
    assert_eq!(client.request(), Request::TxRollback);
    client.connection.reply(channel, Reply::Done);
    assert_eq!(client.read(), [Sent::Method(1, Method::TxRollbackOk {})]);
    client.send(1, ack(2, false));
    client.send(1, ack(4, true));
    assert_eq!(commit(&mut client), [(Settlement::Ack, vec![(2, 1), (1, 1), (3, 2)])]);
}

#[test]
fn a_tag_is_acked_once_in_a_transaction_too() {
    let (mut client, channel) = in_tx();
    deliver(&mut client, channel, [1]);
    client.send(1, ack(1, false));
    client.send(1, ack(1, false));
    let text = Bytes::from_static(b"PRECONDITION_FAILED - unknown delivery tag 1");
    let close = Method::ChannelClose { reply_code: 406, reply_text: text, class_id: 60, method_id: 80 };
    assert_eq!(client.read_method(), (1, close));
}

#[test]
fn commit_ok_waits_for_the_confirm_of_every_publish() {
    let (mut client, channel) = in_tx();
    for seq in 1..=3 {
        client.publish(1, "q", b"body");
        assert_eq!(client.published().publish_seq, seq);
    }
    assert_eq!(commit(&mut client), []);
    client.connection.confirm(channel, 2, Confirm::Ack);
    client.connection.reply(channel, Reply::Done);
    client.send(1, Method::TxCommit {});
    client.connection.confirm(channel, 1, Confirm::Ack);
    assert_eq!((client.read(), client.events().len()), (vec![], 0), "the next commit waits for its turn");
    client.connection.confirm(channel, 3, Confirm::Ack);
    client.connection.flush_confirms();
    assert_eq!(client.read(), [Sent::Method(1, Method::TxCommitOk {})], "and the client hears of no confirm");
    assert_eq!(client.request(), Request::TxCommit { settles: Vec::new() });
}

#[test]
fn publishes_that_were_rolled_back_are_not_waited_for() {
    let (mut client, channel) = in_tx();
    client.publish(1, "q", b"body");
    client.published();
    client.send(1, Method::TxRollback {});
    client.request();
    client.connection.reply(channel, Reply::Done);
    client.publish(1, "q", b"body");
    assert_eq!(client.published().publish_seq, 2, "numbers are not used again");
    commit(&mut client);
    client.connection.confirm(channel, 2, Confirm::Ack);
    client.read();
    client.connection.reply(channel, Reply::Done);
    assert_eq!(client.read(), [Sent::Method(1, Method::TxCommitOk {})]);
}

#[test]
fn a_refused_publish_fails_the_commit() {
    let (mut client, channel) = in_tx();
    client.publish(1, "q", b"body");
    client.published();
    commit(&mut client);
    client.connection.reply(channel, Reply::Done);
    client.connection.confirm(channel, 1, Confirm::Nack);
    let text = Bytes::from_static(b"PRECONDITION_FAILED - partial tx completion");
    let close = Method::ChannelClose { reply_code: 406, reply_text: text, class_id: 90, method_id: 20 };
    assert_eq!(client.read_method(), (1, close));
}

#[test]
fn what_a_transaction_is_to_settle_is_held_until_its_commit_is_taken() {
    let (mut client, channel) = in_tx();
    deliver(&mut client, channel, 1..=4);
    client.send(1, ack(2, true));
    client.send(1, Method::BasicNack { delivery_tag: 4, multiple: false, requeue: true });
    let held = |client: &Client| {
        let mut held = client.connection.unacked_of(channel, 7);
        assert_eq!(client.connection.unacked_of_each(channel).remove(&7).unwrap_or_default(), held);
        held.sort_unstable();
        held
    };
    let all = [(1, 1), (2, 1), (3, 1), (4, 1)];
    assert_eq!(held(&client), all, "another leader is told that they are held");
    client.send(1, Method::TxCommit {});
    assert_eq!(held(&client).iter().map(|(_, count)| count).sum::<u64>(), 4, "nobody was told of the commit");
    assert!(matches!(client.request(), Request::TxCommit { .. }));
    assert_eq!(held(&client), [(3, 1)]);
}
