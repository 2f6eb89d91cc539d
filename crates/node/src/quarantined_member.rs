//! Stands in for a group that is damaged on this node, on its shard, until it is repaired.
//!
//! Invariant: nothing is said in the group's name. It casts no vote, writes nothing, confirms
//! nothing and gives nothing out; what it may need of the log stays. Who asks it for something
//! hears at once that it is unavailable.

use crate::Millis;
use crate::completions::{Completion, Completions};
use crate::share::Share;
use crate::waits::Waiting;
use broker::PartitionId;
use partition::{Reply, refuse};

/// See the module.
pub struct QuarantinedMember {
    id: PartitionId,
    needs_file: u32,
    told_needs: Option<u32>,
    completions: Completions,
    taken: Vec<Completion>,
}

impl QuarantinedMember {
    /// For a group that may need the log from this file on; 0 is all of it.
    pub fn new(id: PartitionId, needs_file: u32, completions: Completions) -> QuarantinedMember {
        QuarantinedMember { id, needs_file, told_needs: None, completions, taken: Vec::new() }
    }

    pub(crate) fn step(&mut self, waiting: &mut Waiting, share: &mut Share) {
        waiting.declared.clear();
        // What the other members of its group say is for one that knows what it has.
        waiting.frames.clear();
        // The log tells everybody that it went on to another file.
        self.completions.take(&mut self.taken);
        self.taken.clear();
        share.note_needs(self.id, &mut self.told_needs, self.needs_file);
        waiting.commands.drain(..).for_each(|command| refuse(command, Reply::Unavailable, &mut share.out.effects));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Millis> {
        self.told_needs.is_none().then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::{ChannelKey, NodeLife, QueueId};
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
        member.step(&mut waiting, &mut share);
        assert_eq!(share.out.effects, [Effect::Reply { channel, request, reply: Reply::Unavailable }]);
        assert_eq!((&share.needs[..], member.poll_timeout()), (&[(id, 7)][..], None));
        member.step(&mut waiting, &mut share);
        assert_eq!((share.needs.len(), share.out.effects.len(), share.out.wal.len()), (1, 1, 0), "once is enough");
    }
}
