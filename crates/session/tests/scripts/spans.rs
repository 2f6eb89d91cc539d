//! Spans of traced messages: which messages have some, where they belong, when they end.

use crate::script::{DURABLE, Script, consume, deliveries, delivery, get};
use amqp::{Properties, Table, Value};
use broker::ConsumerKey;
use bytes::Bytes;
use partition::message::{Stamp, store};
use partition::{Effect, Message, Reply};
use session::{Moment, Operation, Sampler, Span, TraceContext, publish_span_id};

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PARENT: u64 = 0x00f0_67aa_0ba9_02b7;

/// Properties of a message whose publisher traces it, or does not.
fn traced(is_sampled: bool) -> Vec<u8> {
    let text = |text: String| Value::LongString(Bytes::from(text));
    let mut table = Table::new();
    table.push("traceparent", text(format!("00-{TRACE:032x}-{PARENT:016x}-0{}", u8::from(is_sampled))));
    table.push("tracestate", text("them=1".to_owned()));
    let (fields, mut encoded) = (table.encode(), Vec::new());
    let (correlation_id, message_id) = (Some(&b"c"[..]), Some(&b"m"[..]));
    Properties { headers: Some(&fields[4..]), correlation_id, message_id, ..Properties::default() }
        .encode_to(&mut encoded);
    encoded
}

/// A client in a place where spans are made of this part of the messages that bring no trace.
fn begun(per_billion: u32) -> Script {
    let script = Script::begun();
    script.node.sampler.set(Some(Sampler::new(per_billion)));
    script
}

fn spans(script: &Script) -> Vec<Span> {
    script.node.spans.take()
}

/// What the client gets as the message of this number.
fn give(script: &mut Script, seq: u64, needs_ack: bool, properties: &[u8]) {
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::copy_from_slice(properties),
        body: Bytes::from_static(b"hello"),
    };
    let mut stored = Vec::new();
    store(&message, 0, Stamp::None, &mut stored);
    let channel = script.key(1);
    let delivery = partition::Delivery {
        needs_ack,
        message: stored.into(),
        ..delivery(ConsumerKey { channel, number: 1 }, seq, "")
    };
    script.effect(channel, Effect::Deliver(delivery));
}

fn consuming() -> Script {
    let mut script = begun(0);
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script
}

#[test]
fn a_publish_of_a_traced_message_is_a_span_of_its_trace_until_its_confirm() {
    let mut script = begun(0);
    let channel = script.key(1);
    script.publish_with(1, "q", "hello", 7, &traced(true));
    assert!(spans(&script).is_empty(), "it is not confirmed");
    script.pass(5);
    script.effect(channel, Effect::Confirm { channel, first: 6, count: 1 });
    script.effect(channel, Effect::Confirm { channel, first: 8, count: 1 });
    assert!(spans(&script).is_empty(), "another one is");
    script.effect(channel, Effect::Confirm { channel, first: 6, count: 3 });
    let [span] = &spans(&script)[..] else { panic!("one span") };
    assert_eq!((span.operation, span.trace_id, span.parent), (Operation::Publish, TRACE, PARENT));
    assert_eq!(span.id, publish_span_id(TRACE, channel, 7));
    assert_eq!((span.state.as_deref(), span.error, span.end_us - span.begin_us), (Some("them=1"), None, 5_000));
    assert_eq!(span.moments[..], [(Moment::Routed, span.begin_us)]);
    let message = &span.message;
    assert_eq!((&message.exchange[..], &message.routing_key[..], message.body_bytes), (&b""[..], &b"q"[..], 5));
    assert_eq!((message.message_id.as_deref(), message.correlation_id.as_deref()), (Some(&b"m"[..]), Some(&b"c"[..])));
    let [(DURABLE, stored)] = &script.node.watched.take()[..] else { panic!("its partition has it") };
    assert_eq!((stored.operation, stored.trace_id, stored.parent), (Operation::Store, TRACE, span.id));
    assert_ne!(stored.id, span.id);
}

#[test]
fn who_waits_for_no_confirm_has_a_span_that_ends_when_its_message_is_on_its_way() {
    let mut script = begun(0);
    script.publish_with(1, "q", "hello", 0, &traced(true));
    let [span] = &spans(&script)[..] else { panic!("one span") };
    assert_eq!((span.operation, span.parent, span.error), (Operation::Publish, PARENT, None));
}

#[test]
fn what_its_publisher_does_not_trace_or_nobody_does_has_no_span() {
    let mut script = begun(Sampler::ONE);
    script.publish_with(1, "q", "a", 0, &traced(false));
    assert!(spans(&script).is_empty(), "the publisher decided, whatever the ratio is");
    let mut script = begun(0);
    script.publish_with(1, "q", "b", 0, &[0, 0]);
    let mut off = Script::begun();
    off.publish_with(1, "q", "c", 1, &traced(true));
    let channel = off.key(1);
    off.effect(channel, Effect::Confirm { channel, first: 1, count: 1 });
    assert!(spans(&script).is_empty() && spans(&off).is_empty());
    assert!(script.node.watched.take().is_empty() && off.node.watched.take().is_empty());
}

#[test]
fn a_trace_of_our_own_is_written_into_the_message_and_has_no_parent() {
    let mut script = begun(Sampler::ONE);
    script.publish_with(1, "q", "hello", 1, &[0, 0]);
    let [sent] = &script.node.published.take()[..] else { panic!("one message") };
    let context = TraceContext::of(&sent.message.properties).expect("it has one now");
    let channel = script.key(1);
    script.effect(channel, Effect::Confirm { channel, first: 1, count: 1 });
    let [span] = &spans(&script)[..] else { panic!("one span") };
    assert_eq!((span.trace_id, span.id, span.parent), (context.trace_id, context.span_id, 0));
    assert!(context.is_sampled && context.state.is_none());
    // Whoever stores it on another node comes to the same.
    let stored = Span::of_stored(sent, || 9, 0).expect("it is traced");
    assert_eq!((stored.trace_id, stored.parent, stored.id), (span.trace_id, span.id, 9));
    assert_eq!(stored.message.body_bytes, 5);
    let unconfirmed = partition::Publish { publish_seq: 0, ..sent.clone() };
    assert_eq!(Span::of_stored(&unconfirmed, || 9, 0).expect("it is traced").parent, context.span_id);
}

#[test]
fn a_publish_that_comes_to_nothing_says_why() {
    let errors = |script: &Script| spans(script).iter().map(|span| span.error).collect::<Vec<_>>();
    let mut script = begun(0);
    let channel = script.key(1);
    script.publish_with(1, "q", "a", 1, &traced(true));
    script.effect(channel, Effect::Refuse { channel, first: 1, count: 1 });
    assert_eq!(errors(&script), [Some("refused")]);
    script.publish_with(1, "nowhere", "b", 2, &traced(true));
    assert_eq!(errors(&script), [None], "nobody wanted to know");
    script.publish_with(1, "q", "c", 4, &traced(true));
    script.close(1);
    assert_eq!(errors(&script), [Some("channel_closed")]);
    script.effect(channel, Effect::Confirm { channel, first: 4, count: 1 });
    assert!(spans(&script).is_empty(), "it has ended");
}

#[test]
fn a_delivery_is_a_span_until_the_socket_has_it_and_its_ack_one_within_it() {
    let mut script = consuming();
    give(&mut script, 5, true, &traced(true));
    give(&mut script, 6, true, &traced(false));
    give(&mut script, 7, true, &[0, 0]);
    script.write(0);
    assert!(spans(&script).is_empty(), "the socket has none of it");
    script.pass(2);
    script.write(3);
    let [delivered] = &spans(&script)[..] else { panic!("one is traced") };
    assert_eq!((delivered.operation, delivered.trace_id, delivered.parent), (Operation::Deliver, TRACE, PARENT));
    assert_eq!((delivered.delivery_tag, delivered.end_us - delivered.begin_us), (Some(1), 2_000));
    assert_eq!(delivered.queue.as_deref(), Some(&b"q"[..]));
    for seq in [7, 6, 5] {
        script.ack(1, 1, seq);
    }
    let [acked] = &spans(&script)[..] else { panic!("one is traced") };
    assert_eq!((acked.operation, acked.trace_id, acked.parent), (Operation::Ack, TRACE, delivered.id));
    assert_ne!(acked.id, delivered.id);
    give(&mut script, 8, true, &traced(true));
    let channel = script.channel(1);
    script.event(amqp::Event::Settle(amqp::Settle {
        channel,
        outcome: amqp::Settlement::Nack { requeue: false },
        deliveries: deliveries(1, 8),
    }));
    assert_eq!(spans(&script)[0].operation, Operation::Discard);
}

#[test]
fn what_needs_no_ack_or_is_fetched_is_traced_too() {
    let mut script = begun(0);
    script.ask(1, consume("q", true));
    script.answer(Reply::Consuming);
    give(&mut script, 1, false, &traced(true));
    script.write(1);
    assert_eq!(spans(&script).len(), 1);
    script.ask(1, get());
    let mut got = delivery(ConsumerKey::get(script.key(1)), 2, "");
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: traced(true).into(),
        body: Bytes::new(),
    };
    let mut stored = Vec::new();
    store(&message, 0, Stamp::None, &mut stored);
    got.message = stored.into();
    script.answer(Reply::Got { delivery: got, ready: 0 });
    script.write(2);
    let [span] = &spans(&script)[..] else { panic!("one span") };
    assert_eq!((span.operation, span.parent), (Operation::Get, PARENT));
}

#[test]
fn a_socket_that_breaks_ends_the_spans_that_wait_for_it() {
    let mut script = consuming();
    give(&mut script, 1, true, &traced(true));
    script.lose_socket();
    let [span] = &spans(&script)[..] else { panic!("one span") };
    assert_eq!(span.error, Some("connection_closed"));
    assert_eq!(script.node.dropped_spans.get(), 0);
}

#[test]
fn what_is_kept_of_traced_messages_has_a_limit_and_the_rest_is_counted() {
    let mut script = begun(0);
    for seq in 1..=1_030 {
        script.publish_with(1, "q", "hello", seq, &traced(true));
    }
    assert_eq!(script.node.dropped_spans.get(), 6);
    let channel = script.key(1);
    script.effect(channel, Effect::Confirm { channel, first: 1, count: 1_030 });
    assert_eq!(spans(&script).len(), 1_024);
    let mut script = consuming();
    for seq in 1..=1_030 {
        give(&mut script, seq, true, &traced(true));
    }
    assert_eq!(script.node.dropped_spans.get(), 6);
}
