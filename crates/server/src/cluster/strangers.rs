//! Whoever connects to the port for other nodes and has not introduced himself: so many at a time, and
//! a line about the refused now and then.
//!
//! Invariant: strangers take bounded memory, and their lines do not fill the log. Who comes while
//! there are too many takes the place of whoever has waited longest at the address that has the most:
//! a node that introduces itself at once is let in, however many others sit there and say nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// So many are there at once.
const AT_ONCE_MAX: usize = 256;
/// There is a line about the refused at most this often.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Somebody who has not introduced himself yet.
#[derive(Debug)]
pub(super) struct Stranger {
    address: IpAddr,
    cut: Notify,
}

impl Stranger {
    /// Ends when another one takes its place.
    pub(super) async fn cut(&self) {
        self.cut.notified().await;
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// The one that has been there longest comes first.
    open: RefCell<VecDeque<Rc<Stranger>>>,
    /// Refused since the last line.
    untold: Cell<u64>,
    told_at: Cell<Option<Instant>>,
}

impl Strangers {
    /// Somebody connected from `address`.
    pub(super) fn enter(&self, address: IpAddr) -> Rc<Stranger> {
        let mut open = self.open.borrow_mut();
        if open.len() >= AT_ONCE_MAX {
            let crowded = |at: &usize| open.iter().filter(|other| other.address == open[*at].address).count();
            // Of addresses that have equally many the one that was there first.
            let longest = (0..open.len()).rev().max_by_key(crowded).and_then(|at| open.remove(at));
            longest.inspect(|stranger| stranger.cut.notify_one());
        }
        let stranger = Rc::new(Stranger { address, cut: Notify::new() });
        open.push_back(stranger.clone());
        stranger
    }

    /// Somebody who had entered is known now, or gone.
    pub(super) fn leave(&self, stranger: &Rc<Stranger>) {
        self.open.borrow_mut().retain(|other| !Rc::ptr_eq(other, stranger));
    }

    /// Somebody is refused; says for how many there is to be a line, if there is to be one now.
    pub(super) fn refuse(&self, now: Instant) -> Option<u64> {
        self.untold.set(self.untold.get() + 1);
        if self.told_at.get().is_some_and(|at| now < at + TELL_EVERY) {
            return None;
        }
        self.told_at.set(Some(now));
        Some(self.untold.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn is_cut(stranger: &Stranger) -> bool {
        let mut cut = std::pin::pin!(stranger.cut());
        cut.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn whoever_comes_last_is_let_in_and_the_crowd_loses_its_oldest() {
        let (strangers, begin) = (Strangers::default(), Instant::now());
        let [node, crowd] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let first = strangers.enter(node);
        let many: Vec<_> = (0..1_000).map(|_| strangers.enter(crowd)).collect();
        assert_eq!(strangers.open.borrow().len(), AT_ONCE_MAX);
        let cut = many.iter().filter(|stranger| is_cut(stranger)).count();
        assert_eq!((cut, is_cut(&first)), (1_000 + 1 - AT_ONCE_MAX, false));
        assert!(
            many[..cut].iter().all(|stranger| !strangers.open.borrow().iter().any(|one| Rc::ptr_eq(one, stranger)))
        );
        strangers.leave(&first);
        strangers.leave(&many[0]);
        assert_eq!(strangers.open.borrow().len(), AT_ONCE_MAX - 1);
        assert_eq!(strangers.refuse(begin), Some(1));
        assert_eq!((0..99).filter_map(|_| strangers.refuse(begin)).count(), 0);
        assert_eq!(strangers.refuse(begin + TELL_EVERY), Some(100));
    }
}
