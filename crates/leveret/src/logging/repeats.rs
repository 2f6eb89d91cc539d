//! Lines that clients can cause at will are counted once there are many of them, so that nobody
//! fills the disk of the log or hides one line under thousands.
//!
//! Which those are shows in the event itself: it is an INFO or WARN that names a `peer` or a
//! `queue`, and does not belong to the audit log, in which no change may be missing. Of one kind, which is a place in the code, the first lines of each peer's address or
//! each queue are shown in ten seconds; the others are counted and told in one line when the ten
//! seconds are over: how many, from whom most, and as which users.
//!
//! Invariant: no event of that kind is neither shown nor counted. The tables are bounded: names
//! beyond the bound are counted without being told apart.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// The target of the audit log.
const AUDIT: &str = "audit";
/// How long lines of one kind are counted together.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines of one kind and one name that are shown in a window.
const SHOWN_OF_ONE: u32 = 50;
/// Lines of one kind that are shown in a window.
const SHOWN_OF_ALL: u32 = 200;
/// Names that are told apart in a window.
const NAMES_MAX: usize = 1024;
/// Names that are told, those with the most lines.
const NAMES_TOLD: usize = 5;
/// Bytes of a name that are kept.
const NAME_BYTES_MAX: usize = 128;

/// What is counted. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Repeats {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    kinds: Mutex<HashMap<Identifier, Kind>>,
    /// Told when there is something to tell.
    hidden: Condvar,
}

/// The lines of one place in the code.
struct Kind {
    level: Level,
    message: String,
    since: Instant,
    shown: u32,
    hidden: u64,
    /// By the address of the peer, or by queue.
    names: HashMap<String, Count>,
    users: HashMap<String, u64>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    shown: u32,
    hidden: u64,
}

/// What is told instead of the lines.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    level: Level,
    message: String,
    count: u64,
    names: String,
    users: String,
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.shows(event, Instant::now())
    }
}

impl Repeats {
    /// Tells what was counted, on a thread of its own, when its time has come.
    pub(super) fn tell_in_time(&self) -> std::io::Result<()> {
        let repeats = self.clone();
        let tell = move || {
            loop {
                repeats.wait_for_hidden();
                std::thread::sleep(WINDOW);
                repeats.tell(Instant::now());
            }
        };
        std::thread::Builder::new().name("repeats".into()).spawn(tell).map(drop)
    }

    /// Tells what was counted in windows that are over at `now`.
    fn tell(&self, now: Instant) {
        for told in self.take(now) {
            let Told { level, message, count, names, users } = told;
            let (from, users) = (Some(names).filter(|it| !it.is_empty()), Some(users).filter(|it| !it.is_empty()));
            let seconds = WINDOW.as_secs();
            match level {
                Level::WARN => {
                    tracing::warn!(count, from, users, "\"{message}\": more like this in the last {seconds} s")
                }
                _ => tracing::info!(count, from, users, "\"{message}\": more like this in the last {seconds} s"),
            }
        }
    }

    /// Tells everything that was counted, before its time.
    pub(super) fn tell_all(&self) {
        self.tell(Instant::now() + WINDOW);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, Kind>> {
        self.shared.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_hidden(&self) {
        let kinds = self.lock();
        let nothing = |kinds: &mut HashMap<Identifier, Kind>| kinds.values().all(|kind| kind.hidden == 0);
        drop(self.shared.hidden.wait_while(kinds, nothing));
    }

    fn shows(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        let fields = metadata.fields();
        let is_counted = metadata.target() != AUDIT
            && [Level::INFO, Level::WARN].contains(metadata.level())
            && (fields.field("peer").is_some() || fields.field("queue").is_some());
        if !is_counted {
            return true;
        }
        let mut seen = Seen::default();
        event.record(&mut seen);
        let mut kinds = self.lock();
        let kind = match kinds.entry(metadata.callsite()) {
            Entry::Vacant(vacant) => vacant.insert(Kind::new(*metadata.level(), now)),
            Entry::Occupied(occupied) => {
                let kind = occupied.into_mut();
                // What is hidden stays until it was told.
                if kind.hidden == 0 && now.duration_since(kind.since) >= WINDOW {
                    *kind = Kind::new(*metadata.level(), now);
                }
                kind
            }
        };
        let shown = kind.shows(seen);
        if !shown && kind.hidden == 1 {
            self.shared.hidden.notify_all();
        }
        shown
    }

    fn take(&self, now: Instant) -> Vec<Told> {
        let mut kinds = self.lock();
        let over = kinds.values_mut().filter(|kind| kind.hidden > 0 && now.duration_since(kind.since) >= WINDOW);
        over.map(|kind| {
            let kind = std::mem::replace(kind, Kind::new(kind.level, now));
            let names = kind.names.into_iter().map(|(name, count)| (name, count.hidden));
            let (names, users) = (most(names), most(kind.users));
            Told { level: kind.level, message: kind.message, count: kind.hidden, names, users }
        })
        .collect()
    }
}

impl Kind {
    fn new(level: Level, since: Instant) -> Kind {
        let (names, users) = (HashMap::new(), HashMap::new());
        Kind { level, message: String::new(), since, shown: 0, hidden: 0, names, users }
    }

    fn shows(&mut self, seen: Seen) -> bool {
        let has_room = self.names.len() < NAMES_MAX;
        let name = if has_room || self.names.contains_key(&seen.name) { seen.name } else { OTHERS.to_owned() };
        let of_name = self.names.entry(name).or_default();
        if of_name.shown < SHOWN_OF_ONE && self.shown < SHOWN_OF_ALL {
            of_name.shown += 1;
            self.shown += 1;
            return true;
        }
        of_name.hidden += 1;
        self.hidden += 1;
        self.message = seen.message;
        if let Some(user) = seen.user.filter(|user| !user.is_empty()) {
            let has_room = self.users.len() < NAMES_MAX || self.users.contains_key(&user);
            *self.users.entry(if has_room { user } else { OTHERS.to_owned() }).or_default() += 1;
        }
        false
    }
}

/// Names beyond the bound.
const OTHERS: &str = "others";

/// Those with the most lines, as text.
fn most(counts: impl IntoIterator<Item = (String, u64)>) -> String {
    let mut counts: Vec<(String, u64)> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest = counts.len().saturating_sub(NAMES_TOLD);
    let mut told: Vec<String> =
        counts.iter().take(NAMES_TOLD).map(|(name, count)| format!("{name}: {count}")).collect();
    if rest > 0 {
        told.push(format!("and {rest} more"));
    }
    told.join(", ")
}

/// What of an event is counted.
#[derive(Default)]
struct Seen {
    message: String,
    name: String,
    user: Option<String>,
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, text: &str) {
        let end = (0..=NAME_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let text = text[..end].trim_matches('"');
        match field.name() {
            "message" => text.clone_into(&mut self.message),
            // Without its port, which is another one each time.
            "peer" => text.rsplit_once(':').map_or(text, |(address, _)| address).clone_into(&mut self.name),
            "queue" if self.name.is_empty() => text.clone_into(&mut self.name),
            "user" => self.user = Some(text.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if ["message", "peer", "queue", "user"].contains(&field.name()) {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Counts what is shown.
    #[derive(Clone, Default)]
    struct Shown(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Shown {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shown(repeats: &Repeats, log: impl FnOnce()) -> usize {
        let count = Shown::default();
        let subscriber = tracing_subscriber::registry().with(repeats.clone()).with(count.clone());
        tracing::subscriber::with_default(subscriber, log);
        count.0.load(Ordering::Relaxed)
    }

    fn refuse(peer: &str, user: &str) {
        tracing::warn!(peer = %peer, ?user, reason = "wrong", "login refused");
    }

    #[test]
    fn the_first_lines_are_shown_and_the_others_are_counted_by_peer_and_user() {
        let repeats = Repeats::default();
        let lines = shown(&repeats, || {
            (0..4000).for_each(|port| refuse(&format!("10.0.0.1:{port}"), "guest"));
            (0..60).for_each(|port| refuse(&format!("[2001:db8::1]:{port}"), "ann"));
        });
        assert_eq!(lines, 2 * SHOWN_OF_ONE as usize);
        assert_eq!(repeats.take(Instant::now()), [], "the window is not over");
        let told = repeats.take(Instant::now() + WINDOW);
        let expected = Told {
            level: Level::WARN,
            message: "login refused".to_owned(),
            count: 3950 + 10,
            names: "10.0.0.1: 3950, [2001:db8::1]: 10".to_owned(),
            users: "guest: 3950, ann: 10".to_owned(),
        };
        assert_eq!(told, [expected]);
        assert_eq!(repeats.take(Instant::now() + 3 * WINDOW), [], "it is told once");
    }

    #[test]
    fn many_names_are_no_way_around() {
        let repeats = Repeats::default();
        let lines =
            shown(&repeats, || (0..5000).for_each(|at| refuse(&format!("10.0.{}.{}:1", at / 250, at % 250), "guest")));
        assert_eq!(lines, SHOWN_OF_ALL as usize);
        let told = repeats.take(Instant::now() + WINDOW);
        assert_eq!(told[0].count, 5000 - u64::from(SHOWN_OF_ALL));
        assert!(told[0].names.starts_with(OTHERS), "{}", told[0].names);
        assert!(told[0].names.ends_with("more"), "{}", told[0].names);
    }

    #[test]
    fn what_names_neither_peer_nor_queue_and_errors_are_always_shown() {
        let repeats = Repeats::default();
        let lines = shown(&repeats, || {
            for number in 0..1000 {
                tracing::info!(number, "virtual host deleted");
                tracing::error!(queue = number, "DAMAGED");
            }
        });
        assert_eq!(lines, 2000);
    }

    #[test]
    fn no_line_of_the_audit_log_hides_another() {
        let repeats = Repeats::default();
        let change = |number| tracing::info!(target: "audit", peer = "10.0.0.1:1", queue = "q", number, "audit");
        assert_eq!(shown(&repeats, || (0..1000).for_each(change)), 1000);
        assert_eq!(repeats.take(Instant::now() + WINDOW), []);
    }

    #[test]
    fn each_place_in_the_code_has_its_own_count() {
        let repeats = Repeats::default();
        let lines = shown(&repeats, || {
            (0..1000).for_each(|_| tracing::info!(peer = "10.0.0.1:1", "connection opened"));
            (0..1000).for_each(|_| tracing::warn!(queue = "q", "message dropped"));
        });
        assert_eq!(lines, 2 * SHOWN_OF_ONE as usize);
        let told = repeats.take(Instant::now() + WINDOW);
        assert_eq!(told.iter().map(|told| told.count).collect::<Vec<_>>(), [950, 950]);
    }
}
