//! The sockets between the server and its clients, by bytes: a socket takes so much, and what it does
//! not take waits in the connection, in front of which is the server's own window. Some clients read
//! late.
//!
//! Invariant: bytes keep their order, and what a client reads is what was written, cut anywhere.

use super::front::{ConnectionId, Front};
use super::{Event, Phase, Served, Sessions};
use crate::node::Sockets;
use crate::random::Random;
use crate::schedule::{MS, Micros};
use broker::ConsumerKey;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::IoSlice;
use switch::Reach;

/// How often a client that may read late does, in front of each write.
const LATE_PERCENT: u64 = 1;
/// How late that is at most, in milliseconds.
const LATE_MS_MAX: u64 = 700;

/// How much is between a server and a client in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// What the server keeps for a connection, in bytes.
    window: usize,
    /// What a socket takes that nobody reads.
    socket: usize,
    /// What may be on its way from one shard to a channel of another one.
    pub(super) away: Option<usize>,
}

impl Sizes {
    /// As on the server, where the few bytes of a simulated client fill nothing.
    pub(super) fn ample() -> Sizes {
        Sizes { window: switch::window_bytes(1), socket: usize::MAX, away: None }
    }

    /// So small that a few messages fill them.
    pub(super) fn small(random: &mut Random) -> Sizes {
        Sizes {
            window: *random.pick(&[300, 2_000, 20_000]),
            socket: *random.pick(&[200, 1_000, 8_000]),
            away: Some(*random.pick(&[400, 3_000, 30_000])),
        }
    }
}

/// One end of it, at the server.
#[derive(Debug)]
pub(super) struct Socket {
    sizes: Sizes,
    window: switch::Window,
    /// What was written and is not read yet.
    unread: usize,
}

impl Socket {
    pub(super) fn new(sizes: Sizes) -> Socket {
        Socket { sizes, window: switch::Window::default(), unread: 0 }
    }
}

impl Served {
    /// Writes what the socket takes; all that is left, once the connection is over.
    fn write(&mut self, ms: u64) -> Vec<u8> {
        let (mut bytes, is_over) = (Vec::new(), self.amqp.is_finished());
        while !self.amqp.output().is_empty() {
            let free = self.socket.sizes.socket.saturating_sub(self.socket.unread + bytes.len());
            let mut slices = [IoSlice::new(&[]); 16];
            let filled = self.amqp.output().chunks(&mut slices);
            let all: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
            let count = if is_over { all.len() } else { all.len().min(free) };
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&all[..count]);
            self.amqp.wrote(count, ms);
        }
        self.socket.unread += bytes.len();
        bytes
    }

    /// Whether consumers that were passed over may go on.
    pub(super) fn has_room(&mut self) -> bool {
        self.amqp.output().len() <= self.socket.sizes.window / 2
    }
}

/// The connections of a node, as its partitions find them in a step.
pub(super) struct Windows<'a> {
    pub(super) front: Option<&'a Front>,
    pub(super) served: &'a mut BTreeMap<ConnectionId, Served>,
    pub(super) reserved: Vec<ConnectionId>,
}

impl Sockets for Windows<'_> {
    fn room(&mut self, shard: usize, consumer: ConsumerKey) -> Option<usize> {
        let Some(front) = self.front else { return Some(0) };
        let switch = &front.shards[shard].switch;
        Some(match switch.reach(consumer.channel) {
            Reach::Here(connection) => {
                let Some(served) = self.served.get_mut(&connection) else { return Some(0) };
                self.reserved.push(connection);
                let queued = served.amqp.output().len();
                served.socket.window.reserve(served.socket.sizes.window, queued)
            }
            Reach::Away => switch.reserve_away(consumer.channel),
            Reach::Nobody => 0,
        })
    }

    fn settle(&mut self, shard: usize) {
        for connection in self.reserved.drain(..) {
            self.served.get_mut(&connection).into_iter().for_each(|served| served.socket.window.settle());
        }
        self.front.into_iter().for_each(|front| front.shards[shard].switch.settle_away());
    }
}

impl Sessions {
    /// Writes what a connection has to say, as far as its socket takes it.
    pub(super) fn write(&mut self, connection: ConnectionId, now: Micros) {
        let Some(served) = self.served.get_mut(&connection) else { return };
        let bytes = served.write(now / MS);
        if bytes.is_empty() {
            return;
        }
        let is_late = self.phase == Phase::Works && self.ledger.has_full_sockets && self.random.chance(LATE_PERCENT);
        let after = match is_late {
            true => self.random.between(50, LATE_MS_MAX) * MS,
            false => self.random.between(50, 400),
        };
        served.to_client = (now + after).max(served.to_client + 1);
        self.schedule.at(served.to_client, Event::ToClient { connection, bytes: bytes.into() });
    }

    /// A client reads: the socket takes what waits.
    pub(super) fn read(&mut self, connection: ConnectionId, bytes: &Bytes) {
        self.tell_client(connection, bytes);
        let Some(served) = self.served.get_mut(&connection) else { return };
        served.socket.unread = served.socket.unread.saturating_sub(bytes.len());
        if !served.amqp.output().is_empty() {
            self.ledger.figures.blocked_writes += 1;
            self.with_session(connection, |_, _| {});
        }
    }
}
