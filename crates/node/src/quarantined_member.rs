//! Stands in for a group that is damaged on this node, on its shard, until it is repaired.
//!
//! Invariant: nothing is said in the group's name. It casts no vote, writes nothing, confirms
//! nothing and gives nothing out; what it may need of the log stays. Who asks it for something
//! hears at once that it is unavailable. It listens, so that this node knows who leads the group: a
//! client that is connected here uses its queues there.

use crate::Millis;
use crate::completions::{Completion, Completions};
use crate::share::Share;
use crate::waits::Waiting;
use broker::{NodeNumber, PartitionId};
use consensus::{Kind, NodeId, Term};
use partition::{PeerFrame, Reply, refuse};

/// A leader that says nothing for so long is none: twice the time that a member waits for it.
const SILENT_MS: Millis = 2 * 10 * crate::TICK_MS;

/// See the module.
pub struct QuarantinedMember {
    id: PartitionId,
    needs_file: u32,
    told_needs: Option<u32>,
    completions: Completions,
    taken: Vec<Completion>,
    leader: Option<Leader>,
    /// The newest that was heard of.
    term: Term,
}

/// Who leads the group, by what it says.
#[derive(Clone, Copy)]
struct Leader {
    node: NodeNumber,
    heard: Millis,
}

impl QuarantinedMember {
    /// For a group that may need the log from this file on; 0 is all of it.
    pub fn new(id: PartitionId, needs_file: u32, completions: Completions) -> QuarantinedMember {
        QuarantinedMember {
            id,
            needs_file,
            told_needs: None,
            completions,
            taken: Vec::new(),
            leader: None,
            term: Term(0),
        }
    }

    pub(crate) fn step(&mut self, now: Millis, waiting: &mut Waiting, share: &mut Share) {
        waiting.declared.clear();
        // What the other members of its group say is for one that knows what it has.
        waiting.frames.drain(..).for_each(|(from, frame)| self.listen(now, from, &frame));
        self.leader = self.leader.filter(|leader| now < leader.heard + SILENT_MS);
        // The log tells everybody that it went on to another file.
        self.completions.take(&mut self.taken);
        self.taken.clear();
        share.note_needs(self.id, &mut self.told_needs, self.needs_file);
        waiting.commands.drain(..).for_each(|command| refuse(command, Reply::Unavailable, &mut share.out.effects));
    }

    fn listen(&mut self, now: Millis, from: NodeId, frame: &PeerFrame) {
        let PeerFrame::Raft(message) = frame else { return };
        let leads = matches!(message.kind(), Kind::Append | Kind::Heartbeat | Kind::Snapshot);
        if leads && message.term() >= self.term {
            self.term = message.term();
            self.leader = Some(Leader { node: NodeNumber(from.number()), heard: now });
        }
    }

    /// The term of whoever led last, as far as it was heard.
    pub(crate) fn term(&self) -> u64 {
        self.term.0
    }

    /// Who leads the group, as far as it was heard.
    pub(crate) fn leader(&self) -> Option<NodeNumber> {
        self.leader.map(|leader| leader.node)
    }

    /// The link to a node is gone; whether that led.
    pub(crate) fn link_lost(&mut self, node: NodeNumber) -> bool {
        self.leader.take_if(|leader| leader.node == node).is_some()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        match self.told_needs {
            None => Some(0),
            Some(_) => self.leader.map(|leader| leader.heard + SILENT_MS),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use broker::{ChannelKey, NodeLife, QueueId};
    use consensus::{Config, Group, Message, Ready, Restored};
    use partition::{Command, Effect, command::RequestId};

    #[test]
    fn who_asks_hears_that_it_is_unavailable_and_the_log_keeps_what_it_may_need() {
        let id = PartitionId(3);
        let completions = Completions::default();
        let mut member = QuarantinedMember::new(id, 7, completions.clone());
        let (mut waiting, mut share) = (Waiting::default(), Share::without_log());
        assert_eq!(member.poll_timeout(), Some(0), "it has something to say before anybody asks");
        completions.put(Completion::Rolled);
        let (channel, request) = (ChannelKey::of(NodeLife { node: 1, start: 1 }, 5), RequestId(9));
        let queue = QueueId(4);
        waiting.commands.push(Command::Get { queue, channel, no_ack: true, request });
        waiting.commands.push(Command::Delete { queue });
        member.step(1, &mut waiting, &mut share);
        assert_eq!(share.out.effects, [Effect::Reply { channel, request, reply: Reply::Unavailable }]);
        assert_eq!((&share.needs[..], member.poll_timeout()), (&[(id, 7)][..], None));
        member.step(1, &mut waiting, &mut share);
        assert_eq!((share.needs.len(), share.out.effects.len(), share.out.wal.len()), (1, 1, 0), "once is enough");
    }

    /// What members 2 and 3 of a group of three say to member 1, and which of them leads in the end.
    fn said_to_the_first() -> (Vec<Message>, NodeNumber) {
        let all = [1, 2, 3].map(NodeId);
        let group = |node| Group::new(Config::new(NodeId(node), 3, node), Restored::bootstrap(all)).unwrap();
        let (mut groups, mut said, mut ready) = ([group(2), group(3)], Vec::new(), Ready::new());
        for _ in 0..200 {
            for at in 0..2 {
                groups[at].tick();
                while groups[at].ready(&mut ready) {
                    let mut messages = std::mem::take(&mut ready.messages);
                    groups[at].persisted(ready.number);
                    messages.append(&mut ready.messages_after_sync);
                    for message in messages {
                        match message.to() {
                            NodeId(1) => said.push(message),
                            NodeId(other) => drop(groups[other as usize - 2].step(message)),
                        }
                    }
                }
            }
        }
        let leader = groups[0].status().leader.expect("two of three elect");
        (said, NodeNumber(leader.0 as u32))
    }

    #[test]
    fn it_hears_who_leads_and_says_nothing_itself() {
        let (said, leader) = said_to_the_first();
        let mut member = QuarantinedMember::new(PartitionId(3), 7, Completions::default());
        let (mut waiting, mut share) = (Waiting::default(), Share::without_log());
        waiting.frames.extend(said.into_iter().map(|message| (message.from(), PeerFrame::Raft(message))));
        member.step(100, &mut waiting, &mut share);
        assert_eq!((member.leader(), member.poll_timeout()), (Some(leader), Some(100 + SILENT_MS)));
        assert!(share.out.frames.is_empty() && share.out.wal.is_empty());
        assert!(!member.link_lost(NodeNumber(1)));
        member.step(100 + SILENT_MS, &mut waiting, &mut share);
        assert_eq!((member.leader(), member.poll_timeout()), (None, None), "it is silent");
    }
}
