//! The askers over AMQP: each synchronous method, on each kind of queue.
//!
//! Invariant: half a request is not carried out, one before `connection.close` is, and one before a
//! lost socket is as a whole or not at all.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use clients::client::method_frame;
use clients::matrix::{is_wanted, side_by_side};
use clients::methods::*;
use clients::wire::Args;
use clients::{Broker, Client, Closed, Difference, Matrix, Outcome, Properties, Publish};

use crate::scene::{SEED, Scene};
use crate::{Kind, comes_about, tries};

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
const EXPIRES_MS: i32 = 300;

/// A queue that ends with the asker, and its consumer. Quorum queues are neither exclusive nor
/// auto-delete: there the asker only consumes.
fn owns(client: &mut Client, scene: &Scene, (exclusive, auto_delete): (bool, bool)) {
    let (exclusive, auto_delete) = match scene.kind {
        Kind::Quorum => (false, false),
        _ => (exclusive, auto_delete),
    };
    let declare = clients::QueueDeclare { exclusive, auto_delete, ..scene.queue_declare() };
    client.declare(1, &declare).unwrap();
    consumes(client, scene);
}

/// Somebody else can have a queue of this name: the asker's is gone, or nobody's.
fn is_free(scene: &Scene, _: Leaving) -> Outcome {
    comes_about("the end of the asker's queue", || scene.fresh().declare(1, &scene.queue_declare()).is_ok())
}
fn round_trip(client: &mut Client, _: &Scene) -> Result<(), Closed> {
    client.round_trip(1)
}

fn access() -> Args {
    Args::new().shortstr("/data").bits(&[false, true, true, true, true])
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

/// Who settled a message and left in good order has settled it, and half of that is nothing.
fn is_settled(scene: &Scene, leaving: Leaving) -> Outcome {
    let mut found = None;
    let settled = comes_about("the end of the asker's consumer", || {
        let counts = scene.fresh().counts(1, &scene.queue).unwrap();
        found = Some(counts.0);
        counts.1 == 0
    });
    settled?;
    let wanted = match leaving.carries_out() {
        Some(true) => 0,
        // It comes back.
        Some(false) => 1,
        None => return Ok(()),
    };
    comes_about(&format!("{wanted} messages instead of {found:?}"), || {
        scene.fresh().counts(1, &scene.queue).unwrap().0 == wanted
    })
}
/// The asker holds the message with delivery tag 1.
fn takes(client: &mut Client, scene: &Scene) {
    consumes(client, scene);
    assert_eq!(client.delivery(1).tag, 1);
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
        Row { ..row("channel.flow", |_| method_frame(1, CHANNEL_FLOW, &Args::new().octet(1))) },
        Row {
            scene: nothing,
            before: |c, s| owns(c, s, (true, false)),
            holds: is_free,
            ..row("exclusive owner", |s| get(s, false))
        },
        Row {
            scene: nothing,
            before: |c, s| owns(c, s, (false, true)),
            holds: is_free,
            ..row("auto-delete", |_| method_frame(1, BASIC_CANCEL, &Args::new().shortstr("asker").octet(0)))
        },
        Row {
            scene: nothing,
            before: |c, s| {
                let mut declare = s.queue_declare();
                declare.arguments.push(("x-expires", EXPIRES_MS.into()));
                c.declare(1, &declare).unwrap();
                c.consume(1, &s.queue, "asker").unwrap();
            },
            holds: |s, _| {
                comes_about("the end of the queue", || {
                    // A look uses the queue, so that its time begins again.
                    std::thread::sleep(Duration::from_millis(3 * EXPIRES_MS as u64));
                    !s.has_queue()
                })
            },
            ..row("x-expires", |_| method_frame(1, BASIC_CANCEL, &Args::new().shortstr("asker").octet(0)))
        },
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
        Row { scene: seeded, before: consumes, holds: seed_is_there, ..row("connection.close", |_| close_frame()) },
        Row {
            ..row("connection.update-secret", |_| {
                let args = Args::new().longstr(b"guest").shortstr("as it was");
                method_frame(0, CONNECTION_UPDATE_SECRET, &args)
            })
        },
        Row {
            again: |c, _| c.call(1, ACCESS_REQUEST, &access(), ACCESS_REQUEST_OK).map(|_| ()),
            ..row("access.request", |_| method_frame(1, ACCESS_REQUEST, &access()))
        },
        Row {
            again: |c, s| c.counts(1, &s.queue).map(|_| ()),
            ..row("queue.declare passive", |s| {
                let args = Args::new().short(0).shortstr(&s.queue).bits(&[true, false, false, false, false]);
                method_frame(1, QUEUE_DECLARE, &args.table(&[]))
            })
        },
        Row {
            scene: queue_and_exchange,
            ..row("exchange.declare passive", |s| {
                let args = Args::new().short(0).shortstr(&s.source).shortstr("fanout");
                method_frame(1, EXCHANGE_DECLARE, &args.bits(&[true, false, false, false, false]).table(&[]))
            })
        },
        Row {
            is_done: Some(|s| !s.has_exchange()),
            scene: bound,
            again: delete_exchange_again,
            ..row("exchange.delete no-wait", |s| delete_exchange(s, false, true))
        },
        Row {
            scene: queue_and_exchange,
            is_done: Some(|s| !s.has_exchange()),
            again: delete_exchange_again,
            ..row("exchange.delete if-unused", |s| delete_exchange(s, true, false))
        },
        Row {
            is_done: Some(is_gone),
            again: delete_again,
            ..row("queue.delete if-unused no-wait", |s| delete(s, s.kind != Kind::Quorum, false, true))
        },
        Row {
            scene: seeded,
            before: consumes,
            holds: seed_is_there,
            ..row("basic.cancel no-wait", |_| method_frame(1, BASIC_CANCEL, &Args::new().shortstr("asker").octet(1)))
        },
        Row {
            scene: seeded,
            before: consumes,
            holds: seed_is_there,
            ..row("basic.recover-async", |_| method_frame(1, BASIC_RECOVER_ASYNC, &Args::new().bits(&[true])))
        },
        Row {
            again: |c, _| c.confirm_select(1),
            ..row("confirm.select no-wait", |_| method_frame(1, CONFIRM_SELECT, &Args::new().octet(1)))
        },
        // These are not answered; what they say counts all the same.
        Row {
            scene: seeded,
            before: takes,
            holds: is_settled,
            ..row("basic.ack", |_| method_frame(1, BASIC_ACK, &Args::new().longlong(1).octet(0)))
        },
        Row {
            scene: seeded,
            before: takes,
            holds: is_settled,
            ..row("basic.nack", |_| method_frame(1, BASIC_NACK, &Args::new().longlong(1).octet(0)))
        },
        Row {
            scene: seeded,
            before: takes,
            holds: is_settled,
            ..row("basic.reject", |_| method_frame(1, BASIC_REJECT, &Args::new().longlong(1).octet(0)))
        },
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
pub(crate) const DIFFERENCES: &[Difference] = &[];

#[test]
fn amqp_askers_that_vanish_leave_nothing_half_done() {
    let columns = Kind::ALL.iter().flat_map(|kind| Leaving::ALL.iter().map(move |leaving| (*kind, *leaving)));
    let columns: Vec<(String, Kind, Leaving)> =
        columns.map(|(kind, leaving)| (format!("{kind:?}, {leaving:?}"), kind, leaving)).collect();
    let mut rows = rows();
    rows.retain(|row| is_wanted(row.name));
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

/// Each step of the handshake, its client gone behind it or in the middle of it: the next one comes
/// in.
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

/// Those of the handshake are in the test above; those that the broker sends have no row.
#[test]
fn each_synchronous_method_has_a_row() {
    const ELSEWHERE: &[&str] = &["CONNECTION_START", "CONNECTION_SECURE", "CONNECTION_TUNE", "CONNECTION_OPEN"];
    let rows: Vec<String> = rows().iter().map(|row| row.name.replace(['.', '-'], "_").to_uppercase()).collect();
    let is_synchronous = |name: &&&str| {
        let answered = ["OK", "EMPTY"].iter().any(|end| NAMES.contains(&&*format!("{name}_{end}")));
        answered && !ELSEWHERE.contains(name)
    };
    let has_row = |name: &str| rows.iter().any(|row| row.split(' ').next() == Some(name));
    let missing: Vec<&&str> = NAMES.iter().filter(is_synchronous).filter(|name| !has_row(name)).collect();
    assert_eq!(missing, [&""; 0]);
    assert!(NAMES.iter().filter(is_synchronous).count() > 20);
}
