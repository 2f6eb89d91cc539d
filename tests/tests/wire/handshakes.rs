//! Handshakes of every kind, as RabbitMQ 3.10.8 answers them: headers, logins, limits, virtual
//! hosts, and what comes too early.
//!
//! Invariant: each case is a conversation on a socket of its own. The client says one thing, the
//! broker answers it, and the conversation ends with a refusal or when the client has nothing more
//! to say.

use clients::client::{FRAME_HEARTBEAT, FRAME_METHOD, PATIENCE, frame, method_frame};
use clients::methods::*;
use clients::verbs::header_frame;
use clients::wire::{Args, Reader, table_body};
use clients::{Broker, Client, Event, Properties, Scope, Value};

use crate::golden::{Difference, compare, words};

/// What a client says, and the channel on which it waits for the answer.
type Line = (Vec<u8>, u16);

/// What makes up a login. By default all of it is as a client library has it.
struct Login {
    header: &'static [u8],
    properties: Vec<(&'static str, Value)>,
    mechanism: &'static str,
    response: Vec<u8>,
    locale: &'static str,
    channel_max: u16,
    frame_max: u32,
    heartbeat_s: u16,
    vhost: String,
    open_reserved: (&'static str, u8),
}

impl Default for Login {
    fn default() -> Self {
        Login {
            header: b"AMQP\x00\x00\x09\x01",
            properties: vec![("capabilities", understands(&Value::Bool(true)))],
            mechanism: "PLAIN",
            response: b"\0guest\0guest".to_vec(),
            locale: "en_US",
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_s: 60,
            vhost: "/".into(),
            open_reserved: ("", 0),
        }
    }
}

impl Login {
    fn start_ok(&self) -> Vec<u8> {
        let args = Args::new().table(&self.properties).shortstr(self.mechanism).longstr(&self.response);
        method_frame(0, CONNECTION_START_OK, &args.shortstr(self.locale))
    }

    fn tune_ok(&self) -> Vec<u8> {
        let args = Args::new().short(self.channel_max).long(self.frame_max).short(self.heartbeat_s);
        method_frame(0, CONNECTION_TUNE_OK, &args)
    }

    fn open(&self) -> Vec<u8> {
        let args = Args::new().shortstr(&self.vhost).shortstr(self.open_reserved.0).octet(self.open_reserved.1);
        method_frame(0, CONNECTION_OPEN, &args)
    }

    fn lines(&self) -> Vec<Line> {
        let tuned = [self.tune_ok(), self.open()].concat();
        vec![(self.header.to_vec(), 0), (self.start_ok(), 0), (tuned, 0), (open_channel(), 1)]
    }
}

fn open_channel() -> Vec<u8> {
    method_frame(1, CHANNEL_OPEN, &Args::new().shortstr(""))
}

/// A client's capabilities with `authentication_failure_close` set to `value`.
fn understands(value: &Value) -> Value {
    Value::Table(vec![("authentication_failure_close".into(), value.clone())])
}

fn header(header: &'static [u8]) -> Vec<Line> {
    Login { header, ..Login::default() }.lines()
}

fn login(mechanism: &'static str, response: &[u8]) -> Vec<Line> {
    Login { mechanism, response: response.to_vec(), ..Login::default() }.lines()
}

/// A login with a wrong password by a client with these properties.
fn wrong(properties: Vec<(&'static str, Value)>) -> Vec<Line> {
    Login { properties, response: b"\0guest\0wrong".to_vec(), ..Login::default() }.lines()
}

fn tuned(channel_max: u16, frame_max: u32, heartbeat_s: u16) -> Vec<Line> {
    let login = Login { channel_max, frame_max, heartbeat_s, ..Login::default() };
    let mut lines = login.lines();
    // Nothing behind a tune-ok that will be refused: the refusal would be lost in a reset.
    if (1..=2047).contains(&channel_max) && (4096..=131_072).contains(&frame_max) {
        return lines;
    }
    lines[2].0 = login.tune_ok();
    lines.truncate(3);
    lines
}

fn to_vhost(vhost: &str) -> Vec<Line> {
    Login { vhost: vhost.into(), ..Login::default() }.lines()
}

/// The first `count` lines of a login, then `bytes` instead of the next.
fn then(count: usize, bytes: Vec<u8>) -> Vec<Line> {
    let mut lines = Login::default().lines();
    lines.truncate(count);
    lines.push((bytes, 0));
    lines
}

fn amqplain(fields: &[(&str, Value)]) -> Vec<Line> {
    login("AMQPLAIN", &table_body(fields))
}

fn close() -> Vec<u8> {
    method_frame(0, CONNECTION_CLOSE, &Args::new().short(200).shortstr("bye").short(0).short(0))
}

fn cases() -> Vec<(&'static str, Vec<Line>)> {
    let plain = Login::default();
    let guest = Value::from("guest");
    let all_at_once = plain.lines().into_iter().flat_map(|(bytes, _)| bytes).collect();
    let mut large = Login { response: vec![b'x'; 5000], ..Login::default() }.lines();
    large.truncate(2);
    vec![
        ("header of 0-9-1", header(b"AMQP\x00\x00\x09\x01")),
        ("header of 0-9", header(b"AMQP\x01\x01\x00\x09")),
        ("header of 0-8", header(b"AMQP\x01\x01\x08\x00")),
        ("header of 0-8 as its specification has it", header(b"AMQP\x01\x01\x09\x01")),
        ("header of 0-10", header(b"AMQP\x01\x01\x00\x0a")),
        ("header of 1.0", header(b"AMQP\x00\x01\x00\x00")),
        ("header of 1.0 with SASL", header(b"AMQP\x03\x01\x00\x00")),
        ("header of 1.0 with TLS", header(b"AMQP\x02\x01\x00\x00")),
        ("header of 0-9-2", header(b"AMQP\x00\x00\x09\x02")),
        ("header of zeros", header(b"\0\0\0\0\0\0\0\0")),
        ("header in lower case", header(b"amqp\x00\x00\x09\x01")),
        ("request of HTTP", header(b"GET / HTTP/1.1\r\n\r\n")),
        ("TLS on a port without it", header(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")),
        ("everything at once", vec![(all_at_once, 0), (Vec::new(), 0), (Vec::new(), 0), (Vec::new(), 1)]),
        ("mechanism that is unknown", login("ROT13", b"\0guest\0guest")),
        ("mechanism that is empty", login("", b"\0guest\0guest")),
        ("mechanism in lower case", login("plain", b"\0guest\0guest")),
        ("mechanism that is not offered", login("EXTERNAL", b"")),
        ("PLAIN with an authorization identity", login("PLAIN", b"guest\0guest\0guest")),
        ("PLAIN without a response", login("PLAIN", b"")),
        ("PLAIN without separators", login("PLAIN", b"guest")),
        ("PLAIN without a password", login("PLAIN", b"\0guest")),
        ("PLAIN with an empty password", login("PLAIN", b"\0guest\0")),
        ("PLAIN with three parts and one more", login("PLAIN", b"\0guest\0guest\0guest")),
        ("PLAIN with a wrong password", login("PLAIN", b"\0guest\0wrong")),
        ("PLAIN with an unknown user", login("PLAIN", b"\0nobody\0guest")),
        ("AMQPLAIN", amqplain(&[("LOGIN", guest.clone()), ("PASSWORD", guest.clone())])),
        ("AMQPLAIN with a wrong password", amqplain(&[("LOGIN", guest.clone()), ("PASSWORD", "wrong".into())])),
        ("AMQPLAIN without a password", amqplain(&[("LOGIN", guest.clone())])),
        ("AMQPLAIN with a number for a user", amqplain(&[("LOGIN", 5.into()), ("PASSWORD", guest)])),
        ("AMQPLAIN that is no table", login("AMQPLAIN", b"guest guest")),
        ("client without properties", Login { properties: Vec::new(), ..Login::default() }.lines()),
        ("wrong password without properties", wrong(Vec::new())),
        ("wrong password with capabilities that lack it", wrong(vec![("capabilities", Value::Table(Vec::new()))])),
        ("wrong password with capabilities that deny it", wrong(vec![("capabilities", understands(&false.into()))])),
        ("wrong password with a capability of another type", wrong(vec![("capabilities", understands(&1.into()))])),
        ("wrong password with capabilities of another type", wrong(vec![("capabilities", "yes".into())])),
        ("locale that is unknown", Login { locale: "tlh_KX", ..Login::default() }.lines()),
        ("locale that is empty", Login { locale: "", ..Login::default() }.lines()),
        ("tune-ok as proposed", tuned(2047, 131_072, 60)),
        ("tune-ok of zeros", tuned(0, 0, 0)),
        ("tune-ok with heartbeat 0", tuned(2047, 131_072, 0)),
        ("tune-ok with heartbeat 1", tuned(2047, 131_072, 1)),
        ("tune-ok with heartbeat 65535", tuned(2047, 131_072, 65_535)),
        ("tune-ok with channel_max 0", tuned(0, 131_072, 60)),
        ("tune-ok with channel_max 1", tuned(1, 131_072, 60)),
        ("tune-ok with channel_max 2048", tuned(2048, 131_072, 60)),
        ("tune-ok with channel_max 65535", tuned(65_535, 131_072, 60)),
        ("tune-ok with frame_max 0", tuned(2047, 0, 60)),
        ("tune-ok with frame_max 1", tuned(2047, 1, 60)),
        ("tune-ok with frame_max 4095", tuned(2047, 4095, 60)),
        ("tune-ok with frame_max 4096", tuned(2047, 4096, 60)),
        ("tune-ok with frame_max 131073", tuned(2047, 131_073, 60)),
        ("tune-ok with frame_max 2^32-1", tuned(2047, u32::MAX, 60)),
        ("vhost that is empty", to_vhost("")),
        ("vhost that is unknown", to_vhost("nowhere")),
        ("vhost with a slash too many", to_vhost("//")),
        ("vhost of 255 bytes", to_vhost(&"v".repeat(255))),
        ("vhost that is not ASCII", to_vhost("gr\u{fc}n")),
        ("open with a reserved string", Login { open_reserved: ("capabilities", 0), ..Login::default() }.lines()),
        ("open that insists", Login { open_reserved: ("", 1), ..Login::default() }.lines()),
        ("tune-ok before start-ok", then(1, plain.tune_ok())),
        ("open before start-ok", then(1, plain.open())),
        ("open before tune-ok", then(2, plain.open())),
        ("start-ok twice", then(2, plain.start_ok())),
        ("secure-ok that nobody asked for", then(1, method_frame(0, Method(10, 21), &Args::new().longstr(b"")))),
        ("channel opened before start-ok", then(1, open_channel())),
        ("channel opened before the vhost", then(2, [plain.tune_ok(), open_channel()].concat())),
        ("heartbeat before start-ok", {
            let mut lines = plain.lines();
            lines[1].0.splice(0..0, frame(FRAME_HEARTBEAT, 0, b""));
            lines
        }),
        ("content before start-ok", then(1, header_frame(0, &Properties::persistent(), 1))),
        ("method that is cut short", then(1, frame(FRAME_METHOD, 0, &[0, 10, 0, 11, 0, 0, 0, 9]))),
        ("method of an unknown class before start-ok", then(1, method_frame(0, Method(99, 1), &Args::new()))),
        ("frame of an unknown type before start-ok", then(1, frame(9, 0, b""))),
        ("frame too large before tune-ok", large),
        ("close before start-ok", then(1, close())),
        ("close before tune-ok", then(2, close())),
        ("close before open", then(2, [plain.tune_ok(), close()].concat())),
    ]
}

#[test]
fn handshakes_are_answered_as_by_rabbitmq() {
    let cases = cases();
    let answers: Vec<(String, String)> = std::thread::scope(|scope| {
        let talks: Vec<_> = cases.iter().map(|(_, lines)| scope.spawn(|| conversation(lines))).collect();
        let answers = talks.into_iter().map(|talk| talk.join().expect("a conversation ends"));
        cases.iter().zip(answers).map(|((case, _), answer)| ((*case).to_owned(), answer)).collect()
    });
    compare("handshakes-3.10.8.txt", include_str!("goldens/handshakes-3.10.8.txt"), &answers, DIFFERENCES);
}

/// What the broker says to a client that says these lines.
fn conversation(lines: &[Line]) -> String {
    let mut client = Client::socket(Broker::shared().addr()).unwrap();
    let mut said = Vec::new();
    for (bytes, channel) in lines {
        client.raw(bytes);
        match client.event_within(*channel, PATIENCE) {
            None => said.push("nothing".to_owned()),
            Some(Event::Closed(closed)) if closed.scope == Scope::Socket => said.push("socket closed".to_owned()),
            Some(Event::Closed(closed)) => said.push(words(&closed, &[])),
            Some(Event::Method(Method(0, 0), header)) => {
                let end = if client.ends_within(PATIENCE) { "socket closed" } else { "nothing" };
                said.push(format!("header {:?}, {end}", &header[4..]));
            }
            Some(Event::Method(method, args)) => {
                said.push(shown(method, &args));
                continue;
            }
            Some(other) => panic!("that is no handshake: {other:?}"),
        }
        break;
    }
    said.join("; ")
}

fn shown(method: Method, args: &[u8]) -> String {
    let mut reader = Reader(args);
    match method {
        CONNECTION_START => {
            let version = (reader.octet(), reader.octet());
            let Some((_, Value::Table(capabilities))) =
                reader.table().into_iter().find(|(key, _)| key == "capabilities")
            else {
                panic!("capabilities are a table");
            };
            let (mechanisms, locales) = (reader.longstr(), reader.longstr());
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let on = capabilities.iter().filter(|(_, on)| *on == Value::Bool(true)).count();
            let (mechanisms, locales) = (text(mechanisms), text(locales));
            format!("start {}.{} {mechanisms}, {locales}, {on} capabilities", version.0, version.1)
        }
        CONNECTION_TUNE => format!("tune {} {} {}", reader.short(), reader.long(), reader.short()),
        CONNECTION_OPEN_OK => "open-ok".to_owned(),
        CONNECTION_CLOSE_OK => "close-ok".to_owned(),
        CHANNEL_OPEN_OK => "channel open-ok".to_owned(),
        other => format!("method {other:?}"),
    }
}

/// Whether RabbitMQ ends the conversation without a word where Leveret says why first.
fn says_why(theirs: &str, ours: &str, why: &str) -> bool {
    theirs.strip_suffix("socket closed").and_then(|before| ours.strip_prefix(before)).is_some_and(|rest| {
        let rest = rest.strip_prefix("connection ").unwrap_or_default();
        rest.starts_with(why)
    })
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        is_it: |case, theirs, ours| {
            case.starts_with("header of 0-8")
                && theirs.contains("start 8.0")
                && ours == "header [0, 0, 9, 1], socket closed"
        },
        why: "0-8 is left behind: RabbitMQ 4 speaks it no more, and no client in use does",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| case.starts_with("mechanism ") && says_why(theirs, ours, "503 10.11"),
        why: "an unknown mechanism is told by its code; RabbitMQ drops the socket",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| case.contains("PLAIN") && says_why(theirs, ours, "502 10.11 SYNTAX_ERROR - "),
        why: "a malformed response is told by its code; RabbitMQ drops the socket",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| case.starts_with("tune-ok ") && says_why(theirs, ours, "530 10.30 NOT_ALLOWED - "),
        why: "a limit that was raised is told by its code; RabbitMQ writes it into its own log",
        lasting: true,
    },
    Difference {
        is_it: |_, theirs, ours| {
            let codes = ["504 10.", "505 0.0", "503 0.0", "501 "];
            codes.iter().any(|code| says_why(theirs, ours, code))
        },
        why: "a broken rule is told by the code that it has later; before the login RabbitMQ drops the socket",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| case == "frame too large before tune-ok" && says_why(theirs, ours, "502 10.11"),
        why: "RabbitMQ 4 takes frames of 8 KiB before the tune, 3.10 of 4 KiB",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| {
            case.starts_with("close before ") && ours.ends_with("; close-ok") && !theirs.ends_with("close-ok")
        },
        why: "who wants to leave may, at any time",
        lasting: true,
    },
];
