//! What a shard does between its connections and its partitions, sans-io: which way a command
//! goes, whom an effect concerns, how much may be on its way, and what the shard itself asks and
//! publishes (deletions, dead letters, events).
//!
//! ```text
//!   sessions ──Command──▶ inbox ──▶ partitions of this shard
//!      ▲                    ├─────▶ parcels for other shards, at the end of the step
//!      │                    └─────▶ roads to the nodes that lead other partitions, likewise
//!      └──hear◀── deliver ◀──Effect── partitions of this shard, and parcels of others
//! ```
//!
//! Invariant: what one shard says to a partition, and what a partition says to a channel, arrives
//! in its order, whichever way it goes. Nothing here waits, and nothing is locked: the server's
//! threads and the simulator run the same code.
//!
//! In reading order: what a switch is given (`surroundings`), what shards say to each other
//! (`parcel`), where partitions run (`directory`) and how channels are numbered (`channel_key`), what
//! waits (`inbox`), who leads what (`leaders`), what goes to other nodes (`roads`,
//! `unanswered`, `turning`) and what the next leader is told again (`settles`, `publishes`, `holders`), how much may
//! be on its way (`windows`, `marks`), the switch itself (`switch`), what follows a change of the topology (`follow`), and what a shard publishes (`emit`, `dead_letter`, `outgoing`).

mod balance;
mod channel_key;
mod dead_letter;
mod directory;
mod emit;
mod follow;
mod holders;
mod inbox;
mod leaders;
mod marks;
mod outgoing;
mod owners;
mod parcel;
mod placing;
mod publishes;
mod roads;
mod settles;
mod surroundings;
mod switch;
mod turning;
mod unanswered;
mod windows;

pub use balance::{Led, heir};
pub use channel_key::{ChannelKeys, ConnectionKeys};
pub use dead_letter::DeadLettered;
pub use directory::{Directory, SHARDS_MAX};
pub use emit::{EVENT_EXCHANGE, Emission};
pub use follow::{Follower, Tell, follow, rules_of, tell_partitions};
pub use inbox::Inbox;
pub use leaders::Leaders;
pub use parcel::Parcel;
pub use placing::Placing;
pub use roads::{Frames, LinkUp, shard_for};
pub use surroundings::{Outsider, Surroundings};
pub use switch::{Crossing, LEADERS_LOOK_MS, Reach, Switch};
pub use windows::{Window, window_bytes};
