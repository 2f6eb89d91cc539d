//! Rates and histories: who samples what the shards count, and when.
//!
//! Shards count on the road of a message and nowhere else. A task of the management thread asks them
//! for it: every five seconds while somebody looks at statistics, once a minute when nobody has for
//! [`LOOKED_AT`], and not at all when nobody has for [`REMEMBERED`]; then there is nothing but the
//! counters. Whoever asks for statistics is answered with counts of this moment, or of half a second
//! ago. Invariant: one looks at a time, as each look takes away what was counted since the last.

pub(crate) mod column;
mod details;
mod messages;
mod series;
mod stages;
mod store;

pub(crate) use details::{Details, Figure, Kind, Ranges};
pub(crate) use messages::{MessageStats, lengths, message_stats, out_of_queue, rates_of};
pub(crate) use stages::{NAMES as STAGE_NAMES, Stages};
pub(crate) use store::{History, Store};

use crate::last_known::{LastKnown, Lengths};
use crate::process::Process;
use broker::VhostId;
use server::Handle;
use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

/// How far apart samples are while somebody looks, as in RabbitMQ.
const SAMPLE: Duration = Duration::from_secs(5);
/// And while nobody does.
const SELDOM: Duration = Duration::from_secs(60);
/// How long after the last look somebody still counts as looking.
const LOOKED_AT: Duration = Duration::from_secs(600);
/// How long after the last look histories go on.
const REMEMBERED: Duration = Duration::from_secs(86_400);
/// Counts of so long ago are good enough for the next who asks.
const YOUNG: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(crate) struct Statistics {
    store: RefCell<Store>,
    /// When the counts were last brought up to date.
    updated: Cell<Option<Instant>>,
    looked: Cell<Instant>,
    looking: Mutex<()>,
    /// Somebody looks who did not before.
    begins: Notify,
    last_known: LastKnown<Lengths>,
    last_known_of_vhosts: LastKnown<BTreeMap<VhostId, Lengths>>,
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics {
            store: RefCell::default(),
            updated: Cell::new(None),
            looked: Cell::new(Instant::now() - LOOKED_AT.min(Duration::from_secs(1))),
            looking: Mutex::default(),
            begins: Notify::new(),
            last_known: LastKnown::default(),
            last_known_of_vhosts: LastKnown::default(),
        }
    }
}

impl Statistics {
    /// Takes samples for as long as the node runs.
    pub(crate) async fn run(self: Rc<Self>, handle: Handle) {
        loop {
            let since = self.looked.get().elapsed();
            let pause = if since < LOOKED_AT { SAMPLE } else { SELDOM };
            let is_remembered = since < REMEMBERED;
            let wait = async {
                match is_remembered {
                    true => tokio::time::sleep(until_next(pause)).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.begins.notified() => {}
            }
            self.look(&handle, true).await;
        }
    }

    /// Brings the counts up to this moment, or to half a second before it.
    pub(crate) async fn update(&self, handle: &Handle) {
        if self.looked.replace(Instant::now()).elapsed() >= LOOKED_AT {
            self.begins.notify_one();
        }
        self.count(handle).await;
    }

    /// The same for somebody who wants counts and no rates: that is not to look.
    pub(crate) async fn count(&self, handle: &Handle) {
        if self.updated.get().is_none_or(|updated| updated.elapsed() >= YOUNG) {
            self.look(handle, false).await;
        }
    }

    /// The counts, to look at; nothing may be awaited while they are held.
    pub(crate) fn store(&self) -> Ref<'_, Store> {
        self.store.borrow()
    }

    /// What was in queues that nobody leads just now.
    pub(crate) fn last_known(&self) -> &LastKnown<Lengths> {
        &self.last_known
    }

    /// The same by virtual host.
    pub(crate) fn last_known_of_vhosts(&self) -> &LastKnown<BTreeMap<VhostId, Lengths>> {
        &self.last_known_of_vhosts
    }

    /// Forgets all histories.
    pub(crate) fn reset(&self) {
        self.store.borrow_mut().reset();
    }

    async fn look(&self, handle: &Handle, is_sample: bool) {
        let _turn = self.looking.lock().await;
        if !is_sample && self.updated.get().is_some_and(|updated| updated.elapsed() < YOUNG) {
            // Somebody else looked meanwhile.
            return;
        }
        let shards = handle.statistics().await;
        let figures = handle.figures();
        // What the system tells takes a while to count.
        let process = is_sample.then(Process::look);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let topology = handle.topology();
        let store = &mut *self.store.borrow_mut();
        store.take_in(shards, &figures, &topology, now_ms);
        if let Some(process) = process {
            store.sample(&topology, &process);
        }
        self.updated.set(Some(Instant::now()));
    }
}

/// How long it is until the clock on the wall shows the next multiple of `pause`: samples are asked
/// for at such times.
fn until_next(pause: Duration) -> Duration {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let pause_ms = pause.as_millis() as u64;
    Duration::from_millis(pause_ms - now_ms % pause_ms)
}
