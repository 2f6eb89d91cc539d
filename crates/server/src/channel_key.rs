//! How the numbers of channels are made: which boot of the node, which shard, which channel.
//!
//! ```text
//!   63        44 43      38 37             0
//!   boot number  shard      counter, from 1
//! ```
//!
//! Invariant: a key is given out once. The boot number grows with every start of a node, so a key that a partition
//! remembers from before a restart meets nobody. Counter 0 is the shard itself, which also asks partitions things.

use crate::shard::SHARDS_MAX;
use broker::ChannelKey;

const SHARD_BITS: u32 = 6;
const COUNTER_BITS: u32 = 38;

/// Boot numbers are below this.
pub const BOOT_LIMIT: u32 = 1 << (64 - SHARD_BITS - COUNTER_BITS);

const _: () = assert!(SHARDS_MAX == 1 << SHARD_BITS);

/// Whether this boot of this node made the key. One of an earlier boot belongs to nobody any more.
pub(crate) fn is_of_boot(key: ChannelKey, boot: u32) -> bool {
    key.0 >> (SHARD_BITS + COUNTER_BITS) == u64::from(boot)
}

/// Gives out the keys of one shard.
#[derive(Debug)]
pub(crate) struct ChannelKeys {
    base: u64,
    last: u64,
}

impl ChannelKeys {
    /// Keys of this boot and shard.
    pub(crate) fn new(boot: u32, shard: usize) -> Self {
        assert!(boot > 0 && boot < BOOT_LIMIT, "boot numbers start at 1 and have 20 bits");
        assert!(shard < SHARDS_MAX, "a node has at most SHARDS_MAX shards");
        ChannelKeys { base: u64::from(boot) << (SHARD_BITS + COUNTER_BITS) | (shard as u64) << COUNTER_BITS, last: 0 }
    }

    /// A key for a channel. At a million channels a second they last three days, at ten thousand most of a year.
    pub(crate) fn next(&mut self) -> ChannelKey {
        self.last += 1;
        assert!(self.last < 1 << COUNTER_BITS, "channel keys ran out; a restart makes new ones");
        ChannelKey(self.base | self.last)
    }

    /// The key of the shard itself.
    pub(crate) fn own(&self) -> ChannelKey {
        ChannelKey(self.base)
    }

    /// The shard that `key` belongs to; `None` if another boot or node made it.
    #[inline]
    pub(crate) fn shard_of(&self, key: ChannelKey) -> Option<usize> {
        let same_boot = (key.0 ^ self.base) >> (SHARD_BITS + COUNTER_BITS) == 0;
        same_boot.then_some((key.0 >> COUNTER_BITS) as usize & (SHARDS_MAX - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_know_their_shard_and_forget_other_boots() {
        let (mut a, mut b) = (ChannelKeys::new(5, 3), ChannelKeys::new(6, 3));
        let (x, y) = (a.next(), a.next());
        assert!(x != y && x != a.own());
        assert_eq!(a.shard_of(x), Some(3));
        assert_eq!(ChannelKeys::new(5, 0).shard_of(y), Some(3));
        assert_eq!(a.shard_of(a.own()), Some(3));
        assert_eq!(a.shard_of(b.next()), None);
        assert_eq!(a.shard_of(ChannelKey::NOBODY), None);
    }
}
