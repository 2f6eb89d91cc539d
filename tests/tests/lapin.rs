//! The same broker through a client library that applications use: lapin, unmodified.
//!
//! Invariant: nothing here looks at frames; a test fails only where an application would.
#![allow(clippy::unwrap_used)]

use clients::Broker;
use clients::broker::{free_port, unique};
use lapin::options::*;
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};
use tokio_stream::StreamExt;

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(clients::client::PATIENCE * 3, test).await.expect("in time") });
}

async fn connect() -> Connection {
    Connection::connect(&Broker::shared().uri(), ConnectionProperties::default()).await.unwrap()
}

async fn durable_queue(channel: &Channel, kind: &str) -> String {
    let name = unique(&format!("lapin-{kind}"));
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(name.as_str().into(), options, arguments).await.unwrap();
    name
}

async fn consume(channel: &Channel, queue: &str) -> Consumer {
    channel.basic_consume(queue.into(), "".into(), Default::default(), FieldTable::default()).await.unwrap()
}

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

#[test]
fn publish_confirm_consume_ack() {
    run(async {
        let connection = connect().await;
        for kind in ["classic", "quorum"] {
            let channel = connection.create_channel().await.unwrap();
            let queue = durable_queue(&channel, kind).await;
            channel.confirm_select(Default::default()).await.unwrap();
            for n in 0..200u32 {
                let confirm = channel
                    .basic_publish("".into(), queue.as_str().into(), Default::default(), &n.to_be_bytes(), persistent())
                    .await
                    .unwrap();
                assert!(matches!(confirm.await.unwrap(), Confirmation::Ack(None)), "{kind} {n}");
            }
            channel.basic_qos(20, Default::default()).await.unwrap();
            let mut consumer = consume(&channel, &queue).await;
            for n in 0..200u32 {
                let delivery = consumer.next().await.unwrap().unwrap();
                assert_eq!(delivery.data, n.to_be_bytes(), "{kind}");
                assert!(!delivery.redelivered);
                delivery.ack(Default::default()).await.unwrap();
            }
            assert_eq!(channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap(), 0);
            channel.close(200, "done".into()).await.unwrap();
        }
        connection.close(200, "done".into()).await.unwrap();
    });
}

#[test]
fn unroutable_mandatory_message_is_in_its_confirmation() {
    run(async {
        let connection = connect().await;
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(Default::default()).await.unwrap();
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let nowhere = unique("nowhere");
        let confirm = channel
            .basic_publish("".into(), nowhere.as_str().into(), options, b"back", BasicProperties::default())
            .await
            .unwrap();
        match confirm.await.unwrap() {
            Confirmation::Ack(Some(returned)) => {
                assert_eq!((returned.reply_code, returned.delivery.data.as_slice()), (312, &b"back"[..]));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn rpc_over_an_exclusive_reply_queue() {
    run(async {
        let server = connect().await;
        let serving = server.create_channel().await.unwrap();
        let requests = durable_queue(&serving, "classic").await;
        let mut incoming = consume(&serving, &requests).await;
        let worker = tokio::spawn(async move {
            while let Some(Ok(request)) = incoming.next().await {
                let reply_to = request.properties.reply_to().clone().unwrap();
                let id = request.properties.correlation_id().clone().unwrap();
                let doubled = [request.data.as_slice(), request.data.as_slice()].concat();
                let properties = BasicProperties::default().with_correlation_id(id);
                serving.basic_publish("".into(), reply_to, Default::default(), &doubled, properties).await.unwrap();
                request.ack(Default::default()).await.unwrap();
            }
        });
        let client = connect().await;
        let channel = client.create_channel().await.unwrap();
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let reply_queue = channel.queue_declare("".into(), options, FieldTable::default()).await.unwrap();
        let no_ack = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let name = reply_queue.name().clone();
        let mut replies = channel.basic_consume(name.clone(), "".into(), no_ack, FieldTable::default()).await.unwrap();
        for n in 0..100u32 {
            let properties =
                BasicProperties::default().with_reply_to(name.clone()).with_correlation_id(n.to_string().into());
            let body = n.to_string();
            channel
                .basic_publish("".into(), requests.as_str().into(), Default::default(), body.as_bytes(), properties)
                .await
                .unwrap();
            let reply = replies.next().await.unwrap().unwrap();
            assert_eq!(reply.data, format!("{n}{n}").as_bytes());
            assert_eq!(reply.properties.correlation_id().as_ref().unwrap().as_str(), n.to_string());
        }
        worker.abort();
    });
}

#[test]
fn nacked_message_is_delivered_again() {
    run(async {
        let connection = connect().await;
        let channel = connection.create_channel().await.unwrap();
        let queue = durable_queue(&channel, "quorum").await;
        channel
            .basic_publish("".into(), queue.as_str().into(), Default::default(), b"again", persistent())
            .await
            .unwrap();
        let mut consumer = consume(&channel, &queue).await;
        let first = consumer.next().await.unwrap().unwrap();
        first.nack(BasicNackOptions { requeue: true, ..Default::default() }).await.unwrap();
        let second = consumer.next().await.unwrap().unwrap();
        assert!(second.redelivered && second.data == b"again");
        second.ack(Default::default()).await.unwrap();
    });
}

#[test]
fn missing_queue_is_an_error_of_that_channel_only() {
    run(async {
        let connection = connect().await;
        let channel = connection.create_channel().await.unwrap();
        let calm = connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let name = unique("missing");
        let error = channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.unwrap_err();
        assert!(error.to_string().contains("NOT_FOUND") || format!("{error:?}").contains("404"), "{error:?}");
        durable_queue(&calm, "classic").await;
    });
}

#[test]
fn tls_with_the_rustls_of_the_library() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let addr = free_port().to_string();
    let paths = [&certificate, &key].map(|path| path.to_str().unwrap());
    let arguments = ["--amqps", &addr, "--tls-certificate", paths[0], "--tls-key", paths[1]];
    let Some(mut broker) = Broker::own_or_skip(&arguments) else { return };
    run(async {
        let uri = format!("amqps://guest:guest@{addr}/%2f");
        let properties = ConnectionProperties::default;
        let runtime = || lapin::runtime::default_runtime().unwrap();
        let trusting = OwnedTLSConfig { identity: None, cert_chain: Some(certified.cert.pem()) };
        let connection = Connection::connect_with_config(&uri, properties(), trusting, runtime()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let queue = durable_queue(&channel, "quorum").await;
        channel.confirm_select(Default::default()).await.unwrap();
        let body = vec![7; 1_000_000];
        let confirm = channel
            .basic_publish("".into(), queue.as_str().into(), Default::default(), &body, persistent())
            .await
            .unwrap();
        assert!(matches!(confirm.await.unwrap(), Confirmation::Ack(None)));
        let delivery = consume(&channel, &queue).await.next().await.unwrap().unwrap();
        assert!(delivery.data == body, "a megabyte through TLS records comes as it went");
        connection.close(200, "done".into()).await.unwrap();
        let wary = OwnedTLSConfig::default();
        let refused = Connection::connect_with_config(&uri, properties(), wary, runtime()).await;
        assert!(refused.is_err(), "a client that does not know the authority does not connect");
    });
    assert!(broker.terminate().success());
}

#[test]
fn connection_recovers_from_a_killed_broker() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    run(async {
        let properties = ConnectionProperties::default().enable_auto_recover();
        let connection = Connection::connect(&broker.uri(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let queue = durable_queue(&channel, "quorum").await;
        channel.confirm_select(Default::default()).await.unwrap();
        publish_until_confirmed(&channel, &queue, 0..100).await;
        let consuming = connection.create_channel().await.unwrap();
        let mut consumer = consume(&consuming, &queue).await;
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 50 {
            let delivery = consumer.next().await.unwrap().unwrap();
            seen.insert(u32::from_be_bytes(delivery.data.as_slice().try_into().unwrap()));
            delivery.ack(Default::default()).await.unwrap();
        }
        broker.kill();
        broker.start();
        publish_until_confirmed(&channel, &queue, 100..200).await;
        while seen.len() < 200 {
            match consumer.next().await.unwrap() {
                Ok(delivery) => {
                    seen.insert(u32::from_be_bytes(delivery.data.as_slice().try_into().unwrap()));
                    // An ack may meet the end of the connection that it belongs to.
                    let _ = delivery.ack(Default::default()).await;
                }
                Err(error) => consuming.wait_for_recovery(error).await.unwrap(),
            }
        }
        assert!(seen.into_iter().eq(0..200), "what was confirmed came, before the kill and behind it");
    });
    assert!(broker.terminate().success());
}

/// Publishes numbers, each again until it is confirmed.
async fn publish_until_confirmed(channel: &Channel, queue: &str, numbers: std::ops::Range<u32>) {
    for n in numbers {
        loop {
            let body = n.to_be_bytes();
            let published = channel.basic_publish("".into(), queue.into(), Default::default(), &body, persistent());
            let confirmed = match published.await {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            match confirmed {
                Ok(confirmation) => {
                    assert!(matches!(confirmation, Confirmation::Ack(None)), "{confirmation:?}");
                    break;
                }
                Err(error) => channel.wait_for_recovery(error).await.unwrap(),
            }
        }
    }
}
