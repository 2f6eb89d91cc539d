//! What was read from a link and not taken yet.
//!
//! What is taken shares the memory that it was read into, for as long as the log keeps it. So memory
//! is had in pieces as long as the packet that comes, and short packets follow one another in one
//! piece.
//!
//! Invariant: memory is had for bytes that came, and for at most twice as many more or one full
//! packet, whatever a head says.

use super::link::Incoming;
use bytes::buf::Limit;
use bytes::{Buf, BufMut, BytesMut};
use partition::peer::packet::{self, HEAD_BYTES, Head, PACKET_BYTES};

/// What one read takes while nobody knows how long the packet is.
const READ_BYTES: usize = 64 << 10;
/// A read is worth its call with so much room.
const ROOM_BYTES_MIN: usize = 8 << 10;
/// The longest packet that memory is had for before it came.
const FULL_PACKET_BYTES: usize = PACKET_BYTES + READ_BYTES;

/// See the module.
#[derive(Default)]
pub(super) struct Arrival {
    bytes: BytesMut,
    /// How long the last packet was, head included: the next one is often as long.
    last: usize,
}

impl Arrival {
    /// Where the next bytes go, and how many of them at most; more may be put behind what was there.
    pub(super) fn room(&mut self) -> Limit<&mut BytesMut> {
        let came = self.bytes.len();
        let rest = self.packet_bytes().map_or(0, |whole| whole.saturating_sub(came));
        let wanted = rest.clamp(ROOM_BYTES_MIN, came.max(FULL_PACKET_BYTES));
        if self.bytes.capacity() - came < wanted {
            let ahead = wanted.max(self.last.min(FULL_PACKET_BYTES)).max(READ_BYTES);
            let mut longer = BytesMut::with_capacity(came + ahead);
            longer.extend_from_slice(&self.bytes);
            self.bytes = longer;
        }
        let room = self.bytes.capacity() - came;
        (&mut self.bytes).limit(room.min(rest.max(READ_BYTES)))
    }

    /// How long the packet is that has begun, head included, once its head is there and sound.
    fn packet_bytes(&self) -> Option<usize> {
        Head::parse(self.bytes.first_chunk()?).ok().map(|head| HEAD_BYTES + head.length())
    }

    /// Takes one packet off the front, if all of it is there. Errors: it is not sound.
    pub(super) fn take_packet(&mut self) -> Result<Option<Incoming>, String> {
        let Some(head) = self.bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let head = Head::parse(head).map_err(|error| error.to_string())?;
        let length = HEAD_BYTES + head.length();
        if self.bytes.len() < length {
            return Ok(None);
        }
        self.last = length;
        self.bytes.advance(HEAD_BYTES);
        let body = self.bytes.split_to(head.length()).freeze();
        packet::decode(&head, body).map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::PartitionId;
    use bytes::Bytes;
    use partition::peer::forward::Forward;
    use partition::peer::packet::{Frame, PACKET_BYTES_MAX, PACKET_VERSION};

    fn answer(bytes: usize) -> (PartitionId, Frame) {
        let part = Bytes::from(vec![7; bytes]);
        (PartitionId(0), Frame::Forward(Forward::Answer { number: 3, part, is_last: true, is_refused: false }))
    }

    /// Reads all of it, as much at a time as there is room for and a socket has.
    fn read(arrival: &mut Arrival, mut sent: &[u8], at_a_time: usize) -> (Incoming, usize) {
        let (mut taken, mut held) = (Vec::new(), 0);
        while !sent.is_empty() {
            let mut room = arrival.room();
            let count = room.remaining_mut().min(sent.len()).min(at_a_time);
            room.put_slice(&sent[..count]);
            sent = &sent[count..];
            held = held.max(arrival.bytes.capacity());
            while let Some(mut packet) = arrival.take_packet().expect("sound") {
                taken.append(&mut packet);
            }
        }
        (taken, held)
    }

    #[test]
    fn packets_are_taken_whole_wherever_a_read_ends() {
        let frames: Vec<(PartitionId, Frame)> =
            (1..=3).map(|number| (PartitionId(0), Frame::Forward(Forward::Ping { number }))).collect();
        let mut bytes = Vec::new();
        for (partition, frame) in &frames {
            bytes.extend(packet::encode([(*partition, frame)]).concat());
        }
        for cut in 0..bytes.len() {
            let mut arrival = Arrival::default();
            let (mut taken, _) = read(&mut arrival, &bytes[..cut], usize::MAX);
            taken.append(&mut read(&mut arrival, &bytes[cut..], usize::MAX).0);
            assert_eq!(taken, frames, "cut at {cut}");
        }
        bytes[10] ^= 1;
        let mut arrival = Arrival::default();
        arrival.bytes.extend_from_slice(&bytes);
        assert!(arrival.take_packet().is_err());
    }

    #[test]
    fn packets_of_all_lengths_follow_one_another_however_much_comes_at_a_time() {
        let lengths = [1, 100, 7_000, READ_BYTES - 30, READ_BYTES, 200_000, 300_000, 5, 300_000, 1_000_000, 3, 60_000];
        let frames: Vec<_> = lengths.into_iter().cycle().take(100).map(answer).collect();
        let sent: Vec<u8> = frames.iter().flat_map(|(to, frame)| packet::encode([(*to, frame)]).concat()).collect();
        for at_a_time in [1_448, 65_483, 150_001, usize::MAX] {
            let (taken, held) = read(&mut Arrival::default(), &sent, at_a_time);
            assert!(taken == frames, "{at_a_time}");
            assert!(held < 2_500_000, "{at_a_time}: {held}");
        }
    }

    #[test]
    fn a_packet_as_long_as_the_one_before_is_read_into_its_own_memory() {
        let (to, frame) = answer(250_000);
        let packet = packet::encode([(to, &frame)]).concat();
        let mut arrival = Arrival::default();
        for _ in 0..2 {
            read(&mut arrival, &packet, usize::MAX);
        }
        let begun = arrival.room().remaining_mut();
        assert_eq!(begun, READ_BYTES, "no more than what tells how long it is");
        arrival.bytes.extend_from_slice(&packet[..READ_BYTES]);
        let memory = arrival.bytes.as_ptr();
        assert_eq!(arrival.room().remaining_mut(), packet.len() - READ_BYTES);
        assert_eq!((arrival.bytes.as_ptr(), arrival.bytes.capacity()), (memory, packet.len()), "nothing was copied");
    }

    #[test]
    fn short_packets_share_their_memory() {
        let (to, frame) = answer(1_000);
        let packet = packet::encode([(to, &frame)]).concat();
        let mut arrival = Arrival::default();
        // The log keeps them.
        let kept: Vec<Incoming> = (0..50).map(|_| read(&mut arrival, &packet, usize::MAX).0).collect();
        let memory = kept.iter().flatten().map(|(_, frame)| match frame {
            Frame::Forward(Forward::Answer { part, .. }) => part.as_ptr() as usize,
            other => panic!("{other:?}"),
        });
        let (least, most) = (memory.clone().min().expect("some"), memory.max().expect("some"));
        assert!(most - least < READ_BYTES, "{least:x} to {most:x}");
    }

    #[test]
    fn a_head_that_lies_has_memory_for_no_more_than_came() {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&(PACKET_BYTES_MAX as u32).to_le_bytes());
        head[8] = PACKET_VERSION;
        let mut arrival = Arrival::default();
        let (taken, held) = read(&mut arrival, &head, usize::MAX);
        arrival.room();
        assert!(taken.is_empty() && held.max(arrival.bytes.capacity()) < 2 * FULL_PACKET_BYTES);
    }
}
