//! This node's lease on what it knows of the topology, for the threads that route by it (`node::lease` says how it is had).
//!
//! Invariant: who waits until it does is told, whichever of the two came first: the waiting or the knowledge.

use amqp::Millis;
use node::Knowledge;
use session::TopologyKnown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct TopologyLease {
    /// Milliseconds since the node started.
    until: AtomicU64,
    /// No majority has said so for long.
    is_vain: AtomicBool,
    /// And the log says so.
    is_vain_told: AtomicBool,
    /// Some connection waits for it.
    is_awaited: AtomicBool,
    /// Somebody routed by it since [`TopologyLease::take_used`].
    is_used: AtomicBool,
    /// And somebody waits for it, and has had it asked for.
    is_asked: AtomicBool,
}

impl TopologyLease {
    /// Of a node that has yet to ask others; without others it knows all for ever.
    pub(crate) fn new(has_peers: bool) -> TopologyLease {
        let until = AtomicU64::new(if has_peers { 0 } else { Millis::MAX });
        let [is_vain, is_vain_told, is_awaited, is_used, is_asked] = [false; 5].map(AtomicBool::new);
        TopologyLease { until, is_vain, is_vain_told, is_awaited, is_used, is_asked }
    }

    /// It knows so much from now on. To be told after what it knows has been applied. The log says when no majority has answered for long,
    /// and when one does again.
    pub(crate) fn note(&self, knowledge: Knowledge) {
        match knowledge {
            Knowledge::Until(until) => {
                self.until.store(until, Ordering::SeqCst);
                self.is_vain.store(false, Ordering::SeqCst);
                if until > 0 && self.is_vain_told.swap(false, Ordering::Relaxed) {
                    tracing::info!("a majority of the nodes answers again");
                }
            }
            Knowledge::Vain => {
                self.is_vain.store(true, Ordering::SeqCst);
                if !self.is_vain_told.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "no majority of the nodes answers: declares, binds and deletes wait for one, for ten seconds, and messages \
                         that no queue is known for are refused"
                    );
                }
            }
        }
    }

    /// How it stands at a time that was read after what is to be routed had come.
    #[inline]
    pub(crate) fn at(&self, now: Millis) -> TopologyKnown {
        // All threads read this line, and few write to it.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        if now < self.until.load(Ordering::Acquire) { TopologyKnown::All } else { self.not_all() }
    }

    #[cold]
    fn not_all(&self) -> TopologyKnown {
        if self.is_vain.load(Ordering::SeqCst) { TopologyKnown::Vain } else { TopologyKnown::NotYet }
    }

    /// Whether a connection has to wait; then somebody hears of it once it has not ([`TopologyLease::take_awaited`]). `ask`
    /// has whoever asks other nodes look, who may not have asked for a while.
    pub(crate) fn is_awaited_at(&self, now: Millis, ask: impl FnOnce()) -> bool {
        // First, so that whoever notes the knowledge after the look finds it.
        self.is_awaited.store(true, Ordering::SeqCst);
        let waits = now >= self.until.load(Ordering::SeqCst) && !self.is_vain.load(Ordering::SeqCst);
        if waits && !self.is_asked.swap(true, Ordering::SeqCst) {
            ask();
        }
        waits
    }

    /// Whether somebody has routed by it since this was last asked, or waits for it.
    pub(crate) fn take_used(&self) -> bool {
        let is_asked = self.is_asked.swap(false, Ordering::SeqCst);
        self.is_used.swap(false, Ordering::Relaxed) || is_asked
    }

    /// Whether connections are to be told that they go on. True once.
    #[inline]
    pub(crate) fn take_awaited(&self, now: Millis) -> bool {
        self.is_awaited.load(Ordering::SeqCst)
            && self.at(now) != TopologyKnown::NotYet
            && self.is_awaited.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_others_knows_all_until_its_lease_ends_and_says_who_is_to_go_on() {
        let lease = TopologyLease::new(true);
        assert_eq!(lease.at(5), TopologyKnown::NotYet);
        assert!(!lease.take_awaited(5), "nobody waits");
        assert!(lease.is_awaited_at(5, || {}));
        assert!(!lease.take_awaited(5), "it does not know yet");
        lease.note(Knowledge::Until(400));
        assert_eq!((lease.at(399), lease.at(400)), (TopologyKnown::All, TopologyKnown::NotYet));
        assert!(lease.take_awaited(6) && !lease.take_awaited(6), "once");
        assert!(!lease.is_awaited_at(399, || {}), "it knew before anybody waited");
        assert!(lease.take_awaited(399), "and whoever came in between goes on");
        lease.note(Knowledge::Vain);
        assert!(!lease.is_awaited_at(500, || {}), "there is no use in waiting");
        assert_eq!((lease.at(399), lease.at(500)), (TopologyKnown::All, TopologyKnown::Vain));
        lease.note(Knowledge::Until(900));
        assert_eq!((lease.at(899), lease.at(900)), (TopologyKnown::All, TopologyKnown::NotYet));
    }

    #[test]
    fn a_node_alone_knows_all() {
        assert_eq!(TopologyLease::new(false).at(Millis::MAX - 1), TopologyKnown::All);
    }

    #[test]
    fn who_asks_other_nodes_hears_once_that_somebody_waits_and_that_it_is_used() {
        let (lease, asked) = (TopologyLease::new(true), std::cell::Cell::new(0));
        let ask = || asked.set(asked.get() + 1);
        assert!(!lease.take_used(), "nobody was here");
        assert!(lease.is_awaited_at(5, ask) && lease.is_awaited_at(5, ask));
        assert_eq!(asked.get(), 1);
        assert!(lease.take_used() && !lease.take_used());
        assert!(lease.is_awaited_at(5, ask), "it does not know yet");
        assert_eq!(asked.get(), 2, "and may have looked before this one came");
        lease.take_used();
        lease.note(Knowledge::Until(400));
        assert!(!lease.is_awaited_at(399, ask));
        assert_eq!((asked.get(), lease.take_used()), (2, false), "it is there");
        lease.at(399);
        assert!(lease.take_used() && !lease.take_used());
    }
}
