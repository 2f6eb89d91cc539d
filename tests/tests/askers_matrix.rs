//! The matrix of vanishing askers: each synchronous method of AMQP and each change over HTTP, its client gone before the
//! answer, with it, and after half of what it had to say.
//!
//! Invariant that every cell looks at: what was asked for is there as a whole or not at all; a publish that is confirmed
//! can be got back, or its queue's end was decided; asked again, the same request works; nothing hangs.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use clients::broker::unique;
use clients::client::{PATIENCE, method_frame};
use clients::matrix::{is_whole, side_by_side};
use clients::methods::*;
use clients::wire::Args;
use clients::{
    Broker, Client, Closed, Difference, Event, ExchangeDeclare, Http, Matrix, Outcome, Properties, Publish,
    QueueDeclare, Value,
};

/// Tries of one cell: what is a matter of a millisecond does not show the first time.
fn tries() -> usize {
    if is_whole() { 12 } else { 1 }
}

/// How a client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The socket is closed right behind the request.
    Before,
    /// `connection.close` is in the same write as the request.
    With,
    /// The socket is closed in the middle of the request's last frame.
    Half,
}

impl Leaving {
    const ALL: [Leaving; 3] = [Leaving::Before, Leaving::With, Leaving::Half];

    /// Whether the request is carried out; `None` is either.
    fn carries_out(self) -> Option<bool> {
        match self {
            Leaving::Before => None,
            Leaving::With => Some(true),
            Leaving::Half => Some(false),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Classic,
    Quorum,
    Transient,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Classic, Kind::Quorum, Kind::Transient];
}

/// What one cell is about: names that no other cell has.
struct Scene {
    addr: SocketAddr,
    kind: Kind,
    queue: String,
    source: String,
    between: String,
}

const SEED: &[u8] = b"was there before";

impl Scene {
    fn new(addr: SocketAddr, kind: Kind) -> Scene {
        Scene { addr, kind, queue: unique("askers-q"), source: unique("askers-x"), between: unique("askers-y") }
    }

    fn is_durable(&self) -> bool {
        self.kind != Kind::Transient
    }

    fn queue_declare(&self) -> QueueDeclare<'_> {
        let arguments = match self.kind {
            Kind::Classic => vec![("x-queue-type", Value::from("classic"))],
            Kind::Quorum => vec![("x-queue-type", Value::from("quorum"))],
            Kind::Transient => Vec::new(),
        };
        QueueDeclare { name: &self.queue, durable: self.is_durable(), arguments, ..Default::default() }
    }

    fn exchange_declare<'a>(&self, name: &'a str) -> ExchangeDeclare<'a> {
        ExchangeDeclare { name, kind: "fanout", durable: self.is_durable(), ..Default::default() }
    }

    fn fresh(&self) -> Client {
        let mut client = Client::connect(self.addr);
        client.channel();
        client
    }

    /// Whether the queue is there.
    fn has_queue(&self) -> bool {
        self.fresh().counts(1, &self.queue).is_ok()
    }

    fn has_exchange(&self) -> bool {
        let look = ExchangeDeclare { name: &self.source, kind: "fanout", passive: true, ..Default::default() };
        self.fresh().declare_exchange(1, &look).is_ok()
    }

    /// Whether what is published to the exchange comes to some queue.
    fn is_routed(&self) -> bool {
        let mut client = self.fresh();
        client.confirm_select(1).unwrap();
        let (exchange, key) = (&*self.source, "k");
        client.publish(1, &Publish { exchange, key, mandatory: true, body: b"routed?", ..Default::default() });
        match client.event(1) {
            Event::Confirm { nack: false, .. } => true,
            Event::Returned(_) => false,
            other => panic!("a confirm or a return was due: {other:?}"),
        }
    }

    /// Everything that is in the queue, in order.
    fn drain(&self) -> Vec<Vec<u8>> {
        let mut client = self.fresh();
        let mut all = Vec::new();
        while let Some(delivery) = client.get(1, &self.queue, true).unwrap() {
            all.push(delivery.body);
        }
        all
    }

    /// Publishes into the queue and gets it back, and declares it before that wherever it is not there.
    fn probe(&self) -> Outcome {
        for round in 0..4 {
            let mut client = self.fresh();
            if client.counts(1, &self.queue).is_err() {
                client = self.fresh();
                client.declare(1, &self.queue_declare()).map_err(|why| format!("declared again: {why:?}"))?;
            }
            let channel = client.channel();
            client.confirm_select(channel).unwrap();
            let body = format!("probe {round}").into_bytes();
            let (key, properties) = (&*self.queue, Properties::persistent());
            client.publish(channel, &Publish { key, mandatory: true, body: &body, properties, ..Default::default() });
            match client.event(channel) {
                Event::Confirm { nack: false, .. } => {}
                Event::Returned(_) if !self.has_queue() => continue,
                other => return Err(format!("a publish with a confirm: {other:?}")),
            }
            let due = Instant::now() + PATIENCE / 2;
            loop {
                match client.get(1, &self.queue, true) {
                    Ok(Some(delivery)) if delivery.body == body => return Ok(()),
                    Ok(Some(_)) => {}
                    // The end of the queue was decided after the confirm.
                    Err(_) => break,
                    Ok(None) if Instant::now() > due => return Err("confirmed, and not in its queue".to_owned()),
                    Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        }
        Err("the queue ends again and again".to_owned())
    }
}

/// A request over AMQP.
struct Row {
    name: &'static str,
    /// What has to be there; on a connection of its own.
    scene: fn(&mut Client, &Scene),
    /// What the asker did before on its channel 1.
    before: fn(&mut Client, &Scene),
    request: fn(&Scene) -> Vec<u8>,
    /// Whether it was carried out, where that can be seen.
    is_done: Option<fn(&Scene) -> bool>,
    /// The same request again, by somebody who waits.
    again: fn(&mut Client, &Scene) -> Result<(), Closed>,
    /// What else has to hold, told how the asker went.
    holds: fn(&Scene, Leaving) -> Outcome,
}

fn nothing(_: &mut Client, _: &Scene) {}
fn fine(_: &Scene, _: Leaving) -> Outcome {
    Ok(())
}
fn queue(client: &mut Client, scene: &Scene) {
    client.declare(1, &scene.queue_declare()).unwrap();
}
fn seeded(client: &mut Client, scene: &Scene) {
    queue(client, scene);
    client.confirm_select(1).unwrap();
    client.put(1, &scene.queue, SEED);
    client.confirmed(1, 1, 1);
}
fn queue_and_exchange(client: &mut Client, scene: &Scene) {
    queue(client, scene);
    client.declare_exchange(1, &scene.exchange_declare(&scene.source)).unwrap();
}
fn bound(client: &mut Client, scene: &Scene) {
    queue_and_exchange(client, scene);
    client.bind(1, &scene.queue, &scene.source, "k", &[]).unwrap();
}
fn two_exchanges(client: &mut Client, scene: &Scene) {
    queue_and_exchange(client, scene);
    client.declare_exchange(1, &scene.exchange_declare(&scene.between)).unwrap();
    client.bind(1, &scene.queue, &scene.between, "k", &[]).unwrap();
}
fn bound_exchanges(client: &mut Client, scene: &Scene) {
    two_exchanges(client, scene);
    client.call(1, EXCHANGE_BIND, &exchange_bind(scene, false), EXCHANGE_BIND_OK).unwrap();
}
fn confirms(client: &mut Client, _: &Scene) {
    client.confirm_select(1).unwrap();
}
fn consumes(client: &mut Client, scene: &Scene) {
    client.consume(1, &scene.queue, "asker").unwrap();
}
fn transaction(client: &mut Client, scene: &Scene) {
    client.call(1, TX_SELECT, &Args::new(), TX_SELECT_OK).unwrap();
    (0..3).for_each(|n| client.put(1, &scene.queue, format!("tx {n}").as_bytes()));
}
fn round_trip(client: &mut Client, _: &Scene) -> Result<(), Closed> {
    client.round_trip(1)
}

fn exchange_bind(scene: &Scene, no_wait: bool) -> Args {
    let args = Args::new().short(0).shortstr(&scene.between).shortstr(&scene.source).shortstr("k");
    args.octet(no_wait.into()).table(&[])
}
fn declare(scene: &Scene, no_wait: bool) -> Vec<u8> {
    let wanted = scene.queue_declare();
    let args = Args::new().short(0).shortstr(wanted.name).bits(&[false, wanted.durable, false, false, no_wait]);
    method_frame(1, QUEUE_DECLARE, &args.table(&wanted.arguments))
}
fn delete(scene: &Scene, if_unused: bool, if_empty: bool, no_wait: bool) -> Vec<u8> {
    let args = Args::new().short(0).shortstr(&scene.queue).bits(&[if_unused, if_empty, no_wait]);
    method_frame(1, QUEUE_DELETE, &args)
}
fn declare_exchange(scene: &Scene, no_wait: bool) -> Vec<u8> {
    let args = Args::new().short(0).shortstr(&scene.source).shortstr("fanout");
    let args = args.bits(&[false, scene.is_durable(), false, false, no_wait]).table(&[]);
    method_frame(1, EXCHANGE_DECLARE, &args)
}
fn delete_exchange(scene: &Scene, if_unused: bool, no_wait: bool) -> Vec<u8> {
    method_frame(1, EXCHANGE_DELETE, &Args::new().short(0).shortstr(&scene.source).bits(&[if_unused, no_wait]))
}
fn bind(scene: &Scene, no_wait: bool) -> Vec<u8> {
    let args = Args::new().short(0).shortstr(&scene.queue).shortstr(&scene.source).shortstr("k");
    method_frame(1, QUEUE_BIND, &args.octet(no_wait.into()).table(&[]))
}
fn purge(scene: &Scene, no_wait: bool) -> Vec<u8> {
    method_frame(1, QUEUE_PURGE, &Args::new().short(0).shortstr(&scene.queue).octet(no_wait.into()))
}
fn consume(scene: &Scene, no_wait: bool) -> Vec<u8> {
    let args = Args::new().short(0).shortstr(&scene.queue).shortstr("t").bits(&[false, false, false, no_wait]);
    method_frame(1, BASIC_CONSUME, &args.table(&[]))
}
fn get(scene: &Scene, no_ack: bool) -> Vec<u8> {
    method_frame(1, BASIC_GET, &Args::new().short(0).shortstr(&scene.queue).bits(&[no_ack]))
}
fn publishes(scene: &Scene) -> Vec<u8> {
    let publish = |n: u8| {
        let (key, body) = (&*scene.queue, &[b'0' + n; 600][..]);
        Publish { key, body, properties: Properties::persistent(), ..Default::default() }.frames(1, 131_072)
    };
    (0..3).flat_map(publish).collect()
}

/// Waits until something holds that comes about by itself.
fn comes_about(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    let due = Instant::now() + PATIENCE / 2;
    while !is_so() {
        if Instant::now() > due {
            return Err(format!("{what} did not come about"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What was taken and not settled comes back.
fn seed_is_there(scene: &Scene, _: Leaving) -> Outcome {
    comes_about("what was taken and not settled", || {
        let mut client = scene.fresh();
        client.get(1, &scene.queue, false).unwrap().is_some_and(|delivery| delivery.body == SEED)
    })?;
    comes_about("the end of the asker's consumer", || scene.fresh().counts(1, &scene.queue).unwrap().1 == 0)
}

fn three_or_fewer(scene: &Scene, leaving: Leaving) -> Outcome {
    let wanted: Vec<Vec<u8>> = (0..3).map(|n| vec![b'0' + n; 600]).collect();
    let there = scene.drain();
    let most = if leaving == Leaving::Half { 2 } else { 3 };
    let least = if leaving == Leaving::With { 3 } else { 0 };
    let is_prefix = there.len() <= most && there[..] == wanted[..there.len()];
    match is_prefix && there.len() >= least {
        true => Ok(()),
        false => Err(format!("{} messages are there", there.len())),
    }
}

fn all_or_nothing(scene: &Scene, leaving: Leaving) -> Outcome {
    // Before its client was gone or after: a transaction is carried out as a whole.
    std::thread::sleep(Duration::from_millis(if leaving == Leaving::Before { 100 } else { 0 }));
    let there = scene.drain().len();
    match (there, leaving.carries_out()) {
        (3, Some(true) | None) | (0, Some(false) | None) => Ok(()),
        _ => Err(format!("{there} of 3 messages are there")),
    }
}

fn nothing_is_there(scene: &Scene, _: Leaving) -> Outcome {
    match scene.drain().len() {
        0 => Ok(()),
        there => Err(format!("{there} messages of a transaction that was never committed")),
    }
}

fn rows() -> Vec<Row> {
    let row = |name, request: fn(&Scene) -> Vec<u8>| Row {
        name,
        scene: queue,
        before: nothing,
        request,
        is_done: None,
        again: round_trip,
        holds: fine,
    };
    type Again = fn(&mut Client, &Scene) -> Result<(), Closed>;
    let delete_again: Again = |c, s| c.delete(1, &s.queue, false, false).map(|_| ());
    let declare_again: Again = |c, s| c.declare(1, &s.queue_declare()).map(|_| ());
    let declare_exchange_again: Again = |c, s| c.declare_exchange(1, &s.exchange_declare(&s.source));
    let delete_exchange_again: Again = |c, s| c.delete_exchange(1, &s.source, false);
    let bind_again: Again = |c, s| c.bind(1, &s.queue, &s.source, "k", &[]);
    let bind_exchange_again: Again =
        |c, s| c.call(1, EXCHANGE_BIND, &exchange_bind(s, false), EXCHANGE_BIND_OK).map(|_| ());
    let unbind_exchange_again: Again =
        |c, s| c.call(1, EXCHANGE_UNBIND, &exchange_bind(s, false), EXCHANGE_UNBIND_OK).map(|_| ());
    let purge_again: Again = |c, s| c.purge(1, &s.queue).map(|_| ());
    let is_gone: fn(&Scene) -> bool = |s| !s.has_queue();
    let is_purged: fn(&Scene) -> bool = |s| s.fresh().counts(1, &s.queue).unwrap().0 == 0;
    vec![
        Row { ..row("channel.open", |_| method_frame(2, CHANNEL_OPEN, &Args::new().shortstr(""))) },
        Row {
            before: consumes,
            scene: seeded,
            holds: seed_is_there,
            ..row("channel.close", |_| {
                method_frame(1, CHANNEL_CLOSE, &Args::new().short(200).shortstr("bye").short(0).short(0))
            })
        },
        Row {
            is_done: Some(Scene::has_exchange),
            again: declare_exchange_again,
            ..row("exchange.declare", |s| declare_exchange(s, false))
        },
        Row {
            is_done: Some(Scene::has_exchange),
            again: declare_exchange_again,
            ..row("exchange.declare no-wait", |s| declare_exchange(s, true))
        },
        Row {
            scene: bound,
            is_done: Some(|s| !s.has_exchange()),
            again: delete_exchange_again,
            ..row("exchange.delete", |s| delete_exchange(s, false, false))
        },
        Row {
            scene: queue_and_exchange,
            is_done: Some(|s| !s.has_exchange()),
            again: delete_exchange_again,
            ..row("exchange.delete if-unused no-wait", |s| delete_exchange(s, true, true))
        },
        Row {
            scene: two_exchanges,
            is_done: Some(Scene::is_routed),
            again: bind_exchange_again,
            ..row("exchange.bind", |s| method_frame(1, EXCHANGE_BIND, &exchange_bind(s, false)))
        },
        Row {
            scene: two_exchanges,
            is_done: Some(Scene::is_routed),
            again: bind_exchange_again,
            ..row("exchange.bind no-wait", |s| method_frame(1, EXCHANGE_BIND, &exchange_bind(s, true)))
        },
        Row {
            scene: bound_exchanges,
            is_done: Some(|s| !s.is_routed()),
            again: unbind_exchange_again,
            ..row("exchange.unbind", |s| method_frame(1, EXCHANGE_UNBIND, &exchange_bind(s, false)))
        },
        Row {
            scene: bound_exchanges,
            is_done: Some(|s| !s.is_routed()),
            again: unbind_exchange_again,
            ..row("exchange.unbind no-wait", |s| method_frame(1, EXCHANGE_UNBIND, &exchange_bind(s, true)))
        },
        Row {
            scene: nothing,
            is_done: Some(Scene::has_queue),
            again: declare_again,
            ..row("queue.declare", |s| declare(s, false))
        },
        Row {
            scene: nothing,
            is_done: Some(Scene::has_queue),
            again: declare_again,
            ..row("queue.declare no-wait", |s| declare(s, true))
        },
        Row {
            scene: queue_and_exchange,
            is_done: Some(Scene::is_routed),
            again: bind_again,
            ..row("queue.bind", |s| bind(s, false))
        },
        Row {
            scene: queue_and_exchange,
            is_done: Some(Scene::is_routed),
            again: bind_again,
            ..row("queue.bind no-wait", |s| bind(s, true))
        },
        Row {
            scene: bound,
            is_done: Some(|s| !s.is_routed()),
            again: |c, s| c.unbind(1, &s.queue, &s.source, "k", &[]),
            ..row("queue.unbind", |s| {
                let args = Args::new().short(0).shortstr(&s.queue).shortstr(&s.source).shortstr("k");
                method_frame(1, QUEUE_UNBIND, &args.table(&[]))
            })
        },
        Row { scene: seeded, is_done: Some(is_purged), again: purge_again, ..row("queue.purge", |s| purge(s, false)) },
        Row {
            scene: seeded,
            is_done: Some(is_purged),
            again: purge_again,
            ..row("queue.purge no-wait", |s| purge(s, true))
        },
        Row {
            scene: seeded,
            is_done: Some(is_gone),
            again: delete_again,
            ..row("queue.delete", |s| delete(s, false, false, false))
        },
        Row {
            scene: seeded,
            is_done: Some(is_gone),
            again: delete_again,
            ..row("queue.delete no-wait", |s| delete(s, false, false, true))
        },
        Row {
            is_done: Some(is_gone),
            again: delete_again,
            ..row("queue.delete if-unused", |s| delete(s, s.kind != Kind::Quorum, false, false))
        },
        Row {
            is_done: Some(is_gone),
            again: delete_again,
            ..row("queue.delete if-empty", |s| delete(s, false, s.kind != Kind::Quorum, false))
        },
        Row {
            is_done: Some(is_gone),
            again: delete_again,
            ..row("queue.delete if-empty no-wait", |s| delete(s, false, s.kind != Kind::Quorum, true))
        },
        Row {
            again: |c, _| c.qos(1, 5, false),
            ..row("basic.qos", |_| method_frame(1, BASIC_QOS, &Args::new().long(0).short(5).bits(&[false])))
        },
        Row {
            scene: seeded,
            holds: seed_is_there,
            again: |c, s| c.consume(1, &s.queue, "again").map(|_| ()),
            ..row("basic.consume", |s| consume(s, false))
        },
        Row {
            scene: seeded,
            holds: seed_is_there,
            again: |c, s| c.consume(1, &s.queue, "again").map(|_| ()),
            ..row("basic.consume no-wait", |s| consume(s, true))
        },
        Row {
            scene: seeded,
            before: consumes,
            holds: seed_is_there,
            ..row("basic.cancel", |_| method_frame(1, BASIC_CANCEL, &Args::new().shortstr("asker").octet(0)))
        },
        Row { scene: seeded, holds: seed_is_there, ..row("basic.get", |s| get(s, false)) },
        Row { scene: seeded, ..row("basic.get no-ack", |s| get(s, true)) },
        Row {
            scene: seeded,
            before: consumes,
            holds: seed_is_there,
            ..row("basic.recover", |_| method_frame(1, BASIC_RECOVER, &Args::new().bits(&[true])))
        },
        Row {
            again: |c, _| c.confirm_select(1),
            ..row("confirm.select", |_| method_frame(1, CONFIRM_SELECT, &Args::new().octet(0)))
        },
        Row {
            again: |c, _| c.call(1, TX_SELECT, &Args::new(), TX_SELECT_OK).map(|_| ()),
            ..row("tx.select", |_| method_frame(1, TX_SELECT, &Args::new()))
        },
        Row {
            before: transaction,
            holds: all_or_nothing,
            ..row("tx.commit", |_| method_frame(1, TX_COMMIT, &Args::new()))
        },
        Row {
            before: transaction,
            holds: nothing_is_there,
            ..row("tx.rollback", |_| method_frame(1, TX_ROLLBACK, &Args::new()))
        },
        Row { before: confirms, holds: three_or_fewer, ..row("basic.publish with confirms", publishes) },
    ]
}

fn close_frame() -> Vec<u8> {
    method_frame(0, CONNECTION_CLOSE, &Args::new().short(200).shortstr("bye").short(0).short(0))
}

/// Sends what the asker has to say, and goes.
fn ask_and_go(mut client: Client, request: &[u8], leaving: Leaving) {
    match leaving {
        Leaving::Before => client.raw(request),
        Leaving::With => {
            client.raw(&[request, &close_frame()[..]].concat());
            client.wait(0, CONNECTION_CLOSE_OK).expect("connection.close is answered");
        }
        // A frame is 8 bytes and its payload: the last byte is what a whole one ends with.
        Leaving::Half => client.raw(&request[..request.len() - 4]),
    }
    // The peer may have closed it already.
    let _ = client.stream.shutdown(Shutdown::Both);
}

fn try_cell(addr: SocketAddr, row: &Row, kind: Kind, leaving: Leaving) -> Outcome {
    let scene = Scene::new(addr, kind);
    (row.scene)(&mut scene.fresh(), &scene);
    let mut asker = scene.fresh();
    (row.before)(&mut asker, &scene);
    ask_and_go(asker, &(row.request)(&scene), leaving);
    if let Some(is_done) = row.is_done {
        match leaving.carries_out() {
            Some(true) => comes_about("what was asked for", || is_done(&scene))?,
            Some(false) if is_done(&scene) => return Err("half a request was carried out".to_owned()),
            _ => {}
        }
    }
    (row.holds)(&scene, leaving)?;
    if row.name.starts_with("queue.") || leaving != Leaving::Before {
        // Before anybody asks again, so that nothing but the asker's own request can end the queue.
        scene.probe()?;
    }
    let mut client = scene.fresh();
    (row.again)(&mut client, &scene).map_err(|why| format!("asked again: {why:?}"))?;
    // What the second asker holds goes with it.
    client.close();
    scene.probe()
}

/// Where RabbitMQ 3.10.8 differs.
const DIFFERENCES: &[Difference] = &[];

#[test]
fn amqp_askers_that_vanish_leave_nothing_half_done() {
    let columns = Kind::ALL.iter().flat_map(|kind| Leaving::ALL.iter().map(move |leaving| (*kind, *leaving)));
    let columns: Vec<(String, Kind, Leaving)> =
        columns.map(|(kind, leaving)| (format!("{kind:?}, {leaving:?}"), kind, leaving)).collect();
    let rows = rows();
    let (names, heads) = (rows.iter().map(|row| row.name), columns.iter().map(|c| c.0.clone()));
    let matrix = Matrix::new("askers over AMQP", names, heads, DIFFERENCES);
    let jobs = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
    let addr = Broker::shared().addr();
    side_by_side(
        4,
        jobs,
        |_| (),
        |(), (row, (column, kind, leaving))| {
            for _ in 0..tries() {
                if !matrix.has_failed(row.name, column) {
                    matrix.cell(row.name, column, || try_cell(addr, row, *kind, *leaving));
                }
            }
        },
    );
    matrix.finish();
}

/// Each step of the handshake, its client gone behind it or in the middle of it: the next one comes in.
#[test]
fn clients_that_vanish_in_their_handshake_keep_nobody_out() {
    let addr = Broker::shared().addr();
    let login = clients::Login::default();
    for steps in 0..4 {
        for is_half in [false, true] {
            let mut client = Client::socket(addr).unwrap();
            let half = |client: &mut Client, bytes: &[u8]| client.raw(&bytes[..bytes.len() / 2]);
            let header = b"AMQP\x00\x00\x09\x01";
            if steps == 0 && is_half {
                half(&mut client, header);
                continue;
            }
            client.raw(header);
            if steps >= 1 {
                client.start(&login).unwrap();
            }
            let open = method_frame(0, CONNECTION_OPEN, &Args::new().shortstr("/").shortstr("").octet(0));
            let tune = method_frame(0, CONNECTION_TUNE_OK, &Args::new().short(0).long(0).short(0));
            match (steps, is_half) {
                (2, true) => half(&mut client, &tune),
                (2, false) => client.raw(&tune),
                (3, true) => half(&mut client, &[tune, open].concat()),
                (3, false) => client.raw(&[tune, open, close_frame()].concat()),
                _ => {}
            }
        }
    }
    Client::connect(addr).close();
}

/// How a caller over HTTP goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangUp {
    /// Right behind the request.
    AtOnce,
    /// A moment later, when the work has begun.
    Soon,
    /// In the middle of the request.
    Half,
}

impl HangUp {
    const ALL: [HangUp; 3] = [HangUp::AtOnce, HangUp::Soon, HangUp::Half];
}

/// What one change over HTTP is about.
struct Thing {
    vhost: String,
    name: String,
    kind: Kind,
}

/// A change over HTTP.
struct Change {
    name: &'static str,
    scene: fn(&Http, &Thing),
    request: fn(&Thing) -> (&'static str, String, String),
    /// Whether it was made; an error if only half of it was.
    is_made: fn(&Http, &Thing) -> Result<bool, String>,
    /// Asked again, one of these.
    again: &'static [u16],
}

const EVERYTHING: &str = r#"{"configure":".*","write":".*","read":".*"}"#;

fn vhost_of(http: &Http, thing: &Thing) {
    http.put(&format!("/api/vhosts/{}", thing.vhost), "{}").with(201);
    let status = http.put(&format!("/api/permissions/{}/guest", thing.vhost), EVERYTHING).status;
    assert!([201, 204].contains(&status), "{status}");
}
fn queue_of(http: &Http, thing: &Thing) {
    vhost_of(http, thing);
    http.put(&format!("/api/queues/{}/{}", thing.vhost, thing.name), &queue_body(thing)).with(201);
}
fn exchange_of(http: &Http, thing: &Thing) {
    queue_of(http, thing);
    http.put(&format!("/api/exchanges/{}/{}", thing.vhost, thing.name), r#"{"type":"fanout","durable":true}"#)
        .with(201);
}
fn bound_of(http: &Http, thing: &Thing) {
    exchange_of(http, thing);
    http.post(&binding_path(thing), r#"{"routing_key":"k"}"#).with(201);
}
fn user_of(http: &Http, thing: &Thing) {
    vhost_of(http, thing);
    http.put(&format!("/api/users/{}", thing.name), USER).with(201);
}
fn queue_body(thing: &Thing) -> String {
    let (durable, arguments) = match thing.kind {
        Kind::Classic => (true, r#"{"x-queue-type":"classic"}"#),
        Kind::Quorum => (true, r#"{"x-queue-type":"quorum"}"#),
        Kind::Transient => (false, "{}"),
    };
    format!(r#"{{"durable":{durable},"arguments":{arguments}}}"#)
}
fn binding_path(thing: &Thing) -> String {
    format!("/api/bindings/{}/e/{}/q/{}", thing.vhost, thing.name, thing.name)
}
const USER: &str = r#"{"password":"secret","tags":"monitoring"}"#;
const POLICY: &str = r#"{"pattern":"^none$","definition":{"max-length":5},"apply-to":"queues"}"#;

fn there(http: &Http, path: String) -> Result<bool, String> {
    match http.get(&path).status {
        200 => Ok(true),
        404 => Ok(false),
        other => Err(format!("{path}: {other}")),
    }
}

fn definitions(thing: &Thing) -> String {
    let Thing { vhost, name, .. } = thing;
    format!(
        r#"{{"vhosts":[{{"name":"{vhost}"}}],
        "permissions":[{{"user":"guest","vhost":"{vhost}","configure":".*","write":".*","read":".*"}}],
        "queues":[{{"name":"{name}","vhost":"{vhost}","durable":true,"auto_delete":false,"arguments":{{}}}}],
        "exchanges":[{{"name":"{name}","vhost":"{vhost}","type":"fanout","durable":true,"auto_delete":false,
        "internal":false,"arguments":{{}}}}],
        "bindings":[{{"source":"{name}","vhost":"{vhost}","destination":"{name}","destination_type":"queue",
        "routing_key":"k","arguments":{{}}}}]}}"#
    )
}

fn changes() -> Vec<Change> {
    let nobody: fn(&Http, &Thing) = |_, _| ();
    const PUT: &[u16] = &[201, 204];
    const DELETE: &[u16] = &[204, 404];
    vec![
        Change {
            name: "PUT vhost",
            scene: nobody,
            request: |t| {
                ("PUT", format!("/api/vhosts/{}", t.vhost), r#"{"default_queue_type":"quorum","tags":"a"}"#.into())
            },
            is_made: |http, t| {
                let vhost = http.get(&format!("/api/vhosts/{}", t.vhost));
                if vhost.status == 404 {
                    return Ok(false);
                }
                let permission = http.get(&format!("/api/permissions/{}/guest", t.vhost)).status;
                let vhost = vhost.with(200);
                match (permission, vhost["default_queue_type"].as_str(), vhost["tags"][0].as_str()) {
                    (200, Some("quorum"), Some("a")) => Ok(true),
                    found => Err(format!("permission, default queue type, tag: {found:?}")),
                }
            },
            again: PUT,
        },
        Change {
            name: "DELETE vhost",
            scene: bound_of,
            request: |t| ("DELETE", format!("/api/vhosts/{}", t.vhost), String::new()),
            is_made: |http, t| there(http, format!("/api/vhosts/{}", t.vhost)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT user",
            scene: nobody,
            request: |t| ("PUT", format!("/api/users/{}", t.name), USER.into()),
            is_made: |http, t| {
                let is_there = there(http, format!("/api/users/{}", t.name))?;
                let gets_in = http.as_user(&t.name, "secret").get("/api/whoami").status == 200;
                if is_there == gets_in { Ok(is_there) } else { Err("who is there cannot log in".into()) }
            },
            again: PUT,
        },
        Change {
            name: "DELETE user",
            scene: user_of,
            request: |t| ("DELETE", format!("/api/users/{}", t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/users/{}", t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT permission",
            scene: user_of,
            request: |t| ("PUT", format!("/api/permissions/{}/{}", t.vhost, t.name), EVERYTHING.into()),
            is_made: |http, t| there(http, format!("/api/permissions/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "PUT policy",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/policies/{}/{}", t.vhost, t.name), POLICY.into()),
            is_made: |http, t| there(http, format!("/api/policies/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE policy",
            scene: |http, t| {
                vhost_of(http, t);
                http.put(&format!("/api/policies/{}/{}", t.vhost, t.name), POLICY).with(201);
            },
            request: |t| ("DELETE", format!("/api/policies/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/policies/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT vhost limit",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/vhost-limits/{}/max-queues", t.vhost), r#"{"value":5}"#.into()),
            is_made: |http, t| {
                let found = http.get(&format!("/api/vhost-limits/{}", t.vhost)).with(200);
                Ok(found[0]["value"]["max-queues"] == 5)
            },
            again: PUT,
        },
        Change {
            name: "PUT exchange",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/exchanges/{}/{}", t.vhost, t.name), r#"{"type":"fanout"}"#.into()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE exchange",
            scene: bound_of,
            request: |t| ("DELETE", format!("/api/exchanges/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/exchanges/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "PUT queue",
            scene: vhost_of,
            request: |t| ("PUT", format!("/api/queues/{}/{}", t.vhost, t.name), queue_body(t)),
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)),
            again: PUT,
        },
        Change {
            name: "DELETE queue",
            scene: queue_of,
            request: |t| ("DELETE", format!("/api/queues/{}/{}", t.vhost, t.name), String::new()),
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "DELETE queue if-empty",
            scene: queue_of,
            request: |t| {
                let condition = if t.kind == Kind::Quorum { "" } else { "?if-empty=true" };
                ("DELETE", format!("/api/queues/{}/{}{condition}", t.vhost, t.name), String::new())
            },
            is_made: |http, t| there(http, format!("/api/queues/{}/{}", t.vhost, t.name)).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "DELETE queue contents",
            scene: queue_of,
            request: |t| ("DELETE", format!("/api/queues/{}/{}/contents", t.vhost, t.name), String::new()),
            is_made: |_, _| Ok(true),
            again: &[204],
        },
        Change {
            name: "POST binding",
            scene: exchange_of,
            request: |t| ("POST", binding_path(t), r#"{"routing_key":"k"}"#.into()),
            is_made: |http, t| there(http, format!("{}/k", binding_path(t))),
            again: &[201],
        },
        Change {
            name: "DELETE binding",
            scene: bound_of,
            request: |t| ("DELETE", format!("{}/k", binding_path(t)), String::new()),
            is_made: |http, t| there(http, format!("{}/k", binding_path(t))).map(|is_there| !is_there),
            again: DELETE,
        },
        Change {
            name: "POST definitions",
            scene: nobody,
            request: |t| ("POST", "/api/definitions".into(), definitions(t)),
            is_made: |http, t| {
                let of = |path: String| there(http, path);
                let parts = [
                    of(format!("/api/vhosts/{}", t.vhost))?,
                    of(format!("/api/permissions/{}/guest", t.vhost))?,
                    of(format!("/api/queues/{}/{}", t.vhost, t.name))?,
                    of(format!("/api/exchanges/{}/{}", t.vhost, t.name))?,
                    of(format!("{}/k", binding_path(t)))?,
                ];
                match parts.iter().filter(|is_there| **is_there).count() {
                    0 => Ok(false),
                    5 => Ok(true),
                    _ => Err(format!("virtual host, permission, queue, exchange, binding: {parts:?}")),
                }
            },
            again: &[200, 204],
        },
    ]
}

fn call_and_hang_up(http: &Http, (method, path, body): (&str, String, String), how: HangUp) {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: broker\r\n").into_bytes();
    request.extend(b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nContent-Type: application/json\r\n");
    request.extend(format!("Content-Length: {}\r\n\r\n{body}", body.len()).bytes());
    if how == HangUp::Half {
        // Within the body, or within the end of the head where there is no body.
        request.truncate(request.len() - 1 - body.len() / 2);
    }
    let mut socket = TcpStream::connect(http.addr()).expect("the API listens");
    socket.write_all(&request).unwrap();
    if how == HangUp::Soon {
        socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        // An answer may be faster.
        let _ = socket.read(&mut [0; 16]);
    }
    // The peer may have closed it already.
    let _ = socket.shutdown(Shutdown::Both);
}

fn try_change(broker: &Broker, http: &Http, change: &Change, kind: Kind, how: HangUp) -> Outcome {
    let thing = Thing { vhost: unique("askers-v"), name: unique("askers-n"), kind };
    (change.scene)(http, &thing);
    call_and_hang_up(http, (change.request)(&thing), how);
    if how == HangUp::Half {
        if change.name != "DELETE queue contents" && (change.is_made)(http, &thing)? {
            return Err("half a request was carried out".to_owned());
        }
    } else {
        // What was begun is finished soon.
        let mut last = Ok(false);
        let whole = comes_about("a whole change or none", || {
            last = (change.is_made)(http, &thing);
            last.is_ok()
        });
        whole.map_err(|why| format!("{why}: {last:?}"))?;
    }
    let (method, path, body) = (change.request)(&thing);
    let answer = http.send(method, &path, &[], &body);
    if !change.again.contains(&answer.status) {
        return Err(format!("asked again: {answer:?}"));
    }
    if !(change.is_made)(http, &thing)? {
        return Err("asked again, and it is not made".to_owned());
    }
    if thing_has_vhost(http, &thing) && change.name != "DELETE queue contents" {
        // Whatever became of the queue: one of this name confirms what it has.
        let login = clients::Login { vhost: thing.vhost.clone(), ..Default::default() };
        let mut client = Client::login(broker.addr(), &login).map_err(|why| format!("login: {why:?}"))?;
        client.channel();
        let status = http.put(&format!("/api/queues/{}/{}", thing.vhost, thing.name), "").status;
        if status >= 300 && status != 400 {
            return Err(format!("the queue again: {status}"));
        }
        client.confirm_select(1).unwrap();
        client.put(1, &thing.name, b"probe");
        client.confirmed(1, 1, 1);
        let got = client.get(1, &thing.name, true).map_err(|why| format!("get: {why:?}"))?;
        if got.is_none() {
            return Err("confirmed, and not in its queue".to_owned());
        }
    }
    Ok(())
}

fn thing_has_vhost(http: &Http, thing: &Thing) -> bool {
    http.get(&format!("/api/vhosts/{}", thing.vhost)).status == 200
}

/// Where RabbitMQ 3.10.8 differs.
const HTTP_DIFFERENCES: &[Difference] = &[];

#[test]
fn http_callers_that_vanish_leave_nothing_half_done() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let columns = Kind::ALL.iter().flat_map(|kind| HangUp::ALL.iter().map(move |how| (*kind, *how)));
    let columns: Vec<(String, Kind, HangUp)> =
        columns.map(|(kind, how)| (format!("{kind:?}, {how:?}"), kind, how)).collect();
    let changes = changes();
    let (names, heads) = (changes.iter().map(|change| change.name), columns.iter().map(|c| c.0.clone()));
    let matrix = Matrix::new("askers over HTTP", names, heads, HTTP_DIFFERENCES);
    let jobs = changes.iter().flat_map(|change| columns.iter().map(move |column| (change, column)));
    side_by_side(
        4,
        jobs,
        |_| (),
        |(), (change, (column, kind, how))| {
            let concerns_queues = change.name.contains("queue");
            if *kind != Kind::Classic && !concerns_queues {
                return matrix.leave_out(change.name, column);
            }
            for _ in 0..tries() {
                if !matrix.has_failed(change.name, column) {
                    matrix.cell(change.name, column, || try_change(&broker, &http, change, *kind, *how));
                }
            }
        },
    );
    matrix.finish();
}
