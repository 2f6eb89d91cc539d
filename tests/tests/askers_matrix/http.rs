//! The askers over HTTP: each change, its caller gone.
//!
//! Invariant: a change that was begun is finished, whoever listens, and is never seen in half for
//! long.
//!
//! Each try removes what it made: RabbitMQ keeps processes for each virtual host, and slows down
//! with a thousand of them.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use clients::broker::{is_foreign, unique};
use clients::matrix::{attempt, is_wanted, side_by_side};
use clients::{Broker, Client, Difference, Event, Http, Matrix, Outcome};

use crate::changes::{Change, Thing, Whose, changes};
use crate::{Kind, comes_about, tries};

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

/// A change has begun after so long, most of the time.
const BEGUN: Duration = Duration::from_millis(50);

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

fn try_change(amqp: SocketAddr, http: &Http, change: &Change, kind: Kind, how: HangUp) -> Outcome {
    let connected = RefCell::new(None);
    let thing = Thing { vhost: unique("askers-v"), name: unique("askers-n"), kind, amqp, connected };
    let outcome = attempt(|| try_on(http, change, &thing, how));
    // Whatever is not there any more is answered with 404.
    for path in ["vhosts/".to_owned() + &thing.vhost, "users/".to_owned() + &thing.name] {
        http.delete(&format!("/api/{path}"));
    }
    outcome
}

fn try_on(http: &Http, change: &Change, thing: &Thing, how: HangUp) -> Outcome {
    (change.scene)(http, thing);
    let request = (change.request)(http, thing);
    call_and_hang_up(http, request.clone(), how);
    if how == HangUp::Half {
        if change.name != "DELETE queue contents" && (change.is_made)(http, thing)? {
            return Err("half a request was carried out".to_owned());
        }
    } else {
        // Before it has begun, nothing of it is there, which would pass for none.
        std::thread::sleep(BEGUN);
        // What was begun is finished soon.
        let mut last = Ok(false);
        let whole = comes_about("a whole change or none", || {
            last = (change.is_made)(http, thing);
            last.is_ok()
        });
        whole.map_err(|why| format!("{why}: {last:?}"))?;
    }
    let (method, path, body) = request;
    let mut answer = http.send(method, &path, &[], &body);
    // RabbitMQ may refuse it while the first one is still under way.
    for _ in 0..if is_foreign() { 5 } else { 0 } {
        if !change.again.contains(&answer.status) {
            std::thread::sleep(4 * BEGUN);
            answer = http.send(method, &path, &[], &body);
        }
    }
    if !change.again.contains(&answer.status) {
        return Err(format!("asked again: {answer:?}"));
    }
    // Once more a moment later, as RabbitMQ answers before it has cut off who is connected.
    comes_about("asked again, what was asked for", || (change.is_made)(http, thing) == Ok(true))?;
    if thing_has_vhost(http, thing) && change.name != "DELETE queue contents" {
        // Whatever became of the queue: one of this name confirms what it has.
        let login = clients::Login { vhost: thing.vhost.clone(), ..Default::default() };
        let mut client = Client::login(thing.amqp, &login).map_err(|why| format!("login: {why:?}"))?;
        client.channel();
        let status = http.put(&format!("/api/queues/{}/{}", thing.vhost, thing.name), "").status;
        if status >= 300 && status != 400 {
            return Err(format!("the queue again: {status}"));
        }
        client.confirm_select(1).unwrap();
        let mut taken = false;
        // RabbitMQ refuses what meets the beginning of a quorum queue.
        for seq in 1..=if is_foreign() { 8 } else { 1 } {
            client.put(1, &thing.name, b"probe");
            match client.event(1) {
                Event::Confirm { tag, nack: false, .. } if tag == seq => taken = true,
                Event::Confirm { nack: true, .. } if is_foreign() => std::thread::sleep(Duration::from_millis(100)),
                other => return Err(format!("a confirm was due: {other:?}")),
            }
            if taken {
                break;
            }
        }
        if !taken {
            return Err("the queue refuses what is published".to_owned());
        }
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

const HALF_WAY: &str =
    "a change over HTTP of several steps, whose caller hangs up | may stop between two steps | is finished";

const fn half_way(row: &'static str, column: &'static str) -> Difference {
    Difference { row, column, told: HALF_WAY, varies: true }
}

const YOUNG: &str = "publish that meets the beginning or the end of a quorum queue";

const fn young(row: &'static str, column: &'static str) -> Difference {
    Difference { row, column, told: YOUNG, varies: true }
}

/// Where RabbitMQ 3.10.8 differs.
pub(crate) const DIFFERENCES: &[Difference] = &[
    half_way("PUT vhost", "AtOnce"),
    half_way("PUT vhost", "Soon"),
    half_way("POST definitions", "AtOnce"),
    half_way("POST definitions", "Soon"),
    half_way("POST definitions of a vhost", "AtOnce"),
    half_way("POST definitions of a vhost", "Soon"),
    half_way("POST bulk delete of users", "AtOnce"),
    half_way("POST bulk delete of users", "Soon"),
    young("PUT queue", "Quorum"),
    young("DELETE queue", "Quorum"),
    young("DELETE queue if-empty", "Quorum"),
    young("DELETE queue if-unused", "Quorum"),
];

#[test]
fn http_callers_that_vanish_leave_nothing_half_done() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let columns = Kind::ALL.iter().flat_map(|kind| HangUp::ALL.iter().map(move |how| (*kind, *how)));
    let columns: Vec<(String, Kind, HangUp)> =
        columns.map(|(kind, how)| (format!("{kind:?}, {how:?}"), kind, how)).collect();
    let mut changes = changes();
    changes.retain(|change| is_wanted(change.name));
    let (names, heads) = (changes.iter().map(|change| change.name), columns.iter().map(|c| c.0.clone()));
    let matrix = Matrix::new("askers over HTTP", names, heads, DIFFERENCES);
    let try_cell = |amqp, http: &Http, change: &Change, (column, kind, how): &(String, Kind, HangUp)| {
        let concerns_queues = change.name.contains("queue");
        if (*kind != Kind::Classic && !concerns_queues) || (is_foreign() && change.whose != Whose::Anybodys) {
            return matrix.leave_out(change.name, column);
        }
        for _ in 0..tries() {
            if !matrix.has_failed(change.name, column) {
                matrix.cell(change.name, column, || try_change(amqp, http, change, *kind, *how));
            }
        }
    };
    let (alone, shared): (Vec<&Change>, Vec<&Change>) =
        changes.iter().partition(|change| change.whose == Whose::OursAlone);
    let jobs = shared.iter().flat_map(|change| columns.iter().map(move |column| (*change, column)));
    side_by_side(4, jobs, |_| (), |(), (change, column)| try_cell(broker.addr(), &http, change, column));
    for change in alone {
        columns.iter().for_each(|column| try_cell(broker.addr(), &http, change, column));
    }
    matrix.finish();
}
