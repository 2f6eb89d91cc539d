//! The clock of a member of a group with others: a tick every [`TICK_MS`], and quicker for a while
//! once the link to the leader broke.
//!
//! A member stands for election after some ticks without its leader, and grants another one its vote
//! only after as many. A link breaks at once where a process dies, so that nobody needs to wait for
//! the time of all these ticks. Should the leader live, a majority still hears from it, and refuses.
//!
//! Ticks come at multiples of their pace since the node started, so that all members of a node have theirs at once, and an idle
//! node wakes for them once.

use crate::{Millis, TICK_MS};

/// A leader that has had nothing else to say for a while says that it is there with every so many ticks: five times in the
/// ten after which others stand for election. Everybody has everything then, and more would only wake idle nodes.
const HEARTBEAT_TICKS: Millis = 2;
/// A member whose tick is so late may have been voted out: the others stand for election after ten
/// ticks without a word of their leader, which may have said its last one two ticks before.
const STOOD_STILL_MS: Millis = 7 * TICK_MS;

/// The quick ticks.
const QUICK_MS: Millis = 10;
/// How many of them: three elections could have begun by then, as votes may be split.
const QUICK_TICKS: u32 = 60;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ticks {
    next: Option<Millis>,
    quick: u32,
    /// From when on the next whole tick is due.
    whole_at: Millis,
}

/// A tick. Elections count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    /// [`TICK_MS`] went by since the last whole one: what is to last for some time counts these.
    pub(crate) is_whole: bool,
    /// Leaders say with it that they are there, those of all groups at once.
    pub(crate) has_heartbeat: bool,
}

impl Ticks {
    /// For a member of a group with others, or of one alone, which has nobody to hear from.
    pub(crate) fn new(has_peers: bool) -> Ticks {
        Ticks { next: has_peers.then_some(0), quick: 0, whole_at: 0 }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.next
    }

    /// The link to the leader is gone.
    pub(crate) fn hurry(&mut self, now: Millis) {
        if let Some(next) = &mut self.next {
            (*next, self.quick) = (now.min(*next), QUICK_TICKS);
        }
    }

    /// Whether its next tick is so late that nobody may have heard of it for an election's time.
    pub(crate) fn stood_still(&self, now: Millis) -> bool {
        self.next.is_some_and(|at| now >= at + STOOD_STILL_MS)
    }

    /// The tick that is due, if one is; then it is counted as done. One that stood still makes up for the
    /// last tick that it missed, not for all.
    pub(crate) fn take(&mut self, now: Millis) -> Option<Tick> {
        let at = self.next.filter(|at| *at <= now)?;
        let pace = if self.quick > 0 { QUICK_MS } else { TICK_MS };
        self.quick = self.quick.saturating_sub(1);
        let whole = |time: Millis| time - time % pace;
        self.next = Some(whole(at + pace).max(whole(now)));
        let is_whole = at >= self.whole_at;
        if is_whole {
            self.whole_at = at - at % TICK_MS + TICK_MS;
        }
        Some(Tick { is_whole, has_heartbeat: (at / pace).is_multiple_of(HEARTBEAT_TICKS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_stood_still_catches_up_with_one_tick_and_one_in_a_hurry_ticks_often() {
        let mut ticks = Ticks::new(true);
        let taken = |ticks: &mut Ticks, now| std::iter::from_fn(|| ticks.take(now)).count();
        assert_eq!(taken(&mut ticks, 0), 1);
        assert_eq!(taken(&mut ticks, TICK_MS - 1), 0);
        assert_eq!(taken(&mut ticks, TICK_MS), 1);
        assert_eq!(taken(&mut ticks, 100 * TICK_MS), 2, "one that was due, and the last that was missed");
        ticks.hurry(100 * TICK_MS + 1);
        let began = 100 * TICK_MS;
        let quick: Vec<Tick> = (1..=680).filter_map(|ms| ticks.take(began + ms)).collect();
        assert!((60..=62).contains(&quick.len()), "{}", quick.len());
        let whole = quick.iter().filter(|tick| tick.is_whole).count();
        assert_eq!(whole, 4, "time goes no quicker");
        assert_eq!(Ticks::new(false).next(), None);
    }

    #[test]
    fn who_missed_an_election_s_time_of_ticks_stood_still() {
        let mut ticks = Ticks::new(true);
        assert!(ticks.take(0).is_some(), "the next is due after one tick");
        let late = TICK_MS + STOOD_STILL_MS;
        assert_eq!([TICK_MS, late - 1, late].map(|now| ticks.stood_still(now)), [false, false, true]);
        assert!(ticks.take(late).is_some_and(|tick| tick.is_whole));
        assert!(!ticks.stood_still(late), "it has ticked");
        assert!(!Ticks::new(false).stood_still(1 << 40), "who is alone was voted out by nobody");
    }

    #[test]
    fn members_that_came_at_different_times_or_hurried_tick_at_the_same_times() {
        for (came, hurried) in
            [(7, None), (TICK_MS - 1, Some(TICK_MS + 3)), (10 * TICK_MS + 77, Some(40 * TICK_MS + 1))]
        {
            let mut ticks = Ticks::new(true);
            for now in came..60 * TICK_MS {
                if hurried == Some(now) {
                    ticks.hurry(now);
                }
                let (is_first, is_quick) = (now == came, ticks.quick > 0);
                let took = ticks.take(now);
                if !is_first && !is_quick {
                    let expected = now.is_multiple_of(TICK_MS).then_some((now / TICK_MS).is_multiple_of(2));
                    let heartbeat = took.map(|tick| tick.has_heartbeat);
                    assert_eq!(heartbeat, expected, "at {now}, of one that came at {came}");
                }
                while is_first && ticks.take(now).is_some() {}
            }
        }
    }
}
