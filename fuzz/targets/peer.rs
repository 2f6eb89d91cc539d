//! What follows the head of a packet between nodes, any bytes, under a checksum that fits.
//!
//! Invariant: it is refused, or each frame is the one form of what it means.
#![no_main]

use broker::PartitionId;
use bytes::Bytes;
use partition::peer::packet::{self, Frame, HEAD_BYTES, Head, PACKET_VERSION};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&(data.len() as u32).to_le_bytes());
    head[4..8].copy_from_slice(&packet::checksum(data).to_le_bytes());
    head[8] = PACKET_VERSION;
    let head = Head::parse(&head).expect("a head that is sound");
    let Ok(frames) = packet::decode(&head, Bytes::copy_from_slice(data)) else { return };
    let again = packet::encode(frames.iter().map(|(partition, frame): &(PartitionId, Frame)| (*partition, frame)));
    assert_eq!(again[1..].concat(), data, "one form");
});
