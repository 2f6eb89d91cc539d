//! What becomes of a publish by its flags and where it goes: returns, confirms, refusals, in the
//! order of RabbitMQ 3.10.8.
//!
//! Invariant: the answer of a case is everything that the broker sends on the channel until it has
//! nothing more to say of this publish.

use clients::broker::unique;
use clients::methods::*;
use clients::wire::Args;
use clients::{Client, Closed, Event, ExchangeDeclare, Properties, Publish, QueueDeclare, Value};

use crate::golden::{Asker, Difference, compare, words};

/// Names of what each case finds: a queue `queue`, bound to the fanout `bound`; `full`, a queue
/// that takes nothing; exchanges without a binding: `empty`, `internal`, `detour` whose alternate
/// is `bound`, `lost` whose alternate is `empty`, and `ahead`, bound to `empty`.
struct Names {
    queue: String,
    full: String,
    bound: String,
    empty: String,
    internal: String,
    detour: String,
    lost: String,
    ahead: String,
}

impl Names {
    fn new() -> Self {
        let [queue, full, bound, empty, internal, detour, lost, ahead] =
            ["queue", "full", "bound", "empty", "internal", "detour", "lost", "ahead"].map(unique);
        Names { queue, full, bound, empty, internal, detour, lost, ahead }
    }

    fn declare(&self, client: &mut Client, channel: u16) -> Result<(), Closed> {
        client.declare(channel, &QueueDeclare { name: &self.queue, exclusive: true, ..Default::default() })?;
        let arguments = vec![("x-max-length", Value::from(0)), ("x-overflow", Value::from("reject-publish"))];
        client
            .declare(channel, &QueueDeclare { name: &self.full, exclusive: true, arguments, ..Default::default() })?;
        let alternate = |name: &str| vec![("alternate-exchange", Value::from(name))];
        for (name, internal, arguments) in [
            (&self.bound, false, vec![]),
            (&self.empty, false, vec![]),
            (&self.internal, true, vec![]),
            (&self.detour, false, alternate(&self.bound)),
            (&self.lost, false, alternate(&self.empty)),
            (&self.ahead, false, vec![]),
        ] {
            let exchange = ExchangeDeclare { name, kind: "fanout", internal, arguments, ..Default::default() };
            client.declare_exchange(channel, &exchange)?;
        }
        client.bind(channel, &self.queue, &self.bound, "", &[])?;
        let args = Args::new().short(0).shortstr(&self.empty).shortstr(&self.ahead).shortstr("").octet(0).table(&[]);
        client.call(channel, EXCHANGE_BIND, &args, EXCHANGE_BIND_OK).map(|_| ())
    }

    fn delete(&self, client: &mut Client, channel: u16) -> Result<(), Closed> {
        let exchanges = [&self.bound, &self.empty, &self.internal, &self.detour, &self.lost, &self.ahead];
        exchanges.iter().try_for_each(|name| client.delete_exchange(channel, name, false))
    }

    fn shown(&self) -> Vec<(&str, &str)> {
        let Names { queue, full, bound, empty, internal, detour, lost, ahead } = self;
        let names = [queue, full, bound, empty, internal, detour, lost, ahead];
        let shown = ["QUEUE", "FULL", "BOUND", "EMPTY", "INTERNAL", "DETOUR", "LOST", "AHEAD"];
        names.iter().map(|name| name.as_str()).zip(shown).collect()
    }
}

/// How the channel was set up before the publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Plain,
    Confirms,
    Transaction,
}

type Target = fn(&Names) -> Publish<'_>;

fn cc(keys: &[&str]) -> Properties {
    let keys = keys.iter().map(|key| Value::from(*key)).collect();
    Properties::with_headers(&[("CC", Value::Array(keys))])
}

const NOWHERE: &str = "no queue has this name";

#[rustfmt::skip]
const TARGETS: &[(&str, Target)] = &[
    ("a queue", |n| Publish { key: &n.queue, ..Default::default() }),
    ("no queue", |_| Publish { key: NOWHERE, ..Default::default() }),
    ("an empty key", |_| Publish::default()),
    ("an exchange with a queue", |n| Publish { exchange: &n.bound, key: "k", ..Default::default() }),
    ("an exchange without a queue", |n| Publish { exchange: &n.empty, key: "k", ..Default::default() }),
    ("an exchange ahead of one without a queue", |n| Publish { exchange: &n.ahead, key: "k", ..Default::default() }),
    ("an exchange whose alternate has a queue", |n| Publish { exchange: &n.detour, key: "k", ..Default::default() }),
    ("an exchange whose alternate has none", |n| Publish { exchange: &n.lost, key: "k", ..Default::default() }),
    ("an internal exchange", |n| Publish { exchange: &n.internal, ..Default::default() }),
    ("a missing exchange", |_| Publish { exchange: "no exchange has this name", ..Default::default() }),
    ("a full queue", |n| Publish { key: &n.full, ..Default::default() }),
    ("no queue, with a copy to a queue", |n| Publish { key: NOWHERE, properties: cc(&[&n.queue]), ..Default::default() }),
    ("no queue, with a copy to no queue", |_| Publish { key: NOWHERE, properties: cc(&["nor this"]), ..Default::default() }),
    ("a queue, with a time limit of nothing", |n| Publish { key: &n.queue, properties: Properties::persistent().with_expiration("0"), ..Default::default() }),
];

#[test]
fn publishes_by_flag_are_answered_as_by_rabbitmq() {
    let mut answers = Vec::new();
    for mode in [Mode::Plain, Mode::Confirms, Mode::Transaction] {
        for (mandatory, immediate, flags) in
            [(false, false, "plain"), (true, false, "mandatory"), (false, true, "immediate"), (true, true, "both")]
        {
            for (shown, target) in TARGETS {
                let names = Names::new();
                let mut said = String::new();
                let publish = Publish { mandatory, immediate, body: b"m", ..target(&names) };
                let closed = Asker::new().ask(&names.shown(), |client, channel| {
                    names.declare(client, channel)?;
                    said = answer(client, mode, &publish, &names);
                    // After a closed connection there is no other way to take them away.
                    match said.starts_with("connection") {
                        true => Ok(()),
                        false => names.delete(client, channel),
                    }
                });
                assert_eq!(closed, "ok", "{shown}: {said}");
                if said.starts_with("connection") {
                    assert_eq!(Asker::new().ask(&[], |client, channel| names.delete(client, channel)), "ok");
                }
                answers.push((format!("{mode:?}, {flags}, to {shown}"), said));
            }
        }
    }
    compare("mandatory-3.10.8.txt", include_str!("goldens/mandatory-3.10.8.txt"), &answers, DIFFERENCES);
}

/// Publishes on a channel of its own, and says all that comes back.
fn answer(client: &mut Client, mode: Mode, publish: &Publish<'_>, names: &Names) -> String {
    let channel = client.channel();
    match mode {
        Mode::Plain => {}
        Mode::Confirms => client.confirm_select(channel).unwrap(),
        Mode::Transaction => drop(client.call(channel, TX_SELECT, &Args::new(), TX_SELECT_OK).unwrap()),
    }
    client.publish(channel, publish);
    // A call behind it, whose answer tells that all is said. Confirms may come after that, and one
    // comes for certain.
    match mode {
        Mode::Transaction => client.send(channel, TX_COMMIT, &Args::new()),
        _ => client.send(channel, BASIC_QOS, &Args::new().long(0).short(0).octet(0)),
    }
    let (mut said, mut is_done, mut is_confirmed) = (Vec::new(), false, mode != Mode::Confirms);
    while !(is_done && is_confirmed) {
        match client.event(channel) {
            Event::Returned(back) => said.push(format!("returned {} {}", back.code, back.text)),
            Event::Confirm { nack, .. } => {
                said.push(if nack { "nack" } else { "ack" }.to_owned());
                is_confirmed = true;
            }
            Event::Method(TX_COMMIT_OK, _) => {
                said.push("commit-ok".to_owned());
                is_done = true;
            }
            Event::Method(BASIC_QOS_OK, _) => is_done = true,
            Event::Closed(closed) => return words(&closed, &names.shown()),
            other => panic!("{other:?}"),
        }
    }
    client.close_channel(channel);
    let getter = client.channel();
    let got = client.get(getter, &names.queue, true).unwrap();
    said.push(if got.is_some() { "in the queue" } else { "nowhere" }.to_owned());
    said.join(", ")
}

const DIFFERENCES: &[Difference] = &[];
