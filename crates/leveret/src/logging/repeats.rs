//! Lines that clients can cause at will are counted once there are many of them, so that nobody
//! fills the disk of the log or hides one line under thousands.
//!
//! Which those are shows in the event itself: it is an INFO or WARN that names a `peer` or a
//! `queue`. Of one kind, which is a place in the code, the first lines of each peer's address or
//! each queue are shown in ten seconds; the others are counted and told in one line when the ten
//! seconds are over: how many, from whom most, and as which users.
//!
//! Of changes in the audit log many more are shown, by user and address: no program that declares
//! what it needs comes so far, and the first of one user are hidden by none of another. What is shown is bounded in
//! bytes too, as a name or a path may be long.
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
/// The field of a line of the audit log that tells of a refusal and not of a change.
const REFUSED: &str = "refused";

/// How many lines of one kind are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// How long lines of one kind are counted together.
    window: Duration,
    /// Lines of one name that are shown in a window.
    of_one: u32,
    /// Lines of all names that are shown in a window.
    of_all: u32,
    /// Bytes of the lines of one name that are shown in a window, and of those of all names. The last line
    /// may go beyond them.
    bytes_of_one: u64,
    bytes_of_all: u64,
}

/// Of what clients cause.
const LINES: Bounds = Bounds {
    window: Duration::from_secs(10),
    of_one: 50,
    of_all: 200,
    bytes_of_one: 64 << 10,
    bytes_of_all: 256 << 10,
};
/// Of changes in the audit log. Some 8 KB a second, whoever binds and unbinds without end, and however
/// long the names are.
const CHANGES: Bounds = Bounds {
    window: Duration::from_secs(60),
    of_one: 2000,
    of_all: u32::MAX,
    bytes_of_one: 512 << 10,
    bytes_of_all: 8 << 20,
};
/// So much of each name is shown, however much others take.
const BYTES_OF_EACH: u64 = 4 << 10;
/// How often is looked for what is to be told.
const LOOK: Duration = LINES.window;
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
    bounds: Bounds,
    level: Level,
    is_audit: bool,
    message: String,
    since: Instant,
    shown: u32,
    shown_bytes: u64,
    hidden: u64,
    /// By the address of the peer, or by queue; of changes by user and address.
    names: HashMap<String, Count>,
    users: HashMap<String, u64>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    shown: u32,
    shown_bytes: u64,
    hidden: u64,
}

/// What is told instead of the lines.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    level: Level,
    is_audit: bool,
    seconds: u64,
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
                std::thread::sleep(LOOK);
                repeats.tell(Instant::now());
            }
        };
        std::thread::Builder::new().name("repeats".into()).spawn(tell).map(drop)
    }

    /// Tells what was counted in windows that are over at `now`.
    fn tell(&self, now: Instant) {
        for told in self.take(now) {
            let Told { level, is_audit, seconds, message, count, names, users } = told;
            let (from, users) = (Some(names).filter(|it| !it.is_empty()), Some(users).filter(|it| !it.is_empty()));
            match level {
                _ if is_audit => {
                    tracing::info!(target: "audit", count, from, users, "audit: more like this in the last {seconds} s")
                }
                Level::WARN => {
                    tracing::warn!(count, from, users, "\"{message}\": more like this in the last {seconds} s")
                }
                _ => tracing::info!(count, from, users, "\"{message}\": more like this in the last {seconds} s"),
            }
        }
    }

    /// Tells everything that was counted, before its time.
    pub(super) fn tell_all(&self) {
        self.tell(Instant::now() + CHANGES.window);
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
        let is_counted = [Level::INFO, Level::WARN].contains(metadata.level())
            && (fields.field("peer").is_some() || fields.field("queue").is_some());
        if !is_counted {
            return true;
        }
        let is_audit = metadata.target() == AUDIT;
        let is_change = is_audit && fields.field(REFUSED).is_none();
        let mut seen = Seen::default();
        event.record(&mut seen);
        if let (true, Some(user)) = (is_change, &seen.user) {
            seen.name = format!("{user} at {}", seen.name);
        }
        let bounds = if is_change { CHANGES } else { LINES };
        let new = || Kind::new(bounds, *metadata.level(), is_audit, now);
        let mut kinds = self.lock();
        let kind = match kinds.entry(metadata.callsite()) {
            Entry::Vacant(vacant) => vacant.insert(new()),
            Entry::Occupied(occupied) => {
                let kind = occupied.into_mut();
                // What is hidden stays until it was told.
                if kind.hidden == 0 && now.duration_since(kind.since) >= bounds.window {
                    *kind = new();
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
        let over =
            kinds.values_mut().filter(|kind| kind.hidden > 0 && now.duration_since(kind.since) >= kind.bounds.window);
        over.map(|kind| {
            let kind = std::mem::replace(kind, Kind::new(kind.bounds, kind.level, kind.is_audit, now));
            let names = kind.names.into_iter().map(|(name, count)| (name, count.hidden));
            let (names, users) = (most(names), most(kind.users));
            let (seconds, count) = (kind.bounds.window.as_secs(), kind.hidden);
            Told { level: kind.level, is_audit: kind.is_audit, seconds, message: kind.message, count, names, users }
        })
        .collect()
    }
}

impl Kind {
    fn new(bounds: Bounds, level: Level, is_audit: bool, since: Instant) -> Kind {
        let (names, users) = (HashMap::new(), HashMap::new());
        let message = String::new();
        Kind { bounds, level, is_audit, message, since, shown: 0, shown_bytes: 0, hidden: 0, names, users }
    }

    fn shows(&mut self, seen: Seen) -> bool {
        let has_room = self.names.len() < NAMES_MAX;
        let name = if has_room || self.names.contains_key(&seen.name) { seen.name } else { OTHERS.to_owned() };
        let of_name = self.names.entry(name).or_default();
        let Bounds { of_one, of_all, bytes_of_one, bytes_of_all, .. } = self.bounds;
        let fits = self.shown_bytes < bytes_of_all || of_name.shown_bytes < BYTES_OF_EACH;
        if of_name.shown < of_one && self.shown < of_all && of_name.shown_bytes < bytes_of_one && fits {
            of_name.shown += 1;
            self.shown += 1;
            of_name.shown_bytes += seen.bytes;
            self.shown_bytes += seen.bytes;
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
    /// About as long as the line is.
    bytes: u64,
}

/// Counts what is written, and keeps nothing.
struct Length(u64);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len() as u64;
        Ok(())
    }
}

impl Seen {
    fn keep(&mut self, field: &Field, text: &str) {
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
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, text: &str) {
        self.bytes += (field.name().len() + text.len() + 2) as u64;
        self.keep(field, text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if ["message", "peer", "queue", "user"].contains(&field.name()) {
            return self.record_str(field, &format!("{value:?}"));
        }
        let mut length = Length(field.name().len() as u64 + 2);
        // It refuses nothing.
        let _ = fmt::write(&mut length, format_args!("{value:?}"));
        self.bytes += length.0;
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
        assert_eq!(lines, 2 * LINES.of_one as usize);
        assert_eq!(repeats.take(Instant::now()), [], "the window is not over");
        let told = repeats.take(Instant::now() + LINES.window);
        let expected = Told {
            level: Level::WARN,
            is_audit: false,
            seconds: 10,
            message: "login refused".to_owned(),
            count: 3950 + 10,
            names: "10.0.0.1: 3950, [2001:db8::1]: 10".to_owned(),
            users: "guest: 3950, ann: 10".to_owned(),
        };
        assert_eq!(told, [expected]);
        assert_eq!(repeats.take(Instant::now() + 3 * LINES.window), [], "it is told once");
    }

    #[test]
    fn many_names_are_no_way_around() {
        let repeats = Repeats::default();
        let lines =
            shown(&repeats, || (0..5000).for_each(|at| refuse(&format!("10.0.{}.{}:1", at / 250, at % 250), "guest")));
        assert_eq!(lines, LINES.of_all as usize);
        let told = repeats.take(Instant::now() + LINES.window);
        assert_eq!(told[0].count, 5000 - u64::from(LINES.of_all));
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

    fn change(user: &str, peer: &str) {
        tracing::info!(target: "audit", user, peer = %peer, change = "queue.bind", "audit");
    }

    #[test]
    fn changes_of_one_user_hide_none_of_another_and_fill_no_disk() {
        let repeats = Repeats::default();
        let lines = shown(&repeats, || {
            (0..5000).for_each(|port| change("ann", &format!("10.0.0.1:{port}")));
            (0..1000).for_each(|port| change("bob", &format!("10.0.0.1:{port}")));
            (0..1000).for_each(|port| change("ann", &format!("10.0.0.2:{port}")));
        });
        assert_eq!(lines, CHANGES.of_one as usize + 2000);
        assert_eq!(repeats.take(Instant::now() + LINES.window), [], "changes are counted for a minute");
        let told = repeats.take(Instant::now() + CHANGES.window);
        assert_eq!(
            told.iter().map(|told| (told.is_audit, told.seconds, told.count)).collect::<Vec<_>>(),
            [(true, 60, 3000)]
        );
        assert_eq!(told[0].names, "ann at 10.0.0.1: 3000");
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes_and_each_user_is_shown_some() {
        let change = |user: &str, bytes: usize| {
            let path = "x".repeat(bytes);
            tracing::info!(target: "audit", user, peer = "10.0.0.1:1", change = %format_args!("PUT /{path}"), "audit");
        };
        let repeats = Repeats::default();
        let lines = shown(&repeats, || (0..1000).for_each(|_| change("ann", 16 << 10)));
        assert!((31..=32).contains(&lines), "{lines} lines of 16 KiB in 512 KiB");
        let lines = shown(&repeats, || {
            (0..100).for_each(|user| (0..40).for_each(|_| change(&format!("user{user}"), 16 << 10)));
        });
        assert!(((8 << 20) / (16 << 10) - 33..(8 << 20) / (16 << 10) + 100).contains(&lines), "{lines} lines");
        let lines = shown(&repeats, || (0..1000).for_each(|_| change("bob", 100)));
        assert!((20..=40).contains(&lines), "{lines} lines in 4 KiB");
        assert!(repeats.take(Instant::now() + CHANGES.window)[0].count > 4000);
    }

    #[test]
    fn refusals_in_the_audit_log_are_counted_like_other_lines() {
        let repeats = Repeats::default();
        let refuse =
            |_| tracing::info!(target: "audit", user = "ann", peer = "10.0.0.1:1", refused = "basic.publish", "audit");
        assert_eq!(shown(&repeats, || (0..1000).for_each(refuse)), LINES.of_one as usize);
        let told = repeats.take(Instant::now() + LINES.window);
        assert_eq!((told[0].is_audit, told[0].count, &*told[0].users), (true, 950, "ann: 950"));
    }

    #[test]
    fn each_place_in_the_code_has_its_own_count() {
        let repeats = Repeats::default();
        let lines = shown(&repeats, || {
            (0..1000).for_each(|_| tracing::info!(peer = "10.0.0.1:1", "connection opened"));
            (0..1000).for_each(|_| tracing::warn!(queue = "q", "message dropped"));
        });
        assert_eq!(lines, 2 * LINES.of_one as usize);
        let told = repeats.take(Instant::now() + LINES.window);
        assert_eq!(told.iter().map(|told| told.count).collect::<Vec<_>>(), [950, 950]);
    }
}
