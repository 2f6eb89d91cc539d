//! What channels of this shard have settled, kept until the leader of its partition says that it is
//! applied: a leader that goes may have it in no log, and the next one is told again.
//!
//! ```text
//!   settled ──▶ runs ── told to one leader in one term, over one link, in order ──▶
//!                 ▲                                  │ every MARK_EVERY runs a mark
//!                 └── forgotten up to the mark ◀── done
//! ```
//!
//! Invariants: what is kept of a partition was told to `told` as a whole and in its order, or is due to
//! be; so whoever tells a leader something else first tells it what is due. Telling it twice does no
//! harm: what has ended is not there any more, and what somebody else was given stays as it is.
//! Absent on purpose: what is given back, which comes back with a change of leaders anyway.

use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::command::Disposition;
use partition::{Command, RequestId};
use std::collections::VecDeque;

/// So many runs are told until a mark asks whether they are applied: little to tell again, and little
/// to ask for.
const MARK_EVERY: u64 = 256;
/// Runs that are kept of a partition at most. Beyond, the oldest are forgotten, and lost where their
/// leader goes now: it has not answered for longer than it is given.
const RUNS_MAX: usize = 1 << 16;
/// A leader that does not take its office yet is told again after this long.
pub(crate) const AGAIN_US: u64 = 50_000;
/// The numbers of marks have this bit, which those of the shard's other requests have not.
const MARK_BIT: u64 = 1 << 63;

/// A leader in one term, as it is reached: over which link, or 0 on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sitting {
    pub(crate) leader: NodeNumber,
    pub(crate) term: u32,
    pub(crate) epoch: u64,
}

/// Messages in a row of one holder that end in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    queue: QueueId,
    holder: ConsumerKey,
    first: u64,
    count: u64,
    outcome: Disposition,
}

impl Run {
    /// What a command settles for good, if it does.
    pub(crate) fn of(command: &Command) -> Option<Run> {
        match *command {
            Command::Settle { queue, holder, first, count, outcome } => {
                let is_end = matches!(outcome, Disposition::Ack | Disposition::Discard);
                is_end.then_some(Run { queue, holder, first, count, outcome })
            }
            _ => None,
        }
    }

    /// The command that says so again, to a leader that may have given the messages to their holder once
    /// more meanwhile: in nobody's name, so that what it gave out stays in hand.
    pub(crate) fn command_again(self) -> Command {
        Run { holder: ConsumerKey::get(ChannelKey::NOBODY), ..self }.command()
    }

    /// The command that says so.
    pub(crate) fn command(self) -> Command {
        let Run { queue, holder, first, count, outcome } = self;
        Command::Settle { queue, holder, first, count, outcome }
    }

    /// Takes in what follows right behind it. False if that does not.
    fn extend(&mut self, next: &Run) -> bool {
        let same = (self.queue, self.holder, self.outcome) == (next.queue, next.holder, next.outcome);
        let follows = same && self.first + self.count == next.first;
        self.count += if follows { next.count } else { 0 };
        follows
    }
}

/// What is kept of one partition.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    runs: VecDeque<Run>,
    /// How many runs were forgotten: the number of the first that is kept.
    first: u64,
    /// The mark under way, and the number of the first run behind it.
    mark: Option<(RequestId, u64)>,
    /// The number of the first run that nobody was told yet.
    untold: u64,
    /// Who was told all of it but what is due.
    told: Option<Sitting>,
    is_due: bool,
    /// It is not told again by itself before this time.
    again_at_us: u64,
}

impl Kept {
    /// Keeps a run.
    fn keep(&mut self, run: Run, is_told: bool) {
        let end = self.first + self.runs.len() as u64;
        let is_marked = self.mark.is_some_and(|(_, past)| past == end);
        // What was told is told again in another way.
        let is_apart = is_marked || !is_told && self.untold == end;
        if !is_apart && self.runs.back_mut().is_some_and(|last| last.extend(&run)) {
            return;
        }
        if self.runs.len() == RUNS_MAX {
            self.runs.pop_front();
            self.first += 1;
        }
        self.runs.push_back(run);
    }

    /// The number for a mark behind all of it, if one is wanted: none is under way, and much was told
    /// since, or it is not known yet that this leader took its office.
    fn take_mark(&mut self, last: &mut u64, is_new: bool) -> Option<RequestId> {
        if self.mark.is_some() || !(is_new || self.runs.len() as u64 >= MARK_EVERY) {
            return None;
        }
        *last += 1;
        let request = RequestId(MARK_BIT | *last);
        self.mark = Some((request, self.first + self.runs.len() as u64));
        Some(request)
    }

    fn is_told(&self, now: Option<Sitting>) -> bool {
        !self.is_due && now.is_some() && self.told == now
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Settles {
    kept: HashMap<PartitionId, Kept, FixedState>,
    last_mark: u64,
    has_due: bool,
    /// As of which changes of leaders and links all was looked at.
    looked_at: Option<(u64, u64)>,
}

/// How a run goes on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Behind what this leader was told before; with a mark behind it, perhaps.
    Goes(Option<RequestId>),
    /// With all that is due.
    IsDue,
}

impl Settles {
    /// Keeps what was settled. `now`: who leads, and can be reached.
    pub(crate) fn keep(&mut self, partition: PartitionId, run: Run, now: Option<Sitting>) -> Way {
        let kept = self.kept.entry(partition).or_default();
        let is_told = kept.is_told(now);
        kept.keep(run, is_told);
        if is_told {
            kept.untold = kept.first + kept.runs.len() as u64;
            return Way::Goes(kept.take_mark(&mut self.last_mark, false));
        }
        (kept.is_due, self.has_due) = (true, true);
        Way::IsDue
    }

    /// Whether something of a partition is to be told before anything else.
    #[inline]
    pub(crate) fn is_due(&self, partition: PartitionId, now: impl FnOnce() -> Option<Sitting>) -> bool {
        match self.kept.get(&partition) {
            Some(kept) if !kept.runs.is_empty() => !kept.is_told(now()),
            _ => false,
        }
    }

    /// Hands out all of a partition, to be told to this leader, how many of them again, and the mark
    /// behind it. To be given back by [`Settles::give_back`].
    pub(crate) fn take_due(
        &mut self,
        partition: PartitionId,
        now: Sitting,
    ) -> (VecDeque<Run>, usize, Option<RequestId>) {
        let Some(kept) = self.kept.get_mut(&partition) else { return (VecDeque::new(), 0, None) };
        let again = usize::try_from(kept.untold.saturating_sub(kept.first)).unwrap_or(usize::MAX);
        kept.untold = kept.first + kept.runs.len() as u64;
        (kept.told, kept.is_due) = (Some(now), false);
        let mark = kept.take_mark(&mut self.last_mark, true);
        (std::mem::take(&mut kept.runs), again, mark)
    }

    /// They were told.
    pub(crate) fn give_back(&mut self, partition: PartitionId, runs: VecDeque<Run>) {
        if let Some(kept) = self.kept.get_mut(&partition) {
            kept.runs = runs;
        }
    }

    /// A mark was answered: what stands before it is applied, or `is_done` says that nobody knows. The
    /// next mark, and whom it is for, if one is wanted.
    pub(crate) fn answered(
        &mut self,
        request: RequestId,
        is_done: bool,
        now_us: u64,
    ) -> Option<(PartitionId, Sitting, RequestId)> {
        let found = self.kept.iter_mut().find(|(_, kept)| kept.mark.is_some_and(|(mark, _)| mark == request));
        let (partition, kept) = found?;
        let (_, past) = kept.mark.take().expect("it was looked at");
        if !is_done {
            (kept.is_due, kept.again_at_us, self.has_due) = (true, now_us + AGAIN_US, true);
            return None;
        }
        let done = usize::try_from(past.saturating_sub(kept.first)).unwrap_or(usize::MAX).min(kept.runs.len());
        kept.runs.drain(..done);
        kept.first += done as u64;
        if kept.runs.is_empty() {
            kept.is_due = false;
        }
        let told = kept.told.filter(|_| !kept.is_due)?;
        kept.take_mark(&mut self.last_mark, false).map(|mark| (*partition, told, mark))
    }

    /// Whether a request is a mark.
    pub(crate) fn is_mark(request: RequestId) -> bool {
        request.0 & MARK_BIT != 0
    }

    /// Whether time alone may bring on what is due.
    pub(crate) fn has_due(&self) -> bool {
        self.has_due
    }

    /// The partitions of which something is to be told by itself, lowest first, as of these changes of
    /// leaders and links.
    pub(crate) fn due(
        &mut self,
        changes: (u64, u64),
        now_us: u64,
        sitting: impl Fn(PartitionId) -> Option<Sitting>,
    ) -> Vec<PartitionId> {
        if !self.has_due && self.looked_at == Some(changes) {
            return Vec::new();
        }
        (self.looked_at, self.has_due) = (Some(changes), false);
        let mut due = Vec::new();
        for (partition, kept) in self.kept.iter_mut().filter(|(_, kept)| !kept.runs.is_empty()) {
            let now = sitting(*partition);
            if kept.is_told(now) {
                continue;
            }
            (kept.is_due, self.has_due) = (true, true);
            if now.is_some() && (kept.told != now || kept.again_at_us <= now_us) {
                due.push(*partition);
            }
        }
        due.sort_unstable();
        due
    }

    pub(crate) fn trim(&mut self) {
        self.kept.retain(|_, kept| !kept.runs.is_empty() || kept.mark.is_some());
        self.kept.values_mut().for_each(|kept| kept.runs.shrink_to(MARK_EVERY as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(3);

    fn ack(first: u64, count: u64) -> Run {
        let holder = ConsumerKey { channel: ChannelKey(7), number: 1 };
        Run { queue: QueueId(1), holder, first, count, outcome: Disposition::Ack }
    }

    fn sitting(leader: u32, term: u32) -> Option<Sitting> {
        Some(Sitting { leader: NodeNumber(leader), term, epoch: 0 })
    }

    /// Tells a leader all that is due.
    fn tell(settles: &mut Settles, now: Option<Sitting>) -> (Vec<Run>, Option<RequestId>) {
        let (runs, _, mark) = settles.take_due(P, now.expect("somebody leads"));
        settles.give_back(P, runs.clone());
        (runs.into(), mark)
    }

    #[test]
    fn what_is_settled_is_kept_until_its_mark_is_answered() {
        let (mut settles, now) = (Settles::default(), sitting(1, 5));
        assert_eq!(settles.keep(P, ack(1, 1), now), Way::IsDue, "nobody knows whether it took its office");
        let (runs, mark) = tell(&mut settles, now);
        assert_eq!(runs, [ack(1, 1)]);
        assert_eq!(settles.keep(P, ack(2, 1), now), Way::Goes(None));
        assert_eq!(settles.keep(P, ack(3, 2), now), Way::Goes(None));
        assert_eq!(settles.answered(mark.expect("the first is marked"), true, 0), None);
        assert_eq!(tell(&mut settles, sitting(2, 6)).0, [ack(2, 3)], "what stood behind the mark, in one run");
    }

    #[test]
    fn much_that_was_told_is_marked_and_one_mark_at_a_time_is_under_way() {
        let (mut settles, now) = (Settles::default(), sitting(1, 5));
        settles.keep(P, ack(1, 1), now);
        let (_, first) = tell(&mut settles, now);
        let marks = (1..=2 * MARK_EVERY).filter(|n| settles.keep(P, ack(10 * n, 1), now) != Way::Goes(None)).count();
        assert_eq!(marks, 0, "the first is not answered");
        let next = settles.answered(first.expect("the first is marked"), true, 0).expect("there is much behind it");
        assert_eq!((next.0, Some(next.1)), (P, now));
        assert_eq!(settles.answered(next.2, true, 0), None, "nothing is left");
        assert_eq!(settles.answered(next.2, true, 0), None, "and no mark");
        assert!(!settles.is_due(P, || sitting(2, 6)));
    }

    #[test]
    fn the_next_leader_the_same_in_a_later_term_and_one_over_another_link_are_told_again() {
        let now = sitting(1, 5);
        for (later, is_due) in [
            (now, false),
            (sitting(2, 5), true),
            (sitting(1, 6), true),
            (now.map(|now| Sitting { epoch: 4, ..now }), true),
            (None, true),
        ] {
            let mut settles = Settles::default();
            settles.keep(P, ack(1, 1), now);
            tell(&mut settles, now);
            assert_eq!(settles.is_due(P, || later), is_due, "{later:?}");
            let due = settles.due((1, 1), 0, |_| later);
            assert_eq!(due, if is_due && later.is_some() { vec![P] } else { Vec::new() }, "{later:?}");
            assert_eq!(settles.has_due(), is_due, "{later:?}");
        }
    }

    #[test]
    fn a_leader_that_has_not_taken_its_office_is_told_again_after_a_while() {
        let (mut settles, now) = (Settles::default(), sitting(1, 5));
        settles.keep(P, ack(1, 1), now);
        let (_, mark) = tell(&mut settles, now);
        settles.answered(mark.expect("it is marked"), false, 1_000);
        assert!(settles.is_due(P, || now), "before anything else at once");
        assert!(settles.due((0, 0), 1_000, |_| now).is_empty(), "by itself later");
        assert!(settles.has_due());
        assert_eq!(settles.due((0, 0), 1_000 + AGAIN_US, |_| now), [P]);
        assert_eq!(tell(&mut settles, now).0, [ack(1, 1)]);
        assert!(settles.due((0, 0), u64::MAX, |_| now).is_empty());
    }

    #[test]
    fn of_a_leader_that_never_answers_the_oldest_are_forgotten() {
        let (mut settles, now) = (Settles::default(), sitting(1, 5));
        for n in 0..RUNS_MAX as u64 + 3 {
            settles.keep(P, ack(10 * n, 1), now);
        }
        let (runs, mark) = tell(&mut settles, now);
        assert_eq!((runs.len(), runs[0]), (RUNS_MAX, ack(30, 1)));
        assert_eq!(settles.answered(mark.expect("it is marked"), true, 0), None);
        assert!(!settles.is_due(P, || None), "what was forgotten is not counted as done");
    }

    #[test]
    fn what_was_told_is_told_again_in_nobody_s_name_and_what_was_not_in_its_holder_s() {
        let (mut settles, now) = (Settles::default(), sitting(1, 5));
        settles.keep(P, ack(1, 1), now);
        tell(&mut settles, now);
        settles.keep(P, ack(2, 1), now);
        settles.keep(P, ack(3, 1), None);
        let (runs, again, _) = settles.take_due(P, sitting(2, 6).expect("it leads"));
        assert_eq!((runs, again), ([ack(1, 1), ack(2, 1), ack(3, 1)].into(), 2), "one run for each way");
        let Command::Settle { holder, .. } = ack(1, 1).command_again() else { panic!("it settles") };
        assert_eq!(holder.channel, ChannelKey::NOBODY);
    }

    #[test]
    fn only_what_ends_is_kept() {
        let settle = |outcome| Run { outcome, ..ack(1, 1) }.command();
        let kept = [Disposition::Ack, Disposition::Nack, Disposition::Reject, Disposition::Discard]
            .map(|outcome| Run::of(&settle(outcome)).is_some());
        assert_eq!(kept, [true, false, false, true]);
    }
}
