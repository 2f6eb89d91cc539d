//! Frames between members of a group and the packets that carry them: the very bytes, and that nothing else is
//! taken for them.

#![allow(clippy::unwrap_used)]

use broker::{PartitionId, QueueId};
use bytes::Bytes;
use consensus::{LogIndex, Message, NodeId, Segments, Term};
use partition::PeerFrame;
use partition::peer::packet::{
    self, Frame, HEAD_BYTES, Head, PACKET_BYTES_MAX, PACKET_VERSION, PacketError, PacketWriter,
};
use partition::peer::{Left, Missing};
use proptest::prelude::*;
use std::collections::VecDeque;

/// A vote that `consensus` wrote: version, kind, which numbers are there, group, from, to, term 9,
/// log term 8, index 300.
const VOTE: [u8; 10] = [1, 3, 7, 3, 1, 2, 9, 8, 0xac, 2];

fn frames() -> Vec<PeerFrame> {
    let snapshot = (Term(9), LogIndex(300));
    let missing = Missing { number: 7, queue: QueueId(5), from: 10, past: 20 };
    let text = Bytes::from_static;
    vec![
        PeerFrame::Raft(Message::decode(&mut Bytes::from_static(&VOTE)).unwrap()),
        PeerFrame::Written { term: Term(9), index: LogIndex(300) },
        PeerFrame::AskEnd { term: Term(9), life: 1 },
        PeerFrame::EndOfLog { term: Term(9), life: 1, index: LogIndex(300) },
        PeerFrame::PullImage { snapshot, offset: 128 },
        PeerFrame::ImagePart { snapshot, offset: 128, bytes: text(b"part") },
        PeerFrame::PullMessages { snapshot, queue: QueueId(5), from: 10 },
        PeerFrame::MessagesPart {
            snapshot,
            queue: QueueId(5),
            from: 10,
            past: 13,
            messages: vec![(10, text(b"a")), (12, text(b""))],
        },
        PeerFrame::AskMissing(missing),
        PeerFrame::HaveMissing(missing, vec![(10, Some(text(b"a"))), (11, None), (12, Some(text(b"")))]),
        PeerFrame::AskLeft { member: NodeId::of(4, 1) },
        PeerFrame::Left(Left {
            member: NodeId::of(4, 1),
            by: NodeId(2),
            term: Term(9),
            leads: true,
            applied: LogIndex(300),
            voters: vec![NodeId(1), NodeId::of(3, 2)],
        }),
    ]
}

fn encoded(frame: &PeerFrame) -> Bytes {
    let mut out = Segments::new();
    frame.encode(&mut out);
    out.to_bytes()
}

fn opened(bytes: &[u8]) -> Result<Vec<(PartitionId, Frame)>, PacketError> {
    let head = Head::parse(bytes[..HEAD_BYTES].try_into().unwrap())?;
    packet::decode(&head, Bytes::copy_from_slice(&bytes[HEAD_BYTES..]))
}

/// The bytes of each kind, as `docs/formats/peer.md` draws them. A build that writes others needs
/// another version.
#[test]
fn frames_are_written_as_ever() {
    let bytes: Vec<Vec<u8>> = frames().iter().map(|frame| encoded(frame).to_vec()).collect();
    let expected: Vec<Vec<u8>> = vec![
        [&[1][..], &VOTE].concat(),
        vec![2, 9, 0xac, 2],
        vec![3, 9, 1],
        vec![4, 9, 1, 0xac, 2],
        vec![5, 9, 0xac, 2, 0x80, 1],
        vec![6, 9, 0xac, 2, 0x80, 1, 4, b'p', b'a', b'r', b't'],
        vec![7, 9, 0xac, 2, 5, 10],
        vec![8, 9, 0xac, 2, 5, 10, 13, 2, 10, 1, b'a', 12, 0],
        vec![9, 7, 5, 10, 20],
        vec![10, 7, 5, 10, 20, 3, 10, 2, b'a', 11, 0, 12, 1],
        vec![11, 0x84, 0x80, 0x80, 0x80, 0x10],
        vec![12, 0x84, 0x80, 0x80, 0x80, 0x10, 2, 9, 1, 0xac, 2, 2, 1, 0x83, 0x80, 0x80, 0x80, 0x20],
    ];
    assert_eq!(bytes, expected);
    let packet = packet::encode([(PartitionId(200), &frames()[1]), (PartitionId(0), &frames()[2])]).concat();
    assert_eq!(packet, [10, 0, 0, 0, 93, 107, 204, 172, 7, 200, 1, 2, 9, 0xac, 2, 0, 3, 9, 1]);
}

#[test]
fn packets_that_are_written_in_kept_memory_are_those_of_fresh_memory_whatever_is_still_on_its_way() {
    let (mut writer, mut all, mut on_its_way) = (PacketWriter::default(), frames(), VecDeque::new());
    // Copied up to this length, and shared from there on.
    let bytes = Bytes::from(vec![7; 100_000]);
    all.extend([1, 200, 1_000, 100_000].map(|length| PeerFrame::ImagePart {
        snapshot: (Term(9), LogIndex(300)),
        offset: 0,
        bytes: bytes.slice(..length),
    }));
    let mut expected = Vec::new();
    for round in 0..2_000_usize {
        let some: Vec<_> = (0..round % 5).map(|at| (PartitionId(at as u32), &all[(round + at) % all.len()])).collect();
        expected.extend(packet::encode(some.iter().copied()).concat());
        writer.encode(some, &mut on_its_way);
        assert!(on_its_way.iter().all(|piece: &Bytes| !piece.is_empty()));
        // The socket takes some of them at a time.
        while on_its_way.len() > round % 40 {
            let piece = on_its_way.pop_front().unwrap();
            let rest = expected.split_off(piece.len());
            assert_eq!(piece, expected, "round {round}");
            expected = rest;
        }
    }
}

#[test]
fn what_was_written_is_read_again_and_nothing_is_left() {
    for frame in frames() {
        let mut bytes = encoded(&frame);
        assert_eq!(PeerFrame::decode(&mut bytes), Ok(frame));
        assert!(bytes.is_empty());
    }
    let all: Vec<_> = (0..).map(PartitionId).zip(frames()).collect();
    let packet = packet::encode(all.iter().map(|(partition, frame)| (*partition, frame))).concat();
    let all = all.into_iter().map(|(partition, frame)| (partition, Frame::from(frame))).collect();
    assert_eq!(opened(&packet), Ok(all));
    assert_eq!(opened(&packet::encode::<&Frame>([]).concat()), Ok(Vec::new()));
}

#[test]
fn a_large_body_is_shared_and_not_copied() {
    let body = Bytes::from(vec![7; 4096]);
    let frame = PeerFrame::ImagePart { snapshot: (Term(1), LogIndex(1)), offset: 0, bytes: body.clone() };
    let pieces = packet::encode([(PartitionId(1), &frame)]);
    assert!(pieces.iter().any(|piece| piece.as_ptr() == body.as_ptr() && piece.len() == body.len()));
    let head = Head::parse(pieces[0][..].try_into().unwrap()).unwrap();
    let received: Bytes = pieces[1..].concat().into();
    let found = packet::decode(&head, received.clone()).unwrap();
    let Frame::Group(PeerFrame::ImagePart { bytes, .. }) = &found[0].1 else { panic!("{found:?}") };
    assert!(received.as_ptr_range().contains(&bytes.as_ptr()), "a slice of what came");
}

/// What a leader of term 9 appends behind entry 300: these bodies, the second a change of members.
fn append(bodies: &[&[u8]]) -> PeerFrame {
    let mut out = Segments::new();
    // Version, kind, which numbers are there, group, from, to, term, log term, index.
    out.put_slice(&[1, 1, 7, 3, 1, 2, 9, 8, 0xac, 2]);
    out.put_varint(bodies.len() as u64);
    for (place, body) in bodies.iter().enumerate() {
        out.put_u8(u8::from(place == 1));
        out.put_varint(0);
        out.put_varint(body.len() as u64);
    }
    bodies.iter().for_each(|body| out.put_slice(body));
    PeerFrame::Raft(Message::decode(&mut out.to_bytes()).unwrap())
}

#[test]
fn a_packet_has_the_same_checksum_whether_its_bodies_have_theirs_or_not() {
    let large: Vec<u8> = (0..70_000_u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
    for sizes in [[0, 4096, 70_000], [4095, 10, 4096], [70_000, 70_000, 1], [600, 4095, 0]] {
        let frame = append(&sizes.map(|size| &large[large.len() - size..]));
        let first = packet::encode([(PartitionId(1), &frames()[1]), (PartitionId(200), &frame)]).concat();
        let behind = [&first[8..9], &first[HEAD_BYTES..]].concat();
        assert_eq!(first[4..8], storage::crc32c::crc32c(&behind).to_le_bytes(), "{sizes:?}");
        // What came has the checksums of its bodies with it, and goes on with the same bytes.
        let came = opened(&first).unwrap();
        let again = packet::encode(came.iter().map(|(partition, frame)| (*partition, frame)));
        assert_eq!(again.concat(), first, "{sizes:?}");
        let Frame::Group(PeerFrame::Raft(message)) = &came[1].1 else { panic!("{came:?}") };
        assert_eq!(message.body_bytes(), sizes.iter().sum::<usize>());
        // Wherever another byte comes, in a body or around one.
        for at in (4..first.len()).step_by(997).chain(4..first.len().min(80)) {
            let mut damaged = first.clone();
            damaged[at] ^= 0x10;
            assert!(opened(&damaged).is_err(), "{sizes:?}, byte {at}");
        }
    }
}

#[test]
fn a_packet_of_another_version_or_of_any_length_is_refused_by_its_head() {
    let packet = packet::encode([(PartitionId(1), &frames()[1])]).concat();
    let mut head: [u8; HEAD_BYTES] = packet[..HEAD_BYTES].try_into().unwrap();
    head[8] = PACKET_VERSION + 1;
    assert_eq!(Head::parse(&head), Err(PacketError::Version { found: PACKET_VERSION + 1 }));
    head[8] = PACKET_VERSION;
    head[..4].copy_from_slice(&(PACKET_BYTES_MAX as u32 + 1).to_le_bytes());
    assert_eq!(Head::parse(&head), Err(PacketError::TooLong { bytes: PACKET_BYTES_MAX as u32 + 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_packet_with_another_byte_is_refused(at in 0..400_usize, flip in 1..=255_u8) {
        let all = frames();
        let mut packet = packet::encode(all.iter().map(|frame| (PartitionId(1), frame))).concat();
        let at = at % packet.len();
        prop_assume!(!(0..4).contains(&at));
        packet[at] ^= flip;
        prop_assert!(opened(&packet).is_err());
    }

    /// Whatever comes is refused, or is the one form of what it means.
    #[test]
    fn garbage_is_refused_or_means_what_it_says(kind in 0..14_u8, rest in prop::collection::vec(any::<u8>(), 0..100)) {
        let whole = Bytes::from([&[kind][..], &rest].concat());
        let mut left = whole.clone();
        if let Ok(frame) = PeerFrame::decode(&mut left) {
            let taken = whole.len() - left.len();
            prop_assert_eq!(encoded(&frame), whole.slice(..taken));
        }
    }

    /// The same from frames that were sound before one byte was another one.
    #[test]
    fn a_frame_that_is_almost_one_is_refused_or_means_what_it_says(which in 0..12_usize, at in 0..64_usize, flip in 1..=255_u8) {
        let mut bytes = encoded(&frames()[which]).to_vec();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let whole = Bytes::from(bytes);
        let mut left = whole.clone();
        if let Ok(frame) = PeerFrame::decode(&mut left) {
            let taken = whole.len() - left.len();
            prop_assert_eq!(encoded(&frame), whole.slice(..taken));
        }
    }
}
