//! The graceful end of a node: first its clients go, then what they set in motion comes to rest,
//! then its shards end.
//!
//! A message whose end is in the log may be a dead letter that is not: its partition hands it on
//! with a later turn, maybe on another shard. So shards go on once the last client is gone, at a
//! time that stands still, so that nothing else expires meanwhile, until all of them say twice in a
//! row that nothing has happened and nothing is under way.
//!
//! Invariant: nothing is on its way between two shards after such a second round: whoever sent it
//! would have had something to do since the first, and so would whoever got it.

use crate::shard::{Mailbox, Parcel};
use amqp::Millis;
use node::Now;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How long what clients set in motion may take to come to rest. A disk that stands still, or is
/// full, takes longer.
const REST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node may be without any other of its cluster before it waits no more for what a majority
/// is to confirm: all of them are stopped together.
const CUT_OFF_AFTER: Duration = Duration::from_millis(100);
/// How often shards are asked while they do not rest.
const ASK_EVERY: Duration = Duration::from_micros(500);
/// How long after the end of their time the tasks of clients that were cut off may take to end.
const GRACE_MS: Millis = 500;

/// What a shard is asked while its node drains.
pub(crate) enum DrainStep {
    /// Tell all clients to go, and cut off those that are there at this time. Answered once none is
    /// left.
    Clients(Millis, Sender<()>),
    /// Answered with what is under way, and what has happened since this was last asked.
    Rest(Sender<Rest>),
    /// End.
    End,
}

/// How far a shard has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing has happened, and nothing is under way.
    Quiet,
    /// Nothing has happened, and all that is under way is for other nodes to confirm.
    ForOthers,
    /// Something has happened, or is under way on this node.
    Busy,
}

/// Has the clients of all shards told to go; they have until `until`, which is `patience` from now.
pub(crate) fn clients(mailboxes: &[Mailbox], until: Millis, patience: Duration) {
    let (answer, answers) = channel();
    for mailbox in mailboxes {
        mailbox.send(Parcel::Drain(DrainStep::Clients(until, answer.clone())));
    }
    drop(answer);
    let deadline = Instant::now() + patience + Duration::from_millis(2 * GRACE_MS);
    // Who cannot answer any more has no clients.
    mailboxes
        .iter()
        .map_while(|_| answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok())
        .count();
}

/// Waits until nothing is under way on any shard. `is_cut_off`: whether there are other nodes, and none
/// of them is linked.
pub(crate) fn rest(mailboxes: &[Mailbox], is_cut_off: impl Fn() -> bool) {
    let deadline = Instant::now() + REST_TIMEOUT;
    let (mut rounds, mut cut_off_since) = (0, None);
    while rounds < 2 {
        let (answer, answers) = channel();
        for mailbox in mailboxes {
            mailbox.send(Parcel::Drain(DrainStep::Rest(answer.clone())));
        }
        drop(answer);
        let wait = || answers.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        // Who does not answer is busy.
        let answers: Vec<Rest> = mailboxes.iter().map(|_| wait().unwrap_or(Rest::Busy)).collect();
        rounds = if answers.iter().all(|rest| *rest == Rest::Quiet) { rounds + 1 } else { 0 };
        if rounds > 0 {
            continue;
        }
        let now = Instant::now();
        if now >= deadline {
            tracing::warn!(
                "shards still had something to do after {} s: dead letters on their way may be missing",
                REST_TIMEOUT.as_secs()
            );
            return;
        }
        match !answers.contains(&Rest::Busy) && is_cut_off() {
            true if now.duration_since(*cut_off_since.get_or_insert(now)) >= CUT_OFF_AFTER => {
                tracing::info!(
                    "no other node is left to confirm what was begun last: it stays in this node's log, and is decided when they are back"
                );
                return;
            }
            true => {}
            false => cut_off_since = None,
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// How far a shard has come with it.
#[derive(Default)]
pub(crate) struct Drain {
    /// When clients are cut off, and who hears that none is left.
    clients: Option<(Millis, Option<Sender<()>>)>,
    asked: Option<Sender<Rest>>,
    /// Something happened since that was asked last.
    is_active: bool,
    /// The time that partitions are told from now on.
    standing: Option<Now>,
    is_over: bool,
}

impl Drain {
    /// Takes up what is asked; true if it is the clients' turn to hear of it.
    pub(crate) fn begin(&mut self, step: DrainStep, now: Now) -> bool {
        match step {
            DrainStep::Clients(until, answer) => {
                self.clients = Some((until, Some(answer)));
                return true;
            }
            DrainStep::Rest(answer) => {
                self.standing.get_or_insert(now);
                self.asked = Some(answer);
            }
            DrainStep::End => self.is_over = true,
        }
        false
    }

    /// Whether the node drains: nobody comes in any more.
    pub(crate) fn is_begun(&self) -> bool {
        self.clients.is_some()
    }

    /// Whether the shard ends with this turn.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// When clients that are left are cut off.
    pub(crate) fn cut_off_at(&self) -> Option<Millis> {
        self.clients.as_ref().filter(|(_, answer)| answer.is_some()).map(|(until, _)| *until)
    }

    /// Something happens.
    pub(crate) fn note_activity(&mut self) {
        self.is_active = true;
    }

    /// The time that partitions are told.
    pub(crate) fn time(&self, now: Now) -> Now {
        self.standing.unwrap_or(now)
    }

    /// Whether time stands still.
    pub(crate) fn stands_still(&self) -> bool {
        self.standing.is_some()
    }

    /// A turn is over. `has_clients`, `under_way`: clients are there, what is under way. True if the
    /// shard ends.
    pub(crate) fn end_turn(&mut self, now: Millis, has_clients: bool, under_way: impl FnOnce() -> Rest) -> bool {
        if let Some((until, answer)) = &mut self.clients
            && (!has_clients || *until + GRACE_MS <= now)
            && let Some(answer) = answer.take()
        {
            // Who does not wait any more does not need it.
            let _ = answer.send(());
        }
        if let Some(answer) = self.asked.take() {
            let _ = answer.send(if std::mem::take(&mut self.is_active) { Rest::Busy } else { under_way() });
        }
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_in_which_something_has_happened_is_busy_though_all_that_is_left_is_for_others() {
        let mut drain = Drain::default();
        let mut asked = |has_happened: bool, under_way: Rest| {
            let (answer, answers) = channel();
            drain.begin(DrainStep::Rest(answer), Now { ms: 1, wall_ms: 1 });
            if has_happened {
                drain.note_activity();
            }
            assert!(!drain.end_turn(1, false, || under_way));
            answers.try_recv().ok()
        };
        assert_eq!(asked(true, Rest::ForOthers), Some(Rest::Busy));
        assert_eq!(asked(false, Rest::ForOthers), Some(Rest::ForOthers), "it is said once");
        assert_eq!(asked(true, Rest::Quiet), Some(Rest::Busy));
        assert_eq!(asked(false, Rest::Quiet), Some(Rest::Quiet));
        assert_eq!(asked(false, Rest::Busy), Some(Rest::Busy));
    }
}
