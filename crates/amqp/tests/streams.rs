//! Properties: what is written is read back, the cuts of a stream change nothing, and no stream
//! makes it panic.

mod client;

use std::collections::BTreeMap;

use amqp::wire::content::Properties;
use amqp::wire::frame::{PROTOCOL_HEADER, write_frame};
use amqp::wire::method::Method;
use amqp::wire::table::{Table, Value, check_fields};
use amqp::{ChannelId, Connection, ConnectionConfig, fuzz};
use bytes::{Bytes, BytesMut};
use client::*;
use proptest::prelude::*;

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn name() -> impl Strategy<Value = Bytes> {
    "[a-zé.#*]{0,20}".prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, mantissa)| Value::Decimal { scale, mantissa }),
        bytes(40).prop_map(Value::LongString),
        bytes(40).prop_map(Value::ByteArray),
        any::<u64>().prop_map(Value::Timestamp),
        Just(Value::Void),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            proptest::collection::vec((name(), inner), 0..6).prop_map(|fields| Value::Table(table_of(fields))),
        ]
    })
}

fn table_of(fields: Vec<(Bytes, Value)>) -> Table {
    let mut table = Table::new();
    fields.into_iter().for_each(|(name, value)| table.push(name, value));
    table
}

fn table() -> impl Strategy<Value = Table> {
    proptest::collection::vec((name(), value()), 0..8).prop_map(table_of)
}

/// Random payloads for every method of the table: a payload is made by the method's own encoder
/// from random fields, found by decoding random bytes long enough for any fixed part.
fn arbitrary_method() -> impl Strategy<Value = Method> {
    let index = 0..Method::ALL.len();
    (index, name(), name(), name(), bytes(60), table(), any::<u64>(), any::<u8>()).prop_map(
        |(index, n1, n2, n3, long, table, number, bits)| {
            let (id, _) = Method::ALL[index];
            // Fields in every order that a method has them: try layouts until one decodes.
            let mut payload = Vec::new();
            for layout in layouts(&n1, &n2, &n3, &long, &table, number, bits) {
                payload.clear();
                payload.extend_from_slice(&id.class.to_be_bytes());
                payload.extend_from_slice(&id.method.to_be_bytes());
                payload.extend_from_slice(&layout);
                if let Ok(method) = Method::decode(&Bytes::from(payload.clone())) {
                    return method;
                }
            }
            panic!("no layout for {id:?}")
        },
    )
}

/// The field layouts that occur in AMQP 0-9-1, with random contents.
fn layouts(n1: &[u8], n2: &[u8], n3: &[u8], long: &[u8], table: &Table, number: u64, bits: u8) -> Vec<Vec<u8>> {
    let short = |s: &[u8]| [&[s.len() as u8][..], s].concat();
    let longstr = |s: &[u8]| [&(s.len() as u32).to_be_bytes()[..], s].concat();
    let (u16s, u32s, u64s) = (&number.to_be_bytes()[..2], &number.to_be_bytes()[2..6], &number.to_be_bytes()[..]);
    let (n1, n2, n3, long, table) =
        (&short(n1)[..], &short(n2)[..], &short(n3)[..], &longstr(long)[..], &table.encode()[..]);
    let bits = &[bits][..];
    [
        vec![],
        vec![bits],
        vec![u16s],
        vec![u32s],
        vec![n1],
        vec![long],
        vec![long, n1],
        vec![n1, bits],
        vec![n1, n2, bits],
        vec![u64s, bits],
        vec![u16s, n1, bits],
        vec![u16s, n1, n2, bits],
        vec![u16s, n1, n2, n3],
        vec![u16s, n1, u16s, u16s],
        vec![u16s, u32s, u16s],
        vec![u32s, u16s, bits],
        vec![n1, u32s, u32s],
        vec![u16s, n1, bits, table],
        vec![u16s, n1, n2, bits, table],
        vec![u16s, n1, n2, n3, bits, table],
        vec![u16s, n1, n2, n3, table],
        vec![n1, u64s, bits, n2, n3],
        vec![u64s, bits, n1, n2, u32s],
        vec![table, n1, long, n2],
        vec![bits, bits, table, long, long],
    ]
    .into_iter()
    .map(|fields| fields.concat())
    .collect()
}

proptest! {
    // A shrunk counterexample becomes a named test here, not a line in a file of seeds.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_table_comes_back_byte_for_byte(table in table()) {
        let encoded = Bytes::from(table.encode());
        check_fields(&encoded[4..]).expect("what is encoded is well-formed");
        let decoded = Table::decode(&encoded).expect("what is encoded decodes");
        prop_assert_eq!(decoded.encode(), encoded);
    }

    #[test]
    fn building_and_checking_agree_on_any_bytes(data in proptest::collection::vec(
        prop_oneof![any::<u8>(), Just(b'F'), Just(b'A'), Just(b'S'), Just(b'V'), Just(0u8), Just(1u8)], 0..80)) {
        let built = Table::decode_fields(&Bytes::from(data.clone()));
        prop_assert_eq!(built.is_ok(), check_fields(&data).is_ok());
    }

    #[test]
    fn every_method_comes_back_byte_for_byte(method in arbitrary_method(), channel in any::<u16>()) {
        let mut encoded = Vec::new();
        method.write(&mut encoded, channel);
        let payload = Bytes::copy_from_slice(&encoded[7..encoded.len() - 1]);
        let decoded = Method::decode(&payload).expect("what is encoded decodes");
        prop_assert_eq!(decoded.id(), method.id());
        let mut again = Vec::new();
        decoded.write(&mut again, channel);
        prop_assert_eq!(again, encoded);
    }

    #[test]
    fn every_property_list_comes_back(
        present in any::<u16>(), headers in table(), a in bytes(50), b in name(), numbers in any::<(u8, u8, u64)>(),
    ) {
        let headers = headers.encode();
        let has = |bit: u32| present >> bit & 1 == 1;
        let properties = Properties {
            content_type: has(0).then_some(&a), content_encoding: has(1).then_some(&b),
            headers: has(2).then_some(&headers[4..]), delivery_mode: has(3).then_some(numbers.0),
            priority: has(4).then_some(numbers.1), correlation_id: has(5).then_some(&a),
            reply_to: has(6).then_some(&b), expiration: has(7).then_some(&a), message_id: has(8).then_some(&b),
            timestamp: has(9).then_some(numbers.2), kind: has(10).then_some(&a), user_id: has(11).then_some(&b),
            app_id: has(12).then_some(&a), cluster_id: has(13).then_some(&b),
        };
        let mut encoded = Vec::new();
        properties.encode_to(&mut encoded);
        prop_assert_eq!(Properties::parse(&encoded).expect("what is encoded parses"), properties);
    }

    /// Whatever the cuts, the same stream gives the same events and the same bytes.
    #[test]
    fn the_cuts_of_a_stream_change_nothing(
        steps in proptest::collection::vec((0u8..7, 1u16..4, 0usize..9000), 1..40),
        cuts in proptest::collection::vec(1usize..3000, 1..60),
    ) {
        let mut stream = Vec::new();
        for (step, channel, size) in steps {
            match step {
                0 => stream.extend_from_slice(&publish_bytes(channel, "key", &vec![7; size])),
                1 => declare("q", size % 2 == 0).write(&mut stream, channel),
                2 => ack(size as u64 % 40, size % 3 == 0).write(&mut stream, channel),
                3 => Method::BasicGet { ticket: 0, queue: Bytes::from_static(b"q"), no_ack: size % 2 == 0 }.write(&mut stream, channel),
                4 => Method::BasicRecover { requeue: true }.write(&mut stream, channel),
                5 => Method::ConfirmSelect { no_wait: false }.write(&mut stream, channel),
                _ => write_frame(&mut stream, 8, 0, |_| {}),
            }
        }
        let whole = replay(&stream, &[stream.len().max(1)]);
        prop_assert_eq!(replay(&stream, &cuts), whole);
    }

    #[test]
    fn any_frames_are_survived(
        frames in proptest::collection::vec(
            (prop_oneof![1u8..=3, Just(8u8), any::<u8>()], 0u16..4, prop_oneof![
                arbitrary_method().prop_map(|m| { let mut b = Vec::new(); m.write(&mut b, 0); b[7..b.len() - 1].to_vec() }),
                proptest::collection::vec(any::<u8>(), 0..60),
                (0u64..40).prop_map(header_payload),
            ]), 0..40),
        cut in any::<u8>(),
    ) {
        let mut data = vec![cut];
        for (kind, channel, payload) in frames {
            write_frame(&mut data, kind, channel, |w| w.raw(&payload));
        }
        fuzz::drive_connection(&data);
    }

    #[test]
    fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzz::decode_frame(&data);
        fuzz::decode_table(&data);
        fuzz::decode_properties(&data);
        fuzz::drive_connection(&data);
        fuzz::drive_handshake(&data);
        fuzz::drive_handshake(&[&PROTOCOL_HEADER[..], &data].concat());
    }
}

/// What happened on each channel, in words and in order, and the deliveries that were settled.
type Happened = (BTreeMap<u16, Vec<String>>, Vec<(ChannelId, u32, u64)>);

/// Feeds a stream in parts of these sizes, in turn, to an open connection with three channels and
/// forty deliveries on each; answers every request at once.
fn replay(stream: &[u8], cuts: &[usize]) -> Happened {
    use amqp::{ConsumerTag, Delivery, Event, MessageParts, Reply, Request};
    let mut client = Client::open();
    let body = Bytes::from_static(b"body");
    for number in 1..4 {
        let channel = client.open_channel(number);
        let message = MessageParts { exchange: b"", routing_key: b"q", properties: &[0, 0], body: (&body).into() };
        let consumer_tag = &ConsumerTag::new(Bytes::from_static(b"tag"));
        for seq in 0..40 {
            let delivery = Delivery { consumer_tag, consumer: 1, seq, redelivered: false, no_ack: false, message };
            client.connection.deliver(channel, &delivery);
        }
        client.read();
    }
    let mut log: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    let mut settled = Vec::new();
    let mut rest = stream;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let (part, left) = rest.split_at((*cuts.next().expect("cuts are endless")).min(rest.len()));
        rest = left;
        client.raw(part);
        while let Some(event) = client.event() {
            if let Event::Request { channel, request } = &event {
                let reply = match request {
                    Request::QueueDeclare { queue, .. } => {
                        Reply::QueueDeclared { queue: queue.clone(), message_count: 0, consumer_count: 0 }
                    }
                    Request::Get { .. } => {
                        client.connection.get_empty(*channel);
                        continue;
                    }
                    _ => Reply::Done,
                };
                client.connection.reply(*channel, reply);
            }
            // How acks are grouped into events follows the cuts; what they settle does not.
            match event {
                Event::Settle(settle) => settle.deliveries.iter().for_each(|run| {
                    let each = (run.first_seq..run.first_seq + u64::from(run.count))
                        .map(|seq| (settle.channel, run.consumer, seq));
                    settled.extend(each);
                }),
                Event::Publish(publish) => {
                    log.entry(publish.channel.number()).or_default().push(format!("{publish:?}"));
                }
                Event::Request { channel, request } => {
                    log.entry(channel.number()).or_default().push(format!("{request:?}"));
                }
                Event::ChannelClosed { channel, unsettled, .. } => {
                    log.entry(channel.number()).or_default().push(format!("closed {unsettled:?}"));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Channels are independent of one another: while one waits for an answer, how far another gets
    // follows the cuts.
    for sent in client.read() {
        let number = match &sent {
            Sent::Method(number, _) | Sent::Header { channel: number, .. } | Sent::Body(number, _) => *number,
            Sent::Heartbeat => 0,
        };
        log.entry(number).or_default().push(format!("{sent:?}"));
    }
    settled.sort_unstable();
    (log, settled)
}

#[test]
fn a_stream_one_byte_at_a_time_costs_no_more_memory() {
    let mut connection = Connection::new(std::sync::Arc::new(ConnectionConfig::default()), 0);
    let mut input = BytesMut::new();
    for byte in PROTOCOL_HEADER.iter().chain(&[1, 0, 0, 0, 0, 0x1f, 0xff]).chain(&[0; 5000]) {
        input.extend_from_slice(&[*byte]);
        connection.handle_input(&mut input, 0);
    }
    assert_eq!(input.len(), 5007);
    assert!(connection.held_bytes() < 4096);
}
