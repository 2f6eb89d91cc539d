//! The clock of a member of a group with others: a tick every [`TICK_MS`], and quicker for a while
//! once the link to the leader broke.
//!
//! A member stands for election after some ticks without its leader, and grants another one its vote
//! only after as many. A link breaks at once where a process dies, so that nobody needs to wait for
//! the time of all these ticks. Should the leader live, a majority still hears from it, and refuses.

use crate::{Millis, TICK_MS};

/// A member whose tick is so late may have been voted out: the others stand for election after ten
/// ticks without a word of their leader, which says something with every tick of its own.
const STOOD_STILL_MS: Millis = 8 * TICK_MS;

/// The quick ticks.
const QUICK_MS: Millis = 10;
/// How many of them: three elections could have begun by then, as votes may be split.
const QUICK_TICKS: u32 = 60;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ticks {
    next: Option<Millis>,
    quick: u32,
    /// When the next whole tick is due.
    whole_at: Millis,
}

/// A tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    /// [`TICK_MS`] went by since the last whole one: what is to last for some time counts these.
    Whole,
    /// Elections count it.
    Quick,
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
        self.next = Some((at + pace).max((now + 1).saturating_sub(pace)));
        let tick = if now >= self.whole_at { Tick::Whole } else { Tick::Quick };
        if tick == Tick::Whole {
            self.whole_at = now + TICK_MS;
        }
        Some(tick)
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
        let whole = quick.iter().filter(|tick| **tick == Tick::Whole).count();
        assert_eq!(whole, 4, "time goes no quicker");
        assert_eq!(Ticks::new(false).next(), None);
    }

    #[test]
    fn who_missed_an_election_s_time_of_ticks_stood_still() {
        let mut ticks = Ticks::new(true);
        assert_eq!(ticks.take(0), Some(Tick::Whole), "the next is due after one tick");
        let late = TICK_MS + STOOD_STILL_MS;
        assert_eq!([TICK_MS, late - 1, late].map(|now| ticks.stood_still(now)), [false, false, true]);
        assert_eq!(ticks.take(late), Some(Tick::Whole));
        assert!(!ticks.stood_still(late), "it has ticked");
        assert!(!Ticks::new(false).stood_still(1 << 40), "who is alone was voted out by nobody");
    }
}
