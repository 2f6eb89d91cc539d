//! How the numbers of channels are made: which life of which node, which shard, which channel.
//!
//! ```text
//!   127    96 95     64 63   58 57             0
//!   node      start     shard    counter, from 1
//! ```
//!
//! Invariant: a key is given out once. The number of the start grows with every start of a node and
//! is durable before the first key is made, and no two nodes have one number: so a key that a
//! partition remembers from before a restart, or from another node, meets nobody. Counter 0 is the
//! shard itself, which also asks partitions things.

use crate::directory::SHARDS_MAX;
use broker::{ChannelKey, NodeLife};

const SHARD_BITS: u32 = 6;
const COUNTER_BITS: u32 = 64 - SHARD_BITS;

const _: () = assert!(SHARDS_MAX == 1 << SHARD_BITS);

/// Gives out the keys of one shard.
#[derive(Debug)]
pub struct ChannelKeys {
    own: ChannelKey,
    last: u64,
}

impl ChannelKeys {
    /// Keys of this life and shard.
    pub fn new(life: NodeLife, shard: usize) -> Self {
        assert!(life.node > 0 && life.start > 0, "nodes and their starts are counted from 1");
        assert!(shard < SHARDS_MAX, "a node has at most SHARDS_MAX shards");
        ChannelKeys { own: ChannelKey::of(life, (shard as u64) << COUNTER_BITS), last: 0 }
    }

    /// A key for a channel. At a million channels a second they last for nine thousand years.
    pub fn next_key(&mut self) -> ChannelKey {
        self.last += 1;
        ChannelKey(self.own.0 | u128::from(self.last))
    }

    /// The key of the shard itself.
    pub fn own(&self) -> ChannelKey {
        self.own
    }

    /// The shard that `key` belongs to; `None` if another life or node made it.
    #[inline]
    pub fn shard_of(&self, key: ChannelKey) -> Option<usize> {
        let (life, number) = key.words();
        (life == self.own.words().0).then_some(shard_of_number(number))
    }
}

/// Whether a key is that of a shard, of whatever node.
pub(crate) fn is_of_shard(key: ChannelKey) -> bool {
    key.number() & ((1 << COUNTER_BITS) - 1) == 0
}

/// The shard that a channel's number names.
#[inline]
pub(crate) fn shard_of_number(number: u64) -> usize {
    (number >> COUNTER_BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_know_their_shard_and_forget_other_lives_and_nodes() {
        let life = |node, start| NodeLife { node, start };
        let mut a = ChannelKeys::new(life(1, 5), 3);
        let (x, y) = (a.next_key(), a.next_key());
        assert!(x != y && x != a.own());
        assert_eq!((x.life(), a.shard_of(x)), (life(1, 5), Some(3)));
        assert_eq!(ChannelKeys::new(life(1, 5), 0).shard_of(y), Some(3));
        assert_eq!(a.shard_of(a.own()), Some(3));
        assert!(is_of_shard(a.own()) && !is_of_shard(x));
        for other in [life(1, 6), life(2, 5)] {
            let same_channel = ChannelKeys::new(other, 3).next_key();
            assert_eq!((same_channel.number(), a.shard_of(same_channel)), (x.number(), None));
            assert_ne!(same_channel, x);
        }
        assert_eq!(a.shard_of(ChannelKey(u128::from(x.number()))), None, "of a build that knew no lives");
        assert_eq!(a.shard_of(ChannelKey::NOBODY), None);
    }
}
