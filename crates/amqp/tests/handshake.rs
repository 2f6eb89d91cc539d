//! The handshake, frame by frame, and every way in which it fails.

mod client;

use amqp::reply_code::ReplyCode;
use amqp::wire::frame::{FRAME_METHOD, HEARTBEAT, PROTOCOL_HEADER, PROTOCOL_HEADER_0_9};
use amqp::wire::method::Method;
use amqp::{AuthRefused, Closed, ConnectionConfig, ConnectionError, Event, Mechanism, Reply, Table, Value};
use bytes::Bytes;
use client::*;

fn close_of(sent: &[Sent]) -> (u16, String, u16, u16) {
    match sent.last() {
        Some(Sent::Method(0, Method::ConnectionClose { reply_code, reply_text, class_id, method_id })) => {
            (*reply_code, String::from_utf8_lossy(reply_text).into_owned(), *class_id, *method_id)
        }
        other => panic!("connection.close and not {other:?}"),
    }
}

#[test]
fn both_peers_byte_by_byte() {
    let mut server_properties = Table::new();
    server_properties.push("product", Value::LongString(Bytes::from_static(b"Leveret")));
    let config = ConnectionConfig { server_properties, mechanisms: vec![Mechanism::Plain], ..Default::default() };
    let mut client = Client::connect(config);

    client.raw(b"AMQP\x00\x00\x09\x01");
    assert_eq!(
        client.read_bytes(),
        b"\x01\0\0\0\0\0\x30\0\x0a\0\x0a\0\x09\0\0\0\x14\x07productS\0\0\0\x07Leveret\0\0\0\x05PLAIN\0\0\0\x05en_US\xce"
    );

    client.raw(b"\x01\0\0\0\0\0\x24\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US\xce");
    let Some(Event::Authenticate(who)) = client.event() else { panic!("the broker is asked") };
    assert_eq!(
        (&who.user[..], &who.password[..], who.mechanism),
        (&b"guest"[..], &b"guest"[..], amqp::Mechanism::Plain)
    );
    assert!(!format!("{who:?}").contains("password"), "a password is not for the log");
    assert!(client.connection.output().is_empty());
    client.connection.authenticated(Ok(()));
    assert_eq!(client.read_bytes(), b"\x01\0\0\0\0\0\x0c\0\x0a\0\x1e\x07\xff\0\x02\0\0\0\x3c\xce");

    client.raw(b"\x01\0\0\0\0\0\x0c\0\x0a\0\x1f\x00\x10\0\0\x20\0\0\x0a\xce");
    client.raw(b"\x01\0\0\0\0\0\x08\0\x0a\0\x28\x01/\0\0\xce");
    assert!(matches!(client.event(), Some(Event::Open { vhost }) if vhost == "/"));
    client.connection.opened(Ok(()));
    assert_eq!(client.read_bytes(), b"\x01\0\0\0\0\0\x05\0\x0a\0\x29\0\xce");
    assert_eq!((client.connection.channel_max(), client.connection.frame_max()), (16, 8192));
    assert_eq!(client.connection.heartbeat_ms(), 10_000);

    client.raw(b"\x01\0\x01\0\0\0\x05\0\x14\0\x0a\0\xce");
    assert!(matches!(client.events()[..], [Event::ChannelOpened { .. }]));
    assert_eq!(client.read_bytes(), b"\x01\0\x01\0\0\0\x08\0\x14\0\x0b\0\0\0\0\xce");

    client.raw(b"\x01\0\0\0\0\0\x0d\0\x0a\0\x32\0\xc8\x02ok\0\0\0\0\xce");
    assert_eq!(client.closed(), Closed::ByClient { code: 200, text: Bytes::from_static(b"ok") });
    client.connection.left();
    assert_eq!(client.read_bytes(), b"\x01\0\0\0\0\0\x04\0\x0a\0\x33\xce");
    assert!(client.connection.is_finished());
}

#[test]
fn the_header_of_0_9_is_as_good() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER_0_9);
    assert!(matches!(client.read_method(), (0, Method::ConnectionStart { version_major: 0, version_minor: 9, .. })));
}

#[test]
fn a_wrong_header_is_answered_with_the_right_one_and_a_closed_socket() {
    for header in [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"GET / HT"] {
        let mut client = Client::connect(ConnectionConfig::default());
        client.raw(header);
        assert_eq!(client.read_bytes(), PROTOCOL_HEADER);
        assert!(client.connection.is_finished());
        assert_eq!(client.closed(), Closed::WrongProtocol(*header));
    }
}

#[test]
fn an_unknown_mechanism_is_an_invalid_command() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER);
    let Method::ConnectionStartOk { client_properties, response, locale, .. } = start_ok(Table::new()) else {
        unreachable!()
    };
    let mechanism = Bytes::from_static(b"EXTERNAL");
    client.send(0, Method::ConnectionStartOk { client_properties, mechanism, response, locale });
    let (code, text, class, method) = close_of(&client.read());
    assert_eq!((code, class, method), (503, 10, 11));
    assert_eq!(text, "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'");
}

#[test]
fn a_challenge_asks_for_the_password_after_the_user() {
    let challenged = |answer: &'static [u8]| {
        let config = ConnectionConfig { mechanisms: vec![Mechanism::Plain, Mechanism::CrDemo], ..Default::default() };
        let mut client = Client::connect(config);
        client.raw(&PROTOCOL_HEADER);
        assert!(
            matches!(client.read_method(), (0, Method::ConnectionStart { mechanisms, .. }) if mechanisms == "PLAIN RABBIT-CR-DEMO")
        );
        let Method::ConnectionStartOk { client_properties, locale, .. } = start_ok(Table::new()) else {
            unreachable!()
        };
        let (mechanism, response) = (Bytes::from_static(b"RABBIT-CR-DEMO"), Bytes::from_static(b"guest"));
        client.send(0, Method::ConnectionStartOk { client_properties, mechanism, response, locale });
        assert!(matches!(client.read_method(), (0, Method::ConnectionSecure { .. })));
        assert!(client.event().is_none(), "nobody is asked before the password is there");
        client.send(0, Method::ConnectionSecureOk { response: Bytes::from_static(answer) });
        client
    };
    let mut client = challenged(b"My password is secret");
    let Some(Event::Authenticate(asked)) = client.event() else { panic!("a login") };
    assert_eq!((&asked.user[..], &asked.password[..]), (&b"guest"[..], &b"secret"[..]));
    client.connection.authenticated(Ok(()));
    assert!(matches!(client.read_method(), (0, Method::ConnectionTune { .. })));

    let mut client = challenged(b"secret");
    let (code, text, class, method) = close_of(&client.read());
    assert_eq!((code, class, method), (502, 10, 21));
    assert!(!text.contains("secret"));

    // Whom nobody asked says nothing.
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER);
    client.read();
    client.send(0, Method::ConnectionSecureOk { response: Bytes::new() });
    assert_eq!(close_of(&client.read()).0, 504);
}

#[test]
fn a_broken_response_is_a_syntax_error_without_the_password() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER);
    let Method::ConnectionStartOk { client_properties, mechanism, locale, .. } = start_ok(Table::new()) else {
        unreachable!()
    };
    let response = Bytes::from_static(b"guest:secret");
    client.send(0, Method::ConnectionStartOk { client_properties, mechanism, response, locale });
    let (code, text, ..) = close_of(&client.read());
    assert_eq!(code, 502);
    assert!(!text.contains("secret"));
}

#[test]
fn a_refused_login_is_told_only_to_clients_that_understand() {
    let refused = |properties| {
        let mut client = Client::connect(ConnectionConfig::default());
        client.raw(&PROTOCOL_HEADER);
        client.send(0, start_ok(properties));
        client.read();
        client.event();
        client.connection.authenticated(Err(AuthRefused));
        assert_eq!(client.closed(), Closed::LoginRefused);
        client
    };
    let mut client = refused(capable());
    let (code, text, class, method) = close_of(&client.read());
    assert_eq!((code, class, method), (403, 0, 0));
    assert_eq!(
        text,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    );
    assert!(!client.connection.is_finished());
    client.send(0, Method::ConnectionCloseOk {});
    assert!(client.connection.is_finished());

    let mut client = refused(Table::new());
    assert_eq!(client.read(), []);
    assert!(client.connection.is_finished());
}

#[test]
fn a_client_may_lower_the_limits_and_nothing_else() {
    let tuned = |channel_max, frame_max| {
        let mut client = Client::connect(ConnectionConfig::default());
        client.raw(&PROTOCOL_HEADER);
        client.send(0, start_ok(Table::new()));
        client.connection.authenticated(Ok(()));
        client.read();
        client.send(0, tune_ok(channel_max, frame_max, 0));
        let sent = client.read();
        if sent.is_empty() { None } else { Some(close_of(&sent)) }
    };
    assert_eq!(tuned(2047, 131_072), None);
    assert_eq!(tuned(1, 4096), None);
    let refused = |text: &str| Some((530, format!("NOT_ALLOWED - negotiated {text}"), 10, 30));
    assert_eq!(tuned(2048, 4096), refused("channel_max = 2048 is higher than the maximum allowed value (2047)"));
    assert_eq!(tuned(0, 4096), refused("channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"));
    assert_eq!(tuned(1, 131_073), refused("frame_max = 131073 is higher than the maximum allowed value (131072)"));
    assert_eq!(tuned(1, 0), refused("frame_max = 0 is higher than the maximum allowed value (131072)"));
    assert_eq!(tuned(1, 4095), refused("frame_max = 4095 is lower than the minimum allowed value (4096)"));
}

#[test]
fn a_server_without_limits_takes_a_client_without_limits() {
    let config = ConnectionConfig { frame_max: 0, channel_max: 0, ..Default::default() };
    let mut client = Client::open_with(config, Table::new(), tune_ok(0, 0, 0));
    client.open_channel(65_535);
    client.frame(8, 0, &[]);
    client.raw(&[3, 0xff, 0xff, 0, 0xff, 0xff, 0xff]);
    assert_eq!(client.connection.missing_input(&client.input), 16 * 1024 * 1024);
    client.raw(&[3, 0xff, 0xff, 1, 0, 0, 1]);
    assert!(client.connection.is_running());
    client.input.clear();
    client.raw(&[3, 0xff, 0xff, 1, 0, 0, 1]);
    assert_eq!(close_of(&client.read()).0, 501);

    let config = ConnectionConfig { frame_max: 0, channel_max: 0, ..Default::default() };
    let mut client = Client::open_with(config, Table::new(), tune_ok(0, 0, 0));
    client.open_channel(65_535);
    client.frame(3, 65_535, &[0; 200_000]);
    assert_eq!(close_of(&client.read()).0, 505);
}

#[test]
fn a_refused_virtual_host_is_blamed_on_open() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER);
    client.send(0, start_ok(Table::new()));
    client.connection.authenticated(Ok(()));
    client.send(0, tune_ok(1, 4096, 0));
    client.send(0, open("nowhere"));
    client.read();
    client.events();
    client.connection.opened(Err(ConnectionError::new(ReplyCode::NotAllowed, "vhost nowhere not found")));
    assert_eq!(close_of(&client.read()), (530, "NOT_ALLOWED - vhost nowhere not found".into(), 10, 40));
    assert!(matches!(client.closed(), Closed::ByServer(error) if error.code == ReplyCode::NotAllowed));
}

#[test]
fn a_long_login_needs_a_longer_first_frame() {
    for (initial_frame_max, is_taken) in [(8192, false), (32_768, true)] {
        let mut client = Client::connect(ConnectionConfig { initial_frame_max, ..ConnectionConfig::default() });
        client.raw(&PROTOCOL_HEADER);
        client.read();
        let Method::ConnectionStartOk { client_properties, mechanism, locale, .. } = start_ok(Table::new()) else {
            unreachable!()
        };
        let response = Bytes::from([&b"\0any\0"[..], &[b't'; 20_000]].concat());
        client.send(0, Method::ConnectionStartOk { client_properties, mechanism, response, locale });
        assert_eq!(matches!(client.events()[..], [Event::Authenticate(_)]), is_taken, "{initial_frame_max}");
    }
}

#[test]
fn frames_before_tune_are_small() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER);
    client.read();
    client.raw(&[1, 0, 0, 0, 0, 0x20, 0x01]);
    let (code, text, ..) = close_of(&client.read());
    assert_eq!(code, 501);
    assert_eq!(text, "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,8193,8184}");
    // Nothing is understood any more, not even an answer; the client has time to read.
    client.send(0, Method::ConnectionCloseOk {});
    assert!(client.input.is_empty());
    assert!(!client.connection.is_finished());
    client.sleep(3_000);
    assert!(client.connection.is_finished());
}

#[test]
fn methods_out_of_turn_are_refused() {
    for (method, state) in [(open("/"), "starting"), (tune_ok(1, 4096, 0), "starting")] {
        let mut client = Client::connect(ConnectionConfig::default());
        client.raw(&PROTOCOL_HEADER);
        client.read();
        let id = method.id();
        client.send(0, method);
        let text = format!("CHANNEL_ERROR - unexpected method in connection state {state}");
        assert_eq!(close_of(&client.read()), (504, text, id.class, id.method));
    }
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(&PROTOCOL_HEADER);
    client.read();
    client.send(1, channel_open());
    assert_eq!(close_of(&client.read()).0, 505);
}

#[test]
fn a_whole_handshake_in_one_packet_waits_for_the_broker_where_it_must() {
    let mut client = Client::connect(ConnectionConfig::default());
    let mut bytes = PROTOCOL_HEADER.to_vec();
    start_ok(capable()).write(&mut bytes, 0);
    tune_ok(10, 4096, 0).write(&mut bytes, 0);
    open("/").write(&mut bytes, 0);
    channel_open().write(&mut bytes, 1);
    client.raw(&bytes);
    assert!(!client.connection.wants_input());
    assert_eq!(client.events().len(), 1);
    client.connection.authenticated(Ok(()));
    client.raw(&[]);
    assert!(matches!(client.events()[..], [Event::Open { .. }]));
    client.connection.opened(Ok(()));
    client.raw(&[]);
    assert!(matches!(client.events()[..], [Event::ChannelOpened { .. }]));
    assert!(client.input.is_empty());
}

#[test]
fn a_channel_is_open_once_the_broker_lets_it_in() {
    let mut client = Client::open();
    let mut bytes = Vec::new();
    for number in [1, 2] {
        channel_open().write(&mut bytes, number);
        bytes.extend_from_slice(&publish_bytes(number, "q", b"early"));
    }
    client.raw(&bytes);
    let Some(Event::ChannelOpened { channel: first }) = client.event() else { panic!("the broker is asked") };
    let Some(Event::ChannelOpened { .. }) = client.event() else { panic!("of each") };
    assert_eq!((client.read(), client.events().len()), (vec![], 0));
    client.connection.reply(first, Reply::Done);
    assert_eq!(client.read(), [Sent::Method(1, Method::ChannelOpenOk { channel_id: Bytes::new() })]);
    assert!(matches!(client.events()[..], [Event::Publish(_)]), "what waited for it");
    client.connection.connection_error(amqp::ConnectionError::new(amqp::ReplyCode::NotAllowed, "one too many"));
    assert_eq!(close_of(&client.read()).0, 530);
    assert!(!client.events().iter().any(|event| matches!(event, Event::Publish(_))), "the second one is none");
}

#[test]
fn no_error_shows_what_may_be_a_password() {
    let secret = b"\0guest\0a secret word";
    let of_method = |method: u8, fields: &[u8]| [&[0, 10, 0, method], fields].concat();
    let long = |text: &[u8]| [&u32::try_from(text.len()).expect("it is short").to_be_bytes()[..], text].concat();
    let start_ok = of_method(11, &[&[0, 0, 0, 0], &b"\x05PLAIN"[..], &long(secret)].concat());
    let update_secret = of_method(70, &long(secret));
    let shows_nothing = |client: &mut Client| {
        let text = close_of(&client.read()).1;
        let octets = secret.iter().map(u8::to_string).collect::<Vec<_>>();
        assert!(!text.contains("secret") && !octets.windows(4).any(|some| text.contains(&some.join(","))), "{text}");
    };
    // Without its locale, with a type that there is not, with another end, and from its middle on.
    let bad_end =
        [&b"\x01\0\0\0\0\0"[..], &[u8::try_from(start_ok.len()).expect("it is short")], &start_ok[..], b"\0"].concat();
    let middle = [&b"\x09\0\0\0\0\0\x11"[..], &start_ok[start_ok.len() - 17..], b"\xce"].concat();
    for bytes in [framed(FRAME_METHOD, &start_ok), framed(9, &start_ok), bad_end, middle] {
        let mut client = Client::connect(ConnectionConfig::default());
        client.raw(&PROTOCOL_HEADER);
        client.read();
        client.raw(&bytes);
        shows_nothing(&mut client);
    }
    for bytes in [framed(FRAME_METHOD, &update_secret), framed(9, &update_secret), framed(FRAME_METHOD, &start_ok)] {
        let mut client = Client::open();
        client.raw(&bytes);
        shows_nothing(&mut client);
    }
}

/// A frame of the connection.
fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short");
    [&[kind, 0, 0][..], &length.to_be_bytes(), payload, b"\xce"].concat()
}

#[test]
fn a_handshake_has_its_time() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(b"AMQP\x00");
    assert_eq!(client.connection.poll_timeout(), Some(1_000), "unused memory first");
    client.sleep(9_999);
    assert!(!client.connection.is_finished());
    client.sleep(1);
    assert!(client.connection.is_finished());
    assert_eq!(client.read_bytes(), []);
    assert_eq!(client.closed(), Closed::HandshakeTimeout);

    let mut client = Client::open();
    client.sleep(1_000_000);
    assert!(client.connection.is_running(), "an open connection without heartbeats may be silent");
}

#[test]
fn heartbeats_go_out_when_nothing_else_does() {
    let mut client = Client::open_with(ConnectionConfig::default(), capable(), tune_ok(10, 4096, 10));
    client.sleep(4_999);
    assert_eq!(client.read(), [], "open-ok was written in this half interval");
    client.sleep(1);
    assert_eq!(client.read(), [Sent::Heartbeat], "the first comes half an interval after it");
    client.raw(&HEARTBEAT);
    for _ in 0..5 {
        client.sleep(5_000);
        assert_eq!(client.read(), [Sent::Heartbeat]);
        client.raw(&HEARTBEAT);
    }

    // Something was written, so there is no need for one; but half an interval after that there is,
    // whatever the timer was set to.
    client.sleep(1_000);
    client.send(1, channel_open());
    client.events();
    client.read();
    client.sleep(4_999);
    assert_eq!(client.read(), []);
    client.sleep(1);
    assert_eq!(client.read(), [Sent::Heartbeat]);
}

#[test]
fn silence_counts_for_a_client_that_leaves_its_answers_unread() {
    let config = ConnectionConfig { output_bytes_max: 1_000, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 4096, 10));
    client.send(1, channel_open());
    client.events();
    let mut flow = Vec::new();
    Method::ChannelFlow { active: true }.write(&mut flow, 1);
    while client.connection.wants_input() {
        client.raw(&flow);
    }
    client.now += 19_000;
    client.connection.resume_reading(client.now);
    client.sleep(19_999);
    assert!(client.connection.is_running(), "it sent something meanwhile, as the caller knows");
    client.sleep(1);
    assert!(client.connection.is_finished());
}

#[test]
fn a_handshake_that_nobody_read_gets_its_time_once_more() {
    let mut client = Client::connect(ConnectionConfig::default());
    client.raw(b"AMQP\x00");
    assert!(!client.connection.is_silent(9_999) && client.connection.is_silent(10_000));
    client.connection.resume_reading(9_999);
    assert!(client.connection.is_silent(10_000), "as long as it is in time it has no more");
    client.now = 12_000;
    client.connection.resume_reading(client.now);
    client.sleep(9_999);
    assert!(!client.connection.is_finished());
    // Once: a byte now and then is no handshake.
    assert!(!client.connection.is_silent(22_000));
    client.now = 22_000;
    client.connection.resume_reading(client.now);
    client.sleep(0);
    assert_eq!(client.closed(), Closed::HandshakeTimeout);

    // The same where it is read before anybody looks at the time.
    let mut client = Client::connect(ConnectionConfig::default());
    client.now = 12_000;
    client.raw(b"AMQP");
    client.sleep(9_999);
    assert!(!client.connection.is_finished());
    client.now = 22_000;
    client.raw(b"\x00");
    client.sleep(0);
    assert_eq!(client.closed(), Closed::HandshakeTimeout);
}

#[test]
fn a_peer_that_is_silent_for_two_intervals_is_gone() {
    let mut client = Client::open_with(ConnectionConfig::default(), capable(), tune_ok(10, 4096, 10));
    client.open_channel(1);
    client.now = 100;
    client.raw(&HEARTBEAT[..3]);
    client.sleep(19_999);
    assert!(client.connection.is_running(), "half a frame is a sign of life");
    assert!(!client.connection.is_silent(client.now) && client.connection.is_silent(client.now + 1));
    client.sleep(1);
    assert!(client.connection.is_finished());
    let events = client.events();
    assert!(matches!(events[..], [Event::ChannelClosed { .. }, Event::Closed(Closed::HeartbeatTimeout)]), "{events:?}");
}

#[test]
fn silence_does_not_count_while_the_socket_is_not_read() {
    let mut client = Client::open_with(ConnectionConfig::default(), capable(), tune_ok(10, 4096, 10));
    client.now = 19_000;
    client.connection.resume_reading(client.now);
    client.sleep(19_999);
    assert!(client.connection.is_running());
    client.sleep(1);
    assert!(client.connection.is_finished());
}
