//! What the wire tests have in common: a queue of each kind, and one way to look at a close.
//!
//! Invariant: every queue made here has a name of its own, so tests share one broker and run at
//! once.

use clients::broker::{is_foreign, unique};
use clients::methods::Method;
use clients::{Broker, Client, Closed, QueueDeclare, Scope, Value};

/// The kinds of queue that a plain application uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Durable, `x-queue-type: classic`.
    Classic,
    /// Durable, `x-queue-type: quorum`.
    Quorum,
    /// Transient and exclusive: the reply queue of an RPC.
    Exclusive,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Classic, Kind::Quorum, Kind::Exclusive];
    pub(crate) const DURABLE: [Kind; 2] = [Kind::Classic, Kind::Quorum];

    /// How a queue of this kind named `name` is declared.
    pub(crate) fn declare(self, name: &str) -> QueueDeclare<'_> {
        let queue = QueueDeclare { name, ..Default::default() };
        match self {
            Kind::Classic => {
                QueueDeclare { durable: true, arguments: vec![("x-queue-type", Value::from("classic"))], ..queue }
            }
            Kind::Quorum => {
                let mut arguments = vec![("x-queue-type", Value::from("quorum"))];
                if is_foreign() {
                    // The default since 4.0. Without it 3.10 puts returned messages at the end of
                    // the queue.
                    arguments.push(("x-delivery-limit", Value::from(20)));
                }
                QueueDeclare { durable: true, arguments, ..queue }
            }
            Kind::Exclusive => QueueDeclare { exclusive: true, ..queue },
        }
    }
}

/// A connection, its first channel, and a fresh queue of a kind.
pub(crate) fn with_queue(kind: Kind) -> (Client, u16, String) {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let queue = new_queue(&mut client, channel, kind);
    (client, channel, queue)
}

/// A fresh queue of a kind.
pub(crate) fn new_queue(client: &mut Client, channel: u16, kind: Kind) -> String {
    let name = unique(&format!("{kind:?}").to_lowercase());
    client.declare(channel, &kind.declare(&name)).unwrap();
    name
}

/// Publishes `count` messages "0", "1", ... and waits until the broker has them all, then leaves
/// the channel as it was.
pub(crate) fn fill(client: &mut Client, queue: &str, count: u64) {
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for n in 0..count {
        client.put(channel, queue, n.to_string().as_bytes());
    }
    if count > 0 {
        client.confirmed(channel, 1, count);
    }
    client.close_channel(channel);
}

/// The number that `fill` put into a message.
pub(crate) fn number(body: &[u8]) -> u64 {
    std::str::from_utf8(body).unwrap().parse().unwrap()
}

/// Asserts what a close said. `text` may leave out the beginning ("NOT_FOUND - ").
#[track_caller]
pub(crate) fn assert_closed(closed: &Closed, scope: Scope, code: u16, text: &str, method: Method) {
    assert_eq!((closed.scope, closed.code), (scope, code), "{closed:?}");
    assert!(closed.text.contains(text), "reply text {:?} should say {text:?}", closed.text);
    assert_eq!(closed.method, method, "the method that the close names: {closed:?}");
}
