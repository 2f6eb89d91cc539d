//! Turns that cost many times what they might: a message that goes to tens of thousands of queues is handled at once, however long
//! that takes, and many connections may have one each.
//!
//! Invariant: between two looks at all sockets of the shard such connections do about as much together as one turn, in the order
//! in which they came. Who has little waits behind one of their messages, and not behind one of each of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// See the module; of one shard.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// How often all sockets were looked at while somebody waited.
    looks: Arc<AtomicU64>,
    /// At which of these looks `spent` began.
    spent_at: Cell<u64>,
    /// The work of such turns since then.
    spent: Cell<usize>,
    /// The last place that was given.
    last: Cell<u64>,
    /// The places of those that wait.
    waiting: RefCell<BTreeSet<u64>>,
}

/// The place of a connection among those that wait; 0: it does not wait.
#[derive(Debug, Default)]
pub(crate) struct Place(u64);

impl Place {
    pub(crate) fn is_taken(&self) -> bool {
        self.0 != 0
    }
}

impl Turns {
    /// Whether a connection whose last turn cost so much may have another one now. If not, it has a place from now on, and
    /// has to ask again behind a look at all sockets, with [`Turns::behind_a_look`], or to give the place up.
    pub(crate) fn may_go(&self, place: &mut Place) -> bool {
        let looks = self.looks.load(Ordering::Relaxed);
        if self.spent_at.replace(looks) != looks {
            self.spent.set(0);
        }
        let waiting = &mut *self.waiting.borrow_mut();
        if place.0 == 0 {
            place.0 = self.last.get() + 1;
            self.last.set(place.0);
            waiting.insert(place.0);
        }
        let may_go = self.spent.get() < session::TURN_MAX && waiting.first() == Some(&place.0);
        if may_go {
            waiting.remove(&place.0);
            *place = Place::default();
        }
        may_go
    }

    /// A turn cost many times what it might.
    pub(crate) fn spend(&self, work: usize) {
        self.spent.set(self.spent.get().saturating_add(work));
    }

    /// It does not wait any more, or for something else.
    pub(crate) fn leave(&self, place: &mut Place) {
        if place.0 != 0 {
            self.waiting.borrow_mut().remove(&place.0);
            *place = Place::default();
        }
    }

    /// What wakes a task behind a look at all sockets: to be given to the runtime's yield.
    pub(crate) fn behind_a_look(&self, waker: &Waker) -> Waker {
        let (looks, at) = (self.looks.clone(), self.looks.load(Ordering::Relaxed));
        Waker::from(Arc::new(Behind { looks, at, waker: waker.clone() }))
    }
}

struct Behind {
    looks: Arc<AtomicU64>,
    at: u64,
    waker: Waker,
}

impl Wake for Behind {
    /// One look wakes all who wait, and counts once.
    fn wake(self: Arc<Self>) {
        let _ = self.looks.compare_exchange(self.at, self.at + 1, Ordering::Relaxed, Ordering::Relaxed);
        self.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some connections that always have another message that costs `work` each, and who went behind each look.
    fn went(turns: &Turns, places: &mut [Place], work: usize, looks: usize) -> Vec<Vec<usize>> {
        let look = |_| {
            let mut went = Vec::new();
            let mut wakers = Vec::new();
            for (number, place) in places.iter_mut().enumerate().rev() {
                if turns.may_go(place) {
                    turns.spend(work);
                    went.push(number);
                }
                wakers.push(turns.behind_a_look(Waker::noop()));
            }
            wakers.into_iter().for_each(Waker::wake);
            went
        };
        (0..looks).map(look).collect()
    }

    #[test]
    fn of_many_that_always_have_much_one_goes_behind_each_look_and_all_of_them_in_turn() {
        let (turns, mut places) = (Turns::default(), [(); 3].map(|()| Place::default()));
        let went = went(&turns, &mut places, session::TURN_MAX, 7);
        assert!(went.iter().all(|went| went.len() == 1), "{went:?}");
        let went: Vec<usize> = went.into_iter().flatten().collect();
        assert_eq!(went, [2, 1, 0, 2, 1, 0, 2]);
    }

    #[test]
    fn several_go_behind_one_look_where_all_of_them_are_one_turn() {
        let (turns, mut places) = (Turns::default(), [(); 8].map(|()| Place::default()));
        let went = went(&turns, &mut places, session::TURN_MAX / 4, 4);
        assert!(went.iter().all(|went| went.len() == 4), "{went:?}");
    }

    #[test]
    fn nobody_waits_for_one_that_has_gone_or_waits_for_something_else() {
        let turns = Turns::default();
        let (mut first, mut second) = (Place::default(), Place::default());
        turns.spend(session::TURN_MAX);
        assert!(!turns.may_go(&mut first) && !turns.may_go(&mut second));
        turns.behind_a_look(Waker::noop()).wake();
        assert!(!turns.may_go(&mut second), "it is not the first");
        turns.leave(&mut first);
        assert!(turns.may_go(&mut second));
        turns.leave(&mut second);
        assert!(turns.waiting.borrow().is_empty());
    }
}
