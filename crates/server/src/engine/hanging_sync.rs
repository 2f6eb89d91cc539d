//! Tests only: a disk whose syncs hang, under a shard that syncs its own small batches. It stands
//! still for one of them at most.
//!
//! Invariant: nothing here rests on how quick a machine is, but that a sync in memory takes less
//! than half a millisecond. In a build that is not for this crate's own tests there is neither this
//! file nor the place that it hooks into.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/mod.rs"]
mod support;

use crate::config::{Config, Key, Machine, Sources, load};
use crate::handle::Handle;
use crate::run::{Asks, run};
use crate::startup::{Attendant, Startup};
use amqp::wire::method::Method;
use bytes::Bytes;
use std::cell::RefCell;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use support::Client;

/// A file system in memory, on which a sync costs nothing.
const MEMORY: &str = "/dev/shm";
/// Twice a heartbeat of a second, after which a silent peer counts as gone, and some more.
const LONGER_THAN_A_TIMEOUT: Duration = Duration::from_millis(3_500);
/// Within this time a handshake must be done, in a broker that reads it.
const HANDSHAKE_TIMEOUT_MS: u64 = 2_500;

/// Called before each sync, on the thread that makes it.
pub(super) type Hook = Arc<dyn Fn() + Send + Sync>;

thread_local! {
    /// What a broker that is started on this thread calls before its log's syncs.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// The hook for a log that begins on this thread.
pub(super) fn hook_of_this_thread() -> Option<Hook> {
    HOOK.with_borrow(Clone::clone)
}

/// What syncs come through.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// The thread that stands before the closed gate.
    waiting: Option<String>,
    /// Who made the last sync.
    last: String,
}

impl Gate {
    fn pass(&self) {
        let me = std::thread::current().name().unwrap_or_default().to_owned();
        let mut state = self.state.lock().unwrap();
        while state.is_closed {
            state.waiting = Some(me.clone());
            self.moved.notify_all();
            state = self.moved.wait(state).unwrap();
        }
        state.waiting = None;
        state.last = me;
    }

    fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.moved.notify_all();
    }

    /// The name of the thread that hangs.
    fn hanging(&self) -> String {
        let state = self.state.lock().unwrap();
        let wait = self.moved.wait_timeout_while(state, support::TIMEOUT, |state| state.waiting.is_none());
        wait.unwrap().0.waiting.clone().expect("nobody syncs")
    }
}

fn config(folder: &Path) -> Config {
    let mut sources = Sources::default();
    for (key, value) in [(Key::amqp, "127.0.0.1:0"), (Key::shard_threads, "1"), (Key::node_name, "leveret@hare")] {
        sources.flags.push((key, value.to_owned()));
    }
    sources.flags.push((Key::data_dir, folder.display().to_string()));
    let hostname = "hare".to_owned();
    let machine = Machine { processors: 2, memory_bytes: 1 << 30, descriptors: 1024, ipv4: true, ipv6: true, hostname };
    let mut config = load(&sources, &machine).unwrap();
    config.handshake_timeout_ms = HANDSHAKE_TIMEOUT_MS;
    config
}

/// Is told where the broker listens.
struct Told(std::sync::mpsc::Sender<SocketAddr>);

impl Attendant for Told {
    type Attending = ();

    fn begin(&mut self, _: &Arc<Startup>) {}

    fn hold(&mut self) {}

    fn attend(self, handle: Handle) {
        self.0.send(handle.facts().amqp[0]).unwrap();
    }
}

/// Runs a broker of one shard over a disk behind `gate` while `test` talks to it.
fn with_broker(gate: &Arc<Gate>, test: impl FnOnce(SocketAddr)) {
    let parent = tempfile::Builder::new().tempdir_in(MEMORY).or_else(|_| tempfile::tempdir()).unwrap();
    let config = config(parent.path());
    let passing = gate.clone();
    let (told, address) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let broker = std::thread::spawn(move || {
        HOOK.set(Some(Arc::new(move || passing.pass())));
        let never = AtomicBool::new(false);
        let asks = Asks { report: &never, reload: &never, ends: &never };
        let shutdown = async move { _ = stopped.recv() };
        run(&config, shutdown, || {}, asks, Told(told)).unwrap();
    });
    test(address.recv().unwrap());
    drop(stop);
    broker.join().unwrap();
}

/// A client that beats every second, with channel 1 open.
fn beating(address: SocketAddr) -> Client {
    let mut client = Client::login_with(address, "guest", "guest", 1).unwrap();
    client.open(1);
    client
}

fn beat(client: &mut Client) {
    client.stream.write_all(&[8, 0, 0, 0, 0, 0, 0, 0xce]).unwrap();
}

#[test]
fn a_sync_that_hangs_holds_a_shard_up_once_and_drops_nobody() {
    let gate = Arc::new(Gate::default());
    with_broker(&gate, |address| {
        let (mut durable, mut transient) = (Client::connect(address), beating(address));
        durable.open(1);
        durable.declare_as(1, "durable", &["durable"]);
        durable.confirm_select(1);
        transient.declare(1, "transient");
        transient.consume_as(1, "transient", "c", &["no-ack"]);
        // Until the shard has found out that syncs are quick, and makes them itself.
        let mut published = 0;
        let mut publish = |durable: &mut Client| {
            durable.publish(1, "", "durable", b"small");
            published += 1;
            published
        };
        let by_shard = (0..1_000).any(|_| {
            let last = publish(&mut durable);
            durable.confirmed(last);
            gate.state.lock().unwrap().last == "shard-0"
        });
        assert!(by_shard, "syncs in memory are quick");

        // Half of a handshake is done.
        let mut late = Client::raw(address);
        late.stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
        assert!(matches!(late.recv().method, Method::ConnectionStart { .. }));

        gate.close();
        let mut last = publish(&mut durable);
        let mut hanging = gate.hanging();
        if hanging != "shard-0" {
            // The log's thread was at something: it is the next one's turn.
            gate.open();
            durable.confirmed(last);
            gate.close();
            last = publish(&mut durable);
            hanging = gate.hanging();
        }
        assert_eq!(hanging, "shard-0", "this test is about a shard that syncs");
        transient.publish(1, "", "transient", b"held up");
        late.send(0, &Client::start_ok("guest", "guest"));
        // What a client sent meanwhile was not read: it is not silent for that, nor too slow.
        for _ in 0..7 {
            std::thread::sleep(LONGER_THAN_A_TIMEOUT / 7);
            beat(&mut transient);
        }
        gate.open();
        durable.confirmed(last);
        assert_eq!(&transient.delivery().2[..], b"held up");
        let tune = late.recv().method;
        let Method::ConnectionTune { channel_max, frame_max, .. } = tune else {
            panic!("the handshake goes on: {tune:?}")
        };
        late.send(0, &Method::ConnectionTuneOk { channel_max, frame_max, heartbeat: 0 });
        let (virtual_host, capabilities) = (Bytes::from_static(b"/"), Bytes::new());
        late.send(0, &Method::ConnectionOpen { virtual_host, capabilities, insist: false });
        assert!(matches!(late.recv().method, Method::ConnectionOpenOk { .. }), "and comes to its end");

        // From now on a hanging sync is the business of the log's thread, and the shard serves
        // everybody else.
        for round in 0..3 {
            gate.close();
            let last = publish(&mut durable);
            assert_eq!(gate.hanging(), "wal");
            let body = format!("round {round}");
            transient.publish(1, "", "transient", body.as_bytes());
            assert_eq!(&transient.delivery().2[..], body.as_bytes());
            beat(&mut transient);
            gate.open();
            durable.confirmed(last);
        }
        let declare = transient.declare_as(1, "transient", &["passive"]);
        assert!(matches!(declare, Method::QueueDeclareOk { .. }), "the connection is still there: {declare:?}");
    });
}
