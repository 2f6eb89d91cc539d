//! Bodies of every size at which an implementation may trip: none, one byte, around frames, the
//! largest allowed and beyond.
//!
//! Invariant: a body comes back byte for byte, whatever the frames it went and came in.

use clients::broker::is_foreign;
use clients::client::FRAME_BODY;
use clients::client::frame;
use clients::methods::*;
use clients::verbs::header_frame;
use clients::wire::Args;
use clients::{Broker, Client, Login, Properties, Publish, Scope};

use crate::setup::{Kind, assert_closed, new_queue, with_queue};

/// The largest body a broker with default settings takes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes that differ at each place, so that a swapped or repeated chunk shows.
fn pattern(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

#[track_caller]
fn same(got: &[u8], sent: &[u8]) {
    assert_eq!(got.len(), sent.len(), "the length of the body");
    let differs = got.iter().zip(sent).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the first byte that differs, of {}", sent.len());
}

fn round_trip(client: &mut Client, channel: u16, queue: &str, body: &[u8]) {
    client.publish(channel, &Publish { key: queue, properties: Properties::persistent(), body, ..Default::default() });
    same(&client.delivery(channel).body, body);
}

#[test]
fn body_comes_back_whole_at_each_size() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
        let frame = client.frame_max as usize - 8;
        for size in [0, 1, 2, 255, 256, 4095, 4096, frame - 1, frame, frame + 1, 2 * frame, 2 * frame + 1, 1 << 20] {
            round_trip(&mut client, channel, &queue, &pattern(size));
        }
    }
}

#[test]
fn body_of_sixteen_mebibytes_comes_back_whole() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
        round_trip(&mut client, channel, &queue, &pattern(MESSAGE_BYTES_MAX));
    }
}

#[test]
fn body_over_the_limit_closes_the_channel_with_406_before_it_is_sent() {
    if is_foreign() {
        return; // RabbitMQ 3.10 allows 128 MiB; 16 MiB is the limit since 4.0.
    }
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    client.send(channel, BASIC_PUBLISH, &Args::new().short(0).shortstr("").shortstr(&queue).octet(0));
    client.raw(&header_frame(channel, &Properties::persistent(), MESSAGE_BYTES_MAX as u64 + 1));
    let text = "PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216";
    assert_closed(&client.closed(channel), Scope::Channel, 406, text, BASIC_PUBLISH);
    let channel = client.channel();
    assert_eq!(client.counts(channel, &queue).unwrap().0, 0);
}

#[test]
fn body_in_many_small_frames_arrives_whole() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    let body = pattern(10_000);
    let mut bytes = clients::client::method_frame(
        channel,
        BASIC_PUBLISH,
        &Args::new().short(0).shortstr("").shortstr(&queue).octet(0),
    );
    bytes.extend(header_frame(channel, &Properties::persistent(), body.len() as u64));
    for chunk in body.chunks(7) {
        bytes.extend(frame(FRAME_BODY, channel, chunk));
    }
    // Written in pieces that cut frames anywhere.
    for piece in bytes.chunks(1013) {
        client.raw(piece);
    }
    client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
    same(&client.delivery(channel).body, &body);
}

#[test]
fn consumer_with_the_smallest_frames_gets_large_bodies_whole() {
    let login = Login { frame_max: Some(4096), ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    let channel = client.channel();
    for kind in Kind::ALL {
        let queue = new_queue(&mut client, channel, kind);
        client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
        for size in [0, 4087, 4088, 4089, 300_000] {
            // The client panics when a frame exceeds what was negotiated.
            round_trip(&mut client, channel, &queue, &pattern(size));
        }
    }
}

#[test]
fn empty_bodies_in_a_row_stay_apart() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    for _ in 0..100 {
        client.put(channel, &queue, b"");
    }
    client.consume(channel, &queue, "").unwrap();
    for tag in 1..=100 {
        let delivery = client.delivery(channel);
        assert_eq!((delivery.tag, delivery.body.len()), (tag, 0));
    }
    client.silent(channel);
}
