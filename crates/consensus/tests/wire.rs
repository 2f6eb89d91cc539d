//! Messages and their bytes: what is encoded comes back, what is not a message is refused without a
//! panic.

mod cluster;

use bytes::Bytes;
use cluster::Cluster;
use consensus::{Change, Config, DecodeError, INLINE_BYTES_MAX, Kind, Message, NodeId, Role, Segments, WIRE_VERSION};
use proptest::prelude::*;

fn encode(message: &Message) -> Bytes {
    let mut out = Segments::new();
    message.encode(&mut out);
    out.to_bytes()
}

/// One message of each kind, caught in the act.
fn messages_of_each_kind() -> Vec<Message> {
    let mut caught: Vec<Message> = Vec::new();
    let mut catch = |cluster: &Cluster| {
        for message in &cluster.network {
            if !caught.iter().any(|known| known.kind() == message.kind()) {
                caught.push(message.clone());
            }
        }
    };
    let mut cluster = Cluster::new(3, 1, |config: Config| Config { cache_bytes_max: 1, ..config });
    let (n1, n2, n4) = (NodeId(1), NodeId(2), NodeId(4));
    let turn = |cluster: &mut Cluster, catch: &mut dyn FnMut(&Cluster)| {
        for _ in 0..20 {
            catch(cluster);
            cluster.deliver_all();
            for node in cluster.nodes() {
                cluster.sync(node);
            }
        }
    };
    cluster.with(n1, |group| group.campaign());
    turn(&mut cluster, &mut catch);
    assert_eq!(cluster.status(n1).map(|status| status.role), Some(Role::Leader));
    cluster.propose(n1, "first").expect("up").expect("leads");
    turn(&mut cluster, &mut catch);
    cluster.with(n2, |group| group.read_index(5)).expect("up").expect("knows a leader");
    turn(&mut cluster, &mut catch);
    cluster.checkpoint(n1, 0);
    cluster.add_joining(n4);
    cluster.change(n1, &[Change::Learner(n4)]).expect("up").expect("leads");
    turn(&mut cluster, &mut catch);
    for _ in 0..3 {
        cluster.with(n1, |group| group.tick());
        turn(&mut cluster, &mut catch);
    }
    cluster.with(n1, |group| group.transfer_leadership(n2)).expect("up").expect("leads");
    turn(&mut cluster, &mut catch);
    caught
}

#[test]
fn every_kind_of_message_survives_the_wire() {
    let caught = messages_of_each_kind();
    assert_eq!(caught.len(), 12, "{:?}", caught.iter().map(Message::kind).collect::<Vec<_>>());
    for message in caught {
        let mut bytes = encode(&message);
        assert_eq!(Message::decode(&mut bytes), Ok(message));
        assert!(bytes.is_empty(), "all of it is taken");
    }
}

#[test]
fn a_message_cut_short_is_refused_at_every_length() {
    for message in messages_of_each_kind() {
        let whole = encode(&message);
        for length in 0..whole.len() {
            let mut cut = whole.slice(..length);
            assert!(Message::decode(&mut cut).is_err(), "{message} cut to {length} of {}", whole.len());
            assert_eq!(cut.len(), length, "a frame that is refused is not taken");
        }
    }
}

#[test]
fn a_message_of_another_version_is_refused_and_named() {
    let mut bytes = encode(&messages_of_each_kind()[0]).to_vec();
    bytes[0] = WIRE_VERSION + 1;
    let refused = Message::decode(&mut Bytes::from(bytes));
    assert_eq!(refused, Err(DecodeError::Version { found: WIRE_VERSION + 1, known: WIRE_VERSION }));
}

#[test]
fn the_answer_to_an_append_takes_ten_bytes_or_so() {
    let caught = messages_of_each_kind();
    let reply = caught.iter().find(|message| message.kind() == Kind::AppendReply).expect("one of each kind");
    assert!(encode(reply).len() <= 10, "{} bytes", encode(reply).len());
}

/// A leader of three that proposed `bodies`, and what it sends to one follower.
fn append_of(bodies: &[Bytes]) -> Message {
    let mut cluster = Cluster::new(3, 1, |config| config);
    let n1 = NodeId(1);
    cluster.with(n1, |group| group.campaign());
    cluster.run();
    cluster.with(n1, |group| {
        for body in bodies {
            group.propose(body.clone()).expect("it leads");
        }
    });
    let append = cluster.network.iter().find(|message| message.kind() == Kind::Append).expect("entries go out");
    assert_eq!(append.entry_count(), bodies.len(), "proposals of one turn share a message");
    append.clone()
}

/// A question's context may be any sixteen bytes, also those that mark a forced vote.
#[test]
fn a_context_that_reads_like_a_mark_is_only_a_context() {
    for kind in [Kind::Heartbeat, Kind::HeartbeatReply] {
        // Which numbers are there (the term), group, from, to, term, then the context.
        let head = [WIRE_VERSION, kind as u8, 1, 1, 1, 2, 7, 16];
        let whole = Bytes::from([&head[..], b"CampaignTransfer"].concat());
        let message = Message::decode(&mut whole.clone()).expect("a message");
        assert_eq!(encode(&message), whole, "{kind:?}");
    }
}

#[test]
fn bodies_cross_the_wire_without_a_copy() {
    let body = Bytes::from(vec![9; INLINE_BYTES_MAX + 1]);
    let message = append_of(std::slice::from_ref(&body));
    let mut out = Segments::new();
    message.encode(&mut out);
    let segments: Vec<Bytes> = out.take().map(|(segment, _)| segment).collect();
    assert!(segments.iter().any(|segment| segment.as_ptr() == body.as_ptr()), "the segment is the proposed memory");

    let frame = encode(&message);
    let range = frame.as_ptr_range();
    let decoded = Message::decode(&mut frame.clone()).expect("just encoded");
    let mut again = Segments::new();
    decoded.encode(&mut again);
    assert!(
        again.take().any(|(segment, _)| range.contains(&segment.as_ptr())),
        "the decoded body is part of the frame"
    );
}

proptest! {
    // A shrunk failure becomes a named test, not a file of seeds.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn appends_of_any_bodies_come_back(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..2000), 1..20),
        rest in prop::collection::vec(any::<u8>(), 0..10),
    ) {
        let bodies: Vec<Bytes> = bodies.into_iter().map(Bytes::from).collect();
        let message = append_of(&bodies);
        prop_assert_eq!(message.body_bytes(), bodies.iter().map(Bytes::len).sum::<usize>());
        let mut frame = encode(&message).to_vec();
        frame.extend_from_slice(&rest);
        let mut frame = Bytes::from(frame);
        prop_assert_eq!(Message::decode(&mut frame), Ok(message));
        prop_assert_eq!(&frame[..], &rest[..], "what follows a message is left");
    }

    #[test]
    fn garbage_is_refused_or_means_what_it_says(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // Most garbage fails at the first byte; let it go further.
        if let Some(first) = bytes.first_mut() {
            *first = WIRE_VERSION;
        }
        let whole = Bytes::from(bytes);
        let mut rest = whole.clone();
        if let Ok(message) = Message::decode(&mut rest) {
            let taken = whole.len() - rest.len();
            prop_assert_eq!(encode(&message), whole.slice(..taken), "one message has one form");
        }
    }

    #[test]
    fn a_damaged_message_is_refused_or_means_what_it_says(at in 0..10_000_usize, flip in 1..=255_u8, which in 0..12_usize) {
        let message = &messages_of_each_kind()[which];
        let mut bytes = encode(message).to_vec();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let whole = Bytes::from(bytes);
        let mut rest = whole.clone();
        if let Ok(message) = Message::decode(&mut rest) {
            let taken = whole.len() - rest.len();
            prop_assert_eq!(encode(&message), whole.slice(..taken), "one message has one form");
        }
    }
}
