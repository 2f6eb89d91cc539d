//! Who waits until a loaded shard takes publishes again.
//!
//! Invariant: who has read since the last time goes on behind all who have not. One connection that always has something
//! to read would fill what there is room for each time, and the others would never have their turn.

/// See the module; `T` is a connection.
#[derive(Debug)]
pub(super) struct Paused<T> {
    /// They came up against the load before they could read.
    unread: Vec<T>,
    /// They have read since the others were told to go on.
    fed: Vec<T>,
}

impl<T> Default for Paused<T> {
    fn default() -> Paused<T> {
        Paused { unread: Vec::new(), fed: Vec::new() }
    }
}

impl<T> Paused<T> {
    /// One more, at the end of its kind.
    pub(super) fn push(&mut self, who: T, has_read: bool) {
        if has_read { self.fed.push(who) } else { self.unread.push(who) }
    }

    /// All of them, in the order in which they are to go on. Nobody is paused then.
    pub(super) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.unread).into_iter().chain(std::mem::take(&mut self.fed))
    }

    /// Forgets those that do not hold.
    pub(super) fn retain(&mut self, mut holds: impl FnMut(&T) -> bool) {
        self.unread.retain(&mut holds);
        self.fed.retain(holds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_always_has_something_to_read_lets_the_others_read_first() {
        // There is room for one a turn, and the first one always wants it.
        let (mut paused, mut turns) = (Paused::default(), Vec::new());
        paused.push("flood", true);
        paused.push("first", false);
        paused.push("second", false);
        for _ in 0..6 {
            let mut is_full = false;
            for who in paused.take() {
                if !is_full {
                    turns.push(who);
                }
                paused.push(who, !std::mem::replace(&mut is_full, true));
            }
        }
        assert_eq!(turns, ["first", "second", "flood", "first", "second", "flood"]);
        paused.retain(|who| *who != "first");
        assert_eq!(paused.take().count(), 2);
        assert_eq!(paused.take().count(), 0);
    }
}
