//! What no sound node says, though it can be read: in another one's name, to somebody else, or a change of
//! the topology that nobody can carry out.
//!
//! A vote in the name of another member would be counted as that member's, and a leader of a number that no
//! node can have would end whoever follows it. A command in the name of a channel of another node would be
//! answered to that channel, which takes an answer that it did not wait for as a fault of its own node. A
//! change that is in the log and cannot be read ends every node.
//!
//! What is only late is no lie, and nothing here asks what this node knows: of an older term, of a group or a
//! queue that went or is not known yet, of a node that has left or to a channel that has ended.
//!
//! Invariant: it is looked at before anything is done with it, whatever partition it is for.

use super::PeerFrame;
use super::forward::Forward;
use super::packet::Frame;
use crate::command::Command;
use broker::topology::Command as Change;
use broker::{ChannelKey, PartitionId};
use consensus::{Kind, NodeId};

/// Why a frame is not believed that came over a link from `from` to `to`: close the link.
pub fn objection(partition: PartitionId, frame: &Frame, (from, to): (NodeId, NodeId)) -> Option<&'static str> {
    match frame {
        Frame::Group(PeerFrame::Raft(message)) => {
            // As whichever member of the group: one that it was before may be late to hear. A question what may be
            // read is passed on to who leads now, and still says who asked.
            if message.from().number() != from.number() && message.kind() != Kind::ReadIndex {
                return Some(IN_A_NODES_NAME);
            }
            let is_for = message.to().number() == to.number() && message.group() == partition.0;
            (!is_for).then_some("it says what is for another member")
        }
        Frame::Group(PeerFrame::AskLeft { member }) => (member.number() != from.number()).then_some(IN_A_NODES_NAME),
        Frame::Group(PeerFrame::Left(left)) if left.by.number() != from.number() => Some(IN_A_NODES_NAME),
        Frame::Group(PeerFrame::Left(left)) => {
            (left.member.number() != to.number()).then_some("it says what is for another member")
        }
        Frame::Forward(Forward::Propose { change, .. }) => {
            Change::decode(change).is_err().then_some("it wants a change of the topology that cannot be read")
        }
        Frame::Forward(Forward::Command(command)) => {
            let is_own = asker(command).is_none_or(|channel| channel == ChannelKey::NOBODY || is_of(channel, from));
            (!is_own).then_some(IN_ANOTHERS_NAME)
        }
        Frame::Forward(Forward::Delete { channel, .. } | Forward::Drained { channel, .. }) => {
            (!is_of(*channel, from)).then_some(IN_ANOTHERS_NAME)
        }
        Frame::Forward(Forward::Effect(effect)) => {
            (!effect.channel().is_some_and(|channel| is_of(channel, to))).then_some(TO_ANOTHER)
        }
        Frame::Forward(Forward::Starved { consumer }) => (!is_of(consumer.channel, to)).then_some(TO_ANOTHER),
        _ => None,
    }
}

const IN_A_NODES_NAME: &str = "it speaks in the name of another node";
const IN_ANOTHERS_NAME: &str = "it speaks in the name of a channel of another node";
const TO_ANOTHER: &str = "it speaks to a channel of another node";

/// Whether a channel is one of this node, in whatever life of it.
fn is_of(channel: ChannelKey, node: NodeId) -> bool {
    u64::from(channel.life().node) == node.0
}

/// The channel in whose name a command is given; `None` if it is given in no channel's.
fn asker(command: &Command) -> Option<ChannelKey> {
    match command {
        Command::Publish(publish) => Some(publish.channel),
        Command::Consume { consumer, .. } => Some(consumer.key.channel),
        Command::Settle { holder: consumer, .. }
        | Command::Hold { consumer, .. }
        | Command::Cancel { consumer, .. }
        | Command::Stall { consumer, .. }
        | Command::Grant { consumer, .. } => Some(consumer.channel),
        Command::Get { channel, .. }
        | Command::Purge { channel, .. }
        | Command::Stat { channel, .. }
        | Command::Close { channel, .. }
        | Command::Detach { channel }
        | Command::Part { channel }
        | Command::Mark { channel, .. }
        | Command::Sync { channel, .. } => Some(*channel),
        Command::Configure { .. }
        | Command::DeadLetterAnswered { .. }
        | Command::LimitReplies { .. }
        | Command::Reopen { .. }
        | Command::Delete { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Left;
    use super::*;
    use crate::command::{Effect, Reply, RequestId};
    use broker::topology::Name;
    use broker::{ConsumerKey, NodeLife, QueueId};
    use bytes::Bytes;
    use consensus::{Message, Term};

    const ENDS: (NodeId, NodeId) = (NodeId(3), NodeId(2));

    /// A vote that node 3 gives node 2 in a term of group 5.
    fn vote(group: u8, from: u8, to: u8) -> Frame {
        let bytes = Bytes::copy_from_slice(&[1, 4, 1, group, from, to, 9]);
        Frame::Group(PeerFrame::Raft(Message::decode(&mut bytes.clone()).expect("it can be read")))
    }

    #[test]
    fn a_vote_is_the_senders_own_and_for_the_member_that_hears_it() {
        let said = |frame| objection(PartitionId(5), &frame, ENDS);
        assert_eq!(said(vote(5, 3, 2)), None);
        assert_eq!(said(vote(5, 1, 2)), Some("it speaks in the name of another node"));
        assert_eq!(said(vote(5, 3, 1)), Some("it says what is for another member"));
        assert_eq!(said(vote(6, 3, 2)), Some("it says what is for another member"));
        // Node 1 asked node 3 what it may read, and that follows node 2 now.
        let asked = Bytes::from([&[1, 11, 0, 5, 1, 2, 16][..], &[7; 16]].concat());
        assert_eq!(
            said(Frame::Group(PeerFrame::Raft(Message::decode(&mut asked.clone()).expect("it can be read")))),
            None
        );
    }

    #[test]
    fn who_comes_back_to_a_group_as_another_member_is_no_liar() {
        let said = |frame| objection(PartitionId(5), &frame, ENDS);
        let vote = |from: NodeId, to: NodeId| {
            let mut bytes = consensus::Segments::new();
            bytes.put_bytes(&Bytes::from_static(&[1, 4, 1, 5]));
            [from.0, to.0, 9].into_iter().for_each(|number| bytes.put_varint(number));
            Frame::Group(PeerFrame::Raft(Message::decode(&mut bytes.to_bytes()).expect("it can be read")))
        };
        assert_eq!(said(vote(NodeId::of(3, 2), NodeId(2))), None);
        assert_eq!(said(vote(NodeId(3), NodeId::of(2, 1))), None);
        assert_eq!(said(vote(NodeId::of(1, 2), NodeId(2))), Some(IN_A_NODES_NAME));
        let ask = |member| Frame::Group(PeerFrame::AskLeft { member });
        assert_eq!(said(ask(NodeId::of(3, 1))), None);
        assert_eq!(said(ask(NodeId(1))), Some(IN_A_NODES_NAME));
        let left = |member, by| {
            let (term, applied, voters) = (Term(4), consensus::LogIndex(9), vec![NodeId(3)]);
            Frame::Group(PeerFrame::Left(Left { member, by, term, leads: true, applied, voters }))
        };
        assert_eq!(said(left(NodeId::of(2, 7), NodeId::of(3, 1))), None);
        assert_eq!(said(left(NodeId(2), NodeId(1))), Some(IN_A_NODES_NAME));
        assert!(said(left(NodeId(1), NodeId(3))).is_some());
    }

    #[test]
    fn commands_come_from_the_senders_channels_and_effects_go_to_those_of_who_hears_them() {
        let channel = |node, start| ChannelKey::of(NodeLife { node, start }, 7);
        let said = |forward| objection(PartitionId(5), &Frame::Forward(forward), ENDS);
        let (queue, request) = (QueueId(1), RequestId(1));
        let commands = |channel| {
            let consumer = ConsumerKey { channel, number: 1 };
            [
                Forward::Command(Command::Stat { queue, channel, request }),
                Forward::Command(Command::Grant { queue, consumer, count: 1 }),
                Forward::Drained { channel, bytes: 1 },
                Forward::Delete { queue, if_unused: false, if_empty: false, channel, request },
            ]
        };
        // Of whatever life: what is late is no lie.
        for sender in [channel(3, 1), channel(3, 9)] {
            commands(sender).into_iter().for_each(|forward| assert_eq!(said(forward), None));
        }
        for other in [channel(1, 1), channel(2, 1)] {
            commands(other).into_iter().for_each(|forward| assert_eq!(said(forward), Some(IN_ANOTHERS_NAME)));
        }
        let nobody = ConsumerKey::get(ChannelKey::NOBODY);
        assert_eq!(said(Forward::Command(Command::Stall { queue, consumer: nobody, stalled: true })), None);
        assert_eq!(said(Forward::Command(Command::Reopen { queue })), None);
        let effects = |channel| {
            let consumer = ConsumerKey { channel, number: 1 };
            [
                Forward::Effect(Effect::Reply { channel, request, reply: Reply::Done }),
                Forward::Effect(Effect::Cancelled { queue, consumer }),
                Forward::Starved { consumer },
            ]
        };
        effects(channel(2, 4)).into_iter().for_each(|forward| assert_eq!(said(forward), None));
        for other in [channel(3, 4), channel(1, 4), ChannelKey::NOBODY] {
            effects(other).into_iter().for_each(|forward| assert_eq!(said(forward), Some(TO_ANOTHER)));
        }
    }

    #[test]
    fn a_change_that_no_node_could_carry_out_is_not_taken() {
        let sound = Change::DeleteUser { name: Name::new(b"guest") }.encode();
        let propose = |change| Frame::Forward(Forward::Propose { token: 1, term: Term(1), change });
        assert_eq!(objection(PartitionId(0), &propose(sound.clone()), ENDS), None);
        let cut = sound.slice(..sound.len() - 1);
        assert!(objection(PartitionId(0), &propose(cut), ENDS).is_some());
    }
}
