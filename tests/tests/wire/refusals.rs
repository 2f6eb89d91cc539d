//! What is not there is refused with the right code: never accepted and ignored.
//!
//! Invariant: RabbitMQ gives the same answers, except where a test says why not.

use clients::methods::*;
use clients::verbs::header_frame;
use clients::wire::Args;
use clients::{Broker, Properties, Scope};

use crate::setup::{Kind, assert_closed, with_queue};

#[test]
fn flow_from_a_client_is_not_implemented() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    // Active flow is what a channel has anyway.
    client.call(channel, CHANNEL_FLOW, &Args::new().octet(1), CHANNEL_FLOW_OK).unwrap();
    let closed = client.call(channel, CHANNEL_FLOW, &Args::new().octet(0), CHANNEL_FLOW_OK).unwrap_err();
    assert_closed(&closed, Scope::Connection, 540, "NOT_IMPLEMENTED - active=false", CHANNEL_FLOW);
}

#[test]
fn access_request_is_answered_with_a_ticket() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let args = Args::new().shortstr("/data").bits(&[false, true, true, true, true]);
    let reply = client.call(channel, ACCESS_REQUEST, &args, ACCESS_REQUEST_OK).unwrap();
    assert_eq!(reply.len(), 2);
}

#[test]
fn methods_that_only_a_broker_may_send_are_refused() {
    for method in [BASIC_DELIVER, BASIC_GET_OK, QUEUE_DECLARE_OK, CHANNEL_OPEN_OK] {
        let (mut client, channel, _) = with_queue(Kind::Classic);
        let args = match method {
            BASIC_DELIVER => Args::new().shortstr("c").longlong(1).octet(0).shortstr("").shortstr("q"),
            BASIC_GET_OK => Args::new().longlong(1).octet(0).shortstr("").shortstr("q").long(0),
            QUEUE_DECLARE_OK => Args::new().shortstr("q").long(0).long(0),
            _ => Args::new().longstr(b""),
        };
        client.send(channel, method, &args);
        if [BASIC_DELIVER, BASIC_GET_OK].contains(&method) {
            // These carry content, and a broker may wait for it before it looks at them.
            client.raw(&header_frame(channel, &Properties::persistent(), 0));
        }
        let closed = client.closed(channel);
        assert_eq!(closed.scope, Scope::Connection, "{method:?}: {closed:?}");
        assert!([503, 505, 540].contains(&closed.code), "{method:?}: {closed:?}");
    }
}
