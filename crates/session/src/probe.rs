//! How long publishes take, measured on a few of them.
//!
//! Invariant: at most one publish of a connection is measured at a time, and at most one in [`TURNS`]
//! turns, so that a clock is read a few times a turn and never a message. Who publishes in one turn of
//! so many, always in the same one, is measured like others.

use broker::ChannelKey;

/// At most one publish in so many turns is measured.
const TURNS: u32 = 4;

/// What a connection measures.
#[derive(Debug, Default)]
pub(super) struct Probe {
    turns: u32,
    /// The next publish is measured.
    pub(super) is_armed: bool,
    /// What waits for its confirm: when it was begun.
    awaited: Option<(ChannelKey, u64, u64)>,
}

impl Probe {
    /// A turn begins.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        self.is_armed = (self.is_armed || self.turns.is_multiple_of(TURNS)) && self.awaited.is_none();
    }

    /// A publish that was begun at `begin_us` has gone to its partitions.
    pub(super) fn sent(&mut self, channel: ChannelKey, publish_seq: u64, begin_us: u64) {
        self.awaited = (publish_seq != 0).then_some((channel, publish_seq, begin_us));
    }

    /// A partition has confirmed or refused publishes: when the measured one was begun, if it is among them
    /// and no other partition has yet to speak of it, which `awaits` is asked.
    #[inline]
    pub(super) fn answered(
        &mut self,
        channel: ChannelKey,
        first: u64,
        count: u64,
        awaits: impl FnOnce(u64) -> bool,
    ) -> Option<u64> {
        let (of, seq, begin_us) = self.awaited?;
        if of != channel || seq < first || seq - first >= count || awaits(seq) {
            return None;
        }
        self.awaited = None;
        Some(begin_us)
    }

    /// A channel is gone.
    pub(super) fn forget(&mut self, channel: ChannelKey) {
        self.awaited = self.awaited.filter(|(of, _, _)| *of != channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_publishes_always_in_the_same_turn_of_four_is_measured() {
        let mut probe = Probe::default();
        for at in 0..TURNS {
            let mut measured = 0;
            for turn in 0..TURNS * 100 {
                probe.begin_turn();
                if turn % TURNS == at {
                    measured += u32::from(std::mem::take(&mut probe.is_armed));
                }
            }
            assert!((99..=100).contains(&measured), "{at}: {measured}");
        }
    }

    #[test]
    fn one_publish_is_measured_until_its_confirm_and_the_next_one_after_it() {
        let (mut probe, channel) = (Probe::default(), ChannelKey(7));
        let armed = |probe: &mut Probe| {
            (0..TURNS).any(|_| {
                probe.begin_turn();
                probe.is_armed
            })
        };
        assert!(armed(&mut probe));
        probe.sent(channel, 5, 100);
        assert!(!armed(&mut probe), "one at a time");
        let (all, some) = (|_| false, |_| true);
        assert_eq!(probe.answered(channel, 1, 4, all), None);
        assert_eq!(probe.answered(ChannelKey(8), 5, 1, all), None);
        assert_eq!(probe.answered(channel, 3, 3, some), None, "another partition has it too");
        assert_eq!(probe.answered(channel, 3, 3, all), Some(100));
        assert_eq!(probe.answered(channel, 3, 3, all), None);
        probe.sent(channel, 9, 200);
        probe.forget(channel);
        assert!(armed(&mut probe), "its channel is gone");
        probe.sent(channel, 0, 300);
        assert!(armed(&mut probe), "nobody waits for a confirm");
    }
}
