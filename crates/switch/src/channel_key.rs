//! How the numbers of channels are made: which life of which node, which shard, which channel.
//!
//! ```text
//!   127    96 95     64 63   58 57  56       20 19             0
//!   node      start     shard    1  connection  channel, from 1    of a connection
//!   node      start     shard    0  counter, from 1                of whatever else asks
//! ```
//!
//! The channels of a connection have all but the lowest bits in common, so that a partition elsewhere knows what it
//! has sent to one client. A connection that opens more channels one after the other than these bits tell goes on as
//! if it were another one.
//!
//! Invariant: a key is given out once. The number of the start grows with every start of a node and
//! is durable before the first key is made, and no two nodes have one number: so a key that a
//! partition remembers from before a restart, or from another node, meets nobody. Counter 0 is the
//! shard itself, which also asks partitions things.

use crate::directory::SHARDS_MAX;
use broker::{ChannelKey, NodeLife};

const SHARD_BITS: u32 = 6;
const COUNTER_BITS: u32 = 64 - SHARD_BITS;
/// Bits of a channel's number on its connection.
const CHANNEL_BITS: u32 = 20;
/// Set in the key of a channel that says which connection it is of. Keys of earlier builds lack it.
const OF_CONNECTION: u64 = 1 << (COUNTER_BITS - 1);
const CONNECTIONS_MAX: u64 = 1 << (COUNTER_BITS - 1 - CHANNEL_BITS);

const _: () = assert!(SHARDS_MAX == 1 << SHARD_BITS);

/// Gives out the keys of one shard.
#[derive(Debug)]
pub struct ChannelKeys {
    own: ChannelKey,
    last: u64,
    connections: u64,
}

/// The keys of one connection's channels.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionKeys {
    /// What they have in common; 0 before the first.
    common: u64,
    last: u64,
}

impl ChannelKeys {
    /// Keys of this life and shard.
    pub fn new(life: NodeLife, shard: usize) -> Self {
        assert!(life.node > 0 && life.start > 0, "nodes and their starts are counted from 1");
        assert!(shard < SHARDS_MAX, "a node has at most SHARDS_MAX shards");
        ChannelKeys { own: ChannelKey::of(life, (shard as u64) << COUNTER_BITS), last: 0, connections: 0 }
    }

    /// A key for a channel of this connection. At ten thousand connections a second they last for five months; what
    /// comes after that is given keys that tell of no connection.
    pub fn next_of(&mut self, connection: &mut ConnectionKeys) -> ChannelKey {
        if connection.common == 0 || connection.last + 1 == 1 << CHANNEL_BITS {
            if self.connections == CONNECTIONS_MAX {
                return self.next_key();
            }
            *connection = ConnectionKeys { common: OF_CONNECTION | self.connections << CHANNEL_BITS, last: 0 };
            self.connections += 1;
        }
        connection.last += 1;
        ChannelKey(self.own.0 | u128::from(connection.common | connection.last))
    }

    /// A key that is no connection's. At a million a second they last for four thousand years.
    pub fn next_key(&mut self) -> ChannelKey {
        self.last += 1;
        assert!(self.last < OF_CONNECTION, "keys that are no connection's are used up");
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

/// What the keys of all channels of one connection have in common, on whatever node it is. `None` for keys that do not
/// tell, as those of earlier builds.
#[inline]
pub(crate) fn connection_of(key: ChannelKey) -> Option<u128> {
    (key.number() & OF_CONNECTION != 0).then_some(key.0 >> CHANNEL_BITS)
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
    use std::collections::BTreeSet;

    #[test]
    fn the_channels_of_a_connection_tell_which_it_is_and_no_key_comes_twice() {
        let mut keys = ChannelKeys::new(NodeLife { node: 1, start: 5 }, 3);
        let [mut first, mut second] = [ConnectionKeys::default(); 2];
        let of_first = [keys.next_of(&mut first), keys.next_of(&mut first)];
        let of_second = keys.next_of(&mut second);
        assert!(connection_of(of_first[0]).is_some() && connection_of(of_first[0]) == connection_of(of_first[1]));
        assert_ne!(connection_of(of_first[0]), connection_of(of_second));
        assert_eq!(connection_of(keys.next_key()), None);
        assert!([of_first[0], of_first[1], of_second].iter().all(|key| keys.shard_of(*key) == Some(3)));
        assert!(!is_of_shard(of_first[0]));
        // It goes on where its numbers end, and beside another node's.
        let many: BTreeSet<ChannelKey> = (0..1 << CHANNEL_BITS).map(|_| keys.next_of(&mut first)).collect();
        assert_eq!(many.len(), 1 << CHANNEL_BITS);
        assert!(![of_first[0], of_first[1], of_second].iter().any(|key| many.contains(key)));
        let elsewhere = ChannelKeys::new(NodeLife { node: 2, start: 5 }, 3).next_of(&mut ConnectionKeys::default());
        assert_eq!(elsewhere.number(), of_first[0].number());
        assert_ne!(connection_of(elsewhere), connection_of(of_first[0]));
        // When all are used up keys tell of no connection.
        keys.connections = CONNECTIONS_MAX;
        let plain = [keys.next_of(&mut ConnectionKeys::default()), keys.next_key()];
        assert!(plain[0] != plain[1] && plain.iter().all(|key| connection_of(*key).is_none()));
    }

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
