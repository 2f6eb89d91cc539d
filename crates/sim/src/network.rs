//! Links between nodes, and their weather: what is sent may be lost, late, doubled, overtaken, or
//! cut off in one direction.
//!
//! What is lost may have been damaged on the way, which the packet's checksum finds.
//!
//! Invariant: a frame arrives as it was sent or not at all. Peer links of the server are TCP, which
//! keeps order; here order is not kept, because Raft and the frames beside it must not need it.

use crate::random::Random;
use crate::schedule::Micros;
use broker::PartitionId;
use bytes::Bytes;
use consensus::NodeId;
use partition::PeerFrame;
use partition::peer::forward::Forward;
use partition::peer::packet::{self, FRAMES_MAX, Frame, HEAD_BYTES, Head, PacketError};
use partition::peer::speaker;
use std::collections::BTreeSet;

/// How often another weather has frames that are late by seconds, where there may be some.
const SLOW_PERCENT: u64 = 30;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Frames lost, in percent.
    pub loss: u64,
    /// Frames that arrive twice, in percent.
    pub doubled: u64,
    /// Shortest way.
    pub delay_min: Micros,
    /// Longest way; the difference reorders.
    pub delay_max: Micros,
}

impl Weather {
    /// Nothing is lost, and nothing is late.
    pub const FAIR: Weather = Weather { loss: 0, doubled: 0, delay_min: 100, delay_max: 300 };
}

/// The links.
#[derive(Debug)]
pub struct Network {
    /// How bad it is now.
    pub weather: Weather,
    /// Some of it is late by seconds at times.
    is_slow: bool,
    /// By the numbers of nodes: a node that comes back to a group as another member has the same cables.
    cut: BTreeSet<(u32, u32)>,
}

impl Default for Network {
    fn default() -> Self {
        Network { weather: Weather::FAIR, is_slow: false, cut: BTreeSet::new() }
    }
}

impl Network {
    /// Links of which some are late by seconds at times, if `is_slow`.
    pub fn with_slow(is_slow: bool) -> Network {
        Network { is_slow, ..Network::default() }
    }

    /// Nothing gets from `from` to `to`; the other direction is as it was.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        self.cut.insert((from.number(), to.number()));
    }

    /// Heals every link.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Another weather.
    pub fn change_weather(&mut self, random: &mut Random) {
        let delay_max = match self.is_slow && random.chance(SLOW_PERCENT) {
            true => 2_500_000,
            false => *random.pick(&[300, 2_000, 20_000, 300_000]),
        };
        let loss = *random.pick(&[0, 0, 1, 5, 25]);
        self.weather = Weather { loss, doubled: *random.pick(&[0, 0, 2, 10]), delay_min: 50, delay_max };
    }

    /// Heals every link, and may cut others: one way, both, or a node off from all.
    pub fn cut_some(&mut self, ids: &[NodeId], random: &mut Random) {
        let (one, other) = (*random.pick(ids), *random.pick(ids));
        self.heal();
        match random.below(5) {
            // A cluster that is cut most of the time does little.
            0 | 1 => {}
            2 => self.cut(one, other),
            3 => {
                self.cut(one, other);
                self.cut(other, one);
            }
            _ => {
                for id in ids {
                    self.cut(one, *id);
                    if random.chance(70) {
                        self.cut(*id, one);
                    }
                }
            }
        }
    }

    /// Whether frames get through at all.
    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cut.contains(&(from.number(), to.number()))
    }

    /// After how long a frame arrives; none, once or twice.
    pub fn send(&self, from: NodeId, to: NodeId, random: &mut Random) -> Vec<Micros> {
        let weather = self.weather;
        if self.is_cut(from, to) || random.chance(weather.loss) {
            return Vec::new();
        }
        let copies = 1 + u64::from(random.chance(weather.doubled));
        (0..copies).map(|_| random.between(weather.delay_min, weather.delay_max)).collect()
    }
}

/// A packet with one frame, as its bytes.
pub(crate) fn pack(partition: PartitionId, frame: &PeerFrame) -> Bytes {
    packet::encode([(partition, frame)]).concat().into()
}

/// What is in a packet. All of it was said by groups: what nodes say beside them needs links that
/// keep order.
pub(crate) fn open(packet: Bytes) -> Result<Vec<(PartitionId, PeerFrame)>, PacketError> {
    let (head, body) = packet.split_at(HEAD_BYTES);
    let head = Head::parse(head.try_into().expect("a whole head"))?;
    if body.len() != head.length() {
        // The receiver would wait for more, or take what follows for the next head.
        return Err(PacketError::Damaged);
    }
    let of_group = |(partition, frame)| match frame {
        Frame::Group(frame) => (partition, frame),
        Frame::Forward(frame) => unreachable!("they go over links: {frame:?}"),
    };
    Ok(packet::decode(&head, packet.slice(HEAD_BYTES..))?.into_iter().map(of_group).collect())
}

/// A packet of which one byte is another one is refused. The byte is chosen by the packet itself.
pub(crate) fn assert_damage_is_found(packet: &Bytes) {
    let crc = u32::from_le_bytes(packet[4..8].try_into().expect("four bytes"));
    let mut damaged = packet.to_vec();
    let at = crc as usize % damaged.len();
    damaged[at] ^= 1 << (crc >> 29);
    assert!(open(damaged.into()).is_err(), "a packet whose byte {at} is damaged was taken: {packet:02x?}");
}

/// What shards of a node send to another, as bytes.
pub(crate) fn pack_forwards(frames: &[(PartitionId, Forward)]) -> Bytes {
    let packets = frames.chunks(FRAMES_MAX).flat_map(|some| packet::encode(some.iter().map(|(p, frame)| (*p, frame))));
    packets.collect::<Vec<_>>().concat().into()
}

/// What is in such packets, which came from one node to another.
pub(crate) fn open_forwards(packets: &Bytes, ends: (NodeId, NodeId)) -> Vec<(PartitionId, Forward)> {
    let (mut rest, mut forwards) = (packets.clone(), Vec::new());
    while !rest.is_empty() {
        let head = rest.split_to(HEAD_BYTES);
        let head = head.first_chunk().and_then(|head| Head::parse(head).ok()).expect("a whole head");
        let body = rest.split_to(head.length());
        let frames = packet::decode(&head, body).expect("it arrived as it was sent");
        frames.iter().for_each(|(partition, frame)| assert_believed(*partition, frame, ends));
        forwards.extend(frames.into_iter().map(|(partition, frame)| match frame {
            Frame::Forward(frame) => (partition, frame),
            Frame::Group(frame) => unreachable!("they go as they like: {frame:?}"),
        }));
    }
    forwards
}

/// What came from one node to another.
pub(crate) fn arrived(packet: Bytes, ends: (NodeId, NodeId)) -> Vec<(PartitionId, PeerFrame)> {
    let frames = open(packet).expect("it arrived as it was sent");
    frames.iter().for_each(|(partition, frame)| assert_believed(*partition, &Frame::Group(frame.clone()), ends));
    frames
}

/// No sound node says what would end its link.
fn assert_believed(partition: PartitionId, frame: &Frame, ends: (NodeId, NodeId)) {
    let objection = speaker::objection(partition, frame, ends);
    assert_eq!(objection, None, "from {} to {}, of {partition:?}: {frame:?}", ends.0, ends.1);
}
