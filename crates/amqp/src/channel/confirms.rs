//! Confirms of one channel: which publishes are answered, and how few frames say so.
//!
//! ```text
//!   base                    base + ready          .. + window.len()
//!   | acked in order, unsent | pending A A S N pending A |  not known yet
//! ```
//!
//! Invariant: `base` is the lowest publish whose confirm is not on its way to the client; the
//! publishes from `base` on are `ready` acked ones in a row, then those of `window`, whose first is
//! not acked in order. A publish is confirmed once; a second time is a bug of the caller.

use std::collections::VecDeque;

use crate::connection::answer::Confirm;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Acked,
    Nacked,
    /// Told to the client before its turn; the publish before it is still pending.
    Sent(Confirm),
}

/// One `basic.ack` or `basic.nack` to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmFrame {
    /// Ack or nack.
    pub confirm: Confirm,
    /// The publish, or the last of several.
    pub publish_seq: u64,
    /// Whether all unconfirmed publishes before it are meant too.
    pub multiple: bool,
}

/// The publishes of a channel in confirm mode that wait for their confirm.
#[derive(Debug)]
pub struct Confirms {
    next_seq: u64,
    base: u64,
    ready: u64,
    window: VecDeque<State>,
    /// Publishes of the window that were confirmed since the last flush.
    fresh: Vec<u64>,
}

impl Default for Confirms {
    fn default() -> Self {
        Self { next_seq: 1, base: 1, ready: 0, window: VecDeque::new(), fresh: Vec::new() }
    }
}

impl Confirms {
    /// The number of the next publish, from 1.
    #[inline]
    pub fn next_publish_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// How many publishes have no confirm on its way.
    pub fn unconfirmed(&self) -> u64 {
        self.next_seq - self.base
    }

    /// The oldest publish without an answer, if there is one.
    pub fn oldest_unconfirmed(&self) -> Option<u64> {
        let oldest = self.base + self.ready;
        (oldest < self.next_seq).then_some(oldest)
    }

    /// Whether [`flush`](Self::flush) may have something to say.
    pub fn has_unsent(&self) -> bool {
        self.ready > 0 || !self.fresh.is_empty()
    }

    /// Notes that `count` publishes in a row are answered. Nothing is said before [`flush`](Self::flush).
    #[inline]
    pub fn confirm_run(&mut self, first: u64, count: u64, confirm: Confirm) {
        if first == self.base + self.ready && self.window.is_empty() && confirm == Confirm::Ack {
            assert!(first + count <= self.next_seq, "a publish is confirmed after it came");
            self.ready += count;
            return;
        }
        (first..first + count).for_each(|seq| self.confirm(seq, confirm));
    }

    /// Notes that the publish `seq` is answered. Nothing is said before [`flush`](Self::flush).
    #[inline]
    pub fn confirm(&mut self, seq: u64, confirm: Confirm) {
        let in_order = self.base + self.ready;
        assert!(seq < self.next_seq, "a publish is confirmed after it came");
        assert!(seq >= in_order, "a publish is confirmed once");
        if seq == in_order && self.window.is_empty() && confirm == Confirm::Ack {
            self.ready += 1;
            return;
        }
        let at = (seq - in_order) as usize;
        if self.window.len() <= at {
            self.window.resize(at + 1, State::Pending);
        }
        assert_eq!(self.window[at], State::Pending, "a publish is confirmed once");
        self.window[at] = match confirm {
            Confirm::Ack => State::Acked,
            Confirm::Nack => State::Nacked,
        };
        self.fresh.push(seq);
    }

    /// Says everything that was noted, in as few frames as AMQP allows: runs at the front with
    /// `multiple`, the others one by one.
    ///
    /// `multiple` covers everything not confirmed before it, so a run of nacks and a run of acks
    /// are two frames, each of which finds nothing older than its own run. Neither does a run reach
    /// over a publish that got the other answer before its turn: AMQP would allow it, but clients
    /// that bring answers into order (amqp091-go does) take the run for its answer, and a message
    /// that was refused for one that is safe.
    pub fn flush(&mut self, mut emit: impl FnMut(ConfirmFrame)) {
        let mut run = Run { confirm: Confirm::Ack, last: 0, count: 0 };
        if self.ready > 0 {
            run.last = self.base + self.ready - 1;
            run.count = self.ready;
            self.base += self.ready;
            self.ready = 0;
        }
        while let Some(state) = self.window.front().copied()
            && state != State::Pending
        {
            match state {
                State::Acked => run.extend(Confirm::Ack, self.base, &mut emit),
                State::Nacked => run.extend(Confirm::Nack, self.base, &mut emit),
                State::Sent(confirm) if confirm != run.confirm => run.finish(&mut emit),
                State::Sent(_) | State::Pending => {}
            }
            self.window.pop_front();
            self.base += 1;
        }
        run.finish(&mut emit);
        let window_first = self.base;
        for seq in self.fresh.drain(..) {
            let Some(at) = seq.checked_sub(window_first) else { continue };
            let state = &mut self.window[at as usize];
            let confirm = match state {
                State::Acked => Confirm::Ack,
                State::Nacked => Confirm::Nack,
                State::Sent(_) | State::Pending => unreachable!("a fresh confirm was not sent yet"),
            };
            *state = State::Sent(confirm);
            emit(ConfirmFrame { confirm, publish_seq: seq, multiple: false });
        }
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        self.window.capacity() + self.fresh.capacity() * size_of::<u64>()
    }

    /// Gives unused memory back.
    pub fn trim(&mut self) {
        self.window.shrink_to_fit();
        self.fresh.shrink_to_fit();
    }
}

/// Confirms of one kind at the front, which go out as one frame.
struct Run {
    confirm: Confirm,
    last: u64,
    count: u64,
}

impl Run {
    fn extend(&mut self, confirm: Confirm, seq: u64, emit: &mut impl FnMut(ConfirmFrame)) {
        if self.confirm != confirm {
            self.finish(emit);
            self.confirm = confirm;
        }
        self.last = seq;
        self.count += 1;
    }

    fn finish(&mut self, emit: &mut impl FnMut(ConfirmFrame)) {
        if self.count > 0 {
            emit(ConfirmFrame { confirm: self.confirm, publish_seq: self.last, multiple: self.count > 1 });
        }
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn published(count: u64) -> Confirms {
        let mut confirms = Confirms::default();
        (1..=count).for_each(|seq| assert_eq!(confirms.next_publish_seq(), seq));
        confirms
    }

    fn flush(confirms: &mut Confirms) -> Vec<(char, u64, bool)> {
        let mut frames = Vec::new();
        confirms.flush(|f| frames.push((if f.confirm == Confirm::Ack { 'a' } else { 'n' }, f.publish_seq, f.multiple)));
        frames
    }

    #[test]
    fn confirms_in_order_are_one_frame() {
        let mut confirms = published(10);
        (1..=7).for_each(|seq| confirms.confirm(seq, Confirm::Ack));
        assert_eq!(flush(&mut confirms), [('a', 7, true)]);
        confirms.confirm(8, Confirm::Ack);
        assert_eq!(flush(&mut confirms), [('a', 8, false)]);
        assert_eq!(flush(&mut confirms), []);
        assert_eq!(confirms.unconfirmed(), 2);
    }

    #[test]
    fn what_is_out_of_order_goes_out_alone_and_only_once() {
        let mut confirms = published(5);
        confirms.confirm(3, Confirm::Ack);
        confirms.confirm(2, Confirm::Ack);
        assert_eq!(flush(&mut confirms), [('a', 3, false), ('a', 2, false)]);
        confirms.confirm(5, Confirm::Ack);
        confirms.confirm(1, Confirm::Ack);
        assert_eq!(flush(&mut confirms), [('a', 1, false), ('a', 5, false)]);
        confirms.confirm(4, Confirm::Ack);
        assert_eq!(flush(&mut confirms), [('a', 4, false)]);
        assert_eq!(confirms.unconfirmed(), 0);
    }

    #[test]
    fn a_run_says_what_each_of_its_publishes_would() {
        let (ack, nack) = (Confirm::Ack, Confirm::Nack);
        let steps = [(1, 5, ack), (8, 3, ack), (6, 2, nack), (11, 10, ack), (25, 5, ack), (21, 4, ack), (30, 1, nack)];
        for flushed in [1, 2, 7] {
            let (mut runs, mut each) = (published(30), published(30));
            for (number, (first, count, confirm)) in (1..).zip(steps) {
                runs.confirm_run(first, count, confirm);
                (first..first + count).for_each(|seq| each.confirm(seq, confirm));
                if number % flushed == 0 {
                    assert_eq!(flush(&mut runs), flush(&mut each));
                }
                assert_eq!(runs.unconfirmed(), each.unconfirmed());
            }
            assert_eq!(flush(&mut runs), flush(&mut each));
            assert_eq!(runs.unconfirmed(), 0);
        }
    }

    #[test]
    fn a_multiple_ack_never_covers_a_nack() {
        let mut confirms = published(6);
        for (seq, confirm) in [
            (1, Confirm::Ack),
            (2, Confirm::Ack),
            (3, Confirm::Nack),
            (4, Confirm::Nack),
            (5, Confirm::Ack),
            (6, Confirm::Ack),
        ] {
            confirms.confirm(seq, confirm);
        }
        assert_eq!(flush(&mut confirms), [('a', 2, true), ('n', 4, true), ('a', 6, true)]);
    }

    #[test]
    fn a_run_does_not_reach_over_the_other_answer_that_was_given_before_its_turn() {
        for (run, alone, chars) in
            [(Confirm::Ack, Confirm::Nack, ['a', 'n']), (Confirm::Nack, Confirm::Ack, ['n', 'a'])]
        {
            let mut confirms = published(6);
            confirms.confirm(3, alone);
            assert_eq!(flush(&mut confirms), [(chars[1], 3, false)]);
            [1, 2, 4, 5, 6].into_iter().for_each(|seq| confirms.confirm(seq, run));
            assert_eq!(flush(&mut confirms), [(chars[0], 2, true), (chars[0], 6, true)]);
            // Over the same answer it may.
            let mut confirms = published(6);
            confirms.confirm(3, run);
            assert_eq!(flush(&mut confirms), [(chars[0], 3, false)]);
            [1, 2, 4, 5, 6].into_iter().for_each(|seq| confirms.confirm(seq, run));
            assert_eq!(flush(&mut confirms), [(chars[0], 6, true)]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A client that follows the protocol ends with what the broker said for each publish,
        /// whatever the order.
        #[test]
        fn the_client_learns_every_confirm_once(
            order in Just((1..=120u64).collect::<Vec<_>>()).prop_shuffle(),
            nacks in any::<u128>(),
            flushes in any::<u128>(),
        ) {
            let mut confirms = published(120);
            let mut client: BTreeMap<u64, Option<Confirm>> = (1..=120).map(|seq| (seq, None)).collect();
            let mut said: BTreeMap<u64, Confirm> = BTreeMap::new();
            for (step, seq) in order.iter().enumerate() {
                let confirm = if nacks >> seq & 1 == 1 { Confirm::Nack } else { Confirm::Ack };
                confirms.confirm(*seq, confirm);
                said.insert(*seq, confirm);
                if flushes >> step & 1 == 1 || step == 119 {
                    let mut frames = Vec::new();
                    confirms.flush(|frame| frames.push(frame));
                    for frame in frames {
                        let first = if frame.multiple { 1 } else { frame.publish_seq };
                        let mut covered = 0;
                        for (_, heard) in client.range_mut(first..=frame.publish_seq).filter(|(_, h)| h.is_none()) {
                            *heard = Some(frame.confirm);
                            covered += 1;
                        }
                        prop_assert!(covered > 0, "a frame that says nothing new");
                    }
                    for (seq, heard) in &client {
                        prop_assert_eq!(heard.as_ref(), said.get(seq), "publish {}", seq);
                    }
                }
            }
            prop_assert_eq!(confirms.unconfirmed(), 0);
        }
    }
}
