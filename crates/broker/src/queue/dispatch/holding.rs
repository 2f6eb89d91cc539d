//! Who holds what: messages that consumers have, say they have, and give back.

use super::super::levels::Levels;
use super::{Dispatch, place};
use crate::ids::ConsumerKey;

impl Dispatch {
    /// A consumer that was attached to an earlier leader holds `count` messages from `first`: those
    /// that are ready here are its own again, the others count against its prefetch. So does one that was cancelled, and
    /// who has them by `basic.get`, without a prefetch. No message from `first` on says up to where a consumer was given
    /// some: the last of them was the single active one. Costs the live messages before them that nobody has.
    pub fn hold(
        &mut self,
        key: ConsumerKey,
        first: u64,
        count: u64,
        levels: Option<&Levels>,
        next_live: impl Fn(u64) -> Option<u64>,
    ) {
        if !self.attached.contains_key(&key) {
            return self.hold_left(key, first, count, levels, &next_live);
        }
        let active_holds = self.active_holds();
        if count == 0 {
            if !active_holds && self.single.as_mut().is_some_and(|single| single.was_active(first)) {
                self.claim_active(key);
            }
            return;
        }
        let mut has_own = false;
        let past = first.saturating_add(count);
        for seq in first..past.min(self.end) {
            let is_own = self.take_ready(seq, levels, &next_live);
            let attached = self.attached.get_mut(&key).expect("seen above");
            match is_own {
                true => {
                    attached.held.insert(seq);
                    self.brought.insert(seq);
                    self.held += 1;
                    has_own = true;
                }
                // Somebody else has it, or it is this one's already: its client was given it twice.
                false => attached.foreign.insert(seq, 1),
            }
        }
        // What this queue never had is not looked for one by one.
        if let Some(beyond) = past.checked_sub(first.max(self.end)).filter(|beyond| *beyond > 0) {
            let attached = self.attached.get_mut(&key).expect("seen above");
            attached.foreign.insert(first.max(self.end), beyond);
        }
        self.refresh(key);
        if has_own && !active_holds {
            self.claim_active(key);
        }
    }

    /// The same of who is not attached.
    fn hold_left(
        &mut self,
        key: ConsumerKey,
        first: u64,
        count: u64,
        levels: Option<&Levels>,
        next_live: &impl Fn(u64) -> Option<u64>,
    ) {
        for seq in first..first.saturating_add(count).min(self.end) {
            if self.take_ready(seq, levels, next_live) {
                self.holders.entry(key).or_default().insert(seq);
                self.brought.insert(seq);
                self.held += 1;
            }
        }
    }

    /// Has a consumer that holds something of an earlier leader be the single active one, as it was there.
    pub(super) fn claim_active(&mut self, key: ConsumerKey) {
        let Some(single) = &mut self.single else { return };
        let passed = single.claim(self.attached[&key].in_line, key).filter(|passed| *passed != key);
        if let Some((passed, attached)) = passed.and_then(|passed| Some((passed, self.attached.get_mut(&passed)?))) {
            attached.waits = true;
            self.refresh(passed);
        }
        self.choose_active();
    }

    /// Whether the single active consumer, attached or not any more, has unacked messages.
    pub(super) fn active_holds(&self) -> bool {
        self.active().is_some_and(|key| {
            let held = self.attached.get(&key).map(|a| &a.held).or_else(|| self.holders.get(&key));
            held.is_some_and(|held| !held.is_empty())
        })
    }

    /// Takes a message that is ready, wherever it stands; what stands before it stays ready. False if
    /// it is not ready.
    pub(super) fn take_ready(
        &mut self,
        seq: u64,
        levels: Option<&Levels>,
        next_live: &impl Fn(u64) -> Option<u64>,
    ) -> bool {
        if let Some(lanes) = &mut self.lanes {
            let is_taken = seq < self.end && lanes.take_ready(seq, levels, next_live);
            if is_taken {
                self.cursor = self.cursor.max(seq + 1);
                self.ready -= 1;
            }
            return is_taken;
        }
        if !self.returned.remove(&seq) {
            if !(self.cursor..self.end).contains(&seq) || next_live(seq) != Some(seq) {
                return false;
            }
            while let Some(before) = next_live(self.cursor).filter(|before| *before < seq) {
                self.returned.insert(before);
                self.cursor = before + 1;
            }
            self.cursor = seq + 1;
        }
        self.ready -= 1;
        true
    }

    /// Whether a consumer, or who was one, holds the message. Costs a look at each of them.
    pub fn is_held(&self, seq: u64) -> bool {
        if self.held == 0 {
            return false;
        }
        let attached = self.attached.values().map(|a| &a.held);
        attached.chain(self.holders.values()).any(|held| held.contains(seq))
    }

    /// Whether a live message is ready, held, or on its way in: it was not dropped, nor settled.
    pub fn is_there(&self, seq: u64, levels: Option<&Levels>) -> bool {
        let is_ready = match &self.lanes {
            _ if seq >= self.end => true,
            Some(lanes) => lanes.is_ready(seq, levels),
            None => seq >= self.cursor || self.returned.contains(&seq),
        };
        is_ready || self.is_held(seq)
    }

    /// How many messages consumers would take at once; no limit counts as `u64::MAX`.
    pub fn free_credit(&self) -> u64 {
        self.tally.free_credit()
    }

    /// Takes `count` numbers from `first` out of a holder's hands, appending those that it held to
    /// `taken`.
    pub fn release(&mut self, holder: ConsumerKey, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) {
        let before = taken.len();
        self.release_held(holder, first, count, taken);
        if !self.brought.is_empty() {
            taken[before..].iter().for_each(|(first, count)| _ = self.brought.remove_range(*first, *count));
        }
    }

    fn release_held(&mut self, holder: ConsumerKey, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) {
        let Some(attached) = self.attached.get_mut(&holder) else {
            return self.release_left(holder, first, count, taken);
        };
        let before = taken.len();
        let all = attached.held.remove_range_into(first, count, taken);
        self.held -= all;
        assert!(taken.len() > before || all == 0, "what was taken is told");
        if !attached.foreign.is_empty() {
            attached.foreign.settle(first, count, &taken[before..]);
        }
        let is_empty = attached.held.is_empty();
        place(attached, &mut self.tally, &mut self.ring);
        if is_empty && self.single.is_some() {
            self.choose_active();
        }
    }

    /// As [`release`](Self::release), of who is not attached.
    fn release_left(&mut self, holder: ConsumerKey, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) {
        let Some(held) = self.holders.get_mut(&holder) else { return };
        self.held -= held.remove_range_into(first, count, taken);
        if held.is_empty() {
            self.holders.remove(&holder);
            if self.single.is_some() {
                self.choose_active();
            }
        }
    }

    /// Takes those of `count` messages from `first` that are ready, appending them to `taken`: who was
    /// given them by an earlier leader, or before its link broke, is done with them. Costs the live
    /// messages before them that nobody has.
    pub fn claim(
        &mut self,
        first: u64,
        count: u64,
        levels: Option<&Levels>,
        next_live: impl Fn(u64) -> Option<u64>,
        taken: &mut Vec<(u64, u64)>,
    ) {
        if self.ready == 0 {
            return;
        }
        for seq in first..first.saturating_add(count).min(self.end) {
            if self.take_ready(seq, levels, &next_live) {
                match taken.last_mut() {
                    Some((first, count)) if *first + *count == seq => *count += 1,
                    _ => taken.push((seq, 1)),
                }
            }
        }
    }

    /// Takes those of `count` messages from `first` that their holders came with, appending them to `taken`: somebody
    /// else whom an earlier leader gave them, or this one while their holder's link was broken, is done with them. The
    /// client of the holder has them still, so they count against its prefetch until it settles them. Costs a look at
    /// each consumer for each row of them.
    pub fn claim_brought(&mut self, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) {
        // No holder came with anything beyond the end.
        let past = first.saturating_add(count).min(self.end);
        let before = taken.len();
        if self.brought.is_empty() || first >= past || self.brought.remove_range_into(first, past - first, taken) == 0 {
            return;
        }
        let (mut moved, mut claimed) = (Vec::new(), 0);
        for &(first, count) in &taken[before..] {
            claimed += count;
            // In whatever order: a message has one holder.
            for attached in self.attached.values_mut() {
                self.held -= attached.held.remove_range_into(first, count, &mut moved);
                for (first, count) in moved.drain(..) {
                    attached.foreign.insert(first, count);
                    claimed -= count;
                }
            }
            for held in self.holders.values_mut() {
                let gone = held.remove_range(first, count);
                (self.held, claimed) = (self.held - gone, claimed - gone);
            }
        }
        assert_eq!(claimed, 0, "what a holder came with is in its hands");
        self.holders.retain(|_, held| !held.is_empty());
        if self.single.is_some() {
            self.choose_active();
        }
    }
}
